"""Random bytes, frames and calls into a gRPC connection: documented answers, and nothing else.

The package h2 is the client of valid conversations: it checks each frame of the server.
"""

import random
from typing import Any

import pytest
from hypothesis import given, strategies as st

import http2_peer as wire
import seeds
from http2_peer import HELLO, REQUEST, Http2Peer, echo_service, grpc_peer
from reput.grpc.http2 import frames, messages
from reput.grpc.http2.call_reader import CallReader, HeaderTable
from reput.grpc.http2.frames import FrameType
from reput.grpc.http2.grpc import Call, server_stream
from reput.grpc.kernels import call_words, native

needs_kernels = pytest.mark.skipif(not native.is_compiled(), reason="there are no compiled kernels")
PATHS = [b"/test.Service/" + name for name in (b"Echo", b"Later", b"Chat", b"Many", b"None")]


def peer_of_all(later: list[Call]) -> Http2Peer:
    def many(call: Call, message: bytes) -> None:
        call.send(*[message] * (len(message) % 5))
        call.finish()

    service = echo_service(later, **{"/test.Service/Many": server_stream(many)})
    return grpc_peer(service, hello=b"")


def check(peer: Http2Peer) -> None:
    """Check what must be true after any input."""
    connection = peer.connection
    streams = list(connection.streams.values())
    assert connection.open_bytes == sum(stream._open_bytes for stream in streams)  # type: ignore[attr-defined]
    assert connection.kept_bytes == sum(stream._kept_bytes for stream in streams)  # type: ignore[attr-defined]
    assert connection.unsent_bytes == sum(stream.unsent_bytes for stream in streams)
    assert set(connection._waiting) == {stream for stream in streams if stream.unsent is not None}
    assert set(connection._blocked) <= set(connection._waiting)
    is_too_large = any(stream.window > frames.WINDOW_MAX for stream in streams)
    assert not is_too_large or connection.failure is not None


@st.composite
def any_frame(draw: st.DrawFn) -> bytes:
    kind = draw(st.integers(0, 11))
    flags = draw(st.sampled_from([0, 1, 4, 5, 8, 9, 0x0D, 0x20, 0x25, 0x2D, 0xFF]))
    stream_id = draw(st.sampled_from([0, 1, 1, 3, 3, 5, 7, 2, (1 << 31) - 1]))
    number = st.sampled_from([0, 1, 5, 100, 65_535, (1 << 31) - 1, (1 << 32) - 1])
    if kind == FrameType.SETTINGS:
        pairs = st.lists(st.tuples(st.integers(0, 7), number), max_size=3)
        payload = frames.settings(draw(pairs))[9:]
    elif kind in (FrameType.WINDOW_UPDATE, FrameType.RST_STREAM):
        payload = draw(number).to_bytes(4, "big")
    elif kind == FrameType.DATA and draw(st.booleans()):
        payload = messages.encode(draw(st.binary(max_size=20)))
    else:
        payload = draw(st.binary(max_size=40))
    return frames.frame(kind, flags, stream_id, payload)


@st.composite
def conversation(draw: st.DrawFn) -> list[bytes]:
    """Frames that begin validly, some of them damaged."""
    peer = Http2Peer(hello=b"")
    pieces = [HELLO]
    stream_id = 1
    for _ in range(draw(st.integers(1, 12))):
        choice = draw(st.integers(0, 5))
        if choice <= 2:
            more = draw(
                st.lists(
                    st.sampled_from(
                        [(b"grpc-timeout", b"1S"), (b"x-mq-client-id", b"c"), (b"a", b"b" * 50)]
                    ),
                    max_size=2,
                )
            )
            message = draw(st.binary(max_size=300))
            pieces.append(peer.call(stream_id, message, *more, path=draw(st.sampled_from(PATHS))))
            stream_id += 2
        elif choice == 3:
            pieces.append(peer.headers(stream_id, REQUEST))
            stream_id += 2
        else:
            pieces.append(draw(any_frame()))
    for _ in range(draw(st.integers(0, 2))):
        index = draw(st.integers(1, len(pieces) - 1))
        damaged = bytearray(pieces[index])
        position = draw(st.integers(0, len(damaged) - 1))
        damaged[position] ^= 1 << draw(st.integers(0, 7))
        pieces[index] = bytes(damaged)
    return pieces


