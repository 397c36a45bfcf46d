"""Predicates of engines as trees, and the part of a tree that a scan can use to skip rows.

Pure. A tree has the functions of Arrow's expressions. ``query_plan`` makes trees of Spark's,
``reput.arrow`` of those of pyarrow and Polars.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from reput.spark import filters
from reput.spark.filters import Constraint


@dataclass(frozen=True, slots=True)
class ColumnName:
    """A column."""

    name: str


@dataclass(frozen=True, slots=True)
class Micros:
    """An instant, in microseconds since the epoch."""

    value: int


@dataclass(frozen=True, slots=True)
class Literals:
    """Constants: one of a comparison, or the members of a set.

    Each is a str, an int or ``Micros``; None for null and for constants of other types, which no
    comparison with a column of a scan needs.
    """

    values: tuple[str | int | Micros | None, ...]


@dataclass(frozen=True, slots=True)
class Call:
    """A function of Arrow, or an unknown one with an empty name."""

    function: str
    arguments: tuple["Tree", ...]


Tree = ColumnName | Literals | Call

_TYPES = {
    "topic": str,
    "tags": str,
    "msg_id": str,
    "queue_id": int,
    "queue_offset": int,
    "physical_offset": int,
    "store_timestamp": Micros,
}
"""Columns that can be constrained, and the type of their constants."""
_MIRRORED = {
    "equal": "equal",
    "less": "greater",
    "less_equal": "greater_equal",
    "greater": "less",
    "greater_equal": "less_equal",
}


def names_of(tree: Tree) -> set[str]:
    """Return the names of all columns of a tree."""
    if isinstance(tree, Call):
        return set().union(*map(names_of, tree.arguments))
    return {tree.name} if isinstance(tree, ColumnName) else set()


def constraint_of(tree: Tree, replaced: frozenset[str]) -> tuple[Constraint, bool]:
    """Return a constraint that a predicate implies, and whether the two are equivalent.

    Args:
        tree: The predicate; rows for which it is null are excluded.
        replaced: Columns whose values are not the stored ones, and cannot be constrained.
    """
    constraint, is_whole = Constraint(), True
    rest = []
    for part in _conjuncts(tree):
        implied = _implied(part)
        if implied is None or implied[0].not_null & replaced:
            rest.append(part)
        else:
            constraint = constraint.meet(implied[0])
            is_whole = is_whole and implied[1]
    return constraint, is_whole and all(_is_not_null(part, constraint.not_null) for part in rest)


def _is_not_null(tree: Tree, names: frozenset[str]) -> bool:
    """Return whether a predicate only requires that one of some columns is not null."""
    match tree:
        case Call("is_valid", (ColumnName(name),)):
            return name in names
    return False


def _conjuncts(tree: Tree) -> Iterator[Tree]:
    match tree:
        case Call("and_kleene" | "and", parts):
            for part in parts:
                yield from _conjuncts(part)
        case Call("if_else", (Call("is_valid", (ColumnName(),)), then, Literals((None,)))):
            yield from _conjuncts(then)  # DuckDB's IN: null for a null, which excludes the row
        case _:
            yield tree


def _implied(tree: Tree) -> tuple[Constraint, bool] | None:
    match tree:
        case Call("is_valid", (ColumnName(name),)) if name in filters.ALWAYS_PRESENT:
            return Constraint(not_null=frozenset({name})), True
        case Call(function, (Literals() as constant, ColumnName() as field)) if (
            function in _MIRRORED
        ):
            return _implied(Call(_MIRRORED[function], (field, constant)))
        case Call("is_in" | "equal" | "or_kleene" | "or"):
            alternatives = _alternatives(tree)
            return None if alternatives is None else _member(*alternatives)
        case Call(function, (ColumnName(name), Literals((value,)))) if function in _MIRRORED:
            constraint = _span(function, name, _plain(value)) if _fits(name, value) else None
            return None if constraint is None else (constraint, True)
    return None


def _span(comparison: str, name: str, bound: Any) -> Constraint | None:
    """Return the constraint of a comparison; None for texts and for columns without ranges."""
    if not isinstance(bound, int):
        return None
    match comparison:
        case "less":
            return filters.from_span(name, None, bound - 1)
        case "less_equal":
            return filters.from_span(name, None, bound)
        case "greater":
            return filters.from_span(name, bound + 1, None)
        case _:
            return filters.from_span(name, bound, None)


def _alternatives(tree: Tree) -> tuple[str, list[Any]] | None:
    """Return the column and values of a membership in any notation; None for other predicates."""
    match tree:
        case Call("equal" | "is_in", (ColumnName(name), Literals(values))):
            return (name, list(values)) if all(_fits(name, value) for value in values) else None
        case Call("or_kleene" | "or", parts):
            each = [_alternatives(part) for part in parts]
            known = [alternative for alternative in each if alternative is not None]
            if len(known) == len(each) and len({name for name, _ in known}) == 1:
                return known[0][0], [value for _, values in known for value in values]
    return None


def _member(name: str, values: list[Any]) -> tuple[Constraint, bool] | None:
    plain: list[Any] = [_plain(value) for value in values]
    constraint = filters.from_values(name, plain)
    if constraint is not None:
        return constraint, True
    if not plain:
        return None
    between = filters.from_span(name, min(plain), max(plain))
    return None if between is None else (between, False)


def _fits(name: str, value: object) -> bool:
    return type(value) is _TYPES.get(name)


def _plain(value: str | int | Micros | None) -> str | int | None:
    return value.value if isinstance(value, Micros) else value
