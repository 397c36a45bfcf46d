"""What a dispatch on many machines decides: who writes which units, and which index entries. Pure.

    survey of each range:   runs of queue offsets, number of index entries
    units:  runs, in log order   -->  where each queue stands in front of a range  (``Share``)
    index:  prefix sums          -->  which entries of which ranges go to a file   (``IndexFile``)

A queue is what a single dispatcher makes of the log, record by record: a record that carries the
queue on (its queue offset is the queue's next) gets a unit; one that the queue has already is left;
one beyond the next one gets a unit, and what is missing before it is filled with that unit too, for
Java reads every unit as a message. So what matters of all records before a range is where the queue
stands: the queue offset of the next message, and where the last one ends in the log.

A queue begins with its first message if the log begins above 0; before that its file has blanks,
which point at physical offset 0, and are expired for Java. In a log from 0 on they are not, and
Java would skip what the queue has in the log's first file: there it begins where its file does,
filled as any gap is (docs/decisions/0012-salvage-keeps-every-offset.md).
"""

import itertools
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from reput.errors import ReputError
from reput.format import message as record

QUEUE_OFFSET_MAX = 1 << 38
"""A queue does not begin beyond this: its file would be larger than file systems allow."""

QueueKey = tuple[str, int]
"""Topic and queue id."""


class RecordRun(NamedTuple):
    """Records of a queue, one after another in the log, with consecutive queue offsets."""

    start: int
    """Queue offset of the first."""
    stop: int
    """Behind that of the last."""
    physical_offset: int
    """Where the first record starts in the log."""
    end: int
    """Where the last record ends."""


class QueueProgress(NamedTuple):
    """How far a queue is."""

    max_offset: int = 0
    """Queue offset that the next unit has."""
    end: int = 0
    """Where the record of the last unit ends in the log; 0 without units."""
    is_fresh: bool = True
    """It has had no unit yet, and begins where its first record says."""
    begins_at_multiple_of: int = 1
    """Of a fresh one: it begins at a multiple of so many units, at or before its first record."""

    def start_for(self, queue_offset: int) -> int:
        """Return the first unit that is put for a record which carries the queue on."""
        unit = self.begins_at_multiple_of
        return queue_offset // unit * unit if self.is_fresh else self.max_offset


class NeedsDetail(ReputError):
    """A run is too much at once: its records must be looked at one by one."""

    def __init__(self, key: QueueKey, number: int = -1) -> None:
        self.key = key
        self.number = number
        """Of the range."""
        super().__init__(f"queue {key[0]}/{key[1]} jumps in range {number}")


class Step(NamedTuple):
    """What a run does to a queue."""

    after: QueueProgress
    first: int
    """Queue offset of the first unit that is put; ``after.max_offset`` if none is."""
    refilled: int
    """Units before the run's own that stand for messages the log has lost."""
    rejected: int
    """Records whose queue offset cannot be right, and that are in no queue."""


def is_possible(stand: QueueProgress, queue_offset: int, physical_offset: int) -> bool:
    """Whether so many messages as a record says fit between its queue's last one and itself.

    No checksum covers a queue offset; what a damaged one says must not fill the disk.
    """
    if stand.is_fresh:
        return queue_offset <= QUEUE_OFFSET_MAX
    room = physical_offset - stand.end
    return queue_offset <= stand.max_offset + room // record.FIXED_BYTES_V1


def step(stand: QueueProgress, run: RecordRun) -> Step:
    """Return what a run of records does to a queue.

    Raises:
        NeedsDetail: The first record cannot be right; whether later ones are is for them to say.
    """
    if run.start <= stand.max_offset:
        if run.stop <= stand.max_offset:
            return Step(stand, stand.max_offset, 0, 0)
        return Step(QueueProgress(run.stop, run.end, is_fresh=False), stand.max_offset, 0, 0)
    if is_possible(stand, run.start, run.physical_offset):
        first = stand.start_for(run.start)
        return Step(QueueProgress(run.stop, run.end, is_fresh=False), first, run.start - first, 0)
    if run.stop - run.start > 1 and not stand.is_fresh:
        raise NeedsDetail(("", 0))
    return Step(stand, stand.max_offset, 0, run.stop - run.start)


def runs_of(
    queue_offsets: npt.NDArray[np.int64],
    physical_offsets: npt.NDArray[np.int64],
    sizes: npt.NDArray[np.int64],
    *,
    is_detailed: bool = False,
) -> list[RecordRun]:
    """Return the runs of one queue's records, in log order; each a run of its own if detailed."""
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
    return [RecordRun(*one) for one in zip(*(column.tolist() for column in columns), strict=True)]


def append_runs(runs: list[RecordRun], more: Iterable[RecordRun]) -> None:
    """Add runs that follow in the log; one that carries the last one on makes it longer."""
    for run in more:
        if runs and runs[-1].stop == run.start:
            last = runs[-1]
            runs[-1] = RecordRun(last.start, run.stop, last.physical_offset, run.end)
        else:
            runs.append(run)


