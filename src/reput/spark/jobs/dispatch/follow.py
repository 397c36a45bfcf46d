"""The reput step as a stream: queues and index in a separate folder, kept up with a live store.

    target/consumequeue   as in the store
    target/index
    target/dispatch.json  the progress: the commit of a step

A step dispatches the records that the log has got since the last one, in place: units go to the
positions of their queue offsets, entries after those of the last index file. Then all files are
synced, and the small file is replaced. A step that is killed anywhere has no effect: its writes
after the last commit are removed, and the next step does the same again. After each step the
folder has the files that a batch makes of the log up to there.

This is a loop on the driver and not a query of Structured Streaming: the folder itself records its
progress, and a checkpoint beside it could disagree.
"""

import dataclasses
import functools
import json
import threading
import zlib
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from reput.errors import CorruptRecord, InvalidOption, NotInStore, StoreUnavailable
from reput.format import cq_unit, index_entry
from reput.spark.jobs import dispatch, folder_checks
from reput.spark.jobs.dispatch import (
    index_writer,
    unit_files,
    write_tasks,
)
from reput.spark.jobs.dispatch.extract import StoreChanged
from reput.spark.jobs.dispatch.index_writer import FileOutput
from reput.spark.jobs.dispatch.job import (
    RANGE_BYTES,
    DispatchJob,
    DispatchStart,
    Hole,
    Surveyed,
    open_log,
)
from reput.spark.jobs.dispatch.publish import FOLLOWED, Drafts, remove
from reput.spark.jobs.dispatch.spill import SavedRows
from reput.spark.jobs.dispatch.write_plan import QueueEnd, QueueKey
from reput.spark.jobs.dispatch.write_tasks import IndexTask, UnitTask, WriteTarget
from reput.spark.jobs.running import Progress, Runner, runner_on
from reput.store.config import StoreConfig
from reput.store.files import paths
from reput.store.files.disk import Disk
from reput.store.files.files import absolute, open_folder
from reput.store.files.folder_lock import FolderLock
from reput.store.queues import tombstones
from reput.store.reader import Condition

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

POLL_SECONDS = 1.0
"""Seconds between two checks of the log when there is nothing new."""
_RANGES_A_STEP = 32
"""Maximum number of ranges that a step takes, which bounds its rows and the driver's memory."""
_VERSION = 1


@dataclass(frozen=True, slots=True)
class Followed:
    """The progress since the call."""

    store: str
    target: str
    log_start: int
    """Physical offset where the log began when the target was started."""
    log_end: int
    """Physical offset up to which records are in the target."""
    store_end: int
    """Physical offset where the log ended at the last check."""
    steps: int
    records: int
    units: int
    refilled_units: int
    """Number of these units that replace messages lost from the log."""
    index_entries: int
    index_files: int
    """Number of index files in the target."""
    unqueued: dict[str, int]
    """Reason -> records that should be in a queue and are not."""
    holes: tuple[Hole, ...]
    """Physical offset, length and reason of each hole of the log."""

    @property
    def is_caught_up(self) -> bool:
        """Whether the target has all records that the log had at the last check."""
        return self.log_end >= self.store_end

    def as_json(self) -> dict[str, Any]:
        """Return plain lists and dictionaries."""
        return {**dataclasses.asdict(self), "is_caught_up": self.is_caught_up}


Until = Callable[[Followed], bool]


def follow(
    spark: "SparkSession | None",
    store: str,
    target: str,
    *,
    config: StoreConfig | None = None,
    poll_seconds: float = POLL_SECONDS,
    until: Until | None = None,
    skip_batch_queues: bool = False,
    range_bytes: int = RANGE_BYTES,
    progress: Progress | None = None,
) -> Followed:
    """Keep consume queues and index files up with the log of a store that a broker may write to.

    Args:
        spark: The session; without one tasks run in this process, consecutively.
        store: The store's folder, the same on the driver and all workers.
        target: Folder for ``consumequeue`` and ``index``: new, empty, or used by this job before.
        config: The store's settings, as for ``dispatch``.
        poll_seconds: Seconds between two checks of the log when there is nothing new.
        until: Called after each check of the log; the job stops if it returns true. None: never.
            ``lambda followed: followed.is_caught_up`` stops at the end of the log.
        skip_batch_queues: Leave out the batch queues of topics of 5.x.
        range_bytes: Approximate bytes of the log that a task reads.
        progress: Called with the number of completed tasks of each step.

    Returns:
        The progress since the call.

    Raises:
        InvalidOption: The target holds other files, or the store needs files that a dispatch does
            not make.
        StoreUnavailable: The folder is no store, or the target is in use or of another store.
        StoreChanged: The log has lost records that were to be followed, or is another one.
        WriteFailed: The target cannot be written to.
        TaskFailed: A task failed as often as Spark retries it. Nothing is lost: call again.
    """
    return run_follow(
        runner_on(spark, "follow", progress),
        store,
        target,
        config=config,
        poll_seconds=poll_seconds,
        until=until,
        skip_batch_queues=skip_batch_queues,
        range_bytes=range_bytes,
    )


