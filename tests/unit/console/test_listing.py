"""Lists that stay sorted while rows move, compared with lists that are sorted each time."""

import fnmatch
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, strategies as st

from reput.console.listing import ORDERS_MAX, Listing
from reput.console.paging import Order
from reput.console.query import Query, RequestFailed
from reput.console.unknown import Unknown

KINDS = ("user", "system", "all")
FIELDS = ("name", "lag", "rate")
NAMES = [f"{word}-{number}" for word in ("orders", "Bills", "stock") for number in range(8)]


@dataclass(frozen=True)
class ListedRow:
    name: str
    kind: str
    lag: int | Unknown | None
    rate: float


def model(
    rows: dict[str, ListedRow], kind: str, text: str, field: str, is_descending: bool, pattern: str
) -> list[str]:
    """Return the names of the rows of a list: sorted by name, then by the field."""
    wanted = [
        row
        for row in sorted(rows.values(), key=lambda row: row.name)
        if kind in ("all", row.kind)
        and text.lower() in row.name.lower()
        and fnmatch.fnmatchcase(row.name, pattern)
    ]
    known = [row for row in wanted if isinstance(getattr(row, field), (int, float, str))]
    unknown = [row for row in wanted if row not in known]
    known.sort(key=lambda row: getattr(row, field), reverse=is_descending)
    return [row.name for row in known + unknown]


rows = st.builds(
    ListedRow,
    name=st.sampled_from(NAMES),
    kind=st.sampled_from(KINDS[:-1]),
    lag=st.one_of(st.integers(0, 3), st.none(), st.just(Unknown("not asked for yet"))),
    rate=st.sampled_from([0.0, 0.5, 7.25]),
)
questions = st.tuples(
    st.sampled_from(KINDS),
    st.sampled_from(["", "ORD", "-1", "nothing"]),
    st.sampled_from(FIELDS),
    st.booleans(),
    st.sampled_from(["*", "orders-*", "*-1"]),
)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("put"), rows),
        st.tuples(st.just("remove"), st.sampled_from(NAMES)),
        st.tuples(st.just("ask"), questions),
    ),
    max_size=60,
)


@given(st.lists(rows, max_size=30), steps)
def test_an_order_stays_that_of_a_list_that_is_sorted_each_time(
    first: list[ListedRow], steps: list[tuple[str, Any]]
) -> None:
    listing, expected = Listing[ListedRow](KINDS, FIELDS, "-lag"), dict[str, ListedRow]()
    for step, value in [*(("put", row) for row in first), *steps]:
        if step == "put":
            listing.put(value)
            expected[value.name] = value
        elif step == "remove":
            if value in expected:
                listing.remove(value)
                del expected[value]
        else:
            kind, text, field, is_descending, pattern = value
            sort = f"-{field}" if is_descending else field
            query = Query({"kind": [kind], "q": [text], "sort": [sort]})
            choice = listing.choose(
                query, (pattern,), lambda name, pattern=pattern: fnmatch.fnmatchcase(name, pattern)
            )
            assert list(choice.names) == model(expected, *value)
            assert listing.of(choice.names) == [expected[name] for name in choice.names]
            seen = [row for row in expected.values() if fnmatch.fnmatchcase(row.name, pattern)]
            counts = {name: sum(row.kind == name for row in seen) for name in KINDS[:-1]}
            assert choice.counts == {**counts, "all": len(seen)}


def test_the_default_order_and_the_allowed_ones() -> None:
    listing = Listing[ListedRow](KINDS, FIELDS, "-lag")
    assert listing.choose(Query({}), ("*",), bool).order == Order("lag", is_descending=True)
    with pytest.raises(RequestFailed, match="allowed are name, -name, lag, -lag, rate, -rate"):
        listing.choose(Query({"sort": ["kind"]}), ("*",), bool)


def test_a_new_order_after_many_is_right_as_well() -> None:
    listing = Listing[ListedRow](KINDS, FIELDS, "-lag")
    asked = [
        (kind, Order(field, is_descending=is_descending))
        for kind in KINDS
        for field in FIELDS
        for is_descending in (False, True)
    ]
    assert len(asked) > ORDERS_MAX
    for number, name in enumerate(NAMES):
        listing.put(ListedRow(name, "user", number % 3, number / 2))
        for kind, order in asked:
            names = listing.sorted_names(kind, order)
            expected = model(listing.rows, kind, "", order.field, order.is_descending, "*")
            assert names == expected, (kind, order)
