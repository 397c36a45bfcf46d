"""The week of ``make nightly``: each long target, and each file of tests, has its night."""

import importlib.util
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "scripts" / "nightly.py"
_spec = importlib.util.spec_from_file_location("nightly", SCRIPT)
assert _spec is not None
assert _spec.loader is not None
nightly = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(nightly)

MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
PATHS = nightly.test_paths(ROOT / "tests")
WEEK = [list(nightly.parts(day, PATHS, 20261130)) for day in range(7)]


def files_of(target: str, variable: str) -> list[str]:
    return sorted(
        file
        for night in WEEK
        for part in night
        if part.target == target and variable in part.variables
        for file in part.files
    )


def test_each_long_target_is_in_the_week() -> None:
    """A target is long if it sets a variable of the long runs, or says how long it lasts."""
    recipes = re.findall(r"^([a-z-]+):[^\n]*\n((?:\t.*\n)+)", MAKEFILE, re.MULTILINE)
    variables = ("REPUT_SOAK=", "REPUT_INTEROP=", "REPUT_HOSTILE_SECONDS=", "FAULT_OPTIONS)")
    variables += ("REPUT_SPARK_VERSIONS=", "mutants.py run")
    long = {name for name, recipe in recipes if any(word in recipe for word in variables)}
    assert long == set(nightly.TARGETS)
    assert {part.target for night in WEEK for part in night} == long


def test_each_file_has_one_night() -> None:
    assert len(PATHS) > 300
    assert files_of("interop-all", "REPUT_INTEROP") == PATHS
    others = [path for path in PATHS if not path.startswith("tests/interop/")]
    assert files_of("soak", "REPUT_SOAK") == others
    assert files_of("soak", "REPUT_TEST_FAST_PATH") == [
        path for path in PATHS if path.startswith("tests/unit/broker/")
    ]


def test_no_night_has_much_more_than_a_seventh() -> None:
    counts = [len(night[0].files) for night in WEEK]
    assert max(counts) < 2 * sum(counts) / 7


def test_seeds_and_seconds_of_a_week_are_those_of_the_targets() -> None:
    for name, expected in (("FAULT_SEEDS", 200), ("HOSTILE_SECONDS", 3600)):
        assert re.search(rf"^REPUT_{name} \?= {expected}$", MAKEFILE, re.MULTILINE)
    for night in WEEK:
        (faults,) = (part for part in night if part.target == "faults")
        assert "--first 20261130000 --seeds 29" in faults.command[-1]
        (hostile,) = (part for part in night if part.target == "hostile")
        assert hostile.variables == {"REPUT_HOSTILE_SECONDS": "515"}
    assert 7 * 29 >= 200
    assert 7 * 515 >= 3600


def test_a_night_is_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert nightly.main(["--day", "6", "--list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert all(line.startswith("Sunday, ") for line in lines)
    assert lines[-1] == "Sunday, spark-versions: make spark-versions"
