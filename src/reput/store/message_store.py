"""The store: put, get, query, step, close.

    put ---> commit log ---> dispatch ---> consume queues, index, listeners
                  |
             flush, group commit ---> checkpoint

There is one writer. Only the disk blocks; background work is done by ``step``, which the owner
calls at its own pace. Records are copied as bytes and not decoded.

This is the façade of ``putting``, ``dispatch``, ``flush``, ``getting``, ``recovery`` and
``retention``.
"""

import contextlib
import dataclasses
import gc
import logging
import os
import threading
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Self

from reput.clock import Clock, SystemClock
from reput.descriptors import spares
from reput.errors import WriteFailed
from reput.format import java, names
from reput.store.checkpoint import CheckpointFile
from reput.store.config import BrokerRole, DurableIn, StoreConfig
from reput.store.files import paths
from reput.store.files.disk import Disk
from reput.store.files.files import open_folder
from reput.store.files.folder_lock import FolderLock
from reput.store.getting import GetResult, Getter, MessageFilter, QueryResult
from reput.store.hot_state import HotState
from reput.store.index.index_file import IndexFiles
from reput.store.log.commit_log import CommitLog, LogPiece, LogView
from reput.store.log.in_sync_set import InSyncSet
from reput.store.log.replica_acks import ReplicaAcks
from reput.store.opening import log_cut
from reput.store.opening.folder_watch import FolderWatch
from reput.store.opening.recovery import Progress, Recovery, RecoveryReport
from reput.store.opening.summary import Summary
from reput.store.queues.batch_queue import BatchQueue, BatchQueues
from reput.store.queues.consume_queue import ConsumeQueue
from reput.store.queues.consume_queues import ConsumeQueues
from reput.store.queues.known_queues import KnownQueues
from reput.store.queues.tombstones import Tombstones
from reput.store.reader import END_OF_TIME_MS, Boundary, refuse_foreign, refuse_rocksdb_tables
from reput.store.tables import config_tables
from reput.store.writing.copying import Copier
from reput.store.writing.dispatch import Dispatcher, Listener
from reput.store.writing.flush import Flusher, GroupCommit, PendingPut
from reput.store.writing.incoming import NOT_ENOUGH_REPLICAS, IncomingMessage, PutResult, PutStatus
from reput.store.writing.pop_reader import PopReader
from reput.store.writing.putting import Putter
from reput.store.writing.removal import Removal, Removals
from reput.store.writing.replica_log import ReplicaLog
from reput.store.writing.retention import Retention

if TYPE_CHECKING:
    from reput.store.queues.filter_bits import Filters

QUEUE_FAILURE_MS_MAX = 30_000
"""Time for which queues may fail to be written before puts are refused; Java retries as long."""
_STEPS_AFTER_RECEIVING = 8
"""Steps of dispatch after bytes from the master were added: 4 MiB, some ms."""

_log = logging.getLogger(__name__)


