"""``spark.readStream.format("rocketmq")``: queues, followed.

A micro-batch is told by two positions (``reput.spark.streaming.positions``), and reads the same
messages however often. This is what decides where it ends. What queues there are, where they end
and how large their messages are is for others to find out: ``stores``, ``brokers``.

Nothing here speaks to Spark: ``reput.spark.source`` hands over what Spark asks for.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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
from reput.spark.streaming.positions import LAG, Offset, QueueKey, decode, encode
from reput.spark.streaming.stores import StoreQueues

log = logging.getLogger("reput.spark")

_SMALLEST_RECORD_BYTES = 91
_FEW_MESSAGES = 256
"""Looked at beyond what a limit of bytes lets expect."""


@dataclass(frozen=True)
class _Pending:
    """What of a queue could be read."""

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

    Spark pickles it before it is used: it holds nothing of them until it is asked.

    Args:
        options: What the stream was told; ``options.trigger`` bounds its micro-batches.
        columns: Names of the wanted columns, in order.
        clock: Measures how long messages wait for others (``maxTriggerDelay``), and how old routes
            are.
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
        self._report: Callable[[], Offset] | None = None

    # Positions ------------------------------------------------------------------------------

    def initial_offset(self) -> Offset:
        """Return where a new query starts. Raises as ``Followed.starts`` does."""
        return encode(self._followed.starts(), {})

    def freeze(self) -> None:
        """Let the queues end where they end now: for a query that reads what is there, and ends."""
        self._frozen = {queue.identity: queue.end for queue in self._followed.wanted(()).values()}

    def latest_offset(self, start: Offset, limits: TriggerLimits | None) -> Offset:
        """Return where a micro-batch from ``start`` on ends; ``start`` itself if there is none.

        Args:
            start: Where the last micro-batch ended, all of which is through.
            limits: How large the micro-batch may be, and should be; None for all there is.

        Raises:
            StoreUnavailable: A path is no store any more, or is in use.
            DataLoss: Messages are gone that were not read, unless ``failOnDataLoss`` is false.
            ReadFailed: A broker or name server does not answer, or refuses.
        """
        before, _ = decode(start)
        queues = self._followed.wanted(before)
        self._followed.commit(before)
        pending = [*self._pending(queues, before)]
        positions = self._left_alone(queues, before)
        stops = {one.key: one.stop for one in pending}
        if limits is not None:
            if self._waits(sum(one.count for one in pending), limits):
                stops = {one.key: one.start for one in pending}
            else:
                stops = _limited(self._followed, pending, limits)
        # A queue that has nothing yet is taken in with its first messages.
        taken = [one for one in pending if not one.is_new or stops[one.key] > one.start]
        positions |= {one.key: stops[one.key] for one in taken}
        starts = {one.key: one.start for one in taken if one.is_new and one.start > 0}
        self._report = lambda: self._report_of(queues, pending, stops)
        if positions == before:
            return start
        if any(stops[one.key] > one.start for one in taken):
            self._waiting_since_ms = None
        return encode(positions, starts)

    def report(self) -> Offset | None:
        """Return the ends of all queues and, under ``$lag``, how far the stream is behind them.

        That is as of the last ``latest_offset``; None before the first.
        """
        return self._report() if self._report is not None else None

    def commit(self, end: Offset) -> None:
        """Take note that everything before a position is through."""
        self._followed.commit(decode(end)[0])

    def _pending(
        self, queues: Mapping[QueueKey, FollowedQueue], before: Mapping[QueueKey, int]
    ) -> Iterator[_Pending]:
        for key, queue in queues.items():
            start, stop = before.get(key), queue.end
            if self._frozen is not None:
                # A queue that came later is told of, and left.
                stop = min(stop, self._frozen.get(queue.identity, start or 0))
            if start is None:
                first = queue.first
                yield _Pending(key, queue, first, max(first, stop), is_new=True)
                continue
            left = self._what_is_left(key, queue, start, None)
            yield _Pending(key, queue, left, max(left, stop), is_new=False)

    def _what_is_left(
        self, key: QueueKey, queue: FollowedQueue, start: int, stop: int | None
    ) -> int:
        """Return from where on a queue can be read of which ``[start, stop)`` is wanted."""
        wanted = f"{start} on" if stop is None else f"{start} to {stop}"
        reach = queue.reach
        if max(start, stop or start) > reach:
            self._lose(
                key,
                start,
                f"queue {key} holds {queue.first} to {reach}, asked for is {wanted}: it was cut, "
                "or made anew",
            )
        if start >= reach:
            return reach
        if not queue.has(start):
            first = queue.first
            self._lose(
                key,
                start,
                f"queue {key} holds {first} to {reach}, asked for is {wanted}: messages {start} "
                f"to {first} have expired",
            )
            return first
        return start

    def _left_alone(
        self, queues: Mapping[QueueKey, FollowedQueue], before: Mapping[QueueKey, int]
    ) -> dict[QueueKey, int]:
        """Return the positions of queues that are not wanted now, and tell of those that are gone.

        A queue that comes back is read where it was left; one that is gone and comes back is new.
        """
        kept: dict[QueueKey, int] = {}
        for key, start in before.items():
            if key in queues:
                continue
            found = self._followed.whereabouts(key)
            if found is Whereabouts.GONE:
                self._lose_queue(key, start)
                continue
            if found is Whereabouts.AWAY:
                self._lose(key, start, self._away(key, start))
            kept[key] = start
        return kept

    def _away(self, key: QueueKey, start: int) -> str:
        return (
            f"the broker of queue {key} is not registered with {self._followed.places}, asked for "
            f"is {start} on"
        )

    def _lose_queue(self, key: QueueKey, start: int) -> None:
        where = self._followed.places
        self._lose(key, start, f"queue {key} is gone from {where}, asked for is {start} on")

    def _lose(self, key: QueueKey, start: int, what: str) -> None:
        if self._options.fail_on_data_loss:
            raise DataLoss(f"{what} (failOnDataLoss=false reads what is left)")
        told = key, start, what
        if told not in self._losses:
            self._losses.add(told)
            log.warning("data loss: %s", what)

    def _waits(self, count: int, limits: TriggerLimits) -> bool:
        """Whether so few messages wait for more, and have not waited too long."""
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
        pending: Iterable[_Pending],
        stops: Mapping[QueueKey, int],
    ) -> Offset:
        parts = [Part(one.key, one.queue, stops[one.key], one.queue.end) for one in pending]
        behind = [part for part in parts if part.start < part.stop]
        self._followed.look_at(behind)
        lag: dict[str, int] = {
            "messages": sum(part.stop - part.start for part in behind),
            "bytes": sum(part.queue.byte_count(part.start, part.stop) for part in behind),
            "dataLosses": len(self._losses),
        }
        oldest = self._followed.oldest(behind)
        if oldest is not None:
            lag["oldestStoreTimestamp"] = oldest
        return {**encode({key: queue.end for key, queue in queues.items()}, {}), LAG: lag}

    # Micro-batches --------------------------------------------------------------------------

    def tasks(self, start: Offset, end: Offset) -> list[Any]:
        """Plan the micro-batch between two positions: tasks, which can be pickled.

        Raises:
            StoreUnavailable: A path is no store any more, or is in use; or a broker is not there.
            DataLoss: Messages are gone that are to be read, unless ``failOnDataLoss`` is false.
            ReadFailed: A broker or name server does not answer, or refuses.
        """
        before, _ = decode(start)
        after, starts = decode(end)
        spans = {key: (before.get(key, starts.get(key, 0)), stop) for key, stop in after.items()}
        spans = {key: (first, stop) for key, (first, stop) in spans.items() if first < stop}
        queues = self._followed.those(spans)
        parts: list[Part] = []
        for key, (first, stop) in spans.items():
            queue = queues.get(key)
            if queue is None:
                if self._followed.whereabouts(key) is Whereabouts.AWAY:
                    raise StoreUnavailable(
                        f"{self._away(key, first)}: start it, or name the others with option broker"
                    )
                self._lose_queue(key, first)
                continue
            left = self._what_is_left(key, queue, first, stop)
            part = Part(key, queue, left, min(stop, queue.reach))
            if part.start < part.stop:
                parts.append(part)
        return self._followed.tasks(parts)

    def read(self, task: Any) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a task, as a batch read does."""
        return self._followed.read(task)


