"""Bloom filter positions of a consumer group on a topic, as ``consumerFilter.json`` has them.

A message's filter bits have those of each group whose SQL filter takes it (``cq_unit.ExtUnit``).
The hash is murmur3_128, seed 0, of which only the first 64 bits count. Java: ``BloomFilter`` of
rocketmq-filter, Guava's ``Murmur3_128HashFunction``.
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
    """How many bits there are, and how many of them are a group's."""

    bits: int
    """Length of a message's bits; a multiple of 8."""
    positions: int
    """Positions of a group on a topic; some may be equal."""

    @classmethod
    def of(cls, error_percent: int, group_count: int) -> "BloomFilter":
        """Return the filter for some groups.

        Args:
            error_percent: Of the messages that no filter of a group takes, how many may have all
                bits of the group nevertheless; 1 to 99.
            group_count: With how many groups on a topic.
        """
        rate = error_percent / 100
        positions = math.ceil(math.log(rate) / math.log(0.5))
        bits = math.ceil(group_count * math.log(1 / rate) / math.log(2) / math.log(2))
        return cls(-(-bits // 8) * 8, positions)

    def positions_of(self, group: str, topic: str) -> tuple[int, ...]:
        """Return the positions of a group on a topic, each below ``bits``."""
        value = murmur3(java.encode_utf8(f"{group}#{topic}"))
        low, high = value & 0xFFFFFFFF, value >> 32
        found = []
        for number in range(1, self.positions + 1):
            combined = (low + number * high) & 0xFFFFFFFF
            if combined >> 31:
                combined ^= 0xFFFFFFFF  # a negative int has its bits turned, in Java
            found.append(combined % self.bits)
        return tuple(found)


def murmur3(data: bytes) -> int:
    """Return the first 64 bits of murmur3_128 with seed 0, as an unsigned number."""
    one = other = 0
    end = len(data) // _BLOCK * _BLOCK
    for at in range(0, end, _BLOCK):
        one ^= _mixed_one(int.from_bytes(data[at : at + 8], "little"))
        one = (_rotated(one, 27) + other) * 5 + 0x52DCE729 & _MASK
        other ^= _mixed_other(int.from_bytes(data[at + 8 : at + _BLOCK], "little"))
        other = (_rotated(other, 31) + one) * 5 + 0x38495AB5 & _MASK
    one ^= _mixed_one(int.from_bytes(data[end : end + 8], "little"))
    other ^= _mixed_other(int.from_bytes(data[end + 8 :], "little"))
    one ^= len(data)
    other ^= len(data)
    one = one + other & _MASK
    other = other + one & _MASK
    return _final(one) + _final(other) & _MASK


def _mixed_one(word: int) -> int:
    return _rotated(word * _C1 & _MASK, 31) * _C2 & _MASK


def _mixed_other(word: int) -> int:
    return _rotated(word * _C2 & _MASK, 33) * _C1 & _MASK


def _rotated(word: int, by: int) -> int:
    return (word << by | word >> 64 - by) & _MASK


def _final(word: int) -> int:
    word = (word ^ word >> 33) * 0xFF51AFD7ED558CCD & _MASK
    word = (word ^ word >> 33) * 0xC4CEB9FE1A85EC53 & _MASK
    return word ^ word >> 33


def may_match(bit_map: bytes, bits: int, positions: tuple[int, ...]) -> bool:
    """Whether a message may be one that a group's filter takes.

    Args:
        bit_map: The message's filter bits; empty if none were computed.
        bits: Length of bits that the group's positions are for.
        positions: The group's.

    Returns:
        True as well if the bits are of another length: they say nothing of this group.
    """
    if len(bit_map) * 8 != bits:
        return True
    return all(bit_map[position // 8] >> position % 8 & 1 for position in positions)
