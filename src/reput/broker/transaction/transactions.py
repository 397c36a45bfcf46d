"""Transactions: messages that are invisible until their producer has decided them.

    half message   a prepared message that waits, with its own topic and queue as properties
    op message     records by its queue offset that a half message is decided
    round          asks the producers of undecided half messages, at intervals

A round puts each undecided half message again at the end of its queue, so that the rest of the
queue can be deleted; the consumer offsets of CID_RMQ_SYS_TRANS record the progress. All copies of a
message carry the queue offset of the first. So a decision about any copy applies to the current
one; Java delivers a message twice if its producer decides while it is being asked.

Memory holds one byte per half message from the first undecided one on. After a restart op messages
and copies are read again from the saved offsets; no producer is asked before that is finished.
Source: rocketmq 4.9.7 ``TransactionalMessageServiceImpl``, ``TransactionalMessageBridge``.
"""

import bisect
import dataclasses
import logging
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from reput.broker.durable import DurableProgress
from reput.broker.quarantine import Quarantine
from reput.broker.republish import RETRY_MS, RetryPause, copied_message, make_durable
from reput.broker.settings.config import BrokerConfig
from reput.broker.topic.topics import READ_WRITE, Topics
from reput.broker.transaction import check
from reput.broker.transaction.check import CheckAction, Rules
from reput.errors import CorruptRecord, RequestRefused, WriteFailed
from reput.format import message as record, names, properties as props, sys_flag as flags
from reput.format.codes import ResponseCode
from reput.format.message import Host, StoredMessage
from reput.store.message_store import MessageStore
from reput.store.queues.consume_queue import ConsumeQueue
from reput.store.tables.offsets import ConsumerOffsetTable
from reput.store.writing import incoming
from reput.store.writing.copying import CopyRule, Places
from reput.store.writing.incoming import IncomingMessage, PutResult, PutStatus, Refused

TOPICS = names.HALF_TOPIC, names.OP_HALF_TOPIC
"""Topics of half and op messages; created with the first half message."""
QUEUE_ID = 0
"""The only queue of half messages and of op messages."""
LOOP = "transactions"
MESSAGES_PER_STEP = 32
BYTES_PER_STEP = 1024 * 1024
"""Limit of the bytes of half messages that a step copies; the first is always copied."""
OPS_PER_RUN = 256
"""Op messages that are forgotten together."""
GIVEN_UP_MAX = 100_000
"""Abandoned messages that are remembered as undecided by their producers.

The same number applies to messages from before the start that are known to be decided.
"""
OP_TAG = "d"
OF_COPIES = (props.TRANSACTION_HALF_OFFSET, props.TRANSACTION_CHECK_TIMES)
"""Properties that only a copy of a half message has. They are removed from sent messages: one that
was consumed and is sent on has them from its previous transaction."""

_HOUR_MS = 3_600_000
_DISPATCH_STEPS_MAX = 16
_FIRST = props.TRANSACTION_HALF_OFFSET.encode()

_log = logging.getLogger(__name__)


class End(NamedTuple):
    """A producer's decision about a half message."""

    queue_offset: int
    physical_offset: int
    group: bytes
    is_commit: bool


def is_half(properties: dict[str, str], reconsume_times: int) -> bool:
    """Return True if a sent message is a half message.

    False for one that a consumer sends back: clients before 4.6.1 leave the mark on it.
    """
    if properties.get(props.TRANSACTION_PREPARED, "").lower() != "true":
        return False
    return not (reconsume_times > 0 and properties.get(props.DELAY, "0") != "0")


