"""The brokers of a proxy: their addresses, topics and their types, groups; each with its age.

Routes come from the name servers, types of topics and groups' settings from the brokers. Brokers
before 5.0 have no types: their topics take messages of any type.
"""

import asyncio
from collections.abc import Iterable, Sequence

from reput.broker.lite.subscriptions import BIND_TOPIC, quota_of
from reput.client.core import requests
from reput.clock import Clock
from reput.errors import (
    RemotingError,
    ReputError,
    RequestTimedOut,
    broker_error,
)
from reput.format import bodies, headers
from reput.format.bodies import (
    BrokerData,
    ClusterInfo,
    ConsumerData,
    HeartbeatData,
    SubscriptionGroupConfig,
    TopicRouteData,
)
from reput.format.codes import MASTER_ID, PERM_WRITE, RequestCode, ResponseCode
from reput.format.command import Command
from reput.grpc import limits
from reput.grpc.backend import BrokerQueues, GroupFacts, TopicFacts
from reput.grpc.proxy.aging_cache import AgingCache
from reput.grpc.statuses import Code, StatusError
from reput.grpc.wire.grpc_messages import MessageType
from reput.remoting.client import RemotingClient

FRESH_MS = 20_000
"""Age from which a route, a type or a group is loaded again, in ms."""
KEPT_MS = 300_000
"""Age up to which they are used while they cannot be loaded, in ms; so are brokers' addresses."""
ASK_MS = 1_000
"""Timeout of a request to a name server or broker, in ms, and of a connection attempt: clients wait
3 s for a reply that may need two of them."""
_LOOK_MS = 1_000
"""Least time between two requests for all brokers because of an unknown name, in ms."""
_OWN_ID = "reput-proxy"
_FIRST_WITH_REFUSALS = 392
"""Version of 4.9.0-SNAPSHOT (``codes.version_desc``): brokers from it on refuse an unknown request.

reput's brokers say that they are 4.9.7.
"""
_TYPE = "message.type"
_TYPE_DEFAULT = "NORMAL"
_ANY_TYPE = "MIXED"
_TYPES = {*(kind.name for kind in MessageType), _ANY_TYPE}


