"""Kernel: from consume-queue units to the record bytes of a reply, without decoding anything."""

# mypy: allow-untyped-defs, allow-untyped-calls, allow-untyped-decorators, no-check-untyped-defs

from numba import njit

from reput.format import cq_unit, message as record
from reput.format.kernels.columns import AT_QUEUE_OFFSET
from reput.format.kernels.log_scan import AT_PHYSICAL_OFFSET
from reput.format.kernels.memory import (
    COMPILE_OPTIONS,
    copy,
    get_i64,
    load_i32,
    load_i64,
    set_word,
    word,
)
from reput.store.kernels import control_block as state

UNIT_BYTES = cq_unit.SIZE
FILLER_SIZE = cq_unit.PRE_BLANK_SIZE
IS_GONE = state.FILE_IS_GONE
RECORD_BYTES_MIN = record.FIXED_BYTES_V1
READ_UNITS_MAX = state.READ_UNITS_MAX


@njit(**COMPILE_OPTIONS)
def is_among(codes, code_count, code):
    """Return whether a tags code is among the wanted ones, which ascend."""
    low = 0
    high = code_count
    while low < high:
        middle = (low + high) >> 1
        if get_i64(codes + 8 * middle) < code:
            low = middle + 1
        else:
            high = middle
    return low < code_count and get_i64(codes + 8 * low) == code


@njit(**COMPILE_OPTIONS)
def is_full(block, count, total, size, max_count, is_on_disk):
    """Return whether a reply of ``count`` records is full. The first record always fits."""
    if count == 0:
        return False
    if is_on_disk:
        count_limit, bytes_limit = (
            word(block, state.COUNT_ON_DISK_MAX),
            word(block, state.BYTES_ON_DISK_MAX),
        )
    else:
        count_limit, bytes_limit = (
            word(block, state.COUNT_IN_MEMORY_MAX),
            word(block, state.BYTES_IN_MEMORY_MAX),
        )
    return count >= max_count or count >= count_limit or total + size > bytes_limit


@njit(**COMPILE_OPTIONS)
def file_address(block, physical_offset):
    """Return the address of the file that holds an offset, 0 if it is not mapped, or IS_GONE."""
    place = physical_offset - word(block, state.FILES_START)
    if place < 0:
        return IS_GONE
    number = place // word(block, state.FILE_SIZE)
    if number >= word(block, state.FILE_COUNT):
        return IS_GONE
    return get_i64(word(block, state.FILES) + 8 * number)


@njit(**COMPILE_OPTIONS)
def next_file(block, physical_offset):
    """Return the physical offset of the file after the one that holds, or held, an offset."""
    start = word(block, state.FILES_START)
    if physical_offset < start:
        return start
    size = word(block, state.FILE_SIZE)
    return physical_offset - (physical_offset - start) % size + size


@njit(**COMPILE_OPTIONS)
def units_in_memory(row, queue_offset):
    """Return address and number of the units in memory from a queue offset on; 0, 0 if none."""
    if queue_offset < word(row, state.QUEUE_MIN_OFFSET):
        return 0, 0
    max_offset = word(row, state.QUEUE_MAX_OFFSET)
    start = word(row, state.QUEUE_TAIL_OFFSET)
    if queue_offset >= start:
        if queue_offset >= max_offset or word(row, state.QUEUE_TAIL) == 0:
            return 0, 0
        units = word(row, state.QUEUE_TAIL)
        return units + UNIT_BYTES * (queue_offset - start), max_offset - queue_offset
    start = word(row, state.QUEUE_AHEAD_OFFSET)
    end = start + word(row, state.QUEUE_AHEAD_COUNT)
    if queue_offset < start or queue_offset >= end:
        return 0, 0
    units = word(row, state.QUEUE_AHEAD)
    return units + UNIT_BYTES * (queue_offset - start), end - queue_offset


@njit(**COMPILE_OPTIONS)
def pull(block):
    """Entry point: copy the records that PULL_UNITS point at, concatenated, into PULL_BUFFER.

    RESULT_SCANNED is the number of units that are done, RESULT_GONE that of units without a record.
    Return the number of records.
    """
    units = word(block, state.PULL_UNITS)
    unit_count = word(block, state.PULL_UNIT_COUNT)
    queue_offset = word(block, state.PULL_QUEUE_OFFSET)
    buffer = word(block, state.PULL_BUFFER)
    room = word(block, state.PULL_ROOM)
    max_count = word(block, state.PULL_COUNT_MAX)
    codes = word(block, state.PULL_CODES)
    code_count = word(block, state.PULL_CODE_COUNT)
    first_code = get_i64(codes) if code_count != 0 else 0  # most pulls want one
    count = 0
    total = 0
    gone = 0
    damaged = 0
    scanned = 0
    stop = state.STOP_DONE
    last = word(block, state.RESULT_LAST_OFFSET)
    skip_to = 0
    readable = word(block, state.READABLE)
    memory = word(block, state.MEMORY_BYTES)
    file_size = word(block, state.FILE_SIZE)
    while scanned < unit_count:
        unit = units + UNIT_BYTES * scanned
        offset = load_i64(unit)
        size = load_i32(unit + 8)
        if size <= 0 or offset < 0 or (size == FILLER_SIZE and offset == 0):
            scanned += 1
            continue
        last = offset
        if offset < skip_to:
            gone += 1
            scanned += 1
            continue
        if is_full(block, count, total, size, max_count, readable - offset > memory):
            break
        code = load_i64(unit + 12)
        if code_count != 0 and code != first_code and not is_among(codes, code_count, code):
            scanned += 1
            continue
        file = file_address(block, offset)
        if file == 0:
            stop = state.STOP_UNMAPPED
            break
        if file == IS_GONE or offset + size > readable:
            # All of the file is gone: skip its other records.
            gone += 1
            skip_to = next_file(block, offset)
            scanned += 1
            continue
        position = (offset - word(block, state.FILES_START)) % file_size
        address = file + position
        if (
            size < RECORD_BYTES_MIN
            or position + size > file_size
            or load_i32(address) != size
            or load_i64(address + AT_PHYSICAL_OFFSET) != offset
            or (queue_offset >= 0 and load_i64(address + AT_QUEUE_OFFSET) != queue_offset + scanned)
        ):
            damaged += 1
            scanned += 1
            continue
        if total + size > room:
            stop = state.STOP_BUFFER
            break
        copy(buffer + total, address, size)
        total += size
        count += 1
        scanned += 1
        skip_to = 0
    set_word(block, state.RESULT_COUNT, count)
    set_word(block, state.RESULT_BYTES, total)
    set_word(block, state.RESULT_SCANNED, scanned)
    set_word(block, state.RESULT_LAST_OFFSET, last)
    set_word(block, state.RESULT_GONE, gone)
    set_word(block, state.RESULT_DAMAGED, damaged)
    set_word(block, state.STOP, stop)
    return count


ENTRY_POINTS = {"pull": (int,)}
"""Entry points and their arguments. Results are numbers."""
