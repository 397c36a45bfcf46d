"""Opening a store: where the log ends, what must be dispatched again, and what cannot be trusted.

Recovery trusts bytes, not pointers. The log ends where ``StoreReader.tail`` finds its end: a torn
tail is cut, zeroed and synced before anything is appended (known-bugs.md#stale-tail); damage with
valid records after it stays in place and is reported (known-bugs.md#recovery-truncates). Queues
and index follow from the log, so whatever is in doubt about them is taken out and dispatched again
from a point that is proven:

    clean stop   where queues and index end
    crash        queues: the checkpoint's queue offset, or where it has none the last log file whose
                 first record is older than its times; index: where the last file ends that is
                 known to be on disk (known-bugs.md#undispatched-messages,
                 known-bugs.md#lost-index-files)

A queue that lacks units before that point (its files are short, or gone) is made anew from the
oldest record on. Nothing is deleted because a check failed (known-bugs.md#failed-check-deletes):
only what will be derived again.

Recovery may crash too. ``abort`` is there before anything is changed, and the checkpoint says less,
durably, before queues have less.
"""

import logging
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from reput.errors import CorruptRecord, StoreUnavailable
from reput.format import message as record
from reput.format.checkpoint_page import Checkpoint
from reput.store.batch_queue import BatchQueue, BatchQueues
from reput.store.checkpoint import CheckpointFile
from reput.store.commit_log import CommitLog
from reput.store.commit_log_view import Damage
from reput.store.config_tables import BATCH_QUEUES, TopicConfig
from reput.store.consume_queue import ConsumeQueue, ConsumeQueues
from reput.store.disk import Disk
from reput.store.dispatch import Dispatcher, Hole, QueueGap
from reput.store.files import Folder
from reput.store.hot_state import HotState
from reput.store.index_file import IndexFiles
from reput.store.kernels import control_block as state
from reput.store.known_queues import KnownQueues, QueueKey
from reput.store.reader import Condition, LogTail, StoreReader
from reput.store.summary import Summary
from reput.store.tombstones import Tombstones
from reput.store.torn_records import find_torn_records

_SEARCHED_BYTES = 16 * 1024 * 1024
"""Of the log, for a message that a queue lacks at its beginning."""

_log = logging.getLogger(__name__)

Progress = Callable[[str, int, int], None]
"""Told what is done, and how many bytes of how many."""


@dataclass(slots=True)
class RecoveryReport:
    """What opening a store found and did."""

    was_clean: bool
    end_offset: int
    """Physical offset where the log ends, and the next record goes."""
    dispatched_from: int
    """Physical offset from which records were dispatched again."""
    torn: Damage | None = None
    """The tail of a crash, which was cut."""
    stale: Damage | None = None
    """Records behind the end that an earlier recovery had cut, now zeros."""
    holes: list[Hole] = field(default_factory=list)
    """Damage in the middle of the part that was dispatched, left as it is."""
    rebuilt_queues: list[tuple[str, int]] = field(default_factory=list)
    """Queues that were made anew."""
    cut_units: int = 0
    """Units that pointed behind the end of the log."""
    refilled_units: int = 0


