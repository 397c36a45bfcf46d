"""The commit log for writing: one append-only sequence of files with all messages.

Kernels append through the control block. This module provides the files, ends a full file with a
blank, and keeps the offsets up to which the log is written, committed and durable.

``putting`` checks messages, ``flush`` decides when to flush, ``recovery`` handles damage.
"""

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple, TypeVar

import numpy as np

from reput.errors import WriteFailed
from reput.format import message as record
from reput.store.config import StoreConfig
from reput.store.files.disk import Disk
from reput.store.hot_state import HotState
from reput.store.kernels import control_block as state, hot
from reput.store.log.mapped_file import MappedFile
from reput.store.log.mapped_file_queue import MappedFileQueue
from reput.store.log.transient_pool import TransientPool

_RESERVE_AHEAD_BYTES = 32 * 1024 * 1024
"""Distance before the writer at which space and pages are prepared in the background."""
_RESERVE_STEP_BYTES = 1024 * 1024
"""Space that the writer reserves itself if the background work is too slow."""
_FILES_INITIAL = 64
_FOREIGN_RECORD_BYTES_MAX = 16 * 1024 * 1024
"""Maximum size of a record written with another configuration: no longer one fits in a reply."""

_T = TypeVar("_T")


class LogView:
    """Bytes of the log in memory, which stay valid until ``release``.

    Args:
        file: The log file; it is held.
        physical_offset: Physical offset of the first byte.
        size: Number of bytes, all in this file.
    """

    __slots__ = ("_file", "data", "physical_offset")

    def __init__(self, file: MappedFile, physical_offset: int, size: int) -> None:
        self._file = file
        self.physical_offset = physical_offset
        position = physical_offset - file.start
        self.data = file.view(position, position + size)
        """The bytes, without a copy."""

    def release(self) -> bool:
        """End the use of the bytes.

        Returns:
            False if the file was deleted and held for too long: the bytes may have been zeros.
        """
        self.data = self.data[:0]
        return self._file.release()


class LogPiece(NamedTuple):
    """A range of one log file, to be read from the file itself."""

    path: str
    start: int
    """Position of the first byte in the file."""
    size: int
    """Number of bytes."""


