"""Kernel: the reply to a send; the same bytes as ``reput.format.send_reply`` makes."""

# mypy: allow-untyped-defs, allow-untyped-calls, allow-untyped-decorators, no-check-untyped-defs

from numba import njit

from reput.format import recall_handle, send_reply
from reput.format.command import Serialization
from reput.format.kernels.columns import PAIR_END, find_byte
from reput.format.kernels.memory import (
    COMPILE_OPTIONS,
    copy,
    get_u8,
    put_u8,
    store_i32,
    store_i64,
    text_writer,
    word,
)
from reput.store.kernels import control_block as state
from reput.store.kernels.request_fields import number
from reput.store.kernels.send_rules import REAL_TOPIC_NAME

JSON = int(Serialization.JSON)
BINARY_MARK = int(Serialization.ROCKETMQ) << 24
HEAD_BYTES = 8
"""Length and mark."""
ID_BYTES = 32
ZERO_DIGIT = ord("0")
SPACE = ord(recall_handle.SEPARATOR)

put_json_0, put_json_1, put_json_2, put_json_3, put_json_4 = map(
    text_writer, send_reply.JSON_PIECES
)
JSON_0, JSON_1, JSON_2, JSON_3, JSON_4 = map(len, send_reply.JSON_PIECES)
(
    put_binary_0,
    put_binary_1,
    put_binary_2,
    put_binary_3,
    put_binary_4,
    put_binary_5,
) = map(text_writer, send_reply.BINARY_PIECES)
BINARY_0, BINARY_1, BINARY_2, BINARY_3, BINARY_4, BINARY_5 = map(len, send_reply.BINARY_PIECES)
put_json_handle, put_json_end = map(text_writer, send_reply.JSON_HANDLE_PIECES)
JSON_HANDLE, JSON_END = map(len, send_reply.JSON_HANDLE_PIECES)
put_binary_handle = text_writer(send_reply.BINARY_HANDLE_NAME)
BINARY_HANDLE = len(send_reply.BINARY_HANDLE_NAME)
HANDLE_START = recall_handle.VERSION + recall_handle.SEPARATOR
put_handle_start = text_writer(HANDLE_START.encode())
HANDLE_START_SIZE = len(HANDLE_START)
REAL_TOPIC_SIZE = len(REAL_TOPIC_NAME)
UPPER_A, LOWER_A, MINUS, UNDERSCORE, EQUALS = map(ord, "Aa-_=")


@njit(**COMPILE_OPTIONS)
def put_hex(at, value):
    """Write the low 32 bits of a number as eight digits, upper case."""
    spread = (value & 0xFFFF0000) << 16 | value & 0xFFFF
    spread = (spread & 0x0000FF000000FF00) << 8 | spread & 0x000000FF000000FF
    spread = (spread & 0x00F000F000F000F0) << 4 | spread & 0x000F000F000F000F
    letters = (spread + 0x0606060606060606) >> 4 & 0x0101010101010101
    store_i64(at, spread + 0x3030303030303030 + letters * 7)


@njit(**COMPILE_OPTIONS)
def decimal_size(value):
    """Return how many digits a number has that is not negative."""
    size = 1
    bound = 10
    while size < 19 and value >= bound:
        size += 1
        bound *= 10
    return size


@njit(**COMPILE_OPTIONS)
def put_decimal(at, value):
    """Write a number that is not negative; return where it ends."""
    size = decimal_size(value)
    place = at + size
    while place > at:
        place -= 1
        put_u8(place, ZERO_DIGIT + value % 10)
        value //= 10
    return at + size


@njit(**COMPILE_OPTIONS)
def put_id(block, at, physical_offset):
    """Write an offset id; return where it ends."""
    put_hex(at, word(block, state.STORE_ADDRESS))
    put_hex(at + 8, word(block, state.STORE_PORT))
    put_hex(at + 16, physical_offset >> 32)
    put_hex(at + 24, physical_offset)
    return at + ID_BYTES


@njit(**COMPILE_OPTIONS)
def letter(value):
    """Return the letter that stands for the low six bits of a number in base64url."""
    value &= 63
    if value < 26:
        return value + UPPER_A
    if value < 52:
        return value - 26 + LOWER_A
    if value < 62:
        return value - 52 + ZERO_DIGIT
    return MINUS if value == 62 else UNDERSCORE


