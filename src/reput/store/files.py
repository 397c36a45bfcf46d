"""The folder a store is read from: local, or anything pyarrow.fs speaks (s3, gs, hdfs, ...).

The only module that imports mmap. Never writes. Large reads of local files are maps, so a reader
copies nothing; a map lives as long as a view of it does.
"""

import fcntl
import mmap
import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from reput.errors import StoreUnavailable

_MAP_FROM_BYTES = 64 * 1024
"""Below this a read copies: a map costs more than it saves."""

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
    """How much to read at once when walking."""
    gap_bytes_max: int
    """Reading on through a gap of this size is cheaper than a second read."""

    def entries(self, path: str) -> list[Entry]:
        """Return what a folder holds, by name; nothing for a folder that is not there."""

    def entry(self, path: str) -> Entry | None:
        """Return one file or folder, or None."""

    def read(self, path: str, start: int = 0, length: int | None = None) -> Bytes:
        """Return bytes of a file, fewer than asked for at its end."""

    def lock_holder(self, path: str) -> int | None:
        """Return the process that holds a file's lock, None if nobody does or nobody can say."""


def open_folder(location: str) -> Folder:
    """Return the folder at a local path or URI.

    Raises:
        StoreUnavailable: There is no such folder, or the file system cannot be reached.
    """
    if "://" in location and not location.startswith("file://"):
        return RemoteFolder(location)
    root = Path(location.removeprefix("file://"))
    if not root.is_dir():
        found = "is a file" if root.exists() else "does not exist"
        raise StoreUnavailable(f"{location} {found}; give the folder that holds commitlog/")
    return LocalFolder(location, root)


class LocalFolder:
    """A folder on a file system of this machine."""

    window_bytes = 32 * 1024 * 1024
    gap_bytes_max = 1 << 62  # a map copies nothing

    def __init__(self, location: str, root: Path) -> None:
        self.location = location
        self._root = str(root)

    def entries(self, path: str) -> list[Entry]:
        """Return what a folder holds, by name."""
        try:
            with os.scandir(f"{self._root}/{path}") as scan:
                found = list(_existing(scan))
        except (FileNotFoundError, NotADirectoryError):
            return []
        return sorted(found, key=lambda entry: entry.name)

    def entry(self, path: str) -> Entry | None:
        """Return one file or folder, or None."""
        try:
            state = os.stat(f"{self._root}/{path}")
        except (FileNotFoundError, NotADirectoryError):
            return None
        return _entry(path.rsplit("/", 1)[-1], state)

    def read(self, path: str, start: int = 0, length: int | None = None) -> Bytes:
        """Return bytes of a file; a view of a map if they are many."""
        descriptor = os.open(f"{self._root}/{path}", os.O_RDONLY | os.O_CLOEXEC)
        try:
            # The size is asked for now: a map that reached beyond the file would kill the process.
            left = max(os.fstat(descriptor).st_size - start, 0)
            length = left if length is None else min(length, left)
            if length < _MAP_FROM_BYTES:
                return os.pread(descriptor, length, start)
            skipped = start % mmap.ALLOCATIONGRANULARITY
            mapped = mmap.mmap(
                descriptor, length + skipped, access=mmap.ACCESS_READ, offset=start - skipped
            )
            mapped.madvise(mmap.MADV_SEQUENTIAL)
            return memoryview(mapped)[skipped:]
        finally:
            os.close(descriptor)

    def lock_holder(self, path: str) -> int | None:
        """Return the process on this machine that holds the lock on a file's first byte."""
        query = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0)
        try:
            with open(f"{self._root}/{path}", "rb") as file:
                answer = fcntl.fcntl(file, fcntl.F_GETLK, query)
        except (OSError, ValueError):
            return None
        kind, _, _, _, pid = struct.unpack("hhqqi4x", answer)
        return None if kind == fcntl.F_UNLCK else int(pid)


def _existing(scan: Iterator["os.DirEntry[str]"]) -> Iterator[Entry]:
    for entry in scan:
        try:
            yield _entry(entry.name, entry.stat())
        except FileNotFoundError:
            continue  # a broker deleted it since


def _entry(name: str, state: os.stat_result) -> Entry:
    is_folder = os.path.stat.S_ISDIR(state.st_mode)
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
        selector = self._selector(f"{self._root}/{path}", allow_not_found=True)
        found = (self._entry(info) for info in self._fs.get_file_info(selector))
        return sorted((entry for entry in found if entry), key=lambda entry: entry.name)

    def entry(self, path: str) -> Entry | None:
        """Return one file or folder, or None."""
        return self._entry(self._fs.get_file_info(f"{self._root}/{path}"))

    def _entry(self, info: Any) -> Entry | None:
        if info.type == self._types.NotFound:
            return None
        is_folder = info.type == self._types.Directory
        modified_ms = (info.mtime_ns or 0) // 1_000_000
        return Entry(info.base_name, 0 if is_folder else info.size, modified_ms, is_folder)

    def read(self, path: str, start: int = 0, length: int | None = None) -> Bytes:
        """Return bytes of a file in one range request."""
        with self._fs.open_input_file(f"{self._root}/{path}") as file:
            left = max(file.size() - start, 0)
            return memoryview(file.read_at(left if length is None else min(length, left), start))

    def lock_holder(self, path: str) -> int | None:
        """Return None: object stores have no locks to ask about."""
        return None
