"""The results of an audit's tasks, summed up on the driver: holes, gaps, groups, counts.

There are two kinds of evidence for the messages that a hole took: units that point into it, and
queue offsets that are missing between the records before and after it. If several holes are between
these two records, missing queue offsets without a unit count for the longest one.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

import numpy as np

from reput.errors import CorruptRecord
from reput.format import names
from reput.spark.jobs import queue_runs
from reput.spark.jobs.audit.index_entries import IndexResult
from reput.spark.jobs.audit.judge_log import LightFaults, RecordsResult
from reput.spark.jobs.audit.judge_units import UnitsResult
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
from reput.store.files import paths
from reput.store.log.commit_log_view import Damage
from reput.store.reader import Condition, StoreReader
from reput.store.tables.config_tables import ConsumerOffset
from reput.store.verify import log_check, queue_check
from reput.store.verify.findings import FindingKind, Ledger
from reput.store.verify.number_runs import Spans
from reput.store.verify.table_check import queue_end

_UNIT_TEXTS = {
    Fault.UNIT_ZERO: "zeros amid the units",
    Fault.UNIT_BLANK: "filler amid the units",
    Fault.UNIT_INVALID: "a negative offset or size",
    Fault.UNIT_TWICE: "points at a message of the queue that has another unit",
    Fault.UNIT_WRONG_RECORD: "points at no message of the queue",
}
T = TypeVar("T")


class AuditTotals:
    """The results so far.

    Args:
        reader: The store.
        end: Physical offset where its log ends.
        sample: Findings of a kind, lost messages and holes to keep.
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
        self._open_holes = 0
        """Number of the last holes that have no record after them yet."""
        self._last_ms: int | None = None
        self._in_holes: defaultdict[QueueKey, list[tuple[int, queue_runs.Run]]] = defaultdict(list)
        self._missing: defaultdict[int, list[Missing]] = defaultdict(list)
        self._lost: list[LostMessage] = []
        self._light: dict[QueueKey, LightFaults] = {}
        self._strays = 0
        self._findings: defaultdict[Fault, list[AuditFinding]] = defaultdict(list)
        self._faults: defaultdict[Fault, int] = defaultdict(int)
        self._fault_count = 0
        self._unit_faults: dict[tuple[QueueKey, Fault], tuple[int, int, int]] = {}
        self.claimed: dict[QueueKey, list[queue_runs.Run]] = {}
        """Queue offsets of the units of each queue that point at their record."""
        self.claimed_batches: dict[QueueKey, list[queue_runs.Run]] = {}
        """Numbers of the units of each batch queue that point at their record."""

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
        """Count a finding, and keep it if the sample has room."""
        is_note |= fault in NOTES
        self._faults[fault] += count
        self._fault_count += 0 if is_note else count
        if len(self._findings[fault]) < self._sample:
            finding = AuditFinding(
                fault, where, text, count, is_note, physical_offset, queue_offset
            )
            self._findings[fault].append(finding)

    def table(self, path: str, read: Callable[[], T], nothing: T) -> T:
        """Read a table; add a finding and return ``nothing`` if it cannot be read."""
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
        for finding in ledger.findings:
            if finding.kind in (FindingKind.LOG_FILE_SIZE, FindingKind.QUEUE_FILE_SIZE):
                self.find(Fault.FILE_SIZE, finding.path, finding.text)

    def add_index(self, result: IndexResult) -> None:
        """Add the check of an index file."""
        checked = result.checked
        path = f"{paths.INDEX}/{checked.name}"
        if checked.problem is not None:
            self.find(Fault.INDEX_FILE, path, checked.problem)
        if checked.broken_links:
            text = f"{checked.broken_links} links of its hash chains are wrong: keys are not found"
            self.find(Fault.INDEX_CHAIN, path, text, checked.broken_links)
        if result.stale:
            text = f"{result.stale} entries point after the end of the log"
            self.find(Fault.ENTRY_STALE, path, text, result.stale)

    # Records

    def add_records(self, result: RecordsResult) -> None:
        """Add a range; ranges are added in log order."""
        for topic, more in result.topics.items():
            self._topic(topic).merge(more)
        for key, readers in result.groups.items():
            self._groups.setdefault(key, GroupAudit(*key)).merge(readers)
        for level, delayed in result.delays.items():
            self._delays.setdefault(level, DelayAudit(level)).merge(delayed)
        for queue, runs in result.present.items():
            write_plan.append_runs(self._present.setdefault(queue, []), runs)
        for mine, theirs in (
            (self.claimed, result.claimed),
            (self.claimed_batches, result.claimed_batches),
        ):
            for queue, claimed in theirs.items():
                mine[queue] = queue_runs.union([*mine.get(queue, []), *claimed])[0]
        for queue, light in result.light.items():
            self._light.setdefault(queue, LightFaults()).merge(light)
        self._add_holes(result)
        self._lost += result.lost[: max(self._sample - len(self._lost), 0)]
        self._strays += result.strays

    def _topic(self, name: str) -> TopicAudit:
        return self._topics.setdefault(name, TopicAudit(name))

    def _add_holes(self, result: RecordsResult) -> None:
        if result.first_ms is not None:
            for number in range(len(self._holes) - self._open_holes, len(self._holes)):
                damage, before, _ = self._holes[number]
                self._holes[number] = (damage, before, result.first_ms)
            self._open_holes = 0
        for damage, before, after in sorted(result.holes, key=lambda hole: hole[0].physical_offset):
            before = self._last_ms if before is None else before
            self._holes.append((damage, before, after))
            self._open_holes += after is None
        self._last_ms = self._last_ms if result.last_ms is None else result.last_ms

    def settle_records(self) -> None:
        """Add the findings on the log. Call when all ranges are added."""
        for damage, _, _ in self._holes:
            self.find(
                Fault.HOLE,
                f"{paths.COMMIT_LOG}/{damage.file}",
                f"{damage.length} bytes: {damage.reason}",
                physical_offset=damage.physical_offset,
            )
        tail = self._reader.tail
        for fault, rest in ((Fault.TORN_TAIL, tail.torn), (Fault.STALE_TAIL, tail.stale)):
            if rest is not None:
                text = f"{rest.length} bytes after the end of the log: {rest.reason}"
                path = f"{paths.COMMIT_LOG}/{rest.file}"
                self.find(fault, path, text, physical_offset=rest.physical_offset)
        if self._strays:
            text = f"{self._strays} entries point at no message with their key"
            self.find(Fault.ENTRY_STRAY, paths.INDEX, text, self._strays)

    def present_in(self, key: QueueKey, runs: list[queue_runs.Run]) -> list[queue_runs.Run]:
        """Return the parts of ascending runs of queue offsets that records have."""
        present = queue_runs.union((run.start, run.stop) for run in self._present.get(key, []))[0]
        return queue_runs.without(runs, queue_runs.without(runs, present))

    def hole_places(self) -> Spans:
        """Return the spans of the holes."""
        return Spans(
            np.array([hole.physical_offset for hole, _, _ in self._holes], np.int64),
            np.array([hole.end for hole, _, _ in self._holes], np.int64),
        )

    # Units

    def add_units(self, result: UnitsResult) -> None:
        """Add a task's result on units that no record claimed."""
        for name, count in result.counts.items():
            known = self._unit_faults.get(name)
            first = known[1:] if known else result.first[name]
            self._unit_faults[name] = ((known[0] if known else 0) + count, *first)
        for key, hole, run in result.in_holes:
            self._in_holes[key].append((hole, run))
        for topic, count in result.damaged_count.items():
            verdicts = self._topic(topic).verdicts
            verdicts[MessageVerdict.DAMAGED] = verdicts.get(MessageVerdict.DAMAGED, 0) + count
        self._lost += result.damaged[: max(self._sample - len(self._lost), 0)]

    def settle_units(self) -> None:
        """Add the findings on queues. Call when all units are added."""
        for (key, fault), (count, queue_offset, place) in sorted(self._unit_faults.items()):
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
            self._add_missing(key)
        for key, faults in sorted(self._light.items()):
            self._find_light(key, faults)

    def _find_light(self, key: QueueKey, faults: LightFaults) -> None:
        """Add a finding for each kind of fault of a light queue."""
        for rows, text in (
            (faults.missing, "messages that name the light queue have no unit in it"),
            (faults.wrong_size, "units of the light queue have another size than their message"),
            (faults.wrong_tags, "units of the light queue have another tags code"),
        ):
            if rows:
                queue_offset, place = min(rows)
                self.find(
                    Fault.LIGHT_UNIT,
                    paths.queue_folder(*key),
                    f"{len(rows)} {text}",
                    len(rows),
                    physical_offset=place,
                    queue_offset=queue_offset,
                )

    def _add_missing(self, key: QueueKey) -> None:
        """Add the missing queue offsets of a queue to the holes that took them."""
        by_hole: defaultdict[int, list[queue_runs.Run]] = defaultdict(list)
        for hole, run in self._in_holes.get(key, []):
            by_hole[hole].append(run)
        in_holes = queue_runs.union(run for _, run in self._in_holes.get(key, []))[0]
        for gap, low, high in self._gaps(key):
            rest = queue_runs.without([gap], in_holes)
            longest = self._longest_hole(low, high)
            count = queue_runs.count(rest)
            if longest is not None:
                by_hole[longest] += rest
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
        """Yield queue offsets without a record, and the physical offsets around them."""
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
        """Return the number of the longest hole in ``[low, high)``; None if there is none."""
        starts = [hole.physical_offset for hole, _, _ in self._holes]
        first, stop = np.searchsorted(starts, [low, high])
        holes = range(int(first), int(stop))
        return max(holes, key=lambda hole: self._holes[hole][0].length, default=None)

    # Groups and delays

    def add_groups(self, offsets: Iterable[ConsumerOffset]) -> None:
        """Compare the offsets of groups with their queues. Call when all ranges are added."""
        stored: defaultdict[tuple[str, str], dict[int, int]] = defaultdict(dict)
        for entry in offsets:
            stored[entry.group, entry.topic][entry.queue_id] = entry.consumer_offset
        for (group, topic), of_queues in stored.items():
            audit = self._groups.setdefault((group, topic), GroupAudit(group, topic))
            queue_ids = {
                *self._reader.queue_ids.get(topic, ()),
                *self._reader.batch_queue_ids.get(topic, ()),
                *of_queues,
            }
            for queue_id in sorted(queue_ids):
                consumer_offset = of_queues.get(queue_id, 0)
                end = queue_end(self._reader, topic, queue_id)
                if end is not None:
                    audit.lag += end - consumer_offset
                    if queue_id in of_queues:
                        self._check_offset(audit, queue_id, consumer_offset, end)
                elif consumer_offset:
                    place = f"{consumer_offset} of {topic}/{queue_id}"
                    text = f"is at {place}, a queue without files"
                    self.find(Fault.GROUP_WITHOUT_QUEUE, group, text)

    def _check_offset(
        self, audit: GroupAudit, queue_id: int, consumer_offset: int, end: int
    ) -> None:
        queue = f"{audit.topic}/{queue_id}"
        if consumer_offset > end:
            text = f"is at {consumer_offset} of {queue}, which ends at {end}"
            self.find(
                Fault.GROUP_AHEAD,
                audit.group,
                text,
                is_note=not self._is_stopped,
                queue_offset=consumer_offset,
            )
        runs = self._present.get((audit.topic, queue_id), [])
        first = runs[0].start if runs else end
        if self._reader.log.min_offset and consumer_offset < first:
            count = first - consumer_offset
            audit.expired += count
            text = f"{count} messages of {queue} left the log before it read them"
            self.find(Fault.GROUP_EXPIRED, audit.group, text, count, queue_offset=consumer_offset)

    def add_delays(self, delays: Mapping[int, int]) -> None:
        """Compare the progress of delay levels with their queues."""
        for level, done in sorted(delays.items()):
            end = self._reader.queue(names.SCHEDULE_TOPIC, level - 1).max_offset
            if done > end:
                text = f"level {level} has delivered up to {done}, its queue ends at {end}"
                is_note = not self._is_stopped
                where = paths.DELAY_OFFSETS
                self.find(Fault.DELAY_AHEAD, where, text, is_note=is_note, queue_offset=done)

    # The result

    def result(self, store: str, now_ms: int, table: str | None) -> AuditResult:
        """Return the result."""
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
            hole_bytes=sum(hole.length for hole, _, _ in self._holes),
            lost=tuple(sorted(self._lost, key=lambda message: message.physical_offset)),
            findings=tuple(item for fault in Fault for item in self._findings.get(fault, ())),
            faults={str(fault): self._faults[fault] for fault in Fault if self._faults.get(fault)},
            fault_count=self._fault_count,
            table=table,
        )

    def _broker_name(self) -> str:
        """Return the name of the broker from its tables; "" if there is none."""
        try:
            return self._reader.broker_name()
        except CorruptRecord:
            return ""
