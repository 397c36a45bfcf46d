"""Followed queues of store folders: ends and sizes come from consume-queue files.

A message counts once the broker has dispatched it. Records without a unit are read by batch reads,
and by a stream once the broker, or a rebuild, has made the unit.
"""

import bisect
from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from reput.errors import CorruptRecord, NotInStore, StoreUnavailable
from reput.format import cq_unit
from reput.spark import plan
from reput.spark.archive import files as archive_files
from reput.spark.options import ReadOptions
from reput.spark.scan import MessageScan
from reput.spark.store_opening import store_paths
from reput.spark.store_planner import StorePlanner, Summary, Task, check_brokers, option_constraint
from reput.spark.streaming.followed import Part, Sizes, Whereabouts
from reput.spark.streaming.positions import QueueKey
from reput.store.files import paths
from reput.store.queues.consume_queue_view import BatchConsumeQueueView, ConsumeQueueView
from reput.store.reader import StoreReader

_EXACT_UNITS = 1 << 20
"""Number of units up to which sizes are summed exactly at a trigger; above it they are
estimated."""
_SAMPLES, _SAMPLE_UNITS = 64, 256
_END_OF_OFFSETS = (1 << 63) - 1


class _Queue:
    """A queue of a store at one trigger."""

    def __init__(
        self,
        identity: Hashable,
        view: ConsumeQueueView | BatchConsumeQueueView,
        reader: StoreReader,
    ) -> None:
        self.identity = identity
        self._view = view
        self._reader = reader

    @property
    def is_batch(self) -> bool:
        """True for a batch queue."""
        return isinstance(self._view, BatchConsumeQueueView)

    @property
    def first(self) -> int:
        """Queue offset of the first message in the log."""
        return self._view.min_offset

    @cached_property
    def end(self) -> int:
        """Queue offset after the last readable message."""
        view, reader = self._view, self._reader
        if not reader.is_live:
            reached = view.end_physical_offset
            if reached is None or reached <= reader.end_offset:
                return view.max_offset
            if isinstance(view, BatchConsumeQueueView):
                firsts = view.units["queue_offset"]
                return int(firsts[len(firsts) - len(view.targets_from(reader.end_offset))])
            # A crash truncated the log, and no broker has repaired the queues since.
            return view.max_offset - len(view.targets_from(reader.end_offset))
        if isinstance(view, BatchConsumeQueueView) or self._is_written(view.max_offset - 1):
            return view.max_offset
        # The broker's pages become visible in any order: a unit may precede its record.
        span = range(view.min_offset, view.max_offset)
        return span.start + bisect.bisect_left(span, True, key=lambda n: not self._is_written(n))

    @property
    def reach(self) -> int:
        """Largest valid queue offset of an earlier position.

        A running broker is not asked again for a message that was readable.
        """
        return self._view.max_offset if self._reader.is_live else self.end

    def _is_written(self, queue_offset: int) -> bool:
        """Return whether the record of a unit exists, by its length fields."""
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
        """Return whether a message still exists, without searching for the first one.

        Finding the first message reads a file of units; this reads one unit.
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

    def sizes(self, start: int, stop: int, most: int | None = None) -> Sizes:
        """Return the sizes of ``[start, stop)``, of the first ``most`` messages only."""
        stops, _, sizes = self._units(start, stop if most is None else min(stop, start + most))
        return Sizes(stops, sizes)

    def physical_offsets(self, start: int, stop: int) -> npt.NDArray[np.int64]:
        """Return the physical offsets of the records of ``[start, stop)``."""
        return self._units(start, stop)[1]

    def _units(self, start: int, stop: int) -> tuple[npt.NDArray[np.int64], ...]:
        """Return the queue offset after each unit, its physical offset, and its size."""
        if isinstance(self._view, BatchConsumeQueueView):
            units = self._view.units_of(start, stop)
            stops = units["queue_offset"].astype(np.int64) + units["message_count"]
        else:
            numbers, units = self._view.units(start, stop)
            stops = numbers + 1
        return stops, units["physical_offset"].astype(np.int64), units["size"].astype(np.int64)

    def byte_count(self, start: int, stop: int) -> int:
        """Return the size of a range in the log, in bytes; estimated for many units."""
        if self.is_batch or stop - start <= _EXACT_UNITS:
            return int(self.sizes(start, stop).byte_counts.sum())
        return int(self.record_bytes(start, stop) * (stop - start))

    def record_bytes(self, start: int, stop: int) -> float:
        """Return the average record size of a range, from samples across it."""
        step = max((stop - start) // _SAMPLES, _SAMPLE_UNITS)
        samples = [
            self.sizes(low, min(low + _SAMPLE_UNITS, stop)).byte_counts
            for low in range(start, stop, step)
        ]
        sizes = np.concatenate(samples) if samples else np.empty(0, np.int64)
        return float(sizes.mean()) if len(sizes) else 1.0

    def batch_stop(self, start: int, stop: int) -> int:
        """Return a stop that splits no batch: at or before ``stop``, but after at least one."""
        if not self.is_batch or stop <= start:
            return stop
        stops = self.sizes(start, stop).stops
        whole = stops[stops <= stop]
        return int(whole[-1]) if len(whole) else int(stops[0]) if len(stops) else stop

    def place_of(self, physical_offset: int, start: int, stop: int) -> int:
        """Return the first of ``[start, stop)`` at or after a physical offset."""

        def is_after(queue_offset: int) -> bool:
            try:
                return self._plain.unit(queue_offset).physical_offset >= physical_offset
            except (NotInStore, CorruptRecord):
                return False

        span = range(start, stop)
        return start + bisect.bisect_left(span, True, key=is_after)

    def physical_offset(self, queue_offset: int) -> int:
        """Return the physical offset of a message; the log's first offset if unknown."""
        physical_offsets = self.physical_offsets(queue_offset, queue_offset + 1)
        return int(physical_offsets[0]) if len(physical_offsets) else self._reader.log.min_offset

    def store_timestamp(self, queue_offset: int) -> int:
        """Return the store time of a message, in ms; 0 if it cannot be read."""
        try:
            return self._reader.log.store_timestamp_at(self.physical_offset(queue_offset))
        except (CorruptRecord, NotInStore):
            return 0