KERNEL_BUFFER = bytearray((1 << 16) + call_words.SLACK)


@needs_kernels
@given(conversation())
def test_a_kernel_makes_no_difference(pieces: list[bytes]) -> None:
    """Each call gets the same answer; answers of other calls may come in another order."""
    sent = b"".join(pieces)
    expected, later = peer_of_all([]), peer_of_all([])
    later.connection.reader = CallReader(KERNEL_BUFFER, ())
    later.connection._table = HeaderTable()  # as of a busy connection
    KERNEL_BUFFER[: len(sent)] = sent
    for peer, view in ((expected, memoryview(sent)), (later, memoryview(KERNEL_BUFFER))):
        position = 0
        while True:
            position = peer.connection.receive(view, position, len(sent), 1.0)
            if not peer.connection.has_more:
                break
        check(peer)
    first, second = expected.received(), later.received()
    assert _answers(expected, second=first) == _answers(later, second=second)
    ours, theirs = expected.connection, later.connection
    assert list(ours.streams) == list(theirs.streams)
    assert (ours.window, ours.call_count) == (theirs.window, theirs.call_count)
    assert ours.last_stream_id == theirs.last_stream_id
    assert ours._receive_window == theirs._receive_window


def _answers(peer: Http2Peer, second: list[wire.Frame]) -> object:
    replies = wire.Replies(peer).add(second)
    others = sorted(frame for frame in second if frame.kind > FrameType.HEADERS)
    return replies.fields, replies.data, replies.resets, replies.ends, others


def output_of(sent: bytes, sizes: list[int], later: list[Call]) -> bytes:
    """Return the answers to bytes that arrive in pieces."""
    peer = peer_of_all(later)
    out = []
    kept = b""
    position = 0
    for size in [*sizes, len(sent)]:
        kept += sent[position : position + size]
        position += size
        begin = 0
        while True:
            begin = peer.connection.receive(memoryview(kept), begin, len(kept), 1.0)
            if not peer.connection.has_more:
                break
        kept = kept[begin:]
        out += peer.connection.take_output()
        check(peer)
    return b"".join(out)


@given(conversation(), st.lists(st.integers(1, 60), max_size=10))
def test_pieces_make_no_difference(pieces: list[bytes], sizes: list[int]) -> None:
    sent = b"".join(pieces)
    later: list[Call] = []
    whole = output_of(sent, [], later)
    wire.split(whole)
    assert output_of(sent, sizes, []) == whole
    for call in later:
        call.reply(b"later")
        call.cancel()


@given(st.binary(max_size=400))
def test_random_bytes(sent: bytes) -> None:
    for hello in (b"", HELLO):
        wire.split(output_of(hello + sent, [], []))


def damaged(chance: random.Random) -> bytes:
    """Return a conversation with damage in a few places."""
    peer = Http2Peer(hello=b"")
    pieces = [HELLO]
    for number in range(chance.randrange(1, 6)):
        message = chance.randbytes(chance.choice((0, 5, 100)))
        pieces.append(peer.call(2 * number + 1, message, path=chance.choice(PATHS)))
        if chance.random() < 0.3:
            window = chance.choice((0, 1, 100_000, frames.WINDOW_MAX))
            pieces.append(frames.settings(((chance.randrange(1, 7), window),)))
        if chance.random() < 0.3:
            pieces.append(frames.window_update(chance.choice((0, 1, 3)), chance.randrange(1 << 31)))
        if chance.random() < 0.2:
            pieces.append(frames.rst_stream(chance.choice((1, 3)), chance.randrange(15)))
    sent = bytearray(b"".join(pieces))
    for _ in range(chance.randrange(4)):
        position = chance.randrange(len(HELLO), len(sent))
        match chance.randrange(4):
            case 0:
                sent[position] ^= 1 << chance.randrange(8)
            case 1:
                sent[position] = chance.choice((0, 1, 0x7F, 0x80, 0xFF))
            case 2:
                del sent[position : position + chance.randrange(20)]
            case _:
                sent[position:position] = chance.randbytes(chance.randrange(1, 12))
    return bytes(sent)


