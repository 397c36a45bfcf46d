"""Parts of the pages that jobs give: markup, plots, tables, style and script.

Plots are placed in percent of their width, so that text keeps its size on a phone. All text of a
store (topics, tags, groups, hosts) is input of strangers: ``element`` escapes whatever is not
``Html``, and the page's content security policy lets a browser run and load nothing but what is
here.
"""

import base64
import hashlib
import html
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta

ROWS_MAX = 500
"""Rows of a table, and files in the plot of the log: more would make a slow page."""
BARS_MAX = 11
"""Bars of a list, beside the one for all others."""
COLOR_COUNT = 11
"""Colors for what is told apart, ``s0`` and so on in the style; all else is ``sx``, grey."""
NONE = "—"
PLOT_HEIGHT = 220
"""Of plots over time, in pixels, without the labels below."""
_DAY = 86_400
_TICK_SECONDS = (
    *(1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, _DAY),
    *(2 * _DAY, 7 * _DAY, 14 * _DAY, 28 * _DAY, 91 * _DAY, 182 * _DAY, 365 * _DAY),
)
CONDITIONS = {
    "clean": "The broker was stopped.",
    "crashed": "The broker was not stopped, or the store was copied while it ran.",
    "running": "A broker held the store while it was read.",
}


class Html(str):
    """Markup that is done. All other text is escaped where it enters an element."""

    __slots__ = ()


def page(title: str, chapters: Iterable[Html]) -> str:
    """Return a whole page, which loads nothing."""
    policy = f"default-src 'none'; img-src data:; style-src {_hash(_CSS)}; script-src {_hash(_JS)}"
    head = [
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=policy),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("link", rel="icon", href="data:,"),
        element("title", title),
        element("style", Html(_CSS)),
    ]
    tip = element("div", id="tip", role="tooltip", hidden="hidden")
    body = element("main", list(chapters)), tip, element("script", Html(_JS))
    whole = element("html", element("head", head), element("body", body), lang="en")
    return f"<!doctype html>\n{whole}\n"


def figure(name: str, value: str, note: str, state: str = "") -> Html:
    """Return a key figure: a name, a value, a note, and ``ok`` or ``warn`` beside it."""
    words = {"ok": "✓ ok", "warn": "! check"}
    badge = element("span", words[state], class_=f"state {state}") if state else ""
    lines = element("p", value, class_="value"), element("p", note, class_="note")
    return element("div", element("h2", name, badge), lines, class_="card figure")


def bar_list(
    rows: Iterable[tuple[str, int, str]], others: str, total: int, text: Callable[[int], str]
) -> Html:
    """List (name, value, color) with a bar each, the longest first, and one for the others."""
    shown = sorted(rows, key=lambda row: -row[1])[:BARS_MAX]
    if not shown:
        return nothing("No messages.")
    left = total - sum(value for _, value, _ in shown)
    if left > 0:
        shown.append((others, left, "sx"))
    most = max(1, *(value for _, value, _ in shown))
    items = []
    for name, value, color in shown:
        amount = element("span", text(value), title=f"{value:,}")
        line = element("p", element("span", name_text(name), title=name), amount)
        width = max(100 * value / most, 0.5)
        bars = rectangle("track", 0, 100, 0, 6, rx=3), rectangle(color, 0, width, 0, 6, rx=3)
        drawn = element("svg", bars, width="100%", height=6, aria_hidden="true")
        items.append(element("li", line, drawn, data_series=color))
    return element("ul", items, class_="bars")


