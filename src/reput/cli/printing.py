"""Renders the results of commands: as text for people and pipes, or as JSON.

A command returns a ``View``: the document that ``--json`` prints, and the fields and tables that
show it as text. The columns of a table are words ``HEADING=KEY``, such as

    topic #lag @last_stored=last_store_timestamp #put/s=put_tps:.1f

``#`` marks numbers and ``@`` times in ms; ``_`` in a heading is a space. KEY names a key or
attribute of the rows, by default the heading, and a format may follow it.

On a terminal rich draws the tables. In a pipe they are plain columns, whole and uncoloured, however
wide. Text from a store is escaped before it is printed: a body may contain terminal escape
sequences.
"""

import json
import re
import sys
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from reput.errors import InvalidOption, ReputError

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
_MARKS = "#@"
_STYLES = {"damage": "bold red", "warning": "yellow", "note": "cyan", "ok": "green"}

Document = dict[str, Any]
Computed = Mapping[str, Callable[[Any], object]]
"""Functions of a row, by the key of their column."""


# --- values -------------------------------------------------------------------------------------


def printable(text: str) -> str:
    r"""Return text on one line, with its control characters escaped: ``\n``, ``\x1b``."""
    return _CONTROL.sub(lambda m: repr(m[0])[1:-1], text)


def printable_lines(text: str) -> str:
    """Return text with its control characters escaped, except line ends and tabs."""
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
    """The format of times."""

    is_utc: bool = False

    def text(self, timestamp_ms: int | None) -> str:
        """Return a time as ISO 8601 with ms; ``-`` for None, the number if it is out of range."""
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
        """Return the ms since the epoch of an ISO 8601 time; None if the text is no such time.

        Without a zone the time is local, or UTC with ``is_utc``.
        """
        try:
            moment = datetime.fromisoformat(text)
        except ValueError:
            return None
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=UTC) if self.is_utc else moment.astimezone()
        since = moment - datetime.fromtimestamp(0, UTC)
        return (since.days * 86_400 + since.seconds) * 1000 + since.microseconds // 1000


def parse_time(option: str, text: str, clock: Clock) -> int:
    """Return the ms since the epoch of a time: ISO 8601, or ms since the epoch.

    Raises:
        InvalidOption: The text is neither.
    """
    timestamp_ms = int(text) if text.isascii() and text.isdigit() else clock.parse(text)
    if timestamp_ms is None:
        raise InvalidOption(option, text, "a time like 2026-11-21T03:03:25.534, or ms since 1970")
    return timestamp_ms


# --- views --------------------------------------------------------------------------------------


class Fields(dict[str, object]):
    """Names and values, printed one a line."""

    @classmethod
    def of(cls, names: str, row: Any, computed: Computed | None = None) -> "Fields":
        """Return fields of a document; ``names`` has the form of a table's columns."""
        table = Table(names, [row], computed=computed)
        return cls(zip(table.headings, table.cells[0], strict=True))


class Table:
    """Rows and columns of a table."""

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
            columns: Words ``HEADING=KEY``; or a list of headings, for rows that are sequences.
            rows: The rows.
            computed: Functions for columns that are no key or attribute.
            is_optional: Whether the table is omitted if it has no rows.
            count_max: Maximum number of rows that are printed.
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
            *blocks: Parts of the text, separated by empty lines; a function prints its part.
            exit_code: Exit code of the command.
            failure: Error to raise after printing.
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
    shown = [block_ for block_ in view.blocks if not isinstance(block_, Table) or block_.is_shown]
    for number, block in enumerate(block_ for block_ in shown if block_ is not None):
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
    """Print one JSON document on one line, and flush."""
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
    """Print a line on stderr."""
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
    """Return the width of a text on a terminal, in columns."""
    if text.isascii():
        return len(text)
    return sum(
        0
        if unicodedata.combining(letter)
        else 2
        if unicodedata.east_asian_width(letter) in "WF"
        else 1
        for letter in text
    )
