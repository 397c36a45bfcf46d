"""Checkpoints in memory: due ones, and the part of the revive topic that a start must read."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import seeds
import world
from pop_client import INVISIBLE_MS, ack, ack_batch, change, pop
from reput.broker.pop import checkpoints as pop_checkpoints
from reput.broker.pop.checkpoints import Checkpoint, Checkpoints, Key
from reput.broker.pop.revive import LATE_MS
from reput.broker.timer import timers
from reput.clock import ManualClock
from reput.format import names, pop_codec, properties as props
from reput.format.codes import ResponseCode
from reput.format.pop_codec import AckRecord
from reput.store.getting import GetResult
from reput.store.message_store import MessageStore
from reput.store.writing.incoming import IncomingMessage
from world import NAME, Subject

START_MS = 1_700_000_000_000
REVIVE = "rmq_sys_REVIVE_LOG_DefaultCluster"


def checkpoint(number: int, due_ms: int) -> Checkpoint:
    return Checkpoint(
        Key("T", "G", 0, number, START_MS), range(number, number + 1), due_ms, 0, number
    )


def test_ended_checkpoints_leave_the_heap_in_small_steps() -> None:
    checkpoints = Checkpoints()
    known = [checkpoint(number, number) for number in range(5_000)]
    for item in known:
        checkpoints.add(item)
    for item in known[:4_900]:
        checkpoints.end(item)
    seen = len(checkpoints._due)
    for number in range(5_000, 5_200):
        before = len(checkpoints._due) + len(checkpoints._older_due)
        checkpoints.add(checkpoint(number, number))
        after = len(checkpoints._due) + len(checkpoints._older_due)
        assert before - after <= pop_checkpoints._MOVED_AT_ONCE
    assert len(checkpoints._due) + len(checkpoints._older_due) < seen / 10
    assert [item.due_ms for item in checkpoints.due(10_000)] == list(range(4_900, 5_200))


def test_a_checkpoint_is_stale_if_many_records_follow_that_are_not_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pop_checkpoints, "REREAD_RECORDS_MAX", 20)
    checkpoints = Checkpoints()
    known = [checkpoint(number, number) for number in range(25)]
    for item in known:
        checkpoints.add(item)
    assert checkpoints.stale(0, 30) is None, "most records are open checkpoints"
    for item in known[1:]:
        checkpoints.end(item)
    assert checkpoints.stale(0, 20) is None, "few records follow it"
    assert checkpoints.stale(0, 30) is known[0]


def test_due_checkpoints_are_in_order_across_both_heaps() -> None:
    chance = seeds.random("due checkpoints")
    checkpoints = Checkpoints()
    times = [chance.randrange(10_000) for _ in range(2_000)]
    known = [checkpoint(number, due_ms) for number, due_ms in enumerate(times)]
    for item in known[:1_500]:
        checkpoints.add(item)
    for item in known[:1_200]:
        checkpoints.end(item)
    for item in known[1_500:]:
        checkpoints.add(item)
    left = sorted(item.due_ms for item in known[1_200:])
    assert checkpoints.next_due_ms() is not None
    early = [item.due_ms for item in checkpoints.due(5_000)]
    assert early == [due_ms for due_ms in left if due_ms <= 5_000]
    assert [item.due_ms for item in checkpoints.due(10_000)] == left[len(early) :]
    assert checkpoints.next_due_ms() is None


async def work(subject: Subject, count: int) -> None:
    """Pop messages and acknowledge them, like a group whose first message stays invisible."""
    for _ in range(count):
        await subject.send("T", b"other")
        for popped in await pop(subject):
            await ack(subject, popped)
    broker = subject.broker
    broker.store.step_memory()
    for _ in range(3):
        broker.clock.advance(1_000)  # type: ignore[attr-defined]
        while broker.loops.step_pops(broker.clock.now_ms()):
            broker.store.step_memory()
    broker.store.sync()
    broker.store.step_memory()
    broker.parts.pops.publish_progress()


async def test_a_start_reads_few_records_for_a_long_invisible_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pop_checkpoints, "REREAD_RECORDS_MAX", 20)
    clock = ManualClock(START_MS)
    hour_ms = 3_600_000
    async with world.broker(tmp_path, clock=clock, revive_queue_num=1) as subject:
        for body in (b"acked", b"waits"):
            await subject.send("T", body)
        taken = {message.body: message for message in await pop(subject, invisible_time=hour_ms)}
        await ack(subject, taken[b"acked"])
        await work(subject, 40)
        broker = subject.broker
        end = broker.store.max_offset(REVIVE, 0)
        done = broker.parts.deliveries.consumer_offsets.get(REVIVE, names.REVIVE_GROUP, 0)
        assert end >= 40
        assert done is not None
        assert end - done <= 40
        assert len(broker.parts.pops.revive.checkpoints) == 1
    read = 0
    get = MessageStore.get

    def counting(store: MessageStore, topic: str, *more: Any, **options: Any) -> GetResult:
        nonlocal read
        result = get(store, topic, *more, **options)
        read += result.message_count * (topic == REVIVE)
        return result

    with monkeypatch.context() as patch:
        patch.setattr(MessageStore, "get", counting)
        async with world.broker(tmp_path, clock=clock, revive_queue_num=1) as subject:
            assert read <= 40
            assert await pop(subject) == []
            clock.advance(hour_ms + 2 * LATE_MS)
            broker = subject.broker
            broker.store.step_memory()
            while broker.loops.step_pops(clock.now_ms()):
                broker.store.step_memory()
            assert [message.body for message in await pop(subject)] == [b"waits"]


async def test_a_crash_between_both_copies_of_a_checkpoint_revives_a_message_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The saved start offset is the old one, so that a start reads both copies."""
    monkeypatch.setattr(pop_checkpoints, "REREAD_RECORDS_MAX", 5)
    clock = ManualClock(START_MS)
    async with world.broker(tmp_path, clock=clock, revive_queue_num=1) as subject:
        for body in (b"acked", b"waits"):
            await subject.send("T", body)
        taken = {message.body: message for message in await pop(subject, invisible_time=60_000)}
        await ack(subject, taken[b"acked"])
        await work(subject, 20)
    async with world.broker(tmp_path, clock=clock, revive_queue_num=1) as subject:
        subject.parts.deliveries.consumer_offsets.put(REVIVE, names.REVIVE_GROUP, 0, -1)
    async with world.broker(tmp_path, clock=clock, revive_queue_num=1) as subject:
        clock.advance(60_000 + INVISIBLE_MS)
        broker = subject.broker
        broker.store.step_memory()
        while broker.loops.step_pops(clock.now_ms()):
            broker.store.step_memory()
        assert [message.body for message in await pop(subject)] == [b"waits"]
        assert len(broker.parts.pops.revive.checkpoints) == 1


