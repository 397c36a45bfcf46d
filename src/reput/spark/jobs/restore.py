"""The job ``restore``: write a store from an archive.

    restore(spark, "/backup/archive", "/data/store")                        # all, byte for byte
    restore(spark, "/backup/archive", "/data/store", topics=["orders"])     # repacked

A whole archive becomes the original log files at their old physical offsets, each compared with the
checksum of the archived log file. A part of an archive is packed into new log files: records keep
their queue offset, times and hosts, and get a new physical offset, which changes their offset ids.
References to physical offsets in a message (``prepared_transaction_offset``) are not changed. The
log then begins with its second file, as if the first had expired: if a queue does not begin at 0,
Java takes the blanks before its first unit, which point at 0, for expired only if the log begins
above 0.

Queues and index are not archived: any broker derives them when it opens the store, and so does the
job ``dispatch``. The broker's tables are restored as they were at the last archiving.
"""

import dataclasses
import hashlib
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import numpy.typing as npt

from reput.errors import CorruptRecord, InvalidOption, StoreUnavailable
from reput.format import message as record
from reput.spark.archive import files, records
from reput.spark.archive.files import Manifest, Part, RowGroup
from reput.spark.archive.folder import archive_folder
from reput.spark.archive.view import ArchiveReader
from reput.spark.jobs import folder_checks
from reput.spark.jobs.packing import (
    begin_store,
    copy_tables,
    finish_store,
    move,
    pack,
    write_log_file,
)
from reput.spark.jobs.running import Progress, runner_on
from reput.store.files import paths
from reput.store.files.files import absolute, open_folder
from reput.store.log.archived import manifest_path

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_MARK = "restoring.json"
"""File that describes the restore into a folder, until the folder is complete."""
_COLUMNS = ["physical_offset", "store_size", "store_timestamp"]
_LONGS = 1 << 63

Rows = npt.NDArray[np.int64]


@dataclass(frozen=True)
class RestoreResult:
    """The result of a restore."""

    archive: str
    store: str
    is_identical: bool
    """True if log files are the archived ones, byte for byte; false if they are repacked."""
    log_files: int
    file_bytes: int
    """Value of ``mappedFileSizeCommitLog`` for the broker."""
    messages: int
    log_bytes: int
    """Bytes from the first record to the end of the last one."""
    damaged_bytes: int
    """Damaged bytes, restored unchanged; 0 if the log is repacked."""

    def as_json(self) -> dict[str, Any]:
        """Return plain lists and dictionaries."""
        return dataclasses.asdict(self)


@dataclass(frozen=True)
class RecordFilter:
    """The records to restore."""

    topics: frozenset[str] | None = None
    """Topics; None for all."""
    begin_ms: int = -_LONGS
    """First store time, in ms."""
    end_ms: int = _LONGS - 1
    """Store time after the last one, in ms."""

    @property
    def is_all(self) -> bool:
        """Whether all records are selected."""
        return self == RecordFilter()

    def may_have(self, part: Part, group: RowGroup) -> bool:
        """Return whether a row group can hold selected records."""
        is_wanted = self.topics is None or part.topic in self.topics
        return is_wanted and group.min_time_ms < self.end_ms and group.max_time_ms >= self.begin_ms


@dataclass(frozen=True)
class _NewFile:
    """A log file packed from a run of the selected records."""

    archive: str
    store: str
    selection: RecordFilter
    first: int
    """Physical offset of its first record in the archived log."""
    last: int
    """Physical offset of its last record in the archived log."""
    start: int
    """Physical offset of the new log file."""
    used: int
    """Bytes of records."""
    file_bytes: int
    is_last: bool


def restore(
    spark: "SparkSession | None",
    archive: str,
    store: str,
    *,
    topics: Sequence[str] | None = None,
    begin_ms: int | None = None,
    end_ms: int | None = None,
    repack: bool = False,
    file_bytes: int | None = None,
    progress: Progress | None = None,
) -> RestoreResult:
    """Write a store from an archive, or from a part of it.

    A killed run can be repeated: it starts over and gives the same bytes.

    Args:
        spark: The session; without one tasks run in this process.
        archive: The archive's folder, a path or URI.
        store: The folder to write; new or empty, and reachable by the workers under this path.
        topics: Only these topics; by default all.
        begin_ms: Only messages stored from this time on, ms; by default all.
        end_ms: Only messages stored before this time, ms; by default all.
        repack: Leave out damaged, blank, missing and compacted bytes, even if all is selected.
        file_bytes: Size of repacked log files; by default that of the archived ones.
        progress: Called with the number of completed tasks.

    Raises:
        StoreUnavailable: There is no archive, or log files are missing in between or compacted.
        InvalidOption: The folder holds other files, a topic is not in the archive, or a record is
            larger than a file.
        CorruptRecord: A manifest cannot be read.
        WriteFailed: The folder cannot be written to.
        TaskFailed: The archive is damaged, or a task failed for another reason.
    """
    archive, store = absolute(archive), folder_checks.writable_folder("store", store)
    manifests = ArchiveReader.open(archive).manifests
    selection = _selection(manifests, topics, begin_ms, end_ms)
    is_identical = selection.is_all and not repack and file_bytes is None
    if is_identical:
        _refuse_gaps(archive, manifests)
        _refuse_compacted(archive, manifests)
    size = file_bytes or max((manifest.nominal_size for manifest in manifests), default=0)
    _begin(archive, store, [selection, size, is_identical])
    if is_identical:
        tasks = [(archive, store, manifest.start) for manifest in manifests]
        runner_on(spark, "restore", progress)("restore", _restore_file, tasks)
        result = RestoreResult(
            archive=archive,
            store=store,
            is_identical=True,
            log_files=len(manifests),
            file_bytes=size,
            messages=sum(manifest.messages for manifest in manifests),
            log_bytes=manifests[-1].end - manifests[0].start if manifests else 0,
            damaged_bytes=sum(manifest.damaged_bytes for manifest in manifests),
        )
    else:
        result = _restore_part(spark, archive, store, manifests, selection, size, progress)
    finish_store(store, _MARK)
    return result


