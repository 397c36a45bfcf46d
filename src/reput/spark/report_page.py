"""The report as one HTML page: its style, plots and script are in it, and it loads nothing.

Told from the top: ``render`` lists the chapters in the order of the page, each chapter is one
function, and so is each kind of plot. Plots are placed in percent of their width, so that text
keeps its size on a phone. All text of a store (topics, tags, groups, hosts) is input of strangers:
``_element`` escapes whatever is not ``_Html``, and the page's content security policy lets a
browser run and load nothing but what is here.

Every number of the report is on the page as text: what a plot rounds is in a table beside it.
"""

import base64
import hashlib
import html
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from reput.spark.report import Agreement, FileRow, GapRow, Report, TopicRow

ROWS_MAX = 500
"""Rows of a table, and files in the plot of the log: more would make a slow page."""
COLUMNS_MAX = 240
"""Columns of the timeline: more would be thinner than a pixel on a phone."""
BARS_MAX = 11
"""Bars of a list, beside the one for all others."""

_COLOR_COUNT = 11
"""Topics with a color of their own, ``s0`` and so on in the style; all others are ``sx``, grey."""
_OTHERS = "others"
"""What ``reput.spark.report`` calls the topics that it does not tell apart over time."""
_NONE = "—"
_PLOT_HEIGHT = 220
_DAY = 86_400
_TICK_SECONDS = (
    *(1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, _DAY),
    *(2 * _DAY, 7 * _DAY, 14 * _DAY, 28 * _DAY, 91 * _DAY, 182 * _DAY, 365 * _DAY),
)
_CONDITIONS = {
    "clean": "The broker was stopped.",
    "crashed": "The broker was not stopped, or the store was copied while it ran.",
    "running": "A broker held the store while it was read.",
}


class _Html(str):
    """Markup that is done. All other text is escaped where it enters an element."""

    __slots__ = ()


def render(report: "Report") -> str:
    """Return the page."""
    chapters = [
        _header(report),
        _verdict(report),
        _figures(report),
        _timeline(report),
        _topic_bars(report),
        _histograms(report),
        _tags_and_producers(report),
        _log(report),
        _topics(report),
        _lags(report),
    ]
    policy = f"default-src 'none'; img-src data:; style-src {_hash(_CSS)}; script-src {_hash(_JS)}"
    head = [
        _element("meta", charset="utf-8"),
        _element("meta", http_equiv="Content-Security-Policy", content=policy),
        _element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        _element("link", rel="icon", href="data:,"),
        _element("title", f"{report.broker or report.store}: store report"),
        _element("style", _Html(_CSS)),
    ]
    tip = _element("div", id="tip", role="tooltip", hidden="hidden")
    body = _element("main", chapters), tip, _element("script", _Html(_JS))
    page = _element("html", _element("head", head), _element("body", body), lang="en")
    return f"<!doctype html>\n{page}\n"


# --- chapters -----------------------------------------------------------------------------------


def _header(report: "Report") -> _Html:
    state = "state ok" if report.condition == "clean" else "state warn"
    note = _CONDITIONS.get(report.condition)
    condition = _element("span", report.condition, class_=state, title=note)
    facts: list[tuple[str, object]] = []
    if report.messages:
        span = _duration(report.last_ms - report.first_ms)
        first, last = _when(report.first_ms), _when(report.last_ms)
        facts = [("First message", first), ("Last message", last), ("Span", span)]
    if (traffic := report.traffic) is not None:
        facts += [
            ("Published", f"{traffic.message_count:,}, {traffic.publish_rate:,.0f} a second"),
            ("Consumed", f"{traffic.consumed_count:,}, {traffic.consume_rate:,.0f} a second"),
        ]
    facts.append(("Read with", f"reput {report.reput_version}, Spark {report.spark_version}"))
    if report.seconds:
        facts.append(("Jobs took", f"{report.seconds:,} s"))
    return _element(
        "header",
        _element("p", _LOGO, _element("b", "reput"), " store report", class_="brand"),
        _element("h1", _name(report.broker or "Message store"), " ", condition),
        _element("p", _name(report.store), class_="path"),
        _element("dl", [_element("div", _element("dt", k), _element("dd", v)) for k, v in facts]),
    )


def _verdict(report: "Report") -> _Html:
    """Say in words whether anything is wrong."""
    queues, index = report.queue_agreement, report.index_agreement
    problems = [
        (len(report.damage), "damaged range", "damaged ranges", "in the log"),
        (queues and queues.wrong, "queue entry", "queue entries", "without a message"),
        (queues and queues.missing, "message", "messages", "without a queue entry"),
        (index and index.wrong, "index entry", "index entries", "without a message"),
        (index and index.missing, "message key", "message keys", "without an index entry"),
    ]
    told = [
        _element("li", _count(n, one, many), f" {what}") for n, one, many, what in problems if n
    ]
    if told:
        title, text, state = "Worth a look", _element("ul", told), "verdict warn"
    elif report.messages:
        text = _Html("No damage in the log, and what is derived from it agrees with it.")
        title, state = "In order", "verdict ok"
    else:
        title, text, state = "Empty", _Html("The store holds no messages."), "verdict"
    return _element("section", _element("h2", title), text, class_=state)


