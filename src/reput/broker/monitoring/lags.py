"""Consumer lag of the groups that lag most, measured in slices.

Only the worst pairs of topic and group have series, and of these the age of the oldest message is
read: each read may go to the disk. Pairs with equal lags keep their series from one measurement to
the next.
"""

import heapq
from collections.abc import Collection
from dataclasses import dataclass, field

from reput.broker.parts import Parts
from reput.remoting.metrics_server import Turns

STORE_TIMES_MAX = 2_000
"""Messages whose store time a measurement reads, each possibly from disk."""

Pair = tuple[str, str]
"""Topic and group."""


@dataclass(slots=True)
class Lags:
    """The lags of a measurement."""

    messages: dict[Pair, int] = field(default_factory=dict)
    """Messages after the consumer offset, of the worst pairs, the worst first."""
    seconds: dict[Pair, float] = field(default_factory=dict)
    """Age of the oldest unconsumed message in the worst queue, for the pairs that were read."""
    other_messages: int | None = None
    """Messages of all other pairs; None if there are none."""


async def measure(parts: Parts, count_max: int, named: Collection[Pair], turns: Turns) -> Lags:
    """Return the lags of the worst pairs, and the sum of all others.

    Args:
        parts: The parts of the broker.
        count_max: Number of pairs at most.
        named: The pairs of the previous measurement, which have priority at equal lags.
        turns: Pauses for other tasks.
    """
    lags = Lags()
    # The smallest lag is first. Of equal lags, the first names stay.
    worst: list[tuple[int, bool, _Reversed]] = []
    await turns.rest()
    for pair in list(parts.deliveries.consumer_offsets.readers()):
        await turns.rest()
        entry = await _messages(parts, pair, turns), pair in named, _Reversed(pair)
        if len(worst) < count_max:
            heapq.heappush(worst, entry)
        else:
            smallest = heapq.heappushpop(worst, entry)
            lags.other_messages = (lags.other_messages or 0) + smallest[0]
    now_ms, left = parts.clock.now_ms(), STORE_TIMES_MAX
    for lag, _, name in sorted(worst, reverse=True):
        await turns.rest()
        lags.messages[name.pair] = lag
        if not lag:
            lags.seconds[name.pair] = 0.0
        elif left > 0:
            oldest_ms = now_ms
            for queue_id, consumer_offset in _offsets(parts, name.pair).items():
                stored_ms = None
                next_offset = _next_offset(parts, name.pair[0], queue_id, consumer_offset)
                if next_offset < parts.store.max_offset(name.pair[0], queue_id):
                    await turns.rest()
                    left -= 1
                    stored_ms = parts.store.store_time(name.pair[0], queue_id, next_offset)
                oldest_ms = min(oldest_ms, now_ms if stored_ms is None else stored_ms)
            lags.seconds[name.pair] = max(0, now_ms - oldest_ms) / 1000
    return lags


class _Reversed:
    """A pair in reversed order, so that a heap drops the last name first."""

    __slots__ = ("pair",)

    def __init__(self, pair: Pair) -> None:
        self.pair = pair

    def __lt__(self, other: "_Reversed") -> bool:
        return other.pair < self.pair


async def _messages(parts: Parts, pair: Pair, turns: Turns) -> int:
    """Return the messages after the consumer offsets of all queues."""
    topic, lag = pair[0], 0
    for queue_id, consumer_offset in _offsets(parts, pair).items():
        await turns.rest()
        next_offset = _next_offset(parts, topic, queue_id, consumer_offset)
        lag += max(0, parts.store.max_offset(topic, queue_id) - next_offset)
    return lag


def _offsets(parts: Parts, pair: Pair) -> dict[int, int]:
    return parts.deliveries.consumer_offsets.of(*pair)


def _next_offset(parts: Parts, topic: str, queue_id: int, consumer_offset: int) -> int:
    return max(consumer_offset, parts.store.min_offset(topic, queue_id))