class Transactions:
    """Keeps half messages and decides them.

    To be used only by the thread that puts. ``load`` must be called first.

    Args:
        store: The store of half messages and delivered messages.
        topics: Creates the topics of half and op messages.
        offsets: Progress in the half and op queues. Saved by its owner.
        config: Intervals and limits of the checks.
        ask: Asks a producer about a half message; returns whether one is connected.
        quarantine: Takes messages that cannot be processed.
    """

    def __init__(
        self,
        store: MessageStore,
        topics: Topics,
        offsets: ConsumerOffsetTable,
        config: BrokerConfig,
        ask: Callable[[StoredMessage], bool],
        quarantine: Quarantine | None = None,
    ) -> None:
        self._quarantine = Quarantine() if quarantine is None else quarantine
        self.config = config
        self.store_host = Host(b"\x7f\0\0\1", 0)
        """Address of the broker in op messages."""
        self.committed_count = 0
        self.rolled_back_count = 0
        self.refused_count = 0
        """Decisions that were refused since the start of the broker."""
        self.repeated_count = 0
        """Decisions about messages that were decided before."""
        self.asked_count = 0
        """Checks that were sent to a producer."""
        self.unasked_count = 0
        """Checks for which no producer of the group was connected."""
        self.given_up_count = 0
        """Half messages that were moved to ``TRANS_CHECK_MAX_TIME_TOPIC``."""
        self.lost_count = 0
        """Half messages that were skipped, as they cannot be read or put anywhere."""
        self.put_end = 0
        """Physical offset after the last record that was put."""
        self._store = store
        self._topics = topics
        self._offsets = offsets
        self._ask = ask
        self._durable: DurableProgress[str] = DurableProgress()
        self._marks = _Marks(0)
        self._ops = _Ops(0)
        self._copies: dict[int, int] = {}
        """Waiting half messages that were copied: queue offset of the first copy -> of the last.
        """
        self._given_up: dict[int, None] = {}
        """Queue offsets of the first copies of abandoned messages, in order."""
        self._known_from = 0
        """First copy from which on a message is decided if it neither waits nor was given up."""
        self._decided_since: dict[int, None] = {}
        """First copies of older messages that are known to be decided; bounded."""
        self._forgotten_to = 0
        """First copies before this offset may have been given up without being remembered."""
        self._early_ops: set[int] = set()
        """Decided queue offsets before the first undecided one, while a start reads messages."""
        self._copies_from = self._copies_to = 0
        self._published = 0, 0
        self._round: _Round | None = None
        self._round_ms = 0
        self._pause = RetryPause()

    # Position ---------------------------------------------------------------------------------

    def load(self, now_ms: int) -> None:
        """Start at the saved offsets, or at the nearest existing messages."""
        self._marks = _Marks(self._load_offset(names.HALF_TOPIC))
        self._ops = _Ops(self._load_offset(names.OP_HALF_TOPIC))
        self._published = self._marks.start, self._ops.next_offset
        self._copies_from = self._known_from = self._marks.start
        halves = self._queue(names.HALF_TOPIC)
        self._copies_to = halves.next_offset if halves is not None else 0
        self._round_ms = now_ms
        try:
            self._put_missing_op(now_ms)
        except MemoryError:
            raise
        except Exception as error:  # noqa: BLE001 - a client's message may be the last of the log
            self._quarantine.add(LOOP, "the last record of the log", error)

    def _put_missing_op(self, now_ms: int) -> None:
        """Put the op message that is missing if a crash came right after a final message."""
        data = self._store.last_record()
        final = _decoded(memoryview(data)) if data is not None else None
        if final is None or flags.transaction_type(final.sys_flag) != flags.TRANSACTION_COMMIT:
            return
        half = self.half_at(final.prepared_transaction_offset)
        if half is None or half.queue_offset < self._marks.start or not _is_final_of(final, half):
            return
        result = self._put(self._op(b"%d" % half.queue_offset, now_ms), now_ms)
        if result.status.is_stored:  # it is read with the older op messages
            self._marks.add(half.queue_offset)
            _log.warning(
                "half message %d was delivered before a crash, and is marked as decided",
                half.queue_offset,
            )

    def _load_offset(self, topic: str) -> int:
        known = self._offsets.get(topic, names.TRANSACTION_GROUP, QUEUE_ID)
        queue = self._queue(topic)
        low, high = (queue.min_offset, queue.max_offset) if queue else (0, 0)
        offset = low if known is None else max(low, min(known, high))
        if known is not None and known != offset:
            _log.error(
                "saved offset %d of %s is outside of the queue from %d to %d; corrected to %d",
                known, topic, low, high, offset,
            )  # fmt: skip
            self._offsets.put(topic, names.TRANSACTION_GROUP, QUEUE_ID, offset)
        return offset

    def _queue(self, topic: str) -> ConsumeQueue | None:
        return self._store.queues.find(topic, QUEUE_ID)

    def progress(self) -> tuple[int, int]:
        """Return the queue offset of the first undecided half message, and the end of the queue."""
        queue = self._queue(names.HALF_TOPIC)
        return self._marks.start, queue.max_offset if queue is not None else 0

    @property
    def end_count(self) -> int:
        """Number of decisions from producers since the start of the broker."""
        taken = self.committed_count + self.rolled_back_count
        return taken + self.refused_count + self.repeated_count

    @property
    def waiting_count(self) -> int:
        """Number of undecided half messages."""
        start, end = self.progress()
        return max(end - start - self._marks.done_count, 0)

    @property
    def is_read(self) -> bool:
        """True once all op messages and copies from before the start are read."""
        ops = self._queue(names.OP_HALF_TOPIC)
        has_all = ops is None or self._ops.next_offset >= ops.max_offset
        return has_all and self._copies_from >= self._copies_to

    # Sending ----------------------------------------------------------------------------------

    @property
    def takes_halves(self) -> bool:
        """True if half messages can be put on the fast path."""
        is_refused = self.config.reject_transaction_message
        return not is_refused and all(self._topics.get(topic) is not None for topic in TOPICS)

    def hold_back(self, message: IncomingMessage, properties: dict[str, str], now_ms: int) -> None:
        """Turn a message into a half message: change its topic, and add the properties for that.

        Args:
            message: The message, without its properties.
            properties: All of them.
            now_ms: The time.

        Raises:
            RequestRefused: NO_PERMISSION, by configuration. MESSAGE_ILLEGAL: it is also delayed.
        """
        if self.config.reject_transaction_message:
            raise RequestRefused(
                ResponseCode.NO_PERMISSION,
                f"the broker[{self.config.broker_ip1}] sending transaction message is forbidden",
            )
        delays = [
            name
            for name, value in properties.items()
            if (name == props.DELAY or name.startswith("TIMER_")) and value != "0"
        ]
        if delays:
            raise RequestRefused(
                ResponseCode.MESSAGE_ILLEGAL,
                f"property {delays[0]}: a message of a transaction cannot be delayed",
            )
        for topic in TOPICS:
            self._topics.for_group(topic, 1, READ_WRITE, now_ms)
        for name in OF_COPIES:
            properties.pop(name, None)
        if unique_key := properties.get(props.UNIQ_KEY):
            properties[props.TRANSACTION_ID] = unique_key  # the committed copy keeps it
        properties[props.REAL_TOPIC] = message.topic
        properties[props.REAL_QUEUE_ID] = str(message.queue_id)
        message.topic, message.queue_id = names.HALF_TOPIC, QUEUE_ID
        message.sys_flag &= ~flags.TRANSACTION_MASK

    # Deciding ---------------------------------------------------------------------------------

    def half_at(self, physical_offset: int) -> StoredMessage | None:
        """Return the half message at a physical offset; None if there is none.

        The body of a message may contain bytes that look like one; its unit decides.
        """
        store = self._store
        if store.max_physical_offset <= physical_offset < store.log.written_offset:
            try:
                store.flusher.commit()  # it is still in a pooled buffer, not in the file
            except WriteFailed as error:
                _log.error("half message at %d: %s", physical_offset, error)
        data = store.record_at(physical_offset)
        half = _decoded(memoryview(data)) if data is not None else None
        is_half = half is not None and half.topic == names.HALF_TOPIC and self._is_queued(half)
        return half if is_half else None

    def _is_queued(self, stored: StoredMessage) -> bool:
        """Return True if the unit at a record's queue offset refers to this record."""
        queue = self._store.queues.find(stored.topic, stored.queue_id)
        if queue is None:
            return False
        if queue.max_offset <= stored.queue_offset < queue.next_offset:
            self._dispatch()
        return self._unit_places(queue, [stored.queue_offset])[0] == stored.physical_offset

    def _dispatch(self) -> None:
        """Dispatch pending records, unless the disk fails."""
        try:
            for _ in range(_DISPATCH_STEPS_MAX):
                if not self._store.step_memory():
                    break
        except WriteFailed as error:
            _log.error("half messages cannot be dispatched: %s", error)

    @staticmethod
    def _unit_places(queue: ConsumeQueue, queue_offsets: Sequence[int]) -> list[int]:
        """Return the physical offsets of messages of a queue; -1 for missing ones."""
        low, high = min(queue_offsets), max(queue_offsets)
        if queue.min_offset <= low and high < queue.max_offset and high - low < OPS_PER_RUN:
            places: list[int] = queue.units(low, high + 1 - low)["physical_offset"].tolist()
            if len(places) == high + 1 - low:
                return [places[queue_offset - low] for queue_offset in queue_offsets]

        def place_of(queue_offset: int) -> int:
            if not queue.min_offset <= queue_offset < queue.max_offset:
                return -1
            units = queue.units(queue_offset, 1)
            return int(units["physical_offset"][0]) if len(units) else -1

        return [place_of(queue_offset) for queue_offset in queue_offsets]

    def look_up(self, half: StoredMessage) -> Iterator[None]:
        """Determine, in steps, whether a half message was decided; ``decide`` uses the result.

        A message from before the start is decided if an op message names it or a copy of it; else
        it was given up. The op message is after the half message, mostly soon.
        """
        while not self.is_read:
            queue = self._queue(names.HALF_TOPIC)
            if queue is None or not (self._read_ops() or self._read_copies(queue)):
                break
            yield
        ops, first = self._queue(names.OP_HALF_TOPIC), check.first_offset(half)
        if ops is None or self._is_known(first, half.queue_offset):
            return
        span = range(ops.min_offset, ops.max_offset)
        begin = span.start + bisect.bisect_left(
            span, half.physical_offset, key=lambda offset: self._unit_places(ops, [offset])[0]
        )
        while begin < ops.max_offset and not self._is_known(first, half.queue_offset):
            result = self._store.get(names.OP_HALF_TOPIC, QUEUE_ID, begin, MESSAGES_PER_STEP)
            for op in filter(None, map(_decoded, result.records)):
                if any(self._is_copy(number, half) for number in _decided_by(op) or ()):
                    self._remember_decided(first)
                    return
            begin = max(result.next_offset, begin + 1)
            yield

    def _is_copy(self, half_offset: int, half: StoredMessage) -> bool:
        """Return True if a queue offset is that of a half message, or of another copy of it."""
        first = check.first_offset(half)
        if half_offset in (first, half.queue_offset):
            return True
        if half_offset < first:
            return False
        for data in self._store.get(names.HALF_TOPIC, QUEUE_ID, half_offset, 1).records:
            other = _decoded(data) if _FIRST in data.tobytes() else None
            if other is not None and other.queue_offset == half_offset:
                return check.first_offset(other) == first
        return False

    def decide(self, half: StoredMessage, *, is_commit: bool, now_ms: int) -> PutResult:
        """Deliver or drop a half message, and record the decision; call ``look_up`` before.

        A crash in between makes it undecided again, unless ``load`` finds the final message at the
        end of the log. Then its producer is asked again, decides the same, and a committed message
        is delivered twice.

        Returns:
            The result of the last put; an empty ``PUT_OK`` if it was decided before.

        Raises:
            Refused: Its properties do not name a valid destination, or it cannot be put there.
        """
        first = check.first_offset(half)
        waiting = self._copies.get(first, half.queue_offset)
        if self._is_decided(first, waiting):
            self.repeated_count += 1
            return PutResult(PutStatus.PUT_OK)
        if self._store.lacks_replicas:
            return incoming.NOT_ENOUGH_REPLICAS  # the half message stays, as if nothing was asked
        if is_commit:
            result = self._put(_final(half), now_ms)
            if not result.status.is_stored:
                return result
        result = self._put_op(waiting, now_ms, is_delivered=is_commit)
        if not result.status.is_stored and not is_commit:
            return result
        self._record_decision(first, waiting, is_commit=is_commit)
        return PutResult(PutStatus.PUT_OK)

    def decide_all(self, ends: Sequence[End], now_ms: int) -> int:
        """Decide half messages in one put, up to the first that the fast path cannot handle.

        It handles undecided first copies that their own group decides, whose records a kernel can
        copy. Final and op messages are adjacent in the log, as with ``decide``.

        Returns:
            The number of leading ends that are decided.
        """
        if self._store.lacks_replicas or not self.is_read:
            return 0
        ends = ends[: self._undecided_count(ends)]
        count, data, placed = self._decided(ends, now_ms) if ends else (0, b"", _NOTHING)
        sizes = placed[placed > 0].tolist()
        if not sizes:
            return 0
        stored, unit_words = self._store.put_encoded(data, len(sizes), now_ms)
        if not stored:
            return 0
        unit_values = unit_words.tolist()
        self.put_end = unit_values[2 * stored - 2] + sizes[stored - 1]
        if stored == len(sizes):
            self._record_decisions(ends[:count], unit_values[2 * stored - 1])
            return count
        record_count = 0  # index into ``sizes``
        for number, end in enumerate(ends[:count]):
            if record_count == stored:
                return number
            record_count += 2 if end.is_commit else 1
            if record_count <= stored:
                self._ops.put(unit_values[2 * record_count - 1], end.queue_offset)
            else:
                self._put_op(end.queue_offset, now_ms, is_delivered=True)
                record_count = stored
            self._record_decision(end.queue_offset, end.queue_offset, is_commit=end.is_commit)
        return count

    def _decided(self, ends: Sequence[End], now_ms: int) -> tuple[int, bytes, Places]:
        """Return the number of leading ends with records, these records, and their sizes."""
        groups = b""
        cuts: dict[bytes, tuple[int, int]] = {}
        rows = []
        for half_offset, physical_offset, group, is_commit in ends:
            if group not in cuts:
                cuts[group] = len(groups), len(group)
                groups += group
            rows.append((half_offset, physical_offset, 0, 0, 0, *cuts[group], is_commit))
        op = incoming.encode(self._op(b"", now_ms), _OP_TOPIC)
        return self._store.copier.decision_records(np.array(rows, np.int64), _FINAL, op, groups)

    def _undecided_count(self, ends: Sequence[End]) -> int:
        """Return the number of leading ends whose half messages wait and have no copy."""
        seen: set[int] = set()
        copies, is_done = self._copies, self._marks.is_done
        queue = self._queue(names.HALF_TOPIC)
        if queue is None or not ends:
            return 0
        places = self._unit_places(queue, [end.queue_offset for end in ends])
        for count, (half_offset, physical_offset, *_) in enumerate(ends):
            if half_offset in seen or half_offset in copies or is_done(half_offset):
                return count
            if places[count] != physical_offset:
                return count
            seen.add(half_offset)
        return len(ends)

    def _put_op(self, half_offset: int, now_ms: int, *, is_delivered: bool) -> PutResult:
        result = self._put(self._op(b"%d" % half_offset, now_ms), now_ms)
        if result.status.is_stored:
            self._ops.put(result.queue_offset, half_offset)
        elif is_delivered:
            # Unless the broker stops before its round has passed it, it counts as decided.
            _log.error("no op message for half message %d: %s", half_offset, result.reason)
        return result

    def _record_decision(self, first: int, waiting: int, *, is_commit: bool) -> None:
        self._copies.pop(first, None)
        self._given_up.pop(first, None)
        self._mark_decided(waiting)
        if first < self._known_from:
            self._remember_decided(first)
        if is_commit:
            self.committed_count += 1
        else:
            self.rolled_back_count += 1

    def _record_decisions(self, ends: Sequence[End], last_op_offset: int) -> None:
        """Record consecutive decisions about undecided first copies."""
        decided = [end.queue_offset for end in ends]
        self._ops.put_all(last_op_offset + 1 - len(ends), decided)
        self._marks.add_all(decided)
        for first in decided if min(decided) < self._known_from else ():
            if first < self._known_from:
                self._remember_decided(first)
        commit_count = sum(end.is_commit for end in ends)
        self.committed_count += commit_count
        self.rolled_back_count += len(ends) - commit_count

    def _remember_decided(self, first: int) -> None:
        """Remember that a message from before the start was decided."""
        self._decided_since[first] = None
        if len(self._decided_since) > GIVEN_UP_MAX:
            del self._decided_since[next(iter(self._decided_since))]

    def _is_decided(self, first: int, waiting: int) -> bool:
        """Return True if a message is decided; for older messages, as far as ``look_up`` found."""
        if not self._marks.is_done(waiting):
            return False
        return first in self._decided_since or (
            self._remembers(first, waiting) and first not in self._given_up
        )

    def _remembers(self, first: int, waiting: int) -> bool:
        """Return True if a message that does not wait was decided and not abandoned."""
        return waiting >= self._known_from and first >= self._forgotten_to

    def _is_known(self, first: int, half_offset: int) -> bool:
        """Return True if it is known whether a message is decided."""
        waiting = self._copies.get(first, half_offset)
        return (
            not self._marks.is_done(waiting)
            or first in self._decided_since
            or first in self._given_up
            or self._remembers(first, waiting)
        )

    def _op(self, body: bytes, now_ms: int) -> IncomingMessage:
        # 5.x writes several offsets, each followed by a comma, which 4.9 cannot read.
        return IncomingMessage(
            topic=names.OP_HALF_TOPIC,
            body=body,
            queue_id=QUEUE_ID,
            property_bytes=_OP_PROPERTIES,
            born_timestamp=now_ms,
            born_host=self.store_host,
            store_host=self.store_host,
            waits=False,
        )

    def resume(self, stored: StoredMessage, now_ms: int) -> PutResult:
        """Put an abandoned half message back into the half topic, with all its checks.

        Raises:
            RequestRefused: It is no such message.
            Refused: It cannot be put.
        """
        if stored.topic not in (names.CHECK_MAX_TIME_TOPIC, names.HALF_TOPIC):
            raise RequestRefused(
                ResponseCode.SYSTEM_ERROR,
                f"message {stored.physical_offset} is in topic {stored.topic}; allowed: one that "
                f"was given up, in {names.CHECK_MAX_TIME_TOPIC}, or a half message",
            )
        if not self._is_queued(stored):
            raise RequestRefused(
                ResponseCode.SYSTEM_ERROR,
                f"no message of topic {stored.topic} is at {stored.physical_offset}",
            )
        properties = dict(stored.properties)
        properties[props.TRANSACTION_CHECK_TIMES] = "0"
        if stored.topic == names.HALF_TOPIC:
            return self._put_back(stored, properties, now_ms)
        result = self._put(_waiting(stored, names.HALF_TOPIC, properties), now_ms)
        if result.status.is_stored and props.TRANSACTION_HALF_OFFSET in properties:
            first = check.first_offset(stored)
            self._given_up.pop(first, None)
            self._copies[first] = result.queue_offset
        return result

    # Steps ------------------------------------------------------------------------------------

    def step(self, now_ms: int) -> bool:
        """Do a bounded part of the work, at most ``MESSAGES_PER_STEP`` messages.

        Returns:
            True if there may be more: call it again.
        """
        queue = self._queue(names.HALF_TOPIC)
        if queue is None:
            return False
        self._pass_expired(queue)
        if not self.is_read:
            return self._read_ops() or self._read_copies(queue)
        did = self._step_round(queue, now_ms)
        self._publish_progress()
        return did

    def hasten(self, now_ms: int) -> None:
        """Begin the next round now, for a test that has advanced the clock.

        Messages become due after ``transactionTimeOut``, and wait for a round up to
        ``transactionCheckInterval`` longer. No round begins sooner than the former time after the
        last one, so that nothing is asked more often than it becomes due.
        """
        if now_ms - self._round_ms >= self.config.transaction_time_out:
            self._round_ms = min(self._round_ms, now_ms - self.config.transaction_check_interval)

    def close(self) -> None:
        """Make all puts durable, so that the offsets cover them; save the offsets afterwards."""
        make_durable(self._store)
        self._publish_progress()

    def _publish_progress(self) -> None:
        if not self.is_read:
            return
        self._early_ops.clear()
        self._marks.pass_done()
        reached = self._marks.start, self._ops.needed_from(self._marks.start)
        if reached != self._published:
            self._published = reached
            for topic, offset in zip(TOPICS, reached, strict=True):
                self._durable.add(topic, offset, self.put_end)
        for topic, offset in self._durable.durable(self._store.log.flushed_offset):
            self._offsets.put(topic, names.TRANSACTION_GROUP, QUEUE_ID, offset)

    def _pass_expired(self, queue: ConsumeQueue) -> None:
        if self._marks.start < queue.min_offset:
            count = self._marks.pass_to(queue.min_offset)
            self.lost_count += count
            _log.error("%d undecided half messages before %d have expired", count, queue.min_offset)

    # Reading again after a start --------------------------------------------------------------

    def _read_ops(self) -> bool:
        """Read op messages from before the start."""
        queue = self._queue(names.OP_HALF_TOPIC)
        if queue is None or self._ops.next_offset >= queue.max_offset:
            return False
        halves = self._queue(names.HALF_TOPIC)
        end = halves.next_offset if halves is not None else 0
        begin = max(self._ops.next_offset, queue.min_offset)
        result = self._store.get(names.OP_HALF_TOPIC, QUEUE_ID, begin, MESSAGES_PER_STEP)
        for op in filter(None, map(_decoded, result.records)):
            place = f"{names.OP_HALF_TOPIC}, message {op.queue_offset}"
            half_offsets = _decided_by(op)
            if half_offsets is None:
                self._quarantine.add(LOOP, place, f"its content is not valid: {op.body[:80]!r}")
                continue
            for half_offset in half_offsets:
                if half_offset >= end:
                    reason = f"it is about half message {half_offset}; there are {end}"
                    self._quarantine.add(LOOP, place, reason)
                    continue
                self._ops.add(op.queue_offset, half_offset)
                self._mark_decided(half_offset)
        self._ops.next_offset = max(result.next_offset, begin + 1)
        return True

    def _read_copies(self, queue: ConsumeQueue) -> bool:
        """Find half messages that are copies: the last copy waits, decisions apply to all."""
        begin = max(self._copies_from, queue.min_offset)
        if begin >= min(self._copies_to, queue.max_offset):
            self._copies_from = self._copies_to
            return False
        result = self._store.get(names.HALF_TOPIC, QUEUE_ID, begin, MESSAGES_PER_STEP)
        for data in result.records:
            half = _decoded(data) if _FIRST in data.tobytes() else None
            if half is None or not begin <= half.queue_offset < self._copies_to:
                continue
            first, current = check.first_offset(half), half.queue_offset
            if first == current:
                continue  # a copy never names itself as the first
            before = self._copies.pop(first, first)
            if self._has_op(first) or self._has_op(before) or self._has_op(current):
                self._mark_decided(first)  # which also applies to later copies
                self._mark_decided(current)
            else:
                self._copies[first] = current
            self._marks.add_copied(before)
        self._copies_from = max(result.next_offset, begin + 1)
        return True

    def _mark_decided(self, half_offset: int) -> None:
        if half_offset < self._marks.start:
            self._early_ops.add(half_offset)
        self._marks.add(half_offset)

    def _has_op(self, half_offset: int) -> bool:
        """Return True if a half message has an op message; only while a start reads messages."""
        if half_offset < self._marks.start:
            return half_offset in self._early_ops
        return self._marks.is_done(half_offset) and not self._marks.is_copied(half_offset)

    # Rounds -----------------------------------------------------------------------------------

    def _step_round(self, queue: ConsumeQueue, now_ms: int) -> bool:
        if self._pause.is_active(now_ms):
            return False
        if self._round is None:
            # If the clock was set back, do not wait for the old time.
            if 0 <= now_ms - self._round_ms < self.config.transaction_check_interval:
                return False
            self._round = _Round(now_ms, self._marks.start, queue.max_offset)
            self._round_ms = now_ms
        this = self._round
        begin = self._marks.next_open(this.position)
        if begin >= this.end:
            self._round = None
            return False
        result = self._store.get(names.HALF_TOPIC, QUEUE_ID, begin, MESSAGES_PER_STEP)
        halves = {half.queue_offset: half for half in filter(None, map(_decoded, result.records))}
        end = min(max(result.next_offset, begin + 1), this.end)
        rules = Rules(
            self.config.transaction_time_out,
            self.config.transaction_check_max,
            self._store.config.file_reserved_time * _HOUR_MS,
        )
        bytes_left = BYTES_PER_STEP
        for half_offset in range(begin, end):
            if self._marks.is_done(half_offset):
                continue
            if bytes_left <= 0:
                end = half_offset
                break
            half = halves.get(half_offset)
            if half is None:
                self._lose(half_offset, "it cannot be read")
                continue
            bytes_left -= len(half.body)
            action = check.judge(half, rules, this.begun_ms, now_ms)
            if action is CheckAction.YOUNG:
                self._round = None
                return False
            try:
                is_settled = self._settle(half, action, now_ms)
            except (WriteFailed, OSError, MemoryError) as error:
                self._report(half, repr(error), now_ms)
                is_settled = False
            except Exception as error:  # noqa: BLE001 - clients choose the content of a message
                self._lose(half_offset, repr(error))
                continue
            if not is_settled:
                this.position = half_offset
                return False
        this.position = end
        self._pause.clear()
        return True

    def _settle(self, half: StoredMessage, action: CheckAction, now_ms: int) -> bool:
        """Republish a half message or abandon it; return False if that must be retried."""
        if action is CheckAction.GIVEN_UP:
            return self._give_up(
                half, now_ms, "it was checked the maximum number of times, or is too old"
            )
        properties = dict(half.properties)
        properties.pop(props.CRC32, None)
        if action is CheckAction.DUE:
            times = check.check_count(properties) + 1
            properties[props.TRANSACTION_CHECK_TIMES] = str(times)
        try:
            result = self._put_back(half, properties, now_ms)
        except Refused as refused:
            return self._give_up(half, now_ms, refused.reason)
        if result.status.is_final:
            return self._give_up(half, now_ms, result.reason)
        if not result.status.is_stored:
            self._report(half, f"{result.status.name}: {result.reason}", now_ms)
            return False
        if action is CheckAction.DUE:
            asked = self._ask(_check_copy(half, properties, result))
            self.asked_count += asked
            self.unasked_count += not asked
        return True

    def _put_back(self, half: StoredMessage, properties: dict[str, str], now_ms: int) -> PutResult:
        """Put a copy at the end of the queue, which replaces this one. Raises ``Refused``."""
        first = check.first_offset(half)
        properties[props.TRANSACTION_HALF_OFFSET] = str(first)
        result = self._put(_waiting(half, names.HALF_TOPIC, properties), now_ms)
        if result.status.is_stored:
            self._marks.add(self._copies.get(first, half.queue_offset))
            self._copies[first] = result.queue_offset
        return result

    def _give_up(self, half: StoredMessage, now_ms: int, reason: str) -> bool:
        self._topics.for_group(names.CHECK_MAX_TIME_TOPIC, 1, READ_WRITE, now_ms)
        result = self._put(_waiting(half, names.CHECK_MAX_TIME_TOPIC), now_ms)
        if result.status.is_final:
            self._lose(half.queue_offset, result.reason)
        elif not result.status.is_stored:
            self._report(half, f"{result.status.name}: {result.reason}", now_ms)
            return False
        else:
            self.given_up_count += 1
            _log.error(
                "half message %d of topic %s is moved to %s: %s",
                half.queue_offset, half.properties.get(props.REAL_TOPIC),
                names.CHECK_MAX_TIME_TOPIC, reason,
            )  # fmt: skip
            self._abandon(check.first_offset(half), half.queue_offset)
        return True

    def _lose(self, half_offset: int, reason: str) -> None:
        self.lost_count += 1
        self._quarantine.add(LOOP, f"{names.HALF_TOPIC}, message {half_offset}", reason)
        copies = (first for first, last in self._copies.items() if last == half_offset)
        self._abandon(next(copies, half_offset), half_offset)

    def _abandon(self, first: int, half_offset: int) -> None:
        """Record that a message no longer waits, but is undecided."""
        self._copies.pop(first, None)
        self._marks.add(half_offset)
        self._given_up[first] = None
        if len(self._given_up) > GIVEN_UP_MAX:
            oldest = next(iter(self._given_up))
            del self._given_up[oldest]
            self._forgotten_to = max(self._forgotten_to, oldest + 1)

    def _report(self, half: StoredMessage, problem: str, now_ms: int) -> None:
        if self._pause.begin(problem, now_ms):
            _log.error(
                "half message %d cannot be put back; retried every %d ms: %s",
                half.queue_offset, RETRY_MS, problem,
            )  # fmt: skip

    def _put(self, message: IncomingMessage, now_ms: int) -> PutResult:
        result = self._store.put(message, now_ms)
        if result.status.is_stored:
            self.put_end = result.end_offset
        return result


