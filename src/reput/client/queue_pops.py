"""One task a broker, or a queue, that pops from it as long as there is room.

Source: rocketmq 5.5.0 ``DefaultMQPushConsumerImpl.popMessage``.
"""

import asyncio
import logging
import uuid
from collections.abc import Awaitable, Callable, Iterable

from reput.client.config import ConsumerConfig
from reput.client.core.subscription import Subscription
from reput.client.instance import ClientInstance
from reput.client.membership import Problem
from reput.client.popping import Popped, PoppedMessage, Popper
from reput.client.queue_pulls import FLOW_CONTROL_MS
from reput.client.side_tasks import SideTasks
from reput.errors import BrokerError, CorruptRecord, RemotingError
from reput.format.bodies import MessageQueue
from reput.format.codes import ResponseCode

log = logging.getLogger(__name__)

POP_AGAIN_MS = 3_000
"""After a pop that failed, or that a broker with too many waiting ones did not let wait."""

LET_GO_MS = 1_000
"""When others see what is given back. Not at once: a pop of ours that a broker still lets wait
would take it, on a connection that is about to be closed."""


class PopSource:
    """A broker, or a queue of it, that is popped from; and what of it is here."""

    def __init__(self, queue: MessageQueue) -> None:
        self.queue = queue
        """Its id may be ``ANY_QUEUE``."""
        self.is_ours = True
        self.held_count = 0
        """Messages that are here and neither acknowledged nor given back."""
        self.has_room = asyncio.Event()
        """Cleared while the task waits for messages to be done with."""
        self.has_room.set()
        self.popped_at_ms = 0
        self.problem: Exception | None = None
        """What was wrong with the last pop; None if it was answered."""
        self.task: asyncio.Task[None] | None = None


class QueuePops:
    """The tasks that pop.

    Args:
        instance: Whom brokers are asked through.
        popper: Pops.
        config: How much.
        wanted_of: The subscription to a topic; None if there is none any more.
        may_pop: Awaited before each pop; says how many messages at most, and how long the broker
            may wait for them, ms.
        on_messages: Told of a source, its new messages and how long the pop took, ms.
        on_unwanted: Told of messages that nobody wants.
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
    ) -> None:
        self._instance = instance
        self._clock = instance.clock
        self._popper = popper
        self._config = config
        self._wanted_of = wanted_of
        self._may_pop = may_pop
        self._on_messages = on_messages
        self._on_unwanted = on_unwanted
        self._late = SideTasks()

    def begin(self, source: PopSource) -> None:
        """Pop from a source from now on."""
        source.task = asyncio.create_task(self._run(source), name=f"reput pop {source.queue}")

    async def end(self, source: PopSource) -> None:
        """Pop no more. What is on the way is not waited for: others get it when it is here."""
        source.is_ours = False
        task, source.task = source.task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def done(self, source: PopSource, count: int) -> None:
        """Count messages as acknowledged or given back: there may be room for others."""
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
                await self._pop(source, attempt_id)
                source.problem = None
                attempt_id = _new_id()
            except Problem as error:
                # With the same id the broker answers once more what may be lost.
                source.problem = error
                await self._after_problem(source, error)
            except CorruptRecord as error:
                log.error("reply to a pop from %s is damaged: %s", _place(source), error)
                await asyncio.sleep(POP_AGAIN_MS / 1000)
            except Exception:  # a turn of the loop
                log.exception("pop from %s", _place(source))
                await asyncio.sleep(POP_AGAIN_MS / 1000)

    async def _pop(self, source: PopSource, attempt_id: str) -> None:
        count_max, hold_ms = await self._may_pop()
        wanted = self._wanted_of(source.queue.topic)
        if wanted is None:  # unsubscribed a moment ago
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
            found = await asyncio.shield(popping)
        except asyncio.CancelledError:
            self._late.begin(self._let_go(popping))
            raise
        if found.unwanted:
            self._on_unwanted(found.unwanted)
        if found.messages:
            source.held_count += len(found.messages)
            self._on_messages(source, found.messages, self._clock.now_ms() - begun_ms)
        if found.is_refused:
            await asyncio.sleep(POP_AGAIN_MS / 1000)
        elif self._config.pull_interval_ms:
            await asyncio.sleep(self._config.pull_interval_ms / 1000)

    async def _let_go(self, popping: asyncio.Task[Popped]) -> None:
        """Let others have what comes too late; on a connection that is closed nothing comes."""
        try:
            found = await popping
        except (*Problem, CorruptRecord):
            return
        await self.let_go([*found.messages, *found.unwanted])

    async def let_go(self, messages: Iterable[PoppedMessage]) -> None:
        """Let others have messages soon that nobody has looked at."""
        now_ms = self._clock.now_ms()
        held = [one for one in messages if one.held_until_ms > now_ms]
        results = await asyncio.gather(
            *(self._popper.change(one, LET_GO_MS, is_attempt=False) for one in held),
            return_exceptions=True,
        )
        problems = [one for one in results if isinstance(one, BaseException)]
        if problems:
            log.warning("%d messages come again when they are not held any more: %s",
                        len(problems), problems[0])  # fmt: skip

    async def _after_problem(self, source: PopSource, error: Exception) -> None:
        code = error.response_code if isinstance(error, BrokerError) else None
        if code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            log.error("%s knows no pops: brokers before 5.0 do not", _place(source))
        else:
            log.warning("pop from %s: %s", _place(source), error)
        delay_ms = FLOW_CONTROL_MS if code == ResponseCode.FLOW_CONTROL else POP_AGAIN_MS
        if isinstance(error, RemotingError) and error.refresh_route:
            try:
                await self._instance.route(source.queue.topic, refresh=True)
            except Problem as other:
                log.warning("route of topic %s: %s", source.queue.topic, other)
        await asyncio.sleep(delay_ms / 1000)


def _new_id() -> str:
    return uuid.uuid4().hex


def _place(source: PopSource) -> str:
    queue = source.queue
    return f"{queue.topic}@{queue.broker_name}:{queue.queue_id}"
