"""Writing a small file so that there is a whole one at any moment."""

import os
from pathlib import Path

from reput.errors import WriteFailed

_DRAFT_SUFFIX = ".tmp"
_BACKUP_SUFFIX = ".bak"


def backup_of(path: str) -> str:
    """Return where what a file held before is kept."""
    return path + _BACKUP_SUFFIX


def replace_file(path: str, data: bytes) -> None:
    """Write a file and the folders above it; it is durable on return.

    After any failure, and after a crash at any moment, the file is the old or the new one. The old
    one is kept beside it as ``.bak``, as RocketMQ does.

    Raises:
        WriteFailed: It was not written, or (by the last step, a sync) perhaps not for good.
    """
    target = Path(path)
    draft = Path(path + _DRAFT_SUFFIX)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        _write_synced(draft, data)
        if target.exists():
            backup = Path(backup_of(path))
            _write_synced(Path(f"{backup}{_DRAFT_SUFFIX}"), target.read_bytes())
            Path(f"{backup}{_DRAFT_SUFFIX}").replace(backup)
        draft.replace(target)
        _sync_folder(target.parent)
    except OSError as error:
        raise WriteFailed(path, f"cannot write: {error.strerror or error}") from error


def _write_synced(path: Path, data: bytes) -> None:
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _sync_folder(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
