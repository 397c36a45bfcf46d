"""How long puts take, from the bytes of a send to what its reply waits for: a histogram.

Under SYNC_FLUSH that includes the disk. Sends that were handled together took as long as all of
them; the clock is read twice for each such batch, so measuring costs nothing a message.

What is told is the last whole minute, as a broker's is (4.9.7 ``StoreStatsService``); before there
is one, what was counted so far. Java puts times into buckets and guesses within them; here each
millisecond counts for itself.
"""

import bisect
import math
from collections import Counter

MINUTE_MS = 60_000
TIME_MS_MAX = 60_000
"""Longer ones count as this long: the table stays small."""

_BOUNDS_MS = (1, 10, 50, 100, 200, 500, 1_000, 2_000, 3_000, 4_000, 5_000, 10_000)
"""A time belongs to the first class whose bound it is below; the last class has none."""
_CLASSES = (
    "[<=0ms]", "[0~10ms]", "[10~50ms]", "[50~100ms]", "[100~200ms]", "[200~500ms]", "[500ms~1s]",
    "[1~2s]", "[2~3s]", "[3~4s]", "[4~5s]", "[5~10s]", "[10s~]",
)  # fmt: skip


class PutTimes:
    """Counts puts by the milliseconds that they took."""

    def __init__(self) -> None:
        self.max_ms = 0
        """The longest since the start."""
        self.sum_ms = 0
        self._totals = [0] * len(_CLASSES)
        self._now: Counter[int] = Counter()
        self._last: Counter[int] | None = None
        self._due_ms: int | None = None

    def add(self, duration_ms: int, count: int = 1) -> None:
        """Count puts that took so long."""
        self._now[min(duration_ms, TIME_MS_MAX)] += count
        self._totals[bisect.bisect_right(_BOUNDS_MS, duration_ms)] += count
        self.sum_ms += duration_ms * count
        self.max_ms = max(self.max_ms, duration_ms)

    def step(self, now_ms: int) -> None:
        """Begin a new minute if one is over; a clock that was set back begins one, too."""
        due_ms = self._due_ms
        if due_ms is not None and due_ms - MINUTE_MS <= now_ms < due_ms:
            return
        if due_ms is not None:
            self._last, self._now = self._now, Counter()
        self._due_ms = now_ms + MINUTE_MS

    def distribution(self) -> str:
        """Return how many puts of the last minute took how long, as brokers write it."""
        counts = [0] * len(_CLASSES)
        for duration_ms, count in self._told().items():
            counts[bisect.bisect_right(_BOUNDS_MS, duration_ms)] += count
        return "".join(f"{name}:{count} " for name, count in zip(_CLASSES, counts, strict=True))

    def percentile_ms(self, share: float) -> int:
        """Return the time that this share of the puts of the last minute stayed within; 0: none."""
        told = self._told()
        left = math.ceil(share * told.total())
        for duration_ms in sorted(told):
            left -= told[duration_ms]
            if left <= 0:
                return duration_ms
        return 0

    def totals(self) -> list[tuple[float, int]]:
        """Return seconds and how many puts since the start took less; the last has no bound."""
        bounds = [*(bound / 1000 for bound in _BOUNDS_MS), math.inf]
        found, below = [], 0
        for bound, count in zip(bounds, self._totals, strict=True):
            below += count
            found.append((bound, below))
        return found

    def _told(self) -> Counter[int]:
        return self._now if self._last is None else self._last
