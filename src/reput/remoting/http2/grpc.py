"""gRPC calls on a connection, without I/O: methods of a service, and what they answer.

    HEADERS -> method, deadline -> messages -> the method's function -> reply

A unary method gets one message and returns the bytes of its reply, or something to wait for, or
None: then it calls ``Call.reply`` or ``Call.fail`` later, from any callback of the same loop. A
stream of the server gets one message, calls ``Call.send`` as often as it likes, and then
``Call.finish``. A bidirectional method gets a call before any message, and sets its callbacks.

Errors are trailers: the HTTP status is 200 then, too. Only a request that is no gRPC gets 415.
"""

import enum
import math
import re
import struct
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, cast

from reput import limits
from reput.errors import CallFailed, LimitExceeded, ReputError
from reput.format.kernels import call_words as words
from reput.format.message import Host
from reput.remoting.http2 import messages
from reput.remoting.http2.call_reader import CallReader, Row
from reput.remoting.http2.connection import Http2Connection, Stream
from reput.remoting.http2.frames import HEAD, PAYLOAD_BYTES_MAX, Flag, FrameType
from reput.remoting.http2.hpack import Encoder, Field
from reput.remoting.http2.request_fields import Headers
from reput.remoting.http2.status import Status

_CONTENT_TYPE = (b"content-type", b"application/grpc")
_STATUS_200 = (b":status", b"200")
_REPLY_HEADERS = (_STATUS_200, _CONTENT_TYPE)
_OK_TRAILERS = ((b"grpc-status", b"0"),)
_RECURRING = frozenset((*_REPLY_HEADERS, *_OK_TRAILERS))
_DATA_PREFIX = struct.Struct(">IBIBI")
"""Head of a DATA frame, and prefix of a message."""
_GRPC = re.compile(rb"application/grpc(?:\+[^;]*)?\s*(?:;.*)?", re.IGNORECASE)
_REFUSAL_HEADERS = ((b":status", b"415"), (b"content-type", b"text/plain; charset=utf-8"))
_NOT_GRPC = (
    b"This port is for gRPC: POST with content-type application/grpc. Other requests are refused.\n"
)
_OUTPUT_BYTES_MAX = 256 * 1024
"""Bytes of one write, above which streams wait for the next turn of the loop."""
_LOOK_S = 10.0
"""Interval of checks for requests that do not arrive completely, in seconds."""
_FIRST_FLAGS, _LAST_FLAGS = Flag.END_HEADERS, Flag.END_HEADERS | Flag.END_STREAM
_HEADERS = FrameType.HEADERS


class MethodKind(enum.Enum):
    """How many messages a method takes and returns."""

    UNARY = enum.auto()
    SERVER_STREAM = enum.auto()
    BIDIRECTIONAL = enum.auto()


Reply = bytes | Awaitable[bytes] | None


@dataclass(frozen=True, slots=True)
class Method:
    """A method of a service."""

    kind: MethodKind
    handle: Callable[..., Any]


def unary(handle: Callable[["Call", bytes], Reply]) -> Method:
    """Return a method with one message each way: ``handle(call, message)`` returns the reply.

    The reply may be a future or coroutine. With None, ``call.reply`` or ``call.fail`` follows.
    """
    return Method(MethodKind.UNARY, handle)


def server_stream(handle: Callable[["Call", bytes], Awaitable[None] | None]) -> Method:
    """Return a method with one message of the client and any number of replies.

    ``handle(call, message)`` calls ``call.send`` and, now or later, ``call.finish``. A coroutine is
    finished at its end.
    """
    return Method(MethodKind.SERVER_STREAM, handle)


def bidirectional(handle: Callable[["Call"], None]) -> Method:
    """Return a method with any number of messages each way.

    ``handle(call)`` sets ``call.on_message``, ``on_half_close`` and ``on_cancel``.
    """
    return Method(MethodKind.BIDIRECTIONAL, handle)


