"""What every consumer is: a member of a group, which brokers and operators speak to.

Push, pop and pull consumers are told apart by how messages come to them; what they subscribe to,
what brokers hear of them and what they are asked through brokers is here.

Source: rocketmq 5.5.0 ``MQConsumerInner``, ``ClientRemotingProcessor``.
"""

import asyncio
from collections.abc import Collection, Mapping
from types import TracebackType
from typing import Self

from reput.client.config import ClientConfig, ConsumerConfig
from reput.client.core import namespace, subscription as subscriptions
from reput.client.core.assign import Strategy
from reput.client.core.offset_table import OffsetTable
from reput.client.core.route_cache import TopicRoute
from reput.client.core.subscription import Subscription
from reput.client.instance import Answer, ClientInstance, MemberKind, NotStarted
from reput.client.listener import ListenerCalls
from reput.client.membership import Membership, Rebalance, check_expressions, learn_routes
from reput.client.message import check_group
from reput.client.producer import trace_writer
from reput.client.running_info import consume_directly, consumer_status
from reput.client.trace import TraceWriter
from reput.clock import Clock
from reput.format import bodies, command
from reput.format.bodies import ConsumerData, MessageQueue
from reput.format.codes import RequestCode, ResponseCode
from reput.format.command import Command


class GroupMember:
    """A member of a consumer group. Use a consumer as ``async with``, or ``start`` it.

    Args:
        group: The consumer group.
        config: How to consume.
        strategy: How the members share the queues.
        consume_type: What brokers hear: ``CONSUME_PASSIVELY`` or ``CONSUME_ACTIVELY``.
        client: Everything that is not about consuming.
        clock: The time.
        calls: The calls of its listener, if it has one.
        is_orderly: Whether the listener gets the messages of a queue in their order.

    Raises:
        InvalidOption: The group's name is not allowed.
    """

    kind = MemberKind.CONSUMER

    _rebalance: Rebalance
    """What finds out which queues are this member's; there once it is started."""

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
        """What runs while it is a member; nothing before and after."""
        self._traces: TraceWriter | None = None

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
        """Become a member of the process's client, which brokers hear of with ``_introduce``."""
        self._started_ms = self._clock.now_ms()
        instance = await ClientInstance.join(self._client_config, self, clock=self._clock)
        self._instance = instance
        if self._client_config.enable_trace:
            self._traces = trace_writer(self._client_config, self.group, "CONSUME", self._clock)
        return instance

    async def _introduce(self, instance: ClientInstance) -> None:
        """Have brokers know this member. If that fails it is none.

        Raises:
            BrokerError: A broker cannot filter by an SQL92 expression that was subscribed to.
            NoRoute, RemotingError: Of such a topic no broker can be asked.
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
        """Be no member any more, and send the traces that wait."""
        self._instance = None
        self._is_closing = False
        traces, self._traces = self._traces, None
        if self._calls is not None:
            self._calls.close()
        try:
            await instance.leave(self)
        finally:
            if traces is not None:
                await traces.close()

    def _started(self) -> ClientInstance:
        if self._instance is None:
            raise NotStarted("consumer")
        return self._instance

    # --- subscriptions ----------------------------------------------------------

    async def subscribe(self, topic: str, expression: str = subscriptions.ALL) -> None:
        """Consume this member's share of a topic, or of its messages with some tags.

        A second call for a topic replaces the first. Before ``start`` is better where the group has
        members (a ``PullConsumer`` is subscribed after it): all must subscribe to the same, and
        brokers believe the one they heard last.

        Args:
            topic: The topic.
            expression: ``*``, or ``TagA || TagB``.

        Raises:
            InvalidOption: The expression has no tags; or queues are assigned already.
        """
        full = namespace.wrap(self._client_config.namespace, topic)
        await self._subscribe(subscriptions.tags(full, expression, self._clock.now_ms()))

    async def subscribe_sql(self, topic: str, expression: str) -> None:
        """Consume this member's share of what an SQL92 expression selects by properties.

        Raises:
            InvalidOption: The expression is empty; or queues are assigned already.
            BrokerError: The broker refuses it (once started; else ``start`` raises it).
        """
        full = namespace.wrap(self._client_config.namespace, topic)
        await self._subscribe(subscriptions.sql(full, expression, self._clock.now_ms()))

    async def unsubscribe(self, topic: str) -> None:
        """Consume a topic no more."""
        full = namespace.wrap(self._client_config.namespace, topic)
        if self._membership.wanted.pop(full, None) is not None and self._instance is not None:
            await self._rebalance.give_up(full)
            await self._instance.heartbeat()

    async def _subscribe(self, wanted: Subscription) -> None:
        instance = self._instance
        if instance is not None:
            await check_expressions(instance, self.group, {wanted.topic: wanted})
            await learn_routes(instance, [wanted.topic])
        self._membership.wanted[wanted.topic] = wanted  # Brokers hear of it before we ask them.
        if instance is not None:
            await instance.heartbeat()
            self._rebalance.wake()

    # --- as a member of the instance --------------------------------------------

    def heartbeat_part(self) -> ConsumerData | None:
        """Return what brokers are to know of it."""
        return self._membership.heartbeat_part()

    def topics(self) -> Collection[str]:
        """Return the topics whose routes are to be kept fresh."""
        return list(self._membership.wanted)

    def on_members_changed(self) -> None:
        """Find out anew which queues are this member's."""
        if self._loops and not self._is_closing:
            self._rebalance.wake()

    def on_route_changed(self, route: TopicRoute) -> None:
        """Likewise, if the topic is one of ours."""
        if route.topic in self._membership.wanted:
            self.on_members_changed()

    def on_request(self, address: str, request: Command) -> Answer:
        """Answer what operators ask or do through the broker."""
        if self._instance is None or not self._loops:
            remark = f"consumer group {self.group!r} is not running"
            return command.reply(request, ResponseCode.SYSTEM_ERROR, remark)
        if request.code == RequestCode.RESET_CONSUMER_CLIENT_OFFSET:
            self._reset(bodies.decode(bodies.ResetOffsets, request.body).offset_table)
            return None
        if request.code == RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT:
            return consumer_status(request, self._offset_table())
        if request.code == RequestCode.GET_CONSUMER_RUNNING_INFO:
            return self._running_info(self._instance, request)
        if request.code == RequestCode.CONSUME_MESSAGE_DIRECTLY and self._calls is not None:
            return consume_directly(request, self._calls, self._clock, is_orderly=self._orderly)
        remark = f"consumer group {self.group!r} has no listener in this client"
        return command.reply(request, ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark)

    def _reset(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Go on elsewhere in these queues, where they are this member's."""
        raise NotImplementedError

    def _offset_table(self) -> OffsetTable:
        """Return how far this member is."""
        raise NotImplementedError

    def _running_info(self, instance: ClientInstance, request: Command) -> Command:
        """Return the reply to 307."""
        raise NotImplementedError
