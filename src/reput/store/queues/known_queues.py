"""The list of an open store's queues on disk, which shows after a crash that a queue is missing.

Only reput has this file. It contains all queues with units of records before the checkpoint's
queue offset, and may contain more; it is durable before that offset is. Without it, only a
consumer offset would show that a queue existed, and clients may commit one for any queue.
"""

import json
from pathlib import Path

from reput.store.files import paths
from reput.store.files.disk import Disk
from reput.store.hot_state import HotState
from reput.store.queues.batch_queue import BatchQueues
from reput.store.queues.consume_queues import ConsumeQueues

QueueKey = tuple[str, int]
"""Topic and queue id."""


class KnownQueues:
    """Writes the list of queues when there are new ones.

    Args:
        root: Folder of the store.
        disk: Writes the file.
        hot_state: Counts the queues that were created.
        queues: All plain queues.
        batch_queues: All batch queues.
    """

    def __init__(
        self,
        root: str,
        disk: Disk,
        hot_state: HotState,
        queues: ConsumeQueues,
        batch_queues: BatchQueues,
    ) -> None:
        self._root = root
        self._path = f"{root}/{paths.KNOWN_QUEUES}"
        self._disk = disk
        self._hot = hot_state
        self._queues = queues
        self._batch_queues = batch_queues
        self._written_count = 0
        """Number of created queues when the list was written."""

    def load(self) -> frozenset[QueueKey] | None:
        """Return the queues on the list; None if there is none, or it cannot be read."""
        try:
            listed = json.loads(Path(self._path).read_bytes())
            return frozenset((topic, queue_id) for topic, ids in listed.items() for queue_id in ids)
        except (OSError, ValueError, TypeError, AttributeError):
            return None

    def trust(self) -> None:
        """Accept the file as the list of all queues so far: a clean stop has written it."""
        self._written_count = self._hot.made_queue_count

    def adopt(self, listed: frozenset[QueueKey] | None) -> None:
        """Write the list at a start, unless ``load`` returned exactly the existing queues.

        Raises:
            WriteFailed: The disk failed.
        """
        if listed == self._names():
            self.trust()
        else:
            self.save()

    def save(self) -> None:
        """Write the list, durably, if queues were created since; in any thread.

        Raises:
            WriteFailed: The disk failed.
        """
        made_count = self._hot.made_queue_count  # read first: later ones are on the next list
        if made_count == self._written_count:
            return
        # By topic, not by queue: while the disk thread works through 80,000 queues, the loop waits
        # for the interpreter's lock after each of its system calls.
        by_topic = self._queues.ids_by_topic()
        for queue in list(self._batch_queues):
            by_topic.setdefault(queue.topic, []).append(queue.queue_id)
        topics = (f"{json.dumps(topic)}:{ids}" for topic, ids in by_topic.items())
        self._disk.replace(self._path, ("{" + ",\n".join(topics) + "}").encode("ascii"))
        self._written_count = made_count

    def _names(self) -> frozenset[QueueKey]:
        families = (self._queues.snapshot(), list(self._batch_queues))
        return frozenset((queue.topic, queue.queue_id) for family in families for queue in family)
