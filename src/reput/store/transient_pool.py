"""Buffers that take appends in place of a file: the transient store pool.

With transientStorePoolEnable a record first lies in a buffer only, and is not readable before a
commit wrote it to the file. What was not committed is gone with the process, not only with the
machine.
"""

import logging
import threading

from reput.store import memory

_log = logging.getLogger(__name__)


class TransientPool:
    """A fixed number of buffers (transientStorePoolSize), each the size of a log file.

    A buffer takes memory as it is filled, all at once if it is locked.
    """

    def __init__(self, count: int, size: int, *, is_locked: bool = True) -> None:
        self.size = size
        """Of one buffer, bytes."""
        self._lock = threading.Lock()
        self._free = [PoolBuffer(self, size) for _ in range(count)]
        if is_locked:
            self._keep_in_memory()

    @property
    def available(self) -> int:
        """How many buffers can be borrowed now; at 0 a broker refuses messages."""
        return len(self._free)

    def borrow(self) -> "PoolBuffer | None":
        """Return a buffer full of zeros, or None if all are in use."""
        with self._lock:
            return self._free.pop() if self._free else None

    def give_back(self, buffer: "PoolBuffer") -> None:
        """Take back a buffer, which holds only zeros again."""
        with self._lock:
            assert buffer not in self._free, "a buffer was given back twice"
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
    """One buffer, and where it belongs."""

    def __init__(self, pool: TransientPool, size: int) -> None:
        super().__init__(size)
        self._pool = pool

    def give_back(self) -> None:
        """Return it to its pool. Whoever wrote into it has set it to zeros again."""
        self._pool.give_back(self)
