"""Requests and replies between Java and Python clients; see ``clusters``."""

import asyncio
import contextlib
from collections.abc import Iterator

import pytest

from interop.clusters import CLIENTS, KINDS, Cluster, start_cluster
from interop.conftest import StartOracle
from interop.java_oracle import ClusterOracle, JavaError
from reput.client import (
    Admin,
    ClientConfig,
    ConsumeFromWhere,
    ConsumerConfig,
    ConsumeResult,
    Message,
    NoReply,
    NoRoute,
    Producer,
    PushConsumer,
)
from reput.client.message import ReceivedMessage, received
from reput.format import headers, properties as props
from reput.format.codes import RequestCode, ResponseCode
from reput.format.command import Command
from reput.format.headers import PullMessageHeader, SendMessageHeader
from reput.remoting.client import RemotingClient

pytestmark = [pytest.mark.interop, pytest.mark.rotating]

REPLY_TOPIC = "DefaultCluster_REPLY_TOPIC"
TIMEOUT_MS = 55_000
"""Timeout of a request, in ms; a Java consumer that misses its first rebalance waits 20 s."""


class ReplyOracle(ClusterOracle):
    """Running ``ReplyOracle.java``."""

    main_class = "ReplyOracle"
    more_classes = ("Signing",)


@pytest.fixture(scope="module", params=CLIENTS)
def java(request: pytest.FixtureRequest, start_oracle: StartOracle) -> ReplyOracle:
    return start_oracle(ReplyOracle, request.param)


