"""A member of a consumer group: what it wants, what brokers hear of it, which queues are its own.

What push and pull consumers share. ``Rebalance`` divides the queues anew every 20 s, when a broker
says that members came or went, and when a route changes; then it tells its owner.

Source: rocketmq 4.9.8 ``RebalanceImpl``, ``RebalanceService``.
"""

import asyncio
import contextlib
import dataclasses
import logging
import random
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass

from reput.client import consumer_offsets
from reput.client.config import ConsumeFromWhere, ConsumerConfig, MessageModel
from reput.client.consumer_offsets import BrokerOffsets, ConsumerOffsets, FileOffsets
from reput.client.core import assign, requests, subscription as subscriptions
from reput.client.core.assign import Strategy
from reput.client.core.route_cache import NoRoute
from reput.client.core.subscription import Subscription
from reput.client.instance import ClientInstance
from reput.errors import BrokerError, InvalidBody, InvalidHeader, RemotingError
from reput.format import bodies, headers, names
from reput.format.bodies import (
    Assignments,
    ConsumerData,
    MessageQueue,
    QueryAssignmentBody,
    QueueAssignment,
)
from reput.format.codes import RequestCode, ResponseCode

log = logging.getLogger(__name__)

REBALANCE_MS = 20_000
UNBALANCED_MS = 1_000
"""The next try, where something was in the way of the last; then twice that, and so on, up to"""
UNBALANCED_MAX_MS = 5_000
"""this: nobody tells when a lock that is waited for is free."""
HALF_AN_HOUR_MS = 30 * 60_000
PULL, POP = "PULL", "POP"
"""Modes: queues are divided among the members, or no member owns one."""

Problem = (RemotingError, NoRoute, InvalidBody, InvalidHeader)
"""What may be wrong with a broker or name server, and better soon."""

Apply = Callable[[str, set[MessageQueue]], Awaitable[bool]]


@dataclass(frozen=True, slots=True)
class Membership:
    """Who is a member of what, and how. Names are full: with namespace."""

    group: str
    config: ConsumerConfig
    strategy: Strategy
    consume_type: str
    """``CONSUME_PASSIVELY`` of push consumers, ``CONSUME_ACTIVELY`` of others."""
    wanted: dict[str, Subscription]
    """Topic to subscription; may change at any time."""

    @property
    def is_broadcasting(self) -> bool:
        """Whether each member gets every message."""
        return self.config.message_model is MessageModel.BROADCASTING

    def heartbeat_part(self) -> ConsumerData | None:
        """Return what brokers hear: nothing, while nothing is subscribed to.

        A member without subscriptions would end those of its group: brokers believe the last one.
        """
        if all(map(names.is_retry_topic, self.wanted)):
            return None
        return ConsumerData(
            consume_from_where=self.config.consume_from_where.value,
            consume_type=self.consume_type,
            group_name=self.group,
            message_model=self.config.message_model.value,
            subscription_data_set=[one.data() for one in self.wanted.values()],
            unit_mode=False,
        )

    def want_retried(self, now_ms: int) -> None:
        """Subscribe to what the group asked to see again, unless it broadcasts."""
        if not self.is_broadcasting:
            topic = names.retry_topic(self.group)
            self.wanted[topic] = subscriptions.tags(topic, subscriptions.ALL, now_ms)

    def offsets(self, instance: ClientInstance) -> ConsumerOffsets:
        """Return where the group's, or this member's, consumer offsets are kept."""
        if not self.is_broadcasting:
            return BrokerOffsets(instance, self.group)
        # Java's members that broadcast keep their client id over a restart; ours do not by default.
        unit = f"@{instance.config.unit_name}" if instance.config.unit_name else ""
        lasting_id = f"{instance.address}@{instance.config.instance_name}{unit}"
        return FileOffsets(consumer_offsets.path_for(lasting_id, self.group))


