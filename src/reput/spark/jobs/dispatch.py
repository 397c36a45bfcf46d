"""The reput step on Spark: commit log -> consume queues and index, the bytes that a broker writes.

    survey   a task a range of the log: runs of queue offsets, number of index entries   (reads)
    plan     the driver: which task writes which units, which entries make which file    (pure)
    write    a task a range: its units, each at the place that its queue offset gives it;
             a task an index file: its entries
    publish  the driver: drafts get their names

Nothing is shuffled. What a task writes depends on the log alone, so one that runs twice, at once or
after a kill, writes the same bytes to the same places. Tasks write below ``consumequeue.tmp`` and
``index.tmp`` of the target, which nobody else reads. Once all of it is on disk, each family is
published by itself: what had its name is put aside as ``NAME.old``, the draft takes the name, the
old one is deleted. A kill leaves the old family, or none with both drafts and ``.old`` beside, or
the new one; the next run puts an ``.old`` back that nothing has replaced, and begins anew. Each
family is right without the other, and a broker makes one that is missing from the log.

Index files are named by the time of their first entry, local time of the driver, as a broker would
have named them that kept pace; one that would not follow the name before is named one more than it.

A range of times stands for the part of the log from the first record that is not older up to the
first one that is not younger: what is made of it is what a log of only that part would give.
"""

import datetime
import functools
import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
from pyspark.sql import SparkSession

from reput.errors import (
    CorruptRecord,
    InvalidOption,
    NotInStore,
    StoreUnavailable,
    WriteFailed,
)
from reput.format import cq_unit, index_entry
from reput.spark import plan
from reput.spark.jobs import dispatch_plan, dispatch_walk
from reput.spark.jobs.dispatch_plan import IndexFile, QueueKey, QueuePlan, Share, Survey
from reput.spark.jobs.dispatch_walk import IndexWalk, Source, StoreChanged, UnitWalk
from reput.spark.jobs.running import Progress, Runner, SparkRunner
from reput.store import paths, tombstones
from reput.store.commit_log_view import CommitLogView
from reput.store.config import StoreConfig
from reput.store.consume_queue_view import UNIT_TYPE
from reput.store.disk import Disk
from reput.store.files import Folder, data_bytes, open_folder
from reput.store.folder_lock import FolderLock
from reput.store.reader import Condition, StoreReader, refuse_rocksdb
from reput.store.summary import Summary
from reput.store.torn_records import find_torn_records

RANGE_BYTES = 128 * 1024 * 1024
"""About how much of the log a task reads."""
_OLD_SUFFIX = ".old"
_OLD_TOPICS_SUFFIX = ".topics.old"
_YEAR_10000_MS = 253_402_214_400_000


@dataclass(frozen=True, slots=True)
class QueueDifference:
    """What is wrong with the units of a queue that is there."""

    topic: str
    queue_id: int
    missing: int
    """Units that are not there: no file, or nothing in it."""
    different: int
    extra: int
    """Units that no record of the log has."""


@dataclass(frozen=True, slots=True)
class IndexDifference:
    """What is wrong with an index file; they are compared in order, not by name."""

    number: int
    """From 0, oldest first."""
    name: str | None
    """Of the file that is there; None if it is missing."""
    first_byte: int | None
    """The first one that differs; None if the file is missing, or there are more than should be."""


@dataclass(frozen=True, slots=True)
class Difference:
    """What a dispatch would change."""

    compared_with: str
    queues: tuple[QueueDifference, ...]
    """Those that differ."""
    index: tuple[IndexDifference, ...]
    """Those that differ."""
    expired_units: int
    """Units of messages that the log has no more, which are no difference."""

    @property
    def is_same(self) -> bool:
        """Whether everything there is byte-identical with what the log gives."""
        return not self.queues and not self.index


@dataclass(frozen=True, slots=True)
class DispatchResult:
    """What a dispatch found in the log and made of it."""

    store: str
    target: str | None
    """The folder that was written to; None after a dry run."""
    log_start: int
    log_end: int
    """Physical offsets between which records were dispatched."""
    ranges: int
    records: int
    queues: int
    units: int
    refilled_units: int
    """Of these, units that stand for messages the log has lost."""
    index_entries: int
    index_files: tuple[str, ...]
    """Their names."""
    unqueued: dict[str, int]
    """Why records are in no queue that should be in one, and how many."""
    holes: tuple[tuple[int, int, str], ...]
    """Physical offset, length and reason of what is no record in the log."""
    difference: Difference | None = None
    """After a dry run."""


