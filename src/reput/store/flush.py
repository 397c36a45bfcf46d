"""When bytes become durable, and who waits for it.

Under SYNC_FLUSH puts wait: all that wait at the moment of a sync share it (group commit). Under
ASYNC_FLUSH the log is flushed by time and amount. Pool buffers are committed, queues and index
written out and synced, and the checkpoint says what is durable, each field only after its own sync
(anchors D2).

A sync that failed is final: the system may have dropped the pages, and a second call that succeeds
says nothing about them. The store then takes no more puts.
"""

import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from reput.errors import WriteFailed
from reput.format.kernels import state
from reput.store.checkpoint import CheckpointFile
from reput.store.commit_log import CommitLog
from reput.store.config import FlushDiskType, StoreConfig
from reput.store.consume_queue import ConsumeQueues
from reput.store.hot_state import HotState
from reput.store.incoming import PutResult, PutStatus
from reput.store.index_file import IndexFiles

PAGE_BYTES = 4096
_NEVER_MS = -(1 << 62)

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class PendingPut:
    """A put that is in the log and waits for the disk."""

    stored: PutResult
    end_offset: int
    deadline_ms: int
    """Monotonic."""
    result: PutResult | None = None
    """What the producer is told, once it is known."""


class GroupCommit:
    """The puts that wait for a sync, in the order of the log."""

    def __init__(self, timeout_ms: int) -> None:
        self._timeout_ms = timeout_ms
        self._waiting: deque[PendingPut] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, stored: PutResult, monotonic_ms: int) -> PendingPut:
        """Let a put wait."""
        pending = PendingPut(stored, stored.end_offset, monotonic_ms + self._timeout_ms)
        self._waiting.append(pending)
        return pending

    def settle(
        self, flushed_offset: int, monotonic_ms: int, *, has_failed: bool = False
    ) -> list[PendingPut]:
        """End the waiting of those that are durable, and of those that waited too long."""
        settled = []
        while self._waiting:
            first = self._waiting[0]
            if first.end_offset <= flushed_offset:
                first.result = first.stored
            elif has_failed or first.deadline_ms <= monotonic_ms:
                first.result = first.stored._replace(status=PutStatus.FLUSH_DISK_TIMEOUT)
            else:
                break
            settled.append(self._waiting.popleft())
        return settled


class Flusher:
    """Makes things durable at their pace.

    Args:
        config: The paces.
        hot_state: What was put and dispatched last.
        log: What is flushed.
        queues: What is written out and synced.
        index: What is synced.
        checkpoint: What says so.
    """

    def __init__(
        self,
        config: StoreConfig,
        hot_state: HotState,
        log: CommitLog,
        queues: ConsumeQueues,
        index: IndexFiles,
        checkpoint: CheckpointFile,
    ) -> None:
        self._config = config
        self._block = hot_state.block
        self._commit_log = log
        self._queues = queues
        self._index = index
        self._checkpoint = checkpoint
        self.is_sync = config.flush_disk_type is FlushDiskType.SYNC_FLUSH
        self.failure: WriteFailed | None = None
        """The sync or commit that failed, after which nothing is known to be durable."""
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
        timestamp = self._block[state.LOG_TIMESTAMP]
        self._guard(self._commit_log.flush)
        if timestamp:
            self._checkpoint.advance(physical_timestamp=timestamp)
        return self._commit_log.flushed_offset

    def _guard(self, action: Callable[[], object]) -> None:
        if self.failure is not None:
            raise self.failure
        try:
            action()
        except WriteFailed as error:
            self.failure = error
            _log.critical("the store takes no more puts: %s", error)
            raise

    def commit(self) -> int:
        """Write pool buffers to the files; return the physical offset up to which all is there.

        Raises:
            WriteFailed: The disk failed; unlike a sync it can be tried again.
        """
        return self._commit_log.commit()

    # Queues and index -------------------------------------------------------------------------

    def flush_queues(self, least_bytes: int = 0) -> None:
        """Write out queues and sync those files that have ``least_bytes`` or more to be synced.

        With 0 everything, the index too, and the checkpoint is told.

        Raises:
            WriteFailed: The disk failed; it can be tried again, as all of it follows from the log.
        """
        physical_offset = self._block[state.LAST_PHYSICAL_OFFSET]
        timestamp = self._block[state.LAST_STORE_TIMESTAMP]
        self._queues.write_out()
        self._queues.sync(least_bytes)
        if least_bytes:
            return
        index_timestamp = self._index.sync()
        if timestamp:
            self._checkpoint.advance(
                queue_timestamp=timestamp, queue_physical_offset=physical_offset
            )
        if index_timestamp:
            self._checkpoint.advance(index_timestamp=index_timestamp)

    # Steps ------------------------------------------------------------------------------------

    def step(self, now_ms: int) -> bool:
        """Do what is due; return whether anything was.

        Args:
            now_ms: Monotonic time.

        Raises:
            WriteFailed: The disk failed.
        """
        did = self._step_commit(now_ms)
        did = self._step_log(now_ms) or did
        did = self._step_queues(now_ms) or did
        if now_ms - self._checkpoint_ms >= 1000:
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
        if not waiting:
            self._flushed_ms = now_ms  # nothing has waited: its age counts from now (anchors D29)
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

    def _step_queues(self, now_ms: int) -> bool:
        config = self._config
        if now_ms - self._queues_full_ms >= config.flush_consume_queue_thorough_interval:
            if self._queues_full_ms == _NEVER_MS:
                self._queues_full_ms = self._queues_ms = now_ms
                return False
            self._queues_full_ms = self._queues_ms = now_ms
            self.flush_queues()
            return True
        if now_ms - self._queues_ms >= config.flush_interval_consume_queue:
            self._queues_ms = now_ms
            self.flush_queues(config.flush_consume_queue_least_pages * PAGE_BYTES or 1)
            return True
        return False

    def flush_all(self) -> None:
        """Make everything durable, as before a clean end.

        Raises:
            WriteFailed: The disk failed.
        """
        self.commit()
        self.flush_log()
        self.flush_queues()
        self._checkpoint.flush()
