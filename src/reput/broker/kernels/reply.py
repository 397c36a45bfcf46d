"""Kernel: the reply to a send; the same bytes as ``reput.format.send_reply`` makes."""

# mypy: allow-untyped-defs, allow-untyped-calls, allow-untyped-decorators, no-check-untyped-defs

from numba import njit

from reput.broker.kernels.send_rules import REAL_TOPIC_NAME
from reput.format import recall_handle, send_reply
from reput.format.command import Serialization
from reput.format.kernels.columns import PAIR_END, find_byte
from reput.format.kernels.memory import (
    COMPILE_OPTIONS,
    copy,
    get_u8,
    put_u8,
    store_i32,
    text_writer,
)
from reput.format.kernels.plain_text import (
    ID_BYTES,
    ZERO_DIGIT,
    decimal_size,
    number,
    put_decimal,
    put_hex,
)

JSON = int(Serialization.JSON)
BINARY_MARK = int(Serialization.ROCKETMQ) << 24
HEAD_BYTES = 8
"""Size of length and mark, bytes."""
SPACE = ord(recall_handle.SEPARATOR)

put_json_0, put_json_1, put_json_2, put_json_3, put_json_4, put_json_5 = map(
    text_writer, send_reply.JSON_PIECES
)
JSON_0, JSON_1, JSON_2, JSON_3, JSON_4, JSON_5 = map(len, send_reply.JSON_PIECES)
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
put_binary_key = text_writer(send_reply.BINARY_KEY_NAME)
BINARY_KEY = len(send_reply.BINARY_KEY_NAME)
put_binary_handle = text_writer(send_reply.BINARY_HANDLE_NAME)
BINARY_HANDLE = len(send_reply.BINARY_HANDLE_NAME)
HANDLE_START = recall_handle.VERSION + recall_handle.SEPARATOR
put_handle_start = text_writer(HANDLE_START.encode())
HANDLE_START_SIZE = len(HANDLE_START)
REAL_TOPIC_SIZE = len(REAL_TOPIC_NAME)
UPPER_A, LOWER_A, MINUS, UNDERSCORE, EQUALS = map(ord, "Aa-_=")


@njit(**COMPILE_OPTIONS)
def put_id(block, address, physical_offset):
    """Write an offset id; return its end."""
    put_hex(address, block.store_address)
    put_hex(address + 8, block.store_port)
    put_hex(address + 16, physical_offset >> 32)
    put_hex(address + 24, physical_offset)
    return address + ID_BYTES


@njit(**COMPILE_OPTIONS)
def letter(value):
    """Return the base64url letter of the low six bits of a number."""
    value &= 63
    if value < 26:
        return value + UPPER_A
    if value < 52:
        return value - 26 + LOWER_A
    if value < 62:
        return value - 52 + ZERO_DIGIT
    return MINUS if value == 62 else UNDERSCORE


@njit(**COMPILE_OPTIONS)
def encode_base64(address, size):
    """Encode ``size`` bytes in base64 in place; return the end.

    The bytes are at the end of the room that their base64 takes, which begins at the address: so
    the output never overtakes the input.
    """
    end = address + (size + 2) // 3 * 4
    source = end - size
    while source < end:
        first = get_u8(source)
        second = get_u8(source + 1) if source + 1 < end else 0
        third = get_u8(source + 2) if source + 2 < end else 0
        bits = first << 16 | second << 8 | third
        put_u8(address, letter(bits >> 18))
        put_u8(address + 1, letter(bits >> 12))
        put_u8(address + 2, letter(bits >> 6) if source + 1 < end else EQUALS)
        put_u8(address + 3, letter(bits) if source + 2 < end else EQUALS)
        source += 3
        address += 4
    return end


