"""Positions of a stream, as in Spark's checkpoints.

A position is a queue offset for each topic, broker and queue: the next message to read. Its JSON
has the form of option ``startingOffsets`` in a fixed order, so that equal positions are equal
texts:

    {"$v": 1, "orders": {"broker-a": {"0": 1200, "1": 1187}}}

``$v`` is the version of this format; topic names cannot contain ``$``. Positions without it are of
version 1 too: checkpoints had none at first.

Queues that appear later start at their first message. Its offset is 0, or recorded under
``$starts`` for the one micro-batch that begins there. Thus two positions define a micro-batch,
which always reads the same messages.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from reput.errors import InvalidOption, ReputError

Offset = dict[str, Any]
"""A position in Spark: topic -> broker -> queue id as text -> queue offset."""

VERSION = "$v"
STARTS = "$starts"
LAG = "$lag"
SOURCE = "$source"
FORMAT_VERSION: Final = 1
"""Version of the positions that this release writes."""


class CheckpointTooNew(ReputError):
    """A checkpoint was written by a later release of reput."""


class QueueKey(NamedTuple):
    """Key of a queue in a stream's position: broker, topic and queue id."""

    topic: str
    broker: str
    queue_id: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.queue_id}" + (f" of {self.broker}" if self.broker else "")


@dataclass(frozen=True)
class Lag:
    """Lag of a stream after its last micro-batch."""

    messages: int
    bytes: int
    """Size in the log, in bytes; estimated above a million messages."""
    oldest_store_timestamp: int | None
    """Store time of the first waiting message, in ms; None without one."""
    data_losses: int
    """Number of data losses since the query started."""
    source: str = field(default="", compare=False)
    """Topics and place of the stream."""


def lag_of(latest_offset: str | Mapping[str, Any]) -> Lag:
    """Return the lag of a stream from one of Spark's progress reports.

    Args:
        latest_offset: ``latestOffset`` of one of a progress' sources: of
            ``query.lastProgress.sources``, or of ``event.progress.sources`` in a listener.

    Raises:
        InvalidOption: There is none: PySpark 4.0 and 4.1 ask sources for no report.
    """
    if latest_offset in (None, "null"):
        raise InvalidOption("latest_offset", None, "what PySpark 4.2 or later reports of a source")
    parsed = json.loads(latest_offset) if isinstance(latest_offset, str) else latest_offset
    lag = parsed.get(LAG, {})
    return Lag(
        lag.get("messages", 0),
        lag.get("bytes", 0),
        lag.get("oldestStoreTimestamp"),
        lag.get("dataLosses", 0),
        parsed.get(SOURCE, ""),
    )


def encode(positions: Mapping[QueueKey, int], starts: Mapping[QueueKey, int]) -> Offset:
    """Encode positions for Spark.

    Args:
        positions: The next queue offset of each queue.
        starts: Start of the queues that are new in the micro-batch that ends here.
    """
    encoded: Offset = {VERSION: FORMAT_VERSION, **_nested(positions)}
    if starts:
        encoded[STARTS] = _nested(starts)
    return encoded


def _nested(positions: Mapping[QueueKey, int]) -> dict[str, dict[str, dict[str, int]]]:
    nested: dict[str, dict[str, dict[str, int]]] = {}
    for (topic, broker, queue_id), offset in sorted(positions.items()):
        nested.setdefault(topic, {}).setdefault(broker, {})[str(queue_id)] = offset
    return nested


def decode(offset: Mapping[str, Any]) -> tuple[dict[QueueKey, int], dict[QueueKey, int]]:
    """Decode the positions of an offset, and the starts of its new queues.

    Raises:
        CheckpointTooNew: Its version is unknown.
    """
    version = offset.get(VERSION, FORMAT_VERSION)
    if version != FORMAT_VERSION:
        raise CheckpointTooNew(
            f"the checkpoint has positions of version {version}, this release of reput reads "
            f"version {FORMAT_VERSION}: continue the query with the release that wrote it or a "
            "later one, or set another checkpointLocation and startingOffsets"
        )
    rest = {topic: brokers for topic, brokers in offset.items() if not topic.startswith("$")}
    return _flat(rest), _flat(offset.get(STARTS, {}))


def _flat(nested: Mapping[str, Mapping[str, Mapping[str, int]]]) -> dict[QueueKey, int]:
    return {
        QueueKey(topic, broker, int(queue_id)): number
        for topic, brokers in nested.items()
        for broker, queues in brokers.items()
        for queue_id, number in queues.items()
    }
