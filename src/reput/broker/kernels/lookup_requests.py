"""Kernel: answer the lookups that follow each other in a receive buffer.

``lookups`` reads from ``receive_position`` on, writes the replies to ``replies_address``, and stops
at the first frame that falls back to its processor, which does the same in slices.

**What takes the fast path**: frames with a JSON header that ``header_json`` reads, with the fields
of ``lookup_request_args``, flag 0, opaque not negative, and

* code 12, messages by key: ``indexType`` K, U or absent; times and ``maxNum`` that are not
  negative; a search that ``find_by_key`` ends, with all its messages in the reply;
* code 29, offset by time: ``boundaryType`` LOWER, UPPER or absent; code 30 and 31, the ends of a
  queue. The topic is of KIND_PLAIN, and the queue has a row; the units that ``find_by_time`` needs
  are in memory or in the file that is mapped;
* code 33, the record at a physical offset, if there is one.
"""

# mypy: allow-untyped-defs, allow-untyped-calls, allow-untyped-decorators, no-check-untyped-defs

from numba import njit

from reput.broker.kernels import lookup_request_args as requests
from reput.broker.kernels.reply import HEAD_BYTES
from reput.broker.kernels.request_fields import field_number, field_place, has_field
from reput.broker.kernels.send import FRAME_MAX, FRAME_MIN, JSON, LENGTH_BYTES, read_header
from reput.broker.kernels.send_properties import is_true
from reput.format import lookup_reply
from reput.format.codes import RequestCode
from reput.format.kernels.memory import (
    COMPILE_OPTIONS,
    copy,
    get_i64,
    get_u8,
    load_i32,
    put_u8,
    store_i32,
)
from reput.format.kernels.plain_text import INT_MAX, first_word, name_word, number, put_decimal
from reput.store.kernels import control_block as state, lookup_args as words
from reput.store.kernels.append import find_queue, find_topic
from reput.store.kernels.control_block import ControlBlock
from reput.store.kernels.lookup import IS_UNMAPPED, find_by_key, find_by_time, find_record

QUERY = int(RequestCode.QUERY_MESSAGE)
BY_TIME = int(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP)
MAX_OFFSET = int(RequestCode.GET_MAX_OFFSET)
MIN_OFFSET = int(RequestCode.GET_MIN_OFFSET)
VIEW = int(RequestCode.VIEW_MESSAGE_BY_ID)

TOPIC, KEY, MAX_NUM, BEGIN, END, IS_UNIQUE = range(6)
INDEX_TYPE, QUEUE_ID, TIMESTAMP, BOUNDARY, PHYSICAL_OFFSET = range(6, 11)
assert requests.FIELD_NAMES[PHYSICAL_OFFSET] == "offset"

MESSAGES, NO_MESSAGES, QUEUE_OFFSET, RECORD = range(4)
FIRST_NUMBER, SECOND_NUMBER, BLANK = lookup_reply.FIRST, lookup_reply.SECOND, ord(" ")
HEAD_BYTES_MAX = max(map(len, lookup_reply.TEMPLATES)) + 64
LETTER_K, LETTER_U = map(ord, "KU")
LOWER, UPPER = name_word("LOWER"), name_word("UPPER")
BOUNDARY_BYTES = len("LOWER")

TIME_MAX = words.TIME_MAX_MS
LONG_MAX_TEXT = str((1 << 63) - 1)
LONG_MAX_SIZE = len(LONG_MAX_TEXT)
LONG_MAX_0, LONG_MAX_1, LONG_MAX_2 = map(
    name_word, (LONG_MAX_TEXT[:8], LONG_MAX_TEXT[8:16], LONG_MAX_TEXT[-8:])
)


@njit(**COMPILE_OPTIONS)
def time_field(block, field):
    """Return a time, ms; TIME_MAX for the largest number there is; -1 if it is none."""
    address, size = field_place(block, field)
    if (
        size == LONG_MAX_SIZE
        and get_i64(address) == LONG_MAX_0
        and get_i64(address + 8) == LONG_MAX_1
        and get_i64(address + size - 8) == LONG_MAX_2
    ):
        return TIME_MAX
    return min(number(address, size), TIME_MAX)


@njit(**COMPILE_OPTIONS)
def put_head(args, template, address, opaque, first, second):
    """Write the length words and the header of a reply; return the address of its body."""
    source = args.templates[template].start
    end = source + args.templates[template].size
    target = address + HEAD_BYTES
    while source < end:
        byte = get_u8(source)
        source += 1
        if byte >= BLANK:
            put_u8(target, byte)
            target += 1
        elif byte == FIRST_NUMBER:
            target = put_decimal(target, first)
        elif byte == SECOND_NUMBER:
            target = put_decimal(target, second)
        else:
            target = put_decimal(target, opaque)
    store_i32(address + 4, target - address - HEAD_BYTES)
    return target


@njit(**COMPILE_OPTIONS)
def end_reply(address, end):
    """Write the length of a reply; return its end."""
    store_i32(address, end - address - LENGTH_BYTES)
    return end


