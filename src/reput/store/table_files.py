"""The JSON tables under config/, kept: changed in memory, written whole, never half.

A table is written beside the old one, synced, and renamed over it, so there is a whole one at any
moment (known-bugs.md#torn-tables). The old one becomes the ``.bak`` if it can be read: a bad file
never takes the place of a good backup. Java's own ways differ by version; all of them read what is
written here.

What is written is JSON as Java 4.9 and 5.x read it: numeric keys in quotes, and members that this
version does not know as they were found. Each table is a few verbs over typed entries. They change
memory and make the table dirty; ``step`` writes it when it is due.

Tables may be large and the disk slow. So the text of each entry is kept, and made anew only when
the entry changes; and what waits for the disk is apart: ``take`` returns what is to be written, and
``write`` may be called in any thread. ``save`` is both.
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
"""Of tables that were put aside; nobody reads or deletes them."""

_log = logging.getLogger(__name__)


# --- a file and its backup --------------------------------------------------


class Written(enum.Enum):
    """What became of a text that was to be written."""

    OVERTAKEN = enum.auto()
    """It was not put in place, as a later one was begun; that one may not be in place yet."""
    IN_PLACE = enum.auto()
    """It outlives the process, not the machine."""
    DURABLE = enum.auto()


class _Identity(NamedTuple):
    """What tells whether a file is still the one that was written."""

    inode: int
    size: int
    modified_ns: int


class _SavedFile:
    """The file of a table, with its backup; any thread may replace it.

    Args:
        path: Of the file.
        disk: Makes it durable.
    """

    def __init__(self, path: str, disk: Disk) -> None:
        self._path = path
        self._folder = str(Path(path).parent)
        self._draft = path + paths.DRAFT_SUFFIX
        self._disk = disk
        self._durable_lock = threading.Lock()
        """For one durable write at a time: two would overtake each other again and again."""
        self._lock = threading.Lock()
        """For writing a draft and for putting it in place; not while the disk is waited for."""
        self._turn = 0
        """The latest text that was begun."""
        self._turn_in_place = 0
        self.durable_turn = 0
        """The latest text that the disk is known to have."""
        self._known: _Identity | None = None
        """The file in place, if it is known that brokers can load it."""
        self._is_synced = False
        """Whether that one is durable."""

    def adopt(self) -> None:
        """Trust the file in place: it was just read, and is no worse a backup than any other.

        Raises:
            WriteFailed: It cannot be made durable.
        """
        self._known = _identity(self._path)
        self._sync_in_place()
        self._is_synced = True

    def replace(self, turn: int, data: bytes, *, is_durable: bool) -> Written:
        """Put a text in place.

        After any failure, and after the end of the process at any moment, the file is the old or
        the new one. After the end of the machine as well, if the new one is to be durable;
        otherwise it may be damaged until another one is, and its backup is durable.

        Args:
            turn: Which one of all texts this is: a later one is never replaced by it.
            data: The text.
            is_durable: Wait for the disk.

        Returns:
            What became of it, or of a later one that stands in its place.

        Raises:
            WriteFailed: It was not written, or (by the last step, a sync) perhaps not for good.
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
                return Written.OVERTAKEN  # by one that failed, or somebody else wrote the file
            elif not self._is_synced:
                # Those who do not wait for the disk may come faster than it syncs. They wait here:
                # what is synced becomes the backup of the next one.
                self._sync_in_place()
                self._is_synced = True
            durable_turn = self._turn_in_place
        self._disk.sync_folder(self._folder)
        self.durable_turn = max(self.durable_turn, durable_turn)
        return Written.DURABLE

    def _new_draft(self, turn: int, data: bytes) -> int:
        self._turn = turn
        # A file of its own: the last one's may be waiting for the disk, and who would cut it too.
        self._disk.unlink(self._draft)
        return _create(self._draft, data, self._disk)

    def _put_in_place(self, turn: int, *, is_synced: bool) -> None:
        old = _identity(self._path)
        if old is not None and old != self._known:  # somebody else's
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
            is_last_resort: The file that comes in its place is not synced: if the power fails, the
                backup is all there is. So its name has to be durable first.
        """
        backup = self._path + paths.BACKUP_SUFFIX
        draft = backup + paths.DRAFT_SUFFIX
        if not (Path(backup).exists() and Path(backup).samefile(self._path)):
            self._disk.unlink(draft)
            if not self._disk.link(self._path, draft):
                descriptor = _create(draft, Path(self._path).read_bytes(), self._disk)
                try:
                    self._disk.sync_file(descriptor, draft)
                finally:
                    os.close(descriptor)
            self._disk.rename(draft, backup)
        if is_last_resort:
            self._disk.sync_folder(self._folder)


def _put_aside(path: str, disk: Disk) -> str:
    """Give a file, and its backup, a name under which nobody loads it; return that of the file."""
    aside = f"{path}{DAMAGED_SUFFIX}"
    for suffix in (paths.BACKUP_SUFFIX, ""):
        if Path(path + suffix).exists():
            disk.rename(path + suffix, aside + suffix)
    disk.sync_folder(str(Path(path).parent))
    return aside


def _create(path: str, data: bytes, disk: Disk) -> int:
    """Return the descriptor of a new file with these bytes."""
    try:
        descriptor = open_descriptor(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
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
        found = Path(path).stat()
    except OSError:
        return None
    return _Identity(found.st_ino, found.st_size, found.st_mtime_ns)


def _is_readable(path: str) -> bool:
    """Whether there is a table that a broker could load.

    Raises:
        WriteFailed: Nobody can say: it cannot be read.
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


