"""Pop over a connection: who sees what, for how long, and what comes again."""

import asyncio
import dataclasses
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

import broker_subject
from broker_subject import Subject
from pop_client import INVISIBLE_MS, ack, ack_batch, change, pop, pop_reply
from remoting_subject import GUARD_S, until
from reput import limits
from reput.broker.pop import pops as broker_pop
from reput.clock import ManualClock
from reput.format import message as record, names
from reput.format.codes import RequestCode, ResponseCode
from reput.format.headers import (
    AckMessageHeader,
    NotificationHeader,
    PeekMessageHeader,
    PollingInfoHeader,
    UpdateConsumerOffsetHeader,
)
from reput.store.getting import GetResult
from reput.store.incoming import PutResult, PutStatus

START_MS = 1_700_000_000_000
RETRY = "%RETRY%G_T"
REVIVE = "rmq_sys_REVIVE_LOG_DefaultCluster"


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(START_MS)


@pytest_asyncio.fixture
async def timed(tmp_path: Path, clock: ManualClock) -> AsyncIterator[Subject]:
    """A broker whose time stands still, with a topic of four queues and six messages."""
    async with broker_subject.running(tmp_path, clock=clock) as one:
        await fill(one)
        yield one


async def fill(subject: Subject, count: int = 6) -> None:
    for number in range(count):
        reply = await subject.send(
            "T", b"%d" % number, queue_id=number % 2, properties={"TAGS": "ab"[number % 2]}
        )
        assert reply.code == ResponseCode.SUCCESS


def step(subject: Subject) -> None:
    """Do what is due, and let it be read."""
    broker = subject.broker
    broker.store.step_memory()
    while broker.loops.step_pops(broker.clock.now_ms()):
        broker.store.step_memory()
    broker.store.step_memory()


def later(subject: Subject, clock: ManualClock, duration_ms: int) -> None:
    clock.advance(duration_ms)
    step(subject)


async def bodies_of(subject: Subject, **fields: object) -> list[bytes]:
    return sorted(one.body for one in await pop(subject, **fields))


async def test_what_one_has_taken_another_one_does_not_see(timed: Subject) -> None:
    first = await pop(timed, max_msg_nums=4)
    second = await pop(timed)
    assert len(first) == 4
    assert sorted(one.body for one in first + second) == [b"%d" % one for one in range(6)]
    assert await pop(timed) == []
    assert len(await pop(timed, group="other")) == 6


async def test_what_is_acknowledged_never_comes_again(timed: Subject, clock: ManualClock) -> None:
    for one in await pop(timed):
        assert (await ack(timed, one)).code == ResponseCode.SUCCESS
    later(timed, clock, 10 * INVISIBLE_MS)
    assert await pop(timed) == []
    assert timed.broker.parts.topics.get(RETRY) is None


async def test_what_is_not_comes_again_when_its_time_is_over_and_counts(
    timed: Subject, clock: ManualClock
) -> None:
    taken = await pop(timed)
    for one in taken:
        if one.body != b"3":
            await ack(timed, one)
    later(timed, clock, INVISIBLE_MS - 1)
    assert await pop(timed) == []
    for attempt in range(1, 4):
        later(timed, clock, 1)
        (again,) = await pop(timed)
        assert (again.body, again.message.topic) == (b"3", "T")
        assert again.message.reconsume_times == attempt
        assert again.message.properties["1ST_POP_TIME"] == str(START_MS)
        assert again.message.tags == "b"
        later(timed, clock, INVISIBLE_MS - 1)
        assert await pop(timed) == []
    later(timed, clock, 1)
    (again,) = await pop(timed)
    await ack(timed, again)
    later(timed, clock, INVISIBLE_MS)
    assert await pop(timed) == []


async def test_messages_of_one_queue(timed: Subject) -> None:
    assert await bodies_of(timed, queue_id=1) == [b"1", b"3", b"5"]
    assert await bodies_of(timed, queue_id=3) == []
    assert await bodies_of(timed) == [b"0", b"2", b"4"]


async def test_many_are_acknowledged_together(timed: Subject, clock: ManualClock) -> None:
    taken = await pop(timed)
    kept = [one for one in taken if one.body in (b"1", b"4")]
    reply = await ack_batch(timed, [one for one in taken if one not in kept])
    assert reply.code == ResponseCode.SUCCESS
    later(timed, clock, INVISIBLE_MS)
    again = await pop(timed)
    assert sorted(one.body for one in again) == [b"1", b"4"]
    await ack_batch(timed, again)
    later(timed, clock, INVISIBLE_MS)
    assert await pop(timed) == []


