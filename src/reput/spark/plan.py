"""Ranges of a store become partitions. Pure: numbers in, partitions out.

Log ranges are cut at any byte: whoever reads one starts at the first record in it and goes on to
the end of the last record that starts in it, so neighbours meet exactly without planning having
looked at a single record. Queue ranges are cut by message count.
"""

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, slots=True)
class LogRange:
    """Records that start in ``[start, stop)`` of a log."""

    store: int
    """Which of the read's stores."""
    start: int
    stop: int
    is_end: bool
    """The log ends at ``stop``."""
    is_stale: bool = False
    """Behind the end of the log: only for salvage."""

    @property
    def byte_count(self) -> int:
        """Bytes to read."""
        return self.stop - self.start


@dataclass(frozen=True, slots=True)
class QueueSlice:
    """Messages ``[start, stop)`` of a queue."""

    topic: str
    queue_id: int
    start: int
    stop: int

    @property
    def count(self) -> int:
        """How many messages."""
        return self.stop - self.start


@dataclass(frozen=True, slots=True)
class QueueRange:
    """Slices of queues, read through their units."""

    store: int
    slices: tuple[QueueSlice, ...]


@dataclass(frozen=True, slots=True)
class Points:
    """Single records, which an index named."""

    store: int
    physical_offsets: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ArchiveRows:
    """Row groups of an archive's Parquet files."""

    store: int
    row_groups: tuple[tuple[str, tuple[int, ...]], ...]
    """(path in the archive, numbers of its row groups)."""


@dataclass(frozen=True, slots=True)
class ArchiveDamage:
    """A damaged range that an archive lists, which has no row group."""

    store: int
    physical_offset: int


Partition = LogRange | QueueRange | Points | ArchiveRows | ArchiveDamage


@dataclass(frozen=True, slots=True)
class Extent:
    """A queue slice and about how large its records are."""

    slice: QueueSlice
    record_bytes: float

    @property
    def byte_count(self) -> float:
        """About how many bytes to read."""
        return self.slice.count * self.record_bytes


