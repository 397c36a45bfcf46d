"""The listener for /health and /metrics: misbehaving clients do not delay other requests."""

import asyncio
import contextlib
import logging
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from http import HTTPStatus

import pytest
import pytest_asyncio

from reput.limits import Refusals
from reput.remoting import limits
from reput.remoting.http_listener import NOT_FOUND, HttpAnswer, HttpListener, on_loop
from waiting import until

CONNECTIONS = 4
REQUEST_BYTES = 1_024
REQUEST_MS = 300
BIG = b"x" * (32 << 20)


async def answer(path: str) -> HttpAnswer:
    if path == "/fails":
        raise ValueError("a bug: \ud800")
    if path == "/big":
        return HttpAnswer(HTTPStatus.OK, "text/plain", BIG)
    if path in ("/health", "/health?now"):
        return HttpAnswer(HTTPStatus.OK, "text/plain", b"here")
    return NOT_FOUND


Answers = Callable[[str], Awaitable[HttpAnswer]]


class Running:
    """A listener with small limits."""

    def __init__(self, request_ms: int = REQUEST_MS, answer: Answers = answer) -> None:
        self.refusals = Refusals()
        self.listener = HttpListener(
            answer,
            host="127.0.0.1",
            refusals=self.refusals,
            connections=limits.HTTP_CONNECTIONS.at(CONNECTIONS),
            request_bytes=limits.HTTP_REQUEST_BYTES.at(REQUEST_BYTES),
            request_ms=limits.HTTP_REQUEST_MS.at(request_ms),
        )
        self.listener.start()

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self.listener.port)

    async def ask(self, request: bytes) -> bytes:
        """Return the whole answer, up to the end of the connection."""
        reader, writer = await self.connect()
        writer.write(request)
        try:
            async with asyncio.timeout(30):
                return await reader.read()
        finally:
            writer.close()

    async def get(self, path: str) -> bytes:
        return await self.ask(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())


@pytest_asyncio.fixture
async def running() -> AsyncIterator[Running]:
    http_server = Running()
    yield http_server
    await http_server.listener.stop()


async def test_answers(running: Running) -> None:
    assert await running.get("/health?now") == (
        b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 4\r\n"
        b"Connection: close\r\n\r\nhere"
    )
    assert (await running.get("/")).startswith(b"HTTP/1.1 404 Not Found\r\n")
    head = await running.ask(b"HEAD /health HTTP/1.1\r\n\r\n")
    assert b"Content-Length: 4\r\n" in head
    assert head.endswith(b"\r\n\r\n")
    assert (await running.ask(b"POST /health HTTP/1.1\r\n\r\n")).startswith(b"HTTP/1.1 405 ")
    assert (await running.ask(b"\x00\xff \r\n\r\n")).startswith(b"HTTP/1.1 405 ")


async def test_a_failure_is_answered(running: Running, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)  # Captured output must be UTF-8.
    failed = await running.get("/fails")
    assert failed.startswith(b"HTTP/1.1 500 ")
    assert failed.endswith(b"ValueError: a bug: \\ud800\n")
    assert (await running.get("/health")).endswith(b"here")


async def test_a_silent_client_does_not_delay_others(running: Running) -> None:
    """Whatever the number of silent clients: the oldest of them is closed."""
    silent = [await running.connect() for _ in range(3 * CONNECTIONS)]
    for _, writer in silent[::2]:
        writer.write(b"GET /health HTTP/1.1\r\n")  # A request without its end.
    assert (await running.get("/health")).endswith(b"here")
    assert running.refusals.counts["http_connections"] >= 2 * CONNECTIONS
    for reader, writer in silent:
        try:
            async with asyncio.timeout(30):  # It times out eventually.
                assert await reader.read() == b""
        except ConnectionResetError:
            pass
        writer.close()


async def test_the_timeout_is_for_the_whole_request(running: Running) -> None:
    reader, writer = await running.connect()
    closed = asyncio.create_task(reader.read())
    try:
        async with asyncio.timeout(30):
            while not closed.done():
                writer.write(b"x")  # Bytes keep arriving.
                await asyncio.wait((closed,), timeout=REQUEST_MS / 10_000)
    finally:
        writer.close()
    assert running.refusals.counts["http_request_ms"] == 1


async def test_a_long_request_is_refused(
    running: Running, caplog: pytest.LogCaptureFixture
) -> None:
    reader, writer = await running.connect()
    host, port = writer.get_extra_info("sockname")
    writer.write(b"GET /health HTTP/1.1\r\n" + b"a: b\r\n" * REQUEST_BYTES)
    assert (await reader.readline()) == b"HTTP/1.1 400 Bad Request\r\n"
    writer.close()
    assert running.refusals.counts["http_request_bytes"] == 1
    assert f"{host}:{port}: HTTP: " in caplog.text


async def test_a_client_that_does_not_read_does_not_delay_others() -> None:
    # Not the limit of the other tests: on a busy machine 300 ms may pass before a request is read.
    running = Running(request_ms=30_000)
    loop = asyncio.get_running_loop()
    with contextlib.ExitStack() as deaf:
        for _ in range(2 * CONNECTIONS):
            client = deaf.enter_context(socket.socket())
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
            client.setblocking(False)
            await loop.sock_connect(client, ("127.0.0.1", running.listener.port))
            await loop.sock_sendall(client, b"GET /big HTTP/1.1\r\n\r\n")
        assert (await running.get("/health")).endswith(b"here")
    await running.listener.stop()


def is_free(port: int) -> bool:
    try:
        with socket.create_server(("127.0.0.1", port)):
            return True
    except OSError:
        return False


async def test_a_running_request_is_answered_while_the_listener_stops() -> None:
    loop, asked, may_end = asyncio.get_running_loop(), asyncio.Event(), asyncio.Event()

    async def wait() -> HttpAnswer:
        asked.set()
        await may_end.wait()
        return HttpAnswer(HTTPStatus.OK, "text/plain", b"late")

    async def answer_late(path: str) -> HttpAnswer:
        late: HttpAnswer = await on_loop(loop, wait(), 30_000)
        return late

    running = Running(request_ms=30_000, answer=answer_late)
    answered = asyncio.create_task(running.get("/"))
    await asked.wait()
    stopped = asyncio.create_task(running.listener.stop())
    await until(lambda: is_free(running.listener.port))
    may_end.set()
    assert (await answered).endswith(b"\r\n\r\nlate")
    await stopped


async def test_stopping_ends_open_connections_and_frees_the_port(running: Running) -> None:
    assert (await running.get("/health")).endswith(b"here")  # It accepts.
    reader, writer = await running.connect()
    await running.listener.stop()
    await running.listener.stop()
    with contextlib.suppress(ConnectionResetError):
        assert await reader.read() == b""
    writer.close()
    with socket.create_server(("127.0.0.1", running.listener.port)):
        pass
