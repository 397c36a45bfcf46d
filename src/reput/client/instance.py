"""What a process's producers and consumers share: connections, routes, heartbeats, client id.

    instance = await ClientInstance.join(config, member)
    route = await instance.route("Orders")
    reply = await instance.ask(route.master("broker-a"), request)
    await instance.leave(member)

Clients of one event loop, name server list and instance name share an instance, and with it one
connection per broker. A second member of the same kind and group gets its own instance, since
brokers identify the members of a group by client id. The last member to leave closes the instance.

Requests of servers are routed to their member here: by group, or by their message.
"""

import asyncio
import contextlib
import enum
import itertools
import logging
import os
import random
import warnings
import weakref
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Iterable
from typing import Protocol

from reput.client.config import DEFAULT_INSTANCE_NAME, ClientConfig, name_servers
from reput.client.connection_events import ConnectionChange, ConnectionEvent, PeerKind
from reput.client.core import requests
from reput.client.core.route_cache import (
    NoRoute,
    RouteCache,
    TopicRoute,
    default_route,
    no_publish_queues,
    topic_route,
)
from reput.client.outages import ROUTES, Outages
from reput.clock import Clock, SystemClock
from reput.errors import (
    BrokerError,
    CorruptRecord,
    InvalidBody,
    InvalidOption,
    RemotingError,
    ReputError,
    broker_error,
)
from reput.format import bodies, command, message as records, properties as props
from reput.format.bodies import ConsumerData, HeartbeatData, ProducerData
from reput.format.codes import MASTER_ID, RequestCode, ResponseCode
from reput.format.command import Command
from reput.remoting.client import RemotingClient

log = logging.getLogger(__name__)

KNOWN_ADDRESSES_MAX = 1_000
"""Number of addresses for which a new connection counts as a reconnection."""
UNKNOWN_ADDRESS = "127.0.0.1"
"""Address in a client id on machines without a route to the name servers."""


class NotStarted(ReputError):
    """Error of a client that is used before its start or after its end.

    Args:
        what: ``producer``, ``consumer``, ...
    """

    def __init__(self, what: str) -> None:
        super().__init__(f"this {what} is not started, or closed already; `with` does both")


class StartedElsewhere(ReputError):
    """Error of a client that is used in another process or event loop than it was started in.

    Its connections and tasks belong to that one: after a fork, or in a second ``asyncio.run``,
    start another client.

    Args:
        what: ``producer``, ``consumer``, ...
        started_in: Place in which it was started.
        used_in: Place in which it is used.
    """

    def __init__(self, what: str, started_in: str, used_in: str) -> None:
        super().__init__(
            f"this {what} was started in {started_in} and is used in {used_in};"
            " start a client in each process and event loop"
        )


class NotReady(ReputError):
    """Error of a client that is not ready in time.

    Args:
        what: ``producer`` or ``consumer``.
        group: Its group.
        timeout_ms: Timeout in ms.
        reason: The cause, if it is known.
    """

    retriable = True

    def __init__(self, what: str, group: str, timeout_ms: int, reason: str) -> None:
        super().__init__(f"{what} {group} is not ready after {timeout_ms} ms: {reason}")


Answer = Command | None | Awaitable[Command | None]


class MemberKind(enum.Enum):
    """Kind of a member of an instance."""

    PRODUCER = "producer"
    CONSUMER = "consumer"
    ADMIN = "admin"
    """Member without heartbeats and requests."""


class InstanceMember(Protocol):
    """A producer or consumer, as seen by its instance."""

    @property
    def _kind(self) -> MemberKind:
        """Kind of the member."""

    @property
    def group(self) -> str:
        """Group of the member; unique per kind within its instance."""

    def _heartbeat_part(self) -> ConsumerData | ProducerData | None:
        """Return the member's part of a heartbeat."""

    def _topics(self) -> Collection[str]:
        """Return the topics whose routes are refreshed."""

    def _on_members_changed(self) -> None:
        """Handle a change of its consumer group's members (code 40)."""

    def _on_route_changed(self, route: TopicRoute) -> None:
        """Handle a changed route of any topic."""

    def _on_request(self, address: str, request: Command) -> Answer:
        """Answer a request of a server: 39, 220, 221, 307, 309, 326.

        None: no reply. For 326 this means that the reply belongs to another producer.
        """

    def _on_connection(self, event: ConnectionEvent) -> None:
        """Handle a connection that was opened or closed."""


