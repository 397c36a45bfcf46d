"""Batch queues of 5.x (queue.type=BatchCQ), read: one unit a batch, which is one record.

Nothing here writes them. Topics with such queues take no more messages; what Java's broker has put
there is handed out, a whole batch at a time. Layout: docs/formats/consume-queue.md.
"""

import os
from collections.abc import Iterator

import numpy as np

from reput.format.cq_unit import BatchUnit
from reput.store import paths
from reput.store.commit_log import CommitLog
from reput.store.consume_queue_view import BatchConsumeQueueView
from reput.store.files import open_folder


class BatchQueue:
    """A batch queue, as it stood when it was first asked for.

    Args:
        view: Its files.
        log: Where its records are, as long as they are.
    """

    def __init__(self, view: BatchConsumeQueueView, log: CommitLog) -> None:
        self._units = view.units
        self._view = view
        self._log = log
        self.max_offset = view.max_offset
        """The queue offset behind the last message."""

    @property
    def min_offset(self) -> int:
        """The first queue offset of a batch that is still in the log, else ``max_offset``."""
        alive = np.flatnonzero(self._units["physical_offset"] >= self._log.min_offset)
        return int(self._units["queue_offset"][alive[0]]) if len(alive) else self.max_offset

    def units_from(self, queue_offset: int) -> Iterator[BatchUnit]:
        """Yield the unit of the batch that holds a queue offset, and those behind it."""
        first = int(np.searchsorted(self._units["queue_offset"], queue_offset, "right")) - 1
        for place in range(max(first, 0), len(self._units)):
            yield self._view.unit(int(self._units["queue_offset"][place]))

    def unit(self, queue_offset: int) -> BatchUnit | None:
        """Return the unit of the batch that holds a queue offset; None if there is none."""
        found = next(self.units_from(queue_offset), None) if queue_offset >= 0 else None
        if found is None:
            return None
        behind = found.queue_offset + found.message_count
        return found if found.queue_offset <= queue_offset < behind else None

    def starts(self) -> list[tuple[int, int]]:
        """Return (store time, first queue offset) of each batch in the log, in their order."""
        units = self._units[self._units["physical_offset"] >= self._log.min_offset]
        return list(
            zip(units["store_timestamp"].tolist(), units["queue_offset"].tolist(), strict=True)
        )


class BatchQueues:
    """The batch queues of a store.

    Args:
        root: Folder of the store.
        log: Its log.
    """

    def __init__(self, root: str, log: CommitLog) -> None:
        self.topics: frozenset[str] = frozenset()
        """Those that have such queues."""
        self._root = root
        self._log = log
        self._queues: dict[tuple[str, int], BatchQueue | None] = {}

    def load(self) -> None:
        """Look which there are."""
        try:
            names = os.listdir(f"{self._root}/{paths.BATCH_CONSUME_QUEUE}")  # noqa: PTH208 - names
        except FileNotFoundError:
            names = []
        self.topics = frozenset(names)
        self._queues.clear()

    def find(self, topic: str, queue_id: int) -> BatchQueue | None:
        """Return a queue, or None."""
        if topic not in self.topics:
            return None
        key = topic, queue_id
        if key not in self._queues:
            view = BatchConsumeQueueView(
                open_folder(self._root), topic, queue_id, self._log.min_offset
            )
            self._queues[key] = BatchQueue(view, self._log) if view.files else None
        return self._queues[key]
