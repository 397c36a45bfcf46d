"""Tombstones: physical offsets before which messages of deleted topics are in no queue.

The log keeps the messages of a deleted topic until they expire, and every new dispatch of the log
reads them. The tombstone of a topic excludes its messages before a physical offset from all queues,
so that neither a crash nor a rebuild restores the queues (known-bugs.md#deleted-topics), also if
the topic is created again. It is dropped when the log begins after it.

Only reput has this file: a JSON object, topic -> physical offset.
"""

import json
import logging
import threading
from collections.abc import Callable, Iterable

from reput.store.files import paths
from reput.store.files.disk import Disk
from reput.store.files.files import Folder, open_folder

_log = logging.getLogger(__name__)


class Tombstones:
    """The tombstones of a store that is open for writing.

    Only the writer's thread changes them; ``save`` and ``save_expired`` may run in any thread.

    Args:
        root: Folder of the store.
        disk: Writes the file.
    """

    def __init__(self, root: str, disk: Disk) -> None:
        self._root = root
        self._disk = disk
        self._writing = threading.Lock()
        self._has_expired = False  # True if the file has tombstones that expired since
        self.by_topic: dict[str, int] = {}
        """Physical offset before which a topic's messages are in no queue; changed in place."""

    def load(self) -> None:
        """Read the file, if it exists."""
        self.by_topic.clear()
        self.by_topic.update(read(open_folder(self._root)))

    def put(self, topics: Iterable[str], physical_offset: int) -> None:
        """Set tombstones of topics, durably. Raises ``WriteFailed``."""
        added = dict.fromkeys(topics, physical_offset)
        self._replace(lambda by_topic: by_topic | added)

    def note(self, topics: Iterable[str], physical_offset: int) -> None:
        """Set tombstones of topics, in memory only until ``save``; later ones stay."""
        for topic in topics:
            self.by_topic[topic] = max(physical_offset, self.by_topic.get(topic, 0))

    def save(self) -> None:
        """Make the tombstones durable. Raises ``WriteFailed``."""
        with self._writing:
            self._has_expired = False  # before the copy: later expiries may not be in it
            try:
                self._write(dict(self.by_topic))
            except BaseException:
                self._has_expired = True
                raise

    def save_expired(self) -> bool:
        """Remove expired tombstones from the file; return whether any. Raises as ``save``."""
        if not self._has_expired:
            return False
        self.save()
        return True

    def limit(self, log_end: int) -> None:
        """Limit the tombstones to the end of the log: the next messages there are not deleted.

        Another broker, or a copy of the folder, may have truncated the log before a tombstone.

        Raises:
            WriteFailed: The disk failed; nothing has changed.
        """
        self._replace(
            lambda by_topic: {topic: min(old, log_end) for topic, old in by_topic.items()}
        )

    def drop_before(self, log_min: int) -> None:
        """Drop tombstones before the start of the log, in memory only until ``save_expired``.

        After a crash before that they are dropped again.
        """
        for topic in [topic for topic, offset in self.by_topic.items() if offset <= log_min]:
            del self.by_topic[topic]
            self._has_expired = True

    def _replace(self, change: Callable[[dict[str, int]], dict[str, int]]) -> None:
        with self._writing:
            by_topic = change(self.by_topic)
            if by_topic == self.by_topic:
                return
            self._write(by_topic)
            self.by_topic.update(by_topic)

    def _write(self, by_topic: dict[str, int]) -> None:
        target = f"{self._root}/{paths.TOMBSTONES}"
        if by_topic:
            text = json.dumps(by_topic, indent="\t", sort_keys=True)
            self._disk.replace(target, text.encode("ascii"))
        else:
            self._disk.unlink(target)
            self._disk.sync_folder(self._root)


def read(folder: Folder) -> dict[str, int]:
    """Return the tombstones of a store; empty if the file does not exist or is unreadable."""
    if folder.entry(paths.TOMBSTONES) is None:
        return {}
    try:
        contents = json.loads(bytes(folder.read(paths.TOMBSTONES)))
        return {str(topic): int(physical_offset) for topic, physical_offset in contents.items()}
    except (ValueError, AttributeError, TypeError) as error:
        _log.error(
            "%s cannot be read, so queues of deleted topics may reappear: %s",
            paths.TOMBSTONES,
            error,
        )
        return {}
