"""Requests that wait for a reply message, and the replies to them."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from reput.client.config import ClientConfig
from reput.client.core.retry import SendFailed
from reput.client.message import Message, ReceivedMessage
from reput.client.producer import Producer
from reput.client.request_reply import NoReply
from reput.errors import InvalidOption
from reput.format import command as commands, headers, properties as props
from reput.format.codes import RequestCode, ResponseCode
from reput.format.command import Command
from reput.format.headers import PushReplyHeader, SendMessageHeader
from reput.format.message import Host, StoredMessage
from scripted_cluster import ScriptedCluster

SEND = RequestCode.SEND_MESSAGE_V2
REPLY = RequestCode.SEND_REPLY_MESSAGE_V2
REPLY_TOPIC = "DefaultCluster_REPLY_TOPIC"


@pytest.fixture
async def cluster() -> AsyncIterator[ScriptedCluster]:
    topics = {
        "T": {"broker-a": 4},
        REPLY_TOPIC: {"broker-a": 1, "broker-b": 1},
        "TBW102": {"broker-a": 8},
    }
    async with ScriptedCluster(topics, brokers=2) as running:
        yield running


@pytest.fixture
async def producer(cluster: ScriptedCluster) -> AsyncIterator[Producer]:
    async with Producer("P", namesrv=cluster.namesrv) as started:
        yield started


def sent(request: Command) -> tuple[SendMessageHeader, dict[str, str]]:
    header = headers.decode_v2(request.ext_fields)
    return header, props.decode((header.properties or "").encode())


async def push(cluster: ScriptedCluster, correlation_id: str, body: bytes) -> Command:
    """Push a reply to the client, like a broker."""
    marks = {"MSG_TYPE": "reply", "CORRELATION_ID": correlation_id, "KEYS": "k"}
    header = PushReplyHeader(
        producer_group="others",
        topic=REPLY_TOPIC,
        default_topic="TBW102",
        default_topic_queue_nums=4,
        queue_id=0,
        sys_flag=0,
        born_timestamp=1_700_000_000_000,
        flag=7,
        properties=props.encode(marks).decode(),
        born_host="127.0.0.1:4711",
        store_host="127.0.0.1:10911",
        store_timestamp=1_700_000_000_001,
    )
    code = RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT
    question = Command(code, ext_fields=headers.encode(header), body=body)
    return await cluster.brokers[0].channels[0].invoke(question, 5_000)


async def test_a_request_gets_its_reply(cluster: ScriptedCluster, producer: Producer) -> None:
    asking = asyncio.create_task(producer.request(Message("T", b"6 * 7?", "tag")))
    (request,) = await cluster.brokers[0].until_asked(SEND)
    _, properties = sent(request)
    (beat, *_) = cluster.brokers[0].asked(RequestCode.HEART_BEAT)
    before = cluster.brokers[0].requests.index
    assert before(beat) < before(request), "the broker must know whom to hand the reply to"
    assert properties["TAGS"] == "tag"
    assert properties["TTL"] == "3000"
    assert properties["REPLY_TO_CLIENT"].encode() in beat.body
    assert (await push(cluster, "another", b"41")).code == ResponseCode.SUCCESS
    assert not asking.done()
    answer = await push(cluster, properties["CORRELATION_ID"], b"42")
    assert answer.code == ResponseCode.SUCCESS
    reply = await asking
    assert (reply.body, reply.topic, reply.keys, reply.flag) == (b"42", REPLY_TOPIC, ["k"], 7)
    assert reply.born_host == Host(b"\x7f\0\0\x01", 4711)
    assert reply.store_timestamp_ms == 1_700_000_000_001
    # The request is done; the client answers SUCCESS all the same, as Java's client does.
    assert (await push(cluster, properties["CORRELATION_ID"], b"43")).code == 0


async def test_concurrent_requests_get_their_own_replies(
    cluster: ScriptedCluster, producer: Producer
) -> None:
    asking = [
        asyncio.create_task(producer.request(Message("T", body))) for body in (b"one", b"two")
    ]
    requests = await cluster.brokers[0].until_asked(SEND, 2)
    for request in reversed(requests):
        await push(cluster, sent(request)[1]["CORRELATION_ID"], b"re: " + request.body)
    assert [(await task).body for task in asking] == [b"re: one", b"re: two"]


async def test_a_request_without_reply_times_out(producer: Producer) -> None:
    with pytest.raises(NoReply, match="request to T was stored, but not replied to in 50 ms"):
        await producer.request(Message("T", b"anybody?"), timeout_ms=50)


async def test_a_request_that_cannot_be_sent_fails(
    cluster: ScriptedCluster, producer: Producer
) -> None:
    cluster.brokers[0].refuse(ResponseCode.MESSAGE_ILLEGAL)
    with pytest.raises(SendFailed):
        await producer.request(Message("T", b"?"))


def received(**marks: str) -> ReceivedMessage:
    properties = {"CLUSTER": "DefaultCluster", **marks}
    stored = StoredMessage(
        topic="T", body=b"?", queue_id=0, queue_offset=0, physical_offset=0, born_timestamp=0,
        born_host=Host(bytes(4), 0), store_timestamp=0, store_host=Host(bytes(4), 0),
        properties=properties,
    )  # fmt: skip
    return ReceivedMessage.of(stored, "broker-b")


@pytest.mark.parametrize("namespace", ["", "tenant"])
async def test_a_reply_goes_to_the_broker_of_the_request(
    cluster: ScriptedCluster, namespace: str
) -> None:
    cluster.brokers[1].answers[REPLY] = cluster.brokers[1].stored
    config = ClientConfig(namesrv_addr=cluster.namesrv, namespace=namespace)
    request = received(CORRELATION_ID="c1", REPLY_TO_CLIENT="asker", TTL="2000")
    async with Producer("P", client=config) as producer:
        result = await producer.reply(request, b"42", properties={"more": "x"})
    assert result.queue.broker_name == "broker-b"
    (reply,) = cluster.brokers[1].asked(REPLY)
    header, properties = sent(reply)
    assert (reply.body, header.topic) == (b"42", REPLY_TOPIC)
    del properties["UNIQ_KEY"]
    assert properties == {
        "MSG_TYPE": "reply",
        "CORRELATION_ID": "c1",
        "REPLY_TO_CLIENT": "asker",
        "TTL": "2000",
        "more": "x",
        **({"INSTANCE_ID": namespace} if namespace else {}),
    }


async def test_a_reply_to_a_disconnected_client_fails(
    cluster: ScriptedCluster, producer: Producer
) -> None:
    text = "push reply message fail, channel of <asker> not found."
    for broker in cluster.brokers:
        broker.answers[REPLY] = lambda request: commands.reply(
            request, ResponseCode.SYSTEM_ERROR, text
        )
    request = received(CORRELATION_ID="c1", REPLY_TO_CLIENT="asker")
    with pytest.raises(SendFailed, match="not found"):
        await producer.reply(request, b"42")
    assert len(cluster.brokers[1].asked(REPLY)) == 1  # not retried: the client will not come back


async def test_a_reply_to_a_plain_message_is_refused(producer: Producer) -> None:
    with pytest.raises(InvalidOption, match="property CORRELATION_ID"):
        await producer.reply(received(REPLY_TO_CLIENT="asker"), b"42")
