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

A message is delivered at least once: after a failure, a lost queue or a crash it comes again.

Source: rocketmq 4.9.8 ``DefaultMQPushConsumerImpl``, ``ConsumeMessageConcurrentlyService``,
``ConsumeMessageOrderlyService``, ``RebalancePushImpl``.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Collection, Coroutine, Iterable
from typing import Any, Self

from reput.client.config import ClientConfig, ConsumerConfig, client_config
from reput.client.consumer_offsets import ConsumerOffsets
from reput.client.core import namespace, subscription as subscriptions
from reput.client.core.assign import Averagely, Strategy
from reput.client.core.consume_rates import ConsumeRates
from reput.client.core.process_queue import Batch, ProcessQueue
from reput.client.core.route_cache import TopicRoute
from reput.client.core.subscription import Subscription
from reput.client.instance import Answer, ClientInstance, MemberKind
from reput.client.listener import ConsumeContext, ConsumeResult, Listener, ListenerCalls
from reput.client.membership import (
    Membership,
    Problem,
    Rebalance,
    check_expressions,
    start_offset,
    with_start_time,
)
from reput.client.message import ReceivedMessage, check_group, received
from reput.client.pulling import Puller
from reput.client.queue_locks import QueueLocks
from reput.client.queue_pulls import PulledQueue, QueuePulls
from reput.client.running_info import consumer_status, running_info
from reput.client.send_back import MAX_RECONSUME_TIMES, SendBack
from reput.clock import Clock, SystemClock
from reput.errors import CorruptRecord
from reput.format import bodies, command, headers
from reput.format.bodies import ConsumerData, MessageQueue
from reput.format.codes import RequestCode, ResponseCode
from reput.format.command import Command

log = logging.getLogger(__name__)