# --- what the tables hold ---------------------------------------------------


@dataclass(frozen=True, slots=True)
class DataVersion:
    """How often a table has changed, and when last: brokers compare it to see who is newer."""

    counter: int
    timestamp_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriptionGroup:
    """What subscriptionGroup.json says of a consumer group, as far as every version has it."""

    name: str
    consume_enable: bool = True
    consume_from_min_enable: bool = True
    consume_broadcast_enable: bool = True
    retry_queue_count: int = 1
    retry_max: int = 16
    """Attempts before a message becomes a dead letter."""
    broker_id: int = 0
    slow_broker_id: int = 1
    """Where to pull when this broker is slow."""
    notify_members_enable: bool = True
    # Of 5.x, kept and shown here.
    consume_orderly: bool = False
    consume_timeout_minute: int = 15
    sys_flag: int = 0
    attributes: tuple[tuple[str, str], ...] = ()
    retry_policy: Mapping[str, Any] | None = None
    """When clients of gRPC proxies see a message again: ``type`` and its parameters, as JSON."""
    subscriptions: Sequence[Mapping[str, Any]] | None = None
    """What it may subscribe to, as JSON; None: anything."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerFilter:
    """What consumerFilter.json says of the SQL filter of a group on a topic."""

    topic: str
    group: str
    expression: str
    expression_type: str
    client_version: int
    """The subscription's version: the time it was made at, by the client's clock, ms."""
    born_ms: int
    dead_ms: int = 0
    """When the last consumer left."""
    bloom_bits: int
    """Length of the Bloom filter's bits, and of the message's."""
    bloom_positions: tuple[int, ...]

    @property
    def is_dead(self) -> bool:
        """Whether no consumer uses it."""
        return self.dead_ms >= self.born_ms


# --- the tables -------------------------------------------------------------


PREPARED_AT_ONCE = 200
"""Entries whose texts are made in less than 2 ms."""

_SORTED_AT_ONCE = 2_000
"""Names that are sorted, or put in order, in about 1 ms."""
_PREPARED_BYTES = 1 << 16
"""Likewise: entries may be large, as that of a group that reads thousands of queues."""

_SEPARATOR = b",\n\t\t"
"""Between two entries."""


class Draft(NamedTuple):
    """A table as it is to be written."""

    turn: int
    """Which one this is: each is later than those before."""
    lines: list[bytes]
    """Its text; what joins them is left out."""


class SavedTable:
    """One table: its entries in memory, its file, and whether they differ.

    For one thread, but for ``write``.
    """

    path: ClassVar[str]
    entries_member: ClassVar[str]
    is_versioned: ClassVar[bool] = False
    """Whether Java of every version keeps a data version in it."""
    is_progress: ClassVar[bool] = False
    """Whether it only says how far a delivery is: without it the broker begins at the oldest
    message there is, which repeats messages and loses none."""

    def __init__(self, root: str, disk: Disk, *, interval_ms: int = 0) -> None:
        self.is_dirty = False
        """Whether it is to be written: it has changed, or what was written is not durable."""
        self._file = _SavedFile(f"{root}/{self.path}", disk)
        self._interval_ms = interval_ms
        self._saved_ms: int | None = None
        self._members: Table = {}
        self._version = DataVersion(0, 0)
        self._changed: set[Any] = set()  # keys of entries whose text is not up to date
        self._texts: dict[str, bytes] = {}
        """Name of an entry -> its text, with the name; sorted, but for new names."""
        self._has_new_names = False
        self._taken_turn = 0
        self.is_new = True
        """Whether neither the file nor its backup was there, or both were empty."""
        self.damage = ""
        """Why a table of progress begins anew; empty if it does not."""

    @classmethod
    def load(cls, root: str, disk: Disk, *, interval_ms: int = 0) -> Self:
        """Return the table of a store; empty if it has none.

        A table of progress that cannot be read is put aside, and an empty one takes its place.

        Args:
            root: Folder of the store.
            disk: What ``save`` writes through.
            interval_ms: ``step`` writes no more often.

        Raises:
            CorruptRecord: Neither the file nor its backup is such a table. If it is no table of
                progress: nothing else says what it said.
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
            table.damage = f"{error}; it was put aside as {aside}, and what it counted begins anew"
            _log.error("%s", table.damage)
            return table

    @classmethod
    def _load(cls, root: str, disk: Disk, interval_ms: int) -> Self:
        table = cls(root, disk, interval_ms=interval_ms)
        found = config_tables.find(open_folder(root), cls.path)
        table.is_new = found is None
        members, source = ({}, None) if found is None else found
        version = config_tables.member(members, "dataVersion", cls.path)
        entries = config_tables.member(members, cls.entries_member, cls.path)
        with config_tables.expected_kind(cls.path):
            counter, timestamp_ms = version.get("counter", 0), version.get("timestamp", 0)
            table._version = DataVersion(int(counter), int(timestamp_ms))
            table._decode(entries)
        table._members = {key: one for key, one in members.items() if key != cls.entries_member}
        for _ in table.prepare():  # better now than with the first change
            pass
        table._sort_texts()
        if source == cls.path:
            table._file.adopt()
        return table

    @property
    def version(self) -> DataVersion:
        """The table's version; counter 0 if it has none."""
        return self._version

    @property
    def is_saved(self) -> bool:
        """Whether all of it is durable; not while it is being written."""
        return not self.is_dirty and self._file.durable_turn == self._taken_turn

    def is_due(self, now_ms: int) -> bool:
        """Whether it is to be written now."""
        # A clock that was set back must not keep the table from being saved.
        return self.is_dirty and (
            self._saved_ms is None or not 0 <= now_ms - self._saved_ms < self._interval_ms
        )

    def step(self, now_ms: int) -> bool:
        """Save the table if that is due; return whether it was. Raises as ``save``."""
        is_due = self.is_due(now_ms)
        if is_due:
            self.save(now_ms)
        return is_due

    def save(self, now_ms: int, *, is_durable: bool = True) -> None:
        """Write the table, whether it is dirty or not.

        Args:
            now_ms: The time.
            is_durable: Wait for the disk. If not, it survives the end of this process, and stays
                dirty: the end of the machine may take it back.

        Raises:
            WriteFailed: It stays dirty.
        """
        self.write(self.take(now_ms), now_ms, is_durable=is_durable)

    def prepare(self) -> Iterator[None]:
        """Do the work of the next ``take``, as far as it is known, with pauses."""
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
        """Bring the texts in the order of their names, with pauses.

        Names that come meanwhile are left to ``take``.
        """
        if not self._has_new_names or len(self._texts) <= _SORTED_AT_ONCE:
            return
        runs = []
        names = list(self._texts)
        for start in range(0, len(names), _SORTED_AT_ONCE):
            runs.append(sorted(names[start : start + _SORTED_AT_ONCE]))
            yield
        known: dict[str, None] = {}
        for number, name in enumerate(heapq.merge(*runs), 1):
            known[name] = None
            if number % _SORTED_AT_ONCE == 0:
                yield
        texts = self._texts
        later = [name for name in texts if name not in known]
        self._texts = {name: texts[name] for name in known if name in texts}
        self._texts.update((name, texts[name]) for name in later)
        self._has_new_names = bool(later)

    def take(self, now_ms: int) -> Draft:
        """Return the table as it is now."""
        if self.is_dirty and not self.is_versioned and "dataVersion" in self._members:
            self._bump(now_ms)
        while self._changed:
            self._make_text(self._changed.pop())
        self.is_dirty = False
        self._taken_turn += 1
        return Draft(self._taken_turn, self._lines())

    def write(self, draft: Draft, now_ms: int, *, is_durable: bool = True) -> Written:
        """Write what was taken, in any thread; return what became of it.

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
        """Make the table newer: what is told with it has changed, though no entry has."""
        self._version_changed(now_ms)

    def _version_changed(self, now_ms: int) -> None:
        self.is_dirty = True
        self._bump(now_ms)

    def _bump(self, now_ms: int) -> None:
        self._version = DataVersion(self._version.counter + 1, now_ms)

    def _decode(self, entries: Table) -> None:
        """Take up what a file says; all of it has changed, as there is no text yet."""
        raise NotImplementedError

    # The text ---------------------------------------------------------------------------------

    def _lines(self) -> list[bytes]:
        """Return the text as ``json`` would write it, keys sorted, in pieces around separators."""
        members = {
            name: _quoted(name) + b":" + _text(value, 1)
            for name, value in self._other_members().items()
        }
        names = sorted(members)
        before = [members[name] for name in names if name < self.entries_member]
        behind = [members[name] for name in names if name > self.entries_member]
        start = b"{\n\t" + b",\n\t".join([*before, _quoted(self.entries_member) + b":{"])
        end = b",\n\t".join([b"}", *behind]) + b"\n}"
        self._sort_texts()
        lines = list(self._texts.values())
        if not lines:
            return [start + end]
        # The entries may be megabytes: they are copied once, when they are joined.
        lines[0] = start + b"\n\t\t" + lines[0]
        lines[-1] += b"\n\t" + end
        return lines

    def _other_members(self) -> Table:
        if not self.is_versioned and "dataVersion" not in self._members:
            return self._members
        old = config_tables.member(self._members, "dataVersion", self.path)
        counter, timestamp_ms = self._version.counter, self._version.timestamp_ms
        version = {**old, "counter": counter, "timestamp": timestamp_ms}
        return {**self._members, "dataVersion": version}

    def _sort_texts(self) -> None:
        if self._has_new_names:
            self._texts = {name: self._texts[name] for name in sorted(self._texts)}
            self._has_new_names = False

    def _make_text(self, key: Any) -> int:
        """Make the text of an entry, or forget it; return its size."""
        name, value = self._name(key), self._stored_entry(key)
        if value is None:
            self._texts.pop(name, None)
            return 0
        self._has_new_names |= name not in self._texts
        self._texts[name] = text = _quoted(name) + b":" + self._entry_text(value)
        return len(text)

    def _name(self, key: Any) -> str:
        """Return the name in the file of an entry."""
        return str(key)

    def _stored_entry(self, key: Any) -> Any:
        """Return an entry as it stands in the file; None if it is gone."""
        raise NotImplementedError

    def _entry_text(self, value: Any) -> bytes:
        """Return the text of an entry."""
        return _text(value, 2)


def _text(value: object, depth: int) -> bytes:
    """Return a value as it stands so deep in a table."""
    # ASCII alone: brokers read with the encoding of their JVM, whichever that is. Line feeds
    # are those of the indentation: in strings they are escaped.
    text = json.dumps(value, indent="\t", sort_keys=True, separators=(",", ":"))
    return text.replace("\n", "\n" + "\t" * depth).encode("ascii")


def _quoted(name: str) -> bytes:
    return json.dumps(name).encode("ascii")


class _Named(Protocol):
    """An entry that knows its name."""

    @property
    def name(self) -> str: ...


_Entry = TypeVar("_Entry", bound=_Named)


class _NamedTable(SavedTable, Generic[_Entry]):
    """A table of entries by name; members that this version does not know stay as stored."""

    is_versioned = True

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, name: str) -> _Entry | None:
        """Return an entry, or None."""
        return self._entries.get(name)

    def all(self) -> dict[str, _Entry]:
        """Return all entries by name, in a dictionary of the caller's."""
        return dict(self._entries)

    def put(self, entry: _Entry, now_ms: int) -> None:
        """Add or replace an entry; the version changes if that changes anything."""
        if self._entries.get(entry.name) != entry:
            stored = self._stored.get(entry.name, {})
            self._entries[entry.name] = entry
            self._stored[entry.name] = {**stored, **self._merged(entry, stored)}
            self._changed.add(entry.name)
            self._version_changed(now_ms)

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
        """Remove a group with what it may not do; return whether it was there."""
        self._set_forbidden(name, {})
        return super().delete(name, now_ms)

    def forbidden(self, group: str, topic: str) -> int:
        """Return what a group may not do in a topic: bits of a permission; 0: nothing."""
        return int(self._forbidden().get(group, {}).get(topic, 0))

    def all_forbidden(self) -> dict[str, dict[str, int]]:
        """Return group -> topic -> bits, in dictionaries of the caller's."""
        return {group: dict(topics) for group, topics in self._forbidden().items()}

    def forbid(self, group: str, topic: str, bits: int, now_ms: int) -> None:
        """Set what a group may not do in a topic; the version changes if that changes anything."""
        if self.forbidden(group, topic) != bits:
            topics = {**self._forbidden().get(group, {}), topic: bits}
            self._set_forbidden(group, {one: value for one, value in topics.items() if value})
            self._version_changed(now_ms)

    def _forbidden(self) -> Table:
        return config_tables.member(self._members, "forbiddenTable", self.path)

    def _set_forbidden(self, group: str, topics: Table) -> None:
        table = {**self._forbidden(), group: topics}
        if topics or group in self._forbidden():
            self._members["forbiddenTable"] = {one: some for one, some in table.items() if some}


