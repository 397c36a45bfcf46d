"""Kernel: pop messages of a queue: copy their records out, and put their checkpoint.

One call does what ``Getter.get``, ``pop_codec`` and ``Putter.put_encoded`` do for a pop: it reads
units, copies records, makes the checkpoint that names them, appends it to the log, and writes the
part of the reply that names them.

**What takes the fast path**; for anything else it returns 0, with nothing done, and the pop falls
back to the processor:

* 1 to MESSAGES_MAX messages are wanted; no number is negative; records have no checksum property
  (HAS_RECORD_CRC is off). The queue is not of a retry topic, and not a light queue.
* The units that the processor would read are in memory, as for pulls (``deliver``).
* Some records are wanted; no record that was read is gone, damaged, or not mapped; all fit BUFFER.
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
    get_i64,
    load_i32,
    load_i64,
    put_i64,
    put_u8,
    set_word,
    store_i16,
    store_i32,
    store_i64,
    text_writer,
    word,
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
        word(block, state.HAS_RECORD_CRC) == 0
        and 0 < word(call, words.COUNT_MAX) <= words.MESSAGES_MAX
        and word(call, words.QUEUE_OFFSET) >= 0
        and word(call, words.QUEUE_ID) >= 0
        and word(call, words.POP_MS) >= 0
        and word(call, words.INVISIBLE_MS) >= 0
        and word(call, words.REVIVE_QUEUE_ID) >= 0
        and word(call, words.FIRST_SIZE) + word(call, words.LAST_SIZE) <= words.BODY_BYTES_MAX
        and word(call, words.PROPERTIES_SIZE) <= words.PROPERTIES_BYTES_MAX
    )


@njit(**COMPILE_OPTIONS)
def find_messages(call, block):
    """Copy the wanted records into BUFFER; return their number, 0 if the pop falls back."""
    row = word(call, words.QUEUE_ROW)
    queue_offset = word(call, words.QUEUE_OFFSET)
    units, unit_count = units_in_memory(row, queue_offset)
    if unit_count == 0:
        return 0
    wanted = word(call, words.COUNT_MAX)
    if word(call, words.CODE_COUNT):
        wanted = max(wanted, word(block, state.FILTERED_UNITS_MAX))
    wanted = min(wanted, READ_UNITS_MAX)
    read_count = min(unit_count, wanted)
    set_word(block, state.PULL_UNITS, units)
    set_word(block, state.PULL_UNIT_COUNT, read_count)
    set_word(block, state.PULL_QUEUE_OFFSET, queue_offset)
    set_word(block, state.PULL_BUFFER, word(call, words.BUFFER))
    set_word(block, state.PULL_ROOM, word(call, words.BUFFER_ROOM))
    set_word(block, state.PULL_COUNT_MAX, word(call, words.COUNT_MAX))
    set_word(block, state.PULL_CODES, word(call, words.CODES))
    set_word(block, state.PULL_CODE_COUNT, word(call, words.CODE_COUNT))
    set_word(block, state.RESULT_LAST_OFFSET, 0)
    count = pull(block)
    if word(block, state.STOP) != state.STOP_DONE:
        return 0
    if word(block, state.RESULT_GONE) != 0 or word(block, state.RESULT_DAMAGED) != 0:
        return 0
    scanned = word(block, state.RESULT_SCANNED)
    next_offset = queue_offset + scanned
    if (
        scanned == read_count
        and read_count < wanted
        and next_offset < word(row, state.QUEUE_MAX_OFFSET)
    ):
        return 0  # the processor would read units that are not in memory
    set_word(call, words.RESULT_BYTES, word(block, state.RESULT_BYTES))
    set_word(call, words.RESULT_NEXT_OFFSET, next_offset)
    return count


@njit(**COMPILE_OPTIONS)
def read_offsets(call, count):
    """Copy the queue offsets of the records in BUFFER to OFFSETS."""
    address = word(call, words.BUFFER)
    target = word(call, words.OFFSETS)
    for _ in range(count):
        put_i64(target, load_i64(address + AT_QUEUE_OFFSET))
        address += load_i32(address)
        target += 8


@njit(**COMPILE_OPTIONS)
def put_offsets(call, address, count, start):
    """Write the distances of the messages from a queue offset, with commas; return the end."""
    offsets = word(call, words.OFFSETS)
    for i in range(count):
        if i > 0:
            put_u8(address, COMMA)
            address += 1
        address = put_decimal(address, get_i64(offsets + 8 * i) - start)
    return address


@njit(**COMPILE_OPTIONS)
def put_checkpoint(call, address, count):
    """Write the JSON of the checkpoint, as ``pop_codec.encode_checkpoint``; return its end."""
    start = word(call, words.QUEUE_OFFSET)
    size = word(call, words.FIRST_SIZE)
    copy(address, word(call, words.FIRST), size)
    address = put_offsets(call, address + size, count, start)
    put_piece_0(address)
    address = put_decimal(address + PIECE_0, word(call, words.INVISIBLE_MS))
    put_piece_1(address)
    address = put_decimal(address + PIECE_1, count)
    put_piece_2(address)
    address = put_decimal(address + PIECE_2, word(call, words.POP_MS))
    put_piece_3(address)
    address = put_decimal(address + PIECE_3, word(call, words.QUEUE_ID))
    put_piece_4(address)
    address = put_decimal(address + PIECE_4, start)
    size = word(call, words.LAST_SIZE)
    copy(address, word(call, words.LAST), size)
    return address + size


@njit(**COMPILE_OPTIONS)
def make_record(call, count):
    """Make the record of the checkpoint in SCRATCH; return its size, 0 if the pop falls back."""
    start = word(call, words.SCRATCH)
    copy(start, word(call, words.HEAD), HEAD_BYTES)
    body = start + HEAD_BYTES
    address = put_checkpoint(call, body, count)
    if address - body > words.BODY_BYTES_MAX:
        return 0
    store_i32(start + AT_BODY_SIZE, address - body)
    store_i32(start + AT_QUEUE_ID, word(call, words.REVIVE_QUEUE_ID))
    store_i64(start + AT_BORN_TIMESTAMP, word(call, words.POP_MS))
    size = word(call, words.TOPIC_SIZE)
    copy(address, word(call, words.TOPIC), size)
    properties = address + size + PROPERTIES_LENGTH_BYTES
    size = word(call, words.PROPERTIES_SIZE)
    copy(properties, word(call, words.PROPERTIES), size)
    address = put_decimal(properties + size, word(call, words.POP_MS))
    put_u8(address, PAIR_END)
    address += 1
    store_i16(properties - PROPERTIES_LENGTH_BYTES, address - properties)
    store_i32(start, address - start)
    return address - start


@njit(**COMPILE_OPTIONS)
def put_info(call, count):
    """Write the text of ``pop_codec.message_info``."""
    start = word(call, words.INFO)
    put_info_kind(start)
    address = put_decimal(start + INFO_KIND, word(call, words.QUEUE_ID))
    put_u8(address, SPACE)
    address = put_offsets(call, address + 1, count, 0)
    set_word(call, words.RESULT_INFO_SIZE, address - start)


@njit(**COMPILE_OPTIONS)
def pop_batch(call):
    """Entry point: pop messages; return their number, 0 if the pop falls back with nothing done."""
    block = word(call, words.BLOCK)
    if not is_fast_pop(call, block):
        return 0
    count = find_messages(call, block)
    if count == 0:
        return 0
    read_offsets(call, count)
    size = make_record(call, count)
    if size == 0:
        return 0
    set_word(block, state.INPUT_POSITION, 0)
    set_word(block, state.INPUT_SIZE, size)
    set_word(block, state.INPUT_TIME, word(call, words.STORE_MS))
    set_word(block, state.PLACES, call + 8 * words.RESULT_PHYSICAL_OFFSET)
    if append(block, word(call, words.SCRATCH)) == 0:
        return 0
    set_word(call, words.RESULT_SIZE, size)
    put_info(call, count)
    return count


ENTRY_POINTS = {"pop_batch": (int,)}
"""Entry points and their arguments. Results are numbers."""
