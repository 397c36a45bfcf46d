"""The HTML page of the demo: the report on the store, with chapters about the parts of the demo.

The template ``demo.html.j2`` extends that of the report.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import FileSystemLoader

from demo.story import Samples, Story, Streamed
from reput.html import charts
from reput.html.texts import time_text
from reput.spark.pages import store
from reput.spark.pages.environment import make_environment
from reput.spark.report import Report

_Series = tuple[str, str, Samples]
"""Name, color and samples of a line."""


@dataclass(frozen=True)
class _Flow:
    """Number of messages over time: a line each for published, consumed and streamed ones."""

    note: str
    height: int
    lines: list[tuple[str, str]]
    """(color, points) of each line."""
    values: list[charts.ValueTick]
    times: list[charts.Label]
    legend: list[tuple[str, str, bool]]
    table: charts.Table


def render(report: Report, story: Story | None) -> str:
    """Return the page; without a story, only the report."""
    if story is None:
        return store.render(report)
    pages = make_environment(FileSystemLoader(Path(__file__).parent))
    values = store.values(report, story.problems) | _values(story)
    return pages.get_template("demo.html.j2").render(values)


def _values(story: Story) -> dict[str, Any]:
    """Return the values of the template; parts of the demo that did not run are empty."""
    series = _series(story)
    streamed = story.streamed
    return {
        "facts": story.facts,
        "flow": _flow(series) if series else None,
        "stream_lags": _lags(streamed) if streamed is not None and streamed.batches else [],
    }


def _series(story: Story) -> list[_Series]:
    series: list[_Series] = []
    if (traffic := story.traffic) is not None:
        series += [("published", "s0", traffic.published), ("consumed", "s2", traffic.consumed)]
    if (streamed := story.streamed) is not None and streamed.batches:
        begin = streamed.batches[0].end_ms - round(1000 * streamed.batches[0].seconds)
        samples, count = [(begin, 0)], 0
        for batch in streamed.batches:
            count += batch.rows
            samples.append((batch.end_ms, count))
        series.append(("streamed into Parquet", "s1", samples))
    return [line for line in series if len(line[2]) > 1]


def _flow(series: Sequence[_Series]) -> _Flow:
    start = min(samples[0][0] for _, _, samples in series)
    span = max(max(samples[-1][0] for _, _, samples in series) - start, 1)
    peak = max(samples[-1][1] for _, _, samples in series) or 1
    return _Flow(
        note="Messages so far: acknowledged by the broker, processed by the consumers, written "
        "by Spark. The height between two lines is the lag of the lower one.",
        height=charts.PLOT_HEIGHT,
        lines=[(color, _points(samples, start, span, peak)) for _, color, samples in series],
        values=charts.value_axis(peak),
        times=charts.time_axis(start, span),
        legend=[(color, name, False) for name, color, _ in series],
        table=charts.Table(
            "Messages over time",
            [
                *(("What", "name"), ("Begin", "time"), ("End", "time")),
                *(("Messages", "number"), ("A second", "number")),
            ],
            [_row(name, samples) for name, _, samples in series],
        ),
    )


def _points(samples: Samples, start: int, span: int, peak: int) -> str:
    return " ".join(
        f"{1000 * (time_ms - start) / span:.1f},{charts.PLOT_HEIGHT * (1 - count / peak):.1f}"
        for time_ms, count in samples
    )


def _row(name: str, samples: Samples) -> tuple[object, ...]:
    (begin, _), (end, count) = samples[0], samples[-1]
    return name, begin, end, count, round(1000 * count / max(end - begin, 1))


def _lags(streamed: Streamed) -> list[charts.Bar]:
    """Return a bar for the lag after each micro-batch."""
    most = max(max(batch.lag for batch in streamed.batches), 1)
    return [
        charts.Bar(
            f"{time_text(batch.end_ms, 'seconds')} · {batch.rows:,} in {batch.seconds:.1f} s",
            batch.lag,
            f"lag {batch.lag:,}",
            100 * batch.lag / most,
            "s1",
        )
        for batch in streamed.batches
    ]
