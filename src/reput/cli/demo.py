"""``reput demo``: a broker, messages through it, and Spark over its store.

With a report in the terminal and as a page. Or, without the broker: Spark over a store that is
there.
"""

import json
import sys
import tarfile
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

    from reput.spark.report import Agreement, Report, Traffic

BUNDLED_STORE = Path(__file__).with_name("data") / "rocketmq-4.9.7.tar.zst"
BUNDLED_FROM = "a store that Apache RocketMQ 4.9.7 wrote"
_SPARK_BLOCKS = "▁▂▃▄▅▆▇█"
_ROWS_SHOWN = 12


def run(
    store: Path | None, report_file: Path, master: str, *, is_bundled: bool, as_json: bool
) -> int:
    """Report on a store; return the exit code: 1 if it is damaged.

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

    console = Console(file=sys.stderr if as_json else sys.stdout)
    with tempfile.TemporaryDirectory(prefix="reput-demo-") as name:
        folder = Path(name)
        log_file = folder / "spark.log"
        if is_bundled:
            report = _report(console, unpack(BUNDLED_STORE, folder), log_file, master)
            report.store = BUNDLED_FROM
        elif store is not None:
            report = _report(console, store, log_file, master)
        else:
            report = _live(console, folder, log_file, master)
    from reput.spark import report_page

    report_file.write_text(report_page.render(report), encoding="utf-8")
    if as_json:
        print(json.dumps(report.as_json(), indent=2, ensure_ascii=False))
    show(console, report)
    console.print(f"\nThe same with plots: [bold]{report_file.resolve()}[/]")
    return 1 if report.damage else 0


def _live(console: "Console", folder: Path, log_file: Path, master: str) -> "Report":
    """Start a broker, send and consume, and report on its folder while it runs."""
    from reput.cli import demo_traffic

    with demo_traffic.broker(folder) as namesrv:
        console.print(f"reput up: name server at [bold]{namesrv}[/], a broker with an empty store")
        with _progress(console) as step:
            traffic = demo_traffic.run(namesrv, step)
        report = _report(console, folder / "store", log_file, master, is_live=True)
    report.traffic = traffic
    report.store = "the store of a running broker"
    return report


def unpack(archive: Path, folder: Path) -> Path:
    """Unpack a ``.tar.zst`` and return the store in it; file times are kept."""
    import zstandard

    with archive.open("rb") as packed:
        reader = zstandard.ZstdDecompressor(max_window_size=1 << 27).stream_reader(packed)
        with tarfile.open(fileobj=reader, mode="r|") as tar:
            tar.extractall(folder, filter="data")
    return folder / "store"


def _report(
    console: "Console", path: Path, log_file: Path, master: str, *, is_live: bool = False
) -> "Report":
    from reput.errors import ReputError
    from reput.spark.session import local_session

    started = time.monotonic()
    with _progress(console) as step:
        step("starting Spark", 0, 10)
        with local_session("reput demo", log_file, master) as spark:
            from reput.spark import report

            try:
                found = report.collect(spark, str(path), step, allow_live=is_live)
            except ReputError:
                raise
            except Exception:
                console.print(log_file.read_text(errors="replace")[-4000:], style="dim")
                raise
    found.seconds = round(time.monotonic() - started, 1)
    return found


@contextmanager
def _progress(console: "Console") -> "Iterator[report.Progress]":  # type: ignore[name-defined]  # noqa: F821
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


# The terminal report -----------------------------------------------------------------------


def show(console: "Console", report: "Report") -> None:
    """Print the report."""
    from rich.panel import Panel
    from rich.table import Table

    facts = Table.grid(padding=(0, 3))
    span = f"{_iso(report.first_ms)} to {_iso(report.last_ms)}"
    for name, value in (
        *_traffic(report.traffic),
        ("broker", f"{report.broker or 'not named'}, left {report.condition}"),
        ("messages", f"{report.messages:,} in {len(report.topics)} topics"),
        ("bytes", f"{_size(report.bytes)}, bodies {_size(report.body_bytes)}"),
        ("stored", span),
        ("over time", timeline(report)),
        ("consume queues", _agreement(report.queue_agreement)),
        ("index", _agreement(report.index_agreement)),
        ("damage", _damage(report)),
        (
            "computed by",
            f"Spark {report.spark_version}, reput {report.reput_version}, {report.seconds} s",
        ),
    ):
        facts.add_row(f"[dim]{name}[/]", value)
    console.print(Panel(facts, title=report.store, title_align="left"))
    topics = Table(title="Topics", title_justify="left", box=None, header_style="dim")
    topics.add_column("topic", max_width=44, no_wrap=True)
    for column in ("messages", "bytes", "queues"):
        topics.add_column(column, justify="right")
    topics.add_column("")
    most = max((row.messages for row in report.topics), default=1)
    for row in report.topics[:_ROWS_SHOWN]:
        bar = "━" * max(1, round(30 * row.messages / most))
        topics.add_row(
            row.topic, f"{row.messages:,}", _size(row.bytes), str(row.queues), f"[cyan]{bar}[/]"
        )
    console.print(topics)
    if len(report.topics) > _ROWS_SHOWN:
        console.print(f"[dim]  and {len(report.topics) - _ROWS_SHOWN} more[/]")
    if report.tags:
        tags = "  ".join(f"{name or '(none)'} [dim]{count:,}[/]" for name, count in report.tags[:8])
        console.print(f"\n[dim]tags[/]  {tags}")
    for gap in report.gaps[:_ROWS_SHOWN]:
        console.print(
            f"[red]{gap.kind}[/] at {gap.physical_offset:,}, {gap.length:,} bytes: {gap.reason}"
        )


def _traffic(traffic: "Traffic | None") -> list[tuple[str, str]]:
    if traffic is None:
        return []
    return [
        (
            "published",
            f"{traffic.message_count:,} messages in {traffic.publish_seconds:.1f} s, each "
            f"acknowledged: [bold]{traffic.publish_rate:,.0f}[/] a second",
        ),
        (
            "consumed",
            f"{traffic.consumed_count:,} by group {traffic.group} in "
            f"{traffic.consume_seconds:.1f} s: [bold]{traffic.consume_rate:,.0f}[/] a second",
        ),
    ]


def timeline(report: "Report", width: int = 60) -> str:
    """Return messages over time as one line of block characters."""
    counts: dict[int, int] = defaultdict(int)
    for bucket, _, count in report.timeline:
        counts[bucket] += count
    if not counts:
        return "nothing"
    step = report.bucket_seconds * 1000
    first, last = min(counts), max(counts)
    buckets = (last - first) // step + 1
    per_column = -(-buckets // width)
    columns = [0] * -(-buckets // per_column)
    for bucket, count in counts.items():
        columns[(bucket - first) // step // per_column] += count
    peak = max(columns)
    blocks = "".join(
        _SPARK_BLOCKS[min(7, 8 * count // (peak + 1))] if count else " " for count in columns
    )
    return (
        f"[cyan]{blocks}[/] [dim]{per_column * report.bucket_seconds} s each, at most {peak:,}[/]"
    )


def _agreement(found: "Agreement | None") -> str:
    if found is None:
        return "[yellow]none there[/]"
    if found.wrong or found.missing:
        return f"[red]{found.wrong:,} wrong, {found.missing:,} missing[/], {found.right:,} right"
    return f"[green]agree with the log[/], {found.right:,} entries"


def _damage(report: "Report") -> str:
    if not report.damage:
        return "[green]none[/]"
    size = _size(sum(gap.length for gap in report.damage))
    return f"[red]{len(report.damage)} ranges, {size}[/]"


def _size(count: int) -> str:
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:,.0f} {unit}" if unit == "B" else f"{value:,.1f} {unit}"
        value /= 1024
    return f"{value:,.1f} TiB"


def _iso(time_ms: int) -> str:
    import datetime

    moment = datetime.datetime.fromtimestamp(time_ms / 1000, datetime.UTC)
    return moment.strftime("%Y-%m-%d %H:%M:%S UTC")
