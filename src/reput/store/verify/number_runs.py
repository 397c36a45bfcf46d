"""Sets, runs and spans of numbers."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

Mask = npt.NDArray[np.bool_]
Offsets = npt.NDArray[np.int64]
NO_OFFSETS = np.empty(0, np.int64)


def distinct(values: Offsets) -> Offsets:
    """Return the distinct values in order; faster than ``np.unique`` on nearly ordered values."""
    ordered = np.sort(values, kind="stable")
    is_last = np.append(ordered[1:] != ordered[:-1], True)[: len(ordered)]
    distinct: Offsets = ordered[is_last]
    return distinct


def is_in(values: Offsets, ordered: Offsets) -> Mask:
    """Return which values are among others, which are sorted."""
    if not len(ordered):
        return np.zeros(len(values), np.bool_)
    ranks = np.minimum(np.searchsorted(ordered, values), len(ordered) - 1)
    is_there: Mask = ordered[ranks] == values
    return is_there


def of(mask: Mask) -> list[tuple[int, int]]:
    """Return (first, count) of each run of true values."""
    if not mask.any():
        return []
    edges = np.flatnonzero(np.diff(mask.astype(np.int8), prepend=0, append=0))
    return [(int(start), int(end - start)) for start, end in edges.reshape(-1, 2)]


def mask(numbers: Offsets, start: int, count: int) -> Mask:
    """Return which of ``[start, start + count)`` are among the numbers."""
    mask = np.zeros(count, np.bool_)
    mask[numbers[(numbers >= start) & (numbers < start + count)] - start] = True
    return mask


def span(noun: str, first: int, count: int) -> str:
    """Return the text of a run."""
    return f"{noun} {first}" if count == 1 else f"{count} {noun}s, {first} to {first + count - 1}"


@dataclass(frozen=True)
class Spans:
    """Ranges of the log, sorted, without overlaps."""

    starts: Offsets = field(default_factory=lambda: NO_OFFSETS)
    ends: Offsets = field(default_factory=lambda: NO_OFFSETS)

    def of(self, places: Offsets) -> Offsets:
        """Return the number of the range that has each physical offset; -1 if none has."""
        if not len(self.starts):
            return np.full(len(places), -1, np.int64)
        ranks = np.searchsorted(self.starts, places, "right") - 1
        is_inside = (ranks >= 0) & (places < self.ends[np.maximum(ranks, 0)])
        numbers: Offsets = np.where(is_inside, ranks, -1)
        return numbers


def usual(sizes: Iterable[int]) -> int:
    """Return the most frequent size of the files that are not empty; 0 without such files."""
    counts = Counter(size for size in sizes if size)
    return max(counts, key=lambda size: (counts[size], size), default=0)
