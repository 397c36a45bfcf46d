"""Deadlines of connections in a state that must end, with one timer for all of them."""

import asyncio
import itertools
from collections.abc import Callable
from typing import Generic, TypeVar

from reput.limits import Limit

CUTS_MAX = 100
"""Connections that are cut at once: it takes up to a tenth of a millisecond each."""

_T = TypeVar("_T")


class Deadlines(Generic[_T]):
    """Closes connections whose time has expired.

    Args:
        limit: The time, in ms.
        cut: Called with a connection that is late; it must remove it.
    """

    def __init__(self, limit: Limit, cut: Callable[[_T], object]) -> None:
        self._limit_s = limit.maximum / 1000
        self._cut = cut
        self._deadlines: dict[_T, float] = {}  # in the order of time
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        """Return the number of connections with a deadline."""
        return len(self._deadlines)

    def add(self, connection: _T) -> None:
        """Start the deadline of a connection."""
        loop = asyncio.get_running_loop()
        self._deadlines[connection] = loop.time() + self._limit_s
        if self._timer is None:
            self._timer = loop.call_later(self._limit_s, self._expire)

    def remove(self, connection: _T) -> None:
        """Cancel the deadline of a connection, if any."""
        self._deadlines.pop(connection, None)

    def stop(self) -> None:
        """Stop closing connections."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _expire(self) -> None:
        self._timer = None
        loop = asyncio.get_running_loop()
        self.expire(loop.time())
        if self._deadlines:
            self._timer = loop.call_at(next(iter(self._deadlines.values())), self._expire)

    def expire(self, now_s: float) -> None:
        """Cut connections that are late, ``CUTS_MAX`` of them; others after a turn of the loop.

        Args:
            now_s: The time of the event loop, in seconds.
        """
        oldest = list(itertools.islice(self._deadlines.items(), CUTS_MAX))
        for connection, deadline in oldest:
            if deadline > now_s:
                break
            self._cut(connection)
