"""Kernel: the reply to a send; the same bytes as ``reput.format.send_reply`` makes."""

from numba import njit

from reput.format import send_reply
from reput.format.command import Serialization
from reput.format.kernels import state
from reput.format.kernels.append import word
from reput.format.kernels.memory import (
    COMPILE_OPTIONS,
    put_u8,
    store_i32,
    store_i64,
    text_writer,
)

JSON = int(Serialization.JSON)
BINARY_MARK = int(Serialization.ROCKETMQ) << 24
HEAD_BYTES = 8
"""Length and mark."""
ID_BYTES = 32
ZERO_DIGIT = ord("0")

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
def put_json_reply(block, start, opaque, physical_offset, queue_id, queue_offset):
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
    put_json_4(at)
    at += JSON_4
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
def put_binary_reply(block, start, opaque, physical_offset, queue_id, queue_offset):
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
    store_i32(extension - 4, at - extension)
    store_i32(start, at - start - 4)
    store_i32(start + 4, BINARY_MARK | at - start - HEAD_BYTES)
    return at


@njit(**COMPILE_OPTIONS)
def put_reply(block, at, serialization, opaque, physical_offset, queue_id, queue_offset):
    """Write a reply; return where it ends."""
    if serialization == JSON:
        return put_json_reply(block, at, opaque, physical_offset, queue_id, queue_offset)
    return put_binary_reply(block, at, opaque, physical_offset, queue_id, queue_offset)
