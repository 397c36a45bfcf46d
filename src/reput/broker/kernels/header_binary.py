"""Kernel: read the binary header of a request.

It falls back if it has a remark, a repeated or unknown field, an empty value, or text that is not
plain.
"""

# mypy: allow-untyped-defs, allow-untyped-calls, allow-untyped-decorators, no-check-untyped-defs

from numba import njit

from reput.broker.kernels.request_fields import IGNORED, known_bit, may_be_escaped, set_field
from reput.format.kernels.header_readers import read_binary_head
from reput.format.kernels.memory import COMPILE_OPTIONS, load_i16, load_i32
from reput.format.kernels.plain_text import is_plain_text


@njit(**COMPILE_OPTIONS)
def read_binary(block, address, limit):
    """Read a header into the control block; return False if it falls back."""
    address = read_binary_head(block, address, limit)
    if address == 0:
        return False
    seen = 0
    names = block.frame_names
    while address < limit:
        if limit - address < 2:
            return False
        name_size = load_i16(address)
        name = address + 2
        value = name + name_size + 4
        if name_size <= 0 or value > limit:
            return False
        value_size = load_i32(value - 4)
        address = value + value_size
        if value_size <= 0 or address > limit:
            return False
        bit = known_bit(names, name, name_size)
        if bit == IGNORED:
            if not is_plain_text(value, address, limit):
                return False
            continue
        if bit < 0 or seen >> bit & 1:
            return False
        if not may_be_escaped(names, bit) and not is_plain_text(value, address, limit):
            return False
        seen |= 1 << bit
        set_field(block, bit, value, value_size)
    block.frame_seen = seen
    return True
