"""Compact a store: repack the closed part of its log without expired messages.

The kept records of the closed log files are packed right before the open log file, which is copied
unchanged. So the log begins later, as if its first files had expired, and its end does not move. Of
each queue a first run of messages is dropped and the last message is kept: minimum offsets grow,
maximum offsets do not change, consumer offsets stay valid.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from reput.errors import StoreUnavailable
from reput.format import kernels, message as record, sys_flag as flags
from reput.spark.jobs.compact.expired import Retention, TopicDropped, by_topic
from reput.spark.jobs.packing import Rows, move, pack, write_log_file
from reput.spark.jobs.running import Runner
from reput.store.files import paths
from reput.store.files.files import open_folder
from reput.store.log.commit_log_view import CommitLogView, LogBatch, LogFile
from reput.store.reader import StoreReader

Queue = tuple[str, int]
_ALL = -(1 << 63)
_TIMER_LOG = "timerlog"


@dataclass(frozen=True)
class CompactionPlan:
    """The records that are kept, and their new files."""

    closed: tuple[LogFile, ...]
    """Log files to repack."""
    open_file: LogFile | None
    """Log file to copy; None if the log ends with a closed one."""
    file_bytes: int
    first_kept: Mapping[Queue, int]
    """Queue -> first queue offset that is kept; queues that are not in it are kept whole."""
    new_files: tuple["NewFile", ...]
    kept_messages: int
    dropped: tuple[TopicDropped, ...]

    @property
    def freed_files(self) -> int:
        """Number of log files that are freed."""
        return len(self.closed) - len(self.new_files)


@dataclass(frozen=True)
class NewFile:
    """A log file packed from a run of the kept records."""

    start: int
    """Physical offset of the new log file."""
    first: int
    """Physical offset of its first record in the old log."""
    last: int
    """Physical offset of its last record in the old log."""
    used: int
    """Bytes of records."""


@dataclass(frozen=True)
class _ExpiryTask:
    """A log file to read."""

    store: str
    start: int
    stop: int
    retention: Retention | None
    """Retention; None to keep all messages."""


@dataclass(frozen=True)
class _QueueRemainder:
    """The messages of a queue in a log file."""

    first_young: int | None
    """Queue offset of the first message that has not expired."""
    last: int


def plan_store(runner: Runner, reader: StoreReader, retention: Retention) -> CompactionPlan:
    """Decide which records of a store are kept, and their new files.

    Raises:
        StoreUnavailable: The log is damaged, lacks files or has some of different sizes, or timers
            refer to its physical offsets.
        TaskFailed: A task failed.
    """
    closed, open_file = _log_files(reader)
    store, end = reader.location, reader.end_offset
    looks = [_ExpiryTask(store, file.start, file.nominal_end, retention) for file in closed]
    if open_file is not None:
        looks.append(_ExpiryTask(store, open_file.start, end, None))
    first_kept = _first_kept(runner("survey", _survey, looks))
    tasks = [(look, first_kept) for look in looks if look.retention is not None]
    kept, dropped = [np.empty((2, 0), np.int64)], []
    for data, gone in runner("find", _find, tasks):
        kept.append(np.frombuffer(data, np.int64).reshape(2, -1))
        dropped += gone
    offsets, sizes = np.concatenate(kept, axis=1)
    file_bytes = closed[0].nominal_size if closed else 0
    cuts = [*pack(sizes, file_bytes)] if len(sizes) else []
    base = (closed[-1].nominal_end if closed else 0) - len(cuts) * file_bytes
    new_files = tuple(
        NewFile(
            base + number * file_bytes,
            int(offsets[first]),
            int(offsets[stop - 1]),
            int(sizes[first:stop].sum()),
        )
        for number, (first, stop) in enumerate(cuts)
    )
    return CompactionPlan(
        tuple(closed), open_file, file_bytes, first_kept, new_files, len(sizes), by_topic(dropped)
    )


def write_store(
    runner: Runner, store: str, target: str, retention: Retention, plan: CompactionPlan
) -> None:
    """Write the log files of a plan. Raises ``TaskFailed``."""
    tasks = [
        _PackTask(store, target, retention, dict(plan.first_kept), new_file, plan.file_bytes)
        for new_file in plan.new_files
    ]
    runner("pack", _pack_file, tasks)
    if plan.open_file is not None:
        runner("copy", _copy_file, [(store, target, plan.open_file.start)])


# On the driver --------------------------------------------------------------------------------


def _log_files(reader: StoreReader) -> tuple[list[LogFile], LogFile | None]:
    """Return the closed log files, and the open one."""
    end, log = reader.end_offset, reader.log
    closed = [file for file in log.files if file.nominal_end <= end]
    open_file = next((file for file in log.files if file.start < end < file.nominal_end), None)
    gaps = [gap.file for gap in log.missing()]
    if gaps:
        raise StoreUnavailable(f"{reader.location} lacks log file {gaps[0]}: salvage it first")
    sizes = {file.nominal_size for file in closed}
    if len(sizes) > 1:
        raise StoreUnavailable(f"{reader.location} has log files of {len(sizes)} sizes")
    for entry in reader.folder.entries(_TIMER_LOG):
        if kernels.data_end(reader.folder.read(f"{_TIMER_LOG}/{entry.name}")):
            raise StoreUnavailable(
                f"{reader.location} has timers, which refer to physical offsets: start its broker "
                "until they have fired, or archive the store and compact the archive"
            )
    return closed, open_file


def _first_kept(surveys: list[dict[Queue, _QueueRemainder]]) -> dict[Queue, int]:
    """Return the first kept queue offset of each queue that loses messages."""
    firsts: dict[Queue, int] = {}
    lasts: defaultdict[Queue, int] = defaultdict(lambda: -1)
    for survey in surveys:
        for queue, seen in survey.items():
            lasts[queue] = max(lasts[queue], seen.last)
            if seen.first_young is not None:
                firsts[queue] = min(firsts.get(queue, seen.first_young), seen.first_young)
    return {queue: firsts.get(queue, last) for queue, last in lasts.items()}


# On the executors -----------------------------------------------------------------------------


class _RecordColumns:
    """The columns that decide which records of a batch are kept."""

    def __init__(self, batch: LogBatch, retention: Retention | None) -> None:
        columns = batch.columns()
        self.topic_ids, self.topics = columns.topic_ids()
        self.queue_ids = columns.numbers("queue_id").astype(np.int64)
        self.queue_offsets = columns.numbers("queue_offset")
        self.is_queued = (columns.numbers("sys_flag") & flags.TRANSACTION_PREPARED) == 0
        begins_ms = [retention.begin_ms(topic) if retention else None for topic in self.topics]
        begin_ms = np.array([_ALL if begin is None else begin for begin in begins_ms], np.int64)
        self.is_past: npt.NDArray[np.bool_] = np.zeros(columns.count, np.bool_)
        if columns.count:
            self.is_past = columns.numbers("store_timestamp") < begin_ms[self.topic_ids]

    def queues(self) -> Iterator[tuple[Queue, npt.NDArray[np.int64]]]:
        """Yield each queue with the rows of its records."""
        rows = np.flatnonzero(self.is_queued)
        codes = self.topic_ids[rows].astype(np.int64) << 32 | self.queue_ids[rows] & 0xFFFFFFFF
        order = np.argsort(codes, kind="stable")
        _, firsts = np.unique(codes[order], return_index=True)
        for its_rows in np.split(rows[order], firsts[1:]) if len(rows) else ():
            yield (
                (self.topics[self.topic_ids[its_rows[0]]], int(self.queue_ids[its_rows[0]])),
                its_rows,
            )

    def is_kept(self, first_kept: Mapping[Queue, int]) -> npt.NDArray[np.bool_]:
        """Return which records are kept."""
        is_kept = ~self.is_past
        for queue, rows in self.queues():
            if queue in first_kept:
                is_kept[rows] = self.queue_offsets[rows] >= first_kept[queue]
        return is_kept


def _survey(task: _ExpiryTask) -> dict[Queue, _QueueRemainder]:
    """Return the remainder of each queue in a log file."""
    remainders: dict[Queue, _QueueRemainder] = {}
    for batch in _batches(task.store, task.start, task.stop, task.retention is None):
        fields = _RecordColumns(batch, task.retention)
        for queue, rows in fields.queues():
            offsets = fields.queue_offsets[rows]
            young = offsets[~fields.is_past[rows]]
            firsts = [int(young.min())] if len(young) else []
            last = int(offsets.max())
            if (known := remainders.get(queue)) is not None:
                last = max(last, known.last)
                firsts += [] if known.first_young is None else [known.first_young]
            remainders[queue] = _QueueRemainder(min(firsts, default=None), last)
    return remainders


def _find(task: tuple[_ExpiryTask, dict[Queue, int]]) -> tuple[bytes, list[tuple[str, int, int]]]:
    """Return physical offsets and sizes of the kept records of a log file, and drops by topic."""
    file, first_kept = task
    kept, dropped = [np.empty((2, 0), np.int64)], []
    for batch in _batches(file.store, file.start, file.stop, is_end=False):
        fields = _RecordColumns(batch, file.retention)
        is_kept = fields.is_kept(first_kept)
        both = np.stack([batch.positions + batch.physical_offset, batch.sizes.astype(np.int64)])
        kept.append(both[:, is_kept])
        for number, topic in enumerate(fields.topics):
            gone = both[1, ~is_kept & (fields.topic_ids == number)]
            if len(gone):
                dropped.append((topic, len(gone), int(gone.sum())))
    return np.concatenate(kept, axis=1).tobytes(), dropped


@dataclass(frozen=True)
class _PackTask:
    store: str
    target: str
    retention: Retention
    first_kept: dict[Queue, int]
    new_file: NewFile
    file_bytes: int


def _pack_file(task: _PackTask) -> int:
    """Write a log file of moved records; return the number of records."""
    new = task.new_file
    data = np.zeros(task.file_bytes, np.uint8)
    used, sizes = 0, [np.empty(0, np.int64)]
    for batch in _batches(task.store, new.first, new.last + 1, is_end=False):
        is_kept = _RecordColumns(batch, task.retention).is_kept(task.first_kept)
        starts, lengths = batch.positions[is_kept], batch.sizes[is_kept].astype(np.int64)
        sizes.append(lengths)
        source = np.frombuffer(batch.buffer, np.uint8)
        for start, length in _runs(starts, lengths):
            data[used : used + length] = source[start : start + length]
            used += length
    assert used == new.used
    all_sizes = np.concatenate(sizes)
    move(data, np.cumsum(all_sizes) - all_sizes, all_sizes, new.start)
    blank = record.pack_blank(task.file_bytes - used)
    data[used : used + len(blank)] = np.frombuffer(blank, np.uint8)
    used += len(blank)
    write_log_file(task.target, paths.offset_name(new.start), data.data[:used], task.file_bytes)
    return len(all_sizes)


def _runs(starts: Rows, lengths: Rows) -> Iterator[tuple[int, int]]:
    """Yield (position, length) of records; adjacent records are joined."""
    if not len(starts):
        return
    is_first = np.ones(len(starts), np.bool_)
    is_first[1:] = starts[1:] != starts[:-1] + lengths[:-1]
    firsts = np.flatnonzero(is_first)
    yield from zip(starts[firsts].tolist(), np.add.reduceat(lengths, firsts).tolist(), strict=True)


def _copy_file(task: tuple[str, str, int]) -> int:
    """Copy a log file unchanged; return the number of bytes before the zeros at its end."""
    store, target, start = task
    folder = open_folder(store)
    log = CommitLogView(folder)
    file = log.file_at(start)
    length = log.data_end_of(file) - file.start
    data = memoryview(folder.read(f"{paths.COMMIT_LOG}/{file.name}", 0, length))
    write_log_file(target, file.name, data, file.nominal_size)
    return length


def _batches(store: str, start: int, stop: int, is_end: bool) -> Iterator[LogBatch]:
    """Yield the records of a range of the log.

    Raises:
        StoreUnavailable: The range is damaged.
    """
    for batch in CommitLogView(open_folder(store)).walk(start, stop, is_end=is_end):
        for damage in batch.damage:
            place = damage.physical_offset
            raise StoreUnavailable(
                f"{store} is damaged at physical offset {place} ({damage.reason}): salvage it first"
            )
        yield batch