class _Store:
    """A store folder at one trigger."""

    def __init__(self, path: str, planner: StorePlanner) -> None:
        self.path = path
        self.planner = planner
        self.reader = planner.reader
        self.broker = planner.broker
        """Name of the broker in positions; a single store keeps its first name."""
        self.marks = _marks(self.reader)
        self._queues: dict[tuple[str, int], _Queue] = {}

    @cached_property
    def wanted(self) -> list[tuple[str, int]]:
        """The selected queues."""
        return self.planner.queues()

    def has(self, topic: str, queue_id: int) -> bool:
        """Return whether a queue has files."""
        families = (self.reader.queue_ids, self.reader.batch_queue_ids)
        return any(queue_id in family.get(topic, ()) for family in families)

    def queue(self, topic: str, queue_id: int) -> _Queue:
        """Return a queue."""
        key = topic, queue_id
        if key not in self._queues:
            view = self.planner.queue_view(topic, queue_id)
            self._queues[key] = _Queue((self.path, topic, queue_id), view, self.reader)
        return self._queues[key]


def _marks(reader: StoreReader) -> tuple[object, ...]:
    """Return marks that change whenever a broker has run on a store."""
    folder = reader.folder
    marks = [folder.entry(name) for name in (paths.ABORT, paths.LOCK, paths.CHECKPOINT)]
    return (*marks, *folder.entries(paths.COMMIT_LOG))


