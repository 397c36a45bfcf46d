"""The store: put, get, query, step, close.

    put ---> commit log ---> dispatch ---> consume queues, index, listeners
                  |
             flush, group commit ---> checkpoint

One writer. Nothing here waits or sleeps but the disk: background work is ``step``, which the owner
calls at its pace. Records are moved as bytes and not decoded on the way.

This is the façade; what it does is told in ``putting``, ``dispatch``, ``flush``, ``getting``,
``recovery`` and ``retention``.
"""

import dataclasses
import os
from collections.abc import Sequence
from typing import Self

from reput.clock import Clock, SystemClock
from reput.errors import WriteFailed
from reput.format.kernels import state
from reput.store import paths
from reput.store.checkpoint import CheckpointFile
from reput.store.commit_log import CommitLog
from reput.store.config import BrokerRole, StoreConfig
from reput.store.consume_queue import ConsumeQueues
from reput.store.disk import Disk
from reput.store.dispatch import Dispatcher, Listener
from reput.store.files import open_folder
from reput.store.flush import Flusher, GroupCommit, PendingPut
from reput.store.folder_lock import FolderLock
from reput.store.getting import GetResult, Getter, MessageFilter, QueryResult
from reput.store.hot_state import HotState
from reput.store.incoming import IncomingMessage, PutResult, PutStatus
from reput.store.index_file import IndexFiles
from reput.store.putting import Putter
from reput.store.reader import END_OF_TIME_MS, Boundary, refuse_rocksdb
from reput.store.recovery import Progress, QueueSummary, Recovery, RecoveryReport
from reput.store.retention import Retention


