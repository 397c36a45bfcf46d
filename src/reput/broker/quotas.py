"""How much of something each address has used, so that none of them takes all there is.

An address stands for all connections from it. What a quota counts is bounded in all elsewhere;
addresses that have not been heard of for longest are forgotten when there are too many.
"""

from dataclasses import dataclass

from reput.errors import LimitExceeded
from reput.limits import Limit

ADDRESSES_MAX = 10_000
"""Maximum number of addresses with counts of their own; the least recently used one is dropped."""

OWN = ""
"""The address where the broker itself uses something: it is not counted."""


class AddressQuota:
    """Uses of something by address since the start."""

    def __init__(self) -> None:
        self._used: dict[str, int] = {}

    def __len__(self) -> int:
        """How many addresses are known."""
        return len(self._used)

    def used(self, address: str) -> int:
        """Return how much the address of a client has used."""
        return self._used.get(address, 0)

    def check(self, address: str, limit: Limit, maximum: int, count: int = 1) -> None:
        """Refuse an address that would use more than it may.

        Args:
            address: Of the client; ``OWN`` may use any number.
            limit: What is counted.
            maximum: How much an address may use, as configured.
            count: How much it is going to use.

        Raises:
            LimitExceeded: It has used that much already.
        """
        if address != OWN and self.used(address) + count > maximum:
            raise exceeded(limit, maximum, address)

    def add(self, address: str, count: int = 1) -> None:
        """Count a use."""
        if address == OWN:
            return
        # The last one to use something stands last.
        self._used[address] = self._used.pop(address, 0) + count
        if len(self._used) > ADDRESSES_MAX:
            del self._used[next(iter(self._used))]

    def give_back(self, address: str, count: int = 1) -> None:
        """Count less: what was used is free again."""
        left = self._used.get(address, 0) - count
        if left > 0:
            self._used[address] = left
        else:
            self._used.pop(address, None)


@dataclass(slots=True)
class Reservation:
    """What is left of the room that a list of entries has in a table."""

    count: int
    size: int


class Reservations:
    """Room in a table for lists whose entries are put a part at a time.

    What a table holds and what is reserved in it stay within its limits together, so that lists
    that are put at the same time do not take the same room.
    """

    def __init__(self) -> None:
        self.count = 0
        """Entries that are reserved."""
        self.size = 0
        """Queues or bytes of entries that are reserved."""

    def reserve(self, count: int, size: int) -> Reservation:
        """Reserve room for new entries, and for what all entries of a list grow by."""
        reservation = Reservation(max(0, count), max(0, size))
        self.count += reservation.count
        self.size += reservation.size
        return reservation

    def use(self, reservation: Reservation, count: int, size: int) -> None:
        """Take note that an entry of the list was put.

        Args:
            reservation: Of the list.
            count: How many more entries the table has.
            size: How much more the table holds; what an entry shrinks by stays reserved for those
                behind it.
        """
        self._set(reservation, reservation.count - count, reservation.size - size)

    def release(self, reservation: Reservation) -> None:
        """Give back what is left."""
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
