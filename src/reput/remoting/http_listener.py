"""A small HTTP server in a separate thread, for /health and /metrics.

    thread: its own event loop -- accepts, reads a request, calls ``answer``, writes, closes

It serves one Prometheus and one prober. A client that sends nothing, or does not read, occupies a
connection until its timeout; if there are too many, the oldest one is closed, so that a prober is
always served.
"""

import asyncio
import contextlib
import logging
import socket
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any

from reput.errors import LimitExceeded
from reput.limits import Limit, Refusals
from reput.remoting import limits
from reput.remoting.client_faults import ClientFaults

WRITE_TIMEOUT_MS = 10_000
"""Timeout of writing an answer, in ms."""
_BACKLOG = 64
_STOP_S = 1.0

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """The answer to a request."""

    status: HTTPStatus
    content_type: str
    body: bytes


@dataclass(frozen=True, slots=True)
class HttpPost:
    """A request with a body."""

    path: str
    headers: Mapping[str, str]
    """Value by name in lower case; the last of equal names counts."""
    body: bytes


NOT_FOUND = HttpAnswer(
    HTTPStatus.NOT_FOUND, "text/plain; charset=utf-8", b"available: /metrics and /health\n"
)


class HttpListener:
    """Listens on a port, and answers GET and HEAD, and POST if there is a function for it.

    Args:
        answer: Returns the answer to a path, with its query after ``?``; called on the listener's
            loop, one task per request.
        host: Address to listen on.
        port: Port to listen on; 0 for any free port.
        path: Path of a Unix socket to listen on instead; ``stop`` deletes it.
        refusals: Counts refusals by limits.
        connections: Limit of connections.
        request_bytes: Limit of the size of a request's head, and of its body.
        request_ms: Timeout of reading a request.
        post: Returns the answer to a POST; None refuses them.
    """

    def __init__(
        self,
        answer: Callable[[str], Awaitable[HttpAnswer]],
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        path: str | None = None,
        refusals: Refusals | None = None,
        connections: Limit = limits.HTTP_CONNECTIONS,
        request_bytes: Limit = limits.HTTP_REQUEST_BYTES,
        request_ms: Limit = limits.HTTP_REQUEST_MS,
        post: Callable[[HttpPost], Awaitable[HttpAnswer]] | None = None,
    ) -> None:
        self.host = host
        self.port = port
        """Port it listens on, after ``start``."""
        self._path = path
        self._answer = answer
        self._post = post
        self._refusals = Refusals() if refusals is None else refusals
        self._connections = connections
        self._request_bytes = request_bytes
        self._request_ms = request_ms
        self._faults = ClientFaults(_log, time.monotonic)
        self._open: dict[asyncio.Task[None], asyncio.WriteTransport] = {}  # oldest first
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._stopping: asyncio.Event | None = None

    def start(self) -> None:
        """Start listening.

        Raises:
            OSError: The address is in use, or does not belong to this machine.
        """
        if self._path is None:
            family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
            address = self.host, self.port
            listening = socket.create_server(address, family=family, backlog=_BACKLOG)
            self.port = listening.getsockname()[1]
        else:
            Path(self._path).unlink(missing_ok=True)
            listening = socket.socket(socket.AF_UNIX)
            listening.bind(self._path)
            listening.listen(_BACKLOG)
        is_ready = threading.Event()
        self._thread = threading.Thread(
            target=self._run, args=(listening, is_ready), name="reput-http", daemon=True
        )
        self._thread.start()
        is_ready.wait()

    async def stop(self) -> None:
        """Stop listening; running requests are answered."""
        thread, self._thread = self._thread, None
        if thread is None:
            return
        assert self._loop is not None
        assert self._stopping is not None
        self._loop.call_soon_threadsafe(self._stopping.set)
        await asyncio.to_thread(thread.join)  # running requests need the caller's loop meanwhile

    def _run(self, listening: socket.socket, is_ready: threading.Event) -> None:
        with asyncio.Runner() as runner:
            self._loop = runner.get_loop()
            self._loop.set_exception_handler(self._faults.handle_loop_error)
            self._stopping = asyncio.Event()
            runner.run(self._serve(listening, self._stopping, is_ready))
        if self._path is not None:
            Path(self._path).unlink(missing_ok=True)

    async def _serve(
        self, listening: socket.socket, stopping: asyncio.Event, is_ready: threading.Event
    ) -> None:
        start = asyncio.start_server if self._path is None else asyncio.start_unix_server
        server = await start(self._connected, sock=listening, limit=self._request_bytes.maximum)
        is_ready.set()
        await stopping.wait()
        # asyncio opens an accepted connection in a separate task. If the server is closed before
        # that task runs, the task fails and the socket stays open: first accept no more, then let
        # those tasks end, then close.
        asyncio.get_running_loop().remove_reader(listening)
        accepting = asyncio.all_tasks() - {asyncio.current_task()} - self._open.keys()
        if accepting:
            await asyncio.wait(accepting, timeout=_STOP_S)
        server.close()
        if self._open:
            await asyncio.wait(self._open, timeout=_STOP_S)
        for task in list(self._open):
            task.cancel()

    # Connections ------------------------------------------------------------------------------

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Start serving a new connection; called by the loop."""
        if len(self._open) >= self._connections.maximum:
            oldest = next(iter(self._open))
            self._refuse(self._connections.exceeded(), writer)
            self._open.pop(oldest).abort()
            oldest.cancel()
        task = asyncio.get_running_loop().create_task(self._talk(reader, writer))
        self._open[task] = writer.transport
        task.add_done_callback(lambda ended: self._open.pop(ended, None))

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            reply = await self._reply(reader, writer)
            if reply is not None:
                writer.write(reply)
                async with asyncio.timeout(WRITE_TIMEOUT_MS / 1000):
                    await writer.drain()
                    writer.close()
                    await writer.wait_closed()
        except (OSError, TimeoutError) as error:
            self._faults.warn("unread", "%s: it does not read the answer: %r", _peer(writer), error)
        finally:
            writer.transport.abort()

    async def _reply(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bytes | None:
        """Read a request; return the bytes of the answer, None for no answer."""
        try:
            async with asyncio.timeout(self._request_ms.maximum / 1000):
                head = await reader.readuntil(b"\r\n\r\n")
                method, _, rest = head.split(b"\r\n", 1)[0].partition(b" ")
                post = self._post if method == b"POST" else None
                headers = {} if post is None else _headers_of(head)
                size = _body_bytes_of(headers)
                if size > self._request_bytes.maximum:
                    return self._too_long(writer)
                body = await reader.readexactly(size)
        except TimeoutError:
            self._refuse(self._request_ms.exceeded(), writer)
            return None
        except asyncio.LimitOverrunError:
            return self._too_long(writer)
        except (asyncio.IncompleteReadError, OSError):
            return None  # the client closed the connection
        target = rest.partition(b" ")[0].decode("latin-1")
        if post is None and method not in (b"GET", b"HEAD"):
            text = b"GET, HEAD and POST only\n" if self._post else b"GET and HEAD only\n"
            return _bytes_of(HttpAnswer(HTTPStatus.METHOD_NOT_ALLOWED, "text/plain", text))
        try:
            if post is None:
                answer = await self._answer(target)
            else:
                answer = await post(HttpPost(target.partition("?")[0], headers, body))
        except Exception as error:  # noqa: BLE001 - the outermost edge of a request
            _log.exception("a request over HTTP failed")
            text = f"{type(error).__name__}: {error}\n".encode(errors="backslashreplace")
            answer = HttpAnswer(HTTPStatus.INTERNAL_SERVER_ERROR, "text/plain", text)
        return _bytes_of(answer, has_body=method != b"HEAD")

    def _too_long(self, writer: asyncio.StreamWriter) -> bytes:
        error = self._request_bytes.exceeded()
        self._refuse(error, writer)
        return _bytes_of(HttpAnswer(HTTPStatus.BAD_REQUEST, "text/plain", f"{error}\n".encode()))

    def _refuse(self, error: LimitExceeded, writer: asyncio.StreamWriter) -> None:
        self._refusals.add(error.limit)
        self._faults.warn(error.limit, "%s: HTTP: %s", _peer(writer), error)


def _headers_of(head: bytes) -> dict[str, str]:
    lines = head.decode("latin-1").split("\r\n")[1:]
    pairs = (line.partition(":") for line in lines if ":" in line)
    return {name.strip().lower(): value.strip() for name, _, value in pairs}


def _body_bytes_of(headers: Mapping[str, str]) -> int:
    """Return the size of a request's body; 0 without a valid Content-Length."""
    text = headers.get("content-length", "0")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else 0


def _bytes_of(answer: HttpAnswer, *, has_body: bool = True) -> bytes:
    head = (
        f"HTTP/1.1 {answer.status.value} {answer.status.phrase}\r\n"
        f"Content-Type: {answer.content_type}\r\n"
        f"Content-Length: {len(answer.body)}\r\n"
        "Connection: close\r\n\r\n"
    ).encode()
    return head + answer.body if has_body else head


def _peer(writer: asyncio.StreamWriter) -> str:
    name = writer.get_extra_info("peername")
    return f"{name[0]}:{name[1]}" if name else "unknown address"


async def on_loop(
    loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, Any], timeout_ms: int
) -> Any:
    """Run a coroutine on another thread's loop, and wait for it without blocking this one.

    Raises:
        TimeoutError: It did not end in time; it is cancelled.
    """
    future = asyncio.run_coroutine_threadsafe(work, loop)
    try:
        async with asyncio.timeout(timeout_ms / 1000):
            return await asyncio.wrap_future(future)
    except TimeoutError:
        with contextlib.suppress(Exception):
            future.cancel()
        raise
