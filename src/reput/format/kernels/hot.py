"""The kernels that write: what a store calls for each put, each dispatch, each pull.

Plain integers in and out; everything else is in the state block (``state``). ``append`` and
``pull`` are short and keep the GIL, ``dispatch`` may work through megabytes and releases it.
Where there is no compiled kernel, ``hot_twin`` does the same, slowly.
"""

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from reput.format import message as record
from reput.format.kernels import hot_twin, native
from reput.format.kernels.state import PLACED_BYTES as PLACED_BYTES  # re-exported for callers

Kernel = Callable[..., int]


def _choose(name: str, twin: Kernel, arguments: list[Any], *, holds_gil: bool) -> Kernel:
    try:
        return native.plain_function(name, arguments, holds_gil=holds_gil)
    except native.KernelsUnavailable:
        return twin


_INTEGER = ctypes.c_int64

append = _choose(
    "append", hot_twin.append, [_INTEGER, ctypes.c_char_p, *[_INTEGER] * 3], holds_gil=True
)
"""``append(block, records: bytes, size, now_ms, placed) -> count``; see ``append.append``."""
pull = _choose("pull", hot_twin.pull, [_INTEGER] * 9, holds_gil=True)
"""``pull(block, units, unit_count, queue_offset, buffer, room, max_count, codes, code_count)``."""
dispatch = _choose("dispatch", hot_twin.dispatch, [_INTEGER] * 6, holds_gil=False)
"""``dispatch(block, buffer, stop_position, end, file_end, base) -> count``."""


def crc_tables() -> npt.NDArray[Any]:
    """Return the tables whose address the block holds; keep the array alive."""
    return np.ascontiguousarray(native.crc_tables())


def address_of(buffer: npt.NDArray[Any]) -> int:
    """Return where an array's bytes stand."""
    return int(buffer.__array_interface__["data"][0])


def bytes_at(address: int, size: int) -> bytes:
    """Return a copy of bytes in memory."""
    return ctypes.string_at(address, size)


def view_at(address: int, size: int) -> memoryview:
    """Return bytes in memory without a copy; the caller keeps them where they are."""
    return memoryview((ctypes.c_ubyte * size).from_address(address)).cast("B")


def bytes_of_record(address: int) -> bytes:
    """Return a copy of a record, whose first field is its size."""
    (size,) = record.TOTAL_SIZE.unpack(ctypes.string_at(address, record.TOTAL_SIZE.size))
    return ctypes.string_at(address, size)
