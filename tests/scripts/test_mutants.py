"""``make mutants``: changes of the source, the tests that run with each, and the document."""

import ast
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import seeds

ROOT = Path(__file__).parents[2]
LOST_MAX = 30
"""Number of mutants whose lines may be gone; draw again if there are more."""


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


affected_tests = load("affected_tests")
places = load("mutation_places")
report = load("protection_report")
mutants = load("mutants")

LISTED = places.read(places.LIST)
SOURCE = """\
def first(number: int = 1) -> bool:
    if number < 2:
        return True
    return False


def second(number: int) -> bool:
    if number < 3:
        return True
    return False
"""


def mutant(name: str = "queues-01", **fields: str) -> Any:
    row = {
        "area": "queues",
        "operator": "comparison",
        "file": "src/reput/store/queues/known_queues.py",
        "before": "    if number < 3:",
        "after": "    if number <= 3:",
    }
    return places.Mutant(name, **{**row, **fields})


# --- places -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("x = a < b", {"x = a <= b", "x = a > b"}),
        ("x = a == b", {"x = a != b"}),
        ("x = a is not b", {"x = a is b"}),
        ("x = a not in b", {"x = a in b"}),
        ("x = a and b and c", {"x = a or b and c", "x = a and b or c"}),
        ("x = a + b", {"x = a - b"}),
        ("x -= a", {"x += a"}),
        ("x = 7", {"x = 8"}),
        ("x = True", set()),
        ("x = min(a, b)", {"x = max(a, b)"}),
        ("x = not a", {"x = a"}),
        ("x = a if b else c", {"x = a if not (b) else c"}),
        ("x = a if not b else c", {"x = a if b else c"}),
        ("a(b)", {"pass"}),
        ("_log.info(7)", set()),
        ("assert a < 7", set()),
        ("x: a[7] = b", set()),
        ("raise a(7)", set()),
        ('x = "ü" + a', {'x = "ü" - a'}),
    ],
)
def test_a_line_is_changed_where_behaviour_follows_from_it(line: str, expected: set[str]) -> None:
    source = line + "\n"
    changed = {places.anchored(source, each)[1] for each in places.changes(source)}
    assert changed == expected


def test_what_functions_return_and_await_is_changed() -> None:
    source = "async def f():\n    await a\n    return b\n"
    pairs = [places.anchored(source, each) for each in places.changes(source)]
    assert pairs == [("    await a", "    pass"), ("    return b", "    return None")]
    kernel = "def f():\n    return b\n\ndef g():\n    return False\n"
    pairs = [places.anchored(kernel, each) for each in places.changes(kernel, is_kernel=True)]
    assert pairs == [("    return b", "    return 0"), ("    return False", "    return True")]


def test_a_line_that_is_there_twice_is_found_by_the_lines_above_it() -> None:
    change = next(each for each in places.changes(SOURCE) if each[0] == "return")
    before, after = places.anchored(SOURCE, change)
    assert before == "    if number < 2:\n        return True"
    applied = mutant(before=before, after=after).applied_to(SOURCE)
    assert applied == SOURCE.replace("True", "False", 1)


# --- mutants ----------------------------------------------------------------------


def test_a_mutant_changes_its_place_alone() -> None:
    applied = mutant().applied_to(SOURCE)
    assert applied == SOURCE.replace("number < 3", "number <= 3")
    assert mutant().line_in(SOURCE) == 8


@pytest.mark.parametrize(
    ("before", "count"), [("    if number < 4:", 0), ("        return True", 2), ("if number", 0)]
)
def test_lines_that_are_not_there_or_there_twice_are_refused(before: str, count: int) -> None:
    with pytest.raises(places.BadAnchor, match=f"these lines {count} times, not once"):
        mutant(before=before).applied_to(SOURCE)
    assert not mutant(before=before).is_in(SOURCE)


@pytest.mark.parametrize(
    ("file", "before", "expected"),
    [
        ("src/reput/store/kernels/append.py", "    x = 1", True),
        ("src/reput/format/java.py", "WORD = 4", True),  # a constant that kernels contain
        ("src/reput/format/java.py", "    x = 4", False),
        ("src/reput/store/config.py", "WORD = 4", False),
    ],
)
def test_a_mutant_of_a_kernel_is_compiled(file: str, before: str, expected: bool) -> None:
    assert mutant(file=file, before=before).is_compiled is expected


def test_a_second_draw_keeps_what_is_there_and_its_reasons() -> None:
    texts = {"src/reput/store/queues/a.py": SOURCE}
    drawn = places.draw(texts, 7)
    assert len(drawn) == 13
    assert places.draw(texts, 7) == drawn
    chosen = next(each for each in drawn if each.before == "    if number < 3:")
    reasons = [places.dataclasses.replace(chosen, equivalent="because")]
    changed = SOURCE.replace("number < 2", "number < 22")
    again = places.draw({"src/reput/store/queues/a.py": changed}, 7, reasons)
    kept = {each.after for each in drawn if each.is_in(changed)}
    assert kept <= {each.after for each in again}
    assert [each.after for each in again if each.equivalent == "because"] == [chosen.after]


