"""Ranges of a store become partitions. Pure: numbers in, partitions out.

Log ranges are cut at any byte: whoever reads one starts at the first record in it and goes on to
the end of the last record that starts in it, so neighbours meet exactly without planning having
looked at a single record. Queue ranges are cut by message count.
"""

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


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


Partition = LogRange | QueueRange | Points


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
