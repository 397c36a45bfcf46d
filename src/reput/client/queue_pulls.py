"""Tasks that pull, one per queue, while the queue is this member's and there is room.

Source: rocketmq 4.9.8 ``DefaultMQPushConsumerImpl.pullMessage``.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import Generic, TypeVar

from reput.client.config import ConsumerConfig
from reput.client.consumer_offsets import ConsumerOffsets
from reput.client.core.answered_queue import AnsweredQueue
from reput.client.core.process_queue import ProcessQueue
from reput.client.core.pull_replies import PullStatus
from reput.client.instance import ClientInstance
from reput.client.membership import Membership, Problem
from reput.client.message import ReceivedMessage
from reput.client.outages import ROUTES
from reput.client.pulling import Pulled, Puller
from reput.errors import BrokerError, CorruptRecord, RemotingError
from reput.format.bodies import MessageQueue
from reput.format.codes import ResponseCode

log = logging.getLogger(__name__)

PULL_AGAIN_MS = 3_000
"""Delay after a failed pull, in ms."""
FLOW_CONTROL_MS = 20
"""Delay after a pull that a busy broker rejected, in ms."""
UNKNOWN_SUBSCRIPTION_MS = 1_000
"""Delay after a pull whose subscription the broker did not know, in ms; it was sent since."""
LAGGING_SLAVE_MS = 100
"""Delay after a pull from a slave that lacks the messages, in ms
(known-bugs.md#pulls-without-pause)."""
MIB = 1 << 20
_UNKNOWN_SUBSCRIPTION = (
    ResponseCode.SUBSCRIPTION_NOT_EXIST,
    ResponseCode.SUBSCRIPTION_NOT_LATEST,
    ResponseCode.FILTER_DATA_NOT_EXIST,
    ResponseCode.FILTER_DATA_NOT_LATEST,
)


class PulledQueue(AnsweredQueue):
    """A queue of this member, with its cached messages."""

    def __init__(self, queue: MessageQueue, next_offset: int) -> None:
        super().__init__(queue)
        self.messages: ProcessQueue[ReceivedMessage] = ProcessQueue(next_offset)
        self.is_ours = True
        """True while consumption of the queue counts."""
        self.pulled_at_ms = 0
        self.end_offset: int | None = None
        """End of the queue in the last reply to a pull; None before the first."""
        self.has_room = asyncio.Event()
        """Cleared while the task waits for messages to be consumed."""
        self.task: asyncio.Task[None] | None = None

    def restart(self, next_offset: int) -> None:
        """Drop the cached messages and continue at another offset."""
        self.messages.is_dropped = True
        self.messages = ProcessQueue(next_offset)
        self.has_room.set()

    @property
    def lag(self) -> int | None:
        """Number of messages up to the known end that are not consumed; None before a reply."""
        if self.end_offset is None:
            return None
        # Replies of earlier pulls may lack the messages of later ones.
        end_offset = max(self.end_offset, self.messages.next_offset)
        return end_offset - self.messages.consumer_offset


def known_lags(queues: Iterable[PulledQueue]) -> dict[MessageQueue, int]:
    """Return the lag of each queue whose end is known."""
    lags = ((pulled.queue, pulled.lag) for pulled in queues)
    return {queue: lag for queue, lag in lags if lag is not None}


Q = TypeVar("Q", bound=PulledQueue)


class QueuePulls(Generic[Q]):
    """The tasks that pull.

    Args:
        instance: Client instance for requests.
        membership: Group and subscriptions.
        offsets: Consumer offsets; with ``commits`` changed when the broker corrects one, and past
            unmatched messages.
        puller: Pulls.
        may_pull: Awaited before each pull; returns False to wait a moment longer.
        on_messages: Called with a queue, the number of its new messages and the duration of the
            pull, in ms.
        on_change: Called when the broker of a queue begins or ceases to answer.
        is_ordered: Ignore the span of offsets as a threshold.
        commits: Progress without messages is committed; False: only the program commits.
    """

    def __init__(
        self,
        instance: ClientInstance,
        membership: Membership,
        offsets: ConsumerOffsets,
        puller: Puller,
        *,
        may_pull: Callable[[Q], Awaitable[bool]],
        on_messages: Callable[[Q, int, int], None],
        on_change: Callable[[], None],
        is_ordered: bool,
        commits: bool,
    ) -> None:
        self._instance = instance
        self._clock = instance.clock
        self._membership = membership
        self._config: ConsumerConfig = membership.config
        self._offsets = offsets
        self._puller = puller
        self._may_pull = may_pull
        self._on_messages = on_messages
        self._on_change = on_change
        self._is_ordered = is_ordered
        self._commits = commits
        self._heartbeat: asyncio.Task[None] | None = None

    def begin(self, pulled: Q) -> None:
        """Start pulling from a queue."""
        pulled.task = asyncio.create_task(self._run(pulled), name=f"reput pull {pulled.queue}")

    async def end(self, pulled: Q) -> None:
        """Stop pulling from a queue. A pull in flight is not awaited."""
        task, pulled.task = pulled.task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def restart(self, pulled: Q, next_offset: int) -> None:
        """Continue at another offset at once; pulls in flight are ignored."""
        pulled.restart(next_offset)
        if pulled.task is not None:
            pulled.task.cancel()
        self.begin(pulled)

    def is_full(self, messages: ProcessQueue[ReceivedMessage]) -> bool:
        """Return whether the thresholds of cached messages are reached."""
        config = self._config
        return (
            messages.message_count > config.pull_threshold_for_queue
            or messages.size_bytes > config.pull_threshold_size_for_queue * MIB
            or (not self._is_ordered and messages.span > config.consume_concurrently_max_span)
        )

    def note_progress(self, pulled: Q) -> None:
        """Resume pulling from a queue if there is room."""
        if not pulled.has_room.is_set() and not self.is_full(pulled.messages):
            pulled.has_room.set()

    async def _run(self, pulled: Q) -> None:
        while pulled.is_ours:
            try:
                if self.is_full(pulled.messages):
                    pulled.has_room.clear()
                    await pulled.has_room.wait()
                elif await self._may_pull(pulled):
                    await self._pull(pulled)
                else:
                    await asyncio.sleep(PULL_AGAIN_MS / 1000)
            except Problem as error:
                self._note(pulled, error)
                await self._after_problem(pulled, error)
            except CorruptRecord as error:
                self._note(pulled, error)
                log.error("reply to a pull from %s is damaged: %s", _place(pulled), error)
                await asyncio.sleep(PULL_AGAIN_MS / 1000)
            except Exception as error:  # a time slice
                self._note(pulled, error)
                log.exception("pull from %s", _place(pulled))
                await asyncio.sleep(PULL_AGAIN_MS / 1000)

    def _note(self, pulled: Q, problem: Exception | None) -> None:
        if pulled.note(problem):
            self._on_change()

    async def _pull(self, pulled: Q) -> None:
        queue, messages = pulled.queue, pulled.messages
        wanted = self._membership.wanted.get(queue.topic)
        if wanted is None:  # unsubscribed meanwhile
            await asyncio.sleep(PULL_AGAIN_MS / 1000)
            return
        commit_offset = None
        if not self._membership.is_broadcasting:
            # Brokers handle requests concurrently. If all earlier messages are consumed, later
            # commits wait for the reply to this pull, so that an old offset cannot overtake a newer
            # one.
            known = self._offsets.table.get(queue)
            commit_offset = known if known == messages.next_offset else None
        begun_ms = pulled.pulled_at_ms = self._clock.now_ms()
        brought = await self._puller.pull(
            queue,
            messages.next_offset,
            wanted,
            count_max=self._config.pull_batch_size,
            commit_offset=commit_offset,
            # A held pull would not show for a while whether the broker answers.
            hold_ms=self._config.broker_suspend_ms if pulled.is_answered else 0,
            timeout_ms=self._config.pull_timeout_ms,
        )
        self._note(pulled, None)
        if messages.is_dropped:
            return
        pulled.end_offset = brought.max_offset
        if brought.status is PullStatus.ILLEGAL_OFFSET:
            await self._correct(pulled, brought)
            return
        if brought.status is PullStatus.NO_MATCH and brought.next_offset == messages.next_offset:
            await asyncio.sleep(LAGGING_SLAVE_MS / 1000)
            return
        now_ms = self._clock.now_ms()
        count = messages.put(brought.messages, brought.next_offset, now_ms)
        if count:
            self._on_messages(pulled, count, now_ms - begun_ms)
        elif self._commits and not messages.message_count:
            # Unmatched messages are progress too.
            self._offsets.table.advance(queue, messages.consumer_offset)
        if self._config.pull_interval_ms:
            await asyncio.sleep(self._config.pull_interval_ms / 1000)

    async def _correct(self, pulled: Q, brought: Pulled) -> None:
        """Continue at the broker's offset: messages were deleted, or the queue is shorter."""
        asked = pulled.messages.next_offset
        next_offset = brought.next_offset
        if next_offset == asked:  # a slave that lags
            self._puller.forget(pulled.queue)
            await asyncio.sleep(PULL_AGAIN_MS / 1000)
            return
        if asked > brought.max_offset:
            # Brokers before 4.9.4 return the very first offset
            # (known-bugs.md#offset-too-large).
            next_offset = brought.max_offset
        log.warning(
            "%s is illegal: it goes from %d to %d; consumer group %s continues at %d",
            _place(pulled),
            brought.min_offset,
            brought.max_offset,
            self._membership.group,
            next_offset,
        )
        pulled.restart(next_offset)
        if self._commits:
            self._offsets.table.set(pulled.queue, next_offset)
            await self._offsets.save([pulled.queue])

    async def _after_problem(self, pulled: Q, error: Exception) -> None:
        self._instance.outages.warn(log, error, "pull from %s", _place(pulled))
        self._puller.forget(pulled.queue)
        self._offsets.table.doubt(pulled.queue)
        delay_ms = PULL_AGAIN_MS
        if isinstance(error, BrokerError) and error.response_code == ResponseCode.FLOW_CONTROL:
            delay_ms = FLOW_CONTROL_MS
        elif isinstance(error, BrokerError) and error.response_code in _UNKNOWN_SUBSCRIPTION:
            await self._resend_subscriptions()
            delay_ms = UNKNOWN_SUBSCRIPTION_MS
        elif isinstance(error, RemotingError) and error.refresh_route:
            try:
                await self._instance.route(pulled.queue.topic, refresh=True)
            except Problem as other:
                text = "route of topic %s"
                self._instance.outages.warn(log, other, text, pulled.queue.topic, kind=ROUTES)
        await asyncio.sleep(delay_ms / 1000)

    async def _resend_subscriptions(self) -> None:
        """Send a heartbeat, once for all queues whose subscription was missing."""
        if self._heartbeat is None or self._heartbeat.done():
            self._heartbeat = asyncio.create_task(self._instance.heartbeat())
        await asyncio.shield(self._heartbeat)


def _place(pulled: PulledQueue) -> str:
    return f"{pulled.queue} at offset {pulled.messages.next_offset}"
