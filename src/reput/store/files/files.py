"""The folder of a store for reading: local, or any file system of pyarrow.fs (s3, gs, hdfs, ...).

It never writes. Large reads of local files are maps, so a reader copies nothing; a map lives as
long as a view of it. Parts of local files are read through descriptors that stay open; whole files
are opened for each read, as brokers replace their tables.
"""

import errno
import fcntl
import functools
import mmap
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import unquote, urlsplit

from reput.descriptors import first_byte_lock, lock_owner, seek_data, seek_hole
from reput.errors import NotInStore, ReputError, StoreUnavailable
from reput.extras import install_command
from reput.store.files import paths

_MAP_FROM_BYTES = 64 * 1024
"""Smaller reads copy: a map costs more than it saves."""
_OPEN_FILES_MAX = 64
_REMOTE_FILES_MAX = 4096
"""Number of remote files whose size is cached, which saves a request."""
_BLOCKS_MAX = 256
"""Number of cached blocks of remote files, of at most 256 KB each."""
_EXTENTS_MAX = 1000
"""Files in more pieces are assumed to have data up to the end."""
_HADOOP_S3 = ("s3a", "s3n")
_DBFS = "dbfs:"
_HDFS_SCHEMES = ("hdfs:", "viewfs:")
_HDFS_HINT = (
    "; hdfs needs Java and Hadoop's libhdfs.so: set JAVA_HOME, HADOOP_HOME (or "
    "ARROW_LIBHDFS_DIR), and CLASSPATH to what `hadoop classpath --glob` prints"
)

Bytes = bytes | memoryview


@dataclass(frozen=True, slots=True)
class Entry:
    """A file or folder within a folder."""

    name: str
    size: int
    """Size in bytes; 0 for a folder."""
    modified_ms: int
    is_folder: bool


class Folder(Protocol):
    """The file system operations of views; paths are relative to the store's root."""

    location: str
    """The root as given by the user."""
    window_bytes: int
    """Bytes of one read in a scan; at least 64."""
    gap_bytes_max: int
    """Size of a gap that is cheaper to read than to skip with a second read, in bytes."""
    reads_at_once: int
    """Number of small parallel reads that take little longer than one; 1 without such a gain."""

    def entries(self, path: str) -> list[Entry]:
        """Return the contents of a folder, sorted by name; empty if it does not exist."""

    def entry(self, path: str) -> Entry | None:
        """Return a file or folder; None if it does not exist."""

    def read(self, path: str, start: int = 0, length: int | None = None) -> Bytes:
        """Return bytes of a file, fewer than ``length`` at its end.

        Raises:
            NotInStore: The file was deleted.
            StoreUnavailable: It cannot be read.
        """

    def lock_holder(self, path: str) -> int | None:
        """Return the process that holds a file's lock; None without one, or if it is unknown."""


def open_folder(location: str, *, commit_log_folders: Sequence[str] = ()) -> Folder:
    """Return the folder at a local path or URI.

    Args:
        location: Root of the store.
        commit_log_folders: Local paths of the log's folders, if they are not in the root.

    Raises:
        StoreUnavailable: There is no such folder, or the file system cannot be reached.
    """
    if is_remote(location):
        return RemoteFolder(location)
    root = local_path(location)
    if not root.is_dir():
        problem = "is a file" if root.exists() else "does not exist"
        raise StoreUnavailable(f"{location} {problem}; give the folder that contains commitlog/")
    if list(commit_log_folders) not in ([], [f"{root}/{paths.COMMIT_LOG}"]):
        return SpreadFolder(location, root, commit_log_folders)
    return LocalFolder(location, root)


def is_remote(location: str) -> bool:
    """Return True if a location is the URI of a file system that is not mounted here."""
    return "://" in location and not location.startswith("file:")


def absolute(location: str) -> str:
    """Return a path or URI that does not depend on the current directory."""
    is_uri = is_remote(location) or location.startswith(("file:", f"{_DBFS}/"))
    return location if is_uri else str(Path(location).absolute())