class Rebalance:
    """Divides the queues of each topic among the members, again and again.

    Args:
        instance: Whom brokers are asked through.
        membership: Whose.
        apply: Called with a topic and the queues that shall be this member's; returns whether they
            are now.
    """

    def __init__(self, instance: ClientInstance, membership: Membership, apply: Apply) -> None:
        self._instance = instance
        self._membership = membership
        self._apply = apply
        self._is_due = asyncio.Event()
        self._turn = asyncio.Lock()
        self._modes: dict[str, str] = {}
        """Topic -> how the group is to read it, as a broker said last (setConsumeMode)."""
        self._knows_modes = True

    def wake(self) -> None:
        """Have a turn of ``run`` soon."""
        self._is_due.set()

    async def run(self) -> None:
        """Take turns until cancelled."""
        pause_ms = UNBALANCED_MS
        while True:
            self._is_due.clear()
            try:
                is_balanced = await self.turn()
            except Exception:  # a turn of the loop: the next may do
                log.exception("rebalance of group %s", self._membership.group)
                is_balanced = False
            wait_ms = REBALANCE_MS if is_balanced else pause_ms
            # Who is woken begins anew: many wakes in a row must not make the pause long.
            pause_ms, next_pause_ms = UNBALANCED_MS, min(2 * wait_ms, UNBALANCED_MAX_MS)
            try:
                async with asyncio.timeout(wait_ms / 1000):
                    await self._is_due.wait()
            except TimeoutError:
                if not is_balanced:
                    pause_ms = next_pause_ms

    async def turn(self) -> bool:
        """Divide all topics once; return whether everything is as it should be."""
        async with self._turn:
            is_balanced = True
            for topic in list(self._membership.wanted):
                try:
                    queues = await self.share(topic)
                    is_balanced &= await self._apply(topic, queues)
                    await self._look_at_mode(topic)
                except Problem as error:
                    # A retry topic is there once a broker has heard of the group.
                    if not names.is_retry_topic(topic):
                        log.warning("queues of topic %s are not divided yet: %s", topic, error)
                    is_balanced = False
            return is_balanced

    async def give_up(self, topic: str) -> None:
        """Have no queues of a topic any more."""
        async with self._turn:
            await self._apply(topic, set())

    async def share(self, topic: str) -> set[MessageQueue]:
        """Return the queues of a topic that are this member's.

        Raises:
            NoRoute, RemotingError, InvalidBody: Who is there, or where, cannot be found out.
        """
        route = await self._instance.route(topic)
        if self._membership.is_broadcasting:
            return set(route.subscribe_queues)
        if not route.subscribe_queues:
            return set()
        client_ids = await self._client_ids(topic, route.brokers)
        queues = assign.sorted_queues(route.subscribe_queues)
        own_id = self._instance.client_id
        return set(
            self._membership.strategy.allocate(own_id, queues, assign.sorted_clients(client_ids))
        )

    async def _look_at_mode(self, topic: str) -> None:
        """Say when the group is to pop a topic, or no longer.

        This member does not, as Java's by default, which do not even ask.
        """
        has_none = self._membership.is_broadcasting or names.is_retry_topic(topic)
        if has_none or not self._knows_modes:
            return
        try:
            found = await self.assignments(topic)
        except BrokerError as error:  # Brokers before 5.0 know no modes.
            not_supported = ResponseCode.REQUEST_CODE_NOT_SUPPORTED
            self._knows_modes = error.response_code != not_supported
            return
        except Problem:
            return
        new = self._new_mode(topic, found or (), PULL)
        if new == POP:
            log.warning(
                "group %s is to pop topic %s (setConsumeMode): this member pulls queues all the"
                " same, and both get messages that the other has; use a PopConsumer",
                self._membership.group,
                topic,
            )
        elif new:
            log.warning("group %s is to pull topic %s again", self._membership.group, topic)

    def _new_mode(self, topic: str, answer: Iterable[QueueAssignment], at_first: str) -> str:
        """Return the mode in which a broker wants a topic read, if that is news; else nothing."""
        for one in answer:
            before, self._modes[topic] = self._modes.get(topic, at_first), one.mode
            return one.mode if one.mode != before else ""
        return ""

    async def assignments(self, topic: str) -> list[QueueAssignment] | None:
        """Return what a broker says that this member shall read; None if it does not say.

        Raises:
            NoRoute, RemotingError, InvalidBody: None can be asked.
        """
        route = await self._instance.route(topic)
        if not route.brokers:
            raise NoRoute(topic, "none of its brokers is there")
        body = QueryAssignmentBody(
            client_id=self._instance.client_id,
            consumer_group=self._membership.group,
            strategy_name=self._membership.strategy.name,
            topic=topic,
        )
        address = route.any_address(random.choice(list(route.brokers)))
        request = requests.make(RequestCode.QUERY_ASSIGNMENT, body=bodies.encode(body))
        reply = await self._instance.ask(address, request)
        return bodies.decode(Assignments, reply.body).message_queue_assignments

    async def _client_ids(self, topic: str, brokers: Mapping[str, Mapping[int, str]]) -> list[str]:
        addresses = [one[min(one)] for one in brokers.values() if one]
        if not addresses:
            raise NoRoute(topic, "none of its brokers is there")
        header = headers.ConsumerGroupHeader(consumer_group=self._membership.group)
        request = requests.make(RequestCode.GET_CONSUMER_LIST_BY_GROUP, header)
        reply = await self._instance.ask(random.choice(addresses), request)
        return bodies.decode(bodies.ConsumerList, reply.body).consumer_id_list


