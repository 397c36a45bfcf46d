"""The server's side of HTTP/2: streams, windows, floods, ends; h2spec judges the rules."""

import pytest

import http2_peer as wire
from http2_peer import HELLO, REQUEST, Frame, Http2Peer
from reput.grpc import limits
from reput.grpc.http2 import frames
from reput.grpc.http2.connection import CONNECTION_WINDOW, STREAM_WINDOW
from reput.grpc.http2.frames import PREFACE, ErrorCode, Flag, FrameType, Setting

REPLY = ((b":status", b"200"),)
OWN_SETTINGS = [
    (Setting.MAX_CONCURRENT_STREAMS, limits.HTTP2_STREAMS.maximum),
    (Setting.INITIAL_WINDOW_SIZE, STREAM_WINDOW),
    (Setting.MAX_HEADER_LIST_SIZE, limits.HTTP2_HEADER_BYTES.maximum),
]


def goaway(received: list[Frame]) -> tuple[int, bytes]:
    """Return code and reason of the end of a connection, which is the last frame."""
    last = received[-1]
    assert last.kind == FrameType.GOAWAY
    return int.from_bytes(last.payload[4:8], "big"), last.payload[8:]


def resets(received: list[Frame]) -> list[tuple[int, int]]:
    return [
        (frame.stream_id, int.from_bytes(frame.payload, "big"))
        for frame in received
        if frame.kind == FrameType.RST_STREAM
    ]


def data_sizes(received: list[Frame]) -> list[int]:
    return [len(frame.payload) for frame in received if frame.kind == FrameType.DATA]


def updates(received: list[Frame]) -> list[tuple[int, int]]:
    return [
        (frame.stream_id, int.from_bytes(frame.payload, "big"))
        for frame in received
        if frame.kind == FrameType.WINDOW_UPDATE
    ]


# --- begin --------------------------------------------------------------------------------------


def test_nothing_is_sent_before_the_preface_and_then_settings_are_first() -> None:
    peer = Http2Peer(hello=b"")
    assert peer.send(PREFACE[:10]) == []
    received = peer.send(PREFACE[10:] + frames.settings(()))
    assert [frame.kind for frame in received] == [
        FrameType.SETTINGS,
        FrameType.WINDOW_UPDATE,
        FrameType.SETTINGS,
    ]
    assert frames.decode_settings(received[0].payload) == OWN_SETTINGS
    assert received[2].flags == Flag.ACK
    assert peer.connection.has_begun


def test_another_protocol_is_refused_with_its_first_bytes() -> None:
    received = Http2Peer(hello=b"").send(b"GET / HTTP/1.1\r\n\r\n")
    assert received[0].kind == FrameType.SETTINGS
    code, reason = goaway(received)
    assert code == ErrorCode.PROTOCOL_ERROR
    assert b"GET / HTTP/1.1" in reason


@pytest.mark.parametrize("first", [wire.ping(), wire.data(1), frames.window_update(0, 1)])
def test_settings_come_first(first: bytes) -> None:
    peer = Http2Peer(hello=PREFACE)
    assert goaway(peer.send(first))[0] == ErrorCode.PROTOCOL_ERROR


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_pieces_of_any_size_are_the_same(size: int) -> None:
    peer = Http2Peer(hello=b"")
    sent = HELLO + peer.call(1, b"a" * 100) + wire.ping() + peer.call(3, b"b")
    received = []
    for begin in range(0, len(sent), size):
        received += peer.send(sent[begin : begin + size])
    assert [stream.events[1:] for stream in peer.opened] == [
        [b"\0\0\0\0\x64" + b"a" * 100, "end"],
        [b"\0\0\0\0\x01b", "end"],
    ]
    assert received[-1] == Frame(FrameType.PING, Flag.ACK, 0, b"12345678")


# --- requests -----------------------------------------------------------------------------------


def test_padding_priority_and_continuation_are_taken() -> None:
    peer = Http2Peer()
    block = peer.encoder.encode(REQUEST)
    flags = Flag.PADDED | Flag.PRIORITY
    peer.send(
        frames.frame(FrameType.HEADERS, flags, 1, b"\x02\0\0\0\0\x10" + block[:9] + b"\0\0"),
        frames.frame(FrameType.CONTINUATION, 0, 1, block[9:20]),
        frames.frame(FrameType.CONTINUATION, Flag.END_HEADERS, 1, block[20:]),
        wire.data(1, b"\x03abc\0\0\0", flags=Flag.PADDED),
        wire.data(1, b"d"),
        peer.headers(1, ((b"a", b"b"),), flags=Flag.END_HEADERS | Flag.END_STREAM),
    )
    assert peer.opened[0].events == [dict(REQUEST), b"abc", b"d", "end"]


