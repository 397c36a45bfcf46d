"""The reput step on Spark: commit log -> consume queues and index, the bytes that a broker writes.

    survey   a task per range of the log: its units and index entries, into files below the target,
             and the facts that the plan needs                                            (reads)
    plan     the driver: which units of which ranges go where, which entries go to which file (pure)
    write    a task per range: its units, each at the position of its queue offset;
             a task per index file: its entries
    publish  the driver: the drafts are renamed

The log is read once, and nothing is shuffled. The output of a task depends on the log alone, so a
task that runs twice, at once or after a kill, writes the same bytes to the same places.

Index files are named by the time of their first entry, in the driver's time zone, as a broker that
kept pace would have named them. A name that would not follow its predecessor is the predecessor's
plus one.

A range of times is the part of the log from the first record that is not older up to the first
record that is not younger. The result is that of a log with this part only.

``reput.spark.jobs.dispatch.follow`` follows a store that a broker is writing to.
"""

import dataclasses
import functools
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reput.errors import CorruptRecord, InvalidOption
from reput.spark.jobs import folder_checks
from reput.spark.jobs.dispatch import write_tasks
from reput.spark.jobs.dispatch.difference import Difference, compare_output
from reput.spark.jobs.dispatch.job import (
    RANGE_BYTES,
    DispatchJob,
    DispatchStart,
    Hole,
    Surveyed,
    open_log,
)
from reput.spark.jobs.dispatch.publish import Publication
from reput.spark.jobs.dispatch.spill import SavedRows
from reput.spark.jobs.dispatch.write_tasks import IndexTask, UnitTask, WriteTarget
from reput.spark.jobs.running import Progress, Runner, runner_on
from reput.store.config import StoreConfig
from reput.store.files import paths
from reput.store.files.disk import Disk
from reput.store.files.files import absolute, open_folder
from reput.store.files.folder_lock import FolderLock
from reput.store.log.commit_log_view import CommitLogView

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True)
class DispatchResult:
    """The result of a dispatch."""

    store: str
    target: str | None
    """Folder that was written to; None after a dry run."""
    log_start: int
    log_end: int
    """Physical offsets between which records were dispatched."""
    ranges: int
    records: int
    queues: int
    units: int
    refilled_units: int
    """Number of those ``units`` whose messages the log has lost."""
    index_entries: int
    index_files: tuple[str, ...]
    """Names of the index files."""
    unqueued: dict[str, int]
    """Reason -> records that should be in a queue and are not."""
    holes: tuple[Hole, ...]
    """Physical offset, length and reason of each hole of the log."""
    difference: Difference | None = None
    """Result of a dry run; None after a dispatch."""

    @property
    def is_same(self) -> bool | None:
        """Whether the existing files are byte-identical, after a dry run; None after a dispatch."""
        return None if self.difference is None else self.difference.is_same

    def as_json(self) -> dict[str, Any]:
        """Return plain lists and dictionaries."""
        return {**dataclasses.asdict(self), "is_same": self.is_same}


