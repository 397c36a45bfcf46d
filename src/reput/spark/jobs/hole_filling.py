"""Holes of a log, and the records that fill them. Pure.

Java's readers cannot skip bytes that are no record, except from a blank to the end of a file. So a
hole in the middle of a file is filled with records that no consumer gets: rolled-back ones, which
every version of the dispatch leaves out of queues and index. Records after the hole keep their
physical offset, and with it every message id, queue unit and link between transactions.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from reput.errors import CorruptRecord
from reput.format import body as bodies, message as record, sys_flag as flags
from reput.format.message import Host, StoredMessage

TOPIC = "SALVAGED"
"""Topic of the records that fill a hole; shortened if the hole is too small."""
SMALLEST_FILL_BYTES = record.FIXED_BYTES_V1 + 1
PIECE_BYTES_MAX = 1024 * 1024
"""Largest filler: readers hold whole records in memory, so a large hole gets several."""
_NOWHERE = Host(bytes(4), 0)


@dataclass(frozen=True, slots=True)
class Hole:
    """A run of bytes of the log without a usable record."""

    physical_offset: int
    length: int
    reason: str
    file: str
    """Name of the log file in which it begins."""
    store_timestamp: int = 0
    """Store time of the record before it, else of the one after it, in ms; 0 if unknown."""

    @property
    def end(self) -> int:
        """Physical offset after the last of these bytes."""
        return self.physical_offset + self.length


@dataclass(frozen=True, slots=True)
class Fill:
    """A part of a hole within one file."""

    physical_offset: int
    length: int
    file_end: int
    """Physical offset where its file ends."""
    store_timestamp: int

    @property
    def end(self) -> int:
        """Physical offset after the last of these bytes."""
        return self.physical_offset + self.length


def join(holes: Iterable[Hole]) -> list[Hole]:
    """Return the holes sorted, with adjacent ones joined; a joined hole has the reasons of all."""
    joined: list[Hole] = []
    for hole in sorted(holes, key=lambda hole: hole.physical_offset):
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
    """Yield the parts of a hole, one per file.

    Args:
        hole: The hole.
        first_start: Physical offset where any of the files starts.
        file_bytes: Size of a file.
    """
    start = hole.physical_offset
    while start < hole.end:
        file_end = start + file_bytes - (start - first_start) % file_bytes
        stop = min(hole.end, file_end)
        yield Fill(start, stop - start, file_end, hole.store_timestamp)
        start = stop


def content(fill: Fill, *, has_crc: bool = False) -> Iterator[tuple[int, bytes]]:
    """Yield physical offsets and bytes that fill a hole; bytes that are left out are zeros.

    The end of a file is filled with a blank, of which only the head is written; else with records.

    Args:
        fill: The part to fill.
        has_crc: Give the records a checksum property if there is room for it.

    Raises:
        CorruptRecord: The part is too small for a record; damage of a broker's log never is.
    """
    if fill.end == fill.file_end and fill.length >= record.BLANK.size:
        yield fill.physical_offset, record.pack_blank(fill.length)
        return
    if fill.length < SMALLEST_FILL_BYTES:
        raise CorruptRecord(
            f"a hole of {fill.length} bytes is too small for a record to fill it",
            physical_offset=fill.physical_offset,
            length=fill.length,
        )
    start = fill.physical_offset
    count = -(-fill.length // PIECE_BYTES_MAX)
    for number in range(count):
        stop = fill.physical_offset + fill.length * (number + 1) // count
        yield start, filler(start, stop - start, fill.store_timestamp, has_crc=has_crc)
        start = stop


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
