"""Tombstones: from where on the messages of a deleted topic count again, if it is made anew.

The log keeps the messages of a deleted topic until they expire, and whatever dispatches it again
meets them. A tombstone says that those before a physical offset belong to no queue any more, so
that neither a crash nor a rebuild brings the queues back (known-bugs.md#deleted-topics). It goes
when the log begins behind it.

The file is ours alone: a JSON object, topic to physical offset.
"""

import json
import logging
import threading
from collections.abc import Callable, Iterable

from reput.store import paths
from reput.store.disk import Disk
from reput.store.files import Folder, open_folder

_log = logging.getLogger(__name__)


class Tombstones:
    """The tombstones of a store that is open for writing.

    They are changed by the writer's thread alone; ``save`` and ``save_expired`` may run in any.

    Args:
        root: The store's folder.
        disk: What writes.
    """

    def __init__(self, root: str, disk: Disk) -> None:
        self._root = root
        self._disk = disk
        self._writing = threading.Lock()
        self._has_expired = False  # some that the file has still
        self.by_topic: dict[str, int] = {}
        """Physical offset before which a topic's messages are in no queue; changed in place."""

    def load(self) -> None:
        """Read the file, if there is one."""
        self.by_topic.clear()
        self.by_topic.update(read(open_folder(self._root)))

    def put(self, topics: Iterable[str], physical_offset: int) -> None:
        """Bury what topics have in the log so far; durable on return. Raises ``WriteFailed``."""
        bury = dict.fromkeys(topics, physical_offset)
        self._replace(lambda by_topic: by_topic | bury)

    def note(self, topics: Iterable[str], physical_offset: int) -> None:
        """Bury what topics have in the log so far, in memory alone until ``save``."""
        self.by_topic.update(dict.fromkeys(topics, physical_offset))

    def save(self) -> None:
        """Make durable what was noted. Raises ``WriteFailed``."""
        with self._writing:
            self._has_expired = False  # before the copy: what expires from now on may not be in it
            try:
                self._write(dict(self.by_topic))
            except BaseException:
                self._has_expired = True
                raise

    def save_expired(self) -> bool:
        """Let the file forget what has expired; return whether anything had. Raises as ``save``."""
        if not self._has_expired:
            return False
        self.save()
        return True

    def confine(self, log_end: int) -> None:
        """Bury nothing that the log does not hold yet: what is put there next is alive.

        Another broker, or somebody with a copy, may have ended it before a tombstone.

        Raises:
            WriteFailed: The disk failed; nothing has changed.
        """
        self._replace(lambda by_topic: {topic: min(at, log_end) for topic, at in by_topic.items()})

    def drop_before(self, log_min: int) -> None:
        """Let go the tombstones that the log begins behind, in memory alone until ``save_expired``.

        After a crash in between they are let go again.
        """
        for topic in [topic for topic, at in self.by_topic.items() if at <= log_min]:
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
    """Return the tombstones of a store; none if the file is not there, or cannot be read."""
    if folder.entry(paths.TOMBSTONES) is None:
        return {}
    try:
        found = json.loads(bytes(folder.read(paths.TOMBSTONES)))
        return {str(topic): int(physical_offset) for topic, physical_offset in found.items()}
    except (ValueError, AttributeError, TypeError) as error:
        _log.error(
            "%s cannot be read, so that queues of deleted topics may come back: %s",
            paths.TOMBSTONES,
            error,
        )
        return {}
