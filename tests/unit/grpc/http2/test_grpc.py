"""gRPC calls without I/O: kinds of methods, messages, deadlines, errors, limits."""

import asyncio
import gzip
import struct
import tracemalloc
import zlib
from collections.abc import Callable, Generator
from typing import Any, cast

import pytest

import http2_peer as wire
from http2_peer import REQUEST, Http2Peer, Replies, echo_service, grpc_peer
from reput.broker import limits as broker_limits
from reput.errors import CallFailed, InvalidOption
from reput.format.message import Host
from reput.grpc import limits
from reput.grpc.http2 import frames, messages
from reput.grpc.http2.frames import ErrorCode, Flag, FrameType, Setting
from reput.grpc.http2.grpc import (
    Call,
    GrpcConnection,
    SentMessage,
    Service,
    server_stream,
    unary,
)
from reput.grpc.http2.status import Status
from reput.remoting.time_slices import Steps, run_whole


class FutureReply:
    """A future of which the test decides the result."""

    def __init__(self) -> None:
        self.callbacks: list[Callable[[Any], object]] = []
        self.is_cancelled = False
        self._result: Any = None

    def add_done_callback(self, callback: Callable[[Any], object]) -> None:
        self.callbacks.append(callback)

    def set(self, result: Any) -> None:
        self._result = result
        for callback in self.callbacks:
            callback(self)

    def cancel(self) -> bool:
        self.is_cancelled = True
        return True

    def cancelled(self) -> bool:
        return self.is_cancelled

    def exception(self) -> Exception | None:
        return self._result if isinstance(self._result, Exception) else None

    def result(self) -> Any:
        return self._result


class Waiting:
    """Something to wait for, which the test passes as its own future would be."""

    def __await__(self) -> Generator[Any, Any, Any]:
        return (yield self)


def answered(peer: Http2Peer, *sent: bytes) -> Replies:
    return Replies(peer).add(peer.send(*sent))


def failing(error: Exception) -> Service:
    def fail(call: Call, message: bytes) -> bytes:
        raise error

    return Service({"/test.Service/Echo": unary(fail)})


# --- unary --------------------------------------------------------------------------------------


def test_calls_are_answered_in_the_write_of_their_read() -> None:
    peer = grpc_peer(echo_service())
    received = peer.send(peer.call(1, b"first"), wire.ping(), peer.call(3, b"second"))
    kinds = [(frame.kind, frame.stream_id, len(frame.payload)) for frame in received]
    assert kinds[3:] == [
        (FrameType.PING, 0, 8),
        (FrameType.HEADERS, 3, 2),
        (FrameType.DATA, 3, 11),
        (FrameType.HEADERS, 3, 1),
    ]
    replies = Replies(peer).add(received)
    assert replies.messages(1) == [b"first"]
    assert replies.messages(3) == [b"second"]
    for stream_id in (1, 3):
        assert replies.fields[stream_id] == [
            {b":status": b"200", b"content-type": b"application/grpc"},
            {b"grpc-status": b"0"},
        ]
    assert not peer.connection.streams


def test_a_method_sees_its_call() -> None:
    calls: list[Call] = []
    peer = grpc_peer(echo_service(calls))
    peer.now = 100.0
    more = [(b"x-mq-client-id", b"client-\xc3\xa9"), (b"grpc-timeout", b"2500m")]
    peer.send(peer.call(1, b"", *more, path=b"/test.Service/Later"))
    (call,) = calls
    assert call.text("x-mq-client-id") == "client-é"
    assert call.text("authorization") == ""
    assert call.headers[b":authority"] == b"localhost"
    assert call.deadline == 102.5
    assert call.peer.host == Host(b"\x7f\0\0\1", 1)
    assert call.path == "/test.Service/Later"
    assert repr(call) == "Call(/test.Service/Later of 127.0.0.1:1, stream 1)"
    call.reply(b"done")
    call.reply(b"twice")
    call.fail(Status.UNKNOWN, "too late")
    replies = Replies(peer).add(peer.received())
    assert replies.messages(1) == [b"done"]
    assert replies.status(1) == (0, b"")