@pytest.mark.parametrize("delivered_per_step", [1, timers.MESSAGES_PER_STEP])
async def test_checkpoints_of_java_wait_for_acks_that_its_timer_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, delivered_per_step: int
) -> None:
    """Java parks both in its timer; after a switch that takes long, both are overdue."""
    monkeypatch.setattr(timers, "MESSAGES_PER_STEP", delivered_per_step)
    clock = ManualClock(START_MS)
    count = 40  # more than the records that a step reads
    async with world.broker(tmp_path, clock=clock, revive_queue_num=1) as subject:
        for number in range(count):
            await subject.send("T", b"%d" % number)
        await pop(subject)  # the topics and the group exist now
        await pop(subject)
        revive(subject, INVISIBLE_MS)
        while popped := await pop(subject):
            for message in popped:
                await ack(subject, message)
        for kind in ("ck", "ack"):
            for number in range(count):
                park_as_java(subject, kind, number, clock.now_ms())
    clock.advance(10 * INVISIBLE_MS)
    async with world.broker(tmp_path, clock=clock, revive_queue_num=1) as subject:
        broker = subject.broker
        did = True
        while did:
            did = broker.parts.timers.step(clock.now_ms())
            broker.store.step_memory()
            did = broker.loops.step_pops(clock.now_ms()) or did
        revive(subject, LATE_MS)
        assert [message.body for message in await pop(subject)] == [b"7"]


