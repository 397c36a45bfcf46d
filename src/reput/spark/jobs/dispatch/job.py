"""The parts that batch and stream of a dispatch share: the store, its checks, the first pass."""

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
    QueueEnd,
    QueueKey,
    QueuePlan,
    Survey,
)
from reput.spark.jobs.dispatch.write_tasks import IndexTask, SurveyTask, UnitTask
from reput.spark.jobs.running import Runner
from reput.store.config import StoreConfig
from reput.store.files import paths
from reput.store.files.files import Folder, open_folder
from reput.store.queues import tombstones
from reput.store.reader import Condition, StoreReader, refuse_foreign

RANGE_BYTES = 256 * 1024 * 1024
"""Approximate bytes of the log that a task reads."""

Hole = tuple[int, int, str]
"""Physical offset, length and reason of bytes of the log without records."""


@dataclass(frozen=True, slots=True)
class DispatchStart:
    """The queues and the index before the first pass; a batch starts from nothing."""

    log_start: int
    """Physical offset where the dispatched part of the log begins."""
    queue_ends: Mapping[QueueKey, QueueEnd]
    index_number: int = 0
    """Number of the index file to continue."""
    index_count: int = 0
    """Entries that this file has already."""


@dataclass(frozen=True, slots=True)
class Surveyed:
    """The facts and the plan after the first pass."""

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
            name: Name of the index file before, or of the one to continue; None if there is none.
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
        """Number of records."""
        return sum(survey.records for survey in self.surveys)

    @property
    def entries(self) -> int:
        """Number of index entries."""
        return sum(survey.entries for survey in self.surveys)

    @property
    def unqueued(self) -> dict[str, int]:
        """Reason -> records that should be in a queue and are not."""
        unqueued: dict[str, int] = {}
        for survey in self.surveys:
            for reason, count in survey.unqueued.items():
                unqueued[reason] = unqueued.get(reason, 0) + count
        if self.queues.rejected:
            unqueued["their queue offset cannot be right"] = self.queues.rejected
        return unqueued

    @property
    def holes(self) -> list[Hole]:
        """The holes of the log."""
        holes = [hole for survey in self.surveys for hole in survey.holes]
        holes += [
            (gap.physical_offset, gap.length, gap.reason)
            for gap in self.source.log.missing()
            if self.start <= gap.physical_offset < self.stop
        ]
        return sorted(holes)


