"""Writing a small file so that there is a whole one at any moment.

For what name servers and clients keep. Stores have ``store/disk.py``, which tests can make fail.
"""

import os
import threading
from pathlib import Path

from reput.errors import WriteFailed

_BACKUP_SUFFIX = ".bak"
_writing = threading.Lock()


def backup_of(path: str | Path) -> Path:
    """Return where what a file held before is kept."""
    return Path(f"{path}{_BACKUP_SUFFIX}")


def why_unwritable(path: str | Path) -> str:
    """Return why a file could not be written now, as far as can be seen; empty if it could."""
    folder = Path(path).parent
    try:
        while not folder.exists() and folder != folder.parent:
            folder = folder.parent
        if not folder.is_dir():
            return f"{folder} is no folder"
        if not os.access(folder, os.W_OK | os.X_OK):
            return f"nothing may be written to {folder}"
        return f"{path} is a folder" if Path(path).is_dir() else ""
    except OSError as error:
        return f"{folder}: {error.strerror}"


def replace_file(path: str | Path, data: bytes) -> None:
    """Write a file and the folders above it; it is durable on return.

    After any failure, and after a crash at any moment, the file is the old or the new one. The old
    one is kept beside it as ``.bak``, as RocketMQ does. Threads and processes may write the same
    file; the last one counts.

    Raises:
        WriteFailed: It was not written, or (by the last step, a sync) perhaps not for good.
    """
    target = Path(path)
    with _writing:
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            draft = _write_draft(target, data)
            if target.exists():
                backup = backup_of(target)
                _write_draft(backup, target.read_bytes()).replace(backup)
            draft.replace(target)
            _sync_folder(target.parent)
        except OSError as error:
            raise WriteFailed(str(path), f"cannot write: {error.strerror or error}") from error


def _write_draft(target: Path, data: bytes) -> Path:
    """Write, durably, what is going to take a file's place; returns where it is."""
    draft = target.with_name(f"{target.name}.{os.getpid()}.tmp")
    with draft.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    return draft


def _sync_folder(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
