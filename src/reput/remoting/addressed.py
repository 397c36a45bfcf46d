"""The addresses of both ends of a connection, as text and in the form of records."""

import asyncio
import functools

from reput.format.ip_address import parse_address
from reput.format.message import Host
from reput.remoting.proxy_header import ProxySource

NOWHERE = Host(b"\0\0\0\0", 0)
"""Address of a peer that has none."""


class Addressed:
    """A connection that knows its addresses once it has a transport."""

    peer = ""
    """Address of the peer, ``ip:port``."""
    address = ""
    """The peer's ip."""
    host = NOWHERE
    """Address of the peer in the form of records."""
    local_host = NOWHERE

    def take_addresses(self, transport: asyncio.BaseTransport) -> None:
        """Record the addresses of a transport."""
        self._set_peer(transport.get_extra_info("peername"))
        _, self.local_host = address_of(transport.get_extra_info("sockname"))

    def use_source(self, source: ProxySource) -> None:
        """Use the client that a proxy names instead of the peer."""
        self._set_peer(source)

    def _set_peer(self, name: tuple[str, int] | tuple[str, int, int, int] | None) -> None:
        self.peer, self.host = address_of(name)
        self.address = self.peer.rpartition(":")[0]


@functools.lru_cache(maxsize=256)  # local ones, and those of clients with several connections
def address_of(name: tuple[str, int] | tuple[str, int, int, int] | None) -> tuple[str, Host]:
    """Return an address as text, and in the form of records."""
    if not name:
        return "", NOWHERE
    text, port = name[0], name[1]
    address = parse_address(text)  # IPv4 on a dual-stack socket is IPv4
    shown = f"[{text}]" if address.version == 6 else str(address)
    return f"{shown}:{port}", Host(address.packed, port)
