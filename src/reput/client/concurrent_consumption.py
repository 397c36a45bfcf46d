"""Unordered consumption: several workers consume batches of the same queue concurrently.

Failed messages are sent back to the brokers and return through the group's retry topic. If no
broker accepts one, it is consumed again locally.

Source: rocketmq 4.9.8 ``ConsumeMessageConcurrentlyService``.
"""

import asyncio
import logging

from reput.client.failed_messages import FailedMessages
from reput.client.listener import ConsumeContext, ConsumeResult
from reput.client.listener_workers import ListenerWorkers
from reput.client.membership import Membership
from reput.client.message import ReceivedMessage
from reput.client.owned_queues import Messages, OwnedQueue, OwnedQueues, Record
from reput.client.send_back import SendBack
from reput.client.side_tasks import SideTasks
from reput.clock import Clock

log = logging.getLogger(__name__)

SEND_BACK_AGAIN_MS = 5_000
OVERDUE_CHECK_MS = 60_000
OVERDUE_DELAY_LEVEL = 3


class ConcurrentConsumption:
    """Consumes batches of queues, for the workers.

    Args:
        membership: Group and member.
        queues: The member's queues, which record progress.
        workers: Workers that call the listener.
        send_back: Sends failed messages back.
        failed: Records what happens to failed messages.
        side_tasks: Tasks that consume messages again after a delay.
        clock: The clock.
    """

    def __init__(
        self,
        membership: Membership,
        queues: OwnedQueues,
        workers: ListenerWorkers[OwnedQueue],
        send_back: SendBack,
        failed: FailedMessages,
        *,
        side_tasks: SideTasks,
        clock: Clock,
    ) -> None:
        self._membership = membership
        self._config = membership.config
        self._queues = queues
        self._workers = workers
        self._send_back = send_back
        self._failed_messages = failed
        self._side_tasks = side_tasks
        self._clock = clock

    async def consume(self, owned: OwnedQueue) -> None:
        """Consume the next batch of a queue; other workers may take the following ones."""
        owned.is_ready = False
        messages = owned.messages
        if messages.is_dropped:
            return
        batch = messages.take(self._config.consume_message_batch_max_size, self._clock.now_ms())
        if messages.waiting_count:
            self._workers.line_up(owned)  # for the next worker
        if batch is not None:
            await self._consume_batch(owned, messages, batch)

    async def _consume_batch(self, owned: OwnedQueue, messages: Messages, batch: Record) -> None:
        context = ConsumeContext(owned.queue)
        try:
            result = await self._workers.call(batch, context)
            if result in (ConsumeResult.COMMIT, ConsumeResult.ROLLBACK):
                log.error("listener returned %s, which is for orderly consumers", result)
            if messages.is_dropped or batch.is_finished:
                log.info("%s is another member's by now, or was sent back", owned.queue)
                return
            consumed_count = len(batch.messages)
            if result in (ConsumeResult.LATER, ConsumeResult.ROLLBACK):
                consumed_count = 0
            elif context.consumed_count is not None:
                consumed_count = max(context.consumed_count, 0)
            left = await self._failed(batch.messages[consumed_count:], context.delay_level)
            messages.keep(batch, left)
            if left:
                self._side_tasks.begin(self._consume_again(owned, messages, batch))
            self._queues.note_progress(owned, messages)
        finally:
            self._workers.end_call()

    async def _failed(
        self, failed: list[ReceivedMessage], delay_level: int
    ) -> list[ReceivedMessage]:
        """Send messages back; return the messages that no broker accepted."""
        if not failed:
            return []
        if self._membership.is_broadcasting:
            for message in failed:
                self._failed_messages.dropped(message)
            return []
        taken = await asyncio.gather(
            *(self._send_back.send(message, delay_level) for message in failed)
        )
        return [message for message, is_taken in zip(failed, taken, strict=True) if not is_taken]

    async def _consume_again(self, owned: OwnedQueue, messages: Messages, batch: Record) -> None:
        """Consume messages again that could not be sent back."""
        await asyncio.sleep(SEND_BACK_AGAIN_MS / 1000)
        if not messages.is_dropped and not batch.is_finished:
            await self._consume_batch(owned, messages, batch)

    # --- what listeners do not come to an end with ------------------------------

    async def watch_overdue(self) -> None:
        """Run ``send_back_overdue`` every minute until cancelled."""
        while True:
            await asyncio.sleep(OVERDUE_CHECK_MS / 1000)
            try:
                await self.send_back_overdue()
            except Exception:  # a turn of the loop
                log.exception("overdue messages of group %s", self._membership.group)

    async def send_back_overdue(self) -> None:
        """Send back messages that listeners have held for over ``consume_timeout_min``."""
        for owned in list(self._queues.owned.values()):
            await self._send_back_overdue(owned)

    async def _send_back_overdue(self, owned: OwnedQueue) -> None:
        messages = owned.messages
        before_ms = self._clock.now_ms() - self._config.consume_timeout_min * 60_000
        for batch in messages.overdue(before_ms):
            log.warning(
                "%d messages of %s are being consumed for over %d minutes, and sent back",
                len(batch.messages),
                owned.queue,
                self._config.consume_timeout_min,
            )
            left = await self._failed(list(batch.messages), OVERDUE_DELAY_LEVEL)
            if left or messages.is_dropped:
                return
            messages.finish(batch)
            self._queues.note_progress(owned, messages)
