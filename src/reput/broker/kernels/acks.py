"""Kernel: read the acknowledgements of popped messages in a receive buffer into rows.

A client acknowledges message by message, and sends many at once. Consecutive ones of one checkpoint
are a row; the replies report success. The caller checks each row first: it passes a row that is not
valid to the processor, frame by frame, and drops its replies.

**What takes the fast path**; the first other frame ends the call, with nothing of it done:

* Code 200051 in JSON as clients write it (``header_json``); flag 0, opaque not negative; no body,
  no remark. All ``extFields`` are plain text; those of ``acks_args.FIELD_NAMES`` are required.
* ``queueId`` and ``offset`` are numbers without sign or leading zero. ``extraInfo`` has six words
  or more, with one space in between; the first four are such numbers too, and the fourth is not
  ORDERED_REVIVE_QUEUE.
"""

# mypy: allow-untyped-defs, allow-untyped-calls, allow-untyped-decorators, no-check-untyped-defs

from numba import njit

from reput.broker.kernels import acks_args as words
from reput.broker.kernels.reply import HEAD_BYTES
from reput.format.kernels.hashes import same_bytes
from reput.format.kernels.header_readers import json_reader
from reput.format.kernels.json_tokens import (
    CLOSE,
    COMMA,
    OPEN,
    QUOTE_COLON,
    text_end,
)
from reput.format.kernels.memory import (
    COMPILE_OPTIONS,
    get_u8,
    get_u16,
    load_i32,
    store_i32,
    text_writer,
)
from reput.format.kernels.plain_text import (
    INT_MAX,
    QUOTE,
    SPACE,
    digits_end,
    first_word,
    name_word,
    number,
    plain_end,
    put_decimal,
)

GROUP, TOPIC, QUEUE_ID, OFFSET, INFO = range(len(words.FIELD_NAMES))
ALL_FIELDS = (1 << len(words.FIELD_NAMES)) - 1
W_GROUP = name_word("consumerGroup")
W_GROUP_END = name_word("consumerGroup"[-8:])
W_TOPIC = name_word("topic")
W_QUEUE_ID = name_word("queueId")
W_OFFSET = name_word("offset")
W_INFO = name_word("extraInfo")
W_INFO_END = name_word("extraInfo"[-8:])
put_reply_0, put_reply_1 = map(text_writer, words.REPLY_PIECES)
REPLY_0, REPLY_1 = map(len, words.REPLY_PIECES)
CODE, BITS = words.CODE, words.BITS


@njit(**COMPILE_OPTIONS)
def field_number(address, size):
    """Return the number of a field by its name; -1 if it is ignored."""
    first = first_word(address, size)
    if size == 5 and first == W_TOPIC:
        return TOPIC
    if size == 6 and first == W_OFFSET:
        return OFFSET
    if size == 7 and first == W_QUEUE_ID:
        return QUEUE_ID
    if size == 9 and first == W_INFO and first_word(address + 1, 8) == W_INFO_END:
        return INFO
    if size == 13 and first == W_GROUP and first_word(address + 5, 8) == W_GROUP_END:
        return GROUP
    return -1


@njit(**COMPILE_OPTIONS)
def read_fields(block, address, limit):
    """Read the object of ``extFields``; return its end, 0 if it falls back."""
    seen = 0
    if get_u8(address) != OPEN:
        return 0
    while True:
        # At the byte before a name: the brace, or a comma.
        if limit - address < 8 or get_u8(address + 1) != QUOTE:
            return 0
        name = address + 2
        name_end = plain_end(name, limit)
        if limit - name_end < 4 or get_u16(name_end) != QUOTE_COLON:
            return 0
        if get_u8(name_end + 2) != QUOTE:
            return 0
        value = name_end + 3
        value_end = text_end(value, limit)
        if value_end == 0:
            return 0
        field = field_number(name, name_end - name)
        if field >= 0:
            if seen >> field & 1:
                return 0
            seen |= 1 << field
            block.fields[field].start = value
            block.fields[field].size = value_end - value
        address = value_end + 1
        if address >= limit:
            return 0
        mark = get_u8(address)
        if mark == CLOSE:
            return address + 1 if seen == ALL_FIELDS else 0
        if mark != COMMA:
            return 0


read_header = json_reader(read_fields, only_code=CODE)
"""Reads a header into the call; returns False if it falls back."""


