"""Requests to a broker, to a queue's broker, to all masters of a cluster, to all name servers.

Queries go to each broker of a cluster and their results are merged; changes go to each broker, even
if some of them fail.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Self

from reput.client.config import ClientConfig
from reput.client.core import requests
from reput.client.core.key_search import KeyPage, KeyQuery
from reput.client.core.route_cache import NoRoute, TopicRoute
from reput.client.instance import ClientInstance, Guest, NotStarted
from reput.client.with_statement import AsyncWithOnly
from reput.clock import Clock
from reput.errors import BrokerError, InvalidOption, RemotingError, ReputError
from reput.format import bodies, names
from reput.format.bodies import ClusterInfo, MessageQueue
from reput.format.codes import MASTER_ID, RequestCode, ResponseCode
from reput.format.command import Command


class PartlyDone(ReputError):
    """A change that some brokers or name servers did not make.

    Args:
        done: Addresses of servers that made it.
        failed: Address to error of the others.
    """

    def __init__(self, done: Collection[str], failed: Mapping[str, RemotingError]) -> None:
        self.done = list(done)
        self.failed = dict(failed)
        self.retriable = all(error.retriable for error in failed.values())
        reasons = "; ".join(f"{address}: {error}" for address, error in failed.items())
        super().__init__(f"not done everywhere: {reasons} (done at: {', '.join(done) or 'none'})")


class ClusterCalls:
    """Calls to the clusters of some name servers, between ``start`` and ``close``.

    All methods raise ``RemotingError`` if no answer arrives, and its subclass ``BrokerError``, with
    code and text, if the server refuses.

    Args:
        client_config: Settings of the client, with the timeout of requests.
        clock: The clock; tests pass their own.
    """

    def __init__(self, client_config: ClientConfig, clock: Clock | None) -> None:
        self._client_config = client_config
        self._clock = clock
        self._instance: ClientInstance | None = None
        self._guest = Guest()

    async def start(self) -> None:
        """Start; sends no requests."""
        if self._instance is not None:
            self._instance.check_caller("admin client")
        else:
            self._instance = await ClientInstance.join(
                self._client_config, self._guest, clock=self._clock
            )

    async def close(self) -> None:
        """Close; pending requests fail."""
        if self._instance is not None:
            self._instance.check_caller("admin client")
        instance, self._instance = self._instance, None
        if instance is not None:
            await instance.leave(self._guest)

    @property
    def instance(self) -> ClientInstance:
        """Return the process's client instance. Raises ``NotStarted``."""
        if self._instance is None:
            raise NotStarted("admin client")
        self._instance.check_caller("admin client")
        return self._instance

    async def ask(self, address: str, request: Command) -> Command:
        """Send a request to an address."""
        return await self.instance.ask(address, request)

    async def clusters(self) -> ClusterInfo:
        """Return clusters with their brokers, and brokers with their addresses."""
        reply = await self.ask_name_server(requests.make(RequestCode.GET_BROKER_CLUSTER_INFO))
        return bodies.decode(ClusterInfo, reply.body)

    async def route(self, topic: str) -> TopicRoute:
        """Return the current route of a topic. Raises ``NoRoute``."""
        return await self.instance.route(topic, refresh=True)

    async def ask_name_server(self, request: Command) -> Command:
        """Send a request to one name server."""
        reply = await self.instance.ask_name_server(request)
        if reply.code != ResponseCode.SUCCESS:
            raise self.instance.name_server_error(reply)
        return reply

    async def ask_broker(self, broker: str, request: Command) -> Command:
        """Send a request to a broker, given by name or address."""
        return await self.ask(await self.address(broker), request)

    async def ask_queue(self, queue: MessageQueue, request: Command) -> Command:
        """Send a request to a queue's master, or to a slave if no master is registered."""
        route = await self.instance.route(queue.topic)
        if queue.broker_name not in route.brokers:
            route = await self.route(queue.topic)
        return await self.ask(route.any_address(queue.broker_name), request)

    async def ask_index(
        self, address: str, query: KeyQuery, timeout_ms: int | None = None
    ) -> KeyPage:
        """Query the index of the broker at an address. Raises as ``KeyQuery.page`` does."""
        instance = self.instance
        timeout_ms = timeout_ms or instance.config.request_timeout_ms
        reply = await instance.remoting.invoke(address, query.request(), timeout_ms)
        return query.page(reply, address)

    async def ask_all(
        self,
        addresses: Iterable[str],
        request: Callable[[], Command],
        *,
        absent: int | None = None,
    ) -> list[Command]:
        """Send a request to several brokers; omit replies with code ``absent``."""
        replies = []
        for address in addresses:
            try:
                replies.append(await self.ask(address, request()))
            except BrokerError as error:
                if error.response_code != absent:
                    raise
        return replies

    async def ask_any_of(self, addresses: Iterable[str], request: Callable[[], Command]) -> Command:
        """Send a request to brokers one by one until one succeeds. Raises the last error."""
        refusal: BrokerError | None = None
        for address in addresses:
            try:
                return await self.ask(address, request())
            except BrokerError as error:
                refusal = error
        if refusal is None:
            raise InvalidOption("group", None, "one with a broker: none is registered")
        raise refusal

    async def change_brokers(
        self, addresses: Iterable[str], request: Callable[[], Command]
    ) -> list[str]:
        """Send a change to each broker, even if some fail; return their addresses."""
        done: list[str] = []
        failed: dict[str, RemotingError] = {}
        for address in addresses:
            try:
                await self.ask(address, request())
            except RemotingError as error:
                failed[address] = error
            else:
                done.append(address)
        if failed:
            raise PartlyDone(done, failed)
        return done

    async def change_name_servers(self, request: Callable[[], Command]) -> list[Command]:
        """Send a change to each name server, as they do not replicate; return the replies."""
        replies: dict[str, Command] = {}
        failed: dict[str, RemotingError] = {}
        for address in self.instance.name_servers:
            try:
                replies[address] = await self.ask(address, request())
            except RemotingError as error:
                failed[address] = error
        if failed:
            raise PartlyDone(list(replies), failed)
        return list(replies.values())

    async def masters_of_topic(self, topic: str) -> list[str]:
        """Return the masters of a topic; brokers with slaves only are left out."""
        route = await self.route(topic)
        addresses = (route.address(broker_name) for broker_name in sorted(route.brokers))
        return [address for address in addresses if address is not None]

    async def masters_of_group(self, group: str) -> list[str]:
        """Return the masters that know a group; all masters if it has not had a member yet."""
        try:
            return await self.masters_of_topic(names.retry_topic(group))
        except NoRoute:
            return await self.masters(None, None, is_one_cluster=False)

    async def masters(
        self, cluster: str | None, broker: str | None, *, is_one_cluster: bool = True
    ) -> list[str]:
        """Return the addresses of one broker, or of the masters of one, the only, or all clusters.

        Raises:
            InvalidOption: The cluster does not exist, is ambiguous, or both were given.
        """
        if broker is not None:
            if cluster is not None:
                raise InvalidOption("broker", broker, "nothing, where a cluster is given as well")
            return [await self.address(broker)]
        known = await self.clusters()
        clusters = known.cluster_addr_table
        allowed = ", ".join(sorted(clusters)) or "none: no broker is registered"
        if cluster is not None:
            if cluster not in clusters:
                raise InvalidOption("cluster", cluster, allowed)
            chosen = [cluster]
        elif is_one_cluster and len(clusters) != 1:
            raise InvalidOption("cluster", cluster, f"one of {allowed}")
        else:
            chosen = sorted(clusters)
        broker_names = sorted({name for cluster_name in chosen for name in clusters[cluster_name]})
        addresses = (known.broker_addr_table[name].broker_addrs for name in broker_names)
        return [by_id[MASTER_ID] for by_id in addresses if MASTER_ID in by_id]

    async def address(self, broker: str) -> str:
        """Return the address of a broker: of its master, by name, or unchanged."""
        if ":" in broker:
            return broker
        table = (await self.clusters()).broker_addr_table
        address = table[broker].broker_addrs.get(MASTER_ID) if broker in table else None
        if address is None:
            allowed = ", ".join(sorted(table)) or "host:port: no broker is registered"
            raise InvalidOption("broker", broker, allowed)
        return address

    async def name_of(self, address: str) -> str:
        """Return the name of the broker at an address; "" if unknown to name servers."""
        table = (await self.clusters()).broker_addr_table
        matches = (name for name, data in table.items() if address in data.broker_addrs.values())
        return next(matches, "")


class AdminConnection(AsyncWithOnly):
    """Connection of an ``Admin``, whose methods are the functions of this package's modules.

    Args:
        client_config: Settings of the client, with the timeout of requests.
        clock: The clock; tests pass their own.
    """

    def __init__(self, client_config: ClientConfig, clock: Clock | None) -> None:
        self.calls = ClusterCalls(client_config, clock)
        """The calls to clusters; not for users."""

    async def start(self) -> None:
        """Start; sends no requests."""
        await self.calls.start()

    async def close(self) -> None:
        """Close; pending requests fail."""
        await self.calls.close()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
