"""Transactions: messages that nobody sees before their producer has decided.

    half message   where a prepared message waits, with its own topic and queue as properties
    op message     says of a half message, by its queue offset, that it is decided
    round          asks the producers of those that are not, after a while, again and again

A half message that is left undecided by a round is put again at the end of the queue, so that the
rest of the queue can be forgotten: of how far that is, CID_RMQ_SYS_TRANS's consumer offsets tell.
All copies of a message bear the queue offset of the first. So a decision about any of them counts
for the one that waits now; Java delivers a message twice whose producer decides while it is asked.

In memory is a byte for each half message from the first undecided one on. After a restart op
messages and copies are read again from where the offsets say; nothing is asked before that is done.
Source: rocketmq 4.9.7 ``TransactionalMessageServiceImpl``, ``TransactionalMessageBridge``.
"""

import dataclasses
import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from reput.broker.durable import DurableProgress
from reput.broker.quarantine import Quarantine
from reput.broker.republish import again
from reput.broker.settings.config import BrokerConfig
from reput.broker.topic.topics import READ_WRITE, Topics
from reput.broker.transaction import check
from reput.broker.transaction.check import Rules, Verdict
from reput.errors import CorruptRecord, RequestRefused, WriteFailed
from reput.format import message as record, names, properties as props, sys_flag as flags
from reput.format.codes import ResponseCode
from reput.format.message import Host, StoredMessage
from reput.store import incoming
from reput.store.consume_queue import ConsumeQueue
from reput.store.copying import CopyRule, Places
from reput.store.incoming import IncomingMessage, PutResult, PutStatus, Refused
from reput.store.message_store import MessageStore
from reput.store.table_files import ConsumerOffsetTable

TOPICS = names.HALF_TOPIC, names.OP_HALF_TOPIC
"""Where half and op messages are; made with the first half message."""
QUEUE_ID = 0
"""They have one queue each."""
LOOP = "transactions"
MESSAGES_PER_STEP = 32
BYTES_PER_STEP = 1024 * 1024
"""Likewise, of half messages that are put back; the first one always goes."""
RETRY_MS = 1_000
"""A round whose message the store refused goes on after so long."""
OPS_PER_RUN = 256
"""Op messages that are forgotten together."""
GIVEN_UP_MAX = 100_000
"""Of so many messages that were given up is known that no producer has decided them.

As many are remembered of those from before the start that were decided since.
"""
OP_TAG = "d"
OF_COPIES = (props.TRANSACTION_HALF_OFFSET, props.TRANSACTION_CHECK_TIMES)
"""What only copies have that are put back. Whoever sends it, a message that was consumed and is
sent on has it too, does not speak of this one."""

_HOUR_MS = 3_600_000
_DISPATCH_STEPS_MAX = 16
_FIRST = props.TRANSACTION_HALF_OFFSET.encode()

_log = logging.getLogger(__name__)


class End(NamedTuple):
    """What a producer says of a half message."""

    queue_offset: int
    physical_offset: int
    group: bytes
    is_commit: bool


def is_half(properties: dict[str, str], reconsume_times: int) -> bool:
    """Whether a message that is sent is a transaction's.

    Not one that a consumer sends back: clients before 4.6.1 leave the mark on it.
    """
    if properties.get(props.TRANSACTION_PREPARED, "").lower() != "true":
        return False
    return not (reconsume_times > 0 and properties.get(props.DELAY, "0") != "0")


