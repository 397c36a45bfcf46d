"""The gRPC server on the loop: with clients that send raw frames, and with grpcio, over TLS too."""

import asyncio
import contextlib
import gzip
import ssl
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
import uvloop

import http2_peer as wire
from http2_peer import HELLO
from raw_http2 import raw
from remoting_subject import both_loops
from reput.errors import CallFailed
from reput.grpc import limits
from reput.grpc.http2 import frames, messages
from reput.grpc.http2.channel import GrpcChannel
from reput.grpc.http2.connection import FRAMES_PER_PASS
from reput.grpc.http2.frames import FrameType
from reput.grpc.http2.grpc import Call, SentMessage, Service, bidirectional, server_stream, unary
from reput.grpc.http2.server import GrpcServer
from reput.grpc.http2.status import Status
from reput.remoting import limits as remoting_limits, networks, tls_settings
from reput.remoting.server_state import ConnectionLimits, ServerState
from reput.remoting.tls_settings import TlsSettings
from waiting import until

TEST_MODE = TlsSettings(tls_test_mode_enable=True)
CHAT = [
    (name, b"/test.Service/Chat" if name == b":path" else value) for name, value in wire.REQUEST
]
"""Headers of a call with any number of messages each way."""


def service() -> Service:
    def many(call: Call, message: bytes) -> None:
        count, size = map(int, message.split())
        waiting = [bytes(size)] * count

        def send_more() -> None:
            while waiting:
                if not call.send(waiting.pop()):
                    call.when_writable(send_more)
                    return
            call.finish()

        send_more()

    async def slow(call: Call, message: bytes) -> bytes:
        await asyncio.sleep(float(message))
        return message

    def chat(call: Call) -> None:
        call.on_message = lambda message: call.send(message.upper())

    def fail(call: Call, message: bytes) -> bytes:
        raise CallFailed(Status.FAILED_PRECONDITION, message.decode())

    return Service(
        {
            "/test.Service/Echo": unary(lambda call, message: message),
            "/test.Service/Peer": unary(
                lambda call, message: f"{call.peer.peer} {call.text('name')}".encode()
            ),
            "/test.Service/Slow": unary(slow),
            "/test.Service/Fail": unary(fail),
            "/test.Service/Later": unary(lambda call, message: None),
            "/test.Service/Many": server_stream(many),
            "/test.Service/Chat": bidirectional(chat),
        }
    )


@contextlib.asynccontextmanager
async def running(**settings: Any) -> AsyncIterator[GrpcServer]:
    server = GrpcServer(settings.pop("service", service()), host="127.0.0.1", **settings)
    await server.start()
    try:
        yield server
    finally:
        await server.stop()
        assert not server.channels
        assert not server.state.connection_count


def only(server: GrpcServer) -> GrpcChannel:
    (channel,) = server.channels
    return channel


# --- raw frames ---------------------------------------------------------------------------------


@both_loops
async def test_calls_and_pings_of_one_write() -> None:
    async with running() as server, raw(server) as client:
        client.writer.write(
            client.peer.call(1, b"one") + wire.ping() + client.peer.call(3, b"three")
        )
        assert await client.ended(3) == (0, b"")
        assert client.replies.messages(1) == [b"one"]
        assert client.replies.messages(3) == [b"three"]


@both_loops
async def test_more_calls_than_a_slice_of_time_allows() -> None:
    state = ServerState(slice_s=0.0)
    async with running(state=state) as server, raw(server) as client:
        ids = range(1, 1001, 2)
        client.writer.write(b"".join(client.peer.call(n, b"%d" % n) for n in ids))
        for stream_id in ids:
            assert await client.ended(stream_id) == (0, b"")
            assert client.replies.messages(stream_id) == [b"%d" % stream_id]
        assert not only(server)._tail


class Paced:
    """A service whose calls wait for their turn, and then until the test lets them end."""

    def __init__(self, *, is_open: bool) -> None:
        self.begun: list[bytes] = []
        self.may_end = asyncio.Event()
        if is_open:
            self.may_end.set()
        self.service = Service(
            {
                "/test.Service/Echo": unary(self._echo).paced(),
                "/test.Service/Chat": bidirectional(self._chat).paced(),
            }
        )

    async def _echo(self, call: Call, sent: SentMessage) -> bytes:
        await call.turn()
        content = await call.content(sent)
        self.begun.append(content[:10])
        await self.may_end.wait()
        return b"%d bytes" % len(content)

    def _chat(self, call: Call) -> None:
        async def answer() -> None:
            await call.turn()
            assert call.inbox is not None
            call.send(await call.content(call.inbox.popleft()))

        call.on_message = lambda: asyncio.ensure_future(answer())


