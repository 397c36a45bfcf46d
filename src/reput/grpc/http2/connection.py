"""The server's side of an HTTP/2 connection, without I/O: bytes in, calls of streams and bytes out.

    receive     the bytes of a read -> ``Stream.on_headers``, ``on_data``, ``on_end``, ``on_reset``
    send_*      by streams, during these calls or later
    take_output the bytes of all answers: one write for each read

A stream error resets its stream; a connection error sends GOAWAY and ends the connection. The rules
of RFC 9113 are checked in full; priorities are ignored, and nothing is pushed.

Flow control: a peer may always send ``STREAM_WINDOW`` and ``CONNECTION_WINDOW`` bytes; windows are
topped up when half is used, so that most requests need no WINDOW_UPDATE. What the peer's windows
do not allow to send yet waits in its stream, and holds up no other stream.

Floods are counted per second, and so are streams that are reset soon after they began.
"""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from reput.errors import Http2Error, excerpt
from reput.grpc import limits
from reput.grpc.http2 import frames, hpack, request_fields
from reput.grpc.http2.call_reader import CallReader, HeaderTable
from reput.grpc.http2.frames import (
    HEAD,
    PAYLOAD_BYTES_MAX,
    PREFACE,
    STREAM_MASK,
    WINDOW_DEFAULT,
    WINDOW_MAX,
    ErrorCode,
    Flag,
    FrameType,
    Setting,
)
from reput.grpc.http2.hpack import Field
from reput.grpc.http2.request_fields import Headers
from reput.grpc.kernels.call_words import CallRow
from reput.limits import Limit

STREAM_WINDOW = 4 << 20
"""Bytes of a stream that a peer may send at once."""
CONNECTION_WINDOW = 16 << 20
"""Bytes of all streams that a peer may send at once."""
FRAMES_PER_PASS = 64
"""Frames after which ``receive`` returns, so that its caller can look at the time."""
_BLOCK_BYTES_PER_PASS = 4 * 1024
"""Bytes of header blocks after which it returns as well."""
_REASON_LETTERS = 200
_YOUNG_S = 1.0
"""Age of a stream, in seconds, from which its reset is not counted."""
_RESETS_KEPT = 256
"""Streams whose late frames are ignored, as they were reset by this side."""
_GAPS_KEPT = 64
_BUSY_CALLS = 16
"""Calls in a second from which on a kernel reads the frames."""

_DATA, _HEADERS = FrameType.DATA, FrameType.HEADERS
_OWN_SETTINGS = frames.settings(
    (
        (Setting.MAX_CONCURRENT_STREAMS, limits.HTTP2_STREAMS.maximum),
        (Setting.INITIAL_WINDOW_SIZE, STREAM_WINDOW),
        (Setting.MAX_HEADER_LIST_SIZE, limits.HTTP2_HEADER_BYTES.maximum),
    )
) + frames.window_update(0, CONNECTION_WINDOW - WINDOW_DEFAULT)


class Stream:
    """A stream: a request and its answer. Subclasses handle the events.

    Args:
        connection: Its connection.
        stream_id: Its number.
    """

    __slots__ = (
        "connection",
        "has_ended",
        "is_ended",
        "missing_bytes",
        "opened_at",
        "receive_window",
        "sent_at",
        "stream_id",
        "trailers",
        "unsent",
        "unsent_bytes",
        "window",
    )

    def __init__(self, connection: "Http2Connection", stream_id: int) -> None:
        self.connection = connection
        self.stream_id = stream_id
        self.opened_at = connection.now
        """Time of its first frame, in the clock of ``Http2Connection.receive``."""
        self.is_ended = False
        """Whether the peer has sent the end of its request."""
        self.has_ended = False
        """Whether nothing more can be sent: it was answered, or reset."""
        self.window = connection.initial_window
        """Bytes that may be sent; negative after some changes of settings."""
        self.receive_window = STREAM_WINDOW
        """Bytes that the peer may send."""
        self.missing_bytes: int | None = None
        """Bytes up to its content-length, if it has this header."""
        self.unsent: deque[memoryview] | None = None
        """Data that waits for the peer's windows."""
        self.unsent_bytes = 0
        self.trailers: tuple[Field, ...] | None = None
        """Fields that end it after its unsent data."""
        self.sent_at = 0.0
        """Time of the latest progress of unsent data."""

    # Events -----------------------------------------------------------------------------------

    def on_headers(self, headers: Headers) -> None:
        """Handle the beginning of a request."""

    def on_data(self, data: memoryview) -> None:
        """Handle a part of the body; the bytes are valid only during this call."""

    def on_end(self) -> None:
        """Handle the end of the request."""

    def on_reset(self) -> None:
        """Handle that the peer has cancelled it, or the connection is lost."""

    def on_sent(self) -> None:
        """Handle that all unsent data was written."""

    # Answers ----------------------------------------------------------------------------------

    def send_headers(self, block: bytes, *, is_end: bool = False) -> None:
        """Send a header block; ``is_end`` ends the stream."""
        if not self.has_ended:
            self.connection.write(frames.headers(self.stream_id, block, is_end=is_end))
            if is_end:
                self.connection.close_stream(self)

    def send_data(self, data: bytes) -> None:
        """Send a part of the body, as far as the windows allow, and the rest later."""
        if not self.has_ended:
            self.connection.send_data(self, data)

    def send_trailers(self, fields: tuple[Field, ...]) -> None:
        """End the stream with fields after all data; without fields, with empty data."""
        if self.has_ended:
            return
        if self.unsent is not None:
            self.trailers = fields  # encoded when they are sent: the order of blocks counts
        elif fields:
            self.send_headers(self.connection.encoder.encode(fields), is_end=True)
        else:
            self.connection.write(frames.frame(_DATA, Flag.END_STREAM, self.stream_id))
            self.connection.close_stream(self)

    def reset(self, code: int) -> None:
        """End the stream at once."""
        if not self.has_ended:
            self.connection.reset(self, code)


