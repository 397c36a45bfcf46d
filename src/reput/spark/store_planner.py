"""Plans the read of a store: from options and predicates to partitions.

Planning reads names, headers and queue ends, never the log's records. It chooses the cheapest
complete way:

* by index, for a key: the records that the index names, and a scan of the range it does not cover;
* by consume queue, if the selected queues are a small part of the log: their units, and a scan of
  the log files that units do not cover (not dispatched yet, a crash, damaged queues);
* by log: every file that physical offsets and store times do not exclude.
"""

import logging
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from reput.errors import CorruptRecord, InvalidOption, NotInStore, ReputError, one_of
from reput.format import (
    index_entry,
    message as record,
    message_id,
    names,
    sys_flag as flags,
)
from reput.format.message import Verdict
from reput.spark import plan
from reput.spark.filters import Constraint, Span
from reput.spark.option_kinds import EARLIEST, LATEST
from reput.spark.option_table import FAILFAST, SALVAGE
from reput.spark.options import Bound, ReadOptions
from reput.spark.portions import unwrapped
from reput.spark.rows import RowFilter
from reput.spark.store_opening import open_reader
from reput.store.files import paths
from reput.store.log.commit_log_view import LogFile
from reput.store.queues.consume_queue_view import BatchConsumeQueueView, ConsumeQueueView
from reput.store.reader import END_OF_TIME_MS, Boundary, Condition, StoreReader

log = logging.getLogger("reput.spark")

QUEUE_SHARE_MAX = 0.5
"""Largest share of the log for which reading by queue is faster."""
CLOCK_SLACK_MS = 60_000
"""Margin for clocks that were set back when files and slices are skipped by store time, in ms."""
_SAMPLE_UNITS = 256
_NAMES_SHOWN = 20
_UNITS_AT_ONCE = 1 << 20
_POINTS_A_PARTITION = 10_000

T = TypeVar("T")
Limits = dict[tuple[str, int], tuple[int, int]]
"""(topic, queue id) -> selected queue offsets [start, stop)."""


class DataLoss(ReputError):
    """Selected messages no longer exist; the text has them, and how to read the rest."""


@dataclass
class Summary:
    """Decisions of a plan, for logs and people."""

    lines: list[str] = field(default_factory=list)

    def add(self, text: str) -> None:
        """Record one decision."""
        self.lines.append(text)


@dataclass(frozen=True)
class StoreFacts:
    """Results of planning for the readers of a store."""

    path: str
    plan: str
    """Id of the plan: the store may have changed between plans."""
    broker: str
    limits: Limits | None
    """Selected queue offsets; None for all."""
    end_offset: int
    """Physical offset of the end of the log."""
    scanned: tuple[tuple[int, int], ...]
    """Scanned ranges of the log, whose units are skipped."""
    must_have_all: bool = False
    """True if a missing message of a queue slice is a loss: no scan would find it."""


@dataclass(frozen=True)
class Task:
    """One partition with everything needed to read it: the planner ships nothing else."""

    partition: plan.Partition
    facts: StoreFacts


def check_brokers(options: ReadOptions, brokers: set[str]) -> None:
    """Reject JSON options for unknown brokers, which would select nothing."""
    for name, table in options.by_broker():
        for named in table.values():
            for broker in named:
                is_meant = "" in brokers and len(named) == 1
                if broker not in brokers and not is_meant:
                    known = ", ".join(sorted(brokers - {""})) or "names set with option broker"
                    raise InvalidOption(name, broker, f"brokers of the stores: {known}")


def option_constraint(options: ReadOptions) -> Constraint:
    """Return the conditions of options on columns."""
    topics = options.topics
    if options.assign is not None:
        topics = frozenset(options.assign)
    low = options.start_physical_offset
    high = options.end_physical_offset
    return Constraint(
        topics=topics,
        tags=options.tags,
        physical_offsets=Span().meet(Span(low or 0, (1 << 63) - 1 if high is None else high - 1)),
    )


