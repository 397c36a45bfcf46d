"""Tells the name servers who this broker is and which topics it has.

All topics are told on a new connection, every ``registerNameServerPeriod``, and after anything that
went wrong: a name server that lost them, or did not get a change, so gets them all. In between a
change is told alone, as Java does where an admin makes it: name servers add and overwrite topics,
and remove none because it is missing. Of deleted topics they hear from who deletes them. Only those
of 5.x with ``deleteTopicWithBrokerRegistration`` take what is told for all there is, from Java's
brokers too; there the others are back with the next period.
Source: rocketmq 4.9.7 ``BrokerController.registerIncrementBrokerData``, ``RouteInfoManager``.
"""

import asyncio
import logging
import zlib
from collections.abc import Iterable
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
from reput.format.headers import RegisterBrokerHeader, RouteHeader, UnregisterBrokerHeader
from reput.remoting.channel import Channel
from reput.remoting.client import RemotingClient
from reput.remoting.long_replies import chunks
from reput.store.config_tables import TopicConfig

PERIOD_MS_MIN = 10_000
PERIOD_MS_MAX = 60_000
_TOPICS_AT_ONCE = 200
"""Topics that are encoded in less than 1 ms."""
_BODY_BYTES_MAX = FRAME_BYTES_MAX // 2
"""More topics than that are told in several requests."""
_UNREGISTER_TIMEOUT_MS = 1_000
_ROUTE_TIMEOUT_MS = 2_000
"""Consumers wait 3 s for what is asked here."""

_log = logging.getLogger(__name__)


class _Body(NamedTuple):
    """What is told of topics."""

    data: bytes
    crc32: int


class _Told(NamedTuple):
    """A topic as it is told, and what that was made of."""

    topic: TopicConfig
    permission: int
    """The broker's."""
    text: msgspec.Raw


