"""Clients with namespaces, ours and Java's, read and write the same topics and groups.

The namespace of 4.x is a part of names; that of 5.x (``V2``) is in fields of each request, which
brokers ignore.
"""

import asyncio
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from interop import java_oracle
from interop.clusters import KINDS, Cluster, start_cluster, until
from interop.java_cluster import JavaClient, JavaMessage
from reput.client import (
    ClientConfig,
    ConsumeContext,
    ConsumeFromWhere,
    ConsumerConfig,
    ConsumeResult,
    Message,
    Producer,
    PullConsumer,
    PushConsumer,
    ReceivedMessage,
    TransactionProducer,
    TransactionState,
    blocking,
)
from reput.spark.live import calls as live_calls
from reput.spark.sending import options as write_options
from reput.spark.sending.requests import TaskIdentity
from reput.spark.sending.send import send
from spark import live_traffic, reading

pytestmark = [pytest.mark.interop, pytest.mark.rotating, pytest.mark.xdist_group("namespaced")]

VERSIONS = ("4.9.7", "5.5.0") if java_oracle.wants_all_versions() else ("5.5.0",)
FROM_FIRST = ConsumerConfig(consume_from_where=ConsumeFromWhere.FIRST_OFFSET)
SPACE = "tenant"
GUARD_S = 90
SETTINGS = {"messageDelayLevel": "1s 1s 1s 1s 1s"}