class Transactions:
    """Half messages and what becomes of them. For the thread that puts; ``load`` comes first.

    Args:
        store: Where messages wait, and where they go.
        topics: Where the topics for that are made.
        offsets: How far half and op messages are dealt with. Saved by its owner.
        config: When producers are asked.
        ask: Asks a producer about a half message; returns whether one is there.
        quarantine: Takes what cannot be processed.
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
        """Of the broker; op messages bear it."""
        self.committed_count = 0
        self.rolled_back_count = 0
        self.refused_count = 0
        """Decisions that were not taken, since this broker was started."""
        self.repeated_count = 0
        """Decisions about what was decided."""
        self.asked_count = 0
        """Checks that were sent to a producer."""
        self.unasked_count = 0
        """Checks for which no producer of the group was there."""
        self.given_up_count = 0
        """Half messages that went to ``TRANS_CHECK_MAX_TIME_TOPIC``."""
        self.lost_count = 0
        """Half messages that cannot be read, or put anywhere, and are passed."""
        self.put_end = 0
        """Physical offset behind what was put last."""
        self._store = store
        self._topics = topics
        self._offsets = offsets
        self._ask = ask
        self._durable: DurableProgress[str] = DurableProgress()
        self._marks = _Marks(0)
        self._ops = _Ops(0)
        self._copies: dict[int, int] = {}
        """Of half messages that wait and were put again: queue offset of the first -> last."""
        self._given_up: dict[int, None] = {}
        """Queue offsets of first copies, in the order of giving up."""
        self._known_from = 0
        """From this copy on what does not wait, and was not given up, is decided."""
        self._told: dict[int, None] = {}
        """First copies of messages from before that which were decided since, the last ones."""
        self._forgotten_to = 0
        """Of which of the first copies before this one were given up is not known any more."""
        self._early_ops: set[int] = set()
        """While reading again: decided queue offsets that lie before the first undecided one."""
        self._copies_from = self._copies_to = 0
        self._noted = 0, 0
        self._round: _Round | None = None
        self._round_ms = 0
        self._refused_ms: int | None = None
        self._problem = ""

    # Where it is ------------------------------------------------------------------------------

    def load(self, now_ms: int) -> None:
        """Take up where the offsets say, or at the nearest message that is there."""
        self._marks = _Marks(self._load_offset(names.HALF_TOPIC))
        self._ops = _Ops(self._load_offset(names.OP_HALF_TOPIC))
        self._noted = self._marks.start, self._ops.next_offset
        self._copies_from = self._known_from = self._marks.start
        halves = self._queue(names.HALF_TOPIC)
        self._copies_to = halves.next_offset if halves is not None else 0
        self._round_ms = now_ms
        try:
            self._put_missing_op(now_ms)
        except MemoryError:
            raise
        except Exception as error:  # noqa: BLE001 - a client's message may end the log
            self._quarantine.add(LOOP, "the last record of the log", error)

    def _put_missing_op(self, now_ms: int) -> None:
        """Put the op message of a final one that ends the log: a crash came between the two."""
        data = self._store.last_record()
        final = _decoded(memoryview(data)) if data is not None else None
        if final is None or flags.transaction_type(final.sys_flag) != flags.TRANSACTION_COMMIT:
            return
        half = self.half_at(final.prepared_transaction_offset)
        if half is None or half.queue_offset < self._marks.start or not _is_final_of(final, half):
            return
        result = self._put(self._op(b"%d" % half.queue_offset, now_ms), now_ms)
        if result.status.is_stored:  # it will be read with those from before
            self._marks.add(half.queue_offset)
            _log.warning("half message %d was delivered, and is decided now", half.queue_offset)

    def _load_offset(self, topic: str) -> int:
        known = self._offsets.get(topic, names.TRANSACTION_GROUP, QUEUE_ID)
        queue = self._queue(topic)
        low, high = (queue.min_offset, queue.max_offset) if queue else (0, 0)
        offset = low if known is None else max(low, min(known, high))
        if known is not None and known != offset:
            _log.error(
                "%s was said to be dealt with up to %d of a queue from %d to %d; now up to %d",
                topic, known, low, high, offset,
            )  # fmt: skip
            self._offsets.put(topic, names.TRANSACTION_GROUP, QUEUE_ID, offset)
        return offset

    def _queue(self, topic: str) -> ConsumeQueue | None:
        return self._store.queues.find(topic, QUEUE_ID)

    def progress(self) -> tuple[int, int]:
        """Return the queue offset of the first undecided half message, and the queue's end."""
        queue = self._queue(names.HALF_TOPIC)
        return self._marks.start, queue.max_offset if queue is not None else 0

    @property
    def end_count(self) -> int:
        """How often producers have said what they know, since this broker was started."""
        taken = self.committed_count + self.rolled_back_count
        return taken + self.refused_count + self.repeated_count

    @property
    def waiting_count(self) -> int:
        """How many half messages are not decided."""
        start, end = self.progress()
        return max(end - start - self._marks.done_count, 0)

    @property
    def is_read(self) -> bool:
        """Whether all op messages and copies of before the start are known."""
        ops = self._queue(names.OP_HALF_TOPIC)
        has_all = ops is None or self._ops.next_offset >= ops.max_offset
        return has_all and self._copies_from >= self._copies_to

    # Sending ----------------------------------------------------------------------------------

    @property
    def takes_halves(self) -> bool:
        """Whether half messages can be put without a second look."""
        is_refused = self.config.reject_transaction_message
        return not is_refused and all(self._topics.get(one) is not None for one in TOPICS)

    def hold_back(self, message: IncomingMessage, properties: dict[str, str], now_ms: int) -> None:
        """Make a message a half message, and give it the properties of one.

        Args:
            message: The message, without its properties.
            properties: All of them.
            now_ms: The time.

        Raises:
            RequestRefused: NO_PERMISSION, by configuration. MESSAGE_ILLEGAL: it is delayed as well.
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
        properties[props.REAL_TOPIC] = message.topic
        properties[props.REAL_QUEUE_ID] = str(message.queue_id)
        message.topic, message.queue_id = names.HALF_TOPIC, QUEUE_ID
        message.sys_flag &= ~flags.TRANSACTION_MASK

    # Deciding ---------------------------------------------------------------------------------

    def half_at(self, physical_offset: int) -> StoredMessage | None:
        """Return the half message at a physical offset; None if none stands there.

        What is inside of a message's body may look like one: the queue says whether it is.
        """
        store = self._store
        if store.max_physical_offset <= physical_offset < store.log.written_offset:
            try:
                store.flusher.commit()  # it is in a pool, not in the file yet
            except WriteFailed as error:
                _log.error("half message at %d: %s", physical_offset, error)
        data = store.record_at(physical_offset)
        half = _decoded(memoryview(data)) if data is not None else None
        is_half = half is not None and half.topic == names.HALF_TOPIC and self._is_queued(half)
        return half if is_half else None

    def _is_queued(self, one: StoredMessage) -> bool:
        """Whether a record is the message of its queue that it says it is."""
        queue = self._store.queues.find(one.topic, one.queue_id)
        if queue is None:
            return False
        if queue.max_offset <= one.queue_offset < queue.next_offset:
            self._dispatch()
        return self._unit_places(queue, [one.queue_offset])[0] == one.physical_offset

    def _dispatch(self) -> None:
        """Let the units of what was put be made, as far as the disk goes along."""
        try:
            for _ in range(_DISPATCH_STEPS_MAX):
                if not self._store.step_memory():
                    break
        except WriteFailed as error:
            _log.error("half messages get into no queue: %s", error)

    @staticmethod
    def _unit_places(queue: ConsumeQueue, queue_offsets: Sequence[int]) -> list[int]:
        """Return the physical offsets of messages of a queue; -1 of what is not there."""
        low, high = min(queue_offsets), max(queue_offsets)
        if queue.min_offset <= low and high < queue.max_offset and high - low < OPS_PER_RUN:
            places: list[int] = queue.units(low, high + 1 - low)["physical_offset"].tolist()
            if len(places) == high + 1 - low:
                return [places[one - low] for one in queue_offsets]

        def place_of(queue_offset: int) -> int:
            if not queue.min_offset <= queue_offset < queue.max_offset:
                return -1
            units = queue.units(queue_offset, 1)
            return int(units["physical_offset"][0]) if len(units) else -1

        return [place_of(one) for one in queue_offsets]

    def decide(self, half: StoredMessage, *, is_commit: bool, now_ms: int) -> PutResult:
        """Deliver a half message, or not, and remember that.

        A crash in between makes it undecided again, unless ``load`` finds the final message where
        the log ends. Then its producer is asked, says the same, and a committed message is there
        twice.

        Returns:
            What became of the last put; ``PUT_OK`` of nothing if it was decided before.

        Raises:
            Refused: Its properties do not say where it belongs, or it cannot be put there.
        """
        first = check.first_offset(half)
        waiting = self._copies.get(first, half.queue_offset)
        if self._is_decided(first, waiting):
            self.repeated_count += 1
            return PutResult(PutStatus.PUT_OK)
        if is_commit:
            result = self._put(_final(half), now_ms)
            if not result.status.is_stored:
                return result
        result = self._put_op(waiting, now_ms, is_delivered=is_commit)
        if not result.status.is_stored and not is_commit:
            return result
        self._take_note(first, waiting, is_commit=is_commit)
        return PutResult(PutStatus.PUT_OK)

    def decide_all(self, ends: Sequence[End], now_ms: int) -> int:
        """Do in one put what ``decide`` does one by one, up to the first that is not common.

        Common is what is said of an undecided first copy, by its group, and a record that a kernel
        can put again; final and op message stand side by side, as those of ``decide``.

        Returns:
            How many are decided: the first ones.
        """
        ends = ends[: self._undecided_count(ends)]
        count, data, told = self._decided(ends, now_ms) if ends else (0, b"", _NOTHING)
        sizes = told[told > 0].tolist()
        if not sizes:
            return 0
        stored, words = self._store.put_encoded(data, len(sizes), now_ms)
        if not stored:
            return 0
        stored_at = words.tolist()
        self.put_end = stored_at[2 * stored - 2] + sizes[stored - 1]
        if stored == len(sizes):
            self._take_notes(ends[:count], stored_at[2 * stored - 1])
            return count
        at = 0  # in ``sizes``
        for number, end in enumerate(ends[:count]):
            if at == stored:
                return number
            at += 2 if end.is_commit else 1
            if at <= stored:
                self._ops.put(stored_at[2 * at - 1], end.queue_offset)
            else:
                self._put_op(end.queue_offset, now_ms, is_delivered=True)
                at = stored
            self._take_note(end.queue_offset, end.queue_offset, is_commit=end.is_commit)
        return count

    def _decided(self, ends: Sequence[End], now_ms: int) -> tuple[int, bytes, Places]:
        """Return of how many ends, the first ones, there are records, these, and their sizes."""
        groups = b""
        cuts: dict[bytes, tuple[int, int]] = {}
        rows = []
        for half_offset, physical_offset, group, is_commit in ends:
            if group not in cuts:
                cuts[group] = len(groups), len(group)
                groups += group
            rows.append((half_offset, physical_offset, 0, 0, 0, *cuts[group], is_commit))
        op = incoming.encode(self._op(b"", now_ms), _OP_TOPIC)
        return self._store.copier.decided(np.array(rows, np.int64), _FINAL, op, groups)

    def _undecided_count(self, ends: Sequence[End]) -> int:
        """Return of how many, the first ones, it is known that they wait and have no copy."""
        seen: set[int] = set()
        copies, is_done = self._copies, self._marks.is_done
        queue = self._queue(names.HALF_TOPIC)
        if queue is None or not ends:
            return 0
        places = self._unit_places(queue, [one.queue_offset for one in ends])
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
            # Unless the broker ends before it has passed, it counts as decided.
            _log.error("no op message for half message %d: %s", half_offset, result.reason)
        return result

    def _take_note(self, first: int, waiting: int, *, is_commit: bool) -> None:
        self._copies.pop(first, None)
        self._given_up.pop(first, None)
        self._note_decided(waiting)
        if first < self._known_from:
            self._note_told(first)
        if is_commit:
            self.committed_count += 1
        else:
            self.rolled_back_count += 1

    def _take_notes(self, ends: Sequence[End], last_op_offset: int) -> None:
        """Take note of ends whose op messages follow each other, of undecided first copies."""
        decided = [end.queue_offset for end in ends]
        self._ops.put_all(last_op_offset + 1 - len(ends), decided)
        self._marks.add_all(decided)
        for first in decided if min(decided) < self._known_from else ():
            if first < self._known_from:
                self._note_told(first)
        commit_count = sum(end.is_commit for end in ends)
        self.committed_count += commit_count
        self.rolled_back_count += len(ends) - commit_count

    def _note_told(self, first: int) -> None:
        """Remember that one of those from before the start was decided."""
        self._told[first] = None
        if len(self._told) > GIVEN_UP_MAX:
            del self._told[next(iter(self._told))]

    def _is_decided(self, first: int, waiting: int) -> bool:
        """Whether a message is known to be decided, since the start if it is from before that."""
        if not self._marks.is_done(waiting):
            return False
        is_known = waiting >= self._known_from and first >= self._forgotten_to
        return first in self._told or (is_known and first not in self._given_up)

    def _op(self, body: bytes, now_ms: int) -> IncomingMessage:
        # 5.x writes several offsets, each with a comma behind it, which 4.9 cannot read.
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
        """Put a half message that was given up back, to be asked about from the beginning.

        Raises:
            RequestRefused: It is none.
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
                f"no message of topic {stored.topic} stands at {stored.physical_offset}",
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
        """Do some of what is to be done, at most ``MESSAGES_PER_STEP`` messages.

        Returns:
            Whether there may be more: call it again.
        """
        queue = self._queue(names.HALF_TOPIC)
        if queue is None:
            return False
        self._pass_expired(queue)
        if not self.is_read:
            return self._read_ops() or self._read_copies(queue)
        did = self._step_round(queue, now_ms)
        self._note_progress()
        return did

    def close(self) -> None:
        """Make durable what was put, so that the offsets say all of it; save those then."""
        try:
            self._store.flusher.commit()
            self._store.sync()
        except WriteFailed as error:
            _log.error("some half messages may be asked about again: %s", error)
        self._note_progress()

    def _note_progress(self) -> None:
        if not self.is_read:
            return
        self._early_ops.clear()
        self._marks.pass_done()
        reached = self._marks.start, self._ops.needed_from(self._marks.start)
        if reached != self._noted:
            self._noted = reached
            for topic, offset in zip(TOPICS, reached, strict=True):
                self._durable.note(topic, offset, self.put_end)
        for topic, offset in self._durable.durable(self._store.log.flushed_offset):
            self._offsets.put(topic, names.TRANSACTION_GROUP, QUEUE_ID, offset)

    def _pass_expired(self, queue: ConsumeQueue) -> None:
        if self._marks.start < queue.min_offset:
            count = self._marks.pass_to(queue.min_offset)
            self.lost_count += count
            _log.error("%d undecided half messages before %d have expired", count, queue.min_offset)

    # Reading again ----------------------------------------------------------------------------

    def _read_ops(self) -> bool:
        """Read op messages that are not known: of before the start."""
        queue = self._queue(names.OP_HALF_TOPIC)
        if queue is None or self._ops.next_offset >= queue.max_offset:
            return False
        halves = self._queue(names.HALF_TOPIC)
        end = halves.next_offset if halves is not None else 0
        begin = max(self._ops.next_offset, queue.min_offset)
        found = self._store.get(names.OP_HALF_TOPIC, QUEUE_ID, begin, MESSAGES_PER_STEP)
        for op in filter(None, map(_decoded, found.records)):
            place = f"{names.OP_HALF_TOPIC}, message {op.queue_offset}"
            half_offsets = _decided_by(op)
            if half_offsets is None:
                self._quarantine.add(LOOP, place, f"it says nothing known: {op.body[:80]!r}")
                continue
            for half_offset in half_offsets:
                if half_offset >= end:
                    reason = f"it is about half message {half_offset}; there are {end}"
                    self._quarantine.add(LOOP, place, reason)
                    continue
                self._ops.note(op.queue_offset, half_offset)
                self._note_decided(half_offset)
        self._ops.next_offset = max(found.next_offset, begin + 1)
        return True

    def _read_copies(self, queue: ConsumeQueue) -> bool:
        """Find which half messages are copies: the last one counts, decisions are about all."""
        begin = max(self._copies_from, queue.min_offset)
        if begin >= min(self._copies_to, queue.max_offset):
            self._copies_from = self._copies_to
            return False
        found = self._store.get(names.HALF_TOPIC, QUEUE_ID, begin, MESSAGES_PER_STEP)
        for data in found.records:
            half = _decoded(data) if _FIRST in data.tobytes() else None
            if half is None or not begin <= half.queue_offset < self._copies_to:
                continue
            first, one = check.first_offset(half), half.queue_offset
            if first == one:
                continue  # whatever it says, it is a copy of none
            before = self._copies.pop(first, first)
            if self._has_op(first) or self._has_op(before) or self._has_op(one):
                self._note_decided(first)  # so are the copies behind this one
                self._note_decided(one)
            else:
                self._copies[first] = one
            self._marks.add_copied(before)
        self._copies_from = max(found.next_offset, begin + 1)
        return True

    def _note_decided(self, half_offset: int) -> None:
        if half_offset < self._marks.start:
            self._early_ops.add(half_offset)
        self._marks.add(half_offset)

    def _has_op(self, half_offset: int) -> bool:
        """Whether one is known to be decided, while reading again."""
        if half_offset < self._marks.start:
            return half_offset in self._early_ops
        return self._marks.is_done(half_offset) and not self._marks.is_copied(half_offset)

    # Rounds -----------------------------------------------------------------------------------

    def _step_round(self, queue: ConsumeQueue, now_ms: int) -> bool:
        if self._refused_ms is not None and 0 <= now_ms - self._refused_ms < RETRY_MS:
            return False
        if self._round is None:
            # A clock that was set back must not keep anybody waiting.
            if 0 <= now_ms - self._round_ms < self.config.transaction_check_interval:
                return False
            self._round = _Round(now_ms, self._marks.start, queue.max_offset)
            self._round_ms = now_ms
        this = self._round
        begin = self._marks.next_open(this.position)
        if begin >= this.end:
            self._round = None
            return False
        found = self._store.get(names.HALF_TOPIC, QUEUE_ID, begin, MESSAGES_PER_STEP)
        halves = {one.queue_offset: one for one in filter(None, map(_decoded, found.records))}
        behind = min(max(found.next_offset, begin + 1), this.end)
        rules = Rules(
            self.config.transaction_time_out,
            self.config.transaction_check_max,
            self._store.config.file_reserved_time * _HOUR_MS,
        )
        bytes_left = BYTES_PER_STEP
        for half_offset in range(begin, behind):
            if self._marks.is_done(half_offset):
                continue
            if bytes_left <= 0:
                behind = half_offset
                break
            half = halves.get(half_offset)
            if half is None:
                self._lose(half_offset, "it cannot be read")
                continue
            bytes_left -= len(half.body)
            verdict = check.judge(half, rules, this.begun_ms, now_ms)
            if verdict is Verdict.YOUNG:
                self._round = None
                return False
            try:
                is_settled = self._settle(half, verdict, now_ms)
            except (WriteFailed, OSError, MemoryError) as error:
                self._complain(half, repr(error))
                is_settled = False
            except Exception as error:  # noqa: BLE001 - clients decide what is in a message
                self._lose(half_offset, repr(error))
                continue
            if not is_settled:
                this.position = half_offset
                self._refused_ms = now_ms
                return False
        this.position = behind
        self._refused_ms, self._problem = None, ""
        return True

    def _settle(self, half: StoredMessage, verdict: Verdict, now_ms: int) -> bool:
        """Do with a half message what a round must; return False if it is to be tried again."""
        if verdict is Verdict.GIVEN_UP:
            return self._give_up(half, now_ms, "it was asked about often enough, or is too old")
        properties = dict(half.properties)
        properties.pop(props.CRC32, None)
        if verdict is Verdict.DUE:
            times = check.check_count(properties) + 1
            properties[props.TRANSACTION_CHECK_TIMES] = str(times)
        try:
            result = self._put_back(half, properties, now_ms)
        except Refused as refused:
            return self._give_up(half, now_ms, refused.reason)
        if result.status.is_final:
            return self._give_up(half, now_ms, result.reason)
        if not result.status.is_stored:
            self._complain(half, f"{result.status.name}: {result.reason}")
            return False
        if verdict is Verdict.DUE:
            asked = self._ask(_as_asked(half, properties, result))
            self.asked_count += asked
            self.unasked_count += not asked
        return True

    def _put_back(self, half: StoredMessage, properties: dict[str, str], now_ms: int) -> PutResult:
        """Put a copy at the end; it waits from now on. Raises ``Refused``."""
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
            self._complain(half, f"{result.status.name}: {result.reason}")
            return False
        else:
            self.given_up_count += 1
            _log.error(
                "half message %d of topic %s goes to %s: %s",
                half.queue_offset, half.properties.get(props.REAL_TOPIC),
                names.CHECK_MAX_TIME_TOPIC, reason,
            )  # fmt: skip
            self._let_go(check.first_offset(half), half.queue_offset)
        return True

    def _lose(self, half_offset: int, reason: str) -> None:
        self.lost_count += 1
        self._quarantine.add(LOOP, f"{names.HALF_TOPIC}, message {half_offset}", reason)
        copies = (first for first, last in self._copies.items() if last == half_offset)
        self._let_go(next(copies, half_offset), half_offset)

    def _let_go(self, first: int, half_offset: int) -> None:
        """Take note that a message does not wait any more, and that nobody has decided it."""
        self._copies.pop(first, None)
        self._marks.add(half_offset)
        self._given_up[first] = None
        if len(self._given_up) > GIVEN_UP_MAX:
            oldest = next(iter(self._given_up))
            del self._given_up[oldest]
            self._forgotten_to = max(self._forgotten_to, oldest + 1)

    def _complain(self, half: StoredMessage, problem: str) -> None:
        if problem != self._problem:
            self._problem = problem
            _log.error(
                "half message %d cannot be put back, and is tried again every %d ms: %s",
                half.queue_offset, RETRY_MS, problem,
            )  # fmt: skip

    def _put(self, message: IncomingMessage, now_ms: int) -> PutResult:
        result = self._store.put(message, now_ms)
        if result.status.is_stored:
            self.put_end = result.end_offset
        return result


