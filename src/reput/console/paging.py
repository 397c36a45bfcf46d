"""Pages of a long list, and its order, by parameters in the URL."""

import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from reput.console.page import Query
from reput.console.unknown import Unknown

_T = TypeVar("_T")

SIZES = ("25", "50", "100", "500")
DEFAULT_SIZE = "50"


@dataclass(frozen=True, slots=True)
class Paging:
    """Which part of a list is shown."""

    number: int
    """Number of the page, from 1."""
    size: int
    """Rows a page."""
    count: int
    """Rows of the whole list."""

    @property
    def page_count(self) -> int:
        """Number of pages, at least 1."""
        return max(1, -(-self.count // self.size))

    @property
    def first(self) -> int:
        """Number of the first row shown, from 1; 0 for an empty list."""
        return min(self.count, (self.number - 1) * self.size + 1)

    @property
    def last(self) -> int:
        """Number of the last row shown."""
        return min(self.count, self.number * self.size)


def cut(rows: Sequence[_T], query: Query) -> tuple[Sequence[_T], Paging]:
    """Return the rows of the page that a query asks for: the last page for a number beyond it."""
    size = int(query.choice("size", SIZES, DEFAULT_SIZE))
    last_page = max(1, -(-len(rows) // size))
    number = min(query.number("page", 1, smallest=1), last_page)
    paging = Paging(number, size, len(rows))
    return rows[(number - 1) * size : number * size], paging


class Named(Protocol):
    """A row with a name and a kind."""

    @property
    def name(self) -> str:
        """Its name."""

    @property
    def kind(self) -> str:
        """Its kind, from the kinds of the page."""


_N = TypeVar("_N", bound=Named)


@dataclass(frozen=True, slots=True)
class Choice(Generic[_N]):
    """Rows by kind and by part of the name: ``kind=retry&q=orders``."""

    kind: str
    text: str
    rows: Sequence[_N]
    counts: Mapping[str, int]
    """Kind to the number of rows, of any name."""


def chosen(rows: Iterable[_N], query: Query, kinds: Sequence[str]) -> Choice[_N]:
    """Return the rows that a query asks for.

    Args:
        rows: The rows that the user sees.
        query: The query.
        kinds: The kinds; the first is the default, the last is all of them.
    """
    every = kinds[-1]
    kind, text = query.choice("kind", kinds, kinds[0]), query.text("q")
    counts = dict.fromkeys(kinds, 0)
    letters, matching = text.lower(), []
    for row in rows:
        counts[row.kind] += 1
        counts[every] += 1
        if kind in (every, row.kind) and letters in row.name.lower():
            matching.append(row)
    return Choice(kind, text, matching, counts)


@dataclass(frozen=True, slots=True)
class Order:
    """The order of a list: ``sort=lag``, or ``sort=-lag`` for the largest first."""

    field: str
    is_descending: bool

    @property
    def parameter(self) -> str:
        """The value of ``sort``."""
        return f"-{self.field}" if self.is_descending else self.field


def ordered(
    rows: Iterable[_T], query: Query, fields: Sequence[str], default: str
) -> tuple[list[_T], Order]:
    """Return rows in the order that a query asks for; unknown and absent values are last.

    Args:
        rows: Objects with a ``name``, which decides between equal values.
        query: The query.
        fields: Attributes that may be asked for.
        default: The order without ``sort``, as ``-lag``.
    """
    allowed = [sign + field for field in fields for sign in ("", "-")]
    parameter = query.choice("sort", allowed, default)
    order = Order(parameter.removeprefix("-"), parameter.startswith("-"))
    known: list[_T] = []
    unknown: list[_T] = []
    for row in sorted(rows, key=operator.attrgetter("name")):
        value = getattr(row, order.field)
        (unknown if value is None or isinstance(value, Unknown) else known).append(row)
    known.sort(key=operator.attrgetter(order.field), reverse=order.is_descending)
    return known + unknown, order
