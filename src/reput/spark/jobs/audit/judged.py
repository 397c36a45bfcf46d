"""Judged records of a window of the log, and the groups that read them."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from reput.format import kernels
from reput.spark.jobs.audit.inputs import Codes, Offsets


@dataclass
class Judged:
    """A window of records, and what is said of each."""

    columns: kernels.Columns
    topic_ids: npt.NDArray[np.int32]
    topics: list[str]
    verdicts: Codes
    """Places in ``VERDICTS``, and so on."""
    reasons: Codes
    indexed: Codes
    stages: Codes
    due_ms: Offsets
    """When a delayed message is due; 0 of others."""
    readers: "Readers"
    tags_codes: Offsets


class Readers:
    """Which groups have read, and have to read, each row of a window."""

    def __init__(self, count: int) -> None:
        self.set_of = np.full(count, -1, np.int64)
        """Row -> place in ``sets``; -1 for rows that nobody reads."""
        self.sets: list[tuple[list[str], list[str]]] = []
        """Groups that consumed, and for which it is pending."""
        self._places: dict[tuple[str, int, int], int] = {}

    def put(self, topic: str, queue_id: int, rows: Offsets, ranks: Offsets, who: list[str]) -> None:
        """Say that for each row so many groups, the first ones, are not past it."""
        places = np.empty(len(who) + 1, np.int64)
        for rank in np.unique(ranks).tolist():
            key = (topic, queue_id, rank)
            if key not in self._places:
                self._places[key] = len(self.sets)
                self.sets.append((sorted(who[rank:]), sorted(who[:rank])))
            places[rank] = self._places[key]
        self.set_of[rows] = places[ranks]
