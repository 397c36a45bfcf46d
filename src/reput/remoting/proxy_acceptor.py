"""The first bytes of connections from proxies: a header with the address of the client.

    transport -> _HeaderReader -> the protocol that connections have without a proxy

A proxy is a peer in ``reputProxyProtocolFrom``. Its connections must begin with a header, as the
specification requires: a proxy that does not send it is noticed at once, not when a client of it
writes one itself. From all other peers a header is no frame, as without the setting.
"""

import asyncio
import enum
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Protocol, cast

from reput.errors import NotAProxyHeader
from reput.format.ip_address import Network
from reput.format.message import Host
from reput.remoting import limits, networks, proxy_header
from reput.remoting.client_faults import ClientFaults
from reput.remoting.deadlines import Deadlines
from reput.remoting.proxy_header import ProxySource
from reput.remoting.tls_connection import Inner


class HeaderResult(enum.StrEnum):
    """Kind of address in the header of a connection; a label of the metric."""

    SOURCE = "source"
    """The address of a client."""
    NO_SOURCE = "no_source"
    """No address: the proxy is the client, or does not know it."""
    FAILED = "failed"
    """No header: it was missing, wrong or late."""


class Proxied(Inner, Protocol):
    """A channel whose peer may be a proxy."""

    host: Host
    is_proxied: bool


class ProxyAcceptor:
    """Begins connections of a server that may come from proxies.

    Args:
        proxies: The networks of the proxies.
        faults: The log of clients' mistakes.
    """

    def __init__(self, proxies: Iterable[Network], faults: ClientFaults) -> None:
        self.counts: Counter[HeaderResult] = Counter()
        """Connections of proxies by their header."""
        self.deadlines = Deadlines(limits.PROXY_HEADER_MS, _HeaderReader.cut)
        """Connections whose header has begun."""
        self._proxies = tuple(proxies)
        self._faults = faults

    def protocol(
        self,
        channel: Proxied,
        inner: asyncio.BaseProtocol,
        on_source: Callable[[ProxySource], object],
    ) -> asyncio.BaseProtocol:
        """Return the protocol of a new connection, until its header is read.

        Args:
            channel: The channel of the connection.
            inner: The protocol that it has afterwards, and at once if it is not of a proxy.
            on_source: Called with the client that the header names.
        """
        return _HeaderReader(self, channel, cast(asyncio.BufferedProtocol, inner), on_source)

    def is_proxy(self, host: Host) -> bool:
        """Return whether the connections of a host begin with a header."""
        return networks.contain(self._proxies, host.address)

    def failed(self, channel: Proxied, error: NotAProxyHeader) -> None:
        """Report a connection without a correct header."""
        self.counts[HeaderResult.FAILED] += 1
        text = "%s: no PROXY header: %s; closing the connection"
        self._faults.warn("proxy_header", text, channel.peer, error)


class _HeaderReader(asyncio.BufferedProtocol):
    """The protocol of a connection until the end of its header."""

    def __init__(
        self,
        acceptor: ProxyAcceptor,
        channel: Proxied,
        inner: asyncio.BufferedProtocol,
        on_source: Callable[[ProxySource], object],
    ) -> None:
        self._acceptor = acceptor
        self._channel = channel
        self._inner = inner
        self._on_source = on_source
        self._transport: asyncio.Transport | None = None
        self._data = bytearray()
        self._size = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._inner.connection_made(transport)
        if self._acceptor.is_proxy(self._channel.host):
            self._channel.is_proxied = True
            self._data = bytearray(limits.PROXY_HEADER_BYTES.maximum)
        else:
            self._transport.set_protocol(self._inner)

    def connection_lost(self, exc: Exception | None) -> None:
        # A proxy that only looks whether the port is open sends nothing: that is no mistake.
        self._acceptor.deadlines.remove(self)
        if self._size and not self._channel.is_closed:
            self._acceptor.failed(self._channel, NotAProxyHeader("closed by the other side"))
        self._inner.connection_lost(exc)

    def get_buffer(self, sizehint: int) -> memoryview:
        return memoryview(self._data)[self._size :]

    def buffer_updated(self, nbytes: int) -> None:
        if self._channel.is_closed or self._transport is None:
            return
        if not self._size:
            self._acceptor.deadlines.add(self)
        self._size += nbytes
        try:
            header = proxy_header.decode(bytes(self._data[: self._size]))
        except NotAProxyHeader as error:
            self._fail(error)
            return
        if header is None:
            return
        self._acceptor.deadlines.remove(self)
        has_source = header.source is not None
        self._acceptor.counts[HeaderResult.SOURCE if has_source else HeaderResult.NO_SOURCE] += 1
        self._transport.set_protocol(self._inner)
        if header.source is not None:
            self._on_source(header.source)
        rest = self._data[header.size : self._size]
        if rest and not self._channel.is_closed:
            memoryview(self._inner.get_buffer(len(rest)))[: len(rest)] = rest
            self._inner.buffer_updated(len(rest))

    def cut(self) -> None:
        """Close the connection, as its header is late."""
        self._fail(NotAProxyHeader(str(limits.PROXY_HEADER_MS.exceeded())))

    def _fail(self, error: NotAProxyHeader) -> None:
        self._acceptor.deadlines.remove(self)
        self._acceptor.failed(self._channel, error)
        self._channel.close(error)
