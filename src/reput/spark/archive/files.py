"""An archive on disk: names, manifests, and what they answer. Nothing here needs Spark.

    archive/
      archive.json                                      format, broker
      config/*.json                                     the broker's tables, as they were last
      manifests/00000000001073741824.json               one a log file, written last
      messages/topic=T/date=2026-11-21/00000000001073741824-0000.parquet
      rest/00000000001073741824.zst                     the log file's bytes that are no records
      keys/00000000001073741824.keys                    (hash, place) of every key, by hash

What ``compact`` has taken out of a log file is in its manifest; the keys file is then another one,
``00000000001073741824-1.keys``.

A log file is in the archive when its manifest is. All names follow from where the log file starts,
and all bytes from its bytes: archiving it again writes the same. Why it is like this:
docs/decisions/0011-an-archive-holds-every-byte.md.
"""

import hashlib
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import msgspec

from reput.errors import CorruptRecord, NotInStore, StoreUnavailable
from reput.store import archived, paths
from reput.store.files import Folder, open_folder

MESSAGES = "messages"
REST = "rest"
KEYS = "keys"
NO_DATE = "__HIVE_DEFAULT_PARTITION__"
"""What Hive, Spark and pyarrow call a partition whose value is null."""
_NAME_BYTES_MAX = 200
_DIGEST_LETTERS = 16


class RowGroup(msgspec.Struct, frozen=True):
    """A row group of a part; what is between ``min`` and ``max`` is included."""

    rows: int
    record_bytes: int
    """Of its records as they stood in the log."""
    min_offset: int
    """Physical offset of the first record."""
    end_offset: int
    """Physical offset behind the last record."""
    min_queue_offset: int
    max_queue_offset: int
    min_time_ms: int
    """Store time."""
    max_time_ms: int


class Part(msgspec.Struct, frozen=True):
    """A Parquet file: messages of one topic and day, by physical offset."""

    path: str
    """Relative to the archive."""
    topic: str
    date: str | None
    """UTC day of the store times, ``2026-11-21``; None where no calendar has them."""
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
    """A run of bytes of the log that is damaged."""

    offset: int
    length: int
    verdict: str
    """Name of a ``reput.format.message.Verdict``."""


class Queue(msgspec.Struct, frozen=True):
    """What of a queue is in a log file."""

    topic: str
    queue_id: int
    messages: int
    min_offset: int
    max_offset: int
    """Queue offset of the last message."""


class Dropped(msgspec.Struct, frozen=True):
    """A part that ``compact`` has taken out."""

    topic: str
    date: str | None
    rows: int
    record_bytes: int


class Manifest(msgspec.Struct, frozen=True):
    """One log file in the archive. Offsets are physical, times are store times."""

    format: int
    start: int
    """Physical offset of the log file's first byte."""
    size: int
    """Bytes of the log file."""
    nominal_size: int
    """Bytes it should have had."""
    sha256: str
    """Of the log file."""
    end: int
    """Where the part of the log that it holds ends: behind it the log goes on in the next file."""
    is_closed: bool
    """The broker had gone on to the next file."""
    messages: int
    record_bytes: int
    blank_bytes: int
    """Behind the last record, where a file ends: the blank."""
    damaged_bytes: int
    min_time_ms: int | None
    max_time_ms: int | None
    rest_ranges: tuple[tuple[int, int], ...]
    """(physical offset, length) of what is no record: blank, damage, what is not written yet."""
    damage: tuple[Run, ...]
    queues: tuple[Queue, ...]
    """Of messages that a queue has: not of prepared and rolled-back ones."""
    rest: Piece
    keys: Piece
    parts: tuple[Part, ...]
    dropped: tuple[Dropped, ...] = ()
    """Taken out by ``compact``: ``messages``, ``record_bytes`` and ``sha256`` count them still,
    ``queues``, ``keys`` and ``parts`` do not."""

    @property
    def name(self) -> str:
        """Name of the log file."""
        return paths.offset_name(self.start)

    @property
    def pieces(self) -> Iterator[Part | Piece]:
        """All files of the archive that hold a part of the log file."""
        yield self.rest
        yield self.keys
        yield from self.parts


class Header(msgspec.Struct, frozen=True):
    """What is common to all files of an archive."""

    format: int
    broker: str


def is_archive(location: str | Path) -> bool:
    """Whether what is at a path or URI is an archive; no if nothing is, or it cannot be reached."""
    try:
        return open_folder(str(location)).entry(archived.HEADER) is not None
    except StoreUnavailable:
        return False


def load_header(folder: Folder) -> Header:
    """Return an archive's header.

    Raises:
        StoreUnavailable: There is no archive, or a later version of reput has written it.
    """
    try:
        header = msgspec.json.decode(folder.read(archived.HEADER), type=Header)
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
        CorruptRecord: It is not what this version of reput writes.
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
    """Return where a Parquet file is, relative to the archive: as Hive partitions are named."""
    name = quote(topic, safe="")
    if len(name) > _NAME_BYTES_MAX:
        digest = hashlib.sha256(topic.encode()).hexdigest()[:_DIGEST_LETTERS]
        name = f"{name[: _NAME_BYTES_MAX - len(digest)].rstrip('%')}~{digest}"
    return (
        f"{MESSAGES}/topic={name}/date={date or NO_DATE}/"
        f"{paths.offset_name(start)}-{number:04d}.parquet"
    )


def keys_path(start: int, generation: int = 0) -> str:
    """Return where a keys file is, relative to the archive.

    Args:
        start: Physical offset of the log file.
        generation: How often the log file was compacted.
    """
    return f"{KEYS}/{paths.offset_name(start)}{f'-{generation}' if generation else ''}.keys"
