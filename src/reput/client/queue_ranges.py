"""Reads ranges of queue offsets from brokers, without a group: queue by queue, or merged by time.

    reader = RangeReader(instance)
    async for part in reader.read(queue, start, stop, wanted):
        ...  # PulledRange or Gap, in the order of queue offsets

Every queue offset of a range is in a part, unless no message at it matches the tags, or its broker
skips it between others. Nothing is committed, and brokers hold no pull.
"""

import asyncio
import contextlib
import heapq
from collections import deque
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from typing import NamedTuple

from reput.client import consumer_offsets
from reput.client.core import subscription as subscriptions
from reput.client.core.patience import Patience
from reput.client.core.pull_replies import PulledRecords, PullOutcome
from reput.client.core.subscription import Subscription
from reput.client.instance import ClientInstance
from reput.client.message import ReceivedMessage
from reput.client.pulling import Puller
from reput.errors import BrokerError, RemotingError
from reput.format import names
from reput.format.bodies import MessageQueue
from reput.format.codes import ResponseCode

_PULL_COUNT = 32
"""Number of messages that brokers return to a pull, unless configured otherwise."""
_PULLS_AT_ONCE = 8
_PULL_AGAIN_MS = 1_000
"""Delay after a pull that failed, in ms."""


class PulledRange(NamedTuple):
    """Records of a reply, of which those of a range of queue offsets are wanted."""

    low: int
    high: int
    """Queue offset after the last one."""
    records: bytes


class Gap(NamedTuple):
    """Queue offsets whose messages the broker does not return."""

    low: int
    high: int
    """Queue offset after the last one."""
    is_expired: bool
    """True if the queue begins later."""

    def __str__(self) -> str:
        """Return the gap in words."""
        if self.is_expired:
            return f"offsets {self.low} to {self.high - 1} have expired"
        return f"the broker returns nothing from queue offset {self.low} to {self.high - 1}"


