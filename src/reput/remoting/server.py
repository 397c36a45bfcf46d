"""Accepts connections and passes requests to a service."""

import asyncio
import contextlib
import inspect
import logging
from collections.abc import Callable, Generator
from typing import Protocol

from reput.errors import REMARK_LETTERS, LimitExceeded, ReputError, excerpt
from reput.format import command as commands
from reput.format.codes import ResponseCode
from reput.format.command import Command
from reput.format.signing import Signer
from reput.remoting import limits, time_slices
from reput.remoting.channel import Channel, Owner
from reput.remoting.connection import READ_BYTES
from reput.remoting.inner_channel import InnerChannel
from reput.remoting.listener import LAST_WORDS_S, Listener
from reput.remoting.long_replies import counting
from reput.remoting.pipe import Pipe
from reput.remoting.server_state import ServerState
from reput.remoting.time_slices import Steps

IDLE_MS = 120_000
"""Idle time after which a connection is closed, in ms; as in Java."""

_log = logging.getLogger(__name__)

LongReply = Steps[Command | None]
"""A reply that takes long: the generator yields so that other requests are served."""


class Service(Protocol):
    """The service of a server.

    If it has an ``on_bytes`` like ``channel.Owner``, it gets the bytes before they are decoded.
    """

    def on_open(self, channel: Channel) -> None:
        """Handle a new connection."""

    def on_request(self, channel: Channel, request: Command) -> Command | LongReply | None:
        """Return the reply; None if it is not ready: the channel can send it later.

        A generator is run in time slices; until it returns the reply, nothing more is read from the
        connection. An exception of either becomes the reply: its ``response_code``, or
        SYSTEM_ERROR, and its text.
        """

    def on_closed(self, channel: Channel) -> None:
        """Handle the end of a connection."""


class BytesService(Service, Protocol):
    """A service that gets the bytes before they are decoded."""

    def on_bytes(self, channel: Channel, view: memoryview, end: int) -> int:
        """Serve the requests in a buffer; return the position of the first incomplete one."""


