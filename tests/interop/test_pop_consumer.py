"""Our pop consumer: in one group with Java's members, and on the official broker of 5.5.0."""

import asyncio
import re
from collections import Counter
from collections.abc import Iterator

import pytest

from interop.clusters import KINDS, Cluster, start_cluster
from interop.java_cluster import JavaClient
from reput.client import (
    Admin,
    ConsumeContext,
    ConsumeFromWhere,
    ConsumerConfig,
    ConsumeResult,
    Message,
    PopConsumer,
    PoppedMessage,
    Producer,
    ReceivedMessage,
    blocking,
)
from reput.client.popping import ANY_QUEUE

pytestmark = [pytest.mark.interop, pytest.mark.rotating]

GUARD_S = 90
SETTINGS = {"autoCreateTopicEnable": True, "enablePropertyFilter": True}
POPPED = {"clientRebalance": False, "heartbeatBrokerInterval": 1000}
CONFIG = ConsumerConfig(consume_from_where=ConsumeFromWhere.FIRST_OFFSET)
SHORT = ConsumerConfig(consume_from_where=ConsumeFromWhere.FIRST_OFFSET, pop_invisible_ms=3_000)
VERSION = pytest.param("5.5.0", marks=pytest.mark.xdist_group("test_pop_consumer"))
on_5_5 = pytest.mark.parametrize("java_client", [VERSION], indirect=True)


@pytest.fixture(scope="module", params=KINDS)
def cluster(
    request: pytest.FixtureRequest,
    java_client: JavaClient,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Cluster]:
    """Start a shared broker; use unique topics."""
    folder = tmp_path_factory.mktemp("pop-consumer")
    with start_cluster(request.param, java_client.version, folder, SETTINGS) as running:
        yield running


@pytest.fixture
async def topic(request: pytest.FixtureRequest, cluster: Cluster) -> str:
    """Create a topic of two queues, and a group with its name, which pops."""
    name = "".join(character if character.isalnum() else "-" for character in request.node.name)[
        :60
    ]
    async with Admin(cluster.namesrv) as admin:
        await admin.create_topic(name, queue_count=2, broker=cluster.address)
        await admin.create_group(name, broker=cluster.address)
        await admin.set_request_mode(name, name, "POP", broker=cluster.address)
    return name


