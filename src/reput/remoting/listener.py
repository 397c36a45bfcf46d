"""The listening socket of a server, with TLS, PROXY headers and limits of connections.

    accept -> PROXY header -> first byte: TLS or not -> channel

All servers of a process share a ``ServerState``: the limits are those of all ports together.
"""

import asyncio
from typing import Generic, Protocol, TypeVar, cast

from reput.limits import Limit
from reput.remoting import limits
from reput.remoting.proxy_acceptor import Proxied
from reput.remoting.proxy_header import ProxySource
from reput.remoting.server_state import ServerState

SILENT_S = 1.0
"""Time in which also a slow client sends its first frame, in seconds: one that has not makes room
for another one at the limits of connections."""
_BACKLOG = 1024
LAST_WORDS_S = 1.0
"""Timeout of pending writes when all connections are closed, in seconds."""


class Accepted(Proxied, Protocol):
    """A channel of a server."""

    address: str
    """The peer's ip."""

    def use_source(self, source: ProxySource) -> None:
        """Use the client that a proxy names instead of the peer."""

    def cut(self, limit: Limit) -> None:
        """Close the connection at once because of a limit."""


_C = TypeVar("_C", bound=Accepted)


class Listener(Generic[_C]):
    """A server's socket, and its connections.

    Args:
        host: Address to listen on; empty for all addresses.
        port: Port to listen on; 0 for any free port.
        state: State shared with other servers, with limits, TLS and proxies; by default its own.
    """

    def __init__(self, host: str, port: int, state: ServerState | None) -> None:
        self.host = host
        self.port = port
        """Port it listens on, after ``start``."""
        self.channels: dict[_C, None] = {}
        """The connections, oldest first."""
        self.state = state or ServerState()
        self._server: asyncio.Server | None = None

    def _new_channel(self) -> _C:
        """Return the channel of a new connection."""
        raise NotImplementedError

    async def _listen(self) -> None:
        """Accept connections.

        Raises:
            OSError: The address is in use, or does not belong to this machine.
        """
        self._server = await asyncio.get_running_loop().create_server(
            self._protocol,
            self.host or None,
            self.port,
            backlog=_BACKLOG,
            reuse_address=True,
        )
        self.port = self._server.sockets[0].getsockname()[1]
        if self.state.tls is not None:
            self.state.tls.start()

    def _protocol(self) -> asyncio.BaseProtocol:
        """Return the protocol of a new connection."""
        channel = self._new_channel()
        state = self.state
        inner = cast(asyncio.BufferedProtocol, channel)
        protocol = inner if state.tls is None else state.tls.protocol(channel)
        if state.proxies is None:
            return protocol
        return state.proxies.protocol(
            channel, protocol, lambda source: self._use_source(channel, source)
        )

    def _use_source(self, channel: _C, source: ProxySource) -> None:
        """Replace a connection's peer by the proxy's client; close it if it exceeds a limit."""
        self.state.closed(channel)
        channel.use_source(source)
        self._admit(channel, self._count(channel))

    def _count(self, channel: _C) -> Limit | None:
        """Count a connection; return the limit that it exceeds."""
        excess = self.state.excess(channel.address)
        self.state.opened(channel.address)
        return excess

    def _admit(self, channel: _C, excess: Limit | None) -> None:
        """Keep a counted connection, unless it exceeds a limit and no other one can be dropped."""
        if excess is not None and not self._makes_room(channel.address, excess):
            channel.cut(excess)
        else:
            now_s = asyncio.get_running_loop().time()
            self.state.silent.add(channel, channel.address, now_s)

    def _makes_room(self, address: str, excess: Limit) -> bool:
        """Close the connection that has been silent for longest; return whether there was one.

        Otherwise clients that only connect would keep all others out.

        Args:
            address: Address of the new connection.
            excess: The limit that it exceeds.
        """
        silent = self.state.silent.oldest(
            asyncio.get_running_loop().time() - SILENT_S,
            address if excess.name == limits.CONNECTIONS_PER_ADDRESS.name else None,
        )
        if silent is None:
            return False
        self.state.silent.remove(silent)
        silent.cut(excess)
        return True

    async def _stop_accepting(self) -> asyncio.Server | None:
        """Accept no more connections; return the socket, None if there is none."""
        server, self._server = self._server, None
        if server is None:
            return None
        if self.state.tls is not None:
            await self.state.tls.stop()
        if self.state.proxies is not None:
            self.state.proxies.deadlines.stop()
        server.close()
        return server
