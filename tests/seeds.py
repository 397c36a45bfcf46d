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

import datetime
import hashlib
import os
import tomllib
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from random import Random

import hypothesis

VARIABLE = "REPUT_SEED"
CORPUS = Path(__file__).parent / "corpus" / "seeds.toml"
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


def corpus(text: str) -> Mapping[str, list[int]]:
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


@contextmanager
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
