"""Push consumption: a listener is called with messages as they arrive.

    async def listen(messages, context):
        for message in messages:
            print(message.body)
        return ConsumeResult.SUCCESS

    async with PushConsumer("billing", namesrv="127.0.0.1:9876", listener=listen) as consumer:
        await consumer.subscribe("Orders", "new || paid")
        ...

Internally everything is a pull. Each queue of this member has a task that pulls and a
``ProcessQueue`` with the pulled messages. A fixed number of workers takes batches from the queues
in turn and calls the listener. In an orderly consumer a queue has one worker at a time, and only
while the broker has locked it for this client.

    owned_queues.py             the queues of this member
    queue_pulls.py              tasks that pull while there is room
    listener_workers.py         the workers, and the calls of the listener
    concurrent_consumption.py   unordered consumption of a queue
    orderly_consumption.py      orderly consumption of a queue

Delivery is at least once: after a failure, a lost queue or a crash messages are delivered again.

Source: rocketmq 4.9.8 ``DefaultMQPushConsumerImpl``.
"""

import asyncio
import logging
from collections.abc import Coroutine, Iterable, Mapping
from typing import Any

from reput.client.concurrent_consumption import ConcurrentConsumption
from reput.client.config import ClientConfig, ConsumerConfig, client_config
from reput.client.connection_events import ConnectionCallback
from reput.client.consumer_offsets import ConsumerOffsets, keep_saved
from reput.client.core.assign import Averagely, Strategy
from reput.client.core.offset_table import OffsetTable
from reput.client.failed_messages import FailedMessages
from reput.client.group_member import GroupMember
from reput.client.instance import ClientInstance
from reput.client.listener import Listener, ListenerCalls
from reput.client.listener_workers import ListenerWorkers
from reput.client.membership import Rebalance, with_start_time
from reput.client.orderly_consumption import OrderlyConsumption
from reput.client.owned_queues import OwnedQueue, OwnedQueues
from reput.client.pulling import Puller
from reput.client.queue_locks import QueueLocks
from reput.client.queue_pulls import QueuePulls, known_lags
from reput.client.rebalance_calls import QueuesCallback, RebalanceCalls
from reput.client.running_info import running_info
from reput.client.send_back import MAX_RECONSUME_TIMES, SendBack
from reput.client.side_tasks import SideTasks, stop
from reput.clock import Clock, SystemClock
from reput.format.bodies import MessageQueue
from reput.format.command import Command

log = logging.getLogger(__name__)

UNLIMITED = (1 << 31) - 1


