"""The reference pages of the Spark source say what the code does."""

import re
from pathlib import Path

import pytest

from reput.errors import InvalidOption
from reput.spark import options, rows, views

DOCS = Path(__file__).parents[2] / "docs" / "reference"


def spark_name(kind: object) -> str:
    names = {
        "string": "string",
        "binary": "binary",
        "int32": "int",
        "int64": "bigint",
        "bool": "boolean",
        "timestamp[us, tz=UTC]": "timestamp",
        "list<item: string>": "array<string>",
        "list<element: string>": "array<string>",
        "map<string, string>": "map<string,string>",
    }
    return names[str(kind)]


def test_every_option_is_documented_and_every_documented_option_exists() -> None:
    with pytest.raises(InvalidOption) as refused:
        options.parse({"path": "x", "noSuchOption": "1"})
    allowed = refused.value.allowed.removeprefix("one of ")
    known = {name.lower() for name in allowed.split(", ")}
    page = (DOCS / "spark-options.md").read_text()
    cells = [line.split("|")[1] for line in page.splitlines() if line.startswith("| `")]
    documented = {name.lower() for cell in cells for name in re.findall(r"`([\w.]+)`", cell)}
    assert documented == known


def test_message_columns_are_documented_in_order() -> None:
    page = (DOCS / "spark-schema.md").read_text().split("## Other views")[0]
    documented = re.findall(r"^\| `(\w+)` \| ([\w<>,]+) \|", page, re.MULTILINE)
    assert documented == [(name, spark_name(kind)) for name, kind in rows.FIELDS.items()]


def test_columns_of_the_other_views_are_documented_in_order() -> None:
    page = (DOCS / "spark-schema.md").read_text().split("## Other views")[1]
    documented = {
        view: re.findall(r"`(\w+)` (\w+(?:<[\w,]+>)?)", columns)
        for view, columns in re.findall(r"^\| `(\w+)` \| (.*) \|$", page, re.MULTILINE)
    }
    assert documented == {
        view: [(name, spark_name(kind)) for name, kind in columns.items()]
        for view, columns in views.FIELDS.items()
    }
