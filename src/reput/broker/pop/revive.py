"""Checkpoints on disk: what was popped and not acknowledged comes again, after any restart.

A checkpoint is a ``ck`` record in a queue of the revive topic, there before a client hears of its
messages. Acks are in memory, and in ``bAck`` records within ``ACK_SAVE_MS``, unless the queue has
moved behind their checkpoint by then. What is not acknowledged when its time is over is put into
the group's retry topic. How far a queue of the revive topic is done with is the consumer offset of
``CID_RMQ_SYS_REVIVE_GROUP``, which says the last record that is, as Java has it.

Java's brokers have checkpoints and acks wait in the timer, and find them in the revive topic when
their time comes. So what stands there and was not put here is read, too, and acks that may follow a
checkpoint are waited for. docs/decisions/ has why it is otherwise here.
Source: rocketmq 5.5.0 ``PopReviveService``, ``PopBufferMergeService``.
"""

import logging
from collections.abc import Callable, Sequence

from reput.broker.durable import DurableProgress
from reput.broker.group.subscription_groups import SubscriptionGroups
from reput.broker.pop.checkpoints import Checkpoint, Checkpoints, Key, of_record
from reput.broker.pop.retry_topics import V1, PopRetries
from reput.broker.quarantine import Quarantine
from reput.broker.republish import again
from reput.broker.topic.topics import READ_WRITE, Topics
from reput.config import JAVA_INT_MAX
from reput.errors import CorruptRecord, WriteFailed
from reput.format import batch, java, message as record, names, pop_codec, properties as props
from reput.format.message import Host, StoredMessage
from reput.format.pop_codec import AckRecord
from reput.store import incoming
from reput.store.incoming import LOCAL_HOST, IncomingMessage, PutResult, PutStatus, Refused
from reput.store.message_store import MessageStore
from reput.store.pop_reader import Taken
from reput.store.table_files import ConsumerOffsetTable

LOOP = "pops"
RETRY_QUEUE_COUNT = 1
ACK_SAVE_MS = 1_000
"""Acks are on their way to disk after so long: a crash delivers later ones again."""
LATE_MS = 2_000
"""How much later checkpoints of others are due: their acks come when their time is over."""
RETRY_MS = 1_000
"""What the store refused is tried again after so long."""
_BODY_BYTES_MAX = 1024
"""Of records that are put without being looked at: far below any limit of the store."""
_REVIVED_PER_STEP = 128
_REVIVED_BYTES_PER_STEP = 1024 * 1024
"""Likewise, of bodies; the first message always goes."""
_READ_PER_STEP = 32
_ACKS_PER_STEP = 256
_CARRIED_PER_STEP = 64

# Java's revive takes the newest deliver time it has seen for the time, and looks at the clock only
# if there was one. That of the pop is over: it never makes it early.
_MARKS = props.encode({props.TAGS: "%b", props.TIMER_DELIVER_MS: "%d"})
"""Properties of a record of the revive topic: its tag, and the time of the pop."""
_CHECKPOINT = pop_codec.CHECKPOINT_TAG.encode()
_BATCH_ACK = pop_codec.BATCH_ACK_TAG.encode()

_log = logging.getLogger(__name__)


