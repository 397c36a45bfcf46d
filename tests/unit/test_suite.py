"""The suite itself: the places of unit tests, and the signals of the processes that tests start."""

import signal
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path, PurePath

import pytest

from conftest import STOP_SIGNALS

ROOT = Path(__file__).parents[2]
UNIT, PACKAGE = ROOT / "tests/unit", ROOT / "src/reput"

IN_BACKGROUND = "trap '' INT QUIT HUP TERM; exec \"$@\""
"""What a shell, ``nohup`` or a scheduler does to a job in the background."""


def test_children_have_the_default_signals() -> None:
    numbers = [int(number) for number in STOP_SIGNALS]
    code = f"import signal\nprint(*(n for n in {numbers} if signal.getsignal(n) is signal.SIG_IGN))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "\n"


def test_children_have_them_in_the_background_too() -> None:
    name = f"{__file__}::{test_children_have_the_default_signals.__name__}"
    pytest = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", name]
    done = subprocess.run(
        ["sh", "-c", IN_BACKGROUND, "sh", *pytest], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert signal.getsignal(signal.SIGINT) is not signal.SIG_IGN


# --- tests/unit mirrors src/reput -----------------------------------------------


def python_files(root: Path, pattern: str) -> list[PurePath]:
    return sorted(path.relative_to(root) for path in root.rglob(pattern))


def packages_by_name(modules: Iterable[PurePath]) -> dict[str, set[PurePath]]:
    """Return the packages that have a module of each name; a package has its own name, too."""
    packages = defaultdict(set)
    for path in modules:
        name = path.parent.name if path.stem == "__init__" else path.stem
        packages[name].add(path.parent)
    return packages


def misplaced(tests: Iterable[PurePath], modules: Iterable[PurePath]) -> dict[str, list[str]]:
    """Return the tests whose name is that of modules elsewhere, with the folders of these modules.

    ``spark/test_live_plan.py`` is misplaced if ``spark/live`` has a module ``plan``.
    """
    packages = packages_by_name(modules)
    places = {}
    for path in tests:
        name = path.stem.removeprefix("test_")
        homes = packages.get(name)
        if homes is None:
            homes = {path.parent}
            words = name.split("_")
            for count in range(1, len(words)):
                below = path.parent / "_".join(words[:count])
                if below in packages.get("_".join(words[count:]), ()):
                    homes = {below}
        if path.parent not in homes:
            places[str(path)] = sorted(map(str, homes))
    return places


def test_each_folder_of_unit_tests_is_a_package() -> None:
    folders = {path.parent for path in python_files(UNIT, "*.py")}
    packages = {path.parent for path in python_files(PACKAGE, "*.py")}
    assert len(folders) > 30
    assert sorted(map(str, folders - packages)) == []


def test_tests_are_in_the_folders_of_their_modules() -> None:
    tests = python_files(UNIT, "test_*.py")
    modules = python_files(PACKAGE, "*.py")
    names = packages_by_name(modules)
    assert len([path for path in tests if path.stem.removeprefix("test_") in names]) > 200
    assert misplaced(tests, modules) == {}


@pytest.mark.parametrize(
    ("test", "homes"),
    [
        ("a/test_plan.py", None),  # one of several modules of this name
        ("a/b/test_plan.py", None),
        ("test_plan.py", ["a", "a/b"]),
        ("a/test_rows.py", ["a/b"]),
        ("a/b/test_b.py", None),  # several modules of the package
        ("a/test_b.py", ["a/b"]),
        ("a/test_b_rows.py", ["a/b"]),
        ("test_b_rows.py", None),
        ("a/test_hostile_rows.py", None),
    ],
)
def test_a_misplaced_test_is_found(test: str, homes: list[str] | None) -> None:
    paths = ("__init__.py", "a/__init__.py", "a/plan.py", "a/b/__init__.py", "a/b/plan.py",
             "a/b/rows.py")  # fmt: skip
    expected = {} if homes is None else {test: homes}
    assert misplaced([PurePath(test)], [PurePath(path) for path in paths]) == expected