async def test_a_batch_that_names_nothing_is_refused(timed: Subject) -> None:
    for body in (b"", b'{"brokerName":"b","acks":[]}'):
        reply = await timed.ask(RequestCode.BATCH_ACK_MESSAGE, body=body)
        assert reply.code == ResponseCode.NO_MESSAGE


async def test_a_time_is_changed_and_the_old_handle_is_worth_nothing(
    timed: Subject, clock: ManualClock
) -> None:
    one, *others = await pop(timed)
    await ack_batch(timed, others)
    reply, new = await change(timed, one, 5_000)
    assert (reply.code, reply.remark) == (ResponseCode.SUCCESS, None)
    assert new is not None
    await ack(timed, one)
    later(timed, clock, 4_999)
    assert await pop(timed) == []
    later(timed, clock, 1)
    (again,) = await pop(timed)
    assert (again.body, again.message.reconsume_times) == (one.body, 1)
    later(timed, clock, INVISIBLE_MS)
    (third,) = await pop(timed)
    assert third.message.reconsume_times == 2


async def test_a_new_handle_acknowledges_and_changes_again(
    timed: Subject, clock: ManualClock
) -> None:
    one, *others = await pop(timed)
    await ack_batch(timed, others)
    _, new = await change(timed, one, 5_000)
    assert new is not None
    _, newer = await change(timed, new, 90_000, suspend=True)
    assert newer is not None
    later(timed, clock, 89_999)
    assert await pop(timed) == []
    later(timed, clock, 1_000)
    (again,) = await pop(timed)
    assert again.message.reconsume_times == 0  # suspended: no attempt
    _, last = await change(timed, again, 1_000)
    assert last is not None
    await ack(timed, last)
    later(timed, clock, 10 * INVISIBLE_MS)
    assert await pop(timed) == []


async def test_who_holds_a_message_no_more_cannot_hold_it_longer(
    timed: Subject, clock: ManualClock
) -> None:
    one, *others = await pop(timed)
    await ack_batch(timed, others)
    later(timed, clock, INVISIBLE_MS)
    reply, _ = await change(timed, one, 1_000)
    assert reply.code == ResponseCode.NO_MESSAGE
    assert "its time is over" in (reply.remark or "")
    assert len(await pop(timed)) == 1
    later(timed, clock, 1_000)
    assert await pop(timed) == []


async def test_checkpoints_and_acks_survive_a_restart(tmp_path: Path, clock: ManualClock) -> None:
    async with broker_subject.running(tmp_path, clock=clock) as subject:
        await fill(subject)
        taken = await pop(subject)
        for one in taken:
            if one.body in (b"0", b"1", b"4"):
                await ack(subject, one)
    clock.advance(1_000)
    async with broker_subject.running(tmp_path, clock=clock) as subject:
        assert await pop(subject) == []
        for one in taken:
            if one.body == b"2":
                assert (await ack(subject, one)).code == ResponseCode.SUCCESS
        later(subject, clock, INVISIBLE_MS)
        assert await pop(subject) == []  # acks of another broker would be waited for
        later(subject, clock, 2_000)
        again = await pop(subject)
        assert sorted(one.body for one in again) == [b"3", b"5"]
        await ack_batch(subject, again)
        step(subject)
    async with broker_subject.running(tmp_path, clock=clock) as subject:
        later(subject, clock, 10 * INVISIBLE_MS)
        assert await pop(subject) == []
        assert len(subject.parts.pops.revive.checkpoints) == 0


async def test_what_is_done_with_is_not_read_at_the_next_start(
    tmp_path: Path, clock: ManualClock
) -> None:
    async with broker_subject.running(tmp_path, clock=clock, revive_queue_num=2) as subject:
        await fill(subject)
        for _ in range(4):
            for one in await pop(subject, max_msg_nums=1):
                await ack(subject, one)
        step(subject)
        broker = subject.broker
        broker.store.flusher.commit()
        broker.store.sync()

        def is_told() -> bool:
            # The broker's own thread may be writing the table, and find it changed after this.
            broker.parts.topics.table.save(clock.now_ms())
            step(subject)
            done = broker.parts.deliveries.consumer_offsets.of(REVIVE, names.REVIVE_GROUP)
            ends = {one: broker.store.max_offset(REVIVE, one) for one in range(2)}
            return {one: end - 1 for one, end in ends.items()} == done

        async with asyncio.timeout(GUARD_S):
            await until(is_told)


