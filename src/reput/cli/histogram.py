"""A histogram with a relative error of at most 1/128.

The idea is HdrHistogram's: values below 256 have a bucket each; above, each doubling has 128.
"""

from collections import Counter

_PART_BITS = 7
_PARTS = 1 << _PART_BITS


class Histogram:
    """Counts of integers from 0 on, in any unit."""

    def __init__(self) -> None:
        self.count = 0
        self.sum = 0
        self.max = 0
        self._counts: Counter[int] = Counter()

    def record(self, value: int) -> None:
        """Count a value; a negative one counts as 0."""
        value = max(value, 0)
        self.count += 1
        self.sum += value
        if value > self.max:
            self.max = value
        shift = max(0, value.bit_length() - _PART_BITS - 1)
        self._counts[shift * _PARTS + (value >> shift)] += 1

    def add(self, other: "Histogram") -> None:
        """Add the counts of another histogram."""
        self.count += other.count
        self.sum += other.sum
        self.max = max(self.max, other.max)
        self._counts.update(other._counts)

    def percentile(self, percent: float) -> int | None:
        """Return a percentile, with a relative error of at most 1/128; None without values."""
        if not self.count:
            return None
        rank = max(1, -(-self.count * percent // 100))
        cumulative = 0
        for bucket in sorted(self._counts):
            cumulative += self._counts[bucket]
            if cumulative >= rank:
                return min(_highest(bucket), self.max)
        return self.max

    @property
    def mean(self) -> float | None:
        """Mean of the values; None without values."""
        return self.sum / self.count if self.count else None


def _highest(bucket: int) -> int:
    """Return the highest value of a bucket."""
    shift = max(0, bucket // _PARTS - 1)
    return ((bucket - shift * _PARTS + 1) << shift) - 1
