"""The plan of a dispatch: which task writes which units and which index entries. Pure.

    survey of each range:   runs of queue offsets, number of index entries
    units:  runs, in log order   -->  the end of each queue before a range         (``Share``)
    index:  prefix sums          -->  the entries of which ranges go to each file  (``IndexFile``)

The queues are equal to those of a single dispatcher that reads the log record by record. A record
with the queue's next queue offset gets a unit. A record with a lower one is skipped. A record with
a higher one gets a unit, and the missing units before it get the same content, because Java reads
every unit as a message. So all that matters of the records before a range is the end of the queue:
the queue offset of the next message, and the physical offset where the last one ends.

A record with queue offset 0 after all records of its queue begins the queue again, as its topic was
deleted and created again: the earlier units are dropped, also those of queues of the topic that end
before.

If the log begins above 0, a queue begins with its first message; its file has blanks before that,
which point at physical offset 0 and which Java takes for expired. In a log that begins at 0 blanks
are not expired, and Java would skip the queue's messages in the first log file. There a queue
begins where its file does, and the space before its first message is filled like any other gap
(docs/decisions/0012-salvage-keeps-every-offset.md).
"""

import itertools
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from reput.errors import ReputError
from reput.format import message as record, names

QUEUE_OFFSET_MAX = 1 << 38
"""Largest queue offset that a queue may begin at: beyond it its file exceeds file system limits."""

QueueKey = tuple[str, int]
"""Topic and queue id."""


class RecordRun(NamedTuple):
    """Consecutive records of a queue in the log, with consecutive queue offsets."""

    start: int
    """Queue offset of the first record."""
    stop: int
    """Queue offset after the last record."""
    physical_offset: int
    """Where the first record starts in the log."""
    end: int
    """Where the last record ends."""


class QueueEnd(NamedTuple):
    """The end of a queue."""

    max_offset: int = 0
    """Queue offset of the next unit."""
    end: int = 0
    """Physical offset where the record of the last unit ends; 0 without units."""
    is_fresh: bool = True
    """True if the queue has no unit yet and begins with its first record."""
    begins_at_multiple_of: int = 1
    """Divisor of a fresh queue's first queue offset, which is at or before its first record."""

    def start_for(self, queue_offset: int) -> int:
        """Return the queue offset of the first unit to put for a record that extends the queue."""
        unit = self.begins_at_multiple_of
        return queue_offset // unit * unit if self.is_fresh else self.max_offset


class NeedsDetail(ReputError):
    """A run must be split: its records must be checked one at a time."""

    def __init__(self, key: QueueKey, number: int = -1) -> None:
        self.key = key
        self.number = number
        """Number of the range."""
        super().__init__(f"queue {key[0]}/{key[1]} jumps in range {number}")


class Step(NamedTuple):
    """The effect of a run on a queue."""

    after: QueueEnd
    first: int
    """Queue offset of the first unit to put; ``after.max_offset`` if there is none."""
    refilled: int
    """Units before those of the run, for messages that the log has lost."""
    rejected: int
    """Records without a unit because their queue offset cannot be right."""


def is_possible(queue_end: QueueEnd, queue_offset: int, physical_offset: int) -> bool:
    """Return whether the messages up to a queue offset fit between the queue's end and the record.

    No checksum covers a queue offset; a damaged one must not fill the disk.
    """
    if queue_end.is_fresh:
        return queue_offset <= QUEUE_OFFSET_MAX
    room = physical_offset - queue_end.end
    return queue_offset <= queue_end.max_offset + room // record.FIXED_BYTES_V1


def begins_again(key: QueueKey, queue_end: QueueEnd, run: RecordRun) -> bool:
    """Return True if a run is the first one of a queue that has units of earlier messages."""
    is_first = run.start == 0 < queue_end.max_offset and run.physical_offset >= queue_end.end
    return is_first and not key[0].startswith(names.LMQ_PREFIX)


def step(queue_end: QueueEnd, run: RecordRun) -> Step:
    """Return the effect of a run of records on a queue.

    Raises:
        NeedsDetail: The queue offset of the first record cannot be right; later ones may be.
    """
    if run.start <= queue_end.max_offset:
        if run.stop <= queue_end.max_offset:
            return Step(queue_end, queue_end.max_offset, 0, 0)
        return Step(QueueEnd(run.stop, run.end, is_fresh=False), queue_end.max_offset, 0, 0)
    if is_possible(queue_end, run.start, run.physical_offset):
        first = queue_end.start_for(run.start)
        return Step(QueueEnd(run.stop, run.end, is_fresh=False), first, run.start - first, 0)
    if run.stop - run.start > 1 and not queue_end.is_fresh:
        raise NeedsDetail(("", 0))
    return Step(queue_end, queue_end.max_offset, 0, run.stop - run.start)


