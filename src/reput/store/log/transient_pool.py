"""Buffers that take appends instead of a file: the transient store pool.

With transientStorePoolEnable a record is first in a buffer only, and is not readable before a
commit has written it to the file. A crash of the process, not only of the machine, loses
uncommitted bytes.
"""

import logging
import threading

from reput.store.files import memory

_log = logging.getLogger(__name__)


class TransientPool:
    """A fixed number of buffers (transientStorePoolSize), each the size of a log file.

    A buffer uses memory as it is filled, or all of it at once if it is locked.
    """

    def __init__(self, count: int, size: int, *, is_locked: bool = True) -> None:
        self.size = size
        """Size of one buffer in bytes."""
        self._lock = threading.Lock()
        self._free = [PoolBuffer(self, size) for _ in range(count)]
        if is_locked:
            self._keep_in_memory()

    @property
    def available(self) -> int:
        """Number of buffers that can be borrowed now; at 0 a broker refuses messages."""
        return len(self._free)

    def borrow(self) -> "PoolBuffer | None":
        """Return a buffer full of zeros; None if all are in use."""
        with self._lock:
            return self._free.pop() if self._free else None

    def release(self, buffer: "PoolBuffer") -> None:
        """Take a buffer back, which contains only zeros again."""
        with self._lock:
            assert buffer not in self._free, "a buffer was released twice"
            self._free.append(buffer)

    def _keep_in_memory(self) -> None:
        for buffer in self._free:
            try:
                memory.lock(buffer.address, buffer.size)
            except OSError as error:
                _log.warning(
                    "a pool buffer of %d bytes is not locked in memory and may be swapped out: "
                    "%s; raise the memlock limit (ulimit -l)",
                    buffer.size,
                    error.strerror,
                )
                return


class PoolBuffer(memory.AnonymousMemory):
    """One buffer, and its pool."""

    def __init__(self, pool: TransientPool, size: int) -> None:
        super().__init__(size)
        self._pool = pool

    def release(self) -> None:
        """Return the buffer to its pool; its user has set it to zeros again."""
        self._pool.release(self)
