"""Planning of archive reads: row groups, damage, single records."""

from collections.abc import Sequence
from functools import cached_property

from reput.spark import plan
from reput.spark.archive.view import ArchivedRows, ArchiveReader
from reput.spark.filters import Span
from reput.spark.store_planner import CLOCK_SLACK_MS, StorePlanner


class ArchivePlanner(StorePlanner):
    """Plans the read of one archive, as ``StorePlanner`` does for a store.

    Topics, bounds of queues and keys are planned in the same way. Records are read by row group;
    row groups are skipped by topic, physical offset, queue offset and store time, whose bounds are
    exact whatever the clock did.
    """

    @property
    def _archive(self) -> ArchiveReader:
        assert isinstance(self._reader, ArchiveReader)
        return self._reader

    def counts(self) -> None:
        """Return None: archives have row groups instead of units."""

    @cached_property
    def _unaccounted(self) -> list[tuple[int, int]]:
        return []  # every record is in a row group

    def _indexed_spans(self) -> list[tuple[int, int]]:
        return [(self._reader.log.min_offset, self._reader.end_offset)]

    def _spans(self) -> list[tuple[int, int]]:
        low, high = self._reader.log.min_offset, self._reader.end_offset
        wanted = self._constraint.physical_offsets
        spans = [(low, high)] if low < high else []
        return plan.meet_spans(spans, max(wanted.low, 0), min(wanted.high, high) + 1)

    def _by_queue(
        self, spans: list[tuple[int, int]], limits: object
    ) -> list[plan.Partition] | None:
        return None

    def _by_log(self, spans: list[tuple[int, int]]) -> list[plan.Partition]:
        archive = self._archive
        rows = [*archive.row_groups()]
        wanted = [row_group for row_group in rows if self._may_have(row_group, spans)]
        byte_count = sum(row_group.group.record_bytes for row_group in wanted)
        self._summary.add(
            f"{self._path}: {len(wanted)} of {len(rows)} row groups, {byte_count} bytes of records"
        )
        options = self._options
        most = options.max_bytes_per_partition
        target = plan.target_bytes(byte_count, most, options.min_partitions)
        parts: list[plan.Partition] = [*self._gathered(wanted, target)]
        low_ms, high_ms = self._times_ms()
        for manifest, run in archive.damage():
            if not any(low < run.end and run.physical_offset < high for low, high in spans):
                continue
            if manifest is not None and manifest.min_time_ms is not None:
                assert manifest.max_time_ms is not None
                is_late = manifest.min_time_ms > high_ms + CLOCK_SLACK_MS
                if is_late or manifest.max_time_ms < low_ms - CLOCK_SLACK_MS:
                    continue
            parts.append(plan.ArchiveDamage(self._number, run.physical_offset))
        return parts

    def _after_the_end(self) -> list[plan.Partition]:
        return []

    def _times_ms(self) -> tuple[int, int]:
        span = self._constraint.store_times_us
        return -(-span.low // 1000), span.high // 1000

    def _may_have(self, rows: ArchivedRows, spans: list[tuple[int, int]]) -> bool:
        group, wanted = rows.group, self._constraint
        low_ms, high_ms = self._times_ms()
        offsets = wanted.queue_offsets
        return (
            self._filter.wants_topic(rows.part.topic)
            and any(low < group.end_offset and group.min_offset < high for low, high in spans)
            and _meet(offsets, group.min_queue_offset, group.max_queue_offset)
            and low_ms <= group.max_time_ms
            and group.min_time_ms <= high_ms
        )

    def _gathered(self, wanted: Sequence[ArchivedRows], target: int) -> list[plan.ArchiveRows]:
        """Combine row groups into partitions of about ``target`` bytes of records."""
        gathered: list[plan.ArchiveRows] = []
        pieces: dict[str, list[int]] = {}
        byte_count = row_count = 0
        most_rows = self._options.max_records_per_partition or (1 << 62)
        for rows in wanted:
            is_full = (
                byte_count + rows.group.record_bytes > target
                or row_count + rows.group.rows > most_rows
            )
            if pieces and is_full:
                gathered.append(_rows_of(self._number, pieces))
                pieces, byte_count, row_count = {}, 0, 0
            pieces.setdefault(rows.part.path, []).append(rows.number)
            byte_count += rows.group.record_bytes
            row_count += rows.group.rows
        if pieces:
            gathered.append(_rows_of(self._number, pieces))
        return gathered


def _rows_of(store: int, pieces: dict[str, list[int]]) -> plan.ArchiveRows:
    return plan.ArchiveRows(store, tuple((path, tuple(rows)) for path, rows in pieces.items()))


def _meet(span: Span, low: int, high: int) -> bool:
    return span.low <= high and low <= span.high