@both_loops
async def test_costly_calls_take_turns_with_those_of_others() -> None:
    paced = Paced(is_open=True)
    state = ServerState(slice_s=0.0)
    async with (
        running(state=state, service=paced.service) as server,
        raw(server) as client,
        raw(server) as other,
    ):
        ids = range(1, 1001, 2)
        client.writer.write(b"".join(client.peer.call(n, b"%d" % n) for n in ids))
        other.writer.write(other.peer.call(1, b"other"))
        assert await other.ended(1) == (0, b"")
        assert len(paced.begun) < 250
        assert await client.ended(999) == (0, b"")
        paced.begun.remove(b"other")
        assert paced.begun == [b"%d" % number for number in ids]


@both_loops
async def test_a_connection_with_many_waiting_calls_is_not_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    room = remoting_limits.GRPC_WORKED_ON_BYTES_PER_CONNECTION.at(100_000)
    monkeypatch.setattr(remoting_limits, "GRPC_WORKED_ON_BYTES_PER_CONNECTION", room)
    paced = Paced(is_open=False)
    message = gzip.compress(bytes(40_000))
    body = b"\1" + len(message).to_bytes(4, "big") + message
    fields = (*wire.REQUEST, (b"grpc-encoding", b"gzip"))
    ids = range(1, 2001, 2)
    async with running(service=paced.service) as server, raw(server) as client:
        for number in ids:
            headers = client.peer.headers(number, fields)
            client.writer.write(headers + wire.data(number, body, is_end=True))
        await until(lambda: only(server).connection.is_full)
        connection = only(server).connection
        for _ in range(100):
            await asyncio.sleep(0)
        assert len(paced.begun) == 1  # another one might need more than 60,000 bytes
        assert server.state.room.total_bytes == 40_000
        assert len(connection.streams) <= limits.GRPC_WAITING.maximum + FRAMES_PER_PASS
        assert connection.kept_bytes == connection.unbegun_count * len(message)
        paced.may_end.set()
        for number in ids:
            assert await client.ended(number) == (0, b"")
            assert client.replies.messages(number) == [b"40000 bytes"]
        assert connection.kept_bytes == connection.unbegun_bytes == connection.unbegun_count == 0
        assert server.state.room.total_bytes == server.state.unfinished.total_bytes == 0


@both_loops
async def test_a_call_that_ends_while_it_waits_keeps_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    room = remoting_limits.GRPC_WORKED_ON_BYTES_PER_CONNECTION.at(1 << 20)
    monkeypatch.setattr(remoting_limits, "GRPC_WORKED_ON_BYTES_PER_CONNECTION", room)
    paced = Paced(is_open=False)
    async with running(service=paced.service) as server, raw(server) as client:
        client.writer.write(client.peer.call(1, bytes(1 << 20)))
        await until(lambda: len(paced.begun) == 1)
        client.writer.write(client.peer.call(3, bytes(1 << 20)))
        connection = only(server).connection
        await until(lambda: connection.unbegun_bytes == 1 << 20)
        client.writer.write(frames.rst_stream(3, 8) + frames.rst_stream(1, 8))
        client.writer.close()
        await until(lambda: not server.channels)
        assert connection.kept_bytes == connection.unbegun_bytes == 0
        assert server.state.room.total_bytes == 0


@both_loops
async def test_messages_of_a_paced_stream_are_taken_from_its_inbox() -> None:
    paced = Paced(is_open=True)
    async with running(service=paced.service) as server, raw(server) as client:
        client.writer.write(client.peer.headers(1, CHAT))
        for number in range(3):
            client.writer.write(wire.data(1, messages.encode(b"%d" % number)))
        while len(client.replies.data.get(1, b"")) < 18:
            await client.frame()
        assert client.replies.messages(1) == [b"0", b"1", b"2"]
        assert only(server).connection.kept_bytes == 0


