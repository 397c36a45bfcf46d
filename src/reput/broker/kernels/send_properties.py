r"""Kernels: turn the property string of a send into the one that is stored.

The stored string has the pairs as they were sent, each with a separator at its end, but without
``WAIT=true``, which is the default; then the suffix. Strings that Java would store otherwise fall
back: pairs without name, separator or value, repeated names, more than ``send_rules.NAMES_MAX``
names, a value with ``\x01``, a unique key that a reply has no room for or would have to escape,
text that is not ASCII, and names that brokers interpret (``send_rules.NAMES_OF_PYTHON``), except
those of ``send_rules.HELD_BACK``.
"""

# mypy: allow-untyped-defs, allow-untyped-calls, allow-untyped-decorators, no-check-untyped-defs

from numba import njit

from reput.broker.kernels import send_rules
from reput.broker.kernels.send_rules import (
    KEY_BYTES_MAX,
    NAMES_MAX,
    NAMES_OF_PYTHON,
    TIMER_UNITS_MS,
)
from reput.format import properties as props
from reput.format.kernels.columns import NAME_VALUE, PAIR_END, UNIQ_KEY
from reput.format.kernels.hashes import same_bytes
from reput.format.kernels.memory import (
    COMPILE_OPTIONS,
    copy,
    get_i32,
    get_i64,
    get_u8,
    get_u16,
    get_u32,
    json_run,
    put_u8,
    text_run,
)
from reput.format.kernels.plain_text import BACKSLASH, QUOTE, first_word, name_word, number
from reput.store.kernels.append import DELAY, DELAY_LAST, DELAY_SIZE
from reput.store.kernels.control_block import HELD_HALF, HELD_TIMER
from reput.store.kernels.copy_for_retry import WAIT, WAIT_SIZE

_WORDS = {name_word(start): len(start) for start in NAMES_OF_PYTHON}
STARTS = tuple(_WORDS)
MASKS = tuple(-1 if size == 8 else (1 << 8 * size) - 1 for size in _WORDS.values())
FIRST_LETTERS = sum({1 << (ord(start[0]) - 64) for start in NAMES_OF_PYTHON})
"""Bits of the first letters, from ``@`` on."""

TRUE = int.from_bytes(b"true", "little")
TRUE_SIZE = len("true")
PREPARED = name_word(props.TRANSACTION_PREPARED)
PREPARED_SIZE = len(props.TRANSACTION_PREPARED)
TIMER_SIZES = tuple(map(len, TIMER_UNITS_MS))
TIMER_STARTS = tuple(map(name_word, TIMER_UNITS_MS))
TIMER_ENDS = tuple(name_word(name[-8:]) for name in TIMER_UNITS_MS)
TIMER_UNITS = tuple(TIMER_UNITS_MS.values())
assert all(8 <= size <= 16 for size in TIMER_SIZES)
BORN_HOST, BORN_HOST_SIZE = name_word(send_rules.BORN_HOST), len(send_rules.BORN_HOST)
BORN_HOST_END = int.from_bytes(send_rules.BORN_HOST[8:].encode(), "little")
LETTER_U = ord("u")
SLASH = ord("/")
ZEROS = int.from_bytes(b"u000", "little")
KEY_NAME_SIZE = len(props.UNIQ_KEY)
NOTHING = 0, 0, False, 0, 0
HASH_FACTOR = -0x61C8864680B583EB


@njit(**COMPILE_OPTIONS)
def unescape(address, limit, target):
    r"""Write the text of a JSON string; return the end of what was written, 0 if it falls back.

    Escapes are ``\" \\ \/ \u0001 \u0002``. Up to ``SLACK`` bytes after the end are written.
    """
    while True:
        while limit - address >= 16:
            run = json_run(address)
            copy(target, address, 16)
            address += run
            target += run
            if run < 16:
                break
        while address < limit and get_u8(address) != BACKSLASH:
            put_u8(target, get_u8(address))
            address += 1
            target += 1
        if address >= limit:
            return target
        if limit - address < 2:
            return 0
        byte = get_u8(address + 1)
        if byte == LETTER_U:
            if limit - address < 6 or get_u32(address + 1) != ZEROS:
                return 0
            byte = get_u8(address + 5) - 48
            if byte != NAME_VALUE and byte != PAIR_END:
                return 0
            address += 6
        elif byte in (QUOTE, BACKSLASH, SLASH):
            address += 2
        else:
            return 0
        put_u8(target, byte)
        target += 1


@njit(**COMPILE_OPTIONS)
def find_separator(address, end):
    """Return the address of the next separator or byte that is not plain ASCII; else ``end``."""
    while address < end:
        run = text_run(address)
        address += run
        if run < 16:
            return min(address, end)
    return end


