"""What the tasks of an audit found, summed up on the driver: holes, gaps, groups, counts.

Which messages a hole took is told by two witnesses: units that point into it, exactly; and queue
offsets that are missing between two records, one before the hole and one behind it. Where several
holes lie between those two, the longest one gets what no unit tells of.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

import numpy as np

from reput.errors import CorruptRecord
from reput.format import names
from reput.spark.jobs import queue_runs
from reput.spark.jobs.audit.index_entries import IndexFound
from reput.spark.jobs.audit.judge_log import RecordsFound
from reput.spark.jobs.audit.judge_units import UnitsFound
from reput.spark.jobs.audit.verdicts import (
    NOTES,
    AuditedHole,
    AuditFinding,
    AuditResult,
    DelayAudit,
    Fault,
    GroupAudit,
    LostMessage,
    MessageVerdict,
    Missing,
    TopicAudit,
)
from reput.spark.jobs.dispatch import write_plan
from reput.spark.jobs.dispatch.write_plan import QueueKey, RecordRun
from reput.store import paths
from reput.store.commit_log_view import Damage
from reput.store.config_tables import ConsumerOffset
from reput.store.reader import Condition, StoreReader
from reput.store.verify import log_check, queue_check
from reput.store.verify.findings import FindingKind, Ledger
from reput.store.verify.number_runs import Spans

_UNIT_TEXTS = {
    Fault.UNIT_ZERO: "zeros amid the units",
    Fault.UNIT_BLANK: "filler amid the units",
    Fault.UNIT_INVALID: "a negative offset or size",
    Fault.UNIT_TWICE: "points at a message of the queue that has another unit",
    Fault.UNIT_WRONG_RECORD: "points at no message of the queue",
}
T = TypeVar("T")


class AuditTotals:
    """What was found so far.

    Args:
        reader: The store.
        end: Where its log ends.
        sample: How many things of a kind to keep.
    """

    def __init__(self, reader: StoreReader, end: int, sample: int) -> None:
        self._reader = reader
        self._end = end
        self._sample = sample
        self._is_stopped = reader.state.condition is Condition.CLEAN
        self._topics: dict[str, TopicAudit] = {}
        self._groups: dict[tuple[str, str], GroupAudit] = {}
        self._delays: dict[int, DelayAudit] = {}
        self._present: dict[QueueKey, list[RecordRun]] = {}
        self._holes: list[tuple[Damage, int | None, int | None]] = []
        self._waiting_holes = 0
        """Of these, how many at the end have no record behind them yet."""
        self._last_ms: int | None = None
        self._in_holes: defaultdict[QueueKey, list[tuple[int, queue_runs.Run]]] = defaultdict(list)
        self._missing: defaultdict[int, list[Missing]] = defaultdict(list)
        self._lost: list[LostMessage] = []
        self._light: dict[QueueKey, list[tuple[int, int]]] = {}
        self._strays = 0
        self._findings: defaultdict[Fault, list[AuditFinding]] = defaultdict(list)
        self._faults: defaultdict[Fault, int] = defaultdict(int)
        self._fault_count = 0
        self._told_units: dict[tuple[QueueKey, Fault], tuple[int, int, int]] = {}
        self.claimed: dict[QueueKey, list[queue_runs.Run]] = {}
        """Units of each queue that point at their record."""
        self.claimed_batches: dict[QueueKey, list[queue_runs.Run]] = {}

    # Findings

    def find(
        self,
        fault: Fault,
        where: str,
        text: str,
        count: int = 1,
        *,
        is_note: bool = False,
        physical_offset: int | None = None,
        queue_offset: int | None = None,
    ) -> None:
        """Keep a finding."""
        is_note |= fault in NOTES
        self._faults[fault] += count
        self._fault_count += 0 if is_note else count
        if len(self._findings[fault]) < self._sample:
            finding = AuditFinding(
                fault, where, text, count, is_note, physical_offset, queue_offset
            )
            self._findings[fault].append(finding)

    def table(self, path: str, read: Callable[[], T], nothing: T) -> T:
        """Read a table; one that cannot be read is a finding."""
        try:
            return read()
        except CorruptRecord as error:
            self.find(Fault.TABLE, path, error.reason)
            return nothing

    def check_files(self) -> None:
        """Check sizes of the files of log and queues, as ``reput store verify`` does."""
        ledger = Ledger()
        log_check.check_files(self._reader, ledger)
        queue_check.check_files(self._reader, ledger)
        for one in ledger.findings:
            if one.kind in (FindingKind.LOG_FILE_SIZE, FindingKind.QUEUE_FILE_SIZE):
                self.find(Fault.FILE_SIZE, one.path, one.text)

    def add_index(self, one: IndexFound) -> None:
        """Add what an index file is in itself."""
        checked = one.checked
        path = f"{paths.INDEX}/{checked.name}"
        if checked.problem is not None:
            self.find(Fault.INDEX_FILE, path, checked.problem)
        if checked.broken_links:
            text = f"{checked.broken_links} links of its hash chains are wrong: keys are not found"
            self.find(Fault.INDEX_CHAIN, path, text, checked.broken_links)
        if one.stale:
            text = f"{one.stale} entries point behind the end of the log"
            self.find(Fault.ENTRY_STALE, path, text, one.stale)

    # Records

    def add_records(self, one: RecordsFound) -> None:
        """Add a range; they come in the order of the log."""
        for topic, more in one.topics.items():
            self._topic(topic).merge(more)
        for key, readers in one.groups.items():
            self._groups.setdefault(key, GroupAudit(*key)).merge(readers)
        for level, delayed in one.delays.items():
            self._delays.setdefault(level, DelayAudit(level)).merge(delayed)
        for queue, runs in one.present.items():
            write_plan.append_runs(self._present.setdefault(queue, []), runs)
        for mine, theirs in (
            (self.claimed, one.claimed),
            (self.claimed_batches, one.claimed_batches),
        ):
            for queue, claimed in theirs.items():
                mine[queue] = queue_runs.union([*mine.get(queue, []), *claimed])[0]
        for queue, missing in one.light.items():
            self._light.setdefault(queue, []).extend(missing)
        self._add_holes(one)
        self._lost += one.lost[: max(self._sample - len(self._lost), 0)]
        self._strays += one.strays

    def _topic(self, name: str) -> TopicAudit:
        return self._topics.setdefault(name, TopicAudit(name))

    def _add_holes(self, one: RecordsFound) -> None:
        if one.first_ms is not None:
            for at in range(len(self._holes) - self._waiting_holes, len(self._holes)):
                damage, before, _ = self._holes[at]
                self._holes[at] = (damage, before, one.first_ms)
            self._waiting_holes = 0
        for damage, before, after in sorted(one.holes, key=lambda hole: hole[0].physical_offset):
            before = self._last_ms if before is None else before
            self._holes.append((damage, before, after))
            self._waiting_holes += after is None
        self._last_ms = self._last_ms if one.last_ms is None else one.last_ms

    def settle_records(self) -> None:
        """Call when all ranges are added."""
        for damage, _, _ in self._holes:
            self.find(
                Fault.HOLE,
                f"{paths.COMMIT_LOG}/{damage.file}",
                f"{damage.length} bytes: {damage.reason}",
                physical_offset=damage.physical_offset,
            )
        tail = self._reader.tail
        for fault, behind in ((Fault.TORN_TAIL, tail.torn), (Fault.STALE_TAIL, tail.stale)):
            if behind is not None:
                text = f"{behind.length} bytes behind the end of the log: {behind.reason}"
                path = f"{paths.COMMIT_LOG}/{behind.file}"
                self.find(fault, path, text, physical_offset=behind.physical_offset)
        if self._strays:
            text = f"{self._strays} entries point at no message with their key"
            self.find(Fault.ENTRY_STRAY, paths.INDEX, text, self._strays)

    def present_in(self, key: QueueKey, runs: list[queue_runs.Run]) -> list[queue_runs.Run]:
        """Return what of some queue offsets, in order, records have."""
        there = queue_runs.union((run.start, run.stop) for run in self._present.get(key, []))[0]
        return queue_runs.without(runs, queue_runs.without(runs, there))

    def hole_places(self) -> Spans:
        """Return where the holes are."""
        return Spans(
            np.array([one.physical_offset for one, _, _ in self._holes], np.int64),
            np.array([one.end for one, _, _ in self._holes], np.int64),
        )

    # Units

    def add_units(self, one: UnitsFound) -> None:
        """Add what a task found of units that no record claimed."""
        for name, count in one.counts.items():
            known = self._told_units.get(name)
            first = known[1:] if known else one.first[name]
            self._told_units[name] = ((known[0] if known else 0) + count, *first)
        for key, hole, run in one.in_holes:
            self._in_holes[key].append((hole, run))
        for topic, count in one.damaged_count.items():
            verdicts = self._topic(topic).verdicts
            verdicts[MessageVerdict.DAMAGED] = verdicts.get(MessageVerdict.DAMAGED, 0) + count
        self._lost += one.damaged[: max(self._sample - len(self._lost), 0)]

    def settle_units(self) -> None:
        """Call when all units are added."""
        for (key, fault), (count, queue_offset, place) in sorted(self._told_units.items()):
            text = _UNIT_TEXTS[fault]
            text = f"1 unit {text}" if count == 1 else f"{count} units, the first one {text}"
            self.find(
                fault,
                paths.queue_folder(*key),
                text,
                count,
                physical_offset=place,
                queue_offset=queue_offset,
            )
        for key in sorted({*self._present, *self._in_holes}):
            self._miss(key)
        for key, missing in sorted(self._light.items()):
            self._miss_light(key, missing)

    def _miss_light(self, key: QueueKey, missing: list[tuple[int, int]]) -> None:
        """Report messages that a light queue ends before; zeros amid its units are reported."""
        claimed = self.claimed.get(key, [])
        end = max(self._reader.queue(*key).max_offset, claimed[-1][1] if claimed else 0)
        after = sorted(one for one in missing if one[0] >= end)
        if after:
            (number, place), count = after[0], len(after)
            text = f"{count} messages that name the light queue have no unit in it"
            where = paths.queue_folder(*key)
            self.find(
                Fault.LIGHT_UNIT, where, text, count, physical_offset=place, queue_offset=number
            )

    def _miss(self, key: QueueKey) -> None:
        """Find out what of a queue is missing, and which hole took it."""
        by_hole: defaultdict[int, list[queue_runs.Run]] = defaultdict(list)
        for hole, run in self._in_holes.get(key, []):
            by_hole[hole].append(run)
        told = queue_runs.union(run for _, run in self._in_holes.get(key, []))[0]
        for gap, low, high in self._gaps(key):
            rest = queue_runs.without([gap], told)
            taker = self._longest_hole(low, high)
            count = queue_runs.count(rest)
            if taker is not None:
                by_hole[taker] += rest
            elif gap[0] and count:
                text = f"{count} queue offsets that neither a record nor a unit has"
                where = paths.queue_folder(*key)
                self.find(Fault.GAP, where, text, count, queue_offset=rest[0][0])
            else:
                continue  # the queue begins there
            self._topic(key[0]).missing += count
        for hole, runs in by_hole.items():
            for start, stop in queue_runs.union(runs)[0]:
                self._missing[hole].append(Missing(*key, start, stop - start))

    def _gaps(self, key: QueueKey) -> Iterable[tuple[queue_runs.Run, int, int]]:
        """Yield queue offsets without a record, and between which physical offsets they were."""
        runs = self._present.get(key, [])
        if key[0].startswith(names.LMQ_PREFIX) or not runs:
            return
        first = runs[0]
        if first.start and not self._reader.log.min_offset:
            yield (0, first.start), 0, first.physical_offset
        last = first
        for run in runs[1:]:
            if last.stop < run.start:
                yield (last.stop, run.start), last.end, run.physical_offset
            last = run

    def _longest_hole(self, low: int, high: int) -> int | None:
        """Return which hole in ``[low, high)`` is the longest one."""
        starts = [one.physical_offset for one, _, _ in self._holes]
        at, stop = np.searchsorted(starts, [low, high])
        found = range(int(at), int(stop))
        return max(found, key=lambda hole: self._holes[hole][0].length, default=None)

    # Groups and delays

    def add_groups(self, offsets: Iterable[ConsumerOffset]) -> None:
        """Compare the offsets of groups with their queues. Call when all ranges are added."""
        stored: defaultdict[tuple[str, str], dict[int, int]] = defaultdict(dict)
        for one in offsets:
            stored[one.group, one.topic][one.queue_id] = one.consumer_offset
        for (group, topic), of_queues in stored.items():
            found = self._groups.setdefault((group, topic), GroupAudit(group, topic))
            there = {
                *self._reader.queue_ids.get(topic, ()),
                *self._reader.batch_queue_ids.get(topic, ()),
            }
            for queue_id in sorted(there):
                end = self._queue_end(topic, queue_id)
                consumer_offset = of_queues.get(queue_id, 0)
                found.lag += end - consumer_offset
                if queue_id in of_queues:
                    self._check_offset(found, queue_id, consumer_offset, end)
            for queue_id in sorted(of_queues.keys() - there):
                if of_queues[queue_id]:
                    at = of_queues[queue_id]
                    text = f"stands at {at} of {topic}/{queue_id}, a queue without files"
                    self.find(Fault.GROUP_WITHOUT_QUEUE, group, text)

    def _check_offset(self, found: GroupAudit, queue_id: int, at: int, end: int) -> None:
        topic = found.topic
        if at > end:
            text = f"stands at {at} of {topic}/{queue_id}, which ends at {end}"
            is_note = not self._is_stopped
            self.find(Fault.GROUP_AHEAD, found.group, text, is_note=is_note, queue_offset=at)
        runs = self._present.get((topic, queue_id), [])
        first = runs[0].start if runs else end
        if self._reader.log.min_offset and at < first:
            found.expired += first - at
            text = f"{first - at} messages of {topic}/{queue_id} left the log before it read them"
            self.find(Fault.GROUP_EXPIRED, found.group, text, first - at, queue_offset=at)

    def _queue_end(self, topic: str, queue_id: int) -> int:
        if queue_id in self._reader.queue_ids.get(topic, ()):
            return self._reader.queue(topic, queue_id).max_offset
        return self._reader.batch_queue(topic, queue_id).max_offset

    def add_delays(self, delays: Mapping[int, int]) -> None:
        """Compare how far levels are with their queues."""
        for level, done in sorted(delays.items()):
            end = self._reader.queue(names.SCHEDULE_TOPIC, level - 1).max_offset
            if done > end:
                text = f"level {level} has delivered up to {done}, its queue ends at {end}"
                is_note = not self._is_stopped
                where = paths.DELAY_OFFSETS
                self.find(Fault.DELAY_AHEAD, where, text, is_note=is_note, queue_offset=done)

    # The result

    def result(self, store: str, now_ms: int, table: str | None) -> AuditResult:
        """Return it all."""
        holes = tuple(
            AuditedHole(
                damage.physical_offset,
                damage.length,
                damage.reason,
                damage.file,
                before,
                after,
                tuple(self._missing.get(number, ())),
            )
            for number, (damage, before, after) in enumerate(self._holes[: self._sample])
        )
        return AuditResult(
            store=store,
            broker=self._broker_name(),
            condition=self._reader.state.condition.value,
            now_ms=now_ms,
            log_start=self._reader.log.min_offset,
            log_end=self._end,
            topics=tuple(self._topics[name] for name in sorted(self._topics)),
            groups=tuple(self._groups[key] for key in sorted(self._groups)),
            delays=tuple(self._delays[level] for level in sorted(self._delays)),
            holes=holes,
            hole_count=len(self._holes),
            hole_bytes=sum(one.length for one, _, _ in self._holes),
            lost=tuple(sorted(self._lost, key=lambda one: one.physical_offset)),
            findings=tuple(one for fault in Fault for one in self._findings.get(fault, ())),
            faults={str(fault): self._faults[fault] for fault in Fault if self._faults.get(fault)},
            fault_count=self._fault_count,
            table=table,
        )

    def _broker_name(self) -> str:
        """Return the name of the broker, as far as its tables tell."""
        try:
            return self._reader.broker_name()
        except CorruptRecord:
            return ""