async def test_a_tag_is_taken_and_the_others_are_passed(timed: Subject) -> None:
    assert await bodies_of(timed, exp="b") == [b"1", b"3", b"5"]
    assert await bodies_of(timed, exp="b") == []
    # D33, rmq#9339: the queue of the others was passed, not left where it was.
    assert timed.broker.parts.pops.offsets.find("T", "G", 0) == 3
    assert await bodies_of(timed) == []


async def test_an_expression(tmp_path: Path) -> None:
    async with broker_subject.running(tmp_path, enable_property_filter=True) as subject:
        await fill(subject)
        taken = await bodies_of(subject, exp_type="SQL92", exp="TAGS = 'a'")
        assert taken == [b"0", b"2", b"4"]
        reply = await pop_reply(subject, exp_type="SQL92", exp="TAGS ! a")
        assert reply.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED


async def test_a_group_begins_near_the_end(tmp_path: Path) -> None:
    async with broker_subject.running(tmp_path) as subject:
        await fill(subject)
        # In a queue that was never cleaned, from the first message: as Java.
        assert len(await pop(subject, init_mode=1)) == 6
        subject.parts.pops._is_old = lambda topic, queue_id: True
        assert await bodies_of(subject, group="late", init_mode=1) == [b"4", b"5"]


async def test_a_reset_moves_pops_too(timed: Subject) -> None:
    await ack_batch(timed, await pop(timed))
    step(timed)
    assert await pop(timed) == []
    await timed.ask(
        RequestCode.UPDATE_CONSUMER_OFFSET,
        UpdateConsumerOffsetHeader(consumer_group="G", topic="T", queue_id=0, commit_offset=1),
    )
    assert await bodies_of(timed) == [b"2", b"4"]


async def test_an_offset_beyond_the_queue_is_corrected(timed: Subject) -> None:
    await timed.ask(
        RequestCode.UPDATE_CONSUMER_OFFSET,
        UpdateConsumerOffsetHeader(consumer_group="G", topic="T", queue_id=0, commit_offset=99),
    )
    assert await bodies_of(timed) == [b"1", b"3", b"5"]
    await timed.send("T", b"new", queue_id=0)
    assert await bodies_of(timed) == [b"new"]


async def test_a_pop_that_waits_is_answered_when_something_comes(tmp_path: Path) -> None:
    async with broker_subject.running(tmp_path) as subject:
        await fill(subject)
        await ack_batch(subject, await pop(subject))
        waiting = asyncio.create_task(pop(subject, poll_time=15_000))
        asked = NotificationHeader(consumer_group="G", topic="T", queue_id=1, poll_time=15_000)
        asking = asyncio.create_task(subject.ask(RequestCode.NOTIFICATION, asked))
        info = PollingInfoHeader(consumer_group="G", topic="T", queue_id=-1)
        while len(subject.parts.pops.held) < 2:
            await asyncio.sleep(0)
        reply = await subject.ask(RequestCode.POLLING_INFO, info)
        assert reply.ext_fields == {"pollingNum": "1"}
        await subject.send("T", b"unwanted", queue_id=0)
        assert [one.body for one in await waiting] == [b"unwanted"]
        assert not asking.done()
        await subject.send("T", b"new", queue_id=1)
        assert (await asking).ext_fields == {"hasMsg": "true", "pollingFull": "false"}
        assert await bodies_of(subject) == [b"new"]


async def test_a_pop_that_waits_keeps_what_its_reply_needs(tmp_path: Path) -> None:
    async with broker_subject.running(tmp_path) as subject:
        await fill(subject)
        await ack_batch(subject, await pop(subject))
        asked = NotificationHeader(consumer_group="G", topic="T", queue_id=1, poll_time=15_000)
        asking = asyncio.create_task(subject.ask(RequestCode.NOTIFICATION, asked, b"x" * 1000))
        waiting = asyncio.create_task(pop(subject, poll_time=15_000))
        while len(subject.parts.pops.held) < 2:
            await asyncio.sleep(0)
        kept = [one.request for one in subject.parts.pops.held.held_at("T", -1)]
        kept += [one.request for one in subject.parts.pops.held.held_at("T", 1)]
        assert [(one.body, one.ext_fields) for one in kept] == [(b"", None)] * 2
        await subject.send("T", b"new", queue_id=1)
        assert [one.body for one in await waiting] == [b"new"]
        asking.cancel()


