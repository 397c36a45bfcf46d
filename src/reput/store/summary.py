"""The summary of a clean stop: the ends of queues and index, so that the next start is fast.

Only reput has this file; it is deleted when the store is opened. If the last file of a queue was
not modified since, the queue's files need not be read; a missing or shorter queue is detected. The
summary is valid only if the log still has the same end: another broker may have written since.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from reput.store import paths
from reput.store.batch_queue import BatchQueues
from reput.store.consume_queue import ConsumeQueues, QueueEnd
from reput.store.disk import Disk
from reput.store.index_file import IndexFiles

_T = TypeVar("_T")


class Summary:
    """The ends of queues and index."""

    def __init__(
        self,
        log_start: int,
        log_end: int,
        ends: Mapping[tuple[str, int], QueueEnd],
        batch_ends: Mapping[tuple[str, int], int],
        index_names: list[str],
    ) -> None:
        self.log_start = log_start
        self.log_end = log_end
        self.ends = ends
        """Ends by topic and queue id, for queues that have had units."""
        self.batch_ends = batch_ends
        """Maximum offsets of batch queues, by topic and queue id."""
        self.index_names = index_names

    @classmethod
    def of(
        cls,
        log_start: int,
        log_end: int,
        queues: ConsumeQueues,
        batch_queues: BatchQueues,
        index: IndexFiles,
    ) -> "Summary":
        """Return the summary of queues that are written to files and synced."""
        ends = {(queue.topic, queue.queue_id): end for queue in queues if (end := queue.end())}
        batch_ends = {(queue.topic, queue.queue_id): queue.max_offset for queue in batch_queues}
        return cls(log_start, log_end, ends, batch_ends, index.names)

    @classmethod
    def load(cls, root: str) -> "Summary | None":
        """Return the summary; None if there is none, or it cannot be read."""
        try:
            fields = json.loads(Path(root, paths.QUEUE_SUMMARY).read_bytes())
            return cls(
                int(fields["logStart"]),
                int(fields["logEnd"]),
                {key: QueueEnd(*map(int, end)) for key, end in _by_queue(fields["queues"])},
                {key: int(end) for key, end in _by_queue(fields.get("batchQueues", {}))},
                list(fields["indexFiles"]),
            )
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None

    @staticmethod
    def delete(root: str, disk: Disk) -> None:
        """Delete the summary, which becomes invalid when the store is written to."""
        path = f"{root}/{paths.QUEUE_SUMMARY}"
        if Path(path).exists():
            disk.unlink(path)
            disk.sync_folder(root)

    def save(self, root: str, disk: Disk) -> None:
        """Write the summary, durably. Raises ``WriteFailed``."""
        fields = {
            "logStart": self.log_start,
            "logEnd": self.log_end,
            "queues": _by_topic(self.ends),
            "batchQueues": _by_topic(self.batch_ends),
            "indexFiles": self.index_names,
        }
        text = json.dumps(fields, separators=(",", ":"))
        disk.replace(f"{root}/{paths.QUEUE_SUMMARY}", text.encode("ascii"))


def _by_topic(ends: Mapping[tuple[str, int], _T]) -> dict[str, dict[int, _T]]:
    by_topic: dict[str, dict[int, _T]] = {}
    for (topic, queue_id), end in ends.items():
        by_topic.setdefault(topic, {})[queue_id] = end
    return by_topic


def _by_queue(by_topic: Mapping[str, Mapping[str, Any]]) -> Iterator[tuple[tuple[str, int], Any]]:
    for topic, ends in by_topic.items():
        for queue_id, end in ends.items():
            yield (topic, int(queue_id)), end
