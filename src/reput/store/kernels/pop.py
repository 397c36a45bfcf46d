"""Kernel: pop messages of a queue: copy their records out, and put their checkpoint.

One call does what ``Getter.get``, ``pop_codec`` and ``Putter.put_encoded`` do for a pop: it reads
units, copies records, makes the checkpoint that names them, appends it to the log, and writes the
part of the reply that names them.

**What takes the fast path**; for anything else it returns 0, with nothing done, and the pop falls
back to the processor:

* 1 to MESSAGES_MAX messages are wanted; no number is negative; records have no checksum property
  (``has_record_crc`` is off). The queue is not of a retry topic, and not a light queue.
* The units that the processor would read are in memory, as for pulls (``deliver``).
* Some records are wanted; no record that was read is gone, damaged, or not mapped; all fit
  ``buffer``.
* The JSON of the checkpoint has at most BODY_BYTES_MAX bytes; ``append`` takes its record.
"""

# mypy: allow-untyped-defs, allow-untyped-calls, allow-untyped-decorators, no-check-untyped-defs

from numba import njit

from reput.format import message as record
from reput.format.kernels.columns import (
    AT_BORN_TIMESTAMP,
    AT_QUEUE_ID,
    AT_QUEUE_OFFSET,
    PAIR_END,
)
from reput.format.kernels.memory import (
    COMPILE_OPTIONS,
    copy,
    load_i32,
    load_i64,
    put_u8,
    store_i16,
    store_i32,
    store_i64,
    text_writer,
)
from reput.format.kernels.plain_text import put_decimal
from reput.store.kernels import control_block as state, pop_args as words
from reput.store.kernels.append import append
from reput.store.kernels.pull import READ_UNITS_MAX, pull, units_in_memory

HEAD_BYTES = words.HEAD_BYTES
AT_BODY_SIZE = HEAD_BYTES - 4
PROPERTIES_LENGTH_BYTES = record.PROPERTIES_LENGTH.size
COMMA = ord(",")
SPACE = ord(" ")

put_piece_0, put_piece_1, put_piece_2, put_piece_3, put_piece_4 = map(
    text_writer, words.CHECKPOINT_PIECES
)
PIECE_0, PIECE_1, PIECE_2, PIECE_3, PIECE_4 = map(len, words.CHECKPOINT_PIECES)
put_info_kind = text_writer(words.INFO_KIND)
INFO_KIND = len(words.INFO_KIND)


@njit(**COMPILE_OPTIONS)
def is_fast_pop(call, block):
    """Return whether the numbers of a call are in the ranges of the fast path."""
    return (
        block.has_record_crc == 0
        and 0 < call.count_max <= words.MESSAGES_MAX
        and call.queue_offset >= 0
        and call.queue_id >= 0
        and call.pop_ms >= 0
        and call.invisible_ms >= 0
        and call.revive_queue_id >= 0
        and call.first_size + call.last_size <= words.BODY_BYTES_MAX
        and call.properties_size <= words.PROPERTIES_BYTES_MAX
    )


@njit(**COMPILE_OPTIONS)
def find_messages(call, block):
    """Copy the wanted records into ``buffer``; return their number, 0 if the pop falls back."""
    row = call.queue_row
    queue_offset = call.queue_offset
    units, unit_count = units_in_memory(row, queue_offset)
    if unit_count == 0:
        return 0
    wanted = call.count_max
    if call.code_count:
        wanted = max(wanted, block.filtered_units_max)
    wanted = min(wanted, READ_UNITS_MAX)
    read_count = min(unit_count, wanted)
    block.pull_units = units
    block.pull_unit_count = read_count
    block.pull_queue_offset = queue_offset
    block.pull_buffer = call.buffer
    block.pull_room = call.buffer_room
    block.pull_count_max = call.count_max
    block.pull_codes = call.codes
    block.pull_code_count = call.code_count
    block.result_last_offset = 0
    count = pull(block)
    if block.stop != state.STOP_DONE:
        return 0
    if block.result_gone != 0 or block.result_damaged != 0:
        return 0
    scanned = block.result_scanned
    next_offset = queue_offset + scanned
    if scanned == read_count and read_count < wanted and next_offset < row.max_offset:
        return 0  # the processor would read units that are not in memory
    call.result_size = block.result_bytes
    call.result_next_offset = next_offset
    return count


