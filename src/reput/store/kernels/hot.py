"""The kernels of the store as functions.

Arguments and results are plain integers; everything else is in the control block
(``control_block``). ``append``, ``pull`` and the kernels that only the fast path calls are short
and keep the GIL. ``dispatch`` may work through megabytes and releases it.

Without compiled kernels, most functions are those of ``reference``, which are slow. Kernels of the
fast path have no reference implementation and serve nothing: requests fall back to the processors.
"""

import ctypes
from collections.abc import Callable
from typing import Any

import numpy.typing as npt

from reput.format import message as record
from reput.format.kernels.native import crc_tables as tables_of_crc
from reput.kernel_choice import REFERENCE
from reput.store.kernels import native

Kernel = Callable[..., int]


def engine() -> str:
    """Return the engine of these kernels: ``native``, ``numba`` or ``reference``."""
    return native.engine() if is_compiled else REFERENCE


is_compiled = native.is_compiled()
"""Whether there are compiled kernels. Without them no fast path is taken."""


def _of_store(name: str, arguments: list[Any], *, is_short: bool) -> Kernel:
    """Return a kernel, or its reference implementation."""
    if is_compiled:
        return native.plain_function(name, arguments, is_short=is_short)
    # Not at the top: a broker with compiled kernels starts sooner without it.
    from reput.store.kernels import reference

    kernel: Kernel = getattr(reference, name)
    return kernel


def _of_fast_path(name: str, arguments: list[Any] | None = None) -> Kernel:
    """Return a kernel of the fast path, or a function that serves nothing."""
    if is_compiled:
        return native.plain_function(name, arguments or [_INTEGER], is_short=True)
    return serve_nothing


def _of_rebuild(name: str, argument_count: int) -> Kernel:
    """Return a kernel that works through megabytes, without the GIL; it has no other form."""
    if is_compiled:
        return native.plain_function(name, [_INTEGER] * argument_count)
    return serve_nothing


def serve_nothing(*_: Any) -> int:
    """Return 0, as a kernel of the fast path that serves nothing."""
    return 0


_INTEGER = ctypes.c_int64
Address = ctypes.c_int64
"""Type of the addresses that short kernels take."""

append = _of_store("append", [_INTEGER, ctypes.c_char_p], is_short=True)
"""``append(block: c_int64, records: bytes) -> count``; see ``append.append``."""
append_long = _of_store("append", [_INTEGER, ctypes.c_char_p], is_short=False)
"""``append`` for megabytes of records: other threads run meanwhile."""
pull = _of_store("pull", [_INTEGER], is_short=True)
"""``pull(block: c_int64) -> count``; see ``pull.pull``."""
put_texts = _of_store("put_texts", [_INTEGER] * 6, is_short=False)
"""``put_texts(block, data, sizes, count, offset, timestamp) -> count``; see ``append``."""
batch_records = _of_store("batch_records", [_INTEGER] * 13, is_short=False)
"""``batch_records(body, size, ...) -> count``; see ``batch_parts.batch_records``."""
dispatch = _of_store("dispatch", [_INTEGER] * 6, is_short=False)
"""``dispatch(block, buffer, stop_position, end, file_end, base) -> count``; see ``append``."""
find_unqueued = _of_store("find_unqueued", [_INTEGER] * 6, is_short=False)
"""``find_unqueued(block, buffer, position, end, file_end, base) -> position``; see ``append``."""

digest = _of_rebuild("digest", 1)
"""``digest(words) -> count``; see ``digest.digest``. The words are those of a ``DigestWords``."""
put_digested_units = _of_rebuild("put_digested_units", 5)
"""``put_digested_units(block, words, number, count, stop_position) -> number``"""
put_digested_keys = _of_rebuild("put_digested_keys", 4)
"""``put_digested_keys(block, words, number, count) -> number``; see ``digest``."""

copy_records = _of_fast_path("copy_records")
"""``copy_records(words: c_int64) -> count``; see ``copy_records.copy_records``."""
copy_timers = _of_fast_path("copy_timers")
"""``copy_timers(words: c_int64) -> count``; see ``copy_records.copy_timers``."""
copy_for_retry = _of_fast_path("copy_for_retry")
"""``copy_for_retry(words: c_int64) -> count``; see ``copy_for_retry.copy_for_retry``."""
copy_for_commit = _of_fast_path("copy_for_commit")
"""``copy_for_commit(words: c_int64) -> count``; see ``copy_for_commit.copy_for_commit``."""
pop_batch = _of_fast_path("pop_batch")
"""``pop_batch(words: c_int64) -> count``; see ``pop.pop_batch``."""
find_by_key = _of_fast_path(
    "find_by_key",
    [_INTEGER, _INTEGER, ctypes.c_char_p, _INTEGER, ctypes.c_char_p, _INTEGER],
)
"""``find_by_key(block, args, topic: bytes, size, key: bytes, size) -> count``; see ``lookup``."""
find_by_time = _of_fast_path("find_by_time", [_INTEGER] * 2)
"""``find_by_time(block: c_int64, args: c_int64) -> queue offset``; see ``lookup``."""


def crc_tables() -> npt.NDArray[Any]:
    """Return the tables whose address the block holds. The array must be kept alive."""
    return tables_of_crc()


def address_of(buffer: npt.NDArray[Any]) -> int:
    """Return the address of an array's bytes."""
    return int(buffer.__array_interface__["data"][0])


def bytes_at(address: int, size: int) -> bytes:
    """Return a copy of bytes in memory."""
    return ctypes.string_at(address, size)


def view_at(address: int, size: int) -> memoryview:
    """Return bytes in memory without a copy. The caller keeps the memory alive."""
    return memoryview((ctypes.c_ubyte * size).from_address(address)).cast("B")


def words_at(address: int, count: int) -> memoryview:
    """Return words in memory without a copy. The caller keeps the memory alive."""
    return memoryview((ctypes.c_int64 * count).from_address(address)).cast("B").cast("q")


def bytes_of_record(address: int) -> bytes:
    """Return a copy of the record at an address; the record begins with its size."""
    size, _ = record.SIZE_AND_MAGIC.unpack(ctypes.string_at(address, record.SIZE_AND_MAGIC.size))
    return ctypes.string_at(address, size)
