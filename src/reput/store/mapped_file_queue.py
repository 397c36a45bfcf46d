"""The run of equal files behind one physical offset, in one folder or over several."""

import bisect
import logging
import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from reput.errors import DiskFull, StoreUnavailable, WriteFailed
from reput.store import paths
from reput.store.disk import Disk
from reput.store.mapped_file import FORCED_AFTER_MS, MappedFile, WriteBuffer

_log = logging.getLogger(__name__)


class BufferPool(Protocol):
    """Where files get buffers."""

    @property
    def available(self) -> int:
        """How many buffers can be borrowed now."""

    def borrow(self) -> WriteBuffer | None:
        """Return a buffer, None if there is no more."""


class MappedFileQueue:
    """Files named by the offset they start at, of which the last is written to.

    One thread rolls, truncates and deletes; another may make the next file ahead
    (``prepare_next``). ``files`` is replaced, never changed: a thread may go on reading the one it
    has.
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
        """Name the folders; nothing is read yet.

        Args:
            folders: Where files are and new ones go, as storePathCommitLog lists them.
            file_size: Of each file, bytes.
            disk: What makes bytes durable.
            read_only_folders: Where files may be, and no new ones go.
            size_key: The configuration key of ``file_size``, for error texts.
            pool: Where new files get their write buffers, if they shall have one.
            is_warmed: Reserve, touch and lock all of a new file (warmMapedFileEnable).
        """
        self.folders = sorted(set(folders))
        self.read_only_folders = sorted(set(read_only_folders))
        self.full_folders: set[str] = set()
        """Folders that get no new file while there is another; retention says which."""
        self.file_size = file_size
        self.files: tuple[MappedFile, ...] = ()
        self._disk = disk
        self._size_key = size_key
        self._pool = pool
        self._is_warmed = is_warmed
        self._making = threading.Lock()  # of the next file; held while the disk works
        self._prepared: MappedFile | None = None
        self._hanging: list[MappedFile] = []  # deleted, but held by somebody

    # --- what there is --------------------------------------------------------

    def load(self) -> None:
        """Find the files of all folders. None is mapped, and all count as full until ``truncate``.

        An empty last file, which a crash left, is deleted. Other names are left alone, and logged.

        Raises:
            StoreUnavailable: A file has another size than configured, or two hold the same bytes.
            WriteFailed: The empty last file cannot be deleted.
        """
        found = sorted(
            (start, path)
            for folder in dict.fromkeys([*self.folders, *self.read_only_folders])
            for start, path in _named_files(folder)
        )
        if found and Path(found[-1][1]).stat().st_size == 0:
            _, path = found.pop()
            _log.warning("%s is empty and is deleted: the store stopped while making it", path)
            self._disk.unlink(path)
        files: list[MappedFile] = []
        for start, path in found:
            file = MappedFile.open(path, start, self.file_size, self._disk, size_key=self._size_key)
            if files and start < files[-1].end:
                raise StoreUnavailable(
                    f"{files[-1].path} and {path} both hold physical offset {start}; take one away"
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
        """Physical offset of the oldest byte; 0 with no file."""
        return self.files[0].start if self.files else 0

    @property
    def max_offset(self) -> int:
        """Physical offset below which every byte can be read; 0 with no file."""
        end = self.min_offset
        for file in self._unfinished():
            end = file.start + file.committed
            if file.committed < file.size:
                break  # what later files have is behind a hole until this one is committed
        return end

    def file_at(self, physical_offset: int) -> MappedFile | None:
        """Return the file whose range holds an offset, None if there is no such file."""
        files = self.files
        if not files:
            return None
        index = (physical_offset - files[0].start) // self.file_size
        if not (0 <= index < len(files) and files[index].start <= physical_offset):
            # There are gaps, or it is before or behind all files.
            index = bisect.bisect_right(files, physical_offset, key=lambda file: file.start) - 1
        is_inside = index >= 0 and files[index].start <= physical_offset < files[index].end
        return files[index] if is_inside else None

    # --- growing --------------------------------------------------------------

    def roll(self, start: int = 0) -> MappedFile:
        """Add the next file: the prepared one, or one made now.

        The caller fills the one before to its last byte, before or after this: neither ``flush``
        nor ``max_offset`` passes a file that is not full.

        Args:
            start: Physical offset of the first file, if there is none.

        Raises:
            WriteFailed: No folder can take a file; also ``DiskFull``.
        """
        with self._making:
            file = self._prepared or self._make(self.files[-1].end if self.files else start)
            self._prepared = None
            self.files = (*self.files, file)
            return file

    @property
    def has_prepared(self) -> bool:
        """Whether ``roll`` will take a file that is made already."""
        return self._prepared is not None

    @property
    def writable(self) -> tuple[MappedFile, ...]:
        """The file that is written to and the one that is made ahead, as far as there are any."""
        prepared = self._prepared
        return self.files[-1:] if prepared is None else (*self.files[-1:], prepared)

    def prepare_next(self) -> None:
        """Make the file behind the last one, with room and pages for the first step.

        Meant for a worker thread; ``roll`` waits for it. Nothing if it is made, if there is no last
        one, or where the pool has no buffer for it.

        Raises:
            WriteFailed: No folder can take a file; also ``DiskFull``.
        """
        with self._making:
            has_buffer = self._pool is None or self._pool.available
            if self._prepared is None and self.files and has_buffer:
                self._prepared = self._make(self.files[-1].end, is_touched=True)

    def drop_prepared(self) -> None:
        """Delete the file made ahead. A store that stops cleanly leaves none.

        Raises:
            WriteFailed: It cannot be deleted.
        """
        with self._making:
            if self._prepared is not None:
                self._prepared.destroy(now_ms=0)
                self._prepared = None

    # --- durability -----------------------------------------------------------

    def commit(self) -> int:
        """Write out what buffers hold; return the offset behind the last committed byte.

        Raises:
            WriteFailed: The disk fails; also ``DiskFull``.
        """
        for file in self._unfinished():
            file.commit()
        return self.max_offset

    def flush(self) -> int:
        """Make committed bytes durable, in order; return the offset below which all are.

        Raises:
            WriteFailed: The disk fails, see ``MappedFile.flush``; or a file is not the one any
                more that its name leads to.
        """
        flushed = self.min_offset
        for file in self._unfinished():
            flushed = file.start + file.flush(fails_if_changed=True)
            if file.flushed < file.size:
                break
        return flushed

    # --- shrinking ------------------------------------------------------------

    def truncate(self, physical_offset: int, now_ms: int) -> None:
        """End the run at an offset, durably, and be ready to append there.

        Files behind it are deleted, newest first, so that a crash in between leaves a run without
        a gap. Then what lies behind it in its file becomes zeros.

        Raises:
            WriteFailed: The disk fails; also ``DiskFull``. Call it again.
        """
        self.drop_prepared()
        folders = set()
        while self.files and self.files[-1].start > physical_offset:
            folders.add(os.path.dirname(self.files[-1].path))  # noqa: PTH120
            self._destroy(self.files[-1], now_ms, FORCED_AFTER_MS)
        for folder in folders:
            self._disk.sync_folder(folder)
        if self.files:
            last = self.files[-1]
            last.cut(min(physical_offset - last.start, last.size))

    def delete_first(self, now_ms: int, forced_after_ms: int = FORCED_AFTER_MS) -> MappedFile:
        """Delete the oldest file and return it. The last file is never deleted.

        After a crash it may be there again; nothing is wrong then.

        Raises:
            WriteFailed: It cannot be deleted; nothing has changed.
        """
        assert len(self.files) > 1, "the file that is written to is never deleted"
        file = self.files[0]
        self._destroy(file, now_ms, forced_after_ms)
        return file

    @property
    def has_hanging(self) -> bool:
        """True if the disk has not got back the room of a deleted file."""
        return self._disk.has_discarded or any(file.address for file in self._hanging)

    def step(self, now_ms: int, forced_after_ms: int = FORCED_AFTER_MS) -> bool:
        """Try again to give back the room of deleted files; return whether one was.

        Call it every redeleteHangedFileInterval.
        """
        before = len(self._hanging)
        self._hanging = [
            file for file in self._hanging if not file.destroy(now_ms, forced_after_ms)
        ]
        return len(self._hanging) < before

    def close(self) -> None:
        """Close all files; who holds one keeps it. Neither commits nor flushes."""
        with self._making:
            for file in (*self.files, *([self._prepared] if self._prepared else [])):
                file.close()
            self.files, self._prepared = (), None

    # --- inside ---------------------------------------------------------------

    def _unfinished(self) -> tuple[MappedFile, ...]:
        """Return the files from the oldest that is not all durable, or the last; oldest first."""
        files = self.files
        index = max(len(files) - 1, 0)
        while index > 0 and files[index - 1].flushed < files[index - 1].size:
            index -= 1
        return files[index:]

    def _destroy(self, file: MappedFile, now_ms: int, forced_after_ms: int) -> None:
        is_gone = file.destroy(now_ms, forced_after_ms)
        self.files = tuple(one for one in self.files if one is not file)
        if not is_gone:
            self._hanging.append(file)

    def _make(self, start: int, *, is_touched: bool = False) -> MappedFile:
        failure = WriteFailed(", ".join(self.folders), "no new file: every folder is read-only")
        for folder in self._folders_for(start):
            try:
                return self._make_in(folder, start, is_touched=is_touched)
            except WriteFailed as error:
                _log.warning("no new file in %s: %s", folder, error)
                # That there is no room is what the caller can do something about.
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
                buffer.give_back()
            raise
        try:
            file.reserve(1)
            if is_touched:
                file.touch(0, file.reserved)
            if self._is_warmed:
                file.warm()
                file.lock_memory()
        except BaseException:
            file.destroy(now_ms=0)
            raise
        return file

    def _folders_for(self, start: int) -> list[str]:
        """Return the folders to try: Java's choice, then those after it, then the full ones."""
        writable = [one for one in self.folders if one not in self.read_only_folders]
        full = [one for one in writable if one in self.full_folders]
        free = [one for one in writable if one not in full]
        choice = free or full
        turn = start // self.file_size % max(len(choice), 1)
        return list(dict.fromkeys([*choice[turn:], *choice[:turn], *full]))


def _named_files(folder: str) -> list[tuple[int, str]]:
    """Return (start, path) of the files in a folder that are named by an offset."""
    found, others = [], []
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                start = paths.parse_offset_name(entry.name)
                if start is None or not entry.is_file():
                    others.append(entry.name)
                else:
                    found.append((start, f"{folder}/{entry.name}"))
    except FileNotFoundError:
        return []
    except OSError as error:
        raise StoreUnavailable(f"{folder} cannot be read: {error.strerror}") from error
    if others:
        _log.warning("%s holds what is no log file, left alone: %s", folder, sorted(others)[:10])
    return found
