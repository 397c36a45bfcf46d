"""Kernel: from consume-queue units to the record bytes of a reply, without decoding anything."""

# mypy: allow-untyped-defs, allow-untyped-calls, allow-untyped-decorators, no-check-untyped-defs

from numba import njit

from reput.format import cq_unit, message as record
from reput.format.kernels.columns import AT_QUEUE_OFFSET
from reput.format.kernels.log_scan import AT_PHYSICAL_OFFSET
from reput.format.kernels.memory import (
    COMPILE_OPTIONS,
    copy,
    load_i32,
    load_i64,
)
from reput.store.kernels import control_block as state
from reput.store.kernels.control_block import ControlBlock

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
        if codes[middle] < code:
            low = middle + 1
        else:
            high = middle
    return low < code_count and codes[low] == code


@njit(**COMPILE_OPTIONS)
def is_full(block, count, total, size, max_count, is_on_disk):
    """Return whether a reply of ``count`` records is full. The first record always fits."""
    if count == 0:
        return False
    if is_on_disk:
        count_limit, bytes_limit = (
            block.count_on_disk_max,
            block.bytes_on_disk_max,
        )
    else:
        count_limit, bytes_limit = (
            block.count_in_memory_max,
            block.bytes_in_memory_max,
        )
    return count >= max_count or count >= count_limit or total + size > bytes_limit


@njit(**COMPILE_OPTIONS)
def file_address(block, physical_offset):
    """Return the address of the file that holds an offset, 0 if it is not mapped, or IS_GONE."""
    place = physical_offset - block.files_start
    if place < 0:
        return IS_GONE
    number = place // block.file_size
    if number >= block.file_count:
        return IS_GONE
    return block.files[number]


@njit(**COMPILE_OPTIONS)
def next_file(block, physical_offset):
    """Return the physical offset of the file after the one that holds, or held, an offset."""
    start = block.files_start
    if physical_offset < start:
        return start
    size = block.file_size
    return physical_offset - (physical_offset - start) % size + size


@njit(**COMPILE_OPTIONS)
def units_in_memory(row, queue_offset):
    """Return address and number of the units in memory from a queue offset on; 0, 0 if none."""
    if queue_offset < row.min_offset:
        return 0, 0
    max_offset = row.max_offset
    start = row.tail_offset
    if queue_offset >= start:
        if queue_offset >= max_offset or row.tail == 0:
            return 0, 0
        units = row.tail
        return units + UNIT_BYTES * (queue_offset - start), max_offset - queue_offset
    start = row.ahead_offset
    end = start + row.ahead_count
    if queue_offset < start or queue_offset >= end:
        return 0, 0
    units = row.ahead
    return units + UNIT_BYTES * (queue_offset - start), end - queue_offset


@njit(**COMPILE_OPTIONS)
def pull(block):
    """Entry point: copy the records that ``pull_units`` point at to ``pull_buffer``.

    They are concatenated. ``result_scanned`` is the number of units that are done, ``result_gone``
    that of units without a record. Return the number of records.
    """
    units = block.pull_units
    unit_count = block.pull_unit_count
    queue_offset = block.pull_queue_offset
    buffer = block.pull_buffer
    room = block.pull_room
    max_count = block.pull_count_max
    codes = block.pull_codes
    code_count = block.pull_code_count
    first_code = codes[0] if code_count != 0 else 0  # most pulls want one
    count = 0
    total = 0
    gone = 0
    damaged = 0
    scanned = 0
    stop = state.STOP_DONE
    last = block.result_last_offset
    skip_to = 0
    readable = block.readable
    memory = block.memory_bytes
    file_size = block.file_size
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
        position = (offset - block.files_start) % file_size
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
    block.result_count = count
    block.result_bytes = total
    block.result_scanned = scanned
    block.result_last_offset = last
    block.result_gone = gone
    block.result_damaged = damaged
    block.stop = stop
    return count


ENTRY_POINTS = {"pull": (ControlBlock,)}
"""Entry points and their arguments. Results are numbers."""
