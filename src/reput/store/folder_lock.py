"""The locks that keep a second process out of a store folder.

    byte 0 of the file ``lock``    the lock that Java brokers take (``FileChannel.lock``)
    the folders themselves         the store's root and those of its log: nobody can delete such a
                                   lock by deleting a file, and two roots cannot share a log

A file system that cannot lock folders (some network ones) has the first one only.
"""

import errno
import fcntl
import logging
import os
import struct
from collections.abc import Sequence

from reput.descriptors import open_descriptor
from reput.errors import StoreUnavailable
from reput.store import paths

_LOCK_QUERY = struct.Struct("hhqqi4x")
_OFD_SETLK = getattr(fcntl, "F_OFD_SETLK", 37)
_TEXT = b"lock"
_IS_TAKEN = (errno.EAGAIN, errno.EACCES)

_log = logging.getLogger(__name__)


class FolderLock:
    """An exclusive lock on a store: its file ``lock``, its folder, and the folders of its log.

    It belongs to the open files, not to the process: another file closed by this process does not
    drop it, and a second store in this process is kept out too. Java's locks and these conflict.

    Args:
        root: The store's folder.

    Raises:
        StoreUnavailable: Somebody has it, or the file cannot be opened.
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
        """Lock more folders, until ``release``; those that are locked already stay so.

        Raises:
            StoreUnavailable: Somebody has one.
        """
        for folder in folders:
            descriptor = -1
            try:
                descriptor = open_descriptor(folder, os.O_RDONLY | os.O_DIRECTORY)
                if any(os.path.sameopenfile(descriptor, one) for one in self._folders):
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
        """Return what is wrong with the lock file by now; empty if nothing is.

        A file that is gone is made and locked again: until it is there, another broker could have
        come in. One that is another's cannot be ours any more.

        Raises:
            StoreUnavailable: Somebody else has it.
            OSError: It cannot be looked at, made or locked for now; call it again.
        """
        try:
            found = os.stat(self.path)  # noqa: PTH116 - paths are texts here
        except FileNotFoundError:
            _log.error("%s was deleted under the open store; it is made again", self.path)
            descriptor = self._lock_file(os.O_CREAT | os.O_EXCL)
            was, self._descriptor = self._descriptor, descriptor
            os.close(was)
            return ""
        ours = os.fstat(self._descriptor)
        if (found.st_dev, found.st_ino) == (ours.st_dev, ours.st_ino):
            return ""
        return f"{self.path} is another file than the one that was locked: a second broker may be"

    def _lock_file(self, flags: int) -> int:
        """Return the descriptor of the file, locked.

        Args:
            flags: How to open it; with ``O_EXCL`` it is not left behind without a lock.

        Raises:
            StoreUnavailable: Somebody has it.
            OSError: It cannot be opened or locked.
        """
        descriptor = open_descriptor(self.path, os.O_RDWR | flags)
        try:
            query = _LOCK_QUERY.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0)
            try:
                fcntl.fcntl(descriptor, _OFD_SETLK, query)
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
        """Let others in; nothing if they are."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)
        while self._folders:
            os.close(self._folders.pop())
