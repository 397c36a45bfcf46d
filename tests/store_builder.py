"""Small store folders for tests, in the layout of a RocketMQ broker.

``reput.format`` encodes records and units; the layout of the files, and the whole index, are
implemented here from RocketMQ's rules and share no code with ``reput.store``.
``tests/unit/store/test_reader.py`` proves that the files equal a broker's: it builds the files of
golden stores from their messages.

    built = store_builder.build(tmp_path / "store", [
        store_builder.message("TopicA", b"one", keys="k1", tags="TagA"),
        store_builder.message("TopicB", b"two", queue_id=3),
    ])
    reader = StoreReader.open(str(built.root))
    assert list(reader.messages()) == built.messages
"""

import json
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from reput.errors import NotInStore
from reput.format import (
    body as bodies,
    checkpoint_page,
    cq_unit,
    message as record,
    properties as props,
    sys_flag as flags,
)
from reput.format.message import Host, StoredMessage
from reput.store.files.files import Entry

START_MS = 1_700_000_000_000
STEP_MS = 7
HOST = Host(bytes([192, 0, 2, 1]), 10911)
HOST_V6 = Host(bytes.fromhex("fd000000000000000000000000000002"), 10911)

BLANK_MIN_BYTES = 8
PRE_BLANK = (0, 0x7FFFFFFF, 0)
INDEX_HEADER = struct.Struct(">qqqqii")
INDEX_SLOT = struct.Struct(">i")
INDEX_ENTRY = struct.Struct(">iqii")
INT_MAX = 0x7FFFFFFF


def message(
    topic: str = "TopicA",
    body: bytes = b"hello",
    *,
    queue_id: int = 0,
    tags: str | None = None,
    keys: str | None = None,
    unique_key: str | None = None,
    properties: Mapping[str, str] | None = None,
    store_timestamp: int = 0,
    **fields: Any,
) -> StoredMessage:
    """Return a message without its place: ``place`` sets offsets, sizes and checksums.

    A store time of 0 means a step after the previous message. ``fields`` are further fields of
    ``StoredMessage``.
    """
    named = {props.UNIQ_KEY: unique_key, props.KEYS: keys, props.TAGS: tags, **(properties or {})}
    known = {name: value for name, value in named.items() if value is not None}
    sys_flag = fields.pop("sys_flag", 0)
    born_host = fields.pop("born_host", HOST)
    store_host = fields.pop("store_host", HOST)
    sys_flag |= flags.BORN_HOST_V6 if born_host.is_v6 else 0
    sys_flag |= flags.STORE_HOST_V6 if store_host.is_v6 else 0
    return StoredMessage(
        topic=topic,
        body=body,
        queue_id=queue_id,
        queue_offset=0,
        physical_offset=0,
        born_timestamp=fields.pop("born_timestamp", 0),
        born_host=born_host,
        store_timestamp=store_timestamp,
        store_host=store_host,
        sys_flag=sys_flag,
        property_bytes=fields.pop("property_bytes", props.encode(known)),
        properties=known,
        **fields,
    )


def messages(count: int, *, topics: int = 2, queues: int = 2) -> list[StoredMessage]:
    """Return plain messages of different lengths, with unique keys, own keys and a shared key."""
    return [
        message(
            f"Topic{'ABCDEFGH'[i % topics]}",
            bytes((i * 31 + j * 7) % 251 for j in range(i * 37 % 150)),
            queue_id=i // topics % queues,
            tags=f"Tag{i % 3}" if i % 4 else None,
            keys=f"key-{i} shared",
            unique_key=f"C0000201ABCD18B4AAC2{i:012X}",
        )
        for i in range(count)
    ]


# --- places -------------------------------------------------------------------


def place(
    messages: Iterable[StoredMessage],
    log_file_bytes: int,
    *,
    physical_offset: int = 0,
    queue_offsets: Mapping[tuple[str, int], int] | None = None,
    record_crc: bool = False,
) -> list[StoredMessage]:
    """Give messages their places in log and queues, starting at the given ones.

    A record needs eight bytes more than its size in a file, for the blank. Prepared and rolled-back
    messages get queue offset 0 and take none. ``record_crc`` gives each its ``__CRC32#``.
    """
    next_offsets = dict(queue_offsets or {})
    placed: list[StoredMessage] = []
    newest_ms = START_MS - STEP_MS
    for stored in messages:
        is_queued = flags.is_queued(stored.sys_flag)
        queue = (stored.topic, stored.queue_id)
        store_timestamp = stored.store_timestamp or newest_ms + STEP_MS
        newest_ms = store_timestamp
        draft = replace(
            stored,
            physical_offset=physical_offset,
            queue_offset=next_offsets.get(queue, 0) if is_queued else 0,
            store_timestamp=store_timestamp,
            born_timestamp=stored.born_timestamp or store_timestamp - 2,
            body_crc=bodies.crc(stored.body),
        )
        size = len(record.encode(draft)) + record_crc * record.CRC_PROPERTY_BYTES
        left = log_file_bytes - physical_offset % log_file_bytes
        if size + BLANK_MIN_BYTES > left:
            physical_offset += left
        if size + BLANK_MIN_BYTES > log_file_bytes:
            raise ValueError(f"a record of {size} bytes does not fit a file of {log_file_bytes}")
        data = record.encode(replace(draft, physical_offset=physical_offset))
        placed.append(record.decode(record.append_crc_property(data) if record_crc else data))
        physical_offset += size
        if is_queued:
            next_offsets[queue] = draft.queue_offset + 1
    return placed