async def test_the_attempt_of_a_notification_is_not_long(tmp_path: Path) -> None:
    async with broker_subject.running(tmp_path) as subject:
        await fill(subject)
        header = NotificationHeader(
            consumer_group="G", topic="T", queue_id=1, poll_time=15_000, order=True,
            attempt_id="x" * (limits.POP_ATTEMPT_LETTERS.maximum + 1),
        )  # fmt: skip
        reply = await subject.ask(RequestCode.NOTIFICATION, header)
        assert reply.code != ResponseCode.SUCCESS
        assert limits.POP_ATTEMPT_LETTERS.name in (reply.remark or "")


async def test_one_message_wakes_no_thousands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with broker_subject.running(tmp_path) as subject:
        await fill(subject)
        for group in ("G", "H"):
            await ack_batch(subject, await pop(subject, group=group))
        subject.broker.store.notify()
        asked = [("G", "*")] * 20 + [("H", "*")] * 20 + [("G", "b")] * 20
        waiting = [
            asyncio.create_task(pop(subject, group=group, exp=tag, poll_time=15_000))
            for group, tag in asked
        ]
        pops = subject.parts.pops
        while len(pops.held) < len(asked):
            await asyncio.sleep(0)
        looks = []
        look = pops.pop
        monkeypatch.setattr(pops, "pop", lambda *one: looks.append(one) or look(*one))
        await subject.send("T", b"new", queue_id=0, properties={"TAGS": "b"})
        found = [await waiting[0], await waiting[20]]
        assert [[one.body for one in each] for each in found] == [[b"new"]] * 2
        assert len(looks) == 5, "one of each kind in vain"
        assert len(pops.held) == len(asked) - 2
        for one in waiting[1:]:
            one.cancel()


async def test_a_pop_that_waits_gets_what_is_due(tmp_path: Path) -> None:
    """By the clock of the machine, with the broker's own loops."""
    async with broker_subject.running(tmp_path) as subject:
        await fill(subject, 1)
        (one,) = await pop(subject, invisible_time=300)
        (again,) = await pop(subject, poll_time=15_000)
        assert again.message.reconsume_times == 1
        assert again.message.store_timestamp >= int(one.handle.split(" ")[1]) + 300


async def test_a_pop_that_waits_long_enough_gets_nothing(
    timed: Subject, clock: ManualClock
) -> None:
    await pop(timed)
    waiting = asyncio.create_task(pop_reply(timed, poll_time=1_000))
    while not len(timed.broker.parts.pops.held):
        await asyncio.sleep(0)
    clock.advance(1_000)
    timed.broker.loops.expire_held()
    reply = await waiting
    assert (reply.code, reply.body) == (ResponseCode.POLLING_TIMEOUT, b"")


async def test_a_pop_that_comes_too_late_takes_nothing(timed: Subject) -> None:
    for _ in range(2):  # the second one is known by its words
        reply = await pop_reply(timed, poll_time=1_000, born_time=START_MS - 1_501)
        assert (reply.code, reply.body) == (ResponseCode.POLLING_TIMEOUT, b"")
        assert "pop message is timeout too much" in (reply.remark or "")
    first = await pop(timed, poll_time=1_000, born_time=START_MS - 1_500, max_msg_nums=3)
    second = await pop(timed, poll_time=1_000, born_time=START_MS - 1_500)
    assert sorted(one.body for one in first + second) == [b"%d" % one for one in range(6)]


async def test_the_time_of_a_pop_begins_when_it_is_made(timed: Subject, clock: ManualClock) -> None:
    await pop(timed)
    reply = await pop_reply(timed, poll_time=1_000, born_time=START_MS - 951)
    assert (reply.code, reply.remark) == (ResponseCode.POLLING_TIMEOUT, "NO_MESSAGE_IN_QUEUE")
    late = NotificationHeader(
        consumer_group="G", topic="T", queue_id=-1, poll_time=1_000, born_time=START_MS - 9_000
    )
    reply = await timed.ask(RequestCode.NOTIFICATION, late)
    assert reply.ext_fields == {"hasMsg": "false", "pollingFull": "false"}
    waiting = asyncio.create_task(pop_reply(timed, poll_time=1_000, born_time=START_MS - 900))
    while not len(timed.broker.parts.pops.held):
        await asyncio.sleep(0)
    clock.advance(100)
    timed.broker.loops.expire_held()
    assert (await waiting).code == ResponseCode.POLLING_TIMEOUT


