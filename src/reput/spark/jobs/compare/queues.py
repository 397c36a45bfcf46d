"""Compare the units of queues, as runs of queue offsets."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from reput.spark.jobs import queue_runs
from reput.spark.jobs.compare.findings import DIFFERENT, ONLY_LEFT, ONLY_RIGHT, Mismatch
from reput.spark.jobs.compare.two_stores import TwoStores
from reput.store.queues.consume_queue_view import UnitArray
from reput.store.reader import StoreReader

Offsets = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class QueuePart:
    """Units ``[start, stop)`` of a queue."""

    topic: str
    queue_id: int
    start: int
    stop: int
    is_batch: bool = False


def in_queue(both: TwoStores, part: QueuePart) -> Iterator[Mismatch]:
    """Yield runs of units that only one side has, or that differ in the same fields."""
    left, right = both.readers
    (ours, mine), (theirs, other) = (_units(side, part) for side in (left, right))
    common, at_left, at_right = np.intersect1d(
        ours, theirs, assume_unique=True, return_indices=True
    )
    name = f"{'batch queue' if part.is_batch else 'queue'} {part.topic}/{part.queue_id}"
    mismatches = [
        *_units_alone(name, part, np.setdiff1d(ours, common), ONLY_LEFT),
        *_units_alone(name, part, np.setdiff1d(theirs, common), ONLY_RIGHT),
    ]
    mine, other = mine[at_left], other[at_right]
    fields = [name for name in mine.dtype.names or () if name not in both.ignore]
    differs = np.zeros(len(common), np.int64)
    for bit, field in enumerate(fields):
        differs |= (mine[field] != other[field]).astype(np.int64) << bit
    for mask in np.unique(differs[differs != 0]).tolist():
        rows = np.flatnonzero(differs == mask)
        names = [field for bit, field in enumerate(fields) if mask >> bit & 1]
        for start, stop in queue_runs.of(common[rows]):
            row = int(np.searchsorted(common, start))
            a = ", ".join(f"{field} {mine[field][row]}" for field in names)
            b = ", ".join(f"{field} {other[field][row]}" for field in names)
            mismatches.append(
                Mismatch(
                    "queues",
                    DIFFERENT,
                    f"{name}: {queue_runs.text(start, stop)} differ; the first: "
                    f"left {a}, right {b}",
                    count=stop - start,
                    topic=part.topic,
                    queue_id=part.queue_id,
                    queue_offset=start,
                    field=",".join(names),
                    left=a,
                    right=b,
                )
            )
    yield from sorted(mismatches, key=lambda mismatch: mismatch.queue_offset or 0)


def _units(reader: StoreReader, part: QueuePart) -> tuple[Offsets, UnitArray]:
    if not part.is_batch:
        return reader.queue(part.topic, part.queue_id).units(part.start, part.stop)
    units = reader.batch_queue(part.topic, part.queue_id).units
    offsets = units["queue_offset"].astype(np.int64)
    inside = (offsets >= part.start) & (offsets < part.stop)
    return offsets[inside], units[inside]


def _units_alone(name: str, part: QueuePart, offsets: Offsets, kind: str) -> Iterator[Mismatch]:
    side = "left" if kind == ONLY_LEFT else "right"
    for start, stop in queue_runs.of(offsets):
        yield Mismatch(
            "queues",
            kind,
            f"{name}: {queue_runs.text(start, stop)} only on the {side}",
            count=stop - start,
            topic=part.topic,
            queue_id=part.queue_id,
            queue_offset=start,
        )
