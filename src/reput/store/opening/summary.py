"""The summary of a clean stop: the ends of queues and index, so that the next start is fast.

Only reput has this file. If the last file of a queue was not modified since, the queue's files need
not be read; a missing or shorter queue is detected. The summary is valid only if the log still has
the same end: another broker may have written since.

When the store is opened, the summary becomes the *former* one. After a crash of the process it
shows which queues have not changed since: of many thousands, most. After a crash of the system it
does not: a page may be on disk, and the time of its modification not. So its name contains the id
of the boot.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

import msgspec

from reput.store.files import paths
from reput.store.files.disk import Disk
from reput.store.index.index_file import IndexFiles
from reput.store.queues.batch_queue import BatchQueues
from reput.store.queues.consume_queue import QueueEnd
from reput.store.queues.consume_queues import ConsumeQueues

_T = TypeVar("_T")
_ByQueue = dict[str, dict[int, _T]]  # by topic and queue id
_FORMER = f"{paths.FORMER_SUMMARY_PREFIX}*"
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class _Fields(msgspec.Struct, rename="camel"):
    """The contents of the file."""

    log_start: int
    log_end: int
    queues: _ByQueue[QueueEnd]
    index_files: list[str]
    batch_queues: _ByQueue[int] = {}


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
        return cls._load(f"{root}/{paths.QUEUE_SUMMARY}")

    @classmethod
    def load_former(cls, root: str) -> "Summary | None":
        """Return the former summary; None without one, or if the system has crashed since."""
        former = _former_path(root)
        return None if former is None else cls._load(former)

    @classmethod
    def _load(cls, path: str) -> "Summary | None":
        try:
            fields = msgspec.convert(json.loads(Path(path).read_bytes()), _Fields, str_keys=True)
        except (OSError, ValueError):
            return None
        return cls(
            fields.log_start,
            fields.log_end,
            _by_queue(fields.queues),
            _by_queue(fields.batch_queues),
            fields.index_files,
        )

    @staticmethod
    def delete(root: str, disk: Disk) -> None:
        """Delete the summary and the former one, before queues or the log's end are replaced."""
        doomed = [Path(root, paths.QUEUE_SUMMARY), *Path(root).glob(_FORMER)]
        existing = [path for path in doomed if path.exists()]
        for path in existing:
            disk.unlink(str(path))
        if existing:
            disk.sync_folder(root)

    @staticmethod
    def retire(root: str, disk: Disk) -> None:
        """Make the summary the former one: it becomes invalid when the store is written to."""
        path, former = Path(root, paths.QUEUE_SUMMARY), _former_path(root)
        if path.exists():
            if former is None:
                disk.unlink(str(path))
            else:
                disk.rename(str(path), former)
            disk.sync_folder(root)
        for other in Path(root).glob(_FORMER):
            if str(other) != former:
                disk.unlink(str(other))

    def save(self, root: str, disk: Disk) -> None:
        """Write the summary, durably, and delete the former one. Raises ``WriteFailed``."""
        fields = {
            "logStart": self.log_start,
            "logEnd": self.log_end,
            "queues": _by_topic(self.ends),
            "batchQueues": _by_topic(self.batch_ends),
            "indexFiles": self.index_names,
        }
        text = json.dumps(fields, separators=(",", ":"))
        disk.replace(f"{root}/{paths.QUEUE_SUMMARY}", text.encode("ascii"))
        for former in Path(root).glob(_FORMER):
            disk.unlink(str(former))


def _former_path(root: str) -> str | None:
    try:
        boot_id = _BOOT_ID.read_text().strip()
    except OSError:
        return None  # another system than Linux
    return f"{root}/{paths.FORMER_SUMMARY_PREFIX}{boot_id}"


def _by_topic(ends: Mapping[tuple[str, int], _T]) -> _ByQueue[_T]:
    by_topic: _ByQueue[_T] = {}
    for (topic, queue_id), end in ends.items():
        by_topic.setdefault(topic, {})[queue_id] = end
    return by_topic


def _by_queue(by_topic: Mapping[str, Mapping[int, _T]]) -> dict[tuple[str, int], _T]:
    return {
        (topic, queue_id): end for topic, ends in by_topic.items() for queue_id, end in ends.items()
    }
