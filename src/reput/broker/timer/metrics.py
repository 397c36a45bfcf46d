"""How many messages of each topic wait for the timer: what code 61 tells.

Messages come with a hash of their topic, which costs nothing to count; what topic that is is asked
once. Source: rocketmq 5.5.0 ``TimerMetrics``.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Hashes = npt.NDArray[np.int64]


@dataclass(slots=True)
class _Topic:
    count: int = 0
    changed_ms: int = 0


class TimerMetrics:
    """Counts by topic; a topic stays once it was seen."""

    def __init__(self) -> None:
        self._names: dict[int, str] = {}
        self._topics: dict[str, _Topic] = {}
        self._version = 0
        self._changed_ms = 0

    def add(self, topic: str, change: int, now_ms: int) -> None:
        """Count messages of a topic that came, or left."""
        found = self._topics.setdefault(topic, _Topic())
        found.count = max(found.count + change, 0)
        found.changed_ms = self._changed_ms = now_ms
        self._version += abs(change)

    def add_all(
        self, hashes: Hashes, change: int, topic_of: Callable[[int], str], now_ms: int
    ) -> None:
        """Count messages.

        Args:
            hashes: Of the topic of each.
            change: 1: they came; -1: they left.
            topic_of: Returns the topic of one, by its number among them.
            now_ms: The time.
        """
        found, firsts, counts = np.unique(hashes, return_index=True, return_counts=True)
        for one, first, count in zip(found.tolist(), firsts.tolist(), counts.tolist(), strict=True):
            if one not in self._names:
                self._names[one] = topic_of(first)
            self.add(self._names[one], change * count, now_ms)

    def body(self) -> dict[str, object]:
        """Return what is told of it."""
        return {
            "dataVersion": {
                "counter": self._version,
                "stateVersion": 0,
                "timestamp": self._changed_ms,
            },
            "timingCount": {
                name: {"count": one.count, "timeStamp": one.changed_ms}
                for name, one in self._topics.items()
            },
        }
