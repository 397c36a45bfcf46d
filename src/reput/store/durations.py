"""Durations of an operation of the disk: a histogram, and a line of the log if one is slow."""

import bisect
import itertools
import logging
import math
import threading
from collections.abc import Sequence

SLOW_MS = 500
"""Duration from which an operation is logged, as by RocketMQ."""
LOGGED_AGAIN_MS = 10_000
"""Least time between two such lines, in ms."""
_BOUNDS_MS = (1, 10, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000)
"""Upper bounds of the classes, exclusive; the last class has none."""

_log = logging.getLogger(__name__)


class Durations:
    """Counts an operation by its duration; for any thread.

    Args:
        operation: The operation, as in ``a sync of the log``.
    """

    def __init__(self, operation: str) -> None:
        self._operation = operation
        self._lock = threading.Lock()
        self._counts = [0] * (len(_BOUNDS_MS) + 1)
        self._slow_count = 0
        self._logged_ms: int | None = None
        self.sum_ms = 0

    def add(self, duration_ms: int, monotonic_ms: int) -> None:
        """Count an operation that has just ended.

        Args:
            duration_ms: Its duration.
            monotonic_ms: The time, monotonic ms.
        """
        with self._lock:
            self._counts[bisect.bisect_right(_BOUNDS_MS, duration_ms)] += 1
            self.sum_ms += duration_ms
            if duration_ms < SLOW_MS:
                return
            self._slow_count += 1
            if self._logged_ms is not None and monotonic_ms - self._logged_ms < LOGGED_AGAIN_MS:
                return
            self._logged_ms = monotonic_ms
        _log.warning(
            "%s took %d ms; %d took %d ms or more since the start",
            self._operation,
            duration_ms,
            self._slow_count,
            SLOW_MS,
        )

    def totals(self) -> list[tuple[float, int]]:
        """Return cumulative counts since the start, by upper bound in seconds (or infinity)."""
        return cumulative(_BOUNDS_MS, self._counts)


def cumulative(bounds_ms: Sequence[int], counts: Sequence[int]) -> list[tuple[float, int]]:
    """Return cumulative counts by upper bound in seconds, as a histogram of Prometheus has them.

    Args:
        bounds_ms: Upper bounds of the classes but the last, in ms; that has none.
        counts: Number of durations in each class.
    """
    bounds = [*(bound / 1000 for bound in bounds_ms), math.inf]
    return list(zip(bounds, itertools.accumulate(counts), strict=True))