class Cluster:
    """Brokers, topics and groups of some name servers.

    Args:
        name_servers: Their addresses.
        remoting: Connections for requests of the proxy itself.
        clock: The clock.
    """

    def __init__(self, name_servers: Sequence[str], remoting: RemotingClient, clock: Clock) -> None:
        self._name_servers = name_servers
        self._remoting = remoting
        self._clock = clock
        self._turn = 0
        self._silent: dict[str, int] = {}
        """Addresses of brokers that do not reply to new requests -> when, in monotonic ms."""
        self._brokers: dict[str, tuple[BrokerData, int]] = {}
        """Broker name -> addresses, and the monotonic time in ms at which they were seen."""
        self._looked_ms = -_LOOK_MS
        self._looking: asyncio.Task[None] | None = None
        self.name_server_failure = ""
        """Why the latest request to the name servers failed; empty if it did not."""
        self.topics = AgingCache(
            self._load_topic,
            clock,
            fresh_ms=FRESH_MS,
            kept_ms=KEPT_MS,
            count_max=limits.PROXY_KNOWN,
        )
        self.groups = AgingCache(
            self._load_group,
            clock,
            fresh_ms=FRESH_MS,
            kept_ms=KEPT_MS,
            count_max=limits.PROXY_KNOWN,
        )

    async def close(self) -> None:
        """Cancel the running loads."""
        await self.topics.close()
        await self.groups.close()
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.gather(self._looking, return_exceptions=True)

    # Brokers ----------------------------------------------------------------------------------

    @property
    def broker_names(self) -> list[str]:
        """The names of the brokers that were seen lately."""
        now_ms = self._clock.monotonic_ms()
        return [name for name, (_, seen) in self._brokers.items() if now_ms - seen <= KEPT_MS]

    async def address(self, broker_name: str) -> str | None:
        """Return the address of a broker's master, or of what acts for it; None if unknown.

        Raises:
            RemotingError: No name server replied.
        """
        known = self._brokers.get(broker_name)
        if known is None or self._clock.monotonic_ms() - known[1] > KEPT_MS:
            await self.look()
            known = self._brokers.get(broker_name)
        return None if known is None else _address(known[0])

    async def look(self) -> None:
        """Request all brokers from a name server, unless that was done just now.

        Raises:
            RemotingError: No name server replied.
        """
        task = self.look_soon()
        if task is not None:
            await asyncio.shield(task)

    def look_soon(self) -> "asyncio.Task[None] | None":
        """Begin to ask a name server for all brokers; None if it was asked just now."""
        now_ms = self._clock.monotonic_ms()
        if self._looking is None or self._looking.done():
            if now_ms - self._looked_ms < _LOOK_MS:
                return None
            self._looked_ms = now_ms
            self._looking = asyncio.ensure_future(self._look())
            self._looking.add_done_callback(_retrieve)
        return self._looking

    async def _look(self) -> None:
        reply = await self._ask_name_server(requests.make(RequestCode.GET_BROKER_CLUSTER_INFO))
        info = bodies.decode(ClusterInfo, reply.body)
        self._learn(info.broker_addr_table.values())
        limit_ms = self._clock.monotonic_ms() - KEPT_MS
        self._silent = {address: seen for address, seen in self._silent.items() if seen >= limit_ms}
        self._brokers = {
            name: (data, seen) for name, (data, seen) in self._brokers.items() if seen >= limit_ms
        }

    def _learn(self, brokers: Iterable[BrokerData]) -> None:
        now_ms = self._clock.monotonic_ms()
        for data in brokers:
            if data.broker_addrs:
                self._brokers[data.broker_name] = data, now_ms

    # Requests ---------------------------------------------------------------------------------

    async def _ask_name_server(self, request: Command) -> Command:
        """Return the reply of the first name server that replies. Raises ``RemotingError``."""
        failure: RemotingError | None = None
        for _ in self._name_servers:
            address = self._name_servers[self._turn % len(self._name_servers)]
            try:
                reply = await self._ask(address, request)
            except RemotingError as error:
                self._turn += 1
                self.name_server_failure = str(error)
                failure = error
                continue
            self.name_server_failure = ""
            if reply.code not in (ResponseCode.SUCCESS, ResponseCode.TOPIC_NOT_EXIST):
                raise broker_error(reply.code, reply.remark, address)
            return reply
        assert failure is not None
        raise failure

    async def ask_any(self, request: Command) -> Command:
        """Return the reply of the first broker that replies, whatever its code.

        Raises:
            RemotingError: None does.
        """
        if not self.broker_names:
            await self.look()
        failure = RemotingError("no broker is registered at the name servers")
        for name in self.broker_names:
            try:
                return await self._ask(_address(self._brokers[name][0]), request)
            except RemotingError as error:
                failure = error
        raise failure

    async def _ask(self, address: str, request: Command) -> Command:
        """Return a reply, whatever its code. Raises ``RemotingError``, soon."""
        try:
            async with asyncio.timeout(ASK_MS / 1000):
                return await self._remoting.invoke(address, request, ASK_MS)
        except TimeoutError as error:
            raise RequestTimedOut(address, request.code, ASK_MS) from error

    async def _ask_new(self, address: str, code: RequestCode, header: headers.Header) -> Command:
        """Return the reply to a request that brokers before 5.0 do not have.

        Raises:
            _Unsupported: The broker is older. Before 4.9 it does not reply to such a request.
            RemotingError: No reply arrived.
        """
        seen_ms = self._silent.get(address)
        if seen_ms is not None and self._clock.monotonic_ms() - seen_ms < KEPT_MS:
            raise _Unsupported(address)
        try:
            reply = await self._ask(address, requests.make(code, header))
        except RequestTimedOut:
            empty = HeartbeatData(client_id=_OWN_ID, consumer_data_set=[], producer_data_set=[])
            other = await self._ask(address, requests.heartbeat(bodies.encode(empty)))
            if other.version >= _FIRST_WITH_REFUSALS:
                raise
            self._silent[address] = self._clock.monotonic_ms()
            raise _Unsupported(address) from None
        self._silent.pop(address, None)
        if reply.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            raise _Unsupported(address)
        return reply

    # Topics -----------------------------------------------------------------------------------

    async def _load_topic(self, name: str) -> TopicFacts | None:
        reply = await self._ask_name_server(requests.route(name))
        if reply.code == ResponseCode.TOPIC_NOT_EXIST:
            return None
        route = bodies.decode(TopicRouteData, reply.body)
        self._learn(route.broker_datas)
        brokers = {data.broker_name: data for data in route.broker_datas if data.broker_addrs}
        queues = sorted(
            (queue for queue in route.queue_datas if queue.broker_name in brokers),
            key=lambda queue: queue.broker_name,
        )
        if not queues:
            return None
        types = await asyncio.gather(
            *(self._type(name, brokers[queue.broker_name]) for queue in queues),
            return_exceptions=True,
        )
        answers = [answer for answer in types if not isinstance(answer, BaseException)]
        if not answers:
            raise next(answer for answer in types if isinstance(answer, BaseException))
        return TopicFacts(
            name,
            next((kind for kind in answers if kind is not None), _ANY_TYPE),
            tuple(
                BrokerQueues(
                    queue.broker_name,
                    queue.read_queue_nums,
                    queue.write_queue_nums,
                    queue.perm
                    if MASTER_ID in brokers[queue.broker_name].broker_addrs
                    else queue.perm & ~PERM_WRITE,
                    has_timers=kind is not None,
                )
                for queue, kind in zip(queues, types, strict=True)
            ),
        )

    async def _type(self, name: str, broker: BrokerData) -> str | None:
        """Return the type of a topic at a broker; None if it has no types, before 5.0.

        Raises:
            ReputError: It did not answer.
        """
        address = _address(broker)
        header = headers.TopicHeader(topic=name)
        try:
            reply = await self._ask_new(address, RequestCode.GET_TOPIC_CONFIG, header)
        except _Unsupported:
            return None
        if reply.code != ResponseCode.SUCCESS:
            raise broker_error(reply.code, reply.remark, address)
        facts = bodies.decode(bodies.TopicConfigData, reply.body)
        kind = (facts.attributes or {}).get(_TYPE, _TYPE_DEFAULT)
        return kind if kind in _TYPES else _TYPE_DEFAULT

    # Groups -----------------------------------------------------------------------------------

    async def _load_group(self, name: str) -> GroupFacts | None:
        """Ask each broker in turn, until one has the group.

        Raises:
            StatusError: All that answered are older than 5.0: they serve no 5.x consumers.
            ReputError: None answered.
        """
        if not self.broker_names:
            await self.look()
        failure: ReputError | None = None
        old_broker = ""
        without: list[str] = []
        for broker_name in self.broker_names:
            address = _address(self._brokers[broker_name][0])
            try:
                group = await self._group_at(address, name)
            except _Unsupported:
                old_broker = broker_name
            except ReputError as error:
                failure = error
            else:
                if group is not None:
                    return group
                without.append(address)
        if without:
            return await self._created_group(without[0], name)
        if failure is not None:
            raise failure
        if old_broker:
            raise StatusError(
                Code.NOT_IMPLEMENTED,
                f"consumers need brokers of RocketMQ 5.0 or later: {old_broker} has no pop",
            )
        raise RemotingError("no broker is registered at the name servers")

    async def _group_at(self, address: str, name: str) -> GroupFacts | None:
        """Return a group as a broker has it; None if it has none."""
        header = headers.GroupHeader(group=name)
        reply = await self._ask_new(address, RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, header)
        if reply.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST:
            return None
        if reply.code != ResponseCode.SUCCESS:
            raise broker_error(reply.code, reply.remark, address)
        config = bodies.decode(SubscriptionGroupConfig, reply.body)
        attributes = config.attributes or {}
        return GroupFacts(
            config.group_name,
            config.consume_message_orderly,
            config.retry_max_times,
            config.group_retry_policy,
            attributes.get(BIND_TOPIC, ""),
            quota_of(attributes),
        )

    async def _created_group(self, address: str, name: str) -> GroupFacts | None:
        """Return a group that a broker creates for its first member; None if it does not.

        A broker of RocketMQ creates it when asked for it; one of reput when a member comes.
        """
        member = ConsumerData(
            consume_from_where="CONSUME_FROM_LAST_OFFSET",
            consume_type="CONSUME_PASSIVELY",
            group_name=name,
            message_model="CLUSTERING",
            subscription_data_set=[],
        )
        data = HeartbeatData(client_id=_OWN_ID, consumer_data_set=[member], producer_data_set=[])
        reply = await self._ask(address, requests.heartbeat(bodies.encode(data)))
        if reply.code != ResponseCode.SUCCESS:
            raise broker_error(reply.code, reply.remark, address)
        await self._ask(address, requests.unregister_client(_OWN_ID, consumer_group=name))
        return await self._group_at(address, name)


class _Unsupported(Exception):
    """A broker is older than 5.0."""


def _address(broker: BrokerData) -> str:
    """Return the address of the master, or of the slave that acts for it: the least id."""
    return broker.broker_addrs[min(broker.broker_addrs)]


def _retrieve(task: "asyncio.Task[None]") -> None:
    """Take the error of a task whose callers may be cancelled."""
    if not task.cancelled():
        task.exception()