def dispatch(
    spark: SparkSession,
    store: str,
    *,
    config: StoreConfig | None = None,
    target: str | None = None,
    in_place: bool = False,
    topics: Iterable[str] | None = None,
    start_ms: int | None = None,
    end_ms: int | None = None,
    dry_run: bool = False,
    allow_live: bool = False,
    skip_batch_queues: bool = False,
    range_bytes: int = RANGE_BYTES,
    progress: Progress | None = None,
) -> DispatchResult:
    """Derive consume queues and index files from the commit log of a stopped store.

    Args:
        spark: The session.
        store: The store's folder, the same on the driver and all workers.
        config: The store's settings: sizes of files, delay levels, what is indexed. The defaults
            are those of RocketMQ; ``store_path_root_dir`` is taken from ``store``.
        target: Where to write ``consumequeue`` and ``index``; made if it is not there. What it has
            of these is replaced.
        in_place: Write to the store itself, which nobody may have open.
        topics: Only the queues of these topics; the index, which is of all, is left then.
        start_ms: Only records stored from then on. Not in place.
        end_ms: Only records stored before then. Not in place.
        dry_run: Write nothing, and tell how what is there (in ``target`` if it is given, else in
            the store) differs.
        allow_live: Read although a broker has the store, up to where its log ends now.
        skip_batch_queues: Where topics of 5.x have batch queues, leave those as they are.
        range_bytes: About how much of the log a task reads.
        progress: Told of the tasks that are done.

    Returns:
        Counts, and the difference after a dry run.

    Raises:
        InvalidOption: Arguments contradict each other, or the store needs what is not made here
            (extension units).
        StoreUnavailable: The folder is no store, is in use, has files of other sizes than
            configured, or has batch queues.
        StoreChanged: The log changed meanwhile.
        WriteFailed: The target cannot be written to.
        TaskFailed: A task failed as often as Spark runs one. Nothing was published: run it again.
    """
    return run_dispatch(
        SparkRunner(spark, "dispatch", progress),
        store,
        config=config,
        target=target,
        in_place=in_place,
        topics=topics,
        start_ms=start_ms,
        end_ms=end_ms,
        dry_run=dry_run,
        allow_live=allow_live,
        skip_batch_queues=skip_batch_queues,
        range_bytes=range_bytes,
    )


def run_dispatch(
    runner: Runner,
    store: str,
    *,
    config: StoreConfig | None = None,
    target: str | None = None,
    in_place: bool = False,
    topics: Iterable[str] | None = None,
    start_ms: int | None = None,
    end_ms: int | None = None,
    dry_run: bool = False,
    allow_live: bool = False,
    skip_batch_queues: bool = False,
    range_bytes: int = RANGE_BYTES,
) -> DispatchResult:
    """Do what ``dispatch`` does with any runner of tasks."""
    if in_place and target is not None:
        raise InvalidOption("target", target, "none, where the store itself is written to")
    if not dry_run and target is None and not in_place:
        raise InvalidOption("target", target, "a folder to write to, or in_place=True")
    if range_bytes < 1:
        raise InvalidOption("range_bytes", range_bytes, "a number of bytes from 1 on")
    if in_place and not dry_run and (start_ms, end_ms) != (None, None):
        raise InvalidOption("in_place", True, "false, where only a range of times is dispatched")
    settings = replace(config or StoreConfig(), store_path_root_dir=store)
    wanted = None if topics is None else frozenset(topics)
    root = store if in_place else target
    make_job = functools.partial(
        _Job,
        runner,
        store,
        settings,
        wanted,
        allow_live=allow_live,
        skips_batch=skip_batch_queues,
    )
    if root is None or dry_run:
        job = make_job(holds_lock=False)
        surveyed = job.survey(start_ms, end_ms, range_bytes)
        return job.compare(surveyed, root or store)
    if not in_place:
        _refuse_store(root, store)
        Disk().make_folder(root)
    _open_log(store, settings)  # before a lock file is left in what is no store
    lock = FolderLock(root)
    try:
        job = make_job(holds_lock=in_place)
        return job.write(job.survey(start_ms, end_ms, range_bytes), root)
    finally:
        lock.release()


