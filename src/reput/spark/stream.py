"""``spark.readStream.format("rocketmq").load(path)``: the queues of store folders, followed.

A position is a queue offset for each topic, broker and queue: the next message to read. As JSON it
has the shape of option ``startingOffsets``, always in the same order, so that equal positions are
equal texts:

    {"orders": {"broker-a": {"0": 1200, "1": 1187}}}

Queues that appear later start at their first message. That is 0, or the position has the number
under ``$starts`` for the one micro-batch that begins there; ``$`` cannot be part of a topic's name.
So a micro-batch is told by two positions alone and reads the same messages however often.

A trigger looks at the ends of queues, in their files: a message counts from when the broker has
dispatched it. What no queue has a unit for is read by batch reads, and by a stream once the broker,
or a rebuild, has made the unit.

Nothing here speaks to Spark: ``reput.spark.source`` hands over what Spark asks for.
"""

import bisect
import json
import logging
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from reput.clock import Clock, SystemClock
from reput.errors import CorruptRecord, NotInStore, StoreUnavailable
from reput.format import cq_unit
from reput.spark import archive_files, plan
from reput.spark.options import ReadOptions, TriggerLimits
from reput.spark.scan import (
    DataLoss,
    MessageScan,
    StorePlanner,
    Summary,
    Task,
    check_brokers,
    option_constraint,
    store_paths,
)
from reput.store import paths
from reput.store.consume_queue_view import BatchConsumeQueueView, ConsumeQueueView
from reput.store.reader import StoreReader

log = logging.getLogger("reput.spark")

Offset = dict[str, Any]
"""A position as Spark keeps it: topic -> broker -> queue id as text -> queue offset."""

STARTS = "$starts"
LAG = "$lag"

_SMALLEST_RECORD_BYTES = 91
_EXACT_UNITS = 1 << 20
"""Sizes of so many units are added up at a trigger; those of more are told from samples."""
_SAMPLES, _SAMPLE_UNITS = 64, 256
_POINTS_A_PARTITION = 10_000
_END_OF_OFFSETS = (1 << 63) - 1


class QueueKey(NamedTuple):
    """A queue of a position."""

    topic: str
    broker: str
    queue_id: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.queue_id}" + (f" of {self.broker}" if self.broker else "")


@dataclass(frozen=True)
class Lag:
    """How far a stream is behind the end of its queues, once its last micro-batch is through."""

    messages: int
    bytes: int
    """Of log; of more than a million messages, about."""
    oldest_store_timestamp: int | None
    """Of the first message that waits, ms; None if none waits."""
    data_losses: int
    """How often something was gone, since the query was started."""


def lag_of(latest_offset: str | Mapping[str, Any]) -> Lag:
    """Return what a progress report of Spark tells of a stream's lag.

    Args:
        latest_offset: ``latestOffset`` of one of a progress' sources: of
            ``query.lastProgress.sources``, or of ``event.progress.sources`` in a listener.
    """
    parsed = json.loads(latest_offset) if isinstance(latest_offset, str) else latest_offset
    told = parsed.get(LAG, {})
    return Lag(
        told.get("messages", 0),
        told.get("bytes", 0),
        told.get("oldestStoreTimestamp"),
        told.get("dataLosses", 0),
    )


def encode(positions: Mapping[QueueKey, int], starts: Mapping[QueueKey, int]) -> Offset:
    """Return positions as Spark keeps them.

    Args:
        positions: The next queue offset of each queue.
        starts: Where the micro-batch that ends here begins those queues that are new in it.
    """
    encoded: Offset = _nested(positions)
    if starts:
        encoded[STARTS] = _nested(starts)
    return encoded


def _nested(positions: Mapping[QueueKey, int]) -> dict[str, dict[str, dict[str, int]]]:
    nested: dict[str, dict[str, dict[str, int]]] = {}
    for (topic, broker, queue_id), offset in sorted(positions.items()):
        nested.setdefault(topic, {}).setdefault(broker, {})[str(queue_id)] = offset
    return nested