class StoreQueues:
    """The queues of one or more store folders.

    Args:
        options: Options of the stream.
        columns: Names of the selected columns, in order.
    """

    def __init__(self, options: ReadOptions, columns: Sequence[str]) -> None:
        self._options = options
        self._columns = tuple(columns)
        self._opened: dict[str, _Store] = {}
        self._by_name: dict[str, _Store] = {}

    @property
    def places(self) -> str:
        """The folders."""
        return ", ".join(self._opened)

    def starts(self) -> dict[QueueKey, int]:
        """Return the start of a new query; see ``Followed``."""
        stores = self._stores(())
        check_brokers(self._options, {store.planner.broker for store in stores.values()})
        return {
            QueueKey(topic, broker, queue_id): min(start, store.queue(topic, queue_id).end)
            for broker, store in stores.items()
            for (topic, queue_id), start in store.planner.starts().items()
        }

    def wanted(self, positions: Iterable[QueueKey]) -> dict[QueueKey, _Queue]:
        """Reopen the stores, and return the selected queues."""
        return {
            QueueKey(topic, broker, queue_id): store.queue(topic, queue_id)
            for broker, store in self._stores(positions).items()
            for topic, queue_id in store.wanted
        }

    def queues_of(self, positions: Iterable[QueueKey]) -> dict[QueueKey, _Queue]:
        """Reopen the stores, and return the existing queues among these."""
        keys = list(positions)
        self._stores(keys)
        return {
            key: self._by_name[key.broker].queue(key.topic, key.queue_id)
            for key in keys
            if self.whereabouts(key) is Whereabouts.HERE
        }

    def whereabouts(self, key: QueueKey) -> Whereabouts:
        """Return whether a queue has files."""
        store = self._by_name.get(key.broker)
        is_here = store is not None and store.has(key.topic, key.queue_id)
        return Whereabouts.HERE if is_here else Whereabouts.GONE

    def wait_for(self, keys: Iterable[QueueKey]) -> None:
        """Return at once: a queue of a folder is there, or deleted."""

    def prefetch(self, parts: Iterable[Part]) -> None:
        """Do nothing: files need no prefetch."""

    def oldest(self, parts: Sequence[Part]) -> int | None:
        """Return the store time of the oldest first message of the parts, in ms.

        The first one in a store's log is the oldest: one store time per store is read.
        """
        heads: dict[str, tuple[int, _Queue, int]] = {}
        for part in parts:
            queue = _own(part)
            head = queue.physical_offset(part.start), queue, part.start
            if part.key.broker not in heads or head[0] < heads[part.key.broker][0]:
                heads[part.key.broker] = head
        times = [queue.store_timestamp(start) for _, queue, start in heads.values()]
        return min(times, default=None)

    def _open_stores(self) -> list[_Store]:
        """Open the stores at the paths; an unchanged stopped store is not read again."""
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
            # Tables have a broker's name, but a young or damaged store lacks them.
            stores[0].broker = names.pop()
        by_name: dict[str, _Store] = {}
        for store in stores:
            name = store.broker
            if name in by_name or (not name and len(stores) > 1):
                other = by_name[name].path if name in by_name else "others"
                raise StoreUnavailable(
                    f"{store.path} cannot be distinguished from {other}: positions use the names "
                    f"of brokers, and its name is {name!r}; stream each store separately"
                )
            by_name[name] = store
        self._by_name = by_name
        return by_name

    # Micro-batches --------------------------------------------------------------------------

    def tasks(self, parts: Sequence[Part]) -> list[Task]:
        """Split a micro-batch into tasks."""
        slices: dict[str, list[tuple[_Queue, plan.QueueSlice]]] = defaultdict(list)
        for part in parts:
            topic, broker, queue_id = part.key
            partition = plan.QueueSlice(topic, queue_id, part.start, part.stop)
            slices[broker].append((_own(part), partition))
        return [
            Task(
                partition, self._by_name[broker].planner.facts(_END_OF_OFFSETS, must_have_all=True)
            )
            for broker, wanted in slices.items()
            for partition in _partitions(wanted, self._options)
        ]

    def read(self, task: Task) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a task, as in a batch read."""
        return MessageScan(self._options, self._columns).read(task)

    def commit(self, positions: Mapping[QueueKey, int]) -> None:
        """Do nothing: stores are only read."""


def _own(part: Part) -> _Queue:
    assert isinstance(part.queue, _Queue)
    return part.queue


def _partitions(
    slices: Sequence[tuple[_Queue, plan.QueueSlice]], options: ReadOptions
) -> list[plan.Partition]:
    """Split a micro-batch of one store into partitions.

    All queues are split at the same offsets of the log, so that a partition reads one range of it,
    however many queues that range serves.
    """
    plain = [entry for entry in slices if not entry[0].is_batch]
    extents = [
        plan.Extent(part, queue.record_bytes(part.start, part.stop)) for queue, part in plain
    ]
    total = sum(extent.byte_count for extent in extents)
    target = plan.target_bytes(total, options.max_bytes_per_partition, options.min_partitions)
    pieces = max(1, -(-int(total) // target))
    partitions: list[plan.Partition] = []
    rest = extents
    if pieces > 1:
        low = min(queue.physical_offset(part.start) for queue, part in plain)
        high = max(queue.physical_offset(part.stop - 1) for queue, part in plain)
        for piece in range(1, pieces):
            cut = low + (high - low) * piece // pieces
            before, rest = _cut_at(cut, [queue for queue, _ in plain], rest)
            partitions += _ranges(before, options)
    partitions += _ranges(rest, options)
    batches = [
        plan.Extent(part, queue.byte_count(part.start, part.stop) / part.count)
        for queue, part in slices
        if queue.is_batch
    ]
    return partitions + _ranges(batches, options)


def _cut_at(
    physical_offset: int, queues: Sequence[_Queue], extents: Sequence[plan.Extent]
) -> tuple[list[plan.Extent], list[plan.Extent]]:
    """Return the parts of some extents before and after a physical offset."""
    before, after = [], []
    for queue, extent in zip(queues, extents, strict=True):
        queue_slice = extent.slice
        place = queue.place_of(physical_offset, queue_slice.start, queue_slice.stop)
        low = plan.QueueSlice(queue_slice.topic, queue_slice.queue_id, queue_slice.start, place)
        high = plan.QueueSlice(queue_slice.topic, queue_slice.queue_id, place, queue_slice.stop)
        before.append(plan.Extent(low, extent.record_bytes))
        after.append(plan.Extent(high, extent.record_bytes))
    return before, after


def _ranges(extents: Sequence[plan.Extent], options: ReadOptions) -> list[plan.QueueRange]:
    return plan.split_queues(
        0,
        [extent for extent in extents if extent.slice.count],
        options.max_bytes_per_partition,
        options.max_records_per_partition,
    )
