"""TLS between a transport and a channel: a protocol of the one, a transport of the other.

    transport -> buffer_updated -> TlsSession -> the channel's buffer -> channel.buffer_updated
    transport <- write          <- TlsSession <- channel

The plain bytes of a read go into the buffer that plain connections read into, as one piece: all
that follows is the same with and without TLS.
"""

import asyncio
from collections.abc import Callable, Hashable
from typing import Any, Protocol, cast

from reput.errors import TlsFailed
from reput.limits import Limit
from reput.remoting.tls import PIECE_BYTES, TlsSession

READ_BYTES = 64 * 1024
"""Size of the buffer for encrypted bytes, which the connections of an owner share."""
HANDSHAKE_READ_BYTES = 4 * 1024
"""Largest read of a handshake: its session keeps the bytes, which are not counted."""


class Inner(Hashable, Protocol):
    """The user of the plain bytes: a channel."""

    is_closed: bool
    peer: str
    address: str

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start the connection."""

    def connection_lost(self, exc: Exception | None) -> None:
        """End the connection."""

    def use_transport(self, transport: asyncio.Transport) -> None:
        """Read from and write to another transport."""

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return the buffer for the next bytes."""

    def buffer_updated(self, nbytes: int) -> None:
        """Handle bytes that were read into the buffer of ``get_buffer``."""

    def pause_writing(self) -> None:
        """Pause writing, since the peer does not read."""

    def resume_writing(self) -> None:
        """Resume writing, since the peer reads again."""

    def close(self, problem: Exception | None = None) -> None:
        """Close the connection."""

    def cut(self, limit: Limit) -> None:
        """Close the connection at once because of a limit."""