@pytest.mark.parametrize("is_fast", [False, True], ids=["processors", "kernels"])
async def test_handles_of_java_are_taken_while_their_checkpoint_is_in_the_timer(
    tmp_path: Path, is_fast: bool
) -> None:
    """As an official broker does with its own: the ack waits in the timer, over restarts too."""
    clock = ManualClock(START_MS)
    settings = {"clock": clock, "revive_queue_num": 1, "reput_fast_path": is_fast}
    async with world.broker(tmp_path, **settings) as subject:
        for number in range(6):
            await subject.send("T", b"%d" % number)
        taken = await pop(subject)
        await ack_batch(subject, taken)
        body = pop_codec.encode_checkpoint(
            NAME, "G", "T", 0, 0, range(6), clock.now_ms(), INVISIBLE_MS
        )
        park(subject, pop_codec.CHECKPOINT_TAG, body, clock.now_ms() + INVISIBLE_MS - 1_000)
    handle = f"0 {clock.now_ms()} {INVISIBLE_MS} 0 0 {NAME} 0"
    held = [replace(message, handle=f"{handle} {n}") for n, message in enumerate(taken)]
    clock.advance(10_000)
    async with world.broker(tmp_path, **settings) as subject:
        assert (await ack(subject, held[0])).code == 0
        assert (await ack_batch(subject, held[1:3])).code == 0
        _, changed = await change(subject, held[3], 2 * INVISIBLE_MS)
        assert changed is not None
        _, renewed = await change(subject, held[4], 2 * INVISIBLE_MS)
        assert renewed is not None
        assert (await ack(subject, renewed)).code == 0
    clock.advance(10_000)
    async with world.broker(tmp_path, **settings) as subject:
        assert await due(subject, INVISIBLE_MS) == [b"5"]
        assert await due(subject, 2 * INVISIBLE_MS) == [b"3"]
        # The checkpoint is over: nothing is stored for a further ack.
        store = subject.broker.store
        end = store.max_offset(names.TIMER_TOPIC, 0)
        assert (await ack(subject, held[0])).code == 0
        assert store.max_offset(names.TIMER_TOPIC, 0) == end


async def test_other_messages_in_the_timer_make_no_checkpoint_possible(tmp_path: Path) -> None:
    clock = ManualClock(START_MS)
    settings = {"clock": clock, "revive_queue_num": 1}
    async with world.broker(tmp_path, **settings) as subject:
        await subject.send("T", b"acked")
        (taken,) = await pop(subject)
        await ack(subject, taken)
        later = str(clock.now_ms() + INVISIBLE_MS // 2)
        await subject.send("T", b"later", properties={props.TIMER_DELIVER_MS: later})
    clock.advance(1_000)
    async with world.broker(tmp_path, **settings) as subject:
        subject.broker.store.step_memory()
        while subject.broker.parts.timers.step(clock.now_ms()):
            subject.broker.store.step_memory()
        end = subject.broker.store.max_offset(names.TIMER_TOPIC, 0)
        assert end == 1
        reply, _ = await change(subject, taken, INVISIBLE_MS)
        assert reply.code == ResponseCode.NO_MESSAGE
        assert (await ack(subject, taken)).code == 0
        assert subject.broker.store.max_offset(names.TIMER_TOPIC, 0) == end


async def due(subject: Subject, after_ms: int) -> list[bytes]:
    """Let time pass; return the bodies of messages that are delivered again, and acknowledge."""
    broker = subject.broker
    for _ in range(after_ms // 1_000 + LATE_MS // 1_000):
        broker.clock.advance(1_000)  # type: ignore[attr-defined]
        did = True
        while did:
            did = broker.parts.timers.step(broker.clock.now_ms())
            broker.store.step_memory()
            did = broker.loops.step_pops(broker.clock.now_ms()) or did
    bodies = []
    for message in await pop(subject):
        bodies.append(message.body)
        await ack(subject, message)
    return bodies


def park_as_java(subject: Subject, kind: str, number: int, pop_ms: int) -> None:
    """Park a checkpoint of a message, or its ack unless it is number 7, as Java 5.5 does."""
    if kind == "ck":
        body = pop_codec.encode_checkpoint(
            NAME, "G", "T", 0, number, range(number, number + 1), pop_ms, INVISIBLE_MS
        )
        due_ms = pop_ms + INVISIBLE_MS - 1_000
    elif number != 7:
        record = AckRecord(
            ack_offset=number, broker_name=NAME, group="G", pop_ms=pop_ms, queue_id=0,
            start_offset=number, topic="T",
        )  # fmt: skip
        body, due_ms = pop_codec.encode(record), pop_ms + INVISIBLE_MS
    else:
        return
    park(subject, kind, body, due_ms)


def park(subject: Subject, tag: str, body: bytes, due_ms: int) -> None:
    """Park a record of the revive topic in the timer."""
    properties = {
        props.TAGS: tag,
        props.TIMER_OUT_MS: str(due_ms // 1_000 * 1_000 - 1_000),
        props.REAL_TOPIC: REVIVE,
        props.REAL_QUEUE_ID: "0",
    }
    message = IncomingMessage(
        names.TIMER_TOPIC, body, property_bytes=props.encode(properties), is_due=True
    )
    assert subject.broker.store.put(message).status.is_stored


def revive(subject: Subject, after_ms: int) -> None:
    """Revive the messages that are due after some time."""
    broker = subject.broker
    broker.clock.advance(after_ms)  # type: ignore[attr-defined]
    broker.store.step_memory()
    while broker.loops.step_pops(broker.clock.now_ms()):
        broker.store.step_memory()
