"""The folder a store is read from: local, or anything pyarrow.fs speaks (s3, gs, hdfs, ...).

Never writes. Large reads of local files are maps, so a reader
copies nothing; a map lives as long as a view of it does. Parts of local files are read through
descriptors that stay open; whole files are opened afresh, as a broker replaces its tables.
"""

import errno
import fcntl
import functools
import mmap
import os
import stat
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import unquote, urlsplit

from reput.errors import NotInStore, ReputError, StoreUnavailable
from reput.store import paths

_MAP_FROM_BYTES = 64 * 1024
"""Below this a read copies: a map costs more than it saves."""
_OPEN_FILES_MAX = 64
_EXTENTS_MAX = 1000
"""A file in more pieces is not asked about to its end."""

Bytes = bytes | memoryview


@dataclass(frozen=True, slots=True)
class Entry:
    """A file or folder within a folder."""

    name: str
    size: int
    """Bytes; 0 for a folder."""
    modified_ms: int
    is_folder: bool


class Folder(Protocol):
    """What the views need of a file system; paths are relative to the store's root."""

    location: str
    """The root as the user wrote it."""
    window_bytes: int
    """How much to read at once when walking; 64 or more."""
    gap_bytes_max: int
    """Reading on through a gap of this size is cheaper than a second read."""

    def entries(self, path: str) -> list[Entry]:
        """Return what a folder holds, by name; nothing for a folder that is not there."""

    def entry(self, path: str) -> Entry | None:
        """Return one file or folder, or None."""

    def read(self, path: str, start: int = 0, length: int | None = None) -> Bytes:
        """Return bytes of a file, fewer than asked for at its end.

        Raises:
            NotInStore: The file is gone.
            StoreUnavailable: It cannot be read.
        """

    def lock_holder(self, path: str) -> int | None:
        """Return the process that holds a file's lock, None if nobody does or nobody can say."""


def open_folder(location: str, *, commit_log_folders: Sequence[str] = ()) -> Folder:
    """Return the folder at a local path or URI.

    Args:
        location: The store's root.
        commit_log_folders: Where the log is, if not below the root; local paths.

    Raises:
        StoreUnavailable: There is no such folder, or the file system cannot be reached.
    """
    if "://" in location and not location.startswith("file:"):
        return RemoteFolder(location)
    root = _local_path(location)
    if not root.is_dir():
        found = "is a file" if root.exists() else "does not exist"
        raise StoreUnavailable(f"{location} {found}; give the folder that holds commitlog/")
    if list(commit_log_folders) not in ([], [f"{root}/{paths.COMMIT_LOG}"]):
        return SpreadFolder(location, root, commit_log_folders)
    return LocalFolder(location, root)


def _local_path(location: str) -> Path:
    if not location.startswith("file:"):
        return Path(location)
    host = urlsplit(location).netloc
    if host not in ("", "localhost"):
        raise StoreUnavailable(f"{location} is on host {host}; a local one is file:///...")
    return Path(unquote(location.removeprefix("file:").removeprefix(f"//{host}")))


def data_bytes(folder: Folder, path: str, size: int) -> int:
    """Return behind which byte of a file there are only zeros, as far as that is known unread.

    Brokers make log files at their full size, sparse: reading a gigabyte of nothing takes seconds.
    """
    return folder.data_bytes(path, size) if isinstance(folder, LocalFolder) else size