async def test_too_many_wait(tmp_path: Path) -> None:
    async with broker_subject.running(tmp_path, max_pop_polling_size=0) as subject:
        await fill(subject, 1)
        await pop(subject)
        assert (await pop_reply(subject, poll_time=1_000)).code == ResponseCode.POLLING_FULL


async def test_a_peek_takes_nothing(timed: Subject) -> None:
    header = PeekMessageHeader(consumer_group="G", topic="T", queue_id=-1, max_msg_nums=4)
    for _ in range(2):
        reply = await timed.ask(RequestCode.PEEK_MESSAGE, header)
        assert len(broker_subject.messages_in(reply.body)) == 4
        assert (reply.ext_fields or {})["restNum"] == "6"
    assert len(await pop(timed)) == 6
    reply = await timed.ask(RequestCode.PEEK_MESSAGE, header)
    assert (reply.code, reply.body) == (ResponseCode.PULL_NOT_FOUND, b"")


async def test_no_checkpoint_no_message(timed: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    store = timed.broker.store
    put = store.put
    refusal = PutResult(PutStatus.OS_PAGE_CACHE_BUSY, reason="busy")
    monkeypatch.setattr(store, "put", lambda message, now_ms=None: refusal)
    monkeypatch.setattr(store, "put_encoded", lambda data, count, now_ms=None: (0, None))
    reply = await pop_reply(timed)
    assert (reply.code, reply.body) == (ResponseCode.SYSTEM_ERROR, b"")
    assert reply.remark == "no checkpoint: OS_PAGE_CACHE_BUSY: busy"
    monkeypatch.setattr(store, "put", put)
    assert len(await pop(timed)) == 6


async def test_what_the_store_refuses_is_tried_again(
    timed: Subject, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    await pop(timed)
    store = timed.broker.store
    put = store.put
    refusal = PutResult(PutStatus.SERVICE_NOT_AVAILABLE, reason="the disk is full")
    monkeypatch.setattr(store, "put", lambda message, now_ms=None: refusal)
    later(timed, clock, INVISIBLE_MS)
    assert await pop(timed, group="G") == []
    monkeypatch.setattr(store, "put", put)
    later(timed, clock, 999)
    assert await pop(timed) == []
    later(timed, clock, 1)
    assert len(await pop(timed)) == 6


async def test_another_message_never_comes_in_the_place_of_one_that_is_gone(
    timed: Subject, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """D33: rmq#7914, rmq#7724."""
    await pop(timed, queue_id=0, max_msg_nums=1)
    store = timed.broker.store
    get = store.get

    def get_behind(topic: str, queue_id: int, queue_offset: int, *more: int) -> GetResult:
        return get(topic, queue_id, queue_offset + (topic == "T"), *more)

    monkeypatch.setattr(store, "get", get_behind)
    later(timed, clock, INVISIBLE_MS)
    assert store.max_offset(RETRY, 0) == 0
    assert timed.broker.parts.pops.revive.lost_count == 1
    assert len(timed.broker.parts.pops.revive.checkpoints) == 0


async def test_a_queue_without_messages_moves_no_offset(timed: Subject) -> None:
    """D33: rmq#3503."""
    await timed.ask(
        RequestCode.UPDATE_CONSUMER_OFFSET,
        UpdateConsumerOffsetHeader(consumer_group="G", topic="T", queue_id=3, commit_offset=7),
    )
    assert len(await pop(timed)) == 6
    assert timed.broker.parts.deliveries.consumer_offsets.get("T", "G", 3) == 7


async def test_what_nobody_wants_any_more_is_dropped(timed: Subject, clock: ManualClock) -> None:
    await pop(timed)
    timed.broker.parts.topics.delete("T", clock.now_ms())
    later(timed, clock, INVISIBLE_MS)
    assert timed.broker.parts.topics.get(RETRY) is None
    assert len(timed.broker.parts.pops.revive.checkpoints) == 0


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"max_msg_nums": 33}, ResponseCode.INVALID_PARAMETER),
        ({"max_msg_nums": 0}, ResponseCode.INVALID_PARAMETER),
        ({"invisible_time": 0}, ResponseCode.INVALID_PARAMETER),
        ({"topic": "nowhere"}, ResponseCode.TOPIC_NOT_EXIST),
        ({"queue_id": 4}, ResponseCode.INVALID_PARAMETER),
        ({"exp": "||"}, ResponseCode.SUBSCRIPTION_PARSE_FAILED),
        ({"exp_type": "SQL92", "exp": "a = 1"}, ResponseCode.SYSTEM_ERROR),
    ],
)
async def test_a_pop_that_is_wrong_says_so(
    timed: Subject, fields: dict[str, object], code: ResponseCode
) -> None:
    reply = await pop_reply(timed, **fields)
    assert reply.code == code, reply.remark


