"""Which messages wait for the timer, and until when: sorted arrays, no object a message.

    newest run:   few entries, sorted by the time they leave
    ...
    oldest run:   most entries; a run is at least twice as long as the next newer one, or full

What comes is a run of its own; neighbours that are too much alike are merged, unless that takes too
long at a time. So each entry is moved a few times, and the first ones that leave are found at the
heads of a few runs. 36 bytes a message.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

ENTRY_TYPE = np.dtype(
    [("leaves_ms", "<i8"), ("queue_offset", "<i8"), ("physical_offset", "<i8"), ("size", "<i4")]
)
"""A message: when it leaves, ms, and where it stands."""

Entries = npt.NDArray[np.void]

ENTRIES_PER_RUN = 1 << 17
"""Runs that would be longer are not merged: it takes 5 ms, in which nobody else is served."""

_EXACT_MAX = 4096
"""Entries of a run that are looked at each time."""

_RAW = np.dtype((np.void, ENTRY_TYPE.itemsize))
"""An entry as bytes: what is to be moved moves a tenth as long as field by field."""


@dataclass(slots=True)
class _Run:
    """Entries, sorted by time, then by queue offset; those before ``head`` are gone."""

    times: npt.NDArray[np.int64]
    """``leaves_ms`` of each, side by side, to be searched."""
    entries: Entries
    head: int = 0
    _lowest: int = -1
    _lowest_until: int = -1
    """Up to this head it holds."""

    @property
    def lowest(self) -> int:
        """A queue offset that none of its entries is below; exact in short runs.

        Looking at all of a long run for each step's few that leave would take longer than the step.
        """
        if self.head > self._lowest_until:
            self._lowest = int(self.entries["queue_offset"][self.head :].min())
            is_long = len(self) > _EXACT_MAX
            self._lowest_until = self.head + (_EXACT_MAX if is_long else 0)
        return self._lowest

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
        runs = self._runs
        runs.append(_sorted(np.ascontiguousarray(entries["leaves_ms"]), _raw(entries)))
        while len(runs) > 1 and len(runs[-2]) < 2 * len(runs[-1]):
            if len(runs[-2]) + len(runs[-1]) > ENTRIES_PER_RUN:
                break
            newer, older = runs.pop(), runs.pop()
            # The older run comes first: of one time, by queue offset.
            times = np.concatenate((older.times[older.head :], newer.times[newer.head :]))
            parts = (_raw(older.entries[older.head :]), _raw(newer.entries[newer.head :]))
            runs.append(_sorted(times, np.concatenate(parts)))

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
        heads = [
            (slice(run.head, run.head + count), run)
            for run, count in zip(self._runs, counts, strict=True)
        ]
        if not heads:
            return np.empty(0, ENTRY_TYPE)
        times = np.concatenate([run.times[part] for part, run in heads])
        found = np.concatenate([_raw(run.entries[part]) for part, run in heads])
        order = np.argsort(times, kind="stable")[:count_max]
        self._seen = np.repeat(np.arange(len(heads)), counts)[order]
        return np.take(found, order).view(ENTRY_TYPE)

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
        """Return a queue offset that none of those that wait is below; None if none waits.

        It is the lowest one, or one that was so a few thousand messages ago.
        """
        return min((run.lowest for run in self._runs), default=None)


def _raw(entries: Entries) -> Entries:
    return np.ascontiguousarray(entries).view(_RAW)


def _sorted(times: npt.NDArray[np.int64], raw: Entries) -> _Run:
    """Return a run of entries, as bytes, and the times at which they leave; those of one stay."""
    order = np.argsort(times, kind="stable")
    return _Run(np.take(times, order), np.take(raw, order).view(ENTRY_TYPE))