@pytest.mark.parametrize(
    ("text", "seconds"),
    [(b"1H", 3600), (b"2M", 120), (b"3S", 3), (b"4m", 0.004), (b"5u", 5e-6), (b"6n", 6e-9)],
)
def test_timeouts(text: bytes, seconds: float) -> None:
    assert messages.timeout_s(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", [b"", b"1", b"S", b"-1S", b"123456789S", b"1s", b"1.5S", b"1S "])
def test_wrong_timeouts_fail_the_call(text: bytes) -> None:
    peer = grpc_peer(echo_service())
    if text == b"1S ":  # HTTP/2 itself does not allow the space
        assert answered(peer, peer.call(1, b"", (b"grpc-timeout", text))).resets == {1: 1}
        return
    status, reason = answered(peer, peer.call(1, b"", (b"grpc-timeout", text))).status(1)
    assert status == Status.INTERNAL
    assert b"allowed: 1 to 8 digits" in reason


def test_the_end_of_a_call_that_waits_is_reported_once() -> None:
    peer = grpc_peer(Service({"/test.Service/Echo": unary(lambda *_: FutureReply()).paced()}))
    connection = cast(GrpcConnection, peer.connection)
    peer.send(peer.call(1, b"waits"), peer.call(3, b"waits too"))
    left: list[int] = []
    connection.on_eased = lambda: left.append(connection.unbegun_count)
    peer.send(frames.rst_stream(1, ErrorCode.CANCEL))
    assert left == [1]
    peer.send(frames.rst_stream(3, ErrorCode.CANCEL))
    assert left == [1, 0]


def test_a_reply_that_comes_later() -> None:
    futures: list[FutureReply] = []

    def later(call: Call, message: bytes) -> Any:
        futures.append(FutureReply())
        return futures[-1]

    peer = grpc_peer(Service({"/test.Service/Echo": unary(later)}))
    assert answered(peer, *(peer.call(2 * n + 1) for n in range(4))).ends == set()
    futures[2].set(b"third")
    futures[0].set(CallFailed(Status.NOT_FOUND, "not here"))
    replies = Replies(peer).add(peer.received())
    assert replies.status(1) == (Status.NOT_FOUND, b"not here")
    assert replies.messages(5) == [b"third"]
    peer.send(frames.rst_stream(3, ErrorCode.CANCEL))
    assert futures[1].is_cancelled
    futures[1].set(b"")
    peer.connection.lost()
    assert futures[3].is_cancelled
    assert peer.received() == []


class Spawned:
    """The rests of coroutines, as the loop gets them, and their results."""

    def __init__(self) -> None:
        self.works: list[Any] = []
        self.results: list[FutureReply] = []

    def __call__(self, work: Any) -> FutureReply:
        self.works.append(work)
        self.results.append(FutureReply())
        return self.results[-1]


def test_a_coroutine_runs_at_once() -> None:
    async def work(call: Call, message: bytes) -> bytes:
        return message

    spawned = Spawned()
    peer = grpc_peer(Service({"/test.Service/Echo": unary(work)}), spawn=spawned)
    assert answered(peer, peer.call(1, b"message")).messages(1) == [b"message"]
    assert spawned.works == []


def test_the_rest_of_a_coroutine_that_waits_is_spawned() -> None:
    waits = Waiting()

    async def work(call: Call, message: bytes) -> bytes:
        return message + await waits

    spawned = Spawned()
    peer = grpc_peer(Service({"/test.Service/Echo": unary(work)}), spawn=spawned)
    assert answered(peer, peer.call(1, b"mess")).messages(1) == []
    (rest,) = spawned.works
    assert rest.send(None) is waits
    with pytest.raises(StopIteration) as end:
        rest.send(b"age")
    spawned.results[0].set(end.value.value)
    assert Replies(peer).add(peer.received()).messages(1) == [b"message"]


def test_a_coroutine_that_waits_gets_its_cancellation() -> None:
    """Even before the loop has begun its task."""
    ends: list[str] = []

    async def work(call: Call, message: bytes) -> bytes:
        try:
            return await Waiting()
        except asyncio.CancelledError:
            ends.append("cancelled")
            raise

    spawned = Spawned()
    peer = grpc_peer(Service({"/test.Service/Echo": unary(work)}), spawn=spawned)
    peer.send(peer.call(1, b"message"))
    with pytest.raises(asyncio.CancelledError):
        spawned.works[0].throw(asyncio.CancelledError())
    assert ends == ["cancelled"]


def test_a_coroutine_whose_first_step_fails_is_answered() -> None:
    async def work(call: Call, message: bytes) -> bytes:
        if message == b"cancelled":
            raise asyncio.CancelledError
        raise CallFailed(Status.NOT_FOUND, "not here")

    peer = grpc_peer(Service({"/test.Service/Echo": unary(work)}), spawn=Spawned())
    replies = answered(peer, peer.call(1, b"cancelled"), peer.call(3, b"missing"))
    assert replies.status(1) == (Status.CANCELLED, b"the method was cancelled")
    assert replies.status(3) == (Status.NOT_FOUND, b"not here")


def test_a_message_counts_while_its_call_waits_for_its_turn() -> None:
    turn, reply = Waiting(), Waiting()

    async def work(call: Call, sent: SentMessage) -> bytes:
        await turn
        content = await call.content(sent)
        await reply
        return content

    spawned = Spawned()
    peer = grpc_peer(Service({"/test.Service/Echo": unary(work).paced()}), spawn=spawned)
    connection = cast(GrpcConnection, peer.connection)
    peer.send(peer.call(1, b"message"))
    assert (connection.unbegun_count, connection.unbegun_bytes) == (1, 7)
    (rest,) = spawned.works
    assert rest.send(None) is turn
    assert rest.send(None) is reply
    assert (connection.unbegun_count, connection.unbegun_bytes) == (0, 0)


def test_errors_of_methods_are_statuses() -> None:
    reported: list[tuple[Exception, str]] = []
    bug = RuntimeError("a bug")
    cases = [
        (CallFailed(Status.UNAUTHENTICATED, "who are you?"), Status.UNAUTHENTICATED, "who are"),
        (broker_limits.TOPICS.exceeded(7), Status.RESOURCE_EXHAUSTED, "limit topics"),
        (InvalidOption("key", "x", "1 to 3"), Status.UNKNOWN, "1 to 3"),
        (bug, Status.UNKNOWN, "a bug"),
    ]
    for error, status, words in cases:
        peer = grpc_peer(failing(error), report=lambda error, path: reported.append((error, path)))
        replies = answered(peer, peer.call(1))
        assert replies.status(1)[0] == status
        assert words in replies.status(1)[1].decode()
        assert len(replies.fields[1]) == 1  # trailers only
    assert reported == [(bug, "/test.Service/Echo")]


def test_texts_of_errors_are_percent_encoded() -> None:
    assert messages.encode_reason("50 % of é\n") == b"50 %25 of %C3%A9%0A"
    assert len(messages.encode_reason("x" * 10_000)) < 1_100
    messages.encode_reason("\udcff")  # half a character


def test_calls_that_end_with_a_deadline() -> None:
    calls: list[Call] = []
    cancelled: list[int] = []
    peer = grpc_peer(echo_service(calls))
    for number, timeout in enumerate((b"1S", b"3S", b"1S")):
        call = peer.call(
            2 * number + 1, b"", (b"grpc-timeout", timeout), path=b"/test.Service/Later"
        )
        peer.send(call)
    for call_ in calls:
        call_.on_cancel = lambda call_=call_: cancelled.append(call_.stream_id)
    calls[2].reply(b"in time")
    replies = Replies(peer).add(peer.received())
    peer.connection.expire(0.9)
    assert peer.received() == []
    peer.connection.expire(1.0)
    replies.add(peer.received())
    assert replies.ends == {1, 5}
    assert replies.status(1)[0] == Status.DEADLINE_EXCEEDED
    assert cancelled == [1]
    peer.connection.lost()
    assert cancelled == [1, 3]
    assert isinstance(peer.connection, GrpcConnection)
    assert not peer.connection.timed


def test_requests_that_do_not_arrive() -> None:
    peer = grpc_peer(echo_service())
    chat = [(name, b"/test.Service/Chat" if name == b":path" else v) for name, v in REQUEST]
    peer.send(peer.headers(1), peer.headers(3, chat), wire.data(1, b"\0\0\0\0\x05abc"))
    peer.connection.expire(120.0)
    assert peer.received() == []
    peer.connection.expire(131.0)
    replies = Replies(peer).add(peer.received())
    assert replies.ends == {1}
    assert b"grpc_request_ms" in replies.status(1)[1]
    assert replies.resets == {1: ErrorCode.NO_ERROR}
    assert peer.connection.kept_bytes == 0


# --- messages -----------------------------------------------------------------------------------


def test_a_message_in_many_frames() -> None:
    peer = grpc_peer(echo_service())
    message = bytes(range(256)) * 100
    sent = messages.encode(message)
    peer.send(peer.headers(1))
    for begin in range(0, len(sent), 1000):
        assert peer.send(wire.data(1, sent[begin : begin + 1000])) == []
    assert peer.connection.kept_bytes == len(sent)
    replies = answered(peer, wire.data(1, is_end=True))
    assert replies.messages(1) == [message]
    assert peer.connection.kept_bytes == 0


@pytest.mark.parametrize("encoding", [b"identity", b"gzip"])
def test_gzip(encoding: bytes) -> None:
    peer = grpc_peer(echo_service())
    content = b"content" * 100
    compressed = gzip.compress(content)
    body = b"\1" + len(compressed).to_bytes(4, "big") + compressed
    headers = peer.headers(1, (*REQUEST, (b"grpc-encoding", encoding)))
    replies = answered(peer, headers, wire.data(1, body, is_end=True))
    if encoding == b"gzip":
        assert replies.messages(1) == [content]
    else:
        assert replies.status(1)[0] == Status.INTERNAL


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        (b"", Status.UNIMPLEMENTED, "no message"),
        (b"\0\0\0", Status.INTERNAL, "ends inside"),
        (b"\0\0\0\0\x05abcd", Status.INTERNAL, "ends inside"),
        (b"\0\0\0\0\x01a\0\0\0\0\x01b", Status.UNIMPLEMENTED, "more than one"),
        (b"\x02\0\0\0\x01a", Status.INTERNAL, "flag 2"),
        (b"\x01\0\0\0\x01a", Status.INTERNAL, "not gzip"),
        (b"\0\x7f\xff\xff\xff", Status.RESOURCE_EXHAUSTED, "grpc_message_bytes"),
    ],
)
def test_wrong_messages(body: bytes, status: int, words: str) -> None:
    for pieces in ([body], [body[:3], body[3:], b""]):
        peer = grpc_peer(echo_service())
        sent = [peer.headers(1, (*REQUEST, (b"grpc-encoding", b"gzip")))]
        sent += [wire.data(1, piece) for piece in pieces[:-1]]
        replies = answered(peer, *sent, wire.data(1, pieces[-1], is_end=True))
        assert replies.status(1)[0] == status
        assert words in replies.status(1)[1].decode()
        assert peer.connection.kept_bytes == 0


