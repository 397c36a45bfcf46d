"""Pull consumption: the program polls for messages and controls the offsets.

    async with PullConsumer("billing", namesrv="127.0.0.1:9876") as consumer:
        await consumer.subscribe("Orders")
        async for message in consumer:
            print(message.body)

``subscribe`` shares the queues with the other members of the group; ``assign`` reads the given
queues regardless of other members. Messages are prefetched up to the thresholds of
``ConsumerConfig``.

A message counts as consumed when the next ones are polled, or when the consumer is closed without
an
error: after a crash, the last polled messages are delivered again. With ``auto_commit=False`` only
``commit`` commits.

Source: rocketmq 4.9.8 ``DefaultLitePullConsumerImpl``.
"""

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from reput.client import consumer_offsets, hooks
from reput.client.config import ClientConfig, ConsumerConfig, client_config
from reput.client.connection_events import ConnectionCallback
from reput.client.consumer_offsets import ConsumerOffsets, keep_saved
from reput.client.core import subscription as subscriptions
from reput.client.core.assign import Averagely, Strategy, sorted_queues
from reput.client.core.offset_table import OffsetTable
from reput.client.core.process_queue import Batch, ProcessQueue
from reput.client.core.subscription import Subscription
from reput.client.core.trace_codec import Outcome
from reput.client.group_member import GroupMember
from reput.client.instance import ClientInstance
from reput.client.membership import Rebalance, start_offset, with_start_time
from reput.client.message import ReceivedMessage
from reput.client.pulling import Puller
from reput.client.queue_pulls import PulledQueue, QueuePulls, known_lags
from reput.client.rebalance_calls import QueuesCallback, RebalanceCalls
from reput.client.running_info import running_info
from reput.client.side_tasks import stop
from reput.clock import Clock, SystemClock
from reput.errors import InvalidOption, ReputError
from reput.format import namespace
from reput.format.bodies import ConsumerData, MessageQueue
from reput.format.command import Command

log = logging.getLogger(__name__)

POLL_MS = 5_000
"""Default time for which ``poll`` waits for the first message, in ms."""


class NotAssigned(ReputError):
    """Error for a queue that this consumer does not read.

    Args:
        queue: The queue.
    """

    def __init__(self, queue: MessageQueue) -> None:
        self.queue = queue
        super().__init__(f"{queue} is not assigned")


class AssignedQueue(PulledQueue):
    """A queue of this consumer."""

    def __init__(self, queue: MessageQueue, next_offset: int) -> None:
        super().__init__(queue, next_offset)
        self.may_pull = asyncio.Event()
        self.may_pull.set()
        self.is_ready = False
        """True while it waits to be polled."""


@dataclass(slots=True)
class HandedOut:
    """Polled messages that are not regarded as consumed yet."""

    assigned: AssignedQueue
    messages: ProcessQueue[ReceivedMessage]
    """Cache that the messages came from; the queue may have another one by now."""
    batch: Batch[ReceivedMessage]
    call_id: str
    """Id that their traces share."""