# --- states of half and op messages ---------------------------------------------------

_OPEN, _DONE, _COPIED = 0, 1, 2


class _Marks:
    """States of the half messages from the first open one on, one byte each."""

    def __init__(self, start: int) -> None:
        self.start = start
        self._states = bytearray()

    def add(self, half_offset: int) -> None:
        """Mark a half message as decided, copied, given up or lost."""
        index = half_offset - self.start
        if index < 0:
            return
        if index >= len(self._states):
            self._states.extend(bytes(index + 1 - len(self._states)))
        self._states[index] = _DONE

    def add_all(self, half_offsets: Sequence[int]) -> None:
        """Mark several open half messages."""
        self.add(max(half_offsets))
        states, start = self._states, self.start
        for half_offset in half_offsets:
            states[half_offset - start] = _DONE

    def add_copied(self, half_offset: int) -> None:
        """Mark an open half message as replaced by a copy that waits or is decided."""
        if not self.is_done(half_offset):
            self.add(half_offset)
            self._states[half_offset - self.start] = _COPIED

    @property
    def done_count(self) -> int:
        return len(self._states) - self._states.count(_OPEN)

    def is_done(self, half_offset: int) -> bool:
        index = half_offset - self.start
        return index < 0 or (index < len(self._states) and self._states[index] != _OPEN)

    def is_copied(self, half_offset: int) -> bool:
        index = half_offset - self.start
        return 0 <= index < len(self._states) and self._states[index] == _COPIED

    def next_open(self, half_offset: int) -> int:
        """Return the first open half message from an offset on, possibly after the last one."""
        index = max(half_offset - self.start, 0)
        position = self._states.find(_OPEN, index)
        return self.start + (max(len(self._states), index) if position < 0 else position)

    def pass_done(self) -> None:
        """Drop the leading states that are not open."""
        self.pass_to(self.next_open(self.start))

    def pass_to(self, half_offset: int) -> int:
        """Drop all states before an offset; return the number of open ones among them."""
        count = half_offset - self.start
        open_count = max(count - len(self._states), 0) + self._states.count(_OPEN, 0, count)
        del self._states[:count]
        self.start = half_offset
        return open_count


