"""A model of the store: without files, kernels or background work.

    records    physical offset -> record, in the order of the log
    queues     (topic, queue id) -> units
    keys       (topic, key) -> physical offsets

The model has a part of the methods of ``MessageStore``, with its results, places and refusals, and
is short enough to be checked by reading. It has no flush that a put waits for, and no recovery.
``expire`` is expiry. The scripts in ``tests/scripts/store/behaviour`` run on both.
"""

import bisect
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Self

from reput.clock import Clock, SystemClock
from reput.errors import CorruptRecord
from reput.format import (
    batch as batches,
    body as bodies,
    cq_unit,
    java,
    message as record,
    names,
    properties as props,
    sys_flag as flags,
)
from reput.format.message import StoredMessage
from reput.store.config import BrokerRole, StoreConfig
from reput.store.getting import GetResult, GetStatus, MessageFilter, QueryResult
from reput.store.reader import END_OF_TIME_MS, Boundary
from reput.store.writing import incoming
from reput.store.writing.dispatch import Listener
from reput.store.writing.flush import PendingPut
from reput.store.writing.incoming import IncomingMessage, PutResult, PutStatus, Refused


class _Unit(NamedTuple):
    """Physical offset of a message of a queue, and its tags code."""

    physical_offset: int
    tags_code: int


@dataclass(slots=True)
class _Queue:
    """All units that a queue has had; those before ``min_offset`` have expired."""

    units: list[_Unit] = field(default_factory=list)
    min_offset: int = 0
    notified_offset: int = 0

    @property
    def max_offset(self) -> int:
        return len(self.units)