@njit(**COMPILE_OPTIONS)
def is_name_of_broker(name, size):
    """Return whether brokers interpret properties of this name."""
    letter = get_u8(name) - 64
    if letter < 0 or letter >= 63 or FIRST_LETTERS >> letter & 1 == 0:
        return False
    word = first_word(name, size)
    if size == BORN_HOST_SIZE and word == BORN_HOST and get_u16(name + 8) == BORN_HOST_END:
        return False
    for i in range(len(STARTS)):  # noqa: SIM110 - kernels have no generators
        if word & MASKS[i] == STARTS[i]:
            return True
    return False


@njit(**COMPILE_OPTIONS)
def has_name(address, end, name, size):
    """Return whether a property of this name is among pairs, all of which are valid."""
    while address < end:
        name_end = find_separator(address, end)
        if name_end - address == size and same_bytes(address, name, size):
            return True
        address = find_separator(name_end + 1, end) + 1
    return False


@njit(**COMPILE_OPTIONS)
def is_true(address, size):
    """Return whether a value is ``true``."""
    return size == TRUE_SIZE and get_i32(address) == TRUE


@njit(**COMPILE_OPTIONS)
def time_unit(name, size):
    """Return the unit of a property for the timer, 0 for a time, -1 for another property."""
    for i in range(len(TIMER_SIZES)):
        if (
            size == TIMER_SIZES[i]
            and get_i64(name) == TIMER_STARTS[i]
            and get_i64(name + size - 8) == TIMER_ENDS[i]
        ):
            return TIMER_UNITS[i]
    return -1


@njit(**COMPILE_OPTIONS)
def held_by(name, name_size, value, size):
    """Return where a property makes its message wait, as ``frame_held``; 0 if it does not."""
    if name_size == PREPARED_SIZE and get_i64(name) == PREPARED and is_true(value, size):
        return HELD_HALF
    if name_size == DELAY_SIZE and get_i32(name) == DELAY and get_u8(name + 4) == DELAY_LAST:
        return max(number(value, size), 0)
    return HELD_TIMER if time_unit(name, name_size) >= 0 else 0


@njit(**COMPILE_OPTIONS)
def is_key_for_reply(address, size):
    """Return whether a unique key fits into a reply, and has no escapes in JSON."""
    if size > KEY_BYTES_MAX:
        return False
    for i in range(size):
        byte = get_u8(address + i)
        if byte == QUOTE or byte == BACKSLASH:
            return False
    return True


@njit(**COMPILE_OPTIONS)
def write_pairs(address, end, target):
    """Write the pairs that are stored.

    ``target`` is ``GAP`` bytes before the first pair; up to ``SLACK`` bytes after ``end`` are read.
    Return the end of the pairs, 0 if they fall back; where the message waits, as ``frame_held``;
    whether WAIT was there; and address and size of the unique key that was written.
    """
    start = target
    names = 0
    count = 0
    held = 0
    has_wait = False
    key = key_size = 0
    while address < end:
        name_end = find_separator(address, end)
        name_size = name_end - address
        if name_size == 0 or name_end == end or get_u8(name_end) != NAME_VALUE:
            return NOTHING
        value = name_end + 1
        pair_end = find_separator(value, end)
        if pair_end == value or (pair_end < end and get_u8(pair_end) != PAIR_END):
            return NOTHING
        if is_name_of_broker(address, name_size):
            if held != 0:
                return NOTHING
            held = held_by(address, name_size, value, pair_end - value)
            if held == 0:
                return NOTHING
        size = pair_end - address
        if name_size == WAIT_SIZE and get_i32(address) == WAIT:
            if has_wait or not is_true(value, pair_end - value):
                return NOTHING
            has_wait = True
        else:
            count += 1
            if count > NAMES_MAX:
                return NOTHING
            hashed = (
                first_word(address, name_size) ^ get_u8(name_end - 1)
            ) * HASH_FACTOR + name_size
            bit = 1 << (hashed >> 57 & 63)
            if names & bit and has_name(start, target, address, name_size):
                return NOTHING
            names |= bit
            if name_size == KEY_NAME_SIZE and get_i64(address) == UNIQ_KEY:
                key_size = pair_end - value
                if not is_key_for_reply(value, key_size):
                    return NOTHING
                key = target + KEY_NAME_SIZE + 1
            for i in range(0, size, 16):
                copy(target + i, address + i, 16)
            target += size
            put_u8(target, PAIR_END)
            target += 1
        address = pair_end + 1
    return target, held, has_wait, key, key_size