@pytest.fixture(scope="module", params=KINDS)
def cluster(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("namespaced")
    with start_cluster(request.param, "5.5.0", folder, SETTINGS) as running:
        yield running


@pytest.fixture(scope="module", params=VERSIONS)
def java(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[JavaClient]:
    with JavaClient(request.param, tmp_path_factory.mktemp("java")) as client:
        yield client


def config(cluster: Cluster, **more: Any) -> ClientConfig:
    return ClientConfig(namesrv_addr=cluster.namesrv, **more)


def topics_of(cluster: Cluster) -> set[str]:
    with blocking.Admin(cluster.namesrv) as admin:
        return set(admin.topic_configs("broker-a"))


class Listener:
    """Listener that wants each message twice."""

    def __init__(self) -> None:
        self.messages: list[ReceivedMessage] = []

    async def __call__(
        self, messages: list[ReceivedMessage], context: ConsumeContext
    ) -> ConsumeResult:
        self.messages += messages
        is_first = any(message.reconsume_times == 0 for message in messages)
        return ConsumeResult.LATER if is_first else ConsumeResult.SUCCESS

    async def until(self, count: int) -> None:
        async with asyncio.timeout(GUARD_S):
            while len(self.messages) < count:
                await asyncio.sleep(0.05)


async def test_what_java_sends_we_consume(cluster: Cluster, java: JavaClient) -> None:
    topic, group = (
        f"from-{java.version}".replace(".", "_"),
        f"ours-{java.version}".replace(".", "_"),
    )
    tenant = config(cluster, namespace=SPACE)
    with java.producer(cluster.namesrv, "java", namespace=SPACE) as producer:
        producer.send([JavaMessage(topic, b"%d" % number) for number in range(4)])
    listener = Listener()
    async with PushConsumer(group, listener=listener, client=tenant, config=FROM_FIRST) as consumer:
        await consumer.subscribe(topic)
        await listener.until(8)
    assert sorted(message.body for message in listener.messages) == sorted(
        2 * [b"%d" % number for number in range(4)]
    )
    assert {message.topic for message in listener.messages} == {topic}
    assert {message.properties["INSTANCE_ID"] for message in listener.messages} == {SPACE}
    topics = await asyncio.to_thread(topics_of, cluster)
    assert {f"{SPACE}%{topic}", f"%RETRY%{SPACE}%{group}"} <= topics
    async with PullConsumer(f"{group}-pull", client=tenant, config=FROM_FIRST) as puller:
        await puller.assign(await puller.queues(topic))
        bodies: list[bytes] = []
        async with asyncio.timeout(GUARD_S):
            while len(bodies) < 4:
                bodies += [message.body for message in await puller.poll()]
    assert len(bodies) == 4


async def test_what_we_send_java_consumes(cluster: Cluster, java: JavaClient) -> None:
    topic, group = f"to-{java.version}".replace(".", "_"), f"java-{java.version}".replace(".", "_")
    tenant = config(cluster, namespace=SPACE)
    async with (
        Producer("ours", client=tenant) as producer,
        TransactionProducer(
            "ours-tx", check=lambda _: TransactionState.COMMIT, client=tenant
        ) as transactions,
    ):
        await producer.send(Message(topic, b"single"))
        await producer.send_batch([Message(topic, b"batch 1"), Message(topic, b"batch 2")])
        await transactions.send_in_transaction(
            Message(topic, b"committed"), lambda *_: TransactionState.COMMIT
        )
    with java.push_consumer(cluster.namesrv, group, topic, namespace=SPACE, laters=1) as consumer:
        received = await asyncio.to_thread(consumer.take, 4)
    bodies = {message.body for message in received}
    assert bodies == {b"single", b"batch 1", b"batch 2", b"committed"}
    assert {message.topic for message in received} == {topic}
    topics = await asyncio.to_thread(topics_of, cluster)
    assert {f"{SPACE}%{topic}", f"%RETRY%{SPACE}%{group}"} <= topics


def spark_rows(cluster: Cluster, **given: Any) -> list[reading.Row]:
    return live_traffic.read(cluster.namesrv, namespace=SPACE, **given)


def test_spark_reads_what_java_sends_and_java_what_spark_sends(
    cluster: Cluster, java: JavaClient
) -> None:
    suffix = java.version.replace(".", "_")
    topic, back, group = (f"spark-{word}-{suffix}" for word in ("in", "out", "group"))
    bodies = [b"%d" % number for number in range(4)]
    with java.producer(cluster.namesrv, "java", namespace=SPACE) as producer:
        producer.send([JavaMessage(topic, body) for body in bodies])
    # Spark reads up to the ends of queues, which lag the log by a moment.
    until(lambda: len(spark_rows(cluster, topic=topic)) == 4)
    rows = spark_rows(cluster, subscribePattern=topic)
    assert sorted(row["body"] for row in rows) == bodies
    assert {row["topic"] for row in rows} == {topic}
    assert {dict(row["properties"])["INSTANCE_ID"] for row in rows} == {SPACE}
    options = write_options.parse({"nameServer": cluster.namesrv, "namespace": SPACE})
    columns = {"topic": [back] * 4, "body": bodies}
    send([pa.record_batch(columns)], options, TaskIdentity(topic, 0))
    with java.push_consumer(cluster.namesrv, group, back, namespace=SPACE) as consumer:
        received = consumer.take(4)
    assert sorted(message.body for message in received) == bodies
    assert {message.topic for message in received} == {back}
    live_calls.disconnect()


async def test_the_second_kind_of_namespace(cluster: Cluster, java: JavaClient) -> None:
    if java.version != "5.5.0":
        pytest.skip("no such case: 4.x has no setNamespaceV2")
    ours = config(cluster, namespace_v2=SPACE)
    listener = Listener()
    async with Producer("ours", client=ours) as producer:
        await producer.send(Message("second", b"ours"))
    with (
        java.producer(cluster.namesrv, "java", namespaceV2=SPACE) as java_producer,
        java.push_consumer(cluster.namesrv, "java-v2", "second", namespaceV2=SPACE) as consumer,
    ):
        java_producer.send([JavaMessage("second", b"theirs")])
        received = await asyncio.to_thread(consumer.take, 2)
    assert {message.body for message in received} == {b"ours", b"theirs"}
    async with PushConsumer("v2", listener=listener, client=ours, config=FROM_FIRST) as pusher:
        await pusher.subscribe("second")
        await listener.until(4)
    assert {message.body for message in listener.messages} == {b"ours", b"theirs"}
    assert "second" in await asyncio.to_thread(until, lambda: topics_of(cluster))
