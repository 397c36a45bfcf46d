"""Run the tests that a change affects first; ``make t``.

    python scripts/affected_tests.py [--list] [-- OPTIONS OF PYTEST]

The change is the difference of the working tree from the commit where its branch left ``main``. On
``main`` it is the difference from the last commit; if there is none, the last commit.

For each changed module of ``src`` these are, from the most special test to the most general one:
the test of its name, tests that import it, and, if there are none, tests that import its importers
(grimp knows these), up to ``DISTANCE_MAX`` steps away. For a changed module below ``tests``:
itself, or the tests that import it. For a document: the tests of ``tests/docs`` that name it.

At most ``FILES_MAX`` files run, beside changed tests, and no slow, Spark or Java tests: a few
seconds while you work. ``make check`` and ``make test`` run the others.
"""

import argparse
import ast
import functools
import subprocess
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FILES_MAX = 12
DISTANCE_MAX = 3
UNKNOWN_MAX = 8
"""Number of files without a test that are printed."""
MARKERS = "not slow and not spark and not interop and not hostile and not crash and not soak"
FOLDERS = ("unit", "scripts", "docs", "behaviour", "fuzz", "model")
"""Folders of tests that may run; the others need Java, a browser or minutes."""

Importers = Callable[[str], Collection[str]]


@dataclass(frozen=True, slots=True)
class TestFile:
    """A test file, or a module that tests import.

    Args:
        path: Path below ``tests``.
        modules: Modules of reput that it imports.
        others: Modules below ``tests`` that it imports, as paths.
    """

    __test__ = False

    path: str
    modules: frozenset[str]
    others: frozenset[str]

    @property
    def is_test(self) -> bool:
        """True for a file of tests that may run here."""
        folder, _, name = self.path.rpartition("/")
        return name.startswith("test_") and folder.split("/")[0] in FOLDERS


@dataclass(frozen=True, slots=True)
class Choice:
    """The files to run, and how many more are affected."""

    files: list[str]
    left_out: int
    unknown: list[str]
    """Changed files without a test."""


def module_of(path: str) -> str | None:
    """Return the module of a path below the project's folder, or None: it is not in ``src``."""
    if not (path.startswith("src/") and path.endswith(".py")):
        return None
    name = path.removeprefix("src/").removesuffix(".py").replace("/", ".")
    return name.removesuffix(".__init__")


