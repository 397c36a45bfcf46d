"""The writing kernels in plain Python: slow, obvious, on the same memory through ``ctypes``.

Test oracle of ``append`` and ``pull``, and what runs where no compiled kernel can be had. Bytes
come from the codecs of ``reput.format``, not from arithmetic on addresses.
"""

import ctypes
import struct
from dataclasses import dataclass

from reput.format import (
    body as bodies,
    cq_unit,
    index_entry,
    java,
    message as record,
    properties as props,
    sys_flag as flags,
)
from reput.format.message import StoredMessage, Verdict
from reput.store.kernels import control_block as state
from reput.store.kernels.twin_memory import (
    Row as _Row,
    name_slot as name_slot,
    queue_row as _queue_row,
    read as _read,
    topic_row as _topic_row,
    word_at as _word_at,
    write as _write,
)

_WORD = struct.Struct("=q")
_INT = struct.Struct(">i")


def _mark(block: _Row, row: _Row, bit: int, items: int, count: int) -> None:
    if not row[state.QUEUE_MARKS] & bit:
        row[state.QUEUE_MARKS] |= bit
        _write(block[items] + 8 * block[count], _WORD.pack(row.address))
        block[count] += 1


# --- one record -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Parsed:
    """What dispatch needs of a record."""

    message: StoredMessage
    topic_name: bytes
    is_text: bool


def _parse(data: bytes) -> _Parsed:
    message = record.decode(data, check_crc=False)
    topic = java.encode_utf8(message.topic)
    try:
        message.property_bytes.decode()
        is_text = True
    except UnicodeDecodeError:
        is_text = False
    return _Parsed(message, topic, is_text)


def _tags_code(block: _Row, topic: _Row, message: StoredMessage, store_timestamp: int) -> int:
    delay = message.properties.get(props.DELAY, "")
    if topic[state.TOPIC_KIND] == state.KIND_SCHEDULE and delay.isascii() and delay.isdigit():
        level = int(delay)
        if 0 < level <= 0x7FFFFFFF:
            if level > block[state.DELAY_COUNT]:
                return store_timestamp + 1000
            return store_timestamp + _word_at(block[state.DELAYS] + 8 * (level - 1))
    return cq_unit.tags_code(message.tags)


def put_entry(block_address: int, key: str, physical_offset: int, store_timestamp: int) -> None:
    """Put one index entry; there is room for it. The header is not written."""
    block = _Row(block_address)
    key_hash = index_entry.key_hash(key)
    slots = block[state.INDEX_SLOTS]
    number = block[state.INDEX_NEXT]
    slot = block[state.INDEX_ADDRESS] + index_entry.slot_position(key_hash % slots)
    (previous,) = _INT.unpack(_read(slot, 4))
    if not 0 < previous <= number:
        previous = 0
    begin = block[state.INDEX_BEGIN_TIMESTAMP]
    seconds = max(store_timestamp - begin, 0) // 1000 if begin > 0 else 0
    entry = index_entry.Entry(key_hash, physical_offset, min(seconds, 0x7FFFFFFF), previous)
    place = block[state.INDEX_ADDRESS] + index_entry.entry_position(number, slots)
    _write(place, index_entry.pack_entry(entry))
    _write(slot, _INT.pack(number))
    if number <= 1:
        block[state.INDEX_BEGIN_OFFSET] = physical_offset
        block[state.INDEX_BEGIN_TIMESTAMP] = store_timestamp
    if previous == 0:
        block[state.INDEX_SLOTS_USED] += 1
    block[state.INDEX_NEXT] = number + 1
    block[state.INDEX_END_OFFSET] = physical_offset
    block[state.INDEX_END_TIMESTAMP] = store_timestamp


def write_index_header(block_address: int) -> None:
    """Write the words of the index file through to its header."""
    block = _Row(block_address)
    if block[state.INDEX_ADDRESS]:
        header = index_entry.Header(
            block[state.INDEX_BEGIN_TIMESTAMP],
            block[state.INDEX_END_TIMESTAMP],
            block[state.INDEX_BEGIN_OFFSET],
            block[state.INDEX_END_OFFSET],
            block[state.INDEX_SLOTS_USED],
            block[state.INDEX_NEXT],
        )
        _write(block[state.INDEX_ADDRESS], index_entry.pack_header(header))


