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
    """Registers a broker with every name server, each for itself.

    Args:
        broker: Who is registered.
    """

    def __init__(self, broker: "Broker") -> None:
        self._broker = broker
        self._client: RemotingClient | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_due = False
        self.problems: dict[str, str] = {}
        """Name server -> why it could not be told; empty if all know."""

    def start(self) -> None:
        """Make ready; within the loop."""
        self._client = RemotingClient()

    async def stop(self) -> None:
        """Tell the name servers that the broker is gone."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._client is not None:
            await asyncio.gather(
                *(self._unregister(one) for one in self._broker.config.name_servers)
            )
            await self._client.close()
            self._client = None

    def tell_soon(self) -> None:
        """Register again, as something has changed: at the end of this turn of the loop."""
        if self._client is None or self._is_due:
            return
        self._is_due = True
        loop = asyncio.get_running_loop()
        loop.call_soon(self._tell_now)

    def _tell_now(self) -> None:
        self._is_due = False
        if self._client is None:
            return
        task = asyncio.get_running_loop().create_task(self.register())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def register(self) -> None:
        """Register with all name servers; what goes wrong is in ``problems``."""
        servers = self._broker.config.name_servers
        if not servers:
            return
        body = bodies.encode(
            RegisterBrokerBody(
                filter_server_list=[],
                topic_config_serialize_wrapper=self._broker.describe_topics(),
            )
        )
        await asyncio.gather(*(self._register(one, body) for one in servers))

    async def _register(self, server: str, body: bytes) -> None:
        broker = self._broker
        config = broker.config
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
        assert self._client is not None
        try:
            answer = await self._client.invoke(
                server, request, config.register_broker_timeout_mills
            )
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

    async def _unregister(self, server: str) -> None:
        broker = self._broker
        header = UnregisterBrokerHeader(
            broker_name=broker.config.broker_name,
            broker_addr=broker.address,
            cluster_name=broker.config.broker_cluster_name,
            broker_id=broker.config.broker_id,
        )
        request = Command(RequestCode.UNREGISTER_BROKER, ext_fields=headers.encode(header))
        assert self._client is not None
        try:
            await self._client.invoke(server, request, _UNREGISTER_TIMEOUT_MS)
        except ReputError as error:
            _log.info("name server %s was not told of the end: %s", server, error)
