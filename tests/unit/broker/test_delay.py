"""Delayed messages on a real store: delivery times, destinations, and recovery from crashes."""

import contextlib
import json
import logging
import os
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import golden
import store_fixture
from reput.broker import delay
from reput.broker.delay import DelaySchedule
from reput.clock import ManualClock
from reput.errors import WriteFailed
from reput.format import message as record, names, properties as props
from reput.format.message import StoredMessage
from reput.store.files.disk import Disk
from reput.store.message_store import MessageStore
from reput.store.tables.offsets import DelayOffsetTable
from reput.store.writing.incoming import IncomingMessage, PutResult, PutStatus
from store_fixture import START_MS, RoomyDisk, Stores
from store_subject import Delivering

LEVELS = "1s 5s 10s"


class Subject(Delivering):
    """A store with a schedule, and its clock."""

    def __init__(self, stores: Stores, **settings: Any) -> None:
        super().__init__(stores, **{"message_delay_level": LEVELS, **settings})

    def take(self, store: MessageStore) -> None:
        super().take(store)
        self.table = DelayOffsetTable.load(self.store.root, Disk())
        self.schedule = DelaySchedule(self.store, self.table)
        self.schedule.load()

    def put(self, body: bytes, level: int, topic: str = "T", queue_id: int = 2, **more: Any) -> int:
        """Put a delayed message; return its queue offset in the schedule topic."""
        properties = {"TAGS": "a", "DELAY": str(level), **more.pop("properties", {})}
        message = IncomingMessage(topic, body, queue_id, props.encode(properties), **more)
        return self.store_message(message).queue_offset

    def run(self) -> int:
        """Do all steps that have work; return how many."""
        count = 0
        while self.schedule.step(self.clock.now_ms()):
            count += 1
        self.store.step()
        return count

    def save(self) -> None:
        self.table.save(self.clock.now_ms())

    def stop(self) -> None:
        """Stop as a broker does."""
        self.schedule.close()
        self.save()
        self.store.close()


@pytest.fixture
def subject(stores: Stores) -> Subject:
    return Subject(stores)


def saved(store: MessageStore) -> dict[str, int]:
    """Return the contents of delayOffset.json."""
    text = (Path(store.root) / "config" / "delayOffset.json").read_text()
    table: dict[str, int] = json.loads(text)["offsetTable"]
    return table


# --- delivery ------------------------------------------------------------------------


def test_a_step_is_bounded_and_levels_take_turns(
    subject: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delay, "MESSAGES_PER_STEP", 32)
    count = 5 * 32 + 1
    for number in range(count):
        subject.put(b"%d" % number, 1)
        subject.put(b"%d" % number, 2, queue_id=1)
    subject.clock.advance(5000)
    for done in ((32, 0), (32, 32), (64, 32)):
        assert subject.schedule.step(subject.clock.now_ms())
        subject.store.step()
        assert (len(subject.bodies()), len(subject.bodies("T", 1))) == done
    assert subject.run() == 8
    assert subject.bodies() == [b"%d" % number for number in range(count)]
    assert subject.bodies("T", 1) == [b"%d" % number for number in range(count)]
    assert subject.schedule.progress() == {1: (count, count), 2: (count, count)}


def test_large_messages_make_a_step_shorter(
    subject: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delay, "BYTES_PER_STEP", 2_500)
    for size in (1_000, 1_000, 1_000, 5_000, 1_000):
        subject.put(b"x" * size, 1)
    subject.clock.advance(1000)
    for done in (2, 3, 4, 5):
        assert subject.schedule.step(subject.clock.now_ms())
        subject.store.step()
        assert len(subject.bodies()) == done
    assert subject.run() == 0


def test_the_time_of_the_next_step(subject: Subject) -> None:
    def next_due_ms() -> int | None:
        return subject.schedule.next_due_ms(subject.clock.now_ms())

    assert next_due_ms() is None
    subject.put(b"one", 3)
    assert next_due_ms() == START_MS + 10_000
    subject.put(b"two", 2)
    assert next_due_ms() == START_MS + 5_000
    subject.clock.advance(6_000)
    assert next_due_ms() == START_MS + 6_000
    subject.run()
    assert next_due_ms() == START_MS + 10_000
    subject.clock.advance(4_000)
    subject.run()
    assert next_due_ms() is None


