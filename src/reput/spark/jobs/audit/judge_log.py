"""A range of the log in an audit: each record against all that is derived from it.

Against the unit at its queue offset, the index entries that point into the range, and the offsets
of groups; beside that holes, and which queue offsets are there. A task reads its range once, and as
much of queues and index as belongs to it. What it hands back is counts, runs and samples; rows go
to a table, if there is one.
"""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from reput.format import cq_unit, kernels, names, sys_flag as flags
from reput.format.message import Verdict as RecordVerdict
from reput.spark import plan
from reput.spark.jobs import queue_runs
from reput.spark.jobs.audit.index_entries import IndexBlock, RangeEntries
from reput.spark.jobs.audit.inputs import AuditInputs, Codes, Mask, Offsets, grouped
from reput.spark.jobs.audit.judged import Judged, Readers
from reput.spark.jobs.audit.message_table import RowWriter
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
from reput.spark.jobs.dispatch.extract import light_rows
from reput.spark.jobs.dispatch.write_plan import QueueKey, RecordRun
from reput.store.commit_log_view import Damage, LogBatch
from reput.store.consume_queue_view import UNIT_TYPE, ConsumeQueueView, UnitArray
from reput.store.verify.unit_check import ROW, Rows, UnitComparison, compare_batches, compare_units

_NEAR_UNITS = 1024
"""Units read for nothing rather than read apart."""
_TRANSACTION_STEP = flags.TRANSACTION_PREPARED
"""The one bit that prepared and rolled-back records have, and queued ones lack."""


@dataclass(frozen=True)
class RecordsTask:
    """A range of the log, within one file."""

    part: plan.LogRange
    blocks: tuple[IndexBlock, ...]
    """Index entries some of which point into the range."""


@dataclass
class RecordsFound:
    """What a task finds in a range of the log."""

    topics: dict[str, TopicAudit] = field(default_factory=dict)
    groups: dict[tuple[str, str], GroupAudit] = field(default_factory=dict)
    """By group and topic."""
    delays: dict[int, DelayAudit] = field(default_factory=dict)
    present: dict[QueueKey, list[RecordRun]] = field(default_factory=dict)
    """Records of each plain queue, as runs of queue offsets, in the order of the log."""
    claimed: dict[QueueKey, list[queue_runs.Run]] = field(default_factory=dict)
    """Units that point at their record."""
    claimed_batches: dict[QueueKey, list[queue_runs.Run]] = field(default_factory=dict)
    """The same of batch queues: numbers of units."""
    holes: list[tuple[Damage, int | None, int | None]] = field(default_factory=list)
    """With the store times of the records before and behind, as far as the range has them."""
    first_ms: int | None = None
    last_ms: int | None = None
    """Store times of the first and the last record of the range."""
    lost: list[LostMessage] = field(default_factory=list)
    """A sample."""
    light: dict[QueueKey, list[tuple[int, int]]] = field(default_factory=dict)
    """Queue and physical offsets of messages that light queues have no unit of."""
    strays: int = 0
    """Index entries into the range that point at no message with their key."""


def judge_records(setting: AuditInputs, table: str | None, task: RecordsTask) -> RecordsFound:
    """Judge the records of a range; write a row each to a table, if there is one."""
    found = RecordsFound()
    walk = _RangeJudge(setting, task, found)
    if table is None:
        for _ in walk.windows():
            pass
        return found
    with RowWriter(table, f"{task.part.start:020d}") as writer:
        for window in walk.windows():
            writer.put(window)
    return found