def _figures(report: "Report") -> _Html:
    lost = _count(sum(gap.length for gap in report.damage), "byte")
    damage = (lost, "warn") if report.damage else ("none found", "ok")
    mean = f"{_size(report.bytes // report.messages)} each on average" if report.messages else ""
    split = f"{report.bytes:,}, of which bodies {report.body_bytes:,}"
    queues = _count(sum(row.queues for row in report.topics), "queue")
    figures = [
        _figure("Messages", _number(report.messages), mean),
        _figure("Bytes", _size(report.bytes), split),
        _figure("Topics", _number(len(report.topics)), f"in {queues}"),
        _figure("Damaged ranges", _number(len(report.damage)), *damage),
        _agreement("Queue agreement", report.queue_agreement),
        _agreement("Index agreement", report.index_agreement),
    ]
    return _element("section", figures, class_="figures", aria_label="Key figures")


def _agreement(name: str, found: "Agreement | None") -> _Html:
    total = found.right + found.wrong + found.missing if found else 0
    if not found or not total:
        return _figure(name, _NONE, "nothing to compare")
    note = f"{found.right:,} right, {found.wrong:,} wrong, {found.missing:,} missing"
    # Rounded down: 100 % is never said of less.
    share = f"{10_000 * found.right // total / 100:g} %"
    return _figure(name, share, note, "ok" if found.right == total else "warn")


def _figure(name: str, value: str, note: str, state: str = "") -> _Html:
    words = {"ok": "✓ ok", "warn": "! check"}
    badge = _element("span", words[state], class_=f"state {state}") if state else ""
    lines = _element("p", value, class_="value"), _element("p", note, class_="note")
    return _element("div", _element("h2", name, badge), lines, class_="card figure")


def _timeline(report: "Report") -> _Html:
    if not report.timeline:
        return _card("Messages over time", _nothing("No messages."))
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
    legend = [(colors[topic], _name(topic)) for topic in topics]
    columns = {start + at * width_ms: column for at, column in counts.items()}
    rows = [
        (_when(moment), *(column[topic] for topic in topics)) for moment, column in columns.items()
    ]
    each = _duration(width_ms)
    peak = max(column.total() for column in columns.values())
    note = f"By topic. A bar is {each}, the highest {_count(peak, 'message')}. Times are UTC."
    return _card(
        "Messages over time",
        _element("p", note, class_="note"),
        _stacks(columns, topics, colors, width_ms, note),
        _legend(legend),
        _details(_table(f"Messages stored in each {each}", ["Begin", *topics], rows)),
    )


def _topic_bars(report: "Report") -> _Html:
    colors = _colors(report)
    messages = [(row.topic, row.messages, colors[row.topic]) for row in report.topics]
    sizes = [(row.topic, row.bytes, colors[row.topic]) for row in report.topics]
    others = _count(len(messages) - BARS_MAX, "other topic")
    return _pair(
        _card("Messages by topic", _bars(messages, others, report.messages, _number)),
        _card("Bytes by topic", _bars(sizes, others, report.bytes, _size)),
    )


def _histograms(report: "Report") -> _Html:
    return _pair(
        _histogram("Record size", report.sizes, _size, "bytes"),
        _histogram("Latency from born to stored", report.latencies, _duration, "ms"),
    )


def _tags_and_producers(report: "Report") -> _Html:
    tags = [(tag or "(no tag)", count, "plain") for tag, count in report.tags]
    hosts = _table("Where messages were born", ["Host", "Messages"], report.producers, by=1)
    return _pair(
        _card("Messages by tag", _bars(tags, "other tags", report.messages, _number)),
        _card("Producers", hosts),
    )


def _log(report: "Report") -> _Html:
    files = [
        (_code(one.name), one.size, one.size - one.wasted, one.wasted, *_span(one))
        for one in report.files
    ]
    heads = ["File", "Bytes", "Of messages", "Unused", "First stored", "Last stored"]
    gaps = [
        (one.physical_offset, one.length, one.kind, one.reason, _code(one.file))
        for one in report.gaps
    ]
    gap_heads = ["Physical offset", "Bytes", "Kind", "Reason", "File"]
    damage = _table("Ranges that hold no messages", gap_heads, gaps, by=0, order="ascending")
    return _Html(
        _card(
            "Commit log",
            _strip(report),
            _details(_table("Files of the log", heads, files)) if files else "",
        )
        + _card("Damage", damage if gaps else _nothing("None found."))
    )


