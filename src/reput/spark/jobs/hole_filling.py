"""Holes of a log, and what takes their place. Pure.

Java's readers cannot step over bytes that are no record, except from a blank to the end of a file.
So a hole in the middle of a file is filled with records that nobody gets: rolled-back ones, which
every version of the dispatch leaves out of queues and index alike. What stands behind the hole
keeps its physical offset, and with it every message id, queue unit and link between transactions.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from reput.errors import CorruptRecord
from reput.format import body as bodies, message as record, sys_flag as flags
from reput.format.message import Host, StoredMessage

TOPIC = "SALVAGED"
"""Topic of the records that fill a hole, shorter where the hole is too small for it."""
SMALLEST_FILL_BYTES = record.FIXED_BYTES_V1 + 1
PIECE_BYTES_MAX = 1024 * 1024
"""Readers hold whole records in memory: a large hole is filled with several."""
_NOWHERE = Host(bytes(4), 0)


@dataclass(frozen=True, slots=True)
class Hole:
    """A run of bytes of the log that holds no record that can be had."""

    physical_offset: int
    length: int
    reason: str
    file: str
    """Name of the log file it begins in."""
    store_timestamp: int = 0
    """Of the record before it, else of the one behind it, ms; 0 if neither is known."""

    @property
    def end(self) -> int:
        """Physical offset behind the last of these bytes."""
        return self.physical_offset + self.length


@dataclass(frozen=True, slots=True)
class Fill:
    """A part of a hole that lies in one file."""

    physical_offset: int
    length: int
    file_end: int
    """Physical offset where its file ends."""
    store_timestamp: int

    @property
    def end(self) -> int:
        """Physical offset behind the last of these bytes."""
        return self.physical_offset + self.length


def join(holes: Iterable[Hole]) -> list[Hole]:
    """Return holes in order, with those that touch made one; its reason names all of theirs."""
    joined: list[Hole] = []
    for hole in sorted(holes, key=lambda one: one.physical_offset):
        last = joined[-1] if joined else None
        if last is None or hole.physical_offset > last.end:
            joined.append(hole)
            continue
        is_new = hole.reason not in last.reason.split("; ")
        joined[-1] = replace(
            last,
            length=max(last.end, hole.end) - last.physical_offset,
            reason=f"{last.reason}; {hole.reason}" if is_new else last.reason,
            store_timestamp=last.store_timestamp or hole.store_timestamp,
        )
    return joined


def in_files(hole: Hole, first_start: int, file_bytes: int) -> Iterator[Fill]:
    """Yield the parts of a hole, one for each file it reaches into.

    Args:
        hole: The hole.
        first_start: Physical offset where any of the files starts.
        file_bytes: Bytes of each file.
    """
    at = hole.physical_offset
    while at < hole.end:
        file_end = at + file_bytes - (at - first_start) % file_bytes
        stop = min(hole.end, file_end)
        yield Fill(at, stop - at, file_end, hole.store_timestamp)
        at = stop


def content(fill: Fill, *, has_crc: bool = False) -> Iterator[tuple[int, bytes]]:
    """Yield physical offsets and bytes that take a hole's place; bytes left out are zeros.

    Up to the end of a file it is a blank, of which the first bytes are all; else records.

    Args:
        fill: What is to be filled.
        has_crc: Give the records a checksum property where there is room for it.

    Raises:
        CorruptRecord: No record fits: damage of a log that a broker wrote leaves no such hole.
    """
    if fill.end == fill.file_end and fill.length >= record.BLANK.size:
        yield fill.physical_offset, record.pack_blank(fill.length)
        return
    if fill.length < SMALLEST_FILL_BYTES:
        raise CorruptRecord(
            f"a hole of {fill.length} bytes is too small for a record to take its place",
            physical_offset=fill.physical_offset,
            length=fill.length,
        )
    at = fill.physical_offset
    count = -(-fill.length // PIECE_BYTES_MAX)
    for number in range(count):
        stop = fill.physical_offset + fill.length * (number + 1) // count
        yield at, filler(at, stop - at, fill.store_timestamp, has_crc=has_crc)
        at = stop


def filler(
    physical_offset: int, length: int, store_timestamp: int, *, has_crc: bool = False
) -> bytes:
    """Return a rolled-back record of ``length`` bytes, at least ``SMALLEST_FILL_BYTES``."""
    has_crc &= length >= SMALLEST_FILL_BYTES + record.CRC_PROPERTY_BYTES
    room = length - record.FIXED_BYTES_V1 - (record.CRC_PROPERTY_BYTES if has_crc else 0)
    topic = TOPIC[: min(len(TOPIC), room)]
    body = bytes(room - len(topic))
    data = record.encode(
        StoredMessage(
            topic=topic,
            body=body,
            queue_id=0,
            queue_offset=0,
            physical_offset=physical_offset,
            born_timestamp=store_timestamp,
            born_host=_NOWHERE,
            store_timestamp=store_timestamp,
            store_host=_NOWHERE,
            sys_flag=flags.TRANSACTION_ROLLBACK,
            body_crc=bodies.crc(body),
        )
    )
    return record.append_crc_property(data) if has_crc else data