class DispatchJob:
    """A store that is dispatched.

    Args:
        runner: Runs the tasks.
        store: The store's folder.
        config: The store's settings.
        topics: Topics whose queues are made; None for all, and the index.
        allow_live: A broker may have the store open.
        skips_batch: Batch queues are left as they are.
        holds_lock: The caller holds the lock on the store.

    Raises:
        InvalidOption: The store needs files that a dispatch does not make.
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
        self.reader = open_store(store, config, allow_live=allow_live, holds_lock=holds_lock)
        self.folder = self.reader.folder
        self._skips_batch = skips_batch
        self._batch_topics = frozenset[str]()
        self._refuse_other_kinds()

    def _refuse_other_kinds(self) -> None:
        """Refuse stores with queues of other kinds."""
        if self.config.enable_consume_queue_ext:
            raise InvalidOption(
                "enableConsumeQueueExt",
                True,
                "false: extension units are in the order of their queue, which one process makes",
            )
        for topic_folder in self.folder.entries(paths.CONSUME_QUEUE_EXT):
            if self.is_wanted(topic_folder.name):
                raise StoreUnavailable(
                    f"{self.store} has extension units of topic {topic_folder.name!r} "
                    f"({paths.CONSUME_QUEUE_EXT}), which a dispatch on Spark does not make"
                )
        self._batch_topics = frozenset(
            entry.name for entry in self.folder.entries(paths.BATCH_CONSUME_QUEUE)
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
        """Return whether a topic's queues are made."""
        return self.topics is None or topic in self.topics

    def deleted_before(self, end: int) -> dict[str, int]:
        """Return topic -> physical offset before which its messages are in no queue."""
        return {
            topic: min(place, end)
            for topic, place in tombstones.read(self.folder).items()
            if place > self.reader.log.min_offset
        }

    def refuse_other_sizes(self, folder: Folder) -> None:
        """Refuse sizes of files that differ from those of the existing files of the same kind.

        Some files may have been cut, by a crash or a bad copy.
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
        """Read a part of the log, and plan the output.

        Args:
            start: Physical offset where the part begins.
            stop: Physical offset where it ends.
            end: Physical offset where the log ends.
            range_bytes: Approximate bytes that a task reads.
            before: The present queues and index.
            saved: Where rows are saved; None to read them again.
        """
        log, config = self.reader.log, self.config
        deleted_before = self.deleted_before(end)
        source = LogSource(self.store, config, end, self.topics, deleted_before, self._batch_topics)
        files = [(file.start, min(file.nominal_end, file.end)) for file in log.files]
        spans = write_plan.cut_spans(plan.meet_spans(files, start, stop), deleted_before.values())
        ranges = plan.split_log(0, spans, end, range_bytes)
        surveys = self.runner(
            "survey",
            functools.partial(write_tasks.survey, source, self.is_indexed, saved),
            [SurveyTask(i, part) for i, part in enumerate(ranges)],
        )
        if any(extract.BATCH in survey.unqueued for survey in surveys):
            self._refuse_batch("according to its log")
        parts = saved or ReReadRows(source, ranges, self.is_indexed)
        queues = _plan_queues(parts, surveys, before, config)
        index = write_plan.plan_index(
            [survey.entries for survey in surveys],
            config.max_index_num,
            number=before.index_number,
            has=before.index_count,
        )
        return Surveyed(source, parts, start, stop, ranges, surveys, queues, index)


def open_log(store: str, config: StoreConfig) -> Folder:
    """Open a store. Raises ``StoreUnavailable`` if it has no log."""
    folder = open_folder(store, commit_log_folders=config.commit_log_folders)
    refuse_foreign(folder)
    if not folder.entries(paths.COMMIT_LOG):
        raise StoreUnavailable(f"{store} is no store: it has no files in {paths.COMMIT_LOG}")
    return folder


def open_store(
    store: str, config: StoreConfig, *, allow_live: bool, holds_lock: bool = False
) -> StoreReader:
    """Open a store, also to read its queues.

    Raises:
        StoreUnavailable: It has no log, or is in use without ``allow_live``.
    """
    folder = open_log(store, config)
    reader = StoreReader(folder, allow_live=allow_live, holds_lock=holds_lock)
    if reader.state.condition is Condition.RUNNING and not allow_live:
        raise StoreUnavailable(f"{store} is in use: stop its broker, or pass allow_live")
    return reader


def _refuse_sizes(where: str, sizes: set[int], size: int, keys: str) -> None:
    if sizes - {0} and size not in sizes:
        raise StoreUnavailable(
            f"files in {where} have {max(sizes)} bytes, but with {keys} they have {size}; set "
            "these to the values that the files were made with"
        )


def _plan_queues(
    parts: RangeRows, surveys: Sequence[Survey], before: DispatchStart, config: StoreConfig
) -> QueuePlan:
    """Plan the units; check single records where a damaged queue offset requires it."""
    file_units = config.mapped_file_size_consume_queue // cq_unit.SIZE
    fresh = QueueEnd(begins_at_multiple_of=1 if before.log_start else file_units)
    detailed: set[tuple[int, QueueKey]] = set()
    while True:
        try:
            return write_plan.plan_queues(
                surveys, fresh=fresh, queue_ends=before.queue_ends, detailed=detailed
            )
        except write_plan.NeedsDetail as need:
            detailed.add((need.number, need.key))
            spill.detail(parts, need.number, surveys[need.number], need.key)
