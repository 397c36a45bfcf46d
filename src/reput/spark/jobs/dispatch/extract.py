"""Read a range of the log once, and extract the units and index entries of its records.

A record determines the content of its unit and its entries; their places depend on the records
before the range, which another task reads. So units and entries are kept as rows, units queue by
queue, until the driver has made its plan (``reput.spark.jobs.dispatch.write_plan``). The column
kernels make both.

Nothing here knows Spark, and nothing writes a file.
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from reput.errors import ReputError
from reput.format import (
    kernels,
    names,
    properties as props,
    sys_flag as flags,
)
from reput.spark import plan
from reput.spark.jobs.dispatch import write_plan
from reput.spark.jobs.dispatch.write_plan import Survey
from reput.store.config import StoreConfig
from reput.store.files.files import Folder, open_folder
from reput.store.log.commit_log_view import CommitLogView, LogBatch
from reput.store.log.torn_records import without_torn
from reput.store.queues.consume_queue_view import UNIT_TYPE
from reput.store.verify.light_rows import light_rows

UNIT_ROW = np.dtype([("queue_offset", "<i8"), ("unit", UNIT_TYPE)])
"""A record's queue offset, and its unit."""
ENTRY_ROW = np.dtype([("key_hash", "<i4"), ("physical_offset", "<i8"), ("store_timestamp", "<i8")])
"""An index entry without its place in a file."""
UnitRows = npt.NDArray[np.void]
EntryRows = npt.NDArray[np.void]

BATCH = "they belong to batch queues (queue.type=BatchCQ), which are not kept here"
"""Reason why records of batch queues get no unit."""
_NO_QUEUE = "no queue can have their topic and queue id"
_TRANSACTION_STEP = flags.TRANSACTION_PREPARED
"""The one bit that prepared and rolled-back records have, and queued ones lack."""
_DELAY = props.DELAY.encode()
_UNKNOWN_LEVEL_MS = 1000
_INT_MAX = (1 << 31) - 1
_LEVEL_DIGITS_MAX = 10


class StoreChanged(ReputError):
    """The log has changed since the job began; run the job again."""

    retriable = True


@dataclass(frozen=True)
class LogSource:
    """The facts of the log that every task needs."""

    store: str
    config: StoreConfig
    end: int
    """Physical offset where the log ends."""
    topics: frozenset[str] | None
    """Topics whose queues are made; None for all, and the light queues of their messages."""
    tombstones: Mapping[str, int]
    """Topic -> physical offset before which its messages are in no queue."""
    batch_topics: frozenset[str] = frozenset()
    """Topics with batch queues; they get no plain queues."""

    @cached_property
    def folder(self) -> Folder:
        """The store's folder."""
        return open_folder(self.store, commit_log_folders=self.config.commit_log_folders)

    @cached_property
    def log(self) -> CommitLogView:
        """View of the store's log."""
        return CommitLogView(self.folder)

    def __getstate__(self) -> dict[str, object]:
        """Leave out the opened files: a task opens its own."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__}

    def is_wanted(self, topic: str, range_start: int) -> bool:
        """Return whether a topic's records in a range get units; ranges are cut at tombstones."""
        is_named = self.topics is None or topic in self.topics
        is_named = is_named and topic not in self.batch_topics
        return is_named and self.tombstones.get(topic, 0) <= range_start


@dataclass(frozen=True, slots=True)
class RangeRead:
    """The rows of a range."""

    survey: Survey
    units: UnitRows
    """Units, queue by queue, each queue in log order; the survey has the rows of each queue."""
    entries: EntryRows
    """Index entries in log order; those of one record in the broker's order."""


def read(source: LogSource, part: plan.LogRange, *, is_indexed: bool) -> RangeRead:
    """Read a range, which is within one file.

    Args:
        source: The log.
        part: The range.
        is_indexed: Make index entries, too.
    """
    reading = _Reading(source, part, is_indexed=is_indexed)
    start = source.log.part_start(part.start, part.stop)
    for window in source.log.walk(start, part.stop, is_end=part.is_end):
        batch = without_torn(source.log, window)
        reading.survey.holes += [
            (hole.physical_offset, hole.length, hole.reason) for hole in batch.damage
        ]
        if len(batch.positions):
            reading.add(batch)
    return reading.done()