def test_a_gzip_bomb(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "GRPC_INFLATED_BYTES", limits.GRPC_INFLATED_BYTES.at(10_000))
    assert run_whole(messages.inflated(gzip.compress(bytes(10_000)), b"gzip")) == bytes(10_000)
    for damage in (lambda data: data[:-1], lambda data: data + b"x"):
        with pytest.raises(CallFailed, match="not gzip"):
            run_whole(messages.inflated(damage(gzip.compress(b"abc")), b"gzip"))
    with pytest.raises(CallFailed, match="grpc_inflated_bytes"):
        run_whole(messages.inflated(gzip.compress(bytes(10_001)), b"gzip"))


EMPTY_BLOCK = b"\0\0\0\xff\xff"  # deflate, stored, not the last one


def gzip_of(blocks: bytes, content: bytes = b"") -> bytes:
    """Return gzip of raw deflate blocks, the last of which follows."""
    head = b"\x1f\x8b\x08" + bytes(7)
    return head + blocks + b"\x03\0" + struct.pack("<II", zlib.crc32(content), len(content))


@pytest.mark.parametrize(
    ("compressed", "content"),
    [
        (gzip.compress(bytes(3 << 20), 9), bytes(3 << 20)),
        (gzip.compress(bytes(range(256)) * 4_000, 0), bytes(range(256)) * 4_000),
        (gzip_of(EMPTY_BLOCK * 100_000), b""),
        (gzip.compress(b""), b""),
    ],
    ids=["zeros", "stored", "empty blocks", "nothing"],
)
def test_messages_are_decompressed_in_bounded_steps(compressed: bytes, content: bytes) -> None:
    count = 0

    def counting() -> Steps[bytearray]:
        nonlocal count
        steps = messages.inflated(compressed, b"gzip")
        while True:
            try:
                next(steps)
            except StopIteration as end:
                return cast(bytearray, end.value)
            count += 1
            yield

    assert run_whole(counting()) == content
    assert count >= len(content) // messages.STEP_BYTES
    assert count >= len(compressed) // messages.INPUT_BYTES
    assert messages.inflated_bytes_max(compressed) >= len(content)


