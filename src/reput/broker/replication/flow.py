"""The limit of bytes per second that a master sends to all its slaves together."""

import threading

_BURST_MS = 100
"""Duration whose bytes may be sent in one burst, in ms."""
PAUSE_MS = 20
"""Delay before a blocked sender retries, in ms."""


class FlowControl:
    """Counts bytes; for the event loop and worker threads.

    Args:
        bytes_per_s: The limit; None without one.
    """

    def __init__(self, bytes_per_s: int | None) -> None:
        self._bytes_per_s = bytes_per_s
        self._lock = threading.Lock()  # guards the next two fields
        self._left = 0.0
        self._counted_ms: int | None = None

    def take(self, wanted: int, now_ms: int) -> int:
        """Return the number of bytes that may be sent now, and count them.

        Args:
            wanted: Number of bytes.
            now_ms: The time, monotonic ms.
        """
        if self._bytes_per_s is None:
            return wanted
        with self._lock:
            since_ms = _BURST_MS if self._counted_ms is None else now_ms - self._counted_ms
            self._counted_ms = now_ms
            burst = self._bytes_per_s * _BURST_MS / 1000
            self._left = min(burst, self._left + self._bytes_per_s * since_ms / 1000)
            granted = min(wanted, int(self._left))
            self._left -= granted
            return granted

    def give_back(self, count: int) -> None:
        """Undo ``take`` for bytes that were not sent."""
        if self._bytes_per_s is not None and count:
            with self._lock:
                self._left += count