@both_loops
async def test_a_client_that_does_not_read_stops_its_own_calls_only() -> None:
    async with running() as server, raw(server, limit=1 << 12) as client, raw(server) as other:
        window = frames.settings(((frames.Setting.INITIAL_WINDOW_SIZE, 1 << 30),))
        client.writer.write(window + frames.window_update(0, 1 << 30))
        path = b"/test.Service/Many"
        client.writer.write(client.peer.call(1, b"300 100000", path=path))
        channel: list[GrpcChannel] = []

        def is_stuck() -> bool:
            channel[:] = [each for each in server.channels if not each.is_writable]
            return bool(channel)

        await until(is_stuck)
        assert channel[0].unread_bytes < 1 << 20
        other.writer.write(other.peer.call(1, b"meanwhile"))
        assert await other.ended(1) == (0, b"")
        assert await client.ended(1) == (0, b"")
        assert client.replies.messages(1) == [bytes(100_000)] * 300


@both_loops
async def test_a_slow_window_stops_a_stream() -> None:
    async with running() as server, raw(server) as client:
        client.writer.write(client.peer.call(1, b"50 100000", path=b"/test.Service/Many"))
        received = 0
        while received < 65_535:
            received += len((await client.until(FrameType.DATA)).payload)
        assert received == 65_535
        assert only(server).connection.unsent_bytes < 100_000
        client.writer.write(frames.window_update(0, 60_000) + frames.window_update(1, 60_000))
        while 1 not in client.replies.ends:
            frame = await client.frame()
            if frame.kind == FrameType.DATA and frame.payload:
                count = len(frame.payload)
                client.writer.write(frames.window_update(0, count) + frames.window_update(1, count))
        assert client.replies.messages(1) == [bytes(100_000)] * 50


@both_loops
async def test_a_broken_rule_ends_the_connection_with_its_reason() -> None:
    async with running() as server, raw(server, b"GET / HTTP/1.1\r\n\r\n") as client:
        last = await client.until(FrameType.GOAWAY)
        assert b"preface" in last.payload
        assert await client.reader.read() == b""


@both_loops
async def test_a_bug_in_a_method_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    def bug(call: Call, message: bytes) -> bytes:
        raise ZeroDivisionError("a bug")

    broken = Service({"/test.Service/Echo": unary(bug)})
    async with running(service=broken) as server, raw(server) as client:
        client.writer.write(client.peer.call(1))
        assert await client.ended(1) == (Status.UNKNOWN, b"ZeroDivisionError: a bug")
    assert "/test.Service/Echo failed" in caplog.text
    assert "Traceback" in caplog.text


@both_loops
async def test_a_lost_connection_cancels_its_calls() -> None:
    cancelled: list[str] = []

    def chat(call: Call) -> None:
        call.on_cancel = lambda: cancelled.append(call.path)

    async with running(service=Service({"/test.Service/Echo": bidirectional(chat)})) as server:
        async with raw(server) as client:
            client.writer.write(client.peer.headers(1))
            await until(lambda: bool(server.channels and only(server).connection.streams))
        await until(lambda: not server.channels)
        assert cancelled == ["/test.Service/Echo"]


@both_loops
async def test_deadlines_and_idle_connections() -> None:
    async with running(idle_ms=1000) as server, raw(server) as client:
        more = (b"grpc-timeout", b"30S")
        client.writer.write(client.peer.call(1, b"", more, path=b"/test.Service/Later"))
        await until(lambda: bool(server.channels and only(server).connection.streams))
        now = asyncio.get_running_loop().time()
        server.expire(now + 25)
        server.expire(now + 31)
        assert (await client.ended(1))[0] == Status.DEADLINE_EXCEEDED
        # It was active until then.
        server.expire(now + 31.5)
        assert not only(server).is_closed
        server.expire(now + 32.5)
        last = await client.until(FrameType.GOAWAY)
        assert last.payload == b"\0\0\0\x01\0\0\0\0"
        assert await client.reader.read() == b""


@both_loops
async def test_a_quiet_stream_is_not_looked_at_until_it_ends() -> None:
    async with running(idle_ms=1000) as server, raw(server) as client:
        client.writer.write(client.peer.headers(1, CHAT))
        await until(lambda: bool(server.channels and only(server).connection.streams))
        channel = only(server)
        now = asyncio.get_running_loop().time()
        server.expire(now + 1)
        assert channel.is_quiet
        looked_at = channel.active_at
        server.expire(now + 3600)
        assert channel.active_at == looked_at
        client.writer.write(frames.rst_stream(1, frames.ErrorCode.CANCEL))
        await until(lambda: not channel.is_quiet)
        # Idle only since then.
        server.expire(channel.active_at + 0.5)
        assert not channel.is_closed
        server.expire(channel.active_at + 1.5)
        await client.until(FrameType.GOAWAY)