class LocalFolder:
    """A folder on a file system of this machine."""

    window_bytes = 8 * 1024 * 1024
    gap_bytes_max = 1 << 62  # a map copies nothing

    def __init__(self, location: str, root: Path) -> None:
        self.location = location
        self._root = str(root)
        self._opened = functools.lru_cache(_OPEN_FILES_MAX)(_OpenFile)

    def entries(self, path: str) -> list[Entry]:
        """Return what a folder holds, by name."""
        try:
            with os.scandir(f"{self._root}/{path}") as scan:
                found = list(_existing(scan))
        except (OSError, ValueError) as error:
            _expect_absent(error, self.location, path)
            return []
        return sorted(found, key=lambda entry: entry.name)

    def entry(self, path: str) -> Entry | None:
        """Return one file or folder, or None."""
        try:
            state = Path(self._root, path).stat()
        except (OSError, ValueError) as error:
            _expect_absent(error, self.location, path)
            return None
        return _entry(path.rsplit("/", 1)[-1], state)

    def read(self, path: str, start: int = 0, length: int | None = None) -> Bytes:
        """Return bytes of a file; a view of a map if they are many."""
        opener = _OpenFile if length is None else self._opened
        try:
            return _read(opener(f"{self._root}/{path}"), start, length)
        except OSError as error:
            raise _problem(error, self.location, path) from error

    def data_bytes(self, path: str, size: int) -> int:
        """Return behind which byte the file system keeps nothing of a file: a hole to its end."""
        end = 0
        try:
            descriptor = self._opened(f"{self._root}/{path}").descriptor
            for _ in range(_EXTENTS_MAX):
                start = os.lseek(descriptor, end, os.SEEK_DATA)
                end = os.lseek(descriptor, start, os.SEEK_HOLE)
                if end >= size:
                    break
        except OSError as error:
            return end if error.errno == errno.ENXIO else size
        return size

    def lock_holder(self, path: str) -> int | None:
        """Return the process on this machine that holds the lock on a file's first byte."""
        query = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0)
        try:
            with Path(self._root, path).open("rb") as file:
                answer = fcntl.fcntl(file, fcntl.F_GETLK, query)
        except (OSError, ValueError):
            return None
        kind, _, _, _, pid = struct.unpack("hhqqi4x", answer)
        return None if kind == fcntl.F_UNLCK else int(pid)


class SpreadFolder(LocalFolder):
    """A local folder whose log is elsewhere, in one folder or over several."""

    def __init__(self, location: str, root: Path, commit_log_folders: Sequence[str]) -> None:
        super().__init__(location, root)
        self._parts = [LocalFolder(one, Path(one)) for one in commit_log_folders]

    def _part(self, path: str) -> tuple[LocalFolder | None, str]:
        """Return the folder that holds a file of the log, and its name there."""
        family, _, name = path.partition("/")
        if family != paths.COMMIT_LOG:
            return None, path
        for part in self._parts:
            if part.entry(name) is not None:
                return part, name
        return self._parts[0], name

    def entries(self, path: str) -> list[Entry]:
        """Return what a folder holds, by name; of the log, what all its folders hold."""
        if path != paths.COMMIT_LOG:
            return super().entries(path)
        found = [entry for part in self._parts for entry in part.entries("")]
        return sorted(found, key=lambda entry: entry.name)

    def entry(self, path: str) -> Entry | None:
        """Return one file or folder, or None."""
        part, name = self._part(path)
        return super().entry(path) if part is None else part.entry(name)

    def read(self, path: str, start: int = 0, length: int | None = None) -> Bytes:
        """Return bytes of a file; a view of a map if they are many."""
        part, name = self._part(path)
        return super().read(path, start, length) if part is None else part.read(name, start, length)

    def data_bytes(self, path: str, size: int) -> int:
        """Return behind which byte the file system keeps nothing of a file: a hole to its end."""
        part, name = self._part(path)
        return super().data_bytes(path, size) if part is None else part.data_bytes(name, size)


class _OpenFile:
    """A descriptor that closes with its last use: one thread may drop what another reads."""

    __slots__ = ("descriptor",)

    def __init__(self, path: str) -> None:
        self.descriptor = -1
        self.descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def __del__(self) -> None:
        if self.descriptor >= 0:
            os.close(self.descriptor)


