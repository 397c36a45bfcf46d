"""The tables of the control block, read and written in Python: rows, slots and index entries.

The store uses it where a kernel has no part, and the reference implementation is built on it.
Fields of rows: ``control_block``.
"""

import ctypes
import struct

from reput.format import index_entry
from reput.store.kernels import control_block as state

_WORD = struct.Struct("=q")
_INT = struct.Struct(">i")
_INT_MAX = 0x7FFFFFFF

# --- memory -----------------------------------------------------------------------------------


class Row:
    """Words at an address: the block, the row of a topic, the row of a queue."""

    def __init__(self, address: int) -> None:
        self.address = address

    def __getitem__(self, number: int) -> int:
        return word_at(self.address + 8 * number)

    def __setitem__(self, number: int, value: int) -> None:
        write(self.address + 8 * number, _WORD.pack(value))


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


def topic_row(block: Row, name: bytes) -> Row | None:
    """Return the row of a topic; None if it has no row."""
    slots = block[state.TOPIC_SLOTS]
    slot = name_slot(name, slots)
    while address := word_at(block[state.TOPICS] + 8 * slot):
        row = Row(address)
        if read(row[state.TOPIC_NAME], row[state.TOPIC_NAME_SIZE]) == name:
            return row
        slot = (slot + 1) % slots
    return None


def queue_row(topic: Row, queue_id: int) -> Row | None:
    """Return the row of a queue; None if it has no row."""
    if not 0 <= queue_id < topic[state.TOPIC_QUEUE_LIMIT]:
        return None
    address = word_at(topic[state.TOPIC_QUEUES] + 8 * queue_id)
    return Row(address) if address else None


# --- the index file ---------------------------------------------------------------------------


def put_entry(block_address: int, key: str, physical_offset: int, store_timestamp: int) -> None:
    """Put an index entry. The file must have room for it. Its header is not written.

    Args:
        block_address: The address of the control block.
        key: The key of the entry, ``topic#key``.
        physical_offset: The physical offset of the message.
        store_timestamp: The store time of the message, ms.
    """
    block = Row(block_address)
    key_hash = index_entry.key_hash(key)
    slots = block[state.INDEX_SLOTS]
    number = block[state.INDEX_NEXT]
    slot = block[state.INDEX_ADDRESS] + index_entry.slot_position(key_hash % slots)
    (previous,) = _INT.unpack(read(slot, 4))
    if not 0 < previous <= number:
        previous = 0
    begin = block[state.INDEX_BEGIN_TIMESTAMP]
    seconds = max(store_timestamp - begin, 0) // 1000 if begin > 0 else 0
    entry = index_entry.Entry(key_hash, physical_offset, min(seconds, _INT_MAX), previous)
    position = block[state.INDEX_ADDRESS] + index_entry.entry_position(number, slots)
    write(position, index_entry.pack_entry(entry))
    write(slot, _INT.pack(number))
    if number <= 1:
        block[state.INDEX_BEGIN_OFFSET] = physical_offset
        block[state.INDEX_BEGIN_TIMESTAMP] = store_timestamp
    if previous == 0:
        block[state.INDEX_SLOTS_USED] += 1
    block[state.INDEX_NEXT] = number + 1
    block[state.INDEX_END_OFFSET] = physical_offset
    block[state.INDEX_END_TIMESTAMP] = store_timestamp


def write_index_header(block_address: int) -> None:
    """Write the header of the index file from the words of the block, if there is a file."""
    block = Row(block_address)
    if block[state.INDEX_ADDRESS]:
        header = index_entry.Header(
            block[state.INDEX_BEGIN_TIMESTAMP],
            block[state.INDEX_END_TIMESTAMP],
            block[state.INDEX_BEGIN_OFFSET],
            block[state.INDEX_END_OFFSET],
            block[state.INDEX_SLOTS_USED],
            block[state.INDEX_NEXT],
        )
        write(block[state.INDEX_ADDRESS], index_entry.pack_header(header))