class Recovery:
    """One opening of a store; the parts are those of the store that is being opened."""

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
    ) -> None:
        self._root = root
        self._disk = disk
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
        """Topics that are to have batch queues."""
        self._summary: Summary | None
        """What the last clean stop noted, if nobody was here since."""
        self._listed: frozenset[QueueKey] | None
        """The queues that were on the list when the store was last open."""
        self._trusted: frozenset[QueueKey] | None = None
        """All queues that had units where dispatch begins, if that is known."""

    def load(self) -> None:
        """Find the files and the end of the log; nothing is changed that matters.

        Raises:
            StoreUnavailable: Files have other sizes than configured, or cannot be read.
            WriteFailed: The disk failed.
        """
        self._commit_log.load()
        # A queue of full files is loaded first: the end of the log is also where queues say it is.
        log_min = self._commit_log.min_offset
        self._was_clean = self._reader.state.condition is Condition.CLEAN
        summary = self._summary = Summary.load(self._root) if self._was_clean else None
        self._listed = self._known_queues.load()
        is_same_log = summary is not None and summary.log_start == log_min
        self._queues.load(log_min, summary.ends if summary and is_same_log else None)
        self._batch_queues.load(log_min, is_clean=self._was_clean)
        self._topics = self._load_topics()
        self._batch_topics = {
            name for name, one in self._topics.items() if BATCH_QUEUES in one.attributes
        }
        self._batch_queues.topics.update(self._batch_topics)
        self._index.load()
        if not any(queue.has_rest for queue in self._queues):
            self._reader.know_last_units(self._queues.last_units)
        self._checkpoint.load()
        try:
            self._tail = self._reader.tail
        except CorruptRecord as error:
            raise StoreUnavailable(f"{self._root}: {error}") from error
        if summary is not None and summary.log_end != self._tail.end_offset:
            self._summary = None  # somebody was here since

    def run(self, now_ms: int, progress: Progress) -> RecoveryReport:
        """Bring log, queues and index into agreement, once they are loaded and ``abort`` is there.

        Raises:
            WriteFailed: The disk failed; also ``DiskFull``.
        """
        log_min = self._commit_log.min_offset
        saved = self._checkpoint.fields
        tail, was_clean = self._tail, self._was_clean
        end = max(tail.end_offset, log_min)
        report = RecoveryReport(was_clean, end, end, tail.torn, tail.stale)
        self._commit_log.start_at(end, now_ms)
        if not was_clean:
            self._sync_log()
        self._checkpoint.cut(end)
        self._tombstones.load()
        self._tombstones.confine(end)
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
        self._dispatch(start, min(queue_start, end), end, report, now_ms, progress)
        self._finish(end)
        return report

    def _sync_log(self) -> None:
        """Make the log durable that a crash left: what was not synced may be in memory only."""
        self._disk.sync_filesystem(self._root)
        for folder in {os.path.dirname(file.path) for file in self._commit_log.files.files}:  # noqa: PTH120
            if os.stat(folder).st_dev != os.stat(self._root).st_dev:  # noqa: PTH116
                self._disk.sync_filesystem(folder)

    # Where to begin ---------------------------------------------------------------------------

    def _clean_start(self, end: int) -> int:
        """Return where the queue ends that reaches furthest."""
        return min(max((queue.end_physical_offset for queue in self._all_queues()), default=0), end)

    def _all_queues(self) -> Iterator[ConsumeQueue | BatchQueue]:
        yield from self._queues
        yield from self._batch_queues

    def _crashed_start(self, saved: Checkpoint, end: int) -> int:
        """Return a point before which all units were durable.

        The checkpoint's offset is one, unless no record stands there: then it is damaged, or the
        log is another.
        """
        log_min = self._commit_log.min_offset
        start = saved.queue_physical_offset
        if log_min < start < end and self._commit_log.record(start) is not None:
            return start
        if start > log_min:
            _log.warning("the checkpoint says %d, where no record stands", start)
            self._checkpoint.distrust_queues(keeps_time=True)
        return self._first_before(saved, end)

    def _first_before(self, saved: Checkpoint, end: int) -> int:
        """Return the start of the newest log file whose first record was surely dispatched."""
        for file in reversed(self._commit_log.files.files):
            if file.start >= end:
                continue
            timestamp = self._commit_log.store_timestamp_at(file.start)
            if timestamp is not None and timestamp <= saved.min_timestamp:
                return file.start
        return self._commit_log.min_offset

    def _index_start(self, saved: Checkpoint, end: int) -> int:
        """Drop the index files that may lack entries; return where the others end."""
        if not self._block[state.INDEX_IS_ON]:
            return end
        self._index.drop_unproven(None if self._was_clean else saved.index_timestamp, end)
        summary = self._summary
        missing = sorted(set(summary.index_names) - set(self._index.names)) if summary else []
        if missing:
            _log.warning("index file %s is gone; it is made anew", missing[0])
            self._index.drop_behind(missing[0])
        if self._index.timestamp_of_full < saved.index_timestamp:
            self._checkpoint.advance(index_timestamp=self._index.timestamp_of_full)
        return self._index.end_physical_offset

    # Queues -----------------------------------------------------------------------------------

    def _queues_before(self, start: int, saved: Checkpoint) -> frozenset[QueueKey] | None:
        """Return all queues that had units before a physical offset; None if they are not known."""
        if self._summary is not None:
            return frozenset({*self._summary.ends, *self._summary.batch_ends})
        # The list is as old as the checkpoint's offset, whoever was here since.
        is_listed = not self._was_clean and 0 < start == saved.queue_physical_offset
        return self._listed if is_listed else None

    def _finish_deletions(self, end: int) -> int:
        """Delete queues that a crash left of deleted topics; return from where to make them anew.

        They are those that begin before the tombstone, or not at all
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
                    _log.warning("topic %s was deleted, and its queues go now", topic)
                    self._queues.drop(queues)
                    start = min(start, tombstone)
                    break
            batches = self._batch_queues.of_topic(topic)
            firsts = (unit for one in batches if (unit := one.unit(one.first_offset)) is not None)
            if any(unit.physical_offset < tombstone for unit in firsts):
                _log.warning("topic %s was deleted, and its queues go now", topic)
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
            _log.warning("%d units pointed behind the end of the log", report.cut_units)

    def _lacks_queues(self, end: int, proven: int) -> bool:
        """Mark queues that are gone, short or damaged; are there any?

        Args:
            end: Where the log ends.
            proven: Physical offset before which all units were durable.
        """
        for broken in self._queues.broken:
            _log.warning("%s had %d bytes; its queue is made anew", broken.path, broken.size)
        for (topic, queue_id), known in self._summary.ends.items() if self._summary else ():
            queue = self._queues.find(topic, queue_id)
            if queue is None or queue.max_offset < known.max_offset:
                self._queues.make(topic, queue_id).is_damaged = True
        for (topic, queue_id), max_offset in (
            self._summary.batch_ends.items() if self._summary else ()
        ):
            batches = self._batch_queues.make(topic, queue_id)
            batches.is_damaged |= batches.max_offset < max_offset
        for queue in self._queues:
            # After a crash that is what was not synced; else units before it were lost.
            if queue.has_rest and not queue.is_damaged:
                queue.is_damaged = self._was_clean or self._queues.has_units_in_rest(queue, proven)
            queue.is_damaged = queue.is_damaged or self._lacks_first_file(queue, proven)
        if not any(self._all_queues()) and end > self._commit_log.min_offset:
            return True
        return any(one.is_damaged for one in self._all_queues()) or bool(self._missing_queues())

    def _lacks_first_file(self, queue: ConsumeQueue, proven: int) -> bool:
        """Whether the log has messages of a queue from before its first file.

        A file goes when the log begins behind its last unit. So it does behind the first unit of
        the next file too, but in one case in as many as a file has units.
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
                return True  # or not: then it is made anew in vain
            data = log.record(position)
            if data is None:
                file = log.files.file_at(position)
                position = file.end if file is not None else stop
                continue
            one = record.decode(data)
            if (one.topic, one.queue_id) == (queue.topic, queue.queue_id):
                return True
            position += len(data)
        return False

    def _reset_damaged(self) -> None:
        for queue in self._all_queues():
            if queue.is_damaged:
                queue.reset()

    def _missing_queues(self) -> list[tuple[str, int]]:
        """Return queues that groups have read, and that are not there.

        A group's offset is taken for a sign only of queues that there were, where that is known:
        clients may commit one for any queue.
        """
        try:
            offsets = self._reader.consumer_offsets()
        except CorruptRecord as error:
            _log.warning("consumer offsets cannot be read: %s", error)
            return []
        queues = {(one.topic, one.queue_id) for one in self._all_queues()}
        topics = {*(topic for topic, _ in queues), *self._tombstones.by_topic}
        found = []
        for one in offsets:
            config = self._topics.get(one.topic)
            if config is None or one.consumer_offset <= 0 or one.topic in self._tombstones.by_topic:
                continue
            queue = one.topic, one.queue_id
            if queue in queues or (self._trusted is not None and queue not in self._trusted):
                continue
            is_queue = one.queue_id < max(config.read_queue_count, config.write_queue_count)
            if one.topic not in topics or is_queue:
                found.append(queue)
        return sorted(set(found))

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
        unsynced: int,
        end: int,
        report: RecoveryReport,
        now_ms: int,
        progress: Progress,
    ) -> None:
        log_min = self._commit_log.min_offset
        dispatcher = self._dispatcher
        damaged = {(one.topic, one.queue_id) for one in self._all_queues() if one.is_damaged}
        torn: list[Damage] = []
        if not report.was_clean:
            torn = find_torn_records(self._reader.log, unsynced, end)
        dispatcher.finish_keys(now_ms)
        ends: dict[ConsumeQueue, int] = {}
        while True:
            dispatcher.go_to(start, torn)
            report.dispatched_from = start
            dispatcher.holes.clear()
            dispatcher.is_strict = start > log_min
            try:
                while dispatcher.step(end, now_ms):
                    progress("dispatch", dispatcher.dispatched_offset - start, end - start)
                blank = self._blank_queues() if start > log_min else []
                if not blank:
                    break
                # They may have had units, which nothing but the whole log can tell.
                for queue in blank:
                    _log.warning("%s has no unit: it is made anew from the log", queue.folder)
                    damaged.add((queue.topic, queue.queue_id))
                self._checkpoint.distrust_queues()
                self._checkpoint.flush()
                ends = {queue: queue.max_offset for queue in blank}
                for queue in blank:
                    queue.reset()
                start = log_min
            except QueueGap as gap:
                _log.warning("%s: it is made anew from the log", gap)
                damaged.add((gap.queue.topic, gap.queue.queue_id))
                self._checkpoint.distrust_queues()
                self._checkpoint.flush()
                gap.queue.reset()
                start = log_min
        dispatcher.is_strict = False
        for queue, max_offset in ends.items():
            if queue.is_fresh and max_offset:
                queue.start_at(max_offset)  # its messages are gone; offsets go on behind them
            elif queue.is_fresh and not queue.max_offset:
                self._queues.drop([queue])
        report.holes = list(dispatcher.holes)
        report.refilled_units = dispatcher.refilled_units
        report.rebuilt_queues = sorted(damaged)

    def _blank_queues(self) -> list[ConsumeQueue]:
        """Return the queues that were found in the store and have no unit of any message."""
        if self._summary is not None:
            return []  # which queues have units is known
        return [
            queue
            for queue in self._queues
            if not queue.end_physical_offset and queue.topic not in self._tombstones.by_topic
        ]

    def _finish(self, end: int) -> None:
        for queue in self._all_queues():
            queue.is_damaged = False
            queue.row[state.QUEUE_TOLD_OFFSET] = queue.max_offset
        self._block[state.DISPATCHED] = max(end, self._dispatcher.dispatched_offset)
        last = self._last_record()
        if last is not None:
            self._block[state.LAST_PHYSICAL_OFFSET], self._block[state.LAST_STORE_TIMESTAMP] = last
            self._block[state.LOG_TIMESTAMP] = last[1]
        self._known_queues.adopt(self._listed)
        Summary.forget(self._root, self._disk)

    def _last_record(self) -> tuple[int, int] | None:
        """Return (physical offset, store time) of the last record that is queued."""
        known = self._block[state.LAST_PHYSICAL_OFFSET]
        if self._block[state.LAST_STORE_TIMESTAMP]:
            return known, self._block[state.LAST_STORE_TIMESTAMP]
        queue = max(self._queues, key=lambda one: one.end_physical_offset, default=None)
        unit = queue.unit(queue.max_offset - 1) if queue is not None else None
        if unit is None:
            return None
        timestamp = self._commit_log.store_timestamp_at(unit.physical_offset)
        return (unit.physical_offset, timestamp) if timestamp is not None else None
