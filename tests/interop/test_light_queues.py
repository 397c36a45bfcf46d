"""Light queues (LMQ), on our broker and, with ``REPUT_INTEROP=all``, on the official one."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from interop import java_oracle, wire
from interop.java_cluster import JavaCluster, Settings
from interop.wire import Remote
from reput.format import bodies, headers
from reput.format.bodies import SubscriptionGroupConfig
from reput.format.codes import PullFlag, RequestCode, ResponseCode
from reput.format.headers import (
    OffsetReplyHeader,
    PullMessageReplyHeader,
    QueryConsumerOffsetHeader,
    QueueHeader,
    UpdateConsumerOffsetHeader,
)
from reput_cluster import ReputCluster

pytestmark = pytest.mark.interop

Cluster = ReputCluster | JavaCluster
ALL = java_oracle.wants_all_versions()
KINDS = ("reput", "4.9.7", "5.5.0") if ALL else ("reput",)
ON: Settings = {"enableLmq": True, "enableMultiDispatch": True}
ONE, TWO, GROUP = "%LMQ%one", "%LMQ%two", "%LMQ%device"
OTHERS = "TOOLS_CONSUMER"  # a group that exists on every broker


def start(kind: str, folder: Path) -> Cluster:
    return ReputCluster(folder, ON) if kind == "reput" else JavaCluster(kind, folder, ON)


@pytest.fixture(scope="module", params=KINDS)
def cluster(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster]:
    with start(request.param, tmp_path_factory.mktemp("light")) as running:
        yield running


async def send(broker: Remote, parent: str, body: bytes, *light_queues: str) -> None:
    marks = {"INNER_MULTI_DISPATCH": ",".join(light_queues)} if light_queues else {}
    reply = await broker.send(parent, body, queue_id=1, properties=marks)
    assert reply.code == ResponseCode.SUCCESS, reply.remark


async def offset(broker: Remote, code: RequestCode, header: headers.Header) -> int:
    reply = await broker.ask(code, header)
    assert reply.code == ResponseCode.SUCCESS, reply.remark
    return headers.decode(OffsetReplyHeader, reply.ext_fields).offset


async def commit(broker: Remote, topic: str, group: str, value: int) -> None:
    header = UpdateConsumerOffsetHeader(
        consumer_group=group, topic=topic, queue_id=0, commit_offset=value
    )
    reply = await broker.ask(RequestCode.UPDATE_CONSUMER_OFFSET, header)
    assert reply.code == ResponseCode.SUCCESS, reply.remark


async def committed(broker: Remote, topic: str, group: str) -> int:
    header = QueryConsumerOffsetHeader(consumer_group=group, topic=topic, queue_id=0)
    return await offset(broker, RequestCode.QUERY_CONSUMER_OFFSET, header)


async def test_light_queues_are_read_like_topics(cluster: Cluster) -> None:
    async with wire.connected(cluster.address) as broker:
        await send(broker, "Parent", b"a", ONE, TWO)
        await send(broker, "Parent", b"b")
        await send(broker, "Parent", b"c", TWO)
        first = await broker.read(ONE, 1, consumer_group=GROUP)
        two = await broker.read(TWO, 2, consumer_group=GROUP)
        assert [each.body for each in first] == [b"a"]
        assert [each.body for each in two] == [b"a", b"c"]
        assert [each.topic for each in two] == ["Parent", "Parent"]
        assert two[0].properties["INNER_MULTI_QUEUE_OFFSET"] == "0,0"
        assert two[1].properties["INNER_MULTI_QUEUE_OFFSET"] == "1"
        assert [each.body for each in await broker.read(TWO, 1, 0, 1, consumer_group=GROUP)] == [
            b"c"
        ]
        reply = await broker.pull(TWO, 0, 0, consumer_group=GROUP)
        header = headers.decode(PullMessageReplyHeader, reply.ext_fields)
        assert (header.next_begin_offset, header.min_offset, header.max_offset) == (2, 0, 2)
        queue = QueueHeader(topic=TWO, queue_id=0)
        assert await offset(broker, RequestCode.GET_MAX_OFFSET, queue) == 2
        assert await offset(broker, RequestCode.GET_MIN_OFFSET, queue) == 0


async def test_a_pull_waits_at_a_light_queue(cluster: Cluster) -> None:
    async with wire.connected(cluster.address) as broker, wire.connected(cluster.address) as other:
        await send(broker, "Parent", b"first", "%LMQ%waits")
        await broker.read("%LMQ%waits", 1, consumer_group=GROUP)
        waiting = asyncio.create_task(
            other.pull("%LMQ%waits", 0, 1, sys_flag=4 | PullFlag.SUSPEND,
                       suspend_timeout_millis=15_000, consumer_group=GROUP)
        )  # fmt: skip
        await send(broker, "Parent", b"second", "%LMQ%waits")
        reply = await waiting
        assert reply.code in (ResponseCode.SUCCESS, ResponseCode.PULL_RETRY_IMMEDIATELY)
        received = await broker.read("%LMQ%waits", 1, 0, 1, consumer_group=GROUP)
        assert [each.body for each in received] == [b"second"]


async def test_offsets_of_groups_in_light_queues(cluster: Cluster) -> None:
    async with wire.connected(cluster.address) as broker:
        await send(broker, "Parent", b"a", "%LMQ%offsets")
        await broker.read("%LMQ%offsets", 1, consumer_group=GROUP)
        await commit(broker, "%LMQ%offsets", GROUP, 1)
        await commit(broker, "%LMQ%offsets", OTHERS, 5)
        assert await committed(broker, "%LMQ%offsets", GROUP) == 1
        assert await committed(broker, "%LMQ%offsets", OTHERS) == 5


async def test_settings_of_light_queues_cannot_be_changed(cluster: Cluster) -> None:
    name = "%LMQ%made"
    topic = headers.CreateTopicHeader(
        topic=name, default_topic="TBW102", read_queue_nums=8, write_queue_nums=8, perm=6,
        topic_filter_type="SINGLE_TAG", topic_sys_flag=0, order=False,
    )  # fmt: skip
    group = bodies.encode(SubscriptionGroupConfig(group_name=name, consume_enable=False))
    async with wire.connected(cluster.address) as broker:
        reply = await broker.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, topic)
        assert reply.code == ResponseCode.SUCCESS, reply.remark
        reply = await broker.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, None, group)
        assert reply.code == ResponseCode.SUCCESS, reply.remark
        for code in (
            RequestCode.GET_ALL_TOPIC_CONFIG,
            RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
        ):
            reply = await broker.ask(code)
            assert reply.code == ResponseCode.SUCCESS
            assert b"dataVersion" in reply.body
            assert name.encode() not in reply.body
        await send(broker, "Parent", b"a", name)
        assert await broker.read(name, 1, consumer_group=name)


@pytest.mark.rotating
@pytest.mark.parametrize("version", ["4.9.7", "5.5.0"])
async def test_a_store_moves_from_java_to_us_and_back(version: str, tmp_path: Path) -> None:
    for turn, kind in enumerate((version, "reput", version)):
        with start(kind, tmp_path) as cluster:
            async with wire.connected(cluster.address) as broker:
                if turn:
                    assert await committed(broker, ONE, GROUP) == turn
                    assert await committed(broker, "Parent", OTHERS) == 10 * turn
                await send(broker, "Parent", b"%d" % turn, ONE)
                received = await broker.read(ONE, turn + 1, consumer_group=GROUP)
                assert [each.body for each in received] == [
                    b"%d" % number for number in range(turn + 1)
                ]
                await commit(broker, ONE, GROUP, turn + 1)
                await commit(broker, "Parent", OTHERS, 10 * (turn + 1))
            cluster.stop()
