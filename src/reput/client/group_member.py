"""Base of all consumers: a member of a group that talks to brokers and operators.

Push, pop and pull consumers differ in how messages reach them. Subscriptions, heartbeats and
requests from brokers are handled here.

Source: rocketmq 5.5.0 ``MQConsumerInner``, ``ClientRemotingProcessor``.
"""

import asyncio
from collections.abc import Collection, Mapping, Sequence
from types import TracebackType
from typing import Self

from reput.client.config import ClientConfig, ConsumerConfig, MessageModel
from reput.client.connection_events import ConnectionCallback, ConnectionCalls, ConnectionEvent
from reput.client.core import subscription as subscriptions
from reput.client.core.answered_queue import AnsweredQueue, problem_of_all, silent_topics
from reput.client.core.assign import Strategy
from reput.client.core.consume_rates import RatesByTopic
from reput.client.core.offset_table import OffsetTable
from reput.client.core.route_cache import TopicRoute
from reput.client.core.subscription import Subscription
from reput.client.hooks import ClientFacts
from reput.client.instance import Answer, ClientInstance, MemberKind, NotReady, NotStarted
from reput.client.listener import ListenerCalls
from reput.client.membership import Membership, Rebalance, check_expressions, learn_routes
from reput.client.message import check_group, check_topic_name
from reput.client.metrics import Metric, consumer_metrics
from reput.client.producer import trace_writer
from reput.client.running_info import consume_directly, consumer_status
from reput.client.trace import TraceWriter
from reput.client.with_statement import AsyncWithOnly
from reput.clock import Clock
from reput.format import bodies, command, limits, names, namespace
from reput.format.bodies import ConsumerData, MessageQueue
from reput.format.codes import RequestCode, ResponseCode
from reput.format.command import Command


