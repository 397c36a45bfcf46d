"""The file of a table, and its backup.

A table is written to a draft file, synced, and renamed over the old file, so a complete file exists
at any moment (known-bugs.md#torn-tables). The old file becomes the ``.bak`` if it is readable: a
damaged file never replaces a good backup. Java's procedure differs by version; every version reads
the files that are written here.
"""

import enum
import os
import threading
from pathlib import Path
from typing import NamedTuple

from reput.descriptors import open_descriptor
from reput.format import fastjson
from reput.store.files import paths
from reput.store.files.disk import Disk, failed_opening

DAMAGED_SUFFIX = ".damaged"
"""Suffix of tables that were put aside; no program reads or deletes them."""


class Written(enum.Enum):
    """The outcome of writing a text."""

    OVERTAKEN = enum.auto()
    """It is not in place, since a later one was begun; that one may not be in place yet either."""
    IN_PLACE = enum.auto()
    """It survives the end of the process, but perhaps not of the machine."""
    DURABLE = enum.auto()


class _Identity(NamedTuple):
    """Properties that show whether a file is still the one that was written."""

    inode: int
    size: int
    modified_ns: int


class SavedFile:
    """The file of a table, with its backup; any thread may replace it.

    Args:
        path: Path of the file.
        disk: Makes it durable.
        mode: Permissions of the file.
    """

    def __init__(self, path: str, disk: Disk, mode: int) -> None:
        self._path = path
        self._mode = mode
        self._folder = str(Path(path).parent)
        self._draft = path + paths.DRAFT_SUFFIX
        self._disk = disk
        self._durable_lock = threading.Lock()
        """Serializes durable writes: two of them would overtake each other again and again."""
        self._lock = threading.Lock()
        """Held while a draft is written or put in place, but not while waiting for the disk."""
        self._turn = 0
        """Number of the latest text that was begun."""
        self._turn_in_place = 0
        self.durable_turn = 0
        """Number of the latest text that is durable."""
        self._known: _Identity | None = None
        """Identity of the file in place, if brokers can surely load it."""
        self._is_synced = False
        """True if that file is durable."""

    def adopt(self) -> None:
        """Trust the file in place: it was just read, so it is a usable backup.

        Raises:
            WriteFailed: The file cannot be made durable.
        """
        self._known = _identity(self._path)
        self._sync_in_place()
        self._is_synced = True

    def replace(self, turn: int, data: bytes, *, is_durable: bool) -> Written:
        """Put a text in place.

        After any failure, and after the end of the process at any moment, the file is the old or
        the new one. With ``is_durable`` this holds after a crash of the machine as well; otherwise
        the file may be damaged until the next durable write, and its backup is durable.

        Args:
            turn: Number of the text; it never replaces a text with a higher number.
            data: The text.
            is_durable: Wait for the disk.

        Returns:
            The outcome, of this text or of a later one that replaced it.

        Raises:
            WriteFailed: It was not written, or (in the last step, a sync) perhaps not durably.
        """
        self._disk.make_folder(self._folder)
        if is_durable:
            with self._durable_lock:
                return self._replace_durably(turn, data)
        with self._lock:
            if turn < self._turn:
                is_there = turn <= self._turn_in_place
                return Written.IN_PLACE if is_there else Written.OVERTAKEN
            os.close(self._new_draft(turn, data))
            self._put_in_place(turn, is_synced=False)
            return Written.IN_PLACE

    def _replace_durably(self, turn: int, data: bytes) -> Written:
        with self._lock:
            descriptor = self._new_draft(turn, data) if turn >= self._turn else None
        if descriptor is not None:
            try:
                self._disk.sync_file(descriptor, self._draft)
            finally:
                os.close(descriptor)
        with self._lock:
            if turn == self._turn:
                self._put_in_place(turn, is_synced=True)
            elif turn > self._turn_in_place or _identity(self._path) != self._known:
                return Written.OVERTAKEN  # by a text that failed, or another program wrote the file
            elif not self._is_synced:
                # Writes that do not wait for the disk may be faster than its syncs. They wait here,
                # since a synced file becomes the backup of the next one.
                self._sync_in_place()
                self._is_synced = True
            durable_turn = self._turn_in_place
        self._disk.sync_folder(self._folder)
        self.durable_turn = max(self.durable_turn, durable_turn)
        return Written.DURABLE

    def _new_draft(self, turn: int, data: bytes) -> int:
        self._turn = turn
        # A new file: the last draft may be waiting for the disk, and would be truncated too.
        self._disk.unlink(self._draft)
        return _create(self._draft, data, self._disk, self._mode)

    def _put_in_place(self, turn: int, *, is_synced: bool) -> None:
        old = _identity(self._path)
        if old is not None and old != self._known:  # another program wrote it
            if _is_readable(self._path):
                self._sync_in_place()
                self._back_up(is_last_resort=not is_synced)
        elif old is not None and self._is_synced:
            self._back_up(is_last_resort=not is_synced)
        self._disk.rename(self._draft, self._path)
        self._turn_in_place = turn
        self._known = _identity(self._path)
        self._is_synced = is_synced

    def _sync_in_place(self) -> None:
        try:
            descriptor = open_descriptor(self._path, os.O_RDONLY)
        except OSError as error:
            raise failed_opening(self._path, "open", error) from error
        try:
            self._disk.sync_file(descriptor, self._path)
        finally:
            os.close(descriptor)

    def _back_up(self, *, is_last_resort: bool) -> None:
        """Make the file the backup as well; it keeps its own name until it is replaced.

        Args:
            is_last_resort: The next file is not synced, so after a power failure the backup may be
                the only valid file. Its name is made durable first.
        """
        backup = self._path + paths.BACKUP_SUFFIX
        draft = backup + paths.DRAFT_SUFFIX
        if not (Path(backup).exists() and Path(backup).samefile(self._path)):
            self._disk.unlink(draft)
            if not self._disk.link(self._path, draft):
                descriptor = _create(draft, Path(self._path).read_bytes(), self._disk, self._mode)
                try:
                    self._disk.sync_file(descriptor, draft)
                finally:
                    os.close(descriptor)
            self._disk.rename(draft, backup)
        if is_last_resort:
            self._disk.sync_folder(self._folder)


def put_aside(path: str, disk: Disk) -> str:
    """Rename a file and its backup so that no program loads them; return the new file name."""
    aside = f"{path}{DAMAGED_SUFFIX}"
    for suffix in (paths.BACKUP_SUFFIX, ""):
        if Path(path + suffix).exists():
            disk.rename(path + suffix, aside + suffix)
    disk.sync_folder(str(Path(path).parent))
    return aside


def _create(path: str, data: bytes, disk: Disk, mode: int) -> int:
    """Create a file with the given bytes; return its descriptor."""
    try:
        descriptor = open_descriptor(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    except OSError as error:
        raise failed_opening(path, "create", error) from error
    try:
        disk.write(descriptor, path, 0, data)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _identity(path: str) -> _Identity | None:
    try:
        status = Path(path).stat()
    except OSError:
        return None
    return _Identity(status.st_ino, status.st_size, status.st_mtime_ns)


def _is_readable(path: str) -> bool:
    """Return True if there is a table that a broker could load.

    Raises:
        WriteFailed: The file cannot be read, so this is unknown.
    """
    try:
        data = Path(path).read_bytes()
    except FileNotFoundError:
        return False
    except OSError as error:
        raise failed_opening(path, "read", error) from error
    try:
        return isinstance(fastjson.parse(data.decode()), dict)
    except (ValueError, RecursionError):
        return False
