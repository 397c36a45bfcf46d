"""The descriptors of this process: how many there may be, and who gets the last ones.

Connections and files take from the same number. So a server raises the limit as far as it may,
gives connections a share of it only (``connections_max``), and keeps some descriptors in reserve
(``spares``), which ``open_descriptor`` gives up one by one when a file cannot be opened otherwise.
"""

import errno
import os
import resource
import threading

FILES_RESERVED = 256
"""Descriptors that connections leave to files: 128 of queue files that stay open, those of the log
and the index, tables that are being saved, and what Python and the loop need."""
SPARES = 32


def raise_limit() -> tuple[int, int]:
    """Raise the soft limit of descriptors to the hard one; return what it was and what it is."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == hard:
        return soft, soft
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (OSError, ValueError):
        return soft, soft  # macOS has a hard limit that it does not grant
    return soft, hard


def connections_max() -> int:
    """Return how many connections leave enough descriptors for files; half of a small limit."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return 1 << 30
    return max(soft - FILES_RESERVED, soft // 2)


class SpareDescriptors:
    """Descriptors in reserve. May be used from any thread.

    Args:
        count_max: How many.
    """

    def __init__(self, count_max: int = SPARES) -> None:
        self._count_max = count_max
        self._lock = threading.Lock()
        self._held: list[int] = []

    def __len__(self) -> int:
        return len(self._held)

    def fill(self) -> bool:
        """Take descriptors until the reserve is full; return whether it is."""
        with self._lock:
            try:
                while len(self._held) < self._count_max:
                    self._held.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
            except OSError:
                return False
            return True

    def give_up(self) -> bool:
        """Close one, so that another file can be opened; return whether there was one."""
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


def open_descriptor(path: str, flags: int) -> int:
    """Return a new descriptor of a file; a spare one is given up for it if no other is left.

    Raises:
        OSError: The file cannot be opened.
    """
    while True:
        try:
            return os.open(path, flags | os.O_CLOEXEC, 0o644)
        except OSError as error:
            if error.errno != errno.EMFILE or not spares.give_up():
                raise
