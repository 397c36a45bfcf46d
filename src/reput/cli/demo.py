"""``reput demo``: a broker, messages through it, and Spark over its store.

With a report in the terminal and as a page. Or, without the broker: Spark over a store that is
there.
"""

import json
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from reput.cli import demo_text
from reput.errors import ReputError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from rich.console import Console

    from reput.spark.jobs.running import Progress
    from reput.spark.report import Report
    from reput.spark.report_story import Audited, Rebuilt, Story

BUNDLED_STORE = Path(__file__).with_name("data") / "rocketmq-4.9.7.tar.zst"
BUNDLED_FROM = "a store that Apache RocketMQ 4.9.7 wrote"


def run(
    store: Path | None, report_file: Path, master: str, *, is_bundled: bool, as_json: bool
) -> int:
    """Report on a store; return the exit code: 1 if it is damaged, or something went missing.

    Args:
        store: The folder; None: that of a broker that is started for it, and filled.
        report_file: Where the page goes.
        master: Which Spark to use.
        is_bundled: The store that comes with reput, which a Java broker wrote.
        as_json: Print the report as JSON as well.

    Raises:
        ReputError: The store cannot be read, the broker or Spark cannot start.
    """
    from rich.console import Console

    from reput.spark.session import local_session

    console = Console(file=sys.stderr if as_json else sys.stdout)
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="reput-demo-") as name:
        folder = Path(name)
        log_file = folder / "spark.log"
        with _progress(console) as step:
            step("starting Spark", 0, 1)
            with local_session("reput demo", log_file, master) as spark:
                try:
                    report = _work(spark, folder, store, is_bundled, step)
                except ReputError:
                    raise
                except Exception:
                    console.print(log_file.read_text(errors="replace")[-4000:], style="dim")
                    raise
    report.seconds = round(time.monotonic() - started, 1)
    from reput.spark.pages import store as report_page

    report_file.write_text(report_page.render(report), encoding="utf-8")
    if as_json:
        print(json.dumps(report.as_json(), indent=2, ensure_ascii=False))
    demo_text.show(console, report)
    console.print(f"\nThe same with plots: [bold]{report_file.resolve()}[/]")
    problems = report.story.problems if report.story is not None else []
    return 1 if report.damage or problems else 0


def _work(
    spark: "SparkSession", folder: Path, store: Path | None, is_bundled: bool, step: "Progress"
) -> "Report":
    from reput.spark import report

    if is_bundled:
        found = report.collect(spark, str(unpack(BUNDLED_STORE, folder)), step)
        found.store = BUNDLED_FROM
        return found
    if store is not None:
        return report.collect(spark, str(store), step)
    story = _story(spark, folder, step)
    found = report.collect(spark, str(folder / "store"), step)
    found.story = story
    found.store = "the store of a broker that was started for this"
    return found


def _story(spark: "SparkSession", folder: Path, step: "Progress") -> "Story":
    """Run a broker, send, consume and stream; stop it, and check what it left."""
    from reput.cli import demo_stream, demo_traffic
    from reput.spark.report_story import Story

    with demo_traffic.broker(folder) as namesrv:
        traffic = demo_traffic.run(namesrv, step)
        streamed = demo_stream.run(spark, namesrv, folder, traffic, step)
    store = str(folder / "store")
    return Story(traffic, streamed, _rebuild(spark, folder, step), _audit(spark, store, step))


def _rebuild(spark: "SparkSession", folder: Path, step: "Progress") -> "Rebuilt":
    """Derive queues and index from the log, and compare them with what the broker wrote."""
    from reput import config
    from reput.cli import demo_traffic
    from reput.spark.jobs.dispatch import dispatch
    from reput.spark.report_story import Rebuilt
    from reput.store.config import StoreConfig

    told = config.load(StoreConfig, folder / demo_traffic.CONFIG_FILE).value
    started = time.monotonic()
    found = dispatch(spark, str(folder / "store"), config=told, dry_run=True, progress=step)
    assert found.difference is not None
    return Rebuilt(
        seconds=round(time.monotonic() - started, 2),
        units=found.units,
        index_entries=found.index_entries,
        queue_differences=len(found.difference.queues),
        index_differences=len(found.difference.index),
    )


def _audit(spark: "SparkSession", store: str, step: "Progress") -> "Audited":
    """Give each message a verdict."""
    from reput.spark.jobs.audit import audit
    from reput.spark.report_story import Audited

    started = time.monotonic()
    found = audit(spark, store, progress=step)
    return Audited(
        seconds=round(time.monotonic() - started, 2),
        messages=found.messages,
        verdicts={name: count for name, count in found.verdicts.items() if count},
        lost=found.lost_count,
    )


def unpack(archive: Path, folder: Path) -> Path:
    """Unpack a ``.tar.zst`` and return the store in it; file times are kept."""
    import zstandard

    with archive.open("rb") as packed:
        reader = zstandard.ZstdDecompressor(max_window_size=1 << 27).stream_reader(packed)
        with tarfile.open(fileobj=reader, mode="r|") as tar:
            tar.extractall(folder, filter="data")
    return folder / "store"


@contextmanager
def _progress(console: "Console") -> "Iterator[Progress]":
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (
        SpinnerColumn(),
        TextColumn("{task.description:<28}"),
        BarColumn(bar_width=40),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, redirect_stderr=False) as bar:
        task = bar.add_task("starting", total=10)
        yield lambda name, done, total: bar.update(
            task, description=name, completed=done, total=total
        )
