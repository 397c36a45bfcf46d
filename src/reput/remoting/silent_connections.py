"""Connections that have not sent a whole frame, in the order of their age. Pure.

At the limit of connections, of a server or of an address, the oldest of them makes room for a new
one: clients that only connect do not keep others out. Below the limit there is no hurry: clients of
RocketMQ may open a connection seconds before they use it. Finding the oldest takes the same time
however many there are.
"""

from collections.abc import Hashable
from typing import Generic, TypeVar

_C = TypeVar("_C", bound=Hashable)


class SilentConnections(Generic[_C]):
    """The silent connections of all ports of a server."""

    def __init__(self) -> None:
        self._opened: dict[_C, tuple[str, float]] = {}  # oldest first, with address and time
        self._of_address: dict[str, dict[_C, None]] = {}  # oldest first

    def __len__(self) -> int:
        """Return the number of silent connections."""
        return len(self._opened)

    def add(self, connection: _C, address: str, now_s: float) -> None:
        """Add a new connection.

        Args:
            connection: The connection.
            address: Its remote address, without the port.
            now_s: The time, in seconds; not before that of the connection added last.
        """
        self._opened[connection] = (address, now_s)
        self._of_address.setdefault(address, {})[connection] = None

    def remove(self, connection: _C) -> None:
        """Remove a connection that has sent a frame or is closed; nothing if it was removed."""
        address, _ = self._opened.pop(connection, ("", 0.0))
        others = self._of_address.get(address)
        if others is not None:
            others.pop(connection, None)
            if not others:
                del self._of_address[address]

    def oldest(self, before_s: float, address: str | None = None) -> _C | None:
        """Return the connection that has been silent for longest; None if there is none.

        Args:
            before_s: The latest time at which it may have been added, in seconds.
            address: Address of the connection; None: any.
        """
        candidates = self._opened if address is None else self._of_address.get(address, {})
        oldest = next(iter(candidates), None)
        if oldest is None or self._opened[oldest][1] > before_s:
            return None
        return oldest
