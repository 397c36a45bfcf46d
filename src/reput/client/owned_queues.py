"""The queues that a push consumer owns: allocation, locks, resets, release.

The broker locks each queue of an orderly consumer for one member. The lock is requested before the
first pull, renewed every 20 s, and released when the listener has left the queue or is overdue.

Source: rocketmq 4.9.8 ``RebalancePushImpl``, ``RebalanceImpl``.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping

from reput.client.consumer_offsets import ConsumerOffsets
from reput.client.core.process_queue import Batch, ProcessQueue
from reput.client.instance import ClientInstance
from reput.client.membership import Membership, start_offset
from reput.client.message import ReceivedMessage
from reput.client.queue_locks import QueueLocks
from reput.client.queue_pulls import PulledQueue, QueuePulls
from reput.client.rebalance_calls import RebalanceCalls
from reput.client.side_tasks import SideTasks
from reput.format.bodies import MessageQueue

log = logging.getLogger(__name__)

LOCK_MS = 20_000
LOCK_EXPIRES_MS = 30_000
"""Age at which a lock that was not renewed counts as lost, in ms; brokers keep it for 60 s."""
RELEASE_MS = 20_000
"""Time for which an orderly listener may continue in a queue that another member gets, in ms."""
RESET_MS = 10_000
"""Time for which the listener may continue after an operator reset the group's offset, in ms."""

Messages = ProcessQueue[ReceivedMessage]
Record = Batch[ReceivedMessage]


class OwnedQueue(PulledQueue):
    """A queue of this member, on its way to workers."""

    def __init__(self, queue: MessageQueue, next_offset: int) -> None:
        super().__init__(queue, next_offset)
        self.is_ready = False
        """True while the queue waits for a worker or, in order, while a worker consumes it."""
        self.is_resting = False
        """Orderly: True while it pauses after a failure."""
        self.idle = asyncio.Event()
        """Set while no worker consumes the queue in order."""
        self.idle.set()
        self.locked_at_ms: int | None = None
        """Orderly: monotonic time of the last successful lock, in ms."""
        self.failures: dict[int, int] = {}
        """Orderly: queue offset to number of failures."""
        self.uncommitted: list[Record] = []
        """Orderly, without ``auto_commit``: messages that wait for a commit."""

    def restart(self, next_offset: int) -> None:
        """Drop the cached messages and continue at another offset."""
        super().restart(next_offset)
        self.failures.clear()
        self.uncommitted.clear()


