"""Getting: by queue, by physical offset, by time, by key. Records are copied out as they stand."""

import bisect
import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

from reput.errors import CorruptRecord
from reput.format import cq_unit, index_entry, message as record
from reput.format.kernels import hot, state
from reput.store.commit_log import CommitLog
from reput.store.config import BrokerRole, StoreConfig
from reput.store.consume_queue import ConsumeQueue, ConsumeQueues
from reput.store.hot_state import HotState
from reput.store.index_file import SLACK_MS, IndexFiles
from reput.store.reader import END_OF_TIME_MS, Boundary

_BUFFER_BYTES = 512 * 1024


class GetStatus(enum.Enum):
    """What a get found; names are Java's ``GetMessageStatus``."""

    FOUND = enum.auto()
    NO_MATCHED_MESSAGE = enum.auto()
    """There are messages, but the filter wants none of those looked at."""
    MESSAGE_WAS_REMOVING = enum.auto()
    """The queue has units whose messages have left the log."""
    OFFSET_FOUND_NULL = enum.auto()
    """The queue's file is missing."""
    OFFSET_OVERFLOW_BADLY = enum.auto()
    """The offset is beyond the end."""
    OFFSET_OVERFLOW_ONE = enum.auto()
    """The offset is the end: wait."""
    OFFSET_TOO_SMALL = enum.auto()
    """The messages there have expired."""
    NO_MATCHED_LOGIC_QUEUE = enum.auto()
    """Nothing was ever dispatched to the queue."""
    NO_MESSAGE_IN_QUEUE = enum.auto()


class GetResult(NamedTuple):
    """What a get found."""

    status: GetStatus
    next_offset: int
    """Queue offset to ask for next."""
    min_offset: int
    max_offset: int
    data: bytes = b""
    """Records as they stand in the log, one behind the other."""
    message_count: int = 0
    suggests_slave: bool = False
    """What is asked for lies so far back that a slave should read it."""
    damaged_count: int = 0
    """Units that led to something else than their message, and were left out."""

    @property
    def records(self) -> list[memoryview]:
        """The records, each as a view of ``data``."""
        view = memoryview(self.data)
        found = []
        at = 0
        while at < len(view):
            size, _ = record.SIZE_AND_MAGIC.unpack_from(view, at)
            found.append(view[at : at + size])
            at += size
        return found


class MessageFilter(Protocol):
    """Decides which messages a get returns."""

    def takes_unit(self, tags_code: int, bit_map: bytes) -> bool:
        """Whether a message may be wanted; it is looked at if so.

        Args:
            tags_code: The hash of its tags.
            bit_map: Its filter bits (``filter_bits.may_match``); empty if none were computed.
        """

    def takes_record(self, data: memoryview) -> bool:
        """Whether the message of a record is wanted."""


@dataclass(frozen=True, slots=True)
class _ByTags:
    """Takes messages with one of these tags codes."""

    codes: frozenset[int]

    def takes_unit(self, tags_code: int, bit_map: bytes) -> bool:
        return tags_code in self.codes

    def takes_record(self, data: memoryview) -> bool:
        return True


@dataclass(frozen=True, slots=True)
class QueryResult:
    """What a query by key found."""

    records: list[bytes]
    """In the order of the log; each carries the key (anchors D10)."""
    is_truncated: bool
    """There may be more: the limit was reached (anchors D11)."""


