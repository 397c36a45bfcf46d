"""The kernels ``again`` and ``waiting`` in plain Python: slow, obvious, on the same memory."""

import ctypes
import re
import struct
from collections.abc import Iterator
from typing import NamedTuple

from reput.format import message as record, names, properties as props, sys_flag as flags
from reput.store.kernels import control_block as state, copy_args as words
from reput.store.kernels.twin_memory import Row, read, word_at, write

SIZE = struct.Struct(">i")
TAIL_AT = record.FIXED_BYTES_V1 - 3 - record.TAIL.size
_UNCOMMON_FLAGS = flags.BORN_HOST_V6 | flags.STORE_HOST_V6 | flags.INNER_BATCH
_PLACE = struct.Struct(f"={words.PLACE_WORDS}q")
_WAITING = struct.Struct(f"={words.WAITING_WORDS}q")
_INT_MAX = (1 << 31) - 1
_WORD_MAX = (1 << 64) - 1


class Place(NamedTuple):
    """Where a stored record stands, and what is appended to its properties."""

    queue_offset: int
    physical_offset: int
    size: int
    more: int
    more_size: int


class Stored(NamedTuple):
    """The parts of a stored record."""

    head: bytes
    """All up to the body, and the body."""
    topic: bytes
    properties: bytes
    address: int


def _places(call: Row) -> Iterator[Place]:
    for number in range(call[words.PLACE_COUNT]):
        yield Place(*_PLACE.unpack(read(call[words.PLACES] + number * _PLACE.size, _PLACE.size)))


def stored_at(call: Row, place: Place) -> Stored | int:
    """Return the record of a place, or why it is not common."""
    block = Row(call[words.BLOCK])
    at, readable = place.physical_offset, block[state.READABLE]
    if place.size < 0 or at < 0 or at + record.FIXED_BYTES_V1 > readable:
        return words.STOP_UNCOMMON
    number, position = divmod(at - block[state.FILES_START], block[state.FILE_SIZE])
    if not 0 <= number < block[state.FILE_COUNT]:
        return words.STOP_UNCOMMON
    address = word_at(block[state.FILES] + 8 * number)
    if address == 0:
        call[words.STOP_OFFSET] = at
        return words.STOP_UNMAPPED
    left = min(block[state.FILE_SIZE] - position, readable - at)
    if address == state.FILE_IS_GONE or left < record.FIXED_BYTES_V1:
        return words.STOP_UNCOMMON
    (size,) = SIZE.unpack(read(address + position, SIZE.size))
    if place.size not in (0, size) or not record.FIXED_BYTES_V1 <= size <= left:
        return words.STOP_UNCOMMON
    address += position
    return _parts(read(address, size), place, address) or words.STOP_UNCOMMON


def _parts(data: bytes, place: Place, address: int) -> Stored | None:
    verdict, _ = record.classify(data, 0, place.physical_offset, check_crc=False)
    _, magic, _, _, _, queue_offset, _, sys_flag, _ = record.HEAD.unpack_from(data)
    is_uncommon = magic != record.MAGIC_V1 or sys_flag & _UNCOMMON_FLAGS
    if verdict is not record.Verdict.MESSAGE or is_uncommon:
        return None
    if place.queue_offset >= 0 and place.queue_offset != queue_offset:
        return None
    _, _, body_size = record.TAIL.unpack_from(data, TAIL_AT)
    topic_at = TAIL_AT + record.TAIL.size + body_size + 1
    properties_at = topic_at + data[topic_at - 1] + record.PROPERTIES_LENGTH.size
    topic = data[topic_at : properties_at - record.PROPERTIES_LENGTH.size]
    return Stored(data[: topic_at - 1], topic, data[properties_at:], address)


def pairs_of(properties: bytes) -> Iterator[tuple[str, bytes | None]]:
    """Yield names and values, as they come; without a separator there is no value."""
    for pair in properties.split(props.PROPERTY_SEPARATOR.encode()):
        name, separator, value = pair.partition(props.NAME_VALUE_SEPARATOR.encode())
        yield name.decode("latin-1"), value if separator else None


def _number(text: bytes) -> int:
    return int(text) if text.isdigit() and len(text) <= words.DIGITS_MAX else -1


def _destination(call: Row, properties: bytes) -> tuple[bytes, int] | None:
    """Return where a message goes; None if that, or one of its properties, is not common."""
    pairs = list(pairs_of(properties))
    found = {name: value for name, value in pairs if value is not None}
    odd = {props.CRC32}
    if call[words.HAS_LIGHT_QUEUES]:
        odd.add(props.INNER_MULTI_DISPATCH)
    if any(name in odd for name, _ in pairs):
        return None
    if call[words.TOPIC]:
        return read(call[words.TOPIC], call[words.TOPIC_SIZE]), call[words.QUEUE_ID]
    topic = found.get(props.REAL_TOPIC, b"")
    queue_id = _number(found.get(props.REAL_QUEUE_ID, b""))
    text = topic.decode("latin-1")
    is_legal = names.is_legal_topic(text, call[words.TOPIC_MAX])
    if not is_legal or text.startswith(words.SYSTEM_PREFIX) or not 0 <= queue_id <= _INT_MAX:
        return None
    return topic, queue_id


def _without(properties: bytes, dropped: list[bytes]) -> bytes:
    pairs = re.findall(b"[^\x02]*\x02|[^\x02]+", properties)
    return b"".join(one for one in pairs if re.split(b"[\x01\x02]", one)[0] not in dropped)


