"""The clock of the machine jumps, either way, by milliseconds, hours or years.

No request is refused and no message is lost. Intervals follow the monotonic clock (clients, locks,
background work). Work that follows the time of day is tested below: log files do not expire by a
jump, delayed messages wait no longer than their delay, tables are saved.
"""

import itertools
import os
from pathlib import Path

import pytest

import world
from reput.broker.counters.stats import Stats
from reput.clock import ManualClock
from reput.format import message as record
from reput.store.files.file_ages import FileAges
from reput.store.message_store import MessageStore
from reput.store.verify import FindingKind
from reput.store.writing.incoming import IncomingMessage, PutStatus
from store_fixture import START_MS, Stores
from world import Subject

pytestmark = pytest.mark.crash

SECOND, HOUR = 1_000, 3_600_000
DAY = 24 * HOUR
YEAR = 365 * DAY
RESERVED_MS = 72 * HOUR
"""fileReservedTime"""
JUMPS = [sign * size for size in (5, 9 * SECOND, HOUR, DAY, YEAR, 10 * YEAR) for sign in (1, -1)]
ANY_HOUR = {"delete_when": ";".join(f"{hour:02d}" for hour in range(24))}


# --- ages of log files ----------------------------------------------------------------------------


def filled(stores: Stores, clock: ManualClock) -> MessageStore:
    """Return a store of six log files, written an hour apart; the last one now."""
    store = stores.open(clock=clock, **ANY_HOUR)
    while len(store.log.files.files) < 6:
        assert store.put(IncomingMessage("TopicA", bytes(1000))).status is PutStatus.PUT_OK
    while store.step():
        pass
    set_ages(store, clock.now_ms())
    return store


def set_ages(store: MessageStore, now_ms: int) -> None:
    for hours, file in enumerate(reversed(store.log.files.files)):
        modified_ns = (now_ms - hours * HOUR) * 1_000_000
        os.utime(file.path, ns=(modified_ns, modified_ns))


