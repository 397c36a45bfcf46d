"""Consumes: messages come to a listener as they arrive.

    async def listen(messages, context):
        for message in messages:
            print(message.body)
        return ConsumeResult.SUCCESS

    async with PushConsumer("billing", namesrv="127.0.0.1:9876", listener=listen) as consumer:
        await consumer.subscribe("Orders", "new || paid")
        ...

Below, everything is a pull. Each queue that is this member's has a task that pulls, and a
``ProcessQueue`` with what was pulled and is not consumed. A fixed number of workers takes batches
from the queues in turn and calls the listener; of an orderly consumer one worker at a time is in a
queue, and only while the broker has locked it for this client.

    owned_queues.py             which queues are this member's
    queue_pulls.py              their messages come here, as there is room
    listener_workers.py         the workers, and the calls of the listener
    concurrent_consumption.py   what they do with a queue
    orderly_consumption.py      the same in order

A message is delivered at least once: after a failure, a lost queue or a crash it comes again.

Source: rocketmq 4.9.8 ``DefaultMQPushConsumerImpl``.
"""

import asyncio
import logging
from collections.abc import Collection, Coroutine, Iterable
from typing import Any, Self

from reput.client.concurrent_consumption import ConcurrentConsumption
from reput.client.config import ClientConfig, ConsumerConfig, client_config
from reput.client.consumer_offsets import ConsumerOffsets
from reput.client.core import namespace, subscription as subscriptions
from reput.client.core.assign import Averagely, Strategy
from reput.client.core.consume_rates import RatesByTopic
from reput.client.core.route_cache import TopicRoute
from reput.client.core.subscription import Subscription
from reput.client.instance import Answer, ClientInstance, MemberKind
from reput.client.listener import Listener, ListenerCalls
from reput.client.listener_workers import ListenerWorkers
from reput.client.membership import (
    Membership,
    Rebalance,
    check_expressions,
    learn_routes,
    with_start_time,
)
from reput.client.message import check_group
from reput.client.orderly_consumption import OrderlyConsumption
from reput.client.owned_queues import OwnedQueue, OwnedQueues
from reput.client.producer import trace_writer
from reput.client.pulling import Puller
from reput.client.queue_locks import QueueLocks
from reput.client.queue_pulls import QueuePulls
from reput.client.running_info import consume_directly, consumer_status, running_info
from reput.client.send_back import MAX_RECONSUME_TIMES, SendBack
from reput.client.side_tasks import SideTasks, stop
from reput.client.trace import TraceWriter
from reput.clock import Clock, SystemClock
from reput.format import bodies, command
from reput.format.bodies import ConsumerData, MessageQueue
from reput.format.codes import RequestCode, ResponseCode
from reput.format.command import Command

log = logging.getLogger(__name__)

UNLIMITED = (1 << 31) - 1


