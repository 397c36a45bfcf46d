"""Predicates of pyarrow and Polars: what they skip, and that they skip nothing else."""

import datetime
import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import hypothesis
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import strategies as st

import golden
import reput.arrow
from reput.arrow import expressions
from reput.errors import InvalidOption
from reput.spark.filters import Constraint, from_span, from_values
from reput.spark.predicates import constraint_of

COLUMNS = (
    *("topic", "queue_id", "queue_offset", "physical_offset", "store_timestamp"),
    *("tags", "msg_id", "reconsume_times"),
)
TIME = datetime.datetime(2026, 11, 21, 2, 44, tzinfo=datetime.UTC)
TIME_US = int(TIME.timestamp()) * 1_000_000
field = pc.field


def both(*constraints: Constraint | None) -> Constraint:
    met = Constraint()
    for constraint in constraints:
        assert constraint is not None
        met = met.meet(constraint)
    return met


WHOLE: list[tuple[pc.Expression, Constraint]] = [
    (field("topic") == "A", both(from_values("topic", ["A"]))),
    (pc.scalar("A") == field("topic"), both(from_values("topic", ["A"]))),
    (field("tags").isin(["A", "B"]), both(from_values("tags", ["A", "B"]))),
    (field("topic").isin(pa.array([], pa.string())), both(from_values("topic", []))),
    ((field("topic") == "A") | (field("topic") == "B"), both(from_values("topic", ["A", "B"]))),
    (field("queue_offset") < 5, both(from_span("queue_offset", None, 4))),
    (pc.scalar(5) < field("queue_offset"), both(from_span("queue_offset", 6, None))),
    (pc.scalar(5) >= field("physical_offset"), both(from_span("physical_offset", None, 5))),
    (field("queue_offset") == 5, both(from_span("queue_offset", 5, 5))),
    (
        (field("store_timestamp") >= TIME) & (field("queue_id") == pa.scalar(1, pa.int32())),
        both(from_span("store_timestamp", TIME_US, None), from_values("queue_id", [1])),
    ),
    (
        field("store_timestamp") > pa.scalar(TIME_US * 1000, pa.timestamp("ns", "Asia/Tokyo")),
        both(from_span("store_timestamp", TIME_US + 1, None)),
    ),
    (field("msg_id").is_valid(), Constraint(not_null=frozenset({"msg_id"}))),
]
PARTS: list[tuple[pc.Expression, Constraint]] = [
    (field("queue_offset").isin([3, 9]), both(from_span("queue_offset", 3, 9))),
    (
        (field("topic") == "A") & (field("reconsume_times") > 0),
        both(from_values("topic", ["A"])),
    ),
    ((field("topic") == "A") & ~(field("queue_id") == 1), both(from_values("topic", ["A"]))),
    ((field("topic") == "A") | (field("queue_id") == 1), Constraint()),
    (field("queue_id") != 1, Constraint()),
    (field("queue_id") > 1, Constraint()),
    (field("topic") > "A", Constraint()),
    (field("queue_id") == 1.0, Constraint()),
    (field("tags").isin(["A", None]), Constraint()),
    (field("tags").is_null(), Constraint()),
    (field("tags").is_valid(), Constraint()),
    (field("queue_offset") == field("physical_offset"), Constraint()),
    (field("queue_offset") + 1 == 5, Constraint()),
    (
        field("store_timestamp") > pa.scalar(TIME_US * 1000 + 1, pa.timestamp("ns", "UTC")),
        Constraint(),
    ),
]


@pytest.mark.parametrize(("expected", "is_whole"), [(WHOLE, True), (PARTS, False)])
def test_predicates_that_are_constraints_or_have_one(
    expected: list[tuple[pc.Expression, Constraint]], is_whole: bool
) -> None:
    for expression, constraint in expected:
        tree = expressions.tree_of(expression)
        assert constraint_of(tree, frozenset()) == (constraint, is_whole), str(expression)


def test_values_that_options_replace_are_no_constraint() -> None:
    tree = expressions.tree_of((field("topic") == "A") & (field("queue_offset") == 1))
    assert constraint_of(tree, frozenset({"topic"})) == (
        both(from_span("queue_offset", 1, 1)),
        False,
    )


