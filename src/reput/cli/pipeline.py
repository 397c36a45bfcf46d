"""``reput pipeline``: work on whole stores that Spark spreads over cores and machines.

Each command is one job of ``reput.spark.jobs``: options become arguments, its result is printed.
"""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from reput.cli.exit_codes import EXIT_DAMAGE
from reput.cli.options import SPARK, BeginOption, EndOption, LiveOption, Session, command
from reput.cli.printing import Block, View, print_note
from reput.errors import InvalidOption

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from reput.store.config import StoreConfig

StoreOption = Annotated[
    str, typer.Option("--store", metavar="DIR", help="The store's folder; a path or a URI.")
]
TargetOption = Annotated[
    str, typer.Option("--target", metavar="DIR", help="The folder to make; new or empty.")
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


class _Job(NamedTuple):
    spark: "SparkSession"
    progress: Callable[[str, int, int], None]


@contextlib.contextmanager
def _job(session: Session, name: str) -> Iterator[_Job]:
    """Start Spark, and show how far its tasks are; what it prints itself is kept if it fails."""
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
                yield _Job(spark, bar.update)
        except TaskFailed:
            print_note(f"what Spark printed: {log_file}")
            raise
    log_file.unlink(missing_ok=True)
    folder.rmdir()


def _store_config(path: str | None) -> "StoreConfig | None":
    """Return the store's settings of a broker.conf; what is for other parts is theirs."""
    if path is None:
        return None
    from reput import config
    from reput.store.config import StoreConfig

    return config.load(StoreConfig, path).value


def _view(result: Any, show: Callable[[Any], list[Block]], *, is_bad: bool = False) -> View:
    return View(result.as_json(), *show(result), exit_code=EXIT_DAMAGE if is_bad else 0)


# --- the commands -------------------------------------------------------------------------------


@command(*SPARK)
def dispatch(
    session: Session,
    store: StoreOption,
    config: ConfigOption = None,
    target: Annotated[
        str | None,
        typer.Option("--target", metavar="DIR", help="Where consumequeue/ and index/ are made."),
    ] = None,
    in_place: Annotated[
        bool, typer.Option("--in-place", help="Make them in the store, in place of what is there.")
    ] = False,
    topic: TopicOption = None,
    begin: BeginOption = None,
    end: EndOption = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Write nothing; say how what is there differs.")
    ] = False,
    skip_batch_queues: Annotated[
        bool, typer.Option("--skip-batch-queues", help="Leave batch queues of 5.x as they are.")
    ] = False,
    live: LiveOption = False,
) -> View:
    """Derive consume queues and index from the commit log, byte for byte as a broker does.

    Into --target or --in-place; with --dry-run a comparison only.

    Exit code 0: done, or nothing differs; 1: what is there differs; 2: it cannot be done.
    """
    from reput.cli import pipeline_text
    from reput.spark.jobs import dispatch as job

    with _job(session, "dispatch") as (spark, progress):
        result = job.dispatch(
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
        )
    return _view(
        result,
        pipeline_text.dispatch,
        is_bad=result.difference is not None and not result.difference.is_same,
    )


@command(*SPARK)
def follow(
    session: Session,
    store: StoreOption,
    target: Annotated[
        str,
        typer.Option("--target", metavar="DIR", help="Where consumequeue/ and index/ are kept."),
    ],
    config: ConfigOption = None,
    once: Annotated[
        bool, typer.Option("--once", help="Stop where the log ends; the next call goes on there.")
    ] = False,
    poll: Annotated[
        float,
        typer.Option("--poll", metavar="SECONDS", min=0, help="How often to look for more."),
    ] = 1.0,
    skip_batch_queues: Annotated[
        bool, typer.Option("--skip-batch-queues", help="Leave batch queues of 5.x out.")
    ] = False,
) -> View:
    """Keep consume queues and index of a running broker's log in a folder of their own.

    Goes on until Ctrl-C. Killed at any moment and called again, it goes on where it was.

    Exit code 0: caught up, with --once; 2: it cannot be done.
    """
    from reput.cli import pipeline_text
    from reput.spark.jobs.dispatch import follow as job

    with _job(session, "follow") as (spark, progress):
        result = job.follow(
            spark,
            store,
            target,
            config=_store_config(config),
            poll_seconds=poll,
            until=(lambda found: found.is_caught_up) if once else None,
            skip_batch_queues=skip_batch_queues,
            progress=progress,
        )
    return _view(result, pipeline_text.follow)


