"""The JSON tables in config/: changed in memory, and written as a whole.

A table is written to a draft file, synced, and renamed over the old file, so a complete file exists
at any moment (known-bugs.md#torn-tables). The old file becomes the ``.bak`` if it is readable: a
damaged file never replaces a good backup. Java's procedure differs by version; every version reads
the files that are written here.

The files are JSON as Java 4.9 and 5.x read it: numeric keys in quotes, and members that this
version does not have are kept as they were read. Each table has a few methods with typed entries.
They change memory and make the table dirty; ``step`` writes it when it is due.

Tables may be large and the disk slow. So the text of each entry is kept, and encoded again only
when the entry changes. Work that waits for the disk is separate: ``take`` returns a draft, and
``write`` may be called in any thread. ``save`` does both.
"""

import enum
import heapq
import json
import logging
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Generic, NamedTuple, Protocol, Self, TypeVar

import msgspec

from reput.descriptors import open_descriptor
from reput.errors import CorruptRecord
from reput.format import fastjson
from reput.store import config_tables, paths
from reput.store.config_tables import GROUP_SEPARATOR, ConsumerOffset, Table, TopicConfig
from reput.store.disk import Disk, failed_opening
from reput.store.files import open_folder

DAMAGED_SUFFIX = ".damaged"
"""Suffix of tables that were put aside; no program reads or deletes them."""

_log = logging.getLogger(__name__)


# --- a file and its backup --------------------------------------------------


class Written(enum.Enum):
    """The outcome of writing a text."""

    OVERTAKEN = enum.auto()
    """It is not in place, since a later one was begun; that one may not be in place yet either."""
    IN_PLACE = enum.auto()
    """It survives the end of the process, but perhaps not of the machine."""
    DURABLE = enum.auto()


class _Identity(NamedTuple):
    """Properties that show whether a file is still the one that was written."""

    inode: int
    size: int
    modified_ns: int


