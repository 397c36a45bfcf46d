"""The controllers of a broker: finds the one that leads, and sends it requests.

Heartbeats go to all of them, so that the next leader knows the living brokers.
"""

import asyncio
import functools
import logging
import ssl
from collections.abc import Callable, Sequence
from typing import TypeVar

from reput.errors import RemotingError, ReputError
from reput.format import bodies, controller_headers as of_controllers, headers
from reput.format.bodies import SyncStateSet
from reput.format.codes import RequestCode, ResponseCode
from reput.format.command import Command
from reput.format.controller_headers import ControllerMetadataReplyHeader, MasterHeader
from reput.format.headers import Header
from reput.format.signing import Signer
from reput.remoting.client import RemotingClient

TIMEOUT_MS = 2_000
"""Timeout of a request, in ms: after it, another controller may lead."""

H = TypeVar("H", bound=Header)

_log = logging.getLogger(__name__)


class NoLeader(ReputError):
    """No controller leads, or none answers."""


class RefusedByController(ReputError):
    """A controller refuses a request.

    Args:
        code: The code of its answer.
        text: Why.
    """

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


class Controllers:
    """The connections to controllers.

    Args:
        addresses: Their addresses, ``host:port``.
        on_lost: Called when the connection to the leader is closed.
        tls: Certificates of the requests; None without TLS.
        signer: Signs the requests; None: they are not signed.
    """

    def __init__(
        self,
        addresses: Sequence[str],
        on_lost: Callable[[], object],
        tls: ssl.SSLContext | None = None,
        signer: Signer | None = None,
    ) -> None:
        self.addresses = list(addresses)
        self.leader = ""
        """Address of the controller that leads; empty if it is unknown."""
        self._on_lost = on_lost
        self._client = RemotingClient(
            connect_timeout_ms=TIMEOUT_MS, tls=tls, signer=signer, on_disconnected=self._lost
        )
        self._beats: dict[str, asyncio.Task[None]] = {}

    async def close(self) -> None:
        """Close all connections."""
        for task in self._beats.values():
            task.cancel()
        await self._client.close()

    def _lost(self, address: str, reason: str) -> None:
        if address == self.leader:
            _log.info("the connection to the leading controller %s is closed: %s", address, reason)
            self.leader = ""
            self._on_lost()

    # Heartbeats -------------------------------------------------------------------------------

    def beat(self, header: Header) -> None:
        """Send a heartbeat (904) to each controller; one that hangs delays no other."""
        fields = headers.encode(header)
        for address in dict.fromkeys((*self.addresses, self.leader)):
            if address and address not in self._beats:
                task = asyncio.get_running_loop().create_task(self._beat(address, fields))
                self._beats[address] = task
                task.add_done_callback(functools.partial(self._sent, address))

    async def await_beat(self, address: str) -> None:
        """Wait until the heartbeat to a controller was sent, or failed.

        Raises:
            NoLeader: It hangs.
        """
        task = self._beats.get(address)
        if task is not None:
            done, _ = await asyncio.wait((task,), timeout=TIMEOUT_MS / 1000)
            if not done:
                raise NoLeader(f"the heartbeat to controller {address} hangs")

    def _sent(self, address: str, _: "asyncio.Task[None]") -> None:
        self._beats.pop(address, None)

    async def _beat(self, address: str, fields: dict[str, str]) -> None:
        request = Command(RequestCode.BROKER_HEARTBEAT, ext_fields=dict(fields))
        try:
            await self._client.send_oneway(address, request)
        except ReputError as error:
            _log.debug("no heartbeat to controller %s: %s", address, error)

    # Requests ---------------------------------------------------------------------------------

    async def find_leader(self) -> str:
        """Return the address of the leading controller, as it is configured if it is.

        Raises:
            NoLeader: None is known.
        """
        if self.leader:
            return self.leader
        loop = asyncio.get_running_loop()
        asked = [loop.create_task(self._leader_by(address)) for address in self.addresses]
        try:
            self.leader = await self._first_leader(asked)
        finally:
            for task in asked:
                task.cancel()
        return self.leader

    async def _first_leader(self, asked: "Sequence[asyncio.Task[str]]") -> str:
        """Return the first controller that says that it leads, or else one that others name.

        One that does not answer delays this only if no controller leads. Raises ``NoLeader``.
        """
        waiting: set[asyncio.Task[str]] = set(asked)
        while waiting:
            _, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for address, task in zip(self.addresses, asked, strict=True):
                if task.done() and not task.exception() and task.result() == address:
                    return address
        problems = []
        for address, task in zip(self.addresses, asked, strict=True):
            if not task.exception():
                return task.result()
            problems.append(f"{address}: {task.exception()}")
        raise NoLeader(f"no controller leads: {'; '.join(problems)}")

    async def _leader_by(self, address: str) -> str:
        """Return the leader according to a controller. Raises ``ReputError``."""
        request = Command(RequestCode.CONTROLLER_GET_METADATA_INFO)
        reply = await self._client.invoke(address, request, TIMEOUT_MS)
        if reply.code != ResponseCode.SUCCESS:
            raise RefusedByController(reply.code, reply.remark or f"code {reply.code}")
        info = headers.decode(ControllerMetadataReplyHeader, reply.ext_fields)
        leader = address if info.is_leader else info.controller_leader_address
        if not leader:
            raise NoLeader("it knows no leader")
        return leader

    async def ask(
        self, code: RequestCode, header: Header, of_reply: type[H], body: bytes = b""
    ) -> tuple[H, Command]:
        """Send a request to the leader; return the header of its reply, and the reply.

        Raises:
            NoLeader: No controller leads or answers.
            RefusedByController: It refuses.
        """
        leader = await self.find_leader()
        request = Command(code, ext_fields=headers.encode(header), body=body)
        try:
            reply = await self._client.invoke(leader, request, TIMEOUT_MS)
        except RemotingError as error:
            self._forget(leader)
            raise NoLeader(f"controller {leader} does not answer: {error}") from error
        if reply.code == ResponseCode.CONTROLLER_NOT_LEADER:
            self._forget(leader)
            raise NoLeader(f"controller {leader} leads no more")
        if reply.code != ResponseCode.SUCCESS:
            raise RefusedByController(reply.code, f"{leader}: {reply.remark or reply.code}")
        return headers.decode(of_reply, reply.ext_fields), reply

    def _forget(self, leader: str) -> None:
        if self.leader == leader:
            self.leader = ""
            self._on_lost()

    async def replica_info(self, name: str) -> tuple[MasterHeader, SyncStateSet]:
        """Return the master of a group, and its in-sync set (1004). Raises as ``ask``."""
        header = of_controllers.ReplicaInfoHeader(broker_name=name)
        code = RequestCode.CONTROLLER_GET_REPLICA_INFO
        return await self.master_of(code, header, MasterHeader)

    async def master_of(
        self, code: RequestCode, header: Header, of_reply: type[H], body: bytes = b""
    ) -> tuple[H, SyncStateSet]:
        """Send a request whose reply has an in-sync set. Raises as ``ask``."""
        answer, reply = await self.ask(code, header, of_reply, body)
        in_sync = bodies.decode(SyncStateSet, reply.body) if reply.body else SyncStateSet()
        return answer, in_sync

    async def invoke(self, address: str, request: Command) -> Command:
        """Send a request to a broker. Raises ``RemotingError``."""
        return await self._client.invoke(address, request, TIMEOUT_MS)


def named(addresses: str) -> list[str]:
    """Return the addresses of a list with semicolons."""
    return [address.strip() for address in addresses.split(";") if address.strip()]
