"""Kernels: turn an AckMessage into a request to a broker, and its reply into a reply.

A request becomes a frame of code 200051 with a JSON header, the same as the front makes of it
(``reput.grpc.receiving``), in the form that the broker's fast path takes. ``grpc_calls`` has the
entry points.

**What takes the fast path**; the front serves all others:

* One entry, without a lite topic; no unknown field. Topic and group are one of PAIRS.
* A handle of 8 or 9 words, of plain numbers, that has not expired, of the topic itself and not of a
  retry topic, and of this broker.

A reply is written if the broker has taken the acknowledgement.
"""

# mypy: allow-untyped-defs, allow-untyped-calls, allow-untyped-decorators, no-check-untyped-defs

from numba import njit

from reput.format import command as commands
from reput.format.codes import RequestCode
from reput.format.command import Command
from reput.format.kernels.hashes import same_bytes
from reput.format.kernels.memory import (
    COMPILE_OPTIONS,
    get_i64,
    get_u8,
    get_u16,
    put_u8,
    set_word,
    store_i32,
    text_writer,
    word,
)
from reput.format.kernels.plain_text import digits_end, number
from reput.grpc.kernels import call_words as words
from reput.grpc.kernels.grpc_wire import (
    OK,
    REPLY_SIZE,
    begin_reply,
    delimited,
    end_reply,
    is_visible,
    message_of,
    put_copy,
    put_digits,
    put_ok_reply,
    put_varint,
    read_resource,
    set_place,
)

CODE = int(RequestCode.ACK_MESSAGE)
NORMAL = ord("0")
SPACE = ord(" ")
ROOM_BESIDE = 1024
HANDLE_BYTES_MAX = 400
ID_BYTES_MAX = 80

A_GROUP, A_TOPIC, A_ID, A_HANDLE = (words.M_FIRST + 2 * i for i in range(4))
A_HAS_ENTRY, A_INFO_END, A_QUEUE, A_OFFSET, A_OFFSET_END = (words.M_FIRST + 8 + i for i in range(5))
A_START = words.M_FIRST + 13
"""Start offset, pop time, invisible time, revive queue."""

_REQUEST = commands.encode(
    Command(CODE, 11111, ext_fields={"consumerGroup": "<G>", "topic": "<T>", "queueId": "<Q>",
                                     "extraInfo": "<I>", "offset": "<O>"})
)[8:]  # fmt: skip
_PIECES = []
for _mark in (b"11111", b"<G>", b"<T>", b"<Q>", b"<I>", b"<O>"):
    _piece, _, _REQUEST = _REQUEST.partition(_mark)
    _PIECES.append(_piece)
_PIECES.append(_REQUEST)
put_0, put_1, put_2, put_3, put_4, put_5, put_6 = map(text_writer, _PIECES)
SIZE_0, SIZE_1, SIZE_2, SIZE_3, SIZE_4, SIZE_5, SIZE_6 = map(len, _PIECES)

_BEFORE, _, _AFTER = commands.encode(commands.reply(Command(CODE, 11111)))[8:].partition(b"11111")
BEFORE_SIZE, AFTER_SIZE = len(_BEFORE), len(_AFTER)
SUCCESS = int.from_bytes(_BEFORE[:8], "little", signed=True)
SUCCESS_END = int.from_bytes(_BEFORE[8:10], "little")
assert _BEFORE.startswith(b'{"code":0,')

STATUS = b"\x1a" + bytes([len(OK)]) + OK
put_ok_status = text_writer(STATUS)
STATUS_SIZE = len(STATUS)


@njit(**COMPILE_OPTIONS)
def read_entry(block, address, end):
    """Read an entry; return whether it is plain."""
    while address < end:
        tag = get_u8(address)
        begin, stop = delimited(address + 1, end)
        if stop == 0 or not is_visible(begin, stop):
            return False
        if tag == 0x0A:
            if stop - begin > ID_BYTES_MAX or not set_place(block, A_ID, begin, stop):
                return False
        elif tag != 0x12 or not set_place(block, A_HANDLE, begin, stop):
            return False
        address = stop
    return word(block, A_HANDLE) != 0


@njit(**COMPILE_OPTIONS)
def read_handle(block):
    """Read the words of the handle; return whether it is one that may be fast."""
    address = word(block, A_HANDLE)
    size = word(block, A_HANDLE + 1)
    limit = address + size
    if size > HANDLE_BYTES_MAX:
        return False
    for i in range(4):
        end = digits_end(address, limit)
        value = number(address, end - address)
        if value < 0 or end >= limit or get_u8(end) != SPACE:
            return False
        set_word(block, A_START + i, value)
        address = end + 1
    expires_ms = word(block, A_START + 1) + word(block, A_START + 2)
    if expires_ms <= word(block, words.NOW_MS):
        return False
    name = address + 2
    name_size = word(block, words.BROKER_NAME_SIZE)
    after = name + name_size
    if after + 4 > limit or get_u8(address) != NORMAL or get_u8(address + 1) != SPACE:
        return False
    if get_u8(after) != SPACE or not same_bytes(name, word(block, words.BROKER_NAME), name_size):
        return False
    queue = after + 1
    queue_end = digits_end(queue, limit)
    if number(queue, queue_end - queue) < 0 or queue_end - queue > 9 or queue_end >= limit:
        return False
    if get_u8(queue_end) != SPACE:
        return False
    offset = queue_end + 1
    offset_end = digits_end(offset, limit)
    if number(offset, offset_end - offset) < 0:
        return False
    if offset_end != limit:
        if get_u8(offset_end) != SPACE:
            return False
        if number(offset_end + 1, limit - offset_end - 1) < 0:
            return False
    set_word(block, A_QUEUE, queue)
    set_word(block, A_OFFSET, offset)
    set_word(block, A_OFFSET_END, offset_end)
    return True