class _SavedFile:
    """The file of a table, with its backup; any thread may replace it.

    Args:
        path: Path of the file.
        disk: Makes it durable.
        mode: Permissions of the file.
    """

    def __init__(self, path: str, disk: Disk, mode: int) -> None:
        self._path = path
        self._mode = mode
        self._folder = str(Path(path).parent)
        self._draft = path + paths.DRAFT_SUFFIX
        self._disk = disk
        self._durable_lock = threading.Lock()
        """Serializes durable writes: two of them would overtake each other again and again."""
        self._lock = threading.Lock()
        """Held while a draft is written or put in place, but not while waiting for the disk."""
        self._turn = 0
        """Number of the latest text that was begun."""
        self._turn_in_place = 0
        self.durable_turn = 0
        """Number of the latest text that is durable."""
        self._known: _Identity | None = None
        """Identity of the file in place, if brokers can surely load it."""
        self._is_synced = False
        """True if that file is durable."""

    def adopt(self) -> None:
        """Trust the file in place: it was just read, so it is a usable backup.

        Raises:
            WriteFailed: The file cannot be made durable.
        """
        self._known = _identity(self._path)
        self._sync_in_place()
        self._is_synced = True

    def replace(self, turn: int, data: bytes, *, is_durable: bool) -> Written:
        """Put a text in place.

        After any failure, and after the end of the process at any moment, the file is the old or
        the new one. With ``is_durable`` this holds after a crash of the machine as well; otherwise
        the file may be damaged until the next durable write, and its backup is durable.

        Args:
            turn: Number of the text; it never replaces a text with a higher number.
            data: The text.
            is_durable: Wait for the disk.

        Returns:
            The outcome, of this text or of a later one that replaced it.

        Raises:
            WriteFailed: It was not written, or (in the last step, a sync) perhaps not durably.
        """
        self._disk.make_folder(self._folder)
        if is_durable:
            with self._durable_lock:
                return self._replace_durably(turn, data)
        with self._lock:
            if turn < self._turn:
                is_there = turn <= self._turn_in_place
                return Written.IN_PLACE if is_there else Written.OVERTAKEN
            os.close(self._new_draft(turn, data))
            self._put_in_place(turn, is_synced=False)
            return Written.IN_PLACE

    def _replace_durably(self, turn: int, data: bytes) -> Written:
        with self._lock:
            descriptor = self._new_draft(turn, data) if turn >= self._turn else None
        if descriptor is not None:
            try:
                self._disk.sync_file(descriptor, self._draft)
            finally:
                os.close(descriptor)
        with self._lock:
            if turn == self._turn:
                self._put_in_place(turn, is_synced=True)
            elif turn > self._turn_in_place or _identity(self._path) != self._known:
                return Written.OVERTAKEN  # by a text that failed, or another program wrote the file
            elif not self._is_synced:
                # Writes that do not wait for the disk may be faster than its syncs. They wait here,
                # since a synced file becomes the backup of the next one.
                self._sync_in_place()
                self._is_synced = True
            durable_turn = self._turn_in_place
        self._disk.sync_folder(self._folder)
        self.durable_turn = max(self.durable_turn, durable_turn)
        return Written.DURABLE

    def _new_draft(self, turn: int, data: bytes) -> int:
        self._turn = turn
        # A new file: the last draft may be waiting for the disk, and would be truncated too.
        self._disk.unlink(self._draft)
        return _create(self._draft, data, self._disk, self._mode)

    def _put_in_place(self, turn: int, *, is_synced: bool) -> None:
        old = _identity(self._path)
        if old is not None and old != self._known:  # another program wrote it
            if _is_readable(self._path):
                self._sync_in_place()
                self._back_up(is_last_resort=not is_synced)
        elif old is not None and self._is_synced:
            self._back_up(is_last_resort=not is_synced)
        self._disk.rename(self._draft, self._path)
        self._turn_in_place = turn
        self._known = _identity(self._path)
        self._is_synced = is_synced

    def _sync_in_place(self) -> None:
        try:
            descriptor = open_descriptor(self._path, os.O_RDONLY)
        except OSError as error:
            raise failed_opening(self._path, "open", error) from error
        try:
            self._disk.sync_file(descriptor, self._path)
        finally:
            os.close(descriptor)

    def _back_up(self, *, is_last_resort: bool) -> None:
        """Make the file the backup as well; it keeps its own name until it is replaced.

        Args:
            is_last_resort: The next file is not synced, so after a power failure the backup may be
                the only valid file. Its name is made durable first.
        """
        backup = self._path + paths.BACKUP_SUFFIX
        draft = backup + paths.DRAFT_SUFFIX
        if not (Path(backup).exists() and Path(backup).samefile(self._path)):
            self._disk.unlink(draft)
            if not self._disk.link(self._path, draft):
                descriptor = _create(draft, Path(self._path).read_bytes(), self._disk, self._mode)
                try:
                    self._disk.sync_file(descriptor, draft)
                finally:
                    os.close(descriptor)
            self._disk.rename(draft, backup)
        if is_last_resort:
            self._disk.sync_folder(self._folder)


def _put_aside(path: str, disk: Disk) -> str:
    """Rename a file and its backup so that no program loads them; return the new file name."""
    aside = f"{path}{DAMAGED_SUFFIX}"
    for suffix in (paths.BACKUP_SUFFIX, ""):
        if Path(path + suffix).exists():
            disk.rename(path + suffix, aside + suffix)
    disk.sync_folder(str(Path(path).parent))
    return aside


