"""The job ``compact``: retention per topic over closed log files.

    compact(spark, "/backup/archive", retention={"audit": None, "logs-.*": 7 * DAY_MS})
    compact(spark, "/data/store", "/data/compacted", retention={".*": 30 * DAY_MS})

A log is shared by all topics, and brokers let go of whole log files, so the topic that is kept
longest decides for all. This takes out messages whose topic's retention is over and keeps the rest.

An archive is compacted in place: Parquet files of a topic and day go when their last message is
past its time. Of a stopped store a smaller one is made beside it, for RocketMQ or reput to open.
Queue offsets stay what they were, and so do consumer offsets.
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
from reput.store.files import absolute
from reput.store.reader import StoreReader

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_MARK = "compacting.json"
"""Says what is being compacted into a folder, until all of it is there."""


@dataclass(frozen=True)
class CompactResult:
    """What went, or would go."""

    source: str
    target: str
    is_dry_run: bool
    is_written: bool
    """False for a dry run, and where there is nothing to gain: no expired message in an archive, no
    whole log file less of a store, whose folder is then not made."""
    log_files: int
    """Closed ones, which were looked at."""
    changed_log_files: int
    """Of an archive, those that lose messages; of a store, how many there are fewer."""
    messages_kept: int
    """Of closed log files."""
    messages_dropped: int
    freed_bytes: int
    """Of files: Parquet of an archive, log files of a store."""
    file_bytes: int
    """What a broker has to be told as ``mappedFileSizeCommitLog``; 0 for an archive."""
    topics: tuple[TopicDropped, ...]
    """What goes, by topic."""

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
    """Take messages out whose topic's retention is over.

    Run again after it was killed, it goes on, or starts over with what was expired then.

    Args:
        spark: The session; None to do all of it here, one task at a time.
        source: An archive, a path or URI, or the folder of a stopped store.
        target: The folder of the store to make, new or empty; None for an archive, which is
            compacted where it is.
        retention: Pattern of topics -> ms that messages are kept after they were stored, None for
            good. The first pattern that fits a topic counts; a topic that none fits is left. A
            pattern is a regular expression; system topics fit their own names only.
        dry_run: Say what would go; nothing is written.
        clock: What the time is.
        progress: Told of the tasks that are done.

    Raises:
        InvalidOption: A pattern is none, a target lacks or is too much, or holds something else.
        StoreUnavailable: There is no such store or archive; the store is in use, or damaged.
        WriteFailed: The folder cannot be written to.
        TaskFailed: A task failed.
    """
    now_ms = (clock or SystemClock()).now_ms()
    rules = retention_of(retention, now_ms)
    runner = runner_on(spark, "compact", progress)
    source = absolute(source)  # workers have folders of their own to work in
    if files.is_archive(source):
        if target is not None:
            raise InvalidOption(
                "target", target, "None for an archive, which is compacted in place"
            )
        return _compact_archive(runner, source, rules, dry_run)
    if target is None:
        raise InvalidOption("target", None, "the folder of the store to make")
    return _compact_store(runner, source, folder_checks.to_write("target", target), rules, dry_run)


def _compact_archive(
    runner: Runner, archive: str, retention: Retention, dry_run: bool
) -> CompactResult:
    manifests = [one for one in ArchiveReader.open(archive).manifests if one.is_closed]
    expired = {one.start: archive_compaction.expired_parts(one, retention) for one in manifests}
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
    rows = sum(part.rows for one in manifests for part in one.parts)
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
        messages_dropped=sum(one.messages for one in plan.dropped),
        freed_bytes=plan.freed_files * plan.file_bytes,
        file_bytes=plan.file_bytes,
        topics=plan.dropped,
    )


def _request(store: str, retention: Retention) -> bytes:
    return msgspec.json.encode([store, retention])


def _begun(store: str, target: str, retention: Retention) -> Retention:
    """Return the retention of the run that was killed while it made the target, if there is one.

    Its time is what was expired then: with another one the result would be another.
    """
    mark = Path(target, _MARK)
    if not mark.is_file():
        return retention
    before, begun = msgspec.json.decode(mark.read_bytes(), type=tuple[str, Retention])
    is_same = (before, begun.rules) == (store, retention.rules)
    return begun if is_same else retention