class _RangeJudge:
    """A walk over a range of the log."""

    def __init__(self, setting: AuditInputs, task: RecordsTask, found: RecordsFound) -> None:
        self._setting = setting
        self._part = task.part
        self._found = found
        self._entries = RangeEntries(setting, task.part, task.blocks)
        self._views: dict[QueueKey, ConsumeQueueView] = {}
        self._batch_units: dict[QueueKey, tuple[UnitArray, Offsets]] = {}
        self._open_holes: list[Damage] = []

    def windows(self) -> Iterator[Judged]:
        """Yield the records, judged, and gather the rest in what is found."""
        source, part = self._setting.source, self._part
        start = source.log.part_start(part.start, part.stop)
        for whole in source.log.walk(start, part.stop, is_end=part.is_end):
            batch = self._without_torn(whole)
            if not len(batch.positions):
                self._open_holes += batch.damage
                continue
            columns = batch.columns()
            self._note_holes(batch, columns)
            yield self._judge(batch, columns)
        self._found.holes += [(one, self._found.last_ms, None) for one in self._open_holes]
        self._found.strays = self._entries.settle()

    def _without_torn(self, batch: LogBatch) -> LogBatch:
        """Make holes of records that a crash has torn."""
        spans = self._setting.source.torn
        places = batch.positions + batch.physical_offset
        is_torn = np.isin(places, np.array([low for low, _ in spans], np.int64))
        if not is_torn.any():
            return batch
        name = self._setting.source.log.file_at(int(places[0])).name
        torn = [
            Damage(int(at), int(size), RecordVerdict.TRUNCATED, name)
            for at, size in zip(places[is_torn], batch.sizes[is_torn], strict=True)
        ]
        return LogBatch(
            batch.buffer,
            batch.physical_offset,
            batch.positions[~is_torn],
            batch.sizes[~is_torn],
            (*batch.damage, *torn),
        )

    def _note_holes(self, batch: LogBatch, columns: kernels.Columns) -> None:
        """Note holes with the times around them; those behind the last record wait for the next."""
        found = self._found
        times, places = columns.numbers("store_timestamp"), columns.numbers("physical_offset")
        for hole in [*self._open_holes, *batch.damage]:
            row = int(np.searchsorted(places, hole.physical_offset))
            if row == len(places):
                continue
            before = int(times[row - 1]) if row else found.last_ms
            found.holes.append((hole, before, int(times[row])))
        self._open_holes = [one for one in batch.damage if one.physical_offset > places[-1]]
        if found.first_ms is None:
            found.first_ms = int(times[0])
        found.last_ms = int(times[-1])

    def _judge(self, batch: LogBatch, columns: kernels.Columns) -> Judged:
        topic_ids, topics = columns.topic_ids()
        window = Judged(
            columns,
            topic_ids,
            topics,
            verdicts=np.full(columns.count, VERDICTS.index(MessageVerdict.UNQUEUED), np.int8),
            reasons=np.zeros(columns.count, np.int8),
            indexed=self._index_codes(batch, columns),
            stages=np.zeros(columns.count, np.int8),
            due_ms=np.zeros(columns.count, np.int64),
            readers=Readers(columns.count),
            tags_codes=columns.tags_codes(),
        )
        sys_flags = columns.numbers("sys_flag")
        is_queued = (sys_flags & _TRANSACTION_STEP) == 0
        is_gone = self._are_deleted(columns, topic_ids, topics)
        window.verdicts[is_queued & is_gone] = VERDICTS.index(MessageVerdict.DELETED)
        rows = np.flatnonzero(is_queued & ~is_gone)
        is_batch = (sys_flags & flags.INNER_BATCH) != 0
        # What is no batch has a unit there as well, if its topic has such queues.
        has_batches = [topic in self._setting.reader.batch_queue_ids for topic in topics]
        is_batch |= np.array(has_batches, np.bool_)[topic_ids]
        queue_ids = columns.numbers("queue_id").astype(np.uint32).astype(np.int64)
        keys = topic_ids.astype(np.int64) << 33 | is_batch.astype(np.int64) << 32 | queue_ids
        for key, some in grouped(keys[rows], rows):
            topic, queue_id = topics[key >> 33], key & 0xFFFFFFFF
            judge = self._judge_batches if key >> 32 & 1 else self._judge_queue
            judge(window, topic, queue_id, some)
        if any(topic.startswith(names.LMQ_PREFIX) for topic in self._setting.queues_there):
            self._claim_light(batch, columns, np.flatnonzero(is_queued), list(topics))
        self._count(window)
        return window

    def _index_codes(self, batch: LogBatch, columns: kernels.Columns) -> Codes:
        last = batch.physical_offset + int(batch.positions[-1]) + 1
        return self._entries.judge(columns, last)

    def _are_deleted(
        self, columns: kernels.Columns, topic_ids: npt.NDArray[np.int32], topics: list[str]
    ) -> Mask:
        """Return which records are of a topic that was deleted behind them."""
        ends = [
            self._setting.source.end
            if self._setting.is_deleted(topic)
            else self._setting.source.tombstones.get(topic, 0)
            for topic in topics
        ]
        found: Mask = columns.numbers("physical_offset") < np.array(ends, np.int64)[topic_ids]
        return found

    # Queues

    def _judge_queue(self, window: Judged, topic: str, queue_id: int, rows: Offsets) -> None:
        """Judge records of one plain queue against its units."""
        columns = window.columns
        numbers = columns.numbers("queue_offset")[rows]
        places = columns.numbers("physical_offset")[rows]
        sizes = columns.numbers("store_size")[rows]
        units = self._units_at(topic, queue_id, numbers)
        compared = compare_units(
            self._setting.reader, topic, queue_id, self._rows(window, rows), units
        )
        self._conclude(window, rows, places, compared)
        self._note_readers(window, topic, queue_id, rows, numbers)
        # A time that was in an extension file and is lost there is told by the level.
        is_time = compared.is_mine & (compared.tags_codes > cq_unit.EXT_ADDRESS_MAX)
        due = np.where(is_time, compared.tags_codes, 0)
        self._note_stage(window, topic, queue_id, rows, due)
        key = (topic, queue_id)
        more = write_plan.runs_of(numbers, places, sizes.astype(np.int64))
        write_plan.append_runs(self._found.present.setdefault(key, []), more)
        self._claim(key, numbers[compared.is_mine])

    def _rows(self, window: Judged, rows: Offsets) -> Rows:
        """Return what there is to compare of records with their units."""
        columns = window.columns
        found = np.zeros(len(rows), ROW)
        for field_name in ("queue_offset", "physical_offset"):
            found[field_name] = columns.numbers(field_name)[rows]
        found["size"] = columns.numbers("store_size")[rows]
        found["tags_code"] = window.tags_codes[rows]
        return found

    def _claim(self, key: QueueKey, numbers: Offsets) -> None:
        if len(numbers):
            runs = [*self._found.claimed.get(key, []), *queue_runs.of(numbers)]
            self._found.claimed[key] = queue_runs.union(runs)[0]

    def _units_at(self, topic: str, queue_id: int, numbers: Offsets) -> UnitArray:
        """Return the units at queue offsets; zeros where there is no file."""
        found = np.zeros(len(numbers), UNIT_TYPE)
        if queue_id not in self._setting.queues_there.get(topic, ()):
            return found
        order = np.argsort(numbers, kind="stable")
        ordered = numbers[order]
        cuts = np.flatnonzero(np.diff(ordered) > _NEAR_UNITS) + 1
        view = self._view(topic, queue_id)
        for some in np.split(order, cuts):
            at = numbers[some]
            for start, units in view.blocks(int(at[0]), int(at[-1]) + 1):
                inside = (at >= start) & (at < start + len(units))
                found[some[inside]] = units[at[inside] - start]
        return found

    def _view(self, topic: str, queue_id: int) -> ConsumeQueueView:
        return self._setting.reader.queue(topic, queue_id)

    def _judge_batches(self, window: Judged, topic: str, queue_id: int, rows: Offsets) -> None:
        """Judge records of a batch queue of 5.x against its units."""
        columns = window.columns
        places = columns.numbers("physical_offset")[rows]
        units, order = self._batch_units_in(topic, queue_id)
        units_of, compared = compare_batches(self._rows(window, rows), units, order)
        self._conclude(window, rows, places, compared)
        numbers = columns.numbers("queue_offset")[rows]
        self._note_readers(window, topic, queue_id, rows, numbers)
        known = self._found.claimed_batches.get((topic, queue_id), [])
        runs = [*known, *queue_runs.of(np.unique(units_of[compared.is_mine]))]
        self._found.claimed_batches[topic, queue_id] = queue_runs.union(runs)[0]

    def _batch_units_in(self, topic: str, queue_id: int) -> tuple[UnitArray, Offsets]:
        """Return the units of a batch queue, and the numbers of those that point into the range."""
        key = (topic, queue_id)
        if key not in self._batch_units:
            units = self._setting.reader.batch_queue(topic, queue_id).units
            places = units["physical_offset"]
            inside = np.flatnonzero((places >= self._part.start) & (places < self._part.stop))
            order = inside[np.argsort(places[inside], kind="stable")]
            self._batch_units[key] = units, order
        return self._batch_units[key]

    def _claim_light(
        self, batch: LogBatch, columns: kernels.Columns, rows: Offsets, topics: list[str]
    ) -> None:
        """Claim the units of light queues (LMQ), in which records are besides their own."""
        source = self._setting.source
        keys, numbers, places, _ = light_rows(source, batch, columns, rows, topics)
        for key, some in grouped(keys, np.arange(len(keys))):
            topic, queue_id = topics[key >> 32], key & 0xFFFFFFFF
            units = self._units_at(topic, queue_id, numbers[some])
            is_mine = (units["size"] > 0) & (units["physical_offset"] == places[some])
            is_none = (units["size"] == 0) & (places[some] < self._setting.redispatch_from)
            missing = zip(numbers[some][is_none], places[some][is_none], strict=True)
            found = [(int(number), int(place)) for number, place in missing]
            # A light queue without files is one that nobody reads, or that was deleted.
            if found and queue_id in self._setting.queues_there.get(topic, ()):
                self._found.light.setdefault((topic, queue_id), []).extend(found)
            self._claim((topic, queue_id), np.sort(numbers[some][is_mine]))

    def _conclude(
        self, window: Judged, rows: Offsets, places: Offsets, compared: UnitComparison
    ) -> None:
        reasons = np.zeros(len(rows), np.int8)
        for reason, mask in (
            (Reason.NO_UNIT, compared.is_none),
            (Reason.OTHER_UNIT, compared.is_other),
            (Reason.WRONG_TAGS, compared.is_wrong_tags),
            (Reason.WRONG_SIZE, compared.is_wrong_size),
        ):
            reasons[mask] = REASONS.index(reason)
        is_pending = compared.is_none & (places >= self._setting.redispatch_from)
        verdicts = np.full(len(rows), VERDICTS.index(MessageVerdict.DISPATCHED), np.int8)
        verdicts[reasons != 0] = VERDICTS.index(MessageVerdict.LOST)
        verdicts[is_pending] = VERDICTS.index(MessageVerdict.UNDISPATCHED)
        window.verdicts[rows] = verdicts
        window.reasons[rows] = np.where(is_pending, 0, reasons)

    # Groups and stages

    def _note_readers(
        self, window: Judged, topic: str, queue_id: int, rows: Offsets, numbers: Offsets
    ) -> None:
        """Compare queue offsets with those of the groups that read the topic."""
        offsets, who = self._setting.offsets_of(topic, queue_id)
        if not who:
            return
        # So many groups, the first in the order of their offsets, are not past the message.
        ranks = np.searchsorted(offsets, numbers, "right")
        window.readers.put(topic, queue_id, rows, ranks, who)
        sizes = window.columns.numbers("store_size")[rows].astype(np.int64)
        times = window.columns.numbers("store_timestamp")[rows]
        for place, group in enumerate(who):
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
            self._found.groups.setdefault((group, topic), GroupAudit(group, topic)).merge(more)

    def _note_stage(
        self, window: Judged, topic: str, queue_id: int, rows: Offsets, tags_codes: Offsets
    ) -> None:
        """Say how far messages of the topics are that lead to another one."""
        if topic == names.SCHEDULE_TOPIC:
            self._note_delay(window, queue_id + 1, rows, tags_codes)
        else:
            stage = _stage_of(topic)
            if stage is not None:
                window.stages[rows] = STAGES.index(stage)

    def _note_delay(self, window: Judged, level: int, rows: Offsets, tags_codes: Offsets) -> None:
        columns = window.columns
        levels = self._setting.source.config.delay_levels_ms
        delay = levels[level - 1] if 0 < level <= len(levels) else 1000
        due = np.where(tags_codes, tags_codes, columns.numbers("store_timestamp")[rows] + delay)
        is_done = columns.numbers("queue_offset")[rows] < self._setting.delays.get(level, 0)
        is_due = ~is_done & (due <= self._setting.now_ms)
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
        self._found.delays.setdefault(level, DelayAudit(level)).merge(more)

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
            self._found.topics.setdefault(topic, TopicAudit(topic)).merge(more)
        self._sample(window)

    def _sample(self, window: Judged) -> None:
        room = self._setting.sample - len(self._found.lost)
        rows = np.flatnonzero(window.verdicts == VERDICTS.index(MessageVerdict.LOST))[
            : max(room, 0)
        ]
        if not len(rows):
            return
        part = window.columns.take(rows)
        keys = texts_of(part.unique_keys())
        for at, row in enumerate(rows.tolist()):
            reason = REASONS[window.reasons[row]]
            assert reason is not None
            self._found.lost.append(
                LostMessage(
                    MessageVerdict.LOST,
                    reason,
                    window.topics[window.topic_ids[row]],
                    int(part.numbers("queue_id")[at]),
                    int(part.numbers("queue_offset")[at]),
                    int(part.numbers("physical_offset")[at]),
                    int(part.numbers("store_size")[at]),
                    int(part.numbers("store_timestamp")[at]),
                    keys[at],
                )
            )


def _stage_of(topic: str) -> Stage | None:
    """Return the stage that a topic's name gives away."""
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


def texts_of(runs: kernels.Runs) -> list[str | None]:
    """Return texts, None where there is none."""
    data, offsets = runs.data.tobytes(), runs.offsets.tolist()
    return [
        data[low:high].decode() if runs.present is None or runs.present[at] else None
        for at, (low, high) in enumerate(itertools.pairwise(offsets))
    ]
