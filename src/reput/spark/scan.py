"""View ``messages``: from options and predicates to partitions, and from a partition to rows.

Planning looks at names, headers and queue ends, never at the log's records. It chooses the cheapest
way that misses nothing:

* by index, when a key is asked for: the records the index names, and a scan of what it does not cover;
* by consume queue, when the wanted queues are a smaller part of the log: their units, and a scan of
  the log files that units do not account for (not dispatched yet, a crash, damaged queues);
* by log: every file, less those that physical offsets or store times rule out.

Whichever way, every row is checked against everything that was asked for.
"""

import glob
import logging
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from reput.errors import CorruptRecord, InvalidOption, NotInStore, ReputError
from reput.format import (
    index_entry,
    kernels,
    message as record,
    message_id,
    names,
    sys_flag as flags,
)
from reput.format.message import Verdict
from reput.spark import plan
from reput.spark.filters import Constraint, Span
from reput.spark.options import (
    DROPMALFORMED,
    EARLIEST,
    FAILFAST,
    LATEST,
    PERMISSIVE,
    SALVAGE,
    Bound,
    ReadOptions,
)
from reput.spark.rows import DamagedRow, RowFilter, RowMaker
from reput.store import paths
from reput.store.commit_log_view import Damage, LogBatch, LogFile
from reput.store.consume_queue_view import BatchConsumeQueueView, ConsumeQueueView
from reput.store.reader import END_OF_TIME_MS, Boundary, Condition, StoreReader

log = logging.getLogger("reput.spark")

QUEUE_SHARE_MAX = 0.5
"""Reading by queue pays while the wanted records are less than this part of the log."""
CLOCK_SLACK_MS = 60_000
"""Store times grow, but for a clock set back; files and slices are skipped with this much room."""
_SAMPLE_UNITS = 256
_UNITS_AT_ONCE = 1 << 20
_POINTS_A_PARTITION = 10_000
_POINT_BYTES_A_BATCH = 4 * 1024 * 1024
_PACKED_BYTES_A_BATCH = 1024 * 1024
"""Compressed records go out in batches of this size: unpacked they are many times larger."""

T = TypeVar("T")
Limits = dict[tuple[str, int], tuple[int, int]]
"""(topic, queue id) -> queue offsets [start, stop) that are wanted."""


class DataLoss(ReputError):
    """What was asked for is gone; the text says what, and that failOnDataLoss=false reads the rest."""


@dataclass
class Summary:
    """What a plan reads and what it leaves out, for logs and people."""

    lines: list[str] = field(default_factory=list)

    def add(self, text: str) -> None:
        """Note one decision."""
        self.lines.append(text)


@dataclass(frozen=True)
class StoreFacts:
    """What planning found out about a store, for whoever reads a part of it."""

    path: str
    plan: str
    """Tells this plan from others: the store may have changed since they were made."""
    broker: str
    limits: Limits | None
    """Queue offsets to keep to; None for all."""
    scanned: tuple[tuple[int, int], ...]
    """Parts of the log that are walked, or are none: units that point there are left."""


@dataclass(frozen=True)
class Task:
    """One partition with all that reading it takes: Spark ships nothing else from the planner."""

    partition: plan.Partition
    facts: StoreFacts


