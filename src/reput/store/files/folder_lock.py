"""The locks that exclude a second process from a store folder.

    byte 0 of the file ``lock``    the lock that Java brokers take (``FileChannel.lock``)
    the folders themselves         the store's root and those of its log: such a lock cannot be
                                   removed by deleting a file, and two roots cannot share a log

On a file system that cannot lock folders (some network ones) only the first one exists.
"""

import errno
import fcntl
import logging
import os
import sys
from collections.abc import Sequence

from reput.descriptors import first_byte_lock, open_descriptor
from reput.errors import StoreUnavailable
from reput.store.files import paths

_OFD_SETLK = getattr(fcntl, "F_OFD_SETLK", 37) if sys.platform == "linux" else None
"""Command of locks that belong to the open file; elsewhere they belong to the process, and only the
lock of the folder excludes a second store in it."""
_TEXT = b"lock"
_IS_TAKEN = (errno.EAGAIN, errno.EACCES)

_log = logging.getLogger(__name__)


class FolderLock:
    """An exclusive lock on a store: its file ``lock``, its folder, and the folders of its log.

    The lock belongs to the open files, not to the process: closing another file in this process
    does not release it, and a second store in this process is excluded too. It conflicts with
    Java's.

    Args:
        root: Folder of the store.

    Raises:
        StoreUnavailable: The lock is taken, or the file cannot be opened.
    """

    def __init__(self, root: str) -> None:
        self._root = root
        self.path = f"{root}/{paths.LOCK}"
        self._folders: list[int] = []
        try:
            self._descriptor = self._lock_file(os.O_CREAT)
        except OSError as error:
            raise StoreUnavailable(f"{self.path} cannot be opened to lock it: {error}") from error
        try:
            self.add_folders([root])
        except BaseException:
            self.release()
            raise

    def add_folders(self, folders: Sequence[str]) -> None:
        """Lock more folders, until ``release``; folders that are locked already stay so.

        Raises:
            StoreUnavailable: A folder is locked by another process.
        """
        for folder in folders:
            descriptor = -1
            try:
                descriptor = open_descriptor(folder, os.O_RDONLY | os.O_DIRECTORY)
                if any(os.path.sameopenfile(descriptor, locked) for locked in self._folders):
                    os.close(descriptor)
                    continue
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                if descriptor >= 0:
                    os.close(descriptor)
                if error.errno in _IS_TAKEN:
                    raise StoreUnavailable(
                        f"{folder} is in use: another store or broker has locked this folder; stop "
                        "it first"
                    ) from error
                _log.info("%s cannot be locked itself: %s", folder, error.strerror)
            else:
                self._folders.append(descriptor)

    def check(self) -> str:
        """Return the problem with the lock file; empty if it is valid.

        A missing file is created and locked again: while it was missing, another broker could have
        started. If another file has its name, the lock cannot be restored.

        Raises:
            StoreUnavailable: Another process has the lock.
            OSError: The file cannot be examined, created or locked now; call it again.
        """
        try:
            status = os.stat(self.path)  # noqa: PTH116 - paths are texts here
        except FileNotFoundError:
            _log.error("%s was deleted while the store is open; it is created again", self.path)
            descriptor = self._lock_file(os.O_CREAT | os.O_EXCL)
            previous, self._descriptor = self._descriptor, descriptor
            os.close(previous)
            return ""
        ours = os.fstat(self._descriptor)
        if (status.st_dev, status.st_ino) == (ours.st_dev, ours.st_ino):
            return ""
        return f"{self.path} is not the file that was locked: there may be a second broker"

    def _lock_file(self, flags: int) -> int:
        """Open and lock the file; return its descriptor.

        Args:
            flags: Flags to open it; with ``O_EXCL`` it is deleted again if it cannot be locked.

        Raises:
            StoreUnavailable: Another process has the lock.
            OSError: It cannot be opened or locked.
        """
        descriptor = open_descriptor(self.path, os.O_RDWR | flags)
        try:
            try:
                if _OFD_SETLK is None:
                    raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
                fcntl.fcntl(descriptor, _OFD_SETLK, first_byte_lock())
            except OSError as error:
                if error.errno != errno.EINVAL:
                    raise
                fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1)
            os.pwrite(descriptor, _TEXT, 0)
        except OSError as error:
            os.close(descriptor)
            if error.errno not in _IS_TAKEN:
                if flags & os.O_EXCL:
                    os.unlink(self.path)  # noqa: PTH108 - else it would be another file than ours
                raise
            raise StoreUnavailable(
                f"{self._root} is in use: another store or broker holds {self.path}; stop it first"
            ) from error
        return descriptor

    def release(self) -> None:
        """Release all locks, if they are held."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)
        while self._folders:
            os.close(self._folders.pop())
