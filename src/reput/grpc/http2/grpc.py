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
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import CoroutineType
from typing import Any, NamedTuple, Protocol, TypeVar, cast

from reput.errors import CallFailed, LimitExceeded, ReputError
from reput.format.message import Host
from reput.grpc import limits
from reput.grpc.http2 import messages
from reput.grpc.http2.begun_work import BegunWork
from reput.grpc.http2.call_reader import CallReader
from reput.grpc.http2.connection import Http2Connection, Stream
from reput.grpc.http2.frames import HEAD, PAYLOAD_BYTES_MAX, Flag, FrameType
from reput.grpc.http2.hpack import Encoder, Field
from reput.grpc.http2.request_fields import Headers
from reput.grpc.http2.status import Status
from reput.grpc.kernels.call_words import CallRow
from reput.remoting.byte_room import ByteRoom
from reput.remoting.time_slices import Steps, run_whole
from reput.remoting.turns import Turns

_CONTENT_TYPE = (b"content-type", b"application/grpc")
_STATUS_200 = (b":status", b"200")
_REPLY_HEADERS = (_STATUS_200, _CONTENT_TYPE)
_OK_TRAILERS = ((b"grpc-status", b"0"),)
_RECURRING = frozenset((*_REPLY_HEADERS, *_OK_TRAILERS))
_DATA_PREFIX = struct.Struct(">IBIBI")
"""Head of a DATA frame, and prefix of a message."""
_SMALL_BYTES = 4 * 1024
"""Size up to which messages need no reserved room, since a call itself takes as much."""
_CALL_BYTES = 512
"""Bytes that an open call counts for in its connection, besides the values of its headers."""
_GRPC = re.compile(rb"application/grpc(?:\+[^;]*)?\s*(?:;.*)?", re.IGNORECASE)
_REFUSAL_HEADERS = ((b":status", b"415"), (b"content-type", b"text/plain; charset=utf-8"))
_NOT_GRPC = (
    b"This port is for gRPC: POST with content-type application/grpc. Other requests are refused.\n"
)
_OUTPUT_BYTES_MAX = 256 * 1024
"""Bytes of one write, above which streams wait for the next turn of the loop."""
_CANCELLED = "the method was cancelled"
_LOOK_S = 10.0
"""Interval of checks for requests that do not arrive completely, in seconds."""
_FIRST_FLAGS, _LAST_FLAGS = Flag.END_HEADERS, Flag.END_HEADERS | Flag.END_STREAM
_HEADERS = FrameType.HEADERS


_T = TypeVar("_T")


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
    is_paced: bool = False
    """Whether it gets messages as they were sent (``SentMessage``), and waits for ``call.turn`` and
    ``call.content``: so the cost of its calls is shared out among the turns of the loop."""

    def paced(self) -> "Method":
        """Return the same method, with ``is_paced``."""
        return replace(self, is_paced=True)


class SentMessage(NamedTuple):
    """A message as it was sent: perhaps compressed."""

    flag: int
    data: bytes | bytearray


def unary(handle: Callable[["Call", Any], Reply]) -> Method:
    """Return a method with one message each way: ``handle(call, message)`` returns the reply.

    The reply may be a future or coroutine. With None, ``call.reply`` or ``call.fail`` follows. A
    coroutine runs at once, outside of a task, until it waits for something: then it becomes one.
    """
    return Method(MethodKind.UNARY, handle)


