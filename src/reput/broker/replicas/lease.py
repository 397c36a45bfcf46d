"""The lease of a master: for how long no other one can have been elected.

A controller elects another master when it has not heard the master for its timeout, or when its
connection closes. So the master may act alone for a part of that timeout after it has sent a
heartbeat that the leading controller has received, as long as the connection is open. The rest is
for clocks that run at different speeds.
"""

from collections.abc import Callable

SHARE = 0.8
"""Part of the timeout that the lease lasts."""
_NEVER_MS = -(1 << 62)


class Lease:
    """The lease of a master.

    Args:
        timeout_ms: Time of silence after which the controller elects another master, in ms.
        monotonic_ms: Returns the time, monotonic ms.
    """

    def __init__(self, timeout_ms: int, monotonic_ms: Callable[[], int]) -> None:
        self.duration_ms = int(timeout_ms * SHARE)
        self._monotonic_ms = monotonic_ms
        self._end_ms = _NEVER_MS

    def renew(self, sent_ms: int) -> None:
        """Renew it: the leading controller has received a heartbeat.

        Args:
            sent_ms: The time before the heartbeat was sent, monotonic ms.
        """
        self._end_ms = max(self._end_ms, sent_ms + self.duration_ms)

    def end(self) -> None:
        """End it: the connection to the leading controller is closed, or another one is master."""
        self._end_ms = _NEVER_MS

    @property
    def is_valid(self) -> bool:
        """True if no other master can have been elected by now."""
        return self._monotonic_ms() < self._end_ms

    @property
    def left_ms(self) -> int:
        """Time for which it is still valid, in ms; 0 if it is over."""
        return max(self._end_ms - self._monotonic_ms(), 0)