class MessageScan:
    """One batch read of view ``messages``.

    Args:
        options: What the read was told.
        columns: Names of the wanted columns, in order.
        constraint: What pushed-down predicates demand.
    """

    def __init__(
        self, options: ReadOptions, columns: Sequence[str], constraint: Constraint | None = None
    ) -> None:
        self._options = options
        self._columns = tuple(columns)
        self._constraint = _option_constraint(options).meet(constraint or Constraint())
        self.summary = Summary()

    # On the driver --------------------------------------------------------------------------

    def tasks(self) -> list[Task]:
        """Plan the read.

        Raises:
            StoreUnavailable: A path is no store, or is in use.
            InvalidOption: Topics or offsets that were named do not fit the store.
            DataLoss: What was named is gone, unless ``failOnDataLoss`` is false.
        """
        self.summary.add(f"wanted: {self._constraint.describe()}")
        planners = [
            _StorePlanner(number, path, self._options, self._constraint, self.summary)
            for number, path in enumerate(store_paths(self._options))
        ]
        _check_brokers(self._options, {planner.broker for planner in planners})
        tasks = [task for planner in planners for task in planner.tasks()]
        for line in self.summary.lines:
            log.info("%s", line)
        return tasks

    # On the executors -----------------------------------------------------------------------

    def read(self, task: Task) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a partition.

        Raises:
            CorruptRecord: Something cannot be read and mode is FAILFAST.
        """
        reader = _open(task.facts, self._options.allow_live)
        maker = RowMaker(self._columns, self._options, task.facts.broker)
        reading = _PartitionReading(reader, self._options, self._constraint, task.facts, maker)
        match task.partition:
            case plan.LogRange():
                return reading.log_range(task.partition)
            case plan.QueueRange():
                return reading.queue_range(task.partition)
            case plan.Points():
                return reading.points(task.partition)


@lru_cache(maxsize=4)
def _open_planned(path: str, plan_id: str) -> StoreReader:
    return StoreReader.open(path)


def _open(facts: StoreFacts, allow_live: bool) -> StoreReader:
    # A store that a broker writes to has other files and ends at every read.
    if allow_live:
        return StoreReader.open(facts.path, allow_live=True)
    return _open_planned(facts.path, facts.plan)


def store_paths(options: ReadOptions) -> list[str]:
    """Return the store folders of a read: what patterns like ``/data/*/store`` match, and the rest.

    Raises:
        InvalidOption: No store folder matches a pattern.
    """
    found = []
    for path in options.paths:
        if "://" in path or not glob.has_magic(path) or Path(path).exists():
            found.append(path)
            continue
        stores = [one for one in sorted(glob.glob(path)) if Path(one, paths.COMMIT_LOG).is_dir()]
        if not stores:
            raise InvalidOption("path", path, "a pattern that matches folders with a commitlog")
        found += stores
    return found


def _check_brokers(options: ReadOptions, brokers: set[str]) -> None:
    """Refuse JSON options that name brokers of none of the stores, which would select nothing."""
    for name, table in options.by_broker():
        for named in table.values():
            for broker in named:
                is_meant = "" in brokers and len(named) == 1
                if broker not in brokers and not is_meant:
                    known = ", ".join(sorted(brokers - {""})) or "names set with option broker"
                    raise InvalidOption(name, broker, f"brokers of the stores: {known}")


def _option_constraint(options: ReadOptions) -> Constraint:
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


class _StorePlanner:
    """Plans one store."""

    def __init__(
        self,
        number: int,
        path: str,
        options: ReadOptions,
        constraint: Constraint,
        summary: Summary,
    ) -> None:
        self._number = number
        self._path = path
        self._options = options
        self._constraint = constraint
        self._summary = summary
        self._filter = RowFilter(options, constraint)
        self._reader = StoreReader.open(path, allow_live=options.allow_live)
        self._plan = uuid.uuid4().hex
        self._scanned: tuple[tuple[int, int], ...] = ()
        self.broker = options.broker or self._tolerated(self._reader.broker_name, "")

    def tasks(self) -> list[Task]:
        self._check_topics()
        self._check_queue_ends()
        limits = self._limits()
        parts: list[plan.Partition] = []
        if not self._constraint.is_empty:
            spans = self._spans()
            found = self._by_index(spans)
            if found is None:
                found = self._by_queue(spans, limits)
            if found is None:
                found = self._by_log(spans)
            parts = found + self._behind_the_end()
        self._summary.add(f"{self._path}: {len(parts)} partitions")
        facts = StoreFacts(self._path, self._plan, self.broker, limits, self._scanned)
        return [Task(part, facts) for part in parts]

    def _tolerated(self, read: Callable[[], T], default: T) -> T:
        """Return what a table says; a damaged one keeps nobody from reading the log but FAILFAST."""
        try:
            return read()
        except CorruptRecord as error:
            if self._options.mode == FAILFAST:
                raise
            log.warning("%s: %s", self._path, error)
            return default

    # Which queues ---------------------------------------------------------------------------

    def _wanted_queues(self) -> dict[str, list[int]]:
        """Return the wanted topics with files, and their queues."""
        found: dict[str, list[int]] = {}
        for table in (self._reader.queue_ids, self._reader.batch_queue_ids):
            for topic, ids in table.items():
                # A light queue points at messages of other topics: it is no topic of its own.
                if topic.startswith(names.LMQ_PREFIX) or not self._filter.wants_topic(topic):
                    continue
                found[topic] = sorted({*found.get(topic, ()), *ids})
        if self._constraint.queue_ids is not None:
            wanted = self._constraint.queue_ids
            found = {topic: [i for i in ids if i in wanted] for topic, ids in found.items()}
        return found

    def _check_topics(self) -> None:
        named = self._options.topics or (self._options.assign or {}).keys()
        light = [topic for topic in named if topic.startswith(names.LMQ_PREFIX)]
        if light:
            raise InvalidOption("topic", light[0], "topics; a light queue's messages are in its topic")
        table = self._tolerated(self._reader.topics, {})
        known = {*self._reader.queue_ids, *self._reader.batch_queue_ids, *table}
        missing = sorted(topic for topic in named if topic not in known)
        # Without any queue files the log itself must be searched for the topic.
        if missing and self._reader.queue_end is not None:
            self._lose(
                f"topic {missing[0]!r} is not in {self._path}; it has {', '.join(sorted(known)[:20])}"
            )

    def _check_queue_ends(self) -> None:
        """A queue of a store that was stopped cleanly cannot reach behind its log."""
        if self._reader.state.condition is not Condition.CLEAN:
            return
        end = self._reader.end_offset
        for topic, ids in self._wanted_queues().items():
            for queue_id in ids:
                reached = self._queue_view(topic, queue_id).end_physical_offset
                if reached is not None and reached > end:
                    self._lose(
                        f"queue {topic}/{queue_id} of {self._path} has messages up to physical "
                        f"offset {reached}, the log ends at {end}"
                    )

    def _lose(self, what: str) -> None:
        if self._options.fail_on_data_loss:
            raise DataLoss(f"{what} (failOnDataLoss=false reads what is left)")
        log.warning("%s", what)
        self._summary.add(f"data loss: {what}")

    def _limits(self) -> Limits | None:
        """Return which queue offsets the bounds leave of each wanted queue, None if all of all."""
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
        view = self._queue_view(topic, queue_id)
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
        if isinstance(view, BatchConsumeQueueView) and low < start < high:
            start = view.unit(start).queue_offset  # a batch is one row, also a part of it
        return max(start, low), max(min(stop, high), max(start, low))

    def _queue_view(
        self, topic: str, queue_id: int
    ) -> ConsumeQueueView | BatchConsumeQueueView:
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
            found = self._offset_by_time(topic, queue_id, time_ms, high)
            if is_start and found == high and self._options.late_timestamp == "error":
                raise InvalidOption(
                    "startingOffsetsByTimestamp",
                    time_ms,
                    f"a time up to the last message of queue {topic}/{queue_id}; or set "
                    "startingOffsetsByTimestampStrategy=latest to read nothing of it",
                )
            return found
        if bound.group is not None:
            name = "startingOffsets" if is_start else "endingOffsets"
            default = low if is_start else high
            return self._consumer_offset(name, bound.group, topic, queue_id, default)
        asked = _of_broker(bound.offsets.get(topic, {}), self.broker, {}).get(queue_id)
        if asked is None:
            return low if is_start else high
        return {EARLIEST: low, LATEST: high}.get(asked, asked)

    def _offset_by_time(self, topic: str, queue_id: int, time_ms: int, high: int) -> int:
        """Return the first queue offset at or after a time, ``high`` if there is none."""
        found = self._reader.offset_by_time(topic, queue_id, time_ms, Boundary.LOWER)
        is_last = found == self._queue_view(topic, queue_id).max_offset
        others = self._unqueued.get((topic, queue_id), ())
        return min([high if is_last else found, *(n for n, ms in others if ms >= time_ms)])

    def _consumer_offset(
        self, name: str, group: str, topic: str, queue_id: int, default: int
    ) -> int:
        offsets = self._reader.consumer_offsets()
        if not any(one.group == group for one in offsets):
            known = ", ".join(sorted({one.group for one in offsets}))
            raise InvalidOption(name, f"group:{group}", f"group: and one of {known}")
        for one in offsets:
            if (one.group, one.topic, one.queue_id) == (group, topic, queue_id):
                return one.consumer_offset
        return default

    # Which bytes ----------------------------------------------------------------------------

    def _spans(self) -> list[tuple[int, int]]:
        """Return the parts of the log that can hold wanted records."""
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
        """Cut parts of the log; ``total`` is what all partitions of the store read."""
        options = self._options
        target = plan.target_bytes(total, options.max_bytes_per_partition, options.min_partitions)
        if options.max_records_per_partition and spans:
            target = min(target, int(options.max_records_per_partition * self._mean_bytes()))
        return [*plan.split_log(self._number, spans, self._reader.end_offset, max(target, 1))]

    def _mean_bytes(self) -> float:
        """Return about how large records are, from the first megabyte."""
        first = next(iter(self._reader.walk()), None)
        return float(first.sizes.mean()) if first is not None and len(first.sizes) else 1024.0

    def _behind_the_end(self) -> list[plan.Partition]:
        tail = self._reader.tail
        rest = tail.stale or tail.torn
        if rest is None:
            return []
        kind = "stale" if tail.stale else "torn"
        self._summary.add(
            f"{self._path}: {rest.length} bytes behind the end of the log at {rest.physical_offset} "
            f"({kind}) are not read" + ("" if self._options.mode != SALVAGE else " as such: salvage")
        )
        if self._options.mode != SALVAGE:
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
        trusted = self._trusted_to()
        extents = [
            extent
            for topic, ids in queues.items()
            for queue_id in ids
            if (extent := self._extent(topic, queue_id, limits)) is not None
        ]
        wanted_bytes = sum(extent.byte_count for extent in extents)
        log_bytes = sum(stop - start for start, stop in spans)
        if choice == "auto" and wanted_bytes > QUEUE_SHARE_MAX * log_bytes:
            return None
        rest = plan.meet_spans(spans, trusted, self._reader.end_offset)
        total = wanted_bytes + sum(stop - start for start, stop in rest)
        target = plan.target_bytes(
            total, self._options.max_bytes_per_partition, self._options.min_partitions
        )
        self._summary.add(
            f"{self._path}: {len(extents)} consume queues, about {int(wanted_bytes)} of {log_bytes} "
            f"bytes; the log from {trusted}"
        )
        parts: list[plan.Partition] = []
        parts += plan.split_queues(
            self._number, extents, trusted, target, self._options.max_records_per_partition
        )
        parts += plan.split_log(self._number, rest, self._reader.end_offset, target)
        return parts

    def _extent(self, topic: str, queue_id: int, limits: Limits | None) -> plan.Extent | None:
        if limits is not None and (topic, queue_id) not in limits:
            return None
        queue = self._reader.queue(topic, queue_id)
        low, high = (limits or {}).get((topic, queue_id), (queue.min_offset, queue.max_offset))
        span = self._constraint.queue_offsets
        low, high = max(low, span.low), min(high, span.high + 1)
        times = self._constraint.store_times_us
        if not times.is_all and low < high:
            begin_ms, end_ms = times.low // 1000 - CLOCK_SLACK_MS, times.high // 1000 + CLOCK_SLACK_MS
            low = max(low, self._reader.offset_by_time(topic, queue_id, begin_ms, Boundary.LOWER))
            high = min(high, self._reader.offset_by_time(topic, queue_id, end_ms, Boundary.UPPER) + 1)
        if low >= high:
            return None
        _, units = queue.units(low, min(high, low + _SAMPLE_UNITS))
        size = float(units["size"].astype(np.int64).mean()) if len(units) else 1.0
        return plan.Extent(plan.QueueSlice(topic, queue_id, low, high), size)

    def _trusted_to(self) -> int:
        """Return the physical offset up to which every record has its unit.

        After a crash that is where a recovery would begin: the last log file whose first record is
        older than what the checkpoint vouches for.
        """
        reader = self._reader
        if reader.queue_end is None:
            return reader.log.min_offset
        if reader.state.condition is not Condition.CRASHED or reader.is_live:
            return reader.queue_end
        checkpoint = reader.state.checkpoint
        for file in reversed(reader.log.files):
            first = reader.log.first_record(file)
            if first is not None and checkpoint is not None:
                if first.store_timestamp <= checkpoint.min_timestamp:
                    return file.start
        return reader.log.min_offset

    # By index -------------------------------------------------------------------------------

    def _by_index(
        self, spans: list[tuple[int, int]], limits: Limits | None
    ) -> list[plan.Partition] | None:
        options, wanted = self._options, self._constraint
        keys = options.unique_keys or options.keys or wanted.message_ids
        if keys is None or options.scan != "auto":
            return None
        try:
            covered = self._indexed_spans()
            points = self._indexed(keys)
        except CorruptRecord as error:
            self._summary.add(f"{self._path}: index not used, {error}")
            return None
        if wanted.message_ids is not None:
            points |= {
                message_id.decode_offset_id(text).physical_offset
                for text in wanted.message_ids
                if _is_offset_id(text)
            }
        rest = _without(spans, covered)
        points = {p for p in points if any(low <= p < high for low, high in spans)}
        points -= {p for p in points if any(low <= p < high for low, high in rest)}
        scanned = sum(stop - start for start, stop in rest)
        self._summary.add(
            f"{self._path}: index names {len(points)} records; {scanned} bytes it does not cover"
        )
        target = plan.target_bytes(scanned, options.max_bytes_per_partition, options.min_partitions)
        parts: list[plan.Partition] = [
            *plan.split_log(self._number, rest, self._reader.end_offset, target)
        ]
        if points:
            parts.append(plan.Points(self._number, tuple(sorted(points))))
        return parts or [plan.Points(self._number, ())]

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
        """Return the parts of the log whose records are in the index, ends included."""
        spans = []
        for file in self._reader.index.files:
            header = file.header
            if header.entry_count:
                spans.append((header.begin_physical_offset, header.end_physical_offset + 1))
        return spans


def _is_offset_id(text: str) -> bool:
    try:
        message_id.decode_offset_id(text)
    except ValueError:
        return False
    return True


def _of_broker(brokers: Mapping[str, T], broker: str, default: T) -> T:
    """Return a JSON option's part for this broker: by name, or the only one there is."""
    if broker in brokers:
        return brokers[broker]
    return next(iter(brokers.values())) if len(brokers) == 1 and not broker else default


def _joined(spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return spans with neighbours made one."""
    joined: list[tuple[int, int]] = []
    for start, stop in sorted(spans):
        if joined and start <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(stop, joined[-1][1]))
        else:
            joined.append((start, stop))
    return joined


def _without(
    spans: list[tuple[int, int]], covered: list[tuple[int, int]]
) -> list[tuple[int, int]]:
    """Return the parts of spans outside ``covered``."""
    left = _joined(spans)
    for low, high in covered:
        left = [
            part
            for start, stop in left
            for part in ((start, min(stop, low)), (max(start, high), stop))
            if part[0] < part[1]
        ]
    return left


class _PartitionReading:
    """Reads one partition on an executor."""

    def __init__(
        self,
        reader: StoreReader,
        options: ReadOptions,
        constraint: Constraint,
        limits: Limits | None,
        maker: RowMaker,
    ) -> None:
        self._reader = reader
        self._options = options
        self._constraint = constraint
        self._limits = limits
        self._maker = maker
        self._filter = RowFilter(options, constraint)

    def log_range(self, part: plan.LogRange) -> Iterator[pa.RecordBatch]:
        """Yield the rows of records that start in a range of the log."""
        log_view = self._reader.log
        start = part.start
        if all(file.start != start for file in log_view.files):
            start = log_view.find_record(start, part.stop)
        for batch in log_view.walk(
            start, part.stop, check_crc=self._options.check_crc, is_end=part.is_end
        ):
            note = "behind the end of the log: cut off by a recovery" if part.is_stale else None
            yield from self._rows(batch.columns(), note)
            yield from self._damage(batch.damage)

    def _rows(self, columns: kernels.Columns, note: str | None = None) -> Iterator[pa.RecordBatch]:
        rows = self._filter.rows(columns)
        if self._limits is not None:
            rows = rows[self._inside_limits(columns.take(rows))]
        if len(rows) == 0:
            return
        kept = columns if len(rows) == columns.count else columns.take(rows)
        yield self._maker.batch(kept, dict.fromkeys(range(kept.count), note) if note else None)

    def _inside_limits(self, columns: kernels.Columns) -> npt.NDArray[np.bool_]:
        assert self._limits is not None
        ids, topics = columns.topic_ids()
        queues = columns.numbers("queue_id").astype(np.int64)
        pairs, which = np.unique(ids.astype(np.int64) << 32 | queues & 0xFFFFFFFF, return_inverse=True)
        spans = [
            self._limits.get((topics[int(pair) >> 32], int(pair) & 0xFFFFFFFF), (0, 0))
            for pair in pairs
        ]
        bounds = np.array(spans, np.int64).reshape(-1, 2)[which]
        offsets = columns.numbers("queue_offset")
        inside: npt.NDArray[np.bool_] = (offsets >= bounds[:, 0]) & (offsets < bounds[:, 1])
        return inside

    # Damage ---------------------------------------------------------------------------------

    @property
    def _shows_damage(self) -> bool:
        """Whether rows that are no messages can satisfy what was asked for."""
        options, wanted = self._options, self._constraint
        asks_for_text = options.keys or options.unique_keys or options.sql92 or wanted.tags
        return (
            options.mode in (PERMISSIVE, SALVAGE)
            and not wanted.messages_only
            and not asks_for_text
            and self._limits is None
        )

    def _damage(self, runs: Sequence[Damage]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of damage in the log, as the mode wants it."""
        if not runs:
            return
        if self._options.mode == FAILFAST:
            raise runs[0].error()
        shown = []
        for run in runs:
            log.warning("%s: %s", self._reader.location, run.error())
            salvaged = self._salvaged(run)
            if salvaged is not None:
                yield from self._rows(salvaged, run.reason)
            else:
                shown.append(DamagedRow(run.physical_offset, run.length, run.reason))
        if shown and self._shows_damage:
            yield self._maker.damage(shown)

    def _salvaged(self, run: Damage) -> kernels.Columns | None:
        """Return a record whose checksum alone is wrong, which salvage hands out."""
        is_whole = run.verdict in (Verdict.BAD_CRC, Verdict.BAD_RECORD_CRC)
        if self._options.mode != SALVAGE or not is_whole:
            return None
        file = self._reader.log.file_at(run.physical_offset)
        batches = self._reader.log.walk(run.physical_offset, run.end, check_crc=False, is_end=False)
        batch = next(iter(batches), None)
        assert file.start <= run.physical_offset
        return batch.columns() if batch is not None else None

    # By queue and by point ------------------------------------------------------------------

    def queue_range(self, part: plan.QueueRange) -> Iterator[pa.RecordBatch]:
        """Yield the rows that the units of some queue slices point at, in log order."""
        units = [self._units(one, part.physical_stop) for one in part.slices]
        bad = [row for _, _, _, rows in units for row in rows]
        which = np.repeat(np.arange(len(units)), [len(numbers) for numbers, _, _, _ in units])
        numbers = np.concatenate([numbers for numbers, _, _, _ in units])
        offsets = np.concatenate([offsets for _, offsets, _, _ in units])
        sizes = np.concatenate([sizes for _, _, sizes, _ in units])
        order = np.argsort(offsets, kind="stable")
        which, numbers, offsets, sizes = which[order], numbers[order], offsets[order], sizes[order]
        for found in self._reader.log.read_at(
            offsets, sizes, check_crc=self._options.check_crc
        ):
            columns = found.batch.columns()
            is_right = self._is_right(columns, part.slices, which[found.rows], numbers[found.rows])
            wrong = [
                (int(row), "the unit points at another message") for row in found.rows[~is_right]
            ]
            yield from self._rows(columns if is_right.all() else columns.take(is_right))
            for row, reason in (*wrong, *((row, damage.reason) for row, damage in found.bad)):
                slice_ = part.slices[which[row]]
                bad.append(
                    DamagedRow(
                        int(offsets[row]),
                        int(sizes[row]),
                        reason,
                        slice_.topic,
                        slice_.queue_id,
                        int(numbers[row]),
                    )
                )
        yield from self._bad_units(bad)

    def _units(
        self, one: plan.QueueSlice, physical_stop: int
    ) -> tuple[
        npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.int32], list[DamagedRow]
    ]:
        """Return queue offsets, physical offsets and sizes of a slice, and the units that are none."""
        queue = self._reader.queue(one.topic, one.queue_id)
        numbers, units = queue.units(one.start, one.stop)
        missing = np.setdiff1d(np.arange(one.start, one.stop), numbers) if len(numbers) < one.count else ()
        bad = [
            DamagedRow(0, 0, "the unit is empty", one.topic, one.queue_id, int(number))
            for number in missing
        ]
        keep = units["physical_offset"] < physical_stop
        return (
            numbers[keep],
            units["physical_offset"][keep].astype(np.int64),
            units["size"][keep].astype(np.int32),
            bad,
        )

    def _is_right(
        self,
        columns: kernels.Columns,
        slices: tuple[plan.QueueSlice, ...],
        which: npt.NDArray[np.int64],
        numbers: npt.NDArray[np.int64],
    ) -> npt.NDArray[np.bool_]:
        """Tell which records are the messages that their units stand for."""
        ids, topics = columns.topic_ids()
        known = {topic: number for number, topic in enumerate(topics)}
        expected_ids = np.array([known.get(one.topic, -1) for one in slices])[which]
        expected_queues = np.array([one.queue_id for one in slices])[which]
        right: npt.NDArray[np.bool_] = (
            (ids == expected_ids)
            & (columns.numbers("queue_id") == expected_queues)
            & (columns.numbers("queue_offset") == numbers)
        )
        return right

    def _bad_units(self, rows: list[DamagedRow]) -> Iterator[pa.RecordBatch]:
        if not rows:
            return
        first = rows[0]
        if self._options.mode == FAILFAST:
            raise CorruptRecord(
                f"{first.reason}: queue {first.topic}/{first.queue_id}, queue offset "
                f"{first.queue_offset}",
                physical_offset=first.physical_offset,
                file=self._reader.location,
            )
        log.warning("%s: %d units cannot be followed", self._reader.location, len(rows))
        if self._options.mode != DROPMALFORMED and self._options.corrupt_column:
            yield self._maker.damage(rows)

    def points(self, part: plan.Points) -> Iterator[pa.RecordBatch]:
        """Yield the rows of single records."""
        records: list[bytes] = []
        damage: list[Damage] = []
        for physical_offset in part.physical_offsets:
            try:
                records.append(self._reader.log.record_bytes(physical_offset))
            except NotInStore:
                continue  # index entries outlive their records
            except CorruptRecord as error:
                damage.append(Damage(physical_offset, 0, Verdict.BAD_CRC, error.file or ""))
        positions = np.cumsum([0, *map(len, records)], dtype=np.int64)[:-1]
        sizes = np.array([len(one) for one in records], np.int32)
        yield from self._rows(LogBatch(b"".join(records), 0, positions, sizes).columns())
        yield from self._damage(damage)
