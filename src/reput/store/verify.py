"""Verify a store: a verdict for every file and every hole, and the evidence.

    commit log      each record is walked, its checksums compared; what is no record is a hole
    consume queues  each queued record has its unit, each unit points at its record
    index           each key of each message is found, each entry points at a message with that key
    the rest        checkpoint and tables: readable, and in agreement with the above

The log is walked once, a file a thread. What a window holds is compared at once: its keys with the
index entries that point into it, its queued records (some millions gathered) with the units at
their queue offsets. A unit that a record claims is marked, so memory is a byte for each unit; units
and entries that nobody claimed are judged afterwards.

What a crash explains is no damage: a torn last record, records that have not reached their queue.
What brokers are known to leave behind is a note or a warning: entries of records that were cut off,
parts of the log that no index file covers, messages of a deleted topic.
"""

import bisect
import dataclasses
import enum
import itertools
import os
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from reput.errors import CorruptRecord, NotInStore
from reput.format import (
    cq_unit,
    index_entry,
    kernels,
    message as record,
    names,
    properties as props,
    sys_flag as flags,
)
from reput.format.message import StoredMessage, Verdict
from reput.store import config_tables, paths
from reput.store.commit_log_view import Damage, LogBatch, LogFile
from reput.store.consume_queue_view import QueueFile, UnitArray, list_queue_files
from reput.store.index_view import ENTRY_TYPE, IndexFileView
from reput.store.reader import Condition, StoreReader, belongs

ROWS_MAX = 1_000_000
"""Queued records gathered before they are compared with their units; 28 bytes each."""
_ENTRIES_AT_ONCE = 1 << 16
_RUNS_MAX = 20
"""Findings of one kind in one file, before the rest is summed up in one."""
_THREADS_MAX = 8

Progress = Callable[[str, int, int], None]
"""Called with what is being checked, how much of it is done, and of how much."""
Mask = npt.NDArray[np.bool_]
Offsets = npt.NDArray[np.int64]
_NO_OFFSETS = np.empty(0, np.int64)


# --- what comes out -----------------------------------------------------------------------------


class Severity(enum.IntEnum):
    """How bad something is."""

    OK = 0
    NOTE = 1
    """As it should be in the circumstances, and worth knowing."""
    WARNING = 2
    """No message is lost or hidden by it, but a broker or a reader may stumble."""
    DAMAGE = 3
    """A message is lost, cannot be read, or is not found where it should be."""


class Kind(enum.StrEnum):
    """What a finding is about."""

    CRASHED = "crashed"
    RUNNING = "running"
    FOREIGN_FILE = "foreign_file"
    LOG_EMPTY = "log_empty"
    LOG_FILE_SIZE = "log_file_size"
    LOG_FILE_NAME = "log_file_name"
    LOG_FILE_MISSING = "log_file_missing"
    LOG_FILE_WAITING = "log_file_waiting"
    LOG_FILES_OVERLAP = "log_files_overlap"
    LOG_HOLE = "log_hole"
    TORN_TAIL = "torn_tail"
    STALE_TAIL = "stale_tail"
    CLOCK_BACK = "clock_back"
    QUEUE_FILE_SIZE = "queue_file_size"
    QUEUE_FILE_NAME = "queue_file_name"
    QUEUE_FILE_MISSING = "queue_file_missing"
    UNIT_MISSING = "unit_missing"
    NOT_DISPATCHED = "not_dispatched"
    UNIT_ZERO = "unit_zero"
    UNIT_BLANK = "unit_blank"
    UNIT_INVALID = "unit_invalid"
    UNIT_STALE = "unit_stale"
    UNIT_IN_HOLE = "unit_in_hole"
    UNIT_WRONG_RECORD = "unit_wrong_record"
    UNIT_WRONG_SIZE = "unit_wrong_size"
    UNIT_WRONG_TAGS = "unit_wrong_tags"
    UNIT_OUT_OF_ORDER = "unit_out_of_order"
    QUEUE_OFFSET_TWICE = "queue_offset_twice"
    INDEX_ABSENT = "index_absent"
    INDEX_FILE = "index_file"
    INDEX_CHAIN = "index_chain"
    NOT_INDEXED = "not_indexed"
    KEY_MISSING = "key_missing"
    ENTRY_STALE = "entry_stale"
    ENTRY_IN_HOLE = "entry_in_hole"
    ENTRY_WRONG = "entry_wrong"
    CHECKPOINT = "checkpoint"
    TABLE = "table"
    TOPIC = "topic"
    CONSUMER_OFFSET = "consumer_offset"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is not plainly right, and where."""

    severity: Severity
    kind: Kind
    path: str
    """File or folder, relative to the store."""
    text: str
    physical_offset: int | None = None
    """Where in the log it starts, if it has a place there."""
    length: int | None = None
    """Bytes of the log it covers."""
    queue_offset: int | None = None
    """Where in the queue it starts, if it has a place there."""
    count: int | None = None
    """Units, messages or entries it speaks of."""


@dataclass(frozen=True, slots=True)
class FileVerdict:
    """What became of one file."""

    path: str
    size: int
    severity: Severity = Severity.OK
    text: str = "ok"
    """The gravest finding, and how many there are besides."""
    count: int = 0
    """Records, units or entries in it."""
    wasted_bytes: int = 0
    """Of a log file: behind its last record."""


@dataclass(frozen=True, slots=True)
class Hole:
    """Bytes of the log that are no records: damage, or what lies behind the end."""

    damage: Damage
    severity: Severity
    kind: Kind
    text: str


@dataclass(frozen=True, slots=True)
class Report:
    """The outcome."""

    location: str
    condition: Condition
    log_start: int
    log_end: int
    """Behind the last record."""
    record_count: int
    queued_count: int
    """Records that belong into consume queues."""
    unit_count: int
    entry_count: int
    """Of the index."""
    files: tuple[FileVerdict, ...]
    holes: tuple[Hole, ...]
    """In log order."""
    findings: tuple[Finding, ...]
    """Gravest first, then by file."""

    @property
    def severity(self) -> Severity:
        """The gravest finding's."""
        return max((one.severity for one in self.findings), default=Severity.OK)

    @property
    def is_damaged(self) -> bool:
        """Whether anything is damaged."""
        return self.severity is Severity.DAMAGE


def _silent(what: str, done: int, total: int) -> None:
    pass


def verify(reader: StoreReader, *, progress: Progress = _silent) -> Report:
    """Check everything in a store against everything else. What is wrong with it is no exception.

    Args:
        reader: The store.
        progress: Is told how far the work is, by several threads, one at a time.

    Raises:
        NotInStore: A file went away meanwhile.
        StoreUnavailable: A file cannot be read.
    """
    ledger = _Ledger()
    _check_condition(reader, ledger)
    try:
        log = _Log(reader, ledger)
    except CorruptRecord as error:
        path = error.file or paths.COMMIT_LOG
        text = f"{error.reason}; nothing else can be checked"
        ledger.add(Severity.DAMAGE, Kind.LOG_FILES_OVERLAP, path, text)
        return ledger.report(reader)
    queues = _Queues(reader, ledger)
    index = _Index(reader, ledger)
    index.check_files(progress)
    log.walk(queues, index, progress)
    queues.check(log, progress)
    index.check(log)
    _check_checkpoint(reader, ledger, log)
    _check_tables(reader, ledger)
    return ledger.report(
        reader,
        log_start=log.start,
        log_end=log.end,
        record_count=log.record_count,
        queued_count=queues.queued_count,
        unit_count=queues.unit_count,
        entry_count=index.entry_count,
    )


def _check_condition(reader: StoreReader, ledger: "_Ledger") -> None:
    state = reader.state
    for path in (paths.ABORT, paths.LOCK):
        entry = reader.folder.entry(path)
        if entry is not None:
            ledger.add_file(path, entry.size)
    if state.condition is Condition.RUNNING:
        text = f"process {state.lock_holder} is running on the store"
        ledger.add(Severity.NOTE, Kind.RUNNING, paths.LOCK, text)
    elif state.has_abort:
        text = "the broker was not stopped, or the store was copied while it ran"
        ledger.add(Severity.NOTE, Kind.CRASHED, paths.ABORT, text)


