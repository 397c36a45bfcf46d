"""Small stores with planted faults: the audit's verdict of each message equals a model's.

The model has the messages sent, where a broker puts them, and the later changes of the files. It
reads no store.
"""

import json
import shutil
import struct
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings, strategies as st

import store_builder
from reput.format.message import StoredMessage
from reput.spark.jobs.audit import message_table, run_audit
from reput.spark.jobs.running import SequentialRunner
from store_builder import Built

UNIT = struct.Struct(">qiq")
BODY_AT = 88
"""Position of a record's body, after its head and two IPv4 addresses."""
SLOTS = 16
INDEX_HEAD_BYTES = 40

FAULTS = ("zero_unit", "other_unit", "wrong_size", "wrong_tags", "flip_body", "lose", "unindex")


@dataclass
class Sent:
    """A message and its expected verdict."""

    stored: StoredMessage
    is_whole: bool = True
    reason: str | None = None
    is_indexed: bool = True
    has_unit: bool = True

    @property
    def verdict(self) -> str:
        if self.is_whole:
            return "lost" if self.reason else "dispatched"
        return "damaged"

    @property
    def place(self) -> tuple[str, int]:
        return self.stored.topic, self.stored.queue_id


@dataclass
class Model:
    """A store and the expected result of its audit."""

    built: Built
    messages: list[Sent]
    pointed_at: list[Sent] = field(default_factory=list)
    """Messages to which units of other messages point."""
    strays: int = 0
    """Number of index entries with a key that no message has."""
    offsets: dict[str, dict[int, int]] = field(default_factory=dict)

    def queue(self, place: tuple[str, int]) -> list[Sent]:
        return [message for message in self.messages if message.place == place]

    # Changes of the files

    def plant(self, kind: str, number: int) -> None:
        message = self.messages[number % len(self.messages)]
        if not message.is_whole or message.reason or not message.is_indexed:
            return  # at most one fault for each message
        getattr(self, f"_{kind}")(message)

    def _write(self, path: Path, position: int, data: bytes) -> None:
        with path.open("r+b") as file:
            file.seek(position)
            file.write(data)

    def _put_unit(self, message: Sent, physical_offset: int, size: int, tags_code: int) -> None:
        position = message.stored.queue_offset * UNIT.size
        file_bytes = self.built.queue_file_units * UNIT.size
        path = self.built.queue_file(*message.place, number=position // file_bytes)
        self._write(path, position % file_bytes, UNIT.pack(physical_offset, size, tags_code))

    def _zero_unit(self, message: Sent) -> None:
        self._put_unit(message, 0, 0, 0)
        message.reason, message.has_unit = "no_unit", False

    def _other_unit(self, message: Sent) -> None:
        others = [
            other for other in self.queue(message.place) if other is not message and other.is_whole
        ]
        if others:
            other = others[0].stored
            self._put_unit(message, other.physical_offset, other.store_size, 0)
            message.reason, message.has_unit = "other_unit", False
            self.pointed_at.append(others[0])

    def _wrong_size(self, message: Sent) -> None:
        code = store_builder.java_hash(message.stored.tags or "")
        self._put_unit(message, message.stored.physical_offset, message.stored.store_size + 1, code)
        message.reason = "wrong_size"

    def _wrong_tags(self, message: Sent) -> None:
        code = store_builder.java_hash(message.stored.tags or "") + 1
        self._put_unit(message, message.stored.physical_offset, message.stored.store_size, code)
        message.reason = "wrong_tags"

    def _flip_body(self, message: Sent) -> None:
        if message.stored.body:
            start = (
                message.stored.physical_offset
                - message.stored.physical_offset % self.built.log_file_bytes
            )
            path = self.built.root / "commitlog" / f"{start:020d}"
            position = message.stored.physical_offset - start + BODY_AT
            (byte,) = path.read_bytes()[position : position + 1]
            self._write(path, position, bytes([byte ^ 0x10]))
            message.is_whole = False
            self.strays += 3  # its unique key and two words

    def _lose(self, message: Sent) -> None:
        self._flip_body(message)
        if not message.is_whole:
            self._put_unit(message, 0, 0, 0)
            message.has_unit = False

    def _unindex(self, message: Sent) -> None:
        """Change the key of one of the message's entries to another key of the same slot."""
        wanted = store_builder.index_hash(store_builder.index_keys(message.stored)[1])
        for path in sorted((self.built.root / "index").iterdir()):
            data = path.read_bytes()
            for position in range(INDEX_HEAD_BYTES + 4 * SLOTS, len(data), 20):
                key_hash, place, _, _ = store_builder.INDEX_ENTRY.unpack_from(data, position)
                if (key_hash, place) == (wanted, message.stored.physical_offset):
                    self._write(path, position, struct.pack(">i", wanted ^ SLOTS))
                    message.is_indexed = False
                    self.strays += 1
                    return

    def put_offsets(self, offsets: dict[str, dict[int, int]]) -> None:
        self.offsets = offsets
        text = json.dumps({"offsetTable": offsets})
        (self.built.root / "config" / "consumerOffset.json").write_text(text)

    # Expected results

    def groups(self, message: Sent) -> tuple[list[str], list[str]]:
        consumed: list[str] = []
        pending: list[str] = []
        for key, of_queues in self.offsets.items():
            topic, group = key.split("@")
            if topic == message.stored.topic:
                is_past = message.stored.queue_offset < of_queues.get(message.stored.queue_id, 0)
                (consumed if is_past else pending).append(group)
        return sorted(consumed), sorted(pending)

    def rows(self) -> Iterator[tuple[Any, ...]]:
        for sent in self.messages:
            message = sent.stored
            place = (message.physical_offset, message.topic, message.queue_id, message.queue_offset)
            if sent.is_whole:
                indexed = "indexed" if sent.is_indexed else "missing"
                consumed, pending = self.groups(sent)
                groups = (consumed, pending) if consumed or pending else (None, None)
                yield (*place, message.unique_key, sent.verdict, sent.reason, indexed, *groups)
            elif sent.has_unit:
                yield (*place, None, "damaged", "in_hole", None, None, None)

    def gone(self) -> Counter[int]:
        """Return hole -> messages without record and unit, which a later message reveals."""
        lost: Counter[int] = Counter()
        holes = [sent for sent in self.messages if not sent.is_whole]
        for place in {sent.place for sent in self.messages}:
            queue = self.queue(place)
            whole = [number for number, sent in enumerate(queue) if sent.is_whole]
            for number, sent in enumerate(queue):
                if sent.is_whole or sent.has_unit or not whole or number > whole[-1]:
                    continue
                before = max((other for other in whole if other < number), default=None)
                after = min(other for other in whole if other > number)
                low = queue[before].stored.physical_offset if before is not None else 0
                high = queue[after].stored.physical_offset
                between = [
                    hole.stored for hole in holes if low <= hole.stored.physical_offset < high
                ]
                taker = max(between, key=lambda hole: (hole.store_size, -hole.physical_offset))
                lost[taker.physical_offset] += 1
        for sent in holes:
            if sent.has_unit:
                lost[sent.stored.physical_offset] += 1
        return lost


def table_rows(table: Path) -> list[tuple[Any, ...]]:
    names = ["physical_offset", "topic", "queue_id", "queue_offset", "uniq_key"]
    names += ["verdict", "reason", "indexed", "groups_consumed", "groups_pending"]
    rows = pq.read_table(table / message_table.MESSAGES).to_pylist()
    return sorted((tuple(row[name] for name in names) for row in rows), key=lambda row: row[:4])


PLANTED = st.lists(st.tuples(st.sampled_from(FAULTS), st.integers(0, 60)), max_size=6)
OFFSETS = st.dictionaries(
    st.sampled_from(["TopicA@G1", "TopicA@G2", "TopicB@G1", "TopicB@G3"]),
    st.dictionaries(st.integers(0, 1), st.integers(0, 12), min_size=1),
)


STORES = (st.integers(1, 45), PLANTED, OFFSETS, st.integers(400, 9000), st.booleans())


@settings(max_examples=15)
@given(*STORES)
def test_the_audit_equals_the_model(
    count: int,
    planted: list[tuple[str, int]],
    offsets: dict[str, dict[int, int]],
    range_bytes: int,
    has_table: bool,
) -> None:
    audit_planted(count, planted, offsets, range_bytes, has_table)


@pytest.mark.soak
@settings(max_examples=2000, derandomize=False)
@given(*STORES)
def test_the_audit_of_many_messages_equals_the_model(
    count: int,
    planted: list[tuple[str, int]],
    offsets: dict[str, dict[int, int]],
    range_bytes: int,
    has_table: bool,
) -> None:
    audit_planted(count, planted, offsets, range_bytes, has_table)


def audit_planted(
    count: int,
    planted: list[tuple[str, int]],
    offsets: dict[str, dict[int, int]],
    range_bytes: int,
    has_table: bool,
) -> None:
    """Build a store, plant faults in it, audit it, and compare with the model."""
    root = Path(tempfile.mkdtemp())
    try:
        built = store_builder.build(root / "store", store_builder.messages(count), slots=SLOTS)
        ends = Counter((message.topic, message.queue_id) for message in built.messages)
        within = {
            key: {
                queue_id: min(consumer_offset, ends[key.split("@")[0], queue_id])
                for queue_id, consumer_offset in of_queues.items()
                if ends[key.split("@")[0], queue_id]
            }
            for key, of_queues in offsets.items()
        }
        model = Model(built, [Sent(message) for message in built.messages])
        model.put_offsets({key: value for key, value in within.items() if value})
        for kind, number in planted:
            model.plant(kind, number)
        check(model, root / "table" if has_table else None, range_bytes)
    finally:
        shutil.rmtree(root)


def check(model: Model, table: Path | None, range_bytes: int) -> None:
    result = run_audit(
        SequentialRunner(),
        str(model.built.root),
        table=str(table) if table else None,
        range_bytes=range_bytes,
    )
    rows = sorted(model.rows(), key=lambda row: row[:4])
    if table is not None:
        assert table_rows(table) == rows
    assert result.verdicts == dict(Counter(row[5] for row in rows))
    assert result.indexed == dict(Counter(row[7] for row in rows if row[7]))
    whole = [sent for sent in model.messages if sent.is_whole]
    assert result.messages == len(whole)
    assert result.bytes == sum(sent.stored.store_size for sent in whole)

    holes = [sent.stored for sent in model.messages if not sent.is_whole]
    assert [(hole.physical_offset, hole.length) for hole in result.holes] == [
        (hole_record.physical_offset, hole_record.store_size) for hole_record in holes
    ]
    gone = model.gone()
    assert {hole.physical_offset: hole.lost_count for hole in result.holes} == {
        hole_record.physical_offset: gone[hole_record.physical_offset] for hole_record in holes
    }
    lost = sum(sent.is_whole and sent.reason is not None for sent in model.messages)
    assert result.lost_count == lost + sum(gone.values())
    assert result.faults.get("unit_twice", 0) == sum(sent.is_whole for sent in model.pointed_at)
    assert result.faults.get("unit_wrong_record", 0) == sum(
        not sent.is_whole for sent in model.pointed_at
    )
    assert result.faults.get("entry_stray", 0) == model.strays
    check_groups(model, result)


def check_groups(model: Model, result: Any) -> None:
    expected: defaultdict[tuple[str, str], list[Any]] = defaultdict(lambda: [0, 0, 0, None])
    for sent in model.messages:
        if sent.is_whole:
            consumed, pending = model.groups(sent)
            for group in consumed:
                expected[group, sent.stored.topic][0] += 1
            for group in pending:
                of_group = expected[group, sent.stored.topic]
                of_group[1] += 1
                of_group[2] += sent.stored.store_size
                times = [time for time in (of_group[3], sent.stored.store_timestamp) if time]
                of_group[3] = min(times)
    for key in model.offsets:
        expected[
            key.split("@")[1], key.split("@")[0]
        ]  # also an entry for topics without a whole message
    assert {
        (sent.group, sent.topic): [
            sent.consumed,
            sent.pending,
            sent.pending_bytes,
            sent.oldest_pending_ms,
        ]
        for sent in result.groups
    } == dict(expected)
