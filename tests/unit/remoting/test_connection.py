"""Frames from pieces of a stream, and pending requests."""

import struct

import pytest

from reput.errors import NotAFrame, Overloaded
from reput.format.command import FRAME_BYTES_MAX
from reput.remoting.connection import IN_FLIGHT_MAX, FrameBuffer, PendingRequests, find_frame


def frame(content: bytes) -> bytes:
    return struct.pack(">i", len(content)) + content


class Reader:
    """A reader that takes pieces through a buffer, as a channel does."""

    def __init__(self, buffer_bytes: int = 64) -> None:
        self.buffer = FrameBuffer(bytearray(buffer_bytes))
        self.frames: list[bytes] = []

    def read(self, data: bytes) -> None:
        while data:
            room = self.buffer.room()
            assert len(room), "a loop takes an empty buffer for an error"
            piece, data = data[: len(room)], data[len(room) :]
            room[: len(piece)] = piece
            view, end = self.buffer.filled(len(piece))
            self.buffer.keep(view, self.take(view, end), end)

    def take(self, view: memoryview, end: int) -> int:
        position = 0
        while (place := find_frame(view, position, end)) is not None and place[1] <= end:
            self.frames.append(bytes(view[place[0] : place[1]]))
            position = place[1]
        return position


FRAMES = [b"abcd", b"x" * 5, b"y" * 59, b"z" * 60, b"u" * 61, b"v" * 300, b"wwww"]
"""Sizes around that of the buffer: 60 is the largest that fits with its length."""


@pytest.mark.parametrize("piece", range(1, 80))
def test_frames_do_not_depend_on_the_pieces(piece: int) -> None:
    reader = Reader()
    data = b"".join(map(frame, FRAMES))
    for position in range(0, len(data), piece):
        reader.read(data[position : position + piece])
    assert reader.frames == FRAMES


def test_two_connections_share_a_buffer() -> None:
    buffer = bytearray(64)
    readers = [Reader(), Reader()]
    for reader in readers:
        reader.buffer = FrameBuffer(buffer)
    streams = [b"".join(map(frame, FRAMES)), b"".join(map(frame, reversed(FRAMES)))]
    for position in range(0, len(streams[0]), 7):
        for reader, stream in zip(readers, streams, strict=True):
            reader.read(stream[position : position + 7])
    assert readers[0].frames == FRAMES
    assert readers[1].frames == FRAMES[::-1]


def test_a_length_without_data_takes_no_memory() -> None:
    buffer = FrameBuffer(bytearray(1024))
    head = struct.pack(">i", FRAME_BYTES_MAX)
    buffer.room()[:4] = head
    view, end = buffer.filled(4)
    buffer.keep(view, 0, end)
    assert len(buffer.room()) < 4096


@pytest.mark.parametrize("piece", [3, 100, 2_048, 5_000])
def test_kept_bytes_grow_with_the_bytes_that_have_arrived(piece: int) -> None:
    """The first two kB of a frame of 16 MB took a buffer of half a MB."""
    buffer = FrameBuffer(bytearray(256 * 1024))
    data = struct.pack(">i", FRAME_BYTES_MAX) + bytes(400_000)
    arrived = 0
    while arrived < len(data):
        room = buffer.room()
        part = data[arrived : arrived + min(piece, len(room))]
        room[: len(part)] = part
        arrived += len(part)
        view, end = buffer.filled(len(part))
        buffer.keep(view, 0, end)
        assert arrived <= buffer.kept_bytes <= 2 * arrived


def test_waiting_frames_are_kept_whole() -> None:
    """A channel stops taking frames while the peer does not read its replies."""
    buffer = FrameBuffer(bytearray(64))
    data = frame(b"abcd") + frame(b"efgh") + b"\0\0"
    buffer.room()[: len(data)] = data
    view, end = buffer.filled(len(data))
    buffer.keep(view, 8, end)
    view, end = buffer.kept()
    assert bytes(view[:end]) == frame(b"efgh") + b"\0\0"
    buffer.keep(view, 0, end)
    view, end = buffer.kept()
    assert bytes(view[:end]) == frame(b"efgh") + b"\0\0"


def test_a_large_waiting_frame_is_kept_whole() -> None:
    reader = Reader()
    data = frame(b"x" * 500)
    reader.read(data[:-1])
    reader.buffer.room()[:1] = data[-1:]
    view, end = reader.buffer.filled(1)
    assert bytes(view[:end]) == data
    reader.buffer.keep(view, 0, end)
    view, end = reader.buffer.kept()
    assert bytes(view[:end]) == data
    reader.buffer.keep(view, end, end)
    reader.read(frame(b"next"))
    assert reader.frames == [b"next"]


