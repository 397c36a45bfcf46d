"""Kernels: what calls of gRPC have in common: protobuf, names, and the frames of replies."""

# mypy: allow-untyped-defs, allow-untyped-calls, allow-untyped-decorators, no-check-untyped-defs

from numba import njit

from reput.format.kernels.memory import (
    COMPILE_OPTIONS,
    copy,
    get_u8,
    load_i32,
    put_u8,
    store_i32,
    text_writer,
    visible_run,
)
from reput.grpc.wire.grpc_messages import Code

PREFIX_BYTES = 5
FRAME_HEAD_BYTES = 9
AT_FIELDS = 8 + 21
"""Size of length, mark, and what precedes the fields of a binary header."""


def _varint(value: int) -> bytes:
    return bytes([value & 0x7F | 0x80, value >> 7 & 0x7F | 0x80, value >> 14])


OK = b"\x08" + _varint(int(Code.OK)) + b"\x12\x02OK"
"""The Status of a success."""
REPLY = b"\x0a" + bytes([len(OK)]) + OK + b"\x12"
put_ok_reply = text_writer(REPLY)
REPLY_SIZE = len(REPLY)


@njit(**COMPILE_OPTIONS)
def varint(address, end):
    """Return a number of up to 8 bytes, and its end; 0 for the end if it has another form."""
    value = 0
    shift = 0
    while address < end and shift < 56:
        byte = get_u8(address)
        address += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, address
        shift += 7
    return 0, 0


@njit(**COMPILE_OPTIONS)
def delimited(address, end):
    """Return begin and end of the bytes whose size is at an address; zeros if they are cut off."""
    size, begin = varint(address, end)
    if begin == 0 or size > end - begin:
        return 0, 0
    return begin, begin + size


@njit(**COMPILE_OPTIONS)
def is_visible(address, end):
    """Return whether text is visible ASCII and spaces. Bytes after the end are read."""
    while address < end:
        run = visible_run(address)
        address += run
        if run < 16:
            return address >= end
    return True


@njit(**COMPILE_OPTIONS)
def set_place(text, begin, end):
    """Set the place of a text; return False if it has one."""
    if text.start != 0:
        return False
    text.start = begin
    text.size = end - begin
    return True


@njit(**COMPILE_OPTIONS)
def read_resource(text, address, end):
    """Read the name of a resource; return whether it is plain."""
    while address < end:
        tag = get_u8(address)
        begin, stop = delimited(address + 1, end)
        if stop == 0 or not is_visible(begin, stop):
            return False
        if tag == 0x12:
            if not set_place(text, begin, stop):
                return False
        elif tag != 0x0A:  # the namespace, which is ignored
            return False
        address = stop
    return text.start != 0


@njit(**COMPILE_OPTIONS)
def put_digits(address, value):
    """Write a number that is not negative; return its end."""
    size = 1
    bound = 10
    while size < 18 and value >= bound:
        size += 1
        bound *= 10
    digit = address + size
    while digit > address:
        digit -= 1
        put_u8(digit, 48 + value % 10)
        value //= 10
    return address + size


@njit(**COMPILE_OPTIONS)
def put_copy(address, text, size):
    """Copy bytes; return the end of the copy."""
    copy(address, text, size)
    return address + size


@njit(**COMPILE_OPTIONS)
def message_of(address, end):
    """Return begin and end of the one message of a request; zeros for another one."""
    if end - address < PREFIX_BYTES + 2 or get_u8(address) != 0:
        return 0, 0
    if load_i32(address + 1) != end - address - PREFIX_BYTES:
        return 0, 0
    return address + PREFIX_BYTES, end


@njit(**COMPILE_OPTIONS)
def put_varint(address, value):
    """Write a number that is not negative; return its end."""
    while value > 127:
        put_u8(address, value & 127 | 128)
        value >>= 7
        address += 1
    put_u8(address, value)
    return address + 1


@njit(**COMPILE_OPTIONS)
def put_frame_head(address, size, kind, flags, stream):
    """Write the head of a frame; return its end."""
    store_i32(address, size << 8 | kind)
    put_u8(address + 4, flags)
    store_i32(address + 5, stream)
    return address + FRAME_HEAD_BYTES


@njit(**COMPILE_OPTIONS)
def begin_reply(block, out, stream):
    """Write the headers of a reply; return the place of its message."""
    size = block.headers_block.size
    address = put_frame_head(out, size, 1, 4, stream)
    copy(address, block.headers_block.start, size)
    return address + size + FRAME_HEAD_BYTES + PREFIX_BYTES


@njit(**COMPILE_OPTIONS)
def end_reply(block, message, end, stream):
    """Write what precedes and follows the message of a reply; return the end, 0 if it must wait."""
    size = end - message + PREFIX_BYTES
    window = block.window
    if size > window or size > block.initial_window:
        return 0
    block.window = window - size
    put_frame_head(message - PREFIX_BYTES - FRAME_HEAD_BYTES, size, 0, 0, stream)
    put_u8(message - PREFIX_BYTES, 0)
    store_i32(message - 4, size - PREFIX_BYTES)
    trailers = block.trailers_block.size
    end = put_frame_head(end, trailers, 1, 5, stream)
    copy(end, block.trailers_block.start, trailers)
    return end + trailers
