"""Putting: checks in the broker's order, encoding of records, appends to the log.

A message on the fast path costs one record, one call of a kernel, and one result. If the kernel
stops (the file is full, the topic is new, space must be reserved), this module provides the
missing part, and calls it again.
"""

import dataclasses
import logging
from collections.abc import Sequence

import numpy as np

from reput.clock import Clock
from reput.errors import CorruptRecord, DiskFull, WriteFailed
from reput.format import (
    batch as batches,
    java,
    message as record,
    names,
    properties as props,
    sys_flag as flags,
)
from reput.format.kernels.rows import size_of
from reput.format.message import Host
from reput.store import limits
from reput.store.config import StoreConfig
from reput.store.hot_state import HotState
from reput.store.kernels import control_block as state, hot
from reput.store.log.commit_log import CommitLog
from reput.store.queues.batch_queue import BatchQueues
from reput.store.queues.consume_queue import ConsumeQueue
from reput.store.queues.consume_queues import ConsumeQueues
from reput.store.writing import incoming
from reput.store.writing.dispatch import Dispatcher
from reput.store.writing.incoming import IncomingMessage, PutResult, PutStatus, Refused

_PLACE_BYTES = size_of(state.AppendPlace)
_PLACES_INITIAL = 256
_TOPICS_REMEMBERED_MAX = 100_000
_PUT_OK = PutStatus.PUT_OK
_LIGHT = props.INNER_MULTI_DISPATCH.encode()
_LIGHT_OFFSETS = props.INNER_MULTI_QUEUE_OFFSET.encode()
_DELAY = props.DELAY.encode()
_OF_BROKERS = [name.encode() for name in sorted(props.OF_BROKERS)]
_PAIR_END = props.PROPERTY_SEPARATOR.encode()

_log = logging.getLogger(__name__)


