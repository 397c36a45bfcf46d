"""A long list that stays sorted while its rows move: a page costs its own rows, not all of them.

An order by a field is kept once a page has asked for it. A row that moves is noted, and put into
its new place when the order is next asked for; the order is sorted again if many rows have moved.
"""

import bisect
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from reput.console.access import ALL
from reput.console.paging import Order, order_of
from reput.console.query import Query
from reput.console.unknown import Unknown

ORDERS_MAX = 12
"""Maximum number of cached orders; one of 10,000 rows takes 1 MB."""
SIGHTS_MAX = 16
"""Maximum number of access patterns whose visible names are cached."""
_MOVED_SHARE = 8
"""Share of changed rows, as 1/N, above which an order is sorted again."""


class Named(Protocol):
    """A row with a name and a kind."""

    @property
    def name(self) -> str:
        """Name of the row."""

    @property
    def kind(self) -> str:
        """Kind by which rows are counted."""


_N = TypeVar("_N", bound=Named)
_Key = tuple[bool, float, str]
"""Sort key: whether the value is unknown, the value, the name. Unknown values are last."""


@dataclass(frozen=True, slots=True)
class Choice:
    """Rows of a list: of a kind, with a part of the name, in an order."""

    kind: str
    text: str
    order: Order
    names: Sequence[str]
    """Names of all requested rows, in order."""
    counts: Mapping[str, int]
    """Kind to the number of rows, of any name."""


class _SortedNames(Generic[_N]):
    """Names of rows in an order: of a kind, or of all kinds (None)."""

    def __init__(self, kind: str | None, order: Order) -> None:
        self._kind = kind
        self._field = order.field
        self._is_descending = order.is_descending
        self._keys: list[_Key] | None = None
        self._moved: dict[str, _N | None] = {}
        """Names of changed rows, with the rows as they are in ``_keys``."""

    def note(self, name: str, before: _N | None) -> None:
        """Record that a row has changed.

        Args:
            name: Its name.
            before: The row before; None if it is new.
        """
        if self._keys is not None:
            self._moved.setdefault(name, before)
            if len(self._moved) * _MOVED_SHARE > len(self._keys):
                self._keys = None
                self._moved.clear()

    def names(self, rows: Mapping[str, _N]) -> list[str]:
        """Return the names of the rows."""
        if self._keys is None:
            self._keys = sorted(self._key(row) for row in rows.values() if self._accepts(row))
        for name, before in self._moved.items():
            if before is not None and self._accepts(before):
                del self._keys[bisect.bisect_left(self._keys, self._key(before))]
            row = rows.get(name)
            if row is not None and self._accepts(row):
                bisect.insort(self._keys, self._key(row))
        self._moved.clear()
        names = [name for _, _, name in self._keys]
        if self._field == "name" and self._is_descending:
            names.reverse()
        return names

    def _accepts(self, row: _N) -> bool:
        return self._kind is None or row.kind == self._kind

    def _key(self, row: _N) -> _Key:
        if self._field == "name":
            return False, 0, row.name
        value = getattr(row, self._field)
        if value is None or isinstance(value, Unknown):
            return True, 0, row.name
        return False, -value if self._is_descending else value, row.name


class Listing(Generic[_N]):
    """Rows by name.

    Args:
        kinds: The kinds of rows; the first is the default, the last is all of them.
        fields: Attributes by which the rows can be sorted: ``name``, and numbers.
        default: The order without ``sort``, as ``-lag``.
    """

    def __init__(self, kinds: Sequence[str], fields: Sequence[str], default: str) -> None:
        self.rows: dict[str, _N] = {}
        """The rows; ``put`` and ``remove`` change them."""
        self._kinds = kinds
        self._fields = fields
        self._default = default
        self._counts: Counter[str] = Counter()
        self._orders: dict[tuple[str, Order], _SortedNames[_N]] = {}
        self._sights: dict[Sequence[str], tuple[frozenset[str], Mapping[str, int]]] = {}
        """Patterns of a user's access -> the visible names, and their number by kind."""

    def put(self, row: _N) -> None:
        """Put a row, instead of an older one of the same name."""
        before = self.rows.get(row.name)
        if row == before:
            return
        self.rows[row.name] = row
        self._note(row.name, before, row)

    def remove(self, name: str) -> None:
        """Remove a row."""
        self._note(name, self.rows.pop(name), None)

    def _note(self, name: str, before: _N | None, after: _N | None) -> None:
        kinds = [None if row is None else row.kind for row in (before, after)]
        if kinds[0] != kinds[1]:
            for kind, count in zip(kinds, (-1, 1), strict=True):
                if kind is not None:
                    self._counts[kind] += count
            self._sights.clear()
        for order in self._orders.values():
            order.note(name, before)

    def choose(self, query: Query, patterns: Sequence[str], sees: Callable[[str], bool]) -> Choice:
        """Return what a query asks for: ``kind=retry&q=orders&sort=-lag``.

        Args:
            query: The query.
            patterns: The patterns of the names that the user sees.
            sees: Whether a name matches one of them.
        """
        kind, text = query.choice("kind", self._kinds, self._kinds[0]), query.text("q")
        order = order_of(query, self._fields, self._default)
        names: Sequence[str] = self.sorted_names(kind, order)
        counts: Mapping[str, int] = self._counts
        if tuple(patterns) != ALL:
            seen, counts = self._sight(patterns, sees)
            names = [name for name in names if name in seen]
        if text:
            letters = text.lower()
            names = [name for name in names if letters in name.lower()]
        by_kind = {name: counts.get(name, 0) for name in self._kinds[:-1]}
        return Choice(kind, text, order, names, {**by_kind, self._kinds[-1]: sum(counts.values())})

    def sorted_names(self, kind: str, order: Order) -> list[str]:
        """Return the names of the rows of a kind, in an order; unknown values are last."""
        key = kind, order
        known = self._orders.pop(key, None)
        if known is None:
            known = _SortedNames[_N](None if kind == self._kinds[-1] else kind, order)
        self._orders[key] = known
        while len(self._orders) > ORDERS_MAX:
            del self._orders[next(iter(self._orders))]
        return known.names(self.rows)

    def _sight(
        self, patterns: Sequence[str], sees: Callable[[str], bool]
    ) -> tuple[frozenset[str], Mapping[str, int]]:
        sight = self._sights.get(patterns)
        if sight is None:
            seen = frozenset(filter(sees, self.rows))
            sight = seen, Counter(self.rows[name].kind for name in seen)
            while len(self._sights) >= SIGHTS_MAX:
                del self._sights[next(iter(self._sights))]
            self._sights[patterns] = sight
        return sight

    def of(self, names: Iterable[str]) -> list[_N]:
        """Return rows by their names."""
        return [self.rows[name] for name in names]
