"""Sends old parts of the log to a slave from a thread: page faults and disk reads may block.

    thread: header, file, header, file, ... until the slave is near the end of the log

Without TLS the system sends the file by itself; with TLS it is read and encrypted in pieces.

The file stays open while it is sent: expiry may delete it.
"""

import functools
import os
import select
import socket
import threading
from collections.abc import Callable
from typing import Protocol

from reput.broker.replication import flow
from reput.broker.replication.flow import FlowControl
from reput.broker.replication.framing import MasterFraming
from reput.broker.replication.slave_socket import SlaveSocket
from reput.clock import Clock
from reput.descriptors import open_descriptor
from reput.store.log.commit_log import LogPiece
from reput.store.log.replica_acks import Replica

BEGIN_BYTES = 16 * 1024 * 1024
"""Lag in bytes above which a thread serves a slave."""
END_BYTES = 4 * 1024 * 1024
"""Lag in bytes below which the event loop serves it again."""
DATA_BYTES_MAX = 1024 * 1024
"""Maximum number of log bytes in a frame that a thread sends."""
_MORE_FOLLOWS = getattr(socket, "MSG_MORE", 0)
_POLL_MS = 1_000


class LogFiles(Protocol):
    """The files of the log."""

    @property
    def replication_limit(self) -> int:
        """Physical offset up to which slaves may have the log."""

    def log_file(self, physical_offset: int) -> LogPiece | None:
        """Return the place on disk of bytes of the log; None if there are none."""


class CatchUp:
    """Sends frames to one slave until it is near the end of the log.

    Args:
        connection: The connection, not blocking; nothing else writes to it meanwhile.
        replica: What was sent; kept up to date.
        files: The log.
        flow_control: Limit of bytes per second.
        clock: The clock.
        framing: The frames; called in the thread.
        data_bytes_max: Maximum bytes of the log in a frame.
        on_sent: Called in the thread with the bytes of each frame that was sent.
        on_end: Called in the thread at the end, with the error or None; FileNotFoundError if the
            bytes to be sent next were deleted.
    """

    def __init__(
        self,
        connection: SlaveSocket,
        replica: Replica,
        files: LogFiles,
        flow_control: FlowControl,
        clock: Clock,
        framing: MasterFraming,
        *,
        data_bytes_max: int,
        on_sent: Callable[[int], object],
        on_end: Callable[[Exception | None], object],
    ) -> None:
        self._connection = connection
        self._replica = replica
        self._files = files
        self._flow_control = flow_control
        self._clock = clock
        self._framing = framing
        self._data_bytes_max = min(data_bytes_max, DATA_BYTES_MAX)
        self._on_sent = on_sent
        self._on_end = on_end
        self._stopping = threading.Event()
        # Not blocking calls: uvloop makes each descriptor non-blocking that it watches.
        self._writable = select.poll()
        self._writable.register(connection.fileno(), select.POLLOUT)
        self._thread = threading.Thread(target=self._run, name="reput-catch-up", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Request the end of the thread: it ends at once if the connection is shut down."""
        self._stopping.set()

    def join(self) -> None:
        """Wait for the end of the thread."""
        self._thread.join()

    def _run(self) -> None:
        problem: Exception | None = None
        try:
            while self._lag() >= END_BYTES and not self._stopping.is_set():
                self._send_file()
        except Exception as error:  # noqa: BLE001 - the outermost edge of a thread
            problem = error
        self._on_end(problem)

    def _lag(self) -> int:
        return self._files.replication_limit - self._replica.sent_offset

    def _send_file(self) -> None:
        """Send frames from the file with the next byte, until it ends or the slave is near."""
        piece = self._files.log_file(self._replica.sent_offset)
        if piece is None:
            raise FileNotFoundError(f"no file has physical offset {self._replica.sent_offset}")
        descriptor = open_descriptor(piece.path, os.O_RDONLY)
        try:
            position, end = piece.start, piece.start + piece.size
            while position < end and self._lag() >= END_BYTES and not self._stopping.is_set():
                wanted = self._framing.size_max(position, min(end - position, self._data_bytes_max))
                granted = self._flow_control.take(wanted, self._clock.monotonic_ms())
                if granted:
                    self._send_frame(descriptor, position, granted)
                    position += granted
                else:
                    self._stopping.wait(flow.PAUSE_MS / 1000)
        finally:
            os.close(descriptor)

    def _send_frame(self, descriptor: int, position: int, size: int) -> None:
        header = self._framing.header(self._replica.sent_offset, size)
        # Before it is sent: the slave may acknowledge it before this thread runs again.
        self._replica.sent_offset += size
        while header:
            send = functools.partial(self._connection.send, header, _MORE_FOLLOWS)
            header = header[self._write(send) :]
        end = position + size
        while position < end:
            left = end - position
            send = functools.partial(self._connection.send_file, descriptor, position, left)
            sent = self._write(send)
            if not sent:
                raise FileNotFoundError(f"the file ends at {position}, before {end}")
            position += sent
        self._replica.sent_bytes += size
        self._on_sent(size)

    def _write(self, write: Callable[[], int]) -> int:
        """Retry a write until the connection accepts bytes; return its result."""
        while True:
            try:
                return write()
            except BlockingIOError:
                self._writable.poll(_POLL_MS)
            if self._stopping.is_set():
                raise ConnectionAbortedError("the connection was closed")
