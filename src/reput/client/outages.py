"""Log lines about servers that fail: a warning a minute for each, however many queues wait for it.

A consumer pulls from each queue, and each pull fails while the broker is down: 16 queues were 16
warnings every three seconds, beside those of heartbeats and consumer offsets. The first of a minute
is a warning; the others are logged as DEBUG, and counted in the next warning.
"""

import logging

from reput.clock import Clock
from reput.errors import ConnectionLost, RequestTimedOut, Unreachable

PAUSE_MS = 60_000
"""Time between two warnings of one kind, in ms."""
KINDS_MAX = 64
"""Kinds with separate limits; further ones share a limit."""
ROUTES = "routes"
"""Kind of warnings about routes that cannot be refreshed: one warning for all topics."""


class Outages:
    """The limits of a client.

    Args:
        clock: The clock.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._warned: dict[str, tuple[int, int]] = {}  # kind -> monotonic ms, lines left out since

    def warn(
        self, log: logging.Logger, reason: object, text: str, *arguments: object, kind: str = ""
    ) -> None:
        """Write a warning, unless there was one of its kind within a minute.

        Args:
            log: The logger.
            reason: The error, which ends the line.
            text: The line before the reason, with ``%s`` for arguments.
            arguments: Values for the line.
            kind: Key of the limit; by default the server if it does not answer, or else the text of
                the error: a refusal of one group says nothing about others.
        """
        now_ms = self._clock.monotonic_ms()
        kind = self._limited(kind or _kind(reason), now_ms)
        warned_ms, left_out = self._warned.get(kind, (now_ms - PAUSE_MS, 0))
        line = f"{text}: %s%s"
        if now_ms - warned_ms < PAUSE_MS:
            self._warned[kind] = (warned_ms, left_out + 1)
            log.debug(line, *arguments, reason, "", stacklevel=2)
            return
        self._warned[kind] = (now_ms, 0)
        more = f" ({left_out} such lines left out)" if left_out else ""
        log.warning(line, *arguments, reason, more, stacklevel=2)

    def _limited(self, kind: str, now_ms: int) -> str:
        """Return the kind, or the one that all kinds share if there are too many."""
        if kind not in self._warned and len(self._warned) >= KINDS_MAX:
            recent = [key for key in self._warned if now_ms - self._warned[key][0] < PAUSE_MS]
            self._warned = {key: self._warned[key] for key in recent}
        return kind if kind in self._warned or len(self._warned) < KINDS_MAX else ""


def _kind(reason: object) -> str:
    if isinstance(reason, Unreachable | ConnectionLost | RequestTimedOut):
        return reason.address
    return str(reason)
