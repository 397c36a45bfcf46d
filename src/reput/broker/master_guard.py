"""Guard against a second master: a broker does not become master while another one is alive.

The usual case is a failed master that is repaired and started after a slave has replaced it. The
name servers list the master of each broker name; one that is dead stays listed for two minutes, so
the listed one counts only if it answers.
"""

import asyncio
import contextlib
import ssl

from reput.broker.settings.config import BrokerConfig
from reput.errors import ReputError
from reput.format import bodies
from reput.format.bodies import ClusterInfo
from reput.format.codes import MASTER_ID, RequestCode, ResponseCode
from reput.format.command import Command
from reput.format.signing import Signer
from reput.remoting.client import RemotingClient

CONNECT_TIMEOUT_MS = 1_000
REPLY_TIMEOUT_MS = 1_000
"""Timeouts of each of the two requests: a machine that is switched off does not answer at all."""
_OF_LIVING = frozenset({ResponseCode.SUCCESS, ResponseCode.NO_PERMISSION})
"""Replies of a broker that is alive; one with access control refuses strangers."""


class AnotherMaster(ReputError):
    """Another broker is the master.

    Args:
        name: The name of both brokers.
        address: The address of the other one.
        name_server: The name server that lists it.
    """

    def __init__(self, name: str, address: str, name_server: str) -> None:
        super().__init__(
            f"{address} is the master of broker {name!r}: name server {name_server} lists it, and "
            "it answers. Two masters would accept different messages under the same offsets. "
            "Start this broker as a slave (brokerRole=SLAVE, brokerId=1), stop the other one "
            "first, or set haForceMaster=true"
        )
        self.address = address


async def check(
    config: BrokerConfig,
    own_address: str,
    tls: ssl.SSLContext | None = None,
    signer: Signer | None = None,
) -> None:
    """Ask the name servers for the master of this broker's name, and that master for an answer.

    Args:
        config: The name of the broker, and the name servers.
        own_address: The address of this broker, as name servers list it.
        tls: Certificates of the requests; None without TLS.
        signer: Signs the requests; None: they are not signed.

    Raises:
        AnotherMaster: There is one, and it answers.
    """
    if not config.name_servers:
        return
    async with contextlib.aclosing(Questions(config.broker_name, tls, signer)) as questions:
        listed = await asyncio.gather(*map(questions.listed, config.name_servers))
        masters = (addresses.get(MASTER_ID, "") for addresses in listed)
        servers = {
            address: server
            for address, server in zip(masters, config.name_servers, strict=True)
            if address and address != own_address
        }
        answers = await asyncio.gather(*map(questions.is_alive, servers))
    for (address, server), is_alive in zip(servers.items(), answers, strict=True):
        if is_alive:
            raise AnotherMaster(config.broker_name, address, server)


class Questions:
    """Requests to name servers and brokers; no answer is an answer, too.

    Args:
        broker_name: The name of the brokers.
        tls: Certificates of the requests; None without TLS.
        signer: Signs the requests; None: they are not signed.
    """

    def __init__(
        self, broker_name: str, tls: ssl.SSLContext | None, signer: Signer | None = None
    ) -> None:
        self._broker_name = broker_name
        self._client = RemotingClient(connect_timeout_ms=CONNECT_TIMEOUT_MS, tls=tls, signer=signer)

    async def aclose(self) -> None:
        """Close the connections."""
        await self._client.close()

    async def listed(self, name_server: str) -> dict[int, str]:
        """Return broker id -> address according to a name server; nothing without an answer."""
        reply = await self._ask(name_server, RequestCode.GET_BROKER_CLUSTER_INFO)
        if reply is None:
            return {}
        try:
            table = bodies.decode(ClusterInfo, reply.body).broker_addr_table
        except ReputError:
            return {}
        broker = table.get(self._broker_name)
        return {} if broker is None else dict(broker.broker_addrs)

    async def is_alive(self, address: str) -> bool:
        """Return True if a broker answers the request for its state, or refuses it."""
        reply = await self._reply(address, RequestCode.GET_BROKER_RUNTIME_INFO)
        return reply is not None and reply.code in _OF_LIVING

    async def _ask(self, address: str, code: RequestCode) -> Command | None:
        reply = await self._reply(address, code)
        return reply if reply is not None and reply.code == ResponseCode.SUCCESS else None

    async def _reply(self, address: str, code: RequestCode) -> Command | None:
        try:
            return await self._client.invoke(address, Command(code), REPLY_TIMEOUT_MS)
        except ReputError:
            return None
