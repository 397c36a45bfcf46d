"""The file that marks the store of a slave, so that a start with the changed role is recognised.

    slave   empty, or a physical offset: the topics of all records before it are in topics.json, or
            were deleted by the master

The offset is written after topics.json, and only grows: records from it on may be of topics that
the table lacks, as their master died before they were copied.
"""

from pathlib import Path

from reput.store.files import paths
from reput.store.files.disk import Disk


class SlaveMark:
    """The mark of a store. For one thread at a time.

    Args:
        root: The folder of the store.
        disk: Writes and deletes the file.
    """

    def __init__(self, root: str, disk: Disk) -> None:
        self._path = f"{root}/{paths.SLAVE}"
        self._root = root
        self._disk = disk
        self._written: int | None = None

    @property
    def is_there(self) -> bool:
        """True if the store was that of a slave when it was last open."""
        return Path(self._path).exists()

    def topics_end(self) -> int:
        """Return the physical offset up to which topics are known; 0 without a complete copy."""
        text = Path(self._path).read_text("ascii", "replace").strip()
        return int(text) if text.isdecimal() else 0

    def create(self) -> None:
        """Mark the store. Raises ``WriteFailed``."""
        if not self.is_there:
            self._disk.replace(self._path, b"")

    def record_topics(self, physical_offset: int) -> None:
        """Record the physical offset up to which the topics are known. Raises ``WriteFailed``."""
        if physical_offset != self._written:
            self._disk.replace(self._path, b"%d\n" % physical_offset)
            self._written = physical_offset

    def delete(self) -> None:
        """Delete the mark: the store is that of a master. Raises ``WriteFailed``."""
        self._disk.unlink(self._path)
        self._disk.sync_folder(self._root)