def local_path(location: str) -> Path:
    """Return the path of a path, a ``file:`` URI, or a ``dbfs:/`` URI, which Databricks mounts.

    Raises:
        StoreUnavailable: The URI has the name of another machine.
    """
    if location.startswith(f"{_DBFS}/") and not is_remote(location):
        path = location.removeprefix(_DBFS)
        return Path(path if path.startswith("/Volumes/") else f"/dbfs{path}")
    if not location.startswith("file:"):
        return Path(location)
    host = urlsplit(location).netloc
    if host not in ("", "localhost"):
        raise StoreUnavailable(f"{location} is on host {host}; a local one is file:///...")
    return Path(unquote(location.removeprefix("file:").removeprefix(f"//{host}")))


def arrow_uri(location: str) -> str:
    """Return a URI with the scheme that pyarrow knows, for those of Hadoop: ``s3a``, ``s3n``."""
    scheme, separator, rest = location.partition("://")
    return f"s3{separator}{rest}" if scheme in _HADOOP_S3 else location


def data_bytes(folder: Folder, path: str, size: int) -> int:
    """Return the end of the data in a file, as far as it is known without a read.

    Brokers create log files sparse in their full size: to read a gigabyte of zeros takes seconds.
    """
    find_end = getattr(folder, "data_bytes", None)  # of folders on a disk
    return int(find_end(path, size)) if find_end is not None else size


class LocalFolder:
    """A folder on a file system of this machine."""

    window_bytes = 8 * 1024 * 1024
    gap_bytes_max = 1 << 62  # a map copies nothing
    reads_at_once = 1

    def __init__(self, location: str, root: Path) -> None:
        self.location = location
        self._root = str(root)
        self._opened = functools.lru_cache(_OPEN_FILES_MAX)(_OpenFile)

    def entries(self, path: str) -> list[Entry]:
        """Return the contents of a folder, sorted by name."""
        if not paths.is_below(path):
            return []
        try:
            with os.scandir(f"{self._root}/{path}") as scan:
                entries = list(_existing(scan))
        except (OSError, ValueError) as error:
            _expect_absent(error, self.location, path)
            return []
        return sorted(entries, key=lambda entry: entry.name)

    def entry(self, path: str) -> Entry | None:
        """Return a file or folder; None if it does not exist."""
        if not paths.is_below(path):
            return None
        try:
            state = Path(self._root, path).stat()
        except (OSError, ValueError) as error:
            _expect_absent(error, self.location, path)
            return None
        return _entry(path.rsplit("/", 1)[-1], state)

    def read(self, path: str, start: int = 0, length: int | None = None) -> Bytes:
        """Return bytes of a file; long reads return a view of a map."""
        opener = _OpenFile if length is None else self._opened
        try:
            return _read(opener(f"{self._root}/{paths.below(path)}"), start, length)
        except OSError as error:
            raise _problem(error, self.location, path) from error

    def data_bytes(self, path: str, size: int) -> int:
        """Return the end of the data in a file; a hole follows up to the end of the file."""
        end = 0
        try:
            descriptor = self._opened(f"{self._root}/{paths.below(path)}").descriptor
            for _ in range(_EXTENTS_MAX):
                start = seek_data(descriptor, end)
                end = seek_hole(descriptor, start)
                if end >= size:
                    break
        except OSError as error:
            return end if error.errno == errno.ENXIO else size
        return size

    def lock_holder(self, path: str) -> int | None:
        """Return the local process that holds the lock on a file's first byte; None without one."""
        try:
            with Path(self._root, paths.below(path)).open("rb") as file:
                answer = fcntl.fcntl(file, fcntl.F_GETLK, first_byte_lock())
        except (OSError, ValueError):
            return None
        return lock_owner(answer)


class SpreadFolder(LocalFolder):
    """A local folder whose log is elsewhere, in one folder or over several."""

    def __init__(self, location: str, root: Path, commit_log_folders: Sequence[str]) -> None:
        super().__init__(location, root)
        self._parts = [LocalFolder(folder, Path(folder)) for folder in commit_log_folders]

    def _part(self, path: str) -> tuple[LocalFolder | None, str]:
        """Return the folder with a file of the log, and its name there."""
        family, _, name = path.partition("/")
        if family != paths.COMMIT_LOG:
            return None, path
        for part in self._parts:
            if part.entry(name) is not None:
                return part, name
        return self._parts[0], name

    def entries(self, path: str) -> list[Entry]:
        """Return the contents of a folder, sorted by name; for the log, of all its folders."""
        if path != paths.COMMIT_LOG:
            return super().entries(path)
        entries = [entry for part in self._parts for entry in part.entries("")]
        return sorted(entries, key=lambda entry: entry.name)

    def entry(self, path: str) -> Entry | None:
        """Return a file or folder; None if it does not exist."""
        part, name = self._part(path)
        return super().entry(path) if part is None else part.entry(name)

    def read(self, path: str, start: int = 0, length: int | None = None) -> Bytes:
        """Return bytes of a file; long reads return a view of a map."""
        part, name = self._part(path)
        return super().read(path, start, length) if part is None else part.read(name, start, length)

    def data_bytes(self, path: str, size: int) -> int:
        """Return the end of the data in a file; a hole follows up to the end of the file."""
        part, name = self._part(path)
        return super().data_bytes(path, size) if part is None else part.data_bytes(name, size)