def test_a_large_message_is_not_copied_whole() -> None:
    """A copy of 8 MiB in one step took up to 36 ms where memory is fresh."""
    size = 8 << 20
    compressed = gzip.compress(bytes(size))
    tracemalloc.start()
    try:
        assert len(run_whole(messages.inflated(compressed, b"gzip"))) == size
        assert tracemalloc.get_traced_memory()[1] < 1.5 * size
        kept = bytearray(messages.PREFIX.pack(0, size) + bytes(size))
        tracemalloc.reset_peak()
        assert messages.without_prefix(kept) is kept
        assert len(kept) == size
        assert tracemalloc.get_traced_memory()[1] < 1.5 * size
    finally:
        tracemalloc.stop()


def test_unknown_encodings_methods_and_content_types() -> None:
    peer = grpc_peer(echo_service())
    replies = answered(peer, peer.call(1, b"", (b"grpc-encoding", b"snappy")))
    assert replies.status(1)[0] == Status.UNIMPLEMENTED
    assert replies.fields[1][0][b"grpc-accept-encoding"] == b"identity,gzip"
    replies = answered(peer, peer.call(3, b"", path=b"/test.Service/None"))
    assert replies.status(3) == (Status.UNIMPLEMENTED, b"there is no method /test.Service/None")
    for stream_id, text in ((5, b"text/html"), (7, b"application/grpc-web"), (9, b"")):
        headers = peer.headers(stream_id, (*REQUEST[:5], (b"content-type", text)))
        replies = answered(peer, headers, wire.data(stream_id, b"x", is_end=True))
        assert replies.fields[stream_id][0][b":status"] == b"415"
        assert b"application/grpc" in replies.data[stream_id]
        assert replies.ends == {stream_id}
    for stream_id, text in ((11, b"application/grpc+proto"), (13, b"application/grpc; x=y")):
        headers = peer.headers(stream_id, (*REQUEST[:5], (b"content-type", text)))
        replies = answered(peer, headers, wire.data(stream_id, bytes(5), is_end=True))
        assert replies.status(stream_id) == (0, b"")