def _put_unit(block: _Row, row: _Row, unit: cq_unit.Unit) -> None:
    place = row[state.QUEUE_MAX_OFFSET] - row[state.QUEUE_TAIL_OFFSET]
    _write(row[state.QUEUE_TAIL] + cq_unit.SIZE * place, cq_unit.pack(unit))
    row[state.QUEUE_MAX_OFFSET] += 1
    row[state.QUEUE_END_PHYSICAL] = unit.physical_offset + unit.size
    _mark(block, row, state.MARK_DIRTY, state.DIRTY, state.DIRTY_COUNT)
    _mark(block, row, state.MARK_TOUCHED, state.TOUCHED, state.TOUCHED_COUNT)


def _dispatch_record(
    block: _Row,
    topic: _Row,
    row: _Row,
    parsed: _Parsed,
    at: int,
    physical_offset: int,
    store_timestamp: int,
    wants_unit: bool,
) -> int:
    message = parsed.message
    is_rolled_back = flags.transaction_type(message.sys_flag) == flags.TRANSACTION_ROLLBACK
    may_be_indexed = block[state.INDEX_IS_ON] and not is_rolled_back
    if may_be_indexed and physical_offset == block[state.INDEX_END_OFFSET]:
        return state.STOP_SLOW
    is_queued = wants_unit and flags.is_queued(message.sys_flag)
    if is_queued:
        used = row[state.QUEUE_MAX_OFFSET] - row[state.QUEUE_TAIL_OFFSET]
        if not row[state.QUEUE_TAIL] or used >= row[state.QUEUE_TAIL_LIMIT]:
            block[state.STOP_ROW] = row.address
            return state.STOP_UNITS
    keys: list[str] = []
    if may_be_indexed and physical_offset > block[state.INDEX_END_OFFSET]:
        keys = record.index_keys(message, has_tags=bool(block[state.INDEX_HAS_TAGS]))
        limit = min(block[state.INDEX_ENTRIES_MAX], block[state.INDEX_LIMIT])
        has_room = block[state.INDEX_ADDRESS] and block[state.INDEX_NEXT] + len(keys) <= limit
        if keys and not has_room:
            return state.STOP_INDEX
    if is_queued:
        code = _tags_code(block, topic, message, store_timestamp)
        _put_unit(block, row, cq_unit.Unit(physical_offset, message.store_size, code))
    for key in keys:
        put_entry(block.address, key, physical_offset, store_timestamp)
    block[state.LAST_PHYSICAL_OFFSET] = physical_offset
    block[state.LAST_STORE_TIMESTAMP] = store_timestamp
    block[state.DISPATCHED] = physical_offset + message.store_size
    is_light = props.INNER_MULTI_DISPATCH in message.properties
    if is_light and is_queued and block[state.HAS_LIGHT_QUEUES]:
        block[state.STOP_ROW] = at
        return state.STOP_LIGHT
    return state.STOP_DONE


def _find_rows(block: _Row, parsed: _Parsed) -> tuple[int, _Row | None, _Row | None]:
    topic = _topic_row(block, parsed.topic_name)
    if topic is None:
        return state.STOP_TOPIC, None, None
    row = _queue_row(topic, parsed.message.queue_id)
    if row is None:
        block[state.STOP_ROW] = topic.address
        return state.STOP_QUEUE, topic, None
    return state.STOP_DONE, topic, row


def _is_slow(topic: _Row, parsed: _Parsed) -> bool:
    is_batch = bool(parsed.message.sys_flag & flags.INNER_BATCH)
    return topic[state.TOPIC_KIND] == state.KIND_SLOW or is_batch or not parsed.is_text


# --- entry points ---------------------------------------------------------------------------


