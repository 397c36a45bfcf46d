"""One connection on the event loop: the protocol of ``connection`` with asyncio's transport.

The requests of one read are handled as a batch, and all replies to them are written together. Both
sides can send requests: a broker also sends requests to its clients.
"""

import asyncio
import dataclasses
import logging
from collections.abc import Callable, Mapping
from typing import Protocol, cast

from reput.errors import ConnectionLost, NotAFrame, Overloaded, RequestTimedOut
from reput.format import command as commands
from reput.format.codes import ResponseCode
from reput.format.command import IS_REPLY, Command
from reput.format.signing import Signer
from reput.limits import Limit
from reput.remoting import limits
from reput.remoting.addressed import Addressed
from reput.remoting.connection import FrameBuffer, PendingRequests, find_frame
from reput.remoting.server_state import Cuttable, ServerState

_OUT_BYTES_MAX = 1 << 20
"""Replies buffered during a read, in bytes; above it they are written, to detect a slow reader."""
_EXPIRE_S = 0.01
"""Interval of checks for requests without a reply in time, in seconds."""

_log = logging.getLogger(__name__)


_KEPT_BYTES_COUNTED = 4096
"""Bytes that each connection may keep without being counted."""

_SHORT_READ_BYTES = 4096
"""Size of a read up to which it is handled in its turn, however much others have sent."""

_JOINED_BYTES_MAX = 4096
"""Larger writes are not joined: copying costs more than several writes."""


class Owner(Protocol):
    """The owner of a channel: a server or a client."""

    def on_open(self, channel: "Channel") -> None:
        """Register a new connection."""

    def on_bytes(self, channel: "Channel", view: memoryview, end: int) -> int:
        """Handle the frames in ``view[:end]``; return the end of the last complete one.

        The rest is passed again with more bytes after it. ``Channel.take_frames`` handles single
        frames.
        """

    def on_request(self, channel: "Channel", request: Command) -> None:
        """Handle a request."""

    def on_closed(self, channel: "Channel", error: Exception | None) -> None:
        """Handle the end of a connection."""