# --- what is known of half and op messages --------------------------------------------

_OPEN, _DONE, _COPIED = 0, 1, 2


class _Marks:
    """Which half messages are done with, from the first on that is not; a byte each."""

    def __init__(self, start: int) -> None:
        self.start = start
        self._states = bytearray()

    def add(self, half_offset: int) -> None:
        """Mark one as decided, put again, given up or lost."""
        at = half_offset - self.start
        if at < 0:
            return
        if at >= len(self._states):
            self._states.extend(bytes(at + 1 - len(self._states)))
        self._states[at] = _DONE

    def add_all(self, half_offsets: Sequence[int]) -> None:
        """Mark several that are not done with."""
        self.add(max(half_offsets))
        states, start = self._states, self.start
        for one in half_offsets:
            states[one - start] = _DONE

    def add_copied(self, half_offset: int) -> None:
        """Mark one as done with because a copy of it waits, or is decided, unless it is marked."""
        if not self.is_done(half_offset):
            self.add(half_offset)
            self._states[half_offset - self.start] = _COPIED

    @property
    def done_count(self) -> int:
        return len(self._states) - self._states.count(_OPEN)

    def is_done(self, half_offset: int) -> bool:
        at = half_offset - self.start
        return at < 0 or (at < len(self._states) and self._states[at] != _OPEN)

    def is_copied(self, half_offset: int) -> bool:
        at = half_offset - self.start
        return 0 <= at < len(self._states) and self._states[at] == _COPIED

    def next_open(self, half_offset: int) -> int:
        """Return the first that is not done with, from an offset on; it may not be there yet."""
        at = max(half_offset - self.start, 0)
        found = self._states.find(_OPEN, at)
        return self.start + (max(len(self._states), at) if found < 0 else found)

    def pass_done(self) -> None:
        """Forget those that are done with, up to the first that is not."""
        self.pass_to(self.next_open(self.start))

    def pass_to(self, half_offset: int) -> int:
        """Forget all before an offset; return how many of them were not done with."""
        count = half_offset - self.start
        open_count = max(count - len(self._states), 0) + self._states.count(_OPEN, 0, count)
        del self._states[:count]
        self.start = half_offset
        return open_count


