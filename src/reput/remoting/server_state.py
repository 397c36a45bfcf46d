"""What the connections of a server share: the queue of long work, and the limits of their sum."""

import logging
import time
from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass, fields, replace
from typing import Protocol

from reput import limits
from reput.limits import Limit, Refusals
from reput.remoting import time_slices
from reput.remoting.byte_budget import ByteBudget
from reput.remoting.client_faults import ClientFaults
from reput.remoting.time_slices import TimeSlices

_log = logging.getLogger(__name__)


class Cuttable(Hashable, Protocol):
    """A connection that can be closed because it costs too much."""

    def cut(self, limit: Limit) -> None:
        """Close the connection at once, as a limit says."""


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """What the connections of a server may cost. Each has a key of its own in the settings."""

    connections: Limit = limits.CONNECTIONS
    connections_per_address: Limit = limits.CONNECTIONS_PER_ADDRESS
    unfinished_bytes: Limit = limits.UNFINISHED_BYTES
    unfinished_bytes_per_address: Limit = limits.UNFINISHED_BYTES_PER_ADDRESS
    unread_bytes: Limit = limits.UNREAD_BYTES
    unread_bytes_per_address: Limit = limits.UNREAD_BYTES_PER_ADDRESS

    @classmethod
    def of(cls, settings: object, descriptor_count: int) -> "ConnectionLimits":
        """Return the limits that settings say.

        Args:
            settings: Of a broker or name server, with a field for the option of each limit.
            descriptor_count: How many connections the descriptors of the process allow.
        """
        defaults = cls()
        made = cls(*(getattr(defaults, field.name).configured(settings) for field in fields(cls)))
        count = min(made.connections.maximum, descriptor_count)
        return replace(made, connections=made.connections.at(count))


class ServerState:
    """Holds what all connections of a broker or name server share, whatever port they came to.

    None of them can take all of it.

    Args:
        connection_limits: What connections may cost.
        slice_s: How long one connection or long request goes on before others get their turn.
    """

    def __init__(
        self,
        connection_limits: ConnectionLimits | None = None,
        slice_s: float = time_slices.SLICE_S,
    ) -> None:
        made = connection_limits or ConnectionLimits()
        self.connection_limits = made
        self.slices = TimeSlices(slice_s)
        """Long requests that are under way."""
        self.refusals = Refusals()
        """What limits have refused."""
        self.faults = ClientFaults(_log, time.monotonic)
        """Logs what clients do wrong."""
        self.connection_count = 0
        """Connections that are open."""
        self.connections_of: Counter[str] = Counter()
        """Address -> its connections."""
        self.unfinished: ByteBudget[Cuttable] = ByteBudget(
            made.unfinished_bytes, made.unfinished_bytes_per_address
        )
        """The bytes of frames that have not come whole."""
        self.unread: ByteBudget[Cuttable] = ByteBudget(
            made.unread_bytes, made.unread_bytes_per_address
        )
        """The bytes of replies that are not read."""
        self.pushed_bytes = 0
        """The bytes of requests to clients that are not answered yet."""

    def excess(self, address: str) -> Limit | None:
        """Return the limit that one more connection exceeds; None: there is room."""
        if self.connection_count >= self.connection_limits.connections.maximum:
            return self.connection_limits.connections
        if self.connections_of[address] >= self.connection_limits.connections_per_address.maximum:
            return self.connection_limits.connections_per_address
        return None

    def opened(self, address: str) -> None:
        """Count a connection."""
        self.connection_count += 1
        self.connections_of[address] += 1

    def closed(self, address: str) -> None:
        """Count one less."""
        self.connection_count -= 1
        self.connections_of[address] -= 1
        if not self.connections_of[address]:
            del self.connections_of[address]
