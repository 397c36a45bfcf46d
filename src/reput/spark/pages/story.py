"""Chapters of the report's page that tell what ``reput demo`` did: the flow, lag and checks."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from reput.spark.pages import parts

if TYPE_CHECKING:
    from reput.spark.report_story import Samples, Story, Streamed

_Series = tuple[str, str, "Samples"]
"""Name, color and samples of a line."""


def chapters(story: "Story") -> Iterator[parts.Html]:
    """Yield the chapters, those without anything to tell left out."""
    if story.facts:
        pairs = [
            parts.element("div", parts.element("dt", name), parts.element("dd", text))
            for name, text in story.facts
        ]
        yield parts.card("What was done", parts.element("dl", pairs))
    series = _series(story)
    if series:
        yield _flow(series)
    if story.streamed is not None and story.streamed.batches:
        yield _micro_batches(story.streamed)


def _series(story: "Story") -> list[_Series]:
    series: list[_Series] = []
    if (traffic := story.traffic) is not None:
        series += [("published", "s0", traffic.published), ("consumed", "s2", traffic.consumed)]
    if (streamed := story.streamed) is not None and streamed.batches:
        begin = streamed.batches[0].end_ms - round(1000 * streamed.batches[0].seconds)
        samples, count = [(begin, 0)], 0
        for one in streamed.batches:
            count += one.rows
            samples.append((one.end_ms, count))
        series.append(("streamed into Parquet", "s1", samples))
    return [one for one in series if len(one[2]) > 1]


def _flow(series: Sequence[_Series]) -> parts.Html:
    """Draw how many messages were through at each time: what lies between two lines is a lag."""
    start = min(samples[0][0] for _, _, samples in series)
    span = max(max(samples[-1][0] for _, _, samples in series) - start, 1)
    peak = max(samples[-1][1] for _, _, samples in series) or 1
    drawn = []
    for _, color, samples in series:
        points = " ".join(
            f"{1000 * (moment - start) / span:.1f},{parts.PLOT_HEIGHT * (1 - count / peak):.1f}"
            for moment, count in samples
        )
        drawn.append(
            parts.element(
                "polyline",
                class_=f"series line {color}",
                points=points,
                vector_effect="non-scaling-stroke",
            )
        )
    box = f"0 0 1000 {parts.PLOT_HEIGHT}"
    lines = parts.element(
        "svg", drawn, viewBox=box, preserveAspectRatio="none", height=parts.PLOT_HEIGHT
    )
    grid, labels = parts.value_axis(peak)
    note = "How many were through by then. The height between two lines is how far one is behind."
    heads = ["What", "Begin", "End", "Messages", "A second"]
    rows = [
        (
            name,
            parts.moment(samples[0][0]),
            parts.moment(samples[-1][0]),
            samples[-1][1],
            round(1000 * samples[-1][1] / max(samples[-1][0] - samples[0][0], 1)),
        )
        for name, _, samples in series
    ]
    return parts.card(
        "Through the broker",
        parts.element("p", note, class_="note"),
        parts.plot(
            "Through the broker",
            note,
            parts.PLOT_HEIGHT + 26,
            [grid, lines, labels, parts.time_axis(start, span)],
            "stacks",
        ),
        parts.legend([(color, name) for name, color, _ in series]),
        parts.details(parts.data_table("Messages that went through", heads, rows)),
    )


def _micro_batches(streamed: "Streamed") -> parts.Html:
    """List the lag that each micro-batch of the stream left."""
    bars = [
        (f"{parts.time_text(one.end_ms, 'seconds')} · {one.rows:,} in {one.seconds:.1f} s", one.lag)
        for one in streamed.batches
    ]
    most = max(lag for _, lag in bars)
    items = []
    for text, lag in bars:
        line = parts.element(
            "p", parts.element("span", text), parts.element("span", f"{lag:,} behind")
        )
        width = 100 * lag / max(most, 1)
        drawn = parts.element(
            "svg",
            parts.rectangle("track", 0, 100, 0, 6, rx=3),
            parts.rectangle("s1", 0, width, 0, 6, rx=3),
            width="100%",
            height=6,
            aria_hidden="true",
        )
        items.append(parts.element("li", line, drawn))
    note = "Messages that waited when a micro-batch was through; others were sent meanwhile."
    return parts.card(
        "Lag of the stream",
        parts.element("p", note, class_="note"),
        parts.element("ul", items, class_="bars"),
    )
