"""Pop: a group's members receive messages of any queue, and hold them for a while.

No member owns a queue. A popped message is invisible to the rest of the group until it is
acknowledged or its invisible time is over. A checkpoint per queue and pop records the messages
(``revive``), and the group's position moves past them (``offsets``). Messages that are not
acknowledged in time are copied to the group's retry topic, which every pop reads as well. Ordered
pops have neither checkpoints nor retry topics: see ``orders``.

Source: rocketmq 5.5.0 ``PopMessageProcessor``.
"""

import dataclasses
import random
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from reput.broker.access.access import Grant
from reput.broker.filter.selection import EVERYTHING, Selection
from reput.broker.held_requests import HeldRequests, WaitPlace
from reput.broker.pop.checkpoints import Key
from reput.broker.pop.offsets import PopOffsets, PopPosition
from reput.broker.pop.orders import PopOrders
from reput.broker.pop.retry_topics import V1, PopRetries
from reput.broker.pop.revive import Revive
from reput.broker.topic.topics import Topics
from reput.errors import CorruptRecord
from reput.format import message as record, names, pop_codec, properties as props
from reput.format.command import Command
from reput.format.pop_codec import ORDERED_REVIVE_QUEUE, Handle
from reput.remoting.channel import Channel
from reput.store.getting import GetResult, GetStatus
from reput.store.message_store import MessageStore
from reput.store.writing.incoming import PutResult
from reput.store.writing.pop_reader import PopBatch

_MOVED = frozenset(
    {GetStatus.OFFSET_TOO_SMALL, GetStatus.OFFSET_OVERFLOW_BADLY, GetStatus.OFFSET_FOUND_NULL}
)
ANY_QUEUE = -1
RETRIED_MAX = 100_000
"""Retry topics whose popping group is remembered; the oldest is evicted first."""


class PopParameters(NamedTuple):
    """The parameters of a pop."""

    topic: str
    group: str
    queue_id: int
    """Queue id; -1 for any queue."""
    count_max: int
    """Maximum number of messages, 1 to 32."""
    invisible_ms: int
    selection: Selection = EVERYTHING
    starts_at_end: bool = False
    """True if a group without a position begins at the end of the queue."""
    is_ordered: bool = False
    attempt_id: str | None = None
    priority_percent: int = 0
    """Percentage of pops that read the queues in order of priority, not from a random queue on."""


@dataclass(slots=True)
class Popped:
    """The result of a pop."""

    pop_ms: int
    revive_queue_id: int
    count: int = 0
    data: list[bytes] = field(default_factory=list)
    """Concatenated records."""
    results: list[tuple[str, int, GetResult | PopBatch]] = field(default_factory=list)
    """Topic, queue id and result of each queue that had messages."""
    rest: int = 0
    """Messages that remain in the queues that were read."""
    has_skipped: bool = False
    """True if messages were filtered out, so that later ones may match."""
    start_infos: list[str] = field(default_factory=list)
    message_infos: list[str] = field(default_factory=list)
    order_infos: list[str] = field(default_factory=list)
    refusal: PutResult | None = None
    """Set if the store refused a checkpoint; its messages stay in the queue."""


@dataclass(slots=True, eq=False)
class HeldPop:
    """A held pop, or a held query whether there are messages to pop."""

    channel: Channel
    request: Command
    """The request, from which the reply is made."""
    wanted: PopParameters
    deadline_ms: int
    """Monotonic time in ms."""
    find_reply: Callable[["HeldPop", bool], Command | None]
    """Returns the reply to this pop if there is one; in any case if the argument is True."""
    is_question: bool = False
    grant: Grant | None = None
    """Permission that the request was granted; None without access control."""
    is_over: bool = False

    def retry(self, *, is_last: bool) -> Command | None:
        """Return the reply; None if there is none yet."""
        return self.find_reply(self, is_last)

    @property
    def bytes_about(self) -> int:
        """Approximate memory of its filter, in bytes."""
        return self.wanted.selection.bytes_about

    @property
    def places(self) -> tuple[WaitPlace, WaitPlace]:
        """Keys under which it is held: its queue, and the retry topics of its group."""
        wanted = self.wanted
        return (wanted.topic, wanted.queue_id), (wanted.topic, wanted.group)

    @property
    def key(self) -> Hashable:
        """Key that is equal for pops that find the same messages."""
        wanted, selection = self.wanted, self.wanted.selection
        return (
            self.is_question, wanted.group, wanted.queue_id, wanted.is_ordered, wanted.attempt_id,
            selection.tags_codes, id(selection.message_filter),
        )  # fmt: skip