def test_kept_bytes_of_a_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "HTTP2_KEPT_BYTES", limits.HTTP2_KEPT_BYTES.at(30_000))
    peer = grpc_peer(echo_service())
    peer.send(peer.headers(1), wire.data(1, b"\0\0\0\x40\0" + bytes(10_000)))
    peer.send(peer.headers(3), wire.data(3, b"\0\0\0\x40\0" + bytes(10_000)))
    peer.send(frames.rst_stream(3, ErrorCode.CANCEL))
    assert peer.connection.kept_bytes == 10_005
    peer.send(peer.headers(5), wire.data(5, b"\0\0\0\x40\0" + bytes(10_000)))
    received = peer.send(wire.data(1, bytes(10_000)))
    assert received[-1].kind == FrameType.GOAWAY
    assert b"http2_kept_bytes" in received[-1].payload


@pytest.mark.parametrize("end", ["answered", "failed", "cancelled", "lost", "not gRPC"])
def test_an_open_call_counts_with_its_headers(end: str) -> None:
    futures: list[FutureReply] = []

    def later(call: Call, message: bytes) -> Any:
        futures.append(FutureReply())
        return futures[-1]

    peer = grpc_peer(Service({"/test.Service/Echo": unary(later)}))
    large = (b"x", bytes(b"y" * 10_000))
    if end == "not gRPC":
        peer.send(peer.headers(1, [*REQUEST[:-1], (b"content-type", b"text/html"), large]))
        assert peer.connection.open_bytes > 10_000
        peer.send(wire.data(1, is_end=True))
    else:
        peer.send(peer.call(1, b"", large))
        assert peer.connection.open_bytes > 10_000
    if end == "answered":
        futures[0].set(b"")
    elif end == "failed":
        futures[0].set(CallFailed(Status.NOT_FOUND, "not here"))
    elif end == "cancelled":
        peer.send(frames.rst_stream(1, ErrorCode.CANCEL))
    elif end == "lost":
        peer.connection.lost()
    assert peer.connection.open_bytes == 0


