"""Receives the log of a master over a connection, straight into the files of the own log.

One call per readable event: it receives all available bytes, adds whole frames to the log, and
acknowledges once; only then are the records dispatched, since the master's producers wait for the
acknowledgement.

The system writes the bytes into the mapped file. One call receives a header and, since the data
can only continue the own log, what follows it: mostly one frame. Further frames are moved together.
"""

import asyncio
import logging
import socket
from collections.abc import Callable, Sequence
from typing import Protocol

from reput.broker.replication.framing import AnyFrameHeader, ClassicSlaveFraming, SlaveFraming
from reput.broker.replication.slave_socket import ALERT
from reput.broker.replication.state import SlaveState, SlaveStatus
from reput.clock import Clock
from reput.errors import NotAFrame, ReputError, WriteFailed
from reput.remoting.polled_socket import TlsSocket
from reput.store.config import DurableIn, StoreConfig
from reput.store.writing.replica_log import ReplicaLog

RECEIVED_AT_ONCE = 1 << 20
"""Maximum bytes received in one turn of the event loop."""
SPARE_BYTES = 256 * 1024
"""Maximum bytes that are received together with the header of a frame."""
_SLICE_MS = 10
"""Time after which the event loop turns, although there is more."""
_TICKS_PER_INTERVAL = 5

_log = logging.getLogger(__name__)


class Disconnected(ReputError):
    """The connection has ended.

    Args:
        reason: Reason for the end.
        state: State of the slave afterwards.
    """

    def __init__(self, reason: str, state: SlaveState = SlaveState.SEARCHING) -> None:
        super().__init__(reason)
        self.state = state


class ByteStream(Protocol):
    """A connection to a master that never blocks."""

    @property
    def has_more(self) -> bool:
        """True if bytes may be there that watching the descriptor does not show."""

    def fileno(self) -> int:
        """Return the descriptor to watch."""

    def receive(self, buffers: Sequence[memoryview]) -> int:
        """Receive into buffers, in order; return the number of bytes.

        If the buffers are not full, no more bytes are available at present.

        Raises:
            BlockingIOError: Nothing is there.
            Disconnected: The peer has closed the connection.
            OSError: The connection broke.
        """

    def send(self, data: bytes) -> int:
        """Send bytes; return the number sent. Raises ``BlockingIOError`` or ``OSError``."""

    def close(self) -> None:
        """Close the connection."""


class PlainConnection:
    """A connection without encryption.

    Args:
        sock: A connected, non-blocking socket.
    """

    has_more = False

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self.fileno = sock.fileno
        self.send = sock.send
        self.close = sock.close

    def receive(self, buffers: Sequence[memoryview]) -> int:
        """Receive into buffers; see ``ByteStream``."""
        count, _, _, _ = self._socket.recvmsg_into(buffers)
        if not count:
            raise Disconnected("it closed the connection")
        return count


class EncryptedConnection:
    """A connection with TLS.

    Args:
        sock: A connected, non-blocking socket, after the handshake.
    """

    def __init__(self, sock: TlsSocket) -> None:
        self._socket = sock
        self.fileno = sock.fileno
        self.send = sock.send
        self.close = sock.close
        self.has_more = False
        """True if decrypted bytes may be waiting."""

    def receive(self, buffers: Sequence[memoryview]) -> int:
        """Receive into buffers; see ``ByteStream``."""
        count = asked = 0
        for buffer in buffers:
            asked += len(buffer)
            try:
                count += self._socket.recv_into(buffer)
            except BlockingIOError:
                if not count:
                    self.has_more = False
                    raise
            if count < asked:
                break
        self.has_more = count == asked
        if not count:
            raise Disconnected("it closed the connection")
        return count


