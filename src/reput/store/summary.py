"""What a clean stop leaves besides: where queues and index ended, so that the next start is quick.

A file of our own, deleted when the store is opened. A queue whose last file is of the same time as
then need not be looked into; one that went away, or became shorter, is noticed. It counts only if
the log still ends where it says: another broker may have been here.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

from reput.store import paths
from reput.store.consume_queue import ConsumeQueues, QueueEnd
from reput.store.disk import Disk
from reput.store.index_file import IndexFiles


class Summary:
    """Where everything ended that follows from the log."""

    def __init__(
        self,
        log_start: int,
        log_end: int,
        ends: Mapping[tuple[str, int], QueueEnd],
        index_names: list[str],
    ) -> None:
        self.log_start = log_start
        self.log_end = log_end
        self.ends = ends
        """By topic and queue id, of queues that have had units."""
        self.index_names = index_names

    @classmethod
    def of(
        cls, log_start: int, log_end: int, queues: ConsumeQueues, index: IndexFiles
    ) -> "Summary":
        """Return the summary of queues that are written out and synced."""
        ends = {(one.topic, one.queue_id): end for one in queues if (end := one.end())}
        return cls(log_start, log_end, ends, index.names)

    @classmethod
    def load(cls, root: str) -> "Summary | None":
        """Return the summary, None if there is none that can be read."""
        try:
            found = json.loads(Path(root, paths.QUEUE_SUMMARY).read_bytes())
            return cls(
                int(found["logStart"]),
                int(found["logEnd"]),
                dict(_ends(found["queues"])),
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
        queues: dict[str, dict[int, QueueEnd]] = {}
        for (topic, queue_id), end in self.ends.items():
            queues.setdefault(topic, {})[queue_id] = end
        fields = {
            "logStart": self.log_start,
            "logEnd": self.log_end,
            "queues": queues,
            "indexFiles": self.index_names,
        }
        text = json.dumps(fields, separators=(",", ":"))
        disk.replace(f"{root}/{paths.QUEUE_SUMMARY}", text.encode("ascii"))


def _ends(
    queues: Mapping[str, Mapping[str, list[int]]],
) -> Iterator[tuple[tuple[str, int], QueueEnd]]:
    for topic, ends in queues.items():
        for queue_id, end in ends.items():
            yield (topic, int(queue_id)), QueueEnd(*map(int, end))