@dataclass
class _Ledger:
    """Files and findings as they come."""

    files: list[FileVerdict] = field(default_factory=list)
    """Plainly right so far; findings tell otherwise."""
    findings: list[Finding] = field(default_factory=list)
    holes: list[Hole] = field(default_factory=list)

    def add_file(self, path: str, size: int, count: int = 0, wasted_bytes: int = 0) -> None:
        self.files.append(FileVerdict(path, size, count=count, wasted_bytes=wasted_bytes))

    def add(self, severity: Severity, kind: Kind, path: str, text: str, **place: int) -> None:
        """Add a finding; ``place`` are its numbers by name."""
        self.findings.append(Finding(severity, kind, path, text, **place))

    def add_hole(self, damage: Damage, severity: Severity, kind: Kind, text: str) -> None:
        self.holes.append(Hole(damage, severity, kind, text))
        at, length = damage.physical_offset, damage.length
        path = f"{paths.COMMIT_LOG}/{damage.file}"
        where = f"physical offset {at}, {length} bytes: {text}"
        self.add(severity, kind, path, where, physical_offset=at, length=length)

    def add_units(
        self, path: str, kind: Kind, mask: Mask, first: int, texts: Mapping[int, str] | None = None
    ) -> None:
        """Add a finding for each run of units.

        Args:
            path: The queue's file.
            kind: What is wrong.
            mask: Which units.
            first: Queue offset of the first in the mask.
            texts: What there is to say of units, by place in the mask.
        """
        severity, text = _UNIT_TEXTS[kind]
        runs = _runs(mask)
        for start, count in runs[:_RUNS_MAX]:
            span = _span("queue offset", first + start, count)
            what = f"{span}: {(texts or {}).get(start, text)}"
            self.add(severity, kind, path, what, queue_offset=first + start, count=count)
        if runs[_RUNS_MAX:]:
            start = first + runs[_RUNS_MAX][0]
            count = sum(length for _, length in runs[_RUNS_MAX:])
            what = f"{count} more queue offsets from {start} on: {text}"
            self.add(severity, kind, path, what, queue_offset=start, count=count)

    def report(self, reader: StoreReader, **numbers: int) -> Report:
        """Return the outcome; numbers that are not given are 0."""
        counted: dict[str, Any] = dict.fromkeys(_NUMBERS, 0) | numbers
        return Report(
            location=reader.location,
            condition=reader.state.condition,
            files=tuple(sorted(self._verdicts(), key=lambda file: file.path)),
            holes=tuple(sorted(self.holes, key=lambda one: one.damage.physical_offset)),
            findings=tuple(sorted(self.findings, key=lambda one: (-one.severity, one.path))),
            **counted,
        )

    def _verdicts(self) -> Iterator[FileVerdict]:
        """Yield each file with its gravest finding; also what is missing but was spoken of."""
        by_path: dict[str, list[Finding]] = {}
        for finding in self.findings:
            by_path.setdefault(finding.path, []).append(finding)
        for file in self.files:
            yield _judged(file, by_path.pop(file.path, []))
        for path, findings in by_path.items():
            yield _judged(FileVerdict(path, 0), findings)


_NUMBERS = (
    "log_start",
    "log_end",
    "record_count",
    "queued_count",
    "unit_count",
    "entry_count",
)


def _judged(file: FileVerdict, findings: list[Finding]) -> FileVerdict:
    if not findings:
        return file
    gravest = max(findings, key=lambda one: one.severity)
    more = f" (and {len(findings) - 1} more)" if len(findings) > 1 else ""
    return dataclasses.replace(file, severity=gravest.severity, text=gravest.text + more)


# --- commit log ---------------------------------------------------------------------------------


@dataclass
class _FileWalk:
    """What the walk of one log file finds."""

    file: LogFile
    end: int
    """Behind the last record or damage so far."""
    record_count: int = 0
    damage: list[Damage] = field(default_factory=list)
    newest_ms: int = 0
    last_ms: int = 0
    steps_back: int = 0
    """Records that say they were stored before the one before."""

    def add_damage(self, batch: LogBatch) -> None:
        """Take the damage of a window; missing files are the log's affair, not this file's."""
        found = [one for one in batch.damage if one.verdict is not Verdict.MISSING]
        self.damage += found
        self.end = max([self.end, *(one.end for one in found)])

    def add_records(self, batch: LogBatch, columns: kernels.Columns) -> None:
        """Take the records of a window."""
        times = columns.numbers("store_timestamp")
        self.record_count += columns.count
        self.steps_back += int((np.diff(times, prepend=self.last_ms) < 0).sum())
        self.last_ms = int(times[-1])
        self.newest_ms = max(self.newest_ms, int(times.max()))
        behind = batch.physical_offset + int(batch.positions[-1]) + int(batch.sizes[-1])
        self.end = max(self.end, behind)


class _Log:
    """The commit log: files, records, holes.

    Raises:
        CorruptRecord: Two files overlap.
    """

    def __init__(self, reader: StoreReader, ledger: _Ledger) -> None:
        self._reader = reader
        self._ledger = ledger
        self._files = reader.log.files
        self._lock = threading.Lock()
        self._walked_bytes = 0
        self._holes: list[Damage] = []
        self.start = reader.log.min_offset
        self.end = self.start
        """Behind the last record or damage."""
        self.record_count = 0
        self.newest_ms = 0

    def walk(self, queues: "_Queues", index: "_Index", progress: Progress) -> None:
        """Walk every file, and hand what it holds to the other checks."""
        files = [file for file in self._files if file.start < self._reader.end_offset]

        def walk_file(file: LogFile) -> _FileWalk:
            return self._walk_file(file, queues, index, progress)

        with ThreadPoolExecutor(min(os.cpu_count() or 1, _THREADS_MAX)) as pool:
            walks = list(pool.map(walk_file, files))
        queues.settle()
        self.end = max((walk.end for walk in walks), default=self.end)
        self.record_count = sum(walk.record_count for walk in walks)
        self.newest_ms = max((walk.newest_ms for walk in walks), default=0)
        missing = [one for one in self._reader.log.missing() if one.physical_offset < self.end]
        found = itertools.chain(missing, *(walk.damage for walk in walks))
        self._holes = sorted(found, key=lambda one: one.physical_offset)
        self._report_files({walk.file.start: walk for walk in walks})
        self._report_holes()

    def _walk_file(
        self, file: LogFile, queues: "_Queues", index: "_Index", progress: Progress
    ) -> _FileWalk:
        end_offset = self._reader.end_offset
        stop = min(file.nominal_end, end_offset)
        walk = _FileWalk(file, file.start)
        walked = compared = file.start
        for batch in self._reader.log.walk(file.start, stop, is_end=stop == end_offset):
            walk.add_damage(batch)
            if len(batch.positions):
                columns = batch.columns()
                walk.add_records(batch, columns)
                queues.gather(batch, columns)
                index.compare(columns, compared, walk.end)
                compared = walk.end
            self._report_progress(progress, walk.end - walked)
            walked = walk.end
        index.compare(None, compared, self._start_after(file))
        self._report_progress(progress, max(stop - walked, 0))
        return walk

    def _start_after(self, file: LogFile) -> int:
        """Return where the next file starts, or the end of the log."""
        later = (one.start for one in self._files if one.start > file.start)
        return min(next(later, self._reader.end_offset), self._reader.end_offset)

    def _report_progress(self, progress: Progress, more: int) -> None:
        total = self._reader.end_offset - self.start
        with self._lock:
            self._walked_bytes += more
            progress("commit log", min(self._walked_bytes, total), total)

    def in_hole(self, physical_offsets: Offsets) -> Mask:
        """Whether each offset lies in damage."""
        if not self._holes:
            return np.zeros(len(physical_offsets), np.bool_)
        starts = np.array([one.physical_offset for one in self._holes], np.int64)
        ends = np.array([one.end for one in self._holes], np.int64)
        place = np.searchsorted(starts, physical_offsets, "right") - 1
        inside: Mask = (place >= 0) & (physical_offsets < ends[np.maximum(place, 0)])
        return inside

    @property
    def ends_in_damage(self) -> bool:
        """Whether the last thing in the log is no record."""
        return bool(self._holes) and self._holes[-1].end >= self.end

    def _report_files(self, walks: dict[int, _FileWalk]) -> None:
        if not self._files:
            text = "there is no log file: a new store, or one that lost its log"
            self._ledger.add(Severity.WARNING, Kind.LOG_EMPTY, paths.COMMIT_LOG, text)
        for file in self._files:
            path = f"{paths.COMMIT_LOG}/{file.name}"
            walk = walks.get(file.start)
            wasted = file.nominal_end - walk.end if walk else file.size
            self._ledger.add_file(path, file.size, walk.record_count if walk else 0, wasted)
            self._report_file(path, file)
            if walk is not None and walk.steps_back:
                text = f"{walk.steps_back} times the clock went back: offsets by time may be wrong"
                self._ledger.add(Severity.NOTE, Kind.CLOCK_BACK, path, text, count=walk.steps_back)
            elif walk is None and self._reader.log.data_end_of(file) == file.start and file.size:
                text = "waits for its first record"
                self._ledger.add(Severity.NOTE, Kind.LOG_FILE_WAITING, path, text)
        _report_foreign(self._reader, self._ledger, paths.COMMIT_LOG)

    def _report_file(self, path: str, file: LogFile) -> None:
        usual = max(one.size for one in self._files)
        if file.size == 0 and file is self._files[-1]:
            self._ledger.add(Severity.WARNING, Kind.LOG_FILE_SIZE, path, _EMPTY_LAST)
        elif file.size != file.nominal_size:
            text = f"has {file.size} of {file.nominal_size} bytes: a broker does not start on it"
            self._ledger.add(Severity.DAMAGE, Kind.LOG_FILE_SIZE, path, text)
        elif file.size != usual:
            text = f"has {file.size} bytes, others {usual}: a broker does not start on it"
            self._ledger.add(Severity.WARNING, Kind.LOG_FILE_SIZE, path, text)
        elif file.start % usual:
            text = f"the name is no multiple of the file size {usual}"
            self._ledger.add(Severity.WARNING, Kind.LOG_FILE_NAME, path, text)

    def _report_holes(self) -> None:
        for one in self._holes:
            is_missing = one.verdict is Verdict.MISSING
            kind = Kind.LOG_FILE_MISSING if is_missing else Kind.LOG_HOLE
            self._ledger.add_hole(one, Severity.DAMAGE, kind, one.reason)
        tail = self._reader.tail
        if tail.torn is not None:
            text = f"torn tail of a crash, which a recovery cuts off: {tail.torn.reason}"
            self._ledger.add_hole(tail.torn, Severity.WARNING, Kind.TORN_TAIL, text)
        if tail.stale is not None:
            text = "behind the end of the log, where an earlier recovery cut it off"
            self._ledger.add_hole(tail.stale, Severity.NOTE, Kind.STALE_TAIL, text)


