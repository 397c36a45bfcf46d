"""Kernel: read the JSON header of a request that is in the form that clients write.

No space between tokens, no repeated or unknown key, no remark. Text is ASCII, and only properties
may have escapes. All other JSON falls back to ``reput.format.command``.
"""

# mypy: allow-untyped-defs, allow-untyped-calls, allow-untyped-decorators, no-check-untyped-defs

from numba import njit

from reput.broker.kernels.request_fields import IGNORED, known_bit, may_be_escaped, set_field
from reput.format.kernels.header_readers import json_reader
from reput.format.kernels.json_tokens import (
    ASCII_MAX,
    BLANK,
    CLOSE,
    COMMA,
    OPEN,
    QUOTE_COLON,
    text_end,
)
from reput.format.kernels.memory import (
    COMPILE_OPTIONS,
    get_u8,
    get_u16,
    quoted_run,
)
from reput.format.kernels.plain_text import (
    BACKSLASH,
    QUOTE,
    plain_end,
)


@njit(**COMPILE_OPTIONS)
def is_escaped(start, address):
    """Return whether an odd number of backslashes is right before an address."""
    run_start = address
    while run_start > start and get_u8(run_start - 1) == BACKSLASH:
        run_start -= 1
    return address - run_start & 1 != 0


@njit(**COMPILE_OPTIONS)
def escaped_text_end(start, limit):
    """Return the address of the quote after a text with escapes; 0 as ``text_end``.

    The characters after backslashes are checked later, by ``send_properties.unescape``.
    """
    address = start
    while limit - address >= 16:
        run = quoted_run(address)
        address += run
        if run < 16:
            if get_u8(address) != QUOTE:
                return 0
            if not is_escaped(start, address):
                return address
            address += 1
    while address < limit:
        byte = get_u8(address)
        if byte == QUOTE and not is_escaped(start, address):
            return address
        if byte < BLANK or byte > ASCII_MAX:
            return 0
        address += 1
    return 0


@njit(**COMPILE_OPTIONS)
def read_fields(block, address, limit):
    """Read the object of ``extFields``; return its end, 0 if it falls back."""
    seen = 0
    names = block.frame_names
    if get_u8(address) != OPEN:
        return 0
    while True:
        # At the byte before a name: the brace, or a comma.
        if limit - address < 8 or get_u8(address + 1) != QUOTE:
            return 0
        name = address + 2
        name_end = name + 1 if get_u8(name + 1) == QUOTE else plain_end(name, limit)
        if limit - name_end < 4 or get_u16(name_end) != QUOTE_COLON:
            return 0
        if get_u8(name_end + 2) != QUOTE:
            return 0
        bit = known_bit(names, name, name_end - name)
        if bit != IGNORED and (bit < 0 or seen >> bit & 1):
            return 0
        value = name_end + 3
        if may_be_escaped(names, bit):
            value_end = escaped_text_end(value, limit)
        else:
            value_end = text_end(value, limit)
        if value_end == 0:
            return 0
        if bit != IGNORED:
            seen |= 1 << bit
            set_field(block, bit, value, value_end - value)
        address = value_end + 1
        if address >= limit:
            return 0
        mark = get_u8(address)
        if mark == CLOSE:
            break
        if mark != COMMA:
            return 0
    block.frame_seen = seen
    return address + 1


read_json = json_reader(read_fields)
"""Reads a header into the control block; returns False if it falls back."""
