"""The disk: reserves space for bytes, and makes them durable.

All writes to a store go through one ``Disk``, so that tests can replace it by a disk that is full,
that fails, or that loses unsynced bytes.

The file system must guarantee that after ``reserve``, bytes written through a map find space. If a
file system cannot reserve space, zeros are written instead, which is slow but has the same effect.
File systems that copy on write (btrfs with snapshots, ZFS) may break the guarantee; no caller can
prevent that.

A file or folder that cannot be opened for lack of descriptors or memory is ``OutOfResources``: a
temporary error, whereas a failed sync is final. So that connections cannot use up the descriptors
that syncs need, the descriptor of a store's folder stays open, and spare ones are released when
none is left.
"""

import contextlib
import ctypes
import errno
import os
import shutil
import stat
from collections import deque
from pathlib import Path
from typing import NamedTuple, NoReturn

from reput.descriptors import open_descriptor
from reput.errors import DiskFull, OutOfResources, StoreUnavailable, WriteFailed
from reput.file_sync import sync_data, sync_names
from reput.store.files import paths

_NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_NO_RESOURCES = {errno.EMFILE, errno.ENFILE, errno.ENOMEM}
_CANNOT_RESERVE = {errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL}
_ZEROS = bytes(1024 * 1024)

_libc = ctypes.CDLL(None, use_errno=True)
_AT_EMPTY_PATH = 0x1000
_STATX_NLINK = 0x4
_STATX_SIZE = 0x200


class _State(ctypes.Structure):
    """The beginning of Linux's ``struct statx``, and space for the rest."""

    _fields_ = (
        ("mask", ctypes.c_uint32),
        ("block_size", ctypes.c_uint32),
        ("attributes", ctypes.c_uint64),
        ("link_count", ctypes.c_uint32),
        ("owner", ctypes.c_uint32 * 2),
        ("mode", ctypes.c_uint16 * 2),
        ("inode", ctypes.c_uint64),
        ("size", ctypes.c_uint64),
        ("rest", ctypes.c_uint8 * 208),
    )


class Space(NamedTuple):
    """The space of a file system, in bytes."""

    total: int
    free: int


