"""What every task of an audit is told of the store. Nothing here knows Spark."""

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from reput.spark.jobs.dispatch.extract import LogSource
from reput.store.reader import StoreReader
from reput.store.verify.queue_check import is_deleted

Offsets = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
Codes = npt.NDArray[np.int8]
"""Places of words in ``audit_verdicts.VERDICTS`` and the like."""


@dataclass(frozen=True)
class AuditInputs:
    """What every task needs to know of the store."""

    source: LogSource
    now_ms: int
    sample: int
    is_stopped: bool
    """A broker stopped it cleanly, so that nothing is pending."""
    is_live: bool
    """A broker may be writing."""
    redispatch_from: int
    """From where on a broker puts records into queues that lack them."""
    known_topics: frozenset[str]
    """Those of the topic table; none if it cannot be read."""
    groups: Mapping[str, Mapping[str, Mapping[int, int]]]
    """Topic -> group -> queue id -> consumer offset."""
    delays: Mapping[int, int]
    """Delay level -> queue offset that is delivered next."""
    index_spans: Offsets
    """First and last message of each index file, as ``verify.index.spans_of`` gives them."""

    @cached_property
    def reader(self) -> StoreReader:
        """The store's queues and index; where its log ends, ``source`` says."""
        return StoreReader(self.source.folder, allow_live=True)

    @cached_property
    def queues_there(self) -> dict[str, frozenset[int]]:
        """Plain queues that have files."""
        return {topic: frozenset(ids) for topic, ids in self.reader.queue_ids.items()}

    def __getstate__(self) -> dict[str, object]:
        """Leave what was opened here: a task opens its own."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__}

    def is_deleted(self, topic: str) -> bool:
        """Whether a topic with messages has neither queues nor an entry in the table."""
        return is_deleted(self.reader, self.known_topics, topic)

    def offsets_of(self, topic: str, queue_id: int) -> tuple[Offsets, list[str]]:
        """Return the consumer offsets of a queue in order, and whose each is.

        A group that has read another queue of the topic stands at the beginning of this one.
        """
        found = sorted(
            (offsets.get(queue_id, 0), group)
            for group, offsets in self.groups.get(topic, {}).items()
        )
        return np.array([offset for offset, _ in found], np.int64), [one for _, one in found]


def grouped(
    keys: npt.NDArray[Any], values: npt.NDArray[np.int64]
) -> Iterator[tuple[int, npt.NDArray[np.int64]]]:
    """Yield each key and its values, in their order."""
    if not len(keys):
        return
    order = np.argsort(keys, kind="stable")
    ordered = keys[order]
    edges = [0, *(np.flatnonzero(np.diff(ordered)) + 1).tolist(), len(keys)]
    for low, high in itertools.pairwise(edges):
        yield int(ordered[low]), values[order[low:high]]
