"""What a dispatch task does with its range of the log: survey it, make its units, make an index.

The bytes come from the kernel that a broker dispatches with, on a state block of the task's own:
for units one that knows no index, for the index one whose queues have everything already. The
kernel stops for what only Python does, as in ``reput.store.dispatch``, which this mirrors.

Nothing here knows Spark, and nothing writes a file.
"""

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from reput.errors import ReputError
from reput.format import (
    cq_unit,
    index_entry,
    java,
    kernels,
    message as record,
    names,
    properties as props,
    sys_flag as flags,
)
from reput.format.kernels import hot, hot_twin, state
from reput.format.message import StoredMessage
from reput.spark import plan
from reput.spark.jobs import dispatch_plan
from reput.spark.jobs.dispatch_plan import IndexFile, QueueKey, Share, Stand, Survey
from reput.store import paths
from reput.store.commit_log_view import CommitLogView, LogBatch
from reput.store.config import StoreConfig
from reput.store.dispatch import light_queues_of
from reput.store.files import Folder, open_folder
from reput.store.hot_state import HotState

_HAS_ALL = 1 << 62
"""The next queue offset of a queue that wants no unit."""
_QUEUE_ID_MAX = 1 << 16
"""Kernels find a queue in an array by its id; from this one on, damage mostly, it is Python's."""
_SCRATCH_ENTRIES = 1 << 15
"""Entries are counted by putting them into memory of this size, again and again."""
_COUNT_ALL = 1 << 62
_TRANSACTION_STEP = flags.TRANSACTION_PREPARED
"""The one bit that prepared and rolled-back records have, and queued ones lack."""
BATCH = "they belong to batch queues (queue.type=BatchCQ), which are not kept here"
"""Why records are in no queue that 5.x keeps in queues of another kind."""
_LIGHT_MARK = props.INNER_MULTI_DISPATCH.encode()


class StoreChanged(ReputError):
    """The log is not what it was when the job began; run it again."""

    retriable = True


@dataclass(frozen=True)
class Source:
    """What every task needs to know of the log."""

    store: str
    config: StoreConfig
    end: int
    """Where the log ends."""
    topics: frozenset[str] | None
    """Of which queues are wanted; None: of all, and their light queues."""
    tombstones: Mapping[str, int]
    """Topic -> physical offset before which its messages are in no queue."""
    torn: tuple[tuple[int, int], ...]
    """Spans of records that a crash has torn: they are left out."""
    batch_topics: frozenset[str] = frozenset()
    """Topics whose queues are of another kind, and get no plain ones beside."""

    @cached_property
    def folder(self) -> Folder:
        """The store's folder."""
        return open_folder(self.store, commit_log_folders=self.config.commit_log_folders)

    @cached_property
    def log(self) -> CommitLogView:
        """The log."""
        return CommitLogView(self.folder)

    def __getstate__(self) -> dict[str, object]:
        """Leave what was opened here: a task opens its own."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__}

    def is_wanted(self, topic: str, range_start: int) -> bool:
        """Whether a topic's records in a range get units; ranges are cut at tombstones."""
        is_named = self.topics is None or topic in self.topics
        is_named = is_named and topic not in self.batch_topics
        return is_named and self.tombstones.get(topic, 0) <= range_start


