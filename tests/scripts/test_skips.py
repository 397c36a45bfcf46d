"""The budget of skipped tests: what it allows, what fails a run, and what it writes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import skips
from skips import BadBudget, Row, Skip

TESTS = Path(__file__).parents[1]
SOAK = Row("make soak", "It takes long.", runs_with="REPUT_SOAK", most={"tests/unit": 2})
JAVA = Row("missing java", "It may be absent.", needs="java", most={"tests/interop": 9})
PLAIN = Row("no such case", "There is none.", most={"tests/interop": 1, "tests/unit": 1})
ROWS = [SOAK, JAVA, PLAIN]


def skipped(folder: str, reason: str, count: int = 1) -> list[Skip]:
    return [Skip(f"{folder}/test_{i % 2}.py::test[{i}]", reason) for i in range(count)]


@pytest.mark.parametrize("folder", ["tests/unit", "tests/unit/store/files"])
def test_what_the_budget_allows_is_no_problem(folder: str) -> None:
    assert skips.judge(ROWS, skipped(folder, "make soak: minutes", 2), environment={}) == []


def test_one_more_is_a_problem_with_its_files() -> None:
    (problem,) = skips.judge(ROWS, skipped("tests/unit", "make soak: minutes", 3), environment={})
    assert problem == (
        "tests/unit, 'make soak': 3 tests are skipped, 2 are allowed\n"
        "    2 in tests/unit/test_0.py\n"
        "    1 in tests/unit/test_1.py"
    )


def test_another_folder_has_its_own_number() -> None:
    (problem,) = skips.judge(ROWS, skipped("tests/crash", "make soak"), environment={})
    assert "1 tests are skipped, 0 are allowed\n    1 in tests/crash/test_0.py" in problem


def test_a_reason_without_a_row_is_a_problem() -> None:
    (problem,) = skips.judge(ROWS, skipped("tests/unit", "too lazy"), environment={})
    assert problem == (
        "tests/unit/test_0.py::test[0] is skipped for a reason without a row: too lazy"
    )


def test_only_a_run_of_all_tests_finds_superfluous_rows() -> None:
    some = [*skipped("tests/unit", "make soak"), *skipped("tests/interop", "no such case: 4.x")]
    assert skips.judge(ROWS, some, environment={}) == []
    (problem,) = skips.judge(ROWS, some, environment={}, is_whole=True)
    assert problem == "tests/unit, 'no such case': no test is skipped, 1 are allowed: lower it"


def test_without_a_tool_other_rows_are_not_superfluous() -> None:
    some = skipped("tests/interop", "missing java: install it")
    assert skips.judge(ROWS, some, environment={}, is_whole=True) == []


def test_a_long_run_compares_no_numbers_but_knows_each_reason() -> None:
    environment = {"REPUT_INTEROP": "all"}
    many = skipped("tests/interop", "no such case", 9)
    assert skips.judge(ROWS, many, environment=environment, is_whole=True) == []
    assert skips.judge(ROWS, skipped("tests/unit", "lazy"), environment=environment)


def test_a_long_run_skips_nothing_that_it_switches_on() -> None:
    some = skipped("tests/unit", "make soak")
    (problem,) = skips.judge(ROWS, some, environment={"REPUT_SOAK": "1"})
    assert "1 tests are skipped, although REPUT_SOAK is set" in problem


def test_counts_grow_and_fall_only_where_all_tests_ran() -> None:
    some = [*skipped("tests/unit", "make soak", 1), *skipped("tests/interop", "no such case", 4)]
    partly = {row.reason: row.most for row in skips.counted(ROWS, some)}
    assert partly == {
        "make soak": {"tests/unit": 2},
        "missing java": {"tests/interop": 9},
        "no such case": {"tests/interop": 4, "tests/unit": 1},
    }
    wholly = skips.counted(ROWS, some, {"tests/unit", "tests/interop"})
    assert {row.reason: row.most for row in wholly} == {
        "make soak": {"tests/unit": 1},
        "missing java": {"tests/interop": 9},
        "no such case": {"tests/interop": 4},
    }


def test_a_written_file_is_read_again() -> None:
    row = Row(r"(a|b) \w+", 'It says "no".', "java", "REPUT_SOAK", {"tests/b": 2, "tests/a": 1})
    text = skips.render([row, SOAK], "# heading\n\n")
    assert text.startswith('# heading\n\n[[skip]]\nreason = "(a|b) \\\\w+"\n')
    read = skips.parse(text)
    assert [(r.reason, r.why, r.needs, r.runs_with, dict(r.most)) for r in read] == [
        (r.reason, r.why, r.needs, r.runs_with, dict(r.most)) for r in (row, SOAK)
    ]


def test_the_budget_of_this_project_is_as_written() -> None:
    text = skips.FILE.read_text(encoding="utf-8")
    assert skips.render(skips.parse(text), text.partition("[[skip]]")[0]) == text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('reason = "a"\nwhy = "b"', r"row 1 \('a'\) must have .* numbers in most"),
        ('why = "b"\nmost = {a = 1}', "must have a reason"),
        ('reason = "a"\nmost = {a = 1}', "a sentence why"),
        ('reason = "a"\nwhy = "b"\nmost = {a = 0}', "whole, and at least 1"),
        ('reason = "a"\nwhy = "b"\nmost = {a = true}', "whole, and at least 1"),
        ('reason = "a"\nmax = 1', r"has \['max'\]; allowed are \['reason', 'why'"),
    ],
)
def test_a_bad_row_is_refused(text: str, expected: str) -> None:
    with pytest.raises(BadBudget, match=expected):
        skips.parse(f"[[skip]]\n{text}\n")


def test_unknown_needs_are_refused() -> None:
    assert skips.needed(ROWS, " java,") == {"java"}
    with pytest.raises(BadBudget, match=r"has \['jav'\]; allowed are \['java'\]"):
        skips.needed(ROWS, "java,jav")


# --- runs of pytest -----------------------------------------------------------

CONFTEST = """
from pathlib import Path
import skips
def pytest_configure(config):
    config.pluginmanager.register(skips.Budget(config, Path(__file__).parent / "budget.toml"))
