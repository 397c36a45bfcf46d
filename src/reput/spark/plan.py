"""Splits ranges of a store into partitions. Pure: numbers in, partitions out.

Log ranges are split at any byte: a reader starts at the first record in its range and continues to
the end of the last record that starts in it, so that neighbours meet exactly and planning reads no
record. Queue ranges are split by message count.
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
    """Index of the store in the read."""
    start: int
    stop: int
    is_end: bool
    """True if the log ends at ``stop``."""
    is_stale: bool = False
    """True after the end of the log: only for salvage."""

    @property
    def byte_count(self) -> int:
        """Size of the range, in bytes."""
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
        """Number of messages."""
        return self.stop - self.start


@dataclass(frozen=True, slots=True)
class QueueRange:
    """Slices of queues, read through their units."""

    store: int
    slices: tuple[QueueSlice, ...]


@dataclass(frozen=True, slots=True)
class Points:
    """Single records found by an index."""

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
    """A damaged range listed by an archive, without a row group."""

    store: int
    physical_offset: int


Partition = LogRange | QueueRange | Points | ArchiveRows | ArchiveDamage


@dataclass(frozen=True, slots=True)
class Extent:
    """A queue slice and its estimated record size."""

    slice: QueueSlice
    record_bytes: float

    @property
    def byte_count(self) -> float:
        """Estimated size, in bytes."""
        return self.slice.count * self.record_bytes


def target_bytes(total: float, most: int, min_partitions: int | None) -> int:
    """Return the size of partitions: at most ``most``, small enough for the minimum number."""
    if not min_partitions or total <= 0:
        return most
    return max(1, min(most, int(-(-total // min_partitions))))


def split_log(
    store: int, spans: Iterable[tuple[int, int]], end: int, target: int
) -> list[LogRange]:
    """Split spans of a log into ranges of about ``target`` bytes; ``end`` is the end of the log."""
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
    """Split and combine queue slices into ranges of about ``target`` bytes, in the given order."""
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
    """Return the number of messages to take from each queue, ``limit`` in total.

    Each queue with messages contributes one, and the rest in proportion to its backlog, so that a
    small queue does not wait for a large one. If there are more queues than messages to take, the
    queues whose next messages are oldest contribute one, so that no queue starves.

    Args:
        backlogs: Waiting messages of each queue.
        limit: Maximum number of messages, at least 1.
        oldest_first: Returns all indexes of ``backlogs``, ordered by the age of the next message;
            called only if needed.
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
    # The remainder of rounding goes to the queues that lost most by it.
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
    """Return the number of records to take from each queue, ``limit`` bytes in total.

    As ``share_messages``; but the first record of a queue that no longer fits waits, and one that
    is the oldest and larger than the limit is taken alone, to guarantee progress.

    Args:
        sizes: Sizes of the next records of each queue, in bytes, as many as could be taken.
        backlog_bytes: Size of all waiting records of each queue, possibly estimated.
        limit: Maximum number of bytes.
        oldest_first: As in ``share_messages``.
    """
    counts = [0] * len(sizes)
    firsts = [int(queue_sizes[0]) if len(queue_sizes) else 0 for queue_sizes in sizes]
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
    # In proportion to the backlogs; then, round robin, the remainder of rounding.
    ends = [np.cumsum(queue_sizes, dtype=np.int64) for queue_sizes in sizes]
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
    """Return spans in order, with adjacent ones joined."""
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
    """Return the parts of spans that no other span covers."""
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
    """Return the parts of spans in ``[low, high)``."""
    met = [(max(start, low), min(stop, high)) for start, stop in spans]
    return [(start, stop) for start, stop in met if start < stop]
