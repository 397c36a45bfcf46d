"""Find the field of a record, unit or page that has a byte, and its value. Pure.

For an operator ``body[17]`` is clearer than ``byte 84103``.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass

from reput.format import cq_unit, index_entry, message as record, sys_flag as flags

_SHOWN_BYTES = 12

_HEAD_FIELDS = (
    ("total_size", 4),
    ("magic", 4),
    ("body_crc", 4),
    ("queue_id", 4),
    ("flag", 4),
    ("queue_offset", 8),
    ("physical_offset", 8),
    ("sys_flag", 4),
    ("born_timestamp", 8),
)
_UNIT_FIELDS = (("physical_offset", 8), ("size", 4), ("tags_code", 8))
_BATCH_UNIT_FIELDS = (
    *_UNIT_FIELDS,
    ("store_timestamp", 8),
    ("queue_offset", 8),
    ("message_count", 2),
    ("compacted_offset", 4),
    ("reserved", 4),
)
_INDEX_HEAD_FIELDS = (
    ("begin_timestamp", 8),
    ("end_timestamp", 8),
    ("begin_physical_offset", 8),
    ("end_physical_offset", 8),
    ("slots_used", 4),
    ("next_entry", 4),
)
_ENTRY_FIELDS = (("key_hash", 4), ("physical_offset", 8), ("seconds", 4), ("previous_entry", 4))
_CHECKPOINT_FIELDS = (
    ("physical_timestamp", 8),
    ("queue_timestamp", 8),
    ("index_timestamp", 8),
    ("master_flushed_offset", 8),
    ("confirmed_physical_offset", 8),
    ("queue_physical_offset", 8),
)
_INTEGERS = {1: "b", 2: "h", 4: "i", 8: "q"}


@dataclass(frozen=True, slots=True)
class RecordField:
    """A field and its position."""

    name: str
    start: int
    stop: int
    is_number: bool = True

    def text(self, data: bytes | memoryview, position: int) -> str:
        """Return the value of the field, or the bytes of a long one from ``position`` on."""
        width = self.stop - self.start
        if self.is_number and width in _INTEGERS and self.stop <= len(data):
            return str(struct.unpack_from(">" + _INTEGERS[width], data, self.start)[0])
        return hex_text(data[max(position, self.start) : self.stop])


def hex_text(data: bytes | memoryview) -> str:
    """Return the first bytes in hexadecimal."""
    shown = bytes(data[:_SHOWN_BYTES]).hex(" ")
    return f"{shown} ..." if len(data) > _SHOWN_BYTES else shown or "nothing"


def of_record(data: bytes | memoryview, position: int) -> RecordField:
    """Return the field of a whole record that has a byte."""
    return next(field for field in _record_fields(data) if position < field.stop)


def _record_fields(data: bytes | memoryview) -> Iterator[RecordField]:
    start = 0
    for name, width in _HEAD_FIELDS:
        yield RecordField(name, start, start + width)
        start += width
    (sys_flag,) = struct.unpack_from(">i", data, record.POSITION_SYS_FLAG)
    (magic,) = struct.unpack_from(">i", data, record.POSITION_MAGIC)
    born = record.host_bytes(sys_flag & flags.BORN_HOST_V6)
    yield RecordField("born_host", start, start + born, is_number=False)
    start += born
    yield RecordField("store_timestamp", start, start + 8)
    start += 8
    store = record.host_bytes(sys_flag & flags.STORE_HOST_V6)
    yield RecordField("store_host", start, start + store, is_number=False)
    start += store
    yield RecordField("reconsume_times", start, start + 4)
    yield RecordField("prepared_transaction_offset", start + 4, start + 12)
    yield RecordField("body_length", start + 12, start + 16)
    (body_bytes,) = struct.unpack_from(">i", data, start + 12)
    start += record.TAIL.size
    yield RecordField("body", start, start + body_bytes, is_number=False)
    start += body_bytes
    length = record.TOPIC_LENGTH_V2 if magic == record.MAGIC_V2 else record.TOPIC_LENGTH_V1
    yield RecordField("topic_length", start, start + length.size)
    (topic_bytes,) = length.unpack_from(data, start)
    start += length.size
    yield RecordField("topic", start, start + topic_bytes, is_number=False)
    start += topic_bytes
    yield RecordField("properties_length", start, start + record.PROPERTIES_LENGTH.size)
    start += record.PROPERTIES_LENGTH.size
    yield RecordField("properties", start, len(data), is_number=False)


def of_unit(position: int, *, is_batch: bool = False) -> tuple[int, RecordField]:
    """Return the number of the unit that has a byte of a queue, and its field in the unit."""
    fields = _BATCH_UNIT_FIELDS if is_batch else _UNIT_FIELDS
    number, rest = divmod(position, cq_unit.BATCH_SIZE if is_batch else cq_unit.SIZE)
    return number, _among(fields, rest)


def of_index(position: int, slot_count: int) -> tuple[str, RecordField, int]:
    """Return the part of an index file that has a byte, its field, and the start of the part."""
    if position < index_entry.HEADER.size:
        return "header", _among(_INDEX_HEAD_FIELDS, position), 0
    slot, rest = divmod(position - index_entry.HEADER.size, index_entry.SLOT.size)
    if slot < slot_count:
        return f"slot {slot}", RecordField("newest_entry", 0, 4), position - rest
    first = index_entry.HEADER.size + slot_count * index_entry.SLOT.size
    number, rest = divmod(position - first, index_entry.ENTRY.size)
    return f"entry {number}", _among(_ENTRY_FIELDS, rest), position - rest


def of_checkpoint(position: int) -> RecordField | None:
    """Return the field of the checkpoint page that has a byte; None after the last field."""
    if position >= sum(width for _, width in _CHECKPOINT_FIELDS):
        return None
    return _among(_CHECKPOINT_FIELDS, position)


def _among(fields: tuple[tuple[str, int], ...], position: int) -> RecordField:
    start = 0
    for name, width in fields:
        if position < start + width:
            return RecordField(name, start, start + width)
        start += width
    raise AssertionError(f"{position} is after the last field")


def unit_bytes(*, is_batch: bool) -> int:
    """Return the size of a unit."""
    return cq_unit.BATCH_SIZE if is_batch else cq_unit.SIZE