@njit(**COMPILE_OPTIONS)
def read_handle(block):
    """Read ``extraInfo``: start, pop time, invisible time, revive queue, two more words."""
    address = block.fields[INFO].start
    limit = address + block.fields[INFO].size
    for i in range(4):
        end = digits_end(address, limit)
        value = number(address, end - address)
        if value < 0 or end >= limit or get_u8(end) != SPACE:
            return False
        if i == 0:
            block.start = value
        elif i == 1:
            block.pop_time = value
        elif i == 3 and value == words.ORDERED_REVIVE_QUEUE:
            return False
        address = end + 1
    while address < limit:
        if get_u8(address) == SPACE:
            return True
        address += 1
    return False


@njit(**COMPILE_OPTIONS)
def read_ack(block, address, end):
    """Read the frame at an address; return its end, 0 if it falls back or is not complete."""
    if end - address < HEAD_BYTES:
        return 0
    size = load_i32(address)
    # The serialization in the top byte is 0 for JSON, and there is no body.
    if size < 4 or size > end - address - 4 or load_i32(address + 4) != size - 4:
        return 0
    frame_end = address + 4 + size
    if not read_header(block, address + HEAD_BYTES, frame_end) or not read_handle(block):
        return 0
    queue_id = number(block.fields[QUEUE_ID].start, block.fields[QUEUE_ID].size)
    offset = number(block.fields[OFFSET].start, block.fields[OFFSET].size)
    if queue_id < 0 or queue_id > INT_MAX or offset < 0:
        return 0
    block.queue_id = queue_id
    block.offset = offset
    return frame_end


@njit(**COMPILE_OPTIONS)
def is_of_row(block, row):
    """Return whether the frame that was read belongs to a row."""
    distance = block.offset - row.first
    buffer = block.buffer
    topic_size = block.fields[TOPIC].size
    group_size = block.fields[GROUP].size
    return (
        0 <= distance < BITS
        and block.queue_id == row.queue_id
        and block.start == row.start
        and block.pop_time == row.pop_time
        and topic_size == row.topic_size
        and group_size == row.group_size
        and same_bytes(block.fields[TOPIC].start, buffer + row.topic, topic_size)
        and same_bytes(block.fields[GROUP].start, buffer + row.group, group_size)
    )


@njit(**COMPILE_OPTIONS)
def begin_row(block, row):
    """Begin a row with the frame that was read, which is not counted yet."""
    buffer = block.buffer
    offset = block.offset
    start = block.start
    row.topic = block.fields[TOPIC].start - buffer
    row.topic_size = block.fields[TOPIC].size
    row.group = block.fields[GROUP].start - buffer
    row.group_size = block.fields[GROUP].size
    row.queue_id = block.queue_id
    row.start = start
    row.pop_time = block.pop_time
    # Messages are acknowledged in any order; most are shortly after the start.
    row.first = start if 0 <= offset - start < BITS else offset
    row.bits = 0
    row.count = 0


@njit(**COMPILE_OPTIONS)
def put_reply(start, opaque):
    """Write a reply that reports success; return its end."""
    address = start + HEAD_BYTES
    put_reply_0(address)
    address = put_decimal(address + REPLY_0, opaque)
    put_reply_1(address)
    address += REPLY_1
    store_i32(start, address - start - 4)
    store_i32(start + 4, address - start - HEAD_BYTES)
    return address


@njit(**COMPILE_OPTIONS)
def acks(block):
    """Entry point: read the acknowledgements from ``position`` on; return the number of rows."""
    buffer = block.buffer
    end = buffer + block.end
    address = buffer + block.position
    replies = block.replies
    limit = replies + block.replies_room - words.REPLY_BYTES_MAX
    reply = replies
    row = block.ack_rows
    count = 0
    while reply <= limit:
        frame_end = read_ack(block, address, end)
        if frame_end == 0:
            break
        if count == 0 or not is_of_row(block, row):
            if count == block.row_max:
                break
            if count:
                row = row[1]
            begin_row(block, row)
            count += 1
        distance = block.offset - row.first
        row.bits = row.bits | 1 << distance
        row.count += 1
        reply = put_reply(reply, block.frame_opaque)
        address = frame_end
        row.end = address - buffer
        row.replies = reply - replies
    block.position = address - buffer
    return count


ENTRY_POINTS = {"acks": (words.AckCall,)}
"""Entry points and their arguments. Results are numbers."""