def test_what_a_method_holds_counts_until_the_call_ends() -> None:
    calls: list[Call] = []
    peer = grpc_peer(echo_service(calls))
    peer.send(peer.call(1, b"", path=b"/test.Service/Later"))
    before = peer.connection.open_bytes
    calls[0].hold(10_000)
    assert peer.connection.open_bytes == before + 10_000
    calls[0].reply(b"")
    assert peer.connection.open_bytes == 0
    calls[0].hold(10_000)
    assert peer.connection.open_bytes == 0


def test_too_many_bytes_of_open_calls_end_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "HTTP2_KEPT_BYTES", limits.HTTP2_KEPT_BYTES.at(100_000))
    peer = grpc_peer(echo_service())
    large = (b"x", b"y" * 4_000)  # an entry of the table: one byte a call from the second one on
    calls = [peer.headers(stream_id, [*REQUEST, large]) for stream_id in range(1, 101, 2)]
    received = peer.send(*calls)
    assert received[-1].kind == FrameType.GOAWAY
    assert b"http2_kept_bytes" in received[-1].payload
    assert len(peer.connection.streams) < 25


# --- streams ------------------------------------------------------------------------------------


def test_a_stream_of_the_server() -> None:
    calls: list[Call] = []

    def count(call: Call, message: bytes) -> None:
        calls.append(call)
        call.send(b"1", b"2")
        call.send(message)

    peer = grpc_peer(Service({"/test.Service/Echo": server_stream(count)}))
    received = peer.send(peer.call(1, b"3"))
    assert [frame.kind for frame in received] == [1, 0, 0]
    calls[0].send(b"4")
    calls[0].finish()
    assert not calls[0].send(b"too late") or calls[0].has_ended
    replies = Replies(peer).add(received).add(peer.received())
    assert replies.messages(1) == [b"1", b"2", b"3", b"4"]
    assert replies.status(1) == (0, b"")


