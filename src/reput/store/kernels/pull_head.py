"""Kernel: the head of the reply to a pull; the same bytes as ``reput.format.pull_reply`` makes.

It stands in front of the records, so its size must be known before it is: numbers of as many digits
give heads of one size.
"""

# mypy: allow-untyped-defs, allow-untyped-calls, allow-untyped-decorators, no-check-untyped-defs

from numba import njit

from reput.format import pull_reply
from reput.format.kernels.memory import COMPILE_OPTIONS, store_i32, text_writer
from reput.store.kernels.reply import (
    BINARY_MARK,
    HEAD_BYTES,
    JSON,
    decimal_size,
    put_decimal,
    put_sized_decimal,
)

put_json_0, put_json_1, put_json_2, put_json_3, put_json_4 = map(
    text_writer, pull_reply.JSON_PIECES
)
JSON_0, JSON_1, JSON_2, JSON_3, JSON_4 = map(len, pull_reply.JSON_PIECES)
JSON_TEXT = sum(map(len, pull_reply.JSON_PIECES))
put_binary_0, put_binary_1, put_binary_2, put_binary_3, put_binary_4, _ = map(
    text_writer, pull_reply.BINARY_PIECES
)
BINARY_0, BINARY_1, BINARY_2, BINARY_3, BINARY_4, BINARY_5 = map(len, pull_reply.BINARY_PIECES)
BINARY_TEXT = sum(map(len, pull_reply.BINARY_PIECES))
assert not BINARY_5, "fields end with a value"
INT_BYTES = 4


@njit(**COMPILE_OPTIONS)
def pull_head_size(serialization, opaque, next_offset, min_offset, max_offset):
    """Return how long a head is."""
    digits = decimal_size(next_offset) + decimal_size(min_offset) + decimal_size(max_offset)
    if serialization == JSON:
        return HEAD_BYTES + JSON_TEXT + decimal_size(opaque) + digits
    # The opaque, the size of the fields, and those of three numbers.
    return HEAD_BYTES + BINARY_TEXT + digits + 5 * INT_BYTES


@njit(**COMPILE_OPTIONS)
def put_json_head(start, opaque, next_offset, min_offset, max_offset):
    """Write a head but for its sizes; return where it ends."""
    at = start + HEAD_BYTES
    put_json_0(at)
    at = put_decimal(at + JSON_0, opaque)
    put_json_1(at)
    at = put_decimal(at + JSON_1, next_offset)
    put_json_2(at)
    at = put_decimal(at + JSON_2, min_offset)
    put_json_3(at)
    at = put_decimal(at + JSON_3, max_offset)
    put_json_4(at)
    return at + JSON_4


@njit(**COMPILE_OPTIONS)
def put_binary_head(start, opaque, next_offset, min_offset, max_offset):
    """Write a head but for its sizes; return where it ends."""
    at = start + HEAD_BYTES
    put_binary_0(at)
    store_i32(at + BINARY_0, opaque)
    at += BINARY_0 + INT_BYTES
    put_binary_1(at)
    fields = at + BINARY_1 + INT_BYTES
    put_binary_2(fields)
    at = put_sized_decimal(fields + BINARY_2, next_offset)
    put_binary_3(at)
    at = put_sized_decimal(at + BINARY_3, min_offset)
    put_binary_4(at)
    at = put_sized_decimal(at + BINARY_4, max_offset)
    store_i32(fields - INT_BYTES, at - fields)
    return at


@njit(**COMPILE_OPTIONS)
def put_pull_head(start, serialization, opaque, next_offset, min_offset, max_offset, body_size):
    """Write the head of a reply with ``body_size`` bytes of records."""
    if serialization == JSON:
        mark = 0
        end = put_json_head(start, opaque, next_offset, min_offset, max_offset)
    else:
        mark = BINARY_MARK
        end = put_binary_head(start, opaque, next_offset, min_offset, max_offset)
    store_i32(start, end - start - INT_BYTES + body_size)
    store_i32(start + INT_BYTES, mark | end - start - HEAD_BYTES)
