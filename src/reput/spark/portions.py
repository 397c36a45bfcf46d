"""Portions of records whose bodies are decompressed, and the messages inside of batch records."""

from collections.abc import Iterator

import numpy as np

from reput.format import kernels, sys_flag as flags

_PACKED_BYTES_A_BATCH = 1024 * 1024
"""Size of batches of compressed records, in bytes: they expand many times."""


def portions(columns: kernels.Columns) -> Iterator[kernels.Columns]:
    """Split rows into portions that stay small when their bodies are decompressed."""
    is_packed = (columns.numbers("sys_flag") & flags.COMPRESSED) != 0
    packed = np.where(is_packed, columns.numbers("store_size"), 0)
    numbers = np.cumsum(packed, dtype=np.int64) // _PACKED_BYTES_A_BATCH
    for number in np.unique(numbers):
        rows = np.flatnonzero(numbers == number)
        yield columns if len(rows) == columns.count else columns.take(rows)


def unwrapped(columns: kernels.Columns) -> Iterator[kernels.Columns]:
    """Yield records with the messages inside of batch records in their place.

    In portions if there are such records, as their bodies may be decompressed.
    """
    if not (columns.numbers("sys_flag") & flags.INNER_BATCH).any():
        yield columns
        return
    for part in portions(columns):
        yield part.unwrapped()