_EMPTY_LAST = "empty: 5.x removes it at its start, 4.x does not start on it"


def _report_foreign(reader: StoreReader, ledger: _Ledger, folder: str) -> None:
    """Report what lies in a folder of log or queue files and is none."""
    for entry in reader.folder.entries(folder):
        if entry.is_folder or paths.parse_offset_name(entry.name) is None:
            text = "no store file: 4.x does not start beside it"
            ledger.add(Severity.WARNING, Kind.FOREIGN_FILE, f"{folder}/{entry.name}", text)


# --- consume queues: what the log has for them --------------------------------------------------

_ROW = np.dtype(
    [
        ("queue", np.int32),
        ("queue_offset", np.int64),
        ("physical_offset", np.int64),
        ("size", np.int32),
        ("tags_code", np.int32),
    ]
)
"""A record that belongs into a queue."""
_Rows = npt.NDArray[np.void]


class _Queues:
    """All consume queues against the log."""

    def __init__(self, reader: StoreReader, ledger: _Ledger) -> None:
        self._reader = reader
        self._ledger = ledger
        self._lock = threading.RLock()
        self._numbers: dict[tuple[str, str, int], int] = {}
        self._queues: list[_Queue | _BatchQueue | _AbsentQueue] = []
        self._pending: list[_Rows] = []
        self._pending_count = 0
        self._light = {topic for topic in reader.queue_ids if topic.startswith(names.LMQ_PREFIX)}
        self._redispatch_from = _redispatch_from(reader)
        self.queued_count = 0
        self.unit_count = 0

    def gather(self, batch: LogBatch, columns: kernels.Columns) -> None:
        """Take the queued records of a window; compare when there are enough."""
        parts = [self._rows(batch, columns)]
        if self._light:
            parts.append(self._light_rows(batch, columns))
        with self._lock:
            self.queued_count += len(parts[0])
            self._pending += parts
            self._pending_count += sum(map(len, parts))
            if self._pending_count >= ROWS_MAX:
                self.settle()

    def settle(self) -> None:
        """Compare what was gathered with the units."""
        with self._lock:
            if not self._pending_count:
                return
            rows = np.concatenate(self._pending)
            self._pending.clear()
            self._pending_count = 0
            rows = rows[np.lexsort((rows["queue_offset"], rows["queue"]))]
            numbers, starts = np.unique(rows["queue"], return_index=True)
            for number, part in zip(numbers.tolist(), np.split(rows, starts[1:]), strict=True):
                self._queues[number].compare(part)

    def _rows(self, batch: LogBatch, columns: kernels.Columns) -> _Rows:
        transaction = columns.numbers("sys_flag") & flags.TRANSACTION_MASK
        queued = (transaction == flags.TRANSACTION_NONE) | (transaction == flags.TRANSACTION_COMMIT)
        rows = np.empty(columns.count, _ROW)
        rows["queue"] = self._queue_numbers(columns)
        rows["queue_offset"] = columns.numbers("queue_offset")
        rows["physical_offset"] = batch.positions + batch.physical_offset
        rows["size"] = batch.sizes
        rows["tags_code"] = columns.tags_codes()
        found: _Rows = rows[queued]
        return found

    def _queue_numbers(self, columns: kernels.Columns) -> npt.NDArray[np.int32]:
        """Return the place in ``_queues`` of each record's queue."""
        topic_ids, topics = columns.topic_ids()
        is_batch = (columns.numbers("sys_flag") & flags.INNER_BATCH) != 0
        queue_ids = columns.numbers("queue_id").astype(np.uint32).astype(np.int64)
        keys = topic_ids.astype(np.int64) << 33 | is_batch.astype(np.int64) << 32 | queue_ids
        distinct, places = np.unique(keys, return_inverse=True)
        families = (paths.CONSUME_QUEUE, paths.BATCH_CONSUME_QUEUE)
        found = [
            self._number(families[key >> 32 & 1], topics[key >> 33], key & 0xFFFFFFFF)
            for key in distinct.tolist()
        ]
        numbers: npt.NDArray[np.int32] = np.array(found, np.int32)[places]
        return numbers

    def _number(self, family: str, topic: str, queue_id: int) -> int:
        """Return a queue's place in ``_queues``; makes it at its first sight."""
        key = (family, topic, queue_id)
        number = self._numbers.get(key)
        if number is not None:
            return number
        with self._lock:
            if key not in self._numbers:
                self._queues.append(self._open(family, topic, queue_id))
                self._numbers[key] = len(self._queues) - 1
            return self._numbers[key]

    def _open(
        self, family: str, topic: str, queue_id: int
    ) -> "_Queue | _BatchQueue | _AbsentQueue":
        """Return a queue. A record's topic is not used as a path unless there is such a folder."""
        is_batch = family == paths.BATCH_CONSUME_QUEUE
        there = self._reader.batch_queue_ids if is_batch else self._reader.queue_ids
        if queue_id not in there.get(topic, ()):
            path = paths.queue_folder(topic, queue_id, family)
            return _AbsentQueue(path, self._is_deleted(topic), self._redispatch_from)
        kind = _BatchQueue if is_batch else _Queue
        return kind(self._reader, topic, queue_id, self._redispatch_from)

    def _is_deleted(self, topic: str) -> bool:
        """Whether a topic with messages is in no table; 4.5 keeps its own topics out of it."""
        is_unknown = bool(self._known_topics) and topic not in self._known_topics
        return is_unknown and not names.is_system_topic(topic)

    @cached_property
    def _known_topics(self) -> frozenset[str]:
        """The topics of the table; none if it cannot be read."""
        try:
            return frozenset(self._reader.topics())
        except CorruptRecord:
            return frozenset()

    def _light_rows(self, batch: LogBatch, columns: kernels.Columns) -> _Rows:
        """Return a row for each light queue (LMQ) that a record is put into besides its own."""
        mark = (props.INNER_MULTI_DISPATCH + props.NAME_VALUE_SEPARATOR).encode()
        texts = columns.raw_properties()
        data = texts.data.tobytes()
        rows: list[tuple[int, int, int, int, int]] = []
        at = data.find(mark)
        while at >= 0:
            row = int(np.searchsorted(texts.offsets, at, "right")) - 1
            one = record.decode(batch.buffer, int(batch.positions[row]), check_crc=False)
            if flags.is_queued(one.sys_flag):
                rows += self._light_rows_of(one)
            at = data.find(mark, int(texts.offsets[row + 1]))
        return np.array(rows, _ROW)

    def _light_rows_of(self, one: StoredMessage) -> Iterator[tuple[int, int, int, int, int]]:
        topics = one.properties.get(props.INNER_MULTI_DISPATCH, "").split(props.LMQ_SEPARATOR)
        numbers = one.properties.get(props.INNER_MULTI_QUEUE_OFFSET, "").split(props.LMQ_SEPARATOR)
        code = cq_unit.tags_code(one.tags)
        for topic, number in zip(topics, numbers, strict=False):
            if topic in self._light and number.isdigit():
                queue = self._number(paths.CONSUME_QUEUE, topic, 0)
                yield queue, int(number), one.physical_offset, one.store_size, code

    def check(self, log: _Log, progress: Progress) -> None:
        """Judge files, units without a record and records without a unit. Call after the walk."""
        families = {
            paths.CONSUME_QUEUE: self._reader.queue_ids,
            paths.BATCH_CONSUME_QUEUE: self._reader.batch_queue_ids,
        }
        for family, topics in families.items():
            for topic, queue_ids in topics.items():
                for queue_id in queue_ids:
                    self._number(family, topic, queue_id)
            files = {
                queue.path: queue.files
                for queue in self._queues
                if queue.path.startswith(f"{family}/")
            }
            _check_queue_files(self._reader, self._ledger, files)
        extensions = _extension_files(self._reader)
        _check_queue_files(self._reader, self._ledger, extensions)
        for path, found in extensions.items():
            for file in found:
                self._ledger.add_file(f"{path}/{file.name}", file.size)
        for done, queue in enumerate(self._queues):
            counts = queue.check(self._ledger, log)
            self.unit_count += sum(counts.values())
            for file in queue.files:
                path = f"{queue.path}/{file.name}"
                self._ledger.add_file(path, file.size, counts.get(file.start, 0))
            progress("consume queues", done + 1, len(self._queues))


