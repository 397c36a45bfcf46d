"""The messages that wait for the timer, ordered by time: sorted arrays, no object per message.

    newest run:   few entries, sorted by due time
    ...
    oldest run:   most entries; a run is at least twice as long as the next newer one, or full

New messages form a new run. Neighbouring runs of similar length are merged, unless a merge would
take too long. So each entry is moved a few times, and the first due entries are at the heads of a
few runs. Memory: 36 bytes per message.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

ENTRY_TYPE = np.dtype(
    [("leaves_ms", "<i8"), ("queue_offset", "<i8"), ("physical_offset", "<i8"), ("size", "<i4")]
)
"""An entry: due time in ms, and the position of the message."""

Entries = npt.NDArray[np.void]

ENTRIES_PER_RUN = 1 << 17
"""Longest run that results from a merge, which takes 5 ms and blocks all other requests."""

_EXACT_MAX = 4096
"""Entries of a run that are examined each time."""

_RAW = np.dtype((np.void, ENTRY_TYPE.itemsize))
"""An entry as bytes, which numpy moves ten times as fast as separate fields."""


@dataclass(slots=True)
class _Run:
    """Entries sorted by time, then by queue offset; those before ``head`` are removed."""

    times: npt.NDArray[np.int64]
    """Contiguous copy of ``leaves_ms`` for binary searches."""
    entries: Entries
    head: int = 0
    _lowest: int = -1
    _lowest_until: int = -1
    """Head up to which ``_lowest`` is valid."""

    @property
    def lowest(self) -> int:
        """Lower bound of the queue offsets of its entries; exact in short runs.

        Examining all of a long run after each step would take longer than the step itself.
        """
        if self.head > self._lowest_until:
            self._lowest = int(self.entries["queue_offset"][self.head :].min())
            is_long = len(self) > _EXACT_MAX
            self._lowest_until = self.head + (_EXACT_MAX if is_long else 0)
        return self._lowest

    def __len__(self) -> int:
        return len(self.entries) - self.head

    def count_to(self, limit_ms: int) -> int:
        """Return the number of entries that are due at ``limit_ms`` or before."""
        return int(np.searchsorted(self.times[self.head :], limit_ms, "right"))


class TimerRuns:
    """The waiting messages. They are added in order of queue offset, with any times."""

    def __init__(self) -> None:
        self._runs: list[_Run] = []  # oldest first: all queue offsets are below the next run's
        self._seen: npt.NDArray[np.intp] = np.empty(0, np.intp)

    def __len__(self) -> int:
        return sum(map(len, self._runs))

    def add(self, entries: Entries) -> None:
        """Add messages with higher queue offsets than all others."""
        if len(entries):
            self._push(entries)

    def _push(self, entries: Entries) -> None:
        runs = self._runs
        runs.append(_sorted(np.ascontiguousarray(entries["leaves_ms"]), _raw(entries)))
        while len(runs) > 1 and len(runs[-2]) < 2 * len(runs[-1]):
            if len(runs[-2]) + len(runs[-1]) > ENTRIES_PER_RUN:
                break
            newer, older = runs.pop(), runs.pop()
            # The older run first: entries with equal times are ordered by queue offset.
            times = np.concatenate((older.times[older.head :], newer.times[newer.head :]))
            parts = (_raw(older.entries[older.head :]), _raw(newer.entries[newer.head :]))
            runs.append(_sorted(times, np.concatenate(parts)))

    def first_ms(self) -> int | None:
        """Return the earliest due time in ms; None if no message waits."""
        return min((int(run.times[run.head]) for run in self._runs), default=None)

    def first(self, limit_ms: int, count_max: int) -> Entries:
        """Return the first due entries, by time and queue offset.

        Args:
            limit_ms: Latest due time to include.
            count_max: Entries at most.
        """
        counts = [min(run.count_to(limit_ms), count_max) for run in self._runs]
        heads = [
            (slice(run.head, run.head + count), run)
            for run, count in zip(self._runs, counts, strict=True)
        ]
        if not heads:
            return np.empty(0, ENTRY_TYPE)
        times = np.concatenate([run.times[part] for part, run in heads])
        raw = np.concatenate([_raw(run.entries[part]) for part, run in heads])
        order = np.argsort(times, kind="stable")[:count_max]
        self._seen = np.repeat(np.arange(len(heads)), counts)[order]
        return np.take(raw, order).view(ENTRY_TYPE)

    def drop(self, count: int) -> None:
        """Remove the first ``count`` entries of the latest result of ``first``."""
        gone = np.bincount(self._seen[:count], minlength=len(self._runs))
        for run, number in zip(self._runs, gone, strict=True):
            run.head += int(number)
        self._runs = [run for run in self._runs if len(run)]
        self._seen = self._seen[:0]

    def count_at(self, time_ms: int) -> int:
        """Return the number of entries that are due at exactly this time."""
        return sum(run.count_to(time_ms) - run.count_to(time_ms - 1) for run in self._runs)

    def min_queue_offset(self) -> int | None:
        """Return a lower bound of the waiting queue offsets; None if no message waits.

        It is the lowest one, or was so a few thousand messages ago.
        """
        return min((run.lowest for run in self._runs), default=None)


def _raw(entries: Entries) -> Entries:
    return np.ascontiguousarray(entries).view(_RAW)


def _sorted(times: npt.NDArray[np.int64], raw: Entries) -> _Run:
    """Sort entries (as bytes) by their times, stably, into a run."""
    order = np.argsort(times, kind="stable")
    return _Run(np.take(times, order), np.take(raw, order).view(ENTRY_TYPE))