def _topics(report: "Report") -> _Html:
    heads = ["Topic", "Messages", "Bytes", "Body bytes", "Queues", "First stored", "Last stored"]
    rows = [
        (one.topic, one.messages, one.bytes, one.body_bytes, one.queues, *_span(one))
        for one in report.topics
    ]
    return _card("Topics", _table("Every topic, system topics too", heads, rows, by=1))


def _lags(report: "Report") -> _Html:
    rows = [(row.group, row.topic, row.lag) for row in report.lags]
    table = _table("Messages that a group has not read", ["Group", "Topic", "Lag"], rows, by=2)
    return _card("Consumer lag", table if rows else _nothing("No group has stored an offset."))


# --- plots --------------------------------------------------------------------------------------


def _stacks(
    columns: Mapping[int, Counter[str]],
    topics: Sequence[str],
    colors: Mapping[str, str],
    width_ms: int,
    what: str,
) -> _Html:
    """Draw a column for each time, topics stacked in it, the first one at the bottom."""
    start, count = min(columns), (max(columns) - min(columns)) // width_ms + 1
    peak = max(column.total() for column in columns.values())
    bar = 0.84 if count <= 120 else 1
    paths: dict[str, list[str]] = defaultdict(list)
    hits = []
    for moment, column in columns.items():
        at, total, top = (moment - start) // width_ms, column.total(), float(_PLOT_HEIGHT)
        # At least 1.5 pixels: one message beside millions is still to be seen.
        scale = max(_PLOT_HEIGHT * total / peak, 1.5) / total
        for topic in topics:
            if column[topic]:
                height = column[topic] * scale
                top -= height
                corner = f"{at + (1 - bar) / 2:.2f} {top:.2f}"
                paths[topic].append(f"M{corner}h{bar}v{height:.2f}h-{bar}z")
        lines = [(topic, number, colors[topic]) for topic, number in column.most_common()]
        tip = _tip(_time(moment), [*lines, ("All", total, "")])
        hits.append(_rect("hit", 100 * at / count, 100 / count, 0, _PLOT_HEIGHT, data_tip=tip))
    drawn = [
        _element("path", class_=f"series {colors[topic]}", d="".join(paths[topic]))
        for topic in topics
    ]
    # One unit is one column: paths know no percent, a view box of their own does.
    box, crisp = f"0 0 {count} {_PLOT_HEIGHT}", "crisp" if bar == 1 else None
    bars = _element(
        *("svg", drawn), viewBox=box, preserveAspectRatio="none", height=_PLOT_HEIGHT, class_=crisp
    )
    grid, labels = _value_axis(peak)
    axes = labels, _time_axis(start, count * width_ms)
    return _svg("Messages over time", what, _PLOT_HEIGHT + 26, [grid, bars, axes, hits], "stacks")


