"""Geometry of charts and tables: values in, positions out; templates turn them into markup.

Horizontal positions and widths are percent of the chart's width, so that text keeps its size on a
phone. Heights are pixels.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from reput.html.texts import short_text, time_text

ROWS_MAX = 500
"""Maximum rows of a table, and files in the chart of the log; more make a slow page."""
BARS_MAX = 11
"""Maximum bars of a list, beside the bar of all others."""
COLOR_COUNT = 11
"""Number of colors ``s0``, ``s1``, ... in the style sheet; the rest is ``sx``, grey."""
PLOT_HEIGHT = 220
"""Height of a chart over time in pixels, without the labels below it."""
_HISTOGRAM_HEIGHT = 150
_DAY = 86_400
_TICK_SECONDS = (
    *(1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, _DAY),
    *(2 * _DAY, 7 * _DAY, 14 * _DAY, 28 * _DAY, 91 * _DAY, 182 * _DAY, 365 * _DAY),
)

CellKind = Literal["number", "name", "time", "code"]


@dataclass(frozen=True)
class Figure:
    """A key figure."""

    name: str
    value: str
    note: str
    state: Literal["", "ok", "warn"] = ""


@dataclass(frozen=True)
class Table:
    """A table that the script sorts by any column."""

    caption: str
    columns: Sequence[tuple[str, CellKind]]
    """Heading and kind of each column."""
    rows: Sequence[Sequence[object]]
    sorted_by: int | None = None
    """Number of the column that the rows are sorted by."""
    order: Literal["ascending", "descending"] = "descending"

    @property
    def shown(self) -> Sequence[Sequence[object]]:
        """The rows on the page."""
        return self.rows[:ROWS_MAX]


@dataclass(frozen=True)
class Tip:
    """Text at the pointer: a title, then lines of name, number and color."""

    title: str
    lines: Sequence[tuple[str, int, str]]


@dataclass(frozen=True)
class Rectangle:
    """A rectangle of a chart."""

    color: str
    x: float
    width: float
    y: float
    height: float
    tip: Tip | None = None


@dataclass(frozen=True)
class Label:
    """A text in a chart."""

    text: str
    x: float
    y: float
    kind: str
    """Classes: where the text is anchored, and whether a phone leaves it out."""


@dataclass(frozen=True)
class Bar:
    """A bar of a list."""

    name: str
    value: int
    text: str
    """The value, formatted."""
    width: float
    color: str


@dataclass
class Histogram:
    """Columns for powers of two."""

    title: str
    note: str
    kind: str
    """Classes of the chart."""
    table: Table
    height: int = _HISTOGRAM_HEIGHT
    labels: list[Label] = field(default_factory=list)
    columns: list[Rectangle] = field(default_factory=list)
    hits: list[Rectangle] = field(default_factory=list)
    """Invisible rectangles that carry the tips."""


@dataclass(frozen=True)
class ValueTick:
    """A line across a chart at a round value."""

    y: float
    text: str


def bars_of(
    rows: Iterable[tuple[str, int, str]], others: str, total: int, text: Callable[[int], str]
) -> list[Bar]:
    """Make a bar of each (name, value, color), the longest first, and one of all others."""
    shown = sorted(rows, key=lambda row: -row[1])[:BARS_MAX]
    if not shown:
        return []
    rest = total - sum(value for _, value, _ in shown)
    if rest > 0:
        shown.append((others, rest, "sx"))
    longest = max(1, *(value for _, value, _ in shown))
    return [
        Bar(name, value, text(value), max(100 * value / longest, 0.5), color)
        for name, value, color in shown
    ]


def histogram(
    title: str, buckets: Iterable[tuple[int, int]], text: Callable[[int], str], unit: str
) -> Histogram | None:
    """Draw a column for each power of two that bounds values, including empty ones between them.

    Args:
        title: Title of the chart.
        buckets: (power of two, number of values below it and not below the previous one).
        text: Formats a bound.
        unit: Unit of the bounds.

    Returns:
        The chart; None if there are no values.
    """
    counts = dict(buckets)
    if not counts:
        return None
    bounds = [max(min(counts), 1)]
    while bounds[-1] < max(counts):
        bounds.append(2 * bounds[-1])
    peak, height, share = max(counts.values()), _HISTOGRAM_HEIGHT, 100 / len(bounds)
    # Not a label per amount: too many run into each other, here or on a phone.
    letters = len(bounds) * max(len(short_text(count)) for count in counts.values())
    half, most = text(_bound_below(counts, 0.5)), text(_bound_below(counts, 0.99))
    rows: list[tuple[str, int]] = []
    chart = Histogram(
        title,
        f"Half are below {half}, 99 % below {most}, all below {text(max(counts))}.",
        "histogram many" if letters > 40 else "histogram",
        Table(
            f"{title}, in powers of two", [(f"From, {unit}", "name"), ("Messages", "number")], rows
        ),
    )
    step = -(-len(bounds) // 8)
    for index, bound in enumerate([bounds[0] // 2, *bounds]):
        if index % step == 0:
            chart.labels.append(axis_label(text(bound), index * share, height, index // step))
    for index, bound in enumerate(bounds):
        count = counts.get(bound, 0)
        values = f"{bound // 2:,} to {bound - 1:,}" if bound > 2 else f"{bound - 1}"
        rows.append((values, count))
        if count:
            tall = max((height - 20) * count / peak, 1.5)
            left, width = (index + 0.06) * share, 0.88 * share
            chart.columns.append(Rectangle("plain", left, width, height - tall, tall))
            if letters <= 70:
                middle = (index + 0.5) * share
                chart.labels.append(Label(short_text(count), middle, height - tall - 6, "amount"))
        tip = Tip(f"{values} {unit}", [("Messages", count, "plain")])
        chart.hits.append(Rectangle("hit", index * share, share, 0, height, tip))
    return chart


def _bound_below(counts: Mapping[int, int], share: float) -> int:
    """Return the smallest bound that this share of the values is below."""
    left = share * sum(counts.values())
    for bound in sorted(counts):
        left -= counts[bound]
        if left <= 0:
            break
    return bound


def axis_label(text: str, x: float, y: float, number: int) -> Label:
    """Place a label below y, inside the chart; a phone leaves out those with odd numbers."""
    anchor = "start" if x < 3 else "end" if x > 96 else ""
    kind = " ".join(filter(None, (anchor, "odd" if number % 2 else "")))
    return Label(text, x, y + 20, kind)


def value_axis(peak: int) -> list[ValueTick]:
    """Return ticks at round values up to the peak of a chart over time."""
    power = 10 ** (len(str(peak)) - 1)
    steps = (power * 2, power, power // 2, power // 5, 1)
    step = next(size for size in steps if size and (peak // size >= 3 or size == 1))
    return [
        ValueTick(PLOT_HEIGHT * (1 - value / peak), short_text(value))
        for value in range(0, peak + 1, step)
    ]


def time_axis(start_ms: int, span_ms: int) -> list[Label]:
    """Return labels at round times, nine at most."""
    span = span_ms / 1000
    step = 1000 * next((size for size in _TICK_SECONDS if span / size <= 8), int(span // 8) + 1)
    labels = []
    for number, time_ms in enumerate(range(-(-start_ms // step) * step, start_ms + span_ms, step)):
        date, _, clock = time_text(time_ms, "seconds").rstrip("Z").partition("T")
        text = date if clock in ("", "00:00:00") else clock if step < 60_000 else clock[:5]
        labels.append(axis_label(text, 100 * (time_ms - start_ms) / span_ms, PLOT_HEIGHT, number))
    return labels
