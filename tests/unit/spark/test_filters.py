"""Constraints: intersection, emptiness, and the predicates that become a constraint."""

import dataclasses
import itertools
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from hypothesis import strategies as st
from pyspark.sql import datasource

import store_builder
from reput.spark import filters, source
from reput.spark.filters import ALL, Constraint, Span, from_span, from_values
from spark import reading

NUMBERS = st.one_of(st.integers(-5, 5), st.sampled_from([-(1 << 63), (1 << 63) - 1]))
SPANS = st.one_of(st.just(ALL), st.builds(Span, NUMBERS, NUMBERS))


def sets(values: st.SearchStrategy[Any]) -> st.SearchStrategy[frozenset[Any] | None]:
    return st.none() | st.frozensets(values, max_size=3)


COLUMNS = (
    "topic",
    "queue_id",
    "tags",
    "msg_id",
    "queue_offset",
    "physical_offset",
    "store_timestamp",
)
NAMES = st.sampled_from("abc")
CONSTRAINTS = st.builds(
    Constraint,
    topics=sets(NAMES),
    queue_ids=sets(st.integers(0, 3)),
    tags=sets(NAMES),
    message_ids=sets(NAMES),
    queue_offsets=SPANS,
    physical_offsets=SPANS,
    store_times_us=SPANS,
    not_null=st.frozensets(st.sampled_from(COLUMNS), max_size=3),
)
ROWS = st.fixed_dictionaries(
    {
        "topic": st.none() | NAMES,
        "queue_id": st.none() | st.integers(0, 3),
        "tags": st.none() | NAMES,
        "msg_id": st.none() | NAMES,
        "queue_offset": st.none() | st.integers(-3, 3),
        "physical_offset": st.none() | st.integers(-3, 3),
        "store_timestamp": st.none() | st.integers(-3, 3),
    }
)


@hypothesis.given(CONSTRAINTS, CONSTRAINTS, ROWS)
def test_meet_admits_the_rows_that_both_admit(
    a: Constraint, b: Constraint, row: dict[str, Any]
) -> None:
    met = a.meet(b)
    assert met.admits(row) == (a.admits(row) and b.admits(row))
    if met.is_empty and all(value is not None for value in row.values()):
        assert not met.admits(row)


@hypothesis.given(CONSTRAINTS, CONSTRAINTS, CONSTRAINTS)
def test_meet_is_commutative_associative_and_idempotent(
    a: Constraint, b: Constraint, c: Constraint
) -> None:
    assert a.meet(b) == b.meet(a)
    assert a.meet(b).meet(c) == a.meet(b.meet(c))
    assert a.meet(a) == a
    assert a.meet(Constraint()) == a
    assert a.is_empty <= a.meet(b).is_empty


def test_empty_and_unbounded_constraints() -> None:
    assert not Constraint().is_empty
    assert Constraint().describe() == "everything"
    assert ALL.is_all
    assert not ALL.is_empty
    assert Span(3, 2).is_empty
    assert not Span(3, 3).is_empty
    for empty in (
        Constraint(topics=frozenset()),
        Constraint(queue_ids=frozenset()),
        Constraint(tags=frozenset()),
        Constraint(message_ids=frozenset()),
        Constraint(queue_offsets=Span(1, 0)),
        Constraint(physical_offsets=Span(1, 0)),
        Constraint(store_times_us=Span(1, 0)),
    ):
        assert empty.is_empty


def test_describe() -> None:
    constraint = Constraint(
        topics=frozenset({"b", "a"}), queue_offsets=Span(3, 5), not_null=frozenset({"topic"})
    )
    assert constraint.describe() == "topics in ['a', 'b'], queue_offsets 3..5"


@pytest.mark.parametrize(
    ("column", "member"),
    [("topic", "topics"), ("queue_id", "queue_ids"), ("tags", "tags"), ("msg_id", "message_ids")],
)
def test_values(column: str, member: str) -> None:
    constraint = from_values(column, [1, 2, 2])
    assert constraint is not None
    assert getattr(constraint, member) == {1, 2}
    assert constraint.not_null == {column}
    assert from_values(column, [1, None]) is None
    assert from_span(column, 1, 2) is None
    nothing = from_values(column, [])
    assert nothing is not None
    assert nothing.is_empty


@pytest.mark.parametrize(
    ("column", "member"),
    [
        ("queue_offset", "queue_offsets"),
        ("physical_offset", "physical_offsets"),
        ("store_timestamp", "store_times_us"),
    ],
)
def test_spans(column: str, member: str) -> None:
    for low, high in itertools.product((None, 1), (None, 5)):
        constraint = from_span(column, low, high)
        assert constraint is not None
        span = getattr(constraint, member)
        assert (span.low, span.high) == (
            ALL.low if low is None else 1,
            ALL.high if high is None else 5,
        )
        assert constraint.not_null == {column}
    assert from_values(column, [7, 7]) == from_span(column, 7, 7)
    for no_span in ([], [7, 8], ["7"], [True], [7.0]):
        assert from_values(column, no_span) is None


