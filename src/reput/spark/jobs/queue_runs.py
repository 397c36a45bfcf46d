"""Runs of consecutive queue offsets: what a queue has, lacks, and has twice. Pure.

However many messages a queue has, its runs are as few as its gaps.
"""

import itertools
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

Run = tuple[int, int]
"""Queue offsets ``[start, stop)``."""


def of(offsets: npt.NDArray[np.int64]) -> list[Run]:
    """Return the runs of queue offsets in any order; one that is there twice begins a new run."""
    if not len(offsets):
        return []
    ordered = np.sort(offsets)
    breaks = np.flatnonzero(np.diff(ordered) != 1) + 1
    starts = ordered[np.concatenate(([0], breaks))]
    stops = ordered[np.concatenate((breaks - 1, [len(ordered) - 1]))] + 1
    return list(zip(starts.tolist(), stops.tolist(), strict=True))


def union(runs: Iterable[Run]) -> tuple[list[Run], int]:
    """Return runs in order with neighbours made one, and how many offsets were there twice."""
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
    """Return what is in the first runs and not in the others; both joined and in order."""
    left: list[Run] = []
    place = 0
    for start, stop in runs:
        while place < len(others) and others[place][1] <= start:
            place += 1
        at, look = start, place
        while look < len(others) and others[look][0] < stop:
            if at < others[look][0]:
                left.append((at, others[look][0]))
            at = max(at, others[look][1])
            look += 1
        if at < stop:
            left.append((at, stop))
    return left


def gaps(runs: list[Run]) -> list[Run]:
    """Return what lies between joined runs."""
    return [(one[1], other[0]) for one, other in itertools.pairwise(runs)]


def count(runs: Iterable[Run]) -> int:
    """Return how many offsets runs hold."""
    return sum(stop - start for start, stop in runs)


def text(start: int, stop: int) -> str:
    """Return a run for people."""
    return f"unit {start}" if stop == start + 1 else f"units {start} to {stop - 1}"
