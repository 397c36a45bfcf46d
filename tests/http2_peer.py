"""A client of a connection without I/O, for tests of HTTP/2 and gRPC: it sends any frames."""

import struct
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from reput.format.message import Host
from reput.grpc.http2 import frames, messages
from reput.grpc.http2.connection import Http2Connection, Stream
from reput.grpc.http2.frames import PREFACE, Flag, FrameType
from reput.grpc.http2.grpc import Call, GrpcConnection, Service, bidirectional, unary
from reput.grpc.http2.hpack import Decoder, Encoder, Field
from reput.grpc.http2.request_fields import Headers

REQUEST: tuple[Field, ...] = (
    (b":method", b"POST"),
    (b":scheme", b"http"),
    (b":path", b"/test.Service/Echo"),
    (b":authority", b"localhost"),
    (b"te", b"trailers"),
    (b"content-type", b"application/grpc"),
)
HELLO = PREFACE + frames.settings(())


class Frame(NamedTuple):
    """A frame that was received."""

    kind: int
    flags: int
    stream_id: int
    payload: bytes


def split(data: bytes) -> list[Frame]:
    """Decode frames, of which the last one must be complete."""
    found_frames = []
    position = 0
    while position < len(data):
        size_and_kind, flags, stream_id = struct.unpack_from(">IBI", data, position)
        position += 9 + (size_and_kind >> 8)
        assert position <= len(data), "half a frame"
        payload = data[position - (size_and_kind >> 8) : position]
        found_frames.append(Frame(size_and_kind & 0xFF, flags, stream_id, payload))
    return found_frames


class Recorder(Stream):
    """A stream that records its events."""

    def __init__(self, connection: Http2Connection, stream_id: int) -> None:
        super().__init__(connection, stream_id)
        self.events: list[Any] = []

    def on_headers(self, headers: Headers) -> None:
        self.events.append(headers)

    def on_data(self, data: memoryview) -> None:
        self.events.append(bytes(data))

    def on_end(self) -> None:
        self.events.append("end")

    def on_reset(self) -> None:
        self.events.append("reset")

    def on_sent(self) -> None:
        self.events.append("sent")


class Address:
    """The other end of a connection that has none."""

    peer = "127.0.0.1:1"
    address = "127.0.0.1"
    host = local_host = Host(b"\x7f\0\0\1", 1)
    is_closed = False
    is_writable = True


class Http2Peer:
    """A client and the server's connection, in one object.

    Args:
        connection: The connection; by default one whose streams record their events.
    """

    def __init__(self, connection: Http2Connection | None = None, *, hello: bytes = HELLO) -> None:
        self.opened: list[Recorder] = []
        self.connection = connection or Http2Connection(self._record)
        self.now = 0.0
        self.encoder = Encoder()
        self.decoder = Decoder()
        self._kept = b""
        self.first = self.send(hello) if hello else []

    def _record(self, connection: Http2Connection, stream_id: int) -> Recorder:
        stream = Recorder(connection, stream_id)
        self.opened.append(stream)
        return stream

    def send(self, *data: bytes) -> list[Frame]:
        """Pass bytes to the connection; return what it sends."""
        read = self._kept + b"".join(data)
        position, connection = 0, self.connection
        while True:
            position = connection.receive(memoryview(read), position, len(read), self.now)
            if not connection.has_more:
                break
        self._kept = read[position:]
        return self.received()

    def received(self) -> list[Frame]:
        """Return what the connection sends by itself."""
        return split(b"".join(self.connection.take_output()))

    def headers(
        self,
        stream_id: int = 1,
        fields: Sequence[Field] = REQUEST,
        *,
        flags: int = Flag.END_HEADERS,
    ) -> bytes:
        """Return the HEADERS frame of a request."""
        block = self.encoder.encode(tuple(fields))
        return frames.frame(FrameType.HEADERS, flags, stream_id, block)

    def call(
        self, stream_id: int, message: bytes = b"", *more: Field, path: bytes = REQUEST[2][1]
    ) -> bytes:
        """Return the frames of a unary call."""
        fields = [(name, path if name == b":path" else value) for name, value in REQUEST]
        body = messages.encode(message)
        pieces = [body[begin : begin + 16_384] for begin in range(0, len(body), 16_384)]
        return b"".join(
            (
                self.headers(stream_id, [*fields, *more]),
                *(data(stream_id, piece) for piece in pieces[:-1]),
                data(stream_id, pieces[-1], is_end=True),
            )
        )

    def fields(self, frame: Frame) -> dict[bytes, bytes]:
        """Decode a HEADERS frame."""
        assert frame.kind == FrameType.HEADERS
        return dict(self.decoder.decode(frame.payload))


