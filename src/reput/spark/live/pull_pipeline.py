"""The replies to a task's pulls, in the order of its ranges; many are on the way at a time.

Pulls use a connection of their own. A pull whose reply is not the next records is repeated by
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

from reput.errors import RemotingError
from reput.format.bodies import MessageQueue
from reput.format.codes import ResponseCode
from reput.spark.live.calls import ALL_TAGS, Cluster, Pulled, RetryingClient, queue_name
from reput.spark.live.plan import LiveTask, Loss
from reput.spark.live.pull_connection import PullConnection, PullReply, PullTemplate

log = logging.getLogger("reput.spark")

PULLS_IN_FLIGHT: Final = 512
"""Pulls of a task that are on the way at a time: so many that the broker has enough to do while
what has come is decoded."""
_BYTES_IN_FLIGHT = 4 * 1024 * 1024
"""About how much they bring together."""
_BATCH_BYTES = 4 * 1024 * 1024
"""About how much is decoded at a time; with less, what a batch costs shows."""
_CHUNK_BYTES = 512 * 1024
"""About how much one chunk brings, so that what is in flight stays small with large messages."""
_CHUNK_COUNT_MAX = 1024
"""Offsets of a chunk where the broker looks for tags: it looks at some hundreds a pull."""
_REMOVING = "MESSAGE_WAS_REMOVING"


@dataclass(frozen=True, slots=True)
class Source:
    """A queue, and how it is pulled from."""

    queue: MessageQueue
    expression: str
    template: PullTemplate

    @property
    def is_filtered(self) -> bool:
        """Whether its broker leaves out messages with other tags."""
        return self.expression != ALL_TAGS


@dataclass(slots=True)
class Chunk:
    """A few offsets of a queue, which are pulled one reply after the other."""

    source: Source
    start: int
    stop: int
    at: int
    """The next queue offset that is to be pulled; all before it were."""
    asked_s: float = 0.0
    """When it was asked for last."""
    is_patient: bool = False
    """Whether the rest is left to ``RetryingClient.pull``."""
    replies: list[bytes] = field(default_factory=list)
    byte_count: int = 0
    """Of the replies."""
    lost_count: int = 0
    """Offsets that were reported already."""

    def add(self, records: bytes, next_offset: int) -> None:
        """Take the next records."""
        self.replies.append(records)
        self.byte_count += len(records)
        self.at = next_offset


class PullPipeline:
    """Pulls the ranges of a task in order, some chunks ahead.

    Args:
        cluster: Its lines are used, and its loop for what is asked with patience.
        client: Asks what is no simple pull.
        task: The ranges.
        expression: What a broker is told of the wanted tags, by topic.
        loss: Told what is not there any more.
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
        """By opaque, what waits for a reply on the line."""
        self._resumed_s = 0.0
        """When somebody began to read again."""

    def next(self) -> list[Chunk]:
        """Return the next chunks in order, about a batch's bytes; none at the end."""
        self._resumed_s = time.monotonic()
        if self._chunks is None:
            self._chunks = self._cut(self._cluster.run(self._slices()))
        self._fill()
        found: list[Chunk] = []
        held_bytes = 0
        while self._pending and held_bytes < _BATCH_BYTES:
            chunk = self._pending[0]
            self._finish(chunk)
            self._pending.popleft()
            self._fill()
            found.append(chunk)
            held_bytes += chunk.byte_count
        self._send()
        return found

    def close(self) -> None:
        """Leave the line to the next task; not if a reply may still come."""
        if self._line is None:
            return
        if self._asked:
            self._line.close()
        else:
            self._cluster.lines.give_back(self._line)
        self._line = None

    async def _slices(self) -> list[tuple[MessageQueue, int, int]]:
        """Return what is still there of what was planned."""
        found = []
        slices = self._task.partition.slices
        queues = [
            MessageQueue(topic=one.topic, broker_name=self._task.broker, queue_id=one.queue_id)
            for one in slices
        ]
        ends = await asyncio.gather(*(self._client.ends(queue) for queue in queues))
        for one, queue, (low, high) in zip(slices, queues, ends, strict=True):
            start, stop = max(one.start, low), min(one.stop, high)
            if (start, stop) != (one.start, one.stop):
                self._report(queue, one.start, one.stop, low, high)
            if start < stop:
                found.append((queue, start, stop))
        return found

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
            at = start
            while at < stop:
                count = max(min(count_max, int(_CHUNK_BYTES / self._mean_bytes)), 1)
                behind = min(at + count, stop)
                yield Chunk(source, at, behind, at)
                at = behind

    def _fill(self) -> None:
        """Ask for the next chunks, as many as may be on the way."""
        assert self._chunks is not None
        if self._line is None and self._pending:
            return  # the line was lost: what was on the way comes first
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
        """Return how many chunks like this may be on the way."""
        chunk_bytes = (chunk.stop - chunk.start) * self._mean_bytes
        return max(min(PULLS_IN_FLIGHT, int(_BYTES_IN_FLIGHT / chunk_bytes)), 1)

    # On the line ----------------------------------------------------------------------------

    def _connect(self, queue: MessageQueue) -> bool:
        """Take a line to who is to be asked about a queue; return whether there is one."""
        try:
            self._line = self._cluster.lines.take(self._cluster.run(self._client.address(queue)))
        except RemotingError as error:
            log.warning("pulls of %s: %s; asking again", queue_name(queue), error)
            return False
        return True

    def _ask(self, chunk: Chunk) -> None:
        assert self._line is not None
        count = min(self._batch_size, chunk.stop - chunk.at)
        self._asked[self._line.ask(chunk.source.template, chunk.at, count)] = chunk
        chunk.asked_s = time.monotonic()

    def _send(self) -> None:
        """Send what was asked, so that the broker is at work meanwhile."""
        if self._line is not None:
            try:
                self._line.send()
            except RemotingError as error:
                self._lose_line(error)

    def _receive(self, awaited: Chunk) -> None:
        """Take the replies that come next; give the line up if this chunk's is overdue."""
        assert self._line is not None
        # A broker cannot go on while nobody reads, and Spark may have been busy for long.
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
        """Go on with a chunk if the reply is what comes next; leave any other to the client."""
        gets_on = reply.next_offset > chunk.at
        if gets_on and reply.code == ResponseCode.SUCCESS:
            chunk.add(reply.records, reply.next_offset)
        elif gets_on and _has_no_match(chunk, reply):
            chunk.at = reply.next_offset
        else:
            chunk.is_patient = True
            return
        if chunk.at < chunk.stop:
            self._ask(chunk)

    def _lose_line(self, error: RemotingError) -> None:
        """Leave to the client what was on the way."""
        assert self._line is not None
        log.warning("pulls from %s: %s; asking again", self._task.broker, error)
        self._line.close()
        self._line = None
        for chunk in self._asked.values():
            chunk.is_patient = True
        self._asked.clear()

    # Chunk by chunk -------------------------------------------------------------------------

    def _finish(self, chunk: Chunk) -> None:
        """Wait until a chunk is whole."""
        while chunk.at < chunk.stop and not chunk.is_patient:
            self._receive(chunk)
        if chunk.at < chunk.stop:
            self._cluster.run(self._pull(chunk))
        if chunk.replies and not chunk.source.is_filtered:
            mean = chunk.byte_count / (chunk.stop - chunk.start)
            self._mean_bytes += (max(mean, 1.0) - self._mean_bytes) / 8

    async def _pull(self, chunk: Chunk) -> None:
        """Pull the rest of a chunk, with patience."""
        source = chunk.source
        while chunk.at < chunk.stop:
            at = chunk.at
            count = min(self._batch_size, chunk.stop - at)
            said = await self._client.pull(source.queue, at, count, source.expression)
            if said.code == ResponseCode.SUCCESS:
                chunk.add(said.records, said.next_offset)
                continue
            if said.code == ResponseCode.PULL_RETRY_IMMEDIATELY:
                if not _has_no_match(chunk, said):
                    self._lose(chunk, at, said.next_offset, said)
                chunk.at = said.next_offset
                continue
            # The queue ends here, begins later, or has a hole.
            following = max(said.next_offset, said.min_offset if at < said.min_offset else 0)
            if following <= at or at >= said.max_offset:
                following = chunk.stop
            self._lose(chunk, at, following, said)
            chunk.at = following

    def _lose(self, chunk: Chunk, start: int, stop: int, said: Pulled) -> None:
        stop = min(stop, chunk.stop)
        self._report(chunk.source.queue, start, stop, said.min_offset, said.max_offset)
        chunk.lost_count += stop - start


def _has_no_match(chunk: Chunk, said: Pulled | PullReply) -> bool:
    """Whether a broker looked at some messages, none of which has a wanted tag."""
    return (
        said.code == ResponseCode.PULL_RETRY_IMMEDIATELY
        and chunk.source.is_filtered
        and said.remark != _REMOVING
    )
