"""What the batch and the stream of a dispatch share: the store, what is refused, the first pass."""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from reput.errors import InvalidOption, StoreUnavailable
from reput.format import cq_unit, index_entry
from reput.spark import plan
from reput.spark.jobs.dispatch import (
    extract,
    index_writer,
    spill,
    unit_files,
    write_plan,
    write_tasks,
)
from reput.spark.jobs.dispatch.extract import LogSource
from reput.spark.jobs.dispatch.spill import RangeRows, ReReadRows, SavedRows
from reput.spark.jobs.dispatch.write_plan import (
    IndexFile,
    QueueKey,
    QueuePlan,
    QueueProgress,
    Survey,
)
from reput.spark.jobs.dispatch.write_tasks import IndexTask, SurveyTask, UnitTask
from reput.spark.jobs.running import Runner
from reput.store import paths, tombstones
from reput.store.config import StoreConfig
from reput.store.files import Folder, open_folder
from reput.store.reader import Condition, StoreReader, refuse_rocksdb
from reput.store.torn_records import find_torn_records

RANGE_BYTES = 256 * 1024 * 1024
"""About how much of the log a task reads."""

Hole = tuple[int, int, str]
"""Physical offset, length and reason of what is no record in the log."""


@dataclass(frozen=True, slots=True)
class DispatchStart:
    """How far queues and index are before the first pass; of a batch nothing is there yet."""

    log_start: int
    """Where the part of the log begins that is dispatched."""
    stands: Mapping[QueueKey, QueueProgress]
    index_number: int = 0
    """Of the index file to go on with."""
    index_count: int = 0
    """Entries that it has."""


@dataclass(frozen=True, slots=True)
class Surveyed:
    """What is known after the first pass."""

    source: LogSource
    parts: RangeRows
    start: int
    stop: int
    ranges: list[plan.LogRange]
    surveys: list[Survey]
    queues: QueuePlan
    index: list[IndexFile]

    def unit_tasks(self) -> list[UnitTask]:
        """Return the tasks that write units."""
        return [UnitTask(i, shares) for i, shares in enumerate(self.queues.shares) if shares]

    def index_tasks(
        self, name: str | None = None, header: index_entry.Header = index_writer.NO_ENTRIES
    ) -> list[IndexTask]:
        """Return the tasks that put entries into index files.

        Args:
            name: Of the index file before, or to go on with; None if there is none.
            header: Its header.
        """
        tasks: list[IndexTask] = []
        seed_ms = header.end_timestamp
        for file in self.index:
            if file.has:
                assert name is not None, "a file that has entries has a name"
                tasks.append(IndexTask(file, name, header))
                continue
            span = file.spans[0]
            first = self.parts.entries(span.range_number, span.start, span.start + 1)
            name = index_writer.name_of(int(first["store_timestamp"][0]), name)
            tasks.append(IndexTask(file, name, seed_ms=seed_ms))
        return tasks

    @property
    def records(self) -> int:
        """How many records there are."""
        return sum(one.records for one in self.surveys)

    @property
    def entries(self) -> int:
        """How many index entries there are."""
        return sum(one.entries for one in self.surveys)

    @property
    def unqueued(self) -> dict[str, int]:
        """Why records are in no queue that should be in one, and how many."""
        found: dict[str, int] = {}
        for one in self.surveys:
            for reason, count in one.unqueued.items():
                found[reason] = found.get(reason, 0) + count
        if self.queues.rejected:
            found["their queue offset cannot be right"] = self.queues.rejected
        return found

    @property
    def holes(self) -> list[Hole]:
        """What is no record in the log."""
        holes = [hole for one in self.surveys for hole in one.holes]
        holes += [
            (one.physical_offset, one.length, one.reason)
            for one in self.source.log.missing()
            if self.start <= one.physical_offset < self.stop
        ]
        return sorted(holes)


