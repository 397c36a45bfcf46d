"""The kernel ``copy_for_commit.decided`` in plain Python: slow, obvious, on the same memory."""

import ctypes
import struct

from reput.format import message as record, properties as props
from reput.store.kernels import copy_args as words
from reput.store.kernels.copy_records_twin import (
    SIZE,
    TAIL_AT,
    Place,
    is_from_topic,
    made_of,
    pairs_of,
    stored_at,
)
from reput.store.kernels.twin_memory import Row, read, write

_PLACE = struct.Struct(f"={words.DECIDED_WORDS}q")
_TOLD = struct.Struct(f"={words.DECIDED_TOLD_WORDS}q")
_BODY_AT = TAIL_AT + record.TAIL.size
_DIGITS_MAX = 19


def _is_common_half(properties: bytes, group: bytes) -> bool:
    """Whether properties are those of a group's half message that was put once."""
    pairs = dict(pairs_of(properties))
    if props.DELAY in pairs or props.TRANSACTION_HALF_OFFSET in pairs:
        return False
    groups = [value or b"" for name, value in pairs_of(properties) if name == props.PRODUCER_GROUP]
    return bool(group) and groups[-1:] == [group]


def _op(call: Row, queue_offset: int) -> bytes:
    like = read(call[words.OP], call[words.OP_SIZE])
    body = b"%d" % queue_offset
    size = SIZE.pack(len(like) + len(body))
    body_size = SIZE.pack(len(body))
    head = like[SIZE.size : _BODY_AT - SIZE.size]
    return size + head + body_size + body + like[_BODY_AT:]


def _made(call: Row, row: tuple[int, ...], room: int) -> tuple[bytes, bytes] | int:
    """Return the final message, empty if there is none, and the op message; or why not."""
    *place, group_at, group_size, is_commit = row
    where = Place(*place)
    found = stored_at(call, where)
    if isinstance(found, int):
        return found
    _, _, _, _, _, queue_offset, _, _, _ = record.HEAD.unpack_from(found.head)
    group = read(call[words.MORE] + group_at, group_size)
    if (
        queue_offset < 0
        or not is_from_topic(call, found.topic)
        or not _is_common_half(found.properties, group)
    ):
        return words.STOP_UNCOMMON
    room -= call[words.OP_SIZE] + _DIGITS_MAX
    if not is_commit:
        return (b"", _op(call, queue_offset)) if room >= 0 else words.STOP_ROOM
    final = made_of(call, where, found, room)
    return final if isinstance(final, int) else (final, _op(call, queue_offset))


def decided(address: ctypes.c_int64) -> int:
    """Make records; as the kernel ``copy_for_commit.decided``."""
    call = Row(address.value)
    count = total = 0
    stop = words.STOP_DONE
    while count < call[words.PLACE_COUNT]:
        row = read(call[words.PLACES] + count * _PLACE.size, _PLACE.size)
        made = _made(call, _PLACE.unpack(row), call[words.SCRATCH_ROOM] - total)
        if isinstance(made, int):
            stop = made
            break
        final, op = made
        write(call[words.SCRATCH] + total, final + op)
        write(call[words.SIZES] + count * _TOLD.size, _TOLD.pack(len(final), len(op)))
        total += len(final) + len(op)
        count += 1
    call[words.STOP] = stop
    call[words.RESULT_BYTES] = total
    return count
