"""Kernels: readers of the headers of requests, which differ in the fields that they accept.

A reader writes code, flag and opaque to the fields ``frame_code``, ``frame_flag`` and
``frame_opaque`` of the row that its kernel has as argument. A JSON header must have the form that
clients write: no space between tokens, no repeated or unknown key, no remark. A binary header must
have no remark, and sizes that fit exactly. All other headers are left to ``reput.format.command``.
"""

# mypy: allow-untyped-defs, allow-untyped-calls, allow-untyped-decorators, no-check-untyped-defs

import struct
from typing import Any

from numba import njit

from reput.format.kernels.json_tokens import (
    CLOSE,
    COLON,
    COMMA,
    HAS_CODE,
    HAS_FIELDS,
    HAS_FLAG,
    HAS_NUMBER,
    HAS_OPAQUE,
    OPEN,
    REQUIRED,
    header_key,
    is_white,
    text_end,
)
from reput.format.kernels.memory import COMPILE_OPTIONS, get_u8, load_i16, load_i32
from reput.format.kernels.plain_text import INT_MAX, QUOTE, digits_end, number

ANY_CODE = -1
_HEAD_BYTES = struct.calcsize(">hbhii")
"""Size of code, language, version, opaque and flag, bytes; see ``command``."""
_AT_OPAQUE = struct.calcsize(">hbh")
_AT_FLAG = struct.calcsize(">hbhi")


def json_reader(read_fields: Any, *, only_code: int = ANY_CODE) -> Any:
    """Return a reader of JSON headers: ``read(block, address, limit)``, False for other forms.

    Args:
        read_fields: Reads the object of ``extFields`` at an address; returns its end, 0 if it has
            another form. Its arguments are those of the reader.
        only_code: The only code that is read, with flag 0: the reader ends at another one.
    """

    @njit(**COMPILE_OPTIONS)
    def read_number(block, key, address, limit):
        end = digits_end(address, limit)
        value = number(address, end - address)
        if value < 0 or value > INT_MAX:
            return 0
        if only_code != ANY_CODE and (
            (key == HAS_CODE and value != only_code) or (key == HAS_FLAG and value != 0)
        ):
            return 0
        if key == HAS_CODE:
            block.frame_code = value
        elif key == HAS_FLAG:
            block.frame_flag = value
        elif key == HAS_OPAQUE:
            block.frame_opaque = value
        return end

    @njit(**COMPILE_OPTIONS)
    def read(block, address, limit):
        seen = 0
        if address >= limit or get_u8(address) != OPEN:
            return False
        while True:
            # At the byte before a key: the brace, or a comma.
            if limit - address < 8 or get_u8(address + 1) != QUOTE:
                return False
            key, key_size = header_key(address + 2, limit)
            value = address + 2 + key_size + 2
            if key == 0 or seen & key or value >= limit or get_u8(value - 1) != COLON:
                return False
            seen |= key
            if key & HAS_NUMBER:
                address = read_number(block, key, value, limit)
            elif key == HAS_FIELDS:
                address = read_fields(block, value, limit)
            elif get_u8(value) != QUOTE:
                return False
            else:
                address = text_end(value + 1, limit)
                address += address != 0
            if address == 0 or address >= limit:
                return False
            mark = get_u8(address)
            if mark == CLOSE:
                break
            if mark != COMMA:
                return False
        return seen & REQUIRED == REQUIRED and is_white(address + 1, limit)

    return read


@njit(**COMPILE_OPTIONS)
def read_binary_head(block, address, limit):
    """Read what precedes the fields of a binary header.

    Return the address of the first field, 0 if the header has another form.
    """
    if limit - address < _HEAD_BYTES + 8:
        return 0
    block.frame_code = load_i16(address)
    block.frame_flag = load_i32(address + _AT_FLAG)
    block.frame_opaque = load_i32(address + _AT_OPAQUE)
    if load_i32(address + _HEAD_BYTES) != 0:  # it has a remark
        return 0
    address += _HEAD_BYTES + 8
    return address if load_i32(address - 4) == limit - address else 0