class Guest:
    """A member that only sends requests and is unknown to brokers."""

    _kind = MemberKind.ADMIN

    def __init__(self) -> None:
        self.group = f"guest {next(_serial)}"

    def _heartbeat_part(self) -> None:
        """Return nothing."""

    def _topics(self) -> Collection[str]:
        """Return nothing: each request for a route fetches it."""
        return ()

    def _on_members_changed(self) -> None:
        """Do nothing."""

    def _on_route_changed(self, route: TopicRoute) -> None:
        """Do nothing."""

    def _on_request(self, address: str, request: Command) -> Answer:
        """Return None."""
        return None

    def _on_connection(self, event: ConnectionEvent) -> None:
        """Do nothing."""


class ConnectionCounts:
    """Connections that an instance has opened since its start, by kind of server."""

    def __init__(self) -> None:
        self.opened = dict.fromkeys(PeerKind, 0)
        self.reopened = dict.fromkeys(PeerKind, 0)
        """Those to an address that had a connection before."""


class ClientInstance:
    """Connections, routes, heartbeats and dispatch of servers' requests; see the module.

    Args:
        config: Name servers and intervals.
        clock: The clock; tests pass their own.
    """

    def __init__(self, config: ClientConfig, *, clock: Clock | None = None) -> None:
        self.config = config
        self.clock = clock or SystemClock()
        self.outages = Outages(self.clock)
        """Limits of log lines."""
        self.client_id = ""
        """Client id, ``ip@pid#nanoseconds`` or ``ip@instance_name``; set by ``start``."""
        self.address = ""
        """Local address of the route to the name servers; set by ``start``."""
        self.name_servers = name_servers(config.namesrv_addr)
        self.remoting = RemotingClient(
            handler=self._on_request,
            tls=config.tls_context(),
            signer=config.signer(),
            fields=config.request_fields(),
            on_connected=self._on_connected,
            on_disconnected=self._on_disconnected,
        )
        self.connection_counts = ConnectionCounts()
        self._known_addresses: dict[str, None] = {}
        """Addresses that have had a connection, the newest last."""
        self._name_server_at = random.randrange(len(self.name_servers))
        self._routes = RouteCache()
        self._fetches: dict[tuple[str, int], asyncio.Task[TopicRoute]] = {}
        self._members: dict[tuple[MemberKind, str], InstanceMember] = {}
        self._leaving_count = 0
        self._broker_versions: dict[str, int] = {}
        self._starting: asyncio.Task[None] | None = None
        self._loops: list[asyncio.Task[None]] = []
        self._heartbeat_lock = asyncio.Lock()
        self._is_heartbeat_due = asyncio.Event()
        self._is_closed = False
        self._end_of_loop = self._watch_end_of_loop()
        self._process_id = os.getpid()
        self._loop = asyncio.get_running_loop()

    # --- coming and going -------------------------------------------------------

    @classmethod
    async def join(
        cls, config: ClientConfig, member: InstanceMember, *, clock: Clock | None = None
    ) -> "ClientInstance":
        """Return the started instance that the member joins.

        Raises:
            InvalidOption: ``instance_name`` was set, and its instance already has such a member.
        """
        # The whole configuration, so that the first client's intervals do not apply to others.
        instances = _instances.setdefault(asyncio.get_running_loop(), {}).setdefault(config, [])
        key = (member._kind, member.group)
        instance = next(
            (candidate for candidate in instances if key not in candidate._members), None
        )
        if instance is None:
            if instances and config.instance_name != DEFAULT_INSTANCE_NAME:
                raise InvalidOption(
                    "instanceName",
                    config.instance_name,
                    f"another name: {member._kind.value} group {member.group!r} is in it already",
                )
            instance = cls(config, clock=clock)
            instances.append(instance)
        instance.add_member(member)
        try:
            await instance.start()
        except BaseException:
            await instance.leave(member)
            raise
        return instance

    async def leave(self, member: InstanceMember) -> None:
        """Remove a member, inform the brokers, and close the instance after the last one."""
        if self._members.keys() == {(member._kind, member.group)}:
            self._withdraw()  # No client may join an instance that is about to close.
        self._leaving_count += 1
        try:
            await self.remove_member(member)
        finally:
            self._leaving_count -= 1
            if not self._members and not self._leaving_count:
                await self.close()

    def add_member(self, member: InstanceMember) -> None:
        """Add a member; the next heartbeat, due at once, informs the brokers."""
        self._members[member._kind, member.group] = member
        for address in self.remoting.open_addresses():
            event = ConnectionEvent(ConnectionChange.CONNECTED, self._peer_kind(address), address)
            member._on_connection(event)
        self._is_heartbeat_due.set()

    async def remove_member(self, member: InstanceMember) -> None:
        """Remove a member and inform all brokers; those not reached drop it by timeout."""
        if self._members.pop((member._kind, member.group), None) is None:
            return
        if member._kind is MemberKind.ADMIN:
            return
        groups = {f"{member._kind.value}_group": member.group}
        # A heartbeat in flight still has the member; it must not arrive after this request.
        async with self._heartbeat_lock:
            pass
        await self._send_to_all(
            self._heartbeat_addresses(is_for_consumers=True),
            lambda: requests.unregister_client(self.client_id, **groups),
            "unregister",
        )

    async def start(self) -> None:
        """Determine the client id, start polling and heartbeats; a second call does nothing."""
        if self._starting is None:
            self._starting = asyncio.create_task(self._start())
        await asyncio.shield(self._starting)

    def check_caller(self, what: str) -> None:
        """Check that a client is used where it was started; ``what`` is its name in errors.

        Raises:
            StartedElsewhere: This is another process or event loop.
        """
        process_id = os.getpid()
        if process_id != self._process_id:
            raise StartedElsewhere(what, f"process {self._process_id}", f"process {process_id}")
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            return  # a thread without a loop waits for no call: it reads a property
        if loop is not self._loop:
            raise StartedElsewhere(what, "one event loop", "another one")

    async def close(self) -> None:
        """Stop all tasks; pending requests fail."""
        if self._is_closed:
            return
        self._is_closed = True
        self._withdraw()
        tasks = [*self._loops, *self._fetches.values()]
        if self._starting is not None:
            tasks.append(self._starting)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.remoting.close()
        await self._end_of_loop.aclose()

    async def _watch_end_of_loop(self) -> AsyncGenerator[None]:
        """Warn of members that are not closed when the event loop ends.

        ``asyncio.run`` cancels all tasks, which may close their clients then, and after that closes
        the generators of its loop.
        """
        try:
            yield
        finally:
            for member in [] if self._is_closed else list(self._members.values()):
                text = f"{client_name(member, member)} was not closed; `async with` closes it"
                warnings.warn(text, ResourceWarning, stacklevel=1, source=member)

    async def _start(self) -> None:
        self.address = self.config.client_ip or await _local_address(self.name_servers)
        name = self.config.instance_name
        if name == DEFAULT_INSTANCE_NAME:
            nanoseconds = self.clock.monotonic_ms() * 1_000_000 + next(_serial)
            name = f"{os.getpid()}#{nanoseconds}"
        await anext(self._end_of_loop)
        unit = f"@{self.config.unit_name}" if self.config.unit_name else ""
        self.client_id = f"{self.address}@{name}{unit}"
        self._loops = [
            asyncio.create_task(self._poll_routes(), name="reput client: routes"),
            asyncio.create_task(self._beat(), name="reput client: heartbeats"),
        ]

    def _withdraw(self) -> None:
        for instances in _instances.get(asyncio.get_running_loop(), {}).values():
            if self in instances:
                instances.remove(self)

    # --- connections ------------------------------------------------------------

    def open_connections(self) -> dict[PeerKind, int]:
        """Return the number of open connections; may be called in any thread."""
        counts = dict.fromkeys(PeerKind, 0)
        for address in self.remoting.open_addresses():
            counts[self._peer_kind(address)] += 1
        return counts

    @property
    def is_connected(self) -> bool:
        """True while a connection to a broker is open."""
        return self.open_connections()[PeerKind.BROKER] > 0

    def _peer_kind(self, address: str) -> PeerKind:
        return PeerKind.NAME_SERVER if address in self.name_servers else PeerKind.BROKER

    def _on_connected(self, address: str) -> None:
        kind, counts = self._peer_kind(address), self.connection_counts
        counts.opened[kind] += 1
        change = ConnectionChange.CONNECTED
        if address in self._known_addresses:
            del self._known_addresses[address]
            counts.reopened[kind] += 1
            change = ConnectionChange.RECONNECTED
        elif len(self._known_addresses) >= KNOWN_ADDRESSES_MAX:
            del self._known_addresses[next(iter(self._known_addresses))]
        self._known_addresses[address] = None
        self._report(ConnectionEvent(change, kind, address))

    def _on_disconnected(self, address: str, reason: str) -> None:
        kind = self._peer_kind(address)
        self._report(ConnectionEvent(ConnectionChange.DISCONNECTED, kind, address, reason))

    def _report(self, event: ConnectionEvent) -> None:
        for member in list(self._members.values()):
            member._on_connection(event)

    # --- asking -----------------------------------------------------------------

    async def ask(self, address: str, request: Command, timeout_ms: int | None = None) -> Command:
        """Send a request to a broker and return its successful reply.

        Raises:
            BrokerError: The reply has another code than SUCCESS.
            RemotingError: No reply arrived.
        """
        timeout_ms = timeout_ms or self.config.request_timeout_ms
        reply = await self.remoting.invoke(address, request, timeout_ms)
        if reply.code != ResponseCode.SUCCESS:
            raise broker_error(reply.code, reply.remark, address)
        return reply

    async def ask_name_server(self, request: Command, timeout_ms: int | None = None) -> Command:
        """Return the reply, with any code, of the first name server that replies.

        Raises:
            RemotingError: No name server replied; the error is that of the last one.
        """
        timeout_ms = timeout_ms or self.config.request_timeout_ms
        for attempt in range(len(self.name_servers)):
            index = self._name_server_at
            address = self.name_servers[index]
            try:
                return await self.remoting.invoke(address, request, timeout_ms)
            except RemotingError as error:
                if attempt == len(self.name_servers) - 1:
                    raise
                self.outages.warn(log, error, "name server %s", address)
                if self._name_server_at == index:  # no other task has moved on meanwhile
                    self._name_server_at = (index + 1) % len(self.name_servers)
        raise AssertionError("there is at least one name server")

    # --- routes -----------------------------------------------------------------

    def known_route(self, topic: str) -> TopicRoute | None:
        """Return the cached route of a topic."""
        return self._routes.get(topic)

    async def route(self, topic: str, *, refresh: bool = False) -> TopicRoute:
        """Return the route of a topic, from the cache if possible.

        Args:
            topic: Its full name.
            refresh: Fetch the route even if it is cached. Concurrent callers share one request.

        Raises:
            NoRoute: No name server has the topic.
            RemotingError: No name server replied.
        """
        known = self._routes.get(topic)
        if known is not None and not known.is_default and not refresh:
            return known
        return await self._fetch(topic)

    async def publish_route(
        self, topic: str, template_topic: str, queue_count_max: int, *, refresh: bool = False
    ) -> TopicRoute:
        """Return a route for sends, also for a topic that the first message will create.

        Args:
            topic: Its full name.
            template_topic: Topic whose route is used while the topic does not exist (``TBW102``).
            queue_count_max: Number of queues that the producer requests for a new topic.
            refresh: As in ``route``.

        Raises:
            NoRoute: Neither of them has a route.
            RemotingError: No name server replied.
        """
        known = self._routes.get(topic)
        if known is not None and known.publish_queues and not refresh:
            return known
        try:
            route = await self._fetch(topic)
        except NoRoute as error:
            try:
                template = await self._fetch(template_topic)
            except NoRoute:
                raise error from None
            route = default_route(topic, template, queue_count_max)
            self._learn(route)
        if not route.publish_queues:
            raise no_publish_queues(route)
        return route

    async def _fetch(self, topic: str) -> TopicRoute:
        # Cancelling one caller must not cancel the request of the others.
        key = (topic, self._name_server_at)
        task = self._fetches.get(key)
        if task is None:
            task = self._fetches[key] = asyncio.create_task(self._fetch_alone(topic))
            task.add_done_callback(lambda _: self._fetches.pop(key, None))
            task.add_done_callback(_retrieve)
        return await asyncio.shield(task)

    def name_server_error(self, reply: Command) -> BrokerError:
        """Return the error of a name server's reply whose code is not success."""
        remark = reply.remark
        if reply.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            remark = f"{remark}; it may be a broker: name servers listen at port 9876 by default"
        return broker_error(reply.code, remark, self.name_servers[self._name_server_at])

    async def _fetch_alone(self, topic: str) -> TopicRoute:
        reply = await self.ask_name_server(requests.route(topic))
        if reply.code == ResponseCode.TOPIC_NOT_EXIST:
            servers = ", ".join(self.name_servers)
            raise NoRoute(topic, f"no name server knows it ({servers})")
        if reply.code != ResponseCode.SUCCESS:
            raise self.name_server_error(reply)
        route = topic_route(topic, bodies.decode(bodies.TopicRouteData, reply.body))
        self._learn(route)
        return route

    def _learn(self, route: TopicRoute) -> None:
        before = self._heartbeat_addresses()
        if not self._routes.put(route):
            return
        if not self._heartbeat_addresses() <= before:
            self._is_heartbeat_due.set()
        for member in list(self._members.values()):
            member._on_route_changed(route)

    async def _poll_routes(self) -> None:
        while True:
            await asyncio.sleep(self.config.poll_name_server_ms / 1000)
            in_use = {topic for member in self._members.values() for topic in member._topics()}
            self._routes.forget_all_but(in_use)
            for topic in sorted(in_use):
                try:
                    await self._fetch(topic)
                except NoRoute as error:
                    # All of its brokers may be down for a moment: keep the known route.
                    log.info("%s", error)
                except (RemotingError, InvalidBody) as error:
                    text = "route of topic %s"
                    self.outages.warn(log, error, text, topic, kind=ROUTES)
                except Exception:
                    log.exception("route of topic %s", topic)

    # --- heartbeats -------------------------------------------------------------

    def broker_version(self, address: str) -> int:
        """Return the broker's version from its reply to a heartbeat; 0 before the first."""
        return self._broker_versions.get(address, 0)

    async def heartbeat(self) -> None:
        """Send a heartbeat to all known brokers; failures are logged."""
        async with self._heartbeat_lock:
            parts = [member._heartbeat_part() for member in self._members.values()]
            consumers = [part for part in parts if isinstance(part, ConsumerData)]
            producers = [part for part in parts if isinstance(part, ProducerData)]
            if not consumers and not producers:
                return
            body = bodies.encode(
                HeartbeatData(
                    client_id=self.client_id,
                    consumer_data_set=consumers,
                    producer_data_set=producers,
                )
            )
            await self._send_to_all(
                self._heartbeat_addresses(), lambda: requests.heartbeat(body), "heartbeat"
            )

    def _heartbeat_addresses(self, *, is_for_consumers: bool | None = None) -> set[str]:
        """Return the addresses of masters; with consumers, also of slaves, which they may read."""
        if is_for_consumers is None:
            is_for_consumers = any(kind is MemberKind.CONSUMER for kind, _ in self._members)
        return {
            address
            for addresses in self._routes.brokers().values()
            for broker_id, address in addresses.items()
            if is_for_consumers or broker_id == MASTER_ID
        }

    async def _send_to_all(
        self, addresses: Iterable[str], request: Callable[[], Command], what: str
    ) -> None:
        async def send(address: str) -> None:
            try:
                reply = await self.ask(address, request())
            except RemotingError as error:
                self.outages.warn(log, error, "%s to %s", what, address)
            else:
                self._broker_versions[address] = reply.version

        await asyncio.gather(*map(send, sorted(addresses)))

    async def _beat(self) -> None:
        while True:
            self._is_heartbeat_due.clear()
            try:
                await self.heartbeat()
            except Exception:
                log.exception("heartbeat")
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self.config.heartbeat_ms / 1000):
                    await self._is_heartbeat_due.wait()

    # --- requests of servers ----------------------------------------------------

    def _on_request(self, address: str, request: Command) -> Answer:
        route = _TO_MEMBERS.get(request.code)
        if route is None:
            remark = f"request code {request.code} is not supported by clients"
            return command.reply(request, ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark)
        kind, group_of = route
        fields = request.ext_fields or {}
        group = group_of(fields, request.body)
        if request.code == RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT:
            return self._push_reply(address, request)
        member = self._members.get((kind, group))
        if member is None:
            remark = f"{kind.value} group {group!r} is not in client {self.client_id}"
            return command.reply(request, ResponseCode.SYSTEM_ERROR, remark)
        if request.code == RequestCode.NOTIFY_CONSUMER_IDS_CHANGED:
            member._on_members_changed()
            return None
        return member._on_request(address, request)

    def _push_reply(self, address: str, request: Command) -> Answer:
        """Offer a reply message to each producer: only its correlation id identifies the owner."""
        for member in list(self._members.values()):
            if member._kind is MemberKind.PRODUCER:
                answer = member._on_request(address, request)
                if answer is not None:
                    return answer
        return command.reply(request)  # A late reply is not the broker's concern.