def log_files(placed: Sequence[StoredMessage], log_file_bytes: int) -> dict[int, bytearray]:
    """Return the files of the log by physical offset, with blanks at the ends of full files."""
    files: dict[int, bytearray] = {}
    end = 0
    for stored in placed:
        start = stored.physical_offset - stored.physical_offset % log_file_bytes
        if start not in files:
            if start - log_file_bytes in files:
                left = start - end
                blank = record.pack_blank(left)
                position = log_file_bytes - left
                files[start - log_file_bytes][position : position + len(blank)] = blank
            files[start] = bytearray(log_file_bytes)
        position = stored.physical_offset - start
        files[start][position : position + stored.store_size] = record.encode(stored)
        end = stored.physical_offset + stored.store_size
    return files


QueueKey = tuple[str, int]


def queue_files(
    placed: Sequence[StoredMessage], queue_file_units: int
) -> dict[QueueKey, dict[int, bytearray]]:
    """Return the files of each consume queue by their first byte."""
    queues: dict[QueueKey, dict[int, bytearray]] = {}
    file_bytes = queue_file_units * cq_unit.SIZE
    for stored in placed:
        if not flags.is_queued(stored.sys_flag):
            continue
        position = stored.queue_offset * cq_unit.SIZE
        start = position - position % file_bytes
        files = queues.setdefault((stored.topic, stored.queue_id), {})
        if start not in files:
            blanks = 0 if files else (position - start) // cq_unit.SIZE
            blank = struct.pack(">qiq", *PRE_BLANK)
            files[start] = bytearray((blank * blanks).ljust(file_bytes, b"\0"))
        unit = cq_unit.Unit(
            stored.physical_offset, stored.store_size, cq_unit.tags_code(stored.tags)
        )
        files[start][position - start : position - start + cq_unit.SIZE] = cq_unit.pack(unit)
    return queues


# --- the index ------------------------------------------------------------


def java_hash(text: str) -> int:
    """Return ``String.hashCode``."""
    units = struct.unpack(f">{len(text.encode('utf-16-be')) // 2}H", text.encode("utf-16-be"))
    value = 0
    for unit in units:
        value = (value * 31 + unit) % (1 << 32)
    return value - (1 << 32) if value >= 1 << 31 else value


def index_hash(text: str) -> int:
    """Return ``IndexFile.indexKeyHashMethod``: an absolute value, 0 for Integer.MIN_VALUE."""
    return max(abs(java_hash(text)) % (1 << 31), 0)


class IndexFile:
    """An index file that is filled like Java's ``IndexFile.putKey`` does.

    Args:
        slots: ``maxHashSlotNum``.
        entries: ``maxIndexNum``; entry 0 is never used.
        before: The full file before this one, at whose end this one starts.
    """

    def __init__(self, slots: int, entries: int, before: "IndexFile | None" = None) -> None:
        self.slots = slots
        self.entries = entries
        self.slot_values = [0] * slots
        self.entry_values = [(0, 0, 0, 0)] * entries
        self.begin_ms = self.end_ms = before.end_ms if before else 0
        self.begin_offset = self.end_offset = before.end_offset if before else 0
        self.slots_used = 0
        self.next_entry = 1

    @property
    def is_full(self) -> bool:
        return self.next_entry >= self.entries

    def put(self, key: str, physical_offset: int, store_ms: int, *, counts_puts: bool) -> None:
        """Add an entry. 4.5 counts every put as a slot in use (``counts_puts``)."""
        assert not self.is_full
        key_hash = index_hash(key)
        slot = key_hash % self.slots
        previous = self.slot_values[slot]
        seconds = (store_ms - self.begin_ms) // 1000
        if self.begin_ms <= 0 or seconds < 0:
            seconds = 0
        self.entry_values[self.next_entry] = (
            key_hash,
            physical_offset,
            min(seconds, INT_MAX),
            previous,
        )
        self.slot_values[slot] = self.next_entry
        if self.next_entry <= 1:
            self.begin_ms, self.begin_offset = store_ms, physical_offset
        if counts_puts or previous == 0:
            self.slots_used += 1
        self.next_entry += 1
        self.end_ms, self.end_offset = store_ms, physical_offset

    @property
    def name(self) -> str:
        """Creation time of the file; here the time of its first entry."""
        time = datetime.fromtimestamp(self.begin_ms / 1000, UTC)
        return f"{time:%Y%m%d%H%M%S}{self.begin_ms % 1000:03d}"

    def pack(self) -> bytes:
        """Return the bytes of the file."""
        # The file contains the count from the first put on.
        count = self.next_entry if self.next_entry > 1 else 0
        return b"".join(
            (
                INDEX_HEADER.pack(
                    self.begin_ms,
                    self.end_ms,
                    self.begin_offset,
                    self.end_offset,
                    self.slots_used,
                    count,
                ),
                *(INDEX_SLOT.pack(value) for value in self.slot_values),
                *(INDEX_ENTRY.pack(*values) for values in self.entry_values),
            )
        )