@dataclass(slots=True)
class Survey:
    """What a task found out about a range of the log."""

    records: int = 0
    runs: dict[QueueKey, list[RecordRun]] = field(default_factory=dict)
    """Of the wanted queues, in log order."""
    rows: dict[QueueKey, tuple[int, int]] = field(default_factory=dict)
    """Which of the range's units are a queue's: the first, and behind the last."""
    entries: int = 0
    """Index entries of its records."""
    unqueued: dict[str, int] = field(default_factory=dict)
    """Why records are in no queue that should be, and how many."""
    holes: list[tuple[int, int, str]] = field(default_factory=list)
    """Physical offset, length and reason of what is no record."""


@dataclass(frozen=True, slots=True)
class Share:
    """The units of a queue that a range's task writes: ``[first, stop)``."""

    before: QueueProgress
    first: int
    stop: int
    rows: tuple[int, int] = (0, 0)
    """Which of the range's units are the queue's, as the survey has them."""
    is_detailed: bool = False
    """Each record is a run of its own."""

    @property
    def is_start(self) -> bool:
        """Whether the queue begins here, so that the room before its first unit is to be filled."""
        return self.before.is_fresh


@dataclass(frozen=True, slots=True)
class QueuePlan:
    """All units."""

    shares: tuple[dict[QueueKey, Share], ...]
    """Of each range."""
    extents: dict[QueueKey, tuple[int, int]]
    """Queue offset of the first unit and behind the last one, of each queue that gets units."""
    stands: dict[QueueKey, QueueProgress]
    """How far each of these queues is then."""
    refilled: int
    rejected: int

    @property
    def units(self) -> int:
        """How many units there are."""
        return sum(stop - first for first, stop in self.extents.values())


def plan_queues(
    surveys: Sequence[Survey],
    *,
    fresh: QueueProgress = QueueProgress(),  # noqa: B008 - it cannot be changed
    stands: Mapping[QueueKey, QueueProgress] | None = None,
    detailed: Container[tuple[int, QueueKey]] = (),
) -> QueuePlan:
    """Decide which units each range's task writes.

    Args:
        surveys: The runs of each range, in log order.
        fresh: How a queue begins.
        stands: How far queues are before the first range; others are fresh.
        detailed: Number of a range and queue, where each run is one record.

    Raises:
        NeedsDetail: A range must be surveyed again, with each record of a queue a run of its own.
    """
    before_all = {} if stands is None else stands
    after: dict[QueueKey, QueueProgress] = {}
    extents: dict[QueueKey, tuple[int, int]] = {}
    shares: list[dict[QueueKey, Share]] = []
    refilled = rejected = 0
    for number, survey in enumerate(surveys):
        share: dict[QueueKey, Share] = {}
        for key, runs in survey.runs.items():
            before = stand = after.get(key) or before_all.get(key, fresh)
            first: int | None = None
            for run in runs:
                try:
                    done = step(stand, run)
                except NeedsDetail:
                    raise NeedsDetail(key, number) from None
                refilled += done.refilled
                rejected += done.rejected
                if first is None and done.after.max_offset > done.first:
                    first = done.first
                stand = done.after
            if first is None:
                continue
            is_detailed = (number, key) in detailed
            rows = survey.rows.get(key, (0, 0))
            share[key] = Share(before, first, stand.max_offset, rows, is_detailed)
            extents[key] = (extents[key][0] if key in extents else first, stand.max_offset)
            after[key] = stand
        shares.append(share)
    return QueuePlan(tuple(shares), extents, after, refilled, rejected)


class EntrySpan(NamedTuple):
    """Entries ``[start, stop)`` of a range."""

    range_number: int
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class IndexFile:
    """Which entries go to an index file."""

    number: int
    """From 0, oldest first."""
    spans: tuple[EntrySpan, ...]
    has: int = 0
    """Entries that it has already."""
    before: tuple[int, int] | None = None
    """Range and number of the entry before the first one; None if these ranges have it not."""

    @property
    def count(self) -> int:
        """How many entries it gets."""
        return sum(one.stop - one.start for one in self.spans)


def plan_index(
    counts: Sequence[int], entry_max: int, *, number: int = 0, has: int = 0
) -> list[IndexFile]:
    """Decide which entries go to which file: each takes ``entry_max - 1``, entry 0 is never used.

    Args:
        counts: Entries of each range, in log order.
        entry_max: ``maxIndexNum``.
        number: Of the file to go on with.
        has: Entries that it has already.
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
    """Return spans cut at places too, where one lies within a span."""
    parts: list[tuple[int, int]] = []
    places = sorted(set(cuts))
    for start, stop in spans:
        inner = [place for place in places if start < place < stop]
        parts += itertools.pairwise([start, *inner, stop])
    return parts
