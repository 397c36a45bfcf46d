"""Printing: tables, fields, times and JSON, for people and for pipes.

On a terminal tables are drawn by rich. In a pipe they are plain columns, whole and uncoloured,
however wide. Text that comes from a store is never sent to a terminal as it is: a body may hold
escape sequences.
"""

import json
import re
import sys
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
_MARKS = "#@"
_STYLES = {"damage": "bold red", "warning": "yellow", "note": "cyan", "ok": "green"}

Row = Sequence[object]


# --- values -------------------------------------------------------------------------------------


def printable(text: str) -> str:
    r"""Return text on one line, its control characters spelt out: ``\n``, ``\x1b``."""
    return _CONTROL.sub(lambda m: repr(m[0])[1:-1], text)


def printable_lines(text: str) -> str:
    """Return text with its line ends and tabs, other control characters spelt out."""
    return "\n".join(
        "\t".join(map(printable, line.split("\t")))
        for line in text.replace("\r\n", "\n").split("\n")
    )


def size_text(size: int) -> str:
    """Return a number of bytes for people: ``1.5 GiB``."""
    value = float(size)
    for unit in _UNITS:
        if value < 1024 or unit == _UNITS[-1]:
            break
        value /= 1024
    return f"{size} B" if unit == "B" else f"{value:.1f} {unit}"


@dataclass(frozen=True)
class Clock:
    """How times are shown."""

    is_utc: bool = False

    def text(self, timestamp_ms: int | None) -> str:
        """Return a time as ISO 8601 with ms; ``-`` for none, the number if it is no date."""
        if timestamp_ms is None:
            return "-"
        seconds, milliseconds = divmod(timestamp_ms, 1000)
        try:
            moment = datetime.fromtimestamp(seconds, UTC).replace(microsecond=milliseconds * 1000)
            if self.is_utc:
                return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
            return moment.astimezone().isoformat(timespec="milliseconds")
        except (ValueError, OverflowError, OSError):
            return str(timestamp_ms)

    def parse(self, text: str) -> int | None:
        """Return the ms of an ISO 8601 time, local unless it says otherwise; None if it is none."""
        try:
            moment = datetime.fromisoformat(text)
        except ValueError:
            return None
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=UTC) if self.is_utc else moment.astimezone()
        since = moment - datetime.fromtimestamp(0, UTC)
        return (since.days * 86_400 + since.seconds) * 1000 + since.microseconds // 1000


def parse_time(option: str, text: str, clock: Clock) -> int:
    """Return the ms of a time: ISO 8601, or ms since the epoch.

    Raises:
        InvalidOption: It is neither.
    """
    from reput.errors import InvalidOption

    found = int(text) if text.isascii() and text.isdigit() else clock.parse(text)
    if found is None:
        raise InvalidOption(option, text, "a time like 2026-11-21T03:03:25.534, or ms since 1970")
    return found


# --- documents ----------------------------------------------------------------------------------


def print_json(document: object) -> None:
    """Print one JSON document, indented."""
    print(json.dumps(document, ensure_ascii=False, indent=2))


def print_json_line(document: object) -> None:
    """Print one JSON document on one line."""
    print(json.dumps(document, ensure_ascii=False, separators=(",", ":")))


def print_fields(fields: Mapping[str, object]) -> None:
    """Print names and values, one a line."""
    width = max(map(len, fields), default=0)
    for name, value in fields.items():
        print(f"{name:<{width}}  {_cell(value)}".rstrip())


def print_table(columns: Sequence[str], rows: Iterable[Row]) -> None:
    """Print a table; columns marked ``#`` hold numbers, those marked ``@`` times."""
    cells = [[_cell(value) for value in row] for row in rows]
    if sys.stdout.isatty():
        _draw_table(columns, cells)
    else:
        _print_columns(columns, cells)


def print_note(text: str) -> None:
    """Print a line on stderr, beside the output proper."""
    print(f"reput: {printable(text)}", file=sys.stderr)


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return printable(str(value))


def _draw_table(columns: Sequence[str], cells: list[list[str]]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(
            column.lstrip(_MARKS),
            justify="right" if column.startswith("#") else "left",
            no_wrap=column.startswith(tuple(_MARKS)),
            overflow="fold",
        )
    for row in cells:
        table.add_row(*(Text(cell, style=_STYLES.get(cell, "")) for cell in row))
    Console().print(table)


def _print_columns(columns: Sequence[str], cells: list[list[str]]) -> None:
    names = [column.lstrip(_MARKS) for column in columns]
    widths = [max(map(_width, values)) for values in zip(names, *cells, strict=True)]
    for row in (names, *cells):
        line = []
        for column, cell, width in zip(columns, row, widths, strict=True):
            padding = " " * (width - _width(cell))
            line.append(padding + cell if column.startswith("#") else cell + padding)
        print("  ".join(line).rstrip())


def _width(text: str) -> int:
    """Return the columns a text takes on a terminal."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(one) else 2 if unicodedata.east_asian_width(one) in "WF" else 1
        for one in text
    )
