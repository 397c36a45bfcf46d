"""Spring's starter of the Java SDK of 5.x, unmodified, on the gRPC port of a broker.

Its producers, listeners and simple consumers use TLS unless they are configured otherwise.
"""

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from interop import java_oracle
from interop.clusters import until
from interop.java_oracle import HERE, cached
from interop.other_clients import make
from interop.sdks import Running
from ports import free_port
from reput.client.blocking import Admin
from reput.format.bodies import SubscriptionGroupConfig
from reput_cluster import ReputCluster

pytestmark = [
    pytest.mark.interop,
    pytest.mark.skipif(not java_oracle.wants_all_versions(), reason="make interop-all: no Spring"),
]
SOURCES = HERE / "spring"
TOPICS = {"Orders": "NORMAL", "InOrder": "FIFO", "Later": "DELAY", "Half": "TRANSACTION"}
ONE_SECOND_EACH = {"type": "CUSTOMIZED", "customizedRetryPolicy": {"next": [1_000]}}


@pytest.fixture(scope="module")
def command() -> list[str]:
    """Compile the application; return its command."""

    def build(folder: Path) -> None:
        copying = ["-q", "-B", "-f", SOURCES / "pom.xml", "dependency:copy-dependencies"]
        jars = [f"-DoutputDirectory={folder / 'jars'}", "-DincludeScope=runtime"]
        make([java_oracle.tool("mvn"), *copying, *jars], folder)
        compiling = ["-parameters", "-proc:none", "-encoding", "UTF-8"]
        path = java_oracle.class_path(folder / "jars")
        source = SOURCES / "Program.java"
        make(
            [java_oracle.tool("javac"), *compiling, "-cp", path, "-d", folder / "classes", source],
            folder,
        )

    folder = cached("spring", sorted(SOURCES.iterdir()), build)
    path = java_oracle.class_path(folder / "jars", folder / "classes")
    return [java_oracle.tool("java"), *java_oracle.JVM_OPTIONS, "-cp", path, "interop.Program"]


@pytest.fixture
def application(command: list[str], tmp_path: Path) -> Iterator[Running]:
    """Run the application on a broker with its topics and groups."""
    port = free_port()
    settings = {
        "grpcServerPort": port,
        "autoCreateSubscriptionGroup": False,
        "transactionCheckInterval": 1_000,
        "transactionTimeOut": 1_000,
    }
    with ReputCluster(tmp_path / "cluster", settings) as cluster:
        with Admin(cluster.namesrv) as admin:
            for topic, kind in TOPICS.items():
                admin.create_topic(topic, queue_count=4, attributes={"message.type": kind})
            for group in ("listeners", "receivers"):
                admin.create_group(
                    SubscriptionGroupConfig(group_name=group, group_retry_policy=ONE_SECOND_EACH)
                )
        address = f"127.0.0.1:{port}"
        request = {
            "rocketmq.push-consumer.endpoints": address,
            "rocketmq.producer.endpoints": address,
            # Checks of transactions reach the producers that have declared the topic.
            "rocketmq.producer.topic": "Half",
            "rocketmq.simple-consumer.endpoints": address,
            "rocketmq.simple-consumer.topic": "Half",
            "rocketmq.simple-consumer.consumer-group": "receivers",
            "rocketmq.simple-consumer.tag": "*",
        }
        home = Path(tempfile.mkdtemp(prefix="spring-"))
        with Running(command, {}, request, home) as running:
            assert running.answer() == {"started": True}
            yield running


def test_an_application_sends_listens_and_receives(application: Running) -> None:
    lines: list[dict[str, Any]] = []

    def send(how: str, destination: str, body: str) -> str:
        application.write({"do": how, "destination": destination, "body": body})
        return str(take("sent")["sent"])

    def take(key: str) -> dict[str, Any]:
        """Return the next line with a key, and keep the others."""
        for number, line in enumerate(lines):
            if key in line:
                return lines.pop(number)
        while key not in (line := application.answer()):
            lines.append(line)
        return line

    # What listens for tags a and b fails once for "again".
    ids = {
        body: send(how, f"Orders:{tag}", body)
        for how, tag, body in (
            ("normal", "a", "plain"),
            ("async", "b", "async"),
            ("normal", "c", "another tag"),
            ("normal", "a", "again"),
        )
    }
    pushed = [take("pushed") for _ in range(4)]
    attempts = sorted((line["pushed"], line["attempt"]) for line in pushed)
    assert attempts == [("again", 1), ("again", 2), ("async", 1), ("plain", 1)]
    assert {line["message_id"] for line in pushed} == set(ids.values()) - {ids["another tag"]}

    assert send("fifo", "InOrder:a", "in order")
    assert send("delay", "Later:a", "later")

    for how in ("commit", "rollback", "leave"):
        send(how, "Half:a", how)
    assert take("checked")["checked"] == "leave"
    received: list[str] = []

    def has_both() -> bool:
        application.write({"do": "receive"})
        take("done")
        received.extend(line["received"] for line in lines if "received" in line)
        lines[:] = [line for line in lines if "received" not in line]
        return len(received) >= 2

    until(has_both, 60)
    assert sorted(received) == ["commit", "leave"]