def test_tuples_are_filters() -> None:
    given = [("topic", "in", ["A"]), ("queue_offset", ">=", 5)]
    tree = expressions.tree_of(expressions.expression_of(given))
    expected = both(from_values("topic", ["A"]), from_span("queue_offset", 5, None))
    assert constraint_of(tree, frozenset()) == (expected, True)


@pytest.mark.parametrize("given", ["topic = 'A'", [("topic",)], [("topic", "~", "A")], [], 5])
def test_other_filters_are_refused(given: object) -> None:
    with pytest.raises(InvalidOption, match=r"'filter' is .*; allowed: an expression such as"):
        expressions.expression_of(given)


# --- the same rows with and without -----------------------------------------

COMPARISONS: dict[str, Callable[[Any, Any], Any]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
ROWS = 759
"""Visible messages of the store."""
LEAVES = st.one_of(
    st.tuples(
        st.sampled_from(COLUMNS), st.sampled_from(sorted(COMPARISONS)), st.integers(0, ROWS - 1)
    ),
    st.tuples(
        st.sampled_from(COLUMNS), st.just("in"), st.lists(st.integers(0, ROWS - 1), max_size=3)
    ),
)
TREES = st.recursive(
    LEAVES, lambda inner: st.tuples(st.sampled_from("&|~"), inner, inner), max_leaves=4
)


@dataclass
class Engine:
    """An engine's column by name, constant from one of Arrow, and membership."""

    column: Callable[[str], Any]
    constant: Callable[[pa.Scalar], Any]
    is_in: Callable[[Any, pa.Array], Any]

    def predicate(self, tree: Any, table: pa.Table) -> Any:
        """Return a predicate; the numbers in the tree are rows of the table with its values."""
        match tree:
            case ("&" | "|" | "~" as connective, left, right):
                first, second = self.predicate(left, table), self.predicate(right, table)
                return {"&": first & second, "|": first | second, "~": ~first}[connective]
            case (name, "in", rows):
                values = table[name].take(pa.array(rows, pa.int64())).combine_chunks()
                return self.is_in(self.column(name), values)
            case (name, comparison, row):
                value = table[name][row]
                return COMPARISONS[comparison](self.column(name), self.constant(value))


ARROW = Engine(pc.field, lambda value: value, lambda column, values: column.isin(values))


@pytest.fixture(scope="module")
def table() -> pa.Table:
    read = reput.arrow.scan(golden.unpack("4.9.7", "clean"), columns=COLUMNS).read_all()
    assert read.num_rows == ROWS
    return read


def sorted_rows(table: pa.Table) -> list[Any]:
    return sorted(table.to_pylist(), key=lambda row: row["physical_offset"])


@hypothesis.given(tree=TREES)
@hypothesis.settings(max_examples=40, deadline=None)
def test_a_filter_returns_the_rows_that_pyarrow_would(table: pa.Table, tree: Any) -> None:
    expression = ARROW.predicate(tree, table)
    got = reput.arrow.scan(golden.unpack("4.9.7", "clean"), columns=COLUMNS, filter=expression)
    assert sorted_rows(got.read_all()) == sorted_rows(table.filter(expression))


@hypothesis.given(tree=TREES)
@hypothesis.settings(max_examples=20, deadline=None)
def test_polars_returns_the_rows_that_it_would_select_itself(table: pa.Table, tree: Any) -> None:
    pl = pytest.importorskip("polars", reason="polars is not installed")
    engine = Engine(
        pl.col,
        lambda value: pl.lit(
            pl.from_arrow(pa.array([value]))[0], pl.from_arrow(pa.array([value])).dtype
        ),
        lambda column, values: column.is_in(pl.from_arrow(values)),
    )
    predicate = engine.predicate(tree, table)
    lazy = reput.arrow.scan_polars(golden.unpack("4.9.7", "clean"), columns=COLUMNS)
    got = lazy.filter(predicate).collect().sort("physical_offset")
    assert got.equals(pl.from_arrow(table).filter(predicate).sort("physical_offset"))