class _Ops:
    """Positions of the op messages that were read, and the ones that a restart needs."""

    def __init__(self, next_offset: int) -> None:
        self.next_offset = next_offset
        """Queue offset of the first op message that was not read."""
        self._runs: deque[_Run] = deque()

    def put(self, op_offset: int, half_offset: int) -> None:
        """Record an op message that was put, unless earlier ones are still to be read."""
        if op_offset == self.next_offset:
            self.add(op_offset, half_offset)
            self.next_offset += 1

    def put_all(self, op_offset: int, half_offsets: Sequence[int]) -> None:
        """Record consecutive op messages that were put."""
        if op_offset != self.next_offset:
            return
        self.next_offset += len(half_offsets)
        done = 0
        while done < len(half_offsets):
            self.add(op_offset + done, half_offsets[done])
            run = self._runs[-1]
            end = min(run.begin + OPS_PER_RUN - op_offset, len(half_offsets))
            run.highest = max(run.highest, *half_offsets[done:end])
            done = end

    def add(self, op_offset: int, half_offset: int) -> None:
        if not self._runs or op_offset - self._runs[-1].begin >= OPS_PER_RUN:
            self._runs.append(_Run(op_offset, half_offset))
        self._runs[-1].highest = max(self._runs[-1].highest, half_offset)

    def needed_from(self, half_offset: int) -> int:
        """Return the first op message that may decide a half message from an offset on."""
        while self._runs and self._runs[0].highest < half_offset:
            self._runs.popleft()
        return self._runs[0].begin if self._runs else self.next_offset


