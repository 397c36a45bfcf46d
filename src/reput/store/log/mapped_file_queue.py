"""A sequence of files of equal size, addressed by physical offset, in one or more folders."""

import bisect
import logging
import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from reput.errors import DiskFull, StoreUnavailable, WriteFailed
from reput.store.files import paths
from reput.store.files.disk import Disk
from reput.store.log.mapped_file import FORCED_AFTER_MS, MappedFile, WriteBuffer

_log = logging.getLogger(__name__)


class BufferPool(Protocol):
    """A source of write buffers."""

    @property
    def available(self) -> int:
        """Number of buffers that can be borrowed now."""

    def borrow(self) -> WriteBuffer | None:
        """Return a buffer; None if all are in use."""


class MappedFileQueue:
    """Files named by their start offset; the last one is written to.

    One thread rolls, truncates and deletes; another may create the next file ahead
    (``prepare_next``). ``files`` is replaced, never changed: a thread can keep the tuple it has.
    """

    def __init__(
        self,
        folders: Sequence[str],
        file_size: int,
        disk: Disk,
        *,
        read_only_folders: Sequence[str] = (),
        size_key: str = "mappedFileSizeCommitLog",
        pool: BufferPool | None = None,
        is_warmed: bool = False,
    ) -> None:
        """Set up the sequence; nothing is read.

        Args:
            folders: Folders of the files and of new ones, as listed by storePathCommitLog.
            file_size: Size of each file in bytes.
            disk: Makes bytes durable.
            read_only_folders: Folders that may contain files, and get no new ones.
            size_key: Configuration key of ``file_size``, for errors.
            pool: Source of write buffers for new files; None without buffers.
            is_warmed: Let ``step_warming`` reserve, touch and lock new files (warmMapedFileEnable).
        """
        self.folders = sorted(set(folders))
        self.read_only_folders = sorted(set(read_only_folders))
        self.full_folders: set[str] = set()
        """Folders that get no new file while another is free; set by retention."""
        self.file_size = file_size
        self.files: tuple[MappedFile, ...] = ()
        self._disk = disk
        self._size_key = size_key
        self._pool = pool
        self.is_warmed = is_warmed
        """True if new files are warmed."""
        self._cold: list[MappedFile] = []  # new files that are to be warmed
        self._locked: list[MappedFile] = []  # in memory
        self._making = threading.Lock()  # guards the next file; held while the disk works
        self._prepared: MappedFile | None = None
        self._hanging: list[MappedFile] = []  # deleted files that are still held

    # --- files ----------------------------------------------------------------

    def load(self) -> None:
        """Find the files of all folders. None is mapped; all count as full until ``truncate``.

        An empty last file, left by a crash, is deleted. Other names are ignored and logged.

        Raises:
            StoreUnavailable: A file has another size than configured, or two files overlap.
            WriteFailed: The empty last file cannot be deleted.
        """
        named_files = sorted(
            (start, path)
            for folder in dict.fromkeys([*self.folders, *self.read_only_folders])
            for start, path in _named_files(folder)
        )
        if named_files and Path(named_files[-1][1]).stat().st_size == 0:
            _, path = named_files.pop()
            _log.warning("%s is empty and is deleted: the store stopped during its creation", path)
            self._disk.unlink(path)
        files: list[MappedFile] = []
        for start, path in named_files:
            file = MappedFile.open(path, start, self.file_size, self._disk, size_key=self._size_key)
            if files and start < files[-1].end:
                raise StoreUnavailable(
                    f"{files[-1].path} and {path} both contain physical offset {start}; remove one"
                )
            files.append(file)
        self.files = tuple(files)

    @property
    def first(self) -> MappedFile | None:
        """The oldest file."""
        return self.files[0] if self.files else None

    @property
    def last(self) -> MappedFile | None:
        """The file that is written to."""
        return self.files[-1] if self.files else None

    @property
    def min_offset(self) -> int:
        """Physical offset of the oldest byte; 0 without files."""
        return self.files[0].start if self.files else 0

    @property
    def max_offset(self) -> int:
        """Physical offset up to which every byte can be read; 0 without files."""
        end = self.min_offset
        for file in self._unfinished():
            end = file.start + file.committed
            if file.committed < file.size:
                break  # later files follow a hole until this one is committed
        return end

    def file_at(self, physical_offset: int) -> MappedFile | None:
        """Return the file that contains an offset; None if there is none."""
        files = self.files
        if not files:
            return None
        index = (physical_offset - files[0].start) // self.file_size
        if not (0 <= index < len(files) and files[index].start <= physical_offset):
            # There are gaps, or the offset is before or after all files.
            index = bisect.bisect_right(files, physical_offset, key=lambda file: file.start) - 1
        is_inside = index >= 0 and files[index].start <= physical_offset < files[index].end
        return files[index] if is_inside else None

    # --- growing --------------------------------------------------------------

    def roll(self, start: int = 0) -> MappedFile:
        """Add the next file: the prepared one, or a new one.

        The caller fills the previous file up to its last byte, before or after this call:
        ``flush`` and ``max_offset`` stop at a file that is not full.

        Args:
            start: Physical offset of the first file, if there is none.

        Raises:
            WriteFailed: No folder accepts a new file; also ``DiskFull``.
        """
        with self._making:
            file = self._prepared or self._make(self.files[-1].end if self.files else start)
            self._prepared = None
            self.files = (*self.files, file)
            return file

    @property
    def has_prepared(self) -> bool:
        """True if the file for the next ``roll`` exists already."""
        return self._prepared is not None

    @property
    def writable(self) -> tuple[MappedFile, ...]:
        """The file that is written to and the prepared one, if they exist."""
        prepared = self._prepared
        return self.files[-1:] if prepared is None else (*self.files[-1:], prepared)

    def prepare_next(self) -> None:
        """Create the file after the last one, with space and pages for the first step.

        For a worker thread; ``roll`` waits for it. Does nothing if the file exists, or if the pool
        has no buffer for it.

        Raises:
            WriteFailed: No folder accepts a new file; also ``DiskFull``.
        """
        with self._making:
            has_buffer = self._pool is None or self._pool.available
            if self._prepared is None and has_buffer:
                start = self.files[-1].end if self.files else 0
                self._prepared = self._make(start, is_touched=True)

    def step_warming(self, length: int) -> bool:
        """Warm some bytes of new files, lock warm files in memory, and unlock full ones.

        For one worker thread: the writer never waits for it, and may use a file before it is warm.

        Args:
            length: Number of bytes to warm.

        Returns:
            True if there was anything to do.

        Raises:
            WriteFailed: A file has no space; also ``DiskFull``. It is tried again.
        """
        if not self.is_warmed:
            return False
        with self._making:  # so that the next file is not missed while it becomes the last
            writable = self.writable
            self._cold = [file for file in self._cold if file in writable]
        for file in [file for file in self._locked if file not in writable]:
            file.unlock_memory()
            self._locked.remove(file)
        for file in self._cold[:1]:
            if not file.warm(length):
                file.lock_memory()
                self._locked.append(file)
                self._cold.remove(file)
            return True
        return False

    def drop_prepared(self) -> None:
        """Delete the prepared file, as before a clean stop.

        Raises:
            WriteFailed: It cannot be deleted.
        """
        with self._making:
            if self._prepared is not None:
                self._prepared.destroy(now_ms=0)
                self._prepared = None

    # --- durability -----------------------------------------------------------

    def commit(self) -> int:
        """Write the buffers to the files; return the offset after the last committed byte.

        Raises:
            WriteFailed: The disk failed; also ``DiskFull``.
        """
        for file in self._unfinished():
            file.commit()
        return self.max_offset

    def flush(self) -> int:
        """Make committed bytes durable, in order; return the offset up to which all are.

        Raises:
            WriteFailed: The disk failed, see ``MappedFile.flush``; or a file was replaced under its
                name.
        """
        flushed = self.min_offset
        for file in self._unfinished():
            flushed = file.start + file.flush(fails_if_changed=True)
            if file.flushed < file.size:
                break
        return flushed

    # --- shrinking ------------------------------------------------------------

    def truncate(self, physical_offset: int, now_ms: int) -> None:
        """Truncate the sequence at an offset, durably, and prepare for appends there.

        Later files are deleted, newest first, so that a crash leaves no gap. Then the rest of the
        file with the offset is overwritten with zeros.

        Raises:
            WriteFailed: The disk failed; also ``DiskFull``. Call it again.
        """
        self.drop_prepared()
        self._delete_from(physical_offset + 1, now_ms)
        if self.files:
            last = self.files[-1]
            last.cut(min(physical_offset - last.start, last.size))

    def clear(self, now_ms: int) -> None:
        """Delete all files, durably; the sequence has no bytes.

        Raises:
            WriteFailed: The disk failed. Call it again.
        """
        self.drop_prepared()
        self._delete_from(0, now_ms)

    def delete_first(self, now_ms: int, forced_after_ms: int = FORCED_AFTER_MS) -> MappedFile:
        """Delete the oldest file and return it. The last file is never deleted.

        After a crash it may exist again, which is harmless.

        Raises:
            WriteFailed: It cannot be deleted; nothing has changed.
        """
        assert len(self.files) > 1, "the file that is written to is never deleted"
        file = self.files[0]
        self._destroy(file, now_ms, forced_after_ms)
        return file

    @property
    def has_hanging(self) -> bool:
        """True if the space of a deleted file is not free yet."""
        return self._disk.has_discarded or any(file.address for file in self._hanging)

    def step(self, now_ms: int, forced_after_ms: int = FORCED_AFTER_MS) -> bool:
        """Try again to free the space of deleted files; return whether any was freed.

        Call it every redeleteHangedFileInterval.
        """
        before = len(self._hanging)
        self._hanging = [
            file for file in self._hanging if not file.destroy(now_ms, forced_after_ms)
        ]
        return len(self._hanging) < before

    def close(self) -> None:
        """Close all files; holders keep theirs. Does not commit or flush."""
        with self._making:
            for file in (*self.files, *([self._prepared] if self._prepared else [])):
                file.close()
            self.files, self._prepared = (), None

    # --- private --------------------------------------------------------------

    def _delete_from(self, start: int, now_ms: int) -> None:
        """Delete the files that begin at ``start`` or later, newest first, durably."""
        folders = set()
        while self.files and self.files[-1].start >= start:
            folders.add(os.path.dirname(self.files[-1].path))  # noqa: PTH120
            self._destroy(self.files[-1], now_ms, FORCED_AFTER_MS)
        for folder in folders:
            self._disk.sync_folder(folder)

    def _unfinished(self) -> tuple[MappedFile, ...]:
        """Return the files from the oldest one that is not fully durable; at least the last."""
        files = self.files
        index = max(len(files) - 1, 0)
        while index > 0 and files[index - 1].flushed < files[index - 1].size:
            index -= 1
        return files[index:]

    def _destroy(self, file: MappedFile, now_ms: int, forced_after_ms: int) -> None:
        is_gone = file.destroy(now_ms, forced_after_ms)
        self.files = tuple(other for other in self.files if other is not file)
        if not is_gone:
            self._hanging.append(file)

    def _make(self, start: int, *, is_touched: bool = False) -> MappedFile:
        failure = WriteFailed(", ".join(self.folders), "no new file: every folder is read-only")
        for folder in self._folders_for(start):
            try:
                return self._make_in(folder, start, is_touched=is_touched)
            except WriteFailed as error:
                _log.warning("no new file in %s: %s", folder, error)
                # The caller can handle a full disk, so this error has priority.
                failure = failure if isinstance(failure, DiskFull) else error
        raise failure

    def _make_in(self, folder: str, start: int, *, is_touched: bool) -> MappedFile:
        self._disk.make_folder(folder)
        path = f"{folder}/{paths.offset_name(start)}"
        buffer = self._pool.borrow() if self._pool else None
        try:
            file = MappedFile.create(path, start, self.file_size, self._disk, buffer=buffer)
        except BaseException:
            if buffer is not None:
                buffer.release()
            raise
        try:
            file.reserve(1)
            if is_touched:
                file.touch(0, file.reserved)
        except BaseException:
            file.destroy(now_ms=0)
            raise
        if self.is_warmed:
            self._cold.append(file)
        return file

    def _folders_for(self, start: int) -> list[str]:
        """Return the folders to try: Java's choice, then the next ones, then the full ones."""
        writable = [folder for folder in self.folders if folder not in self.read_only_folders]
        full = [folder for folder in writable if folder in self.full_folders]
        free = [folder for folder in writable if folder not in full]
        choice = free or full
        turn = start // self.file_size % max(len(choice), 1)
        return list(dict.fromkeys([*choice[turn:], *choice[:turn], *full]))


def _named_files(folder: str) -> list[tuple[int, str]]:
    """Return (start, path) of the files in a folder whose names are offsets."""
    named_files, others = [], []
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                start = paths.parse_offset_name(entry.name)
                if start is None or not entry.is_file():
                    others.append(entry.name)
                else:
                    named_files.append((start, f"{folder}/{entry.name}"))
    except FileNotFoundError:
        return []
    except OSError as error:
        raise StoreUnavailable(f"{folder} cannot be read: {error.strerror}") from error
    if others:
        _log.warning("%s contains other files, which are ignored: %s", folder, sorted(others)[:10])
    return named_files