class CommitLog:
    """The log of a store that is open for writing.

    Args:
        config: Folders, file size, pool, warming.
        hot_state: State shared with kernels.
        disk: Writes the files.
    """

    def __init__(self, config: StoreConfig, hot_state: HotState, disk: Disk) -> None:
        self.file_size = config.mapped_file_size_commit_log
        self._record_bytes_max = max(config.record_bytes_max, _FOREIGN_RECORD_BYTES_MAX)
        self._block = hot_state.block
        self.pool: TransientPool | None = None
        if config.uses_transient_store_pool:
            self.pool = TransientPool(config.transient_store_pool_size, self.file_size)
        self.files = MappedFileQueue(
            config.commit_log_folders,
            self.file_size,
            disk,
            read_only_folders=config.read_only_commit_log_folders,
            pool=self.pool,
            is_warmed=config.warm_maped_file_enable,
        )
        self._fails_without_buffer = config.fast_fail_if_no_buffer_in_store_pool
        self._rolling = threading.Lock()  # guards the last file, and the block's words about it
        self._addresses = np.zeros(_FILES_INITIAL, np.int64)
        self._held: dict[int, MappedFile] = {}  # by start: files that kernels read
        self.flushed_offset = 0
        """Physical offset up to which everything is durable."""
        self.problem = ""
        """Error of the last attempt to make space for a record; empty if it succeeded."""
        self.warms_first = False
        """True to create and warm the file of the next record before that record comes."""

    # Opening ----------------------------------------------------------------------------------

    def load(self) -> None:
        """Load the files. Raises ``StoreUnavailable`` as ``MappedFileQueue.load`` does."""
        self.files.load()
        self._point_at_files()

    def start_at(self, physical_offset: int, now_ms: int) -> None:
        """Truncate the log durably at its end, and prepare for appends there.

        Raises:
            WriteFailed: The disk failed.
        """
        self._release_all()
        self.files.truncate(physical_offset, now_ms)
        self.flushed_offset = physical_offset
        last = self.files.last
        if last is not None and physical_offset < last.end:
            self._write_to(last, physical_offset - last.start)
        self._point_at_files()

    def _write_to(self, file: MappedFile, position: int) -> None:
        block = self._block
        block.log_address = file.write_address
        block.log_start = file.start
        block.log_size = file.size
        block.log_position = position
        block.log_limit = file.reserved

    # Writing ----------------------------------------------------------------------------------

    @property
    def min_offset(self) -> int:
        """Physical offset of the oldest byte; 0 without files."""
        return self.files.min_offset

    @property
    def written_offset(self) -> int:
        """Physical offset of the next record, unless it needs a new file."""
        block = self._block
        if not block.log_address:
            last = self.files.last
            return last.end if last else 0
        return block.log_start + block.log_position

    @property
    def lacks_buffer(self) -> bool:
        """True if there is a transient pool without a free buffer: brokers refuse puts then."""
        return self.pool is not None and not self.pool.available

    @property
    def readable_offset(self) -> int:
        """Physical offset after the last readable byte; bytes only in a pool buffer are not."""
        if self.pool is None:
            return self.written_offset
        return self.files.max_offset

    def reserve(self, size: int) -> None:
        """Reserve space in the current file for a record of ``size`` bytes.

        Raises:
            DiskFull: There is no space.
        """
        with self._recording_problem():
            self._reserve(size)

    def _reserve(self, size: int) -> None:
        last = self.files.last
        assert last is not None
        block = self._block
        start = block.log_limit
        end = block.log_position + size
        stop = min(max(end, start + _RESERVE_STEP_BYTES), last.size)
        last.reserve(stop)
        # Touching all pages of a step at once takes a third of the time of single page faults.
        last.touch(start, stop)
        block.log_limit = stop

    def roll(self) -> None:
        """End the current file with a blank and continue in the next one.

        Raises:
            DiskFull: There is no space for a new file; the log is unchanged.
            WriteFailed: No folder accepts a new file.
        """
        with self._recording_problem():
            self._roll()

    @contextlib.contextmanager
    def _recording_problem(self) -> Iterator[None]:
        try:
            yield
        except WriteFailed as error:
            self.problem = str(error)
            raise
        self.problem = ""

    def _roll(self) -> None:
        last = self._update_written()
        room = last.size - last.written if last is not None else 0
        if last is not None and room:
            last.reserve(last.size)
        if last is not None:
            self.files.prepare_next()
            if not self.files.has_prepared:
                room = self._free_a_buffer(last, room)
                self.files.prepare_next()
        with self._rolling:
            if last is not None and room:
                self._end(last, room)
            self._write_to(self.files.roll(), 0)
        self._point_at_files()

    def begin_at(self, physical_offset: int, now_ms: int) -> None:
        """Create the first file of an empty log, from a file boundary on.

        Raises:
            DiskFull: There is no space.
            WriteFailed: The disk failed.
        """
        assert physical_offset % self.file_size == 0
        assert self.written_offset == self.min_offset, "the log is empty"
        self._release_all()
        self._block.log_address = 0
        self.files.clear(now_ms)
        with self._rolling:
            self._write_to(self.files.roll(physical_offset), 0)
            self.flushed_offset = physical_offset
        self._point_at_files()

    def room(self, size: int) -> memoryview:
        """Return the next ``size`` bytes of the current file, with space on disk, to be filled.

        Raises:
            DiskFull: There is no space.
        """
        block = self._block
        position = block.log_position
        if position + size > block.log_limit:
            self.reserve(size)
        last = self.files.last
        assert last is not None
        return last.view(position, position + size)

    def spare_room(self, size_max: int) -> memoryview:
        """Return the next bytes of the current file that have space on disk; may be empty."""
        block = self._block
        position = block.log_position
        last = self.files.last
        if last is None or not block.log_address:
            return memoryview(bytearray())
        return last.view(position, min(position + size_max, block.log_limit))

    def extend(self, size: int) -> None:
        """Add bytes that were written to ``room`` to the log."""
        block = self._block
        assert block.log_position + size <= block.log_size
        block.log_position += size

    def cut_part(self, physical_offset: int, *, has_more: bool) -> bool:
        """Cut what follows the last whole record of a slave's log, durably.

        Args:
            physical_offset: Physical offset of the end of that record.
            has_more: Whether the file has bytes after the end of the log.

        Returns:
            False if the offset is not in the current file; nothing has changed.

        Raises:
            WriteFailed: The disk failed; also ``DiskFull``.
        """
        if physical_offset == self.written_offset and not has_more:
            return True
        last = self._update_written()
        if last is None or physical_offset < last.start:
            return False
        last.cut(physical_offset - last.start)
        with self._rolling:
            self._write_to(last, physical_offset - last.start)
            self.flushed_offset = physical_offset
        return True

    def _free_a_buffer(self, last: MappedFile, room: int) -> int:
        """Commit the buffers to free one; return the bytes left in the last file.

        Without a buffer the next file would be written through its map, and survive a crash that
        loses bytes before it.
        """
        if self._fails_without_buffer:
            reason = "no buffer is free in the transient store pool"
            raise WriteFailed(self.files.folders[0], reason)
        self.files.commit()
        if self.lacks_buffer and room:  # the last file uses the only one
            with self._rolling:
                self._end(last, room)
                self._block.log_position = last.size
            self.files.commit()
            return 0
        return room

    def _end(self, file: MappedFile, room: int) -> None:
        # The map has space up to its last byte, so nothing can fail from here on.
        file.append(record.pack_blank(room))
        file.written = file.size

    def _update_written(self) -> MappedFile | None:
        """Set the written position of the current file; return the file, None if there is none."""
        with self._rolling:
            last = self.files.last
            if last is None or not self._block.log_address:
                return None
            assert last.start == self._block.log_start
            last.written = self._block.log_position
            return last

    def step_ahead(self) -> bool:
        """Prepare space and pages before the writer, and the next file in time; for any thread.

        Returns True if there was anything to do.

        Raises:
            DiskFull: There is no space; reserved space can be written nevertheless.
        """
        last = self.files.last
        if last is None or not self._block.log_address:
            return self._step_first()
        position = self._block.log_position
        end = min(position + _RESERVE_AHEAD_BYTES, last.size)
        did = False
        if last.reserved < end:
            start = last.reserved
            last.reserve(end)
            last.touch(start, last.reserved)
            did = True
        with self._rolling:
            if last.start == self._block.log_start:
                self._block.log_limit = last.reserved
        if last.size - position < _RESERVE_AHEAD_BYTES and not self.files.has_prepared:
            self.files.prepare_next()
            did = did or self.files.has_prepared
        if self.problem and (self.files.has_prepared or last.size - end > 0):
            self.problem = ""
        return self.files.step_warming(_RESERVE_AHEAD_BYTES) or did

    def _step_first(self) -> bool:
        """Prepare the file of the next record, if the writer could not create it, or to warm it."""
        if (self.problem or self.warms_first) and not self.files.has_prepared:
            self.files.prepare_next()
        if self.files.has_prepared:
            self.problem = ""
        return self.files.step_warming(_RESERVE_AHEAD_BYTES)

    # Durability -------------------------------------------------------------------------------

    def commit(self) -> int:
        """Write pool buffers to their files; return the physical offset after the last such byte.

        Raises:
            WriteFailed: The disk failed; it can be tried again.
        """
        self._update_written()
        return self.files.commit()

    def flush(self) -> int:
        """Make all committed bytes durable; return the physical offset up to which they are.

        May run in a worker thread while the writer appends.

        Raises:
            WriteFailed: The disk failed. Every later call fails: the bytes on disk are unknown.
        """
        self._update_written()
        flushed = self.files.flush()
        with self._rolling:  # of two flushes, the later one may have begun earlier
            self.flushed_offset = max(self.flushed_offset, flushed)
            return self.flushed_offset

    # Reading ----------------------------------------------------------------------------------

    def read(self, physical_offset: int, size: int) -> bytes | None:
        """Return ``size`` bytes of one file; None if they are not readable."""
        file = self.files.file_at(physical_offset)
        if file is None or physical_offset + size > min(self.readable_offset, file.end):
            return None
        if not file.hold():
            return None
        data = hot.bytes_at(file.address + physical_offset - file.start, size)
        return data if file.release() else None

    def view(self, physical_offset: int, size_max: int, limit: int) -> LogView | None:
        """Return bytes of one file without a copy; None if there are none to read.

        Args:
            physical_offset: Physical offset of the first byte.
            size_max: Maximum number of bytes.
            limit: Physical offset after the last byte that may be read.
        """
        file = self.files.file_at(physical_offset)
        if file is None:
            return None
        size = min(size_max, limit - physical_offset, file.end - physical_offset)
        if size <= 0 or not file.hold():
            return None
        return LogView(file, physical_offset, size)

    def piece(self, physical_offset: int, limit: int) -> LogPiece | None:
        """Return the rest of the file with an offset, as ``view``; the file may expire any time."""
        file = self.files.file_at(physical_offset)
        if file is None or physical_offset >= limit:
            return None
        start = physical_offset - file.start
        return LogPiece(file.path, start, min(limit, file.end) - physical_offset)

    def read_all(self, places: Iterable[tuple[int, int]]) -> list[bytes | None]:
        """Return the bytes at each (physical offset, size); faster than ``read`` for few files."""
        parts: list[bytes | None] = []
        readable = self.readable_offset
        file: MappedFile | None = None
        first = 0  # index of the first part from this file
        for physical_offset, size in places:
            if file is None or not file.start <= physical_offset < file.end:
                if file is not None and not file.release():
                    parts[first:] = [None] * (len(parts) - first)
                first = len(parts)
                file = self.files.file_at(physical_offset)
                if file is not None and not file.hold():
                    file = None
            if file is None or physical_offset + size > min(readable, file.end):
                parts.append(None)
            else:
                parts.append(hot.bytes_at(file.address + physical_offset - file.start, size))
        if file is not None and not file.release():
            parts[first:] = [None] * (len(parts) - first)
        return parts

    def record(self, physical_offset: int) -> bytes | None:
        """Return the record at an offset; None if there is none.

        Only head and lengths are checked; checksums are left to the caller. Any offset may be
        given: no byte is copied before the check, as a size before the offset could be a gigabyte.
        """
        return self._read_record(physical_offset, bytes)

    def _read_record(self, physical_offset: int, read: Callable[[memoryview], _T]) -> _T | None:
        """Return the result of ``read`` for the record at an offset; None if there is none."""
        file = self.files.file_at(physical_offset)
        if file is None or not file.hold():
            return None
        result = None
        bytes_left = min(self.readable_offset, file.end) - physical_offset
        if bytes_left >= record.SIZE_AND_MAGIC.size:
            address = file.address + physical_offset - file.start
            head = hot.bytes_at(address, record.SIZE_AND_MAGIC.size)
            size, _ = record.SIZE_AND_MAGIC.unpack(head)
            if record.JUDGED_BYTES < size <= min(bytes_left, self._record_bytes_max):
                view = hot.view_at(address, size)
                verdict, _ = record.classify(view, 0, physical_offset, check_crc=False)
                if verdict is record.Verdict.MESSAGE:
                    result = read(view)
        return result if file.release() else None

    def store_timestamp_at(self, physical_offset: int) -> int | None:
        """Return the store time of the record at an offset, in ms; None if it is unreadable."""
        return self._read_record(physical_offset, record.store_timestamp_of)

    def map_file(self, physical_offset: int) -> None:
        """Map the file that contains an offset for the kernels, or mark it as missing."""
        index = (physical_offset - self._block.files_start) // self.file_size
        assert 0 <= index < self._block.file_count
        file = self.files.file_at(physical_offset)
        if file is None or not file.hold():
            self._addresses[index] = state.FILE_IS_GONE
            return
        self._held[file.start] = file
        self._addresses[index] = file.address

    def _point_at_files(self) -> None:
        """Publish the list of files to the kernels; files that are mapped for them stay so."""
        files = self.files.files
        block = self._block
        if not files:
            block.file_count = 0
            return
        start = files[0].start
        count = (files[-1].end - start) // self.file_size
        for expired in [held_start for held_start in self._held if held_start < start]:
            self._held.pop(expired).release()
        self._addresses = np.zeros(max(count, _FILES_INITIAL), np.int64)
        for file in self._held.values():
            self._addresses[(file.start - start) // self.file_size] = file.address
        block.files = hot.address_of(self._addresses)
        block.files_start = start
        block.file_size = self.file_size
        block.file_count = count

    # Ending -----------------------------------------------------------------------------------

    def delete_first(self, now_ms: int, forced_after_ms: int) -> MappedFile:
        """Delete the oldest file. Raises ``WriteFailed``; then nothing has changed."""
        first = self.files.first
        assert first is not None
        held = self._held.pop(first.start, None)
        if held is not None:
            # Between calls no kernel reads: only other threads can still hold it.
            held.release()
        try:
            return self.files.delete_first(now_ms, forced_after_ms)
        finally:
            self._point_at_files()

    def _release_all(self) -> None:
        while self._held:
            self._held.popitem()[1].release()

    def close(self) -> None:
        """Unmap everything; nothing is written or flushed."""
        self._release_all()
        self._block.log_address = 0
        self._block.file_count = 0
        self.files.close()
