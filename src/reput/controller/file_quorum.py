"""A file for a single controller: all values, replaced as a whole with each change.

    reput-controller 1 <crc32 of the rest>
    {"fence":3,"revision":17,"entries":{"broker-a":{"revision":17,"value":{...}}}}

Changes that arrive while the file is being written are written together afterwards. A crash leaves
the file before a change or after it. A lock on the folder keeps a second controller out.
"""

import asyncio
import fcntl
import os
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import msgspec

from reput.controller.quorum import Conflict, Deposed, Peer, StoredValue
from reput.descriptors import open_descriptor
from reput.errors import CorruptRecord, StoreUnavailable, WriteFailed

FILE_NAME = "groups.json"
_MAGIC = b"reput-controller"
_VERSION = b"1"


class Disk(Protocol):
    """The used part of ``store.files.disk.Disk``, which a simulation replaces."""

    def make_folder(self, path: str, *, is_durable: bool = True) -> None:
        """Create a folder and its parents, durably. Raises ``WriteFailed``."""

    def replace(self, path: str, data: bytes) -> None:
        """Replace the contents of a file durably. Raises ``WriteFailed``."""


class _SavedValue(msgspec.Struct):
    revision: int
    value: msgspec.Raw


class _Saved(msgspec.Struct):
    fence: int = 0
    revision: int = 0
    entries: dict[str, _SavedValue] = {}


class _Change:
    """A change that waits for the disk."""

    def __init__(self, key: str, entry: StoredValue | None) -> None:
        self.key = key
        self.entry = entry
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()


class FileQuorum:
    """The file in a folder, which is created if it is missing.

    Args:
        folder: The folder.
        disk: Writes the file.

    Raises:
        StoreUnavailable: Another controller uses the folder.
        CorruptRecord: The file is damaged, or of a later version.
        WriteFailed: The folder cannot be created or opened.
    """

    def __init__(self, folder: str, disk: Disk) -> None:
        self.path = self.place = f"{folder}/{FILE_NAME}"
        self.leader: Peer | None = None
        self.members: Sequence[Peer] = ()
        self.term = 1
        self._disk = disk
        disk.make_folder(folder)
        self._lock = _locked(folder)
        try:
            saved = _read(self.path)
        except BaseException:
            self.abandon()
            raise
        self._fence, self._revision = saved.fence, saved.revision
        self._entries = {
            key: StoredValue(bytes(entry.value), entry.revision)
            for key, entry in saved.entries.items()
        }
        self._waiting: list[_Change] = []
        self._saving: asyncio.Task[None] | None = None
        self.failure = ""
        """Error of the latest write; empty if it succeeded."""

    async def lead(self) -> int:
        """Return a new fencing number. Raises ``WriteFailed``."""
        self._fence += 1
        await self._write(self._entries)
        return self._fence

    def leads(self, fence: int) -> bool:
        """Return whether the fencing number is the latest one."""
        return fence == self._fence != 0

    async def until_deposed(self, fence: int) -> None:
        """Wait for ever: no other controller has this file."""
        await asyncio.Event().wait()

    async def read(self) -> dict[str, StoredValue]:
        """Return all values by key."""
        return dict(self._entries)

    async def compare_and_set(
        self, key: str, value: bytes | None, *, revision: int, fence: int
    ) -> int:
        """Replace a value durably; return its new revision.

        A change whose write fails may be in the file after a crash, unless another change was
        written since: that one writes all values as they were before.

        Raises:
            Conflict: The revision is another one, or another change of the key is being written.
            Deposed: The fencing number is too small.
            WriteFailed: The file could not be written.
        """
        if fence != self._fence:
            raise Deposed(f"{self.path}: fencing number {fence}, but {self._fence} leads")
        current = self._entries.get(key)
        known = 0 if current is None else current.revision
        if revision != known:
            raise Conflict(f"{key} has revision {known}, not {revision}")
        if any(change.key == key for change in self._waiting):
            raise Conflict(f"{key} is being changed")
        self._revision += 1
        changed = self._revision
        change = _Change(key, None if value is None else StoredValue(value, changed))
        self._waiting.append(change)
        if self._saving is None:
            self._saving = asyncio.get_running_loop().create_task(self._save())
        await change.done
        return changed

    async def close(self) -> None:
        """Wait until all changes are written, and release the folder."""
        if self._saving is not None:
            await asyncio.wait((self._saving,))
        self.abandon()

    def abandon(self) -> None:
        """Release the folder at once."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    async def _save(self) -> None:
        try:
            while self._waiting:
                changes, count = list(self._waiting), len(self._waiting)
                entries = dict(self._entries)
                for change in changes:
                    if change.entry is None:
                        entries.pop(change.key, None)
                    else:
                        entries[change.key] = change.entry
                problem: Exception | None = None
                try:
                    await self._write(entries)
                    self._entries = entries
                except Exception as error:  # noqa: BLE001 - those who wait need any error
                    problem = error
                del self._waiting[:count]
                for change in changes:
                    if not change.done.done():
                        if problem is None:
                            change.done.set_result(None)
                        else:
                            change.done.set_exception(problem)
        finally:
            self._saving = None

    async def _write(self, entries: dict[str, StoredValue]) -> None:
        saved = _Saved(
            self._fence,
            self._revision,
            {
                key: _SavedValue(entry.revision, msgspec.Raw(entry.value))
                for key, entry in sorted(entries.items())
            },
        )
        try:
            await asyncio.to_thread(self._disk.replace, self.path, _encoded(saved))
        except Exception as error:
            self.failure = str(error)
            raise
        self.failure = ""


def _encoded(saved: _Saved) -> bytes:
    rest = msgspec.json.encode(saved) + b"\n"
    return b"%s %s %d\n" % (_MAGIC, _VERSION, zlib.crc32(rest)) + rest


def _read(path: str) -> _Saved:
    """Return the contents of the file; empty if it does not exist. Raises ``CorruptRecord``."""
    try:
        data = Path(path).read_bytes()
    except FileNotFoundError:
        return _Saved()
    except OSError as error:
        raise WriteFailed(path, f"cannot read: {error.strerror}") from error
    head, _, rest = data.partition(b"\n")
    words = head.split(b" ")
    advice = "restore it from a copy; without it, brokers must register again"
    if len(words) != 3 or words[0] != _MAGIC:
        raise CorruptRecord(f"this is no state of a controller; {advice}", file=path)
    if words[1] != _VERSION:
        raise CorruptRecord(
            f"version {words[1][:20]!r} of the state, but this controller reads {_VERSION!r}: use "
            "the version of reput that has written it",
            file=path,
        )
    if words[2] != str(zlib.crc32(rest)).encode():
        raise CorruptRecord(f"the checksum is wrong; {advice}", file=path)
    try:
        return msgspec.json.decode(rest, type=_Saved)
    except msgspec.MsgspecError as error:
        raise CorruptRecord(f"{error}; {advice}", file=path) from error


def _locked(folder: str) -> int:
    """Return the descriptor that locks a folder. Raises ``StoreUnavailable``."""
    try:
        descriptor = open_descriptor(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise WriteFailed(folder, f"cannot open: {error.strerror}") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(descriptor)
        text = f"{folder} is in use: another controller has locked it; stop it first"
        raise StoreUnavailable(text) from error
    return descriptor
