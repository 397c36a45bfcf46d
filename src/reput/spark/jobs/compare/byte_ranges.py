"""Find the first byte of a file that differs, and the record field, unit or entry that has it."""

from dataclasses import dataclass

import numpy as np

from reput.errors import CorruptRecord
from reput.format import message as record
from reput.spark.jobs.compare import record_fields, two_stores
from reput.spark.jobs.compare.findings import DIFFERENT, Mismatch
from reput.spark.jobs.compare.two_stores import TwoStores
from reput.store.files import paths
from reput.store.log.commit_log_view import CommitLogView
from reput.store.reader import StoreReader


@dataclass(frozen=True, slots=True)
class FilePart:
    """Bytes ``[start, stop)`` of a file that both stores have."""

    path: str
    start: int
    stop: int


def in_file(both: TwoStores, part: FilePart) -> Mismatch | None:
    """Return the first differing byte of a part, explained; None if there is none."""
    left, right = both.readers
    position = part.start
    while position < part.stop:
        length = min(part.stop - position, two_stores.WINDOW_BYTES)
        ours, theirs = (
            two_stores.read(side.folder, part.path, position, length) for side in (left, right)
        )
        length = min(len(ours), len(theirs))
        if not length:
            return None  # cut meanwhile; sizes are compared elsewhere
        differing = two_stores.first_difference(ours[:length], theirs[:length])
        if differing is not None:
            return _explain(left, right, part.path, position + differing)
        position += length
    return None


def _explain(left: StoreReader, right: StoreReader, path: str, position: int) -> Mismatch:
    """Return the first differing byte with its record and field, and the values of both sides."""
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
        part = record_fields.of_checkpoint(position)
        if part is not None:
            ours, theirs = _both(left, right, path, 0, part.stop)
            where = "checkpoint", part.name, part.text(ours, 0), part.text(theirs, 0)
    if where is None:
        ours, theirs = _both(left, right, path, position, 32)
        where = "", None, _plain(ours), _plain(theirs)
    owner, field, before, after = where
    named = ": " + " ".join(part for part in (owner, f"field {field}" if field else "") if part)
    return Mismatch(
        "files",
        DIFFERENT,
        f"{path} differs from byte {position} on{named if owner or field else ''}: "
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
    """Return printable text unchanged, and other bytes in hexadecimal."""
    is_text = data.isascii() and data.decode().isprintable()
    return repr(data.decode()) if is_text else record_fields.hex_text(data)


def _in_log(
    left: StoreReader, right: StoreReader, physical_offset: int
) -> tuple[str, str | None, str, str] | None:
    """Find the record that has a byte of the log, on the side where there is one."""
    path, position = two_stores.place(left.log, physical_offset)
    for reader in (left, right):
        span = _record_around(reader.log, physical_offset)
        if span is None:
            continue
        start, size = span
        first = position - (physical_offset - start)
        ours, theirs = _both(left, right, path, first, size)
        data = ours if reader is left else theirs
        field = record_fields.of_record(data, physical_offset - start)
        name = field.name
        if not field.is_number:
            name = f"{name}[{physical_offset - start - field.start}]"
        inside = physical_offset - start
        message = record.decode(data, check_crc=False)
        queue = f"{message.topic}/{message.queue_id}"
        owner = f"record at {start} (message {message.queue_offset} of {queue})"
        return owner, name, field.text(ours, inside), field.text(theirs, inside)
    return None


def _record_around(log: CommitLogView, physical_offset: int) -> tuple[int, int] | None:
    """Return start and size of the record that has a byte, None if there is none."""
    file = log.file_at(physical_offset)
    step = 64 * 1024
    while True:
        # Records can have any size: search further back until one starts before the byte.
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
            view = next(file for file in reader.index.files if file.name == name)
            owner, field, start = record_fields.of_index(position, view.slot_count)
        except (StopIteration, CorruptRecord):
            continue
        ours, theirs = _both(left, right, path, start, field.stop)
        return owner, field.name, field.text(ours, 0), field.text(theirs, 0)
    return None
