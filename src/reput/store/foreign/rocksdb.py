"""The queues and tables that a broker of RocketMQ 5.x keeps in RocksDB, as files of a plain store.

The log is a plain one. ``RocksFolder`` shows the rest as files of the plain layout, which are made
as they are read: a unit of a queue is the first 20 bytes of a value, a table is the JSON of its
entries.

    consumequeue        key: length of the topic, 1, topic, 1, queue id, 1, queue offset
                        value: unit of 20 bytes, store time
                        offset: length, 1, topic, 1, "max" or "min", 1, queue id
                        -> physical offset, queue offset of that message
    config/topics, ...  name -> JSON; kvDataVersion, forbidden: a version, forbidden topics

A database is opened as a folder of links beside it: opening writes files.
Source: rocketmq 5.5.0 ``RocksDBConsumeQueueTable``, ``RocksDBConsumeQueueOffsetTable``,
``RocksDBConfigManager``; 5.3.3 has the same.
"""

import contextlib
import json
import shutil
import struct
import tempfile
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from reput.errors import CorruptRecord, StoreUnavailable
from reput.extras import ExtraMissing
from reput.format import cq_unit
from reput.store.files import paths
from reput.store.files.files import Bytes, Entry, Folder, data_bytes, is_remote, local_path
from reput.store.reader import rocksdb_tables

QUEUE_FILE_BYTES = 300_000 * cq_unit.SIZE
"""Size of the files in which a queue is shown: RocketMQ's default."""
_QUEUES = (paths.CONSUME_QUEUE, "consumequeue_rocksdb")
_OFFSETS, _VERSION, _FORBIDDEN = "offset", "kvDataVersion", "forbidden"
_SINGLE = f"{paths.CONFIG}/metadata"
_MAX, _MIN = b"max", b"min"
_LENGTH, _QUEUE_ID = struct.Struct(">i"), struct.Struct(">i")
_LONG, _PLACE = struct.Struct(">q"), struct.Struct(">qq")
_SEPARATOR = b"\x01"
_BLANK_UNIT = cq_unit.UNIT.pack(0, cq_unit.PRE_BLANK_SIZE, 0)

_MEMBERS = {
    paths.TOPICS: ("topicConfigTable", "topic", "topicVersion"),
    paths.SUBSCRIPTION_GROUPS: (
        "subscriptionGroupTable",
        "subscriptionGroup",
        "subscriptionGroupVersion",
    ),
    paths.CONSUMER_OFFSETS: ("offsetTable", "consumerOffset", "consumerOffsetVersion"),
}
"""File of a table -> its member with the entries; column families of entries and version, where
all tables are in one database (``useSingleRocksDBForAllConfigs``)."""


def queue_database(folder: Folder) -> str | None:
    """Return the path of the database with a store's queues; None if these are files."""
    for path in _QUEUES:
        entry = folder.entry(f"{path}/CURRENT")
        if entry is not None and not entry.is_folder:
            return path
    return None


def is_used(folder: Folder) -> bool:
    """Return whether a store keeps queues, or tables that are in use, in RocksDB."""
    singles = (folder.entry(path) is not None for path in (_SINGLE, paths.ROCKSDB_SECOND_FORM))
    return (
        queue_database(folder) is not None or any(singles) or any(rocksdb_tables(folder).values())
    )


