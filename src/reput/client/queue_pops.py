"""Tasks that pop, one per broker or queue, while there is room.

Source: rocketmq 5.5.0 ``DefaultMQPushConsumerImpl.popMessage``.
"""

import asyncio
import logging
import uuid
from collections.abc import Awaitable, Callable, Iterable

from reput.client.config import ConsumerConfig
from reput.client.core.answered_queue import AnsweredQueue
from reput.client.core.subscription import Subscription
from reput.client.instance import ClientInstance
from reput.client.membership import Problem
from reput.client.outages import ROUTES
from reput.client.popping import Popped, PoppedMessage, Popper
from reput.client.queue_pulls import FLOW_CONTROL_MS
from reput.client.side_tasks import SideTasks
from reput.errors import BrokerError, CorruptRecord, RemotingError
from reput.format.bodies import MessageQueue
from reput.format.codes import ResponseCode

log = logging.getLogger(__name__)

POP_AGAIN_MS = 3_000
"""Delay after a pop that failed, or that the broker refused to hold, in ms."""

LET_GO_MS = 1_000
"""Invisible time of released messages, in ms. Not 0: an own pop that the broker still holds
would take them, on a connection that is about to close.
"""


class PopSource(AnsweredQueue):
    """A broker, or a queue of it, with its unacknowledged messages.

    Args:
        queue: The queue; its id may be ``ANY_QUEUE``.
    """

    def __init__(self, queue: MessageQueue) -> None:
        super().__init__(queue)
        self.is_ours = True
        self.held_count = 0
        """Number of messages here that are neither acknowledged nor released."""
        self.has_room = asyncio.Event()
        """Cleared while the task waits for messages to be finished."""
        self.has_room.set()
        self.popped_at_ms = 0
        self.task: asyncio.Task[None] | None = None


class QueuePops:
    """The tasks that pop.

    Args:
        instance: Client instance for requests.
        popper: Pops.
        config: Settings of the consumer.
        wanted_of: Returns the subscription to a topic; None if it was cancelled.
        may_pop: Awaited before each pop; returns the maximum number of messages, and the time for
            which the broker may hold the pop, in ms.
        on_messages: Called with a source, its new messages and the duration of the pop, in ms.
        on_unwanted: Called with messages that match no subscription.
        on_change: Called when a source begins or ceases to answer.
    """

    def __init__(
        self,
        instance: ClientInstance,
        popper: Popper,
        config: ConsumerConfig,
        *,
        wanted_of: Callable[[str], Subscription | None],
        may_pop: Callable[[], Awaitable[tuple[int, int]]],
        on_messages: Callable[[PopSource, list[PoppedMessage], int], None],
        on_unwanted: Callable[[list[PoppedMessage]], None],
        on_change: Callable[[], None],
    ) -> None:
        self._instance = instance
        self._clock = instance.clock
        self._popper = popper
        self._config = config
        self._wanted_of = wanted_of
        self._may_pop = may_pop
        self._on_messages = on_messages
        self._on_unwanted = on_unwanted
        self._on_change = on_change
        self._late = SideTasks()

    def begin(self, source: PopSource) -> None:
        """Start popping from a source."""
        source.task = asyncio.create_task(self._run(source), name=f"reput pop {source.queue}")

    async def end(self, source: PopSource) -> None:
        """Stop popping. Messages of a pop in flight are released when they arrive."""
        source.is_ours = False
        task, source.task = source.task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def done(self, source: PopSource, count: int) -> None:
        """Count messages as acknowledged or released, which may make room."""
        source.held_count -= count
        if source.held_count <= self._config.pop_threshold_for_queue:
            source.has_room.set()

    async def _run(self, source: PopSource) -> None:
        attempt_id = _new_id()
        while source.is_ours:
            try:
                if source.held_count > self._config.pop_threshold_for_queue:
                    source.has_room.clear()
                    await source.has_room.wait()
                if not source.is_answered:
                    # A pop is held, or is not sent before a caller asks for messages.
                    await self._popper.check(source.queue)
                    self._note(source, None)
                await self._pop(source, attempt_id)
                attempt_id = _new_id()
            except Problem as error:
                # With the same id the broker repeats a reply that may be lost.
                self._note(source, error)
                await self._after_problem(source, error)
            except CorruptRecord as error:
                self._note(source, error)
                log.error("reply to a pop from %s is damaged: %s", source.queue, error)
                await asyncio.sleep(POP_AGAIN_MS / 1000)
            except Exception as error:  # a time slice
                self._note(source, error)
                log.exception("pop from %s", source.queue)
                await asyncio.sleep(POP_AGAIN_MS / 1000)

    def _note(self, source: PopSource, problem: Exception | None) -> None:
        if source.note(problem):
            self._on_change()

    async def _pop(self, source: PopSource, attempt_id: str) -> None:
        count_max, hold_ms = await self._may_pop()
        wanted = self._wanted_of(source.queue.topic)
        if wanted is None:  # unsubscribed meanwhile
            await asyncio.sleep(POP_AGAIN_MS / 1000)
            return
        begun_ms = source.popped_at_ms = self._clock.now_ms()
        popping = asyncio.create_task(
            self._popper.pop(
                source.queue,
                wanted,
                count_max=count_max,
                invisible_ms=self._config.pop_invisible_ms,
                hold_ms=hold_ms,
                timeout_ms=self._config.pull_timeout_ms,
                attempt_id=attempt_id,
            )
        )
        try:
            popped = await asyncio.shield(popping)
        except asyncio.CancelledError:
            self._late.begin(self._let_go(popping))
            raise
        if popped.unwanted:
            self._on_unwanted(popped.unwanted)
        if popped.messages:
            source.held_count += len(popped.messages)
            self._on_messages(source, popped.messages, self._clock.now_ms() - begun_ms)
        if popped.is_refused:
            await asyncio.sleep(POP_AGAIN_MS / 1000)
        elif self._config.pull_interval_ms:
            await asyncio.sleep(self._config.pull_interval_ms / 1000)

    async def _let_go(self, popping: asyncio.Task[Popped]) -> None:
        """Release messages that arrive late; a closed connection receives none."""
        try:
            popped = await popping
        except (*Problem, CorruptRecord):
            return
        await self.let_go([*popped.messages, *popped.unwanted])

    async def let_go(self, messages: Iterable[PoppedMessage]) -> None:
        """Release messages that were not consumed."""
        now_ms = self._clock.now_ms()
        held = [message for message in messages if message.held_until_ms > now_ms]
        results = await asyncio.gather(
            *(self._popper.change(message, LET_GO_MS, is_attempt=False) for message in held),
            return_exceptions=True,
        )
        problems = [result for result in results if isinstance(result, BaseException)]
        if problems:
            log.warning("%d messages come again when they are not held any more: %s",
                        len(problems), problems[0])  # fmt: skip

    async def _after_problem(self, source: PopSource, error: Exception) -> None:
        code = error.response_code if isinstance(error, BrokerError) else None
        if code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            text = "pop from %s (brokers before 5.0 support no pops)"
        else:
            text = "pop from %s"
        self._instance.outages.warn(log, error, text, source.queue)
        delay_ms = FLOW_CONTROL_MS if code == ResponseCode.FLOW_CONTROL else POP_AGAIN_MS
        if isinstance(error, RemotingError) and error.refresh_route:
            try:
                await self._instance.route(source.queue.topic, refresh=True)
            except Problem as other:
                text = "route of topic %s"
                self._instance.outages.warn(log, other, text, source.queue.topic, kind=ROUTES)
        await asyncio.sleep(delay_ms / 1000)


def _new_id() -> str:
    return uuid.uuid4().hex
