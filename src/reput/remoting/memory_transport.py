"""A connection inside of a process: two transports that pass bytes to each other.

With it, a part of the process is a client of a server without a socket, and has everything that a
connection has: batches, time slices, limits, held requests, and requests of the server.
"""

import asyncio
from collections import deque

HIGH_BYTES = 64 * 1024
"""Number of unread bytes of the other side above which a writer must pause."""


class MemoryTransport(asyncio.Transport):
    """One side of a connection.

    Bytes are delivered in a later turn of the loop: a protocol is never called by its own write.

    Args:
        protocol: Protocol of this side.
        address: Address of the other side: host and port.
        own_address: Address of this side.
    """

    def __init__(
        self,
        protocol: asyncio.BufferedProtocol,
        address: tuple[str, int],
        own_address: tuple[str, int],
    ) -> None:
        super().__init__({"peername": address, "sockname": own_address})
        self._loop = asyncio.get_running_loop()
        self._protocol = protocol
        self._other: MemoryTransport | None = None
        self._arrived: deque[memoryview] | None = None  # idle connections have none
        self._arrived_bytes = 0
        self._is_due = False
        self._is_reading = True
        self._is_closing = False
        self._has_paused_writer = False
        self._is_at_end = False

    def connect(self, other: "MemoryTransport") -> None:
        """Set the other side, and start this side's protocol."""
        self._other = other
        self._protocol.connection_made(self)

    # Writing ----------------------------------------------------------------------------------

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Pass bytes to the other side."""
        if self._is_closing or self._other is None or not data:
            return
        self._other._take(memoryview(bytes(data)))

    def get_write_buffer_size(self) -> int:
        """Return the bytes that the other side has not read."""
        return 0 if self._other is None else self._other._arrived_bytes

    def is_closing(self) -> bool:
        """Return True after ``close`` or ``abort``."""
        return self._is_closing

    def close(self) -> None:
        """Close the connection after delivering all written bytes."""
        if self._is_closing:
            return
        self._is_closing = True
        other, self._other = self._other, None
        if other is not None:
            other._end()
        self._lose()

    def abort(self) -> None:
        """Close the connection and drop undelivered bytes."""
        if self._other is not None:
            self._other._arrived = None
        self.close()

    def _lose(self) -> None:
        """Schedule the notification of the protocol about the end of the connection."""
        self._arrived = None
        self._arrived_bytes = 0
        self._loop.call_soon(self._protocol.connection_lost, None)

    # Reading ----------------------------------------------------------------------------------

    def pause_reading(self) -> None:
        """Deliver nothing until ``resume_reading``."""
        self._is_reading = False

    def resume_reading(self) -> None:
        """Resume delivering bytes."""
        self._is_reading = True
        self._deliver_soon()

    def is_reading(self) -> bool:
        """Return False between ``pause_reading`` and ``resume_reading``."""
        return self._is_reading and not self._is_closing

    def _take(self, data: memoryview) -> None:
        if self._arrived is None:
            self._arrived = deque()
        self._arrived.append(data)
        self._arrived_bytes += len(data)
        self._deliver_soon()
        if self._arrived_bytes > HIGH_BYTES and not self._has_paused_writer:
            self._has_paused_writer = True
            self._notify_writer("pause_writing")

    def _notify_writer(self, name: str) -> None:
        if self._other is not None:
            self._loop.call_soon(getattr(self._other._protocol, name))

    def _end(self) -> None:
        """Close this side when everything is delivered."""
        self._is_at_end = True
        self._deliver_soon()

    def _deliver_soon(self) -> None:
        if not self._is_due:
            self._is_due = True
            self._loop.call_soon(self._deliver)

    def _deliver(self) -> None:
        self._is_due = False
        while self._arrived and self._is_reading and not self._is_closing:
            room = memoryview(self._protocol.get_buffer(-1))
            size = 0
            arrived = self._arrived
            while arrived and size < len(room):
                piece = arrived.popleft()
                part = piece[: len(room) - size]
                room[size : size + len(part)] = part
                size += len(part)
                if len(part) < len(piece):
                    arrived.appendleft(piece[len(part) :])
            self._arrived_bytes -= size
            self._protocol.buffer_updated(size)
        if not self._arrived:
            self._arrived = None
        if self._has_paused_writer and self._arrived_bytes <= HIGH_BYTES // 4:
            self._has_paused_writer = False
            self._notify_writer("resume_writing")
        if self._is_at_end and not self._arrived and not self._is_closing:
            self._is_closing = True
            self._other = None
            self._lose()


def join(
    client: asyncio.BufferedProtocol,
    server: asyncio.BufferedProtocol,
    address: tuple[str, int],
    server_address: tuple[str, int],
) -> None:
    """Connect two protocols of the running loop.

    Args:
        client: Protocol of the client.
        server: Protocol of the server.
        address: Address of the client, as the server sees it: host and port.
        server_address: Address of the server, as the client sees it.
    """
    near = MemoryTransport(client, server_address, address)
    far = MemoryTransport(server, address, server_address)
    far.connect(near)
    near.connect(far)
