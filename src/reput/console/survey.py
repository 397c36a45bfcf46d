"""What the exporter asks besides the collector: counters of topics and groups, members, clients.

Brokers count puts and gets by topic and group (315), and know producers (328) and members (203);
members know their own rates (307). A survey asks one question after the other, at ten a second and
broker at most. A topic whose ends, or a group whose offsets, have not moved since the last survey
is idle: its rates are 0 without a question.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from reput.client.core import subscription
from reput.client.core.pull_replies import PulledRecords, PullStatus
from reput.client.message import received
from reput.client.pulling import Puller
from reput.clock import Clock
from reput.console.cluster import WatchedCluster
from reput.console.snapshot import BrokerFacts, Ends, Members
from reput.console.sources.live import DEADLINE_S
from reput.errors import ReputError
from reput.format import names
from reput.format.bodies import Connection, ConsumerConnection, ConsumeStatus, MessageQueue

QUESTION_S = 0.1
"""Time between two questions to a broker."""
SURVEY_S = 15.0
"""Minimum time between the beginnings of two surveys of a broker."""
LAGGING_QUEUES_MAX = 16
"""Queues of a group and topic whose next messages are read, those with the largest lag."""
CLIENTS_MAX = 50
"""Maximum number of members of a group whose rates are requested."""
_K = TypeVar("_K")
_V = TypeVar("_V")
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Rates:
    """Messages and bytes per second in the last minute."""

    messages: float
    size_bytes: float
    sent_back: float = 0.0
    """Messages that members sent back; 0 for a topic."""


IDLE = Rates(0.0, 0.0)


@dataclass(frozen=True, slots=True)
class GroupClients:
    """The members of a group and what they measure."""

    connections: Sequence[Connection]
    message_model: str
    statuses: Mapping[str, Mapping[str, ConsumeStatus]]
    """Client id to topic to the rates that the client measures."""


@dataclass(slots=True)
class SurveyFacts:
    """The answers; an unknown value is absent."""

    topics: dict[tuple[str, str], Rates] = field(default_factory=dict)
    """(address, topic) to its puts."""
    groups: dict[tuple[str, str, str], Rates] = field(default_factory=dict)
    """(address, topic, group) to its gets."""
    latencies: dict[tuple[str, str, str], int] = field(default_factory=dict)
    """The same to the age in ms of the first message that is not consumed, when the offsets were
    read; 0 without one."""
    producers: dict[str, Mapping[str, int]] = field(default_factory=dict)
    """Address to producer groups with the numbers of their members."""
    clients: dict[str, GroupClients] = field(default_factory=dict)
    """Consumer group to its members."""


class Survey:
    """Measures groups, clients and topics of the brokers continuously.

    Args:
        cluster: The cluster; its collector runs beside.
        clock: The clock.
        names_max: Topics, and groups, about which it asks.
    """

    def __init__(self, cluster: WatchedCluster, clock: Clock, names_max: int) -> None:
        self.facts = SurveyFacts()
        self._cluster = cluster
        self._admin = cluster.live.admin
        self._clock = clock
        self._names_max = names_max
        self._stored: dict[tuple[str, str], int] = {}
        """(address, topic) -> number of stored messages at the last request."""
        self._consumed: dict[tuple[str, str, str], Mapping[int, int]] = {}

    async def run(self) -> None:
        """Send requests until cancelled."""
        tasks: dict[str, asyncio.Task[None]] = {}
        try:
            while True:
                masters = {facts.place.address: facts for facts in self._cluster.snapshot.masters()}
                for address, facts in masters.items():
                    if address not in tasks or tasks[address].done():
                        tasks[address] = asyncio.create_task(self._follow(facts))
                gone = tasks.keys() - masters.keys()
                for address in gone:
                    tasks.pop(address).cancel()
                if gone:
                    self.forget_gone()
                await asyncio.sleep(1)
        finally:
            for task in tasks.values():
                task.cancel()
            await asyncio.gather(*tasks.values(), return_exceptions=True)

    async def _follow(self, facts: BrokerFacts) -> None:
        pause = asyncio.create_task(asyncio.sleep(SURVEY_S))
        try:
            async for _ in self.steps(facts):
                await asyncio.sleep(QUESTION_S)
            await pause
        finally:
            pause.cancel()

    async def steps(self, facts: BrokerFacts) -> AsyncIterator[None]:
        """Send each request to a broker once; yield after each."""
        self.forget_gone()
        self._forget(facts)
        if facts.is_silent:
            return
        await self._ask_producers(facts)
        yield
        topics = [topic for topic in list(facts.topics)[: self._names_max] if _is_counted(topic)]
        for topic in topics:
            if await self._ask_topic(facts, topic):
                yield
        for group in list(facts.groups)[: self._names_max]:
            await self._ask_members(group)
            yield
        shown = set(topics)
        for topic, group in list(facts.consumed)[: self._names_max]:
            if topic in shown and await self._ask_group(facts, topic, group):
                yield

    def forget_gone(self) -> None:
        """Forget brokers that are no longer masters of the cluster, and groups without a broker."""
        addresses = {facts.place.address for facts in self._cluster.snapshot.masters()}
        tables = self.facts
        _retain(tables.topics, lambda key: key[0] in addresses)
        _retain(tables.groups, lambda key: key[0] in addresses)
        _retain(tables.latencies, lambda key: key[0] in addresses)
        _retain(tables.producers, lambda address: address in addresses)
        _retain(self._stored, lambda key: key[0] in addresses)
        _retain(self._consumed, lambda key: key[0] in addresses)
        known = {group for broker in self._cluster.snapshot.masters() for group in broker.groups}
        _retain(tables.clients, lambda group: group in known)

    def _forget(self, facts: BrokerFacts) -> None:
        """Forget removed topics and groups of a broker, and everything of a silent one."""
        address, tables = facts.place.address, self.facts
        topics = () if facts.is_silent else facts.topics
        pairs = () if facts.is_silent else facts.consumed
        _retain(tables.topics, lambda key: key[0] != address or key[1] in topics)
        _retain(tables.groups, lambda key: key[0] != address or key[1:] in pairs)
        _retain(tables.latencies, lambda key: key[0] != address or key[1:] in pairs)
        _retain(self._stored, lambda key: key[0] != address or key[1] in facts.topics)
        _retain(self._consumed, lambda key: key[0] != address or key[1:] in facts.consumed)
        if facts.is_silent:
            tables.producers.pop(address, None)

    async def _ask_producers(self, facts: BrokerFacts) -> None:
        address = facts.place.address
        self.facts.producers.pop(address, None)
        with _unanswered(f"producers of {address}"):
            async with asyncio.timeout(DEADLINE_S):
                table = await self._admin.producers(address)
            self.facts.producers[address] = {group: len(table[group]) for group in table}

    # --- counters -----------------------------------------------------------------------------

    async def _ask_topic(self, facts: BrokerFacts, topic: str) -> bool:
        """Request the put rate of a topic, unless the topic is idle; return True if requested."""
        key = facts.place.address, topic
        ends = facts.ends.get(topic)
        if ends is None:
            return False
        before, self._stored[key] = self._stored.get(key), ends.stored_count
        is_idle = before == ends.stored_count and self.facts.topics.get(key, IDLE) == IDLE
        if is_idle:
            self.facts.topics[key] = IDLE
            return False
        self.facts.topics.pop(key, None)
        with _unanswered(f"puts of {topic}"):
            self.facts.topics[key] = Rates(
                await self._rate(facts, "TOPIC_PUT_NUMS", topic),
                await self._rate(facts, "TOPIC_PUT_SIZE", topic),
            )
        return True

    async def _ask_group(self, facts: BrokerFacts, topic: str, group: str) -> bool:
        """Request the get rate and latency of a group; return True if they were requested."""
        key = facts.place.address, topic, group
        offsets, offsets_ms = facts.consumed.get((topic, group)), facts.consumed_ms
        ends = facts.ends.get(topic)
        if offsets is None or ends is None:
            return False
        before, self._consumed[key] = self._consumed.get(key), offsets
        lagging = _lagging(ends, offsets)
        if before == offsets and not lagging and self.facts.groups.get(key, IDLE) == IDLE:
            self.facts.groups[key], self.facts.latencies[key] = IDLE, 0
            return False
        self.facts.groups.pop(key, None)
        self.facts.latencies.pop(key, None)
        counter = f"{topic}@{group}"
        with _unanswered(f"gets of {counter}"):
            self.facts.groups[key] = Rates(
                await self._rate(facts, "GROUP_GET_NUMS", counter),
                await self._rate(facts, "GROUP_GET_SIZE", counter),
                await self._rate(facts, "SNDBCK_PUT_NUMS", counter),
            )
        with _unanswered(f"latency of {counter}"):
            ages = [
                await self._age(facts, topic, queue_id, consumer_offset, offsets_ms)
                for queue_id, consumer_offset in lagging
            ]
            self.facts.latencies[key] = max(ages, default=0)
        return True

    async def _rate(self, facts: BrokerFacts, name: str, key: str) -> float:
        """Return the rate of a counter in the last minute; 0 if it does not exist yet."""
        async with asyncio.timeout(DEADLINE_S):
            stats = await self._admin.broker_stats(facts.place.address, name, key)
        return 0.0 if stats is None else stats.stats_minute.tps

    async def _age(
        self, facts: BrokerFacts, topic: str, queue_id: int, consumer_offset: int, offset_ms: int
    ) -> int:
        """Return the age of the next message of a queue when its offset was read, in ms.

        At the time of this question the group may have consumed it long ago. 0 without a message.
        """
        queue = MessageQueue(topic=topic, broker_name=facts.place.name, queue_id=queue_id)
        instance = self._admin.calls.instance
        puller = Puller(instance, names.TOOLS_CONSUMER, is_subscribed=False)

        async def pull(queue_offset: int) -> PulledRecords:
            return await puller.pull_records(
                queue,
                queue_offset,
                subscription.tags(topic, "*", 0),
                count_max=1,
                commit_offset=None,
                hold_ms=0,
                timeout_ms=round(DEADLINE_S * 1000),
            )

        pulled = await pull(consumer_offset)
        if pulled.status is PullStatus.ILLEGAL_OFFSET:
            pulled = await pull(pulled.min_offset)  # the next message has expired
        messages = received(pulled.records, facts.place.name)
        if not messages:
            return 0
        return max(0, offset_ms - messages[0].store_timestamp_ms)

    # --- members ------------------------------------------------------------------------------

    async def _ask_members(self, group: str) -> None:
        """Request the members of a group, and the rates from each member."""
        known = self.facts.clients.pop(group, None)
        with _unanswered(f"members of {group}"):
            async with asyncio.timeout(DEADLINE_S):
                connected = await self._admin.consumer_connection(group)
            connections = [] if connected is None else connected.connection_set
            count = Members(self._clock.now_ms(), len(connections))
            self._cluster.snapshot.put_members(group, count)
            model = _model(connected) or (known.message_model if known else "CLUSTERING")
            statuses = {}
            for connection in connections[:CLIENTS_MAX]:
                with _unanswered(f"rates of {connection.client_id}"):
                    async with asyncio.timeout(DEADLINE_S):
                        info = await self._admin.consumer_running_info(group, connection.client_id)
                    statuses[connection.client_id] = info.status_table
            self.facts.clients[group] = GroupClients(connections, model, statuses)


def _retain(table: dict[_K, _V], is_kept: Callable[[_K], bool]) -> None:
    for key in [key for key in table if not is_kept(key)]:
        del table[key]


def _model(connection: ConsumerConnection | None) -> str:
    return "" if connection is None else connection.message_model


def _is_counted(topic: str) -> bool:
    return names.kind_of(topic) == "user" or names.is_retry_topic(topic)


def _lagging(ends: Ends, offsets: Mapping[int, int]) -> list[tuple[int, int]]:
    """Return (queue id, consumer offset) of the queues with a lag, the largest first."""
    lags = [
        (queue.max_offset - offsets[queue.queue_id], queue.queue_id, offsets[queue.queue_id])
        for queue in ends.queues
        if queue.max_offset > offsets.get(queue.queue_id, queue.max_offset)
    ]
    lags.sort(reverse=True)
    return [(queue_id, consumer_offset) for _, queue_id, consumer_offset in lags][
        :LAGGING_QUEUES_MAX
    ]


@contextlib.contextmanager
def _unanswered(what: str) -> Iterator[None]:
    """Omit facts that a broker or client does not return; the next survey requests them again."""
    try:
        yield
    except (ReputError, TimeoutError) as error:
        _log.debug("%s: %s", what, str(error) or "no answer in time")
