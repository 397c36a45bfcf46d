"""The store compared with plain lists, in any order of its events except a loss of power.

Files are so small that logs, queues and index files roll all the time. The model has the place and
the bytes of each message; it is compared with the store after each crash of the process, after each
clean stop, and at the end, where the store is also verified.

Crashes that lose unsynced bytes: ``tests/crash``.
"""

import shutil
import sys
import tempfile
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

import hypothesis
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from reput.clock import ManualClock
from reput.format import (
    body as bodies,
    cq_unit,
    java,
    message as record,
    names,
    properties as props,
    sys_flag as flags,
)
from reput.format.message import Host, StoredMessage
from reput.store.getting import GetStatus
from reput.store.message_store import MessageStore
from reput.store.verify import FindingKind
from reput.store.writing import incoming
from reput.store.writing.incoming import IncomingMessage, PutResult, PutStatus
from store_fixture import START_MS, RoomyDisk, assert_sound, config
from store_subject import batch_body, expire_files, message, step_to_the_end

LOG_FILE_BYTES = 16 * 1024
LEVEL_COUNT = 18
LIGHT_TOPIC = names.LMQ_PREFIX + "light"
TOPICS = ("TopicA", "TopicB", names.RETRY_PREFIX + "g" * 200)
KEYS = ("AaAa", "BBBB", "AaBB", "k1")  # Three with equal hashes.
TAGS = ("", "TagA", "TagB")
SETTINGS = {
    "async": {},
    "sync": {"flush_disk_type": "SYNC_FLUSH"},
    "pool": {"transient_store_pool_enable": True, "transient_store_pool_size": 100},
}

is_thorough = hypothesis.settings.default.max_examples > 100
"""Set by ``--hypothesis-profile=soak``."""


def _message(
    topic: str, queue_id: int, size: int, tags: str, keys: list[str], extra: dict[str, str]
) -> IncomingMessage:
    return message(
        topic,
        bytes(i % 251 for i in range(size)),
        queue_id,
        tags=tags,
        keys=" ".join(keys),
        properties=extra,
    )


sizes = st.sampled_from([0, 1, 40, 300, 1500, 3900])
messages = st.builds(
    _message,
    st.sampled_from(TOPICS),
    st.sampled_from([0, 1, 9]),
    sizes,
    st.sampled_from(TAGS),
    st.lists(st.sampled_from(KEYS), max_size=3),
    st.sampled_from(
        [{}, {}, {}, {"DELAY": "3"}, {"DELAY": "99"}, {props.INNER_MULTI_DISPATCH: LIGHT_TOPIC}]
    ),
)
sys_flags = st.sampled_from(
    [0, 0, 0, flags.TRANSACTION_PREPARED, flags.TRANSACTION_COMMIT, flags.TRANSACTION_ROLLBACK]
)
hosts = st.sampled_from([Host(b"\x7f\0\0\1", 10911), Host(bytes(15) + b"\1", 10911)])


@dataclass(frozen=True, slots=True)
class Stored:
    """A message that was acknowledged."""

    physical_offset: int
    data: bytes
    """The record."""

    @property
    def end_offset(self) -> int:
        return self.physical_offset + len(self.data)


