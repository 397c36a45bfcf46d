"""Fragments of an import on disk, and the log files made from them.

A fragment is two files: ``NAME.records``, records without positions as made by
``store.writing.incoming``, and ``NAME.table``, three concatenated arrays: sizes and queues of the
records (int32) and, if records keep their own times, store times (int64).

Records are not inspected here: the kernel of broker puts fills in positions and checksums while it
copies them, a few megabytes per call, so that several log files can be written concurrently.
"""

import os
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
import numpy.typing as npt

from reput.errors import StoreUnavailable
from reput.format import java, message as record
from reput.spark.importing.plan import Fragment, LogPart, Piece, QueueKey, RecordTable
from reput.store.files import paths
from reput.store.files.disk import Disk
from reput.store.hot_state import HotState
from reput.store.kernels import control_block as state, hot

_RECORDS, _TABLE = ".records", ".table"
_CHUNK_BYTES = 4 * 1024 * 1024
"""Approximate number of bytes per call of the kernel: fits the processor's caches."""


class FragmentWriter:
    """Writes a fragment; an unfinished one is removed.

    Args:
        folder: Folder of the fragment; created if missing.
    """

    def __init__(self, folder: str) -> None:
        self._disk = Disk()
        self._disk.make_folder(folder, is_durable=False)
        self._path = f"{folder}/{uuid.uuid4().hex}"
        self._descriptor = self._disk.create(self._path + _RECORDS, 0, is_durable=False)
        self._size = 0
        self._tables: list[RecordTable] = []
        self._is_finished = False

    def add(self, data: bytes | memoryview, table: RecordTable) -> None:
        """Write records. Raises ``WriteFailed``."""
        self._disk.write(self._descriptor, self._path + _RECORDS, self._size, data)
        self._size += len(data)
        self._tables.append(table)

    def finish(self, queues: Sequence[QueueKey]) -> Fragment:
        """Write the table; ``queues`` are the queues that it numbers. Raises ``WriteFailed``."""
        sizes = [table_rows.sizes for table_rows in self._tables]
        numbers = [table_rows.queues for table_rows in self._tables]
        times = [
            table_rows.times_ms for table_rows in self._tables if table_rows.times_ms is not None
        ]
        arrays = [*sizes, *numbers, *times]
        table = b"".join(np.ascontiguousarray(table_rows).tobytes() for table_rows in arrays)
        path = self._path + _TABLE
        descriptor = self._disk.create(path, 0, is_durable=False)
        try:
            self._disk.write(descriptor, path, 0, table)
        finally:
            os.close(descriptor)
        self._is_finished = True
        return Fragment(self._path, self._size, sum(map(len, sizes)), tuple(queues))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        os.close(self._descriptor)
        if not self._is_finished:
            remove(self._path)


def remove(path: str) -> None:
    """Remove a fragment if it exists. Raises ``WriteFailed``."""
    for suffix in (_RECORDS, _TABLE):
        Disk().unlink(path + suffix)


def load_table(fragment: Fragment) -> RecordTable:
    """Return the table of a fragment.

    Raises:
        StoreUnavailable: It is missing: the driver does not see the workers' files.
    """
    count = fragment.count
    try:
        data = Path(fragment.path + _TABLE).read_bytes()
        record_bytes = os.stat(fragment.path + _RECORDS).st_size  # noqa: PTH116 - paths are texts here
    except OSError as error:
        raise StoreUnavailable(
            f"{fragment.path} cannot be read: {error.strerror}; driver and workers must see the "
            "folder of the store under the same path"
        ) from error
    has_times = len(data) == count * 16
    if (len(data) != count * 8 and not has_times) or record_bytes != fragment.size:
        raise StoreUnavailable(
            f"{fragment.path} has {record_bytes} and {len(data)} bytes, not {fragment.size} and "
            f"{count * 8} as its task wrote: something has changed it"
        )
    numbers = np.frombuffer(data, np.int32, 2 * count)
    times = np.frombuffer(data, np.int64, count, count * 8) if has_times else None
    return RecordTable(numbers[:count], numbers[count:], times)


