"""Frames between master and slave: the bytes of ``HAConnection`` and ``HAClient`` of Java."""

import itertools

import pytest
from hypothesis import given, strategies as st

from reput.errors import NotAFrame
from reput.format import ha_frames
from reput.format.ha_frames import FrameHeader, HeaderParser, ReportParser

LONGS = st.integers(-(1 << 63), (1 << 63) - 1)


def pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    places = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    return [data[start:stop] for start, stop in itertools.pairwise(places)]


def test_a_report_is_a_big_endian_long() -> None:
    # ByteBuffer.putLong(0x0102030405060708L)
    assert ha_frames.encode_report(0x0102030405060708) == bytes(range(1, 9))
    assert ha_frames.REPORT_BYTES == 8


def test_a_header_is_a_long_and_an_int() -> None:
    # ByteBuffer.putLong(0x0102030405060708L).putInt(0x090a0b0c)
    assert ha_frames.encode_header(0x0102030405060708, 0x090A0B0C) == bytes(range(1, 13))
    assert ha_frames.HEADER_BYTES == 12


def test_the_largest_frame_fits_into_the_buffer_of_javas_slaves() -> None:
    # READ_MAX_BUFFER_SIZE of HAClient is 4 MiB.
    assert ha_frames.HEADER_BYTES + ha_frames.DATA_BYTES_MAX == 4 << 20


@given(st.lists(LONGS, max_size=20), st.lists(st.integers(0, 200), max_size=10))
def test_reports_are_the_same_in_any_pieces(offsets: list[int], cuts: list[int]) -> None:
    data = b"".join(offset.to_bytes(8, "big", signed=True) for offset in offsets)
    parser = ReportParser()
    assert [offset for piece in pieces(data, cuts) for offset in parser.feed(piece)] == offsets


def test_an_incomplete_report_is_none() -> None:
    parser = ReportParser()
    assert list(parser.feed(bytes(8) + b"\x7f")) == [0]
    assert list(parser.feed(b"\xff" * 6)) == []
    assert list(parser.feed(b"\xff")) == [(1 << 63) - 1]


@given(
    st.lists(
        st.tuples(st.integers(0, (1 << 63) - 1), st.integers(0, ha_frames.DATA_BYTES_MAX)),
        max_size=20,
    ),
    st.integers(1, 12),
)
def test_headers_are_the_same_in_any_pieces(headers: list[tuple[int, int]], step: int) -> None:
    parser = HeaderParser()
    seen = []
    for physical_offset, size in headers:
        data = physical_offset.to_bytes(8, "big") + size.to_bytes(4, "big")
        while data:
            taken = min(step, parser.missing)
            header = parser.feed(data[:taken])
            data = data[taken:]
            assert (header is None) == bool(data)
            if header is not None:
                seen.append(header)
    assert seen == [FrameHeader(*header) for header in headers]


@pytest.mark.parametrize(
    ("physical_offset", "size", "text"),
    [
        (-1, 0, "begins at physical offset -1; 0 is the minimum"),
        (7, -1, "at physical offset 7 has -1 bytes; 0 to 4194292 are allowed"),
        (7, 4194293, "at physical offset 7 has 4194293 bytes; 0 to 4194292 are allowed"),
    ],
)
def test_an_impossible_header_is_refused(physical_offset: int, size: int, text: str) -> None:
    data = physical_offset.to_bytes(8, "big", signed=True) + size.to_bytes(4, "big", signed=True)
    with pytest.raises(NotAFrame, match=text):
        HeaderParser().feed(data)


def test_the_maximum_may_be_smaller() -> None:
    with pytest.raises(NotAFrame, match="0 to 100 are allowed"):
        HeaderParser(100).feed(ha_frames.encode_header(0, 101))