@dataclass(slots=True)
class Service:
    """Methods by path.

    ``after_read`` is called after each read of a connection, before the replies of that read are
    written: a service may collect calls, and answer them there together.
    """

    methods: Mapping[str, Method]
    """Methods by path: ``/package.Service/Method``."""
    after_read: Callable[["GrpcConnection"], object] | None = None
    fast: "FastPath | None" = None
    """Serves many requests of a read at once."""
    by_path: dict[bytes, Method] = field(init=False)

    def __post_init__(self) -> None:
        self.by_path = {path.encode(): method for path, method in self.methods.items()}


class FastPath(Protocol):
    """Serves many requests of a read at once; what it leaves goes through the methods."""

    paths: tuple[bytes, ...]
    """Paths of the methods that it may serve."""

    def prepare(self, connection: "GrpcConnection", reader: CallReader) -> None:
        """Set the words of the reader that decide which rows may be served."""

    def serve(self, connection: "GrpcConnection", reader: CallReader, count: int) -> list[Row]:
        """Serve the rows of a read; return the rows that are not served."""

    def lost(self, connection: "GrpcConnection") -> None:
        """Handle the end of a connection."""


class Peer(Protocol):
    """The other end of a connection."""

    peer: str
    """Address, ``ip:port``."""
    address: str
    """The ip."""
    host: Host
    local_host: Host
    is_closed: bool
    is_writable: bool
    """Whether the peer keeps up with the writes, according to the transport."""


class Future(Protocol):
    """A result to come, such as ``asyncio.Future``."""

    def add_done_callback(self, callback: Callable[[Any], object], /) -> None:
        """Call a function with the future when there is a result."""

    def cancel(self) -> bool:
        """Want no result."""

    def cancelled(self) -> bool:
        """Return whether there will be no result."""

    def result(self) -> Any:
        """Return the result, or raise the error."""


