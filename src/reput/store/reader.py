"""A store folder for reading: one consistent view of log, queues, index and tables.

    commit log     min_offset ........................ end_offset ........ data_end
                   | records, sometimes damage        | torn | stale     | zeros

``end_offset`` is the end of the log, which is stored in no file. A broker derives it from its
queues and by scanning the tail, and so does this reader (``_find_end``). After it there may be the
torn tail of a crash, or records that an earlier recovery truncated and left on disk
(known-bugs.md#stale-tail). Neither is part of the log; both are reported.

The reader never writes, locks or creates files (known-bugs.md#deleted-topics). It takes file sizes
from the files.
"""

import bisect
import contextlib
import dataclasses
import enum
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from operator import itemgetter
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from reput.errors import CorruptRecord, NotInStore, ReputError, StoreUnavailable
from reput.format import (
    batch as batches,
    checkpoint_page,
    cq_unit,
    index_entry,
    message as record,
    message_id,
    names,
    properties as props,
)
from reput.format.message import StoredMessage, Verdict
from reput.store.files import paths
from reput.store.files.files import Folder, open_folder
from reput.store.index.index_view import IndexView
from reput.store.log import bulk_append
from reput.store.log.commit_log_view import CommitLogView, Damage, LogBatch, LogFile
from reput.store.queues.consume_queue_view import BatchConsumeQueueView, ConsumeQueueView, ExtView
from reput.store.tables import config_tables

_Queue = ConsumeQueueView | BatchConsumeQueueView | tuple[str, int]

END_OF_TIME_MS = (1 << 63) - 1
_UNITS_AT_ONCE = 4096
_NO_TIMES = np.empty(0, np.int64)


class Boundary(enum.Enum):
    """Selects the message for an offset by time (known-bugs.md#offset-by-time)."""

    LOWER = "lower"
    """The first message at or after the time; the offset after the last if all are before it."""
    UPPER = "upper"
    """The last message at or before the time; the first if all are after it."""


class Condition(enum.Enum):
    """The state in which the broker left the store."""

    CLEAN = "clean"
    CRASHED = "crashed"
    """``abort`` exists: the broker was not stopped, or the store is a copy of a live one."""
    RUNNING = "running"
    """A process of this machine holds the lock."""


@dataclass(frozen=True, slots=True)
class StoreState:
    """The state of the store's broker, from the files of the folder."""

    condition: Condition
    has_abort: bool
    lock_holder: int | None
    """Process id of the lock's holder."""
    checkpoint: checkpoint_page.Checkpoint | None
    checkpoint_problem: CorruptRecord | None = None
    """Reason why an existing checkpoint cannot be read; the rest is read nevertheless."""


@dataclass(frozen=True, slots=True)
class LogTail:
    """The end of the log and the bytes after it."""

    end_offset: int
    torn: Damage | None = None
    """The incomplete last record that a crash left."""
    stale: Damage | None = None
    """Valid records that are no longer part of the log."""


@dataclass(frozen=True, slots=True)
class LogFileState:
    """A log file and its first and last record."""

    file: LogFile
    first_offset: int | None
    """Physical offset of the first message; None if there is none."""
    last_offset: int | None
    """Physical offset of the last message."""
    min_store_timestamp: int | None
    max_store_timestamp: int | None
    """Store time of the last message, in ms: store times never decrease."""
    wasted_bytes: int
    """Bytes after the last message: a blank, or unused space."""


class KeyHits(NamedTuple):
    """The result of a lookup by key."""

    messages: list[StoredMessage]
    """Messages in log order; the key of each was compared."""
    unreadable: list[CorruptRecord]
    """Damaged records from the index; it is unknown whether they have the key."""