class DispatchJob:
    """A store that is dispatched.

    Args:
        runner: Runs the tasks.
        store: Its folder.
        config: Its settings.
        topics: Of which queues are wanted; None: of all, and the index.
        allow_live: A broker may have it.
        skips_batch: Batch queues are left as they are.
        holds_lock: The lock on the store is the caller's own.

    Raises:
        InvalidOption: It needs what is not made here.
        StoreUnavailable: The folder is no store, is in use, or has batch queues.
    """

    def __init__(
        self,
        runner: Runner,
        store: str,
        config: StoreConfig,
        topics: frozenset[str] | None = None,
        *,
        allow_live: bool,
        skips_batch: bool,
        holds_lock: bool = False,
    ) -> None:
        self.runner = runner
        self.store = store
        self.config = config
        self.topics = topics
        self.is_indexed = config.message_index_enable and topics is None
        self.folder = open_log(store, config)
        self.reader = StoreReader(self.folder, allow_live=allow_live, holds_lock=holds_lock)
        if self.reader.state.condition is Condition.RUNNING and not allow_live:
            raise StoreUnavailable(f"{store} is in use: stop its broker, or say allow_live")
        self._skips_batch = skips_batch
        self._batch_topics = frozenset[str]()
        self._refuse_other_kinds()

    def _refuse_other_kinds(self) -> None:
        """Refuse stores whose queues are not what is made here."""
        if self.config.enable_consume_queue_ext:
            raise InvalidOption(
                "enableConsumeQueueExt",
                True,
                "false: extension units stand in the order of their queue, which one process "
                "makes (reput store verify --repair)",
            )
        for one in self.folder.entries(paths.CONSUME_QUEUE_EXT):
            if self.is_wanted(one.name):
                raise StoreUnavailable(
                    f"{self.store} has extension units of topic {one.name!r} "
                    f"({paths.CONSUME_QUEUE_EXT}), which a dispatch on Spark does not make"
                )
        self._batch_topics = frozenset(
            one.name for one in self.folder.entries(paths.BATCH_CONSUME_QUEUE)
        )
        for topic in sorted(filter(self.is_wanted, self._batch_topics)):
            self._refuse_batch(f"of topic {topic!r}")

    def _refuse_batch(self, which: str) -> None:
        if not self._skips_batch:
            raise StoreUnavailable(
                f"{self.store} has batch queues {which} (queue.type=BatchCQ), which are not made "
                "here; skip_batch_queues leaves them as they are and makes the rest"
            )

    def is_wanted(self, topic: str) -> bool:
        """Whether a topic's queues are to be made."""
        return self.topics is None or topic in self.topics

    def buried(self, end: int) -> dict[str, int]:
        """Return before which physical offset messages of deleted topics are in no queue."""
        return {
            topic: min(at, end)
            for topic, at in tombstones.read(self.folder).items()
            if at > self.reader.log.min_offset
        }

    def refuse_other_sizes(self, folder: Folder) -> None:
        """Refuse to make files of other sizes than are there: a store has one of each kind.

        Some may be cut, by a crash or a bad copy.
        """
        config = self.config
        _refuse_sizes(
            f"{folder.location}/{paths.CONSUME_QUEUE}",
            {size for _, _, size in unit_files.queue_files(folder)},
            config.mapped_file_size_consume_queue,
            f"mappedFileSizeConsumeQueue={config.mapped_file_size_consume_queue}",
        )
        if self.is_indexed:
            _refuse_sizes(
                f"{folder.location}/{paths.INDEX}",
                set(unit_files.index_files(folder).values()),
                write_tasks.index_bytes(config),
                f"maxHashSlotNum={config.max_hash_slot_num} and maxIndexNum={config.max_index_num}",
            )

    # The first pass ---------------------------------------------------------------------------

    def survey(
        self,
        start: int,
        stop: int,
        end: int,
        range_bytes: int,
        before: DispatchStart,
        saved: SavedRows | None,
    ) -> Surveyed:
        """Read a part of the log, and plan.

        Args:
            start: Where the part begins.
            stop: Where it ends.
            end: Where the log ends.
            range_bytes: About how much a task reads.
            before: How far queues and index are.
            saved: Where rows are kept; None: nowhere, they are read again.
        """
        log, config = self.reader.log, self.config
        buried = self.buried(end)
        torn = self._torn_spans(end)
        source = LogSource(self.store, config, end, self.topics, buried, torn, self._batch_topics)
        files = [(file.start, min(file.nominal_end, file.end)) for file in log.files]
        spans = write_plan.cut_spans(plan.meet_spans(files, start, stop), buried.values())
        ranges = plan.split_log(0, spans, end, range_bytes)
        surveys = self.runner(
            "survey",
            functools.partial(write_tasks.survey, source, self.is_indexed, saved),
            [SurveyTask(i, part) for i, part in enumerate(ranges)],
        )
        if any(extract.BATCH in one.unqueued for one in surveys):
            self._refuse_batch("according to its log")
        parts = saved or ReReadRows(source, ranges, self.is_indexed)
        queues = _plan_queues(parts, surveys, before, config)
        index = write_plan.plan_index(
            [one.entries for one in surveys],
            config.max_index_num,
            number=before.index_number,
            has=before.index_count,
        )
        return Surveyed(source, parts, start, stop, ranges, surveys, queues, index)

    def _torn_spans(self, end: int) -> tuple[tuple[int, int], ...]:
        """Return the records that a crash has torn, in the part of the log that was not synced."""
        if self.reader.state.condition is not Condition.CRASHED or self.reader.is_live:
            return ()
        torn = find_torn_records(self.reader.log, self._synced(end), end)
        return tuple((one.physical_offset, one.end) for one in torn)

    def _synced(self, end: int) -> int:
        """Return a record before which the log was on disk when the broker died."""
        log, saved = self.reader.log, self.reader.state.checkpoint
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


def open_log(store: str, config: StoreConfig) -> Folder:
    """Open a store. Raises ``StoreUnavailable`` if it has no log."""
    folder = open_folder(store, commit_log_folders=config.commit_log_folders)
    refuse_rocksdb(folder)
    if not folder.entries(paths.COMMIT_LOG):
        raise StoreUnavailable(f"{store} is no store: it has no files in {paths.COMMIT_LOG}")
    return folder


def _refuse_sizes(where: str, found: set[int], size: int, keys: str) -> None:
    if found - {0} and size not in found:
        raise StoreUnavailable(
            f"files in {where} have {max(found)} bytes, but with {keys} they have {size}; set "
            "that to what they were made with"
        )


def _plan_queues(
    parts: RangeRows, surveys: Sequence[Survey], before: DispatchStart, config: StoreConfig
) -> QueuePlan:
    """Plan the units; where a damaged queue offset makes it necessary, look at single records."""
    file_units = config.mapped_file_size_consume_queue // cq_unit.SIZE
    fresh = QueueProgress(begins_at_multiple_of=1 if before.log_start else file_units)
    detailed: set[tuple[int, QueueKey]] = set()
    while True:
        try:
            return write_plan.plan_queues(
                surveys, fresh=fresh, stands=before.stands, detailed=detailed
            )
        except write_plan.NeedsDetail as need:
            detailed.add((need.number, need.key))
            spill.detail(parts, need.number, surveys[need.number], need.key)
