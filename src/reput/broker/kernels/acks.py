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
    put_i64,
    set_word,
    store_i32,
    text_writer,
    word,
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
FRAME_GROUP = words.FRAME_GROUP


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
            set_word(block, FRAME_GROUP + 2 * field, value)
            set_word(block, FRAME_GROUP + 2 * field + 1, value_end - value)
        address = value_end + 1
        if address >= limit:
            return 0
        mark = get_u8(address)
        if mark == CLOSE:
            return address + 1 if seen == ALL_FIELDS else 0
        if mark != COMMA:
            return 0


read_header = json_reader(read_fields, opaque=words.FRAME_OPAQUE, only_code=CODE)
"""Reads a header into words of the block; returns False if it falls back."""


@njit(**COMPILE_OPTIONS)
def read_handle(block):
    """Read ``extraInfo``: start, pop time, invisible time, revive queue, two more words."""
    address = word(block, words.FRAME_INFO)
    limit = address + word(block, words.FRAME_INFO_SIZE)
    for i in range(4):
        end = digits_end(address, limit)
        value = number(address, end - address)
        if value < 0 or end >= limit or get_u8(end) != SPACE:
            return False
        if i == 0:
            set_word(block, words.FRAME_START, value)
        elif i == 1:
            set_word(block, words.FRAME_POP_TIME, value)
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
    queue_id = number(word(block, words.FRAME_QUEUE_ID), word(block, words.FRAME_QUEUE_ID_SIZE))
    offset = number(word(block, words.FRAME_OFFSET), word(block, words.FRAME_OFFSET_SIZE))
    if queue_id < 0 or queue_id > INT_MAX or offset < 0:
        return 0
    set_word(block, words.FRAME_QUEUE_ID, queue_id)
    set_word(block, words.FRAME_OFFSET, offset)
    return frame_end


@njit(**COMPILE_OPTIONS)
def is_of_row(block, row):
    """Return whether the frame that was read belongs to a row."""
    distance = word(block, words.FRAME_OFFSET) - word(row, words.ROW_FIRST)
    buffer = word(block, words.BUFFER)
    topic_size = word(block, words.FRAME_TOPIC_SIZE)
    group_size = word(block, words.FRAME_GROUP_SIZE)
    return (
        0 <= distance < BITS
        and word(block, words.FRAME_QUEUE_ID) == word(row, words.ROW_QUEUE_ID)
        and word(block, words.FRAME_START) == word(row, words.ROW_START)
        and word(block, words.FRAME_POP_TIME) == word(row, words.ROW_POP_TIME)
        and topic_size == word(row, words.ROW_TOPIC_SIZE)
        and group_size == word(row, words.ROW_GROUP_SIZE)
        and same_bytes(
            word(block, words.FRAME_TOPIC), buffer + word(row, words.ROW_TOPIC), topic_size
        )
        and same_bytes(
            word(block, words.FRAME_GROUP), buffer + word(row, words.ROW_GROUP), group_size
        )
    )


@njit(**COMPILE_OPTIONS)
def begin_row(block, row):
    """Begin a row with the frame that was read, which is not counted yet."""
    buffer = word(block, words.BUFFER)
    offset = word(block, words.FRAME_OFFSET)
    start = word(block, words.FRAME_START)
    set_word(row, words.ROW_TOPIC, word(block, words.FRAME_TOPIC) - buffer)
    set_word(row, words.ROW_TOPIC_SIZE, word(block, words.FRAME_TOPIC_SIZE))
    set_word(row, words.ROW_GROUP, word(block, words.FRAME_GROUP) - buffer)
    set_word(row, words.ROW_GROUP_SIZE, word(block, words.FRAME_GROUP_SIZE))
    set_word(row, words.ROW_QUEUE_ID, word(block, words.FRAME_QUEUE_ID))
    set_word(row, words.ROW_START, start)
    set_word(row, words.ROW_POP_TIME, word(block, words.FRAME_POP_TIME))
    # Messages are acknowledged in any order; most are shortly after the start.
    set_word(row, words.ROW_FIRST, start if 0 <= offset - start < BITS else offset)
    set_word(row, words.ROW_BITS, 0)
    set_word(row, words.ROW_COUNT, 0)


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
    """Entry point: read the acknowledgements from POSITION on; return the number of rows."""
    buffer = word(block, words.BUFFER)
    end = buffer + word(block, words.END)
    address = buffer + word(block, words.POSITION)
    replies = word(block, words.REPLIES)
    limit = replies + word(block, words.REPLIES_ROOM) - words.REPLY_BYTES_MAX
    reply = replies
    row_bytes = 8 * words.ROW_WORDS
    row = word(block, words.ROWS)
    count = 0
    while reply <= limit:
        frame_end = read_ack(block, address, end)
        if frame_end == 0:
            break
        if count == 0 or not is_of_row(block, row):
            if count == word(block, words.ROW_MAX):
                break
            if count:
                row += row_bytes
            begin_row(block, row)
            count += 1
        distance = word(block, words.FRAME_OFFSET) - word(row, words.ROW_FIRST)
        set_word(row, words.ROW_BITS, word(row, words.ROW_BITS) | 1 << distance)
        set_word(row, words.ROW_COUNT, word(row, words.ROW_COUNT) + 1)
        reply = put_reply(reply, word(block, words.FRAME_OPAQUE))
        address = frame_end
        set_word(row, words.ROW_END, address - buffer)
        set_word(row, words.ROW_REPLIES, reply - replies)
    put_i64(block + 8 * words.POSITION, address - buffer)
    return count


ENTRY_POINTS = {"acks": (int,)}
"""Entry points and their arguments. Results are numbers."""
