"""The report of a store as one HTML page: ``page.write_text(render(report))``.

The template ``store.html.j2`` lists the chapters in the order of the page; here is a function for
what each of them shows. Every number of the report is on the page as text: where a chart rounds, a
table beside it does not.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from reput.html import charts
from reput.html.texts import (
    CONDITIONS,
    NONE,
    count_text,
    duration_text,
    number_text,
    percent_text,
    size_text,
    time_text,
)
from reput.spark.pages import environment

if TYPE_CHECKING:
    from reput.spark.report import Agreement, FileRow, GapRow, Report

COLUMNS_MAX = 240
"""Maximum columns of the timeline; more are thinner than a pixel on a phone."""
_OTHERS = "others"
"""``reput.spark.report.OTHERS``: the topics that the timeline adds up."""
_FILE_HEIGHT = 32


def render(report: "Report") -> str:
    """Return the page."""
    return environment.render("store.html.j2", values(report))


def values(report: "Report", problems: Sequence[str] = ()) -> dict[str, Any]:
    """Return what the template shows; ``problems`` are named before those of the report."""
    colors = _colors(report)
    others = count_text(len(report.topics) - charts.BARS_MAX, "other topic")
    messages = [(row.topic, row.messages, colors[row.topic]) for row in report.topics]
    sizes = [(row.topic, row.bytes, colors[row.topic]) for row in report.topics]
    tags = [(tag or "(no tag)", count, "plain") for tag, count in report.tags]
    return {
        "title": f"{report.broker or report.store}: store report",
        "heading": _heading(report),
        "verdict": _verdict(report, problems),
        "figures": _figures(report),
        "timeline": _timeline(report, colors),
        "message_bars": charts.bars_of(messages, others, report.messages, number_text),
        "size_bars": charts.bars_of(sizes, others, report.bytes, size_text),
        "sizes": charts.histogram("Record size", report.sizes, size_text, "bytes"),
        "latencies": charts.histogram(
            "Latency from born to stored", report.latencies, duration_text, "ms"
        ),
        "tag_bars": charts.bars_of(tags, "other tags", report.messages, number_text),
        "producers": charts.Table(
            "Where messages were born",
            [("Host", "name"), ("Messages", "number")],
            report.producers,
            sorted_by=1,
        ),
        "log": _log(report),
        "files": _files(report),
        "gaps": _gaps(report),
        "topics": _topics(report),
        "lags": charts.Table(
            "Messages that a group has not read",
            [("Group", "name"), ("Topic", "name"), ("Lag", "number")],
            [(row.group, row.topic, row.lag) for row in report.lags],
            sorted_by=2,
        ),
    }


def _heading(report: "Report") -> dict[str, Any]:
    return {
        "store": report.store,
        "broker": report.broker,
        "condition": report.condition,
        "condition_note": CONDITIONS.get(report.condition),
        "first_ms": report.first_ms if report.messages else None,
        "last_ms": report.last_ms,
        "span": duration_text(report.last_ms - report.first_ms),
        "reput_version": report.reput_version,
        "spark_version": report.spark_version,
        "seconds": f"{report.seconds:,}" if report.seconds else "",
    }


def _verdict(report: "Report", problems: Sequence[str]) -> dict[str, Any]:
    """Say in words whether anything is wrong."""
    queues, index = report.queue_agreement, report.index_agreement
    counts = [
        (len(report.damage), "damaged range", "damaged ranges", "in the log"),
        (queues and queues.wrong, "queue entry", "queue entries", "without a message"),
        (queues and queues.missing, "message", "messages", "without a queue entry"),
        (index and index.wrong, "index entry", "index entries", "without a message"),
        (index and index.missing, "message key", "message keys", "without an index entry"),
    ]
    problems_shown = [
        *problems,
        *(
            f"{count_text(count, noun, plural)} {what}"
            for count, noun, plural, what in counts
            if count
        ),
    ]
    if problems_shown:
        return {"title": "Worth a look", "problems": problems_shown, "state": "warn"}
    if report.messages:
        text = "No damage in the log; queues and index agree with it."
        return {"title": "Healthy", "text": text, "problems": [], "state": "ok"}
    text = "The store holds no messages."
    return {"title": "Empty", "text": text, "problems": [], "state": ""}


def _figures(report: "Report") -> list[charts.Figure]:
    mean = (
        f"{size_text(report.bytes // report.messages)} each on average" if report.messages else ""
    )
    split = f"{report.bytes:,}, of which bodies {report.body_bytes:,}"
    queues = count_text(sum(row.queues for row in report.topics), "queue")
    lost = count_text(sum(gap.length for gap in report.damage), "byte")
    return [
        charts.Figure("Messages", number_text(report.messages), mean),
        charts.Figure("Bytes", size_text(report.bytes), split),
        charts.Figure("Topics", number_text(len(report.topics)), f"in {queues}"),
        charts.Figure("Damaged ranges", number_text(len(report.damage)), lost, "warn")
        if report.damage
        else charts.Figure("Damaged ranges", "0", "none found", "ok"),
        _agreement("Queue agreement", report.queue_agreement),
        _agreement("Index agreement", report.index_agreement),
    ]


def _agreement(name: str, agreement: "Agreement | None") -> charts.Figure:
    total = agreement.right + agreement.wrong + agreement.missing if agreement else 0
    if not agreement or not total:
        return charts.Figure(name, NONE, "nothing to compare")
    note = f"{agreement.right:,} right, {agreement.wrong:,} wrong, {agreement.missing:,} missing"
    # Rounded down: only a full agreement is 100 %.
    share = f"{10_000 * agreement.right // total / 100:g} %"
    return charts.Figure(name, share, note, "ok" if agreement.right == total else "warn")


# --- messages over time -------------------------------------------------------------------------


@dataclass(frozen=True)
class _Timeline:
    """A column for each time, with the topics stacked in it."""

    note: str
    height: int
    count: int
    """Columns, empty ones included."""
    is_dense: bool
    paths: list[tuple[str, str]]
    """(color, path) of each topic; the horizontal unit of the path is one column."""
    hits: list[charts.Rectangle]
    values: list[charts.ValueTick]
    times: list[charts.Label]
    legend: list[tuple[str, str, bool]]
    table: charts.Table


def _timeline(report: "Report", colors: Mapping[str, str]) -> _Timeline | None:
    if not report.timeline:
        return None
    start = min(time_ms for time_ms, _, _ in report.timeline)
    width_ms = 1000 * report.bucket_seconds
    last = (max(time_ms for time_ms, _, _ in report.timeline) - start) // width_ms
    width_ms *= -(-(last + 1) // COLUMNS_MAX)
    columns: dict[int, Counter[str]] = defaultdict(Counter)
    totals: Counter[str] = Counter()
    for time_ms, topic, count in sorted(report.timeline):
        columns[(time_ms - start) // width_ms][topic] += count
        totals[topic] += count
    topics = sorted(totals, key=lambda topic: (topic == _OTHERS, -totals[topic], topic))
    column_count = max(columns) + 1
    peak = max(column.total() for column in columns.values())
    each = duration_text(width_ms)
    rows = [
        (start + number * width_ms, *(column[topic] for topic in topics))
        for number, column in columns.items()
    ]
    heads: list[tuple[str, charts.CellKind]] = [("Begin", "time")]
    heads += [(topic, "number") for topic in topics]
    return _Timeline(
        note=f"By topic. A bar is {each}, the highest {count_text(peak, 'message')}. "
        "Times are UTC.",
        height=charts.PLOT_HEIGHT,
        count=column_count,
        is_dense=column_count > 120,
        paths=_paths(columns, topics, colors, 1 if column_count > 120 else 0.84),
        hits=[
            charts.Rectangle(
                "hit",
                100 * number / column_count,
                100 / column_count,
                0,
                charts.PLOT_HEIGHT,
                _column_tip(start + number * width_ms, column, colors),
            )
            for number, column in columns.items()
        ],
        values=charts.value_axis(peak),
        times=charts.time_axis(start, column_count * width_ms),
        legend=[(colors[topic], topic, True) for topic in topics],
        table=charts.Table(f"Messages stored in each {each}", heads, rows),
    )


def _column_tip(time_ms: int, column: Counter[str], colors: Mapping[str, str]) -> charts.Tip:
    lines = [(topic, count, colors[topic]) for topic, count in column.most_common()]
    return charts.Tip(time_text(time_ms), [*lines, ("All", column.total(), "")])


def _paths(
    columns: Mapping[int, Counter[str]],
    topics: Sequence[str],
    colors: Mapping[str, str],
    width: float,
) -> list[tuple[str, str]]:
    """Draw each topic as one path; in a column the first topic is at the bottom."""
    peak = max(column.total() for column in columns.values())
    paths: dict[str, list[str]] = defaultdict(list)
    for number, column in columns.items():
        total, top = column.total(), float(charts.PLOT_HEIGHT)
        # At least 1.5 pixels: one message beside millions is still visible.
        scale = max(charts.PLOT_HEIGHT * total / peak, 1.5) / total
        for topic in topics:
            if column[topic]:
                height = column[topic] * scale
                top -= height
                corner = f"{number + (1 - width) / 2:.2f} {top:.2f}"
                paths[topic].append(f"M{corner}h{width}v{height:.2f}h-{width}z")
    return [(colors[topic], "".join(paths[topic])) for topic in topics]


def _colors(report: "Report") -> dict[str, str]:
    """Return the color of each topic, the same in every chart."""
    named = {topic for _, topic, _ in report.timeline} - {_OTHERS}
    names = [row.topic for row in report.topics if row.topic in named][: charts.COLOR_COUNT]
    colors: dict[str, str] = defaultdict(lambda: "sx")
    colors.update((name, f"s{number}") for number, name in enumerate(names))
    return colors


# --- the log ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _FileCell:
    """A file of the log: how much of it is messages, and where damage is."""

    name: str
    what: str
    start: str
    used: str
    rectangles: list[charts.Rectangle]
    tip: charts.Tip


@dataclass(frozen=True)
class _Log:
    note: str
    is_dense: bool
    files: list[_FileCell]
    left_out: int
    """Number of files without a cell."""


def _log(report: "Report") -> _Log:
    damage: dict[str, list[GapRow]] = defaultdict(list)
    for gap in report.gaps:
        damage[gap.file].append(gap)
    rows = {file.name: (file.size, file.wasted) for file in report.files}
    size = sum(file.size for file in report.files)
    used = size - sum(file.wasted for file in report.files)
    for gap in report.gaps:  # a missing file has a cell too
        rows.setdefault(gap.file, (gap.length, gap.length))
    # If there are too many, those with damage come first.
    kept = sorted(rows, key=lambda name: (name not in damage, name))[: charts.ROWS_MAX]
    is_dense = len(kept) > 60
    note = f"{count_text(len(report.files), 'file')}, {size_text(size)}"
    note += f", {percent_text(used, size)} messages. A cell is a file" if size else ""
    note += "." if is_dense or not size else ", with its first offset and the share of messages."
    return _Log(
        note,
        is_dense,
        [_file_cell(name, *rows[name], damage[name]) for name in sorted(kept)],
        len(rows) - len(kept),
    )


def _file_cell(name: str, size: int, wasted: int, gaps: "Sequence[GapRow]") -> _FileCell:
    start, percent = int(name) if name.isdecimal() else 0, 100 / max(size, 1)
    used = percent_text(size - wasted, size)
    lines = [("Bytes", size, ""), ("Messages", size - wasted, "used"), ("Unused", wasted, "track")]
    if gaps:
        lines.append(("Damaged", sum(gap.length for gap in gaps), "damage"))
    return _FileCell(
        name=name,
        what=f"{used} of {size_text(size)} are messages, {count_text(len(gaps), 'damaged range')}",
        start=size_text(start),
        used=used,
        rectangles=[
            charts.Rectangle("used", 0, percent * (size - wasted), 0, _FILE_HEIGHT),
            *_damage_marks(gaps, start, percent),
        ],
        tip=charts.Tip(name, lines),
    )


def _damage_marks(
    gaps: "Sequence[GapRow]", start: int, percent: float
) -> Iterator[charts.Rectangle]:
    for gap in gaps[: charts.ROWS_MAX]:
        left = percent * (gap.physical_offset - start)
        yield charts.Rectangle("damage", left, percent * gap.length, 0, _FILE_HEIGHT)


# --- tables -------------------------------------------------------------------------------------


def _files(report: "Report") -> charts.Table:
    return charts.Table(
        "Files of the log",
        [
            *(("File", "code"), ("Bytes", "number"), ("Of messages", "number")),
            *(("Unused", "number"), ("First stored", "time"), ("Last stored", "time")),
        ],
        [_file_row(file) for file in report.files],
    )


def _file_row(file: "FileRow") -> tuple[object, ...]:
    used = file.size - file.wasted
    return file.name, file.size, used, file.wasted, file.first_ms, file.last_ms


def _gaps(report: "Report") -> charts.Table:
    return charts.Table(
        "Ranges that hold no messages",
        [
            *(("Physical offset", "number"), ("Bytes", "number"), ("Kind", "name")),
            *(("Reason", "name"), ("File", "code")),
        ],
        [(gap.physical_offset, gap.length, gap.kind, gap.reason, gap.file) for gap in report.gaps],
        sorted_by=0,
        order="ascending",
    )


def _topics(report: "Report") -> charts.Table:
    return charts.Table(
        "Every topic that has messages, including system topics",
        [
            *(("Topic", "name"), ("Messages", "number"), ("Bytes", "number")),
            *(("Body bytes", "number"), ("Queues", "number")),
            *(("First stored", "time"), ("Last stored", "time")),
        ],
        [
            (
                *(row.topic, row.messages, row.bytes, row.body_bytes, row.queues),
                *(row.first_ms, row.last_ms),
            )
            for row in report.topics
        ],
        sorted_by=1,
    )
