"""The seed of the day: its derivation, the corpus of seeds that failed once, runs of pytest."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import conftest
import seeds
from seeds import BadSeed

TESTS = Path(__file__).parents[1]


def test_the_variable_is_the_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(seeds.VARIABLE, "20261130")
    assert seeds.today() == 20261130


@pytest.mark.parametrize("text", ["today", "-1", "1.5", "٣"])
def test_another_word_is_refused(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv(seeds.VARIABLE, text)
    with pytest.raises(BadSeed, match=r"REPUT_SEED is .*; a whole number is allowed"):
        seeds.today()


def test_without_it_the_seed_is_a_date_and_is_held(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(seeds.VARIABLE, "")
    seed = seeds.hold()
    assert 20200101 <= seed <= 99991231
    assert os.environ[seeds.VARIABLE] == str(seed)


def test_each_use_has_its_own_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    known = set()
    for day in ("20261130", "20261201"):
        monkeypatch.setenv(seeds.VARIABLE, day)
        uses = [seeds.of("a"), seeds.of("a", 1), seeds.of("a", 2), seeds.of("b")]
        assert uses == [seeds.of("a"), seeds.of("a", 1), seeds.of("a", 2), seeds.of("b")]
        known |= set(uses)
        assert (
            seeds.random("a").random() == seeds.random("a").random() != seeds.random("b").random()
        )
    assert len(known) == 8


def test_a_played_seed_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(seeds.VARIABLE, "5")
    with seeds.played(7):
        assert seeds.today() == 7
    assert seeds.today() == 5


ROW = '[[failure]]\ntest = "tests/a.py::test_b"\nseed = 5\nfound = 2026-11-30\nwhat = "A fault."\n'


def test_the_corpus_has_the_seeds_of_each_test() -> None:
    other = ROW.replace("= 5", "= 6") + ROW.replace("test_b", "test_c")
    assert seeds.parse(ROW + other) == {"tests/a.py::test_b": [5, 6], "tests/a.py::test_c": [5]}


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("what", "why", r"has \['found', 'seed', 'test', 'why'\]; all of .*'what'"),
        ("= 5", '= "5"', "seed is '5'; it must be a whole number"),
        ("test_b", "test_b[1]", r"test is 'tests/a.py::test_b\[1\]'; it must be tests/file"),
        ("::", "/", "it must be tests/file.py::test_name"),
    ],
)
def test_a_bad_row_is_refused(old: str, new: str, expected: str) -> None:
    with pytest.raises(BadSeed, match=expected):
        seeds.parse(ROW.replace(old, new))


def test_rows_of_this_project_name_tests() -> None:
    for test in seeds.parse(seeds.CORPUS.read_text(encoding="utf-8")):
        file, *_, name = test.split("::")
        assert f"def {name}(" in (TESTS.parent / file).read_text(encoding="utf-8")


class SampledItem:
    """What ``_outside_of_samples`` reads of a test."""

    def __init__(self, number: int, every: int, *, is_skipped: bool = False) -> None:
        self.nodeid = f"tests/test_a.py::test_b[{number}]"
        self._marks = [pytest.mark.sampled(every).mark]
        self._marks += [pytest.mark.skipif(is_skipped, reason="make soak").mark]

    def iter_markers(self, name: str) -> list[pytest.Mark]:
        return [mark for mark in self._marks if mark.name == name]

    def get_closest_marker(self, name: str) -> pytest.Mark | None:
        return next(iter(self.iter_markers(name)), None)


@pytest.mark.parametrize("every", [2, 3, 5])
def test_each_case_runs_once_in_some_days(monkeypatch: pytest.MonkeyPatch, every: int) -> None:
    items = [SampledItem(number, every) for number in range(60)]
    names = [item.nodeid for item in items]
    played: list[str] = []
    for day in range(20261201, 20261201 + every):
        monkeypatch.setenv(seeds.VARIABLE, str(day))
        left_out = conftest._outside_of_samples(items)  # type: ignore[arg-type]
        played += [name for name in names if name not in left_out]
    assert played.count(names[0]) == every  # the first case always runs
    assert sorted(played) == sorted([*names[1:], *names[:1] * every])


def test_skipped_cases_are_no_part_of_the_sample() -> None:
    items = [SampledItem(number, 5, is_skipped=number < 40) for number in range(80)]
    left_out = conftest._outside_of_samples(items)  # type: ignore[arg-type]
    assert left_out.isdisjoint(item.nodeid for item in items[:41])
    assert len(left_out) > 20


# --- runs of pytest -----------------------------------------------------------

CONFTEST = """
from pathlib import Path
import hypothesis
import seeds
hypothesis.settings.register_profile("default", database=None, derandomize=False)
hypothesis.settings.load_profile("default")
def pytest_configure(config):
    config.pluginmanager.register(seeds.Plugin(config, Path(__file__).parent / "seeds.toml"))
