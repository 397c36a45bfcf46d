"""Opens connections, one per address, and sends requests over them."""

import asyncio
import contextlib
import functools
import inspect
import logging
import os
import ssl
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Self

from reput.errors import (
    REMARK_LETTERS,
    InvalidOption,
    ReputError,
    RequestTimedOut,
    TlsFailed,
    Unreachable,
    excerpt,
)
from reput.format import command as commands
from reput.format.codes import ResponseCode
from reput.format.command import IS_ONEWAY, Command
from reput.format.signing import Signer
from reput.remoting import tls_connection
from reput.remoting.channel import Channel, Owner
from reput.remoting.connection import READ_BYTES
from reput.remoting.listener import LAST_WORDS_S
from reput.remoting.server import IDLE_MS
from reput.remoting.tls import TlsSession
from reput.remoting.tls_connection import TlsConnection

CONNECT_TIMEOUT_MS = 3000
TIMEOUT_MS = 3000

Handler = Callable[[str, Command], "Command | Awaitable[Command | None] | None"]
"""Handles a request of the peer: address, request -> reply."""

_PORT_MAX = 65_535
_PORT_DIGITS = 10

_log = logging.getLogger(__name__)


class Dialer:
    """Opens connections: plain ones, or with TLS.

    To be used only in the event loop in which it is created.

    Args:
        connect_timeout_ms: Timeout of an attempt, in ms.
        tls: Certificates of connections with TLS; None for plain connections.
        signer: Signs all requests; without it they are not signed.
        fields: Fields that all requests get.
    """

    def __init__(
        self,
        *,
        connect_timeout_ms: int = CONNECT_TIMEOUT_MS,
        tls: ssl.SSLContext | None = None,
        signer: Signer | None = None,
        fields: Mapping[str, str] | None = None,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._connect_timeout_ms = connect_timeout_ms
        self._signer = signer
        self._fields = fields
        self._buffer = bytearray(READ_BYTES)
        self._tls = tls
        self._encrypted = memoryview(bytearray(0 if tls is None else tls_connection.READ_BYTES))

    async def dial(self, address: str, owner: Owner) -> Channel:
        """Return a new connection to an address.

        Raises:
            Unreachable: The connection could not be opened.
        """
        host, port = split_address(address)
        try:
            async with asyncio.timeout(self._connect_timeout_ms / 1000):
                channel = await self._open(address, host, port, owner)
        except TimeoutError as error:
            raise Unreachable(address, f"no answer in {self._connect_timeout_ms} ms") from error
        except ValueError as error:
            raise Unreachable(address, f"the host is no name: {error}") from error
        except OSError as error:
            # asyncio's message is "Connect call failed" for any cause; errors of name resolution
            # have negative numbers.
            number = error.errno or 0
            reason = os.strerror(number) if number > 0 else error.strerror or str(error)
            raise Unreachable(address, reason) from error
        # closed before its owner keeps it: its end would not be reported again
        if channel.is_closed:
            raise Unreachable(address, "the connection was closed at once")
        return channel

    async def _open(self, address: str, host: str, port: int, owner: Owner) -> Channel:
        """Return a new connection; with TLS, after the handshake.

        Raises:
            Unreachable: The handshake failed.
            OSError: There is no connection.
        """
        channel = Channel(owner, self._buffer, signer=self._signer, fields=self._fields)
        if self._tls is None:
            await self._loop.create_connection(lambda: channel, host, port)
            return channel
        result: asyncio.Future[TlsFailed | None] = self._loop.create_future()

        def set_result(_: TlsConnection, failure: TlsFailed | None) -> None:
            if not result.done():  # the attempt may be cancelled
                result.set_result(failure)

        connection = TlsConnection(
            channel,
            TlsSession(self._tls, is_server=False),
            self._encrypted,
            on_input=TlsConnection.advance,
            on_handshake=set_result,
        )
        try:
            await self._loop.create_connection(lambda: connection, host, port)
            failure = await result
        except BaseException:
            channel.abort()
            raise
        if failure is not None:
            raise Unreachable(address, f"no TLS handshake: {failure}")
        return channel


class RemotingClient:
    """Connections by address: opened when needed, reopened when lost.

    To be used only in the event loop in which it is created.

    Args:
        handler: Handles requests of the peer; without it they are refused.
        connect_timeout_ms: Timeout of a connection attempt, in ms.
        idle_ms: Idle time after which a connection is closed, in ms.
        tls: Certificates of connections with TLS; None for plain connections.
        signer: Signs all requests; without it they are not signed.
        fields: Fields that all requests get.
        on_connected: Called with the address of each new connection.
        on_disconnected: Called with the address of a connection that was closed by anything but
            ``close``, and the reason.
    """

    def __init__(
        self,
        *,
        handler: Handler | None = None,
        connect_timeout_ms: int = CONNECT_TIMEOUT_MS,
        idle_ms: int = IDLE_MS,
        tls: ssl.SSLContext | None = None,
        signer: Signer | None = None,
        fields: Mapping[str, str] | None = None,
        on_connected: Callable[[str], None] | None = None,
        on_disconnected: Callable[[str, str], None] | None = None,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._handler = handler
        self._idle_ms = idle_ms
        self._on_connected = on_connected
        self._on_disconnected = on_disconnected
        self._dialer = Dialer(
            connect_timeout_ms=connect_timeout_ms, tls=tls, signer=signer, fields=fields
        )
        self._channels: dict[str, Channel] = {}
        self._addresses: dict[Channel, str] = {}
        self._connecting: dict[str, asyncio.Task[Channel]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_closed = False
        self._all_closed = asyncio.Event()
        self._idle_timer = self._loop.call_later(idle_ms / 4000, self._watch)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close all connections; pending requests raise ``ConnectionLost``."""
        self._is_closed = True
        self._idle_timer.cancel()
        tasks = [*self._connecting.values(), *self._tasks]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for channel in list(self._addresses):
            channel.close()
        if self._addresses:
            # A peer that does not read must not block this.
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._all_closed.wait(), LAST_WORDS_S)
        for channel in list(self._addresses):
            channel.abort()
        if self._addresses:
            await self._all_closed.wait()

    # Requests ---------------------------------------------------------------------------------

    def channel(self, address: str) -> Channel | None:
        """Return the open connection to an address, or None."""
        channel = self._channels.get(address)
        return None if channel is None or channel.is_closed else channel

    def open_addresses(self) -> list[str]:
        """Return the addresses with an open connection; may be called in any thread."""
        channels = list(self._channels.items())
        return [address for address, channel in channels if not channel.is_closed]

    async def connect(self, address: str) -> Channel:
        """Return the connection to an address; open it if necessary.

        Raises:
            Unreachable: The connection could not be opened.
        """
        channel = self._channels.get(address)
        if channel is not None and not channel.is_closed:
            return channel
        if self._is_closed:
            raise Unreachable(address, "this client is closed")
        task = self._connecting.get(address)
        if task is None:
            task = self._connecting[address] = self._loop.create_task(self._connect(address))
            task.add_done_callback(functools.partial(self._connected, address))
        try:
            # If this caller is cancelled, others still use the connection.
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if not task.cancelled():
                raise
            raise Unreachable(address, "this client is closed") from None

    def _connected(self, address: str, task: asyncio.Task[Channel]) -> None:
        """End an attempt; its failure counts as seen, since all its callers may be cancelled."""
        self._connecting.pop(address, None)
        if not task.cancelled():
            task.exception()

    async def _connect(self, address: str) -> Channel:
        channel = await self._dialer.dial(address, self)
        self._channels[address] = channel
        self._addresses[channel] = address
        if self._on_connected is not None:
            self._on_connected(address)
        return channel

    async def invoke(self, address: str, request: Command, timeout_ms: int = TIMEOUT_MS) -> Command:
        """Send a request and return the reply, whatever its code.

        Raises:
            Unreachable: There is no connection.
            ConnectionLost: It was closed before the reply came.
            RequestTimedOut: No reply came in time.
            Overloaded: Too many requests are pending.
        """
        channel = self._channels.get(address)
        if channel is None or channel.is_closed:
            channel = await self.connect(address)
        await self._writable(channel, address, request, timeout_ms)
        return await channel.send_request(request, timeout_ms)

    async def send_requests(
        self, address: str, requests: Sequence[Command], timeout_ms: int = TIMEOUT_MS
    ) -> list[asyncio.Future[Command]]:
        """Send requests at once; return the futures of their replies, in order.

        The futures raise as ``invoke`` does. ``cancel`` the ones that are not awaited.

        Raises:
            Unreachable: There is no connection.
            ConnectionLost: It was closed.
            RequestTimedOut: The peer did not read earlier requests.
            Overloaded: Too many requests are pending.
        """
        channel = await self.connect(address)
        await self._writable(channel, address, requests[0], timeout_ms)
        replies: list[asyncio.Future[Command]] = []
        try:
            for request in requests:
                replies.append(channel.send_request(request, timeout_ms))  # noqa: PERF401
        except BaseException:
            cancel(replies)
            raise
        return replies

    async def send_oneway(
        self, address: str, request: Command, timeout_ms: int = TIMEOUT_MS
    ) -> None:
        """Send a request that gets no reply.

        Raises:
            Unreachable: There is no connection.
            RequestTimedOut: The peer did not read earlier requests.
        """
        channel = await self.connect(address)
        await self._writable(channel, address, request, timeout_ms)
        request.flag |= IS_ONEWAY
        channel.send(request)

    async def _writable(
        self, channel: Channel, address: str, request: Command, timeout_ms: int
    ) -> None:
        if channel.is_writable:
            return
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                await channel.writable()
        except TimeoutError as error:
            raise RequestTimedOut(address, request.code, timeout_ms) from error

    def _watch(self) -> None:
        limit = self._loop.time() - self._idle_ms / 1000
        for channel in list(self._addresses):
            if channel.active_at >= limit:
                continue
            if channel.is_closed:
                channel.abort()  # the peer does not read pending writes
            else:
                channel.close(ReputError(f"closed here: idle for {self._idle_ms // 1000} s"))
        self._idle_timer = self._loop.call_later(self._idle_ms / 4000, self._watch)

    # Callbacks of channels --------------------------------------------------------------------

    def on_open(self, channel: Channel) -> None:
        """Do nothing: ``connect`` registers the connection."""

    def on_bytes(self, channel: Channel, view: memoryview, end: int) -> int:
        """Handle the bytes of a read."""
        return channel.take_frames(view, 0, end)

    def on_request(self, channel: Channel, request: Command) -> None:
        """Handle a request of the peer."""
        if self._handler is None:
            self._answer(channel, request, _unsupported(request))
            return
        if request.refusal is not None:
            self._answer(channel, request, _failed(request, request.refusal))
            return
        address = self._addresses.get(channel, channel.peer)
        try:
            reply = self._handler(address, request)
        except Exception as error:  # noqa: BLE001 - the outermost edge of a request
            reply = _failed(request, error)
        if inspect.isawaitable(reply):
            task = self._loop.create_task(self._answer_later(channel, request, reply))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        else:
            self._answer(channel, request, reply)

    async def _answer_later(
        self, channel: Channel, request: Command, waiting: Awaitable[Command | None]
    ) -> None:
        try:
            reply = await waiting
        except Exception as error:  # noqa: BLE001 - the outermost edge of a request
            reply = _failed(request, error)
        self._answer(channel, request, reply)

    def _answer(self, channel: Channel, request: Command, reply: Command | None) -> None:
        if reply is not None and not request.is_oneway:
            channel.answer(request, reply)

    def on_closed(self, channel: Channel, error: Exception | None) -> None:
        """Remove a closed connection."""
        address = self._addresses.pop(channel, None)
        if address is not None and self._channels.get(address) is channel:
            del self._channels[address]
        if address is not None and self._on_disconnected is not None and not self._is_closed:
            reason = str(error) if error is not None else ""
            self._on_disconnected(address, reason or "closed by the other side")
        if self._is_closed and not self._addresses:
            self._all_closed.set()


def cancel(replies: Iterable["asyncio.Future[Command]"]) -> None:
    """Cancel the futures of replies that are no longer awaited; an error counts as seen."""
    for reply in replies:
        if not reply.cancel() and not reply.cancelled():
            reply.exception()


def split_address(address: str) -> tuple[str, int]:
    """Split ``host:port``.

    Raises:
        InvalidOption: The text has another form.
    """
    host, _, port = address.strip().rpartition(":")
    is_port = port.isdecimal() and len(port) <= _PORT_DIGITS and int(port) <= _PORT_MAX
    if not host.isprintable() or not host.strip() or not is_port:
        raise InvalidOption("address", address, "host:port, for example 127.0.0.1:9876")
    return host.removeprefix("[").removesuffix("]"), int(port)


def _unsupported(request: Command) -> Command:
    return commands.reply(
        request,
        ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
        f"request type {request.code} not supported",
    )


def _failed(request: Command, error: Exception) -> Command:
    if isinstance(error, ReputError):
        text = excerpt(str(error), REMARK_LETTERS)
        return commands.reply(request, error.response_code, text)
    _log.error("request %d failed", request.code, exc_info=error)
    text = excerpt(f"{type(error).__name__}: {error}", REMARK_LETTERS)
    return commands.reply(request, ResponseCode.SYSTEM_ERROR, text)
