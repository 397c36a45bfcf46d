"""Usage of limited resources by client address, so that no client takes all of them.

An address covers all connections from it. The total of each resource is limited elsewhere; if there
are too many addresses, the least recently used one is evicted.
"""

from dataclasses import dataclass

from reput.errors import LimitExceeded
from reput.limits import Limit

ADDRESSES_MAX = 10_000
"""Addresses with counts; the least recently used one is evicted."""

OWN = ""
"""Address of the broker's own use, which is not counted."""


class AddressQuota:
    """Current use of a resource by address."""

    def __init__(self) -> None:
        self._used: dict[str, int] = {}

    def __len__(self) -> int:
        """Return the number of addresses with counts."""
        return len(self._used)

    def used(self, address: str) -> int:
        """Return the count of an address."""
        return self._used.get(address, 0)

    def check(self, address: str, limit: Limit, maximum: int, count: int = 1) -> None:
        """Refuse an address that would exceed its maximum.

        Args:
            address: Address of the client; ``OWN`` has no maximum.
            limit: The limited resource.
            maximum: Configured maximum per address.
            count: The additional use.

        Raises:
            LimitExceeded: The address would exceed it.
        """
        if address != OWN and self.used(address) + count > maximum:
            raise exceeded(limit, maximum, address)

    def add(self, address: str, count: int = 1) -> None:
        """Count a use."""
        if address == OWN:
            return
        # Reinsert it: the dict is ordered from the least to the most recently used.
        self._used[address] = self._used.pop(address, 0) + count
        if len(self._used) > ADDRESSES_MAX:
            del self._used[next(iter(self._used))]

    def release(self, address: str, count: int = 1) -> None:
        """Subtract a use that has ended."""
        left = self._used.get(address, 0) - count
        if left > 0:
            self._used[address] = left
        else:
            self._used.pop(address, None)


@dataclass(slots=True)
class Reservation:
    """The remaining room that is reserved for a list of entries."""

    count: int
    size: int


class Reservations:
    """Room in a table for lists whose entries are put a part at a time.

    The contents and reservations of a table stay within its limits together, so that lists that are
    put at the same time do not use the same room.
    """

    def __init__(self) -> None:
        self.count = 0
        """Reserved entries."""
        self.size = 0
        """Reserved queues or bytes of entries."""

    def reserve(self, count: int, size: int) -> Reservation:
        """Reserve room for the new entries of a list, and for the growth of all its entries."""
        reservation = Reservation(max(0, count), max(0, size))
        self.count += reservation.count
        self.size += reservation.size
        return reservation

    def use(self, reservation: Reservation, count: int, size: int) -> None:
        """Record that an entry of the list was put.

        Args:
            reservation: Reservation of the list.
            count: Entries that were added to the table.
            size: Growth of the table's content; if an entry shrinks, the difference stays reserved
                for later ones.
        """
        self._set(reservation, reservation.count - count, reservation.size - size)

    def release(self, reservation: Reservation) -> None:
        """Release the remaining reservation."""
        self._set(reservation, 0, 0)

    def _set(self, reservation: Reservation, count: int, size: int) -> None:
        count, size = max(0, count), max(0, size)
        self.count += count - reservation.count
        self.size += size - reservation.size
        reservation.count, reservation.size = count, size


def host_of(peer: str) -> str:
    """Return the address in ``ip:port``."""
    return peer.rpartition(":")[0]


def exceeded(limit: Limit, maximum: int, place: str = "") -> LimitExceeded:
    """Return the error that refuses one more than the configured maximum."""
    return limit.at(maximum).exceeded(maximum + 1, place)
