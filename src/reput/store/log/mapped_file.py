"""A file of fixed size, mapped into memory: bytes are appended once and read many times.

One writer appends. Meanwhile, worker threads may reserve space, commit, flush, read and destroy.
Kernels write through ``write_address`` and then set ``written``.

A file on disk has its full size from the start, and takes no space until ``reserve``: a full disk
is then an error before the append, and not a signal that kills the process during it.

``MappedFileQueue`` selects the next file, ``reput.format`` defines the bytes, and the callers
decide when to flush or delete.
"""

import ctypes
import errno
import logging
import os
import threading
from typing import Protocol, Self

from reput.descriptors import open_descriptor, seek_data, seek_hole
from reput.errors import NotInStore, StoreUnavailable, WriteFailed
from reput.store.files import memory
from reput.store.files.disk import Disk

_log = logging.getLogger(__name__)

RESERVE_BYTES = 16 * 1024 * 1024
"""Unit in which space is reserved: one empty file must not fill a small disk."""
FORCED_AFTER_MS = 120_000
"""destroyMapedFileIntervalForcibly"""
_CHUNK_BYTES = 1024 * 1024
_CHUNK_OF_ZEROS = bytes(_CHUNK_BYTES)


class WriteBuffer(Protocol):
    """Memory that takes appends instead of the map; see ``transient_pool``."""

    address: int
    view: memoryview

    def release(self) -> None:
        """Return the buffer to its pool, filled with zeros."""


