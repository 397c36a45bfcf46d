"""Constraints on columns, used to skip files and queues and to drop rows.

Pure. A ``Constraint`` is the intersection of options and pushed-down predicates. It is checked on
every row, so that Spark need not evaluate its predicates again.
"""

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

_LOWEST, _HIGHEST = -(1 << 63), (1 << 63) - 1

ALWAYS_PRESENT = frozenset(
    {
        "topic",
        "queue_id",
        "queue_offset",
        "physical_offset",
        "msg_id",
        "offset_msg_id",
        "store_size",
    }
)
"""Columns that are never null in the row of a message."""


@dataclass(frozen=True, slots=True)
class Span:
    """Range of integers, both ends inclusive."""

    low: int = _LOWEST
    high: int = _HIGHEST

    def meet(self, other: "Span") -> "Span":
        """Return the intersection."""
        return Span(max(self.low, other.low), min(self.high, other.high))

    @property
    def is_all(self) -> bool:
        """True if nothing is excluded."""
        return self.low == _LOWEST and self.high == _HIGHEST

    @property
    def is_empty(self) -> bool:
        """True if everything is excluded."""
        return self.low > self.high


ALL = Span()


@dataclass(frozen=True, slots=True)
class Constraint:
    """Conditions that must all hold; None or ``ALL`` means no condition."""

    topics: frozenset[str] | None = None
    queue_ids: frozenset[int] | None = None
    tags: frozenset[str] | None = None
    message_ids: frozenset[str] | None = None
    queue_offsets: Span = ALL
    physical_offsets: Span = ALL
    store_times_us: Span = ALL
    """Store times in microseconds since the epoch, as Spark's timestamps."""
    not_null: frozenset[str] = frozenset()
    """Columns used by predicates, which exclude most rows of damage: those have few columns."""

    def meet(self, other: "Constraint") -> "Constraint":
        """Return the conjunction."""
        return Constraint(
            _meet(self.topics, other.topics),
            _meet(self.queue_ids, other.queue_ids),
            _meet(self.tags, other.tags),
            _meet(self.message_ids, other.message_ids),
            self.queue_offsets.meet(other.queue_offsets),
            self.physical_offsets.meet(other.physical_offsets),
            self.store_times_us.meet(other.store_times_us),
            self.not_null | other.not_null,
        )

    @property
    def is_empty(self) -> bool:
        """True if no row can satisfy it."""
        sets = (self.topics, self.queue_ids, self.tags, self.message_ids)
        spans = (self.queue_offsets, self.physical_offsets, self.store_times_us)
        return any(values is not None and not values for values in sets) or any(
            s.is_empty for s in spans
        )

    def admits(self, row: Mapping[str, Any]) -> bool:
        """Return whether a row with only these columns can satisfy it."""
        sets = [(column, getattr(self, name)) for column, name in _SETS.items()]
        spans = [(column, getattr(self, name)) for column, name in _SPANS.items()]
        return (
            all(row.get(column) is not None for column in self.not_null)
            and all(wanted is None or row.get(c) in (None, *wanted) for c, wanted in sets)
            and all(row.get(c) is None or s.low <= row[c] <= s.high for c, s in spans)
        )

    def describe(self) -> str:
        """Return the conditions in words, for logs."""
        parts = []
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if isinstance(value, Span):
                if not value.is_all:
                    parts.append(f"{field.name} {value.low}..{value.high}")
            elif isinstance(value, frozenset) and field.name != "not_null":
                parts.append(f"{field.name} in {sorted(value, key=str)}")
        return ", ".join(parts) or "everything"


def _meet(a: "frozenset[Any] | None", b: "frozenset[Any] | None") -> "frozenset[Any] | None":
    if a is None or b is None:
        return b if a is None else a
    return a & b


_SETS = {
    "topic": "topics",
    "queue_id": "queue_ids",
    "tags": "tags",
    "msg_id": "message_ids",
}
_SPANS = {
    "queue_offset": "queue_offsets",
    "physical_offset": "physical_offsets",
    "store_timestamp": "store_times_us",
}


def from_values(column: str, values: Iterable[Any]) -> Constraint | None:
    """Return the constraint of ``column IN values``; None if the column cannot be constrained."""
    wanted = list(values)
    if any(value is None for value in wanted):
        return None
    if column in _SETS:
        return _constraint(column, _SETS[column], frozenset(wanted))
    if column in _SPANS and wanted and all(type(value) is int for value in wanted):
        if len(set(wanted)) != 1:
            return None
        return from_span(column, wanted[0], wanted[0])
    return None


def from_span(column: str, low: int | None, high: int | None) -> Constraint | None:
    """Return the constraint of ``low <= column <= high``; None if the column has none."""
    if column not in _SPANS:
        return None
    span = Span(_LOWEST if low is None else low, _HIGHEST if high is None else high)
    return _constraint(column, _SPANS[column], span)


def _constraint(column: str, name: str, value: Any) -> Constraint:
    members = {"not_null": frozenset({column}), name: value}
    return Constraint(**members)
