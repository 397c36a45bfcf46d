"""A read as a lazy frame of Polars, whose optimizer hands columns, predicate and row count over."""

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import polars as pl
import pyarrow as pa
from polars.io.plugins import register_io_source

from reput.arrow.expressions import constant_of
from reput.arrow.reading import Predicate, Read
from reput.spark.predicates import Call, ColumnName, Literals, Micros, Tree

_OPERATORS = {
    "And": "and_kleene",
    "Or": "or_kleene",
    "Eq": "equal",
    "Lt": "less",
    "LtEq": "less_equal",
    "Gt": "greater",
    "GtEq": "greater_equal",
}
_NANOS = {"Nanoseconds": 1, "Microseconds": 1_000, "Milliseconds": 1_000_000}
_UNKNOWN = Call("", ())


def lazy_frame(read: Read, threads: int | None) -> pl.LazyFrame:
    """Return a lazy frame; each ``collect`` plans the read again."""

    def frames(
        with_columns: list[str] | None,
        predicate: pl.Expr | None,
        n_rows: int | None,
        batch_size: int | None,
    ) -> Iterator[pl.DataFrame]:
        wanted = list(with_columns or read.columns)
        needed, condition = wanted, Predicate()
        if predicate is not None:
            names = predicate.meta.root_names()
            needed = [*wanted, *(name for name in dict.fromkeys(names) if name not in wanted)]
            condition = replace(condition, constraint=read.constraint(tree_of(predicate))[0])
        rest = n_rows
        for batch in read.batches(needed, condition, threads):
            frame = pl.from_arrow(batch)
            assert isinstance(frame, pl.DataFrame)
            if predicate is not None:
                frame = frame.filter(predicate)
            if rest is not None:
                frame = frame.head(rest)
                rest -= frame.height
            yield frame.select(wanted)
            if rest == 0:
                return

    empty = pl.from_arrow(read.schema().empty_table())
    assert isinstance(empty, pl.DataFrame)
    return register_io_source(frames, schema=empty.schema)


def tree_of(predicate: pl.Expr) -> Tree:
    """Return an expression as a tree. Unknown parts are calls of unknown functions.

    Polars shows the parts of an expression only as JSON, whose names may change: unknown parts
    skip nothing, and Polars evaluates each predicate in any case.
    """
    try:
        return _tree(json.loads(predicate.meta.serialize(format="json")))
    except Exception:  # noqa: BLE001 - for instance, it has a function of Python
        return _UNKNOWN


def _tree(document: Any) -> Tree:
    match document:
        case {"Column": str(name)}:
            return ColumnName(name)
        case {"Literal": {"Scalar": value} | {"Dyn": value}}:
            return Literals(_constants(value))
        case {"BinaryExpr": {"left": left, "op": str(operator), "right": right}}:
            return Call(_OPERATORS.get(operator, ""), (_tree(left), _tree(right)))
        case {"Function": {"input": [*inputs], "function": {"Boolean": function}}}:
            return _boolean(function, [_tree(each) for each in inputs])
    return _UNKNOWN


def _boolean(function: Any, inputs: list[Tree]) -> Tree:
    match function, inputs:
        case {"IsIn": _}, [column, members]:
            return Call("is_in", (column, members))
        case {"IsBetween": {"closed": str(closed)}}, [column, low, high]:
            from_low = "greater_equal" if closed in ("Both", "Left") else "greater"
            to_high = "less_equal" if closed in ("Both", "Right") else "less"
            parts = Call(from_low, (column, low)), Call(to_high, (column, high))
            return Call("and_kleene", parts)
        case "IsNotNull", [column]:
            return Call("is_valid", (column,))
    return _UNKNOWN


def _constants(value: Any) -> tuple[str | int | Micros | None, ...]:
    match value:
        case {"String": str(text)} | {"Str": str(text)}:
            return (text,)
        case {"Datetime": [int(count), str(unit), zone]} if zone is not None and unit in _NANOS:
            micros, rest = divmod(count * _NANOS[unit], 1_000)
            return (None if rest else Micros(micros),)
        case {"List": [*numbers]}:  # a stream of Arrow
            members = pa.ipc.open_stream(bytes(numbers)).read_all().column(0)
            return tuple(map(constant_of, members))
        case dict() if len(value) == 1:
            (kind, number), *_ = value.items()
            is_integer = str(kind).startswith(("Int", "UInt")) and type(number) is int
            return (number if is_integer else None,)
    return (None,)