@njit(**COMPILE_OPTIONS)
def answer_query(block, args, address, room):
    """Answer a query by key at an address; return the end of the reply, 0 if it falls back."""
    topic, topic_size = field_place(block, TOPIC)
    key, key_size = field_place(block, KEY)
    begin_ms, end_ms = time_field(block, BEGIN), time_field(block, END)
    count_max = field_number(block, MAX_NUM)
    if topic_size == 0 or key_size == 0 or topic_size + key_size > args.key_letters_max:
        return 0
    if begin_ms < 0 or end_ms < 0 or count_max < 0 or count_max > INT_MAX:
        return 0
    kind, kind_size = field_place(block, INDEX_TYPE)
    unique, unique_size = field_place(block, IS_UNIQUE)
    if has_field(block, IS_UNIQUE) and is_true(unique, unique_size):
        count_max = args.unique_count_max
    elif kind_size > 0 and (kind_size != 1 or get_u8(kind) not in (LETTER_K, LETTER_U)):
        return 0
    count_max = min(count_max, args.key_count_max)
    if count_max <= 0:
        return 0
    args.is_tags = 0
    args.begin_ms = begin_ms
    args.end_ms = end_ms
    args.count_max = count_max
    opaque = block.frame_opaque
    index_ms = max(block.index_end_timestamp, 0)
    index_offset = max(block.index_end_offset, 0)
    body = put_head(args, MESSAGES, address, opaque, index_ms, index_offset)
    args.buffer = body
    args.buffer_room = room - HEAD_BYTES_MAX
    count = find_by_key(block, args, topic, topic_size, key, key_size)
    if count < 0 or args.is_truncated != 0:
        return 0
    if count == 0:
        body = put_head(args, NO_MESSAGES, address, opaque, index_ms, index_offset)
        return end_reply(address, body)
    return end_reply(address, body + args.result_size)


@njit(**COMPILE_OPTIONS)
def find_offset(block, time_args, code, row):
    """Return an end of a queue, or its offset by time, as the code asks; -1 if it is not known."""
    first = row.min_offset
    if code == MIN_OFFSET:
        return first
    end = row.max_offset
    if code == MAX_OFFSET:
        return end
    time_ms = time_field(block, TIMESTAMP)
    boundary, size = field_place(block, BOUNDARY)
    is_upper = size == BOUNDARY_BYTES and first_word(boundary, size) == UPPER
    is_lower = size == BOUNDARY_BYTES and first_word(boundary, size) == LOWER
    if time_ms < 0 or (size > 0 and not is_upper and not is_lower):
        return -1
    time_args.queue_row = row
    time_args.low = first
    time_args.high = end
    time_args.time_ms = time_ms
    time_args.is_upper = is_upper
    queue_offset = find_by_time(block, time_args)
    return max(queue_offset - 1, first) if is_upper and queue_offset >= 0 else queue_offset


@njit(**COMPILE_OPTIONS)
def answer_of_queue(block, args, time_args, address):
    """Answer a request about a queue; return the end of the reply, 0 if it falls back."""
    topic, topic_size = field_place(block, TOPIC)
    if topic_size == 0:
        return 0
    topic_row = find_topic(block, topic, topic_size)
    if topic_row == 0 or topic_row.kind != state.KIND_PLAIN:
        return 0
    row = find_queue(topic_row, field_number(block, QUEUE_ID))
    if row == 0:
        return 0
    queue_offset = find_offset(block, time_args, block.frame_code, row)
    if queue_offset < 0:
        return 0
    opaque = block.frame_opaque
    return end_reply(address, put_head(args, QUEUE_OFFSET, address, opaque, queue_offset, 0))


@njit(**COMPILE_OPTIONS)
def answer_view(block, args, address, room):
    """Answer with the record at an offset; return the end of the reply, 0 if it falls back."""
    physical_offset = field_number(block, PHYSICAL_OFFSET)
    if physical_offset < 0:
        return 0
    record = find_record(block, physical_offset, args.record_size_max)
    if record == IS_UNMAPPED:
        args.unmapped = physical_offset
    if record == 0 or record == IS_UNMAPPED:
        return 0
    size = load_i32(record)
    if size > room - HEAD_BYTES_MAX:
        return 0
    body = put_head(args, RECORD, address, block.frame_opaque, 0, 0)
    copy(body, record, size)
    return end_reply(address, body + size)


@njit(**COMPILE_OPTIONS)
def answer_lookup(block, args, time_args, address, room):
    """Answer the frame that was read; return the end of the reply, 0 if it falls back."""
    if (
        block.frame_serialization != JSON
        or block.frame_flag != 0
        or block.frame_opaque < 0
        or room < HEAD_BYTES_MAX
    ):
        return 0
    code = block.frame_code
    if code == QUERY:
        return answer_query(block, args, address, room)
    if code == VIEW:
        return answer_view(block, args, address, room)
    if code in (BY_TIME, MAX_OFFSET, MIN_OFFSET):
        return answer_of_queue(block, args, time_args, address)
    return 0


@njit(**COMPILE_OPTIONS)
def lookups(block, args, time_args):
    """Entry point: answer the lookups from ``receive_position`` on; return their number.

    ``readable`` must be current, ``unmapped`` of both searches -1. ``receive_position`` is then at
    the first frame that was not answered.
    """
    buffer = block.receive_address
    received = block.receive_end
    position = block.receive_position
    start = block.replies_address
    replies_end = start + block.replies_room
    address = start
    count = 0
    block.frame_names = args.names
    while received - position >= LENGTH_BYTES and count < requests.LOOKUPS_MAX:
        size = load_i32(buffer + position)
        end = position + LENGTH_BYTES + size
        if size < FRAME_MIN or size > FRAME_MAX or end > received:
            break
        if read_header(block, buffer + position + LENGTH_BYTES, buffer + end) == 0:
            break
        reply_end = answer_lookup(block, args, time_args, address, replies_end - address)
        if reply_end == 0:
            break
        address = reply_end
        position = end
        count += 1
    block.frame_names = 0
    block.replies_bytes = address - start
    block.receive_position = position
    return count


ENTRY_POINTS = {"lookups": (ControlBlock, requests.LookupCall, words.TimeSearch)}
"""Entry points and their arguments. Results are numbers."""
