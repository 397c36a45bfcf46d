"""Workers of a consumer: each repeatedly takes the next queue and consumes part of it.

Source: rocketmq 4.9.8 ``ConsumeMessageConcurrentlyService``, ``ConsumeMessageOrderlyService``.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Generic, Protocol, TypeVar

from reput.client import hooks
from reput.client.core.consume_rates import RatesByTopic
from reput.client.core.trace_codec import Outcome
from reput.client.hooks import ClientFacts, ConsumeCall, ConsumeOperation
from reput.client.listener import ConsumeContext, ConsumeResult, ListenerCalls
from reput.client.owned_queues import Record
from reput.client.trace import TraceWriter
from reput.clock import Clock
from reput.format.bodies import MessageQueue

log = logging.getLogger(__name__)

YIELD_COUNT = 16
"""Number of batches after which a worker yields to the loop."""


class Line(Protocol):
    """Messages of a queue that wait for a worker."""

    queue: MessageQueue
    is_ready: bool
    """True while it is queued; its consumer resets it."""
    is_resting: bool
    """True while it may not be queued."""


Q = TypeVar("Q", bound=Line)


class ListenerWorkers(Generic[Q]):
    """Queue of ready lines, and the calls of the listener in progress.

    Args:
        group: The consumer group, for log lines.
        calls: Calls the listener.
        rates: Records the rate of calls.
        clock: Measures durations.
        traces: Traces the calls, if tracing is on.
        client: The client, for hooks.
    """

    def __init__(
        self,
        group: str,
        calls: ListenerCalls,
        rates: RatesByTopic,
        clock: Clock,
        traces: TraceWriter | None = None,
        client: ClientFacts | None = None,
    ) -> None:
        self.is_closing = False
        """True once closing; no more lines are taken."""
        self.calls_in_flight = 0
        self.is_quiet = asyncio.Event()
        """Set while no call is in progress."""
        self.is_quiet.set()
        self._group = group
        self._calls = calls
        self._rates = rates
        self._clock = clock
        self._traces = traces
        self._client = client or ClientFacts(group, "")
        self._ready: deque[Q] = deque()
        self._idle: deque[asyncio.Future[None]] = deque()

    def line_up(self, line: Q) -> None:
        """Queue a line for a worker unless it is queued or resting."""
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
        """Run a worker until cancelled or ``is_closing``.

        Args:
            consume: Consumes part of a line; its exceptions are logged.
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
            except Exception:  # a time slice; the batch is not finished
                log.exception("consumer group %s in %s", self._group, line.queue)
            turn_count += 1
            if turn_count >= YIELD_COUNT:
                turn_count = 0
                await asyncio.sleep(0)

    async def call(self, batch: Record, context: ConsumeContext) -> ConsumeResult:
        """Call the listener; ``end_call`` is due once the result is recorded."""
        begun_ms = self._clock.monotonic_ms()
        self.calls_in_flight += 1
        self.is_quiet.clear()
        count = len(batch.messages)
        result, error = ConsumeResult.LATER, None
        call_id = self._traces.begun(batch.messages) if self._traces is not None else ""
        try:
            if hooks.installed is None:
                result, error = await self._calls.call(list(batch.messages), context)
            else:
                result, error = await self._observed(batch, context)
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

    async def _observed(
        self, batch: Record, context: ConsumeContext
    ) -> tuple[ConsumeResult, BaseException | None]:
        """Call the listener, and report the call to the hook."""
        call = ConsumeCall(
            ConsumeOperation.PROCESS, self._client, batch.messages, self._clock.now_ms()
        )
        with hooks.consuming(call):
            result, call.error = await self._calls.call(list(batch.messages), context)
            call.is_failure = result in (ConsumeResult.LATER, ConsumeResult.ROLLBACK)
            return result, call.error

    def end_call(self) -> None:
        """Count a call as finished."""
        self.calls_in_flight -= 1
        if not self.calls_in_flight:
            self.is_quiet.set()
