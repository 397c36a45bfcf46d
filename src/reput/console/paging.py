"""Pages of a long list, by number in the URL."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from reput.console.page import Query

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