def runs_of(
    queue_offsets: npt.NDArray[np.int64],
    physical_offsets: npt.NDArray[np.int64],
    sizes: npt.NDArray[np.int64],
    *,
    is_detailed: bool = False,
) -> list[RecordRun]:
    """Return the runs of one queue's records in log order; if ``is_detailed``, a run per record."""
    if not len(queue_offsets):
        return []
    is_break = np.ones(len(queue_offsets), bool)
    if not is_detailed:
        is_break[1:] = np.diff(queue_offsets) != 1
    firsts = np.flatnonzero(is_break)
    lasts = np.append(firsts[1:], len(queue_offsets)) - 1
    columns = (
        queue_offsets[firsts],
        queue_offsets[lasts] + 1,
        physical_offsets[firsts],
        physical_offsets[lasts] + sizes[lasts],
    )
    return [RecordRun(*row) for row in zip(*(column.tolist() for column in columns), strict=True)]


def append_runs(runs: list[RecordRun], more: Iterable[RecordRun]) -> None:
    """Append runs that follow in the log; join a run to the last one if it continues it."""
    for run in more:
        if runs and runs[-1].stop == run.start:
            last = runs[-1]
            runs[-1] = RecordRun(last.start, run.stop, last.physical_offset, run.end)
        else:
            runs.append(run)


@dataclass(slots=True)
class Survey:
    """The facts of a range of the log that the plan needs."""

    records: int = 0
    runs: dict[QueueKey, list[RecordRun]] = field(default_factory=dict)
    """Runs of the selected queues, in log order."""
    rows: dict[QueueKey, tuple[int, int]] = field(default_factory=dict)
    """Queue -> its rows among the range's units: the first, and the one after the last."""
    entries: int = 0
    """Number of index entries of its records."""
    unqueued: dict[str, int] = field(default_factory=dict)
    """Reason -> records that should be in a queue and are not."""
    holes: list[tuple[int, int, str]] = field(default_factory=list)
    """Physical offset, length and reason of each hole."""


@dataclass(frozen=True, slots=True)
class Share:
    """The units ``[first, stop)`` of a queue that a range's task writes."""

    before: QueueEnd
    first: int
    stop: int
    rows: tuple[int, int] = (0, 0)
    """Rows of the range's units that belong to the queue, from the survey."""
    is_detailed: bool = False
    """True if each record is a run."""

    @property
    def is_start(self) -> bool:
        """True if the queue begins here, so that the space before its first unit must be filled."""
        return self.before.is_fresh


@dataclass(frozen=True, slots=True)
class QueuePlan:
    """The units of all ranges."""

    shares: tuple[dict[QueueKey, Share], ...]
    """The shares of each range."""
    extents: dict[QueueKey, tuple[int, int]]
    """Queue -> queue offset of its first unit, and the one after the last."""
    queue_ends: dict[QueueKey, QueueEnd]
    """Queue -> its end after all ranges."""
    begun_again: frozenset[QueueKey]
    """Queues whose units before these ranges are dropped."""
    refilled: int
    rejected: int

    @property
    def units(self) -> int:
        """Number of units."""
        return sum(stop - first for first, stop in self.extents.values())


@dataclass(slots=True)
class _Progress:
    """Effect of the records of a range on a queue so far."""

    before: QueueEnd
    queue_end: QueueEnd
    first: int | None = None
    """Queue offset of the first unit to put; None if there is none."""
    row: int = 0
    """Number of its records so far."""
    skipped: int = 0
    """Number of leading records whose units were dropped."""

    def begin_again(self, fresh: QueueEnd) -> None:
        """Drop all units so far."""
        self.before = self.queue_end = fresh
        self.first, self.skipped = None, self.row


