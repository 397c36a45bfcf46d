"""A store folder for reading: one view of log, queues, index and tables that agree with each other.

    commit log     min_offset ........................ end_offset ........ data_end
                   | records, now and then damage      | torn | stale     | zeros

``end_offset`` is where the log ends, which no file says. A broker knows it from its queues and from
walking the tail, and so does this reader (``_find_end``): what lies behind is the torn tail of a
crash, or records that an earlier recovery cut off and left on disk (known-bugs.md#stale-tail).
Neither is part of the log; both are reported.

Never writes, never locks, never creates (known-bugs.md#deleted-topics); takes file sizes from the
files.
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
from typing import NamedTuple

import numpy as np

from reput.errors import CorruptRecord, NotInStore, ReputError, StoreUnavailable
from reput.format import (
    checkpoint_page,
    cq_unit,
    index_entry,
    message as record,
    message_id,
    names,
    properties as props,
)
from reput.format.message import StoredMessage, Verdict
from reput.store import bulk_append, config_tables, paths
from reput.store.commit_log_view import CommitLogView, Damage, LogBatch, LogFile
from reput.store.consume_queue_view import (
    BatchConsumeQueueView,
    ConsumeQueueView,
    ExtView,
)
from reput.store.files import Folder, open_folder
from reput.store.index_view import IndexView

END_OF_TIME_MS = (1 << 63) - 1
_UNITS_AT_ONCE = 4096


class Boundary(enum.Enum):
    """Which message an offset by time names (known-bugs.md#offset-by-time)."""

    LOWER = "lower"
    """The first at or after the time; behind the last if all are before it."""
    UPPER = "upper"
    """The last at or before the time; the first if all are after it."""


class Condition(enum.Enum):
    """How the broker left the store."""

    CLEAN = "clean"
    CRASHED = "crashed"
    """``abort`` is there: not stopped, or copied while running."""
    RUNNING = "running"
    """A process of this machine holds the lock."""


@dataclass(frozen=True, slots=True)
class StoreState:
    """What the folder says of its broker."""

    condition: Condition
    has_abort: bool
    lock_holder: int | None
    """Process id."""
    checkpoint: checkpoint_page.Checkpoint | None
    checkpoint_problem: CorruptRecord | None = None
    """Why a checkpoint that is there cannot be read; no reason not to read the rest."""


@dataclass(frozen=True, slots=True)
class LogTail:
    """Where the log ends and what lies behind."""

    end_offset: int
    torn: Damage | None = None
    """What a crash left of the last record."""
    stale: Damage | None = None
    """Readable records that are no longer part of the log."""


@dataclass(frozen=True, slots=True)
class LogFileState:
    """A log file and what its records say."""

    file: LogFile
    first_offset: int | None
    """Physical offset of the first message; None if there is none."""
    last_offset: int | None
    """Physical offset of the last message."""
    min_store_timestamp: int | None
    max_store_timestamp: int | None
    """Of the last message: store times only grow."""
    wasted_bytes: int
    """Behind the last message: a blank, or room not used yet."""


class KeyHits(NamedTuple):
    """What a key lookup found."""

    messages: list[StoredMessage]
    """In log order, each checked."""
    unreadable: list[CorruptRecord]
    """Damaged records that the index proposed: they may or may not have been hits."""


class StoreReader:
    """Read-only access to a store folder; open with ``StoreReader.open``."""

    def __init__(
        self, folder: Folder, *, allow_live: bool = False, holds_lock: bool = False
    ) -> None:
        """Not for most callers: see ``open``.

        Args:
            folder: The store.
            allow_live: See ``open``.
            holds_lock: The lock on the folder is the caller's own.
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
            location: Local path or URI of the folder that holds ``commitlog``.
            allow_live: Read although a broker is running on it; reading then stops at the last
                whole record.

        Raises:
            StoreUnavailable: Not a store, in RocksDB mode, or in use without ``allow_live``.
        """
        folder = open_folder(location)
        refuse_rocksdb(folder)
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
        """The folder as it was given."""
        return self._folder.location

    @property
    def folder(self) -> Folder:
        """The folder's files."""
        return self._folder

    @cached_property
    def state(self) -> StoreState:
        """How the broker left the store."""
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
        """Whether a broker may be writing: it holds the lock, or left no sign of having stopped."""
        is_stopped = self.state.condition is Condition.CLEAN
        return self.state.condition is Condition.RUNNING or (self._allow_live and not is_stopped)

    # Queues ---------------------------------------------------------------------------------

    @cached_property
    def queue_ids(self) -> dict[str, list[int]]:
        """The queues that have files: topic -> queue ids, in order."""
        return self._queues_in(paths.CONSUME_QUEUE)

    @cached_property
    def batch_queue_ids(self) -> dict[str, list[int]]:
        """The batch queues of 5.x that have files."""
        return self._queues_in(paths.BATCH_CONSUME_QUEUE)

    def _queues_in(self, family: str) -> dict[str, list[int]]:
        found: dict[str, list[int]] = {}
        for topic in self._folder.entries(family):
            if not topic.is_folder:
                continue
            ids = [
                queue_id
                for entry in self._folder.entries(f"{family}/{topic.name}")
                if entry.is_folder and (queue_id := paths.parse_queue_id(entry.name)) is not None
            ]
            if ids:
                found[topic.name] = sorted(ids)
        return found

    def queue(self, topic: str, queue_id: int) -> ConsumeQueueView:
        """Return a queue; one without files is empty, not an error."""
        key = (topic, queue_id)
        if key not in self._queue_views:
            self._queue_views[key] = ConsumeQueueView(
                self._folder, topic, queue_id, self.log.min_offset
            )
        return self._queue_views[key]

    def learn_starts(self, queues: Iterable[ConsumeQueueView | BatchConsumeQueueView]) -> None:
        """Find out where queues begin, many at a time where each costs requests."""
        self._ask(queues, lambda queue: queue.min_offset)

    def _ask(
        self,
        queues: Iterable[ConsumeQueueView | BatchConsumeQueueView],
        question: Callable[[ConsumeQueueView | BatchConsumeQueueView], object],
    ) -> None:
        """Let queues find out what they keep, at once where that helps.

        What is wrong with one is told by whoever asks it next.
        """

        def ask(queue: ConsumeQueueView | BatchConsumeQueueView) -> None:
            with contextlib.suppress(ReputError):
                question(queue)

        at_once = self._folder.reads_at_once
        if at_once > 1:
            with ThreadPoolExecutor(at_once) as pool:
                deque(pool.map(ask, queues), maxlen=0)

    def batch_queue(self, topic: str, queue_id: int) -> BatchConsumeQueueView:
        """Return a batch queue of 5.x."""
        key = (topic, queue_id)
        if key not in self._batch_queue_views:
            self._batch_queue_views[key] = BatchConsumeQueueView(
                self._folder, topic, queue_id, self.log.min_offset
            )
        return self._batch_queue_views[key]

    def extension(self, topic: str, queue_id: int) -> ExtView:
        """Return a queue's extension units."""
        return ExtView(self._folder, topic, queue_id)

    def queues(self) -> Iterator[ConsumeQueueView]:
        """Yield every queue that has files, by topic and number."""
        for topic, ids in self.queue_ids.items():
            for queue_id in ids:
                yield self.queue(topic, queue_id)

    @cached_property
    def queue_end(self) -> int | None:
        """How far the queues reach into the log: the end of the furthest record one points at."""
        furthest: int | None = None
        for claimed, start, _ in self._claims:
            if furthest is not None and claimed <= furthest:
                break
            # Where no record stands, the log or the unit is damaged: ``_lost_end`` finds out.
            furthest = max(self.log.end_of(start) or 0, furthest or 0) or None
        return furthest

    @cached_property
    def _claims(self) -> list[tuple[int, int, ConsumeQueueView | BatchConsumeQueueView]]:
        """Where the last record of each queue ends and starts in the log, the furthest first."""
        queues: list[ConsumeQueueView | BatchConsumeQueueView] = [*self.queues()]
        self._ask(queues, lambda queue: queue.end_physical_offset)
        return self._claims_of(
            (unit, queue) for queue in queues + self._batch_queues() if (unit := queue.last_unit)
        )

    def know_last_units(self, units: Iterable[tuple[str, int, cq_unit.Unit]]) -> None:
        """Take the last units of all plain queues from somebody who has read them already.

        Args:
            units: Topic, queue id, and unit of each queue that has one.
        """
        self._claims = self._claims_of(
            [
                *((unit, self.queue(topic, queue_id)) for topic, queue_id, unit in units),
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
        units: Iterable[
            tuple[cq_unit.Unit | cq_unit.BatchUnit, ConsumeQueueView | BatchConsumeQueueView]
        ],
    ) -> list[tuple[int, int, ConsumeQueueView | BatchConsumeQueueView]]:
        claims = [
            (unit.physical_offset + unit.size, unit.physical_offset, queue)
            for unit, queue in units
            if 0 <= unit.physical_offset < self._nominal_end
        ]
        return sorted(claims, key=lambda claim: claim[:2], reverse=True)

    @property
    def _nominal_end(self) -> int:
        return self.log.files[-1].nominal_end if self.log.files else 0

    # The end of the log ---------------------------------------------------------------------

    @cached_property
    def tail(self) -> LogTail:
        """Where the log ends, as a recovery would find it but without giving up valid records.

        Up to where the queues reach everything counts. Behind that the log is walked, and at the
        first thing that is no record:

        * zeros: the end;
        * a queue has a unit for just there: a message was lost, and up to where the queues point
          is damage;
        * a broker is running: the end, it is writing there. The very last record may be half
          written: it counts when a queue points at it or something follows;
        * stopped cleanly: the end; what follows was cut off earlier;
        * crashed, and nothing readable follows: the end, with a torn tail. So is a last record that
          ends in zeros where topic or properties should be, which no checksum covers;
        * crashed, and what follows is older than what is before: the end, cut off earlier;
        * crashed, and newer records follow: damage, the log goes on behind it.

        What an import was killed over stands behind the end, whatever it looks like.
        """
        return self._end_before_import() or self._find_end()

    @property
    def end_offset(self) -> int:
        """Physical offset behind the last record of the log."""
        return self.tail.end_offset

    def _end_before_import(self) -> LogTail | None:
        """Return the end of a log to which an import was begun and not done (``bulk_append``)."""
        begun = bulk_append.read(self._folder).begun
        if begun is None or not self.log.min_offset <= begun.log_end < self._nominal_end:
            return None
        end = begun.log_end
        if self.log.find_record(end, end + 1) == end:
            return None  # it is done, or a broker went on there
        try:
            name = self.log.file_at(end).name
        except NotInStore:
            return None
        left = self.log.data_end - end
        return LogTail(end, stale=Damage(end, left, Verdict.BAD_ZEROS, name) if left > 0 else None)

    def _find_end(self) -> LogTail:
        found = self._walked_end()
        end = found.end_offset
        if self.state.condition is Condition.CLEAN:
            lost = self._lost_end(end)
            return LogTail(lost) if lost is not None else found
        if end == self.log.min_offset or self.log.data_goes_on(end):
            return found
        if self.is_live and end <= (self.queue_end or 0):
            return found
        last = self.log.last_record(self.log.file_at(end - 1), end)
        if last is None:
            return found
        if self.is_live:
            return LogTail(last.physical_offset)
        own_zeros = 0 if last.property_bytes else record.PROPERTIES_LENGTH.size
        if self.log.data_end >= end - own_zeros:
            return found
        length = self.log.data_end - last.physical_offset
        name = self.log.file_at(last.physical_offset).name
        torn = Damage(last.physical_offset, length, Verdict.TRUNCATED, name)
        return LogTail(last.physical_offset, torn=torn)

    def _lost_end(self, end: int) -> int | None:
        """Return how far the log went that ends now at ``end``, if it went further.

        A unit that points at what is no record may be damaged itself. But if it points just where
        the next record would have been, or into what is cut off a file, or there are two of them,
        then records were there.
        """
        ahead = [
            (claimed, queue)
            for claimed, start, queue in self._claims
            if start >= end and claimed <= self._nominal_end
        ]
        if not ahead:
            return None
        is_blank = self.log.find_record(end, end + 1) == end and self.log.end_of(end) is None
        following = self.log.file_at(end).nominal_end if is_blank else end
        targets = np.concatenate([queue.targets_from(end) for _, queue in ahead])
        is_lost = len(targets) > 1 or following in targets or not self.log.holds(targets).all()
        return ahead[0][0] if is_lost else None

    def _walked_end(self) -> LogTail:
        data_end = self.log.data_end
        if not self.log.files or data_end == self.log.min_offset:
            return LogTail(self.log.min_offset)
        is_crashed = self.state.condition is Condition.CRASHED and not self.is_live
        last_file = self.log.file_at(data_end - 1).start
        start = last_file
        if self.queue_end is not None and not is_crashed:
            start = self.queue_end
        end = start
        newest_ms = 0
        for batch in self.log.walk(start, data_end, check_crc=is_crashed):
            good = batch.positions + batch.physical_offset
            for damage in batch.damage:
                before = int(np.searchsorted(good, damage.physical_offset))
                end, newest_ms = self._advance(batch, before, end, newest_ms)
                follower = self._record_after(damage, data_end)
                if follower is None:
                    torn = dataclasses.replace(damage, length=data_end - damage.physical_offset)
                    return LogTail(
                        damage.physical_offset,
                        torn=torn if is_crashed else None,
                        stale=None if is_crashed or self.is_live else torn,
                    )
                is_cut_off = (not is_crashed and self.queue_end is not None) or (
                    follower.store_timestamp < newest_ms
                )
                if is_cut_off:
                    stale = dataclasses.replace(damage, length=data_end - damage.physical_offset)
                    return LogTail(damage.physical_offset, stale=None if self.is_live else stale)
            end, newest_ms = self._advance(batch, len(good), end, newest_ms)
        return LogTail(max(end, start))

    def _advance(self, batch: LogBatch, count: int, end: int, newest_ms: int) -> tuple[int, int]:
        """Move the end behind the first ``count`` records of a batch."""
        if not count:
            return end, newest_ms
        times = batch.columns().numbers("store_timestamp")[:count]
        last = count - 1
        behind = batch.physical_offset + int(batch.positions[last]) + int(batch.sizes[last])
        return max(end, behind), max(newest_ms, int(times.max()))

    def _record_after(self, damage: Damage, stop: int) -> StoredMessage | None:
        at = damage.end
        while (at := self.log.find_record(at, stop)) < stop:
            try:
                return self.log.message_at(at)
            except (CorruptRecord, NotInStore):
                at += 1
        return None

    # Messages -------------------------------------------------------------------------------

    def walk(
        self, start: int | None = None, stop: int | None = None, *, check_crc: bool = True
    ) -> Iterator[LogBatch]:
        """Walk the log from ``start`` to ``stop``, all of it by default.

        See ``CommitLogView.walk``. What is before the log has expired and is no damage.
        """
        start = max(start or 0, self.log.min_offset)
        is_end = stop is None or stop >= self.end_offset
        stop = self.end_offset if stop is None else min(stop, self.end_offset)
        return self.log.walk(start, stop, check_crc=check_crc, is_end=is_end)

    def messages(
        self, start: int | None = None, stop: int | None = None
    ) -> Iterator[StoredMessage]:
        """Yield the messages of a range of the log; damage is left out (``walk`` reports it)."""
        for batch in self.walk(start, stop):
            for position in batch.positions:
                yield record.decode(batch.buffer, int(position), check_crc=False)

    def message_at(self, physical_offset: int, size: int | None = None) -> StoredMessage:
        """Return the message at a physical offset; ``size`` saves a read where it is known.

        Raises:
            NotInStore: The offset lies outside the log.
            CorruptRecord: No undamaged record starts there.
        """
        if physical_offset >= self.end_offset:
            raise NotInStore(
                f"physical offset {physical_offset} is behind the end of the log, {self.end_offset}"
            )
        return self.log.message_at(physical_offset, size)

    def message_in_queue(self, topic: str, queue_id: int, queue_offset: int) -> StoredMessage:
        """Return the message a queue has under an offset; in a batch queue, its whole batch.

        Raises:
            NotInStore: The queue has no such offset, or its message has left the log.
            CorruptRecord: The unit points at something else than a message of this queue.
        """
        unit: cq_unit.Unit | cq_unit.BatchUnit
        if queue_id in self.batch_queue_ids.get(topic, ()):
            unit = self.batch_queue(topic, queue_id).unit(queue_offset)
            queue_offset = unit.queue_offset
        else:
            unit = self.queue(topic, queue_id).unit(queue_offset)
        if not unit.is_written:
            raise NotInStore(f"queue {topic}/{queue_id} holds no message at {queue_offset}")
        found = self.message_at(unit.physical_offset, unit.size)
        if not belongs(found, topic, queue_id, queue_offset):
            raise CorruptRecord(
                f"unit {queue_offset} of queue {topic}/{queue_id} points at message "
                f"{found.queue_offset} of {found.topic}/{found.queue_id}",
                physical_offset=unit.physical_offset,
            )
        return found

    def messages_by_id(self, text: str, topic: str | None = None) -> list[StoredMessage]:
        """Return the messages with an id: one for an offset id, copies too for a unique key.

        Unique keys are looked up in the index, which needs the topic; without one every topic of
        the store is tried. Both kinds of id have the same lengths, so both are tried.

        Raises:
            CorruptRecord: Nothing was found, but what may be it cannot be read
            (known-bugs.md#errors-as-empty-results).
        """
        found: list[StoredMessage] = []
        problems: list[CorruptRecord] = []
        topics, unknown = ({topic}, []) if topic else self._all_topics
        for name in sorted(topics):
            try:
                hits = self.messages_by_key(name, text)
            except CorruptRecord as error:
                problems.append(error)
                continue
            problems += hits.unreadable
            found += [one for one in hits.messages if one.unique_key == text]
        try:
            place = message_id.decode_offset_id(text)
            one = self.message_at(place.physical_offset)
        except (ValueError, NotInStore):
            pass
        except CorruptRecord as error:
            problems.append(error)
        else:
            if one.store_host == place.store_host and one not in found:
                found.insert(0, one)
        problems += unknown
        if problems and not found:
            raise problems[0]
        return found

    @cached_property
    def _all_topics(self) -> tuple[set[str], list[CorruptRecord]]:
        """Every topic that is known, and why there may be more."""
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
        """Return the messages of a topic that carry a key, or have it as unique key, in log order.

        The index only proposes; topic, key and store time (``begin_ms <= t <= end_ms``) are checked
        on each message (known-bugs.md#index-seconds, known-bugs.md#index-first-entry,
        known-bugs.md#hash-collisions). All of them: no limit of 64.

        Raises:
            CorruptRecord: An index file that may hold the key is damaged.
        """
        found: list[StoredMessage] = []
        unreadable: list[CorruptRecord] = []
        for physical_offset in self.index.candidates(
            index_entry.key_of(topic, key), begin_ms, end_ms
        ):
            try:
                one = self.message_at(physical_offset)
            except NotInStore:
                continue  # expired, or cut off by a recovery: index entries stay
            except CorruptRecord as error:
                unreadable.append(error)
                continue
            is_hit = one.topic == topic and (key == one.unique_key or key in one.keys)
            if is_hit and begin_ms <= one.store_timestamp <= end_ms:
                found.append(one)
        return KeyHits(found, unreadable)

    def offset_by_time(
        self, topic: str, queue_id: int, timestamp_ms: int, boundary: Boundary = Boundary.LOWER
    ) -> int:
        """Return the queue offset that a time names, within ``[min_offset, max_offset]``.

        ``LOWER``: the first message stored at or after it, ``max_offset`` if none. ``UPPER``: the
        last at or before it, ``min_offset`` if none. Equal times count as one block
        (known-bugs.md#offset-by-time).
        """
        if queue_id in self.batch_queue_ids.get(topic, ()):
            return self._batch_offset_by_time(topic, queue_id, timestamp_ms, boundary)
        queue = self.queue(topic, queue_id)
        span = range(queue.min_offset, queue.max_offset)
        search = bisect.bisect_left if boundary is Boundary.LOWER else bisect.bisect_right
        place = search(span, timestamp_ms, key=lambda n: self._store_time(queue, n))
        if boundary is Boundary.LOWER:
            return queue.min_offset + place
        return queue.min_offset + max(place - 1, 0)

    def _batch_offset_by_time(
        self, topic: str, queue_id: int, timestamp_ms: int, boundary: Boundary
    ) -> int:
        queue = self.batch_queue(topic, queue_id)
        times = queue.units["store_timestamp"].astype(np.int64)
        if boundary is Boundary.LOWER:
            place = int(np.searchsorted(times, timestamp_ms, "left"))
            return (
                queue.max_offset if place == len(times) else int(queue.units["queue_offset"][place])
            )
        place = int(np.searchsorted(times, timestamp_ms, "right")) - 1
        return int(queue.units["queue_offset"][max(place, 0)]) if len(times) else 0

    def _store_time(self, queue: ConsumeQueueView, queue_offset: int) -> int:
        """Return a message's store time; if it cannot be read, that of the nearest before it."""
        stop, count = queue_offset + 1, 1
        while stop > queue.min_offset:
            start = max(stop - count, queue.min_offset)
            _, units = queue.units(start, stop)
            for unit in reversed(units[self.log.holds(units["physical_offset"])]):
                try:
                    found = self.log.message_at(int(unit["physical_offset"]), int(unit["size"]))
                except (CorruptRecord, NotInStore):
                    continue
                return found.store_timestamp
            stop, count = start, _UNITS_AT_ONCE
        return 0

    # Files and tables -----------------------------------------------------------------------

    def log_file_states(self) -> Iterator[LogFileState]:
        """Yield each log file with its first and last message; reads heads and tails only."""
        for file in self.log.files:
            stop = min(file.end, self.end_offset)
            first = self.log.first_record(file) or self._readable(file.start, stop)
            if first is not None and first.physical_offset >= stop:
                first = None  # cut off by a recovery
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

    def _readable(self, at: int, stop: int) -> StoredMessage | None:
        return self._record_after(Damage(at, 0, Verdict.BAD_MAGIC, ""), stop)

    def topics(self) -> dict[str, config_tables.TopicConfig]:
        """Return the topic table. Raises ``CorruptRecord`` if it cannot be read."""
        return config_tables.topics(self._folder)

    def consumer_offsets(self) -> list[config_tables.ConsumerOffset]:
        """Return every group's offsets. Raises ``CorruptRecord`` if they cannot be read."""
        return config_tables.consumer_offsets(self._folder)

    def delay_offsets(self) -> dict[int, int]:
        """Return how far each delay level has delivered: level -> queue offset."""
        return config_tables.delay_offsets(self._folder)

    def delay_progress(self) -> list[tuple[int, int, int]]:
        """Return (level, next queue offset to deliver, queue offset of the end) for each level."""
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
        """Return the name of the broker that keeps this store; empty if its tables do not tell.

        A 5.x broker has a topic that names it; any broker has one of its own name, with one queue,
        open for reading, writing and inheriting.
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
        """Return the group table as stored."""
        return config_tables.subscription_groups(self._folder)


def refuse_rocksdb(folder: Folder) -> None:
    """Check that queues and tables are kept in files.

    Raises:
        StoreUnavailable: They are kept in RocksDB.
    """
    for mark, what in paths.ROCKSDB_MARKS.items():
        entry = folder.entry(mark)
        is_topic = mark.startswith(f"{paths.CONSUME_QUEUE}/") and entry and entry.is_folder
        if entry is not None and not is_topic:
            raise StoreUnavailable(
                f"{folder.location} keeps its {what} in RocksDB ({mark} is there); reput reads "
                "stores whose queues and tables are files (storeType=default)"
            )


def process_name(holder: int) -> str:
    """Return how to call the holder of a lock: one that belongs to an open file has no process."""
    return f"process {holder}" if holder > 0 else "another process"


def belongs(message: StoredMessage, topic: str, queue_id: int, queue_offset: int) -> bool:
    """Whether a message is what a queue's unit should point at.

    A light queue (LMQ) points at messages of other topics that name it in INNER_MULTI_DISPATCH.
    """
    if message.topic == topic:
        return message.queue_id == queue_id and message.queue_offset == queue_offset
    queues = message.properties.get(props.INNER_MULTI_DISPATCH, "").split(props.LMQ_SEPARATOR)
    offsets = message.properties.get(props.INNER_MULTI_QUEUE_OFFSET, "").split(props.LMQ_SEPARATOR)
    return (topic, str(queue_offset)) in zip(queues, offsets, strict=False)