def server_stream(handle: Callable[["Call", Any], Awaitable[None] | None]) -> Method:
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
    """Methods by path."""

    methods: Mapping[str, Method]
    """Methods by path: ``/package.Service/Method``."""
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

    def serve(self, connection: "GrpcConnection", reader: CallReader, count: int) -> list[CallRow]:
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

    def exception(self) -> BaseException | None:
        """Return the error, if there is one."""

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
        turns: Time for calls of paced methods.
        room: Room for their messages.
    """

    __slots__ = (
        "_looked_at",
        "fast",
        "on_eased",
        "peer",
        "report",
        "room",
        "service",
        "spawn",
        "timed",
        "turns",
        "unbegun_bytes",
        "unbegun_count",
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
        turns: Turns | None = None,
        room: ByteRoom | None = None,
    ) -> None:
        super().__init__(cast(Any, Call), on_output)
        self.turns = turns
        self.room = room
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
        self.unbegun_count = 0
        """Complete messages that wait for their turn, or for room."""
        self.unbegun_bytes = 0
        """Bytes of these messages."""
        self.on_eased: Callable[[], object] | None = None
        """Called when one of them waits no more."""
        self._looked_at = 0.0
        self.fast: Any = None
        """Property of ``Service.fast``: whatever it keeps with the connection."""

    # Many requests at once --------------------------------------------------------------------

    def _prepare_rows(self, reader: CallReader) -> None:
        if self.service.fast is None:
            super()._prepare_rows(reader)
        else:
            self.service.fast.prepare(self, reader)

    def _serve_rows(self, reader: CallReader, count: int) -> list[CallRow]:
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

    def begin_waiting(self, reader: CallReader, row: CallRow) -> "Call | None":
        """Make the call of a request that is being served; None if it is refused."""
        self._begin_stream(reader.fields(row), 0, row.stream)
        call = cast("Call | None", self.streams.get(row.stream))
        if call is None or call.method is None:
            return None
        call.is_ended = True
        self.call_count += 1
        call.wait()
        return call

    @property
    def is_full(self) -> bool:
        """Whether too many messages wait, so that no more are read."""
        return (
            self.unbegun_count > limits.GRPC_WAITING.maximum
            or self.unbegun_bytes > limits.GRPC_WAITING_BYTES.maximum
        )

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
        "_has_content",
        "_has_sent",
        "_is_refused",
        "_kept_bytes",
        "_message_count",
        "_on_writable",
        "_open_bytes",
        "_room_bytes",
        "_running",
        "_second",
        "_ticket",
        "_unbegun_bytes",
        "_unbegun_count",
        "deadline",
        "headers",
        "inbox",
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
        self.on_message: Callable[..., object] | None = None
        """Handler of further messages of the client; of bidirectional methods."""
        self.on_half_close: Callable[[], object] | None = None
        """Handler of the end of the client's messages; without it, the call is finished then."""
        self.on_cancel: Callable[[], object] | None = None
        """Handler of the end of a call that was not answered: cancelled, late, connection lost."""
        self.state: Any = None
        """Property of the method: whatever it keeps with the call."""
        self.inbox: deque[SentMessage] | None = None
        """Messages of the client to a paced bidirectional method, which takes them from here; its
        ``on_message`` is called without one."""
        self._data: bytes | bytearray | None = None  # of an incomplete request or message
        self._kept_bytes = 0
        self._open_bytes = 0  # of the headers, until the method has answered
        self._unbegun_count = self._unbegun_bytes = 0
        self._room_bytes = 0
        self._ticket = 0  # of the latest turn
        self._encoding = b"identity"
        self._second = 0
        self._message_count = 0  # of a bidirectional method, in this second
        self._has_content = False  # a paced method has its message
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
        """Find the method of the call; called by the connection."""
        self.headers = headers
        self._open_bytes = _CALL_BYTES + sum(map(len, headers.values()))
        self.connection.keep(0, self._open_bytes)
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
                self._take_messages()
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
        if self._kept_bytes:
            self._keep(-self._kept_bytes)
        try:
            if cast(Method, self.method).kind is MethodKind.BIDIRECTIONAL:
                if self._data:  # with the last frame of the client
                    self._data = bytearray(self._data)
                    self._take_messages()
                    if self._data:
                        raise CallFailed(Status.INTERNAL, "the request ends inside of a message")
                if self.has_ended:
                    return
                if self.on_half_close is not None:
                    self.on_half_close()
                else:
                    self.finish()
                return
            data, self._data = self._data or b"", None
            self._handle(self._only_message(data))
        except Exception as error:  # noqa: BLE001 - the outermost edge of a call
            self._failed(error)

    def _only_message(self, data: bytes | bytearray) -> SentMessage:
        """Return the one message of a request. Raises CallFailed."""
        if not data:
            raise CallFailed(Status.UNIMPLEMENTED, "the request has no message")
        first = messages.first(data)
        if first is None:
            raise CallFailed(Status.INTERNAL, "the request ends inside of a message")
        flag, end = first
        if end < len(data):
            raise CallFailed(Status.UNIMPLEMENTED, "the request has more than one message")
        return self._checked(SentMessage(flag, messages.without_prefix(data)))

    @staticmethod
    def _checked(sent: SentMessage) -> SentMessage:
        if sent.flag > 1:
            raise CallFailed(Status.INTERNAL, f"a message with the flag {sent.flag}; allowed: 0, 1")
        return sent

    def _next_message(self) -> SentMessage | None:
        """Remove the first message of the kept bytes; None if it is incomplete."""
        data = cast("bytearray | None", self._data)
        first = messages.first(data) if data else None
        if data is None or first is None:
            return None
        flag, end = first
        message = data
        if end == len(data):
            self._data = None
        else:
            message = data[:end]
            del data[:end]
        return self._checked(SentMessage(flag, messages.without_prefix(message)))

    def _take_messages(self) -> None:
        """Pass on the complete messages of the kept bytes."""
        limit = limits.GRPC_STREAM_MESSAGES
        is_paced = self.method is not None and self.method.is_paced
        while not self.has_ended and (sent := self._next_message()) is not None:
            if int(self.connection.now) != self._second:
                self._second, self._message_count = int(self.connection.now), 0
            self._message_count += 1
            if self._message_count > limit.maximum:
                raise limit.exceeded(None, self.path)
            if self._kept_bytes > self._unbegun_bytes:
                kept_bytes = self._kept_bytes - self._unbegun_bytes
                self._keep(-min(kept_bytes, len(sent.data) + messages.PREFIX.size))
            if is_paced:
                self._put_off(sent)
                if self.inbox is None:
                    self.inbox = deque()
                self.inbox.append(sent)
                if self.on_message is not None:
                    self.on_message()
            elif self.on_message is not None:
                self.on_message(self._content_now(sent))

    # Messages of paced methods ----------------------------------------------------------------

    def _put_off(self, sent: SentMessage) -> None:
        """Count a message that waits for its turn."""
        size = len(sent.data)
        connection = self.connection
        self._unbegun_count += 1
        self._unbegun_bytes += size
        connection.unbegun_count += 1
        connection.unbegun_bytes += size
        self._keep(size)

    def _begun(self, count: int, size: int) -> None:
        """Handle that messages wait no more."""
        self._uncount(count, size)
        if self.connection.on_eased is not None:
            self.connection.on_eased()

    def _uncount(self, count: int, size: int) -> None:
        """Count messages that wait no more."""
        connection = self.connection
        self._unbegun_count -= count
        self._unbegun_bytes -= size
        connection.unbegun_count -= count
        connection.unbegun_bytes -= size
        self._keep(-size)

    async def turn(self) -> None:
        """Wait until there is time for this call."""
        turns = self.connection.turns
        if turns is not None:
            self._ticket = await turns.take(self.connection)

    async def pause(self) -> None:
        """Wait, if this turn of the loop has no time left."""
        turns = self.connection.turns
        if turns is not None and turns.is_over:
            await turns.pause(self.connection, self._ticket)

    async def run(self, steps: Steps[_T]) -> _T:
        """Run a generator of steps, with pauses; return its value."""
        turns = self.connection.turns
        if turns is None:
            return run_whole(steps)
        return await turns.run(self.connection, self._ticket, steps)

    async def content(self, sent: SentMessage) -> bytes | bytearray:
        """Return a message, decompressed if necessary, as soon as there is room for it.

        Its bytes count until the call ends, or ``forget_content``.

        Raises:
            CallFailed: The message is damaged, or exceeds a limit.
        """
        size = len(sent.data)
        if sent.flag:
            size = messages.inflated_bytes_max(sent.data)
        if size > _SMALL_BYTES:
            await self._take_room(size)
        self._has_content = True
        if self._unbegun_count:
            self._begun(1, len(sent.data))
        if not sent.flag:
            return sent.data
        content = await self.run(messages.inflated(sent.data, self._encoding))
        if self._room_bytes:
            self._leave_room(self._room_bytes - len(content))
        return content

    async def _take_room(self, size: int) -> None:
        self.forget_content()  # of the message before, in a stream
        connection = self.connection
        if connection.room is not None:
            await connection.room.take(connection, connection.peer.address, size)
            if self.has_ended or self.trailers is not None:
                connection.room.release(connection, connection.peer.address, size)
            else:
                self._room_bytes = size

    def claim_more(self, size: int) -> None:
        """Count further bytes that the method keeps because of the message."""
        connection = self.connection
        if connection.room is not None and not self.has_ended and self.trailers is None:
            self._room_bytes += size
            connection.room.add(connection, connection.peer.address, size)

    def hold(self, size: int) -> None:
        """Count bytes that the method keeps until the call ends, like those of the headers."""
        if not self.has_ended and self.trailers is None:
            self._open_bytes += size
            self.connection.open_bytes += size

    def _leave_room(self, size: int) -> None:
        connection = self.connection
        if connection.room is not None and size:
            self._room_bytes -= size
            connection.room.release(connection, connection.peer.address, size)

    def forget_content(self) -> None:
        """Count the message no more: the method has read it."""
        if self._room_bytes:
            self._leave_room(self._room_bytes)

    def _content_now(self, sent: SentMessage) -> bytes:
        if sent.flag:
            return bytes(run_whole(messages.inflated(sent.data, self._encoding)))
        return bytes(sent.data)

    # The method -------------------------------------------------------------------------------

    def _handle(self, sent: SentMessage) -> None:
        method = cast(Method, self.method)
        reply = method.handle(self, sent if method.is_paced else self._content_now(sent))
        if type(reply) is CoroutineType:
            self._run(reply, sent)
        elif type(reply) is bytes:
            self.reply(reply)
        elif not self.has_ended:
            self._wait_for(reply, sent)

    def _run(self, work: Coroutine[Any, Any, Any], sent: SentMessage) -> None:
        """Run a method at once; if it waits for something, the rest becomes a task."""
        try:
            awaited = work.send(None)
        except StopIteration as end:
            self._answer(end.value)
        except (Exception, KeyboardInterrupt, SystemExit):
            raise
        except BaseException:  # noqa: BLE001 - what it waited for was cancelled
            self.fail(Status.CANCELLED, _CANCELLED)
        else:
            self._wait_for(BegunWork(work, awaited), sent)

    def wait(self) -> None:
        """Handle that the reply comes later."""
        if self.deadline is not None:
            self.connection.timed[self] = None

    def _wait_for(self, reply: Any, sent: SentMessage) -> None:
        """Wait for the result of a method, which may not have taken its message yet."""
        if cast(Method, self.method).is_paced and not self._has_content:
            self._put_off(sent)
        self.wait()
        if reply is None:
            return
        if isinstance(reply, bytearray | memoryview):
            self.reply(bytes(reply))
            return
        if not hasattr(reply, "add_done_callback"):
            reply = self.connection.spawn(reply)
        self._running = reply
        reply.add_done_callback(self._on_result)

    def _on_result(self, future: Future) -> None:
        self._running = None
        if future.cancelled():
            self.fail(Status.CANCELLED, _CANCELLED)
            return
        # Not raised again: its traceback would have this frame, which has the future with the
        # error. Such a cycle keeps the message of a refused call, perhaps 8 MiB, until the next
        # collection of garbage.
        error = cast("Exception | None", future.exception())
        if self.has_ended:
            if error is not None and not isinstance(error, ReputError):
                self.connection.report(error, self.path)
        elif error is not None:
            self._failed(error)
        else:
            self._answer(future.result())

    def _answer(self, reply: Any) -> None:
        """Send the result of a method."""
        try:
            if cast(Method, self.method).kind is MethodKind.SERVER_STREAM:
                self.finish()
            else:
                self.reply(reply)
        except Exception as error:  # noqa: BLE001 - the outermost edge of a call
            self._failed(error)

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
        if self._unbegun_count:
            self._uncount(self._unbegun_count, self._unbegun_bytes)
        if self._kept_bytes:
            self._keep(-self._kept_bytes)
        connection.open_bytes -= self._open_bytes
        self._open_bytes = 0
        if connection.on_eased is not None:
            connection.on_eased()
        if self._room_bytes:
            self.forget_content()
        self._data = self.inbox = None
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