def run_follow(
    runner: Runner,
    store: str,
    target: str,
    *,
    config: StoreConfig | None = None,
    poll_seconds: float = POLL_SECONDS,
    until: Until | None = None,
    skip_batch_queues: bool = False,
    range_bytes: int = RANGE_BYTES,
) -> Followed:
    """Follow a store with any runner of tasks."""
    if range_bytes < 1:
        raise InvalidOption("range_bytes", range_bytes, "a number of bytes from 1 on")
    if poll_seconds < 0:
        raise InvalidOption("poll_seconds", poll_seconds, "a number of seconds from 0 on")
    store, target = absolute(store), folder_checks.writable_folder("target", target)
    dispatch.refuse_store(target, store)
    settings = replace(config or StoreConfig(), store_path_root_dir=store)
    open_log(store, settings)
    Disk().make_folder(target)
    lock = FolderLock(target)
    try:
        following = _Following(
            runner, store, target, settings, range_bytes, skips_batch=skip_batch_queues
        )
        waiting = threading.Event()  # never set
        while True:
            is_new = following.step()
            if until is not None and until(following.followed()):
                return following.followed()
            if not is_new:
                waiting.wait(poll_seconds)
    finally:
        lock.release()


@dataclass(frozen=True, slots=True)
class _Saved:
    """The commit of a step."""

    log_start: int
    log_end: int
    last: tuple[int, int, int] | None = None
    """Physical offset, size and checksum of the last record that was dispatched."""
    index_number: int = 0
    """Number of the last index file, from 0."""
    index_name: str | None = None
    index_header: index_entry.Header = index_writer.NO_ENTRIES
    tombstones: dict[str, int] = dataclasses.field(default_factory=dict)
    """Topic -> tombstone, for the deleted topics that were handled."""

    def pack(self, sizes: dict[str, int]) -> bytes:
        document = {"version": _VERSION, "sizes": sizes, **dataclasses.asdict(self)}
        return json.dumps(document, indent=1).encode()

    @classmethod
    def unpack(cls, data: bytes, sizes: dict[str, int], path: str) -> "_Saved":
        try:
            document = json.loads(data)
            version, made_with = document.pop("version"), document.pop("sizes")
            document["last"] = tuple(document["last"]) if document["last"] else None
            document["index_header"] = index_entry.Header(**document["index_header"])
            saved = cls(**document)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise StoreUnavailable(f"{path} cannot be read: {error}; use a new folder") from error
        if version != _VERSION or made_with != sizes:
            raise StoreUnavailable(f"{path} is of version {version} and {made_with}, not {sizes}")
        return saved


