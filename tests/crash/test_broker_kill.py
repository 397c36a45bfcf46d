"""kill -9 of our broker under load, repeatedly, on one folder.

With SYNC_FLUSH every acknowledged message is stored afterwards, at the place that the producer
received, and is consumed; the queues have no gaps. The producer is ours; ``make soak`` repeats the
test with an official Java producer and consumer.
"""

import asyncio
import os
import signal
import threading
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from pathlib import Path

import hypothesis
import pytest

import seeds
from interop.conftest import _or_skip
from interop.java_cluster import JavaClient, JavaMessage, JavaReceived, JavaSent
from reput.client.config import ConsumeFromWhere, ConsumerConfig, ProducerConfig
from reput.client.listener import ConsumeContext, ConsumeResult
from reput.client.message import Message, ReceivedMessage, SendStatus
from reput.client.producer import Producer
from reput.client.pull_consumer import PullConsumer
from reput.client.push_consumer import PushConsumer
from reput.errors import RemotingError
from reput_cluster import ReputCluster

pytestmark = [pytest.mark.crash, pytest.mark.slow]

IS_SOAK = hypothesis.settings.default.max_examples > 100
ROUND_COUNT = 20 if IS_SOAK else 2
TASK_COUNT = 32
ACKNOWLEDGED_MAX = 1500
"""Limit of messages that are acknowledged in a round before the kill."""
JAVA_ROUND_COUNT = 20
JAVA_SENT_COUNT = 4000
JAVA_LIFE_S = 1.5
GUARD_S = 60
TOPIC, GROUP = "Killed", "readers"
SETTINGS = {"flushDiskType": "SYNC_FLUSH", "mappedFileSizeCommitLog": 1 << 20}

Place = tuple[int, int]
"""Queue id and queue offset."""


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ReputCluster]:
    settings = {**SETTINGS, "maxMessageSize": 500_000}
    with ReputCluster(tmp_path / "cluster", settings) as running:
        yield running


@pytest.fixture
async def producer(cluster: ReputCluster) -> AsyncIterator[Producer]:
    once = ProducerConfig(retry_times_when_send_failed=0)
    async with Producer("producers", namesrv=cluster.namesrv, config=once) as running:
        yield running


async def send_until_killed(
    producer: Producer, cluster: ReputCluster, seed: int
) -> dict[Place, bytes]:
    """Send until some messages are acknowledged, kill the broker; return the acknowledged ones."""
    chance = seeds.random("broker kill", seed)
    life = chance.randrange(1, ACKNOWLEDGED_MAX)
    acknowledged: dict[Place, bytes] = {}
    tried = 0

    async def send() -> None:
        nonlocal tried
        while cluster.is_broker_running:
            tried += 1
            body = f"{seed} {tried} ".encode().ljust(chance.randrange(10, 900), b"x")
            try:
                result = await producer.send(Message(TOPIC, body))
            except RemotingError:
                return  # The message may or may not be stored.
            assert result.status is SendStatus.SEND_OK
            place = result.queue.queue_id, result.queue_offset
            assert place not in acknowledged
            acknowledged[place] = body
            if len(acknowledged) == life:
                os.kill(cluster.broker_pid, signal.SIGKILL)

    async with asyncio.timeout(GUARD_S):
        await asyncio.gather(*(send() for _ in range(TASK_COUNT)))
    assert len(acknowledged) >= life
    return acknowledged


async def read_all(cluster: ReputCluster) -> dict[Place, bytes]:
    """Return all messages; their offsets must be without gaps."""
    messages: dict[Place, bytes] = {}
    async with PullConsumer("others", namesrv=cluster.namesrv) as consumer:
        queues = await consumer.queues(TOPIC)
        await consumer.assign(queues)
        ends = {queue.queue_id: await consumer.end_offset(queue) for queue in queues}
        for queue in queues:
            await consumer.seek_to_begin(queue)
        async with asyncio.timeout(GUARD_S):
            while len(messages) < sum(ends.values()):
                for message in await consumer.poll(1000):
                    messages[message.queue_id, message.queue_offset] = message.body
    wanted = {
        (queue_id, queue_offset) for queue_id, end in ends.items() for queue_offset in range(end)
    }
    assert messages.keys() == wanted
    return messages