class _Walk:
    """The dispatch kernel on the records of ranges; a subclass provides what it stops for."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._hot = HotState()
        self._block = self._hot.block
        self._delays = self._hot.set_delays(source.config.delay_levels_ms)
        self._idle_row = np.zeros(state.QUEUE_WORDS, np.int64)
        self._idle_row[state.QUEUE_MAX_OFFSET] = _HAS_ALL
        self._idle_row[state.QUEUE_NEXT_OFFSET] = _HAS_ALL
        self._named: set[bytes] = set()
        self._is_done = False

    def run(self, start: int, stop: int) -> None:
        """Walk the records that start in ``[start, stop)``, which is within one file."""
        at = self._source.log.part_start(start, stop)
        for low, high in plan.without_spans([(at, stop)], self._source.torn):
            self._run_piece(low, high)

    def _run_piece(self, low: int, high: int) -> None:
        file = self._source.log.file_at(low)
        path = f"{paths.COMMIT_LOG}/{file.name}"
        # To the end of the file: a record may go on behind the range. Only what is read costs.
        data = np.frombuffer(self._source.folder.read(path, low - file.start), np.uint8)
        data = data[: self._source.end - low]
        address, block = hot.address_of(data), self._block
        block[state.INPUT_POSITION] = 0
        stop = min(high - low, len(data))
        while not self._is_done and block[state.INPUT_POSITION] < stop:
            file_end = file.nominal_end - low
            hot.dispatch(self._hot.address, address, stop, len(data), file_end, low)
            reason, at = block[state.STOP], block[state.INPUT_POSITION]
            if reason == state.STOP_DONE:
                break
            if reason in (state.STOP_DAMAGE, state.STOP_PART):
                block[state.INPUT_POSITION] = kernels.find_record(
                    data.data, at + 1, physical_offset=low, file_end=file_end
                )
            elif reason == state.STOP_LIGHT:
                self._put_light(self._decode(hot.bytes_of_record(block[state.STOP_ROW])))
            else:
                raw = hot.bytes_of_record(address + at)
                one = self._decode(raw)
                if not self._provide(reason, one):
                    self._put_slowly(one)
                    block[state.INPUT_POSITION] = at + len(raw)

    def _decode(self, raw: bytes) -> StoredMessage:
        return record.decode(raw, check_crc=False)

    def _provide(self, reason: int, one: StoredMessage) -> bool:
        """Provide what the kernel stopped for; False if the record is Python's."""
        if reason == state.STOP_TOPIC:
            name = java.encode_utf8(one.topic)
            if name in self._named:
                return False  # the record spells it otherwise
            self._named.add(name)
            self._hot.topic(name)
            return True
        if reason == state.STOP_QUEUE:
            if not 0 <= one.queue_id < _QUEUE_ID_MAX:
                return False
            row = self._hot.topic(java.encode_utf8(one.topic))
            row.set_queue(one.queue_id, hot.address_of(self._idle_row))
            return True
        return False

    def _put_light(self, one: StoredMessage) -> None:
        raise AssertionError("light queues are off")

    def _put_slowly(self, one: StoredMessage) -> None:
        raise NotImplementedError


# --- index -----------------------------------------------------------------------------------


