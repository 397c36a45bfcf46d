"""Whom to ask or tell: a broker, a queue's, all masters of a cluster, all name servers.

What a cluster's brokers know separately is asked of each of them; what all have to be told is told
to each, whatever the others say.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Self

from reput.client.config import ClientConfig
from reput.client.core import requests
from reput.client.core.route_cache import NoRoute, TopicRoute
from reput.client.instance import ClientInstance, Guest, NotStarted
from reput.clock import Clock
from reput.errors import BrokerError, InvalidOption, RemotingError, ReputError
from reput.format import bodies, names
from reput.format.bodies import ClusterInfo, MessageQueue
from reput.format.codes import MASTER_ID, RequestCode, ResponseCode
from reput.format.command import Command


class PartlyDone(ReputError):
    """Something that every broker or name server had to be told was not done by all of them.

    Args:
        done: The addresses where it was done.
        failed: Address -> why not there.
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
        client_config: Name servers, and how long requests may take.
        clock: The system's, unless a test has its own.
    """

    def __init__(self, client_config: ClientConfig, clock: Clock | None) -> None:
        self._client_config = client_config
        self._clock = clock
        self._instance: ClientInstance | None = None
        self._guest = Guest()

    async def start(self) -> None:
        """Begin; nobody is asked anything yet."""
        if self._instance is None:
            self._instance = await ClientInstance.join(
                self._client_config, self._guest, clock=self._clock
            )

    async def close(self) -> None:
        """End; what waits for a reply fails."""
        instance, self._instance = self._instance, None
        if instance is not None:
            await instance.leave(self._guest)

    @property
    def instance(self) -> ClientInstance:
        """What the clients of this process share. Raises ``NotStarted``."""
        if self._instance is None:
            raise NotStarted("admin client")
        return self._instance

    async def ask(self, address: str, request: Command) -> Command:
        """Ask whoever is at an address."""
        return await self.instance.ask(address, request)

    async def clusters(self) -> ClusterInfo:
        """Return clusters with their brokers, and brokers with their addresses."""
        reply = await self.ask_name_server(requests.make(RequestCode.GET_BROKER_CLUSTER_INFO))
        return bodies.decode(ClusterInfo, reply.body)

    async def route(self, topic: str) -> TopicRoute:
        """Return where a topic is, as of now. Raises ``NoRoute``."""
        return await self.instance.route(topic, refresh=True)

    async def ask_name_server(self, request: Command) -> Command:
        """Ask one name server."""
        reply = await self.instance.ask_name_server(request)
        if reply.code != ResponseCode.SUCCESS:
            raise BrokerError(reply.code, reply.remark)
        return reply

    async def ask_broker(self, broker: str, request: Command) -> Command:
        """Ask a broker by its name or address."""
        return await self.ask(await self.address(broker), request)

    async def ask_queue(self, queue: MessageQueue, request: Command) -> Command:
        """Ask the broker of a queue: its master, or a slave if that is gone."""
        route = await self.instance.route(queue.topic)
        if queue.broker_name not in route.brokers:
            route = await self.route(queue.topic)
        return await self.ask(route.any_address(queue.broker_name), request)

    async def ask_all(
        self,
        addresses: Iterable[str],
        request: Callable[[], Command],
        *,
        absent: int | None = None,
    ) -> list[Command]:
        """Ask several brokers; a reply of the code ``absent`` is left out, others are raised."""
        replies = []
        for address in addresses:
            try:
                replies.append(await self.ask(address, request()))
            except BrokerError as error:
                if error.response_code != absent:
                    raise
        return replies

    async def ask_any_of(self, addresses: Iterable[str], request: Callable[[], Command]) -> Command:
        """Ask brokers one by one, until one knows. Raises what the last of them said."""
        refusal: BrokerError | None = None
        for address in addresses:
            try:
                return await self.ask(address, request())
            except BrokerError as error:
                refusal = error
        if refusal is None:
            raise InvalidOption("group", None, "one with a broker: none is registered")
        raise refusal

    async def tell_brokers(
        self, addresses: Iterable[str], request: Callable[[], Command]
    ) -> list[str]:
        """Tell each of some brokers, whatever the others say; returns their addresses."""
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

    async def tell_name_servers(self, request: Callable[[], Command]) -> list[Command]:
        """Tell each name server: they do not tell each other. Returns what each answers."""
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
        """Return the masters of a topic; where only slaves are left, nobody knows more."""
        route = await self.route(topic)
        addresses = (route.address(broker_name) for broker_name in sorted(route.brokers))
        return [address for address in addresses if address is not None]

    async def masters_of_group(self, group: str) -> list[str]:
        """Return the masters that know a group: all, if it has had no member yet."""
        try:
            return await self.masters_of_topic(names.retry_topic(group))
        except NoRoute:
            return await self.masters(None, None, is_one_cluster=False)

    async def masters(
        self, cluster: str | None, broker: str | None, *, is_one_cluster: bool = True
    ) -> list[str]:
        """Return the masters' addresses of a cluster, of the only one or of all, or one broker's.

        Raises:
            InvalidOption: There is no such cluster, or several to choose from, or both were given.
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
        broker_names = sorted({name for one in chosen for name in clusters[one]})
        addresses = (known.broker_addr_table[name].broker_addrs for name in broker_names)
        return [one[MASTER_ID] for one in addresses if MASTER_ID in one]

    async def address(self, broker: str) -> str:
        """Return the address of a broker: of its master, by name, or as it is given."""
        if ":" in broker:
            return broker
        table = (await self.clusters()).broker_addr_table
        address = table[broker].broker_addrs.get(MASTER_ID) if broker in table else None
        if address is None:
            allowed = ", ".join(sorted(table)) or "host:port: no broker is registered"
            raise InvalidOption("broker", broker, allowed)
        return address

    async def name_of(self, address: str) -> str:
        """Return the name of the broker at an address; empty if name servers do not know it."""
        table = (await self.clusters()).broker_addr_table
        found = (name for name, one in table.items() if address in one.broker_addrs.values())
        return next(found, "")


class AdminConnection:
    """Connection of an ``Admin``, whose methods are the functions of this package's modules.

    Args:
        client_config: Name servers, and how long requests may take.
        clock: The system's, unless a test has its own.
    """

    def __init__(self, client_config: ClientConfig, clock: Clock | None) -> None:
        self.calls = ClusterCalls(client_config, clock)
        """The calls to clusters; not for users."""

    async def start(self) -> None:
        """Start; nothing is requested yet."""
        await self.calls.start()

    async def close(self) -> None:
        """Close; requests that wait for a reply fail."""
        await self.calls.close()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
