"""Kernel: read the JSON header of a request that is in the form that clients write.

No space between tokens, no repeated or unknown key, no remark. Text is ASCII, and only properties
may have escapes. All other JSON falls back to ``reput.format.command``.
"""

# mypy: allow-untyped-defs, allow-untyped-calls, allow-untyped-decorators, no-check-untyped-defs

from numba import njit

from reput.format.kernels.json_tokens import (
    ASCII_MAX,
    BLANK,
    CLOSE,
    COLON,
    COMMA,
    HAS_CODE,
    HAS_FIELDS,
    HAS_FLAG,
    HAS_NUMBER,
    HAS_OPAQUE,
    OPEN,
    QUOTE_COLON,
    REQUIRED,
    header_key,
    is_white,
    text_end,
)
from reput.format.kernels.memory import (
    COMPILE_OPTIONS,
    get_u8,
    get_u16,
    quoted_run,
    set_word,
    word,
)
from reput.format.kernels.plain_text import (
    BACKSLASH,
    INT_MAX,
    QUOTE,
    digits_end,
    number,
    plain_end,
)
from reput.store.kernels import control_block as state
from reput.store.kernels.request_fields import IGNORED, known_bit, may_be_escaped, set_field


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
    names = word(block, state.FRAME_NAMES)
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
    set_word(block, state.FRAME_SEEN, seen)
    return address + 1


@njit(**COMPILE_OPTIONS)
def read_number(block, key, address, limit):
    """Read a number of the header; return its end, 0 if it falls back."""
    end = digits_end(address, limit)
    value = number(address, end - address)
    if value < 0 or value > INT_MAX:
        return 0
    if key == HAS_CODE:
        set_word(block, state.FRAME_CODE, value)
    elif key == HAS_FLAG:
        set_word(block, state.FRAME_FLAG, value)
    elif key == HAS_OPAQUE:
        set_word(block, state.FRAME_OPAQUE, value)
    return end


@njit(**COMPILE_OPTIONS)
def read_json(block, address, limit):
    """Read a header into words of the block; return False if it falls back."""
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
