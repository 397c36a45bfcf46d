"""Number of messages of each topic that wait for the timer, as request code 61 returns it.

A recall is subtracted until its message is due: a recalled message counts as if it had left. As in
Java a count may be negative, as a recall may name a message that does not wait; so the order of
counting does not matter. Other than in Java, a second recall of a message is not subtracted, nor a
recall that is republished. Messages come with a hash of their topic, which is cheap to count; the
topic's name is looked up once per hash. Source: rocketmq 5.5.0 ``TimerMetrics``,
``TimerMessageStore``.
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
    """Counts by topic; a topic is never removed."""

    def __init__(self) -> None:
        self._names: dict[int, str] = {}
        self._topics: dict[str, _Topic] = {}
        self._version = 0
        self._changed_ms = 0

    def add(self, topic: str, change: int, now_ms: int) -> None:
        """Add a change of a topic's count.

        A message without a destination has no topic, "", and is not counted.
        """
        if not topic:
            return
        entry = self._topics.setdefault(topic, _Topic())
        entry.count += change
        entry.changed_ms = self._changed_ms = now_ms
        self._version += abs(change)

    def add_all(
        self, hashes: Hashes, change: int, topic_of: Callable[[int], str], now_ms: int
    ) -> None:
        """Count several messages.

        Args:
            hashes: Hash of each message's topic.
            change: 1 for new messages, -1 for messages that left.
            topic_of: Returns the topic of a message by its index in ``hashes``.
            now_ms: The time.
        """
        distinct, firsts, counts = np.unique(hashes, return_index=True, return_counts=True)
        for topic_hash, first, count in zip(
            distinct.tolist(), firsts.tolist(), counts.tolist(), strict=True
        ):
            if topic_hash not in self._names:
                self._names[topic_hash] = topic_of(first)
            self.add(self._names[topic_hash], change * count, now_ms)

    def count(self, topic: str) -> int:
        """Return the number of a topic's messages that wait."""
        entry = self._topics.get(topic)
        return 0 if entry is None else entry.count

    def counts(self) -> dict[str, int]:
        """Return the messages that wait, by topic."""
        return {name: entry.count for name, entry in self._topics.items()}

    def body(self) -> dict[str, object]:
        """Return the reply body of request code 61."""
        return {
            "dataVersion": {
                "counter": self._version,
                "stateVersion": 0,
                "timestamp": self._changed_ms,
            },
            "timingCount": {
                name: {"count": entry.count, "timeStamp": entry.changed_ms}
                for name, entry in self._topics.items()
            },
        }