class Disk:
    """The disk of this machine. The caller owns descriptors; paths are for error texts.

    All methods may be called in any thread, and none holds the GIL while the disk works. They raise
    ``DiskFull`` if there is no space, ``OutOfResources`` if nothing more can be opened, else
    ``WriteFailed``.
    """

    def __init__(self) -> None:
        self._kept: dict[str, int] = {}
        self._discarded: deque[tuple[object, ...]] | None = None

    def keep_open(self, path: str) -> None:
        """Keep a folder's descriptor open, for syncs of the folder and its file system.

        Raises:
            WriteFailed: It cannot be opened; also ``OutOfResources``.
        """
        if path not in self._kept:
            self._kept[path] = _open(path, os.O_RDONLY | os.O_DIRECTORY, "open")

    def defer_discards(self) -> None:
        """Let ``release_discarded`` release discarded files, in a thread that may wait.

        The release of the last map or descriptor of a deleted file frees its blocks and cached
        pages: 0.3 s for the 1 GiB of a log file.
        """
        if self._discarded is None:
            self._discarded = deque()

    def discard(self, *parts: object) -> None:
        """Release the maps and descriptors of a deleted file, now or with ``release_discarded``."""
        if self._discarded is not None:
            self._discarded.append(parts)

    @property
    def has_discarded(self) -> bool:
        """True if deleted files still occupy the disk until ``release_discarded``."""
        return bool(self._discarded)

    def release_discarded(self) -> bool:
        """Release the discarded files; return whether there were any."""
        did = False
        while self._discarded:
            self._discarded.popleft()  # the last reference
            did = True
        return did

    def close_kept(self) -> None:
        """Close the descriptors that ``keep_open`` has opened."""
        while self._kept:
            os.close(self._kept.popitem()[1])

    def check_writable(self, path: str) -> None:
        """Check the permission to create files in an existing folder; nothing is created.

        Raises:
            WriteFailed: This user has no permission, or the file system is read-only.
        """
        is_effective = os.access in os.supports_effective_ids
        if not os.access(path, os.W_OK | os.X_OK, effective_ids=is_effective):
            is_read_only = os.statvfs(path).f_flag & os.ST_RDONLY
            reason = errno.EROFS if is_read_only else errno.EACCES
            raise WriteFailed(
                path,
                f"cannot create files: {os.strerror(reason)} (the process has user id "
                f"{os.geteuid()}, the folder belongs to {os.stat(path).st_uid})",  # noqa: PTH116
            )

    def sync_file(self, descriptor: int, path: str) -> None:
        """Make a file's bytes durable.

        After an error the durable bytes are unknown, and a second call that succeeds does not prove
        that all are: the system may have dropped them.
        """
        try:
            sync_data(descriptor)
        except OSError as error:
            _fail(path, "sync", error)

    def sync_folder(self, path: str) -> None:
        """Make the names in a folder durable: new, renamed and deleted files.

        An empty path is the working folder, where a file without a folder in its path is.
        """
        kept = self._kept.get(path)
        descriptor = (
            _open(path or os.curdir, os.O_RDONLY | os.O_DIRECTORY, "sync") if kept is None else kept
        )
        try:
            sync_names(descriptor)
        except OSError as error:
            _fail(path, "sync", error)
        finally:
            if kept is None:
                os.close(descriptor)

    def sync_filesystem(self, path: str) -> None:
        """Make everything on the file system of a path durable, including writes of others."""
        kept = self._kept.get(path)
        action = "sync the file system"
        descriptor = _open(path, os.O_RDONLY, action) if kept is None else kept
        try:
            if not hasattr(_libc, "syncfs"):
                os.sync()
                sync_data(descriptor)  # empties the drive's cache, too
            elif _libc.syncfs(descriptor) != 0:
                raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        except OSError as error:
            _fail(path, action, error)
        finally:
            if kept is None:
                os.close(descriptor)

    def links_and_size(self, descriptor: int) -> tuple[int, int]:
        """Return the number of names and the size in bytes of an open file.

        It does not read the times, if the system can do without: on Linux 6.13 and later, the next
        write after a read of the times changes them in the file system's journal, which makes syncs
        a third slower (https://docs.kernel.org/filesystems/multigrain-ts.html).

        Raises:
            OSError: The file cannot be examined.
        """
        if not hasattr(_libc, "statx"):
            state = os.fstat(descriptor)
            return state.st_nlink, state.st_size
        result = _State()
        mask = _STATX_NLINK | _STATX_SIZE
        if _libc.statx(descriptor, b"", _AT_EMPTY_PATH, mask, ctypes.byref(result)) != 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        return result.link_count, result.size

    def create(self, path: str, size: int, *, is_durable: bool = True) -> int:
        """Create a file of zeros that uses no space yet.

        Its name and size are durable, unless the caller takes care of that, for example when
        thousands of files are created at once.

        Returns:
            A descriptor for reading and writing, which the caller closes.
        """
        descriptor = _open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, "create")
        try:
            os.ftruncate(descriptor, size)
            if is_durable:
                self.sync_file(descriptor, path)
                self.sync_folder(os.path.dirname(path))  # noqa: PTH120 - paths are texts here
        except BaseException as error:
            os.close(descriptor)
            Path(path).unlink(missing_ok=True)
            if isinstance(error, OSError):
                _fail(path, "set the size", error, size)
            raise
        return descriptor

    def open(self, path: str) -> int:
        """Open an existing file for reading and writing; the caller closes the descriptor."""
        return _open(path, os.O_RDWR, "open for writing")

    def make_folder(self, path: str, *, is_durable: bool = True) -> None:
        """Create a folder and its parents, if they do not exist.

        Their names are durable, unless the caller takes care of that.
        """
        if not is_durable:
            self._make_folder(path)
            return
        folder = Path(path)
        missing = [parent for parent in (folder, *folder.parents) if not parent.exists()]
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            _fail(path, "create the folder", error)
        for created in reversed(missing):
            self.sync_folder(str(created.parent))

    def _make_folder(self, path: str) -> None:
        """Create a folder with one call, if its parent exists; there may be thousands."""
        try:
            try:
                os.mkdir(path)  # noqa: PTH102 - paths are texts here
            except FileNotFoundError:
                parent = path.rpartition("/")[0]
                if not parent:
                    raise
                self._make_folder(parent)
                os.mkdir(path)  # noqa: PTH102
        except FileExistsError as error:
            if not Path(path).is_dir():
                _fail(path, "create the folder", error)
        except OSError as error:
            _fail(path, "create the folder", error)

    def reserve(self, descriptor: int, path: str, start: int, length: int) -> None:
        """Reserve space on the disk for a range of a file.

        The range must not contain data: it may be overwritten with zeros.
        """
        if not hasattr(os, "posix_fallocate"):
            self._write_zeros(descriptor, path, start, length)
            return
        try:
            os.posix_fallocate(descriptor, start, length)
        except OSError as error:
            if error.errno not in _CANNOT_RESERVE:
                _fail(path, "reserve space", error, length)
            self._write_zeros(descriptor, path, start, length)

    def write(self, descriptor: int, path: str, position: int, data: bytes | memoryview) -> None:
        """Write all of the data at a position. Durable after ``sync_file``."""
        left = memoryview(data)
        try:
            while left:
                done = os.pwrite(descriptor, left, position)
                position += done
                left = left[done:]
        except OSError as error:
            _fail(path, "write", error, len(left))

    def rename(self, source: str, target: str) -> None:
        """Rename a file, and replace an existing target. Durable after ``sync_folder``."""
        try:
            Path(source).replace(target)
        except OSError as error:
            _fail(source, f"rename to {target}", error)

    def link(self, source: str, target: str) -> bool:
        """Give a file a second name; return False if the file system does not support that.

        The new name is durable after ``sync_folder``.
        """
        try:
            os.link(source, target)
        except OSError:
            return False
        return True

    def replace(self, path: str, data: bytes) -> None:
        """Replace the contents of a file durably: a crash leaves the old file or the new one.

        It keeps its permissions: a broker.conf may have passwords.
        """
        draft = path + paths.DRAFT_SUFFIX
        self.unlink(draft)
        descriptor = self.create(draft, len(data), is_durable=False)
        try:
            with contextlib.suppress(FileNotFoundError):
                os.fchmod(descriptor, stat.S_IMODE(os.stat(path).st_mode))  # noqa: PTH116 - paths are texts here
            self.write(descriptor, draft, 0, data)
            self.sync_file(descriptor, draft)
        finally:
            os.close(descriptor)
        self.rename(draft, path)
        self.sync_folder(os.path.dirname(path))  # noqa: PTH120 - paths are texts here

    def unlink(self, path: str) -> None:
        """Delete a file, if it exists. Durable after ``sync_folder``."""
        try:
            Path(path).unlink(missing_ok=True)
        except OSError as error:
            _fail(path, "delete", error)

    def remove_folder(self, path: str) -> None:
        """Delete an empty folder, if it exists. Durable after ``sync_folder``."""
        try:
            os.rmdir(path)  # noqa: PTH106 - paths are texts here
        except FileNotFoundError:
            pass
        except OSError as error:
            _fail(path, "delete", error)

    def space(self, path: str) -> Space:
        """Return the space of the file system of a folder. Raises ``OSError``."""
        usage = shutil.disk_usage(path)
        return Space(usage.total, usage.free)

    def usage(self, path: str) -> float:
        """Return the used share of a file system, 0 to 1, in whole hundredths, rounded up.

        Space that only root may use does not count as free, as for brokers and df.

        Raises:
            StoreUnavailable: The path does not exist.
        """
        try:
            state = os.statvfs(path)
        except OSError as error:
            raise StoreUnavailable(
                f"{path}: its file system cannot be examined: {error}"
            ) from error
        used = state.f_blocks - state.f_bfree
        whole = used + state.f_bavail
        return -(-used * 100 // whole) / 100 if whole else 0.0

    def _write_zeros(self, descriptor: int, path: str, start: int, length: int) -> None:
        for position in range(start, start + length, len(_ZEROS)):
            zeros = _ZEROS[: start + length - position]
            self.write(descriptor, path, position, zeros)


def failed_opening(path: str, action: str, error: OSError) -> WriteFailed:
    """Return the store's error for an error of ``open_descriptor``."""
    if error.errno in _NO_RESOURCES:
        return OutOfResources(path, f"cannot {action} for now: {error.strerror}")
    if error.errno in _NO_ROOM:
        return DiskFull(path, 0, f"cannot {action}: {error.strerror}")
    return WriteFailed(path, f"cannot {action}: {error.strerror}")


def _open(path: str, flags: int, action: str) -> int:
    try:
        return open_descriptor(path, flags)
    except OSError as error:
        raise failed_opening(path, action, error) from error


def _fail(path: str, action: str, error: OSError, requested_bytes: int = 0) -> NoReturn:
    if error.errno in _NO_ROOM:
        raise DiskFull(path, requested_bytes, f"cannot {action}: {error.strerror}") from error
    raise WriteFailed(path, f"cannot {action}: {error.strerror}") from error
