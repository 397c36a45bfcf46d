"""Accepts connections and hands requests to a service."""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Protocol

from reput.errors import ReputError
from reput.format import command as commands
from reput.format.codes import ResponseCode
from reput.format.command import Command
from reput.remoting.channel import Channel
from reput.remoting.connection import READ_BYTES

IDLE_MS = 120_000
"""A connection without traffic for so long is closed, as in Java."""
_BACKLOG = 1024
LAST_WORDS_S = 1.0
"""How long what was written may take to leave, when all connections are closed."""

_log = logging.getLogger(__name__)


class Service(Protocol):
    """What a server serves.

    One with an ``on_bytes`` as ``channel.Owner`` has it sees bytes before they are commands.
    """

    def on_open(self, channel: Channel) -> None:
        """Take note of a new connection."""

    def on_request(self, channel: Channel, request: Command) -> Command | None:
        """Return the reply; None if there is none now: it can be sent later, by the channel.

        What it raises becomes the reply: its ``response_code``, or SYSTEM_ERROR, and its text.
        """

    def on_closed(self, channel: Channel) -> None:
        """Take note of the end of a connection."""


class RemotingServer:
    """Listens on a port.

    Args:
        service: What is served.
        host: Address to listen on; an empty one is all addresses.
        port: 0 for any that is free.
        idle_ms: Close a connection without traffic for so long; 0: never.
        buffer: What is read into; the server makes one if it gets none.
    """

    def __init__(
        self,
        service: Service,
        *,
        host: str = "0.0.0.0",
        port: int = 0,
        idle_ms: int = IDLE_MS,
        buffer: bytearray | None = None,
    ) -> None:
        self.host = host
        self.port = port
        """What it listens on, once it is started."""
        self.channels: set[Channel] = set()
        self._service = service
        self._idle_ms = idle_ms
        self._buffer = bytearray(READ_BYTES) if buffer is None else buffer
        self._server: asyncio.Server | None = None
        self._all_closed = asyncio.Event()
        self._idle_timer: asyncio.TimerHandle | None = None
        self._take_bytes: Callable[[Channel, memoryview, int], int] = getattr(
            service, "on_bytes", _take_frames
        )

    async def start(self) -> None:
        """Begin to listen.

        Raises:
            OSError: The address is in use, or not ours.
        """
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            lambda: Channel(self, self._buffer, stops_reading=True),
            self.host or None,
            self.port,
            backlog=_BACKLOG,
            reuse_address=True,
        )
        self.port = self._server.sockets[0].getsockname()[1]
        if self._idle_ms:
            self._watch()

    async def stop(self) -> None:
        """Stop listening, and close all connections."""
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        if self._server is None:
            return
        self._server.close()
        for channel in list(self.channels):
            channel.close()
        if self.channels:
            self._all_closed.clear()
            # One who does not read shall not keep us.
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._all_closed.wait(), LAST_WORDS_S)
        for channel in list(self.channels):
            channel.abort()
        await self._server.wait_closed()
        self._server = None

    def _watch(self) -> None:
        loop = asyncio.get_running_loop()
        limit = loop.time() - self._idle_ms / 1000
        for channel in list(self.channels):
            if channel.active_at >= limit:
                continue
            if channel.is_closed:
                channel.abort()  # what is to be written before is not taken
            else:
                _log.info("%s: idle for %d ms; closing the connection", channel.peer, self._idle_ms)
                channel.close()
        self._idle_timer = loop.call_later(self._idle_ms / 4000, self._watch)

    # What channels call -----------------------------------------------------------------------

    def on_open(self, channel: Channel) -> None:
        """Take note of a new connection."""
        self.channels.add(channel)
        self._service.on_open(channel)

    def on_bytes(self, channel: Channel, view: memoryview, end: int) -> int:
        """Handle what arrived."""
        return self._take_bytes(channel, view, end)

    def on_request(self, channel: Channel, request: Command) -> None:
        """Handle a request, and send its reply."""
        answer: Command | None
        try:
            answer = self._service.on_request(channel, request)
        except ReputError as error:
            answer = commands.reply(request, error.response_code, str(error), error.reply_fields)
        except Exception as error:  # noqa: BLE001 - the outermost edge of a request
            _log.exception("request %d of %s failed", request.code, channel.peer)
            text = f"{type(error).__name__}: {error}"
            answer = commands.reply(request, ResponseCode.SYSTEM_ERROR, text)
        if answer is not None and not request.is_oneway:
            channel.answer(request, answer)

    def on_closed(self, channel: Channel, error: Exception | None) -> None:
        """Take note of the end of a connection."""
        self.channels.discard(channel)
        if not self.channels:
            self._all_closed.set()
        self._service.on_closed(channel)


def _take_frames(channel: Channel, view: memoryview, end: int) -> int:
    return channel.take_frames(view, 0, end)
