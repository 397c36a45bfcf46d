"""Registers the broker and its topics with the name servers.

All topics are sent on a new connection, every ``registerNameServerPeriod``, and after any failure:
a name server that lost topics, or missed a change, gets all of them again. In between only the
changed topic is sent, as Java does when an admin changes one: name servers add and overwrite
topics, and do not remove missing ones. Deletions are sent to name servers by the client that
deletes the topic. Only name servers of 5.x with ``deleteTopicWithBrokerRegistration`` treat each
registration as complete, also those of Java's brokers; there the other topics return with the next
period. Source: rocketmq 4.9.7 ``BrokerController.registerIncrementBrokerData``,
``RouteInfoManager``.

The replies to a slave contain the addresses of its master.
"""

import asyncio
import logging
import zlib
from collections.abc import Callable, Iterable
from typing import NamedTuple

import msgspec

from reput.broker.identity import Identity
from reput.broker.settings.live import LiveConfig
from reput.broker.topic.topics import READ_WRITE, Topics, topic_data
from reput.clock import Clock
from reput.errors import ReputError
from reput.format import bodies, headers
from reput.format.bodies import DataVersion, KvTable, TopicRouteData
from reput.format.codes import RequestCode, ResponseCode
from reput.format.command import FRAME_BYTES_MAX, Command
from reput.format.headers import (
    RegisterBrokerHeader,
    RegisterBrokerReplyHeader,
    RouteHeader,
    UnregisterBrokerHeader,
)
from reput.remoting.channel import Channel
from reput.remoting.client import RemotingClient
from reput.remoting.long_replies import chunks
from reput.store.tables.config_tables import TopicConfig
from reput.store.tables.saved_table import DataVersion as TableVersion

PERIOD_MS_MIN = 10_000
PERIOD_MS_MAX = 60_000
_TOPICS_AT_ONCE = 200
"""Topics that are encoded together, in less than 1 ms."""
_BODY_BYTES_MAX = FRAME_BYTES_MAX // 2
"""Size above which a list of topics is sent in several requests."""
_UNREGISTER_TIMEOUT_MS = 1_000
_ROUTE_TIMEOUT_MS = 2_000
"""Timeout of a request, less than the 3 s that consumers wait for a reply."""

MASTER_ID = 0
"""The broker id of a master."""

_log = logging.getLogger(__name__)


class MasterAddresses(NamedTuple):
    """The addresses of a master; empty if no master is registered."""

    address: str = ""
    """Address for requests, ``ip:port``."""
    ha_address: str = ""
    """Address of the port for slaves, ``ip:port``."""


class _Body(NamedTuple):
    """The body of a registration request."""

    data: bytes
    crc32: int


class _EncodedTopic(NamedTuple):
    """An encoded topic, with the values that it was made from."""

    topic: TopicConfig
    permission: int
    """The broker's permission."""
    text: msgspec.Raw


_Changed = dict[str, None]
"""Names of topics, in the order of their changes."""