class GroupMember(AsyncWithOnly):
    """A member of a consumer group. Use a consumer as ``async with``, or ``start`` it.

    Args:
        group: The consumer group.
        config: Settings of the consumer.
        strategy: Allocation of queues to members.
        consume_type: Type in heartbeats: ``CONSUME_PASSIVELY`` or ``CONSUME_ACTIVELY``.
        client: Settings of the client.
        clock: The clock.
        calls: Calls of the listener, if there is one.
        on_connection: Function that is called with events of connections.
        is_orderly: True if the listener gets the messages of a queue in order.

    Raises:
        InvalidOption: The group's name is not allowed.
    """

    _kind = MemberKind.CONSUMER

    _rebalance: Rebalance
    """Allocation of queues to this member; set by ``start``."""

    def __init__(
        self,
        group: str,
        config: ConsumerConfig,
        strategy: Strategy,
        consume_type: str,
        *,
        client: ClientConfig,
        clock: Clock,
        calls: ListenerCalls | None = None,
        on_connection: ConnectionCallback | None = None,
        is_orderly: bool = False,
    ) -> None:
        check_group("group", group)
        self.config = config
        self.group = namespace.wrap(client.namespace, group)
        self._client_config = client
        self._clock = clock
        self._calls = calls
        self._orderly = is_orderly
        self._membership = Membership(self.group, config, strategy, consume_type, {})
        self._instance: ClientInstance | None = None
        self._started_ms = 0
        self._is_closing = False
        self._loops: list[asyncio.Task[None]] = []
        """Background tasks of a started member."""
        self._traces: TraceWriter | None = None
        self._connection_calls = ConnectionCalls(on_connection)
        self._rates = RatesByTopic()

    # --- coming and going -------------------------------------------------------

    async def start(self) -> None:
        """Join the group."""
        raise NotImplementedError

    async def close(self) -> None:
        """Leave the group."""
        raise NotImplementedError

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def _join(self) -> ClientInstance:
        """Join the process's client instance; ``_introduce`` informs the brokers."""
        self._started_ms = self._clock.now_ms()
        instance = await ClientInstance.join(self._client_config, self, clock=self._clock)
        self._instance = instance
        if self._client_config.enable_trace:
            self._traces = trace_writer(self._client_config, self.group, "CONSUME", self._clock)
        return instance

    async def _introduce(self, instance: ClientInstance) -> None:
        """Register this member at the brokers; on failure it leaves again.

        Raises:
            BrokerError: A broker cannot filter by a subscribed SQL92 expression.
            NoRoute, RemotingError: No broker of such a topic was reached.
        """
        try:
            await check_expressions(instance, self.group, self._membership.wanted)
            await learn_routes(instance, self._membership.wanted)
            await instance.heartbeat()
            if self._traces is not None:
                await self._traces.start()
        except BaseException:
            await self._leave(instance)
            raise

    async def _leave(self, instance: ClientInstance) -> None:
        """Leave the client instance and send the pending traces."""
        self._instance = None
        self._is_closing = False
        traces, self._traces = self._traces, None
        if self._calls is not None:
            self._calls.close()
        try:
            await instance.leave(self)
        finally:
            await self._connection_calls.close()
            if traces is not None:
                await traces.close()

    def _facts(self, instance: ClientInstance) -> ClientFacts:
        """Return this client as hooks see it."""
        own = self._client_config.namespace
        return ClientFacts(
            namespace.unwrap(own, self.group),
            own,
            instance.client_id,
            self.config.message_model is MessageModel.BROADCASTING,
        )

    def _started(self) -> ClientInstance:
        if self._instance is None:
            raise NotStarted("consumer")
        self._instance.check_caller("consumer")
        return self._instance

    def _started_here(self) -> ClientInstance | None:
        """Return the client instance, None if not started. Raises ``StartedElsewhere``."""
        return None if self._instance is None else self._started()

    @property
    def is_connected(self) -> bool:
        """True while a connection to a broker is open. It may be read in any thread."""
        instance = self._instance
        return instance is not None and instance.is_connected

    def metrics(self) -> dict[str, Metric]:
        """Return the metrics of this client by name; may be called in any thread."""
        return consumer_metrics(
            self.group, self._rates, self._owned_queues(), self._lags(), self._instance
        )

    def is_ready(self) -> bool:
        """Return whether messages can arrive, as far as this member knows.

        It has its queues of all subscribed topics, a connection to a broker, and a queue of each
        topic was answered when it was last read. So it is not ready, for example, if the group does
        not exist, if it may not read a topic, or while the brokers are down.
        """
        return self._instance is not None and bool(self._loops) and self._obstacle() is None

    async def ready(self, timeout_ms: int = 10_000) -> None:
        """Wait until ``is_ready``: messages sent from then on are received.

        This matters to groups that begin at the end of their queues (``consume_from_where``). A
        member may be ready without queues, if others of the group have them all. Queues that are
        paused need no answer.

        Args:
            timeout_ms: Time to wait, in ms.

        Raises:
            NotStarted: The consumer is not started.
            NotReady: The time is over; the error has the reason.
        """
        self._started()
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                while not self.is_ready():
                    await self._rebalance.wait_for_change()
        except TimeoutError:
            reason = self._obstacle() or "it is being closed"
            raise NotReady("consumer", self.group, timeout_ms, reason) from None

    def _obstacle(self) -> str | None:
        """Return the reason why no messages can arrive; None if they can."""
        if not self._has_queues():
            if all(map(names.is_retry_topic, self._membership.wanted)):
                return "no topic is subscribed"
            return str(self._rebalance.problem or "not all of its queues can be taken yet")
        for topic, problem in silent_topics(self._decisive_reads()).items():
            return str(problem or f"the brokers of topic {topic!r} have not answered yet")
        return None if self.is_connected else "no connection to a broker is open"

    def _has_queues(self) -> bool:
        return self._rebalance.is_divided

    def _reads(self) -> Sequence[AnsweredQueue]:
        """Return the queues, or brokers, that this member reads now."""
        raise NotImplementedError

    def _decisive_reads(self) -> list[AnsweredQueue]:
        """Return those of ``_reads`` without retry topics, which may not exist yet."""
        return [source for source in self._reads() if not names.is_retry_topic(source.queue.topic)]

    def _problem(self) -> Exception | None:
        """Return the reason why no message can come from anywhere, if there is one."""
        sources = self._decisive_reads()
        return problem_of_all(sources) if sources else self._rebalance.problem

    def _note_change(self) -> None:
        self._rebalance.note_change()

    # --- subscriptions ----------------------------------------------------------

    async def subscribe(self, topic: str, expression: str = subscriptions.ALL) -> None:
        """Subscribe to a topic, or to its messages with some tags.

        A second call for a topic replaces the first. If the group has other members, subscribe
        before ``start`` (a ``PullConsumer``: after it): all members must have the same
        subscriptions, and brokers use the last one received.

        Args:
            topic: The topic.
            expression: ``*``, or ``TagA || TagB``.

        Raises:
            InvalidOption: The topic's name is illegal, the expression is no list of tags, or queues
                are assigned.
        """
        check_topic_name(topic)
        subscriptions.check_tags(expression)
        full = namespace.wrap(self._client_config.namespace, topic)
        await self._subscribe(subscriptions.tags(full, expression, self._clock.now_ms()))

    async def subscribe_sql(self, topic: str, expression: str) -> None:
        """Subscribe to the messages of a topic that match an SQL92 expression on properties.

        Raises:
            InvalidOption: The topic's name is illegal, the expression is empty, or queues are
                assigned.
            BrokerError: The broker refuses it (once started; otherwise ``start`` raises it).
        """
        check_topic_name(topic)
        full = namespace.wrap(self._client_config.namespace, topic)
        await self._subscribe(subscriptions.sql(full, expression, self._clock.now_ms()))

    async def unsubscribe(self, topic: str) -> None:
        """Cancel the subscription to a topic."""
        full = namespace.wrap(self._client_config.namespace, topic)
        instance = self._started_here()
        if self._membership.wanted.pop(full, None) is not None and instance is not None:
            await self._rebalance.give_up(full)
            await instance.heartbeat()

    async def _subscribe(self, wanted: Subscription) -> None:
        instance = self._started_here()
        if instance is not None:
            await check_expressions(instance, self.group, {wanted.topic: wanted})
            await learn_routes(instance, [wanted.topic])
        self._membership.wanted[wanted.topic] = wanted
        if instance is not None:
            await instance.heartbeat()
            self._rebalance.wake()

    # --- as a member of the instance --------------------------------------------

    def _heartbeat_part(self) -> ConsumerData | None:
        """Return the member's part of a heartbeat."""
        return self._membership.heartbeat_part()

    def _topics(self) -> Collection[str]:
        """Return the topics whose routes are refreshed."""
        return list(self._membership.wanted)

    def _on_members_changed(self) -> None:
        """Rebalance the queues."""
        if self._loops and not self._is_closing:
            self._rebalance.wake()

    def _on_route_changed(self, route: TopicRoute) -> None:
        """Rebalance the queues if the topic is subscribed."""
        if route.topic in self._membership.wanted:
            self._on_members_changed()

    def _on_request(self, address: str, request: Command) -> Answer:
        """Answer requests of operators, which arrive through the broker."""
        if self._instance is None or not self._loops:
            remark = f"consumer group {self.group!r} is not running"
            return command.reply(request, ResponseCode.SYSTEM_ERROR, remark)
        if request.code == RequestCode.RESET_CONSUMER_CLIENT_OFFSET:
            offsets = bodies.decode(
                bodies.ResetOffsets, request.body, lenient_limit=limits.LENIENT_CLIENT_BYTES
            )
            self._reset(offsets.offset_table)
            return None
        if request.code == RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT:
            return consumer_status(request, self._offset_table())
        if request.code == RequestCode.GET_CONSUMER_RUNNING_INFO:
            return self._running_info(self._instance, request)
        if request.code == RequestCode.CONSUME_MESSAGE_DIRECTLY and self._calls is not None:
            return consume_directly(request, self._calls, self._clock, is_orderly=self._orderly)
        remark = f"consumer group {self.group!r} has no listener in this client"
        return command.reply(request, ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark)

    def _on_connection(self, event: ConnectionEvent) -> None:
        """Report an event to the program."""
        if self._loops:
            self._note_change()
        self._connection_calls.report(event)

    def _owned_queues(self) -> list[MessageQueue]:
        """Return the queues of this member; may be called in any thread."""
        raise NotImplementedError

    def _lags(self) -> dict[MessageQueue, int]:
        """Return the lag of each queue whose end is known; may be called in any thread."""
        return {}

    def _reset(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Reset these queues to other offsets, if they are this member's."""
        raise NotImplementedError

    def _offset_table(self) -> OffsetTable:
        """Return the table of this member's offsets."""
        raise NotImplementedError

    def _running_info(self, instance: ClientInstance, request: Command) -> Command:
        """Return the reply to 307."""
        raise NotImplementedError
