"""Acknowledges what a listener is done with: all that comes together meanwhile in one request.

One request to a broker is on its way at a time. What could not be told is told again, until it is
too late: then it comes again, to whichever member.
"""

import asyncio
import logging

from reput.client.membership import Problem
from reput.client.popping import PoppedMessage, Popper
from reput.client.side_tasks import SideTasks
from reput.clock import Clock
from reput.errors import BrokerError

log = logging.getLogger(__name__)

COUNT_MAX = 512
"""Messages of one request."""
AGAIN_MS = 1_000
"""After a request that failed."""


class Acks:
    """What is to be acknowledged.

    Args:
        popper: Tells brokers.
        clock: Says what is too late.
    """

    def __init__(self, popper: Popper, clock: Clock) -> None:
        self._popper = popper
        self._clock = clock
        self._waiting: dict[str, list[PoppedMessage]] = {}
        """Broker name -> messages; there while a task tells that broker."""
        self._tasks = SideTasks()

    def add(self, messages: list[PoppedMessage]) -> None:
        """Have messages acknowledged."""
        for one in messages:
            name = one.broker_name
            waiting = self._waiting.get(name)
            if waiting is None:
                waiting = self._waiting[name] = []
                self._tasks.begin(self._tell(name))
            waiting.append(one)

    async def drain(self) -> None:
        """Wait until nothing is left to tell."""
        while tasks := list(self._tasks):
            await asyncio.gather(*tasks, return_exceptions=True)

    async def close(self) -> None:
        """End; what is left to tell comes again."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._waiting.clear()

    async def _tell(self, broker_name: str) -> None:
        try:
            while waiting := self._waiting[broker_name]:
                some = waiting[:COUNT_MAX]
                del waiting[:COUNT_MAX]
                try:
                    await self._popper.ack(some)
                except Problem as error:
                    await self._after_problem(waiting, some, error)
                except Exception:  # a turn of the loop
                    log.exception("acknowledging %d messages to %s", len(some), broker_name)
        finally:
            del self._waiting[broker_name]

    async def _after_problem(
        self, waiting: list[PoppedMessage], some: list[PoppedMessage], error: Exception
    ) -> None:
        broker_name = some[0].broker_name
        if isinstance(error, BrokerError) and not error.retriable:
            log.warning("%s takes no acknowledgement of %d messages: %s", broker_name, len(some),
                        error)  # fmt: skip
            return
        log.warning("%d messages are not acknowledged to %s yet: %s", len(some), broker_name, error)
        await asyncio.sleep(AGAIN_MS / 1000)
        now_ms = self._clock.now_ms()
        held = [one for one in some if one.held_until_ms > now_ms]
        if len(held) < len(some):
            log.warning("%d messages come again: they could not be acknowledged in time",
                        len(some) - len(held))  # fmt: skip
        waiting[:0] = held
