"""Which messages wait for the timer, and until when: sorted arrays, no object a message.

    newest run:   few entries, sorted by the time they leave
    ...
    oldest run:   most entries; a run is at least twice as long as the next newer one

What comes is a run of its own; neighbours that are too much alike are merged. So each entry is
moved a few times, and the first ones that leave are found at the heads of a few runs. 28 bytes a
message, and as much again for a moment while runs are merged.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

ENTRY_TYPE = np.dtype(
    [("leaves_ms", "<i8"), ("queue_offset", "<i8"), ("physical_offset", "<i8"), ("size", "<i4")]
)
"""A message: when it leaves, ms, and where it stands."""

Entries = npt.NDArray[np.void]


@dataclass(slots=True)
class _Run:
    """Entries, sorted by time, then by queue offset; those before ``head`` are gone."""

    times: npt.NDArray[np.int64]
    """``leaves_ms`` of each, side by side, to be searched."""
    entries: Entries
    head: int = 0

    def __len__(self) -> int:
        return len(self.entries) - self.head

    def count_to(self, limit_ms: int) -> int:
        """Return how many leave at ``limit_ms`` or before."""
        return int(np.searchsorted(self.times[self.head :], limit_ms, "right"))


class TimerRuns:
    """The messages that wait. Queue offsets come in their order, times in any."""

    def __init__(self) -> None:
        self._runs: list[_Run] = []  # oldest first: its queue offsets are below the next one's
        self._seen: npt.NDArray[np.intp] = np.empty(0, np.intp)

    def __len__(self) -> int:
        return sum(map(len, self._runs))

    def add(self, entries: Entries) -> None:
        """Add messages that are behind all others in the queue."""
        if len(entries):
            self._push(entries)

    def _push(self, entries: Entries) -> None:
        order = np.argsort(entries["leaves_ms"], kind="stable")
        self._append(entries[order])
        runs = self._runs
        while len(runs) > 1 and len(runs[-2]) < 2 * len(runs[-1]):
            newer, older = runs.pop(), runs.pop()
            both = np.concatenate((older.entries[older.head :], newer.entries[newer.head :]))
            # Stable, and the older run comes first: of one time, by queue offset.
            self._append(both[np.argsort(both["leaves_ms"], kind="stable")])

    def _append(self, entries: Entries) -> None:
        self._runs.append(_Run(np.ascontiguousarray(entries["leaves_ms"]), entries))

    def first_ms(self) -> int | None:
        """Return when the first one leaves; None if none waits."""
        return min((int(run.times[run.head]) for run in self._runs), default=None)

    def first(self, limit_ms: int, count_max: int) -> Entries:
        """Return those that leave first, by time and queue offset.

        Args:
            limit_ms: Only those that leave then or before.
            count_max: How many at most.
        """
        counts = [min(run.count_to(limit_ms), count_max) for run in self._runs]
        parts = [
            run.entries[run.head : run.head + count]
            for run, count in zip(self._runs, counts, strict=True)
        ]
        found = np.concatenate(parts) if parts else np.empty(0, ENTRY_TYPE)
        order = np.argsort(found["leaves_ms"], kind="stable")[:count_max]
        self._seen = np.repeat(np.arange(len(parts)), counts)[order]
        return found[order]

    def drop(self, count: int) -> None:
        """Remove so many of those that ``first`` returned last."""
        gone = np.bincount(self._seen[:count], minlength=len(self._runs))
        for run, number in zip(self._runs, gone, strict=True):
            run.head += int(number)
        self._runs = [run for run in self._runs if len(run)]
        self._seen = self._seen[:0]

    def count_at(self, time_ms: int) -> int:
        """Return how many leave at a time."""
        return sum(run.count_to(time_ms) - run.count_to(time_ms - 1) for run in self._runs)

    def min_queue_offset(self) -> int | None:
        """Return the lowest queue offset of those that wait; None if none does."""
        lows = (int(run.entries["queue_offset"][run.head :].min()) for run in self._runs)
        return min(lows, default=None)
