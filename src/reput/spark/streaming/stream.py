"""``spark.readStream.format("rocketmq")``: a stream over queues.

Two positions define a micro-batch (``reput.spark.streaming.positions``), which always reads the
same messages. This module decides its end. ``stores`` and ``brokers`` provide queues, their ends
and sizes.

Independent of Spark: ``reput.spark.source`` passes its calls on.
"""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from reput.clock import Clock, SystemClock
from reput.errors import StoreUnavailable
from reput.spark import plan
from reput.spark.options import ReadOptions, TriggerLimits
from reput.spark.rows import warn_of_ignored
from reput.spark.store_planner import DataLoss
from reput.spark.streaming.followed import NO_SIZES, Followed, FollowedQueue, Part, Whereabouts
from reput.spark.streaming.positions import LAG, SOURCE, Offset, QueueKey, decode, encode
from reput.spark.streaming.stores import StoreQueues

log = logging.getLogger("reput.spark")

_TOPICS_SHOWN = 5
_SMALLEST_RECORD_BYTES = 91
_FEW_MESSAGES = 256
"""Number of messages examined beyond the estimate for a limit of bytes."""


@dataclass(frozen=True)
class _Pending:
    """Readable part of a queue."""

    key: QueueKey
    queue: FollowedQueue
    start: int
    stop: int
    is_new: bool

    @property
    def count(self) -> int:
        return self.stop - self.start

    @property
    def part(self) -> Part:
        return Part(self.key, self.queue, self.start, self.stop)


