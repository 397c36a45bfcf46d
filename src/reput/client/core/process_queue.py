"""One queue's messages between the pull that brought them and the listener that is done with them.

    consumer_offset ....... taken ....... waiting ....... next_offset
                    | a listener has it |              | the next pull

Batches are taken in order and finished in any. The consumer offset is the first message that is not
finished, so what a crash repeats is what was not done, and nothing is left out.

One thread, the event loop's, uses a queue.
"""

from collections import deque
from collections.abc import Sequence
from itertools import islice
from typing import Generic, Protocol, TypeVar


class Queued(Protocol):
    """What is asked of a message here."""

    @property
    def queue_offset(self) -> int:
        """Number of the message in its queue."""

    @property
    def size_bytes(self) -> int:
        """Bytes of its record."""


M = TypeVar("M", bound=Queued)


class Batch(Generic[M]):
    """Messages that one call of a listener gets."""

    __slots__ = ("is_finished", "messages", "taken_ms")

    def __init__(self, messages: list[M], taken_ms: int) -> None:
        self.messages = messages
        """At least one, in the order of their offsets; ``ProcessQueue.keep`` makes it shorter."""
        self.taken_ms = taken_ms
        self.is_finished = False


class ProcessQueue(Generic[M]):
    """The messages of one queue that are here.

    Args:
        next_offset: Where the first pull begins.
    """

    def __init__(self, next_offset: int) -> None:
        self.next_offset = next_offset
        """Where the next pull begins: everything before was put, or did not match."""
        self.is_dropped = False
        """Set for good when the queue goes to another member, or starts anew elsewhere."""
        self.message_count = 0
        """Waiting and taken."""
        self.size_bytes = 0
        self.last_put_ms = 0
        self.last_taken_ms = 0
        self._waiting: deque[M] = deque()
        self._taken: deque[Batch[M]] = deque()  # may hold finished ones, but not in front
        self._last_offset = next_offset

    @property
    def consumer_offset(self) -> int:
        """What may be committed: where a member that knows no more should begin."""
        if self._taken:
            return self._taken[0].messages[0].queue_offset
        return self.waiting_offset

    @property
    def waiting_offset(self) -> int:
        """Queue offset of the message that is taken next, or from which on nothing is here."""
        return self._waiting[0].queue_offset if self._waiting else self.next_offset

    @property
    def waiting_count(self) -> int:
        """Messages that no listener has."""
        return len(self._waiting)

    @property
    def span(self) -> int:
        """How far the newest message is ahead of the oldest unfinished one."""
        return self._last_offset - self.consumer_offset if self.message_count else 0

    @property
    def last_offset(self) -> int:
        """Queue offset of the newest message that was put; ``next_offset`` while there is none."""
        return self._last_offset

    def put(self, messages: Sequence[M], next_offset: int, now_ms: int) -> int:
        """Add what a pull brought, in the order of offsets; return how many were new.

        A message that was put before is ignored: brokers of 5.x answer with whole batches, which
        may begin before the offset that was asked for.
        """
        new = messages
        if new and new[0].queue_offset < self.next_offset:
            new = [one for one in messages if one.queue_offset >= self.next_offset]
        self.next_offset = max(self.next_offset, next_offset)
        if new:
            self._last_offset = new[-1].queue_offset
            self.next_offset = max(self.next_offset, self._last_offset + 1)
            self._waiting.extend(new)
            self.message_count += len(new)
            self.size_bytes += sum([one.size_bytes for one in new])
            self.last_put_ms = now_ms
        return len(new)

    def take(self, count_max: int, now_ms: int) -> Batch[M] | None:
        """Return the next messages for a listener, ``None`` when none wait."""
        if not self._waiting:
            return None
        take_one = self._waiting.popleft
        batch = Batch([take_one() for _ in range(min(count_max, len(self._waiting)))], now_ms)
        self._taken.append(batch)
        self.last_taken_ms = now_ms
        return batch

    def finish(self, batch: Batch[M]) -> None:
        """Count a batch as done; one that is done already is left alone."""
        if batch.is_finished:
            return
        batch.is_finished = True
        self._forget(batch.messages)
        while self._taken and self._taken[0].is_finished:
            self._taken.popleft()

    def keep(self, batch: Batch[M], messages: list[M]) -> None:
        """Count all but ``messages`` of a batch as done; without any the batch is finished."""
        if not messages:
            self.finish(batch)
        elif not batch.is_finished:
            kept = {one.queue_offset for one in messages}
            self._forget([one for one in batch.messages if one.queue_offset not in kept])
            batch.messages = messages

    def give_back(self, batch: Batch[M]) -> None:
        """Let the newest batch wait again, to be taken next."""
        if batch.is_finished:
            return
        assert self._taken[-1] is batch, "only the batch that was taken last can be given back"
        self._taken.pop()
        self._waiting.extendleft(reversed(batch.messages))

    def overdue(self, taken_before_ms: int, count_max: int = 16) -> list[Batch[M]]:
        """Return the oldest batches as long as each was taken before a time."""
        found: list[Batch[M]] = []
        for batch in islice(self._taken, count_max):
            if batch.is_finished:
                continue
            if batch.taken_ms >= taken_before_ms:
                break
            found.append(batch)
        return found

    @property
    def taken_count(self) -> int:
        """Messages that a listener has."""
        return self.message_count - len(self._waiting)

    def _forget(self, messages: Sequence[M]) -> None:
        self.message_count -= len(messages)
        self.size_bytes -= sum([one.size_bytes for one in messages])