class Http2Connection:
    """An HTTP/2 connection of a server or client, without I/O.

    Args:
        new_stream: Returns the stream of a new request.
        on_output: Called when there is output outside of ``receive``.
    """

    __slots__ = (
        "_block",
        "_block_bytes",
        "_block_flags",
        "_block_frames",
        "_block_stream_id",
        "_blocked",
        "_calls_before",
        "_control_frames",
        "_decoder",
        "_empty_frames",
        "_gaps",
        "_has_preface",
        "_has_table",
        "_is_receiving",
        "_late_resets",
        "_new_stream",
        "_on_output",
        "_out",
        "_payload_bytes_max",
        "_receive_window",
        "_reset_ids",
        "_resets",
        "_second",
        "_settings",
        "_table",
        "_waiting",
        "call_count",
        "encoder",
        "failure",
        "has_begun",
        "has_more",
        "initial_window",
        "is_busy",
        "is_ending",
        "kept_bytes",
        "last_stream_id",
        "now",
        "open_bytes",
        "output_bytes",
        "peer_has_ended",
        "reader",
        "streams",
        "unsent_bytes",
        "window",
    )

    def __init__(
        self,
        new_stream: Callable[["Http2Connection", int], Stream],
        on_output: Callable[[], object] = lambda: None,
    ) -> None:
        self.now = 0.0
        """Time of the latest ``receive``, in seconds."""
        self.streams: dict[int, Stream] = {}
        """Open streams by number."""
        self.last_stream_id = 0
        """Highest number of a stream of the peer."""
        self.failure: Http2Error | None = None
        """Why the connection ends; nothing more is received."""
        self.has_begun = False
        """Whether the preface and settings of the peer were received."""
        self.has_more = False
        """Whether the latest ``receive`` has returned after ``FRAMES_PER_PASS`` frames."""
        self.is_ending = False
        """Whether no new streams are accepted."""
        self.peer_has_ended = False
        """Whether the peer has sent GOAWAY."""
        self.initial_window = WINDOW_DEFAULT
        """Window of the peer's new streams, in bytes."""
        self.window = WINDOW_DEFAULT
        """Bytes of all streams that may be sent."""
        self.kept_bytes = 0
        """Bytes of incomplete requests, which the users of streams count."""
        self.open_bytes = 0
        """Bytes of open calls with their headers, which the users of streams count."""
        self.unsent_bytes = 0
        """Bytes that wait for the peer's windows."""
        self.output_bytes = 0
        """Bytes that ``take_output`` will return, without acknowledgements."""
        self.encoder = hpack.Encoder()
        self.call_count = 0
        """Number of requests so far."""
        self.reader: CallReader | None = None
        """The kernel that reads the frames of busy connections."""
        self.is_busy = False
        """Whether it had many calls in a second: from then on a kernel may read its frames."""
        self._table: HeaderTable | None = None  # of a busy connection
        self._has_table = False  # the table is current, else that of the decoder
        self._calls_before = 0  # this second
        self._new_stream = new_stream
        self._on_output = on_output
        self._decoder = hpack.Decoder()
        self._has_preface = False
        self._is_receiving = False
        self._out: list[bytes | memoryview] = []
        self._receive_window = CONNECTION_WINDOW
        self._payload_bytes_max = PAYLOAD_BYTES_MAX
        self._waiting: dict[Stream, None] = {}  # streams with unsent data
        # Streams that wait for the connection's window, in turn. A WINDOW_UPDATE must not take time
        # for streams that wait for their own window.
        self._blocked: dict[Stream, None] = {}
        self._block: bytearray | None = None  # the begun header block, its stream and flags
        self._block_stream_id = 0
        self._block_flags = 0
        self._block_frames = 0
        self._block_bytes = 0
        self._reset_ids: dict[int, None] = {}
        self._gaps: Sequence[tuple[int, int]] = ()  # numbers that were left out, the latest ones
        self._second = -1
        self._control_frames = 0
        self._empty_frames = 0
        self._resets = 0
        self._late_resets = 0  # of calls that had ended, over all time
        self._settings = 0

    # Input ------------------------------------------------------------------------------------

    def receive(self, view: memoryview, position: int, end: int, now: float) -> int:
        """Handle the complete frames of ``view[position:end]``; return the end of the last one.

        The rest is to be passed again, with more bytes after it. ``has_more`` is True if complete
        frames may be left: at most ``FRAMES_PER_PASS`` are handled.
        """
        self.now = now
        self.has_more = False
        self._is_receiving = True
        try:
            if self.failure is not None:
                return end
            if not self._has_preface:
                size = min(end - position, len(PREFACE))
                if view[position : position + size] != PREFACE[:size]:
                    first = bytes(view[position : position + 16])
                    raise Http2Error(
                        ErrorCode.PROTOCOL_ERROR,
                        f"the client does not begin with the preface of HTTP/2, but with {first!r}",
                    )
                if size < len(PREFACE):
                    return position
                position += size
                self._has_preface = True
                self._out.append(_OWN_SETTINGS)
            return self._receive_frames(view, position, end)
        except Http2Error as error:
            self.fail(error)
            return end
        finally:
            self._is_receiving = False

    def _receive_frames(self, view: memoryview, position: int, end: int) -> int:
        reader = self.reader
        if reader is not None and self._is_busy() and reader.takes(view, len(self.streams)):
            position, has_other = self._receive_calls(reader, view, position, end)
            if not has_other:
                return position
            if self._has_table and view[position + 3] in _OF_BLOCKS:
                self._give_table_back()
            position = self._receive_singly(view, position, end, 1)
            self.has_more = end - position >= 9
            return position
        if self._has_table:
            self._give_table_back()
        return self._receive_singly(view, position, end, FRAMES_PER_PASS)

    def _receive_singly(self, view: memoryview, position: int, end: int, frames_left: int) -> int:
        unpack = HEAD.unpack_from
        self._block_bytes = 0
        while end - position >= 9:
            size_and_kind, flags, stream_id = unpack(view, position)
            size = size_and_kind >> 8
            if size > PAYLOAD_BYTES_MAX:
                raise Http2Error(
                    ErrorCode.FRAME_SIZE_ERROR,
                    f"frame of {size} bytes; allowed: at most {PAYLOAD_BYTES_MAX}",
                )
            begin = position + 9
            stop = begin + size
            if stop > end:
                break
            position = stop
            kind = size_and_kind & 0xFF
            stream_id &= STREAM_MASK
            try:
                if self._block is not None and kind != FrameType.CONTINUATION:
                    raise _protocol_error("a header block is not continued")
                if kind == _DATA:
                    self._on_data(view, begin, stop, flags, stream_id)
                elif kind == _HEADERS:
                    if not self.has_begun:
                        raise _protocol_error("the first frame is not SETTINGS")
                    self._on_headers(view, begin, stop, flags, stream_id)
                else:
                    if not self.has_begun and kind != FrameType.SETTINGS:
                        raise _protocol_error("the first frame is not SETTINGS")
                    other = _OTHERS.get(kind)
                    if other is None:
                        self._count_empty_frame()
                    else:
                        other(self, view, begin, stop, flags, stream_id)
            except Http2Error as error:
                if not error.stream_id:
                    raise
                self._reset_stream(error)
            frames_left -= 1
            if not frames_left or self._block_bytes > _BLOCK_BYTES_PER_PASS:
                self.has_more = end - position >= 9
                break
        return position

    # Many requests at once --------------------------------------------------------------------

    def _is_busy(self) -> bool:
        """Return whether a kernel may read: there are many calls, and nothing is half done."""
        if self._table is None:
            second = int(self.now)
            if second != self._second:
                self._begin_second()
            if self.call_count - self._calls_before < _BUSY_CALLS:
                return False
            self._table = HeaderTable()
            self.is_busy = True
        return self._block is None and not self._waiting and not self.is_ending and self.has_begun

    def _give_table_back(self) -> None:
        assert self._table is not None
        self._table.give(self._decoder)
        self._has_table = False

    def _receive_calls(
        self, reader: CallReader, view: memoryview, position: int, end: int
    ) -> tuple[int, bool]:
        """Read frames with the kernel; return their end, and whether the next one is left."""
        table = self._table
        assert table is not None
        if not self._has_table:
            table.take(self._decoder)
            self._has_table = True
        self._begin_second()
        block = reader.block
        block.last_stream = self.last_stream_id
        block.window = self.window
        block.receive_window = self._receive_window
        block.receive_window_max = CONNECTION_WINDOW
        block.control_frames = self._control_frames
        block.empty_frames = self._empty_frames
        self._prepare_rows(reader)
        count = reader.read(self.streams, table, position, end)
        # The block is used by others from here on.
        begin, position = position, block.position
        has_other = bool(block.has_other)
        self.last_stream_id = block.last_stream
        self.window = block.window
        self._receive_window = block.receive_window
        self._control_frames = block.control_frames
        self._empty_frames = block.empty_frames
        if block.out_size:
            self._out.append(reader.out())
        if count:
            for row in self._serve_rows(reader, count):
                self._begin_row(reader, row, view)
        self.has_more = not has_other and end - position >= 9 and position > begin
        return position, has_other

    def _prepare_rows(self, reader: CallReader) -> None:
        """Set the words that decide which rows may be served at once."""
        reader.block.client.start = 0

    def _serve_rows(self, reader: CallReader, count: int) -> list[CallRow]:
        """Serve rows at once; return the rows that are not served."""
        return reader.rows(count)

    def _begin_row(self, reader: CallReader, row: CallRow, view: memoryview) -> None:
        """Make the stream of a request, and pass its data on."""
        stream_id = row.stream
        try:
            self._begin_stream(reader.fields(row), 0, stream_id)
            begin, stop = row.data, row.data_end
            is_ended = row.is_ended
            if begin >= 0 or is_ended:
                begin, stop = max(begin, 0), max(stop, 0)
                self._take_data(view, begin, stop, stop - begin, is_ended, stream_id)
        except Http2Error as error:
            if not error.stream_id:
                raise
            self._reset_stream(error)

    # Requests ---------------------------------------------------------------------------------

    def _on_headers(
        self, view: memoryview, begin: int, stop: int, flags: int, stream_id: int
    ) -> None:
        if not stream_id & 1:
            raise _protocol_error(f"HEADERS of stream {stream_id}; allowed: odd numbers")
        dependency = 0
        if flags & (Flag.PADDED | Flag.PRIORITY):
            if flags & Flag.PADDED:
                begin, stop = _without_padding(view, begin, stop)
            if flags & Flag.PRIORITY:
                if stop - begin < 5:
                    raise Http2Error(ErrorCode.FRAME_SIZE_ERROR, "HEADERS without its priority")
                dependency = int.from_bytes(view[begin : begin + 4], "big") & STREAM_MASK
                begin += 5
        if not flags & Flag.END_HEADERS:
            self._block = bytearray(view[begin:stop])
            self._block_stream_id = stream_id
            self._block_flags = flags
            self._block_frames = 0
        else:
            self._on_block(bytes(view[begin:stop]), flags, stream_id)
        if dependency == stream_id:
            raise _stream_error(stream_id, ErrorCode.PROTOCOL_ERROR, "it depends on itself")

    def _on_continuation(
        self, view: memoryview, begin: int, stop: int, flags: int, stream_id: int
    ) -> None:
        block = self._block
        if block is None or stream_id != self._block_stream_id:
            raise _protocol_error("CONTINUATION without a begun header block")
        self._block_frames += 1
        if self._block_frames > limits.HTTP2_CONTINUATIONS.maximum:
            raise _too_much(limits.HTTP2_CONTINUATIONS, self._block_frames)
        block += view[begin:stop]
        if len(block) > limits.HTTP2_HEADER_BYTES.maximum:
            raise _too_much(limits.HTTP2_HEADER_BYTES, len(block))
        if flags & Flag.END_HEADERS:
            self._block = None
            self._on_block(bytes(block), self._block_flags, stream_id)

    def _on_block(self, block: bytes, flags: int, stream_id: int) -> None:
        self._block_bytes += len(block)
        fields = self._decoder.decode(block)
        stream = self.streams.get(stream_id)
        if stream is not None:
            self._on_trailers(stream, fields, flags)
            return
        if stream_id <= self.last_stream_id:
            if stream_id not in self._reset_ids:
                is_unused = any(first <= stream_id <= last for first, last in self._gaps)
                code = ErrorCode.PROTOCOL_ERROR if is_unused else ErrorCode.STREAM_CLOSED
                raise Http2Error(code, f"HEADERS of stream {stream_id}, which is closed")
            return
        if stream_id > self.last_stream_id + 2:
            self._gaps = [*self._gaps[1 - _GAPS_KEPT :], (self.last_stream_id + 1, stream_id - 1)]
        self.last_stream_id = stream_id
        self._control_frames = self._empty_frames = 0
        self._begin_stream(fields, flags, stream_id)

    def _begin_stream(self, fields: list[Field], flags: int, stream_id: int) -> None:
        """Make the stream of a request."""
        if self.is_ending:
            raise _stream_error(stream_id, ErrorCode.REFUSED_STREAM, "the server stops")
        if len(self.streams) >= limits.HTTP2_STREAMS.maximum:
            raise _too_much(
                limits.HTTP2_STREAMS, len(self.streams) + 1, ErrorCode.REFUSED_STREAM, stream_id
            )
        if len(fields) > limits.HTTP2_HEADER_FIELDS.maximum:
            raise _too_much(
                limits.HTTP2_HEADER_FIELDS, len(fields), ErrorCode.ENHANCE_YOUR_CALM, stream_id
            )
        try:
            headers = request_fields.of_request(fields)
        except Http2Error as error:
            error.stream_id = stream_id
            raise
        stream = self.streams[stream_id] = self._new_stream(self, stream_id)
        if flags & Flag.END_STREAM:
            stream.is_ended = True
        if b"content-length" in headers:
            self._set_content_length(stream, headers[b"content-length"])
        stream.on_headers(headers)
        if stream.is_ended:
            self._end(stream)

    def _set_content_length(self, stream: Stream, text: bytes) -> None:
        if not text.isdigit() or len(text) > 15:
            raise _stream_error(
                stream.stream_id, ErrorCode.PROTOCOL_ERROR, "content-length is no number"
            )
        stream.missing_bytes = int(text)

    def _on_trailers(self, stream: Stream, fields: list[Field], flags: int) -> None:
        stream_id = stream.stream_id
        if stream.is_ended:
            raise _stream_error(stream_id, ErrorCode.STREAM_CLOSED, "HEADERS after its end")
        if not flags & Flag.END_STREAM:
            raise _stream_error(stream_id, ErrorCode.PROTOCOL_ERROR, "HEADERS without an end")
        try:
            request_fields.of_trailers(fields)
        except Http2Error as error:
            error.stream_id = stream_id
            raise
        stream.is_ended = True
        self._end(stream)

    def _on_data(self, view: memoryview, begin: int, stop: int, flags: int, stream_id: int) -> None:
        if not self.has_begun:
            raise _protocol_error("the first frame is not SETTINGS")
        size = stop - begin
        self._receive_window -= size
        if self._receive_window < CONNECTION_WINDOW >> 1:
            if self._receive_window < 0:
                raise Http2Error(ErrorCode.FLOW_CONTROL_ERROR, "more bytes than the window")
            count = CONNECTION_WINDOW - self._receive_window
            self._out.append(frames.window_update(0, count))
            self._receive_window += count
        if flags & Flag.PADDED:
            begin, stop = _without_padding(view, begin, stop)
        self._take_data(view, begin, stop, size, flags, stream_id)

    def _take_data(
        self, view: memoryview, begin: int, stop: int, size: int, flags: int, stream_id: int
    ) -> None:
        """Pass data on to its stream; ``size`` is that of the frame's payload."""
        stream = self.streams.get(stream_id)
        if stream is None or stream.is_ended:
            self._on_late_data(stream_id)
            return
        if stop == begin and not flags & Flag.END_STREAM:
            self._count_empty_frame()
            return
        self._control_frames = self._empty_frames = 0
        if stream.missing_bytes is not None:
            stream.missing_bytes -= stop - begin
        stream.receive_window -= size
        if flags & Flag.END_STREAM:
            stream.is_ended = True
            stream.on_data(view[begin:stop])
            self._end(stream)
            return
        if stream.receive_window < STREAM_WINDOW >> 1:
            if stream.receive_window < 0:
                raise _stream_error(
                    stream_id, ErrorCode.FLOW_CONTROL_ERROR, "more bytes than its window"
                )
            count = STREAM_WINDOW - stream.receive_window
            self._out.append(frames.window_update(stream_id, count))
            stream.receive_window += count
        stream.on_data(view[begin:stop])

    def _on_late_data(self, stream_id: int) -> None:
        if not stream_id or stream_id > self.last_stream_id:
            raise _protocol_error(f"DATA of stream {stream_id}, which is not open")
        if stream_id in self._reset_ids:
            self._count_empty_frame()  # the peer may not know yet
            return
        raise _stream_error(stream_id, ErrorCode.STREAM_CLOSED, "DATA after its end")

    def _end(self, stream: Stream) -> None:
        """Handle the end of a request."""
        if stream.missing_bytes:
            raise _stream_error(
                stream.stream_id, ErrorCode.PROTOCOL_ERROR, "content-length is another one"
            )
        self.call_count += 1
        if stream.has_ended:  # by its handler, before its end
            self.streams.pop(stream.stream_id, None)
        else:
            stream.on_end()

    # Other frames -----------------------------------------------------------------------------

    def _on_priority(
        self, view: memoryview, begin: int, stop: int, flags: int, stream_id: int
    ) -> None:
        self._count_empty_frame()
        if not stream_id:
            raise _protocol_error("PRIORITY of stream 0")
        if stop - begin != 5:
            raise _stream_error(stream_id, ErrorCode.FRAME_SIZE_ERROR, "PRIORITY has not 5 bytes")
        if int.from_bytes(view[begin : begin + 4], "big") & STREAM_MASK == stream_id:
            raise _stream_error(stream_id, ErrorCode.PROTOCOL_ERROR, "it depends on itself")

    def _on_rst_stream(
        self, view: memoryview, begin: int, stop: int, flags: int, stream_id: int
    ) -> None:
        if stop - begin != 4:
            raise Http2Error(ErrorCode.FRAME_SIZE_ERROR, "RST_STREAM has not 4 bytes")
        if not stream_id or stream_id > self.last_stream_id:
            raise _protocol_error(f"RST_STREAM of stream {stream_id}, which is not open")
        stream = self.streams.get(stream_id)
        if stream is None:
            # A client that is late cancels all calls whose answers it has not read yet.
            self._late_resets += 1
            if self._late_resets > self.call_count:
                self._count_empty_frame()
            return
        self._forget(stream)
        stream.on_reset()
        self._count_reset(stream)

    def _on_settings(
        self, view: memoryview, begin: int, stop: int, flags: int, stream_id: int
    ) -> None:
        if stream_id:
            raise _protocol_error(f"SETTINGS of stream {stream_id}; allowed: 0")
        if (stop - begin) % 6 or (flags & Flag.ACK and stop != begin):
            raise Http2Error(
                ErrorCode.FRAME_SIZE_ERROR, f"SETTINGS of {stop - begin} bytes; each takes 6"
            )
        if flags & Flag.ACK:
            if not self.has_begun:
                raise _protocol_error("the first frame is an acknowledgement")
            self._count_empty_frame()
            return
        self._begin_second()
        self._settings += 1
        if self._settings > limits.HTTP2_SETTINGS.maximum:
            raise _too_much(limits.HTTP2_SETTINGS, self._settings)
        self.has_begun = True
        for number, value in frames.decode_settings(bytes(view[begin:stop])):
            self._set(number, value)
        self._out.append(frames.SETTINGS_ACK)
        for stream in list(self._waiting):  # their windows may have grown
            self._continue(stream)

    def _set(self, number: int, value: int) -> None:
        if number == Setting.HEADER_TABLE_SIZE:
            self.encoder.resize(value)
        elif number == Setting.ENABLE_PUSH and value > 1:
            raise _protocol_error(f"ENABLE_PUSH {value}; allowed: 0, 1")
        elif number == Setting.INITIAL_WINDOW_SIZE:
            if value > WINDOW_MAX:
                raise Http2Error(
                    ErrorCode.FLOW_CONTROL_ERROR, f"window of {value}; allowed: {WINDOW_MAX}"
                )
            change, self.initial_window = value - self.initial_window, value
            if change:
                for stream in self.streams.values():
                    stream.window += change
                    if stream.window > WINDOW_MAX:
                        raise Http2Error(
                            ErrorCode.FLOW_CONTROL_ERROR,
                            f"the window of stream {stream.stream_id} exceeds {WINDOW_MAX}",
                        )
        elif number == Setting.MAX_FRAME_SIZE:
            if not PAYLOAD_BYTES_MAX <= value < 1 << 24:
                raise _protocol_error(
                    f"MAX_FRAME_SIZE {value}; allowed: {PAYLOAD_BYTES_MAX} to {(1 << 24) - 1}"
                )
            self._payload_bytes_max = min(value, 1 << 20)

    def _on_push_promise(
        self, view: memoryview, begin: int, stop: int, flags: int, stream_id: int
    ) -> None:
        raise _protocol_error("PUSH_PROMISE of a client")

    def _on_ping(self, view: memoryview, begin: int, stop: int, flags: int, stream_id: int) -> None:
        if stop - begin != 8:
            raise Http2Error(ErrorCode.FRAME_SIZE_ERROR, "PING has not 8 bytes")
        if stream_id:
            raise _protocol_error(f"PING of stream {stream_id}; allowed: 0")
        self._count_control_frame()
        if not flags & Flag.ACK:
            self._out.append(frames.frame(FrameType.PING, Flag.ACK, 0, bytes(view[begin:stop])))

    def _on_goaway(
        self, view: memoryview, begin: int, stop: int, flags: int, stream_id: int
    ) -> None:
        self._count_control_frame()
        if stop - begin < 8:
            raise Http2Error(ErrorCode.FRAME_SIZE_ERROR, "GOAWAY has less than 8 bytes")
        if stream_id:
            raise _protocol_error(f"GOAWAY of stream {stream_id}; allowed: 0")
        self.peer_has_ended = True

    def _on_window_update(
        self, view: memoryview, begin: int, stop: int, flags: int, stream_id: int
    ) -> None:
        if stop - begin != 4:
            raise Http2Error(ErrorCode.FRAME_SIZE_ERROR, "WINDOW_UPDATE has not 4 bytes")
        self._count_empty_frame()
        count = int.from_bytes(view[begin:stop], "big") & WINDOW_MAX
        if not stream_id:
            if not count:
                raise _protocol_error("WINDOW_UPDATE of 0 bytes")
            self.window += count
            if self.window > WINDOW_MAX:
                raise Http2Error(ErrorCode.FLOW_CONTROL_ERROR, f"the window exceeds {WINDOW_MAX}")
            self._send_unsent()
            return
        stream = self.streams.get(stream_id)
        if stream is None:
            if stream_id > self.last_stream_id:
                raise _protocol_error(f"WINDOW_UPDATE of stream {stream_id}, which is not open")
            return
        stream.window += count
        if not count or stream.window > WINDOW_MAX:
            code = ErrorCode.FLOW_CONTROL_ERROR if count else ErrorCode.PROTOCOL_ERROR
            raise _stream_error(stream_id, code, f"WINDOW_UPDATE of {count} bytes")
        self._continue(stream)

    # Floods -----------------------------------------------------------------------------------

    def _begin_second(self) -> None:
        if int(self.now) != self._second:
            self._second = int(self.now)
            self._control_frames = self._empty_frames = self._resets = self._settings = 0
            self._calls_before = self.call_count

    def _count_control_frame(self) -> None:
        self._begin_second()
        self._control_frames += 1
        if self._control_frames > limits.HTTP2_CONTROL_FRAMES.maximum:
            raise _too_much(limits.HTTP2_CONTROL_FRAMES, self._control_frames)

    def _count_empty_frame(self) -> None:
        self._begin_second()
        self._empty_frames += 1
        if self._empty_frames > limits.HTTP2_EMPTY_FRAMES.maximum:
            raise _too_much(limits.HTTP2_EMPTY_FRAMES, self._empty_frames)

    def _count_reset(self, stream: Stream | None) -> None:
        if stream is not None and self.now - stream.opened_at > _YOUNG_S:
            return
        self._begin_second()
        self._resets += 1
        if self._resets > limits.HTTP2_RESETS.maximum:
            raise _too_much(limits.HTTP2_RESETS, self._resets)

    def keep(self, change_bytes: int, open_bytes: int = 0) -> None:
        """Count bytes that a stream keeps.

        Args:
            change_bytes: Bytes of incomplete requests that it keeps, or, below 0, keeps no longer.
            open_bytes: Bytes of a call that begins; its end reduces ``open_bytes`` itself.
        """
        self.kept_bytes += change_bytes
        self.open_bytes += open_bytes
        limit, size = limits.HTTP2_KEPT_BYTES, self.kept_bytes + self.open_bytes
        if size > limit.maximum:
            raise _too_much(limit, size)

    # Output -----------------------------------------------------------------------------------

    def write(self, data: bytes | memoryview) -> None:
        """Add bytes to the output."""
        self._out.append(data)
        self.output_bytes += len(data)
        if not self._is_receiving:
            self._on_output()

    def take_output(self) -> list[bytes | memoryview]:
        """Return the bytes to write, in order."""
        out, self._out = self._out, []
        self.output_bytes = 0
        return out

    def send_data(self, stream: Stream, data: bytes) -> None:
        """Send data of an open stream; what exceeds the windows waits."""
        size = len(data)
        if (
            stream.unsent is None
            and size <= self.window
            and size <= stream.window
            and size <= PAYLOAD_BYTES_MAX
        ):
            self.window -= size
            stream.window -= size
            self._control_frames = 0
            self.write(HEAD.pack(size << 8, 0, stream.stream_id) + data)
            return
        if stream.unsent is None:
            stream.unsent = deque()
            stream.sent_at = self.now
            self._waiting[stream] = None
        stream.unsent.append(memoryview(data))
        stream.unsent_bytes += size
        self.unsent_bytes += size
        self._send_unsent_of(stream)

    def _send_unsent(self) -> None:
        for stream in list(self._blocked):
            if self.window <= 0:
                break
            self._continue(stream)

    def _continue(self, stream: Stream) -> None:
        """Send as much as a window now allows, and notify the stream if everything was sent."""
        if stream.unsent is not None:  # else an event of another stream has ended it
            is_sent = self._send_unsent_of(stream)
            if is_sent and not stream.has_ended:
                stream.on_sent()

    def _send_unsent_of(self, stream: Stream) -> bool:
        """Send as much as the windows allow, then the trailers; return whether all was sent."""
        waiting = stream.unsent
        assert waiting is not None, "the stream has no unsent data"
        room = min(self.window, stream.window, stream.unsent_bytes)
        if room > 0:
            stream.sent_at = self.now
            self._control_frames = 0
            self.window -= room
            stream.window -= room
            stream.unsent_bytes -= room
            self.unsent_bytes -= room
        while room > 0:
            data = waiting[0]
            size = min(room, len(data), self._payload_bytes_max)
            self.write(HEAD.pack(size << 8, 0, stream.stream_id))
            self.write(data[:size])
            room -= size
            if size == len(data):
                waiting.popleft()
            else:
                waiting[0] = data[size:]
        # At the end, after the others: streams share the window of the connection.
        self._blocked.pop(stream, None)
        if stream.unsent_bytes:
            if stream.window > 0:
                self._blocked[stream] = None
            return False
        stream.unsent = None
        del self._waiting[stream]
        if stream.trailers is not None:
            stream.send_trailers(stream.trailers)
        return True

    # Ends -------------------------------------------------------------------------------------

    def close_stream(self, stream: Stream) -> None:
        """Close a stream whose end was just sent."""
        if not stream.is_ended:
            # The peer need not send the rest of its request.
            self.write(frames.rst_stream(stream.stream_id, ErrorCode.NO_ERROR))
            self._remember_reset(stream.stream_id)
        self._forget(stream)

    def reset(self, stream: Stream, code: int) -> None:
        """Reset a stream."""
        self._forget(stream)
        self._remember_reset(stream.stream_id)
        self.write(frames.rst_stream(stream.stream_id, code))

    def _reset_stream(self, error: Http2Error) -> None:
        """Reset a stream because of an error of the peer."""
        stream_id = error.stream_id
        stream = self.streams.get(stream_id)
        self._remember_reset(stream_id)
        self._out.append(frames.rst_stream(stream_id, error.code))
        if stream is not None:
            self._forget(stream)
            stream.on_reset()
        self._count_reset(None)

    def _remember_reset(self, stream_id: int) -> None:
        ids = self._reset_ids
        ids[stream_id] = None
        if len(ids) > _RESETS_KEPT:
            del ids[next(iter(ids))]

    def _forget(self, stream: Stream) -> None:
        stream.has_ended = True
        self.streams.pop(stream.stream_id, None)
        if stream.unsent is not None:
            self.unsent_bytes -= stream.unsent_bytes
            stream.unsent = None
            stream.unsent_bytes = 0
            del self._waiting[stream]
            self._blocked.pop(stream, None)

    def fail(self, error: Http2Error) -> None:
        """End the connection because of an error: the output has the reason for the peer."""
        if self.failure is None:
            if not self._has_preface:
                self._out.append(_OWN_SETTINGS)  # the first frame, whatever follows
            reason = excerpt(error.reason, _REASON_LETTERS).encode(errors="replace")
            self.write(frames.goaway(self.last_stream_id, error.code, reason))
            self.failure = error.with_traceback(None)  # which has this connection

    def drain(self) -> None:
        """Ask the peer to open no more streams; further ones are served nevertheless."""
        if self._has_preface and self.failure is None:
            self.write(frames.goaway(STREAM_MASK, ErrorCode.NO_ERROR))

    def shut_down(self) -> None:
        """Accept no more streams."""
        if not self.is_ending and self.failure is None:
            self.is_ending = True
            if self._has_preface:
                self.write(frames.goaway(self.last_stream_id, ErrorCode.NO_ERROR))

    def expire(self, now: float) -> None:
        """Reset streams whose data the peer does not let through."""
        self.now = max(now, self.now)
        if not self._waiting:
            return
        limit_s = limits.HTTP2_STALLED_MS.maximum / 1000
        for stream in [each for each in self._waiting if now - each.sent_at > limit_s]:
            self.reset(stream, ErrorCode.CANCEL)
            stream.on_reset()

    def lost(self) -> None:
        """Handle the end of the connection: all streams are cancelled."""
        streams: Iterable[Any] = list(self.streams.values())
        for stream in streams:
            self._forget(stream)
            stream.on_reset()
        self.take_output()