LOCK_MS = 20_000
LOCK_EXPIRES_MS = 30_000
"""Brokers keep a lock for 60 s; what was not renewed for half of that is not relied on."""
LOCK_AGAIN_MS = 3_000
ORDERLY_TURN_MS = 60_000
"""How long a worker stays in one queue of an orderly consumer, others waiting."""
SEND_BACK_AGAIN_MS = 5_000
OVERDUE_CHECK_MS = 60_000
OVERDUE_DELAY_LEVEL = 3
RELEASE_MS = 20_000
"""How long an orderly listener may go on in a queue that goes to another member."""
RESET_MS = 10_000
"""The same, when an operator moves the group's offset."""
YIELD_COUNT = 16
"""Batches after which a worker lets the loop do something else."""
UNLIMITED = (1 << 31) - 1

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
        if config.max_reconsume_times >= 0:
            self._retries_max = config.max_reconsume_times
        else:
            self._retries_max = UNLIMITED if orderly else MAX_RECONSUME_TIMES
        self._instance: ClientInstance | None = None
        self._started_ms = 0
        self._is_closing = False
        self._may_pull = asyncio.Event()
        self._may_pull.set()
        self._owned: dict[MessageQueue, OwnedQueue] = {}
        self._releasing: dict[MessageQueue, asyncio.Task[None]] = {}
        self._ready: deque[OwnedQueue] = deque()
        self._idle_workers: deque[asyncio.Future[None]] = deque()
        self._calls_in_flight = 0
        self._is_quiet = asyncio.Event()
        self._is_quiet.set()
        self._tasks: list[asyncio.Task[None]] = []
        self._side_tasks: set[asyncio.Task[None]] = set()
        self._rates: dict[str, ConsumeRates] = {}

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
        self._send_back = SendBack(instance, self.group)
        self._locks = QueueLocks(instance, self.group)
        self._rebalance = Rebalance(instance, self._membership, self._apply)
        try:
            await check_expressions(instance, self.group, self._membership.wanted)
            await self._learn_routes(self._membership.wanted)
            await instance.heartbeat()
        except BaseException:
            self._instance = None
            self._calls.close()
            await instance.leave(self)
            raise
        loops = [self._rebalance.run(), self._save_offsets(), self._watch_overdue()]
        if self._needs_lock:
            loops.append(self._renew_locks())
        worker_count = self.config.consume_concurrency
        loops += [self._work() for _ in range(worker_count)]
        self._tasks = [
            asyncio.create_task(one, name=f"reput consumer {self.group}") for one in loops
        ]

    async def close(self) -> None:
        """Leave: no more pulls, wait for listeners, save offsets, unlock, tell the brokers.

        What listeners have not finished within ``close_timeout_ms`` comes again, to another member.
        """
        instance = self._instance
        if instance is None or self._is_closing:
            return
        self._is_closing = True
        try:
            await self._stop(self._tasks[: -self.config.consume_concurrency])
            owned = list(self._owned.values())
            await asyncio.gather(*map(self._pulls.end, owned))
            try:
                async with asyncio.timeout(self._close_timeout_ms / 1000):
                    await self._is_quiet.wait()
                    await asyncio.gather(*self._releasing.values(), return_exceptions=True)
            except TimeoutError:
                log.warning(
                    "consumer %s closes with %d calls of its listener unfinished",
                    self.group,
                    self._calls_in_flight,
                )
            await self._stop([*self._tasks, *self._side_tasks, *self._releasing.values()])
            for one in owned:
                one.messages.is_dropped = True
            await self._offsets.save()
            if self._needs_lock:
                await self._locks.unlock_all()
        finally:
            # Once more, for who was cancelled above.
            for one in self._owned.values():
                one.messages.is_dropped = True
            pulls = [one.task for one in self._owned.values() if one.task is not None]
            left = [*self._tasks, *self._side_tasks, *self._releasing.values(), *pulls]
            self._tasks = []
            self._owned.clear()
            try:
                await self._stop(left)
            finally:
                self._calls.close()
                self._instance = None
                self._is_closing = False
                await instance.leave(self)

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
        return list(self._owned)

    async def _subscribe(self, wanted: Subscription) -> None:
        instance = self._instance
        if instance is not None:
            await check_expressions(instance, self.group, {wanted.topic: wanted})
            await self._learn_routes([wanted.topic])
        self._membership.wanted[wanted.topic] = wanted  # Brokers hear of it before we ask them.
        if instance is not None:
            await instance.heartbeat()
            self._rebalance.wake()

    async def _learn_routes(self, topics: Iterable[str]) -> None:
        """Ask where topics are, so that the next heartbeat goes to their brokers."""
        assert self._instance is not None
        for topic in topics:
            try:
                await self._instance.route(topic)
            except Problem as error:
                log.info("route of topic %s is not known yet: %s", topic, error)

    async def _stop(self, tasks: Iterable[asyncio.Task[None]]) -> None:
        # A listener may close its own consumer.
        tasks = [task for task in tasks if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _aside(self, what: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Do something beside everything else; it ends with the consumer."""
        task = asyncio.create_task(what)
        self._side_tasks.add(task)
        task.add_done_callback(self._side_tasks.discard)
        return task

    # --- as a member of the instance --------------------------------------------

    def heartbeat_part(self) -> ConsumerData | None:
        """Return what brokers are to know of it."""
        return self._membership.heartbeat_part()

    def topics(self) -> Collection[str]:
        """Return the topics whose routes are to be kept fresh."""
        return list(self._membership.wanted)

    def on_members_changed(self) -> None:
        """Divide the queues anew."""
        if self._tasks and not self._is_closing:
            self._rebalance.wake()

    def on_route_changed(self, route: TopicRoute) -> None:
        """Divide the queues anew if the topic is one of ours."""
        if route.topic in self._membership.wanted:
            self.on_members_changed()

    def on_request(self, address: str, request: Command) -> Answer:
        """Answer what operators ask or do through the broker."""
        if self._instance is None or not self._tasks:
            remark = f"consumer group {self.group!r} is not running"
            return command.reply(request, ResponseCode.SYSTEM_ERROR, remark)
        if request.code == RequestCode.RESET_CONSUMER_CLIENT_OFFSET:
            body = bodies.decode(bodies.ResetOffsets, request.body)
            self._aside(self._reset(dict(body.offset_table)))
            return None
        if request.code == RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT:
            return consumer_status(request, self._offsets.table)
        if request.code == RequestCode.GET_CONSUMER_RUNNING_INFO:
            return self._running_info(request)
        if request.code == RequestCode.CONSUME_MESSAGE_DIRECTLY:
            return self._consume_directly(request)
        return command.reply(request, ResponseCode.REQUEST_CODE_NOT_SUPPORTED)

    # --- which queues are ours --------------------------------------------------

    async def _apply(self, topic: str, wanted: set[MessageQueue]) -> bool:
        """Let go what is not ours any more, take what is ours now; returns whether all is done."""
        lost = [one for one in self._owned.values() if one.queue.topic == topic]
        lost = [one for one in lost if one.queue not in wanted]
        for one in lost:
            self._drop(one)
        if lost and not self._needs_lock:
            await self._offsets.save([one.queue for one in lost])
            for one in lost:
                self._offsets.table.remove(one.queue)
        new = {one for one in wanted if one not in self._owned and one not in self._releasing}
        asked_at_ms = self._clock.monotonic_ms()
        if self._needs_lock and new:
            new &= await self._locks.lock(new)
        await asyncio.gather(*(self._take(one, asked_at_ms) for one in sorted(new)))
        if lost or new:
            log.info(
                "group %s, topic %s: %d queues given up, %d taken, %d now",
                self.group,
                topic,
                len(lost),
                len(new),
                len(wanted & self._owned.keys()),
            )
        return wanted <= self._owned.keys()

    async def _take(self, queue: MessageQueue, locked_at_ms: int) -> None:
        assert self._instance is not None
        self._offsets.table.remove(queue)
        try:
            begin = await start_offset(self._instance, self.config, self._offsets, queue)
        except Problem as error:
            log.warning("group %s cannot begin with %s yet: %s", self.group, queue, error)
            return
        owned = self._owned[queue] = OwnedQueue(queue, begin)
        owned.locked_at_ms = locked_at_ms if self._needs_lock else None
        self._pulls.begin(owned)

    def _drop(self, owned: OwnedQueue) -> None:
        """Give a queue up: nothing more of it is pulled, or handed to the listener."""
        owned.messages.is_dropped = True
        del self._owned[owned.queue]
        self._aside(self._pulls.end(owned))
        owned.is_ours = self._needs_lock  # Until it is unlocked, what is consumed counts.
        if self._needs_lock:
            task = self._releasing[owned.queue] = asyncio.create_task(self._release(owned))
            task.add_done_callback(lambda _: self._releasing.pop(owned.queue, None))

    async def _release(self, owned: OwnedQueue) -> None:
        """Let another member lock a queue, once the listener has left it."""
        try:
            async with asyncio.timeout(RELEASE_MS / 1000):
                await owned.idle.wait()
        except TimeoutError:
            log.warning("%s goes to another member while its listener still runs", owned.queue)
        owned.is_ours = False
        await self._offsets.save([owned.queue])
        self._offsets.table.remove(owned.queue)
        await self._locks.unlock([owned.queue])
        self._rebalance.wake()

    # --- locks of orderly consumers ---------------------------------------------

    def _is_locked(self, owned: OwnedQueue) -> bool:
        if not self._needs_lock:
            return True
        at_ms = owned.locked_at_ms
        return at_ms is not None and self._clock.monotonic_ms() - at_ms < LOCK_EXPIRES_MS

    async def _renew_locks(self) -> None:
        while True:
            await asyncio.sleep(LOCK_MS / 1000)
            try:
                await self._lock_owned(list(self._owned.values()))
            except Exception:  # a turn of the loop: locks last for two
                log.exception("locks of group %s", self.group)

    async def _lock_owned(self, some: list[OwnedQueue]) -> None:
        asked_at_ms = self._clock.monotonic_ms()
        locked = await self._locks.lock([one.queue for one in some])
        for one in some:
            if one.queue in locked:
                one.locked_at_ms = asked_at_ms
            else:
                one.locked_at_ms = None
                log.warning("%s is not locked for group %s at present", one.queue, self.group)

    async def _may_pull_from(self, owned: OwnedQueue) -> bool:
        await self._may_pull.wait()
        return self._is_locked(owned)

    def _on_messages(self, owned: OwnedQueue, count: int, duration_ms: int) -> None:
        self._rate(owned.queue.topic).add_pull(self._clock.now_ms(), duration_ms, count)
        self._make_ready(owned)

    # --- workers ----------------------------------------------------------------

    def _make_ready(self, owned: OwnedQueue) -> None:
        """Put a queue in line for a worker, unless it is, or has to rest."""
        if owned.is_ready or owned.is_resting:
            return
        owned.is_ready = True
        self._ready.append(owned)
        while self._idle_workers:
            worker = self._idle_workers.popleft()
            if not worker.done():
                worker.set_result(None)
                break

    async def _work(self) -> None:
        """Take the first queue in line, consume some of it, again and again."""
        consume = self._consume_in_order if self._orderly else self._consume_next
        turn_count = 0
        while self._instance is not None and not self._is_closing:
            if not self._ready:
                turn_count = 0
                waiting = asyncio.get_running_loop().create_future()
                self._idle_workers.append(waiting)
                await waiting
                continue
            owned = self._ready.popleft()
            try:
                await consume(owned)
            except Exception:  # a turn of the loop; the batch is not finished
                log.exception("consumer group %s in %s", self.group, owned.queue)
            turn_count += 1
            if turn_count >= YIELD_COUNT:
                turn_count = 0
                await asyncio.sleep(0)

    async def _call(self, batch: Record, context: ConsumeContext) -> ConsumeResult:
        """Call the listener and count."""
        begun_ms = self._clock.monotonic_ms()
        self._calls_in_flight += 1
        self._is_quiet.clear()
        count = len(batch.messages)
        result = ConsumeResult.LATER
        try:
            result, _ = await self._calls.call(list(batch.messages), context)
        finally:
            duration_ms = self._clock.monotonic_ms() - begun_ms
            is_failure = result in (ConsumeResult.LATER, ConsumeResult.ROLLBACK)
            self._rate(context.queue.topic).add_call(
                self._clock.now_ms(),
                duration_ms,
                0 if is_failure else count,
                count if is_failure else 0,
            )
        return result

    def _call_is_over(self) -> None:
        self._calls_in_flight -= 1
        if not self._calls_in_flight:
            self._is_quiet.set()

    # Without order ..............................................................

    async def _consume_next(self, owned: OwnedQueue) -> None:
        owned.is_ready = False
        messages = owned.messages
        if messages.is_dropped:
            return
        batch = messages.take(self.config.consume_message_batch_max_size, self._clock.now_ms())
        if messages.waiting_count:
            self._make_ready(owned)  # for the next worker
        if batch is not None:
            await self._consume_batch(owned, messages, batch)

    async def _consume_batch(
        self, owned: OwnedQueue, messages: ProcessQueue[ReceivedMessage], batch: Record
    ) -> None:
        context = ConsumeContext(owned.queue)
        try:
            result = await self._call(batch, context)
            if result in (ConsumeResult.COMMIT, ConsumeResult.ROLLBACK):
                log.error("listener returned %s, which is for orderly consumers", result)
            if messages.is_dropped or batch.is_finished:
                log.info("%s is another member's by now, or was sent back", owned.queue)
                return
            consumed_count = len(batch.messages)
            if result in (ConsumeResult.LATER, ConsumeResult.ROLLBACK):
                consumed_count = 0
            elif context.consumed_count is not None:
                consumed_count = max(context.consumed_count, 0)
            left = await self._failed(batch.messages[consumed_count:], context.delay_level)
            messages.keep(batch, left)
            if left:
                self._aside(self._consume_again(owned, messages, batch))
            self._progress(owned, messages)
        finally:
            self._call_is_over()

    async def _failed(
        self, failed: list[ReceivedMessage], delay_level: int
    ) -> list[ReceivedMessage]:
        """Send messages back; returns those that no broker has taken."""
        if not failed:
            return []
        if self._membership.is_broadcasting:
            log.warning("%d messages failed, and are dropped: broadcasting", len(failed))
            return []
        taken = await asyncio.gather(
            *(self._send_back.send(one, delay_level, self._retries_max) for one in failed)
        )
        return [one for one, is_taken in zip(failed, taken, strict=True) if not is_taken]

    async def _consume_again(
        self, owned: OwnedQueue, messages: ProcessQueue[ReceivedMessage], batch: Record
    ) -> None:
        """Hand out once more what could not be sent back."""
        await asyncio.sleep(SEND_BACK_AGAIN_MS / 1000)
        if not messages.is_dropped and not batch.is_finished:
            await self._consume_batch(owned, messages, batch)

    def _progress(self, owned: OwnedQueue, messages: ProcessQueue[ReceivedMessage]) -> None:
        """Note how far the group is, and let the queue be pulled from again."""
        if not owned.is_ours or messages is not owned.messages:
            return
        self._offsets.table.advance(owned.queue, messages.consumer_offset)
        self._pulls.note_progress(owned)

    async def _watch_overdue(self) -> None:
        """Send back what listeners do not come to an end with: others may."""
        while True:
            await asyncio.sleep(OVERDUE_CHECK_MS / 1000)
            try:
                await self.send_back_overdue()
            except Exception:  # a turn of the loop
                log.exception("overdue messages of group %s", self.group)

    async def send_back_overdue(self) -> None:
        """Send back what listeners have had for over ``consume_timeout_min``; done every minute.

        An orderly consumer waits: nothing may overtake.
        """
        if not self._orderly:
            for owned in list(self._owned.values()):
                await self._send_back_overdue(owned)

    async def _send_back_overdue(self, owned: OwnedQueue) -> None:
        messages = owned.messages
        before_ms = self._clock.now_ms() - self.config.consume_timeout_min * 60_000
        for batch in messages.overdue(before_ms):
            log.warning(
                "%d messages of %s are being consumed for over %d minutes, and sent back",
                len(batch.messages),
                owned.queue,
                self.config.consume_timeout_min,
            )
            left = await self._failed(list(batch.messages), OVERDUE_DELAY_LEVEL)
            if left or messages.is_dropped:
                return
            messages.finish(batch)
            self._progress(owned, messages)

    # In order ...................................................................

    async def _consume_in_order(self, owned: OwnedQueue) -> None:
        """Hand out a queue's messages one batch after the other, for a while."""
        owned.idle.clear()
        is_in_line = False
        try:
            is_in_line = await self._take_turns(owned)
        finally:
            owned.is_ready = False
            owned.idle.set()
        messages = owned.messages
        if not messages.is_dropped and (is_in_line or messages.waiting_count):
            self._make_ready(owned)

    async def _take_turns(self, owned: OwnedQueue) -> bool:
        """Consume until nothing waits (False), or others should have a turn (True)."""
        end_ms = self._clock.monotonic_ms() + ORDERLY_TURN_MS
        turn_count = 0
        while self._clock.monotonic_ms() < end_ms:
            messages = owned.messages
            if messages.is_dropped or self._is_closing:
                return False
            if not self._is_locked(owned):
                await self._lock_owned([owned])
                if not self._is_locked(owned):
                    self._rest(owned, LOCK_AGAIN_MS)
                    return False
                continue
            batch = messages.take(self.config.consume_message_batch_max_size, self._clock.now_ms())
            if batch is None:
                return False
            if not await self._consume_in_turn(owned, messages, batch):
                return False
            turn_count += 1
            if turn_count % YIELD_COUNT == 0:
                await asyncio.sleep(0)
        return True

    async def _consume_in_turn(
        self, owned: OwnedQueue, messages: ProcessQueue[ReceivedMessage], batch: Record
    ) -> bool:
        """Call the listener with a batch; returns whether the next one may follow at once."""
        failures = owned.failures.get(batch.messages[0].queue_offset, 0) if owned.failures else 0
        context = ConsumeContext(owned.queue, failures=failures)
        try:
            result = await self._call(batch, context)
            if messages is not owned.messages:  # an operator has moved the offset
                return True
            if context.auto_commit and result in (ConsumeResult.COMMIT, ConsumeResult.ROLLBACK):
                log.warning("listener returned %s with auto_commit; taken as SUCCESS", result)
                result = ConsumeResult.SUCCESS
            owned.uncommitted.append(batch)
            may_go_on = True
            is_commit = context.auto_commit or result is ConsumeResult.COMMIT
            if result is ConsumeResult.ROLLBACK:
                for one in reversed(owned.uncommitted):
                    messages.give_back(one)
                owned.uncommitted.clear()
                may_go_on = is_commit = False
            elif result is ConsumeResult.LATER and await self._may_try_again(owned, batch):
                messages.give_back(owned.uncommitted.pop())
                may_go_on = is_commit = False
            if is_commit:
                self._commit(owned, messages)
            if not may_go_on:
                rest_ms = context.suspend_ms
                if rest_ms is None:
                    rest_ms = self.config.suspend_current_queue_time_ms
                self._rest(owned, min(max(rest_ms, 10), 30_000))
            return may_go_on
        finally:
            self._call_is_over()

    def _commit(self, owned: OwnedQueue, messages: ProcessQueue[ReceivedMessage]) -> None:
        for batch in owned.uncommitted:
            if owned.failures:
                for one in batch.messages:
                    owned.failures.pop(one.queue_offset, None)
            messages.finish(batch)
        owned.uncommitted.clear()
        self._progress(owned, messages)

    async def _may_try_again(self, owned: OwnedQueue, batch: Record) -> bool:
        """Count a failure; False once all messages of the batch have become dead letters."""
        is_open = False
        for message in batch.messages:
            failures = owned.failures.get(message.queue_offset, message.reconsume_times)
            if failures >= self._retries_max and await self._send_back.send_copy(
                message, failures, self._retries_max
            ):
                continue
            owned.failures[message.queue_offset] = failures + 1
            is_open = True
        return is_open

    def _rest(self, owned: OwnedQueue, rest_ms: int) -> None:
        """Let a queue wait for its next worker."""
        owned.is_resting = True

        def wake() -> None:
            owned.is_resting = False
            if not owned.messages.is_dropped and owned.messages.waiting_count:
                self._make_ready(owned)

        asyncio.get_running_loop().call_later(rest_ms / 1000, wake)

    # --- offsets ----------------------------------------------------------------

    async def _save_offsets(self) -> None:
        assert self._instance is not None
        while True:
            await asyncio.sleep(self._instance.config.persist_offsets_ms / 1000)
            try:
                await self._offsets.save()
            except Exception:  # a turn of the loop: the next one saves the same
                log.exception("consumer offsets of group %s", self.group)

    async def _reset(self, offsets: dict[MessageQueue, int]) -> None:
        """Go on where an operator says, in those of the queues that are ours."""
        for queue, next_offset in offsets.items():
            owned = self._owned.get(queue)
            if owned is None:
                continue
            log.warning("%s: group %s is reset to offset %d", queue, self.group, next_offset)
            owned.messages.is_dropped = True
            await self._pulls.end(owned)
            try:
                async with asyncio.timeout(RESET_MS / 1000):
                    await owned.idle.wait()
            except TimeoutError:
                log.warning("%s: its listener still runs", queue)
            if self._owned.get(queue) is not owned:
                continue
            self._offsets.table.set(queue, next_offset)
            self._pulls.restart(owned, next_offset)
            await self._offsets.save([queue])

    # --- what operators ask -----------------------------------------------------

    def _running_info(self, request: Command) -> Command:
        assert self._instance is not None
        now_ms, monotonic_ms = self._clock.now_ms(), self._clock.monotonic_ms()
        locked_ms = {
            queue: now_ms - (monotonic_ms - owned.locked_at_ms)
            for queue, owned in self._owned.items()
            if owned.locked_at_ms is not None
        }
        return running_info(
            request,
            self._instance,
            self._membership,
            self._offsets.table,
            self._owned.values(),
            self._rates,
            self._started_ms,
            is_orderly=self._orderly,
            locked_ms=locked_ms,
        )

    async def _consume_directly(self, request: Command) -> Command:
        """Hand a message of the broker's choice to the listener, whatever the queue's state."""
        header = headers.decode(headers.ConsumeDirectlyHeader, request.ext_fields)
        try:
            (message,) = received(request.body, header.broker_name or "")
            context = ConsumeContext(message.queue)
        except (CorruptRecord, ValueError) as error:
            remark = f"not one whole message: {error}"
            return command.reply(request, ResponseCode.SYSTEM_ERROR, remark)
        begun_ms = self._clock.monotonic_ms()
        result, error_raised = await self._calls.call([message], context)
        names_of = {
            ConsumeResult.SUCCESS: "CR_SUCCESS",
            ConsumeResult.LATER: "CR_LATER",
            ConsumeResult.COMMIT: "CR_COMMIT",
            ConsumeResult.ROLLBACK: "CR_ROLLBACK",
        }
        outcome = bodies.ConsumeDirectlyResult(
            auto_commit=context.auto_commit,
            consume_result="CR_THROW_EXCEPTION" if error_raised else names_of[result],
            order=self._orderly,
            remark=repr(error_raised) if error_raised else None,
            spent_time_mills=self._clock.monotonic_ms() - begun_ms,
        )
        return command.reply(request, body=bodies.encode(outcome))

    def _rate(self, topic: str) -> ConsumeRates:
        rates = self._rates.get(topic)
        if rates is None:
            rates = self._rates[topic] = ConsumeRates(self._clock.now_ms())
        return rates
