"""Kernels: plain text, numbers and names in a header, JSON or binary, and numbers in texts.

Plain text is ASCII without controls, quotes and backslashes: in JSON it means itself.
"""

# mypy: allow-untyped-defs, allow-untyped-calls, allow-untyped-decorators, no-check-untyped-defs

from numba import njit

from reput.format.kernels.memory import (
    COMPILE_OPTIONS,
    get_i64,
    get_u8,
    get_u16,
    get_u32,
    json_run,
    put_u8,
    store_i64,
)

QUOTE = ord('"')
BACKSLASH = ord("\\")
SPACE = ord(" ")
DIGITS_MAX = 18
INT_MAX = 0x7FFFFFFF
ZERO_DIGIT = ord("0")
ID_BYTES = 32
"""Size of an offset id of IPv4: four times ``put_hex``."""


def name_word(text: str) -> int:
    """Return what ``first_word`` returns for a text."""
    return int.from_bytes(text[:8].encode().ljust(8, b"\0"), "little", signed=True)


@njit(**COMPILE_OPTIONS)
def first_word(address, size):
    """Return the first eight bytes of a text; a shorter text is padded with zeros."""
    if size >= 8:
        return get_i64(address)
    if size >= 4:
        return get_u32(address) | get_u32(address + size - 4) << 8 * (size - 4)
    if size >= 2:
        return get_u16(address) | get_u16(address + size - 2) << 8 * (size - 2)
    if size == 1:
        return get_u8(address)
    return 0


@njit(**COMPILE_OPTIONS)
def is_plain(byte):
    """Return whether a byte may be in plain text: ASCII, but no control, quote or backslash."""
    return SPACE <= byte <= 0x7F and byte not in (QUOTE, BACKSLASH)


@njit(**COMPILE_OPTIONS)
def plain_end(address, limit):
    """Return the end of plain text: the first byte that is not plain, or ``limit``."""
    while limit - address >= 16:
        run = json_run(address)
        address += run
        if run < 16:
            return address
    while address < limit and is_plain(get_u8(address)):
        address += 1
    return address


@njit(**COMPILE_OPTIONS)
def is_plain_text(address, end, readable):
    """Return whether all text up to ``end`` is plain. Bytes up to ``readable`` may be read."""
    while readable - address >= 16:
        run = json_run(address)
        address += run
        if address >= end or run < 16:
            return address >= end
    return plain_end(address, end) == end


@njit(**COMPILE_OPTIONS)
def digits_end(address, limit):
    """Return the end of a run of digits."""
    while address < limit and 48 <= get_u8(address) <= 57:
        address += 1
    return address


@njit(**COMPILE_OPTIONS)
def number(address, size):
    """Return the value of a number without sign or leading zero, of up to 18 digits; else -1."""
    if size <= 0 or size > DIGITS_MAX or (size > 1 and get_u8(address) == 48):
        return -1
    value = 0
    for i in range(size):
        digit = get_u8(address + i) - 48
        if digit < 0 or digit > 9:
            return -1
        value = value * 10 + digit
    return value


@njit(**COMPILE_OPTIONS)
def put_hex(address, value):
    """Write the low 32 bits of a number as eight hexadecimal digits, upper case."""
    spread = (value & 0xFFFF0000) << 16 | value & 0xFFFF
    spread = (spread & 0x0000FF000000FF00) << 8 | spread & 0x000000FF000000FF
    spread = (spread & 0x00F000F000F000F0) << 4 | spread & 0x000F000F000F000F
    letters = (spread + 0x0606060606060606) >> 4 & 0x0101010101010101
    store_i64(address, spread + 0x3030303030303030 + letters * 7)


@njit(**COMPILE_OPTIONS)
def decimal_size(value):
    """Return the number of digits of a number that is not negative."""
    size = 1
    bound = 10
    while size < 19 and value >= bound:
        size += 1
        bound *= 10
    return size


@njit(**COMPILE_OPTIONS)
def put_decimal(address, value):
    """Write a number that is not negative; return its end."""
    size = decimal_size(value)
    digit = address + size
    while digit > address:
        digit -= 1
        put_u8(digit, ZERO_DIGIT + value % 10)
        value //= 10
    return address + size