def test_equal_names_are_joined() -> None:
    peer = Http2Peer()
    more = ((b"a", b"1"), (b"cookie", b"x"), (b"a", b"2"), (b"cookie", b"y"))
    peer.send(peer.headers(1, (*REQUEST, *more)))
    assert peer.opened[0].events == [{**dict(REQUEST), b"a": b"1,2", b"cookie": b"x; y"}]


@pytest.mark.parametrize(
    "fields",
    [
        REQUEST[1:],
        REQUEST[:1] + REQUEST[2:],
        REQUEST[:2] + REQUEST[3:],
        (*REQUEST, REQUEST[0]),
        (*REQUEST[:2], *REQUEST[4:], *REQUEST[2:4]),
        (*REQUEST[:4], (b":status", b"200")),
        (*REQUEST, (b"Upper", b"1")),
        (*REQUEST, (b"", b"1")),
        (*REQUEST, (b"a b", b"1")),
        (*REQUEST, (b"connection", b"close")),
        (*REQUEST[:4], (b"te", b"gzip")),
        (*REQUEST, (b"a", b"x\ny")),
        (*REQUEST, (b"a", b"x\0y")),
        (*REQUEST, (b"a", b"x\r")),
        (*REQUEST, (b"a", b" x")),
        (*REQUEST, (b"a", b"x\t")),
        (*REQUEST, (b"content-length", b"-1")),
    ],
)
def test_a_malformed_request_is_reset_and_the_next_one_is_served(fields: tuple) -> None:
    peer = Http2Peer()
    received = peer.send(peer.headers(1, fields), peer.headers(3))
    assert resets(received) == [(1, ErrorCode.PROTOCOL_ERROR)]
    assert peer.connection.failure is None
    assert 3 in peer.connection.streams


def test_late_frames_of_a_stream_that_was_reset_here_are_ignored() -> None:
    peer = Http2Peer()
    peer.send(peer.headers(1))
    peer.opened[0].reset(ErrorCode.CANCEL)
    assert resets(peer.received()) == [(1, ErrorCode.CANCEL)]
    assert peer.send(wire.data(1, b"late"), peer.headers(1), frames.window_update(1, 5)) == []
    assert peer.opened[0].events == [dict(REQUEST)]


def passes_of(peer: Http2Peer, sent: bytes) -> int:
    """Return the number of passes that the frames of one read take."""
    view, position, passes = memoryview(sent), 0, 0
    while position < len(sent):
        position = peer.connection.receive(view, position, len(sent), 0.0)
        passes += 1
        assert peer.connection.has_more == (position < len(sent))
    return passes


def test_frames_of_one_read_are_handled_in_passes() -> None:
    peer = Http2Peer()
    assert passes_of(peer, b"".join(peer.call(2 * number + 1) for number in range(80))) == 3
    assert len(peer.opened) == 80
    peer = Http2Peer()
    assert passes_of(peer, b"".join(map(peer.headers, range(1, 257, 2)))) == 2
    peer = Http2Peer()
    large = (*REQUEST, *((b"a%d" % number, bytes(b"x" * 900)) for number in range(10)))
    assert passes_of(peer, b"".join(peer.headers(n, large) for n in (1, 3, 5, 7))) == 4


# --- windows ------------------------------------------------------------------------------------