class TlsConnection(asyncio.BufferedProtocol):
    """A connection with TLS.

    Args:
        inner: The channel.
        session: The state of TLS.
        buffer: The buffer for encrypted bytes.
        on_input: Called when more of a handshake has arrived, to call ``advance``: now, or when it
            is this connection's turn.
        on_handshake: Called once with the result of the handshake: None, or the reason of failure.
        on_kept: Called with the encrypted bytes that are kept while the channel is paused.
    """

    def __init__(
        self,
        inner: Inner,
        session: TlsSession,
        buffer: memoryview,
        *,
        on_input: Callable[["TlsConnection"], object],
        on_handshake: Callable[["TlsConnection", TlsFailed | None], object],
        on_kept: Callable[["TlsConnection", int], object] = lambda connection, kept_bytes: None,
    ) -> None:
        self.inner = inner
        self._session = session
        self._buffer = buffer
        self._on_input = on_input
        self._on_handshake = on_handshake
        self._on_kept = on_kept
        self._kept = b""
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._is_judged = False  # whether the result of the handshake is known
        self._is_paused = False
        self._has_more = False  # whether plain bytes may wait in the session

    # --- towards the transport ----------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin the handshake of a client; called by the loop."""
        self._transport = cast(asyncio.Transport, transport)
        self.inner.connection_made(self.as_transport)
        self.advance()

    def take_over(self, transport: asyncio.Transport, data: bytes) -> None:
        """Begin the handshake of a server.

        Args:
            transport: The transport, which is paused.
            data: The first bytes that were read from it.
        """
        self._transport = transport
        self._is_paused = True
        self.inner.use_transport(self.as_transport)
        transport.set_protocol(self)
        self._session.feed(data)
        self.advance()

    def connection_lost(self, exc: Exception | None) -> None:
        """End the connection; called by the loop."""
        self._judge(TlsFailed("closed by the other side during the handshake"))
        self._keep(b"")
        self.inner.connection_lost(exc)
        if self._transport is not None:
            # Each would keep the other, and the session its 50 kB, until the collector runs.
            self.inner.use_transport(self._transport)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return the buffer for encrypted bytes; called by the loop."""
        if self._session.is_established:
            return self._buffer
        return self._buffer[:HANDSHAKE_READ_BYTES]

    def buffer_updated(self, nbytes: int) -> None:
        """Handle encrypted bytes; called by the loop."""
        self._received(self._buffer[:nbytes])

    def pause_writing(self) -> None:
        """Notify the owner that the peer does not read; called by the loop."""
        self.inner.pause_writing()

    def resume_writing(self) -> None:
        """Notify the owner that the peer reads again; called by the loop."""
        self.inner.resume_writing()

    # --- limits -------------------------------------------------------------------------------

    @property
    def address(self) -> str:
        """The peer's ip."""
        return self.inner.address

    def cut(self, limit: Limit) -> None:
        """Close the connection at once because of a limit."""
        self.inner.cut(limit)

    # --- the session --------------------------------------------------------------------------

    def _received(self, data: memoryview) -> None:
        if self.inner.is_closed:
            return
        try:
            if self._session.is_established:
                self._deliver(data)
            else:
                self._session.feed(data)
                self._on_input(self)
        except TlsFailed as error:
            self.fail(error)

    def advance(self) -> None:
        """Continue the handshake."""
        if self.inner.is_closed or self._session.is_established:
            return
        self.resume_reading()
        try:
            if self._session.shake():
                self._judge(None)
                self._has_more = True  # requests may have come with the handshake
                self._deliver(memoryview(b""))
            else:
                self._flush()
        except TlsFailed as error:
            self.fail(error)

    def _deliver(self, data: memoryview) -> None:
        """Pass plain bytes on, all that a read brings at once."""
        session, inner = self._session, self.inner
        if self._kept:
            data = memoryview(b"".join((self._kept, data)))
        position, end, has_more = 0, len(data), True
        while has_more and not self._is_paused and not inner.is_closed:
            room = inner.get_buffer(-1)
            filled, size = session.decrypt_into(room) if self._has_more else 0, len(room)
            while filled < size and position < end:
                session.feed(
                    data if end <= PIECE_BYTES else data[position : position + PIECE_BYTES]
                )
                position += PIECE_BYTES
                filled += session.decrypt_into(room[filled:] if filled else room)
            self._has_more = has_more = filled == size
            if filled:
                inner.buffer_updated(filled)
        # Not in the session: its buffers never shrink, and are not counted.
        self._keep(b"" if inner.is_closed else data[position:])
        if self._kept:
            self._has_more = True
        self._flush()
        is_over = session.failure is not None or session.has_ended
        if is_over and self._is_paused:
            # The channel still has requests of the peer to handle. Without TLS, too, it learns of
            # the end when it reads again.
            self._has_more = True
        elif is_over and not has_more:
            if session.failure is not None:
                raise session.failure
            inner.close()

    def _keep(self, data: bytes | memoryview) -> None:
        """Keep encrypted bytes until the channel reads again, instead of those kept before."""
        if data or self._kept:
            self._kept = bytes(data)
            self._on_kept(self, len(data))

    def _flush(self) -> None:
        if self._session.has_output and self._transport is not None:
            self._transport.write(self._session.take_output())

    def fail(self, error: TlsFailed) -> None:
        """Close the connection because of an error, which the peer gets to know."""
        self._flush()
        self._judge(error)
        self.inner.close(error)

    def _judge(self, failure: TlsFailed | None) -> None:
        if not self._is_judged:
            self._is_judged = True
            self._on_handshake(self, failure)

    # --- towards the channel ------------------------------------------------------------------

    @property
    def as_transport(self) -> asyncio.Transport:
        """This connection as the transport of its channel."""
        return cast(asyncio.Transport, self)

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Return a property of the connection, such as the peer's address."""
        assert self._transport is not None, "there is no connection yet"
        return self._transport.get_extra_info(name, default)

    def write(self, data: bytes) -> None:
        """Encrypt and send bytes."""
        if self._transport is not None and self._session.is_established:
            try:
                self._transport.write(self._session.encrypt(data))
            except TlsFailed as error:
                self._loop.call_soon(self.fail, error)  # the channel is in the middle of a write

    def get_write_buffer_size(self) -> int:
        """Return the number of encrypted bytes that are not sent yet."""
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    def pause_reading(self) -> None:
        """Deliver nothing more until ``resume_reading``."""
        self._is_paused = True
        if self._transport is not None:
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Resume delivering bytes, first the waiting ones."""
        if not self._is_paused:
            return
        self._is_paused = False
        if self._transport is not None:
            self._transport.resume_reading()
        if self._has_more:
            # Not at once: the channel is using the buffer.
            self._loop.call_soon(self._received, memoryview(b""))

    def close(self) -> None:
        """Close the connection after pending writes."""
        self._keep(b"")
        self._session.end()
        self._flush()
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Close the connection at once."""
        self._keep(b"")
        if self._transport is not None:
            self._transport.abort()
