"""What differs in a part of two stores: bytes of a file, records of the log, units of a queue.

Each function is one task's work. Parts are compared as bytes or as arrays; only what is different
is decoded, record by record, to say which field it is and what both sides have there.
"""

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields as fields_of
from typing import Any

import numpy as np
import numpy.typing as npt

from reput.errors import CorruptRecord, NotInStore
from reput.format import body as bodies, message as record
from reput.format.message import StoredMessage, Verdict
from reput.spark.jobs import queue_runs, record_fields
from reput.store import paths
from reput.store.commit_log_view import CommitLogView
from reput.store.config_tables import ConsumerOffset
from reput.store.consume_queue_view import UnitArray
from reput.store.files import Folder
from reput.store.reader import StoreReader

WINDOW_BYTES = 8 * 1024 * 1024

ONLY_LEFT = "only_left"
ONLY_RIGHT = "only_right"
DIFFERENT = "different"

_MESSAGE_FIELDS = tuple(
    one.name for one in fields_of(StoredMessage) if one.name not in ("properties", "version")
)
_TOO_LONG = 60

Offsets = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Finding:
    """One difference; fields that do not apply are None."""

    section: str
    """``files``, ``messages``, ``queues`` or ``tables``."""
    kind: str
    """``only_left``, ``only_right`` or ``different``."""
    text: str
    """For people."""
    count: int = 1
    """Files, messages, units or entries that it stands for."""
    file: str | None = None
    topic: str | None = None
    queue_id: int | None = None
    queue_offset: int | None = None
    """Of the first."""
    physical_offset: int | None = None
    field: str | None = None
    """What differs; several are separated by commas."""
    left: str | None = None
    right: str | None = None


@dataclass(frozen=True, slots=True)
class Sides:
    """The two stores, and what may differ between them."""

    left: str
    right: str
    ignore: frozenset[str]
    """Names of message and unit fields."""
    allow_live: bool

    @property
    def readers(self) -> tuple[StoreReader, StoreReader]:
        """Both, opened; an executor opens a stopped store once."""
        return _open(self.left, self.allow_live), _open(self.right, self.allow_live)


@functools.lru_cache(maxsize=4)
def _open_stopped(path: str) -> StoreReader:
    return StoreReader.open(path)


def _open(path: str, allow_live: bool) -> StoreReader:
    return StoreReader.open(path, allow_live=True) if allow_live else _open_stopped(path)


# Files ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FilePart:
    """Bytes ``[start, stop)`` of a file that both stores have."""

    path: str
    start: int
    stop: int


def in_file(sides: Sides, part: FilePart) -> Finding | None:
    """Return the first byte of a part that differs, explained; None if there is none."""
    left, right = sides.readers
    at = part.start
    while at < part.stop:
        length = min(part.stop - at, WINDOW_BYTES)
        ours, theirs = (_bytes(one.folder, part.path, at, length) for one in (left, right))
        length = min(len(ours), len(theirs))
        if not length:
            return None  # cut meanwhile; sizes are compared elsewhere
        differing = _first_difference(ours[:length], theirs[:length])
        if differing is not None:
            return _explain(left, right, part.path, at + differing)
        at += length
    return None


def _bytes(folder: Folder, path: str, start: int, length: int) -> npt.NDArray[np.uint8]:
    return np.frombuffer(folder.read(path, start, length), np.uint8)


def _first_difference(ours: npt.NDArray[np.uint8], theirs: npt.NDArray[np.uint8]) -> int | None:
    if np.array_equal(ours, theirs):
        return None
    return int(np.argmax(ours != theirs))


