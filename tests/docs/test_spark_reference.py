"""The reference pages of the Spark source agree with the code."""

import re
from pathlib import Path

import pyarrow as pa
import pytest

from reput.errors import InvalidOption
from reput.spark import rows, views
from reput.spark.sending import rows as outgoing_rows
from reput.spark.sending.options import RowOptions

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


WRITING = "\n## Writing"


def named_in_tables(page: str) -> set[str]:
    cells = [line.split("|")[1] for line in page.splitlines() if line.startswith("| `")]
    return {name.lower() for cell in cells for name in re.findall(r"`([\w.]+)`", cell)}


def documented_options() -> set[str]:
    """Return the documented options of reads."""
    return named_in_tables((DOCS / "spark-options.md").read_text().split(WRITING)[0])


def test_the_columns_of_a_write_to_brokers_are_documented() -> None:
    page = (DOCS / "spark-options.md").read_text()
    (section,) = [part for part in page.split("\n## ") if part.startswith("Writing to brokers\n")]
    columns = section.split("| option |")[0]
    with pytest.raises(InvalidOption) as refused:
        outgoing_rows.check_columns(pa.schema({"x": pa.string()}), RowOptions())
    names = {part.split()[0] for part in refused.value.allowed.split(", ")}
    assert named_in_tables(columns) == names


def test_the_guides_name_options_that_exist() -> None:
    known = set(documented_options())
    guides = DOCS.parent / "how-to"
    for page in ("read-with-spark.md", "stream-a-topic.md"):
        text = (guides / page).read_text()
        named = re.findall(r"\.option\(\"([\w.]+)\"|`(\w+)=", text)
        used = {name.lower() for names in named for name in names if name}
        assert used - {"checkpointlocation"} <= known, page


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
