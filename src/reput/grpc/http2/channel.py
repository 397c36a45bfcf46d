"""One connection of a gRPC server on the event loop: ``GrpcConnection`` with asyncio's transport.

The frames of one read are handled in one pass, and all answers to them are written together. A
connection that sends more than is handled in some milliseconds takes turns with others, and is not
read meanwhile; neither is one whose peer does not read its answers.
"""

import asyncio
import logging
from collections.abc import Coroutine, Sequence
from typing import Any, Protocol, cast

from reput.errors import Http2Error
from reput.grpc.http2.frames import ErrorCode
from reput.grpc.http2.grpc import Future, GrpcConnection, Service
from reput.limits import Limit
from reput.remoting import limits
from reput.remoting.addressed import Addressed
from reput.remoting.server_state import Cuttable, ServerState

_JOINED_BYTES_MAX = 64 * 1024
"""Larger writes are made in parts of about this size, in bytes."""
_KEPT_BYTES_COUNTED = 4 * 1024
"""Bytes that each connection may keep without being counted."""

_log = logging.getLogger(__name__)


class Owner(Protocol):
    """The server of a channel."""

    state: ServerState
    is_stopping: bool
    """Whether connections are closed as soon as they have no calls."""

    def on_open(self, channel: "GrpcChannel") -> None:
        """Register a new connection."""

    def on_begun(self, channel: "GrpcChannel") -> None:
        """Handle that its first frames have arrived."""

    def on_stirred(self, channel: "GrpcChannel") -> None:
        """Handle that something is read or written after ``is_quiet`` was set."""

    def on_idle(self, channel: "GrpcChannel") -> None:
        """Handle that it has no calls, while the server stops."""

    def on_closed(self, channel: "GrpcChannel") -> None:
        """Handle the end of the stream."""


