"""Which queue the next message goes to: round robin, around brokers that are slow or failed.

Source: rocketmq 4.9.7 ``TopicPublishInfo``, ``MQFaultStrategy``, ``LatencyFaultToleranceImpl``.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass

from reput.format.bodies import MessageQueue

LATENCY_STEPS = (
    # latency from, ms -> avoided for, ms
    (15_000, 600_000),
    (3_000, 180_000),
    (2_000, 120_000),
    (1_000, 60_000),
    (550, 30_000),
)
"""How long a broker is avoided after an answer that took this long; below the last: not at all."""
FAILURE_COUNTS_AS_MS = 30_000
"""The latency of a request that failed."""


def avoidance_ms(latency_ms: int) -> int:
    """Return for how long a broker is avoided that answered after ``latency_ms``."""
    return next((rest_ms for least_ms, rest_ms in LATENCY_STEPS if latency_ms >= least_ms), 0)


@dataclass(slots=True)
class _Broker:
    latency_ms: int
    avoided_until_ms: int


_GOOD = _Broker(0, 0)


class SlowBrokers:
    """The brokers that answered late or not at all, and until when each is avoided."""

    def __init__(self) -> None:
        self._brokers: dict[str, _Broker] = {}

    def record(self, broker_name: str, latency_ms: int, now_ms: int) -> None:
        """Take note of how long a broker took."""
        until_ms = now_ms + avoidance_ms(latency_ms)
        self._brokers[broker_name] = _Broker(latency_ms, until_ms)

    def is_available(self, broker_name: str, now_ms: int) -> bool:
        """Whether nothing speaks against a broker any more."""
        known = self._brokers.get(broker_name)
        return known is None or now_ms >= known.avoided_until_ms

    def least_bad(self, broker_names: Sequence[str]) -> str:
        """Return which of some avoided brokers is to be tried first: that soonest good again."""

        def badness(name: str) -> tuple[int, int]:
            known = self._brokers.get(name, _GOOD)
            return known.avoided_until_ms, known.latency_ms

        return min(broker_names, key=badness)


class QueueChoice:
    """Chooses queues, topic by topic.

    Args:
        slow_brokers: Who is avoided; None: only the broker of the attempt before.
        rng: Where each topic begins, so that many producers do not begin at the same queue.
    """

    def __init__(
        self, slow_brokers: SlowBrokers | None = None, rng: random.Random | None = None
    ) -> None:
        self._slow_brokers = slow_brokers
        self._rng = rng or random.Random()
        self._next: dict[str, int] = {}

    def choose(
        self, topic: str, queues: Sequence[MessageQueue], now_ms: int, last_broker: str | None
    ) -> MessageQueue:
        """Return the queue for a message, or for a further attempt.

        Args:
            topic: Each has its own round.
            queues: That may be written to; at least one.
            now_ms: Of a clock that never goes backwards.
            last_broker: Whose attempt failed.
        """
        count = len(queues)
        first = self._next.get(topic)
        if first is None:
            first = self._rng.randrange(count)
        if last_broker is None and self._slow_brokers is None:
            self._next[topic] = (first + 1) % count
            return queues[first % count]
        for step in range(count):
            queue = queues[(first + step) % count]
            if queue.broker_name != last_broker and self._is_available(queue, now_ms):
                self._next[topic] = (first + step + 1) % count
                return queue
        self._next[topic] = (first + 1) % count
        others = sorted({queue.broker_name for queue in queues} - {last_broker})
        if self._slow_brokers is not None and others:
            best = self._slow_brokers.least_bad(others)
            queues = [queue for queue in queues if queue.broker_name == best]
        return queues[first % len(queues)]

    def _is_available(self, queue: MessageQueue, now_ms: int) -> bool:
        slow = self._slow_brokers
        return slow is None or slow.is_available(queue.broker_name, now_ms)