@dataclass
class Model:
    """The expected contents of the store."""

    log: list[Stored] = field(default_factory=list)
    queues: defaultdict[tuple[str, int], list[Stored]] = field(
        default_factory=lambda: defaultdict(list)
    )
    """Messages by topic and queue id, from queue offset 0 on, expired ones included."""
    keys: defaultdict[tuple[str, str], list[Stored]] = field(
        default_factory=lambda: defaultdict(list)
    )
    log_min: int = 0
    end_offset: int = 0
    """End of the log: after the last record, or the end of its file."""

    def place_for(self, size: int) -> int:
        """Return where a record of this size goes: into the current file, or into the next one."""
        left = -self.end_offset % LOG_FILE_BYTES or LOG_FILE_BYTES
        if size + record.BLANK.size <= left:
            return self.end_offset
        return self.end_offset + (0 if left == LOG_FILE_BYTES else left)

    def put(self, given: IncomingMessage, physical_offset: int, now_ms: int) -> Stored:
        """Add a message; return its record, encoded by the codec alone."""
        stored = incoming.delayed(given, LEVEL_COUNT)
        light = self._light_queue(stored)
        if light is not None:
            number = str(len(self.queues[light]))
            properties = stored.properties | {props.INNER_MULTI_QUEUE_OFFSET: number}
            stored = incoming.with_properties(stored, properties)
        queue = self.queues[stored.topic, stored.queue_id]
        is_queued = flags.is_queued(stored.sys_flag)
        message = StoredMessage(
            topic=stored.topic,
            body=stored.body,
            queue_id=stored.queue_id,
            queue_offset=len(queue) if is_queued else 0,
            physical_offset=physical_offset,
            born_timestamp=stored.born_timestamp,
            born_host=stored.born_host,
            store_timestamp=now_ms,
            store_host=stored.store_host,
            sys_flag=stored.sys_flag | (flags.BORN_HOST_V6 if stored.born_host.is_v6 else 0),
            body_crc=bodies.crc(stored.body),
            property_bytes=stored.property_bytes,
            properties=stored.properties,
        )
        placed = Stored(physical_offset, record.encode(message))
        self.log.append(placed)
        self.end_offset = placed.end_offset
        if is_queued:
            queue.append(placed)
            if light is not None:
                self.queues[light].append(placed)
        if flags.transaction_type(message.sys_flag) != flags.TRANSACTION_ROLLBACK:
            for key in dict.fromkeys(message.keys):
                self.keys[message.topic, key].append(placed)
        return placed

    def _light_queue(self, stored: IncomingMessage) -> tuple[str, int] | None:
        is_named = props.INNER_MULTI_DISPATCH in stored.properties
        if is_named and names.may_have_light_queues(stored.topic):
            return LIGHT_TOPIC, 0
        return None

    def cut(self, physical_offset: int) -> None:
        """Remove all messages from an offset on: the log ends there."""
        self.end_offset = physical_offset
        for run in (self.log, *self.queues.values(), *self.keys.values()):
            while run and run[-1].physical_offset >= physical_offset:
                run.pop()

    def min_offset(self, queue: list[Stored]) -> int:
        """Return the queue offset of the first message that has not expired."""
        return sum(stored.physical_offset < self.log_min for stored in queue)


