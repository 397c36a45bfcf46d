"""Compare the messages of two logs with the same physical offsets.

Parts of the logs are compared as bytes; only different parts are decoded, record by record.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields as fields_of

import numpy as np
import numpy.typing as npt

from reput.errors import CorruptRecord, NotInStore
from reput.format import body as bodies, message as record
from reput.format.message import StoredMessage, Verdict
from reput.spark.jobs.compare import record_fields, two_stores
from reput.spark.jobs.compare.findings import DIFFERENT, ONLY_LEFT, ONLY_RIGHT, Mismatch, short
from reput.spark.jobs.compare.two_stores import Bytes, TwoStores
from reput.store.log.commit_log_view import CommitLogView
from reput.store.reader import StoreReader

_MESSAGE_FIELDS = tuple(
    item.name for item in fields_of(StoredMessage) if item.name not in ("properties", "version")
)

Offsets = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class LogSpan:
    """Records that start at ``[start, stop)`` of the logs."""

    start: int
    stop: int


@dataclass(frozen=True)
class _Records:
    """The records of one side in a part of the log."""

    starts: Offsets
    sizes: Offsets
    stop: int
    """Physical offset where the next record starts, or the log ends."""


def in_log(both: TwoStores, part: LogSpan) -> Iterator[Mismatch]:
    """Yield the messages of a part that only one side has at their place, or that differ."""
    left, right = both.readers
    ours, theirs = (_span(side, part) for side in (left, right))
    if ours == theirs and _are_equal(left, right, *ours):
        return
    mine, other = (_records(side, part) for side in (left, right))
    common, at_left, at_right = np.intersect1d(
        mine.starts, other.starts, assume_unique=True, return_indices=True
    )
    is_other = mine.sizes[at_left] != other.sizes[at_right]
    is_other |= np.isin(common, _changed(left, right, mine))
    mismatches = [
        *_alone(left, right, np.setdiff1d(mine.starts, common, assume_unique=True), ONLY_LEFT),
        *_alone(right, left, np.setdiff1d(other.starts, common, assume_unique=True), ONLY_RIGHT),
    ]
    for start in common[is_other].tolist():
        ours_there, theirs_there = _message(left.log, start), _message(right.log, start)
        mismatch = _different(ours_there, theirs_there, both.ignore, start)
        if mismatch is not None:
            mismatches.append(mismatch)
    yield from sorted(mismatches, key=lambda mismatch: mismatch.physical_offset or 0)


def _span(reader: StoreReader, part: LogSpan) -> tuple[int, int]:
    """Return where the first record of a part starts, and where the first one after it does."""
    low = max(part.start, reader.log.min_offset)
    high = min(part.stop, reader.end_offset)
    if low >= high:
        return low, low
    end = reader.end_offset
    return reader.log.part_start(low, high), end if high == end else _next(reader, high)


def _next(reader: StoreReader, physical_offset: int) -> int:
    """Return where the first record or file at or after an offset starts."""
    return reader.log.part_start(physical_offset, reader.end_offset)


def _are_equal(left: StoreReader, right: StoreReader, start: int, stop: int) -> bool:
    return all(
        np.array_equal(ours, theirs) for _, ours, theirs in _windows(left, right, start, stop)
    )


def _windows(
    left: StoreReader, right: StoreReader, start: int, stop: int
) -> Iterator[tuple[int, Bytes, Bytes]]:
    """Yield physical offset and the bytes of both logs; none where a log has no file."""
    place = start
    while place < stop:
        room = min(
            stop - place,
            two_stores.WINDOW_BYTES,
            *(_room(side.log, place) for side in (left, right)),
        )
        ours, theirs = (_log_bytes(side, place, room) for side in (left, right))
        yield place, ours, theirs
        place += room


def _room(log: CommitLogView, physical_offset: int) -> int:
    """Return the bytes up to the next start or end of a file."""
    edges = [edge for file in log.files for edge in (file.start, file.end)]
    return min(
        (edge - physical_offset for edge in edges if edge > physical_offset), default=1 << 62
    )


def _log_bytes(reader: StoreReader, start: int, length: int) -> Bytes:
    try:
        path, position = two_stores.place(reader.log, start)
    except NotInStore:
        return np.empty(0, np.uint8)
    return two_stores.read(reader.folder, path, position, length)


def _records(reader: StoreReader, part: LogSpan) -> _Records:
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
    """Return the starts of the left side's records in which a byte differs from the right side."""
    if not len(mine.starts):
        return mine.starts
    stop = int(mine.starts[-1] + mine.sizes[-1])
    changed = []
    for place, ours, theirs in _windows(left, right, int(mine.starts[0]), stop):
        length = min(len(ours), len(theirs))
        bytes_at = place + np.flatnonzero(ours[:length] != theirs[:length])
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


