"""The cached messages of one queue, between the pull and the end of their consumption.

    consumer_offset ....... taken ....... waiting ....... next_offset
                    | a listener has it |              | the next pull

Batches are taken in order and finished in any order. The consumer offset is that of the first
unfinished message: after a crash unfinished messages are delivered again, and none is skipped.

Only the event loop's thread uses a queue.
"""

from collections import deque
from collections.abc import Sequence
from itertools import islice
from typing import Generic, Protocol, TypeVar


class Queued(Protocol):
    """Interface of a message in a process queue."""

    @property
    def queue_offset(self) -> int:
        """Queue offset of the message."""

    @property
    def size_bytes(self) -> int:
        """Size of its record, in bytes."""


M = TypeVar("M", bound=Queued)


class Batch(Generic[M]):
    """Messages of one call of the listener."""

    __slots__ = ("is_finished", "messages", "taken_ms")

    def __init__(self, messages: list[M], taken_ms: int) -> None:
        self.messages = messages
        """The messages, at least one, in the order of their offsets; ``ProcessQueue.keep`` shortens
        it."""
        self.taken_ms = taken_ms
        self.is_finished = False


class ProcessQueue(Generic[M]):
    """The cached messages of one queue.

    Args:
        next_offset: Queue offset of the first pull.
    """

    def __init__(self, next_offset: int) -> None:
        self.next_offset = next_offset
        """Queue offset of the next pull: all earlier messages were put, or did not match."""
        self.is_dropped = False
        """True once the queue was assigned to another member or reset; never cleared."""
        self.message_count = 0
        """Number of waiting and taken messages."""
        self.size_bytes = 0
        self.last_put_ms = 0
        self.last_taken_ms = 0
        self._waiting: deque[M] = deque()
        self._taken: deque[Batch[M]] = deque()  # the first one is always unfinished
        self._last_offset = next_offset

    @property
    def consumer_offset(self) -> int:
        """Consumer offset to commit."""
        if self._taken:
            return self._taken[0].messages[0].queue_offset
        return self.waiting_offset

    @property
    def waiting_offset(self) -> int:
        """Queue offset of the next message to take, or after the last one."""
        return self._waiting[0].queue_offset if self._waiting else self.next_offset

    @property
    def waiting_count(self) -> int:
        """Number of messages that no listener has."""
        return len(self._waiting)

    @property
    def span(self) -> int:
        """Distance of queue offsets between the oldest unfinished and the newest message."""
        return self._last_offset - self.consumer_offset if self.message_count else 0

    @property
    def last_offset(self) -> int:
        """Queue offset of the newest message; ``next_offset`` if the queue is empty."""
        return self._last_offset

    def put(self, messages: Sequence[M], next_offset: int, now_ms: int) -> int:
        """Add the messages of a pull, in the order of offsets; return the number of new ones.

        Duplicates are ignored: brokers of 5.x return whole batches, which may start before the
        requested offset.
        """
        new = messages
        if new and new[0].queue_offset < self.next_offset:
            new = [message for message in messages if message.queue_offset >= self.next_offset]
        self.next_offset = max(self.next_offset, next_offset)
        if new:
            self._last_offset = new[-1].queue_offset
            self.next_offset = max(self.next_offset, self._last_offset + 1)
            self._waiting.extend(new)
            self.message_count += len(new)
            self.size_bytes += sum([message.size_bytes for message in new])
            self.last_put_ms = now_ms
        return len(new)

    def take(self, count_max: int, now_ms: int) -> Batch[M] | None:
        """Return the next messages for a listener; None if none wait."""
        if not self._waiting:
            return None
        take_one = self._waiting.popleft
        batch = Batch([take_one() for _ in range(min(count_max, len(self._waiting)))], now_ms)
        self._taken.append(batch)
        self.last_taken_ms = now_ms
        return batch

    def finish(self, batch: Batch[M]) -> None:
        """Finish a batch; repeating it has no effect."""
        if batch.is_finished:
            return
        batch.is_finished = True
        self._forget(batch.messages)
        while self._taken and self._taken[0].is_finished:
            self._taken.popleft()

    def keep(self, batch: Batch[M], messages: list[M]) -> None:
        """Finish all messages of a batch except ``messages``; without any, the whole batch."""
        if not messages:
            self.finish(batch)
        elif not batch.is_finished:
            kept = {message.queue_offset for message in messages}
            self._forget(
                [message for message in batch.messages if message.queue_offset not in kept]
            )
            batch.messages = messages

    def give_back(self, batch: Batch[M]) -> None:
        """Return the newest batch to the waiting messages, to be taken next."""
        if batch.is_finished:
            return
        assert self._taken[-1] is batch, "only the batch that was taken last can be given back"
        self._taken.pop()
        self._waiting.extendleft(reversed(batch.messages))

    def overdue(self, taken_before_ms: int, count_max: int = 16) -> list[Batch[M]]:
        """Return the oldest batches, up to the first that was taken at or after a time."""
        batches: list[Batch[M]] = []
        for batch in islice(self._taken, count_max):
            if batch.is_finished:
                continue
            if batch.taken_ms >= taken_before_ms:
                break
            batches.append(batch)
        return batches

    @property
    def taken_count(self) -> int:
        """Number of messages that a listener has."""
        return self.message_count - len(self._waiting)

    def _forget(self, messages: Sequence[M]) -> None:
        self.message_count -= len(messages)
        self.size_bytes -= sum([message.size_bytes for message in messages])