@njit(**COMPILE_OPTIONS)
def is_known_pair(block):
    """Return whether topic and group were checked before."""
    pair = word(block, words.PAIRS)
    topic, topic_size = word(block, A_TOPIC), word(block, A_TOPIC + 1)
    group, group_size = word(block, A_GROUP), word(block, A_GROUP + 1)
    for _ in range(word(block, words.PAIR_COUNT)):
        if (
            word(pair, 1) == topic_size
            and word(pair, 3) == group_size
            and same_bytes(word(pair, 0), topic, topic_size)
            and same_bytes(word(pair, 2), group, group_size)
        ):
            return True
        pair += 8 * words.PAIR_WORDS
    return False


@njit(**COMPILE_OPTIONS)
def read_ack(block, address, end):
    """Read a request into words of the block; return whether it takes the fast path."""
    for i in range(words.M_WORDS):
        set_word(block, words.M_FIRST + i, 0)
    while address < end:
        tag = get_u8(address)
        begin, stop = delimited(address + 1, end)
        if stop == 0:
            return False
        if tag == 0x0A:
            if not read_resource(block, begin, stop, A_GROUP):
                return False
        elif tag == 0x12:
            if not read_resource(block, begin, stop, A_TOPIC):
                return False
        elif tag == 0x1A:
            if word(block, A_HAS_ENTRY) != 0 or not read_entry(block, begin, stop):
                return False
            set_word(block, A_HAS_ENTRY, 1)
        else:
            return False
        address = stop
    if word(block, A_HAS_ENTRY) == 0 or word(block, A_GROUP) == 0 or word(block, A_TOPIC) == 0:
        return False
    return read_handle(block) and is_known_pair(block)


@njit(**COMPILE_OPTIONS)
def put_ack(block, start, opaque):
    """Write the frame of the request; return its end."""
    address = start + 8
    put_0(address)
    address = put_digits(address + SIZE_0, opaque)
    put_1(address)
    address = put_copy(address + SIZE_1, word(block, A_GROUP), word(block, A_GROUP + 1))
    put_2(address)
    address = put_copy(address + SIZE_2, word(block, A_TOPIC), word(block, A_TOPIC + 1))
    queue, offset = word(block, A_QUEUE), word(block, A_OFFSET)
    put_3(address)
    address = put_copy(address + SIZE_3, queue, offset - 1 - queue)
    handle, offset_end = word(block, A_HANDLE), word(block, A_OFFSET_END)
    put_4(address)
    address = put_copy(address + SIZE_4, handle, offset_end - handle)
    put_5(address)
    address = put_copy(address + SIZE_5, offset, offset_end - offset)
    put_6(address)
    address += SIZE_6
    store_i32(start, address - start - 4)
    store_i32(start + 4, address - start - 8)
    return address


@njit(**COMPILE_OPTIONS)
def make_ack(block, row, opaque, frame, limit):
    """Write the request of a row at ``frame``; return its end, 0 if the row is left."""
    buffer = word(block, words.BUFFER)
    data, data_end = buffer + word(row, words.ROW_DATA), buffer + word(row, words.ROW_DATA_END)
    begin, end = message_of(data, data_end)
    if end == 0 or not read_ack(block, begin, end):
        return 0
    if frame + (data_end - data) + ROOM_BESIDE > limit:
        return 0
    message_id = word(block, A_ID)
    set_word(row, words.ROW_ID, message_id - buffer if message_id != 0 else 0)
    set_word(row, words.ROW_ID_SIZE, word(block, A_ID + 1))
    set_word(row, words.ROW_HANDLE, word(block, A_HANDLE) - buffer)
    set_word(row, words.ROW_HANDLE_SIZE, word(block, A_HANDLE + 1))
    set_word(row, words.ROW_GROUP, word(block, A_GROUP) - buffer)
    set_word(row, words.ROW_GROUP_SIZE, word(block, A_GROUP + 1))
    return put_ack(block, frame, opaque)


@njit(**COMPILE_OPTIONS)
def opaque_of_success(header, end):
    """Return the opaque of a reply in JSON that reports success, and no more; else -1."""
    size = end - header - BEFORE_SIZE - AFTER_SIZE
    if size <= 0 or get_i64(header) != SUCCESS or get_u16(header + 8) != SUCCESS_END:
        return -1
    return number(header + BEFORE_SIZE, size)


@njit(**COMPILE_OPTIONS)
def varint_size(value):
    """Return the size of a number below 2^14."""
    return 1 if value < 128 else 2


@njit(**COMPILE_OPTIONS)
def answer_ack(block, row, out):
    """Write the reply to an acknowledgement that succeeded; return its end, 0 if it is left."""
    buffer = word(block, words.BUFFER)
    id_size, handle_size = word(row, words.ROW_ID_SIZE), word(row, words.ROW_HANDLE_SIZE)
    message = begin_reply(block, out, word(row, words.ROW_STREAM))
    put_ok_reply(message)
    size = STATUS_SIZE + 1 + varint_size(handle_size) + handle_size
    if id_size != 0:
        size += 2 + id_size
    address = put_varint(message + REPLY_SIZE, size)
    if id_size != 0:
        put_u8(address, 0x0A)
        put_u8(address + 1, id_size)
        address = put_copy(address + 2, buffer + word(row, words.ROW_ID), id_size)
    put_u8(address, 0x12)
    address = put_varint(address + 1, handle_size)
    address = put_copy(address, buffer + word(row, words.ROW_HANDLE), handle_size)
    put_ok_status(address)
    return end_reply(block, message, address + STATUS_SIZE, word(row, words.ROW_STREAM))
