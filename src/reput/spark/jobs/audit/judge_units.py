"""Units that no record claimed: where they point. A task some queues."""

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from reput.errors import CorruptRecord, NotInStore
from reput.format import names
from reput.format.message import StoredMessage
from reput.spark.jobs import queue_runs
from reput.spark.jobs.audit.inputs import AuditInputs, Offsets, grouped
from reput.spark.jobs.audit.message_table import RowWriter
from reput.spark.jobs.audit.verdicts import (
    Fault,
    LostMessage,
    MessageVerdict,
    Reason,
)
from reput.spark.jobs.dispatch.write_plan import QueueKey
from reput.store.consume_queue_view import UnitArray
from reput.store.reader import belongs
from reput.store.verify.number_runs import Spans
from reput.store.verify.unit_check import judge_unclaimed

_LOOKED_UP_MAX = 100
"""Units of a file whose record is read to say what is wrong with them."""
_UNITS_AT_ONCE = 1 << 20


@dataclass(frozen=True)
class UnclaimedUnits:
    """Units of a queue that no record claimed."""

    topic: str
    queue_id: int
    runs: tuple[queue_runs.Run, ...]
    """Their queue offsets; of a batch queue their numbers."""
    first_claimed: int
    """Queue offset of the first unit that a record claimed; fillers may be before it."""
    present: tuple[queue_runs.Run, ...] = ()
    """Of these, queue offsets that records have, which have been judged."""
    is_batch: bool = False


@dataclass(frozen=True)
class UnitsTask:
    """Queues with units to look at."""

    number: int
    queues: tuple[UnclaimedUnits, ...]


@dataclass
class UnitsFound:
    """What a task finds of units that no record claimed."""

    counts: dict[tuple[QueueKey, Fault], int] = field(default_factory=dict)
    first: dict[tuple[QueueKey, Fault], tuple[int, int]] = field(default_factory=dict)
    """Queue offset and physical offset of the first one."""
    in_holes: list[tuple[QueueKey, int, queue_runs.Run]] = field(default_factory=list)
    """Queue, hole, queue offsets: messages that were in a hole."""
    damaged: list[LostMessage] = field(default_factory=list)
    """A sample of these."""
    damaged_count: dict[str, int] = field(default_factory=dict)
    """By topic."""

    def add_damaged(
        self,
        setting: AuditInputs,
        key: QueueKey,
        reason: Reason,
        numbers: Offsets,
        units: UnitArray,
    ) -> None:
        """Count messages of which there is a unit and no record, and keep a sample."""
        self.damaged_count[key[0]] = self.damaged_count.get(key[0], 0) + len(numbers)
        room = max(setting.sample - len(self.damaged), 0)
        for number, unit in zip(numbers[:room].tolist(), units[:room], strict=True):
            place, size = int(unit["physical_offset"]), int(unit["size"])
            self.damaged.append(
                LostMessage(MessageVerdict.DAMAGED, reason, *key, number, place, size)
            )


_Damaged = tuple[QueueKey, Reason, Offsets, UnitArray]
"""Units of a queue, and why what they point at is no record."""


def judge_units(
    setting: AuditInputs, holes: Spans, table: str | None, task: UnitsTask
) -> UnitsFound:
    """Say where units point that no record claimed; write a row for each that is in a hole."""
    found = UnitsFound()
    damaged: list[_Damaged] = []
    for queue in task.queues:
        judge = _judge_batch_units if queue.is_batch else _judge_plain_units
        damaged += judge(setting, holes, queue, found)
    if table is not None:
        with RowWriter(table, f"units-{task.number:06d}") as writer:
            for one in damaged:
                writer.put_damaged(*one)
    return found


def _judge_plain_units(
    setting: AuditInputs, holes: Spans, queue: UnclaimedUnits, found: UnitsFound
) -> Iterator[_Damaged]:
    view = setting.reader.queue(queue.topic, queue.queue_id)
    for start, stop in queue.runs:
        for low in range(start, stop, _UNITS_AT_ONCE):
            for first, units in view.blocks(low, min(low + _UNITS_AT_ONCE, stop)):
                numbers = np.arange(first, first + len(units), dtype=np.int64)
                yield from _judge_unclaimed(setting, holes, queue, numbers, units, found)


def _judge_batch_units(
    setting: AuditInputs, holes: Spans, queue: UnclaimedUnits, found: UnitsFound
) -> Iterator[_Damaged]:
    units = setting.reader.batch_queue(queue.topic, queue.queue_id).units
    for start, stop in queue.runs:
        rest = units[start:stop]
        numbers = rest["queue_offset"].astype(np.int64)
        yield from _judge_unclaimed(setting, holes, queue, numbers, rest, found)


def _judge_unclaimed(
    setting: AuditInputs,
    holes: Spans,
    queue: UnclaimedUnits,
    numbers: Offsets,
    units: UnitArray,
    found: UnitsFound,
) -> Iterator[_Damaged]:
    key = (queue.topic, queue.queue_id)
    places = units["physical_offset"].astype(np.int64)
    has_record = np.zeros(len(units), np.bool_)
    for start, stop in queue.present:
        has_record |= (numbers >= start) & (numbers < stop)
    log = setting.source.log
    judged = judge_unclaimed(units, has_record, log.min_offset, setting.source.end, holes)
    is_wrong = judged.is_wrong
    looked_up = np.flatnonzero(is_wrong)
    if not queue.topic.startswith(names.LMQ_PREFIX):
        looked_up = looked_up[:_LOOKED_UP_MAX]
    is_twice = np.zeros(len(units), np.bool_)
    for row in looked_up.tolist():
        one = _message_at(setting, int(places[row]))
        if one is None:
            continue
        if not queue.is_batch and belongs(one, *key, int(numbers[row])):
            is_wrong[row] = False  # written since the records were judged, or a light queue's
        elif (one.topic, one.queue_id) == key:
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
            found.counts[name] = found.counts.get(name, 0) + len(rows)
            found.first.setdefault(name, (int(numbers[rows[0]]), int(places[rows[0]])))
    inside = np.flatnonzero(judged.hole_of >= 0)
    for hole, rows in grouped(judged.hole_of[inside], inside):
        found.in_holes += [(key, hole, run) for run in queue_runs.of(numbers[rows])]
    behind = np.flatnonzero(judged.is_stale)
    if setting.is_live:
        behind = behind[:0]  # the broker has gone on since
    for reason, rows in ((Reason.IN_HOLE, inside), (Reason.BEHIND_END, behind)):
        if len(rows):
            found.add_damaged(setting, key, reason, numbers[rows], units[rows])
            yield key, reason, numbers[rows], units[rows]


def _message_at(setting: AuditInputs, physical_offset: int) -> StoredMessage | None:
    try:
        return setting.source.log.message_at(physical_offset)
    except (CorruptRecord, NotInStore):
        return None
