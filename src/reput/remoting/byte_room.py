"""Room for messages that are worked on: bytes per connection, per address and in total.

A message that finds no room waits, and is not refused: what waits is small, as it is compressed, or
not read yet. The messages of an address continue in order; addresses take turns. One
message of a connection always finds room if its address, and the server, have nothing else.
"""

import asyncio
from collections import Counter, deque
from collections.abc import Hashable

from reput.limits import Limit

Claim = tuple[Hashable, str, int, "asyncio.Future[None]"]
"""Connection, address, bytes, and the future of the waiting caller."""


class ByteRoom:
    """Room of a server.

    Args:
        in_all: The limit of the sum.
        per_address: The limit of the sum of an address.
        per_connection: The limit of the sum of a connection.
    """

    def __init__(self, in_all: Limit, per_address: Limit, per_connection: Limit) -> None:
        self.total_bytes = 0
        """Sum of all messages, in bytes."""
        self._in_all = in_all
        self._per_address = per_address
        self._per_connection = per_connection
        self._taken: Counter[Hashable] = Counter()  # by connection, and by address
        self._waiting: dict[str, deque[Claim]] = {}  # by address, in turn

    async def take(self, connection: Hashable, address: str, count: int) -> None:
        """Reserve bytes as soon as there is room."""
        if address not in self._waiting and self._fits(connection, address, count):
            self.add(connection, address, count)
            return
        has_room = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(address, deque()).append((connection, address, count, has_room))
        try:
            await has_room
        except asyncio.CancelledError:
            if has_room.done() and not has_room.cancelled():
                self.release(connection, address, count)
            else:
                self._admit()
            raise

    def release(self, connection: Hashable, address: str, count: int) -> None:
        """Return reserved bytes."""
        self.add(connection, address, -count)
        if self._waiting:
            self._admit()

    def _fits(self, connection: Hashable, address: str, count: int) -> bool:
        return all(
            not taken or taken + count <= limit.maximum
            for taken, limit in (
                (self.total_bytes, self._in_all),
                (self._taken[address], self._per_address),
                (self._taken[connection], self._per_connection),
            )
        )

    def add(self, connection: Hashable, address: str, count: int) -> None:
        """Reserve bytes without waiting; later callers wait until they are returned."""
        self.total_bytes += count
        for key in (connection, address):
            self._taken[key] += count
            if not self._taken[key]:
                del self._taken[key]

    def _admit(self) -> None:
        """Resume the callers for which there is room now, the first ones of each address."""
        for address, claims in list(self._waiting.items()):
            has_admitted = False
            while claims:
                connection, _, count, has_room = claims[0]
                if not has_room.done():
                    if not self._fits(connection, address, count):
                        break
                    self.add(connection, address, count)
                    has_room.set_result(None)
                    has_admitted = True
                claims.popleft()
            if has_admitted or not claims:
                del self._waiting[address]
                if claims:
                    self._waiting[address] = claims  # the last one in turn
