"""Pops of lite topics: a client receives messages of all lite topics that it has subscribed to.

Each light queue is consumed in order: a group holds one block of its messages, and the next ones
follow once they are acknowledged or their time is over. The blocks are in memory only; after a
restart their messages are delivered again.

Source: rocketmq 5.5.0 ``PopLiteMessageProcessor``, ``AckMessageProcessor.ackLite``.
"""

import heapq
import itertools
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field

from reput.broker import limits, quotas
from reput.broker.access.access import Grant
from reput.broker.held_requests import HeldRequests, WaitPlace
from reput.broker.lite.subscriptions import LiteClient, LiteGroup, LiteSubscriptions, Place
from reput.broker.pop.offsets import PopOffsets
from reput.broker.pop.orders import MemoryBlocks, PopOrders
from reput.broker.pop.pops import PopParameters, Pops
from reput.format import names
from reput.format.command import Command
from reput.remoting.channel import Channel
from reput.remoting.time_slices import Steps
from reput.store.message_store import MessageStore

QUEUE_ID = 0
"""Id of a light queue within its name."""
_QUEUES_MAX = 1_000
"""Maximum number of queues that a pop examines; each takes some microseconds if it is blocked."""


@dataclass(frozen=True, slots=True)
class WantedLite:
    """The parameters of a pop."""

    client_id: str
    group: str
    topic: str
    """Parent of the lite topics."""
    count_max: int
    invisible_ms: int
    attempt_id: str | None = None


@dataclass(slots=True)
class PoppedLite:
    """The result of a pop."""

    pop_ms: int
    data: list[bytes] = field(default_factory=list)
    """Concatenated records."""
    counts: list[int] = field(default_factory=list)
    """Number of earlier deliveries of each message."""
    has_more: bool = False
    """True if some queues were not examined."""


@dataclass(slots=True, eq=False)
class HeldLitePop:
    """A held pop."""

    channel: Channel
    request: Command
    wanted: WantedLite
    place: Place
    deadline_ms: int
    """Monotonic time in ms."""
    find_reply: Callable[["HeldLitePop", bool], Command | None]
    """Returns the reply to this pop if there is one; in any case if the argument is True."""
    grant: Grant | None = None
    is_over: bool = False

    def retry(self, *, is_last: bool) -> Command | None:
        """Return the reply; None if there is none yet."""
        return self.find_reply(self, is_last)

    @property
    def bytes_about(self) -> int:
        """Memory of its filter, in bytes: 0, as it has no filter."""
        return 0

    @property
    def places(self) -> tuple[WaitPlace]:
        """Client of the pop, or its wildcard group."""
        return (self.place,)

    @property
    def key(self) -> Hashable:
        """Key that is equal for pops that find the same messages."""
        return *self.place, self.wanted.attempt_id


