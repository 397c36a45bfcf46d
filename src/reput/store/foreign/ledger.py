"""The folder of a member of a DLedger group within a store: its files, checkpoint and index.

    dledger-n0/data/NAME      entries, in files like those of the commit log
    dledger-n0/index/NAME     a unit of 32 bytes for each entry, at 32 times its index
    dledger-n0/checkpoint     last and committed index, every 3 s
    dledger-n0/currterm       term, and the member that it has voted for

A log that was plain before DLedger continues in these files: physical offsets below the first one
are in ``commitlog``. Layout: docs/formats/dledger.md.
"""

import re
from collections.abc import Iterator

import numpy as np

from reput.errors import NotInStore, StoreUnavailable
from reput.format import dledger_entry as entries
from reput.store.files import paths
from reput.store.files.files import Bytes, Entry, Folder, data_bytes

_MEMBER = re.compile(r"dledger-n[0-9]{1,9}")
DATA, INDEX, CHECKPOINT, TERM = "data", "index", "checkpoint", "currterm"


def members(folder: Folder) -> list[str]:
    """Return the names of folders of DLedger members in a store, sorted."""
    entries_of_root = folder.entries("")
    return [
        entry.name for entry in entries_of_root if entry.is_folder and _MEMBER.fullmatch(entry.name)
    ]


def has_entries(folder: Folder) -> bool:
    """Return whether a store has a log in DLedger."""
    return any(data_files(folder, member) for member in members(folder))


def data_files(folder: Folder, member: str) -> list[Entry]:
    """Return the files of a member's log, by physical offset."""
    return [
        entry
        for entry in folder.entries(f"{member}/{DATA}")
        if not entry.is_folder and paths.parse_offset_name(entry.name) is not None
    ]