@njit(**COMPILE_OPTIONS)
def put_handle(block, start, out_ms, key, key_size):
    """Write the recall handle of a message; return its end.

    ``out_ms`` is the address of the value of TIMER_OUT_MS in its properties; REAL_TOPIC follows.
    """
    topic = find_byte(out_ms, out_ms + 20, PAIR_END)
    deliver_ms = number(out_ms, topic - out_ms) + 1
    topic += 1 + REAL_TOPIC_SIZE
    topic_size = find_byte(topic, topic + 256, PAIR_END) - topic
    name_size = block.broker_name_size
    size = HANDLE_START_SIZE + topic_size + name_size + decimal_size(deliver_ms) + key_size + 3
    address = start + (size + 2) // 3 * 4 - size
    put_handle_start(address)
    address += HANDLE_START_SIZE
    copy(address, topic, topic_size)
    address += topic_size
    put_u8(address, SPACE)
    copy(address + 1, block.broker_name, name_size)
    address += 1 + name_size
    put_u8(address, SPACE)
    address = put_decimal(address + 1, deliver_ms)
    put_u8(address, SPACE)
    copy(address + 1, key, key_size)
    return encode_base64(start, size)


@njit(**COMPILE_OPTIONS)
def put_json_reply(
    block, start, opaque, physical_offset, queue_id, queue_offset, out_ms, key, key_size
):
    """Write a reply with a JSON header; return its end."""
    address = start + HEAD_BYTES
    put_json_0(address)
    address = put_decimal(address + JSON_0, opaque)
    put_json_1(address)
    address = put_id(block, address + JSON_1, physical_offset)
    put_json_2(address)
    address = put_decimal(address + JSON_2, queue_id)
    put_json_3(address)
    address = put_decimal(address + JSON_3, queue_offset)
    if key_size > 0:
        put_json_4(address)
        address += JSON_4
        copy(address, key, key_size)
        address += key_size
    if out_ms == 0:
        put_json_5(address)
        address += JSON_5
    else:
        put_json_handle(address)
        address = put_handle(block, address + JSON_HANDLE, out_ms, key, key_size)
        put_json_end(address)
        address += JSON_END
    store_i32(start, address - start - 4)
    store_i32(start + 4, address - start - HEAD_BYTES)
    return address


@njit(**COMPILE_OPTIONS)
def put_sized_decimal(address, value):
    """Write a number after its size; return its end."""
    end = put_decimal(address + 4, value)
    store_i32(address, end - address - 4)
    return end


@njit(**COMPILE_OPTIONS)
def put_binary_reply(
    block, start, opaque, physical_offset, queue_id, queue_offset, out_ms, key, key_size
):
    """Write a reply with a binary header; return its end."""
    address = start + HEAD_BYTES
    put_binary_0(address)
    store_i32(address + BINARY_0, opaque)
    address += BINARY_0 + 4
    put_binary_1(address)
    extension = address + BINARY_1 + 4
    put_binary_2(extension)
    address = extension + BINARY_2
    store_i32(address, ID_BYTES)
    address = put_id(block, address + 4, physical_offset)
    put_binary_3(address)
    address = put_sized_decimal(address + BINARY_3, queue_id)
    put_binary_4(address)
    address = put_sized_decimal(address + BINARY_4, queue_offset)
    if key_size > 0:
        put_binary_key(address)
        address += BINARY_KEY
        store_i32(address, key_size)
        copy(address + 4, key, key_size)
        address += 4 + key_size
    put_binary_5(address)
    address += BINARY_5
    if out_ms != 0:
        put_binary_handle(address)
        handle = address + BINARY_HANDLE + 4
        address = put_handle(block, handle, out_ms, key, key_size)
        store_i32(handle - 4, address - handle)
    store_i32(extension - 4, address - extension)
    store_i32(start, address - start - 4)
    store_i32(start + 4, BINARY_MARK | address - start - HEAD_BYTES)
    return address


@njit(**COMPILE_OPTIONS)
def put_reply(
    block,
    address,
    serialization,
    opaque,
    physical_offset,
    queue_id,
    queue_offset,
    out_ms,
    key,
    key_size,
):
    """Write a reply; return its end.

    ``out_ms`` is 0 for a message without a recall handle, else as in ``put_handle``. ``key`` is the
    unique key, with size 0 if there is none.
    """
    if serialization == JSON:
        return put_json_reply(
            block, address, opaque, physical_offset, queue_id, queue_offset, out_ms, key, key_size
        )
    return put_binary_reply(
        block, address, opaque, physical_offset, queue_id, queue_offset, out_ms, key, key_size
    )
