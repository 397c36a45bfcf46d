"""Our producer against the official broker; the official consumer reads the sent messages."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from random import Random
from typing import Any

import pytest

from interop.java_cluster import JavaClient, JavaCluster, JavaReceived, PullConsumer
from reput.client.admin import Admin
from reput.client.config import ProducerConfig
from reput.client.core.retry import SendFailed
from reput.client.core.route_cache import NoRoute
from reput.client.message import Message, SendResult, SendStatus
from reput.client.producer import Producer
from reput.format.bodies import MessageQueue
from reput.store.reader import StoreReader

pytestmark = pytest.mark.interop


@pytest.fixture
async def producer(official: JavaCluster) -> AsyncIterator[Producer]:
    async with Producer("ours", namesrv=official.namesrv) as started:
        yield started


@pytest.fixture
async def admin(official: JavaCluster) -> AsyncIterator[Admin]:
    async with Admin(official.namesrv) as started:
        yield started


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """Provide a topic name that is unique to the test."""
    name = "".join(letter if letter.isalnum() else "-" for letter in request.node.name)
    return f"{name[:100]}-{Random().randrange(1 << 32):08x}"


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    """Wait for something that a broker does after it has answered."""
    async with asyncio.timeout(60):
        while True:
            with contextlib.suppress(NoRoute):  # A new topic is not registered yet.
                if await condition():
                    return
            await asyncio.sleep(0.01)


async def until_readable(admin: Admin, results: Iterable[SendResult]) -> None:
    """Wait until the broker has dispatched all acknowledged messages."""
    ends: dict[MessageQueue, int] = {}
    for result in results:
        count = len(result.message_ids)
        ends[result.queue] = max(ends.get(result.queue, 0), result.queue_offset + count)

    async def are_readable() -> bool:
        return all([await admin.max_offset(queue) >= end for queue, end in ends.items()])

    await until(are_readable)


async def read_back(
    java: JavaClient, official: JavaCluster, topic: str
) -> dict[tuple[int, int], JavaReceived]:
    """Return the messages that Java reads: (queue id, queue offset) -> message."""

    def read() -> list[JavaReceived]:
        with java.pull_consumer(official.namesrv, "reader") as consumer:
            assert isinstance(consumer, PullConsumer)
            return [message for part in consumer.read_all(topic).values() for message in part]

    return {
        (message.queue_id, message.queue_offset): message
        for message in await asyncio.to_thread(read)
    }


def place(result: SendResult) -> tuple[int, int]:
    return result.queue.queue_id, result.queue_offset


@pytest.mark.sampled(14)
@pytest.mark.parametrize(
    "fields",
    [
        {"body": b"\0"},
        {"body": "ü€".encode(), "tags": "TagA", "keys": ["k1", "k2"], "flag": -7},
        {"body": b"x", "properties": {"ä": "€ \U0001f600", "b": "c d"}, "wait": False},
        {"body": b"y" * 4096},
        {"body": Random(1).randbytes(200_000), "tags": "noise"},
        {"body": b"z" * 1_000_000},
    ],
    ids=["small", "tagged", "properties", "compressed", "noise", "long"],
)
async def test_java_reads_our_messages(
    official: JavaCluster,
    java_client: JavaClient,
    producer: Producer,
    admin: Admin,
    topic: str,
    fields: dict[str, Any],
) -> None:
    message = Message(topic, **fields)
    result = await producer.send(message)
    await until_readable(admin, [result])
    read = (await read_back(java_client, official, topic))[place(result)]

    assert result.status is SendStatus.SEND_OK
    assert (read.body, read.tags, read.flag) == (message.body, message.tags, message.flag)
    assert (read.keys or "").split() == list(message.keys)
    assert message.properties.items() <= read.properties.items()
    assert read.msg_id == result.message_id
    assert read.offset_msg_id == result.offset_message_id
    assert len(result.message_id) == 32
    assert read.born_timestamp <= read.store_timestamp


@pytest.mark.sampled(14)
async def test_java_reads_our_batches(
    official: JavaCluster, java_client: JavaClient, producer: Producer, admin: Admin, topic: str
) -> None:
    messages = [
        Message(topic, b"%d" % i, f"tag{i}", [f"k{i}"], {"n": str(i)}, flag=i) for i in range(20)
    ]
    result = await producer.send_batch(messages)
    await until_readable(admin, [result])
    read = list((await read_back(java_client, official, topic)).values())

    assert [message.queue_offset for message in read] == list(range(20))
    assert [message.body for message in read] == [message.body for message in messages]
    assert [message.msg_id for message in read] == result.message_ids
    assert [message.offset_msg_id for message in read] == result.offset_message_ids
    assert [(message.tags, message.keys, message.flag) for message in read] == [
        (f"tag{i}", f"k{i}", i) for i in range(20)
    ]
    assert [message.properties["n"] for message in read] == [str(i) for i in range(20)]


@pytest.mark.sampled(14)
async def test_concurrent_sends_arrive_once(
    official: JavaCluster, java_client: JavaClient, producer: Producer, admin: Admin, topic: str
) -> None:
    results = await producer.send_many(Message(topic, b"%d" % i) for i in range(3000))
    await until_readable(admin, results)
    read = await read_back(java_client, official, topic)

    assert len(read) == 3000
    assert [read[place(result)].body for result in results] == [b"%d" % i for i in range(3000)]


@pytest.mark.sampled(14)
async def test_oneway_messages_arrive(
    official: JavaCluster, java_client: JavaClient, producer: Producer, admin: Admin, topic: str
) -> None:
    last = await producer.send(Message(topic, b"first"))
    await producer.send_oneway(Message(topic, b"oneway"), queue=last.queue)

    async def has_arrived() -> bool:
        return await admin.max_offset(last.queue) == 2

    await until(has_arrived)
    read = await read_back(java_client, official, topic)

    assert [message.body for message in read.values()] == [b"first", b"oneway"]


@pytest.mark.sampled(14)
async def test_a_delayed_message_is_delivered_later(
    official: JavaCluster, java_client: JavaClient, producer: Producer, topic: str
) -> None:
    result = await producer.send(Message(topic, b"later", delay_level=1))

    def take() -> JavaReceived:
        with java_client.push_consumer(official.namesrv, f"group-{topic}", topic) as consumer:
            return consumer.take(1)[0]

    received = await asyncio.to_thread(take)
    assert (received.body, received.msg_id) == (b"later", result.message_id)
    assert received.store_timestamp - received.born_timestamp >= 1000


async def test_a_new_topic_is_created_like_java_does(
    producer: Producer, admin: Admin, topic: str
) -> None:
    await producer.send(Message(topic, b"x"))
    config = (await admin.topic_configs("broker-a"))[topic]

    assert (config.read_queue_nums, config.write_queue_nums, config.perm) == (4, 4, 6)


async def test_refusals_of_a_broker_are_raised(
    official: JavaCluster, admin: Admin, topic: str
) -> None:
    config = ProducerConfig(max_message_bytes=8 << 20, compress_body_over_bytes=8 << 20)
    async with Producer("ours", namesrv=official.namesrv, config=config) as producer:
        with pytest.raises(SendFailed) as raised:
            await producer.send(Message(topic, bytes(5 << 20)))
        assert raised.value.response_code == 13
        assert not raised.value.retriable
        await producer.send(Message(topic, b"x"))
        queue = MessageQueue(topic, "broker-a", 99)
        with pytest.raises(SendFailed, match="queueId"):
            await producer.send(Message(topic, b"x"), queue=queue)


async def test_a_producer_is_registered_until_it_closes(
    official: JavaCluster, admin: Admin, topic: str
) -> None:
    group = f"group-{topic}"
    async with Producer(group, namesrv=official.namesrv) as producer:
        await producer.send(Message(topic, b"x"))

        async def is_known() -> bool:
            return len(await admin.producer_connection(group, topic)) == 1

        await until(is_known)
        (member,) = await admin.producer_connection(group, topic)
        assert member.language == "PYTHON"
    assert await admin.producer_connection(group, topic) == []


@pytest.mark.rotating
async def test_sending_survives_a_restart_of_the_broker(start_official: Any) -> None:
    cluster = start_official()
    config = ProducerConfig(send_timeout_ms=1000)
    async with Producer("ours", namesrv=cluster.namesrv, config=config) as producer:
        first = await producer.send(Message("T", b"first"))
        await asyncio.to_thread(cluster.kill_broker)
        with pytest.raises(SendFailed) as raised:
            await producer.send(Message("T", b"lost"))
        assert raised.value.retriable
        await asyncio.to_thread(cluster.start)
        second = await producer.send(Message("T", b"second"), queue=first.queue, timeout_ms=30_000)
        assert second.queue_offset == first.queue_offset + 1
    await asyncio.to_thread(cluster.stop)

    reader = StoreReader.open(str(cluster.store))
    for result, body in ((first, b"first"), (second, b"second")):
        stored = reader.message_in_queue("T", result.queue.queue_id, result.queue_offset)
        assert (stored.body, stored.unique_key) == (body, result.message_id)


async def test_a_missing_replica_has_a_status(start_official: Any) -> None:
    cluster = start_official(settings={"brokerRole": "SYNC_MASTER"})
    async with Producer("ours", namesrv=cluster.namesrv) as producer:
        result = await producer.send(Message("T", b"x"))
    assert result.status is SendStatus.SLAVE_NOT_AVAILABLE
