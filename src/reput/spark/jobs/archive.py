"""The job ``archive``: closed log files of a store become Parquet, so that they can be deleted.

    result = archive(spark, "/data/store", "/backup/archive")
    result = verify(spark, "/backup/archive")
    is_archived("/backup/archive", start, size)            # reput.store.log.archived

There is a task per log file, and no shuffle. A log file is archived once its manifest exists. The
manifest is written last, after the files were read back and compared with the log. Any task, or
the whole job, can be repeated at any time, and two attempts at a task can run at once: names and
bytes follow from the log file alone, and only the driver deletes.
"""

import dataclasses
import hashlib
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa

from reput.errors import CorruptRecord, InvalidOption, NotInStore, ReputError, StoreUnavailable
from reput.spark.archive import files
from reput.spark.archive.files import Manifest, Part
from reput.spark.archive.folder import ArchiveFolder, archive_folder
from reput.spark.archive.view import ArchiveReader
from reput.spark.archive.write import Segment, write_segment
from reput.spark.jobs.running import Progress, runner_on
from reput.store.files import paths
from reput.store.files.files import Folder, absolute, open_folder
from reput.store.log import archived
from reput.store.reader import StoreReader

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger("reput.spark")


@dataclass(frozen=True)
class ArchiveResult:
    """The result of an archiving."""

    store: str
    archive: str
    log_files: int
    """Log files archived by this run."""
    already_archived: int
    """Log files that were archived before."""
    left: int
    """Log files with records that were not archived: the open one."""
    messages: int
    """Messages archived by this run; the following numbers are of this run, too."""
    log_bytes: int
    archive_bytes: int
    parquet_files: int
    damaged_runs: int
    damaged_bytes: int

    def as_json(self) -> dict[str, Any]:
        """Return plain lists and dictionaries."""
        return dataclasses.asdict(self)


@dataclass(frozen=True)
class VerifyResult:
    """The result of a verification of an archive."""

    archive: str
    log_files: int
    messages: int
    """Messages that ``compact`` has not dropped."""
    archive_bytes: int
    problems: tuple[str, ...]
    """Differences from the manifests, as sentences."""

    @property
    def is_whole(self) -> bool:
        """Whether every log file can be restored, byte for byte, but for compacted messages."""
        return not self.problems

    def as_json(self) -> dict[str, Any]:
        """Return plain lists and dictionaries."""
        return {**dataclasses.asdict(self), "is_whole": self.is_whole}