class StoreReader:
    """Read-only access to a store folder; open one with ``StoreReader.open``."""

    def __init__(
        self, folder: Folder, *, allow_live: bool = False, holds_lock: bool = False
    ) -> None:
        """Set up a reader; most callers use ``open``.

        Args:
            folder: The store.
            allow_live: See ``open``.
            holds_lock: True if the lock on the folder is the caller's own.
        """
        self._folder = folder
        self._holds_lock = holds_lock
        self._allow_live = allow_live
        self._queue_views: dict[tuple[str, int], ConsumeQueueView] = {}
        self._batch_queue_views: dict[tuple[str, int], BatchConsumeQueueView] = {}
        self.log = CommitLogView(folder)
        self.index = IndexView(folder)

    @classmethod
    def open(cls, location: str, *, allow_live: bool = False) -> "StoreReader":
        """Open a store folder.

        Args:
            location: Local path or URI of the folder that contains ``commitlog``.
            allow_live: Read although a broker is running on the folder; the log then ends with its
                last complete record.

        Raises:
            StoreUnavailable: Not a store, in RocksDB mode or DLedger, or in use without
                ``allow_live``.
        """
        folder = open_folder(location)
        refuse_foreign(folder)
        log = folder.entry(paths.COMMIT_LOG)
        if log is None or not log.is_folder:
            raise StoreUnavailable(f"{location} is no store: it has no folder {paths.COMMIT_LOG}")
        reader = cls(folder, allow_live=allow_live)
        holder = reader.state.lock_holder
        if holder is not None and not allow_live:
            raise StoreUnavailable(
                f"{location} is in use by {process_name(holder)}; stop the broker, or allow "
                "reading beside it (option allowLive=true, --live)"
            )
        return reader

    @property
    def location(self) -> str:
        """The folder's path or URI, as given to ``open``."""
        return self._folder.location

    @property
    def folder(self) -> Folder:
        """The files of the store folder."""
        return self._folder

    @cached_property
    def state(self) -> StoreState:
        """The state in which the broker left the store."""
        has_abort = self._folder.entry(paths.ABORT) is not None
        holder = None if self._holds_lock else self._folder.lock_holder(paths.LOCK)
        if holder is not None:
            condition = Condition.RUNNING
        else:
            condition = Condition.CRASHED if has_abort else Condition.CLEAN
        try:
            checkpoint, problem = self._checkpoint(), None
        except CorruptRecord as error:
            checkpoint, problem = None, error
        return StoreState(condition, has_abort, holder, checkpoint, problem)

    def _checkpoint(self) -> checkpoint_page.Checkpoint | None:
        entry = self._folder.entry(paths.CHECKPOINT)
        if entry is None or entry.size == 0:
            return None
        try:
            return checkpoint_page.unpack(bytes(self._folder.read(paths.CHECKPOINT)))
        except CorruptRecord as error:
            raise CorruptRecord(error.reason, file=paths.CHECKPOINT) from None

    @property
    def is_live(self) -> bool:
        """True if a broker may be writing: it holds the lock, or was not stopped cleanly."""
        is_stopped = self.state.condition is Condition.CLEAN
        return self.state.condition is Condition.RUNNING or (self._allow_live and not is_stopped)

    # Queues ---------------------------------------------------------------------------------

    @cached_property
    def queue_ids(self) -> dict[str, list[int]]:
        """The queues with files: topic -> ascending queue ids."""
        return self._queues_in(paths.CONSUME_QUEUE)

    @cached_property
    def batch_queue_ids(self) -> dict[str, list[int]]:
        """The batch queues of 5.x with files: topic -> ascending queue ids."""
        return self._queues_in(paths.BATCH_CONSUME_QUEUE)

    def _queues_in(self, family: str) -> dict[str, list[int]]:
        queue_ids: dict[str, list[int]] = {}
        for topic in self._folder.entries(family):
            if not topic.is_folder:
                continue
            ids = [
                queue_id
                for entry in self._folder.entries(f"{family}/{topic.name}")
                if entry.is_folder and (queue_id := paths.parse_queue_id(entry.name)) is not None
            ]
            if ids:
                queue_ids[topic.name] = sorted(ids)
        return queue_ids

    def queue(self, topic: str, queue_id: int) -> ConsumeQueueView:
        """Return a queue; a queue without files is empty, not an error."""
        key = (topic, queue_id)
        if key not in self._queue_views:
            self._queue_views[key] = ConsumeQueueView(
                self._folder, topic, queue_id, self.log.min_offset
            )
        return self._queue_views[key]

    def load_min_offsets(self, queues: Iterable[ConsumeQueueView | BatchConsumeQueueView]) -> None:
        """Read the first offsets of queues, many at a time where each costs requests."""
        self._read_ahead(queues, lambda queue: queue.min_offset)

    def _read_ahead(
        self,
        queues: Iterable[ConsumeQueueView | BatchConsumeQueueView],
        read: Callable[[ConsumeQueueView | BatchConsumeQueueView], object],
    ) -> None:
        """Let queues read properties that they cache, in parallel where that is faster.

        Errors are raised again when a property is used.
        """

        def read_one(queue: ConsumeQueueView | BatchConsumeQueueView) -> None:
            with contextlib.suppress(ReputError):
                read(queue)

        parallel_reads = self._folder.reads_at_once
        if parallel_reads > 1:
            with ThreadPoolExecutor(parallel_reads) as pool:
                deque(pool.map(read_one, queues), maxlen=0)

    def batch_queue(self, topic: str, queue_id: int) -> BatchConsumeQueueView:
        """Return a batch queue of 5.x."""
        key = (topic, queue_id)
        if key not in self._batch_queue_views:
            self._batch_queue_views[key] = BatchConsumeQueueView(
                self._folder, topic, queue_id, self.log.min_offset
            )
        return self._batch_queue_views[key]

    def extension(self, topic: str, queue_id: int) -> ExtView:
        """Return the extension units of a queue."""
        return ExtView(self._folder, topic, queue_id)

    def queues(self) -> Iterator[ConsumeQueueView]:
        """Yield every queue with files, by topic and queue id."""
        for topic, ids in self.queue_ids.items():
            for queue_id in ids:
                yield self.queue(topic, queue_id)

    @cached_property
    def queue_end(self) -> int | None:
        """Physical end of the furthest record that a queue points at; None if there is none."""
        furthest: int | None = None
        for claimed_end, start, _ in self._claims:
            if furthest is not None and claimed_end <= furthest:
                break
            # Without a record there, log or unit is damaged: ``_lost_end`` finds out.
            furthest = max(self.log.end_of(start) or 0, furthest or 0) or None
        return furthest

    @cached_property
    def _claims(self) -> list[tuple[int, int, _Queue]]:
        """End and start of each queue's last record in the log, and the queue; descending.

        A plain queue may be a topic and a queue id: thousands of views take long.
        """
        queues: list[ConsumeQueueView | BatchConsumeQueueView] = [*self.queues()]
        self._read_ahead(queues, lambda queue: queue.end_physical_offset)
        return self._claims_of(
            (unit, queue) for queue in queues + self._batch_queues() if (unit := queue.last_unit)
        )

    def set_last_units(self, units: Iterable[tuple[str, int, cq_unit.Unit]]) -> None:
        """Set the last units of all plain queues, which the caller has read already.

        Args:
            units: Topic, queue id, and last unit of each queue with units.
        """
        self._claims = self._claims_of(
            [
                *((unit, (topic, queue_id)) for topic, queue_id, unit in units),
                *((unit, queue) for queue in self._batch_queues() if (unit := queue.last_unit)),
            ]
        )

    def _batch_queues(self) -> list[ConsumeQueueView | BatchConsumeQueueView]:
        return [
            self.batch_queue(topic, queue_id)
            for topic, ids in self.batch_queue_ids.items()
            for queue_id in ids
        ]

    def _claims_of(
        self,
        units: Iterable[tuple[cq_unit.Unit | cq_unit.BatchUnit, _Queue]],
    ) -> list[tuple[int, int, _Queue]]:
        nominal_end = self._nominal_end
        claims = [
            (unit.physical_offset + unit.size, unit.physical_offset, queue)
            for unit, queue in units
            if 0 <= unit.physical_offset < nominal_end
        ]
        return sorted(claims, key=itemgetter(0, 1), reverse=True)

    @property
    def _nominal_end(self) -> int:
        return self.log.files[-1].nominal_end if self.log.files else 0

    # The end of the log ---------------------------------------------------------------------

    @cached_property
    def tail(self) -> LogTail:
        """The end of the log, as a recovery would find it, but without dropping valid records.

        Everything before the end of the furthest record that a queue points at is part of the log.
        After that, the log is scanned. The first place without a record means:

        * zeros: the end;
        * a queue has a unit for exactly that offset: a message was lost; up to the offset that the
          queues point at, the log is damaged;
        * a broker is running: the end; it is writing there. The very last record may be incomplete:
          it counts if a queue points at it or more data follows;
        * stopped cleanly: the end; the bytes after it were truncated earlier;
        * crashed, and no valid record follows: the end, with a torn tail. The same holds for a last
          record with zeros where topic or properties should be, which no checksum covers;
        * crashed, and the records that follow are older: the end; they were truncated earlier;
        * crashed, and newer records follow: damage; the log continues after it.

        Whatever an interrupted import has appended is after the end.
        """
        return self._end_before_import() or self._find_end()

    @property
    def end_offset(self) -> int:
        """Physical offset after the last record of the log."""
        return self.tail.end_offset

    def _end_before_import(self) -> LogTail | None:
        """Return the end of a log with an unfinished import (``bulk_append``); None without one."""
        begun = bulk_append.read(self._folder).begun
        if begun is None or not self.log.min_offset <= begun.log_end < self._nominal_end:
            return None
        end = begun.log_end
        if self.log.find_record(end, end + 1) == end:
            return None  # it is finished, or a broker appended there
        try:
            name = self.log.file_at(end).name
        except NotInStore:
            return None
        left = self.log.data_end - end
        return LogTail(end, stale=Damage(end, left, Verdict.BAD_ZEROS, name) if left > 0 else None)

    def _find_end(self) -> LogTail:
        tail = self._scanned_end()
        end = tail.end_offset
        if self.state.condition is Condition.CLEAN:
            lost = self._lost_end(end)
            return LogTail(lost) if lost is not None else tail
        if end == self.log.min_offset or self.log.has_data_from(end):
            return tail
        if self.is_live and end <= (self.queue_end or 0):
            return tail
        last = self.log.last_record(self.log.file_at(end - 1), end)
        if last is None:
            return tail
        if self.is_live:
            return LogTail(last.physical_offset)
        own_zeros = 0 if last.property_bytes else record.PROPERTIES_LENGTH.size
        if self.log.data_end >= end - own_zeros:
            return tail
        length = self.log.data_end - last.physical_offset
        name = self.log.file_at(last.physical_offset).name
        torn = Damage(last.physical_offset, length, Verdict.TRUNCATED, name)
        return LogTail(last.physical_offset, torn=torn)

    def _lost_end(self, end: int) -> int | None:
        """Return the former end of a log that ends at ``end`` now; None if it did not end later.

        A unit that points at no record may be damaged itself. But if it points exactly to where
        the next record would be, or into a truncated part of a file, or if there are two such
        units, records were there.
        """
        later_claims = [
            (claimed_end, queue)
            for claimed_end, start, queue in self._claims
            if start >= end and claimed_end <= self._nominal_end
        ]
        if not later_claims:
            return None
        is_blank = self.log.find_record(end, end + 1) == end and self.log.end_of(end) is None
        following = self.log.file_at(end).nominal_end if is_blank else end
        views = [
            self.queue(*queue) if isinstance(queue, tuple) else queue for _, queue in later_claims
        ]
        targets = np.concatenate([view.targets_from(end) for view in views])
        is_lost = len(targets) > 1 or following in targets or not self.log.holds(targets).all()
        return later_claims[0][0] if is_lost else None

    def _scanned_end(self) -> LogTail:
        data_end = self.log.data_end
        if not self.log.files or data_end == self.log.min_offset:
            return LogTail(self.log.min_offset)
        is_crashed = self.state.condition is Condition.CRASHED and not self.is_live
        last_file = self.log.file_at(data_end - 1).start
        start = last_file
        if self.queue_end is not None and not is_crashed:
            start = self.queue_end
        end = timed_until = start
        newest_ms = 0
        for batch in self.log.walk(start, data_end, check_crc=is_crashed):
            good = batch.positions + batch.physical_offset
            # Times are read only where there is damage: most logs have none.
            times = _times_of(batch) if batch.damage else _NO_TIMES
            if batch.damage:
                newest_ms = max(newest_ms, self._newest_ms(timed_until, batch.physical_offset))
            for damage in batch.damage:
                before = int(np.searchsorted(good, damage.physical_offset))
                end = max(end, _end_of(batch, before))
                follower = self._record_after(damage, data_end)
                if follower is None:
                    torn = dataclasses.replace(damage, length=data_end - damage.physical_offset)
                    return LogTail(
                        damage.physical_offset,
                        torn=torn if is_crashed else None,
                        stale=None if is_crashed or self.is_live else torn,
                    )
                is_cut_off = (not is_crashed and self.queue_end is not None) or (
                    follower.store_timestamp < max(newest_ms, int(times[:before].max(initial=0)))
                )
                if is_cut_off:
                    stale = dataclasses.replace(damage, length=data_end - damage.physical_offset)
                    return LogTail(damage.physical_offset, stale=None if self.is_live else stale)
            end = max(end, _end_of(batch, len(good)))
            if batch.damage:
                newest_ms, timed_until = max(newest_ms, int(times.max(initial=0))), end
        return LogTail(end)

    def _newest_ms(self, start: int, stop: int) -> int:
        """Return the newest store time of the records of a range, in ms; 0 without records.

        The range was scanned before, and has no damage.
        """
        batches = self.log.walk(start, stop, check_crc=False)
        return max((int(_times_of(batch).max(initial=0)) for batch in batches), default=0)

    def _record_after(self, damage: Damage, stop: int) -> StoredMessage | None:
        physical_offset = damage.end
        while (physical_offset := self.log.find_record(physical_offset, stop)) < stop:
            try:
                return self.log.message_at(physical_offset)
            except (CorruptRecord, NotInStore):
                physical_offset += 1
        return None

    # Messages -------------------------------------------------------------------------------

    def walk(
        self, start: int | None = None, stop: int | None = None, *, check_crc: bool = True
    ) -> Iterator[LogBatch]:
        """Scan the log from ``start`` to ``stop``, by default all of it.

        See ``CommitLogView.walk``. Bytes before the log have expired and are not damage.
        """
        start = max(start or 0, self.log.min_offset)
        is_end = stop is None or stop >= self.end_offset
        stop = self.end_offset if stop is None else min(stop, self.end_offset)
        return self.log.walk(start, stop, check_crc=check_crc, is_end=is_end)

    def messages(
        self, start: int | None = None, stop: int | None = None
    ) -> Iterator[StoredMessage]:
        """Yield the messages of a range of the log, without damage, which ``walk`` reports."""
        for batch in self.walk(start, stop):
            for position in batch.positions:
                yield record.decode(batch.buffer, int(position), check_crc=False)

    def message_at(self, physical_offset: int, size: int | None = None) -> StoredMessage:
        """Return the message at a physical offset; a known ``size`` saves a read.

        Raises:
            NotInStore: The offset is outside of the log.
            CorruptRecord: No valid record starts there.
        """
        if physical_offset >= self.end_offset:
            raise NotInStore(
                f"physical offset {physical_offset} is after the end of the log, {self.end_offset}"
            )
        return self.log.message_at(physical_offset, size)

    def message_in_queue(self, topic: str, queue_id: int, queue_offset: int) -> StoredMessage:
        """Return the message at a queue offset; of a batch queue, its whole batch.

        Raises:
            NotInStore: The queue has no such offset, or its message has left the log.
            CorruptRecord: The unit does not point at a message of this queue.
        """
        unit: cq_unit.Unit | cq_unit.BatchUnit
        if queue_id in self.batch_queue_ids.get(topic, ()):
            unit = self.batch_queue(topic, queue_id).unit(queue_offset)
            queue_offset = unit.queue_offset
        else:
            unit = self.queue(topic, queue_id).unit(queue_offset)
        if not unit.is_written:
            raise NotInStore(f"queue {topic}/{queue_id} has no message at {queue_offset}")
        message = self.message_at(unit.physical_offset, unit.size)
        if not belongs(message, topic, queue_id, queue_offset):
            raise CorruptRecord(
                f"unit {queue_offset} of queue {topic}/{queue_id} points at message "
                f"{message.queue_offset} of {message.topic}/{message.queue_id}",
                physical_offset=unit.physical_offset,
            )
        return message

    def messages_by_id(self, text: str, topic: str | None = None) -> list[StoredMessage]:
        """Return the messages with an id: one for an offset id, all copies for a unique key.

        Of a batch record that is found, all messages inside are returned.

        Unique keys are looked up in the index, which requires the topic; without a topic, all
        topics of the store are tried. Both kinds of id have the same length, so both are tried.

        Raises:
            CorruptRecord: No message was found, but a record that may be it is damaged
                (known-bugs.md#errors-as-empty-results).
        """
        messages: list[StoredMessage] = []
        problems: list[CorruptRecord] = []
        topics, unknown = ({topic}, []) if topic else self._all_topics
        for name in sorted(topics):
            try:
                hits = self.messages_by_key(name, text)
            except CorruptRecord as error:
                problems.append(error)
                continue
            problems += hits.unreadable
            messages += [message for message in hits.messages if message.has_unique_key(text)]
        try:
            offset_id = message_id.decode_offset_id(text)
            message = self.message_at(offset_id.physical_offset)
        except (ValueError, NotInStore):
            pass
        except CorruptRecord as error:
            problems.append(error)
        else:
            if message.store_host == offset_id.store_host:
                inner = batches.unwrap_if_valid(message)
                messages = inner + [other for other in messages if other not in inner]
        problems += unknown
        if problems and not messages:
            raise problems[0]
        return messages

    @cached_property
    def _all_topics(self) -> tuple[set[str], list[CorruptRecord]]:
        """All topics of files and table, and the error if the table cannot be read."""
        names = {*self.queue_ids, *self.batch_queue_ids}
        try:
            return names | set(self.topics()), []
        except CorruptRecord as error:
            return names, [error]

    def messages_by_key(
        self,
        topic: str,
        key: str,
        begin_ms: int = 0,
        end_ms: int = END_OF_TIME_MS,
    ) -> KeyHits:
        """Return all messages of a topic with a key, or with it as unique key, in log order.

        The index yields candidates; topic, key and store time (``begin_ms <= t <= end_ms``) of each
        message are compared (known-bugs.md#index-seconds, known-bugs.md#index-first-entry,
        known-bugs.md#hash-collisions). There is no limit of 64 messages. Of a batch record, those
        messages inside are returned that have the key; all if it is the unique key of the batch.

        Raises:
            CorruptRecord: An index file that may contain the key is damaged.
        """
        messages: list[StoredMessage] = []
        unreadable: list[CorruptRecord] = []
        for physical_offset in self.index.candidates(
            index_entry.key_of(topic, key), begin_ms, end_ms
        ):
            try:
                message = self.message_at(physical_offset)
            except NotInStore:
                continue  # expired, or truncated by a recovery; its index entry stays
            except CorruptRecord as error:
                unreadable.append(error)
                continue
            if message.topic == topic and begin_ms <= message.store_timestamp <= end_ms:
                messages += (
                    inner
                    for inner in batches.unwrap_if_valid(message)
                    if inner.has_unique_key(key) or key in inner.keys
                )
        return KeyHits(messages, unreadable)

    def offset_by_time(
        self, topic: str, queue_id: int, timestamp_ms: int, boundary: Boundary = Boundary.LOWER
    ) -> int:
        """Return the queue offset for a store time, within ``[min_offset, max_offset]``.

        ``LOWER``: the first message stored at or after the time, ``max_offset`` if there is none.
        ``UPPER``: the last at or before it, ``min_offset`` if there is none. Messages of the same
        time count as one block (known-bugs.md#offset-by-time).
        """
        if queue_id in self.batch_queue_ids.get(topic, ()):
            return self._batch_offset_by_time(topic, queue_id, timestamp_ms, boundary)
        queue = self.queue(topic, queue_id)
        span = range(queue.min_offset, queue.max_offset)
        search = bisect.bisect_left if boundary is Boundary.LOWER else bisect.bisect_right
        index = search(span, timestamp_ms, key=lambda n: self._store_time(queue, n))
        if boundary is Boundary.LOWER:
            return queue.min_offset + index
        return queue.min_offset + max(index - 1, 0)

    def _batch_offset_by_time(
        self, topic: str, queue_id: int, timestamp_ms: int, boundary: Boundary
    ) -> int:
        queue = self.batch_queue(topic, queue_id)
        times = queue.units["store_timestamp"].astype(np.int64)
        if boundary is Boundary.LOWER:
            index = int(np.searchsorted(times, timestamp_ms, "left"))
            return (
                queue.max_offset if index == len(times) else int(queue.units["queue_offset"][index])
            )
        index = int(np.searchsorted(times, timestamp_ms, "right")) - 1
        return int(queue.units["queue_offset"][max(index, 0)]) if len(times) else 0

    def _store_time(self, queue: ConsumeQueueView, queue_offset: int) -> int:
        """Return the store time of a message, or of the nearest readable one before it."""
        stop, count = queue_offset + 1, 1
        while stop > queue.min_offset:
            start = max(stop - count, queue.min_offset)
            _, units = queue.units(start, stop)
            for unit in reversed(units[self.log.holds(units["physical_offset"])]):
                try:
                    message = self.log.message_at(int(unit["physical_offset"]), int(unit["size"]))
                except (CorruptRecord, NotInStore):
                    continue
                return message.store_timestamp
            stop, count = start, _UNITS_AT_ONCE
        return 0

    # Files and tables -----------------------------------------------------------------------

    def log_file_states(self) -> Iterator[LogFileState]:
        """Yield each log file with its first and last message; reads only the ends of files."""
        for file in self.log.files:
            stop = min(file.end, self.end_offset)
            first = self.log.first_record(file) or self._readable(file.start, stop)
            if first is not None and first.physical_offset >= stop:
                first = None  # truncated by a recovery
            last = self.log.last_record(file, stop) if first else None
            used = last.physical_offset + last.store_size if last else file.start
            yield LogFileState(
                file,
                first.physical_offset if first else None,
                last.physical_offset if last else None,
                first.store_timestamp if first else None,
                last.store_timestamp if last else None,
                file.nominal_end - used,
            )

    def _readable(self, start: int, stop: int) -> StoredMessage | None:
        return self._record_after(Damage(start, 0, Verdict.BAD_MAGIC, ""), stop)

    def topics(self) -> dict[str, config_tables.TopicConfig]:
        """Return the topic table. Raises ``CorruptRecord`` if it cannot be read."""
        return config_tables.topics(self._folder)

    def consumer_offsets(self) -> list[config_tables.ConsumerOffset]:
        """Return the offsets of all groups. Raises ``CorruptRecord`` if they cannot be read."""
        return config_tables.consumer_offsets(self._folder)

    def delay_offsets(self) -> dict[int, int]:
        """Return the next queue offset of each delay level: level -> queue offset."""
        return config_tables.delay_offsets(self._folder)

    def delay_progress(self) -> list[tuple[int, int, int]]:
        """Return (level, queue offset of its next message, end of its queue) for each level."""
        offsets = self.delay_offsets()
        levels = {
            *offsets,
            *(number + 1 for number in self.queue_ids.get(names.SCHEDULE_TOPIC, ())),
        }
        return [
            (level, offsets.get(level, 0), self.queue(names.SCHEDULE_TOPIC, level - 1).max_offset)
            for level in sorted(levels)
        ]

    def broker_name(self) -> str:
        """Return the name of the store's broker; empty if the tables do not contain it.

        A 5.x broker has a topic with its name in the topic's name. Every broker has a topic named
        like the broker, with one queue, open for reading, writing and inheriting.
        """
        topics = self.topics()
        for name in topics:
            if name.startswith(names.SYNC_MEMBER_PREFIX):
                return name.removeprefix(names.SYNC_MEMBER_PREFIX)
        own = [
            name
            for name, topic in topics.items()
            if topic.perm == 7 and topic.read_queue_count == 1 and topic.write_queue_count == 1
        ]
        return own[0] if len(own) == 1 else ""

    def subscription_groups(self) -> dict[str, config_tables.Table]:
        """Return the subscription groups as stored."""
        return config_tables.subscription_groups(self._folder)