class _Ops:
    """Which op messages are known, and which of them must be read after a restart."""

    def __init__(self, next_offset: int) -> None:
        self.next_offset = next_offset
        """Queue offset of the first that is not known."""
        self._runs: deque[_Run] = deque()

    def put(self, op_offset: int, half_offset: int) -> None:
        """Take note of one that was put; if others come before it, it is read after them."""
        if op_offset == self.next_offset:
            self.note(op_offset, half_offset)
            self.next_offset += 1

    def put_all(self, op_offset: int, half_offsets: Sequence[int]) -> None:
        """Take note of some that were put and follow each other."""
        if op_offset != self.next_offset:
            return
        self.next_offset += len(half_offsets)
        done = 0
        while done < len(half_offsets):
            self.note(op_offset + done, half_offsets[done])
            run = self._runs[-1]
            behind = min(run.begin + OPS_PER_RUN - op_offset, len(half_offsets))
            run.highest = max(run.highest, *half_offsets[done:behind])
            done = behind

    def note(self, op_offset: int, half_offset: int) -> None:
        if not self._runs or op_offset - self._runs[-1].begin >= OPS_PER_RUN:
            self._runs.append(_Run(op_offset, half_offset))
        self._runs[-1].highest = max(self._runs[-1].highest, half_offset)

    def needed_from(self, half_offset: int) -> int:
        """Return the first that may be about a half message from an offset on."""
        while self._runs and self._runs[0].highest < half_offset:
            self._runs.popleft()
        return self._runs[0].begin if self._runs else self.next_offset


