"""Topics of 5.x with batch queues: batches are stored and handed out as they are."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

import broker_subject
import golden
import pop_client
from broker_subject import Subject
from reput import config as configuration
from reput.client.message import received
from reput.clock import ManualClock
from reput.format import batch, headers, properties as props, sys_flag as flags
from reput.format.batch import InnerMessage
from reput.format.codes import PullFlag, RequestCode, ResponseCode
from reput.format.command import Command
from reput.format.headers import (
    CreateTopicHeader,
    OffsetReplyHeader,
    PullMessageReplyHeader,
    QueryMessageHeader,
    QueueHeader,
    SendBackHeader,
    TopicHeader,
)
from reput.remoting.time_slices import run_whole
from reput.store.config import StoreConfig

TOPIC = "GoldenBatch-bcq"


async def test_a_batch_queue_of_java_is_pulled_and_takes_batches(tmp_path: Path) -> None:
    root = golden.copy_store("5.5.0", "v5", tmp_path)
    settings = dict(golden.manifest("5.5.0", "v5")["config"])
    known = configuration.load(StoreConfig, settings, environment={}, explicit={}).value
    sizes = {
        name: getattr(known, name)
        for name in ("mapped_file_size_commit_log", "mapped_file_size_consume_queue",
                     "mapper_file_size_batch_consume_queue", "max_hash_slot_num", "max_index_num",
                     "max_message_size", "enable_multi_dispatch", "disk_max_used_space_ratio")
    }  # fmt: skip
    async with broker_subject.running(root, store=sizes) as subject:
        for _ in range(2):  # the second one would be the kernel's
            reply = await subject.pull(TOPIC, 0, 5)
            assert reply.code == ResponseCode.SUCCESS, reply.remark
            found = received(reply.body, "broker-a")
            assert [one.queue_offset for one in found] == list(range(4, 12))  # whole batches
            header = headers.decode(PullMessageReplyHeader, reply.ext_fields)
            assert (header.next_begin_offset, header.min_offset, header.max_offset) == (12, 0, 12)
        end = await subject.ask(RequestCode.GET_MAX_OFFSET, QueueHeader(topic=TOPIC, queue_id=0))
        assert headers.decode(OffsetReplyHeader, end.ext_fields).offset == 12
        assert (await subject.send(TOPIC, b"12")).code == ResponseCode.SUCCESS
        reply = await send_batch(subject, [b"13", b"14"], topic=TOPIC)
        assert reply.code == ResponseCode.SUCCESS, reply.remark
        reply = await subject.pull(TOPIC, 0, 12)
        found = received(reply.body, "broker-a")
        assert [(one.queue_offset, one.body) for one in found] == [
            (12, b"12"), (13, b"13"), (14, b"14"),
        ]  # fmt: skip


async def make_topic(subject: Subject) -> None:
    header = CreateTopicHeader(
        topic="B", read_queue_nums=2, write_queue_nums=2, perm=6, attributes="+queue.type=BatchCQ"
    )
    reply = await subject.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, header)
    assert reply.code == ResponseCode.SUCCESS, reply.remark


async def send_batch(
    subject: Subject,
    texts: list[bytes],
    *,
    topic: str = "B",
    key: str | None = "U",
    **fields: Any,
) -> Command:
    inner = [InnerMessage(0, one, props.encode({"KEYS": "k"})) for one in texts]
    properties = {"WAIT": "true", **({"UNIQ_KEY": key} if key else {})}
    code = RequestCode.SEND_BATCH_MESSAGE
    return await subject.send(
        topic, batch.encode(inner), code=code, batch=True, properties=properties, **fields
    )


async def test_a_batch_is_one_record_and_many_messages(tmp_path: Path) -> None:
    async with broker_subject.running(tmp_path) as subject:
        await make_topic(subject)
        for key, offset in (("U1", "0"), ("U2", "2")):
            fields = (await send_batch(subject, [b"a", b"b"], key=key)).ext_fields or {}
            assert (fields["queueId"], fields["queueOffset"]) == ("0", offset)
            assert fields["batchUniqId"] == key
            assert "," not in fields["msgId"]
        reply = await subject.pull("B")
        one, other = broker_subject.messages_in(reply.body)
        assert one.sys_flag == other.sys_flag == flags.INNER_BATCH | flags.NEED_UNWRAP
        assert one.properties == {
            "WAIT": "true",
            "UNIQ_KEY": "U1",
            "CLUSTER": "DefaultCluster",
            "INNER_NUM": "2",
            "INNER_BASE": "0",
        }
        found = received(reply.body, "broker-a")
        assert [(each.queue_offset, each.body) for each in found] == [
            (0, b"a"), (1, b"b"), (2, b"a"), (3, b"b"),
        ]  # fmt: skip
        run_whole(subject.parts.deliveries.stats.update())
        assert subject.parts.deliveries.stats.put_count == 4
        assert subject.parts.deliveries.stats.put_bytes == one.store_size + other.store_size
        query = QueryMessageHeader(topic="B", key="U1", max_num=9, begin_timestamp=0,
                                   end_timestamp=1 << 60)  # fmt: skip
        reply = await subject.ask(RequestCode.QUERY_MESSAGE, query)
        assert [each.queue_offset for each in broker_subject.messages_in(reply.body)] == [0]
    async with broker_subject.running(tmp_path) as subject:
        found = received((await subject.pull("B", 0, 1)).body, "broker-a")
        assert [each.queue_offset for each in found] == [0, 1, 2, 3], "whole batches"
        deleted = await subject.ask(RequestCode.DELETE_TOPIC_IN_BROKER, TopicHeader(topic="B"))
        assert deleted.code == ResponseCode.SUCCESS
        assert (await subject.send("B", queue_id=0)).code == ResponseCode.SUCCESS


async def test_pulls_and_pops_wait_for_batches(tmp_path: Path) -> None:
    async with broker_subject.running(tmp_path) as subject:
        await make_topic(subject)
        await send_batch(subject, [b"a", b"b", b"c"])
        pulling = asyncio.create_task(
            subject.pull("B", 0, 3, sys_flag=4 | PullFlag.SUSPEND, suspend_timeout_millis=20_000)
        )
        assert len(await pop_client.pop(subject, "B")) == 1
        popping = asyncio.create_task(pop_client.pop_reply(subject, "B", poll_time=20_000))
        while not (len(subject.parts.held_pulls) and len(subject.parts.pops.held)):
            await asyncio.sleep(0)
        await send_batch(subject, [b"d", b"e"])
        assert [one.body for one in received((await pulling).body, "b")] == [b"d", b"e"]
        assert ((await popping).ext_fields or {})["msgOffsetInfo"] == "0 0 3"


async def test_what_is_popped_and_not_acknowledged_comes_again_one_by_one(tmp_path: Path) -> None:
    """Java hands out the batch, and cannot put it into a retry topic."""
    clock = ManualClock(1_700_000_000_000)
    async with broker_subject.running(tmp_path, clock=clock) as subject:
        await make_topic(subject)
        await send_batch(subject, [b"a", b"b", b"c"])
        (batch_of_three,) = await pop_client.pop(subject, "B")
        assert batch_of_three.message.sys_flag & flags.INNER_BATCH
        clock.advance(pop_client.INVISIBLE_MS)
        broker = subject.broker
        broker.store.step_memory()
        while broker.loops.step_pops(clock.now_ms()):
            broker.store.step_memory()
        again = await pop_client.pop(subject, "B")
        assert sorted(one.body for one in again) == [b"a", b"b", b"c"]
        assert {one.message.sys_flag for one in again} == {0}
        assert {one.message.reconsume_times for one in again} == {1}
        assert {one.message.properties["KEYS"] for one in again} == {"k"}
        assert broker.parts.pops.revive.lost_count == 0


async def test_a_batch_is_not_sent_back_as_a_whole(tmp_path: Path) -> None:
    """As with Java: its consumers send a message of it again themselves."""
    async with broker_subject.running(tmp_path) as subject:
        await make_topic(subject)
        await send_batch(subject, [b"a", b"b"])
        await pop_client.pop(subject, "B")  # makes the group
        (one,) = broker_subject.messages_in((await subject.pull("B")).body)
        header = SendBackHeader(offset=one.physical_offset, group="G", delay_level=1)
        for _ in range(2):
            reply = await subject.ask(RequestCode.CONSUMER_SEND_MSG_BACK, header)
            assert reply.code == ResponseCode.SYSTEM_ERROR
            assert "batch" in (reply.remark or "")


@pytest.mark.parametrize("code", [RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2])
async def test_a_message_alone_has_a_unit_as_well(tmp_path: Path, code: int) -> None:
    clock = ManualClock(1_700_000_000_000)
    async with broker_subject.running(tmp_path, clock=clock) as subject:
        await make_topic(subject)
        broker = subject.broker
        wanted = []
        for number in range(3):
            for properties in ({"TAGS": "a"}, {"DELAY": "1"}):
                reply = await subject.send("B", b"%d" % number, code=code, properties=properties)
                assert reply.code == ResponseCode.SUCCESS, reply.remark
            await send_batch(subject, [b"x", b"y"])  # whole
            await send_batch(subject, [b"p", b"q"], key=None)  # of 4.x: one by one
            wanted += [b"%d" % number, b"x", b"y", b"p", b"q"]
        clock.advance(1_000)
        broker.store.step_memory()
        while broker.parts.delayed.step(clock.now_ms()):
            broker.store.step_memory()
        wanted += [b"0", b"1", b"2"]
        found = received((await subject.pull("B")).body, "b")
        assert [(one.queue_offset, one.body) for one in found] == list(enumerate(wanted))
        tagged = await subject.pull("B", subscription="a")
        assert [one.queue_offset for one in received(tagged.body, "b")]
    async with broker_subject.running(tmp_path, clock=clock) as subject:
        found = received((await subject.pull("B")).body, "b")
        assert [one.body for one in found] == wanted


async def test_a_batch_of_batch_queues_is_not_compressed(tmp_path: Path) -> None:
    async with broker_subject.running(tmp_path) as subject:
        await make_topic(subject)
        reply = await send_batch(subject, [b"a"], sys_flag=flags.COMPRESSED)
        assert reply.code == ResponseCode.MESSAGE_ILLEGAL