def append(block_address: ctypes.c_int64, buffer: bytes) -> int:
    """Place records; as the kernel ``append.append``."""
    block = _Row(block_address.value)
    size, now_ms = block[state.INPUT_SIZE], block[state.INPUT_TIME]
    count = 0
    stop = state.STOP_DONE
    is_live = bool(block[state.IS_LIVE])
    while block[state.INPUT_POSITION] < size:
        at = block[state.INPUT_POSITION]
        (record_size,) = _INT.unpack_from(buffer, at)
        data = bytearray(buffer[at : at + record_size])
        parsed = _parse(bytes(data))
        position = block[state.LOG_POSITION]
        behind = position + record_size
        if not block[state.LOG_ADDRESS] or behind + record.BLANK.size > block[state.LOG_SIZE]:
            stop = state.STOP_ROLL
            break
        if behind > block[state.LOG_LIMIT]:
            stop = state.STOP_RESERVE
            break
        stop, topic, row = _find_rows(block, parsed)
        if stop != state.STOP_DONE:
            break
        assert topic is not None
        assert row is not None
        target = block[state.LOG_ADDRESS] + position
        physical_offset = block[state.LOG_START] + position
        if is_live:
            if _is_slow(topic, parsed):
                stop = state.STOP_SLOW
                break
            stop = _dispatch_record(
                block, topic, row, parsed, target, physical_offset, now_ms, True
            )
            if stop not in (state.STOP_DONE, state.STOP_LIGHT):
                break
        queue_offset = 0
        if flags.is_queued(parsed.message.sys_flag):
            queue_offset = row[state.QUEUE_NEXT_OFFSET]
            row[state.QUEUE_NEXT_OFFSET] += 1
        _place(data, parsed.message, physical_offset, queue_offset, now_ms)
        if block[state.HAS_RECORD_CRC]:
            _put_record_crc(data)
        _write(target, bytes(data))
        block[state.LOG_POSITION] = behind
        block[state.LOG_TIMESTAMP] = now_ms
        _write(
            block[state.PLACES] + state.PLACE_BYTES * count,
            struct.pack("=qq", physical_offset, queue_offset),
        )
        count += 1
        block[state.INPUT_POSITION] += record_size
        topic[state.TOPIC_MESSAGE_COUNT] += 1
        topic[state.TOPIC_BYTE_COUNT] += record_size
        if stop == state.STOP_LIGHT:
            break
    if is_live and count:
        write_index_header(block.address)
    block[state.STOP] = stop
    return count


def _place(
    data: bytearray, message: StoredMessage, physical_offset: int, queue_offset: int, now_ms: int
) -> None:
    struct.pack_into(">i", data, record.POSITION_BODY_CRC, bodies.crc(message.body))
    struct.pack_into(">q", data, record.POSITION_QUEUE_OFFSET, queue_offset)
    struct.pack_into(">q", data, record.POSITION_PHYSICAL_OFFSET, physical_offset)
    born_host_bytes = record.host_bytes(message.sys_flag & flags.BORN_HOST_V6)
    struct.pack_into(">q", data, record.POSITION_BORN_HOST + born_host_bytes, now_ms)


def _put_record_crc(data: bytearray) -> None:
    start = len(data) - record.CRC_PROPERTY_BYTES
    digits = f"{bodies.crc(bytes(data[:start])):010d}"[::-1]
    at = start + len(record.CRC_PROPERTY_PREFIX)
    data[at : at + len(digits)] = digits.encode()


def dispatch(
    block_address: int, buffer: int, stop_position: int, end: int, file_end: int, base: int
) -> int:
    """Dispatch the records of a log buffer; as the kernel ``append.dispatch``."""
    block = _Row(block_address)
    count = 0
    stop = state.STOP_DONE
    data = memoryview(_read(buffer, end))
    while (at := block[state.INPUT_POSITION]) < stop_position:
        verdict, size = record.classify(data, at, base + at, file_end=file_end, check_crc=False)
        if verdict is Verdict.BLANK:
            block[state.INPUT_POSITION] = file_end
            block[state.DISPATCHED] = base + file_end
            break
        if verdict is not Verdict.MESSAGE:
            is_cut = verdict is Verdict.TRUNCATED
            stop = state.STOP_PART if is_cut else state.STOP_DAMAGE
            break
        parsed = _parse(bytes(data[at : at + size]))
        stop, topic, row = _find_rows(block, parsed)
        if stop != state.STOP_DONE:
            break
        assert topic is not None
        assert row is not None
        if _is_slow(topic, parsed):
            stop = state.STOP_SLOW
            break
        message = parsed.message
        wants_unit = False
        if flags.is_queued(message.sys_flag):
            expected = row[state.QUEUE_MAX_OFFSET]
            if message.queue_offset > expected:
                block[state.STOP_ROW] = row.address
                stop = state.STOP_GAP
                break
            wants_unit = message.queue_offset == expected
            behind = message.queue_offset + 1
            row[state.QUEUE_NEXT_OFFSET] = max(row[state.QUEUE_NEXT_OFFSET], behind)
        stop = _dispatch_record(
            block,
            topic,
            row,
            parsed,
            buffer + at,
            base + at,
            message.store_timestamp,
            wants_unit,
        )
        if stop not in (state.STOP_DONE, state.STOP_LIGHT):
            break
        count += 1
        block[state.INPUT_POSITION] = at + size
        if stop == state.STOP_LIGHT:
            break
    if count:
        write_index_header(block_address)
    block[state.STOP] = stop
    return count