class _Following:
    """A target and its progress."""

    def __init__(
        self,
        runner: Runner,
        store: str,
        target: str,
        config: StoreConfig,
        range_bytes: int,
        *,
        skips_batch: bool,
    ) -> None:
        self._runner = runner
        self._store = store
        self._target = target
        self._config = config
        self._range_bytes = range_bytes
        self._skips_batch = skips_batch
        self._path = f"{target}/{FOLLOWED}"
        self._drafts = Drafts(target)
        self._disk = Disk()
        self._place = WriteTarget(
            f"{target}/{paths.CONSUME_QUEUE}", f"{target}/{paths.INDEX}", config, is_draft=False
        )
        self._sizes = {
            "mappedFileSizeConsumeQueue": config.mapped_file_size_consume_queue,
            "maxHashSlotNum": config.max_hash_slot_num,
            "maxIndexNum": config.max_index_num,
            "messageIndexEnable": int(config.message_index_enable),
            "indexTags": int(config.index_tags),
        }
        self._saved = self._load()
        self._queue_ends = self._resume()
        self._done = Followed(store, target, 0, 0, 0, 0, 0, 0, 0, 0, 0, {}, ())

    def _load(self) -> _Saved | None:
        path = Path(self._path)
        if path.exists():
            return _Saved.unpack(path.read_bytes(), self._sizes, self._path)
        for family in (paths.CONSUME_QUEUE, paths.INDEX):
            if Path(self._target, family).exists():
                raise InvalidOption(
                    "target",
                    self._target,
                    f"a folder without {family}, or one that was followed into before",
                )
        return None

    # What a killed step has left ---------------------------------------------------------------

    def _resume(self) -> dict[QueueKey, QueueEnd]:
        """Remove everything after the last commit; return the ends of queues."""
        folder = open_folder(self._target)
        name = self._saved.index_name if self._saved is not None else None
        for index_name in unit_files.index_files(folder):
            if name is None or index_name > name:
                self._disk.unlink(f"{self._place.index}/{index_name}")
        if self._saved is not None and name is not None:
            size, slots = self._place.index_bytes, self._config.max_hash_slot_num
            with FileOutput(f"{self._place.index}/{name}", size) as output:
                index_writer.cut(
                    folder, f"{paths.INDEX}/{name}", slots, self._saved.index_header, output
                )
        files: defaultdict[QueueKey, list[tuple[int, int]]] = defaultdict(list)
        for key, start, size in unit_files.queue_files(folder):
            files[key].append((start, size))
        queue_ends = {}
        for key, spans in files.items():
            for start, size in sorted(spans, reverse=True):
                queue_end = self._end_in_file(folder, key, start, size)
                if queue_end is not None:
                    queue_ends[key] = queue_end
                    break
        return queue_ends

    def _end_in_file(self, folder: Any, key: QueueKey, start: int, size: int) -> QueueEnd | None:
        """Cut a file after its last committed unit; return the queue's end there, or None."""
        end = self._saved.log_end if self._saved is not None else 0
        path = f"{self._place.queue(key)}/{paths.offset_name(start)}"
        units = unit_files.read_units(
            folder, f"{paths.queue_folder(*key)}/{paths.offset_name(start)}", 0, size
        )
        is_written = unit_files.are_written(units)
        valid = np.flatnonzero(is_written & (units["physical_offset"] < end))
        if not len(valid):
            self._disk.unlink(path)
            return None
        last = int(valid[-1])
        if is_written[last + 1 :].any():
            rest = bytes((len(units) - last - 1) * cq_unit.SIZE)
            unit_files.write_at(path, size, [((last + 1) * cq_unit.SIZE, rest)])
        unit = units[last]
        ends = int(unit["physical_offset"]) + int(unit["size"])
        return QueueEnd(start // cq_unit.SIZE + last + 1, ends, is_fresh=False)

    # Steps ------------------------------------------------------------------------------------

    def step(self) -> bool:
        """Dispatch new records, up to a bound; return whether there were any."""
        job = DispatchJob(
            self._runner,
            self._store,
            self._config,
            allow_live=True,
            skips_batch=self._skips_batch,
        )
        saved = self._saved
        if saved is None:
            start = job.reader.log.min_offset
            saved = self._commit(_Saved(start, start))
        self._refuse_gap(job, saved)
        end = self._end(job, saved)
        self._done = replace(self._done, store_end=max(end, saved.log_end))
        if end <= saved.log_end:
            return False
        # Tombstones are read after the end of the log: a later one is after that end.
        deletions = tombstones.read(job.folder)
        self._drop_deleted(deletions, saved)
        stop = min(end, saved.log_end + _RANGES_A_STEP * self._range_bytes)
        self._drafts.begin()
        surveyed = job.survey(
            saved.log_end,
            stop,
            end,
            self._range_bytes,
            DispatchStart(
                saved.log_start,
                self._queue_ends,
                saved.index_number,
                max(saved.index_header.next_entry - 1, 0),
            ),
            SavedRows(self._drafts.parts),
        )
        for topic, queue_id in surveyed.queues.begun_again & self._queue_ends.keys():
            remove(Path(self._place.queues, topic, str(queue_id)))
        saved = self._write(surveyed, saved)
        self._disk.sync_filesystem(self._target)
        saved = replace(saved, last=_last_before(job, stop) or saved.last)
        self._commit(replace(saved, log_end=stop, tombstones=deletions))
        self._drafts.end()
        self._queue_ends.update(surveyed.queues.queue_ends)
        self._record(surveyed)
        return True

    def _write(self, surveyed: Surveyed, saved: _Saved) -> _Saved:
        """Write units and entries; return the commit with the new index file."""
        for key in surveyed.queues.extents:
            self._disk.make_folder(self._place.queue(key), is_durable=False)
        if surveyed.index:
            self._disk.make_folder(self._place.index, is_durable=False)
        index_tasks = surveyed.index_tasks(saved.index_name, saved.index_header)
        write = functools.partial(write_tasks.write, surveyed.parts, self._place)
        tasks: list[UnitTask | IndexTask] = [*index_tasks[:-1], *surveyed.unit_tasks()]
        self._runner("write", write, tasks)
        if not index_tasks:
            return saved
        # The driver writes the file that the next step continues: a second copy of a task may
        # outlive its step, and would restore old slots.
        task = index_tasks[-1]
        header = write(task)
        assert header is not None, "an index file has a header"
        return replace(
            saved, index_number=task.file.number, index_name=task.name, index_header=header
        )

    def _record(self, surveyed: Surveyed) -> None:
        done, unqueued = self._done, dict(self._done.unqueued)
        for reason, count in surveyed.unqueued.items():
            unqueued[reason] = unqueued.get(reason, 0) + count
        self._done = replace(
            done,
            steps=done.steps + 1,
            records=done.records + surveyed.records,
            units=done.units + surveyed.queues.units,
            refilled_units=done.refilled_units + surveyed.queues.refilled,
            index_entries=done.index_entries + surveyed.entries,
            unqueued=unqueued,
            holes=(*done.holes, *surveyed.holes),
        )

    def _commit(self, saved: _Saved) -> _Saved:
        self._disk.replace(self._path, saved.pack(self._sizes))
        self._saved = saved
        return saved

    def followed(self) -> Followed:
        """Return the progress so far."""
        saved = self._saved or _Saved(0, 0)
        files = 0 if saved.index_name is None else saved.index_number + 1
        return replace(
            self._done, log_start=saved.log_start, log_end=saved.log_end, index_files=files
        )

    def _refuse_gap(self, job: DispatchJob, saved: _Saved) -> None:
        """Refuse a log that was replaced, or lacks the next records."""
        if job.reader.log.min_offset > saved.log_end:
            raise StoreChanged(
                f"{self._store} begins at physical offset {job.reader.log.min_offset}, "
                f"{self._target} ends at {saved.log_end}: records between were deleted before they "
                "were followed; use a new folder"
            )
        if saved.last is None or saved.last[0] < job.reader.log.min_offset:
            return
        physical_offset, size, checksum = saved.last
        try:
            is_same = _checksum(job, physical_offset, size) == checksum
        except (CorruptRecord, NotInStore):
            is_same = False
        if not is_same:
            raise StoreChanged(
                f"{self._store} has another record at physical offset {physical_offset} than when "
                f"{self._target} was made: it lost the end of its log, or is another store; "
                "use a new folder"
            )

    def _end(self, job: DispatchJob, saved: _Saved) -> int:
        """Return where the log ends, without reading each queue of the store."""
        reader = job.reader
        if saved.last is not None and saved.last[0] >= reader.log.min_offset:
            if reader.log.data_end <= saved.log_end:
                return saved.log_end
            if reader.state.condition is not Condition.CLEAN:
                physical_offset, size, _ = saved.last
                message = reader.log.message_at(physical_offset)
                unit = cq_unit.Unit(physical_offset, size, 0)
                reader.set_last_units([(message.topic, message.queue_id, unit)])
        end = max(reader.end_offset, saved.log_end)
        if not reader.is_live:
            return end
        # The last record may be half written. It is whole if the broker has dispatched it.
        try:
            last = reader.log.message_at(end)
        except (CorruptRecord, NotInStore):
            return end
        unit_there = reader.queue(last.topic, last.queue_id).last_unit
        is_whole = unit_there is not None and unit_there.physical_offset >= end
        return end + last.store_size if is_whole else end

    def _drop_deleted(self, deletions: dict[str, int], saved: _Saved) -> None:
        """Drop the queues of topics that were deleted since the last step."""
        for topic, place in deletions.items():
            if place <= saved.tombstones.get(topic, -1):
                continue
            keys = [key for key in self._queue_ends if key[0] == topic]
            if keys and place < saved.log_end:
                raise StoreChanged(
                    f"topic {topic!r} was deleted at physical offset {place}, and {self._target} "
                    f"ends at {saved.log_end} already; use a new folder"
                )
            for key in keys:
                del self._queue_ends[key]
            remove(Path(self._place.queues, topic))


def _last_before(job: DispatchJob, stop: int) -> tuple[int, int, int] | None:
    """Return physical offset, size and checksum of the last record before an offset."""
    try:
        last = job.reader.log.last_record(job.reader.log.file_at(stop - 1), stop)
    except NotInStore:  # a file is missing there
        return None
    if last is None:
        return None
    place = (last.physical_offset, last.store_size)
    return (*place, _checksum(job, *place))


def _checksum(job: DispatchJob, physical_offset: int, size: int) -> int:
    return zlib.crc32(job.reader.log.record_bytes(physical_offset, size))
