"""The job ``archive``: closed log files of a store become Parquet, and can be let go of.

    result = archive(spark, "/data/store", "/backup/archive")
    result = verify(spark, "/backup/archive")
    files.is_archived("/backup/archive", start, size)      # reput.spark.archive_files

One task a log file, nothing is shuffled. A log file counts as archived when its manifest is there,
which is written last, after what was written was read back and compared with the log. Any task, or
the whole job, may be run again at any moment: names and bytes follow from the log file alone.
"""

import hashlib
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pyarrow.parquet as pq

from reput.errors import CorruptRecord, InvalidOption, ReputError, StoreUnavailable
from reput.spark import archive_files as files
from reput.spark.archive_files import Manifest, Part
from reput.spark.archive_view import ArchiveReader, open_parquet
from reput.spark.archive_write import Segment, write_segment
from reput.spark.jobs.running import Progress, SparkRunner
from reput.store import paths
from reput.store.disk import Disk
from reput.store.reader import StoreReader

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger("reput.spark")

_TABLES = (
    paths.TOPICS,
    paths.CONSUMER_OFFSETS,
    paths.SUBSCRIPTION_GROUPS,
    paths.DELAY_OFFSETS,
    paths.CONSUMER_FILTERS,
)


@dataclass(frozen=True)
class ArchiveResult:
    """What was archived."""

    store: str
    archive: str
    log_files: int
    """Archived by this run."""
    already_archived: int
    """Log files that were archived before, left as they are."""
    left: int
    """Log files that hold records and were not archived: the one that is written to."""
    messages: int
    """In what this run archived, as all that follows."""
    log_bytes: int
    archive_bytes: int
    parquet_files: int
    damaged_runs: int
    damaged_bytes: int


@dataclass(frozen=True)
class VerifyResult:
    """What checking an archive found."""

    archive: str
    log_files: int
    messages: int
    archive_bytes: int
    problems: tuple[str, ...]
    """What is not as the manifests say, in words; nothing if all is."""

    @property
    def is_whole(self) -> bool:
        """Whether every log file can be had back, byte for byte."""
        return not self.problems


def archive(
    spark: "SparkSession",
    store: str,
    archive: str,
    *,
    include_last: bool = False,
    allow_live: bool = False,
    broker: str | None = None,
    level: int = 1,
    progress: Progress | None = None,
) -> ArchiveResult:
    """Archive the closed log files of a store that are not in the archive yet.

    Args:
        spark: The session.
        store: The store's folder.
        archive: The archive's folder, made if need be; workers must see it under this path. One
            archive belongs to one store.
        include_last: Take the last log file too, as far as it is written. Only of a stopped store;
            it is archived again when it has grown.
        allow_live: A broker may be running on the store.
        broker: Its name; what the store's tables tell.
        level: How hard zstd tries, 1 to 22. With 3 an archive of text is a seventh smaller, and
            takes half as long again.
        progress: Told of the tasks that are done.

    Raises:
        StoreUnavailable: The store cannot be read, or is in use.
        InvalidOption: ``include_last`` of a store that is in use, or the archive is another
            broker's.
        WriteFailed: The archive cannot be written to.
        TaskFailed: What was written reads back as something else, or a task failed otherwise.
    """
    reader = StoreReader.open(store, allow_live=allow_live)
    if include_last and reader.is_live:
        raise InvalidOption("include_last", True, "false, while a broker is running on the store")
    name = broker if broker is not None else _broker_name(reader)
    _prepare(reader, archive, name)
    segments, left = _segments(reader, archive, name, include_last, level)
    todo = [one for one in segments if not _is_done(reader, one)]
    done = SparkRunner(spark, "archive", progress)("archive", _archive_one, todo)
    manifests = [msgspec.json.decode(text, type=Manifest) for text in done]
    return ArchiveResult(
        store=store,
        archive=archive,
        log_files=len(manifests),
        already_archived=len(segments) - len(todo),
        left=left,
        messages=sum(one.messages for one in manifests),
        log_bytes=sum(one.size for one in manifests),
        archive_bytes=sum(piece.bytes for one in manifests for piece in one.pieces),
        parquet_files=sum(len(one.parts) for one in manifests),
        damaged_runs=sum(len(one.damage) for one in manifests),
        damaged_bytes=sum(one.damaged_bytes for one in manifests),
    )


