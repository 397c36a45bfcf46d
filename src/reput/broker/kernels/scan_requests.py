"""Kernel: read the requests of one code in a receive buffer into rows of numbers and addresses.

``scan_requests`` reads from RECEIVE_POSITION on, one row for each request (``scan_args``), up to
the first frame of another form, and leaves RECEIVE_POSITION there. It has no other effect: the
caller executes the requests.

**What it reads**: frames of the wanted code whose header ``header_json`` or ``header_binary``
reads, with known fields, each once and of its kind, and all required ones; flag 0 or one-way;
opaque not negative. The body may be any.

The block is the caller's, of BLOCK_WORDS words: only RECEIVE_ADDRESS, RECEIVE_POSITION and
RECEIVE_END are read, and words from FRAME_CODE on are written.
"""

# mypy: allow-untyped-defs, allow-untyped-calls, allow-untyped-decorators, no-check-untyped-defs

from numba import njit

from reput.broker.kernels import scan_args as rules
from reput.broker.kernels.request_fields import LONG_MAX, field_place
from reput.broker.kernels.send import (
    FALSE,
    FALSE_LAST,
    FALSE_SIZE,
    FRAME_MAX,
    FRAME_MIN,
    LENGTH_BYTES,
    read_header,
)
from reput.broker.kernels.send_properties import is_true
from reput.format.command import IS_ONEWAY
from reput.format.kernels.hashes import same_bytes
from reput.format.kernels.memory import COMPILE_OPTIONS, get_i32, get_u8, load_i32, set_word, word
from reput.format.kernels.plain_text import INT_MAX, number
from reput.store.kernels import control_block as state

TEXT, INT, BOOL = rules.TEXT, rules.INT, rules.BOOL


@njit(**COMPILE_OPTIONS)
def value_as(kind, address, size):
    """Return the value of a text in its row; -1 if it is not of its kind."""
    if kind == TEXT:
        return address
    if kind == BOOL:
        if is_true(address, size):
            return 1
        is_false = (
            size == FALSE_SIZE and get_i32(address) == FALSE and get_u8(address + 4) == FALSE_LAST
        )
        return 0 if is_false else -1
    value = number(address, size)
    return value if value <= (INT_MAX if kind == INT else LONG_MAX) else -1


@njit(**COMPILE_OPTIONS)
def write_row(block, wanted, row, before, end, body, body_size):
    """Write the row of the frame that was read; return False if the frame is of another form.

    ``before`` is the previous row, 0 if it is the first.
    """
    flag = word(block, state.FRAME_FLAG)
    required = word(wanted, rules.REQUIRED)
    if (
        word(block, state.FRAME_CODE) != word(wanted, rules.CODE)
        or (flag != 0 and flag != IS_ONEWAY)
        or word(block, state.FRAME_OPAQUE) < 0
        or word(block, state.FRAME_SEEN) & required != required
    ):
        return False
    set_word(row, rules.ROW_OPAQUE, word(block, state.FRAME_OPAQUE))
    set_word(row, rules.ROW_FLAG, flag)
    set_word(row, rules.ROW_SERIALIZATION, word(block, state.FRAME_SERIALIZATION))
    set_word(row, rules.ROW_END, end)
    set_word(row, rules.ROW_BODY, body)
    set_word(row, rules.ROW_BODY_SIZE, body_size)
    for i in range(word(wanted, rules.NAMES)):
        values = rules.ROW_WORDS + rules.VALUES * i
        if word(block, state.FRAME_SEEN) >> i & 1 == 0:
            set_word(row, values, 0)
            set_word(row, values + 1, rules.ABSENT)
            continue
        address, size = field_place(block, i)
        kind = word(wanted, rules.NAMES + 1 + rules.FIELD_WORDS * i + rules.FIELD_KIND)
        value = value_as(kind, address, size)
        if value < 0:
            return False
        if kind == TEXT and before != 0 and word(before, values + 1) == size:
            same = word(before, values)
            if same_bytes(same, address, size):
                value = same
        set_word(row, values, value)
        set_word(row, values + 1, size)
    return True


@njit(**COMPILE_OPTIONS)
def scan_requests(block, wanted):
    """Entry point: write a row for each request from RECEIVE_POSITION on; return their number."""
    buffer = word(block, state.RECEIVE_ADDRESS)
    received = word(block, state.RECEIVE_END)
    position = word(block, state.RECEIVE_POSITION)
    row = word(wanted, rules.ROWS)
    row_bytes = 8 * (rules.ROW_WORDS + rules.VALUES * word(wanted, rules.NAMES))
    set_word(block, state.FRAME_NAMES, wanted + 8 * rules.NAMES)
    count = 0
    before = 0
    while count < word(wanted, rules.ROWS_MAX) and received - position >= LENGTH_BYTES:
        size = load_i32(buffer + position)
        end = position + LENGTH_BYTES + size
        if size < FRAME_MIN or size > FRAME_MAX or end > received:
            break
        body = read_header(block, buffer + position + LENGTH_BYTES, buffer + end)
        body_size = buffer + end - body
        if body == 0 or not write_row(block, wanted, row, before, end, body, body_size):
            break
        count += 1
        before = row
        row += row_bytes
        position = end
    set_word(block, state.RECEIVE_POSITION, position)
    return count


ENTRY_POINTS = {"scan_requests": (int, int)}
"""Entry points and their arguments. Results are numbers."""
