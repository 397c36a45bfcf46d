"""Accepts connections of gRPC clients, plain and with TLS on the same port.

The first byte decides, as ``tls_acceptor`` describes. A plain connection must begin with the
preface of HTTP/2 ("prior knowledge"); with TLS, ALPN offers h2.
"""

import asyncio
import contextlib

from reput.grpc import limits
from reput.grpc.http2.call_reader import CallReader
from reput.grpc.http2.channel import GrpcChannel
from reput.grpc.http2.grpc import Service
from reput.grpc.kernels import call_words, native
from reput.remoting import limits as remoting_limits
from reput.remoting.connection import READ_BYTES
from reput.remoting.deadlines import Deadlines
from reput.remoting.listener import LAST_WORDS_S, Listener
from reput.remoting.server import IDLE_MS
from reput.remoting.server_state import ServerState

WATCH_S = 1.0
"""Interval of checks of deadlines, in seconds: clients watch theirs more exactly."""


class GrpcServer(Listener[GrpcChannel]):
    """Listens on a port.

    Args:
        service: The methods.
        host: Address to listen on; empty for all addresses.
        port: Port to listen on; 0 for any free port.
        idle_ms: Time without a call after which a connection is closed, in ms; 0: never.
        state: State shared with other servers, with limits, TLS and proxies; by default its own.
        has_fast_path: Whether kernels read busy connections, if there are compiled ones.
    """

    def __init__(
        self,
        service: Service,
        *,
        host: str = "0.0.0.0",
        port: int = 0,
        idle_ms: int = IDLE_MS,
        state: ServerState | None = None,
        has_fast_path: bool = True,
    ) -> None:
        super().__init__(host, port, state)
        self._service = service
        self._idle_ms = idle_ms
        memory = bytearray(READ_BYTES + call_words.SLACK)
        self._buffer = memoryview(memory)[:READ_BYTES]
        paths = () if service.fast is None else service.fast.paths
        self._reader = CallReader(memory, paths) if has_fast_path and native.is_compiled() else None
        self.is_stopping = False
        """Whether connections are closed as soon as they have no calls."""
        self._closed = asyncio.Event()  # set by each end of a connection
        self._timer: asyncio.TimerHandle | None = None
        # Connections that were read or written lately, or have a deadline: not thousands of idle
        # ones, to look at which each second takes longer than all else that they do.
        self._watched: set[GrpcChannel] = set()
        self._beginning: Deadlines[GrpcChannel] = Deadlines(limits.HTTP2_PREFACE_MS, self._refuse)

    async def start(self) -> None:
        """Start listening.

        Raises:
            OSError: The address is in use, or does not belong to this machine.
        """
        self.is_stopping = False
        await self._listen()
        self._watch()

    def _new_channel(self) -> GrpcChannel:
        """Return the channel of a new connection."""
        channel = GrpcChannel(self, self._service, self._buffer)
        channel.connection.reader = self._reader
        return channel

    async def stop(self, grace_s: float = 0.0) -> None:
        """Stop: accept no connections, let calls end for some time, then close everything.

        Args:
            grace_s: Time for running calls, in seconds. Clients are asked at its begin to open no
                more calls. At its end, calls that still run fail as UNAVAILABLE.
        """
        self.is_stopping = True
        if self._timer is not None:
            self._timer.cancel()
        self._beginning.stop()
        server = await self._stop_accepting()
        if server is None:
            return
        for channel in list(self.channels):
            channel.connection.drain()
            if not channel.connection.streams:
                self.on_idle(channel)
        await self._wait_for_ends(grace_s)
        for channel in list(self.channels):
            channel.connection.end_calls()
            self.on_idle(channel)
        await self._wait_for_ends(LAST_WORDS_S)  # a peer that does not read must not block this
        for channel in list(self.channels):
            channel.abort()
        await server.wait_closed()

    async def _wait_for_ends(self, seconds: float) -> None:
        """Wait for some time until all connections are closed."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self.channels:
                    self._closed.clear()
                    await self._closed.wait()

    def _watch(self) -> None:
        loop = asyncio.get_running_loop()
        self.expire(loop.time())
        self._timer = loop.call_later(WATCH_S, self._watch)

    def expire(self, now_s: float) -> None:
        """Handle deadlines, and close connections that are idle or send half a frame.

        Args:
            now_s: The time of the event loop, in seconds.
        """
        unfinished = remoting_limits.UNFINISHED_FRAME_MS
        for channel in list(self._watched):
            connection = channel.connection
            since = channel.unfinished_since
            if since is not None and (now_s - since) * 1000 > unfinished.maximum:
                channel.cut(unfinished)
            elif channel.is_closed:
                if (now_s - channel.active_at) * 1000 > IDLE_MS:
                    channel.abort()  # the peer does not read pending writes
            elif connection.streams:
                connection.expire(now_s)
                channel.active_at = now_s
                if since is None and connection.is_quiet:
                    channel.is_quiet = True
                    self._watched.discard(channel)
            elif connection.peer_has_ended or (
                self._idle_ms and (now_s - channel.active_at) * 1000 >= self._idle_ms
            ):
                self.on_idle(channel)

    def _refuse(self, channel: GrpcChannel) -> None:
        """Close a connection that has sent nothing useful in time."""
        self._beginning.remove(channel)
        if not channel.is_closed:
            channel.refuse(limits.HTTP2_PREFACE_MS)

    # Callbacks of channels --------------------------------------------------------------------

    def on_open(self, channel: GrpcChannel) -> None:
        """Register a new connection; close it if it exceeds a limit."""
        self.channels[channel] = None
        self._watched.add(channel)
        excess = self._count(channel)
        if self.is_stopping:
            # Accepted before, and reported only now: its service may be closed already.
            channel.abort()
        else:
            self._admit(channel, excess)
            if not channel.is_closed:
                self._beginning.add(channel)

    def on_begun(self, channel: GrpcChannel) -> None:
        """Handle the first frames of a connection."""
        self._beginning.remove(channel)
        self.state.silent.remove(channel)

    def on_stirred(self, channel: GrpcChannel) -> None:
        """Watch the deadlines of a connection that was quiet."""
        self._watched.add(channel)

    def on_idle(self, channel: GrpcChannel) -> None:
        """Close a connection that has no calls."""
        channel.connection.shut_down()
        channel.close()

    def on_closed(self, channel: GrpcChannel) -> None:
        """Remove a closed connection."""
        self._beginning.remove(channel)
        self.channels.pop(channel, None)
        self._watched.discard(channel)
        self.state.closed(channel)
        self._closed.set()