def verify(
    spark: "SparkSession",
    archive: str,
    *,
    is_deep: bool = True,
    progress: Progress | None = None,
) -> VerifyResult:
    """Compare all files of an archive with their manifests, by count and checksum.

    Args:
        spark: The session.
        archive: The archive's folder.
        is_deep: Put each log file together again and compare its checksum, too. A task then holds a
            log file in memory.
        progress: Told of the tasks that are done.

    Raises:
        StoreUnavailable: There is no archive.
        CorruptRecord: A manifest cannot be read.
    """
    files.load_header(archive)
    manifests = files.load_manifests(archive)
    tasks = [(archive, one.start, is_deep) for one in manifests]
    problems = SparkRunner(spark, "archive", progress)("verify", _verify_one, tasks)
    return VerifyResult(
        archive=archive,
        log_files=len(manifests),
        messages=sum(one.messages for one in manifests),
        archive_bytes=sum(piece.bytes for one in manifests for piece in one.pieces),
        problems=tuple(problem for found in problems for problem in found),
    )


# On the driver --------------------------------------------------------------------------------


def _broker_name(reader: StoreReader) -> str:
    try:
        return reader.broker_name()
    except CorruptRecord as error:
        log.warning("%s: %s", reader.location, error)
        return ""


def _prepare(reader: StoreReader, archive: str, broker: str) -> None:
    """Make the archive's folder, or see that it is this broker's; copy the tables."""
    disk = Disk()
    folder = Path(archive)
    disk.make_folder(archive)
    header = files.Header(files.FORMAT, broker)
    if files.is_archive(archive):
        known = files.load_header(archive)
        if known.broker != broker:
            raise InvalidOption(
                "archive", archive, f"an archive of {broker!r}, not {known.broker!r}"
            )
    elif any(folder.iterdir()):
        raise InvalidOption("archive", archive, "an archive, or a folder that is new or empty")
    else:
        disk.replace(str(folder / files.HEADER), msgspec.json.encode(header))
    for draft in list(files.drafts(archive)):
        disk.unlink(str(draft))  # of a run that was killed
    disk.make_folder(str(folder / paths.CONFIG))
    for path in _TABLES:
        if reader.folder.entry(path) is not None:
            disk.replace(str(folder / path), bytes(reader.folder.read(path)))


def _segments(
    reader: StoreReader, archive: str, broker: str, include_last: bool, level: int
) -> tuple[list[Segment], int]:
    """Return the log files that can be archived, and how many others hold a part of the log."""
    end = reader.end_offset
    segments, left = [], 0
    for file in reader.log.files:
        is_closed = file.nominal_end <= end
        if is_closed or (include_last and file.start < end):
            stop = min(file.nominal_end, end)
            segments.append(
                Segment(reader.location, archive, file.start, stop, is_closed, broker, level)
            )
        elif file.start < end:
            left += 1
    return segments, left


def _is_done(reader: StoreReader, segment: Segment) -> bool:
    size = reader.log.file_at(segment.start).size
    return segment.is_closed and files.is_archived(segment.archive, segment.start, size)


# On the executors -----------------------------------------------------------------------------


def _archive_one(segment: Segment) -> bytes:
    return msgspec.json.encode(write_segment(segment))


def _verify_one(task: tuple[str, int, bool]) -> list[str]:
    """Return what is wrong with a log file of an archive."""
    archive, start, is_deep = task
    manifest = files.load_manifest(files.manifest_path(archive, start))
    problems = []
    for piece in manifest.pieces:
        path = Path(archive, piece.path)
        try:
            if files.sha256_of(path) != piece.sha256:
                problems.append(f"{piece.path}: its bytes have changed since it was written")
            elif isinstance(piece, Part):
                problems += _count_problems(path, piece)
        except (OSError, ReputError) as error:
            problems.append(f"{piece.path}: {error}")
    if sum(part.rows for part in manifest.parts) != manifest.messages:
        problems.append(f"{manifest.name}: its Parquet files do not have {manifest.messages} rows")
    if is_deep and not problems:
        try:
            data = ArchiveReader.open(archive).log.file_bytes(start)
        except (OSError, ReputError) as error:
            return [f"{manifest.name}: {error}"]
        if hashlib.sha256(data).hexdigest() != manifest.sha256:
            problems.append(f"{manifest.name}: put together again it has another checksum")
    return problems


def _count_problems(path: Path, part: Part) -> list[str]:
    try:
        with open_parquet(path) as parquet:
            rows = parquet.metadata.num_rows
    except (pq.lib.ArrowException, StoreUnavailable) as error:
        return [f"{part.path}: {error}"]
    return [] if rows == part.rows else [f"{part.path}: has {rows} rows, not {part.rows}"]