def _refuse_store(root: str, store: str) -> None:
    """Refuse to write into a store that nobody said is to be written to."""
    if Path(root).resolve() == Path(store).resolve():
        raise InvalidOption("target", root, "another folder than the store, or in_place=True")
    if Path(root, paths.COMMIT_LOG).exists():
        raise InvalidOption(
            "target", root, f"a folder that is no store: its queues would be those of {store}"
        )


def _open_log(store: str, config: StoreConfig) -> Folder:
    folder = open_folder(store, commit_log_folders=config.commit_log_folders)
    refuse_rocksdb(folder)
    if not folder.entries(paths.COMMIT_LOG):
        raise StoreUnavailable(f"{store} is no store: it has no files in {paths.COMMIT_LOG}")
    return folder


# --- tasks: on the executors -------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _SurveyTask:
    part: plan.LogRange
    is_indexed: bool


@dataclass(frozen=True, slots=True)
class _UnitTask:
    part: plan.LogRange
    shares: dict[QueueKey, Share]


@dataclass(frozen=True, slots=True)
class _IndexTask:
    file: IndexFile
    parts: tuple[plan.LogRange, ...]
    there: str | None = None
    """Name of the file to compare with."""


@dataclass(frozen=True, slots=True)
class _UnitsDone:
    differences: dict[QueueKey, tuple[int, int]]
    """Queue -> units that are missing, and that differ; only of a dry run."""


@dataclass(frozen=True, slots=True)
class _IndexDone:
    begin_timestamp: int
    first_byte: int | None = None
    """The first byte that differs; only of a dry run."""


def _survey(source: Source, task: _SurveyTask) -> Survey:
    return dispatch_walk.survey(source, task.part, is_indexed=task.is_indexed, detailed=frozenset())


def _write(source: Source, root: str, task: _UnitTask | _IndexTask) -> _UnitsDone | _IndexDone:
    """Write what a task makes into the drafts below ``root``."""
    if isinstance(task, _IndexTask):
        walk, data = _make_index(source, task)
        path = f"{_draft(root, paths.INDEX)}/{_draft_name(task.file)}"
        used = index_entry.entry_position(walk.entry_count + 1, source.config.max_hash_slot_num)
        _write_at(path, len(data), 0, data[:used].data)
        return _IndexDone(_begin_timestamp(data))
    units = UnitWalk(source, task.shares)
    units.run(task.part.start, task.part.stop)
    size = source.config.mapped_file_size_consume_queue
    for key, made in units.units():
        folder = f"{_draft(root, paths.CONSUME_QUEUE)}/{key[0]}/{key[1]}"
        share = task.shares[key]
        for file_start, position, part in _by_file(share.first, made, size):
            path = f"{folder}/{paths.offset_name(file_start)}"
            is_first = file_start + position == share.first * cq_unit.SIZE
            if is_first and share.is_start and position:
                _write_at(path, size, 0, _pre_blanks(position))
            _write_at(path, size, position, part.data)
    return _UnitsDone({})


def _compare(source: Source, root: str, task: _UnitTask | _IndexTask) -> _UnitsDone | _IndexDone:
    """Compare what a task makes with what is there."""
    folder = open_folder(root)
    if isinstance(task, _IndexTask):
        _, data = _make_index(source, task)
        first_byte = None
        if task.there is not None:
            found = np.frombuffer(folder.read(f"{paths.INDEX}/{task.there}"), np.uint8)
            first_byte = _first_difference(data, found)
        return _IndexDone(_begin_timestamp(data), first_byte)
    units = UnitWalk(source, task.shares)
    units.run(task.part.start, task.part.stop)
    differences = {}
    size = source.config.mapped_file_size_consume_queue
    for key, made in units.units():
        missing = different = 0
        for file_start, position, part in _by_file(task.shares[key].first, made, size):
            name = f"{paths.queue_folder(*key)}/{paths.offset_name(file_start)}"
            there = _read_units(folder, name, position, len(part))
            wrong = part.view(UNIT_TYPE) != there
            absent = wrong & ~_are_written(there)
            missing += int(np.count_nonzero(absent))
            different += int(np.count_nonzero(wrong & ~absent))
        if missing or different:
            differences[key] = (missing, different)
    return _UnitsDone(differences)


