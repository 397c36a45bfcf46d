"""Reference implementation of the kernels that the store needs: slow and obvious.

It works on the same memory as the kernels, with the codecs of ``reput.format`` in place of
arithmetic on addresses. It runs where there are no compiled kernels, and the tests compare the
kernels with it. Kernels of the fast path are not here: they fall back to the processors.
"""

import ctypes
import re
import struct
from collections.abc import Sequence
from dataclasses import dataclass

from reput.errors import CorruptRecord
from reput.format import (
    batch,
    body as bodies,
    cq_unit,
    java,
    message as record,
    properties as props,
    sys_flag as flags,
)
from reput.format.kernels.rows import size_of
from reput.format.message import StoredMessage, Verdict
from reput.store.kernels import control_block as state
from reput.store.kernels.control_block import AppendPlace, ControlBlock, QueueRow, TopicRow
from reput.store.kernels.tables import (
    put_entry,
    queue_row,
    read,
    topic_row,
    word_at,
    write,
    write_index_header,
)

_WORD = struct.Struct("=q")
_THREE_WORDS = struct.Struct("=qqq")
_INT = struct.Struct(">i")
_INT_MAX = 0x7FFFFFFF


# --- dispatch of a record ---------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Parsed:
    """The parts of a record that dispatch needs."""

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


def _tags_code(
    block: ControlBlock, topic: TopicRow, message: StoredMessage, store_timestamp: int
) -> int:
    delay = message.properties.get(props.DELAY, "")
    if topic.kind == state.KIND_SCHEDULE and delay.isascii() and delay.isdigit():
        level = int(delay)
        if 0 < level <= _INT_MAX:
            if level > block.delay_count:
                return store_timestamp + 1000
            return store_timestamp + word_at(block.delays + 8 * (level - 1))
    return cq_unit.tags_code(message.tags)


def _mark_changed(block: ControlBlock, row: QueueRow) -> None:
    """Put the row of a queue on both lists, once."""
    if not row.marks & state.MARK_DIRTY:
        write(block.dirty + 8 * block.dirty_count, _WORD.pack(row.address))
        block.dirty_count += 1
    if not row.marks & state.MARK_TOUCHED:
        write(block.touched + 8 * block.touched_count, _WORD.pack(row.address))
        block.touched_count += 1
    row.marks |= state.MARK_DIRTY | state.MARK_TOUCHED


def _put_unit(block: ControlBlock, row: QueueRow, unit: cq_unit.Unit) -> None:
    index = row.max_offset - row.tail_offset
    write(row.tail + cq_unit.SIZE * index, cq_unit.pack(unit))
    row.max_offset += 1
    row.end_physical = unit.physical_offset + unit.size
    _mark_changed(block, row)


def find_unqueued(
    block_address: int, buffer: int, position: int, end: int, file_end: int, base: int
) -> int:
    """Find a record without a row of its queue, as the kernel ``append.find_unqueued``."""
    block = ControlBlock.from_address(block_address)
    data = memoryview(read(buffer, end))
    while position < end:
        verdict, size = record.classify(
            data, position, base + position, file_end=file_end, check_crc=False
        )
        if verdict is not Verdict.MESSAGE:
            break
        stop, _, _ = _find_rows(block, _parse(bytes(data[position : position + size])))
        if stop != state.STOP_DONE:
            break
        position += size
    return position


