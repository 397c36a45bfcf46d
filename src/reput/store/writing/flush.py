"""Flushing: makes bytes durable, and settles the puts that wait for it.

Under SYNC_FLUSH puts wait: all pending puts share the next sync (group commit). Under ASYNC_FLUSH
the log is flushed by time and amount. Pool buffers are committed, queues and index are written and
synced, and the checkpoint is updated, each field only after its sync
(known-bugs.md#checkpoint-ahead).

A failed sync of log, queues or index is final: the system may have dropped the pages, and a second
call that succeeds proves nothing about them. There is no other copy: a map shows the same pages.
The store then accepts no more puts until it is opened again, and recovery has read the files. Other
errors lose nothing, and are tried again in each step: a file that could not be opened for a sync,
since no descriptor was free; bytes of a pool buffer; files that are written as a whole, as the list
of queues.
"""

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from reput.clock import Clock
from reput.errors import DiskFull, OutOfResources, WriteFailed
from reput.store.checkpoint import CheckpointFile
from reput.store.config import BrokerRole, FlushDiskType, StoreConfig
from reput.store.durations import Durations
from reput.store.hot_state import HotState
from reput.store.index.index_file import IndexFiles
from reput.store.log.commit_log import CommitLog
from reput.store.log.in_sync_set import InSyncSet
from reput.store.log.replica_acks import ReplicaAcks
from reput.store.queues.batch_queue import BatchQueues
from reput.store.queues.consume_queues import ConsumeQueues
from reput.store.queues.known_queues import KnownQueues
from reput.store.writing.incoming import PutResult, PutStatus

PAGE_BYTES = 4096
HEARTBEATS_MISSED_MAX = 2
"""Heartbeats without a report after which a slave does not count as available."""
_NEVER_MS = -(1 << 62)
_CHECKPOINT_INTERVAL_MS = 1000

_T = TypeVar("_T")
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _WrittenOut:
    """Queues that were written to files and are not synced yet."""

    least_bytes: int
    physical_offset: int
    """Physical offset of the last record that was dispatched before the write."""
    timestamp: int
    """Store time of that record, in ms."""

    def is_covered_by(self, other: "_WrittenOut") -> bool:
        """Return True if a sync of the other queues makes these durable, too."""
        is_later = other.physical_offset >= self.physical_offset
        return other.least_bytes < self.least_bytes or (
            other.least_bytes == self.least_bytes and is_later
        )


@dataclass(slots=True)
class PendingPut:
    """A put that is in the log and waits for the disk or slaves."""

    stored: PutResult
    deadline_ms: int
    """End of the wait for the disk, in ms of monotonic time."""
    slave_deadline_ms: int
    """End of the wait for slaves, in ms of monotonic time."""
    result: PutResult | None = None
    """Result for the producer; None while it is unknown."""
    slaves_needed: int = 0
    """Number of slaves that must have the message."""


@dataclass(slots=True)
class _Round:
    """A pass that writes all dirty queues to files, some in each step."""

    written: _WrittenOut
    left: int
    """Number of dirty queues that the pass has not examined so far."""


