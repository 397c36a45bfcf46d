"""TLS of a server: which connections have it, their handshakes in turns, and new certificates.

The first byte decides: a handshake begins with 0x16, a frame with 0 or 1. Connections without TLS
are given to their channel then, and cost nothing more.
"""

import asyncio
import enum
import logging
import os
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable
from typing import cast

from reput.clock import Clock, SystemClock
from reput.errors import InvalidOption, TlsFailed
from reput.remoting import limits, throwaway_certificate, tls_settings
from reput.remoting.client_faults import ClientFaults
from reput.remoting.deadlines import Deadlines
from reput.remoting.time_slices import TimeSlices
from reput.remoting.tls import TlsSession
from reput.remoting.tls_connection import READ_BYTES, Inner, TlsConnection
from reput.remoting.tls_settings import TlsMode, TlsSettings

HANDSHAKE = 0x16
"""First byte of a connection with TLS."""
FIRST_BYTES = 4 * 1024
"""Largest first read of a connection, more than a client's first message. It is kept, and not
counted, until it is the handshake's turn."""
SESSION_BYTES = 64 * 1024
"""Memory that a handshake is counted with, until it ends."""
WATCH_S = 1.0
"""Interval of checks whether files of certificates have changed, in seconds."""

_log = logging.getLogger(__name__)


class Handshake(enum.StrEnum):
    """Outcome of a connection; a label of the metric."""

    DONE = "done"
    FAILED = "failed"
    PLAIN_REFUSED = "plain_refused"
    """No handshake, and ``tls.server.mode`` is enforcing."""


class TlsAcceptor:
    """Begins connections of a server, on all its ports.

    Args:
        settings: The settings of TLS.
        slices: The queue of long work: handshakes of many clients take turns with other requests.
        faults: The log of clients' mistakes.
        count: Called with a connection and the memory that its handshake takes, or the bytes that
            are kept while it is paused; it may cut this or another connection.
        clock: The clock, for the dates of a certificate.

    Raises:
        InvalidOption: A file cannot be used, or keys are missing.
    """

    def __init__(
        self,
        settings: TlsSettings,
        slices: TimeSlices,
        faults: ClientFaults,
        count: Callable[[Inner | TlsConnection, int], object] = lambda counted, kept_bytes: None,
        clock: Clock | None = None,
    ) -> None:
        self.mode = settings.tls_server_mode
        self.counts: Counter[Handshake] = Counter()
        """Connections by the outcome of their handshake."""
        self._settings = settings
        self._slices = slices
        self._faults = faults
        self._count = count
        self._clock = clock or SystemClock()
        self._stamps = _stamps(settings.server_paths)
        self.context = tls_settings.server_context(settings)
        """The certificate of new connections; None before it is needed."""
        self._making: asyncio.Task[None] | None = None
        self._watching: asyncio.Task[None] | None = None
        self._buffer = memoryview(bytearray(READ_BYTES))
        self._without_certificate: list[_FirstByte] = []
        self.deadlines = Deadlines(limits.TLS_HANDSHAKE_MS, _cut)
        """Connections whose handshake has begun."""
        # Queues of begun handshakes with input, and of new ones.
        self._begun: OrderedDict[TlsConnection, None] = OrderedDict()
        self._new: OrderedDict[_FirstByte, None] = OrderedDict()

    # --- new certificates ---------------------------------------------------------------------

    def start(self) -> None:
        """Begin to watch the files."""
        if self._watching is None and self._stamps:
            self._watching = asyncio.create_task(self._watch(), name="tls files")

    async def stop(self) -> None:
        """End all tasks."""
        tasks = [task for task in (self._watching, self._making) if task is not None]
        self._watching = self._making = None
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self.deadlines.stop()

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(WATCH_S)
            await asyncio.to_thread(self.reload)

    def reload(self) -> None:
        """Use changed files for new connections, if they fit together; in any thread."""
        stamps = _stamps(self._settings.server_paths)
        if stamps == self._stamps:
            return
        self._stamps = stamps
        try:
            self.context = tls_settings.server_context(self._settings)
        except InvalidOption as error:
            _log.error("the changed files of TLS are not used: %s", error)
        else:
            _log.info("new connections use the changed files of TLS")

    async def _make_certificate(self) -> None:
        context = tls_settings.empty_server_context(self._settings)
        try:
            await asyncio.to_thread(throwaway_certificate.load_into, context, self._clock.now_ms())
            self.context = context
            _log.info("made a certificate for tests: tls.server.keyPath and certPath are not set")
        except TlsFailed as error:
            for waiting in self._without_certificate:
                self._failed(waiting.inner, error)
        except Exception as error:  # noqa: BLE001 - the outermost edge of a task
            _log.exception("a certificate for tests cannot be made")
            for waiting in self._without_certificate:
                self._failed(waiting.inner, TlsFailed(f"there is no certificate: {error}"))
        self._making = None
        begun, self._without_certificate = self._without_certificate, []
        for waiting in begun:
            self.queue_new(waiting)

    @property
    def has_certificate(self) -> bool:
        """True if there is a certificate, or it can be made when needed."""
        return self.context is not None or throwaway_certificate.is_possible()

    # --- connections --------------------------------------------------------------------------

    def protocol(self, inner: Inner) -> asyncio.BaseProtocol:
        """Return the protocol of a new connection, until it is known whether it uses TLS."""
        return _FirstByte(self, inner)

    def begin(self, first: "_FirstByte", transport: asyncio.Transport, data: bytes) -> None:
        """Begin a connection whose first bytes are a handshake; without a certificate, later."""
        inner = first.inner
        if self.mode is TlsMode.DISABLED:
            self._failed(inner, TlsFailed("tls.server.mode is disabled"))
        elif self.context is None:
            self._without_certificate.append(first)
            if self._making is None:
                self._making = asyncio.create_task(self._make_certificate(), name="certificate")
        else:
            connection = TlsConnection(
                inner,
                TlsSession(self.context, is_server=True),
                self._buffer,
                on_input=self._queue_input,
                on_handshake=self._ended,
                on_kept=self._count,
            )
            self.deadlines.add(connection)
            self._count(inner, SESSION_BYTES)
            connection.take_over(transport, data)

    def refuse_plain(self, inner: Inner) -> None:
        """Close a connection without TLS, where that is required."""
        self.counts[Handshake.PLAIN_REFUSED] += 1
        text = "%s: it does not use TLS, and tls.server.mode is enforcing; closing the connection"
        self._faults.warn("tls_plain", text, inner.peer)
        inner.close()

    def _queue_input(self, connection: TlsConnection) -> None:
        connection.pause_reading()  # until it is its turn
        self._wake()
        self._begun[connection] = None

    def queue_new(self, first: "_FirstByte") -> None:
        """Begin a handshake when it is its turn: each step takes up to a few milliseconds."""
        self._wake()
        self._new[first] = None

    def _wake(self) -> None:
        if not (self._begun or self._new):
            self._slices.add(self._advance)

    def _advance(self, deadline: float) -> bool:
        """Continue handshakes; return True if more are waiting.

        Begun and new handshakes take turns: if thousands of clients connect at once, few
        handshakes are open at a time.
        """
        while self._begun or self._new:
            if self._begun:
                self._begun.popitem(last=False)[0].advance()
            if self._new:
                self._new.popitem(last=False)[0].advance()
            if self._slices.seconds() >= deadline:
                break
        return bool(self._begun or self._new)

    def _ended(self, connection: TlsConnection, failure: TlsFailed | None) -> None:
        self.deadlines.remove(connection)
        self._count(connection.inner, 0)
        if failure is None:
            self.counts[Handshake.DONE] += 1
        else:
            self._failed(connection.inner, failure, is_closing=True)

    def _failed(self, inner: Inner, failure: TlsFailed, *, is_closing: bool = False) -> None:
        self.counts[Handshake.FAILED] += 1
        self._faults.warn("tls_handshake", "%s: no TLS handshake: %s", inner.peer, str(failure))
        if not is_closing:
            inner.close(failure)


