"""Getting records by queue, by physical offset, by time and by key; they are copied as stored."""

import bisect
import enum
import struct
import time
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, Protocol

import numpy as np

from reput.errors import CorruptRecord
from reput.format import cq_unit, index_entry, message as record
from reput.store import limits
from reput.store.config import BrokerRole, StoreConfig
from reput.store.hot_state import HotState
from reput.store.index.index_file import STEPS, IndexFiles
from reput.store.index.lookup import Lookup
from reput.store.kernels import control_block as state, hot
from reput.store.log.commit_log import CommitLog
from reput.store.queues.batch_queue import BatchQueue, BatchQueues
from reput.store.queues.consume_queue import ConsumeQueue
from reput.store.queues.consume_queues import ConsumeQueues
from reput.store.reader import END_OF_TIME_MS, Boundary

_BUFFER_BYTES = 512 * 1024
_FILTERING_S = 0.005
"""CPU time that one get spends in a filter, in seconds; the next get continues after the last
message that was examined. A filter may take a millisecond for a message."""
_STEPS_OF_RECORD = 100
"""Number of index entries that take as long as reading a record."""
_BYTES_OF_STEP = 256
"""Bytes of a record that take as long as an index entry."""
_PLACE = struct.Struct(">i16xqq")
"""Size, queue offset and physical offset in a record."""


class GetStatus(enum.Enum):
    """The kind of result of a get; names are those of Java's ``GetMessageStatus``."""

    FOUND = enum.auto()
    NO_MATCHED_MESSAGE = enum.auto()
    """There are messages, but the filter matches none of the examined ones."""
    MESSAGE_WAS_REMOVING = enum.auto()
    """The queue has units whose messages have left the log."""
    OFFSET_FOUND_NULL = enum.auto()
    """The queue's file is missing."""
    OFFSET_OVERFLOW_BADLY = enum.auto()
    """The offset is after the end."""
    OFFSET_OVERFLOW_ONE = enum.auto()
    """The offset is the end: the consumer has to wait."""
    OFFSET_TOO_SMALL = enum.auto()
    """The messages there have expired."""
    NO_MATCHED_LOGIC_QUEUE = enum.auto()
    """No message was ever dispatched to the queue."""
    NO_MESSAGE_IN_QUEUE = enum.auto()


class GetResult(NamedTuple):
    """The result of a get."""

    status: GetStatus
    next_offset: int
    """Queue offset of the next get."""
    min_offset: int
    max_offset: int
    data: bytes = b""
    """Records as they are in the log, concatenated."""
    message_count: int = 0
    suggests_slave: bool = False
    """True if the messages are so far from the end of the log that a slave should serve them."""
    damaged_count: int = 0
    """Number of units that did not point at their message; these are left out."""

    @property
    def records(self) -> list[memoryview]:
        """The records, each as a view of ``data``."""
        view = memoryview(self.data)
        records = []
        position = 0
        while position < len(view):
            size, _ = record.SIZE_AND_MAGIC.unpack_from(view, position)
            records.append(view[position : position + size])
            position += size
        return records


class MessageFilter(Protocol):
    """Decides which messages a get returns."""

    @property
    def uses_tags(self) -> bool:
        """True if ``takes_unit`` uses tags codes. If not, it is called only for bit maps."""

    def takes_unit(self, tags_code: int, bit_map: bytes, store_timestamp: int) -> bool:
        """Return True if a message may match; its record is examined then.

        Args:
            tags_code: Hash of its tags.
            bit_map: Its filter bits (``bloom.may_match``); empty if none were computed.
            store_timestamp: Its store time, in ms; only given with bits.
        """

    def takes_record(self, data: memoryview) -> bool:
        """Return True if the message of a record matches.

        Raises:
            CorruptRecord: The record is damaged.
        """


@dataclass(frozen=True, slots=True)
class _ByTags:
    """Matches messages with one of these tags codes."""

    codes: frozenset[int]
    uses_tags: ClassVar[bool] = True

    def takes_unit(self, tags_code: int, bit_map: bytes, store_timestamp: int) -> bool:
        return tags_code in self.codes

    def takes_record(self, data: memoryview) -> bool:
        return True


@dataclass(frozen=True, slots=True)
class QueryResult:
    """The result of a query by key."""

    records: list[bytes]
    """Records in the order of the log; each has the key (known-bugs.md#hash-collisions)."""
    is_truncated: bool
    """True if there may be more: the limit was reached (known-bugs.md#query-count)."""
    is_given_up: bool = False
    """True if there may be more: ``limits.INDEX_STEPS`` was reached."""


