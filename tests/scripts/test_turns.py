"""Tests that take turns: each runs once in a period, and no day costs more than the budget."""

import re
from collections import Counter
from pathlib import Path

import pytest

import turns
from turns import BadTurn, Turns

TESTS = Path(__file__).parents[1]
ROWS = {
    "tests/a.py": 30.0,
    "tests/b.py": 20.0,
    "tests/b.py::test_long": 50.0,
    "tests/c.py": 39.0,
    "tests/d": 1.0,
}


def test_each_row_runs_on_one_day_of_a_period() -> None:
    table = Turns(70, ROWS)
    assert table.days == 2
    days = [20261130, 20261201, 20261202, 20261203]  # the month ends
    ran = {row: [table.runs(f"{row}::test_x[1]", day) for day in days] for row in ("tests/a.py",)}
    assert ran["tests/a.py"] in ([True, False, True, False], [False, True, False, True])


def test_the_days_cost_about_the_same() -> None:
    table = Turns(70, ROWS)
    totals: Counter[int] = Counter()
    for row, day in table.day_of.items():
        totals[day] += int(ROWS[row])
    assert sorted(totals.values()) == [70, 70]


@pytest.mark.parametrize(
    ("test", "row"),
    [
        ("tests/b.py::test_long[4.9.7]", "tests/b.py::test_long"),
        ("tests/b.py::test_longer", "tests/b.py"),
        ("tests/d/e.py::test_x[1]", "tests/d"),
    ],
)
def test_a_test_has_a_row_of_its_own_or_that_of_its_file(test: str, row: str) -> None:
    assert Turns(70, ROWS).row_of(test) == row


def test_a_test_without_a_row_is_refused() -> None:
    with pytest.raises(BadTurn, match=r"tests/f\.py::test_x is marked rotating, but turns\.toml"):
        Turns(70, ROWS).runs("tests/f.py::test_x[1]", 20261130)


def test_other_seeds_than_dates_choose_a_day_too() -> None:
    table = Turns(70, ROWS)
    assert {table.turn(seed) for seed in range(10)} == {0, 1}


# --- the table of the project -----------------------------------------------------------


def test_no_day_costs_more_than_the_budget_and_a_tenth() -> None:
    table = turns.load()
    totals: Counter[int] = Counter()
    for row, day in table.day_of.items():
        totals[day] += table.cpu_s[row]
    assert set(totals) == set(range(table.days))
    assert max(totals.values()) <= table.budget_s * 1.1


def test_each_row_is_that_of_a_marked_test() -> None:
    for row in turns.load().cpu_s:
        file, _, test = row.partition("::")
        path = TESTS.parent / file
        files = [path] if path.is_file() else sorted(path.glob("test_*.py"))
        text = "".join(path.read_text(encoding="utf-8") for path in files)
        if test:
            assert re.search(rf"def {test}\(", text), row
        assert "mark.rotating" in text, row