class Database:
    """A database of a stopped broker, for reading; close it, or use it as a context.

    Args:
        location: Store of the database, a local folder.
        path: Path of the database in it.

    Raises:
        ExtraMissing: The package ``rocksdict`` is not installed.
        StoreUnavailable: It cannot be opened.
    """

    def __init__(self, location: str, path: str) -> None:
        try:
            import rocksdict
        except ModuleNotFoundError:
            raise ExtraMissing(f"{location}/{path}", "rocksdb", "rocksdict") from None
        if is_remote(location):
            raise StoreUnavailable(
                f"{location} is a URI: copy the store, RocksDB needs local files"
            )
        links = tempfile.mkdtemp(prefix="reput-rocksdb-")
        # Readers are not closed: the links are deleted with the object, or at the process's end.
        self._delete_links = weakref.finalize(self, shutil.rmtree, links, ignore_errors=True)
        source = (local_path(location) / path).absolute()
        for file in source.iterdir():
            if file.name != "LOCK" and not file.name.startswith("LOG"):
                Path(links, file.name).symlink_to(file)
        try:
            self._families = rocksdict.Rdict.list_cf(links)
            options = rocksdict.Options(raw_mode=True)
            options.create_if_missing(False)
            self._database = rocksdict.Rdict(
                links,
                options,
                column_families={name: rocksdict.Options(raw_mode=True) for name in self._families},
                access_type=rocksdict.AccessType.read_only(),
            )
        except Exception as error:
            self._delete_links()
            raise StoreUnavailable(
                f"{path} of {location} cannot be opened as a RocksDB: {error}"
            ) from error

    def items(self, family: str = "default", start: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        """Yield keys and values from a key on; nothing if there is no such column family.

        Raises:
            StoreUnavailable: The database is damaged.
        """
        if family not in self._families:
            return
        try:
            yield from self._database.get_column_family(family).items(from_key=start or None)
        except Exception as error:
            raise StoreUnavailable(f"column family {family} cannot be read: {error}") from error

    def close(self) -> None:
        """Close the database, and delete the links."""
        self._database.close()
        self._delete_links()

    def __enter__(self) -> "Database":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class RocksFolder:
    """A store's folder with its queues and tables as files.

    Args:
        folder: The store; a local folder.

    Raises:
        ExtraMissing: The package ``rocksdict`` is not installed.
        StoreUnavailable: A database cannot be read, or has a form that is not known here.
    """

    def __init__(self, folder: Folder) -> None:
        self._inner = folder
        self.location = folder.location
        self.window_bytes = folder.window_bytes
        self.gap_bytes_max = folder.gap_bytes_max
        self.reads_at_once = 1
        if folder.entry(paths.ROCKSDB_SECOND_FORM) is not None:
            raise StoreUnavailable(
                f"{folder.location} has its tables in {paths.ROCKSDB_SECOND_FORM} "
                "(configManagerVersion=v2); allowed are those of v1: config/topics and others, or "
                "config/metadata"
            )
        self._tables = dict(self._read_tables())
        self._queues: dict[tuple[str, int], tuple[int, int]] = {}
        """Topic and queue id -> first queue offset, and the one after the last."""
        path = queue_database(folder)
        self._database = None if path is None else Database(folder.location, path)
        if self._database is not None:
            self._queues = _extents(self._database)
        self._shown = _tree(self._queues)
        """Folder below ``consumequeue``, or this one -> names in it."""

    # Tables -----------------------------------------------------------------------------------

    def _read_tables(self) -> Iterator[tuple[str, bytes]]:
        location = self.location
        if self._inner.entry(_SINGLE) is not None:
            with Database(location, _SINGLE) as database:
                for file, (_, family, version) in _MEMBERS.items():
                    yield file, _table(database, file, family, version)
            return
        for path, is_in_use in rocksdb_tables(self._inner).items():
            if is_in_use:
                file = paths.ROCKSDB_TABLES[path]
                with Database(location, path) as database:
                    yield file, _table(database, file, "default", _VERSION)

    # The folder -------------------------------------------------------------------------------

    def entries(self, path: str) -> list[Entry]:
        """Return the contents of a folder, sorted by name."""
        if self._database is not None and path.partition("/")[0] == paths.CONSUME_QUEUE:
            names = self._shown.get(path, [])
            is_file = path.count("/") == 2
            size = QUEUE_FILE_BYTES if is_file else 0
            return [Entry(name, size, 0, not is_file) for name in names]
        entries = self._inner.entries(path)
        if path == paths.CONFIG:
            hidden = {*paths.ROCKSDB_TABLES, _SINGLE, *self._tables}
            entries = [entry for entry in entries if f"{path}/{entry.name}" not in hidden]
            entries += [
                Entry(file.rpartition("/")[2], len(data), 0, is_folder=False)
                for file, data in self._tables.items()
            ]
        return sorted(entries, key=lambda entry: entry.name)

    def entry(self, path: str) -> Entry | None:
        """Return a file or folder; None if it does not exist."""
        name = path.rpartition("/")[2]
        if path in self._tables:
            return Entry(name, len(self._tables[path]), 0, is_folder=False)
        if self._database is not None and path.startswith(f"{paths.CONSUME_QUEUE}/"):
            beside = self.entries(path.rpartition("/")[0])
            return next((entry for entry in beside if entry.name == name), None)
        return None if path in paths.ROCKSDB_TABLES else self._inner.entry(path)

    def read(self, path: str, start: int = 0, length: int | None = None) -> Bytes:
        """Return bytes of a file."""
        if path in self._tables:
            data = self._tables[path]
            return data[start : len(data) if length is None else start + length]
        if self._database is not None and path.startswith(f"{paths.CONSUME_QUEUE}/"):
            _, topic, queue_id, name = path.split("/")
            stop = QUEUE_FILE_BYTES if length is None else min(start + length, QUEUE_FILE_BYTES)
            first = paths.parse_offset_name(name) or 0
            return self._units(topic, int(queue_id), first + start, first + max(start, stop))
        return self._inner.read(path, start, length)

    def lock_holder(self, path: str) -> int | None:
        """Return the process that holds a file's lock; None without one."""
        return self._inner.lock_holder(path)

    def data_bytes(self, path: str, size: int) -> int:
        """Return the end of the data in a file, as far as it is known without a read."""
        is_own = path in self._tables or path.startswith(f"{paths.CONSUME_QUEUE}/")
        return size if is_own else data_bytes(self._inner, path, size)

    def _units(self, topic: str, queue_id: int, start: int, stop: int) -> bytes:
        """Return the bytes ``[start, stop)`` of a queue's units; ``start`` may be inside of one."""
        assert self._database is not None
        first, end = self._queues[topic, queue_id]
        low, high = start // cq_unit.SIZE, -(-stop // cq_unit.SIZE)
        units = bytearray((high - low) * cq_unit.SIZE)
        blanks = max(0, min(first, high) - low)
        units[: blanks * cq_unit.SIZE] = _BLANK_UNIT * blanks
        if low < end and first < high:
            prefix = _prefix(topic) + _QUEUE_ID.pack(queue_id) + _SEPARATOR
            for key, value in self._database.items(start=prefix + _LONG.pack(max(low, first))):
                if not key.startswith(prefix) or len(key) != len(prefix) + _LONG.size:
                    break
                (number,) = _LONG.unpack_from(key, len(prefix))
                if number >= min(high, end):
                    break
                position = (number - low) * cq_unit.SIZE
                units[position : position + cq_unit.SIZE] = value[: cq_unit.SIZE]
        skipped = start - low * cq_unit.SIZE
        return bytes(units[skipped : skipped + stop - start])


def _prefix(topic: str) -> bytes:
    name = topic.encode()
    return _LENGTH.pack(len(name)) + _SEPARATOR + name + _SEPARATOR


def _extents(database: Database) -> dict[tuple[str, int], tuple[int, int]]:
    """Return the extent of each queue that has or had messages."""
    firsts: dict[tuple[str, int], int] = {}
    ends: dict[tuple[str, int], int] = {}
    for key, value in database.items(_OFFSETS):
        (length,) = _LENGTH.unpack_from(key)
        start = _LENGTH.size + 1
        kind = key[start + length + 1 : start + length + 4]
        if kind not in (_MAX, _MIN) or len(value) < _PLACE.size:
            continue  # the physical offset up to which queues are made
        topic = key[start : start + length].decode()
        (queue_id,) = _QUEUE_ID.unpack_from(key, start + length + 5)
        _, number = _PLACE.unpack_from(value)
        if kind == _MAX:
            ends[topic, queue_id] = number + 1
        else:
            firsts[topic, queue_id] = number
    return {key: (min(firsts.get(key, 0), end), end) for key, end in sorted(ends.items())}


def _tree(queues: dict[tuple[str, int], tuple[int, int]]) -> dict[str, list[str]]:
    """Return the names in each folder of the queues."""
    names: dict[str, list[str]] = {}
    for (topic, queue_id), (first, end) in queues.items():
        for folder, name in (
            (paths.CONSUME_QUEUE, topic),
            (f"{paths.CONSUME_QUEUE}/{topic}", str(queue_id)),
        ):
            known = names.setdefault(folder, [])
            if name not in known[-1:]:
                known.append(name)
        folder = paths.queue_folder(topic, queue_id)
        begin = first * cq_unit.SIZE // QUEUE_FILE_BYTES * QUEUE_FILE_BYTES
        stop = max(end * cq_unit.SIZE, begin + 1)
        names[folder] = [paths.offset_name(start) for start in range(begin, stop, QUEUE_FILE_BYTES)]
    return names


def _table(database: Database, file: str, family: str, version: str) -> bytes:
    """Return a table as the JSON of its file.

    Raises:
        CorruptRecord: An entry is no JSON.
    """
    member = _MEMBERS[file][0]
    table: dict[str, Any] = {member: {}}
    for key, value in database.items(family):
        entry = _json(value, file, key)
        if file == paths.CONSUMER_OFFSETS:
            entry = entry["offsetTable"]
        table[member][key.decode()] = entry
    for _, value in database.items(version):
        with contextlib.suppress(CorruptRecord):
            table["dataVersion"] = _json(value, file, b"dataVersion")
    if file == paths.SUBSCRIPTION_GROUPS:
        forbidden = {
            key.decode(): _json(value, file, key) for key, value in database.items(_FORBIDDEN)
        }
        table["forbiddenTable"] = forbidden
    return json.dumps(table, ensure_ascii=False, indent=1).encode()


def _json(value: bytes, file: str, key: bytes) -> Any:
    try:
        return json.loads(value)
    except ValueError:
        reason = f"entry {key!r} of the table in RocksDB is no JSON"
        raise CorruptRecord(reason, file=file) from None