def test_a_stream_that_fails_after_its_messages() -> None:
    def fail(call: Call, message: bytes) -> None:
        call.send(b"1")
        raise CallFailed(Status.DATA_LOSS, "gone")

    peer = grpc_peer(Service({"/test.Service/Echo": server_stream(fail)}))
    replies = answered(peer, peer.call(1))
    assert replies.messages(1) == [b"1"]
    assert replies.status(1) == (Status.DATA_LOSS, b"gone")
    assert b":status" not in replies.fields[1][1]


def test_messages_both_ways() -> None:
    calls: list[Call] = []
    events: list[Any] = []

    def chat(call: Call) -> None:
        calls.append(call)
        call.on_message = events.append
        call.on_half_close = lambda: events.append("half")
        call.on_cancel = lambda: events.append("cancel")
        call.state = "mine"

    peer = grpc_peer(Service({"/test.Service/Echo": wire.bidirectional(chat)}))
    peer.send(peer.headers(1))
    body = messages.encode(b"one") + messages.encode(b"") + messages.encode(b"three")
    for begin in range(0, len(body), 4):
        peer.send(wire.data(1, body[begin : begin + 4]))
    assert events == [b"one", b"", b"three"]
    assert peer.connection.kept_bytes == 0
    calls[0].send(b"reply")
    assert Replies(peer).add(peer.received()).messages(1) == [b"reply"]
    peer.send(wire.data(1, messages.encode(b"last"), is_end=True))
    assert events[3:] == [b"last", "half"]
    calls[0].finish()
    assert Replies(peer).add(peer.received()).status(1) == (0, b"")
    assert events[5:] == []
    peer.send(peer.headers(3))
    peer.send(frames.rst_stream(3, ErrorCode.CANCEL))
    assert events[5:] == ["cancel"]
    peer.send(peer.headers(5))
    peer.connection.lost()
    assert events[6:] == ["cancel"]


def test_too_many_messages() -> None:
    calls: list[Call] = []
    received: list[bytes] = []

    def chat(call: Call) -> None:
        calls.append(call)
        call.on_message = received.append

    peer = grpc_peer(Service({"/test.Service/Echo": wire.bidirectional(chat)}))
    peer.send(peer.headers(1))
    for second in range(3):
        peer.now = float(second)
        assert peer.send(wire.data(1, bytes(5) * 1000)) == []
    replies = answered(peer, wire.data(1, bytes(5)))
    assert len(received) == 3000
    assert replies.status(1)[0] == Status.RESOURCE_EXHAUSTED
    assert b"grpc_stream_messages" in replies.status(1)[1]


def test_a_stream_waits_while_the_client_does_not_read() -> None:
    calls: list[Call] = []
    events: list[str] = []
    peer = grpc_peer(Service({"/test.Service/Echo": wire.bidirectional(calls.append)}))
    peer.send(frames.settings(((Setting.INITIAL_WINDOW_SIZE, 100),)), peer.headers(1))
    (call,) = calls
    call.when_writable(lambda: events.append("at once"))
    assert call.send(b"x" * 90)
    assert not call.send(b"y" * 20)
    call.when_writable(lambda: events.append("later"))
    assert events == ["at once"]
    peer.received()
    peer.send(frames.window_update(1, 10))
    assert events == ["at once"]
    peer.send(frames.window_update(1, 1000))
    assert events == ["at once", "later"]
    peer.send(frames.window_update(1, 1000))
    assert events == ["at once", "later"]


