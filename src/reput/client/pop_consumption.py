"""Consumption of popped messages: workers call the listener and report results to brokers.

A message stays invisible to others while the listener has it: its invisible time is extended before
it ends. A failed message is delivered again after a delay, to any member, until its retries are
exhausted; then it goes to the group's dead-letter topic. In order, the later messages of its queue
are delivered again after it.

Source: rocketmq 5.5.0 ``ConsumeMessagePopConcurrentlyService``; dead letters as made by its gRPC
proxy, which push consumers in pop mode do not make.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Sequence

from reput.client.acks import Acks
from reput.client.config import ConsumerConfig
from reput.client.core import pop_handles
from reput.client.core.process_queue import Batch
from reput.client.failed_messages import FailedMessages
from reput.client.listener import ConsumeContext, ConsumeResult
from reput.client.listener_workers import YIELD_COUNT, ListenerWorkers
from reput.client.membership import Problem
from reput.client.message import ReceivedMessage
from reput.client.popping import PoppedMessage, Popper
from reput.client.queue_pops import PopSource, QueuePops
from reput.client.send_back import SendBack
from reput.clock import Clock
from reput.errors import CorruptRecord
from reput.format.bodies import MessageQueue

log = logging.getLogger(__name__)


class PopLine:
    """Messages that wait for a worker: of one source or, in order, of one queue."""

    def __init__(self, source: PopSource, queue: MessageQueue) -> None:
        self.source = source
        self.queue = queue
        self.waiting: deque[PoppedMessage] = deque()
        self.is_ready = False
        """True while the queue waits for a worker or, in order, while a worker consumes it."""
        self.is_resting = False


class PopConsumption:
    """Passes messages from sources to workers.

    Args:
        config: Settings of the consumer.
        popper: Sends requests to brokers.
        pops: Tasks that pop; they count finished messages.
        acks: Pending acknowledgements.
        workers: Workers that call the listener.
        send_back: Makes dead letters.
        failed: Records what happens to failed messages.
        is_ordered: True if a queue is consumed one batch at a time.
        clock: The clock.
    """

    def __init__(
        self,
        config: ConsumerConfig,
        popper: Popper,
        pops: QueuePops,
        acks: Acks,
        workers: ListenerWorkers[PopLine],
        send_back: SendBack,
        failed: FailedMessages,
        *,
        is_ordered: bool,
        clock: Clock,
    ) -> None:
        self._config = config
        self._popper = popper
        self._pops = pops
        self._acks = acks
        self._workers = workers
        self._send_back = send_back
        self._failed_messages = failed
        self._is_ordered = is_ordered
        self._clock = clock
        self._lines: dict[PopSource, dict[MessageQueue, PopLine]] = {}

    # --- coming and going -------------------------------------------------------

    def add(self, source: PopSource, messages: Sequence[PoppedMessage]) -> None:
        """Add the messages of a source."""
        lines = self._lines.setdefault(source, {})
        for message in messages:
            queue = _queue_of(message) if self._is_ordered else source.queue
            line = lines.get(queue)
            if line is None:
                line = lines[queue] = PopLine(source, queue)
            line.waiting.append(message)
            self._workers.line_up(line)

    async def give_up(self, source: PopSource) -> None:
        """Release the waiting messages of a source."""
        left: list[PoppedMessage] = []
        for line in self._lines.pop(source, {}).values():
            left += line.waiting
            line.waiting.clear()
        await self._pops.let_go(left)
        self._pops.done(source, len(left))

    # --- consuming --------------------------------------------------------------

    async def consume(self, line: PopLine) -> None:
        """Consume the next batch; if in order, all waiting batches."""
        if not self._is_ordered:
            line.is_ready = False
            batch = self._take(line)
            if line.waiting:
                self._workers.line_up(line)  # for the next worker
            if batch:
                await self._consume_batch(line, batch)
            return
        try:
            for turn_count in range(1, len(line.waiting) + 1):
                if self._workers.is_closing or not (batch := self._take(line)):
                    break
                await self._consume_batch(line, batch)
                if turn_count % YIELD_COUNT == 0:
                    await asyncio.sleep(0)
        finally:
            line.is_ready = False
        if line.waiting:
            self._workers.line_up(line)

    def _take(self, line: PopLine) -> list[PoppedMessage]:
        """Return the next messages to consume, without those whose invisible time has ended."""
        now_ms = self._clock.now_ms()
        lapsed_count = 0
        waiting = line.waiting
        while waiting and waiting[0].held_until_ms <= now_ms:
            # In order, no message may be skipped: the whole queue is delivered again.
            lapsed_count += len(waiting) if self._is_ordered else 1
            waiting.clear() if self._is_ordered else waiting.popleft()
        if lapsed_count:
            log.warning(
                "%d messages of %s waited longer than they are held, and come again; fewer would"
                " with a smaller popThresholdForQueue, or a longer popInvisibleTime",
                lapsed_count,
                line.queue,
            )
            self._pops.done(line.source, lapsed_count)
        count = min(len(waiting), self._config.consume_message_batch_max_size)
        return [waiting.popleft() for _ in range(count)]

    async def _consume_batch(self, line: PopLine, messages: list[PoppedMessage]) -> None:
        context = ConsumeContext(line.queue)
        if self._is_ordered:
            context.failures = _retries(messages[0])
        received: list[ReceivedMessage] = list(messages)
        done_count = len(messages)
        try:
            holding: list[asyncio.Task[None]] = []
            timer = self._begin_to_hold(messages, holding)
            try:
                result = await self._workers.call(Batch(received, self._clock.now_ms()), context)
            finally:
                timer.cancel()
                for task in holding:
                    task.cancel()
                    await asyncio.gather(task, return_exceptions=True)
            consumed_count = len(messages)
            if result in (ConsumeResult.COMMIT, ConsumeResult.ROLLBACK):
                log.error("listener returned %s, which a pop consumer does not know", result)
            if result in (ConsumeResult.LATER, ConsumeResult.ROLLBACK):
                consumed_count = 0
            elif context.consumed_count is not None:
                consumed_count = max(context.consumed_count, 0)
            self._acks.add(messages[:consumed_count])
            failed = messages[consumed_count:]
            if failed and self._is_ordered:
                failed += line.waiting
                done_count += len(line.waiting)
                line.waiting.clear()
            if failed:
                await self._failed(failed, len(messages) - consumed_count, context)
        finally:
            self._pops.done(line.source, done_count)
            self._workers.end_call()

    async def _failed(
        self, messages: list[PoppedMessage], attempted_count: int, context: ConsumeContext
    ) -> None:
        """Request another delivery of messages, or make dead letters.

        Args:
            messages: The messages; the listener has seen ``attempted_count`` of them.
            attempted_count: Number of messages whose delivery counts as an attempt.
            context: Context with the listener's options.
        """

        async def come_to_an_end(message: PoppedMessage, is_attempt: bool) -> None:
            if is_attempt and await self._is_dead(message, context.delay_level):
                self._acks.add([message])
            else:
                delay_ms = self._delay_ms(message, context)
                if is_attempt:
                    self._failed_messages.after(message, _retries(message) + 1, delay_ms)
                await self._see_again(message, delay_ms, is_attempt=is_attempt)

        await asyncio.gather(
            *(
                come_to_an_end(message, index < attempted_count)
                for index, message in enumerate(messages)
            )
        )

    def _delay_ms(self, message: PoppedMessage, context: ConsumeContext) -> int:
        if not self._is_ordered:
            return pop_handles.retry_delay_ms(max(context.delay_level, 0) or _retries(message))
        rest_ms = context.suspend_ms
        if rest_ms is None:
            rest_ms = self._config.suspend_current_queue_time_ms
        return min(max(rest_ms, 10), 30_000)

    async def _is_dead(self, message: PoppedMessage, delay_level: int) -> bool:
        if delay_level >= 0 and _retries(message) < self._send_back.retries_max:
            return False
        return await self._send_back.give_up(message)

    async def _see_again(
        self, message: PoppedMessage, delay_ms: int, *, is_attempt: bool = True
    ) -> None:
        try:
            await self._popper.change(message, delay_ms, is_attempt=is_attempt)
        except Problem as error:
            text = "message %d from %s comes again when it is not held any more"
            name = message.broker_name
            self._popper.outages.warn(log, error, text, message.queue_offset, name)

    # --- holding ----------------------------------------------------------------

    def _begin_to_hold(
        self, messages: Sequence[PoppedMessage], holding: list[asyncio.Task[None]]
    ) -> asyncio.TimerHandle:
        """Extend the invisible time of messages once half of it is over.

        Args:
            messages: Messages that a listener gets now.
            holding: Receives the task that extends the time, if one is needed.
        """
        loop = asyncio.get_running_loop()
        left_ms = min(message.held_until_ms for message in messages) - self._clock.now_ms()
        return loop.call_later(
            max(left_ms, 0) / 2000,
            lambda: holding.append(loop.create_task(self._hold_on(messages))),
        )

    async def _hold_on(self, messages: Sequence[PoppedMessage]) -> None:
        invisible_ms = self._config.pop_invisible_ms
        end_ms = self._clock.monotonic_ms() + self._config.consume_timeout_min * 60_000
        while self._clock.monotonic_ms() < end_ms:
            # Not cancelled midway: the new handle would be lost.
            changing = asyncio.gather(
                *(self._see_again(message, invisible_ms) for message in messages)
            )
            try:
                await asyncio.shield(changing)
            except asyncio.CancelledError:
                await changing
                raise
            await asyncio.sleep(invisible_ms / 2000)
        log.warning(
            "%d messages are being consumed for over %d minutes, and come again",
            len(messages),
            self._config.consume_timeout_min,
        )


def _retries(message: PoppedMessage) -> int:
    """Return the number of earlier deliveries of a message; 0 if it is damaged."""
    try:
        return message.reconsume_times
    except CorruptRecord:
        return 0


def _queue_of(message: PoppedMessage) -> MessageQueue:
    """Return the queue of a message."""
    return MessageQueue(
        topic=message.asked_topic,
        broker_name=message.broker_name,
        queue_id=message.handle.queue_id,
    )
