"""The reput step: commit log -> consume queues, index, listeners.

While dispatch is up to date (``live``), puts are dispatched in the same pass. Otherwise dispatch
reads the log after the writer: after a crash, and where it must wait for a sync (SYNC_FLUSH: no
reader may see what a crash could take back, known-bugs.md#dispatch-before-flush) or for a commit of
a pool buffer. Both use the same kernels. A kernel stops when something is missing; this module
provides it, and the kernel continues.

Dispatch resumes exactly: a record that is in its queue or in the index already is not added again.
A record with queue offset 0 after all records of its queue begins the queue again: its topic was
deleted and created again (or the queue removed, since all its messages had expired). A slave, and
a rebuild of the queues, learn it from the log alone. Earlier units are dropped, and a tombstone
keeps them away: at the end of the queue, before which every record of the topic is an old one.

Damage in the log is skipped, up to the next valid record whose own offset is right; it is reported
and counted, and no valid record is left out (known-bugs.md#dispatch-skips-a-buffer).
"""

import contextlib
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from reput.errors import WriteFailed
from reput.format import (
    batch as batches,
    cq_unit,
    java,
    message as record,
    names,
    properties as props,
    sys_flag as flags,
)
from reput.format.cq_unit import BatchUnit
from reput.format.kernels import find_record
from reput.format.message import StoredMessage, Verdict
from reput.store.config import StoreConfig
from reput.store.hot_state import HotState
from reput.store.index.index_file import IndexFiles
from reput.store.kernels import control_block as state, hot
from reput.store.log.commit_log import CommitLog
from reput.store.log.mapped_file import MappedFile
from reput.store.queues.batch_queue import BatchQueue, BatchQueues
from reput.store.queues.consume_queue import ConsumeQueue
from reput.store.queues.consume_queues import ConsumeQueues

if TYPE_CHECKING:
    from reput.store.queues.filter_bits import FilterBits

_NOT_COMPACTED = -1
STEP_BYTES = 512 * 1024
"""Maximum bytes of the log that one step reads, approximately."""

_SLOW_WORK_MAX = 64
"""Limit of the work without kernels in one step, in records of ``_SLOW_RECORD_BYTES``: some ms."""
_SLOW_RECORD_BYTES = 1024
_NEW_QUEUE_WORK = 4
"""Work units of creating a queue, in addition to dispatching its record."""

_log = logging.getLogger(__name__)

Listener = Callable[[str, int, int, int], None]
"""Called for new messages: topic, queue id, first queue offset, and the one after the last."""


Kernel = Callable[[MappedFile, int, int, int], None]
"""Dispatches records of a file: the file, and positions as in ``hot.dispatch``."""


@dataclass(frozen=True, slots=True)
class Hole:
    """A range of the log without valid records."""

    physical_offset: int
    length: int
    reason: str


class QueueGap(Exception):
    """A queue lacks the units before one of its records."""

    def __init__(self, queue: ConsumeQueue | BatchQueue, queue_offset: int) -> None:
        self.queue = queue
        self.queue_offset = queue_offset
        super().__init__(f"{queue.topic}/{queue.queue_id} lacks units before {queue_offset}")