CONVERT = "reput pipeline convert --from {form} --store {folder} --target DIR writes a plain store"
"""How a store of another form becomes a plain one."""
EXPORT_ROCKSDB = (
    "after the stop, export it with mqadmin of 5.5: rocksDBConfigToJson -p {folder}/config "
    "-t {table} -e {folder}/{file}; then move {folder}/{path} away"
)
"""How a table of RocksDB becomes a file."""


def rocksdb_tables(folder: Folder) -> dict[str, bool]:
    """Return the tables that a Java broker has kept in RocksDB: path -> whether it is in use.

    A broker that has returned from RocksDB to files leaves the folder. So a table is in use if
    there is no file, or if the folder has data that is newer than the file.
    """
    tables = {}
    for path, file in paths.ROCKSDB_TABLES.items():
        if folder.entry(f"{path}/CURRENT") is None:
            continue
        entry = folder.entry(file)
        written_ms = [
            data.modified_ms
            for data in folder.entries(path)
            if data.name.endswith(paths.ROCKSDB_DATA_SUFFIXES) and data.size
        ]
        tables[path] = entry is None or max(written_ms, default=0) > entry.modified_ms
    return tables


def export_rocksdb(folder: Folder, path: str) -> str:
    """Return how a table of RocksDB, of ``rocksdb_tables``, becomes a file."""
    return EXPORT_ROCKSDB.format(
        folder=folder.location,
        table=path.rpartition("/")[2],
        file=paths.ROCKSDB_TABLES[path],
        path=path,
    )