class IndexWalk(_Walk):
    """Makes the entries of one index file, after so many that are in the file before.

    Args:
        source: The log.
        file: Which entries. None: all are skipped, that is counted.
    """

    def __init__(self, source: Source, file: IndexFile | None) -> None:
        super().__init__(source)
        config = source.config
        self._slots = config.max_hash_slot_num
        self._entry_max = config.max_index_num
        self._number = file.number if file is not None else 0
        self._left = file.skipped if file is not None else _COUNT_ALL
        self._scratch = np.zeros(index_entry.entry_position(_SCRATCH_ENTRIES + 1, 1), np.uint8)
        self.data: npt.NDArray[np.uint8] | None = None
        """The file's bytes, once there is an entry."""
        block = self._block
        block[state.INDEX_IS_ON] = 1
        block[state.INDEX_HAS_TAGS] = config.index_tags
        seed = file.seed if file is not None else None
        block[state.INDEX_END_OFFSET] = -1 if seed is None else seed.physical_offset
        block[state.INDEX_END_TIMESTAMP] = 0 if seed is None else seed.store_timestamp
        self._enter_scratch()

    def _enter_scratch(self) -> None:
        block = self._block
        block[state.INDEX_ADDRESS] = hot.address_of(self._scratch)
        block[state.INDEX_SLOTS] = 1
        block[state.INDEX_NEXT] = 1
        limit = min(self._left, _SCRATCH_ENTRIES) + 1
        block[state.INDEX_LIMIT] = block[state.INDEX_ENTRIES_MAX] = limit

    def _settle(self) -> int:
        """Take what was skipped off what is to be skipped; return how much it was."""
        used = self._block[state.INDEX_NEXT] - 1
        self._left -= used
        self._enter_scratch()
        return used

    def _begin(self) -> None:
        """Make the file; its times begin where the entry before it is, as in Java."""
        block = self._block
        size = index_entry.entry_position(self._entry_max, self._slots)
        self.data = np.zeros(size, np.uint8)  # the system gives what is touched, and no more
        is_first = self._number == 0
        timestamp = 0 if is_first else block[state.INDEX_END_TIMESTAMP]
        offset = 0 if is_first else block[state.INDEX_END_OFFSET]
        block[state.INDEX_ADDRESS] = hot.address_of(self.data)
        block[state.INDEX_SLOTS] = self._slots
        block[state.INDEX_SLOTS_USED] = 0
        block[state.INDEX_NEXT] = 1
        block[state.INDEX_LIMIT] = block[state.INDEX_ENTRIES_MAX] = self._entry_max
        block[state.INDEX_BEGIN_TIMESTAMP] = timestamp
        block[state.INDEX_BEGIN_OFFSET] = offset

    def _provide(self, reason: int, one: StoredMessage) -> bool:
        if reason == state.STOP_INDEX and self.data is None:
            return self._settle() > 0
        return super()._provide(reason, one)

    def _put_slowly(self, one: StoredMessage) -> None:
        if flags.transaction_type(one.sys_flag) == flags.TRANSACTION_ROLLBACK:
            return
        block = self._block
        has_tags = bool(block[state.INDEX_HAS_TAGS])
        if self.data is None:
            self._settle()
        for key in record.index_keys(one, has_tags=has_tags):
            if self._left:
                self._left -= 1
                block[state.INDEX_END_OFFSET] = one.physical_offset
                block[state.INDEX_END_TIMESTAMP] = one.store_timestamp
                continue
            if self.data is None:
                self._begin()
            if block[state.INDEX_NEXT] >= self._entry_max:
                self._is_done = True
                break
            hot_twin.put_entry(self._hot.address, key, one.physical_offset, one.store_timestamp)
        if self.data is None:
            self._enter_scratch()
        else:
            hot_twin.write_index_header(self._hot.address)

    @property
    def is_done(self) -> bool:
        """Whether the file is full and more entries were met."""
        return self._is_done

    @property
    def counted(self) -> int:
        """Entries so far, if all are counted."""
        self._settle()
        return _COUNT_ALL - self._left

    @property
    def last_indexed(self) -> tuple[int, int] | None:
        """Physical offset and store time of the last record with entries."""
        block = self._block
        offset = block[state.INDEX_END_OFFSET]
        return (offset, block[state.INDEX_END_TIMESTAMP]) if offset >= 0 else None

    @property
    def entry_count(self) -> int:
        """Entries in the file."""
        return 0 if self.data is None else self._block[state.INDEX_NEXT] - 1


# --- units -----------------------------------------------------------------------------------


