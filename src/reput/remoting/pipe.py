"""A connection to a server of this process whose replies are there when a write returns.

A part of the process passes its requests, and gets the replies that the server writes at once.
Replies that the server holds back come later.
"""

import asyncio
from collections.abc import Callable


class Pipe(asyncio.Transport):
    """The server's end of a connection; the other end is the one that calls ``exchange``.

    Args:
        protocol: Protocol of the server.
        address: Address of the client: host and port.
        own_address: Address of the server.
        on_late: Called with bytes that the server writes outside of ``exchange``.
        on_closed: Called when the connection has ended.
        on_read: Called when the server has read what waited for it (``waiting_bytes``).
    """

    def __init__(
        self,
        protocol: asyncio.BufferedProtocol,
        address: tuple[str, int],
        own_address: tuple[str, int],
        on_late: Callable[[bytes], object],
        on_closed: Callable[[], object],
        on_read: Callable[[], object] = lambda: None,
    ) -> None:
        super().__init__({"peername": address, "sockname": own_address})
        self._loop = asyncio.get_running_loop()
        self._protocol = protocol
        self._on_late = on_late
        self._on_closed = on_closed
        self._on_read = on_read
        self.waiting_bytes = 0
        """Bytes that wait until the server reads again."""
        self._waiting: list[memoryview] = []  # not a deque: an empty one takes 0.7 KB
        self._replies: list[bytes] | None = None
        self._is_reading = True
        self._is_closing = False
        protocol.connection_made(self)

    @property
    def is_ready(self) -> bool:
        """True if the server is reading."""
        return self._is_reading and not self._is_closing and not self._waiting

    def exchange(self, data: bytes) -> bytes:
        """Pass requests to the server; return the bytes that it writes meanwhile.

        Not to be called by a callback of the server's connections: they share a buffer.
        """
        replies: list[bytes] = []
        self._replies = replies
        self._waiting.append(memoryview(data))
        try:
            self._deliver()
        finally:
            self._replies = None
        return b"".join(replies)

    def _deliver(self) -> None:
        while self._waiting and self._is_reading and not self._is_closing:
            data = self._waiting.pop(0)
            room = memoryview(self._protocol.get_buffer(-1))
            size = min(len(room), len(data))
            room[:size] = data[:size]
            if size < len(data):
                self._waiting.insert(0, data[size:])
            self._protocol.buffer_updated(size)
        self.waiting_bytes = sum(map(len, self._waiting)) if self._waiting else 0

    def _deliver_waiting(self) -> None:
        self._deliver()
        if not self._waiting:
            self._on_read()

    # The server's transport -------------------------------------------------------------------

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Pass bytes to the client."""
        if self._is_closing:
            return
        if self._replies is None:
            self._on_late(bytes(data))
        else:
            self._replies.append(bytes(data))

    def get_write_buffer_size(self) -> int:
        """Return 0, since the client reads all bytes at once."""
        return 0

    def pause_reading(self) -> None:
        """Read nothing until ``resume_reading``."""
        self._is_reading = False

    def resume_reading(self) -> None:
        """Resume reading."""
        self._is_reading = True
        if self._waiting:
            self._loop.call_soon(self._deliver_waiting)

    def is_reading(self) -> bool:
        """Return False between ``pause_reading`` and ``resume_reading``."""
        return self._is_reading and not self._is_closing

    def is_closing(self) -> bool:
        """Return True after ``close`` or ``abort``."""
        return self._is_closing

    def close(self) -> None:
        """Close the connection."""
        if not self._is_closing:
            self._is_closing = True
            self._waiting.clear()
            self._loop.call_soon(self._lose)

    abort = close

    def _lose(self) -> None:
        self._protocol.connection_lost(None)
        self._on_closed()
