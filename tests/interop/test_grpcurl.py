"""grpcurl, a client of any gRPC service, with the protos of this project: plain, and with TLS.

The gRPC status of each call is 0: errors are in the ``status`` of a normal reply, as grpcurl shows.
"""

import base64
import json
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from interop import java_oracle
from interop.java_oracle import HERE, cached
from interop.other_clients import ClientUnavailable, make, tool
from reput.grpc.wire.grpc_messages import METHODS, SERVICE
from reput.testing import LocalBroker

pytestmark = [
    pytest.mark.interop,
    pytest.mark.skipif(
        not java_oracle.wants_all_versions(),
        reason="make interop-all: grpcurl takes minutes to compile",
    ),
]

PROTOS = HERE.parents[1] / "src/reput/grpc/wire/proto"
WITH_PROTOS = ("-import-path", str(PROTOS), "-proto", "apache/rocketmq/v2/service.proto")
CLIENT_ID = ("-H", "x-mq-client-id: curl")
TIMEOUT_S = 60.0


def _build(folder: Path) -> None:
    go = tool("go", "install Go 1.25 or later (https://go.dev/dl/)")
    package = "github.com/fullstorydev/grpcurl/cmd/grpcurl"
    make([go, "build", "-o", folder, package], HERE / "grpcurl")


@pytest.fixture(scope="module")
def program() -> Path:
    try:
        return cached("grpcurl", sorted((HERE / "grpcurl").iterdir()), _build) / "grpcurl"
    except ClientUnavailable as reason:
        pytest.skip(f"missing client: {reason}")


@pytest.fixture(scope="module")
def broker() -> Iterator[LocalBroker]:
    with LocalBroker() as running:
        running.create_topic("Orders")
        yield running


def run(program: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [program, *arguments], capture_output=True, text=True, check=False, timeout=TIMEOUT_S
    )


@dataclass
class Grpcurl:
    """The program for one server."""

    program: Path
    endpoint: str
    security: str
    """Option that says whether it uses TLS."""

    def call(
        self, method: str, headers: Sequence[str] = CLIENT_ID, **request: Any
    ) -> list[dict[str, Any]]:
        """Call a method; return the replies."""
        message = ("-d", json.dumps(request))
        place = (self.endpoint, f"{SERVICE}/{method}")
        done = run(self.program, self.security, *headers, *WITH_PROTOS, *message, *place)
        assert (done.returncode, done.stderr) == (0, "")
        replies = []
        text = done.stdout.lstrip()
        while text:
            reply, end = json.JSONDecoder().raw_decode(text)
            replies.append(reply)
            text = text[end:].lstrip()
        return replies


@pytest.fixture(params=["-plaintext", "-insecure"], ids=["plain", "tls"])
def grpcurl(request: pytest.FixtureRequest, program: Path, broker: LocalBroker) -> Grpcurl:
    return Grpcurl(program, broker.grpc_endpoint, request.param)


def test_the_protos_describe_each_method(program: Path) -> None:
    done = run(program, *WITH_PROTOS, "describe", SERVICE)
    described = {line.split()[1] for line in done.stdout.splitlines() if " rpc " in line}
    assert set(METHODS) <= described, done.stderr


def test_a_message_is_sent_received_and_acknowledged(grpcurl: Grpcurl) -> None:
    topic, group = {"name": "Orders"}, {"name": "billing"}
    (route,) = grpcurl.call("QueryRoute", topic=topic)
    assert route["status"]["code"] == "OK"
    queues = route["messageQueues"]
    assert {queue["permission"] for queue in queues} == {"READ_WRITE"}
    assert {tuple(queue["acceptMessageTypes"]) for queue in queues} == {("NORMAL",)}

    body = base64.b64encode(b"two coffees").decode()
    system = {"messageId": "01AA", "messageType": "NORMAL", "bodyEncoding": "IDENTITY", "tag": "a"}
    outgoing = {"topic": topic, "body": body, "systemProperties": system}
    (sent,) = grpcurl.call("SendMessage", messages=[outgoing])
    assert sent["status"]["code"] == "OK"
    assert [entry["messageId"] for entry in sent["entries"]] == ["01AA"]

    status, delivery, last = grpcurl.call(
        "ReceiveMessage",
        group=group,
        messageQueue={"topic": topic, "id": -1, "broker": {"name": "broker-a"}},
        filterExpression={"type": "TAG", "expression": "a"},
        batchSize=32,
        invisibleDuration="30s",
        longPollingTimeout="5s",
    )
    assert status["status"]["code"] == "OK"
    assert "deliveryTimestamp" in last
    message = delivery["message"]
    assert message["body"] == body
    properties = message["systemProperties"]
    assert (properties["messageId"], properties["tag"]) == ("01AA", "a")

    entry = {"messageId": "01AA", "receiptHandle": properties["receiptHandle"]}
    (acknowledged,) = grpcurl.call("AckMessage", group=group, topic=topic, entries=[entry])
    assert acknowledged["status"]["code"] == "OK"
    assert [each["status"]["code"] for each in acknowledged["entries"]] == ["OK"]


def test_errors_are_statuses_of_a_normal_reply(grpcurl: Grpcurl) -> None:
    (unknown,) = grpcurl.call("QueryRoute", topic={"name": "no-such-topic"})
    assert unknown["status"]["code"] == "TOPIC_NOT_FOUND"
    (empty,) = grpcurl.call("SendMessage")
    assert empty["status"]["code"] == "MESSAGE_CORRUPTED"
    entry = {"messageId": "01", "receiptHandle": "no handle"}
    (refused,) = grpcurl.call(
        "AckMessage", group={"name": "billing"}, topic={"name": "Orders"}, entries=[entry]
    )
    assert [each["status"]["code"] for each in refused["entries"]] == ["INVALID_RECEIPT_HANDLE"]


def test_there_is_no_reflection(grpcurl: Grpcurl) -> None:
    done = run(grpcurl.program, grpcurl.security, grpcurl.endpoint, "list")
    assert done.returncode != 0
    assert "server does not support the reflection API" in done.stderr


def test_a_method_without_a_client_id_is_refused(grpcurl: Grpcurl) -> None:
    (refused,) = grpcurl.call("QueryRoute", headers=(), topic={"name": "Orders"})
    assert refused["status"]["code"] == "CLIENT_ID_REQUIRED"
