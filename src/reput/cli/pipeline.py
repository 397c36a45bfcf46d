"""``reput pipeline``: jobs on whole stores, which Spark distributes over cores and machines.

Each command runs one job of ``reput.spark.jobs`` and prints its result.
"""

import enum
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Protocol, TypeVar

import typer

from reput.cli.exit_codes import EXIT_DAMAGE
from reput.cli.options import (
    CREDENTIALS,
    SPARK,
    TLS,
    BeginOption,
    EndOption,
    LiveOption,
    Session,
    command,
)
from reput.cli.printing import Block, View, print_note
from reput.errors import InvalidOption

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from reput.spark.jobs.audit.verdicts import AuditResult
    from reput.store.config import StoreConfig

StoreOption = Annotated[
    str, typer.Option("--store", metavar="DIR", help="The store's folder; a path or a URI.")
]
TargetOption = Annotated[
    str, typer.Option("--target", metavar="DIR", help="The folder to create; new or empty.")
]
ArchiveOption = Annotated[
    str, typer.Option("--archive", metavar="DIR", help="The archive's folder; a path or a URI.")
]
ConfigOption = Annotated[
    str | None, typer.Option("--config", metavar="FILE", help="The broker.conf of the store.")
]
TopicOption = Annotated[
    list[str] | None,
    typer.Option("--topic", metavar="TOPIC", help="Only this topic; repeatable."),
]


class _Result(Protocol):
    """The result of a job."""

    def as_json(self) -> dict[str, Any]:
        """Return the JSON document."""


R = TypeVar("R", bound=_Result)
Progress = Callable[[str, int, int], None]


def _run(
    session: Session,
    name: str,
    job: Callable[["SparkSession", Progress], R],
    *,
    is_bad: Callable[[R], bool] = lambda result: False,
) -> View:
    """Run a job with a progress bar; return the view of its result.

    Args:
        session: The options of Spark.
        name: Name of the command and of the function of ``pipeline_text`` that shows its result.
        job: The job, given Spark and a function that reports progress.
        is_bad: Returns whether a result makes the exit code 1.
    """
    from reput.cli import pipeline_text

    result = _with_spark(session, name, job)
    blocks: list[Block] = getattr(pipeline_text, name)(result)
    return View(result.as_json(), *blocks, exit_code=EXIT_DAMAGE if is_bad(result) else 0)


def _with_spark(session: Session, name: str, job: Callable[["SparkSession", Progress], R]) -> R:
    """Start Spark and run a job; the output of Spark itself is kept if a task fails."""
    import tempfile

    from reput.cli.progress import ProgressBar
    from reput.spark.jobs.running import TaskFailed
    from reput.spark.session import local_session

    folder = Path(tempfile.mkdtemp(prefix="reput-"))
    log_file = folder / "spark.log"
    with ProgressBar() as bar:
        try:
            with local_session(
                f"reput {name}", log_file, session.master, session.spark_settings
            ) as spark:
                result = job(spark, bar.update)
        except TaskFailed:
            print_note(f"output of Spark: {log_file}")
            raise
    log_file.unlink(missing_ok=True)
    folder.rmdir()
    return result


def _store_config(path: str | None) -> "StoreConfig | None":
    """Return the store's settings of a broker.conf; other settings are ignored."""
    if path is None:
        return None
    from reput import config
    from reput.store.config import StoreConfig

    return config.load(StoreConfig, path).value


# --- the commands -------------------------------------------------------------------------------


@command(*SPARK)
def dispatch(
    session: Session,
    store: StoreOption,
    config: ConfigOption = None,
    target: Annotated[
        str | None,
        typer.Option("--target", metavar="DIR", help="The folder for consumequeue/ and index/."),
    ] = None,
    in_place: Annotated[
        bool, typer.Option("--in-place", help="Replace consumequeue/ and index/ of the store.")
    ] = False,
    topic: TopicOption = None,
    begin: BeginOption = None,
    end: EndOption = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Write nothing; show how existing files differ.")
    ] = False,
    skip_batch_queues: Annotated[
        bool, typer.Option("--skip-batch-queues", help="Leave batch queues of 5.x unchanged.")
    ] = False,
    live: LiveOption = False,
) -> View:
    """Derive consume queues and index from the commit log, byte for byte as a broker does.

    Writes to --target or --in-place; with --dry-run it only compares.

    Exit code 0: done, or nothing differs; 1: existing files differ; 2: failed.
    """
    from reput.spark.jobs import dispatch as job

    return _run(
        session,
        "dispatch",
        lambda spark, progress: job.dispatch(
            spark,
            store,
            config=_store_config(config),
            target=target,
            in_place=in_place,
            topics=topic or None,
            start_ms=session.time_ms("--from", begin),
            end_ms=session.time_ms("--to", end),
            dry_run=dry_run,
            allow_live=live,
            skip_batch_queues=skip_batch_queues,
            progress=progress,
        ),
        is_bad=lambda result: result.difference is not None and not result.difference.is_same,
    )