"""
BUDGET = """# heading

[[skip]]
reason = "missing java"
why = "It may be absent."
needs = "java"
most = { "tests/unit" = 5 }

[[skip]]
reason = "no such case"
why = "There is none."
most = { "tests/unit" = 2 }
"""
JAVA_TESTS = """
import pytest
@pytest.fixture
def java(): pytest.skip("missing java: install it")
def test_fixture(java): pass
@pytest.mark.skip(reason="missing java")
def test_mark(): pass
def test_passes(): pass
"""
JAVA_MODULE = 'import pytest\npytest.skip("missing java here", allow_module_level=True)\n'
NO_CASE = """
import pytest
@pytest.mark.parametrize("number", range({count}))
def test_case(number): pytest.skip("no such case")
@pytest.mark.xfail(reason="a known fault")
def test_known(): assert False
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "pytest.ini").write_text("[pytest]\ntestpaths = tests\n")
    folder = tmp_path / "tests/unit"
    folder.mkdir(parents=True)
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "budget.toml").write_text(BUDGET)
    (folder / "test_java.py").write_text(JAVA_TESTS)
    (folder / "test_module.py").write_text(JAVA_MODULE)
    (folder / "test_case.py").write_text(NO_CASE.format(count=2))
    return tmp_path


def run(project: Path, *arguments: str, **variables: str) -> tuple[int, str]:
    names = {*skips.LONG_RUNS, skips.NEEDS_VARIABLE, skips.WRITE_VARIABLE, "PYTEST_ADDOPTS"}
    environment = {name: value for name, value in os.environ.items() if name not in names}
    environment |= {"PYTHONPATH": str(TESTS), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", **variables}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "xdist", "-p", "no:cacheprovider"]
    command += arguments
    done = subprocess.run(
        command, cwd=project, env=environment, capture_output=True, text=True, check=False
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("workers", ["0", "2"])
@pytest.mark.sampled(3)
def test_a_run_within_the_budget_passes(project: Path, workers: str) -> None:
    code, output = run(project, "-n", workers)
    assert "1 passed, 5 skipped, 1 xfailed" in output
    assert code == 0


@pytest.mark.slow
@pytest.mark.parametrize("workers", ["0", "2"])
@pytest.mark.sampled(3)
def test_a_run_beyond_it_fails_and_names_the_file(project: Path, workers: str) -> None:
    (project / "tests/unit/test_case.py").write_text(NO_CASE.format(count=3))
    code, output = run(project, "-n", workers)
    assert "tests/unit, 'no such case': 3 tests are skipped, 2 are allowed" in output
    assert "3 in tests/unit/test_case.py" in output
    assert code == 1


@pytest.mark.slow
@pytest.mark.parametrize("workers", ["0", "2"])
@pytest.mark.sampled(3)
def test_what_misses_a_needed_tool_fails(project: Path, workers: str) -> None:
    files = ("tests/unit/test_java.py", "tests/unit/test_case.py")
    code, output = run(project, "-n", workers, *files, REPUT_TEST_NEEDS="java")
    assert "1 passed, 2 skipped, 1 xfailed, 2 errors" in output
    assert "java is missing, and REPUT_TEST_NEEDS requires it: missing java: install it" in output
    assert code == 1
    code, output = run(project, "-n", workers, "tests/unit/test_module.py", REPUT_TEST_NEEDS="java")
    assert "java is missing, and REPUT_TEST_NEEDS requires it: missing java here" in output
    assert code != 0


@pytest.mark.slow
def test_a_part_needs_not_all_skips(project: Path) -> None:
    (project / "tests/unit/test_case.py").unlink()
    (project / "tests/unit/test_java.py").write_text("def test_passes(): pass\n")
    (project / "tests/unit/test_module.py").unlink()
    assert run(project, "tests/unit/test_java.py")[0] == 0
    assert run(project, "-k", "passes")[0] == 0
    code, output = run(project)
    assert "'no such case': no test is skipped, 2 are allowed: lower it" in output
    assert code == 1


@pytest.mark.slow
def test_counts_are_written(project: Path) -> None:
    (project / "tests/unit/test_case.py").write_text(NO_CASE.format(count=4))
    code, output = run(project, REPUT_SKIPS="write")
    assert code == 0, output
    assert (project / "budget.toml").read_text() == BUDGET.replace("= 2 }", "= 4 }")
    (project / "tests/unit/test_new.py").write_text(
        NO_CASE.replace("no such case", "lazy").format(count=1)
    )
    assert "no row, write one: lazy" in run(project, REPUT_SKIPS="write")[1]


@pytest.mark.slow
@pytest.mark.parametrize("variable", [skips.NEEDS_VARIABLE, skips.WRITE_VARIABLE])
def test_a_bad_variable_ends_the_run(project: Path, variable: str) -> None:
    code, output = run(project, **{variable: "all"})
    assert code != 0
    assert f"{variable} " in output
