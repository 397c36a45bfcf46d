"""Events of connections, and the calls of a program's function with them."""

import asyncio
import enum
import inspect
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from reput.client.side_tasks import stop
from reput.errors import InvalidOption

log = logging.getLogger(__name__)

WAITING_MAX = 1_000
"""Number of events that may wait for a slow function; then the oldest is dropped."""


class ConnectionChange(enum.Enum):
    """A change of a connection."""

    CONNECTED = "connected"
    """The first connection to an address."""
    DISCONNECTED = "disconnected"
    RECONNECTED = "reconnected"
    """A later connection to an address."""


class PeerKind(enum.Enum):
    """Kind of the server at the other end."""

    BROKER = "broker"
    NAME_SERVER = "name server"


@dataclass(frozen=True, slots=True)
class ConnectionEvent:
    """A connection that was opened or closed."""

    change: ConnectionChange
    peer_kind: PeerKind
    address: str
    """Address of the server, ``host:port``."""
    reason: str = ""
    """Reason of ``DISCONNECTED``."""


ConnectionCallback = Callable[[ConnectionEvent], Awaitable[None] | None]
"""Async or plain function of an event; plain functions run in a thread."""


class ConnectionCalls:
    """Calls ``on_connection`` for each event in order; its exceptions are logged.

    Args:
        callback: The program's function; None: events are ignored.

    Raises:
        InvalidOption: It is no function.
    """

    def __init__(self, callback: ConnectionCallback | None) -> None:
        if callback is not None and not callable(callback):
            raise InvalidOption("on_connection", callback, "a function of a ConnectionEvent")
        self._callback = callback
        self._waiting: deque[ConnectionEvent] = deque()
        self._calling: asyncio.Task[None] | None = None

    def report(self, event: ConnectionEvent) -> None:
        """Call the function soon."""
        if self._callback is None:
            return
        if len(self._waiting) >= WAITING_MAX:
            dropped = self._waiting.popleft()
            log.warning("on_connection is too slow: %s event of %s dropped",
                        dropped.change.value, dropped.address)  # fmt: skip
        self._waiting.append(event)
        if self._calling is None or self._calling.done():
            self._calling = asyncio.create_task(self._call_all(self._callback))

    async def close(self) -> None:
        """Stop calling; waiting events are dropped."""
        self._waiting.clear()
        if self._calling is not None:
            await stop([self._calling])

    async def _call_all(self, callback: ConnectionCallback) -> None:
        call = getattr(callback, "__call__", callback)  # noqa: B004 - an object's own method
        is_async = inspect.iscoroutinefunction(callback) or inspect.iscoroutinefunction(call)
        while self._waiting:
            event = self._waiting.popleft()
            try:
                answer = callback(event) if is_async else await asyncio.to_thread(callback, event)
                if inspect.isawaitable(answer):
                    await answer
            except Exception:  # the outermost edge of users' code
                log.exception("on_connection failed: %s %s", event.change.value, event.address)