@command(*SPARK)
def follow(
    session: Session,
    store: StoreOption,
    target: Annotated[
        str,
        typer.Option("--target", metavar="DIR", help="The folder for consumequeue/ and index/."),
    ],
    config: ConfigOption = None,
    once: Annotated[
        bool, typer.Option("--once", help="Stop at the end of the log; the next run continues.")
    ] = False,
    poll: Annotated[
        float,
        typer.Option("--poll", metavar="SECONDS", min=0, help="Interval of checks for more."),
    ] = 1.0,
    skip_batch_queues: Annotated[
        bool, typer.Option("--skip-batch-queues", help="Skip batch queues of 5.x.")
    ] = False,
) -> View:
    """Maintain consume queues and index of a running broker's log in a separate folder.

    Runs until Ctrl-C. If it is killed, the next run continues at the same position.

    Exit code 0: caught up, with --once; 2: failed.
    """
    from reput.spark.jobs.dispatch import follow as job

    return _run(
        session,
        "follow",
        lambda spark, progress: job.follow(
            spark,
            store,
            target,
            config=_store_config(config),
            poll_seconds=poll,
            until=(lambda state: state.is_caught_up) if once else None,
            skip_batch_queues=skip_batch_queues,
            progress=progress,
        ),
    )


@command(*SPARK)
def audit(
    session: Session,
    store: StoreOption,
    config: ConfigOption = None,
    table: Annotated[
        str | None,
        typer.Option("--table", metavar="DIR", help="Write a Parquet table of all messages."),
    ] = None,
    report: Annotated[
        Path | None, typer.Option("--report", metavar="FILE", help="Write an HTML page.")
    ] = None,
    due_at: Annotated[
        str | None,
        typer.Option("--at", metavar="TIME", help="Time to compare due times with; now."),
    ] = None,
    most: Annotated[
        int, typer.Option("--findings", metavar="N", min=0, help="Maximum number of each kind.")
    ] = 100,
    live: LiveOption = False,
) -> View:
    """Give each message and each hole a verdict: dispatched, lost, damaged, consumed.

    With --table also duplicates, and the outcome of delayed messages and transactions.

    Exit code 0: nothing is lost or wrong; 1: something is; 2: the store cannot be read.
    """
    from reput.spark.jobs import audit as job
    from reput.spark.pages import audit as audit_page

    def audited(spark: "SparkSession", progress: Progress) -> "AuditResult":
        result = job.audit(
            spark,
            store,
            config=_store_config(config),
            table=table,
            now_ms=session.time_ms("--at", due_at),
            allow_live=live,
            sample=most,
            progress=progress,
        )
        if report is not None:
            report.write_text(audit_page.render(result), encoding="utf-8")
        return result

    return _run(session, "audit", audited, is_bad=lambda result: not result.is_clean)


@command("master", "conf", "json")
def report(
    session: Session,
    store: StoreOption,
    page: Annotated[
        Path, typer.Option("--report", metavar="FILE", help="The HTML page to write.")
    ] = Path("report.html"),
    live: LiveOption = False,
) -> View:
    """Report on a store: totals, topics, damage, lag, agreement of queues and index with the log.

    Exit code 0: the log is undamaged; 1: it is damaged; 2: it cannot be read.
    """
    import time

    from rich.console import Console

    from reput.cli import report_text
    from reput.spark import report as job
    from reput.spark.pages import store as store_page

    started = time.monotonic()
    result = _with_spark(
        session,
        "report",
        lambda spark, progress: job.collect(spark, store, progress, allow_live=live),
    )
    result.seconds = round(time.monotonic() - started, 1)
    page.write_text(store_page.render(result), encoding="utf-8")
    return View(
        result.as_json(),
        lambda clock: report_text.show(Console(), result),
        exit_code=EXIT_DAMAGE if result.damage else 0,
    )


