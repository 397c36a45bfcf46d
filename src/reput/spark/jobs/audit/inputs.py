"""The facts of a store that every task of an audit needs. Nothing here knows Spark."""

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from reput.spark.jobs.dispatch.extract import LogSource
from reput.spark.jobs.dispatch.write_plan import QueueKey
from reput.store.reader import StoreReader

Offsets = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
Codes = npt.NDArray[np.int8]
"""Positions of words in ``verdicts.VERDICTS`` and similar tuples."""


@dataclass(frozen=True)
class AuditInputs:
    """The facts of a store that every task needs."""

    source: LogSource
    now_ms: int
    sample: int
    is_stopped: bool
    """A broker stopped the store cleanly, so that nothing is pending."""
    is_live: bool
    """A broker may be writing."""
    redispatch_from: int
    """Physical offset from which a broker puts records into queues that lack them."""
    known_topics: frozenset[str]
    """Topics of the topic table; none if it cannot be read."""
    groups: Mapping[str, Mapping[str, Mapping[int, int]]]
    """Topic -> group -> queue id -> consumer offset."""
    delays: Mapping[int, int]
    """Delay level -> queue offset that is delivered next."""
    index_spans: Offsets
    """First and last message of each index file, from ``verify.index_check.spans_of``."""

    @cached_property
    def reader(self) -> StoreReader:
        """The store's queues and index; ``source`` has the end of the log."""
        return StoreReader(self.source.folder, allow_live=True)

    @cached_property
    def plain_queues(self) -> dict[str, frozenset[int]]:
        """Topic -> ids of its consume queues that have files."""
        return {topic: frozenset(ids) for topic, ids in self.reader.queue_ids.items()}

    def __getstate__(self) -> dict[str, object]:
        """Leave out the opened reader: a task opens its own."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__}

    def has_queue(self, key: QueueKey) -> bool:
        """Return whether a consume queue has files."""
        topic, queue_id = key
        return queue_id in self.plain_queues.get(topic, ())

    def offsets_of(self, topic: str, queue_id: int) -> tuple[Offsets, list[str]]:
        """Return the consumer offsets of a queue in ascending order, and the group of each.

        A group with an offset of another queue of the topic only is at 0.
        """
        offsets = sorted(
            (by_queue.get(queue_id, 0), group)
            for group, by_queue in self.groups.get(topic, {}).items()
        )
        groups = [group for _, group in offsets]
        return np.array([consumer_offset for consumer_offset, _ in offsets], np.int64), groups


def grouped(
    keys: npt.NDArray[Any], values: npt.NDArray[np.int64]
) -> Iterator[tuple[int, npt.NDArray[np.int64]]]:
    """Yield each key with its values, in their order."""
    if not len(keys):
        return
    order = np.argsort(keys, kind="stable")
    ordered = keys[order]
    edges = [0, *(np.flatnonzero(np.diff(ordered)) + 1).tolist(), len(keys)]
    for low, high in itertools.pairwise(edges):
        yield int(ordered[low]), values[order[low:high]]