@command(*SPARK)
def audit(
    session: Session,
    store: StoreOption,
    config: ConfigOption = None,
    table: Annotated[
        str | None,
        typer.Option("--table", metavar="DIR", help="Make a Parquet table of all messages there."),
    ] = None,
    report: Annotated[
        Path | None, typer.Option("--report", metavar="FILE", help="Write an HTML page there.")
    ] = None,
    at: Annotated[
        str | None,
        typer.Option("--at", metavar="TIME", help="By when delayed messages are due; now."),
    ] = None,
    most: Annotated[
        int, typer.Option("--findings", metavar="N", min=0, help="How many of a kind are told.")
    ] = 100,
    live: LiveOption = False,
) -> View:
    """Give each message and each hole a verdict: dispatched, lost, damaged, consumed by whom.

    With --table also what is stored twice, and what became of delayed messages and transactions.

    Exit code 0: nothing is lost or at fault; 1: something is; 2: it cannot be read.
    """
    from reput.cli import pipeline_text
    from reput.spark.jobs import audit as job
    from reput.spark.pages import audit as audit_page

    with _job(session, "audit") as (spark, progress):
        result = job.audit(
            spark,
            store,
            config=_store_config(config),
            table=table,
            now_ms=session.time_ms("--at", at),
            allow_live=live,
            sample=most,
            progress=progress,
        )
    if report is not None:
        report.write_text(audit_page.render(result), encoding="utf-8")
    return _view(result, pipeline_text.audit, is_bad=not result.is_clean)


@command("master", "conf", "json")
def report(
    session: Session,
    store: StoreOption,
    page: Annotated[
        Path, typer.Option("--report", metavar="FILE", help="Where to write the HTML page.")
    ] = Path("report.html"),
    live: LiveOption = False,
) -> View:
    """Report on a store: totals, topics, damage, lag, and what agrees with the log.

    Exit code 0: the log is whole; 1: it is damaged; 2: it cannot be read.
    """
    import time

    from rich.console import Console

    from reput.cli import report_text
    from reput.spark import report as job
    from reput.spark.pages import store as store_page

    started = time.monotonic()
    with _job(session, "report") as (spark, progress):
        result = job.collect(spark, store, progress, allow_live=live)
    result.seconds = round(time.monotonic() - started, 1)
    page.write_text(store_page.render(result), encoding="utf-8")
    return _view(
        result,
        lambda result: [lambda clock: report_text.show(Console(), result)],
        is_bad=bool(result.damage),
    )


@command(*SPARK)
def salvage(
    session: Session,
    store: StoreOption,
    target: TargetOption,
    config: ConfigOption = None,
    include_stale: Annotated[
        bool, typer.Option("--include-stale", help="Also take what an earlier recovery cut off.")
    ] = False,
) -> View:
    """Write a clean store with every whole message of a damaged one.

    Exit code 0: no message is known to be lost; 1: some are; 2: it cannot be done.
    """
    from reput.cli import pipeline_text
    from reput.spark.jobs import salvage as job

    with _job(session, "salvage") as (spark, progress):
        result = job.salvage(
            spark,
            store,
            target,
            config=_store_config(config),
            include_stale=include_stale,
            progress=progress,
        )
    return _view(result, pipeline_text.salvage, is_bad=result.lost_count > 0)


@command(*SPARK)
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
        typer.Option("--with-broker", metavar="NAME", help="Which one, where there are several."),
    ] = None,
    section: Annotated[
        list[str] | None,
        typer.Option(
            "--section", metavar="NAME", help="Only files, messages, queues or tables; repeatable."
        ),
    ] = None,
    match: Annotated[
        str, typer.Option(metavar="HOW", help="How messages are matched: physical, queue, auto.")
    ] = "auto",
    ignore: Annotated[
        list[str] | None,
        typer.Option("--ignore", metavar="FIELD", help="What may differ; repeatable."),
    ] = None,
    most: Annotated[
        int, typer.Option("--findings", metavar="N", min=0, help="How many a section shows.")
    ] = 100,
    live: LiveOption = False,
) -> View:
    """Compare two stores: files, messages, queues and tables; or one and a running broker.

    Exit code 0: nothing differs; 1: something does; 2: one cannot be read.
    """
    from reput.cli import pipeline_text
    from reput.spark.jobs import compare as job

    if (other is None) == (namesrv is None):
        raise InvalidOption("--with", other, "the other store, or --with-namesrv for a broker")
    right: str | dict[str, str] = other or {
        "nameServer": namesrv or "",
        **({"broker": broker} if broker else {}),
    }

    with _job(session, "compare") as (spark, progress):
        result = job.compare(
            spark,
            store,
            right,
            sections=section or None,
            match=match,
            ignore=ignore or (),
            findings_max=most,
            allow_live=live,
            progress=progress,
        )
    return _view(result, pipeline_text.compare, is_bad=not result.is_equal)