class PullConsumer(GroupMember):
    """Reads queues at the program's pace. Use it as ``async with``, or ``start``.

    Args:
        group: The consumer group, whose offsets are read and committed.
        namesrv: ``host:port;host:port``; by default NAMESRV_ADDR of the environment.
        auto_commit: Commit consumed offsets periodically and on ``close``.
        strategy: Allocation of queues to members; the same for all members.
        on_assigned: Function, async or plain, that is called with new queues before they are read.
            Plain functions run in a thread. Until it returns, the consumer takes no other queues;
            it must not call ``unsubscribe`` or ``close``. ``seek`` in it decides where to begin.
        on_revoked: The same with queues that this member loses, or has when it is closed; they can
            still be committed. Queues of ``assign`` are not reported.
        on_connection: Async or plain function that is called with each ``ConnectionEvent``, one
            at a time. Plain functions run in a thread.
        config: Settings of the consumer; ``pull_threshold_for_queue`` and related ones bound the
            prefetched messages.
        client: Settings of the client.
        clock: The clock; tests pass their own.

    Raises:
        InvalidOption: An argument is not allowed.
    """

    def __init__(
        self,
        group: str,
        *,
        namesrv: str | None = None,
        auto_commit: bool = True,
        strategy: Strategy | None = None,
        on_assigned: QueuesCallback | None = None,
        on_revoked: QueuesCallback | None = None,
        on_connection: ConnectionCallback | None = None,
        config: ConsumerConfig | None = None,
        client: ClientConfig | None = None,
        clock: Clock | None = None,
    ) -> None:
        clock = clock or SystemClock()
        super().__init__(
            group,
            with_start_time(config or ConsumerConfig(), clock.now_ms()),
            strategy or Averagely(),
            "CONSUME_ACTIVELY",
            client=client_config(namesrv, client),
            clock=clock,
            on_connection=on_connection,
        )
        self._rebalance_calls = RebalanceCalls(on_assigned, on_revoked)
        self._auto_commit = auto_commit
        self._is_assigned = False  # by ``assign``, without subscriptions
        self._queues: dict[MessageQueue, AssignedQueue] = {}
        self._ready: deque[AssignedQueue] = deque()
        self._has_ready = asyncio.Event()
        self._handed_out: list[HandedOut] = []
        self._consumed: dict[MessageQueue, int] = {}  # offsets that ``commit`` commits

    # --- coming and going -------------------------------------------------------

    async def start(self) -> None:
        """Join the process's client instance; connections are opened when needed."""
        if self._started_here() is not None:
            return
        instance = await self._join()
        self._offsets: ConsumerOffsets = self._membership.offsets(instance)
        self._pulls = QueuePulls[AssignedQueue](
            instance,
            self._membership,
            self._offsets,
            Puller(instance, self.group, is_subscribed=False),
            may_pull=self._may_pull_from,
            on_messages=self._on_messages,
            on_change=self._note_change,
            is_ordered=True,
            commits=self._auto_commit,
        )
        self._rebalance = Rebalance(instance, self._membership, self._apply)
        await self._introduce(instance)
        self._loops = [
            asyncio.create_task(self._rebalance.run(), name=f"reput consumer {self.group}"),
            asyncio.create_task(
                keep_saved(self._offsets, self.group, instance.config.persist_offsets_ms),
                name=f"reput consumer {self.group}",
            ),
        ]

    async def close(self) -> None:
        """Commit (with ``auto_commit``) all polled messages, and leave the group."""
        await self._close(are_consumed=True)

    async def _close(self, *, are_consumed: bool) -> None:
        instance, loops = self._started_here(), self._loops
        if instance is None or not loops:
            return
        self._loops = []
        try:
            await stop(loops)
            queues = list(self._queues.values())
            await asyncio.gather(*map(self._pulls.end, queues))
            if are_consumed:
                self._settle()
            if not self._is_assigned:
                await self._rebalance_calls.revoked(owned.queue for owned in queues)
            for owned in queues:
                owned.messages.is_dropped = True
            await self._offsets.save()
        finally:
            self._queues.clear()
            self._instance = None
            self._has_ready.set()  # Waiting polls return.
            await self._leave(instance)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._close(are_consumed=kind is None)

    def _has_queues(self) -> bool:
        return self._is_assigned or super()._has_queues()

    def _reads(self) -> list[AssignedQueue]:
        return [owned for owned in self._queues.values() if owned.may_pull.is_set()]

    # --- assignment -------------------------------------------------------------

    async def assign(
        self, queues: Iterable[MessageQueue], expression: str = subscriptions.ALL
    ) -> None:
        """Read exactly these queues, of which there may be none.

        A new queue starts at the group's consumer offset, or as configured by
        ``consume_from_where``; ``seek`` changes it.

        Args:
            queues: Queues of any topics, by their full names; see ``queues``.
            expression: Tags to select.

        Raises:
            InvalidOption: A topic is subscribed, or the expression is no list of tags.
            NoRoute, RemotingError: A start offset cannot be determined; the assignment is
                unchanged.
        """
        instance = self._started()
        subscriptions.check_tags(expression)
        if self._membership.wanted and not self._is_assigned:
            raise InvalidOption("queues", "assigned", "either subscribe or assign, not both")
        wanted = set(queues)
        new = sorted_queues(wanted - self._queues.keys())
        begins = await asyncio.gather(
            *(start_offset(instance, self.config, self._offsets, queue) for queue in new)
        )
        self._is_assigned = True
        self._loops[0].cancel()  # There is nothing to rebalance.
        now_ms = self._clock.now_ms()
        for topic in {queue.topic for queue in wanted}:
            self._membership.wanted[topic] = subscriptions.tags(topic, expression, now_ms)
        await self._drop([owned for owned in self._queues.values() if owned.queue not in wanted])
        for queue, begin in zip(new, begins, strict=True):
            self._pulls.begin(self._take(queue, begin))

    def assignment(self) -> list[MessageQueue]:
        """Return the queues that are read."""
        return sorted_queues(self._queues)

    async def queues(self, topic: str) -> list[MessageQueue]:
        """Return all readable queues of a topic.

        Raises:
            NoRoute, RemotingError: They cannot be determined.
        """
        full = namespace.wrap(self._client_config.namespace, topic)
        return list((await self._started().route(full, refresh=True)).subscribe_queues)

    def pause(self, queues: Iterable[MessageQueue] | None = None) -> None:
        """Pause these queues, or all, until ``resume``.

        Raises:
            NotAssigned: One of them is not read.
        """
        for owned in self._chosen(queues):
            owned.may_pull.clear()

    def resume(self, queues: Iterable[MessageQueue] | None = None) -> None:
        """Resume paused queues. Raises ``NotAssigned``."""
        for owned in self._chosen(queues):
            owned.may_pull.set()
            if owned.messages.waiting_count:
                self._make_ready(owned)

    # --- messages ---------------------------------------------------------------

    async def poll(self, count_max: int = 32, timeout_ms: int = POLL_MS) -> list[ReceivedMessage]:
        """Return the next messages of one queue, in order; the previous ones count as consumed.

        Args:
            count_max: Maximum number of messages.
            timeout_ms: Time to wait for the first message, in ms; then the list is empty.

        Raises:
            InvalidOption: ``count_max`` is not allowed.
            NotStarted: The consumer is not started, or is closed.
            NoRoute, BrokerError, RemotingError: No message came, and none can: the last pull from
                each queue has failed, or there are no queues for this reason.
        """
        self._started()
        if count_max < 1:
            raise InvalidOption("count_max", count_max, "at least 1")
        begun_ms = self._clock.now_ms()
        self._settle()
        messages = await self._next_within(count_max, timeout_ms)
        self._report(messages, begun_ms)
        return messages or []

    async def _next_within(self, count_max: int, timeout_ms: int) -> list[ReceivedMessage] | None:
        """Return the next messages; None if none come in time, or the consumer is closed.

        Raises:
            NoRoute, BrokerError, RemotingError: None can come.
        """
        messages = self._next(count_max)
        if messages is None and timeout_ms > 0:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout_ms / 1000):
                    messages = await self._wait_for_next(count_max)
        is_open = self._instance is not None
        if messages is None and is_open and (problem := self._problem()) is not None:
            raise problem
        return messages

    def _report(self, messages: Sequence[ReceivedMessage] | None, begun_ms: int) -> None:
        """Report messages to the hook."""
        if hooks.installed is not None and messages and self._instance is not None:
            hooks.received(self._facts(self._instance), messages, begun_ms)

    def __aiter__(self) -> Self:
        """Yield messages one by one, waiting for more, until the consumer is closed.

        Raises:
            NoRoute, BrokerError, RemotingError: As ``poll`` does, after each 5 s without a message.
                Another iteration continues after the last message.
        """
        return self

    async def __anext__(self) -> ReceivedMessage:
        if self._started_here() is None:
            raise StopAsyncIteration
        begun_ms = self._clock.now_ms()
        self._settle()
        while (messages := await self._next_within(1, POLL_MS)) is None:
            if self._instance is None:
                raise StopAsyncIteration
        self._report(messages, begun_ms)
        return messages[0]

    async def _wait_for_next(self, count_max: int) -> list[ReceivedMessage] | None:
        """Wait for messages; return None if the consumer is closed."""
        while self._instance is not None:
            messages = self._next(count_max)
            if messages is not None:
                return messages
            self._has_ready.clear()
            await self._has_ready.wait()
        return None

    def _next(self, count_max: int) -> list[ReceivedMessage] | None:
        while self._ready:
            assigned = self._ready.popleft()
            assigned.is_ready = False
            messages = assigned.messages
            if messages.is_dropped or not assigned.may_pull.is_set():
                continue
            batch = messages.take(count_max, self._clock.now_ms())
            if batch is None:
                continue
            if messages.waiting_count:
                self._make_ready(assigned)
            call_id = self._traces.begun(batch.messages) if self._traces is not None else ""
            self._handed_out.append(HandedOut(assigned, messages, batch, call_id))
            return list(batch.messages)
        return None

    def _on_messages(self, assigned: AssignedQueue, count: int, duration_ms: int) -> None:
        now_ms = self._clock.now_ms()
        self._rates.of(assigned.queue.topic, now_ms).add_pull(now_ms, duration_ms, count)
        self._make_ready(assigned)

    def _make_ready(self, assigned: AssignedQueue) -> None:
        if not assigned.is_ready:
            assigned.is_ready = True
            self._ready.append(assigned)
            self._has_ready.set()

    def _settle(self) -> None:
        """Mark the polled messages as consumed."""
        for handed_out in self._handed_out:
            assigned, messages = handed_out.assigned, handed_out.messages
            messages.finish(handed_out.batch)
            now_ms = self._clock.now_ms()
            consumed_count = len(handed_out.batch.messages)
            self._rates.of(assigned.queue.topic, now_ms).add_consumed(now_ms, consumed_count)
            if self._traces is not None:
                duration_ms = max(0, now_ms - handed_out.batch.taken_ms)
                self._traces.consumed(
                    handed_out.batch.messages, handed_out.call_id, Outcome.SUCCESS, duration_ms
                )
            if not assigned.is_ours or messages is not assigned.messages:
                continue  # released, or moved by ``seek``
            self._consumed[assigned.queue] = messages.consumer_offset
            if self._auto_commit:
                self._offsets.table.set(assigned.queue, messages.consumer_offset)
            self._pulls.note_progress(assigned)
        self._handed_out.clear()

    # --- offsets ----------------------------------------------------------------

    def position(self, queue: MessageQueue) -> int:
        """Return the queue offset of the next message to poll. Raises ``NotAssigned``."""
        (assigned,) = self._chosen([queue])
        return assigned.messages.waiting_offset

    def seek(self, queue: MessageQueue, queue_offset: int) -> None:
        """Continue at another offset. The broker corrects one outside of the queue.

        Raises:
            NotAssigned: The queue is not read.
            InvalidOption: The offset is negative.
        """
        if queue_offset < 0:
            raise InvalidOption("queue_offset", queue_offset, "0 or more")
        (assigned,) = self._chosen([queue])
        self._pulls.restart(assigned, queue_offset)
        self._consumed[queue] = queue_offset
        if self._auto_commit:
            self._offsets.table.set(queue, queue_offset)

    async def seek_to_begin(self, queue: MessageQueue) -> None:
        """Continue at the first message of the queue. Raises as ``seek`` and ``begin_offset``."""
        self.seek(queue, await self.begin_offset(queue))

    async def seek_to_end(self, queue: MessageQueue) -> None:
        """Continue at the end of the queue. Raises as ``seek`` and ``end_offset``."""
        self.seek(queue, await self.end_offset(queue))

    async def seek_to_time(self, queue: MessageQueue, timestamp_ms: int) -> None:
        """Continue at the first message stored at a time. Raises as ``seek``, ``offset_at``."""
        self.seek(queue, await self.offset_at(queue, timestamp_ms))

    async def begin_offset(self, queue: MessageQueue) -> int:
        """Return the first queue offset of a queue.

        Raises:
            NoRoute, BrokerError, RemotingError: The broker was not reached or refused.
        """
        return await consumer_offsets.min_offset(self._started(), queue)

    async def end_offset(self, queue: MessageQueue) -> int:
        """Return the queue offset after the last message. Raises as ``begin_offset``."""
        return await consumer_offsets.max_offset(self._started(), queue)

    async def offset_at(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """Return the queue offset of the first message stored at a time.

        Brokers up to 5.0 return the message stored nearest. Raises as ``begin_offset``.
        """
        return await consumer_offsets.offset_at(self._started(), queue, timestamp_ms)

    async def committed(self, queue: MessageQueue) -> int | None:
        """Return the group's consumer offset at the broker; None if there is none.

        Raises:
            NoRoute, RemotingError: The broker was not reached.
        """
        self._started()
        return await self._offsets.read(queue)

    async def commit(self, offsets: Mapping[MessageQueue, int] | None = None) -> None:
        """Commit consumer offsets, and wait for the replies.

        Args:
            offsets: Consumer offsets by queue; None: all polled messages count as consumed.

        Raises:
            NotAssigned: A queue is not read.
        """
        self._started()
        if offsets is None:
            self._settle()
            offsets = {
                queue: consumed
                for queue, consumed in self._consumed.items()
                if queue in self._queues
            }
        self._chosen(offsets)
        for queue, consumer_offset in offsets.items():
            self._offsets.table.set(queue, consumer_offset)
        await self._offsets.save(offsets)

    # --- which queues are ours --------------------------------------------------

    async def _subscribe(self, wanted: Subscription) -> None:
        self._started()
        if self._is_assigned:
            raise InvalidOption("topic", wanted.topic, "either subscribe or assign, not both")
        await super()._subscribe(wanted)

    async def _apply(self, topic: str, wanted: set[MessageQueue]) -> bool:
        """Release lost queues and take new ones; return whether all could be taken.

        Raises:
            NoRoute, RemotingError: A start offset cannot be determined; the others were taken.
        """
        if self._is_assigned:
            return True
        lost = [owned for owned in self._queues.values() if owned.queue.topic == topic]
        lost = [owned for owned in lost if owned.queue not in wanted]
        await self._rebalance_calls.revoked(owned.queue for owned in lost)
        await self._drop(lost)
        new = sorted_queues(wanted - self._queues.keys())
        instance = self._started()
        begins = await asyncio.gather(
            *(start_offset(instance, self.config, self._offsets, queue) for queue in new),
            return_exceptions=True,
        )
        taken = [
            self._take(queue, begin)
            for queue, begin in zip(new, begins, strict=True)
            if isinstance(begin, int)
        ]
        await self._rebalance_calls.assigned(assigned.queue for assigned in taken)
        for assigned in taken:
            if assigned.task is None:  # not begun by ``seek``
                self._pulls.begin(assigned)
        for begin in begins:
            if isinstance(begin, BaseException):
                raise begin
        return wanted <= self._queues.keys()

    def _take(self, queue: MessageQueue, next_offset: int) -> AssignedQueue:
        self._offsets.table.remove(queue)
        self._consumed.pop(queue, None)
        assigned = self._queues[queue] = AssignedQueue(queue, next_offset)
        return assigned

    async def _drop(self, lost: list[AssignedQueue]) -> None:
        if not lost:
            return
        for assigned in lost:
            assigned.messages.is_dropped = True
            assigned.is_ours = False
            del self._queues[assigned.queue]
        await asyncio.gather(*map(self._pulls.end, lost))
        await self._offsets.save([assigned.queue for assigned in lost])
        for assigned in lost:
            self._offsets.table.remove(assigned.queue)
            self._consumed.pop(assigned.queue, None)

    async def _may_pull_from(self, assigned: AssignedQueue) -> bool:
        return await assigned.may_pull.wait()

    def _chosen(self, queues: Iterable[MessageQueue] | None) -> list[AssignedQueue]:
        if queues is None:
            return list(self._queues.values())
        chosen = []
        for queue in queues:
            if queue not in self._queues:
                raise NotAssigned(queue)
            chosen.append(self._queues[queue])
        return chosen

    # --- as a member of the instance --------------------------------------------

    def _heartbeat_part(self) -> ConsumerData | None:
        """Return the member's part of a heartbeat; None without subscriptions."""
        return None if self._is_assigned else self._membership.heartbeat_part()

    def _reset(self, offsets: Mapping[MessageQueue, int]) -> None:
        for queue, next_offset in offsets.items():
            if queue in self._queues:
                log.warning("%s: group %s is reset to %d", queue, self.group, next_offset)
                self.seek(queue, next_offset)

    def _owned_queues(self) -> list[MessageQueue]:
        return list(self._queues)

    def _lags(self) -> dict[MessageQueue, int]:
        return known_lags(list(self._queues.values()))

    def _offset_table(self) -> OffsetTable:
        return self._offsets.table

    def _running_info(self, instance: ClientInstance, request: Command) -> Command:
        return running_info(
            request,
            instance,
            self._membership,
            self._offsets.table,
            self._queues.values(),
            {},
            self._started_ms,
        )
