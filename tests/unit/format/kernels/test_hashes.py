"""Checksums and Java hashes, compared with zlib and with records that Java wrote."""

import itertools
import random
import zlib

import numpy as np
import pytest

import golden
from reput.format import body as bodies, index_entry, java, message as record
from reput.format.kernels import native, reference
from reput.format.message import Host, StoredMessage

try:
    native.engine()
except native.KernelsUnavailable:
    pytest.skip("no compiled kernels here", allow_module_level=True)


def test_checksums_of_every_size_and_alignment() -> None:
    data = random.Random(0).randbytes(300)
    view = memoryview(data)
    for size, start in itertools.product(range(201), range(17)):
        part = view[start : start + size]
        expected = zlib.crc32(part) & 0x7FFFFFFF
        assert native.checksum(part) == reference.checksum(part) == expected == bodies.crc(part)


def test_checksums_without_folding(monkeypatch: pytest.MonkeyPatch) -> None:
    """The result is the same as on a processor without carry-less multiplication."""
    tables = native.crc_tables().copy()
    tables[-1] = 0
    monkeypatch.setattr(native, "crc_tables", lambda: tables)
    data = random.Random(1).randbytes(5000)
    for size in (*range(200), 1000, 4999):
        assert native.checksum(data[:size]) == zlib.crc32(data[:size]) & 0x7FFFFFFF


@pytest.mark.parametrize("byte", [0x00, 0x80, 0xFF])
def test_checksums_of_long_runs(byte: int) -> None:
    for size in (1 << 12, (1 << 16) + 5, (1 << 20) + 15):
        data = bytes([byte]) * size
        assert native.checksum(data) == zlib.crc32(data) & 0x7FFFFFFF


def decoded(topics_and_keys: list[tuple[str, str]]) -> tuple[native.Columns, reference.Columns]:
    """Return decoded records with these topics and with the texts as their tags and keys."""
    data = b""
    positions = []
    for topic, text in topics_and_keys:
        positions.append(len(data))
        data += record.encode(
            StoredMessage(
                topic=topic,
                body=b"",
                queue_id=0,
                queue_offset=0,
                physical_offset=len(data),
                born_timestamp=0,
                born_host=Host(bytes(4), 0),
                store_timestamp=0,
                store_host=Host(bytes(4), 0),
                property_bytes=f"TAGS\x01{text}\x02KEYS\x01{text}\x02".encode(),
            )
        )
    places = np.array(positions, np.int64)
    return native.Columns(data, places), reference.Columns(data, places)


# Characters of one to four bytes, at the ends of their ranges: one or two UTF-16 units each.
CHARACTERS = "\x00\x7f\x80\u07ff\u0800\ud7ff\ue000\ufffd\uffff\U00010000\U0001f600\U0010ffff"


def test_hashes_of_characters_of_every_width() -> None:
    texts = [
        *("".join(pair) for pair in itertools.product(CHARACTERS, repeat=2)),
        *(character * 40 for character in CHARACTERS),
        "polygenelubricants",  # A text whose hash is the smallest int.
    ]
    topics = [("T" + CHARACTERS[1 + row % 11] * (row % 3), text) for row, text in enumerate(texts)]
    for columns in decoded(topics):
        assert columns.tags_codes().tolist() == [java.string_hash(text) for text in texts]
        _, hashes = columns.key_hashes(with_tags=True)
        keys = [index_entry.key_of(topic, text) for topic, text in topics]
        tags = [index_entry.tag_key_of(topic, text) for topic, text in topics]
        assert hashes.tolist() == [index_entry.key_hash(key) for key in keys + tags]


def test_hash_without_an_absolute_value_is_zero() -> None:
    key = key_of_the_smallest_hash("T#")
    assert java.string_hash(f"T#{key}") == -(1 << 31)
    for columns in decoded([("T", key)]):
        assert columns.key_hashes()[1].tolist() == [0]


def key_of_the_smallest_hash(prefix: str) -> str:
    """Return the suffix that makes a text's hash the smallest int: seven digits to base 31."""
    width = 7
    wanted = -(1 << 31) - java.string_hash(prefix) * 31**width
    for rounds in itertools.count():  # Any number that is congruent to the wanted one modulo 2**32.
        rest = wanted % (1 << 32) + (rounds << 32)
        key = ""
        for _ in range(width):
            digit = rest % 31 + 62  # Printable characters.
            key = chr(digit) + key
            rest = (rest - digit) // 31
        if rest == 0:
            return key
    raise AssertionError


@pytest.mark.interop
@pytest.mark.parametrize("version", golden.VERSIONS)
def test_tags_codes_equal_javas(version: str) -> None:
    codes = golden.manifest(version, "clean")["tagsCodes"]
    assert len(codes) > 3
    for columns in decoded([("T", tag) for tag in codes]):
        assert columns.tags_codes().tolist() == list(codes.values())