def _explain(left: StoreReader, right: StoreReader, path: str, position: int) -> Finding:
    """Say which record or field holds the first differing byte, and what both sides have there."""
    family, _, rest = path.partition("/")
    where: tuple[str, str | None, str, str] | None = None
    physical_offset: int | None = None
    if family == paths.COMMIT_LOG:
        start = paths.parse_offset_name(rest)
        if start is not None:
            physical_offset = start + position
            where = _in_log(left, right, physical_offset)
    elif family in (paths.CONSUME_QUEUE, paths.BATCH_CONSUME_QUEUE):
        where = _in_queue_file(left, right, path, position)
    elif family == paths.INDEX:
        where = _in_index(left, right, path, position)
    elif path == paths.CHECKPOINT:
        found = record_fields.of_checkpoint(position)
        if found is not None:
            ours, theirs = _both(left, right, path, 0, found.stop)
            where = "checkpoint", found.name, found.text(ours, 0), found.text(theirs, 0)
    if where is None:
        ours, theirs = _both(left, right, path, position, 32)
        where = "", None, _plain(ours), _plain(theirs)
    thing, field, before, after = where
    named = ": " + " ".join(one for one in (thing, f"field {field}" if field else "") if one)
    return Finding(
        "files",
        DIFFERENT,
        f"{path} differs from byte {position} on{named if thing or field else ''}: "
        f"left {before}, right {after}",
        file=path,
        physical_offset=physical_offset,
        field=field,
        left=before,
        right=after,
    )


def _both(
    left: StoreReader, right: StoreReader, path: str, start: int, length: int
) -> tuple[bytes, bytes]:
    return (
        bytes(left.folder.read(path, start, length)),
        bytes(right.folder.read(path, start, length)),
    )


def _plain(data: bytes) -> str:
    """Return text of a table as it is, and other bytes in hexadecimal."""
    is_text = data.isascii() and data.decode().isprintable()
    return repr(data.decode()) if is_text else _hex(data)


def _hex(data: bytes) -> str:
    return record_fields.hex_text(data)


def _in_log(
    left: StoreReader, right: StoreReader, physical_offset: int
) -> tuple[str, str | None, str, str] | None:
    """Find the record that a byte of the log belongs to, on the side that has one there."""
    path, position = _place(left.log, physical_offset)
    for reader in (left, right):
        found = _record_around(reader.log, physical_offset)
        if found is None:
            continue
        start, size = found
        first = position - (physical_offset - start)
        ours, theirs = _both(left, right, path, first, size)
        data = ours if reader is left else theirs
        field = record_fields.of_record(data, physical_offset - start)
        name = field.name
        if not field.is_number:
            name = f"{name}[{physical_offset - start - field.start}]"
        at = physical_offset - start
        one = record.decode(data, check_crc=False)
        thing = (
            f"record at {start} (message {one.queue_offset} of {one.topic}/{one.queue_id}), "
        ).rstrip(", ")
        return thing, name, field.text(ours, at), field.text(theirs, at)
    return None


def _place(log: CommitLogView, physical_offset: int) -> tuple[str, int]:
    file = log.file_at(physical_offset)
    return f"{paths.COMMIT_LOG}/{file.name}", physical_offset - file.start


def _record_around(log: CommitLogView, physical_offset: int) -> tuple[int, int] | None:
    """Return start and size of the record that holds a byte, None if there is none."""
    file = log.file_at(physical_offset)
    step = 64 * 1024
    while True:
        # Records can be of any size: look further back until one is found in front of the byte.
        low = max(physical_offset - step, file.start)
        start = low if low == file.start else log.find_record(low, physical_offset + 1)
        last: tuple[int, int] | None = None
        for batch in log.walk(start, physical_offset + 1, check_crc=False, is_end=False):
            starts = batch.positions + batch.physical_offset
            place = int(np.searchsorted(starts, physical_offset, "right")) - 1
            if place >= 0:
                last = int(starts[place]), int(batch.sizes[place])
        if last is not None:
            return last if physical_offset < sum(last) else None
        if low == file.start:
            return None
        step *= 16


