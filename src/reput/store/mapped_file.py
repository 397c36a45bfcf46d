"""A file of fixed size, mapped into memory: appended to once, read many times.

One writer appends. Worker threads may at the same time make room ahead, commit, flush, read and
destroy. Kernels write through ``write_address`` and then set ``written``.

A file on disk has its full size from the start and takes no room until ``reserve``: a full disk is
then an error before the append, and not a signal that kills the process in the middle of it.

Not done here: choosing the next file (``MappedFileQueue``), the meaning of the bytes
(``reput.format``), and when to flush or delete.
"""

import ctypes
import errno
import logging
import os
import threading
from typing import Protocol, Self

from reput.descriptors import open_descriptor
from reput.errors import NotInStore, StoreUnavailable, WriteFailed
from reput.store import memory
from reput.store.disk import Disk

_log = logging.getLogger(__name__)

RESERVE_BYTES = 16 * 1024 * 1024
"""Room is taken in steps of this size: a small disk is not eaten by one empty file."""
FORCED_AFTER_MS = 120_000
"""destroyMapedFileIntervalForcibly"""
_CHUNK_BYTES = 1024 * 1024
_CHUNK_OF_ZEROS = bytes(_CHUNK_BYTES)


class WriteBuffer(Protocol):
    """What takes appends in place of the map; see ``transient_pool``."""

    address: int
    view: memoryview

    def give_back(self) -> None:
        """Take it back, full of zeros."""


