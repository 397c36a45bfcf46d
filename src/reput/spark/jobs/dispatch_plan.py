"""What a dispatch on many machines decides: who writes which units, and which index entries. Pure.

    survey of each range:   runs of queue offsets, number of index entries
    units:  runs, in log order   -->  where each queue stands in front of a range  (``Share``)
    index:  prefix sums          -->  which entries of which ranges make a file    (``IndexFile``)

A queue is what a single dispatcher makes of the log, record by record: a record that carries the
queue on (its queue offset is the queue's next) gets a unit; one that the queue has already is left;
one beyond the next one gets a unit, and what is missing before it is filled with that unit too, for
Java reads every unit as a message. So what matters of all records before a range is where the queue
stands: the queue offset of the next message, and where the last one ends in the log.
"""

import itertools
from collections.abc import Iterable, Mapping, Sequence
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


class Run(NamedTuple):
    """Records of a queue, one after another in the log, with consecutive queue offsets."""

    start: int
    """Queue offset of the first."""
    stop: int
    """Behind that of the last."""
    physical_offset: int
    """Where the first record starts in the log."""
    end: int
    """Where the last record ends."""


class Stand(NamedTuple):
    """How far a queue is."""

    max_offset: int = 0
    """Queue offset that the next unit has."""
    end: int = 0
    """Where the record of the last unit ends in the log; 0 without units."""
    is_fresh: bool = True
    """It has had no unit yet, and begins wherever its first record says."""


class NeedsDetail(ReputError):
    """A run is too much at once: its records must be looked at one by one."""

    def __init__(self, key: QueueKey, number: int = -1) -> None:
        self.key = key
        self.number = number
        """Of the range."""
        super().__init__(f"queue {key[0]}/{key[1]} jumps in range {number}")


class Step(NamedTuple):
    """What a run does to a queue."""

    after: Stand
    first: int
    """Queue offset of the first unit that is put; ``after.max_offset`` if none is."""
    refilled: int
    """Units before the run's own that stand for messages the log has lost."""
    rejected: int
    """Records whose queue offset cannot be right, and that are in no queue."""


def is_possible(stand: Stand, queue_offset: int, physical_offset: int) -> bool:
    """Whether so many messages as a record says fit between its queue's last one and itself.

    No checksum covers a queue offset; what a damaged one says must not fill the disk.
    """
    if stand.is_fresh:
        return queue_offset <= QUEUE_OFFSET_MAX
    room = physical_offset - stand.end
    return queue_offset <= stand.max_offset + room // record.FIXED_BYTES_V1


def step(stand: Stand, run: Run) -> Step:
    """Return what a run of records does to a queue.

    Raises:
        NeedsDetail: The first record cannot be right; whether later ones are is for them to say.
    """
    if run.start <= stand.max_offset:
        if run.stop <= stand.max_offset:
            return Step(stand, stand.max_offset, 0, 0)
        return Step(Stand(run.stop, run.end, is_fresh=False), stand.max_offset, 0, 0)
    if is_possible(stand, run.start, run.physical_offset):
        first = run.start if stand.is_fresh else stand.max_offset
        return Step(Stand(run.stop, run.end, is_fresh=False), first, run.start - first, 0)
    if run.stop - run.start > 1 and not stand.is_fresh:
        raise NeedsDetail(("", 0))
    return Step(stand, stand.max_offset, 0, run.stop - run.start)


def runs_of(
    queue_offsets: npt.NDArray[np.int64],
    physical_offsets: npt.NDArray[np.int64],
    sizes: npt.NDArray[np.int64],
    *,
    is_detailed: bool = False,
) -> list[Run]:
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
    return [Run(*one) for one in zip(*(column.tolist() for column in columns), strict=True)]


def append_runs(runs: list[Run], more: Iterable[Run]) -> None:
    """Add runs that follow in the log; one that carries the last one on makes it longer."""
    for run in more:
        if runs and runs[-1].stop == run.start:
            last = runs[-1]
            runs[-1] = Run(last.start, run.stop, last.physical_offset, run.end)
        else:
            runs.append(run)


