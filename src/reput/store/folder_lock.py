"""The lock that keeps a second process out of a store folder: the one that Java brokers take."""

import errno
import fcntl
import os
import struct

from reput.errors import StoreUnavailable
from reput.store import paths

_LOCK_QUERY = struct.Struct("hhqqi4x")
_OFD_SETLK = getattr(fcntl, "F_OFD_SETLK", 37)
_TEXT = b"lock"


class FolderLock:
    """An exclusive lock on byte 0 of the file ``lock``.

    It belongs to the open file, not to the process: another file closed by this process does not
    drop it, and a second store in this process is kept out too. Java's locks and these conflict.

    Raises:
        StoreUnavailable: Somebody has it, or the file cannot be opened.
    """

    def __init__(self, root: str) -> None:
        path = f"{root}/{paths.LOCK}"
        try:
            self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise StoreUnavailable(f"{path} cannot be opened to lock it: {error}") from error
        try:
            query = _LOCK_QUERY.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0)
            try:
                fcntl.fcntl(self._descriptor, _OFD_SETLK, query)
            except OSError as error:
                if error.errno != errno.EINVAL:
                    raise
                fcntl.lockf(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1)
            os.pwrite(self._descriptor, _TEXT, 0)
        except OSError as error:
            os.close(self._descriptor)
            if error.errno not in (errno.EAGAIN, errno.EACCES):
                raise StoreUnavailable(f"{path} cannot be locked: {error}") from error
            raise StoreUnavailable(
                f"{root} is in use: another store or broker holds {path}; stop it first"
            ) from error

    def release(self) -> None:
        """Let others in; nothing if they are."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)