def refuse_foreign(folder: Folder) -> None:
    """Raise an error if the store has its log in DLedger, or queues or tables in RocksDB.

    Raises:
        StoreUnavailable: It does.
    """
    for entry in folder.entries(""):
        if entry.name.startswith(paths.LEDGER_PREFIX) and folder.entries(f"{entry.name}/data"):
            raise StoreUnavailable(
                f"{folder.location} has its log in DLedger ({entry.name}/data is there); reput "
                f"reads plain logs: {CONVERT.format(form='dledger', folder=folder.location)}; if "
                f"only the plain part of the log is wanted, move {entry.name} away"
            )
    for mark, what in paths.ROCKSDB_MARKS.items():
        marked = folder.entry(mark)
        is_topic = marked and marked.is_folder and mark.startswith(f"{paths.CONSUME_QUEUE}/")
        if marked is not None and not is_topic:
            cure = CONVERT.format(form="rocksdb", folder=folder.location)
            raise StoreUnavailable(
                f"{folder.location} keeps its {what} in RocksDB ({mark} is there); reput reads "
                "stores whose queues and tables are files (storeType=default)"
                + ("" if mark == paths.ROCKSDB_SECOND_FORM else f": {cure}")
            )


def refuse_rocksdb_tables(folder: Folder) -> None:
    """Raise an error if a broker's start would miss tables: topics, groups or offsets.

    Raises:
        StoreUnavailable: They are in RocksDB.
    """
    for path, is_in_use in rocksdb_tables(folder).items():
        if is_in_use:
            raise StoreUnavailable(
                f"{folder.location} keeps {path} in RocksDB; {export_rocksdb(folder, path)}"
            )


