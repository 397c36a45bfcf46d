"""Clients with credentials sign every request, and errors give the reason of a refusal."""

import asyncio
import base64
import hmac
import logging
from collections.abc import AsyncIterator

import pytest

from reput import config
from reput.client import blocking
from reput.client.config import ClientConfig
from reput.client.core.retry import SendFailed, may_retry
from reput.client.message import Message
from reput.client.producer import Producer
from reput.errors import AccessRefused, BrokerError, InvalidOption, broker_error
from reput.format import command
from reput.format.codes import RequestCode, ResponseCode
from reput.format.command import Command
from reput.format.signing import Credentials, Signer
from reput.remoting.client import RemotingClient
from reput.remoting.frame_template import FrameTemplate
from reput.secret import Secret
from scripted_cluster import ScriptedCluster, ScriptedServer

KEY, SECRET, TOKEN = "an-access-key", "hunter2-secret", "hunter2-token"


def client_of(namesrv: str) -> ClientConfig:
    return ClientConfig(
        namesrv_addr=namesrv,
        access_key=KEY,
        secret_key=Secret(SECRET),
        security_token=Secret(TOKEN),
    )


def is_signed(request: Command) -> bool:
    fields = dict(request.ext_fields or {})
    signature = fields.pop("Signature", "")
    data = "".join(fields[name] for name in sorted(fields)).encode() + request.body
    expected = base64.b64encode(hmac.digest(SECRET.encode(), data, "sha1")).decode()
    return (signature, fields.get("AccessKey"), fields.get("SecurityToken")) == (
        expected, KEY, TOKEN,
    )  # fmt: skip


@pytest.fixture
async def cluster() -> AsyncIterator[ScriptedCluster]:
    async with ScriptedCluster({"T": {"broker-a": 2}}) as running:
        yield running


async def test_every_request_of_a_producer_is_signed(cluster: ScriptedCluster) -> None:
    async with Producer("P", client=client_of(cluster.namesrv)) as producer:
        await producer.send(Message("T", "é\x01".encode(), tags="a", properties={"k": 'v"\\'}))
        await producer.send_batch([Message("T", b"1"), Message("T", b"2")])
        await producer.send_many([Message("T", b"x") for _ in range(100)])
        await producer.send_oneway(Message("T", b"3"))
        await cluster.broker.until_asked(RequestCode.HEART_BEAT)
        await cluster.broker.until_asked(RequestCode.SEND_MESSAGE_V2, 102)
    requests = cluster.broker.requests + cluster.name_server.requests
    assert {request.code for request in requests} >= {34, 35, 105, 310, 320}
    assert all(map(is_signed, requests))


def test_a_blocking_client_signs_too() -> None:
    async def serve() -> None:
        async with ScriptedCluster({"T": {"broker-a": 2}}) as running:

            def send() -> None:
                with blocking.Producer("P", client=client_of(running.namesrv)) as producer:
                    producer.send(Message("T", b"x"))

            await asyncio.to_thread(send)
            assert len(running.broker.asked(RequestCode.SEND_MESSAGE_V2)) == 1
            assert all(map(is_signed, running.broker.requests))

    asyncio.run(serve())


async def test_a_retried_request_is_signed_and_its_caller_keeps_it_unsigned() -> None:
    server = ScriptedServer()
    server.answers[10] = command.reply
    await server.start()
    signer = Signer(Credentials(KEY, Secret(SECRET), Secret(TOKEN)))
    async with RemotingClient(signer=signer) as client:
        request = Command(10, ext_fields={"topic": "T"})
        for _ in range(2):
            await client.invoke(server.address, request)
        await client.send_oneway(server.address, request)
        await server.until_asked(RequestCode(10), 3)
        assert request.ext_fields == {"topic": "T"}
    assert all(map(is_signed, server.requests))
    await server.stop()


def test_each_frame_of_a_template_is_signed() -> None:
    signer = Signer(Credentials(KEY, Secret(SECRET), Secret(TOKEN)))
    request = Command(11, ext_fields={"topic": "T", "n": "0"}, body=b"b")
    fields = ((b'"opaque":0,', b'"opaque":%d,'), (b'"n":"0"', b'"n":"%d"'))
    template = FrameTemplate(request, fields, signer)
    for opaque, number in ((1, 5), (2, 1 << 60)):
        decoded = command.decode(template.fill(opaque, number)[4:])
        assert decoded.opaque == opaque
        assert (decoded.ext_fields or {})["n"] == str(number)
        assert is_signed(decoded)


# --- settings -------------------------------------------------------------------