_NUMBERS = msgspec.json.Encoder(order="sorted")


class ConsumerOffsetTable(SavedTable):
    """consumerOffset.json: how far each group has read each queue."""

    path = paths.CONSUMER_OFFSETS
    entries_member = "offsetTable"

    count = 0
    """Consumer offsets: one per group and queue."""

    def queue_count(self, topic: str, group: str) -> int:
        """Return in how many queues of a topic a group has an offset."""
        return len(self._queues.get((topic, group), ()))

    def get(self, topic: str, group: str, queue_id: int) -> int | None:
        """Return the queue offset that a group reads next, or None."""
        queues = self._queues.get((topic, group))
        return None if queues is None else queues.get(queue_id)

    def of(self, topic: str, group: str) -> dict[int, int]:
        """Return queue id -> consumer offset, in a dictionary of the caller's."""
        return dict(self._queues.get((topic, group), {}))

    def readers(self) -> Iterator[tuple[str, str]]:
        """Yield each topic with each group that has read it."""
        yield from list(self._queues)

    def all(self) -> Iterator[ConsumerOffset]:
        """Yield every consumer offset. The table may change meanwhile."""
        for topic, group in list(self._queues):
            for queue_id, consumer_offset in self.of(topic, group).items():
                yield ConsumerOffset(topic, group, queue_id, consumer_offset)

    def put(self, topic: str, group: str, queue_id: int, consumer_offset: int) -> None:
        """Set how far a group has read a queue; back is allowed."""
        key = topic, group
        queues = self._queues.setdefault(key, {})
        self.count += queue_id not in queues
        queues[queue_id] = consumer_offset
        self._changed.add(key)
        self.is_dirty = True

    def delete(self, *, topic: str | None = None, group: str | None = None) -> bool:
        """Remove what is kept of a topic, of a group, or of both; return whether there was any."""
        assert topic is not None or group is not None, "delete everything is no request"
        if topic is not None and group is not None:
            doomed = [(topic, group)] if (topic, group) in self._queues else []
        else:
            doomed = [key for key in self._queues if topic == key[0] or group == key[1]]
        for key in doomed:
            self.count -= len(self._queues.pop(key))
        self._changed.update(doomed)
        self.is_dirty |= bool(doomed)
        return bool(doomed)

    def delete_queue(self, topic: str, group: str, queue_id: int) -> bool:
        """Remove how far a group has read one queue; return whether that was known."""
        key = topic, group
        queues = self._queues.get(key, {})
        if queues.pop(queue_id, None) is None:
            return False
        if not queues:
            del self._queues[key]
        self.count -= 1
        self._changed.add(key)
        self.is_dirty = True
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
        # There may be a hundred thousand of them: this takes a tenth of the time.
        text = _NUMBERS.encode({str(one): other for one, other in value.items()})
        if not value:
            return text
        return b"{\n\t\t\t" + text[1:-1].replace(b",", b",\n\t\t\t") + b"\n\t\t}"


