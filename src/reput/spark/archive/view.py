"""Reading an archive as a store whose log is in Parquet.

``ArchiveReader`` is a ``StoreReader``, so that all readers of stores read archives: it rebuilds
bytes of the log from records and the other ranges, has queues with bounds, and finds keys in the
keys files. Scans avoid the bytes: ``row_groups`` lists the records, and ``columns`` decodes them
directly from Parquet.
"""

from collections import OrderedDict, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
import numpy.typing as npt
import pyarrow.parquet as pq
import zstandard

from reput.errors import CorruptRecord, NotInStore
from reput.format import index_entry, kernels, message as record, sys_flag as flags
from reput.format.message import Verdict
from reput.spark.archive import files, records
from reput.spark.archive.files import Manifest, Part, RowGroup
from reput.spark.archive.folder import ArchiveFolder, archive_folder
from reput.spark.archive.write import KEY_TYPE
from reput.store.files import paths
from reput.store.files.files import Bytes, Folder, open_folder
from reput.store.index.index_view import IndexView
from reput.store.log.commit_log_view import CommitLogView, Damage, LogFile
from reput.store.queues.consume_queue_view import ConsumeQueueView
from reput.store.reader import Boundary, LogTail, StoreReader

_JOINED_ROW_GROUPS = 8
"""Number of row groups cached as joined bytes, for lookups that follow the log."""
_OPEN_PARTS = 8
_TIMED_ROW_GROUPS = 64
"""Number of row groups whose times are cached: all queues of a topic are searched for the same
time."""
_KEYS_READ_BYTES = 32 * 1024
"""Size of a read of a keys file around the expected position of a key, in bytes."""


@dataclass(frozen=True, slots=True)
class ArchivedRows:
    """A row group and its position in the archive."""

    part: Part
    number: int
    group: RowGroup


@dataclass(frozen=True, slots=True)
class Bounds:
    """The queue offsets of a queue in an archive: ``[low, high)``."""

    low: int
    high: int