def archive(
    spark: "SparkSession | None",
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
        spark: The session; without one tasks run in this process.
        store: The store's folder.
        archive: The archive's folder, a path or URI, created if needed; workers must reach it under
            this path. An archive belongs to one store, and one run at a time writes to it.
        include_last: Archive the last log file, too, up to its present end. Only for a stopped
            store; the file is archived again when it has grown.
        allow_live: A broker may be running on the store.
        broker: Name of the broker; by default from the store's tables.
        level: Compression level of zstd, 1 to 22. With 3 an archive of text is a seventh smaller,
            and takes half as long again.
        progress: Called with the number of completed tasks.

    Raises:
        StoreUnavailable: The store cannot be read, or is in use.
        InvalidOption: ``include_last`` for a store that is in use, or the archive belongs to
            another broker.
        WriteFailed: The archive cannot be written to.
        TaskFailed: The written files read back differently, or a task failed for another reason.
    """
    store, archive = absolute(store), absolute(archive)  # workers have other working directories
    reader = StoreReader.open(store, allow_live=allow_live)
    if include_last and reader.is_live:
        raise InvalidOption("include_last", True, "false, while a broker is running on the store")
    name = broker if broker is not None else _broker_name(reader)
    _prepare(reader, archive_folder(archive), name)
    segments, left = _segments(reader, archive, name, include_last, level)
    todo = _to_do(reader, archive, segments)
    done = runner_on(spark, "archive", progress)("archive", _archive_one, todo)
    manifests = [msgspec.json.decode(text, type=Manifest) for text in done]
    return ArchiveResult(
        store=store,
        archive=archive,
        log_files=len(manifests),
        already_archived=len(segments) - len(todo),
        left=left,
        messages=sum(manifest.messages for manifest in manifests),
        log_bytes=sum(manifest.size for manifest in manifests),
        archive_bytes=sum(piece.bytes for manifest in manifests for piece in manifest.pieces),
        parquet_files=sum(len(manifest.parts) for manifest in manifests),
        damaged_runs=sum(len(manifest.damage) for manifest in manifests),
        damaged_bytes=sum(manifest.damaged_bytes for manifest in manifests),
    )


def verify(
    spark: "SparkSession | None",
    archive: str,
    *,
    is_deep: bool = True,
    progress: Progress | None = None,
) -> VerifyResult:
    """Compare all files of an archive with their manifests, by count and checksum.

    Args:
        spark: The session; without one tasks run in this process.
        archive: The archive's folder, a path or URI.
        is_deep: Also rebuild each log file and compare its checksum. A task then holds a log file
            in memory. Compacted log files have another checksum and are not rebuilt.
        progress: Called with the number of completed tasks.

    Raises:
        StoreUnavailable: There is no archive.
        CorruptRecord: A manifest cannot be read.
    """
    archive = absolute(archive)
    manifests = ArchiveReader.open(archive).manifests
    tasks = [(archive, manifest.start, is_deep) for manifest in manifests]
    problems = runner_on(spark, "archive", progress)("verify", _verify_one, tasks)
    return VerifyResult(
        archive=archive,
        log_files=len(manifests),
        messages=sum(part.rows for manifest in manifests for part in manifest.parts),
        archive_bytes=sum(piece.bytes for manifest in manifests for piece in manifest.pieces),
        problems=tuple(problem for of_file in problems for problem in of_file),
    )


# On the driver --------------------------------------------------------------------------------


def _broker_name(reader: StoreReader) -> str:
    try:
        return reader.broker_name()
    except CorruptRecord as error:
        log.warning("%s: %s", reader.location, error)
        return ""


def _prepare(reader: StoreReader, target: ArchiveFolder, broker: str) -> None:
    """Create the archive's folder, or check that it is this broker's; copy the tables."""
    target.make()
    folder = open_folder(target.location)
    if folder.entry(archived.HEADER) is not None:
        known = files.load_header(folder)
        if known.broker != broker:
            raise InvalidOption(
                "archive", target.location, f"an archive of {broker!r}, not {known.broker!r}"
            )
    elif target.files():
        raise InvalidOption("archive", target.location, "an archive, or a folder new or empty")
    else:
        header = files.ArchiveHeader(archived.FORMAT, broker)
        target.put(archived.HEADER, msgspec.json.encode(header))
    target.sweep()
    for path in paths.TABLES:
        if reader.folder.entry(path) is not None:
            target.put(path, bytes(reader.folder.read(path)))


def _segments(
    reader: StoreReader, archive: str, broker: str, include_last: bool, level: int
) -> tuple[list[Segment], int]:
    """Return the log files that can be archived, and the number of others that hold records."""
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


def _to_do(reader: StoreReader, archive: str, segments: list[Segment]) -> list[Segment]:
    """Return the segments that are not archived, and delete their outdated files.

    The files of a log file that has grown since are deleted here, where no task can be writing
    them. The manifest is deleted last: until then it names the files to delete.
    """
    folder, target = open_folder(archive), archive_folder(archive)
    todo = []
    for segment in segments:
        size = reader.log.file_at(segment.start).size
        if segment.is_closed and archived.is_archived(folder, segment.start, size):
            continue
        todo.append(segment)
        for path in _outdated(folder, segment):
            target.delete(path)
    return todo


def _outdated(folder: Folder, segment: Segment) -> list[str]:
    """Return the archived files of a log file that has grown, or whose manifest is damaged."""
    path = archived.manifest_path(segment.start)
    try:
        earlier = files.load_manifest(folder, segment.start)
    except NotInStore:
        return []
    except CorruptRecord:
        return [path]
    if (earlier.end, earlier.is_closed) == (segment.stop, segment.is_closed):
        return []  # a file is damaged: it is written again under its name
    return [*(piece.path for piece in earlier.pieces), path]


# On the executors -----------------------------------------------------------------------------


def _archive_one(segment: Segment) -> bytes:
    return msgspec.json.encode(write_segment(segment))


def _verify_one(task: tuple[str, int, bool]) -> list[str]:
    """Return the problems of a log file of an archive."""
    archive, start, is_deep = task
    folder, target = open_folder(archive), archive_folder(archive)
    manifest = files.load_manifest(folder, start)
    problems = []
    for piece in manifest.pieces:
        try:
            if hashlib.sha256(folder.read(piece.path)).hexdigest() != piece.sha256:
                problems.append(f"{piece.path}: its bytes have changed since it was written")
            elif isinstance(piece, Part):
                problems += _count_problems(target, piece)
        except (OSError, ReputError) as error:
            problems.append(f"{piece.path}: {error}")
    rows = sum(part.rows for part in manifest.parts)
    rows += sum(dropped.rows for dropped in manifest.dropped)
    if rows != manifest.messages:
        problems.append(f"{manifest.name}: its Parquet files do not have {manifest.messages} rows")
    if is_deep and not manifest.dropped and not problems:
        try:
            data = ArchiveReader.open(archive).log.file_bytes(start)
        except (OSError, ReputError) as error:
            return [f"{manifest.name}: {error}"]
        if hashlib.sha256(data).hexdigest() != manifest.sha256:
            problems.append(f"{manifest.name}: rebuilt from its parts it has another checksum")
    return problems


def _count_problems(target: ArchiveFolder, part: Part) -> list[str]:
    try:
        with target.open_parquet(part.path) as parquet:
            rows = parquet.metadata.num_rows
    except (pa.ArrowException, StoreUnavailable) as error:
        return [f"{part.path}: {error}"]
    return [] if rows == part.rows else [f"{part.path}: has {rows} rows, not {part.rows}"]