@both_loops
async def test_a_connection_that_says_nothing() -> None:
    async with running() as server, raw(server, b"PRI * HT") as client:
        await until(lambda: bool(server.channels))
        server._beginning.expire(asyncio.get_running_loop().time() + 9)
        assert not only(server).is_closed
        server._beginning.expire(asyncio.get_running_loop().time() + 11)
        last = await client.until(FrameType.GOAWAY)
        assert b"http2_preface_ms" in last.payload


@both_loops
async def test_a_client_that_has_ended() -> None:
    end = frames.frame(FrameType.GOAWAY, 0, 0, bytes(8))
    async with running() as server, raw(server, HELLO + end) as client:
        await until(lambda: bool(server.channels and only(server).connection.peer_has_ended))
        server.expire(asyncio.get_running_loop().time())
        await client.until(FrameType.GOAWAY)
        assert await client.reader.read() == b""


@both_loops
async def test_a_proxy_names_the_client() -> None:
    state = ServerState(proxies=networks.parse("127.0.0.1", "key"), tls=TEST_MODE)
    header = b"PROXY TCP4 192.0.2.7 192.0.2.1 4711 8081\r\n"
    async with running(state=state) as server, raw(server, header + HELLO) as client:
        client.writer.write(client.peer.call(1, path=b"/test.Service/Peer"))
        assert await client.ended(1) == (0, b"")
        assert client.replies.messages(1) == [b"192.0.2.7:4711 "]
        assert only(server).is_proxied
        assert state.connections_of == {"192.0.2.7": 1}


@both_loops
async def test_half_a_frame() -> None:
    async with running() as server, raw(server, HELLO + wire.ping()[:10]) as client:
        await client.frame()
        await until(lambda: only(server).unfinished_since is not None)
        begun = only(server).unfinished_since
        assert begun is not None
        client.writer.write(wire.ping()[10:12])
        server.expire(begun + 119)
        assert not only(server).is_closed
        server.expire(begun + 121)
        assert only(server).is_closed


@both_loops
async def test_connections_and_kept_bytes_are_limited() -> None:
    few = ConnectionLimits(
        connections=remoting_limits.CONNECTIONS.at(2),
        unfinished_bytes=remoting_limits.UNFINISHED_BYTES.at(150_000),
    )
    state = ServerState(few)
    async with running(state=state) as server, raw(server) as first, raw(server) as second:
        await first.frame()
        await second.frame()
        async with raw(server) as third:
            with contextlib.suppress(OSError):
                assert await third.reader.read() == b""
        assert state.refusals.counts["connections"] == 1
        message = b"\0\x00\x04\0\0" + bytes(16_000)
        for client in (first, second):
            client.writer.write(client.peer.headers(1) + wire.data(1, message))
        for number in range(8):
            client = (first, second)[number % 2]
            client.writer.write(wire.data(1, bytes(16_000)))
        await until(lambda: len(server.channels) == 2)
        for _ in range(4):
            first.writer.write(wire.data(1, bytes(16_000)))
        await until(lambda: len(server.channels) == 1)
        assert state.refusals.counts["unfinished_bytes"] == 1
    assert len(state.unfinished) == 0


@both_loops
async def test_floods_close_the_connection_and_are_counted() -> None:
    async with running() as server, raw(server) as client:
        client.writer.write(wire.ping() * 200)
        last = await client.until(FrameType.GOAWAY)
        assert b"http2_control_frames" in last.payload
        assert await client.reader.read() == b""
        assert server.state.refusals.counts["http2_control_frames"] == 1


@both_loops
async def test_stop_lets_calls_end() -> None:
    server = GrpcServer(service(), host="127.0.0.1")
    await server.start()
    async with raw(server) as client, raw(server) as idle:
        client.writer.write(
            client.peer.call(1, b"0.05", path=b"/test.Service/Slow")
            + client.peer.call(3, path=b"/test.Service/Later")
        )
        await idle.frame()
        await until(lambda: sum(len(each.connection.streams) for each in server.channels) == 2)
        stopping = asyncio.create_task(server.stop(grace_s=0.3))
        first = await client.until(FrameType.GOAWAY)
        assert first.payload[:4] == b"\x7f\xff\xff\xff"
        assert await client.ended(1) == (0, b"")
        assert await client.ended(3) == (Status.UNAVAILABLE, b"the server stops")
        assert (await client.until(FrameType.GOAWAY)).payload[:4] == b"\0\0\0\x03"
        await stopping
        assert not server.channels


# --- grpcio -------------------------------------------------------------------------------------


