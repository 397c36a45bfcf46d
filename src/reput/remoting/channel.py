"""One connection of the loop: what ``connection`` decides, and asyncio's side of it.

What arrives in one read is handled as one batch, and all replies to it leave in one write. Both
sides ask: a broker asks its clients too.
"""

import asyncio
import logging
import socket
import time
from typing import Protocol, cast

from reput import limits
from reput.errors import ConnectionLost, NotAFrame, Overloaded, RequestTimedOut
from reput.format import command as commands
from reput.format.codes import ResponseCode
from reput.format.command import Command
from reput.format.message import Host
from reput.limits import Limit
from reput.remoting.connection import FrameBuffer, PendingRequests, find_frame
from reput.remoting.server_state import Cuttable, ServerState

_NOWHERE = Host(b"\0\0\0\0", 0)

_OUT_BYTES_MAX = 1 << 20
"""Replies that wait for the end of a read; with more it is seen whether the other side takes them.
"""
_EXPIRE_S = 0.01
"""Between two looks for requests that were not answered in time."""

_log = logging.getLogger(__name__)


_KEPT_BYTES_COUNTED = 4096
"""Less than this is not counted: each connection may keep it."""

_JOINED_BYTES_MAX = 4096
"""More than this is written in pieces: copying costs more than a longer list."""


class Owner(Protocol):
    """What a channel belongs to: a server or a client."""

    def on_open(self, channel: "Channel") -> None:
        """Take note of a new connection."""

    def on_bytes(self, channel: "Channel", view: memoryview, end: int) -> int:
        """Handle the frames in ``view[:end]``; return where the last whole one ends.

        The rest comes again, with more behind it. ``Channel.take_frames`` does it frame by frame.
        """

    def on_request(self, channel: "Channel", request: Command) -> None:
        """Handle a request."""

    def on_closed(self, channel: "Channel", error: Exception | None) -> None:
        """Take note of the end of a connection."""


