"""Histogram of the time from a send's arrival until its reply can be sent.

Under SYNC_FLUSH that includes the disk. Sends that are handled together all take the time of the
whole batch; the clock is read twice per batch, so measuring costs nothing per message.

Reported is the last whole minute, as by Java's brokers (4.9.7 ``StoreStatsService``); before there
is one, the counts so far. Java interpolates within buckets; here each millisecond has a count.
"""

import bisect
import math
from collections import Counter

from reput.store.durations import cumulative

MINUTE_MS = 60_000
TIME_MS_MAX = 60_000
"""Upper bound of a time, which keeps the table small."""

_BOUNDS_MS = (1, 10, 50, 100, 200, 500, 1_000, 2_000, 3_000, 4_000, 5_000, 10_000)
"""Upper bounds of the classes, exclusive; the last class has none."""
_CLASSES = (
    "[<=0ms]", "[0~10ms]", "[10~50ms]", "[50~100ms]", "[100~200ms]", "[200~500ms]", "[500ms~1s]",
    "[1~2s]", "[2~3s]", "[3~4s]", "[4~5s]", "[5~10s]", "[10s~]",
)  # fmt: skip


class PutTimes:
    """Counts puts by their duration in ms."""

    def __init__(self) -> None:
        self.max_ms = 0
        """The longest put since the start, in ms."""
        self.sum_ms = 0
        self._totals = [0] * len(_CLASSES)
        self._now: Counter[int] = Counter()
        self._last: Counter[int] | None = None
        self._due_ms: int | None = None

    def add(self, duration_ms: int, count: int = 1) -> None:
        """Count puts of a duration."""
        self._now[min(duration_ms, TIME_MS_MAX)] += count
        self._totals[bisect.bisect_right(_BOUNDS_MS, duration_ms)] += count
        self.sum_ms += duration_ms * count
        self.max_ms = max(self.max_ms, duration_ms)

    def step(self, now_ms: int) -> None:
        """Begin a new minute if one is over, or if the clock was set back."""
        due_ms = self._due_ms
        if due_ms is not None and due_ms - MINUTE_MS <= now_ms < due_ms:
            return
        if due_ms is not None:
            self._last, self._now = self._now, Counter()
        self._due_ms = now_ms + MINUTE_MS

    def distribution(self) -> str:
        """Return the distribution of the last minute's puts, in the format of Java's brokers."""
        counts = [0] * len(_CLASSES)
        for duration_ms, count in self._reported().items():
            counts[bisect.bisect_right(_BOUNDS_MS, duration_ms)] += count
        return "".join(f"{name}:{count} " for name, count in zip(_CLASSES, counts, strict=True))

    def percentile_ms(self, share: float) -> int:
        """Return a percentile of the last minute's puts, in ms; 0 if there are none."""
        counts = self._reported()
        left = math.ceil(share * counts.total())
        for duration_ms in sorted(counts):
            left -= counts[duration_ms]
            if left <= 0:
                return duration_ms
        return 0

    def totals(self) -> list[tuple[float, int]]:
        """Return cumulative counts since the start, by upper bound in seconds (or infinity)."""
        return cumulative(_BOUNDS_MS, self._totals)

    def _reported(self) -> Counter[int]:
        return self._now if self._last is None else self._last