async def test_acks_that_are_wrong(timed: Subject) -> None:
    one, *_ = await pop(timed)
    unknown = dataclasses.replace(one, topic="nowhere")
    assert (await ack(timed, unknown)).code == ResponseCode.TOPIC_NOT_EXIST
    queue = dataclasses.replace(one, message=dataclasses.replace(one.message, queue_id=9))
    assert (await ack(timed, queue)).code == ResponseCode.MESSAGE_ILLEGAL
    offset = dataclasses.replace(one, message=dataclasses.replace(one.message, queue_offset=99))
    assert (await ack(timed, offset)).code == ResponseCode.NO_MESSAGE
    handle = dataclasses.replace(one, handle="1 2 x 4 0 b")
    assert (await ack(timed, handle)).code == ResponseCode.SYSTEM_ERROR
    over = dataclasses.replace(one, handle=one.handle.replace(" 0 ", " 0 ", 1))
    for _ in range(2):  # a client that heard no answer says it once more
        assert (await ack(timed, over)).code == ResponseCode.SUCCESS


async def test_a_pop_that_waited_gets_the_same_answer(tmp_path: Path) -> None:
    """What was found at once is answered without a header being made of fields."""
    async with broker_subject.running(tmp_path, clock=ManualClock(START_MS)) as subject:
        await fill(subject)
        at_once = await pop_reply(subject, group="one", queue_id=1)
        waiting = asyncio.create_task(pop_reply(subject, group="two", queue_id=3, poll_time=15_000))
        while not len(subject.parts.pops.held):
            await asyncio.sleep(0)
        await subject.send("T", b"new", queue_id=3)
        waited = await waiting
    for reply in (at_once, waited):
        assert (reply.code, reply.flag, reply.remark) == (ResponseCode.SUCCESS, 1, "FOUND")
    assert list(at_once.ext_fields or {}) == list(waited.ext_fields or {})
    assert at_once.ext_fields == {
        "popTime": str(START_MS),
        "invisibleTime": str(INVISIBLE_MS),
        "reviveQid": "1",
        "restNum": "0",
        "startOffsetInfo": "0 1 0",
        "msgOffsetInfo": "0 1 0,1,2",
    }
    assert (waited.ext_fields or {})["msgOffsetInfo"] == "0 3 0"


async def test_a_group_that_is_forbidden_a_topic_does_not_pop_it(timed: Subject) -> None:
    groups = timed.broker.parts.subscription_groups
    assert len(await pop(timed, max_msg_nums=1)) == 1
    groups.forbid("G", "T", START_MS, is_forbidden=True)
    reply = await pop_reply(timed)
    assert reply.code == ResponseCode.NO_PERMISSION
    assert reply.remark == "the consumer group[G] is forbidden for topic[T]"
    assert len(await pop(timed, group="other")) == 6
    groups.forbid("G", "T", START_MS, is_forbidden=False)
    assert len(await pop(timed)) == 5


async def test_retry_topics_of_either_kind(tmp_path: Path, clock: ManualClock) -> None:
    """What waits from before ``enableRetryTopicV2`` is popped as well, unless that is off."""
    async with broker_subject.running(tmp_path, clock=clock) as subject:
        await fill(subject, 2)
        await pop(subject, max_msg_nums=1, queue_id=0)
        later(subject, clock, INVISIBLE_MS)
        assert subject.parts.topics.get(RETRY) is not None
    v2 = {"enable_retry_topic_v2": True, "pop_from_retry_probability": 0}
    async with broker_subject.running(tmp_path, clock=clock, **v2) as subject:
        (one,) = await pop(subject, max_msg_nums=1, queue_id=1)
        later(subject, clock, INVISIBLE_MS)
        again = await pop(subject)
        assert {one.handle.split(" ")[4]: one.body for one in again} == {"1": b"0", "2": b"1"}
        assert subject.parts.topics.get("%RETRY%G+T") is not None
        later(subject, clock, INVISIBLE_MS)
    only = {**v2, "retrieve_message_from_pop_retry_topic_v1": False}
    async with broker_subject.running(tmp_path, clock=clock, **only) as subject:
        (one,) = await pop(subject)
        assert (one.body, one.message.reconsume_times) == (b"1", 2)


