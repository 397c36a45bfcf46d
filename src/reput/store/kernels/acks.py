"""Kernel: acknowledgements of popped messages that stand in a receive buffer become rows.

A client acknowledges message by message, and sends many at once. Those of one checkpoint that
follow each other are a row; the replies say that all went well. The caller looks at a row before it
believes that: what is not so, it hands to Python frame by frame, and drops the replies.

**What is common**, for the first other frame ends the call with nothing of it done:

* Code 200051 in JSON as clients write it (``header_json``); flag 0, opaque not negative; no body,
  no remark. Of ``extFields`` all are plain text, those of ``acks_args.FIELD_NAMES`` are there.
* ``queueId`` and ``offset`` are numbers as one would write them. ``extraInfo`` has six words or
  more, with one space in between; the first four are such numbers too, and the fourth is no
  ORDERED_REVIVE_QUEUE.
"""

# mypy: allow-untyped-defs, allow-untyped-calls, allow-untyped-decorators, no-check-untyped-defs

from numba import njit

from reput.format.kernels.hashes import same_bytes
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
from reput.store.kernels import acks_args as words
from reput.store.kernels.header_json import (
    CLOSE,
    COLON,
    COMMA,
    HAS_CODE,
    HAS_FIELDS,
    HAS_FLAG,
    HAS_NUMBER,
    HAS_OPAQUE,
    OPEN,
    QUOTE_COLON,
    REQUIRED,
    header_key,
    is_white,
    text_end,
)
from reput.store.kernels.reply import HEAD_BYTES, put_decimal
from reput.store.kernels.request_fields import (
    INT_MAX,
    QUOTE,
    SPACE,
    digits_end,
    first_word,
    name_word,
    number,
    plain_end,
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
def field_number(at, size):
    """Return the number of a field by its name; -1: it means nothing here."""
    first = first_word(at, size)
    if size == 5 and first == W_TOPIC:
        return TOPIC
    if size == 6 and first == W_OFFSET:
        return OFFSET
    if size == 7 and first == W_QUEUE_ID:
        return QUEUE_ID
    if size == 9 and first == W_INFO and first_word(at + 1, 8) == W_INFO_END:
        return INFO
    if size == 13 and first == W_GROUP and first_word(at + 5, 8) == W_GROUP_END:
        return GROUP
    return -1


@njit(**COMPILE_OPTIONS)
def read_fields(block, at, limit):
    """Read the object of ``extFields``; return what stands behind it, 0 if it is not common."""
    seen = 0
    if get_u8(at) != OPEN:
        return 0
    while True:
        # In front of a name: the brace, or a comma.
        if limit - at < 8 or get_u8(at + 1) != QUOTE:
            return 0
        name = at + 2
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
        at = value_end + 1
        if at >= limit:
            return 0
        mark = get_u8(at)
        if mark == CLOSE:
            return at + 1 if seen == ALL_FIELDS else 0
        if mark != COMMA:
            return 0


@njit(**COMPILE_OPTIONS)
def read_number(block, key, at, limit):
    """Read a number of the header; return what stands behind it, 0 if it is not common."""
    end = digits_end(at, limit)
    value = number(at, end - at)
    if value < 0 or value > INT_MAX:
        return 0
    if (key == HAS_CODE and value != CODE) or (key == HAS_FLAG and value != 0):
        return 0
    if key == HAS_OPAQUE:
        set_word(block, words.FRAME_OPAQUE, value)
    return end


@njit(**COMPILE_OPTIONS)
def read_header(block, at, limit):
    """Read a header of ``[at, limit)`` into words of the block; False: it is not common."""
    seen = 0
    if at >= limit or get_u8(at) != OPEN:
        return False
    while True:
        # In front of a key: the brace, or a comma.
        if limit - at < 8 or get_u8(at + 1) != QUOTE:
            return False
        key, key_size = header_key(at + 2, limit)
        value = at + 2 + key_size + 2
        if key == 0 or seen & key or value >= limit or get_u8(value - 1) != COLON:
            return False
        seen |= key
        if key & HAS_NUMBER:
            at = read_number(block, key, value, limit)
        elif key == HAS_FIELDS:
            at = read_fields(block, value, limit)
        elif get_u8(value) != QUOTE:
            return False
        else:
            at = text_end(value + 1, limit)
            at += at != 0
        if at == 0 or at >= limit:
            return False
        mark = get_u8(at)
        if mark == CLOSE:
            break
        if mark != COMMA:
            return False
    return seen & REQUIRED == REQUIRED and is_white(at + 1, limit)


@njit(**COMPILE_OPTIONS)
def read_handle(block):
    """Read ``extraInfo``: start, pop time, invisible time, revive queue, two more words."""
    at = word(block, words.FRAME_INFO)
    limit = at + word(block, words.FRAME_INFO_SIZE)
    for i in range(4):
        end = digits_end(at, limit)
        value = number(at, end - at)
        if value < 0 or end >= limit or get_u8(end) != SPACE:
            return False
        if i == 0:
            set_word(block, words.FRAME_START, value)
        elif i == 1:
            set_word(block, words.FRAME_POP_TIME, value)
        elif i == 3 and value == words.ORDERED_REVIVE_QUEUE:
            return False
        at = end + 1
    while at < limit:
        if get_u8(at) == SPACE:
            return True
        at += 1
    return False


@njit(**COMPILE_OPTIONS)
def read_ack(block, at, end):
    """Read the frame at ``at``; return what stands behind it, 0 if it is not common, or cut."""
    if end - at < HEAD_BYTES:
        return 0
    size = load_i32(at)
    # The serialization in the top byte is 0 for JSON, and there is no body.
    if size < 4 or size > end - at - 4 or load_i32(at + 4) != size - 4:
        return 0
    behind = at + 4 + size
    if not read_header(block, at + HEAD_BYTES, behind) or not read_handle(block):
        return 0
    queue_id = number(word(block, words.FRAME_QUEUE_ID), word(block, words.FRAME_QUEUE_ID_SIZE))
    offset = number(word(block, words.FRAME_OFFSET), word(block, words.FRAME_OFFSET_SIZE))
    if queue_id < 0 or queue_id > INT_MAX or offset < 0:
        return 0
    set_word(block, words.FRAME_QUEUE_ID, queue_id)
    set_word(block, words.FRAME_OFFSET, offset)
    return behind


@njit(**COMPILE_OPTIONS)
def is_of_row(block, row):
    """Whether the frame that was read acknowledges a message that a row can say."""
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
    """Begin a row with the frame that was read; it counts nothing yet."""
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
    # Messages are acknowledged in any order; most are close behind the start.
    set_word(row, words.ROW_FIRST, start if 0 <= offset - start < BITS else offset)
    set_word(row, words.ROW_BITS, 0)
    set_word(row, words.ROW_COUNT, 0)


@njit(**COMPILE_OPTIONS)
def put_reply(start, opaque):
    """Write a reply that says that all went well; return where it ends."""
    at = start + HEAD_BYTES
    put_reply_0(at)
    at = put_decimal(at + REPLY_0, opaque)
    put_reply_1(at)
    at += REPLY_1
    store_i32(start, at - start - 4)
    store_i32(start + 4, at - start - HEAD_BYTES)
    return at


@njit(**COMPILE_OPTIONS)
def acks(block):
    """Entry point: take the common acknowledgements from POSITION on; return how many rows."""
    buffer = word(block, words.BUFFER)
    end = buffer + word(block, words.END)
    at = buffer + word(block, words.POSITION)
    replies = word(block, words.REPLIES)
    limit = replies + word(block, words.REPLIES_ROOM) - words.REPLY_BYTES_MAX
    reply = replies
    row_bytes = 8 * words.ROW_WORDS
    row = word(block, words.ROWS)
    count = 0
    while reply <= limit:
        behind = read_ack(block, at, end)
        if behind == 0:
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
        at = behind
        set_word(row, words.ROW_BEHIND, at - buffer)
        set_word(row, words.ROW_REPLIES, reply - replies)
    put_i64(block + 8 * words.POSITION, at - buffer)
    return count


ENTRY_POINTS = {"acks": 1}
"""Name to number of arguments; all are int64, and so is the result."""
