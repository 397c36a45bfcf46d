"""Scan a damaged log: its holes, and the queue offsets that its records and units have.

A task scans a range of the log, or lists the units of some queues.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from reput.format import cq_unit, kernels, sys_flag as flags
from reput.spark import plan
from reput.spark.jobs import queue_runs
from reput.spark.jobs.hole_filling import Hole
from reput.spark.jobs.queue_runs import Run
from reput.spark.jobs.stopped_store import StoppedStore
from reput.store.log.commit_log_view import Damage, LogBatch
from reput.store.log.torn_records import without_torn
from reput.store.reader import StoreReader

QueueKey = tuple[str, int]
"""Topic and queue id."""
QueueRun = tuple[str, int, int, int]
"""Topic, queue id, and queue offsets ``[start, stop)``."""


@dataclass(frozen=True, slots=True)
class ScanTask:
    """A range of the log to scan, or queues to list."""

    source: StoppedStore
    part: plan.LogRange | tuple[QueueKey, ...]


@dataclass(frozen=True, slots=True)
class Scanned:
    """The result of a task; runs are (topic, queue id, start, stop)."""

    holes: tuple[Hole, ...] = ()
    runs: tuple[QueueRun, ...] = ()
    """Queue offsets that records have."""
    expected: tuple[QueueRun, ...] = ()
    """Queue offsets that have a unit."""
    record_count: int = 0
    record_bytes: int = 0
    end: int = 0
    """Physical offset after the last record."""
    last_ms: int = 0
    """Store time of the last record."""
    expired: tuple[QueueKey, ...] = ()
    """Queues whose messages had all expired before the log was damaged."""


def scan(task: ScanTask) -> Scanned:
    """Run a task."""
    reader = task.source.reader()
    if isinstance(task.part, plan.LogRange):
        return _scan_log(reader, task.part)
    return _list_queues(reader, task.part)


def _scan_log(reader: StoreReader, part: plan.LogRange) -> Scanned:
    """Scan a range of the log. Each damage is in full in exactly one range."""
    log = reader.log
    start = log.part_start(part.start, part.stop)
    holes: list[Hole] = []
    by_queue: dict[QueueKey, list[npt.NDArray[np.int64]]] = defaultdict(list)
    count = size = end = last_ms = 0
    for window in log.walk(start, part.stop, is_end=part.is_end):
        batch = without_torn(log, window)
        columns = batch.columns()
        times = columns.numbers("store_timestamp")
        holes += [_timed(damage, batch, times, last_ms) for damage in batch.damage]
        if not len(batch.positions):
            continue
        last_ms = int(times[-1])
        count += len(batch.sizes)
        size += int(batch.sizes.sum(dtype=np.int64))
        end = batch.physical_offset + int(batch.positions[-1]) + int(batch.sizes[-1])
        for key, offsets in _queue_offsets(columns):
            by_queue[key].append(offsets)
    runs = tuple(
        (*key, *run)
        for key, parts in sorted(by_queue.items())
        for run in queue_runs.of(np.concatenate(parts))
    )
    return Scanned(tuple(holes), runs, (), count, size, end, last_ms)


def _queue_offsets(columns: kernels.Columns) -> Iterator[tuple[QueueKey, npt.NDArray[np.int64]]]:
    """Yield each queue of some records with their queue offsets."""
    sys_flags = columns.numbers("sys_flag")
    # Prepared and rolled-back records have the lower bit of the two, as in ``flags.is_queued``. A
    # batch of 5.x is one record for many queue offsets; batch queues are not counted.
    is_queued = (sys_flags & (flags.TRANSACTION_PREPARED | flags.INNER_BATCH)) == 0
    columns = columns.take(is_queued)
    ids, topics = columns.topic_ids()
    queues = columns.numbers("queue_id").astype(np.int64)
    offsets = columns.numbers("queue_offset").astype(np.int64)
    codes = ids.astype(np.int64) << 32 | queues & 0xFFFFFFFF
    order = np.argsort(codes, kind="stable")
    codes, offsets = codes[order], offsets[order]
    for rows in np.split(np.arange(len(codes)), np.flatnonzero(np.diff(codes)) + 1):
        if len(rows):
            code = int(codes[rows[0]])
            yield (topics[code >> 32], code & 0xFFFFFFFF), offsets[rows]


def _timed(run: Damage, batch: LogBatch, times: npt.NDArray[Any], last_ms: int) -> Hole:
    """Return damage as a hole with the store time of a record beside it."""
    starts = batch.positions + batch.physical_offset
    place = int(np.searchsorted(starts, run.physical_offset))
    near_ms = int(times[place - 1]) if place else last_ms
    if not near_ms and place < len(times):
        near_ms = int(times[place])
    return replace(hole(run), store_timestamp=near_ms)


def hole(run: Damage) -> Hole:
    """Return damage as a hole."""
    return Hole(run.physical_offset, run.length, run.reason, run.file)


def _list_queues(reader: StoreReader, keys: Iterable[QueueKey]) -> Scanned:
    """Return the queue offsets that have units of unexpired messages."""
    low = reader.log.min_offset
    runs: list[QueueRun] = []
    expired: list[QueueKey] = []
    for topic, queue_id in keys:
        queue = reader.queue(topic, queue_id)
        runs_there: list[Run] = []
        for first, units in queue.blocks(queue.min_offset, queue.max_offset):
            targets = units["physical_offset"]
            # A unit that points after the log's end is of a message, too: the log was cut.
            is_alive = (units["size"] > 0) & (targets >= low)
            is_alive &= units["size"] != cq_unit.PRE_BLANK_SIZE
            runs_there += queue_runs.of(first + np.flatnonzero(is_alive))
        runs += [(topic, queue_id, *run) for run in queue_runs.union(runs_there)[0]]
        last = queue.last_unit
        if not runs_there and last is not None and last.physical_offset + last.size <= low:
            expired.append((topic, queue_id))
    return Scanned(expected=tuple(runs), expired=tuple(expired))


# On the driver --------------------------------------------------------------------------------


def with_times(scanned: Sequence[Scanned]) -> list[Hole]:
    """Return the holes of all ranges; missing store times are those of an earlier range."""
    holes: list[Hole] = []
    last_ms = 0
    for task in scanned:
        holes += [
            replace(hole, store_timestamp=hole.store_timestamp or last_ms) for hole in task.holes
        ]
        last_ms = task.last_ms or last_ms
    return holes


def by_queue(runs: Iterable[QueueRun]) -> dict[QueueKey, list[Run]]:
    """Return the runs of each queue."""
    grouped: dict[QueueKey, list[Run]] = defaultdict(list)
    for topic, queue_id, start, stop in runs:
        grouped[topic, queue_id].append((start, stop))
    return dict(grouped)