class LogReceiver:
    """Receives the log over one connection, until it ends.

    Args:
        connection: The connection.
        config: Intervals, and what an acknowledgement means.
        log: The own log.
        status: The slave's state, which this keeps up to date.
        clock: The clock.
        on_received: Called after bytes were added and acknowledged, to dispatch them.
        sync_soon: Requests that the log is made durable; ``synced`` is called after that.
        acknowledged_end: Returns up to where an end of the log may be acknowledged;
            ``acknowledge`` is called when more of it may be.
        framing: The frames of the connection.
    """

    def __init__(
        self,
        connection: ByteStream,
        config: StoreConfig,
        log: ReplicaLog,
        status: SlaveStatus,
        clock: Clock,
        *,
        on_received: Callable[[], object],
        sync_soon: Callable[[], object],
        acknowledged_end: Callable[[int], int] = lambda end: end,
        framing: SlaveFraming | None = None,
    ) -> None:
        self._connection = connection
        self._config = config
        self._log = log
        self._status = status
        self._clock = clock
        self._on_received = on_received
        self._sync_soon = sync_soon
        self._acknowledged_end = acknowledged_end
        self._acks_durable = config.ha_ack_after is DurableIn.DISK
        self._framing = framing or ClassicSlaveFraming()
        self._header_bytes = self._framing.header_bytes
        self._parser = self._framing.header_parser(config.mapped_file_size_commit_log)
        self._header = memoryview(bytearray(self._header_bytes))
        self._room: memoryview | None = None  # of the log, for the current frame
        self._filled = 0  # bytes of the room
        self._has_added = False
        self._unsent = b""  # the rest of a report that the system did not take whole
        self._is_report_due = False
        self._is_reading = False
        self._is_writing = False
        self._reported = -1
        self._read_ms = self._written_ms = clock.monotonic_ms()
        self._rated_ms = self._read_ms
        self._rated_bytes = status.received_bytes
        self._loop = asyncio.get_running_loop()
        self._ended: asyncio.Future[Disconnected] = self._loop.create_future()
        self._timer: asyncio.TimerHandle | None = None

    async def run(self) -> Disconnected:
        """Report and receive until the connection ends; return the reason.

        If acknowledgements mean durability, the slave's log must be durable before the call: the
        first report acknowledges it, and is the physical offset at which the master begins.
        """
        try:
            self._report(self._log.end)
            if not self._ended.done():
                self._is_reading = True
                self._loop.add_reader(self._connection.fileno(), self.on_readable)
                self._on_timer()
            return await self._ended
        finally:
            self._close()

    def disconnect(self, reason: Disconnected) -> None:
        """End the connection."""
        if not self._ended.done():
            self._ended.set_result(reason)
        self._close()

    def _close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._is_reading:
            self._is_reading = False
            self._loop.remove_reader(self._connection.fileno())
        self._watch_writes(is_on=False)
        if self._room is not None:
            self._room.release()
            self._room = None
        self._connection.close()

    # Receiving --------------------------------------------------------------------------------

    def on_readable(self) -> None:
        """Receive the available bytes, acknowledge them, and request their dispatch."""
        self._read_ms, self._status.read_ms = self._clock.monotonic_ms(), self._clock.now_ms()
        try:
            try:
                self._receive_all()
            finally:
                if self._has_added:
                    self._has_added = False
                    self.acknowledge()
                    self._on_received()
        except Disconnected as error:
            self.disconnect(error)
        except NotAFrame as error:
            self.disconnect(Disconnected(str(error)))
        except WriteFailed as error:
            self.disconnect(Disconnected(str(error), SlaveState.FAILED))
        except ReputError as error:
            self.disconnect(Disconnected(str(error)))
        except OSError as error:
            self.disconnect(Disconnected(f"the connection broke: {error.strerror or error}"))

    def _receive_all(self) -> None:
        left = RECEIVED_AT_ONCE
        while left > 0:
            asked, count = self._receive_rest() if self._room is not None else self._receive_next()
            left -= count
            # Many small frames take longer than their bytes.
            if count < asked:
                return
            if self._clock.monotonic_ms() - self._read_ms >= _SLICE_MS:
                break
        if self._connection.has_more:
            self._loop.call_soon(self._read_more)

    def _read_more(self) -> None:
        if self._is_reading:
            self.on_readable()

    def _receive_rest(self) -> tuple[int, int]:
        """Receive the rest of a frame.

        Returns:
            The number of bytes that there was room for, and that of the received ones.
        """
        room = self._room
        assert room is not None
        size, asked = len(room), len(room) - self._filled
        count = self._receive([room[self._filled :]])
        self._filled += count
        if count == asked:
            room.release()
            self._room = None
            self._add(size, size)
        return asked, count

    def _receive_next(self) -> tuple[int, int]:
        """Receive a header and the data after it; return the same as ``_receive_rest``."""
        missing = self._parser.missing
        with self._log.spare(SPARE_BYTES) as spare:
            count = self._receive([self._header[:missing], spare])
            if count and missing == self._header_bytes and self._header[0] == ALERT:
                # No log is that long.
                text = "it requires TLS, and haTlsEnable is false here"
                raise Disconnected(text, SlaveState.REFUSED)
            header = self._parser.feed(self._header[: min(count, missing)])
            if header is not None:
                self._take_frames(header, spare, count - missing)
            return missing + len(spare), count

    def _receive(self, buffers: Sequence[memoryview]) -> int:
        try:
            return self._connection.receive(buffers)
        except BlockingIOError:
            return 0

    def _take_frames(self, header: AnyFrameHeader | None, spare: memoryview, filled: int) -> None:
        """Add frames to the log, and begin the last one if it is not whole.

        Args:
            header: The header of the first one.
            spare: The next bytes of the log.
            filled: Number of bytes in it: data, then further headers with their data.
        """
        start = self._log.end
        # Bytes of whole frames; where the data of the next one begin, and end as far as filled.
        size = position = end = 0
        try:
            while header is not None:
                self._check(header, start + size)
                end = min(position + header.size, filled)
                if position != size:
                    spare[size : size + end - position] = spare[position:end]
                if end < position + header.size:
                    break
                size += header.size
                position = min(end + self._header_bytes, filled)
                header = self._parser.feed(spare[end:position])
        finally:
            if filled:
                self._add(size, filled)
        if header is not None:
            self._begin_frame(header, end - position)

    def _check(self, header: AnyFrameHeader, log_end: int) -> None:
        """Check that a frame continues the log. Raises ``ReputError``, as ``Disconnected``."""
        file_size = self._config.mapped_file_size_commit_log
        # An empty log begins where the master does, at a file.
        may_begin = not log_end and header.physical_offset % file_size == 0
        if header.physical_offset != log_end and not may_begin:
            raise Disconnected(
                f"it sends the log from physical offset {header.physical_offset} on, but this log "
                f"ends at {log_end}"
            )
        self._framing.take(header)

    def _begin_frame(self, header: AnyFrameHeader, filled: int) -> None:
        """Prepare for the data of a frame, whose first bytes may be in the log's spare."""
        log, status = self._log, self._status
        if not log.end:
            log.begin_at(header.physical_offset, self._clock.now_ms())
        end = header.physical_offset + header.size
        status.master_max_offset = max(status.master_max_offset, end)
        if header.size:
            self._room = log.buffer(header.size, filled)
            self._filled = filled

    def _add(self, size: int, filled: int) -> None:
        log, status = self._log, self._status
        log.add(size, filled)
        if size:
            self._has_added = True
            status.received_bytes += size
            status.master_max_offset = max(status.master_max_offset, log.end)

    # Reporting --------------------------------------------------------------------------------

    def acknowledge(self) -> None:
        """Acknowledge the received bytes; after a sync, if that means durability."""
        end = self._acknowledged_end(self._log.end)
        if self._acks_durable:
            self._sync_soon()
        else:
            self._report(end)

    def synced(self) -> None:
        """Report the durable part of the log."""
        if self._acks_durable and self._log.durable_end != self._reported:
            self._report_end()

    def _report_end(self) -> None:
        log = self._log
        self._report(self._acknowledged_end(log.durable_end if self._acks_durable else log.end))

    def _report(self, physical_offset: int) -> None:
        """Send a report, or keep only the latest while an earlier report is still being sent."""
        if self._ended.done():
            return
        self._reported = physical_offset
        if self._unsent:
            self._is_report_due = True
            return
        self._unsent = self._framing.report(physical_offset)
        self._written_ms = self._clock.monotonic_ms()
        self._status.written_ms = self._clock.now_ms()
        self._on_writable()

    def _on_writable(self) -> None:
        try:
            self._unsent = self._unsent[self._connection.send(self._unsent) :]
        except BlockingIOError:
            pass
        except OSError as error:
            self.disconnect(Disconnected(f"the connection broke: {error.strerror or error}"))
            return
        self._watch_writes(is_on=bool(self._unsent))
        if self._is_report_due and not self._unsent:
            self._is_report_due = False
            self._report(self._reported)

    def _watch_writes(self, *, is_on: bool) -> None:
        if is_on and not self._is_writing:
            self._loop.add_writer(self._connection.fileno(), self._on_writable)
        elif self._is_writing and not is_on:
            self._loop.remove_writer(self._connection.fileno())
        self._is_writing = is_on

    # Time -------------------------------------------------------------------------------------

    def _on_timer(self) -> None:
        self.tick(self._clock.monotonic_ms())
        if not self._ended.done():
            config = self._config
            interval_ms = min(config.ha_send_heartbeat_interval, config.ha_housekeeping_interval)
            delay_s = min(1.0, interval_ms / _TICKS_PER_INTERVAL / 1000)
            self._timer = self._loop.call_later(delay_s, self._on_timer)

    def tick(self, monotonic_ms: int) -> None:
        """Send a heartbeat if it is due, and disconnect from a silent master.

        Args:
            monotonic_ms: Current time, monotonic ms.
        """
        config, status = self._config, self._status
        silent_ms = monotonic_ms - self._read_ms
        if silent_ms > config.ha_housekeeping_interval:
            self.disconnect(
                Disconnected(
                    f"it has sent nothing for {silent_ms} ms; haHousekeepingInterval is "
                    f"{config.ha_housekeeping_interval}"
                )
            )
            return
        if monotonic_ms - self._written_ms >= config.ha_send_heartbeat_interval:
            self._report_end()
        passed_ms = monotonic_ms - self._rated_ms
        if passed_ms >= 1000:
            received = status.received_bytes - self._rated_bytes
            status.bytes_per_second = received * 1000 // passed_ms
            self._rated_ms, self._rated_bytes = monotonic_ms, status.received_bytes