def _read(file: _OpenFile, start: int, length: int | None) -> Bytes:
    # The size is asked for now: a map that reached beyond the file would kill the process.
    left = max(os.fstat(file.descriptor).st_size - start, 0)
    length = left if length is None else min(length, left)
    if length < _MAP_FROM_BYTES:
        return os.pread(file.descriptor, length, start)
    skipped = start % mmap.ALLOCATIONGRANULARITY
    mapped = mmap.mmap(
        file.descriptor, length + skipped, access=mmap.ACCESS_READ, offset=start - skipped
    )
    mapped.madvise(mmap.MADV_SEQUENTIAL)
    return memoryview(mapped)[skipped:]


def _expect_absent(error: OSError | ValueError, location: str, path: str) -> None:
    """Accept an error that says that there is no such file, which names nobody can have say too."""
    is_absent = isinstance(error, (FileNotFoundError, NotADirectoryError))
    is_impossible = isinstance(error, ValueError) or error.errno == errno.ENAMETOOLONG
    if not (is_absent or is_impossible):
        raise _problem(error, location, path) from error


def _problem(error: Exception, location: str, path: str) -> ReputError:
    if isinstance(error, FileNotFoundError):
        return NotInStore(f"{path} is gone: deleted while {location} was read")
    return StoreUnavailable(f"{path} of {location} cannot be read: {error}")


def _existing(scan: Iterator["os.DirEntry[str]"]) -> Iterator[Entry]:
    for entry in scan:
        try:
            yield _entry(entry.name, entry.stat())
        except FileNotFoundError:
            continue  # a broker deleted it since


def _entry(name: str, state: os.stat_result) -> Entry:
    is_folder = stat.S_ISDIR(state.st_mode)
    size = 0 if is_folder else state.st_size
    return Entry(name, size, state.st_mtime_ns // 1_000_000, is_folder)


class RemoteFolder:
    """A folder that pyarrow.fs reaches through its URI, read in ranges."""

    window_bytes = 16 * 1024 * 1024
    gap_bytes_max = 256 * 1024

    def __init__(self, location: str) -> None:
        self.location = location
        try:
            from pyarrow import fs
        except ImportError as error:
            raise StoreUnavailable(
                f"{location} is a URI, which needs pyarrow: pip install 'reput[spark]'"
            ) from error
        try:
            self._fs, self._root = fs.FileSystem.from_uri(location)
            info = self._fs.get_file_info(self._root)
        except (OSError, ValueError) as error:
            raise StoreUnavailable(f"{location} cannot be reached: {error}") from error
        self._selector = fs.FileSelector
        self._types = fs.FileType
        if info.type == fs.FileType.NotFound:
            raise StoreUnavailable(f"{location} does not exist; give the folder with commitlog/")

    def entries(self, path: str) -> list[Entry]:
        """Return what a folder holds, by name."""
        try:
            selector = self._selector(f"{self._root}/{path}", allow_not_found=True)
            infos = self._fs.get_file_info(selector)
        except (OSError, ValueError) as error:
            _expect_absent(error, self.location, path)
            return []
        found = (self._entry(info) for info in infos)
        return sorted((entry for entry in found if entry), key=lambda entry: entry.name)

    def entry(self, path: str) -> Entry | None:
        """Return one file or folder, or None."""
        try:
            return self._entry(self._fs.get_file_info(f"{self._root}/{path}"))
        except (OSError, ValueError) as error:
            _expect_absent(error, self.location, path)
            return None

    def _entry(self, info: Any) -> Entry | None:
        if info.type == self._types.NotFound:
            return None
        is_folder = info.type == self._types.Directory
        modified_ms = (info.mtime_ns or 0) // 1_000_000
        return Entry(info.base_name, 0 if is_folder else info.size, modified_ms, is_folder)

    def read(self, path: str, start: int = 0, length: int | None = None) -> Bytes:
        """Return bytes of a file in one range request."""
        try:
            with self._fs.open_input_file(f"{self._root}/{path}") as file:
                left = max(file.size() - start, 0)
                length = left if length is None else min(length, left)
                return memoryview(file.read_at(length, start))
        except (OSError, ValueError) as error:
            raise _problem(error, self.location, path) from error

    def lock_holder(self, path: str) -> int | None:
        """Return None: object stores have no locks to ask about."""
        return None
