"""Where a stream is, as Spark's checkpoints keep it.

A position is a queue offset for each topic, broker and queue: the next message to read. As JSON it
has the shape of option ``startingOffsets``, always in the same order, so that equal positions are
equal texts:

    {"orders": {"broker-a": {"0": 1200, "1": 1187}}}

Queues that appear later start at their first message. That is 0, or the position has the number
under ``$starts`` for the one micro-batch that begins there; ``$`` cannot be part of a topic's name.
So a micro-batch is told by two positions alone and reads the same messages however often.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

Offset = dict[str, Any]
"""A position as Spark keeps it: topic -> broker -> queue id as text -> queue offset."""

STARTS = "$starts"
LAG = "$lag"


class QueueKey(NamedTuple):
    """A queue of a position."""

    topic: str
    broker: str
    queue_id: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.queue_id}" + (f" of {self.broker}" if self.broker else "")


@dataclass(frozen=True)
class Lag:
    """How far a stream is behind the end of its queues, once its last micro-batch is through."""

    messages: int
    bytes: int
    """Of log; of more than a million messages, about."""
    oldest_store_timestamp: int | None
    """Of the first message that waits, ms; None if none waits."""
    data_losses: int
    """How often something was gone, since the query was started."""


def lag_of(latest_offset: str | Mapping[str, Any]) -> Lag:
    """Return what a progress report of Spark tells of a stream's lag.

    Args:
        latest_offset: ``latestOffset`` of one of a progress' sources: of
            ``query.lastProgress.sources``, or of ``event.progress.sources`` in a listener.
    """
    parsed = json.loads(latest_offset) if isinstance(latest_offset, str) else latest_offset
    told = parsed.get(LAG, {})
    return Lag(
        told.get("messages", 0),
        told.get("bytes", 0),
        told.get("oldestStoreTimestamp"),
        told.get("dataLosses", 0),
    )


def encode(positions: Mapping[QueueKey, int], starts: Mapping[QueueKey, int]) -> Offset:
    """Return positions as Spark keeps them.

    Args:
        positions: The next queue offset of each queue.
        starts: Where the micro-batch that ends here begins those queues that are new in it.
    """
    encoded: Offset = _nested(positions)
    if starts:
        encoded[STARTS] = _nested(starts)
    return encoded


def _nested(positions: Mapping[QueueKey, int]) -> dict[str, dict[str, dict[str, int]]]:
    nested: dict[str, dict[str, dict[str, int]]] = {}
    for (topic, broker, queue_id), offset in sorted(positions.items()):
        nested.setdefault(topic, {}).setdefault(broker, {})[str(queue_id)] = offset
    return nested


def decode(offset: Mapping[str, Any]) -> tuple[dict[QueueKey, int], dict[QueueKey, int]]:
    """Return the positions of an offset, and where queues begin that are new in it."""
    rest = {topic: brokers for topic, brokers in offset.items() if not topic.startswith("$")}
    return _flat(rest), _flat(offset.get(STARTS, {}))


def _flat(nested: Mapping[str, Mapping[str, Mapping[str, int]]]) -> dict[QueueKey, int]:
    return {
        QueueKey(topic, broker, int(queue_id)): number
        for topic, brokers in nested.items()
        for broker, queues in brokers.items()
        for queue_id, number in queues.items()
    }