class _Planning:
    """The plan while it is made, range by range; arguments as of ``plan_queues``."""

    def __init__(self, fresh: QueueEnd, before: Mapping[QueueKey, QueueEnd]) -> None:
        self._fresh = fresh
        self._queue_ends = dict(before)
        self._changed: set[QueueKey] = set()
        self._extents: dict[QueueKey, tuple[int, int]] = {}
        self._shares: list[dict[QueueKey, Share]] = []
        self._begun_again: set[QueueKey] = set()
        self._refilled = self._rejected = 0

    def add(self, number: int, survey: Survey, detailed: Container[tuple[int, QueueKey]]) -> None:
        """Plan a range. Raises ``NeedsDetail``."""
        queues: dict[QueueKey, _Progress] = {}
        runs = [(run.physical_offset, key, run) for key in survey.runs for run in survey.runs[key]]
        for _, key, run in sorted(runs):
            if key not in queues:
                queue_end = self._queue_ends.get(key, self._fresh)
                queues[key] = _Progress(queue_end, queue_end)
            queue = queues[key]
            if begins_again(key, queue.queue_end, run):
                self._begin_again(number, survey, queues, key, run)
            try:
                done = step(queue.queue_end, run)
            except NeedsDetail:
                raise NeedsDetail(key, number) from None
            self._refilled += done.refilled
            self._rejected += done.rejected
            if queue.first is None and done.after.max_offset > done.first:
                queue.first = done.first
            queue.queue_end = done.after
            queue.row += run.stop - run.start
            self._queue_ends[key] = done.after
        share: dict[QueueKey, Share] = {}
        for key, queue in queues.items():
            if queue.first is None:
                continue
            low, high = survey.rows.get(key, (0, 0))
            rows, stop = (low + queue.skipped, high), queue.queue_end.max_offset
            share[key] = Share(queue.before, queue.first, stop, rows, (number, key) in detailed)
            first, _ = self._extents.get(key, (queue.first, 0))
            self._extents[key] = first, stop
            self._changed.add(key)
        self._shares.append(share)

    def _begin_again(
        self,
        number: int,
        survey: Survey,
        queues: Mapping[QueueKey, _Progress],
        key: QueueKey,
        run: RecordRun,
    ) -> None:
        """Drop the units of a queue, and of those of its topic that end before it."""
        topic, old_end = key[0], queues[key].queue_end.end
        for other, runs in survey.runs.items():
            if other[0] == topic and any(
                each.physical_offset < run.physical_offset < each.end and each.stop - each.start > 1
                for each in runs
            ):
                raise NeedsDetail(other, number)  # to know where it ends at this record
        for other, queue_end in self._queue_ends.items():
            if other[0] == topic and 0 < queue_end.end <= old_end:
                self._queue_ends[other] = self._fresh
                self._changed.add(other)
                self._begun_again.add(other)
                self._extents.pop(other, None)
                for earlier in self._shares:
                    earlier.pop(other, None)
                if other in queues:
                    queues[other].begin_again(self._fresh)

    def plan(self) -> QueuePlan:
        """Return the plan of all ranges."""
        return QueuePlan(
            tuple(self._shares),
            self._extents,
            {key: self._queue_ends[key] for key in self._changed},
            frozenset(self._begun_again),
            self._refilled,
            self._rejected,
        )


def plan_queues(
    surveys: Sequence[Survey],
    *,
    fresh: QueueEnd = QueueEnd(),  # noqa: B008 - it cannot be changed
    queue_ends: Mapping[QueueKey, QueueEnd] | None = None,
    detailed: Container[tuple[int, QueueKey]] = (),
) -> QueuePlan:
    """Decide which units each range's task writes.

    Args:
        surveys: The runs of each range, in log order.
        fresh: The end of a queue that has no units yet.
        queue_ends: The ends of queues before the first range; all other queues are fresh.
        detailed: Number of a range and queue for which each run is one record.

    Raises:
        NeedsDetail: A range must be surveyed again, with a run per record of a queue.
    """
    planning = _Planning(fresh, queue_ends or {})
    for number, survey in enumerate(surveys):
        planning.add(number, survey, detailed)
    return planning.plan()


class EntrySpan(NamedTuple):
    """Entries ``[start, stop)`` of a range."""

    range_number: int
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class IndexFile:
    """The entries that go to an index file."""

    number: int
    """Number of the file, from 0, oldest first."""
    spans: tuple[EntrySpan, ...]
    has: int = 0
    """Entries that the file has already."""
    before: tuple[int, int] | None = None
    """Range and number of the entry before the first one; None if it is not in these ranges."""

    @property
    def count(self) -> int:
        """Number of entries to add."""
        return sum(span.stop - span.start for span in self.spans)


def plan_index(
    counts: Sequence[int], entry_max: int, *, number: int = 0, has: int = 0
) -> list[IndexFile]:
    """Decide which entries go to which file. A file takes ``entry_max - 1``; entry 0 is unused.

    Args:
        counts: Number of entries of each range, in log order.
        entry_max: ``maxIndexNum``.
        number: Number of the file to continue.
        has: Number of entries that this file has already.
    """
    files: list[IndexFile] = []
    spans: list[EntrySpan] = []
    before: tuple[int, int] | None = None
    taken = has
    for range_number, count in enumerate(counts):
        start = 0
        while start < count:
            if taken == entry_max - 1:
                if spans:
                    files.append(IndexFile(number, tuple(spans), has, before))
                    before = (spans[-1].range_number, spans[-1].stop - 1)
                number, has, taken, spans = number + 1, 0, 0, []
            stop = min(count, start + entry_max - 1 - taken)
            spans.append(EntrySpan(range_number, start, stop))
            taken += stop - start
            start = stop
    if spans:
        files.append(IndexFile(number, tuple(spans), has, before))
    return files


def cut_spans(spans: Iterable[tuple[int, int]], cuts: Iterable[int]) -> list[tuple[int, int]]:
    """Return the spans, split at each position inside of a span."""
    parts: list[tuple[int, int]] = []
    places = sorted(set(cuts))
    for start, stop in spans:
        inner = [place for place in places if start < place < stop]
        parts += itertools.pairwise([start, *inner, stop])
    return parts
