"""The tables of the control block, read and written in Python: rows, slots and index entries.

The store uses it where a kernel has no part, and the reference implementation is built on it.
Fields of rows: ``control_block``.
"""

import ctypes
import struct

from reput.format import index_entry
from reput.store.kernels.control_block import ControlBlock, QueueRow, TopicRow

_WORD = struct.Struct("=q")
_INT = struct.Struct(">i")
_INT_MAX = 0x7FFFFFFF

# --- memory -----------------------------------------------------------------------------------


def read(address: int, size: int) -> bytes:
    """Return a copy of the bytes at an address."""
    return ctypes.string_at(address, size)


def write(address: int, data: bytes) -> None:
    """Write bytes to an address."""
    ctypes.memmove(address, data, len(data))


def word_at(address: int) -> int:
    """Return the word at an address."""
    value: int = _WORD.unpack(read(address, 8))[0]
    return value


# --- topics and queues ------------------------------------------------------------------------


def name_slot(name: bytes, slot_count: int) -> int:
    """Return the first slot of a table to try for a name: the FNV-1a hash of its bytes.

    Args:
        name: The name in UTF-8.
        slot_count: The number of slots, a power of two.
    """
    value = 0x811C9DC5
    for byte in name:
        value = ((value ^ byte) * 0x01000193) & 0xFFFFFFFF
    return value & (slot_count - 1)


def topic_row(block: ControlBlock, name: bytes) -> TopicRow | None:
    """Return the row of a topic; None if it has no row."""
    slots = block.topic_slots
    slot = name_slot(name, slots)
    while address := word_at(block.topics + 8 * slot):
        row = TopicRow.from_address(address)
        if read(row.name, row.name_size) == name:
            return row
        slot = (slot + 1) % slots
    return None


def queue_row(topic: TopicRow, queue_id: int) -> QueueRow | None:
    """Return the row of a queue; None if it has no row."""
    if not 0 <= queue_id < topic.queue_limit:
        return None
    address = word_at(topic.queues + 8 * queue_id)
    return QueueRow.from_address(address) if address else None


# --- the index file ---------------------------------------------------------------------------


def put_entry(block_address: int, key: str, physical_offset: int, store_timestamp: int) -> None:
    """Put an index entry. The file must have room for it. Its header is not written.

    Args:
        block_address: The address of the control block.
        key: The key of the entry, ``topic#key``.
        physical_offset: The physical offset of the message.
        store_timestamp: The store time of the message, ms.
    """
    block = ControlBlock.from_address(block_address)
    key_hash = index_entry.key_hash(key)
    slots = block.index_slots
    number = block.index_next
    slot = block.index_address + index_entry.slot_position(key_hash % slots)
    (previous,) = _INT.unpack(read(slot, 4))
    if not 0 < previous <= number:
        previous = 0
    begin = block.index_begin_timestamp
    seconds = max(store_timestamp - begin, 0) // 1000 if begin > 0 else 0
    entry = index_entry.Entry(key_hash, physical_offset, min(seconds, _INT_MAX), previous)
    position = block.index_address + index_entry.entry_position(number, slots)
    write(position, index_entry.pack_entry(entry))
    write(slot, _INT.pack(number))
    if number <= 1:
        block.index_begin_offset = physical_offset
        block.index_begin_timestamp = store_timestamp
    if previous == 0:
        block.index_slots_used += 1
    block.index_next = number + 1
    block.index_end_offset = physical_offset
    block.index_end_timestamp = store_timestamp


def write_index_header(block_address: int) -> None:
    """Write the header of the index file from the control block, if there is a file."""
    block = ControlBlock.from_address(block_address)
    if block.index_address:
        header = index_entry.Header(
            block.index_begin_timestamp,
            block.index_end_timestamp,
            block.index_begin_offset,
            block.index_end_offset,
            block.index_slots_used,
            block.index_next,
        )
        write(block.index_address, index_entry.pack_header(header))
