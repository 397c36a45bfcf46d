"""The client's end of a connection to a server of this process, without a socket.

With it, a part of the process is a client of a server, and has everything that a connection has:
limits, time slices, held requests, and requests of the server.

    request        -> the server handles it while it is written: mostly its reply is there then
    held reply, or
    a request of the server -> a later turn of the loop: no callback of the server runs its client
"""

import asyncio

from reput.errors import NotAFrame
from reput.format.command import Command
from reput.format.signing import Signer
from reput.remoting.addressed import address_of
from reput.remoting.channel import Channel, Owner
from reput.remoting.pipe import Pipe

HIGH_BYTES = 64 * 1024
"""Number of bytes that the server has not read above which a writer must wait."""


class InnerChannel(Channel):
    """A connection of this process to a server.

    Its requests must not be sent by callbacks of the server (``Pipe.exchange``).

    Args:
        owner: Owner of this end.
        buffer: Read buffer, which it may share with others.
        server: The server's end.
        address: Host and port of the client that the server sees.
        server_address: Host and port of the server.
        signer: Signs the requests; without it they are not signed.
    """

    _has_late = False  # bytes are kept, before which no others may be taken

    def __init__(
        self,
        owner: Owner,
        buffer: bytearray | memoryview,
        server: asyncio.BufferedProtocol,
        address: tuple[str, int],
        server_address: tuple[str, int],
        signer: Signer | None = None,
    ) -> None:
        super().__init__(owner, buffer, signer=signer)
        self._late: list[bytes] = []
        self._set_peer(server_address)
        _, self.local_host = address_of(address)
        self._transport = self._pipe = Pipe(
            server,
            address,
            server_address,
            self._keep_late,
            lambda: self.connection_lost(None),
            self.resume_writing,
        )
        owner.on_open(self)

    def write(self, data: bytes) -> None:
        """Pass frames to the server, unless the connection is closed; take its replies."""
        if self.is_closed:
            return
        replies = self._pipe.exchange(data)
        if replies:
            self._take_now(replies)
        if self._pipe.waiting_bytes > HIGH_BYTES:
            self.pause_writing()

    def _take_now(self, data: bytes) -> None:
        """Take what the server has written, unless it follows something that comes later."""
        position = 0
        if not self._has_late:
            try:
                position = self.take_frames(memoryview(data), 0, len(data))
            except NotAFrame as error:
                self.close(error)
                return
        if position < len(data):
            self._keep_late(data[position:])

    def _take_request(self, request: Command) -> None:
        self._loop.call_soon(self.handle, request)

    def _keep_late(self, data: bytes) -> None:
        """Keep bytes of the server for a later turn of the loop."""
        if not self._late:
            self._loop.call_soon(self._read_late)
            self._has_late = True
        self._late.append(data)

    def _read_late(self) -> None:
        data = memoryview(b"".join(self._late))
        self._late = []
        while data and not self.is_closed:
            room = self.get_buffer(-1)
            size = min(len(room), len(data))
            room[:size] = data[:size]
            data = data[size:]
            self.buffer_updated(size)
        self._has_late = bool(self._late) or self._frames.has_beginning
