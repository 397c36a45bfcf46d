"""How long things took, by powers of two cut into equal parts: exact to 1 in 128, small, fast.

The same idea as HdrHistogram: values below 256 have a bucket each; above, each doubling has 128.
"""

from collections import Counter

_PART_BITS = 7
_PARTS = 1 << _PART_BITS


class Histogram:
    """Counts of values, whole numbers from 0 on, whatever their unit."""

    def __init__(self) -> None:
        self.count = 0
        self.sum = 0
        self.max = 0
        self._counts: Counter[int] = Counter()

    def record(self, value: int) -> None:
        """Count a value; one below 0 counts as 0."""
        value = max(value, 0)
        self.count += 1
        self.sum += value
        if value > self.max:
            self.max = value
        shift = max(0, value.bit_length() - _PART_BITS - 1)
        self._counts[shift * _PARTS + (value >> shift)] += 1

    def add(self, other: "Histogram") -> None:
        """Count what another one has counted."""
        self.count += other.count
        self.sum += other.sum
        self.max = max(self.max, other.max)
        self._counts.update(other._counts)

    def percentile(self, percent: float) -> int | None:
        """Return the value that so many percent are not above, exact to 1 in 128; None of none."""
        if not self.count:
            return None
        wanted = max(1, -(-self.count * percent // 100))
        seen = 0
        for bucket in sorted(self._counts):
            seen += self._counts[bucket]
            if seen >= wanted:
                return min(_highest(bucket), self.max)
        return self.max

    @property
    def mean(self) -> float | None:
        """The mean; None of none."""
        return self.sum / self.count if self.count else None


def _highest(bucket: int) -> int:
    """Return the highest value that counts in a bucket."""
    shift = max(0, bucket // _PARTS - 1)
    return ((bucket - shift * _PARTS + 1) << shift) - 1
