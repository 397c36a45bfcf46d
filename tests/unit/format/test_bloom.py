"""Bloom filter positions, compared with the saved ones of brokers."""

import json
from itertools import pairwise

import pytest

import golden
from reput.format import bloom
from reput.format.bloom import BloomFilter


def test_the_defaults_of_rocketmq() -> None:
    # Facts 1.3, from a running broker: 112 bits, and group CGO on TopicA.
    made = BloomFilter.of(20, 32)
    assert made == BloomFilter(bits=112, positions=3)
    assert made.positions_of("CGO", "TopicA") == (36, 98, 22)


@pytest.mark.parametrize("version", golden.VERSIONS)
def test_positions_equal_those_that_brokers_saved(version: str) -> None:
    root = golden.unpack(version, "ext")
    saved = json.loads((root / "config/consumerFilter.json").read_text())
    checked = 0
    for topic, filters in saved["filterDataByTopic"].items():
        for group, filter_data in filters["groupFilterData"].items():
            saved_filter = filter_data["bloomFilterData"]
            made = BloomFilter.of(20, 32)
            assert made.bits == saved_filter["bitNum"]
            assert list(made.positions_of(group, topic)) == saved_filter["bitPos"]
            checked += 1
    assert checked


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        # Guava's own test of murmur3_128 (Murmur3Hash128Test), seed 0, first half.
        (b"", 0),
        (b"The quick brown fox jumps over the lazy dog", 0xE34BBC7BBC071B6C),
        (b"The quick brown fox jumps over the lazy cog", 0x658CA970FF85269A),
    ],
)
def test_hash_vectors(text: bytes, expected: int) -> None:
    assert bloom.murmur3(text) == expected


def test_more_groups_or_fewer_errors_take_more_bits() -> None:
    sizes = [BloomFilter.of(rate, 32).bits for rate in (50, 20, 10, 1)]
    assert all(size < other for size, other in pairwise(sizes))
    assert all(size % 8 == 0 for size in sizes)


def test_may_match() -> None:
    bits = bytes([0b110, 0])
    assert bloom.may_match(bits, 16, (1, 2))
    assert not bloom.may_match(bits, 16, (1, 3))
    assert bloom.may_match(b"", 16, (1, 2)), "none were computed"
    assert bloom.may_match(bits, 112, (1, 3)), "computed for another length of bits"