@command(*SPARK)
def salvage(
    session: Session,
    store: StoreOption,
    target: TargetOption,
    config: ConfigOption = None,
    include_stale: Annotated[
        bool, typer.Option("--include-stale", help="Include data that a recovery has cut off.")
    ] = False,
) -> View:
    """Write a clean store with every intact message of a damaged one.

    Exit code 0: no message is known to be lost; 1: some are; 2: failed.
    """
    from reput.spark.jobs import salvage as job

    return _run(
        session,
        "salvage",
        lambda spark, progress: job.salvage(
            spark,
            store,
            target,
            config=_store_config(config),
            include_stale=include_stale,
            progress=progress,
        ),
        is_bad=lambda result: result.lost_count > 0,
    )


@command(*TLS, *CREDENTIALS, *SPARK)
def compare(
    session: Session,
    store: StoreOption,
    other: Annotated[
        str | None,
        typer.Option("--with", metavar="DIR", help="The other store; a path or a URI."),
    ] = None,
    namesrv: Annotated[
        str | None,
        typer.Option(
            "--with-namesrv", metavar="HOST:PORT", help="Name servers of a running broker instead."
        ),
    ] = None,
    broker: Annotated[
        str | None,
        typer.Option("--with-broker", metavar="NAME", help="The broker, if there are several."),
    ] = None,
    section: Annotated[
        list[str] | None,
        typer.Option(
            "--section", metavar="NAME", help="Only files, messages, queues or tables; repeatable."
        ),
    ] = None,
    match: Annotated[
        str, typer.Option(metavar="HOW", help="Matching of messages: physical, queue, auto.")
    ] = "auto",
    ignore: Annotated[
        list[str] | None,
        typer.Option("--ignore", metavar="FIELD", help="A field that may differ; repeatable."),
    ] = None,
    most: Annotated[
        int, typer.Option("--findings", metavar="N", min=0, help="Maximum number in a section.")
    ] = 100,
    live: LiveOption = False,
) -> View:
    """Compare two stores: files, messages, queues and tables; or one and a running broker.

    Exit code 0: equal; 1: different; 2: one cannot be read.
    """
    from reput.spark.jobs import compare as job

    if (other is None) == (namesrv is None):
        raise InvalidOption("--with", other, "the other store, or --with-namesrv for a broker")
    options = {"nameServer": namesrv, "broker": broker, **session.connection_options()}
    right = other or {name: value for name, value in options.items() if value}

    return _run(
        session,
        "compare",
        lambda spark, progress: job.compare(
            spark,
            store,
            right,
            sections=section or None,
            match=match,
            ignore=ignore or (),
            findings_max=most,
            allow_live=live,
            progress=progress,
        ),
        is_bad=lambda result: not result.is_equal,
    )


@command(*SPARK)
def archive(
    session: Session,
    store: StoreOption,
    archive: ArchiveOption,
    include_last: Annotated[
        bool, typer.Option("--include-last", help="Include the last log file of a stopped store.")
    ] = False,
    broker: Annotated[
        str | None,
        typer.Option("--broker", metavar="NAME", help="The broker's name, if no table has it."),
    ] = None,
    level: Annotated[
        int, typer.Option(metavar="N", min=1, max=22, help="Compression level of zstd, 1 to 22.")
    ] = 1,
    live: LiveOption = False,
) -> View:
    """Archive the closed log files of a store as Parquet, except files archived before.

    Exit code 0: done; 2: failed.
    """
    from reput.spark.jobs import archive as job

    return _run(
        session,
        "archive",
        lambda spark, progress: job.archive(
            spark,
            store,
            archive,
            include_last=include_last,
            allow_live=live,
            broker=broker,
            level=level,
            progress=progress,
        ),
    )


@command(*SPARK)
def verify(
    session: Session,
    archive: ArchiveOption,
    quick: Annotated[
        bool, typer.Option("--quick", help="Check files only; do not rebuild log files.")
    ] = False,
) -> View:
    """Check all files of an archive against their counts and checksums.

    Exit code 0: it is complete and valid; 1: it is not; 2: it cannot be read.
    """
    from reput.spark.jobs import archive as job

    return _run(
        session,
        "verify",
        lambda spark, progress: job.verify(spark, archive, is_deep=not quick, progress=progress),
        is_bad=lambda result: not result.is_whole,
    )


