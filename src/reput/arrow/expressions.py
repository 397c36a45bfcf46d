"""Filters of pyarrow as trees: expressions, and the tuples of ``pyarrow.parquet``."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from reput.errors import InvalidOption
from reput.spark.predicates import Call, ColumnName, Literals, Micros, Tree

FILTER_FORMS = (
    "an expression such as pyarrow.compute.field('queue_id') == 0, or tuples such as "
    "[('topic', '=', 'orders'), ('queue_offset', '>=', 100)]"
)
_TOKEN = re.compile(r"^(\w+): '(.*)'$")
_PER_SECOND = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}


def expression_of(given: object) -> pc.Expression:
    """Return a filter as an expression.

    Args:
        given: An expression, or what ``pyarrow.parquet`` takes as ``filters``: tuples of column,
            operator and value that all hold, or a list of such lists of which one holds.

    Raises:
        InvalidOption: It is neither.
    """
    if isinstance(given, pc.Expression):
        return given
    if isinstance(given, Sequence) and not isinstance(given, str) and given:
        import pyarrow.parquet as pq  # only for this notation

        try:
            return pq.filters_to_expression(given)
        except (TypeError, ValueError, pa.ArrowException) as error:
            raise InvalidOption("filter", given, f"{FILTER_FORMS} ({error})") from None
    raise InvalidOption("filter", given, FILTER_FORMS)


def tree_of(expression: pc.Expression) -> Tree:
    """Return an expression as a tree. Unknown parts are calls of unknown functions.

    pyarrow shows the parts of an expression only in its serialized form: a batch whose metadata has
    the calls, and whose columns have the constants.
    """
    batch = pa.ipc.open_file(expression.__reduce__()[1][0]).get_batch(0)
    text = batch.schema.to_string(
        show_field_metadata=False, show_schema_metadata=True, truncate_metadata=False
    )
    lines = text.partition("-- schema metadata --\n")[2].splitlines()
    tokens = [match.groups() for line in lines if (match := _TOKEN.match(line))]
    if len(tokens) != len(lines):
        return Call("", ())
    return _Reading(batch, iter(tokens)).tree()


@dataclass
class _Reading:
    batch: pa.RecordBatch
    tokens: Iterator[tuple[str | Any, ...]]

    def tree(self) -> Tree:
        """Return the tree that starts at the next token."""
        tree = self._next()
        return Call("", ()) if tree is None else tree

    def _next(self) -> Tree | None:
        kind, value = next(self.tokens)
        match kind:
            case "field_ref":
                return ColumnName(value)
            case "literal":
                return Literals((constant_of(self.batch.column(int(value))[0]),))
            case "call":
                return self._call(value)
            case "options":
                return Call("options", (self._options(int(value)),))
            case "end":
                return None
        return Call("", ())

    def _call(self, function: str) -> Call:
        arguments: list[Tree] = []
        while (argument := self._next()) is not None:
            arguments.append(argument)
        last = arguments[-1] if arguments else None
        if isinstance(last, Call) and last.function == "options":
            arguments.pop()
            if function == "is_in":
                arguments.append(last.arguments[0])
            elif function != "is_valid":
                function = ""
        return Call(function, tuple(arguments))

    def _options(self, number: int) -> Tree:
        options = self.batch.column(number)[0]
        if "value_set" not in options:
            return Call("", ())
        return Literals(tuple(map(constant_of, options["value_set"].values)))


def constant_of(value: pa.Scalar) -> str | int | Micros | None:
    """Return a constant as it is in trees."""
    kind = value.type
    if not value.is_valid:
        return None
    texts = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
    if pa.types.is_integer(kind) or any(is_text(kind) for is_text in texts):
        constant: str | int = value.as_py()
        return constant
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        micros, rest = divmod(value.value * 1_000_000, _PER_SECOND[kind.unit])
        return None if rest else Micros(micros)
    return None
