"""The tests that ``make t`` chooses for a change."""

import importlib.util
import subprocess
import sys
from collections.abc import Collection, Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "scripts" / "affected_tests.py"
_spec = importlib.util.spec_from_file_location("affected_tests", SCRIPT)
assert _spec is not None
assert _spec.loader is not None
affected_tests = importlib.util.module_from_spec(_spec)
sys.modules[_spec.name] = affected_tests  # for its data classes
_spec.loader.exec_module(affected_tests)

MODULES = {"reput", "reput.store", "reput.store.index", "reput.store.index.view", "reput.format"}
SOURCES = {
    "store_builder.py": "from reput.store import index\n",
    "unit/store/index/test_view.py": "from reput.store.index.view import View\n",
    "unit/store/test_reader.py": "import reput.format\nfrom reput.store.index import view\n",
    "unit/format/test_record.py": "from reput.format import Record\nimport store_builder\n",
    "interop/test_java.py": "from reput.store.index import view\n",
    "docs/test_pages.py": "PAGE = 'install.md'\n",
}


@pytest.fixture
def files(tmp_path: Path) -> Mapping[str, object]:
    for name, source in SOURCES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source)
    return affected_tests.files_of(tmp_path, MODULES)  # type: ignore[no-any-return]


def no_importers(module: str) -> Collection[str]:
    return ()


def chosen(files: Mapping[str, object], *changed: str, **more: object) -> list[str]:
    documents = {"docs/test_pages.py": SOURCES["docs/test_pages.py"]}
    names: list[str] = affected_tests.choose(
        changed, files, more.pop("importers", no_importers), documents, **more
    ).files
    return names


def test_imports_are_modules(files: Mapping[str, object]) -> None:
    view = affected_tests.TestFile(
        "unit/store/index/test_view.py", frozenset({"reput.store.index.view"}), frozenset()
    )
    assert files["unit/store/index/test_view.py"] == view
    assert files["unit/format/test_record.py"].others == {"store_builder.py"}  # type: ignore[attr-defined]
    assert files["store_builder.py"].modules == {"reput.store.index"}  # type: ignore[attr-defined]


def test_the_test_of_a_modules_name_is_first(files: Mapping[str, object]) -> None:
    """Tests with Java do not run."""
    assert chosen(files, "src/reput/store/index/view.py") == [
        "unit/store/index/test_view.py",
        "unit/store/test_reader.py",
    ]


def test_without_a_test_those_of_importers_are_chosen(files: Mapping[str, object]) -> None:
    importers = {"reput.store.hidden": {"reput.middle"}, "reput.middle": {"reput.format"}}
    assert chosen(
        files, "src/reput/store/hidden.py", importers=lambda name: importers.get(name, ())
    ) == ["unit/store/test_reader.py", "unit/format/test_record.py"]


def test_importers_are_followed_for_some_steps_only(files: Mapping[str, object]) -> None:
    importers = {f"reput.a{number}": {f"reput.a{number + 1}"} for number in range(9)}
    importers["reput.a9"] = {"reput.format"}
    choice = affected_tests.choose(
        ["src/reput/a0.py"], files, lambda name: importers.get(name, ()), {}
    )
    assert (choice.files, choice.unknown) == ([], ["src/reput/a0.py"])


def test_a_changed_test_runs_and_is_first(files: Mapping[str, object]) -> None:
    changed = ("src/reput/store/index/view.py", "tests/unit/store/test_reader.py")
    assert chosen(files, *changed)[0] == "unit/store/test_reader.py"


def test_tests_of_a_changed_module_of_tests(files: Mapping[str, object]) -> None:
    assert chosen(files, "tests/store_builder.py") == ["unit/format/test_record.py"]


def test_tests_that_name_a_changed_document(files: Mapping[str, object]) -> None:
    assert chosen(files, "docs/install.md") == ["docs/test_pages.py"]
    assert chosen(files, "docs/other.md") == []


def test_the_number_of_files_is_limited_but_not_that_of_changed_tests(
    files: Mapping[str, object],
) -> None:
    changed = ("src/reput/store/index/view.py", "tests/unit/format/test_record.py")
    assert chosen(files, *changed, files_max=1) == [
        "unit/format/test_record.py",
        "unit/store/index/test_view.py",
    ]


def git(folder: Path, *words: str) -> None:
    identity = ("-c", "user.name=a", "-c", "user.email=a@b")
    subprocess.run(["git", *identity, *words], cwd=folder, check=True, capture_output=True)


def test_what_a_change_is(tmp_path: Path) -> None:
    git(tmp_path, "init", "-b", "main")
    for number in range(2):
        (tmp_path / f"old{number}.py").write_text("")
        git(tmp_path, "add", "-A")
        git(tmp_path, "commit", "-m", "old")
    assert affected_tests.changed_paths(tmp_path) == ("the commit before the last", ["old1.py"])
    (tmp_path / "old0.py").write_text("changed")
    assert affected_tests.changed_paths(tmp_path) == ("the last commit", ["old0.py"])
    git(tmp_path, "checkout", "-b", "work")
    git(tmp_path, "commit", "-am", "new")
    (tmp_path / "new.py").write_text("")
    base, paths = affected_tests.changed_paths(tmp_path)
    assert base.startswith("main (")
    assert paths == ["old0.py", "new.py"]