def _make_index(source: Source, task: _IndexTask) -> tuple[IndexWalk, npt.NDArray[np.uint8]]:
    walk = IndexWalk(source, task.file)
    for part in task.parts:
        if walk.is_done:
            break
        walk.run(part.start, part.stop)
    if walk.data is None or walk.entry_count != task.file.count:
        raise StoreChanged(
            f"index file {task.file.number} has {walk.entry_count} entries, "
            f"not {task.file.count} as were found before"
        )
    return walk, walk.data


def _begin_timestamp(data: npt.NDArray[np.uint8]) -> int:
    return index_entry.unpack_header(data[: index_entry.HEADER.size].tobytes()).begin_timestamp


def _by_file(
    first: int, units: npt.NDArray[np.uint8], file_size: int
) -> Iterator[tuple[int, int, npt.NDArray[np.uint8]]]:
    """Yield where the file starts, the position in it, and bytes, of units from ``first`` on."""
    at, end = first * cq_unit.SIZE, first * cq_unit.SIZE + len(units)
    while at < end:
        position = at % file_size
        stop = min(end, at - position + file_size)
        start = first * cq_unit.SIZE
        yield at - position, position, units[at - start : stop - start]
        at = stop


def _pre_blanks(size: int) -> bytes:
    return cq_unit.pack(cq_unit.Unit(0, cq_unit.PRE_BLANK_SIZE, 0)) * (size // cq_unit.SIZE)


def _write_at(path: str, size: int, position: int, data: bytes | memoryview) -> None:
    """Write bytes into a file of ``size`` bytes, which another task may be writing to."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            if os.fstat(descriptor).st_size < size:
                os.ftruncate(descriptor, size)
            Disk().write(descriptor, path, position, data)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise WriteFailed(path, f"cannot write: {error.strerror}") from error


def _first_difference(data: npt.NDArray[np.uint8], found: npt.NDArray[np.uint8]) -> int | None:
    length = min(len(data), len(found))
    step = 1 << 20
    for start in range(0, length, step):
        stop = min(start + step, length)
        wrong = np.flatnonzero(data[start:stop] != found[start:stop])
        if len(wrong):
            return start + int(wrong[0])
    return None if len(data) == len(found) else length


def _read_units(folder: Folder, path: str, position: int, length: int) -> npt.NDArray[np.void]:
    """Return units of a file, zeros where it is missing or shorter."""
    try:
        data = bytes(folder.read(path, position, length))
    except NotInStore:
        data = b""
    return np.frombuffer(data.ljust(length, b"\0"), UNIT_TYPE)


def _are_written(units: npt.NDArray[np.void]) -> npt.NDArray[np.bool_]:
    is_blank = (units["size"] == cq_unit.PRE_BLANK_SIZE) & (units["physical_offset"] == 0)
    written: npt.NDArray[np.bool_] = (units["size"] > 0) & ~is_blank
    return written


# --- the job: on the driver ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Surveyed:
    """What is known after the first pass."""

    source: Source
    start: int
    stop: int
    ranges: list[plan.LogRange]
    surveys: list[Survey]
    queues: QueuePlan
    index: list[IndexFile]

    def tasks(self, there: Sequence[str] = ()) -> list[_UnitTask | _IndexTask]:
        """Return the tasks of the second pass; index files first, as they take longest."""
        tasks: list[_UnitTask | _IndexTask] = []
        for file in self.index:
            left, last = file.skipped + file.count, file.first_range
            while left > self.surveys[last].entries:
                left -= self.surveys[last].entries
                last += 1
            name = there[file.number] if file.number < len(there) else None
            tasks.append(_IndexTask(file, tuple(self.ranges[file.first_range : last + 1]), name))
        pairs = zip(self.ranges, self.queues.shares, strict=True)
        return tasks + [_UnitTask(part, shares) for part, shares in pairs if shares]


class _Job:
    """One dispatch."""

    def __init__(
        self,
        runner: Runner,
        store: str,
        config: StoreConfig,
        topics: frozenset[str] | None,
        *,
        allow_live: bool,
        skips_batch: bool,
        holds_lock: bool,
    ) -> None:
        self._runner = runner
        self._store = store
        self._config = config
        self._topics = topics
        self._skips_batch = skips_batch
        self._is_indexed = config.message_index_enable and topics is None
        folder = self._folder = _open_log(store, config)
        self._reader = StoreReader(folder, allow_live=allow_live, holds_lock=holds_lock)
        if self._reader.state.condition is Condition.RUNNING and not allow_live:
            raise StoreUnavailable(f"{store} is in use: stop its broker, or say allow_live")
        self._refuse_other_kinds()

    def _refuse_other_kinds(self) -> None:
        """Refuse stores whose queues are not what is made here."""
        if self._config.enable_consume_queue_ext:
            raise InvalidOption(
                "enableConsumeQueueExt",
                True,
                "false: extension units stand in the order of their queue, which one process "
                "makes (reput store verify --repair)",
            )
        for one in self._folder.entries(paths.CONSUME_QUEUE_EXT):
            if self._is_wanted(one.name):
                raise StoreUnavailable(
                    f"{self._store} has extension units of topic {one.name!r} "
                    f"({paths.CONSUME_QUEUE_EXT}), which a dispatch on Spark does not make"
                )
        self._batch_topics = frozenset(
            one.name for one in self._folder.entries(paths.BATCH_CONSUME_QUEUE)
        )
        for topic in sorted(filter(self._is_wanted, self._batch_topics)):
            self._refuse_batch(f"of topic {topic!r}")

    def _is_wanted(self, topic: str) -> bool:
        return self._topics is None or topic in self._topics

    def _refuse_batch(self, which: str) -> None:
        if not self._skips_batch:
            raise StoreUnavailable(
                f"{self._store} has batch queues {which} (queue.type=BatchCQ), which are not made "
                "here; skip_batch_queues leaves them as they are and makes the rest"
            )

    # The first pass ---------------------------------------------------------------------------

    def survey(self, start_ms: int | None, end_ms: int | None, range_bytes: int) -> _Surveyed:
        """Find out what the log holds, and plan."""
        log = self._reader.log
        end = max(self._reader.end_offset, log.min_offset)
        start = log.min_offset if start_ms is None else _offset_at(log, start_ms, end)
        stop = end if end_ms is None else max(_offset_at(log, end_ms, end), start)
        buried = {
            topic: min(at, end)
            for topic, at in tombstones.read(self._folder).items()
            if at > log.min_offset
        }
        source = Source(self._store, self._config, end, self._topics, buried, self._torn_spans(end))
        files = [(file.start, min(file.nominal_end, file.end)) for file in log.files]
        spans = dispatch_plan.cut_spans(plan.meet_spans(files, start, stop), buried.values())
        ranges = plan.split_log(0, spans, end, range_bytes)
        tasks = [_SurveyTask(part, self._is_indexed) for part in ranges]
        surveys = self._runner("survey", functools.partial(_survey, source), tasks)
        if any(dispatch_walk.BATCH in one.unqueued for one in surveys):
            self._refuse_batch("according to its log")
        queues = _plan_queues(source, ranges, surveys)
        index = dispatch_plan.plan_index(
            [one.entries for one in surveys],
            [one.last_indexed for one in surveys],
            self._config.max_index_num,
        )
        return _Surveyed(source, start, stop, ranges, surveys, queues, index)

    def _torn_spans(self, end: int) -> tuple[tuple[int, int], ...]:
        """Return the records that a crash has torn, in the part of the log that was not synced."""
        if self._reader.state.condition is not Condition.CRASHED or self._reader.is_live:
            return ()
        torn = find_torn_records(self._reader.log, self._synced(end), end)
        return tuple((one.physical_offset, one.end) for one in torn)

    def _synced(self, end: int) -> int:
        """Return a record before which the log was on disk when the broker died."""
        log, saved = self._reader.log, self._reader.state.checkpoint
        if saved is None:
            return log.min_offset
        start = saved.queue_physical_offset
        if log.min_offset < start < end and log.end_of(start) is not None:
            return start
        for file in reversed(log.files):
            first = log.first_record(file) if file.start < end else None
            if first is not None and first.store_timestamp <= saved.min_timestamp:
                return file.start
        return log.min_offset

    # The second pass --------------------------------------------------------------------------

    def write(self, surveyed: _Surveyed, root: str) -> DispatchResult:
        """Write everything, and publish it."""
        self._refuse_other_sizes(open_folder(root))
        families = [paths.CONSUME_QUEUE, *([paths.INDEX] if self._is_indexed else [])]
        publication = _Publication(root, families, by_topic=self._topics is not None)
        publication.begin()
        disk = Disk()
        for topic, queue_id in surveyed.queues.extents:
            folder = f"{_draft(root, paths.CONSUME_QUEUE)}/{topic}/{queue_id}"
            disk.make_folder(folder, is_durable=False)
        tasks = surveyed.tasks()
        done = self._runner("write", functools.partial(_write, surveyed.source, root), tasks)
        begins = [one.begin_timestamp for one in done if isinstance(one, _IndexDone)]
        index_names = _index_names(begins)
        for file, name in zip(surveyed.index, index_names, strict=True):
            draft = _draft(root, paths.INDEX)
            disk.rename(f"{draft}/{_draft_name(file)}", f"{draft}/{name}")
        publication.publish()
        return self._result(surveyed, index_names, root, None)

    def _refuse_other_sizes(self, folder: Folder) -> None:
        """Refuse to make files of other sizes than are there: a store has one of each kind.

        Some may be cut, by a crash or a bad copy.
        """
        config = self._config
        self._refuse_sizes(
            f"{folder.location}/{paths.CONSUME_QUEUE}",
            {size for _, _, size in _queue_files(folder)},
            config.mapped_file_size_consume_queue,
            f"mappedFileSizeConsumeQueue={config.mapped_file_size_consume_queue}",
        )
        if self._is_indexed:
            self._refuse_sizes(
                f"{folder.location}/{paths.INDEX}",
                {one.size for one in folder.entries(paths.INDEX) if paths.is_index_name(one.name)},
                index_entry.entry_position(config.max_index_num, config.max_hash_slot_num),
                f"maxHashSlotNum={config.max_hash_slot_num} and maxIndexNum={config.max_index_num}",
            )

    def _refuse_sizes(self, where: str, found: set[int], size: int, keys: str) -> None:
        if found - {0} and size not in found:
            raise StoreUnavailable(
                f"files in {where} have {max(found)} bytes, but with {keys} they have {size}; set "
                "that to what they were made with"
            )

    def compare(self, surveyed: _Surveyed, root: str) -> DispatchResult:
        """Tell what a dispatch would change, and change nothing."""
        folder = open_folder(root)
        self._refuse_other_sizes(folder)
        there = sorted(
            one.name for one in folder.entries(paths.INDEX) if paths.is_index_name(one.name)
        )
        there = there if self._is_indexed else []
        tasks = surveyed.tasks(there)
        done = self._runner("compare", functools.partial(_compare, surveyed.source, root), tasks)
        index_done = [one for one in done if isinstance(one, _IndexDone)]
        index = [
            IndexDifference(i, there[i] if i < len(there) else None, one.first_byte)
            for i, one in enumerate(index_done)
            if i >= len(there) or one.first_byte is not None
        ]
        index += [IndexDifference(i, there[i], None) for i in range(len(index_done), len(there))]
        wrong: dict[QueueKey, list[int]] = {}
        for one in done:
            if isinstance(one, _UnitsDone):
                for key, (missing, different) in one.differences.items():
                    counts = wrong.setdefault(key, [0, 0, 0])
                    counts[0] += missing
                    counts[1] += different
        expired = self._find_extra(folder, surveyed, wrong)
        difference = Difference(
            root,
            tuple(QueueDifference(*key, *counts) for key, counts in sorted(wrong.items())),
            tuple(index),
            expired,
        )
        names = _index_names([one.begin_timestamp for one in index_done])
        return self._result(surveyed, names, None, difference)

    def _find_extra(
        self, folder: Folder, surveyed: _Surveyed, wrong: dict[QueueKey, list[int]]
    ) -> int:
        """Count units outside of what each queue has; return those of expired messages.

        Where only a range of times is dispatched, units of other messages are none of our business.
        """
        expired = 0
        for key, start, size in _queue_files(folder):
            if not self._is_wanted(key[0]):
                continue
            path = f"{paths.queue_folder(*key)}/{paths.offset_name(start)}"
            first, stop = surveyed.queues.extents.get(key, (0, 0))
            begin = start // cq_unit.SIZE
            low, high = first - begin, stop - begin
            if low <= 0 and high >= size // cq_unit.SIZE:
                continue
            size = data_bytes(folder, path, size) // cq_unit.SIZE * cq_unit.SIZE
            units = _read_units(folder, path, 0, size)
            is_outside = np.ones(len(units), bool)
            is_outside[max(low, 0) : max(high, 0)] = False
            is_outside &= _are_written(units)
            is_expired = is_outside & (units["physical_offset"] < self._reader.log.min_offset)
            expired += int(np.count_nonzero(is_expired))
            offsets = units["physical_offset"]
            is_extra = is_outside & ~is_expired
            if (surveyed.start, surveyed.stop) != (
                self._reader.log.min_offset,
                surveyed.source.end,
            ):
                is_extra &= (offsets >= surveyed.start) & (offsets < surveyed.stop)
            count = int(np.count_nonzero(is_extra))
            if count:
                wrong.setdefault(key, [0, 0, 0])[2] += count
        return expired

    def _result(
        self,
        surveyed: _Surveyed,
        index_names: list[str],
        target: str | None,
        difference: Difference | None,
    ) -> DispatchResult:
        unqueued: dict[str, int] = {}
        for one in surveyed.surveys:
            for reason, count in one.unqueued.items():
                unqueued[reason] = unqueued.get(reason, 0) + count
        if surveyed.queues.rejected:
            unqueued["their queue offset cannot be right"] = surveyed.queues.rejected
        holes = [hole for one in surveyed.surveys for hole in one.holes]
        holes += [
            (one.physical_offset, one.length, one.reason)
            for one in self._reader.log.missing()
            if surveyed.start <= one.physical_offset < surveyed.stop
        ]
        return DispatchResult(
            store=self._store,
            target=target,
            log_start=surveyed.start,
            log_end=surveyed.stop,
            ranges=len(surveyed.ranges),
            records=sum(one.records for one in surveyed.surveys),
            queues=len(surveyed.queues.extents),
            units=surveyed.queues.units,
            refilled_units=surveyed.queues.refilled,
            index_entries=sum(one.entries for one in surveyed.surveys),
            index_files=tuple(index_names),
            unqueued=unqueued,
            holes=tuple(sorted(holes)),
            difference=difference,
        )


def _plan_queues(
    source: Source, ranges: Sequence[plan.LogRange], surveys: Sequence[Survey]
) -> QueuePlan:
    """Plan the units; where a damaged queue offset makes it necessary, look at single records."""
    detailed: dict[int, frozenset[QueueKey]] = {}
    while True:
        try:
            return dispatch_plan.plan_queues([one.runs for one in surveys])
        except dispatch_plan.NeedsDetail as need:
            number, key = need.number, need.key
            detailed[number] = detailed.get(number, frozenset()) | {key}
            again = dispatch_walk.survey(
                source, ranges[number], is_indexed=False, detailed=detailed[number]
            )
            surveys[number].runs[key] = again.runs[key]


def _offset_at(log: CommitLogView, timestamp_ms: int, end: int) -> int:
    """Return where the first record stands that was not stored before a time; store times grow."""
    found = log.min_offset
    for file in log.files:
        if file.start >= end:
            break
        first = log.first_record(file)
        if first is not None and first.store_timestamp >= timestamp_ms:
            break
        if first is not None:
            found = file.start
    file = log.file_at(found)
    low, high = found, min(file.nominal_end, file.end, end)
    stop = high
    while low < high:
        middle = (low + high) // 2
        at = log.find_record(middle, high)
        try:
            one = log.message_at(at) if at < high else None
        except CorruptRecord:  # a blank, or damage
            one = None
        if one is None or one.store_timestamp >= timestamp_ms:
            high = middle
        else:
            low = at + one.store_size
    return log.find_record(low, stop)


def _queue_files(folder: Folder) -> Iterator[tuple[QueueKey, int, int]]:
    """Yield topic and queue id, start and size of each queue file that is there."""
    for topic in folder.entries(paths.CONSUME_QUEUE):
        for queue in folder.entries(f"{paths.CONSUME_QUEUE}/{topic.name}"):
            queue_id = paths.parse_queue_id(queue.name)
            if queue_id is None:
                continue
            for file in folder.entries(paths.queue_folder(topic.name, queue_id)):
                start = paths.parse_offset_name(file.name)
                if start is not None:
                    yield (topic.name, queue_id), start, file.size


def _draft(root: str, family: str) -> str:
    return f"{root}/{family}{paths.DRAFT_SUFFIX}"


def _draft_name(file: IndexFile) -> str:
    """Return what an index file is called until all are there, and with them their names."""
    return f"file-{file.number:08d}"


def _index_names(begin_timestamps: Iterable[int]) -> list[str]:
    """Return the names of index files from the store times of their first entries, ms."""
    names: list[str] = []
    for timestamp in begin_timestamps:
        ms = min(max(timestamp, 0), _YEAR_10000_MS)
        when = datetime.datetime.fromtimestamp(ms / 1000, datetime.UTC).astimezone()
        name = f"{when:%Y%m%d%H%M%S}{ms % 1000:03d}"
        if names and name <= names[-1]:
            name = f"{int(names[-1]) + 1:017d}"
        names.append(name)
    return names


class _Publication:
    """The drafts of a target, and how they take the place of what was there.

    Args:
        root: The target.
        families: Names of the folders that are made.
        by_topic: Only folders of topics within the families are replaced.
    """

    def __init__(self, root: str, families: Sequence[str], *, by_topic: bool) -> None:
        self._root = Path(root)
        self._families = families
        self._by_topic = by_topic
        self._disk = Disk()

    def begin(self) -> None:
        """Put back what a killed run had put aside, and make empty drafts."""
        for family in self._families:
            folder = self._root / family
            old = self._root / (family + _OLD_SUFFIX)
            if old.exists() and not folder.exists():
                self._disk.rename(str(old), str(folder))
            _remove(old)
            old_topics = self._root / (family + _OLD_TOPICS_SUFFIX)
            for topic in list(old_topics.iterdir()) if old_topics.exists() else []:
                if not (folder / topic.name).exists():
                    self._disk.make_folder(str(folder))
                    self._disk.rename(str(topic), str(folder / topic.name))
            _remove(old_topics)
            draft = Path(_draft(str(self._root), family))
            _remove(draft)
            self._disk.make_folder(str(draft))
        self._sync_names()

    def publish(self) -> None:
        """Give the drafts their names, once they are on disk."""
        self._disk.sync_filesystem(str(self._root))
        # Ours: it would tell the next start of files that are gone.
        Summary.forget(str(self._root), self._disk)
        for family in self._families:
            draft = Path(_draft(str(self._root), family))
            if self._by_topic:
                self._publish_topics(family, draft)
            else:
                self._swap(self._root / family, draft, self._root / (family + _OLD_SUFFIX))
        self._sync_names()
        for family in self._families:
            _remove(self._root / (family + _OLD_SUFFIX))
            _remove(self._root / (family + _OLD_TOPICS_SUFFIX))
            _remove(Path(_draft(str(self._root), family)))
        self._sync_names()

    def _publish_topics(self, family: str, draft: Path) -> None:
        folder = self._root / family
        aside = self._root / (family + _OLD_TOPICS_SUFFIX)
        for one in (folder, aside):
            self._disk.make_folder(str(one))
        for topic in sorted(draft.iterdir()):
            self._swap(folder / topic.name, topic, aside / topic.name)
        self._disk.sync_folder(str(folder))

    def _swap(self, folder: Path, draft: Path, aside: Path) -> None:
        if folder.exists():
            self._disk.rename(str(folder), str(aside))
            self._disk.sync_folder(str(aside.parent))
        if any(draft.iterdir()):
            self._disk.rename(str(draft), str(folder))
            self._disk.sync_folder(str(folder.parent))

    def _sync_names(self) -> None:
        self._disk.sync_folder(str(self._root))


def _remove(folder: Path) -> None:
    if not folder.exists():
        return
    try:
        shutil.rmtree(folder)
    except OSError as error:
        raise WriteFailed(str(folder), f"cannot delete: {error.strerror}") from error