class LitePops:
    """Serves pops of lite topics.

    Args:
        store: The store with the messages.
        pops: Pops of a queue, with blocks in ``blocks``.
        blocks: The blocks that groups hold.
        offsets: The groups' positions.
        subscriptions: The subscriptions of clients.
        held: The held pops.
        subscriptions_max: Returns the largest number of subscriptions.
    """

    def __init__(
        self,
        store: MessageStore,
        pops: Pops,
        blocks: MemoryBlocks,
        offsets: PopOffsets,
        subscriptions: LiteSubscriptions,
        held: HeldRequests[HeldLitePop],
        subscriptions_max: Callable[[], int],
    ) -> None:
        self.subscriptions = subscriptions
        self.held = held
        self.blocks = blocks
        self._store = store
        self._pops = pops
        self._orders = PopOrders(blocks)
        self._offsets = offsets
        self._subscriptions_max = subscriptions_max
        self._frees: dict[tuple[str, str], int] = {}
        """Queue and group of blocks -> when their messages can be read again, in ms."""
        self._times: list[tuple[int, str, str]] = []
        """Heap of these times; it may contain outdated entries."""

    # Popping ----------------------------------------------------------------------------------

    def pop(self, wanted: WantedLite, now_ms: int) -> PoppedLite:
        """Pop messages of the queues that wait for a client, the longest waiting first."""
        popped = PoppedLite(now_ms)
        client = self.subscriptions.client(wanted.client_id)
        if client is None or client.group != wanted.group:
            return popped
        client.polled_ms = now_ms
        waiting = self.subscriptions.waiting_of(client)
        for queue in list(itertools.islice(waiting, _QUEUES_MAX)):
            room = wanted.count_max - len(popped.counts)
            if room <= 0:
                break
            waiting.pop(queue, None)
            self._pop_queue(popped, wanted, queue, room)
        popped.has_more = bool(waiting)
        return popped

    def _pop_queue(self, popped: PoppedLite, wanted: WantedLite, queue: str, room: int) -> None:
        group, now_ms = wanted.group, popped.pop_ms
        free_ms = self._orders.blocked_until(queue, group, QUEUE_ID, wanted.attempt_id, now_ms)
        if free_ms is not None:
            self._free_at(queue, group, free_ms)
            return
        result = self._pops.pop(
            PopParameters(
                queue,
                group,
                QUEUE_ID,
                room,
                wanted.invisible_ms,
                starts_at_end=True,
                is_ordered=True,
                attempt_id=wanted.attempt_id,
            ),
            now_ms,
        )
        if not result.count:
            return
        self._free_at(queue, group, now_ms + wanted.invisible_ms)
        block = self.blocks.get(queue, group, QUEUE_ID)
        assert block is not None
        popped.data += result.data
        popped.counts += [
            max(0, block.counts.get(queue_offset, 0)) for queue_offset in block.queue_offsets
        ]

    def _free_at(self, queue: str, group: str, free_ms: int) -> None:
        if self._frees.get((queue, group)) != free_ms:
            self._frees[queue, group] = free_ms
            heapq.heappush(self._times, (free_ms, queue, group))

    # Messages that clients hold -----------------------------------------------------------------

    def acknowledge(self, queue: str, group: str, queue_offset: int, pop_ms: int) -> None:
        """Record that a message was consumed; a message that is not held is ignored.

        Raises:
            ValueError: It is not in the block that the group holds.
        """
        position = self._offsets.find(queue, group, QUEUE_ID)
        block = self.blocks.get(queue, group, QUEUE_ID)
        if block is None or (position is not None and queue_offset < position):
            return
        next_offset = self._orders.acknowledge(queue, group, QUEUE_ID, queue_offset, pop_ms)
        if next_offset is None:
            return
        self._offsets.set(queue, group, QUEUE_ID, next_offset)
        if next_offset > block.queue_offsets[-1]:
            self._release(queue, group)
        self.arrived(queue, group)  # or the rest of the block is free earlier

    def postpone(
        self,
        queue: str,
        group: str,
        queue_offset: int,
        pop_ms: int,
        visible_ms: int,
        *,
        is_suspended: bool,
    ) -> None:
        """Change when a message becomes visible; a message that is not held is ignored.

        Args:
            queue: Its light queue.
            group: The group that holds it.
            queue_offset: Its queue offset.
            pop_ms: When it was popped, in ms.
            visible_ms: The new time, in ms.
            is_suspended: True if the whole block is postponed, and this delivery does not count.
        """
        if is_suspended:
            self._orders.suspend(queue, group, QUEUE_ID, pop_ms, visible_ms)
        else:
            self._orders.postpone(queue, group, QUEUE_ID, queue_offset, pop_ms, visible_ms)
        self.arrived(queue, group)

    def reset(self, queue: str, group: str, queue_offset: int) -> None:
        """Set the position of a group in a queue, and release the messages that it holds there."""
        if self._offsets.find(queue, group, QUEUE_ID) != queue_offset:
            self._offsets.set(queue, group, QUEUE_ID, queue_offset)
            self._release(queue, group)

    def position(self, queue: str, group: str) -> int | None:
        """Return the position of a group in a queue; None if it has none."""
        return self._offsets.find(queue, group, QUEUE_ID)

    def forget(self, queue: str, groups: Iterable[str]) -> None:
        """Drop the state of a queue that is deleted."""
        for group in groups:
            self._release(queue, group)
        self.subscriptions.forget(queue)

    def _release(self, queue: str, group: str) -> None:
        self.blocks.release(queue, group, QUEUE_ID)
        self._frees.pop((queue, group), None)

    # Subscriptions ----------------------------------------------------------------------------

    def check_room(self, count: int) -> None:
        """Refuse more subscriptions than a broker has.

        Raises:
            LimitExceeded: There would be more than ``maxLiteSubscriptionCount``.
        """
        total, maximum = self.subscriptions.count + count, self._subscriptions_max()
        if count and total > maximum:
            raise quotas.exceeded(limits.LITE_SUBSCRIPTIONS, maximum)

    def add(self, client: LiteClient, queue: str, settings: LiteGroup) -> None:
        """Subscribe a client to a queue."""
        is_exclusive = settings.is_exclusive
        evicted = self.subscriptions.subscribe(client, queue, is_exclusive=is_exclusive)
        if evicted and settings.resets_exclusive:
            self.reset(queue, client.group, 0)

    def add_all(self, client: LiteClient) -> None:
        """Subscribe a client of a wildcard group to all lite topics of its parent."""
        if self.subscriptions.subscribe_all(client):
            prefix = names.lite_queue(client.topic, "")
            self.subscriptions.all_wait(
                client, (topic for topic in self._store.queues.topics() if topic.startswith(prefix))
            )

    def wake(self, client: LiteClient) -> None:
        """Answer the held pops of a client if there are messages for it."""
        self.held.wake(*self.subscriptions.place_of(client))

    def expire(self, before_ms: int) -> Steps[None]:
        """Remove the clients without a subscription request since a time, in monotonic ms."""
        for client in self.subscriptions.expired(before_ms):
            yield from self.subscriptions.remove(client)

    # Arrivals -----------------------------------------------------------------------------------

    def arrived(self, queue: str, group: str | None = None) -> None:
        """Wake the held pops that may match messages of a light queue.

        Args:
            queue: The queue.
            group: The only group for which there are messages; None for all.
        """
        lite_topic = names.lite_topic_of(queue)
        if lite_topic is not None:
            for place in self.subscriptions.arrived(queue, lite_topic[0], group):
                self.held.wake(*place)

    def freed(self, now_ms: int) -> bool:
        """Wake the held pops of queues whose blocks have expired; return whether there were any."""
        did = False
        while self._times and self._times[0][0] <= now_ms:
            free_ms, queue, group = heapq.heappop(self._times)
            if self._frees.get((queue, group)) == free_ms:
                del self._frees[queue, group]
                self.arrived(queue, group)
                did = True
        return did

    def next_due_ms(self) -> int | None:
        """Return when ``freed`` has work; None if nothing waits."""
        return self._times[0][0] if self._times else None