class MemoryStore:
    """Keeps messages in memory.

    Args:
        config: Limits, and the size of a log file. Intervals and paths have no effect.
        clock: Source of the time.
    """

    def __init__(self, config: StoreConfig | None = None, *, clock: Clock | None = None) -> None:
        self.config = config or StoreConfig()
        self._clock = clock or SystemClock()
        self._memory_bytes = 1 << 62
        if self.config.access_message_in_memory_max_ratio == 0:
            self._memory_bytes = 0
        self._records: dict[int, bytes] = {}
        self._queues: dict[tuple[str, int], _Queue] = {}
        self._keys: dict[tuple[str, str], list[int]] = {}
        self._tags: dict[tuple[str, str], list[int]] = {}
        self._listeners: list[Listener] = []
        self._min_physical_offset = self._end = self._last_ms = 0
        self._is_open = True

    def close(self) -> None:
        """Refuse puts from now on; stored messages can still be read."""
        self._is_open = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Puts.

    @property
    def refusal(self) -> str:
        """Reason why puts are refused; empty if they are accepted."""
        if not self._is_open:
            return "the store is closed"
        if self.config.broker_role is BrokerRole.SLAVE:
            return "brokerRole is SLAVE: only its master writes here"
        return ""

    @property
    def why_no_puts(self) -> str:
        """Reason why no message can be stored."""
        return self.refusal

    def put(self, message: IncomingMessage, now_ms: int | None = None) -> PutResult:
        """Store a message."""
        return self._put([message], message, now_ms)

    def put_many(
        self, messages: Sequence[IncomingMessage], now_ms: int | None = None
    ) -> list[PutResult]:
        """Store unrelated messages."""
        now_ms = self._clock.now_ms() if now_ms is None else now_ms
        return [self._put([message], message, now_ms) for message in messages]

    def put_batch(self, message: IncomingMessage, now_ms: int | None = None) -> PutResult:
        """Store the messages in a client's batch: all, or none."""
        try:
            if not self.refusal:
                incoming.refuse_batch(message, self.config.max_message_size)
            parts = batches.decode(message.body)
        except Refused as refused:
            return PutResult(refused.status, reason=refused.reason)
        except CorruptRecord as error:
            return PutResult(PutStatus.MESSAGE_ILLEGAL, reason=str(error))
        if not parts:
            return PutResult(PutStatus.MESSAGE_ILLEGAL, reason="the batch has no message")
        messages = [
            dataclasses.replace(
                message, body=part.body, property_bytes=part.property_bytes, flag=part.flag
            )
            for part in parts
        ]
        is_on = self.config.enable_multi_dispatch and names.may_have_light_queues(message.topic)
        for name in incoming.OF_LIGHT_QUEUES:
            if is_on and any(name in part.properties for part in messages):
                refused = incoming.light_part(name)
                return PutResult(refused.status, reason=refused.reason)
        result = self._put(messages, message, now_ms)
        if not result.status.is_stored:
            return result
        places = [
            physical_offset
            for physical_offset in self._records
            if physical_offset >= result.physical_offset
        ]
        return result._replace(message_count=len(places), physical_offsets=tuple(places))

    def begin_put(self, message: IncomingMessage, now_ms: int | None = None) -> PendingPut:
        """Store a message; the result needs no wait."""
        result = self.put(message, now_ms)
        now_ms = self._clock.monotonic_ms()
        return PendingPut(result, now_ms, now_ms, result)

    def _put(
        self, messages: list[IncomingMessage], source: IncomingMessage, now_ms: int | None
    ) -> PutResult:
        """Store messages in one log file, all or none."""
        try:
            if self.refusal:
                raise Refused(PutStatus.SERVICE_NOT_AVAILABLE, self.refusal)
            ready = [self._checked(message, is_single=message is source) for message in messages]
            self._roll(sum(map(self._size, ready)))
        except Refused as refused:
            return PutResult(refused.status, reason=refused.reason)
        start, self._last_ms = self._end, self._store_time(now_ms)
        stored = [self._store(message) for message in ready]
        return PutResult(
            PutStatus.PUT_OK,
            start,
            self._end - start,
            stored[0].queue_offset,
            self._last_ms,
            store_host=source.store_host,
        )

    def _checked(self, message: IncomingMessage, *, is_single: bool) -> IncomingMessage:
        """Return the message in its stored form, after the checks in the broker's order."""
        config = self.config
        incoming.refuse_names([message.topic])
        topic = java.encode_utf8(message.topic)
        incoming.refuse_lengths(message, topic, config)
        if len(message.body) > config.max_message_size:
            raise Refused(
                PutStatus.MESSAGE_ILLEGAL,
                f"body has {len(message.body)} bytes; "
                f"allowed: {config.max_message_size} (maxMessageSize)",
            )
        if message.sys_flag & flags.INNER_BATCH:
            raise Refused(PutStatus.MESSAGE_ILLEGAL, "a batch goes to a batch queue: there is none")
        incoming.refuse_queue(message.queue_id)
        if is_single:  # Batches are not delayed, and go to no light queues.
            message = incoming.delayed(message, len(config.delay_levels_ms))
            message = self._with_light_offsets(message)
        size, allowed = self._size(message), config.record_bytes_max
        if size > allowed:
            reason = f"record has {size} bytes; allowed: {allowed}"
            raise Refused(PutStatus.MESSAGE_ILLEGAL, reason)
        return message

    def _size(self, message: IncomingMessage) -> int:
        """Return the size of the record of a message, in bytes."""
        if self.config.enabled_append_prop_crc:
            message = incoming.with_crc_room(message)
        return len(incoming.encode(message, java.encode_utf8(message.topic)))

    def _roll(self, size: int) -> None:
        """Start the next log file if the current one has no room for records and a blank."""
        file_size = self.config.mapped_file_size_commit_log
        left = file_size - self._end % file_size
        if size + record.BLANK.size > left:
            self._end += left

    def _with_light_offsets(self, message: IncomingMessage) -> IncomingMessage:
        properties = message.properties
        if not self._is_light(message.topic, properties):
            return message
        topics = properties[props.INNER_MULTI_DISPATCH].split(props.LMQ_SEPARATOR)
        incoming.refuse_light_names(topics)
        offsets = []
        for topic in topics:
            key = _further_queue(topic, message.queue_id)
            if topic.startswith(names.LMQ_PREFIX) and key not in self._queues:
                self._refuse_more_light_queues()
            offsets.append(self._queues.setdefault(key, _Queue()).max_offset)
        properties[props.INNER_MULTI_QUEUE_OFFSET] = props.LMQ_SEPARATOR.join(map(str, offsets))
        return incoming.with_properties(message, properties)

    def _is_light(self, topic: str, properties: Mapping[str, str]) -> bool:
        is_on = self.config.enable_multi_dispatch and names.may_have_light_queues(topic)
        return is_on and props.INNER_MULTI_DISPATCH in properties

    def _refuse_more_light_queues(self) -> None:
        count = sum(topic.startswith(names.LMQ_PREFIX) for topic, _ in self._queues)
        limit = self.config.max_lmq_consume_queue_num
        if count >= limit:
            raise Refused(
                PutStatus.LMQ_CONSUME_QUEUE_NUM_EXCEEDED,
                f"there are {count} light queues; allowed: {limit} (maxLmqConsumeQueueNum)",
            )

    def _store_time(self, now_ms: int | None) -> int:
        now_ms = self._clock.now_ms() if now_ms is None else now_ms
        is_little_back = 0 < self._last_ms - now_ms <= incoming.BACKWARD_MS_MAX
        return self._last_ms if is_little_back else now_ms

    def _store(self, message: IncomingMessage) -> StoredMessage:
        queue = self._queues.setdefault((message.topic, message.queue_id), _Queue())
        sys_flag = message.sys_flag & ~(flags.BORN_HOST_V6 | flags.STORE_HOST_V6)
        sys_flag |= flags.BORN_HOST_V6 if message.born_host.is_v6 else 0
        sys_flag |= flags.STORE_HOST_V6 if message.store_host.is_v6 else 0
        stored = StoredMessage(
            topic=message.topic,
            body=message.body,
            queue_id=message.queue_id,
            queue_offset=queue.max_offset if flags.is_queued(sys_flag) else 0,
            physical_offset=self._end,
            born_timestamp=message.born_timestamp,
            born_host=message.born_host,
            store_timestamp=self._last_ms,
            store_host=message.store_host,
            flag=message.flag,
            sys_flag=sys_flag,
            reconsume_times=message.reconsume_times,
            prepared_transaction_offset=message.prepared_transaction_offset,
            body_crc=bodies.crc(message.body),
            property_bytes=message.property_bytes,
            properties=message.properties,
        )
        data = record.encode(stored)
        if self.config.enabled_append_prop_crc:
            data = record.append_crc_property(_with_last_separator(stored))
        self._records[self._end] = data
        self._end += len(data)
        self._dispatch(stored)
        return stored

    def _dispatch(self, stored: StoredMessage) -> None:
        kind = flags.transaction_type(stored.sys_flag)
        if self.config.message_index_enable and kind != flags.TRANSACTION_ROLLBACK:
            for key in {stored.unique_key, *stored.keys} - {None}:
                self._keys.setdefault((stored.topic, str(key)), []).append(stored.physical_offset)
            if self.config.index_tags and stored.tags:
                self._tags.setdefault((stored.topic, stored.tags), []).append(
                    stored.physical_offset
                )
        if not flags.is_queued(stored.sys_flag):
            return
        unit = _Unit(stored.physical_offset, self._tags_code(stored))
        self._queues[stored.topic, stored.queue_id].units.append(unit)
        if self._is_light(stored.topic, stored.properties) and (
            props.INNER_MULTI_QUEUE_OFFSET in stored.properties
        ):
            for topic in stored.properties[props.INNER_MULTI_DISPATCH].split(props.LMQ_SEPARATOR):
                self._queues[_further_queue(topic, stored.queue_id)].units.append(unit)

    def _tags_code(self, stored: StoredMessage) -> int:
        level = stored.properties.get(props.DELAY, "0")
        if (
            stored.topic == names.SCHEDULE_TOPIC
            and level.isascii()
            and level.isdigit()
            and int(level)
        ):
            levels = dict(enumerate(self.config.delay_levels_ms, 1))
            return stored.store_timestamp + levels.get(int(level), 1000)
        return cq_unit.tags_code(stored.tags)

    # Steps.

    def sync(self) -> None:
        """Do nothing: there is no disk."""

    def step(self, now_ms: int | None = None) -> bool:
        """Notify the listeners of new messages; return whether there were any."""
        did = False
        for (topic, queue_id), queue in self._queues.items():
            notified, queue.notified_offset = queue.notified_offset, queue.max_offset
            if notified < queue.max_offset:
                did = True
                for listener in self._listeners:
                    listener(topic, queue_id, notified, queue.max_offset)
        return did

    def add_listener(self, listener: Listener) -> None:
        """Notify a listener of new messages from the next step on."""
        self._listeners.append(listener)

    def expire(self, physical_offset: int) -> None:
        """Remove the records before an offset, as the expiry of log files does."""
        self._records = {
            position: data
            for position, data in self._records.items()
            if position >= physical_offset
        }
        self._min_physical_offset = min(self._records, default=self._end)
        for queue in self._queues.values():
            gone = (unit.physical_offset < physical_offset for unit in queue.units)
            queue.min_offset = sum(gone)

    # Gets.

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
        """Return messages of a queue from an offset on."""
        queue = self._queues.get((topic, queue_id))
        if queue is None:
            return self._empty(GetStatus.NO_MATCHED_LOGIC_QUEUE, _Queue(), queue_offset, 0)
        low, high = queue.min_offset, queue.max_offset
        if high == 0:
            return self._empty(GetStatus.NO_MESSAGE_IN_QUEUE, queue, queue_offset, 0)
        if queue_offset < low:
            return self._empty(GetStatus.OFFSET_TOO_SMALL, queue, queue_offset, low)
        if queue_offset == high:
            return self._empty(GetStatus.OFFSET_OVERFLOW_ONE, queue, queue_offset, high)
        if queue_offset > high:
            return self._empty(GetStatus.OFFSET_OVERFLOW_BADLY, queue, queue_offset, high)
        taken: list[bytes] = []
        next_offset = queue_offset
        scanned = max(self.config.max_filter_message_size // cq_unit.SIZE, max_count)
        for unit in queue.units[queue_offset : queue_offset + scanned]:
            data = self._records[unit.physical_offset]
            if self._is_full(taken, data, unit, max_count):
                break
            next_offset += 1
            if _takes(unit, data, tags_codes, message_filter):
                taken.append(data)
        status = GetStatus.FOUND if taken else GetStatus.NO_MATCHED_MESSAGE
        last = queue.units[min(next_offset, high - 1)].physical_offset
        is_far_back = self._end - last > self._memory_bytes
        data = b"".join(taken)
        return GetResult(status, next_offset, low, high, data, len(taken), is_far_back)

    def _empty(self, status: GetStatus, queue: _Queue, asked: int, right: int) -> GetResult:
        is_slave = self.config.broker_role is BrokerRole.SLAVE
        next_offset = asked if is_slave and not self.config.offset_check_in_slave else right
        return GetResult(status, next_offset, queue.min_offset, queue.max_offset)

    def _is_full(self, taken: list[bytes], data: bytes, unit: _Unit, max_count: int) -> bool:
        """Return whether a reply takes no further message; it always takes the first."""
        config = self.config
        size = sum(map(len, taken)) + len(data)
        if self._end - unit.physical_offset > self._memory_bytes:
            most = config.max_transfer_count_on_message_in_disk
            most_bytes = config.max_transfer_bytes_on_message_in_disk
        else:
            most = config.max_transfer_count_on_message_in_memory
            most_bytes = config.max_transfer_bytes_on_message_in_memory
        return bool(taken) and (len(taken) >= min(most, max_count) or size > most_bytes)

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
        """Return the newest messages with a key, in the order of the log."""
        places = self._tags if is_tags else self._keys
        hits = [
            data
            for physical_offset in places.get((topic, key), ())
            if (data := self._records.get(physical_offset)) is not None
            and begin_ms <= record.store_timestamp_of(data) <= end_ms
        ]
        most = max(min(max_count, self.config.max_msgs_num_batch), 0)
        return QueryResult(hits[max(len(hits) - most, 0) :], is_truncated=len(hits) > most)

    def record_at(self, physical_offset: int) -> bytes | None:
        """Return the record at a physical offset; None if there is none."""
        return self._records.get(physical_offset)

    def min_offset(self, topic: str, queue_id: int) -> int:
        """Return the queue offset of the oldest message; the end if there is none."""
        return self._queue(topic, queue_id).min_offset

    def max_offset(self, topic: str, queue_id: int) -> int:
        """Return the queue offset after the newest message."""
        return self._queue(topic, queue_id).max_offset

    def _queue(self, topic: str, queue_id: int) -> _Queue:
        return self._queues.get((topic, queue_id)) or _Queue()

    def offset_by_time(
        self, topic: str, queue_id: int, timestamp_ms: int, boundary: Boundary = Boundary.LOWER
    ) -> int:
        """Return the queue offset for a time; see ``Getter.offset_by_time``."""
        queue = self._queue(topic, queue_id)
        times = list(self._times(queue))
        if boundary is Boundary.LOWER:
            return queue.min_offset + bisect.bisect_left(times, timestamp_ms)
        return queue.min_offset + max(bisect.bisect_right(times, timestamp_ms) - 1, 0)

    def _times(self, queue: _Queue) -> Iterator[int]:
        for unit in queue.units[queue.min_offset :]:
            yield record.store_timestamp_of(self._records[unit.physical_offset])

    def store_time(self, topic: str, queue_id: int, queue_offset: int) -> int | None:
        """Return the store time of a message in ms; None if there is no such message."""
        queue = self._queue(topic, queue_id)
        if not queue.min_offset <= queue_offset < queue.max_offset:
            return None
        return list(self._times(queue))[queue_offset - queue.min_offset]

    def earliest_message_time(self, topic: str, queue_id: int) -> int | None:
        """Return the store time of the oldest message of a queue in ms; None if there is none."""
        return self.store_time(topic, queue_id, self.min_offset(topic, queue_id))

    def lag_bytes(self, topic: str, queue_id: int, consumer_offset: int) -> int:
        """Return how far a consumer lags in the log, in bytes."""
        queue = self._queue(topic, queue_id)
        following = queue.units[max(consumer_offset, queue.min_offset) :]
        return self._end - following[0].physical_offset if following else 0

    @property
    def min_physical_offset(self) -> int:
        """Physical offset of the first record."""
        return self._min_physical_offset

    @property
    def max_physical_offset(self) -> int:
        """Physical offset after the last record."""
        return self._end

    # Deletions.

    def delete_topic(self, topic: str) -> int:
        """Delete the queues of a topic; its messages stay. Return the number of queues."""
        keys = [key for key in self._queues if key[0] == topic]
        for key in keys:
            del self._queues[key]
        return len(keys)


def _further_queue(topic: str, queue_id: int) -> tuple[str, int]:
    return topic, 0 if topic.startswith(names.LMQ_PREFIX) else queue_id


def _with_last_separator(stored: StoredMessage) -> bytes:
    data = stored.property_bytes
    separator = props.PROPERTY_SEPARATOR.encode()
    if data and not data.endswith(separator):
        data += separator
    return record.encode(dataclasses.replace(stored, property_bytes=data))


def _takes(
    unit: _Unit, data: bytes, tags_codes: Sequence[int], message_filter: MessageFilter | None
) -> bool:
    if message_filter is not None:
        is_candidate = message_filter.takes_unit(unit.tags_code, b"", 0)
        return is_candidate and message_filter.takes_record(memoryview(data))
    return not tags_codes or unit.tags_code in tags_codes
