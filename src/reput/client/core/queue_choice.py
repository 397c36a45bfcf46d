"""Choice of the queue for the next message: round robin, avoiding slow and failed brokers.

Source: rocketmq 4.9.7 ``TopicPublishInfo``, ``MQFaultStrategy``, ``LatencyFaultToleranceImpl``.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass

from reput.format.bodies import MessageQueue

LATENCY_STEPS = (
    # minimum latency in ms -> avoided for, ms
    (15_000, 600_000),
    (3_000, 180_000),
    (2_000, 120_000),
    (1_000, 60_000),
    (550, 30_000),
)
"""Time for which a broker is avoided, by latency of its reply; below the last entry it is not."""
FAILURE_COUNTS_AS_MS = 30_000
"""Latency that a failed request counts as, in ms."""


def avoidance_ms(latency_ms: int) -> int:
    """Return the time for which a broker is avoided after a latency, in ms."""
    return next((rest_ms for least_ms, rest_ms in LATENCY_STEPS if latency_ms >= least_ms), 0)


@dataclass(slots=True)
class _Broker:
    latency_ms: int
    avoided_until_ms: int


_GOOD = _Broker(0, 0)


class SlowBrokers:
    """Brokers that replied late or not at all, each with the time until which it is avoided."""

    def __init__(self) -> None:
        self._brokers: dict[str, _Broker] = {}

    def record(self, broker_name: str, latency_ms: int, now_ms: int) -> None:
        """Record the latency of a broker."""
        until_ms = now_ms + avoidance_ms(latency_ms)
        self._brokers[broker_name] = _Broker(latency_ms, until_ms)

    def is_available(self, broker_name: str, now_ms: int) -> bool:
        """Return whether a broker is not avoided."""
        known = self._brokers.get(broker_name)
        return known is None or now_ms >= known.avoided_until_ms

    def least_bad(self, broker_names: Sequence[str]) -> str:
        """Return the avoided broker that becomes available first."""

        def badness(name: str) -> tuple[int, int]:
            known = self._brokers.get(name, _GOOD)
            return known.avoided_until_ms, known.latency_ms

        return min(broker_names, key=badness)


class QueueChoice:
    """Chooses queues, per topic.

    Args:
        slow_brokers: Brokers to avoid; None: avoid only the broker of the previous attempt.
        rng: Chooses the first queue of each topic, so that producers start at different queues.
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
        """Return the queue for a message, or for a retry.

        Args:
            topic: The topic; each has its own round.
            queues: Writable queues; at least one.
            now_ms: Monotonic time in ms.
            last_broker: Broker of the failed attempt.
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
