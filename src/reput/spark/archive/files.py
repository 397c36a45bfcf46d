"""Files of an archive: names, manifests, and their content. Needs no Spark.

    archive/
      archive.json                                      format, broker
      config/*.json                                     the broker's latest tables
      manifests/00000000001073741824.json               one per log file, written last
      messages/topic=T/date=2026-11-21/00000000001073741824-0000.parquet
      rest/00000000001073741824.zst                     bytes of the log file outside of records
      keys/00000000001073741824.keys                    (hash, position) of every key, by hash

The manifest records what ``compact`` has removed from a log file; the keys file is then a new one,
``00000000001073741824-1.keys``.

A log file is in the archive if its manifest is. All names derive from the log file's start and all
contents from its bytes, so that archiving it again writes the same files. Reasons:
docs/decisions/0011-an-archive-holds-every-byte.md.
"""

import hashlib
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import msgspec

from reput.errors import CorruptRecord, NotInStore, StoreUnavailable
from reput.store.files import paths
from reput.store.files.files import Folder, open_folder
from reput.store.log import archived

MESSAGES = "messages"
REST = "rest"
KEYS = "keys"
NO_DATE = "__HIVE_DEFAULT_PARTITION__"
"""Name of a partition with a null value in Hive, Spark and pyarrow."""
_NAME_BYTES_MAX = 200
_DIGEST_LETTERS = 16


class RowGroup(msgspec.Struct, frozen=True):
    """A row group of a part; ``min`` and ``max`` are inclusive."""

    rows: int
    record_bytes: int
    """Size of its records in the log, in bytes."""
    min_offset: int
    """Physical offset of the first record."""
    end_offset: int
    """Physical offset after the last record."""
    min_queue_offset: int
    max_queue_offset: int
    """Queue offset of the last message, of those inside of batch records too."""
    min_time_ms: int
    """Earliest store time, in ms."""
    max_time_ms: int


class Part(msgspec.Struct, frozen=True):
    """A Parquet file: messages of one topic and day, by physical offset."""

    path: str
    """Path relative to the archive."""
    topic: str
    date: str | None
    """UTC day of the store times, ``2026-11-21``; None outside of the calendar."""
    rows: int
    bytes: int
    sha256: str
    row_groups: tuple[RowGroup, ...]


class Piece(msgspec.Struct, frozen=True):
    """A file that is not Parquet."""

    path: str
    bytes: int
    sha256: str


class Run(msgspec.Struct, frozen=True):
    """A damaged range of the log."""

    offset: int
    length: int
    verdict: str
    """Name of a ``reput.format.message.Verdict``."""


class Queue(msgspec.Struct, frozen=True):
    """Messages of a queue in a log file."""

    topic: str
    queue_id: int
    messages: int
    """Number of their records: a batch record of 5.x has several messages."""
    min_offset: int
    max_offset: int
    """Queue offset of the last message."""


class Dropped(msgspec.Struct, frozen=True):
    """A part that ``compact`` has removed."""

    topic: str
    date: str | None
    rows: int
    record_bytes: int


class Manifest(msgspec.Struct, frozen=True):
    """One log file in the archive. Offsets are physical, times are store times in ms."""

    format: int
    start: int
    """Physical offset of the log file's first byte."""
    size: int
    """Size of the log file, in bytes."""
    nominal_size: int
    """Size that the log file should have had, in bytes."""
    sha256: str
    """Checksum of the log file, in hex."""
    end: int
    """Physical offset after its part of the log: the log continues in the next file."""
    is_closed: bool
    """True if the broker had moved on to the next file."""
    messages: int
    record_bytes: int
    blank_bytes: int
    """Size of the blank after the last record, in bytes."""
    damaged_bytes: int
    min_time_ms: int | None
    max_time_ms: int | None
    rest_ranges: tuple[tuple[int, int], ...]
    """(physical offset, length) of ranges without records: blank, damage, unwritten."""
    damage: tuple[Run, ...]
    queues: tuple[Queue, ...]
    """Queues of its messages, without prepared and rolled-back ones."""
    rest: Piece
    keys: Piece
    parts: tuple[Part, ...]
    dropped: tuple[Dropped, ...] = ()
    """Parts that ``compact`` has removed: ``messages``, ``record_bytes`` and ``sha256`` still
    include them, ``queues``, ``keys`` and ``parts`` do not.
    """

    @property
    def name(self) -> str:
        """Name of the log file."""
        return paths.offset_name(self.start)

    @property
    def pieces(self) -> Iterator[Part | Piece]:
        """All files of the archive that belong to the log file."""
        yield self.rest
        yield self.keys
        yield from self.parts


class ArchiveHeader(msgspec.Struct, frozen=True):
    """Content of ``archive.json``."""

    format: int
    broker: str


def is_archive(location: str | Path) -> bool:
    """Return whether there is an archive at a path or URI; False if it cannot be reached."""
    try:
        return open_folder(str(location)).entry(archived.HEADER) is not None
    except StoreUnavailable:
        return False


def load_header(folder: Folder) -> ArchiveHeader:
    """Return the header of an archive.

    Raises:
        StoreUnavailable: There is no archive, or a later version of reput wrote it.
    """
    try:
        header = msgspec.json.decode(folder.read(archived.HEADER), type=ArchiveHeader)
    except (NotInStore, msgspec.MsgspecError) as error:
        raise StoreUnavailable(
            f"{folder.location} is no archive: {archived.HEADER}: {error}"
        ) from error
    if header.format != archived.FORMAT:
        raise StoreUnavailable(
            f"{folder.location} has format {header.format}, "
            f"this version of reput reads format {archived.FORMAT}"
        )
    return header


def load_manifest(folder: Folder, start: int) -> Manifest:
    """Return the manifest of the log file that starts at an offset.

    Raises:
        NotInStore: There is none.
        CorruptRecord: This version of reput cannot decode it.
    """
    path = archived.manifest_path(start)
    try:
        manifest = msgspec.json.decode(folder.read(path), type=Manifest)
    except msgspec.MsgspecError as error:
        raise CorruptRecord(f"no manifest of an archive: {error}", file=path) from None
    if manifest.format != archived.FORMAT:
        raise CorruptRecord(f"format {manifest.format}, not {archived.FORMAT}", file=path)
    return manifest


def load_manifests(folder: Folder) -> list[Manifest]:
    """Return the manifests of an archive, by physical offset. Raises as ``load_manifest`` does."""
    names = [
        entry.name for entry in folder.entries(archived.MANIFESTS) if entry.name.endswith(".json")
    ]
    starts = [paths.parse_offset_name(name.removesuffix(".json")) for name in names]
    return [load_manifest(folder, start) for start in starts if start is not None]


def part_path(start: int, topic: str, date: str | None, number: int) -> str:
    """Return the path of a Parquet file in the archive, with Hive's names of partitions."""
    name = quote(topic, safe="")
    if len(name) > _NAME_BYTES_MAX:
        digest = hashlib.sha256(topic.encode()).hexdigest()[:_DIGEST_LETTERS]
        name = f"{name[: _NAME_BYTES_MAX - len(digest)].rstrip('%')}~{digest}"
    return (
        f"{MESSAGES}/topic={name}/date={date or NO_DATE}/"
        f"{paths.offset_name(start)}-{number:04d}.parquet"
    )


def keys_path(start: int, generation: int = 0) -> str:
    """Return the path of a keys file relative to the archive.

    Args:
        start: Physical offset of the log file.
        generation: Number of times that the log file was compacted.
    """
    return f"{KEYS}/{paths.offset_name(start)}{f'-{generation}' if generation else ''}.keys"
