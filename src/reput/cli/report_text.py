"""Text of the report on a store, for the terminal."""

import datetime
from collections import defaultdict
from collections.abc import Iterable
from typing import TYPE_CHECKING

from reput.cli.printing import size_text

if TYPE_CHECKING:
    from rich.console import Console

    from reput.spark.report import Agreement, Report

_SPARK_BLOCKS = "▁▂▃▄▅▆▇█"
_ROWS_SHOWN = 12


def show(console: "Console", report: "Report", facts: Iterable[tuple[str, str]] = ()) -> None:
    """Print the report on a store.

    Args:
        console: The console to print to.
        report: The report.
        facts: More names and values, which are printed first.
    """
    from rich.panel import Panel
    from rich.table import Table

    grid = Table.grid(padding=(0, 3))
    span = f"{_iso(report.first_ms)} to {_iso(report.last_ms)}"
    for name, value in (
        *facts,
        ("broker", f"{report.broker or 'not named'}, left {report.condition}"),
        ("messages", f"{report.messages:,} in {len(report.topics)} topics"),
        ("bytes", f"{size_text(report.bytes)}, bodies {size_text(report.body_bytes)}"),
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
        grid.add_row(f"[dim]{name}[/]", value)
    console.print(Panel(grid, title=report.store, title_align="left"))
    topics = Table(title="Topics", title_justify="left", box=None, header_style="dim")
    topics.add_column("topic", max_width=44, no_wrap=True)
    for column in ("messages", "bytes", "queues"):
        topics.add_column(column, justify="right")
    topics.add_column("")
    most = max((row.messages for row in report.topics), default=1)
    for row in report.topics[:_ROWS_SHOWN]:
        bar = "━" * max(1, round(30 * row.messages / most))
        topics.add_row(
            row.topic, f"{row.messages:,}", size_text(row.bytes), str(row.queues), f"[cyan]{bar}[/]"
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


def _agreement(agreement: "Agreement | None") -> str:
    if agreement is None:
        return "[yellow]none there[/]"
    if agreement.wrong or agreement.missing:
        wrong = f"{agreement.wrong:,} wrong, {agreement.missing:,} missing"
        return f"[red]{wrong}[/], {agreement.right:,} right"
    return f"[green]agree with the log[/], {agreement.right:,} entries"


def _damage(report: "Report") -> str:
    if not report.damage:
        return "[green]none[/]"
    size = size_text(sum(gap.length for gap in report.damage))
    return f"[red]{len(report.damage)} ranges, {size}[/]"


def _iso(time_ms: int) -> str:
    moment = datetime.datetime.fromtimestamp(time_ms / 1000, datetime.UTC)
    return moment.strftime("%Y-%m-%d %H:%M:%S UTC")
