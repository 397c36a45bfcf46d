"""The master's side of a connection to a slave: a socket that does not block, plain or with TLS.

    first byte 0x16 -> handshake, in worker threads -> encrypted
    another one     -> an alert, which reput's slaves understand, and the end

A catching-up slave is written by a thread, while the event loop reads its reports: OpenSSL allows
only one of them at a time, so that a lock is held for each piece.
"""

import os
import socket
import ssl
import threading
from collections.abc import Callable, Sequence
from typing import Final, Protocol, TypeVar

from reput.errors import TlsFailed
from reput.remoting.tls_acceptor import HANDSHAKE
from reput.remoting.tls_settings import reason_of

PIECE_BYTES: Final = 64 * 1024
"""Bytes that are encrypted at once: the event loop may wait for that."""
ALERT: Final = 0x15
"""First byte of a peer that refuses a connection without TLS."""
_WANTS_TLS: Final = bytes((ALERT, 3, 3, 0, 2, 2, 70))
"""A fatal alert: another version of the protocol is required."""

Buffer = bytes | memoryview
T = TypeVar("T")


class SlaveSocket(Protocol):
    """A connection to a slave. All calls raise ``BlockingIOError`` instead of waiting."""

    @property
    def needs_handshake(self) -> bool:
        """True if ``shake`` must be called when bytes have arrived."""

    def shake(self) -> None:
        """Continue the handshake; in a worker thread. Raises ``TlsFailed``."""

    def fileno(self) -> int:
        """Return the descriptor."""

    def recv(self, size: int) -> bytes:
        """Return received bytes, none at the end."""

    def sendmsg(self, parts: Sequence[Buffer]) -> int:
        """Send some bytes; return their number. After an error the next call has the same."""

    def send(self, data: bytes, flags: int) -> int:
        """Send some bytes; return their number."""

    def send_file(self, descriptor: int, position: int, size: int) -> int:
        """Send some bytes of a file; return their number, 0 at its end."""

    def shutdown(self, how: int) -> None:
        """End the connection; a thread that uses it gets an error."""

    def close(self) -> None:
        """Close the connection."""


class PlainSlaveSocket:
    """A connection without encryption.

    Args:
        sock: A connected, non-blocking socket.
    """

    needs_handshake = False

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self.fileno = sock.fileno
        self.recv = sock.recv
        self.sendmsg = sock.sendmsg
        self.send = sock.send
        self.shutdown = sock.shutdown
        self.close = sock.close

    def shake(self) -> None:
        """Do nothing."""

    def send_file(self, descriptor: int, position: int, size: int) -> int:
        """Send some bytes of a file, without a copy if the system can; return their number."""
        if not hasattr(os, "sendfile"):
            data = os.pread(descriptor, min(size, PIECE_BYTES), position)
            return self._socket.send(data) if data else 0
        return os.sendfile(self._socket.fileno(), descriptor, position, size)


class EncryptedSlaveSocket:
    """A connection with TLS.

    Args:
        sock: A connected, non-blocking socket.
        certificates: The master's certificate, and the demands on the slave's.
    """

    def __init__(self, sock: socket.socket, certificates: ssl.SSLContext) -> None:
        self._plain = sock
        self._certificates = certificates
        self._encrypted: ssl.SSLSocket | None = None
        self._lock = threading.Lock()
        self._descriptor = sock.fileno()
        self.needs_handshake = True
        """True until the handshake is done."""

    def shake(self) -> None:
        """Continue the handshake; in a worker thread, as it takes milliseconds.

        Raises:
            TlsFailed: The slave does not use TLS, or its certificate is refused.
        """
        try:
            if self._encrypted is None:
                self._begin()
            assert self._encrypted is not None
            self._encrypted.do_handshake()
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return
        except OSError as error:
            raise TlsFailed(f"no TLS handshake: {reason_of(error)}") from None
        self.needs_handshake = False

    def _begin(self) -> None:
        first = self._plain.recv(1, socket.MSG_PEEK)
        if first and first[0] != HANDSHAKE:
            self._plain.recv(PIECE_BYTES)  # with unread bytes, its end would outrun the alert
            self._plain.send(_WANTS_TLS)
            raise TlsFailed("it does not use TLS, and haTlsEnable is true here")
        self._encrypted = self._certificates.wrap_socket(
            self._plain, server_side=True, do_handshake_on_connect=False
        )

    def fileno(self) -> int:
        """Return the descriptor."""
        return self._descriptor

    def recv(self, size: int) -> bytes:
        """Return the bytes of a record, none at the end. Raises ``BlockingIOError``, ``OSError``.

        A record has less than ``size`` bytes, so that none are left that polling does not see.
        """
        return self._locked(lambda encrypted: encrypted.recv(size))

    def sendmsg(self, parts: Sequence[Buffer]) -> int:
        """Send some bytes; return their number. Raises as ``recv``."""
        data = b"".join(parts)
        return self._locked(lambda encrypted: encrypted.send(data))

    def send(self, data: bytes, flags: int) -> int:
        """Send some bytes; return their number. Raises as ``recv``."""
        del flags  # the peer's side of encryption does not profit
        return self._locked(lambda encrypted: encrypted.send(data))

    def send_file(self, descriptor: int, position: int, size: int) -> int:
        """Send some bytes of a file; return their number, 0 at its end. Raises as ``recv``."""
        data = os.pread(descriptor, min(size, PIECE_BYTES), position)
        return self._locked(lambda encrypted: encrypted.send(data)) if data else 0

    def _locked(self, action: Callable[[ssl.SSLSocket], T]) -> T:
        encrypted = self._encrypted
        assert encrypted is not None, "the handshake is not done"
        with self._lock:
            try:
                return action(encrypted)
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
                raise BlockingIOError from None
            except ssl.SSLError as error:
                raise ConnectionAbortedError(0, reason_of(error)) from None

    def shutdown(self, how: int) -> None:
        """End the connection; a thread that uses it gets an error."""
        # That of SSLSocket drops the state of encryption, which a thread may be using.
        socket.socket.shutdown(self._encrypted or self._plain, how)

    def close(self) -> None:
        """Close the connection."""
        (self._encrypted or self._plain).close()
