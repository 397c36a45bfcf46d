"""Consumption by popping: messages of any queue are invisible to others until acknowledged.

    async def listen(messages, context):
        for message in messages:
            print(message.body)
        return ConsumeResult.SUCCESS

    async with PopConsumer("billing", namesrv="127.0.0.1:9876", listener=listen) as consumer:
        await consumer.subscribe("Orders", "new || paid")
        ...

Without a listener, the program pops and acknowledges messages itself:

    for message in await consumer.pop():
        ...
        await consumer.ack(message)

No member of a group owns a queue: there may be more members than queues, and a member that hangs
delays only its own messages. A message that is not acknowledged in time is delivered again, to any
member. Requires a 5.x broker.

    popping.py          pop, acknowledge, change the invisible time
    pop_shares.py       sources that this member pops from
    queue_pops.py       tasks that pop while there is room
    pop_consumption.py  workers that call the listener
    acks.py             acknowledgements in batches

Source: rocketmq 5.5.0 ``DefaultMQPushConsumerImpl`` in pop mode.
"""

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Mapping, Sequence

from reput.client import hooks
from reput.client.acks import Acks
from reput.client.config import (
    ClientConfig,
    ConsumeFromWhere,
    ConsumerConfig,
    MessageModel,
    client_config,
)
from reput.client.connection_events import ConnectionCallback
from reput.client.core import pop_handles
from reput.client.core.assign import Averagely
from reput.client.core.offset_table import OffsetTable
from reput.client.core.trace_codec import Outcome
from reput.client.failed_messages import FailedMessages
from reput.client.group_member import GroupMember
from reput.client.hooks import ConsumeCall, ConsumeOperation
from reput.client.instance import ClientInstance
from reput.client.listener import Listener, ListenerCalls
from reput.client.listener_workers import ListenerWorkers
from reput.client.pop_consumption import PopConsumption, PopLine
from reput.client.pop_shares import PopShares
from reput.client.popping import PoppedMessage, Popper
from reput.client.push_consumer import UNLIMITED
from reput.client.queue_pops import PopSource, QueuePops
from reput.client.running_info import running_info
from reput.client.send_back import MAX_RECONSUME_TIMES, SendBack
from reput.client.side_tasks import SideTasks, stop
from reput.clock import Clock, SystemClock
from reput.errors import InvalidOption
from reput.format.bodies import MessageQueue
from reput.format.command import Command

log = logging.getLogger(__name__)

COUNT_MAX = 32
"""Maximum number of messages of a pop."""