@contextlib.contextmanager
def _collecting_no_garbage() -> Iterator[None]:
    """Collect no garbage: while 80,000 queues are loaded, it takes a third of the time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


class _QueueWrites:
    """Attempts to write queues: the dispatch to them, and their units to files."""

    def __init__(self) -> None:
        self._failing_since: dict[str, int] = {}  # attempt -> time of its first error
        self.refusal = ""
        """Reason why puts are refused: an attempt has failed for too long; empty if none has."""

    def attempt(self, name: str, monotonic_ms: int, action: Callable[[], bool]) -> bool:
        """Return the result of an attempt. Raises its ``WriteFailed``."""
        try:
            did = action()
        except WriteFailed as error:
            since_ms = self._failing_since.setdefault(name, monotonic_ms)
            if not self.refusal and monotonic_ms - since_ms >= QUEUE_FAILURE_MS_MAX:
                seconds = QUEUE_FAILURE_MS_MAX // 1000
                self.refusal = f"queues could not be written for {seconds} s: {error}"
                _log.error("puts are refused: %s", self.refusal)
            raise
        if self._failing_since.pop(name, None) is not None:
            self._end()
        return did

    def _end(self) -> None:
        if self.refusal and not self._failing_since:
            self.refusal = ""
            _log.warning("puts are accepted again: queues can be written")


class MessageStore:
    """A store folder that is open for writing; open one with ``MessageStore.open``.

    Only one thread may use it at a time. ``sync`` and ``step_disk`` may run in another thread
    meanwhile, also while the store is closed; after that they do nothing.
    """

    def __init__(self, config: StoreConfig, clock: Clock, disk: Disk, lock: FolderLock) -> None:
        """Set up the parts; callers use ``open``."""
        self.config = config
        self.root = config.store_path_root_dir
        self._clock = clock
        self._disk = disk
        self._lock = lock
        self.hot_state = HotState(is_slow=config.enable_consume_queue_ext)
        """The memory that kernels and Python share."""
        self._block = self.hot_state.block
        self.log = CommitLog(config, self.hot_state, disk)
        self.queues = ConsumeQueues(
            self.root,
            config.mapped_file_size_consume_queue,
            self.hot_state,
            disk,
            ext_file_size=config.mapped_file_size_consume_queue_ext
            if config.enable_consume_queue_ext
            else 0,
        )
        self._batch_queues = BatchQueues(
            self.root, config.mapper_file_size_batch_consume_queue, self.hot_state, disk
        )
        self.index = IndexFiles(self.root, config, self.hot_state, disk)
        self.checkpoint = CheckpointFile(f"{self.root}/{paths.CHECKPOINT}", disk)
        self.watch = FolderWatch(
            self.root, disk, lock, self.log, self.queues, self.index, self.checkpoint
        )
        """Detects files that other programs delete or truncate."""
        self._tombstones = Tombstones(self.root, disk)
        self.removals = Removals(self.root, disk, self.queues, self._batch_queues, self._tombstones)
        """Queues that are being deleted."""
        self.dispatcher = Dispatcher(
            config,
            self.hot_state,
            self.log,
            self.queues,
            self._batch_queues,
            self.index,
            self._tombstones.by_topic,
        )
        self.dispatcher.exclude = lambda topic, end: self._tombstones.put([topic], end)
        self._known_queues = KnownQueues(
            self.root, disk, self.hot_state, self.queues, self._batch_queues
        )
        self.flusher = Flusher(
            config,
            self.hot_state,
            self.log,
            self.queues,
            self._batch_queues,
            self.index,
            self._known_queues,
            self.checkpoint,
            clock,
        )
        self.retention = Retention(
            config,
            disk,
            self.log,
            self.queues,
            self._batch_queues,
            self.index,
            dispatcher=self.dispatcher,
            flusher=self.flusher,
            checkpoint=self.checkpoint,
            tombstones=self._tombstones,
            consumer_offsets=lambda: config_tables.consumer_offsets(open_folder(self.root)),
        )
        self.putter = Putter(
            config,
            clock,
            self.hot_state,
            self.log,
            self.queues,
            self._batch_queues,
            self.dispatcher,
        )
        """Appends messages to the log."""
        self.copier = Copier(config, self.hot_state, self.log, self.putter)
        """Copies stored messages to queues, on the fast path."""
        self.pop_reader = PopReader(self.hot_state, self.log, self.queues, self.putter)
        """Serves pops on the fast path."""
        self.before_release: list[Callable[[], None]] = []
        """Called before queues are removed, or the store is closed: kernels know where they are."""
        self._getter = Getter(
            config, self.hot_state, self.log, self.queues, self.index, self._batch_queues
        )
        self.replicas = ReplicaAcks()
        """The slaves of a master."""
        self._waiting = GroupCommit(config, self.replicas)
        self._is_replica = config.broker_role is BrokerRole.SLAVE
        self.confirmed_offset: int | None = None
        """Physical offset up to which a slave may dispatch, as its master says; None: the end."""
        self._hidden_end = 0
        self._replica_log = ReplicaLog(self.log, self.dispatcher, self._take_bytes)
        self.recovery: RecoveryReport
        """Report of the recovery that ran when the store was opened."""
        self._is_open = False
        self._queue_writes = _QueueWrites()
        self._disk_half = threading.RLock()  # held by work on the disk, and by ``close``

    # Opening and closing ----------------------------------------------------------------------

    @classmethod
    def open(
        cls,
        path: str | None = None,
        config: StoreConfig | None = None,
        *,
        clock: Clock | None = None,
        disk: Disk | None = None,
        filters: "Filters | None" = None,
        progress: Progress = lambda what, done, total: None,
    ) -> Self:
        """Open a store folder, created if it does not exist, and recover it.

        Args:
            path: Folder, instead of the configured one.
            config: Sizes, intervals and limits; by default those of RocketMQ.
            clock: Source of the time.
            disk: Writes files; tests replace it.
            filters: SQL filters of the groups, for ``enableCalcFilterBitMap``.
            progress: Called with the progress of the recovery.

        Raises:
            StoreUnavailable: The folder is in use, in RocksDB mode or in DLedger, or its files have
                other sizes.
            WriteFailed: The folder cannot be written to; also ``DiskFull``.
        """
        config = config or StoreConfig()
        if path is not None:
            config = dataclasses.replace(config, store_path_root_dir=path)
        disk = disk or Disk()
        disk.make_folder(config.store_path_root_dir)
        lock = FolderLock(config.store_path_root_dir)
        try:
            refuse_foreign(open_folder(config.store_path_root_dir))
            read_only = config.read_only_commit_log_folders
            for folder in config.commit_log_folders:
                disk.make_folder(folder)
            writable = [name for name in config.commit_log_folders if name not in read_only]
            lock.add_folders(writable)
            _check_writable(disk, config.store_path_root_dir, writable)
            clock = clock or SystemClock()
            log_cut.finish_cut(config, disk, clock.now_ms())
            store = cls(config, clock, disk, lock)
            if filters is not None and config.enable_calc_filter_bit_map:
                # Not at the top: the library that compiles filters takes long to import.
                from reput.store.queues.filter_bits import FilterBits

                store.dispatcher.filter_bits = FilterBits(filters)
            store._start(progress)
        except BaseException:
            lock.release()
            raise
        return store

    def _start(self, progress: Progress) -> None:
        folder = open_folder(self.root, commit_log_folders=self.config.commit_log_folders)
        refuse_rocksdb_tables(folder)
        recovery = Recovery(
            root=self.root,
            folder=folder,
            disk=self._disk,
            hot_state=self.hot_state,
            log=self.log,
            queues=self.queues,
            batch_queues=self._batch_queues,
            index=self.index,
            checkpoint=self.checkpoint,
            dispatcher=self.dispatcher,
            known_queues=self._known_queues,
            tombstones=self._tombstones,
            is_replica=self._is_replica,
            thread_count=self.config.reput_recovery_threads,
        )
        try:
            with _collecting_no_garbage():
                recovery.load()
            self.retention.note_opening(self._clock.now_ms())
            for path in {self.root, *self.config.commit_log_folders}:
                self._disk.keep_open(path)
            self._write_abort()
            self.recovery = recovery.run(self._clock.now_ms(), progress)
            self.dispatcher.is_replica = self._is_replica
            self._go_live()
            self.log.warms_first = self.config.warm_maped_file_enable and not self._is_replica
            self._set_limits()
            self._disk.defer_discards()
            self.watch.start(self.log.files.folders)
            spares.fill()
        except BaseException:
            self._release()
            raise
        self._is_open = True
        self.putter.refusal = self._refusal()

    def _set_limits(self) -> None:
        config, block = self.config, self._block
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        block.memory_bytes = memory * config.memory_ratio // 100
        block.bytes_in_memory_max = config.max_transfer_bytes_on_message_in_memory
        block.count_in_memory_max = config.max_transfer_count_on_message_in_memory
        block.bytes_on_disk_max = config.max_transfer_bytes_on_message_in_disk
        block.count_on_disk_max = config.max_transfer_count_on_message_in_disk

    def _write_abort(self) -> None:
        # Atomic: a store that crashes never lacks the file.
        self._disk.replace(f"{self.root}/{paths.ABORT}", str(os.getpid()).encode())

    def _refusal(self) -> str:
        if not self._is_open:
            return "the store is closed"
        if self.flusher.problem:
            return self.flusher.problem
        if self.watch.refusal:
            return self.watch.refusal
        if self.config.broker_role is BrokerRole.SLAVE:
            return "brokerRole is SLAVE: only its master writes here"
        return self.retention.refusal or self._queue_writes.refusal

    @property
    def refusal(self) -> str:
        """Reason why puts are refused now; empty if they are tried."""
        return self.putter.refusal

    @property
    def why_no_puts(self) -> str:
        """Reason why no message can be stored now; empty if puts have not failed."""
        return self.refusal or self.log.problem

    def close(self) -> None:
        """Stop cleanly: make everything durable and dispatched, so that the next start is quick.

        Raises:
            WriteFailed: The disk failed. The folder is released nevertheless, as after a crash.
        """
        with self._disk_half:
            self._close()

    def _close(self) -> None:
        if not self._is_open:
            return
        self._is_open = False
        self.putter.refusal = self._refusal()
        try:
            self.flusher.commit()
            self.flusher.flush_log()
            self._settle()
            while self.dispatcher.step(self._dispatch_limit, self._clock.now_ms()):
                pass
            self.dispatcher.notify()
            if self._is_replica and not self.log.cut_part(
                self.dispatcher.dispatched_offset, has_more=self._replica_log.has_unpublished
            ):
                _log.warning("not a clean stop: %s", self.dispatcher.problem)
                return
            self.flusher.flush_all()
            self.log.files.drop_prepared()
            self.removals.finish()  # after everything that messages need: it may fail
            log = self.log
            self.watch.check()
            if self.watch.refusal:
                _log.warning("not a clean stop: the next start repairs what it can")
                return
            summary = Summary.of(
                log.min_offset, log.written_offset, self.queues, self._batch_queues, self.index
            )
            summary.save(self.root, self._disk)
            self._disk.unlink(f"{self.root}/{paths.ABORT}")
            self._disk.sync_folder(self.root)
        finally:
            self._release()

    def abandon(self) -> None:
        """Release the folder as it is, as a crash would; nothing more is written or flushed."""
        with self._disk_half:
            if self._is_open:
                self._is_open = False
                self.putter.refusal = self._refusal()
                self._release()

    def _prepare_release(self) -> None:
        for forget in self.before_release:
            forget()

    def _release(self) -> None:
        self._prepare_release()
        self._disk.close_kept()
        self._disk.release_discarded()
        self.log.close()
        self.index.close()
        self.queues.close()
        self._batch_queues.close()
        self._lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Putting ----------------------------------------------------------------------------------

    def put(self, message: IncomingMessage, now_ms: int | None = None) -> PutResult:
        """Store a message.

        Under SYNC_FLUSH it is on disk on return, unless the message does not wait.

        Args:
            message: The message.
            now_ms: Store time; by default the clock's.
        """
        if message.waits and self.lacks_replicas:
            return NOT_ENOUGH_REPLICAS
        result = self.putter.put(message, now_ms)
        if self._waiting.is_needed and message.waits and result.status is PutStatus.PUT_OK:
            return self._finish_puts([result])[0]
        return result

    def put_many(
        self, messages: Sequence[IncomingMessage], now_ms: int | None = None
    ) -> list[PutResult]:
        """Store messages that are independent of each other, in one pass.

        Each has its own result; under SYNC_FLUSH one sync serves all.
        """
        if self.lacks_replicas:
            rest = [message for message in messages if not message.waits]
            stored = iter(self.putter.put_many(rest, now_ms))
            return [NOT_ENOUGH_REPLICAS if message.waits else next(stored) for message in messages]
        results = self.putter.put_many(messages, now_ms)
        if self._waiting.is_needed and any(message.waits for message in messages):
            return self._finish_puts(results)
        return results

    def put_batch(self, message: IncomingMessage, now_ms: int | None = None) -> PutResult:
        """Store a client's batch: its body contains messages for one queue, stored in one file.

        Each message is stored with its own properties. Those of the batch are dropped, as 5.3.4 and
        later do: they include a unique key, which all messages would get. A message with the system
        flag ``INNER_BATCH`` is stored as one record, and goes to a batch queue of 5.x.
        """
        if message.waits and self.lacks_replicas:
            return NOT_ENOUGH_REPLICAS
        result = self.putter.put_batch(message, now_ms)
        if self._waiting.is_needed and message.waits and result.status is PutStatus.PUT_OK:
            return self._finish_puts([result])[0]
        return result

    def put_encoded(
        self, data: bytes, count: int, now_ms: int | None = None
    ) -> tuple[int, memoryview]:
        """Append records made by ``incoming.encode`` and checked by the caller, in one pass.

        This is the fastest way to put, for callers with records instead of messages. It does not
        wait for the disk.

        Args:
            data: The records, concatenated, without offsets.
            count: Number of records.
            now_ms: Store time; by default the clock's.

        Returns:
            The number of stored records, and (physical offset, queue offset) of each as consecutive
            int64 values, valid until the next put.
        """
        return self.putter.put_encoded(data, count, now_ms)

    def store_time_of_put(self, now_ms: int) -> int:
        """Return the store time of a message that is put at the given time.

        The two differ only for a while after a clock was set back: store times never decrease.
        """
        return self.putter.store_time(now_ms)

    def begin_put(
        self, message: IncomingMessage, now_ms: int | None = None, *, is_batch: bool = False
    ) -> PendingPut:
        """Store a message or batch without waiting for the disk; a later ``step`` sets ``result``.

        For owners that ``sync`` in a thread: puts that wait together share a sync.
        """
        monotonic_ms = self._clock.monotonic_ms()
        if message.waits and self.lacks_replicas:
            return PendingPut(NOT_ENOUGH_REPLICAS, monotonic_ms, monotonic_ms, NOT_ENOUGH_REPLICAS)
        put = self.putter.put_batch if is_batch else self.putter.put
        result = put(message, now_ms)
        if result.status is PutStatus.PUT_OK and self._waiting.is_needed and message.waits:
            return self._waiting.add(result, monotonic_ms)
        return PendingPut(result, monotonic_ms, monotonic_ms, result)

    def set_write_queues(self, topic: str, count: int) -> None:
        """Set the number of queues of a topic that the fast path puts to; it is 0 at first."""
        self.hot_state.set_write_queues(java.encode_utf8(topic), count)

    def keep_batches(self, topic: str, *, is_on: bool) -> None:
        """Set whether the queues of a topic are batch queues (``queue.type=BatchCQ``, 5.x).

        A topic with queues keeps their kind until it is deleted.
        """
        if is_on:
            self._batch_queues.topics.add(topic)
        elif not self._batch_queues.of_topic(topic):
            self._batch_queues.topics.discard(topic)

    def take_halves(self, *, is_on: bool) -> None:
        """Set whether the fast path puts half messages; at first it does not."""
        self._block.takes_halves = is_on

    def take_timers(self, *, is_on: bool) -> None:
        """Set whether the fast path puts messages that wait for the timer; at first it does not."""
        self._block.takes_timers = is_on

    @property
    def puts_wait(self) -> bool:
        """True if a put is acknowledged only by the disk (SYNC_FLUSH) or by slaves."""
        return self._waiting.is_needed

    def begin_wait(self) -> PendingPut | None:
        """Return the pending put of the records that the fast path has just appended.

        Returns:
            As ``begin_put``; None if replies do not wait.
        """
        if not self._waiting.is_needed:
            return None
        last = PutResult(PutStatus.PUT_OK, self.log.written_offset)
        return self._waiting.add(last, self._clock.monotonic_ms())

    def _finish_puts(self, results: list[PutResult]) -> list[PutResult]:
        """Make stored messages durable at once, and set their final statuses."""
        if self.flusher.is_sync:
            try:
                self.flusher.flush_log()
            except WriteFailed:
                self.putter.refusal = self._refusal()
        self._settle()
        # These puts do not need space for queues and index: ``step`` tries again and reports it.
        with contextlib.suppress(WriteFailed):
            self._dispatch()
        flushed_offset, monotonic_ms = self.log.flushed_offset, self._clock.monotonic_ms()
        return [
            self._waiting.judge_now(result, flushed_offset, monotonic_ms)
            if result.status is PutStatus.PUT_OK
            else result
            for result in results
        ]

    # Replication: a master --------------------------------------------------------------------

    @property
    def lacks_replicas(self) -> bool:
        """True if puts that wait are refused: too few brokers are available (minInSyncReplicas)."""
        waiting = self._waiting
        return waiting.may_lack_replicas and waiting.lacks_replicas(
            self.log.written_offset, self._clock.monotonic_ms()
        )

    @property
    def in_sync(self) -> InSyncSet | None:
        """The in-sync set of a master under a controller; None without one."""
        return self._waiting.in_sync

    @property
    def disk(self) -> Disk:
        """The disk of its files."""
        return self._disk

    @property
    def is_open(self) -> bool:
        """False once the store was closed."""
        return self._is_open

    def enter_group(self, in_sync: InSyncSet) -> None:
        """Let puts, dispatch and index obey an in-sync set; before the first put."""
        self._waiting.in_sync = in_sync
        self._go_live()

    def await_confirmation(self) -> None:
        """Dispatch no more, until a master has confirmed that the in-sync set has the records.

        Records that were dispatched when a slave's store was opened must not be consumed before.
        """
        self.confirmed_offset = 0
        self._hidden_end = self.dispatcher.dispatched_offset

    @property
    def has_unconfirmed(self) -> bool:
        """True if records of a slave are dispatched that its master has not confirmed yet."""
        return self._hidden_end > (self.confirmed_offset or 0)

    def replicas_changed(self) -> None:
        """Settle the puts that are safe or late, after slaves have acknowledged or left."""
        self._settle()
        if self._is_dispatch_confirmed:
            with contextlib.suppress(WriteFailed):  # ``step`` tries again and reports it
                self._dispatch()

    @property
    def replication_limit(self) -> int:
        """Physical offset up to which slaves may have the log; see ``haSendAfter``."""
        if self.config.ha_send_after is DurableIn.DISK:
            return self.log.flushed_offset
        return self.log.readable_offset

    def log_view(self, physical_offset: int, size_max: int) -> LogView | None:
        """Return bytes of the log without a copy, to be released; for one thread.

        Args:
            physical_offset: Physical offset of the first byte.
            size_max: Maximum number of bytes.

        Returns:
            Bytes of one log file before ``replication_limit``; None if there are none.
        """
        return self.log.view(physical_offset, size_max, self.replication_limit)

    def log_file(self, physical_offset: int) -> LogPiece | None:
        """Return where bytes of the log are on disk; for slow reads in another thread.

        Returns:
            The rest of one log file before ``replication_limit``; None if there are no bytes. The
            file may be deleted before it is opened.
        """
        return self.log.piece(physical_offset, self.replication_limit)

    # Replication: a slave ---------------------------------------------------------------------

    def records_before(self, physical_offset: int) -> Iterator[tuple[int, bytes]]:
        """Yield physical offset and bytes of the records before an offset, newest first."""
        return self._replica_log.records_before(physical_offset)

    @property
    def replica_log(self) -> ReplicaLog:
        """The log of a slave, for its master's bytes."""
        assert self._is_replica, "only a slave receives its log"
        return self._replica_log

    def _take_bytes(self) -> None:
        """Dispatch bytes that a slave has received."""
        block = self._block
        try:
            for _ in range(_STEPS_AFTER_RECEIVING):
                if not self.dispatcher.step(self._dispatch_limit, self._clock.now_ms()):
                    break
        finally:
            block.log_timestamp = block.last_store_timestamp
            self.dispatcher.notify()

    # Steps ------------------------------------------------------------------------------------

    def sync(self) -> None:
        """Make what was put durable; may run in a worker thread while the writer writes.

        The next ``step`` settles the puts that wait for it.

        Raises:
            WriteFailed: The disk failed, and the store accepts no more puts.
        """
        self.flusher.flush_log()

    def step(self, now_ms: int | None = None) -> bool:
        """Do a bounded part of the background work that is due.

        Flushes, settles pending puts, dispatches, notifies listeners, creates files ahead, and
        deletes expired ones.

        Args:
            now_ms: Current time in ms; by default the clock's.

        Returns:
            True if there was anything to do.

        Raises:
            WriteFailed: The disk failed; also ``DiskFull``. Stored messages stay.
        """
        now_ms = self._clock.now_ms() if now_ms is None else now_ms
        did = True
        try:
            did = self.step_disk()
        finally:
            did = self.step_memory(now_ms) or did  # also for puts that waited for the failed disk
        return did

    def step_disk(self) -> bool:
        """Do the half of ``step`` that waits for the disk; may run in a worker thread.

        Returns:
            True if there was anything to do.

        Raises:
            WriteFailed: As ``step``.
        """
        with self._disk_half:
            if not self._is_open:
                return False
            monotonic_ms = self._clock.monotonic_ms()
            did = self._disk.release_discarded()  # first: it frees space for the next steps
            spares.fill()
            try:
                self.watch.step(monotonic_ms)
                did = (
                    _do_each(
                        lambda: self.retention.step_disk(monotonic_ms),
                        lambda: self.flusher.step_disk(monotonic_ms),
                        self.removals.finish,
                        self.removals.clear,
                        self._tombstones.save_expired,
                        self.log.step_ahead,
                    )
                    or did
                )
            finally:
                # Last, since the steps before may free the space it needs; and always, since queues
                # wait for the files.
                did = self.queues.make_files() or did
            return did

    def step_memory(self, now_ms: int | None = None) -> bool:
        """Do the half of ``step`` that must run in the thread that puts.

        Args:
            now_ms: Current time in ms; by default the clock's.

        Returns:
            True if there was anything to do.

        Raises:
            WriteFailed: As ``step``.
        """
        now_ms = self._clock.now_ms() if now_ms is None else now_ms
        monotonic_ms = self._clock.monotonic_ms()
        attempt = self._queue_writes.attempt
        try:
            return _do_each(
                self._settle,
                lambda: attempt("dispatch", monotonic_ms, self._dispatch),
                lambda: attempt(
                    "files", monotonic_ms, lambda: self.flusher.step_memory(monotonic_ms)
                ),
                lambda: self.retention.step(now_ms, monotonic_ms),
            )
        finally:
            self.putter.refusal = self._refusal()

    def _settle(self) -> list[PendingPut]:
        return self._waiting.settle(
            self.log.flushed_offset,
            self._clock.monotonic_ms(),
            has_failed=self.flusher.failure is not None,
        )

    def end_waiting(self) -> None:
        """Set the results of all pending puts: stored safely, or timed out."""
        self._waiting.settle(self.log.flushed_offset, self._clock.monotonic_ms(), has_failed=True)

    @property
    def _dispatch_limit(self) -> int:
        """Physical offset that dispatch must not pass (known-bugs.md#dispatch-before-flush)."""
        limit = self.log.flushed_offset if self.flusher.is_sync else self.log.readable_offset
        if not self._is_open:
            return limit
        if self._is_dispatch_confirmed:
            assert self.in_sync is not None
            return self.in_sync.confirmed(limit)
        if self.confirmed_offset is not None:
            return min(limit, self.confirmed_offset)
        return limit

    @property
    def _is_dispatch_confirmed(self) -> bool:
        """True if a master's messages are consumed only when its whole in-sync set has them."""
        in_sync = self.in_sync
        return in_sync is not None and in_sync.needs_all

    @property
    def has_more_to_do(self) -> bool:
        """True if the last ``step_memory`` left work that the next one can do at once."""
        return self.dispatcher.can_step(self._dispatch_limit) or self.flusher.can_write_more

    def _go_live(self) -> None:
        """Let puts be dispatched in the same pass, if dispatch is up to date and need not wait."""
        is_allowed = not (
            self.flusher.is_sync
            or self.log.pool is not None
            or self._is_replica
            or self._is_dispatch_confirmed
        )
        lags = self.dispatcher.dispatched_offset < self.log.written_offset
        self._block.is_live = is_allowed and not lags

    def _dispatch(self) -> bool:
        try:
            did = self.dispatcher.step(self._dispatch_limit, self._clock.now_ms())
        finally:
            self.dispatcher.notify()  # also of records before one that has no space
        if did:
            self._go_live()
        return did

    def notify(self) -> None:
        """Notify the listeners of readable messages now, instead of in the next ``step``."""
        self.dispatcher.notify()

    def add_listener(self, listener: Listener) -> None:
        """Notify a listener of new messages once they can be read."""
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
        """Return messages of a queue from a queue offset on; see ``Getter.get``."""
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
        """Return the queue offset after the newest message; see ``Getter.max_offset``."""
        return self._getter.max_offset(topic, queue_id)

    def offset_by_time(
        self, topic: str, queue_id: int, timestamp_ms: int, boundary: Boundary = Boundary.LOWER
    ) -> int:
        """Return the queue offset for a store time; see ``Getter.offset_by_time``."""
        return self._getter.offset_by_time(topic, queue_id, timestamp_ms, boundary)

    def store_time(self, topic: str, queue_id: int, queue_offset: int) -> int | None:
        """Return the store time of a message, in ms; None if the queue does not have it."""
        return self._getter.store_time(topic, queue_id, queue_offset)

    def earliest_message_time(self, topic: str, queue_id: int) -> int | None:
        """Return the store time of a queue's oldest message, in ms; None if it is empty."""
        return self._getter.earliest_message_time(topic, queue_id)

    def lag_bytes(self, topic: str, queue_id: int, consumer_offset: int) -> int:
        """Return a consumer's distance to the end of the log, in bytes; see ``Getter``."""
        return self._getter.lag_bytes(topic, queue_id, consumer_offset)

    def is_on_disk(self, topic: str, queue_id: int) -> bool:
        """Return True if the first message of a queue is probably too old to be in memory."""
        return self.lag_bytes(topic, queue_id, 0) > self.memory_bytes

    def record_at(self, physical_offset: int) -> bytes | None:
        """Return the record at a physical offset; None if there is none."""
        return self._getter.record_at(physical_offset)

    def query(
        self,
        topic: str,
        key: str,
        max_count: int = 32,
        begin_ms: int = 0,
        end_ms: int = END_OF_TIME_MS,
        *,
        is_tags: bool = False,
    ) -> QueryResult:
        """Return the newest messages with a key; see ``Getter.query``."""
        return self._getter.query(topic, key, max_count, begin_ms, end_ms, is_tags=is_tags)

    def query_in_steps(
        self,
        topic: str,
        key: str,
        max_count: int,
        begin_ms: int,
        end_ms: int,
        *,
        is_tags: bool,
        bytes_max: int,
    ) -> Generator[None, None, QueryResult]:
        """Query in steps, between which the store can be used for other things; see ``Getter``."""
        return self._getter.query_in_steps(
            topic, key, max_count, begin_ms, end_ms, is_tags=is_tags, bytes_max=bytes_max
        )

    @property
    def memory_bytes(self) -> int:
        """Distance from the log's end, in bytes, within which messages are probably in memory."""
        return self._block.memory_bytes

    def put_news(self) -> Iterator[tuple[str, int, int]]:
        """Yield the puts since the last call: topic, number of messages, bytes of their records.

        Puts to a topic that was deleted since then are left out. The store may change between two
        items.
        """
        for name, messages, size in self.hot_state.put_news():
            yield java.decode_utf8(name), messages, size

    @property
    def min_physical_offset(self) -> int:
        """Minimum physical offset of the log."""
        return self.log.min_offset

    def last_record(self) -> bytes | None:
        """Return the last record of the log; None if that record is in no queue."""
        physical_offset = self._block.last_physical_offset
        data = self.record_at(physical_offset)
        is_last = data is not None and physical_offset + len(data) == self.log.written_offset
        return data if is_last else None

    @property
    def max_physical_offset(self) -> int:
        """Physical offset after the last record that can be read."""
        return self.log.readable_offset

    def queue_counts(self, since: int = -1) -> dict[str, int]:
        """Return the number of queues that each topic needs: one more than its highest queue id.

        Args:
            since: Physical offset: queues without a message from there on do not count; -1: all do.
        """
        counts: dict[str, int] = {}
        for queue in (*self.queues, *self._batch_queues):
            if queue.end_physical_offset <= since:
                continue
            counts[queue.topic] = max(counts.get(queue.topic, 0), queue.queue_id + 1)
        return counts

    def has_batch_queues(self, topic: str) -> bool:
        """Return True if the queues of a topic are batch queues."""
        return bool(self._batch_queues.of_topic(topic))

    # Deleting ---------------------------------------------------------------------------------

    def delete_topic(self, topic: str) -> int:
        """Delete the queues of a topic; its messages stay in the log until they expire.

        A tombstone keeps these messages out of the queues after a crash, and when the topic is
        created again with queue offsets from 0 (known-bugs.md#deleted-topics). Queries by key still
        find them, as in Java.

        Returns:
            The number of deleted queues.

        Raises:
            WriteFailed: The disk failed. Call it again, or open the store again, to finish.
        """
        removal = self.begin_deletion([topic])
        for _ in self.removals.release(removal) if removal is not None else ():
            pass
        finished = self.removals.finish()  # includes removals that failed before
        while self.removals.clear():
            pass
        return sum(done.count for done in finished)

    def begin_deletion(self, topics: Iterable[str]) -> Removal | None:
        """Remove the queues of topics from the tables; see ``removal`` for the steps that follow.

        Returns:
            The started removal; None if the topics have no queues.

        Raises:
            WriteFailed: The disk failed, and nothing has changed.
        """
        doomed = [
            topic
            for topic in topics
            if self.queues.of_topic(topic) or self._batch_queues.of_topic(topic)
        ]
        if not doomed:
            return None
        if self.dispatcher.dispatched_offset < self.log.written_offset:
            self._catch_up()  # after the tombstone's offset only later puts may follow
        queues = [queue for topic in doomed for queue in self.queues.of_topic(topic).values()]
        batches = [queue for topic in doomed for queue in self._batch_queues.of_topic(topic)]
        self._prepare_release()
        removal = self.removals.begin(doomed, queues, batches, self.log.written_offset)
        _log.info("deleted topics %s: %d queues", ", ".join(doomed), removal.count)
        return removal

    def begin_deletion_before(self, topic: str, physical_offset: int) -> Removal | None:
        """Remove the queues of a topic that have no message at a physical offset or after it.

        On a slave: its master has deleted the topic before that offset of the log.

        Args:
            topic: The topic.
            physical_offset: An offset up to which the log is dispatched.

        Returns:
            As ``begin_deletion``.
        """
        assert physical_offset <= self.dispatcher.dispatched_offset
        plain = self.queues.of_topic(topic).values()
        batches = self._batch_queues.of_topic(topic)
        queues = [queue for queue in plain if queue.end_physical_offset <= physical_offset]
        doomed = [queue for queue in batches if queue.end_physical_offset <= physical_offset]
        if not queues and not doomed:
            return None
        self._prepare_release()
        removal = self.removals.begin([topic], queues, doomed, physical_offset)
        if len(doomed) < len(batches):
            self._batch_queues.topics.add(topic)
        _log.info("deleted topic %s, as the master did: %d queues", topic, removal.count)
        return removal

    def unknown_topics(self, known: Collection[str]) -> list[str]:
        """Return unknown topics with queues, except system topics and light queues.

        Args:
            known: The topics to keep: those of the topic table.
        """
        return [
            topic
            for topic in {*self.queues.topics(), *self._batch_queues.topics}
            if topic not in known
            and not names.is_system_topic(topic)
            and not topic.startswith(names.LMQ_PREFIX)
        ]

    def unused_queues(self) -> list[ConsumeQueue | BatchQueue]:
        """Return queues whose last message has left the log, except those of delayed messages."""
        return [
            queue
            for queue in (*self.queues, *self._batch_queues)
            if queue.topic != names.SCHEDULE_TOPIC and self._is_unused(queue)
        ]

    def _is_unused(self, queue: ConsumeQueue | BatchQueue) -> bool:
        return 0 < queue.end_physical_offset <= self.log.min_offset

    def begin_removal(self, queues: Iterable[ConsumeQueue | BatchQueue]) -> Removal | None:
        """Remove those of the given queues from the tables that are still unused.

        Returns and raises as ``begin_deletion``.
        """
        if self.dispatcher.dispatched_offset < self.log.written_offset:
            self._catch_up()
        plain: list[ConsumeQueue] = []
        batches: list[BatchQueue] = []
        for queue in queues:
            topic, queue_id = queue.topic, queue.queue_id
            if not self._is_unused(queue):
                continue
            if isinstance(queue, BatchQueue) and self._batch_queues.find(topic, queue_id) is queue:
                batches.append(queue)
            elif isinstance(queue, ConsumeQueue) and self.queues.find(topic, queue_id) is queue:
                plain.append(queue)
            else:
                continue  # it was deleted
            _log.info("deleted queue %s/%d: its last message left the log", topic, queue_id)
        if not plain and not batches:
            return None
        self._prepare_release()
        return self.removals.begin([], plain, batches, self.log.written_offset)

    def _catch_up(self) -> None:
        """Dispatch everything that was put."""
        self.flusher.commit()
        if self.flusher.is_sync:  # only durable messages are dispatched
            self.flusher.flush_log()
        self._settle()
        while self._dispatch():
            pass


def _check_writable(disk: Disk, root: str, log_folders: Sequence[str]) -> None:
    """Check the folders of a store. Raises ``WriteFailed`` if files cannot be created in one."""
    derived = [f"{root}/{name}" for name in (paths.CONSUME_QUEUE, paths.INDEX, paths.CONFIG)]
    for folder in [root, *log_folders, *filter(os.path.isdir, derived)]:
        disk.check_writable(folder)


def _do_each(*steps: Callable[[], object]) -> bool:
    """Do all steps; return whether any had something to do, or raise the first ``WriteFailed``."""
    did, failure = False, None
    for step in steps:
        try:
            did = bool(step()) or did
        except WriteFailed as error:
            failure = failure or error
    if failure is not None:
        raise failure
    return did
