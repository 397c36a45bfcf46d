"""The file descriptors of this process: their number, and a reserve.

Connections and files share one limit. So a server raises the limit as far as possible, gives
connections only a part of it (``connections_max``), and keeps a reserve of descriptors
(``spares``), from which ``open_descriptor`` takes one when a file cannot be opened otherwise.
"""

import errno
import fcntl
import os
import resource
import struct
import sys
import threading

FILES_RESERVED = 256
"""Descriptors for files rather than connections: 128 of queue files that stay open, those of the
log and the index, tables that are being saved, and what Python and the event loop need."""
SPARES = 32
_IS_LINUX = sys.platform == "linux"
_FLOCK = struct.Struct("hhqqi4x" if _IS_LINUX else "qqihh")
"""The system's ``struct flock``: type, whence, start, length and process, in its order."""


def raise_limit() -> tuple[int, int]:
    """Raise the soft limit of descriptors to the hard one; return both soft limits, old and new."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == hard:
        return soft, soft
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (OSError, ValueError):
        return soft, soft  # macOS reports a hard limit that it does not grant
    return soft, hard


def connections_max() -> int:
    """Return how many connections leave enough descriptors for files; half of a small limit."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return 1 << 30
    return max(soft - FILES_RESERVED, soft // 2)


def seek_data(descriptor: int, position: int) -> int:
    """Return the first position with data of a sparse file.

    Raises:
        OSError: ``ENXIO``: there is only a hole; other: it is not known where data is.
    """
    return _seek(descriptor, position, "SEEK_DATA")


def seek_hole(descriptor: int, position: int) -> int:
    """Return the first position of a hole, or the end of the file. Raises as ``seek_data``."""
    return _seek(descriptor, position, "SEEK_HOLE")


def _seek(descriptor: int, position: int, whence: str) -> int:
    if not hasattr(os, whence):
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
    return os.lseek(descriptor, position, getattr(os, whence))


def read_into(descriptor: int, buffer: memoryview, position: int) -> int:
    """Read bytes at a position into a buffer, without a copy if the system can; return the number.

    Raises:
        OSError: They cannot be read.
    """
    if hasattr(os, "preadv"):
        return os.preadv(descriptor, [buffer], position)
    data = os.pread(descriptor, len(buffer), position)
    buffer[: len(data)] = data
    return len(data)


def first_byte_lock() -> bytes:
    """Return the system's description of an exclusive lock of a file's first byte."""
    kind, whence, start, length, process_id = fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0
    if _IS_LINUX:
        return _FLOCK.pack(kind, whence, start, length, process_id)
    return _FLOCK.pack(start, length, process_id, kind, whence)


def lock_owner(description: bytes) -> int | None:
    """Return the process of a lock that ``F_GETLK`` has described; None if there is none."""
    if _IS_LINUX:
        kind, _, _, _, process_id = _FLOCK.unpack(description)
    else:
        _, _, process_id, kind, _ = _FLOCK.unpack(description)
    return None if kind == fcntl.F_UNLCK else int(process_id)


class SpareDescriptors:
    """Descriptors in reserve. Can be used from any thread.

    Args:
        count_max: Size of the reserve.
    """

    def __init__(self, count_max: int = SPARES) -> None:
        self._count_max = count_max
        self._lock = threading.Lock()
        self._held: list[int] = []

    def __len__(self) -> int:
        return len(self._held)

    def fill(self) -> bool:
        """Open descriptors until the reserve is full; return whether it is."""
        with self._lock:
            try:
                while len(self._held) < self._count_max:
                    self._held.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
            except OSError:
                return False
            return True

    def give_up(self) -> bool:
        """Close a reserved descriptor for another file; return False if there is none."""
        with self._lock:
            if not self._held:
                return False
            os.close(self._held.pop())
            return True

    def close(self) -> None:
        """Close all."""
        while self.give_up():
            pass


spares = SpareDescriptors()
"""The reserve of this process; empty until an open store fills it."""


def open_descriptor(path: str, flags: int, mode: int = 0o644) -> int:
    """Open a file; if no descriptor is free, use one of the reserve.

    Args:
        path: The file.
        flags: Flags of ``os.open``.
        mode: Permissions of a new file.

    Raises:
        OSError: The file cannot be opened.
    """
    while True:
        try:
            return os.open(path, flags | os.O_CLOEXEC, mode)
        except OSError as error:
            if error.errno != errno.EMFILE or not spares.give_up():
                raise