def index_keys(stored: StoredMessage, *, tag_keys: bool = False) -> list[str]:
    """Return the keys of a message in the index: unique key, keys and, from 5.4 on, its tags."""
    if flags.transaction_type(stored.sys_flag) == flags.TRANSACTION_ROLLBACK:
        return []
    keys = [stored.properties.get(props.UNIQ_KEY, "")]
    keys += stored.properties.get(props.KEYS, "").split(" ")
    tags = stored.properties.get(props.TAGS)
    if tag_keys and tags:
        keys.append(f"T#{tags}")
    return [f"{stored.topic}#{key}" for key in keys if key]


def index_files(
    placed: Iterable[StoredMessage],
    slots: int,
    entries: int,
    *,
    tag_keys: bool = False,
    counts_puts: bool = False,
) -> list[IndexFile]:
    """Return the index files of a log, oldest first."""
    files: list[IndexFile] = []
    for stored in placed:
        for key in index_keys(stored, tag_keys=tag_keys):
            if not files or files[-1].is_full:
                files.append(IndexFile(slots, entries, files[-1] if files else None))
            files[-1].put(
                key, stored.physical_offset, stored.store_timestamp, counts_puts=counts_puts
            )
    return files


# --- the folder -----------------------------------------------------------


@dataclass(frozen=True)
class Built:
    """A store that was built."""

    root: Path
    messages: list[StoredMessage]
    """Messages in log order, with their places."""
    log_file_bytes: int
    queue_file_units: int

    @property
    def end_offset(self) -> int:
        """Physical offset after the last record."""
        last = self.messages[-1]
        return last.physical_offset + last.store_size

    def log_file(self, number: int = -1) -> Path:
        """Return a file of the log by its number."""
        return sorted((self.root / "commitlog").iterdir())[number]

    def queue_file(self, topic: str, queue_id: int = 0, number: int = -1) -> Path:
        """Return a file of a queue by its number."""
        return sorted((self.root / "consumequeue" / topic / str(queue_id)).iterdir())[number]

    def index_file(self, number: int = -1) -> Path:
        """Return a file of the index by its number."""
        return sorted((self.root / "index").iterdir())[number]

    def queue(self, topic: str, queue_id: int = 0) -> list[StoredMessage]:
        """Return the messages of a queue."""
        return [
            stored
            for stored in self.messages
            if (stored.topic, stored.queue_id) == (topic, queue_id)
            and flags.is_queued(stored.sys_flag)
        ]