def test_settings_come_from_properties_and_the_environment() -> None:
    loaded = config.load(
        ClientConfig,
        {"namesrvAddr": "a:1", "accessKey": KEY},
        environment={"REPUT_SECRET_KEY": SECRET},
    )
    assert loaded.value.credentials == Credentials(KEY, Secret(SECRET))
    assert config.texts(loaded.value)["secretKey"] == "***"
    assert ClientConfig(namesrv_addr="a:1").credentials is None


def test_a_plain_text_becomes_a_secret() -> None:
    client = ClientConfig(namesrv_addr="a:1", access_key=KEY, secret_key=SECRET)  # type: ignore[arg-type]
    assert client.secret_key == Secret(SECRET)
    assert SECRET not in repr(client)


def test_half_of_the_credentials_is_an_error_without_the_secret() -> None:
    with pytest.raises(InvalidOption, match="accessKey") as caught:
        ClientConfig(namesrv_addr="a:1", secret_key=Secret(SECRET))
    assert SECRET not in str(caught.value)
    with pytest.raises(InvalidOption, match="secretKey"):
        ClientConfig(namesrv_addr="a:1", access_key=KEY)


# --- refusals -------------------------------------------------------------------

JAVA = "org.apache.rocketmq.acl.common.AclException: "
PLACE = (
    ", org.apache.rocketmq.acl.plain.PlainPermissionManager.validate"
    "(PlainPermissionManager.java:692)"
)


@pytest.mark.parametrize(
    ("code", "remark", "problem"),
    [
        # The remarks of 4.9.7 and 5.5.0.
        (1, f"{JAVA}No accessKey is configured{PLACE}", "this client has none"),
        (16, "username cannot be null.", "this client has none"),
        (1, f"{JAVA}No acl config for stranger{PLACE}", "not know access key stranger"),
        (16, "User:stranger is not found.", "not know access key stranger"),
        (16, "User:stranger not found.", "not know access key stranger"),
        (16, "User:alice is disabled.", "user alice is disabled"),
        (1, f"{JAVA}Check signature failed for accessKey=AK{PLACE}", "secret key is not that of"),
        (16, "check signature failed.", "secret key is not that of"),
        (1, f"{JAVA}No default permission for topic:T{PLACE}", "no permission for topic T"),
        (1, f"{JAVA}No permission for group:G{PLACE}", "no permission for group G"),
        (
            1,
            f"{JAVA}Need admin permission for request code=17, but accessKey=AK is not{PLACE}",
            "request 17 is for admins, and access key AK is none",
        ),
        (
            16,
            "User:alice has no permission to access Topic:other from 127.0.0.1, no matched"
            " policies.",
            "user alice has no permission for Topic:other",
        ),
    ],
)
def test_refusals_name_what_is_wrong(code: int, remark: str, problem: str) -> None:
    error = broker_error(code, remark, "127.0.0.1:10911")
    assert isinstance(error, AccessRefused)
    assert problem in error.problem
    assert str(error).startswith(f"127.0.0.1:10911 refuses access: {error.problem} (code {code}: ")
    assert "org.apache" not in str(error)
    assert error.remark in remark
    assert error.response_code == ResponseCode.NO_PERMISSION
    assert not any((error.retriable, error.refresh_route, may_retry(error)))


@pytest.mark.parametrize(
    ("code", "remark"),
    [
        (16, "the broker's permission is 4: not writable"),
        (1, "the offset matched, but the message is damaged"),
        (1, None),
        (2, "check signature failed."),
    ],
)
def test_other_errors_are_no_refusals(code: int, remark: str | None) -> None:
    assert type(broker_error(code, remark)) is BrokerError


async def test_a_refused_send_is_not_repeated_and_no_log_line_has_a_secret(
    cluster: ScriptedCluster, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    remark = f"{JAVA}Check signature failed for accessKey={KEY}{PLACE}"
    cluster.broker.refuse(ResponseCode.SYSTEM_ERROR, remark)
    cluster.broker.answers[RequestCode.HEART_BEAT] = lambda request: command.reply(
        request, ResponseCode.SYSTEM_ERROR, remark
    )
    async with Producer("P", client=client_of(cluster.namesrv)) as producer:
        with pytest.raises(SendFailed, match="secret key is not that of the access key") as caught:
            await producer.send(Message("T", b"x"))
    assert not caught.value.retriable
    assert len(cluster.broker.asked(RequestCode.SEND_MESSAGE_V2)) == 1
    shown = caplog.text + str(caught.value) + repr(caught.value) + repr(vars(producer))
    assert "heartbeat" in shown
    assert SECRET not in shown
    assert TOKEN not in shown
