"""Bodies: the checksum, and the compressions of producers. Golden bodies: test_message.py."""

import tracemalloc
import zlib
from collections import Counter
from contextlib import suppress

import lz4.frame
import pytest
import zstandard
from hypothesis import given, strategies as st

import golden
from cases import each
from reput.errors import CorruptRecord
from reput.format import body as bodies
from reput.format.message import decode as decode_record

ZLIB_OLD, LZ4, ZSTD, ZLIB = 0x1, 0x101, 0x201, 0x301
PLAIN = b"".join(f"page {i}: the quick brown fox\n".encode() for i in range(200))


@pytest.mark.parametrize(
    ("body", "expected"), [(b"hello", 907060870), (b"delay", 848986267), (b"", 0)]
)
def test_crc_vectors(body: bytes, expected: int) -> None:
    assert bodies.crc(body) == expected
    assert bodies.crc(memoryview(body)) == expected


def test_crc_clears_the_top_bit() -> None:
    assert zlib.crc32(b"delay") == 848986267 | 1 << 31


@given(st.binary())
def test_crc_is_a_positive_int(body: bytes) -> None:
    assert 0 <= bodies.crc(body) < 1 << 31


@each(
    ("sys_flag", "name"),
    [
        (0, "none"),
        (0x300, "none"),
        (ZLIB_OLD, "zlib"),
        (769, "zlib"),
        (LZ4, "lz4"),
        (ZSTD, "zstd"),
        (ZSTD | 0x38, "zstd"),
        (0x401, "unknown 4"),
        (0x701, "unknown 7"),
    ],
)
def test_compression_name(sys_flag: int, name: str) -> None:
    assert bodies.compression_name(sys_flag) == name


def test_golden_stores_hold_every_compression() -> None:
    """The golden records use every compression; test_message.py compares each body with Java's."""
    seen: Counter[str] = Counter()
    for version, name in golden.STORES:
        for message in golden.messages(version, name):
            kind = bodies.compression_name(message["sysFlag"])
            seen[kind] += 1
            if kind == "none":
                assert message["bodySha256"] == message["storedBodySha256"]
    assert set(seen) == {"none", "zlib", "lz4", "zstd"}


def golden_body(sys_flag: int) -> tuple[bytes, int]:
    """Return a stored body that Java compressed, and its length according to Java."""
    version = "4.5.2" if sys_flag == ZLIB_OLD else "4.9.7"
    expected, place = next(
        golden_record
        for golden_record in golden.records(version, "clean")
        if golden_record[0]["sysFlag"] == sys_flag
    )
    return decode_record(place.record).body, expected["bodyLength"]


ON_EVERY_TYPE = pytest.mark.parametrize("sys_flag", [ZLIB_OLD, LZ4, ZSTD, ZLIB])


@ON_EVERY_TYPE
def test_round_trip(sys_flag: int) -> None:
    for plain in (b"x", PLAIN, bytes(100_000)):
        packed = bodies.compress(plain, sys_flag)
        assert packed != plain
        assert bodies.decompress(packed, sys_flag) == plain
        assert bodies.decompress(memoryview(packed), sys_flag) == plain


def test_compressed_bodies_are_readable_by_other_libraries() -> None:
    assert zlib.decompress(bodies.compress(PLAIN, ZLIB)) == PLAIN
    assert lz4.frame.decompress(bodies.compress(PLAIN, LZ4)) == PLAIN
    assert zstandard.ZstdDecompressor().decompress(bodies.compress(PLAIN, ZSTD)) == PLAIN


def test_uncompressed_and_empty_bodies_are_unchanged() -> None:
    assert bodies.decompress(PLAIN, 0) == PLAIN
    assert bodies.compress(PLAIN, 0) == PLAIN
    assert bodies.decompress(memoryview(PLAIN), 0x38) == PLAIN
    for sys_flag in (0, ZLIB_OLD, LZ4, ZSTD, ZLIB):
        assert bodies.decompress(b"", sys_flag) == b""


def test_unknown_type() -> None:
    with pytest.raises(CorruptRecord, match="unknown 4; known are zlib, lz4 and zstd"):
        bodies.decompress(b"x", 0x401)
    with pytest.raises(ValueError, match="unknown 7"):
        bodies.compress(b"x", 0x701)


@ON_EVERY_TYPE
def test_cut_at_every_byte(sys_flag: int) -> None:
    """A truncated body is never returned as a complete one."""
    packed, _ = golden_body(sys_flag)
    step = 1 + len(packed) // 200
    for cut in [*range(1, len(packed) - 64, step), *range(max(1, len(packed) - 64), len(packed))]:
        with pytest.raises(CorruptRecord):
            bodies.decompress(packed[:cut], sys_flag)


@ON_EVERY_TYPE
def test_flip_every_byte(sys_flag: int) -> None:
    """Some damage is undetectable without BODYCRC; the result is bytes or CorruptRecord."""
    packed = bodies.compress(PLAIN, sys_flag)
    for position in range(len(packed)):
        for mask in (0x01, 0x80, 0xFF):
            flipped = packed[:position] + bytes([packed[position] ^ mask]) + packed[position + 1 :]
            with suppress(CorruptRecord):
                assert isinstance(bodies.decompress(flipped, sys_flag), bytes)


@ON_EVERY_TYPE
def test_another_format_is_refused(sys_flag: int) -> None:
    for other in (ZLIB, LZ4, ZSTD):
        packed = bodies.compress(PLAIN, other)
        if bodies.compression_name(other) != bodies.compression_name(sys_flag):
            with pytest.raises(CorruptRecord, match=bodies.compression_name(sys_flag)):
                bodies.decompress(packed, sys_flag)
    with pytest.raises(CorruptRecord):
        bodies.decompress(PLAIN, sys_flag)


@ON_EVERY_TYPE
@given(data=st.binary(min_size=1, max_size=200))
def test_any_bytes_are_a_body_or_corrupt(sys_flag: int, data: bytes) -> None:
    with suppress(CorruptRecord):
        assert isinstance(bodies.decompress(data, sys_flag), bytes)


@ON_EVERY_TYPE
def test_limit(sys_flag: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bodies, "BODY_BYTES_MAX", len(PLAIN))
    assert bodies.decompress(bodies.compress(PLAIN, sys_flag), sys_flag) == PLAIN
    with pytest.raises(CorruptRecord, match="more than"):
        bodies.decompress(bodies.compress(PLAIN + b"x", sys_flag), sys_flag)


@ON_EVERY_TYPE
def test_a_small_body_takes_little_memory(sys_flag: int) -> None:
    """The limit is 128 MiB, and that memory is not allocated in advance."""
    packed = bodies.compress(PLAIN, sys_flag)
    bodies.decompress(packed, sys_flag)
    tracemalloc.start()
    bodies.decompress(packed, sys_flag)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2_000_000


@pytest.mark.parametrize("sys_flag", [LZ4, ZSTD])
def test_concatenated_frames_are_all_read(sys_flag: int) -> None:
    """Java's streams read all concatenated frames."""
    packed = bodies.compress(b"one", sys_flag) + bodies.compress(PLAIN, sys_flag)
    assert bodies.decompress(packed, sys_flag) == b"one" + PLAIN
    with pytest.raises(CorruptRecord):
        bodies.decompress(packed[:-1], sys_flag)


def test_bytes_after_the_end_of_zlib_are_ignored() -> None:
    assert bodies.decompress(bodies.compress(PLAIN, ZLIB) + b"more", ZLIB) == PLAIN
