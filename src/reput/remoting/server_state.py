"""State shared by the connections of a server: the queue of long work, and limits of their sum."""

import logging
import time
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Protocol

from reput.format.ip_address import Network
from reput.limits import Limit, Refusals
from reput.remoting import limits, time_slices
from reput.remoting.byte_budget import ByteBudget
from reput.remoting.byte_room import ByteRoom
from reput.remoting.client_faults import ClientFaults
from reput.remoting.proxy_acceptor import ProxyAcceptor
from reput.remoting.silent_connections import SilentConnections
from reput.remoting.time_slices import TimeSlices
from reput.remoting.tls_acceptor import TlsAcceptor
from reput.remoting.tls_settings import TlsSettings
from reput.remoting.turns import Turns

_READS = 2
"""Slices that long reads, and all reads of gRPC, may take in a turn of the loop."""

_log = logging.getLogger(__name__)


class Cuttable(Hashable, Protocol):
    """A connection that can be closed because of a limit."""

    def cut(self, limit: Limit) -> None:
        """Close the connection at once because of a limit."""


class _Addressed(Cuttable, Protocol):
    """A connection with the address of its peer."""

    @property
    def address(self) -> str:
        """The peer's ip."""


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """Limits of a server's connections. Each has an option."""

    connections: Limit = limits.CONNECTIONS
    connections_per_address: Limit = limits.CONNECTIONS_PER_ADDRESS
    unfinished_bytes: Limit = limits.UNFINISHED_BYTES
    unfinished_bytes_per_address: Limit = limits.UNFINISHED_BYTES_PER_ADDRESS
    unread_bytes: Limit = limits.UNREAD_BYTES
    unread_bytes_per_address: Limit = limits.UNREAD_BYTES_PER_ADDRESS

    @classmethod
    def of(cls, settings: object, descriptor_count: int) -> "ConnectionLimits":
        """Return the limits of settings.

        Args:
            settings: Settings of a broker or name server, with a field for the option of each
                limit.
            descriptor_count: Connections that the descriptors of the process allow.
        """
        defaults = cls()
        made = cls(*(getattr(defaults, field.name).configured(settings) for field in fields(cls)))
        count = min(made.connections.maximum, descriptor_count)
        return replace(made, connections=made.connections.at(count))


class ServerState:
    """State shared by all connections of a broker or name server, on any port.

    The limits keep a single client from using all resources.

    Args:
        connection_limits: Limits of connections.
        slice_s: Time slice of a connection or long request, in seconds.
        tls: Settings of TLS; None: connections are plain, and their first byte is not looked at.
        proxies: Networks whose connections begin with a PROXY header.
        seconds: The clock of the time slices.
        used_seconds: The clock of the time that each client uses.

    Raises:
        InvalidOption: A file of TLS cannot be used.
    """

    def __init__(
        self,
        connection_limits: ConnectionLimits | None = None,
        slice_s: float = time_slices.SLICE_S,
        tls: TlsSettings | None = None,
        proxies: Sequence[Network] = (),
        seconds: Callable[[], float] = time.perf_counter,
        used_seconds: Callable[[], float] = time.thread_time,
    ) -> None:
        made = connection_limits or ConnectionLimits()
        self.connection_limits = made
        self.slices = TimeSlices(slice_s, seconds, used_seconds)
        """Running long requests."""
        self.turns = Turns(slice_s, seconds, used_seconds)
        """Time of the calls of gRPC in each turn of the loop."""
        self.reads = Turns(_READS * slice_s, seconds, used_seconds)
        """Time of long reads, and of all reads of gRPC, in each turn of the loop."""
        self.room = ByteRoom(
            limits.GRPC_WORKED_ON_BYTES,
            limits.GRPC_WORKED_ON_BYTES_PER_ADDRESS,
            limits.GRPC_WORKED_ON_BYTES_PER_CONNECTION,
        )
        """Room for messages of gRPC that are worked on."""
        self.refusals = Refusals()
        """Counts of refusals by limits."""
        self.faults = ClientFaults(_log, time.monotonic)
        """Logs mistakes of clients."""
        self.proxies = ProxyAcceptor(proxies, self.faults) if proxies else None
        """Connections through proxies; None: no header is read."""
        self.connection_count = 0
        """Number of open connections."""
        self.connections_of: Counter[str] = Counter()
        """Address -> number of its connections."""
        self.silent: SilentConnections[Cuttable] = SilentConnections()
        """Connections without a whole frame, on all ports."""
        self.unfinished: ByteBudget[Cuttable] = ByteBudget(
            made.unfinished_bytes, made.unfinished_bytes_per_address
        )
        """Bytes of incomplete frames, of paused TLS connections, and memory of TLS handshakes."""
        self.unread: ByteBudget[Cuttable] = ByteBudget(
            made.unread_bytes, made.unread_bytes_per_address
        )
        """Bytes of unread replies."""
        self.tls = (
            None
            if tls is None
            else TlsAcceptor(tls, self.slices, self.faults, self._count_unfinished)
        )
        """TLS of the connections."""
        self.pushed_bytes = 0
        """Bytes of requests to clients without a reply yet."""

    def _count_unfinished(self, connection: _Addressed, kept_bytes: int) -> None:
        """Count bytes that are kept for a connection; cut the one that exceeds a limit."""
        excess = self.unfinished.set(connection, connection.address, kept_bytes)
        if excess is not None:
            other, limit = excess
            other.cut(limit)

    def excess(self, address: str) -> Limit | None:
        """Return the limit that another connection would exceed; None if there is room.

        If both are reached, it is the one of the address: a connection that makes room there makes
        room for all.
        """
        made = self.connection_limits
        if self.connections_of[address] >= made.connections_per_address.maximum:
            return made.connections_per_address
        if self.connection_count >= made.connections.maximum:
            return made.connections
        return None

    def opened(self, address: str) -> None:
        """Count a new connection."""
        self.connection_count += 1
        self.connections_of[address] += 1

    def closed(self, connection: _Addressed) -> None:
        """Count the end of a connection."""
        self.silent.remove(connection)
        address = connection.address
        self.connection_count -= 1
        self.connections_of[address] -= 1
        if not self.connections_of[address]:
            del self.connections_of[address]
