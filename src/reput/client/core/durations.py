"""Histogram of durations, cheap enough for each send."""

from bisect import bisect_left

BOUNDS_MS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 30_000, 60_000)
"""Upper bounds of the buckets, in ms; the last bucket has none."""


class Durations:
    """Number of durations by bucket, and their sum.

    A duration is a difference of two clock readings in whole milliseconds: a single one may be
    wrong by up to 1 ms, sums are right on average.
    """

    __slots__ = ("counts", "sum_ms")

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS_MS) + 1)
        self.sum_ms = 0

    def add(self, duration_ms: int) -> None:
        """Count a duration."""
        self.counts[bisect_left(BOUNDS_MS, duration_ms)] += 1
        self.sum_ms += duration_ms
