"""Values over time, in rings: an hour by 30 s, and a week by the hour.

A slot in which nothing was known is a gap, never 0. Counters are kept as they were read; rates are
computed from two of their values.
"""

import itertools
import math
from array import array
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass

FINE_MS, FINE_COUNT = 30_000, 120
COARSE_MS, COARSE_COUNT = 3_600_000, 168
SERIES_COUNT_MAX = 40_000
"""Maximum number of series. A series takes 3.4 KiB, 1.4 KiB of them for the week."""
RATE_SPAN_MS = 15_000
"""Least time between two values of a counter of which a rate is computed."""
_GAP = math.nan


class Ring:
    """The newest values of a series, one slot per step.

    Args:
        step_ms: Length of a slot.
        count: Number of slots.
    """

    __slots__ = ("_count", "_oldest", "_slot", "_step_ms", "_times", "_values")

    def __init__(self, step_ms: int, count: int) -> None:
        self._step_ms = step_ms
        self._count = count
        self._slot = -1
        """Number of the newest slot, since 1970."""
        self._oldest = 0
        """Number of the oldest slot that ever had a value."""
        self._values = array("d", [_GAP]) * count
        self._times = array("q", [0]) * count

    def put(self, time_ms: int, value: float) -> None:
        """Set the value of a slot; a slot older than the ring is ignored."""
        slot = time_ms // self._step_ms
        if self._slot < 0:
            self._slot = self._oldest = slot
        self._oldest = min(self._oldest, slot)
        for passed in range(self._slot + 1, min(slot, self._slot + self._count) + 1):
            self._values[passed % self._count] = _GAP
        self._slot = max(slot, self._slot)
        if self._slot - slot < self._count and self._times[slot % self._count] <= time_ms:
            self._values[slot % self._count] = value
            self._times[slot % self._count] = time_ms

    def values(self, now_ms: int) -> list[float | None]:
        """Return a value per slot, the newest last; None for a gap."""
        newest = now_ms // self._step_ms
        values: list[float | None] = []
        for slot in range(newest - self._count + 1, newest + 1):
            is_kept = 0 <= self._slot - slot < self._count
            value = self._values[slot % self._count] if is_kept else _GAP
            values.append(None if math.isnan(value) else value)
        return values

    def newest_first(self) -> Iterator[tuple[int, float]]:
        """Yield (time in ms, value) of the slots that have a value."""
        for slot in range(self._slot, max(self._oldest - 1, self._slot - self._count), -1):
            place = slot % self._count
            value = self._values[place]
            if not math.isnan(value):
                yield self._times[place], value


@dataclass(slots=True)
class _Series:
    fine: Ring
    coarse: Ring


class History:
    """Series by name."""

    def __init__(self) -> None:
        self._series: dict[Hashable, _Series] = {}

    def put(self, name: Hashable, time_ms: int, value: float) -> None:
        """Add a value."""
        series = self._series.get(name)
        if series is None:
            if len(self._series) >= SERIES_COUNT_MAX:
                return
            series = _Series(Ring(FINE_MS, FINE_COUNT), Ring(COARSE_MS, COARSE_COUNT))
            self._series[name] = series
        series.fine.put(time_ms, value)
        series.coarse.put(time_ms, value)

    def remove(self, name: Hashable) -> None:
        """Delete the series of a deleted topic."""
        self._series.pop(name, None)

    def hour(self, name: Hashable, now_ms: int) -> list[float | None]:
        """Return 120 values, one per 30 s; None for a gap."""
        series = self._series.get(name)
        return series.fine.values(now_ms) if series else [None] * FINE_COUNT

    def week(self, name: Hashable, now_ms: int) -> list[float | None]:
        """Return 168 values, one per hour; None for a gap."""
        series = self._series.get(name)
        return series.coarse.values(now_ms) if series else [None] * COARSE_COUNT

    def newest_first(self, name: Hashable) -> Iterator[tuple[int, float]]:
        """Return an iterator over (time in ms, value) of the last hour."""
        series = self._series.get(name)
        return series.fine.newest_first() if series else iter(())

    def rate(self, name: Hashable) -> float | None:
        """Return the newest rate of a counter a second; None before there are two values."""
        samples = self.newest_first(name)
        time_ms, value = next(samples, (0, 0.0))
        for before_ms, before in samples:
            if time_ms - before_ms >= RATE_SPAN_MS:
                return max(0.0, (value - before) * 1000 / (time_ms - before_ms))
        return None


def rates(counters: list[float | None], step_ms: int) -> list[float | None]:
    """Return the rate a second of each step of a counter; None beside a gap, and for the first."""
    steps: list[float | None] = [None]
    for before, value in itertools.pairwise(counters):
        if before is None or value is None:
            steps.append(None)
        else:
            steps.append(max(0.0, (value - before) * 1000 / step_ms))
    return steps


def time_of(newest_first: Iterable[tuple[int, float]], value: float) -> int | None:
    """Return the estimated time of a counter's value, in ms; None if before the first sample.

    Args:
        newest_first: (time in ms, value of the counter), the newest first.
        value: The value.
    """
    after_ms, after = 0, -math.inf
    for time_ms, counter in newest_first:
        if after == -math.inf and value >= counter:
            return time_ms
        if counter <= value < after:
            return round(time_ms + (after_ms - time_ms) * (value - counter) / (after - counter))
        after_ms, after = time_ms, counter
    return None
