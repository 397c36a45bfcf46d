"""The connection of a slave: reads its reports, and sends it the log without blocking the loop.

first report -> sending  <-------------------.
                  | lag of 16 MiB            | lag below 4 MiB
                  `-> catching up (thread) --'
"""

import asyncio
import socket
from collections.abc import Sequence
from typing import Protocol

from reput.broker.replication import catch_up, flow
from reput.broker.replication.catch_up import CatchUp
from reput.broker.replication.counts import ReplicationCounts
from reput.broker.replication.flow import FlowControl
from reput.broker.replication.framing import MasterFraming
from reput.broker.replication.reports import Reason, SlaveReports
from reput.broker.replication.slave_socket import SlaveSocket
from reput.clock import Clock
from reput.errors import NotAFrame, ReputError
from reput.format.ha_epoch_frames import SlaveHandshake
from reput.remoting.tls_acceptor import HANDSHAKE
from reput.store.log.commit_log import LogView
from reput.store.log.replica_acks import Replica
from reput.store.message_store import MessageStore

READ_BYTES = 64 * 1024
"""Maximum number of bytes per read from a slave."""
ROUND_BYTES = 4 * 1024 * 1024
"""Maximum number of bytes sent to a slave per turn of the event loop."""

NO_PROGRESS = -1
"""Time of the last progress of a slave that has not made any."""

_NO_BYTES = b""


class LinkOwner(Protocol):
    """Port of a connection."""

    store: MessageStore
    clock: Clock
    counts: ReplicationCounts
    flow_control: FlowControl
    batch_bytes: int
    framing: MasterFraming

    def shook_hands(self, link: "SlaveLink", handshake: SlaveHandshake) -> None:
        """Check and answer the handshake of a slave."""

    def reported(self, link: "SlaveLink", values: Sequence[int]) -> None:
        """Check the reports of a read, oldest first."""

    def refuse(self, link: "SlaveLink", reason: Reason, text: str) -> None:
        """Close a connection, count it and log why."""

    def pump(self) -> None:
        """Send soon."""

    def pump_later(self, pause_ms: int) -> None:
        """Send after a pause."""

    def gone(self, link: "SlaveLink", problem: str) -> None:
        """Remove a connection that has ended."""