class _Queue:
    """A queue's units of one range, in memory of their exact size."""

    def __init__(self, share: Share, address: int, row: memoryview) -> None:
        self._row = row
        self._is_fresh = share.before.is_fresh
        self._stop = share.stop
        self.units = np.zeros((share.stop - share.first) * cq_unit.SIZE, np.uint8)
        self.address = address
        row[state.QUEUE_MAX_OFFSET] = row[state.QUEUE_NEXT_OFFSET] = share.before.max_offset
        row[state.QUEUE_END_PHYSICAL] = share.before.end
        row[state.QUEUE_TAIL_OFFSET] = share.first
        row[state.QUEUE_TAIL_LIMIT] = share.stop - share.first
        if share.first == share.before.max_offset:
            self._let_put()

    def _let_put(self) -> None:
        self._row[state.QUEUE_TAIL] = hot.address_of(self.units)

    @property
    def stand(self) -> Stand:
        row = self._row
        # Kernels put units and say nothing of it but here.
        is_fresh = self._is_fresh and not row[state.QUEUE_END_PHYSICAL]
        return Stand(row[state.QUEUE_MAX_OFFSET], row[state.QUEUE_END_PHYSICAL], is_fresh)

    def go_to(self, queue_offset: int, unit: cq_unit.Unit) -> bool:
        """Bring the queue up to a record beyond its end; False if that record cannot be right."""
        stand, row = self.stand, self._row
        if not dispatch_plan.is_possible(stand, queue_offset, unit.physical_offset):
            return False
        if stand.is_fresh:
            if queue_offset != row[state.QUEUE_TAIL_OFFSET]:
                raise StoreChanged("a queue begins elsewhere than was found before")
            row[state.QUEUE_MAX_OFFSET] = row[state.QUEUE_NEXT_OFFSET] = queue_offset
            self._let_put()
        while row[state.QUEUE_MAX_OFFSET] < queue_offset:
            self.put(unit)
        return True

    def put(self, unit: cq_unit.Unit) -> None:
        row = self._row
        at = (row[state.QUEUE_MAX_OFFSET] - row[state.QUEUE_TAIL_OFFSET]) * cq_unit.SIZE
        if not 0 <= at < len(self.units):
            raise StoreChanged("a queue has more units than were found before")
        self.units[at : at + cq_unit.SIZE] = np.frombuffer(cq_unit.pack(unit), np.uint8)
        row[state.QUEUE_MAX_OFFSET] += 1
        row[state.QUEUE_END_PHYSICAL] = unit.physical_offset + unit.size
        row[state.QUEUE_NEXT_OFFSET] = max(
            row[state.QUEUE_NEXT_OFFSET], row[state.QUEUE_MAX_OFFSET]
        )

    def put_at(self, queue_offset: int, unit: cq_unit.Unit) -> None:
        """Put a record's unit where it belongs, if it carries the queue on."""
        if queue_offset > self.stand.max_offset:
            self.go_to(queue_offset, unit)
        if queue_offset == self.stand.max_offset:
            self.put(unit)

    @property
    def is_whole(self) -> bool:
        return self._row[state.QUEUE_MAX_OFFSET] == self._stop


