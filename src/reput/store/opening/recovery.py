"""Opening a store: finds the end of the log, and derives again what cannot be trusted.

Recovery trusts records, not pointers. ``StoreReader.tail`` finds the end of the log: a torn tail is
truncated, zeroed and synced before anything is appended (known-bugs.md#stale-tail); damage with
valid records after it stays in place and is reported (known-bugs.md#recovery-truncates). Queues and
index follow from the log, so doubtful parts of them are removed, and dispatched again from a point
before which they are proven to be complete:

    clean stop   the end of queues and index
    crash        queues: the checkpoint's queue offset, or without one the start of the last log
    file
                 whose first record is older than the checkpoint's times; index: the end of the last
                 file that is known to be on disk (known-bugs.md#undispatched-messages,
                 known-bugs.md#lost-index-files)

A queue that lacks units before that point (its files are short or missing) is rebuilt from the
oldest record on. A failed check deletes only data that will be derived again
(known-bugs.md#failed-check-deletes).

Recovery may crash too. ``abort`` exists before anything is changed, and the checkpoint's queue
offset is decreased, durably, before queues lose units.
"""

import logging
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from reput.errors import CorruptRecord, StoreUnavailable
from reput.format import message as record
from reput.format.checkpoint_page import Checkpoint
from reput.store.checkpoint import CheckpointFile
from reput.store.files.disk import Disk
from reput.store.files.files import Folder
from reput.store.hot_state import HotState
from reput.store.index.index_file import IndexFiles
from reput.store.kernels import control_block as state
from reput.store.log.commit_log import CommitLog
from reput.store.log.commit_log_view import Damage
from reput.store.log.newest_records import records_before
from reput.store.log.torn_records import first_damage
from reput.store.opening import log_cut
from reput.store.opening.rebuild import parallel
from reput.store.opening.summary import Summary
from reput.store.queues.batch_queue import BatchQueue, BatchQueues
from reput.store.queues.consume_queue import ConsumeQueue
from reput.store.queues.consume_queues import ConsumeQueues
from reput.store.queues.known_queues import KnownQueues, QueueKey
from reput.store.queues.tombstones import Tombstones
from reput.store.reader import Condition, LogTail, StoreReader
from reput.store.tables.config_tables import BATCH_QUEUES, TopicConfig
from reput.store.writing.dispatch import Dispatcher, Hole, QueueGap

_SEARCHED_BYTES = 16 * 1024 * 1024
"""Bytes of the log that are searched for a message missing at the start of a queue."""

_LOGGED_BYTES = 1024 * 1024 * 1024
"""Bytes of the log after which the progress of dispatch is logged: some seconds."""

_log = logging.getLogger(__name__)

Progress = Callable[[str, int, int], None]
"""Called with the current work, its bytes done, and all its bytes."""


@dataclass(slots=True)
class RecoveryReport:
    """Findings and actions of the recovery at the opening of a store."""

    was_clean: bool
    end_offset: int
    """End of the log, and the physical offset of the next record."""
    dispatched_from: int
    """Physical offset from which records were dispatched again."""
    torn: Damage | None = None
    """Tail of a crash, which was truncated."""
    stale: Damage | None = None
    """Records after the end that an earlier recovery had truncated, now zeros."""
    holes: list[Hole] = field(default_factory=list)
    """Damage in the dispatched part of the log, left as it is."""
    rebuilt_queues: list[tuple[str, int]] = field(default_factory=list)
    """Topic and id of the rebuilt queues."""
    cut_units: int = 0
    """Number of units that pointed after the end of the log."""
    refilled_units: int = 0

    @property
    def has_losses(self) -> bool:
        """True if anything was damaged, cut or rebuilt."""
        return any((self.torn, self.stale, self.holes, self.rebuilt_queues, self.cut_units))

    def __str__(self) -> str:
        """Return what the recovery did, for the log."""
        parts = [f"{self.end_offset - self.dispatched_from} bytes of the log dispatched again"]
        if self.torn is not None:
            torn = self.torn
            parts.append(f"{torn.length} bytes cut at physical offset {torn.physical_offset}")
        if self.stale is not None:
            parts.append(f"{self.stale.length} bytes of earlier records after the end cleared")
        if self.holes:
            lost, first = sum(hole.length for hole in self.holes), self.holes[0]
            place = f"the first at physical offset {first.physical_offset}: {first.reason}"
            parts.append(f"{len(self.holes)} holes of {lost} bytes, {place}")
        if self.rebuilt_queues:
            topic, queue_id = self.rebuilt_queues[0]
            parts.append(f"{len(self.rebuilt_queues)} queues rebuilt, such as {topic}/{queue_id}")
        if self.cut_units:
            parts.append(f"{self.cut_units} queue entries after the end of the log removed")
        return "; ".join(parts)


