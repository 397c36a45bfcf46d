"""The JSON tables in config/: changed in memory, and written as a whole.

The files are JSON as Java 4.9 and 5.x read it: numeric keys in quotes, and members that this
version does not have are kept as they were read. Each table has a few methods with typed entries.
They change memory and make the table dirty; ``step`` writes it when it is due.

Tables may be large and the disk slow. So the text of each entry is kept, and encoded again only
when the entry changes. Work that waits for the disk is separate: ``take`` returns a draft, and
``write`` may be called in any thread. ``save`` does both.
"""

import heapq
import json
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, NamedTuple, Protocol, Self, TypeVar

from reput.errors import CorruptRecord
from reput.store.files.disk import Disk
from reput.store.files.files import open_folder
from reput.store.tables import config_tables
from reput.store.tables.config_tables import Table
from reput.store.tables.saved_file import SavedFile, Written, put_aside

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class DataVersion:
    """Number of changes of a table and the time of the last one; brokers compare it."""

    counter: int
    timestamp_ms: int
    state_version: int = 0
    """Epoch of the master that made the changes, under a controller of 5.x."""


PREPARED_AT_ONCE = 200
"""Number of entries that are encoded in less than 2 ms."""

_SORTED_AT_ONCE = 2_000
"""Number of names that are sorted or copied in about 1 ms."""
_PREPARED_BYTES = 1 << 16
"""Bytes of entries that are encoded at once; a group that reads thousands of queues is large."""

_SEPARATOR = b",\n\t\t"
"""Separator of two entries."""


class Draft(NamedTuple):
    """The text of a table, ready to be written."""

    turn: int
    """Number of the text, ascending."""
    lines: list[bytes]
    """Parts of the text, without the separators between them."""