def test_half_messages_and_messages_without_a_topic_are_dropped_and_logged(
    subject: Subject, caplog: pytest.LogCaptureFixture
) -> None:
    subject.put(b"half", 1, topic=names.HALF_TOPIC)
    for lost in ({}, {"REAL_TOPIC": "T"}, {"REAL_TOPIC": "T", "REAL_QID": "x"}):
        properties = props.encode({"DELAY": "1", **lost})
        message = IncomingMessage(
            names.SCHEDULE_TOPIC, b"lost", property_bytes=properties, is_due=True
        )
        assert subject.store.put(message).status is PutStatus.PUT_OK
    subject.put(b"good", 1)
    subject.clock.advance(1000)
    with caplog.at_level(logging.ERROR):
        subject.run()
    assert subject.bodies() == [b"good"]
    assert subject.bodies(names.HALF_TOPIC, 2) == []
    assert len([line for line in caplog.messages if "is dropped" in line]) == 4
    assert names.HALF_TOPIC in caplog.text


def test_expired_messages_are_reported_lost(
    subject: Subject, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(3):
        subject.put(b"%d" % number, 1)
    while subject.store.max_physical_offset < 3 * 64 * 1024:
        subject.put(b"x" * 16_000, 0)
    subject.put(b"last", 1, queue_id=0)
    os.utime(Path(subject.store.root) / "commitlog" / ("0" * 20), (1_000_000, 1_000_000))
    subject.store.retention.expire_now()
    for _ in range(60):
        subject.store.step()
        subject.clock.advance(1_000)
    assert subject.store.min_physical_offset > 0
    with caplog.at_level(logging.ERROR):
        subject.run()
    assert subject.bodies("T", 0) == [b"last"]
    assert "delay level 1 is at 0, outside of its queue, 3 to 4; it continues at 3" in caplog.text


# --- the store refuses ----------------------------------------------------------------


def test_messages_delivered_before_a_refusal_are_not_delivered_twice(
    subject: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(5):
        subject.put(b"%d" % number, 1)
    subject.clock.advance(1000)
    put = subject.store.put
    refusals = [None, None, PutResult(PutStatus.OS_PAGE_CACHE_BUSY, reason="busy")]

    def refuse_third(message: IncomingMessage, now_ms: int | None = None) -> PutResult:
        return (refusals.pop(0) if refusals else None) or put(message, now_ms)

    monkeypatch.setattr(subject.store, "put", refuse_third)
    monkeypatch.setattr(subject.store, "put_encoded", lambda *_: (0, memoryview(b"")))
    monkeypatch.setattr(subject.store.copier, "put", lambda *_, **__: (0, 0))
    subject.run()
    assert subject.bodies() == [b"0", b"1"]
    subject.clock.advance(delay.RETRY_MS)
    subject.run()
    assert subject.bodies() == [b"%d" % number for number in range(5)]


def test_a_clock_set_back_does_not_delay_a_refused_message(
    subject: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    subject.put(b"one", 1)
    subject.clock.advance(1000)
    monkeypatch.setattr(subject.store.putter, "refusal", "no room")
    subject.run()
    monkeypatch.setattr(subject.store.putter, "refusal", "")
    subject.clock.set(START_MS + 999)
    assert subject.run() == 0  # not due
    subject.clock.set(START_MS - 3_600_000)
    assert subject.run() == 1


# --- saved progress ---------------------------------------------------------------------


def test_a_clean_stop_delivers_nothing_twice(
    subject: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delay, "MESSAGES_PER_STEP", 32)
    for number in range(40):
        subject.put(b"%d" % number, 1)
    subject.clock.advance(1000)
    subject.schedule.step(subject.clock.now_ms())  # 32 of them
    subject.stop()
    assert saved(subject.store) == {"1": 32}
    subject.open()
    subject.run()
    assert subject.bodies() == [b"%d" % number for number in range(40)]


def test_a_pool_delivers_nothing_twice(stores: Stores) -> None:
    subject = Subject(stores, transient_store_pool_enable=True, transient_store_pool_size=2)
    subject.put(b"one", 1)
    subject.store.flusher.commit()
    subject.store.step()
    subject.clock.advance(1000)
    assert subject.run() == 1
    subject.stop()
    assert saved(subject.store) == {"1": 1}
    subject.open()
    subject.run()
    assert subject.bodies() == [b"one"]


def test_a_position_in_a_missing_queue_skips_no_message(subject: Subject) -> None:
    """Java keeps it, then moves it to the queue's end: new messages are never delivered."""
    subject.put(b"x", 0)
    subject.table.put(1, 7)
    subject.save()
    subject.store.close()
    subject.open()
    subject.put(b"one", 1)
    subject.clock.advance(1000)
    subject.run()
    assert subject.bodies()[1:] == [b"one"]
    subject.stop()


def test_closing_a_failed_store_keeps_the_saved_progress(
    subject: Subject, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    subject.put(b"one", 1)
    subject.clock.advance(1000)
    subject.run()

    def fail() -> None:
        raise WriteFailed("log", "sync: I/O error")

    monkeypatch.setattr(subject.store, "sync", fail)
    with caplog.at_level(logging.ERROR):
        subject.schedule.close()
    assert subject.table.all() == {}
    assert "may be delivered again" in caplog.text


# --- stores of Java ---------------------------------------------------------------------


@pytest.mark.parametrize("version", golden.VERSIONS)
def test_deliveries_are_equal_to_those_of_java(version: str, tmp_path: Path) -> None:
    """Without the progress of its store, each message is delivered a second time, unchanged."""
    root = golden.copy_store(version, "clean", tmp_path)
    for path in (root / "config").glob("delayOffset.json*"):
        path.unlink()
    known = golden.messages(version, "clean")
    with continued(root, version) as subject:
        before = {
            (message["topic"], message["queueId"]): subject.store.max_offset(
                message["topic"], message["queueId"]
            )
            for message in known
        }
        subject.run()
        delivered_here: dict[str, list[StoredMessage]] = defaultdict(list)
        for (topic, queue_id), queue_offset in before.items():
            for data in subject.store.get(topic, queue_id, queue_offset, 1000).records:
                stored = record.decode(bytes(data))
                delivered_here[stored.properties["UNIQ_KEY"]].append(stored)
    delivered = [
        message
        for message in known
        if "REAL_TOPIC" in message["properties"]
        and message["topic"] == message["properties"]["REAL_TOPIC"]
        and message["topic"] != names.HALF_TOPIC
        and message["properties"].get("DELAY", "0") not in ("0", "")
    ]
    assert len(delivered) > 20
    for java in delivered:
        assert any(is_same(java, ours) for ours in delivered_here[java["uniqKey"]]), java


@pytest.mark.parametrize("version", golden.VERSIONS)
def test_delivery_continues_where_java_stopped(version: str, tmp_path: Path) -> None:
    root = golden.copy_store(version, "clean", tmp_path)
    known = golden.messages(version, "clean")
    waiting = Counter(
        message["queueId"] + 1 for message in known if message["topic"] == names.SCHEDULE_TOPIC
    )
    with continued(root, version) as subject:
        done = subject.table.all()
        end = subject.store.max_physical_offset
        subject.run()
        assert subject.schedule.progress() == {
            level: (count, count) for level, count in waiting.items()
        }
        new = [stored for stored in all_messages(subject.store) if stored.physical_offset >= end]
        assert len(new) == sum(count - done.get(level, 0) for level, count in waiting.items())


@contextlib.contextmanager
def continued(root: Path, version: str) -> Iterator[Subject]:
    """Open a store of Java at a time when all pending messages are due."""
    settings = golden.manifest(version, "clean")["config"]
    config = store_fixture.config(
        root,
        mapped_file_size_commit_log=int(settings["mappedFileSizeCommitLog"]),
        mapped_file_size_consume_queue=int(settings["mappedFileSizeConsumeQueue"]),
        max_hash_slot_num=int(settings["maxHashSlotNum"]),
        max_index_num=int(settings["maxIndexNum"]),
        max_message_size=int(settings["maxMessageSize"]),
    )
    last_ms = max(message["storeTimestamp"] for message in golden.messages(version, "clean"))
    subject = Subject.__new__(Subject)
    subject.clock = ManualClock(last_ms + 3 * 3_600_000)
    with MessageStore.open(config=config, clock=subject.clock, disk=RoomyDisk()) as store:
        subject.take(store)
        yield subject


def all_messages(store: MessageStore) -> list[StoredMessage]:
    stored = []
    for queue in store.queues:
        queue_offset = queue.min_offset
        while records := store.get(queue.topic, queue.queue_id, queue_offset, 1000).records:
            stored += [record.decode(bytes(data)) for data in records]
            queue_offset = stored[-1].queue_offset + 1
    return stored


def is_same(java: dict[str, Any], ours: StoredMessage) -> bool:
    """Return whether a message is equal to Java's, except for its place and times."""
    return (
        ours.topic == java["topic"]
        and ours.queue_id == java["queueId"]
        and ours.properties == java["properties"]
        and ours.sys_flag == java["sysFlag"]
        and ours.flag == java["flag"]
        and ours.reconsume_times == java["reconsumeTimes"]
        and ours.born_timestamp == java["bornTimestamp"]
        and str(ours.born_host) == java["bornHost"]
        and str(ours.store_host) == java["storeHost"]
        and ours.body_crc == java["bodyCRC"]
        and ours.store_size == java["storeSize"]
        and ours.prepared_transaction_offset == java["preparedTransactionOffset"]
    )