class UnitWalk(_Walk):
    """Makes the units of a range.

    Args:
        source: The log.
        shares: The queues that get units, and which.
    """

    def __init__(self, source: Source, shares: Mapping[QueueKey, Share]) -> None:
        super().__init__(source)
        self._block[state.INDEX_IS_ON] = 0
        self._block[state.INDEX_END_OFFSET] = -1
        self._block[state.HAS_LIGHT_QUEUES] = source.config.enable_multi_dispatch
        self._queues: dict[QueueKey, _Queue] = {}
        self._by_address: dict[int, _Queue] = {}
        for key, share in shares.items():
            topic, queue_id = key
            if queue_id < _QUEUE_ID_MAX:
                name = java.encode_utf8(topic)
                self._named.add(name)
                address, row = self._hot.add_queue(name, queue_id)
            else:
                address, row = 0, np.zeros(state.QUEUE_WORDS, np.int64).data
            queue = self._queues[key] = self._by_address[address] = _Queue(share, address, row)
            assert len(queue.units), "a share has units"
        if source.config.enable_multi_dispatch:
            # A buried topic's records go to light queues still, which kernels do not look at then.
            for topic in source.tombstones:
                name = java.encode_utf8(topic)
                self._named.add(name)
                self._hot.topic(name)
                self._hot.set_slow(name, is_slow=True)

    def units(self) -> Iterator[tuple[QueueKey, npt.NDArray[np.uint8]]]:
        """Yield each queue and its units' bytes.

        Raises:
            StoreChanged: They are not those that were found before.
        """
        for key, queue in self._queues.items():
            if not queue.is_whole:
                raise StoreChanged(f"queue {key[0]}/{key[1]} has less units than were found before")
            yield key, queue.units

    def _provide(self, reason: int, one: StoredMessage) -> bool:
        if reason == state.STOP_UNITS:
            raise StoreChanged(
                f"queue {one.topic}/{one.queue_id} has more units than were found before"
            )
        if reason == state.STOP_GAP:
            queue = self._by_address.get(self._block[state.STOP_ROW])
            return queue is not None and queue.go_to(one.queue_offset, self._unit(one))
        return super()._provide(reason, one)

    def _put_slowly(self, one: StoredMessage) -> None:
        if not flags.is_queued(one.sys_flag):
            return
        is_buried = one.physical_offset < self._source.tombstones.get(one.topic, 0)
        queue = self._queues.get((one.topic, one.queue_id))
        if queue is not None and not is_buried:
            queue.put_at(one.queue_offset, self._unit(one))
        if self._block[state.HAS_LIGHT_QUEUES]:
            self._put_light(one)

    def _put_light(self, one: StoredMessage) -> None:
        for topic, queue_id, queue_offset in _light_queues(self._source, one):
            queue = self._queues.get((topic, queue_id))
            if queue is not None:
                queue.put_at(queue_offset, self._unit(one))

    def _unit(self, one: StoredMessage) -> cq_unit.Unit:
        return cq_unit.Unit(one.physical_offset, one.store_size, self._tags_code(one))

    def _tags_code(self, one: StoredMessage) -> int:
        delay = one.properties.get(props.DELAY, "")
        if one.topic == names.SCHEDULE_TOPIC and delay.isascii() and delay.isdigit() and int(delay):
            return one.store_timestamp + self._delays.get(int(delay), 1000)
        return cq_unit.tags_code(one.tags)


def _light_queues(source: Source, one: StoredMessage) -> list[tuple[str, int, int]]:
    """Return the further queues that a queued record goes to: topic, queue id, queue offset."""
    if one.topic.startswith(names.RETRY_PREFIX):
        return []
    return [
        light
        for light in light_queues_of(one)
        if source.is_wanted(light[0], one.physical_offset) and light[1] >= 0
    ]


# --- the survey ------------------------------------------------------------------------------


def survey(
    source: Source, part: plan.LogRange, *, is_indexed: bool, detailed: frozenset[QueueKey]
) -> Survey:
    """Find out what a range holds: runs of its queues, number of index entries, damage.

    Args:
        source: The log.
        part: The range, within one file.
        is_indexed: Count index entries.
        detailed: Queues whose records are to be runs of their own.
    """
    found = Survey()
    if is_indexed:
        index = IndexWalk(source, None)
        index.run(part.start, part.stop)
        found.entries = index.counted
        found.last_indexed = index.last_indexed
    start = source.log.part_start(part.start, part.stop)
    for batch in source.log.walk(start, part.stop, check_crc=False, is_end=part.is_end):
        found.holes += [(one.physical_offset, one.length, one.reason) for one in batch.damage]
        if len(batch.positions):
            _survey_batch(source, part, _without_torn(source, batch), detailed, found)
    for low, high in plan.meet_spans(source.torn, part.start, part.stop):
        found.holes.append((low, high - low, "a crash has torn the record"))
    found.holes.sort()
    return found


def _without_torn(source: Source, batch: LogBatch) -> LogBatch:
    if not source.torn:
        return batch
    starts = np.array([low for low, _ in source.torn], np.int64)
    kept = ~np.isin(batch.positions + batch.physical_offset, starts)
    return LogBatch(batch.buffer, batch.physical_offset, batch.positions[kept], batch.sizes[kept])


