"""The workers of a consumer: each takes the first queue in line, consumes some of it, again.

Source: rocketmq 4.9.8 ``ConsumeMessageConcurrentlyService``, ``ConsumeMessageOrderlyService``.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Generic, Protocol, TypeVar

from reput.client.core.consume_rates import RatesByTopic
from reput.client.core.trace_codec import Outcome
from reput.client.listener import ConsumeContext, ConsumeResult, ListenerCalls
from reput.client.owned_queues import Record
from reput.client.trace import TraceWriter
from reput.clock import Clock
from reput.format.bodies import MessageQueue

log = logging.getLogger(__name__)

YIELD_COUNT = 16
"""Batches after which a worker lets the loop do something else."""


class Line(Protocol):
    """What stands in line: messages of a queue, in whatever way they came."""

    queue: MessageQueue
    is_ready: bool
    """In line; consuming it says when it is so no more."""
    is_resting: bool
    """Not to be put in line for a while."""


Q = TypeVar("Q", bound=Line)


class ListenerWorkers(Generic[Q]):
    """A line of queues with messages, and the calls of the listener that are under way.

    Args:
        group: The consumer group, for log lines.
        calls: Calls the listener.
        rates: Told of each call.
        clock: Says how long it took.
        traces: Told of each call, if it is to be traced.
    """

    def __init__(
        self,
        group: str,
        calls: ListenerCalls,
        rates: RatesByTopic,
        clock: Clock,
        traces: TraceWriter | None = None,
    ) -> None:
        self.is_closing = False
        """Set for good: nothing more is taken from the line."""
        self.calls_in_flight = 0
        self.is_quiet = asyncio.Event()
        """Set while no call is under way."""
        self.is_quiet.set()
        self._group = group
        self._calls = calls
        self._rates = rates
        self._clock = clock
        self._traces = traces
        self._ready: deque[Q] = deque()
        self._idle: deque[asyncio.Future[None]] = deque()

    def line_up(self, line: Q) -> None:
        """Put a queue in line for a worker, unless it is, or has to rest."""
        if line.is_ready or line.is_resting:
            return
        line.is_ready = True
        self._ready.append(line)
        while self._idle:
            worker = self._idle.popleft()
            if not worker.done():
                worker.set_result(None)
                break

    async def work(self, consume: Callable[[Q], Awaitable[None]]) -> None:
        """Be one of the workers, until cancelled or ``is_closing``.

        Args:
            consume: Consumes some of a queue; what it raises is logged.
        """
        turn_count = 0
        while not self.is_closing:
            if not self._ready:
                turn_count = 0
                waiting = asyncio.get_running_loop().create_future()
                self._idle.append(waiting)
                await waiting
                continue
            line = self._ready.popleft()
            try:
                await consume(line)
            except Exception:  # a turn of the loop; the batch is not finished
                log.exception("consumer group %s in %s", self._group, line.queue)
            turn_count += 1
            if turn_count >= YIELD_COUNT:
                turn_count = 0
                await asyncio.sleep(0)

    async def call(self, batch: Record, context: ConsumeContext) -> ConsumeResult:
        """Call the listener and count. ``end_call`` is due in any case, when all is noted."""
        begun_ms = self._clock.monotonic_ms()
        self.calls_in_flight += 1
        self.is_quiet.clear()
        count = len(batch.messages)
        result, error = ConsumeResult.LATER, None
        call_id = self._traces.begun(batch.messages) if self._traces is not None else ""
        try:
            result, error = await self._calls.call(list(batch.messages), context)
        finally:
            now_ms = self._clock.now_ms()
            duration_ms = self._clock.monotonic_ms() - begun_ms
            is_failure = result in (ConsumeResult.LATER, ConsumeResult.ROLLBACK)
            consumed_count, failed_count = (0, count) if is_failure else (count, 0)
            rates = self._rates.of(context.queue.topic, now_ms)
            rates.add_call(now_ms, duration_ms, consumed_count, failed_count)
            if self._traces is not None:
                outcome = Outcome.FAILED if is_failure else Outcome.SUCCESS
                outcome = Outcome.EXCEPTION if error is not None else outcome
                self._traces.consumed(batch.messages, call_id, outcome, duration_ms)
        return result

    def end_call(self) -> None:
        """Count a call as over."""
        self.calls_in_flight -= 1
        if not self.calls_in_flight:
            self.is_quiet.set()
