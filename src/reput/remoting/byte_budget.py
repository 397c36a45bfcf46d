"""Bounds the bytes that connections make a server keep: per address and in all. Pure.

A connection says how much is kept for it whenever that changes. When a sum is over its maximum, the
budget names the connection to drop: the one that has kept most for longest is the one that least
deserves to stay, so the victim is the largest, and of equals the oldest.
"""

from collections.abc import Hashable
from typing import Generic, TypeVar

from reput.limits import Limit

_C = TypeVar("_C", bound=Hashable)


class ByteBudget(Generic[_C]):
    """The bytes that are kept for connections.

    Args:
        in_all: The limit of the sum.
        per_address: The limit of the sum of one address.
    """

    def __init__(self, in_all: Limit, per_address: Limit) -> None:
        self.total_bytes = 0
        """The sum over all connections."""
        self._in_all = in_all
        self._per_address = per_address
        self._kept: dict[_C, tuple[str, int]] = {}  # the oldest first
        self._of_address: dict[str, int] = {}

    def __len__(self) -> int:
        """How many connections have something kept."""
        return len(self._kept)

    def set(self, connection: _C, address: str, kept_bytes: int) -> tuple[_C, Limit] | None:
        """Take note of how much is kept for a connection.

        Args:
            connection: Whose.
            address: Where it comes from, without the port.
            kept_bytes: How much; 0 forgets it.

        Returns:
            The connection to drop and the limit that is exceeded; None if all is within limits.
        """
        _, before = self._kept.get(connection, (address, 0))
        self.total_bytes += kept_bytes - before
        of_address = self._of_address.get(address, 0) + kept_bytes - before
        if kept_bytes:
            self._kept[connection] = (address, kept_bytes)
        else:
            self._kept.pop(connection, None)
        if of_address:
            self._of_address[address] = of_address
        else:
            self._of_address.pop(address, None)
        if of_address > self._per_address.maximum:
            return self._largest(address), self._per_address
        if self.total_bytes > self._in_all.maximum:
            return self._largest(None), self._in_all
        return None

    def _largest(self, address: str | None) -> _C:
        """Return the connection with the most bytes, of one address or of all."""
        candidates = (
            connection
            for connection, (origin, _) in self._kept.items()
            if address is None or origin == address
        )
        return max(candidates, key=lambda connection: self._kept[connection][1])