def _dispatch_record(
    block: ControlBlock,
    topic: TopicRow,
    row: QueueRow,
    parsed: _Parsed,
    address: int,
    physical_offset: int,
    store_timestamp: int,
    wants_unit: bool,
) -> int:
    """Dispatch a record: its unit, and its index entries. Return STOP_DONE, or why it stops."""
    message = parsed.message
    is_rolled_back = flags.transaction_type(message.sys_flag) == flags.TRANSACTION_ROLLBACK
    may_be_indexed = block.index_is_on and not is_rolled_back
    if may_be_indexed and physical_offset == block.index_end_offset:
        return state.STOP_SLOW
    is_queued = wants_unit and flags.is_queued(message.sys_flag)
    if is_queued:
        used = row.max_offset - row.tail_offset
        if not row.tail or used >= row.tail_limit:
            block.stop_row = row.address
            return state.STOP_UNITS
    keys: list[str] = []
    if may_be_indexed and physical_offset > block.index_end_offset:
        keys = record.index_keys(message, has_tags=bool(block.index_has_tags))
        limit = min(block.index_entries_max, block.index_limit)
        has_room = block.index_address and block.index_next + len(keys) <= limit
        if keys and not has_room:
            return state.STOP_INDEX
    if is_queued:
        code = _tags_code(block, topic, message, store_timestamp)
        _put_unit(block, row, cq_unit.Unit(physical_offset, message.store_size, code))
    for key in keys:
        put_entry(block.address, key, physical_offset, store_timestamp)
    block.last_physical_offset = physical_offset
    block.last_store_timestamp = store_timestamp
    block.dispatched = physical_offset + message.store_size
    is_light = props.INNER_MULTI_DISPATCH in message.properties
    if is_light and is_queued and block.has_light_queues:
        block.stop_row = address
        return state.STOP_LIGHT
    return state.STOP_DONE


def _find_rows(
    block: ControlBlock, parsed: _Parsed
) -> tuple[int, TopicRow | None, QueueRow | None]:
    """Return STOP_DONE and the rows of a record's topic and queue, or why there are none."""
    topic = topic_row(block, parsed.topic_name)
    if topic is None:
        return state.STOP_TOPIC, None, None
    row = queue_row(topic, parsed.message.queue_id)
    if row is None:
        block.stop_row = topic.address
        return state.STOP_QUEUE, topic, None
    return state.STOP_DONE, topic, row


def _is_slow(topic: TopicRow, parsed: _Parsed) -> bool:
    is_batch = bool(parsed.message.sys_flag & flags.INNER_BATCH)
    return topic.kind == state.KIND_SLOW or is_batch or not parsed.is_text


# --- entry points: append and dispatch --------------------------------------------------------


def append(block_address: ctypes.c_int64, buffer: bytes) -> int:
    """Append records, as the kernel ``append.append``."""
    block = ControlBlock.from_address(block_address.value)
    size, now_ms = block.input_size, block.input_time
    count = 0
    stop = state.STOP_DONE
    is_live = bool(block.is_live)
    while block.input_position < size:
        start = block.input_position
        (record_size,) = _INT.unpack_from(buffer, start)
        data = bytearray(buffer[start : start + record_size])
        parsed = _parse(bytes(data))
        position = block.log_position
        end = position + record_size
        if not block.log_address or end + record.BLANK.size > block.log_size:
            stop = state.STOP_ROLL
            break
        if end > block.log_limit:
            stop = state.STOP_RESERVE
            break
        stop, topic, row = _find_rows(block, parsed)
        if stop != state.STOP_DONE:
            break
        assert topic is not None
        assert row is not None
        target = block.log_address + position
        physical_offset = block.log_start + position
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
            queue_offset = row.next_offset
            row.next_offset += 1
        _fill_in(data, parsed.message, physical_offset, queue_offset, now_ms)
        if block.has_record_crc:
            _put_record_crc(data)
        write(target, bytes(data))
        block.log_position = end
        block.log_timestamp = now_ms
        place = AppendPlace.from_address(block.places + size_of(AppendPlace) * count)
        place.physical_offset, place.queue_offset = physical_offset, queue_offset
        count += 1
        block.input_position += record_size
        topic.message_count += 1
        topic.byte_count += record_size
        if stop == state.STOP_LIGHT:
            break
    if is_live and count:
        write_index_header(block.address)
    block.stop = stop
    return count


def _fill_in(
    data: bytearray, message: StoredMessage, physical_offset: int, queue_offset: int, now_ms: int
) -> None:
    """Write the fields of a record that only its append determines."""
    struct.pack_into(">i", data, record.POSITION_BODY_CRC, bodies.crc(message.body))
    struct.pack_into(">q", data, record.POSITION_QUEUE_OFFSET, queue_offset)
    struct.pack_into(">q", data, record.POSITION_PHYSICAL_OFFSET, physical_offset)
    born_host_bytes = record.host_bytes(message.sys_flag & flags.BORN_HOST_V6)
    struct.pack_into(">q", data, record.POSITION_BORN_HOST + born_host_bytes, now_ms)


