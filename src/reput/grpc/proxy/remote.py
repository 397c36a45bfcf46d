"""The brokers of a proxy, as the front sees them."""

from reput.clock import Clock
from reput.errors import Unreachable
from reput.format.signing import Signer
from reput.grpc.backend import GroupFacts, TopicFacts, UnknownBroker
from reput.grpc.proxy.cluster import Cluster
from reput.remoting.channel import Channel, Owner
from reput.remoting.client import Dialer

AVOIDED_MS = 2_000
"""Time after a failed attempt in which there is no other one to the same broker, in ms: clients
learn at once that it is not there, and send to another one."""


class RemoteBackend:
    """Topics, groups and connections of the brokers of some name servers.

    Args:
        cluster: Their addresses, topics and groups.
        dialer: Opens the connections of clients.
        clock: The clock.
    """

    keeps_handles = False  # RocketMQ's brokers give others
    checks_users = False
    early_ms = 50  # of RocketMQ's brokers

    def __init__(self, cluster: Cluster, dialer: Dialer, clock: Clock) -> None:
        self._cluster = cluster
        self._dialer = dialer
        self._clock = clock
        self._failures: dict[str, tuple[Unreachable, int]] = {}
        """Broker name -> why it was not reached, and the monotonic time in ms."""
        self.connection_count = 0
        """Connections that were opened for clients."""
        self.failure_count = 0
        """Connections that could not be opened."""

    async def topic(self, name: str) -> TopicFacts | None:
        """Return a topic; None if it does not exist. Raises ``ReputError``: no reply."""
        return await self._cluster.topics.get(name)

    async def group(self, name: str, address: str) -> GroupFacts | None:
        """Return a group; a broker that creates groups for clients creates it when asked.

        Raises:
            StatusError: All brokers are older than 5.0.
            ReputError: No broker answered.
        """
        return await self._cluster.groups.get(name)

    @property
    def unreachable(self) -> dict[str, str]:
        """The brokers that could not be reached at the latest attempt -> why."""
        names = self._failures.keys() & set(self._cluster.broker_names)
        return {name: str(self._failures[name][0]) for name in sorted(names)}

    async def connect(
        self,
        broker_name: str,
        owner: Owner,
        address: tuple[str, int],
        signer: Signer | None = None,
    ) -> Channel:
        """Return a new connection to a broker, which is signed by the proxy's own user.

        Rules of users may list addresses, and a broker sees that of the proxy: the proxy checks
        them (``access``), with the address of the client.

        Raises:
            UnknownBroker: No name server has had it lately.
            Unreachable: The connection could not be opened, now or just before.
            RemotingError: The name servers do not reply.
        """
        broker_address = await self._cluster.address(broker_name)
        if broker_address is None:
            names = ", ".join(sorted(self._cluster.broker_names)[:10])
            raise UnknownBroker(broker_name, names or "none is registered")
        failed = self._failures.get(broker_name)
        if failed is not None:
            failure, since_ms = failed
            is_recent = self._clock.monotonic_ms() - since_ms < AVOIDED_MS
            if is_recent and failure.address == broker_address:
                raise Unreachable(failure.address, failure.reason)
        try:
            channel = await self._dialer.dial(broker_address, owner)
        except Unreachable as error:
            self.failure_count += 1
            self._failures[broker_name] = error, self._clock.monotonic_ms()
            self._cluster.look_soon()  # another address may have its name now
            raise
        self._failures.pop(broker_name, None)
        self.connection_count += 1
        return channel