def _cut(connection: TlsConnection) -> None:
    connection.fail(TlsFailed(str(limits.TLS_HANDSHAKE_MS.exceeded())))


class _FirstByte(asyncio.BufferedProtocol):
    """The protocol of a connection until its first byte."""

    def __init__(self, acceptor: TlsAcceptor, inner: Inner) -> None:
        self.inner = inner
        self._acceptor = acceptor
        self._transport: asyncio.Transport | None = None
        self._data = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self.inner.connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self.inner.connection_lost(exc)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self.inner.get_buffer(sizehint)[:FIRST_BYTES]

    def buffer_updated(self, nbytes: int) -> None:
        if self.inner.is_closed or self._transport is None:
            return
        room = self.inner.get_buffer(nbytes)
        if room[0] == HANDSHAKE:
            self._data = bytes(room[:nbytes])
            self._transport.pause_reading()
            self._acceptor.queue_new(self)
        elif self._acceptor.mode is TlsMode.ENFORCING:
            self._acceptor.refuse_plain(self.inner)
        else:
            self._transport.set_protocol(self.inner)  # type: ignore[arg-type]
            self.inner.buffer_updated(nbytes)

    def advance(self) -> None:
        """Begin the handshake."""
        if not self.inner.is_closed and self._transport is not None:
            self._acceptor.begin(self, self._transport, self._data)


def _stamps(paths: Iterable[str]) -> tuple[tuple[int, ...] | None, ...]:
    """Return the facts that change with a file; None if it is missing."""
    stamps: list[tuple[int, ...] | None] = []
    for path in paths:
        try:
            status = os.stat(path)  # noqa: PTH116 - each second
        except OSError:
            stamps.append(None)
        else:
            stamps.append((status.st_mtime_ns, status.st_size, status.st_ino))
    return tuple(stamps)
