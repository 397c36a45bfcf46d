"""The job ``compact``: retention per topic over closed log files.

    compact(spark, "/backup/archive", retention={"audit": None, "logs-.*": 7 * DAY_MS})
    compact(spark, "/data/store", "/data/compacted", retention={".*": 30 * DAY_MS})

All topics share a log, and brokers delete whole log files, so the topic with the longest retention
decides for all. This job drops expired messages of single topics and keeps the rest.

An archive is compacted in place: a Parquet file of a topic and day is deleted when its last message
has expired. For a stopped store the job writes a smaller store beside it, which RocketMQ or reput
can open. Queue offsets do not change, nor do consumer offsets.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from reput.clock import Clock, SystemClock
from reput.errors import InvalidOption
from reput.spark.archive import files
from reput.spark.archive.view import ArchiveReader
from reput.spark.jobs import folder_checks
from reput.spark.jobs.compact import archive_compaction, store_compaction
from reput.spark.jobs.compact.expired import (
    Retention,
    TopicDropped,
    by_topic,
    retention_of,
)
from reput.spark.jobs.packing import begin_store, copy_tables, finish_store
from reput.spark.jobs.running import Progress, Runner, runner_on
from reput.store.files.files import absolute
from reput.store.reader import StoreReader

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_MARK = "compacting.json"
"""File that describes the compaction into a folder, until the folder is complete."""


@dataclass(frozen=True)
class CompactResult:
    """The messages and files that were dropped, or would be."""

    source: str
    target: str
    is_dry_run: bool
    is_written: bool
    """False for a dry run, and if nothing can be freed: no expired message in an archive, or no
    log file less of a store, whose folder is then not created.
    """
    log_files: int
    """Number of closed log files."""
    changed_log_files: int
    """Log files of an archive that lose messages, or number of log files that a store loses."""
    messages_kept: int
    """Messages kept in closed log files."""
    messages_dropped: int
    freed_bytes: int
    """Bytes of deleted files: Parquet files of an archive, log files of a store."""
    file_bytes: int
    """Value of ``mappedFileSizeCommitLog`` for the broker; 0 for an archive."""
    topics: tuple[TopicDropped, ...]
    """Dropped messages by topic."""

    def as_json(self) -> dict[str, Any]:
        """Return plain lists and dictionaries."""
        return dataclasses.asdict(self)


def compact(
    spark: "SparkSession | None",
    source: str,
    target: str | None = None,
    *,
    retention: Mapping[str, int | None],
    dry_run: bool = False,
    clock: Clock | None = None,
    progress: Progress | None = None,
) -> CompactResult:
    """Drop messages that are past the retention of their topic.

    A killed run can be repeated: it continues, or starts over with the messages that were expired
    then.

    Args:
        spark: The session; without one tasks run in this process.
        source: An archive, a path or URI, or the folder of a stopped store.
        target: The folder of the store to write, new or empty; None for an archive, which is
            compacted in place.
        retention: Pattern of topics -> ms to keep messages after they were stored, None for ever.
            The first pattern that matches a topic counts; a topic without a match is kept. A
            pattern is a regular expression; a system topic is matched by its own name only.
        dry_run: Report what would be dropped, and write nothing.
        clock: The clock that decides what has expired.
        progress: Called with the number of completed tasks.

    Raises:
        InvalidOption: A pattern is no regular expression, the target is missing or not allowed, or
            it holds other files.
        StoreUnavailable: There is no such store or archive; the store is in use, or damaged.
        WriteFailed: The folder cannot be written to.
        TaskFailed: A task failed.
    """
    now_ms = (clock or SystemClock()).now_ms()
    rules = retention_of(retention, now_ms)
    runner = runner_on(spark, "compact", progress)
    source = absolute(source)  # workers have other working directories
    if files.is_archive(source):
        if target is not None:
            raise InvalidOption(
                "target", target, "None for an archive, which is compacted in place"
            )
        return _compact_archive(runner, source, rules, dry_run)
    if target is None:
        raise InvalidOption("target", None, "the folder of the store to make")
    return _compact_store(
        runner, source, folder_checks.writable_folder("target", target), rules, dry_run
    )


def _compact_archive(
    runner: Runner, archive: str, retention: Retention, dry_run: bool
) -> CompactResult:
    manifests = [item for item in ArchiveReader.open(archive).manifests if item.is_closed]
    expired = {item.start: archive_compaction.expired_parts(item, retention) for item in manifests}
    tasks = [
        (archive, start, tuple(part.path for part in parts))
        for start, parts in expired.items()
        if parts
    ]
    if not dry_run:
        runner("drop", archive_compaction.drop_parts, tasks)
        archive_compaction.delete_unnamed(archive)
    gone = [part for parts in expired.values() for part in parts]
    sizes = [sum(group.record_bytes for group in part.row_groups) for part in gone]
    rows = sum(part.rows for manifest in manifests for part in manifest.parts)
    return CompactResult(
        source=archive,
        target=archive,
        is_dry_run=dry_run,
        is_written=bool(tasks) and not dry_run,
        log_files=len(manifests),
        changed_log_files=len(tasks),
        messages_kept=rows - sum(part.rows for part in gone),
        messages_dropped=sum(part.rows for part in gone),
        freed_bytes=sum(part.bytes for part in gone),
        file_bytes=0,
        topics=by_topic(
            (part.topic, part.rows, size) for part, size in zip(gone, sizes, strict=True)
        ),
    )


def _compact_store(
    runner: Runner, store: str, target: str, retention: Retention, dry_run: bool
) -> CompactResult:
    reader = StoreReader.open(store)
    retention = _begun(store, target, retention)
    plan = store_compaction.plan_store(runner, reader, retention)
    is_written = plan.freed_files > 0 and not dry_run
    if is_written:
        begin_store(target, _MARK, _request(store, retention))
        copy_tables(reader.folder, target)
        store_compaction.write_store(runner, store, target, retention, plan)
        finish_store(target, _MARK)
    return CompactResult(
        source=store,
        target=target,
        is_dry_run=dry_run,
        is_written=is_written,
        log_files=len(plan.closed),
        changed_log_files=plan.freed_files,
        messages_kept=plan.kept_messages,
        messages_dropped=sum(topic.messages for topic in plan.dropped),
        freed_bytes=plan.freed_files * plan.file_bytes,
        file_bytes=plan.file_bytes,
        topics=plan.dropped,
    )


def _request(store: str, retention: Retention) -> bytes:
    return msgspec.json.encode([store, retention])


def _begun(store: str, target: str, retention: Retention) -> Retention:
    """Return the retention of a killed run that was writing the target, if there is one.

    Its time decides what was expired: another time would give another result.
    """
    mark = Path(target, _MARK)
    if not mark.is_file():
        return retention
    before, begun = msgspec.json.decode(mark.read_bytes(), type=tuple[str, Retention])
    is_same = (before, begun.rules) == (store, retention.rules)
    return begun if is_same else retention