def _extension_files(reader: StoreReader) -> dict[str, list[QueueFile]]:
    family = paths.CONSUME_QUEUE_EXT
    folders = [
        f"{family}/{topic.name}/{queue.name}"
        for topic in reader.folder.entries(family)
        for queue in reader.folder.entries(f"{family}/{topic.name}")
    ]
    return {path: list_queue_files(reader.folder, path) for path in folders}


def _check_queue_files(
    reader: StoreReader, ledger: _Ledger, folders: dict[str, list[QueueFile]]
) -> None:
    """Check sizes and names of the files of one family; the usual size is what most have."""
    usual = _usual(file.size for files in folders.values() for file in files)
    for path, files in folders.items():
        for file in files:
            _check_queue_file(ledger, f"{path}/{file.name}", file, files[-1], usual)
        for file, following in itertools.pairwise(files):
            end = file.start + max(file.size, usual)
            if end < following.start:
                name = f"{path}/{paths.offset_name(end)}"
                text = f"missing: {following.start - end} bytes up to {following.name}"
                ledger.add(Severity.DAMAGE, Kind.QUEUE_FILE_MISSING, name, text)
        if files:
            _report_foreign(reader, ledger, path)


def _check_queue_file(
    ledger: _Ledger, path: str, file: QueueFile, last: QueueFile, usual: int
) -> None:
    if file.size == 0 and file is last:
        ledger.add(Severity.WARNING, Kind.QUEUE_FILE_SIZE, path, _EMPTY_LAST)
    elif file.size != usual:
        text = f"has {file.size} bytes, others {usual}: a broker does not start on it"
        ledger.add(Severity.DAMAGE, Kind.QUEUE_FILE_SIZE, path, text)
    if usual and file.start % usual:
        text = f"the name is no multiple of the file size {usual}"
        ledger.add(Severity.WARNING, Kind.QUEUE_FILE_NAME, path, text)


def _usual(sizes: Iterable[int]) -> int:
    """Return the size that most files have, empty ones left out; 0 if there is none."""
    counts = Counter(size for size in sizes if size)
    return max(counts, key=lambda size: (counts[size], size), default=0)


# --- consume queues: records without a unit -----------------------------------------------------


def _redispatch_from(reader: StoreReader) -> int:
    """Return from where on a broker's next start puts records into queues that lack them.

    After a clean stop from nowhere. After a crash from the file that the checkpoint leads to: by
    the rule of 5.5 if it has the field for it, else by that of 4.x. A running broker catches up.
    """
    if reader.is_live:
        return 0
    if reader.state.condition is Condition.CLEAN:
        return reader.end_offset
    checkpoint = reader.state.checkpoint
    for file in reversed(reader.log.files):
        first = reader.log.first_record(file)
        if first is None or checkpoint is None:
            continue
        if checkpoint.queue_physical_offset > 0:
            is_covered = first.physical_offset <= checkpoint.queue_physical_offset
        else:
            is_covered = first.store_timestamp <= checkpoint.min_timestamp
        if is_covered:
            return file.start
    return reader.log.min_offset


@dataclass(frozen=True, slots=True)
class _Lacking:
    """Records of one queue with consecutive queue offsets that have no unit."""

    queue_offset: int
    count: int
    physical_offset: int
    """Of the first."""
    is_pending: bool
    """A broker's next start puts them into the queue."""

    def add_to(self, ledger: _Ledger, path: str, span: str = "") -> None:
        span = span or _span("message", self.queue_offset, self.count)
        if self.is_pending:
            severity, kind = Severity.NOTE, Kind.NOT_DISPATCHED
            text = f"{span}: not dispatched yet, the broker's next start does it"
        else:
            severity, kind = Severity.DAMAGE, Kind.UNIT_MISSING
            text = f"{span}: in the log, but without a unit"
        ledger.add(
            severity,
            kind,
            path,
            text,
            physical_offset=self.physical_offset,
            queue_offset=self.queue_offset,
            count=self.count,
        )


def _lacking(rows: _Rows, redispatch_from: int) -> Iterator[_Lacking]:
    """Yield the runs of rows, which come in the order of their queue offsets."""
    if not len(rows):
        return
    numbers = rows["queue_offset"]
    pending = rows["physical_offset"] >= redispatch_from
    breaks = np.flatnonzero((np.diff(numbers) > 1) | np.diff(pending)) + 1
    for first, end in itertools.pairwise([0, *breaks.tolist(), len(rows)]):
        count = int(numbers[end - 1]) - int(numbers[first]) + 1
        place = int(rows["physical_offset"][first])
        yield _Lacking(int(numbers[first]), count, place, bool(pending[first]))


def _merged(found: list[_Lacking]) -> list[_Lacking]:
    """Join runs that several comparisons found side by side."""
    merged: list[_Lacking] = []
    for one in sorted(found, key=lambda run: run.queue_offset):
        last = merged[-1] if merged else one
        if last.queue_offset + last.count == one.queue_offset and last.is_pending == one.is_pending:
            merged[-1] = dataclasses.replace(last, count=last.count + one.count)
        else:
            merged.append(one)
    return merged


def _report_lacking(ledger: _Ledger, found: list[_Lacking], path_at: Callable[[int], str]) -> None:
    runs = _merged(found)
    for one in runs[:_RUNS_MAX]:
        one.add_to(ledger, path_at(one.queue_offset))
    for is_pending in (True, False):
        rest = [one for one in runs[_RUNS_MAX:] if one.is_pending is is_pending]
        if rest:
            total = dataclasses.replace(rest[0], count=sum(one.count for one in rest))
            span = f"{total.count} more messages from {total.queue_offset} on"
            total.add_to(ledger, path_at(total.queue_offset), span)