class StorePlanner:
    """Plans one store.

    Args:
        number: Index of the store in the read.
        path: Its folder.
        options: Options of the read.
        constraint: Conditions on rows.
        summary: Records the decisions.
        by_queue_only: Ignore records without a unit, as streams do.

    Raises:
        StoreUnavailable: The path is not a store, or is in use.
    """

    def __init__(
        self,
        number: int,
        path: str,
        options: ReadOptions,
        constraint: Constraint,
        summary: Summary,
        *,
        by_queue_only: bool = False,
    ) -> None:
        self._number = number
        self._path = path
        self._options = options
        self._constraint = constraint
        self._summary = summary
        self._filter = RowFilter(options, constraint)
        self._by_queue_only = by_queue_only
        self._reader = open_reader(path, allow_live=options.allow_live)
        self._plan = uuid.uuid4().hex
        self._scanned: tuple[tuple[int, int], ...] = ()
        self.broker = options.broker or self._tolerated(self._reader.broker_name, "")

    def tasks(self) -> list[Task]:
        """Plan a batch read. Raises as ``MessageScan.tasks`` does."""
        self._check_queues()
        limits = self._limits()
        parts: list[plan.Partition] = []
        if not self._constraint.is_empty:
            spans = self._spans()
            partitions = self._by_index(spans)
            if partitions is None:
                partitions = self._by_queue(spans, limits)
            if partitions is None:
                partitions = self._by_log(spans)
            parts = partitions + self._after_the_end()
        self._summary.add(f"{self._path}: {len(parts)} partitions")
        end = self._reader.end_offset
        facts = StoreFacts(self._path, self._plan, self.broker, limits, end, self._scanned)
        return [Task(part, facts) for part in parts]

    def counts(self) -> dict[tuple[str, int], int] | None:
        """Return the number of rows of each selected queue, from its units.

        Returns:
            None if a read is necessary: for conditions on other columns, a mode in which damage
            has rows, or records without units.

        Raises:
            ReputError: As ``tasks``.
        """
        self._check_queues()
        limits = self._limits()
        queues = self._wanted_queues()
        if self._constraint.is_empty:
            return {}
        if not self._is_about_queues() or self._unaccounted or self._reader.batch_queue_ids:
            return None
        log_view, end = self._reader.log, self._reader.end_offset
        counts = {}
        for queue in [(topic, queue_id) for topic, ids in queues.items() for queue_id in ids]:
            if limits is not None and queue not in limits:
                continue
            view = self._reader.queue(*queue)
            low, high = (view.min_offset, view.max_offset) if limits is None else limits[queue]
            count = 0
            for start in range(low, high, _UNITS_AT_ONCE):
                _, units = view.units(start, min(start + _UNITS_AT_ONCE, high))
                offsets = units["physical_offset"].astype(np.int64)
                count += int(np.count_nonzero(log_view.holds(offsets) & (offsets < end)))
            counts[queue] = count
        return counts

    def _is_about_queues(self) -> bool:
        """Return whether options and conditions select whole queues, or ranges of them."""
        options, wanted = self._options, self._constraint
        others = (options.keys, options.unique_keys, options.sql92, wanted.tags, wanted.message_ids)
        span = wanted.physical_offsets
        return (
            options.mode == FAILFAST
            and options.isolation == "committed"
            and options.scan == "auto"
            and not options.resolve_topics
            and all(condition is None for condition in others)
            and span.low <= self._reader.log.min_offset
            and span.high >= self._reader.end_offset
            and wanted.queue_offsets.is_all
            and wanted.store_times_us.is_all
        )

    @property
    def reader(self) -> StoreReader:
        """The store."""
        return self._reader

    def facts(self, end_offset: int, *, must_have_all: bool) -> StoreFacts:
        """Return the results of planning for readers of queue slices or points."""
        return StoreFacts(
            self._path, self._plan, self.broker, None, end_offset, (), must_have_all=must_have_all
        )

    def queues(self) -> list[tuple[str, int]]:
        """Return the selected queues that have files: (topic, queue id)."""
        return [
            (topic, queue_id)
            for topic, ids in self._wanted_queues().items()
            for queue_id in ids
            if self._is_assigned(topic, queue_id)
        ]

    def starts(self) -> dict[tuple[str, int], int]:
        """Return the start queue offset of each selected queue.

        Raises:
            InvalidOption: Topics, offsets or times in the options do not fit the store.
            DataLoss: Messages in the options are deleted, unless ``failOnDataLoss`` is false.
        """
        self._check_queues()
        limits = {queue: self._queue_limits(*queue) for queue in self.queues()}
        self._check_named_queues(limits)
        return {queue: start for queue, (start, _) in limits.items()}

    def _tolerated(self, read: Callable[[], T], default: T) -> T:
        """Return the content of a table; tolerate a damaged one except in FAILFAST."""
        try:
            return read()
        except CorruptRecord as error:
            if self._options.mode == FAILFAST:
                raise
            log.warning("%s: %s", self._path, error)
            return default

    # Which queues ---------------------------------------------------------------------------

    def _wanted_queues(self) -> dict[str, list[int]]:
        """Return the selected topics with files, and their queues."""
        queues: dict[str, list[int]] = {}
        for table in (self._reader.queue_ids, self._reader.batch_queue_ids):
            for topic, ids in table.items():
                # A light queue points at messages of other topics: it is not a topic itself.
                if topic.startswith(names.LMQ_PREFIX) or not self._filter.wants_topic(topic):
                    continue
                queues[topic] = sorted({*queues.get(topic, ()), *ids})
        if self._constraint.queue_ids is not None:
            wanted = self._constraint.queue_ids
            queues = {topic: [i for i in ids if i in wanted] for topic, ids in queues.items()}
        return queues

    def _check_queues(self) -> None:
        self._check_topics()
        wanted = self._wanted_queues()
        self._reader.load_min_offsets(
            self.queue_view(topic, i) for topic in wanted for i in wanted[topic]
        )
        self._check_queue_ends(wanted)

    def _check_topics(self) -> None:
        named = self._options.topics or (self._options.assign or {}).keys()
        light = [topic for topic in named if topic.startswith(names.LMQ_PREFIX)]
        if light:
            raise InvalidOption(
                "topic", light[0], "topics; a light queue's messages are in its topic"
            )
        table: set[str] = self._tolerated(lambda: {*self._reader.topics()}, set())
        known = sorted({*self._reader.queue_ids, *self._reader.batch_queue_ids, *table})
        missing = sorted(topic for topic in named if topic not in known)
        # Without any queue files the log itself must be searched for the topic.
        if missing and self._reader.queue_end is not None:
            known.sort(key=lambda topic: (names.kind_of(topic) != "user", topic))
            has = one_of(missing[0], known, _NAMES_SHOWN)
            self._lose(f"topic {missing[0]!r} is not in {self._path}; it has {has}")

    def _check_queue_ends(self, wanted: Mapping[str, Sequence[int]]) -> None:
        """Check that no queue of a cleanly stopped store reaches beyond its log."""
        if self._reader.state.condition is not Condition.CLEAN:
            return
        end = self._reader.end_offset
        for topic, ids in wanted.items():
            for queue_id in ids:
                reached = self.queue_view(topic, queue_id).end_physical_offset
                if reached is not None and reached > end:
                    self._lose(
                        f"queue {topic}/{queue_id} of {self._path} has messages up to physical "
                        f"offset {reached}, the log ends at {end}"
                    )

    def _lose(self, what: str) -> None:
        if self._options.fail_on_data_loss:
            raise DataLoss(f"{what} (failOnDataLoss=false reads the rest)")
        log.warning("%s", what)
        self._summary.add(f"data loss: {what}")

    def _limits(self) -> Limits | None:
        """Return the queue offsets of each selected queue; None if all are whole."""
        options = self._options
        if options.start.is_whole and options.end.is_whole and options.assign is None:
            return None
        queues = {(topic, i) for topic, ids in self._wanted_queues().items() for i in ids}
        ids = self._constraint.queue_ids
        queues |= {
            (topic, queue_id)
            for topic, queue_id in self._unqueued
            if self._filter.wants_topic(topic) and (ids is None or queue_id in ids)
        }
        limits = {
            (topic, queue_id): self._queue_limits(topic, queue_id)
            for topic, queue_id in sorted(queues)
            if self._is_assigned(topic, queue_id)
        }
        self._check_named_queues(limits)
        return limits

    def _is_assigned(self, topic: str, queue_id: int) -> bool:
        if self._options.assign is None:
            return True
        brokers = self._options.assign.get(topic, {})
        return queue_id in _of_broker(brokers, self.broker, ())

    def _check_named_queues(self, limits: Limits) -> None:
        for _, table in self._options.by_broker():
            for topic, brokers in table.items():
                for queue_id in _of_broker(brokers, self.broker, ()):
                    if (topic, queue_id) not in limits:
                        self._lose(f"queue {topic}/{queue_id} is not in {self._path}")

    def _queue_limits(self, topic: str, queue_id: int) -> tuple[int, int]:
        view = self.queue_view(topic, queue_id)
        low, high = view.min_offset, view.max_offset
        others = [offset for offset, _ in self._unqueued.get((topic, queue_id), ())]
        if others:
            low = min(others) if low == high else min(low, *others)
            high = max(high, max(others) + 1)
        start = self._bound(self._options.start, topic, queue_id, low, high, is_start=True)
        stop = self._bound(self._options.end, topic, queue_id, low, high, is_start=False)
        if not (low <= start <= high and low <= stop <= high):
            self._lose(
                f"queue {topic}/{queue_id} of {self._path} holds {low} to {high}, asked for were "
                f"{start} to {stop}"
            )
        return max(start, low), max(min(stop, high), max(start, low))

    def queue_view(self, topic: str, queue_id: int) -> ConsumeQueueView | BatchConsumeQueueView:
        """Return the view of a plain or batch queue."""
        if queue_id in self._reader.batch_queue_ids.get(topic, ()):
            return self._reader.batch_queue(topic, queue_id)
        return self._reader.queue(topic, queue_id)

    def _bound(
        self,
        bound: Bound,
        topic: str,
        queue_id: int,
        low: int,
        high: int,
        *,
        is_start: bool,
    ) -> int:
        if bound.timestamp_ms is not None:
            return self._offset_by_time(topic, queue_id, bound.timestamp_ms, high)
        time_ms = _of_broker(bound.timestamps.get(topic, {}), self.broker, {}).get(queue_id)
        if time_ms is not None:
            queue_offset = self._offset_by_time(topic, queue_id, time_ms, high)
            if is_start and queue_offset == high and self._options.late_timestamp == "error":
                raise InvalidOption(
                    "startingOffsetsByTimestamp",
                    time_ms,
                    f"a time up to the last message of queue {topic}/{queue_id}; or set "
                    "startingOffsetsByTimestampStrategy=latest to read nothing of it",
                )
            return queue_offset
        if bound.group is not None:
            name = "startingOffsets" if is_start else "endingOffsets"
            default = low if is_start else high
            return self._consumer_offset(name, bound.group, topic, queue_id, default)
        asked = _of_broker(bound.offsets.get(topic, {}), self.broker, {}).get(queue_id)
        if asked is None:
            return high if bound.word == "latest" else low
        return {EARLIEST: low, LATEST: high}.get(asked, asked)

    def _offset_by_time(self, topic: str, queue_id: int, time_ms: int, high: int) -> int:
        """Return the first queue offset at or after a time, ``high`` if there is none."""
        queue_offset = self._reader.offset_by_time(topic, queue_id, time_ms, Boundary.LOWER)
        is_last = queue_offset == self.queue_view(topic, queue_id).max_offset
        others = self._unqueued.get((topic, queue_id), ())
        return min([high if is_last else queue_offset, *(n for n, ms in others if ms >= time_ms)])

    def _consumer_offset(
        self, name: str, group: str, topic: str, queue_id: int, default: int
    ) -> int:
        offsets = self._reader.consumer_offsets()
        if not any(row.group == group for row in offsets):
            known = ", ".join(sorted({row.group for row in offsets}))
            raise InvalidOption(name, f"group:{group}", f"group: and one of {known}")
        for row in offsets:
            if (row.group, row.topic, row.queue_id) == (group, topic, queue_id):
                return row.consumer_offset
        return default

    # Which bytes ----------------------------------------------------------------------------

    def _spans(self) -> list[tuple[int, int]]:
        """Return the ranges of the log that may have selected records."""
        reader, wanted = self._reader, self._constraint
        end = reader.end_offset
        spans = [(reader.log.min_offset, end)] if end > reader.log.min_offset else []
        span = wanted.physical_offsets
        spans = plan.meet_spans(spans, max(span.low, 0), min(span.high, end) + 1)
        if wanted.store_times_us.is_all:
            return spans
        low_ms = wanted.store_times_us.low // 1000 - CLOCK_SLACK_MS
        high_ms = wanted.store_times_us.high // 1000 + CLOCK_SLACK_MS
        kept, skipped = [], 0
        files = [file for file in reader.log.files if file.start < end]
        firsts = [reader.log.first_record(file) for file in files]
        for i, file in enumerate(files):
            first = firsts[i]
            following = firsts[i + 1] if i + 1 < len(files) else None
            begins_late = first is not None and first.store_timestamp > high_ms
            ends_early = following is not None and following.store_timestamp < low_ms
            if begins_late or ends_early:
                skipped += 1
            else:
                kept.append((file.start, min(file.nominal_end, end)))
        self._summary.add(f"{self._path}: store time skips {skipped} of {len(files)} log files")
        return [part for low, high in kept for part in plan.meet_spans(spans, low, high)]

    def _by_log(self, spans: list[tuple[int, int]]) -> list[plan.Partition]:
        total = _length(spans)
        self._summary.add(f"{self._path}: log scan of {total} bytes")
        return self._split_log(plan.join_spans(spans), total)

    def _split_log(self, spans: list[tuple[int, int]], total: float) -> list[plan.Partition]:
        """Split ranges of the log; ``total`` is the size of all partitions of the store."""
        options = self._options
        target = plan.target_bytes(total, options.max_bytes_per_partition, options.min_partitions)
        if options.max_records_per_partition and spans:
            target = min(target, int(options.max_records_per_partition * self._mean_bytes()))
        return [*plan.split_log(self._number, spans, self._reader.end_offset, max(target, 1))]

    def _mean_bytes(self) -> float:
        """Return the average record size in the first megabyte."""
        first = next(iter(self._reader.walk()), None)
        return float(first.sizes.mean()) if first is not None and len(first.sizes) else 1024.0

    def _after_the_end(self) -> list[plan.Partition]:
        tail = self._reader.tail
        rest = tail.stale or tail.torn
        if rest is None:
            return []
        kind = "stale" if tail.stale else "torn"
        is_read = self._options.mode == SALVAGE
        self._summary.add(
            f"{self._path}: {rest.length} {kind} bytes after the end of the log at "
            f"{rest.physical_offset} are {'searched for records' if is_read else 'not read'}"
        )
        if not is_read:
            return []
        return [plan.LogRange(self._number, rest.physical_offset, rest.end, True, is_stale=True)]

    # By queue -------------------------------------------------------------------------------

    def _by_queue(
        self, spans: list[tuple[int, int]], limits: Limits | None
    ) -> list[plan.Partition] | None:
        choice = self._options.scan
        selects = self._options.selects_topics or self._constraint.topics is not None
        if choice == "log" or not (selects or limits is not None or self._constraint.queue_ids):
            return None
        queues = self._wanted_queues()
        if any(topic in self._reader.batch_queue_ids for topic in queues):
            return None
        extents = [
            extent
            for topic, ids in queues.items()
            for queue_id in ids
            if (extent := self._extent(topic, queue_id, limits)) is not None
        ]
        wanted_bytes = sum(extent.byte_count for extent in extents)
        log_bytes = _length(spans)
        if choice == "auto" and wanted_bytes > QUEUE_SHARE_MAX * log_bytes:
            return None
        rest = _common(spans, self._unaccounted)
        total = wanted_bytes + _length(rest)
        if choice == "auto" and total > QUEUE_SHARE_MAX * log_bytes:
            return None
        self._summary.add(
            f"{self._path}: {len(extents)} consume queues, about {int(wanted_bytes)} of "
            f"{log_bytes} bytes; log scan of {_length(rest)} bytes that units do not account for"
        )
        self._scanned = tuple(self._unaccounted)
        options = self._options
        target = plan.target_bytes(total, options.max_bytes_per_partition, options.min_partitions)
        return [
            *plan.split_queues(self._number, extents, target, options.max_records_per_partition),
            *self._split_log(rest, total),
        ]

    def _extent(self, topic: str, queue_id: int, limits: Limits | None) -> plan.Extent | None:
        if limits is not None and (topic, queue_id) not in limits:
            return None
        queue = self._reader.queue(topic, queue_id)
        span = self._constraint.queue_offsets
        low, high = max(queue.min_offset, span.low), min(queue.max_offset, span.high + 1)
        if limits is not None:
            low, high = max(low, limits[topic, queue_id][0]), min(high, limits[topic, queue_id][1])
        times = self._constraint.store_times_us
        if not times.is_all and low < high:
            begin_ms = times.low // 1000 - CLOCK_SLACK_MS
            end_ms = times.high // 1000 + CLOCK_SLACK_MS
            first = self._reader.offset_by_time(topic, queue_id, begin_ms, Boundary.LOWER)
            last = self._reader.offset_by_time(topic, queue_id, end_ms, Boundary.UPPER)
            low, high = max(low, first), min(high, last + 1)
        if low >= high:
            return None
        _, units = queue.units(low, min(high, low + _SAMPLE_UNITS))
        size = float(units["size"].astype(np.int64).mean()) if len(units) else 1.0
        return plan.Extent(plan.QueueSlice(topic, queue_id, low, high), size)

    @cached_property
    def _unaccounted(self) -> list[tuple[int, int]]:
        """Return ranges of the log that may have records without a unit.

        If the records of units fill a log file, up to its blank or the end of the log, it has no
        others. Also valid for crashed stores and damaged queues.
        """
        log_view, end = self._reader.log, self._reader.end_offset
        files = [file for file in log_view.files if file.start < end]
        starts = np.array([file.start for file in files], np.int64)
        filled, reached = np.zeros(len(files), np.int64), starts.copy()
        for offsets, sizes in self._records_of_units():
            inside = log_view.holds(offsets) & (offsets < end)
            place = np.searchsorted(starts, offsets[inside], "right") - 1
            np.add.at(filled, place, sizes[inside])
            np.maximum.at(reached, place, offsets[inside] + sizes[inside])
        accounted = []
        for file, count, stop in zip(files, filled.tolist(), reached.tolist(), strict=True):
            if file.start + count == stop <= end:
                stop = file.nominal_end if self._is_blank(file, stop) else stop
                accounted.append((file.start, stop))
        return plan.without_spans([(log_view.min_offset, end)], plan.join_spans(accounted))

    def _records_of_units(self) -> Iterator[tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]]:
        """Yield physical offsets and sizes of queued records, without duplicates."""
        reader = self._reader
        for queue in reader.queues():
            if queue.topic.startswith(names.LMQ_PREFIX):
                continue
            for start in range(queue.min_offset, queue.max_offset, _UNITS_AT_ONCE):
                _, units = queue.units(start, min(start + _UNITS_AT_ONCE, queue.max_offset))
                yield units["physical_offset"].astype(np.int64), units["size"].astype(np.int64)
        for topic, ids in reader.batch_queue_ids.items():
            for units in (reader.batch_queue(topic, queue_id).units for queue_id in ids):
                yield units["physical_offset"].astype(np.int64), units["size"].astype(np.int64)

    def _is_blank(self, file: LogFile, physical_offset: int) -> bool:
        path = f"{paths.COMMIT_LOG}/{file.name}"
        data = self._reader.folder.read(path, physical_offset - file.start, record.JUDGED_BYTES)
        file_end = file.nominal_end - physical_offset
        return record.classify(data, 0, physical_offset, file_end=file_end)[0] is Verdict.BLANK

    @cached_property
    def _unqueued(self) -> dict[tuple[str, int], list[tuple[int, int]]]:
        """First messages of queues that only the log has: key -> (queue offset, store time)."""
        if self._by_queue_only:
            return {}
        first_messages: dict[tuple[str, int], list[tuple[int, int]]] = defaultdict(list)
        for start, stop in self._unaccounted:
            for batch in self._reader.walk(start, stop, check_crc=False):
                for columns in unwrapped(batch.columns()):
                    is_queued = (columns.numbers("sys_flag") & flags.TRANSACTION_PREPARED) == 0
                    queued = columns.take(is_queued)
                    ids, topics = queued.topic_ids()
                    numbers = ("queue_id", "queue_offset", "store_timestamp")
                    values = (queued.numbers(name).tolist() for name in numbers)
                    for i, queue_id, offset, time_ms in zip(ids.tolist(), *values, strict=True):
                        first_messages[topics[i], queue_id].append((offset, time_ms))
        return first_messages

    # By index -------------------------------------------------------------------------------

    def _by_index(self, spans: list[tuple[int, int]]) -> list[plan.Partition] | None:
        options, wanted = self._options, self._constraint
        keys = options.unique_keys or options.keys or wanted.message_ids
        if keys is None or options.scan != "auto" or self._has_unindexed:
            return None
        try:
            covered = self._indexed_spans()
            points = self._indexed(keys)
        except CorruptRecord as error:
            self._summary.add(f"{self._path}: index not used, {error}")
            return None
        rest = plan.without_spans(spans, covered)
        if wanted.topics is None or options.isolation != "committed":
            # Keys are indexed under their topic: only topics with queues can be looked up, and
            # rolled-back messages are in no index.
            rest = plan.join_spans([*rest, *_common(spans, self._unaccounted)])
        points |= {p for text in wanted.message_ids or () for p in self._places_of(text)}
        physical_offsets = [
            p
            for p in sorted(points)
            if any(low <= p < high for low, high in spans)
            and not any(low <= p < high for low, high in rest)
        ]
        scanned = _length(rest)
        self._summary.add(
            f"{self._path}: index names {len(physical_offsets)} records; log scan of {scanned} "
            "bytes that it does not cover"
        )
        return [
            *self._split_log(rest, scanned),
            *(
                plan.Points(self._number, tuple(physical_offsets[i : i + _POINTS_A_PARTITION]))
                for i in range(0, len(physical_offsets), _POINTS_A_PARTITION)
            ),
        ]

    @property
    def _has_unindexed(self) -> bool:
        """True if there may be messages inside of batch records, whose keys are in no index."""
        return any(map(self._filter.wants_topic, self._reader.batch_queue_ids))

    def _places_of(self, text: str) -> set[int]:
        """Return the position of the message with this offset id; nothing if it is not one.

        Unique keys have the same form, but rarely decode to the position of a record.
        """
        log_view = self._reader.log
        try:
            place = message_id.decode_offset_id(text)
        except ValueError:
            return set()
        try:
            log_view.message_at(place.physical_offset)
        except NotInStore:
            return set()
        except CorruptRecord:
            first = log_view.first_record(log_view.file_at(place.physical_offset))
            if first is not None and first.store_host != place.store_host:
                return set()
        return {place.physical_offset}

    def _indexed(self, keys: frozenset[str]) -> set[int]:
        topics = self._constraint.topics or frozenset(
            topic
            for topic in {*self._reader.queue_ids, *self._reader.batch_queue_ids}
            | {*self._reader.topics()}
            if self._filter.wants_topic(topic)
        )
        return {
            offset
            for topic in topics
            for key in keys
            for offset in self._reader.index.candidates(
                index_entry.key_of(topic, key), 0, END_OF_TIME_MS - 1000
            )
        }

    def _indexed_spans(self) -> list[tuple[int, int]]:
        """Return the indexed ranges of the log, ends included."""
        spans = []
        for file in self._reader.index.files:
            header = file.header
            if header.entry_count:
                spans.append((header.begin_physical_offset, header.end_physical_offset + 1))
        return spans


def _of_broker(brokers: Mapping[str, T], broker: str, default: T) -> T:
    """Return a JSON option's part for this broker: by name, or the only one."""
    if broker in brokers:
        return brokers[broker]
    return next(iter(brokers.values())) if len(brokers) == 1 and not broker else default


def _length(spans: list[tuple[int, int]]) -> int:
    return sum(stop - start for start, stop in spans)


def _common(spans: list[tuple[int, int]], others: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the intersection of two lists of spans."""
    return [part for low, high in others for part in plan.meet_spans(spans, low, high)]