class Registration:
    """Registers a broker with each name server separately: a slow one does not delay the others.

    Args:
        settings: The current settings: names, and the list of name servers.
        identity: The addresses.
        topics: The topics.
        clock: The clock.
    """

    def __init__(
        self, settings: LiveConfig, identity: Identity, topics: Topics, clock: Clock
    ) -> None:
        self._settings = settings
        self._identity = identity
        self._topics = topics
        self._clock = clock
        self._client: RemotingClient | None = None
        self._tasks: dict[str, asyncio.Task[None]] = {}  # by name server
        self._pending: dict[str, _Changed | None] = {}  # topics by name server; None for all
        self._up_to_date: dict[
            str, Channel
        ] = {}  # name servers that have all but the pending topics
        self._changed: _Changed | None = {}  # topics that no name server has got; None for all
        self._is_due = False
        self._texts: dict[str, _EncodedTopic] = {}  # by topic
        self._making = asyncio.Lock()
        # Version of the topics, state version, and the bodies of all.
        self._all: tuple[tuple[TableVersion, int], list[_Body]] | None = None
        self.unencodable: dict[str, str] = {}
        """Topic that cannot be encoded -> the reason."""
        self.problems: dict[str, str] = {}
        """Name server -> why the registration failed; empty if all are up to date."""
        self.master = MasterAddresses()
        """The master of a slave, according to the name server whose reply changed last."""
        self.on_master: Callable[[], object] = lambda: None
        """Called when ``master`` has changed."""
        self.is_held = False
        """True while the broker must not be registered, as it has no role yet."""
        self.state_version = 0
        """Epoch of a master under a controller: name servers ignore an older one."""
        self.is_brief = False
        """True if the broker stops only to register again soon, in another role."""
        self._is_led = False  # whether a controller names the master
        self._masters: dict[str, MasterAddresses] = {}  # by name server

    def start(self) -> None:
        """Create the client; to be called within the event loop."""
        self._client = RemotingClient(
            tls=self._settings.request_tls, signer=self._settings.request_signer
        )

    async def stop(self) -> None:
        """Unregister from the name servers."""
        client, self._client = self._client, None  # from now on nothing else is sent
        if client is None:
            return
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if not self.is_brief:  # one that does not answer would delay the next master
            servers = self._settings.broker.name_servers
            await asyncio.gather(*(self._unregister(client, server) for server in servers))
        await client.close()

    def notify_soon(self, topic: str | None = None) -> None:
        """Send a changed topic, or everything, at the end of this turn of the event loop.

        Args:
            topic: Name of the topic; a deleted topic is not sent.
        """
        if self._client is None:
            return
        if topic is None:
            self._changed = None
        elif self._changed is not None:
            self._changed[topic] = None
        if not self._is_due:
            self._is_due = True
            asyncio.get_running_loop().call_soon(self._begin_changed)

    def _begin_changed(self) -> None:
        self._is_due = False
        changed, self._changed = self._changed, {}
        self._begin(changed)

    def begin(self) -> list[asyncio.Task[None]]:
        """Start the registration with all name servers; return the running tasks.

        If a registration is running, exactly one more follows, however often this is called.
        """
        return self._begin(None)

    def _begin(self, topics: _Changed | None) -> list[asyncio.Task[None]]:
        client, servers = self._client, self._settings.broker.name_servers
        if client is None or self.is_held:
            return []
        self.problems = {
            server_name: why for server_name, why in self.problems.items() if server_name in servers
        }
        for gone in self._masters.keys() - set(servers):
            del self._masters[gone]
        for server in servers:
            pending = self._pending.get(server, {})
            self._pending[server] = None if topics is None or pending is None else pending | topics
            if server not in self._tasks:
                self._tasks[server] = asyncio.create_task(self._register_pending(client, server))
        return [self._tasks[server] for server in servers]

    async def register(self) -> None:
        """Register with all name servers; failures are in ``problems``."""
        tasks = self.begin()
        if tasks:
            await asyncio.wait(tasks)

    async def _register_pending(self, client: RemotingClient, server: str) -> None:
        try:
            while server in self._pending:
                await self._register(client, server, self._pending.pop(server))
        except Exception as error:  # noqa: BLE001 - the outermost edge of a task
            _log.exception("registering with name server %s failed", server)
            self.problems[server] = f"{type(error).__name__}: {error}"
        finally:
            self._tasks.pop(server, None)

    async def _register(self, client: RemotingClient, server: str, topics: _Changed | None) -> None:
        """Send topics to a name server; all if None, or if its connection is new."""
        # Until it has replied, it is unknown which topics it has.
        channel_before = self._up_to_date.pop(server, None)
        try:
            channel = await client.connect(server)
            if topics is None or channel_before is not channel:
                encoded = await self._bodies_of_all()
            elif changed := [topic for topic in map(self._topics.get, topics) if topic is not None]:
                encoded = await self._bodies(changed)
            else:
                self._up_to_date[server] = channel
                return
            for body in encoded:
                await self._send(client, server, body)
            self._up_to_date[server] = channel
        except ReputError as error:
            if self.problems.get(server) != str(error):
                _log.warning("cannot register with name server %s: %s", server, error)
            self.problems[server] = str(error)
        else:
            if self.problems.pop(server, None) is not None:
                _log.info("registered with name server %s again", server)

    async def _send(self, client: RemotingClient, server: str, body: _Body) -> None:
        config, identity = self._settings.broker, self._identity
        header = RegisterBrokerHeader(
            broker_name=config.broker_name,
            broker_addr=identity.address,
            cluster_name=config.broker_cluster_name,
            ha_server_addr=identity.ha_address,
            broker_id=config.broker_id,
            compressed=False,
            body_crc32=body.crc32,
        )
        fields = headers.encode(header)
        request = Command(RequestCode.REGISTER_BROKER, ext_fields=fields, body=body.data)
        reply = await client.invoke(server, request, config.register_broker_timeout_mills)
        if reply.code != ResponseCode.SUCCESS:
            raise ReputError(reply.remark or f"code {reply.code}")
        if reply.body:
            ordered = bodies.decode(KvTable, reply.body).table
            self._topics.take_ordered(ordered, self._clock.now_ms())
        if config.broker_id != MASTER_ID:
            self._take_master(server, headers.decode(RegisterBrokerReplyHeader, reply.ext_fields))

    def _take_master(self, server: str, header: RegisterBrokerReplyHeader) -> None:
        """Use the master in a name server's reply if it differs from that in its previous reply.

        After a failover some name servers may list the old master for a while.
        """
        if self._is_led:
            return
        known = self._masters.get(server)
        master = MasterAddresses(header.master_addr or "", header.ha_server_addr or "")
        self._masters[server] = master
        if master in (known, self.master) or not master.ha_address:
            return
        _log.info(
            "name server %s: the master is %s, its port for slaves %s",
            server,
            master.address,
            master.ha_address,
        )
        self.master = master
        self.on_master()

    def follow(self, master: MasterAddresses) -> None:
        """Use the master that a controller names, whatever name servers list."""
        self._is_led = True
        if master != self.master:
            self.master = master
            self.on_master()

    async def route(self, topic: str) -> TopicRouteData | None:
        """Return the route of a topic from the first name server that replies; None if it has none.

        Raises:
            ReputError: No name server replies.
        """
        problem = ReputError("there is no name server")
        fields = headers.encode(RouteHeader(topic=topic, accept_standard_json_only=True))
        for server in self._settings.broker.name_servers:
            if self._client is None:
                break
            request = Command(RequestCode.GET_ROUTEINFO_BY_TOPIC, ext_fields=fields)
            try:
                reply = await self._client.invoke(server, request, _ROUTE_TIMEOUT_MS)
            except ReputError as error:
                problem = error
                continue
            if reply.code == ResponseCode.TOPIC_NOT_EXIST:
                return None
            if reply.code == ResponseCode.SUCCESS:
                return bodies.decode(TopicRouteData, reply.body)
            problem = ReputError(reply.remark or f"code {reply.code}")
        raise problem

    # Bodies -----------------------------------------------------------------------------------

    async def _bodies_of_all(self) -> list[_Body]:
        """Return all topics: a megabyte for 10,000 of them, encoded once per change."""
        topics = self._topics
        async with self._making:  # once for all name servers
            version = topics.table.version, self.state_version
            if self._all is not None and self._all[0] == version:
                return self._all[1]
            known = topics.all()
            for gone in self._texts.keys() - known.keys():
                del self._texts[gone]
            for gone in self.unencodable.keys() - known.keys():
                del self.unencodable[gone]
            all_bodies = await self._bodies(known.values())
            self._all = version, all_bodies
            return all_bodies

    async def _bodies(self, topics: Iterable[TopicConfig]) -> list[_Body]:
        """Return the current topics, in as many bodies as frames require.

        Other tasks run while they are encoded. Name servers accept topics of a new version, and
        keep topics that are not listed: only the last body has the version of the table, and each
        earlier one has a distinct older version.
        """
        version = self._topics.table.version
        rows_of_bodies: list[list[bytes]] = [[]]
        size = 0
        for number, part in enumerate(chunks(topics, _TOPICS_AT_ONCE)):
            if number:
                await asyncio.sleep(0)
            for name, text in self._rows(part).items():
                row = bodies.encode(name) + b":" + bytes(text)
                size += len(row) + 1
                if size > _BODY_BYTES_MAX:
                    rows_of_bodies.append([])
                    size = len(row) + 1
                rows_of_bodies[-1].append(row)
        encoded = []
        for number, rows in enumerate(rows_of_bodies, 1):
            age = len(rows_of_bodies) - number
            data_version = DataVersion(
                counter=version.counter,
                state_version=self.state_version,
                timestamp=version.timestamp_ms - age,
            )
            data = b'{"topicConfigSerializeWrapper":{"dataVersion":%b,"topicConfigTable":{%b}}}' % (
                bodies.encode(data_version),
                b",".join(rows),
            )
            encoded.append(_Body(data, zlib.crc32(data) & 0x7FFFFFFF))
        return encoded

    def _rows(self, topics: Iterable[TopicConfig]) -> dict[str, msgspec.Raw]:
        """Return encoded topics by name, without topics that cannot be encoded."""
        rows = {}
        for topic in topics:
            try:
                bodies.encode(topic.name)
                rows[topic.name] = self._text(topic)
            except (UnicodeEncodeError, msgspec.MsgspecError, ValueError, TypeError) as error:
                if topic.name not in self.unencodable:
                    _log.error("topic %r cannot be registered: %s", topic.name, error)
                self.unencodable[topic.name] = f"{error}"
            else:
                self.unencodable.pop(topic.name, None)
        return rows

    def _text(self, topic: TopicConfig) -> msgspec.Raw:
        """Return an encoded topic, restricted by the broker's own permission."""
        permission = self._settings.broker.broker_permission
        cached = self._texts.get(topic.name)
        if cached is None or cached.topic is not topic or cached.permission != permission:
            data = topic_data(topic)
            data.perm &= permission | ~READ_WRITE
            cached = _EncodedTopic(topic, permission, msgspec.Raw(bodies.encode(data)))
            self._texts[topic.name] = cached
        return cached.text

    async def _unregister(self, client: RemotingClient, server: str) -> None:
        config = self._settings.broker
        header = UnregisterBrokerHeader(
            broker_name=config.broker_name,
            broker_addr=self._identity.address,
            cluster_name=config.broker_cluster_name,
            broker_id=config.broker_id,
        )
        request = Command(RequestCode.UNREGISTER_BROKER, ext_fields=headers.encode(header))
        try:
            async with asyncio.timeout(
                _UNREGISTER_TIMEOUT_MS / 1000
            ):  # includes the time to connect
                await client.invoke(server, request, _UNREGISTER_TIMEOUT_MS)
        except (ReputError, TimeoutError) as error:
            _log.info(
                "cannot unregister from name server %s: %s", server, str(error) or "no answer"
            )