def _restore_part(
    spark: "SparkSession | None",
    archive: str,
    store: str,
    manifests: list[Manifest],
    selection: RecordFilter,
    file_bytes: int,
    progress: Progress | None,
) -> RestoreResult:
    runner = runner_on(spark, "restore", progress)
    tasks = [(archive, manifest.start, selection) for manifest in manifests]
    columns = [
        np.frombuffer(data, np.int64).reshape(2, -1)
        for data in runner("find", _find_records, tasks)
    ]
    offsets, sizes = np.concatenate([np.empty((2, 0), np.int64), *columns], axis=1)
    cuts = [*pack(sizes, file_bytes)]
    new_files = [
        _NewFile(
            archive,
            store,
            selection,
            int(offsets[first]),
            int(offsets[stop - 1]),
            (number + 1) * file_bytes,
            int(sizes[first:stop].sum()),
            file_bytes,
            is_last=stop == len(sizes),
        )
        for number, (first, stop) in enumerate(cuts)
    ]
    runner("pack", _pack_file, new_files)
    log_bytes = new_files[-1].start + new_files[-1].used - new_files[0].start if new_files else 0
    return RestoreResult(
        archive=archive,
        store=store,
        is_identical=False,
        log_files=len(new_files),
        file_bytes=file_bytes,
        messages=len(sizes),
        log_bytes=log_bytes,
        damaged_bytes=0,
    )


# On the driver --------------------------------------------------------------------------------


def _selection(
    manifests: list[Manifest],
    topics: Sequence[str] | None,
    begin_ms: int | None,
    end_ms: int | None,
) -> RecordFilter:
    if topics is not None:
        known = sorted({part.topic for manifest in manifests for part in manifest.parts})
        for topic in topics:
            if topic not in known:
                raise InvalidOption("topics", topic, f"topics of the archive: {', '.join(known)}")
    return RecordFilter(
        None if topics is None else frozenset(topics),
        -_LONGS if begin_ms is None else begin_ms,
        _LONGS - 1 if end_ms is None else end_ms,
    )


def _refuse_gaps(archive: str, manifests: list[Manifest]) -> None:
    for manifest, following in itertools.pairwise(manifests):
        if manifest.start + manifest.nominal_size != following.start:
            raise StoreUnavailable(
                f"{archive} lacks the log files between {manifest.name} and {following.name}, "
                "without which no broker opens the log: restore the rest with repack=True"
            )


def _refuse_compacted(archive: str, manifests: list[Manifest]) -> None:
    compacted = [manifest.name for manifest in manifests if manifest.dropped]
    if compacted:
        raise StoreUnavailable(
            f"{archive} has been compacted, {len(compacted)} log files from {compacted[0]} on: "
            "restore the rest with repack=True"
        )


def _begin(archive: str, store: str, request: list[object]) -> None:
    """Create the store's folder, or check that an earlier run did; copy the tables into it."""
    begin_store(store, _MARK, msgspec.json.encode([archive, *request], order="deterministic"))
    copy_tables(open_folder(archive), store)


# On the executors -----------------------------------------------------------------------------


def _restore_file(task: tuple[str, str, int]) -> int:
    """Write an archived log file; return its size."""
    archive, store, start = task
    manifest = files.load_manifest(open_folder(archive), start)
    data = ArchiveReader.open(archive).log.file_bytes(start)
    if hashlib.sha256(data).hexdigest() != manifest.sha256:
        raise CorruptRecord(
            "the restored log file has another checksum than the archived one",
            file=manifest_path(start),
        )
    write_log_file(store, manifest.name, memoryview(data), len(data))
    return len(data)