def build(
    root: Path,
    messages: Iterable[StoredMessage],
    *,
    log_file_bytes: int = 4096,
    queue_file_units: int = 20,
    slots: int = 16,
    entries: int = 64,
    tag_keys: bool = False,
    record_crc: bool = False,
    physical_offset: int = 0,
    queue_offsets: Mapping[QueueKey, int] | None = None,
    is_crashed: bool = False,
    has_next_file: bool = False,
) -> Built:
    """Write a store folder as a stopped broker leaves it (or a crashed one, ``is_crashed``).

    Args:
        root: The folder to create.
        messages: The messages in order.
        log_file_bytes: ``mappedFileSizeCommitLog``.
        queue_file_units: ``mappedFileSizeConsumeQueue`` in units.
        slots: ``maxHashSlotNum``.
        entries: ``maxIndexNum``.
        tag_keys: Index tags too, as 5.4 and later do.
        record_crc: End each record with ``__CRC32#`` (``enabledAppendPropCRC``).
        physical_offset: Start of the log; a multiple of ``log_file_bytes``.
        queue_offsets: Starts of queues that do not start at 0.
        is_crashed: Leave the file ``abort``.
        has_next_file: Leave the log file that a running broker has created in advance.
    """
    placed = place(
        messages,
        log_file_bytes,
        physical_offset=physical_offset,
        queue_offsets=queue_offsets,
        record_crc=record_crc,
    )
    files = log_files(placed, log_file_bytes)
    if has_next_file:
        files[max(files, default=physical_offset - log_file_bytes) + log_file_bytes] = bytearray(
            log_file_bytes
        )
    for start, data in files.items():
        _write(root / "commitlog" / f"{start:020d}", data)
    for (topic, queue_id), parts in queue_files(placed, queue_file_units).items():
        for start, data in parts.items():
            _write(root / "consumequeue" / topic / str(queue_id) / f"{start:020d}", data)
    for file in index_files(placed, slots, entries, tag_keys=tag_keys):
        _write(root / "index" / file.name, file.pack())
    newest_ms = placed[-1].store_timestamp if placed else 0
    page = checkpoint_page.Checkpoint(newest_ms, newest_ms)
    _write(root / "checkpoint", checkpoint_page.pack(page))
    _write(root / "lock", b"lock")
    if is_crashed:
        _write(root / "abort", b"")
    _write_tables(root, placed)
    return Built(root, placed, log_file_bytes, queue_file_units)


def _write(path: Path, data: bytes | bytearray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    assert not path.exists(), f"{path} would be written twice: spread the store times"
    path.write_bytes(data)


def _write_tables(root: Path, placed: Sequence[StoredMessage]) -> None:
    queues: dict[str, int] = {}
    for stored in placed:
        queues[stored.topic] = max(queues.get(stored.topic, 0), stored.queue_id + 1)
    topics = {
        topic: {
            "order": False,
            "perm": 6,
            "readQueueNums": count,
            "topicFilterType": "SINGLE_TAG",
            "topicName": topic,
            "topicSysFlag": 0,
            "writeQueueNums": count,
        }
        for topic, count in queues.items()
    }
    version = {"counter": len(topics), "timestamp": START_MS}
    tables = {
        "topics.json": {"dataVersion": version, "topicConfigTable": topics},
        "consumerOffset.json": {"offsetTable": {}},
        "subscriptionGroup.json": {"dataVersion": version, "subscriptionGroupTable": {}},
        "delayOffset.json": {"offsetTable": {}},
    }
    for name, table in tables.items():
        _write(root / "config" / name, json.dumps(table, indent="\t").encode())


# --- in memory ------------------------------------------------------------


class MemoryFolder:
    """A store folder in memory, for ``StoreReader(folder)``: thousands of damaged copies are cheap.

    Args:
        files: Path below the store's root -> bytes, read as they are at each read.
        window_bytes: Number of bytes that a scan reads at once.
    """

    location = "memory"
    gap_bytes_max = 1 << 20
    reads_at_once = 1

    def __init__(self, files: Mapping[str, bytes | bytearray], window_bytes: int = 1 << 20) -> None:
        self.files = dict(files)
        self.window_bytes = window_bytes
        self.holder: int | None = None
        self._folders: dict[str, set[str]] = {}
        for path in self.files:
            while path:
                folder, _, name = path.rpartition("/")
                self._folders.setdefault(folder, set()).add(name)
                path = folder

    @classmethod
    def load(cls, root: Path, window_bytes: int = 1 << 20) -> "MemoryFolder":
        """Return the contents of a folder on disk."""
        paths = (path for path in sorted(root.rglob("*")) if path.is_file())
        files = {str(path.relative_to(root)): path.read_bytes() for path in paths}
        return cls(files, window_bytes)

    def changed(self, path: str, data: bytes | bytearray | None) -> "MemoryFolder":
        """Return a copy in which a file is replaced, or (None) missing."""
        files = {**self.files, path: data} if data is not None else dict(self.files)
        if data is None:
            del files[path]
        return MemoryFolder(files, self.window_bytes)  # type: ignore[arg-type]

    def entries(self, path: str) -> list[Entry]:
        names = sorted(self._folders.get(path, ()))
        entries = (self.entry(f"{path}/{name}" if path else name) for name in names)
        return [entry for entry in entries if entry is not None]

    def entry(self, path: str) -> Entry | None:
        name = path.rsplit("/", 1)[-1]
        if path in self.files:
            return Entry(name, len(self.files[path]), START_MS, False)
        return Entry(name, 0, START_MS, True) if path in self._folders else None

    def read(self, path: str, start: int = 0, length: int | None = None) -> bytes:
        if path not in self.files:
            raise NotInStore(f"{path} is gone")
        stop = None if length is None else start + length
        return bytes(self.files[path][start:stop])

    def lock_holder(self, path: str) -> int | None:
        return self.holder
