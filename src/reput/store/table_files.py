"""The JSON tables under config/, kept: changed in memory, written whole, never half.

A table is written beside the old one, synced, and renamed over it, so there is a whole one at any
moment (anchors D26). The old one becomes the ``.bak`` if it can be read: a bad file never takes the
place of a good backup. Java's own ways differ by version; all of them read what is written here.

What is written is JSON as Java 4.9 and 5.x read it: numeric keys in quotes, and members that this
version does not know as they were found. Each table is a few verbs over typed entries. They change
memory and make the table dirty; ``step`` writes it when it is due.
"""

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Generic, Protocol, Self, TypeVar

from reput.errors import WriteFailed
from reput.format import fastjson
from reput.store import config_tables, paths
from reput.store.config_tables import GROUP_SEPARATOR, ConsumerOffset, Table, TopicConfig
from reput.store.disk import Disk
from reput.store.files import open_folder


def save(root: str, path: str, table: Table, disk: Disk) -> None:
    """Write a table; it is durable on return.

    After any failure, and after a crash at any moment, the table is the old or the new one.

    Args:
        root: Folder of the store.
        path: Of the table below the root.
        table: What ``json`` can write; keys are sorted.
        disk: Makes it durable.

    Raises:
        WriteFailed: It was not written, or (by the last step, a sync) perhaps not for good.
    """
    target = f"{root}/{path}"
    folder = str(Path(target).parent)
    draft = target + paths.DRAFT_SUFFIX
    disk.make_folder(folder)
    _write_new(draft, _text(table), disk)
    old = _readable(target)
    if old is not None:
        _back_up(target, old, disk)
    disk.rename(draft, target)
    disk.sync_folder(folder)


def _text(table: Table) -> bytes:
    # ASCII alone: brokers read with the encoding of their JVM, whichever that is.
    text = json.dumps(table, indent="\t", sort_keys=True, separators=(",", ":"))
    return text.encode("ascii")


def _readable(path: str) -> bytes | None:
    """Return the text of a table that a broker could load, or None."""
    try:
        data = Path(path).read_bytes()
        is_table = isinstance(fastjson.parse(data.decode()), dict)
    except (OSError, ValueError, RecursionError):
        return None
    return data if is_table else None


def _back_up(path: str, data: bytes, disk: Disk) -> None:
    """Make a file the backup as well; it keeps its own name until it is replaced."""
    backup = path + paths.BACKUP_SUFFIX
    draft = backup + paths.DRAFT_SUFFIX
    if Path(backup).exists() and Path(backup).samefile(path):
        return  # stopped right here the last time
    disk.unlink(draft)
    try:
        os.link(path, draft)
    except OSError:  # a file system without links
        _write_new(draft, data, disk)
    disk.rename(draft, backup)


def _write_new(path: str, data: bytes, disk: Disk) -> None:
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise WriteFailed(path, f"cannot create: {error.strerror}") from error
    try:
        disk.write(descriptor, path, 0, data)
        disk.sync_file(descriptor, path)
    finally:
        os.close(descriptor)


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


class _TableFile:
    """One table: its entries in memory, its file, and whether they differ."""

    path: ClassVar[str]
    entries_member: ClassVar[str]
    is_versioned: ClassVar[bool] = False
    """Whether Java of every version keeps a data version in it."""

    def __init__(self, root: str, disk: Disk, *, interval_ms: int = 0) -> None:
        self.is_dirty = False
        self._root = root
        self._disk = disk
        self._interval_ms = interval_ms
        self._saved_ms: int | None = None
        self._members: Table = {}
        self._version = DataVersion(0, 0)

    @classmethod
    def load(cls, root: str, disk: Disk, *, interval_ms: int = 0) -> Self:
        """Return the table of a store; empty if it has none.

        Args:
            root: Folder of the store.
            disk: What ``save`` writes through.
            interval_ms: ``step`` writes no more often.

        Raises:
            CorruptRecord: Neither the file nor its backup is such a table.
            StoreUnavailable: There is no such folder.
        """
        table = cls(root, disk, interval_ms=interval_ms)
        members = config_tables.load(open_folder(root), cls.path) or {}
        version = config_tables.member(members, "dataVersion", cls.path)
        entries = config_tables.member(members, cls.entries_member, cls.path)
        with config_tables.expected_kind(cls.path):
            counter, timestamp_ms = version.get("counter", 0), version.get("timestamp", 0)
            table._version = DataVersion(int(counter), int(timestamp_ms))
            table._decode(entries)
        table._members = members
        return table

    @property
    def version(self) -> DataVersion:
        """The table's version; counter 0 if it has none."""
        return self._version

    def step(self, now_ms: int) -> bool:
        """Save the table if that is due; return whether it was. Raises as ``save``."""
        if not self.is_dirty:
            return False
        # A clock that was set back must not keep the table from being saved.
        if self._saved_ms is not None and 0 <= now_ms - self._saved_ms < self._interval_ms:
            return False
        self.save(now_ms)
        return True

    def save(self, now_ms: int) -> None:
        """Write the table, whether it is dirty or not.

        Raises:
            WriteFailed: It stays dirty.
        """
        has_version = self.is_versioned or "dataVersion" in self._members
        if self.is_dirty and not self.is_versioned and has_version:
            self._bump(now_ms)
        members = {**self._members, self.entries_member: self._encode()}
        if has_version:
            old = config_tables.member(self._members, "dataVersion", self.path)
            counter, timestamp_ms = self._version.counter, self._version.timestamp_ms
            members["dataVersion"] = {**old, "counter": counter, "timestamp": timestamp_ms}
        save(self._root, self.path, members, self._disk)
        self.is_dirty = False
        self._saved_ms = now_ms

    def touch(self, now_ms: int) -> None:
        """Make the table newer: what is told with it has changed, though no entry has."""
        self._changed(now_ms)

    def _changed(self, now_ms: int) -> None:
        self.is_dirty = True
        self._bump(now_ms)

    def _bump(self, now_ms: int) -> None:
        self._version = DataVersion(self._version.counter + 1, now_ms)

    def _decode(self, entries: Table) -> None:
        raise NotImplementedError

    def _encode(self) -> Table:
        raise NotImplementedError