@pytest.mark.parametrize("size", [0, 3, -1, -(1 << 31), FRAME_BYTES_MAX + 1, 0x7FFFFFFF])
def test_an_impossible_length_is_refused(size: int) -> None:
    with pytest.raises(NotAFrame, match=rf"frame of {size} bytes; allowed: 4 to {FRAME_BYTES_MAX}"):
        find_frame(struct.pack(">i", size), 0, 4)


@pytest.mark.parametrize("size", [4, FRAME_BYTES_MAX])
def test_the_smallest_and_the_largest_length(size: int) -> None:
    assert find_frame(struct.pack(">i", size), 0, 4) == (4, 4 + size)


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",  # TLS hello.
        b"SSH-2.0-OpenSSH_9.6\r\n",
        b"\xff" * 8,
        b"PUT x",
    ],
)
def test_other_protocols(data: bytes) -> None:
    with pytest.raises(NotAFrame, match="is the other side a RocketMQ client or broker"):
        find_frame(data, 0, len(data))


def test_too_few_bytes_for_a_length() -> None:
    for count in range(4):
        assert find_frame(b"GET "[:count], 0, count) is None


# --- pending ----------------------------------------------------------------------------


def test_a_reply_completes_its_request_once() -> None:
    pending: PendingRequests[str] = PendingRequests()
    first, _ = pending.add("a", 1, 1000, 0.0)
    second, _ = pending.add("b", 1, 1000, 0.0)
    assert first != second
    assert pending.remove(second) == "b"
    assert pending.remove(first) == "a"
    assert pending.remove(first) is None
    assert pending.remove(99) is None


def test_expired_requests_are_removed() -> None:
    pending: PendingRequests[str] = PendingRequests()
    assert pending.next_deadline() is None
    late, deadline = pending.add("late", 11, 1000, 10.0)
    assert deadline == 11.0
    pending.add("patient", 34, 5000, 10.0)
    assert pending.next_deadline() == 11.0
    assert pending.expire(10.999) == []
    (expired,) = pending.expire(11.0)
    assert (expired.future, expired.code, expired.timeout_ms) == ("late", 11, 1000)
    assert pending.remove(late) is None
    assert [pending_request.future for pending_request in pending.take_all()] == ["patient"]
    assert len(pending) == 0


def test_opaques_wrap_around_and_none_is_used_twice() -> None:
    pending: PendingRequests[int] = PendingRequests()
    waiting, _ = pending.add(-1, 1, 1000, 0.0)
    pending._last_opaque = 0x7FFFFFFE
    opaques = [pending.add(number, 1, 1000, 0.0)[0] for number in range(3)]
    assert all(0 <= opaque <= 0x7FFFFFFF for opaque in opaques)
    assert len({waiting, *opaques}) == 4


def test_too_many_pending_requests() -> None:
    pending: PendingRequests[None] = PendingRequests()
    for _ in range(IN_FLIGHT_MAX):
        pending.add(None, 1, 1000, 0.0)
    with pytest.raises(Overloaded, match=str(IN_FLIGHT_MAX)) as raised:
        pending.add(None, 1, 1000, 0.0)
    assert raised.value.response_code == 2


# --- bytes that arrive singly -------------------------------------------------


def test_a_frame_that_arrives_in_single_bytes_is_copied_few_times() -> None:
    """Each byte copied all pending bytes: with 250 KB pending, each byte cost 250 KB."""
    shared = bytearray(256 * 1024)
    buffer = FrameBuffer(shared)
    frame = (200_000).to_bytes(4, "big") + bytes(200_000)
    position = 150_000
    buffer.room()[:position] = frame[:position]
    view, end = buffer.filled(position)
    buffer.keep(view, 0, end)
    rooms = set()
    for byte in frame[position:-1]:
        room = buffer.room()
        rooms.add(id(room.obj))
        room[0] = byte
        view, end = buffer.filled(1)
        buffer.keep(view, 0, end)
        position += 1
    # The first byte goes to a copy in the shared buffer; the rest has a buffer that stays.
    assert len(rooms) <= 3
    assert buffer.kept_bytes < 2 * len(frame)
    buffer.room()[0] = frame[-1]
    view, end = buffer.filled(1)
    assert view.obj is shared  # The position from which the fast path reads.
    assert bytes(view[:end]) == frame
    buffer.keep(view, end, end)
    assert (buffer.kept_bytes, buffer.has_beginning) == (0, False)
