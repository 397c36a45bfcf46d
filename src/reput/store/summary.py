"""What a clean stop leaves besides: where queues and index ended, so that the next start is quick.

A file of our own, deleted when the store is opened. A queue whose last file is of the same time as
then need not be looked into; one that went away, or became shorter, is noticed. It counts only if
the log still ends where it says: another broker may have been here.
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
    """Where everything ended that follows from the log."""

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
        """By topic and queue id, of queues that have had units."""
        self.batch_ends = batch_ends
        """The maximum offsets of batch queues, likewise."""
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
        """Return the summary of queues that are written out and synced."""
        ends = {(one.topic, one.queue_id): end for one in queues if (end := one.end())}
        batch_ends = {(one.topic, one.queue_id): one.max_offset for one in batch_queues}
        return cls(log_start, log_end, ends, batch_ends, index.names)

    @classmethod
    def load(cls, root: str) -> "Summary | None":
        """Return the summary, None if there is none that can be read."""
        try:
            found = json.loads(Path(root, paths.QUEUE_SUMMARY).read_bytes())
            return cls(
                int(found["logStart"]),
                int(found["logEnd"]),
                {key: QueueEnd(*map(int, end)) for key, end in _by_queue(found["queues"])},
                {key: int(end) for key, end in _by_queue(found.get("batchQueues", {}))},
                list(found["indexFiles"]),
            )
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None

    @staticmethod
    def forget(root: str, disk: Disk) -> None:
        """Delete the summary: from now on it would be wrong."""
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
    found: dict[str, dict[int, _T]] = {}
    for (topic, queue_id), end in ends.items():
        found.setdefault(topic, {})[queue_id] = end
    return found


def _by_queue(found: Mapping[str, Mapping[str, Any]]) -> Iterator[tuple[tuple[str, int], Any]]:
    for topic, ends in found.items():
        for queue_id, end in ends.items():
            yield (topic, int(queue_id)), end