def _in_queue_file(
    left: StoreReader, right: StoreReader, path: str, position: int
) -> tuple[str, str | None, str, str] | None:
    start = paths.parse_offset_name(path.rsplit("/", 1)[-1])
    if start is None:
        return None
    is_batch = path.startswith(paths.BATCH_CONSUME_QUEUE + "/")
    number, field = record_fields.of_unit(start + position, is_batch=is_batch)
    width = record_fields.unit_bytes(is_batch=is_batch)
    ours, theirs = _both(left, right, path, number * width - start, width)
    return f"unit {number}", field.name, field.text(ours, 0), field.text(theirs, 0)


def _in_index(
    left: StoreReader, right: StoreReader, path: str, position: int
) -> tuple[str, str | None, str, str] | None:
    name = path.rsplit("/", 1)[-1]
    for reader in (left, right):
        try:
            view = next(one for one in reader.index.files if one.name == name)
            thing, field, start = record_fields.of_index(position, view.slot_count)
        except (StopIteration, CorruptRecord):
            continue
        ours, theirs = _both(left, right, path, start, field.stop)
        return thing, field.name, field.text(ours, 0), field.text(theirs, 0)
    return None


# Messages -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LogPart:
    """Records that start at ``[start, stop)`` of the logs."""

    start: int
    stop: int


@dataclass(frozen=True)
class _Records:
    """The records of one side in a part of the log."""

    starts: Offsets
    sizes: Offsets
    stop: int
    """Where the next record behind them starts, or the log ends."""


def in_log(sides: Sides, part: LogPart) -> Iterator[Finding]:
    """Yield the messages of a part that only one side has at their place, or that differ."""
    left, right = sides.readers
    ours, theirs = (_span(one, part) for one in (left, right))
    if ours == theirs and _are_equal(left, right, *ours):
        return
    mine, other = (_records(one, part) for one in (left, right))
    common, at_left, at_right = np.intersect1d(
        mine.starts, other.starts, assume_unique=True, return_indices=True
    )
    is_other = mine.sizes[at_left] != other.sizes[at_right]
    is_other |= np.isin(common, _changed(left, right, mine))
    found = [
        *_only(left, right, np.setdiff1d(mine.starts, common, assume_unique=True), ONLY_LEFT),
        *_only(right, left, np.setdiff1d(other.starts, common, assume_unique=True), ONLY_RIGHT),
    ]
    for start in common[is_other].tolist():
        one = _different(_message(left.log, start), _message(right.log, start), sides.ignore, start)
        if one is not None:
            found.append(one)
    yield from sorted(found, key=lambda one: one.physical_offset or 0)


def _span(reader: StoreReader, part: LogPart) -> tuple[int, int]:
    """Return where the first record of a part starts, and where the first behind it does."""
    low = max(part.start, reader.log.min_offset)
    high = min(part.stop, reader.end_offset)
    if low >= high:
        return low, low
    end = reader.end_offset
    return reader.log.part_start(low, high), end if high == end else _next(reader, high)


def _next(reader: StoreReader, physical_offset: int) -> int:
    """Return where the first record or file from an offset on starts."""
    return reader.log.part_start(physical_offset, reader.end_offset)


def _are_equal(left: StoreReader, right: StoreReader, start: int, stop: int) -> bool:
    return all(
        np.array_equal(ours, theirs) for _, ours, theirs in _windows(left, right, start, stop)
    )


def _windows(
    left: StoreReader, right: StoreReader, start: int, stop: int
) -> Iterator[tuple[int, npt.NDArray[np.uint8], npt.NDArray[np.uint8]]]:
    """Yield physical offset and the bytes of both logs; what is in no file is left out."""
    at = start
    while at < stop:
        room = min(stop - at, WINDOW_BYTES, *(_room(one.log, at) for one in (left, right)))
        ours, theirs = (_log_bytes(one, at, room) for one in (left, right))
        yield at, ours, theirs
        at += room


