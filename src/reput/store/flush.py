"""When bytes become durable, and who waits for it.

Under SYNC_FLUSH puts wait: all that wait at the moment of a sync share it (group commit). Under
ASYNC_FLUSH the log is flushed by time and amount. Pool buffers are committed, queues and index
written out and synced, and the checkpoint says what is durable, each field only after its own sync
(known-bugs.md#checkpoint-ahead).

A sync that failed is final: the system may have dropped the pages, and a second call that succeeds
says nothing about them. The store then takes no more puts. A file that could not be opened to be
synced, for want of a descriptor, has not lost anything: it is tried again.
"""

import logging
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from reput.errors import DiskFull, OutOfResources, WriteFailed
from reput.store.batch_queue import BatchQueues
from reput.store.checkpoint import CheckpointFile
from reput.store.commit_log import CommitLog
from reput.store.config import BrokerRole, FlushDiskType, StoreConfig
from reput.store.consume_queue import ConsumeQueues
from reput.store.hot_state import HotState
from reput.store.incoming import PutResult, PutStatus
from reput.store.index_file import IndexFiles
from reput.store.kernels import control_block as state
from reput.store.known_queues import KnownQueues

PAGE_BYTES = 4096
_NEVER_MS = -(1 << 62)
_CHECKPOINT_INTERVAL_MS = 1000

_T = TypeVar("_T")
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _WrittenOut:
    """Queues that were written out and wait for their sync."""

    least_bytes: int
    physical_offset: int
    """Of the last record that was dispatched before."""
    timestamp: int
    """Store time of that record, ms."""


@dataclass(slots=True)
class PendingPut:
    """A put that is in the log and waits for the disk, or for a slave."""

    stored: PutResult
    deadline_ms: int
    """When it waits no longer for the disk. Monotonic."""
    slave_deadline_ms: int
    """When it waits no longer for a slave. Monotonic."""
    result: PutResult | None = None
    """What the producer is told, once it is known."""


@dataclass(slots=True)
class _Round:
    """Queues that are being written out, some a step."""

    written: _WrittenOut
    left: int
    """How many of those with units in memory are still to be looked at."""


class GroupCommit:
    """The puts that wait, in the order of the log.

    Under SYNC_FLUSH for the disk: all that wait at the moment of a sync share it. On a SYNC_MASTER
    for a slave.

    Args:
        config: Who waits, and how long.
    """

    def __init__(self, config: StoreConfig) -> None:
        self._config = config
        self._needs_disk = config.flush_disk_type is FlushDiskType.SYNC_FLUSH
        self._needs_slave = config.broker_role is BrokerRole.SYNC_MASTER
        self.is_needed = self._needs_disk or self._needs_slave
        """Whether puts wait at all."""
        self.slave_offset: int | None = None
        """Physical offset up to which a slave has the log, as replication reports it; None while no
        slave is connected."""
        self._waiting: deque[PendingPut] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, stored: PutResult, monotonic_ms: int) -> PendingPut:
        """Let a put wait."""
        pending = PendingPut(
            stored,
            monotonic_ms + self._config.sync_flush_timeout,
            monotonic_ms + self._config.slave_timeout,
        )
        self._waiting.append(pending)
        return pending

    def settle(
        self, flushed_offset: int, monotonic_ms: int, *, has_failed: bool = False
    ) -> list[PendingPut]:
        """End the waiting of those that are where they should be, and of those that are late."""
        settled = []
        while self._waiting:
            first = self._waiting[0]
            first.result = self.judge(
                first.stored,
                flushed_offset,
                is_late=has_failed or first.deadline_ms <= monotonic_ms,
                is_late_for_slave=has_failed or first.slave_deadline_ms <= monotonic_ms,
            )
            if first.result is None:
                break
            settled.append(self._waiting.popleft())
        return settled

    def judge(
        self, stored: PutResult, flushed_offset: int, *, is_late: bool, is_late_for_slave: bool
    ) -> PutResult | None:
        """Return what the producer of a stored message is told; None while it must wait.

        A slave's part comes last, as in Java: it overrides the disk's.
        """
        end = stored.end_offset
        status = PutStatus.PUT_OK
        if self._needs_disk and end > flushed_offset:
            if not is_late:
                return None
            status = PutStatus.FLUSH_DISK_TIMEOUT
        if self._needs_slave:
            slave_offset = self.slave_offset
            if slave_offset is None or end - slave_offset > self._config.ha_slave_fallbehind_max:
                status = PutStatus.SLAVE_NOT_AVAILABLE
            elif end > slave_offset:
                if not is_late_for_slave:
                    return None
                status = PutStatus.FLUSH_SLAVE_TIMEOUT
        return stored if status is PutStatus.PUT_OK else stored._replace(status=status)