_OF_BLOCKS = (FrameType.HEADERS, FrameType.CONTINUATION)
_OTHERS: dict[int, Callable[[Http2Connection, memoryview, int, int, int, int], None]] = {
    FrameType.PRIORITY: Http2Connection._on_priority,
    FrameType.RST_STREAM: Http2Connection._on_rst_stream,
    FrameType.SETTINGS: Http2Connection._on_settings,
    FrameType.PUSH_PROMISE: Http2Connection._on_push_promise,
    FrameType.PING: Http2Connection._on_ping,
    FrameType.GOAWAY: Http2Connection._on_goaway,
    FrameType.WINDOW_UPDATE: Http2Connection._on_window_update,
    FrameType.CONTINUATION: Http2Connection._on_continuation,
}
"""Handlers of the less frequent frames: ``view``, begin and end of the payload, flags, stream."""


def _protocol_error(reason: str) -> Http2Error:
    return Http2Error(ErrorCode.PROTOCOL_ERROR, reason)


def _stream_error(stream_id: int, code: int, reason: str) -> Http2Error:
    return Http2Error(code, f"stream {stream_id}: {reason}", stream_id)


def _too_much(
    limit: Limit, value: int, code: int = ErrorCode.ENHANCE_YOUR_CALM, stream_id: int = 0
) -> Http2Error:
    return Http2Error(code, str(limit.exceeded(value)), stream_id, limit.name)


def _without_padding(view: memoryview, begin: int, stop: int) -> tuple[int, int]:
    if begin == stop:
        raise Http2Error(ErrorCode.FRAME_SIZE_ERROR, "the frame has no length of its padding")
    begin, stop = begin + 1, stop - view[begin]
    if stop < begin:
        raise _protocol_error("the padding is longer than the frame")
    return begin, stop
