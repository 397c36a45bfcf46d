"""The queues that are a push consumer's now: taken, locked, moved, given up.

Of an orderly consumer the broker locks each queue for one member: it is asked for before the first
pull, again every 20 s, and given back only when the listener has left the queue, or is overdue.

Source: rocketmq 4.9.8 ``RebalancePushImpl``, ``RebalanceImpl``.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping

from reput.client.consumer_offsets import ConsumerOffsets
from reput.client.core.process_queue import Batch, ProcessQueue
from reput.client.instance import ClientInstance
from reput.client.membership import Membership, Problem, start_offset
from reput.client.message import ReceivedMessage
from reput.client.queue_locks import QueueLocks
from reput.client.queue_pulls import PulledQueue, QueuePulls
from reput.client.side_tasks import SideTasks
from reput.format.bodies import MessageQueue

log = logging.getLogger(__name__)

LOCK_MS = 20_000
LOCK_EXPIRES_MS = 30_000
"""Brokers keep a lock for 60 s; what was not renewed for half of that is not relied on."""
RELEASE_MS = 20_000
"""How long an orderly listener may go on in a queue that goes to another member."""
RESET_MS = 10_000
"""The same, when an operator moves the group's offset."""

Messages = ProcessQueue[ReceivedMessage]
Record = Batch[ReceivedMessage]


class OwnedQueue(PulledQueue):
    """A queue that is this member's, on its way to workers."""

    def __init__(self, queue: MessageQueue, next_offset: int) -> None:
        super().__init__(queue, next_offset)
        self.is_ready = False
        """In line for a worker, or (orderly) with one."""
        self.is_resting = False
        """Orderly: no worker before a timer has rung."""
        self.idle = asyncio.Event()
        """Orderly: set while no worker is in it."""
        self.idle.set()
        self.locked_at_ms: int | None = None
        """Orderly: when the broker locked it last, monotonic."""
        self.failures: dict[int, int] = {}
        """Orderly: queue offset -> how often the listener failed with it."""
        self.uncommitted: list[Record] = []
        """Orderly, without ``auto_commit``: what a commit is due for."""

    def restart(self, next_offset: int) -> None:
        """Forget what is here, and go on at another offset."""
        super().restart(next_offset)
        self.failures.clear()
        self.uncommitted.clear()


