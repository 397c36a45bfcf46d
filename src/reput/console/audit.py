"""The audit log: a line of JSON for each change, and for each request that was refused.

Lines are appended to a file, which becomes ``FILE.1`` when it is full; the page shows the newest
ones. A file that cannot be written makes changes fail before they are made.
"""

import errno
import json
import logging
import os
from collections import deque
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from reput.errors import ReputError

FILE_BYTES_MAX = 16 * 1024 * 1024
SHOWN_COUNT_MAX = 10_000
"""Newest entries that are kept in memory for the page."""
_log = logging.getLogger(__name__)


class AuditUnwritable(ReputError):
    """The audit log cannot be written."""


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """An action of a user that the audit file records."""

    time_ms: int
    user: str
    address: str
    """Address of the client."""
    action: str
    """Name of the action, such as ``offset.reset``."""
    arguments: Mapping[str, str]
    outcome: str
    """``done``, ``partly``, ``failed`` or ``refused``."""
    detail: str
    """The result, or why it was refused."""
    preview: str = ""
    """Start of the token of the preview that was confirmed."""


class AuditLog:
    """The audit log of a console.

    Args:
        path: The file, which the first entry creates.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._entries: deque[AuditEntry] = deque(_read(path), maxlen=SHOWN_COUNT_MAX)

    @property
    def path(self) -> Path:
        """Path of the file."""
        return self._path

    def newest(self) -> list[AuditEntry]:
        """Return the newest entries, the last one first."""
        return list(reversed(self._entries))

    def check_writable(self) -> None:
        """Check that entries can be written. Raises ``AuditUnwritable``."""
        self._append("")

    def add(self, entry: AuditEntry) -> None:
        """Append an entry.

        Raises:
            AuditUnwritable: The file does not have it, nor has the page, which shows the file. The
                log of the process has it.
        """
        words = (entry.action, entry.user, entry.address, entry.outcome, entry.detail)
        try:
            self._append(json.dumps(asdict(entry), ensure_ascii=True) + "\n")
        except AuditUnwritable:
            _log.error("in no audit log: %s by %s from %s: %s, %s", *words)
            raise
        self._entries.append(entry)
        _log.info("%s by %s from %s: %s, %s", *words)

    def _append(self, text: str) -> None:
        try:
            descriptor = os.open(
                self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600
            )
            try:
                size = os.fstat(descriptor).st_size
                data = text.encode()
                if os.write(descriptor, data) < len(data):
                    # A part of a line would spoil the next entry, too.
                    os.ftruncate(descriptor, size)
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            finally:
                os.close(descriptor)
            if size + len(text) > FILE_BYTES_MAX:
                self._path.replace(self._path.with_name(f"{self._path.name}.1"))
        except OSError as error:
            raise AuditUnwritable(
                f"the audit log {self._path} cannot be written: {error.strerror}"
            ) from error


def _read(path: Path) -> list[AuditEntry]:
    """Return the entries of a file; invalid lines are reported and omitted."""
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except FileNotFoundError:
        return []
    except OSError as error:
        raise AuditUnwritable(f"the audit log {path} cannot be read: {error.strerror}") from error
    entries = []
    for number, line in enumerate(lines, 1):
        try:
            entries.append(AuditEntry(**json.loads(line)))
        except (ValueError, TypeError):
            _log.warning("%s, line %d is no entry of the audit log", path, number)
    return entries[-SHOWN_COUNT_MAX:]