@pytest.mark.parametrize("column", ["body", "keys", "flag", "broker", "no_such"])
def test_other_columns_are_left_to_spark(column: str) -> None:
    assert from_values(column, ["a"]) is None
    assert from_span(column, 1, 2) is None


# --- predicates that Spark pushes ---------------------------------------------

QUEUE_OFFSET = ("queue_offset",)


PREDICATES = [
    (datasource.EqualTo(("topic",), "a"), from_values("topic", ["a"])),
    (datasource.EqualNullSafe(("topic",), "a"), from_values("topic", ["a"])),
    (datasource.EqualNullSafe(("topic",), None), None),
    (datasource.EqualTo(QUEUE_OFFSET, 3), from_span("queue_offset", 3, 3)),
    (datasource.In(("queue_id",), (1, 2)), from_values("queue_id", [1, 2])),
    (datasource.In(("queue_id",), (1, None)), None),
    (datasource.In(QUEUE_OFFSET, (1, 2)), None),
    (datasource.GreaterThan(QUEUE_OFFSET, 3), from_span("queue_offset", 4, None)),
    (datasource.GreaterThanOrEqual(QUEUE_OFFSET, 3), from_span("queue_offset", 3, None)),
    (datasource.LessThan(QUEUE_OFFSET, 3), from_span("queue_offset", None, 2)),
    (datasource.LessThanOrEqual(QUEUE_OFFSET, 3), from_span("queue_offset", None, 3)),
    (datasource.GreaterThan(("topic",), "a"), None),
    (datasource.GreaterThan(("flag",), 3), None),
    (datasource.StringStartsWith(("topic",), "a"), None),
    (datasource.IsNull(("topic",)), None),
    (datasource.IsNotNull(("tags",)), None),
    (datasource.IsNotNull(("topic",)), Constraint(not_null=frozenset({"topic"}))),
    (datasource.Not(datasource.EqualTo(("topic",), "a")), None),
    (
        datasource.LessThanOrEqual(("store_timestamp",), reading.time_of(5)),
        from_span("store_timestamp", None, 5000),
    ),
    (
        datasource.GreaterThan(("store_timestamp",), reading.time_of(5)),
        from_span("store_timestamp", 5001, None),
    ),
    (datasource.EqualTo(("store_timestamp",), reading.time_of(5).replace(tzinfo=None)), None),
    (datasource.EqualTo(("keys", "topic"), "a"), None),
]


def test_predicates() -> None:
    for predicate, expected in PREDICATES:
        assert source.constraint_of(predicate) == expected, predicate


@pytest.mark.parametrize(
    ("ends_with_query", "kind"), [(True, source.PushdownReader), (False, source.MessageReader)]
)
def test_predicates_are_accepted_only_if_they_end_with_their_query(
    ends_with_query: bool,
    kind: type,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    tmp_path: Path,
) -> None:
    monkeypatch.setattr(source, "_is_pushdown_worker", lambda: True)
    monkeypatch.setattr(source, "PREDICATES_END_WITH_QUERY", ends_with_query)
    store_builder.build(tmp_path, store_builder.messages(1))
    rocketmq = source.RocketMQDataSource({"path": str(tmp_path), "pushdown": "true"})
    assert type(rocketmq.reader(rocketmq.schema())) is kind
    assert ("frames of reput.spark.read" in caplog.text) != ends_with_query


def pushed(options: dict[str, Any], *predicates: datasource.Filter) -> tuple[Constraint, list[Any]]:
    reader = source.PushdownReader(reading.parse("/store", **options), ["topic"])
    left = list(reader.pushFilters(list(predicates)))
    return reader._constraint, left


def test_accepted_predicates_are_combined_and_others_returned() -> None:
    contains = datasource.StringContains(("topic",), "x")
    constraint, left = pushed(
        {},
        datasource.IsNotNull(("tags",)),
        datasource.EqualTo(("tags",), "A"),
        datasource.GreaterThan(QUEUE_OFFSET, 3),
        contains,
        datasource.LessThan(QUEUE_OFFSET, 9),
    )
    assert left == [contains]
    assert constraint.tags == {"A"}
    assert constraint.queue_offsets == Span(4, 8)
    is_null = datasource.IsNotNull(("tags",))
    assert pushed({}, is_null) == (Constraint(), [is_null])


def test_predicates_on_resolved_topics_are_left_to_spark() -> None:
    predicates = [datasource.EqualTo(("topic",), "a"), datasource.EqualTo(("queue_id",), 1)]
    offset = datasource.EqualTo(QUEUE_OFFSET, 1)
    constraint, left = pushed({"resolveTopics": True}, *predicates, offset)
    assert left == predicates
    assert constraint == from_span("queue_offset", 1, 1)


def test_meet_and_describe_cover_every_member() -> None:
    """A member ignored by meet() would be a dropped condition."""
    for field in dataclasses.fields(Constraint):
        value = Span(1, 2) if field.default == ALL else frozenset({"x"})
        constraint = Constraint(**{field.name: value})
        assert Constraint().meet(constraint) == constraint
        if field.name != "not_null":
            assert field.name in constraint.describe()
    assert filters.ALWAYS_PRESENT