class Getter:
    """The ways out of the store.

    Args:
        config: Limits.
        hot_state: What kernels share.
        log: Where records are.
        queues: Where they are found by queue.
        index: Where they are found by key.
    """

    def __init__(
        self,
        config: StoreConfig,
        hot_state: HotState,
        log: CommitLog,
        queues: ConsumeQueues,
        index: IndexFiles,
    ) -> None:
        self._config = config
        self._hot = hot_state
        self._block = hot_state.block
        self._commit_log = log
        self._queues = queues
        self._index = index
        self._keeps_offsets = (
            config.broker_role is BrokerRole.SLAVE and not config.offset_check_in_slave
        )
        filtered_max = config.max_filter_message_size // cq_unit.SIZE
        self._block[state.FILTERED_UNITS_MAX] = filtered_max
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
        """Return messages of a queue from an offset on.

        Args:
            topic: Of the queue.
            queue_id: Of the queue.
            queue_offset: Of the first message.
            max_count: Messages at most; the configuration's limits hold as well.
            tags_codes: Only messages with one of these; all, if none is given.
            message_filter: Only messages that it takes.
        """
        queue = self._queues.find(topic, queue_id)
        if queue is None:
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
        count = max(max_count, 1)  # the first one always passes
        if tags_codes or message_filter is not None:
            count = max(self._block[state.FILTERED_UNITS_MAX], max_count)
        address, found = queue.units_ahead(queue_offset, count)
        if not found:
            following = min(queue.following_file(queue_offset), high)
            return self._empty(GetStatus.OFFSET_FOUND_NULL, queue, queue_offset, following)
        self._block[state.READABLE] = self._commit_log.readable_offset
        if message_filter is None and tags_codes and queue.extension is not None:
            message_filter = _ByTags(frozenset(tags_codes))  # units hold addresses, not codes
        if message_filter is not None:
            return self._get_filtered(queue, queue_offset, found, max_count, message_filter)
        return self._get_by_tags(queue, queue_offset, address, found, max_count, tags_codes)

    def _corrected(self, asked: int, right: int) -> int:
        return asked if self._keeps_offsets else right

    def _empty(self, status: GetStatus, queue: ConsumeQueue, asked: int, right: int) -> GetResult:
        next_offset = self._corrected(asked, right)
        return GetResult(status, next_offset, queue.min_offset, queue.max_offset)

    def _get_by_tags(
        self,
        queue: ConsumeQueue,
        queue_offset: int,
        address: int,
        found: int,
        max_count: int,
        tags_codes: Sequence[int],
    ) -> GetResult:
        block = self._block
        block[state.RESULT_LAST_OFFSET] = 0
        block[state.PULL_UNITS] = address
        block[state.PULL_UNIT_COUNT] = found
        block[state.PULL_QUEUE_OFFSET] = -1 if queue.is_light else queue_offset
        block[state.PULL_BUFFER] = self._buffer_address
        block[state.PULL_ROOM] = len(self._buffer)
        block[state.PULL_COUNT_MAX] = max_count
        block[state.PULL_CODE_COUNT] = len(tags_codes)
        if tags_codes:
            codes = np.array(tags_codes, np.int64)
            block[state.PULL_CODES] = hot.address_of(codes)
        while True:
            hot.pull(self._hot.argument)
            stop = block[state.STOP]
            if stop == state.STOP_UNMAPPED:
                self._commit_log.map_file(block[state.RESULT_LAST_OFFSET])
            elif stop == state.STOP_BUFFER and not block[state.RESULT_COUNT]:
                self._make_buffer(self._size_of_next(address))
                block[state.PULL_BUFFER] = self._buffer_address
                block[state.PULL_ROOM] = len(self._buffer)
            else:
                break
        count = block[state.RESULT_COUNT]
        data = hot.bytes_at(self._buffer_address, block[state.RESULT_BYTES])
        if len(self._buffer) > _BUFFER_BYTES:
            self._make_buffer(_BUFFER_BYTES)
        return self._result(
            queue,
            queue_offset,
            data,
            count,
            scanned=block[state.RESULT_SCANNED],
            gone=block[state.RESULT_GONE],
            damaged=block[state.RESULT_DAMAGED],
            last=block[state.RESULT_LAST_OFFSET],
        )

    def _size_of_next(self, address: int) -> int:
        at = address + cq_unit.SIZE * self._block[state.RESULT_SCANNED]
        return cq_unit.unpack(hot.bytes_at(at, cq_unit.SIZE)).size

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
        behind = self._block[state.READABLE] - last
        return GetResult(
            status,
            queue_offset + scanned,
            queue.min_offset,
            queue.max_offset,
            data,
            count,
            behind > self._block[state.MEMORY_BYTES],
            damaged,
        )

    def _get_filtered(
        self,
        queue: ConsumeQueue,
        queue_offset: int,
        found: int,
        max_count: int,
        message_filter: MessageFilter,
    ) -> GetResult:
        """Do what the kernel does, with a filter that is Python's."""
        block = self._block
        units = queue.units(queue_offset, found)
        parts: list[bytes] = []
        size = gone = damaged = scanned = last = 0
        for i, unit in enumerate(units):
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
                damaged += 1
            elif message_filter.takes_record(memoryview(data)):
                parts.append(data)
                size += unit_size
        block[state.RESULT_SCANNED] = scanned
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

    def _extended(self, queue: ConsumeQueue, unit: np.void) -> tuple[int, bytes]:
        """Return tags code and filter bits of a unit, which may hold an address instead."""
        code = int(unit["tags_code"])
        if not cq_unit.is_ext_address(code) or queue.extension is None:
            return code, b""
        try:
            found = queue.extension.unit(code)
        except CorruptRecord:
            # The extension is damaged; the message knows as well.
            data = self._commit_log.record(int(unit["physical_offset"]))
            tags = record.decode(data, check_crc=False).tags if data is not None else None
            return cq_unit.tags_code(tags), b""
        return found.tags_code, found.bit_map

    def _is_full(
        self, physical_offset: int, unit_size: int, count: int, size: int, max_count: int
    ) -> bool:
        block = self._block
        on_disk = block[state.READABLE] - physical_offset > block[state.MEMORY_BYTES]
        most = block[state.COUNT_ON_DISK_MAX if on_disk else state.COUNT_IN_MEMORY_MAX]
        most_bytes = block[state.BYTES_ON_DISK_MAX if on_disk else state.BYTES_IN_MEMORY_MAX]
        return count >= min(max_count, most) or size + unit_size > most_bytes

    # Offsets ----------------------------------------------------------------------------------

    def min_offset(self, topic: str, queue_id: int) -> int:
        """Return the queue offset of the oldest message in the log; the end if there is none."""
        queue = self._queues.find(topic, queue_id)
        return queue.min_offset if queue is not None else 0

    def max_offset(self, topic: str, queue_id: int) -> int:
        """Return the queue offset behind the newest message that can be read."""
        queue = self._queues.find(topic, queue_id)
        return queue.max_offset if queue is not None else 0

    def store_time(self, topic: str, queue_id: int, queue_offset: int) -> int | None:
        """Return the store time of a message, ms; None if it is not there."""
        queue = self._queues.find(topic, queue_id)
        unit = queue.unit(queue_offset) if queue is not None else None
        if unit is None or not unit.is_written:
            return None
        return self._commit_log.store_timestamp_at(unit.physical_offset)

    def earliest_message_time(self, topic: str, queue_id: int) -> int | None:
        """Return the store time of the oldest message of a queue, ms; None if there is none."""
        queue = self._queues.find(topic, queue_id)
        if queue is None or queue.min_offset == queue.max_offset:
            return None
        return self.store_time(topic, queue_id, queue.min_offset)

    def offset_by_time(
        self, topic: str, queue_id: int, timestamp_ms: int, boundary: Boundary = Boundary.LOWER
    ) -> int:
        """Return the queue offset that a time names, within ``[min_offset, max_offset]``.

        ``LOWER``: the first message stored at or after it, ``max_offset`` if none. ``UPPER``: the
        last at or before it, ``min_offset`` if none. Equal times count as one block (anchors D15).
        """
        queue = self._queues.find(topic, queue_id)
        if queue is None:
            return 0
        span = range(queue.min_offset, queue.max_offset)
        search = bisect.bisect_left if boundary is Boundary.LOWER else bisect.bisect_right
        place = search(span, timestamp_ms, key=lambda number: self._time_in(queue, number))
        if boundary is Boundary.LOWER:
            return queue.min_offset + place
        return queue.min_offset + max(place - 1, 0)

    def _time_in(self, queue: ConsumeQueue, queue_offset: int) -> int:
        """Return a message's store time; if it cannot be read, that of the nearest before it."""
        for number in range(queue_offset, queue.min_offset - 1, -1):
            unit = queue.unit(number)
            if unit is not None and unit.is_written:
                timestamp = self._commit_log.store_timestamp_at(unit.physical_offset)
                if timestamp is not None:
                    return timestamp
        return 0

    def lag_bytes(self, topic: str, queue_id: int, consumer_offset: int) -> int:
        """Return how many bytes of the log lie between a consumer's next message and its end.

        Messages of other queues among them count: it is how far back the consumer reads.
        """
        queue = self._queues.find(topic, queue_id)
        if queue is None or consumer_offset >= queue.max_offset:
            return 0
        unit = queue.unit(max(consumer_offset, queue.min_offset))
        if unit is None or not unit.is_written:
            return 0
        return self._commit_log.readable_offset - unit.physical_offset

    # By place and by key ----------------------------------------------------------------------

    def record_at(self, physical_offset: int) -> bytes | None:
        """Return the record at a physical offset; None if none stands there."""
        return self._commit_log.record(physical_offset)

    def query(
        self,
        topic: str,
        key: str,
        max_count: int,
        begin_ms: int = 0,
        end_ms: int = END_OF_TIME_MS,
    ) -> QueryResult:
        """Return messages of a topic that carry a key, or have it as unique key: the newest.

        Args:
            topic: Of the messages.
            key: One of their keys.
            max_count: At most; not more than ``maxMsgsNumBatch`` (anchors D11).
            begin_ms: Store time from.
            end_ms: Store time to, inclusive.
        """
        max_count = max(min(max_count, self._config.max_msgs_num_batch), 0)
        found: list[tuple[int, bytes]] = []
        index_key = index_entry.key_of(topic, key)
        for physical_offset in self._index.newest_first(index_key, begin_ms - SLACK_MS, end_ms):
            data = self._commit_log.record(physical_offset)
            if data is None or not self._has_key(data, topic, key, begin_ms, end_ms):
                continue
            if len(found) == max_count:
                return QueryResult(_in_order(found), is_truncated=True)
            found.append((physical_offset, data))
        return QueryResult(_in_order(found), is_truncated=False)

    def _has_key(self, data: bytes, topic: str, key: str, begin_ms: int, end_ms: int) -> bool:
        one = record.decode(data, check_crc=False)
        is_hit = one.topic == topic and (key == one.unique_key or key in one.keys)
        return is_hit and begin_ms <= one.store_timestamp <= end_ms


def _in_order(found: list[tuple[int, bytes]]) -> list[bytes]:
    return [data for _, data in sorted(found)]