class MappedFile:
    """One file, mapped into memory.

        0 ........ flushed ........ committed ........ written ........ reserved ....... size
        | durable   | in page cache  | in the buffer    | zeros, room    | zeros, no room |

    Invariants:
        * 0 <= flushed <= committed <= written <= reserved <= size.
        * With no buffer, ``committed`` is ``written``.
        * Bytes below ``committed`` never change; only they are read.
        * ``address`` is valid between ``hold`` and ``release``, and for the one who appends.

    A file that is only read is mapped when it is held first: a thousand files open at once.
    """

    def __init__(self, path: str, start: int, size: int, disk: Disk) -> None:
        """Not for callers: see ``create`` and ``open``."""
        self.path = path
        self.start = start
        """Physical offset of the first byte."""
        self.size = size
        self.address = 0
        """Of byte 0 of the map; 0 while there is none."""
        self.write_address = 0
        """Where appends go: ``address``, or that of the buffer."""
        self.written = size
        self.reserved = size
        self.flushed = size
        self._committed = size  # means something while there is a buffer
        self._disk = disk
        self._lock = threading.Lock()  # of the map and of what follows
        self._map: memory.FileMap | None = None
        self._holders = 0
        self._is_closed = False
        self._is_taken_away = False
        self._deleted_ms: int | None = None
        self._is_unlinked = False  # by us, or about to be
        self._room = threading.Lock()  # of `reserved`
        self._syncs = threading.Lock()  # of `flushed` and `_failure`
        self._commits = threading.Lock()  # of `_buffer` and `_committed`
        self._buffer: WriteBuffer | None = None
        self._descriptor: _Descriptor | None = None  # while the file is written to
        self._failure: WriteFailed | None = None  # of a sync

    @classmethod
    def create(
        cls, path: str, start: int, size: int, disk: Disk, *, buffer: WriteBuffer | None = None
    ) -> Self:
        """Make a file of zeros, to be appended to from its first byte.

        It has a durable name and no room yet. Appends go to the buffer, if one is given.

        Raises:
            WriteFailed: It cannot be made; also ``DiskFull``. The buffer stays the caller's.
            StoreUnavailable: It cannot be mapped. Likewise.
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
        """Take a file that is there, to be read; it counts as full until ``cut``.

        Raises:
            StoreUnavailable: It is not there, or has another size than configured.
        """
        try:
            found = os.stat(path).st_size  # noqa: PTH116 - paths are texts here
        except OSError as error:
            raise StoreUnavailable(f"{path} cannot be opened: {error.strerror}") from error
        if found != size:
            raise StoreUnavailable(
                f"{path} has {found} bytes, but {size_key} is {size}; if all files of the folder "
                f"have {found} bytes, set {size_key}={found}, else this one is damaged"
            )
        return cls(path, start, size, disk)

    @property
    def end(self) -> int:
        """Physical offset behind the last byte that the file can hold."""
        return self.start + self.size

    @property
    def committed(self) -> int:
        """Position up to which the file itself, and so every reader, has the bytes."""
        return self.written if self._buffer is None else self._committed

    # --- room -----------------------------------------------------------------

    def reserve(self, position: int) -> None:
        """Get room on disk up to a position, in steps.

        Raises:
            DiskFull: There is none. What is reserved stays so, and can be written.
            WriteFailed: The disk fails.
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
        """Get the pages of a range ready, so that appends do not wait for them. Changes no byte.

        Only what is reserved is touched. Meant for a worker thread, a step ahead of the writer.

        Raises:
            WriteFailed: The file has no room after all; an append would have been fatal.
        """
        stop = min(stop, self.reserved)
        if start >= stop or self._buffer is not None or not self.hold():
            return
        try:
            if not memory.populate(self.address + start, stop - start):
                # Reading makes the pages too, but for the last step. Writing, even a byte's own
                # value, would undo what the writer puts there meanwhile.
                self._read_a_byte_of_each_page(start, stop)
        except OSError as error:
            raise WriteFailed(self.path, f"cannot get pages ready: {error.strerror}") from error
        finally:
            self.release()

    def warm(self) -> None:
        """Reserve and touch all of the file (warmMapedFileEnable).

        Raises:
            WriteFailed: As ``reserve`` and ``touch``; also ``DiskFull``.
        """
        self.reserve(self.size)
        self.touch(0, self.size)

    def lock_memory(self) -> None:
        """Keep the map in memory. If that is not allowed, a warning says what to do."""
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

    def unlock_memory(self) -> None:
        """Undo ``lock_memory``."""
        if self.hold():
            try:
                memory.unlock(self.address, self.size)
            finally:
                self.release()

    # --- bytes ----------------------------------------------------------------

    def append(self, data: bytes) -> int:
        """Copy data behind what is written, and return the position it starts at.

        The caller has checked that it fits.

        Raises:
            DiskFull: There is no room; nothing was written.
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
        raise NotInStore(f"{self.path} is gone: deleted or closed meanwhile")

    def zero(self, start: int, stop: int) -> None:
        """Make a range zeros where it is not. Not durable before ``flush`` or ``cut``.

        Raises:
            WriteFailed: The disk fails; also ``DiskFull``.
        """
        descriptor = self._writable()
        for position, end in _data_ranges(descriptor.number, start, stop):
            for chunk in range(position, end, _CHUNK_BYTES):
                zeros = _CHUNK_OF_ZEROS[: end - chunk]
                # Writing takes a disk, comparing does not; what was reserved is zeros mostly.
                if os.pread(descriptor.number, len(zeros), chunk) != zeros:
                    self._disk.write(descriptor.number, self.path, chunk, zeros)

    def cut(self, position: int) -> None:
        """End the file at a position, and be ready to append there.

        What lay behind is zeros on disk before this returns: it cannot come back after a crash,
        as if it had been written behind what is appended now. Nobody may hold a file that was only
        read so far.

        Raises:
            WriteFailed: The disk fails; also ``DiskFull``.
            StoreUnavailable: The file cannot be mapped.
        """
        assert self._buffer is None, "a file with a buffer is not cut"
        assert 0 <= position <= self.written
        descriptor = self._writable()
        self.zero(position, self.size)
        # Always, though the zeros may be an earlier run's: it may have died before its sync.
        self._sync(descriptor)
        self.written = self.reserved = self.flushed = position
        with self._lock:
            if position < self.size and not self.write_address:
                assert self._holders == 0, f"{self.path} is held by {self._holders}"
                self._unmap()
                self._map_file(descriptor, is_writable=True)
            self._descriptor = descriptor if position < self.size else None

    def commit(self) -> int:
        """Write what the buffer holds to the file, and return the committed position.

        The buffer goes back to its pool with the last byte of the file.

        Raises:
            WriteFailed: The disk fails; also ``DiskFull``. It can be tried again.
        """
        if self._buffer is not None and self.hold():
            try:
                with self._commits:
                    self._write_out(self.written)
            finally:
                self.release()
        return self.committed

    def flush(self, *, fails_if_changed: bool = False) -> int:
        """Make committed bytes durable, and return the position up to which they are.

        The writer may append meanwhile; what it appends after the start is not counted.

        Args:
            fails_if_changed: Count nothing as durable that a foreign change has taken.

        Raises:
            WriteFailed: The disk fails, or there is a foreign change. This file then fails at every
                flush, as a sync that succeeds after one that failed says nothing about the bytes of
                the first.
        """
        # One at a time: the system tells of bytes it lost once, and all must know.
        with self._syncs:
            target = self.committed
            if target > self.flushed and self._sync_held():
                # A sync of a deleted file succeeds too. Before any thread sees `flushed`.
                if fails_if_changed and (change := self.foreign_change()):
                    self._failure = WriteFailed(self.path, change.removeprefix(f"{self.path} "))
                    raise self._failure
                self.flushed = target
                if target == self.size:
                    self._descriptor = None  # closes when the last thread that uses it is done
            return self.flushed

    def sync(self) -> None:
        """Make durable all bytes that there are, where ``flush`` cannot tell what has changed.

        Raises:
            WriteFailed: As ``flush``.
        """
        with self._syncs:
            self._sync_held()

    def foreign_change(self, *, is_thorough: bool = False) -> str:
        """Return what somebody else has done to the file: deleted, cut or replaced it; mostly "".

        Bytes that are written to a deleted file are lost with the process, and touching the map of
        a file that was cut ends it: whoever acknowledges messages asks here.

        Args:
            is_thorough: Look at the name too, where an open descriptor tells of the file.
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
            return f"{self.path} cannot be looked at: {error.strerror}"
        if self._is_unlinked or self._is_closed:
            return ""
        if not link_count:
            return f"{self.path} was deleted while the store is open"
        if is_other:
            return f"{self.path} was replaced while the store is open"
        if size != self.size:
            return f"{self.path} was {self.size} bytes, now {size}: something else cut it"
        return ""

    # --- life -----------------------------------------------------------------

    def hold(self) -> bool:
        """Keep ``address`` valid until ``release``. False if the file is closed or deleted.

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
            Whether the bytes were the file's all the time. If not, it was deleted and somebody
            held it for too long: what was read may be zeros and does not count.
        """
        with self._lock:
            assert self._holders > 0, f"{self.path} is released more often than held"
            self._holders -= 1
            if self._is_closed and self._holders == 0:
                self._unmap()
            return not self._is_taken_away

    def destroy(self, now_ms: int, forced_after_ms: int = FORCED_AFTER_MS) -> bool:
        """Delete the file now, and give its room back as soon as nobody holds it.

        Call again, later, while it returns False. Who holds the file reads on undisturbed until
        ``forced_after_ms`` have passed since the first call. Then zeros take the place of the file
        in memory, so that the disk gets its room back: addresses stay valid, no process dies, and
        ``release`` tells the holder that what it read does not count.

        Returns:
            Whether the room is given back.

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
        """Let nobody hold the file any more, and unmap it when the last holder is gone.

        Neither commits nor flushes.
        """
        with self._lock:
            self._is_closed = True
            if self._holders == 0:
                self._unmap()

    # --- inside ---------------------------------------------------------------

    def _map_file(self, descriptor: "_Descriptor", *, is_writable: bool) -> None:
        # The size is asked for now: a map that reached beyond the file would kill the process.
        found = os.fstat(descriptor.number).st_size
        if found != self.size:
            raise StoreUnavailable(
                f"{self.path} was {self.size} bytes, now {found}: something else writes to it"
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
            return  # another thread was at the end first
        if start < stop:
            descriptor = self._writable()  # kept: another thread may drop it
            self._disk.write(descriptor.number, self.path, start, buffer.view[start:stop])
            self._committed = stop
            _clear(buffer, start, stop)
        if stop == self.size:
            self._drop_buffer()

    def _take_away(self, mapped: memory.FileMap) -> None:
        if not self._is_taken_away:
            _log.warning(
                "%s was deleted, but is still held by %d readers; its room is given back now, and "
                "what they read from it does not count",
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
        buffer.give_back()

    def _writable(self) -> "_Descriptor":
        return self._descriptor or _Descriptor(self._disk.open(self.path))

    def _sync_held(self) -> bool:
        """Sync it unless it is closed, deleted or only read; return whether it was synced."""
        descriptor = self._descriptor  # before the hold: it is still there then, or not needed
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
    """A descriptor that closes with its last use: one thread may drop what another syncs."""

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
    """Return where a file holds data, not holes, as far as the file system tells."""
    ranges = []
    position = start
    while position < stop:
        try:
            begin = os.lseek(descriptor, position, os.SEEK_DATA)
            position = os.lseek(descriptor, begin, os.SEEK_HOLE)
        except OSError as error:
            if error.errno != errno.ENXIO:  # ENXIO: a hole to the end
                ranges.append((position, stop))
            break
        if begin < stop:
            ranges.append((begin, min(position, stop)))
    return ranges


def _clear(buffer: WriteBuffer, start: int, stop: int) -> None:
    ctypes.memset(buffer.address + start, 0, stop - start)