async def test_light_queues(tmp_path: Path, clock: ManualClock) -> None:
    """Records say another place than the one that they have in a light queue."""
    topic = "%LMQ%device"
    on = {"enable_lmq": True, "enable_multi_dispatch": True}
    async with broker_subject.running(tmp_path, clock=clock, store=on) as subject:
        for number in range(6):
            marks = {"TAGS": "ab"[number % 2], "INNER_MULTI_DISPATCH": f"%LMQ%x,{topic}"}
            await subject.send("T", b"other", queue_id=1)
            await subject.send("T", b"%d" % number, queue_id=1, properties=marks)
        reply = await pop_reply(subject, topic, exp="b")
        fields = reply.ext_fields or {}
        assert (fields["startOffsetInfo"], fields["msgOffsetInfo"]) == ("0 0 0", "0 0 1,3,5")
        for queue_offset in (1, 5):
            handle = f"0 {fields['popTime']} {INVISIBLE_MS} {fields['reviveQid']} 0 broker-a"
            header = AckMessageHeader(
                consumer_group="G",
                topic=topic,
                queue_id=0,
                extra_info=f"{handle} 0 {queue_offset}",
                offset=queue_offset,
            )
            reply = await subject.ask(RequestCode.ACK_MESSAGE, header)
            assert reply.code == ResponseCode.SUCCESS
        later(subject, clock, INVISIBLE_MS)
        (again,) = await pop(subject, topic)
        assert (again.body, again.message.topic, again.message.reconsume_times) == (b"3", topic, 1)
        assert subject.parts.pops.revive.lost_count == 0
        assert (await pop_reply(subject, topic, group="all")).ext_fields is not None


async def test_what_waits_for_a_group_that_pulled_is_not_popped(timed: Subject) -> None:
    """Java's brokers pop no more either; its members pull it beside."""
    timed.broker.parts.topics.for_group("%RETRY%G", 1, 6, START_MS)
    assert (await timed.send("%RETRY%G", b"pulled")).code == ResponseCode.SUCCESS
    for _ in range(4):
        assert b"pulled" not in [one.body for one in await pop(timed)]
    asked = NotificationHeader(consumer_group="G", topic="T", queue_id=-1, poll_time=0)
    assert (await timed.ask(RequestCode.NOTIFICATION, asked)).ext_fields == {
        "hasMsg": "false",
        "pollingFull": "false",
    }


async def test_a_light_queue_knows_the_places_of_its_messages(tmp_path: Path) -> None:
    """Units lead to records that do not say that they are there: as in Java, they are found."""
    topic = "%LMQ%device"
    on = {"enable_lmq": True, "enable_multi_dispatch": True}
    async with broker_subject.running(tmp_path, store=on) as subject:
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


async def test_there_is_nothing_to_roll_back(timed: Subject) -> None:
    assert (await timed.ask(RequestCode.POP_ROLLBACK)).code == ResponseCode.SUCCESS


# --- in order ---------------------------------------------------------------------


async def test_in_order_the_next_come_when_those_before_are_acknowledged(
    timed: Subject, clock: ManualClock
) -> None:
    taken = await pop(timed, order=True, queue_id=0, max_msg_nums=2)
    assert [one.body for one in taken] == [b"0", b"2"]
    assert await pop(timed, order=True, queue_id=0) == []
    await ack(timed, taken[1])
    assert await pop(timed, order=True, queue_id=0) == []
    await ack(timed, taken[0])
    assert [one.body for one in await pop(timed, order=True, queue_id=0)] == [b"4"]
    assert timed.broker.parts.topics.get(RETRY) is None


async def test_in_order_the_same_come_again_and_count(timed: Subject, clock: ManualClock) -> None:
    taken = await pop(timed, order=True, queue_id=0, max_msg_nums=2)
    await ack(timed, taken[0])
    later(timed, clock, INVISIBLE_MS - 1)
    assert await pop(timed, order=True, queue_id=0) == []
    later(timed, clock, 1)
    reply = await pop_reply(timed, order=True, queue_id=0, max_msg_nums=2)
    assert (reply.ext_fields or {})["orderCountInfo"] == "0 qo0%1 1;0 0 0"
    assert [one.body for one in broker_subject.messages_in(reply.body)] == [b"2", b"4"]
    later(timed, clock, INVISIBLE_MS)
    reply = await pop_reply(timed, order=True, queue_id=0, max_msg_nums=2)
    assert (reply.ext_fields or {})["orderCountInfo"] == "0 qo0%1 2;0 qo0%2 1;0 0 1"