def _put_record_crc(data: bytearray) -> None:
    start = len(data) - record.CRC_PROPERTY_BYTES
    digits = f"{bodies.crc(bytes(data[:start])):010d}"[::-1]
    position = start + len(record.CRC_PROPERTY_PREFIX)
    data[position : position + len(digits)] = digits.encode()


def dispatch(
    block_address: int, buffer: int, stop_position: int, end: int, file_end: int, base: int
) -> int:
    """Dispatch the records of a log buffer, as the kernel ``append.dispatch``."""
    block = ControlBlock.from_address(block_address)
    count = 0
    stop = state.STOP_DONE
    data = memoryview(read(buffer, end))
    while (position := block.input_position) < stop_position:
        physical_offset = base + position
        verdict, size = record.classify(
            data, position, physical_offset, file_end=file_end, check_crc=False
        )
        if verdict is Verdict.BLANK:
            block.input_position = file_end
            block.dispatched = base + file_end
            break
        if verdict is not Verdict.MESSAGE:
            is_cut = verdict is Verdict.TRUNCATED
            stop = state.STOP_PART if is_cut else state.STOP_DAMAGE
            break
        parsed = _parse(bytes(data[position : position + size]))
        if block.checks_content:
            verdict, _ = record.classify(data, position, physical_offset, file_end=file_end)
            properties = parsed.message.property_bytes
            if verdict is not Verdict.MESSAGE or record.ends_in_zeros(properties, position + size):
                stop = state.STOP_TORN
                break
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
            expected = row.max_offset
            if message.queue_offset > expected:
                block.stop_row = row.address
                stop = state.STOP_GAP
                break
            is_new = physical_offset >= row.end_physical
            if message.queue_offset == 0 < expected and is_new:
                block.stop_row = row.address
                stop = state.STOP_BEGUN
                break
            wants_unit = message.queue_offset == expected
            next_offset = message.queue_offset + 1
            row.next_offset = max(row.next_offset, next_offset)
        stop = _dispatch_record(
            block,
            topic,
            row,
            parsed,
            buffer + position,
            physical_offset,
            message.store_timestamp,
            wants_unit,
        )
        if stop not in (state.STOP_DONE, state.STOP_LIGHT):
            break
        count += 1
        block.input_position = position + size
        if stop == state.STOP_LIGHT:
            break
    if count:
        write_index_header(block_address)
    block.stop = stop
    return count


def put_texts(
    block_address: int, data: int, sizes: int, count: int, offset: int, timestamp: int
) -> int:
    """Put the index entries of keys, as the kernel ``append.put_texts``."""
    for i in range(count):
        (size,) = struct.unpack("=i", read(sizes + 4 * i, 4))
        put_entry(block_address, java.decode_utf8(read(data, size)), offset, timestamp)
        data += size
    write_index_header(block_address)
    return count


# --- entry point: pull ------------------------------------------------------------------------


def pull(block_address: ctypes.c_int64) -> int:
    """Copy the records that units point at, as the kernel ``pull.pull``."""
    block = ControlBlock.from_address(block_address.value)
    codes = block.pull_codes
    wanted = {word_at(codes + 8 * i) for i in range(block.pull_code_count)}
    queue_offset = block.pull_queue_offset
    count = total = gone = damaged = scanned = skip_to = 0
    stop = state.STOP_DONE
    last = block.result_last_offset
    file_size = block.file_size
    readable = block.readable
    while scanned < block.pull_unit_count:
        unit_address = block.pull_units + cq_unit.SIZE * scanned
        unit = cq_unit.unpack(read(unit_address, cq_unit.SIZE))
        if not unit.is_written:
            scanned += 1
            continue
        last = unit.physical_offset
        if unit.physical_offset < skip_to:
            gone += 1
            scanned += 1
            continue
        on_disk = readable - unit.physical_offset > block.memory_bytes
        if _is_full(block, count, total, unit.size, on_disk):
            break
        if wanted and unit.tags_code not in wanted:
            scanned += 1
            continue
        file_address, start = _file_of(block, unit.physical_offset)
        if file_address == 0:
            stop = state.STOP_UNMAPPED
            break
        if file_address == state.FILE_IS_GONE or unit.physical_offset + unit.size > readable:
            gone += 1
            is_before = unit.physical_offset < block.files_start
            skip_to = block.files_start if is_before else start + file_size
            scanned += 1
            continue
        address = file_address + unit.physical_offset - start
        expected = queue_offset + scanned if queue_offset >= 0 else None
        is_in_file = unit.physical_offset - start + unit.size <= file_size
        if not is_in_file or not _is_record_of(unit, address, expected):
            damaged += 1
            scanned += 1
            continue
        if total + unit.size > block.pull_room:
            stop = state.STOP_BUFFER
            break
        write(block.pull_buffer + total, read(address, unit.size))
        total += unit.size
        count += 1
        scanned += 1
        skip_to = 0
    block.result_count = count
    block.result_bytes = total
    block.result_scanned = scanned
    block.result_last_offset = last
    block.result_gone = gone
    block.result_damaged = damaged
    block.stop = stop
    return count