class _AbsentQueue:
    """A queue that records name and that has no files."""

    def __init__(self, path: str, is_deleted: bool, redispatch_from: int) -> None:
        self._is_deleted = is_deleted
        self._redispatch_from = redispatch_from
        self._lacking: list[_Lacking] = []
        self.path = path
        self.files: list[QueueFile] = []

    def compare(self, rows: _Rows) -> None:
        """Take records of this queue."""
        self._lacking += _lacking(rows, self._redispatch_from)

    def check(self, ledger: _Ledger, log: _Log) -> dict[int, int]:
        """Report the records; those of a topic that no table knows are left from its deletion."""
        if self._is_deleted:
            count = sum(one.count for one in self._lacking)
            text = f"{count} messages in the log are of a topic that was deleted"
            ledger.add(Severity.NOTE, Kind.TOPIC, self.path, text, count=count)
        else:
            _report_lacking(ledger, self._lacking, lambda _: self.path)
        return {}


# --- consume queues: units ----------------------------------------------------------------------

_UNIT_TEXTS = {
    Kind.UNIT_ZERO: (Severity.DAMAGE, "zeros amid the units"),
    Kind.UNIT_BLANK: (Severity.DAMAGE, "filler amid the units"),
    Kind.UNIT_INVALID: (Severity.DAMAGE, "a negative offset or size"),
    Kind.UNIT_STALE: (Severity.WARNING, "points behind the end of the log"),
    Kind.UNIT_IN_HOLE: (Severity.WARNING, "points into damage of the log"),
    Kind.UNIT_WRONG_RECORD: (Severity.DAMAGE, "points at the wrong place"),
    Kind.UNIT_WRONG_SIZE: (Severity.DAMAGE, "the size is not the record's"),
    Kind.UNIT_WRONG_TAGS: (Severity.DAMAGE, "the tags code is not that of the message's tags"),
    Kind.UNIT_OUT_OF_ORDER: (Severity.DAMAGE, "out of order"),
    Kind.QUEUE_OFFSET_TWICE: (Severity.DAMAGE, "two messages have this queue offset"),
}
_EXT_HEAD = np.dtype(
    [
        ("size", ">i2"),
        ("tags_code", ">i8"),
        ("store_timestamp", ">i8"),
        ("bit_map_bytes", ">i2"),
    ]
)
assert _EXT_HEAD.itemsize == cq_unit.EXT_HEAD.size


class _Queue:
    """One consume queue against the log."""

    def __init__(
        self, reader: StoreReader, topic: str, queue_id: int, redispatch_from: int
    ) -> None:
        self._reader = reader
        self._topic = topic
        self._queue_id = queue_id
        self._view = reader.queue(topic, queue_id)
        self._redispatch_from = redispatch_from
        self._first = self._view.files[0].start // cq_unit.SIZE if self._view.files else 0
        self._claimed = np.zeros(0, np.bool_)
        """Units that point at their record, from the first one on."""
        self._wrong: defaultdict[Kind, list[Offsets]] = defaultdict(list)
        """Queue offsets of units that point at their record, and do not agree with it."""
        self._missed: list[Offsets] = []
        """Queue offsets of records whose unit points elsewhere."""
        self._lacking: list[_Lacking] = []
        """Records for whose unit there is no place: no file, or filler."""
        self._unwritten: list[_Lacking] = []
        """Records that find zeros."""
        self._has_units = False
        self._last_place = -1
        self.path = paths.queue_folder(topic, queue_id)
        self.files = list_queue_files(reader.folder, self.path)

    # What the log has for it

    def compare(self, rows: _Rows) -> None:
        """Compare records of this queue, in the order of their queue offsets, with their units."""
        numbers = rows["queue_offset"]
        has_place = np.zeros(len(rows), np.bool_)
        for start, units in self._view.blocks(int(numbers[0]), int(numbers[-1]) + 1):
            low, high = np.searchsorted(numbers, [start, start + len(units)])
            found = units[numbers[low:high] - start]
            has_place[low:high] = ~_is_blank(found["size"], found["physical_offset"])
            self._compare(rows[low:high][has_place[low:high]], found[has_place[low:high]])
        self._lacking += _lacking(rows[~has_place], self._redispatch_from)

    def _compare(self, rows: _Rows, units: UnitArray) -> None:
        numbers = rows["queue_offset"]
        is_written = units["size"] != 0
        self._unwritten += _lacking(rows[~is_written], self._redispatch_from)
        is_mine = is_written & (units["physical_offset"] == rows["physical_offset"])
        self._claim(numbers[is_mine])
        self._missed.append(numbers[is_written & ~is_mine])
        wrong = {Kind.UNIT_WRONG_SIZE: is_mine & (units["size"] != rows["size"])}
        if self._topic != names.SCHEDULE_TOPIC:  # there it is the time of delivery
            wrong[Kind.UNIT_WRONG_TAGS] = is_mine & (self._tags_codes(units) != rows["tags_code"])
        for kind, mask in wrong.items():
            if mask.any():
                self._wrong[kind].append(numbers[mask])

    def _claim(self, numbers: Offsets) -> None:
        if not len(numbers):
            return
        needed = int(numbers[-1]) + 1 - self._first
        if needed > len(self._claimed):
            room = max(needed, self._view.max_offset - self._first)
            self._claimed = np.pad(self._claimed, (0, room - len(self._claimed)))
        self._claimed[numbers - self._first] = True

    def _tags_codes(self, units: UnitArray) -> Offsets:
        """Return the units' tags codes, those in extension files from there."""
        codes = units["tags_code"].astype(np.int64)
        extended = np.flatnonzero(codes <= cq_unit.EXT_ADDRESS_MAX)
        if len(extended):
            codes[extended] = self._extension_codes(codes[extended])
        return codes

    def _extension_codes(self, addresses: Offsets) -> Offsets:
        """Return the tags codes at extension addresses; the address where no unit stands."""
        codes = addresses.copy()
        at = addresses - cq_unit.ext_address(0)
        path = paths.queue_folder(self._topic, self._queue_id, paths.CONSUME_QUEUE_EXT)
        for file in list_queue_files(self._reader.folder, path):
            room = file.size - _EXT_HEAD.itemsize
            inside = np.flatnonzero((at >= file.start) & (at <= file.start + room))
            if not len(inside):
                continue
            data = np.frombuffer(self._reader.folder.read(f"{path}/{file.name}"), np.uint8)
            places = (at[inside] - file.start)[:, None] + np.arange(_EXT_HEAD.itemsize)
            heads = data[places].view(_EXT_HEAD)[:, 0]
            is_unit = heads["size"] == _EXT_HEAD.itemsize + heads["bit_map_bytes"]
            codes[inside[is_unit]] = heads["tags_code"][is_unit]
        return codes

    # What it has itself

    def check(self, ledger: _Ledger, log: _Log) -> dict[int, int]:
        """Report what is wrong; return how many units each file holds, by the file's start."""
        stop = max(self._view.max_offset, self._first + len(self._claimed))
        counts: dict[int, int] = {}
        for start, units in self._view.blocks(self._first, stop):
            counts[start * cq_unit.SIZE] = int((units["size"] != 0).sum())
            self._check_block(ledger, log, start, units)
        # Zeros amid the units are reported as such.
        behind = [one for one in self._unwritten if one.queue_offset >= stop]
        _report_lacking(ledger, self._lacking + behind, self._path_at)
        return counts

    def _check_block(self, ledger: _Ledger, log: _Log, start: int, units: UnitArray) -> None:
        places = units["physical_offset"].astype(np.int64)
        masks = self._judge(log, start, places, units["size"])
        for kind, parts in self._wrong.items():
            masks[kind] = _mask(np.concatenate(parts), start, len(units))
        wrong = _runs(masks[Kind.UNIT_WRONG_RECORD])[:_RUNS_MAX]
        texts = {first: self._describe(int(places[first])) for first, _ in wrong}
        for kind, mask in masks.items():
            is_text_own = kind is Kind.UNIT_WRONG_RECORD
            ledger.add_units(
                self._path_at(start), kind, mask, start, texts if is_text_own else None
            )

    def _judge(
        self, log: _Log, start: int, places: Offsets, sizes: npt.NDArray[np.int32]
    ) -> dict[Kind, Mask]:
        """Judge units: those that no record claimed, and the order of those that are right."""
        claimed = self._claimed[start - self._first : start - self._first + len(places)]
        claimed = np.pad(claimed, (0, len(places) - len(claimed)))
        missed = _mask(np.concatenate([_NO_OFFSETS, *self._missed]), start, len(places))
        zero = sizes == 0
        blank = _is_blank(sizes, places)
        invalid = (sizes < 0) | (places < 0)
        other = ~(claimed | zero | blank | invalid)
        unknown = other & ~missed
        expired = unknown & (places < log.start)
        stale = unknown & (places >= log.end)
        in_hole = unknown & log.in_hole(places)
        wrong = other & ~(expired | stale | in_hole)
        if self._reader.is_live:
            stale[:] = False  # the broker has gone on since
        if self._topic.startswith(names.LMQ_PREFIX):
            wrong = self._without_light(wrong, start, places)
        return {
            Kind.UNIT_ZERO: zero,
            Kind.UNIT_BLANK: blank & self._is_behind_units(~(blank | zero)),
            Kind.UNIT_INVALID: invalid,
            Kind.UNIT_STALE: stale,
            Kind.UNIT_IN_HOLE: in_hole,
            Kind.UNIT_WRONG_RECORD: wrong,
            Kind.UNIT_OUT_OF_ORDER: self._out_of_order(places, claimed | expired),
            Kind.QUEUE_OFFSET_TWICE: missed & claimed,
        }

    def _is_behind_units(self, is_unit: Mask) -> Mask:
        """Whether each place comes after some unit of the queue."""
        behind: Mask = np.logical_or.accumulate(is_unit) | self._has_units
        self._has_units = bool(behind[-1])
        return behind

    def _out_of_order(self, places: Offsets, is_right: Mask) -> Mask:
        """Whether each unit that is right in itself points before the one before."""
        rows = np.flatnonzero(is_right)
        found = np.zeros(len(places), np.bool_)
        if len(rows):
            found[rows] = np.diff(places[rows], prepend=self._last_place) <= 0
            self._last_place = int(places[rows[-1]])
        return found

    def _without_light(self, wrong: Mask, start: int, places: Offsets) -> Mask:
        """Take out units of a light queue (LMQ) whose message names the queue without a number."""
        for row in np.flatnonzero(wrong):
            try:
                one = self._reader.log.message_at(int(places[row]))
            except (CorruptRecord, NotInStore):
                continue
            wrong[row] = not belongs(one, self._topic, self._queue_id, start + int(row))
        return wrong

    def _describe(self, physical_offset: int) -> str:
        try:
            one = self._reader.log.message_at(physical_offset)
        except (CorruptRecord, NotInStore):
            return f"points at physical offset {physical_offset}, where no record starts"
        return f"points at message {one.queue_offset} of queue {one.topic}/{one.queue_id}"

    def _path_at(self, queue_offset: int) -> str:
        """Return the file that holds a unit, or the queue's folder."""
        at = queue_offset * cq_unit.SIZE
        for file in self.files:
            if file.start <= at < file.start + file.size:
                return f"{self.path}/{file.name}"
        return self.path


