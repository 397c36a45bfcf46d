"""Pop: a group's members take messages of any queue, and hold them for a while.

No member owns a queue. What one takes, nobody else of the group sees until it is acknowledged, or
its time is over. A checkpoint per queue and pop says what was taken (``revive``), the group goes on
behind it (``pop_offsets``). What is not acknowledged is in the group's retry topic then, of which
every pop takes its share. In order, there is neither: ``pop_orders``.
Source: rocketmq 5.5.0 ``PopMessageProcessor``.
"""

import dataclasses
import random
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from reput.broker.filter.selection import EVERYTHING, Selection
from reput.broker.held_requests import HeldRequests, WaitPlace
from reput.broker.pop.checkpoints import Key
from reput.broker.pop.offsets import Place, PopOffsets
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
from reput.store.incoming import PutResult
from reput.store.message_store import MessageStore
from reput.store.pop_reader import Taken

_MOVED = frozenset(
    {GetStatus.OFFSET_TOO_SMALL, GetStatus.OFFSET_OVERFLOW_BADLY, GetStatus.OFFSET_FOUND_NULL}
)
ANY_QUEUE = -1
RETRIED_MAX = 100_000
"""Retry topics of groups that pop which are known; the oldest is forgotten first."""


class Wanted(NamedTuple):
    """What a pop asks for."""

    topic: str
    group: str
    queue_id: int
    """-1: any."""
    count_max: int
    """1 to 32."""
    invisible_ms: int
    selection: Selection = EVERYTHING
    starts_at_end: bool = False
    """Where the group begins that has read nothing."""
    is_ordered: bool = False
    attempt_id: str | None = None
    priority_percent: int = 0
    """So many of a hundred pops read the queues by their number, not from a random one on."""


@dataclass(slots=True)
class Popped:
    """What a pop found."""

    pop_ms: int
    revive_queue_id: int
    count: int = 0
    data: list[bytes] = field(default_factory=list)
    """Records, one behind the other."""
    results: list[tuple[str, int, GetResult | Taken]] = field(default_factory=list)
    """Topic, queue id and what was got of each queue that had something."""
    rest: int = 0
    """Messages that are left in the queues that were looked at."""
    has_skipped: bool = False
    """There were messages that are not wanted: what is wanted may come behind them."""
    start_infos: list[str] = field(default_factory=list)
    message_infos: list[str] = field(default_factory=list)
    order_infos: list[str] = field(default_factory=list)
    refusal: PutResult | None = None
    """The store refused a checkpoint: its messages stay where they are."""


@dataclass(slots=True, eq=False)
class HeldPop:
    """A pop, or a question whether there is something to pop, that waits."""

    channel: Channel
    request: Command
    """What a reply needs of it."""
    wanted: Wanted
    deadline_ms: int
    """Monotonic."""
    is_question: bool = False
    is_over: bool = False

    @property
    def bytes_about(self) -> int:
        """About how much memory it takes beside what each one does."""
        return self.wanted.selection.bytes_about

    @property
    def places(self) -> tuple[WaitPlace, WaitPlace]:
        """Where it waits: at its queue, and for what its group is to try again."""
        wanted = self.wanted
        return (wanted.topic, wanted.queue_id), (wanted.topic, wanted.group)

    @property
    def key(self) -> Hashable:
        """What decides which messages it finds."""
        wanted, selection = self.wanted, self.wanted.selection
        return (
            self.is_question, wanted.group, wanted.queue_id, wanted.is_ordered, wanted.attempt_id,
            selection.tags_codes, id(selection.message_filter),
        )  # fmt: skip


