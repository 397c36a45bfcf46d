"""Atomic replacement of a small file: at any moment it is complete.

For files of name servers and clients. Stores use ``store/files/disk.py``, which tests can make
fail.
"""

import os
import threading
from pathlib import Path

from reput.errors import WriteFailed
from reput.file_sync import sync_data, sync_folder

_BACKUP_SUFFIX = ".bak"
_writing = threading.Lock()


def backup_of(path: str | Path) -> Path:
    """Return the path of the previous version of a file."""
    return Path(f"{path}{_BACKUP_SUFFIX}")


def why_unwritable(path: str | Path) -> str:
    """Return why a file could not be written at present, as far as visible; empty if it could."""
    folder = Path(path).parent
    try:
        while not folder.exists() and folder != folder.parent:
            folder = folder.parent
        if not folder.is_dir():
            return f"{folder} is not a folder"
        if not os.access(folder, os.W_OK | os.X_OK):
            return f"{folder} is not writable"
        return f"{path} is a folder" if Path(path).is_dir() else ""
    except OSError as error:
        return f"{folder}: {error.strerror}"


def replace_file(path: str | Path, data: bytes) -> None:
    """Write a file and its missing parent folders; it is durable on return.

    After any failure, and after a crash at any moment, the file is the old or the new one. The old
    one is kept beside it as ``.bak``, as in RocketMQ. Threads and processes may write the same
    file; the last one wins.

    Raises:
        WriteFailed: It was not written, or (if the final sync fails) is perhaps not durable.
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
            sync_folder(target.parent)
        except OSError as error:
            raise WriteFailed(str(path), f"cannot write: {error.strerror or error}") from error


def _write_draft(target: Path, data: bytes) -> Path:
    """Write the future content of a file, durably, to a draft; return its path."""
    draft = target.with_name(f"{target.name}.{os.getpid()}.tmp")
    with draft.open("wb") as file:
        file.write(data)
        file.flush()
        sync_data(file.fileno())
    return draft
