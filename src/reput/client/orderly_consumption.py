"""Orderly consumption: one worker per queue, while the broker has locked it for this client.

A failed message is delivered again before all later ones, until it becomes a dead letter.

Source: rocketmq 4.9.8 ``ConsumeMessageOrderlyService``.
"""

import asyncio
import logging

from reput.client.config import ConsumerConfig
from reput.client.failed_messages import FailedMessages
from reput.client.listener import ConsumeContext, ConsumeResult
from reput.client.listener_workers import YIELD_COUNT, ListenerWorkers
from reput.client.owned_queues import Messages, OwnedQueue, OwnedQueues, Record
from reput.client.send_back import SendBack
from reput.clock import Clock

log = logging.getLogger(__name__)

LOCK_AGAIN_MS = 3_000
TURN_MS = 60_000
"""Maximum time of a worker in one queue while others wait, in ms."""


class OrderlyConsumption:
    """Consumes queues in order, for the workers.

    Args:
        config: Settings of the consumer.
        queues: The member's queues, which are locked and record progress.
        workers: Workers that call the listener.
        send_back: Makes dead letters.
        failed: Records what happens to failed messages.
        clock: The clock.
    """

    def __init__(
        self,
        config: ConsumerConfig,
        queues: OwnedQueues,
        workers: ListenerWorkers[OwnedQueue],
        send_back: SendBack,
        failed: FailedMessages,
        *,
        clock: Clock,
    ) -> None:
        self._config = config
        self._queues = queues
        self._workers = workers
        self._send_back = send_back
        self._failed = failed
        self._clock = clock

    async def consume(self, owned: OwnedQueue) -> None:
        """Consume consecutive batches of a queue, for at most ``TURN_MS``."""
        owned.idle.clear()
        is_in_line = False
        try:
            is_in_line = await self._take_turns(owned)
        finally:
            owned.is_ready = False
            owned.idle.set()
        messages = owned.messages
        if not messages.is_dropped and (is_in_line or messages.waiting_count):
            self._workers.line_up(owned)

    async def _take_turns(self, owned: OwnedQueue) -> bool:
        """Consume until the queue is empty (False) or the turn ends (True)."""
        end_ms = self._clock.monotonic_ms() + TURN_MS
        turn_count = 0
        while self._clock.monotonic_ms() < end_ms:
            messages = owned.messages
            if messages.is_dropped or self._workers.is_closing:
                return False
            if not self._queues.is_locked(owned):
                await self._queues.lock([owned])
                if not self._queues.is_locked(owned):
                    self._rest(owned, LOCK_AGAIN_MS)
                    return False
                continue
            batch = messages.take(self._config.consume_message_batch_max_size, self._clock.now_ms())
            if batch is None:
                return False
            if not await self._consume_in_turn(owned, messages, batch):
                return False
            turn_count += 1
            if turn_count % YIELD_COUNT == 0:
                await asyncio.sleep(0)
        return True

    async def _consume_in_turn(self, owned: OwnedQueue, messages: Messages, batch: Record) -> bool:
        """Call the listener with a batch; return whether the next one may follow at once."""
        failures = owned.failures.get(batch.messages[0].queue_offset, 0) if owned.failures else 0
        context = ConsumeContext(owned.queue, failures=failures)
        try:
            result = await self._workers.call(batch, context)
            if messages is not owned.messages:  # an operator has reset the offset
                return True
            if context.auto_commit and result in (ConsumeResult.COMMIT, ConsumeResult.ROLLBACK):
                log.warning("listener returned %s with auto_commit; taken as SUCCESS", result)
                result = ConsumeResult.SUCCESS
            owned.uncommitted.append(batch)
            may_continue = True
            is_commit = context.auto_commit or result is ConsumeResult.COMMIT
            if result is ConsumeResult.ROLLBACK:
                for uncommitted in reversed(owned.uncommitted):
                    messages.give_back(uncommitted)
                owned.uncommitted.clear()
                may_continue = is_commit = False
            elif result is ConsumeResult.LATER and await self._may_try_again(
                owned, batch, self._rest_ms(context)
            ):
                messages.give_back(owned.uncommitted.pop())
                may_continue = is_commit = False
            if is_commit:
                self._commit(owned, messages)
            if not may_continue:
                self._rest(owned, self._rest_ms(context))
            return may_continue
        finally:
            self._workers.end_call()

    def _commit(self, owned: OwnedQueue, messages: Messages) -> None:
        for batch in owned.uncommitted:
            if owned.failures:
                for message in batch.messages:
                    owned.failures.pop(message.queue_offset, None)
            messages.finish(batch)
        owned.uncommitted.clear()
        self._queues.note_progress(owned, messages)

    def _rest_ms(self, context: ConsumeContext) -> int:
        rest_ms = context.suspend_ms
        if rest_ms is None:
            rest_ms = self._config.suspend_current_queue_time_ms
        return min(max(rest_ms, 10), 30_000)

    async def _may_try_again(self, owned: OwnedQueue, batch: Record, rest_ms: int) -> bool:
        """Count a failure; return False once all messages of the batch are dead letters."""
        is_open = False
        for message in batch.messages:
            failures = owned.failures.get(message.queue_offset, message.reconsume_times)
            if failures >= self._send_back.retries_max and await self._send_back.send_copy(
                message, failures
            ):
                continue
            owned.failures[message.queue_offset] = failures + 1
            self._failed.after(message, failures + 1, rest_ms)
            is_open = True
        return is_open

    def _rest(self, owned: OwnedQueue, rest_ms: int) -> None:
        """Pause a queue before its next worker."""
        owned.is_resting = True

        def wake() -> None:
            owned.is_resting = False
            if not owned.messages.is_dropped and owned.messages.waiting_count:
                self._workers.line_up(owned)

        asyncio.get_running_loop().call_later(rest_ms / 1000, wake)
