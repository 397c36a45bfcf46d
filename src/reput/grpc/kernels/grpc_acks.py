"""Kernels: turn an AckMessage into a request to a broker, and its reply into a reply.

A request becomes a frame of code 200051 with a JSON header, the same as the front makes of it
(``reput.grpc.receiving``), in the form that the broker's fast path takes. ``grpc_calls`` has the
entry points.

**What takes the fast path**; the front serves all others:

* One entry, without a lite topic; no unknown field. Topic and group are one of ``pairs``.
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
    store_i32,
    text_writer,
)
from reput.format.kernels.plain_text import digits_end, number
from reput.format.kernels.row_types import clear
from reput.grpc.kernels.call_words import NUMBERS_OF_HANDLE as NUMBERS
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
    ack = block.acknowledgement
    while address < end:
        tag = get_u8(address)
        begin, stop = delimited(address + 1, end)
        if stop == 0 or not is_visible(begin, stop):
            return False
        if tag == 0x0A:
            if stop - begin > ID_BYTES_MAX:
                return False
            if not set_place(ack.message_id, begin, stop):
                return False
        elif tag != 0x12 or not set_place(ack.handle, begin, stop):
            return False
        address = stop
    return ack.handle.start != 0


@njit(**COMPILE_OPTIONS)
def read_handle(block):
    """Read the words of the handle; return whether it is one that may be fast."""
    ack = block.acknowledgement
    address = ack.handle.start
    size = ack.handle.size
    limit = address + size
    if size > HANDLE_BYTES_MAX:
        return False
    for i in range(NUMBERS):
        end = digits_end(address, limit)
        value = number(address, end - address)
        if value < 0 or end >= limit or get_u8(end) != SPACE:
            return False
        ack.numbers[i] = value
        address = end + 1
    expires_ms = ack.numbers[1] + ack.numbers[2]
    if expires_ms <= block.now_ms:
        return False
    name = address + 2
    name_size = block.broker_name.size
    after = name + name_size
    if after + 4 > limit or get_u8(address) != NORMAL or get_u8(address + 1) != SPACE:
        return False
    if get_u8(after) != SPACE or not same_bytes(name, block.broker_name.start, name_size):
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
    ack.queue = queue
    ack.offset = offset
    ack.offset_end = offset_end
    return True


@njit(**COMPILE_OPTIONS)
def is_known_pair(block):
    """Return whether topic and group were checked before."""
    ack = block.acknowledgement
    topic, topic_size = ack.topic.start, ack.topic.size
    group, group_size = ack.group.start, ack.group.size
    for i in range(block.pair_count):
        pair = block.pairs[i]
        if (
            pair.topic.size == topic_size
            and pair.group.size == group_size
            and same_bytes(pair.topic.start, topic, topic_size)
            and same_bytes(pair.group.start, group, group_size)
        ):
            return True
    return False


@njit(**COMPILE_OPTIONS)
def read_ack(block, address, end):
    """Read a request; return whether it takes the fast path."""
    ack = block.acknowledgement
    clear(ack)
    while address < end:
        tag = get_u8(address)
        begin, stop = delimited(address + 1, end)
        if stop == 0:
            return False
        if tag == 0x0A:
            if not read_resource(ack.group, begin, stop):
                return False
        elif tag == 0x12:
            if not read_resource(ack.topic, begin, stop):
                return False
        elif tag == 0x1A:
            if ack.has_entry != 0 or not read_entry(block, begin, stop):
                return False
            ack.has_entry = 1
        else:
            return False
        address = stop
    if ack.has_entry == 0 or ack.group.start == 0 or ack.topic.start == 0:
        return False
    return read_handle(block) and is_known_pair(block)


@njit(**COMPILE_OPTIONS)
def put_ack(block, start, opaque):
    """Write the frame of the request; return its end."""
    ack = block.acknowledgement
    address = start + 8
    put_0(address)
    address = put_digits(address + SIZE_0, opaque)
    put_1(address)
    address = put_copy(address + SIZE_1, ack.group.start, ack.group.size)
    put_2(address)
    address = put_copy(address + SIZE_2, ack.topic.start, ack.topic.size)
    queue, offset = ack.queue, ack.offset
    put_3(address)
    address = put_copy(address + SIZE_3, queue, offset - 1 - queue)
    handle, offset_end = ack.handle.start, ack.offset_end
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
    ack = block.acknowledgement
    buffer = block.buffer
    data, data_end = buffer + row.data, buffer + row.data_end
    begin, end = message_of(data, data_end)
    if end == 0 or not read_ack(block, begin, end):
        return 0
    if frame + (data_end - data) + ROOM_BESIDE > limit:
        return 0
    message_id = ack.message_id.start
    row.message_id.start = message_id - buffer if message_id != 0 else 0
    row.message_id.size = ack.message_id.size
    row.handle.start = ack.handle.start - buffer
    row.handle.size = ack.handle.size
    row.group.start = ack.group.start - buffer
    row.group.size = ack.group.size
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
    buffer = block.buffer
    id_size, handle_size = row.message_id.size, row.handle.size
    message = begin_reply(block, out, row.stream)
    put_ok_reply(message)
    size = STATUS_SIZE + 1 + varint_size(handle_size) + handle_size
    if id_size != 0:
        size += 2 + id_size
    address = put_varint(message + REPLY_SIZE, size)
    if id_size != 0:
        put_u8(address, 0x0A)
        put_u8(address + 1, id_size)
        address = put_copy(address + 2, buffer + row.message_id.start, id_size)
    put_u8(address, 0x12)
    address = put_varint(address + 1, handle_size)
    address = put_copy(address, buffer + row.handle.start, handle_size)
    put_ok_status(address)
    return end_reply(block, message, address + STATUS_SIZE, row.stream)
