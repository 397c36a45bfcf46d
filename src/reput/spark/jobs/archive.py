"""The job ``archive``: closed log files of a store become Parquet, and can be let go of.

    result = archive(spark, "/data/store", "/backup/archive")
    result = verify(spark, "/backup/archive")
    is_archived("/backup/archive", start, size)            # reput.store.archived

One task a log file, nothing is shuffled. A log file counts as archived when its manifest is there,
which is written last, after what was written was read back and compared with the log. Any task, or
the whole job, may be run again at any moment, and two attempts at one task may run at once: names
and bytes follow from the log file alone, and only the driver deletes.
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
from reput.store import archived, paths
from reput.store.files import Folder, absolute, open_folder
from reput.store.reader import StoreReader

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger("reput.spark")


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

    def as_json(self) -> dict[str, Any]:
        """Return plain lists and dictionaries."""
        return dataclasses.asdict(self)


@dataclass(frozen=True)
class VerifyResult:
    """What checking an archive found."""

    archive: str
    log_files: int
    messages: int
    """Less what ``compact`` has taken out."""
    archive_bytes: int
    problems: tuple[str, ...]
    """What is not as the manifests say, in words; nothing if all is."""

    @property
    def is_whole(self) -> bool:
        """Whether every log file can be had back, byte for byte, less what was compacted."""
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
        spark: The session; None to do all of it here, one task at a time.
        store: The store's folder.
        archive: The archive's folder, a path or URI, made if need be; workers must see it under
            this path. One archive belongs to one store, and one run at a time writes to it.
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
    store, archive = absolute(store), absolute(archive)  # workers have other folders to work in
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
        messages=sum(one.messages for one in manifests),
        log_bytes=sum(one.size for one in manifests),
        archive_bytes=sum(piece.bytes for one in manifests for piece in one.pieces),
        parquet_files=sum(len(one.parts) for one in manifests),
        damaged_runs=sum(len(one.damage) for one in manifests),
        damaged_bytes=sum(one.damaged_bytes for one in manifests),
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
        spark: The session; None to do all of it here, one task at a time.
        archive: The archive's folder, a path or URI.
        is_deep: Put each log file together again and compare its checksum, too. A task then holds a
            log file in memory. Log files that were compacted have another checksum; of them this
            does nothing.
        progress: Told of the tasks that are done.

    Raises:
        StoreUnavailable: There is no archive.
        CorruptRecord: A manifest cannot be read.
    """
    archive = absolute(archive)
    manifests = ArchiveReader.open(archive).manifests
    tasks = [(archive, one.start, is_deep) for one in manifests]
    problems = runner_on(spark, "archive", progress)("verify", _verify_one, tasks)
    return VerifyResult(
        archive=archive,
        log_files=len(manifests),
        messages=sum(part.rows for one in manifests for part in one.parts),
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


def _prepare(reader: StoreReader, target: ArchiveFolder, broker: str) -> None:
    """Make the archive's folder, or see that it is this broker's; copy the tables."""
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
        header = files.Header(archived.FORMAT, broker)
        target.put(archived.HEADER, msgspec.json.encode(header))
    target.sweep()
    for path in paths.TABLES:
        if reader.folder.entry(path) is not None:
            target.put(path, bytes(reader.folder.read(path)))


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


def _to_do(reader: StoreReader, archive: str, segments: list[Segment]) -> list[Segment]:
    """Return the segments that are not archived, with nothing in their way.

    What an earlier run made of a log file that has grown since is taken away here, where no task
    can be writing it. The manifest goes last: until then it says what there is to take away.
    """
    folder, target = open_folder(archive), archive_folder(archive)
    todo = []
    for one in segments:
        size = reader.log.file_at(one.start).size
        if one.is_closed and archived.is_archived(folder, one.start, size):
            continue
        todo.append(one)
        for path in _outdated(folder, one):
            target.delete(path)
    return todo


def _outdated(folder: Folder, segment: Segment) -> list[str]:
    """Return the files of what was made of a log file when it was shorter, or is damaged."""
    path = archived.manifest_path(segment.start)
    try:
        earlier = files.load_manifest(folder, segment.start)
    except NotInStore:
        return []
    except CorruptRecord:
        return [path]
    if (earlier.end, earlier.is_closed) == (segment.stop, segment.is_closed):
        return []  # a file of it is damaged: it is made again under its name
    return [*(piece.path for piece in earlier.pieces), path]


# On the executors -----------------------------------------------------------------------------


def _archive_one(segment: Segment) -> bytes:
    return msgspec.json.encode(write_segment(segment))


def _verify_one(task: tuple[str, int, bool]) -> list[str]:
    """Return what is wrong with a log file of an archive."""
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
    rows = sum(one.rows for one in manifest.parts) + sum(one.rows for one in manifest.dropped)
    if rows != manifest.messages:
        problems.append(f"{manifest.name}: its Parquet files do not have {manifest.messages} rows")
    if is_deep and not manifest.dropped and not problems:
        try:
            data = ArchiveReader.open(archive).log.file_bytes(start)
        except (OSError, ReputError) as error:
            return [f"{manifest.name}: {error}"]
        if hashlib.sha256(data).hexdigest() != manifest.sha256:
            problems.append(f"{manifest.name}: put together again it has another checksum")
    return problems


def _count_problems(target: ArchiveFolder, part: Part) -> list[str]:
    try:
        with target.open_parquet(part.path) as parquet:
            rows = parquet.metadata.num_rows
    except (pa.ArrowException, StoreUnavailable) as error:
        return [f"{part.path}: {error}"]
    return [] if rows == part.rows else [f"{part.path}: has {rows} rows, not {part.rows}"]