def test_windows_of_the_peer_are_topped_up_when_half_is_used() -> None:
    peer = Http2Peer()
    received = peer.send(peer.headers(1))
    chunk = bytes(16_384)
    for _ in range(STREAM_WINDOW // 2 // len(chunk)):
        received += peer.send(wire.data(1, chunk))
    assert updates(received) == []
    assert updates(peer.send(wire.data(1, chunk))) == [(1, STREAM_WINDOW // 2 + len(chunk))]
    for _ in range(CONNECTION_WINDOW // 2 // len(chunk)):
        received += peer.send(wire.data(1, chunk))
    of_connection = [count for stream_id, count in updates(received) if not stream_id]
    assert of_connection == [CONNECTION_WINDOW // 2 + len(chunk)]


def test_data_waits_for_the_windows_of_its_stream_and_holds_up_no_other() -> None:
    peer = Http2Peer()
    peer.send(frames.settings(((Setting.INITIAL_WINDOW_SIZE, 10),)), *map(peer.headers, (1, 3)))
    first, second = peer.opened
    first.send_headers(peer.connection.encoder.encode(REPLY))
    first.send_data(b"x" * 25)
    first.send_trailers(((b"grpc-status", b"0"),))
    assert first.unsent_bytes == peer.connection.unsent_bytes == 15
    second.send_data(b"y" * 10)
    received = peer.received()
    assert [(frame.stream_id, len(frame.payload)) for frame in received[1:]] == [(1, 10), (3, 10)]
    assert data_sizes(peer.send(frames.window_update(1, 14))) == [14]
    received = peer.send(frames.window_update(1, 100))
    assert [frame.kind for frame in received[:2]] == [FrameType.DATA, FrameType.HEADERS]
    assert received[1].flags & Flag.END_STREAM
    assert peer.connection.unsent_bytes == 0


def test_the_window_of_the_connection_is_shared() -> None:
    peer = Http2Peer()
    peer.send(
        frames.settings(((Setting.INITIAL_WINDOW_SIZE, 1 << 20),)), *map(peer.headers, (1, 3))
    )
    for stream in peer.opened:
        stream.send_data(b"z" * 100_000)
    assert sum(data_sizes(peer.received())) == 65_535
    received = peer.send(frames.window_update(0, 50_000))
    assert sum(data_sizes(received)) == 50_000
    received = peer.send(frames.window_update(0, 200_000))
    assert sum(data_sizes(received)) == 200_000 - 65_535 - 50_000
    assert max(data_sizes(received)) <= 16_384
    assert [stream.events[-1] for stream in peer.opened] == ["sent", "sent"]


def test_a_window_may_become_negative() -> None:
    peer = Http2Peer()
    peer.send(frames.settings(((Setting.INITIAL_WINDOW_SIZE, 10),)), peer.headers(1))
    stream = peer.opened[0]
    stream.send_data(b"x" * 20)
    assert data_sizes(peer.received()) == [10]
    peer.send(frames.settings(((Setting.INITIAL_WINDOW_SIZE, 5),)))
    assert stream.window == -5
    assert data_sizes(peer.send(frames.window_update(1, 5))) == []
    # The acknowledgement comes before what the settings allow.
    received = peer.send(frames.settings(((Setting.INITIAL_WINDOW_SIZE, 8),)))
    assert [frame.kind for frame in received] == [FrameType.SETTINGS, FrameType.DATA]
    assert data_sizes(received) == [3]


def test_more_than_the_window_is_an_error() -> None:
    peer = Http2Peer()
    peer.send(peer.headers(1))
    peer.opened[0].receive_window = 5
    assert resets(peer.send(wire.data(1, b"123456"))) == [(1, ErrorCode.FLOW_CONTROL_ERROR)]
    assert peer.opened[0].events[-1] == "reset"
    peer.connection._receive_window = 5
    assert goaway(peer.send(wire.data(1, b"123456")))[0] == ErrorCode.FLOW_CONTROL_ERROR


# --- ends ---------------------------------------------------------------------------------------


def test_an_answer_before_the_end_of_the_request_ends_it() -> None:
    peer = Http2Peer()
    peer.send(peer.headers(1))
    peer.opened[0].send_headers(peer.connection.encoder.encode(REPLY), is_end=True)
    received = peer.received()
    assert resets(received) == [(1, ErrorCode.NO_ERROR)]
    assert not peer.connection.streams
    assert peer.send(wire.data(1, b"more", is_end=True)) == []


def test_a_cancelled_stream_gets_no_answer() -> None:
    peer = Http2Peer()
    peer.send(frames.settings(((Setting.INITIAL_WINDOW_SIZE, 0),)), peer.headers(1))
    stream = peer.opened[0]
    stream.send_data(b"waits")
    peer.send(frames.rst_stream(1, ErrorCode.CANCEL))
    assert stream.events[-1] == "reset"
    assert peer.connection.unsent_bytes == 0
    stream.send_data(b"late")
    stream.send_trailers(REPLY)
    stream.reset(ErrorCode.CANCEL)
    assert peer.received() == []


def test_an_end_in_peace() -> None:
    peer = Http2Peer()
    peer.send(peer.headers(1))
    peer.connection.drain()
    assert peer.received()[-1].payload[:4] == b"\x7f\xff\xff\xff"
    peer.send(peer.headers(3))
    assert len(peer.opened) == 2
    peer.connection.shut_down()
    assert peer.received()[-1].payload == b"\0\0\0\x03\0\0\0\0"
    assert resets(peer.send(peer.headers(5))) == [(5, ErrorCode.REFUSED_STREAM)]
    peer.connection.lost()
    assert [stream.events[-1] for stream in peer.opened] == ["reset", "reset"]


# --- floods -------------------------------------------------------------------------------------


def flooded(peer: Http2Peer, flood: bytes, count: int) -> str:
    """Send a flood; return the limit that ends it. One less is no flood."""
    assert count
    for _ in range(count):
        peer.send(flood)
    assert peer.connection.failure is None
    code, reason = goaway(peer.send(flood))
    assert code == ErrorCode.ENHANCE_YOUR_CALM
    failure = peer.connection.failure
    assert failure is not None
    assert failure.limit.encode() in reason
    assert peer.send(peer.call(101)) == []
    return failure.limit


def test_pings() -> None:
    assert flooded(Http2Peer(), wire.ping(), 100) == "http2_control_frames"


def test_settings() -> None:
    assert flooded(Http2Peer(), frames.settings(()), 19) == "http2_settings"  # and that of HELLO


def test_window_updates() -> None:
    assert flooded(Http2Peer(), frames.window_update(0, 1), 10_000) == "http2_empty_frames"


@pytest.mark.parametrize(
    "flood",
    [
        wire.data(1),
        wire.data(1, b"\x00", flags=Flag.PADDED),
        frames.frame(FrameType.PRIORITY, 0, 1, b"\0\0\0\0\x01"),
        frames.frame(99, 0, 0, b"unknown"),
        frames.SETTINGS_ACK,
    ],
)
def test_frames_without_effect(flood: bytes) -> None:
    peer = Http2Peer()
    peer.send(peer.headers(1))
    peer.connection._empty_frames = 9_000
    assert flooded(peer, flood, 1_000) == "http2_empty_frames"


def test_pings_between_calls_are_no_flood() -> None:
    peer = Http2Peer()
    for number in range(1_000):
        peer.send(peer.headers(2 * number + 1) + wire.data(2 * number + 1, b"x", is_end=True))
        peer.opened[-1].send_headers(b"\x88", is_end=True)
        received = peer.send(wire.ping())
        assert received[-1].kind == FrameType.PING
    # Neither are pings over a longer time.
    for second in range(10):
        peer.now = second + 0.5
        for _ in range(90):
            peer.send(wire.ping())
    assert peer.connection.failure is None


def test_rapid_resets() -> None:
    peer = Http2Peer()
    for number in range(500):
        stream_id = 2 * number + 1
        peer.send(peer.headers(stream_id) + frames.rst_stream(stream_id, ErrorCode.CANCEL))
    assert peer.connection.failure is None
    received = peer.send(peer.headers(1001) + frames.rst_stream(1001, ErrorCode.CANCEL))
    assert goaway(received)[0] == ErrorCode.ENHANCE_YOUR_CALM
    assert [stream.events[-1] for stream in peer.opened] == ["reset"] * 501


def test_resets_that_the_peer_makes_this_side_send() -> None:
    peer = Http2Peer()
    for number in range(250):
        stream_id = 2 * number + 1
        peer.send(peer.headers(stream_id) + frames.window_update(stream_id, 0))
        assert stream_id not in peer.connection.streams
    for number in range(250, 500):
        assert resets(peer.send(peer.headers(2 * number + 1, REQUEST[1:])))
    assert goaway(peer.send(peer.headers(1001, REQUEST[1:])))[0] == ErrorCode.ENHANCE_YOUR_CALM


def test_old_calls_may_all_be_cancelled_at_once() -> None:
    peer = Http2Peer()
    ids = range(1, 4001, 2)
    peer.send(*map(peer.headers, ids))
    peer.now = 5.0
    peer.send(*(frames.rst_stream(stream_id, ErrorCode.CANCEL) for stream_id in ids))
    assert peer.connection.failure is None
    assert not peer.connection.streams


def test_answered_calls_may_all_be_cancelled_at_once() -> None:
    """As by a client whose deadlines pass before it reads the answers."""
    peer = Http2Peer()
    ids = range(1, 40_001, 2)
    for stream_id in ids:
        peer.send(peer.headers(stream_id, flags=Flag.END_HEADERS | Flag.END_STREAM))
        peer.opened[-1].send_headers(b"\x88", is_end=True)
    assert not peer.connection.streams
    peer.send(*(frames.rst_stream(stream_id, ErrorCode.CANCEL) for stream_id in ids))
    assert peer.connection.failure is None
    again = frames.rst_stream(1, ErrorCode.CANCEL)
    assert flooded(peer, again, 10_000) == "http2_empty_frames"


def test_continuations() -> None:
    peer = Http2Peer()
    peer.send(peer.headers(1, flags=0))
    empty = frames.frame(FrameType.CONTINUATION, 0, 1)
    for _ in range(8):
        assert peer.send(empty) == []
    code, reason = goaway(peer.send(empty))
    assert code == ErrorCode.ENHANCE_YOUR_CALM
    assert b"http2_continuations" in reason


def test_a_large_header_block() -> None:
    peer = Http2Peer()
    peer.send(peer.headers(1, flags=0))
    received = peer.send(frames.frame(FrameType.CONTINUATION, 0, 1, bytes(16_384)))
    assert b"http2_header_bytes" in goaway(received)[1]


def test_a_header_bomb() -> None:
    peer = Http2Peer()
    entry = b"\x40\x01a" + b"\x7f\xa1\x1e" + b"x" * 4000  # takes 4,033 bytes of the table
    block = peer.encoder.encode(REQUEST) + entry
    end = Flag.END_HEADERS | Flag.END_STREAM
    received = peer.send(
        frames.frame(FrameType.HEADERS, end, 1, block),
        # 48 MB if it was unpacked, in 12 KB
        frames.frame(FrameType.HEADERS, end, 3, peer.encoder.encode(REQUEST) + b"\xbe" * 12_000),
        # few fields, but more than 16 KiB
        frames.frame(FrameType.HEADERS, end, 5, peer.encoder.encode(REQUEST) + b"\xbe" * 5),
        frames.frame(FrameType.HEADERS, end, 7, peer.encoder.encode(REQUEST) + b"\xbe"),
    )
    assert resets(received) == [
        (3, ErrorCode.ENHANCE_YOUR_CALM),
        (5, ErrorCode.ENHANCE_YOUR_CALM),
    ]
    assert [stream.stream_id for stream in peer.opened] == [1, 7]


def test_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "HTTP2_STREAMS", limits.HTTP2_STREAMS.at(3))
    peer = Http2Peer()
    received = peer.send(*map(peer.headers, (1, 3, 5, 7)))
    assert resets(received) == [(7, ErrorCode.REFUSED_STREAM)]
    peer.opened[0].send_headers(b"\x88", is_end=True)
    peer.send(peer.headers(9))
    assert sorted(peer.connection.streams) == [3, 5, 9]


def test_a_stalled_stream_is_reset() -> None:
    peer = Http2Peer()
    peer.send(*map(peer.headers, (1, 3)))
    first, second = peer.opened
    first.send_data(b"x" * 100_000)
    peer.now = 50.0
    peer.send(frames.window_update(0, 100_000))
    second.send_data(b"y" * 100_000)
    peer.received()
    peer.connection.expire(60.5)
    assert resets(peer.received()) == [(1, ErrorCode.CANCEL)]
    assert first.events[-1] == "reset"
    assert peer.connection.unsent_bytes == second.unsent_bytes > 0
    peer.connection.expire(111.0)
    assert resets(peer.received()) == [(3, ErrorCode.CANCEL)]
    assert peer.connection.unsent_bytes == 0


def test_window_updates_cost_nothing_for_stalled_streams() -> None:
    peer = Http2Peer()
    peer.send(frames.settings(((Setting.INITIAL_WINDOW_SIZE, 1),)))
    peer.send(*map(peer.headers, range(1, 2001, 2)))
    for stream in peer.opened:
        stream.send_data(b"xyz")
    peer.received()
    assert len(peer.connection._waiting) == 1000
    assert not peer.connection._blocked