class _Reading:
    """Collects the rows of a range, batch by batch."""

    def __init__(self, source: LogSource, part: plan.LogRange, *, is_indexed: bool) -> None:
        self._source = source
        self._part = part
        self._is_indexed = is_indexed
        self._topic_numbers: dict[str, int] = {}
        self._keys: list[npt.NDArray[np.int64]] = []
        self._units: list[UnitRows] = []
        self._entries: list[EntryRows] = []
        self.survey = Survey()

    def add(self, batch: LogBatch) -> None:
        """Add the records of a batch."""
        columns = batch.columns()
        self.survey.records += columns.count
        if self._is_indexed:
            self._add_entries(batch, columns)
        sys_flags = columns.numbers("sys_flag")
        queue_ids = columns.numbers("queue_id")
        topic_ids, topics = columns.topic_ids()
        is_queued = (sys_flags & _TRANSACTION_STEP) == 0
        is_folder = np.array([names.is_folder_name(topic) for topic in topics], bool)
        is_wanted = np.array(
            [self._source.is_wanted(topic, self._part.start) for topic in topics], bool
        )
        is_batch = is_queued & (sys_flags & flags.INNER_BATCH != 0) & is_wanted[topic_ids]
        is_placed = is_folder[topic_ids] & (queue_ids >= 0)
        self._count(BATCH, is_batch)
        self._count(_NO_QUEUE, is_queued & ~is_placed)
        rows = np.flatnonzero(is_queued & is_placed & ~is_batch & is_wanted[topic_ids])
        units = np.empty(len(rows), UNIT_ROW)
        units["queue_offset"] = columns.numbers("queue_offset")[rows]
        units["unit"]["physical_offset"] = (batch.positions + batch.physical_offset)[rows]
        units["unit"]["size"] = batch.sizes[rows]
        codes = self._tags_codes(columns, topic_ids, topics)
        units["unit"]["tags_code"] = codes[rows]
        keys = self._numbers_of(topics)[topic_ids[rows]] << 32 | queue_ids[rows]
        self._keys.append(keys)
        self._units.append(units)
        if self._source.config.enable_multi_dispatch:
            self._add_light(batch, columns, np.flatnonzero(is_queued), codes)

    def _count(self, reason: str, rows: npt.NDArray[np.bool_]) -> None:
        count = int(np.count_nonzero(rows))
        if count:
            unqueued = self.survey.unqueued
            unqueued[reason] = unqueued.get(reason, 0) + count

    def _numbers_of(self, topics: Sequence[str]) -> npt.NDArray[np.int64]:
        known = self._topic_numbers
        return np.array([known.setdefault(topic, len(known)) for topic in topics], np.int64)

    def _add_entries(self, batch: LogBatch, columns: kernels.Columns) -> None:
        rows, hashes = columns.key_hashes(with_tags=self._source.config.index_tags)
        order = np.argsort(rows, kind="stable")
        rows, hashes = rows[order], hashes[order]
        kinds = columns.numbers("sys_flag")[rows] & flags.TRANSACTION_MASK
        is_kept = kinds != flags.TRANSACTION_ROLLBACK
        rows = rows[is_kept]
        entries = np.empty(len(rows), ENTRY_ROW)
        entries["key_hash"] = hashes[is_kept]
        entries["physical_offset"] = batch.positions[rows] + batch.physical_offset
        entries["store_timestamp"] = columns.numbers("store_timestamp")[rows]
        self._entries.append(entries)

    def _tags_codes(
        self, columns: kernels.Columns, topic_ids: npt.NDArray[np.int32], topics: Sequence[str]
    ) -> npt.NDArray[np.int64]:
        """Return the tags codes: hashes of tags, and for delayed messages the time they are due."""
        codes = columns.tags_codes()
        if names.SCHEDULE_TOPIC not in topics:
            return codes
        rows = np.flatnonzero(topic_ids == topics.index(names.SCHEDULE_TOPIC))
        times = columns.numbers("store_timestamp")[rows]
        delays = dict(enumerate(self._source.config.delay_levels_ms, 1))
        for row, timestamp, level in zip(
            rows.tolist(), times.tolist(), _delay_levels(columns.take(rows)), strict=True
        ):
            if level:
                codes[row] = timestamp + delays.get(level, _UNKNOWN_LEVEL_MS)
        return codes

    def _add_light(
        self,
        batch: LogBatch,
        columns: kernels.Columns,
        rows: npt.NDArray[np.int64],
        codes: npt.NDArray[np.int64],
    ) -> None:
        """Add the units of records in light queues, besides their own."""
        places = [
            place
            for place in light_rows(batch, columns, rows)
            if self._source.is_wanted(place.topic, self._part.start)
        ]
        owners = np.array([place.row for place in places], np.int64)
        units = np.empty(len(places), UNIT_ROW)
        units["queue_offset"] = [place.queue_offset for place in places]
        units["unit"]["physical_offset"] = batch.positions[owners] + batch.physical_offset
        units["unit"]["size"] = batch.sizes[owners]
        units["unit"]["tags_code"] = codes[owners]
        numbers = self._numbers_of([place.topic for place in places])
        self._keys.append(numbers << 32 | np.array([place.queue_id for place in places], np.int64))
        self._units.append(units)

    def done(self) -> RangeRead:
        """Sort the units by queue, and return all rows."""
        source, survey = self._source, self.survey
        units = _joined(self._units, UNIT_ROW)
        keys = np.concatenate(self._keys) if self._keys else np.empty(0, np.int64)
        if source.config.enable_multi_dispatch:
            order = np.lexsort((units["unit"]["physical_offset"], keys))
        else:
            order = _by_queue(keys)
        units, keys = units[order], keys[order]
        topics = list(self._topic_numbers)
        edges = [0, *(np.flatnonzero(np.diff(keys)) + 1).tolist(), len(keys)]
        for low, high in itertools.pairwise(edges):
            if low < high:
                number, queue_id = divmod(int(keys[low]), 1 << 32)
                key = (topics[number], queue_id)
                survey.rows[key] = (low, high)
                survey.runs[key] = runs_of(units[low:high], is_detailed=False)
        entries = _joined(self._entries, ENTRY_ROW)
        survey.entries = len(entries)
        return RangeRead(survey, units, entries)