def test_the_list_is_read_as_it_was_written(tmp_path: Path) -> None:
    rows = [
        mutant(),
        mutant("queues-02", before="    x = 'a'", after="    x = '''b'''", equivalent="it's so"),
        mutant("queues-03", before='    if x:\n        y = "\\n"', after="    if x:\n        pass"),
    ]
    places.write(tmp_path / "list.toml", rows, 7)
    assert places.read(tmp_path / "list.toml") == rows


def test_the_list_has_300_mutants_that_are_there() -> None:
    assert len(LISTED) == 300
    assert len({(each.file, each.before, each.after) for each in LISTED}) == 300
    assert {each.area for each in LISTED} == set(places.AREAS)
    assert sum(1 for each in LISTED if "/kernels/" in each.file) == 60
    sources = places.sources(ROOT)
    lost = [each.id for each in LISTED if not each.is_in(sources.get(each.file, ""))]
    assert len(lost) <= LOST_MAX, f"{lost}: scripts/mutants.py draw replaces them"
    # Whole files are parsed: a fifth of them each day.
    for each in LISTED[seeds.today() % 5 :: 5]:
        if each.id not in lost:
            ast.parse(each.applied_to(sources[each.file]))


# --- runs -------------------------------------------------------------------------


class Tree:
    """A worktree whose tests end as a list says."""

    commit = "0123abcd"

    def __init__(self, *runs: tuple[int | None, str]) -> None:
        self.runs = list(runs)
        self.sound: set[str] = set()
        self.words: list[list[str]] = []

    def applied(self, mutant: Any) -> Any:
        return mutants.contextlib.nullcontext(True)

    def pytest(self, words: list[str], limit_s: float) -> tuple[int | None, str]:
        self.words.append(words)
        return self.runs.pop(0)


PASSED = (0, "1 passed")
FAILED = (1, "FAILED tests/unit/store/test_a.py::test_a[b - c] - AssertionError: x\n")
TEST = "tests/unit/store/test_a.py::test_a[b - c]"
STAGES = {"module": ["tests/a.py"], "package": ["tests/b", "tests/c"], "simulation": []}


def played(tree: Tree, **result: Any) -> dict[str, Any]:
    return dict(mutants.play(tree, mutant(), STAGES, result))


def test_the_first_stage_with_a_failure_kills() -> None:
    tree = Tree(PASSED, FAILED, PASSED)
    result = played(tree)
    assert result["killer"] == TEST
    assert list(result["stages"]) == ["module", "package"]
    assert tree.words == [["tests/a.py"], ["tests/b", "tests/c"], [TEST]]


def test_a_test_that_fails_without_the_mutant_does_not_kill() -> None:
    tree = Tree(PASSED, FAILED, FAILED, PASSED)
    result = played(tree)
    assert (result["killer"], result["unsound"]) == (None, [TEST])
    assert tree.words[-1] == ["tests/b", "tests/c", f"--deselect={TEST}"]


def test_in_late_stages_a_test_must_fail_twice() -> None:
    stages = {"faults": ["tests/crash"]}
    result = mutants.play(Tree(FAILED, PASSED, PASSED), mutant(), stages, {})
    assert (result["killer"], result["unsound"]) == (None, [TEST])
    result = mutants.play(Tree(FAILED, FAILED, PASSED), mutant(), stages, {})
    assert result["killer"] == TEST


def test_a_stage_without_a_failure_in_its_time_is_cut() -> None:
    result = played(Tree((None, "tests/a.py::test_b PASSED"), PASSED))
    assert result["killer"] is None
    assert result["stages"]["module"]["cut"]


def test_an_interrupted_run_continues_with_the_stages_that_are_missing() -> None:
    first = played(Tree(PASSED, PASSED))
    assert list(first["stages"]) == ["module", "package", "simulation"]
    tree = Tree(FAILED, FAILED, PASSED)
    stages = {**STAGES, "faults": ["tests/crash"]}
    result = mutants.play(tree, mutant(), stages, first)
    assert result["killer"] == TEST
    assert tree.words == [["tests/crash"], [TEST], [TEST]]


def test_killed_equivalent_lost_and_played_mutants_are_not_played_again() -> None:
    rows = [
        mutant("new"),
        mutant("killed"),
        mutant("survived"),
        mutant("half"),
        mutant("equivalent", equivalent="because"),
        mutant("lost", before="gone"),
    ]
    done: dict[str, Any] = {"module": {}, "package": {}}
    results = {
        "killed": {"killer": TEST, "stages": {"module": {}}},
        "survived": {"killer": None, "stages": done},
        "half": {"killer": None, "stages": {"module": {}}},
    }
    chosen = mutants.to_play(rows, results, list(done), {mutant().file: SOURCE})
    assert [each.id for each in chosen] == ["new", "half"]


