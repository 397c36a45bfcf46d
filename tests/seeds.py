"""The seed of the day: each day's run plays other examples, and any of them can be repeated.

    random = seeds.random("two threads", number)     # in a test

The seed is the date in UTC, as a number: 20261130. ``REPUT_SEED`` overrides it. The process that
starts the workers of pytest-xdist writes it there, so that they, and what tests start, have the
same one, at midnight too. pytest's header prints it.

Hypothesis draws its examples with it, fuzz tests and models derive their own seeds from it, and it
selects the cases of ``sampled`` tests.

``corpus/seeds.toml`` has the seeds with which a test once failed. These are played each time,
beside that of the day.
"""

import contextlib
import datetime
import hashlib
import os
import shlex
import tomllib
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from random import Random

import hypothesis
import pytest

VARIABLE = "REPUT_SEED"
CORPUS = Path(__file__).parent / "corpus" / "seeds.toml"
REPEATED_MAX = 20
"""Number of failed tests whose commands are printed."""
_KEYS = {"test", "seed", "found", "what"}


class BadSeed(ValueError):
    """``REPUT_SEED`` or a row of the corpus is wrong; the text describes the correct form."""


def today() -> int:
    """Return the seed of the day. Raises ``BadSeed``."""
    text = os.environ.get(VARIABLE)
    if not text:
        return int(f"{datetime.datetime.now(datetime.UTC):%Y%m%d}")
    if not (text.isascii() and text.isdigit()):
        raise BadSeed(f"{VARIABLE} is {text!r}; a whole number is allowed, such as 20261130")
    return int(text)


def hold() -> int:
    """Write the seed of the day into the environment, for all processes of the run; return it."""
    seed = today()
    os.environ[VARIABLE] = str(seed)
    return seed


def of(*parts: str | int) -> int:
    """Return a seed of 64 bits that follows from that of the day, and from the name of its use.

    Args:
        parts: Name of the use, and numbers of its cases: ``seeds.of("two threads", 3)``.
    """
    text = "/".join(map(str, (today(), *parts)))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")


def random(*parts: str | int) -> Random:
    """Return a generator with the seed that ``of`` returns."""
    return Random(of(*parts))


def parse(text: str) -> Mapping[str, list[int]]:
    """Return the seeds of each test: ``tests/file.py::test_name``. Raises ``BadSeed``."""
    seeds: dict[str, list[int]] = defaultdict(list)
    for number, row in enumerate(tomllib.loads(text).get("failure", []), start=1):
        if row.keys() != _KEYS:
            raise BadSeed(f"row {number} has {sorted(row)}; all of {sorted(_KEYS)} are required")
        if type(row["seed"]) is not int or row["seed"] < 0:
            raise BadSeed(f"row {number}: the seed is {row['seed']!r}; it must be a whole number")
        if "::" not in row["test"] or "[" in row["test"]:
            raise BadSeed(
                f"row {number}: the test is {row['test']!r}; it must be tests/file.py::test_name, "
                "and all of its cases are played"
            )
        seeds[row["test"]].append(row["seed"])
    return seeds


@contextlib.contextmanager
def played(seed: int) -> Iterator[None]:
    """Let a seed be that of the day, for Hypothesis too."""
    before = os.environ.get(VARIABLE)
    forced = hypothesis.core.global_force_seed
    os.environ[VARIABLE] = str(seed)
    hypothesis.core.global_force_seed = seed
    try:
        yield
    finally:
        hypothesis.core.global_force_seed = forced
        if before is None:
            del os.environ[VARIABLE]
        else:
            os.environ[VARIABLE] = before


class Plugin:
    """Plugin of pytest that prints the seed, plays the corpus, and says how to repeat a failure.

    Args:
        config: Configuration of the run.
        corpus: File of the corpus.
    """

    def __init__(self, config: pytest.Config, corpus: Path = CORPUS) -> None:
        self._seed = hold()
        self._corpus = parse(corpus.read_text(encoding="utf-8"))
        self._failed: dict[str, None] = {}
        if hypothesis.core.global_force_seed is None:  # else --hypothesis-seed sets it
            hypothesis.core.global_force_seed = self._seed

    def pytest_report_header(self) -> str:
        return f"seed of the day: {self._seed} ({VARIABLE}={self._seed} repeats this run)"

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        failed = self._corpus.get(metafunc.definition.nodeid)
        if failed:
            metafunc.parametrize(
                "seed_of_the_day", [None, *failed], indirect=True, ids=["today", *map(str, failed)]
            )

    @pytest.fixture(autouse=True)
    def seed_of_the_day(self, request: pytest.FixtureRequest) -> Iterator[None]:
        """Let a test play a seed of the corpus; by default, that of the day."""
        seed = getattr(request, "param", None)
        with contextlib.nullcontext() if seed is None else played(seed):
            yield

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._failed[report.nodeid.partition("@")[0]] = None

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if not self._failed:
            return
        terminalreporter.section("to repeat")
        for test in list(self._failed)[:REPEATED_MAX]:
            terminalreporter.write_line(
                f"{VARIABLE}={self._seed} .venv/bin/python -m pytest {shlex.quote(test)}"
            )
        if len(self._failed) > REPEATED_MAX:
            terminalreporter.write_line(f"and {len(self._failed) - REPEATED_MAX} more")
