"""The kernel that reads frames: the decoder of header blocks in Python is its reference."""

import pytest
from hypothesis import given, strategies as st

from http2_peer import data, ping
from reput.errors import Http2Error
from reput.grpc.http2 import frames
from reput.grpc.http2.call_reader import CallReader, HeaderTable
from reput.grpc.http2.connection import CONNECTION_WINDOW
from reput.grpc.http2.frames import Flag, FrameType
from reput.grpc.http2.hpack import Decoder, Field, encode_integer
from reput.grpc.kernels import call_words as words, native

pytestmark = pytest.mark.skipif(not native.is_compiled(), reason="there are no compiled kernels")
hpack = pytest.importorskip("hpack", reason="the package hpack is not installed: it encodes blocks")

BUFFER_BYTES = 1 << 16


class Reading:
    """A reader with its buffer, and the table of one connection."""

    def __init__(self, *paths: bytes, client: bytes = b"") -> None:
        self.buffer = bytearray(BUFFER_BYTES + words.SLACK)
        self.reader = CallReader(self.buffer, paths)
        self.table = HeaderTable()
        self.decoder = Decoder()
        self.table.take(self.decoder)
        self._client = bytearray(client + bytes(16))
        block = self.reader.block
        block.receive_window = block.receive_window_max = CONNECTION_WINDOW
        block.window = 65_535
        if client:
            self.hold = memoryview(self._client)
            import numpy as np

            self._id = np.frombuffer(self._client, np.uint8)
            block.client.start = int(self._id.__array_interface__["data"][0])
            block.client.size = len(client)

    def read(self, sent: bytes) -> int:
        """Read frames; return the number of rows."""
        self.buffer[: len(sent)] = sent
        return self.reader.read({}, self.table, 0, len(sent))

    def entries(self) -> list[Field]:
        """Return the entries of the table."""
        decoder = Decoder()
        self.table.give(decoder)
        return decoder.entries


def headers(stream_id: int, block: bytes, flags: int = Flag.END_HEADERS) -> bytes:
    return frames.frame(FrameType.HEADERS, flags, stream_id, block)


names = st.sampled_from(
    [b":path", b":authority", b"x-mq-client-id", b"user-agent", b"grpc-timeout", b"a", b"x" * 200]
)
values = st.one_of(
    st.sampled_from([b"", b"/", b"application/grpc", b"v2", b"y" * 900]), st.binary(max_size=60)
)
fields = st.lists(st.tuples(names, values, st.booleans()), min_size=1, max_size=8)


@given(
    st.lists(st.tuples(fields, st.booleans(), st.sampled_from([None, 0, 100, 4096])), max_size=12),
    st.lists(st.tuples(st.integers(0, 500), st.integers(0, 255)), max_size=2),
)
def test_blocks_are_decoded_as_in_python(
    blocks: list[tuple[list[tuple[bytes, bytes, bool]], bool, int | None]],
    damages: list[tuple[int, int]],
) -> None:
    reading, encoder = Reading(), hpack.Encoder()
    for number, (sent, is_huffman, table_size) in enumerate(blocks):
        if table_size is not None:
            encoder.header_table_size = table_size
        block = bytearray(encoder.encode([tuple(field) for field in sent], huffman=is_huffman))
        for position, byte in damages if number == len(blocks) - 1 else ():
            block[position % len(block)] = byte
        before = reading.entries()
        count = reading.read(headers(2 * number + 1, bytes(block)))
        try:
            expected = reading.decoder.decode(bytes(block))
        except Http2Error:
            assert count == 0
            assert reading.reader.block.has_other == 1
            assert reading.entries() == before
            return
        if not count:  # too large for the kernel, or without fields
            assert not expected or len(block) > words.BLOCK_BYTES_MAX
            return
        (row,) = reading.reader.rows(1)
        assert reading.reader.fields(row) == expected
        assert reading.entries() == reading.decoder.entries


def test_a_table_is_taken_and_given_back() -> None:
    decoder = Decoder()
    decoder.decode(b"".join(b"\x40\x01%c\x01%c" % (65 + i, 97 + i) for i in range(20)))
    table, other = HeaderTable(), Decoder()
    table.take(decoder)
    table.give(other)
    assert other.entries == decoder.entries
    assert other.entries[0] == (b"T", b"t")
    assert other.sizes == decoder.sizes


