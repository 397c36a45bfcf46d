"""Salvage: write a clean store with every whole record of a damaged one.

    scan     log ranges, distributed: holes, and the queue offsets that records have
             queues, distributed: the queue offsets that should have records
    copy     log ranges, distributed: records to their old positions, and fillers into the holes
    derive   queues and index of the new log, distributed, by the job ``dispatch``
    adopt    the store is opened once, as a broker would: checkpoint, offsets after queues' ends
    publish  the draft folder is renamed to the target

Records keep their physical and queue offsets, so that ids, transactions, consumer offsets and the
files a broker keeps beside the log stay valid. docs/decisions/0012-salvage-keeps-every-offset.md
explains this, and how holes are filled. The source is only read. A killed run leaves a draft, which
the next run deletes; the same source gives the same bytes.
"""

import dataclasses
import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reput.errors import CorruptRecord
from reput.format import names
from reput.spark import plan
from reput.spark.jobs import folder_checks, hole_filling, inferred_settings, queue_runs
from reput.spark.jobs.adopted_store import MovedOffset, adopt, check_log
from reput.spark.jobs.dispatch import run_dispatch
from reput.spark.jobs.draft_store import DraftStore
from reput.spark.jobs.hole_filling import Hole
from reput.spark.jobs.queue_runs import Run
from reput.spark.jobs.running import Progress, Runner, runner_on
from reput.spark.jobs.salvage import copy as salvage_copy, scan as salvage_scan
from reput.spark.jobs.salvage.copy import Layout
from reput.spark.jobs.salvage.scan import QueueKey, Scanned, ScanTask
from reput.spark.jobs.stopped_store import StoppedStore
from reput.store.config import StoreConfig
from reput.store.files import paths
from reput.store.files.files import Folder, absolute
from reput.store.reader import StoreReader
from reput.store.tables import config_tables

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DRAFT_SUFFIX = ".salvage-draft"
PARTITION_BYTES = 128 * 1024 * 1024
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
        paths.KNOWN_QUEUES,
        paths.CONFIG,
    }
)
"""Files that the new store derives; all other files are copied."""


@dataclass(frozen=True, slots=True)
class SalvagedQueue:
    """The result for a queue."""

    topic: str
    queue_id: int
    message_count: int
    """Number of recovered messages; duplicates are counted once."""
    start: int
    """First recovered queue offset; 0 if there is none."""
    stop: int
    """Queue offset after the last recovered one."""
    lost: tuple[Run, ...]
    """Queue offsets ``[start, stop)`` of lost messages: between recovered ones, or named by the
    queue's own files.
    """
    duplicate_count: int
    """Records whose queue offset an earlier record has; the queue has the earlier one."""

    @property
    def lost_count(self) -> int:
        """Number of lost messages."""
        return queue_runs.count(self.lost)


@dataclass(frozen=True)
class Salvaged:
    """The result of a salvage; ``as_json`` gives plain values."""

    source: str
    target: str
    start_offset: int
    """Physical offset where both logs begin."""
    end_offset: int
    """Physical offset where the new log ends."""
    record_count: int
    record_bytes: int
    holes: tuple[Hole, ...]
    """All bytes of the source's log that belong to no whole record, also after its end."""
    queues: tuple[SalvagedQueue, ...]
    """Queues that have or had messages, by topic and queue id."""
    tables: tuple[tuple[str, str], ...]
    """Path and ``copied``, ``from backup``, ``lost`` or ``absent`` of each table."""
    moved_offsets: tuple[MovedOffset, ...]
    notes: tuple[str, ...]
    """Remarks for the operator."""

    @property
    def hole_bytes(self) -> int:
        """Number of bytes without records."""
        return sum(hole.length for hole in self.holes)

    @property
    def lost_count(self) -> int:
        """Number of messages known to be lost; a hole may have held others that no queue names."""
        return sum(queue.lost_count for queue in self.queues)

    @property
    def duplicate_count(self) -> int:
        """Number of records that are in no queue because another one has their queue offset."""
        return sum(queue.duplicate_count for queue in self.queues)

    def as_json(self) -> dict[str, Any]:
        """Return plain lists and dictionaries."""
        totals = {
            name: getattr(self, name) for name in ("hole_bytes", "lost_count", "duplicate_count")
        }
        return {**dataclasses.asdict(self), **totals}