class OwnedQueues:
    """Keeps what is ours in step with what ``Rebalance`` says.

    Args:
        instance: Whom brokers are asked through.
        membership: Whose queues they are.
        offsets: Where the group is.
        pulls: Who pulls from them.
        locks: Of an orderly consumer; None: nobody else is in the way.
        side_tasks: For what need not be waited for.
        on_released: Called when another member may have a queue.
    """

    def __init__(
        self,
        instance: ClientInstance,
        membership: Membership,
        offsets: ConsumerOffsets,
        pulls: QueuePulls[OwnedQueue],
        locks: QueueLocks | None,
        *,
        side_tasks: SideTasks,
        on_released: Callable[[], None],
    ) -> None:
        self.owned: dict[MessageQueue, OwnedQueue] = {}
        self.releasing: dict[MessageQueue, asyncio.Task[None]] = {}
        """Orderly: given up, and not free for others yet."""
        self._instance = instance
        self._clock = instance.clock
        self._membership = membership
        self._group = membership.group
        self._offsets = offsets
        self._pulls = pulls
        self._locks = locks
        self._side_tasks = side_tasks
        self._on_released = on_released

    # --- taking and giving up ---------------------------------------------------

    async def apply(self, topic: str, wanted: set[MessageQueue]) -> bool:
        """Let go what is not ours any more, take what is ours now; returns whether all is done."""
        lost = [one for one in self.owned.values() if one.queue.topic == topic]
        lost = [one for one in lost if one.queue not in wanted]
        for one in lost:
            self._drop(one)
        if lost and self._locks is None:
            await self._offsets.save([one.queue for one in lost])
            for one in lost:
                self._offsets.table.remove(one.queue)
        new = {one for one in wanted if one not in self.owned and one not in self.releasing}
        asked_at_ms = self._clock.monotonic_ms()
        if self._locks is not None and new:
            new &= await self._locks.lock(new)
        await asyncio.gather(*(self._take(one, asked_at_ms) for one in sorted(new)))
        if lost or new:
            log.info(
                "group %s, topic %s: %d queues given up, %d taken, %d now",
                self._group,
                topic,
                len(lost),
                len(new),
                len(wanted & self.owned.keys()),
            )
        return wanted <= self.owned.keys()

    async def _take(self, queue: MessageQueue, locked_at_ms: int) -> None:
        self._offsets.table.remove(queue)
        try:
            begin = await start_offset(
                self._instance, self._membership.config, self._offsets, queue
            )
        except Problem as error:
            log.warning("group %s cannot begin with %s yet: %s", self._group, queue, error)
            return
        owned = self.owned[queue] = OwnedQueue(queue, begin)
        owned.locked_at_ms = None if self._locks is None else locked_at_ms
        self._pulls.begin(owned)

    def _drop(self, owned: OwnedQueue) -> None:
        """Give a queue up: nothing more of it is pulled, or handed to the listener."""
        owned.messages.is_dropped = True
        del self.owned[owned.queue]
        self._side_tasks.begin(self._pulls.end(owned))
        owned.is_ours = self._locks is not None  # Until it is unlocked, what is consumed counts.
        if self._locks is not None:
            releasing = self._release(owned, self._locks)
            task = self.releasing[owned.queue] = asyncio.create_task(releasing)
            task.add_done_callback(lambda _: self.releasing.pop(owned.queue, None))

    async def _release(self, owned: OwnedQueue, locks: QueueLocks) -> None:
        """Let another member lock a queue, once the listener has left it."""
        try:
            async with asyncio.timeout(RELEASE_MS / 1000):
                await owned.idle.wait()
        except TimeoutError:
            log.warning("%s goes to another member while its listener still runs", owned.queue)
        owned.is_ours = False
        await self._offsets.save([owned.queue])
        self._offsets.table.remove(owned.queue)
        await locks.unlock([owned.queue])
        self._on_released()

    # --- how far they are -------------------------------------------------------

    def note_progress(self, owned: OwnedQueue, messages: Messages) -> None:
        """Note how far the group is, and let the queue be pulled from again.

        Args:
            owned: The queue.
            messages: Those that some were consumed of; they may have been dropped since.
        """
        if not owned.is_ours or messages is not owned.messages:
            return
        self._offsets.table.advance(owned.queue, messages.consumer_offset)
        self._pulls.note_progress(owned)

    async def reset(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Go on where an operator says, in those of the queues that are ours."""
        for queue, next_offset in offsets.items():
            owned = self.owned.get(queue)
            if owned is None:
                continue
            log.warning("%s: group %s is reset to offset %d", queue, self._group, next_offset)
            owned.messages.is_dropped = True
            await self._pulls.end(owned)
            try:
                async with asyncio.timeout(RESET_MS / 1000):
                    await owned.idle.wait()
            except TimeoutError:
                log.warning("%s: its listener still runs", queue)
            if self.owned.get(queue) is not owned:
                continue
            self._offsets.table.set(queue, next_offset)
            self._pulls.restart(owned, next_offset)
            await self._offsets.save([queue])

    # --- locks ------------------------------------------------------------------

    def is_locked(self, owned: OwnedQueue) -> bool:
        """Whether no other member can be in a queue."""
        if self._locks is None:
            return True
        at_ms = owned.locked_at_ms
        return at_ms is not None and self._clock.monotonic_ms() - at_ms < LOCK_EXPIRES_MS

    async def lock(self, some: Iterable[OwnedQueue]) -> None:
        """Lock queues, or go on locking them; ``is_locked`` says which of them are."""
        if self._locks is None:
            return
        some = list(some)
        asked_at_ms = self._clock.monotonic_ms()
        locked = await self._locks.lock([one.queue for one in some])
        for one in some:
            if one.queue in locked:
                one.locked_at_ms = asked_at_ms
            else:
                one.locked_at_ms = None
                log.warning("%s is not locked for group %s at present", one.queue, self._group)

    async def renew_locks(self) -> None:
        """Go on locking all of them, until cancelled."""
        while True:
            await asyncio.sleep(LOCK_MS / 1000)
            try:
                await self.lock(self.owned.values())
            except Exception:  # a turn of the loop: locks last for two
                log.exception("locks of group %s", self._group)
