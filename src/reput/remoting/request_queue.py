"""Requests whose work runs in tasks, one at a time; each is answered when its work is done.

For work that waits for a disk, or must not run twice at the same time: the event loop serves other
requests meanwhile.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from reput.errors import REMARK_LETTERS, ReputError, excerpt
from reput.format import command as commands
from reput.format.codes import ResponseCode
from reput.format.command import Command
from reput.limits import Limit
from reput.remoting.channel import Channel

_log = logging.getLogger(__name__)

Work = Callable[[], Awaitable[str | None]]
"""Does the work of a request; returns the remark of the reply."""


class _Entry(NamedTuple):
    channel: Channel
    request: Command
    work: Work


class RequestQueue:
    """Runs the work of requests in order of arrival.

    Args:
        limit: The number of pending requests.
        keep: Takes the task that does the work, so that a stop can cancel it.
    """

    def __init__(
        self, limit: Limit, keep: Callable[[asyncio.Task[None]], object] = lambda task: None
    ) -> None:
        self._limit = limit
        self._keep = keep
        self._waiting: deque[_Entry] = deque()
        self._task: asyncio.Task[None] | None = None

    def answer(self, channel: Channel, request: Command, work: Work) -> None:
        """Do the work of a request after that of earlier ones, then reply.

        Raises:
            LimitExceeded: Too many requests are pending.
        """
        self.check_room()
        self._waiting.append(_Entry(channel, commands.envelope(request), work))
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._run())
            self._keep(self._task)

    def check_room(self) -> None:
        """Refuse another request if too many are pending. Raises ``LimitExceeded``."""
        self._limit.check(len(self._waiting) + 1)

    async def close(self) -> None:
        """Wait until all requests are answered."""
        if self._task is not None:
            await asyncio.wait((self._task,))

    async def _run(self) -> None:
        while self._waiting:
            channel, request, work = self._waiting.popleft()
            try:
                reply = commands.reply(request, remark=await work())
            except ReputError as error:
                text = excerpt(str(error), REMARK_LETTERS)
                code = error.code_for(request.version)
                reply = commands.reply(request, code, text, error.reply_fields)
            except Exception as error:  # noqa: BLE001 - the outermost edge of a request
                _log.exception("request %d of %s failed", request.code, channel.peer)
                text = f"{type(error).__name__}: {error}"
                reply = commands.reply(request, ResponseCode.SYSTEM_ERROR, text)
            if not request.is_oneway:
                channel.answer(request, reply)
