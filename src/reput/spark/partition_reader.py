"""Reads a partition: from records to the rows that options and predicates select."""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from reput.errors import CorruptRecord, NotInStore
from reput.format import (
    kernels,
)
from reput.format.message import Verdict
from reput.spark import plan
from reput.spark.filters import Constraint
from reput.spark.option_table import FAILFAST, PERMISSIVE, SALVAGE
from reput.spark.options import ReadOptions
from reput.spark.portions import portions, unwrapped
from reput.spark.rows import DamagedRow, RowFilter, RowMaker
from reput.store.files import paths
from reput.store.log.commit_log_view import Damage, LogBatch
from reput.store.reader import StoreReader

if TYPE_CHECKING:
    from reput.spark.archive.view import ArchiveReader
from reput.spark.store_opening import open_reader
from reput.spark.store_planner import DataLoss, Limits, StoreFacts

log = logging.getLogger("reput.spark")

_CHECKSUMS = (Verdict.BAD_CRC, Verdict.BAD_RECORD_CRC)
"""Damage of complete records."""
_POINT_BYTES_A_BATCH = 4 * 1024 * 1024

T = TypeVar("T")


@lru_cache(maxsize=4)
def _open_planned(path: str, plan_id: str) -> StoreReader:
    return open_reader(path)


def open_for(facts: StoreFacts, allow_live: bool) -> StoreReader:
    """Open the store of a plan; once for all of its partitions, unless it is live."""
    # A live store changes its files and end with every read.
    if allow_live:
        return open_reader(facts.path, allow_live=True)
    return _open_planned(facts.path, facts.plan)


class _Units(NamedTuple):
    """Units of a slice of a queue."""

    numbers: npt.NDArray[np.int64]
    """Queue offsets of their records."""
    stops: npt.NDArray[np.int64]
    """Queue offsets after their messages: a batch record has several."""
    physical_offsets: npt.NDArray[np.int64]
    sizes: npt.NDArray[np.int32]


