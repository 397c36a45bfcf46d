"""Tests that take turns: each runs on one day of a period, and the days cost the same.

A test marked ``rotating`` has a row in ``turns.toml`` beside this module, with the CPU time that it
needs, or its file or folder has one. The rows are dealt to as many days as the budget of a day
needs; the seed of the day chooses the day. All of them run with ``REPUT_INTEROP=all`` and its like,
and one that is named runs at once.
"""

import datetime
import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

FILE = Path(__file__).with_suffix(".toml")


class BadTurn(ValueError):
    """A marked test has no row; the text names it."""


@dataclass(frozen=True)
class Turns:
    """What runs on which day.

    Args:
        budget_s: CPU time of a day, in s.
        cpu_s: CPU time of each row, in s. A row is a test without its cases, a file, or a folder.
    """

    budget_s: float
    cpu_s: Mapping[str, float] = field(default_factory=dict)

    @cached_property
    def days(self) -> int:
        """Days of a period."""
        return max(1, math.ceil(sum(self.cpu_s.values()) / self.budget_s))

    @cached_property
    def day_of(self) -> Mapping[str, int]:
        """Day of each row: the longest first, each to the day that has least."""
        totals = [0.0] * self.days
        dealt = {}
        for row in sorted(self.cpu_s, key=lambda name: (-self.cpu_s[name], name)):
            day = totals.index(min(totals))
            totals[day] += self.cpu_s[row]
            dealt[row] = day
        return dealt

    def find_row(self, test: str) -> str | None:
        """Return the row of a test, ``tests/file.py::test_name[case]``; None if there is none."""
        test = test.partition("[")[0]
        file = test.partition("::")[0]
        return next(
            (row for row in (test, file, file.rpartition("/")[0]) if row in self.cpu_s), None
        )

    def row_of(self, test: str) -> str:
        """Return the row of a test that is marked. Raises ``BadTurn``."""
        row = self.find_row(test)
        if row is None:
            test = test.partition("[")[0]
            text = f"{test} is marked rotating, but {FILE.name} has no row for it or its file"
            raise BadTurn(text)
        return row

    def runs(self, test: str, seed: int) -> bool:
        """Return whether a test runs on the day of a seed. Raises ``BadTurn``."""
        return self.day_of[self.row_of(test)] == self.turn(seed)

    def turn(self, seed: int) -> int:
        """Return the day of the period, from 0."""
        return day_number(seed) % self.days


def day_number(seed: int) -> int:
    """Return a number that grows by 1 each day, also from one month to the next.

    Other seeds than dates are taken as they are.
    """
    year, month, day = seed // 10_000, seed // 100 % 100, seed % 100
    try:
        return datetime.date(year, month, day).toordinal()
    except ValueError:
        return seed


def parse(text: str) -> Turns:
    """Return the turns of a file."""
    table = tomllib.loads(text)
    return Turns(table["budget_s"], table["cpu_s"])


def load() -> Turns:
    """Return the turns of the project."""
    return parse(FILE.read_text(encoding="utf-8"))