class OwnedQueues:
    """Keeps this member's queues equal to the allocation of ``Rebalance``.

    Args:
        instance: Client instance for requests.
        membership: Group and subscriptions.
        offsets: Consumer offsets of the group.
        pulls: Tasks that pull from the queues.
        locks: Locks of an orderly consumer; None: no locks.
        calls: Calls of the program's functions.
        side_tasks: Tasks in the background.
        on_released: Called when another member may take a queue.
    """

    def __init__(
        self,
        instance: ClientInstance,
        membership: Membership,
        offsets: ConsumerOffsets,
        pulls: QueuePulls[OwnedQueue],
        locks: QueueLocks | None,
        calls: RebalanceCalls,
        *,
        side_tasks: SideTasks,
        on_released: Callable[[], None],
    ) -> None:
        self.owned: dict[MessageQueue, OwnedQueue] = {}
        self.releasing: dict[MessageQueue, asyncio.Task[None]] = {}
        """Orderly: queues given up whose lock is not released yet."""
        self._instance = instance
        self._clock = instance.clock
        self._membership = membership
        self._group = membership.group
        self._offsets = offsets
        self._pulls = pulls
        self._locks = locks
        self._calls = calls
        self._side_tasks = side_tasks
        self._on_released = on_released

    # --- taking and giving up ---------------------------------------------------

    async def apply(self, topic: str, wanted: set[MessageQueue]) -> bool:
        """Release lost queues and take new ones; return whether all could be taken.

        Raises:
            NoRoute, RemotingError: A start offset cannot be determined; the others were taken.
        """
        lost = [owned for owned in self.owned.values() if owned.queue.topic == topic]
        lost = [owned for owned in lost if owned.queue not in wanted]
        for owned in lost:
            self._drop(owned)
        if lost and self._locks is None:
            await self._offsets.save([owned.queue for owned in lost])
            for owned in lost:
                self._offsets.table.remove(owned.queue)
        await self._calls.revoked(owned.queue for owned in lost)
        new = wanted - self.owned.keys() - self.releasing.keys()
        asked_at_ms = self._clock.monotonic_ms()
        if self._locks is not None and new:
            new &= await self._locks.lock(new)
        takings = (self._take(queue, asked_at_ms) for queue in sorted(new))
        results = await asyncio.gather(*takings, return_exceptions=True)
        taken = [self.owned[queue] for queue in sorted(new) if queue in self.owned]
        await self._calls.assigned(owned.queue for owned in taken)
        for owned in taken:
            if owned.task is None:  # not reset by an operator meanwhile
                self._pulls.begin(owned)
        if lost or new:
            log.info(
                "group %s, topic %s: %d queues given up, %d taken, %d now",
                self._group,
                topic,
                len(lost),
                len(new),
                len(wanted & self.owned.keys()),
            )
        for failure in results:
            if failure is not None:
                raise failure
        return wanted <= self.owned.keys()

    async def _take(self, queue: MessageQueue, locked_at_ms: int) -> None:
        self._offsets.table.remove(queue)
        begin = await start_offset(self._instance, self._membership.config, self._offsets, queue)
        owned = self.owned[queue] = OwnedQueue(queue, begin)
        owned.locked_at_ms = None if self._locks is None else locked_at_ms

    def _drop(self, owned: OwnedQueue) -> None:
        """Drop a queue: stop pulling and calling the listener for it."""
        owned.messages.is_dropped = True
        del self.owned[owned.queue]
        self._side_tasks.begin(self._pulls.end(owned))
        owned.is_ours = self._locks is not None  # Consumption counts until the lock is released.
        if self._locks is not None:
            releasing = self._release(owned, self._locks)
            task = self.releasing[owned.queue] = asyncio.create_task(releasing)
            task.add_done_callback(lambda _: self.releasing.pop(owned.queue, None))

    async def _release(self, owned: OwnedQueue, locks: QueueLocks) -> None:
        """Release the lock of a queue once the listener has left it."""
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
        """Record the group's progress and let the queue be pulled again.

        Args:
            owned: The queue.
            messages: Cache that the consumed messages came from; it may have been dropped since.
        """
        if not owned.is_ours or messages is not owned.messages:
            return
        self._offsets.table.advance(owned.queue, messages.consumer_offset)
        self._pulls.note_progress(owned)

    async def reset(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Reset those of the queues that are ours to an operator's offsets."""
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
        """Return whether no other member can be consuming a queue."""
        if self._locks is None:
            return True
        at_ms = owned.locked_at_ms
        return at_ms is not None and self._clock.monotonic_ms() - at_ms < LOCK_EXPIRES_MS

    async def lock(self, some: Iterable[OwnedQueue]) -> None:
        """Lock queues or renew their locks; ``is_locked`` has the result."""
        if self._locks is None:
            return
        some = list(some)
        asked_at_ms = self._clock.monotonic_ms()
        locked = await self._locks.lock([owned.queue for owned in some])
        for owned in some:
            if owned.queue in locked:
                owned.locked_at_ms = asked_at_ms
            else:
                owned.locked_at_ms = None
        self._report_unlocked([owned.queue for owned in some if owned.queue not in locked])

    def _report_unlocked(self, queues: list[MessageQueue]) -> None:
        if queues:
            self._instance.outages.warn(
                log,
                "another member has them, or their broker does not answer",
                "%d queues are not locked for group %s at present, such as %s",
                *(len(queues), self._group, queues[0]),
                kind=f"locks of {self._group}",
            )

    async def renew_locks(self) -> None:
        """Renew all locks until cancelled."""
        while True:
            await asyncio.sleep(LOCK_MS / 1000)
            try:
                await self.lock(self.owned.values())
            except Exception:  # a time slice: locks outlast two periods
                log.exception("locks of group %s", self._group)
