"""Kernel: read the binary header of a request.

No remark, no field twice, no field that is not known, no empty value, no text that is not plain.
"""

# mypy: allow-untyped-defs, allow-untyped-calls, allow-untyped-decorators, no-check-untyped-defs

import struct

from numba import njit

from reput.format.kernels.memory import COMPILE_OPTIONS, load_i16, load_i32, set_word, word
from reput.store.kernels import control_block as state
from reput.store.kernels.request_fields import (
    is_plain_text,
    known_bit,
    may_be_escaped,
    set_field,
)

HEAD_BYTES = struct.calcsize(">hbhii")
"""Code, language, version, opaque, flag; see ``command``."""
AT_OPAQUE = struct.calcsize(">hbh")
AT_FLAG = struct.calcsize(">hbhi")


@njit(**COMPILE_OPTIONS)
def read_binary(block, at, limit):
    """Read a header of ``[at, limit)`` into words of the block; False: it is not common."""
    if limit - at < HEAD_BYTES + 8:
        return False
    set_word(block, state.FRAME_CODE, load_i16(at))
    set_word(block, state.FRAME_OPAQUE, load_i32(at + AT_OPAQUE))
    set_word(block, state.FRAME_FLAG, load_i32(at + AT_FLAG))
    if load_i32(at + HEAD_BYTES) != 0:  # a remark
        return False
    at += HEAD_BYTES + 8
    if load_i32(at - 4) != limit - at:
        return False
    seen = 0
    names = word(block, state.FRAME_NAMES)
    while at < limit:
        if limit - at < 2:
            return False
        name_size = load_i16(at)
        name = at + 2
        value = name + name_size + 4
        if name_size <= 0 or value > limit:
            return False
        value_size = load_i32(value - 4)
        at = value + value_size
        if value_size <= 0 or at > limit:
            return False
        bit = known_bit(names, name, name_size)
        if bit < 0 or seen >> bit & 1:
            return False
        if not may_be_escaped(names, bit) and not is_plain_text(value, at, limit):
            return False
        seen |= 1 << bit
        set_field(block, bit, value, value_size)
    set_word(block, state.FRAME_SEEN, seen)
    return True