def is_from_topic(call: Row, topic: bytes) -> bool:
    """Whether records of a topic are those that are wanted."""
    return read(call[words.FROM_TOPIC], call[words.FROM_TOPIC_SIZE]) in (b"", topic)


def made_of(call: Row, place: Place, found: Stored, room: int) -> bytes | int:
    """Return the record that is put again, or why there is none."""
    head, own_topic, own, _ = found
    if not is_from_topic(call, own_topic):
        return words.STOP_UNCOMMON
    where = _destination(call, own)
    if where is None:
        return words.STOP_UNCOMMON
    topic, queue_id = where
    sys_flag = record.HEAD.unpack_from(head)[7]
    reconsume_times = record.TAIL.unpack_from(head, TAIL_AT)[0]
    reconsume_times += call[words.RECONSUME_MORE]
    most = len(own) + 1 + place.more_size
    size_max = len(head) + 1 + len(topic) + record.PROPERTIES_LENGTH.size + most
    if (
        reconsume_times > _INT_MAX
        or most > words.PROPERTIES_MAX
        or size_max > call[words.RECORD_MAX]
    ):
        return words.STOP_UNCOMMON
    if size_max > room:
        return words.STOP_ROOM
    dropped = read(call[words.DROPPED], call[words.DROPPED_SIZE]).split(b"\2")[:-1]
    more = read(call[words.MORE] + place.more, place.more_size)
    properties = props.append(_without(own, dropped) if dropped else own, more)
    sys_flag = sys_flag & ~call[words.SYS_FLAGS_OFF] | call[words.SYS_FLAGS_ON]
    prepared = place.physical_offset if call[words.PREPARED_IS_PLACE] else 0
    return made_anew(head, topic, queue_id, properties, sys_flag, reconsume_times, prepared)


def made_anew(
    head: bytes,
    topic: bytes,
    queue_id: int,
    properties: bytes,
    sys_flag: int,
    reconsume_times: int,
    prepared: int = 0,
) -> bytes:
    """Return a record, which lacks its place, with the head and body of another one."""
    fields = list(record.HEAD.unpack_from(head))
    fields[2], fields[3], fields[7] = 0, queue_id, sys_flag
    _, _, body_size = record.TAIL.unpack_from(head, TAIL_AT)
    made = bytearray(head)
    record.HEAD.pack_into(made, 0, *fields)
    record.TAIL.pack_into(made, TAIL_AT, reconsume_times, prepared, body_size)
    made += record.TOPIC_LENGTH_V1.pack(len(topic)) + topic
    made += record.PROPERTIES_LENGTH.pack(len(properties)) + properties
    SIZE.pack_into(made, 0, len(made))
    return bytes(made)


def again(address: ctypes.c_int64) -> int:
    """Make records; as the kernel ``copy_records.again``."""
    call = Row(address.value)
    count = total = 0
    stop = words.STOP_DONE
    for place in _places(call):
        found = stored_at(call, place)
        room = call[words.SCRATCH_ROOM] - total
        made = found if isinstance(found, int) else made_of(call, place, found, room)
        if isinstance(made, int):
            stop = made
            break
        write(call[words.SCRATCH] + total, made)
        Row(call[words.SIZES])[count] = len(made)
        total += len(made)
        count += 1
    call[words.STOP] = stop
    call[words.RESULT_BYTES] = total
    return count


def _fnv(data: bytes) -> int:
    value = words.FNV_START & _WORD_MAX
    for byte in data:
        value = (value ^ byte) * words.FNV_FACTOR & _WORD_MAX
    return value - (1 << 64) if value >> 63 else value


def _said(properties: bytes) -> tuple[int, int, bool, int]:
    """Return TIMER_OUT_MS, TIMER_ROLL_TIMES, whether it is a recall, and the hash of its topic."""
    pairs = [(name, value) for name, value in pairs_of(properties) if value is not None]
    found = dict(pairs)
    if any(
        name == props.TIMER_ROLL_TIMES and len(value) > words.DIGITS_MAX for name, value in pairs
    ):
        return -1, 0, False, 0
    roll_times = max(_number(found.get(props.TIMER_ROLL_TIMES, b"")), 0)
    out_ms = _number(found.get(props.TIMER_OUT_MS, b""))
    topic = _fnv(found.get(props.REAL_TOPIC, b""))
    return out_ms, roll_times, bool(found.get(props.TIMER_RECALLED_KEY)), topic


def waiting(address: ctypes.c_int64) -> int:
    """Read what messages say; as the kernel ``copy_records.waiting``."""
    call = Row(address.value)
    rows = call[words.SIZES]
    for count, place in enumerate(_places(call)):
        found = stored_at(call, place)
        if found == words.STOP_UNMAPPED:
            call[words.STOP] = words.STOP_UNMAPPED
            return count
        row = rows + count * _WAITING.size
        if isinstance(found, Stored):
            stored_ms = record.store_timestamp_of(found.head)
            out_ms, roll_times, is_recall, topic = _said(found.properties)
            write(row, _WAITING.pack(out_ms, stored_ms, roll_times, is_recall, topic))
        else:
            Row(row)[words.WAITING_OUT_MS] = -1
    call[words.STOP] = words.STOP_DONE
    return call[words.PLACE_COUNT]
