"""A member of a consumer group: its subscriptions, heartbeats and queues.

Shared by push and pull consumers. ``Rebalance`` divides the queues every 20 s, when a broker
reports a change of members, and when a route changes; then it notifies its owner.

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
"""Delay of the retry after an incomplete rebalance, in ms; doubled up to UNBALANCED_MAX_MS."""
UNBALANCED_MAX_MS = 5_000
"""Maximum of that delay: there is no notification when a lock becomes free."""
HALF_AN_HOUR_MS = 30 * 60_000
PULL, POP = "PULL", "POP"
"""Request modes: queues are divided among the members, or shared by all."""

Problem = (RemotingError, NoRoute, InvalidBody, InvalidHeader)
"""Temporary faults of a broker or name server."""

Apply = Callable[[str, set[MessageQueue]], Awaitable[bool]]


@dataclass(frozen=True, slots=True)
class Membership:
    """Group and subscriptions of a member. Names are full, with namespace."""

    group: str
    config: ConsumerConfig
    strategy: Strategy
    consume_type: str
    """``CONSUME_PASSIVELY`` for push consumers, ``CONSUME_ACTIVELY`` for others."""
    wanted: dict[str, Subscription]
    """Topic to subscription; may change at any time."""

    @property
    def is_broadcasting(self) -> bool:
        """True if each member gets every message."""
        return self.config.message_model is MessageModel.BROADCASTING

    def heartbeat_part(self) -> ConsumerData | None:
        """Return the part of a heartbeat; None without subscriptions.

        Brokers use the last subscriptions received from any member, so that an empty set would end
        those of the group.
        """
        if all(map(names.is_retry_topic, self.wanted)):
            return None
        return ConsumerData(
            consume_from_where=self.config.consume_from_where.value,
            consume_type=self.consume_type,
            group_name=self.group,
            message_model=self.config.message_model.value,
            subscription_data_set=[subscription.data() for subscription in self.wanted.values()],
            unit_mode=False,
        )

    def want_retried(self, now_ms: int) -> None:
        """Subscribe to the group's retry topic, unless it broadcasts."""
        if not self.is_broadcasting:
            topic = names.retry_topic(self.group)
            self.wanted[topic] = subscriptions.tags(topic, subscriptions.ALL, now_ms)

    def offsets(self, instance: ClientInstance) -> ConsumerOffsets:
        """Return the store of the group's, or this member's, consumer offsets."""
        if not self.is_broadcasting:
            return BrokerOffsets(instance, self.group)
        # Java's broadcasting members keep their client id over a restart; ours do not by default.
        unit = f"@{instance.config.unit_name}" if instance.config.unit_name else ""
        lasting_id = f"{instance.address}@{instance.config.instance_name}{unit}"
        return FileOffsets(consumer_offsets.path_for(lasting_id, self.group))


