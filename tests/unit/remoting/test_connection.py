"""Frames out of pieces, and who waits for which reply."""

import struct

import pytest

from reput.errors import NotAFrame, Overloaded
from reput.format.command import FRAME_BYTES_MAX
from reput.remoting.connection import IN_FLIGHT_MAX, Inbox, Questions, find_frame


def frame(content: bytes) -> bytes:
    return struct.pack(">i", len(content)) + content


class Reader:
    """Reads pieces through an inbox, as a channel does."""

    def __init__(self, buffer_bytes: int = 64) -> None:
        self.inbox = Inbox(bytearray(buffer_bytes))
        self.frames: list[bytes] = []

    def read(self, data: bytes) -> None:
        while data:
            room = self.inbox.room()
            assert len(room), "a loop takes an empty buffer for an error"
            piece, data = data[: len(room)], data[len(room) :]
            room[: len(piece)] = piece
            view, end = self.inbox.filled(len(piece))
            self.inbox.keep(view, self.take(view, end), end)

    def take(self, view: memoryview, end: int) -> int:
        at = 0
        while (place := find_frame(view, at, end)) is not None and place[1] <= end:
            self.frames.append(bytes(view[place[0] : place[1]]))
            at = place[1]
        return at


FRAMES = [b"abcd", b"x" * 5, b"y" * 59, b"z" * 60, b"u" * 61, b"v" * 300, b"wwww"]
"""Around the size of the buffer: 60 is the largest that fits with its length."""


@pytest.mark.parametrize("piece", range(1, 80))
def test_frames_are_the_same_whatever_the_pieces(piece: int) -> None:
    reader = Reader()
    data = b"".join(map(frame, FRAMES))
    for at in range(0, len(data), piece):
        reader.read(data[at : at + piece])
    assert reader.frames == FRAMES


def test_two_connections_share_a_buffer() -> None:
    buffer = bytearray(64)
    readers = [Reader(), Reader()]
    for reader in readers:
        reader.inbox = Inbox(buffer)
    streams = [b"".join(map(frame, FRAMES)), b"".join(map(frame, reversed(FRAMES)))]
    for at in range(0, len(streams[0]), 7):
        for reader, stream in zip(readers, streams, strict=True):
            reader.read(stream[at : at + 7])
    assert readers[0].frames == FRAMES
    assert readers[1].frames == FRAMES[::-1]


def test_a_length_that_only_promises_takes_no_memory() -> None:
    inbox = Inbox(bytearray(1024))
    head = struct.pack(">i", FRAME_BYTES_MAX)
    inbox.room()[:4] = head
    view, end = inbox.filled(4)
    inbox.keep(view, 0, end)
    assert len(inbox.room()) < 4096


def test_frames_that_wait_are_kept_whole() -> None:
    """A channel stops taking frames while nobody takes its replies."""
    inbox = Inbox(bytearray(64))
    data = frame(b"abcd") + frame(b"efgh") + b"\0\0"
    inbox.room()[: len(data)] = data
    view, end = inbox.filled(len(data))
    inbox.keep(view, 8, end)
    view, end = inbox.kept()
    assert bytes(view[:end]) == frame(b"efgh") + b"\0\0"
    inbox.keep(view, 0, end)
    view, end = inbox.kept()
    assert bytes(view[:end]) == frame(b"efgh") + b"\0\0"


def test_a_large_frame_that_waits_is_kept_whole() -> None:
    reader = Reader()
    data = frame(b"x" * 500)
    reader.read(data[:-1])
    reader.inbox.room()[:1] = data[-1:]
    view, end = reader.inbox.filled(1)
    assert bytes(view[:end]) == data
    reader.inbox.keep(view, 0, end)
    view, end = reader.inbox.kept()
    assert bytes(view[:end]) == data
    reader.inbox.keep(view, end, end)
    reader.read(frame(b"next"))
    assert reader.frames == [b"next"]


