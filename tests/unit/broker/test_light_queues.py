"""Light queues at a broker: what names them is stored once, and read from each of them."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import broker_subject
from broker_subject import Subject, messages_in
from reput.format import headers
from reput.format.codes import PullFlag, RequestCode, ResponseCode
from reput.format.headers import (
    OffsetReplyHeader,
    PullMessageReplyHeader,
    QueryConsumerOffsetHeader,
    QueueHeader,
    SearchOffsetHeader,
    TopicHeader,
    UpdateConsumerOffsetHeader,
)

ON = {"enable_lmq": True, "enable_multi_dispatch": True}
ONE, TWO, GROUP = "%LMQ%one", "%LMQ%two", "%LMQ%device"
FILE = "config/lmqConsumerOffset.json"


@pytest.fixture
async def light(tmp_path: Path) -> AsyncIterator[Subject]:
    async with broker_subject.running(tmp_path, store=ON) as subject:
        yield subject


async def send(subject: Subject, body: bytes, *light_queues: str) -> None:
    marks = {"INNER_MULTI_DISPATCH": ",".join(light_queues)} if light_queues else {}
    reply = await subject.send("Parent", body, queue_id=1, properties=marks)
    assert reply.code == ResponseCode.SUCCESS, reply.remark


async def read(subject: Subject, topic: str, queue_offset: int = 0) -> list[bytes]:
    reply = await subject.pull(topic, 0, queue_offset, consumer_group=GROUP)
    assert reply.code == ResponseCode.SUCCESS, reply.remark
    return [one.body for one in messages_in(reply.body)]


async def offset(subject: Subject, code: RequestCode, header: headers.Header) -> int:
    reply = await subject.ask(code, header)
    assert reply.code == ResponseCode.SUCCESS, reply.remark
    return headers.decode(OffsetReplyHeader, reply.ext_fields).offset


async def test_a_message_is_read_from_each_light_queue(light: Subject) -> None:
    await send(light, b"a", ONE, TWO)
    await send(light, b"b")
    await send(light, b"c", TWO)
    assert await read(light, ONE) == [b"a"]
    assert await read(light, TWO) == [b"a", b"c"]
    assert await read(light, TWO, 1) == [b"c"]
    reply = await light.pull(TWO, 0, 0, consumer_group=GROUP)
    header = headers.decode(PullMessageReplyHeader, reply.ext_fields)
    assert (header.next_begin_offset, header.min_offset, header.max_offset) == (2, 0, 2)
    parent = messages_in((await light.pull("Parent", 1)).body)
    assert [one.body for one in parent] == [b"a", b"b", b"c"]
    assert parent[2].properties["INNER_MULTI_QUEUE_OFFSET"] == "1"


async def test_where_a_light_queue_begins_and_ends(light: Subject) -> None:
    for body in (b"a", b"b"):
        await send(light, body, ONE)
    queue = QueueHeader(topic=ONE, queue_id=0)
    assert await offset(light, RequestCode.GET_MAX_OFFSET, queue) == 2
    assert await offset(light, RequestCode.GET_MIN_OFFSET, queue) == 0
    at_start = SearchOffsetHeader(topic=ONE, queue_id=0, timestamp=0)
    assert await offset(light, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, at_start) == 0


async def test_a_pull_waits_at_a_light_queue(light: Subject) -> None:
    waiting = asyncio.create_task(
        light.pull(ONE, sys_flag=4 | PullFlag.SUSPEND, suspend_timeout_millis=20_000,
                   consumer_group=GROUP)
    )  # fmt: skip
    while not len(light.broker.parts.held_pulls):
        await asyncio.sleep(0)
    await send(light, b"a", ONE)
    assert [one.body for one in messages_in((await waiting).body)] == [b"a"]


async def test_topics_and_groups_of_light_queues_are_in_no_table(light: Subject) -> None:
    await send(light, b"a", ONE)
    await read(light, ONE)
    assert ONE not in light.broker.parts.topics.all()
    assert GROUP not in light.broker.parts.subscription_groups.all()
    assert (await light.pull(ONE, 1, consumer_group=GROUP)).code == ResponseCode.SYSTEM_ERROR


async def test_a_light_queue_is_deleted_as_a_topic(light: Subject) -> None:
    await send(light, b"a", ONE, TWO)
    header = UpdateConsumerOffsetHeader(
        consumer_group=GROUP, topic=ONE, queue_id=0, commit_offset=1
    )
    await light.ask(RequestCode.UPDATE_CONSUMER_OFFSET, header)
    deleted = await light.ask(RequestCode.DELETE_TOPIC_IN_BROKER, TopicHeader(topic=ONE))
    assert deleted.code == ResponseCode.SUCCESS, deleted.remark
    queue = QueueHeader(topic=ONE, queue_id=0)
    assert await offset(light, RequestCode.GET_MAX_OFFSET, queue) == 0
    assert light.broker.parts.deliveries.consumer_offsets.get(ONE, GROUP, 0) is None
    assert await read(light, TWO) == [b"a"]


async def test_offsets_survive_in_their_own_file(tmp_path: Path) -> None:
    def at(topic: str, group: str) -> QueryConsumerOffsetHeader:
        return QueryConsumerOffsetHeader(consumer_group=group, topic=topic, queue_id=0)

    async def commit(subject: Subject, topic: str, group: str, value: int) -> None:
        header = UpdateConsumerOffsetHeader(
            consumer_group=group, topic=topic, queue_id=0, commit_offset=value
        )
        reply = await subject.ask(RequestCode.UPDATE_CONSUMER_OFFSET, header)
        assert reply.code == ResponseCode.SUCCESS, reply.remark

    async with broker_subject.running(tmp_path) as subject:  # before light queues were wanted
        await send(subject, b"a")
        await commit(subject, "Parent", "group", 7)
    async with broker_subject.running(tmp_path, store=ON) as subject:
        assert await offset(subject, RequestCode.QUERY_CONSUMER_OFFSET, at("Parent", "group")) == 7
        await send(subject, b"a", ONE)
        await commit(subject, ONE, GROUP, 1)
        await commit(subject, ONE, "group", 5)
        await commit(subject, "Parent", "group", 8)
    saved = json.loads((tmp_path / FILE).read_text())
    assert saved["lmqOffsetTable"] == {f"{ONE}@{GROUP}": 1}
    assert saved["offsetTable"] == {f"{ONE}@group": {"0": 5}, "Parent@group": {"0": 8}}
    async with broker_subject.running(tmp_path, store=ON) as subject:
        assert await offset(subject, RequestCode.QUERY_CONSUMER_OFFSET, at(ONE, GROUP)) == 1
        assert await offset(subject, RequestCode.QUERY_CONSUMER_OFFSET, at(ONE, "group")) == 5
        assert await offset(subject, RequestCode.QUERY_CONSUMER_OFFSET, at("Parent", "group")) == 8


async def test_without_the_option_there_are_none(tmp_path: Path) -> None:
    async with broker_subject.running(tmp_path, store={"enable_multi_dispatch": True}) as subject:
        await send(subject, b"a", ONE)
        reply = await subject.pull(ONE, consumer_group=GROUP)
        assert reply.code == ResponseCode.TOPIC_NOT_EXIST
