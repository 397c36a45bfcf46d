"""The judged records of a window of the log, and the groups that read them."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from reput.format import kernels
from reput.spark.jobs.audit.inputs import Codes, Offsets


@dataclass
class Judged:
    """A window of records with their verdicts."""

    columns: kernels.Columns
    topic_ids: npt.NDArray[np.int32]
    topics: list[str]
    verdicts: Codes
    """Positions in ``VERDICTS``."""
    reasons: Codes
    """Positions in ``REASONS``."""
    indexed: Codes
    """Positions in ``INDEXED``."""
    stages: Codes
    """Positions in ``STAGES``."""
    due_ms: Offsets
    """Time at which a delayed message is due; 0 for other messages."""
    readers: "Readers"
    tags_codes: Offsets


class Readers:
    """The groups that have consumed each row of a window, and the groups that have not."""

    def __init__(self, count: int) -> None:
        self.set_of = np.full(count, -1, np.int64)
        """Row -> position in ``sets``; -1 for rows without readers."""
        self.sets: list[tuple[list[str], list[str]]] = []
        """Groups that consumed a row, and groups for which it is pending."""
        self._places: dict[tuple[str, int, int], int] = {}

    def put(
        self, topic: str, queue_id: int, rows: Offsets, ranks: Offsets, groups: list[str]
    ) -> None:
        """Record that each row is pending for the first ``rank`` groups."""
        places = np.empty(len(groups) + 1, np.int64)
        for rank in np.unique(ranks).tolist():
            key = (topic, queue_id, rank)
            if key not in self._places:
                self._places[key] = len(self.sets)
                self.sets.append((sorted(groups[rank:]), sorted(groups[:rank])))
            places[rank] = self._places[key]
        self.set_of[rows] = places[ranks]