@pytest.mark.parametrize("size", [0, 3, -1, -(1 << 31), FRAME_BYTES_MAX + 1, 0x7FFFFFFF])
def test_a_length_that_is_impossible(size: int) -> None:
    with pytest.raises(NotAFrame, match=rf"frame of {size} bytes; allowed: 4 to {FRAME_BYTES_MAX}"):
        find_frame(struct.pack(">i", size), 0, 4)


@pytest.mark.parametrize("size", [4, FRAME_BYTES_MAX])
def test_the_least_and_the_largest_length(size: int) -> None:
    assert find_frame(struct.pack(">i", size), 0, 4) == (4, 4 + size)


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",  # TLS hello
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


# --- questions ----------------------------------------------------------------------------


def test_a_reply_goes_to_who_asked_once() -> None:
    questions: Questions[str] = Questions()
    first, _ = questions.add("a", 1, 1000, 0.0)
    second, _ = questions.add("b", 1, 1000, 0.0)
    assert first != second
    assert questions.answered(second) == "b"
    assert questions.answered(first) == "a"
    assert questions.answered(first) is None
    assert questions.answered(99) is None


def test_those_whose_time_is_over_are_taken_out() -> None:
    questions: Questions[str] = Questions()
    assert questions.next_deadline() is None
    late, deadline = questions.add("late", 11, 1000, 10.0)
    assert deadline == 11.0
    questions.add("patient", 34, 5000, 10.0)
    assert questions.next_deadline() == 11.0
    assert questions.expire(10.999) == []
    (one,) = questions.expire(11.0)
    assert (one.asker, one.code, one.timeout_ms) == ("late", 11, 1000)
    assert questions.answered(late) is None
    assert [one.asker for one in questions.take_all()] == ["patient"]
    assert len(questions) == 0


def test_opaques_begin_anew_and_none_is_given_twice() -> None:
    questions: Questions[int] = Questions()
    waiting, _ = questions.add(-1, 1, 1000, 0.0)
    questions._last_opaque = 0x7FFFFFFE
    found = [questions.add(number, 1, 1000, 0.0)[0] for number in range(3)]
    assert all(0 <= one <= 0x7FFFFFFF for one in found)
    assert len({waiting, *found}) == 4


def test_too_many_that_wait() -> None:
    questions: Questions[None] = Questions()
    for _ in range(IN_FLIGHT_MAX):
        questions.add(None, 1, 1000, 0.0)
    with pytest.raises(Overloaded, match=str(IN_FLIGHT_MAX)) as raised:
        questions.add(None, 1, 1000, 0.0)
    assert raised.value.response_code == 2


# --- bytes that come one by one -----------------------------------------------------------


def test_a_frame_that_comes_byte_by_byte_is_copied_few_times() -> None:
    """Each byte copied all that was kept before it: 250 KB kept, and each byte cost as much."""
    shared = bytearray(256 * 1024)
    inbox = Inbox(shared)
    frame = (200_000).to_bytes(4, "big") + bytes(200_000)
    position = 150_000
    inbox.room()[:position] = frame[:position]
    view, end = inbox.filled(position)
    inbox.keep(view, 0, end)
    rooms = set()
    for byte in frame[position:-1]:
        room = inbox.room()
        rooms.add(id(room.obj))
        room[0] = byte
        view, end = inbox.filled(1)
        inbox.keep(view, 0, end)
        position += 1
    # The first byte goes behind a copy in the shared buffer; the rest has a buffer that stays.
    assert len(rooms) <= 3
    assert inbox.kept_bytes < 2 * len(frame)
    inbox.room()[0] = frame[-1]
    view, end = inbox.filled(1)
    assert view.obj is shared  # where the fast path looks
    assert bytes(view[:end]) == frame
    inbox.keep(view, end, end)
    assert (inbox.kept_bytes, inbox.has_beginning) == (0, False)