class Pops:
    """What pops, acks and changes of invisible times do.

    Args:
        store: Where the messages are.
        topics: Which queues there are.
        revive: Keeps the checkpoints.
        offsets: Where groups pop next.
        orders: What groups hold in order.
        held: The pops that wait.
        retry_percent: So many of a hundred pops look into the retry topic first.
        priority_retry_percent: The same, of pops that read by priority.
        highest_first: Whether those begin with the highest queue.
        broker_name: Handles say it.
        is_old: Whether the beginning of a queue is thought to be on disk only.
        retries: How retry topics are called.
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
        """Retry topic -> the topic and group that it is of."""
        self._frees: dict[tuple[str, str, int], int] = {}
        """Topic, group and queue that is read in order -> when it may be read on."""

    # Taking -----------------------------------------------------------------------------------

    def pop(self, wanted: Wanted, now_ms: int) -> Popped:
        """Take messages; nobody else of the group sees them from now on.

        Raises:
            RequestRefused: There is no such topic any more.
        """
        revive_queue_id = ORDERED_REVIVE_QUEUE if wanted.is_ordered else self.revive.next_queue()
        found = Popped(now_ms, revive_queue_id)
        draw = int(100 * random.random())
        takes_retries = not wanted.is_ordered
        by_priority = takes_retries and draw < wanted.priority_percent
        retry_percent = self._priority_retry_percent if by_priority else self._retry_percent
        retries_first = takes_retries and draw < retry_percent
        if by_priority:
            draw = 0
        if retries_first:
            self._pop_retries(found, wanted, draw)
        if wanted.queue_id == ANY_QUEUE:
            self._pop_all(found, wanted, wanted.topic, wanted.selection, draw)
        else:
            self._pop_queue(found, wanted, wanted.topic, wanted.queue_id, wanted.selection)
        if takes_retries and not retries_first and found.count < wanted.count_max:
            self._pop_retries(found, wanted, draw)
        return found

    def _remember(self, retries: str, wanted: Wanted) -> None:
        """Record which group owns a retry topic, so that its messages wake the pops that wait."""
        if retries in self._retried:
            return
        self._retried[retries] = wanted.topic, wanted.group
        if len(self._retried) > RETRIED_MAX:
            # Its group is woken again once it pops again: a wait is some seconds.
            self._retried.popitem(last=False)

    def _pop_retries(self, found: Popped, wanted: Wanted, draw: int) -> None:
        for topic in self._retries.sources(wanted.topic, wanted.group):
            self._remember(topic, wanted)
            if self._topics.get(topic) is not None:
                self._pop_all(found, wanted, topic, EVERYTHING, draw)  # they were wanted before

    def _pop_all(
        self, found: Popped, wanted: Wanted, topic: str, selection: Selection, draw: int
    ) -> None:
        count = self._topics.readable(topic).read_queue_count
        for at in range(count):
            turn = count - 1 - at if self._highest_first else at
            self._pop_queue(found, wanted, topic, (draw + turn) % count, selection)

    def _pop_queue(
        self, found: Popped, wanted: Wanted, topic: str, queue_id: int, selection: Selection
    ) -> None:
        group, now_ms = wanted.group, found.pop_ms
        if wanted.is_ordered and self._is_blocked(wanted, queue_id, now_ms):
            return
        place = self._place(wanted, topic, queue_id)
        begin = place.next_offset
        room = wanted.count_max - found.count
        if room <= 0 or found.refusal is not None:
            found.rest += max(0, self._store.max_offset(topic, queue_id) - begin)
            return
        if not wanted.is_ordered and selection.message_filter is None:
            key = Key(topic, group, queue_id, begin, now_ms)
            codes, revive_queue_id = selection.tags_codes, found.revive_queue_id
            taken = self.revive.take(key, room, codes, wanted.invisible_ms, revive_queue_id)
            if taken is not None:
                self._add_taken(found, place, taken)
                return
        result = self._get(topic, queue_id, begin, room, selection)
        if result.status in _MOVED:
            begin = result.next_offset
            place = self.offsets.set(topic, group, queue_id, begin)
            result = self._get(topic, queue_id, begin, room, selection)
        behind = result.next_offset
        if result.message_count:
            if not self._take(found, wanted, place, result):
                behind = begin
        elif begin < behind <= result.max_offset:  # all that was looked at is not wanted
            found.has_skipped = True
            self._go_on(wanted, place, behind)
        found.rest += max(0, result.max_offset - behind)

    def _add_taken(self, found: Popped, place: Place, taken: Taken) -> None:
        """Let a group go on behind what it holds now."""
        topic, queue_id = place.topic, place.queue_id
        found.start_infos.append(f"{pop_codec.NORMAL} {queue_id} {place.next_offset}")
        found.message_infos.append(taken.info)
        found.results.append((topic, queue_id, taken))
        found.data.append(taken.data)
        found.count += taken.message_count
        found.rest += taken.max_offset - taken.next_offset
        self.offsets.advance(place, taken.next_offset, taken.end_offset)

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

    def _place(self, wanted: Wanted, topic: str, queue_id: int) -> Place:
        """Return where the group pops next in a queue; said at once if it has popped nothing."""
        place = self.offsets.place(topic, wanted.group, queue_id)
        if place is not None:
            return place
        begin = self._store.min_offset(topic, queue_id)
        is_retry = names.is_retry_topic(topic)
        if wanted.starts_at_end and not is_retry and (begin > 0 or self._is_old(topic, queue_id)):
            # From the last message on: the first one of a queue is never missed.
            begin = max(0, self._store.max_offset(topic, queue_id) - 1)
        return self.offsets.set(topic, wanted.group, queue_id, begin)

    def _is_blocked(self, wanted: Wanted, queue_id: int, now_ms: int) -> bool:
        until_ms = self.orders.blocked_until(
            wanted.topic, wanted.group, queue_id, wanted.attempt_id, now_ms
        )
        if until_ms is not None:
            self._frees[wanted.topic, wanted.group, queue_id] = until_ms
        return until_ms is not None

    def _go_on(self, wanted: Wanted, place: Place, queue_offset: int) -> None:
        if wanted.is_ordered:
            self.offsets.set(place.topic, place.group, place.queue_id, queue_offset)
        else:
            self.offsets.advance(place, queue_offset, self.revive.checkpoints_end)

    def _take(self, found: Popped, wanted: Wanted, place: Place, result: GetResult) -> bool:
        """Let the group hold messages; return whether it does."""
        topic, group, queue_id, begin = place.topic, place.group, place.queue_id, place.next_offset
        now_ms = found.pop_ms
        offsets = self._offsets_of(topic, queue_id, begin, result)
        if wanted.is_ordered:
            found.order_infos.append(
                self.orders.begin(
                    topic, group, queue_id, offsets, wanted.attempt_id, wanted.invisible_ms, now_ms
                )
            )
            self.offsets.set(topic, group, queue_id, begin)
        else:
            key = Key(topic, group, queue_id, begin, now_ms)
            if key in self.revive.checkpoints:
                return False  # the place was set back within this millisecond: the next one will do
            put = self.revive.hold(key, offsets, wanted.invisible_ms, found.revive_queue_id, now_ms)
            if not put.status.is_stored:
                found.refusal = put
                return False
            self.offsets.advance(place, result.next_offset, put.end_offset)
        found.start_infos.append(pop_codec.start_info(topic, queue_id, begin))
        found.message_infos.append(pop_codec.message_info(topic, queue_id, offsets))
        found.results.append((topic, queue_id, result))
        found.count += len(offsets)
        if names.is_retry_topic(topic):
            found.data += [self._as_asked(one, found, wanted, begin) for one in result.records]
        else:
            found.data.append(result.data)
        return True

    def _offsets_of(
        self, topic: str, queue_id: int, begin: int, result: GetResult
    ) -> Sequence[int]:
        """Return the queue offsets of what was got from ``begin`` on."""
        count = result.message_count
        has_units_of_one = self._store.queues.find(topic, queue_id) is not None
        if result.next_offset == begin + count and has_units_of_one:
            return range(begin, begin + count)  # nothing that was looked at was left out
        if names.is_light(topic):
            return self._light_offsets_of(topic, queue_id, begin, result)
        return record.queue_offsets_in(result.data)

    def _light_offsets_of(
        self, topic: str, queue_id: int, begin: int, result: GetResult
    ) -> list[int]:
        """Return the queue offsets of what was got of a light queue: its units know.

        A record says its offset in its own queue; of light ones it may say nothing.
        """
        queue = self._store.queues.find(topic, queue_id)
        assert queue is not None, "what has no queue has no messages"
        left = deque(record.physical_offsets_in(result.data))
        found: list[int] = []
        at = begin
        while left and at < result.next_offset:
            units = queue.units(at, result.next_offset - at)
            for queue_offset, place in enumerate(units["physical_offset"].tolist(), at):
                if left and place == left[0]:
                    left.popleft()
                    found.append(queue_offset)
            at += max(len(units), 1)
        return found

    def _as_asked(self, data: memoryview, found: Popped, wanted: Wanted, begin: int) -> bytes:
        """Return a record of a retry topic as one of the topic that was asked for."""
        try:
            stored = record.decode(bytes(data), check_crc=False)
            handle = Handle(
                begin,
                found.pop_ms,
                wanted.invisible_ms,
                found.revive_queue_id,
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
            # Damaged, or no room for more. Clients know what to do with the retry topic, too.
            return bytes(data)

    def tell_progress(self) -> None:
        """Tell the table of consumer offsets what is done with and on disk."""
        self.offsets.tell(self._store.log.flushed_offset)
        self.revive.tell_progress()

    # Looking ----------------------------------------------------------------------------------

    def peek(self, wanted: Wanted) -> Popped:
        """Return what a pop may find, without taking it. Raises ``RequestRefused``."""
        found = Popped(0, 0)
        for topic, queue_id in self._queues(wanted):
            begin = self._next(wanted, topic, queue_id)
            room = wanted.count_max - found.count
            found.rest += max(0, self._store.max_offset(topic, queue_id) - begin)
            if room > 0:
                result = self._get(topic, queue_id, begin, room, EVERYTHING)
                if result.status in _MOVED:
                    result = self._get(topic, queue_id, result.next_offset, room, EVERYTHING)
                found.count += result.message_count
                found.data.append(result.data)
                if result.message_count:
                    found.results.append((topic, queue_id, result))
        return found

    def has_messages(self, wanted: Wanted, now_ms: int) -> bool:
        """Whether a pop may find something, as far as offsets tell. Raises ``RequestRefused``."""
        return any(
            self._store.max_offset(topic, queue_id) > self._next(wanted, topic, queue_id)
            for topic, queue_id in self._queues(wanted)
            if not (wanted.is_ordered and self._is_blocked(wanted, queue_id, now_ms))
        )

    def _queues(self, wanted: Wanted) -> list[tuple[str, int]]:
        queues = []
        if not wanted.is_ordered:
            for retries in self._retries.sources(wanted.topic, wanted.group):
                self._remember(retries, wanted)
                topic = self._topics.get(retries)
                queues += [(retries, one) for one in range(topic.read_queue_count if topic else 0)]
        if wanted.queue_id != ANY_QUEUE:
            return [*queues, (wanted.topic, wanted.queue_id)]
        count = self._topics.readable(wanted.topic).read_queue_count
        return [*queues, *((wanted.topic, one) for one in range(count))]

    def _next(self, wanted: Wanted, topic: str, queue_id: int) -> int:
        begin = self.offsets.find(topic, wanted.group, queue_id)
        return self._store.min_offset(topic, queue_id) if begin is None else begin

    # Waiting ----------------------------------------------------------------------------------

    def arrived(self, topic: str, queue_id: int) -> None:
        """Try to answer the held pops that may want messages of a queue."""
        if not len(self.held):
            return
        retried = self._retried.get(topic)
        if retried is None:
            for place in (ANY_QUEUE, queue_id):
                self.held.wake(topic, place)
            return
        asked, group = retried
        self.held.wake(asked, group)

    def freed(self, now_ms: int) -> bool:
        """Try to answer the held pops of ordered queues whose locks are over.

        Returns:
            True if there were such queues.
        """
        free = [key for key, at_ms in self._frees.items() if at_ms <= now_ms]
        for key in free:
            del self._frees[key]
            self.arrived(key[0], key[2])
        return bool(free)

    def next_due_ms(self) -> int | None:
        """Return when there may be work for ``revive`` or ``freed``; None: nothing waits."""
        due_ms = self.revive.next_due_ms()
        return min([*self._frees.values(), *([] if due_ms is None else [due_ms])], default=None)