def test_a_mutant_that_later_stages_killed_may_survive_the_first_ones() -> None:
    result = {"killer": TEST, "stages": {"module": {}, "package": {}}}
    assert mutants.was_killed(result, ["module", "package"])
    assert not mutants.was_killed(result, ["module"])
    assert not mutants.was_killed({**result, "killer": None}, ["module", "package"])
    assert not mutants.was_killed({}, ["module", "package"])


def test_each_part_of_the_order_has_mutants_of_all_areas() -> None:
    order = mutants.in_turn(LISTED)
    assert sorted(each.id for each in order) == sorted(each.id for each in LISTED)
    for day in range(7):
        areas = {each.area for each in order[day::7]}
        assert len(areas) >= 15
    assert len({each.area for each in order[:60]}) >= 20


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        ("FAILED tests/a.py::test_b - AssertionError\n", "tests/a.py::test_b"),
        ("ERROR tests/a.py\n", "tests/a.py"),
        ("ERROR tests/a.py::test_b[x - y] - OSError: z - w\n", "tests/a.py::test_b[x - y]"),
        ("tests/a.py::b PASSED\ntests/a.py::c \nTimeout (0:04:00)!\n", "tests/a.py::c"),
        ("3 passed\n", None),
    ],
)
def test_the_failed_test_is_found_in_the_output(output: str, expected: str | None) -> None:
    assert mutants.failed_test(output) == expected


def test_stages_of_a_module_are_its_tests_then_those_of_its_package() -> None:
    near, far = "unit/store/queues/test_batch_queue.py", "unit/store/test_reader.py"
    stages = mutants.tests_of(mutant(), ROOT / "tests", [far, near])
    assert (stages["module"], stages["importers"]) == ([f"tests/{near}"], [f"tests/{far}"])
    assert stages["package"][:2] == ["tests/unit/store/queues", "tests/unit/store"]
    assert stages["simulation"] == ["tests/sim"]
    assert "tests/crash" in stages["faults"]
    assert stages["others"] == ["tests/interop"]
    stages = mutants.tests_of(mutant(), ROOT / "tests", [far])
    assert stages["module"] == ["tests/unit/store/queues"]
    assert stages["importers"] == [f"tests/{far}"]


def test_processes_that_a_run_leaves_are_killed() -> None:
    environment = {**mutants.os.environ, "REPUT_MUTANT": "a-mark-of-this-test"}
    command = [sys.executable, "-c", "import time; print(flush=True); time.sleep(600)"]
    with mutants.subprocess.Popen(
        command, env=environment, stdout=mutants.subprocess.PIPE
    ) as process:
        assert process.stdout.readline() == b"\n"
        mutants._end("another-mark")
        assert process.poll() is None
        mutants._end("a-mark-of-this-test")
        assert process.wait() == -mutants.signal.SIGKILL


# --- document ---------------------------------------------------------------------


def test_the_document_counts_each_mutant_once() -> None:
    rows = [
        mutant("queues-01"),
        mutant("queues-02"),
        mutant("queues-03", equivalent="no caller passes 3"),
        mutant("queues-04", before="gone"),
        mutant("queues-05"),
    ]
    stages = {"module": {"s": 1.0, "cpu_s": 1.0}, "simulation": {}}
    results = {
        "mutants": {
            "queues-01": {"killer": TEST, "stages": stages, "commit": "0123abcd"},
            "queues-02": {"killer": None, "stages": stages, "commit": "0123abcd"},
            "queues-05": {"killer": None, "stages": {"simulation": {}}, "commit": "0123abcd"},
        },
        "suites": {"unit/store": 12.3},
        "coverage": {"store/a.py": [1, 4], "store/b.py": [4, 4]},
    }
    text = report.document(rows, results, {mutant().file: SOURCE}, ROOT / "tests", 7)
    lines = text.splitlines()
    # mutants, killed, survived, equivalent, lost, not played
    assert "| queues | 5 | 1 | 1 | 1 | 1 | 1 |" in lines
    (row,) = (line for line in lines if line.startswith("| unit/store |"))
    assert row.endswith("| 12 | 1 |")
    place = "store/queues/known_queues.py:8 | `if number < 3:` → `if number <= 3:`"
    assert f"| queues-02 | {place} | module |" in lines
    assert f"| queues-03 | {place} | no caller passes 3 |" in lines
    assert "Unit tests reach 62 % of 8 lines. The lowest modules:" in lines
    assert "| store/a.py | 4 | 25 |" in lines