@dataclass(slots=True)
class _Run:
    """A run of consecutive op messages."""

    begin: int
    highest: int
    """Highest queue offset of the half messages that they decide."""


@dataclass(slots=True)
class _Round:
    """A pass over the undecided half messages."""

    begun_ms: int
    position: int
    end: int
    """End of the queue when the round began; later messages are left for the next round."""


# --- messages -------------------------------------------------------------------------

_OP_PROPERTIES = props.encode({props.TAGS: OP_TAG, props.WAIT: "true"})
_OP_TOPIC = names.OP_HALF_TOPIC.encode()
_FINAL = CopyRule(
    from_topic=names.HALF_TOPIC.encode(),
    sys_flags_off=flags.TRANSACTION_MASK,
    sys_flags_on=flags.TRANSACTION_COMMIT,
    has_prepared_offset=True,
)
"""Does the same as ``_final``."""
_NOTHING = np.zeros((0, 2), np.int64)


def _decoded(data: memoryview) -> StoredMessage | None:
    try:
        return record.decode(bytes(data), check_crc=False)
    except CorruptRecord as error:
        _log.error("a half or op message is damaged: %s", error)
        return None


def _decided_by(op: StoredMessage) -> list[int] | None:
    """Return the queue offsets of the half messages that an op message decides.

    None if its content is not valid.
    """
    parts = op.body.decode("ascii", "replace").split(",")
    numbers = [props.number(part) for part in parts if part]
    known = [number for number in numbers if number is not None]
    return known if op.tags == OP_TAG and len(known) == len(numbers) else None


