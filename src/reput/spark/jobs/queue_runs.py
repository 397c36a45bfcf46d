"""Runs of consecutive queue offsets: present, missing and duplicate ones of a queue. Pure.

The number of runs follows the number of gaps, not of messages.
"""

import itertools
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

Run = tuple[int, int]
"""Queue offsets ``[start, stop)``."""


def of(offsets: npt.NDArray[np.int64]) -> list[Run]:
    """Return the runs of unsorted queue offsets; a duplicate starts a new run."""
    if not len(offsets):
        return []
    ordered = np.sort(offsets)
    breaks = np.flatnonzero(np.diff(ordered) != 1) + 1
    starts = ordered[np.concatenate(([0], breaks))]
    stops = ordered[np.concatenate((breaks - 1, [len(ordered) - 1]))] + 1
    return list(zip(starts.tolist(), stops.tolist(), strict=True))


def union(runs: Iterable[Run]) -> tuple[list[Run], int]:
    """Return runs sorted and with neighbours joined, and the number of duplicate offsets."""
    joined: list[Run] = []
    twice = 0
    for start, stop in sorted(runs):
        if not joined or start > joined[-1][1]:
            joined.append((start, stop))
            continue
        twice += max(min(stop, joined[-1][1]) - start, 0)
        joined[-1] = (joined[-1][0], max(stop, joined[-1][1]))
    return joined, twice


def without(runs: Iterable[Run], others: list[Run]) -> list[Run]:
    """Return the parts of the first runs that are not in the others; both joined and sorted."""
    rest: list[Run] = []
    first = 0
    for start, stop in runs:
        while first < len(others) and others[first][1] <= start:
            first += 1
        low, number = start, first
        while number < len(others) and others[number][0] < stop:
            if low < others[number][0]:
                rest.append((low, others[number][0]))
            low = max(low, others[number][1])
            number += 1
        if low < stop:
            rest.append((low, stop))
    return rest


def gaps(runs: list[Run]) -> list[Run]:
    """Return the gaps between joined runs."""
    return [(run[1], following[0]) for run, following in itertools.pairwise(runs)]


def count(runs: Iterable[Run]) -> int:
    """Return the number of offsets in runs."""
    return sum(stop - start for start, stop in runs)


def text(start: int, stop: int) -> str:
    """Return the text of a run."""
    return f"unit {start}" if stop == start + 1 else f"units {start} to {stop - 1}"
