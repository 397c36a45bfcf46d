"""Syncs of files and folders, on each system with the call that reaches the disk.

On macOS, ``fsync`` leaves bytes in the cache of the drive; ``F_FULLFSYNC`` does not.
"""

import errno
import os
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows, for clients
    fcntl = None  # type: ignore[assignment]

_NOT_SUPPORTED = (errno.ENOTSUP, errno.EINVAL, errno.ENOTTY)


def sync_data(descriptor: int) -> None:
    """Make the bytes and the size of a file durable.

    Raises:
        OSError: They may be lost.
    """
    command = getattr(fcntl, "F_FULLFSYNC", None)
    if command is not None:
        try:
            fcntl.fcntl(descriptor, command)
            return
        except OSError as error:  # some network file systems only know fsync
            if error.errno not in _NOT_SUPPORTED:
                raise
    getattr(os, "fdatasync", os.fsync)(descriptor)


def sync_folder(path: str | Path) -> None:
    """Make the names in a folder durable. On Windows, where that is not possible, do nothing.

    Raises:
        OSError: They may be lost.
    """
    if not hasattr(os, "O_DIRECTORY"):
        return
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        sync_names(descriptor)
    finally:
        os.close(descriptor)


def sync_names(descriptor: int) -> None:
    """Make the names in an open folder durable. Raises ``OSError``."""
    if hasattr(fcntl, "F_FULLFSYNC"):
        sync_data(descriptor)
    else:
        os.fsync(descriptor)