def dispatch(
    spark: "SparkSession | None",
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
        spark: The session; without one tasks run in this process, consecutively.
        store: The store's folder, the same on the driver and all workers.
        config: The store's settings: file sizes, delay levels, indexed properties. The defaults are
            those of RocketMQ; ``store_path_root_dir`` is taken from ``store``.
        target: Folder for ``consumequeue`` and ``index``; created if it does not exist. Existing
            queues and index files in it are replaced.
        in_place: Write to the store itself, which no broker may have open.
        topics: Only the queues of these topics. The index covers all topics, and is then not
            written.
        start_ms: Only records stored from this time on. Not in place.
        end_ms: Only records stored before this time. Not in place.
        dry_run: Write nothing, and report how the existing files (in ``target`` if given, else in
            the store) differ.
        allow_live: Read a store that a broker has open, up to the present end of its log.
        skip_batch_queues: Leave the batch queues of topics of 5.x as they are.
        range_bytes: Approximate bytes of the log that a task reads.
        progress: Called with the number of completed tasks.

    Returns:
        Counts, and the difference after a dry run.

    Raises:
        InvalidOption: Arguments contradict each other, or the store needs extension units, which a
            dispatch does not make.
        StoreUnavailable: The folder is no store, is in use, has files of other sizes than
            configured, or has batch queues.
        StoreChanged: The log changed meanwhile.
        WriteFailed: The target cannot be written to.
        TaskFailed: A task failed as often as Spark retries it. Nothing was published: run it again.
    """
    return run_dispatch(
        runner_on(spark, "dispatch", progress),
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
    """Run a dispatch with any runner of tasks."""
    if in_place and target is not None:
        raise InvalidOption("target", target, "none, where the store itself is written to")
    if not dry_run and target is None and not in_place:
        raise InvalidOption("target", target, "a folder to write to, or in_place=True")
    if range_bytes < 1:
        raise InvalidOption("range_bytes", range_bytes, "a number of bytes from 1 on")
    if in_place and not dry_run and (start_ms, end_ms) != (None, None):
        raise InvalidOption("in_place", True, "false, where only a range of times is dispatched")
    store = absolute(store)  # workers have other working directories
    settings = replace(config or StoreConfig(), store_path_root_dir=store)
    wanted = None if topics is None else frozenset(topics)
    root = store if in_place or target is None else folder_checks.writable_folder("target", target)
    make_job = functools.partial(
        DispatchJob,
        runner,
        store,
        settings,
        wanted,
        allow_live=allow_live,
        skips_batch=skip_batch_queues,
    )
    if dry_run:
        job = make_job(holds_lock=False)
        surveyed = _survey(job, start_ms, end_ms, range_bytes, None)
        difference, names = compare_output(job, surveyed, root)
        return _result(job, surveyed, names, None, difference)
    folder_checks.writable_folder("in_place", root)
    if not in_place:
        refuse_store(root, store)
        Disk().make_folder(root)
    open_log(store, settings)  # before a lock file is left in a folder that is no store
    lock = FolderLock(root)
    try:
        job = make_job(holds_lock=in_place)
        return _write(job, root, start_ms, end_ms, range_bytes)
    finally:
        lock.release()


def refuse_store(root: str, store: str) -> None:
    """Refuse to write into a store that was not named as the target."""
    if Path(root).resolve() == Path(store).resolve():
        raise InvalidOption("target", root, "another folder than the store, or in_place=True")
    if Path(root, paths.COMMIT_LOG).exists():
        raise InvalidOption(
            "target", root, f"a folder that is no store: its queues would be those of {store}"
        )


def _survey(
    job: DispatchJob,
    start_ms: int | None,
    end_ms: int | None,
    range_bytes: int,
    saved: SavedRows | None,
) -> Surveyed:
    """Survey the log, and plan the output."""
    log = job.reader.log
    end = max(job.reader.end_offset, log.min_offset)
    start = log.min_offset if start_ms is None else _offset_at(log, start_ms, end)
    stop = end if end_ms is None else max(_offset_at(log, end_ms, end), start)
    return job.survey(start, stop, end, range_bytes, DispatchStart(start, {}), saved)


def _write(
    job: DispatchJob, root: str, start_ms: int | None, end_ms: int | None, range_bytes: int
) -> DispatchResult:
    """Write all files, and publish them."""
    job.refuse_other_sizes(open_folder(root))
    families = [paths.CONSUME_QUEUE, *([paths.INDEX] if job.is_indexed else [])]
    publication = Publication(root, families, by_topic=job.topics is not None)
    publication.begin()
    drafts = publication.drafts
    surveyed = _survey(job, start_ms, end_ms, range_bytes, SavedRows(drafts.parts))
    place = WriteTarget(
        drafts.family(paths.CONSUME_QUEUE), drafts.family(paths.INDEX), job.config, is_draft=True
    )
    for key in surveyed.queues.extents:
        Disk().make_folder(place.queue(key), is_durable=False)
    index_tasks = surveyed.index_tasks()
    # Index files first, as they take longest.
    tasks: list[UnitTask | IndexTask] = [*index_tasks, *surveyed.unit_tasks()]
    job.runner("write", functools.partial(write_tasks.write, surveyed.parts, place), tasks)
    publication.publish()
    return _result(job, surveyed, [str(task.name) for task in index_tasks], root, None)


def _result(
    job: DispatchJob,
    surveyed: Surveyed,
    names: Iterable[str],
    target: str | None,
    difference: Difference | None,
) -> DispatchResult:
    return DispatchResult(
        store=job.store,
        target=target,
        log_start=surveyed.start,
        log_end=surveyed.stop,
        ranges=len(surveyed.ranges),
        records=surveyed.records,
        queues=len(surveyed.queues.extents),
        units=surveyed.queues.units,
        refilled_units=surveyed.queues.refilled,
        index_entries=surveyed.entries,
        index_files=tuple(names),
        unqueued=surveyed.unqueued,
        holes=tuple(surveyed.holes),
        difference=difference,
    )


def _offset_at(log: CommitLogView, timestamp_ms: int, end: int) -> int:
    """Return the physical offset of the first record not stored before a time; times ascend."""
    start = log.min_offset
    for file in log.files:
        if file.start >= end:
            break
        first = log.first_record(file)
        if first is not None and first.store_timestamp >= timestamp_ms:
            break
        if first is not None:
            start = file.start
    file = log.file_at(start)
    low, high = start, min(file.nominal_end, file.end, end)
    stop = high
    while low < high:
        middle = (low + high) // 2
        place = log.find_record(middle, high)
        try:
            message = log.message_at(place) if place < high else None
        except CorruptRecord:  # a blank, or damage
            message = None
        if message is None or message.store_timestamp >= timestamp_ms:
            high = middle
        else:
            low = place + message.store_size
    return log.find_record(low, stop)