def _is_blank(sizes: npt.NDArray[Any], places: npt.NDArray[Any]) -> Mask:
    """Whether units are the filler before a queue's first message."""
    is_blank: Mask = (sizes == cq_unit.PRE_BLANK_SIZE) & (places == 0)
    return is_blank


class _BatchQueue:
    """One batch queue of 5.x against the log: a unit a batch."""

    def __init__(
        self, reader: StoreReader, topic: str, queue_id: int, redispatch_from: int
    ) -> None:
        self._view = reader.batch_queue(topic, queue_id)
        self._redispatch_from = redispatch_from
        self._lacking: list[_Lacking] = []
        self._places = self._view.units["physical_offset"].astype(np.int64)
        self._is_right = np.zeros(len(self._places), np.bool_)
        self.path = paths.queue_folder(topic, queue_id, paths.BATCH_CONSUME_QUEUE)
        self.files = list_queue_files(reader.folder, self.path)

    def compare(self, rows: _Rows) -> None:
        """Compare batches of this queue with their units."""
        order = np.argsort(self._places, kind="stable")
        at = np.searchsorted(self._places, rows["physical_offset"], sorter=order)
        has_unit = at < len(order)
        found = order[at[has_unit]]
        units, some = self._view.units[found], rows[has_unit]
        fields = ("physical_offset", "size", "queue_offset", "tags_code")
        is_mine = np.all([units[name] == some[name] for name in fields], axis=0)
        self._is_right[found[is_mine]] = True
        has_unit[has_unit] = is_mine
        self._lacking += _lacking(rows[~has_unit], self._redispatch_from)

    def check(self, ledger: _Ledger, log: _Log) -> dict[int, int]:
        """Report what is wrong; return how many units each file holds, by the file's start."""
        units = self._view.units
        other = ~self._is_right & (self._places >= log.start)
        stale = other & (self._places >= log.end)
        in_hole = other & log.in_hole(self._places)
        jumps = np.zeros(len(units), np.bool_)
        ends = units["queue_offset"] + units["message_count"]
        jumps[1:] = units["queue_offset"][1:] != ends[:-1]
        masks = {
            Kind.UNIT_STALE: stale,
            Kind.UNIT_IN_HOLE: in_hole,
            Kind.UNIT_WRONG_RECORD: other & ~(stale | in_hole),
            Kind.UNIT_OUT_OF_ORDER: jumps,
        }
        for kind, mask in masks.items():
            ledger.add_units(self.path, kind, mask, 0)
        _report_lacking(ledger, self._lacking, lambda _: self.path)
        return {file.start: len(units) for file in self._view.files[:1]}


# --- index --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _EntryBlock:
    """Some entries of an index file, and where they point."""

    file: int
    first: int
    count: int
    low: int
    high: int
    """Smallest and largest physical offset."""


@dataclass(frozen=True, slots=True)
class _Keyless:
    """Messages in a row that the index does not find by all of their keys."""

    first: int
    last: int
    """Physical offsets of the first and the last one."""
    count: int
    reaches_start: bool
    """No message with keys comes before in what was compared at once."""
    reaches_end: bool