class ArchiveReader(StoreReader):
    """Read-only access to an archive; open with ``ArchiveReader.open``."""

    def __init__(self, folder: Folder, manifests: list[Manifest], broker: str) -> None:
        """Open an archive; callers use ``open``."""
        super().__init__(folder)
        self.manifests = manifests
        self._broker = broker
        self.log: ArchivedLog = ArchivedLog(folder, manifests)
        self._times = lru_cache(_TIMED_ROW_GROUPS)(self._read_times)
        self.index = ArchivedIndex(folder, manifests)

    @classmethod
    def open(cls, location: str, *, allow_live: bool = False) -> "ArchiveReader":
        """Open an archive.

        Args:
            location: Its folder, a path or URI.
            allow_live: Ignored: nothing writes to an archive.

        Raises:
            StoreUnavailable: There is no archive.
            CorruptRecord: A manifest cannot be decoded.
        """
        folder = open_folder(location)
        header = files.load_header(folder)
        return cls(folder, files.load_manifests(folder), header.broker)

    def broker_name(self) -> str:
        """Return the name of the broker whose store was archived."""
        return self._broker

    # Queues ---------------------------------------------------------------------------------

    @cached_property
    def _bounds(self) -> dict[tuple[str, int], Bounds]:
        bounds: dict[tuple[str, int], Bounds] = {}
        for queue in (queue for manifest in self.manifests for queue in manifest.queues):
            key = (queue.topic, queue.queue_id)
            known = bounds.get(key, Bounds(queue.min_offset, queue.max_offset + 1))
            low, high = min(known.low, queue.min_offset), max(known.high, queue.max_offset + 1)
            bounds[key] = Bounds(low, high)
        return bounds

    @cached_property
    def queue_ids(self) -> dict[str, list[int]]:
        """Queues with messages: topic to sorted queue ids."""
        ids_by_topic: dict[str, list[int]] = defaultdict(list)
        for topic, queue_id in sorted(self._bounds):
            ids_by_topic[topic].append(queue_id)
        return dict(ids_by_topic)

    def queue(self, topic: str, queue_id: int) -> ConsumeQueueView:
        """Return a queue, which has bounds but no units."""
        bounds = self._bounds.get((topic, queue_id), Bounds(0, 0))
        return ArchivedQueue(self._folder, topic, queue_id, bounds)

    @cached_property
    def queue_end(self) -> int | None:
        """Physical offset after the last queued record: the end of the log."""
        return self.end_offset if self.manifests else None

    @cached_property
    def tail(self) -> LogTail:
        """End of the log when it was archived."""
        return LogTail(self.manifests[-1].end if self.manifests else 0)

    def offset_by_time(
        self, topic: str, queue_id: int, timestamp_ms: int, boundary: Boundary = Boundary.LOWER
    ) -> int:
        """Return the queue offset of a time. See ``StoreReader.offset_by_time``."""
        bounds = self._bounds.get((topic, queue_id), Bounds(0, 0))
        groups = self._row_groups_of(topic, queue_id)
        if boundary is Boundary.LOWER:
            for rows in groups:
                if rows.group.max_time_ms >= timestamp_ms:
                    offsets, times_ms = self._times_in(rows, queue_id)
                    later = np.flatnonzero(times_ms >= timestamp_ms)
                    if len(later):
                        return int(offsets[later[0]])
            return bounds.high
        for rows in reversed(groups):
            if rows.group.min_time_ms <= timestamp_ms:
                offsets, times_ms = self._times_in(rows, queue_id)
                earlier = np.flatnonzero(times_ms <= timestamp_ms)
                if len(earlier):
                    return int(offsets[earlier[-1]])
        return bounds.low

    def _row_groups_of(self, topic: str, queue_id: int) -> list[ArchivedRows]:
        """Return the row groups that may contain messages of a queue, in log order."""
        return [row_group for ids, row_group in self._row_groups_by_topic[topic] if queue_id in ids]

    @cached_property
    def _row_groups_by_topic(self) -> dict[str, list[tuple[set[int], ArchivedRows]]]:
        """Row groups of each topic, with the queues of their log file."""
        by_topic: dict[str, list[tuple[set[int], ArchivedRows]]] = defaultdict(list)
        for manifest in self.manifests:
            ids: dict[str, set[int]] = defaultdict(set)
            for queue in manifest.queues:
                ids[queue.topic].add(queue.queue_id)
            for row_group in _row_groups([manifest]):
                by_topic[row_group.part.topic].append((ids[row_group.part.topic], row_group))
        return by_topic

    def _times_in(
        self, row_group: ArchivedRows, queue_id: int
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Return queue offsets and store times of a queue's messages in a row group."""
        queue_ids, offsets, times_ms = self._times(row_group.part.path, row_group.number)
        is_its = queue_ids == queue_id
        return offsets[is_its], times_ms[is_its]

    def _read_times(self, path: str, number: int) -> npt.NDArray[np.int64]:
        """Return queue ids, queue offsets and store times of queued messages, shape (3, n)."""
        names = ["queue_id", "queue_offset", "store_timestamp", "sys_flag"]
        table = self.log.read_row_group(path, number, names)
        columns = np.stack(
            [
                table.column("queue_id").to_numpy().astype(np.int64),
                table.column("queue_offset").to_numpy(),
                table.column("store_timestamp").cast("int64").fill_null(0).to_numpy() // 1000,
            ]
        )
        is_queued = (table.column("sys_flag").to_numpy() & flags.TRANSACTION_PREPARED) == 0
        return columns[:, is_queued]

    # Records --------------------------------------------------------------------------------

    def row_groups(self) -> Iterator[ArchivedRows]:
        """Yield all row groups, by log file."""
        return _row_groups(self.manifests)

    def columns(
        self, path: str, numbers: tuple[int, ...], *, has_bodies: bool = True
    ) -> Iterator[kernels.Columns]:
        """Yield the decoded records of row groups of a part.

        Args:
            path: Path of the part.
            numbers: Numbers of the row groups.
            has_bodies: Read the bodies too; otherwise all bodies are empty, except in row groups
                with batch records, which need theirs.

        Raises:
            CorruptRecord: The Parquet file is damaged.
        """
        names = records.record_columns(has_bodies=has_bodies)
        for number in numbers:
            columns = records.columns_of(self.log.read_row_group(path, number, names))
            if not has_bodies and (columns.numbers("sys_flag") & flags.INNER_BATCH).any():
                whole = records.record_columns()
                columns = records.columns_of(self.log.read_row_group(path, number, whole))
            yield columns

    def damage(self) -> Iterator[tuple[Manifest | None, Damage]]:
        """Yield the missing and damaged ranges of the archived log, by physical offset.

        Each has its log file; None for missing log files.
        """
        expected = None
        for manifest in self.manifests:
            if expected is not None and expected < manifest.start:
                gap = manifest.start - expected
                yield None, Damage(expected, gap, Verdict.MISSING, paths.offset_name(expected))
            for run in manifest.damage:
                verdict = Verdict[run.verdict]
                yield manifest, Damage(run.offset, run.length, verdict, manifest.name)
            expected = manifest.start + manifest.nominal_size


def _row_groups(manifests: list[Manifest]) -> Iterator[ArchivedRows]:
    for manifest in manifests:
        for part in manifest.parts:
            for number, group in enumerate(part.row_groups):
                yield ArchivedRows(part, number, group)


class ArchivedQueue(ConsumeQueueView):
    """A queue of an archive, with bounds and without units."""

    def __init__(self, folder: Folder, topic: str, queue_id: int, bounds: Bounds) -> None:
        super().__init__(folder, topic, queue_id, 0)
        self.min_offset, self.max_offset = bounds.low, bounds.high

    @property
    def end_physical_offset(self) -> int | None:
        """None: an archive does not have the physical offset after the last unit's record."""
        return None


class ArchivedLog(CommitLogView):
    """The bytes of an archived log."""

    def __init__(self, folder: Folder, manifests: list[Manifest]) -> None:
        super().__init__(folder)
        self._archive: ArchiveFolder = archive_folder(folder.location)
        self._manifests = {manifest.name: manifest for manifest in manifests}
        self._joined: OrderedDict[tuple[str, int], _Joined] = OrderedDict()
        self._opened = lru_cache(_OPEN_PARTS)(self._archive.open_parquet)

    @cached_property
    def files(self) -> list[LogFile]:
        """The archived log files."""
        return [
            LogFile(manifest.name, manifest.start, manifest.size, manifest.nominal_size, 0)
            for manifest in self._manifests.values()
        ]

    def file_bytes(self, start: int) -> bytearray:
        """Return the bytes of a log file, with zeros in place of messages removed by ``compact``.

        Raises as ``read_row_group``, or ``NotInStore``.
        """
        file = self.file_at(start)
        return self._bytes(file, 0, file.size)

    def record_bytes(self, physical_offset: int, size: int | None = None) -> bytes:
        """Return the bytes of the record at an offset. See ``CommitLogView.record_bytes``."""
        file = self.file_at(physical_offset)
        if self._manifests[file.name].dropped:
            position = physical_offset - file.start
            if not any(self._bytes(file, position, record.SIZE_AND_MAGIC.size)):
                raise NotInStore(f"the message at {physical_offset} was taken out by compact")
        return super().record_bytes(physical_offset, size)

    def read_row_group(self, path: str, number: int, columns: list[str]) -> "pq.Table":
        """Return columns of a row group.

        Raises:
            CorruptRecord: The Parquet file is damaged.
            StoreUnavailable: It is missing.
        """
        try:
            parquet = self._opened(path)
            return parquet.read_row_group(number, columns=columns, use_threads=False)
        except (OSError, ValueError, IndexError) as error:
            raise CorruptRecord(f"row group {number}: {error}", file=path) from error

    def _read(self, file: LogFile, start: int, length: int) -> Bytes:
        return memoryview(self._bytes(file, start, length))

    def _bytes(self, file: LogFile, start: int, length: int) -> bytearray:
        manifest = self._manifests[file.name]
        low = file.start + start
        high = min(low + length, file.end)
        target = bytearray(max(high - low, 0))
        self._copy_rest(manifest, low, high, target)
        for part in manifest.parts:
            for number, group in enumerate(part.row_groups):
                if group.min_offset < high and low < group.end_offset:
                    self._joined_row_group(part.path, number).copy(low, high, target)
        return target

    def _copy_rest(self, manifest: Manifest, low: int, high: int, target: bytearray) -> None:
        position = 0
        rest: bytes | None = None
        for start, length in manifest.rest_ranges:
            first, last = max(start, low), min(start + length, high)
            if first < last:
                rest = self._rest(manifest) if rest is None else rest
                begin = position + first - start
                target[first - low : last - low] = rest[begin : begin + last - first]
            position += length

    def _rest(self, manifest: Manifest) -> bytes:
        path = manifest.rest.path
        try:
            packed = bytes(self._folder.read(path))
            return zstandard.ZstdDecompressor().decompress(packed)
        except (zstandard.ZstdError, NotInStore) as error:
            raise CorruptRecord(f"cannot be unpacked: {error}", file=path) from error

    def _joined_row_group(self, path: str, number: int) -> "_Joined":
        key = (path, number)
        if key not in self._joined:
            names = records.record_columns()
            self._joined[key] = _Joined(self.read_row_group(path, number, names))
            if len(self._joined) > _JOINED_ROW_GROUPS:
                self._joined.popitem(last=False)
        self._joined.move_to_end(key)
        return self._joined[key]


class _Joined:
    """The records of a row group as runs of consecutive records."""

    def __init__(self, table: "pq.Table") -> None:
        data, bounds = records.join_records(table)
        self._data = memoryview(data)
        columns = kernels.Columns(self._data, bounds[:-1])
        offsets = columns.numbers("physical_offset")
        breaks = np.flatnonzero(offsets[1:] != offsets[:-1] + np.diff(bounds)[:-1]) + 1
        firsts = np.concatenate([[0], breaks]).astype(np.int64)[: len(offsets)]
        self._positions = bounds[firsts]
        self._offsets = offsets[firsts]
        ends = bounds[np.concatenate([breaks, [len(offsets)]]).astype(np.int64)][: len(firsts)]
        self._sizes = ends - self._positions

    def copy(self, low: int, high: int, target: bytearray) -> None:
        """Copy the bytes ``[low, high)`` of the log to their place in ``target``."""
        first = max(int(np.searchsorted(self._offsets, low, "right")) - 1, 0)
        last = int(np.searchsorted(self._offsets, high, "left"))
        runs = zip(
            self._offsets[first:last].tolist(),
            self._positions[first:last].tolist(),
            self._sizes[first:last].tolist(),
            strict=True,
        )
        for offset, position, size in runs:
            start, stop = max(offset, low), min(offset + size, high)
            if start < stop:
                begin = position + start - offset
                target[start - low : stop - low] = self._data[begin : begin + stop - start]


class ArchivedIndex(IndexView):
    """The keys files of an archive, in place of index files."""

    def __init__(self, folder: Folder, manifests: list[Manifest]) -> None:
        super().__init__(folder)
        self._manifests = manifests

    def candidates(self, index_key: str, begin_ms: int, end_ms: int) -> list[int]:
        """Return physical offsets, ascending, of messages that may have ``topic#key``.

        Raises:
            CorruptRecord: A keys file that may contain the key is damaged.
        """
        wanted = index_entry.key_hash(index_key)
        physical_offsets: list[int] = []
        for manifest in self._manifests:
            positions = self._positions(manifest, wanted)
            physical_offsets += (positions.astype(np.int64) + manifest.start).tolist()
        return sorted(set(physical_offsets))

    def _positions(self, manifest: Manifest, wanted: int) -> npt.NDArray[np.uint32]:
        """Return the positions of the records in a log file that have a key with this hash."""
        path, size = manifest.keys.path, manifest.keys.bytes
        entry = self._folder.entry(path)
        if entry is None or entry.size != size:
            problem = "is gone" if entry is None else f"has {entry.size} of {size} bytes"
            raise CorruptRecord(problem, file=path)
        count, step = size // KEY_TYPE.itemsize, _KEYS_READ_BYTES // KEY_TYPE.itemsize
        low, high = 0, count
        guess = (wanted * count) >> 31  # hashes are spread over 31 bits
        while high - low > step:
            start = min(max(guess - step // 2, low), high - step)
            hashes = self._entries(path, start, start + step)["hash"]
            if hashes[0] >= wanted:
                high = start + 1
            elif hashes[-1] < wanted:
                low = start + step
            else:
                low, high = start, start + step
            guess = (low + high) // 2
        return self._run_from(path, low, count, step, wanted)

    def _run_from(
        self, path: str, low: int, count: int, step: int, wanted: int
    ) -> npt.NDArray[np.uint32]:
        """Return the positions of entries with a hash; the first is in the next ``step``."""
        positions = [np.empty(0, np.uint32)]
        while low < count:
            entries = self._entries(path, low, min(low + step, count))
            hashes = entries["hash"]
            first, stop = np.searchsorted(hashes, [wanted, wanted + 1])
            positions.append(entries["position"][first:stop])
            if stop < len(entries):
                break
            low += step
        return np.concatenate(positions)

    def _entries(self, path: str, start: int, stop: int) -> npt.NDArray[np.void]:
        width = KEY_TYPE.itemsize
        try:
            data = self._folder.read(path, start * width, (stop - start) * width)
        except NotInStore as error:
            raise CorruptRecord(str(error), file=path) from error
        return np.frombuffer(data, KEY_TYPE)
