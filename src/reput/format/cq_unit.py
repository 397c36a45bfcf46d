"""Consume-queue units: position and size of the n-th message of a queue in the log.

Plain unit, 20 bytes: physical offset, record size, tags code. With an extension file the tags
code is an *extension address*, and the extension unit holds the real one. 5.x batch queues have
units of 46 bytes, one per batch. Field tables: docs/formats/consume-queue.md.
"""

import struct
from dataclasses import dataclass

from reput.errors import CorruptRecord
from reput.format import java

UNIT = struct.Struct(
    ">"
    "q"  # physical offset of the record
    "i"  # its size; 0 ends the data
    "q"  # tags code: Java hash of TAGS, deliver time in the schedule topic, or extension address
)
SIZE = UNIT.size
QUEUE_OFFSET_MAX = 1 << 38
"""Maximum queue offset: beyond it the file would exceed the limits of file systems."""

EXT_HEAD = struct.Struct(
    ">"
    "h"  # size of this unit; -1 ends the file
    "q"  # tags code
    "q"  # store timestamp, ms
    "h"  # bytes of the bit map
)
EXT_END = struct.Struct(">h")
EXT_END_MARK = -1
EXT_ADDRESS_MAX = -(1 << 31) - 1
"""Largest extension address (file position + the smallest long); greater values are tags codes."""
_LONG_MIN = -(1 << 63)

BATCH_UNIT = struct.Struct(
    ">"
    "q"  # physical offset of the record
    "i"  # its size; 0 ends the data
    "q"  # tags code
    "q"  # store timestamp, ms
    "q"  # queue offset of the first message in the batch
    "h"  # messages in the batch
    "i"  # compacted offset, -1 unless the topic is compacted
    "i"  # reserved
)
BATCH_SIZE = BATCH_UNIT.size

PRE_BLANK_SIZE = 0x7FFFFFFF
"""Size field of the units before the first message of a queue that does not start at 0 in its
file."""


@dataclass(frozen=True, slots=True)
class Unit:
    """A plain unit."""

    physical_offset: int
    size: int
    tags_code: int

    @property
    def is_written(self) -> bool:
        """True if it points at a record; False for zeros after the end and for pre-blank units."""
        return self.size > 0 and self.physical_offset >= 0 and not self.is_pre_blank

    @property
    def is_pre_blank(self) -> bool:
        """True if it fills the space before the first message."""
        return self.size == PRE_BLANK_SIZE and self.physical_offset == 0

    @property
    def is_ext_address(self) -> bool:
        """True if ``tags_code`` is an address in the extension file."""
        return is_ext_address(self.tags_code)


@dataclass(frozen=True, slots=True)
class ExtUnit:
    """A unit of the extension file."""

    size: int
    tags_code: int
    store_timestamp: int
    bit_map: bytes


@dataclass(frozen=True, slots=True)
class BatchUnit:
    """A unit of a batch queue of 5.x."""

    physical_offset: int
    size: int
    tags_code: int
    store_timestamp: int
    queue_offset: int
    message_count: int
    compacted_offset: int

    @property
    def is_written(self) -> bool:
        """True if it points at a record."""
        return self.size > 0 and self.physical_offset >= 0 and self.message_count > 0


def tags_code(tags: str | None) -> int:
    """Return the tags code of a message's whole TAGS property; 0 without tags."""
    return java.string_hash(tags) if tags else 0


def pack(unit: Unit) -> bytes:
    """Return the 20 bytes of a unit."""
    return UNIT.pack(unit.physical_offset, unit.size, unit.tags_code)


def unpack(buffer: bytes | memoryview, position: int = 0) -> Unit:
    """Return the unit at ``position``. Raises ``CorruptRecord`` if it is cut."""
    return Unit(*_unpack(UNIT, buffer, position, "consume-queue unit"))


def pack_batch(unit: BatchUnit) -> bytes:
    """Return the 46 bytes of a batch unit."""
    return BATCH_UNIT.pack(
        unit.physical_offset,
        unit.size,
        unit.tags_code,
        unit.store_timestamp,
        unit.queue_offset,
        unit.message_count,
        unit.compacted_offset,
        0,
    )


def unpack_batch(buffer: bytes | memoryview, position: int = 0) -> BatchUnit:
    """Return the batch unit at ``position``. Raises ``CorruptRecord`` if it is cut."""
    return BatchUnit(*_unpack(BATCH_UNIT, buffer, position, "batch consume-queue unit")[:7])


def is_ext_address(code: int) -> bool:
    """Return whether a tags code of a queue is an extension address."""
    return code <= EXT_ADDRESS_MAX


def ext_address(ext_offset: int) -> int:
    """Return the extension address of byte ``ext_offset`` of the extension files."""
    return ext_offset + _LONG_MIN


def ext_offset(address: int) -> int:
    """Return the byte of the extension files that an extension address points at."""
    return address - _LONG_MIN


def pack_ext(unit: ExtUnit) -> bytes:
    """Return the bytes of an extension unit. Raises ``ValueError`` if it exceeds 32767 bytes."""
    size = EXT_HEAD.size + len(unit.bit_map)
    if size > 32767:
        raise ValueError(f"extension unit takes {size} bytes; at most 32767")
    head = EXT_HEAD.pack(size, unit.tags_code, unit.store_timestamp, len(unit.bit_map))
    return head + unit.bit_map


def unpack_ext(buffer: bytes | memoryview, position: int = 0) -> ExtUnit | None:
    """Return the extension unit at ``position``; None at the end mark or in unwritten zeros.

    Raises:
        CorruptRecord: The unit is cut or its sizes do not agree.
    """
    (size,) = _unpack(EXT_END, buffer, position, "extension unit")
    if size in (EXT_END_MARK, 0):
        return None
    size, code, store_timestamp, bit_map_bytes = _unpack(
        EXT_HEAD, buffer, position, "extension unit"
    )
    end = position + size
    if bit_map_bytes < 0 or size != EXT_HEAD.size + bit_map_bytes or end > len(buffer):
        raise CorruptRecord(f"extension unit at {position} has size {size}, map {bit_map_bytes}")
    return ExtUnit(size, code, store_timestamp, bytes(buffer[position + EXT_HEAD.size : end]))


def _unpack(
    layout: struct.Struct, buffer: bytes | memoryview, position: int, what: str
) -> tuple[int, ...]:
    if position < 0 or len(buffer) - position < layout.size:
        raise CorruptRecord(f"{what} at {position} is cut: {len(buffer)} bytes in all")
    return layout.unpack_from(buffer, position)