class Channel(Addressed, asyncio.BufferedProtocol):
    """A connection. Created by ``RemotingServer`` and ``RemotingClient``.

    Args:
        owner: The server or client.
        buffer: Read buffer, shared with the owner's other connections.
        shared: State shared by a server's connections. With it, the connection stops reading while
          the peer does not read its replies, and takes turns with others. A client has none: it
          must continue reading, as a server in that state waits for it.
        signer: Signs the requests that are sent.
        fields: Fields that the requests get before they are signed.
    """

    # In the class, as instances of more than 30 attributes have a table of names each.
    is_proxied = False
    """True if a proxy has opened the connection: for another client, or for itself."""
    is_inner = False
    """True if the client is a part of this process, which limits its clients itself."""
    finds_repeats = False
    """True if requests with a repeated field are marked, for owners that check signatures."""
    _is_counted = False
    _abandon: Callable[[], object] | None = None
    _made_bytes = 0
    _problem: Exception | None = None

    def __init__(
        self,
        owner: Owner,
        buffer: bytearray | memoryview,
        *,
        shared: ServerState | None = None,
        signer: Signer | None = None,
        fields: Mapping[str, str] | None = None,
    ) -> None:
        self.is_closed = False
        self.active_at = 0.0
        """Time of the latest read or write, in the loop's seconds."""
        self._owner = owner
        self._loop = asyncio.get_running_loop()
        self._is_silent = shared is not None  # until the first frame
        self.unfinished_since: float | None = None
        """Time of the first byte of an incomplete frame, in the loop's seconds."""
        self._frames = FrameBuffer(buffer)
        self._shared = shared
        self._signer = signer
        self._fields = fields
        self._turn_at = -1.0
        self._deadline = 0.0
        """End of the connection's turn, in seconds of ``perf_counter``."""
        self._waits_for_turn = False
        self._was_checked = False  # in this turn, by ``has_stalled``
        self._transport: asyncio.Transport | None = None
        self._out: list[bytes] = []
        self._out_bytes = 0
        self._is_stalled = False
        self._is_flush_due = False
        self.is_writable = True
        """True if the peer keeps up with the writes, according to the transport."""
        self._can_write: asyncio.Event | None = None  # made by the first that waits
        self._pending: PendingRequests[asyncio.Future[Command]] = PendingRequests()
        self._timer: asyncio.TimerHandle | None = None

    def __repr__(self) -> str:
        """Return the peer's address."""
        return f"Channel({self.peer}{', closed' if self.is_closed else ''})"

    # Connection -------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start the connection; called by the loop."""
        # Not checked: uvloop's transports are no subclass.
        self._transport = cast(asyncio.Transport, transport)
        self.take_addresses(transport)
        self.active_at = self._loop.time()
        self._owner.on_open(self)

    @property
    def is_local(self) -> bool:
        """True if the peer runs on this machine: never if a proxy is between."""
        return not self.is_proxied and self.host.address == self.local_host.address

    def use_transport(self, transport: asyncio.Transport) -> None:
        """Read from and write to another transport: one that encrypts."""
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail pending requests and release the state; called by the loop."""
        self.is_closed = True
        self._set_writable()
        self._out = []
        self._out_bytes = 0
        if self._shared is not None:
            self._shared.unfinished.set(self, self.address, 0)
        self._abandon_reply()
        if self._timer is not None:
            self._timer.cancel()
        # It is not kept: the frames of an exception have this connection.
        problem, self._problem = self._problem or exc, None
        reason = str(problem) if problem else "closed by the other side"
        for entry in self._pending.take_all():
            if not entry.future.done():
                entry.future.set_exception(ConnectionLost(self.peer, reason))
        self._owner.on_closed(self, problem)

    def close(self, problem: Exception | None = None) -> None:
        """Close the connection after pending writes."""
        if self._transport is not None and not self.is_closed:
            self._problem = problem
            self._flush()
            self._transport.close()
            self.is_closed = True
            self._frames.clear()

    def abort(self) -> None:
        """Close the connection at once, and drop its buffers."""
        if self._transport is not None:
            self._transport.abort()
            self.is_closed = True
            # The loop reports the end of the connection later: thousands may end in one turn.
            self._frames.clear()
            self._out = []
            self._out_bytes = 0
            self._abandon_reply()

    # Reading ----------------------------------------------------------------------------------

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return the buffer to read into; called by the loop, directly before the read."""
        return self._frames.room()

    def buffer_updated(self, nbytes: int) -> None:
        """Handle the bytes that were read; called by the loop."""
        now = self._loop.time()
        self.active_at = now
        shared = self._shared
        view, end = self._frames.filled(nbytes)
        if shared is None:
            self._handle(view, end)
            return
        if now != self._turn_at:
            # The loop reads a connection many times in a turn: all reads share one deadline.
            self._turn_at = now
            self._deadline = shared.slices.deadline()
        if nbytes > _SHORT_READ_BYTES and shared.reads.is_over:
            self._put_off(view, end, shared)
        else:
            self._handle(view, end)
        if shared.slices.seconds() > self._deadline and not self.is_closed:
            self._wait_for_turn(shared)  # the loop would read it again in this turn

    def _put_off(self, view: memoryview, end: int, shared: ServerState) -> None:
        """Leave the bytes of a read to a later turn: other connections have used up this one."""
        try:
            self._frames.keep(view, 0, end)
        except NotAFrame:
            self._handle(view, end)
            return
        self._is_stalled = True
        self._wait_for_turn(shared)
        self._count_kept(shared)

    def _handle(self, view: memoryview, end: int) -> None:
        """Handle complete frames, unless replies are not read or the time slice ends."""
        self._is_stalled = False
        self._was_checked = False
        self._is_flush_due = True  # at the end of this function
        try:
            position = self._owner.on_bytes(self, view, end)
            if self.is_closed:
                self._frames.clear()
                return
            self._frames.keep(view, position, end)
            if position:
                self.unfinished_since = None
                if self._is_silent and self._shared is not None:
                    self._is_silent = False
                    self._shared.silent.remove(self)
            # Most reads end with a frame: nothing is kept.
            if (position != end or not end or self._is_counted) and self._shared is not None:
                self._count_kept(self._shared)
        except NotAFrame as error:
            if self._shared is None:
                _log.warning("%s: %s; closing the connection", self.peer, error)
            else:
                self._shared.faults.warn(
                    "not_a_frame", "%s: %s; closing the connection", self.peer, error
                )
            self.close(error)
        except Exception as error:  # noqa: BLE001 - the outermost edge of a read
            # It is unknown which frames were handled, so later ones cannot be handled either.
            if self._shared is None:
                _log.error("%s: its bytes were not handled", self.peer, exc_info=error)
            else:
                self._shared.faults.bug(
                    error, "%s: its bytes were not handled; closing the connection", self.peer
                )
            self.close(error)
        finally:
            self._is_flush_due = False
            self._flush()

    def _count_kept(self, shared: ServerState) -> None:
        """Report the kept bytes to the budget; cut a connection that exceeds it."""
        frames = self._frames
        if not frames.has_beginning or self._is_stalled:
            self.unfinished_since = None
        elif self.unfinished_since is None:
            self.unfinished_since = self.active_at
        kept_bytes = frames.kept_bytes
        if kept_bytes > _KEPT_BYTES_COUNTED or self._is_counted:
            self._is_counted = kept_bytes > _KEPT_BYTES_COUNTED
            self._drop(
                shared.unfinished.set(self, self.address, kept_bytes if self._is_counted else 0)
            )

    def _drop(self, excess: tuple[Cuttable, Limit] | None) -> None:
        """Cut the connection that a budget returned."""
        if excess is not None:
            channel, limit = excess
            channel.cut(limit)

    def cut(self, limit: Limit) -> None:
        """Close the connection at once because of a limit."""
        error = limit.exceeded(None, self.peer)
        if self._shared is not None and not self.is_closed:
            self._shared.refusals.add(limit.name)
            self._shared.faults.warn(limit.name, "%s; closing the connection", error)
            self._shared.unfinished.set(self, self.address, 0)
        self._problem = error
        self.abort()

    def take_frames(
        self, view: memoryview, position: int, end: int, count_max: int = 1 << 30
    ) -> int:
        """Handle at most ``count_max`` complete frames in ``view[at:end]``; return their end.

        Raises:
            NotAFrame: The next bytes are not a frame.
        """
        is_first = True
        while position < end and count_max > 0 and not self.is_closed:
            frame = find_frame(view, position, end)
            if frame is None or frame[1] > end:
                break
            # The first frame is always handled: each turn makes progress.
            if self._is_blocked() if is_first else self.has_stalled():
                break
            self._was_checked = True
            content = view[frame[0] : frame[1]]
            self._take(commands.decode(content, finds_repeats=self.finds_repeats))
            position = frame[1]
            count_max -= 1
            is_first = False
        return position

    def _is_blocked(self) -> bool:
        """Return True if frames must wait: for the peer to read replies, or for a long request."""
        if self._abandon is not None:
            self._is_stalled = True
        elif self._out_bytes > _OUT_BYTES_MAX:
            self._flush()
            self._is_stalled = self._shared is not None and not self.is_writable
        return self._is_stalled

    def has_stalled(self) -> bool:
        """Return True if frames must wait: for the peer to read, a long request, or the next turn.

        To be checked before each frame by code that does not use ``take_frames``.
        """
        if self._abandon is not None or self._out_bytes > _OUT_BYTES_MAX:
            self._is_blocked()
        if not self._was_checked:
            self._was_checked = True  # the first frame of a read is always handled
        elif (
            self._shared is not None
            and not self._is_stalled
            and self._shared.slices.seconds() > self._deadline
        ):
            self._is_stalled = True
            self._wait_for_turn(self._shared)
        return self._is_stalled

    def hold(self, abandon: Callable[[], object]) -> None:
        """Handle no further frames until ``release``, while a long request runs.

        Args:
            abandon: Releases the memory of its reply; called if the connection ends before.
        """
        self._abandon = abandon
        if self._transport is not None:
            self._transport.pause_reading()

    def release(self) -> None:
        """Resume handling frames."""
        self._abandon = None
        if self._shared is not None and not self.is_closed:
            self._wait_for_turn(self._shared)

    def _wait_for_turn(self, shared: ServerState) -> None:
        """Queue the remaining frames for a later turn of the loop."""
        if not self._waits_for_turn:
            self._waits_for_turn = True
            if self._transport is not None:
                self._transport.pause_reading()
            shared.slices.add(self._take_turn, self.address, self)

    def _take_turn(self, deadline: float) -> bool:
        self._waits_for_turn = False
        self._deadline = deadline
        self._resume()
        return False  # if there is more, it is queued again

    def handle(self, request: Command) -> None:
        """Handle a request, as if it had just been read."""
        if not self.is_closed:
            self._owner.on_request(self, request)

    def _take(self, command: Command) -> None:
        if not command.flag & IS_REPLY:
            self._take_request(command)
            return
        future = self._pending.remove(command.opaque)
        if future is not None and not future.done():
            future.set_result(command)

    def _take_request(self, request: Command) -> None:
        self._owner.on_request(self, request)

    # Writing ----------------------------------------------------------------------------------

    def send(self, command: Command) -> None:
        """Write a command; the writes of one turn of the loop are sent together."""
        if not command.flag & IS_REPLY:
            if self._fields:
                fields = {**(command.ext_fields or {}), **self._fields}
                command = dataclasses.replace(command, ext_fields=fields)
            if self._signer is not None:
                command = self._signer.sign(command)
        self.write(commands.encode(command))

    def notify(self, notice: Command) -> bool:
        """Send an unsolicited command; return False if the peer does not read.

        A notice to a client that does not read is dropped: it would cost memory, and arrive too
        late.
        """
        if not self.takes_notices:
            if self._shared is not None:
                self._shared.refusals.add(limits.UNREAD_NOTICE_BYTES.name)
            return False
        self.send(notice)
        return True

    def answer(self, request: Command, reply: Command) -> None:
        """Send a reply; if it cannot be encoded, send an error instead."""
        try:
            head = commands.encode_head(reply)
        except ValueError as error:
            _log.error("reply to request %d of %s: %s", request.code, self.peer, error)
            text = f"the reply cannot be encoded: {error}".encode("ascii", "replace").decode()
            reply = commands.reply(request, ResponseCode.SYSTEM_ERROR, text)
            head = commands.encode_head(reply)
        self.write(head)
        if reply.body:
            self.write(reply.body)

    def write(self, data: bytes) -> None:
        """Write frames, unless the connection is closed."""
        if self.is_closed:
            return
        self._out.append(data)
        self._out_bytes += len(data)
        if not self._is_flush_due:
            self._is_flush_due = True
            self._loop.call_soon(self._flush_later)
        elif self._out_bytes > limits.UNREAD_BYTES_PER_CONNECTION.maximum:
            self._flush()

    def _flush_later(self) -> None:
        self._is_flush_due = False
        self._flush()

    def _flush(self) -> None:
        out = self._out
        if out and self._transport is not None and not self.is_closed:
            size, self._out_bytes = self._out_bytes, 0
            self._out = []
            self.active_at = self._loop.time()
            if len(out) == 1:
                self._transport.write(out[0])
            elif size < _JOINED_BYTES_MAX:
                self._transport.write(b"".join(out))
            else:
                # Not writelines: some versions of asyncio never call pause_writing then.
                for piece in out:
                    self._transport.write(piece)
            if self._shared is not None and not self.is_writable:
                self._count_unread(self._shared, size)

    def _count_unread(self, shared: ServerState, written_bytes: int) -> None:
        """Report unread bytes to the budget; cut a connection that exceeds it."""
        limit = limits.UNREAD_BYTES_PER_CONNECTION
        unread_bytes = self.unread_bytes
        if unread_bytes - written_bytes > limit.maximum:
            self.cut(limit)
        else:
            self._drop(self._report_unread(shared, unread_bytes))

    def _report_unread(
        self, shared: ServerState, unread_bytes: int
    ) -> tuple[Cuttable, Limit] | None:
        """Report unread bytes to the budget, with those of a reply that is being made."""
        return shared.unread.set(self, self.address, unread_bytes + self._made_bytes)

    def count_made(self, size_bytes: int) -> None:
        """Count bytes of a reply that is being made, until ``forget_made``.

        If all unread and half-made replies take too much memory, the connection with the most is
        closed, unless it is this one.

        Raises:
            LimitExceeded: This reply takes the most.
        """
        shared = self._shared
        if shared is None or self.is_closed:
            return
        self._made_bytes += size_bytes
        excess = self._report_unread(shared, 0 if self.is_writable else self.unread_bytes)
        if excess is not None and excess[0] is self:
            raise excess[1].exceeded(None, self.peer)
        self._drop(excess)

    def forget_made(self) -> None:
        """Stop counting the reply in progress, which was written or refused."""
        if self._made_bytes:
            self._made_bytes = 0
            if self._shared is not None:
                self._report_unread(self._shared, 0 if self.is_writable else self.unread_bytes)

    def _abandon_reply(self) -> None:
        """Release the memory of replies, at the end of the connection."""
        self._made_bytes = 0
        if self._shared is not None:
            self._shared.unread.set(self, self.address, 0)
        if self._abandon is not None:
            self._abandon()

    @property
    def unread_bytes(self) -> int:
        """Bytes that are written and not yet read by the peer, as far as known."""
        transport = self._transport
        waiting = 0 if transport is None else transport.get_write_buffer_size()
        return self._out_bytes + waiting

    @property
    def takes_notices(self) -> bool:
        """True if unsolicited commands may be sent, as the peer reads."""
        return self.unread_bytes <= limits.UNREAD_NOTICE_BYTES.maximum

    def pause_writing(self) -> None:
        """Stop reading while the peer does not read; called by the loop."""
        self.is_writable = False
        if self._shared is not None and self._transport is not None:
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        """Resume; called by the loop when the peer reads again."""
        self._set_writable()
        if self._shared is not None:
            self._report_unread(self._shared, 0)
            if self._is_stalled:
                self._wait_for_turn(self._shared)
            else:
                # Not at once: another connection may be using the buffer.
                self._loop.call_soon(self._resume)

    def _resume(self) -> None:
        """Handle waiting frames, then resume reading."""
        if self._is_stalled and self._can_resume:
            self._handle(*self._frames.kept())
        if self._transport is not None and self._can_resume:
            self._transport.resume_reading()

    @property
    def _can_resume(self) -> bool:
        return (
            self.is_writable
            and self._abandon is None
            and not self._waits_for_turn
            and not self.is_closed
        )

    async def writable(self) -> None:
        """Wait until the peer reads, or the connection is closed."""
        while not self.is_writable:  # the first of many that waited may have filled it again
            if self._can_write is None:
                self._can_write = asyncio.Event()
            await self._can_write.wait()

    def _set_writable(self) -> None:
        self.is_writable = True
        if self._can_write is not None:
            self._can_write.set()
            self._can_write = None

    # Requests ---------------------------------------------------------------------------------

    def send_request(self, request: Command, timeout_ms: int) -> "asyncio.Future[Command]":
        """Write a request; return a future for its reply.

        The future raises ``RequestTimedOut`` or ``ConnectionLost``.

        Raises:
            ConnectionLost: The connection is closed.
            Overloaded: Too many requests are pending, or the peer is a client that does not read.
            ValueError: The request cannot be encoded.
        """
        if self.is_closed:
            raise ConnectionLost(self.peer)
        future: asyncio.Future[Command] = self._loop.create_future()
        if self._shared is not None:
            self._count_request_bytes(self._shared, request, future)
        try:
            request.opaque, deadline = self._pending.add(
                future, request.code, timeout_ms, self._loop.time()
            )
        except Overloaded:
            future.cancel()
            raise
        try:
            self.send(request)
        except ValueError:
            self._pending.remove(request.opaque)
            future.cancel()
            raise
        # Set by the first pending request, and by requests with an earlier deadline.
        if not future.done() and (self._timer is None or deadline < self._timer.when()):
            self._set_timer(deadline)
        return future

    def _count_request_bytes(
        self, shared: ServerState, request: Command, future: "asyncio.Future[Command]"
    ) -> None:
        """Count the bytes of a request to a client until it has replied.

        Raises:
            Overloaded: The client does not read, or too many bytes are pending at clients.
        """
        size_bytes = len(request.body or b"")
        limit, value = limits.UNREAD_NOTICE_BYTES, self.unread_bytes
        if self.takes_notices:
            limit, value = limits.PUSHED_BYTES, shared.pushed_bytes + size_bytes
        if value > limit.maximum:
            shared.refusals.add(limit.name)
            raise Overloaded(str(limit.exceeded(value, self.peer)))
        shared.pushed_bytes += size_bytes

        def forget(_: "asyncio.Future[Command]") -> None:
            shared.pushed_bytes -= size_bytes

        future.add_done_callback(forget)

    async def invoke(self, request: Command, timeout_ms: int) -> Command:
        """Send a request, and wait for the reply. Raises as ``send_request`` and its future."""
        return await self.send_request(request, timeout_ms)

    def _set_timer(self, deadline: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(deadline, self._expire)

    def _expire(self) -> None:
        self._timer = None
        for entry in self._pending.expire(self._loop.time()):
            if not entry.future.done():
                entry.future.set_exception(RequestTimedOut(self.peer, entry.code, entry.timeout_ms))
        deadline = self._pending.next_deadline()
        if deadline is not None:
            self._set_timer(max(deadline, self._loop.time() + _EXPIRE_S))
