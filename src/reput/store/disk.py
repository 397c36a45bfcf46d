"""What makes bytes durable, and what gives room for them.

Everything that writes a store goes through one ``Disk``, so that a test can be a disk that is full,
that fails, or that loses what was not synced.

What a file system promises here: after ``reserve``, bytes written through a map find room. Where a
file system cannot reserve, zeros are written instead, which is slow and says the same. Those that
copy on write (btrfs with snapshots, ZFS) may break the promise; no caller can help that.

A file or folder that cannot be opened for want of descriptors or memory is ``OutOfResources``: a
refusal for now, where a sync that failed is final. So that connections cannot take what syncs need,
the descriptor of a store's folder stays open, and some spare ones are given up when none is left.
"""

import ctypes
import errno
import os
from collections import deque
from pathlib import Path
from typing import NoReturn

from reput.descriptors import open_descriptor
from reput.errors import DiskFull, OutOfResources, StoreUnavailable, WriteFailed
from reput.store import paths

_NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_NO_RESOURCES = {errno.EMFILE, errno.ENFILE, errno.ENOMEM}
_CANNOT_RESERVE = {errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL}
_ZEROS = bytes(1024 * 1024)

_libc = ctypes.CDLL(None, use_errno=True)
_AT_EMPTY_PATH = 0x1000
_STATX_NLINK = 0x4
_STATX_SIZE = 0x200


class _State(ctypes.Structure):
    """The beginning of Linux's ``struct statx``, and room for the rest."""

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


