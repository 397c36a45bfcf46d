"""Bloom filter positions of a consumer group on a topic, as stored in ``consumerFilter.json``.

A message's filter bits include the bits of each group whose SQL filter it passes
(``cq_unit.ExtUnit``). The hash is the first 64 bits of murmur3_128 with seed 0. Java:
``BloomFilter`` of rocketmq-filter, Guava's ``Murmur3_128HashFunction``.
"""

import math
from dataclasses import dataclass

from reput.format import java

_C1 = 0x87C37B91114253D5
_C2 = 0x4CF5AD432745937F
_MASK = (1 << 64) - 1
_BLOCK = 16


@dataclass(frozen=True, slots=True)
class BloomFilter:
    """Size of a Bloom filter: its bits, and the bits per group."""

    bits: int
    """Number of filter bits of a message; a multiple of 8."""
    positions: int
    """Number of positions of a group on a topic; some may be equal."""

    @classmethod
    def of(cls, error_percent: int, group_count: int) -> "BloomFilter":
        """Return the filter for a number of groups.

        Args:
            error_percent: False positives among the messages that a group's filter rejects, in
                percent; 1 to 99.
            group_count: Number of groups on a topic.
        """
        rate = error_percent / 100
        positions = math.ceil(math.log(rate) / math.log(0.5))
        bits = math.ceil(group_count * math.log(1 / rate) / math.log(2) / math.log(2))
        return cls(-(-bits // 8) * 8, positions)

    def positions_of(self, group: str, topic: str) -> tuple[int, ...]:
        """Return the positions of a group on a topic, each below ``bits``."""
        value = murmur3(java.encode_utf8(f"{group}#{topic}"))
        low, high = value & 0xFFFFFFFF, value >> 32
        positions = []
        for number in range(1, self.positions + 1):
            combined = (low + number * high) & 0xFFFFFFFF
            if combined >> 31:
                combined ^= 0xFFFFFFFF  # Java inverts the bits of a negative int
            positions.append(combined % self.bits)
        return tuple(positions)


def murmur3(data: bytes) -> int:
    """Return the first 64 bits of murmur3_128 with seed 0, as an unsigned number."""
    first = second = 0
    end = len(data) // _BLOCK * _BLOCK
    for position in range(0, end, _BLOCK):
        first ^= _mixed_first(int.from_bytes(data[position : position + 8], "little"))
        first = (_rotated(first, 27) + second) * 5 + 0x52DCE729 & _MASK
        second ^= _mixed_second(int.from_bytes(data[position + 8 : position + _BLOCK], "little"))
        second = (_rotated(second, 31) + first) * 5 + 0x38495AB5 & _MASK
    first ^= _mixed_first(int.from_bytes(data[end : end + 8], "little"))
    second ^= _mixed_second(int.from_bytes(data[end + 8 :], "little"))
    first ^= len(data)
    second ^= len(data)
    first = first + second & _MASK
    second = second + first & _MASK
    return _final(first) + _final(second) & _MASK


def _mixed_first(word: int) -> int:
    return _rotated(word * _C1 & _MASK, 31) * _C2 & _MASK


def _mixed_second(word: int) -> int:
    return _rotated(word * _C2 & _MASK, 33) * _C1 & _MASK


def _rotated(word: int, by: int) -> int:
    return (word << by | word >> 64 - by) & _MASK


def _final(word: int) -> int:
    word = (word ^ word >> 33) * 0xFF51AFD7ED558CCD & _MASK
    word = (word ^ word >> 33) * 0xC4CEB9FE1A85EC53 & _MASK
    return word ^ word >> 33


def may_match(bit_map: bytes, bits: int, positions: tuple[int, ...]) -> bool:
    """Return whether a message may pass a group's filter.

    Args:
        bit_map: Filter bits of the message; empty if none were computed.
        bits: Number of bits that the positions were computed for.
        positions: Positions of the group.

    Returns:
        False if the message cannot pass. True also if ``bit_map`` has another length, since its
        bits then mean nothing for this group.
    """
    if len(bit_map) * 8 != bits:
        return True
    return all(bit_map[position // 8] >> position % 8 & 1 for position in positions)
