"""Priorities, and queries by kind of key: on our broker; with ``REPUT_INTEROP=all`` on 5.5.0."""

import asyncio
from collections.abc import Iterator

import pytest

from interop import java_oracle, wire
from interop.java_cluster import JavaCluster
from interop.wire import LOOKS, PAUSE_S, Remote
from reput.client import (
    Admin,
    ConsumeFromWhere,
    ConsumerConfig,
    Message,
    PopConsumer,
    Producer,
)
from reput.format.codes import RequestCode, ResponseCode
from reput.format.headers import QueryMessageHeader
from reput_cluster import ReputCluster
from world import messages_in

pytestmark = [pytest.mark.interop, pytest.mark.rotating]

Cluster = ReputCluster | JavaCluster
KINDS = ("reput", "5.5.0") if java_oracle.wants_all_versions() else ("reput",)
NAME = "_SYS_MSG_PRIORITY_"


@pytest.fixture(scope="module", params=KINDS)
def cluster(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("priority")
    is_ours = request.param == "reput"
    with (
        ReputCluster(folder, {"indexTags": True}) if is_ours else JavaCluster(request.param, folder)
    ) as running:
        yield running


@pytest.mark.parametrize(
    ("text", "queue_id"),
    [("0", "0"), ("2", "2"), ("+3", "3"), ("4", "3"), ("2147483647", "3"), ("2147483648", "1"),
     ("-1", "1"), ("high", "1"), ("1.0", "1")],
)  # fmt: skip
async def test_a_priority_chooses_the_queue(cluster: Cluster, text: str, queue_id: str) -> None:
    async with wire.connected(cluster.address) as broker:
        reply = await broker.send("Priority", queue_id=1, properties={NAME: text})
        assert reply.code == ResponseCode.SUCCESS, reply.remark
        fields = reply.ext_fields or {}
        assert fields["queueId"] == queue_id
        place = int(fields["queueOffset"])
        (message, *_) = await broker.read("Priority", 1, int(queue_id), place)
        assert message.properties[NAME] == text


async def test_a_message_in_order_loses_its_priority(cluster: Cluster) -> None:
    async with wire.connected(cluster.address) as broker:
        marks = {NAME: "2", "__SHARDINGKEY": "a"}
        reply = await broker.send("InOrder", queue_id=1, properties=marks)
        assert (reply.ext_fields or {})["queueId"] == "1"
        (message,) = await broker.read("InOrder", 1, 1)
        assert NAME not in message.properties


@pytest.mark.parametrize(("kind", "is_first"), [("PRIORITY", True), ("NORMAL", False)])
async def test_pops_read_the_highest_queue_first(
    cluster: Cluster, kind: str, is_first: bool
) -> None:
    topic = f"Popped{kind}"
    async with Admin(cluster.namesrv) as admin:
        await admin.create_topic(
            topic, queue_count=8, broker=cluster.address, attributes={"message.type": kind}
        )
    first = ConsumerConfig(consume_from_where=ConsumeFromWhere.FIRST_OFFSET)
    async with Producer("producers", namesrv=cluster.namesrv) as producer:
        for number in range(40):
            await producer.send(Message(topic, b"x", properties={NAME: str(number % 8)}))
    async with PopConsumer(topic, namesrv=cluster.namesrv, config=first) as consumer:
        await consumer.subscribe(topic)
        taken: list[int] = []
        async with asyncio.timeout(60):
            while len(taken) < 40:
                taken += [message.queue_id for message in await consumer.pop(1)]
    assert (taken == sorted(taken, reverse=True)) == is_first


async def query_bodies(broker: Remote, key: str, **fields: object) -> list[bytes]:
    header = QueryMessageHeader(
        topic="Keys", key=key, max_num=32, begin_timestamp=0, end_timestamp=(1 << 63) - 1, **fields
    )  # type: ignore[arg-type]
    reply = await broker.ask(RequestCode.QUERY_MESSAGE, header)
    if reply.code == ResponseCode.QUERY_NOT_FOUND:
        return []
    assert reply.code == ResponseCode.SUCCESS, reply.remark
    return [message.body for message in messages_in(reply.body)]


async def test_queries_by_kind_of_key(cluster: Cluster) -> None:
    async with wire.connected(cluster.address) as broker:
        marks = {"KEYS": "a", "UNIQ_KEY": "u", "TAGS": "b"}
        await broker.send("Keys", b"1", properties=marks)
        await broker.send("Keys", b"2", properties={"KEYS": "b", "UNIQ_KEY": "v", "TAGS": "a"})
        for _ in range(LOOKS):  # Java builds the index asynchronously
            if await query_bodies(broker, "a", index_type="T"):
                break
            await asyncio.sleep(PAUSE_S)
        assert await query_bodies(broker, "a", index_type="K") == [b"1"]
        assert await query_bodies(broker, "u", index_type="U") == [b"1"]
        assert await query_bodies(broker, "a", index_type="T") == [b"2"]
        assert await query_bodies(broker, "a", index_type="T", is_unique_key=True) == [b"1"]
        assert await query_bodies(broker, "b", index_type="T", last_key="anything") == [b"1"]
        assert await query_bodies(broker, "a") == [b"1"]