class Disk:
    """The disk of this machine. Descriptors are the caller's; paths are for error texts.

    All methods may be called from any thread, and none holds the GIL while the disk works. They
    raise ``DiskFull`` where there is no room, ``OutOfResources`` where nothing more can be opened,
    else ``WriteFailed``.
    """

    def __init__(self) -> None:
        self._kept: dict[str, int] = {}
        self._discarded: deque[tuple[object, ...]] | None = None

    def keep_open(self, path: str) -> None:
        """Keep a folder's descriptor, so that syncing it and its file system takes none.

        Raises:
            WriteFailed: It cannot be opened; also ``OutOfResources``.
        """
        if path not in self._kept:
            self._kept[path] = _open(path, os.O_RDONLY | os.O_DIRECTORY, "open")

    def defer_discards(self) -> None:
        """Let ``release_discarded`` release what is discarded, in a thread that may wait.

        The last map or descriptor of a deleted file gives back its blocks and its cached pages:
        0.3 s for the 1 GiB of a log file.
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
        """Release what was discarded; return whether there was anything."""
        did = False
        while self._discarded:
            self._discarded.popleft()  # the last reference
            did = True
        return did

    def close_kept(self) -> None:
        """Close what ``keep_open`` has kept."""
        while self._kept:
            os.close(self._kept.popitem()[1])

    def sync_file(self, descriptor: int, path: str) -> None:
        """Make a file's bytes durable.

        After an error nobody knows which bytes are, and a second call that succeeds does not say:
        the system may have forgotten them.
        """
        try:
            getattr(os, "fdatasync", os.fsync)(descriptor)
        except OSError as error:
            _fail(path, "sync", error)

    def sync_folder(self, path: str) -> None:
        """Make the names in a folder durable: of new, renamed and deleted files."""
        kept = self._kept.get(path)
        descriptor = _open(path, os.O_RDONLY | os.O_DIRECTORY, "sync") if kept is None else kept
        try:
            os.fsync(descriptor)
        except OSError as error:
            _fail(path, "sync", error)
        finally:
            if kept is None:
                os.close(descriptor)

    def sync_filesystem(self, path: str) -> None:
        """Make everything on the file system of a path durable, whoever wrote it."""
        if not hasattr(_libc, "syncfs"):
            os.sync()
            return
        kept = self._kept.get(path)
        action = "sync the file system"
        descriptor = _open(path, os.O_RDONLY, action) if kept is None else kept
        try:
            if _libc.syncfs(descriptor) != 0:
                raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        except OSError as error:
            _fail(path, action, error)
        finally:
            if kept is None:
                os.close(descriptor)

    def links_and_size(self, descriptor: int) -> tuple[int, int]:
        """Return the number of names and the size in bytes of an open file.

        Without its times, where the system can: Linux 6.13 and later make the next write to a file
        whose times were read change them in the file system's journal, which makes each sync a
        third slower (https://docs.kernel.org/filesystems/multigrain-ts.html).

        Raises:
            OSError: The system cannot tell.
        """
        if not hasattr(_libc, "statx"):
            state = os.fstat(descriptor)
            return state.st_nlink, state.st_size
        found = _State()
        mask = _STATX_NLINK | _STATX_SIZE
        if _libc.statx(descriptor, b"", _AT_EMPTY_PATH, mask, ctypes.byref(found)) != 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        return found.link_count, found.size

    def create(self, path: str, size: int, *, is_durable: bool = True) -> int:
        """Make a file of zeros that takes no room yet.

        Its name and size are durable, unless the caller will see to that: thousands are made at
        once where queues are many.

        Returns:
            A descriptor to read and write it, which the caller closes.
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
        """Return a descriptor to read and write a file that is there; the caller closes it."""
        return _open(path, os.O_RDWR, "open for writing")

    def make_folder(self, path: str, *, is_durable: bool = True) -> None:
        """Make a folder and those above it; nothing if it is there.

        Their names are durable, unless the caller will see to that.
        """
        folder = Path(path)
        missing = [one for one in (folder, *folder.parents) if not one.exists()]
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            _fail(path, "create the folder", error)
        if is_durable:
            for one in reversed(missing):
                self.sync_folder(str(one.parent))

    def reserve(self, descriptor: int, path: str, start: int, length: int) -> None:
        """Get room on disk for a range of a file.

        The range must not hold anything yet: it may be overwritten with zeros.
        """
        try:
            os.posix_fallocate(descriptor, start, length)
        except OSError as error:
            if error.errno not in _CANNOT_RESERVE:
                _fail(path, "reserve room", error, length)
            self._write_zeros(descriptor, path, start, length)

    def write(self, descriptor: int, path: str, position: int, data: bytes | memoryview) -> None:
        """Write all of the data at a position. It is not durable before ``sync_file``."""
        left = memoryview(data)
        try:
            while left:
                done = os.pwrite(descriptor, left, position)
                position += done
                left = left[done:]
        except OSError as error:
            _fail(path, "write", error, len(left))

    def rename(self, source: str, target: str) -> None:
        """Give a file another name, in place of what had it. Durable by ``sync_folder``."""
        try:
            Path(source).replace(target)
        except OSError as error:
            _fail(source, f"rename to {target}", error)

    def link(self, source: str, target: str) -> bool:
        """Give a file a second name; return False on a file system that has no such links.

        The new name is durable by ``sync_folder``.
        """
        try:
            os.link(source, target)
        except OSError:
            return False
        return True

    def replace(self, path: str, data: bytes) -> None:
        """Make a file hold these bytes, durably: a crash leaves the old file or the new one."""
        draft = path + paths.DRAFT_SUFFIX
        self.unlink(draft)
        descriptor = self.create(draft, len(data), is_durable=False)
        try:
            self.write(descriptor, draft, 0, data)
            self.sync_file(descriptor, draft)
        finally:
            os.close(descriptor)
        self.rename(draft, path)
        self.sync_folder(os.path.dirname(path))  # noqa: PTH120 - paths are texts here

    def unlink(self, path: str) -> None:
        """Take a name away; nothing if it is gone. Durable by ``sync_folder``."""
        try:
            Path(path).unlink(missing_ok=True)
        except OSError as error:
            _fail(path, "delete", error)

    def remove_folder(self, path: str) -> None:
        """Delete an empty folder; nothing if it is gone. Durable by ``sync_folder``."""
        try:
            os.rmdir(path)  # noqa: PTH106 - paths are texts here
        except FileNotFoundError:
            pass
        except OSError as error:
            _fail(path, "delete", error)

    def usage(self, path: str) -> float:
        """Return the used share of a file system, 0 to 1, in whole hundredths, rounded up.

        As brokers and df count: room that only root may use is no room.

        Raises:
            StoreUnavailable: There is nothing at the path to ask about.
        """
        try:
            state = os.statvfs(path)
        except OSError as error:
            raise StoreUnavailable(f"{path}: its file system cannot be asked: {error}") from error
        used = state.f_blocks - state.f_bfree
        whole = used + state.f_bavail
        return -(-used * 100 // whole) / 100 if whole else 0.0

    def _write_zeros(self, descriptor: int, path: str, start: int, length: int) -> None:
        for position in range(start, start + length, len(_ZEROS)):
            zeros = _ZEROS[: start + length - position]
            self.write(descriptor, path, position, zeros)


def failed_opening(path: str, action: str, error: OSError) -> WriteFailed:
    """Return what an error of ``open_descriptor`` means to who writes."""
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


def _fail(path: str, action: str, error: OSError, asked_bytes: int = 0) -> NoReturn:
    if error.errno in _NO_ROOM:
        raise DiskFull(path, asked_bytes, f"cannot {action}: {error.strerror}") from error
    raise WriteFailed(path, f"cannot {action}: {error.strerror}") from error