class _Named(Protocol):
    """An entry that knows its name."""

    @property
    def name(self) -> str: ...


_Entry = TypeVar("_Entry", bound=_Named)


class _NamedTable(_TableFile, Generic[_Entry]):
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
            self._changed(now_ms)

    def delete(self, name: str, now_ms: int) -> bool:
        """Remove an entry; return whether it was there."""
        if self._entries.pop(name, None) is None:
            return False
        del self._stored[name]
        self._changed(now_ms)
        return True

    def _decode(self, entries: Table) -> None:
        self._stored = entries
        self._entries = {name: self._entry(name, value) for name, value in entries.items()}

    def _encode(self) -> Table:
        return self._stored

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
        return _group_entry(entry)


class ConsumerOffsetTable(_TableFile):
    """consumerOffset.json: how far each group has read each queue."""

    path = paths.CONSUMER_OFFSETS
    entries_member = "offsetTable"

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
        """Yield every consumer offset."""
        for (topic, group), queues in self._queues.items():
            for queue_id, consumer_offset in queues.items():
                yield ConsumerOffset(topic, group, queue_id, consumer_offset)

    def put(self, topic: str, group: str, queue_id: int, consumer_offset: int) -> None:
        """Set how far a group has read a queue; back is allowed."""
        self._queues.setdefault((topic, group), {})[queue_id] = consumer_offset
        self.is_dirty = True

    def delete(self, *, topic: str | None = None, group: str | None = None) -> bool:
        """Remove what is kept of a topic, of a group, or of both; return whether there was any."""
        assert topic is not None or group is not None, "delete everything is no request"
        doomed = [
            (one, other)
            for one, other in self._queues
            if topic in (None, one) and group in (None, other)
        ]
        for key in doomed:
            del self._queues[key]
        self.is_dirty |= bool(doomed)
        return bool(doomed)

    def _decode(self, entries: Table) -> None:
        self._queues: dict[tuple[str, str], dict[int, int]] = {}
        for key, queues in entries.items():
            topic, _, group = key.partition(GROUP_SEPARATOR)
            offsets = {int(queue_id): int(value) for queue_id, value in queues.items()}
            self._queues[topic, group] = offsets

    def _encode(self) -> Table:
        return {
            f"{topic}{GROUP_SEPARATOR}{group}": {str(one): value for one, value in queues.items()}
            for (topic, group), queues in self._queues.items()
        }


class DelayOffsetTable(_TableFile):
    """delayOffset.json: how far each delay level has delivered its schedule queue."""

    path = paths.DELAY_OFFSETS
    entries_member = "offsetTable"

    def get(self, level: int) -> int | None:
        """Return the queue offset that a level delivers next, or None."""
        return self._offsets.get(level)

    def all(self) -> dict[int, int]:
        """Return level -> queue offset, in a dictionary of the caller's."""
        return dict(self._offsets)

    def put(self, level: int, queue_offset: int) -> None:
        """Set how far a level has delivered; level 1 is the first."""
        self._offsets[level] = queue_offset
        self.is_dirty = True

    def _decode(self, entries: Table) -> None:
        self._offsets = {int(level): int(value) for level, value in entries.items()}

    def _encode(self) -> Table:
        return {str(level): value for level, value in self._offsets.items()}


class ConsumerFilterTable(_TableFile):
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

    def put(self, one: ConsumerFilter) -> None:
        """Add or replace a filter."""
        stored = self._stored.setdefault((one.topic, one.group), {})
        bloom = {**stored.get("bloomFilterData", {})}
        bloom |= {"bitNum": one.bloom_bits, "bitPos": list(one.bloom_positions)}
        stored |= {**_filter_entry(one), "bloomFilterData": bloom}
        self._filters.setdefault(one.topic, {})[one.group] = one
        self.is_dirty = True

    def delete(self, topic: str, group: str) -> bool:
        """Remove a filter; return whether it was there."""
        groups = self._filters.get(topic, {})
        if groups.pop(group, None) is None:
            return False
        if not groups:
            del self._filters[topic]
        del self._stored[topic, group]
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

    def _encode(self) -> Table:
        topics: Table = {}
        for topic, groups in self._filters.items():
            data = {group: self._stored[topic, group] for group in groups}
            known = self._topics.get(topic, {})
            topics[topic] = {**known, "topic": topic, "groupFilterData": data}
        return topics


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
    return SubscriptionGroup(name=name, **settings)


def _group_entry(group: SubscriptionGroup) -> Table:
    names = {**_GROUP_FLAGS, **_GROUP_NUMBERS}
    return {"groupName": group.name, **{key: getattr(group, one) for key, one in names.items()}}


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