@pytest.mark.parametrize("count", [1_000, pytest.param(1_000_000, marks=pytest.mark.soak)], ids=str)
def test_damaged_conversations(count: int) -> None:
    for seed in range(count):
        sent = damaged(seeds.random("http2", seed))
        wire.split(output_of(sent, [seed % len(sent)], []))


# --- h2 -----------------------------------------------------------------------------------------


def exchange(client: Any, peer: Http2Peer, events: dict[str, list[Any]]) -> None:
    """Pass bytes both ways until both sides are silent."""
    while True:
        sent = client.data_to_send()
        received = b"".join(
            frames.frame(frame.kind, frame.flags, frame.stream_id, frame.payload)
            for frame in peer.send(sent)
        )
        check(peer)
        if not sent and not received:
            return
        for event in client.receive_data(received):
            events.setdefault(type(event).__name__, []).append(event)


@given(st.integers(0, 1 << 32))
def test_h2_understands_every_answer(seed: int) -> None:
    pytest.importorskip("h2", reason="the package h2 is not installed: the client")
    from h2.config import H2Configuration
    from h2.connection import H2Connection
    from h2.errors import ErrorCodes
    from h2.settings import SettingCodes

    chance = seeds.random("http2", seed)
    client = H2Connection(H2Configuration(client_side=True, header_encoding="utf-8"))
    client.initiate_connection()
    window = chance.choice([0, 10, 1000, 65_535])
    client.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: window})
    later: list[Call] = []
    peer = peer_of_all(later)
    events: dict[str, list[Any]] = {}
    wanted: dict[int, list[bytes]] = {}
    reset: set[int] = set()
    for _ in range(chance.randrange(1, 15)):
        choice = chance.random()
        open_ids = [n for n in wanted if n not in reset]
        if choice < 0.5:
            stream_id = client.get_next_available_stream_id()
            path = chance.choice(["Echo", "Many", "Later"])
            message = chance.randbytes(chance.choice([0, 3, 40, 2000]))
            client.send_headers(
                stream_id,
                [
                    (":method", "POST"),
                    (":scheme", "http"),
                    (":path", f"/test.Service/{path}"),
                    (":authority", "test"),
                    ("te", "trailers"),
                    ("content-type", "application/grpc"),
                    ("x-mq-request-id", f"{chance.random()}"),
                ],
            )
            body = messages.encode(message)
            cut = chance.randrange(len(body))
            client.send_data(stream_id, body[:cut])
            if chance.random() < 0.3:
                exchange(client, peer, events)
            client.send_data(stream_id, body[cut:], end_stream=True)
            count = {"Echo": 1, "Many": len(message) % 5, "Later": 1}[path]
            wanted[stream_id] = [b"later" if path == "Later" else message] * count
        elif choice < 0.6 and open_ids:
            stream_id = chance.choice(open_ids)
            reset.add(stream_id)
            if stream_id in peer.connection.streams:
                client.reset_stream(stream_id, ErrorCodes.CANCEL)
        elif choice < 0.7:
            client.ping(b"12345678")
        elif choice < 0.8 and later:
            later.pop(chance.randrange(len(later))).reply(b"later")
        else:
            client.increment_flow_control_window(chance.randrange(1, 5000))
        if chance.random() < 0.7:
            exchange(client, peer, events)
    exchange(client, peer, events)
    for call in later:
        call.reply(b"later")
    exchange(client, peer, events)
    for _ in range(60):
        if not peer.connection.streams:
            break
        client.increment_flow_control_window(10_000)
        for stream_id in peer.connection.streams:
            client.increment_flow_control_window(5_000, stream_id)
        exchange(client, peer, events)
    assert peer.connection.failure is None
    assert not peer.connection.streams
    bodies: dict[int, bytearray] = {}
    for event in events.get("DataReceived", ()):
        bodies.setdefault(event.stream_id, bytearray()).extend(event.data)
    ended = {event.stream_id for event in events.get("StreamEnded", ())}
    for stream_id, replies in wanted.items():
        if stream_id not in reset:
            assert bytes(bodies.get(stream_id, b"")) == b"".join(map(messages.encode, replies))
            assert stream_id in ended