"""
TEST = """
import pytest
import seeds
from hypothesis import given, settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test

@pytest.mark.parametrize("case", ["x", "y"])
def test_cases(case):
    print("cases", case, seeds.today())

drawn = []

@settings(max_examples=3, database=None)
@given(st.integers(0, 2**64))
def test_drawn(number):
    print("drawn", number)

class Machine(RuleBasedStateMachine):
    @rule(number=st.integers(0, 2**64))
    def act(self, number):
        print("machine", number)

def test_machine():
    run_state_machine_as_test(
        Machine, settings=settings(max_examples=2, stateful_step_count=2, database=None)
    )
"""
FAILURE = "def test_failure(): assert False\n"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "seeds.toml").write_text("")
    (tmp_path / "test_it.py").write_text(TEST)
    return tmp_path


def run(project: Path, *arguments: str, seed: str) -> tuple[int, str]:
    environment = os.environ | {
        "PYTHONPATH": str(TESTS),
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        "PYTEST_ADDOPTS": "",
        seeds.VARIABLE: seed,
    }
    command = [sys.executable, "-m", "pytest", "-s", "-v", "-p", "no:cacheprovider"]
    command += ["-p", "_hypothesis_pytestplugin", "-p", "xdist", *arguments]
    done = subprocess.run(
        command, cwd=project, env=environment, capture_output=True, text=True, check=False
    )
    return done.returncode, done.stdout + done.stderr


def lines(output: str, word: str) -> list[str]:
    return [line for line in output.replace("PASSED", "\n").splitlines() if f"{word} " in line]


@pytest.mark.slow
def test_a_run_prints_its_seed_and_repeats_its_examples(project: Path) -> None:
    _, first = run(project, seed="5")
    _, second = run(project, seed="5")
    _, other = run(project, seed="6")
    assert "seed of the day: 5 (REPUT_SEED=5 repeats this run)" in first
    for word in ("drawn", "machine"):
        assert lines(first, word) == lines(second, word) != lines(other, word)
        assert len(lines(first, word)) >= 3


@pytest.mark.slow
def test_the_corpus_is_played_beside_the_day(project: Path) -> None:
    row = ROW.replace("tests/a.py", "test_it.py")
    names = ("test_cases", "test_drawn", "test_machine")
    (project / "seeds.toml").write_text("".join(row.replace("test_b", name) for name in names))
    code, output = run(project, seed="9")
    assert code == 0, output
    for case in ("x", "y"):
        assert f"cases {case} 5" in output
        assert f"cases {case} 9" in output
    (project / "seeds.toml").write_text("")
    of_corpus = [run(project, seed=seed)[1] for seed in ("9", "5")]
    for word in ("drawn", "machine"):
        numbers = [line.rpartition(f"{word} ")[2] for line in lines(output, word)]
        both = [line.rpartition(f"{word} ")[2] for o in of_corpus for line in lines(o, word)]
        assert numbers == both


@pytest.mark.slow
@pytest.mark.parametrize("workers", ["0", "2"])
@pytest.mark.sampled(3)
def test_a_failure_prints_how_to_repeat_it(project: Path, workers: str) -> None:
    (project / "test_fails.py").write_text(FAILURE)
    code, output = run(project, "-n", workers, "test_fails.py", seed="7")
    assert code == 1
    assert "REPUT_SEED=7 .venv/bin/python -m pytest test_fails.py::test_failure" in output