class SavedTable:
    """One table: its entries in memory, its file, and whether they differ.

    All methods but ``write`` must be called in one thread.
    """

    path: ClassVar[str]
    entries_member: ClassVar[str]
    is_versioned: ClassVar[bool] = False
    """True if Java keeps a data version in the table in every version."""
    is_secret: ClassVar[bool] = False
    """True if only the user of the broker may read the file."""
    is_progress: ClassVar[bool] = False
    """True if the table only contains the progress of a delivery. Without it the broker begins at
    the oldest message, which repeats messages and loses none."""

    def __init__(self, root: str, disk: Disk, *, interval_ms: int = 0) -> None:
        self.is_dirty = False
        """True if the table must be written: it changed, or the last write is not durable."""
        mode = 0o600 if self.is_secret else 0o644
        self._file = SavedFile(f"{root}/{self.path}", disk, mode)
        self._interval_ms = interval_ms
        self._saved_ms: int | None = None
        self._members: Table = {}
        self._version = DataVersion(0, 0)
        self.change_count = 0
        """Number of changes of entries since the table was loaded."""
        self._versioned_changes = 0
        """Number of changes that the version includes, if a version covers several changes."""
        self._is_compared = False
        """True if other brokers have got the version, or this one has another broker's."""
        self._changed: set[Any] = set()  # keys of entries whose text is not up to date
        self._texts: dict[str, bytes] = {}
        """Name of an entry -> its text with the name; sorted, except for new names."""
        self._has_new_names = False
        self._taken_turn = 0
        self.is_new = True
        """True if neither the file nor its backup existed, or both were empty."""
        self.damage = ""
        """Reason why a table of progress was replaced by an empty one; empty if it was not."""

    @classmethod
    def load(cls, root: str, disk: Disk, *, interval_ms: int = 0) -> Self:
        """Return the table of a store; empty if there is no file.

        A table of progress that cannot be read is put aside and replaced by an empty one.

        Args:
            root: Folder of the store.
            disk: Writes the file.
            interval_ms: Minimum time between two writes by ``step``.

        Raises:
            CorruptRecord: Neither the file nor its backup is valid, and it is no table of progress:
                its contents exist nowhere else.
            StoreUnavailable: There is no such folder.
            WriteFailed: The disk cannot make the file durable.
        """
        try:
            return cls._load(root, disk, interval_ms)
        except CorruptRecord as error:
            if not cls.is_progress:
                raise
            aside = put_aside(f"{root}/{cls.path}", disk)
            table = cls._load(root, disk, interval_ms)
            table.damage = f"{error}; it was put aside as {aside}, and its progress starts again"
            _log.error("%s", table.damage)
            return table

    @classmethod
    def _load(cls, root: str, disk: Disk, interval_ms: int) -> Self:
        table = cls(root, disk, interval_ms=interval_ms)
        table_and_source = config_tables.find(open_folder(root), cls.path)
        table.is_new = table_and_source is None
        members, source = ({}, None) if table_and_source is None else table_and_source
        version = config_tables.member(members, "dataVersion", cls.path)
        entries = config_tables.member(members, cls.entries_member, cls.path)
        with config_tables.expected_kind(cls.path):
            counter, timestamp_ms = version.get("counter", 0), version.get("timestamp", 0)
            state_version = int(version.get("stateVersion", 0))
            table._version = DataVersion(int(counter), int(timestamp_ms), state_version)
            table._decode(entries)
        table._members = {key: value for key, value in members.items() if key != cls.entries_member}
        for _ in table.prepare():  # now rather than with the first change
            pass
        table._sort_texts()
        if source == cls.path:
            table._file.adopt()
        return table

    @property
    def version(self) -> DataVersion:
        """The table's data version; its counter is 0 without one."""
        return self._version

    @property
    def is_saved(self) -> bool:
        """True if the whole table is durable; False while it is being written."""
        return not self.is_dirty and self._file.durable_turn == self._taken_turn

    def is_due(self, now_ms: int) -> bool:
        """Return True if the table must be written now."""
        # A clock that was set back must not keep the table from being saved.
        return self.is_dirty and (
            self._saved_ms is None or not 0 <= now_ms - self._saved_ms < self._interval_ms
        )

    def step(self, now_ms: int) -> bool:
        """Save the table if it is due; return whether it was. Raises as ``save``."""
        is_due = self.is_due(now_ms)
        if is_due:
            self.save(now_ms)
        return is_due

    def save(self, now_ms: int, *, is_durable: bool = True) -> None:
        """Write the table, whether it is dirty or not.

        Args:
            now_ms: Current time in ms.
            is_durable: Wait for the disk. If not, the table survives the end of the process and
                stays dirty: a crash of the machine may undo the write.

        Raises:
            WriteFailed: The write failed; the table stays dirty.
        """
        self.write(self.take(now_ms), now_ms, is_durable=is_durable)

    def prepare(self) -> Iterator[None]:
        """Encode the changed entries for the next ``take``, with pauses."""
        size = 0
        for number, key in enumerate(list(self._changed), 1):
            if key in self._changed:
                self._changed.remove(key)
                size += self._make_text(key)
            if number % PREPARED_AT_ONCE == 0 or size > _PREPARED_BYTES:
                size = 0
                yield
        yield from self._sort_slowly()

    def _sort_slowly(self) -> Iterator[None]:
        """Sort the texts by name, with pauses.

        New names that are added meanwhile are left to ``take``.
        """
        if not self._has_new_names or len(self._texts) <= _SORTED_AT_ONCE:
            return
        runs = []
        names = list(self._texts)
        for start in range(0, len(names), _SORTED_AT_ONCE):
            runs.append(sorted(names[start : start + _SORTED_AT_ONCE]))
            yield
        sorted_names: dict[str, None] = {}
        for number, name in enumerate(heapq.merge(*runs), 1):
            sorted_names[name] = None
            if number % _SORTED_AT_ONCE == 0:
                yield
        texts = self._texts
        new_names = [name for name in texts if name not in sorted_names]
        self._texts = {name: texts[name] for name in sorted_names if name in texts}
        self._texts.update((name, texts[name]) for name in new_names)
        self._has_new_names = bool(new_names)

    def current_version(self, now_ms: int) -> DataVersion:
        """Return the data version; it has risen if anything changed since the last call.

        Tables that change with each message have no version for each change: all changes between
        two calls share one.
        """
        self._is_compared = True
        if self._versioned_changes != self.change_count:
            self._versioned_changes = self.change_count
            self._bump(now_ms)
        return self._version

    def adopt_version(self, version: DataVersion) -> None:
        """Set the version to that of the table's source, whose content the table has now."""
        self._is_compared = True
        self._versioned_changes = self.change_count
        if version != self._version:
            self._version = version
            self.is_dirty = True

    def take(self, now_ms: int) -> Draft:
        """Return the current text of the table for ``write``."""
        if not self.is_versioned and self._has_version:
            self.current_version(now_ms)
        while self._changed:
            self._make_text(self._changed.pop())
        self.is_dirty = False
        self._taken_turn += 1
        return Draft(self._taken_turn, self._lines())

    def write(self, draft: Draft, now_ms: int, *, is_durable: bool = True) -> Written:
        """Write a draft, in any thread; return the outcome.

        Arguments and errors are those of ``save``.
        """
        written = Written.OVERTAKEN
        try:
            data = _SEPARATOR.join(draft.lines)
            written = self._file.replace(draft.turn, data, is_durable=is_durable)
        finally:
            if written is not Written.DURABLE:
                self.is_dirty = True
        if written is Written.DURABLE:
            self._saved_ms = now_ms
        return written

    def touch(self, now_ms: int) -> None:
        """Increase the version: data that is sent with the table changed, but no entry did."""
        self._version_changed(now_ms)

    def _version_changed(self, now_ms: int) -> None:
        self.is_dirty = True
        self.change_count += 1
        self._versioned_changes = self.change_count
        self._bump(now_ms)

    def _bump(self, now_ms: int) -> None:
        version = self._version
        self._version = DataVersion(version.counter + 1, now_ms, version.state_version)

    def _decode(self, entries: Table) -> None:
        """Decode the entries of a file, and mark all of them as changed: there is no text yet."""
        raise NotImplementedError

    # The text ---------------------------------------------------------------------------------

    @property
    def _has_version(self) -> bool:
        """True if the file has the version: also once brokers compare it, as in 5.x.

        4.x ignores it in tables where it has none.
        """
        return self.is_versioned or self._is_compared or "dataVersion" in self._members

    def _lines(self) -> list[bytes]:
        """Return the text as ``json`` would write it with sorted keys, split at separators."""
        members = {
            name: _quoted(name) + b":" + _text(value, 1)
            for name, value in self._other_members().items()
        }
        names = sorted(members)
        before = [members[name] for name in names if name < self.entries_member]
        after = [members[name] for name in names if name > self.entries_member]
        start = b"{\n\t" + b",\n\t".join([*before, _quoted(self.entries_member) + b":{"])
        end = b",\n\t".join([b"}", *after]) + b"\n}"
        self._sort_texts()
        lines = list(self._texts.values())
        if not lines:
            return [start + end]
        # The entries may have megabytes: they are copied only once, when they are joined.
        lines[0] = start + b"\n\t\t" + lines[0]
        lines[-1] += b"\n\t" + end
        return lines

    def _other_members(self) -> Table:
        if not self._has_version:
            return self._members
        old = config_tables.member(self._members, "dataVersion", self.path)
        counter, timestamp_ms = self._version.counter, self._version.timestamp_ms
        version = {**old, "counter": counter, "timestamp": timestamp_ms}
        if self._version.state_version or "stateVersion" in old:
            version["stateVersion"] = self._version.state_version
        return {**self._members, "dataVersion": version}

    def _sort_texts(self) -> None:
        if self._has_new_names:
            self._texts = {name: self._texts[name] for name in sorted(self._texts)}
            self._has_new_names = False

    def _make_text(self, key: Any) -> int:
        """Encode an entry, or drop the text of a deleted one; return the size of the text."""
        name, value = self._name(key), self._stored_entry(key)
        if value is None:
            self._texts.pop(name, None)
            return 0
        self._has_new_names |= name not in self._texts
        self._texts[name] = text = _quoted(name) + b":" + self._entry_text(value)
        return len(text)

    def _name(self, key: Any) -> str:
        """Return the name of an entry in the file."""
        return str(key)

    def _stored_entry(self, key: Any) -> Any:
        """Return an entry as it is stored in the file; None if it was deleted."""
        raise NotImplementedError

    def _entry_text(self, value: Any) -> bytes:
        """Return the text of an entry."""
        return _text(value, 2)


