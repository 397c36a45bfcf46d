"""The reference page of replication: every test that a row names exists."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/reference/replication.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| \d.*$", PAGE, re.MULTILINE)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.split("|")[1].strip())
def test_a_row_names_tests_that_exist(row: str) -> None:
    *_, cell, _ = row.split("|")
    groups = re.findall(r"`(tests/\S+\.py)`((?: `test_\w+`)+)", cell)
    assert groups
    for file, names in groups:
        text = (ROOT / file).read_text(encoding="utf-8")
        for name in re.findall(r"test_\w+", names):
            assert f"def {name}(" in text, f"{file} {name}"


def test_every_number_has_a_row() -> None:
    spans = [[int(word) for word in re.findall(r"\d+", row.split("|")[1])] for row in ROWS]
    numbers = {number for span in spans for number in range(span[0], span[-1] + 1)}
    assert numbers == set(range(1, 40))
