"""Pipelined pulls of a task: replies in the order of its ranges, with many pulls in flight.

Pulls use a separate connection. A pull whose reply is not the next records is repeated by
``RetryingClient.pull``, which retries and handles refusals, ends of queues, deleted messages and
lost connections.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from reput.client.core import pull_replies
from reput.client.core.pull_replies import PullOutcome
from reput.errors import RemotingError
from reput.format.bodies import MessageQueue
from reput.spark.live.calls import ALL_TAGS, Cluster, RetryingClient, queue_name
from reput.spark.live.plan import LiveTask, Loss
from reput.spark.live.pull_connection import PullConnection, PullReply, PullTemplate

log = logging.getLogger("reput.spark")

PULLS_IN_FLIGHT: Final = 512
"""Number of pulls of a task in flight: enough to keep the broker busy while replies are decoded."""
_BYTES_IN_FLIGHT = 4 * 1024 * 1024
"""Approximate size of the replies in flight, in bytes."""
_BATCH_BYTES = 4 * 1024 * 1024
"""Approximate size of a decoded batch, in bytes; smaller batches cost more per record."""
_CHUNK_BYTES = 512 * 1024
"""Approximate size of a chunk, in bytes; bounds the bytes in flight with large messages."""
_CHUNK_COUNT_MAX = 1024
"""Number of queue offsets of a chunk with a tag filter: brokers check some hundreds per pull."""


@dataclass(frozen=True, slots=True)
class Source:
    """A queue and the settings of its pulls."""

    queue: MessageQueue
    expression: str
    template: PullTemplate

    @property
    def is_filtered(self) -> bool:
        """True if its broker filters by tags."""
        return self.expression != ALL_TAGS


@dataclass(slots=True)
class Chunk:
    """A few queue offsets that are pulled one reply after the other."""

    source: Source
    start: int
    stop: int
    next_offset: int
    """Next queue offset to pull."""
    asked_s: float = 0.0
    """Time of the last pull, in seconds."""
    is_patient: bool = False
    """True if the rest is left to ``RetryingClient.pull``."""
    replies: list[bytes] = field(default_factory=list)
    byte_count: int = 0
    """Size of the replies, in bytes."""
    lost_count: int = 0
    """Number of queue offsets already reported as lost."""

    def add(self, records: bytes, next_offset: int) -> None:
        """Add the next records."""
        self.replies.append(records)
        self.byte_count += len(records)
        self.next_offset = next_offset


class PullPipeline:
    """Pulls the ranges of a task in order, some chunks ahead.

    Args:
        cluster: Provides connections, and the loop for requests with retries.
        client: Client for requests with retries.
        task: The ranges.
        expression: Returns the tag expression for brokers, by topic.
        loss: Policy for messages that no longer exist.
    """

    def __init__(
        self,
        cluster: Cluster,
        client: RetryingClient,
        task: LiveTask,
        expression: Callable[[str], str],
        loss: Loss,
    ) -> None:
        self._cluster = cluster
        self._client = client
        self._task = task
        self._expression = expression
        self._loss = loss
        self._batch_size = client.live.pull_batch_size
        self._timeout_ms = client.live.pull_timeout_ms
        self._mean_bytes = max(task.record_bytes, 1.0)
        self._chunks: Iterator[Chunk] | None = None
        self._pending: deque[Chunk] = deque()
        self._line: PullConnection | None = None
        self._asked: dict[int, Chunk] = {}
        """Chunks with a pull in flight, by opaque."""
        self._resumed_s = 0.0
        """Time at which reading resumed, in seconds."""

    def next(self) -> list[Chunk]:
        """Return the next chunks in order, about a batch's bytes; none at the end."""
        self._resumed_s = time.monotonic()
        if self._chunks is None:
            self._chunks = self._cut(self._cluster.run(self._slices()))
        self._fill()
        chunks: list[Chunk] = []
        held_bytes = 0
        while self._pending and held_bytes < _BATCH_BYTES:
            chunk = self._pending[0]
            self._finish(chunk)
            self._pending.popleft()
            self._fill()
            chunks.append(chunk)
            held_bytes += chunk.byte_count
        self._send()
        return chunks

    def close(self) -> None:
        """Return the connection to the pool unless a reply may still arrive."""
        if self._line is None:
            return
        if self._asked:
            self._line.close()
        else:
            self._cluster.lines.give_back(self._line)
        self._line = None

    async def _slices(self) -> list[tuple[MessageQueue, int, int]]:
        """Return the still existing parts of the planned slices."""
        existing = []
        slices = self._task.partition.slices
        queues = [
            MessageQueue(
                topic=planned.topic, broker_name=self._task.broker, queue_id=planned.queue_id
            )
            for planned in slices
        ]
        ends = await asyncio.gather(*(self._client.ends(queue) for queue in queues))
        for planned, queue, (low, high) in zip(slices, queues, ends, strict=True):
            start, stop = max(planned.start, low), min(planned.stop, high)
            if (start, stop) != (planned.start, planned.stop):
                self._report(queue, planned.start, planned.stop, low, high)
            if start < stop:
                existing.append((queue, start, stop))
        return existing

    def _report(self, queue: MessageQueue, start: int, stop: int, low: int, high: int) -> None:
        self._loss.report(
            f"{queue_name(queue)} holds {low} to {high} now, planned were {start} to {stop}"
        )

    def _cut(self, slices: Sequence[tuple[MessageQueue, int, int]]) -> Iterator[Chunk]:
        for queue, start, stop in slices:
            expression = self._expression(queue.topic)
            template = self._client.pull_template(queue, expression)
            source = Source(queue, expression, template)
            count_max = _CHUNK_COUNT_MAX if source.is_filtered else self._batch_size
            queue_offset = start
            while queue_offset < stop:
                count = max(min(count_max, int(_CHUNK_BYTES / self._mean_bytes)), 1)
                chunk_stop = min(queue_offset + count, stop)
                yield Chunk(source, queue_offset, chunk_stop, queue_offset)
                queue_offset = chunk_stop

    def _fill(self) -> None:
        """Send pulls for the next chunks, as many as may be in flight."""
        assert self._chunks is not None
        if self._line is None and self._pending:
            return  # the connection was lost: its pulls come first
        pending = self._pending
        room = self._room(pending[-1]) if pending else 1
        while len(pending) < room:
            chunk = next(self._chunks, None)
            if chunk is None:
                return
            pending.append(chunk)
            if self._line is None and not self._connect(chunk.source.queue):
                chunk.is_patient = True
                return
            self._ask(chunk)
            if len(pending) == 1:
                room = self._room(chunk)

    def _room(self, chunk: Chunk) -> int:
        """Return the number of chunks like this that may be in flight."""
        chunk_bytes = (chunk.stop - chunk.start) * self._mean_bytes
        return max(min(PULLS_IN_FLIGHT, int(_BYTES_IN_FLIGHT / chunk_bytes)), 1)

    # On the line ----------------------------------------------------------------------------

    def _connect(self, queue: MessageQueue) -> bool:
        """Connect to the broker of a queue; return whether there is a connection."""
        try:
            self._line = self._cluster.lines.take(self._cluster.run(self._client.address(queue)))
        except RemotingError as error:
            log.warning("pulls of %s: %s; asking again", queue_name(queue), error)
            return False
        return True

    def _ask(self, chunk: Chunk) -> None:
        assert self._line is not None
        count = min(self._batch_size, chunk.stop - chunk.next_offset)
        self._asked[self._line.ask(chunk.source.template, chunk.next_offset, count)] = chunk
        chunk.asked_s = time.monotonic()

    def _send(self) -> None:
        """Send queued pulls, to keep the broker busy."""
        if self._line is not None:
            try:
                self._line.send()
            except RemotingError as error:
                self._lose_line(error)

    def _receive(self, awaited: Chunk) -> None:
        """Handle the next replies; drop the connection if this chunk's reply is overdue."""
        assert self._line is not None
        # Time without a reader does not count: Spark may have been busy for long.
        deadline = max(awaited.asked_s, self._resumed_s) + self._timeout_ms / 1000
        try:
            wait_s = deadline - time.monotonic()
            replies = self._line.receive(wait_s, self._timeout_ms)
        except RemotingError as error:
            self._lose_line(error)
            return
        for reply in replies:
            chunk = self._asked.pop(reply.opaque, None)
            if chunk is not None:
                self._take(chunk, reply)

    def _take(self, chunk: Chunk, reply: PullReply) -> None:
        """Add a reply to its chunk if it has the next records; otherwise leave it to the client."""
        outcome = pull_replies.outcome(
            reply.code,
            reply.remark,
            chunk.next_offset,
            reply.next_offset,
            is_filtered=chunk.source.is_filtered,
        )
        if outcome is PullOutcome.RECORDS:
            chunk.add(reply.records, reply.next_offset)
        elif outcome is PullOutcome.NO_MATCH:
            chunk.next_offset = reply.next_offset
        else:
            chunk.is_patient = True
            return
        if chunk.next_offset < chunk.stop:
            self._ask(chunk)

    def _lose_line(self, error: RemotingError) -> None:
        """Leave the pulls in flight to the client."""
        assert self._line is not None
        log.warning("pulls from %s: %s; asking again", self._task.broker, error)
        self._line.close()
        self._line = None
        for chunk in self._asked.values():
            chunk.is_patient = True
        self._asked.clear()

    # Chunk by chunk -------------------------------------------------------------------------

    def _finish(self, chunk: Chunk) -> None:
        """Wait until a chunk is complete."""
        while chunk.next_offset < chunk.stop and not chunk.is_patient:
            self._receive(chunk)
        if chunk.next_offset < chunk.stop:
            self._cluster.run(self._pull(chunk))
        if chunk.replies and not chunk.source.is_filtered:
            mean = chunk.byte_count / (chunk.stop - chunk.start)
            self._mean_bytes += (max(mean, 1.0) - self._mean_bytes) / 8

    async def _pull(self, chunk: Chunk) -> None:
        """Pull the rest of a chunk, with retries."""
        source = chunk.source
        while chunk.next_offset < chunk.stop:
            queue_offset = chunk.next_offset
            count = min(self._batch_size, chunk.stop - queue_offset)
            pulled = await self._client.pull(source.queue, queue_offset, count, source.expression)
            outcome = pulled.outcome(queue_offset, is_filtered=source.is_filtered)
            if outcome is PullOutcome.RECORDS:
                chunk.add(pulled.records, pulled.next_offset)
                continue
            if outcome is PullOutcome.NO_MATCH:
                chunk.next_offset = pulled.next_offset
                continue
            end = pulled.gap_end(queue_offset, chunk.stop)
            self._report(source.queue, queue_offset, end, pulled.min_offset, pulled.max_offset)
            chunk.lost_count += end - queue_offset
            chunk.next_offset = end