async def test_in_order_who_asks_again_with_its_attempt_gets_the_same(timed: Subject) -> None:
    first = await pop(timed, order=True, queue_id=0, attempt_id="one")
    again = await pop(timed, order=True, queue_id=0, attempt_id="one")
    assert [one.body for one in first] == [one.body for one in again] == [b"0", b"2", b"4"]
    assert await pop(timed, order=True, queue_id=0, attempt_id="two") == []


async def test_in_order_a_time_is_changed(timed: Subject, clock: ManualClock) -> None:
    (one,) = await pop(timed, order=True, queue_id=0, max_msg_nums=1)
    reply, _ = await change(timed, one, 2_000)
    assert reply.code == ResponseCode.SUCCESS
    later(timed, clock, 1_999)
    assert await pop(timed, order=True, queue_id=0) == []
    later(timed, clock, 1)
    assert [each.body for each in await pop(timed, order=True, queue_id=0)] == [b"0", b"2", b"4"]


async def test_in_order_one_that_waits_is_answered_when_the_block_is_free(
    timed: Subject, clock: ManualClock
) -> None:
    taken = await pop(timed, order=True, queue_id=0, max_msg_nums=1)
    for by_ack in (True, False):
        waiting = asyncio.create_task(pop(timed, order=True, max_msg_nums=1, queue_id=0,
                                          poll_time=600_000))  # fmt: skip
        while not len(timed.broker.parts.pops.held):
            await asyncio.sleep(0)
        if by_ack:
            await ack(timed, taken[0])
        else:
            later(timed, clock, INVISIBLE_MS)
        assert [one.body for one in await waiting] == [b"2"]


async def test_in_order_what_is_held_survives_a_restart(tmp_path: Path, clock: ManualClock) -> None:
    async with broker_subject.running(tmp_path, clock=clock) as subject:
        await fill(subject)
        taken = await pop(subject, order=True, queue_id=0, max_msg_nums=2)
        await ack(subject, taken[1])
    table = json.loads((tmp_path / "config/consumerOrderInfo.json").read_text())
    assert table["table"]["T@G"]["0"]["o"] == [0, 1]
    async with broker_subject.running(tmp_path, clock=clock) as subject:
        assert await pop(subject, order=True, queue_id=0) == []
        await ack(subject, taken[0])
        assert [one.body for one in await pop(subject, order=True, queue_id=0)] == [b"4"]


def test_long_retry_topics_are_stored(tmp_path: Path) -> None:
    """``%RETRY%group_topic`` may take more than the 127 bytes of a V1 record."""
    topic, group = "t" * 100, "g" * 100

    async def run() -> None:
        clock = ManualClock(START_MS)
        async with broker_subject.running(tmp_path, clock=clock) as subject:
            await subject.send(topic, b"body")
            assert len(await pop(subject, topic, group)) == 1
            later(subject, clock, INVISIBLE_MS)
            (again,) = await pop(subject, topic, group)
            assert (again.body, again.message.topic) == (b"body", topic)
            data = subject.broker.store.get(f"%RETRY%{group}_{topic}", 0, 0).data
            assert record.decode(data).version == 2

    asyncio.run(run())


async def test_queues_that_groups_hold_in_order_are_bounded(
    timed: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "ORDERED_QUEUES", limits.ORDERED_QUEUES.at(1))
    assert len(await pop(timed, order=True, queue_id=0, max_msg_nums=1)) == 1
    reply = await pop_reply(timed, group="other", order=True, queue_id=0, max_msg_nums=1)
    assert reply.code == ResponseCode.SYSTEM_ERROR
    assert "ordered_queues" in (reply.remark or "")
    assert timed.broker.parts.pops.orders.table.count == 1
    timed.broker.parts.pops.orders.table.delete(group="G")
    reply = await pop_reply(timed, group="other", order=True, queue_id=0, max_msg_nums=1)
    assert reply.code == ResponseCode.SUCCESS


async def test_retry_topics_of_groups_that_pop_are_forgotten_when_there_are_many(
    timed: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broker_pop, "RETRIED_MAX", 3)
    for number in range(10):
        await pop(timed, group=f"G{number}")
    assert list(timed.broker.parts.pops._retried.values()) == [
        ("T", f"G{one}") for one in (7, 8, 9)
    ]