class _OpenFile:
    """A descriptor that is closed with its last use: a thread may drop it while another reads."""

    __slots__ = ("descriptor",)

    def __init__(self, path: str) -> None:
        self.descriptor = -1
        self.descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def __del__(self) -> None:
        if self.descriptor >= 0:
            os.close(self.descriptor)


def _read(file: _OpenFile, start: int, length: int | None) -> Bytes:
    # The size is read now: access to a map beyond the end of the file would kill the process.
    left = max(os.fstat(file.descriptor).st_size - start, 0)
    length = left if length is None else min(length, left)
    if length < _MAP_FROM_BYTES:
        return os.pread(file.descriptor, length, start)
    skipped = start % mmap.ALLOCATIONGRANULARITY
    mapped = mmap.mmap(
        file.descriptor, length + skipped, access=mmap.ACCESS_READ, offset=start - skipped
    )
    if hasattr(mmap, "MADV_SEQUENTIAL"):
        mapped.madvise(mmap.MADV_SEQUENTIAL)
    return memoryview(mapped)[skipped:]


def _expect_absent(error: OSError | ValueError, location: str, path: str) -> None:
    """Ignore an error that means that there is no such file, or that no file has such a name."""
    is_absent = isinstance(error, (FileNotFoundError, NotADirectoryError))
    is_impossible = isinstance(error, ValueError) or error.errno == errno.ENAMETOOLONG
    if not (is_absent or is_impossible):
        raise _problem(error, location, path) from error


def _problem(error: Exception, location: str, path: str) -> ReputError:
    if isinstance(error, FileNotFoundError):
        return NotInStore(f"{path} was deleted while {location} was read")
    return StoreUnavailable(f"{path} of {location} cannot be read: {error}")


def _existing(scan: Iterator["os.DirEntry[str]"]) -> Iterator[Entry]:
    for entry in scan:
        try:
            yield _entry(entry.name, entry.stat())
        except FileNotFoundError:
            continue  # a broker deleted it meanwhile


