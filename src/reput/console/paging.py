"""Pages of a long list, and its order, by parameters in the URL."""

import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from reput.console.query import Query
from reput.console.unknown import Unknown

_T = TypeVar("_T")

SIZES = ("25", "50", "100", "500")
DEFAULT_SIZE = "50"


@dataclass(frozen=True, slots=True)
class Paging:
    """The part of a list that a page shows."""

    number: int
    """Number of the page, from 1."""
    size: int
    """Number of rows per page."""
    count: int
    """Number of rows of the whole list."""

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


@dataclass(frozen=True, slots=True)
class Order:
    """The order of a list: ``sort=lag``, or ``sort=-lag`` for the largest first."""

    field: str
    is_descending: bool

    @property
    def parameter(self) -> str:
        """The value of ``sort``."""
        return f"-{self.field}" if self.is_descending else self.field


def order_of(query: Query, fields: Sequence[str], default: str) -> Order:
    """Return the order that a query asks for.

    Args:
        query: The query.
        fields: Attributes that may be asked for.
        default: The order without ``sort``, as ``-lag``.
    """
    allowed = [sign + field for field in fields for sign in ("", "-")]
    parameter = query.choice("sort", allowed, default)
    return Order(parameter.removeprefix("-"), parameter.startswith("-"))


def ordered(rows: Iterable[_T], order: Order) -> list[_T]:
    """Return rows in an order; unknown and absent values are last.

    Args:
        rows: Objects with a ``name``, which decides between equal values.
        order: The order.
    """
    known: list[_T] = []
    unknown: list[_T] = []
    for row in sorted(rows, key=operator.attrgetter("name")):
        value = getattr(row, order.field)
        (unknown if value is None or isinstance(value, Unknown) else known).append(row)
    known.sort(key=operator.attrgetter(order.field), reverse=order.is_descending)
    return known + unknown