class GrpcConnection(Http2Connection):
    """A connection whose streams are calls.

    Args:
        service: The methods.
        peer: The other end; shown to methods as ``call.peer``.
        spawn: Runs a coroutine that a method returns.
        report: Called with an error that is a bug, and the path of the method.
        on_output: Called when there is output outside of ``receive``.
    """

    __slots__ = (
        "_looked_at",
        "fast",
        "peer",
        "report",
        "service",
        "spawn",
        "timed",
        "waiting",
    )

    def __init__(
        self,
        service: Service,
        peer: Peer,
        *,
        spawn: Callable[[Any], Future],
        report: Callable[[Exception, str], object],
        on_output: Callable[[], object] = lambda: None,
    ) -> None:
        super().__init__(cast(Any, Call), on_output)
        self.encoder = Encoder(_RECURRING)
        self.service = service
        self.peer = peer
        self.spawn = spawn
        self.report = report
        self.timed: dict[Call, None] = {}
        """Unanswered calls with a deadline."""
        self.waiting: dict[Call, None] = {}
        """Calls that wait until the connection is writable, in turn; not those whose own window is
        used up."""
        self._looked_at = 0.0
        self.fast: Any = None
        """Property of ``Service.fast``: whatever it keeps with the connection."""

    # Many requests at once --------------------------------------------------------------------

    def _prepare_rows(self, reader: CallReader) -> None:
        if self.service.fast is None:
            super()._prepare_rows(reader)
        else:
            self.service.fast.prepare(self, reader)

    def _serve_rows(self, reader: CallReader, count: int) -> list[Row]:
        if self.service.fast is None:
            return reader.rows(count)
        return self.service.fast.serve(self, reader, count)

    def lost(self) -> None:
        """Handle the end of the connection."""
        if self.service.fast is not None:
            self.service.fast.lost(self)
        super().lost()

    def reply_blocks(self) -> tuple[bytes, bytes] | None:
        """Return the header blocks before and after a reply; None if they change the table."""
        before = self.encoder.known(_REPLY_HEADERS)
        after = self.encoder.known(_OK_TRAILERS)
        return None if before is None or after is None else (before, after)

    def begin_waiting(self, reader: CallReader, row: Row) -> "Call | None":
        """Make the call of a request that is being served; None if it is refused."""
        self._begin_stream(reader.fields(row), 0, row[words.ROW_STREAM])
        call = cast("Call | None", self.streams.get(row[words.ROW_STREAM]))
        if call is None or call.method is None:
            return None
        call.is_ended = True
        self.call_count += 1
        call.wait()
        return call

    def end_read(self) -> None:
        """Let the service answer the calls of a read; to be called before its output is written."""
        if self.service.after_read is not None:
            self.service.after_read(self)

    @property
    def is_quiet(self) -> bool:
        """Whether it has calls, and nothing with a deadline: call, request, data for the peer."""
        if not self.streams or self.timed or self._waiting or self.peer_has_ended:
            return False
        calls = cast("Iterable[Call]", self.streams.values())
        return not any(call.is_late(math.inf) for call in calls)

    def expire(self, now: float) -> None:
        """Fail calls whose deadline is over, and requests that do not arrive."""
        if self.timed:
            for call in [call for call in self.timed if cast(float, call.deadline) <= now]:
                call.fail(Status.DEADLINE_EXCEEDED, "the deadline of the call is over")
                call.cancel()
        if now - self._looked_at >= _LOOK_S:
            self._looked_at = now
            limit = limits.GRPC_REQUEST_MS
            begun_before = now - limit.maximum / 1000
            for call in cast("list[Call]", list(self.streams.values())):
                if call.is_late(begun_before):
                    call.fail(Status.DEADLINE_EXCEEDED, str(limit.exceeded()))
        super().expire(now)

    @property
    def is_writable(self) -> bool:
        """True if the peer reads, as far as all calls together are concerned."""
        return (
            self.output_bytes < _OUTPUT_BYTES_MAX
            and self.peer.is_writable
            and self.unsent_bytes <= limits.HTTP2_UNSENT_BYTES.maximum
        )

    def resumed(self) -> None:
        """Handle that output was written, or the peer reads again."""
        while self.waiting and self.is_writable:
            call = next(iter(self.waiting))
            del self.waiting[call]
            call.on_sent()

    def end_calls(self) -> None:
        """Fail all calls, as the server stops."""
        for call in cast("list[Call]", list(self.streams.values())):
            call.fail(Status.UNAVAILABLE, "the server stops")
            call.cancel()