def _value_axis(peak: int) -> tuple[list[_Html], list[_Html]]:
    """Return lines and labels at round numbers up to the peak."""
    power = 10 ** (len(str(peak)) - 1)
    steps = (power * 2, power, power // 2, power // 5, 1)
    step = next(one for one in steps if one and (peak // one >= 3 or one == 1))
    lines, labels = [], []
    for value in range(0, peak + 1, step):
        y = _PLOT_HEIGHT * (1 - value / peak)
        lines.append(_line(y))
        labels.append(_element("text", _short(value), x=-8, y=f"{y + 4:.1f}", class_="end"))
    return lines, labels


def _time_axis(start: int, span_ms: int) -> list[_Html]:
    """Return labels at round times, nine at most."""
    span = span_ms / 1000
    step = 1000 * next((one for one in _TICK_SECONDS if span / one <= 8), int(span // 8) + 1)
    ticks = []
    for number, moment in enumerate(range(-(-start // step) * step, start + span_ms, step)):
        date, _, clock = _time(moment, "seconds").rstrip("Z").partition("T")
        text = date if clock in ("", "00:00:00") else clock if step < 60_000 else clock[:5]
        ticks.append(_tick(text, 100 * (moment - start) / span_ms, _PLOT_HEIGHT, number))
    return ticks


def _bars(
    rows: Iterable[tuple[str, int, str]], others: str, total: int, text: Callable[[int], str]
) -> _Html:
    """List (name, value, color) with a bar each, the longest first, and one for the others."""
    shown = sorted(rows, key=lambda row: -row[1])[:BARS_MAX]
    if not shown:
        return _nothing("No messages.")
    left = total - sum(value for _, value, _ in shown)
    if left > 0:
        shown.append((others, left, "sx"))
    most = max(1, *(value for _, value, _ in shown))
    items = []
    for name, value, color in shown:
        amount = _element("span", text(value), title=f"{value:,}")
        line = _element("p", _element("span", _name(name), title=name), amount)
        width = max(100 * value / most, 0.5)
        bars = _rect("track", 0, 100, 0, 6, rx=3), _rect(color, 0, width, 0, 6, rx=3)
        drawn = _element("svg", bars, width="100%", height=6, aria_hidden="true")
        items.append(_element("li", line, drawn, data_series=color))
    return _element("ul", items, class_="bars")


def _histogram(
    name: str, buckets: Iterable[tuple[int, int]], text: Callable[[int], str], unit: str
) -> _Html:
    """Draw a column for each power of two that values are below, those without values too."""
    counts = dict(buckets)
    if not counts:
        return _card(name, _nothing("No messages."))
    bounds = [max(min(counts), 1)]
    while bounds[-1] < max(counts):
        bounds.append(2 * bounds[-1])
    peak, height, share, every = max(counts.values()), 150, 100 / len(bounds), -(-len(bounds) // 8)
    # Letters of the amounts, side by side: so many would run into each other, here or on a phone.
    letters = len(bounds) * max(len(_short(count)) for count in counts.values())
    drawn, rows = [_line(height)], []
    for at, below in enumerate([bounds[0] // 2, *bounds]):
        if at % every == 0:
            drawn.append(_tick(text(below), at * share, height, at // every))
    for at, below in enumerate(bounds):
        count = counts.get(below, 0)
        values = f"{below // 2:,} to {below - 1:,}" if below > 2 else f"{below - 1}"
        rows.append((values, count))
        if count:
            tall = max((height - 20) * count / peak, 1.5)
            drawn.append(_rect("plain", (at + 0.06) * share, 0.88 * share, height - tall, tall))
            if letters <= 70:
                x, y = (at + 0.5) * share, height - tall - 26
                drawn.append(_tick(_short(count), x, y, 0, "amount"))
        tip = _tip(f"{values} {unit}", [("Messages", count, "plain")])
        drawn.append(_rect("hit", at * share, share, 0, height, data_tip=tip))
    half, most = text(_below(counts, 0.5)), text(_below(counts, 0.99))
    note = f"Half are below {half}, 99 % below {most}, all below {text(max(counts))}."
    return _card(
        name,
        _element("p", note, class_="note"),
        _svg(name, note, height + 26, drawn, "histogram many" if letters > 40 else "histogram"),
        _details(_table(f"{name}, in powers of two", [f"From, {unit}", "Messages"], rows)),
    )


def _below(counts: Mapping[int, int], share: float) -> int:
    """Return the least bound that this share of the values is below."""
    left = share * sum(counts.values())
    for below in sorted(counts):
        left -= counts[below]
        if left <= 0:
            break
    return below


def _strip(report: "Report") -> _Html:
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
    kept = sorted(rows, key=lambda name: (name not in damage, name))[:ROWS_MAX]
    cells = [_file(name, *rows[name], damage[name]) for name in sorted(kept)]
    dense = len(kept) > 60
    note = f"{_count(len(report.files), 'file')}, {_size(size)}"
    note += f", {_percent(used, size)} messages. A cell is a file" if size else ""
    note += "." if dense or not size else ", with its first offset and the share of messages."
    keys = ("used", "messages"), ("track", "unused"), ("damage", "damaged or missing")
    return _Html(
        _element("p", note, class_="note")
        + _element("ul", cells, class_="strip dense" if dense else "strip")
        + _more(len(rows) - len(kept), "file")
        + _legend(keys)
    )


def _file(name: str, size: int, wasted: int, gaps: "Sequence[GapRow]") -> _Html:
    start, percent = int(name) if name.isdecimal() else 0, 100 / max(size, 1)
    drawn = [_rect("used", 0, percent * (size - wasted), 0, 32)]
    drawn += [
        _rect("damage", percent * (gap.physical_offset - start), percent * gap.length, 0, 32)
        for gap in gaps[:ROWS_MAX]
    ]
    used = _percent(size - wasted, size)
    what = f"{used} of {_size(size)} are messages, {_count(len(gaps), 'damaged range')}"
    lines = [("Bytes", size, ""), ("Messages", size - wasted, "used"), ("Unused", wasted, "track")]
    if gaps:
        lines.append(("Damaged", sum(gap.length for gap in gaps), "damage"))
    ends = _element("span", _size(start)), _element("span", used)
    cell = _svg(name, what, 32, drawn, "file")
    return _element("li", cell, _element("p", ends), data_tip=_tip(name, lines))


# --- pieces -------------------------------------------------------------------------------------


def _card(title: str, *children: object) -> _Html:
    return _element("section", _element("h2", title), children, class_="card")


def _pair(*cards: _Html) -> _Html:
    return _element("div", cards, class_="pair")


def _nothing(text: str) -> _Html:
    return _element("p", text, class_="nothing")


def _more(count: int, noun: str) -> _Html:
    text = f"and {_count(count, f'more {noun}')}"
    return _element("p", text, class_="note") if count > 0 else _Html()


def _details(table: _Html) -> _Html:
    return _element("details", _element("summary", "As a table"), table)


def _legend(keys: Iterable[tuple[str, object]]) -> _Html:
    items = []
    for color, text in keys:
        square = _element("rect", class_=color, width=10, height=10, rx=2)
        swatch = _element("svg", square, width=10, height=10, aria_hidden="true")
        items.append(_element("li", swatch, text, data_series=color))
    return _element("ul", items, class_="legend")


def _table(
    caption: str,
    heads: Sequence[str],
    rows: Sequence[Sequence[object]],
    by: int | None = None,
    order: str = "descending",
) -> _Html:
    """Lay out rows, which are in the order of column ``by``; the script sorts by any other."""
    if not rows:
        return _nothing("None.")
    kinds = ["number" if isinstance(cell, int) else None for cell in rows[0]]
    titles = []
    for at, name in enumerate(heads):
        button, sort = _element("button", _name(name), type="button"), order if at == by else None
        titles.append(_element("th", button, scope="col", class_=kinds[at], aria_sort=sort))
    lines = []
    for row in rows[:ROWS_MAX]:
        cells = zip(row, kinds, strict=True)
        lines.append(_element("tr", [_element("td", _cell(v), class_=kind) for v, kind in cells]))
    head, body = _element("thead", _element("tr", titles)), _element("tbody", lines)
    table = _element("table", _element("caption", caption), head, body)
    # What scrolls has to be reachable from the keyboard.
    scroll = _element("div", table, class_="scroll", tabindex=0, role="region", aria_label=caption)
    return _Html(scroll + _more(len(rows) - ROWS_MAX, "row"))


def _cell(value: object) -> object:
    if isinstance(value, int):
        return _number(value)
    return _name(value) if isinstance(value, str) else value


def _svg(title: str, what: str, height: int, drawn: object, kind: str) -> _Html:
    """Return a plot that is as wide as its place, and says what it shows."""
    label = f"{title}: {what}"
    told = _element("title", title), _element("desc", what)
    return _element("svg", told, drawn, role="img", aria_label=label, height=height, class_=kind)


def _rect(color: str, x: float, width: float, y: float, height: float, **more: object) -> _Html:
    """Return a rectangle that is placed in percent sideways, in pixels from the top."""
    across = {"x": f"{x:.2f}%", "width": f"{max(width, 0):.2f}%"}
    return _element("rect", class_=color, **across, y=f"{y:.1f}", height=f"{height:.1f}", **more)


def _line(y: float) -> _Html:
    return _element("line", x1=0, x2="100%", y1=f"{y:.1f}", y2=f"{y:.1f}", class_="grid")


def _tick(text: str, x: float, y: float, number: int, kind: str = "") -> _Html:
    """Return text below y that stays within the plot; odd ones are left out on a phone."""
    anchor = "start" if x < 3 and not kind else "end" if x > 96 and not kind else ""
    kinds = " ".join(filter(None, (kind, anchor, "odd" if number % 2 else "")))
    return _element("text", text, x=f"{x:.2f}%", y=f"{y + 20:.1f}", class_=kinds or None)


def _colors(report: "Report") -> dict[str, str]:
    """Return the color of each topic: it is the same in every plot."""
    told = {topic for _, topic, _ in report.timeline} - {_OTHERS}
    names = [row.topic for row in report.topics if row.topic in told][:_COLOR_COUNT]
    colors: dict[str, str] = defaultdict(lambda: "sx")
    colors.update((name, f"s{number}") for number, name in enumerate(names))
    return colors


def _tip(title: str, lines: Iterable[tuple[str, int, str]]) -> _Html:
    """Return what the script shows at the pointer: a title, then name, number and color a line."""
    table = [[title], *([name, _number(number), color] for name, number, color in lines)]
    # The cells are clean of both when they are joined.
    return _Html("&#10;".join("&#9;".join(map(_text, cells)) for cells in table))


# --- numbers and times --------------------------------------------------------------------------


def _number(value: int) -> str:
    return f"{value:,}"


def _count(count: int, one: str, many: str = "") -> str:
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def _short(value: int) -> str:
    """Return a number for a plot: ``950``, ``1.2k``, ``34M``."""
    return _scaled(value, (("", 1000), ("k", 1000), ("M", 1000), ("G", 1000), ("T", 1000)))


def _size(value: int) -> str:
    units = ((" B", 1024), (" KiB", 1024), (" MiB", 1024), (" GiB", 1024), (" TiB", 1024))
    return _scaled(value, units)


def _duration(value_ms: int) -> str:
    units = ((" ms", 1000), (" s", 60), (" min", 60), (" h", 24), (" d", 365), (" y", 1000))
    return _scaled(value_ms, units)


def _scaled(value: int, units: Sequence[tuple[str, int]]) -> str:
    """Return a value in the first unit it has fewer of than make the next one."""
    scaled, unit = float(value), units[0][0]
    for unit, of_next in units:
        if scaled < of_next or unit == units[-1][0]:
            break
        scaled /= of_next
    text = f"{scaled:,.1f}" if scaled < 99.95 else f"{scaled:,.0f}"
    return f"{text.removesuffix('.0')}{unit}"


def _percent(part: int, whole: int) -> str:
    return f"{100 * part / whole:.1f} %" if whole else _NONE


def _time(time_ms: int | None, spec: str = "milliseconds") -> str:
    """Return a time as ISO 8601 in UTC; the number if it is no date, as after damage."""
    if time_ms is None:
        return _NONE
    try:
        moment = datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=time_ms)
    except OverflowError:
        return str(time_ms)
    return moment.replace(tzinfo=None).isoformat(timespec=spec) + "Z"


# --- markup -------------------------------------------------------------------------------------

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")
_EMPTY = frozenset(("meta", "link"))


def _element(tag: str, *children: object, **attributes: object) -> _Html:
    """Return an element; children may be nested in lists, attributes that are None are left out."""
    named = "".join(
        f' {name.rstrip("_").replace("_", "-")}="{_text(value)}"'
        for name, value in attributes.items()
        if value is not None
    )
    if tag in _EMPTY:
        return _Html(f"<{tag}{named} />")
    return _Html(f"<{tag}{named}>{_text(children)}</{tag}>")


def _text(value: object) -> _Html:
    if isinstance(value, _Html):
        return value
    if isinstance(value, list | tuple):
        return _Html("".join(map(_text, value)))
    return _Html(html.escape(_CONTROL.sub("\ufffd", str(value))))


def _name(text: str) -> _Html:
    """Return text of a store: whichever way it is written, it does not turn what is around it."""
    return _element("bdi", text or "(empty)")


def _when(time_ms: int | None) -> _Html:
    return _element("span", _time(time_ms), class_="time")


def _span(row: "FileRow | TopicRow") -> tuple[_Html, _Html]:
    return _when(row.first_ms), _when(row.last_ms)


def _code(text: str) -> _Html:
    return _element("code", text)


def _hash(text: str) -> str:
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return f"'sha256-{digest}'"


_LOGO = _Html(
    '<svg width="18" height="18" viewBox="0 0 18 18" aria-hidden="true">'
    '<rect class="s0" y="2" width="18" height="3.5" rx="1.75"></rect>'
    '<rect class="s2" y="7.25" width="12" height="3.5" rx="1.75"></rect>'
    '<rect class="s1" y="12.5" width="7" height="3.5" rx="1.75"></rect></svg>'
)

_CSS = r"""
:root {
  color-scheme: light dark;
  --page: #f8f8f6; --card: #fff; --line: #e6e5e0; --track: #ecebe6; --ink: #1b1c1f;
  --soft: #62656c; --plain: #5b6f9c; --used: #7d92c0;
  --ok: #15703f; --ok-bg: #e9f5ee; --warn: #b42318; --warn-bg: #fdf0ee;
  --s0: #3b6fd4; --s1: #d97706; --s2: #12908a; --s3: #9a55c9; --s4: #c9478a; --s5: #5a9a2f;
  --s6: #8a6245; --s7: #2b9cc4; --s8: #b08900; --s9: #5b5fb0; --s10: #7f8f3a; --sx: #8b9099;
}
@media screen and (prefers-color-scheme: dark) {
  :root {
    --page: #121316; --card: #1a1c20; --line: #2c2f35; --track: #30333a; --ink: #ececea;
    --soft: #a0a4ac; --plain: #8299cc; --used: #5d719f;
    --ok: #5ccb8f; --ok-bg: #15251d; --warn: #ff9183; --warn-bg: #2b1a19;
    --s0: #6f9cf5; --s1: #f0a04b; --s2: #3fc0b5; --s3: #bf8cf0; --s4: #ee82b5; --s5: #8fcb62;
    --s6: #c39a7b; --s7: #66c3ea; --s8: #dcb83c; --s9: #9aa0e8; --s10: #b5c46a; --sx: #868c96;
  }
}
* { box-sizing: border-box; margin: 0; padding: 0; }
body {
  font: 15px/1.5 Inter, system-ui, -apple-system, "Segoe UI", Roboto, sans-serif;
  font-variant-numeric: tabular-nums; background: var(--page); color: var(--ink);
}
main { max-width: 1160px; margin: 0 auto; padding: 40px clamp(14px, 4vw, 40px) 64px; }
main, .pair, .figures { display: grid; gap: 16px; grid-template-columns: 100%; }
ul { list-style: none; }
h1 { font-size: 30px; line-height: 1.2; letter-spacing: -.02em; overflow-wrap: anywhere; }
h2 { font-size: 15px; font-weight: 600; }
.brand { display: flex; gap: 6px; align-items: center; margin-bottom: 24px; color: var(--soft); }
.brand b { color: var(--ink); }
.path { margin-top: 4px; color: var(--soft); overflow-wrap: anywhere; }
dl { display: flex; flex-wrap: wrap; gap: 12px 40px; margin: 24px 0 8px; }
dt, .note, caption, summary { color: var(--soft); font-size: 13px; }
.state {
  display: inline-block; padding: 1px 9px; border-radius: 99px; vertical-align: middle;
  font-size: 12px; font-weight: 600; line-height: 18px; letter-spacing: 0; white-space: nowrap;
}
.state.ok, .verdict.ok { background: var(--ok-bg); } .ok, .ok h2 { color: var(--ok); }
.state.warn, .verdict.warn { background: var(--warn-bg); } .warn, .warn h2 { color: var(--warn); }
.verdict { padding: 12px 20px 14px; border-radius: 12px; background: var(--track); }
.verdict.verdict { color: var(--ink); }
.card { padding: 20px; background: var(--card); border: 1px solid var(--line); }
.card { min-width: 0; border-radius: 12px; }
.figure h2 { display: flex; justify-content: space-between; align-items: start; gap: 8px; }
.figure h2 { font-weight: inherit; font-size: 13px; line-height: 20px; }
.figure h2, .nothing { color: var(--soft); }
.value { font-size: 30px; line-height: 1.3; font-weight: 600; letter-spacing: -.02em; }
.nothing { padding: 24px 0 8px; text-align: center; }
svg { display: block; overflow: visible; width: 100%; }
.brand svg, p > svg { width: 18px; }
.legend svg { width: 10px; flex: none; }
svg text { font-size: 12px; fill: var(--soft); text-anchor: middle; }
svg text.start { text-anchor: start; } svg text.end { text-anchor: end; }
svg text.amount { fill: var(--ink); }
.grid { stroke: var(--line); }
rect, path { fill: currentColor; }
.plain { color: var(--plain); } .used { color: var(--used); } .track { color: var(--track); }
.damage { color: var(--warn); } .hit { fill: transparent; }
.hit:hover { fill: var(--ink); fill-opacity: .07; }
.crisp { shape-rendering: crispEdges; }
.series { transition: opacity .12s; } .series.faint { opacity: .12; }
.stacks { margin: 20px 0 0 44px; width: calc(100% - 44px); }
.histogram { margin-top: 20px; }
.legend { display: flex; flex-wrap: wrap; gap: 6px 18px; margin-top: 14px; font-size: 13px; }
.legend li { display: flex; gap: 7px; align-items: center; max-width: 240px; }
.legend bdi, .bars bdi, #tip bdi { overflow: hidden; text-overflow: ellipsis; white-space: nowrap; }
.bars { display: grid; gap: 9px; grid-template-columns: 100%; margin-top: 14px; font-size: 13px; }
.bars p { display: flex; justify-content: space-between; gap: 16px; margin-bottom: 3px; }
.bars span { display: flex; min-width: 0; } .bars span + span { flex: none; color: var(--soft); }
.strip { display: grid; gap: 10px 8px; margin-top: 16px; }
.strip { grid-template-columns: repeat(auto-fill, minmax(124px, 1fr)); }
.strip p { display: flex; justify-content: space-between; font-size: 12px; color: var(--soft); }
.strip.dense { grid-template-columns: repeat(auto-fill, minmax(26px, 1fr)); gap: 5px; }
.strip.dense p { display: none; }
.file { overflow: hidden; background: var(--track); border-radius: 5px; margin-bottom: 3px; }
.file .damage { stroke: var(--warn); stroke-width: 3px; }
details { margin-top: 12px; }
summary { cursor: pointer; } summary:hover { color: var(--ink); }
.scroll + .note { margin-top: 8px; }
.scroll { overflow: auto; max-height: 920px; margin-top: 2px; }
table { width: 100%; border-collapse: separate; border-spacing: 0; font-size: 13px; }
caption { text-align: left; padding-bottom: 6px; }
th, td { padding: 6px 0 6px 24px; text-align: left; vertical-align: top; }
th:first-child, td:first-child { padding-left: 0; }
th { position: sticky; top: 0; z-index: 1; background: var(--card); }
th { border-bottom: 1px solid var(--line); }
tr + tr td { border-top: 1px solid var(--line); }
tbody tr:hover { background: var(--page); }
th button { all: unset; display: inline-block; position: relative; cursor: pointer; }
th button { font-weight: 500; color: var(--soft); vertical-align: bottom; }
th button:hover { color: var(--ink); }
th button::after { content: "↓"; position: absolute; top: 0; left: 100%; padding: 0 4px; }
th button::after { visibility: hidden; }
th.number button::after { left: auto; right: 100%; }
th[aria-sort] button::after { visibility: visible; }
th[aria-sort=ascending] button::after { content: "↑"; }
th bdi { display: block; max-width: 160px; overflow: hidden; text-overflow: ellipsis; }
th, .number, .time { white-space: nowrap; } .number { text-align: right; }
td bdi { display: block; min-width: 80px; overflow-wrap: anywhere; }
td:first-child bdi { min-width: 110px; }
code { font-family: inherit; white-space: nowrap; }
:focus-visible { outline: 2px solid var(--s0); outline-offset: 2px; border-radius: 4px; }
#tip {
  position: fixed; top: 0; left: 0; z-index: 2; max-width: min(340px, 90vw); padding: 9px 12px;
  background: var(--card); border: 1px solid var(--line); border-radius: 8px; font-size: 12px;
  box-shadow: 0 6px 24px rgb(0 0 0 / 16%); pointer-events: none;
}
#tip[hidden] { display: none; }
#tip p { display: flex; gap: 7px; align-items: center; }
#tip p:first-child { font-weight: 600; }
#tip i { flex: none; width: 8px; height: 8px; border-radius: 4px; background: currentColor; }
#tip b { margin-left: auto; padding-left: 14px; font-weight: 500; }
@media (min-width: 700px) {
  .pair { grid-template-columns: repeat(2, minmax(0, 1fr)); }
  .figures { grid-template-columns: repeat(3, minmax(0, 1fr)); }
}
@media (max-width: 699px) {
  main { padding-top: 24px; }
  main, .pair, .figures { gap: 12px; }
  .figures { grid-template-columns: repeat(2, minmax(0, 1fr)); }
  .card { padding: 16px; } .figure { padding: 12px 14px; }
  h1 { font-size: 24px; } .value { font-size: 20px; overflow-wrap: anywhere; }
  .odd, .many .amount { display: none; }
  dl { display: grid; gap: 10px; }
}
@media print {
  :root { --page: #fff; color-scheme: light; }
  body { font-size: 12px; print-color-adjust: exact; -webkit-print-color-adjust: exact; }
  main { padding: 0; max-width: none; } .card { padding: 14px; } .value { font-size: 22px; }
  .figure, .bars li, .stacks, .histogram, .strip li, tr { break-inside: avoid; }
  h2 { break-after: avoid; } th { position: static; }
  .note, dt, caption, table { font-size: 10px; } th, td { padding-left: 10px; }
  .scroll { overflow: visible; max-height: none; } details { display: none; }
}
""" + "".join(f".s{key} {{ color: var(--s{key}); }}\n" for key in [*range(_COLOR_COUNT), "x"])

_JS = r"""
"use strict";
const tip = document.getElementById("tip");

// Plots have tips of their own: beside them a browser would show their titles.
for (const title of document.querySelectorAll("svg > title")) title.remove();

function add(parent, tag, text, kind = "") {
  const made = Object.assign(document.createElement(tag), { textContent: text, className: kind });
  return parent.appendChild(made);
}

function show(event) {
  const at = event.target.closest("[data-tip]");
  tip.hidden = !at;
  if (!at) return;
  tip.replaceChildren();
  for (const text of at.dataset.tip.split("\n")) {
    const line = add(tip, "p", ""), [name, number, color] = text.split("\t");
    if (color) add(line, "i", "", color);
    add(line, "bdi", name);
    if (number) add(line, "b", number);
  }
  const { clientX: x, clientY: y } = event, { offsetWidth: width, offsetHeight: height } = tip;
  const left = x + width + 24 < innerWidth ? x + 16 : Math.max(8, x - width - 12);
  tip.style.left = left + "px";
  tip.style.top = Math.max(8, Math.min(y + 16, innerHeight - height - 8)) + "px";
}
for (const kind of ["pointermove", "pointerdown"]) document.addEventListener(kind, show);
for (const kind of ["scroll", "pointerleave"]) {
  document.addEventListener(kind, () => { tip.hidden = true; });
}

// A topic at the pointer, wherever it is named, stands out in the timeline.
document.addEventListener("pointerover", (event) => {
  const color = event.target.closest("[data-series]")?.dataset.series;
  const isDrawn = color && document.querySelector(".series." + color);
  for (const one of document.querySelectorAll(".series")) {
    one.classList.toggle("faint", Boolean(isDrawn) && !one.classList.contains(color));
  }
});

function sort(th) {
  const at = th.cellIndex, isNumber = th.classList.contains("number");
  const was = th.getAttribute("aria-sort");
  const isDown = was ? was === "ascending" : isNumber;
  for (const one of th.parentElement.cells) one.removeAttribute("aria-sort");
  th.setAttribute("aria-sort", isDown ? "descending" : "ascending");
  const body = th.closest("table").tBodies[0];
  const keyed = [...body.rows].map((row) => {
    const text = row.cells[at].textContent;
    return [isNumber ? Number(text.replaceAll(",", "")) : text, row];
  });
  keyed.sort(([a], [b]) => (isNumber ? a - b : a.localeCompare(b)) * (isDown ? -1 : 1));
  body.append(...keyed.map(([, row]) => row));
}
for (const button of document.querySelectorAll("th button")) {
  button.addEventListener("click", () => sort(button.parentElement));
}
"""