def _survey_batch(
    source: Source,
    part: plan.LogRange,
    batch: LogBatch,
    detailed: frozenset[QueueKey],
    found: Survey,
) -> None:
    columns = batch.columns()
    found.records += columns.count
    sys_flags = columns.numbers("sys_flag")
    queue_ids = columns.numbers("queue_id")
    topic_ids, topics = columns.topic_ids()
    is_queued = (sys_flags & _TRANSACTION_STEP) == 0
    is_folder = np.array([names.is_folder_name(topic) for topic in topics], bool)
    is_wanted = np.array([source.is_wanted(topic, part.start) for topic in topics], bool)
    is_batch = is_queued & (sys_flags & flags.INNER_BATCH != 0) & is_wanted[topic_ids]
    is_placed = is_folder[topic_ids] & (queue_ids >= 0)
    _count(found, BATCH, is_batch)
    _count(found, "no queue can have their topic and queue id", is_queued & ~is_placed)
    rows = np.flatnonzero(is_queued & is_placed & ~is_batch & is_wanted[topic_ids])
    keys = topic_ids[rows].astype(np.int64) << 32 | queue_ids[rows]
    queue_offsets = columns.numbers("queue_offset")[rows].astype(np.int64)
    physical_offsets = (batch.positions + batch.physical_offset)[rows]
    sizes = batch.sizes[rows].astype(np.int64)
    if source.config.enable_multi_dispatch:
        light = light_rows(source, batch, columns, np.flatnonzero(is_queued), topics)
        keys, queue_offsets, physical_offsets, sizes = (
            np.concatenate((plain, more))
            for plain, more in zip(
                (keys, queue_offsets, physical_offsets, sizes), light, strict=True
            )
        )
        order = np.lexsort((physical_offsets, keys))
    else:
        order = np.argsort(keys, kind="stable")
    edges = [0, *(np.flatnonzero(np.diff(keys[order])) + 1).tolist(), len(keys)]
    for low, high in itertools.pairwise(edges):
        if low == high:
            continue
        one = order[low:high]
        topic_id, queue_id = divmod(int(keys[one[0]]), 1 << 32)
        key = (topics[topic_id], queue_id)
        is_detailed = key in detailed
        runs = dispatch_plan.runs_of(
            queue_offsets[one], physical_offsets[one], sizes[one], is_detailed=is_detailed
        )
        known = found.runs.setdefault(key, [])
        if is_detailed:
            known += runs
        else:
            dispatch_plan.append_runs(known, runs)


def _count(found: Survey, reason: str, rows: npt.NDArray[np.bool_]) -> None:
    count = int(np.count_nonzero(rows))
    if count:
        found.unqueued[reason] = found.unqueued.get(reason, 0) + count


def light_rows(
    source: Source,
    batch: LogBatch,
    columns: kernels.Columns,
    rows: npt.NDArray[np.int64],
    topics: list[str],
) -> list[npt.NDArray[np.int64]]:
    """Return key, queue offset, physical offset and size of units in light queues.

    Their topics are added to ``topics``. Only records that bear the property's name are decoded.
    """
    texts = columns.raw_properties()
    data = texts.data.tobytes()
    marked: set[int] = set()
    at = data.find(_LIGHT_MARK)
    while at >= 0:
        marked.add(int(np.searchsorted(texts.offsets, at, "right")) - 1)
        at = data.find(_LIGHT_MARK, at + 1)
    ids = {topic: number for number, topic in enumerate(topics)}
    units: list[tuple[int, int, int, int]] = []
    for row in sorted(marked & set(rows.tolist())):
        one = record.decode(batch.buffer, int(batch.positions[row]), check_crc=False)
        for topic, queue_id, queue_offset in _light_queues(source, one):
            if topic not in ids:
                ids[topic] = len(topics)
                topics.append(topic)
            key = ids[topic] << 32 | queue_id
            units.append((key, queue_offset, one.physical_offset, one.store_size))
    return list(np.array(units, np.int64).reshape(-1, 4).T)