class Recovery:
    """The recovery of one store; all parts are those of the store that is being opened."""

    def __init__(
        self,
        *,
        root: str,
        folder: Folder,
        disk: Disk,
        hot_state: HotState,
        log: CommitLog,
        queues: ConsumeQueues,
        batch_queues: BatchQueues,
        index: IndexFiles,
        checkpoint: CheckpointFile,
        dispatcher: Dispatcher,
        known_queues: KnownQueues,
        tombstones: Tombstones,
        is_replica: bool,
        thread_count: int,
    ) -> None:
        self._root = root
        self._is_replica = is_replica
        self._thread_count = thread_count
        self._disk = disk
        self._hot = hot_state
        self._block = hot_state.block
        self._commit_log = log
        self._queues = queues
        self._batch_queues = batch_queues
        self._index = index
        self._checkpoint = checkpoint
        self._dispatcher = dispatcher
        self._known_queues = known_queues
        self._tombstones = tombstones
        self._reader = StoreReader(folder, holds_lock=True)
        self._tail: LogTail
        self._was_clean: bool
        self._topics: dict[str, TopicConfig]
        self._batch_topics: set[str]
        """Topics configured to have batch queues."""
        self._summary: Summary | None
        """Summary of the last clean stop; None if another program has written since."""
        self._listed: frozenset[QueueKey] | None
        """Queues on the list of the last run; None without one."""
        self._trusted: frozenset[QueueKey] | None = None
        """All queues with units before the start of dispatch; None if this is unknown."""

    def load(self) -> None:
        """Load the files and find the end of the log; this changes nothing of importance.

        Raises:
            StoreUnavailable: Files have other sizes than configured, or cannot be read.
            WriteFailed: The disk failed.
        """
        self._commit_log.load()
        # Before the tail is read: the units of queues are needed to find the end of the log.
        log_min = self._commit_log.min_offset
        self._was_clean = self._reader.state.condition is Condition.CLEAN
        summary = self._summary = Summary.load(self._root) if self._was_clean else None
        self._listed = self._known_queues.load()
        last = summary if self._was_clean else Summary.load_former(self._root)
        self._queues.load(
            log_min,
            last.ends if last is not None and last.log_start == log_min else None,
            are_all=summary is not None,
        )
        self._batch_queues.load(log_min, is_clean=self._was_clean)
        self._topics = self._load_topics()
        self._batch_topics = {
            name for name, topic in self._topics.items() if BATCH_QUEUES in topic.attributes
        }
        self._batch_queues.topics.update(self._batch_topics)
        self._index.load()
        if not any(queue.has_rest for queue in self._queues):
            self._reader.set_last_units(self._queues.last_units)
        self._queues.last_units = []
        self._checkpoint.load()
        try:
            self._tail = self._reader.tail
        except CorruptRecord as error:
            raise StoreUnavailable(f"{self._root}: {error}") from error
        if summary is not None and summary.log_end != self._tail.end_offset:
            self._summary = None  # another program has written since
        if self._has_current_list:
            self._known_queues.trust()  # before recovery creates queues

    def run(self, now_ms: int, progress: Progress) -> RecoveryReport:
        """Make log, queues and index consistent, after ``load`` and once ``abort`` exists.

        Raises:
            WriteFailed: The disk failed; also ``DiskFull``.
        """
        log_min = self._commit_log.min_offset
        saved = self._checkpoint.fields
        tail, was_clean = self._tail, self._was_clean
        end = max(tail.end_offset, log_min)
        kept = ""
        if self._is_replica and not was_clean:
            kept, end = self._cut_replica(saved, end, now_ms)
        report = RecoveryReport(was_clean, end, end, tail.torn, tail.stale)
        self._commit_log.start_at(end, now_ms)
        if kept:
            log_cut.note_finished(kept, self._disk)
        if not was_clean:
            self._sync_log()
        self._checkpoint.cut(end)
        self._tombstones.load()
        self._tombstones.limit(end)
        self._tombstones.drop_before(log_min)
        deleted = self._finish_deletions(end)
        index_start = self._index_start(saved, end)
        queue_start = self._clean_start(end) if was_clean else self._crashed_start(saved, end)
        self._trusted = self._queues_before(queue_start, saved)
        start = max(min(queue_start, index_start, deleted, end), log_min)
        if self._lacks_queues(end, queue_start):
            self._checkpoint.distrust_queues()
            start = log_min
        if self._checkpoint.fields != saved:
            self._checkpoint.flush()
        self._cut_queues(end if was_clean else queue_start, end, report)
        self._reset_damaged()
        self._dispatch(start, end, report, now_ms, progress)
        self._finish(end)
        return report

    @property
    def _has_current_list(self) -> bool:
        """True if a clean stop has written the list of queues, so that it need not be compared."""
        return self._summary is not None and self._listed is not None

    def _sync_log(self) -> None:
        """Make the log that a crash left durable: unsynced bytes may be in memory only."""
        self._disk.sync_filesystem(self._root)
        for folder in {os.path.dirname(file.path) for file in self._commit_log.files.files}:  # noqa: PTH120
            if os.stat(folder).st_dev != os.stat(self._root).st_dev:  # noqa: PTH116
                self._disk.sync_filesystem(folder)

    def _cut_replica(self, saved: Checkpoint, end: int, now_ms: int) -> tuple[str, int]:
        """Find the end of a slave's log after a crash: its master sends it again from there.

        It is before the first damage, and before a blank, of which only a part may have come.

        Returns:
            Path of the bytes that are cut, empty without any; and the end.
        """
        start = self._synced_start(saved, end)
        if start is None:
            start = self._first_before(saved, end)
        kept, log = "", self._commit_log
        damaged = first_damage(self._reader.log, start, end)
        if damaged is not None:
            _log.error("the log is damaged at physical offset %d and is cut there", damaged)
            kept = log_cut.keep_bytes(self._root, log.files.files, damaged, end, now_ms, self._disk)
            end = damaged
        if end > log.min_offset and end % log.file_size == 0:
            last, data = next(records_before(log.files.files, end), (0, b""))
            end = max(last + len(data), end - log.file_size)
        return kept, end

    # The start of dispatch --------------------------------------------------------------------

    def _clean_start(self, end: int) -> int:
        """Return the end of the queue that reaches furthest into the log."""
        return min(max((queue.end_physical_offset for queue in self._all_queues()), default=0), end)

    def _all_queues(self) -> Iterator[ConsumeQueue | BatchQueue]:
        yield from self._queues
        yield from self._batch_queues

    def _crashed_start(self, saved: Checkpoint, end: int) -> int:
        """Return a physical offset before which all units were durable.

        The checkpoint's offset is used if a record begins there. Otherwise the checkpoint is
        damaged, or belongs to another log.
        """
        start = self._synced_start(saved, end)
        if start is not None:
            return start
        start = saved.queue_physical_offset
        if start > self._commit_log.min_offset:
            _log.warning("the checkpoint names %d, where there is no record", start)
            self._checkpoint.distrust_queues(keeps_time=True)
        return self._first_before(saved, end)

    def _synced_start(self, saved: Checkpoint, end: int) -> int | None:
        """Return the checkpoint's offset of a record with a durable unit; None without one."""
        start = saved.queue_physical_offset
        is_inside = self._commit_log.min_offset < start < end
        return start if is_inside and self._commit_log.record(start) is not None else None

    def _first_before(self, saved: Checkpoint, end: int) -> int:
        """Return the start of the newest log file whose first record was certainly dispatched."""
        for file in reversed(self._commit_log.files.files):
            if file.start >= end:
                continue
            timestamp = self._commit_log.store_timestamp_at(file.start)
            if timestamp is not None and timestamp <= saved.min_timestamp:
                return file.start
        return self._commit_log.min_offset

    def _index_start(self, saved: Checkpoint, end: int) -> int:
        """Delete index files that may lack entries; return the end of the others."""
        if not self._block.index_is_on:
            return end
        self._index.drop_unproven(None if self._was_clean else saved.index_timestamp, end)
        summary = self._summary
        missing = sorted(set(summary.index_names) - set(self._index.names)) if summary else []
        if missing:
            _log.warning("index file %s is missing; it is rebuilt", missing[0])
            self._index.drop_after(missing[0])
        if self._index.timestamp_of_full < saved.index_timestamp:
            self._checkpoint.advance(index_timestamp=self._index.timestamp_of_full)
        return self._index.end_physical_offset

    # Queues -----------------------------------------------------------------------------------

    def _queues_before(self, start: int, saved: Checkpoint) -> frozenset[QueueKey] | None:
        """Return all queues with units before a physical offset; None if they are unknown."""
        if self._summary is not None:
            return frozenset({*self._summary.ends, *self._summary.batch_ends})
        # The list is as old as the checkpoint's offset, even if other programs have written since.
        is_listed = not self._was_clean and 0 < start == saved.queue_physical_offset
        return self._listed if is_listed else None

    def _finish_deletions(self, end: int) -> int:
        """Delete queues of deleted topics that a crash left; return where to rebuild from.

        A queue is left over if its first unit is before the tombstone, or missing
        (known-bugs.md#deleted-topics).
        """
        start = end
        for topic, tombstone in self._tombstones.by_topic.items():
            queues = list(self._queues.of_topic(topic).values())
            for queue in queues:
                first = queue.unit(queue.first_offset)
                if first is not None and not first.is_written:
                    first = queue.unit(queue.min_offset)
                if first is None or first.physical_offset < tombstone:
                    _log.warning("topic %s was deleted; its queues are deleted now", topic)
                    self._queues.drop(queues)
                    start = min(start, tombstone)
                    break
            batches = self._batch_queues.of_topic(topic)
            firsts = (
                unit for queue in batches if (unit := queue.unit(queue.first_offset)) is not None
            )
            if any(unit.physical_offset < tombstone for unit in firsts):
                _log.warning("topic %s was deleted; its queues are deleted now", topic)
                self._batch_queues.drop(batches)
                if topic not in self._batch_topics:
                    self._batch_queues.topics.discard(topic)
                start = min(start, tombstone)
        return start

    def _cut_queues(self, proven: int, end: int, report: RecoveryReport) -> None:
        for queue in self._queues:
            before = queue.max_offset
            if queue.is_damaged:
                continue
            queue.cut(end)
            report.cut_units += before - queue.max_offset
            queue.cut(proven)
        for batches in self._batch_queues:
            if not batches.is_damaged:
                report.cut_units += batches.cut(end)
                batches.cut(proven)
        if report.cut_units:
            _log.warning("%d units pointed after the end of the log", report.cut_units)

    def _lacks_queues(self, end: int, proven: int) -> bool:
        """Mark queues that are missing, short or damaged; return whether there are any.

        Args:
            end: End of the log.
            proven: Physical offset before which all units were durable.
        """
        for broken in self._queues.broken:
            _log.warning("%s had %d bytes; its queue is rebuilt", broken.path, broken.size)
        for (topic, queue_id), known_end in self._summary.ends.items() if self._summary else ():
            queue = self._queues.find(topic, queue_id)
            if queue is None or queue.max_offset < known_end.max_offset:
                self._queues.make(topic, queue_id).is_damaged = True
        for (topic, queue_id), max_offset in (
            self._summary.batch_ends.items() if self._summary else ()
        ):
            batches = self._batch_queues.make(topic, queue_id)
            batches.is_damaged |= batches.max_offset < max_offset
        for queue in self._queues:
            # After a crash these are units that were not synced; otherwise units were lost.
            if queue.has_rest and not queue.is_damaged:
                queue.is_damaged = self._was_clean or self._queues.has_units_in_rest(queue, proven)
            queue.is_damaged = queue.is_damaged or self._lacks_first_file(queue, proven)
        if not any(self._all_queues()) and end > self._commit_log.min_offset:
            return True
        return any(queue.is_damaged for queue in self._all_queues()) or bool(self._missing_queues())

    def _lacks_first_file(self, queue: ConsumeQueue, proven: int) -> bool:
        """Return True if the log has messages of a queue from before its first file.

        A file is deleted once the log begins after its last unit. Then the log also begins after
        the next file's first unit, except in one of N cases, with N units per file.
        """
        if self._summary is not None or not queue.files or not queue.files[0]:
            return False
        first = queue.unit(queue.first_offset)
        if first is None or not first.is_written:
            return False
        log, position = self._commit_log, self._commit_log.min_offset
        stop = min(first.physical_offset, proven)
        while position < stop:
            if position - log.min_offset > _SEARCHED_BYTES:
                return True  # perhaps not: then it is rebuilt in vain
            data = log.record(position)
            if data is None:
                file = log.files.file_at(position)
                position = file.end if file is not None else stop
                continue
            message = record.decode(data)
            if (message.topic, message.queue_id) == (queue.topic, queue.queue_id):
                return True
            position += len(data)
        return False

    def _reset_damaged(self) -> None:
        for queue in self._all_queues():
            if queue.is_damaged:
                queue.reset()

    def _missing_queues(self) -> list[tuple[str, int]]:
        """Return queues that are missing, although groups have consumer offsets in them.

        If the former queues are known, only their consumer offsets count: clients may commit an
        offset for any queue.
        """
        try:
            offsets = self._reader.consumer_offsets()
        except CorruptRecord as error:
            _log.warning("consumer offsets cannot be read: %s", error)
            return []
        queues = {(queue.topic, queue.queue_id) for queue in self._all_queues()}
        topics = {*(topic for topic, _ in queues), *self._tombstones.by_topic}
        missing = []
        for offset in offsets:
            topic, queue_id = offset.topic, offset.queue_id
            config = self._topics.get(topic)
            if config is None or offset.consumer_offset <= 0 or topic in self._tombstones.by_topic:
                continue
            key = topic, queue_id
            if key in queues or (self._trusted is not None and key not in self._trusted):
                continue
            is_queue = queue_id < max(config.read_queue_count, config.write_queue_count)
            if topic not in topics or is_queue:
                missing.append(key)
        return sorted(set(missing))

    def _load_topics(self) -> dict[str, TopicConfig]:
        try:
            return self._reader.topics()
        except CorruptRecord as error:
            _log.warning("topics cannot be read: %s", error)
            return {}

    # Dispatch ---------------------------------------------------------------------------------

    def _dispatch(
        self,
        start: int,
        end: int,
        report: RecoveryReport,
        now_ms: int,
        progress: Progress,
    ) -> None:
        log_min = self._commit_log.min_offset
        dispatcher = self._dispatcher
        damaged = {
            (queue.topic, queue.queue_id) for queue in self._all_queues() if queue.is_damaged
        }
        # A master that recovered from a crash skipped the records that it tore, and has given
        # their queue offsets again: the same records are to be skipped whenever queues are rebuilt.
        dispatcher.checks_content = True
        dispatcher.on_hole = report.holes.append
        dispatcher.finish_keys(now_ms)
        ends: dict[ConsumeQueue, int] = {}
        while True:
            dispatcher.go_to(start)
            report.dispatched_from = start
            report.holes.clear()
            dispatcher.is_strict = start > log_min
            try:
                with parallel(
                    dispatcher,
                    self._hot,
                    self._commit_log,
                    self._index,
                    thread_count=self._thread_count,
                    start=start,
                    end=end,
                    now_ms=now_ms,
                ):
                    self._step_to(start, end, now_ms, progress)
                blank = self._blank_queues() if start > log_min else []
                if not blank:
                    break
                # Only the whole log shows whether they had units.
                for queue in blank:
                    _log.warning("%s has no unit: it is rebuilt from the log", queue.folder)
                    damaged.add((queue.topic, queue.queue_id))
                self._checkpoint.distrust_queues()
                self._checkpoint.flush()
                ends = {queue: queue.max_offset for queue in blank}
                for queue in blank:
                    queue.reset()
                start = log_min
            except QueueGap as gap:
                _log.warning("%s: it is rebuilt from the log", gap)
                damaged.add((gap.queue.topic, gap.queue.queue_id))
                self._checkpoint.distrust_queues()
                self._checkpoint.flush()
                gap.queue.reset()
                start = log_min
        dispatcher.is_strict = False
        dispatcher.checks_content = False
        dispatcher.on_hole = lambda hole: None
        for queue, max_offset in ends.items():
            if queue.is_fresh and max_offset:
                queue.start_at(max_offset)  # its messages are gone; its offsets continue
            elif queue.is_fresh and not queue.max_offset:
                self._queues.drop([queue])
        report.refilled_units = dispatcher.refilled_units
        report.rebuilt_queues = sorted(damaged)

    def _step_to(self, start: int, end: int, now_ms: int, progress: Progress) -> None:
        """Dispatch a range of the log, and report the progress."""
        logged = start
        while self._dispatcher.step(end, now_ms):
            done = self._dispatcher.dispatched_offset
            progress("dispatch", done - start, end - start)
            if done >= logged + _LOGGED_BYTES:
                logged = done
                _log.info(
                    "%d of %d MB of the log are dispatched", done - start >> 20, end - start >> 20
                )

    def _blank_queues(self) -> list[ConsumeQueue]:
        """Return existing queues without a unit of any message."""
        if self._summary is not None:
            return []  # the summary has all queues with units
        return [
            queue
            for queue in self._queues
            if not queue.end_physical_offset and queue.topic not in self._tombstones.by_topic
        ]

    def _finish(self, end: int) -> None:
        for queue in self._all_queues():
            queue.is_damaged = False
            queue.row.notified_offset = queue.max_offset
            queue.row.marks &= ~state.MARK_TOUCHED
        self._block.touched_count = 0  # all of these messages are old
        self._block.dispatched = max(end, self._dispatcher.dispatched_offset)
        last = self._last_record()
        if last is not None:
            self._block.last_physical_offset, self._block.last_store_timestamp = last
            self._block.log_timestamp = last[1]
        if self._has_current_list:
            self._known_queues.save()
        else:
            self._known_queues.adopt(self._listed)
        Summary.retire(self._root, self._disk)

    def _last_record(self) -> tuple[int, int] | None:
        """Return (physical offset, store time) of the last record in a queue; None without one."""
        physical_offset = self._block.last_physical_offset
        if self._block.last_store_timestamp:
            return physical_offset, self._block.last_store_timestamp
        queue = max(self._queues, key=lambda each: each.end_physical_offset, default=None)
        unit = queue.unit(queue.max_offset - 1) if queue is not None else None
        if unit is None:
            return None
        timestamp = self._commit_log.store_timestamp_at(unit.physical_offset)
        return (unit.physical_offset, timestamp) if timestamp is not None else None
