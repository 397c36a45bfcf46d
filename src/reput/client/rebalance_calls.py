"""Calls of a program's functions when its consumer gets or loses queues."""

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Iterable

from reput.client.core.assign import sorted_queues
from reput.errors import InvalidOption
from reput.format import names
from reput.format.bodies import MessageQueue

log = logging.getLogger(__name__)

QueuesCallback = Callable[[list[MessageQueue]], Awaitable[None] | None]
"""Async or plain function of queues; plain functions run in a thread."""


class RebalanceCalls:
    """Calls ``on_assigned`` and ``on_revoked``; their exceptions are logged.

    The queues of retry topics are left out: programs do not subscribe to them.

    Args:
        on_assigned: Called with new queues before they are pulled.
        on_revoked: Called with queues that this member loses, or has when it is closed.

    Raises:
        InvalidOption: One of them is no function.
    """

    def __init__(
        self, on_assigned: QueuesCallback | None, on_revoked: QueuesCallback | None
    ) -> None:
        for name, callback in (("on_assigned", on_assigned), ("on_revoked", on_revoked)):
            if callback is not None and not callable(callback):
                raise InvalidOption(name, callback, "a function of a list of queues")
        self._on_assigned = on_assigned
        self._on_revoked = on_revoked

    async def assigned(self, queues: Iterable[MessageQueue]) -> None:
        """Report new queues."""
        await self._call("on_assigned", self._on_assigned, queues)

    async def revoked(self, queues: Iterable[MessageQueue]) -> None:
        """Report lost queues."""
        await self._call("on_revoked", self._on_revoked, queues)

    async def _call(
        self, name: str, callback: QueuesCallback | None, queues: Iterable[MessageQueue]
    ) -> None:
        if callback is None:
            return
        own = sorted_queues(queue for queue in queues if not names.is_retry_topic(queue.topic))
        if not own:
            return
        call = getattr(callback, "__call__", callback)  # noqa: B004 - an object's own method
        try:
            if inspect.iscoroutinefunction(callback) or inspect.iscoroutinefunction(call):
                answer = callback(own)
            else:
                answer = await asyncio.to_thread(callback, own)
            if inspect.isawaitable(answer):
                await answer
        except Exception:  # the outermost edge of users' code
            log.exception("%s failed for %d queues of %s", name, len(own), own[0].topic)
