"""Offsets that an operator resets while a group runs, and while it does not.

Java's tools of 4.9 make the broker notify the members. With those of 5.x the broker answers each
member's next pull with the new offset, and needs no members. With ``REPUT_INTEROP=all`` the same
tests run on the official broker.
"""

import asyncio
import contextlib
import itertools
import os
from collections.abc import Callable, Iterator

import pytest

from interop.clusters import KINDS, Cluster, start_cluster
from interop.java_cluster import ClientError, JavaClient
from reput.client.config import ClientConfig, ConsumeFromWhere, ConsumerConfig
from reput.client.listener import ConsumeContext, ConsumeResult
from reput.client.message import Message, ReceivedMessage
from reput.client.producer import Producer
from reput.client.pull_consumer import PullConsumer
from reput.client.push_consumer import PushConsumer

pytestmark = [pytest.mark.interop, pytest.mark.rotating]

GUARD_S = 60
QUICK = {"pollNameServerInterval": 200, "heartbeatBrokerInterval": 1000}
_numbers = itertools.count()


@pytest.fixture(scope="module", params=KINDS)
def cluster(
    request: pytest.FixtureRequest,
    java_client: JavaClient,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Cluster]:
    """Start a shared broker; use unique topics."""
    folder = tmp_path_factory.mktemp("cluster")
    with start_cluster(request.param, java_client.version, folder) as running:
        yield running


@pytest.fixture
async def topic(request: pytest.FixtureRequest, cluster: Cluster) -> str:
    """Create a topic with eight messages in four queues; its name is also the group's."""
    name = f"{request.node.originalname}-{os.getpid()}-{next(_numbers)}"
    async with Producer("producers", namesrv=cluster.namesrv) as producer:
        for body in SENT:
            await producer.send(Message(name, body))
    return name


SENT = [f"m{number}".encode() for number in range(8)]


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(GUARD_S):
        while not condition():
            await asyncio.sleep(0.05)


def reset(java: JavaClient, cluster: Cluster, topic: str, timestamp_ms: int) -> None:
    """Reset the offsets of a topic's group, as ``mqadmin resetOffsetByTime`` does."""
    with java.admin(cluster.namesrv) as admin:
        try:
            admin.call("resetOffsetByTimestamp", topic, topic, timestamp_ms, True)
        except ClientError as error:
            if error.code != CONSUMER_NOT_ONLINE:
                raise
            admin.call("resetOffsetByTimestampOld", topic, topic, timestamp_ms, True)


CONSUMER_NOT_ONLINE = 206


async def committed(cluster: Cluster, topic: str) -> int:
    async with PullConsumer(topic, namesrv=cluster.namesrv) as consumer:
        queues = await consumer.queues(topic)
        return sum([await consumer.committed(queue) or 0 for queue in queues])


async def until_committed(cluster: Cluster, topic: str, count: int) -> None:
    async with asyncio.timeout(GUARD_S):
        while await committed(cluster, topic) != count:
            await asyncio.sleep(0.05)


async def test_a_reset_moves_a_java_push_member(
    cluster: Cluster, java_client: JavaClient, topic: str
) -> None:
    def run() -> list[bytes]:
        consumer.take(8)
        consumer.persist()
        reset(java_client, cluster, topic, 0)
        return [message.body for message in consumer.take(8)]

    settings = {**QUICK, "persistConsumerOffsetInterval": 100}
    with java_client.push_consumer(cluster.namesrv, topic, topic, **settings) as consumer:
        assert sorted(await asyncio.to_thread(run)) == SENT
        await until_committed(cluster, topic, 8)


async def test_a_reset_moves_a_group_without_members(
    cluster: Cluster, java_client: JavaClient, topic: str
) -> None:
    def run() -> list[bytes]:
        with java_client.push_consumer(cluster.namesrv, topic, topic, **QUICK) as consumer:
            consumer.take(8)
            consumer.persist()
        reset(java_client, cluster, topic, 0)
        with java_client.push_consumer(cluster.namesrv, topic, topic, **QUICK) as consumer:
            return [message.body for message in consumer.take(8)]

    assert sorted(await asyncio.to_thread(run)) == SENT


async def test_a_reset_moves_a_java_lite_pull_member(
    cluster: Cluster, java_client: JavaClient, topic: str
) -> None:
    if java_client.version[0] == "4":
        pytest.skip("no such case: lite pull consumers of 4.9 get no reset")

    def run() -> list[bytes]:
        consumer.take(8)
        consumer.commit()
        reset(java_client, cluster, topic, 0)
        return [message.body for message in consumer.take(8)]

    with java_client.lite_pull_consumer(cluster.namesrv, topic, topic, **QUICK) as consumer:
        assert sorted(await asyncio.to_thread(run)) == SENT


FIRST = ConsumerConfig(consume_from_where=ConsumeFromWhere.FIRST_OFFSET)


async def test_a_reset_moves_a_python_push_member(
    cluster: Cluster, java_client: JavaClient, topic: str
) -> None:
    got: list[bytes] = []

    async def listen(messages: list[ReceivedMessage], context: ConsumeContext) -> ConsumeResult:
        got.extend(message.body for message in messages)
        return ConsumeResult.SUCCESS

    client = ClientConfig(namesrv_addr=cluster.namesrv, persist_offsets_ms=100)
    async with PushConsumer(topic, client=client, listener=listen, config=FIRST) as consumer:
        await consumer.subscribe(topic)
        await until(lambda: len(got) == 8)
        await until_committed(cluster, topic, 8)
        await asyncio.to_thread(reset, java_client, cluster, topic, 0)
        await until(lambda: len(got) == 16)
        assert sorted(got[8:]) == SENT
        await until_committed(cluster, topic, 8)


async def test_a_reset_moves_a_python_pull_member(
    cluster: Cluster, java_client: JavaClient, topic: str
) -> None:
    got: list[bytes] = []

    async def read() -> None:
        while True:
            got.extend(message.body for message in await consumer.poll())

    client = ClientConfig(namesrv_addr=cluster.namesrv, persist_offsets_ms=100)
    async with PullConsumer(topic, client=client, config=FIRST) as consumer:
        await consumer.subscribe(topic)
        reading = asyncio.create_task(read())
        await until(lambda: len(got) == 8)
        await until_committed(cluster, topic, 8)
        await asyncio.to_thread(reset, java_client, cluster, topic, 0)
        await until(lambda: len(got) == 16)
        reading.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await reading
    assert sorted(got[8:]) == SENT