@dataclass(slots=True)
class Survey:
    """What a task found out about a range of the log."""

    records: int = 0
    runs: dict[QueueKey, list[Run]] = field(default_factory=dict)
    """Of the wanted queues, in log order."""
    entries: int = 0
    """Index entries of its records."""
    last_indexed: tuple[int, int] | None = None
    """Physical offset and store time (ms) of the last record that has entries."""
    unqueued: dict[str, int] = field(default_factory=dict)
    """Why records are in no queue that should be, and how many."""
    holes: list[tuple[int, int, str]] = field(default_factory=list)
    """Physical offset, length and reason of what is no record."""


@dataclass(frozen=True, slots=True)
class Share:
    """The units of a queue that a range's task writes: ``[first, stop)``."""

    before: Stand
    first: int
    stop: int

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
    """Queue offset of the first unit and behind the last one, of each queue that has units."""
    refilled: int
    rejected: int

    @property
    def units(self) -> int:
        """How many units there are."""
        return sum(stop - first for first, stop in self.extents.values())


def plan_queues(surveys: Sequence[Mapping[QueueKey, Sequence[Run]]]) -> QueuePlan:
    """Decide which units each range's task writes.

    Args:
        surveys: The runs of each range, in log order.

    Raises:
        NeedsDetail: A range must be surveyed again, with each record of a queue a run of its own.
    """
    stands: dict[QueueKey, Stand] = {}
    extents: dict[QueueKey, tuple[int, int]] = {}
    shares: list[dict[QueueKey, Share]] = []
    refilled = rejected = 0
    for number, survey in enumerate(surveys):
        share: dict[QueueKey, Share] = {}
        for key, runs in survey.items():
            before = stand = stands.get(key, Stand())
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
            share[key] = Share(before, first, stand.max_offset)
            extents[key] = (extents[key][0] if key in extents else first, stand.max_offset)
            stands[key] = stand
        shares.append(share)
    return QueuePlan(tuple(shares), extents, refilled, rejected)


class Seed(NamedTuple):
    """The last index entry before a place in the log."""

    physical_offset: int
    store_timestamp: int


@dataclass(frozen=True, slots=True)
class IndexFile:
    """Which entries make an index file."""

    number: int
    """From 0, oldest first."""
    first_range: int
    """The range where they begin."""
    skipped: int
    """Entries of that range that are in the file before."""
    count: int
    seed: Seed | None
    """The last entry before that range; None if there is none."""


def plan_index(
    counts: Sequence[int], lasts: Sequence[tuple[int, int] | None], entry_max: int
) -> list[IndexFile]:
    """Decide which entries make which file: each takes ``entry_max - 1``, entry 0 is never used.

    Args:
        counts: Entries of each range, in log order.
        lasts: Physical offset and store time of the last record of each range that has entries.
        entry_max: ``maxIndexNum``.
    """
    room = entry_max - 1
    ends = list(itertools.accumulate(counts))
    files = []
    number_of_range = 0
    seed: Seed | None = None
    for number, start in enumerate(range(0, ends[-1] if ends else 0, room)):
        while ends[number_of_range] <= start:
            last = lasts[number_of_range]
            seed = Seed(*last) if last is not None else seed
            number_of_range += 1
        begin = ends[number_of_range] - counts[number_of_range]
        count = min(room, ends[-1] - start)
        files.append(IndexFile(number, number_of_range, start - begin, count, seed))
    return files


def cut_spans(spans: Iterable[tuple[int, int]], cuts: Iterable[int]) -> list[tuple[int, int]]:
    """Return spans cut at places too, where one lies within a span."""
    parts: list[tuple[int, int]] = []
    places = sorted(set(cuts))
    for start, stop in spans:
        inner = [place for place in places if start < place < stop]
        parts += itertools.pairwise([start, *inner, stop])
    return parts