@pytest.fixture(scope="module", params=KINDS)
def cluster(
    request: pytest.FixtureRequest, java: ReplyOracle, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("cluster")
    with start_cluster(request.param, java.version, folder) as running:
        yield running


async def make_topic(cluster: Cluster, topic: str) -> None:
    """Create a topic first: a Java consumer looks for a missing one only every 20 s."""
    async with Admin(cluster.namesrv) as admin:
        await admin.create_topic(topic, queue_count=1)
        for _ in range(500):  # 5.x registers the topic asynchronously
            with contextlib.suppress(NoRoute):
                await admin.topic_route(topic)
                return
            await asyncio.sleep(0.02)
    raise AssertionError(f"no route of {topic}")


async def answer_in_python(cluster: Cluster, topic: str) -> tuple[Producer, PushConsumer]:
    """Start a producer and a consumer that replies to each message of a topic."""
    config = ClientConfig(namesrv_addr=cluster.namesrv)
    producer = Producer(f"python-{topic}", client=config)

    async def listen(messages: list[ReceivedMessage], _: object) -> ConsumeResult:
        for message in messages:
            await producer.reply(message, b"re: " + message.body, properties={"from": "python"})
        return ConsumeResult.SUCCESS

    first = ConsumerConfig(consume_from_where=ConsumeFromWhere.FIRST_OFFSET)
    consumer = PushConsumer(f"group-{topic}", listener=listen, config=first, client=config)
    await consumer.subscribe(topic)
    await producer.start()
    await consumer.start()
    return producer, consumer


async def test_java_replies_to_java(cluster: Cluster, java: ReplyOracle) -> None:
    await make_topic(cluster, "JavaJava")
    await asyncio.to_thread(java.ask_one, "replier", cluster.namesrv, "JavaJava", "javajava")
    reply = await asyncio.to_thread(
        java.ask_one, "request", cluster.namesrv, "JavaJava", "6 * 7?", TIMEOUT_MS
    )
    assert (reply["body"], reply["topic"]) == ("re: 6 * 7?", REPLY_TOPIC)
    assert reply["MSG_TYPE"] == "reply"
    assert int(reply["ARRIVE_TIME"]) >= int(reply["PUSH_REPLY_TIME"]) > 0


async def test_java_replies_to_python(cluster: Cluster, java: ReplyOracle) -> None:
    await make_topic(cluster, "PythonJava")
    await asyncio.to_thread(java.ask_one, "replier", cluster.namesrv, "PythonJava", "pythonjava")
    async with Producer("asking", namesrv=cluster.namesrv) as producer:
        reply = await producer.request(Message("PythonJava", b"6 * 7?"), timeout_ms=TIMEOUT_MS)
        large = b"x" * 10_000  # compressed in transit
        other = await producer.request(Message("PythonJava", large), timeout_ms=TIMEOUT_MS)
    assert (reply.body, reply.topic) == (b"re: 6 * 7?", REPLY_TOPIC)
    assert other.body == b"re: " + large


async def test_python_replies_to_java(cluster: Cluster, java: ReplyOracle) -> None:
    await make_topic(cluster, "JavaPython")
    producer, consumer = await answer_in_python(cluster, "JavaPython")
    reply = await asyncio.to_thread(
        java.ask_one, "request", cluster.namesrv, "JavaPython", "6 * 7?", TIMEOUT_MS
    )
    await consumer.close()
    await producer.close()
    assert (reply["body"], reply["topic"], reply["from"]) == ("re: 6 * 7?", REPLY_TOPIC, "python")


async def test_a_request_without_replier_times_out(cluster: Cluster, java: ReplyOracle) -> None:
    with pytest.raises(JavaError, match=r"RequestTimeoutException.*wait reply message timeout"):
        await asyncio.to_thread(
            java.ask_one, "request", cluster.namesrv, "Nobody", "anybody?", 3_000
        )
    async with Producer("asking", namesrv=cluster.namesrv) as producer:
        with pytest.raises(NoReply):
            await producer.request(Message("Nobody", b"anybody?"), timeout_ms=1_000)


async def send_reply(cluster: Cluster, marks: dict[str, str], code: RequestCode) -> Command:
    header = SendMessageHeader(
        producer_group="raw",
        topic=REPLY_TOPIC,
        default_topic="TBW102",
        default_topic_queue_nums=4,
        queue_id=0,
        sys_flag=0,
        born_timestamp=1_700_000_000_000,
        flag=0,
        properties=props.encode(marks).decode(),
        reconsume_times=0,
        unit_mode=False,
    )
    v2 = code == RequestCode.SEND_REPLY_MESSAGE_V2
    fields = headers.encode_v2(header) if v2 else headers.encode(header)
    async with RemotingClient() as client:
        return await client.invoke(
            cluster.address, Command(code, ext_fields=fields, body=b"42"), TIMEOUT_MS
        )


async def newest_reply(cluster: Cluster, queue_offset: int) -> ReceivedMessage:
    header = PullMessageHeader(
        consumer_group="TOOLS_CONSUMER",
        topic=REPLY_TOPIC,
        queue_id=0,
        queue_offset=queue_offset,
        max_msg_nums=1,
        sys_flag=4,
        commit_offset=0,
        suspend_timeout_millis=0,
        subscription="*",
        sub_version=0,
    )
    async with RemotingClient() as client:
        for _ in range(200):  # Java dispatches asynchronously
            request = Command(RequestCode.PULL_MESSAGE, ext_fields=headers.encode(header))
            reply = await client.invoke(cluster.address, request, TIMEOUT_MS)
            if reply.code == ResponseCode.SUCCESS:
                return received(reply.body, "broker-a")[0]
            await asyncio.sleep(0.02)
    raise AssertionError(reply)


@pytest.mark.parametrize(
    "code", [RequestCode.SEND_REPLY_MESSAGE, RequestCode.SEND_REPLY_MESSAGE_V2]
)
async def test_a_reply_to_a_missing_client_is_stored(cluster: Cluster, code: RequestCode) -> None:
    marks = {"MSG_TYPE": "reply", "CORRELATION_ID": "c", "WAIT": "true", "REPLY_TO_CLIENT": "none"}
    reply = await send_reply(cluster, marks, code)
    assert (reply.code, reply.remark) == (
        ResponseCode.SYSTEM_ERROR,
        "push reply message fail, channel of <none> not found.",
    )
    fields = reply.ext_fields or {}
    assert (fields["queueId"], fields["MSG_REGION"], fields["TRACE_ON"]) == (
        "0",
        "DefaultRegion",
        "true",
    )
    kept = await newest_reply(cluster, int(fields["queueOffset"]))
    assert kept.offset_message_id == fields["msgId"]
    assert kept.body == b"42"
    of_traces = {"MSG_REGION", "TRACE_ON"}  # 5.x adds them
    assert {name: kept.properties[name] for name in kept.properties.keys() - of_traces} == marks


async def test_a_reply_without_client_is_refused(cluster: Cluster) -> None:
    marks = {"MSG_TYPE": "reply"}
    reply = await send_reply(cluster, marks, RequestCode.SEND_REPLY_MESSAGE_V2)
    assert (reply.code, reply.remark) == (
        ResponseCode.SYSTEM_ERROR,
        "reply message properties[REPLY_TO_CLIENT] is null",
    )