def numbered(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


async def send(cluster: Cluster, topic: str, bodies: list[bytes]) -> None:
    async with Producer("producers", namesrv=cluster.namesrv) as producer:
        await producer.send_many([Message(topic, body) for body in bodies])


async def popped(consumer: PopConsumer, count: int) -> list[PoppedMessage]:
    messages: list[PoppedMessage] = []
    async with asyncio.timeout(GUARD_S):
        while len(messages) < count:
            messages += await consumer.pop()
    return messages


class Listener:
    """Listener that records its messages, and fails a given number of times for some bodies."""

    def __init__(self, failures: dict[bytes, int] | None = None) -> None:
        self.messages: list[ReceivedMessage] = []
        self.failures = Counter(failures or {})

    async def __call__(
        self, messages: list[ReceivedMessage], context: ConsumeContext
    ) -> ConsumeResult:
        self.messages += messages
        context.suspend_ms = 1_000
        (message,) = messages
        if self.failures[message.body]:
            self.failures[message.body] -= 1
            return ConsumeResult.LATER
        return ConsumeResult.SUCCESS

    @property
    def bodies(self) -> list[bytes]:
        return [message.body for message in self.messages]

    async def wait_for(self, count: int) -> None:
        async with asyncio.timeout(GUARD_S):
            while len(self.messages) < count:
                await asyncio.sleep(0.05)


def status_of_python(java_client: JavaClient, cluster: Cluster, group: str) -> str:
    """Return the output of ``consumerStatus`` for our member."""
    with blocking.Admin(cluster.namesrv) as admin:
        connection = admin.consumer_connection(group)
    assert connection is not None
    (ours,) = [member for member in connection.connection_set if member.language == "PYTHON"]
    words = ("consumerStatus", "-g", group, "-i", ours.client_id)
    return java_client.mqadmin(*words, namesrv=cluster.namesrv)


@on_5_5
async def test_java_and_python_members_share(
    java_client: JavaClient, cluster: Cluster, topic: str
) -> None:
    listener = Listener()
    with java_client.push_consumer(cluster.namesrv, topic, topic, "*", **POPPED) as javas:
        ours = PopConsumer(
            topic, namesrv=cluster.namesrv, config=CONFIG, listener=listener, asks_brokers=True
        )
        await ours.subscribe(topic)
        async with ours, asyncio.timeout(GUARD_S):
            sent: list[bytes] = []
            while not (listener.messages and javas.received):  # until both have joined
                sent += (more := [b"%d" % (len(sent) + number) for number in range(20)])
                await send(cluster, topic, more)
                await asyncio.sleep(0.2)
            assert {queue.queue_id for queue in ours.queues()} == {ANY_QUEUE}
            status = await asyncio.to_thread(status_of_python, java_client, cluster, topic)
            assert re.search(rf"{topic} +\S+ +-1 ", status.partition("#Consumer Pop Detail#")[2]), (
                status
            )
            while len(listener.messages) + len(javas.received) < len(sent):
                await asyncio.sleep(0.05)
        assert Counter(
            [*listener.bodies, *(message.body for message in javas.received)]
        ) == Counter(sent)


@on_5_5
async def test_acknowledged_messages_are_not_redelivered(cluster: Cluster, topic: str) -> None:
    await send(cluster, topic, numbered(40))
    async with PopConsumer(topic, namesrv=cluster.namesrv, config=SHORT) as consumer:
        await consumer.subscribe(topic)
        messages = await popped(consumer, 40)
        assert Counter(message.body for message in messages) == Counter(numbered(40))
        left, postponed, *acked = messages
        await consumer.ack(*acked)
        await consumer.nack(postponed, delay_ms=1_000)
        again = await popped(consumer, 2)
        assert {message.body for message in again} == {left.body, postponed.body}
        assert [message.reconsume_times for message in again] == [1, 1]
        assert {message.topic for message in again} == {topic}
        await consumer.ack(*again)
        assert await consumer.pop(timeout_ms=10_000) == []


@on_5_5
async def test_an_extended_message_stays_invisible(cluster: Cluster, topic: str) -> None:
    await send(cluster, topic, [b"one"])
    async with PopConsumer(topic, namesrv=cluster.namesrv, config=SHORT) as consumer:
        await consumer.subscribe(topic)
        (message,) = await popped(consumer, 1)
        await consumer.extend(message, 60_000)
        assert await consumer.pop(timeout_ms=10_000) == []
        await consumer.ack(message)


@on_5_5
async def test_a_message_is_a_dead_letter_after_the_last_attempt(
    cluster: Cluster, topic: str
) -> None:
    await send(cluster, topic, [b"bad", b"good"])
    config = ConsumerConfig(consume_from_where=ConsumeFromWhere.FIRST_OFFSET, max_reconsume_times=0)
    listener = Listener({b"bad": 1})
    consumer = PopConsumer(topic, namesrv=cluster.namesrv, config=config, listener=listener)
    await consumer.subscribe(topic)
    async with consumer:
        await listener.wait_for(2)
    async with Admin(cluster.namesrv) as admin:
        status = await admin.topic_status(f"%DLQ%{topic}")
        assert sum(offsets.max_offset for offsets in status.values()) == 1
    async with PopConsumer(topic, namesrv=cluster.namesrv, config=SHORT) as other:
        await other.subscribe(topic)
        assert await other.pop(timeout_ms=5_000) == []


@on_5_5
async def test_in_order_no_message_overtakes_a_failed_one(cluster: Cluster, topic: str) -> None:
    async with Producer("producers", namesrv=cluster.namesrv) as producer:
        queues = await producer.queues(topic)
        for number in range(12):
            for queue in queues:
                await producer.send(Message(topic, b"%d" % number), queue=queue)
    listener = Listener({b"3": 2})
    consumer = PopConsumer(
        topic, namesrv=cluster.namesrv, config=CONFIG, listener=listener, orderly=True
    )
    await consumer.subscribe(topic)
    async with consumer:
        await listener.wait_for(26)
    for queue in queues:
        seen = [message for message in listener.messages if message.queue_id == queue.queue_id]
        numbers = [int(message.body) for message in seen]
        attempts = numbers.count(3)
        assert numbers == [*range(3), *[3] * attempts, *range(4, 12)]
        assert [message.reconsume_times for message in seen if message.body == b"3"] == list(
            range(attempts)
        )