class StoreMachine(RuleBasedStateMachine):
    """The events of a store."""

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp(prefix="model-"))
        self.clock = ManualClock(START_MS)
        self.model = Model()
        self.notified_ends: defaultdict[tuple[str, int], int] = defaultdict(int)
        self.wrong_notices: list[tuple[str, int, int, int]] = []
        self.store: MessageStore
        self.kind = ""

    @initialize(kind=st.sampled_from(sorted(SETTINGS)))
    def make(self, kind: str) -> None:
        self.kind = kind
        self._open()

    def _open(self) -> None:
        settings = config(
            self.root,
            mapped_file_size_commit_log=LOG_FILE_BYTES,
            max_message_size=4096,
            enable_multi_dispatch=True,
            **SETTINGS[self.kind],
        )
        self.store = MessageStore.open(config=settings, clock=self.clock, disk=RoomyDisk())
        self.notified_ends.clear()
        for key in self.model.queues:
            self.notified_ends[key] = self.store.max_offset(*key)
        self.store.add_listener(self._listen)

    def _listen(self, topic: str, queue_id: int, first: int, end: int) -> None:
        # The store survives a failing listener: the failure is recorded, and checked later.
        is_right = self.notified_ends[topic, queue_id] == first < end
        if not is_right or self.store.max_offset(topic, queue_id) != end:
            self.wrong_notices.append((topic, queue_id, first, end))
        self.notified_ends[topic, queue_id] = end

    # Puts.

    def _check_put(self, given: IncomingMessage, result: PutResult) -> None:
        assert result.status is PutStatus.PUT_OK, result.reason
        place = self.model.place_for(result.size)
        stored_by_model = self.model.put(given, place, self.clock.now_ms())
        stored = record.decode(stored_by_model.data)
        assert (result.physical_offset, result.size) == (place, len(stored_by_model.data))
        assert result.queue_offset == stored.queue_offset
        assert result.store_timestamp == self.clock.now_ms()

    @rule(given=messages, sys_flag=sys_flags, host=hosts)
    def put(self, given: IncomingMessage, sys_flag: int, host: Host) -> None:
        given.sys_flag, given.born_host = sys_flag, host
        self._check_put(given, self.store.put(given))

    @rule(given=messages)
    def begin_put(self, given: IncomingMessage) -> None:
        self._check_put(given, self.store.begin_put(given).stored)

    @rule(given=st.lists(messages, max_size=25))
    def put_many(self, given: list[IncomingMessage]) -> None:
        results = self.store.put_many(given)
        assert len(results) == len(given)
        for sent, result in zip(given, results, strict=True):
            self._check_put(sent, result)

    @rule(count=st.sampled_from([10, 30, 60]), size=st.sampled_from([10, 300, 1500]))
    def fill(self, count: int, size: int) -> None:
        """Put messages until files end."""
        for i in range(count):
            topic, keys = TOPICS[i % 7 % len(TOPICS)], [KEYS[i % len(KEYS)]]
            given = _message(topic, i % 2, size + i, TAGS[i % len(TAGS)], keys, {})
            self._check_put(given, self.store.put(given))

    @rule(
        topic=st.sampled_from(TOPICS),
        queue_id=st.sampled_from([0, 1]),
        inner=st.lists(
            st.builds(message, body=st.binary(max_size=60), keys=st.sampled_from(["", *KEYS])),
            min_size=1,
            max_size=12,
        ),
    )
    def put_batch(self, topic: str, queue_id: int, inner: list[IncomingMessage]) -> None:
        outer = message(topic, batch_body(*inner), queue_id, keys="dropped")
        result = self.store.put_batch(outer)
        assert result.status is PutStatus.PUT_OK, result.reason
        place = first = self.model.place_for(result.size)
        places = []
        for sent in inner:
            sent.topic, sent.queue_id, sent.born_timestamp = topic, queue_id, outer.born_timestamp
            places.append(place)
            place = self.model.put(sent, place, self.clock.now_ms()).end_offset
        assert result.physical_offsets == tuple(places)
        assert (result.physical_offset, result.size) == (first, place - first)
        queue = self.model.queues[topic, queue_id]
        assert (result.queue_offset, result.message_count) == (len(queue) - len(inner), len(inner))

    @rule(size=st.sampled_from([4097, 10_000]))
    def put_a_refused_message(self, size: int) -> None:
        assert self.store.put(message(body=bytes(size))).status is PutStatus.MESSAGE_ILLEGAL

    # Time, flushing, expiry -------------------------------------------------------------------

    @rule(duration_ms=st.sampled_from([0, 1, 200, 1000, 10_000, 70_000]))
    def step(self, duration_ms: int) -> None:
        self.clock.advance(duration_ms)
        self.store.step()

    @rule()
    def sync(self) -> None:
        self.store.sync()

    @rule(least_bytes=st.sampled_from([0, 100]), is_durable=st.booleans())
    def flush_queues(self, least_bytes: int, is_durable: bool) -> None:
        self.store.flusher.write_out_queues(least_bytes)
        if is_durable:
            self.store.flusher.sync_queues()
            self.store.checkpoint.flush()

    @rule()
    def settle(self) -> None:
        self.clock.advance(200)
        step_to_the_end(self.store)
        assert self.store.dispatcher.dispatched_offset >= self.model.end_offset
        for key, queue in self.model.queues.items():
            assert self.notified_ends[key] == len(queue)

    @precondition(lambda self: self.model.end_offset > LOG_FILE_BYTES)
    @rule(data=st.data())
    def expire(self, data: st.DataObject) -> None:
        self.settle()
        stored = data.draw(st.sampled_from(self.model.log), label="expire before")
        expire_files(self.store, stored.physical_offset)
        last_start = self.model.log[-1].physical_offset // LOG_FILE_BYTES * LOG_FILE_BYTES
        start = stored.physical_offset // LOG_FILE_BYTES * LOG_FILE_BYTES
        self.model.log_min = max(self.model.log_min, min(start, last_start))
        assert self.store.min_physical_offset == self.model.log_min
        assert self.store.max_physical_offset == self.model.end_offset

    @rule(topic=st.sampled_from(TOPICS))
    def delete_topic(self, topic: str) -> None:
        """Remove the topic's queues; they are created again by the next message; its messages stay
        (known-bugs.md#deleted-topics).
        """
        self.store.delete_topic(topic)
        for key in [key for key in self.model.queues if key[0] == topic]:
            del self.model.queues[key]
            self.notified_ends.pop(key, None)
            assert self.store.get(*key, 0).status is GetStatus.NO_MATCHED_LOGIC_QUEUE

    # Ends of runs.

    @rule()
    def reopen(self) -> None:
        self.store.close()
        self._verify()
        self._open()
        assert self.store.recovery.was_clean
        self._check_all()

    @rule()
    def abandon(self) -> None:
        """Crash the process: written bytes are kept, those in memory are lost."""
        committed, written = self.store.log.readable_offset, self.model.end_offset
        self.store.abandon()
        self._open()
        assert not self.store.recovery.was_clean
        assert self.store.recovery.holes == []
        end = self.store.recovery.end_offset
        # The blank at the end of a file is no loss: the next record may fit in its place.
        kept = [stored.end_offset for stored in self.model.log if stored.end_offset <= committed]
        assert max(kept, default=0) <= end <= written
        if self.kind != "pool":
            assert end == written
        self.model.cut(end)
        self._check_all()

    def teardown(self) -> None:
        try:
            if self.kind and sys.exc_info()[0] is None:
                self.settle()
                self._check_all()
                self.store.close()
                self._verify()
        finally:
            if self.kind:
                self.store.abandon()
            shutil.rmtree(self.root)

    def _verify(self) -> None:
        assert_sound(self.root, allowed=set() if self.model.log else {FindingKind.LOG_EMPTY})

    # Reads.

    def _readable(self, run: list[Stored]) -> list[Stored]:
        """Return the dispatched messages: only these are visible."""
        end = self.store.dispatcher.dispatched_offset
        return [stored for stored in run if stored.physical_offset < end]

    @precondition(lambda self: self.model.queues)
    @rule(data=st.data(), max_count=st.sampled_from([1, 3, 32]), tag=st.sampled_from(TAGS))
    def get(self, data: st.DataObject, max_count: int, tag: str) -> None:
        key = data.draw(st.sampled_from(sorted(self.model.queues)), label="queue")
        queue = self._readable(self.model.queues[key])
        low, high = self.model.min_offset(queue), len(queue)
        asked = data.draw(st.integers(-1, high + 1), label="queue offset")
        codes = [java.string_hash(tag)] if tag else []
        result = self.store.get(*key, asked, max_count, tags_codes=codes)
        if not self.store.queues.find(*key):
            assert high == 0
            assert result.status is GetStatus.NO_MATCHED_LOGIC_QUEUE
        elif high == 0:
            assert (result.status, result.next_offset) == (GetStatus.NO_MESSAGE_IN_QUEUE, 0)
        elif asked < low:
            assert (result.status, result.next_offset) == (GetStatus.OFFSET_TOO_SMALL, low)
        elif asked == high:
            assert (result.status, result.next_offset) == (GetStatus.OFFSET_OVERFLOW_ONE, high)
        elif asked > high:
            assert (result.status, result.next_offset) == (GetStatus.OFFSET_OVERFLOW_BADLY, high)
        else:
            assert asked < result.next_offset <= high
            scanned = queue[asked : result.next_offset]
            wanted = [stored.data for stored in scanned if not tag or _has_tag(stored, key[0], tag)]
            assert [bytes(record_bytes) for record_bytes in result.records] == wanted
            assert (result.status is GetStatus.FOUND) == bool(wanted)
            assert len(wanted) <= max_count
        assert result.damaged_count == 0

    @rule(topic=st.sampled_from(TOPICS), key=st.sampled_from(KEYS), most=st.integers(0, 70))
    def query(self, topic: str, key: str, most: int) -> None:
        result = self.store.query(topic, key, most)
        carrying = self._readable(self.model.keys[topic, key])
        expected = [
            carrier.data for carrier in carrying if carrier.physical_offset >= self.model.log_min
        ]
        most = min(most, 64)
        assert result.records == expected[max(len(expected) - most, 0) :]
        assert result.is_truncated == (len(expected) > most)

    @invariant()
    def queues_have_what_was_dispatched(self) -> None:
        if not self.kind:
            return
        assert self.wrong_notices == []
        for key, queue in self.model.queues.items():
            readable = self._readable(queue)
            assert self.store.max_offset(*key) == len(readable)
            assert self.store.min_offset(*key) == self.model.min_offset(readable)
        if self.kind == "async":
            assert self.store.dispatcher.dispatched_offset >= self.model.end_offset

    def _check_all(self) -> None:
        """Check that every acknowledged message is at its place, byte by byte."""
        for stored in self.model.log:
            is_there = stored.physical_offset >= self.model.log_min
            data = self.store.record_at(stored.physical_offset)
            assert data == (stored.data if is_there else None)
        for key, queue in self.model.queues.items():
            queue_offset = self.model.min_offset(queue)
            assert self.store.max_offset(*key) == len(queue)
            while queue_offset < len(queue):
                result = self.store.get(*key, queue_offset)
                assert queue_offset < result.next_offset
                expected = [stored.data for stored in queue[queue_offset : result.next_offset]]
                assert [bytes(stored) for stored in result.records] == expected
                queue_offset = result.next_offset
        for (topic, key_text), run in self.model.keys.items():
            found_by_key = self.store.query(topic, key_text, 64)
            expected = [
                stored.data for stored in run if stored.physical_offset >= self.model.log_min
            ]
            assert found_by_key.records == expected[-64:]


def _has_tag(stored: Stored, topic: str, tag: str) -> bool:
    """Return whether a message's unit has the code of a tag; delayed ones have the due time."""
    tags = record.decode(stored.data).tags or ""
    return topic != names.SCHEDULE_TOPIC and cq_unit.tags_code(tags) == java.string_hash(tag)


MODEL_SETTINGS = hypothesis.settings(
    max_examples=3000 if is_thorough else 20,
    stateful_step_count=60 if is_thorough else 35,
    report_multiple_bugs=False,
    phases=[phase for phase in hypothesis.Phase if phase is not hypothesis.Phase.explain],
    suppress_health_check=[hypothesis.HealthCheck.too_slow, hypothesis.HealthCheck.data_too_large],
)


def test_the_store_agrees_with_the_model() -> None:
    run_state_machine_as_test(StoreMachine, settings=MODEL_SETTINGS)