class RemotingServer(Listener[Channel]):
    """Listens on a port.

    Args:
        service: The service.
        host: Address to listen on; empty for all addresses.
        port: Port to listen on; 0 for any free port.
        idle_ms: Idle time after which a connection is closed, in ms; 0: never.
        buffer: Read buffer; by default a new one.
        state: State shared with other servers; by default its own.
    """

    def __init__(
        self,
        service: Service,
        *,
        host: str = "0.0.0.0",
        port: int = 0,
        idle_ms: int = IDLE_MS,
        buffer: bytearray | None = None,
        state: ServerState | None = None,
    ) -> None:
        super().__init__(host, port, state)
        self._service = service
        self._idle_ms = idle_ms
        self._view = memoryview(bytearray(READ_BYTES) if buffer is None else buffer)
        self._is_stopping = False
        self._all_closed = asyncio.Event()
        self._idle_timer: asyncio.TimerHandle | None = None
        self.on_bytes: Callable[[Channel, memoryview, int], int] = getattr(
            service, "on_bytes", _take_frames
        )
        """Handles the bytes of a read (``Owner``)."""

    async def start(self) -> None:
        """Start listening.

        Raises:
            OSError: The address is in use, or does not belong to this machine.
        """
        self._is_stopping = False
        await self._listen()
        if self._idle_ms:
            self._watch()

    def _new_channel(self) -> Channel:
        """Return the channel of a new connection."""
        return Channel(self, self._view, shared=self.state)

    def connect_here(
        self,
        owner: Owner,
        buffer: bytearray | memoryview,
        address: tuple[str, int],
        signer: Signer | None = None,
    ) -> InnerChannel:
        """Return a connection from this process, without a socket and without TLS.

        Args:
            owner: Owner of the client's side.
            buffer: Its read buffer, which it may share with others.
            address: Host and port of the client that the server sees.
            signer: Signs its requests; without it they are not signed.
        """
        own_address = (self.host or "127.0.0.1", self.port)
        return InnerChannel(owner, buffer, self._inner_channel(), address, own_address, signer)

    def open_pipe(
        self,
        address: tuple[str, int],
        on_late: Callable[[bytes], object],
        on_closed: Callable[[], object],
    ) -> Pipe:
        """Return a connection from this process whose replies need no turn of the loop.

        Args:
            address: Host and port of the client that the server sees.
            on_late: Called with replies that the server holds back.
            on_closed: Called when the server has closed the connection.
        """
        own_address = (self.host or "127.0.0.1", self.port)
        return Pipe(self._inner_channel(), address, own_address, on_late, on_closed)

    def _inner_channel(self) -> Channel:
        """Return a channel that no limit of connections counts."""
        channel = self._new_channel()
        channel.is_inner = True
        return channel

    async def stop(self) -> None:
        """Stop listening, and close all connections."""
        self._is_stopping = True
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        server = await self._stop_accepting()
        if server is None:
            return
        for channel in list(self.channels):
            channel.close()
        if self.channels:
            self._all_closed.clear()
            # A peer that does not read must not block this.
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._all_closed.wait(), LAST_WORDS_S)
        for channel in list(self.channels):
            channel.abort()
        await server.wait_closed()

    def _watch(self) -> None:
        loop = asyncio.get_running_loop()
        now = loop.time()
        limit = now - self._idle_ms / 1000
        unfinished = limits.UNFINISHED_FRAME_MS
        for channel in list(self.channels):
            since = channel.unfinished_since
            if since is not None and (now - since) * 1000 > unfinished.maximum:
                channel.cut(unfinished)
                continue
            if channel.active_at >= limit:
                continue
            if channel.is_closed:
                channel.abort()  # the peer does not read pending writes
            else:
                _log.info("%s: idle for %d ms; closing the connection", channel.peer, self._idle_ms)
                channel.close()
        self._idle_timer = loop.call_later(self._idle_ms / 4000, self._watch)

    # Callbacks of channels --------------------------------------------------------------------

    def on_open(self, channel: Channel) -> None:
        """Register a new connection; close it if it exceeds a limit."""
        self.channels[channel] = None
        excess = None if channel.is_inner else self._count(channel)
        self._service.on_open(channel)
        if self._is_stopping:
            # Accepted before, and reported only now: its service may be closed already.
            channel.abort()
        elif not channel.is_inner:
            self._admit(channel, excess)

    def on_request(self, channel: Channel, request: Command) -> None:
        """Handle a request, and send its reply."""
        if request.refusal is not None:
            # Not raised: the request has it, and its traceback would have the request.
            refusal = self._failed(channel, request, request.refusal)
            if not request.is_oneway:
                channel.answer(request, refusal)
            return
        try:
            reply = self._service.on_request(channel, request)
            # Most replies are commands: an isinstance with an abstract class takes half a
            # microsecond.
            if not isinstance(reply, Command) and isinstance(reply, Generator):
                self._begin_long(channel, request, reply)
                return
        except Exception as error:  # noqa: BLE001 - the outermost edge of a request
            reply = self._failed(channel, request, error)
        if reply is not None and not request.is_oneway:
            channel.answer(request, reply)

    def _begin_long(self, channel: Channel, request: Command, work: LongReply) -> None:
        """Run the first slice of a long request, if there is time in this turn; queue the rest."""
        first = self.state.slices.turn_deadline()
        if first is not None and self._advance(channel, request, work, first):
            return
        channel.hold(lambda: _close(work))

        def step(deadline: float) -> bool:
            if channel.is_closed:
                _close(work)
            elif not self._advance(channel, request, work, deadline):
                return True
            channel.release()
            return False

        self.state.slices.add(step, channel.address, channel)

    def _advance(
        self, channel: Channel, request: Command, work: LongReply, deadline: float
    ) -> bool:
        """Run a slice of a long request; return True if it has ended, and send its reply."""
        try:
            with counting(channel.count_made):
                has_ended, reply = time_slices.advance(work, deadline, self.state.slices.seconds)
        except Exception as error:  # noqa: BLE001 - the outermost edge of a request
            has_ended, reply = True, self._failed(channel, request, error)
        if has_ended:
            channel.forget_made()
        if has_ended and reply is not None and not request.is_oneway:
            channel.answer(request, reply)
        return has_ended

    def _failed(self, channel: Channel, request: Command, error: Exception) -> Command:
        """Return the reply to a request that failed."""
        if isinstance(error, LimitExceeded):
            self.state.refusals.add(error.limit)
            self.state.faults.warn(
                error.limit,
                "%s: request %d refused: %s",
                channel.peer,
                request.code,
                excerpt(str(error), REMARK_LETTERS),
            )
        if isinstance(error, ReputError):
            text = excerpt(str(error), REMARK_LETTERS)
            return commands.reply(
                request, error.code_for(request.version), text, error.reply_fields
            )
        self.state.faults.bug(error, "request %d of %s failed", request.code, channel.peer)
        text = excerpt(f"{type(error).__name__}: {error}", REMARK_LETTERS)
        return commands.reply(request, ResponseCode.SYSTEM_ERROR, text)

    def on_closed(self, channel: Channel, error: Exception | None) -> None:
        """Remove a closed connection."""
        self.channels.pop(channel, None)
        if not channel.is_inner:
            self.state.closed(channel)
        if not self.channels:
            self._all_closed.set()
        self._service.on_closed(channel)


def served_after(steps: Steps[None], serve: Callable[[], Command | LongReply | None]) -> LongReply:
    """Run steps, then serve a request."""
    yield from steps
    reply = serve()
    return (yield from reply) if isinstance(reply, Generator) else reply


def _close(work: LongReply) -> None:
    """End a long request, unless it runs now and ends its own connection."""
    if inspect.getgeneratorstate(work) != inspect.GEN_RUNNING:
        work.close()


def _take_frames(channel: Channel, view: memoryview, end: int) -> int:
    return channel.take_frames(view, 0, end)
