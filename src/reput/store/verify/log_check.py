"""The commit log: its files, records and holes."""

import itertools
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol

import numpy as np

from reput.format import kernels
from reput.format.message import Verdict
from reput.store.files import paths
from reput.store.log.commit_log_view import Damage, LogBatch, LogFile
from reput.store.reader import StoreReader
from reput.store.verify.findings import FindingKind, Ledger, Progress, Severity
from reput.store.verify.number_runs import Mask, Offsets, Spans

_THREADS_MAX = 8


@dataclass
class _FileWalk:
    """The results of reading a log file."""

    file: LogFile
    end: int
    """Physical offset after the last record or damage so far."""
    record_count: int = 0
    damage: list[Damage] = field(default_factory=list)
    newest_ms: int = 0
    last_ms: int = 0
    steps_back: int = 0
    """Number of records with an earlier store time than their predecessor."""

    def add_damage(self, batch: LogBatch) -> None:
        """Add the damage of a window; missing files are reported for the whole log."""
        own = [damage for damage in batch.damage if damage.verdict is not Verdict.MISSING]
        self.damage += own
        self.end = max([self.end, *(damage.end for damage in own)])

    def add_records(self, batch: LogBatch, columns: kernels.Columns) -> None:
        """Take the records of a window."""
        times = columns.numbers("store_timestamp")
        self.record_count += columns.count
        self.steps_back += int((np.diff(times, prepend=self.last_ms) < 0).sum())
        self.last_ms = int(times[-1])
        self.newest_ms = max(self.newest_ms, int(times.max()))
        end = batch.physical_offset + int(batch.positions[-1]) + int(batch.sizes[-1])
        self.end = max(self.end, end)


class RecordSink(Protocol):
    """A check that takes the records of the log."""

    def gather(self, batch: LogBatch, columns: kernels.Columns) -> None:
        """Take the records of a window."""

    def settle(self) -> None:
        """Compare the gathered records."""


class KeySink(Protocol):
    """A check that takes the keys of messages."""

    def compare(self, columns: kernels.Columns | None, begin: int, end: int) -> None:
        """Compare the keys of messages in ``[begin, end)``; no columns: no messages."""