def imported(source: str) -> Iterator[str]:
    """Yield the names that a source imports, modules and names in them: ``a.b``, ``a.b.c``."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def files_of(tests: Path, modules: Collection[str]) -> dict[str, TestFile]:
    """Return each Python file below a folder of tests.

    Args:
        tests: The folder.
        modules: Names of all modules of reput.
    """
    paths = {path.relative_to(tests).as_posix(): path for path in tests.rglob("*.py")}
    names = {path.removesuffix(".py").replace("/", "."): path for path in paths}
    files = {}
    for relative, path in paths.items():
        used = set(imported(path.read_text(encoding="utf-8")))
        # An import of a name imports its module: the longest name that is one.
        of_reput = {name for name in used if name in modules}
        files[relative] = TestFile(
            relative,
            frozenset(of_reput - {_parent(name) for name in of_reput if _parent(name) in used}),
            frozenset(names[name] for name in used if name in names),
        )
    return files


def _parent(name: str) -> str:
    return name.rpartition(".")[0]


def choose(
    changed: Iterable[str],
    files: Mapping[str, TestFile],
    importers: Importers,
    documents: Mapping[str, str],
    files_max: int = FILES_MAX,
) -> Choice:
    """Return the tests of a change.

    Args:
        changed: Paths below the project's folder.
        files: What ``files_of`` returns.
        importers: Function that returns the modules that import a module.
        documents: Sources of the tests of documents, by path below ``tests``.
        files_max: Number of files to run beside changed tests.
    """
    first: list[str] = []
    ranks: dict[str, tuple[object, ...]] = {}
    unknown = []
    for path in sorted(changed):
        below = path.removeprefix("tests/")
        module = module_of(path)
        if path.startswith("tests/") and below in files:
            affected = _tests_of_file(files[below], files)
            if files[below].is_test:
                first.append(below)
        elif module is not None:
            affected = _tests_of_module(module, files, importers)
        else:
            name = path.rpartition("/")[2]
            affected = {test: (0,) for test, text in documents.items() if name in text}
        if not affected:
            unknown.append(path)
        for test, rank in affected.items():
            ranks[test] = min(rank, ranks.get(test, rank))
    others = sorted(ranks.keys() - set(first), key=lambda test: (ranks[test], test))
    return Choice([*first, *others[:files_max]], len(others[files_max:]), unknown)


def _tests_of_file(file: TestFile, files: Mapping[str, TestFile]) -> dict[str, tuple[object, ...]]:
    if file.is_test:
        return {file.path: (0,)}
    return {
        other.path: (1, len(other.modules))
        for other in files.values()
        if other.is_test and file.path in other.others
    }


def _tests_of_module(
    module: str, files: Mapping[str, TestFile], importers: Importers
) -> dict[str, tuple[object, ...]]:
    """Return the tests of a module, each with its rank: the lower, the more special."""
    parts = module.split(".")[1:]
    home = "/".join(["unit", *parts[:-1]])
    known, step = {module}, {module}
    for distance in range(DISTANCE_MAX + 1):
        tests = {}
        for file in files.values():
            if not file.is_test:
                continue
            is_named = bool(parts) and file.path.endswith(f"/test_{parts[-1].lstrip('_')}.py")
            is_near = file.path.rpartition("/")[0] == home
            if file.modules & step or (not distance and is_named and is_near):
                rank = (distance, not (is_named and is_near), not is_near, len(file.modules))
                tests[file.path] = rank
        if tests:
            return tests
        step = {name for each in step for name in importers(each)} - known
        known |= step
    return {}


def changed_paths(root: Path) -> tuple[str, list[str]]:
    """Return what the change is compared with, and the paths of changed and new files."""

    def git(*words: str) -> str:
        done = subprocess.run(
            ["git", *words], cwd=root, capture_output=True, text=True, check=False
        )
        return done.stdout.strip()

    head = git("rev-parse", "HEAD")
    fork = git("merge-base", "HEAD", "main") or git("merge-base", "HEAD", "origin/main") or head
    new = git("ls-files", "--others", "--exclude-standard").splitlines()
    paths = git("diff", "--name-only", fork).splitlines() + new
    if fork == head and not paths:
        return "the commit before the last", git("diff", "--name-only", "HEAD~1").splitlines()
    return "the last commit" if fork == head else f"main ({fork[:8]})", paths


def main(words: list[str]) -> int:
    """Choose tests, print them, and run them; return the exit code of pytest."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--list", action="store_true", help="print the files, run nothing")
    parser.add_argument("options", nargs="*", help="options of pytest, after --")
    arguments = parser.parse_args(words)
    import grimp

    base, changed = changed_paths(ROOT)
    graph = grimp.build_graph("reput", cache_dir=str(ROOT / ".import_linter_cache"))
    files = files_of(ROOT / "tests", graph.modules)
    choice = choose(changed, files, importers_in(graph), _documents(ROOT / "tests/docs"))
    print(f"{len(changed)} files differ from {base}")
    for path in choice.unknown[:UNKNOWN_MAX]:
        print(f"  no test here: {path}")
    if len(choice.unknown) > UNKNOWN_MAX:
        print(f"  no test here: {len(choice.unknown) - UNKNOWN_MAX} more")
    for test in choice.files:
        print(f"  tests/{test}")
    if choice.left_out:
        print(f"  and {choice.left_out} more, which make check or make test runs")
    sys.stdout.flush()
    existing = [f"tests/{test}" for test in choice.files if (ROOT / "tests" / test).is_file()]
    if arguments.list or not existing:
        return 0
    command = [sys.executable, "-m", "pytest", "-q", "-n", "2", "-m", MARKERS]
    done = subprocess.run([*command, *arguments.options, *existing], cwd=ROOT, check=False)
    return 0 if done.returncode == 5 else done.returncode  # 5: all tests of the files are slow


def importers_in(graph: object) -> Importers:
    """Return the function that returns the importers of a module, from grimp's graph."""

    @functools.cache
    def importers(module: str) -> Collection[str]:
        if module not in graph.modules:  # type: ignore[attr-defined]
            return frozenset()
        return graph.find_modules_that_directly_import(module)  # type: ignore[attr-defined,no-any-return]

    return importers


def _documents(folder: Path) -> dict[str, str]:
    return {
        f"docs/{path.name}": path.read_text(encoding="utf-8") for path in folder.glob("test_*.py")
    }


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