@njit(**COMPILE_OPTIONS)
def encode_base64(at, size):
    """Write base64 of bytes, which stand right in front of where that ends; return its end.

    ``at`` is where it begins: what is written stays behind what was read.
    """
    end = at + (size + 2) // 3 * 4
    source = end - size
    while source < end:
        first = get_u8(source)
        second = get_u8(source + 1) if source + 1 < end else 0
        third = get_u8(source + 2) if source + 2 < end else 0
        bits = first << 16 | second << 8 | third
        put_u8(at, letter(bits >> 18))
        put_u8(at + 1, letter(bits >> 12))
        put_u8(at + 2, letter(bits >> 6) if source + 1 < end else EQUALS)
        put_u8(at + 3, letter(bits) if source + 2 < end else EQUALS)
        source += 3
        at += 4
    return end


@njit(**COMPILE_OPTIONS)
def put_handle(block, start, out_ms, key, key_size):
    """Write the recall handle of a message; return where it ends.

    ``out_ms`` is where the value of TIMER_OUT_MS stands among its properties, REAL_TOPIC behind it.
    """
    topic = find_byte(out_ms, out_ms + 20, PAIR_END)
    deliver_ms = number(out_ms, topic - out_ms) + 1
    topic += 1 + REAL_TOPIC_SIZE
    topic_size = find_byte(topic, topic + 256, PAIR_END) - topic
    name_size = word(block, state.BROKER_NAME_SIZE)
    size = HANDLE_START_SIZE + topic_size + name_size + decimal_size(deliver_ms) + key_size + 3
    at = start + (size + 2) // 3 * 4 - size
    put_handle_start(at)
    at += HANDLE_START_SIZE
    copy(at, topic, topic_size)
    at += topic_size
    put_u8(at, SPACE)
    copy(at + 1, word(block, state.BROKER_NAME), name_size)
    at += 1 + name_size
    put_u8(at, SPACE)
    at = put_decimal(at + 1, deliver_ms)
    put_u8(at, SPACE)
    copy(at + 1, key, key_size)
    return encode_base64(start, size)


@njit(**COMPILE_OPTIONS)
def put_json_reply(
    block, start, opaque, physical_offset, queue_id, queue_offset, out_ms, key, key_size
):
    """Write a reply; return where it ends."""
    at = start + HEAD_BYTES
    put_json_0(at)
    at = put_decimal(at + JSON_0, opaque)
    put_json_1(at)
    at = put_id(block, at + JSON_1, physical_offset)
    put_json_2(at)
    at = put_decimal(at + JSON_2, queue_id)
    put_json_3(at)
    at = put_decimal(at + JSON_3, queue_offset)
    if out_ms == 0:
        put_json_4(at)
        at += JSON_4
    else:
        put_json_handle(at)
        at = put_handle(block, at + JSON_HANDLE, out_ms, key, key_size)
        put_json_end(at)
        at += JSON_END
    store_i32(start, at - start - 4)
    store_i32(start + 4, at - start - HEAD_BYTES)
    return at


@njit(**COMPILE_OPTIONS)
def put_sized_decimal(at, value):
    """Write a number behind its size; return where it ends."""
    end = put_decimal(at + 4, value)
    store_i32(at, end - at - 4)
    return end


@njit(**COMPILE_OPTIONS)
def put_binary_reply(
    block, start, opaque, physical_offset, queue_id, queue_offset, out_ms, key, key_size
):
    """Write a reply; return where it ends."""
    at = start + HEAD_BYTES
    put_binary_0(at)
    store_i32(at + BINARY_0, opaque)
    at += BINARY_0 + 4
    put_binary_1(at)
    extension = at + BINARY_1 + 4
    put_binary_2(extension)
    at = extension + BINARY_2
    store_i32(at, ID_BYTES)
    at = put_id(block, at + 4, physical_offset)
    put_binary_3(at)
    at = put_sized_decimal(at + BINARY_3, queue_id)
    put_binary_4(at)
    at = put_sized_decimal(at + BINARY_4, queue_offset)
    put_binary_5(at)
    at += BINARY_5
    if out_ms != 0:
        put_binary_handle(at)
        handle = at + BINARY_HANDLE + 4
        at = put_handle(block, handle, out_ms, key, key_size)
        store_i32(handle - 4, at - handle)
    store_i32(extension - 4, at - extension)
    store_i32(start, at - start - 4)
    store_i32(start + 4, BINARY_MARK | at - start - HEAD_BYTES)
    return at


@njit(**COMPILE_OPTIONS)
def put_reply(
    block,
    at,
    serialization,
    opaque,
    physical_offset,
    queue_id,
    queue_offset,
    out_ms,
    key,
    key_size,
):
    """Write a reply; return where it ends.

    ``out_ms`` is 0 for a message that has no recall handle, and ``put_handle``'s otherwise.
    """
    if serialization == JSON:
        return put_json_reply(
            block, at, opaque, physical_offset, queue_id, queue_offset, out_ms, key, key_size
        )
    return put_binary_reply(
        block, at, opaque, physical_offset, queue_id, queue_offset, out_ms, key, key_size
    )
