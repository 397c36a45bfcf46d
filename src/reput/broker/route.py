"""Tells the name servers who this broker is and which topics it has."""

import asyncio
import logging
import zlib
from typing import TYPE_CHECKING

from reput.errors import ReputError
from reput.format import bodies, headers
from reput.format.bodies import KvTable, RegisterBrokerBody
from reput.format.codes import RequestCode, ResponseCode
from reput.format.command import Command
from reput.format.headers import RegisterBrokerHeader, UnregisterBrokerHeader
from reput.remoting.client import RemotingClient

if TYPE_CHECKING:
    from reput.broker.server import Broker

PERIOD_MS_MIN = 10_000
PERIOD_MS_MAX = 60_000
_UNREGISTER_TIMEOUT_MS = 1_000

_log = logging.getLogger(__name__)


class Registration:
    """Registers a broker with every name server, each for itself: a slow one delays no other.

    Args:
        broker: Who is registered.
    """

    def __init__(self, broker: "Broker") -> None:
        self._broker = broker
        self._client: RemotingClient | None = None
        self._telling: dict[str, asyncio.Task[None]] = {}  # by name server
        self._stale: set[str] = set()  # name servers that are to be told again
        self._is_due = False
        self._body: tuple[int, bytes] | None = None  # version of the topics, and what is told
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
        servers = self._broker.config.name_servers
        await asyncio.gather(*(self._unregister(client, one) for one in servers))
        await client.close()

    def tell_soon(self) -> None:
        """Register again, as something has changed: at the end of this turn of the loop."""
        if self._client is None or self._is_due:
            return
        self._is_due = True
        asyncio.get_running_loop().call_soon(self._tell_now)

    def _tell_now(self) -> None:
        self._is_due = False
        self.begin()

    def begin(self) -> list[asyncio.Task[None]]:
        """Register with all name servers, and do not wait; return what is under way.

        Who is being told is told once more afterwards, however often this is called meanwhile.
        """
        client, servers = self._client, self._broker.config.name_servers
        if client is None:
            return []
        self.problems = {one: why for one, why in self.problems.items() if one in servers}
        self._stale.update(servers)
        for server in servers:
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
            while server in self._stale:
                self._stale.discard(server)
                await self._register(client, server)
        except Exception as error:  # noqa: BLE001 - the outermost edge of a task
            _log.exception("registering with name server %s failed", server)
            self.problems[server] = f"{type(error).__name__}: {error}"
        finally:
            self._telling.pop(server, None)

    def _encoded_topics(self) -> bytes:
        """Return the body of a registration: a megabyte with 10,000 topics, made once a change."""
        counter = self._broker.topics.table.version.counter
        if self._body is None or self._body[0] != counter:
            body = RegisterBrokerBody(
                filter_server_list=[],
                topic_config_serialize_wrapper=self._broker.describe_topics(),
            )
            self._body = counter, bodies.encode(body)
        return self._body[1]

    async def _register(self, client: RemotingClient, server: str) -> None:
        broker = self._broker
        config = broker.config
        body = self._encoded_topics()
        header = RegisterBrokerHeader(
            broker_name=config.broker_name,
            broker_addr=broker.address,
            cluster_name=config.broker_cluster_name,
            ha_server_addr=broker.ha_address,
            broker_id=config.broker_id,
            compressed=False,
            body_crc32=zlib.crc32(body) & 0x7FFFFFFF,
        )
        request = Command(RequestCode.REGISTER_BROKER, ext_fields=headers.encode(header), body=body)
        try:
            answer = await client.invoke(server, request, config.register_broker_timeout_mills)
            if answer.code != ResponseCode.SUCCESS:
                raise ReputError(answer.remark or f"code {answer.code}")
            if answer.body:
                broker.take_ordered_topics(bodies.decode(KvTable, answer.body))
        except ReputError as error:
            if self.problems.get(server) != str(error):
                _log.warning("cannot register with name server %s: %s", server, error)
            self.problems[server] = str(error)
        else:
            if self.problems.pop(server, None) is not None:
                _log.info("registered with name server %s again", server)

    async def _unregister(self, client: RemotingClient, server: str) -> None:
        broker = self._broker
        header = UnregisterBrokerHeader(
            broker_name=broker.config.broker_name,
            broker_addr=broker.address,
            cluster_name=broker.config.broker_cluster_name,
            broker_id=broker.config.broker_id,
        )
        request = Command(RequestCode.UNREGISTER_BROKER, ext_fields=headers.encode(header))
        try:
            async with asyncio.timeout(_UNREGISTER_TIMEOUT_MS / 1000):  # with the connection
                await client.invoke(server, request, _UNREGISTER_TIMEOUT_MS)
        except (ReputError, TimeoutError) as error:
            _log.info(
                "name server %s was not told of the end: %s", server, str(error) or "no answer"
            )
