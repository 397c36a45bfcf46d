"""The reput step: commit log -> consume queues, index, listeners.

While a store is in step, what is put is dispatched in the same pass (``live``). Where dispatch must
wait, for a sync (SYNC_FLUSH: nobody may read what a crash could take back,
known-bugs.md#dispatch-before-flush) or for a commit of a pool buffer, and after a crash, it reads
the log behind the writer. Both use the same kernels, which stop for whatever is missing; this
module provides it and lets them go on.

It resumes exactly: a record whose queue or index has it already is not put again. Damage in the
log is stepped over, to the next record that says of itself that it stands there; it is reported and
counted, and no valid record is left out (known-bugs.md#dispatch-skips-a-buffer).
"""

import contextlib
import logging
from collections import deque
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
from reput.store.batch_queue import BatchQueue, BatchQueues
from reput.store.commit_log import CommitLog
from reput.store.commit_log_view import Damage
from reput.store.config import StoreConfig
from reput.store.consume_queue import ConsumeQueue, ConsumeQueues
from reput.store.hot_state import HotState
from reput.store.index_file import IndexFiles
from reput.store.kernels import control_block as state, hot
from reput.store.mapped_file import MappedFile

if TYPE_CHECKING:
    from reput.store.filter_bits import FilterBits

_NOT_COMPACTED = -1
STEP_BYTES = 512 * 1024
"""One step reads at most about this much of the log."""

_SLOW_WORK_MAX = 64
"""What kernels leave to Python in one step, in records of ``_SLOW_RECORD_BYTES``: some ms."""
_SLOW_RECORD_BYTES = 1024
_NEW_QUEUE_WORK = 4
"""What a new queue costs beside the record that makes it."""

_log = logging.getLogger(__name__)

Listener = Callable[[str, int, int, int], None]
"""Told of new messages: topic, queue id, queue offset of the first and behind the last."""


@dataclass(frozen=True, slots=True)
class Hole:
    """A run of the log that holds no records where records should be."""

    physical_offset: int
    length: int
    reason: str


class QueueGap(Exception):
    """A record's queue lacks the units before it."""

    def __init__(self, queue: ConsumeQueue | BatchQueue, queue_offset: int) -> None:
        self.queue = queue
        self.queue_offset = queue_offset
        super().__init__(f"{queue.topic}/{queue.queue_id} lacks units before {queue_offset}")