def _is_full(block: ControlBlock, count: int, total: int, size: int, on_disk: bool) -> bool:
    if count == 0:
        return False
    count_max = block.count_on_disk_max if on_disk else block.count_in_memory_max
    bytes_max = block.bytes_on_disk_max if on_disk else block.bytes_in_memory_max
    return count >= min(block.pull_count_max, count_max) or total + size > bytes_max


def _file_of(block: ControlBlock, physical_offset: int) -> tuple[int, int]:
    """Return the address of the log file that holds an offset, and the file's physical offset.

    The address is 0 if the file is not mapped, and ``FILE_IS_GONE`` if there is no such file.
    """
    number, position = divmod(physical_offset - block.files_start, block.file_size)
    start = physical_offset - position
    if not 0 <= number < block.file_count:
        return state.FILE_IS_GONE, start
    return word_at(block.files + 8 * number), start


def _is_record_of(unit: cq_unit.Unit, address: int, queue_offset: int | None) -> bool:
    if unit.size < record.FIXED_BYTES_V1:
        return False
    head = read(address, record.HEAD.size)
    size, _, _, _, _, own_queue_offset, physical_offset, _, _ = record.HEAD.unpack(head)
    return (
        size == unit.size
        and physical_offset == unit.physical_offset
        and queue_offset in (None, own_queue_offset)
    )


# --- entry point: batch_records ---------------------------------------------------------------


_SPACE = props.KEY_SEPARATOR.encode()
_PAIR_END = props.PROPERTY_SEPARATOR.encode()
_NAME_VALUE = props.NAME_VALUE_SEPARATOR.encode()


def batch_records(
    body: int,
    size: int,
    head: int,
    head_size: int,
    topic: int,
    topic_size: int,
    dropped: int,
    dropped_size: int,
    tail: int,
    tail_size: int,
    record_max: int,
    target: int,
    result: int,
) -> int:
    """Make the records of a batch body, as the kernel ``batch_parts.batch_records``."""
    data = read(body, size)
    first, name, last = read(head, head_size), read(topic, topic_size), read(tail, tail_size)
    left_out = read(dropped, dropped_size).split(_PAIR_END)[:-1]
    records: list[bytes] = []
    position = spaces = 0
    while position < size:
        try:
            part, part_end = batch.decode_one(data, position)
            part.property_bytes.decode()
        except (CorruptRecord, UnicodeDecodeError):
            break
        properties = props.append(_without(part.property_bytes, left_out), last)
        made = bytearray(first + part.body + name)
        _INT.pack_into(made, len(first) - _INT.size, len(part.body))
        if len(properties) > props.LENGTH_MAX:
            break
        made += record.PROPERTIES_LENGTH.pack(len(properties)) + properties
        if len(made) > record_max:
            break
        _INT.pack_into(made, 0, len(made))
        _INT.pack_into(made, record.POSITION_FLAG, part.flag)
        records.append(bytes(made))
        spaces += part.property_bytes.count(_SPACE)
        position = part_end
    joined = b"".join(records)
    if target:
        write(target, joined)
    write(result, _THREE_WORDS.pack(position, len(joined), spaces))
    return len(records)


def _without(properties: bytes, left_out: Sequence[bytes]) -> bytes:
    """Return properties without the pairs of some names."""
    pairs = re.findall(rb"[^\x02]*\x02|[^\x02]+", properties)
    return b"".join(
        pair
        for pair in pairs
        if pair.removesuffix(_PAIR_END).partition(_NAME_VALUE)[0] not in left_out
    )