def _room(log: CommitLogView, physical_offset: int) -> int:
    """Return how far it is to the next edge of a file."""
    edges = [edge for file in log.files for edge in (file.start, file.end)]
    return min(
        (edge - physical_offset for edge in edges if edge > physical_offset), default=1 << 62
    )


def _log_bytes(reader: StoreReader, start: int, length: int) -> npt.NDArray[np.uint8]:
    try:
        path, position = _place(reader.log, start)
    except NotInStore:
        return np.empty(0, np.uint8)
    return _bytes(reader.folder, path, position, length)


def _records(reader: StoreReader, part: LogPart) -> _Records:
    start, stop = _span(reader, part)
    starts, sizes = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    high = min(part.stop, reader.end_offset)
    if start < high:
        is_end = high == reader.end_offset
        for batch in reader.log.walk(start, high, check_crc=False, is_end=is_end):
            starts.append(batch.positions + batch.physical_offset)
            sizes.append(batch.sizes.astype(np.int64))
    return _Records(np.concatenate(starts), np.concatenate(sizes), stop)


def _changed(left: StoreReader, right: StoreReader, mine: _Records) -> Offsets:
    """Return where the records of the left side start that hold a byte that is another right."""
    if not len(mine.starts):
        return mine.starts
    stop = int(mine.starts[-1] + mine.sizes[-1])
    changed = []
    for at, ours, theirs in _windows(left, right, int(mine.starts[0]), stop):
        length = min(len(ours), len(theirs))
        bytes_at = at + np.flatnonzero(ours[:length] != theirs[:length])
        places = np.searchsorted(mine.starts, bytes_at, "right") - 1
        places = np.unique(places[places >= 0])
        changed.append(mine.starts[places])
    return np.unique(np.concatenate(changed)) if changed else np.empty(0, np.int64)


def _message(log: CommitLogView, physical_offset: int) -> StoredMessage:
    """Return the message at an offset, whatever its checksums say."""
    batch = next(
        iter(log.walk(physical_offset, physical_offset + 1, check_crc=False, is_end=False))
    )
    return record.decode(batch.buffer, int(batch.positions[0]), check_crc=False)


def _only(has: StoreReader, lacks: StoreReader, starts: Offsets, kind: str) -> Iterator[Finding]:
    side, other = ("left", "right") if kind == ONLY_LEFT else ("right", "left")
    for start in starts.tolist():
        one = _message(has.log, start)
        yield Finding(
            "messages",
            kind,
            f"message {one.queue_offset} of {one.topic}/{one.queue_id} at {start} is only on the "
            f"{side}; {other}: {_what_stands(lacks, start)}",
            topic=one.topic,
            queue_id=one.queue_id,
            queue_offset=one.queue_offset,
            physical_offset=start,
        )


def _what_stands(reader: StoreReader, physical_offset: int) -> str:
    """Say why a log has no record at an offset."""
    if physical_offset < reader.log.min_offset:
        return f"the log begins at {reader.log.min_offset}"
    if physical_offset >= reader.end_offset:
        return f"the log ends at {reader.end_offset}"
    try:
        reader.log.record_bytes(physical_offset)
    except NotInStore:
        return record.REASONS[Verdict.MISSING]
    except CorruptRecord as error:
        return error.reason
    return "a record that overlaps another one"


def _different(
    ours: StoredMessage, theirs: StoredMessage, ignore: frozenset[str], physical_offset: int
) -> Finding | None:
    names = [name for name in _MESSAGE_FIELDS if getattr(ours, name) != getattr(theirs, name)]
    names = [name for name in names if name not in ignore]
    shown = [name.replace("property_bytes", "properties") for name in names]
    if not names:
        return None
    details = [_detail(name, ours, theirs) for name in names]
    broken = [
        f"{side}: {record.REASONS[Verdict.BAD_CRC]}"
        for side, one in (("left", ours), ("right", theirs))
        if one.body and bodies.crc(one.body) != one.body_crc
    ]
    told = "; ".join([*(f"{name} left {a}, right {b}" for name, a, b in details), *broken])
    return Finding(
        "messages",
        DIFFERENT,
        f"message {ours.queue_offset} of {ours.topic}/{ours.queue_id} at {physical_offset} "
        f"differs: {told}",
        topic=ours.topic,
        queue_id=ours.queue_id,
        queue_offset=ours.queue_offset,
        physical_offset=physical_offset,
        field=",".join(shown),
        left="; ".join(a for _, a, _ in details),
        right="; ".join(b for _, _, b in details),
    )


