"""Timed messages on a real store: delivery times, and properties of delivered messages."""

import itertools
import logging
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

import golden
import store_fixture
from reput.broker.timer import runs as timer_runs, timers
from reput.broker.timer.runs import TimerRuns
from reput.broker.timer.timers import Timers
from reput.clock import ManualClock
from reput.errors import CorruptRecord, RequestRefused
from reput.format import names, properties as props, timer_check
from reput.format.kernels.rows import word_count
from reput.format.message import Host
from reput.format.timer_check import TimerCheck
from reput.store.config import BrokerRole
from reput.store.files.disk import Disk
from reput.store.kernels import copy_args as words
from reput.store.message_store import MessageStore
from reput.store.reader import StoreReader
from reput.store.tables.timer_table import TimerProgress, TimerTable
from reput.store.verify import documents
from reput.store.writing.copying import Places
from reput.store.writing.incoming import IncomingMessage, PutResult, PutStatus
from store_fixture import START_MS, RoomyDisk, Stores
from store_subject import Delivering

HOUR_MS = 3_600_000


class Subject(Delivering):
    """A store with a timer, and its clock."""

    def take(self, store: MessageStore) -> None:
        super().take(store)
        self.table = TimerTable.load(self.store.root, Disk())
        self.timers = Timers(self.store, self.table)
        self.timers.load()

    @property
    def now_ms(self) -> int:
        return self.clock.now_ms()

    def put(self, body: bytes, topic: str = "T", queue_id: int = 2, **properties: str) -> bool:
        """Put a message as a send does; return whether it waits."""
        waits = self.timers.park(topic, queue_id, properties, self.now_ms)
        place = (names.TIMER_TOPIC, 0) if waits else (topic, queue_id)
        message = IncomingMessage(place[0], body, place[1], props.encode(properties))
        self.store_message(message)
        return waits

    def put_at(self, body: bytes, deliver_ms: int, **properties: str) -> bool:
        return self.put(
            body, TIMER_DELIVER_MS=str(deliver_ms), UNIQ_KEY=body.decode(), **properties
        )

    def recall(self, key: str, deliver_ms: int) -> None:
        """Recall a message, as code 370 does with the handle of its send."""
        out_ms = -(-deliver_ms // 1000) * 1000 - 1000
        self.put(b"0", queue_id=0, TIMER_DELIVER_MS=str(out_ms + 1), UNIQ_KEY=key,
                 TIMER_DEL_UNIQKEY=key)  # fmt: skip

    def run(self) -> int:
        """Do all steps that have work; return how many."""
        count = 0
        while self.timers.step(self.now_ms):
            self.store.step()
            count += 1
        return count

    def stop(self) -> None:
        """Stop as a broker does."""
        self.timers.close(self.now_ms)
        self.table.save(self.now_ms)
        self.store.close()


@pytest.fixture
def subject(stores: Stores) -> Subject:
    return Subject(stores)


# --- parking -------------------------------------------------------------------------


@pytest.mark.parametrize("version", ["5.5.0"])
def test_delivery_times_are_those_of_java(version: str) -> None:
    """Java's stores have the requested time and the delivery time of each message."""
    precision_ms = 1000
    seen = set()
    for java in golden.messages(version, "v5"):
        properties = java["properties"]
        if java["topic"] != names.TIMER_TOPIC or "TIMER_DELIVER_MS" not in properties:
            continue
        deliver_ms = int(properties["TIMER_DELIVER_MS"])
        asked = {"TIMER_DELIVER_MS": properties["TIMER_DELIVER_MS"]}
        timer = Timers.__new__(Timers)
        timer.config = store_fixture.config("unused")
        timer._precision_ms, timer._runs = precision_ms, TimerRuns()
        assert timer.park(
            properties["REAL_TOPIC"], int(properties["REAL_QID"]), asked, deliver_ms - 9
        )
        for name in ("TIMER_OUT_MS", "REAL_TOPIC", "REAL_QID"):
            assert asked[name] == properties[name]
        seen.add(deliver_ms % precision_ms)
    assert len(seen) > 10


@pytest.mark.parametrize(("drawn", "accepted"), [(0.0, 6), (0.5, 8), (0.999, 10)])
def test_too_many_messages_of_one_time_are_refused(
    stores: Stores, monkeypatch: pytest.MonkeyPatch, drawn: float, accepted: int
) -> None:
    """Some messages beyond the limit are refused, and all beyond twice the limit."""
    monkeypatch.setattr("random.random", lambda: drawn)
    subject = Subject(stores, timer_congest_num_each_slot=5)
    for number in range(accepted):
        subject.put_at(b"%d" % number, START_MS + 5000)
        subject.run()
    with pytest.raises(RequestRefused, match="under flow control, max num limit is 5 or"):
        subject.put_at(b"one more", START_MS + 5000)
    assert subject.put_at(b"another time", START_MS + 9000)


# --- leaving -------------------------------------------------------------------------


def test_when_a_message_is_due_next(stores: Stores) -> None:
    subject = Subject(stores, timer_precision_ms=100)
    subject.put_at(b"one", START_MS + 250)
    subject.clock.advance(299)
    subject.run()
    assert subject.bodies() == []
    assert subject.timers.next_due_ms(subject.now_ms) == START_MS + 300
    subject.clock.advance(1)
    subject.run()
    assert subject.bodies() == [b"one"]


def test_delivered_messages_are_equal_to_those_of_java(subject: Subject) -> None:
    """Its properties are named as in Java's stores: the original ones and the timer's times."""
    subject.clock.advance(345)
    subject.put(b"body", "Topic", 3, TIMER_DELAY_SEC="1", TAGS="a", UNIQ_KEY="0A", WAIT="true")
    (waiting,) = subject.run_and_read() if False else subject.messages(names.TIMER_TOPIC, 0)
    subject.clock.advance(2000)
    subject.run()
    (delivered_message,) = subject.messages("Topic", 3)
    assert delivered_message.properties == {
        **waiting.properties,
        "TIMER_OUT_MS": str(START_MS + 1000),
        "TIMER_ENQUEUE_MS": str(START_MS),
        "TIMER_DEQUEUE_MS": str(START_MS + 2345),
    }
    assert delivered_message.properties["WAIT"] == "true"
    assert (delivered_message.born_timestamp, delivered_message.born_host) == (
        waiting.born_timestamp,
        waiting.born_host,
    )
    assert delivered_message.store_timestamp == START_MS + 2345
    delivered = [
        message
        for message in golden.messages("5.5.0", "v5")
        if message["topic"] == message["properties"].get("REAL_TOPIC")
        and "TIMER_OUT_MS" in message["properties"]
    ]
    assert delivered
    for java in delivered:
        assert {"REAL_QID", "TIMER_ENQUEUE_MS", "TIMER_DEQUEUE_MS"} <= java["properties"].keys()


@pytest.mark.parametrize("bytes_per_step", [1, 3000, 1 << 20])
def test_a_step_is_bounded(
    subject: Subject, monkeypatch: pytest.MonkeyPatch, bytes_per_step: int
) -> None:
    monkeypatch.setattr(timers, "MESSAGES_PER_STEP", 7)
    monkeypatch.setattr(timers, "BYTES_PER_STEP", bytes_per_step)
    for number in range(30):
        subject.put_at(b"%d" % number, START_MS + 1000)
    subject.clock.advance(1000)
    before = 0
    while subject.timers.step(subject.now_ms):
        subject.store.step()
        assert len(subject.bodies()) - before <= 7
        before = len(subject.bodies())
    assert subject.bodies() == [b"%d" % number for number in range(30)]


def test_long_topics_ipv6_hosts_and_checksums_go_through_the_codec(stores: Stores) -> None:
    subject = Subject(stores, enabled_append_prop_crc=True)
    topic = "%RETRY%" + "g" * 150
    subject.put(b"long", topic, 0, TIMER_DELAY_MS="10")
    properties = {"TIMER_DELAY_MS": "10"}
    subject.timers.park("T", 2, properties, subject.now_ms)
    message = IncomingMessage(names.TIMER_TOPIC, b"six", 0, props.encode(properties))
    message.born_host = Host(bytes(range(16)), 4711)
    assert subject.store.put(message).status is PutStatus.PUT_OK
    subject.store.step()
    subject.clock.advance(1000)
    subject.run()
    assert subject.bodies(topic, 0) == [b"long"]
    (six,) = subject.messages()
    assert (six.body, str(six.born_host)) == (b"six", str(message.born_host))


def test_a_message_without_a_time_or_a_destination_is_reported_lost(
    subject: Subject, caplog: pytest.LogCaptureFixture
) -> None:
    subject.put_at(b"good", START_MS + 1)
    lost: Sequence[dict[str, str]] = (
        {"KEYS": "k"},
        {"TIMER_OUT_MS": "soon", "REAL_TOPIC": "T", "REAL_QID": "2"},
        {"TIMER_OUT_MS": str(START_MS)},
        {"TIMER_OUT_MS": str(START_MS), "REAL_TOPIC": "T", "REAL_QID": "4294967296"},
        {"TIMER_OUT_MS": str(START_MS), "REAL_TOPIC": "a/b", "REAL_QID": "0"},
    )
    for properties in lost:
        message = IncomingMessage(names.TIMER_TOPIC, b"lost", 0, props.encode(properties))
        assert subject.store.put(message).status is PutStatus.PUT_OK
    subject.put_at(b"good too", START_MS + 1)
    subject.clock.advance(1000)
    with caplog.at_level(logging.ERROR):
        subject.run()
    assert subject.bodies() == [b"good", b"good too"]
    assert len(caplog.messages) == len(lost)
    assert len(subject.timers) == 0


def test_a_refused_message_is_retried_before_later_ones(
    subject: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(5):
        subject.put_at(b"%d" % number, START_MS + 1000)
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
    assert subject.timers.metrics.counts() == {"T": 3}
    assert subject.timers.may_hold("T")
    assert not subject.timers.may_hold("U")
    assert subject.timers.next_due_ms(subject.now_ms) == subject.now_ms + timers.RETRY_MS
    subject.clock.advance(timers.RETRY_MS)
    subject.run()
    assert subject.bodies() == [b"%d" % number for number in range(5)]
    assert subject.timers.metrics.counts() == {"T": 0}
    assert not subject.timers.may_hold("T")


# --- counts --------------------------------------------------------------------------


def read_nothing(places: Places) -> npt.NDArray[np.int64]:
    """Leave the properties of all messages to Python, as without kernels."""
    rows = np.zeros((len(places), word_count(words.TimerProperties)), np.int64)
    rows[:, words.TIMER.out_ms] = -1
    return rows


@pytest.fixture(params=["kernels", "Python"])
def counted(
    request: pytest.FixtureRequest, stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> Subject:
    """A timer whose messages are read by kernels, and one with Python only."""
    # A message is rolled if it waits for more than ten seconds.
    subject = Subject(stores, timer_roll_window_slot=10)
    if request.param == "Python":
        monkeypatch.setattr(subject.store.copier, "timer_properties", read_nothing)
        monkeypatch.setattr(subject.store.copier, "put", lambda *_, **__: (0, 0))
    return subject


def test_a_recall_before_other_messages_counts_like_one_after_them(counted: Subject) -> None:
    """The count was at least zero, and the kernel path counted recalls last."""
    counted.recall("a", START_MS + 5_000)
    counted.put_at(b"a", START_MS + 5_000)
    counted.put_at(b"b", START_MS + 5_000)
    counted.run()
    assert counted.timers.metrics.counts() == {"T": 1}
    counted.clock.advance(5_000)
    counted.run()
    assert counted.bodies() == [b"b"]
    assert counted.timers.metrics.counts() == {"T": 0}


def test_a_recall_is_subtracted_until_its_message_is_due(counted: Subject) -> None:
    """Two recalls of a message, and one of no message, used to change the count for ever."""
    counted.put_at(b"a", START_MS + 3_000)
    counted.put_at(b"b", START_MS + 8_000)
    counted.recall("a", START_MS + 3_000)
    counted.recall("a", START_MS + 3_000)
    counted.run()
    assert counted.timers.metrics.counts() == {"T": 1}
    counted.recall("none", START_MS + 3_000)
    counted.recall("nor this", START_MS + 3_000)
    counted.run()
    assert counted.timers.metrics.counts() == {"T": -1}  # as in Java
    counted.clock.advance(3_000)
    counted.run()
    assert counted.timers.metrics.counts() == {"T": 1}
    counted.clock.advance(5_000)
    counted.run()
    assert counted.bodies() == [b"b"]
    assert counted.timers.metrics.counts() == {"T": 0}


def test_a_rolled_recall_counts_once(counted: Subject) -> None:
    counted.put_at(b"a", START_MS + 25_000)
    counted.put_at(b"b", START_MS + 25_000)
    counted.recall("a", START_MS + 25_000)
    for _ in range(24):
        counted.run()
        assert counted.timers.metrics.counts() == {"T": 1}
        counted.clock.advance(1_000)
    counted.clock.advance(1_000)
    counted.run()
    assert counted.store.max_offset(names.TIMER_TOPIC, 0) > 5, "else the recall was not rolled"
    assert counted.bodies() == [b"b"]
    assert counted.timers.metrics.counts() == {"T": 0}


def test_a_recall_that_is_late_to_be_rolled_is_not_delivered(counted: Subject) -> None:
    counted.put(b"recall", TIMER_DELIVER_MS=str(START_MS + 25_000), UNIQ_KEY="own",
                TIMER_DEL_UNIQKEY="other")  # fmt: skip
    counted.run()
    assert len(counted.timers) == 1
    counted.clock.advance(30_000)
    counted.run()
    assert len(counted.timers) == 0
    assert counted.bodies() == []
    assert counted.timers.recalled_count == 0
    assert counted.timers.metrics.counts() == {"T": 0}


def test_a_message_without_destination_is_not_counted(counted: Subject) -> None:
    properties = props.encode({"TIMER_OUT_MS": str(START_MS)})
    counted.store.put(IncomingMessage(names.TIMER_TOPIC, b"lost", 0, properties))
    counted.put_at(b"a", START_MS + 5_000)
    counted.store.step()
    counted.run()
    assert counted.timers.metrics.counts() == {"T": 1}


def test_skipped_messages_are_not_counted(counted: Subject) -> None:
    for body in (b"a", b"b", b"c"):
        counted.put_at(body, START_MS + 5_000)
    counted.recall("a", START_MS + 5_000)
    counted.run()
    assert counted.timers.metrics.counts() == {"T": 2}
    counted.timers.skip_all()
    counted.clock.advance(5_000)
    counted.run()
    assert not any(counted.timers.metrics.counts().values())


# --- recalls -------------------------------------------------------------------------


def test_a_step_reads_a_bounded_number_of_recalls(subject: Subject) -> None:
    for number in range(600):
        subject.recall(str(number), START_MS + 5_000 + 1_000 * (number % 300))
    left = [subject.timers.pending_count]
    while subject.timers.step(subject.now_ms):
        left.append(subject.timers.pending_count)
    steps = [before - after for before, after in itertools.pairwise(left)]
    assert max(steps) == timers.ODD_PER_STEP
    assert subject.timers.pending_count == 0
    for key in range(600):
        subject.put(
            b"%d" % key,
            UNIQ_KEY=str(key),
            TIMER_DELIVER_MS=str(START_MS + 5_000 + 1_000 * (key % 300)),
        )
    subject.clock.advance(400_000)
    subject.run()
    assert subject.timers.recalled_count == 600
    assert subject.bodies() == []
    subject.run()
    assert subject.timers._recall_count == 0
    assert not subject.timers._recall_times


def test_recalls_with_long_bodies_are_read_in_parts(stores: Stores) -> None:
    subject = Subject(stores, max_message_size=1 << 20, mapped_file_size_commit_log=16 << 20)
    for number in range(8):
        subject.put(
            bytes(600_000), TIMER_DELIVER_MS=str(START_MS + 5_000), TIMER_DEL_UNIQKEY=str(number)
        )
    subject.timers.step(subject.now_ms)
    assert subject.timers.pending_count == 7


def test_places_of_recalls_are_dropped_with_their_times(subject: Subject) -> None:
    """A recall far in the future used to keep all later places, which no limit counted."""
    subject.recall("far", START_MS + HOUR_MS)
    for turn in range(20):
        for number in range(5):
            subject.recall(f"{turn} {number}", subject.now_ms + 5_000)
        subject.run()
        assert len(subject.timers._recall_places) == len(subject.timers._recalls)
        assert subject.timers._progress(subject.now_ms).oldest == 0
        subject.clock.advance(5_000 + 2 * timers.RECALLS_KEPT_MS)
        subject.run()
        assert list(subject.timers._recall_places.values()) == [0]


def test_progress_passes_expired_recalls(subject: Subject) -> None:
    for key, seconds in (("a", 5), ("b", 5), ("c", 500), ("d", 5), ("e", 500)):
        subject.recall(key, START_MS + 1_000 * seconds)
    subject.run()
    assert subject.timers._progress(subject.now_ms).oldest == 0
    subject.clock.advance(100_000)
    subject.run()
    assert subject.timers._progress(subject.now_ms).oldest == 2
    subject.clock.advance(600_000)
    subject.run()
    assert subject.timers._progress(subject.now_ms).oldest == 5


def test_the_lowest_place_never_exceeds_a_pending_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """In long runs the lowest place is recomputed only now and then."""
    monkeypatch.setattr(timer_runs, "_EXACT_MAX", 16)
    runs = TimerRuns()
    entries = np.zeros(400, timer_runs.ENTRY_TYPE)
    entries["queue_offset"] = np.arange(400)
    entries["leaves_ms"] = np.random.default_rng(1).permutation(400)
    runs.add(entries)
    left = dict(zip(entries["leaves_ms"].tolist(), range(400), strict=True))
    while left:
        lowest, exact = runs.min_queue_offset(), min(left.values())
        assert lowest is not None
        assert lowest <= exact
        for entry in runs.first(1000, 7).tolist():
            del left[entry[0]]
        runs.drop(7)
    assert runs.min_queue_offset() is None


# --- long waits ----------------------------------------------------------------------


@pytest.mark.parametrize(("hours", "window_ms"), [(72, 48 * HOUR_MS), (12, 8 * HOUR_MS)])
def test_messages_roll_before_their_file_expires(
    tmp_path: Path, hours: int, window_ms: int
) -> None:
    assert store_fixture.config(tmp_path, file_reserved_time=hours).timer_roll_ms == window_ms


@pytest.mark.parametrize(
    ("wait_hours", "leaves_after_hours"), [(47, 47), (48, 24), (63, 24), (64, 48), (71, 48)]
)
def test_messages_roll_when_java_rolls_them(
    stores: Stores, wait_hours: int, leaves_after_hours: int
) -> None:
    """A slave of Java with the copied progress forgets them then (5.5.0: ``doEnqueue``)."""
    subject = Subject(stores, file_reserved_time=96)
    subject.put_at(b"one", START_MS + wait_hours * HOUR_MS + 1000)
    subject.timers.step(subject.now_ms)
    due_ms = subject.timers.next_due_ms(subject.now_ms)
    assert due_ms == START_MS + leaves_after_hours * HOUR_MS + 1000


# --- restarts ------------------------------------------------------------------------


def test_a_clean_stop_delivers_nothing_twice(
    subject: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timers, "MESSAGES_PER_STEP", 7)
    for number in range(40):
        subject.put_at(b"%02d" % number, START_MS + 1000 * (1 + number % 4))
    for _ in range(9):
        subject.timers.step(subject.now_ms)
    for _ in range(12):
        subject.clock.advance(400)
        subject.timers.step(subject.now_ms)
        subject.store.step()
        subject.stop()
        subject.open()
        subject.run()
    assert sorted(subject.bodies()) == [b"%02d" % number for number in range(40)]


# --- replication ----------------------------------------------------------------------


def test_a_slave_has_the_progress_of_its_master(subject: Subject) -> None:
    """It survives the slave's end, also in Java's form, and counts when it is promoted."""
    for number in range(4):
        subject.put_at(b"%d" % number, START_MS + 1000 * (1 + number))
    subject.stop()
    subject.open(broker_role=BrokerRole.SLAVE)
    subject.clock.advance(3000)
    progress = TimerProgress(START_MS + 2000, 0, 3, 0)  # 0, 1 are delivered, 3 is not taken up
    subject.timers.copy_progress(progress)
    subject.stop()
    assert subject.table.progress == progress
    check = timer_check.decode(Path(subject.store.root, "config", "timercheck").read_bytes())
    assert check.read_time_ms == START_MS + 2000
    assert check.queue_offset == 0  # all that may wait
    subject.open()
    subject.timers.copy_progress(progress._replace(taken_up=4))
    subject.stop()
    subject.open(broker_role=BrokerRole.ASYNC_MASTER)
    subject.clock.advance(10_000)
    subject.run()
    assert subject.bodies() == [b"2", b"3"]


def test_a_slave_without_progress_begins_at_the_oldest_message(subject: Subject) -> None:
    subject.put_at(b"one", START_MS + 1000)
    subject.store.close()
    subject.open(broker_role=BrokerRole.SLAVE)
    subject.clock.advance(10_000)
    subject.stop()
    subject.open(broker_role=BrokerRole.ASYNC_MASTER)
    subject.run()
    assert subject.bodies() == [b"one"]


def test_progress_is_the_saved_one_until_all_is_taken_up_again(
    subject: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a slave that is promoted meanwhile would repeat all messages."""
    monkeypatch.setattr(timers, "MESSAGES_PER_STEP", 2)
    for number in range(6):
        subject.put_at(b"%d" % number, START_MS + (1000 if number % 2 else 9000))
    subject.run()
    subject.clock.advance(1500)
    subject.run()
    subject.stop()
    saved = subject.table.progress
    assert saved is not None
    assert saved.taken_up == 6
    subject.open()
    subject.clock.advance(1)
    for _ in range(2):
        assert subject.timers.progress(subject.now_ms) == saved
        subject.timers.step(subject.now_ms)
    subject.run()
    assert subject.timers.progress(subject.now_ms) == saved._replace(leaves_ms=START_MS + 502)


@pytest.mark.parametrize("passed_ms", [0, 1, 500, 999, 1000, 1001])
def test_the_time_in_a_check_is_a_slot_that_java_has_not_read(
    subject: Subject, passed_ms: int
) -> None:
    """Java's timer has read all slots before the current one. (5.5.0: ``moveReadTime``)"""
    subject.put_at(b"one", START_MS + 60_000)
    subject.run()
    subject.clock.advance(passed_ms)
    check = subject.timers.check(subject.now_ms)
    assert check.read_time_ms == subject.now_ms // 1000 * 1000


def test_the_time_in_a_check_is_not_after_a_message_that_waits(
    subject: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    subject.timers._roll_ms = 2_300  # it leaves at a time that is no multiple of the precision
    subject.put_at(b"one", START_MS + 60_000)
    subject.timers.step(subject.now_ms)
    subject.clock.advance(9_000)
    monkeypatch.setattr(subject.timers, "_deliver", lambda now_ms: False)
    subject.timers.step(subject.now_ms)
    assert subject.timers.check(subject.now_ms).read_time_ms == START_MS + 2_000


# --- stores of Java --------------------------------------------------------------------


def test_exactly_the_pending_messages_of_a_java_store_are_delivered(tmp_path: Path) -> None:
    root = golden.copy_store("5.5.0", "v5", tmp_path)
    settings = golden.manifest("5.5.0", "v5")["config"]
    config = store_fixture.config(
        root,
        mapped_file_size_commit_log=int(settings["mappedFileSizeCommitLog"]),
        mapped_file_size_consume_queue=int(settings["mappedFileSizeConsumeQueue"]),
        max_hash_slot_num=int(settings["maxHashSlotNum"]),
        max_index_num=int(settings["maxIndexNum"]),
        mapper_file_size_batch_consume_queue=int(settings["mapperFileSizeBatchConsumeQueue"]),
        max_message_size=int(settings["maxMessageSize"]),
        enable_multi_dispatch=True,
    )
    known = golden.messages("5.5.0", "v5")
    waiting = {
        message["uniqKey"]: message
        for message in known
        if message["topic"] == names.TIMER_TOPIC
        and message["properties"].get("TIMER_DELAY_SEC", "") > "8"
    }
    assert len(waiting) == 4
    last_ms = max(message["storeTimestamp"] for message in known)
    subject = Subject.__new__(Subject)
    subject.clock = ManualClock(last_ms)
    with MessageStore.open(config=config, clock=subject.clock, disk=RoomyDisk()) as store:
        subject.take(store)
        end = store.max_physical_offset
        subject.run()
        assert store.max_physical_offset == end
        subject.clock.set(
            max(int(stored["properties"]["TIMER_OUT_MS"]) for stored in waiting.values())
        )
        subject.clock.advance(1000)
        subject.run()
        delivered = [
            message
            for queue_id in (0, 1)
            for message in subject.messages("GoldenDelay-timer", queue_id)
            if message.physical_offset >= end
        ]
        assert {stored.properties["UNIQ_KEY"] for stored in delivered} == waiting.keys()
        assert len(delivered) == 4
        for stored in delivered:
            java = waiting[stored.properties["UNIQ_KEY"]]
            added = {"TIMER_ENQUEUE_MS", "TIMER_DEQUEUE_MS"}
            kept = {name: text for name, text in stored.properties.items() if name not in added}
            assert kept == java["properties"]
        subject.timers.close(subject.now_ms)
        check = timer_check.decode(Path(root, "config", "timercheck").read_bytes())
        # Java reads all pending messages from here; earlier ones are in its own wheel.
        assert check.queue_offset == check.master_queue_offset == 65


@pytest.mark.parametrize("is_durable", [True, False])
def test_a_stop_saves_progress_only_if_the_log_is_durable(
    subject: Subject, monkeypatch: pytest.MonkeyPatch, is_durable: bool
) -> None:
    subject.put_at(b"one", START_MS + 1000)
    subject.run()
    subject.clock.advance(3000)
    subject.run()
    assert subject.bodies() == [b"one"]
    before = subject.table.progress
    if not is_durable:
        monkeypatch.setattr(timers, "make_durable", lambda store: False)
    subject.timers.close(subject.now_ms)
    assert (subject.table.progress != before) is is_durable
    assert Path(subject.store.root, "config", "timercheck").exists() is is_durable


def test_a_newer_timercheck_of_java_is_used(subject: Subject) -> None:
    """Java's timercheck is newer than ours, and its positions are used."""
    subject.put_at(b"one", START_MS + 1000)
    subject.put_at(b"two", START_MS + 5000)
    subject.run()
    subject.stop()
    path = Path(subject.store.root, "config", "timercheck")
    assert timer_check.decode(path.read_bytes())[:4] == (START_MS, 0, 0, 0)
    path.write_bytes(timer_check.encode_file(TimerCheck(START_MS + 1000, 104, 2, 2)))
    subject.clock.advance(9000)
    subject.open()
    # Until the older messages are read again, the position is that of Java.
    assert subject.timers.check(subject.now_ms)[:4] == (START_MS + 1000, 0, 2, 2)
    subject.put_at(b"three", subject.now_ms + 1)
    subject.run()
    assert subject.bodies() == [b"two"]
    subject.clock.advance(1000)
    subject.run()
    assert subject.bodies() == [b"two", b"three"]


def test_a_reader_describes_the_progress_that_is_newer(subject: Subject) -> None:
    """That of the last stop, and Java's if its broker has run on the store since."""
    subject.put_at(b"one", START_MS + 1000)
    subject.put_at(b"two", START_MS + 9000)
    subject.run()
    subject.clock.advance(3000)
    subject.run()
    assert subject.bodies() == [b"one"]
    subject.stop()
    root = Path(subject.store.root)
    ours = documents.timer(StoreReader.open(str(root)))
    assert ours is not None
    assert START_MS + 1000 < ours["delivered_timestamp"] <= subject.now_ms
    assert (ours["min_offset"], ours["max_offset"], ours["read_offset"]) == (0, 2, 2)
    assert (ours["oldest_offset"], ours["waiting_max"]) == (1, 1)
    path = root / "config" / "timercheck"
    path.write_bytes(timer_check.encode_file(TimerCheck(START_MS + 20_000, 104, 1, 1)))
    java = documents.timer(StoreReader.open(str(root)))
    assert java is not None
    assert java["delivered_timestamp"] == START_MS + 20_000
    assert (java["read_offset"], java["waiting_max"]) == (1, 2)
    path.write_bytes(b"short")
    with pytest.raises(CorruptRecord, match="timercheck has 5 bytes"):
        documents.timer(StoreReader.open(str(root)))