class InThread:
    """A server on its own loop, so that blocking clients can call it."""

    def __init__(self, **settings: Any) -> None:
        self._settings = settings
        self._is_ready = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.port = 0

    def _run(self) -> None:
        uvloop.run(self._serve())

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._end = asyncio.Event()
        async with running(**self._settings) as server:
            self.port = server.port
            self._is_ready.set()
            await self._end.wait()

    def __enter__(self) -> "InThread":
        self._thread.start()
        assert self._is_ready.wait(10)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join()


@pytest.fixture(scope="module")
def grpc() -> Any:
    return pytest.importorskip("grpc", reason="the package grpcio is not installed: the client")


SIZES = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]


@pytest.fixture(scope="module", params=["plain", "tls"])
def channel(request: pytest.FixtureRequest, grpc: Any) -> Iterator[Any]:
    state = ServerState(tls=TEST_MODE)
    with InThread(state=state) as server:
        address = f"127.0.0.1:{server.port}"
        if request.param == "plain":
            made = grpc.insecure_channel(address, options=SIZES)
        else:
            certificate = ssl.get_server_certificate(("127.0.0.1", server.port))
            made = grpc.secure_channel(
                address,
                grpc.ssl_channel_credentials(certificate.encode()),
                options=SIZES,
            )
        yield made
        made.close()


def test_grpcio_calls(channel: Any, grpc: Any) -> None:
    echo = channel.unary_unary("/test.Service/Echo")
    for size in (0, 1, 16_384, 65_536, 3_000_000):
        assert echo(bytes(size), timeout=30) == bytes(size)
    futures = [echo.future(b"%d" % number, timeout=30) for number in range(300)]
    assert [future.result() for future in futures] == [b"%d" % number for number in range(300)]
    peer = channel.unary_unary("/test.Service/Peer")
    assert peer(b"", metadata=[("name", "value")], timeout=30).endswith(b" value")
    assert echo(b"x" * 10_000, compression=grpc.Compression.Gzip, timeout=30) == b"x" * 10_000


def test_grpcio_streams(channel: Any) -> None:
    many = channel.unary_stream("/test.Service/Many")
    replies = list(many(b"100 50000", timeout=60))
    assert replies == [bytes(50_000)] * 100
    chat = channel.stream_stream("/test.Service/Chat")
    assert list(chat(iter([b"a", b"b", b"c"]), timeout=30)) == [b"A", b"B", b"C"]


def test_grpcio_errors(channel: Any, grpc: Any) -> None:
    def failure(path: str, message: bytes, **more: Any) -> tuple[Any, str]:
        with pytest.raises(grpc.RpcError) as caught:
            channel.unary_unary(path)(message, **{"timeout": 30, **more})
        return caught.value.code(), caught.value.details()

    code = grpc.StatusCode
    assert failure("/test.Service/Fail", "10 % é".encode()) == (code.FAILED_PRECONDITION, "10 % é")
    assert failure("/test.Service/None", b"")[0] == code.UNIMPLEMENTED
    assert failure("/test.Service/Slow", b"9", timeout=0.1)[0] == code.DEADLINE_EXCEEDED
    too_large = failure("/test.Service/Echo", bytes((16 << 20) + 1))
    assert too_large[0] == code.RESOURCE_EXHAUSTED
    assert "grpc_message_bytes" in too_large[1]
    stream = channel.unary_stream("/test.Service/Many")(b"1000 100000", timeout=30)
    assert next(stream) == bytes(100_000)
    stream.cancel()
    assert channel.unary_unary("/test.Service/Echo")(b"after", timeout=30) == b"after"


@both_loops
async def test_tls_speaks_h2_and_keeps_plain_connections() -> None:
    context = tls_settings.client_context(TlsSettings())
    context.set_alpn_protocols(["h2"])
    async with running(state=ServerState(tls=TEST_MODE)) as server:
        for more in ({"ssl": context}, {}):
            async with raw(server, **more) as client:
                client.writer.write(client.peer.call(1, b"x" * 100_000))
                assert (await client.until(FrameType.SETTINGS)).flags == 0
                if more:
                    chosen = client.writer.get_extra_info("ssl_object").selected_alpn_protocol()
                    assert chosen == "h2"
                client.writer.write(
                    frames.window_update(0, 1 << 20) + frames.window_update(1, 1 << 20)
                )
                assert await client.ended(1) == (0, b"")
                assert client.replies.messages(1) == [b"x" * 100_000]