class Dispatcher:
    """Feeds queues, index and listeners from the log.

    Args:
        config: Which of them there are.
        hot_state: Where the kernels look.
        log: What is read.
        queues: What is fed.
        batch_queues: What is fed.
        index: What is fed.
        tombstones: Topic to the physical offset before which its messages get into no queue, as it
            was deleted there (known-bugs.md#deleted-topics). They stay in the index, as in Java.
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
        self._ahead: list[tuple[int, str]] = []  # tombstones that dispatch has not come to
        self._delays = hot_state.set_delays(config.delay_levels_ms)
        self._block[state.HAS_LIGHT_QUEUES] = config.enable_multi_dispatch
        self._is_extending = config.enable_consume_queue_ext
        self.filter_bits: FilterBits | None = None
        """What computes the filter bits of extension units, if any are wanted."""
        self.listeners: list[Listener] = []
        self._torn: deque[Damage] = deque()
        self._lacks_keys = False
        self.listener_failures = 0
        self.on_unusable: Callable[[str, Exception], None] = _log_unusable
        """Told of a record whose queues or keys cannot be made, and why; it is passed over."""
        self.holes: list[Hole] = []
        """What was stepped over since the store was opened."""
        self.refilled_units = 0
        """Units that stand for messages the log has lost."""
        self.is_strict = False
        """Raise ``QueueGap`` where a queue lacks units, instead of filling the gap."""

    @property
    def dispatched_offset(self) -> int:
        """Physical offset behind the last dispatched record."""
        return self._block[state.DISPATCHED]

    def go_to(self, physical_offset: int, torn: Sequence[Damage] = ()) -> None:
        """Dispatch from here on, once the queues that there are have been found.

        ``torn`` are records to be left out: kernels look at no checksum.

        Kernels know no tombstones: until dispatch has come to that of a topic which was made anew,
        the topic is Python's.
        """
        self._block[state.DISPATCHED] = physical_offset
        self._torn = deque(torn)
        self._ahead = sorted(
            (tombstone, topic)
            for topic, tombstone in self._tombstones.items()
            if tombstone > physical_offset
        )
        for topic in self._tombstones:
            self._hot.set_slow(java.encode_utf8(topic), is_slow=False)
        for _, topic in self._ahead:
            self._hot.set_slow(java.encode_utf8(topic), is_slow=True)

    @contextlib.contextmanager
    def falling_behind(self, physical_offset: int) -> Iterator[None]:
        """Dispatch a record that is in the log; where there is no room for it, let it wait.

        What is put from then on waits too, until ``step`` has come to the end of the log.
        """
        try:
            yield
        except WriteFailed as error:
            _log.error("dispatch waits at physical offset %d: %s", physical_offset, error)
            self._fall_behind(physical_offset)
        except Exception as error:  # noqa: BLE001 - the put is done; ``step`` says what is wrong
            _log.warning("dispatch comes back to physical offset %d: %r", physical_offset, error)
            self._fall_behind(physical_offset)

    def _fall_behind(self, physical_offset: int) -> None:
        self._block[state.IS_LIVE] = 0
        self._block[state.DISPATCHED] = min(physical_offset, self.dispatched_offset)

    def _pass_tombstones(self) -> None:
        while self._ahead and self._ahead[0][0] <= self.dispatched_offset:
            _, topic = self._ahead.pop(0)
            self._hot.set_slow(java.encode_utf8(topic), is_slow=False)

    # Steps ------------------------------------------------------------------------------------

    def step(self, limit: int, now_ms: int) -> bool:
        """Dispatch some of what stands between ``dispatched_offset`` and ``limit``.

        Returns:
            Whether there was anything.

        Raises:
            DiskFull: A queue or the index has no room; nothing is lost, call again.
            QueueGap: See ``is_strict``.
        """
        start = self.dispatched_offset
        if start >= limit:
            return False
        if self._lacks_keys:
            self.finish_keys(now_ms)
            self._lacks_keys = False
        while self._torn and self._torn[0].end <= start:
            self._torn.popleft()
        if self._torn and self._torn[0].physical_offset <= start:
            torn = self._torn[0]
            self._report(Hole(torn.physical_offset, torn.length, torn.reason))
            self._block[state.DISPATCHED] = torn.end
            return True
        file = self._commit_log.files.file_at(start)
        if file is None or not file.hold():
            self._step_over_gap(start, limit)
            self._pass_tombstones()
            return True
        stop = min([limit, start + STEP_BYTES, *(tombstone for tombstone, _ in self._ahead[:1])])
        if self._torn:
            stop = min(stop, self._torn[0].physical_offset)
        try:
            self._dispatch_file(file, stop, limit, now_ms)
        finally:
            file.release()
        self._pass_tombstones()
        return True

    def _step_over_gap(self, start: int, limit: int) -> None:
        following = [one.start for one in self._commit_log.files.files if one.start > start]
        end = min([limit, *following])
        if start >= self._commit_log.min_offset:
            self._report(Hole(start, end - start, record.REASONS[Verdict.MISSING]))
        self._block[state.DISPATCHED] = end

    def _dispatch_file(self, file: MappedFile, stop: int, limit: int, now_ms: int) -> None:
        block = self._block
        end = min(limit, file.end) - file.start
        block[state.INPUT_POSITION] = self.dispatched_offset - file.start
        slow_work = 0
        while block[state.INPUT_POSITION] < min(stop - file.start, end):
            if slow_work > _SLOW_WORK_MAX:
                break  # the rest with the next step: others have their turn in between
            hot.dispatch(
                self._hot.address,
                file.address,
                min(stop - file.start, end),
                end,
                file.size,
                file.start,
            )
            reason = block[state.STOP]
            at = block[state.INPUT_POSITION]
            if reason == state.STOP_DONE:
                break
            if reason in (state.STOP_DAMAGE, state.STOP_PART):
                block[state.INPUT_POSITION] = self._step_over_damage(file, at, end)
            elif reason == state.STOP_LIGHT:
                address = block[state.STOP_ROW]
                slow_work += 1
                with self._passing_over(file.start + address - file.address):
                    self.put_light_units(self._record_at(address))
            else:
                data = hot.bytes_of_record(file.address + at)
                slow_work += 1 + len(data) // _SLOW_RECORD_BYTES
                if reason in (state.STOP_TOPIC, state.STOP_QUEUE):
                    slow_work += _NEW_QUEUE_WORK
                can_go_on = False
                with self._passing_over(file.start + at):
                    can_go_on = self._dispatch_one(reason, data, now_ms)
                if not can_go_on:
                    block[state.INPUT_POSITION] = at + len(data)
        block[state.DISPATCHED] = file.start + block[state.INPUT_POSITION]

    def _dispatch_one(self, reason: int, data: bytes, now_ms: int) -> bool:
        """Do what a kernel stopped for; return whether it can go on with the same record."""
        if not self._is_buried_record(data) and self.provide(reason, data, now_ms):
            return True
        self._dispatch_slowly(data, now_ms)
        return False

    @contextlib.contextmanager
    def _passing_over(self, physical_offset: int) -> Iterator[None]:
        """Report a record that cannot be dispatched: those behind it must not wait for it."""
        try:
            yield
        except (WriteFailed, QueueGap, OSError, MemoryError):
            raise  # not the record's fault: it is tried again
        except Exception as error:  # noqa: BLE001 - clients decide what is in a record
            self.on_unusable(f"physical offset {physical_offset}", error)

    def _step_over_damage(self, file: MappedFile, position: int, end: int) -> int:
        view = hot.view_at(file.address, end)
        behind = find_record(view, position + 1, physical_offset=file.start, file_end=file.size)
        hole = Hole(
            file.start + position, behind - position, "not a record, or one that stands elsewhere"
        )
        self._report(hole)
        return behind

    def _report(self, hole: Hole) -> None:
        self.holes.append(hole)
        _log.error(
            "the log is damaged at physical offset %d: %d bytes are no records (%s); "
            "dispatch goes on behind them",
            hole.physical_offset,
            hole.length,
            hole.reason,
        )

    def _record_at(self, address: int) -> StoredMessage:
        return record.decode(hot.bytes_of_record(address), check_crc=False)

    def notify(self) -> None:
        """Tell the listeners of messages that were dispatched since the last call."""
        for address in self._hot.take_touched_rows():
            queue = self._queues.at(address)
            row = queue.row
            row[state.QUEUE_MARKS] &= ~state.MARK_TOUCHED
            told, row[state.QUEUE_TOLD_OFFSET] = row[state.QUEUE_TOLD_OFFSET], queue.max_offset
            if told != queue.max_offset:  # what recovery dispatched is old
                self._tell(queue, told)
        for batch_queue, told in self._batch_queues.take_news():
            self._tell(batch_queue, told)

    def _tell(self, queue: ConsumeQueue | BatchQueue, told: int) -> None:
        for listener in self.listeners:
            try:
                listener(queue.topic, queue.queue_id, told, queue.max_offset)
            except Exception:  # noqa: BLE001 - whatever it is, it is the listener's
                # Other listeners are notified, and dispatch continues
                # (known-bugs.md#silent-threads).
                self.listener_failures += 1
                _log.exception("a listener failed on %s/%d", queue.topic, queue.queue_id)

    def _is_buried(self, topic: str, one: StoredMessage) -> bool:
        """Whether a topic was deleted after it had got a message."""
        return one.physical_offset < self._tombstones.get(topic, 0)

    def _is_buried_record(self, data: bytes) -> bool:
        if not self._tombstones:
            return False
        one = record.decode(data, check_crc=False)
        return self._is_buried(one.topic, one)

    def why_no_queue(self, topic: str, queue_id: int, sys_flag: int) -> str:
        """Return why a message cannot be in a queue; empty if it can."""
        if not names.is_folder_name(topic) or not 0 <= queue_id <= names.QUEUE_ID_MAX:
            return f"there is no queue {queue_id} of topic {topic[:300]!r}"  # damaged, or forged
        if self._is_for_batches(topic, sys_flag) and self._queues.of_topic(topic):
            return f"topic {topic!r} has plain queues, which hold no batches as they are"
        return ""

    def _is_for_batches(self, topic: str, sys_flag: int) -> bool:
        """Whether the unit of a message belongs to a batch queue: a topic has one kind."""
        return bool(sys_flag & flags.INNER_BATCH) or topic in self._batch_queues.topics

    # What kernels stop for --------------------------------------------------------------------

    def provide(self, reason: int, data: bytes, now_ms: int) -> bool:
        """Provide what a kernel stopped for, in front of a record.

        Returns:
            Whether it can go on; if not, the record needs ``put_slowly``.

        Raises:
            DiskFull: There is no room for it.
            QueueGap: See ``is_strict``.
        """
        if reason == state.STOP_UNITS:
            self._queues.at(self._block[state.STOP_ROW]).make_room()
            return True
        if reason in (state.STOP_TOPIC, state.STOP_QUEUE):
            one = record.decode(data, check_crc=False)
            if self.why_no_queue(one.topic, one.queue_id, one.sys_flag):
                return False
            is_batch = self._is_for_batches(one.topic, one.sys_flag)
            (self._batch_queues if is_batch else self._queues).make(one.topic, one.queue_id)
            return True
        if reason == state.STOP_INDEX:
            keys = self._keys(record.decode(data, check_crc=False))
            return self._index.make_room(len(keys), now_ms)
        if reason == state.STOP_GAP:
            return self._fill_gap(record.decode(data, check_crc=False))
        assert reason == state.STOP_SLOW, f"stopped for {reason}"
        return False

    def _keys(self, one: StoredMessage) -> list[str]:
        return record.index_keys(one, has_tags=bool(self._block[state.INDEX_HAS_TAGS]))

    def _is_possible(self, queue: ConsumeQueue, queue_offset: int, one: StoredMessage) -> bool:
        """Whether so many messages as a record says fit between its queue's last one and itself.

        No checksum covers a queue offset; what a damaged one says must not fill the disk.
        """
        room = one.physical_offset - queue.end_physical_offset
        most = queue.max_offset + room // record.FIXED_BYTES_V1
        if queue_offset <= (cq_unit.QUEUE_OFFSET_MAX if queue.is_fresh else most):
            return True
        _log.error(
            "the record at physical offset %d says that it is message %d of queue %s/%d, which "
            "has %d: it is in no queue",
            one.physical_offset,
            queue_offset,
            queue.topic,
            queue.queue_id,
            queue.max_offset,
        )
        return False

    def _fill_gap(self, one: StoredMessage) -> bool:
        """Bring a queue up to the message before a record; return whether that can be done."""
        queue = self._queues.make(one.topic, one.queue_id)
        if not self._is_possible(queue, one.queue_offset, one):
            return False
        if self.is_strict:
            raise QueueGap(queue, one.queue_offset)
        if not queue.is_fresh and queue.end_physical_offset <= self._commit_log.min_offset:
            # Nothing is left of the messages before the gap, nor of those in it.
            queue.reset()
        if queue.is_fresh:
            self._start(queue, one.queue_offset)
            if queue.max_offset == one.queue_offset:
                return True
        # Java reads every unit as a message. One that repeats the next is read twice, by a consumer
        # that must bear that anyway; any other filler would end, or break, a pull.
        missing = one.queue_offset - queue.max_offset
        _log.error(
            "queue %s/%d: %d messages before queue offset %d are lost",
            queue.topic,
            queue.queue_id,
            missing,
            one.queue_offset,
        )
        filler = cq_unit.Unit(one.physical_offset, one.store_size, self._tags_code(one))
        for _ in range(missing):
            queue.append(filler)
        self.refilled_units += missing
        return True

    def _start(self, queue: ConsumeQueue, queue_offset: int) -> None:
        """Let a fresh queue begin with a message, or where its file does if the log begins at 0.

        Before a queue's first unit its file has blanks, which point at physical offset 0. Java
        takes those for expired if the log begins above 0. Else, started again, it reads a queue
        from them on, and skips what the queue has in the log's first file.
        """
        if not self._commit_log.min_offset:
            queue_offset -= queue_offset % (self._queues.file_size // cq_unit.SIZE)
        queue.start_at(queue_offset)

    def _dispatch_slowly(self, data: bytes, now_ms: int) -> None:
        one = record.decode(data, check_crc=False)
        is_wanted = flags.is_queued(one.sys_flag) and not self._is_buried(one.topic, one)
        reason = self.why_no_queue(one.topic, one.queue_id, one.sys_flag)
        if is_wanted and reason:
            _log.error("the record at %d is in no queue: %s", one.physical_offset, reason)
        elif is_wanted and not self._is_for_batches(one.topic, one.sys_flag):
            queue = self._queues.make(one.topic, one.queue_id)
            if one.queue_offset > queue.max_offset:
                self._fill_gap(one)
        self.put_slowly(one, now_ms)

    def put_slowly(self, one: StoredMessage, now_ms: int) -> None:
        """Dispatch one record without the kernels.

        Raises:
            DiskFull: There is no room for it; it can be tried again.
        """
        is_rolled_back = flags.transaction_type(one.sys_flag) == flags.TRANSACTION_ROLLBACK
        if self._block[state.INDEX_IS_ON] and not is_rolled_back:
            self._put_keys(one, now_ms)
        if flags.is_queued(one.sys_flag):
            self._put_unit(one)
            if self._block[state.HAS_LIGHT_QUEUES]:
                self.put_light_units(one)
        self._block[state.LAST_PHYSICAL_OFFSET] = one.physical_offset
        self._block[state.LAST_STORE_TIMESTAMP] = one.store_timestamp
        self._block[state.DISPATCHED] = one.physical_offset + one.store_size

    def _put_unit(self, one: StoredMessage) -> None:
        if self._is_buried(one.topic, one):
            return
        if self._is_for_batches(one.topic, one.sys_flag):
            self._put_batch_unit(one)
            return
        queue = self._queues.find(one.topic, one.queue_id)
        if queue is not None and queue.max_offset == one.queue_offset:
            queue.make_room()
            code = self._extended(queue, one, self._tags_code(one))
            queue.append(cq_unit.Unit(one.physical_offset, one.store_size, code))

    def _put_batch_unit(self, one: StoredMessage) -> None:
        if self.why_no_queue(one.topic, one.queue_id, one.sys_flag):
            return
        base, count = batch_place(one)
        queue = self._batch_queues.make(one.topic, one.queue_id)
        if one.physical_offset < queue.end_physical_offset:
            return  # it is there
        if not count or base < queue.max_offset or base > cq_unit.QUEUE_OFFSET_MAX:
            _log.error(
                "the batch at physical offset %d says that its %s messages begin at %s; its queue "
                "%s/%d has %d: it is in no queue",
                one.physical_offset,
                one.properties.get(props.INNER_NUM),
                one.properties.get(props.INNER_BASE),
                one.topic,
                one.queue_id,
                queue.max_offset,
            )
            return
        if base > queue.max_offset and self.is_strict:
            raise QueueGap(queue, base)
        queue.put(
            BatchUnit(
                one.physical_offset,
                one.store_size,
                self._tags_code(one),
                one.store_timestamp,
                base,
                count,
                _NOT_COMPACTED,
            )
        )

    def _put_keys(self, one: StoredMessage, now_ms: int) -> None:
        keys = self._keys(one)
        end = self._index.end_physical_offset
        if one.physical_offset < end:
            return
        if one.physical_offset == end:
            # A crash or a full disk came among its entries.
            keys = keys[self._index.entries_of_last_record() :]
        self._lacks_keys = True  # if that fails: kernels index a record as a whole, or not at all
        self._index.put(keys, one.physical_offset, one.store_timestamp, now_ms)
        self._lacks_keys = False

    def finish_keys(self, now_ms: int) -> None:
        """Put what the index lacks of its last record: a crash may have come among its entries.

        Raises:
            DiskFull: There is no room.
        """
        last = self._index.end_physical_offset
        data = self._commit_log.record(last) if last >= 0 else None
        if data is not None and self._block[state.INDEX_IS_ON]:
            self._put_keys(record.decode(data, check_crc=False), now_ms)

    def _extended(self, queue: ConsumeQueue, one: StoredMessage, tags_code: int) -> int:
        """Put the extension unit of a record; return what its unit holds in place of the code."""
        if queue.extension is None or not self._is_extending:
            return tags_code
        bits = b""
        if self.filter_bits is not None:
            bits = self.filter_bits.of(one.topic, one.properties)
        size = cq_unit.EXT_HEAD.size + len(bits)
        return queue.extension.put(cq_unit.ExtUnit(size, tags_code, one.store_timestamp, bits))

    def _tags_code(self, one: StoredMessage) -> int:
        delay = one.properties.get(props.DELAY, "")
        level = props.number(delay) if one.topic == names.SCHEDULE_TOPIC else None
        if level:
            return one.store_timestamp + self._delays.get(level, 1000)
        return cq_unit.tags_code(one.tags)

    def put_light_units(self, one: StoredMessage) -> None:
        """Put the units of a record into the further queues that it names.

        Raises:
            DiskFull: There is no room; it can be tried again.
        """
        if one.topic.startswith(names.RETRY_PREFIX):
            return
        code = self._tags_code(one)
        for topic, queue_id, queue_offset in light_queues_of(one):
            if self._is_buried(topic, one):
                continue
            queue = self._queues.make(topic, queue_id)
            if not self._is_possible(queue, queue_offset, one):
                continue
            if queue.is_fresh and queue_offset:
                self._start(queue, queue_offset)
            if queue_offset == queue.max_offset:
                queue.append(cq_unit.Unit(one.physical_offset, one.store_size, code))
            elif queue_offset > queue.max_offset:
                _log.error(
                    "light queue %s lacks units before %d: the log has lost messages",
                    topic,
                    queue_offset,
                )
                filler = cq_unit.Unit(one.physical_offset, one.store_size, code)
                while queue.max_offset <= queue_offset:
                    queue.append(filler)


def _log_unusable(place: str, error: Exception) -> None:
    _log.error("the record at %s is passed over: %r", place, error)


def batch_place(one: StoredMessage) -> tuple[int, int]:
    """Return the first queue offset of a batch and how many messages it holds; 0: unknown.

    What is no batch counts as one of one message, as in Java.
    """
    if not one.sys_flag & flags.INNER_BATCH:
        return one.queue_offset, 1
    base = props.number(one.properties.get(props.INNER_BASE))
    count = props.number(one.properties.get(props.INNER_NUM))
    if base is None or count is None:
        return 0, 0
    return base, count if count <= batches.COUNT_MAX else 0


def light_queues_of(one: StoredMessage) -> list[tuple[str, int, int]]:
    """Return (topic, queue id, queue offset) of the further queues a record is in."""
    named = one.properties.get(props.INNER_MULTI_DISPATCH, "")
    offsets = one.properties.get(props.INNER_MULTI_QUEUE_OFFSET, "")
    if not named or not offsets:
        return []
    topics = named.split(props.LMQ_SEPARATOR)
    numbers = [props.number(one) for one in offsets.split(props.LMQ_SEPARATOR)]
    are_folders = all(map(names.is_folder_name, topics))
    if len(topics) != len(numbers) or None in numbers or not are_folders:
        _log.warning(
            "the message at physical offset %d names queues %r with offsets %r; it is in its own "
            "queue only",
            one.physical_offset,
            named[:300],
            offsets[:300],
        )
        return []
    return [
        (topic, 0 if topic.startswith(names.LMQ_PREFIX) else one.queue_id, number)
        for topic, number in zip(topics, numbers, strict=True)
        if number is not None
    ]