class PopConsumer(GroupMember):
    """A member of a consumer group that pops. Use it as ``async with``, or ``start``.

    Args:
        group: The consumer group; all members must have the same subscriptions.
        namesrv: ``host:port;host:port``; by default NAMESRV_ADDR of the environment.
        listener: Async or plain function that gets the messages; plain functions run in a thread.
            The invisible time is extended while it runs. None: the program calls ``pop``.
        orderly: Take the messages of a queue in order: the next ones become available when the
            earlier ones are acknowledged.
        asks_brokers: Request the assignments from brokers (400), so that ``setConsumeMode`` decides
            how the group shares the queues. Otherwise pop from any queue of each broker.
        on_connection: Async or plain function that is called with each ``ConnectionEvent``, one
            at a time. Plain functions run in a thread.
        config: Settings of the consumer.
        client: Settings of the client.
        close_timeout_ms: Time for which ``close`` waits for listeners and acknowledgements, in ms.
        clock: The clock; tests pass their own.

    Raises:
        InvalidOption: An argument is not allowed.
    """

    def __init__(
        self,
        group: str,
        *,
        namesrv: str | None = None,
        listener: Listener | None = None,
        orderly: bool = False,
        asks_brokers: bool = False,
        on_connection: ConnectionCallback | None = None,
        config: ConsumerConfig | None = None,
        client: ClientConfig | None = None,
        close_timeout_ms: int = 10_000,
        clock: Clock | None = None,
    ) -> None:
        config = _checked(config or ConsumerConfig())
        super().__init__(
            group,
            config,
            Averagely(),
            "CONSUME_PASSIVELY",
            client=client_config(namesrv, client),
            clock=clock or SystemClock(),
            calls=ListenerCalls(listener, config.consume_concurrency)
            if listener is not None
            else None,
            on_connection=on_connection,
            is_orderly=orderly,
        )
        self._asks_brokers = asks_brokers
        self._close_timeout_ms = close_timeout_ms
        self._sources: dict[MessageQueue, PopSource] = {}
        self._here: deque[tuple[PopSource, PoppedMessage]] = deque()
        """Without a listener: popped messages that were not returned yet."""
        self._has_some = asyncio.Event()
        self._asking: dict[object, tuple[int, int]] = {}
        """Without a listener: number of messages and deadline (monotonic) of each waiting call of
        ``pop``."""
        self._is_asked = asyncio.Event()
        self._working: list[asyncio.Task[None]] = []
        self._side_tasks = SideTasks()

    # --- coming and going -------------------------------------------------------

    async def start(self) -> None:
        """Join the group.

        Raises:
            BrokerError: A broker cannot filter by a subscribed SQL92 expression.
            NoRoute, RemotingError: No broker of such a topic was reached.
        """
        if self._started_here() is not None:
            return
        instance = await self._join()
        starts_at_end = self.config.consume_from_where is ConsumeFromWhere.LAST_OFFSET
        self._popper = Popper(
            instance, self.group, is_ordered=self._orderly, starts_at_end=starts_at_end
        )
        self._acks = Acks(self._popper, self._clock)
        self._pops = QueuePops(
            instance,
            self._popper,
            self.config,
            wanted_of=self._membership.wanted.get,
            may_pop=self._may_pop,
            on_messages=self._on_messages,
            on_unwanted=self._acks.add,
            on_change=self._note_change,
        )
        self._rebalance = PopShares(
            instance, self._membership, self._apply, asks_brokers=self._asks_brokers
        )
        await self._introduce(instance)
        if self._calls is not None:
            self._begin_work(instance, self._calls)
        rebalancing = self._rebalance.run()
        self._loops = [asyncio.create_task(rebalancing, name=f"reput consumer {self.group}")]

    def _begin_work(self, instance: ClientInstance, calls: ListenerCalls) -> None:
        retries_max = self.config.max_reconsume_times
        if retries_max < 0:
            retries_max = UNLIMITED if self._orderly else MAX_RECONSUME_TIMES
        self._workers = ListenerWorkers[PopLine](
            self.group,
            calls,
            self._rates,
            self._clock,
            self._traces,
            self._facts(instance),
        )
        failed = FailedMessages(self.group, self._rates, self._clock)
        self._consumption = PopConsumption(
            self.config,
            self._popper,
            self._pops,
            self._acks,
            self._workers,
            SendBack(instance, self.group, retries_max, failed),
            failed,
            is_ordered=self._orderly,
            clock=self._clock,
        )
        self._working = [
            asyncio.create_task(
                self._workers.work(self._consumption.consume), name=f"reput consumer {self.group}"
            )
            for _ in range(self.config.consume_concurrency)
        ]

    async def close(self) -> None:
        """Leave the group: stop popping, wait for listeners, acknowledge, release the rest.

        Messages of a pop in flight are released when its reply arrives or, if this was the last
        client of its connection, when their invisible time ends.
        """
        instance = self._started_here()
        if instance is None or self._is_closing:
            return
        self._is_closing = True
        if self._calls is not None:
            self._workers.is_closing = True
        try:
            await stop(self._loops)
            await self._drop(list(self._sources.values()))
            try:
                async with asyncio.timeout(self._close_timeout_ms / 1000):
                    if self._calls is not None:
                        await self._workers.is_quiet.wait()
                    await self._acks.drain()
            except TimeoutError:
                log.warning("consumer %s closes before all is acknowledged", self.group)
        finally:
            await self._end(instance)

    async def _end(self, instance: ClientInstance) -> None:
        tasks = [source.task for source in self._sources.values() if source.task is not None]
        left = [*self._loops, *self._working, *self._side_tasks, *tasks]
        self._loops, self._working = [], []
        self._sources.clear()
        self._here.clear()
        try:
            await stop(left)
            await self._acks.close()
        finally:
            self._instance = None
            self._has_some.set()  # Calls of ``pop`` return.
            await self._leave(instance)

    # --- sources -----------------------------------------------------------------

    def _reads(self) -> list[PopSource]:
        return list(self._sources.values())

    def queues(self) -> list[MessageQueue]:
        """Sources of this member; queue id -1 is any queue of the broker."""
        return list(self._sources)

    async def _apply(self, topic: str, wanted: set[MessageQueue]) -> bool:
        """Stop popping from released sources, start with new ones."""
        of_topic = [source for source in self._sources.values() if source.queue.topic == topic]
        await self._drop([source for source in of_topic if source.queue not in wanted])
        for queue in sorted(wanted - self._sources.keys()):
            source = self._sources[queue] = PopSource(queue)
            self._pops.begin(source)
        return bool(wanted)

    async def _drop(self, sources: Sequence[PopSource]) -> None:
        for source in sources:
            del self._sources[source.queue]
        await asyncio.gather(*map(self._pops.end, sources))
        if self._calls is not None:
            await asyncio.gather(*map(self._consumption.give_up, sources))
            return
        left = [message for source, message in self._here if source in sources]
        self._here = deque(entry for entry in self._here if entry[0] not in sources)
        await self._pops.let_go(left)

    async def _may_pop(self) -> tuple[int, int]:
        count_max, hold_ms = self.config.pop_batch_size, self.config.broker_suspend_ms
        if self._calls is not None:
            return count_max, hold_ms
        while not (missing_count := self._missing_count()):
            self._is_asked.clear()
            await self._is_asked.wait()
        left_ms = max(until_ms for _, until_ms in self._asking.values())
        left_ms -= self._clock.monotonic_ms()
        return min(count_max, missing_count), min(hold_ms, max(1, left_ms))

    def _missing_count(self) -> int:
        """Return the number of messages to request: 0 while some are here, for any caller."""
        return 0 if self._here else sum(count for count, _ in self._asking.values())

    def _on_messages(
        self, source: PopSource, messages: list[PoppedMessage], duration_ms: int
    ) -> None:
        now_ms = self._clock.now_ms()
        self._rates.of(source.queue.topic, now_ms).add_pull(now_ms, duration_ms, len(messages))
        if self._calls is not None:
            self._consumption.add(source, messages)
            return
        self._here.extend((source, message) for message in messages)
        self._has_some.set()

    # --- without a listener -----------------------------------------------------

    async def pop(self, count_max: int = COUNT_MAX, timeout_ms: int = 5_000) -> list[PoppedMessage]:
        """Return messages; they are invisible to others for ``pop_invisible_ms``.

        If several brokers or queues have messages, some may be kept here for the next call.

        Args:
            count_max: Maximum number of messages.
            timeout_ms: Time to wait for the first message, in ms; then the list is empty.

        Raises:
            InvalidOption: There is a listener, or ``count_max`` is not allowed.
            NotStarted: The consumer is not started, or is closed.
            NoRoute, BrokerError, RemotingError: No broker could be reached, or it refused.
        """
        self._started()
        if self._calls is not None:
            raise InvalidOption("listener", "given", "None, where messages are asked for with pop")
        if count_max < 1:
            raise InvalidOption("count_max", count_max, "at least 1")
        begun_ms = self._clock.now_ms()
        messages = self._take(count_max) or await self._wait_for_some(count_max, timeout_ms)
        if hooks.installed is not None and messages and self._instance is not None:
            hooks.received(self._facts(self._instance), messages, begun_ms)
        return messages

    async def _wait_for_some(self, count_max: int, timeout_ms: int) -> list[PoppedMessage]:
        messages: list[PoppedMessage] = []
        if timeout_ms <= 0:
            if (problem := self._problem()) is not None:
                raise problem
            return messages
        me = object()
        self._asking[me] = count_max, self._clock.monotonic_ms() + timeout_ms
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                while not messages:
                    self._has_some.clear()
                    self._is_asked.set()
                    await self._has_some.wait()
                    self._started()
                    messages = self._take(count_max)
        except TimeoutError:
            if (problem := self._problem()) is not None:
                raise problem from None
        finally:
            del self._asking[me]
        return messages

    def _take(self, count_max: int) -> list[PoppedMessage]:
        messages: list[PoppedMessage] = []
        now_ms = self._clock.now_ms()
        while self._here and len(messages) < count_max:
            source, message = self._here.popleft()
            self._pops.done(source, 1)
            if message.held_until_ms > now_ms:
                messages.append(message)
                message.handed_out_ms = now_ms
        if self._traces is not None and messages:
            call_id = self._traces.begun(messages)
            for message in messages:
                message.call_id = call_id
        return messages

    async def ack(self, *messages: PoppedMessage) -> None:
        """Acknowledge messages returned by ``pop``. Repeating it is harmless.

        Raises:
            NotStarted: The consumer is not started, or is closed.
            NoRoute, BrokerError, RemotingError: The broker was not reached or refused; it delivers
                the messages again.
        """
        by_broker: dict[str, list[PoppedMessage]] = {}
        for message in messages:
            by_broker.setdefault(message.broker_name, []).append(message)
        with self._settling(ConsumeOperation.ACK, messages):
            await asyncio.gather(*map(self._popper.ack, by_broker.values()))
        now_ms = self._clock.now_ms()
        for message in messages:
            self._rates.of(message.asked_topic, now_ms).add_consumed(now_ms, 1)
        self._trace_end(messages, Outcome.SUCCESS)

    async def nack(self, message: PoppedMessage, delay_ms: int | None = None) -> None:
        """Request another delivery of a message.

        Args:
            message: The message.
            delay_ms: Delay in ms; None: 10 s, increasing with each delivery.

        Raises:
            InvalidOption: The delay is negative.
            NotStarted: The consumer is not started, or is closed.
            NoRoute, BrokerError, RemotingError: The broker was not reached, or the message is no
                longer invisible.
        """
        if delay_ms is None:
            delay_ms = pop_handles.retry_delay_ms(message.reconsume_times)
        with self._settling(ConsumeOperation.NACK, [message]):
            await self._change("delay_ms", message, delay_ms)
        now_ms = self._clock.now_ms()
        self._rates.of(message.asked_topic, now_ms).add_consumed(now_ms, 0, 1)
        self._trace_end([message], Outcome.FAILED)

    def _settling(
        self, operation: ConsumeOperation, messages: Sequence[PoppedMessage]
    ) -> contextlib.AbstractContextManager[object]:
        """Report the end of messages to the hook."""
        instance = self._started()
        if hooks.installed is None or not messages:
            return contextlib.nullcontext()
        call = ConsumeCall(operation, self._facts(instance), messages, self._clock.now_ms())
        return hooks.consuming(call)

    async def extend(self, message: PoppedMessage, invisible_ms: int | None = None) -> None:
        """Extend the invisible time of a message.

        Args:
            message: The message.
            invisible_ms: New invisible time, counted from now; None: ``pop_invisible_ms``.

        Raises:
            InvalidOption, NotStarted, NoRoute, BrokerError, RemotingError: As ``nack``.
        """
        if invisible_ms is None:
            invisible_ms = self.config.pop_invisible_ms
        await self._change("invisible_ms", message, invisible_ms)

    async def _change(self, name: str, message: PoppedMessage, invisible_ms: int) -> None:
        self._started()
        if invisible_ms < 0:
            raise InvalidOption(name, invisible_ms, "0 or more")
        await self._popper.change(message, invisible_ms)

    def _trace_end(self, messages: Sequence[PoppedMessage], outcome: Outcome) -> None:
        if self._traces is None:
            return
        now_ms = self._clock.now_ms()
        for message in messages:
            duration_ms = max(0, now_ms - message.handed_out_ms)
            self._traces.consumed([message], message.call_id, outcome, duration_ms)

    # --- what operators ask -----------------------------------------------------

    def _reset(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Do nothing: the broker itself pops from the new offset."""

    def _owned_queues(self) -> list[MessageQueue]:
        return self.queues()

    def _offset_table(self) -> OffsetTable:
        return OffsetTable()

    def _running_info(self, instance: ClientInstance, request: Command) -> Command:
        return running_info(
            request,
            instance,
            self._membership,
            self._offset_table(),
            (),
            self._rates,
            self._started_ms,
            is_orderly=self._orderly,
            sources=self._sources.values(),
        )


def _checked(config: ConsumerConfig) -> ConsumerConfig:
    """Return settings validated for popping. Raises ``InvalidOption``."""
    if config.message_model is MessageModel.BROADCASTING:
        raise InvalidOption("messageModel", config.message_model.value, "CLUSTERING, where popped")
    if config.consume_from_where is ConsumeFromWhere.TIMESTAMP:
        allowed = "CONSUME_FROM_FIRST_OFFSET or CONSUME_FROM_LAST_OFFSET, where popped"
        raise InvalidOption("consumeFromWhere", config.consume_from_where.value, allowed)
    return config
