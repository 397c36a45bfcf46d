"""Judge the units that no record claimed by the place they point at. A task judges some queues."""

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from reput.format import names
from reput.spark.jobs import queue_runs
from reput.spark.jobs.audit.inputs import AuditInputs, Offsets, grouped
from reput.spark.jobs.audit.message_table import RowWriter
from reput.spark.jobs.audit.verdicts import Fault, LostMessage, MessageVerdict, Reason
from reput.spark.jobs.dispatch.write_plan import QueueKey
from reput.store.queues.consume_queue_view import UnitArray
from reput.store.reader import belongs
from reput.store.verify.number_runs import Spans
from reput.store.verify.unit_check import judge_unclaimed, message_at

_LOOKED_UP_MAX = 100
"""Maximum number of wrong units of a file whose records are read."""
_UNITS_AT_ONCE = 1 << 20


@dataclass(frozen=True)
class UnclaimedUnits:
    """Units of a queue that no record claimed."""

    topic: str
    queue_id: int
    runs: tuple[queue_runs.Run, ...]
    """Queue offsets of the units; for a batch queue their numbers."""
    first_claimed: int
    """Queue offset of the first unit that a record claimed; filler may be before it."""
    present: tuple[queue_runs.Run, ...] = ()
    """The queue offsets whose record exists and has been judged."""
    is_batch: bool = False


@dataclass(frozen=True)
class UnitsTask:
    """Queues with units to judge."""

    number: int
    queues: tuple[UnclaimedUnits, ...]


@dataclass
class UnitsResult:
    """The result of a task for units that no record claimed."""

    counts: dict[tuple[QueueKey, Fault], int] = field(default_factory=dict)
    first: dict[tuple[QueueKey, Fault], tuple[int, int]] = field(default_factory=dict)
    """Queue offset and physical offset of the first unit of each fault."""
    in_holes: list[tuple[QueueKey, int, queue_runs.Run]] = field(default_factory=list)
    """Queue, number of the hole, and queue offsets of the messages that were in it."""
    damaged: list[LostMessage] = field(default_factory=list)
    """A sample of the damaged messages."""
    damaged_count: dict[str, int] = field(default_factory=dict)
    """Topic -> damaged messages."""

    def add_damaged(
        self,
        inputs: AuditInputs,
        key: QueueKey,
        reason: Reason,
        numbers: Offsets,
        units: UnitArray,
    ) -> None:
        """Count messages that have a unit and no record, and keep a sample."""
        self.damaged_count[key[0]] = self.damaged_count.get(key[0], 0) + len(numbers)
        room = max(inputs.sample - len(self.damaged), 0)
        for number, unit in zip(numbers[:room].tolist(), units[:room], strict=True):
            place, size = int(unit["physical_offset"]), int(unit["size"])
            message = LostMessage(MessageVerdict.DAMAGED, reason, *key, number, place, size)
            self.damaged.append(message)


_Damaged = tuple[QueueKey, Reason, Offsets, UnitArray]
"""Units of a queue, with the reason why they point at no record."""


def judge_units(
    inputs: AuditInputs, holes: Spans, table: str | None, task: UnitsTask
) -> UnitsResult:
    """Judge units that no record claims; write a row for each damaged message to the table."""
    result = UnitsResult()
    damaged: list[_Damaged] = []
    for queue in task.queues:
        for numbers, units in _read(inputs, queue):
            damaged += _judge(inputs, holes, queue, numbers, units, result)
    if table is not None:
        with RowWriter(table, f"units-{task.number:06d}") as writer:
            for rows in damaged:
                writer.put_damaged(*rows)
    return result


def _read(inputs: AuditInputs, queue: UnclaimedUnits) -> Iterator[tuple[Offsets, UnitArray]]:
    """Yield the queue offsets and the units."""
    if queue.is_batch:
        units = inputs.reader.batch_queue(queue.topic, queue.queue_id).units
        for start, stop in queue.runs:
            yield units[start:stop]["queue_offset"].astype(np.int64), units[start:stop]
        return
    view = inputs.reader.queue(queue.topic, queue.queue_id)
    for start, stop in queue.runs:
        for low in range(start, stop, _UNITS_AT_ONCE):
            for first, units in view.blocks(low, min(low + _UNITS_AT_ONCE, stop)):
                yield np.arange(first, first + len(units), dtype=np.int64), units


def _judge(
    inputs: AuditInputs,
    holes: Spans,
    queue: UnclaimedUnits,
    numbers: Offsets,
    units: UnitArray,
    result: UnitsResult,
) -> Iterator[_Damaged]:
    key = (queue.topic, queue.queue_id)
    places = units["physical_offset"].astype(np.int64)
    has_record = np.zeros(len(units), np.bool_)
    for start, stop in queue.present:
        has_record |= (numbers >= start) & (numbers < stop)
    log = inputs.source.log
    judged = judge_unclaimed(units, has_record, log.min_offset, inputs.source.end, holes)
    is_wrong = judged.is_wrong
    looked_up = np.flatnonzero(is_wrong)
    if not queue.topic.startswith(names.LMQ_PREFIX):
        looked_up = looked_up[:_LOOKED_UP_MAX]
    is_twice = np.zeros(len(units), np.bool_)
    for row in looked_up.tolist():
        message = message_at(log, int(places[row]))
        if message is None:
            continue
        if not queue.is_batch and belongs(message, *key, int(numbers[row])):
            is_wrong[row] = False  # written after the records were judged, or of a light queue
        elif (message.topic, message.queue_id) == key:
            is_twice[row], is_wrong[row] = True, False
    for fault, mask in (
        (Fault.UNIT_ZERO, judged.is_zero & ~has_record),
        (Fault.UNIT_BLANK, judged.is_blank & ~has_record & (numbers > queue.first_claimed)),
        (Fault.UNIT_INVALID, judged.is_invalid),
        (Fault.UNIT_TWICE, is_twice),
        (Fault.UNIT_WRONG_RECORD, is_wrong),
    ):
        rows = np.flatnonzero(mask)
        if len(rows):
            name = (key, fault)
            result.counts[name] = result.counts.get(name, 0) + len(rows)
            result.first.setdefault(name, (int(numbers[rows[0]]), int(places[rows[0]])))
    inside = np.flatnonzero(judged.hole_of >= 0)
    for hole, rows in grouped(judged.hole_of[inside], inside):
        result.in_holes += [(key, hole, run) for run in queue_runs.of(numbers[rows])]
    stale = np.flatnonzero(judged.is_stale)
    if inputs.is_live:
        stale = stale[:0]  # the broker has appended since
    for reason, rows in ((Reason.IN_HOLE, inside), (Reason.AFTER_END, stale)):
        if len(rows):
            result.add_damaged(inputs, key, reason, numbers[rows], units[rows])
            yield key, reason, numbers[rows], units[rows]