class QueueStream:
    """A stream over the queues of store folders, or of brokers.

    Spark pickles it before use: it opens nothing before the first call.

    Args:
        options: Options of the stream; ``options.trigger`` bounds its micro-batches.
        columns: Names of the selected columns, in order.
        clock: Measures how long messages wait (``maxTriggerDelay``), and the age of routes.
    """

    def __init__(
        self, options: ReadOptions, columns: Sequence[str], clock: Clock | None = None
    ) -> None:
        self._options = options
        self._clock = clock or SystemClock()
        warn_of_ignored(options)
        self._followed = _followed(options, columns, self._clock)
        self._frozen: dict[object, int] | None = None
        self._waiting_since_ms: int | None = None
        self._losses: set[tuple[QueueKey, int, str]] = set()
        self._patience_ms = options.live.retry_timeout_ms if options.live is not None else 0
        self._away_since_ms: dict[str, int] = {}
        """Times at which brokers were first missing, by their names."""
        self._report: Callable[[], Offset] | None = None

    # Positions ------------------------------------------------------------------------------

    def initial_offset(self) -> Offset:
        """Return the start of a new query. Raises as ``Followed.starts``."""
        return encode(self._followed.starts(), {})

    def freeze(self) -> None:
        """Freeze the ends of the queues, for a query that ends there."""
        self._frozen = {queue.identity: queue.end for queue in self._followed.wanted(()).values()}

    def ends(self) -> Offset:
        """Return the ends of the selected queues, for a query whose start is not known yet.

        Raises as ``latest_offset``.
        """
        queues = self._followed.wanted(())
        return encode(
            {key: queue.end for key, queue in queues.items()},
            {key: queue.first for key, queue in queues.items() if queue.first > 0},
        )

    def check_dropped(self, start: Offset, end: Offset) -> None:
        """Report queues that only the start of a micro-batch has, after ``tasks`` for both.

        Raises:
            StoreUnavailable: A broker is missing: its position would be forgotten.
            DataLoss: A queue was deleted, unless ``failOnDataLoss`` is false.
        """
        before, after = decode(start)[0], decode(end)[0]
        for key in before.keys() - after.keys():
            self._check_whereabouts(key, before[key])

    def latest_offset(self, start: Offset, limits: TriggerLimits | None) -> Offset:
        """Return the end of a micro-batch from ``start`` on; ``start`` itself if it is empty.

        Args:
            start: End of the last micro-batch, which was processed.
            limits: Maximum and minimum size of the micro-batch; None for no limits.

        Raises:
            StoreUnavailable: A path is no longer a store, or is in use.
            DataLoss: Unread messages were deleted, unless ``failOnDataLoss`` is false.
            ReadFailed: A broker or name server does not reply, or refuses.
        """
        before, _ = decode(start)
        queues = self._followed.wanted(before)
        self._followed.commit(before)
        pending = [*self._pending(queues, before)]
        positions = self._left_alone(queues, before)
        stops = {queue_left.key: queue_left.stop for queue_left in pending}
        if limits is not None:
            if self._waits(sum(queue_left.count for queue_left in pending), limits):
                stops = {queue_left.key: queue_left.start for queue_left in pending}
            else:
                stops = _limited(self._followed, pending, limits)
        # A queue without messages is added with its first message.
        taken = [
            queue_left
            for queue_left in pending
            if not queue_left.is_new or stops[queue_left.key] > queue_left.start
        ]
        positions |= {queue_left.key: stops[queue_left.key] for queue_left in taken}
        starts = {
            queue_left.key: queue_left.start
            for queue_left in taken
            if queue_left.is_new and queue_left.start > 0
        }
        self._report = lambda: self._report_of(queues, pending, stops)
        if positions == before:
            return start
        if any(stops[queue_left.key] > queue_left.start for queue_left in taken):
            self._waiting_since_ms = None
        return encode(positions, starts)

    def report(self) -> Offset | None:
        """Return the ends of all queues; under ``$lag`` the lag, under ``$source`` its name.

        As of the last ``latest_offset``; None before the first.
        """
        return self._report() if self._report is not None else None

    def commit(self, end: Offset) -> None:
        """Record that everything before a position was processed."""
        self._followed.commit(decode(end)[0])

    def _pending(
        self, queues: Mapping[QueueKey, FollowedQueue], before: Mapping[QueueKey, int]
    ) -> Iterator[_Pending]:
        for key, queue in queues.items():
            start, stop = before.get(key), queue.end
            if self._frozen is not None:
                # A queue that appeared later is reported and skipped.
                stop = min(stop, self._frozen.get(queue.identity, start or 0))
            if start is None:
                first = queue.first
                yield _Pending(key, queue, first, max(first, stop), is_new=True)
                continue
            left = self._first_left(key, queue, start, None)
            yield _Pending(key, queue, left, max(left, stop), is_new=False)

    def _first_left(self, key: QueueKey, queue: FollowedQueue, start: int, stop: int | None) -> int:
        """Return the first readable queue offset of ``[start, stop)``."""
        wanted = f"{start} on" if stop is None else f"{start} to {stop}"
        reach = queue.reach
        if max(start, stop or start) > reach:
            self._lose(
                key,
                start,
                f"queue {key} holds {queue.first} to {reach}, requested is {wanted}: it was "
                "truncated, or recreated",
            )
        if start >= reach:
            return reach
        if not queue.has(start):
            first = queue.first
            self._lose(
                key,
                start,
                f"queue {key} holds {first} to {reach}, requested is {wanted}: messages {start} "
                f"to {first} have expired",
            )
            return first
        return start

    def _left_alone(
        self, queues: Mapping[QueueKey, FollowedQueue], before: Mapping[QueueKey, int]
    ) -> dict[QueueKey, int]:
        """Return the positions of unselected queues, and report missing ones.

        A queue that reappears is continued; a recreated one starts at its first message. A broker
        may be missing for a time, while the others are read; but a query that ends now needs all.
        """
        rest = {key: start for key, start in before.items() if key not in queues}
        if self._frozen is not None and self._options.fail_on_data_loss:
            self._followed.wait_for(rest)
        kept: dict[QueueKey, int] = {}
        away = set()
        for key, start in rest.items():
            state = self._followed.whereabouts(key)
            if state is Whereabouts.GONE:
                self._lose_queue(key, start)
                continue
            if state is Whereabouts.AWAY:
                away.add(key.broker)
                if self._is_overdue(key.broker):
                    self._lose(key, start, self._away(key, start))
            kept[key] = start
        for broker in self._away_since_ms.keys() - away:
            del self._away_since_ms[broker]
        return kept

    def _is_overdue(self, broker: str) -> bool:
        """Return whether a missing broker was waited for long enough."""
        now_ms = self._clock.monotonic_ms()
        since_ms = self._away_since_ms.setdefault(broker, now_ms)
        return self._frozen is not None or now_ms - since_ms >= self._patience_ms

    def _away(self, key: QueueKey, start: int) -> str:
        return (
            f"the broker of queue {key} is not registered with {self._followed.places}, asked for "
            f"is {start} on"
        )

    def _check_whereabouts(self, key: QueueKey, start: int) -> None:
        """Raise ``StoreUnavailable`` if its broker is not registered; report a deleted queue."""
        where = self._followed.whereabouts(key)
        if where is Whereabouts.AWAY:
            raise StoreUnavailable(
                f"{self._away(key, start)}: start it, or name the others with option broker"
            )
        if where is Whereabouts.GONE:
            self._lose_queue(key, start)

    def _lose_queue(self, key: QueueKey, start: int) -> None:
        where = self._followed.places
        self._lose(key, start, f"queue {key} is missing from {where}, requested is {start} on")

    def _lose(self, key: QueueKey, start: int, what: str) -> None:
        if self._options.fail_on_data_loss:
            raise DataLoss(f"{what} (failOnDataLoss=false reads the rest)")
        loss = key, start, what
        if loss not in self._losses:
            self._losses.add(loss)
            log.warning("data loss: %s", what)

    def _waits(self, count: int, limits: TriggerLimits) -> bool:
        """Return whether to wait for more messages: there are few, and the oldest is recent."""
        if count == 0 or self._frozen is not None or count >= (limits.min_offsets or 0):
            self._waiting_since_ms = None
            return False
        now_ms = self._clock.monotonic_ms()
        if self._waiting_since_ms is None:
            self._waiting_since_ms = now_ms
        return now_ms - self._waiting_since_ms < limits.max_delay_ms

    def _report_of(
        self,
        queues: Mapping[QueueKey, FollowedQueue],
        pending: Sequence[_Pending],
        stops: Mapping[QueueKey, int],
    ) -> Offset:
        parts = [Part(part.key, part.queue, stops[part.key], part.queue.end) for part in pending]
        lagging = [part for part in parts if part.start < part.stop]
        self._followed.prefetch(lagging)
        lag: dict[str, int] = {
            "messages": sum(part.stop - part.start for part in lagging),
            "bytes": sum(part.queue.byte_count(part.start, part.stop) for part in lagging),
            "dataLosses": len(self._losses),
        }
        oldest = self._followed.oldest(lagging)
        if oldest is not None:
            lag["oldestStoreTimestamp"] = oldest
        # The ends of queues without a position yet are of use only with their starts.
        starts = {part.key: part.start for part in pending if part.is_new and part.start > 0}
        ends = encode({key: queue.end for key, queue in queues.items()}, starts)
        return {**ends, LAG: lag, SOURCE: self._source()}

    def _source(self) -> str:
        """Return topics and place in words: Spark shows the name of a class."""
        options = self._options
        named = sorted(options.topics or options.assign or ())
        if options.topic_pattern is not None:
            topics = f"topics like {options.topic_pattern}"
        elif not named:
            topics = "all topics"
        else:
            more = f" and {len(named) - _TOPICS_SHOWN} more" if len(named) > _TOPICS_SHOWN else ""
            word = "topic" if len(named) == 1 else "topics"
            topics = f"{word} {', '.join(named[:_TOPICS_SHOWN])}{more}"
        return f"{topics} of {self._followed.places}"

    # Micro-batches --------------------------------------------------------------------------

    def tasks(self, start: Offset, end: Offset) -> list[Any]:
        """Plan the micro-batch between two positions: picklable tasks.

        Raises:
            StoreUnavailable: A path is no longer a store, or is in use; or a broker is missing.
            DataLoss: Messages of it were deleted, unless ``failOnDataLoss`` is false.
            ReadFailed: A broker or name server does not reply, or refuses.
        """
        before, _ = decode(start)
        after, starts = decode(end)
        spans = {key: (before.get(key, starts.get(key, 0)), stop) for key, stop in after.items()}
        spans = {key: (first, stop) for key, (first, stop) in spans.items() if first < stop}
        queues = self._followed.queues_of(spans)
        missing = spans.keys() - queues.keys()
        if missing:
            self._followed.wait_for(missing)
            queues = self._followed.queues_of(spans)
        parts: list[Part] = []
        for key, (first, stop) in spans.items():
            queue = queues.get(key)
            if queue is None:
                self._check_whereabouts(key, first)
                continue
            left = self._first_left(key, queue, first, stop)
            part = Part(key, queue, left, min(stop, queue.reach))
            if part.start < part.stop:
                parts.append(part)
        return self._followed.tasks(parts)

    def read(self, task: Any) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a task, as in a batch read."""
        return self._followed.read(task)


def _followed(options: ReadOptions, columns: Sequence[str], clock: Clock) -> Followed:
    if options.live is None:
        return StoreQueues(options, columns)
    from reput.spark.streaming.brokers import BrokerQueues  # readers of stores need no network

    return BrokerQueues(options, columns, clock)


def _limited(
    followed: Followed, pending: Sequence[_Pending], limits: TriggerLimits
) -> dict[QueueKey, int]:
    """Return the end in each queue."""

    def oldest_first() -> list[int]:
        followed.prefetch(part.part for part in pending if part.count)
        times = [part.queue.store_timestamp(part.start) if part.count else 0 for part in pending]
        return sorted(range(len(pending)), key=lambda i: (times[i], i))

    stops = [part.stop for part in pending]
    if limits.max_offsets is not None:
        shares = plan.share_messages(
            [part.count for part in pending], limits.max_offsets, oldest_first
        )
        stops = [
            part.queue.batch_stop(part.start, part.start + share)
            for part, share in zip(pending, shares, strict=True)
        ]
    if limits.max_bytes is not None:
        followed.prefetch(part.part for part in pending if part.count)
        stops = _within_bytes(pending, stops, limits.max_bytes, oldest_first)
    return {part.key: stop for part, stop in zip(pending, stops, strict=True)}


def _within_bytes(
    pending: Sequence[_Pending],
    stops: Sequence[int],
    max_bytes: int,
    oldest_first: Callable[[], Sequence[int]],
) -> list[int]:
    """Return the end in each queue for at most a number of bytes in total."""
    ranges = [(item.queue, item.start, stop) for item, stop in zip(pending, stops, strict=True)]
    # Most of many queues are empty and are skipped.
    totals = [queue.byte_count(low, high) if low < high else 0 for queue, low, high in ranges]
    whole = max(sum(totals), 1)
    sizes = []
    for (queue, start, stop), total in zip(ranges, totals, strict=True):
        # Only what can be taken is examined: a backlog may be a billion messages.
        share = max_bytes * total // whole + 1
        most = share // _SMALLEST_RECORD_BYTES + _FEW_MESSAGES
        sizes.append(queue.sizes(start, stop, most) if start < stop else NO_SIZES)
    counts = plan.share_bytes([item.byte_counts for item in sizes], totals, max_bytes, oldest_first)
    return [
        start if count == 0 else int(item.stops[count - 1])
        for (_, start, _), item, count in zip(ranges, sizes, counts, strict=True)
    ]
