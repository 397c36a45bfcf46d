"""Rendering: what a command found, as text for people and pipes, or as JSON.

A command returns a ``View``: the document that ``--json`` prints, and the fields and tables that
show it as text. The columns of a table are words ``HEADING=KEY``, such as

    topic #lag @last_stored=last_store_timestamp #put/s=put_tps:.1f

``#`` marks numbers and ``@`` times in ms, ``_`` in a heading is a space, KEY names a key or
attribute of the rows and is the heading if it is left out, and a format may follow it.

On a terminal tables are drawn by rich. In a pipe they are plain columns, whole and uncoloured,
however wide. Text that comes from a store is never sent to a terminal as it is: a body may hold
escape sequences.
"""

import json
import re
import sys
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from reput.errors import ReputError

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
_MARKS = "#@"
_STYLES = {"damage": "bold red", "warning": "yellow", "note": "cyan", "ok": "green"}

Document = dict[str, Any]
Computed = Mapping[str, Callable[[Any], object]]
"""Functions of a row, by the key of their column."""


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


# --- views --------------------------------------------------------------------------------------


class Fields(dict[str, object]):
    """Names and values, one a line."""

    @classmethod
    def of(cls, names: str, row: Any, computed: Computed | None = None) -> "Fields":
        """Return fields of a document; ``names`` are words as those of columns."""
        table = Table(names, [row], computed=computed)
        return cls(zip(table.headings, table.cells[0], strict=True))


class Table:
    """Rows of a table."""

    def __init__(
        self,
        columns: str | Sequence[str],
        rows: Iterable[Any],
        *,
        computed: Computed | None = None,
        is_optional: bool = False,
        count_max: int | None = None,
    ) -> None:
        """Create a table.

        Args:
            columns: Words ``HEADING=KEY``; or headings alone, of rows that are sequences.
            rows: The rows.
            computed: Columns that are no key or attribute.
            is_optional: Whether a table without rows is left out.
            count_max: Rows that are shown at most.
        """
        if isinstance(columns, str):
            pairs = [word.partition("=") for word in columns.split()]
            self.headings = [heading.replace("_", " ") for heading, _, _ in pairs]
            keys = [key or heading.lstrip(_MARKS) for heading, _, key in pairs]
            self.cells = [[_value(key, row, computed or {}) for key in keys] for row in rows]
        else:
            self.headings = list(columns)
            self.cells = [list(row) for row in rows]
        self.is_shown = bool(self.cells) or not is_optional
        self.count_max = count_max


def _value(key: str, row: Any, computed: Computed) -> object:
    if key in computed:
        return computed[key](row)
    key, _, form = key.partition(":")
    value = row[key] if isinstance(row, Mapping) else getattr(row, key)
    return format(value, form) if form and value is not None else value


Block = Fields | Table | str | Callable[["Clock"], None] | None


class View:
    """Result of a command."""

    def __init__(
        self,
        document: object,
        *blocks: Block,
        exit_code: int = 0,
        failure: ReputError | None = None,
    ) -> None:
        """Create a view.

        Args:
            document: The JSON document.
            *blocks: The same as text, separated by empty lines; a function prints by itself.
            exit_code: The exit code of the command.
            failure: The error that the command ends with, after it has printed.
        """
        self.document = document
        self.blocks = blocks
        self.exit_code = exit_code
        self.failure = failure


def print_view(view: View, clock: Clock, *, as_json: bool) -> None:
    """Print the result of a command."""
    if as_json:
        print_json(view.document)
        return
    shown = [one for one in view.blocks if not isinstance(one, Table) or one.is_shown]
    for number, block in enumerate(one for one in shown if one is not None):
        if number:
            print()
        if isinstance(block, Fields):
            print_fields(block, clock)
        elif isinstance(block, Table):
            print_table(block, clock)
        elif isinstance(block, str):
            print(block)
        else:
            block(clock)


def print_json(document: object) -> None:
    """Print one JSON document, indented."""
    print(json.dumps(document, ensure_ascii=False, indent=2))


def print_json_line(document: object) -> None:
    """Print one JSON document on one line, at once."""
    print(json.dumps(document, ensure_ascii=False, separators=(",", ":")), flush=True)


def print_fields(fields: Mapping[str, object], clock: Clock) -> None:
    """Print names and values, one a line."""
    width = max((len(name.lstrip("@")) for name in fields), default=0)
    for name, value in fields.items():
        print(f"{name.lstrip('@'):<{width}}  {_cell(name, value, clock)}".rstrip())


def print_table(table: Table, clock: Clock) -> None:
    """Print a table."""
    columns = table.headings
    cells = [
        [_cell(column, value, clock) for column, value in zip(columns, row, strict=True)]
        for row in table.cells[: table.count_max]
    ]
    if sys.stdout.isatty():
        _draw_table(columns, cells)
    else:
        _print_columns(columns, cells)
    if len(cells) < len(table.cells):
        print(f"... and {len(table.cells) - len(cells)} more, see --json")


def print_note(text: str) -> None:
    """Print a line on stderr, beside the output proper."""
    print(f"reput: {printable(text)}", file=sys.stderr)


def _cell(heading: str, value: Any, clock: Clock) -> str:
    if heading.startswith("@") and not isinstance(value, str):
        return clock.text(value)
    if value is None or value == []:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        value = " ".join(map(str, value))
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
