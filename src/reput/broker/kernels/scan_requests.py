"""Kernel: read the requests of one code in a receive buffer into rows of numbers and addresses.

``scan_requests`` reads from ``receive_position`` on, one row for each request (``scan_args``), up
to the first frame of another form, and leaves ``receive_position`` there. It has no other effect:
the caller executes the requests.

**What it reads**: frames of the wanted code whose header ``header_json`` or ``header_binary``
reads, with known fields, each once and of its kind, and all required ones; flag 0 or one-way;
opaque not negative. The body may be any.

The control block is the caller's own: only ``receive_address``, ``receive_position`` and
``receive_end`` are read, and fields from ``frame_code`` on are written.
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
from reput.format.kernels.memory import COMPILE_OPTIONS, get_i32, get_u8, load_i32
from reput.format.kernels.plain_text import INT_MAX, number
from reput.format.kernels.row_types import row_after
from reput.store.kernels.control_block import ControlBlock

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
    flag = block.frame_flag
    required = wanted.required
    if (
        block.frame_code != wanted.code
        or (flag != 0 and flag != IS_ONEWAY)
        or block.frame_opaque < 0
        or block.frame_seen & required != required
    ):
        return False
    row.opaque = block.frame_opaque
    row.flag = flag
    row.serialization = block.frame_serialization
    row.end = end
    row.body = body
    row.body_size = body_size
    for i in range(wanted.names.count):
        field = row.values[i]
        if block.frame_seen >> i & 1 == 0:
            field.value = 0
            field.size = rules.ABSENT
            continue
        address, size = field_place(block, i)
        kind = wanted.names.fields[i].kind
        value = value_as(kind, address, size)
        if value < 0:
            return False
        if kind == TEXT and before != 0 and before.values[i].size == size:
            same = before.values[i].value
            if same_bytes(same, address, size):
                value = same
        field.value = value
        field.size = size
    return True


@njit(**COMPILE_OPTIONS)
def scan_requests(block, wanted):
    """Entry point: write a row for each request from ``receive_position`` on; return how many."""
    buffer = block.receive_address
    received = block.receive_end
    position = block.receive_position
    row = wanted.rows
    block.frame_names = wanted.names
    count = 0
    before = 0
    while count < wanted.rows_max and received - position >= LENGTH_BYTES:
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
        row = row_after(row, wanted.row_bytes)
        position = end
    block.receive_position = position
    return count


ENTRY_POINTS = {"scan_requests": (ControlBlock, rules.ScanCall)}
"""Entry points and their arguments. Results are numbers."""