def salvage(
    spark: "SparkSession | None",
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
        spark: The session; without one tasks run in this process.
        source: The damaged store; no broker may run on it.
        target: Folder of the new store: a local folder that every executor reaches, new or empty.
        config: Settings of the store's broker: file sizes, delay levels, extension. By default
            sizes are inferred from the files, and the rest has RocketMQ's defaults.
        include_stale: Also copy records after the end of the log, which an earlier recovery cut
            off. If another message has taken a record's queue offset since, the record is in no
            queue.
        partition_bytes: Bytes of the log per task.
        progress: Called with the completed tasks, and the steps of the driver.

    Raises:
        StoreUnavailable: The source is no store or in use, its file sizes do not fit, or the target
            is not empty.
        InvalidOption: ``config`` is needed or does not fit the files, or the target is inside of
            the source.
        WriteFailed: The target cannot be written; also ``DiskFull``. Run it again.
        TaskFailed: A task failed as often as Spark retries it.
    """
    runner = runner_on(spark, "salvage", progress)
    source, target = absolute(source), folder_checks.writable_folder("target", target)
    return _Salvage(runner, source, Path(target), config, include_stale, partition_bytes).run()


class _Salvage:
    """A run, on the driver."""

    def __init__(
        self,
        runner: Runner,
        source: str,
        target: Path,
        config: StoreConfig | None,
        include_stale: bool,
        partition_bytes: int,
    ) -> None:
        self._runner = runner
        self._source = source
        self._target = target
        self._draft = DraftStore(source, target, DRAFT_SUFFIX)
        self._partition_bytes = max(partition_bytes, 1)
        self._include_stale = include_stale
        self._store = StoppedStore(source)
        self._reader = self._store.reader()
        self._config = inferred_settings.infer_settings(self._reader, config)
        self._file_bytes = self._config.mapped_file_size_commit_log
        self._notes: list[str] = []

    def run(self) -> Salvaged:
        self._draft.refuse_target()
        reader, log = self._reader, self._reader.log
        stop = self._stop()
        scanned = self._runner("scan", salvage_scan.scan, self._scan_tasks(stop))
        holes = hole_filling.join(salvage_scan.with_times(scanned))
        end = max([log.min_offset, *(task.end for task in scanned)])
        # Holes after the end are reported, but not filled.
        inner = [hole for hole in holes if hole.end <= end]
        self._make_draft(end)
        layout = self._layout
        self._runner(
            "copy",
            functools.partial(salvage_copy.write, layout),
            salvage_copy.plan_copy(layout, inner, end, self._partition_bytes),
        )
        self._runner.report("tables", 0, 1)
        tables = self._copy_rest()
        self._derive(end)
        have = salvage_scan.by_queue(run for task in scanned for run in task.runs)
        self._keep_expired([key for task in scanned for key in task.expired if key not in have])
        moved = self._adopt(max((task.last_ms for task in scanned), default=0), end)
        self._publish()
        return Salvaged(
            source=self._source,
            target=str(self._target),
            start_offset=log.min_offset,
            end_offset=end,
            record_count=sum(task.record_count for task in scanned),
            record_bytes=sum(task.record_bytes for task in scanned),
            holes=tuple(hole_filling.join([*holes, *self._after_the_end(reader, stop)])),
            queues=self._queues_of(scanned, have),
            tables=tuple(tables),
            moved_offsets=tuple(moved),
            notes=tuple(self._notes),
        )

    @property
    def _layout(self) -> Layout:
        has_crc = self._config.enabled_append_prop_crc
        first = self._reader.log.min_offset
        return Layout(self._store, str(self._draft.path), first, self._file_bytes, has_crc)

    # Scan -----------------------------------------------------------------------------------

    def _stop(self) -> int:
        """Return the physical offset up to which the log is searched for records."""
        tail = self._reader.tail
        if self._include_stale and tail.stale is not None:
            return tail.stale.end
        return max(tail.end_offset, self._reader.log.min_offset)

    def _scan_tasks(self, stop: int) -> list[ScanTask]:
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
        return [ScanTask(self._store, part) for part in parts]

    def _after_the_end(self, reader: StoreReader, stop: int) -> list[Hole]:
        tail = reader.tail
        holes = []
        if tail.torn is not None:
            holes.append(salvage_scan.hole(tail.torn))
        if tail.stale is not None and stop <= tail.stale.physical_offset:
            reason = "an earlier recovery cut the log here; readable records may follow"
            holes.append(replace(salvage_scan.hole(tail.stale), reason=reason))
            self._notes.append(
                f"{tail.stale.length} bytes after the end of the log at "
                f"{tail.stale.physical_offset} may hold records; include_stale copies them too"
            )
        return holes

    def _queues_of(
        self, scanned: Sequence[Scanned], have: dict[QueueKey, list[Run]]
    ) -> tuple[SalvagedQueue, ...]:
        expected = salvage_scan.by_queue(run for task in scanned for run in task.expected)
        queues = []
        for key in sorted({*have, *expected}):
            runs, twice = queue_runs.union(have.get(key, []))
            wanted, _ = queue_runs.union([*expected.get(key, []), *queue_runs.gaps(runs)])
            lost = queue_runs.without(wanted, runs)
            queues.append(
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
        return tuple(queues)

    # Copy -----------------------------------------------------------------------------------

    def _make_draft(self, end: int) -> None:
        """Create the new log's files, empty and in full size."""
        self._draft.begin()
        first = self._reader.log.min_offset
        stop = max(end, first + bool(self._reader.log.files))  # the start of the log is kept, too
        self._draft.create_log_files(first, stop, self._file_bytes)

    # Everything else ------------------------------------------------------------------------

    def _copy_rest(self) -> list[tuple[str, str]]:
        """Copy the files that are not derived; an unreadable table is copied from its backup.

        Returns:
            Path and status of each table.
        """
        folder = self._reader.folder
        for entry in folder.entries(""):
            if entry.name not in _DERIVED:
                self._draft.copy_tree(folder, entry.name, is_folder=entry.is_folder)
        for entry in folder.entries(paths.CONFIG):
            path = f"{paths.CONFIG}/{entry.name}"
            if path.removesuffix(paths.BACKUP_SUFFIX) not in paths.TABLES:
                self._draft.copy_tree(folder, path, is_folder=entry.is_folder)
        if folder.entries(paths.BATCH_CONSUME_QUEUE):
            self._notes.append(
                f"{paths.BATCH_CONSUME_QUEUE} was copied as it is: units that pointed into a hole "
                f"now point at records of topic {hole_filling.TOPIC}"
            )
        return [(path, self._copy_table(folder, path)) for path in paths.TABLES]

    def _copy_table(self, folder: Folder, path: str) -> str:
        try:
            table = config_tables.find(folder, path)
        except CorruptRecord as error:
            self._notes.append(f"{path} is lost: {error.reason}")
            return "lost"
        if table is None:
            return "absent"
        _, readable = table
        self._draft.copy_file(folder, readable, path)
        return "copied" if readable == path else "from backup"

    def _keep_expired(self, keys: Sequence[QueueKey]) -> None:
        """Keep queues without messages that continue at an offset above 0: consumers have it."""
        for topic, queue_id in keys:
            self._draft.copy_tree(
                self._reader.folder, paths.queue_folder(topic, queue_id), is_folder=True
            )

    def _derive(self, end: int) -> None:
        """Derive queues and index of the new log.

        The dispatch on Spark makes no extension units: ``_adopt`` derives all queues of such
        stores.

        Raises:
            CorruptRecord: The new log is not as planned, which is a bug.
        """
        if self._config.enable_consume_queue_ext or not self._reader.log.files:
            return
        made = run_dispatch(
            self._runner,
            str(self._draft.path),
            config=self._config,
            in_place=True,
            skip_batch_queues=True,
            range_bytes=self._partition_bytes,
        )
        check_log(len(made.holes), made.log_end, end)

    def _adopt(self, newest_ms: int, end: int) -> list[MovedOffset]:
        """Open the new store as a broker would, and move offsets to the ends of queues."""
        self._runner.report("adopt", 0, 1)
        batch_topics = self._reader.batch_queue_ids
        moved = adopt(self._draft.path, self._config, newest_ms, end, batch_topics)
        self._runner.report("adopt", 1, 1)
        return moved

    def _publish(self) -> None:
        self._runner.report("publish", 0, 1)
        self._draft.publish()
        self._runner.report("publish", 1, 1)