@njit(**COMPILE_OPTIONS)
def read_offsets(call, count):
    """Copy the queue offsets of the records in ``buffer`` to ``offsets``."""
    address = call.buffer
    for i in range(count):
        call.offsets[i] = load_i64(address + AT_QUEUE_OFFSET)
        address += load_i32(address)


@njit(**COMPILE_OPTIONS)
def put_offsets(call, address, count, start):
    """Write the distances of the messages from a queue offset, with commas; return the end."""
    offsets = call.offsets
    for i in range(count):
        if i > 0:
            put_u8(address, COMMA)
            address += 1
        address = put_decimal(address, offsets[i] - start)
    return address


@njit(**COMPILE_OPTIONS)
def put_checkpoint(call, address, count):
    """Write the JSON of the checkpoint, as ``pop_codec.encode_checkpoint``; return its end."""
    start = call.queue_offset
    size = call.first_size
    copy(address, call.first, size)
    address = put_offsets(call, address + size, count, start)
    put_piece_0(address)
    address = put_decimal(address + PIECE_0, call.invisible_ms)
    put_piece_1(address)
    address = put_decimal(address + PIECE_1, count)
    put_piece_2(address)
    address = put_decimal(address + PIECE_2, call.pop_ms)
    put_piece_3(address)
    address = put_decimal(address + PIECE_3, call.queue_id)
    put_piece_4(address)
    address = put_decimal(address + PIECE_4, start)
    size = call.last_size
    copy(address, call.last, size)
    return address + size


@njit(**COMPILE_OPTIONS)
def make_record(call, count):
    """Make the checkpoint's record in ``scratch``; return its size, 0 if the pop falls back."""
    start = call.scratch
    copy(start, call.head, HEAD_BYTES)
    body = start + HEAD_BYTES
    address = put_checkpoint(call, body, count)
    if address - body > words.BODY_BYTES_MAX:
        return 0
    store_i32(start + AT_BODY_SIZE, address - body)
    store_i32(start + AT_QUEUE_ID, call.revive_queue_id)
    store_i64(start + AT_BORN_TIMESTAMP, call.pop_ms)
    size = call.topic_size
    copy(address, call.topic, size)
    properties = address + size + PROPERTIES_LENGTH_BYTES
    size = call.properties_size
    copy(properties, call.properties, size)
    address = put_decimal(properties + size, call.pop_ms)
    put_u8(address, PAIR_END)
    address += 1
    store_i16(properties - PROPERTIES_LENGTH_BYTES, address - properties)
    store_i32(start, address - start)
    return address - start


@njit(**COMPILE_OPTIONS)
def put_info(call, count):
    """Write the text of ``pop_codec.message_info``."""
    start = call.info
    put_info_kind(start)
    address = put_decimal(start + INFO_KIND, call.queue_id)
    put_u8(address, SPACE)
    address = put_offsets(call, address + 1, count, 0)
    call.result_info_size = address - start


@njit(**COMPILE_OPTIONS)
def pop_batch(call):
    """Entry point: pop messages; return their number, 0 if the pop falls back with nothing done."""
    block = call.block
    if not is_fast_pop(call, block):
        return 0
    count = find_messages(call, block)
    if count == 0:
        return 0
    read_offsets(call, count)
    size = make_record(call, count)
    if size == 0:
        return 0
    block.input_position = 0
    block.input_size = size
    block.input_time = call.store_ms
    block.places = call.checkpoint
    if append(block, call.scratch) == 0:
        return 0
    call.checkpoint_size = size
    put_info(call, count)
    return count


ENTRY_POINTS = {"pop_batch": (words.PopCall,)}
"""Entry points and their arguments. Results are numbers."""