def _followed(options: ReadOptions, columns: Sequence[str], clock: Clock) -> Followed:
    if options.live is None:
        return StoreQueues(options, columns)
    from reput.spark.streaming.brokers import BrokerQueues  # who reads stores needs no network

    return BrokerQueues(options, columns, clock)


def _limited(
    followed: Followed, pending: Sequence[_Pending], limits: TriggerLimits
) -> dict[QueueKey, int]:
    """Return where to stop in each queue."""

    def oldest_first() -> list[int]:
        followed.look_at(one.part for one in pending if one.count)
        times = [one.queue.store_timestamp(one.start) if one.count else 0 for one in pending]
        return sorted(range(len(pending)), key=lambda i: (times[i], i))

    stops = [one.stop for one in pending]
    if limits.max_offsets is not None:
        shares = plan.share_messages(
            [one.count for one in pending], limits.max_offsets, oldest_first
        )
        stops = [
            one.queue.batch_stop(one.start, one.start + share)
            for one, share in zip(pending, shares, strict=True)
        ]
    if limits.max_bytes is not None:
        followed.look_at(one.part for one in pending if one.count)
        stops = _within_bytes(pending, stops, limits.max_bytes, oldest_first)
    return {one.key: stop for one, stop in zip(pending, stops, strict=True)}


def _within_bytes(
    pending: Sequence[_Pending],
    stops: Sequence[int],
    max_bytes: int,
    oldest_first: Callable[[], Sequence[int]],
) -> list[int]:
    """Return where to stop in each queue so that all records together are no larger."""
    ranges = [(one.queue, one.start, stop) for one, stop in zip(pending, stops, strict=True)]
    # Most queues of many have nothing: those are not asked.
    totals = [queue.byte_count(low, high) if low < high else 0 for queue, low, high in ranges]
    whole = max(sum(totals), 1)
    found = []
    for (queue, start, stop), total in zip(ranges, totals, strict=True):
        # No more than can be taken is looked at: a backlog may be a billion messages.
        share = max_bytes * total // whole + 1
        most = share // _SMALLEST_RECORD_BYTES + _FEW_MESSAGES
        found.append(queue.sizes(start, stop, most) if start < stop else NO_SIZES)
    counts = plan.share_bytes([one.byte_counts for one in found], totals, max_bytes, oldest_first)
    return [
        start if count == 0 else int(one.stops[count - 1])
        for (_, start, _), one, count in zip(ranges, found, counts, strict=True)
    ]
