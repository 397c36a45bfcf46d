"""Judge the records of a range of the log.

Each record is compared with the unit at its queue offset, the index entries that point into the
range, and the consumer offsets of groups. Holes are recorded, and which queue offsets have records.
A task reads its range once, and the parts of queues and index that belong to it. It returns counts,
runs and samples, and writes a row per record if there is a table.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from reput.format import cq_unit, kernels, names
from reput.spark import plan
from reput.spark.jobs import queue_runs
from reput.spark.jobs.audit.index_entries import IndexBlock, RangeEntries
from reput.spark.jobs.audit.inputs import AuditInputs, Codes, Offsets, grouped
from reput.spark.jobs.audit.judged import Judged, Readers
from reput.spark.jobs.audit.message_table import RowWriter, texts_of
from reput.spark.jobs.audit.verdicts import (
    INDEXED,
    REASONS,
    STAGES,
    VERDICTS,
    DelayAudit,
    GroupAudit,
    LostMessage,
    MessageVerdict,
    Reason,
    Stage,
    TopicAudit,
)
from reput.spark.jobs.dispatch import write_plan
from reput.spark.jobs.dispatch.write_plan import QueueKey, RecordRun
from reput.store.log.commit_log_view import Damage, LogBatch
from reput.store.log.torn_records import without_torn
from reput.store.queues.consume_queue_view import UNIT_TYPE, UnitArray
from reput.store.verify import queue_rows
from reput.store.verify.light_rows import light_rows
from reput.store.verify.unit_check import (
    Rows,
    UnitComparison,
    compare_batches,
    compare_units,
    units_at,
)


@dataclass(frozen=True)
class RecordsTask:
    """A range of the log, within one file."""

    part: plan.LogRange
    blocks: tuple[IndexBlock, ...]
    """Index entries some of which point into the range."""


@dataclass
class LightFaults:
    """Units that a light queue (LMQ) lacks, or that disagree with their message."""

    missing: list[tuple[int, int]] = field(default_factory=list)
    """Queue offset and physical offset of each message without a unit."""
    wrong_size: list[tuple[int, int]] = field(default_factory=list)
    wrong_tags: list[tuple[int, int]] = field(default_factory=list)

    def merge(self, other: "LightFaults") -> None:
        """Add the faults of another range."""
        self.missing += other.missing
        self.wrong_size += other.wrong_size
        self.wrong_tags += other.wrong_tags


@dataclass
class RecordsResult:
    """The result of a task for a range of the log."""

    topics: dict[str, TopicAudit] = field(default_factory=dict)
    groups: dict[tuple[str, str], GroupAudit] = field(default_factory=dict)
    """Counts by group and topic."""
    delays: dict[int, DelayAudit] = field(default_factory=dict)
    present: dict[QueueKey, list[RecordRun]] = field(default_factory=dict)
    """Records of each plain queue, as runs of queue offsets, in log order."""
    claimed: dict[QueueKey, list[queue_runs.Run]] = field(default_factory=dict)
    """Units that point at their record."""
    claimed_batches: dict[QueueKey, list[queue_runs.Run]] = field(default_factory=dict)
    """Numbers of the units of batch queues that point at their record."""
    holes: list[tuple[Damage, int | None, int | None]] = field(default_factory=list)
    """Holes with the store times of the records before and after, if the range has these."""
    first_ms: int | None = None
    last_ms: int | None = None
    """Store times of the first and the last record of the range."""
    lost: list[LostMessage] = field(default_factory=list)
    """A sample of the lost messages."""
    light: dict[QueueKey, LightFaults] = field(default_factory=dict)
    strays: int = 0
    """Index entries into the range that point at no message with their key."""


def judge_records(inputs: AuditInputs, table: str | None, task: RecordsTask) -> RecordsResult:
    """Judge the records of a range; write a row per record if there is a table."""
    result = RecordsResult()
    judge = _RangeJudge(inputs, task, result)
    if table is None:
        for _ in judge.windows():
            pass
        return result
    with RowWriter(table, f"{task.part.start:020d}") as writer:
        for window in judge.windows():
            writer.put(window)
    return result


class _RangeJudge:
    """Judges the records of a range, a window at a time."""

    def __init__(self, inputs: AuditInputs, task: RecordsTask, result: RecordsResult) -> None:
        self._inputs = inputs
        self._part = task.part
        self._result = result
        self._entries = RangeEntries(inputs, task.part, task.blocks)
        self._batch_units: dict[QueueKey, tuple[UnitArray, Offsets]] = {}
        self._open_holes: list[Damage] = []
        """Holes after the last record so far."""
        self._has_light = any(topic.startswith(names.LMQ_PREFIX) for topic in inputs.plain_queues)

    def windows(self) -> Iterator[Judged]:
        """Yield the judged records; add everything else to the result."""
        source, part = self._inputs.source, self._part
        start = source.log.part_start(part.start, part.stop)
        for window in source.log.walk(start, part.stop, is_end=part.is_end):
            batch = without_torn(source.log, window)
            if not len(batch.positions):
                self._open_holes += batch.damage
                continue
            columns = batch.columns()
            self._add_holes(batch, columns)
            yield self._judge(batch, columns)
        self._result.holes += [(hole, self._result.last_ms, None) for hole in self._open_holes]
        self._result.strays = self._entries.settle()

    def _add_holes(self, batch: LogBatch, columns: kernels.Columns) -> None:
        """Add holes with the store times around them; keep those after the last record open."""
        result = self._result
        times, places = columns.numbers("store_timestamp"), columns.numbers("physical_offset")
        for hole in [*self._open_holes, *batch.damage]:
            row = int(np.searchsorted(places, hole.physical_offset))
            if row == len(places):
                continue
            before = int(times[row - 1]) if row else result.last_ms
            result.holes.append((hole, before, int(times[row])))
        self._open_holes = [hole for hole in batch.damage if hole.physical_offset > places[-1]]
        if result.first_ms is None:
            result.first_ms = int(times[0])
        result.last_ms = int(times[-1])

    def _judge(self, batch: LogBatch, columns: kernels.Columns) -> Judged:
        topic_ids, topics = columns.topic_ids()
        last = batch.physical_offset + int(batch.positions[-1]) + 1
        window = Judged(
            columns,
            topic_ids,
            topics,
            verdicts=np.full(columns.count, VERDICTS.index(MessageVerdict.UNQUEUED), np.int8),
            reasons=np.zeros(columns.count, np.int8),
            indexed=self._entries.judge(columns, last),
            stages=np.zeros(columns.count, np.int8),
            due_ms=np.zeros(columns.count, np.int64),
            readers=Readers(columns.count),
            tags_codes=columns.tags_codes(),
        )
        queued = queue_rows.is_queued(columns)
        deleted = queue_rows.is_before(columns, self._deleted_before(topics))
        window.verdicts[queued & deleted] = VERDICTS.index(MessageVerdict.DELETED)
        kept = np.flatnonzero(queued & ~deleted)
        rows = queue_rows.rows_of(columns, kept, window.tags_codes)
        present: defaultdict[QueueKey, list[Rows]] = defaultdict(list)
        keys = queue_rows.queue_keys(self._inputs.reader, columns)[kept]
        for number, places in grouped(keys, np.arange(len(kept))):
            topic, queue_id, is_batch = queue_rows.queue_of(number, list(topics))
            key = (topic, queue_id)
            if is_batch:
                self._judge_batches(window, key, kept[places], rows[places])
            else:
                self._judge_queue(window, key, kept[places], rows[places])
                present[key].append(rows[places])
        if self._has_light:
            for key, light in self._light_rows(batch, window, np.flatnonzero(queued)):
                self._judge_light(key, light)
                present[key].append(light)
        self._add_present(present)
        self._count(window)
        return window

    def _deleted_before(self, topics: Sequence[str]) -> dict[str, int]:
        """Return the physical offset before which the messages of each deleted topic are."""
        inputs, source = self._inputs, self._inputs.source
        return queue_rows.deleted_before(
            inputs.reader, inputs.known_topics, source.tombstones, topics, source.end
        )

    # Queues

    def _judge_queue(self, window: Judged, key: QueueKey, rows: Offsets, records: Rows) -> None:
        """Judge records of a plain queue."""
        compared = self._compare(key, records)
        self._set_verdicts(window, rows, compared)
        self._add_readers(window, key, rows)
        # If an extension unit is lost, the due time is computed from the level.
        has_time = compared.is_mine & (compared.tags_codes > cq_unit.EXT_ADDRESS_MAX)
        self._set_stages(window, key, rows, np.where(has_time, compared.tags_codes, 0))

    def _compare(self, key: QueueKey, records: Rows) -> UnitComparison:
        """Compare records of a plain queue with its units, and claim the units."""
        units = self._units_at(key, records["queue_offset"])
        compared = compare_units(
            self._inputs.reader, *key, records, units, self._inputs.redispatch_from
        )
        mine = records["queue_offset"][compared.is_mine]
        if len(mine):
            self._claim(self._result.claimed, key, mine)
        return compared

    @staticmethod
    def _claim(
        claimed: dict[QueueKey, list[queue_runs.Run]], key: QueueKey, numbers: Offsets
    ) -> None:
        claimed[key] = queue_runs.union([*claimed.get(key, []), *queue_runs.of(numbers)])[0]

    def _units_at(self, key: QueueKey, numbers: Offsets) -> UnitArray:
        """Return the units at queue offsets; zeros where there is no file."""
        units = np.zeros(len(numbers), UNIT_TYPE)
        if self._inputs.has_queue(key):
            order = np.argsort(numbers, kind="stable")
            units[order], _ = units_at(self._inputs.reader.queue(*key), numbers[order])
        return units

    def _judge_batches(self, window: Judged, key: QueueKey, rows: Offsets, records: Rows) -> None:
        """Judge records of a batch queue of 5.x."""
        units, order = self._batch_units_in(key)
        numbers, compared = compare_batches(records, units, order, self._inputs.redispatch_from)
        self._set_verdicts(window, rows, compared)
        self._add_readers(window, key, rows)
        self._claim(self._result.claimed_batches, key, np.unique(numbers[compared.is_mine]))

    def _batch_units_in(self, key: QueueKey) -> tuple[UnitArray, Offsets]:
        """Return the units of a batch queue, and the numbers of those pointing into the range."""
        if key not in self._batch_units:
            units = self._inputs.reader.batch_queue(*key).units
            places = units["physical_offset"]
            inside = np.flatnonzero((places >= self._part.start) & (places < self._part.stop))
            order = inside[np.argsort(places[inside], kind="stable")]
            self._batch_units[key] = units, order
        return self._batch_units[key]

    def _light_rows(
        self, batch: LogBatch, window: Judged, rows: Offsets
    ) -> Iterator[tuple[QueueKey, Rows]]:
        """Yield the light queues (LMQ) that records name, and the records of each."""
        source = self._inputs.source
        starts = window.columns.numbers("physical_offset")
        light = [
            place
            for place in light_rows(batch, window.columns, rows)
            if source.is_wanted(place.topic, int(starts[place.row]))
        ]
        records = queue_rows.light_units(window.columns, light, window.tags_codes)
        by_queue: defaultdict[QueueKey, list[int]] = defaultdict(list)
        for number, place in enumerate(light):
            by_queue[place.topic, place.queue_id].append(number)
        for key, numbers in by_queue.items():
            yield key, records[numbers]

    def _judge_light(self, key: QueueKey, records: Rows) -> None:
        """Judge the units of a light queue. One without files has no reader, or was deleted."""
        compared = self._compare(key, records)
        if not self._inputs.has_queue(key):
            return
        faults = LightFaults(
            *(
                list(
                    zip(
                        records["queue_offset"][mask].tolist(),
                        records["physical_offset"][mask].tolist(),
                        strict=True,
                    )
                )
                for mask in (
                    compared.is_none & ~compared.is_pending,
                    compared.is_wrong_size,
                    compared.is_wrong_tags,
                )
            )
        )
        self._result.light.setdefault(key, LightFaults()).merge(faults)

    def _add_present(self, present: dict[QueueKey, list[Rows]]) -> None:
        """Add the queue offsets that records of a window have."""
        for key, parts in present.items():
            rows = np.concatenate(parts)
            rows = rows[np.argsort(rows["physical_offset"], kind="stable")]
            runs = write_plan.runs_of(
                rows["queue_offset"], rows["physical_offset"], rows["size"].astype(np.int64)
            )
            write_plan.append_runs(self._result.present.setdefault(key, []), runs)

    @staticmethod
    def _set_verdicts(window: Judged, rows: Offsets, compared: UnitComparison) -> None:
        reasons = np.zeros(len(rows), np.int8)
        for reason, mask in (
            (Reason.NO_UNIT, compared.is_none),
            (Reason.OTHER_UNIT, compared.is_other),
            (Reason.WRONG_TAGS, compared.is_wrong_tags),
            (Reason.WRONG_SIZE, compared.is_wrong_size),
        ):
            reasons[mask] = REASONS.index(reason)
        verdicts = np.full(len(rows), VERDICTS.index(MessageVerdict.DISPATCHED), np.int8)
        verdicts[reasons != 0] = VERDICTS.index(MessageVerdict.LOST)
        verdicts[compared.is_pending] = VERDICTS.index(MessageVerdict.UNDISPATCHED)
        window.verdicts[rows] = verdicts
        window.reasons[rows] = np.where(compared.is_pending, 0, reasons)

    # Groups and stages

    def _add_readers(self, window: Judged, key: QueueKey, rows: Offsets) -> None:
        """Compare queue offsets with those of the groups that read the topic."""
        topic, queue_id = key
        offsets, groups = self._inputs.offsets_of(topic, queue_id)
        if not groups:
            return
        columns = window.columns
        # A message is pending for the groups whose offset is not greater: the first ``rank`` ones.
        ranks = np.searchsorted(offsets, columns.numbers("queue_offset")[rows], "right")
        window.readers.put(topic, queue_id, rows, ranks, groups)
        sizes = columns.numbers("store_size")[rows].astype(np.int64)
        times = columns.numbers("store_timestamp")[rows]
        for place, group in enumerate(groups):
            is_pending = ranks > place
            pending = int(np.count_nonzero(is_pending))
            more = GroupAudit(
                group,
                topic,
                consumed=len(rows) - pending,
                pending=pending,
                pending_bytes=int(sizes[is_pending].sum()),
                oldest_pending_ms=int(times[is_pending].min()) if pending else None,
            )
            self._result.groups.setdefault((group, topic), GroupAudit(group, topic)).merge(more)

    def _set_stages(self, window: Judged, key: QueueKey, rows: Offsets, due_ms: Offsets) -> None:
        """Set the stage of messages that another topic gets later."""
        topic, queue_id = key
        if topic == names.SCHEDULE_TOPIC:
            self._set_delay_stages(window, queue_id + 1, rows, due_ms)
        else:
            stage = _stage_of(topic)
            if stage is not None:
                window.stages[rows] = STAGES.index(stage)

    def _set_delay_stages(self, window: Judged, level: int, rows: Offsets, due_ms: Offsets) -> None:
        columns = window.columns
        levels = self._inputs.source.config.delay_levels_ms
        delay = levels[level - 1] if 0 < level <= len(levels) else 1000
        due = np.where(due_ms, due_ms, columns.numbers("store_timestamp")[rows] + delay)
        is_done = columns.numbers("queue_offset")[rows] < self._inputs.delays.get(level, 0)
        is_due = ~is_done & (due <= self._inputs.now_ms)
        is_waiting = ~is_done & ~is_due
        window.due_ms[rows] = due
        for stage, mask in (
            (Stage.DELIVERED, is_done),
            (Stage.DUE, is_due),
            (Stage.WAITING, is_waiting),
        ):
            window.stages[rows[mask]] = STAGES.index(stage)
        sizes = columns.numbers("store_size")[rows].astype(np.int64)
        more = DelayAudit(
            level,
            delivered=int(np.count_nonzero(is_done)),
            due=int(np.count_nonzero(is_due)),
            waiting=int(np.count_nonzero(is_waiting)),
            backlog_bytes=int(sizes[~is_done].sum()),
            oldest_due_ms=int(due[is_due].min()) if is_due.any() else None,
        )
        self._result.delays.setdefault(level, DelayAudit(level)).merge(more)

    # Counts

    def _count(self, window: Judged) -> None:
        columns = window.columns
        sizes = columns.numbers("store_size").astype(np.int64)
        times = columns.numbers("store_timestamp")
        for topic_id, rows in grouped(window.topic_ids, np.arange(columns.count)):
            topic = window.topics[topic_id]
            more = TopicAudit(
                topic,
                messages=len(rows),
                bytes=int(sizes[rows].sum()),
                first_ms=int(times[rows].min()),
                last_ms=int(times[rows].max()),
                verdicts=_counted(window.verdicts[rows], VERDICTS),
                indexed=_counted(window.indexed[rows], INDEXED),
                stages=_counted(window.stages[rows], STAGES),
            )
            self._result.topics.setdefault(topic, TopicAudit(topic)).merge(more)
        self._sample(window)

    def _sample(self, window: Judged) -> None:
        room = self._inputs.sample - len(self._result.lost)
        is_lost = window.verdicts == VERDICTS.index(MessageVerdict.LOST)
        rows = np.flatnonzero(is_lost)[: max(room, 0)]
        if not len(rows):
            return
        part = window.columns.take(rows)
        keys = texts_of(part.unique_keys()).to_pylist()
        for number, row in enumerate(rows.tolist()):
            reason = REASONS[window.reasons[row]]
            assert reason is not None
            self._result.lost.append(
                LostMessage(
                    MessageVerdict.LOST,
                    reason,
                    window.topics[window.topic_ids[row]],
                    int(part.numbers("queue_id")[number]),
                    int(part.numbers("queue_offset")[number]),
                    int(part.numbers("physical_offset")[number]),
                    int(part.numbers("store_size")[number]),
                    int(part.numbers("store_timestamp")[number]),
                    keys[number],
                )
            )


def _stage_of(topic: str) -> Stage | None:
    """Return the stage that follows from a topic's name."""
    if topic in (names.HALF_TOPIC, names.ROCKSDB_HALF_TOPIC):
        return Stage.UNDECIDED
    if topic in (names.OP_HALF_TOPIC, names.ROCKSDB_OP_HALF_TOPIC):
        return Stage.OPERATION
    if names.is_retry_topic(topic):
        return Stage.RETRY
    return Stage.DEAD if names.is_dlq_topic(topic) else None


def _counted(codes: Codes, words: Sequence[Any]) -> dict[str, int]:
    counts = np.bincount(codes, minlength=len(words)).tolist()
    return {str(word): n for word, n in zip(words, counts, strict=True) if n and word is not None}
