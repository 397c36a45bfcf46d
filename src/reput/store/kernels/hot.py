"""The kernels as functions, compiled or in plain Python: one import for store and broker.

Plain integers in and out; everything else is in the control block (``control_block``). ``append``,
``pull`` and ``receive`` are short and keep the GIL, ``dispatch`` may work through megabytes and
releases it. Where there is no compiled kernel, ``hot_twin`` does the same, slowly.
"""

import ctypes
from collections.abc import Callable
from typing import Any

import numpy.typing as npt

from reput.format import message as record
from reput.format.kernels.native import crc_tables as tables_of_crc
from reput.store.kernels import hot_twin, native

Kernel = Callable[..., int]


def _is_compiled() -> bool:
    try:
        native.engine()
    except native.KernelsUnavailable:
        return False
    return True


is_compiled = _is_compiled()
"""Whether there are compiled kernels. Without them no fast path is taken."""


def _choose(name: str, twin: Kernel, arguments: list[Any], *, is_short: bool) -> Kernel:
    try:
        return native.plain_function(name, arguments, is_short=is_short)
    except native.KernelsUnavailable:
        return twin


def _serve_nothing(*_: Any) -> int:
    return 0


def _of_fast_path(name: str, arguments: list[Any]) -> Kernel:
    """Return a kernel of the fast path; without compiled kernels one that serves nothing."""
    return _choose(name, _serve_nothing, arguments, is_short=True)


def _batch_records_twin(*arguments: int) -> int:
    from reput.store.kernels import batch_parts_twin

    return batch_parts_twin.batch_records(*arguments)


_INTEGER = ctypes.c_int64
Address = ctypes.c_int64
"""What the short kernels take the block's address as."""

append = _choose("append", hot_twin.append, [_INTEGER, ctypes.c_char_p], is_short=True)
"""``append(block: c_int64, records: bytes) -> count``; see ``append.append``."""
append_long = _choose("append", hot_twin.append, [_INTEGER, ctypes.c_char_p], is_short=False)
"""The same for megabytes of records: other threads run meanwhile."""
pull = _choose("pull", hot_twin.pull, [_INTEGER], is_short=True)
"""``pull(block: c_int64) -> count``; see ``pull.pull``."""
receive = _of_fast_path("receive", [_INTEGER])
"""``receive(block: c_int64) -> count``; see ``send.receive``."""
acks = _of_fast_path("acks", [_INTEGER])
"""``acks(block: c_int64) -> count``; see ``acks.acks``. The block is one of its own."""
again = _of_fast_path("again", [_INTEGER])
"""``again(words: c_int64) -> count``; see ``copy_records.again``."""
waiting = _of_fast_path("waiting", [_INTEGER])
"""``waiting(words: c_int64) -> count``; see ``copy_records.waiting``."""
later = _of_fast_path("later", [_INTEGER])
"""``later(words: c_int64) -> count``; see ``copy_for_retry.later``."""
decided = _of_fast_path("decided", [_INTEGER])
"""``decided(words: c_int64) -> count``; see ``copy_for_commit.decided``."""
take = _of_fast_path("take", [_INTEGER])
"""``take(words: c_int64) -> count``; see ``pop.take``."""
collect = _of_fast_path("collect", [_INTEGER] * 2)
"""``collect(block: c_int64, wanted: c_int64) -> count``; see ``scan_requests.collect``."""
put_texts = _choose("put_texts", hot_twin.put_texts, [_INTEGER] * 6, is_short=False)
"""``put_texts(block, data, sizes, count, offset, timestamp) -> count``; see ``append``."""
batch_records = _choose("batch_records", _batch_records_twin, [_INTEGER] * 13, is_short=False)
"""``batch_records(body, size, ...) -> count``; see ``batch_parts.batch_records``."""
dispatch = _choose("dispatch", hot_twin.dispatch, [_INTEGER] * 6, is_short=False)
"""``dispatch(block, buffer, stop_position, end, file_end, base) -> count``."""


def crc_tables() -> npt.NDArray[Any]:
    """Return the tables whose address the block holds; keep the array alive."""
    return tables_of_crc()


def address_of(buffer: npt.NDArray[Any]) -> int:
    """Return where an array's bytes stand."""
    return int(buffer.__array_interface__["data"][0])


def bytes_at(address: int, size: int) -> bytes:
    """Return a copy of bytes in memory."""
    return ctypes.string_at(address, size)


def view_at(address: int, size: int) -> memoryview:
    """Return bytes in memory without a copy; the caller keeps them where they are."""
    return memoryview((ctypes.c_ubyte * size).from_address(address)).cast("B")


def words_at(address: int, count: int) -> memoryview:
    """Return words in memory without a copy; the caller keeps them where they are."""
    return memoryview((ctypes.c_int64 * count).from_address(address)).cast("B").cast("q")


def bytes_of_record(address: int) -> bytes:
    """Return a copy of a record, whose first field is its size."""
    size, _ = record.SIZE_AND_MAGIC.unpack(ctypes.string_at(address, record.SIZE_AND_MAGIC.size))
    return ctypes.string_at(address, size)