class DelayOffsetTable(SavedTable):
    """delayOffset.json: how far each delay level has delivered its schedule queue."""

    path = paths.DELAY_OFFSETS
    entries_member = "offsetTable"
    is_progress = True

    def get(self, level: int) -> int | None:
        """Return the queue offset that a level delivers next, or None."""
        return self._offsets.get(level)

    def all(self) -> dict[int, int]:
        """Return level -> queue offset, in a dictionary of the caller's."""
        return dict(self._offsets)

    def put(self, level: int, queue_offset: int) -> None:
        """Set how far a level has delivered; level 1 is the first."""
        self._offsets[level] = queue_offset
        self._changed.add(level)
        self.is_dirty = True

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
        """Return a filter, or None."""
        return self._filters.get(topic, {}).get(group)

    def of(self, topic: str) -> dict[str, ConsumerFilter]:
        """Return group -> filter of a topic, in a dictionary of the caller's."""
        return dict(self._filters.get(topic, {}))

    def all(self) -> Iterator[ConsumerFilter]:
        """Yield every filter."""
        for groups in self._filters.values():
            yield from groups.values()

    def entry(self, topic: str, group: str) -> Table | None:
        """Return a filter as the file has it, in Java's order of members, or None."""
        stored = self._stored.get((topic, group))
        return None if stored is None else dict(sorted(stored.items()))

    def put(self, one: ConsumerFilter) -> None:
        """Add or replace a filter."""
        stored = self._stored.setdefault((one.topic, one.group), {})
        bloom = {**stored.get("bloomFilterData", {})}
        bloom |= {"bitNum": one.bloom_bits, "bitPos": list(one.bloom_positions)}
        stored |= {**_filter_entry(one), "bloomFilterData": bloom}
        self._filters.setdefault(one.topic, {})[one.group] = one
        self._changed.add(one.topic)
        self.is_dirty = True

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
        **{_GROUP_FLAGS[key]: _flag(one) for key, one in value.items() if key in _GROUP_FLAGS},
        **{_GROUP_NUMBERS[key]: int(one) for key, one in value.items() if key in _GROUP_NUMBERS},
    }
    for key, one in _GROUP_OF_5.items():
        if value.get(key) is not None:
            settings[one] = value[key]
    attributes = value.get("attributes") or {}
    settings["attributes"] = tuple(sorted((str(key), str(one)) for key, one in attributes.items()))
    return SubscriptionGroup(name=name, **settings)


def _group_entry(group: SubscriptionGroup, stored: Table) -> Table:
    names = {**_GROUP_FLAGS, **_GROUP_NUMBERS}
    entry = {"groupName": group.name, **{key: getattr(group, one) for key, one in names.items()}}
    of_5 = {key: getattr(group, one) for key, one in _GROUP_OF_5.items()}
    of_5["attributes"] = dict(group.attributes)
    usual = {key: getattr(_USUAL_GROUP, one) for key, one in _GROUP_OF_5.items()}
    # 4.x has none of them.
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
        bloom_positions=tuple(int(one) for one in bloom.get("bitPos") or ()),
    )


def _filter_entry(one: ConsumerFilter) -> Table:
    return {
        "bornTime": one.born_ms,
        "clientVersion": one.client_version,
        "consumerGroup": one.group,
        "dead": one.is_dead,
        "deadTime": one.dead_ms,
        "expression": one.expression,
        "expressionType": one.expression_type,
        "topic": one.topic,
    }