def real_place(half: StoredMessage) -> tuple[str, int]:
    """Return the topic and queue that a half message is meant for. Raises ``Refused``."""
    topic = half.properties.get(props.REAL_TOPIC, "")
    text = half.properties.get(props.REAL_QUEUE_ID, "")
    queue_id = props.number(text, names.QUEUE_ID_MAX)
    if not topic or names.is_written_by_brokers(topic) or queue_id is None:
        raise Refused(
            PutStatus.MESSAGE_ILLEGAL,
            f"half message {half.queue_offset} belongs to topic {topic[:300]!r}, queue "
            f"{text[:300]!r}",
        )
    return topic, queue_id


def _waiting(
    half: StoredMessage, topic: str, properties: Mapping[str, str] | None = None
) -> IncomingMessage:
    """Return a copy of a half message. Raises ``Refused``."""
    message = copied_message(half, topic, QUEUE_ID, properties=properties)
    message.is_due = True  # a delay among its properties applies to the final message
    return message


def _final(half: StoredMessage) -> IncomingMessage:
    """Return the message to deliver; it keeps the marks of a half message, as with 4.9."""
    topic, queue_id = real_place(half)
    sys_flag = half.sys_flag & ~flags.TRANSACTION_MASK | flags.TRANSACTION_COMMIT
    message = copied_message(half, topic, queue_id, sys_flag=sys_flag)
    message.prepared_transaction_offset = half.physical_offset
    return message


def _is_final_of(final: StoredMessage, half: StoredMessage) -> bool:
    """Return True if a committed message matches a half message; clients may send imitations."""
    kept = (
        {name: value for name, value in message.properties.items() if name != props.CRC32}
        for message in (final, half)
    )
    return final.body == half.body and next(kept) == next(kept)


def _check_copy(half: StoredMessage, properties: dict[str, str], copy: PutResult) -> StoredMessage:
    """Return the copy of a half message that is sent to its producer."""
    return dataclasses.replace(
        half,
        queue_offset=copy.queue_offset,
        physical_offset=copy.physical_offset,
        store_timestamp=copy.store_timestamp,
        property_bytes=props.encode(properties),
        properties=properties,
    )