class Flusher:
    """Makes things durable at their pace.

    Args:
        config: The paces.
        hot_state: What was put and dispatched last.
        log: What is flushed.
        queues: What is written out and synced.
        batch_queues: What is synced.
        index: What is synced.
        known_queues: Names the queues that the checkpoint counts on.
        checkpoint: What says so.
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
    ) -> None:
        self._config = config
        self._block = hot_state.block
        self._commit_log = log
        self._queues = queues
        self._batch_queues = batch_queues
        self._index = index
        self._known_queues = known_queues
        self._checkpoint = checkpoint
        self.is_sync = config.flush_disk_type is FlushDiskType.SYNC_FLUSH
        self.failure: WriteFailed | None = None
        """The sync or commit that failed, after which nothing is known to be durable."""
        self._handing_over = threading.Lock()  # of `_written_out`
        self._written_out: _WrittenOut | None = None
        self._round: _Round | None = None
        self.lacks_room = False
        """Whether the last attempt to write out queues found no room."""
        self._committed_timestamp = 0
        self._committed_ms = self._flushed_ms = _NEVER_MS
        self._checked_ms = self._queues_ms = self._queues_full_ms = _NEVER_MS
        self._checkpoint_ms = _NEVER_MS

    # The log ----------------------------------------------------------------------------------

    def flush_log(self) -> int:
        """Make the log durable as far as it is written and committed; return up to which offset.

        May run in a worker thread beside the writer; the next ``step`` notes it in the checkpoint.

        Raises:
            WriteFailed: The disk failed, now or before.
        """
        is_direct = self._commit_log.pool is None
        timestamp = self._block[state.LOG_TIMESTAMP] if is_direct else self._committed_timestamp
        self._guard(self._commit_log.flush)
        if timestamp:
            self._checkpoint.advance(physical_timestamp=timestamp)
        return self._commit_log.flushed_offset

    def _guard(self, action: Callable[[], _T]) -> _T:
        if self.failure is not None:
            raise self.failure
        try:
            return action()
        except OutOfResources:
            raise
        except WriteFailed as error:
            self.failure = error
            _log.critical("the store takes no more puts: %s", error)
            raise

    def commit(self) -> int:
        """Write pool buffers to the files; return the physical offset up to which all is there.

        Raises:
            WriteFailed: The disk failed; unlike a sync it can be tried again.
        """
        timestamp = self._block[state.LOG_TIMESTAMP]
        committed = self._commit_log.commit()
        self._committed_timestamp = timestamp
        return committed

    # Queues and index -------------------------------------------------------------------------

    def write_out_queues(self, least_bytes: int = 0) -> None:
        """Write out queues; the next ``sync_queues`` makes them durable. For the writer's thread.

        Args:
            least_bytes: Sync only files with as much to be synced. With 0 all of them, and the
                index, and then the checkpoint says so.

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
            self._block[state.LAST_PHYSICAL_OFFSET],
            self._block[state.LAST_STORE_TIMESTAMP],
        )

    def begin_writing_out(self, least_bytes: int = 0) -> None:
        """Write out queues as ``write_out_queues`` does, the first now, others with the next steps.

        Arguments and errors are its.
        """
        if self._round is None or (self._round.written.least_bytes and not least_bytes):
            written = self._about_to_write(least_bytes)
            self._round = _Round(written, self._queues.dirty_count)
        self._step_round()

    @property
    def is_writing_out(self) -> bool:
        """Whether queues of a round are left for the next steps."""
        return self._round is not None

    @property
    def can_write_more(self) -> bool:
        """Whether some of them do not have to wait for files that the disk's thread makes."""
        return self.is_writing_out and not self._queues.is_waiting_for_files

    def _step_round(self) -> bool:
        """Write out some queues of a round; return whether one is under way."""
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
        """Write out queues, and note whether there was room."""
        try:
            result = action()
        except WriteFailed as error:
            self.lacks_room = isinstance(error, DiskFull)
            raise
        self.lacks_room = False
        return result

    def sync_queues(self) -> bool:
        """Make durable what was written out; return whether there was anything.

        Raises:
            WriteFailed: The disk failed, now or before. What it lost follows from the log, but only
                recovery can tell.
        """
        with self._handing_over:
            written, self._written_out = self._written_out, None
        if written is None:
            return False
        if not written.least_bytes:
            # Recovery takes what is before the queues' offset for synced, in the log too.
            self.flush_log()
        self._guard(lambda: self._queues.sync(written.least_bytes))
        index_timestamp = 0
        if not written.least_bytes:
            self._guard(self._batch_queues.sync)
            self._guard(self._known_queues.save)
            index_timestamp = self._guard(self._index.sync)
        if not written.least_bytes and written.timestamp:
            self._checkpoint.advance(
                queue_timestamp=written.timestamp, queue_physical_offset=written.physical_offset
            )
        if index_timestamp:
            self._checkpoint.advance(index_timestamp=index_timestamp)
        return True

    def _sync_later(self, written: _WrittenOut) -> None:
        with self._handing_over:
            waiting = self._written_out
            if waiting is None or waiting.least_bytes >= written.least_bytes:
                self._written_out = written

    # Steps ------------------------------------------------------------------------------------

    def step_memory(self, now_ms: int) -> bool:
        """Do what is due and needs the writer's thread; return whether anything was.

        Args:
            now_ms: Monotonic time.

        Raises:
            WriteFailed: There was no room for queues; also ``DiskFull``.
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
        """Do what is due and waits for the disk; may run in a worker thread beside the writer.

        Args:
            now_ms: Monotonic time.

        Returns:
            Whether anything was due.

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
            self._flushed_ms = now_ms  # nothing has waited: its age counts from now
        if not waiting:
            return False
        if self.is_sync:
            self.flush_log()
            return True
        if now_ms - self._checked_ms < config.flush_interval_commit_log:
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
        """Make everything durable, as before a clean end.

        Raises:
            WriteFailed: The disk failed.
        """
        self.commit()
        self.flush_log()
        self.write_out_queues()
        self.sync_queues()
        self._checkpoint.flush()