@dataclass(slots=True)
class _Run:
    """Some op messages in a row."""

    begin: int
    highest: int
    """Of the half messages that they are about."""


@dataclass(slots=True)
class _Round:
    """A pass over the undecided half messages."""

    begun_ms: int
    position: int
    end: int
    """What is put from here on is for the next one."""


# --- messages -------------------------------------------------------------------------

_OP_PROPERTIES = props.encode({props.TAGS: OP_TAG, props.WAIT: "true"})
_OP_TOPIC = names.OP_HALF_TOPIC.encode()
_FINAL = CopyRule(
    from_topic=names.HALF_TOPIC.encode(),
    sys_flags_off=flags.TRANSACTION_MASK,
    sys_flags_on=flags.TRANSACTION_COMMIT,
    has_prepared_offset=True,
)
"""What ``_final`` does."""
_NOTHING = np.zeros((0, 2), np.int64)


def _decoded(data: memoryview) -> StoredMessage | None:
    try:
        return record.decode(bytes(data), check_crc=False)
    except CorruptRecord as error:
        _log.error("a half or op message is damaged: %s", error)
        return None


def _decided_by(op: StoredMessage) -> list[int] | None:
    """Return the queue offsets of the half messages that an op message says are decided.

    None: it says something else.
    """
    words = op.body.decode("ascii", "replace").split(",")
    numbers = [props.number(word) for word in words if word]
    known = [number for number in numbers if number is not None]
    return known if op.tags == OP_TAG and len(known) == len(numbers) else None