def _is_full(block: _Row, count: int, total: int, size: int, on_disk: bool) -> bool:
    if count == 0:
        return False
    most = block[state.COUNT_ON_DISK_MAX if on_disk else state.COUNT_IN_MEMORY_MAX]
    most_bytes = block[state.BYTES_ON_DISK_MAX if on_disk else state.BYTES_IN_MEMORY_MAX]
    return count >= min(block[state.PULL_COUNT_MAX], most) or total + size > most_bytes


def _address_in_log(block: _Row, physical_offset: int) -> tuple[int, int]:
    """Return the address of the file that holds an offset (0 unmapped, -1 gone), and its start."""
    number, position = divmod(physical_offset - block[state.FILES_START], block[state.FILE_SIZE])
    start = physical_offset - position
    if not 0 <= number < block[state.FILE_COUNT]:
        return state.FILE_IS_GONE, start
    return _word_at(block[state.FILES] + 8 * number), start


def put_texts(
    block_address: int, data: int, sizes: int, count: int, offset: int, timestamp: int
) -> int:
    """Put the entries of keys; as the kernel ``append.put_texts``."""
    for i in range(count):
        (size,) = struct.unpack("=i", _read(sizes + 4 * i, 4))
        put_entry(block_address, java.decode_utf8(_read(data, size)), offset, timestamp)
        data += size
    write_index_header(block_address)
    return count


def pull(block_address: ctypes.c_int64) -> int:
    """Copy the records that units point at; as the kernel ``pull.pull``."""
    block = _Row(block_address.value)
    codes = block[state.PULL_CODES]
    wanted = {_word_at(codes + 8 * i) for i in range(block[state.PULL_CODE_COUNT])}
    queue_offset = block[state.PULL_QUEUE_OFFSET]
    count = total = gone = damaged = scanned = skip_to = 0
    stop = state.STOP_DONE
    last = block[state.RESULT_LAST_OFFSET]
    file_size = block[state.FILE_SIZE]
    readable = block[state.READABLE]
    while scanned < block[state.PULL_UNIT_COUNT]:
        at = block[state.PULL_UNITS] + cq_unit.SIZE * scanned
        unit = cq_unit.unpack(_read(at, cq_unit.SIZE))
        if not unit.is_written:
            scanned += 1
            continue
        last = unit.physical_offset
        if unit.physical_offset < skip_to:
            gone += 1
            scanned += 1
            continue
        on_disk = readable - unit.physical_offset > block[state.MEMORY_BYTES]
        if _is_full(block, count, total, unit.size, on_disk):
            break
        if wanted and unit.tags_code not in wanted:
            scanned += 1
            continue
        address, start = _address_in_log(block, unit.physical_offset)
        if address == 0:
            stop = state.STOP_UNMAPPED
            break
        if address == state.FILE_IS_GONE or unit.physical_offset + unit.size > readable:
            gone += 1
            is_before = unit.physical_offset < block[state.FILES_START]
            skip_to = block[state.FILES_START] if is_before else start + file_size
            scanned += 1
            continue
        at = address + unit.physical_offset - start
        expected = queue_offset + scanned if queue_offset >= 0 else None
        is_in_file = unit.physical_offset - start + unit.size <= file_size
        if not is_in_file or not _is_its_record(at, unit, expected):
            damaged += 1
            scanned += 1
            continue
        if total + unit.size > block[state.PULL_ROOM]:
            stop = state.STOP_BUFFER
            break
        _write(block[state.PULL_BUFFER] + total, _read(at, unit.size))
        total += unit.size
        count += 1
        scanned += 1
        skip_to = 0
    block[state.RESULT_COUNT] = count
    block[state.RESULT_BYTES] = total
    block[state.RESULT_SCANNED] = scanned
    block[state.RESULT_LAST_OFFSET] = last
    block[state.RESULT_GONE] = gone
    block[state.RESULT_DAMAGED] = damaged
    block[state.STOP] = stop
    return count


def _is_its_record(at: int, unit: cq_unit.Unit, queue_offset: int | None) -> bool:
    if unit.size < record.FIXED_BYTES_V1:
        return False
    head = _read(at, record.HEAD.size)
    size, _, _, _, _, own_queue_offset, physical_offset, _, _ = record.HEAD.unpack(head)
    return (
        size == unit.size
        and physical_offset == unit.physical_offset
        and queue_offset in (None, own_queue_offset)
    )