def data(stream_id: int, payload: bytes = b"", *, is_end: bool = False, flags: int = 0) -> bytes:
    """Return a DATA frame."""
    return frames.frame(
        FrameType.DATA, flags | (Flag.END_STREAM if is_end else 0), stream_id, payload
    )


def ping(payload: bytes = b"12345678", flags: int = 0) -> bytes:
    """Return a PING frame."""
    return frames.frame(FrameType.PING, flags, 0, payload)


def grpc_peer(service: Service, *, hello: bytes = HELLO, **more: Any) -> Http2Peer:
    """Return a client of a service; coroutines are not run, and bugs are raised."""

    def report(error: Exception, path: str) -> None:
        raise AssertionError(path) from error

    settings: dict[str, Any] = {"spawn": lambda work: work, "report": report, **more}
    return Http2Peer(GrpcConnection(service, Address(), **settings), hello=hello)


class Replies:
    """What a client receives for its calls."""

    def __init__(self, peer: Http2Peer) -> None:
        self._peer = peer
        self.fields: dict[int, list[dict[bytes, bytes]]] = {}
        """Header blocks by stream."""
        self.data: dict[int, bytearray] = {}
        self.resets: dict[int, int] = {}
        self.ends: set[int] = set()

    def add(self, received: Sequence[Frame]) -> "Replies":
        """Take frames."""
        for frame in received:
            if frame.kind == FrameType.HEADERS:
                self.fields.setdefault(frame.stream_id, []).append(self._peer.fields(frame))
            elif frame.kind == FrameType.DATA:
                self.data.setdefault(frame.stream_id, bytearray()).extend(frame.payload)
            elif frame.kind == FrameType.RST_STREAM:
                self.resets[frame.stream_id] = int.from_bytes(frame.payload, "big")
            if frame.kind <= FrameType.HEADERS and frame.flags & Flag.END_STREAM:
                self.ends.add(frame.stream_id)
        return self

    def messages(self, stream_id: int) -> list[bytes]:
        """Return the messages of a call."""
        data = bytes(self.data.get(stream_id, b""))
        taken = []
        while data:
            size = int.from_bytes(data[1:5], "big")
            message, data = data[5 : 5 + size], data[5 + size :]
            assert len(message) == size, "half a message"
            taken.append(message)
        return taken

    def status(self, stream_id: int) -> tuple[int, bytes]:
        """Return status and text of a call that has ended."""
        assert stream_id in self.ends
        fields = self.fields[stream_id][-1]
        return int(fields[b"grpc-status"]), fields.get(b"grpc-message", b"")


def echo_service(later: list[Call] | None = None, **more: Any) -> Service:
    """Return a service that echoes, and one that keeps its calls in ``later``."""

    def keep(call: Call, message: bytes) -> None:
        if later is not None:
            later.append(call)

    def chat(call: Call) -> None:
        call.on_message = call.send

    methods: dict[str, Any] = {
        "/test.Service/Echo": unary(lambda call, message: message),
        "/test.Service/Later": unary(keep),
        "/test.Service/Chat": bidirectional(chat),
        **more,
    }
    return Service(methods)


Handler = Callable[..., Any]