def test_streams_take_turns_at_a_connection_that_writes_much() -> None:
    calls: list[Call] = []
    sent: list[int] = []
    peer = grpc_peer(Service({"/test.Service/Echo": wire.bidirectional(calls.append)}))
    peer.send(
        frames.settings(((Setting.INITIAL_WINDOW_SIZE, 1 << 30),)),
        frames.window_update(0, 1 << 30),
        *map(peer.headers, (1, 3, 5)),
    )

    def send_one(call: Call) -> None:
        sent.append(call.stream_id)
        if not call.send(bytes(300_000)):
            call.when_writable(lambda: send_one(call))

    for call in calls:
        call.when_writable(lambda call=call: send_one(call))
    connection = peer.connection
    assert isinstance(connection, GrpcConnection)
    for _ in range(6):
        peer.received()
        connection.resumed()
    # The first one fills the first write, and is the first one to wait; then each write is filled
    # by one of them, in turn.
    assert sent == [1, 1, 3, 5, 1, 3, 5]


def test_stalled_streams_are_not_asked_again() -> None:
    calls: list[Call] = []
    peer = grpc_peer(Service({"/test.Service/Echo": wire.bidirectional(calls.append)}))
    peer.send(frames.settings(((Setting.INITIAL_WINDOW_SIZE, 10),)), *map(peer.headers, (1, 3)))
    for call in calls:
        call.send(bytes(20))
        call.when_writable(lambda: None)
    assert isinstance(peer.connection, GrpcConnection)
    assert not peer.connection.waiting


def test_unsent_replies_refuse_further_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "HTTP2_UNSENT_BYTES", limits.HTTP2_UNSENT_BYTES.at(1_000))
    peer = grpc_peer(echo_service())
    peer.send(frames.settings(((Setting.INITIAL_WINDOW_SIZE, 10),)))
    replies = answered(peer, peer.call(1, bytes(800)), peer.call(3, bytes(800)), peer.call(5))
    assert replies.ends == {5}
    assert replies.status(5)[0] == Status.RESOURCE_EXHAUSTED
    assert b"http2_unsent_bytes" in replies.status(5)[1]
    for stream_id in (1, 3):
        replies.add(peer.send(frames.window_update(stream_id, 800)))
        assert replies.messages(stream_id) == [bytes(800)]
        assert replies.status(stream_id) == (0, b"")
    assert answered(peer, peer.call(7)).status(7) == (0, b"")


def test_calls_end_with_the_server() -> None:
    calls: list[Call] = []
    cancelled: list[str] = []
    peer = grpc_peer(echo_service(calls))
    peer.send(peer.call(1, b"", path=b"/test.Service/Later"))
    calls[0].on_cancel = lambda: cancelled.append("cancel")
    assert isinstance(peer.connection, GrpcConnection)
    peer.connection.end_calls()
    replies = Replies(peer).add(peer.received())
    assert replies.status(1) == (Status.UNAVAILABLE, b"the server stops")
    assert cancelled == ["cancel"]


def test_tables_of_clients_that_keep_nothing() -> None:
    peer = grpc_peer(echo_service())
    replies = answered(peer, peer.call(1))
    replies.add(peer.send(frames.settings(((Setting.HEADER_TABLE_SIZE, 0),)), peer.call(3)))
    replies.add(peer.send(frames.settings(((Setting.HEADER_TABLE_SIZE, 4096),)), peer.call(5)))
    replies.add(peer.send(peer.call(7)))
    for stream_id in (1, 3, 5, 7):
        assert replies.status(stream_id) == (0, b"")
        assert replies.fields[stream_id][0][b"content-type"] == b"application/grpc"


def test_a_malformed_request_leaves_nothing() -> None:
    peer = grpc_peer(echo_service())
    headers = peer.headers(1, (*REQUEST, (b"content-length", b"7")))
    replies = answered(peer, headers, wire.data(1, bytes(5), is_end=True), peer.call(3))
    assert replies.resets == {1: ErrorCode.PROTOCOL_ERROR}
    assert replies.ends == {3}
    # A request that ends with its headers has no message.
    end = peer.headers(5, flags=Flag.END_HEADERS | Flag.END_STREAM)
    assert answered(peer, end).status(5)[0] == Status.UNIMPLEMENTED