def _detail(name: str, ours: StoredMessage, theirs: StoredMessage) -> tuple[str, str, str]:
    """Return where a field differs, and what both sides have there."""
    if name == "property_bytes":
        keys = sorted({*ours.properties, *theirs.properties})
        other = [key for key in keys if ours.properties.get(key) != theirs.properties.get(key)]
        if other:
            return (
                f"property {', '.join(other)}",
                _short([ours.properties.get(key) for key in other]),
                _short([theirs.properties.get(key) for key in other]),
            )
    a, b = getattr(ours, name), getattr(theirs, name)
    if not isinstance(a, bytes):
        return name, _short(a), _short(b)
    length = min(len(a), len(b))
    mine, other_bytes = (np.frombuffer(one[:length], np.uint8) for one in (a, b))
    at = _first_difference(mine, other_bytes)
    at = length if at is None else at
    return f"{name.replace('property_bytes', 'properties')}[{at}]", _hex(a[at:]), _hex(b[at:])


def _short(value: Any) -> str:
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    text = "nothing" if value is None else str(value)
    return text if len(text) <= _TOO_LONG else text[:_TOO_LONG] + "..."


# Queues ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class QueuePart:
    """Units ``[start, stop)`` of a queue."""

    topic: str
    queue_id: int
    start: int
    stop: int
    is_batch: bool = False


def in_queue(sides: Sides, part: QueuePart) -> Iterator[Finding]:
    """Yield runs of units that only one side has, or that differ in the same fields."""
    left, right = sides.readers
    (ours, mine), (theirs, other) = (_units(one, part) for one in (left, right))
    common, at_left, at_right = np.intersect1d(
        ours, theirs, assume_unique=True, return_indices=True
    )
    name = f"{'batch queue' if part.is_batch else 'queue'} {part.topic}/{part.queue_id}"
    found = [
        *_only_units(name, part, np.setdiff1d(ours, common), ONLY_LEFT),
        *_only_units(name, part, np.setdiff1d(theirs, common), ONLY_RIGHT),
    ]
    mine, other = mine[at_left], other[at_right]
    fields = [one for one in mine.dtype.names or () if one not in sides.ignore]
    differs = np.zeros(len(common), np.int64)
    for bit, one in enumerate(fields):
        differs |= (mine[one] != other[one]).astype(np.int64) << bit
    for mask in np.unique(differs[differs != 0]).tolist():
        rows = np.flatnonzero(differs == mask)
        names = [one for bit, one in enumerate(fields) if mask >> bit & 1]
        for start, stop in queue_runs.of(common[rows]):
            row = int(np.searchsorted(common, start))
            a = ", ".join(f"{one} {mine[one][row]}" for one in names)
            b = ", ".join(f"{one} {other[one][row]}" for one in names)
            found.append(
                Finding(
                    "queues",
                    DIFFERENT,
                    f"{name}: {_units_text(start, stop)} differ; the first: left {a}, right {b}",
                    count=stop - start,
                    topic=part.topic,
                    queue_id=part.queue_id,
                    queue_offset=start,
                    field=",".join(names),
                    left=a,
                    right=b,
                )
            )
    yield from sorted(found, key=lambda one: one.queue_offset or 0)