class GroupCommit:
    """The pending puts, in the order of the log.

    Under SYNC_FLUSH they wait for the disk: all pending puts share the next sync. On a SYNC_MASTER
    they wait for slaves, unless fewer than needed are available.

    Args:
        config: Flush type, broker role, numbers of replicas and timeouts.
        replicas: The slaves, and what they have acknowledged.
    """

    def __init__(self, config: StoreConfig, replicas: ReplicaAcks) -> None:
        self._config = config
        self._replicas = replicas
        self._needs_disk = config.flush_disk_type is FlushDiskType.SYNC_FLUSH
        self._is_sync_master = config.broker_role is BrokerRole.SYNC_MASTER
        self._silence_ms_max = HEARTBEATS_MISSED_MAX * config.ha_send_heartbeat_interval
        self._replicas_min = config.min_in_sync_replicas if self._is_sync_master else 1
        self.may_lack_replicas = self._replicas_min > 1
        """True if ``lacks_replicas`` can be true at all."""
        self.in_sync: InSyncSet | None = None
        """The in-sync set of a master under a controller."""
        may_need_slaves = config.replicas_needed > 1 or (
            config.enable_auto_in_sync_replicas and self._replicas_min > 1
        )
        self._is_always_needed = self._needs_disk or may_need_slaves
        self._pending: deque[PendingPut] = deque()

    def __len__(self) -> int:
        return len(self._pending)

    @property
    def is_needed(self) -> bool:
        """True if puts wait for the disk or slaves."""
        in_sync = self.in_sync
        return self._is_always_needed or (in_sync is not None and in_sync.must_ask_all)

    def available(self, end: int, monotonic_ms: int) -> int:
        """Return the number of slaves that count as available for a put that ends at ``end``."""
        config = self._config
        reported_since_ms = monotonic_ms - self._silence_ms_max
        return self._replicas.available(end, config.ha_slave_fallbehind_max, reported_since_ms)

    def lacks_replicas(self, end: int, monotonic_ms: int) -> bool:
        """Return True if puts are refused, since too few brokers are available.

        Args:
            end: Physical offset of the log's end.
            monotonic_ms: The time, monotonic ms.
        """
        if self.in_sync is not None:
            return len(self.in_sync.members) < self._replicas_min
        return 1 + self.available(end, monotonic_ms) < self._replicas_min

    def slaves_needed(self, end: int, monotonic_ms: int) -> int:
        """Return the number of slaves that must have a put which ends at ``end``."""
        config = self._config
        if not self._is_sync_master:
            return 0
        needed = config.replicas_needed
        if config.enable_auto_in_sync_replicas:
            needed = min(needed, 1 + self.available(end, monotonic_ms))
            needed = max(needed, self._replicas_min)
        return needed - 1

    def add(self, stored: PutResult, monotonic_ms: int) -> PendingPut:
        """Add a put that has to wait."""
        pending = PendingPut(
            stored,
            monotonic_ms + self._config.sync_flush_timeout,
            monotonic_ms + self._config.slave_timeout,
            slaves_needed=self.slaves_needed(stored.end_offset, monotonic_ms),
        )
        self._pending.append(pending)
        return pending

    def settle(
        self, flushed_offset: int, monotonic_ms: int, *, has_failed: bool = False
    ) -> list[PendingPut]:
        """Set the results of pending puts that are safe or late, and return these puts."""
        settled: list[PendingPut] = []
        if not self._pending:
            return settled
        acked_offsets = self._replicas.acked_offsets()
        while self._pending:
            first = self._pending[0]
            first.result = self._judge(
                first,
                flushed_offset,
                acked_offsets,
                monotonic_ms,
                is_late=has_failed or first.deadline_ms <= monotonic_ms,
                is_late_for_slaves=has_failed or first.slave_deadline_ms <= monotonic_ms,
            )
            if first.result is None:
                break
            settled.append(self._pending.popleft())
        return settled

    def judge_now(self, stored: PutResult, flushed_offset: int, monotonic_ms: int) -> PutResult:
        """Return the result for the producer of a stored message that waits no longer."""
        needed = self.slaves_needed(stored.end_offset, monotonic_ms)
        pending = PendingPut(stored, monotonic_ms, monotonic_ms, slaves_needed=needed)
        acked_offsets = self._replicas.acked_offsets()
        result = self._judge(
            pending,
            flushed_offset,
            acked_offsets,
            monotonic_ms,
            is_late=True,
            is_late_for_slaves=True,
        )
        assert result is not None
        return result

    def _judge(
        self,
        put: PendingPut,
        flushed_offset: int,
        acked_offsets: Sequence[int],
        monotonic_ms: int,
        *,
        is_late: bool,
        is_late_for_slaves: bool,
    ) -> PutResult | None:
        """Return the result for the producer of a stored message; None while it must wait.

        The slaves' status has precedence over the disk's, as in Java.
        """
        stored, needed = put.stored, put.slaves_needed
        end = stored.end_offset
        status = PutStatus.PUT_OK
        if self._needs_disk and end > flushed_offset:
            if not is_late:
                return None
            status = PutStatus.FLUSH_DISK_TIMEOUT
        if needed and (needed > len(acked_offsets) or end > acked_offsets[needed - 1]):
            if self.available(end, monotonic_ms) < needed:
                status = PutStatus.SLAVE_NOT_AVAILABLE
            elif not is_late_for_slaves:
                return None
            else:
                status = PutStatus.FLUSH_SLAVE_TIMEOUT
        in_sync = self.in_sync
        if in_sync is not None and in_sync.must_ask_all and in_sync.confirmed(end) < end:
            if not is_late_for_slaves:
                return None
            status = PutStatus.FLUSH_SLAVE_TIMEOUT
        return stored if status is PutStatus.PUT_OK else stored._replace(status=status)