class _Index:
    """The index against the log."""

    def __init__(self, reader: StoreReader, ledger: _Ledger) -> None:
        self._reader = reader
        self._ledger = ledger
        self._lock = threading.Lock()
        self._files: list[IndexFileView] = []
        """Those that can be read and hold entries."""
        self._blocks: list[_EntryBlock] = []
        self._strays: defaultdict[int, list[Offsets]] = defaultdict(list)
        """By file: where entries point that no message has the key of."""
        self._keyless: list[_Keyless] = []
        self._first_found: list[int] = []
        """Of all that was compared at once, the first message that is found by its keys."""
        self._before_count = 0
        self.entry_count = 0

    @property
    def _start(self) -> int:
        return min(file.header.begin_physical_offset for file in self._files)

    @property
    def _end(self) -> int:
        return max(file.header.end_physical_offset for file in self._files)

    # Files

    def check_files(self, progress: Progress) -> None:
        """Check each file in itself, and note where its entries point. Call before the walk."""
        views = self._reader.index.files
        usual = _usual(view.size for view in views)
        for done, view in enumerate(views):
            path = f"{paths.INDEX}/{view.name}"
            if view.size != usual:
                text = f"has {view.size} bytes, others {usual}"
                self._ledger.add(Severity.WARNING, Kind.INDEX_FILE, path, text)
            try:
                count = self._check_file(path, view)
            except CorruptRecord as error:
                count = 0
                self._ledger.add(Severity.DAMAGE, Kind.INDEX_FILE, path, error.reason)
            self._ledger.add_file(path, view.size, count)
            progress("index", done + 1, len(views))
        if not self._files and self._reader.log.files:
            text = "holds no entries: messages are not found by key"
            self._ledger.add(Severity.NOTE, Kind.INDEX_ABSENT, paths.INDEX, text)

    def _check_file(self, path: str, view: IndexFileView) -> int:
        count = view.header.entry_count
        if not count:
            return 0
        chains = _Chains(view.slot_count)
        for first in range(1, count + 1, _ENTRIES_AT_ONCE):
            entries = _entries(view, first, min(_ENTRIES_AT_ONCE, count + 1 - first))
            chains.follow(first, entries)
            places = entries["physical_offset"]
            low, high = int(places.min()), int(places.max())
            self._blocks.append(_EntryBlock(len(self._files), first, len(entries), low, high))
        self._files.append(view)
        self.entry_count += count
        self._check_header(path, view)
        self._check_chains(path, view, chains)
        return count

    def _check_header(self, path: str, view: IndexFileView) -> None:
        header = view.header
        for name, place, timestamp in (
            ("first", header.begin_physical_offset, header.begin_timestamp),
            ("last", header.end_physical_offset, header.end_timestamp),
        ):
            try:
                stored_at = self._reader.log.store_timestamp_at(place)
            except (CorruptRecord, NotInStore):
                continue  # expired, cut off, or damage that is reported as such
            if stored_at != timestamp:
                text = f"the header's time of the {name} message is not that of the message"
                self._ledger.add(Severity.WARNING, Kind.INDEX_FILE, path, text)

    def _check_chains(self, path: str, view: IndexFileView, chains: "_Chains") -> None:
        start = index_entry.slot_position(0)
        size = index_entry.SLOT.size * len(chains.newest)
        slots = np.frombuffer(view.folder.read(path, start, size), ">i4")
        broken = chains.broken_count + int((slots != chains.newest).sum())
        if broken:
            text = f"{broken} links of its hash chains are wrong: keys are not found"
            self._ledger.add(Severity.DAMAGE, Kind.INDEX_CHAIN, path, text, count=broken)
        in_use, counted = int((slots != 0).sum()), view.header.slots_used
        if counted not in (in_use, view.header.entry_count, view.header.next_entry):
            text = f"the header counts {counted} slots in use, there are {in_use}"
            self._ledger.add(Severity.NOTE, Kind.INDEX_FILE, path, text)

    # Against the log

    def compare(self, columns: kernels.Columns | None, begin: int, end: int) -> None:
        """Compare the keys of messages in ``[begin, end)`` with the entries that point there."""
        if not self._files:
            return
        places, hashes, files = self._entries_between(begin, end)
        is_stray = np.ones(len(places), np.bool_)
        if columns is not None:
            entries = _pairs(places, hashes, begin)
            key_places, key_hashes = _keys(columns)
            keys = _pairs(key_places, key_hashes, begin)
            self._keep_keyless(key_places, _is_in(keys, _distinct(entries)))
            is_stray = ~_is_in(entries, _distinct(keys))
            if is_stray.any():  # 5.4 and later index tags, too
                tags = _pairs(*_keys(columns, with_tags=True), begin)
                is_stray &= ~_is_in(entries, _distinct(tags))
        with self._lock:
            for number in np.unique(files[is_stray]):
                self._strays[number].append(places[is_stray & (files == number)])

    def _entries_between(
        self, begin: int, end: int
    ) -> tuple[Offsets, Offsets, npt.NDArray[np.int32]]:
        """Return where entries point, their hashes, and the number of their file."""
        places, hashes, files = [_NO_OFFSETS], [_NO_OFFSETS], [np.empty(0, np.int32)]
        for block in self._blocks:
            if block.low < end and block.high >= begin:
                entries = _entries(self._files[block.file], block.first, block.count)
                at = entries["physical_offset"].astype(np.int64)
                inside = (at >= begin) & (at < end)
                places.append(at[inside])
                hashes.append(entries["key_hash"][inside].astype(np.int64))
                files.append(np.full(len(places[-1]), block.file, np.int32))
        return np.concatenate(places), np.concatenate(hashes), np.concatenate(files)

    def _keep_keyless(self, key_places: Offsets, is_found: Mask) -> None:
        """Note messages of which a key has no entry."""
        messages = _distinct(key_places)
        lacks = _is_in(messages, _distinct(key_places[~is_found]))
        is_before = messages < self._start
        found = messages[~lacks & ~is_before]
        with self._lock:
            self._before_count += int((lacks & is_before).sum())
            self._first_found += found[:1].tolist()
            for start, count in _runs(lacks & ~is_before):
                end = start + count
                first, last = int(messages[start]), int(messages[end - 1])
                run = _Keyless(first, last, count, start == 0, end == len(messages))
                self._keyless.append(run)

    def check(self, log: _Log) -> None:
        """Report keys without entries and entries without keys. Call after the walk."""
        count = self._before_count
        if count:
            text = f"begins at physical offset {self._start}; {count} messages are before that"
            self._ledger.add(Severity.NOTE, Kind.NOT_INDEXED, paths.INDEX, text, count=count)
        runs = self._joined()
        for run in runs[:_RUNS_MAX]:
            self._report_keyless(run)
        rest = sum(run.count for run in runs[_RUNS_MAX:])
        if rest:
            text = f"{rest} more messages are not found by a key of theirs"
            self._ledger.add(Severity.DAMAGE, Kind.KEY_MISSING, paths.INDEX, text, count=rest)
        for number, view in enumerate(self._files):
            self._report_strays(f"{paths.INDEX}/{view.name}", number, log)

    def _joined(self) -> list[_Keyless]:
        """Join runs between which no message is found by its keys."""
        found = sorted(self._first_found)
        joined: list[_Keyless] = []
        for run in sorted(self._keyless, key=lambda one: one.first):
            last = joined[-1] if joined else None
            if last is not None and last.reaches_end and run.reaches_start:
                is_same = bisect.bisect(found, last.last) == bisect.bisect(found, run.first)
            else:
                is_same = False
            if last is not None and is_same:
                count = last.count + run.count
                joined[-1] = dataclasses.replace(run, first=last.first, count=count)
            else:
                joined.append(run)
        return joined

    def _report_keyless(self, run: _Keyless) -> None:
        span = f"{run.count} messages from physical offset {run.first} to {run.last}"
        path = paths.INDEX
        for view in self._files:
            if view.header.begin_physical_offset <= run.first <= view.header.end_physical_offset:
                path = f"{paths.INDEX}/{view.name}"
        if run.first > self._end and self._reader.state.condition is not Condition.CLEAN:
            severity, kind, text = Severity.NOTE, Kind.NOT_INDEXED, f"{span}: not indexed yet"
        elif self._is_between_files(run):
            severity, kind = Severity.WARNING, Kind.NOT_INDEXED
            text = f"{span}: in no index file; after a crash brokers do not write all of them again"
        else:
            severity, kind = Severity.DAMAGE, Kind.KEY_MISSING
            text = f"{span}: not found by a key of theirs"
        length = run.last - run.first + 1
        self._ledger.add(
            severity, kind, path, text, physical_offset=run.first, length=length, count=run.count
        )

    def _is_between_files(self, run: _Keyless) -> bool:
        """Whether one index file ends before a run, and the next begins behind it."""
        headers = [view.header for view in self._files]
        is_in_one = any(
            one.begin_physical_offset <= run.last and one.end_physical_offset > run.first
            for one in headers
        )
        return not is_in_one and self._start < run.first <= run.last < self._end

    def _report_strays(self, path: str, number: int, log: _Log) -> None:
        """Report entries that point at no message with their key; expired ones are no fault."""
        places = np.concatenate([_NO_OFFSETS, *self._strays[number], *self._behind(number)])
        is_stale = places >= log.end
        is_in_hole = ~is_stale & log.in_hole(places)
        for severity, kind, mask, text in (
            (Severity.NOTE, Kind.ENTRY_STALE, is_stale, "behind the end of the log"),
            (Severity.WARNING, Kind.ENTRY_IN_HOLE, is_in_hole, "into damage of the log"),
            (
                Severity.WARNING,
                Kind.ENTRY_WRONG,
                ~(is_stale | is_in_hole),
                "at no message with their key",
            ),
        ):
            count = int(mask.sum())
            if count:
                what = f"{'1 entry points' if count == 1 else f'{count} entries point'} {text}"
                self._ledger.add(severity, kind, path, what, count=count)

    def _behind(self, number: int) -> Iterator[Offsets]:
        """Yield where entries of a file point, if that is behind all that was compared."""
        stop = self._reader.end_offset
        for block in self._blocks:
            if block.file == number and block.high >= stop:
                entries = _entries(self._files[number], block.first, block.count)
                places = entries["physical_offset"].astype(np.int64)
                yield places[places >= stop]