class SlaveLink:
    """A connection to the port for slaves.

    Args:
        connection: The connection, not blocking.
        host: The peer's IP address.
        address: The peer's address, ``ip:port``.
        owner: The port.
        now_ms: The time, monotonic ms.
    """

    def __init__(
        self, connection: SlaveSocket, host: str, address: str, owner: LinkOwner, now_ms: int
    ) -> None:
        self.host = host
        self.opened_ms = now_ms
        """Time of the connection, monotonic ms."""
        self.replica = Replica(address)
        """Physical offsets that the slave was sent and has acknowledged."""
        self.reports: SlaveReports | None = None
        """The slave's reports; None until the first one."""
        self.bytes_per_s = 0
        """Bytes of the log that were sent in the last second."""
        self.progress_ms = NO_PROGRESS
        """Time of the last report of more bytes than before, or again of all, monotonic ms."""
        self.is_closed = False
        self.is_from_last_file = False
        """True if an empty slave wants the last file only."""
        self._connection = connection
        self._descriptor = connection.fileno()
        self._owner = owner
        self._loop = asyncio.get_running_loop()
        self._parser = owner.framing.report_parser()
        self._header = _NO_BYTES  # the part of a frame's header that is not sent yet
        self._left = 0  # bytes of that frame that are not sent yet
        self._is_shaking = False  # whether a thread continues the handshake
        self._is_blocked = False
        self._written_ms = now_ms
        self._catch_up: CatchUp | None = None
        self._sampled = (now_ms, 0)  # time and sent bytes of the last sample of the rate
        # End and time of a frame without its acknowledgement, and the last report before it.
        self._awaited: tuple[int, int, int] | None = None
        self._last_report: int | None = None
        self._is_known_idle = False  # whether the log says that the slave acknowledges nothing
        self._loop.add_reader(self._descriptor, self._readable)

    @property
    def is_catching_up(self) -> bool:
        """True while a thread sends."""
        return self._catch_up is not None

    # Reports ------------------------------------------------------------------------------------

    def _readable(self) -> None:
        if self._connection.needs_handshake:
            self._loop.remove_reader(self._descriptor)
            self._is_shaking = True
            shaking = self._loop.run_in_executor(None, self._connection.shake)
            shaking.add_done_callback(self._shaken)
            return
        try:
            data = self._connection.recv(READ_BYTES)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self.close(f"cannot be read: {error.strerror}")
            return
        if not data:
            self.close("closed by the slave")
            return
        if self.reports is None and data[0] == HANDSHAKE:
            text = "it uses TLS, and haTlsEnable is false here"
            self._owner.refuse(self, Reason.TLS, text)
            return
        try:
            handshake, values = self._parser.feed(data)
        except NotAFrame as error:
            self._owner.refuse(self, Reason.IMPOSSIBLE, str(error))
            return
        if handshake is not None:
            self._owner.shook_hands(self, handshake)
        if values and not self.is_closed:
            self._owner.reported(self, values)

    def _shaken(self, done: "asyncio.Future[None]") -> None:
        self._is_shaking = False
        problem = None if done.cancelled() else done.exception()
        if self.is_closed:
            self._connection.close()
        elif problem is not None:
            self._owner.refuse(self, Reason.TLS, str(problem))
        else:
            self._loop.add_reader(self._descriptor, self._readable)

    def begin(self, reports: SlaveReports, now_ms: int) -> None:
        """Start sending, after the first report.

        Args:
            reports: The report.
            now_ms: The time, monotonic ms.
        """
        self.reports = reports
        replica = self.replica
        replica.sent_offset = reports.start
        replica.acked_offset = reports.acked_offset
        replica.reported_ms = now_ms

    def acknowledge(self, now_ms: int) -> None:
        """Record what the last report acknowledges.

        Args:
            now_ms: The time, monotonic ms.
        """
        assert self.reports is not None
        replica = self.replica
        replica.acked_offset = self.reports.acked_offset
        replica.reported_ms = now_ms
        last, last_before = self.reports.last, self._last_report
        self._last_report = last
        if last_before is not None and (
            last > last_before or last == self._owner.store.log.readable_offset
        ):
            self.progress_ms = now_ms
        awaited = self._awaited
        if awaited is not None and self.reports.last >= awaited[0]:
            self._owner.counts.ack_times.add(now_ms - awaited[1])
            self._awaited = None

    # Sending ------------------------------------------------------------------------------------

    def send(self, limit: int, now_ms: int) -> bool:
        """Send the next bytes of the log.

        Args:
            limit: Physical offset up to which the log may be sent.
            now_ms: The time, monotonic ms.

        Returns:
            True if there is more that could be sent now.
        """
        replica = self.replica
        begun = replica.sent_offset
        while not (self._is_blocked or self.is_closed or self._catch_up is not None):
            if self._header or self._left:
                self._write(self._view(self._left), now_ms)
                continue
            lag = limit - replica.sent_offset
            if lag <= 0:
                return False
            if lag >= catch_up.BEGIN_BYTES:
                self._begin_catch_up()
                return False
            if replica.sent_offset - begun >= ROUND_BYTES:
                return True
            view = self._begin_frame(lag, now_ms)
            if view is None:
                return False
            self._write(view, now_ms)
        return False

    def _begin_frame(self, lag: int, now_ms: int) -> LogView | None:
        """Make the header of the next frame; return its data, or None if nothing may be sent."""
        owner = self._owner
        wanted = owner.framing.size_max(self.replica.sent_offset, min(lag, owner.batch_bytes))
        granted = owner.flow_control.take(wanted, now_ms)
        if not granted:
            owner.pump_later(flow.PAUSE_MS)
            return None
        view = self._view(granted)
        size = 0 if view is None else len(view.data)
        owner.flow_control.give_back(granted - size)
        self._header = owner.framing.header(self.replica.sent_offset, size)
        self._left = size
        return view

    def _view(self, size: int) -> LogView | None:
        """Return the next bytes to send; close the connection if they are deleted or unreadable."""
        if not size:
            return None  # the rest of a heartbeat
        owner = self._owner
        try:
            view = owner.store.log_view(self.replica.sent_offset, size)
        except ReputError as error:
            owner.refuse(self, Reason.FAILED, str(error))
            return None
        if view is None:
            self._refuse_expired()
        return view

    def _write(self, view: LogView | None, now_ms: int) -> None:
        """Write as much of the current frame as the connection accepts.

        The view is not kept for the next turn: a slow slave must not hold a file.
        """
        if self.is_closed:
            return
        parts: list[bytes | memoryview] = [self._header]
        if view is not None:
            parts.append(view.data)
        count = 0
        try:
            count = self._connection.sendmsg(parts)
        except (BlockingIOError, InterruptedError):
            pass
        except OSError as error:
            self.close(f"cannot be written: {error.strerror}")
            return
        finally:
            parts.clear()
            if view is not None:
                view.release()
        self._sent(count, now_ms)

    def _sent(self, count: int, now_ms: int) -> None:
        """Count sent bytes."""
        if count:
            self._written_ms = now_ms
        header_count = min(count, len(self._header))
        self._header = self._header[header_count:]
        data_count = count - header_count
        self._left -= data_count
        replica, counts = self.replica, self._owner.counts
        replica.sent_offset += data_count
        replica.sent_bytes += data_count
        counts.sent_bytes += data_count
        if self._header or self._left:
            self._is_blocked = True
            self._loop.add_writer(self._descriptor, self._writable)
        elif data_count:
            counts.sent_frames += 1
            if self._awaited is None:
                assert self.reports is not None
                self._awaited = (replica.sent_offset, now_ms, self.reports.last)

    def _writable(self) -> None:
        self._loop.remove_writer(self._descriptor)
        self._is_blocked = False
        if self.reports is None:
            self._write(None, self._owner.clock.monotonic_ms())  # the rest of a handshake
        else:
            self._owner.pump()

    def _refuse_expired(self) -> None:
        offset = self.replica.sent_offset
        self._owner.refuse(
            self, Reason.EXPIRED, f"the log no longer has physical offset {offset}: it was deleted"
        )

    def answer_handshake(self, data: bytes, now_ms: int) -> None:
        """Send the answer to a handshake; a slave may repeat it until the answer arrives.

        Args:
            data: The answer.
            now_ms: The time, monotonic ms.
        """
        if not self._header:
            self._header = data
            self._write(None, now_ms)

    def send_heartbeat(self, now_ms: int) -> None:
        """Send a frame without data, unless a frame is partly sent.

        Args:
            now_ms: The time, monotonic ms.
        """
        if self.is_closed or self._is_blocked or self._header or self._left or self._catch_up:
            return
        self._header = self._owner.framing.header(self.replica.sent_offset, 0)
        self._owner.counts.heartbeats += 1
        self._write(None, now_ms)

    # Catching up --------------------------------------------------------------------------------

    def _begin_catch_up(self) -> None:
        owner, loop = self._owner, self._loop
        owner.counts.catch_ups += 1
        self._awaited = None
        self._catch_up = CatchUp(
            self._connection,
            self.replica,
            owner.store,
            owner.flow_control,
            owner.clock,
            owner.framing,
            data_bytes_max=owner.batch_bytes,
            on_sent=lambda size: loop.call_soon_threadsafe(self._file_sent, size),
            on_end=lambda problem: loop.call_soon_threadsafe(self._caught_up, problem),
        )
        self._catch_up.start()

    def _file_sent(self, size: int) -> None:
        counts = self._owner.counts
        counts.sent_frames += 1
        counts.sent_bytes += size

    def _caught_up(self, problem: Exception | None) -> None:
        self._catch_up = None
        if self.is_closed:
            self._connection.close()
            return
        self._written_ms = self._owner.clock.monotonic_ms()
        if isinstance(problem, FileNotFoundError):
            self._refuse_expired()
        elif isinstance(problem, ConnectionError | TimeoutError):
            self.close(f"cannot be written: {problem.strerror}")
        elif problem is not None:
            self._owner.refuse(self, Reason.FAILED, f"{type(problem).__name__}: {problem}")
        else:
            self._owner.pump()

    # Housekeeping -------------------------------------------------------------------------------

    def is_heartbeat_due(self, now_ms: int, interval_ms: int) -> bool:
        """Return True if nothing was written for an interval.

        Args:
            now_ms: The time, monotonic ms.
            interval_ms: The interval, in ms.
        """
        return now_ms - self._written_ms >= interval_ms

    def becomes_idle(self, now_ms: int, duration_ms: int) -> bool:
        """Return True, once, if the slave has received a whole frame but acknowledges nothing.

        Args:
            now_ms: The time, monotonic ms.
            duration_ms: Time since the frame, in ms.
        """
        if self._awaited is None or self._is_known_idle:
            return False
        assert self.reports is not None
        _, sent_ms, last = self._awaited
        self._is_known_idle = self.reports.last == last and now_ms - sent_ms >= duration_ms
        return self._is_known_idle

    def sample_rate(self, now_ms: int) -> None:
        """Compute the bytes per second since the last sample, at most once a second.

        Args:
            now_ms: The time, monotonic ms.
        """
        sampled_ms, sent_bytes = self._sampled
        since_ms = now_ms - sampled_ms
        if since_ms >= 1000:
            self.bytes_per_s = (self.replica.sent_bytes - sent_bytes) * 1000 // since_ms
            self._sampled = (now_ms, self.replica.sent_bytes)

    def close(self, problem: str) -> None:
        """Close the connection.

        Args:
            problem: The reason, for the log.
        """
        if self.is_closed:
            return
        self.is_closed = True
        if self._is_shaking:
            _shut_down(self._connection)  # the thread uses it, and ends soon
            self._owner.gone(self, problem)
            return
        self._loop.remove_reader(self._descriptor)
        if self._is_blocked:
            self._loop.remove_writer(self._descriptor)
        if self._catch_up is None:
            self._connection.close()
        else:
            # The thread uses the descriptor; this wakes it.
            self._catch_up.stop()
            _shut_down(self._connection)
        self._owner.gone(self, problem)

    def join(self) -> None:
        """Wait for the thread of a closed connection; in another thread than the loop's."""
        running = self._catch_up
        if running is not None:
            running.join()


def _shut_down(connection: SlaveSocket) -> None:
    try:
        connection.shutdown(socket.SHUT_RDWR)
    except OSError:
        return  # the slave has closed it