class LogCheck:
    """The commit log: files, records, holes.

    Raises:
        CorruptRecord: Two files overlap.
    """

    def __init__(self, reader: StoreReader, ledger: Ledger) -> None:
        self._reader = reader
        self._ledger = ledger
        self._files = reader.log.files
        self._lock = threading.Lock()
        self._walked_bytes = 0
        self._holes: list[Damage] = []
        self.start = reader.log.min_offset
        self.end = self.start
        """Physical offset after the last record or damage."""
        self.record_count = 0
        self.newest_ms = 0

    def walk(self, queues: RecordSink, index: KeySink, progress: Progress) -> None:
        """Read every file, and pass records and keys to the other checks."""
        files = [file for file in self._files if file.start < self._reader.end_offset]

        def walk_file(file: LogFile) -> _FileWalk:
            return self._walk_file(file, queues, index, progress)

        with ThreadPoolExecutor(min(os.cpu_count() or 1, _THREADS_MAX)) as pool:
            walks = list(pool.map(walk_file, files))
        queues.settle()
        self.end = max((walk.end for walk in walks), default=self.end)
        self.record_count = sum(walk.record_count for walk in walks)
        self.newest_ms = max((walk.newest_ms for walk in walks), default=0)
        missing = [gap for gap in self._reader.log.missing() if gap.physical_offset < self.end]
        damage = itertools.chain(missing, *(walk.damage for walk in walks))
        self._holes = sorted(damage, key=lambda hole: hole.physical_offset)
        self._report_files({walk.file.start: walk for walk in walks})
        self._report_holes()

    def _walk_file(
        self, file: LogFile, queues: RecordSink, index: KeySink, progress: Progress
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
        later = (other.start for other in self._files if other.start > file.start)
        return min(next(later, self._reader.end_offset), self._reader.end_offset)

    def _report_progress(self, progress: Progress, more: int) -> None:
        total = self._reader.end_offset - self.start
        with self._lock:
            self._walked_bytes += more
            progress("commit log", min(self._walked_bytes, total), total)

    @cached_property
    def holes(self) -> Spans:
        """Spans of the holes, known after the log was scanned."""
        return Spans(
            np.array([hole.physical_offset for hole in self._holes], np.int64),
            np.array([hole.end for hole in self._holes], np.int64),
        )

    def in_hole(self, physical_offsets: Offsets) -> Mask:
        """Return which offsets are in damage."""
        inside: Mask = self.holes.of(physical_offsets) >= 0
        return inside

    @property
    def ends_in_damage(self) -> bool:
        """Whether the log ends with damage."""
        return bool(self._holes) and self._holes[-1].end >= self.end

    def _report_files(self, walks: dict[int, _FileWalk]) -> None:
        if not self._files:
            text = "there is no log file: a new store, or one that lost its log"
            self._ledger.add(Severity.WARNING, FindingKind.LOG_EMPTY, paths.COMMIT_LOG, text)
        for file in self._files:
            path = f"{paths.COMMIT_LOG}/{file.name}"
            walk = walks.get(file.start)
            wasted = file.nominal_end - walk.end if walk else file.size
            self._ledger.add_file(path, file.size, walk.record_count if walk else 0, wasted)
            if walk is not None and walk.steps_back:
                text = f"{walk.steps_back} times the clock went back: offsets by time may be wrong"
                self._ledger.add(
                    Severity.NOTE, FindingKind.CLOCK_BACK, path, text, count=walk.steps_back
                )
            elif walk is None and self._reader.log.data_end_of(file) == file.start and file.size:
                text = "waits for its first record"
                self._ledger.add(Severity.NOTE, FindingKind.LOG_FILE_WAITING, path, text)
        check_files(self._reader, self._ledger)
        report_foreign(self._reader, self._ledger, paths.COMMIT_LOG)

    def _report_holes(self) -> None:
        for hole in self._holes:
            is_missing = hole.verdict is Verdict.MISSING
            kind = FindingKind.LOG_FILE_MISSING if is_missing else FindingKind.LOG_HOLE
            self._ledger.add_hole(hole, Severity.DAMAGE, kind, hole.reason)
        tail = self._reader.tail
        if tail.torn is not None:
            text = f"torn tail of a crash, which a recovery cuts off: {tail.torn.reason}"
            self._ledger.add_hole(tail.torn, Severity.WARNING, FindingKind.TORN_TAIL, text)
        if tail.stale is not None:
            text = "after the end of the log, where an earlier recovery cut it off"
            self._ledger.add_hole(tail.stale, Severity.NOTE, FindingKind.STALE_TAIL, text)


def check_files(reader: StoreReader, ledger: Ledger) -> None:
    """Check sizes and names of the log files."""
    files = reader.log.files
    usual = max((file.size for file in files), default=0)
    for file in files:
        path = f"{paths.COMMIT_LOG}/{file.name}"
        if file.size == 0 and file is files[-1]:
            ledger.add(Severity.WARNING, FindingKind.LOG_FILE_SIZE, path, EMPTY_LAST)
        elif file.size != file.nominal_size:
            text = f"has {file.size} of {file.nominal_size} bytes: a broker does not start on it"
            ledger.add(Severity.DAMAGE, FindingKind.LOG_FILE_SIZE, path, text)
        elif file.size != usual:
            text = f"has {file.size} bytes, others {usual}: a broker does not start on it"
            ledger.add(Severity.WARNING, FindingKind.LOG_FILE_SIZE, path, text)
        elif file.start % usual:
            text = f"the name is no multiple of the file size {usual}"
            ledger.add(Severity.WARNING, FindingKind.LOG_FILE_NAME, path, text)


EMPTY_LAST = "empty: 5.x removes it at its start, 4.x does not start on it"


def report_foreign(reader: StoreReader, ledger: Ledger, folder: str) -> None:
    """Report other entries in a folder of log or queue files."""
    for entry in reader.folder.entries(folder):
        if entry.is_folder or paths.parse_offset_name(entry.name) is None:
            text = "no store file: 4.x does not start beside it"
            ledger.add(Severity.WARNING, FindingKind.FOREIGN_FILE, f"{folder}/{entry.name}", text)
