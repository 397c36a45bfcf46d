"""Connected sockets that do not block, plain or with TLS, for loops that poll them.

A socket with TLS may have decrypted bytes that ``poll`` does not see: after a read that fills
its room, read again before polling.
"""

import socket
import ssl
from typing import Protocol

from reput.errors import Unreachable
from reput.format.command import Buffer
from reput.remoting.client import split_address
from reput.remoting.tls_settings import reason_of


class PolledSocket(Protocol):
    """A connected socket that does not block."""

    def send(self, data: Buffer, /) -> int:
        """Send some of the bytes; return their number.

        After ``BlockingIOError``, the next call has the same bytes first.
        """

    def recv_into(self, buffer: memoryview, /) -> int:
        """Read bytes; return their number, 0 at the end. Raises ``BlockingIOError``."""

    def fileno(self) -> int:
        """Return the descriptor, for polling."""

    def close(self) -> None:
        """Close the connection."""


def connect(
    address: str, timeout_ms: int, certificates: ssl.SSLContext | None = None
) -> PolledSocket:
    """Return a connected socket; with TLS, after the handshake.

    Args:
        address: ``host:port``.
        timeout_ms: Timeout in ms; the handshake has the same time again.
        certificates: Certificates of a connection with TLS; None for a plain one.

    Raises:
        Unreachable: There is no connection, or the handshake failed.
    """
    try:
        plain = socket.create_connection(split_address(address), timeout=timeout_ms / 1000)
    except TimeoutError as error:
        raise Unreachable(address, f"no answer in {timeout_ms} ms") from error
    except OSError as error:
        raise Unreachable(address, error.strerror or str(error)) from error
    plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if certificates is None:
        plain.setblocking(False)
        return plain
    try:
        encrypted = certificates.wrap_socket(plain)
    except TimeoutError as error:
        plain.close()
        raise Unreachable(address, f"no TLS handshake: no answer in {timeout_ms} ms") from error
    except (ssl.SSLError, OSError) as error:
        plain.close()
        raise Unreachable(address, f"no TLS handshake: {reason_of(error)}") from error
    encrypted.setblocking(False)
    return TlsSocket(encrypted)


class TlsSocket:
    """A ``PolledSocket`` with TLS.

    Args:
        encrypted: The socket, after its handshake.
    """

    def __init__(self, encrypted: ssl.SSLSocket) -> None:
        self._socket = encrypted

    def send(self, data: Buffer, /) -> int:
        """Send some of the bytes; return their number. Raises ``BlockingIOError``."""
        try:
            return self._socket.send(data)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise BlockingIOError from None
        except ssl.SSLError as error:
            raise ConnectionError(reason_of(error)) from error

    def recv_into(self, buffer: memoryview, /) -> int:
        """Read all records that have arrived and fit; return the number of bytes, 0 at the end.

        Raises:
            BlockingIOError: No whole record has arrived.
            OSError: The connection is lost; or the peer refuses it, as it may do after the
                handshake of TLS 1.3.
        """
        filled = 0
        while filled < len(buffer):
            try:
                size = self._socket.recv_into(buffer[filled:])
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
                if not filled:
                    raise BlockingIOError from None
                break
            except OSError as error:
                if not filled:
                    raise ConnectionError(reason_of(error)) from error
                break  # the next read has the same error
            filled += size
            if not size:
                break
        return filled

    def fileno(self) -> int:
        """Return the descriptor, for polling."""
        return self._socket.fileno()

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()