class RangeReader:
    """Reads ranges of queues.

    Args:
        instance: Client instance for requests.
        timeout_ms: Timeout of a reply, in ms; None: that of the client's requests.
        patience_ms: Time for which a failed pull is repeated, in ms; 0: it is an error, and where
            the broker makes no progress there is a gap.
    """

    def __init__(
        self, instance: ClientInstance, *, timeout_ms: int | None = None, patience_ms: int = 0
    ) -> None:
        self._instance = instance
        self._timeout_ms = timeout_ms or instance.config.request_timeout_ms
        self._patience_ms = patience_ms
        self._puller = Puller(instance, names.TOOLS_CONSUMER, is_subscribed=False)

    # --- ends of queues -------------------------------------------------------------------------

    async def queues(self, topic: str) -> list[MessageQueue]:
        """Return all readable queues of a topic. Raises ``NoRoute``, ``RemotingError``."""
        return list((await self._instance.route(topic, refresh=True)).subscribe_queues)

    async def begin_offset(self, queue: MessageQueue) -> int:
        """Return the first queue offset of a queue. Raises ``RemotingError``."""
        return await consumer_offsets.min_offset(self._instance, queue)

    async def end_offset(self, queue: MessageQueue) -> int:
        """Return the queue offset after the last message. Raises ``RemotingError``."""
        return await consumer_offsets.max_offset(self._instance, queue)

    async def offset_at(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """Return the queue offset of the first message at a time, as ``PullConsumer.offset_at``."""
        return await consumer_offsets.offset_at(self._instance, queue, timestamp_ms)

    # --- ranges ---------------------------------------------------------------------------------

    async def read(
        self,
        queue: MessageQueue,
        low: int,
        high: int,
        wanted: Subscription,
        *,
        pulls_at_once: int = _PULLS_AT_ONCE,
    ) -> AsyncGenerator[PulledRange | Gap, None]:
        """Yield the replies for queue offsets ``low`` to ``high - 1``, and gaps, in order.

        Args:
            queue: The queue.
            low: First queue offset.
            high: Queue offset after the last one.
            wanted: Subscription to the topic: all messages, or tags.
            pulls_at_once: Number of pulls in flight.

        Raises:
            NoRoute: The queue's broker is unknown.
            BrokerError: The broker refused.
            RemotingError: No reply arrived.
        """
        # A broker that selects by tag looks at many messages for a pull, perhaps at all.
        step = max(1, high - low) if wanted.tag_set else _PULL_COUNT
        starts = range(low, high, step)
        for first in range(0, len(starts), pulls_at_once):
            window = starts[first : first + pulls_at_once]
            ranges = [(start, min(start + step, high)) for start in window]
            async with contextlib.aclosing(self._replies(queue, ranges, wanted)) as replies:
                for start, stop in ranges:
                    pulled = await anext(replies)
                    async for part in self._parts(queue, start, stop, wanted, pulled):
                        yield part

    async def _replies(
        self, queue: MessageQueue, ranges: Sequence[tuple[int, int]], wanted: Subscription
    ) -> AsyncGenerator[PulledRecords | None, None]:
        """Yield the reply to a pull from each range; after a failure None, with patience."""
        count = 0
        pulls = self._puller.pull_ahead(queue, ranges, wanted, timeout_ms=self._timeout_ms)
        try:
            async with contextlib.aclosing(pulls):
                async for pulled in pulls:
                    count += 1
                    yield pulled
        except RemotingError:
            if not self._patience_ms:
                raise
        for _ in ranges[count:]:
            yield None

    async def _parts(
        self,
        queue: MessageQueue,
        low: int,
        high: int,
        wanted: Subscription,
        pulled: PulledRecords | None,
    ) -> AsyncGenerator[PulledRange | Gap, None]:
        """Yield the parts of a range: of the reply to its first pull, and of further ones."""
        is_filtered = bool(wanted.tag_set)
        while low < high:
            if pulled is None:
                pulled = await self._pull(queue, low, high, wanted)
            outcome = pulled.outcome(low, is_filtered=is_filtered)
            if outcome is PullOutcome.STUCK and self._patience_ms:
                pulled = None
                continue
            if outcome is PullOutcome.RECORDS:
                yield PulledRange(low, high, pulled.records)
            if outcome in (PullOutcome.RECORDS, PullOutcome.NO_MATCH):
                low = pulled.next_offset
            else:
                is_stuck = outcome is PullOutcome.STUCK
                end = high if is_stuck else pulled.gap_end(low, high)
                yield Gap(low, end, low < pulled.min_offset and not is_stuck)
                low = end
            pulled = None

    async def _pull(
        self, queue: MessageQueue, low: int, high: int, wanted: Subscription
    ) -> PulledRecords:
        """Pull from a queue offset on; with patience, until the broker makes progress."""
        patience = Patience(self._patience_ms, None, _PULL_AGAIN_MS)
        while True:
            try:
                pulled = await self._puller.pull_records(
                    queue,
                    low,
                    wanted,
                    count_max=high - low,
                    commit_offset=None,
                    hold_ms=0,
                    timeout_ms=self._timeout_ms,
                )
                outcome = pulled.outcome(low, is_filtered=bool(wanted.tag_set))
                if outcome is PullOutcome.STUCK and self._patience_ms:
                    text = f"{queue} returns nothing from queue offset {low} on"
                    raise BrokerError(ResponseCode.SYSTEM_BUSY, text)
            except RemotingError as error:
                if patience.is_over(error, self._instance.clock.monotonic_ms()):
                    raise
                self._puller.forget(queue)
                await asyncio.sleep(_PULL_AGAIN_MS / 1000)
                if error.refresh_route:
                    with contextlib.suppress(RemotingError):
                        await self._instance.route(queue.topic, refresh=True)
            else:
                return pulled

    def messages(
        self, queue: MessageQueue, records: bytes, wanted: Subscription
    ) -> list[ReceivedMessage]:
        """Return the messages of a reply that match. Raises ``CorruptRecord``."""
        return self._puller.messages(records, queue.broker_name, wanted)

    # --- several queues -------------------------------------------------------------------------

    async def in_order(
        self,
        ranges: Mapping[MessageQueue, tuple[int, int]],
        on_gap: Callable[[MessageQueue, Gap], None],
    ) -> AsyncGenerator[ReceivedMessage, None]:
        """Yield the messages of several queues in the order of their store times.

        Args:
            ranges: First queue offset of each queue, and the queue offset after the last one.
            on_gap: Called with a queue and each gap in its range.

        Raises:
            CorruptRecord: A reply has incomplete records.
            NoRoute, BrokerError, RemotingError: As ``read``.
        """
        pulls_at_once = max(1, _PULLS_AT_ONCE // max(1, len(ranges)))
        streams = [
            _QueueMessages(self._batches(queue, *bounds, pulls_at_once, on_gap))
            for queue, bounds in ranges.items()
        ]
        try:
            heads: list[tuple[int, int]] = []
            for number, stream in enumerate(streams):
                await _push_head(heads, number, stream)
            while heads:
                _, number = heapq.heappop(heads)
                yield streams[number].waiting.popleft()
                await _push_head(heads, number, streams[number])
        finally:
            await asyncio.gather(*(stream.close() for stream in streams))

    async def _batches(
        self,
        queue: MessageQueue,
        low: int,
        high: int,
        pulls_at_once: int,
        on_gap: Callable[[MessageQueue, Gap], None],
    ) -> AsyncGenerator[list[ReceivedMessage], None]:
        """Yield the messages of a range, a reply at a time."""
        wanted = subscriptions.tags(queue.topic, subscriptions.ALL, 0)
        parts = self.read(queue, low, high, wanted, pulls_at_once=pulls_at_once)
        async with contextlib.aclosing(parts):
            async for part in parts:
                if isinstance(part, Gap):
                    on_gap(queue, part)
                    continue
                messages = self.messages(queue, part.records, wanted)
                yield [each for each in messages if part.low <= each.queue_offset < part.high]


class _QueueMessages:
    """The next messages of a queue; a task reads the batch after them."""

    def __init__(self, batches: AsyncGenerator[list[ReceivedMessage], None]) -> None:
        self._batches = batches
        self._next = asyncio.create_task(self._read())
        self.waiting: deque[ReceivedMessage] = deque()

    async def _read(self) -> list[ReceivedMessage] | None:
        return await anext(self._batches, None)

    async def fill(self) -> bool:
        """Wait until a message is there; return False at the end of the range."""
        while not self.waiting:
            batch = await self._next
            if batch is None:
                return False
            self.waiting.extend(batch)
            self._next = asyncio.create_task(self._read())
        return True

    async def close(self) -> None:
        """End the task."""
        self._next.cancel()
        await asyncio.gather(self._next, return_exceptions=True)
        await self._batches.aclose()


async def _push_head(heads: list[tuple[int, int]], number: int, stream: _QueueMessages) -> None:
    """Add the store time of the next message of a queue to the heap, unless there is none."""
    if await stream.fill():
        heapq.heappush(heads, (stream.waiting[0].store_timestamp_ms, number))