def _text(value: object, depth: int) -> bytes:
    """Return the JSON of a value, indented for a depth in the table."""
    # ASCII only: brokers read with the default encoding of their JVM. All line feeds are part of
    # the indentation: in strings they are escaped.
    text = json.dumps(value, indent="\t", sort_keys=True, separators=(",", ":"))
    return text.replace("\n", "\n" + "\t" * depth).encode("ascii")


def _quoted(name: str) -> bytes:
    return json.dumps(name).encode("ascii")


class _Named(Protocol):
    """An entry with a name."""

    @property
    def name(self) -> str: ...


_Entry = TypeVar("_Entry", bound=_Named)


class NamedTable(SavedTable, Generic[_Entry]):
    """A table of entries by name; members that this version does not have are kept."""

    is_versioned = True

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, name: str) -> _Entry | None:
        """Return an entry; None if there is none."""
        return self._entries.get(name)

    def all(self) -> dict[str, _Entry]:
        """Return a copy of all entries, by name."""
        return dict(self._entries)

    def put(self, entry: _Entry, now_ms: int) -> None:
        """Add or replace an entry; the version increases if the entry differs."""
        if self._entries.get(entry.name) != entry:
            stored = self._stored.get(entry.name, {})
            self._entries[entry.name] = entry
            self._stored[entry.name] = {**stored, **self._merged(entry, stored)}
            self._changed.add(entry.name)
            self._version_changed(now_ms)

    def entry_of(self, name: str, stored: Table) -> _Entry:
        """Return an entry from its form in the file or in a reply of a broker.

        Raises:
            CorruptRecord: It is not the form of an entry.
        """
        with config_tables.expected_kind(self.path):
            return self._entry(name, stored)

    def copy(self, entry: _Entry, stored: Table, now_ms: int) -> bool:
        """Add or replace an entry of another broker, with all members that it has there.

        Returns:
            False if the table had it already.
        """
        if self._entries.get(entry.name) == entry and self._stored[entry.name] == stored:
            return False
        self._entries[entry.name] = entry
        self._stored[entry.name] = stored
        self._changed.add(entry.name)
        self._version_changed(now_ms)
        return True

    def delete(self, name: str, now_ms: int) -> bool:
        """Remove an entry; return whether it was there."""
        if self._entries.pop(name, None) is None:
            return False
        del self._stored[name]
        self._changed.add(name)
        self._version_changed(now_ms)
        return True

    def _decode(self, entries: Table) -> None:
        self._entries = {name: self._entry(name, value) for name, value in entries.items()}
        self._stored = entries
        self._changed = set(entries)

    def _stored_entry(self, key: str) -> Table | None:
        return self._stored.get(key)

    def _entry(self, name: str, value: Table) -> _Entry:
        raise NotImplementedError

    def _merged(self, entry: _Entry, stored: Table) -> Table:
        raise NotImplementedError