@dataclass(frozen=True)
class Stitch:
    """Writes log files from fragments. Thread-safe.

    Args:
        fragments: In the planner's order.
        file_bytes: Size of a log file.
        has_crc: Records end with a ``__CRC32#`` property.
        disk: Access to the disk.
    """

    fragments: Sequence[Fragment]
    file_bytes: int
    has_crc: bool
    disk: Disk

    def write(self, part: LogPart, path: str, bare_at: int | None = None) -> bytes:
        """Write the content of a log file, durably.

        Args:
            part: The content.
            path: The file, which has its full size.
            bare_at: Position in the file of eight bytes to leave as zeros.

        Returns:
            These eight bytes, or none.

        Raises:
            WriteFailed: The disk failed.
        """
        disk, bare = self.disk, b""
        descriptor = disk.open(path)
        try:
            for position, data in self._content(part):
                if bare_at == position:
                    bare = data[: record.BLANK.size].tobytes()
                    data[: record.BLANK.size] = 0
                disk.write(descriptor, path, position, data.data)
            disk.sync_file(descriptor, path)
        finally:
            os.close(descriptor)
        return bare

    def first_record(self, part: LogPart) -> bytes:
        """Return the first record of a part, with its position."""
        _, data = next(self._content(part))
        size, _ = record.SIZE_AND_MAGIC.unpack_from(data.data)
        return data[:size].tobytes()

    def _content(self, part: LogPart) -> Iterator[tuple[int, npt.NDArray[np.uint8]]]:
        """Yield positions in the file and whole records, in order."""
        placing = _Placing(part, self.file_bytes, has_crc=self.has_crc)
        for piece in part.pieces:
            fragment = self.fragments[piece.fragment]
            table = load_table(fragment)
            descriptor = os.open(fragment.path + _RECORDS, os.O_RDONLY | os.O_CLOEXEC)
            try:
                for first, stop, position, size in _chunks(piece, table.sizes):
                    data = os.pread(descriptor, size, position)
                    times = None if table.times_ms is None else table.times_ms[first:stop]
                    yield placing.place(data, table.sizes[first:stop], times)
            finally:
                os.close(descriptor)
        if part.is_ended:
            blank = record.pack_blank(self.file_bytes - placing.position)
            yield placing.position, np.frombuffer(blank, np.uint8).copy()


def _chunks(piece: Piece, sizes: npt.NDArray[np.int32]) -> Iterator[tuple[int, int, int, int]]:
    """Yield (first record, record after the last, position in the fragment, bytes)."""
    ends = np.cumsum(sizes[piece.first : piece.stop], dtype=np.int64)
    first = before = 0
    while first < len(ends):
        stop = max(int(np.searchsorted(ends, before + _CHUNK_BYTES, "right")), first + 1)
        piece_end = int(ends[stop - 1])
        yield piece.first + first, piece.first + stop, piece.position + before, piece_end - before
        first, before = stop, piece_end


class _Placing:
    """The kernel of puts, on memory that is not a mapped log file."""

    def __init__(self, part: LogPart, file_bytes: int, *, has_crc: bool) -> None:
        self.position = part.position
        self._time_ms = part.time_ms
        self._hot = HotState()
        block = self._hot.block
        block.log_start = part.file_start
        block.log_size = file_bytes
        block.has_record_crc = has_crc
        for (topic, queue_id), queue_offset in part.queue_offsets.items():
            _, row = self._hot.add_queue(java.encode_utf8(topic), queue_id)
            row.next_offset = queue_offset

    def place(
        self, data: bytes, sizes: npt.NDArray[np.int32], times_ms: npt.NDArray[np.int64] | None
    ) -> tuple[int, npt.NDArray[np.uint8]]:
        """Return the positions of records, and the records with their positions filled in."""
        block, start, count = self._hot.block, self.position, len(sizes)
        placed = np.empty(len(data), np.uint8)
        places = np.empty(2 * count, np.int64)
        block.log_address = hot.address_of(placed) - start
        block.log_position = start
        block.log_limit = start + len(data)
        block.places = hot.address_of(places)
        block.input_position = 0
        done = 0
        for size, time_ms in self._runs(sizes, times_ms):
            block.input_size = size
            block.input_time = time_ms
            done += hot.append_long(self._hot.argument, data)
            assert block.stop == state.STOP_DONE, f"stopped for {block.stop}"
        assert done == count, f"{done} records of {count}"
        self.position += len(data)
        return start, placed

    def _runs(
        self, sizes: npt.NDArray[np.int32], times_ms: npt.NDArray[np.int64] | None
    ) -> Iterator[tuple[int, int]]:
        """Yield (end position, time) of runs of records with the same store time."""
        ends = np.cumsum(sizes, dtype=np.int64)
        if times_ms is None:
            yield int(ends[-1]), self._time_ms
            return
        times = np.maximum(np.maximum.accumulate(times_ms), self._time_ms)
        self._time_ms = int(times[-1])
        for last in [*np.flatnonzero(np.diff(times)).tolist(), len(times) - 1]:
            yield int(ends[last]), int(times[last])


def log_path(root: str, file_start: int) -> str:
    """Return the path of a log file."""
    return f"{root}/{paths.COMMIT_LOG}/{paths.offset_name(file_start)}"