class GrpcChannel(Addressed, asyncio.BufferedProtocol):
    """A connection of a gRPC client.

    Args:
        owner: The server.
        service: The methods.
        buffer: Read buffer, shared by the connections of a server.
    """

    # In the class, as instances of more than 30 attributes have a table of names each.
    is_proxied = False
    """True if a proxy has opened the connection."""
    unfinished_since: float | None = None
    """Time since which an incomplete frame is kept, in the loop's seconds."""
    is_quiet = False
    """Set by the server while there is no deadline; the next read or write unsets it."""
    _is_stalled = False  # complete frames are kept, for a later turn
    _waits_for_turn = False
    _is_full = False  # too many calls wait
    _is_counted = False  # in the budget of unfinished bytes
    _is_unread_counted = False

    def __init__(self, owner: Owner, service: Service, buffer: memoryview) -> None:
        self.is_closed = False
        self.is_writable = True
        """True if the peer keeps up with the writes, according to the transport."""
        self.active_at = 0.0
        """Time of the latest call, in the loop's seconds."""
        self._owner = owner
        self._state = owner.state
        self._loop = asyncio.get_running_loop()
        self._buffer = buffer
        self._tail = b""
        self._transport: asyncio.Transport | None = None
        self._has_begun = False
        self._is_handling = False
        self._is_flush_due = False
        self._call_count = 0
        self._turn_at = -1.0
        self._deadline = 0.0
        self.connection = GrpcConnection(
            service,
            self,
            spawn=self._spawn,
            report=self._report,
            on_output=self._flush_soon,
            turns=self._state.turns,
            room=self._state.room,
        )
        """The state of HTTP/2 and the calls."""

    def __repr__(self) -> str:
        """Return the peer's address."""
        return f"GrpcChannel({self.peer}{', closed' if self.is_closed else ''})"

    def _spawn(self, work: Coroutine[Any, Any, Any]) -> Future:
        return self._loop.create_task(work)

    def _report(self, error: Exception, path: str) -> None:
        self._state.faults.bug(error, "%s: call of %s failed", self.peer, path)

    # Connection -------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start the connection; called by the loop."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's are no subclass
        self.take_addresses(transport)
        self.active_at = self._loop.time()
        self._owner.on_open(self)

    def use_transport(self, transport: asyncio.Transport) -> None:
        """Read from and write to another transport: one that encrypts."""
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel all calls; called by the loop."""
        self.is_closed = True
        self._release_budgets()
        self.connection.lost()
        self._owner.on_closed(self)

    def _release_budgets(self) -> None:
        self._state.unfinished.set(self, self.address, 0)
        self._state.unread.set(self, self.address, 0)

    def close(self, problem: Exception | None = None) -> None:
        """Close the connection after pending writes."""
        if self._transport is not None and not self.is_closed:
            self._flush()
            self.is_closed = True
            self._transport.close()

    def abort(self) -> None:
        """Close the connection at once."""
        self.is_closed = True
        if self._transport is not None:
            self._transport.abort()

    def cut(self, limit: Limit) -> None:
        """Close the connection at once because of a limit."""
        if not self.is_closed:
            error = limit.exceeded(None, self.peer)
            self._state.refusals.add(limit.name)
            self._state.faults.warn(limit.name, "%s; closing the connection", error)
            self._release_budgets()
            self.abort()

    def refuse(self, limit: Limit) -> None:
        """Close the connection because of a limit, which the peer gets to know."""
        text = str(limit.exceeded(None, self.peer))
        self.connection.fail(Http2Error(ErrorCode.ENHANCE_YOUR_CALM, text, limit=limit.name))
        self._end()

    # Reading ----------------------------------------------------------------------------------

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return the buffer to read into; called by the loop, directly before the read."""
        tail = self._tail
        if not tail:
            return self._buffer
        self._buffer[: len(tail)] = tail
        return self._buffer[len(tail) :]

    def buffer_updated(self, nbytes: int) -> None:
        """Handle the bytes that were read; called by the loop."""
        now = self._loop.time()
        if now != self._turn_at:
            # The loop reads a connection many times in a turn: all reads share one deadline.
            self._turn_at = now
            self._deadline = self._state.slices.deadline()
        end = len(self._tail) + nbytes
        if self._state.reads.is_over:
            self._put_off(end)
        else:
            self._handle(end, now)

    def _put_off(self, end: int) -> None:
        """Leave the bytes of a read to a later turn: other connections have used up this one."""
        self._tail = bytes(self._buffer[:end])
        self._is_stalled = True
        self.unfinished_since = None
        self._wait_for_turn()
        self._count_tail()

    def _stir(self) -> None:
        self.is_quiet = False
        self.active_at = self._loop.time()  # until now it had a call
        self._owner.on_stirred(self)

    def _handle(self, end: int, now: float) -> None:
        """Handle the frames in the buffer, unless the time slice ends."""
        if self.is_closed:
            return
        connection, view = self.connection, self._buffer
        position = 0
        if self.is_quiet:
            self._stir()
        self._is_stalled = False
        self._is_handling = True
        try:
            while True:
                position = connection.receive(view, position, end, now)
                if connection.is_full:
                    self._is_stalled = True
                    break
                if not connection.has_more:
                    break
                if not self._has_time():
                    self._is_stalled = True
                    break
        except Exception as error:  # noqa: BLE001 - the outermost edge of a read
            # It is unknown which frames were handled, so later ones cannot be handled either.
            self._state.faults.bug(
                error, "%s: its bytes were not handled; closing the connection", self.peer
            )
            connection.fail(Http2Error(ErrorCode.INTERNAL_ERROR, "an error of the server"))
        finally:
            self._is_handling = False
        if position == end:
            self._tail = b""
            self.unfinished_since = None
        else:
            self._tail = bytes(view[position:end])
            if self._is_stalled or position:
                self.unfinished_since = None
            if self.unfinished_since is None and not self._is_stalled:
                self.unfinished_since = now
        if connection.call_count != self._call_count:
            self._call_count = connection.call_count
            self.active_at = now
        if connection.is_full:
            self._wait_for_ease()
        elif self._is_stalled:
            self._wait_for_turn()
        if connection.failure is not None:
            self._end()
            return
        if not self._has_begun and connection.has_begun:
            self._has_begun = True
            self._owner.on_begun(self)
        self._flush()
        self._count_tail()

    def _count_tail(self) -> None:
        connection = self.connection
        kept_bytes = connection.kept_bytes + connection.open_bytes + len(self._tail)
        if kept_bytes > _KEPT_BYTES_COUNTED or self._is_counted:
            self._count_kept(kept_bytes)

    def _end(self) -> None:
        """Close the connection because of its failure."""
        error = self.connection.failure
        assert error is not None, "the connection has not failed"
        self._tail = b""
        if error.limit:
            self._state.refusals.add(error.limit)
        kind = error.limit or "http2"
        self._state.faults.warn(kind, "%s: %s; closing the connection", self.peer, error)
        self.close()

    def _has_time(self) -> bool:
        return self._state.slices.seconds() < self._deadline and not self.is_closed

    def _wait_for_turn(self) -> None:
        if not self._waits_for_turn:
            self._waits_for_turn = True
            if self._transport is not None:
                self._transport.pause_reading()
            self._state.slices.add(self._take_turn, self.address, self)

    def _wait_for_ease(self) -> None:
        """Read no more until fewer calls wait."""
        self._is_full = True
        self.connection.on_eased = self._eased
        if self._transport is not None:
            self._transport.pause_reading()

    def _eased(self) -> None:
        """Handle that a call waits no more; called by the connection while calls waited."""
        if self._is_full and not self.connection.is_full:
            self._is_full = False
            self._wait_for_turn()
        if self._is_counted:
            self._count_tail()
        if not self._is_full and not self._is_counted:
            self.connection.on_eased = None

    def _take_turn(self, deadline: float) -> bool:
        self._waits_for_turn = False
        self._deadline = deadline
        self._resume()
        return False  # if there is more, it is queued again

    def _resume(self) -> None:
        """Handle waiting frames, then resume reading."""
        if self._is_stalled and self._can_resume:
            size = len(self._tail)
            self._buffer[:size] = self._tail
            self._handle(size, self._loop.time())
        if self._transport is not None and self._can_resume:
            self._transport.resume_reading()

    @property
    def _can_resume(self) -> bool:
        return (
            self.is_writable
            and not self._waits_for_turn
            and not self._is_full
            and not self.is_closed
        )

    def _count_kept(self, kept_bytes: int) -> None:
        """Report the kept bytes to the budget; cut a connection that exceeds it."""
        self._is_counted = kept_bytes > _KEPT_BYTES_COUNTED
        if self._is_counted:
            self.connection.on_eased = self._eased
        self._drop(
            self._state.unfinished.set(self, self.address, kept_bytes if self._is_counted else 0)
        )

    def _drop(self, excess: tuple[Cuttable, Limit] | None) -> None:
        if excess is not None:
            channel, limit = excess
            channel.cut(limit)

    # Writing ----------------------------------------------------------------------------------

    def _flush_soon(self) -> None:
        """Write the output at the end of this turn of the loop."""
        if not self._is_flush_due and not self._is_handling:
            self._is_flush_due = True
            self._loop.call_soon(self._flush_later)

    def _flush_later(self) -> None:
        self._is_flush_due = False
        self._flush()

    def _flush(self) -> None:
        if self.is_quiet:
            self._stir()
        out = self.connection.take_output()
        if self._transport is None or self.is_closed:
            return
        if not out:
            if self._is_unread_counted:
                self._count_unread(0)
            return
        size = sum(map(len, out))
        if len(out) == 1:
            self._transport.write(out[0])
        elif size <= _JOINED_BYTES_MAX:
            self._transport.write(b"".join(out))
        else:
            self._write_parts(self._transport, out)
        connection = self.connection
        if (
            not self.is_writable
            or connection.unsent_bytes > _KEPT_BYTES_COUNTED
            or self._is_unread_counted
        ):
            self._count_unread(size)
        if connection.waiting and connection.is_writable:
            self._loop.call_soon(self._resumed)
        if self._owner.is_stopping and not connection.streams:
            self._owner.on_idle(self)

    def _write_parts(self, transport: asyncio.Transport, out: Sequence[bytes | memoryview]) -> None:
        # Not writelines: some versions of asyncio never call pause_writing then.
        begin = part_bytes = 0
        for number, piece in enumerate(out, 1):
            part_bytes += len(piece)
            if part_bytes >= _JOINED_BYTES_MAX or number == len(out):
                transport.write(b"".join(out[begin:number]))
                begin, part_bytes = number, 0

    def _count_unread(self, written_bytes: int) -> None:
        """Report unread bytes to the budget; cut a connection that exceeds it."""
        limit = limits.UNREAD_BYTES_PER_CONNECTION
        unread_bytes = self.unread_bytes
        of_windows = self.connection.unsent_bytes  # limited there, by further calls
        if not self.is_writable and unread_bytes - of_windows - written_bytes > limit.maximum:
            self.cut(limit)
            return
        self._is_unread_counted = not self.is_writable or of_windows > _KEPT_BYTES_COUNTED
        counted_bytes = unread_bytes if self._is_unread_counted else 0
        self._drop(self._state.unread.set(self, self.address, counted_bytes))

    @property
    def unread_bytes(self) -> int:
        """Bytes that are written and not yet read by the peer, as far as known."""
        transport = self._transport
        waiting = 0 if transport is None else transport.get_write_buffer_size()
        return self.connection.unsent_bytes + waiting

    def pause_writing(self) -> None:
        """Stop reading while the peer does not read; called by the loop."""
        self.is_writable = False
        if self._transport is not None:
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        """Resume; called by the loop when the peer reads again."""
        self.is_writable = True
        self._count_unread(0)
        self._loop.call_soon(self._resumed)

    def _resumed(self) -> None:
        # Not at once: another connection may be using the buffer.
        if self.is_closed:
            return
        self.connection.resumed()
        if self._is_stalled:
            self._wait_for_turn()
        else:
            self._resume()
