"""Pop over a connection: visibility of messages, invisible times, and redelivery."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

import world
from pop_client import INVISIBLE_MS, ack, ack_batch, change, pop, pop_reply
from reput.broker.pop import pops as broker_pop
from reput.clock import ManualClock
from reput.format import names
from reput.format.codes import RequestCode, ResponseCode
from reput.format.headers import (
    NotificationHeader,
)
from reput.store.getting import GetResult
from world import Subject, until

START_MS = 1_700_000_000_000
RETRY = "%RETRY%G_T"
REVIVE = "rmq_sys_REVIVE_LOG_DefaultCluster"


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(START_MS)


@pytest_asyncio.fixture
async def timed(tmp_path: Path, clock: ManualClock) -> AsyncIterator[Subject]:
    """A broker with a stopped clock, a topic of four queues and six messages."""
    async with world.broker(tmp_path, clock=clock) as running:
        await fill(running)
        yield running


async def fill(subject: Subject, count: int = 6) -> None:
    for number in range(count):
        reply = await subject.send(
            "T", b"%d" % number, queue_id=number % 2, properties={"TAGS": "ab"[number % 2]}
        )
        assert reply.code == ResponseCode.SUCCESS


def step(subject: Subject) -> None:
    """Do all due work, and let it be dispatched."""
    broker = subject.broker
    broker.store.step_memory()
    while broker.loops.step_pops(broker.clock.now_ms()):
        broker.store.step_memory()
    broker.store.step_memory()


def later(subject: Subject, clock: ManualClock, duration_ms: int) -> None:
    clock.advance(duration_ms)
    step(subject)


async def bodies_of(subject: Subject, **fields: object) -> list[bytes]:
    return sorted(message.body for message in await pop(subject, **fields))


async def test_revived_messages_are_not_read_at_the_next_start(
    tmp_path: Path, clock: ManualClock
) -> None:
    async with world.broker(tmp_path, clock=clock, revive_queue_num=2) as subject:
        await fill(subject)
        for _ in range(4):
            for popped in await pop(subject, max_msg_nums=1):
                await ack(subject, popped)
        step(subject)
        broker = subject.broker
        broker.store.flusher.commit()
        broker.store.sync()

        def is_published() -> bool:
            # The broker's own thread may be writing the table, and then finds it changed.
            broker.parts.topics.table.save(clock.now_ms())
            step(subject)
            done = broker.parts.deliveries.consumer_offsets.of(REVIVE, names.REVIVE_GROUP)
            ends = {number: broker.store.max_offset(REVIVE, number) for number in range(2)}
            return {popped: end - 1 for popped, end in ends.items()} == done

        await until(is_published)


async def test_a_new_group_begins_near_the_end(tmp_path: Path) -> None:
    async with world.broker(tmp_path) as subject:
        await fill(subject)
        # In a queue that was never cleaned, from the first message, as Java does.
        assert len(await pop(subject, init_mode=1)) == 6
        subject.parts.pops._is_old = lambda topic, queue_id: True
        assert await bodies_of(subject, group="late", init_mode=1) == [b"4", b"5"]


async def test_a_held_pop_keeps_only_the_fields_of_its_reply(tmp_path: Path) -> None:
    async with world.broker(tmp_path) as subject:
        await fill(subject)
        await ack_batch(subject, await pop(subject))
        header = NotificationHeader(consumer_group="G", topic="T", queue_id=1, poll_time=15_000)
        asking = asyncio.create_task(subject.ask(RequestCode.NOTIFICATION, header, b"x" * 1000))
        waiting = asyncio.create_task(pop(subject, poll_time=15_000))
        await until(lambda: len(subject.parts.pops.held) >= 2)
        kept = [held.request for held in subject.parts.pops.held.held_at("T", -1)]
        kept += [held.request for held in subject.parts.pops.held.held_at("T", 1)]
        assert [(request.body, request.ext_fields) for request in kept] == [(b"", None)] * 2
        await subject.send("T", b"new", queue_id=1)
        assert [popped.body for popped in await waiting] == [b"new"]
        asking.cancel()


async def test_one_message_does_not_wake_all_held_pops(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with world.broker(tmp_path) as subject:
        await fill(subject)
        for group in ("G", "H"):
            await ack_batch(subject, await pop(subject, group=group))
        subject.broker.store.notify()
        subscriptions = [("G", "*")] * 20 + [("H", "*")] * 20 + [("G", "b")] * 20
        waiting = [
            asyncio.create_task(pop(subject, group=group, exp=tag, poll_time=15_000))
            for group, tag in subscriptions
        ]
        pops = subject.parts.pops
        await until(lambda: len(pops.held) >= len(subscriptions))
        calls = []
        original_pop = pops.pop
        monkeypatch.setattr(pops, "pop", lambda *call: calls.append(call) or original_pop(*call))
        await subject.send("T", b"new", queue_id=0, properties={"TAGS": "b"})
        replies = [await waiting[0], await waiting[20]]
        assert [[popped.body for popped in reply] for reply in replies] == [[b"new"]] * 2
        assert len(calls) == 5, "of each kind one without a result"
        assert len(pops.held) == len(subscriptions) - 2
        for pop_task in waiting[1:]:
            pop_task.cancel()


async def test_a_held_pop_gets_due_messages(tmp_path: Path) -> None:
    """With the machine's clock and the broker's own loops."""
    async with world.broker(tmp_path) as subject:
        await fill(subject, 1)
        (popped,) = await pop(subject, invisible_time=300)
        (again,) = await pop(subject, poll_time=15_000)
        assert again.message.reconsume_times == 1
        assert again.message.store_timestamp >= int(popped.handle.split(" ")[1]) + 300


async def test_a_renewed_handle_stays_valid_over_a_restart(
    tmp_path: Path, clock: ManualClock
) -> None:
    async with world.broker(tmp_path, clock=clock) as subject:
        await fill(subject)
        taken = {popped.body: popped for popped in await pop(subject)}
        assert (await ack(subject, taken[b"0"])).code == ResponseCode.SUCCESS
        clock.advance(INVISIBLE_MS - 1)
        reply, _ = await change(subject, taken[b"2"], 10 * INVISIBLE_MS, keeps_handle=True)
        assert reply.ext_fields == {
            "popTime": f"{START_MS}",
            "invisibleTime": f"{11 * INVISIBLE_MS - 1}",
            "reviveQid": taken[b"2"].handle.split(" ")[3],
        }
        begin = subject.broker.store.log.written_offset
        again, _ = await change(subject, taken[b"4"], 10 * INVISIBLE_MS, keeps_handle=True)
        assert again.ext_fields == reply.ext_fields  # popped together, and renewed together
        assert subject.broker.store.log.written_offset == begin
    async with world.broker(tmp_path, clock=clock) as subject:
        later(subject, clock, 2 * INVISIBLE_MS)
        assert await bodies_of(subject) == [b"1", b"3", b"5"]  # of the other queue
        assert (await ack(subject, taken[b"2"])).code == ResponseCode.SUCCESS
        refused, _ = await change(subject, taken[b"2"], 1, keeps_handle=True)
        assert refused.code == ResponseCode.NO_MESSAGE
    async with world.broker(tmp_path, clock=clock) as subject:
        later(subject, clock, 11 * INVISIBLE_MS)
        assert await bodies_of(subject) == [b"1", b"3", b"4", b"5"]


async def test_a_renewed_handle_stays_valid_in_order(timed: Subject, clock: ManualClock) -> None:
    first, *_ = await pop(timed, queue_id=0, order=True)
    clock.advance(INVISIBLE_MS - 1)
    reply, _ = await change(timed, first, INVISIBLE_MS, keeps_handle=True)
    assert reply.code == ResponseCode.SUCCESS
    later(timed, clock, INVISIBLE_MS - 1)
    assert await pop(timed, queue_id=0, order=True) == []
    later(timed, clock, 1)
    assert await bodies_of(timed, queue_id=0, order=True) == [b"0", b"2", b"4"]
    refused, _ = await change(timed, first, INVISIBLE_MS, keeps_handle=True)
    assert refused.code == ResponseCode.NO_MESSAGE


async def test_invisible_time_begins_at_the_pop(timed: Subject, clock: ManualClock) -> None:
    await pop(timed)
    reply = await pop_reply(timed, poll_time=1_000, born_time=START_MS - 951)
    assert (reply.code, reply.remark) == (ResponseCode.POLLING_TIMEOUT, "NO_MESSAGE_IN_QUEUE")
    late = NotificationHeader(
        consumer_group="G", topic="T", queue_id=-1, poll_time=1_000, born_time=START_MS - 9_000
    )
    reply = await timed.ask(RequestCode.NOTIFICATION, late)
    assert reply.ext_fields == {"hasMsg": "false", "pollingFull": "false"}
    waiting = asyncio.create_task(pop_reply(timed, poll_time=1_000, born_time=START_MS - 900))
    await until(lambda: len(timed.broker.parts.pops.held))
    clock.advance(100)
    timed.broker.loops.expire_held()
    assert (await waiting).code == ResponseCode.POLLING_TIMEOUT


async def test_no_other_message_is_revived_in_place_of_a_missing_one(
    timed: Subject, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The wrong message is not delivered (D33: rmq#7914, rmq#7724)."""
    await pop(timed, queue_id=0, max_msg_nums=1)
    store = timed.broker.store
    get = store.get

    def get_after(topic: str, queue_id: int, queue_offset: int, *more: int) -> GetResult:
        return get(topic, queue_id, queue_offset + (topic == "T"), *more)

    monkeypatch.setattr(store, "get", get_after)
    later(timed, clock, INVISIBLE_MS)
    assert store.max_offset(RETRY, 0) == 0
    assert timed.broker.parts.pops.revive.lost_count == 1
    assert len(timed.broker.parts.pops.revive.checkpoints) == 0