class Putter:
    """Appends messages to the log.

    Args:
        config: Limits.
        clock: Source of the time.
        hot_state: State shared with kernels.
        log: The commit log.
        queues: Consume queues, which assign queue offsets.
        batch_queues: Batch queues, which assign the offsets of batches.
        dispatcher: Provides rows and space.
    """

    def __init__(
        self,
        config: StoreConfig,
        clock: Clock,
        hot_state: HotState,
        log: CommitLog,
        queues: ConsumeQueues,
        batch_queues: BatchQueues,
        dispatcher: Dispatcher,
    ) -> None:
        self._config = config
        self._clock = clock
        self._hot = hot_state
        self._block = hot_state.block
        self._argument = hot_state.argument
        self._commit_log = log
        self._queues = queues
        self._batch_queues = batch_queues
        self._dispatcher = dispatcher
        self._block.has_record_crc = config.enabled_append_prop_crc
        self._has_light_queues = config.enable_multi_dispatch
        self._body_bytes_max = config.max_message_size
        # Longer topics may be allowed; ``refuse_lengths`` checks them.
        self._topic_bytes_max = min(config.max_topic_length, record.TOPIC_BYTES_MAX_V1)
        self._record_bytes_max = config.record_bytes_max
        self._make_places(_PLACES_INITIAL)
        self._topics: dict[str, bytes] = {}
        self._is_busy = False
        self.refusal = "the store is not open"
        """Reason why puts are refused; empty if they are accepted."""

    def _make_places(self, count: int) -> None:
        self._places = np.zeros(2 * count, np.int64)
        self._place_words = self._places.data
        self._places_address = hot.address_of(self._places)

    # A message, many messages, a batch --------------------------------------------------------

    def put(self, message: IncomingMessage, now_ms: int | None) -> PutResult:
        """Append a message; see ``MessageStore.put``."""
        try:
            self._refuse_if_closed()
            if self._has_light_queues and _LIGHT in message.property_bytes:
                return self._put_light(message, self._store_time(now_ms))
            data = self._record_of(message)
        except Refused as refused:
            return PutResult(refused.status, reason=refused.reason)
        now_ms = self._store_time(now_ms)
        stored, status, reason = self._append(data, 1, now_ms)
        if not stored:
            return PutResult(status, reason=reason)
        return self._stored(0, len(data), now_ms, message.store_host)

    def _stored(self, i: int, size: int, now_ms: int, store_host: Host) -> PutResult:
        """Return the result of the i-th appended record."""
        words = self._place_words
        physical_offset, queue_offset = words[2 * i], words[2 * i + 1]
        # The same as ``PutResult(...)``, without the lookup of nine names.
        return tuple.__new__(
            PutResult, (_PUT_OK, physical_offset, size, queue_offset, now_ms, 1, store_host, (), "")
        )

    def put_many(self, messages: Sequence[IncomingMessage], now_ms: int | None) -> list[PutResult]:
        """Append messages in one pass; see ``MessageStore.put_many``."""
        results: list[PutResult] = []
        pending: list[tuple[IncomingMessage, bytes]] = []
        now_ms = self._store_time(now_ms)
        for message in messages:
            try:
                self._refuse_if_closed()
                if self._has_light_queues and _LIGHT in message.property_bytes:
                    results += self._put_run(pending, now_ms)
                    pending = []
                    results.append(self._put_light(message, now_ms))
                else:
                    pending.append((message, self._record_of(message)))
            except Refused as refused:
                results += self._put_run(pending, now_ms)
                pending = []
                results.append(PutResult(refused.status, reason=refused.reason))
        return results + self._put_run(pending, now_ms)

    def _put_run(
        self, pending: list[tuple[IncomingMessage, bytes]], now_ms: int
    ) -> list[PutResult]:
        if not pending:
            return []
        data = b"".join([data for _, data in pending])
        stored, status, reason = self._append(data, len(pending), now_ms)
        results = [
            self._stored(i, len(data), now_ms, message.store_host)
            for i, (message, data) in enumerate(pending[:stored])
        ]
        return results + [PutResult(status, reason=reason)] * (len(pending) - stored)

    def _put_light(self, message: IncomingMessage, now_ms: int) -> PutResult:
        """Append a message that names light queues, with its offsets in all of them."""
        queues = self._light_queues_of(message)
        offsets = [queue.next_offset for queue in queues]
        if queues:
            properties = message.properties
            numbers = props.LMQ_SEPARATOR.join(map(str, offsets))
            properties[props.INNER_MULTI_QUEUE_OFFSET] = numbers
            message = incoming.with_properties(message, properties)
        elif _LIGHT_OFFSETS in message.property_bytes:
            # From a copied or forged message: dispatch would use it.
            properties = message.properties
            properties.pop(props.INNER_MULTI_QUEUE_OFFSET, None)
            message = incoming.with_properties(message, properties)
        data = self._record_of(message)
        stored, status, reason = self._append(data, 1, now_ms)
        if not stored:
            return PutResult(status, reason=reason)
        # A prepared or rolled back message is in no queue, and gets no offset.
        taken = zip(queues, offsets, strict=True) if flags.is_queued(message.sys_flag) else ()
        for queue, queue_offset in taken:
            # Dispatch may come later: the next message must get another offset.
            row = queue.row
            row.next_offset = max(row.next_offset, queue_offset + 1)
        return self._stored(0, len(data), now_ms, message.store_host)

    def _light_queues_of(self, message: IncomingMessage) -> list[ConsumeQueue]:
        topic_list = message.properties.get(props.INNER_MULTI_DISPATCH, "")
        stored = incoming.delayed(message, self._block.delay_count)
        if not topic_list or not names.may_have_light_queues(stored.topic):
            return []
        topics = topic_list.split(props.LMQ_SEPARATOR)
        incoming.refuse_light_names(topics)
        queues = []
        for topic in topics:
            is_light = topic.startswith(names.LMQ_PREFIX)
            queue_id = 0 if is_light else message.queue_id
            if is_light and self._queues.find(topic, 0) is None:
                self._refuse_more_light_queues()
            queues.append(self._queues.make(topic, queue_id))
        return queues

    def put_encoded(self, data: bytes, count: int, now_ms: int | None) -> tuple[int, memoryview]:
        """Append records without offsets; see ``MessageStore.put_encoded``."""
        if self.refusal or self._is_busy:
            return 0, self._place_words[:0]
        stored, _, _ = self._append(data, count, self._store_time(now_ms))
        return stored, self._place_words[: 2 * stored]

    def put_batch(self, message: IncomingMessage, now_ms: int | None) -> PutResult:
        """Append the messages of a batch; see ``MessageStore.put_batch``."""
        try:
            self._refuse_if_closed()
            incoming.refuse_batch(message, self._body_bytes_max)
            if message.sys_flag & flags.INNER_BATCH:
                return self._put_whole_batch(message, self._store_time(now_ms))
            data, count = self._records_of_batch(message)
        except Refused as refused:
            return PutResult(refused.status, reason=refused.reason)
        now_ms = self._store_time(now_ms)
        stored, status, reason = self._append(data, count, now_ms, is_together=True)
        if stored < count:
            return PutResult(status, reason=reason)
        places = self._place_words[: 2 * count].tolist()
        return PutResult(
            PutStatus.PUT_OK,
            places[0],
            len(data),
            places[1],
            now_ms,
            count,
            message.store_host,
            tuple(places[0::2]),
        )

    def _put_whole_batch(self, message: IncomingMessage, now_ms: int) -> PutResult:
        """Append a batch as one record, with the number of its messages and the first queue offset.

        Raises:
            Refused: The batch cannot be stored.
        """
        plain = dataclasses.replace(message, body=b"", property_bytes=b"")
        common = _BatchCommon(plain, b"")
        count, _ = self._count_parts(message, common)
        self._refuse_light_parts(message, common)
        if count > batches.COUNT_MAX:
            raise Refused(
                PutStatus.MESSAGE_ILLEGAL,
                f"the batch has {count} messages; allowed: {batches.COUNT_MAX}",
            )
        why_not = self._dispatcher.why_no_queue(message.topic, message.queue_id, message.sys_flag)
        if why_not:
            raise Refused(PutStatus.MESSAGE_ILLEGAL, why_not)
        queue = self._batch_queues.make(message.topic, message.queue_id)
        base = queue.next_offset
        marks = {props.INNER_NUM: str(count), props.INNER_BASE: str(base)}
        whole = incoming.with_properties(message, message.properties | marks)
        data = self._record_of(whole, may_wait=False)
        stored, status, reason = self._append(data, 1, now_ms)
        if not stored:
            return PutResult(status, reason=reason)
        # Dispatch may come later: the next batch must get other offsets.
        row = queue.row
        row.next_offset = max(row.next_offset, base + count)
        self._hot.count_more(java.encode_utf8(message.topic), count - 1)
        return self._stored(0, len(data), now_ms, message.store_host)._replace(message_count=count)

    def _records_of_batch(self, message: IncomingMessage) -> tuple[bytes, int]:
        """Return the records of a batch's messages, concatenated, and their number.

        Raises:
            Refused: A message cannot be stored.
            LimitExceeded: There are too many messages.
        """
        empty = dataclasses.replace(message, body=b"", property_bytes=b"")
        self._record_of(empty, may_wait=False)
        common = _BatchCommon(empty, java.encode_utf8(message.topic))
        self._refuse_light_parts(message, common)
        if any(name in message.body for name in _OF_BROKERS):  # perhaps in a body; usually none
            common.dropped = b"".join(name + _PAIR_END for name in _OF_BROKERS)
        if self._config.enabled_append_prop_crc:
            common.tail = incoming.with_crc_room(empty).property_bytes
        count, size = self._count_parts(message, common)
        target = np.empty(size, np.uint8)
        common.call(message.body, self._record_bytes_max, hot.address_of(target))
        return target.tobytes(), count

    def _refuse_light_parts(self, message: IncomingMessage, common: "_BatchCommon") -> None:
        """Refuse a batch whose messages name light queues, in which they would be missing.

        Raises:
            Refused: A message of it does.
            LimitExceeded: There are too many messages.
        """
        if not (self._has_light_queues and names.may_have_light_queues(message.topic)):
            return
        for name in incoming.OF_LIGHT_QUEUES:
            data = name.encode()
            if data not in message.body:
                continue
            _, _, size = common.call(message.body, self._record_bytes_max)
            common.dropped = data + _PAIR_END
            _, _, size_without = common.call(message.body, self._record_bytes_max)
            common.dropped = b""
            if size != size_without:  # else it is in the body of a message
                raise incoming.light_part(name)

    def _count_parts(self, message: IncomingMessage, common: "_BatchCommon") -> tuple[int, int]:
        """Return the number of messages in a batch, and the size of their records in bytes.

        Raises:
            Refused: There is no message, or one cannot be stored.
            LimitExceeded: There are too many messages.
        """
        body = message.body
        if not body:
            raise Refused(PutStatus.MESSAGE_ILLEGAL, "the batch has no message")
        count, parsed_end, size = common.call(body, self._record_bytes_max)
        limits.BATCH_MESSAGES.check(count)
        if parsed_end < len(body):
            try:
                part, _ = batches.decode_one(body, parsed_end)
                part.property_bytes.decode()
            except CorruptRecord as error:
                raise Refused(PutStatus.MESSAGE_ILLEGAL, str(error)) from error
            except UnicodeDecodeError as error:
                # Such a record cannot be dispatched by kernels: 4 MB of them would take 15 seconds.
                raise Refused(
                    PutStatus.MESSAGE_ILLEGAL,
                    f"properties of the batch message at {parsed_end}: {error}; allowed: UTF-8",
                ) from error
            inner = dataclasses.replace(message, body=part.body, property_bytes=part.property_bytes)
            self._record_of(inner, may_wait=False)
            raise AssertionError(f"message at {parsed_end} of a batch is neither valid nor invalid")
        return count, size

    # Checks -----------------------------------------------------------------------------------

    def _refuse_if_closed(self) -> None:
        if self.refusal:
            raise Refused(PutStatus.SERVICE_NOT_AVAILABLE, self.refusal)
        if self._is_busy:
            raise Refused(PutStatus.OS_PAGE_CACHE_BUSY, "another put has not finished")

    def _record_of(self, message: IncomingMessage, *, may_wait: bool = True) -> bytes:
        config = self._config
        topic = self._topics.get(message.topic)
        if topic is None:
            incoming.refuse_names([message.topic])
            topic = java.encode_utf8(message.topic)
            if len(self._topics) > _TOPICS_REMEMBERED_MAX:
                self._topics.clear()
            self._topics[message.topic] = topic
        properties = message.property_bytes
        if not topic or len(topic) > self._topic_bytes_max or len(properties) > props.LENGTH_MAX:
            incoming.refuse_lengths(message, topic, config)
        if len(message.body) > self._body_bytes_max:
            raise Refused(
                PutStatus.MESSAGE_ILLEGAL,
                f"body has {len(message.body)} bytes; "
                f"allowed: {self._body_bytes_max} (maxMessageSize)",
            )
        if may_wait and message.sys_flag & flags.INNER_BATCH:
            raise Refused(PutStatus.MESSAGE_ILLEGAL, "a batch goes to a batch queue as a whole")
        if not 0 <= message.queue_id <= names.QUEUE_ID_MAX:  # a call for each put costs 3 % of it
            incoming.refuse_queue(message.queue_id)
        if may_wait and properties and _DELAY in properties:
            message = incoming.delayed(message, self._block.delay_count)
            topic = java.encode_utf8(message.topic)
        if config.enabled_append_prop_crc:
            message = incoming.with_crc_room(message)
        data = incoming.encode(message, topic)
        if len(data) > self._record_bytes_max:
            raise Refused(
                PutStatus.MESSAGE_ILLEGAL,
                f"record has {len(data)} bytes; allowed: {self._record_bytes_max}",
            )
        return data

    def _refuse_more_light_queues(self) -> None:
        limit = self._config.max_lmq_consume_queue_num
        count = self._queues.light_count
        if count >= limit:
            raise Refused(
                PutStatus.LMQ_CONSUME_QUEUE_NUM_EXCEEDED,
                f"there are {count} light queues; allowed: {limit} (maxLmqConsumeQueueNum)",
            )

    def _store_time(self, now_ms: int | None) -> int:
        """Return the store time of a put at a time; it is not before that of the last record.

        Offsets by time are found by binary search, which needs ascending times. If a clock is set
        back further than clocks are usually corrected, its time is used again.
        """
        if now_ms is None:
            now_ms = self._clock.now_ms()
        last = self._block.log_timestamp
        if now_ms >= last:
            return now_ms
        stored_ms = self.store_time(now_ms)
        if stored_ms < last:
            _log.warning("the clock went back by %d ms", last - now_ms)
        return stored_ms

    def store_time(self, now_ms: int) -> int:
        """Return the store time of a put at a time; the clock may have been set back."""
        last = self._block.log_timestamp
        return last if now_ms < last <= now_ms + incoming.BACKWARD_MS_MAX else now_ms

    # Into the log -----------------------------------------------------------------------------

    def _append(
        self, data: bytes, count: int, now_ms: int, *, is_together: bool = False
    ) -> tuple[int, PutStatus, str]:
        """Append records; return the number in the log, and the status of the next one.

        Their offsets are in ``_places``. With ``is_together`` all of them are appended to one file,
        or none, if there is no space for all.
        """
        if 2 * count > len(self._place_words):
            self._make_places(2 * count)
        block = self._block
        stored = 0
        self._is_busy = True
        try:
            if is_together:
                self._make_room_for_all(len(data))
            block.input_position = 0
            block.input_size = len(data)
            block.input_time = now_ms
            block.places = self._places_address
            while True:
                stored += hot.append(self._argument, data)
                if block.stop == state.STOP_DONE:
                    return stored, _PUT_OK, ""
                block.places = self._places_address + _PLACE_BYTES * stored
                stored += self._provide(block.stop, data, stored, now_ms)
                block.places = self._places_address + _PLACE_BYTES * stored
        except Refused as refused:
            return stored, refused.status, refused.reason
        except DiskFull as error:
            return stored, PutStatus.SERVICE_NOT_AVAILABLE, str(error)
        except WriteFailed as error:
            return stored, PutStatus.CREATE_MAPPED_FILE_FAILED, str(error)
        finally:
            self._is_busy = False

    def _make_room_for_all(self, size: int) -> None:
        block = self._block
        end = block.log_position + size
        if not block.log_address or end + record.BLANK.size > block.log_size:
            self._commit_log.roll()
        if block.log_position + size > block.log_limit:
            self._commit_log.reserve(size)

    def _provide(self, reason: int, data: bytes, stored: int, now_ms: int) -> int:
        """Provide what the kernel stopped for; return how many records this has appended."""
        block = self._block
        if reason == state.STOP_LIGHT:
            message = record.decode(hot.bytes_of_record(block.stop_row), check_crc=False)
            with self._dispatcher.deferring_failures(message.physical_offset):
                self._dispatcher.put_light_units(message)
            return 0
        position = block.input_position
        size, _ = record.SIZE_AND_MAGIC.unpack_from(data, position)
        if self.provide(reason, data[position : position + size], now_ms):
            return 0
        return self._append_slowly(data, position + size, stored, now_ms)

    def provide(self, reason: int, data: bytes, now_ms: int) -> bool:
        """Provide what the kernel stopped for before a record.

        Returns:
            True if it can continue; if not, the record must be dispatched without kernels.

        Raises:
            Refused: The record cannot be stored.
            WriteFailed: There is no file or space for it; also ``DiskFull``.
        """
        if reason == state.STOP_ROLL:
            self._commit_log.roll()
            return True
        if reason == state.STOP_RESERVE:
            self._commit_log.reserve(len(data))
            return True
        if reason in (state.STOP_TOPIC, state.STOP_QUEUE):
            why_not = self._dispatcher.make_queue(data)
            if why_not:
                raise Refused(PutStatus.MESSAGE_ILLEGAL, why_not)
            return True
        return self._dispatcher.provide(reason, data, now_ms)

    def begin(self, now_ms: int | None = None) -> int:
        """Begin a put, which lasts until ``end``; return its store time, see ``put``.

        This also sets the clock of the kernels.
        """
        self._is_busy = True
        if now_ms is None:
            now_ms = self._clock.now_ms()
        self._block.clock_time = now_ms
        return self._store_time(now_ms)

    def end(self) -> None:
        """End the put that ``begin`` began."""
        self._is_busy = False

    def _append_slowly(self, data: bytes, end: int, stored: int, now_ms: int) -> int:
        """Append a record that kernels cannot dispatch."""
        block = self._block
        size = block.input_size
        is_live = block.is_live
        block.input_size, block.is_live = end, 0
        try:
            if not hot.append(self._argument, data):
                return 0  # it stopped for something else, which is provided first
        finally:
            block.input_size, block.is_live = size, is_live
        address = block.log_address + self._place_words[2 * stored] - block.log_start
        message = record.decode(hot.bytes_of_record(address), check_crc=False)
        with self._dispatcher.deferring_failures(message.physical_offset):
            self._dispatcher.put_slowly(message, now_ms)
        return 1