@command(*SPARK)
def restore(
    session: Session,
    archive: ArchiveOption,
    target: TargetOption,
    topic: TopicOption = None,
    begin: BeginOption = None,
    end: EndOption = None,
    repack: Annotated[
        bool, typer.Option("--repack", help="Omit damaged, blank and missing ranges.")
    ] = False,
    file_bytes: Annotated[
        int | None,
        typer.Option("--file-bytes", metavar="N", help="Size of repacked log files."),
    ] = None,
) -> View:
    """Restore a store from an archive, byte for byte, or from a part of it.

    Exit code 0: done; 2: failed.
    """
    from reput.spark.jobs import restore as job

    return _run(
        session,
        "restore",
        lambda spark, progress: job.restore(
            spark,
            archive,
            target,
            topics=topic or None,
            begin_ms=session.time_ms("--from", begin),
            end_ms=session.time_ms("--to", end),
            repack=repack,
            file_bytes=file_bytes,
            progress=progress,
        ),
    )


@command(*SPARK)
def compact(
    session: Session,
    keep: Annotated[
        list[str],
        typer.Option(
            "--keep",
            metavar="TOPICS=TIME",
            help="Retention of topics by pattern: orders=7d, audit.*=forever; repeatable.",
        ),
    ],
    store: Annotated[
        str | None,
        typer.Option("--store", metavar="DIR", help="The folder of a stopped store."),
    ] = None,
    target: Annotated[
        str | None, typer.Option("--target", metavar="DIR", help="The compacted store to create.")
    ] = None,
    archive: Annotated[
        str | None,
        typer.Option("--archive", metavar="DIR", help="An archive, compacted in place."),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Write nothing; show the messages to remove.")
    ] = False,
) -> View:
    """Remove messages past their topic's retention from closed log files.

    The first --keep that matches a topic applies; topics without a match are not changed.

    Exit code 0: done; 2: failed.
    """
    from reput.spark.jobs import compact as job
    from reput.spark.jobs.compact.expired import retention_from

    if (store is None) == (archive is None):
        raise InvalidOption("--store", store, "a store with --target, or --archive")
    retention = retention_from("--keep", keep)
    return _run(
        session,
        "compact",
        lambda spark, progress: job.compact(
            spark,
            store or archive or "",
            target,
            retention=retention,
            dry_run=dry_run,
            progress=progress,
        ),
    )


class StoreForm(enum.StrEnum):
    """Forms of stores that ``convert`` reads."""

    DLEDGER = "dledger"
    ROCKSDB = "rocksdb"


class Uncommitted(enum.StrEnum):
    """What ``convert`` does with entries that are not known to be committed."""

    KEEP = "keep"
    DROP = "drop"


@command(*SPARK)
def convert(
    session: Session,
    form: Annotated[
        StoreForm, typer.Option("--from", help="Form of the store: dledger or rocksdb.")
    ],
    store: StoreOption,
    target: TargetOption,
    config: ConfigOption = None,
    uncommitted: Annotated[
        Uncommitted,
        typer.Option(help="DLedger entries after the committed one of the checkpoint."),
    ] = Uncommitted.KEEP,
    skip_damage: Annotated[
        bool, typer.Option("--skip-damage", help="Leave out damaged records, and list them.")
    ] = False,
) -> View:
    """Write a plain store from one with DLedger, or with queues and tables in RocksDB.

    Messages keep their queue offsets. Brokers of RocketMQ and reput open the new folder.

    Exit code 0: done; 1: done, and records are left out as damaged; 2: failed.
    """
    from reput.spark.jobs import convert as job

    return _run(
        session,
        "convert",
        lambda spark, progress: job.convert(
            spark,
            store,
            target,
            form=form.value,
            config=_store_config(config),
            uncommitted=uncommitted.value,
            skip_damage=skip_damage,
            progress=progress,
        ),
        is_bad=lambda result: result.is_damaged,
    )


COMMANDS = {
    "dispatch": dispatch,
    "follow": follow,
    "audit": audit,
    "report": report,
    "salvage": salvage,
    "compare": compare,
    "archive": archive,
    "verify": verify,
    "restore": restore,
    "compact": compact,
    "convert": convert,
}