class Ledger:
    """The member's files, for reading.

    Args:
        folder: The store.

    Raises:
        StoreUnavailable: It has no log in DLedger, several, or one that overlaps the plain log.
    """

    def __init__(self, folder: Folder) -> None:
        self._folder = folder
        used = [member for member in members(folder) if data_files(folder, member)]
        if not used:
            raise StoreUnavailable(
                f"{folder.location} has no log of DLedger: no files in dledger-nN/{DATA}; if "
                "storePathDLedgerCommitLog is set, link or copy its files there"
            )
        if len(used) > 1:
            raise StoreUnavailable(
                f"{folder.location} has the logs of several DLedger members, {', '.join(used)}; "
                "move away all but one"
            )
        self.member = used[0]
        """Name of the member's folder, as ``dledger-n0``."""
        files = data_files(folder, self.member)
        self.start = paths.parse_offset_name(files[0].name) or 0
        """Physical offset at which the log of DLedger begins."""
        plain = [entry for entry in folder.entries(paths.COMMIT_LOG) if not entry.is_folder]
        for entry in plain:
            begin = paths.parse_offset_name(entry.name)
            if begin is not None and begin + entry.size > self.start:
                raise StoreUnavailable(
                    f"{paths.COMMIT_LOG}/{entry.name} of {folder.location} ends after physical "
                    f"offset {self.start}, where {self.member}/{DATA}/{files[0].name} begins; "
                    "allowed are plain files before it alone"
                )

    def path(self, name: str) -> str:
        """Return the path of a file of the log."""
        begin = paths.parse_offset_name(name)
        family = f"{self.member}/{DATA}"
        return f"{family if begin is None or begin >= self.start else paths.COMMIT_LOG}/{name}"

    def checkpoint(self) -> entries.LedgerCheckpoint:
        """Return the saved indexes.

        Raises:
            CorruptRecord: They cannot be read.
            NotInStore: There is no such file.
        """
        path = f"{self.member}/{CHECKPOINT}"
        return entries.parse_checkpoint(bytes(self._file(path)), path)

    def term(self) -> int:
        """Return the member's term. Raises as ``checkpoint`` does."""
        path = f"{self.member}/{TERM}"
        return entries.parse_term(bytes(self._file(path)), path)

    def _file(self, path: str) -> Bytes:
        if self._folder.entry(path) is None:
            raise NotInStore(f"{path} does not exist")
        return self._folder.read(path)

    def index_faults(self, chain: entries.Chain, physical_offset: int) -> Iterator[str]:
        """Yield a sentence for the first entry of a chain whose unit of the index is not its own.

        Args:
            chain: Entries with consecutive indexes.
            physical_offset: Physical offset of the buffer of the chain.
        """
        if not len(chain.indexes):
            return
        units, first = self._units(int(chain.indexes[0]), len(chain.indexes)), int(chain.indexes[0])
        if len(units) < len(chain.indexes):
            yield f"the index ends before entry {first + len(units)}"
        count = len(units)
        same = (
            (units["magic"] == entries.MAGIC)
            & (units["pos"] == chain.positions[:count] + physical_offset)
            & (units["size"] == chain.sizes[:count])
            & (units["index"] == chain.indexes[:count])
            & (units["term"] == chain.terms[:count])
        )
        for i in np.flatnonzero(~same)[:1]:
            yield (
                f"unit {first + int(i)} of the index is not that of its entry, at position "
                f"{int(chain.positions[i]) + physical_offset} of the log"
            )

    def _units(self, first: int, count: int) -> "np.ndarray[tuple[int], np.dtype[np.void]]":
        """Return up to ``count`` units of the index from one on; fewer where it ends."""
        start, stop = first * entries.INDEX_UNIT.size, (first + count) * entries.INDEX_UNIT.size
        data = bytearray()
        for entry in self._folder.entries(f"{self.member}/{INDEX}"):
            begin = paths.parse_offset_name(entry.name)
            if begin is None or not begin <= start + len(data) < begin + entry.size:
                continue
            position = start + len(data) - begin
            path = f"{self.member}/{INDEX}/{entry.name}"
            data += self._folder.read(path, position, stop - start - len(data))
        whole = len(data) - len(data) % entries.INDEX_UNIT.size
        return np.frombuffer(bytes(data[:whole]), entries.INDEX_DTYPE)


class LedgerFolder:
    """A store's folder in which the files of the ledger are in ``commitlog``.

    Args:
        folder: The store.
        ledger: Its ledger.
    """

    def __init__(self, folder: Folder, ledger: Ledger) -> None:
        self._inner = folder
        self._ledger = ledger
        self.location = folder.location
        self.window_bytes = folder.window_bytes
        self.gap_bytes_max = folder.gap_bytes_max
        self.reads_at_once = folder.reads_at_once

    def entries(self, path: str) -> list[Entry]:
        """Return the contents of a folder, sorted by name."""
        if path != paths.COMMIT_LOG:
            return self._inner.entries(path)
        own = self._inner.entries(f"{self._ledger.member}/{DATA}")
        return sorted(
            [*self._inner.entries(path), *own], key=lambda entry: (entry.is_folder, entry.name)
        )

    def entry(self, path: str) -> Entry | None:
        """Return a file or folder; None if it does not exist."""
        if path == paths.COMMIT_LOG:
            path = f"{self._ledger.member}/{DATA}"
        return self._inner.entry(self._path(path))

    def read(self, path: str, start: int = 0, length: int | None = None) -> Bytes:
        """Return bytes of a file."""
        return self._inner.read(self._path(path), start, length)

    def lock_holder(self, path: str) -> int | None:
        """Return the process that holds a file's lock; None without one."""
        return self._inner.lock_holder(path)

    def data_bytes(self, path: str, size: int) -> int:
        """Return the end of the data in a file, as far as it is known without a read."""
        return data_bytes(self._inner, self._path(path), size)

    def _path(self, path: str) -> str:
        family, _, name = path.partition("/")
        return self._ledger.path(name) if family == paths.COMMIT_LOG and name else path
