"""TLS of one connection without I/O: encrypted bytes in and out, plain bytes in and out.

Until the handshake is done: ``feed``, ``shake``, ``take_output``. From then on, ``feed`` and
``decrypt_into`` for bytes of the peer, and ``encrypt`` for bytes to it.
"""

import contextlib
import ssl
from typing import cast

from reput.errors import TlsFailed
from reput.format.command import Buffer
from reput.remoting import limits
from reput.remoting.tls_settings import reason_of

PIECE_BYTES = 16 * 1024
"""Bytes given to OpenSSL at once, the size of a record: its buffers never shrink."""


class TlsSession:
    """The state of TLS of a connection.

    Args:
        context: Certificates and versions.
        is_server: Whether this side accepted the connection.
    """

    def __init__(self, context: ssl.SSLContext, *, is_server: bool) -> None:
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._object = context.wrap_bio(self._incoming, self._outgoing, server_side=is_server)
        self._handshake_bytes = 0
        self.failure: TlsFailed | None = None
        """Reason why no more bytes can be decrypted."""
        self.is_established = False
        """True if the handshake is done."""
        self.has_ended = False
        """True if the peer has sent its last byte."""

    def feed(self, data: Buffer) -> None:
        """Take encrypted bytes."""
        if not self.is_established:
            self._handshake_bytes += len(data)
        self._incoming.write(data)

    def shake(self) -> bool:
        """Continue the handshake with the bytes fed; return True if it is done.

        Raises:
            TlsFailed: It cannot be done, or is longer than the limit; ``take_output`` has the
                reason for the peer.
        """
        if not self.is_established:
            try:
                self._object.do_handshake()
            except ssl.SSLWantReadError:
                # Not checked before: the last bytes may be those of requests.
                limit = limits.TLS_HANDSHAKE_BYTES
                if self._handshake_bytes > limit.maximum:
                    raise TlsFailed(str(limit.exceeded())) from None
                return False
            except (ssl.SSLError, OSError) as error:
                raise TlsFailed(reason_of(error)) from None
            self.is_established = True
        return True

    def decrypt_into(self, room: memoryview) -> int:
        """Write plain bytes into ``room``; return their number, less than fit if there are no more.

        ``failure`` is set if the next bytes are not encrypted by the peer.
        """
        filled, size = 0, len(room)
        # Without these checks each read would end with an exception, which costs more than
        # decrypting a request.
        while (
            filled < size
            and (self._incoming.pending or self._object.pending())
            and not self.has_ended
            and self.failure is None
        ):
            try:
                rest = room[filled:] if filled else room
                count = cast(int, self._object.read(size - filled, rest))
            except ssl.SSLWantReadError:
                break
            except ssl.SSLZeroReturnError:
                count = 0
            except (ssl.SSLError, OSError) as error:
                self.failure = TlsFailed(reason_of(error))
                break
            self.has_ended = not count
            filled += count
        return filled

    def encrypt(self, data: Buffer) -> bytes:
        """Return plain bytes encrypted, after any pending output.

        Raises:
            TlsFailed: The session has failed or ended.
        """
        try:
            if 0 < len(data) <= PIECE_BYTES:
                self._object.write(data)
                return self._outgoing.read()
            view = memoryview(data)
            pieces = []
            while view:
                view = view[self._object.write(view[:PIECE_BYTES]) :]
                pieces.append(self._outgoing.read())
        except (ssl.SSLError, OSError) as error:
            raise TlsFailed(reason_of(error)) from None
        return b"".join(pieces)

    @property
    def has_output(self) -> bool:
        """True if ``take_output`` returns bytes."""
        return self._outgoing.pending > 0

    def take_output(self) -> bytes:
        """Return bytes for the peer: handshake, session tickets, or an alert."""
        return self._outgoing.read()

    def end(self) -> None:
        """Encode that no more bytes follow, for ``take_output``."""
        if self.is_established:
            # It would wait for the peer's end, or the session has failed.
            with contextlib.suppress(ssl.SSLError, OSError):
                self._object.unwrap()