def _entries(view: IndexFileView, first: int, count: int) -> npt.NDArray[np.void]:
    """Return some entries of an index file."""
    position = index_entry.entry_position(first, view.slot_count)
    path = f"{paths.INDEX}/{view.name}"
    data = view.folder.read(path, position, count * ENTRY_TYPE.itemsize)
    return np.frombuffer(data, ENTRY_TYPE, len(data) // ENTRY_TYPE.itemsize)


def _keys(columns: kernels.Columns, *, with_tags: bool = False) -> tuple[Offsets, Offsets]:
    """Return (physical offset, hash) of each key that a broker indexes."""
    rows, hashes = columns.key_hashes(with_tags=with_tags)
    transaction = columns.numbers("sys_flag") & flags.TRANSACTION_MASK
    indexed = transaction[rows] != flags.TRANSACTION_ROLLBACK
    places = columns.numbers("physical_offset")[rows[indexed]]
    return places, hashes[indexed].astype(np.int64)


def _pairs(places: Offsets, hashes: Offsets, begin: int) -> Offsets:
    """Return place and key hash as one number each: a log file takes no more than 2 GiB."""
    pairs: Offsets = (places - begin) << 31 | hashes & 0x7FFFFFFF
    return pairs


class _Chains:
    """The hash chains of an index file, followed from its first entry on."""

    def __init__(self, slot_count: int) -> None:
        self.newest = np.zeros(slot_count, np.int32)
        """What each slot must hold."""
        self.broken_count = 0

    def follow(self, first: int, entries: npt.NDArray[np.void]) -> None:
        """Take the next entries: each must name the one before it in its slot."""
        hashes = entries["key_hash"].astype(np.int64)
        slots = np.abs(hashes) % len(self.newest)
        order = np.argsort(slots, kind="stable")
        slots, numbers = slots[order], first + order
        starts = np.flatnonzero(np.diff(slots, prepend=-1))
        expected = np.roll(numbers, 1)
        expected[starts] = self.newest[slots[starts]]
        is_broken = (entries["previous"][order] != expected) | (hashes[order] < 0)
        self.broken_count += int(is_broken.sum())
        ends = np.append(starts[1:], len(slots)) - 1
        self.newest[slots[ends]] = numbers[ends]


# --- checkpoint and tables ----------------------------------------------------------------------


def _check_checkpoint(reader: StoreReader, ledger: _Ledger, log: _Log) -> None:
    path = paths.CHECKPOINT
    entry = reader.folder.entry(path)
    state = reader.state
    if entry is not None:
        ledger.add_file(path, entry.size)
    if state.checkpoint_problem is not None:
        ledger.add(Severity.WARNING, Kind.CHECKPOINT, path, state.checkpoint_problem.reason)
    elif state.checkpoint is None and reader.log.files:
        text = "missing or empty: after a crash 4.x starts over from the first log file"
        ledger.add(Severity.NOTE, Kind.CHECKPOINT, path, text)
    if state.checkpoint is None:
        return
    ahead_ms = state.checkpoint.physical_timestamp - log.newest_ms
    queue_end = state.checkpoint.queue_physical_offset
    is_clean = state.condition is Condition.CLEAN
    severity = Severity.DAMAGE if is_clean and not log.ends_in_damage else Severity.WARNING
    if ahead_ms > 0:
        text = f"messages {ahead_ms} ms newer than the last one were flushed: the log lost its end"
        ledger.add(severity, Kind.CHECKPOINT, path, text)
    if queue_end > log.end:
        text = f"the queues reached {queue_end}, the log ends at {log.end}: it lost its end"
        ledger.add(severity, Kind.CHECKPOINT, path, text)


def _check_tables(reader: StoreReader, ledger: _Ledger) -> None:
    checks: dict[str, Callable[[StoreReader, _Ledger], object]] = {
        paths.TOPICS: _check_topics,
        paths.CONSUMER_OFFSETS: _check_consumer_offsets,
        paths.DELAY_OFFSETS: _check_delay_offsets,
        paths.SUBSCRIPTION_GROUPS: lambda reader, _: reader.subscription_groups(),
        paths.CONSUMER_FILTERS: lambda reader, _: config_tables.load(
            reader.folder, paths.CONSUMER_FILTERS
        ),
    }
    for path, check in checks.items():
        entry = reader.folder.entry(path)
        if entry is not None:
            ledger.add_file(path, entry.size)
        try:
            check(reader, ledger)
        except CorruptRecord as error:
            ledger.add(Severity.DAMAGE, Kind.TABLE, path, error.reason)
            continue
        has_backup = reader.folder.entry(path + paths.BACKUP_SUFFIX) is not None
        if has_backup and not _is_table(reader, path):
            text = "missing, empty or no table: its .bak stands in for it"
            ledger.add(Severity.WARNING, Kind.TABLE, path, text)


def _is_table(reader: StoreReader, path: str) -> bool:
    if reader.folder.entry(path) is None:
        return False
    try:
        return isinstance(config_tables.parse(bytes(reader.folder.read(path)).decode()), dict)
    except (ValueError, RecursionError):
        return False


def _check_topics(reader: StoreReader, ledger: _Ledger) -> None:
    """Compare the topic table with the queues that there are."""
    topics = reader.topics()
    with_queues = {*reader.queue_ids, *reader.batch_queue_ids}
    for topic in sorted(with_queues - set(topics)):
        if topics and not topic.startswith(names.LMQ_PREFIX) and not names.is_system_topic(topic):
            text = f"does not name topic {topic}, which has queue files"
            ledger.add(Severity.NOTE, Kind.TOPIC, paths.TOPICS, text)
    unused = [
        topic
        for topic in topics
        if topic not in with_queues
        and not names.is_system_topic(topic)
        and not names.is_retry_topic(topic)
    ]
    if unused:
        text = f"topics without a message so far: {', '.join(unused)}"
        ledger.add(Severity.NOTE, Kind.TOPIC, paths.TOPICS, text, count=len(unused))


def _check_consumer_offsets(reader: StoreReader, ledger: _Ledger) -> None:
    """Report groups that are ahead of their queue: they skip what is sent next."""
    path = paths.CONSUMER_OFFSETS
    for one in reader.consumer_offsets():
        end = _max_offset(reader, one.topic, one.queue_id)
        if one.consumer_offset > end:
            place = f"{one.consumer_offset} of {one.topic}/{one.queue_id}"
            text = f"group {one.group} is at {place}, which ends at {end}"
            severity = _unless_crashed(reader, Severity.WARNING)
            ledger.add(severity, Kind.CONSUMER_OFFSET, path, text, queue_offset=one.consumer_offset)


def _check_delay_offsets(reader: StoreReader, ledger: _Ledger) -> None:
    for level, done, end in reader.delay_progress():
        if done > end:
            text = f"delay level {level} has delivered up to {done}, its queue ends at {end}"
            severity = _unless_crashed(reader, Severity.WARNING)
            path = paths.DELAY_OFFSETS
            ledger.add(severity, Kind.CONSUMER_OFFSET, path, text, queue_offset=done)


def _max_offset(reader: StoreReader, topic: str, queue_id: int) -> int:
    if queue_id in reader.queue_ids.get(topic, ()):
        return reader.queue(topic, queue_id).max_offset
    if queue_id in reader.batch_queue_ids.get(topic, ()):
        return reader.batch_queue(topic, queue_id).max_offset
    return 0


def _unless_crashed(reader: StoreReader, severity: Severity) -> Severity:
    """Return a severity, or a note where queues may lag behind."""
    return severity if reader.state.condition is Condition.CLEAN else Severity.NOTE


# --- sets and runs ------------------------------------------------------------------------------


def _distinct(values: Offsets) -> Offsets:
    """Return the values in order, each once; on nearly ordered ones faster than ``np.unique``."""
    ordered = np.sort(values, kind="stable")
    is_last = np.append(ordered[1:] != ordered[:-1], True)[: len(ordered)]
    distinct: Offsets = ordered[is_last]
    return distinct


def _is_in(values: Offsets, ordered: Offsets) -> Mask:
    """Whether each value is among others that are in order."""
    if not len(ordered):
        return np.zeros(len(values), np.bool_)
    places = np.minimum(np.searchsorted(ordered, values), len(ordered) - 1)
    found: Mask = ordered[places] == values
    return found


def _runs(mask: Mask) -> list[tuple[int, int]]:
    """Return (first, count) of each run of true values."""
    if not mask.any():
        return []
    edges = np.flatnonzero(np.diff(mask.astype(np.int8), prepend=0, append=0))
    return [(int(start), int(end - start)) for start, end in edges.reshape(-1, 2)]


def _mask(numbers: Offsets, start: int, count: int) -> Mask:
    """Return which of ``[start, start + count)`` are among the numbers."""
    mask = np.zeros(count, np.bool_)
    mask[numbers[(numbers >= start) & (numbers < start + count)] - start] = True
    return mask


def _span(noun: str, first: int, count: int) -> str:
    return f"{noun} {first}" if count == 1 else f"{count} {noun}s, {first} to {first + count - 1}"
