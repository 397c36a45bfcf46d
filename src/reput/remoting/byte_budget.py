"""Limits the bytes that connections make a server keep: per address and in total. Pure.

Each change of a connection's bytes is reported. When a sum exceeds its maximum, the budget returns
the connection to drop: one of the largest, to a factor of two, and of these the one that has been
it for longest. Finding it takes the same time however many connections there are: thousands may
exceed a limit in one turn of the loop.
"""

from collections.abc import Hashable
from typing import Generic, TypeVar

from reput.limits import Limit

_C = TypeVar("_C", bound=Hashable)

_BITS_MAX = 64
"""Upper limit of the binary digits of a number of bytes in memory."""


class ByteBudget(Generic[_C]):
    """The bytes that are kept for connections.

    Args:
        in_all: The limit of the sum.
        per_address: The limit of the sum of one address.
    """

    def __init__(self, in_all: Limit, per_address: Limit) -> None:
        self.total_bytes = 0
        """Sum of all connections, in bytes."""
        self._in_all = in_all
        self._per_address = per_address
        self._kept: dict[_C, tuple[str, int]] = {}
        self._of_address: dict[str, int] = {}
        # (address, or None for all; binary digits of the bytes) -> connections, oldest first.
        self._by_size: dict[tuple[str | None, int], dict[_C, None]] = {}

    def __len__(self) -> int:
        """Return the number of connections with kept bytes."""
        return len(self._kept)

    def set(self, connection: _C, address: str, kept_bytes: int) -> tuple[_C, Limit] | None:
        """Set the bytes that are kept for a connection.

        Args:
            connection: The connection.
            address: Its remote address, without the port.
            kept_bytes: Number of bytes; 0 removes the connection.

        Returns:
            The connection to drop and the exceeded limit; None if all limits are met.
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
        if kept_bytes.bit_length() != before.bit_length():
            for owner in (address, None):
                self._sort(connection, owner, before.bit_length(), kept_bytes.bit_length())
        if of_address > self._per_address.maximum:
            return self._largest(address), self._per_address
        if self.total_bytes > self._in_all.maximum:
            return self._largest(None), self._in_all
        return None

    def _sort(self, connection: _C, owner: str | None, bits_before: int, bits: int) -> None:
        """Move a connection to those of its size."""
        if bits_before:
            others = self._by_size[owner, bits_before]
            del others[connection]
            if not others:
                del self._by_size[owner, bits_before]
        if bits:
            self._by_size.setdefault((owner, bits), {})[connection] = None

    def _largest(self, address: str | None) -> _C:
        """Return the connection to drop, of one address or of all."""
        sizes = (self._by_size.get((address, bits)) for bits in range(_BITS_MAX, 0, -1))
        return next(iter(next(filter(None, sizes))))
