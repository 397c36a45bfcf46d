"""Salvage: a damaged store in, a clean one out, with every record that is whole.

    scan     log ranges, spread: holes, and which queue offsets the records have
             queues, spread: which queue offsets should be there
    copy     log ranges, spread: records to where they stood, and fillers into the holes
    derive   queues and index, from the new log by the store's own recovery
    publish  the draft folder gets the target's name

Records keep their physical and queue offsets, so ids, transactions, consumer offsets and what a
broker keeps beside the log stay right; why, and what takes the place of a hole:
docs/decisions/0012-salvage-keeps-every-offset.md. The source is only read. Whoever is killed leaves
a draft, which the next run throws away; the same source gives the same bytes.
"""

import contextlib
import dataclasses
import functools
import os
import shutil
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
from pyspark.sql import SparkSession

from reput.clock import ManualClock
from reput.errors import CorruptRecord, InvalidOption, StoreUnavailable
from reput.format import cq_unit, index_entry, kernels, message as record, names, sys_flag as flags
from reput.spark import plan
from reput.spark.jobs import holes as hole_filling, queue_runs
from reput.spark.jobs.holes import Fill, Hole
from reput.spark.jobs.queue_runs import Run
from reput.spark.jobs.running import Progress, SparkRunner
from reput.store import config_tables, paths
from reput.store.commit_log_view import Damage, LogBatch
from reput.store.config import END_OF_FILE_BYTES, StoreConfig
from reput.store.disk import Disk
from reput.store.files import Folder
from reput.store.message_store import MessageStore
from reput.store.reader import Condition, StoreReader
from reput.store.table_files import ConsumerOffsetTable, DelayOffsetTable
from reput.store.torn_records import find_torn_records

QueueKey = tuple[str, int]
"""Topic and queue id."""
_QueueRun = tuple[str, int, int, int]

DRAFT_SUFFIX = ".salvage-draft"
PARTITION_BYTES = 128 * 1024 * 1024
_WINDOW_BYTES = 8 * 1024 * 1024
_DERIVED = frozenset(
    {
        paths.COMMIT_LOG,
        paths.CONSUME_QUEUE,
        paths.CONSUME_QUEUE_EXT,
        paths.INDEX,
        paths.CHECKPOINT,
        paths.ABORT,
        paths.LOCK,
        paths.QUEUE_SUMMARY,
        paths.CONFIG,
    }
)
"""What the new store gets of its own; all else is taken along as it is."""
_TABLES = (
    paths.TOPICS,
    paths.CONSUMER_OFFSETS,
    paths.SUBSCRIPTION_GROUPS,
    paths.DELAY_OFFSETS,
    paths.CONSUMER_FILTERS,
)
_SMALLEST_RECORD_BYTES = record.FIXED_BYTES_V1 + 1

T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class SalvagedQueue:
    """What became of one queue."""

    topic: str
    queue_id: int
    message_count: int
    """Messages that were recovered, those that are there twice counted once."""
    start: int
    """First queue offset that was recovered; 0 if none was."""
    stop: int
    """Behind the last that was recovered."""
    lost: tuple[Run, ...]
    """Queue offsets ``[start, stop)`` whose messages are gone: between recovered ones, or named by
    the queue's own files."""
    duplicate_count: int
    """Records with a queue offset that another one has: the first of them is in the queue."""

    @property
    def lost_count(self) -> int:
        """How many messages are lost."""
        return queue_runs.count(self.lost)


@dataclass(frozen=True, slots=True)
class MovedOffset:
    """A position that pointed behind the end its queue has now."""

    name: str
    """Consumer group, or ``delay level N``."""
    topic: str
    queue_id: int
    before: int
    after: int