class _FilteringTime:
    """The time limit for a filter within one get."""

    def __init__(self) -> None:
        self._end = time.perf_counter() + _FILTERING_S
        self._cpu_end = time.thread_time() + _FILTERING_S

    def is_over(self) -> bool:
        # The first check is cheap and runs per message; the second is right on a busy machine.
        return time.perf_counter() > self._end and time.thread_time() > self._cpu_end


class Getter:
    """The read side of the store.

    Args:
        config: Limits.
        hot_state: State shared with kernels.
        log: The commit log.
        queues: Consume queues, for gets by queue.
        index: Index files, for queries by key.
        batch_queues: Batch queues, which are read as well.
    """

    def __init__(
        self,
        config: StoreConfig,
        hot_state: HotState,
        log: CommitLog,
        queues: ConsumeQueues,
        index: IndexFiles,
        batch_queues: BatchQueues,
    ) -> None:
        self._config = config
        self._hot = hot_state
        self._block = hot_state.block
        self._commit_log = log
        self._queues = queues
        self._index = index
        self._batch_queues = batch_queues
        self.lookup = Lookup(config, hot_state, log, queues, index)
        """The fast path of searches by key and by time."""
        self._keeps_offsets = (
            config.broker_role is BrokerRole.SLAVE and not config.offset_check_in_slave
        )
        filtered_max = config.max_filter_message_size // cq_unit.SIZE
        self._block.filtered_units_max = filtered_max
        self._make_buffer(_BUFFER_BYTES)

    def _make_buffer(self, size: int) -> None:
        self._buffer = np.empty(size, np.uint8)
        self._buffer_address = hot.address_of(self._buffer)

    # By queue ---------------------------------------------------------------------------------

    def get(
        self,
        topic: str,
        queue_id: int,
        queue_offset: int,
        max_count: int,
        *,
        tags_codes: Sequence[int] = (),
        message_filter: MessageFilter | None = None,
    ) -> GetResult:
        """Return messages of a queue from a queue offset on.

        Args:
            topic: Topic of the queue.
            queue_id: Id of the queue.
            queue_offset: Offset of the first message.
            max_count: Maximum number of messages; the configured limits apply as well.
            tags_codes: Return only messages with one of these; all messages if empty.
            message_filter: Return only messages that it matches.
        """
        queue = self._queues.find(topic, queue_id)
        if queue is None:
            batches = self._batch_queues.find(topic, queue_id)
            if batches is not None:
                return self._get_batches(batches, queue_offset, max_count, message_filter)
            return GetResult(
                GetStatus.NO_MATCHED_LOGIC_QUEUE, self._corrected(queue_offset, 0), 0, 0
            )
        low, high = queue.min_offset, queue.max_offset
        if high == 0:
            return self._empty(GetStatus.NO_MESSAGE_IN_QUEUE, queue, queue_offset, 0)
        if queue_offset < low:
            return self._empty(GetStatus.OFFSET_TOO_SMALL, queue, queue_offset, low)
        if queue_offset == high:
            return GetResult(GetStatus.OFFSET_OVERFLOW_ONE, high, low, high)
        if queue_offset > high:
            return self._empty(GetStatus.OFFSET_OVERFLOW_BADLY, queue, queue_offset, high)
        count = max(max_count, 1)  # the first message is always returned
        if tags_codes or message_filter is not None:
            count = max(self._block.filtered_units_max, max_count)
        address, unit_count = queue.units_ahead(queue_offset, count)
        if not unit_count:
            following = min(queue.following_file(queue_offset), high)
            return self._empty(GetStatus.OFFSET_FOUND_NULL, queue, queue_offset, following)
        self._block.readable = self._commit_log.readable_offset
        if message_filter is None and tags_codes and queue.extension is not None:
            message_filter = _ByTags(frozenset(tags_codes))  # units contain addresses, not codes
        if message_filter is not None:
            filters_units = message_filter.uses_tags or queue.extension is not None
            if not filters_units and not queue.is_light:
                return self._get_by_record(
                    queue, queue_offset, address, unit_count, max_count, message_filter
                )
            return self._get_filtered(queue, queue_offset, unit_count, max_count, message_filter)
        return self._get_by_tags(queue, queue_offset, address, unit_count, max_count, tags_codes)

    def _get_batches(
        self,
        queue: BatchQueue,
        queue_offset: int,
        max_count: int,
        message_filter: MessageFilter | None,
    ) -> GetResult:
        """Return whole batches, from the one that contains a queue offset on.

        The units do not contain the tags of the inner messages; consumers filter them. A filter is
        applied to the batch as one message, as in Java.
        """
        low, high = queue.min_offset, queue.max_offset
        if high == 0:
            return GetResult(GetStatus.NO_MESSAGE_IN_QUEUE, self._corrected(queue_offset, 0), 0, 0)
        if queue_offset < low:
            next_offset = self._corrected(queue_offset, low)
            return GetResult(GetStatus.OFFSET_TOO_SMALL, next_offset, low, high)
        if queue_offset == high:
            return GetResult(GetStatus.OFFSET_OVERFLOW_ONE, high, low, high)
        if queue_offset > high:
            next_offset = self._corrected(queue_offset, high)
            return GetResult(GetStatus.OFFSET_OVERFLOW_BADLY, next_offset, low, high)
        config = self._config
        count_limit = min(max_count, config.max_transfer_count_on_message_in_memory)
        parts: list[bytes] = []
        size = count = damaged = gone = 0
        next_offset = queue_offset
        filtering = _FilteringTime()
        for unit in queue.units_from(queue_offset):
            bytes_limit = config.max_transfer_bytes_on_message_in_memory
            if message_filter is not None and next_offset > queue_offset and filtering.is_over():
                break
            if parts and (
                count + unit.message_count > count_limit or size + unit.size > bytes_limit
            ):
                break
            next_offset = unit.queue_offset + unit.message_count
            data = self._commit_log.read(unit.physical_offset, unit.size)
            if data is None:
                gone += 1
                continue
            verdict, _ = record.classify(data, 0, unit.physical_offset, check_crc=False)
            if verdict is not record.Verdict.MESSAGE:
                damaged += 1
            elif message_filter is None or message_filter.takes_record(memoryview(data)):
                parts.append(data)
                size += unit.size
                count += unit.message_count
        if count:
            status = GetStatus.FOUND
        else:
            status = GetStatus.MESSAGE_WAS_REMOVING if gone else GetStatus.NO_MATCHED_MESSAGE
        return GetResult(status, next_offset, low, high, b"".join(parts), count, False, damaged)

    def _corrected(self, requested: int, corrected: int) -> int:
        return requested if self._keeps_offsets else corrected

    def _empty(
        self, status: GetStatus, queue: ConsumeQueue, requested: int, corrected: int
    ) -> GetResult:
        next_offset = self._corrected(requested, corrected)
        return GetResult(status, next_offset, queue.min_offset, queue.max_offset)

    def _get_by_tags(
        self,
        queue: ConsumeQueue,
        queue_offset: int,
        address: int,
        unit_count: int,
        max_count: int,
        tags_codes: Sequence[int],
    ) -> GetResult:
        block = self._block
        block.result_last_offset = 0
        block.pull_queue_offset = -1 if queue.is_light else queue_offset
        block.pull_count_max = max_count
        block.pull_code_count = len(tags_codes)
        if tags_codes:
            codes = np.sort(np.array(tags_codes, np.int64))
            block.pull_codes = hot.address_of(codes)
        self._copy_records(address, unit_count)
        count = block.result_count
        data = hot.bytes_at(self._buffer_address, block.result_bytes)
        if len(self._buffer) > _BUFFER_BYTES:
            self._make_buffer(_BUFFER_BYTES)
        return self._result(
            queue,
            queue_offset,
            data,
            count,
            scanned=block.result_scanned,
            gone=block.result_gone,
            damaged=block.result_damaged,
            last=block.result_last_offset,
        )

    def _copy_records(self, address: int, count: int) -> None:
        """Let the kernel copy records of units into the buffer: at least one if there is any."""
        block = self._block
        block.pull_units = address
        block.pull_unit_count = count
        block.pull_buffer = self._buffer_address
        block.pull_room = len(self._buffer)
        while True:
            hot.pull(self._hot.argument)
            stop = block.stop
            if stop == state.STOP_UNMAPPED:
                self._commit_log.map_file(block.result_last_offset)
            elif stop == state.STOP_BUFFER and not block.result_count:
                self._make_buffer(self._size_of_next(address))
                block.pull_buffer = self._buffer_address
                block.pull_room = len(self._buffer)
            else:
                return

    def _size_of_next(self, address: int) -> int:
        unit_address = address + cq_unit.SIZE * self._block.result_scanned
        return cq_unit.unpack(hot.bytes_at(unit_address, cq_unit.SIZE)).size

    def _result(
        self,
        queue: ConsumeQueue,
        queue_offset: int,
        data: bytes,
        count: int,
        *,
        scanned: int,
        gone: int,
        damaged: int,
        last: int,
    ) -> GetResult:
        if count:
            status = GetStatus.FOUND
        elif gone:
            status = GetStatus.MESSAGE_WAS_REMOVING
        else:
            status = GetStatus.NO_MATCHED_MESSAGE
        distance = self._block.readable - last
        return GetResult(
            status,
            queue_offset + scanned,
            queue.min_offset,
            queue.max_offset,
            data,
            count,
            distance > self._block.memory_bytes,
            damaged,
        )

    def _get_by_record(
        self,
        queue: ConsumeQueue,
        queue_offset: int,
        address: int,
        unit_count: int,
        max_count: int,
        message_filter: MessageFilter,
    ) -> GetResult:
        """Let the kernel copy records, as many at once as a reply may have, and filter them."""
        block = self._block
        block.result_last_offset = 0
        block.pull_count_max = unit_count
        block.pull_code_count = 0
        in_memory = block.readable - block.memory_bytes
        limits = (
            (min(max_count, block.count_on_disk_max), block.bytes_on_disk_max),
            (min(max_count, block.count_in_memory_max), block.bytes_in_memory_max),
        )
        parts: list[bytes] = []
        size = gone = damaged = scanned = 0
        is_full = False
        filtering = _FilteringTime()
        while scanned < unit_count and not is_full:
            block.pull_queue_offset = queue_offset + scanned
            self._copy_records(address + cq_unit.SIZE * scanned, unit_count - scanned)
            view = self._buffer.data
            position, end = 0, block.result_bytes
            scanned_end = scanned + block.result_scanned
            while position < end:
                record_size, number, physical_offset = _PLACE.unpack_from(view, position)
                count_limit, bytes_limit = limits[physical_offset >= in_memory]
                if (parts and (len(parts) >= count_limit or size + record_size > bytes_limit)) or (
                    number > queue_offset and filtering.is_over()
                ):
                    scanned_end, is_full = number - queue_offset, True
                    break
                data = view[position : position + record_size]
                position += record_size
                try:
                    is_wanted = message_filter.takes_record(data)
                except CorruptRecord:
                    damaged += 1
                    continue
                if is_wanted:
                    parts.append(bytes(data))
                    size += record_size
            else:
                gone += block.result_gone
                damaged += block.result_damaged
            scanned = scanned_end
        if len(self._buffer) > _BUFFER_BYTES:
            self._make_buffer(_BUFFER_BYTES)
        return self._result(
            queue,
            queue_offset,
            b"".join(parts),
            len(parts),
            scanned=scanned,
            gone=gone,
            damaged=damaged,
            last=block.result_last_offset,
        )

    def _get_filtered(
        self,
        queue: ConsumeQueue,
        queue_offset: int,
        unit_count: int,
        max_count: int,
        message_filter: MessageFilter,
    ) -> GetResult:
        """Do the same as the kernel, unit by unit, and apply the filter to each unit first."""
        block = self._block
        units = queue.units(queue_offset, unit_count)
        parts: list[bytes] = []
        size = gone = damaged = scanned = last = 0
        filtering = _FilteringTime()
        for i, unit in enumerate(units):
            if i and filtering.is_over():
                break
            physical_offset, unit_size = int(unit["physical_offset"]), int(unit["size"])
            if not cq_unit.Unit(physical_offset, unit_size, 0).is_written:
                scanned = i + 1
                continue
            last = physical_offset
            if parts and self._is_full(physical_offset, unit_size, len(parts), size, max_count):
                break
            scanned = i + 1
            if not message_filter.takes_unit(*self._extended(queue, unit)):
                continue
            data = self._commit_log.read(physical_offset, unit_size)
            if data is None:
                gone += 1
                continue
            verdict, _ = record.classify(data, 0, physical_offset, check_crc=False)
            if verdict is not record.Verdict.MESSAGE:
                damaged += 1  # ``takes_record`` is called only for valid records
            elif message_filter.takes_record(memoryview(data)):
                parts.append(data)
                size += unit_size
        block.result_scanned = scanned
        return self._result(
            queue,
            queue_offset,
            b"".join(parts),
            len(parts),
            scanned=scanned,
            gone=gone,
            damaged=damaged,
            last=last,
        )

    def _extended(self, queue: ConsumeQueue, unit: np.void) -> tuple[int, bytes, int]:
        """Return the arguments of ``takes_unit`` for a unit, from its extension if it has one."""
        code = int(unit["tags_code"])
        if not cq_unit.is_ext_address(code) or queue.extension is None:
            return code, b"", 0
        try:
            extended = queue.extension.unit(code)
        except CorruptRecord:
            # The extension is damaged; the message has its tags as well.
            data = self._commit_log.record(int(unit["physical_offset"]))
            tags = record.decode(data, check_crc=False).tags if data is not None else None
            return cq_unit.tags_code(tags), b"", 0
        return extended.tags_code, extended.bit_map, extended.store_timestamp

    def _is_full(
        self, physical_offset: int, unit_size: int, count: int, size: int, max_count: int
    ) -> bool:
        block = self._block
        on_disk = block.readable - physical_offset > block.memory_bytes
        count_limit = block.count_on_disk_max if on_disk else block.count_in_memory_max
        bytes_limit = block.bytes_on_disk_max if on_disk else block.bytes_in_memory_max
        return count >= min(max_count, count_limit) or size + unit_size > bytes_limit

    # Offsets ----------------------------------------------------------------------------------

    def min_offset(self, topic: str, queue_id: int) -> int:
        """Return the queue offset of the oldest message in the log; the end if there is none."""
        queue = self._any_queue(topic, queue_id)
        return queue.min_offset if queue is not None else 0

    def max_offset(self, topic: str, queue_id: int) -> int:
        """Return the queue offset after the newest message that can be read."""
        queue = self._any_queue(topic, queue_id)
        return queue.max_offset if queue is not None else 0

    def _any_queue(self, topic: str, queue_id: int) -> ConsumeQueue | BatchQueue | None:
        queue = self._queues.find(topic, queue_id)
        return queue if queue is not None else self._batch_queues.find(topic, queue_id)

    def store_time(self, topic: str, queue_id: int, queue_offset: int) -> int | None:
        """Return the store time of a message, in ms; None if the queue does not have it."""
        queue = self._any_queue(topic, queue_id)
        unit = queue.unit(queue_offset) if queue is not None else None
        if unit is None or not unit.is_written:
            return None
        return self._commit_log.store_timestamp_at(unit.physical_offset)

    def earliest_message_time(self, topic: str, queue_id: int) -> int | None:
        """Return the store time of a queue's oldest message, in ms; None if it is empty."""
        queue = self._any_queue(topic, queue_id)
        if queue is None or queue.min_offset == queue.max_offset:
            return None
        return self.store_time(topic, queue_id, queue.min_offset)

    def offset_by_time(
        self, topic: str, queue_id: int, timestamp_ms: int, boundary: Boundary = Boundary.LOWER
    ) -> int:
        """Return the queue offset for a store time, within ``[min_offset, max_offset]``.

        ``LOWER``: the first message stored at or after the time, ``max_offset`` if there is none.
        ``UPPER``: the last at or before it, ``min_offset`` if there is none. Messages of the same
        time count as one block (known-bugs.md#offset-by-time).
        """
        queue = self._queues.find(topic, queue_id)
        if queue is None:
            batches = self._batch_queues.find(topic, queue_id)
            is_upper = boundary is Boundary.UPPER
            return (
                batches.offset_by_time(timestamp_ms, is_upper=is_upper)
                if batches is not None
                else 0
            )
        is_upper = boundary is Boundary.UPPER
        end = self.lookup.by_time(queue, timestamp_ms, self._time_in, is_upper=is_upper)
        if end is None:
            end = self.offset_by_unit(queue, timestamp_ms, is_upper=is_upper)
        return max(end - 1, queue.min_offset) if is_upper else end

    def offset_by_unit(self, queue: ConsumeQueue, timestamp_ms: int, *, is_upper: bool) -> int:
        """Return the same as ``Lookup.by_time``, which is faster, but may fall back to this."""
        span = range(queue.min_offset, queue.max_offset)
        search = bisect.bisect_right if is_upper else bisect.bisect_left
        index = search(span, timestamp_ms, key=lambda number: self._time_in(queue, number))
        return queue.min_offset + index

    def _time_in(self, queue: ConsumeQueue, queue_offset: int) -> int:
        """Return the store time of a message, or of the nearest readable one before it."""
        for number in range(queue_offset, queue.min_offset - 1, -1):
            unit = queue.unit(number)
            if unit is not None and unit.is_written:
                timestamp = self._commit_log.store_timestamp_at(unit.physical_offset)
                if timestamp is not None:
                    return timestamp
        return 0

    def lag_bytes(self, topic: str, queue_id: int, consumer_offset: int) -> int:
        """Return the bytes of the log between a consumer's next message and the end of the log.

        Messages of other queues count as well: it is the distance at which the consumer reads.
        """
        queue = self._any_queue(topic, queue_id)
        if queue is None or consumer_offset >= queue.max_offset:
            return 0
        unit = queue.unit(max(consumer_offset, queue.min_offset))
        if unit is None or not unit.is_written:
            return 0
        return self._commit_log.readable_offset - unit.physical_offset

    # By physical offset and by key --------------------------------------------------------------

    def record_at(self, physical_offset: int) -> bytes | None:
        """Return the record at a physical offset; None if there is none."""
        return self._commit_log.record(physical_offset)

    def query(
        self,
        topic: str,
        key: str,
        max_count: int,
        begin_ms: int = 0,
        end_ms: int = END_OF_TIME_MS,
        *,
        is_tags: bool = False,
    ) -> QueryResult:
        """Return messages of a topic with a key; see ``query_in_steps``."""
        steps = self.query_in_steps(topic, key, max_count, begin_ms, end_ms, is_tags=is_tags)
        while True:
            try:
                next(steps)
            except StopIteration as end:
                result: QueryResult = end.value
                return result

    def query_in_steps(
        self,
        topic: str,
        key: str,
        max_count: int,
        begin_ms: int = 0,
        end_ms: int = END_OF_TIME_MS,
        *,
        is_tags: bool = False,
        bytes_max: int = 1 << 62,
    ) -> Generator[None, None, QueryResult]:
        """Return the newest messages of a topic with a key, or with it as unique key.

        Yields between steps, so that others can use the store: clients determine how many index
        entries must be scanned. After ``limits.INDEX_STEPS`` entries the search ends.

        Args:
            topic: Topic of the messages.
            key: One of their keys.
            max_count: Maximum number; limited by ``maxMsgsNumBatch`` (known-bugs.md#query-count).
            begin_ms: Minimum store time.
            end_ms: Maximum store time, inclusive.
            is_tags: ``key`` is the whole tags property, which ``indexTags`` puts into the index.
            bytes_max: Maximum number of bytes of records.
        """
        max_count = max(min(max_count, self._config.max_msgs_num_batch), 0)
        newest = self.lookup.by_key(
            topic, key, max_count, begin_ms, end_ms, is_tags=is_tags, bytes_max=bytes_max
        )
        if newest is not None:
            return QueryResult(*newest)
        records: list[tuple[int, bytes]] = []
        index_key = (index_entry.tag_key_of if is_tags else index_entry.key_of)(topic, key)
        steps = size = 0
        for physical_offset in self._index.newest_first(
            index_key, begin_ms - index_entry.SLACK_MS, end_ms
        ):
            if steps > limits.INDEX_STEPS.maximum:
                return QueryResult(_in_order(records), is_truncated=True, is_given_up=True)
            if physical_offset is None:
                steps += STEPS
                yield
                continue
            data = self._commit_log.record(physical_offset)
            if data is None:
                continue
            if _carries(data, topic, key, begin_ms, end_ms, is_tags=is_tags):
                size += len(data)
                if len(records) == max_count or size > bytes_max:
                    return QueryResult(_in_order(records), is_truncated=True)
                records.append((physical_offset, data))
            steps += _STEPS_OF_RECORD + len(data) // _BYTES_OF_STEP
            yield
        return QueryResult(_in_order(records), is_truncated=False)


def _carries(
    data: bytes, topic: str, key: str, begin_ms: int, end_ms: int, *, is_tags: bool
) -> bool:
    """Return True if a record is a message of a topic and time range with a key."""
    if not begin_ms <= record.store_timestamp_of(data) <= end_ms:
        return False
    message = record.decode(data, check_crc=False)
    if message.topic != topic:
        return False
    return message.tags == key if is_tags else key == message.unique_key or key in message.keys


def _in_order(records: list[tuple[int, bytes]]) -> list[bytes]:
    return [data for _, data in sorted(records)]
