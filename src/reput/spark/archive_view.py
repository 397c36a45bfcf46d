"""An archive for reading: a store whose log is in Parquet.

``ArchiveReader`` is a ``StoreReader``, so that whatever reads a store reads an archive: bytes of
the log are put together again from records and from what is kept of the rest, queues are known by
their bounds, keys are found in the keys files. Scans do better than bytes: ``row_groups`` says
where records are, ``columns`` decodes them straight from Parquet.
"""

from collections import OrderedDict, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow.parquet as pq
import zstandard

from reput.errors import CorruptRecord, NotInStore, StoreUnavailable
from reput.format import index_entry, kernels
from reput.format.message import Verdict
from reput.spark import archive_files as files, archive_records as records
from reput.spark.archive_files import Manifest, Part, RowGroup
from reput.spark.archive_write import KEY_TYPE
from reput.store import paths
from reput.store.commit_log_view import CommitLogView, Damage, LogFile
from reput.store.consume_queue_view import ConsumeQueueView
from reput.store.files import Bytes, Folder, open_folder
from reput.store.index_view import IndexView
from reput.store.reader import Boundary, LogTail, StoreReader

_JOINED_ROW_GROUPS = 8
"""Row groups that are kept joined, for lookups that follow the log."""


@dataclass(frozen=True, slots=True)
class ArchivedRows:
    """A row group, and where it is."""

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
        """Not for most callers: see ``open``."""
        super().__init__(folder)
        self.manifests = manifests
        self._broker = broker
        self.log: ArchivedLog = ArchivedLog(folder, manifests)
        self.index = ArchivedIndex(folder, manifests)

    @classmethod
    def open(cls, location: str, *, allow_live: bool = False) -> "ArchiveReader":
        """Open an archive.

        Args:
            location: Its folder.
            allow_live: Nothing writes to what is archived; no matter.

        Raises:
            StoreUnavailable: There is no archive.
            CorruptRecord: A manifest cannot be read.
        """
        header = files.load_header(location)
        return cls(open_folder(location), files.load_manifests(location), header.broker)

    def broker_name(self) -> str:
        """Return the name of the broker whose store was archived."""
        return self._broker

    # Queues ---------------------------------------------------------------------------------

    @cached_property
    def _bounds(self) -> dict[tuple[str, int], Bounds]:
        found: dict[tuple[str, int], Bounds] = {}
        for queue in (queue for one in self.manifests for queue in one.queues):
            key = (queue.topic, queue.queue_id)
            known = found.get(key, Bounds(queue.min_offset, queue.max_offset + 1))
            low, high = min(known.low, queue.min_offset), max(known.high, queue.max_offset + 1)
            found[key] = Bounds(low, high)
        return found

    @cached_property
    def queue_ids(self) -> dict[str, list[int]]:
        """The queues that have messages: topic -> queue ids, in order."""
        found: dict[str, list[int]] = defaultdict(list)
        for topic, queue_id in sorted(self._bounds):
            found[topic].append(queue_id)
        return dict(found)

    def queue(self, topic: str, queue_id: int) -> ConsumeQueueView:
        """Return a queue, which has bounds and no units."""
        bounds = self._bounds.get((topic, queue_id), Bounds(0, 0))
        return ArchivedQueue(self._folder, topic, queue_id, bounds)

    @cached_property
    def queue_end(self) -> int | None:
        """Where the log ends: all of it is known by its messages."""
        return self.end_offset if self.manifests else None

    @cached_property
    def tail(self) -> LogTail:
        """Where the log ends, as it was when it was archived."""
        return LogTail(self.manifests[-1].end if self.manifests else 0)

    def offset_by_time(
        self, topic: str, queue_id: int, timestamp_ms: int, boundary: Boundary = Boundary.LOWER
    ) -> int:
        """Return the queue offset that a time names. See ``StoreReader.offset_by_time``."""
        bounds = self._bounds.get((topic, queue_id), Bounds(0, 0))
        offsets, times_ms = self._times(topic).get(queue_id, (np.empty(0, np.int64),) * 2)
        if boundary is Boundary.LOWER:
            place = int(np.searchsorted(times_ms, timestamp_ms, "left"))
            return int(offsets[place]) if place < len(offsets) else bounds.high
        place = int(np.searchsorted(times_ms, timestamp_ms, "right")) - 1
        return int(offsets[max(place, 0)]) if len(offsets) else bounds.low

    @lru_cache(maxsize=16)  # noqa: B019 - as long as the reader, which few have
    def _times(self, topic: str) -> dict[int, tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]]:
        """Return queue offsets and store times of a topic's messages, by queue."""
        names = ["queue_id", "queue_offset", "store_timestamp", "sys_flag"]
        found: dict[int, list[npt.NDArray[np.int64]]] = defaultdict(list)
        for part in (part for one in self.manifests for part in one.parts if part.topic == topic):
            with self._open(part) as parquet:
                table = parquet.read(columns=names)
            columns = np.stack(
                [
                    table.column("queue_id").to_numpy().astype(np.int64),
                    table.column("queue_offset").to_numpy(),
                    table.column("store_timestamp").cast("int64").fill_null(0).to_numpy() // 1000,
                ]
            )
            queued = np.isin(table.column("sys_flag").to_numpy() & 0xC, (0, 8))
            columns = columns[:, queued]
            for queue_id in np.unique(columns[0]):
                found[int(queue_id)].append(columns[1:, columns[0] == queue_id])
        sorted_times = {}
        for queue_id, pieces in found.items():
            offsets, times_ms = np.concatenate(pieces, axis=1)
            order = np.argsort(offsets, kind="stable")
            sorted_times[queue_id] = (offsets[order], times_ms[order])
        return sorted_times

    # Records --------------------------------------------------------------------------------

    def row_groups(self) -> Iterator[ArchivedRows]:
        """Yield all row groups, by log file."""
        for manifest in self.manifests:
            for part in manifest.parts:
                for number, group in enumerate(part.row_groups):
                    yield ArchivedRows(part, number, group)

    def columns(self, path: str, numbers: tuple[int, ...]) -> Iterator[kernels.Columns]:
        """Yield the records of row groups of a part, decoded.

        Raises:
            CorruptRecord: The Parquet file is damaged.
        """
        for number in numbers:
            yield records.columns_of(self.log.read_row_group(path, number))

    def damage(self) -> Iterator[tuple[Manifest | None, Damage]]:
        """Yield what the log lacked or could not read when it was archived, by physical offset.

        With the log file it is in; None for log files that are missing.
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

    def _open(self, part: Part) -> pq.ParquetFile:
        return open_parquet(Path(self.location, part.path))


class ArchivedQueue(ConsumeQueueView):
    """A queue of an archive: its bounds are known, units it has none."""

    def __init__(self, folder: Folder, topic: str, queue_id: int, bounds: Bounds) -> None:
        super().__init__(folder, topic, queue_id, 0)
        self.min_offset, self.max_offset = bounds.low, bounds.high

    @property
    def end_physical_offset(self) -> int | None:
        """No unit points anywhere."""
        return None


class ArchivedLog(CommitLogView):
    """The bytes of an archived log."""

    def __init__(self, folder: Folder, manifests: list[Manifest]) -> None:
        super().__init__(folder)
        self._manifests = {one.name: one for one in manifests}
        self._joined: OrderedDict[tuple[str, int], _Joined] = OrderedDict()

    @cached_property
    def files(self) -> list[LogFile]:
        """The log files that are archived."""
        return [
            LogFile(one.name, one.start, one.size, one.nominal_size, 0)
            for one in self._manifests.values()
        ]

    def file_bytes(self, start: int) -> bytearray:
        """Return a log file as it was. Raises as ``read_row_group`` does, or ``NotInStore``."""
        file = self.file_at(start)
        return self._bytes(file, 0, file.size)

    def read_row_group(self, path: str, number: int) -> "pq.Table":
        """Return what makes the records of a row group.

        Raises:
            CorruptRecord: The Parquet file is damaged, or gone.
        """
        try:
            with open_parquet(Path(self._folder.location, path)) as parquet:
                return parquet.read_row_group(number, columns=records.record_columns())
        except (OSError, ValueError, IndexError) as error:
            raise CorruptRecord(f"row group {number}: {error}", file=path) from error

    def _read(self, file: LogFile, start: int, length: int) -> Bytes:
        return memoryview(self._bytes(file, start, length))

    def _bytes(self, file: LogFile, start: int, length: int) -> bytearray:
        manifest = self._manifests[file.name]
        low = file.start + start
        high = min(low + length, file.end)
        found = bytearray(max(high - low, 0))
        self._copy_rest(manifest, low, high, found)
        for part in manifest.parts:
            for number, group in enumerate(part.row_groups):
                if group.min_offset < high and low < group.end_offset:
                    self._joined_row_group(part.path, number).copy(low, high, found)
        return found

    def _copy_rest(self, manifest: Manifest, low: int, high: int, target: bytearray) -> None:
        position = 0
        rest: bytes | None = None
        for start, length in manifest.rest_ranges:
            first, last = max(start, low), min(start + length, high)
            if first < last:
                rest = self._rest(manifest) if rest is None else rest
                at = position + first - start
                target[first - low : last - low] = rest[at : at + last - first]
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
            self._joined[key] = _Joined(self.read_row_group(path, number))
            if len(self._joined) > _JOINED_ROW_GROUPS:
                self._joined.popitem(last=False)
        self._joined.move_to_end(key)
        return self._joined[key]


class _Joined:
    """The records of a row group as runs: records that follow each other in the log are one."""

    def __init__(self, table: "pq.Table") -> None:
        data, bounds = records.join_records(table)
        self._data = memoryview(data) if data is not None else memoryview(b"")
        columns = kernels.Columns(self._data, bounds[:-1])
        offsets = columns.numbers("physical_offset")
        breaks = np.flatnonzero(offsets[1:] != offsets[:-1] + np.diff(bounds)[:-1]) + 1
        firsts = np.concatenate([[0], breaks]).astype(np.int64)[: len(offsets)]
        self._positions = bounds[firsts]
        self._offsets = offsets[firsts]
        ends = bounds[np.concatenate([breaks, [len(offsets)]]).astype(np.int64)][: len(firsts)]
        self._sizes = ends - self._positions

    def copy(self, low: int, high: int, target: bytearray) -> None:
        """Copy what stands in ``[low, high)`` of the log to where it belongs in ``target``."""
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
                at = position + start - offset
                target[start - low : stop - low] = self._data[at : at + stop - start]


class ArchivedIndex(IndexView):
    """The keys files of an archive, in place of index files."""

    def __init__(self, folder: Folder, manifests: list[Manifest]) -> None:
        super().__init__(folder)
        self._manifests = manifests

    def candidates(self, index_key: str, begin_ms: int, end_ms: int) -> list[int]:
        """Return physical offsets, ascending, of messages that may carry ``topic#key``.

        Raises:
            CorruptRecord: A keys file that may hold the key is damaged.
        """
        wanted = np.int32(index_entry.key_hash(index_key))
        found: list[int] = []
        for one in self._manifests:
            entries = self._entries(one)
            hashes = entries["hash"]
            low = int(np.searchsorted(hashes, wanted, "left"))
            high = int(np.searchsorted(hashes, wanted, "right"))
            found += (entries["position"][low:high].astype(np.int64) + one.start).tolist()
        return sorted(set(found))

    def _entries(self, manifest: Manifest) -> npt.NDArray[np.void]:
        path = manifest.keys.path
        try:
            data = self._folder.read(path)
        except NotInStore as error:
            raise CorruptRecord(str(error), file=path) from error
        if len(data) != manifest.keys.bytes:
            raise CorruptRecord(f"has {len(data)} of {manifest.keys.bytes} bytes", file=path)
        return np.frombuffer(data, KEY_TYPE)


def open_parquet(path: Path) -> pq.ParquetFile:
    """Open a Parquet file of an archive.

    Raises:
        StoreUnavailable: It is gone.
    """
    try:
        return pq.ParquetFile(path, memory_map=True, pre_buffer=False)
    except FileNotFoundError as error:
        raise StoreUnavailable(f"{path} is gone from the archive") from error