@dataclass(frozen=True)
class Salvaged:
    """What salvage found and did; ``as_json`` gives plain values."""

    source: str
    target: str
    start_offset: int
    """Physical offset where both logs begin."""
    end_offset: int
    """Where the new log ends."""
    record_count: int
    record_bytes: int
    holes: tuple[Hole, ...]
    """Everything in the source's log that is no whole record, also behind its end."""
    queues: tuple[SalvagedQueue, ...]
    """Queues that have or had messages, by topic and number."""
    tables: tuple[tuple[str, str], ...]
    """Path and ``copied``, ``from backup``, ``lost`` or ``absent`` of each table."""
    moved_offsets: tuple[MovedOffset, ...]
    notes: tuple[str, ...]
    """What a person should know."""

    @property
    def hole_bytes(self) -> int:
        """Bytes that are no records."""
        return sum(hole.length for hole in self.holes)

    @property
    def lost_count(self) -> int:
        """Messages that are known to be lost; a hole may hold others that no queue knew."""
        return sum(queue.lost_count for queue in self.queues)

    @property
    def duplicate_count(self) -> int:
        """Records that are in no queue, as another one has their queue offset."""
        return sum(queue.duplicate_count for queue in self.queues)

    def as_json(self) -> dict[str, Any]:
        """Return plain lists and dictionaries."""
        sums = {
            name: getattr(self, name) for name in ("hole_bytes", "lost_count", "duplicate_count")
        }
        return {**dataclasses.asdict(self), **sums}


@dataclass(frozen=True, slots=True)
class _ScanTask:
    """A part of the log to scan, or queues to list."""

    source: str
    part: plan.LogRange | tuple[QueueKey, ...]
    torn: tuple[int, ...]
    """Where records start that are framed right and not whole."""


@dataclass(frozen=True, slots=True)
class _Scanned:
    """What a task found; runs are (topic, queue id, start, stop)."""

    holes: tuple[Hole, ...] = ()
    runs: tuple[_QueueRun, ...] = ()
    """Queue offsets that records have."""
    expected: tuple[_QueueRun, ...] = ()
    """Queue offsets that queues have units for."""
    record_count: int = 0
    record_bytes: int = 0
    end: int = 0
    """Physical offset behind the last record."""
    last_ms: int = 0
    """Store time of the last record."""
    expired: tuple[QueueKey, ...] = ()
    """Queues all of whose messages had left the log before it was damaged."""


@dataclass(frozen=True, slots=True)
class _Piece:
    """Bytes ``[start, stop)`` of the log to be copied; they lie in one file."""

    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class _CopyTask:
    """Pieces and fills of the new log."""

    source: str
    draft: str
    first_start: int
    file_bytes: int
    has_crc: bool
    """Fillers carry a checksum over the whole record: a broker may insist on it."""
    work: tuple[_Piece | Fill, ...]


def salvage(
    spark: SparkSession,
    source: str,
    target: str,
    *,
    config: StoreConfig | None = None,
    include_stale: bool = False,
    partition_bytes: int = PARTITION_BYTES,
    progress: Progress | None = None,
) -> Salvaged:
    """Write a clean store with every whole record of a damaged one.

    Args:
        spark: The session to run the tasks in.
        source: The damaged store; no broker may run on it.
        target: Where the new store goes: a local folder that every executor reaches, not there yet
            or empty.
        config: Settings of the store's broker: file sizes, delay levels, extension. Without them
            sizes are taken from the files, and the rest has RocketMQ's defaults.
        include_stale: Also take records behind the end of the log, which an earlier recovery cut
            off. Those whose queue offset has been given to others since are in no queue.
        partition_bytes: Bytes of the log a task takes.
        progress: Told of the tasks that are done, and of steps of the driver.

    Raises:
        StoreUnavailable: The source is no store or in use; its files have sizes that do not fit; or
            the target holds something.
        InvalidOption: ``config`` is needed, or does not fit the files.
        WriteFailed: The target cannot be written.
    """
    runner = SparkRunner(spark, "salvage", progress)
    return _Salvage(runner, source, Path(target), config, include_stale, partition_bytes).run()