def _field(name: str) -> Callable[[dict[str, str], bytes], str]:
    return lambda fields, _: fields.get(name, "")


def _producer_group(_: dict[str, str], body: bytes) -> str:
    """Return the producer group of a checked half message."""
    try:
        return records.decode(body).properties.get(props.PRODUCER_GROUP, "")
    except CorruptRecord as error:
        log.warning("check of a transaction with a damaged message: %s", error)
        return ""


_TO_MEMBERS: dict[int, tuple[MemberKind, Callable[[dict[str, str], bytes], str]]] = {
    RequestCode.CHECK_TRANSACTION_STATE: (MemberKind.PRODUCER, _producer_group),
    RequestCode.NOTIFY_CONSUMER_IDS_CHANGED: (MemberKind.CONSUMER, _field("consumerGroup")),
    RequestCode.RESET_CONSUMER_CLIENT_OFFSET: (MemberKind.CONSUMER, _field("group")),
    RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT: (MemberKind.CONSUMER, _field("group")),
    RequestCode.GET_CONSUMER_RUNNING_INFO: (MemberKind.CONSUMER, _field("consumerGroup")),
    RequestCode.CONSUME_MESSAGE_DIRECTLY: (MemberKind.CONSUMER, _field("consumerGroup")),
    RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT: (MemberKind.PRODUCER, _field("producerGroup")),
}

_instances: weakref.WeakKeyDictionary[
    asyncio.AbstractEventLoop, dict[ClientConfig, list[ClientInstance]]
] = weakref.WeakKeyDictionary()
"""Open instances, by loop and configuration."""
_serial = itertools.count()


def client_name(client: object, member: object) -> str:
    """Return the name of a client for warnings, with its group, if any."""
    if isinstance(member, Guest):
        return "Admin"
    group = getattr(member, "group", None)
    name = type(client).__name__
    return name if group is None else f"{name} of group {group!r}"


def _retrieve(task: asyncio.Task[TopicRoute]) -> None:
    """Retrieve a task's exception, to avoid a warning if no caller waits for it."""
    if not task.cancelled():
        task.exception()


async def _local_address(servers: Collection[str]) -> str:
    """Return the local address that reaches the name servers. Sends nothing."""
    loop = asyncio.get_running_loop()
    for server in servers:
        host, _, port = server.rpartition(":")
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(3):
                transport, _ = await loop.create_datagram_endpoint(
                    asyncio.DatagramProtocol, remote_addr=(host.strip("[]"), int(port))
                )
            address: str = transport.get_extra_info("sockname")[0]
            transport.close()
            return address.partition("%")[0]
    return UNKNOWN_ADDRESS