class _BatchCommon:
    """The parts that all records of a batch have in common.

    Args:
        message: A message of the batch, without body and properties.
        topic: Its topic in UTF-8.
    """

    def __init__(self, message: IncomingMessage, topic: bytes) -> None:
        data = incoming.encode(message, topic)
        is_v1 = len(topic) <= record.TOPIC_BYTES_MAX_V1
        topic_length = record.TOPIC_LENGTH_V1 if is_v1 else record.TOPIC_LENGTH_V2
        topic_end = len(data) - record.PROPERTIES_LENGTH.size
        body_start = topic_end - len(topic) - topic_length.size
        self._head = data[:body_start]
        self._topic = data[body_start:topic_end]
        self.dropped = b""
        """Names of properties that are left out, each followed by a separator."""
        self.tail = b""
        """Bytes that are appended to the properties of each record."""

    def call(self, body: bytes, record_max: int, target: int = 0) -> tuple[int, int, int]:
        """Return the number of records of a batch, the position after them, and their size.

        They are written to the address ``target``, if it is given.

        Raises:
            LimitExceeded: Their properties contain too many keys.
        """
        arguments: list[int] = []
        arrays = []
        for text in (body, self._head, self._topic, self.dropped, self.tail):
            array = np.frombuffer(text or b"?", np.uint8)  # an empty array has no address
            arrays.append(array)
            arguments += (hot.address_of(array), len(text))
        result = np.zeros(3, np.int64)  # position, bytes, keys
        count = hot.batch_records(*arguments, record_max, target, hot.address_of(result))
        limits.BATCH_KEYS.check(int(result[2]))
        return count, int(result[0]), int(result[1])