class PushConsumer:
    """A member of a consumer group that is handed messages. Use it as ``async with``, or ``start``.

    Args:
        group: The consumer group; all members must subscribe to the same.
        namesrv: ``host:port;host:port``; or ``client`` instead.
        listener: Called with messages of one queue; an async function, or a plain one, which runs
            in a thread.
        orderly: Hand out the messages of a queue one batch after the other, in their order.
        strategy: How the members share the queues; the same for all of them.
        config: How to pull and consume.
        client: Everything that is not about consuming.
        close_timeout_ms: How long ``close`` waits for listeners.
        clock: The system's, unless a test has its own.

    Raises:
        InvalidOption: An argument is not allowed.
    """

    kind = MemberKind.CONSUMER

    def __init__(
        self,
        group: str,
        *,
        namesrv: str | None = None,
        listener: Listener,
        orderly: bool = False,
        strategy: Strategy | None = None,
        config: ConsumerConfig | None = None,
        client: ClientConfig | None = None,
        close_timeout_ms: int = 10_000,
        clock: Clock | None = None,
    ) -> None:
        check_group("group", group)
        self._client_config = client_config(namesrv, client)
        self._namespace = self._client_config.namespace
        self._clock = clock or SystemClock()
        config = with_start_time(config or ConsumerConfig(), self._clock.now_ms())
        self.config = config
        self.group = namespace.wrap(self._namespace, group)
        self._orderly = orderly
        self._close_timeout_ms = close_timeout_ms
        self._membership = Membership(
            self.group, config, strategy or Averagely(), "CONSUME_PASSIVELY", {}
        )
        self._calls = ListenerCalls(listener, config.consume_concurrency)
        self._needs_lock = orderly and not self._membership.is_broadcasting
        self._instance: ClientInstance | None = None
        self._started_ms = 0
        self._is_closing = False
        self._may_pull = asyncio.Event()
        self._may_pull.set()
        self._loops: list[asyncio.Task[None]] = []
        self._working: list[asyncio.Task[None]] = []
        self._side_tasks = SideTasks()
        self._rates = RatesByTopic()
        self._traces: TraceWriter | None = None

    # --- coming and going -------------------------------------------------------

    async def start(self) -> None:
        """Join the group. Messages come once the first queues are this member's, a moment later.

        Raises:
            Answered: A broker cannot filter by an SQL92 expression that was subscribed to.
            NoRoute, RemotingError: Of such a topic no broker can be asked.
        """
        if self._instance is not None:
            return
        now_ms = self._clock.now_ms()
        self._started_ms = now_ms
        self._membership.want_retried(now_ms)
        instance = await ClientInstance.join(self._client_config, self, clock=self._clock)
        self._instance = instance
        self._offsets: ConsumerOffsets = self._membership.offsets(instance)
        self._pulls = QueuePulls[OwnedQueue](
            instance,
            self._membership,
            self._offsets,
            Puller(instance, self.group, is_subscribed=True),
            may_pull=self._may_pull_from,
            on_messages=self._on_messages,
            is_ordered=self._orderly,
        )
        if self._client_config.enable_trace:
            self._traces = trace_writer(self._client_config, self.group, "CONSUME", self._clock)
        self._workers = ListenerWorkers[OwnedQueue](
            self.group, self._calls, self._rates, self._clock, self._traces
        )
        self._locks = QueueLocks(instance, self.group) if self._needs_lock else None
        self._queues = OwnedQueues(
            instance,
            self._membership,
            self._offsets,
            self._pulls,
            self._locks,
            side_tasks=self._side_tasks,
            on_released=lambda: self._rebalance.wake(),
        )
        self._rebalance = Rebalance(instance, self._membership, self._queues.apply)
        self._consumption = self._new_consumption(instance)
        try:
            await check_expressions(instance, self.group, self._membership.wanted)
            await learn_routes(instance, self._membership.wanted)
            await instance.heartbeat()
            if self._traces is not None:
                await self._traces.start()
        except BaseException:
            self._instance = None
            self._traces = None
            self._calls.close()
            await instance.leave(self)
            raise
        loops = [self._rebalance.run(), self._save_offsets()]
        if isinstance(self._consumption, ConcurrentConsumption):
            loops.append(self._consumption.watch_overdue())
        if self._needs_lock:
            loops.append(self._queues.renew_locks())
        self._loops = self._tasks_of(loops)
        consume, count = self._consumption.consume, self.config.consume_concurrency
        self._working = self._tasks_of(self._workers.work(consume) for _ in range(count))

    async def close(self) -> None:
        """Leave: no more pulls, wait for listeners, save offsets, unlock, tell the brokers.

        What listeners have not finished within ``close_timeout_ms`` comes again, to another member.
        """
        instance = self._instance
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
            for one in owned:
                one.messages.is_dropped = True
            await self._offsets.save()
            if self._locks is not None:
                await self._locks.unlock_all()
        finally:
            # Once more, for who was cancelled above.
            for one in queues.owned.values():
                one.messages.is_dropped = True
            pulls = [one.task for one in queues.owned.values() if one.task is not None]
            left = [*self._loops, *self._working, *self._side_tasks, *queues.releasing.values()]
            self._loops, self._working = [], []
            queues.owned.clear()
            try:
                await stop([*left, *pulls])
            finally:
                self._calls.close()
                self._instance = None
                self._is_closing = False
                traces, self._traces = self._traces, None
                try:
                    await instance.leave(self)
                finally:
                    if traces is not None:
                        await traces.close()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def subscribe(self, topic: str, expression: str = subscriptions.ALL) -> None:
        """Consume a topic, or its messages with some tags: ``TagA || TagB``.

        May be called before or after ``start``; a second call for a topic replaces the first.
        Before is better where the group has members: all must subscribe to the same, and brokers
        believe the one they heard last.

        Raises:
            InvalidOption: The expression has no tags.
        """
        full = namespace.wrap(self._namespace, topic)
        await self._subscribe(subscriptions.tags(full, expression, self._clock.now_ms()))

    async def subscribe_sql(self, topic: str, expression: str) -> None:
        """Consume those messages of a topic that an SQL92 expression selects by their properties.

        Raises:
            InvalidOption: The expression is empty.
            Answered: The broker refuses it (once started; else ``start`` raises it).
        """
        full = namespace.wrap(self._namespace, topic)
        await self._subscribe(subscriptions.sql(full, expression, self._clock.now_ms()))

    async def unsubscribe(self, topic: str) -> None:
        """Consume a topic no more."""
        full = namespace.wrap(self._namespace, topic)
        if self._membership.wanted.pop(full, None) is not None and self._instance is not None:
            await self._rebalance.give_up(full)
            await self._instance.heartbeat()

    def pause(self) -> None:
        """Pull no more, until ``resume``; what is here is still consumed."""
        self._may_pull.clear()

    def resume(self) -> None:
        """Pull again."""
        self._may_pull.set()

    def queues(self) -> list[MessageQueue]:
        """Return the queues that are this member's now."""
        return list(self._queues.owned) if self._loops else []

    async def _subscribe(self, wanted: Subscription) -> None:
        instance = self._instance
        if instance is not None:
            await check_expressions(instance, self.group, {wanted.topic: wanted})
            await learn_routes(instance, [wanted.topic])
        self._membership.wanted[wanted.topic] = wanted  # Brokers hear of it before we ask them.
        if instance is not None:
            await instance.heartbeat()
            self._rebalance.wake()

    def _tasks_of(self, loops: Iterable[Coroutine[Any, Any, None]]) -> list[asyncio.Task[None]]:
        return [asyncio.create_task(one, name=f"reput consumer {self.group}") for one in loops]

    # --- as a member of the instance --------------------------------------------

    def heartbeat_part(self) -> ConsumerData | None:
        """Return what brokers are to know of it."""
        return self._membership.heartbeat_part()

    def topics(self) -> Collection[str]:
        """Return the topics whose routes are to be kept fresh."""
        return list(self._membership.wanted)

    def on_members_changed(self) -> None:
        """Divide the queues anew."""
        if self._loops and not self._is_closing:
            self._rebalance.wake()

    def on_route_changed(self, route: TopicRoute) -> None:
        """Divide the queues anew if the topic is one of ours."""
        if route.topic in self._membership.wanted:
            self.on_members_changed()

    def on_request(self, address: str, request: Command) -> Answer:
        """Answer what operators ask or do through the broker."""
        if self._instance is None or not self._loops:
            remark = f"consumer group {self.group!r} is not running"
            return command.reply(request, ResponseCode.SYSTEM_ERROR, remark)
        if request.code == RequestCode.RESET_CONSUMER_CLIENT_OFFSET:
            body = bodies.decode(bodies.ResetOffsets, request.body)
            self._side_tasks.begin(self._queues.reset(dict(body.offset_table)))
            return None
        if request.code == RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT:
            return consumer_status(request, self._offsets.table)
        if request.code == RequestCode.GET_CONSUMER_RUNNING_INFO:
            return self._running_info(request)
        if request.code == RequestCode.CONSUME_MESSAGE_DIRECTLY:
            return consume_directly(request, self._calls, self._clock, is_orderly=self._orderly)
        return command.reply(request, ResponseCode.REQUEST_CODE_NOT_SUPPORTED)

    # --- consuming --------------------------------------------------------------

    def _new_consumption(
        self, instance: ClientInstance
    ) -> ConcurrentConsumption | OrderlyConsumption:
        retries_max = self.config.max_reconsume_times
        if retries_max < 0:
            retries_max = UNLIMITED if self._orderly else MAX_RECONSUME_TIMES
        send_back = SendBack(instance, self.group, retries_max)
        if self._orderly:
            return OrderlyConsumption(
                self.config, self._queues, self._workers, send_back, clock=self._clock
            )
        return ConcurrentConsumption(
            self._membership,
            self._queues,
            self._workers,
            send_back,
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

    async def send_back_overdue(self) -> None:
        """Send back what listeners have had for over ``consume_timeout_min``; done every minute.

        An orderly consumer waits: nothing may overtake.
        """
        if self._loops and isinstance(self._consumption, ConcurrentConsumption):
            await self._consumption.send_back_overdue()

    async def _save_offsets(self) -> None:
        assert self._instance is not None
        while True:
            await asyncio.sleep(self._instance.config.persist_offsets_ms / 1000)
            try:
                await self._offsets.save()
            except Exception:  # a turn of the loop: the next one saves the same
                log.exception("consumer offsets of group %s", self.group)

    # --- what operators ask -----------------------------------------------------

    def _running_info(self, request: Command) -> Command:
        assert self._instance is not None
        now_ms, monotonic_ms = self._clock.now_ms(), self._clock.monotonic_ms()
        locked_ms = {
            queue: now_ms - (monotonic_ms - owned.locked_at_ms)
            for queue, owned in self._queues.owned.items()
            if owned.locked_at_ms is not None
        }
        return running_info(
            request,
            self._instance,
            self._membership,
            self._offsets.table,
            self._queues.owned.values(),
            self._rates,
            self._started_ms,
            is_orderly=self._orderly,
            locked_ms=locked_ms,
        )