def _find_records(task: tuple[str, int, RecordFilter]) -> bytes:
    """Return physical offsets and sizes of the selected records of a log file, in log order."""
    archive, start, selection = task
    manifest = files.load_manifest(open_folder(archive), start)
    columns = [group.selected() for group in _wanted(archive, [manifest], selection)]
    both = np.concatenate([np.empty((2, 0), np.int64), *columns], axis=1)
    return both[:, np.argsort(both[0])].tobytes()


def _pack_file(task: _NewFile) -> int:
    """Write a log file of moved records; return the number of records."""
    manifests = [
        manifest
        for manifest in ArchiveReader.open(task.archive).manifests
        if manifest.start <= task.last and task.first < manifest.start + manifest.size
    ]
    groups = [
        wanted
        for wanted in _wanted(task.archive, manifests, task.selection)
        if wanted.group.min_offset <= task.last and task.first < wanted.group.end_offset
    ]
    columns = [group.selected() for group in groups]
    offsets, sizes = np.concatenate([np.empty((2, 0), np.int64), *columns], axis=1)
    inside = (offsets >= task.first) & (offsets <= task.last)
    order = np.argsort(offsets[inside])
    offsets, sizes = offsets[inside][order], sizes[inside][order]
    positions = np.cumsum(sizes) - sizes
    assert int(sizes.sum()) == task.used
    data = np.zeros(task.used + record.BLANK.size, np.uint8)
    for group in groups:
        group.copy(offsets, positions, data)
    move(data, positions, sizes, task.start)
    used = task.used
    if not task.is_last:
        blank = record.pack_blank(task.file_bytes - used)
        data[used : used + len(blank)] = np.frombuffer(blank, np.uint8)
        used += len(blank)
    name = paths.offset_name(task.start)
    write_log_file(task.store, name, data.data[:used], task.file_bytes)
    return len(offsets)


class _WantedGroup:
    """A row group that can hold selected records."""

    def __init__(
        self, archive: str, part: Part, number: int, group: RowGroup, selection: RecordFilter
    ) -> None:
        self.group = group
        self._archive = archive_folder(archive)
        self._path = part.path
        self._number = number
        self._selection = selection

    @cached_property
    def _rows(self) -> tuple[Rows, Rows]:
        """Selected rows, and the physical offset and size of each."""
        with self._archive.open_parquet(self._path) as parquet:
            table = parquet.read_row_group(self._number, columns=_COLUMNS, use_threads=False)
        # A time outside of the calendar is null, and only in the range of all times.
        times = table.column("store_timestamp").cast("int64")
        known = ~times.is_null().to_numpy()
        times_ms = times.fill_null(0).to_numpy() // 1000
        chosen = self._selection
        wanted = known & (times_ms >= chosen.begin_ms) & (times_ms < chosen.end_ms)
        if (chosen.begin_ms, chosen.end_ms) == (-_LONGS, _LONGS - 1):
            wanted = np.ones(len(table), np.bool_)
        rows = np.flatnonzero(wanted)
        numbers = [table.column(name).to_numpy().astype(np.int64) for name in _COLUMNS[:2]]
        return rows, np.stack(numbers)[:, rows]

    def selected(self) -> Rows:
        """Return physical offsets and sizes of the selected records, shape (2, n)."""
        return self._rows[1]

    def copy(self, offsets: Rows, positions: Rows, target: npt.NDArray[np.uint8]) -> None:
        """Copy the selected records to their positions in the new file.

        Args:
            offsets: Physical offsets of the selected records, ascending.
            positions: Position in ``target`` of each.
            target: The log file.
        """
        rows, (own, sizes) = self._rows
        place = np.searchsorted(offsets, own)
        inside = (place < len(offsets)) & (offsets[np.minimum(place, len(offsets) - 1)] == own)
        rows, sizes, place = rows[inside], sizes[inside], place[inside]
        if not len(rows):
            return
        with self._archive.open_parquet(self._path) as parquet:
            names = records.record_columns()
            table = parquet.read_row_group(self._number, columns=names, use_threads=False)
        data, bounds = records.join_records(table)
        source = np.frombuffer(data, np.uint8)
        starts, to = bounds[rows], positions[place]
        # Records that are adjacent in both are copied together.
        is_first = np.ones(len(rows), np.bool_)
        is_first[1:] = (starts[1:] != starts[:-1] + sizes[:-1]) | (to[1:] != to[:-1] + sizes[:-1])
        firsts = np.flatnonzero(is_first)
        lengths = np.add.reduceat(sizes, firsts)
        runs = zip(starts[firsts].tolist(), to[firsts].tolist(), lengths.tolist(), strict=True)
        for start, position, length in runs:
            target[position : position + length] = source[start : start + length]


def _wanted(
    archive: str, manifests: list[Manifest], selection: RecordFilter
) -> Iterator[_WantedGroup]:
    for manifest in manifests:
        for part in manifest.parts:
            for number, group in enumerate(part.row_groups):
                if selection.may_have(part, group):
                    yield _WantedGroup(archive, part, number, group, selection)