class MessageStore:
    """A store folder that is open for writing; open with ``MessageStore.open``.

    May be used by one thread at a time. ``sync`` may run in another one meanwhile.
    """

    def __init__(self, config: StoreConfig, clock: Clock, disk: Disk, lock: FolderLock) -> None:
        """Not for callers: see ``open``."""
        self.config = config
        self.root = config.store_path_root_dir
        self._clock = clock
        self._disk = disk
        self._lock = lock
        self._hot = HotState(is_slow=config.enable_consume_queue_ext)
        self._block = self._hot.block
        self.log = CommitLog(config, self._hot, disk)
        self.queues = ConsumeQueues(
            self.root, config.mapped_file_size_consume_queue, self._hot, disk
        )
        self.index = IndexFiles(self.root, config, self._hot, disk)
        self.checkpoint = CheckpointFile(f"{self.root}/{paths.CHECKPOINT}", disk)
        self.dispatcher = Dispatcher(config, self._hot, self.log, self.queues, self.index)
        self.flusher = Flusher(
            config, self._hot, self.log, self.queues, self.index, self.checkpoint
        )
        self.retention = Retention(config, disk, self.log, self.queues, self.index)
        self._putter = Putter(config, clock, self._hot, self.log, self.queues, self.dispatcher)
        self._getter = Getter(config, self._hot, self.log, self.queues, self.index)
        self._waiting = GroupCommit(config.sync_flush_timeout)
        self.recovery: RecoveryReport
        """What opening it found and did."""
        self._is_open = False

    # Opening and closing ----------------------------------------------------------------------

    @classmethod
    def open(
        cls,
        path: str | None = None,
        config: StoreConfig | None = None,
        *,
        clock: Clock | None = None,
        disk: Disk | None = None,
        progress: Progress = lambda what, done, total: None,
    ) -> Self:
        """Open a store folder, made if need be, and bring it into order.

        Args:
            path: The folder, in place of the configured one.
            config: Sizes, paces, limits; RocketMQ's defaults.
            clock: What the time is.
            disk: What writes; tests replace it.
            progress: Told how far recovery is.

        Raises:
            StoreUnavailable: In use, in RocksDB mode, or its files have other sizes.
            WriteFailed: The folder cannot be written to; also ``DiskFull``.
        """
        config = config or StoreConfig()
        if path is not None:
            config = dataclasses.replace(config, store_path_root_dir=path)
        disk = disk or Disk()
        disk.make_folder(config.store_path_root_dir)
        lock = FolderLock(config.store_path_root_dir)
        try:
            for folder in config.commit_log_folders:
                disk.make_folder(folder)
            store = cls(config, clock or SystemClock(), disk, lock)
            store._start(progress)
        except BaseException:
            lock.release()
            raise
        return store

    def _start(self, progress: Progress) -> None:
        folder = open_folder(self.root, commit_log_folders=self.config.commit_log_folders)
        refuse_rocksdb(folder)
        recovery = Recovery(
            root=self.root,
            folder=folder,
            disk=self._disk,
            hot_state=self._hot,
            log=self.log,
            queues=self.queues,
            index=self.index,
            checkpoint=self.checkpoint,
            dispatcher=self.dispatcher,
        )
        try:
            self.recovery = recovery.run(self._clock.now_ms(), progress)
            is_live = not self.flusher.is_sync and self.log.pool is None
            self._block[state.IS_LIVE] = is_live
            self._set_limits()
            self._write_abort()
        except BaseException:
            self._let_go()
            raise
        self._is_open = True
        self._putter.refusal = self._refusal()

    def _set_limits(self) -> None:
        config, block = self.config, self._block
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        block[state.MEMORY_BYTES] = memory * config.access_message_in_memory_max_ratio // 100
        block[state.BYTES_IN_MEMORY_MAX] = config.max_transfer_bytes_on_message_in_memory
        block[state.COUNT_IN_MEMORY_MAX] = config.max_transfer_count_on_message_in_memory
        block[state.BYTES_ON_DISK_MAX] = config.max_transfer_bytes_on_message_in_disk
        block[state.COUNT_ON_DISK_MAX] = config.max_transfer_count_on_message_in_disk

    def _write_abort(self) -> None:
        path = f"{self.root}/{paths.ABORT}"
        text = str(os.getpid()).encode()
        self._disk.unlink(path)
        descriptor = self._disk.create(path, len(text))
        try:
            self._disk.write(descriptor, path, 0, text)
            self._disk.sync_file(descriptor, path)
        finally:
            os.close(descriptor)

    def _refusal(self) -> str:
        if not self._is_open:
            return "the store is closed"
        if self.flusher.failure is not None:
            return f"the disk failed: {self.flusher.failure}"
        if self.config.broker_role is BrokerRole.SLAVE:
            return "brokerRole is SLAVE: only its master writes here"
        return self.retention.refusal

    @property
    def refusal(self) -> str:
        """Why nothing can be put now; empty if it can."""
        return self._putter.refusal

    def close(self) -> None:
        """Stop cleanly: everything is durable and dispatched, and the next opening is quick.

        Raises:
            WriteFailed: The disk failed. The folder is let go nevertheless, as after a crash.
        """
        if not self._is_open:
            return
        self._is_open = False
        self._putter.refusal = self._refusal()
        try:
            self.flusher.commit()
            self.flusher.flush_log()
            self._settle()
            while self.dispatcher.step(self._dispatch_limit, self._clock.now_ms()):
                pass
            self.dispatcher.notify()
            self.flusher.flush_all()
            self.log.files.drop_prepared()
            QueueSummary.of(self.log.written_offset, self.queues).save(self.root, self._disk)
            self._disk.unlink(f"{self.root}/{paths.ABORT}")
            self._disk.sync_folder(self.root)
        finally:
            self._let_go()

    def abandon(self) -> None:
        """Let the folder go as it is, as a crash would: nothing more is written or flushed."""
        if self._is_open:
            self._is_open = False
            self._putter.refusal = self._refusal()
            self._let_go()

    def _let_go(self) -> None:
        self.log.close()
        self.index.close()
        self.queues.close()
        self._lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Putting ----------------------------------------------------------------------------------

    def put(self, message: IncomingMessage, now_ms: int | None = None) -> PutResult:
        """Store a message; under SYNC_FLUSH it is on disk on return, unless it does not wait.

        Args:
            message: What to store.
            now_ms: Its store time; the clock's.
        """
        result = self._putter.put(message, now_ms)
        if self.flusher.is_sync and message.waits and result.status is PutStatus.PUT_OK:
            return self._sync_puts([result])[0]
        return result

    def put_many(
        self, messages: Sequence[IncomingMessage], now_ms: int | None = None
    ) -> list[PutResult]:
        """Store messages that have nothing to do with each other, in one pass.

        Each has its own result; under SYNC_FLUSH one sync serves all.
        """
        results = self._putter.put_many(messages, now_ms)
        if self.flusher.is_sync and any(message.waits for message in messages):
            return self._sync_puts(results)
        return results

    def put_batch(self, message: IncomingMessage, now_ms: int | None = None) -> PutResult:
        """Store a client's batch: the body holds messages, which go to one queue, in one file.

        Each is stored with its own properties; those of the batch are dropped, as 5.3.4 and later
        do: there is a unique key among them, and all messages would get it.
        """
        result = self._putter.put_batch(message, now_ms)
        if self.flusher.is_sync and message.waits and result.status is PutStatus.PUT_OK:
            return self._sync_puts([result])[0]
        return result

    def begin_put(self, message: IncomingMessage, now_ms: int | None = None) -> PendingPut:
        """Store a message and do not wait for the disk: a later ``step`` sets ``result``.

        For owners that ``sync`` in a thread: what waits together shares a sync.
        """
        result = self._putter.put(message, now_ms)
        monotonic_ms = self._clock.monotonic_ms()
        if result.status is PutStatus.PUT_OK and self.flusher.is_sync and message.waits:
            return self._waiting.add(result, monotonic_ms)
        return PendingPut(result, result.end_offset, monotonic_ms, result)

    def _sync_puts(self, results: list[PutResult]) -> list[PutResult]:
        pending = [
            self._waiting.add(one, self._clock.monotonic_ms())
            if one.status is PutStatus.PUT_OK
            else PendingPut(one, 0, 0, one)
            for one in results
        ]
        try:
            self.flusher.flush_log()
        except WriteFailed:
            self._putter.refusal = self._refusal()
        self._settle()
        self._dispatch()
        return [one.result or one.stored for one in pending]

    def is_page_cache_busy(self) -> bool:
        """Whether a put has been at work for longer than ``osPageCacheBusyTimeOutMills``."""
        return self._putter.is_page_cache_busy()

    # Steps ------------------------------------------------------------------------------------

    def sync(self) -> None:
        """Make what was put durable; may run in a worker thread beside the writer.

        Puts that wait for it are settled by the next ``step``.

        Raises:
            WriteFailed: The disk failed, and the store takes no more puts.
        """
        self.flusher.flush_log()

    def step(self, now_ms: int | None = None) -> bool:
        """Do a bounded piece of the background work that is due.

        Flushes, settles waiting puts, dispatches, tells listeners, makes room ahead, expires.

        Args:
            now_ms: What the time is; the clock's.

        Returns:
            Whether there was anything to do.

        Raises:
            WriteFailed: The disk failed; also ``DiskFull``. What is stored stays.
        """
        now_ms = self._clock.now_ms() if now_ms is None else now_ms
        monotonic_ms = self._clock.monotonic_ms()
        try:
            did = self.flusher.step(monotonic_ms)
            did = bool(self._settle()) or did
            did = self._dispatch() or did
            did = self.log.step_ahead() or did
            did = self.retention.step(now_ms, monotonic_ms) or did
        finally:
            self._settle()
            self._putter.refusal = self._refusal()
        return did

    def _settle(self) -> list[PendingPut]:
        return self._waiting.settle(
            self.log.flushed_offset,
            self._clock.monotonic_ms(),
            has_failed=self.flusher.failure is not None,
        )

    @property
    def _dispatch_limit(self) -> int:
        """Physical offset that dispatch must not pass (anchors D3)."""
        return self.log.flushed_offset if self.flusher.is_sync else self.log.readable_offset

    def _dispatch(self) -> bool:
        did = self.dispatcher.step(self._dispatch_limit, self._clock.now_ms())
        self.dispatcher.notify()
        return did

    def add_listener(self, listener: Listener) -> None:
        """Tell somebody of new messages, once they can be read."""
        self.dispatcher.listeners.append(listener)

    # Getting ----------------------------------------------------------------------------------

    def get(
        self,
        topic: str,
        queue_id: int,
        queue_offset: int,
        max_count: int = 32,
        *,
        tags_codes: Sequence[int] = (),
        message_filter: MessageFilter | None = None,
    ) -> GetResult:
        """Return messages of a queue from an offset on; see ``Getter.get``."""
        return self._getter.get(
            topic,
            queue_id,
            queue_offset,
            max_count,
            tags_codes=tags_codes,
            message_filter=message_filter,
        )

    def min_offset(self, topic: str, queue_id: int) -> int:
        """Return the queue offset of the oldest message; see ``Getter.min_offset``."""
        return self._getter.min_offset(topic, queue_id)

    def max_offset(self, topic: str, queue_id: int) -> int:
        """Return the queue offset behind the newest message; see ``Getter.max_offset``."""
        return self._getter.max_offset(topic, queue_id)

    def offset_by_time(
        self, topic: str, queue_id: int, timestamp_ms: int, boundary: Boundary = Boundary.LOWER
    ) -> int:
        """Return the queue offset that a time names; see ``Getter.offset_by_time``."""
        return self._getter.offset_by_time(topic, queue_id, timestamp_ms, boundary)

    def store_time(self, topic: str, queue_id: int, queue_offset: int) -> int | None:
        """Return when a message was stored, ms; None if it is not there."""
        return self._getter.store_time(topic, queue_id, queue_offset)

    def earliest_message_time(self, topic: str, queue_id: int) -> int | None:
        """Return when the oldest message of a queue was stored, ms; None if there is none."""
        return self._getter.earliest_message_time(topic, queue_id)

    def lag_bytes(self, topic: str, queue_id: int, consumer_offset: int) -> int:
        """Return how far back in the log a consumer reads, bytes; see ``Getter.lag_bytes``."""
        return self._getter.lag_bytes(topic, queue_id, consumer_offset)

    def record_at(self, physical_offset: int) -> bytes | None:
        """Return the record at a physical offset; None if none stands there."""
        return self._getter.record_at(physical_offset)

    def query(
        self,
        topic: str,
        key: str,
        max_count: int = 32,
        begin_ms: int = 0,
        end_ms: int = END_OF_TIME_MS,
    ) -> QueryResult:
        """Return the newest messages that carry a key; see ``Getter.query``."""
        return self._getter.query(topic, key, max_count, begin_ms, end_ms)

    @property
    def min_physical_offset(self) -> int:
        """Where the log begins."""
        return self.log.min_offset

    @property
    def max_physical_offset(self) -> int:
        """Behind the last record that can be read."""
        return self.log.readable_offset

    # Deleting ---------------------------------------------------------------------------------

    def delete_topic(self, topic: str) -> int:
        """Delete the queues of a topic; its messages stay in the log until they expire.

        Returns:
            How many queues there were.
        """
        count = self.queues.drop_topic(topic)
        if count:
            self.dispatcher.forget(topic, self.log.written_offset)
        return count