class Channel(asyncio.BufferedProtocol):
    """A connection. Made by ``RemotingServer`` and ``RemotingClient``.

    Args:
        owner: Whose it is.
        buffer: What is read into, shared with the owner's other connections.
        shared: What a server's connections share. With it, the connection stops reading while the
            other side does not take what is written, and takes turns with others. A client has
            none: it must go on reading, as a server in that state waits for it.
    """

    def __init__(
        self, owner: Owner, buffer: bytearray, *, shared: ServerState | None = None
    ) -> None:
        self.peer = ""
        """``ip:port`` of the other side."""
        self.address = ""
        """Its ``ip``."""
        self.host = _NOWHERE
        """The same as records have it."""
        self.local_host = _NOWHERE
        self.is_closed = False
        self.active_at = 0.0
        """When something was read or written last, by the loop's time."""
        self._owner = owner
        self._loop = asyncio.get_running_loop()
        self.unfinished_since: float | None = None
        """When the first byte of the frame came that is not whole yet, by the loop's time."""
        self._frames = FrameBuffer(buffer)
        self._shared = shared
        self._turn_at = -1.0
        self._deadline = 0.0
        """When its turn is over, seconds of ``perf_counter``; 0: it has just begun."""
        self._waits_for_turn = False
        self._was_asked = False  # in this turn, whether frames must wait
        self._is_counted = False
        self._transport: asyncio.Transport | None = None
        self._out: list[bytes] = []
        self._out_bytes = 0
        self._is_stalled = False
        self._is_held = False
        self._is_flush_due = False
        self.is_writable = True
        """Whether the other side reads what is written, as far as the transport knows."""
        self._can_write = asyncio.Event()
        self._can_write.set()
        self._pending: PendingRequests[asyncio.Future[Command]] = PendingRequests()
        self._timer: asyncio.TimerHandle | None = None
        self._problem: Exception | None = None

    def __repr__(self) -> str:
        """Say whom it leads to."""
        return f"Channel({self.peer}{', closed' if self.is_closed else ''})"

    # Connection -------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by the loop."""
        # Not checked: uvloop's transports are no subclass.
        self._transport = cast(asyncio.Transport, transport)
        self.peer, self.host = _address(transport.get_extra_info("peername"))
        self.address = self.peer.rpartition(":")[0]
        _, self.local_host = _address(transport.get_extra_info("sockname"))
        self.active_at = self._loop.time()
        self._owner.on_open(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by the loop."""
        self.is_closed = True
        self.is_writable = True
        self._can_write.set()
        self._out = []
        self._out_bytes = 0
        if self._shared is not None:
            self._shared.unfinished.set(self, self.address, 0)
            self._shared.unread.set(self, self.address, 0)
        if self._timer is not None:
            self._timer.cancel()
        problem = self._problem or exc
        reason = str(problem) if problem else "closed by the other side"
        for question in self._pending.take_all():
            if not question.future.done():
                question.future.set_exception(ConnectionLost(self.peer, reason))
        self._owner.on_closed(self, problem)

    def close(self, problem: Exception | None = None) -> None:
        """Close the connection once what was written has left."""
        if self._transport is not None and not self.is_closed:
            self._problem = problem
            self._flush()
            self._transport.close()
            self.is_closed = True

    def abort(self) -> None:
        """Close the connection at once."""
        if self._transport is not None:
            self._transport.abort()
            self.is_closed = True

    # Reading ----------------------------------------------------------------------------------

    def get_buffer(self, sizehint: int) -> memoryview:
        """Called by the loop: where to read into. The read follows at once."""
        return self._frames.room()

    def buffer_updated(self, nbytes: int) -> None:
        """Called by the loop: so many bytes were read."""
        now = self._loop.time()
        self.active_at = now
        if now != self._turn_at:
            # The loop reads a connection many times in a turn: all of it has one deadline.
            self._turn_at = now
            self._deadline = 0.0
        self._handle(*self._frames.filled(nbytes))

    def _handle(self, view: memoryview, end: int) -> None:
        """Handle what there is, as far as its replies are taken and its time reaches."""
        self._is_stalled = False
        self._was_asked = False
        self._is_flush_due = True  # at the end of this
        try:
            position = self._owner.on_bytes(self, view, end)
            self._frames.keep(view, position, end)
            if position:
                self.unfinished_since = None
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
            # What was handled of it is not known: nothing behind it can be handled either.
            if self._shared is None:
                _log.error("%s: what it sent was not handled", self.peer, exc_info=error)
            else:
                self._shared.faults.bug(
                    error, "%s: what it sent was not handled; closing the connection", self.peer
                )
            self.close(error)
        finally:
            self._is_flush_due = False
            self._flush()

    def _count_kept(self, shared: ServerState) -> None:
        """Take note of what is kept until more comes; drop who makes it too much."""
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
        """Cut the connection that a budget names."""
        if excess is not None:
            channel, limit = excess
            channel.cut(limit)

    def cut(self, limit: Limit) -> None:
        """Close the connection at once, as a limit says."""
        error = limit.exceeded(None, self.peer)
        if self._shared is not None and not self.is_closed:
            self._shared.refusals.add(limit.name)
            self._shared.faults.warn(limit.name, "%s; closing the connection", error)
            self._shared.unfinished.set(self, self.address, 0)
            self._shared.unread.set(self, self.address, 0)
        self._problem = error
        self.abort()

    def take_frames(self, view: memoryview, at: int, end: int, count_max: int = 1 << 30) -> int:
        """Handle whole frames in ``view[at:end]``, at most so many; return where they end.

        Raises:
            NotAFrame: The next one is none.
        """
        is_first = True
        while count_max > 0 and not self.is_closed:
            place = find_frame(view, at, end)
            if place is None or place[1] > end:
                break
            # The first is taken however late it is: each turn gets something done.
            if self._is_blocked() if is_first else self.has_stalled():
                break
            self._take(commands.decode(view[place[0] : place[1]]))
            at = place[1]
            count_max -= 1
            is_first = False
        return at

    def _is_blocked(self) -> bool:
        """Whether frames must wait for replies to be taken, or for a long request."""
        if self._is_held:
            self._is_stalled = True
        elif self._out_bytes > _OUT_BYTES_MAX:
            self._flush()
            self._is_stalled = self._shared is not None and not self.is_writable
        return self._is_stalled

    def has_stalled(self) -> bool:
        """Whether frames must wait: for replies to be taken, a long request, or the next turn.

        Who handles frames in another way than ``take_frames`` asks before each that may.
        """
        if self._is_held or self._out_bytes > _OUT_BYTES_MAX:
            self._is_blocked()
        if not self._was_asked:
            self._was_asked = True  # the first frame of a read is taken however late it is
        elif self._shared is not None and not self._is_stalled:
            now = time.perf_counter()
            if not self._deadline:
                self._deadline = now + self._shared.slices.slice_s
            elif now > self._deadline:
                self._is_stalled = True
                self._wait_for_turn(self._shared)
        return self._is_stalled

    def hold(self) -> None:
        """Handle no further frames until ``release``: one takes long to be answered."""
        self._is_held = True
        if self._transport is not None:
            self._transport.pause_reading()

    def release(self) -> None:
        """Handle frames again."""
        self._is_held = False
        if self._shared is not None and not self.is_closed:
            self._wait_for_turn(self._shared)

    def _wait_for_turn(self, shared: ServerState) -> None:
        """Let others have their turn; what is left comes after them."""
        if not self._waits_for_turn:
            self._waits_for_turn = True
            if self._transport is not None:
                self._transport.pause_reading()
            shared.slices.add(self._take_turn)

    def _take_turn(self, deadline: float) -> bool:
        self._waits_for_turn = False
        self._deadline = deadline
        self._go_on()
        return False  # if there is more, it is queued again

    def _take(self, command: Command) -> None:
        if not command.is_reply:
            self._owner.on_request(self, command)
            return
        future = self._pending.answered(command.opaque)
        if future is not None and not future.done():
            future.set_result(command)

    # Writing ----------------------------------------------------------------------------------

    def send(self, command: Command) -> None:
        """Write a command; what is written in one turn of the loop leaves together."""
        self.write(commands.encode(command))

    def notify(self, notice: Command) -> bool:
        """Send what the other side did not ask for; return whether it takes any.

        A notice to a client that does not read is dropped: it costs memory, and comes too late.
        """
        if not self.takes_notices:
            if self._shared is not None:
                self._shared.refusals.add(limits.UNREAD_NOTICE_BYTES.name)
            return False
        self.send(notice)
        return True

    def answer(self, request: Command, reply: Command) -> None:
        """Send a reply; one that cannot be encoded becomes an error."""
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
        """Write frames; nothing if the connection is closed."""
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
                # Not writelines: in some versions of asyncio it never asks us to pause.
                for piece in out:
                    self._transport.write(piece)
            if self._shared is not None and not self.is_writable:
                self._count_unread(self._shared, size)

    def _count_unread(self, shared: ServerState, written_bytes: int) -> None:
        """Take note of what the other side does not read; drop who makes it too much."""
        limit = limits.UNREAD_BYTES_PER_CONNECTION
        unread_bytes = self.unread_bytes
        if unread_bytes - written_bytes > limit.maximum:
            self.cut(limit)
        else:
            self._drop(shared.unread.set(self, self.address, unread_bytes))

    @property
    def unread_bytes(self) -> int:
        """How many bytes are written and not taken by the other side yet, as far as one knows."""
        transport = self._transport
        waiting = 0 if transport is None else transport.get_write_buffer_size()
        return self._out_bytes + waiting

    @property
    def takes_notices(self) -> bool:
        """Whether what it did not ask for may be sent: it reads what it gets."""
        return self.unread_bytes <= limits.UNREAD_NOTICE_BYTES.maximum

    def pause_writing(self) -> None:
        """Called by the loop: the other side does not take what was written."""
        self.is_writable = False
        self._can_write.clear()
        if self._shared is not None and self._transport is not None:
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        """Called by the loop: it does again."""
        self.is_writable = True
        self._can_write.set()
        if self._shared is not None:
            self._shared.unread.set(self, self.address, 0)
            if self._is_stalled:
                self._wait_for_turn(self._shared)
            else:
                # Not at once: somebody else may be at work in the buffer.
                self._loop.call_soon(self._go_on)

    def _go_on(self) -> None:
        """Handle what had to wait, then read again."""
        if self._is_stalled and self._may_go_on:
            self._handle(*self._frames.kept())
        if self._transport is not None and self._may_go_on:
            self._transport.resume_reading()

    @property
    def _may_go_on(self) -> bool:
        return (
            self.is_writable
            and not self._is_held
            and not self._waits_for_turn
            and not self.is_closed
        )

    async def writable(self) -> None:
        """Wait until the other side takes what is written, or the connection is closed."""
        await self._can_write.wait()

    # Asking -----------------------------------------------------------------------------------

    def ask(self, request: Command, timeout_ms: int) -> "asyncio.Future[Command]":
        """Write a request; its reply will be the future's result.

        The future raises ``RequestTimedOut`` or ``ConnectionLost``.

        Raises:
            ConnectionLost: The connection is closed.
            Overloaded: Too many requests wait for their replies, or it is a client that does not
                read what it is sent.
            ValueError: It cannot be encoded.
        """
        if self.is_closed:
            raise ConnectionLost(self.peer)
        future: asyncio.Future[Command] = self._loop.create_future()
        if self._shared is not None:
            self._count_pushed(self._shared, request, future)
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
            self._pending.answered(request.opaque)
            future.cancel()
            raise
        # Set by the first who waits, and by those who wait less long.
        if self._timer is None or deadline < self._timer.when():
            self._set_timer(deadline)
        return future

    def _count_pushed(
        self, shared: ServerState, request: Command, future: "asyncio.Future[Command]"
    ) -> None:
        """Take note of what a server asks a client: it is kept until the client has answered.

        Raises:
            Overloaded: The client does not read, or clients have too much to answer already.
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
        """Ask, and wait for the reply. Raises as ``ask`` and its future do."""
        return await self.ask(request, timeout_ms)

    def _set_timer(self, deadline: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(deadline, self._expire)

    def _expire(self) -> None:
        self._timer = None
        for question in self._pending.expire(self._loop.time()):
            if not question.future.done():
                question.future.set_exception(
                    RequestTimedOut(self.peer, question.code, question.timeout_ms)
                )
        deadline = self._pending.next_deadline()
        if deadline is not None:
            self._set_timer(max(deadline, self._loop.time() + _EXPIRE_S))


def _address(name: tuple[str, int] | tuple[str, int, int, int] | None) -> tuple[str, Host]:
    """Return an address as text, and as records have it."""
    if not name:
        return "", _NOWHERE
    text, port = name[0], name[1]
    if ":" not in text:
        return f"{text}:{port}", Host(socket.inet_pton(socket.AF_INET, text), port)
    packed = socket.inet_pton(socket.AF_INET6, text.partition("%")[0])
    if packed.startswith(b"\0" * 10 + b"\xff\xff"):  # IPv4 on a socket for both
        return f"{'.'.join(map(str, packed[12:]))}:{port}", Host(packed[12:], port)
    return f"[{text}]:{port}", Host(packed, port)