def _alone(has: StoreReader, lacks: StoreReader, starts: Offsets, kind: str) -> Iterator[Mismatch]:
    side, other = ("left", "right") if kind == ONLY_LEFT else ("right", "left")
    for start in starts.tolist():
        message = _message(has.log, start)
        queue = f"{message.topic}/{message.queue_id}"
        yield Mismatch(
            "messages",
            kind,
            f"message {message.queue_offset} of {queue} at {start} is only on the "
            f"{side}; {other}: {_why_absent(lacks, start)}",
            topic=message.topic,
            queue_id=message.queue_id,
            queue_offset=message.queue_offset,
            physical_offset=start,
        )


def _why_absent(reader: StoreReader, physical_offset: int) -> str:
    """Return the reason why a log has no record at an offset."""
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
) -> Mismatch | None:
    names = [name for name in _MESSAGE_FIELDS if getattr(ours, name) != getattr(theirs, name)]
    names = [name for name in names if name not in ignore]
    shown = [name.replace("property_bytes", "properties") for name in names]
    if not names:
        return None
    details = [_detail(name, ours, theirs) for name in names]
    broken = [
        f"{side}: {record.REASONS[Verdict.BAD_CRC]}"
        for side, message in (("left", ours), ("right", theirs))
        if message.body and bodies.crc(message.body) != message.body_crc
    ]
    text = "; ".join([*(f"{name} left {a}, right {b}" for name, a, b in details), *broken])
    return Mismatch(
        "messages",
        DIFFERENT,
        f"message {ours.queue_offset} of {ours.topic}/{ours.queue_id} at {physical_offset} "
        f"differs: {text}",
        topic=ours.topic,
        queue_id=ours.queue_id,
        queue_offset=ours.queue_offset,
        physical_offset=physical_offset,
        field=",".join(shown),
        left="; ".join(a for _, a, _ in details),
        right="; ".join(b for _, _, b in details),
    )


def _detail(name: str, ours: StoredMessage, theirs: StoredMessage) -> tuple[str, str, str]:
    """Return the place of a difference in a field, and the values of both sides."""
    if name == "property_bytes":
        keys = sorted({*ours.properties, *theirs.properties})
        other = [key for key in keys if ours.properties.get(key) != theirs.properties.get(key)]
        if other:
            return (
                f"property {', '.join(other)}",
                _values_of(ours, other),
                _values_of(theirs, other),
            )
    a, b = getattr(ours, name), getattr(theirs, name)
    if not isinstance(a, bytes):
        return name, short(a), short(b)
    length = min(len(a), len(b))
    mine, other_bytes = (np.frombuffer(value[:length], np.uint8) for value in (a, b))
    first = two_stores.first_difference(mine, other_bytes)
    first = length if first is None else first
    return (
        f"{name.replace('property_bytes', 'properties')}[{first}]",
        record_fields.hex_text(a[first:]),
        record_fields.hex_text(b[first:]),
    )


def _values_of(message: StoredMessage, keys: Sequence[str]) -> str:
    values = [message.properties.get(key) for key in keys]
    return short(values[0] if len(values) == 1 else values)


def sampled_matches(left: StoreReader, right: StoreReader, places: Sequence[int]) -> bool:
    """Return whether most records sampled at some places are the same message on both sides."""
    same = other = 0
    for place in places:
        start = left.log.find_record(place, left.end_offset)
        try:
            ours, theirs = left.log.message_at(start), right.log.message_at(start)
        except (CorruptRecord, NotInStore):
            other += 1
            continue
        keys = [(side.topic, side.queue_id, side.queue_offset) for side in (ours, theirs)]
        same += keys[0] == keys[1]
        other += keys[0] != keys[1]
    return same > other
