"""An archive on disk: names, manifests, and what they answer. Nothing here needs Spark.

    archive/
      archive.json                                      format, broker
      config/*.json                                     the broker's tables, as they were last
      manifests/00000000001073741824.json               one a log file, written last
      messages/topic=T/date=2026-11-21/00000000001073741824-0000.parquet
      rest/00000000001073741824.zst                     the log file's bytes that are no records
      keys/00000000001073741824.keys                    (hash, place) of every key, by hash

A log file is in the archive when its manifest is. All names follow from where the log file starts,
and all bytes from its bytes: archiving it again writes the same. Why it is like this:
docs/decisions/0011-an-archive-holds-every-byte.md.
"""

import hashlib
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import msgspec

from reput.errors import CorruptRecord, StoreUnavailable
from reput.store import paths

FORMAT = 1
HEADER = "archive.json"
MANIFESTS = "manifests"
MESSAGES = "messages"
REST = "rest"
KEYS = "keys"
NO_DATE = "__HIVE_DEFAULT_PARTITION__"
"""What Hive, Spark and pyarrow call a partition whose value is null."""
_DRAFTS = ".*.tmp"
_NAME_BYTES_MAX = 200
_DIGEST_LETTERS = 16
_HASHED_AT_ONCE = 1 << 20


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
    """Whether a local folder is an archive."""
    return "://" not in str(location) and Path(location, HEADER).is_file()


def load_header(archive: str | Path) -> Header:
    """Return an archive's header.

    Raises:
        StoreUnavailable: There is no archive, or a later version of reput has written it.
    """
    try:
        data = Path(archive, HEADER).read_bytes()
        header = msgspec.json.decode(data, type=Header)
    except (OSError, msgspec.MsgspecError) as error:
        raise StoreUnavailable(f"{archive} is no archive: {HEADER}: {error}") from error
    if header.format != FORMAT:
        raise StoreUnavailable(
            f"{archive} has format {header.format}, this version of reput reads format {FORMAT}"
        )
    return header


def manifest_path(archive: str | Path, start: int) -> Path:
    """Return where the manifest of the log file that starts at an offset is."""
    return Path(archive, MANIFESTS, f"{paths.offset_name(start)}.json")


def load_manifest(path: Path) -> Manifest:
    """Return a manifest.

    Raises:
        CorruptRecord: It is not what this version of reput writes.
    """
    try:
        manifest = msgspec.json.decode(path.read_bytes(), type=Manifest)
    except msgspec.MsgspecError as error:
        raise CorruptRecord(f"no manifest of an archive: {error}", file=str(path)) from None
    if manifest.format != FORMAT:
        raise CorruptRecord(f"format {manifest.format}, not {FORMAT}", file=str(path))
    return manifest


def load_manifests(archive: str | Path) -> list[Manifest]:
    """Return the manifests of an archive, by physical offset. Raises as ``load_manifest`` does."""
    folder = Path(archive, MANIFESTS)
    found = sorted(folder.glob("*.json")) if folder.is_dir() else []
    return [load_manifest(one) for one in found if paths.parse_offset_name(one.stem) is not None]


def is_archived(archive: str | Path, start: int, size: int) -> bool:
    """Whether a closed log file is in an archive, so that the store may let go of it.

    What a broker may ask before it lets a file expire: cheap, and no where anything is in doubt.
    The manifest is written after the Parquet files were read back and compared with the log file.

    Args:
        archive: The archive's folder.
        start: Physical offset of the log file's first byte.
        size: Its bytes.
    """
    try:
        manifest = load_manifest(manifest_path(archive, start))
    except (OSError, CorruptRecord):
        return False
    is_same = manifest.is_closed and manifest.start == start and manifest.size == size
    return is_same and all(has_size(archive, one) for one in manifest.pieces)


def has_size(archive: str | Path, piece: Part | Piece) -> bool:
    """Whether a file of an archive is there in its full size."""
    try:
        return Path(archive, piece.path).stat().st_size == piece.bytes
    except OSError:
        return False


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


def drafts(archive: str | Path) -> Iterator[Path]:
    """Yield files that a write left half done; no name of an archive is like theirs."""
    yield from Path(archive).rglob(_DRAFTS)


def sha256_of(path: Path) -> str:
    """Return the checksum of a file, in hex."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_HASHED_AT_ONCE):
            digest.update(block)
    return digest.hexdigest()
