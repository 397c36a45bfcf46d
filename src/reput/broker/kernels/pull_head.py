"""Kernel: the head of the reply to a pull; the same bytes as ``reput.format.pull_reply`` makes.

It precedes the records, so its size must be known before its numbers are: numbers of the same
length give heads of the same size.
"""

# mypy: allow-untyped-defs, allow-untyped-calls, allow-untyped-decorators, no-check-untyped-defs

from numba import njit

from reput.broker.kernels.reply import BINARY_MARK, HEAD_BYTES, JSON, put_sized_decimal
from reput.format import pull_reply
from reput.format.kernels.memory import COMPILE_OPTIONS, put_u8, store_i32, text_writer
from reput.format.kernels.plain_text import decimal_size, put_decimal

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
ZERO_DIGIT = ord("0")
JSON_PIECE, JSON_SUGGESTED = pull_reply.JSON_SUGGESTED
BINARY_PIECE, BINARY_SUGGESTED = pull_reply.BINARY_SUGGESTED
assert (JSON_PIECE, BINARY_PIECE) == (1, 2), "the digit is in the piece that is written before it"


@njit(**COMPILE_OPTIONS)
def pull_head_size(serialization, opaque, next_offset, min_offset, max_offset):
    """Return the size of a head, bytes."""
    digits = decimal_size(next_offset) + decimal_size(min_offset) + decimal_size(max_offset)
    if serialization == JSON:
        return HEAD_BYTES + JSON_TEXT + decimal_size(opaque) + digits
    # The opaque, the size of the fields, and the sizes of three numbers.
    return HEAD_BYTES + BINARY_TEXT + digits + 5 * INT_BYTES


@njit(**COMPILE_OPTIONS)
def put_json_head(start, opaque, next_offset, min_offset, max_offset, broker_id):
    """Write a JSON head without its sizes; return its end."""
    address = start + HEAD_BYTES
    put_json_0(address)
    address = put_decimal(address + JSON_0, opaque)
    put_json_1(address)
    put_u8(address + JSON_SUGGESTED, ZERO_DIGIT + broker_id)
    address = put_decimal(address + JSON_1, next_offset)
    put_json_2(address)
    address = put_decimal(address + JSON_2, min_offset)
    put_json_3(address)
    address = put_decimal(address + JSON_3, max_offset)
    put_json_4(address)
    return address + JSON_4


@njit(**COMPILE_OPTIONS)
def put_binary_head(start, opaque, next_offset, min_offset, max_offset, broker_id):
    """Write a binary head without its sizes; return its end."""
    address = start + HEAD_BYTES
    put_binary_0(address)
    store_i32(address + BINARY_0, opaque)
    address += BINARY_0 + INT_BYTES
    put_binary_1(address)
    fields = address + BINARY_1 + INT_BYTES
    put_binary_2(fields)
    put_u8(fields + BINARY_SUGGESTED, ZERO_DIGIT + broker_id)
    address = put_sized_decimal(fields + BINARY_2, next_offset)
    put_binary_3(address)
    address = put_sized_decimal(address + BINARY_3, min_offset)
    put_binary_4(address)
    address = put_sized_decimal(address + BINARY_4, max_offset)
    store_i32(fields - INT_BYTES, address - fields)
    return address


@njit(**COMPILE_OPTIONS)
def put_pull_head(
    start, serialization, opaque, next_offset, min_offset, max_offset, broker_id, body_size
):
    """Write the head of a reply with ``body_size`` bytes of records.

    ``broker_id``, 0 to 9, is the broker that the consumer should read from.
    """
    if serialization == JSON:
        mark = 0
        end = put_json_head(start, opaque, next_offset, min_offset, max_offset, broker_id)
    else:
        mark = BINARY_MARK
        end = put_binary_head(start, opaque, next_offset, min_offset, max_offset, broker_id)
    store_i32(start, end - start - INT_BYTES + body_size)
    store_i32(start + INT_BYTES, mark | end - start - HEAD_BYTES)