class MappedFile:
    """One file, mapped into memory.

        0 ........ flushed ........ committed ........ written ........ reserved ....... size
        | durable   | in page cache  | in the buffer    | zeros, space   | zeros, no space|

    Invariants:
        * 0 <= flushed <= committed <= written <= reserved <= size.
        * With no buffer, ``committed`` is ``written``.
        * Bytes below ``committed`` never change; readers read only these.
        * ``address`` is valid between ``hold`` and ``release``, and for the writer.

    A file that is only read is mapped by its first ``hold``: a thousand files open quickly.
    """

    def __init__(self, path: str, start: int, size: int, disk: Disk) -> None:
        """Set up the object; callers use ``create`` or ``open``."""
        self.path = path
        self.start = start
        """Physical offset of the first byte."""
        self.size = size
        self.address = 0
        """Address of byte 0 of the map; 0 while there is none."""
        self.write_address = 0
        """Address that appends write to: ``address``, or that of the buffer."""
        self.written = size
        self.reserved = size
        self.flushed = size
        self._committed = size  # only valid while there is a buffer
        self._disk = disk
        self._lock = threading.Lock()  # guards the next four fields
        self._map: memory.FileMap | None = None
        self._holders = 0
        self._is_closed = False
        self._is_taken_away = False  # True if zeros replace the bytes of a deleted file
        self._deleted_ms: int | None = None
        self._is_unlinked = False  # by us, or about to be
        self._room = threading.Lock()  # guards `reserved`
        self._warm_end = 0  # position up to which `warm` has touched the file
        self._syncs = threading.Lock()  # guards `flushed` and `_failure`
        self._commits = threading.Lock()  # guards `_buffer` and `_committed`
        self._buffer: WriteBuffer | None = None
        self._descriptor: _Descriptor | None = None  # while the file is written to
        self._failure: WriteFailed | None = None  # error of a sync

    @classmethod
    def create(
        cls, path: str, start: int, size: int, disk: Disk, *, buffer: WriteBuffer | None = None
    ) -> Self:
        """Create a file of zeros, for appends from its first byte.

        Its name is durable, and no space is reserved. With a buffer, appends go there.

        Raises:
            WriteFailed: It cannot be created; also ``DiskFull``. The buffer remains the caller's.
            StoreUnavailable: It cannot be mapped; the buffer remains the caller's.
        """
        file = cls(path, start, size, disk)
        file.written = file.reserved = file.flushed = file._committed = 0
        file._descriptor = _Descriptor(disk.create(path, size))
        try:
            file._map_file(file._descriptor, is_writable=True)
        except StoreUnavailable:
            disk.unlink(path)
            raise
        if buffer is not None:
            file._buffer, file.write_address = buffer, buffer.address
        return file

    @classmethod
    def open(
        cls,
        path: str,
        start: int,
        size: int,
        disk: Disk,
        *,
        size_key: str = "mappedFileSizeCommitLog",
    ) -> Self:
        """Open an existing file for reading; it counts as full until ``cut``.

        Raises:
            StoreUnavailable: It does not exist, or its size is not the configured one.
        """
        try:
            found_size = os.stat(path).st_size  # noqa: PTH116 - paths are texts here
        except OSError as error:
            raise StoreUnavailable(f"{path} cannot be opened: {error.strerror}") from error
        if found_size != size:
            raise StoreUnavailable(
                f"{path} has {found_size} bytes, but {size_key} is {size}; if all files of the "
                f"folder have {found_size} bytes, set {size_key}={found_size}, else this one is "
                "damaged"
            )
        return cls(path, start, size, disk)

    @property
    def end(self) -> int:
        """Physical offset after the last byte of the file."""
        return self.start + self.size

    @property
    def committed(self) -> int:
        """Position up to which the file itself, and thus every reader, has the bytes."""
        return self.written if self._buffer is None else self._committed

    # --- space on disk --------------------------------------------------------

    def reserve(self, position: int) -> None:
        """Reserve space on disk up to a position, in steps.

        Raises:
            DiskFull: There is no space. Space reserved before stays, and can be written.
            WriteFailed: The disk failed.
        """
        if position <= self.reserved:
            return
        assert position <= self.size, f"{self.path} ends before {position}"
        with self._room:
            start = self.reserved
            stop = min(-(-position // RESERVE_BYTES) * RESERVE_BYTES, self.size)
            if start < stop:
                descriptor = self._writable()
                self._disk.reserve(descriptor.number, self.path, start, stop - start)
                self.reserved = stop

    def touch(self, start: int, stop: int) -> None:
        """Fault in the pages of a range, so that appends do not wait for them; changes no byte.

        Only reserved pages are touched. For a worker thread that runs before the writer.

        Raises:
            WriteFailed: The file has no space after all; an append would have killed the process.
        """
        stop = min(stop, self.reserved)
        if start >= stop or self._buffer is not None or not self.hold():
            return
        try:
            if not memory.populate(self.address + start, stop - start):
                # Reading faults in the pages too, except for the last step. Writing, even a
                # byte's own value, could undo what the writer writes at the same time.
                self._read_a_byte_of_each_page(start, stop)
        except OSError as error:
            raise WriteFailed(self.path, f"cannot fault in pages: {error.strerror}") from error
        finally:
            self.release()

    def warm(self, length: int) -> bool:
        """Reserve and touch the next ``length`` bytes of the file (warmMapedFileEnable).

        For one worker thread, while the writer may append.

        Returns:
            False if the whole file is warm.

        Raises:
            WriteFailed: As ``reserve`` and ``touch``; also ``DiskFull``.
        """
        start = self._warm_end
        if start == self.size:
            return False
        stop = min(start + length, self.size)
        self.reserve(stop)
        self.touch(start, stop)
        self._warm_end = stop
        return True

    def unlock_memory(self) -> None:
        """Undo ``lock_memory``."""
        if self.hold():
            try:
                memory.unlock(self.address, self.size)
            except OSError as error:
                _log.warning("%s stays locked in memory: %s", self.path, error.strerror)
            finally:
                self.release()

    def lock_memory(self) -> None:
        """Lock the map in memory. If that is not permitted, log a warning with the remedy."""
        if self.hold():
            try:
                memory.lock(self.address, self.size)
            except OSError as error:
                _log.warning(
                    "%s is not locked in memory: %s; raise the memlock limit (ulimit -l)",
                    self.path,
                    error.strerror,
                )
            finally:
                self.release()

    # --- bytes ----------------------------------------------------------------

    def append(self, data: bytes) -> int:
        """Append data after the written bytes; return the position of its first byte.

        The caller has checked that it fits.

        Raises:
            DiskFull: There is no space; nothing was written.
        """
        position = self.written
        end = position + len(data)
        assert self.write_address, f"{self.path} is not open for writing"
        assert end <= self.size, f"{len(data)} bytes at {position} of {self.path}"
        self.reserve(end)
        target = self._map if self._buffer is None else self._buffer
        assert target is not None
        target.view[position:end] = data
        self.written = end
        return position

    def read(self, position: int, length: int) -> bytes:
        """Return a copy of committed bytes.

        Raises:
            NotInStore: The file is closed or deleted.
            StoreUnavailable: It cannot be mapped.
        """
        assert 0 <= position <= position + length <= self.committed, f"{position} of {self.path}"
        if self.hold():
            assert self._map is not None
            data = bytes(self._map.view[position : position + length])
            if self.release():
                return data
        raise NotInStore(f"{self.path} was deleted or closed meanwhile")

    def view(self, start: int, stop: int) -> memoryview:
        """Return bytes of the file without a copy, to be used only while it is held."""
        assert self._map is not None, f"{self.path} is not held"
        return self._map.view[start:stop]

    def zero(self, start: int, stop: int) -> None:
        """Overwrite a range with zeros where it has others. Durable after ``flush`` or ``cut``.

        Raises:
            WriteFailed: The disk failed; also ``DiskFull``.
        """
        descriptor = self._writable()
        for position, end in _data_ranges(descriptor.number, start, stop):
            for chunk in range(position, end, _CHUNK_BYTES):
                zeros = _CHUNK_OF_ZEROS[: end - chunk]
                # Writes need the disk, comparisons mostly do not; reserved bytes are mostly zeros.
                if os.pread(descriptor.number, len(zeros), chunk) != zeros:
                    self._disk.write(descriptor.number, self.path, chunk, zeros)

    def cut(self, position: int) -> None:
        """Truncate the file at a position, and prepare it for appends there.

        The bytes after it are zeros on disk when this returns. Otherwise they could reappear after
        a crash, as if they had been written after new appends. A file that was only read so far
        must not be held.

        Raises:
            WriteFailed: The disk failed; also ``DiskFull``.
            StoreUnavailable: The file cannot be mapped.
        """
        assert self._buffer is None, "a file with a buffer is not cut"
        assert 0 <= position <= self.written
        descriptor = self._writable()
        self.zero(position, self.size)
        # Always, even if an earlier run wrote the zeros: it may have crashed before its sync.
        self._sync(descriptor)
        self.written = self.reserved = self.flushed = position
        with self._lock:
            if position < self.size and not self.write_address:
                assert self._holders == 0, f"{self.path} is held by {self._holders}"
                self._unmap()
                self._map_file(descriptor, is_writable=True)
            self._descriptor = descriptor if position < self.size else None

    def commit(self) -> int:
        """Write the bytes of the buffer to the file; return the committed position.

        With the last byte of the file, the buffer returns to its pool.

        Raises:
            WriteFailed: The disk failed; also ``DiskFull``. It can be tried again.
        """
        if self._buffer is not None and self.hold():
            try:
                with self._commits:
                    self._write_out(self.written)
            finally:
                self.release()
        return self.committed

    def flush(self, *, fails_if_changed: bool = False) -> int:
        """Make committed bytes durable; return the position up to which they are.

        The writer may append meanwhile; later appends are not counted.

        Args:
            fails_if_changed: Raise an error if another program has deleted or truncated the file.

        Raises:
            WriteFailed: The disk failed, or there is such a change. Every later flush of this file
                then fails: a sync that succeeds after a failed one proves nothing about the bytes
                of the first.
        """
        # One at a time: the system reports lost bytes only once, to one caller.
        with self._syncs:
            target = self.committed
            if target > self.flushed and self._sync_held():
                # The sync of a deleted file succeeds too. Check before any thread sees `flushed`.
                if fails_if_changed and (change := self.foreign_change()):
                    self._failure = WriteFailed(self.path, change.removeprefix(f"{self.path} "))
                    raise self._failure
                self.flushed = target
                if target == self.size:
                    self._descriptor = None  # closed when its last user releases it
            return self.flushed

    def sync(self) -> None:
        """Make all existing bytes durable, where ``flush`` cannot determine the changed ones.

        Raises:
            WriteFailed: As ``flush``.
        """
        with self._syncs:
            self._sync_held()

    def foreign_change(self, *, is_thorough: bool = False) -> str:
        """Describe how another program changed the file: deleted, truncated, replaced; else "".

        Bytes written to a deleted file are lost with the process, and access to the map of a
        truncated file kills it: callers check this before they acknowledge messages.

        Args:
            is_thorough: Also check that the name still belongs to the open descriptor.
        """
        descriptor = self._descriptor
        is_other = False
        try:
            if descriptor is None:
                state = os.stat(self.path)  # noqa: PTH116
                link_count, size = state.st_nlink, state.st_size
            else:
                link_count, size = self._disk.links_and_size(descriptor.number)
                if is_thorough and link_count:
                    named = os.stat(self.path)  # noqa: PTH116
                    is_other = not os.path.samestat(os.fstat(descriptor.number), named)
        except FileNotFoundError:
            if self._is_unlinked or self._is_closed:
                return ""
            return f"{self.path} was deleted while the store is open"
        except OSError as error:
            return f"{self.path} cannot be examined: {error.strerror}"
        if self._is_unlinked or self._is_closed:
            return ""
        if not link_count:
            return f"{self.path} was deleted while the store is open"
        if is_other:
            return f"{self.path} was replaced while the store is open"
        if size != self.size:
            return f"{self.path} was {self.size} bytes, now {size}: another program truncated it"
        return ""

    # --- lifetime -------------------------------------------------------------

    def hold(self) -> bool:
        """Keep ``address`` valid until ``release``; return False if the file is closed or deleted.

        Raises:
            StoreUnavailable: The file cannot be mapped.
        """
        with self._lock:
            if self._is_closed:
                return False
            if self._map is None:
                self._map_file(_open_to_read(self.path), is_writable=False)
            self._holders += 1
            return True

    def release(self) -> bool:
        """End a ``hold``.

        Returns:
            True if the bytes were valid all the time. If not, the file was deleted and held for too
            long: bytes that were read may be zeros, and must be ignored.
        """
        with self._lock:
            assert self._holders > 0, f"{self.path} is released more often than held"
            self._holders -= 1
            if self._is_closed and self._holders == 0:
                self._unmap()
            return not self._is_taken_away

    def destroy(self, now_ms: int, forced_after_ms: int = FORCED_AFTER_MS) -> bool:
        """Delete the file now, and free its space as soon as no reader holds it.

        Call it again later while it returns False. Readers that hold the file are not disturbed
        until ``forced_after_ms`` after the first call. Then zeros replace the file in memory, so
        that the disk frees the space: addresses stay valid, the process survives, and ``release``
        reports that the bytes must be ignored.

        Returns:
            True if the space is free.

        Raises:
            WriteFailed: The file cannot be deleted; nothing has changed.
        """
        if self._deleted_ms is None:
            self._is_unlinked = True
            try:
                self._disk.unlink(self.path)
            except WriteFailed:
                self._is_unlinked = False
                raise
            self._deleted_ms = now_ms
            self.close()
        with self._lock:
            if self._map is not None and now_ms - self._deleted_ms >= forced_after_ms:
                self._take_away(self._map)
            return self._map is None or self._is_taken_away

    def close(self) -> None:
        """Permit no more holds, and unmap the file when its last holder releases it.

        Does not commit or flush.
        """
        with self._lock:
            self._is_closed = True
            if self._holders == 0:
                self._unmap()

    # --- private --------------------------------------------------------------

    def _map_file(self, descriptor: "_Descriptor", *, is_writable: bool) -> None:
        # The size is read now: access to a map beyond the end of the file would kill the process.
        found_size = os.fstat(descriptor.number).st_size
        if found_size != self.size:
            raise StoreUnavailable(
                f"{self.path} was {self.size} bytes, now {found_size}: another program writes to it"
            )
        try:
            self._map = memory.FileMap(descriptor.number, self.size, is_writable=is_writable)
        except OSError as error:
            raise StoreUnavailable(f"{self.path} cannot be mapped: {error.strerror}") from error
        self.address = self._map.address
        self.write_address = self.address if is_writable else 0

    def _unmap(self) -> None:
        if self._map is not None:
            if self._is_unlinked:
                self._disk.discard(self._map, self._descriptor)
            else:
                self._map.close()
        self._map = None
        self._descriptor = None
        self.address = self.write_address = 0
        if self._buffer is not None:
            _clear(self._buffer, self._committed, self.written)
            self.written = self._committed
            self._drop_buffer()

    def _write_out(self, stop: int) -> None:
        start, buffer = self._committed, self._buffer
        if buffer is None:
            return  # another thread has committed the end
        if start < stop:
            descriptor = self._writable()  # a reference, since another thread may drop it
            self._disk.write(descriptor.number, self.path, start, buffer.view[start:stop])
            self._committed = stop
            _clear(buffer, start, stop)
        if stop == self.size:
            self._drop_buffer()

    def _take_away(self, mapped: memory.FileMap) -> None:
        if not self._is_taken_away:
            _log.warning(
                "%s was deleted, but is still held by %d readers; its space is freed now, and the "
                "bytes that they read from it are ignored",
                self.path,
                self._holders,
            )
            self._is_taken_away = True
            mapped.replace_by_zeros()
            self._descriptor = None

    def _drop_buffer(self) -> None:
        buffer, self._buffer = self._buffer, None
        self.write_address = self.address
        assert buffer is not None
        buffer.release()

    def _writable(self) -> "_Descriptor":
        return self._descriptor or _Descriptor(self._disk.open(self.path))

    def _sync_held(self) -> bool:
        """Sync the file unless it is closed, deleted or only read; return True if it was synced."""
        descriptor = self._descriptor  # before the hold: then it is still there, or not needed
        if descriptor is None or not self.hold():
            return False
        try:
            self._sync(descriptor)
        finally:
            self.release()
        return True

    def _sync(self, descriptor: "_Descriptor") -> None:
        if self._failure is not None:
            raise self._failure
        try:
            self._disk.sync_file(descriptor.number, self.path)
        except WriteFailed as error:
            self._failure = error
            raise

    def _read_a_byte_of_each_page(self, start: int, stop: int) -> None:
        assert self._map is not None
        for position in range(start, stop, memory.PAGE_BYTES):
            _ = self._map.view[position]


class _Descriptor:
    """A descriptor that is closed with its last use: a thread may drop it while another syncs."""

    __slots__ = ("number",)

    def __init__(self, number: int) -> None:
        self.number = number

    def __del__(self) -> None:
        os.close(self.number)


def _open_to_read(path: str) -> _Descriptor:
    try:
        return _Descriptor(open_descriptor(path, os.O_RDONLY))
    except OSError as error:
        raise StoreUnavailable(f"{path} cannot be opened: {error.strerror}") from error


def _data_ranges(descriptor: int, start: int, stop: int) -> list[tuple[int, int]]:
    """Return the ranges of a file with data instead of holes, as far as they are known."""
    ranges = []
    position = start
    while position < stop:
        try:
            begin = seek_data(descriptor, position)
            position = seek_hole(descriptor, begin)
        except OSError as error:
            if error.errno != errno.ENXIO:  # ENXIO: a hole to the end
                ranges.append((position, stop))
            break
        if begin < stop:
            ranges.append((begin, min(position, stop)))
    return ranges


def _clear(buffer: WriteBuffer, start: int, stop: int) -> None:
    ctypes.memset(buffer.address + start, 0, stop - start)