@command(*SPARK)
def archive(
    session: Session,
    store: StoreOption,
    archive: ArchiveOption,
    include_last: Annotated[
        bool, typer.Option("--include-last", help="Take the last log file too, of a stopped store.")
    ] = False,
    broker: Annotated[
        str | None,
        typer.Option("--broker", metavar="NAME", help="The broker's name, if no table tells it."),
    ] = None,
    level: Annotated[
        int, typer.Option(metavar="N", min=1, max=22, help="How hard zstd tries, 1 to 22.")
    ] = 1,
    live: LiveOption = False,
) -> View:
    """Keep the closed log files of a store as Parquet: those that are not in the archive yet.

    Exit code 0: done; 2: it cannot be done.
    """
    from reput.cli import pipeline_text
    from reput.spark.jobs import archive as job

    with _job(session, "archive") as (spark, progress):
        result = job.archive(
            spark,
            store,
            archive,
            include_last=include_last,
            allow_live=live,
            broker=broker,
            level=level,
            progress=progress,
        )
    return _view(result, pipeline_text.archive)


@command(*SPARK)
def verify(
    session: Session,
    archive: ArchiveOption,
    quick: Annotated[
        bool, typer.Option("--quick", help="Check files only; put no log file together again.")
    ] = False,
) -> View:
    """Check an archive: all its files against their counts and checksums.

    Exit code 0: it is whole; 1: it is not; 2: it cannot be read.
    """
    from reput.cli import pipeline_text
    from reput.spark.jobs import archive as job

    with _job(session, "verify") as (spark, progress):
        result = job.verify(spark, archive, is_deep=not quick, progress=progress)
    return _view(result, pipeline_text.verify, is_bad=not result.is_whole)


@command(*SPARK)
def restore(
    session: Session,
    archive: ArchiveOption,
    target: TargetOption,
    topic: TopicOption = None,
    begin: BeginOption = None,
    end: EndOption = None,
    repack: Annotated[
        bool, typer.Option("--repack", help="Leave out what is damaged, blank or missing.")
    ] = False,
    file_bytes: Annotated[
        int | None,
        typer.Option("--file-bytes", metavar="N", help="Size of log files that are packed anew."),
    ] = None,
) -> View:
    """Make a store from an archive, byte for byte, or from a part of it.

    Exit code 0: done; 2: it cannot be done.
    """
    from reput.cli import pipeline_text
    from reput.spark.jobs import restore as job

    with _job(session, "restore") as (spark, progress):
        result = job.restore(
            spark,
            archive,
            target,
            topics=topic or None,
            begin_ms=session.time_ms("--from", begin),
            end_ms=session.time_ms("--to", end),
            repack=repack,
            file_bytes=file_bytes,
            progress=progress,
        )
    return _view(result, pipeline_text.restore)


@command(*SPARK)
def compact(
    session: Session,
    keep: Annotated[
        list[str],
        typer.Option(
            "--keep",
            metavar="TOPICS=TIME",
            help="Topics by pattern, and how long: orders=7d, audit.*=forever; repeatable.",
        ),
    ],
    store: Annotated[
        str | None,
        typer.Option("--store", metavar="DIR", help="The folder of a stopped store."),
    ] = None,
    target: Annotated[
        str | None, typer.Option("--target", metavar="DIR", help="The store to make of it.")
    ] = None,
    archive: Annotated[
        str | None,
        typer.Option("--archive", metavar="DIR", help="An archive, compacted where it is."),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Write nothing; say what would go.")
    ] = False,
) -> View:
    """Take out messages whose topic's retention is over, of closed log files.

    The first --keep that fits a topic counts; topics that none fits are left as they are.

    Exit code 0: done; 2: it cannot be done.
    """
    from reput.cli import pipeline_text
    from reput.spark.jobs import compact as job
    from reput.spark.jobs.compact.expired import retention_from

    if (store is None) == (archive is None):
        raise InvalidOption("--store", store, "a store with --target, or --archive")
    with _job(session, "compact") as (spark, progress):
        result = job.compact(
            spark,
            store or archive or "",
            target,
            retention=retention_from("--keep", keep),
            dry_run=dry_run,
            progress=progress,
        )
    return _view(result, pipeline_text.compact)


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
}
