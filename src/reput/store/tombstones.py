"""Tombstones: from where on the messages of a deleted topic count again, if it is made anew.

The log keeps the messages of a deleted topic until they expire, and whatever dispatches it again
meets them. A tombstone says that those before a physical offset belong to no queue any more, so
that neither a crash nor a rebuild brings the queues back (anchors D18). It goes when the log begins
behind it.

The file is ours alone: a JSON object, topic to physical offset.
"""

import json
import logging
from collections.abc import Iterable

from reput.store import paths
from reput.store.disk import Disk
from reput.store.files import Folder, open_folder

_log = logging.getLogger(__name__)


class Tombstones:
    """The tombstones of a store that is open for writing.

    Args:
        root: The store's folder.
        disk: What writes.
    """

    def __init__(self, root: str, disk: Disk) -> None:
        self._root = root
        self._disk = disk
        self.by_topic: dict[str, int] = {}
        """Physical offset before which a topic's messages are in no queue; changed in place."""

    def load(self) -> None:
        """Read the file, if there is one."""
        self.by_topic.clear()
        self.by_topic.update(read(open_folder(self._root)))

    def put(self, topics: Iterable[str], physical_offset: int) -> None:
        """Bury what topics have in the log so far; durable on return. Raises ``WriteFailed``."""
        self._replace(self.by_topic | dict.fromkeys(topics, physical_offset))

    def confine(self, log_end: int) -> None:
        """Bury nothing that the log does not hold yet: what is put there next is alive.

        Another broker, or somebody with a copy, may have ended it before a tombstone.

        Raises:
            WriteFailed: The disk failed; nothing has changed.
        """
        self._replace({topic: min(at, log_end) for topic, at in self.by_topic.items()})

    def drop_before(self, log_min: int) -> None:
        """Let go the tombstones that the log begins behind. Raises as ``confine``."""
        self._replace({topic: at for topic, at in self.by_topic.items() if at > log_min})

    def _replace(self, by_topic: dict[str, int]) -> None:
        if by_topic == self.by_topic:
            return
        target = f"{self._root}/{paths.TOMBSTONES}"
        if by_topic:
            text = json.dumps(by_topic, indent="\t", sort_keys=True)
            self._disk.replace(target, text.encode("ascii"))
        else:
            self._disk.unlink(target)
            self._disk.sync_folder(self._root)
        self.by_topic.clear()
        self.by_topic.update(by_topic)


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
