"""Frames under a controller: the bytes of Java's ``AutoSwitchHAClient`` and its connection."""

import itertools
import struct

import pytest
from hypothesis import given, strategies as st

from cases import case, each
from reput.errors import NotAFrame
from reput.format import ha_epoch_frames as frames
from reput.format.epoch_file import Epoch
from reput.format.ha_epoch_frames import (
    MasterHandshake,
    SlaveHandshake,
    SlaveParser,
    TransferHeader,
    TransferParser,
)

LONGS = st.integers(-(1 << 63), (1 << 63) - 1)
OFFSETS = st.integers(0, (1 << 63) - 1)
INTS = st.integers(-(1 << 31), (1 << 31) - 1)


def test_the_layouts_are_those_of_java() -> None:
    """``ByteBuffer`` writes big endian: putInt, putShort, putLong in the order of its source."""
    handshake = SlaveHandshake(0x0102030405060708, is_from_last_file=True, is_learner=False)
    assert frames.encode_slave_handshake(handshake).hex(" ", 2) == (
        "0000 0001 0001 0000 0102 0304 0506 0708"
    )
    assert frames.encode_report(0x01020304_05060708).hex(" ", 4) == "00000002 01020304 05060708"
    header = TransferHeader(468, 100, Epoch(2, 400), 300)
    assert frames.encode_transfer(header).hex(" ", 4) == (
        "00000002 00000064 00000000 000001d4 00000002 00000000 00000190 00000000 0000012c"
    )
    reply = frames.encode_master_handshake(MasterHandshake(936, [Epoch(1, 0), Epoch(2, 468)]))
    assert reply.hex(" ", 4) == (
        "00000001 00000018 00000000 000003a8 00000002"
        " 00000001 00000000 00000000 00000002 00000000 000001d4"
    )
    assert frames.decode_master_handshake(reply) == (936, [(1, 0), (2, 468)])
    assert frames.encode_master_handshake(MasterHandshake(0, []))[-4:] == b"\xff\xff\xff\xff"


def test_a_handshake_has_the_newest_thousand_epochs() -> None:
    epochs = [Epoch(number, number * 10) for number in range(1, 1500)]
    reply = frames.encode_master_handshake(MasterHandshake(20_000, epochs))
    rest = frames.master_handshake_rest(reply[:20])
    assert len(reply) == 20 + rest == 20 + 12 * 1000
    assert list(frames.decode_master_handshake(reply).epochs) == epochs[-1000:]


@each(
    ("state", "size"),
    [(0, 12), (2, 12), (1, -12), (1, 13), (1, 12 * 1001), (1, (1 << 31) - 1), (-1, 0)],
)
def test_a_wrong_answer_to_a_handshake_is_refused(state: int, size: int) -> None:
    with pytest.raises(NotAFrame, match="Is it a master under a controller"):
        frames.master_handshake_rest(struct.pack(">iiqi", state, size, 0, 1))


@given(st.lists(st.tuples(INTS, LONGS), max_size=4))
def test_epochs_of_a_handshake_grow(epochs: list[tuple[int, int]]) -> None:
    data = struct.pack(">iiqi", 1, 12 * len(epochs), 99, 1)
    data += b"".join(struct.pack(">iq", *epoch) for epoch in epochs)
    numbers, starts = [number for number, _ in epochs], [start for _, start in epochs]
    grows = all(a < b for a, b in itertools.pairwise([0, *numbers])) and all(
        a <= b for a, b in itertools.pairwise([0, *starts])
    )
    try:
        assert list(frames.decode_master_handshake(data).epochs) == epochs
    except NotAFrame:
        assert not grows
    else:
        assert grows


# --- what a slave sends ---------------------------------------------------------------------------


def feed_all(
    parser: SlaveParser, data: bytes, step: int
) -> tuple[SlaveHandshake | None, list[int]]:
    """Feed bytes in pieces; return the last handshake and all reports."""
    last, reports = None, []
    for position in range(0, len(data), step):
        handshake, more = parser.feed(data[position : position + step])
        last = handshake or last
        reports += more
    return last, reports


@given(
    st.lists(st.tuples(LONGS, st.booleans(), st.booleans()), max_size=3),
    st.lists(LONGS, max_size=8),
    st.integers(1, 40),
)
def test_frames_of_a_slave_are_the_same_in_any_pieces(
    handshakes: list[tuple[int, bool, bool]], reports: list[int], step: int
) -> None:
    sent = [SlaveHandshake(*handshake) for handshake in handshakes]
    data = b"".join(map(frames.encode_slave_handshake, sent))
    data += b"".join(map(frames.encode_report, reports))
    last = sent[-1] if sent else None
    assert feed_all(SlaveParser(), data, step) == (last, reports)


def test_a_handshake_after_a_report_is_refused_in_any_pieces() -> None:
    handshake = frames.encode_slave_handshake(SlaveHandshake(2, False, False))
    data = frames.encode_report(7) + handshake
    for step in (len(data), frames.TRANSFER_BYTES, 12, 1):
        with case(step), pytest.raises(NotAFrame, match="a frame of a slave has state 1"):
            feed_all(SlaveParser(), data, step)


@each("data", [b"GET / HTTP/1.1\r\n", bytes(16), b"\0\0\0\3" + bytes(8), b"\xff" * 12, bytes(8)])
def test_other_bytes_than_a_slave_s_are_refused(data: bytes) -> None:
    """The last one is a report of a slave without a controller."""
    with pytest.raises(NotAFrame, match="Is it a slave under a controller"):
        SlaveParser().feed(data)


@given(st.binary(max_size=80))
def test_any_bytes_of_a_slave_are_frames_or_refused(data: bytes) -> None:
    try:
        _, reports = SlaveParser().feed(data)
    except NotAFrame:
        return
    assert len(reports) <= len(data) // 12


# --- what a master sends --------------------------------------------------------------------------


@given(
    st.lists(st.tuples(OFFSETS, st.integers(0, 4096), INTS, LONGS, LONGS), max_size=5),
    st.integers(1, frames.TRANSFER_BYTES),
)
def test_headers_are_the_same_in_any_pieces(
    rows: list[tuple[int, int, int, int, int]], step: int
) -> None:
    headers = [
        TransferHeader(offset, size, Epoch(number, start), end)
        for offset, size, number, start, end in rows
    ]
    data = b"".join(map(frames.encode_transfer, headers))
    parser, seen = TransferParser(4096), []
    while data:
        count = min(step, parser.missing)
        header = parser.feed(data[:count])
        data = data[count:]
        seen += [] if header is None else [header]
    assert seen == headers


@each(
    ("fields", "text"),
    [
        ((1, 0, 0, 1, 0, 0), "has state 1; 2 is needed"),
        ((0, 0, 0, 1, 0, 0), "has state 0"),
        ((2, -1, 0, 1, 0, 0), "-1 bytes"),
        ((2, 4097, 0, 1, 0, 0), "0 to 4096"),
        ((2, (1 << 31) - 1, 0, 1, 0, 0), "2147483647 bytes"),
        ((2, 0, -1, 1, 0, 0), "physical offset -1"),
    ],
)
def test_an_impossible_header_is_refused(fields: tuple[int, ...], text: str) -> None:
    with pytest.raises(NotAFrame, match=text):
        TransferParser(4096).feed(struct.pack(">iiqiqq", *fields))