def test_a_table_is_compacted() -> None:
    """Each block inserts 3 KB: the room for bytes is used up many times."""
    reading = Reading()
    for number in range(40):
        value = bytes([97 + number % 26]) * 3000
        block = b"\x40\x01n" + encode_integer(3000, 0, 0x7F) + value + b"\xbe"
        assert reading.read(headers(2 * number + 1, block)) == 1
        assert reading.reader.fields(reading.reader.rows(1)[0]) == [(b"n", value)] * 2
        assert reading.entries() == [(b"n", value)]


REQUEST = (
    (b":method", b"POST"),
    (b":scheme", b"http"),
    (b":path", b"/s/Send"),
    (b":authority", b"h"),
    (b"content-type", b"application/grpc"),
    (b"te", b"trailers"),
    (b"grpc-timeout", b"3S"),
    (b"x-mq-client-id", b"me"),
)


def path_of(changed: dict[bytes, bytes | None], *more: Field) -> int:
    """Return the path of a request whose fields are changed, removed (None), or repeated."""
    sent = [(name, changed.get(name, value)) for name, value in REQUEST]
    block = hpack.Encoder().encode([(n, v) for n, v in sent if v is not None] + list(more))
    reading = Reading(b"/s/Ack", b"/s/Send", client=b"me")
    assert reading.read(headers(1, block)) == 1
    path: int = reading.reader.rows(1)[0].path
    return path


def test_a_plain_request_may_be_fast() -> None:
    assert path_of({}) == 2
    assert path_of({b":path": b"/s/Ack"}) == 1
    assert path_of({b"grpc-timeout": None}) == 2
    assert path_of({}, (b"x-other", b"\x7e"), (b"grpc-encoding", b"identity")) == 2


@pytest.mark.parametrize(
    "changed",
    [
        {b":path": b"/s/Other"},
        {b":method": None},
        {b"content-type": b"text/html"},
        {b"te": b"gzip"},
        {b"grpc-timeout": b"3x"},
        {b"grpc-timeout": b"123456789S"},
        {b"x-mq-client-id": b"you"},
        {b"x-mq-client-id": b"me "},
        {b"x-mq-client-id": None},
    ],
)
def test_other_requests_are_not_fast(changed: dict[bytes, bytes | None]) -> None:
    assert path_of(changed) == 0


@pytest.mark.parametrize(
    "field",
    [
        (b"content-length", b"7"),
        (b"connection", b"close"),
        (b"Upper", b"x"),
        (b"a", b"b\nc"),
        (b"te", b"trailers"),
        (b":path", b"/s/Send"),
        (b"grpc-encoding", b"gzip"),
    ],
)
def test_unusual_fields_are_left_to_python(field: Field) -> None:
    assert path_of({}, field) == 0


def test_frames_become_rows() -> None:
    reading, block = Reading(), b"\x83"  # :method POST
    sent = (
        headers(1, block) + headers(3, block) + data(3, b"three", is_end=True) + ping()
        + data(1, b"one") + data(1, b"", is_end=True) + frames.window_update(0, 7)
        + headers(5, block)
    )  # fmt: skip
    assert reading.read(sent) == 3
    first, second, third = reading.reader.rows(3)
    bodies = [bytes(reading.buffer[row.data : row.data_end]) for row in
             (first, second)]  # fmt: skip
    assert bodies == [b"one", b"three"]
    assert [row.is_ended for row in (first, second, third)] == [1, 1, 0]
    assert third.data == -1
    assert reading.reader.out() == ping(flags=Flag.ACK)
    assert reading.reader.block.window == 65_542
    assert reading.reader.block.has_other == 0


@pytest.mark.parametrize(
    "frame",
    [
        headers(1, b"\x83", Flag.END_HEADERS | Flag.END_STREAM),
        headers(1, b"\x83", 0),
        headers(2, b"\x83"),
        headers(5, b"\x83"),
        headers(1, b"\xff\xff\xff\xff\xff"),
        data(1, b"x", is_end=True),
        ping(b"1234567"),
        frames.window_update(0, 0),
        frames.window_update(3, 1),
        frames.rst_stream(1, 8),
        frames.settings(()),
    ],
)
def test_other_frames_are_left(frame: bytes) -> None:
    reading = Reading()
    assert reading.read(ping() + frame) == 0
    assert reading.reader.block.has_other == 1
    assert reading.reader.block.position == len(ping())