class _Salvage:
    """One run, on the driver."""

    def __init__(
        self,
        runner: SparkRunner,
        source: str,
        target: Path,
        config: StoreConfig | None,
        include_stale: bool,
        partition_bytes: int,
    ) -> None:
        self._runner = runner
        self._source = source
        self._target = target
        self._draft = target.with_name(target.name + DRAFT_SUFFIX)
        self._partition_bytes = max(partition_bytes, 1)
        self._include_stale = include_stale
        self._reader = StoreReader.open(source)
        self._config = _sized(self._reader, config)
        self._file_bytes = self._config.mapped_file_size_commit_log
        self._notes: list[str] = []

    def run(self) -> Salvaged:
        if self._target.exists() and (not self._target.is_dir() or any(self._target.iterdir())):
            raise StoreUnavailable(f"{self._target} is there already; salvage writes a new folder")
        reader, log = self._reader, self._reader.log
        stop = self._stop()
        torn = self._torn_records(stop)
        scanned = self._runner("scan", _scan, self._scan_tasks(stop, torn))
        holes = hole_filling.join([*_with_times(scanned), *torn])
        end = max([log.min_offset, *(task.end for task in scanned)])
        # What lies behind the end is told, but nothing takes its place.
        inner = [hole for hole in holes if hole.end <= end]
        self._make_draft(end)
        self._runner("copy", _copy, self._copy_tasks(inner, end))
        self._runner.tell("tables", 0, 1)
        tables = self._copy_rest()
        have = _by_queue(one for task in scanned for one in task.runs)
        self._keep_expired([key for task in scanned for key in task.expired if key not in have])
        self._runner.tell("derive", 0, 1)
        newest_ms = max((task.last_ms for task in scanned), default=0)
        moved = self._derive(newest_ms, end)
        self._fill_fronts()
        self._runner.tell("publish", 0, 1)
        self._publish()
        self._runner.tell("publish", 1, 1)
        return Salvaged(
            source=self._source,
            target=str(self._target),
            start_offset=log.min_offset,
            end_offset=end,
            record_count=sum(task.record_count for task in scanned),
            record_bytes=sum(task.record_bytes for task in scanned),
            holes=tuple(hole_filling.join([*holes, *self._behind_the_end(reader, stop)])),
            queues=self._queues_of(scanned, have),
            tables=tuple(tables),
            moved_offsets=tuple(moved),
            notes=tuple(self._notes),
        )

    # Scan -----------------------------------------------------------------------------------

    def _stop(self) -> int:
        """Return up to where the log is searched for records."""
        tail = self._reader.tail
        if self._include_stale and tail.stale is not None:
            return tail.stale.end
        return max(tail.end_offset, self._reader.log.min_offset)

    def _scan_tasks(self, stop: int, torn: Sequence[Hole]) -> list[_ScanTask]:
        reader, start = self._reader, self._reader.log.min_offset
        span = [(start, stop)] if start < stop else []
        parts: list[plan.LogRange | tuple[QueueKey, ...]] = [
            *plan.split_log(0, span, stop, self._partition_bytes)
        ]
        keys = [
            (topic, queue_id)
            for topic, ids in reader.queue_ids.items()
            if not topic.startswith(names.LMQ_PREFIX)
            for queue_id in ids
        ]
        share = max(-(-len(keys) // 32), 1)
        parts += [tuple(keys[i : i + share]) for i in range(0, len(keys), share)]
        starts = tuple(hole.physical_offset for hole in torn)
        return [_ScanTask(self._source, part, starts) for part in parts]

    def _torn_records(self, stop: int) -> list[Hole]:
        """Return records of which a crash left a part, though what follows them is there.

        Only those of the last two files: older ones had long been written.
        """
        log = self._reader.log
        if self._reader.state.condition is not Condition.CRASHED:
            return []
        files = [file for file in log.files if file.start < stop][-2:]
        found: list[Damage] = []
        if files:
            found = find_torn_records(log, log.part_start(files[0].start, stop), stop)
        return [_hole(one) for one in found]

    def _behind_the_end(self, reader: StoreReader, stop: int) -> list[Hole]:
        tail = reader.tail
        told = []
        if tail.torn is not None:
            told.append(_hole(tail.torn))
        if tail.stale is not None and stop <= tail.stale.physical_offset:
            reason = "an earlier recovery cut the log here; readable records may follow"
            told.append(replace(_hole(tail.stale), reason=reason))
            self._notes.append(
                f"{tail.stale.length} bytes behind the end of the log at "
                f"{tail.stale.physical_offset} may hold records; include_stale takes them too"
            )
        return told

    def _queues_of(
        self, scanned: Sequence[_Scanned], have: dict[QueueKey, list[Run]]
    ) -> tuple[SalvagedQueue, ...]:
        expected = _by_queue(one for task in scanned for one in task.expected)
        found = []
        for key in sorted({*have, *expected}):
            runs, twice = queue_runs.union(have.get(key, []))
            wanted, _ = queue_runs.union([*expected.get(key, []), *queue_runs.gaps(runs)])
            lost = queue_runs.without(wanted, runs)
            found.append(
                SalvagedQueue(
                    topic=key[0],
                    queue_id=key[1],
                    message_count=queue_runs.count(runs),
                    start=runs[0][0] if runs else 0,
                    stop=runs[-1][1] if runs else 0,
                    lost=tuple(lost),
                    duplicate_count=twice,
                )
            )
        return tuple(found)

    # Copy -----------------------------------------------------------------------------------

    def _make_draft(self, end: int) -> None:
        """Make the new log's files, empty and as long as they should be."""
        if self._draft.exists():
            shutil.rmtree(self._draft)  # of a run that was killed
        folder = self._draft / paths.COMMIT_LOG
        folder.mkdir(parents=True)
        first = self._reader.log.min_offset
        stop = max(end, first + bool(self._reader.log.files))  # where it begins is kept, too
        for start in range(first, stop, self._file_bytes):
            with (folder / paths.offset_name(start)).open("wb") as file:
                file.truncate(self._file_bytes)

    def _copy_tasks(self, holes: Sequence[Hole], end: int) -> list[_CopyTask]:
        first = self._reader.log.min_offset
        spans = plan.without_spans(
            [(first, end)] if first < end else [],
            [(hole.physical_offset, hole.end) for hole in holes],
        )
        work: list[_Piece | Fill] = []
        for start, stop in spans:
            # No piece reaches over the end of a file, nor is it more than a task's share.
            at = start
            while at < stop:
                file_end = at + self._file_bytes - (at - first) % self._file_bytes
                upto = min(stop, file_end, at + self._partition_bytes)
                work.append(_Piece(at, upto))
                at = upto
        for hole in holes:
            work += hole_filling.in_files(hole, first, self._file_bytes)
        work.sort(key=_start_of)
        tasks: list[_CopyTask] = []
        share: list[_Piece | Fill] = []
        share_bytes = 0
        for one in work:
            size = one.stop - one.start if isinstance(one, _Piece) else one.length
            if share and share_bytes + size > self._partition_bytes:
                tasks.append(self._copy_task(share))
                share, share_bytes = [], 0
            share.append(one)
            share_bytes += size
        if share:
            tasks.append(self._copy_task(share))
        return tasks

    def _copy_task(self, work: Sequence[_Piece | Fill]) -> _CopyTask:
        first = self._reader.log.min_offset
        has_crc = self._config.enabled_append_prop_crc
        return _CopyTask(
            self._source, str(self._draft), first, self._file_bytes, has_crc, tuple(work)
        )

    # Everything else ------------------------------------------------------------------------

    def _copy_rest(self) -> list[tuple[str, str]]:
        """Take along what is not derived; tables that cannot be read are taken from their backup.

        Returns:
            Path and fate of each table.
        """
        folder = self._reader.folder
        for entry in folder.entries(""):
            if entry.name not in _DERIVED:
                self._copy_tree(folder, entry.name, is_folder=entry.is_folder)
        for entry in folder.entries(paths.CONFIG):
            path = f"{paths.CONFIG}/{entry.name}"
            if path.removesuffix(paths.BACKUP_SUFFIX) not in _TABLES:
                self._copy_tree(folder, path, is_folder=entry.is_folder)
        if folder.entries(paths.BATCH_CONSUME_QUEUE):
            self._notes.append(
                f"{paths.BATCH_CONSUME_QUEUE} was copied as it is: units that pointed into a hole "
                f"point at records of topic {hole_filling.TOPIC} now"
            )
        return [(path, self._copy_table(folder, path)) for path in _TABLES]

    def _copy_tree(self, folder: Folder, path: str, *, is_folder: bool) -> None:
        if not is_folder:
            _write_whole(self._draft / path, bytes(folder.read(path)))
            return
        for entry in folder.entries(path):
            self._copy_tree(folder, f"{path}/{entry.name}", is_folder=entry.is_folder)

    def _copy_table(self, folder: Folder, path: str) -> str:
        try:
            found = config_tables.find(folder, path)
        except CorruptRecord as error:
            self._notes.append(f"{path} is lost: {error.reason}")
            return "lost"
        if found is None:
            return "absent"
        _, readable = found
        _write_whole(self._draft / path, bytes(folder.read(readable)))
        return "copied" if readable == path else "from backup"

    def _keep_expired(self, keys: Sequence[QueueKey]) -> None:
        """Keep queues without messages that go on at an offset above 0: consumers know it."""
        for topic, queue_id in keys:
            self._copy_tree(
                self._reader.folder, paths.queue_folder(topic, queue_id), is_folder=True
            )

    def _derive(self, newest_ms: int, end: int) -> list[MovedOffset]:
        """Make queues and index of the new log, and let offsets end where queues do.

        Raises:
            CorruptRecord: The new log is not what it should be, which is a bug.
        """
        # A clock that stands still: index files are named by it, and runs shall not differ.
        clock = ManualClock(newest_ms)
        store = MessageStore.open(str(self._draft), self._config, clock=clock)
        try:
            report = store.recovery
            if report.holes or report.torn or report.end_offset != end:
                raise CorruptRecord(
                    f"the new log has {len(report.holes)} holes and ends at {report.end_offset}, "
                    f"not {end}",
                    physical_offset=report.end_offset,
                )
            return self._move_offsets(store, newest_ms)
        finally:
            store.close()

    def _fill_fronts(self) -> None:
        """Let the places before a queue's first message stand for it, where Java needs that.

        A queue that begins above 0 begins with blank units, which point at offset 0. Java takes
        those for expired only if the log begins above 0, and else skips what it holds of the first
        log file. As in the middle of queues, lost messages' units point at the next message.
        """
        Path(self._draft, paths.QUEUE_SUMMARY).unlink(missing_ok=True)  # names times of files
        if self._reader.log.min_offset:
            return
        for queue in StoreReader.open(str(self._draft)).queues():
            first = queue.min_offset
            files = [file for file in queue.files if file.start <= first * cq_unit.SIZE]
            if not files or first >= queue.max_offset:
                continue
            name = f"{paths.queue_folder(queue.topic, queue.queue_id)}/{files[-1].name}"
            count = first - files[-1].start // cq_unit.SIZE
            if count > 0:
                with (self._draft / name).open("r+b") as file:
                    file.write(cq_unit.pack(queue.unit(first)) * count)

    def _move_offsets(self, store: MessageStore, now_ms: int) -> list[MovedOffset]:
        """Take back offsets behind the end of their queue: what comes next would be skipped."""
        disk, moved = Disk(), []
        consumers = ConsumerOffsetTable.load(str(self._draft), disk)
        for one in list(consumers.all()):
            queue = store.queues.find(one.topic, one.queue_id)
            end = queue.max_offset if queue is not None else 0
            is_batch = one.topic in self._reader.batch_queue_ids
            if one.consumer_offset > end and not is_batch:
                consumers.put(one.topic, one.group, one.queue_id, end)
                moved.append(
                    MovedOffset(one.group, one.topic, one.queue_id, one.consumer_offset, end)
                )
        delays = DelayOffsetTable.load(str(self._draft), disk)
        for level, offset in sorted(delays.all().items()):
            queue = store.queues.find(names.SCHEDULE_TOPIC, level - 1)
            end = queue.max_offset if queue is not None else 0
            if offset > end:
                delays.put(level, end)
                name = f"delay level {level}"
                moved.append(MovedOffset(name, names.SCHEDULE_TOPIC, level - 1, offset, end))
        for table in (consumers, delays):
            if moved and table.is_dirty:
                table.save(now_ms)
        return moved

    def _publish(self) -> None:
        disk = Disk()
        disk.sync_filesystem(str(self._draft))
        if self._target.exists():
            self._target.rmdir()
        disk.rename(str(self._draft), str(self._target))
        disk.sync_folder(str(self._target.parent))


# What executors do ----------------------------------------------------------------------------


def _scan(task: _ScanTask) -> _Scanned:
    reader = _opened(task.source)
    if isinstance(task.part, plan.LogRange):
        return _scan_log(reader, task.part, task.torn)
    return _list_queues(reader, task.part)


@functools.lru_cache(maxsize=2)
def _opened(source: str) -> StoreReader:
    return StoreReader.open(source)


def _scan_log(reader: StoreReader, part: plan.LogRange, torn: tuple[int, ...]) -> _Scanned:
    """Walk a range of the log; its damage is told once by all ranges together, and in full."""
    log = reader.log
    start = log.part_start(part.start, part.stop)
    holes: list[Hole] = []
    found: dict[QueueKey, list[npt.NDArray[np.int64]]] = defaultdict(list)
    count = size = end = last_ms = 0
    for batch in log.walk(start, part.stop, is_end=part.is_end):
        times = batch.columns().numbers("store_timestamp")
        holes += [_timed(one, batch, times, last_ms) for one in batch.damage]
        starts = batch.positions + batch.physical_offset
        is_whole = ~np.isin(starts, np.array(torn, np.int64))
        sizes = batch.sizes[is_whole]
        if not len(sizes):
            continue
        last_ms = int(times[is_whole][-1])
        count += len(sizes)
        size += int(sizes.sum(dtype=np.int64))
        end = int(starts[is_whole][-1]) + int(sizes[-1])
        for key, offsets in _queue_offsets(batch.columns().take(is_whole)):
            found[key].append(offsets)
    runs = tuple(
        (*key, *run)
        for key, parts in sorted(found.items())
        for run in queue_runs.of(np.concatenate(parts))
    )
    return _Scanned(tuple(holes), runs, (), count, size, end, last_ms)


def _queue_offsets(columns: kernels.Columns) -> Iterator[tuple[QueueKey, npt.NDArray[np.int64]]]:
    """Yield each queue of some records, and their queue offsets."""
    sys_flags = columns.numbers("sys_flag")
    # As ``flags.is_queued``: prepared and rolled-back ones have the lower bit of the two. A batch
    # of 5.x is one record for many queue offsets: nobody counts its queues.
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
    """Return damage as a hole that knows the store time of a record beside it."""
    starts = batch.positions + batch.physical_offset
    place = int(np.searchsorted(starts, run.physical_offset))
    near_ms = int(times[place - 1]) if place else last_ms
    if not near_ms and place < len(times):
        near_ms = int(times[place])
    return replace(_hole(run), store_timestamp=near_ms)


def _hole(run: Damage) -> Hole:
    return Hole(run.physical_offset, run.length, run.reason, run.file)


def _list_queues(reader: StoreReader, keys: Iterable[QueueKey]) -> _Scanned:
    """Return which queue offsets have units whose messages had not expired."""
    low = reader.log.min_offset
    runs: list[_QueueRun] = []
    expired: list[QueueKey] = []
    for topic, queue_id in keys:
        queue = reader.queue(topic, queue_id)
        found: list[Run] = []
        for first, units in queue.blocks(queue.min_offset, queue.max_offset):
            targets = units["physical_offset"]
            # A unit that points behind the log's end tells of a message, too: the log was cut.
            is_alive = (units["size"] > 0) & (targets >= low)
            is_alive &= units["size"] != cq_unit.PRE_BLANK_SIZE
            found += queue_runs.of(first + np.flatnonzero(is_alive))
        runs += [(topic, queue_id, *run) for run in queue_runs.union(found)[0]]
        last = queue.last_unit
        if not found and last is not None and last.physical_offset + last.size <= low:
            expired.append((topic, queue_id))
    return _Scanned(expected=tuple(runs), expired=tuple(expired))


def _copy(task: _CopyTask) -> int:
    """Write pieces of the new log where they belong; doing it again writes the same."""
    reader = _opened(task.source)
    written = 0
    for start, work in _by_file(task):
        path = f"{task.draft}/{paths.COMMIT_LOG}/{paths.offset_name(start)}"
        descriptor = os.open(path, os.O_WRONLY)
        try:
            for one in work:
                for at, data in _contents(reader, one, task.has_crc):
                    _write_all(descriptor, data, at - start)
                    written += len(data)
            os.fdatasync(descriptor)
        finally:
            os.close(descriptor)
    return written


def _by_file(task: _CopyTask) -> Iterator[tuple[int, list[_Piece | Fill]]]:
    """Yield the start of each file of a task, and what is to be written into it."""
    grouped: dict[int, list[_Piece | Fill]] = defaultdict(list)
    for one in task.work:
        grouped[(_start_of(one) - task.first_start) // task.file_bytes].append(one)
    for number, work in grouped.items():
        yield task.first_start + number * task.file_bytes, work


def _contents(
    reader: StoreReader, one: _Piece | Fill, has_crc: bool
) -> Iterator[tuple[int, bytes | memoryview]]:
    if isinstance(one, Fill):
        yield from hole_filling.content(one, has_crc=has_crc)
        return
    file = reader.log.file_at(one.start)
    at = one.start
    while at < one.stop:
        length = min(one.stop - at, _WINDOW_BYTES)
        data = reader.folder.read(f"{paths.COMMIT_LOG}/{file.name}", at - file.start, length)
        if not data:
            return  # behind the end of a cut file: zeros, as a new file has
        yield at, data
        at += len(data)


def _write_all(descriptor: int, data: bytes | memoryview, position: int) -> None:
    view = memoryview(data)
    while len(view):
        done = os.pwrite(descriptor, view, position)
        view, position = view[done:], position + done


# Decisions ------------------------------------------------------------------------------------


def _start_of(one: _Piece | Fill) -> int:
    return one.start if isinstance(one, _Piece) else one.physical_offset


def _with_times(scanned: Sequence[_Scanned]) -> list[Hole]:
    """Return the holes of all ranges; one without a store time gets that of a range before it."""
    holes: list[Hole] = []
    last_ms = 0
    for task in scanned:
        holes += [
            replace(hole, store_timestamp=hole.store_timestamp or last_ms) for hole in task.holes
        ]
        last_ms = task.last_ms or last_ms
    return holes


def _by_queue(runs: Iterable[_QueueRun]) -> dict[QueueKey, list[Run]]:
    found: dict[QueueKey, list[Run]] = defaultdict(list)
    for topic, queue_id, start, stop in runs:
        found[topic, queue_id].append((start, stop))
    return dict(found)


def _sized(reader: StoreReader, config: StoreConfig | None) -> StoreConfig:
    """Return the settings of the new store, with the file sizes of the old one.

    Raises:
        StoreUnavailable: Log files have sizes or places that do not fit each other.
        InvalidOption: The settings do not fit the files, or are needed to know sizes.
    """
    log_bytes = max((file.nominal_size for file in reader.log.files), default=0)
    if config is None:
        config = _guessed(reader, log_bytes)
    file_bytes = config.mapped_file_size_commit_log
    for file in reader.log.files:
        if file.size > file_bytes:
            raise InvalidOption(
                "mappedFileSizeCommitLog", file_bytes, f"{file.size}, as {file.name} has"
            )
        if (file.start - reader.log.min_offset) % file_bytes:
            raise StoreUnavailable(
                f"log file {file.name} of {reader.location} does not start a multiple of "
                f"{file_bytes} bytes behind the first one; give the broker's own settings"
            )
    return config


def _guessed(reader: StoreReader, log_bytes: int) -> StoreConfig:
    default = StoreConfig()
    log_bytes = log_bytes or default.mapped_file_size_commit_log
    room = log_bytes - END_OF_FILE_BYTES - _SMALLEST_RECORD_BYTES
    slots, entries = _index_sizes(reader)
    units = max(
        (file.size for queue in reader.queues() for file in queue.files),
        default=default.mapped_file_size_consume_queue,
    )
    return StoreConfig(
        mapped_file_size_commit_log=log_bytes,
        mapped_file_size_consume_queue=units,
        max_hash_slot_num=slots or default.max_hash_slot_num,
        max_index_num=entries or default.max_index_num,
        max_message_size=min(default.max_message_size, room),
        enable_multi_dispatch=any(t.startswith(names.LMQ_PREFIX) for t in reader.queue_ids),
        enable_consume_queue_ext=reader.folder.entry(paths.CONSUME_QUEUE_EXT) is not None,
    )


def _index_sizes(reader: StoreReader) -> tuple[int, int]:
    """Return slots and entries of an index file, which it does not say itself; 0 if nothing tells.

    Raises:
        InvalidOption: There are index files, and none of them tells.
    """
    files = [file for file in reader.index.files if file.size]
    for file in files:
        with contextlib.suppress(CorruptRecord):
            slots = file.slot_count
            rest = file.size - index_entry.HEADER.size - slots * index_entry.SLOT.size
            if slots:
                return slots, rest // index_entry.ENTRY.size
    if files:
        allowed = "the broker's settings: its index files do not tell maxHashSlotNum, maxIndexNum"
        raise InvalidOption("config", "none", allowed)
    return 0, 0


def _write_whole(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
