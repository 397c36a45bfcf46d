"""One connection of the loop: what ``connection`` decides, and asyncio's side of it.

What arrives in one read is handled as one batch, and all replies to it leave in one write. Both
sides ask: a broker asks its clients too.
"""

import asyncio
import logging
import socket
from typing import Protocol, cast

from reput.errors import ConnectionLost, NotAFrame, RequestTimedOut
from reput.format import command as commands
from reput.format.codes import ResponseCode
from reput.format.command import Command
from reput.format.message import Host
from reput.remoting.connection import Inbox, Questions, find_frame

_NOWHERE = Host(b"\0\0\0\0", 0)

_OUT_BYTES_MAX = 1 << 20
"""Replies that wait for the end of a read; with more it is seen whether the other side takes them.
"""
_EXPIRE_S = 0.01
"""Between two looks for requests that were not answered in time."""

_log = logging.getLogger(__name__)


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
        stops_reading: Stop reading while the other side does not take what is written: a server's
            way to bound memory. A client must go on: a server in that state waits for it.
    """

    def __init__(self, owner: Owner, buffer: bytearray, *, stops_reading: bool) -> None:
        self.peer = ""
        """``ip:port`` of the other side."""
        self.host = _NOWHERE
        """The same as records have it."""
        self.local_host = _NOWHERE
        self.is_closed = False
        self.active_at = 0.0
        """When something was read or written last, by the loop's time."""
        self._owner = owner
        self._loop = asyncio.get_running_loop()
        self._inbox = Inbox(buffer)
        self._stops_reading = stops_reading
        self._transport: asyncio.Transport | None = None
        self._out: list[bytes] = []
        self._out_bytes = 0
        self._is_stalled = False
        self._is_flush_due = False
        self._can_write = asyncio.Event()
        self._can_write.set()
        self._questions: Questions[asyncio.Future[Command]] = Questions()
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
        _, self.local_host = _address(transport.get_extra_info("sockname"))
        self.active_at = self._loop.time()
        self._owner.on_open(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by the loop."""
        self.is_closed = True
        self._can_write.set()
        self._out = []
        self._out_bytes = 0
        if self._timer is not None:
            self._timer.cancel()
        problem = self._problem or exc
        reason = str(problem) if problem else "closed by the other side"
        for question in self._questions.take_all():
            if not question.asker.done():
                question.asker.set_exception(ConnectionLost(self.peer, reason))
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
        return self._inbox.room()

    def buffer_updated(self, nbytes: int) -> None:
        """Called by the loop: so many bytes were read."""
        self.active_at = self._loop.time()
        self._handle(*self._inbox.filled(nbytes))

    def _handle(self, view: memoryview, end: int) -> None:
        """Handle what there is, as far as its replies are taken."""
        self._is_stalled = False
        self._is_flush_due = True  # at the end of this
        try:
            at = self._owner.on_bytes(self, view, end)
            self._inbox.keep(view, at, end)
        except NotAFrame as error:
            _log.warning("%s: %s; closing the connection", self.peer, error)
            self.close(error)
        finally:
            self._is_flush_due = False
            self._flush()

    def take_frames(self, view: memoryview, at: int, end: int, count_max: int = 1 << 30) -> int:
        """Handle whole frames in ``view[at:end]``, at most so many; return where they end.

        Raises:
            NotAFrame: The next one is none.
        """
        while count_max > 0 and not self.is_closed:
            place = find_frame(view, at, end)
            if place is None or place[1] > end or self.has_stalled():
                break
            self._take(commands.decode(view[place[0] : place[1]]))
            at = place[1]
            count_max -= 1
        return at

    def has_stalled(self) -> bool:
        """Whether frames must wait: few bytes of requests can make many of replies.

        Who handles frames in another way than ``take_frames`` asks before each that may.
        """
        if self._out_bytes > _OUT_BYTES_MAX:
            self._flush()
            self._is_stalled = self._stops_reading and not self._can_write.is_set()
        return self._is_stalled

    def _take(self, command: Command) -> None:
        if not command.is_reply:
            self._owner.on_request(self, command)
            return
        asker = self._questions.answered(command.opaque)
        if asker is not None and not asker.done():
            asker.set_result(command)

    # Writing ----------------------------------------------------------------------------------

    def send(self, command: Command) -> None:
        """Write a command; what is written in one turn of the loop leaves together."""
        self.write(commands.encode(command))

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

    def pause_writing(self) -> None:
        """Called by the loop: the other side does not take what was written."""
        self._can_write.clear()
        if self._stops_reading and self._transport is not None:
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        """Called by the loop: it does again."""
        self._can_write.set()
        if self._stops_reading:
            # Not at once: somebody else may be at work in the buffer.
            self._loop.call_soon(self._go_on)

    def _go_on(self) -> None:
        """Handle what had to wait, then read again."""
        if self._is_stalled and self.is_writable and not self.is_closed:
            self._handle(*self._inbox.kept())
        if self._transport is not None and self.is_writable and not self.is_closed:
            self._transport.resume_reading()

    @property
    def is_writable(self) -> bool:
        """Whether the other side takes what is written, as far as one knows."""
        return self._can_write.is_set()

    async def writable(self) -> None:
        """Wait until the other side takes what is written, or the connection is closed."""
        await self._can_write.wait()

    # Asking -----------------------------------------------------------------------------------

    def ask(self, request: Command, timeout_ms: int) -> "asyncio.Future[Command]":
        """Write a request; its reply will be the future's result.

        The future raises ``RequestTimedOut`` or ``ConnectionLost``.

        Raises:
            ConnectionLost: The connection is closed.
            Overloaded: Too many requests wait for their replies.
            ValueError: It cannot be encoded.
        """
        if self.is_closed:
            raise ConnectionLost(self.peer)
        future: asyncio.Future[Command] = self._loop.create_future()
        request.opaque, deadline = self._questions.add(
            future, request.code, timeout_ms, self._loop.time()
        )
        try:
            self.send(request)
        except ValueError:
            self._questions.answered(request.opaque)
            raise
        # Set by the first who waits, and by those who wait less long.
        if self._timer is None or deadline < self._timer.when():
            self._set_timer(deadline)
        return future

    async def invoke(self, request: Command, timeout_ms: int) -> Command:
        """Ask, and wait for the reply. Raises as ``ask`` and its future do."""
        return await self.ask(request, timeout_ms)

    def _set_timer(self, deadline: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(deadline, self._expire)

    def _expire(self) -> None:
        self._timer = None
        for question in self._questions.expire(self._loop.time()):
            if not question.asker.done():
                question.asker.set_exception(
                    RequestTimedOut(self.peer, question.code, question.timeout_ms)
                )
        deadline = self._questions.next_deadline()
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
