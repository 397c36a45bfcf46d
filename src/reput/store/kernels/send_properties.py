r"""Kernels: the property string of a send becomes the one that is stored.

Stored are the pairs as they were sent, each with its last separator, but ``WAIT=true``, which says
nothing; then the suffix. Strings that Java would store otherwise are Python's: pairs without name,
separator or value, names twice, more than ``send_rules.NAMES_MAX`` names, a value with ``\x01``,
text that is no ASCII, and names that brokers look at (``send_rules.NAMES_OF_PYTHON``), but for
those of ``send_rules.HELD_BACK``.
"""

# mypy: allow-untyped-defs, allow-untyped-calls, allow-untyped-decorators, no-check-untyped-defs

from numba import njit

from reput.format import properties as props
from reput.format.kernels.columns import NAME_VALUE, PAIR_END
from reput.format.kernels.hashes import same_bytes
from reput.format.kernels.memory import (
    COMPILE_OPTIONS,
    copy,
    get_i32,
    get_i64,
    get_u8,
    get_u32,
    json_run,
    put_u8,
    text_run,
)
from reput.store.kernels.append import DELAY, DELAY_LAST, DELAY_SIZE
from reput.store.kernels.control_block import HELD_HALF, HELD_TIMER
from reput.store.kernels.request_fields import (
    BACKSLASH,
    QUOTE,
    first_word,
    name_word,
    number,
)
from reput.store.kernels.send_rules import NAMES_MAX, NAMES_OF_PYTHON, TIMER_UNITS_MS

_WORDS = {name_word(start): len(start) for start in NAMES_OF_PYTHON}
STARTS = tuple(_WORDS)
MASKS = tuple(-1 if size == 8 else (1 << 8 * size) - 1 for size in _WORDS.values())
FIRST_LETTERS = sum({1 << (ord(start[0]) - 64) for start in NAMES_OF_PYTHON})
"""Bits of the first letters, from ``@`` on."""

WAIT = int.from_bytes(props.WAIT.encode(), "little")
WAIT_SIZE = len(props.WAIT)
TRUE = int.from_bytes(b"true", "little")
TRUE_SIZE = len("true")
PREPARED = name_word(props.TRANSACTION_PREPARED)
PREPARED_SIZE = len(props.TRANSACTION_PREPARED)
TIMER_SIZES = tuple(map(len, TIMER_UNITS_MS))
TIMER_STARTS = tuple(map(name_word, TIMER_UNITS_MS))
TIMER_ENDS = tuple(name_word(one[-8:]) for one in TIMER_UNITS_MS)
TIMER_UNITS = tuple(TIMER_UNITS_MS.values())
assert all(8 <= size <= 16 for size in TIMER_SIZES)
LETTER_U = ord("u")
SLASH = ord("/")
ZEROS = int.from_bytes(b"u000", "little")
HASH_FACTOR = -0x61C8864680B583EB


@njit(**COMPILE_OPTIONS)
def unescape(at, limit, target):
    r"""Write the text of a JSON string; return where it ends there, 0 if it is not common.

    Escapes are ``\" \\ \/ \u0001 \u0002``. Up to ``SLACK`` bytes behind it are written.
    """
    while True:
        while limit - at >= 16:
            run = json_run(at)
            copy(target, at, 16)
            at += run
            target += run
            if run < 16:
                break
        while at < limit and get_u8(at) != BACKSLASH:
            put_u8(target, get_u8(at))
            at += 1
            target += 1
        if at >= limit:
            return target
        if limit - at < 2:
            return 0
        byte = get_u8(at + 1)
        if byte == LETTER_U:
            if limit - at < 6 or get_u32(at + 1) != ZEROS:
                return 0
            byte = get_u8(at + 5) - 48
            if byte != NAME_VALUE and byte != PAIR_END:
                return 0
            at += 6
        elif byte in (QUOTE, BACKSLASH, SLASH):
            at += 2
        else:
            return 0
        put_u8(target, byte)
        target += 1


@njit(**COMPILE_OPTIONS)
def separator_place(at, end):
    """Return where the next separator stands, or what else is no plain ASCII, or ``end``."""
    while at < end:
        run = text_run(at)
        at += run
        if run < 16:
            return min(at, end)
    return end


@njit(**COMPILE_OPTIONS)
def is_name_of_python(name, size):
    """Whether a broker looks at properties of this name."""
    letter = get_u8(name) - 64
    if letter < 0 or letter >= 63 or FIRST_LETTERS >> letter & 1 == 0:
        return False
    word = first_word(name, size)
    for i in range(len(STARTS)):  # noqa: SIM110 - kernels have no generators
        if word & MASKS[i] == STARTS[i]:
            return True
    return False


@njit(**COMPILE_OPTIONS)
def has_name(at, end, name, size):
    """Whether a property of this name is among pairs that are all right."""
    while at < end:
        name_end = separator_place(at, end)
        if name_end - at == size and same_bytes(at, name, size):
            return True
        at = separator_place(name_end + 1, end) + 1
    return False


@njit(**COMPILE_OPTIONS)
def is_true(at, size):
    """Whether a value is ``true``."""
    return size == TRUE_SIZE and get_i32(at) == TRUE


@njit(**COMPILE_OPTIONS)
def time_unit(name, size):
    """Return the unit of a property that asks for the timer, 0: a time; -1: it does not ask."""
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
    """Return where a property makes its message wait, as FRAME_HELD; 0 if it does not."""
    if name_size == PREPARED_SIZE and get_i64(name) == PREPARED and is_true(value, size):
        return HELD_HALF
    if name_size == DELAY_SIZE and get_i32(name) == DELAY and get_u8(name + 4) == DELAY_LAST:
        return max(number(value, size), 0)
    return HELD_TIMER if time_unit(name, name_size) >= 0 else 0


@njit(**COMPILE_OPTIONS)
def write_pairs(at, end, target):
    """Write the pairs that are stored.

    ``target`` is ``GAP`` bytes in front of ``at``; up to ``SLACK`` bytes behind ``end`` are read.
    Returns where they end, 0 if Python has to look at them; where the message waits, as FRAME_HELD;
    and whether WAIT was there.
    """
    start = target
    names = 0
    count = 0
    held = 0
    has_wait = False
    while at < end:
        name_end = separator_place(at, end)
        name_size = name_end - at
        if name_size == 0 or name_end == end or get_u8(name_end) != NAME_VALUE:
            return 0, 0, False
        value = name_end + 1
        pair_end = separator_place(value, end)
        if pair_end == value or (pair_end < end and get_u8(pair_end) != PAIR_END):
            return 0, 0, False
        if is_name_of_python(at, name_size):
            if held != 0:
                return 0, 0, False
            held = held_by(at, name_size, value, pair_end - value)
            if held == 0:
                return 0, 0, False
        size = pair_end - at
        if name_size == WAIT_SIZE and get_i32(at) == WAIT:
            if has_wait or not is_true(value, pair_end - value):
                return 0, 0, False
            has_wait = True
        else:
            count += 1
            if count > NAMES_MAX:
                return 0, 0, False
            hashed = (first_word(at, name_size) ^ get_u8(name_end - 1)) * HASH_FACTOR + name_size
            bit = 1 << (hashed >> 57 & 63)
            if names & bit and has_name(start, target, at, name_size):
                return 0, 0, False
            names |= bit
            for i in range(0, size, 16):
                copy(target + i, at + i, 16)
            target += size
            put_u8(target, PAIR_END)
            target += 1
        at = pair_end + 1
    return target, held, has_wait