class PushConsumer(GroupMember):
    """A member of a consumer group with a listener. Use it as ``async with``, or ``start``.

    Args:
        group: The consumer group; all members must have the same subscriptions.
        namesrv: ``host:port;host:port``; by default NAMESRV_ADDR of the environment.
        listener: Async or plain function that gets messages of one queue; plain functions run in a
            thread.
        orderly: Consume the messages of a queue in order, one batch at a time.
        strategy: Allocation of queues to members; the same for all members.
        on_assigned: Function, async or plain, that is called with new queues before they are read.
            Plain functions run in a thread. Until it returns, the consumer takes no other queues;
            it must not call ``unsubscribe`` or ``close``.
        on_revoked: The same with queues that this member loses, or has when it is closed.
        on_connection: Async or plain function that is called with each ``ConnectionEvent``, one
            at a time. Plain functions run in a thread.
        config: Settings of the consumer.
        client: Settings of the client.
        close_timeout_ms: Time for which ``close`` waits for listeners, in ms.
        clock: The clock; tests pass their own.

    Raises:
        InvalidOption: An argument is not allowed.
    """

    _calls: ListenerCalls

    def __init__(
        self,
        group: str,
        *,
        namesrv: str | None = None,
        listener: Listener,
        orderly: bool = False,
        strategy: Strategy | None = None,
        on_assigned: QueuesCallback | None = None,
        on_revoked: QueuesCallback | None = None,
        on_connection: ConnectionCallback | None = None,
        config: ConsumerConfig | None = None,
        client: ClientConfig | None = None,
        close_timeout_ms: int = 10_000,
        clock: Clock | None = None,
    ) -> None:
        clock = clock or SystemClock()
        config = with_start_time(config or ConsumerConfig(), clock.now_ms())
        super().__init__(
            group,
            config,
            strategy or Averagely(),
            "CONSUME_PASSIVELY",
            client=client_config(namesrv, client),
            clock=clock,
            calls=ListenerCalls(listener, config.consume_concurrency),
            on_connection=on_connection,
            is_orderly=orderly,
        )
        self._rebalance_calls = RebalanceCalls(on_assigned, on_revoked)
        self._close_timeout_ms = close_timeout_ms
        self._needs_lock = orderly and not self._membership.is_broadcasting
        self._may_pull = asyncio.Event()
        self._may_pull.set()
        self._working: list[asyncio.Task[None]] = []
        self._side_tasks = SideTasks()

    # --- coming and going -------------------------------------------------------

    async def start(self) -> None:
        """Join the group. Messages arrive once the first queues are allocated, a moment later.

        Raises:
            BrokerError: A broker cannot filter by a subscribed SQL92 expression.
            NoRoute, RemotingError: No broker of such a topic was reached.
        """
        if self._started_here() is not None:
            return
        self._membership.want_retried(self._clock.now_ms())
        instance = await self._join()
        self._offsets: ConsumerOffsets = self._membership.offsets(instance)
        self._pulls = QueuePulls[OwnedQueue](
            instance,
            self._membership,
            self._offsets,
            Puller(instance, self.group, is_subscribed=True),
            may_pull=self._may_pull_from,
            on_messages=self._on_messages,
            on_change=self._note_change,
            is_ordered=self._orderly,
            commits=True,
        )
        self._workers = ListenerWorkers[OwnedQueue](
            self.group,
            self._calls,
            self._rates,
            self._clock,
            self._traces,
            self._facts(instance),
        )
        self._locks = QueueLocks(instance, self.group) if self._needs_lock else None
        self._queues = OwnedQueues(
            instance,
            self._membership,
            self._offsets,
            self._pulls,
            self._locks,
            self._rebalance_calls,
            side_tasks=self._side_tasks,
            on_released=lambda: self._rebalance.wake(),
        )
        self._rebalance = Rebalance(instance, self._membership, self._queues.apply)
        self._consumption = self._new_consumption(instance)
        await self._introduce(instance)
        save_ms = instance.config.persist_offsets_ms
        loops = [self._rebalance.run(), keep_saved(self._offsets, self.group, save_ms)]
        if isinstance(self._consumption, ConcurrentConsumption):
            loops.append(self._consumption.watch_overdue())
        if self._needs_lock:
            loops.append(self._queues.renew_locks())
        self._loops = self._tasks_of(loops)
        consume, count = self._consumption.consume, self.config.consume_concurrency
        self._working = self._tasks_of(self._workers.work(consume) for _ in range(count))

    async def close(self) -> None:
        """Leave the group: stop pulling, wait for listeners, save offsets, unlock, unregister.

        Messages that listeners have not finished within ``close_timeout_ms`` are delivered again,
        to another member.
        """
        instance = self._started_here()
        if instance is None or self._is_closing:
            return
        self._is_closing = self._workers.is_closing = True
        queues = self._queues
        try:
            await stop(self._loops)
            owned = list(queues.owned.values())
            await asyncio.gather(*map(self._pulls.end, owned))
            try:
                async with asyncio.timeout(self._close_timeout_ms / 1000):
                    await self._workers.is_quiet.wait()
                    await asyncio.gather(*queues.releasing.values(), return_exceptions=True)
            except TimeoutError:
                log.warning(
                    "consumer %s closes with %d calls of its listener unfinished",
                    self.group,
                    self._workers.calls_in_flight,
                )
            await stop([*self._working, *self._side_tasks, *queues.releasing.values()])
            for owned_queue in owned:
                owned_queue.messages.is_dropped = True
            await self._rebalance_calls.revoked(owned_queue.queue for owned_queue in owned)
            await self._offsets.save()
            if self._locks is not None:
                await self._locks.unlock_all()
        finally:
            # Again, for callers cancelled above.
            for owned_queue in queues.owned.values():
                owned_queue.messages.is_dropped = True
            pulls = [
                owned_queue.task
                for owned_queue in queues.owned.values()
                if owned_queue.task is not None
            ]
            left = [*self._loops, *self._working, *self._side_tasks, *queues.releasing.values()]
            self._loops, self._working = [], []
            queues.owned.clear()
            try:
                await stop([*left, *pulls])
            finally:
                await self._leave(instance)

    def pause(self) -> None:
        """Stop pulling until ``resume``; cached messages are still consumed."""
        self._may_pull.clear()

    def resume(self) -> None:
        """Resume pulling."""
        self._may_pull.set()

    def queues(self) -> list[MessageQueue]:
        """Return the queues of this member."""
        return list(self._queues.owned) if self._loops else []

    def _reads(self) -> list[OwnedQueue]:
        return list(self._queues.owned.values()) if self._may_pull.is_set() else []

    def _tasks_of(self, loops: Iterable[Coroutine[Any, Any, None]]) -> list[asyncio.Task[None]]:
        return [asyncio.create_task(loop, name=f"reput consumer {self.group}") for loop in loops]

    # --- consuming --------------------------------------------------------------

    def _new_consumption(
        self, instance: ClientInstance
    ) -> ConcurrentConsumption | OrderlyConsumption:
        retries_max = self.config.max_reconsume_times
        if retries_max < 0:
            retries_max = UNLIMITED if self._orderly else MAX_RECONSUME_TIMES
        failed = FailedMessages(self.group, self._rates, self._clock)
        send_back = SendBack(instance, self.group, retries_max, failed)
        if self._orderly:
            return OrderlyConsumption(
                self.config, self._queues, self._workers, send_back, failed, clock=self._clock
            )
        return ConcurrentConsumption(
            self._membership,
            self._queues,
            self._workers,
            send_back,
            failed,
            side_tasks=self._side_tasks,
            clock=self._clock,
        )

    async def _may_pull_from(self, owned: OwnedQueue) -> bool:
        await self._may_pull.wait()
        return self._queues.is_locked(owned)

    def _on_messages(self, owned: OwnedQueue, count: int, duration_ms: int) -> None:
        now_ms = self._clock.now_ms()
        self._rates.of(owned.queue.topic, now_ms).add_pull(now_ms, duration_ms, count)
        self._workers.line_up(owned)

    # --- what operators ask -----------------------------------------------------

    def _reset(self, offsets: Mapping[MessageQueue, int]) -> None:
        self._side_tasks.begin(self._queues.reset(dict(offsets)))

    def _owned_queues(self) -> list[MessageQueue]:
        return self.queues()

    def _lags(self) -> dict[MessageQueue, int]:
        owned = list(self._queues.owned.values()) if self._loops else []
        return known_lags(owned)

    def _offset_table(self) -> OffsetTable:
        return self._offsets.table

    def _running_info(self, instance: ClientInstance, request: Command) -> Command:
        now_ms, monotonic_ms = self._clock.now_ms(), self._clock.monotonic_ms()
        locked_ms = {
            queue: now_ms - (monotonic_ms - owned.locked_at_ms)
            for queue, owned in self._queues.owned.items()
            if owned.locked_at_ms is not None
        }
        return running_info(
            request,
            instance,
            self._membership,
            self._offsets.table,
            self._queues.owned.values(),
            self._rates,
            self._started_ms,
            is_orderly=self._orderly,
            locked_ms=locked_ms,
        )