class PartitionReader:
    """Reads one partition on an executor."""

    def __init__(
        self,
        reader: StoreReader,
        options: ReadOptions,
        constraint: Constraint,
        facts: StoreFacts,
        maker: RowMaker,
    ) -> None:
        self._reader = reader
        self._options = options
        self._constraint = constraint
        self._limits = facts.limits
        self._facts = facts
        self._maker = maker
        self._filter = RowFilter(options, constraint)

    def log_range(self, part: plan.LogRange) -> Iterator[pa.RecordBatch]:
        """Yield the rows of records that start in a range of the log."""
        log_view = self._reader.log
        start = log_view.part_start(part.start, part.stop)
        for batch in log_view.walk(
            start, part.stop, check_crc=self._options.check_crc, is_end=part.is_end
        ):
            note = "after the end of the log: truncated by a recovery" if part.is_stale else None
            yield from self._rows(batch.columns(), note)
            runs = batch.damage if part.is_stale else self._inside_log(batch.damage)
            yield from self._damage([(run, self._row(run)) for run in runs])

    def _inside_log(self, runs: Sequence[Damage]) -> list[Damage]:
        """Return damage without ranges after the end of the log, which parts report in full."""
        end = self._facts.end_offset
        return [
            replace(run, length=min(run.end, end) - run.physical_offset)
            for run in runs
            if run.physical_offset < end
        ]

    def _rows(
        self,
        columns: kernels.Columns,
        note: str | None = None,
        limits: Limits | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """Yield the selected rows of records.

        Args:
            columns: The records; a batch record has a row for each message inside.
            note: Text for the corrupt column.
            limits: Selected queue offsets, in place of those of the plan.
        """
        for part in unwrapped(columns):
            yield from self._selected(part, note, self._limits if limits is None else limits)

    def _selected(
        self, columns: kernels.Columns, note: str | None, limits: Limits | None
    ) -> Iterator[pa.RecordBatch]:
        rows = self._filter.rows(columns)
        if limits is not None:
            rows = rows[_inside_limits(columns.take(rows), limits)]
        if len(rows) == 0:
            return
        for kept in portions(columns if len(rows) == columns.count else columns.take(rows)):
            notes = dict.fromkeys(range(kept.count), note) if note else None
            try:
                batch = self._maker.batch(kept, notes)
            except CorruptRecord as error:
                offset = error.physical_offset or 0
                file = self._file(self._reader.log.file_at(offset).name)
                raise CorruptRecord(error.reason, physical_offset=offset, file=file) from None
            if batch.num_rows:
                yield batch

    # Damage ---------------------------------------------------------------------------------

    def _file(self, name: str) -> str:
        return f"{self._reader.location}/{paths.COMMIT_LOG}/{name}".rstrip("/")

    def _row(self, run: Damage, unit: tuple[plan.QueueSlice, int] | None = None) -> DamagedRow:
        """Return damage as a row; ``unit`` is the slice and queue offset that led to it."""
        row = DamagedRow(run.physical_offset, run.length, run.reason, self._file(run.file))
        if unit is None:
            return row
        return replace(row, topic=unit[0].topic, queue_id=unit[0].queue_id, queue_offset=unit[1])

    def _shows(self, row: DamagedRow) -> bool:
        """Return whether a row of damage can satisfy the constraint."""
        options, wanted = self._options, self._constraint
        asks_for_text = options.keys or options.unique_keys or options.sql92 or wanted.tags
        return (
            options.mode in (PERMISSIVE, SALVAGE)
            and not asks_for_text
            and (self._limits is None or row.topic is not None)
            and wanted.admits(row.values())
        )

    def _damage(self, rows: Sequence[tuple[Damage | None, DamagedRow]]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of damage, depending on the mode; None for damage outside the log."""
        span = self._constraint.physical_offsets
        rows = [entry for entry in rows if span.low <= entry[1].physical_offset <= span.high]
        if not rows:
            return
        error = rows[0][1].error()
        if self._options.mode == FAILFAST:
            raise error
        log.warning("%s (%d such in this batch)", error, len(rows))
        shown = []
        for run, row in rows:
            salvaged = self._salvaged(run) if run is not None else None
            if salvaged is not None:
                yield from self._rows(salvaged, row.reason)
            elif self._shows(row):
                shown.append(row)
        if shown:
            yield self._maker.damage(shown)

    def _salvaged(self, run: Damage) -> kernels.Columns | None:
        """Return a record with a wrong checksum, which salvage returns."""
        if self._options.mode != SALVAGE or run.verdict not in _CHECKSUMS:
            return None
        start = run.physical_offset
        batches = self._reader.log.walk(start, start + 1, check_crc=False, is_end=False)
        batch = next(iter(batches), None)
        return batch.columns() if batch is not None else None

    # By queue and by point ------------------------------------------------------------------

    def queue_range(self, part: plan.QueueRange) -> Iterator[pa.RecordBatch]:
        """Yield the rows that the units of some queue slices point at, in log order."""
        units = list(map(self._units, part.slices))
        if self._facts.must_have_all:
            for queue_slice, of_slice in zip(part.slices, units, strict=True):
                self._check_whole(queue_slice, of_slice)
        which = np.repeat(np.arange(len(units)), [len(each.numbers) for each in units])
        numbers = np.concatenate([each.numbers for each in units])
        offsets = np.concatenate([each.physical_offsets for each in units])
        sizes = np.concatenate([each.sizes for each in units])
        order = np.argsort(offsets, kind="stable")
        which, numbers, offsets, sizes = which[order], numbers[order], offsets[order], sizes[order]
        limits = None
        if any(map(self._is_batch, part.slices)):  # a slice may begin or end inside of a batch
            limits = {(each.topic, each.queue_id): (each.start, each.stop) for each in part.slices}
        for read in self._reader.log.read_at(offsets, sizes, check_crc=self._options.check_crc):
            columns = read.batch.columns()
            is_right = self._is_right(columns, part.slices, which[read.rows], numbers[read.rows])
            right = columns if is_right.all() else columns.take(is_right)
            yield from self._rows(right, limits=limits)
            bad: list[tuple[Damage | None, DamagedRow]] = []
            for row, run in read.bad:
                unit = part.slices[which[row]], int(numbers[row])
                bad.append((run, self._row(run, unit)))
            for row in read.rows[~is_right]:
                run = Damage(int(offsets[row]), int(sizes[row]), Verdict.MISSING, "")
                shown = self._row(run, (part.slices[which[row]], int(numbers[row])))
                bad.append((None, replace(shown, reason="the unit points at another message")))
            yield from self._damage(bad)

    def _is_batch(self, queue_slice: plan.QueueSlice) -> bool:
        return queue_slice.queue_id in self._reader.batch_queue_ids.get(queue_slice.topic, ())

    def _units(self, queue_slice: plan.QueueSlice) -> "_Units":
        """Return the units of a slice, without scanned ranges."""
        start, stop = queue_slice.start, queue_slice.stop
        if self._is_batch(queue_slice):
            view = self._reader.batch_queue(queue_slice.topic, queue_slice.queue_id)
            units = view.units_of(start, stop)
            numbers = units["queue_offset"].astype(np.int64)
            stops = numbers + units["message_count"]
        else:
            queue = self._reader.queue(queue_slice.topic, queue_slice.queue_id)
            numbers, units = queue.units(start, stop)
            stops = numbers + 1
        offsets = units["physical_offset"].astype(np.int64)
        keep = offsets < self._facts.end_offset
        if self._facts.must_have_all:
            keep &= offsets >= self._reader.log.min_offset
        for low, high in self._facts.scanned:
            keep &= (offsets < low) | (offsets >= high)
        sizes = units["size"][keep].astype(np.int32)
        return _Units(numbers[keep], stops[keep], offsets[keep], sizes)

    def _check_whole(self, queue_slice: plan.QueueSlice, units: "_Units") -> None:
        """Raise an error if messages of a slice were deleted, or units are missing."""
        firsts = np.maximum(units.numbers, queue_slice.start)
        stops = np.minimum(units.stops, queue_slice.stop)
        count = int((stops - firsts).sum())
        if count < queue_slice.count:
            left = f"{firsts[0]} to {stops[-1]}" if len(firsts) else "nothing"
            self._lose(
                f"queue {queue_slice.topic}/{queue_slice.queue_id} of {self._facts.path} has "
                f"{count} of the {queue_slice.count} messages {queue_slice.start} to "
                f"{queue_slice.stop}: {left}"
            )

    def _lose(self, what: str) -> None:
        if self._options.fail_on_data_loss:
            raise DataLoss(f"{what} (failOnDataLoss=false reads the rest)")
        log.warning("%s", what)

    def _is_right(
        self,
        columns: kernels.Columns,
        slices: tuple[plan.QueueSlice, ...],
        which: npt.NDArray[np.int64],
        numbers: npt.NDArray[np.int64],
    ) -> npt.NDArray[np.bool_]:
        """Return which records are the messages of their units."""
        ids, topics = columns.topic_ids()
        known = {topic: number for number, topic in enumerate(topics)}
        expected_ids = np.array([known.get(queue_slice.topic, -1) for queue_slice in slices])[which]
        expected_queues = np.array([queue_slice.queue_id for queue_slice in slices])[which]
        right: npt.NDArray[np.bool_] = (
            (ids == expected_ids)
            & (columns.numbers("queue_id") == expected_queues)
            & (columns.numbers("queue_offset") == numbers)
        )
        return right

    def archive_rows(self, part: plan.ArchiveRows) -> Iterator[pa.RecordBatch]:
        """Yield the rows of row groups of an archive."""
        has_bodies = "body" in self._maker.schema.names
        for path, numbers in part.row_groups:
            for columns in self._archive.columns(path, numbers, has_bodies=has_bodies):
                yield from self._rows(columns)

    def archive_damage(self, part: plan.ArchiveDamage) -> Iterator[pa.RecordBatch]:
        """Yield a damaged range listed by an archive."""
        for _, run in self._archive.damage():
            if run.physical_offset == part.physical_offset:
                is_checked = self._options.check_crc or run.verdict not in _CHECKSUMS
                if is_checked:
                    yield from self._damage([(run, self._row(run))])
                else:
                    start = run.physical_offset
                    for batch in self._reader.log.walk(
                        start, start + 1, check_crc=False, is_end=False
                    ):
                        yield from self._rows(batch.columns())

    @property
    def _archive(self) -> "ArchiveReader":
        from reput.spark.archive.view import ArchiveReader

        assert isinstance(self._reader, ArchiveReader)
        return self._reader

    def points(self, part: plan.Points) -> Iterator[pa.RecordBatch]:
        """Yield the rows of single records."""
        records: list[bytes] = []
        held_bytes = 0
        for physical_offset in part.physical_offsets:
            try:
                records.append(self._reader.log.record_bytes(physical_offset))
            except NotInStore:
                continue  # index entries outlive their records
            except CorruptRecord:
                yield from self._point(physical_offset)
                continue
            held_bytes += len(records[-1])
            if held_bytes > _POINT_BYTES_A_BATCH:
                yield from self._rows(_columns_of(records))
                records, held_bytes = [], 0
        yield from self._rows(_columns_of(records))

    def _point(self, physical_offset: int) -> Iterator[pa.RecordBatch]:
        """Yield the row at an offset that may not be a record's: entries outlive their records."""
        log_view = self._reader.log
        file = log_view.file_at(physical_offset)
        for batch in log_view.walk(
            file.start, physical_offset + 1, check_crc=self._options.check_crc, is_end=False
        ):
            is_there = batch.positions + batch.physical_offset == physical_offset
            yield from self._rows(batch.columns().take(is_there))
            runs = [run for run in batch.damage if run.physical_offset <= physical_offset < run.end]
            yield from self._damage([(run, self._row(run)) for run in runs])


def _inside_limits(columns: kernels.Columns, limits: Limits) -> npt.NDArray[np.bool_]:
    """Return which messages have one of the selected queue offsets."""
    ids, topics = columns.topic_ids()
    queues = columns.numbers("queue_id").astype(np.int64)
    codes = ids.astype(np.int64) << 32 | queues & 0xFFFFFFFF
    pairs, which = np.unique(codes, return_inverse=True)
    spans = [
        limits.get((topics[int(pair) >> 32], int(pair) & 0xFFFFFFFF), (0, 0)) for pair in pairs
    ]
    bounds = np.array(spans, np.int64).reshape(-1, 2)[which]
    offsets = columns.numbers("queue_offset")
    inside: npt.NDArray[np.bool_] = (offsets >= bounds[:, 0]) & (offsets < bounds[:, 1])
    return inside


def _columns_of(records: list[bytes]) -> kernels.Columns:
    ends = np.cumsum([0, *map(len, records)], dtype=np.int64)
    sizes = np.array([len(data) for data in records], np.int32)
    return LogBatch(b"".join(records), 0, ends[:-1], sizes).columns()
