"""Small store folders for tests, written the way a RocketMQ broker writes them.

Records and units are encoded by ``reput.format``; how they are laid out in files, and all of the
index, is written here anew from RocketMQ's rules and shares nothing with ``reput.store``. That the
files are the same as a broker's is shown by ``tests/unit/store/test_reader.py``, which builds the
files of golden stores from their messages.

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
from reput.store.files import Entry

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
    """A message to be placed: offsets, sizes and checksums are made by ``place``.

    A store time of 0 stands for one step after the message before. ``fields`` are more of
    ``StoredMessage``, as they are.
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
    """Plain messages of different lengths, with one key each, one they share, and unique keys."""
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


# --- where things stand ---------------------------------------------------


def place(
    messages: Iterable[StoredMessage],
    log_file_bytes: int,
    *,
    physical_offset: int = 0,
    queue_offsets: Mapping[tuple[str, int], int] | None = None,
    record_crc: bool = False,
) -> list[StoredMessage]:
    """Give messages their places in log and queues, from the given ones on.

    A record needs eight bytes more than its own in a file, for the blank. Prepared and rolled-back
    messages get queue offset 0 and take none. ``record_crc`` gives each its ``__CRC32#``.
    """
    next_offsets = dict(queue_offsets or {})
    placed: list[StoredMessage] = []
    newest_ms = START_MS - STEP_MS
    for one in messages:
        is_queued = flags.is_queued(one.sys_flag)
        queue = (one.topic, one.queue_id)
        store_timestamp = one.store_timestamp or newest_ms + STEP_MS
        newest_ms = store_timestamp
        draft = replace(
            one,
            physical_offset=physical_offset,
            queue_offset=next_offsets.get(queue, 0) if is_queued else 0,
            store_timestamp=store_timestamp,
            born_timestamp=one.born_timestamp or store_timestamp - 2,
            body_crc=bodies.crc(one.body),
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
    """The files of the log by the offset they start at, with blanks where a file did not do."""
    files: dict[int, bytearray] = {}
    end = 0
    for one in placed:
        start = one.physical_offset - one.physical_offset % log_file_bytes
        if start not in files:
            if start - log_file_bytes in files:
                left = start - end
                blank = record.pack_blank(left)
                at = log_file_bytes - left
                files[start - log_file_bytes][at : at + len(blank)] = blank
            files[start] = bytearray(log_file_bytes)
        at = one.physical_offset - start
        files[start][at : at + one.store_size] = record.encode(one)
        end = one.physical_offset + one.store_size
    return files


QueueKey = tuple[str, int]


def queue_files(
    placed: Sequence[StoredMessage], queue_file_units: int
) -> dict[QueueKey, dict[int, bytearray]]:
    """The files of each consume queue by the byte they start at."""
    queues: dict[QueueKey, dict[int, bytearray]] = {}
    file_bytes = queue_file_units * cq_unit.SIZE
    for one in placed:
        if not flags.is_queued(one.sys_flag):
            continue
        at = one.queue_offset * cq_unit.SIZE
        start = at - at % file_bytes
        files = queues.setdefault((one.topic, one.queue_id), {})
        if start not in files:
            blanks = 0 if files else (at - start) // cq_unit.SIZE
            blank = struct.pack(">qiq", *PRE_BLANK)
            files[start] = bytearray((blank * blanks).ljust(file_bytes, b"\0"))
        unit = cq_unit.Unit(one.physical_offset, one.store_size, cq_unit.tags_code(one.tags))
        files[start][at - start : at - start + cq_unit.SIZE] = cq_unit.pack(unit)
    return queues


# --- the index ------------------------------------------------------------


def java_hash(text: str) -> int:
    """``String.hashCode``."""
    units = struct.unpack(f">{len(text.encode('utf-16-be')) // 2}H", text.encode("utf-16-be"))
    value = 0
    for unit in units:
        value = (value * 31 + unit) % (1 << 32)
    return value - (1 << 32) if value >= 1 << 31 else value


def index_hash(text: str) -> int:
    """``IndexFile.indexKeyHashMethod``: the absolute, which Integer.MIN_VALUE does not have."""
    return max(abs(java_hash(text)) % (1 << 31), 0)


class IndexFile:
    """One index file, put to as ``IndexFile.putKey`` does.

    Args:
        slots: ``maxHashSlotNum``.
        entries: ``maxIndexNum``; entry 0 is never used.
        before: The file that is full, whose end this one starts from.
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
        """The time the file was made; here that of its first entry."""
        at = datetime.fromtimestamp(self.begin_ms / 1000, UTC)
        return f"{at:%Y%m%d%H%M%S}{self.begin_ms % 1000:03d}"

    def pack(self) -> bytes:
        """The bytes of the file."""
        # The count stands in the file from the first put on.
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


def index_keys(one: StoredMessage, *, tag_keys: bool = False) -> list[str]:
    """What a message is indexed under: unique key, keys and, from 5.4 on, its tags."""
    if flags.transaction_type(one.sys_flag) == flags.TRANSACTION_ROLLBACK:
        return []
    found = [one.properties.get(props.UNIQ_KEY, "")]
    found += one.properties.get(props.KEYS, "").split(" ")
    tags = one.properties.get(props.TAGS)
    if tag_keys and tags:
        found.append(f"T#{tags}")
    return [f"{one.topic}#{key}" for key in found if key]


def index_files(
    placed: Iterable[StoredMessage],
    slots: int,
    entries: int,
    *,
    tag_keys: bool = False,
    counts_puts: bool = False,
) -> list[IndexFile]:
    """The index files of a log, oldest first."""
    files: list[IndexFile] = []
    for one in placed:
        for key in index_keys(one, tag_keys=tag_keys):
            if not files or files[-1].is_full:
                files.append(IndexFile(slots, entries, files[-1] if files else None))
            files[-1].put(key, one.physical_offset, one.store_timestamp, counts_puts=counts_puts)
    return files


# --- the folder -----------------------------------------------------------


@dataclass(frozen=True)
class Built:
    """A store that was built."""

    root: Path
    messages: list[StoredMessage]
    """In log order, with their places."""
    log_file_bytes: int
    queue_file_units: int

    @property
    def end_offset(self) -> int:
        """Behind the last record."""
        last = self.messages[-1]
        return last.physical_offset + last.store_size

    def log_file(self, number: int = -1) -> Path:
        """A file of the log, in order."""
        return sorted((self.root / "commitlog").iterdir())[number]

    def queue_file(self, topic: str, queue_id: int = 0, number: int = -1) -> Path:
        """A file of a queue, in order."""
        return sorted((self.root / "consumequeue" / topic / str(queue_id)).iterdir())[number]

    def index_file(self, number: int = -1) -> Path:
        """A file of the index, in order."""
        return sorted((self.root / "index").iterdir())[number]

    def queue(self, topic: str, queue_id: int = 0) -> list[StoredMessage]:
        """The messages of a queue."""
        return [
            one
            for one in self.messages
            if (one.topic, one.queue_id) == (topic, queue_id) and flags.is_queued(one.sys_flag)
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
    """Write a store folder as a broker leaves it that was stopped (or, ``is_crashed``, was not).

    Args:
        root: The folder, which is made.
        messages: What was sent, in order.
        log_file_bytes: ``mappedFileSizeCommitLog``.
        queue_file_units: ``mappedFileSizeConsumeQueue`` in units.
        slots: ``maxHashSlotNum``.
        entries: ``maxIndexNum``.
        tag_keys: Index tags too, as 5.4 and later do.
        record_crc: End each record with ``__CRC32#`` (``enabledAppendPropCRC``).
        physical_offset: Where the log starts; a multiple of ``log_file_bytes``.
        queue_offsets: Where queues start that do not start at 0.
        is_crashed: Leave the file ``abort``.
        has_next_file: Leave the log file that a running broker has made for what comes next.
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
    for one in placed:
        queues[one.topic] = max(queues.get(one.topic, 0), one.queue_id + 1)
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
    """A store folder in memory, for ``StoreReader(folder)``: to be damaged by the thousand.

    Args:
        files: Path below the store's root -> bytes, taken as they are at each read.
        window_bytes: How much a walk reads at once.
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
        """What a folder on disk holds."""
        paths = (path for path in sorted(root.rglob("*")) if path.is_file())
        files = {str(path.relative_to(root)): path.read_bytes() for path in paths}
        return cls(files, window_bytes)

    def changed(self, path: str, data: bytes | bytearray | None) -> "MemoryFolder":
        """A copy in which one file is another, or (None) is not there."""
        files = {**self.files, path: data} if data is not None else dict(self.files)
        if data is None:
            del files[path]
        return MemoryFolder(files, self.window_bytes)  # type: ignore[arg-type]

    def entries(self, path: str) -> list[Entry]:
        names = sorted(self._folders.get(path, ()))
        found = (self.entry(f"{path}/{name}" if path else name) for name in names)
        return [entry for entry in found if entry is not None]

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