class Registration:
    """Registers a broker with every name server, each for itself: a slow one delays no other.

    Args:
        settings: The settings in force: names, and which name servers.
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
        self._telling: dict[str, asyncio.Task[None]] = {}  # by name server
        self._untold: dict[str, set[str] | None] = {}  # topics by name server; None is all
        self._knowing: dict[str, Channel] = {}  # name servers that have all but the untold
        self._changed: set[str] | None = set()  # topics that nobody is told yet; None is all
        self._is_due = False
        self._texts: dict[str, _Told] = {}  # by topic
        self._making = asyncio.Lock()
        self._all: tuple[int, list[_Body]] | None = None  # version of the topics, all of them
        self.untold: dict[str, str] = {}
        """Topic that can be told to no name server -> why."""
        self.problems: dict[str, str] = {}
        """Name server -> why it could not be told; empty if all know."""

    def start(self) -> None:
        """Make ready; within the loop."""
        self._client = RemotingClient()

    async def stop(self) -> None:
        """Tell the name servers that the broker is gone."""
        client, self._client = self._client, None  # from now on nothing else is told
        if client is None:
            return
        tasks = list(self._telling.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        servers = self._settings.broker.name_servers
        await asyncio.gather(*(self._unregister(client, one) for one in servers))
        await client.close()

    def notify_soon(self, topic: str | None = None) -> None:
        """Tell that a topic has changed, or else everything: at the end of this turn of the loop.

        Args:
            topic: Its name. If it was deleted, there is nothing to tell.
        """
        if self._client is None:
            return
        if topic is None:
            self._changed = None
        elif self._changed is not None:
            self._changed.add(topic)
        if not self._is_due:
            self._is_due = True
            asyncio.get_running_loop().call_soon(self._tell_now)

    def _tell_now(self) -> None:
        self._is_due = False
        changed, self._changed = self._changed, set()
        self._begin(changed)

    def begin(self) -> list[asyncio.Task[None]]:
        """Register with all name servers, and do not wait; return what is under way.

        Who is being told is told once more afterwards, however often this is called meanwhile.
        """
        return self._begin(None)

    def _begin(self, topics: set[str] | None) -> list[asyncio.Task[None]]:
        client, servers = self._client, self._settings.broker.name_servers
        if client is None:
            return []
        self.problems = {one: why for one, why in self.problems.items() if one in servers}
        for server in servers:
            untold = self._untold.get(server, set())
            self._untold[server] = None if topics is None or untold is None else untold | topics
            if server not in self._telling:
                self._telling[server] = asyncio.create_task(self._tell(client, server))
        return [self._telling[server] for server in servers]

    async def register(self) -> None:
        """Register with all name servers; what goes wrong is in ``problems``."""
        tasks = self.begin()
        if tasks:
            await asyncio.wait(tasks)

    async def _tell(self, client: RemotingClient, server: str) -> None:
        try:
            while server in self._untold:
                await self._register(client, server, self._untold.pop(server))
        except Exception as error:  # noqa: BLE001 - the outermost edge of a task
            _log.exception("registering with name server %s failed", server)
            self.problems[server] = f"{type(error).__name__}: {error}"
        finally:
            self._telling.pop(server, None)

    async def _register(self, client: RemotingClient, server: str, topics: set[str] | None) -> None:
        """Tell a name server some topics, or all if that is None or it has not got the others."""
        # Until it has answered, it may have got this or not.
        known_over = self._knowing.pop(server, None)
        try:
            channel = await client.connect(server)
            if topics is None or known_over is not channel:
                told = await self._bodies_of_all()
            elif known := [one for one in map(self._topics.get, topics) if one is not None]:
                told = await self._bodies(known)
            else:
                self._knowing[server] = channel
                return
            for body in told:
                await self._ask(client, server, body)
            self._knowing[server] = channel
        except ReputError as error:
            if self.problems.get(server) != str(error):
                _log.warning("cannot register with name server %s: %s", server, error)
            self.problems[server] = str(error)
        else:
            if self.problems.pop(server, None) is not None:
                _log.info("registered with name server %s again", server)

    async def _ask(self, client: RemotingClient, server: str, body: _Body) -> None:
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
        answer = await client.invoke(server, request, config.register_broker_timeout_mills)
        if answer.code != ResponseCode.SUCCESS:
            raise ReputError(answer.remark or f"code {answer.code}")
        if answer.body:
            ordered = bodies.decode(KvTable, answer.body).table
            self._topics.take_ordered(ordered, self._clock.now_ms())

    async def route(self, topic: str) -> TopicRouteData | None:
        """Return where a topic is, as the first name server that answers knows it; None: nowhere.

        Raises:
            ReputError: No name server answers.
        """
        problem = ReputError("there is no name server")
        fields = headers.encode(RouteHeader(topic=topic, accept_standard_json_only=True))
        for server in self._settings.broker.name_servers:
            if self._client is None:
                break
            request = Command(RequestCode.GET_ROUTEINFO_BY_TOPIC, ext_fields=fields)
            try:
                answer = await self._client.invoke(server, request, _ROUTE_TIMEOUT_MS)
            except ReputError as error:
                problem = error
                continue
            if answer.code == ResponseCode.TOPIC_NOT_EXIST:
                return None
            if answer.code == ResponseCode.SUCCESS:
                return bodies.decode(TopicRouteData, answer.body)
            problem = ReputError(answer.remark or f"code {answer.code}")
        raise problem

    # What is told -----------------------------------------------------------------------------

    async def _bodies_of_all(self) -> list[_Body]:
        """Return all topics: a megabyte with 10,000 of them, made once a change."""
        topics = self._topics
        async with self._making:  # once for all name servers
            counter = topics.table.version.counter
            if self._all is not None and self._all[0] == counter:
                return self._all[1]
            known = topics.all()
            for gone in self._texts.keys() - known.keys():
                del self._texts[gone]
            for gone in self.untold.keys() - known.keys():
                del self.untold[gone]
            told = await self._bodies(known.values())
            self._all = counter, told
            return told

    async def _bodies(self, topics: Iterable[TopicConfig]) -> list[_Body]:
        """Return topics as they are now, in as many bodies as frames need.

        Others have their turn while they are encoded. Name servers take topics of a version that
        they do not know yet, and leave those that are not named: only the last body has the version
        of the table, and each one before it an older one of its own.
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
        told = []
        for number, rows in enumerate(rows_of_bodies, 1):
            age = len(rows_of_bodies) - number
            data_version = DataVersion(
                counter=version.counter, timestamp=version.timestamp_ms - age
            )
            data = b'{"topicConfigSerializeWrapper":{"dataVersion":%b,"topicConfigTable":{%b}}}' % (
                bodies.encode(data_version),
                b",".join(rows),
            )
            told.append(_Body(data, zlib.crc32(data) & 0x7FFFFFFF))
        return told

    def _rows(self, topics: Iterable[TopicConfig]) -> dict[str, msgspec.Raw]:
        """Return topics as they are told, by name; without those that no name server could read."""
        rows = {}
        for topic in topics:
            try:
                bodies.encode(topic.name)
                rows[topic.name] = self._text(topic)
            except (UnicodeEncodeError, msgspec.MsgspecError, ValueError, TypeError) as error:
                if topic.name not in self.untold:
                    _log.error("topic %r is told to no name server: %s", topic.name, error)
                self.untold[topic.name] = f"{error}"
            else:
                self.untold.pop(topic.name, None)
        return rows

    def _text(self, topic: TopicConfig) -> msgspec.Raw:
        """Return a topic as name servers are told, with the broker's own permission."""
        permission = self._settings.broker.broker_permission
        told = self._texts.get(topic.name)
        if told is None or told.topic is not topic or told.permission != permission:
            data = topic_data(topic)
            data.perm &= permission | ~READ_WRITE
            told = _Told(topic, permission, msgspec.Raw(bodies.encode(data)))
            self._texts[topic.name] = told
        return told.text

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
            async with asyncio.timeout(_UNREGISTER_TIMEOUT_MS / 1000):  # with the connection
                await client.invoke(server, request, _UNREGISTER_TIMEOUT_MS)
        except (ReputError, TimeoutError) as error:
            _log.info(
                "name server %s was not told of the end: %s", server, str(error) or "no answer"
            )
