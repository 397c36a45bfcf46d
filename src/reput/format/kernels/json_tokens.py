"""Kernels: the parts of a JSON header, in the form that clients write: no space between tokens."""

# mypy: allow-untyped-defs, allow-untyped-calls, allow-untyped-decorators, no-check-untyped-defs

from numba import njit

from reput.format.kernels.memory import COMPILE_OPTIONS, get_i64, get_u8
from reput.format.kernels.plain_text import QUOTE, is_plain, name_word, plain_end

OPEN = ord("{")
CLOSE = ord("}")
COMMA = ord(",")
COLON = ord(":")
QUOTE_COLON = QUOTE | COLON << 8
ASCII_MAX = 0x7F
TAB, LINE_FEED, RETURN, BLANK = 9, 10, 13, 32

CODE = name_word('code"')
FLAG = name_word('flag"')
OPAQUE = name_word('opaque"')
VERSION = name_word('version"')
LANGUAGE = name_word("language")
FIELDS = name_word("extFields")
FIELDS_END = name_word('xtFields"'[-8:])
SERIALIZE = name_word("serializeTypeCurrentRPC")
SERIALIZE_MIDDLE = name_word("serializeTypeCurrentRPC"[8:16])
SERIALIZE_END = name_word('serializeTypeCurrentRPC"'[-8:])
FIVE_BYTES = (1 << 40) - 1
SEVEN_BYTES = (1 << 56) - 1

HAS_CODE, HAS_FLAG, HAS_OPAQUE, HAS_FIELDS = 1, 2, 4, 8
HAS_VERSION, HAS_LANGUAGE, HAS_SERIALIZE = 16, 32, 64
REQUIRED = HAS_CODE | HAS_FLAG | HAS_OPAQUE | HAS_FIELDS
HAS_NUMBER = HAS_CODE | HAS_FLAG | HAS_OPAQUE | HAS_VERSION


@njit(**COMPILE_OPTIONS)
def header_key(address, limit):
    """Return the bit and the size of the key at an address, where a quote follows it; else 0, 0.

    Comparing with the possible keys is faster than finding the end first.
    """
    if limit - address < 8:
        return 0, 0
    first = get_i64(address)
    if first & FIVE_BYTES == CODE:
        return HAS_CODE, 4
    if first & FIVE_BYTES == FLAG:
        return HAS_FLAG, 4
    if first & SEVEN_BYTES == OPAQUE:
        return HAS_OPAQUE, 6
    if first == VERSION:
        return HAS_VERSION, 7
    if limit - address < 10:
        return 0, 0
    if first == LANGUAGE and get_u8(address + 8) == QUOTE:
        return HAS_LANGUAGE, 8
    if first == FIELDS and get_i64(address + 2) == FIELDS_END:
        return HAS_FIELDS, 9
    if first != SERIALIZE or limit - address < 24:
        return 0, 0
    if get_i64(address + 8) == SERIALIZE_MIDDLE and get_i64(address + 16) == SERIALIZE_END:
        return HAS_SERIALIZE, 23
    return 0, 0


@njit(**COMPILE_OPTIONS)
def text_end(start, limit):
    """Return the address of the quote after a plain text; 0 if there is none."""
    # Most values are one character: check that first.
    if limit - start >= 2 and get_u8(start + 1) == QUOTE and is_plain(get_u8(start)):
        return start + 1
    address = plain_end(start, limit)
    return address if address < limit and get_u8(address) == QUOTE else 0


@njit(**COMPILE_OPTIONS)
def is_white(address, limit):
    """Return whether only white space is left."""
    while address < limit:
        byte = get_u8(address)
        if byte != BLANK and byte != LINE_FEED and byte != RETURN and byte != TAB:
            return False
        address += 1
    return True