class Revive:
    """Keeps checkpoints on disk, and puts again what is due.

    For the thread that puts. ``load`` comes first.

    Args:
        store: Where messages, checkpoints and acks are.
        topics: Where retry topics are made.
        groups: Who there is to see a message again.
        offsets: Returns the table of consumer offsets.
        cluster_name: The revive topic is called after it.
        broker_name: Checkpoints say it.
        queue_count: Queues of the revive topic, if it is to be made.
        retries: How retry topics are called.
        quarantine: Takes what cannot be processed.
        is_fast: Pops that find messages are one kernel call.
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
        is_fast: bool = True,
    ) -> None:
        self._quarantine = Quarantine() if quarantine is None else quarantine
        self.checkpoints = Checkpoints()
        self.topic = names.REVIVE_TOPIC_PREFIX + cluster_name
        self._topic_bytes = java.encode_utf8(self.topic)
        # One for all that is put: the store keeps its record, and a new one costs 3 us.
        self._envelope = IncomingMessage(self.topic, b"", waits=False, is_due=True)
        self.revived_count = 0
        self.lost_count = 0
        """Messages that were due and could not be read, or that no store takes."""
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
        """Queue of the revive topic -> the record to be looked at next."""
        self._own: dict[int, set[int]] = {}
        """Records behind that one that were put here."""
        self._done: DurableProgress[int] = DurableProgress()
        self._told: dict[int, int] = {}
        self.checkpoints_end = 0
        """Physical offset behind the last checkpoint that was put."""
        self._copies_end = 0
        """Physical offset behind the last message that was put again."""
        self._acks_saved_ms: int | None = None
        self._bytes_left = 0
        """Of bodies that may still be put again in a step."""
        self._problem = ""
        self.store_host = LOCAL_HOST

    # At the start -----------------------------------------------------------------------------

    def load(self) -> None:
        """Take up the checkpoints that are not over, and what is known of their acks."""
        for queue_id, queue in sorted(self._store.queues.of_topic(self.topic).items()):
            known = self._offsets().get(self.topic, names.REVIVE_GROUP, queue_id)
            begin = queue.min_offset if known is None else known + 1
            self._read[queue_id] = max(queue.min_offset, min(begin, queue.max_offset))
            self._told[queue_id] = self._read[queue_id] - 1
            while self._read_on(queue_id):
                pass

    @property
    def store_host(self) -> Host:
        """What its records say of where they are."""
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

    # What pops and acks do --------------------------------------------------------------------

    def next_queue(self) -> int:
        """Return the queue of the revive topic whose turn it is."""
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
        """Put a checkpoint: nobody else sees its messages until its time is over.

        Args:
            key: Of the checkpoint, which is not known yet.
            queue_offsets: Of its messages; 1 to 32. Kept.
            invisible_ms: Counted from ``key.pop_ms``.
            revive_queue_id: Where it goes.
            now_ms: The time.
            is_suspended: The next delivery does not count as an attempt.

        Returns:
            What became of the put; unless it is stored, there is no such checkpoint.
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

    def take(
        self,
        key: Key,
        count_max: int,
        tags_codes: tuple[int, ...],
        invisible_ms: int,
        revive_queue_id: int,
    ) -> Taken | None:
        """Get messages and ``hold`` them, in one go.

        Args:
            key: Of the checkpoint: says where to begin, for whom, and when, which is now.
            count_max: Messages at most.
            tags_codes: Only messages with one of these; all, if none is given.
            invisible_ms: Counted from ``key.pop_ms``.
            revive_queue_id: Where the checkpoint goes.

        Returns:
            None if there are none, or it is not that simple: nothing was done.
        """
        if key in self.checkpoints or self._topics.get(self.topic) is None:
            return None
        taken = self._store.pop_reader.take(
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
            self._note_put(revive_queue_id, taken.revive_offset)
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
        result = self._put_record(message, now_ms) or self._store.put(message)
        if result.status.is_stored:
            self._note_put(revive_queue_id, result.queue_offset)
        return result

    def _note_put(self, revive_queue_id: int, revive_offset: int) -> None:
        """Take note of a record of ours: it need not be read."""
        if self._read.setdefault(revive_queue_id, 0) == revive_offset:
            self._read[revive_queue_id] += 1
        else:
            self._own.setdefault(revive_queue_id, set()).add(revive_offset)

    def _put_record(self, message: IncomingMessage, now_ms: int) -> PutResult | None:
        """Put a record the quick way; None if that does not do, for whatever reason."""
        is_long = max(len(message.body), 8 * len(self._topic_bytes)) > _BODY_BYTES_MAX
        if is_long or self._store.config.enabled_append_prop_crc:
            return None
        data = incoming.encode(message, self._topic_bytes)
        count, place = self._store.put_encoded(data, 1, now_ms)
        if not count:
            return None
        # What the class would do, without looking at nine names.
        stored = PutStatus.PUT_OK, place[0], len(data), place[1], now_ms, 1, self.store_host, (), ""
        return tuple.__new__(PutResult, stored)

    # Steps ------------------------------------------------------------------------------------

    def step(self, now_ms: int) -> bool:
        """Do what is due, a bounded part of it.

        Returns:
            Whether anything was put again: there may be more.
        """
        did = False
        for queue_id in self._store.queues.of_topic(self.topic):
            self._read.setdefault(queue_id, 0)
            did = self._read_on(queue_id) or did
        did = self._revive(now_ms) or did
        saved_ms = self._acks_saved_ms
        if saved_ms is None or not 0 <= now_ms - saved_ms < ACK_SAVE_MS:
            self._acks_saved_ms = now_ms
            did = self._save_acks(now_ms, _ACKS_PER_STEP) or did
            for queue_id in self._read:
                self._carry(queue_id, now_ms)
        return did

    def next_due_ms(self) -> int | None:
        """Return when there may be work again; None: nothing waits."""
        return self.checkpoints.next_due_ms()

    def save_acks(self, now_ms: int) -> None:
        """Put all acks on their way to disk, at the end."""
        while self._save_acks(now_ms, _ACKS_PER_STEP):
            pass

    # Records of the revive topic --------------------------------------------------------------

    def _read_on(self, queue_id: int) -> bool:
        """Look at records that others put; return whether there may be more."""
        begin = self._read[queue_id]
        own = self._own.get(queue_id)
        if own:
            while begin in own:
                own.remove(begin)
                begin += 1
            self._read[queue_id] = begin
        if begin >= self._store.max_offset(self.topic, queue_id):
            return False
        found = self._store.get(self.topic, queue_id, begin, _READ_PER_STEP)
        for data in found.records:
            self._take_up(queue_id, data, own or set())
        self._read[queue_id] = max(found.next_offset, begin)
        return self._read[queue_id] > begin

    def _take_up(self, queue_id: int, data: memoryview, own: set[int]) -> None:
        try:
            stored = record.decode(bytes(data), check_crc=False)
            if stored.queue_offset in own:
                own.remove(stored.queue_offset)
            elif stored.tags == pop_codec.CHECKPOINT_TAG:
                body = pop_codec.decode_checkpoint(stored.body)
                one = of_record(body, queue_id, stored.queue_offset, LATE_MS)
                if one.queue_offsets:
                    self.checkpoints.add(one)
            elif stored.tags in (pop_codec.ACK_TAG, pop_codec.BATCH_ACK_TAG):
                self.checkpoints.take_up_ack(pop_codec.decode_ack(stored.body))
            else:
                self._pass_over(queue_id, data, f"neither checkpoint nor ack: tags {stored.tags!r}")
        except MemoryError:
            raise
        except Exception as error:  # noqa: BLE001 - any bad record: the records after it must still be read
            self._pass_over(queue_id, data, error)

    def _pass_over(self, queue_id: int, data: memoryview, reason: Exception | str) -> None:
        """Report a record of the revive topic."""
        start = record.POSITION_PHYSICAL_OFFSET
        physical_offset = int.from_bytes(data[start : start + 8], "big")
        place = f"{self.topic}/{queue_id}, physical offset {physical_offset}"
        self._quarantine.add(LOOP, place, reason)

    def _save_acks(self, now_ms: int, count_max: int) -> bool:
        """Put acks; return whether there may be more."""
        for queue_id in self._read:
            self.checkpoints.first_open(queue_id)  # what lies before it needs no acks any more
        taken = self.checkpoints.take_unsaved(count_max)
        for at, one in enumerate(taken):
            key = one.key
            ack = AckRecord(
                ack_offsets=one.unsaved,
                broker_name=self._broker_name,
                group=key.group,
                pop_ms=key.pop_ms,
                queue_id=key.queue_id,
                start_offset=key.start_offset,
                topic=key.topic,
            )
            settled = one.settled
            body = pop_codec.encode(ack)
            result = self._put(body, _BATCH_ACK, one.revive_queue_id, key.pop_ms, now_ms)
            if not result.status.is_stored:
                for other in taken[at:]:
                    self.checkpoints.keep_unsaved(other)
                problem = f"{result.status.name}: {result.reason}"
                self._refused("acknowledgements stay in memory", problem)
                return False
            one.saved = settled
        return len(taken) == count_max

    def _carry(self, queue_id: int, now_ms: int) -> None:
        """Put checkpoints that wait for long at the queue's end, so that a start begins behind."""
        for _ in range(_CARRIED_PER_STEP):
            one = self.checkpoints.stale(queue_id, self._read[queue_id])
            if one is None:
                return
            key = one.key
            body = pop_codec.encode_checkpoint(
                self._broker_name,
                key.group,
                key.topic,
                key.queue_id,
                key.start_offset,
                [one.queue_offsets[number] for number in one.left],
                key.pop_ms,
                max(0, one.due_ms - key.pop_ms),
                is_suspended=one.is_suspended,
            )
            result = self._put(body, _CHECKPOINT, queue_id, key.pop_ms, now_ms)
            if not result.status.is_stored:
                return
            self.checkpoints.carried(one, result.queue_offset)
            self._copies_end = max(self._copies_end, result.end_offset)

    def tell_progress(self) -> None:
        """Tell the table of consumer offsets what is done with and on disk."""
        for queue_id, read in self._read.items():
            open_at = self.checkpoints.first_open(queue_id)
            last = (read if open_at is None else open_at) - 1
            if last > self._told.get(queue_id, -1):
                self._told[queue_id] = last
                self._done.note(queue_id, last, self._copies_end)
        for queue_id, last in self._done.durable(self._store.log.flushed_offset):
            self._offsets().put(self.topic, names.REVIVE_GROUP, queue_id, last)

    # Again ------------------------------------------------------------------------------------

    def _revive(self, now_ms: int) -> bool:
        count = 0
        self._bytes_left = _REVIVED_BYTES_PER_STEP
        for one in self.checkpoints.due(now_ms):
            if count >= _REVIVED_PER_STEP or self._bytes_left <= 0:
                self.checkpoints.put_off(one, one.due_ms)
                break
            count += len(one.left)
            due_ms = self._revive_one(one, now_ms)
            if due_ms is not None:
                self.checkpoints.put_off(one, due_ms)
        return count > 0

    def _revive_one(self, one: Checkpoint, now_ms: int) -> int | None:
        """Put again what is left of a checkpoint, as far as the store takes it.

        Returns:
            When to go on with it; None: it is over.
        """
        try:
            if not self._is_wanted(one, now_ms):
                self.checkpoints.end(one)
                return None
        except Exception as error:  # noqa: BLE001 - clients choose the names in it
            self._quarantine.add(LOOP, f"checkpoint {one.key}", error)
            self.checkpoints.end(one)
            return None
        for number in one.left:
            if self._bytes_left <= 0:
                return one.due_ms
            try:
                if not self._revive_message(one, number, now_ms):
                    return now_ms + RETRY_MS
            except (WriteFailed, OSError, MemoryError) as error:
                self._refused(f"group {one.key.group} sees messages again later", repr(error))
                return now_ms + RETRY_MS
            except Exception as error:  # noqa: BLE001 - clients decide what is in a message
                self.lost_count += 1
                place = f"{one.key.topic}/{one.key.queue_id}, message {one.queue_offsets[number]}"
                self._quarantine.add(LOOP, place, error)
            self.checkpoints.settle(one, number)
        self._problem = ""
        return None

    def _is_wanted(self, one: Checkpoint, now_ms: int) -> bool:
        """Whether topic and group of a checkpoint are there still."""
        key = one.key
        topic = names.popped_topic(key.topic, key.group)
        is_wanted = self._groups.find(key.group, now_ms) is not None
        if self._topics.get(topic) is None or not is_wanted:
            _log.warning(
                "%d messages that group %s popped of %s are dropped: one of both is gone",
                len(one.left), key.group, topic,
            )  # fmt: skip
            return False
        return True

    def _revive_message(self, one: Checkpoint, number: int, now_ms: int) -> bool:
        """Put a message of a checkpoint again; return False if it is to be tried again."""
        for stored in self._messages(one.key, one.queue_offsets[number]):
            result = self._put_again(stored, one, now_ms)
            if not result.status.is_stored and not result.status.is_final:
                problem = f"{result.status.name}: {result.reason}"
                self._refused(f"group {one.key.group} sees messages again later", problem)
                return False
            self._bytes_left -= len(stored.body)
            self._took(result, stored)
        return True

    def _messages(self, key: Key, queue_offset: int) -> list[StoredMessage]:
        """Return a message; of a batch queue those that are inside of one, for plain queues."""
        found = self._store.get(key.topic, key.queue_id, queue_offset, 1)
        # Not the next one that is there (known-bugs.md#pop-offsets).
        is_that = found.next_offset == queue_offset + max(found.message_count, 1)
        for data in found.records if is_that else ():
            try:
                stored = record.decode(bytes(data), check_crc=False)
                if stored.queue_offset == queue_offset or names.is_light(key.topic):
                    return batch.unwrap(stored)
            except CorruptRecord as error:
                _log.error("a popped message is damaged: %s", error)
                break
        self.lost_count += 1
        _log.error(
            "message %d of queue %d of %s, which group %s has not acknowledged, is not there",
            queue_offset, key.queue_id, key.topic, key.group,
        )  # fmt: skip
        return []

    def _put_again(self, stored: StoredMessage, one: Checkpoint, now_ms: int) -> PutResult:
        key = one.key
        topic = key.topic
        if not names.is_retry_topic(topic):
            topic = self._retries.target(topic, key.group)
        self._topics.for_group(topic, RETRY_QUEUE_COUNT, READ_WRITE, now_ms)
        reconsume_times = min(stored.reconsume_times + (not one.is_suspended), JAVA_INT_MAX)
        properties = dict(stored.properties)
        if stored.reconsume_times == 0 or props.FIRST_POP_TIME not in properties:
            properties[props.FIRST_POP_TIME] = str(key.pop_ms)
        properties[props.ORIGIN_GROUP] = key.group
        try:
            message = again(
                stored, topic, 0, properties=properties, reconsume_times=reconsume_times
            )
        except Refused:  # no room for more: it comes without
            message = again(stored, topic, 0, reconsume_times=reconsume_times)
        message.is_due = True
        return self._store.put(message)

    def _took(self, result: PutResult, stored: StoredMessage) -> None:
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
            _log.error("%s, every %d ms: %s", what, RETRY_MS, problem)