class Rebalance:
    """Divides the queues of each topic among the members, periodically.

    Args:
        instance: Client instance for requests.
        membership: Group and subscriptions.
        apply: Called with a topic and the queues allocated to this member; returns whether all of
            them could be taken.
    """

    def __init__(self, instance: ClientInstance, membership: Membership, apply: Apply) -> None:
        self._instance = instance
        self._membership = membership
        self._apply = apply
        self._is_due = asyncio.Event()
        self._turn = asyncio.Lock()
        self._modes: dict[str, str] = {}
        """Topic to the group's mode, as last reported by a broker (setConsumeMode)."""
        self._knows_modes = True
        self._divided: set[str] = set()
        """Topics whose queues are allocated, and taken by this member."""
        self._has_changed = asyncio.Event()
        """Set after each turn, and by ``note_change``."""
        self.problem: Exception | None = None
        """Error of the last turn, if it failed."""

    @property
    def is_divided(self) -> bool:
        """True if this member has its queues of all subscribed topics; False without topics."""
        topics = [topic for topic in self._membership.wanted if not names.is_retry_topic(topic)]
        return bool(topics) and self._divided.issuperset(topics)

    async def wait_for_change(self) -> None:
        """Wait for the end of a turn, or for ``note_change``."""
        self._has_changed.clear()
        await self._has_changed.wait()

    def note_change(self) -> None:
        """Wake ``wait_for_change``: what the member's readiness depends on has changed."""
        self._has_changed.set()

    def wake(self) -> None:
        """Run ``turn`` soon."""
        self._is_due.set()

    async def run(self) -> None:
        """Run turns until cancelled."""
        pause_ms = UNBALANCED_MS
        while True:
            self._is_due.clear()
            try:
                is_balanced = await self.turn()
            except Exception:  # a time slice; the next turn repeats it
                log.exception("rebalance of group %s", self._membership.group)
                is_balanced = False
            wait_ms = REBALANCE_MS if is_balanced else pause_ms
            # A wake resets the delay: many wakes in a row must not make it long.
            pause_ms, next_pause_ms = UNBALANCED_MS, min(2 * wait_ms, UNBALANCED_MAX_MS)
            try:
                async with asyncio.timeout(wait_ms / 1000):
                    await self._is_due.wait()
            except TimeoutError:
                if not is_balanced:
                    pause_ms = next_pause_ms

    async def turn(self) -> bool:
        """Divide all topics once; return whether every allocation was applied."""
        async with self._turn:
            is_balanced = True
            problem: Exception | None = None
            for topic in list(self._membership.wanted):
                try:
                    is_balanced &= await self._divide(topic)
                    await self._check_mode(topic)
                except Problem as error:
                    # A retry topic exists once a broker has received the group's heartbeat.
                    is_retry = names.is_retry_topic(topic)
                    group = self._membership.group
                    if is_retry:
                        log.info("group %s waits for topic %s: %s", group, topic, error)
                    else:
                        text = "group %s waits for topic %s"
                        self._instance.outages.warn(log, error, text, group, topic)
                        problem = error
                    is_balanced = False
            self.problem = problem
            self.note_change()
            return is_balanced

    async def _divide(self, topic: str) -> bool:
        """Divide a topic; return whether the allocation was applied.

        Raises:
            NoRoute, RemotingError, InvalidBody: Members, queues or start offsets cannot be
                determined, or no queue of the topic can be read.
        """
        queues = await self.share(topic)
        is_applied = False
        try:
            is_applied = await self._apply(topic, queues)
        finally:
            (self._divided.add if is_applied else self._divided.discard)(topic)
        if not queues and not (await self._instance.route(topic)).subscribe_queues:
            self._divided.discard(topic)
            raise NoRoute(topic, "none of its queues can be read")
        return is_applied

    async def give_up(self, topic: str) -> None:
        """Release all queues of a topic."""
        async with self._turn:
            self._divided.discard(topic)
            await self._apply(topic, set())

    async def share(self, topic: str) -> set[MessageQueue]:
        """Return the queues of a topic allocated to this member.

        Raises:
            NoRoute, RemotingError, InvalidBody: Members or queues cannot be determined.
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

    async def _check_mode(self, topic: str) -> None:
        """Log when the group's mode of a topic changes to or from pop.

        This member ignores the mode, as Java's clients do by default, which do not even query it.
        """
        has_none = self._membership.is_broadcasting or names.is_retry_topic(topic)
        if has_none or not self._knows_modes:
            return
        try:
            assignments = await self.assignments(topic)
        except BrokerError as error:  # Brokers before 5.0 have no modes.
            not_supported = ResponseCode.REQUEST_CODE_NOT_SUPPORTED
            self._knows_modes = error.response_code != not_supported
            return
        except Problem:
            return
        new = self._new_mode(topic, assignments or (), PULL)
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
        """Return a broker's mode for a topic if it has changed; otherwise None."""
        for assignment in answer:
            before, self._modes[topic] = self._modes.get(topic, at_first), assignment.mode
            return assignment.mode if assignment.mode != before else ""
        return ""

    async def assignments(self, topic: str) -> list[QueueAssignment] | None:
        """Return the broker's assignments for this member; None if it does not assign queues.

        Raises:
            NoRoute, RemotingError, InvalidBody: No broker could be queried.
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
        addresses = [by_id[min(by_id)] for by_id in brokers.values() if by_id]
        if not addresses:
            raise NoRoute(topic, "none of its brokers is there")
        header = headers.ConsumerGroupHeader(consumer_group=self._membership.group)
        request = requests.make(RequestCode.GET_CONSUMER_LIST_BY_GROUP, header)
        reply = await self._instance.ask(random.choice(addresses), request)
        return bodies.decode(bodies.ConsumerList, reply.body).consumer_id_list


def with_start_time(config: ConsumerConfig, now_ms: int) -> ConsumerConfig:
    """Return settings with a start time: half an hour ago unless set."""
    if config.consume_timestamp_ms:
        return config
    return dataclasses.replace(config, consume_timestamp_ms=now_ms - HALF_AN_HOUR_MS)


async def start_offset(
    instance: ClientInstance, config: ConsumerConfig, offsets: ConsumerOffsets, queue: MessageQueue
) -> int:
    """Return the start offset of a queue: the consumer offset, or as configured for new groups.

    Raises:
        NoRoute, RemotingError: It cannot be determined now.
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
    """Check that a broker of each topic accepts its SQL92 expressions.

    A warning is logged for the part of an expression that brokers ignore.

    Raises:
        BrokerError: The broker refuses; the remark has the reason.
        NoRoute, RemotingError: No broker could be queried.
    """
    for topic, subscription in wanted.items():
        if not subscription.is_sql:
            continue
        route = await instance.route(topic)
        body = bodies.encode(
            bodies.CheckClientBody(
                client_id=instance.client_id, group=group, subscription_data=subscription.data()
            )
        )
        name = random.choice(list(route.brokers))
        request = requests.make(RequestCode.CHECK_CLIENT_CONFIG, body=body)
        await instance.ask(route.any_address(name), request)
        _warn_of_ignored(subscription.expression)


async def learn_routes(instance: ClientInstance, topics: Iterable[str]) -> None:
    """Fetch the routes of topics, so that the next heartbeat reaches their brokers."""
    for topic in topics:
        try:
            await instance.route(topic)
        except Problem as error:
            log.info("route of topic %s is not known yet: %s", topic, error)


def _warn_of_ignored(expression: str) -> None:
    from reput.format import sql92  # Loading its grammar takes longer than starting most clients.

    # Brokers of other versions may accept expressions that are invalid here.
    with contextlib.suppress(sql92.Sql92Error):
        if warning := sql92.compile_filter(expression).warning:
            log.warning("%s", warning)
