"""Replies to sends that wait for the disk or slaves, in the order of their messages.

    put -> durable already?   yes -> the reply
                              no  -> held here -> sync or acks -> settle -> the reply

Under SYNC_FLUSH a message is acknowledged when the log is durable, by a SYNC_MASTER when enough
slaves have it. A send that has created a topic is acknowledged when the topic is in its file, too.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from reput.broker import limits
from reput.broker.counters.put_times import PutTimes
from reput.broker.deliveries import Deliveries
from reput.broker.put_stalls import PutStalls
from reput.broker.threads import SyncThread
from reput.broker.topic.topics import Topics
from reput.clock import Clock
from reput.format import command as commands
from reput.format.command import Command
from reput.remoting.channel import Channel
from reput.remoting.time_slices import Steps, TimeSlices, run_whole
from reput.store.message_store import MessageStore
from reput.store.writing.flush import PendingPut
from reput.store.writing.incoming import IncomingMessage, PutResult

_SETTLED_AT_ONCE = 64
"""Replies that are sent before the time is checked."""

Answer = Callable[[PutResult], Command]
"""Makes the reply from the result of a put."""


@dataclass(slots=True)
class _Pending:
    """Replies that wait for the disk or slaves."""

    put: PendingPut
    channel: Channel
    encode: Callable[[PutResult], bytes]
    begun_ms: int
    send_count: int = 1
    made_count: int = 0
    """Number of created topics that must be in the file before the reply."""


class PendingReplies:
    """Puts messages, and sends the replies once they are due.

    Args:
        store: The store.
        topics: The topics; created topics must be in their file before the reply.
        deliveries: The statistics.
        clock: The clock.
        slices: Runs work that may take long in time slices.
        sync_thread: Makes the log durable.
        put_stalls: Measures the puts.
    """

    def __init__(
        self,
        store: MessageStore,
        topics: Topics,
        deliveries: Deliveries,
        clock: Clock,
        slices: TimeSlices,
        sync_thread: SyncThread,
        put_stalls: PutStalls,
    ) -> None:
        self.put_times = PutTimes()
        """The times from a request to its reply."""
        self.put_count = 0
        """Number of requests that were put, or counted by ``count_puts``."""
        self.has_put = False
        """True if a message was put since this was last reset: held requests may match it."""
        self._store = store
        self._topics = topics
        self._deliveries = deliveries
        self._clock = clock
        self._slices = slices
        self._sync_thread = sync_thread
        self._put_stalls = put_stalls
        self._pending: deque[_Pending] = deque()
        self._pending_max = limits.WAITING_PUTS.maximum
        self._is_settling = False

    def __len__(self) -> int:
        """Return the number of pending replies, or of groups of them."""
        return len(self._pending)

    @property
    def is_full(self) -> bool:
        """True if no more replies may be pending."""
        return len(self._pending) >= self._pending_max

    def put(
        self,
        channel: Channel,
        request: Command,
        message: IncomingMessage,
        answer: Answer,
        *,
        is_batch: bool = False,
    ) -> Command | None:
        """Store a message or batch.

        Returns:
            The reply; None if it is sent later.

        Raises:
            LimitExceeded: Too many replies are pending.
        """
        if self.is_full:
            raise limits.WAITING_PUTS.exceeded(len(self._pending) + 1)
        self.has_put = True
        self.put_count += 1
        begun_ms = self._clock.monotonic_ms()
        put = self._store.begin_put(message, is_batch=is_batch)
        duration_ms = self._put_stalls.end(begun_ms)
        self._flush_if_due()
        topics = self._topics
        is_topic_written = topics.written_count == topics.made_count
        if put.result is not None and (is_topic_written or not put.result.status.is_stored):
            if put.result.status.is_stored:
                self.put_times.add(duration_ms)
            else:
                self._deliveries.stats.put_failed_count += 1
            return answer(put.result)
        if not request.is_oneway:
            self._pending.append(
                _Pending(
                    put,
                    channel,
                    lambda result: commands.encode(answer(result)),
                    begun_ms,
                    made_count=topics.made_count,
                )
            )
        if put.result is None and self._store.flusher.is_sync:
            self.sync_soon()
        return None

    def add(
        self,
        put: PendingPut,
        channel: Channel,
        encode: Callable[[PutResult], bytes],
        begun_ms: int,
        send_count: int,
    ) -> None:
        """Hold the replies to messages that were put together.

        Args:
            put: The put.
            channel: The connection.
            encode: Makes the replies, as bytes.
            begun_ms: The time when the put began, monotonic ms.
            send_count: The number of requests.
        """
        self.has_put = True
        self._pending.append(_Pending(put, channel, encode, begun_ms, send_count))
        if self._store.flusher.is_sync:  # else the put waits for slaves only
            self.sync_soon()

    def count_puts(self, begun_ms: int, count: int) -> None:
        """Count requests whose messages were stored elsewhere.

        Args:
            begun_ms: The time when the put began, monotonic ms.
            count: The number of requests.
        """
        self.put_count += count
        self.end_put(begun_ms, count)

    def end_put(self, begun_ms: int, count: int) -> None:
        """Record the end of a put whose reply need not wait.

        Args:
            begun_ms: The time when the put began, monotonic ms.
            count: The number of requests.
        """
        self.put_times.add(self._put_stalls.end(begun_ms), count)
        self._flush_if_due()

    def _flush_if_due(self) -> None:
        if self._store.flusher.is_due:
            self.sync_soon()

    def sync_soon(self) -> None:
        """Start a sync of all messages that were put."""
        self._sync_thread.request()

    def settle(self) -> None:
        """Send the replies that are due; in time slices if there are many."""
        if self._is_settling:
            return
        for _ in range(_SETTLED_AT_ONCE):
            if not self._settle_first():
                return
        self._is_settling = True
        self._slices.run(self._settle())

    def _settle_first(self) -> bool:
        """Send the first reply if it is due; return whether it was."""
        if not self._pending:
            return False
        first = self._pending[0]
        result = first.put.result
        if result is None or first.made_count > self._topics.written_count:
            return False
        self._pending.popleft()
        first.channel.write(first.encode(result))
        duration_ms = self._clock.monotonic_ms() - first.begun_ms
        self.put_times.add(duration_ms, first.send_count)
        return True

    def _settle(self) -> Steps[None]:
        try:
            while self._settle_first():
                yield
        finally:
            self._is_settling = False

    def settle_all(self) -> None:
        """Send all replies that are due without a break, at shutdown."""
        run_whole(self._settle())