def real_place(half: StoredMessage) -> tuple[str, int]:
    """Return topic and queue that a half message belongs to. Raises ``Refused``."""
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
    message = again(half, topic, QUEUE_ID, properties=properties)
    message.is_due = True  # a delay among its properties is that of the final message
    return message


def _final(half: StoredMessage) -> IncomingMessage:
    """Return what is delivered; it keeps the marks of its waiting, as with 4.9."""
    topic, queue_id = real_place(half)
    sys_flag = half.sys_flag & ~flags.TRANSACTION_MASK | flags.TRANSACTION_COMMIT
    message = again(half, topic, queue_id, sys_flag=sys_flag)
    message.prepared_transaction_offset = half.physical_offset
    return message


def _is_final_of(final: StoredMessage, half: StoredMessage) -> bool:
    """Whether a committed message is that of a half one: clients may send what looks like one."""
    kept = (
        {name: value for name, value in one.properties.items() if name != props.CRC32}
        for one in (final, half)
    )
    return final.body == half.body and next(kept) == next(kept)


def _as_asked(half: StoredMessage, properties: dict[str, str], copy: PutResult) -> StoredMessage:
    """Return the copy of a half message that its producer is asked about."""
    return dataclasses.replace(
        half,
        queue_offset=copy.queue_offset,
        physical_offset=copy.physical_offset,
        store_timestamp=copy.store_timestamp,
        property_bytes=props.encode(properties),
        properties=properties,
    )
