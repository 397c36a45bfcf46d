"""Output of views: fields, tables, JSON."""

import json
from types import SimpleNamespace

import pytest

from reput.cli.printing import Clock, Fields, Table, View, print_view

ROWS = [
    {"broker_name": "a", "lag": 7, "put_tps": 1.26, "stored": 0, "keys": ["x", "y"]},
    {"broker_name": "bb", "lag": None, "put_tps": None, "stored": None, "keys": []},
]


def printed(capsys: pytest.CaptureFixture[str], view: View, *, as_json: bool = False) -> str:
    print_view(view, Clock(is_utc=True), as_json=as_json)
    return capsys.readouterr().out


def test_a_column_names_its_heading_and_its_key(capsys: pytest.CaptureFixture[str]) -> None:
    columns = "broker=broker_name #lag #put/s=put_tps:.1f @last_stored=stored keys"
    assert printed(capsys, View({}, Table(columns, ROWS))) == (
        "broker  lag  put/s  last stored               keys\n"
        "a         7    1.3  1970-01-01T00:00:00.000Z  x y\n"
        "bb        -      -  -                         -\n"
    )


def test_rows_are_objects_too_and_columns_may_be_computed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    rows = [SimpleNamespace(topic="T", count=2)]
    table = Table("topic double", rows, computed={"double": lambda row: 2 * row.count})
    assert printed(capsys, View({}, table)) == "topic  double\nT      4\n"


def test_blocks_are_separated_and_empty_optional_tables_are_omitted(
    capsys: pytest.CaptureFixture[str],
) -> None:
    view = View(
        {},
        Fields.of("broker=broker_name lag", ROWS[0]),
        Table("lag", [], is_optional=True),
        None,
        Table("lag", []),
        "text",
    )
    assert printed(capsys, view) == "broker  a\nlag     7\n\nlag\n\ntext\n"


def test_a_long_table_reports_the_omitted_rows(capsys: pytest.CaptureFixture[str]) -> None:
    table = Table(["n"], ([n] for n in range(5)), count_max=2)
    assert printed(capsys, View({}, table)) == "n\n0\n1\n... and 3 more, see --json\n"


def test_json_is_the_document_alone(capsys: pytest.CaptureFixture[str]) -> None:
    out = printed(capsys, View({"a": 1}, Fields({"b": 2})), as_json=True)
    assert json.loads(out) == {"a": 1}
