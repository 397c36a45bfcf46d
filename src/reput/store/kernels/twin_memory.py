"""The memory of the control block for the twins: words, rows and tables at addresses."""

import ctypes
import struct

from reput.store.kernels import control_block as state

_WORD = struct.Struct("=q")


class Row:
    """Words at an address: the block, a topic's row, a queue's row."""

    def __init__(self, address: int) -> None:
        self.address = address

    def __getitem__(self, number: int) -> int:
        return word_at(self.address + 8 * number)

    def __setitem__(self, number: int, value: int) -> None:
        write(self.address + 8 * number, _WORD.pack(value))


def read(address: int, size: int) -> bytes:
    """Return a copy of bytes."""
    return ctypes.string_at(address, size)


def write(address: int, data: bytes) -> None:
    """Put bytes at an address."""
    ctypes.memmove(address, data, len(data))


def word_at(address: int) -> int:
    """Return the word at an address."""
    value: int = _WORD.unpack(read(address, 8))[0]
    return value


def name_slot(name: bytes, slot_count: int) -> int:
    """Return the first slot of the topic table to try for a name: FNV-1a over its bytes."""
    value = 0x811C9DC5
    for byte in name:
        value = ((value ^ byte) * 0x01000193) & 0xFFFFFFFF
    return value & (slot_count - 1)


def topic_row(block: Row, name: bytes) -> Row | None:
    """Return the row of a topic, if it has one."""
    slots = block[state.TOPIC_SLOTS]
    slot = name_slot(name, slots)
    while address := word_at(block[state.TOPICS] + 8 * slot):
        row = Row(address)
        if read(row[state.TOPIC_NAME], row[state.TOPIC_NAME_SIZE]) == name:
            return row
        slot = (slot + 1) % slots
    return None


def queue_row(topic: Row, queue_id: int) -> Row | None:
    """Return the row of a queue, if it has one."""
    if not 0 <= queue_id < topic[state.TOPIC_QUEUE_LIMIT]:
        return None
    address = word_at(topic[state.TOPIC_QUEUES] + 8 * queue_id)
    return Row(address) if address else None