class Pops:
    """Serves pops, and owns the state of acks and changes of invisible times.

    Args:
        store: The store with the messages.
        topics: The topics with their queues.
        revive: Keeps the checkpoints.
        offsets: The groups' positions.
        orders: Blocks that groups hold in order.
        held: The held pops.
        retry_percent: Percentage of pops that read the retry topic first.
        priority_retry_percent: The same, for pops in order of priority.
        highest_first: Pops in order of priority begin with the highest queue.
        broker_name: Broker name in receipt handles.
        is_old: Returns whether the beginning of a queue is presumably not in memory.
        retries: Naming of the retry topics.
    """

    def __init__(
        self,
        store: MessageStore,
        topics: Topics,
        revive: Revive,
        offsets: PopOffsets,
        orders: PopOrders,
        held: HeldRequests[HeldPop],
        *,
        retry_percent: int,
        priority_retry_percent: int = 0,
        highest_first: bool = True,
        broker_name: str,
        is_old: Callable[[str, int], bool],
        retries: PopRetries = V1,
    ) -> None:
        self.revive = revive
        self.offsets = offsets
        self.orders = orders
        self.held = held
        self._store = store
        self._topics = topics
        self._retry_percent = retry_percent
        self._priority_retry_percent = priority_retry_percent
        self._highest_first = highest_first
        self._broker_name = broker_name
        self._is_old = is_old
        self._retries = retries
        self._retried: OrderedDict[str, tuple[str, str]] = OrderedDict()
        """Retry topic -> the topic and group that it belongs to."""
        self._frees: dict[tuple[str, str, int], int] = {}
        """Topic, group and queue of blocked ordered pops -> when the queue can be read again."""

    # Popping ----------------------------------------------------------------------------------

    def pop(self, wanted: PopParameters, now_ms: int) -> Popped:
        """Pop messages, which become invisible to the rest of the group.

        Raises:
            RequestRefused: The topic does not exist any more.
        """
        revive_queue_id = ORDERED_REVIVE_QUEUE if wanted.is_ordered else self.revive.next_queue()
        popped = Popped(now_ms, revive_queue_id)
        draw = int(100 * random.random())
        takes_retries = not wanted.is_ordered
        by_priority = takes_retries and draw < wanted.priority_percent
        retry_percent = self._priority_retry_percent if by_priority else self._retry_percent
        retries_first = takes_retries and draw < retry_percent
        if by_priority:
            draw = 0
        if retries_first:
            self._pop_retries(popped, wanted, draw)
        if wanted.queue_id == ANY_QUEUE:
            self._pop_all(popped, wanted, wanted.topic, wanted.selection, draw)
        else:
            self._pop_queue(popped, wanted, wanted.topic, wanted.queue_id, wanted.selection)
        if takes_retries and not retries_first and popped.count < wanted.count_max:
            self._pop_retries(popped, wanted, draw)
        return popped

    def reset(self, topic: str, group: str, queue_id: int, queue_offset: int) -> None:
        """Set the queue offset from which a group pops, and its consumer offset.

        Messages that it holds in order do not block the queue any more. Others that it holds stay
        invisible for their time: if they are after the new offset, they are popped again now.
        """
        self.offsets.reset(topic, group, queue_id, queue_offset)
        self.orders.table.release(topic, group, queue_id)
        self._frees.pop((topic, group, queue_id), None)
        self.arrived(topic, queue_id)

    def _remember(self, retries: str, wanted: PopParameters) -> None:
        """Record the group of a retry topic, so that its messages wake the group's held pops."""
        if retries in self._retried:
            return
        self._retried[retries] = wanted.topic, wanted.group
        if len(self._retried) > RETRIED_MAX:
            # It is recorded again when its group pops again: a pop is held for some seconds.
            self._retried.popitem(last=False)

    def _pop_retries(self, popped: Popped, wanted: PopParameters, draw: int) -> None:
        for topic in self._retries.sources(wanted.topic, wanted.group):
            self._remember(topic, wanted)
            if self._topics.get(topic) is not None:
                # These messages matched the filter when they were first popped.
                self._pop_all(popped, wanted, topic, EVERYTHING, draw)

    def _pop_all(
        self, popped: Popped, wanted: PopParameters, topic: str, selection: Selection, draw: int
    ) -> None:
        count = self._topics.readable(topic).read_queue_count
        for number in range(count):
            turn = count - 1 - number if self._highest_first else number
            self._pop_queue(popped, wanted, topic, (draw + turn) % count, selection)

    def _pop_queue(
        self, popped: Popped, wanted: PopParameters, topic: str, queue_id: int, selection: Selection
    ) -> None:
        group, now_ms = wanted.group, popped.pop_ms
        if wanted.is_ordered and self._is_blocked(wanted, queue_id, now_ms):
            return
        position = self._position(wanted, topic, queue_id)
        begin = position.next_offset
        room = wanted.count_max - popped.count
        if room <= 0 or popped.refusal is not None:
            popped.rest += max(0, self._store.max_offset(topic, queue_id) - begin)
            return
        if not wanted.is_ordered and selection.message_filter is None:
            key = Key(topic, group, queue_id, begin, now_ms)
            codes, revive_queue_id = selection.tags_codes, popped.revive_queue_id
            taken = self.revive.pop_messages(key, room, codes, wanted.invisible_ms, revive_queue_id)
            if taken is not None:
                self._add_taken(popped, position, taken)
                return
        result = self._get(topic, queue_id, begin, room, selection)
        if result.status in _MOVED:
            begin = result.next_offset
            position = self.offsets.set(topic, group, queue_id, begin)
            result = self._get(topic, queue_id, begin, room, selection)
        next_offset = result.next_offset
        if result.message_count:
            if not self._take(popped, wanted, position, result):
                next_offset = begin
        elif (
            begin < next_offset <= result.max_offset
        ):  # all messages that were read are filtered out
            popped.has_skipped = True
            self._advance(wanted, position, next_offset)
        popped.rest += max(0, result.max_offset - next_offset)

    def _add_taken(self, popped: Popped, position: PopPosition, taken: PopBatch) -> None:
        """Add the popped messages to the result and move the group's position past them."""
        topic, queue_id = position.topic, position.queue_id
        popped.start_infos.append(f"{pop_codec.NORMAL} {queue_id} {position.next_offset}")
        popped.message_infos.append(taken.info)
        popped.results.append((topic, queue_id, taken))
        popped.data.append(taken.data)
        popped.count += taken.message_count
        popped.rest += taken.max_offset - taken.next_offset
        self.offsets.advance(position, taken.next_offset, taken.end_offset)

    def _get(
        self, topic: str, queue_id: int, begin: int, room: int, selection: Selection
    ) -> GetResult:
        return self._store.get(
            topic,
            queue_id,
            begin,
            room,
            tags_codes=selection.tags_codes,
            message_filter=selection.message_filter,
        )

    def _position(self, wanted: PopParameters, topic: str, queue_id: int) -> PopPosition:
        """Return the group's position in a queue; set and publish it if there is none."""
        position = self.offsets.position(topic, wanted.group, queue_id)
        if position is not None:
            return position
        begin = self._store.min_offset(topic, queue_id)
        is_retry = names.is_retry_topic(topic)
        if wanted.starts_at_end and not is_retry and (begin > 0 or self._is_old(topic, queue_id)):
            # Start at the last message: the first message of a queue is never missed.
            begin = max(0, self._store.max_offset(topic, queue_id) - 1)
        return self.offsets.set(topic, wanted.group, queue_id, begin)

    def _is_blocked(self, wanted: PopParameters, queue_id: int, now_ms: int) -> bool:
        until_ms = self.orders.blocked_until(
            wanted.topic, wanted.group, queue_id, wanted.attempt_id, now_ms
        )
        if until_ms is not None:
            self._frees[wanted.topic, wanted.group, queue_id] = until_ms
        return until_ms is not None

    def _advance(self, wanted: PopParameters, position: PopPosition, queue_offset: int) -> None:
        if wanted.is_ordered:
            self.offsets.set(position.topic, position.group, position.queue_id, queue_offset)
        else:
            self.offsets.advance(position, queue_offset, self.revive.checkpoints_end)

    def _take(
        self, popped: Popped, wanted: PopParameters, position: PopPosition, result: GetResult
    ) -> bool:
        """Record that the group holds messages; return whether that succeeded."""
        topic, group, queue_id, begin = (
            position.topic,
            position.group,
            position.queue_id,
            position.next_offset,
        )
        now_ms = popped.pop_ms
        offsets = self._offsets_of(topic, queue_id, begin, result)
        if wanted.is_ordered:
            popped.order_infos.append(
                self.orders.begin(
                    topic, group, queue_id, offsets, wanted.attempt_id, wanted.invisible_ms, now_ms
                )
            )
            self.offsets.set(topic, group, queue_id, begin)
        else:
            key = Key(topic, group, queue_id, begin, now_ms)
            if key in self.revive.checkpoints:
                return (
                    False  # the position was reset within this millisecond: the next pop succeeds
                )
            put_result = self.revive.hold(
                key, offsets, wanted.invisible_ms, popped.revive_queue_id, now_ms
            )
            if not put_result.status.is_stored:
                popped.refusal = put_result
                return False
            self.offsets.advance(position, result.next_offset, put_result.end_offset)
        popped.start_infos.append(pop_codec.start_info(topic, queue_id, begin))
        popped.message_infos.append(pop_codec.message_info(topic, queue_id, offsets))
        popped.results.append((topic, queue_id, result))
        popped.count += len(offsets)
        if names.is_retry_topic(topic):
            popped.data += [
                self._as_requested(record_data, popped, wanted, begin)
                for record_data in result.records
            ]
        else:
            popped.data.append(result.data)
        return True

    def _offsets_of(
        self, topic: str, queue_id: int, begin: int, result: GetResult
    ) -> Sequence[int]:
        """Return the queue offsets of the messages that were read from ``begin`` on."""
        count = result.message_count
        has_units_of_one = self._store.queues.find(topic, queue_id) is not None
        if result.next_offset == begin + count and has_units_of_one:
            return range(begin, begin + count)  # no message was filtered out
        if names.is_light(topic):
            return self._light_offsets_of(topic, queue_id, begin, result)
        return record.queue_offsets_in(result.data)

    def _light_offsets_of(
        self, topic: str, queue_id: int, begin: int, result: GetResult
    ) -> list[int]:
        """Return the queue offsets of messages of a light queue, from its units.

        A record has the offset in its own queue; it need not have its offsets in light queues.
        """
        queue = self._store.queues.find(topic, queue_id)
        assert queue is not None, "what has no queue has no messages"
        left = deque(record.physical_offsets_in(result.data))
        queue_offsets: list[int] = []
        position = begin
        while left and position < result.next_offset:
            units = queue.units(position, result.next_offset - position)
            for queue_offset, physical_offset in enumerate(
                units["physical_offset"].tolist(), position
            ):
                if left and physical_offset == left[0]:
                    left.popleft()
                    queue_offsets.append(queue_offset)
            position += max(len(units), 1)
        return queue_offsets

    def _as_requested(
        self, data: memoryview, popped: Popped, wanted: PopParameters, begin: int
    ) -> bytes:
        """Return a record of a retry topic as a record of the topic that was requested."""
        try:
            stored = record.decode(bytes(data), check_crc=False)
            handle = Handle(
                begin,
                popped.pop_ms,
                wanted.invisible_ms,
                popped.revive_queue_id,
                pop_codec.kind_of(stored.topic),
                self._broker_name,
                stored.queue_id,
                stored.queue_offset,
            )
            more = props.encode({props.POP_CHECKPOINT: str(handle)})
            marked = props.append(stored.property_bytes, more)
            return record.encode(
                dataclasses.replace(stored, topic=wanted.topic, property_bytes=marked)
            )
        except (CorruptRecord, ValueError):
            # Damaged, or no room for more properties. Clients can process the retry topic, too.
            return bytes(data)

    def publish_progress(self) -> None:
        """Publish the consumer offsets of finished and durable progress."""
        self.offsets.publish(self._store.log.flushed_offset)
        self.revive.publish_progress()

    # Peeking ----------------------------------------------------------------------------------

    def peek(self, wanted: PopParameters) -> Popped:
        """Return messages that a pop may find, without popping them. Raises ``RequestRefused``."""
        popped = Popped(0, 0)
        for topic, queue_id in self._queues(wanted):
            begin = self._next(wanted, topic, queue_id)
            room = wanted.count_max - popped.count
            popped.rest += max(0, self._store.max_offset(topic, queue_id) - begin)
            if room > 0:
                result = self._get(topic, queue_id, begin, room, EVERYTHING)
                if result.status in _MOVED:
                    result = self._get(topic, queue_id, result.next_offset, room, EVERYTHING)
                popped.count += result.message_count
                popped.data.append(result.data)
                if result.message_count:
                    popped.results.append((topic, queue_id, result))
        return popped

    def has_messages(self, wanted: PopParameters, now_ms: int) -> bool:
        """Return whether a pop may find messages, by offsets only. Raises ``RequestRefused``."""
        return any(
            self._store.max_offset(topic, queue_id) > self._next(wanted, topic, queue_id)
            for topic, queue_id in self._queues(wanted)
            if not (wanted.is_ordered and self._is_blocked(wanted, queue_id, now_ms))
        )

    def _queues(self, wanted: PopParameters) -> list[tuple[str, int]]:
        queues = []
        if not wanted.is_ordered:
            for retries in self._retries.sources(wanted.topic, wanted.group):
                self._remember(retries, wanted)
                topic = self._topics.get(retries)
                queues += [
                    (retries, queue) for queue in range(topic.read_queue_count if topic else 0)
                ]
        if wanted.queue_id != ANY_QUEUE:
            return [*queues, (wanted.topic, wanted.queue_id)]
        count = self._topics.readable(wanted.topic).read_queue_count
        return [*queues, *((wanted.topic, queue) for queue in range(count))]

    def _next(self, wanted: PopParameters, topic: str, queue_id: int) -> int:
        begin = self.offsets.find(topic, wanted.group, queue_id)
        return self._store.min_offset(topic, queue_id) if begin is None else begin

    # Held pops --------------------------------------------------------------------------------

    def arrived(self, topic: str, queue_id: int) -> None:
        """Wake the held pops that may match new messages of a queue."""
        if not self.held.count:
            return
        retried = self._retried.get(topic)
        if retried is None:
            for queue in (ANY_QUEUE, queue_id):
                self.held.wake(topic, queue)
            return
        topic_popped, group = retried
        self.held.wake(topic_popped, group)

    def freed(self, now_ms: int) -> bool:
        """Wake the held pops of ordered queues whose blocks have expired.

        Returns:
            True if there were such queues.
        """
        free = [key for key, free_ms in self._frees.items() if free_ms <= now_ms]
        for key in free:
            del self._frees[key]
            self.arrived(key[0], key[2])
        return bool(free)

    def next_due_ms(self) -> int | None:
        """Return when there may be work for ``revive`` or ``freed``; None if there is none."""
        due_ms = self.revive.next_due_ms()
        return min([*self._frees.values(), *([] if due_ms is None else [due_ms])], default=None)