def run(store: MessageStore, clock: ManualClock, duration_ms: int = 3 * 60 * SECOND) -> int:
    """Advance the clock; return the number of remaining log files."""
    for _ in range(duration_ms // (20 * SECOND)):
        clock.advance(20 * SECOND)
        while store.step():
            clock.advance(1)
    return len(store.log.files.files)


@pytest.mark.parametrize("jump_ms", JUMPS)
@pytest.mark.sampled(4)
def test_no_log_file_expires_by_a_jump(stores: Stores, jump_ms: int) -> None:
    stores.allow(FindingKind.CLOCK_BACK)
    clock = ManualClock(START_MS)
    store = filled(stores, clock)
    assert run(store, clock) == 6
    clock.set(clock.now_ms() + jump_ms)
    assert run(store, clock) == 6
    store.retention.expire_now()
    assert run(store, clock) == 6
    clock.set(clock.now_ms() - jump_ms)
    assert run(store, clock) == 6
    assert store.retention.ages.warning == ""


@pytest.mark.parametrize("jump_ms", [HOUR, YEAR, 10 * YEAR])
def test_files_expire_in_time_although_the_clock_was_set_ahead(
    stores: Stores, jump_ms: int
) -> None:
    clock = ManualClock(START_MS)
    store = filled(stores, clock)
    run(store, clock)
    clock.set(clock.now_ms() + jump_ms)
    run(store, clock)
    assert "do not count" in store.retention.ages.warning
    clock.advance(RESERVED_MS - 5 * HOUR - HOUR)
    assert run(store, clock) == 6
    clock.advance(HOUR)
    assert run(store, clock) == 5, "the first one was five hours old"
    clock.advance(5 * HOUR)
    assert run(store, clock) == 1


def test_a_file_from_the_future_does_not_keep_other_files(stores: Stores) -> None:
    """It was written while the clock was wrong; the files after it were written later."""
    clock = ManualClock(START_MS)
    store = filled(stores, clock)
    future_ns = (clock.now_ms() + YEAR) * 1_000_000
    os.utime(store.log.files.files[0].path, ns=(future_ns, future_ns))
    clock.advance(RESERVED_MS - 4 * HOUR - HOUR)
    assert run(store, clock) == 6
    clock.advance(HOUR)
    assert run(store, clock) == 4


@pytest.mark.parametrize("ahead_ms", [4 * DAY, YEAR, 10 * YEAR])
def test_a_store_opened_with_a_clock_far_ahead_keeps_its_files(
    stores: Stores, ahead_ms: int
) -> None:
    clock = ManualClock(START_MS)
    filled(stores, clock).close()
    set_all = sorted((stores.root() / "commitlog").iterdir())
    for hours, path in enumerate(reversed(set_all)):
        modified_ns = (clock.now_ms() - hours * HOUR) * 1_000_000
        os.utime(path, ns=(modified_ns, modified_ns))
    clock.advance(ahead_ms)
    store = stores.open(clock=clock, **ANY_HOUR)
    assert run(store, clock) == 6
    assert "do not count" in store.retention.ages.warning
    clock.advance(RESERVED_MS)
    assert run(store, clock) < 6


def test_jumps_add_up_and_cancel_out() -> None:
    ages = FileAges()
    ages.note_time(1_000 * HOUR, 0)
    written_ms = 1_000 * HOUR
    ages.note_time(1_010 * HOUR, 0)
    ages.note_time(1_030 * HOUR, 0)
    assert ages.age_ms([written_ms], 1_030 * HOUR) == 0
    assert ages.age_ms([1_012 * HOUR], 1_030 * HOUR) == -2 * HOUR
    ages.note_time(1_005 * HOUR, 0)
    assert ages.age_ms([written_ms], 1_005 * HOUR) == 0
    ages.note_time(1_000 * HOUR, 0)
    assert ages.warning == ""
    assert ages.age_ms([written_ms], 1_001 * HOUR) == HOUR


def test_a_small_correction_of_the_clock_counts() -> None:
    ages = FileAges()
    for minute in range(1_000):
        ages.note_time(minute * 61 * SECOND, minute * 60 * SECOND)
    assert ages.warning == ""


# --- messages -------------------------------------------------------------------------------------


def numbers(store: MessageStore) -> list[int]:
    bodies = []
    position = 0
    while position < store.max_offset("TopicA", 0):
        result = store.get("TopicA", 0, position)
        bodies += [int(record.decode(data).body) for data in result.records]
        position = result.next_offset
    return bodies


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
@pytest.mark.parametrize("is_killed", [False, True])
@pytest.mark.sampled(2)
def test_puts_dispatch_and_recovery_continue_with_any_clock(
    stores: Stores, flush: str, is_killed: bool
) -> None:
    stores.allow(FindingKind.CLOCK_BACK)
    clock = ManualClock(START_MS)
    count = 0
    for jump_ms in JUMPS:
        store = stores.open(clock=clock, flush_disk_type=flush)
        for _ in range(8):
            body = b"%d" % count
            keys = f"KEYS\x01k{count}\x02".encode()
            assert store.put(IncomingMessage("TopicA", body, 0, keys)).status is PutStatus.PUT_OK
            count += 1
            clock.advance(500)
            store.step()
        clock.set(clock.now_ms() + jump_ms)
        assert store.put(IncomingMessage("TopicA", b"%d" % count)).status is PutStatus.PUT_OK
        count += 1
        clock.advance(12 * SECOND)
        store.step()
        assert store.log.flushed_offset == store.log.written_offset, "intervals are monotonic"
        assert numbers(store) == list(range(count))
        store.abandon() if is_killed else store.close()
    store = stores.open(clock=clock)
    assert numbers(store) == list(range(count))


@pytest.mark.parametrize("jump_ms", JUMPS)
def test_offsets_by_time_are_within_the_queue(stores: Stores, jump_ms: int) -> None:
    """Store times that go back do not move a search out of the queue, or make it hang."""
    stores.allow(FindingKind.CLOCK_BACK)
    clock = ManualClock(START_MS)
    store = stores.open(clock=clock)
    times = []
    for number in range(60):
        if number == 30:
            clock.set(clock.now_ms() + jump_ms)
        times.append(clock.now_ms())
        store.put(IncomingMessage("TopicA", b"%d" % number))
        clock.advance(SECOND)
    while store.step():
        pass
    for time_ms in (0, min(times) - 1, *times, max(times) + 1, 1 << 62):
        assert 0 <= store.offset_by_time("TopicA", 0, time_ms) <= 60
    if jump_ms > 0:
        queue_offsets = [store.offset_by_time("TopicA", 0, time_ms) for time_ms in times]
        assert queue_offsets == list(range(60))


# --- a broker -------------------------------------------------------------------------------------


async def sent_delayed(subject: Subject) -> None:
    reply = await subject.send("T", b"late", properties={"DELAY": "1"})
    assert reply.code == 0


async def delivered(subject: Subject, now_ms: int) -> list[bytes]:
    broker = subject.broker
    for _ in range(20):
        broker.parts.delayed.step(now_ms)
        broker.store.step()
    reply = await subject.pull("T", 0)
    return [message.body for message in world.messages_in(reply.body)] if reply.body else []


@pytest.mark.parametrize("jump_ms", [-10 * YEAR, -YEAR, -HOUR, YEAR])
async def test_a_delayed_message_waits_no_longer_than_its_delay(
    tmp_path: Path, jump_ms: int
) -> None:
    clock = ManualClock(START_MS)
    async with world.broker(tmp_path, clock=clock) as subject:
        await sent_delayed(subject)
        clock.set(clock.now_ms() + jump_ms)
        clock.advance(SECOND)
        assert await delivered(subject, clock.now_ms()) == [b"late"]


@pytest.mark.parametrize("jump_ms", JUMPS)
@pytest.mark.sampled(3)
async def test_a_broker_keeps_its_clients_locks_tables_and_health(
    tmp_path: Path, jump_ms: int
) -> None:
    clock = ManualClock(START_MS)
    async with world.broker(tmp_path, clock=clock) as subject:
        broker = subject.broker
        await subject.send("T", b"x")
        body = {
            "clientID": "client",
            "consumerDataSet": [],
            "producerDataSet": [{"groupName": "producers"}],
        }
        assert (await subject.send_body(34, body)).code == 0
        queue = {"topic": "T", "brokerName": broker.settings.broker.broker_name, "queueId": 0}
        lock = {"consumerGroup": "g", "clientId": "client", "mqSet": [queue]}
        assert (await subject.send_body(41, lock)).code == 0
        clock.set(clock.now_ms() + jump_ms)
        broker.parts.members.expire()
        assert (await subject.send("T", b"y")).code == 0
        reply = await subject.send_body(41, lock | {"clientId": "another"})
        assert b'"queueId"' not in reply.body, "the lock is held still"
        table = broker.parts.topics.table
        table.touch(clock.now_ms())
        assert table.is_due(clock.now_ms())
        clock.advance(SECOND)
        broker.parts.deliveries.stats.step(clock.now_ms())
        health = world.health_of(broker)
        assert health.problems == ()
    async with world.broker(tmp_path, clock=clock) as subject:
        assert len(world.messages_in((await subject.pull("T")).body)) == 2


def test_statistics_take_one_sample_for_a_jump() -> None:
    """There is no sample for each of the minutes that the clock skipped."""
    stats = Stats("cluster", dict, lambda: 0)
    clock = ManualClock(START_MS)
    for jump_ms in itertools.islice(itertools.cycle(JUMPS), 100):
        clock.set(clock.now_ms() + jump_ms)
        stats.step(clock.now_ms())
    assert all(len(window.times) <= 101 for window in stats._windows)
