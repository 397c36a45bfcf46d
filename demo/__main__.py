"""Run the demo, and print a report in the terminal and as an HTML page.

With ``--bundled``, only report on the store of a Java broker that is in ``data/``.
"""

import json
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
import zstandard
from pyspark.sql import SparkSession
from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress as ProgressBar,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)

from demo import page, stream, traffic as demo_traffic
from demo.story import Audited, Rebuilt, Story
from reput import config
from reput.cli import report_text
from reput.errors import ReputError
from reput.spark import report as store_report
from reput.spark.jobs.audit import audit
from reput.spark.jobs.dispatch import dispatch
from reput.spark.jobs.running import Progress
from reput.spark.session import local_session
from reput.store.config import StoreConfig

BUNDLED_STORE = Path(__file__).with_name("data") / "rocketmq-4.9.7.tar.zst"
BUNDLED_FROM = "a store that Apache RocketMQ 4.9.7 wrote"
_SPARK_SETTINGS = {
    # The optimizing compiler would take a third of a minute, for code that runs once.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.sql.adaptive.enabled": "false",
}


def main(
    bundled: Annotated[
        bool, typer.Option("--bundled", help="Report on a small store that a Java broker wrote.")
    ] = False,
    report: Annotated[Path, typer.Option(help="The HTML page to write.")] = Path("report.html"),
    master: Annotated[str, typer.Option(help="The Spark master.")] = "local[*]",
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON, too.")] = False,
) -> None:
    """Start a broker, send and consume messages, read its store with Spark, and report.

    Exit code 0: no problems; 1: the store is damaged or messages are missing; 2: the broker or
    Spark does not start.
    """
    try:
        code = run(report, master, is_bundled=bundled, as_json=as_json)
    except ReputError as error:
        print(f"demo: {error}", file=sys.stderr)
        code = 2
    raise typer.Exit(code)


def run(report_file: Path, master: str, *, is_bundled: bool, as_json: bool) -> int:
    """Run all parts of the demo; return the exit code.

    Raises:
        ReputError: The store cannot be read, or the broker or Spark cannot start.
    """
    console = Console(file=sys.stderr if as_json else sys.stdout)
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="reput-demo-") as name:
        folder = Path(name)
        log_file = folder / "spark.log"
        with _progress(console) as step:
            step("starting Spark", 0, 1)
            with local_session("reput demo", log_file, master, _SPARK_SETTINGS) as spark:
                try:
                    if is_bundled:
                        report, story = _bundled(spark, folder, step), None
                    else:
                        report, story = _live(spark, folder, step)
                except ReputError:
                    raise
                except Exception:
                    console.print(log_file.read_text(errors="replace")[-4000:], style="dim")
                    raise
    report.seconds = round(time.monotonic() - started, 1)
    report_file.write_text(page.render(report, story), encoding="utf-8")
    if as_json:
        story_json = story.as_json() if story is not None else None
        document = report.as_json() | {"story": story_json}
        print(json.dumps(document, indent=2, ensure_ascii=False))
    report_text.show(console, report, _facts(story))
    console.print(f"\nReport with plots: [bold]{report_file.resolve()}[/]")
    console.print(
        "Next: `.venv/bin/reput up` starts a broker that stays, README.md sends it the first "
        "messages, and `reput pipeline report --store DIR` reports on a store of yours.",
        highlight=False,
    )
    return 1 if report.damage or (story is not None and story.problems) else 0


def _bundled(spark: SparkSession, folder: Path, step: Progress) -> store_report.Report:
    report = store_report.collect(spark, str(unpack(BUNDLED_STORE, folder)), step)
    report.store = BUNDLED_FROM
    return report


def _live(spark: SparkSession, folder: Path, step: Progress) -> tuple[store_report.Report, Story]:
    """Run a broker, send, consume and stream; stop it, and check its store."""
    with demo_traffic.broker(folder) as namesrv:
        traffic = demo_traffic.run(namesrv, step)
        streamed = stream.run(spark, namesrv, folder, traffic, step)
    store = str(folder / "store")
    story = Story(traffic, streamed, _rebuild(spark, folder, step), _audit(spark, store, step))
    report = store_report.collect(spark, store, step)
    report.store = "the store of a broker that was started for this"
    return report, story


def _rebuild(spark: SparkSession, folder: Path, step: Progress) -> Rebuilt:
    """Derive queues and index from the log, and compare them with those of the broker."""
    settings = config.load(StoreConfig, folder / demo_traffic.CONFIG_FILE).value
    started = time.monotonic()
    result = dispatch(spark, str(folder / "store"), config=settings, dry_run=True, progress=step)
    assert result.difference is not None
    return Rebuilt(
        seconds=round(time.monotonic() - started, 2),
        units=result.units,
        index_entries=result.index_entries,
        queue_differences=len(result.difference.queues),
        index_differences=len(result.difference.index),
    )


def _audit(spark: SparkSession, store: str, step: Progress) -> Audited:
    """Give each message a verdict."""
    started = time.monotonic()
    result = audit(spark, store, progress=step)
    return Audited(
        seconds=round(time.monotonic() - started, 2),
        messages=result.messages,
        verdicts={name: count for name, count in result.verdicts.items() if count},
        lost=result.lost_count,
    )


def _facts(story: Story | None) -> list[tuple[str, str]]:
    """Return the facts of the demo, in the markup of the terminal."""
    if story is None:
        return []
    problems = [("problem", f"[red]{text}[/]") for text in story.problems]
    facts = [(name.lower(), text) for name, text in story.facts]
    return [*facts, *(problems or [("result", "[green]no problems[/]")])]


def unpack(archive: Path, folder: Path) -> Path:
    """Unpack a ``.tar.zst`` and return the store in it; modification times are preserved."""
    with archive.open("rb") as packed:
        reader = zstandard.ZstdDecompressor(max_window_size=1 << 27).stream_reader(packed)
        with tarfile.open(fileobj=reader, mode="r|") as tar:
            tar.extractall(folder, filter="data")
    return folder / "store"


@contextmanager
def _progress(console: Console) -> Iterator[Progress]:
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description:<28}"),
        BarColumn(bar_width=40),
        TimeElapsedColumn(),
    )
    with ProgressBar(*columns, console=console, redirect_stderr=False) as bar:
        task = bar.add_task("starting", total=10)
        yield lambda name, done, total: bar.update(
            task, description=name, completed=done, total=total
        )


if __name__ == "__main__":
    typer.run(main)
