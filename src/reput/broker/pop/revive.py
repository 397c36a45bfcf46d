"""Durable checkpoints: messages that were popped and not acknowledged are delivered again.

A checkpoint is a ``ck`` record in a queue of the revive topic, stored before the client receives
its messages. Acks are in memory, and in ``bAck`` records within ``ACK_SAVE_MS``, unless the queue's
progress has passed their checkpoint by then. Messages that are not acknowledged when their
invisible time is over are copied to the group's retry topic. The progress in a queue of the revive
topic is the consumer offset of ``CID_RMQ_SYS_REVIVE_GROUP``; as in Java, it is the offset of the
last finished record, not of the one after it.

Java's brokers park checkpoints and acks in the timer, which delivers them to the revive topic when
they are due. Records in the revive topic that were not put here are therefore read too, and acks
that may follow a checkpoint are waited for: after a start the timer may be late, and delivers a
checkpoint before its ack. An ack of a checkpoint that is still in the timer is parked beside it, as
Java does. docs/decisions/ explains the difference. Source:
rocketmq 5.5.0 ``PopReviveService``, ``PopBufferMergeService``.
"""

import logging
from collections.abc import Callable, Sequence

from reput.broker.durable import DurableProgress
from reput.broker.group.subscription_groups import SubscriptionGroups
from reput.broker.pop.checkpoints import Checkpoint, Checkpoints, Key, of_record
from reput.broker.pop.retry_topics import V1, PopRetries
from reput.broker.quarantine import Quarantine
from reput.broker.republish import RETRY_MS, copied_message
from reput.broker.timer.timers import Timers
from reput.broker.topic.topics import READ_WRITE, Topics
from reput.config import JAVA_INT_MAX
from reput.errors import CorruptRecord, WriteFailed
from reput.format import batch, java, message as record, names, pop_codec, properties as props
from reput.format.message import Host, StoredMessage
from reput.format.pop_codec import AckRecord
from reput.store.message_store import MessageStore
from reput.store.tables.offsets import ConsumerOffsetTable
from reput.store.writing import incoming
from reput.store.writing.incoming import LOCAL_HOST, IncomingMessage, PutResult, PutStatus, Refused
from reput.store.writing.pop_reader import PopBatch

LOOP = "pops"
RETRY_QUEUE_COUNT = 1
ACK_SAVE_MS = 1_000
"""Interval at which acks are put, in ms; after a crash, later ones are delivered again."""
LATE_MS = 2_000
"""Extra delay of checkpoints of Java's brokers, in ms: their acks arrive when they are due."""
_LATE_POLL_MS = 100
"""Time until the next question whether late acks have arrived, in ms."""
_BODY_BYTES_MAX = 1024
"""Largest body that takes the fast path; far below every limit of the store."""
_REVIVED_PER_STEP = 128
_REVIVED_BYTES_PER_STEP = 1024 * 1024
"""Limit of the body bytes that a step copies; the first message is always copied."""
_READ_PER_STEP = 32
_ACKS_PER_STEP = 256
_CARRIED_PER_STEP = 64

# Java's revive uses the newest deliver time that it has seen as the current time, and the clock
# only if there was one. The pop's own time is past, so it never makes Java revive early.
_MARKS = props.encode({props.TAGS: "%b", props.TIMER_DELIVER_MS: "%d"})
"""Properties of a record of the revive topic: its tag, and the time of the pop."""
_CHECKPOINT = pop_codec.CHECKPOINT_TAG.encode()
_BATCH_ACK = pop_codec.BATCH_ACK_TAG.encode()

_log = logging.getLogger(__name__)


