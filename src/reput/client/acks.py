"""Acknowledges messages that a listener has finished, batched by broker.

One request per broker is in flight; acknowledgements that arrive meanwhile form the next one.
Failed acknowledgements are retried until the invisible time ends; then the broker delivers the
messages again, to any member.
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
"""Maximum number of messages per request."""
AGAIN_MS = 1_000
"""Delay after a failed request, in ms."""


class Acks:
    """Pending acknowledgements.

    Args:
        popper: Sends requests to brokers.
        clock: Clock for the ends of invisible times.
    """

    def __init__(self, popper: Popper, clock: Clock) -> None:
        self._popper = popper
        self._clock = clock
        self._waiting: dict[str, list[PoppedMessage]] = {}
        """Broker name to pending messages; present while a task sends to that broker."""
        self._tasks = SideTasks()

    def add(self, messages: list[PoppedMessage]) -> None:
        """Acknowledge messages in the background."""
        for message in messages:
            name = message.broker_name
            waiting = self._waiting.get(name)
            if waiting is None:
                waiting = self._waiting[name] = []
                self._tasks.begin(self._acknowledge(name))
            waiting.append(message)

    async def drain(self) -> None:
        """Wait until nothing is pending."""
        while tasks := list(self._tasks):
            await asyncio.gather(*tasks, return_exceptions=True)

    async def close(self) -> None:
        """Stop; brokers deliver the pending messages again."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._waiting.clear()

    async def _acknowledge(self, broker_name: str) -> None:
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
        text = "%d messages are not acknowledged to %s yet"
        self._popper.outages.warn(log, error, text, len(some), broker_name)
        await asyncio.sleep(AGAIN_MS / 1000)
        now_ms = self._clock.now_ms()
        held = [message for message in some if message.held_until_ms > now_ms]
        if len(held) < len(some):
            log.warning("%d messages come again: they could not be acknowledged in time",
                        len(some) - len(held))  # fmt: skip
        waiting[:0] = held