def _create(path: str, data: bytes, disk: Disk, mode: int) -> int:
    """Create a file with the given bytes; return its descriptor."""
    try:
        descriptor = open_descriptor(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    except OSError as error:
        raise failed_opening(path, "create", error) from error
    try:
        disk.write(descriptor, path, 0, data)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _identity(path: str) -> _Identity | None:
    try:
        status = Path(path).stat()
    except OSError:
        return None
    return _Identity(status.st_ino, status.st_size, status.st_mtime_ns)


def _is_readable(path: str) -> bool:
    """Return True if there is a table that a broker could load.

    Raises:
        WriteFailed: The file cannot be read, so this is unknown.
    """
    try:
        data = Path(path).read_bytes()
    except FileNotFoundError:
        return False
    except OSError as error:
        raise failed_opening(path, "read", error) from error
    try:
        return isinstance(fastjson.parse(data.decode()), dict)
    except (ValueError, RecursionError):
        return False


# --- contents of the tables -------------------------------------------------


@dataclass(frozen=True, slots=True)
class DataVersion:
    """Number of changes of a table and the time of the last one; brokers compare it."""

    counter: int
    timestamp_ms: int
    state_version: int = 0
    """Epoch of the master that made the changes, under a controller of 5.x."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriptionGroup:
    """An entry of subscriptionGroup.json: the members that every version has, and some of 5.x."""

    name: str
    consume_enable: bool = True
    consume_from_min_enable: bool = True
    consume_broadcast_enable: bool = True
    retry_queue_count: int = 1
    retry_max: int = 16
    """Attempts before a message becomes a dead letter."""
    broker_id: int = 0
    slow_broker_id: int = 1
    """Id of the broker to pull from when this one is slow."""
    notify_members_enable: bool = True
    # Members of 5.x, which are kept and shown here.
    consume_orderly: bool = False
    consume_timeout_minute: int = 15
    sys_flag: int = 0
    attributes: tuple[tuple[str, str], ...] = ()
    retry_policy: Mapping[str, Any] | None = None
    """Policy for redelivery to clients of gRPC proxies: ``type`` and its parameters, as JSON."""
    subscriptions: Sequence[Mapping[str, Any]] | None = None
    """Permitted subscriptions, as JSON; None permits any."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerFilter:
    """An entry of consumerFilter.json: the SQL filter of a group on a topic."""

    topic: str
    group: str
    expression: str
    expression_type: str
    client_version: int
    """Version of the subscription: its creation time by the client's clock, in ms."""
    born_ms: int
    dead_ms: int = 0
    """Time at which the last consumer left, in ms."""
    bloom_bits: int
    """Length of the bit maps of filter and messages, in bits."""
    bloom_positions: tuple[int, ...]

    @property
    def is_dead(self) -> bool:
        """True if no consumer uses the filter."""
        return self.dead_ms >= self.born_ms


# --- the tables -------------------------------------------------------------


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
        self._file = _SavedFile(f"{root}/{self.path}", disk, mode)
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
            aside = _put_aside(f"{root}/{cls.path}", disk)
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


class _NamedTable(SavedTable, Generic[_Entry]):
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


class TopicTable(_NamedTable[TopicConfig]):
    """topics.json: the topics, by name."""

    path = paths.TOPICS
    entries_member = "topicConfigTable"

    def _entry(self, name: str, value: Table) -> TopicConfig:
        return config_tables.topic_config(name, value)

    def _merged(self, entry: TopicConfig, stored: Table) -> Table:
        return _topic_entry(entry, stored)


class SubscriptionGroupTable(_NamedTable[SubscriptionGroup]):
    """subscriptionGroup.json: the consumer groups, by name."""

    path = paths.SUBSCRIPTION_GROUPS
    entries_member = "subscriptionGroupTable"

    def _entry(self, name: str, value: Table) -> SubscriptionGroup:
        return _group(name, value)

    def _merged(self, entry: SubscriptionGroup, stored: Table) -> Table:
        return _group_entry(entry, stored)

    def delete(self, name: str, now_ms: int) -> bool:
        """Remove a group and its forbidden operations; return whether it existed."""
        self._set_forbidden(name, {})
        return super().delete(name, now_ms)

    def forbidden(self, group: str, topic: str) -> int:
        """Return the operations that a group must not do in a topic, as bits of a permission."""
        return int(self._forbidden().get(group, {}).get(topic, 0))

    def all_forbidden(self) -> dict[str, dict[str, int]]:
        """Return group -> topic -> bits, as a copy."""
        return {group: dict(topics) for group, topics in self._forbidden().items()}

    def forbid(self, group: str, topic: str, bits: int, now_ms: int) -> None:
        """Set the forbidden operations of a group in a topic, as bits of a permission."""
        if self.forbidden(group, topic) != bits:
            topics = {**self._forbidden().get(group, {}), topic: bits}
            self._set_forbidden(group, {key: value for key, value in topics.items() if value})
            self._version_changed(now_ms)

    def copy_forbidden(self, by_group: dict[str, dict[str, int]]) -> bool:
        """Replace all forbidden operations; the version stays. Return whether any changed."""
        by_group = {group: topics for group, topics in by_group.items() if topics}
        if self.all_forbidden() == by_group:
            return False
        self._members["forbiddenTable"] = by_group
        self.is_dirty = True
        self.change_count += 1
        self._versioned_changes = self.change_count
        return True

    def _forbidden(self) -> Table:
        return config_tables.member(self._members, "forbiddenTable", self.path)

    def _set_forbidden(self, group: str, topics: Table) -> None:
        table = {**self._forbidden(), group: topics}
        if topics or group in self._forbidden():
            self._members["forbiddenTable"] = {key: value for key, value in table.items() if value}


_NUMBERS = msgspec.json.Encoder(order="sorted")


class ConsumerOffsetTable(SavedTable):
    """consumerOffset.json: the consumer offset of each group and queue."""

    path = paths.CONSUMER_OFFSETS
    entries_member = "offsetTable"

    count = 0
    """Number of consumer offsets: one per group and queue."""

    def queue_count(self, topic: str, group: str) -> int:
        """Return the number of queues of a topic in which a group has an offset."""
        return len(self._queues.get((topic, group), ()))

    def get(self, topic: str, group: str, queue_id: int) -> int | None:
        """Return the queue offset that a group reads next; None if there is none."""
        queues = self._queues.get((topic, group))
        return None if queues is None else queues.get(queue_id)

    def of(self, topic: str, group: str) -> dict[int, int]:
        """Return queue id -> consumer offset, as a copy."""
        return dict(self._queues.get((topic, group), {}))

    def readers(self) -> Iterator[tuple[str, str]]:
        """Yield each (topic, group) with consumer offsets."""
        yield from list(self._queues)

    def all(self) -> Iterator[ConsumerOffset]:
        """Yield all consumer offsets; the table may change meanwhile."""
        for topic, group in list(self._queues):
            for queue_id, consumer_offset in self.of(topic, group).items():
                yield ConsumerOffset(topic, group, queue_id, consumer_offset)

    def put(self, topic: str, group: str, queue_id: int, consumer_offset: int) -> None:
        """Set a consumer offset; it may decrease."""
        key = topic, group
        queues = self._queues.setdefault(key, {})
        self.count += queue_id not in queues
        queues[queue_id] = consumer_offset
        self._changed.add(key)
        self.is_dirty = True
        self.change_count += 1

    def delete(self, *, topic: str | None = None, group: str | None = None) -> bool:
        """Remove the offsets of a topic, of a group, or of both; return whether there were any."""
        assert topic is not None or group is not None, "topic or group is required"
        if topic is not None and group is not None:
            doomed = [(topic, group)] if (topic, group) in self._queues else []
        else:
            doomed = [key for key in self._queues if topic == key[0] or group == key[1]]
        for key in doomed:
            self.count -= len(self._queues.pop(key))
        self._changed.update(doomed)
        self.is_dirty |= bool(doomed)
        self.change_count += len(doomed)
        return bool(doomed)

    def delete_queue(self, topic: str, group: str, queue_id: int) -> bool:
        """Remove the offset of a group in one queue; return whether there was one."""
        key = topic, group
        queues = self._queues.get(key, {})
        if queues.pop(queue_id, None) is None:
            return False
        if not queues:
            del self._queues[key]
        self.count -= 1
        self._changed.add(key)
        self.is_dirty = True
        self.change_count += 1
        return True

    def _decode(self, entries: Table) -> None:
        self._queues: dict[tuple[str, str], dict[int, int]] = {}
        for key, queues in entries.items():
            topic, _, group = key.partition(GROUP_SEPARATOR)
            offsets = {int(queue_id): int(value) for queue_id, value in queues.items()}
            self._queues[topic, group] = offsets
        self.count = sum(map(len, self._queues.values()))
        self._changed = set(self._queues)

    def _stored_entry(self, key: tuple[str, str]) -> dict[int, int] | None:
        return self._queues.get(key)

    def _name(self, key: tuple[str, str]) -> str:
        return GROUP_SEPARATOR.join(key)

    def _entry_text(self, value: dict[int, int]) -> bytes:
        # There may be a hundred thousand of them; this takes a tenth of the time of ``json``.
        text = _NUMBERS.encode({str(queue_id): number for queue_id, number in value.items()})
        if not value:
            return text
        return b"{\n\t\t\t" + text[1:-1].replace(b",", b",\n\t\t\t") + b"\n\t\t}"


class DelayOffsetTable(SavedTable):
    """delayOffset.json: the queue offset that each delay level delivers next."""

    path = paths.DELAY_OFFSETS
    entries_member = "offsetTable"
    is_progress = True

    def get(self, level: int) -> int | None:
        """Return the queue offset that a level delivers next; None if there is none."""
        return self._offsets.get(level)

    def all(self) -> dict[int, int]:
        """Return level -> queue offset, as a copy."""
        return dict(self._offsets)

    def put(self, level: int, queue_offset: int) -> None:
        """Set the queue offset that a level delivers next; the first level is 1."""
        self._offsets[level] = queue_offset
        self._changed.add(level)
        self.is_dirty = True
        self.change_count += 1

    def _decode(self, entries: Table) -> None:
        self._offsets = {int(level): int(value) for level, value in entries.items()}
        self._changed = set(self._offsets)

    def _stored_entry(self, key: int) -> int | None:
        return self._offsets.get(key)


class ConsumerFilterTable(SavedTable):
    """consumerFilter.json: the SQL filters, by topic and group."""

    path = paths.CONSUMER_FILTERS
    entries_member = "filterDataByTopic"

    def get(self, topic: str, group: str) -> ConsumerFilter | None:
        """Return a filter; None if there is none."""
        return self._filters.get(topic, {}).get(group)

    def of(self, topic: str) -> dict[str, ConsumerFilter]:
        """Return group -> filter of a topic, as a copy."""
        return dict(self._filters.get(topic, {}))

    def all(self) -> Iterator[ConsumerFilter]:
        """Yield every filter."""
        for groups in self._filters.values():
            yield from groups.values()

    def entry(self, topic: str, group: str) -> Table | None:
        """Return a filter as stored, in Java's order of members; None if there is none."""
        stored = self._stored.get((topic, group))
        return None if stored is None else dict(sorted(stored.items()))

    def put(self, entry: ConsumerFilter) -> None:
        """Add or replace a filter."""
        stored = self._stored.setdefault((entry.topic, entry.group), {})
        bloom = {**stored.get("bloomFilterData", {})}
        bloom |= {"bitNum": entry.bloom_bits, "bitPos": list(entry.bloom_positions)}
        stored |= {**_filter_entry(entry), "bloomFilterData": bloom}
        self._filters.setdefault(entry.topic, {})[entry.group] = entry
        self._changed.add(entry.topic)
        self.is_dirty = True
        self.change_count += 1

    def delete(self, topic: str, group: str) -> bool:
        """Remove a filter; return whether it was there."""
        groups = self._filters.get(topic, {})
        if groups.pop(group, None) is None:
            return False
        if not groups:
            del self._filters[topic]
        del self._stored[topic, group]
        self._changed.add(topic)
        self.is_dirty = True
        self.change_count += 1
        return True

    def _decode(self, entries: Table) -> None:
        self._topics = entries
        self._stored: dict[tuple[str, str], Table] = {}
        self._filters: dict[str, dict[str, ConsumerFilter]] = {}
        for topic, value in entries.items():
            for group, stored in (value.get("groupFilterData") or {}).items():
                self._stored[topic, group] = dict(stored)
                self._filters.setdefault(topic, {})[group] = _filter(topic, group, stored)

        self._changed = set(self._filters)

    def _stored_entry(self, key: str) -> Table | None:
        groups = self._filters.get(key)
        if not groups:
            return None
        data = {group: self._stored[key, group] for group in groups}
        return {**self._topics.get(key, {}), "topic": key, "groupFilterData": data}


# --- entries from and to their stored form ----------------------------------


def _topic_entry(topic: TopicConfig, stored: Table) -> Table:
    entry: Table = {
        "order": topic.order,
        "perm": topic.perm,
        "readQueueNums": topic.read_queue_count,
        "topicFilterType": topic.filter_type,
        "topicName": topic.name,
        "topicSysFlag": topic.sys_flag,
        "writeQueueNums": topic.write_queue_count,
    }
    if topic.attributes or "attributes" in stored:  # 4.x has none
        entry["attributes"] = dict(topic.attributes)
    return entry


def _group(name: str, value: Table) -> SubscriptionGroup:
    settings: dict[str, Any] = {
        **{_GROUP_FLAGS[key]: _flag(flag) for key, flag in value.items() if key in _GROUP_FLAGS},
        **{_GROUP_NUMBERS[key]: int(n) for key, n in value.items() if key in _GROUP_NUMBERS},
    }
    for key, attribute in _GROUP_OF_5.items():
        if value.get(key) is not None:
            settings[attribute] = value[key]
    attributes = value.get("attributes") or {}
    settings["attributes"] = tuple(
        sorted((str(key), str(text)) for key, text in attributes.items())
    )
    return SubscriptionGroup(name=name, **settings)


def _group_entry(group: SubscriptionGroup, stored: Table) -> Table:
    names = {**_GROUP_FLAGS, **_GROUP_NUMBERS}
    entry = {"groupName": group.name, **{key: getattr(group, name) for key, name in names.items()}}
    of_5 = {key: getattr(group, field) for key, field in _GROUP_OF_5.items()}
    of_5["attributes"] = dict(group.attributes)
    usual = {key: getattr(_USUAL_GROUP, field) for key, field in _GROUP_OF_5.items()}
    # 4.x has none of these.
    return entry | {
        key: value for key, value in of_5.items() if value != usual.get(key, {}) or key in stored
    }


_GROUP_FLAGS = {
    "consumeEnable": "consume_enable",
    "consumeFromMinEnable": "consume_from_min_enable",
    "consumeBroadcastEnable": "consume_broadcast_enable",
    "notifyConsumerIdsChangedEnable": "notify_members_enable",
}
_GROUP_NUMBERS = {
    "retryQueueNums": "retry_queue_count",
    "retryMaxTimes": "retry_max",
    "brokerId": "broker_id",
    "whichBrokerWhenConsumeSlowly": "slow_broker_id",
}
_GROUP_OF_5 = {
    "consumeMessageOrderly": "consume_orderly",
    "consumeTimeoutMinute": "consume_timeout_minute",
    "groupRetryPolicy": "retry_policy",
    "groupSysFlag": "sys_flag",
    "subscriptionDataSet": "subscriptions",
}
_USUAL_GROUP = SubscriptionGroup(name="")


def _flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"{value!r} is neither true nor false")
    return value


def _filter(topic: str, group: str, value: Table) -> ConsumerFilter:
    bloom = value.get("bloomFilterData") or {}
    return ConsumerFilter(
        topic=topic,
        group=group,
        expression=str(value.get("expression", "")),
        expression_type=str(value.get("expressionType", "")),
        client_version=int(value.get("clientVersion", 0)),
        born_ms=int(value.get("bornTime", 0)),
        dead_ms=int(value.get("deadTime", 0)),
        bloom_bits=int(bloom.get("bitNum", 0)),
        bloom_positions=tuple(int(bit) for bit in bloom.get("bitPos") or ()),
    )


def _filter_entry(entry: ConsumerFilter) -> Table:
    return {
        "bornTime": entry.born_ms,
        "clientVersion": entry.client_version,
        "consumerGroup": entry.group,
        "dead": entry.is_dead,
        "deadTime": entry.dead_ms,
        "expression": entry.expression,
        "expressionType": entry.expression_type,
        "topic": entry.topic,
    }