async def consume(cluster: ReputCluster, wanted: set[bytes]) -> None:
    """Consume in a group until all wanted messages have arrived."""
    left = set(wanted)
    is_done = asyncio.Event()

    def listen(messages: list[ReceivedMessage], context: ConsumeContext) -> ConsumeResult:
        left.difference_update(message.body for message in messages)
        if not left:
            is_done.set()
        return ConsumeResult.SUCCESS

    config = ConsumerConfig(
        consume_from_where=ConsumeFromWhere.FIRST_OFFSET, consume_message_batch_max_size=32
    )
    async with PushConsumer(
        GROUP, namesrv=cluster.namesrv, listener=listen, config=config
    ) as consumer:
        await consumer.subscribe(TOPIC)
        async with asyncio.timeout(GUARD_S):
            await is_done.wait()


async def test_acknowledged_messages_survive(cluster: ReputCluster, producer: Producer) -> None:
    known: dict[Place, bytes] = {}
    unread: set[bytes] = set()
    for seed in range(ROUND_COUNT):
        acknowledged = await send_until_killed(producer, cluster, seed)
        assert not known.keys() & acknowledged.keys(), "an offset was given twice"
        known |= acknowledged
        unread |= set(acknowledged.values())
        await asyncio.to_thread(cluster.kill_broker)
        await asyncio.to_thread(cluster.start)
        bodies = await read_all(cluster)
        assert bodies.items() >= known.items()
        known = bodies  # Stored messages stay, acknowledged or not.
        # The group continues at its offset: it gets new messages, and those after its saved offset.
        await consume(cluster, unread)
        unread.clear()
    await asyncio.to_thread(cluster.stop_broker)
    await asyncio.to_thread(cluster.start)
    assert await read_all(cluster) == known


@pytest.mark.interop
@pytest.mark.skipif(not IS_SOAK, reason="make soak: 20 rounds with Java")
def test_messages_acknowledged_to_java_survive(cluster: ReputCluster, tmp_path: Path) -> None:
    known: dict[Place, bytes] = {}
    with _or_skip(lambda: JavaClient("4.9.7", tmp_path / "java")) as java:
        for seed in range(JAVA_ROUND_COUNT):
            acknowledged = send_with_java_until_killed(java, cluster, seed)
            assert not known.keys() & acknowledged.keys(), "an offset was given twice"
            known |= acknowledged
            cluster.start()
            stored: dict[Place, bytes] = {}
            with java.pull_consumer(cluster.namesrv, "others") as consumer:
                for queue, messages in consumer.read_all(TOPIC).items():
                    offsets = [message.queue_offset for message in messages]
                    assert offsets == list(range(len(messages)))
                    stored |= {
                        (queue.queue_id, message.queue_offset): message.body for message in messages
                    }
            assert stored.items() >= known.items()
            known = stored
            wanted = set(acknowledged.values())
            with java.push_consumer(cluster.namesrv, GROUP, TOPIC) as consumer:
                got = consumer.wait_until(has_all(wanted))
            assert_known(
                known, [(message.queue_id, message.queue_offset, message.body) for message in got]
            )


def send_with_java_until_killed(
    java: JavaClient, cluster: ReputCluster, seed: int
) -> Mapping[Place, bytes]:
    """Send with a Java producer, kill the broker meanwhile; return the acknowledged messages."""
    chance = seeds.random("broker kill", seed)
    sent = [
        JavaMessage(TOPIC, f"{seed} {number} ".encode().ljust(chance.randrange(10, 900), b"x"))
        for number in range(JAVA_SENT_COUNT)
    ]
    acknowledged: dict[Place, bytes] = {}
    settings = {"retryTimesWhenSendFailed": 0, "retryTimesWhenSendAsyncFailed": 0}
    with java.producer(cluster.namesrv, **settings) as producer:
        first = JavaMessage(TOPIC, b"first %d" % seed)
        sent.insert(0, first)
        results = producer.results([first])
        killer = threading.Timer(chance.random() * JAVA_LIFE_S, cluster.kill_broker)
        killer.start()
        results += producer.results(sent[1:], "async", timeout_ms=3000)
        killer.join()
    for message, result in zip(sent, results, strict=True):
        if isinstance(result, JavaSent):
            assert result.status == "SEND_OK"
            place = result.queue.queue_id, result.queue_offset
            assert place not in acknowledged
            acknowledged[place] = message.body
    assert acknowledged
    return acknowledged


def has_all(wanted: set[bytes]) -> Callable[[list[JavaReceived]], bool]:
    return lambda got: wanted <= {message.body for message in got}


def assert_known(known: Mapping[Place, bytes], got: list[tuple[int, int, bytes]]) -> None:
    """Assert that the consumed messages are the stored ones, each at its place."""
    by_place = defaultdict(set)
    for queue_id, queue_offset, body in got:
        by_place[queue_id, queue_offset].add(body)
    assert all(bodies == {known[place]} for place, bodies in by_place.items())