def histogram(
    name: str, buckets: Iterable[tuple[int, int]], text: Callable[[int], str], unit: str
) -> Html:
    """Draw a column for each power of two that values are below, those without values too."""
    counts = dict(buckets)
    if not counts:
        return card(name, nothing("No messages."))
    bounds = [max(min(counts), 1)]
    while bounds[-1] < max(counts):
        bounds.append(2 * bounds[-1])
    peak, height, share, every = max(counts.values()), 150, 100 / len(bounds), -(-len(bounds) // 8)
    # Letters of the amounts, side by side: so many would run into each other, here or on a phone.
    letters = len(bounds) * max(len(short_text(count)) for count in counts.values())
    drawn, rows = [grid_line(height)], []
    for at, below in enumerate([bounds[0] // 2, *bounds]):
        if at % every == 0:
            drawn.append(tick(text(below), at * share, height, at // every))
    for at, below in enumerate(bounds):
        count = counts.get(below, 0)
        values = f"{below // 2:,} to {below - 1:,}" if below > 2 else f"{below - 1}"
        rows.append((values, count))
        if count:
            tall = max((height - 20) * count / peak, 1.5)
            drawn.append(rectangle("plain", (at + 0.06) * share, 0.88 * share, height - tall, tall))
            if letters <= 70:
                x, y = (at + 0.5) * share, height - tall - 26
                drawn.append(tick(short_text(count), x, y, 0, "amount"))
        tip = tip_of(f"{values} {unit}", [("Messages", count, "plain")])
        drawn.append(rectangle("hit", at * share, share, 0, height, data_tip=tip))
    half, most = text(_below(counts, 0.5)), text(_below(counts, 0.99))
    note = f"Half are below {half}, 99 % below {most}, all below {text(max(counts))}."
    return card(
        name,
        element("p", note, class_="note"),
        plot(name, note, height + 26, drawn, "histogram many" if letters > 40 else "histogram"),
        details(data_table(f"{name}, in powers of two", [f"From, {unit}", "Messages"], rows)),
    )


def _below(counts: Mapping[int, int], share: float) -> int:
    """Return the least bound that this share of the values is below."""
    left = share * sum(counts.values())
    for below in sorted(counts):
        left -= counts[below]
        if left <= 0:
            break
    return below


def card(title: str, *children: object) -> Html:
    """Return a chapter in a frame."""
    return element("section", element("h2", title), children, class_="card")


def pair_of(*cards: Html) -> Html:
    """Return cards that stand side by side where there is room."""
    return element("div", cards, class_="pair")


def nothing(text: str) -> Html:
    """Return a line that says why there is nothing to show."""
    return element("p", text, class_="nothing")


def more_of(count: int, noun: str) -> Html:
    """Return a line that says how many more there are; nothing if there are none."""
    text = f"and {count_text(count, f'more {noun}')}"
    return element("p", text, class_="note") if count > 0 else Html()


def details(table: Html) -> Html:
    """Return a table that is shown when it is asked for."""
    return element("details", element("summary", "As a table"), table)


def legend(keys: Iterable[tuple[str, object]]) -> Html:
    """Return what each color stands for."""
    items = []
    for color, text in keys:
        square = element("rect", class_=color, width=10, height=10, rx=2)
        swatch = element("svg", square, width=10, height=10, aria_hidden="true")
        items.append(element("li", swatch, text, data_series=color))
    return element("ul", items, class_="legend")


def data_table(
    caption: str,
    heads: Sequence[str],
    rows: Sequence[Sequence[object]],
    by: int | None = None,
    order: str = "descending",
) -> Html:
    """Lay out rows, which are in the order of column ``by``; the script sorts by any other."""
    if not rows:
        return nothing("None.")
    kinds = ["number" if isinstance(cell, int) else None for cell in rows[0]]
    titles = []
    for at, name in enumerate(heads):
        button, sort = (
            element("button", name_text(name), type="button"),
            order if at == by else None,
        )
        titles.append(element("th", button, scope="col", class_=kinds[at], aria_sort=sort))
    lines = []
    for row in rows[:ROWS_MAX]:
        cells = zip(row, kinds, strict=True)
        lines.append(element("tr", [element("td", _cell(v), class_=kind) for v, kind in cells]))
    head, body = element("thead", element("tr", titles)), element("tbody", lines)
    table = element("table", element("caption", caption), head, body)
    # What scrolls has to be reachable from the keyboard.
    scroll = element("div", table, class_="scroll", tabindex=0, role="region", aria_label=caption)
    return Html(scroll + more_of(len(rows) - ROWS_MAX, "row"))


def _cell(value: object) -> object:
    if isinstance(value, int):
        return number_text(value)
    return name_text(value) if isinstance(value, str) else value


def plot(title: str, what: str, height: int, drawn: object, kind: str) -> Html:
    """Return a plot that is as wide as its place, and says what it shows."""
    label = f"{title}: {what}"
    told = element("title", title), element("desc", what)
    return element("svg", told, drawn, role="img", aria_label=label, height=height, class_=kind)


def rectangle(color: str, x: float, width: float, y: float, height: float, **more: object) -> Html:
    """Return a rectangle that is placed in percent sideways, in pixels from the top."""
    across = {"x": f"{x:.2f}%", "width": f"{max(width, 0):.2f}%"}
    return element("rect", class_=color, **across, y=f"{y:.1f}", height=f"{height:.1f}", **more)


def grid_line(y: float) -> Html:
    """Return a line across a plot."""
    return element("line", x1=0, x2="100%", y1=f"{y:.1f}", y2=f"{y:.1f}", class_="grid")


def tick(text: str, x: float, y: float, number: int, kind: str = "") -> Html:
    """Return text below y that stays within the plot; odd ones are left out on a phone."""
    anchor = "start" if x < 3 and not kind else "end" if x > 96 and not kind else ""
    kinds = " ".join(filter(None, (kind, anchor, "odd" if number % 2 else "")))
    return element("text", text, x=f"{x:.2f}%", y=f"{y + 20:.1f}", class_=kinds or None)


def value_axis(peak: int) -> tuple[list[Html], list[Html]]:
    """Return lines and labels at round numbers up to the peak."""
    power = 10 ** (len(str(peak)) - 1)
    steps = (power * 2, power, power // 2, power // 5, 1)
    step = next(one for one in steps if one and (peak // one >= 3 or one == 1))
    lines, labels = [], []
    for value in range(0, peak + 1, step):
        y = PLOT_HEIGHT * (1 - value / peak)
        lines.append(grid_line(y))
        labels.append(element("text", short_text(value), x=-8, y=f"{y + 4:.1f}", class_="end"))
    return lines, labels


def time_axis(start: int, span_ms: int) -> list[Html]:
    """Return labels at round times, nine at most."""
    span = span_ms / 1000
    step = 1000 * next((one for one in _TICK_SECONDS if span / one <= 8), int(span // 8) + 1)
    ticks = []
    for number, moment in enumerate(range(-(-start // step) * step, start + span_ms, step)):
        date, _, clock = time_text(moment, "seconds").rstrip("Z").partition("T")
        text = date if clock in ("", "00:00:00") else clock if step < 60_000 else clock[:5]
        ticks.append(tick(text, 100 * (moment - start) / span_ms, PLOT_HEIGHT, number))
    return ticks


def tip_of(title: str, lines: Iterable[tuple[str, int, str]]) -> Html:
    """Return what the script shows at the pointer: a title, then name, number and color a line."""
    table = [[title], *([name, number_text(number), color] for name, number, color in lines)]
    # The cells are clean of both when they are joined.
    return Html("&#10;".join("&#9;".join(map(_text, cells)) for cells in table))


def number_text(value: int) -> str:
    """Return a whole number."""
    return f"{value:,}"


def count_text(count: int, one: str, many: str = "") -> str:
    """Return a number and what it counts."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def short_text(value: int) -> str:
    """Return a number for a plot: ``950``, ``1.2k``, ``34M``."""
    return _scaled(value, (("", 1000), ("k", 1000), ("M", 1000), ("G", 1000), ("T", 1000)))


def size_text(value: int) -> str:
    """Return a number of bytes in a unit that suits."""
    units = ((" B", 1024), (" KiB", 1024), (" MiB", 1024), (" GiB", 1024), (" TiB", 1024))
    return _scaled(value, units)


def duration_text(value_ms: int) -> str:
    """Return a number of milliseconds in a unit that suits."""
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


def percent_text(part: int, whole: int) -> str:
    """Return a share; a dash of nothing."""
    return f"{100 * part / whole:.1f} %" if whole else NONE


def time_text(time_ms: int | None, spec: str = "milliseconds") -> str:
    """Return a time as ISO 8601 in UTC; the number if it is no date, as after damage."""
    if time_ms is None:
        return NONE
    try:
        moment = datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=time_ms)
    except OverflowError:
        return str(time_ms)
    return moment.replace(tzinfo=None).isoformat(timespec=spec) + "Z"


_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")
_EMPTY = frozenset(("meta", "link"))


def element(tag: str, *children: object, **attributes: object) -> Html:
    """Return an element; children may be nested in lists, attributes that are None are left out."""
    named = "".join(
        f' {name.rstrip("_").replace("_", "-")}="{_text(value)}"'
        for name, value in attributes.items()
        if value is not None
    )
    if tag in _EMPTY:
        return Html(f"<{tag}{named} />")
    return Html(f"<{tag}{named}>{_text(children)}</{tag}>")


def _text(value: object) -> Html:
    if isinstance(value, Html):
        return value
    if isinstance(value, list | tuple):
        return Html("".join(map(_text, value)))
    return Html(html.escape(_CONTROL.sub("\ufffd", str(value))))


def name_text(text: str) -> Html:
    """Return text of a store: whichever way it is written, it does not turn what is around it."""
    return element("bdi", text or "(empty)")


def moment(time_ms: int | None) -> Html:
    """Return a time."""
    return element("span", time_text(time_ms), class_="time")


def code_text(text: str) -> Html:
    """Return the name of a file, or the like."""
    return element("code", text)


def _hash(text: str) -> str:
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return f"'sha256-{digest}'"


LOGO = Html(
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
.line { fill: none; stroke: currentColor; stroke-width: 2; stroke-linejoin: round; }
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
""" + "".join(f".s{key} {{ color: var(--s{key}); }}\n" for key in [*range(COLOR_COUNT), "x"])


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
