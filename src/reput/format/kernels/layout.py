"""Result types, order of columns and capacities: shared by kernels, reference and callers."""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

SHARED_OBJECT = "_kernels.so"
"""File name of a package's compiled kernels, in the folder of the package."""

Buffer = Any
"""Anything that exposes bytes: bytes, memoryview, a memory map, an array of uint8."""
IntArray = npt.NDArray[np.int64]


class Segments(NamedTuple):
    """Segments of a scanned range, without gap or overlap."""

    positions: npt.NDArray[np.int64]
    sizes: npt.NDArray[np.int32]
    verdicts: npt.NDArray[np.uint8]
    """Verdicts, values of ``reput.format.message.Verdict``."""
    next_position: int
    """End of the scan; before ``stop`` if it ran out of room or of bytes."""


class Runs(NamedTuple):
    """Values of variable size as Arrow has them: value i is ``data[offsets[i]:offsets[i + 1]]``."""

    offsets: npt.NDArray[np.int32]
    data: npt.NDArray[np.uint8]
    present: npt.NDArray[np.bool_] | None
    """Mask of the values that are not null; None if all are."""


class Words(NamedTuple):
    """A list of texts per row: row i has ``words[offsets[i]:offsets[i + 1]]``."""

    offsets: npt.NDArray[np.int32]
    words: Runs


class Pairs(NamedTuple):
    """A map of texts per row: row i has pairs ``offsets[i]`` to ``offsets[i + 1]``."""

    offsets: npt.NDArray[np.int32]
    names: Runs
    values: Runs


LOCATED = (
    ("queue_id", "i4"),
    ("flag", "i4"),
    ("queue_offset", "i8"),
    ("physical_offset", "i8"),
    ("sys_flag", "i4"),
    ("born_timestamp", "i8"),
    ("store_timestamp", "i8"),
    ("reconsume_times", "i4"),
    ("prepared_transaction_offset", "i8"),
    ("body_crc", "i4"),
    ("store_size", "i4"),
    ("body", "i8"),
    ("body_size", "i4"),
    ("topic", "i8"),
    ("topic_size", "i4"),
    ("properties", "i8"),
    ("properties_size", "i4"),
    ("born_host", "i8"),
    ("store_host", "i8"),
    ("text_is_utf8", "u1"),
)
"""Columns that ``locate`` fills, in the order of its table; texts and hosts are addresses."""

PAIR_BYTES_MIN = 4
"""Minimum size of a pair: a character, a separator, a character and a separator, bytes."""
WORD_BYTES_MIN = 2
HOST_TEXT_MAX = len("[ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff]:-2147483648")
OFFSET_ID_MAX = 56