class Dispatcher:
    """Adds the records of the log to queues and index, and notifies listeners.

    Args:
        config: Options; they enable index, light queues and extensions.
        hot_state: State shared with kernels.
        log: Source of the records.
        queues: The consume queues.
        batch_queues: The batch queues.
        index: The index files.
        tombstones: Topic -> physical offset at which it was deleted. Its messages before that are
            added to no queue (known-bugs.md#deleted-topics); as in Java, they stay in the index.
    """

    def __init__(
        self,
        config: StoreConfig,
        hot_state: HotState,
        log: CommitLog,
        queues: ConsumeQueues,
        batch_queues: BatchQueues,
        index: IndexFiles,
        tombstones: Mapping[str, int] | None = None,
    ) -> None:
        self._hot = hot_state
        self._block = hot_state.block
        self._commit_log = log
        self._queues = queues
        self._batch_queues = batch_queues
        self._index = index
        self._tombstones = {} if tombstones is None else tombstones
        self._pending_tombstones: list[tuple[int, str]] = []  # ascending
        self._delays = hot_state.set_delays(config.delay_levels_ms)
        self._block.has_light_queues = config.enable_multi_dispatch
        self._is_extending = config.enable_consume_queue_ext
        self.filter_bits: FilterBits | None = None
        """Computes the filter bits of extension units; None if they have none."""
        self.listeners: list[Listener] = []
        self._lacks_keys = False
        self.listener_failures = 0
        self.on_unusable: Callable[[str, Exception], None] = _log_unusable
        """Called with the place of a record that is skipped, and the error."""
        self.on_hole: Callable[[Hole], None] = lambda hole: None
        """Called with each range that is skipped, which is logged, too."""
        self.refilled_units = 0
        """Number of units that replace messages lost from the log."""
        self._is_replica = False
        self.problem = ""
        """Why dispatch of a replica has stopped; empty if it has not."""
        self._awaited = 0  # end of the log at which a replica's dispatch waits for more bytes
        self.exclude: Callable[[str, int], None] = lambda topic, physical_offset: None
        """Called to set a tombstone durably; raises ``WriteFailed``."""
        self.on_begun_again: Callable[[str, Sequence[int]], None] = lambda topic, queue_ids: None
        """Called with a topic, and the ids of its queues that have begun again."""
        self.is_strict = False
        """True to raise ``QueueGap`` where a queue lacks units, instead of filling the gap."""
        self.step_bytes = STEP_BYTES
        """Maximum bytes of the log that one step reads, approximately."""
        self.kernel: Kernel = self.scan
        """Dispatches records of a file; ``rebuild`` replaces it during a recovery."""

    @property
    def is_replica(self) -> bool:
        """True if the log is received from a master.

        Its end may be inside a record, for which dispatch waits. Records that the master lost a
        part of in a power failure are skipped, as by the master; any other damage stops dispatch.
        """
        return self._is_replica

    @is_replica.setter
    def is_replica(self, value: bool) -> None:
        self._is_replica = value
        self.checks_content = value

    @property
    def checks_content(self) -> bool:
        """True to skip records that lost a part; else only lengths and offsets are checked."""
        return bool(self._block.checks_content)

    @checks_content.setter
    def checks_content(self, value: bool) -> None:
        self._block.checks_content = value

    @property
    def dispatched_offset(self) -> int:
        """Physical offset after the last dispatched record."""
        return self._block.dispatched

    def go_to(self, physical_offset: int) -> None:
        """Continue dispatch at a physical offset, after all existing queues are loaded.

        Kernels do not check tombstones. A topic that was created again falls back to
        ``put_slowly`` until dispatch has passed its tombstone.
        """
        self._block.dispatched = physical_offset
        self._awaited = 0
        self._pending_tombstones = sorted(
            (tombstone, topic)
            for topic, tombstone in self._tombstones.items()
            if tombstone > physical_offset
        )
        for topic in self._tombstones:
            self._hot.set_slow(java.encode_utf8(topic), is_slow=False)
        for _, topic in self._pending_tombstones:
            self._hot.set_slow(java.encode_utf8(topic), is_slow=True)

    @contextlib.contextmanager
    def deferring_failures(self, physical_offset: int) -> Iterator[None]:
        """Dispatch a record of the log; if there is no space for it, leave it to ``step``.

        Later puts are left to ``step`` too, until it has reached the end of the log.
        """
        try:
            yield
        except WriteFailed as error:
            _log.error("dispatch waits at physical offset %d: %s", physical_offset, error)
            self._leave_to_step(physical_offset)
        except Exception as error:  # noqa: BLE001 - the put is done; ``step`` reports the error
            _log.warning("dispatch retries at physical offset %d: %r", physical_offset, error)
            self._leave_to_step(physical_offset)

    def _leave_to_step(self, physical_offset: int) -> None:
        self._block.is_live = 0
        self._block.dispatched = min(physical_offset, self.dispatched_offset)

    def _pass_tombstones(self) -> None:
        while self._pending_tombstones and self._pending_tombstones[0][0] <= self.dispatched_offset:
            _, topic = self._pending_tombstones.pop(0)
            self._hot.set_slow(java.encode_utf8(topic), is_slow=False)

    # Steps ------------------------------------------------------------------------------------

    def can_step(self, limit: int) -> bool:
        """Return True if there is something before ``limit`` to be dispatched now."""
        is_stuck = self.is_replica and (bool(self.problem) or limit <= self._awaited)
        return self.dispatched_offset < limit and not is_stuck

    def step(self, limit: int, now_ms: int) -> bool:
        """Dispatch some records between ``dispatched_offset`` and ``limit``.

        Returns:
            True if there were any.

        Raises:
            DiskFull: There is no space for a queue or the index. Nothing is lost; call it again.
            QueueGap: See ``is_strict``.
        """
        start = self.dispatched_offset
        if not self.can_step(limit):
            return False
        if self._lacks_keys:
            self.finish_keys(now_ms)
            self._lacks_keys = False
        file = self._commit_log.files.file_at(start)
        if file is None or not file.hold():
            self._skip_gap(start, limit)
            self._pass_tombstones()
            return True
        stop = min(
            [
                limit,
                start + self.step_bytes,
                *(tombstone for tombstone, _ in self._pending_tombstones[:1]),
            ]
        )
        try:
            self._dispatch_file(file, stop, limit, now_ms)
        finally:
            file.release()
        self._pass_tombstones()
        return True

    def _skip_gap(self, start: int, limit: int) -> None:
        following = [file.start for file in self._commit_log.files.files if file.start > start]
        end = min([limit, *following])
        if start >= self._commit_log.min_offset:
            self._report(Hole(start, end - start, record.REASONS[Verdict.MISSING]))
        self._block.dispatched = end

    def _dispatch_file(self, file: MappedFile, stop: int, limit: int, now_ms: int) -> None:
        block = self._block
        end = min(limit, file.end) - file.start
        # Of a replica's blank, the head can be there and the rest not: it must not match the file.
        is_cut = self.is_replica and end < file.size
        file_end = file.size + 1 if is_cut else file.size
        block.input_position = self.dispatched_offset - file.start
        slow_work = 0
        while block.input_position < min(stop - file.start, end):
            if slow_work > _SLOW_WORK_MAX:
                break  # the next step continues: requests are served in between
            self.kernel(file, min(stop - file.start, end), end, file_end)
            reason = block.stop
            position = block.input_position
            if reason == state.STOP_DONE:
                break
            if reason == state.STOP_TORN:
                block.input_position = self._skip_torn(file, position, end)
                continue
            if self.is_replica and reason in (state.STOP_DAMAGE, state.STOP_PART):
                self._stop_at(file, position, end)
                break
            if reason in (state.STOP_DAMAGE, state.STOP_PART):
                block.input_position = self._skip_damage(file, position, end)
            elif reason == state.STOP_LIGHT:
                address = block.stop_row
                slow_work += 1
                with self._skipping_unusable(file.start + address - file.address):
                    self.put_light_units(self._record_at(address))
            else:
                data = hot.bytes_of_record(file.address + position)
                slow_work += 1 + len(data) // _SLOW_RECORD_BYTES
                if reason in (state.STOP_TOPIC, state.STOP_QUEUE):
                    slow_work += _NEW_QUEUE_WORK
                elif reason == state.STOP_BEGUN:
                    slow_work += _SLOW_WORK_MAX  # it waits for the disk
                can_continue = False
                with self._skipping_unusable(file.start + position):
                    can_continue = self._dispatch_record(reason, data, now_ms)
                if not can_continue:
                    block.input_position = position + len(data)
        block.dispatched = file.start + block.input_position

    def _dispatch_record(self, reason: int, data: bytes, now_ms: int) -> bool:
        """Provide what a kernel stopped for; return whether it can continue with the record."""
        if not self._is_deleted_record(data) and self.provide(reason, data, now_ms):
            return True
        self._dispatch_slowly(data, now_ms)
        return False

    @contextlib.contextmanager
    def _skipping_unusable(self, physical_offset: int) -> Iterator[None]:
        """Report a record that cannot be dispatched, and skip it: later records must not wait."""
        try:
            yield
        except (WriteFailed, QueueGap, OSError, MemoryError):
            raise  # not the record's fault; dispatch tries again
        except Exception as error:  # noqa: BLE001 - clients determine the content of a record
            self.on_unusable(f"physical offset {physical_offset}", error)

    def scan(self, file: MappedFile, stop: int, end: int, file_end: int) -> None:
        """Dispatch records from ``input_position`` on, with the arguments of ``hot.dispatch``."""
        hot.dispatch(self._hot.address, file.address, stop, end, file_end, file.start)

    def find_unqueued(self, begin: int) -> tuple[int, StoredMessage | None]:
        """Find the first record of the log whose queue does not exist yet, from a record on.

        Args:
            begin: Physical offset of a record.

        Returns:
            Its physical offset and the record; where the whole records end, and None, if there is
            no such record.
        """
        log = self._commit_log
        while begin < log.written_offset:
            file = log.files.file_at(begin)
            if file is None or not file.hold():
                break
            try:
                end = min(log.written_offset, file.end) - file.start
                # As in ``_dispatch_file``: of a blank, the head can be there and the rest not.
                file_end = file.size + (end < file.size)
                position = hot.find_unqueued(
                    self._hot.address, file.address, begin - file.start, end, file_end, file.start
                )
                begin = file.start + position
                if position == end:
                    continue
                verdict, size = record.classify(
                    file.view(position, end),
                    0,
                    begin,
                    file_end=file_end - position,
                    check_crc=False,
                )
                if verdict is Verdict.MESSAGE:
                    return begin, self._record_at(file.address + position)
                if verdict is not Verdict.BLANK:
                    break
                begin += size
            finally:
                file.release()
        return begin, None

    def _skip_damage(self, file: MappedFile, position: int, end: int) -> int:
        view = hot.view_at(file.address, end)
        next_position = find_record(
            view, position + 1, physical_offset=file.start, file_end=file.size
        )
        length = next_position - position
        hole = Hole(file.start + position, length, "not a record, or one of another offset")
        self._report(hole)
        return next_position

    def _skip_torn(self, file: MappedFile, position: int, end: int) -> int:
        """Report a record that lost a part; return the position after it."""
        physical_offset = file.start + position
        verdict, size = record.classify(
            file.view(position, end), 0, physical_offset, file_end=file.size - position
        )
        if verdict is Verdict.MESSAGE:
            verdict = Verdict.TRUNCATED
        self._report(Hole(physical_offset, size, record.REASONS[verdict]))
        return position + size

    def _stop_at(self, file: MappedFile, position: int, end: int) -> None:
        """Wait for the rest of the record at a position, or stop if it cannot be a record."""
        physical_offset = file.start + position
        verdict, _ = record.classify(
            file.view(position, end),
            0,
            physical_offset,
            file_end=file.size - position,
            check_crc=False,
        )
        if verdict is Verdict.TRUNCATED or (verdict is Verdict.BLANK and end < file.size):
            self._awaited = file.start + end
            return
        reason = record.REASONS.get(verdict, "zeros where records should be")
        self.problem = f"the log has no record at physical offset {physical_offset}: {reason}"
        _log.error("%s; dispatch stops there", self.problem)

    def _report(self, hole: Hole) -> None:
        self.on_hole(hole)
        _log.error(
            "the log is damaged at physical offset %d: %d bytes are no records (%s); "
            "dispatch continues after them",
            hole.physical_offset,
            hole.length,
            hole.reason,
        )

    def _record_at(self, address: int) -> StoredMessage:
        return record.decode(hot.bytes_of_record(address), check_crc=False)

    def notify(self) -> None:
        """Notify the listeners of messages that were dispatched since the last call."""
        for address in self._hot.take_touched_rows():
            queue = self._queues.at(address)
            row = queue.row
            row.marks &= ~state.MARK_TOUCHED
            first, row.notified_offset = (
                row.notified_offset,
                queue.max_offset,
            )
            if first != queue.max_offset:  # equal after a recovery, whose messages are old
                self._notify_listeners(queue, first)
        for batch_queue, first in self._batch_queues.take_news():
            self._notify_listeners(batch_queue, first)

    def _notify_listeners(self, queue: ConsumeQueue | BatchQueue, first: int) -> None:
        for listener in self.listeners:
            try:
                listener(queue.topic, queue.queue_id, first, queue.max_offset)
            except Exception:  # noqa: BLE001 - any error is the listener's
                # Other listeners are notified, and dispatch continues
                # (known-bugs.md#silent-threads).
                self.listener_failures += 1
                _log.exception("a listener failed on %s/%d", queue.topic, queue.queue_id)

    def _is_deleted(self, topic: str, message: StoredMessage) -> bool:
        """Return True if a message is from before the deletion of a topic."""
        return message.physical_offset < self._tombstones.get(topic, 0)

    def _is_deleted_record(self, data: bytes) -> bool:
        if not self._tombstones:
            return False
        message = record.decode(data, check_crc=False)
        return self._is_deleted(message.topic, message)

    def why_no_queue(self, topic: str, queue_id: int, sys_flag: int) -> str:
        """Return the reason why a message can be in no queue; empty if it can be in one."""
        if not names.is_folder_name(topic) or not 0 <= queue_id <= names.QUEUE_ID_MAX:
            return f"there is no queue {queue_id} of topic {topic[:300]!r}"  # damaged, or forged
        if self._is_for_batches(topic, sys_flag) and self._queues.of_topic(topic):
            return f"topic {topic!r} has plain queues, which contain no whole batches"
        return ""

    def _is_for_batches(self, topic: str, sys_flag: int) -> bool:
        """Return True if a message belongs to a batch queue; a topic has one kind of queue."""
        return bool(sys_flag & flags.INNER_BATCH) or topic in self._batch_queues.topics

    # Work that kernels stop for ----------------------------------------------------------------

    def provide(self, reason: int, data: bytes, now_ms: int) -> bool:
        """Provide what a kernel stopped for before a record.

        Returns:
            True if the kernel can continue; if not, the record requires ``put_slowly``.

        Raises:
            DiskFull: There is no space.
            QueueGap: See ``is_strict``.
        """
        if reason == state.STOP_UNITS:
            self._queues.at(self._block.stop_row).make_room()
            return True
        if reason in (state.STOP_TOPIC, state.STOP_QUEUE):
            return not self.make_queue(data)
        if reason == state.STOP_INDEX:
            keys = self._keys(record.decode(data, check_crc=False))
            return self._index.make_room(len(keys), now_ms)
        if reason == state.STOP_GAP:
            return self._fill_gap(record.decode(data, check_crc=False))
        if reason == state.STOP_BEGUN:
            message = record.decode(data, check_crc=False)
            self._begin_again(message.topic, message.queue_id)
            return True
        assert reason == state.STOP_SLOW, f"stopped for {reason}"
        return False

    def make_queue(self, data: bytes) -> str:
        """Create the queue of a record; return the reason if that is impossible, else nothing."""
        topic, queue_id, sys_flag = record.topic_and_queue(data)
        why_not = self.why_no_queue(topic, queue_id, sys_flag)
        if why_not:
            return why_not
        if self._is_for_batches(topic, sys_flag):
            self._batch_queues.make(topic, queue_id)
        else:
            self._queues.make(topic, queue_id).make_room()  # else the kernel would stop again
        return ""

    def _keys(self, message: StoredMessage) -> list[str]:
        return record.index_keys(message, has_tags=bool(self._block.index_has_tags))

    def _is_possible(self, queue: ConsumeQueue, queue_offset: int, message: StoredMessage) -> bool:
        """Return True if the missing units fit between the end of a queue and one of its records.

        No checksum covers a queue offset; a damaged one must not fill the disk.
        """
        byte_count = message.physical_offset - queue.end_physical_offset
        offset_max = queue.max_offset + byte_count // record.FIXED_BYTES_V1
        if queue_offset <= (cq_unit.QUEUE_OFFSET_MAX if queue.is_fresh else offset_max):
            return True
        _log.error(
            "the record at physical offset %d has queue offset %d, but its queue %s/%d has %d "
            "messages: it is in no queue",
            message.physical_offset,
            queue_offset,
            queue.topic,
            queue.queue_id,
            queue.max_offset,
        )
        return False

    def _fill_gap(self, message: StoredMessage) -> bool:
        """Extend a queue up to the message before a record; return False if that is impossible."""
        queue = self._queues.make(message.topic, message.queue_id)
        if not self._is_possible(queue, message.queue_offset, message):
            return False
        if self.is_strict:
            raise QueueGap(queue, message.queue_offset)
        if not queue.is_fresh and queue.end_physical_offset <= self._commit_log.min_offset:
            # The log has lost the messages before the gap, and those in it.
            queue.reset()
        if queue.is_fresh:
            self._start(queue, message.queue_offset)
            if queue.max_offset == message.queue_offset:
                return True
        # Java reads every unit as a message. A unit that repeats the next one is read twice, which
        # every consumer must tolerate; any other filler would end, or break, a pull.
        missing = message.queue_offset - queue.max_offset
        _log.error(
            "queue %s/%d: %d messages before queue offset %d are lost",
            queue.topic,
            queue.queue_id,
            missing,
            message.queue_offset,
        )
        filler = cq_unit.Unit(message.physical_offset, message.store_size, self._tags_code(message))
        for _ in range(missing):
            queue.append(filler)
        self.refilled_units += missing
        return True

    @staticmethod
    def _is_first_again(
        message: StoredMessage, queue_offset: int, queue: ConsumeQueue | BatchQueue
    ) -> bool:
        """Return True if a record is the first of its queue, which has units of earlier ones."""
        is_new = message.physical_offset >= queue.end_physical_offset
        return queue_offset == 0 < queue.max_offset and is_new

    def _begin_again(self, topic: str, queue_id: int) -> None:
        """Drop the units of a queue, and of those of its topic that end before it."""
        queues: list[ConsumeQueue | BatchQueue] = [*self._queues.of_topic(topic).values()]
        queues += self._batch_queues.of_topic(topic)
        end = next(queue.end_physical_offset for queue in queues if queue.queue_id == queue_id)
        if end > self._tombstones.get(topic, 0):
            self.exclude(topic, end)
        old = [queue for queue in queues if queue.max_offset and queue.end_physical_offset <= end]
        for queue in old:
            _log.warning(
                "queue %s/%d begins again at queue offset 0: its topic was deleted, or the "
                "queue; it had %d messages",
                topic,
                queue.queue_id,
                queue.max_offset - queue.min_offset,
            )
            queue.reset()
        self.on_begun_again(topic, [queue.queue_id for queue in old])

    def _start(self, queue: ConsumeQueue, queue_offset: int) -> None:
        """Set the first offset of a fresh queue: that of a message, or of a file's start.

        The file has blanks before the first unit, which point at physical offset 0. Java takes them
        for expired if the log begins above 0. If it begins at 0, a restarted Java broker reads the
        queue from the blanks on, and skips the queue's messages in the log's first file. So then
        the queue starts where the file does.
        """
        if not self._commit_log.min_offset:
            queue_offset -= queue_offset % (self._queues.file_size // cq_unit.SIZE)
        queue.start_at(queue_offset)

    def _dispatch_slowly(self, data: bytes, now_ms: int) -> None:
        message = record.decode(data, check_crc=False)
        is_wanted = flags.is_queued(message.sys_flag) and not self._is_deleted(
            message.topic, message
        )
        reason = self.why_no_queue(message.topic, message.queue_id, message.sys_flag)
        if is_wanted and reason:
            _log.error("the record at %d is in no queue: %s", message.physical_offset, reason)
        elif is_wanted and not self._is_for_batches(message.topic, message.sys_flag):
            queue = self._queues.make(message.topic, message.queue_id)
            if message.queue_offset > queue.max_offset:
                self._fill_gap(message)
            elif self._is_first_again(message, message.queue_offset, queue):
                self._begin_again(message.topic, message.queue_id)
        self.put_slowly(message, now_ms)

    def put_slowly(self, message: StoredMessage, now_ms: int) -> None:
        """Dispatch a record without kernels.

        Raises:
            DiskFull: There is no space for it; it can be tried again.
        """
        is_rolled_back = flags.transaction_type(message.sys_flag) == flags.TRANSACTION_ROLLBACK
        if self._block.index_is_on and not is_rolled_back:
            self._put_keys(message, now_ms)
        if flags.is_queued(message.sys_flag):
            self._put_unit(message)
            if self._block.has_light_queues:
                self.put_light_units(message)
        self._block.last_physical_offset = message.physical_offset
        self._block.last_store_timestamp = message.store_timestamp
        self._block.dispatched = message.physical_offset + message.store_size

    def _put_unit(self, message: StoredMessage) -> None:
        if self._is_deleted(message.topic, message):
            return
        if self._is_for_batches(message.topic, message.sys_flag):
            self._put_batch_unit(message)
            return
        queue = self._queues.find(message.topic, message.queue_id)
        if queue is not None and queue.max_offset == message.queue_offset:
            queue.make_room()
            code = self._extended(queue, message, self._tags_code(message))
            queue.append(cq_unit.Unit(message.physical_offset, message.store_size, code))

    def _put_batch_unit(self, message: StoredMessage) -> None:
        if self.why_no_queue(message.topic, message.queue_id, message.sys_flag):
            return
        base, count = batch_offsets(message)
        queue = self._batch_queues.make(message.topic, message.queue_id)
        if message.physical_offset < queue.end_physical_offset:
            return  # it was added before
        if count and self._is_first_again(message, base, queue):
            self._begin_again(message.topic, message.queue_id)
        if not count or base < queue.max_offset or base > cq_unit.QUEUE_OFFSET_MAX:
            _log.error(
                "the batch at physical offset %d has %s messages from queue offset %s on, but its "
                "queue %s/%d has %d: it is in no queue",
                message.physical_offset,
                message.properties.get(props.INNER_NUM),
                message.properties.get(props.INNER_BASE),
                message.topic,
                message.queue_id,
                queue.max_offset,
            )
            return
        if base > queue.max_offset and self.is_strict:
            raise QueueGap(queue, base)
        queue.put(
            BatchUnit(
                message.physical_offset,
                message.store_size,
                self._tags_code(message),
                message.store_timestamp,
                base,
                count,
                _NOT_COMPACTED,
            )
        )

    def _put_keys(self, message: StoredMessage, now_ms: int) -> None:
        keys = self._keys(message)
        end = self._index.end_physical_offset
        if message.physical_offset < end:
            return
        if message.physical_offset == end:
            # A crash or a full disk came between its entries.
            keys = keys[self._index.entries_of_last_record() :]
        self._lacks_keys = True  # if it fails: kernels index all keys of a record, or none
        self._index.put(keys, message.physical_offset, message.store_timestamp, now_ms)
        self._lacks_keys = False

    def finish_keys(self, now_ms: int) -> None:
        """Add the missing index entries of the last indexed record: a crash may have lost some.

        Raises:
            DiskFull: There is no space.
        """
        last = self._index.end_physical_offset
        data = self._commit_log.record(last) if last >= 0 else None
        if data is not None and self._block.index_is_on:
            self._put_keys(record.decode(data, check_crc=False), now_ms)

    def _extended(self, queue: ConsumeQueue, message: StoredMessage, tags_code: int) -> int:
        """Add the extension unit of a record; return its address, else the tags code."""
        if queue.extension is None or not self._is_extending:
            return tags_code
        bits = b""
        if self.filter_bits is not None:
            bits = self.filter_bits.of(message.topic, message.properties)
        size = cq_unit.EXT_HEAD.size + len(bits)
        return queue.extension.put(cq_unit.ExtUnit(size, tags_code, message.store_timestamp, bits))

    def _tags_code(self, message: StoredMessage) -> int:
        delay = message.properties.get(props.DELAY, "")
        level = props.number(delay) if message.topic == names.SCHEDULE_TOPIC else None
        if level:
            return message.store_timestamp + self._delays.get(level, 1000)
        return cq_unit.tags_code(message.tags)

    def put_light_units(self, message: StoredMessage) -> None:
        """Add the units of a record to the light queues that it names.

        Raises:
            DiskFull: There is no space; it can be tried again.
        """
        if message.topic.startswith(names.RETRY_PREFIX):
            return
        code = self._tags_code(message)
        for topic, queue_id, queue_offset in light_queues_of(message):
            if self._is_deleted(topic, message):
                continue
            queue = self._queues.make(topic, queue_id)
            if not self._is_possible(queue, queue_offset, message):
                continue
            if queue.is_fresh and queue_offset:
                self._start(queue, queue_offset)
            if queue_offset == queue.max_offset:
                queue.append(cq_unit.Unit(message.physical_offset, message.store_size, code))
            elif queue_offset > queue.max_offset:
                _log.error(
                    "light queue %s lacks units before %d: the log has lost messages",
                    topic,
                    queue_offset,
                )
                filler = cq_unit.Unit(message.physical_offset, message.store_size, code)
                while queue.max_offset <= queue_offset:
                    queue.append(filler)


def _log_unusable(record_name: str, error: Exception) -> None:
    _log.error("the record at %s is skipped: %r", record_name, error)


def batch_offsets(message: StoredMessage) -> tuple[int, int]:
    """Return the first queue offset of a batch and its number of messages; 0 if unknown.

    A message that is no batch counts as a batch of one message, as in Java.
    """
    if not message.sys_flag & flags.INNER_BATCH:
        return message.queue_offset, 1
    base = props.number(message.properties.get(props.INNER_BASE))
    count = props.number(message.properties.get(props.INNER_NUM))
    if base is None or count is None:
        return 0, 0
    return base, count if count <= batches.COUNT_MAX else 0


def light_queues_of(message: StoredMessage) -> list[tuple[str, int, int]]:
    """Return (topic, queue id, queue offset) of the other queues of a record."""
    topic_list = message.properties.get(props.INNER_MULTI_DISPATCH, "")
    offsets = message.properties.get(props.INNER_MULTI_QUEUE_OFFSET, "")
    if not topic_list or not offsets:
        return []
    topics = topic_list.split(props.LMQ_SEPARATOR)
    numbers = [props.number(text) for text in offsets.split(props.LMQ_SEPARATOR)]
    are_folders = all(map(names.is_folder_name, topics))
    if len(topics) != len(numbers) or None in numbers or not are_folders:
        _log.warning(
            "the message at physical offset %d names queues %r with offsets %r; it is in its own "
            "queue only",
            message.physical_offset,
            topic_list[:300],
            offsets[:300],
        )
        return []
    return [
        (topic, 0 if topic.startswith(names.LMQ_PREFIX) else message.queue_id, number)
        for topic, number in zip(topics, numbers, strict=True)
        if number is not None
    ]