def _by_queue(keys: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the order that sorts keys, stable within a queue.

    Most keys fit into 16 bits, which numpy sorts ten times as fast.
    """
    numbers, queue_ids = keys >> 32, keys & 0xFFFFFFFF
    width = int(queue_ids.max(initial=0)) + 1
    if (int(numbers.max(initial=0)) + 1) * width <= 1 << 16:
        keys = (numbers * width + queue_ids).astype(np.uint16)
    return np.argsort(keys, kind="stable")


def _joined(parts: list[npt.NDArray[np.void]], kind: np.dtype[np.void]) -> npt.NDArray[np.void]:
    # Without its type numpy would convert units to the machine's byte order.
    return np.concatenate(parts, dtype=kind) if parts else np.empty(0, kind)


def runs_of(units: UnitRows, *, is_detailed: bool) -> list[write_plan.RecordRun]:
    """Return the runs of one queue's units, in log order; with ``is_detailed`` a run per unit."""
    return write_plan.runs_of(
        units["queue_offset"],
        units["unit"]["physical_offset"].astype(np.int64),
        units["unit"]["size"].astype(np.int64),
        is_detailed=is_detailed,
    )


def _delay_levels(columns: kernels.Columns) -> list[int]:
    """Return the delay level of each record; 0 if the property is absent or no number."""
    pairs = columns.properties()
    starts = pairs.names.offsets
    levels = [0] * columns.count
    sizes = np.diff(starts)
    rows = np.repeat(np.arange(columns.count), np.diff(pairs.offsets))
    data, values = pairs.names.data.tobytes(), pairs.values.data.tobytes()
    value_starts = pairs.values.offsets
    for pair in np.flatnonzero(sizes == len(_DELAY)).tolist():
        if data[starts[pair] : starts[pair + 1]] == _DELAY:
            text = values[value_starts[pair] : value_starts[pair + 1]]
            digits = text.lstrip(b"0")
            is_number = digits.isdigit() and len(digits) <= _LEVEL_DIGITS_MAX
            levels[rows[pair]] = int(digits) if is_number and int(digits) <= _INT_MAX else 0
    return levels
