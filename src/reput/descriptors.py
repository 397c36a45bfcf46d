"""The file descriptors of this process: their number, and a reserve.

Connections and files share one limit. So a server raises the limit as far as possible, gives
connections only a part of it (``connections_max``), and keeps a reserve of descriptors
(``spares``), from which ``open_descriptor`` takes one when a file cannot be opened otherwise.
"""

import errno
import os
import resource
import threading

FILES_RESERVED = 256
"""Descriptors for files rather than connections: 128 of queue files that stay open, those of the
log and the index, tables that are being saved, and what Python and the event loop need."""
SPARES = 32


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
        """Close one so that another file can be opened; return False if the reserve is empty."""
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
    """Open a file; if no descriptor is left, use one of the reserve.

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
