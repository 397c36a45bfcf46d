"""The kernel ``copy_for_retry.later`` in plain Python: slow, obvious, on the same memory."""

import ctypes
import struct

from reput.format import message as record, names, properties as props
from reput.store.kernels import control_block as state, copy_args as words
from reput.store.kernels.copy_records_twin import TAIL_AT, Place, made_anew, pairs_of, stored_at
from reput.store.kernels.twin_memory import Row, read, write

_PLACE = struct.Struct(f"={words.LATER_WORDS}q")
_TOLD = struct.Struct(f"={words.TOLD_WORDS}q")
_ID = struct.Struct(">q")
_TOPIC = names.SCHEDULE_TOPIC.encode()
_REPLACED = {props.WAIT, props.DELAY, props.REAL_TOPIC, props.REAL_QUEUE_ID}
_STORE_HOST_AT = TAIL_AT - record.HOST_V4_BYTES
_ADDED_MAX = len(f"\2{props.RETRY_TOPIC}\1\2{props.ORIGIN_MESSAGE_ID}\1\2") + 32
_ADDED_MAX += len(f"{props.WAIT}\1false\2{props.DELAY}\1") + 19
"""Bytes of what is added at most, besides a topic and what the caller adds."""


def _kept(call: Row, properties: bytes) -> dict[str, bytes] | None:
    """Return the pairs that are kept, the last of a name; None: one is not common."""
    odd = {props.CRC32}
    if call[words.HAS_LIGHT_QUEUES]:
        odd.add(props.INNER_MULTI_DISPATCH)
    kept: dict[str, bytes] = {}
    for name, value in pairs_of(properties.removesuffix(b"\2")) if properties else ():
        is_again = name in kept and name in (props.RETRY_TOPIC, props.ORIGIN_MESSAGE_ID)
        if not name or not value or name in odd or is_again:
            return None
        kept[name] = value
    return kept


def _without_replaced(properties: bytes) -> bytes:
    pairs = [one for one in properties.removesuffix(b"\2").split(b"\2") if one]
    kept = [one for one in pairs if one.partition(b"\1")[0].decode("latin-1") not in _REPLACED]
    return b"".join(one + b"\2" for one in kept)


def _made(
    call: Row, place: Place, wanted: int, times_max: int, room: int
) -> tuple[bytes, int, int] | int:
    """Return the record that waits, and where the topic stands that the message was sent to.

    Otherwise why there is none.
    """
    found = stored_at(call, place)
    if isinstance(found, int):
        return found
    head, own_topic, own, address = found
    times = record.TAIL.unpack_from(head, TAIL_AT)[0]
    if not own_topic or not 0 <= times < times_max:
        return words.STOP_UNCOMMON
    most = len(own) + len(own_topic) + _ADDED_MAX + place.more_size
    size_max = len(head) + 1 + len(_TOPIC) + record.PROPERTIES_LENGTH.size + most
    if most > words.PROPERTIES_MAX or size_max > call[words.RECORD_MAX]:
        return words.STOP_UNCOMMON
    if size_max > room:
        return words.STOP_ROOM
    kept = _kept(call, own)
    if kept is None:
        return words.STOP_UNCOMMON
    level = wanted or words.FIRST_DELAY_LEVEL + times
    level = min(level, Row(call[words.BLOCK])[state.DELAY_COUNT])
    properties = _without_replaced(own)
    origin, origin_size = address + len(head) + 1, len(own_topic)
    if props.RETRY_TOPIC in kept:
        mark = f"{props.RETRY_TOPIC}\1".encode()
        position = (b"\2" + own).index(b"\2" + mark) + len(mark)
        origin_size = len(kept[props.RETRY_TOPIC])
        origin += len(own_topic) + record.PROPERTIES_LENGTH.size + position
    else:
        properties += b"%b\1%b\2" % (props.RETRY_TOPIC.encode(), own_topic)
    if props.ORIGIN_MESSAGE_ID not in kept:
        host = head[_STORE_HOST_AT:TAIL_AT]
        text = (host + _ID.pack(place.physical_offset)).hex().upper()
        properties += f"{props.ORIGIN_MESSAGE_ID}\1{text}\2".encode()
    properties += f"{props.WAIT}\1false\2{props.DELAY}\1{level}\2".encode()
    properties += read(call[words.MORE] + place.more, place.more_size)
    sys_flag = record.HEAD.unpack_from(head)[7]
    made = made_anew(head, _TOPIC, level - 1, properties, sys_flag, times + 1)
    return made, origin, origin_size


def later(address: ctypes.c_int64) -> int:
    """Make records; as the kernel ``copy_for_retry.later``."""
    call = Row(address.value)
    count = total = 0
    stop = words.STOP_DONE
    before: tuple[int, int] | None = None
    while count < call[words.PLACE_COUNT]:
        row = read(call[words.PLACES] + count * _PLACE.size, _PLACE.size)
        *place, wanted, times_max = _PLACE.unpack(row)
        room = call[words.SCRATCH_ROOM] - total
        made = _made(call, Place(*place), wanted, times_max, room)
        if isinstance(made, int):
            stop = made
            break
        data, origin, origin_size = made
        if before is not None and before[1] == origin_size:
            is_same = read(before[0], origin_size) == read(origin, origin_size)
            origin = before[0] if is_same else origin
        before = origin, origin_size
        write(call[words.SCRATCH] + total, data)
        told = _TOLD.pack(len(data), origin, origin_size)
        write(call[words.SIZES] + count * _TOLD.size, told)
        total += len(data)
        count += 1
    call[words.STOP] = stop
    call[words.RESULT_BYTES] = total
    return count