def _units(reader: StoreReader, part: QueuePart) -> tuple[Offsets, UnitArray]:
    if not part.is_batch:
        return reader.queue(part.topic, part.queue_id).units(part.start, part.stop)
    units = reader.batch_queue(part.topic, part.queue_id).units
    offsets = units["queue_offset"].astype(np.int64)
    inside = (offsets >= part.start) & (offsets < part.stop)
    return offsets[inside], units[inside]


def _only_units(name: str, part: QueuePart, offsets: Offsets, kind: str) -> Iterator[Finding]:
    side = "left" if kind == ONLY_LEFT else "right"
    for start, stop in queue_runs.of(offsets):
        yield Finding(
            "queues",
            kind,
            f"{name}: {_units_text(start, stop)} only on the {side}",
            count=stop - start,
            topic=part.topic,
            queue_id=part.queue_id,
            queue_offset=start,
        )


def _units_text(start: int, stop: int) -> str:
    return f"unit {start}" if stop == start + 1 else f"units {start} to {stop - 1}"


# Tables ---------------------------------------------------------------------------------------

TABLES = (paths.TOPICS, paths.CONSUMER_OFFSETS, paths.DELAY_OFFSETS, paths.SUBSCRIPTION_GROUPS)


def in_table(left: StoreReader, right: StoreReader, path: str) -> Iterator[Finding]:
    """Yield the entries of a table that only one side has, or that differ."""
    tables = []
    for reader in (left, right):
        try:
            tables.append(_entries(reader, path))
        except CorruptRecord as error:
            tables.append({("cannot be read", None): error.reason})
    ours, theirs = tables
    for key in sorted({*ours, *theirs}, key=str):
        a, b = ours.get(key), theirs.get(key)
        if a == b:
            continue
        kind = DIFFERENT if key in ours and key in theirs else ONLY_RIGHT
        kind = ONLY_LEFT if key not in theirs else kind
        name, where = key
        topic, queue_id = where or (None, None)
        label = f"{name} {topic}/{queue_id}" if where else name
        yield Finding(
            "tables",
            kind,
            f"{path}: {label}: left {_short(a)}, right {_short(b)}",
            file=path,
            topic=topic,
            queue_id=queue_id,
            field=name,
            left=_short(a),
            right=_short(b),
        )


_Key = tuple[str, tuple[str, int] | None]


def _entries(reader: StoreReader, path: str) -> dict[_Key, Any]:
    """Return a table's entries: by name, and queue where they have one."""
    if path == paths.TOPICS:
        return {(name, None): one for name, one in reader.topics().items()}
    if path == paths.CONSUMER_OFFSETS:
        return {_offset_key(one): one.consumer_offset for one in reader.consumer_offsets()}
    if path == paths.DELAY_OFFSETS:
        return {(f"level {level}", None): at for level, at in reader.delay_offsets().items()}
    return {(name, None): one for name, one in reader.subscription_groups().items()}


def _offset_key(one: ConsumerOffset) -> _Key:
    return f"group {one.group}", (one.topic, one.queue_id)


def capped(
    findings: Iterator[Finding], most: int
) -> tuple[dict[tuple[str, str], int], list[Finding]]:
    """Return how many things each section and kind counts, and the first findings."""
    counts: dict[tuple[str, str], int] = {}
    first: list[Finding] = []
    for one in findings:
        key = one.section, one.kind
        counts[key] = counts.get(key, 0) + one.count
        if len(first) < most:
            first.append(one)
    return counts, first


def sampled_matches(left: StoreReader, right: StoreReader, places: Sequence[int]) -> bool:
    """Whether most records found from some places on are the same message on both sides."""
    same = other = 0
    for place in places:
        start = left.log.find_record(place, left.end_offset)
        try:
            ours, theirs = left.log.message_at(start), right.log.message_at(start)
        except (CorruptRecord, NotInStore):
            other += 1
            continue
        keys = [(one.topic, one.queue_id, one.queue_offset) for one in (ours, theirs)]
        same += keys[0] == keys[1]
        other += keys[0] != keys[1]
    return same > other
