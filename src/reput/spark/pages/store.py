"""The report as one HTML page: its style, plots and script are in it, and it loads nothing.

Told from the top: ``render`` lists the chapters in the order of the page, each chapter is one
function. What pages have in common is in ``page_parts``.

Every number of the report is on the page as text: what a plot rounds is in a table beside it.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from reput.spark.pages import parts, story as story_chapters

if TYPE_CHECKING:
    from reput.spark.report import Agreement, FileRow, GapRow, Report, TopicRow

COLUMNS_MAX = 240
"""Columns of the timeline: more would be thinner than a pixel on a phone."""

_OTHERS = "others"
"""What ``reput.spark.report`` calls the topics that it does not tell apart over time."""


def render(report: "Report") -> str:
    """Return the page."""
    chapters = [
        _header(report),
        _verdict(report),
        _figures(report),
        *(story_chapters.chapters(report.story) if report.story else ()),
        _timeline(report),
        _topic_bars(report),
        _histograms(report),
        _tags_and_producers(report),
        _log(report),
        _topics(report),
        _lags(report),
    ]
    return parts.page(f"{report.broker or report.store}: store report", chapters)


# --- chapters -----------------------------------------------------------------------------------


def _header(report: "Report") -> parts.Html:
    state = "state ok" if report.condition == "clean" else "state warn"
    note = parts.CONDITIONS.get(report.condition)
    condition = parts.element("span", report.condition, class_=state, title=note)
    facts: list[tuple[str, object]] = []
    if report.messages:
        span = parts.duration_text(report.last_ms - report.first_ms)
        first, last = parts.moment(report.first_ms), parts.moment(report.last_ms)
        facts = [("First message", first), ("Last message", last), ("Span", span)]
    facts.append(("Read with", f"reput {report.reput_version}, Spark {report.spark_version}"))
    if report.seconds:
        facts.append(("Jobs took", f"{report.seconds:,} s"))
    return parts.element(
        "header",
        parts.element(
            "p", parts.LOGO, parts.element("b", "reput"), " store report", class_="brand"
        ),
        parts.element("h1", parts.name_text(report.broker or "Message store"), " ", condition),
        parts.element("p", parts.name_text(report.store), class_="path"),
        parts.element(
            "dl",
            [
                parts.element("div", parts.element("dt", k), parts.element("dd", v))
                for k, v in facts
            ],
        ),
    )


def _verdict(report: "Report") -> parts.Html:
    """Say in words whether anything is wrong."""
    queues, index = report.queue_agreement, report.index_agreement
    problems = [
        (len(report.damage), "damaged range", "damaged ranges", "in the log"),
        (queues and queues.wrong, "queue entry", "queue entries", "without a message"),
        (queues and queues.missing, "message", "messages", "without a queue entry"),
        (index and index.wrong, "index entry", "index entries", "without a message"),
        (index and index.missing, "message key", "message keys", "without an index entry"),
    ]
    told = [parts.element("li", text) for text in (report.story.problems if report.story else ())]
    told += [
        parts.element("li", parts.count_text(n, one, many), f" {what}")
        for n, one, many, what in problems
        if n
    ]
    if told:
        title, text, state = "Worth a look", parts.element("ul", told), "verdict warn"
    elif report.messages:
        text = parts.Html("No damage in the log, and what is derived from it agrees with it.")
        title, state = "In order", "verdict ok"
    else:
        title, text, state = "Empty", parts.Html("The store holds no messages."), "verdict"
    return parts.element("section", parts.element("h2", title), text, class_=state)


def _figures(report: "Report") -> parts.Html:
    lost = parts.count_text(sum(gap.length for gap in report.damage), "byte")
    damage = (lost, "warn") if report.damage else ("none found", "ok")
    mean = (
        f"{parts.size_text(report.bytes // report.messages)} each on average"
        if report.messages
        else ""
    )
    split = f"{report.bytes:,}, of which bodies {report.body_bytes:,}"
    queues = parts.count_text(sum(row.queues for row in report.topics), "queue")
    figures = [
        parts.figure("Messages", parts.number_text(report.messages), mean),
        parts.figure("Bytes", parts.size_text(report.bytes), split),
        parts.figure("Topics", parts.number_text(len(report.topics)), f"in {queues}"),
        parts.figure("Damaged ranges", parts.number_text(len(report.damage)), *damage),
        _agreement("Queue agreement", report.queue_agreement),
        _agreement("Index agreement", report.index_agreement),
    ]
    return parts.element("section", figures, class_="figures", aria_label="Key figures")


def _agreement(name: str, found: "Agreement | None") -> parts.Html:
    total = found.right + found.wrong + found.missing if found else 0
    if not found or not total:
        return parts.figure(name, parts.NONE, "nothing to compare")
    note = f"{found.right:,} right, {found.wrong:,} wrong, {found.missing:,} missing"
    # Rounded down: 100 % is never said of less.
    share = f"{10_000 * found.right // total / 100:g} %"
    return parts.figure(name, share, note, "ok" if found.right == total else "warn")


def _timeline(report: "Report") -> parts.Html:
    if not report.timeline:
        return parts.card("Messages over time", parts.nothing("No messages."))
    start = min(moment for moment, _, _ in report.timeline)
    width_ms = 1000 * report.bucket_seconds
    last = (max(moment for moment, _, _ in report.timeline) - start) // width_ms
    width_ms *= -(-(last + 1) // COLUMNS_MAX)
    counts: dict[int, Counter[str]] = defaultdict(Counter)
    totals: Counter[str] = Counter()
    for moment, topic, count in sorted(report.timeline):
        counts[(moment - start) // width_ms][topic] += count
        totals[topic] += count
    colors = _colors(report)
    topics = sorted(totals, key=lambda topic: (topic == _OTHERS, -totals[topic], topic))
    legend = [(colors[topic], parts.name_text(topic)) for topic in topics]
    columns = {start + at * width_ms: column for at, column in counts.items()}
    rows = [
        (parts.moment(moment), *(column[topic] for topic in topics))
        for moment, column in columns.items()
    ]
    each = parts.duration_text(width_ms)
    peak = max(column.total() for column in columns.values())
    highest = parts.count_text(peak, "message")
    note = f"By topic. A bar is {each}, the highest {highest}. Times are UTC."
    return parts.card(
        "Messages over time",
        parts.element("p", note, class_="note"),
        _stacks(columns, topics, colors, width_ms, note),
        parts.legend(legend),
        parts.details(
            parts.data_table(f"Messages stored in each {each}", ["Begin", *topics], rows)
        ),
    )


def _topic_bars(report: "Report") -> parts.Html:
    colors = _colors(report)
    messages = [(row.topic, row.messages, colors[row.topic]) for row in report.topics]
    sizes = [(row.topic, row.bytes, colors[row.topic]) for row in report.topics]
    others = parts.count_text(len(messages) - parts.BARS_MAX, "other topic")
    return parts.pair_of(
        parts.card(
            "Messages by topic",
            parts.bar_list(messages, others, report.messages, parts.number_text),
        ),
        parts.card("Bytes by topic", parts.bar_list(sizes, others, report.bytes, parts.size_text)),
    )


def _histograms(report: "Report") -> parts.Html:
    return parts.pair_of(
        parts.histogram("Record size", report.sizes, parts.size_text, "bytes"),
        parts.histogram("Latency from born to stored", report.latencies, parts.duration_text, "ms"),
    )


def _tags_and_producers(report: "Report") -> parts.Html:
    tags = [(tag or "(no tag)", count, "plain") for tag, count in report.tags]
    hosts = parts.data_table(
        "Where messages were born", ["Host", "Messages"], report.producers, by=1
    )
    return parts.pair_of(
        parts.card(
            "Messages by tag",
            parts.bar_list(tags, "other tags", report.messages, parts.number_text),
        ),
        parts.card("Producers", hosts),
    )


def _log(report: "Report") -> parts.Html:
    files = [
        (parts.code_text(one.name), one.size, one.size - one.wasted, one.wasted, *_span(one))
        for one in report.files
    ]
    heads = ["File", "Bytes", "Of messages", "Unused", "First stored", "Last stored"]
    gaps = [
        (one.physical_offset, one.length, one.kind, one.reason, parts.code_text(one.file))
        for one in report.gaps
    ]
    gap_heads = ["Physical offset", "Bytes", "Kind", "Reason", "File"]
    damage = parts.data_table(
        "Ranges that hold no messages", gap_heads, gaps, by=0, order="ascending"
    )
    return parts.Html(
        parts.card(
            "Commit log",
            _strip(report),
            parts.details(parts.data_table("Files of the log", heads, files)) if files else "",
        )
        + parts.card("Damage", damage if gaps else parts.nothing("None found."))
    )


def _topics(report: "Report") -> parts.Html:
    heads = ["Topic", "Messages", "Bytes", "Body bytes", "Queues", "First stored", "Last stored"]
    rows = [
        (one.topic, one.messages, one.bytes, one.body_bytes, one.queues, *_span(one))
        for one in report.topics
    ]
    return parts.card(
        "Topics", parts.data_table("Every topic, system topics too", heads, rows, by=1)
    )


def _lags(report: "Report") -> parts.Html:
    rows = [(row.group, row.topic, row.lag) for row in report.lags]
    table = parts.data_table(
        "Messages that a group has not read", ["Group", "Topic", "Lag"], rows, by=2
    )
    return parts.card(
        "Consumer lag", table if rows else parts.nothing("No group has stored an offset.")
    )


# --- plots --------------------------------------------------------------------------------------


def _stacks(
    columns: Mapping[int, Counter[str]],
    topics: Sequence[str],
    colors: Mapping[str, str],
    width_ms: int,
    what: str,
) -> parts.Html:
    """Draw a column for each time, topics stacked in it, the first one at the bottom."""
    start, count = min(columns), (max(columns) - min(columns)) // width_ms + 1
    peak = max(column.total() for column in columns.values())
    bar = 0.84 if count <= 120 else 1
    paths: dict[str, list[str]] = defaultdict(list)
    hits = []
    for moment, column in columns.items():
        at, total, top = (moment - start) // width_ms, column.total(), float(parts.PLOT_HEIGHT)
        # At least 1.5 pixels: one message beside millions is still to be seen.
        scale = max(parts.PLOT_HEIGHT * total / peak, 1.5) / total
        for topic in topics:
            if column[topic]:
                height = column[topic] * scale
                top -= height
                corner = f"{at + (1 - bar) / 2:.2f} {top:.2f}"
                paths[topic].append(f"M{corner}h{bar}v{height:.2f}h-{bar}z")
        lines = [(topic, number, colors[topic]) for topic, number in column.most_common()]
        tip = parts.tip_of(parts.time_text(moment), [*lines, ("All", total, "")])
        hits.append(
            parts.rectangle(
                "hit", 100 * at / count, 100 / count, 0, parts.PLOT_HEIGHT, data_tip=tip
            )
        )
    drawn = [
        parts.element("path", class_=f"series {colors[topic]}", d="".join(paths[topic]))
        for topic in topics
    ]
    # One unit is one column: paths know no percent, a view box of their own does.
    box, crisp = f"0 0 {count} {parts.PLOT_HEIGHT}", "crisp" if bar == 1 else None
    bars = parts.element(
        *("svg", drawn),
        viewBox=box,
        preserveAspectRatio="none",
        height=parts.PLOT_HEIGHT,
        class_=crisp,
    )
    grid, labels = parts.value_axis(peak)
    axes = labels, parts.time_axis(start, count * width_ms)
    return parts.plot(
        "Messages over time", what, parts.PLOT_HEIGHT + 26, [grid, bars, axes, hits], "stacks"
    )


def _strip(report: "Report") -> parts.Html:
    """Draw a cell for each file: how much of it are messages, and damage where it is."""
    damage: dict[str, list[GapRow]] = defaultdict(list)
    for gap in report.gaps:
        damage[gap.file].append(gap)
    rows = {one.name: (one.size, one.wasted) for one in report.files}
    size = sum(one.size for one in report.files)
    used = size - sum(one.wasted for one in report.files)
    for gap in report.gaps:  # a file that is missing has a cell too
        rows.setdefault(gap.file, (gap.length, gap.length))
    # Of too many, those with damage are drawn first.
    kept = sorted(rows, key=lambda name: (name not in damage, name))[: parts.ROWS_MAX]
    cells = [_file(name, *rows[name], damage[name]) for name in sorted(kept)]
    dense = len(kept) > 60
    note = f"{parts.count_text(len(report.files), 'file')}, {parts.size_text(size)}"
    note += f", {parts.percent_text(used, size)} messages. A cell is a file" if size else ""
    note += "." if dense or not size else ", with its first offset and the share of messages."
    keys = ("used", "messages"), ("track", "unused"), ("damage", "damaged or missing")
    return parts.Html(
        parts.element("p", note, class_="note")
        + parts.element("ul", cells, class_="strip dense" if dense else "strip")
        + parts.more_of(len(rows) - len(kept), "file")
        + parts.legend(keys)
    )


def _file(name: str, size: int, wasted: int, gaps: "Sequence[GapRow]") -> parts.Html:
    start, percent = int(name) if name.isdecimal() else 0, 100 / max(size, 1)
    drawn = [parts.rectangle("used", 0, percent * (size - wasted), 0, 32)]
    drawn += [
        parts.rectangle(
            "damage", percent * (gap.physical_offset - start), percent * gap.length, 0, 32
        )
        for gap in gaps[: parts.ROWS_MAX]
    ]
    used = parts.percent_text(size - wasted, size)
    damaged = parts.count_text(len(gaps), "damaged range")
    what = f"{used} of {parts.size_text(size)} are messages, {damaged}"
    lines = [("Bytes", size, ""), ("Messages", size - wasted, "used"), ("Unused", wasted, "track")]
    if gaps:
        lines.append(("Damaged", sum(gap.length for gap in gaps), "damage"))
    ends = parts.element("span", parts.size_text(start)), parts.element("span", used)
    cell = parts.plot(name, what, 32, drawn, "file")
    return parts.element("li", cell, parts.element("p", ends), data_tip=parts.tip_of(name, lines))


# --- pieces -------------------------------------------------------------------------------------


def _colors(report: "Report") -> dict[str, str]:
    """Return the color of each topic: it is the same in every plot."""
    told = {topic for _, topic, _ in report.timeline} - {_OTHERS}
    names = [row.topic for row in report.topics if row.topic in told][: parts.COLOR_COUNT]
    colors: dict[str, str] = defaultdict(lambda: "sx")
    colors.update((name, f"s{number}") for number, name in enumerate(names))
    return colors


# --- numbers and times --------------------------------------------------------------------------


# --- markup -------------------------------------------------------------------------------------


def _span(row: "FileRow | TopicRow") -> tuple[parts.Html, parts.Html]:
    return parts.moment(row.first_ms), parts.moment(row.last_ms)