def with_start_time(config: ConsumerConfig, now_ms: int) -> ConsumerConfig:
    """Return settings that say from when on to consume: half an hour ago, unless they do."""
    if config.consume_timestamp_ms:
        return config
    return dataclasses.replace(config, consume_timestamp_ms=now_ms - HALF_AN_HOUR_MS)


async def start_offset(
    instance: ClientInstance, config: ConsumerConfig, offsets: ConsumerOffsets, queue: MessageQueue
) -> int:
    """Return where to begin in a queue: where the group is, else where new groups shall begin.

    Raises:
        NoRoute, RemotingError: That cannot be found out now.
    """
    stored = await offsets.read(queue)
    if stored is not None:
        return stored
    where = config.consume_from_where
    is_retry = names.is_retry_topic(queue.topic)
    if where is ConsumeFromWhere.FIRST_OFFSET:
        return 0  # The broker corrects it.
    if where is ConsumeFromWhere.LAST_OFFSET:
        return 0 if is_retry else await consumer_offsets.max_offset(instance, queue)
    if is_retry:
        return await consumer_offsets.max_offset(instance, queue)
    assert config.consume_timestamp_ms, "with_start_time sets it"
    return await consumer_offsets.offset_at(instance, queue, config.consume_timestamp_ms)


async def check_expressions(
    instance: ClientInstance, group: str, wanted: Mapping[str, Subscription]
) -> None:
    """Ask a broker of each topic whether it can filter by SQL92 expressions.

    A log line says which part of one brokers ignore.

    Raises:
        BrokerError: It cannot, or not by this one; the remark says why.
        NoRoute, RemotingError: None can be asked.
    """
    for topic, one in wanted.items():
        if not one.is_sql:
            continue
        route = await instance.route(topic)
        body = bodies.encode(
            bodies.CheckClientBody(
                client_id=instance.client_id, group=group, subscription_data=one.data()
            )
        )
        name = random.choice(list(route.brokers))
        request = requests.make(RequestCode.CHECK_CLIENT_CONFIG, body=body)
        await instance.ask(route.any_address(name), request)
        _warn_of_ignored(one.expression)


async def learn_routes(instance: ClientInstance, topics: Iterable[str]) -> None:
    """Ask where topics are, so that the next heartbeat goes to their brokers."""
    for topic in topics:
        try:
            await instance.route(topic)
        except Problem as error:
            log.info("route of topic %s is not known yet: %s", topic, error)


def _warn_of_ignored(expression: str) -> None:
    from reput.format import sql92  # Its grammar takes longer to load than most clients to start.

    # What is no expression here may be one to a broker of another version.
    with contextlib.suppress(sql92.Sql92Error):
        if warning := sql92.compile_filter(expression).warning:
            log.warning("%s", warning)