def target_bytes(total: float, most: int, min_partitions: int | None) -> int:
    """Return how large partitions should be, at most ``most`` and small enough for their number."""
    if not min_partitions or total <= 0:
        return most
    return max(1, min(most, int(-(-total // min_partitions))))


def split_log(
    store: int, spans: Iterable[tuple[int, int]], end: int, target: int
) -> list[LogRange]:
    """Cut spans of a log into ranges of about ``target`` bytes; ``end`` is where the log ends."""
    ranges = []
    for start, stop in spans:
        pieces = max(1, -(-(stop - start) // target))
        cuts = [start + (stop - start) * i // pieces for i in range(pieces + 1)]
        ranges += [
            LogRange(store, low, high, is_end=high >= end)
            for low, high in itertools.pairwise(cuts)
            if low < high
        ]
    return ranges


def split_queues(
    store: int,
    extents: Sequence[Extent],
    target: int,
    max_records: int | None = None,
) -> list[QueueRange]:
    """Cut and gather queue slices into ranges of about ``target`` bytes, in the order given."""
    ranges: list[QueueRange] = []
    gathered: list[QueueSlice] = []
    room_bytes, room_count = float(target), max_records or (1 << 62)
    for extent in extents:
        start, stop = extent.slice.start, extent.slice.stop
        while start < stop:
            fits = min(int(room_bytes // max(extent.record_bytes, 1.0)), room_count, stop - start)
            if fits < 1 and gathered:
                ranges.append(QueueRange(store, tuple(gathered)))
                gathered = []
                room_bytes, room_count = float(target), max_records or (1 << 62)
                continue
            fits = max(fits, 1)
            gathered.append(
                QueueSlice(extent.slice.topic, extent.slice.queue_id, start, start + fits)
            )
            start += fits
            room_bytes -= fits * extent.record_bytes
            room_count -= fits
    if gathered:
        ranges.append(QueueRange(store, tuple(gathered)))
    return ranges


def share_messages(
    backlogs: Sequence[int], limit: int, oldest_first: Callable[[], Sequence[int]]
) -> list[int]:
    """Return how many messages to take of each queue, ``limit`` at most in all.

    Each queue that has any gives one, and of the rest in proportion to what it has: a queue of few
    does not wait for one of many. Where there are more queues than messages to take, those whose
    next message is the oldest give one, so that each has its turn.

    Args:
        backlogs: Messages that wait in each queue.
        limit: Most to take, 1 or more.
        oldest_first: Returns all places of ``backlogs``, those of the oldest next message first;
            asked only where it matters.
    """
    total = sum(backlogs)
    if total <= limit:
        return [*backlogs]
    waiting = [i for i, backlog in enumerate(backlogs) if backlog]
    shares = [0] * len(backlogs)
    if limit < len(waiting):
        for i in [i for i in oldest_first() if backlogs[i]][:limit]:
            shares[i] = 1
        return shares
    left, rest = limit - len(waiting), total - len(waiting)
    for i in waiting:
        shares[i] = 1 + (backlogs[i] - 1) * left // rest
    # What rounding down left goes to those whom it cost most.
    waiting.sort(key=lambda i: (backlogs[i] - 1) * left % rest, reverse=True)
    for i in waiting[: limit - sum(shares)]:
        shares[i] += 1
    return shares


def share_bytes(
    sizes: Sequence[npt.NDArray[np.int64]],
    backlog_bytes: Sequence[int],
    limit: int,
    oldest_first: Callable[[], Sequence[int]],
) -> list[int]:
    """Return how many records to take of each queue, ``limit`` bytes at most in all.

    As ``share_messages``; but a queue's first record that does not fit any more waits, and one that
    is the oldest and larger than the limit is taken alone, or nothing would ever be.

    Args:
        sizes: Bytes of the next records of each queue, as many as might be taken.
        backlog_bytes: Bytes of all records that wait in each queue, or about that.
        limit: Most bytes to take.
        oldest_first: As in ``share_messages``.
    """
    counts = [0] * len(sizes)
    firsts = [int(one[0]) if len(one) else 0 for one in sizes]
    order: Sequence[int] = range(len(sizes))
    if sum(firsts) > limit:
        order = oldest_first()
    order = [i for i in order if len(sizes[i])]
    left = limit
    for i in order:
        if firsts[i] <= left:
            counts[i], left = 1, left - firsts[i]
        elif left == limit:
            counts[i] = 1
            return counts
    # Each in proportion to what it has; then, in turn, what rounding left.
    ends = [np.cumsum(one, dtype=np.int64) for one in sizes]
    rests = {i: max(backlog_bytes[i] - firsts[i], 1) for i in order if counts[i]}
    total, room = sum(rests.values()), left
    budgets = [(i, room * rest // total) for i, rest in rests.items()]
    for i, budget in [*budgets, *((i, None) for i in rests)]:
        taken = int(ends[i][counts[i] - 1])
        most = taken + min(left, left if budget is None else budget)
        counts[i] = int(np.searchsorted(ends[i], most, "right"))
        left -= int(ends[i][counts[i] - 1]) - taken
    return counts


def join_spans(spans: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return spans in order, with neighbours made one."""
    joined: list[tuple[int, int]] = []
    for start, stop in sorted(spans):
        if joined and start <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(stop, joined[-1][1]))
        elif start < stop:
            joined.append((start, stop))
    return joined


def without_spans(
    spans: Iterable[tuple[int, int]], others: Iterable[tuple[int, int]]
) -> list[tuple[int, int]]:
    """Return the parts of spans that lie in none of the others."""
    left = join_spans(spans)
    for low, high in others:
        left = [
            part
            for start, stop in left
            for part in ((start, min(stop, low)), (max(start, high), stop))
            if part[0] < part[1]
        ]
    return left


def meet_spans(spans: Iterable[tuple[int, int]], low: int, high: int) -> list[tuple[int, int]]:
    """Return the parts of spans that lie in ``[low, high)``."""
    met = [(max(start, low), min(stop, high)) for start, stop in spans]
    return [(start, stop) for start, stop in met if start < stop]