def process_name(holder: int) -> str:
    """Return a name for the holder of a lock; the lock of an open file has no process id."""
    return f"process {holder}" if holder > 0 else "another process"


def belongs(message: StoredMessage, topic: str, queue_id: int, queue_offset: int) -> bool:
    """Return True if a unit of the given queue and offset may point at a message.

    A light queue (LMQ) points at messages of other topics that name it in INNER_MULTI_DISPATCH.
    """
    if message.topic == topic:
        return message.queue_id == queue_id and message.queue_offset == queue_offset
    queues = message.properties.get(props.INNER_MULTI_DISPATCH, "").split(props.LMQ_SEPARATOR)
    offsets = message.properties.get(props.INNER_MULTI_QUEUE_OFFSET, "").split(props.LMQ_SEPARATOR)
    return (topic, str(queue_offset)) in zip(queues, offsets, strict=False)


def _end_of(batch: LogBatch, count: int) -> int:
    """Return the end of the first ``count`` records of a batch; 0 without any."""
    last = count - 1
    if last < 0:
        return 0
    return batch.physical_offset + int(batch.positions[last]) + int(batch.sizes[last])


def _times_of(batch: LogBatch) -> npt.NDArray[np.int64]:
    """Return the store times of the records of a batch, in ms."""
    return batch.columns().numbers("store_timestamp") if batch.sizes.size else _NO_TIMES