def decode(offset: Mapping[str, Any]) -> tuple[dict[QueueKey, int], dict[QueueKey, int]]:
    """Return the positions of an offset, and where queues begin that are new in it."""
    rest = {topic: brokers for topic, brokers in offset.items() if not topic.startswith("$")}
    return _flat(rest), _flat(offset.get(STARTS, {}))


def _flat(nested: Mapping[str, Mapping[str, Mapping[str, int]]]) -> dict[QueueKey, int]:
    return {
        QueueKey(topic, broker, int(queue_id)): number
        for topic, brokers in nested.items()
        for broker, queues in brokers.items()
        for queue_id, number in queues.items()
    }


class _Units(NamedTuple):
    """Units of a queue, of either kind: one a message, or one a batch."""

    stops: npt.NDArray[np.int64]
    """Queue offset behind each."""
    physical_offsets: npt.NDArray[np.int64]
    sizes: npt.NDArray[np.int64]


class _Queue:
    """A queue as it stands at one trigger."""

    def __init__(self, view: ConsumeQueueView | BatchConsumeQueueView, reader: StoreReader) -> None:
        self._view = view
        self._reader = reader

    @property
    def is_batch(self) -> bool:
        """Whether its units stand for batches."""
        return isinstance(self._view, BatchConsumeQueueView)

    @property
    def first(self) -> int:
        """The first queue offset whose message is in the log."""
        return self._view.min_offset

    @cached_property
    def end(self) -> int:
        """The queue offset behind the last message that can be read."""
        view, reader = self._view, self._reader
        if not reader.is_live:
            reached = view.end_physical_offset
            if reached is None or reached <= reader.end_offset:
                return view.max_offset
            if isinstance(view, BatchConsumeQueueView):
                firsts = view.units["queue_offset"]
                return int(firsts[len(firsts) - len(view.targets_from(reader.end_offset))])
            # A crash cut the log, and no broker has brought the queues in line since.
            return view.max_offset - len(view.targets_from(reader.end_offset))
        if isinstance(view, BatchConsumeQueueView) or self._is_written(view.max_offset - 1):
            return view.max_offset
        # The broker's pages are seen as they come: a unit may be there before its record.
        span = range(view.min_offset, view.max_offset)
        return span.start + bisect.bisect_left(span, True, key=lambda n: not self._is_written(n))

    @property
    def reach(self) -> int:
        """The queue offset up to which a position may be, once one was handed out.

        What was readable once is never asked again of a broker that is running.
        """
        return self._view.max_offset if self._reader.is_live else self.end

    def _is_written(self, queue_offset: int) -> bool:
        """Whether the record of a unit is there, as far as its length fields tell."""
        try:
            unit = self._plain.unit(queue_offset)
            end = self._reader.log.end_of(unit.physical_offset)
        except (NotInStore, CorruptRecord):
            return queue_offset < self._view.min_offset
        return end == unit.physical_offset + unit.size

    @property
    def _plain(self) -> ConsumeQueueView:
        assert isinstance(self._view, ConsumeQueueView)
        return self._view

    def has(self, queue_offset: int) -> bool:
        """Whether a message is still there, told without looking for the first one.

        Finding the first one reads a file of units; a unit tells of its own.
        """
        if isinstance(self._view, BatchConsumeQueueView):
            return queue_offset >= self._view.min_offset
        try:
            unit = self._view.unit(queue_offset)
        except (NotInStore, CorruptRecord):
            return queue_offset >= self._view.min_offset
        is_blank = unit.size == cq_unit.PRE_BLANK_SIZE and unit.physical_offset == 0
        if unit.is_written and not is_blank and unit.physical_offset >= self._reader.log.min_offset:
            return True
        return queue_offset >= self._view.min_offset

    def units(self, start: int, stop: int, most: int | None = None) -> _Units:
        """Return the units of ``[start, stop)``, of the first ``most`` messages only."""
        stop = stop if most is None else min(stop, start + most)
        if isinstance(self._view, BatchConsumeQueueView):
            found = self._view.units
            firsts = found["queue_offset"].astype(np.int64)
            found = found[(firsts >= start) & (firsts < stop)]
            stops = found["queue_offset"].astype(np.int64) + found["message_count"]
        else:
            numbers, found = self._view.units(start, stop)
            stops = numbers + 1
        return _Units(
            stops, found["physical_offset"].astype(np.int64), found["size"].astype(np.int64)
        )

    def byte_count(self, start: int, stop: int) -> int:
        """Return how many bytes of log a range takes; of many units, about."""
        if self.is_batch or stop - start <= _EXACT_UNITS:
            return int(self.units(start, stop).sizes.sum())
        return int(self.record_bytes(start, stop) * (stop - start))

    def record_bytes(self, start: int, stop: int) -> float:
        """Return about how large the records of a range are, from samples all over it."""
        step = max((stop - start) // _SAMPLES, _SAMPLE_UNITS)
        samples = [
            self.units(low, min(low + _SAMPLE_UNITS, stop)).sizes
            for low in range(start, stop, step)
        ]
        sizes = np.concatenate(samples) if samples else np.empty(0, np.int64)
        return float(sizes.mean()) if len(sizes) else 1.0

    def batch_stop(self, start: int, stop: int) -> int:
        """Return where to stop so that no batch is cut: at or before ``stop``, but behind one."""
        if not self.is_batch or stop <= start:
            return stop
        stops = self.units(start, stop).stops
        whole = stops[stops <= stop]
        return int(whole[-1]) if len(whole) else int(stops[0]) if len(stops) else stop

    def place_of(self, physical_offset: int, start: int, stop: int) -> int:
        """Return the first of ``[start, stop)`` that stands at or behind an offset of the log."""

        def stands_behind(queue_offset: int) -> bool:
            try:
                return self._plain.unit(queue_offset).physical_offset >= physical_offset
            except (NotInStore, CorruptRecord):
                return False

        span = range(start, stop)
        return start + bisect.bisect_left(span, True, key=stands_behind)

    def physical_offset(self, queue_offset: int) -> int:
        """Return where a message stands in the log; the log's first offset if nothing tells."""
        found = self.units(queue_offset, queue_offset + 1).physical_offsets
        return int(found[0]) if len(found) else self._reader.log.min_offset

    def store_timestamp(self, queue_offset: int) -> int:
        """Return a message's store time, ms; 0 if it cannot be read."""
        try:
            return self._reader.log.store_timestamp_at(self.physical_offset(queue_offset))
        except (CorruptRecord, NotInStore):
            return 0


class _Store:
    """A store folder as it stands at one trigger."""

    def __init__(self, path: str, planner: StorePlanner) -> None:
        self.path = path
        self.planner = planner
        self.reader = planner.reader
        self.broker = planner.broker
        """Its name in positions; a lone store keeps the one it was given first."""
        self.marks = _marks(self.reader)
        self._queues: dict[tuple[str, int], _Queue] = {}

    @cached_property
    def wanted(self) -> list[tuple[str, int]]:
        """The queues to follow."""
        return self.planner.queues()

    def has(self, topic: str, queue_id: int) -> bool:
        """Whether a queue has files."""
        families = (self.reader.queue_ids, self.reader.batch_queue_ids)
        return any(queue_id in family.get(topic, ()) for family in families)

    def queue(self, topic: str, queue_id: int) -> _Queue:
        """Return a queue."""
        key = topic, queue_id
        if key not in self._queues:
            self._queues[key] = _Queue(self.planner.queue_view(topic, queue_id), self.reader)
        return self._queues[key]


def _marks(reader: StoreReader) -> tuple[object, ...]:
    """Return what a broker cannot leave as it was when it has run on a store."""
    folder = reader.folder
    marks = [folder.entry(name) for name in (paths.ABORT, paths.LOCK, paths.CHECKPOINT)]
    return (*marks, *folder.entries(paths.COMMIT_LOG))


@dataclass(frozen=True)
class _Pending:
    """What of a queue could be read."""

    key: QueueKey
    queue: _Queue
    start: int
    stop: int
    is_new: bool

    @property
    def count(self) -> int:
        return self.stop - self.start


class QueueStream:
    """A stream over the queues of one or more stores.

    Spark pickles it before it is used: it holds nothing of a store until it is asked.

    Args:
        options: What the stream was told; ``options.trigger`` bounds its micro-batches.
        columns: Names of the wanted columns, in order.
        clock: Measures how long messages wait for others (``maxTriggerDelay``).
    """

    def __init__(
        self, options: ReadOptions, columns: Sequence[str], clock: Clock | None = None
    ) -> None:
        self._options = options
        self._columns = tuple(columns)
        self._clock = clock or SystemClock()
        self._opened: dict[str, _Store] = {}
        self._frozen: dict[tuple[str, str, int], int] | None = None
        self._waiting_since_ms: int | None = None
        self._losses: set[tuple[QueueKey, int, str]] = set()
        self._report: Callable[[], Offset] | None = None

    # Positions ------------------------------------------------------------------------------

    def initial_offset(self) -> Offset:
        """Return where a new query starts.

        Raises:
            StoreUnavailable: A path is no store, or is in use; or stores share a broker's name.
            InvalidOption: Topics, offsets or times that were named do not fit the stores.
            DataLoss: What was named is gone, unless ``failOnDataLoss`` is false.
        """
        stores = self._stores({})
        check_brokers(self._options, {store.planner.broker for store in stores.values()})
        positions = {
            QueueKey(topic, broker, queue_id): min(start, store.queue(topic, queue_id).end)
            for broker, store in stores.items()
            for (topic, queue_id), start in store.planner.starts().items()
        }
        return encode(positions, {})

    def freeze(self) -> None:
        """Let the queues end where they end now: for a query that reads what is there, and ends."""
        self._frozen = {
            (store.path, topic, queue_id): store.queue(topic, queue_id).end
            for store in self._open_stores()
            for topic, queue_id in store.wanted
        }

    def latest_offset(self, start: Offset, limits: TriggerLimits | None) -> Offset:
        """Return where a micro-batch from ``start`` on ends; ``start`` itself if there is none.

        Args:
            start: Where the last micro-batch ended.
            limits: How large the micro-batch may be, and should be; None for all there is.

        Raises:
            StoreUnavailable: A path is no store any more, or is in use.
            DataLoss: Messages are gone that were not read, unless ``failOnDataLoss`` is false.
        """
        before, _ = decode(start)
        stores = self._stores(before)
        pending = [*self._pending(stores, before)]
        positions = self._left_alone(stores, before)
        stops = {one.key: one.stop for one in pending}
        if limits is not None:
            if self._waits(sum(one.count for one in pending), limits):
                stops = {one.key: one.start for one in pending}
            else:
                stops = _limited(pending, limits)
        # A queue that has nothing yet is taken in with its first messages.
        taken = [one for one in pending if not one.is_new or stops[one.key] > one.start]
        positions |= {one.key: stops[one.key] for one in taken}
        starts = {one.key: one.start for one in taken if one.is_new and one.start > 0}
        self._report = lambda: self._report_of(stores, pending, stops)
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

    def _pending(
        self, stores: Mapping[str, _Store], before: Mapping[QueueKey, int]
    ) -> Iterator[_Pending]:
        for broker, store in stores.items():
            for topic, queue_id in store.wanted:
                key, queue = QueueKey(topic, broker, queue_id), store.queue(topic, queue_id)
                start, stop = before.get(key), queue.end
                if self._frozen is not None:
                    # A queue that came later is told of, and left.
                    stop = min(stop, self._frozen.get((store.path, topic, queue_id), start or 0))
                if start is None:
                    first = queue.first
                    yield _Pending(key, queue, first, max(first, stop), is_new=True)
                    continue
                left = self._what_is_left(key, queue, start, None)
                yield _Pending(key, queue, left, max(left, stop), is_new=False)

    def _what_is_left(self, key: QueueKey, queue: _Queue, start: int, stop: int | None) -> int:
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
        self, stores: Mapping[str, _Store], before: Mapping[QueueKey, int]
    ) -> dict[QueueKey, int]:
        """Return the positions of queues that are not wanted now, and tell of those that are gone.

        A queue that comes back is read where it was left; one that is gone and comes back is new.
        """
        kept: dict[QueueKey, int] = {}
        wanted = {broker: {*store.wanted} for broker, store in stores.items()}
        for key, offset in before.items():
            store = stores.get(key.broker)
            if store is not None and store.has(key.topic, key.queue_id):
                if (key.topic, key.queue_id) not in wanted[key.broker]:
                    kept[key] = offset
                continue
            self._lose_queue(key, offset, stores)
        return kept

    def _lose_queue(self, key: QueueKey, offset: int, stores: Mapping[str, _Store]) -> None:
        there = ", ".join(store.path for store in stores.values())
        self._lose(key, offset, f"queue {key} is gone from {there}, asked for is {offset} on")

    def _lose(self, key: QueueKey, offset: int, what: str) -> None:
        if self._options.fail_on_data_loss:
            raise DataLoss(f"{what} (failOnDataLoss=false reads what is left)")
        told = key, offset, what
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
        stores: Mapping[str, _Store],
        pending: Iterable[_Pending],
        stops: Mapping[QueueKey, int],
    ) -> Offset:
        behind = [(one, stops[one.key], one.queue.end) for one in pending]
        behind = [entry for entry in behind if entry[1] < entry[2]]
        # The first in a store's log is the oldest: store times are not read but once a store.
        heads: dict[str, tuple[int, _Queue, int]] = {}
        for one, stop, _ in behind:
            head = one.queue.physical_offset(stop), one.queue, stop
            if one.key.broker not in heads or head[0] < heads[one.key.broker][0]:
                heads[one.key.broker] = head
        times = [queue.store_timestamp(stop) for _, queue, stop in heads.values()]
        ends = {
            QueueKey(topic, broker, queue_id): store.queue(topic, queue_id).end
            for broker, store in stores.items()
            for topic, queue_id in store.wanted
        }
        lag: dict[str, int] = {
            "messages": sum(end - stop for _, stop, end in behind),
            "bytes": sum(one.queue.byte_count(stop, end) for one, stop, end in behind),
            "dataLosses": len(self._losses),
        }
        if times:
            lag["oldestStoreTimestamp"] = min(times)
        return {**encode(ends, {}), LAG: lag}

    # Stores ---------------------------------------------------------------------------------

    def _open_stores(self) -> list[_Store]:
        """Open what the paths are now; a stopped store that is as it was is not read again."""
        opened = {}
        for number, path in enumerate(store_paths(self._options)):
            if archive_files.is_archive(path):
                raise StoreUnavailable(
                    f"{path} is an archive, which does not grow: read it with spark.read"
                )
            constraint = option_constraint(self._options)
            before = self._opened.get(path)
            if before is not None and not before.reader.is_live:
                now = StoreReader.open(path, allow_live=self._options.allow_live)
                if not now.is_live and _marks(now) == before.marks:
                    opened[path] = before
                    continue
            planner = StorePlanner(
                number, path, self._options, constraint, Summary(), by_queue_only=True
            )
            opened[path] = _Store(path, planner)
        self._opened = opened
        return [*opened.values()]

    def _stores(self, positions: Iterable[QueueKey]) -> dict[str, _Store]:
        """Open the stores, by their names in positions."""
        stores = self._open_stores()
        names = {key.broker for key in positions}
        if len(stores) == 1 and len(names) == 1:
            # Tables tell a broker's name, which a young or damaged store does not have yet.
            stores[0].broker = names.pop()
        by_name: dict[str, _Store] = {}
        for store in stores:
            name = store.broker
            if name in by_name or (not name and len(stores) > 1):
                other = by_name[name].path if name in by_name else "others"
                raise StoreUnavailable(
                    f"{store.path} cannot be told from {other}: positions are kept by the names "
                    f"of brokers, and its is {name!r}; stream each store on its own"
                )
            by_name[name] = store
        return by_name

    # Micro-batches --------------------------------------------------------------------------

    def tasks(self, start: Offset, end: Offset) -> list[Task]:
        """Plan the micro-batch between two positions.

        Raises:
            StoreUnavailable: A path is no store any more, or is in use.
            DataLoss: Messages are gone that are to be read, unless ``failOnDataLoss`` is false.
        """
        before, _ = decode(start)
        after, starts = decode(end)
        stores = self._stores({**before, **after})
        wanted: dict[str, list[tuple[_Queue, plan.QueueSlice]]] = defaultdict(list)
        for key, stop in after.items():
            first = before.get(key, starts.get(key, 0))
            if first >= stop:
                continue
            store = stores.get(key.broker)
            if store is None or not store.has(key.topic, key.queue_id):
                self._lose_queue(key, first, stores)
                continue
            queue = store.queue(key.topic, key.queue_id)
            first = self._what_is_left(key, queue, first, stop)
            stop = min(stop, queue.reach)
            if first < stop:
                part = plan.QueueSlice(key.topic, key.queue_id, first, stop)
                wanted[key.broker].append((queue, part))
        return [
            Task(part, stores[broker].planner.facts(_END_OF_OFFSETS, must_have_all=True))
            for broker, slices in wanted.items()
            for part in _partitions(slices, self._options)
        ]

    def read(self, task: Task) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a partition, as a batch read does."""
        return MessageScan(self._options, self._columns).read(task)


def _limited(pending: Sequence[_Pending], limits: TriggerLimits) -> dict[QueueKey, int]:
    """Return where to stop in each queue."""

    def oldest_first() -> list[int]:
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
    totals = [queue.byte_count(start, stop) for queue, start, stop in ranges]
    whole = max(sum(totals), 1)
    units = []
    for (queue, start, stop), total in zip(ranges, totals, strict=True):
        # No more than can be taken is looked at: a backlog may be a billion messages.
        share = max_bytes * total // whole + 1
        most = share // _SMALLEST_RECORD_BYTES + _SAMPLE_UNITS
        units.append(queue.units(start, stop, most))
    counts = plan.share_bytes([one.sizes for one in units], totals, max_bytes, oldest_first)
    return [
        start if count == 0 else int(one.stops[count - 1])
        for (_, start, _), one, count in zip(ranges, units, counts, strict=True)
    ]


def _partitions(
    slices: Sequence[tuple[_Queue, plan.QueueSlice]], options: ReadOptions
) -> list[plan.Partition]:
    """Cut what a micro-batch reads of one store into partitions.

    All queues are cut at the same places of the log: a partition reads one part of it, whatever
    number of queues it is spread over.
    """
    plain = [entry for entry in slices if not entry[0].is_batch]
    extents = [plan.Extent(one, queue.record_bytes(one.start, one.stop)) for queue, one in plain]
    total = sum(extent.byte_count for extent in extents)
    target = plan.target_bytes(total, options.max_bytes_per_partition, options.min_partitions)
    pieces = max(1, -(-int(total) // target))
    found: list[plan.Partition] = []
    rest = extents
    if pieces > 1:
        low = min(queue.physical_offset(one.start) for queue, one in plain)
        high = max(queue.physical_offset(one.stop - 1) for queue, one in plain)
        for piece in range(1, pieces):
            cut = low + (high - low) * piece // pieces
            before, rest = _cut_at(cut, [queue for queue, _ in plain], rest)
            found += _ranges(before, options)
    found += _ranges(rest, options)
    for queue, one in slices:
        if queue.is_batch:
            offsets = queue.units(one.start, one.stop).physical_offsets.tolist()
            found += [
                plan.Points(0, tuple(offsets[i : i + _POINTS_A_PARTITION]))
                for i in range(0, len(offsets), _POINTS_A_PARTITION)
            ]
    return found


def _cut_at(
    physical_offset: int, queues: Sequence[_Queue], extents: Sequence[plan.Extent]
) -> tuple[list[plan.Extent], list[plan.Extent]]:
    """Return what of some extents stands before a place of the log, and what behind it."""
    before, behind = [], []
    for queue, extent in zip(queues, extents, strict=True):
        one = extent.slice
        place = queue.place_of(physical_offset, one.start, one.stop)
        low = plan.QueueSlice(one.topic, one.queue_id, one.start, place)
        high = plan.QueueSlice(one.topic, one.queue_id, place, one.stop)
        before.append(plan.Extent(low, extent.record_bytes))
        behind.append(plan.Extent(high, extent.record_bytes))
    return before, behind


def _ranges(extents: Sequence[plan.Extent], options: ReadOptions) -> list[plan.QueueRange]:
    return plan.split_queues(
        0,
        [extent for extent in extents if extent.slice.count],
        options.max_bytes_per_partition,
        options.max_records_per_partition,
    )
