"""Streams without Spark: positions as from a checkpoint, tasks pickled as for an executor.

stream = streams.open_stream(path=store, startingOffsets="earliest")
for batch in streams.batches(stream, stream.initial_offset(), TriggerLimits(max_offsets=50)):
    streams.places(batch)
"""

import json
import pickle
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from reput.clock import Clock
from reput.spark import options as option_texts, rows
from reput.spark.options import TriggerLimits
from reput.spark.streaming.positions import Offset
from reput.spark.streaming.stream import QueueStream
from spark import reading
from spark.reading import Row

Place = tuple[str, int, int]
"""Topic, queue id, queue offset."""


def open_stream(clock: Clock | None = None, **given: Any) -> QueueStream:
    """Return a stream of these options, pickled once unless it has a clock."""
    parsed = option_texts.parse_stream(reading.texts(given))
    stream = QueueStream(parsed, parsed.columns or list(rows.message_fields(parsed)), clock)
    return stream if clock else pickle.loads(pickle.dumps(stream))


def rows_of(stream: QueueStream, tasks: Sequence[Any]) -> list[Row]:
    """Read tasks, each pickled as for an executor."""
    return [
        row for task in pickle.loads(pickle.dumps(tasks)) for row in reading.task_rows(stream, task)
    ]


def batch_of(stream: QueueStream, start: Offset, end: Offset) -> list[Row]:
    """Return the rows of a micro-batch."""
    start, end = (json.loads(json.dumps(offset)) for offset in (start, end))
    return rows_of(stream, stream.tasks(start, end))


def batches(
    stream: QueueStream, start: Offset, limits: TriggerLimits | None = None
) -> Iterator[list[Row]]:
    """Yield every micro-batch after a position, until no messages are left."""
    while (end := stream.latest_offset(start, limits)) != start:
        yield batch_of(stream, start, end)
        start = end


def everything(stream: QueueStream, limits: TriggerLimits | None = None) -> list[Row]:
    """Return the rows of all micro-batches, in log order."""
    read_rows = [row for batch in batches(stream, stream.initial_offset(), limits) for row in batch]
    return sorted(read_rows, key=lambda row: row["physical_offset"])


def places(read_rows: Iterable[Row]) -> list[Place]:
    """Return the places of rows, in order."""
    return sorted((row["topic"], row["queue_id"], row["queue_offset"]) for row in read_rows)


def places_of(messages: Iterable[Any]) -> list[Place]:
    """Return the places of messages, in order."""
    return sorted((message.topic, message.queue_id, message.queue_offset) for message in messages)