class Call(Stream):
    """A call of a method."""

    __slots__ = (
        "_data",
        "_encoding",
        "_has_sent",
        "_is_refused",
        "_kept_bytes",
        "_message_count",
        "_on_writable",
        "_running",
        "_second",
        "deadline",
        "headers",
        "method",
        "on_cancel",
        "on_half_close",
        "on_message",
        "state",
    )

    connection: GrpcConnection

    def __init__(self, connection: GrpcConnection, stream_id: int) -> None:
        super().__init__(connection, stream_id)
        self.headers: Headers = {}
        """Headers of the request, with its metadata: names in lower case."""
        self.method: Method | None = None
        self.deadline: float | None = None
        """Time until which the client waits, in the loop's seconds; None: for ever."""
        self.on_message: Callable[[bytes], object] | None = None
        """Handler of further messages of the client; of bidirectional methods."""
        self.on_half_close: Callable[[], object] | None = None
        """Handler of the end of the client's messages; without it, the call is finished then."""
        self.on_cancel: Callable[[], object] | None = None
        """Handler of the end of a call that was not answered: cancelled, late, connection lost."""
        self.state: Any = None
        """Property of the method: whatever it keeps with the call."""
        self._data: bytes | bytearray | None = None  # of an incomplete request or message
        self._kept_bytes = 0
        self._encoding = b"identity"
        self._second = 0
        self._message_count = 0  # of a bidirectional method, in this second
        self._has_sent = False
        self._is_refused = False  # with 415, when the request ends
        self._running: Future | None = None
        self._on_writable: Callable[[], object] | None = None

    def __repr__(self) -> str:
        """Return path and peer."""
        return f"Call({self.path} of {self.peer.peer}, stream {self.stream_id})"

    # The request ------------------------------------------------------------------------------

    @property
    def path(self) -> str:
        """Path of the method."""
        return self.headers.get(b":path", b"").decode("latin-1")

    @property
    def peer(self) -> Peer:
        """The client's end of the connection."""
        return self.connection.peer

    def text(self, name: str) -> str:
        """Return a header of the request as text; empty without it."""
        return self.headers.get(name.encode(), b"").decode(errors="replace")

    def on_headers(self, headers: Headers) -> None:
        """Find the method; called by the connection."""
        self.headers = headers
        content_type = headers.get(b"content-type", b"")
        if content_type != b"application/grpc" and not _GRPC.fullmatch(content_type):
            self._is_refused = True
            return
        connection = self.connection
        try:
            self.method = method = connection.service.by_path.get(headers[b":path"])
            if method is None:
                raise CallFailed(Status.UNIMPLEMENTED, f"there is no method {self.path}")
            timeout = headers.get(b"grpc-timeout")
            if timeout is not None:
                self.deadline = connection.now + messages.timeout_s(timeout)
            encoding = headers.get(b"grpc-encoding")
            if encoding is not None:
                if encoding not in (b"identity", b"gzip"):
                    raise CallFailed(
                        Status.UNIMPLEMENTED,
                        f"grpc-encoding {encoding[:50]!r}; allowed: identity, gzip",
                    )
                self._encoding = encoding
            limit = limits.HTTP2_UNSENT_BYTES
            if connection.unsent_bytes > limit.maximum:
                text = str(limit.exceeded(connection.unsent_bytes))
                raise CallFailed(Status.RESOURCE_EXHAUSTED, text)
            if method.kind is MethodKind.BIDIRECTIONAL:
                self.wait()
                method.handle(self)
        except Exception as error:  # noqa: BLE001 - the outermost edge of a call
            self._failed(error)

    def on_data(self, data: memoryview) -> None:
        """Take a part of a message; called by the connection."""
        if self._is_refused or self.has_ended:
            return
        kept = self._data
        if kept is None and self.is_ended:
            self._data = bytes(data)  # the whole of most requests
            return
        if kept is None:
            kept = self._data = bytearray()
        kept += data
        self._keep(len(data))
        try:
            if self.method is not None and self.method.kind is MethodKind.BIDIRECTIONAL:
                self._take_messages(cast(bytearray, kept))
            elif len(kept) >= messages.PREFIX.size:
                messages.check_size(int.from_bytes(kept[1:5], "big"))
        except Exception as error:  # noqa: BLE001 - the outermost edge of a call
            self._failed(error)

    def _keep(self, change_bytes: int) -> None:
        self._kept_bytes += change_bytes
        self.connection.keep(change_bytes)

    def on_end(self) -> None:
        """Handle a request that is complete; called by the connection."""
        if self._is_refused:
            self._refuse()
            return
        data, self._data = self._data or b"", None
        if self._kept_bytes:
            self._keep(-self._kept_bytes)
        try:
            if cast(Method, self.method).kind is MethodKind.BIDIRECTIONAL:
                if data:  # with the last frame of the client
                    data = bytearray(data)
                    self._take_messages(data)
                    if data:
                        raise CallFailed(Status.INTERNAL, "the request ends inside of a message")
                if self.has_ended:
                    return
                if self.on_half_close is not None:
                    self.on_half_close()
                else:
                    self.finish()
                return
            self._handle(self._only_message(data))
        except Exception as error:  # noqa: BLE001 - the outermost edge of a call
            self._failed(error)

    def _only_message(self, data: bytes | bytearray) -> bytes:
        """Return the one message of a request. Raises CallFailed."""
        if len(data) >= 5 and not data[0] and int.from_bytes(data[1:5], "big") == len(data) - 5:
            return bytes(memoryview(data)[5:])
        buffer = bytearray(data)
        taken = messages.take(buffer)
        if taken is None:
            reason = (
                "the request ends inside of a message" if data else "the request has no message"
            )
            raise CallFailed(Status.INTERNAL if data else Status.UNIMPLEMENTED, reason)
        if buffer:
            raise CallFailed(Status.UNIMPLEMENTED, "the request has more than one message")
        return self._content(*taken)

    def _content(self, flag: int, message: bytes) -> bytes:
        if not flag:
            return message
        if flag != 1:
            raise CallFailed(Status.INTERNAL, f"a message with the flag {flag}; allowed: 0, 1")
        return messages.decompressed(message, self._encoding)

    def _take_messages(self, buffer: bytearray) -> None:
        """Pass on the complete messages of a buffer."""
        limit = limits.GRPC_STREAM_MESSAGES
        while not self.has_ended and (taken := messages.take(buffer)) is not None:
            if int(self.connection.now) != self._second:
                self._second, self._message_count = int(self.connection.now), 0
            self._message_count += 1
            if self._message_count > limit.maximum:
                raise limit.exceeded(None, self.path)
            if self._kept_bytes:
                self._keep(-min(self._kept_bytes, len(taken[1]) + messages.PREFIX.size))
            content = self._content(*taken)
            if self.on_message is not None:
                self.on_message(content)

    # The method -------------------------------------------------------------------------------

    def _handle(self, message: bytes) -> None:
        method = cast(Method, self.method)
        reply = method.handle(self, message)
        if type(reply) is bytes:
            self.reply(reply)
        elif not self.has_ended:
            self.wait()
            if reply is not None:
                self._wait_for(reply)

    def wait(self) -> None:
        """Handle that the reply comes later."""
        if self.deadline is not None:
            self.connection.timed[self] = None

    def _wait_for(self, reply: Any) -> None:
        """Wait for the result of a method."""
        if isinstance(reply, bytearray | memoryview):
            self.reply(bytes(reply))
            return
        if not hasattr(reply, "add_done_callback"):
            reply = self.connection.spawn(reply)
        self._running = reply
        reply.add_done_callback(self._on_result)

    def _on_result(self, future: Future) -> None:
        self._running = None
        if self.has_ended:
            if not future.cancelled():
                self._drop_result(future)
            return
        try:
            if future.cancelled():
                raise CallFailed(Status.CANCELLED, "the method was cancelled")
            reply = future.result()
            if cast(Method, self.method).kind is MethodKind.SERVER_STREAM:
                self.finish()
            else:
                self.reply(reply)
        except Exception as error:  # noqa: BLE001 - the outermost edge of a call
            self._failed(error)

    def _drop_result(self, future: Future) -> None:
        """Report the bug of a method whose client wants no reply any more."""
        try:
            future.result()
        except ReputError:
            pass
        except Exception as error:  # noqa: BLE001 - the outermost edge of a call
            self.connection.report(error, self.path)

    def _failed(self, error: Exception) -> None:
        """Fail because of an error."""
        if isinstance(error, CallFailed):
            self.fail(error.status, str(error))
        elif isinstance(error, LimitExceeded):
            self.fail(Status.RESOURCE_EXHAUSTED, str(error))
        else:
            if not isinstance(error, ReputError):
                self.connection.report(error, self.path)
            self.fail(Status.UNKNOWN, f"{type(error).__name__}: {error}")

    # Replies ----------------------------------------------------------------------------------

    def reply(self, message: bytes) -> None:
        """Send one message and the end, together."""
        if self.has_ended:
            return
        connection = self.connection
        size = len(message) + 5
        if (
            size > PAYLOAD_BYTES_MAX
            or size > connection.window
            or size > self.window
            or self._has_sent
        ):
            self.send(message)
            self.finish()
            return
        connection.window -= size
        block = connection.encoder.encode(_REPLY_HEADERS)
        trailers = connection.encoder.encode(_OK_TRAILERS)
        stream_id = self.stream_id
        connection.write(
            HEAD.pack(len(block) << 8 | _HEADERS, _FIRST_FLAGS, stream_id)
            + block
            + _DATA_PREFIX.pack(size << 8, 0, stream_id, 0, size - 5)
            + message
            + HEAD.pack(len(trailers) << 8 | _HEADERS, _LAST_FLAGS, stream_id)
            + trailers
        )
        self._done()
        connection.close_stream(self)

    def send(self, *sent: bytes) -> bool:
        """Send messages; return ``is_writable``. What the client does not read yet is kept."""
        return self.send_encoded(b"".join(map(messages.encode, sent)))

    def send_encoded(self, data: bytes) -> bool:
        """Send messages that have their prefixes, as ``send``."""
        if not self.has_ended:
            if not self._has_sent:
                self._has_sent = True
                self.send_headers(self.connection.encoder.encode(_REPLY_HEADERS))
            self.send_data(data)
        return self.is_writable

    def finish(self) -> None:
        """End the call with the status OK."""
        if self.has_ended or self.trailers is not None:
            return
        self._done()
        if not self._has_sent:
            self._has_sent = True
            self.send_headers(self.connection.encoder.encode(_REPLY_HEADERS))
        self.send_trailers(_OK_TRAILERS)

    def fail(self, status: int, reason: str) -> None:
        """End the call with another status, after what was sent."""
        if self.has_ended or self.trailers is not None:
            return
        self._done()
        fields: tuple[Field, ...] = (
            (b"grpc-status", b"%d" % status),
            (b"grpc-message", messages.encode_reason(reason)),
        )
        if not self._has_sent:
            fields = (*_REPLY_HEADERS, *fields)
            if status == Status.UNIMPLEMENTED:
                fields = (*fields, (b"grpc-accept-encoding", b"identity,gzip"))
        self.send_trailers(fields)

    def _refuse(self) -> None:
        """Refuse a request that is no gRPC."""
        self._done()
        self.send_headers(self.connection.encoder.encode(_REFUSAL_HEADERS))
        self.send_data(_NOT_GRPC)
        self.send_trailers(())

    @property
    def is_writable(self) -> bool:
        """True if the client reads, so that messages are not kept for long."""
        return not self.unsent_bytes and self.connection.is_writable

    def when_writable(self, callback: Callable[[], object]) -> None:
        """Call a function once, when ``is_writable`` is true; not if the call ends before."""
        if self.has_ended:
            return
        if self.is_writable:
            callback()
            return
        self._on_writable = callback
        if not self.unsent_bytes:
            self.connection.waiting[self] = None

    def on_sent(self) -> None:
        """Handle that the client reads again; called by the connection."""
        callback = self._on_writable
        if callback is None or self.has_ended:
            return
        if not self.is_writable:
            self.connection.waiting[self] = None
            return
        self._on_writable = None
        try:
            callback()
        except Exception as error:  # noqa: BLE001 - the outermost edge of a call
            self._failed(error)

    # Ends -------------------------------------------------------------------------------------

    def _done(self) -> None:
        """Handle that the method has answered."""
        connection = self.connection
        if self.deadline is not None:
            connection.timed.pop(self, None)
        if connection.waiting:
            connection.waiting.pop(self, None)
        if self._kept_bytes:
            self._keep(-self._kept_bytes)
        self._data = None
        self._on_writable = None

    def on_reset(self) -> None:
        """Handle the cancellation by the client; called by the connection."""
        self._done()
        self.cancel()

    def cancel(self) -> None:
        """Notify the method that its call has ended."""
        running, self._running = self._running, None
        if running is not None:
            running.cancel()
        callback, self.on_cancel = self.on_cancel, None
        if callback is not None:
            try:
                callback()
            except Exception as error:  # noqa: BLE001 - the outermost edge of a call
                self.connection.report(error, self.path)

    def is_late(self, begun_before: float) -> bool:
        """Return whether the request is incomplete, and was begun before a time."""
        return (
            not self.is_ended
            and self.opened_at < begun_before
            and (self.method is None or self.method.kind is not MethodKind.BIDIRECTIONAL)
        )