class Flusher:
    """Flushes log, queues and index at the configured intervals.

    Args:
        config: Intervals and amounts.
        hot_state: State shared with kernels.
        log: The commit log.
        queues: The consume queues.
        batch_queues: The batch queues.
        index: The index files.
        known_queues: List of the queues that the checkpoint depends on.
        checkpoint: The checkpoint file.
        clock: Measures syncs and commits.
    """

    def __init__(
        self,
        config: StoreConfig,
        hot_state: HotState,
        log: CommitLog,
        queues: ConsumeQueues,
        batch_queues: BatchQueues,
        index: IndexFiles,
        known_queues: KnownQueues,
        checkpoint: CheckpointFile,
        clock: Clock,
    ) -> None:
        self._config = config
        self._clock = clock
        self.sync_durations = Durations("a sync of the log")
        self.commit_durations = Durations("a commit of pool buffers to the log")
        self._block = hot_state.block
        self._commit_log = log
        self._queues = queues
        self._batch_queues = batch_queues
        self._index = index
        self._known_queues = known_queues
        self._checkpoint = checkpoint
        self.is_sync = config.flush_disk_type is FlushDiskType.SYNC_FLUSH
        self.failure: WriteFailed | None = None
        """Error of a failed sync, after which nothing is known to be durable."""
        self._handing_over = threading.Lock()  # guards `_written_out`
        self._written_out: _WrittenOut | None = None
        self._round: _Round | None = None
        self.lacks_room = False
        """True if the last attempt to write queues found no space."""
        self._committed_timestamp = 0
        self._committed_ms = self._flushed_ms = _NEVER_MS
        self._checked_ms = self._queues_ms = self._queues_full_ms = _NEVER_MS
        self._checkpoint_ms = _NEVER_MS

    @property
    def problem(self) -> str:
        """Failed sync after which puts are refused, with the remedy; empty if there is none."""
        if self.failure is None:
            return ""
        return f"the disk failed: {self.failure}; restart the broker when the disk works"

    # The log ----------------------------------------------------------------------------------

    def flush_log(self) -> int:
        """Make the committed part of the log durable; return the physical offset up to which it is.

        May run in a worker thread while the writer appends; the next ``step`` updates the file of
        the checkpoint.

        Raises:
            WriteFailed: The disk failed, now or before.
        """
        is_direct = self._commit_log.pool is None
        timestamp = self._block.log_timestamp if is_direct else self._committed_timestamp
        before, begun_ms = self._commit_log.flushed_offset, self._clock.monotonic_ms()
        self._guard(self._commit_log.flush)
        if self._commit_log.flushed_offset != before:
            now_ms = self._clock.monotonic_ms()
            self.sync_durations.add(now_ms - begun_ms, now_ms)
        if timestamp:
            self._checkpoint.advance(physical_timestamp=timestamp)
        return self._commit_log.flushed_offset

    @property
    def is_due(self) -> bool:
        """True if the log should be flushed now, as flushCommitLogTimed is off and much waits."""
        config = self._config
        if self.is_sync or config.flush_commit_log_timed or self.failure is not None:
            return False
        waiting = self._commit_log.readable_offset - self._commit_log.flushed_offset
        return waiting >= max(config.flush_commit_log_least_pages * PAGE_BYTES, 1)

    def _guard(self, action: Callable[[], _T]) -> _T:
        if self.failure is not None:
            raise self.failure
        try:
            return action()
        except OutOfResources:
            raise
        except WriteFailed as error:
            self.failure = error
            _log.critical("the store accepts no more puts: %s", self.problem)
            raise

    def commit(self) -> int:
        """Write pool buffers to the files; return the physical offset up to which they have all.

        Raises:
            WriteFailed: The disk failed; unlike a sync, it can be tried again.
        """
        timestamp = self._block.log_timestamp
        before, begun_ms = self._commit_log.readable_offset, self._clock.monotonic_ms()
        committed = self._commit_log.commit()
        if self._commit_log.pool is not None and committed != before:
            now_ms = self._clock.monotonic_ms()
            self.commit_durations.add(now_ms - begun_ms, now_ms)
        self._committed_timestamp = timestamp
        return committed

    # Queues and index -------------------------------------------------------------------------

    def write_out_queues(self, least_bytes: int = 0) -> None:
        """Write queues to files for the next ``sync_queues``; for the writer's thread.

        Args:
            least_bytes: Sync only files with at least this many unsynced bytes. With 0, all files
                and the index are synced, and then the checkpoint is updated.

        Raises:
            WriteFailed: The disk failed; also ``DiskFull``. It can be tried again.
        """
        written = self._about_to_write(least_bytes)
        self._write(self._queues.write_out)
        self._round = None
        self._sync_later(written)

    def _about_to_write(self, least_bytes: int) -> _WrittenOut:
        return _WrittenOut(
            least_bytes,
            self._block.last_physical_offset,
            self._block.last_store_timestamp,
        )

    def begin_writing_out(self, least_bytes: int = 0) -> None:
        """Start to write queues as ``write_out_queues`` does; later steps write the rest.

        Arguments and errors are the same.
        """
        if self._round is None or (self._round.written.least_bytes and not least_bytes):
            written = self._about_to_write(least_bytes)
            self._round = _Round(written, self._queues.dirty_count)
        self._step_round()

    @property
    def is_writing_out(self) -> bool:
        """True if queues are left to be written by the next steps."""
        return self._round is not None

    @property
    def can_write_more(self) -> bool:
        """True if queues are left that do not wait for files created by the disk thread."""
        return self.is_writing_out and not self._queues.is_waiting_for_files

    def _step_round(self) -> bool:
        """Write some queues of a pass; return whether one is under way."""
        writing = self._round
        if writing is None:
            return False
        left = writing.left
        writing.left = self._write(lambda: self._queues.write_some(left))
        if not writing.left:
            self._round = None
            self._sync_later(writing.written)
        return True

    def _write(self, action: Callable[[], _T]) -> _T:
        """Write queues, and record whether there was space."""
        try:
            result = action()
        except WriteFailed as error:
            self.lacks_room = isinstance(error, DiskFull)
            raise
        self.lacks_room = False
        return result

    def sync_queues(self) -> bool:
        """Make written queues durable; return whether there were any.

        Raises:
            WriteFailed: The disk failed, now or before. After a failed sync units may be lost: they
                follow from the log, but only recovery can find out which ones. The next call tries
                again what can be tried again.
        """
        with self._handing_over:
            written, self._written_out = self._written_out, None
        if written is None:
            return False
        try:
            self._sync_written(written)
        except WriteFailed:
            self._sync_later(written)
            raise
        return True

    def _sync_written(self, written: _WrittenOut) -> None:
        if not written.least_bytes:
            # Recovery assumes that the log is durable up to the queues' offset, too.
            self.flush_log()
        self._guard(lambda: self._queues.sync(written.least_bytes))
        index_timestamp = 0
        if not written.least_bytes:
            self._guard(self._batch_queues.sync)
            self._known_queues.save()  # not guarded: it writes the whole list again
            index_timestamp = self._guard(self._index.sync)
        if not written.least_bytes and written.timestamp:
            self._checkpoint.advance(
                queue_timestamp=written.timestamp, queue_physical_offset=written.physical_offset
            )
        if index_timestamp:
            self._checkpoint.advance(index_timestamp=index_timestamp)

    def _sync_later(self, written: _WrittenOut) -> None:
        with self._handing_over:
            waiting = self._written_out
            if waiting is None or waiting.is_covered_by(written):
                self._written_out = written

    # Steps ------------------------------------------------------------------------------------

    def step_memory(self, now_ms: int) -> bool:
        """Do the due work that requires the writer's thread; return whether there was any.

        Args:
            now_ms: Monotonic time in ms.

        Raises:
            WriteFailed: The disk failed; also ``DiskFull``.
        """
        config = self._config
        if self._queues_full_ms == _NEVER_MS:
            self._queues_full_ms = self._queues_ms = now_ms
        if now_ms - self._queues_full_ms >= config.flush_consume_queue_thorough_interval:
            self._queues_full_ms = self._queues_ms = now_ms
            self.begin_writing_out()
            return True
        if now_ms - self._queues_ms >= config.flush_interval_consume_queue:
            self._queues_ms = now_ms
            self.begin_writing_out(config.flush_consume_queue_least_pages * PAGE_BYTES or 1)
            return True
        return self._step_round()

    def step_disk(self, now_ms: int) -> bool:
        """Do the due work that waits for the disk; may run in a worker thread.

        Args:
            now_ms: Monotonic time in ms.

        Returns:
            True if there was any.

        Raises:
            WriteFailed: The disk failed.
        """
        did = self._step_commit(now_ms)
        did = self._step_log(now_ms) or did
        did = self.sync_queues() or did
        if now_ms - self._checkpoint_ms >= _CHECKPOINT_INTERVAL_MS:
            self._checkpoint_ms = now_ms
            self._checkpoint.flush()
        return did

    def _step_commit(self, now_ms: int) -> bool:
        config = self._config
        if self._commit_log.pool is None:
            return False
        waiting = self._commit_log.written_offset - self._commit_log.readable_offset
        since = now_ms - self._committed_ms
        is_due = since >= config.commit_interval_commit_log and (
            waiting >= config.commit_commit_log_least_pages * PAGE_BYTES
            or since >= config.commit_commit_log_thorough_interval
        )
        if not waiting or not is_due:
            return False
        self._committed_ms = now_ms
        self.commit()
        return True

    def _step_log(self, now_ms: int) -> bool:
        config = self._config
        waiting = self._commit_log.readable_offset - self._commit_log.flushed_offset
        if not waiting or self._flushed_ms == _NEVER_MS:
            self._flushed_ms = now_ms  # nothing is pending: the age counts from now
        if not waiting:
            return False
        if self.is_sync:
            self.flush_log()
            return True
        is_timed = config.flush_commit_log_timed
        if is_timed and now_ms - self._checked_ms < config.flush_interval_commit_log:
            return False
        self._checked_ms = now_ms
        is_much = waiting >= config.flush_commit_log_least_pages * PAGE_BYTES
        is_old = now_ms - self._flushed_ms >= config.flush_commit_log_thorough_interval
        if not (is_much or is_old):
            return False
        self.flush_log()
        self._flushed_ms = now_ms
        return True

    def flush_all(self) -> None:
        """Make everything durable, as before a clean stop.

        Raises:
            WriteFailed: The disk failed.
        """
        self.commit()
        self.flush_log()
        self.write_out_queues()
        self.sync_queues()
        self._checkpoint.flush()
