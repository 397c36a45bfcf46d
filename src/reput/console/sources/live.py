"""Requests to brokers and name servers: each within a deadline, some at a time for each broker."""

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Mapping
from typing import TYPE_CHECKING, TypeVar

from reput.client.admin import Admin
from reput.client.core import requests
from reput.client.core.route_cache import TopicRoute
from reput.console.snapshot import BrokerPlace, Ends, QueueEnds
from reput.console.unknown import Unknown
from reput.errors import BrokerError, ReputError, RequestTimedOut
from reput.format import bodies, headers, names
from reput.format.bodies import ConsumerConnection, SubscriptionGroupConfig, TopicConfigData
from reput.format.codes import RequestCode, ResponseCode
from reput.format.command import Command

if TYPE_CHECKING:
    from reput.client.producer import Producer

DEADLINE_S = 2.0
"""Maximum total time of the requests of a page."""
IN_FLIGHT_MAX = 16
"""Requests to a broker that wait for their answers."""
_T = TypeVar("_T")


class Live:
    """The clusters of some name servers.

    Args:
        admin: A client that has been started.
    """

    def __init__(self, admin: Admin) -> None:
        self.admin = admin
        self._slots: dict[str, asyncio.Semaphore] = defaultdict(
            lambda: asyncio.Semaphore(IN_FLIGHT_MAX)
        )

    def producer(self) -> "Producer":
        """Return a producer for copies and single messages, which the caller starts and closes."""
        from reput.client.producer import Producer  # a page needs none

        return Producer(names.TOOLS_PRODUCER, client=self.admin.calls.instance.config)

    async def ask(self, address: str, request: Command) -> Command:
        """Send a request to a broker. Raises ``ReputError``, at the deadline too."""
        try:
            async with asyncio.timeout(DEADLINE_S), self._slots[address]:
                return await self.admin.calls.ask(address, request)
        except TimeoutError as error:
            raise RequestTimedOut(address, request.code, round(DEADLINE_S * 1000)) from error

    async def places(self) -> list[BrokerPlace]:
        """Return the brokers that name servers have."""
        try:
            async with asyncio.timeout(DEADLINE_S):
                info = await self.admin.clusters()
        except TimeoutError as error:
            raise ReputError(f"no name server has answered in {DEADLINE_S:g} s") from error
        cluster_of = {
            name: cluster
            for cluster, members in info.cluster_addr_table.items()
            for name in members
        }
        return [
            BrokerPlace(data.cluster or cluster_of.get(name, ""), name, broker_id, address)
            for name, data in sorted(info.broker_addr_table.items())
            for broker_id, address in sorted(data.broker_addrs.items())
        ]

    async def topic_names(self) -> frozenset[str]:
        """Return the topics that name servers have."""
        async with asyncio.timeout(DEADLINE_S):
            return frozenset(await self.admin.topics())

    async def status(self, address: str) -> Mapping[str, str]:
        """Return the runtime values of a broker."""
        reply = await self.ask(address, requests.make(RequestCode.GET_BROKER_RUNTIME_INFO))
        return bodies.decode(bodies.KvTable, reply.body).table

    async def topics(self, address: str) -> Mapping[str, TopicConfigData]:
        """Return the topics of a broker with their settings."""
        reply = await self.ask(address, requests.make(RequestCode.GET_ALL_TOPIC_CONFIG))
        return bodies.decode(bodies.TopicConfigTable, reply.body).topic_config_table

    async def groups(self, address: str) -> Mapping[str, SubscriptionGroupConfig]:
        """Return the consumer groups of a broker with their settings."""
        request = requests.make(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
        reply = await self.ask(address, request)
        return bodies.decode(bodies.SubscriptionGroupTable, reply.body).subscription_group_table

    async def consumed(self, address: str) -> Mapping[tuple[str, str], Mapping[int, int]]:
        """Return the consumer offsets of all groups, by topic and group."""
        reply = await self.ask(address, requests.make(RequestCode.GET_ALL_CONSUMER_OFFSET))
        table = bodies.decode(bodies.ConsumerOffsetTable, reply.body).offset_table
        by_pair = {}
        for key, offsets in table.items():
            topic, _, group = key.partition("@")
            by_pair[topic, group] = offsets
        return by_pair

    async def ends(self, address: str, topic: str, now_ms: int) -> Ends:
        """Return the ends of a topic's queues on a broker."""
        header = headers.TopicHeader(topic=topic)
        reply = await self.ask(address, requests.make(RequestCode.GET_TOPIC_STATS_INFO, header))
        table = bodies.decode(bodies.TopicStats, reply.body).offset_table
        queues = (
            QueueEnds(queue.queue_id, ends.min_offset, ends.max_offset, ends.last_update_timestamp)
            for queue, ends in table.items()
        )
        return Ends(now_ms, tuple(sorted(queues, key=lambda ends: ends.queue_id)))

    async def members(self, address: str, group: str) -> ConsumerConnection | None:
        """Return the members of a group that a broker reports; None without a report."""
        header = headers.ConsumerGroupHeader(consumer_group=group)
        request = requests.make(RequestCode.GET_CONSUMER_CONNECTION_LIST, header)
        try:
            reply = await self.ask(address, request)
        except BrokerError as error:
            if error.response_code == ResponseCode.CONSUMER_NOT_ONLINE:
                return None
            raise
        return bodies.decode(ConsumerConnection, reply.body)

    async def consume_stats(self, address: str, group: str) -> bodies.ConsumeStats:
        """Return the progress of a group on a broker."""
        header = headers.ConsumeStatsHeader(consumer_group=group, topic=None)
        reply = await self.ask(address, requests.make(RequestCode.GET_CONSUME_STATS, header))
        return bodies.decode(bodies.ConsumeStats, reply.body)

    async def route(self, topic: str) -> TopicRoute:
        """Return the route of a topic. Raises ``NoRoute``."""
        async with asyncio.timeout(DEADLINE_S):
            return await self.admin.topic_route(topic)

    async def config(self, address: str) -> Mapping[str, str]:
        """Return the settings of a broker."""
        async with asyncio.timeout(DEADLINE_S):
            return await self.admin.broker_config(address)


async def gather(asked: Mapping[str, Awaitable[_T]]) -> dict[str, _T | Unknown]:
    """Wait for requests with one deadline; missing results are ``Unknown``.

    Args:
        asked: Requests by name, as the name of a broker.
    """
    tasks = {name: asyncio.ensure_future(request) for name, request in asked.items()}
    if tasks:
        await asyncio.wait(tasks.values(), timeout=DEADLINE_S)
    answers: dict[str, _T | Unknown] = {}
    for name, task in tasks.items():
        if not task.done():
            task.cancel()
            answers[name] = Unknown(f"{name} has not answered in {DEADLINE_S:g} s")
            continue
        error = task.exception()
        if error is None:
            answers[name] = task.result()
        elif isinstance(error, (ReputError, TimeoutError)):
            answers[name] = Unknown(f"{name}: {str(error) or 'no answer in time'}")
        else:
            raise error
    return answers
