"""Kernel: read the JSON header of a request that is written as clients write it.

No space between tokens, no key twice, no key that is not known, no remark; text is ASCII, and only
the properties may hold escapes. Everything else is JSON for ``reput.format.command``.
"""

# mypy: allow-untyped-defs, allow-untyped-calls, allow-untyped-decorators, no-check-untyped-defs

from numba import njit

from reput.format.kernels.memory import (
    COMPILE_OPTIONS,
    get_i64,
    get_u8,
    get_u16,
    quoted_run,
    set_word,
    word,
)
from reput.store.kernels import control_block as state
from reput.store.kernels.request_fields import (
    BACKSLASH,
    INT_MAX,
    QUOTE,
    digits_end,
    is_plain,
    known_bit,
    may_be_escaped,
    name_word,
    number,
    plain_end,
    set_field,
)

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
def header_key(at, limit):
    """Return the bit and the size of the key that stands at ``at``, a quote behind it; 0: none.

    Comparing with what may be there is faster than looking for the end first.
    """
    if limit - at < 8:
        return 0, 0
    first = get_i64(at)
    if first & FIVE_BYTES == CODE:
        return HAS_CODE, 4
    if first & FIVE_BYTES == FLAG:
        return HAS_FLAG, 4
    if first & SEVEN_BYTES == OPAQUE:
        return HAS_OPAQUE, 6
    if first == VERSION:
        return HAS_VERSION, 7
    if limit - at < 10:
        return 0, 0
    if first == LANGUAGE and get_u8(at + 8) == QUOTE:
        return HAS_LANGUAGE, 8
    if first == FIELDS and get_i64(at + 2) == FIELDS_END:
        return HAS_FIELDS, 9
    if first != SERIALIZE or limit - at < 24:
        return 0, 0
    if get_i64(at + 8) == SERIALIZE_MIDDLE and get_i64(at + 16) == SERIALIZE_END:
        return HAS_SERIALIZE, 23
    return 0, 0


@njit(**COMPILE_OPTIONS)
def is_escaped(start, at):
    """Whether an odd number of backslashes stands in front of ``at``."""
    place = at
    while place > start and get_u8(place - 1) == BACKSLASH:
        place -= 1
    return at - place & 1 != 0


@njit(**COMPILE_OPTIONS)
def text_end(start, limit):
    """Return where the quote behind a text stands; 0 if it is missing, or the text is not plain."""
    # Most values are one character: a guess that costs nothing if it is right.
    if limit - start >= 2 and get_u8(start + 1) == QUOTE and is_plain(get_u8(start)):
        return start + 1
    at = plain_end(start, limit)
    return at if at < limit and get_u8(at) == QUOTE else 0


@njit(**COMPILE_OPTIONS)
def escaped_text_end(start, limit):
    """Return where the quote behind a text with escapes stands; 0 as ``text_end``.

    What stands behind a backslash is not looked at: ``send_properties.unescape`` does that.
    """
    at = start
    while limit - at >= 16:
        run = quoted_run(at)
        at += run
        if run < 16:
            if get_u8(at) != QUOTE:
                return 0
            if not is_escaped(start, at):
                return at
            at += 1
    while at < limit:
        byte = get_u8(at)
        if byte == QUOTE and not is_escaped(start, at):
            return at
        if byte < BLANK or byte > ASCII_MAX:
            return 0
        at += 1
    return 0


@njit(**COMPILE_OPTIONS)
def read_fields(block, at, limit):
    """Read the object of ``extFields``; return what stands behind it, 0 if it is not common."""
    seen = 0
    names = word(block, state.FRAME_NAMES)
    if get_u8(at) != OPEN:
        return 0
    while True:
        # In front of a name: the brace, or a comma.
        if limit - at < 8 or get_u8(at + 1) != QUOTE:
            return 0
        name = at + 2
        name_end = name + 1 if get_u8(name + 1) == QUOTE else plain_end(name, limit)
        if limit - name_end < 4 or get_u16(name_end) != QUOTE_COLON:
            return 0
        if get_u8(name_end + 2) != QUOTE:
            return 0
        bit = known_bit(names, name, name_end - name)
        if bit < 0 or seen >> bit & 1:
            return 0
        value = name_end + 3
        if may_be_escaped(names, bit):
            value_end = escaped_text_end(value, limit)
        else:
            value_end = text_end(value, limit)
        if value_end == 0:
            return 0
        seen |= 1 << bit
        set_field(block, bit, value, value_end - value)
        at = value_end + 1
        if at >= limit:
            return 0
        mark = get_u8(at)
        if mark == CLOSE:
            break
        if mark != COMMA:
            return 0
    set_word(block, state.FRAME_SEEN, seen)
    return at + 1


@njit(**COMPILE_OPTIONS)
def read_number(block, key, at, limit):
    """Read a number of the header; return what stands behind it, 0 if it is not common."""
    end = digits_end(at, limit)
    value = number(at, end - at)
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
def is_white(at, limit):
    """Whether nothing but white space is left."""
    while at < limit:
        byte = get_u8(at)
        if byte != BLANK and byte != LINE_FEED and byte != RETURN and byte != TAB:
            return False
        at += 1
    return True


@njit(**COMPILE_OPTIONS)
def read_json(block, at, limit):
    """Read a header of ``[at, limit)`` into words of the block; False: it is not common."""
    seen = 0
    if at >= limit or get_u8(at) != OPEN:
        return False
    while True:
        # In front of a key: the brace, or a comma.
        if limit - at < 8 or get_u8(at + 1) != QUOTE:
            return False
        key, key_size = header_key(at + 2, limit)
        value = at + 2 + key_size + 2
        if key == 0 or seen & key or value >= limit or get_u8(value - 1) != COLON:
            return False
        seen |= key
        if key & HAS_NUMBER:
            at = read_number(block, key, value, limit)
        elif key == HAS_FIELDS:
            at = read_fields(block, value, limit)
        elif get_u8(value) != QUOTE:
            return False
        else:
            at = text_end(value + 1, limit)
            at += at != 0
        if at == 0 or at >= limit:
            return False
        mark = get_u8(at)
        if mark == CLOSE:
            break
        if mark != COMMA:
            return False
    return seen & REQUIRED == REQUIRED and is_white(at + 1, limit)