async def test_revive_finds_the_messages_of_a_light_queue(tmp_path: Path) -> None:
    """Units point to records that do not name the queue; as in Java, they are delivered."""
    topic = "%LMQ%device"
    on = {"enable_lmq": True, "enable_multi_dispatch": True}
    async with world.broker(tmp_path, store=on) as subject:
        queues = subject.broker.store.queues
        for number in range(4):
            marks = {"TAGS": "ab"[number % 2]}
            if number != 1:
                marks["INNER_MULTI_DISPATCH"] = topic
            await subject.send("T", b"%d" % number, queue_id=1, properties=marks)
            if number == 1:
                unit = queues.make("T", 1).unit(1)
                assert unit is not None
                queues.make(topic, 0).append(unit)
        for tag, offsets in (("b", "1,3"), ("a", "0,2"), ("*", "0,1,2,3")):
            reply = await pop_reply(subject, topic, group="all" if tag == "*" else tag, exp=tag)
            assert reply.code == ResponseCode.SUCCESS
            assert (reply.ext_fields or {})["msgOffsetInfo"] == f"0 0 {offsets}"


# --- in order ---------------------------------------------------------------------


async def test_the_cache_of_retry_topics_is_bounded(
    timed: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broker_pop, "RETRIED_MAX", 3)
    for number in range(10):
        await pop(timed, group=f"G{number}")
    assert list(timed.broker.parts.pops._retried.values()) == [
        ("T", f"G{last}") for last in (7, 8, 9)
    ]