def _entry(name: str, state: os.stat_result) -> Entry:
    is_folder = stat.S_ISDIR(state.st_mode)
    size = 0 if is_folder else state.st_size
    return Entry(name, size, state.st_mtime_ns // 1_000_000, is_folder)


class RemoteFolder:
    """A folder of pyarrow.fs, given by its URI and read in ranges.

    A request takes as long as reading a megabyte, and a store has thousands of files. So names are
    listed once, for a whole family of files, and small reads get the bytes around them too: the
    next read is mostly there. Everything stays as it was at the first request.
    """

    window_bytes = 16 * 1024 * 1024
    gap_bytes_max = 256 * 1024
    reads_at_once = 32

    def __init__(self, location: str) -> None:
        self.location = location
        _refuse_password(location)
        try:
            from pyarrow import fs
        except ImportError as error:
            raise StoreUnavailable(
                f"{location} is a URI, which needs pyarrow: {install_command('spark')}"
            ) from error
        self._selector = fs.FileSelector
        self._types = fs.FileType
        self._listed: dict[str, dict[str, Entry]] = {}
        """Folder -> its entries by name, in the order of names."""
        self._whole: set[str] = set()
        """Families of which all folders are listed."""
        try:
            self._fs, self._root = fs.FileSystem.from_uri(arrow_uri(location))
            self._list("", is_deep=False)
        except FileNotFoundError:
            raise StoreUnavailable(
                f"{location} does not exist; give the folder that contains commitlog/"
            ) from None
        except (OSError, ValueError) as error:
            hint = _HDFS_HINT if location.startswith(_HDFS_SCHEMES) else ""
            reason = str(error).partition("\n")[0]  # a line for each path without a libjvm
            raise StoreUnavailable(f"{location} cannot be reached: {reason}{hint}") from error
        # Functions without ``self``: their caches are freed with the folder.
        self._open = functools.partial(_open_remote, self._fs, self._root)
        self._opened = functools.lru_cache(_REMOTE_FILES_MAX)(self._open)
        block = functools.partial(_read_block, self._opened, self.gap_bytes_max)
        self._block = functools.lru_cache(_BLOCKS_MAX)(block)

    def _list(self, path: str, *, is_deep: bool) -> None:
        """List an existing folder and, if ``is_deep``, the folders in it."""
        selector = self._selector(f"{self._root}/{path}".rstrip("/"), recursive=is_deep)
        by_folder: dict[str, list[Entry]] = {path: []}
        for info in self._fs.get_file_info(selector):
            name = info.path.removeprefix(self._root).strip("/")
            by_folder.setdefault(name.rpartition("/")[0], []).append(self._entry(info))
        for folder, entries in by_folder.items():
            entries.sort(key=lambda entry: entry.name)
            self._listed[folder] = {entry.name: entry for entry in entries}

    def _entry(self, info: Any) -> Entry:
        is_folder = info.type == self._types.Directory
        modified_ms = (info.mtime_ns or 0) // 1_000_000
        return Entry(info.base_name, 0 if is_folder else info.size, modified_ms, is_folder)

    def _list_if_there(self, path: str, *, is_deep: bool) -> None:
        family = path.partition("/")[0]
        self._listed.setdefault(path, {})
        if family in self._listed[""]:
            try:
                self._list(path, is_deep=is_deep)
            except (OSError, ValueError) as error:
                _expect_absent(error, self.location, path)

    def entries(self, path: str) -> list[Entry]:
        """Return the contents of a folder, sorted by name."""
        if not paths.is_below(path):
            return []
        family = path.partition("/")[0]
        if path and family not in self._whole:
            self._list_if_there(family, is_deep=True)
            self._whole.add(family)
        return list(self._listed.get(path, {}).values())

    def entry(self, path: str) -> Entry | None:
        """Return a file or folder; None if it does not exist."""
        if not paths.is_below(path):
            return None
        folder, _, name = path.rpartition("/")
        if folder not in self._listed and path.partition("/")[0] not in self._whole:
            self._list_if_there(folder, is_deep=False)
        return self._listed.get(folder, {}).get(name)

    def read(self, path: str, start: int = 0, length: int | None = None) -> Bytes:
        """Return bytes of a file with one range request, and one for its size the first time."""
        try:
            if length is None:
                return _read_at(self._open(path), start, None)
            if length > self.gap_bytes_max:
                return _read_at(self._opened(path), start, length)
            return self._small(path, start, length)
        except (OSError, ValueError) as error:
            raise _problem(error, self.location, path) from error

    def _small(self, path: str, start: int, length: int) -> Bytes:
        """Return bytes from one block or two."""
        first, skipped = divmod(start, self.gap_bytes_max)
        stop = skipped + length
        if stop <= self.gap_bytes_max:
            return self._block(path, first)[skipped:stop]
        rest = self._block(path, first + 1)[: stop - self.gap_bytes_max]
        return bytes(self._block(path, first)[skipped:]) + rest

    def lock_holder(self, path: str) -> int | None:
        """Return None: object stores have no locks."""
        return None


def _open_remote(file_system: Any, root: str, path: str) -> Any:
    return file_system.open_input_file(f"{root}/{paths.below(path)}")


def _read_at(file: Any, start: int, length: int | None) -> memoryview:
    left = max(file.size() - start, 0)
    return memoryview(file.read_at(left if length is None else min(length, left), start))


def _read_block(opened: Callable[[str], Any], size: int, path: str, number: int) -> memoryview:
    return _read_at(opened(path), number * size, size)


def _refuse_password(location: str) -> None:
    """Raise an error for a URI with a secret: locations appear in logs, plans and errors."""
    user, separator, _ = urlsplit(location).netloc.rpartition("@")
    if separator and ":" in user:
        parts = urlsplit(location)
        shown = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
        raise StoreUnavailable(
            f"{shown} was given with a secret, which logs would contain; set it in the environment "
            "of the driver and the workers: for s3 AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
        )