class Revive:
    """Stores checkpoints in the revive topic, and copies due messages to retry topics.

    To be used only by the thread that puts. ``load`` must be called first.

    Args:
        store: The store with messages, checkpoints and acks.
        topics: Creates the revive topic and retry topics.
        groups: The subscription groups; messages of deleted ones are dropped.
        offsets: Returns the table of consumer offsets.
        cluster_name: Suffix of the name of the revive topic.
        broker_name: Broker name in the checkpoints.
        queue_count: Queues of the revive topic when it is created.
        retries: Naming of the retry topics.
        quarantine: Takes records that cannot be processed.
        timers: The timer, in which Java parks checkpoints and acks; None: there is none.
        is_fast: True if pops use a kernel.
    """

    def __init__(
        self,
        store: MessageStore,
        topics: Topics,
        groups: SubscriptionGroups,
        offsets: Callable[[], ConsumerOffsetTable],
        *,
        cluster_name: str,
        broker_name: str,
        queue_count: int,
        retries: PopRetries = V1,
        quarantine: Quarantine | None = None,
        timers: Timers | None = None,
        is_fast: bool = True,
    ) -> None:
        self._timers = timers
        self.loaded_ms = 0
        """Time of ``load``: checkpoints of later pops are all known."""
        self._quarantine = Quarantine() if quarantine is None else quarantine
        self.checkpoints = Checkpoints()
        self.topic = names.REVIVE_TOPIC_PREFIX + cluster_name
        self._topic_bytes = java.encode_utf8(self.topic)
        # Reused for all puts: a new one costs 3 us, and the store caches its encoded record.
        self._envelope = IncomingMessage(self.topic, b"", waits=False, is_due=True)
        self.revived_count = 0
        self.lost_count = 0
        """Due messages that could not be read, or that the store refuses permanently."""
        self._is_fast = is_fast
        self._store = store
        self._topics = topics
        self._groups = groups
        self._offsets = offsets
        self._broker_name = broker_name
        self._queue_count = queue_count
        self._retries = retries
        self._next_queue = 0
        self._read: dict[int, int] = {}
        """Revive queue -> offset of the next record to be read."""
        self._own: dict[int, set[int]] = {}
        """Revive queue -> offsets of later records that this broker has put."""
        self._done: DurableProgress[int] = DurableProgress()
        self._published: dict[int, int] = {}
        self.checkpoints_end = 0
        """Physical offset after the last checkpoint."""
        self._copies_end = 0
        """Physical offset after the last message that was copied."""
        self._acks_saved_ms: int | None = None
        self._bytes_left = 0
        """Body bytes that the current step may still copy."""
        self._problem = ""
        self.store_host = LOCAL_HOST

    # Start ------------------------------------------------------------------------------------

    def load(self, now_ms: int) -> None:
        """Read the unfinished checkpoints and their acks from the revive topic."""
        self.loaded_ms = now_ms
        for queue_id, queue in sorted(self._store.queues.of_topic(self.topic).items()):
            known = self._offsets().get(self.topic, names.REVIVE_GROUP, queue_id)
            begin = queue.min_offset if known is None else known + 1
            self._read[queue_id] = max(queue.min_offset, min(begin, queue.max_offset))
            self._published[queue_id] = self._read[queue_id] - 1
            while self._read_records(queue_id):
                pass

    @property
    def store_host(self) -> Host:
        """Address of this broker in its records."""
        return self._store_host

    @store_host.setter
    def store_host(self, host: Host) -> None:
        self._store_host = host
        if not self._is_fast:
            return
        marks, _, _ = _MARKS.partition(b"%d")
        self._store.pop_reader.open(
            broker_name=self._broker_name, topic=self.topic, marks=marks % _CHECKPOINT, host=host
        )

    # Pops and acks ----------------------------------------------------------------------------

    def next_queue(self) -> int:
        """Return the revive queue for the next checkpoint, in turn."""
        self._next_queue = (self._next_queue + 1) % self._queue_count
        return self._next_queue

    def hold(
        self,
        key: Key,
        queue_offsets: Sequence[int],
        invisible_ms: int,
        revive_queue_id: int,
        now_ms: int,
        *,
        is_suspended: bool = False,
    ) -> PutResult:
        """Put a checkpoint: its messages are invisible to the group until they are due.

        Args:
            key: Key of the new checkpoint.
            queue_offsets: Queue offsets of its messages, 1 to 32. The sequence is kept.
            invisible_ms: Invisible time, counted from ``key.pop_ms``, in ms.
            revive_queue_id: Queue of the revive topic.
            now_ms: The time.
            is_suspended: True if the next delivery does not count as an attempt.

        Returns:
            The result of the put; the checkpoint exists only if it is stored.
        """
        self._topics.for_group(self.topic, self._queue_count, READ_WRITE, now_ms)
        body = pop_codec.encode_checkpoint(
            self._broker_name,
            key.group,
            key.topic,
            key.queue_id,
            key.start_offset,
            queue_offsets,
            key.pop_ms,
            invisible_ms,
            is_suspended=is_suspended,
        )
        result = self._put(body, _CHECKPOINT, revive_queue_id, key.pop_ms, now_ms)
        if result.status.is_stored:
            self.checkpoints_end = result.end_offset
            self.checkpoints.add(
                Checkpoint(
                    key,
                    queue_offsets,
                    key.pop_ms + invisible_ms,
                    revive_queue_id,
                    result.queue_offset,
                    is_suspended=is_suspended,
                )
            )
        return result

    def pop_messages(
        self,
        key: Key,
        count_max: int,
        tags_codes: tuple[int, ...],
        invisible_ms: int,
        revive_queue_id: int,
    ) -> PopBatch | None:
        """Read messages and ``hold`` them in one kernel call.

        Args:
            key: Key of the checkpoint: the first queue offset, the group, and the time of the pop.
            count_max: Messages at most.
            tags_codes: Tags codes to select; empty for all messages.
            invisible_ms: Invisible time, counted from ``key.pop_ms``, in ms.
            revive_queue_id: Queue of the revive topic.

        Returns:
            The popped messages; None if there are none or the fast path does not apply. Nothing was
            changed then.
        """
        if key in self.checkpoints or self._topics.get(self.topic) is None:
            return None
        taken = self._store.pop_reader.pop(
            key.topic,
            key.group,
            key.queue_id,
            key.start_offset,
            count_max,
            tags_codes,
            pop_ms=key.pop_ms,
            invisible_ms=invisible_ms,
            revive_queue_id=revive_queue_id,
        )
        if taken is not None:
            self._record_put(revive_queue_id, taken.revive_offset)
            self.checkpoints_end = taken.end_offset
            self.checkpoints.add(
                Checkpoint(
                    key,
                    taken.queue_offsets,
                    key.pop_ms + invisible_ms,
                    revive_queue_id,
                    taken.revive_offset,
                )
            )
        return taken

    def is_unknown(self, key: Key) -> bool:
        """Return whether a missing checkpoint may have been put by an earlier broker."""
        return key.pop_ms < self.loaded_ms and key not in self.checkpoints

    def may_come(self, key: Key, due_ms: int, now_ms: int) -> bool:
        """Return whether a checkpoint that Java has parked may still be in the timer.

        Args:
            key: Its key.
            due_ms: The end of the invisible time, in ms.
            now_ms: The time.
        """
        if self._timers is None or not self.is_unknown(key) or due_ms <= now_ms:
            return False
        if self._timers.may_hold(self.topic) and not self._timers.have_left(due_ms):
            return True
        return not all(map(self._is_read, self._store.queues.of_topic(self.topic)))

    def park_ack(
        self,
        key: Key,
        queue_offsets: Sequence[int],
        due_ms: int,
        revive_queue_id: int,
        now_ms: int,
    ) -> PutResult:
        """Put an ack into the timer, for a checkpoint that ``may_come``.

        Args:
            key: Key of the checkpoint.
            queue_offsets: Queue offsets of the acknowledged messages.
            due_ms: The end of the invisible time, in ms.
            revive_queue_id: Queue of the revive topic.
            now_ms: The time.

        Raises:
            RequestRefused: The timer takes no messages.
        """
        assert self._timers is not None, "a checkpoint cannot come"
        ack = self._ack_record(key, queue_offsets)
        # The timer delivers records of the same time in the order of their arrival.
        properties = {
            props.TAGS: pop_codec.BATCH_ACK_TAG,
            props.TIMER_DELIVER_MS: str(due_ms),
        }
        topic, queue_id = self.topic, revive_queue_id
        if self._timers.park(topic, queue_id, properties, now_ms):
            self._topics.for_group(names.TIMER_TOPIC, 1, READ_WRITE, now_ms)
            topic, queue_id = names.TIMER_TOPIC, 0
        return self._store.put(
            IncomingMessage(
                topic,
                pop_codec.encode(ack),
                queue_id,
                props.encode(properties),
                born_timestamp=now_ms,
                born_host=self.store_host,
                store_host=self.store_host,
                is_due=True,
            )
        )

    def _ack_record(self, key: Key, queue_offsets: Sequence[int]) -> AckRecord:
        return AckRecord(
            ack_offsets=list(queue_offsets),
            broker_name=self._broker_name,
            group=key.group,
            pop_ms=key.pop_ms,
            queue_id=key.queue_id,
            start_offset=key.start_offset,
            topic=key.topic,
        )

    def _put(
        self,
        body: bytes,
        tag: bytes,
        revive_queue_id: int,
        pop_ms: int,
        now_ms: int,
    ) -> PutResult:
        message = self._envelope
        message.body = body
        message.queue_id = revive_queue_id
        message.property_bytes = _MARKS % (tag, pop_ms)
        message.born_timestamp = now_ms
        message.born_host = message.store_host = self.store_host
        result = self._put_fast(message, now_ms) or self._store.put(message)
        if result.status.is_stored:
            self._record_put(revive_queue_id, result.queue_offset)
        return result

    def _record_put(self, revive_queue_id: int, revive_offset: int) -> None:
        """Record that this broker put a record, so that it is not read."""
        if self._read.setdefault(revive_queue_id, 0) == revive_offset:
            self._read[revive_queue_id] += 1
        else:
            self._own.setdefault(revive_queue_id, set()).add(revive_offset)

    def _put_fast(self, message: IncomingMessage, now_ms: int) -> PutResult | None:
        """Put a record on the fast path; return None if that is not possible."""
        is_long = max(len(message.body), 8 * len(self._topic_bytes)) > _BODY_BYTES_MAX
        if is_long or self._store.config.enabled_append_prop_crc:
            return None
        data = incoming.encode(message, self._topic_bytes)
        count, place = self._store.put_encoded(data, 1, now_ms)
        if not count:
            return None
        # The same as the constructor, without its nine keyword arguments.
        stored = PutStatus.PUT_OK, place[0], len(data), place[1], now_ms, 1, self.store_host, (), ""
        return tuple.__new__(PutResult, stored)

    # Steps ------------------------------------------------------------------------------------

    def step(self, now_ms: int) -> bool:
        """Do a bounded part of the work that is due.

        Returns:
            True if anything was done: there may be more.
        """
        did = False
        for queue_id in self._store.queues.of_topic(self.topic):
            self._read.setdefault(queue_id, 0)
            did = self._read_records(queue_id) or did
        did = self._revive(now_ms) or did
        saved_ms = self._acks_saved_ms
        if saved_ms is None or not 0 <= now_ms - saved_ms < ACK_SAVE_MS:
            self._acks_saved_ms = now_ms
            did = self._save_acks(now_ms, _ACKS_PER_STEP) or did
            for queue_id in self._read:
                self._carry(queue_id, now_ms)
        return did

    def next_due_ms(self) -> int | None:
        """Return when there may be work again; None if nothing is pending."""
        return self.checkpoints.next_due_ms()

    def save_acks(self, now_ms: int) -> None:
        """Put records of all acks, at shutdown."""
        while self._save_acks(now_ms, _ACKS_PER_STEP):
            pass

    # Records of the revive topic --------------------------------------------------------------

    def _read_records(self, queue_id: int) -> bool:
        """Read records that other brokers put; return whether there may be more."""
        begin = self._read[queue_id]
        own = self._own.get(queue_id)
        if own:
            while begin in own:
                own.remove(begin)
                begin += 1
            self._read[queue_id] = begin
        if begin >= self._store.max_offset(self.topic, queue_id):
            return False
        result = self._store.get(self.topic, queue_id, begin, _READ_PER_STEP)
        for data in result.records:
            self._take_up(queue_id, data, own or set())
        self._read[queue_id] = max(result.next_offset, begin)
        return self._read[queue_id] > begin

    def _take_up(self, queue_id: int, data: memoryview, own: set[int]) -> None:
        try:
            stored = record.decode(bytes(data), check_crc=False)
            if stored.queue_offset in own:
                own.remove(stored.queue_offset)
            elif stored.tags == pop_codec.CHECKPOINT_TAG:
                checkpoint_record = pop_codec.decode_checkpoint(stored.body)
                checkpoint = of_record(checkpoint_record, queue_id, stored.queue_offset, LATE_MS)
                if checkpoint.queue_offsets:
                    self.checkpoints.add(checkpoint)
            elif stored.tags in (pop_codec.ACK_TAG, pop_codec.BATCH_ACK_TAG):
                self.checkpoints.apply_ack(pop_codec.decode_ack(stored.body))
            else:
                self._skip(queue_id, data, f"neither checkpoint nor ack: tags {stored.tags!r}")
        except MemoryError:
            raise
        except Exception as error:  # noqa: BLE001 - any bad record: the records after it must still be read
            self._skip(queue_id, data, error)

    def _skip(self, queue_id: int, data: memoryview, reason: Exception | str) -> None:
        """Report an unreadable record of the revive topic."""
        start = record.POSITION_PHYSICAL_OFFSET
        physical_offset = int.from_bytes(data[start : start + 8], "big")
        place = f"{self.topic}/{queue_id}, physical offset {physical_offset}"
        self._quarantine.add(LOOP, place, reason)

    def _save_acks(self, now_ms: int, count_max: int) -> bool:
        """Put records of acks; return whether there may be more."""
        for queue_id in self._read:
            # Drops the checkpoints before the first open one: their acks need no record.
            self.checkpoints.first_open(queue_id)
        taken = self.checkpoints.take_unsaved(count_max)
        for number, checkpoint in enumerate(taken):
            key = checkpoint.key
            ack = self._ack_record(key, checkpoint.unsaved)
            settled = checkpoint.settled
            body = pop_codec.encode(ack)
            result = self._put(body, _BATCH_ACK, checkpoint.revive_queue_id, key.pop_ms, now_ms)
            if not result.status.is_stored:
                for unsaved in taken[number:]:
                    self.checkpoints.return_unsaved(unsaved)
                problem = f"{result.status.name}: {result.reason}"
                self._refused("acknowledgements are only in memory", problem)
                return False
            checkpoint.saved = settled
        return len(taken) == count_max

    def _carry(self, queue_id: int, now_ms: int) -> None:
        """Rewrite old open checkpoints at the end of the queue, so that a start reads less."""
        for _ in range(_CARRIED_PER_STEP):
            checkpoint = self.checkpoints.stale(queue_id, self._read[queue_id])
            if checkpoint is None:
                return
            key = checkpoint.key
            body = pop_codec.encode_checkpoint(
                self._broker_name,
                key.group,
                key.topic,
                key.queue_id,
                key.start_offset,
                [checkpoint.queue_offsets[number] for number in checkpoint.left],
                key.pop_ms,
                max(0, checkpoint.due_ms - key.pop_ms),
                is_suspended=checkpoint.is_suspended,
            )
            result = self._put(body, _CHECKPOINT, queue_id, key.pop_ms, now_ms)
            if not result.status.is_stored:
                return
            self.checkpoints.carried(checkpoint, result.queue_offset)
            self._copies_end = max(self._copies_end, result.end_offset)

    def publish_progress(self) -> None:
        """Publish the consumer offsets of finished and durable records."""
        for queue_id, read in self._read.items():
            first_open = self.checkpoints.first_open(queue_id)
            last = (read if first_open is None else first_open) - 1
            if last > self._published.get(queue_id, -1):
                self._published[queue_id] = last
                self._done.add(queue_id, last, self._copies_end)
        for queue_id, last in self._done.durable(self._store.log.flushed_offset):
            self._offsets().put(self.topic, names.REVIVE_GROUP, queue_id, last)

    # Copies to retry topics -------------------------------------------------------------------

    def _revive(self, now_ms: int) -> bool:
        count = 0
        self._bytes_left = _REVIVED_BYTES_PER_STEP
        for checkpoint in self.checkpoints.due(now_ms):
            if count >= _REVIVED_PER_STEP or self._bytes_left <= 0:
                self.checkpoints.put_off(checkpoint, checkpoint.due_ms)
                break
            if checkpoint.was_read and not self._acks_are_read(checkpoint):
                self.checkpoints.put_off(checkpoint, now_ms + _LATE_POLL_MS)
                continue
            count += len(checkpoint.left)
            due_ms = self._revive_checkpoint(checkpoint, now_ms)
            if due_ms is not None:
                self.checkpoints.put_off(checkpoint, due_ms)
        return count > 0

    def _acks_are_read(self, checkpoint: Checkpoint) -> bool:
        """Return whether all acks that another broker took for a checkpoint were read."""
        queue_id = checkpoint.revive_queue_id
        return self._have_left(checkpoint.due_ms - LATE_MS) and self._is_read(queue_id)

    def _have_left(self, time_ms: int) -> bool:
        """Return whether the timer has delivered every record that Java parked until a time."""
        return self._timers is None or self._timers.have_left(time_ms)

    def _is_read(self, queue_id: int) -> bool:
        return self._read.get(queue_id, 0) >= self._store.max_offset(self.topic, queue_id)

    def _revive_checkpoint(self, checkpoint: Checkpoint, now_ms: int) -> int | None:
        """Copy the remaining messages of a checkpoint, as far as the store accepts them.

        Returns:
            The time of the next attempt, in ms; None if the checkpoint is finished.
        """
        try:
            if not self._is_needed(checkpoint, now_ms):
                self.checkpoints.end(checkpoint)
                return None
        except Exception as error:  # noqa: BLE001 - clients choose the names in it
            self._quarantine.add(LOOP, f"checkpoint {checkpoint.key}", error)
            self.checkpoints.end(checkpoint)
            return None
        for number in checkpoint.left:
            if self._bytes_left <= 0:
                return checkpoint.due_ms
            try:
                if not self._revive_message(checkpoint, number, now_ms):
                    return now_ms + RETRY_MS
            except (WriteFailed, OSError, MemoryError) as error:
                self._refused(
                    f"group {checkpoint.key.group} gets unacknowledged messages later", repr(error)
                )
                return now_ms + RETRY_MS
            except Exception as error:  # noqa: BLE001 - clients choose the content of a message
                self.lost_count += 1
                key, queue_offset = checkpoint.key, checkpoint.queue_offsets[number]
                place = f"{key.topic}/{key.queue_id}, message {queue_offset}"
                self._quarantine.add(LOOP, place, error)
            self.checkpoints.settle(checkpoint, number)
        self._problem = ""
        return None

    def _is_needed(self, checkpoint: Checkpoint, now_ms: int) -> bool:
        """Return True if the topic and group of a checkpoint still exist."""
        key = checkpoint.key
        topic = names.popped_topic(key.topic, key.group)
        has_group = self._groups.find(key.group, now_ms) is not None
        if self._topics.get(topic) is None or not has_group:
            _log.warning(
                "%d messages that group %s popped from %s are dropped: group or topic was deleted",
                len(checkpoint.left), key.group, topic,
            )  # fmt: skip
            return False
        return True

    def _revive_message(self, checkpoint: Checkpoint, number: int, now_ms: int) -> bool:
        """Copy a message to the retry topic; return False if it must be retried."""
        for stored in self._messages(checkpoint.key, checkpoint.queue_offsets[number]):
            result = self._republish(stored, checkpoint, now_ms)
            if not result.status.is_stored and not result.status.is_final:
                problem = f"{result.status.name}: {result.reason}"
                self._refused(
                    f"group {checkpoint.key.group} gets unacknowledged messages later", problem
                )
                return False
            self._bytes_left -= len(stored.body)
            self._count_copy(result, stored)
        return True

    def _messages(self, key: Key, queue_offset: int) -> list[StoredMessage]:
        """Return a message; if it is a batch, its messages, as retry topics have plain queues."""
        result = self._store.get(key.topic, key.queue_id, queue_offset, 1)
        # Not the next message after a gap (known-bugs.md#pop-offsets).
        is_requested = result.next_offset == queue_offset + max(result.message_count, 1)
        for data in result.records if is_requested else ():
            try:
                stored = record.decode(bytes(data), check_crc=False)
                if stored.queue_offset == queue_offset or names.is_light(key.topic):
                    return batch.unwrap(stored)
            except CorruptRecord as error:
                _log.error("a popped message is damaged: %s", error)
                break
        self.lost_count += 1
        _log.error(
            "message %d of queue %d of %s, not acknowledged by group %s, does not exist",
            queue_offset, key.queue_id, key.topic, key.group,
        )  # fmt: skip
        return []

    def _republish(self, stored: StoredMessage, checkpoint: Checkpoint, now_ms: int) -> PutResult:
        key = checkpoint.key
        topic = key.topic
        if not names.is_retry_topic(topic):
            topic = self._retries.target(topic, key.group)
        self._topics.for_group(topic, RETRY_QUEUE_COUNT, READ_WRITE, now_ms)
        reconsume_times = min(stored.reconsume_times + (not checkpoint.is_suspended), JAVA_INT_MAX)
        properties = dict(stored.properties)
        if stored.reconsume_times == 0 or props.FIRST_POP_TIME not in properties:
            properties[props.FIRST_POP_TIME] = str(key.pop_ms)
        properties[props.ORIGIN_GROUP] = key.group
        try:
            message = copied_message(
                stored, topic, 0, properties=properties, reconsume_times=reconsume_times
            )
        except Refused:  # no room for more properties: copy without them
            message = copied_message(stored, topic, 0, reconsume_times=reconsume_times)
        message.is_due = True
        return self._store.put(message)

    def _count_copy(self, result: PutResult, stored: StoredMessage) -> None:
        if result.status.is_stored:
            self.revived_count += 1
            self._copies_end = max(self._copies_end, result.end_offset)
            return
        self.lost_count += 1
        place = f"{stored.topic}/{stored.queue_id}, message {stored.queue_offset}"
        reason = f"it cannot be delivered again: {result.status.name}: {result.reason}"
        self._quarantine.add(LOOP, place, reason)

    def _refused(self, what: str, problem: str) -> None:
        if problem != self._problem:
            self._problem = problem
            _log.error("%s, retried every %d ms: %s", what, RETRY_MS, problem)
