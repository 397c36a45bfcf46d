"""The budget of skipped tests: ``skips.toml`` beside this module, and the plugin that enforces it.

A run fails if a test is skipped for a reason without a row, or if more tests of a folder are
skipped than the row of their reason allows. A run of all tests also fails if a row skips none of
them any more. ``REPUT_SKIPS=write`` writes the counts of a run into the file.

``REPUT_TEST_NEEDS`` names what the machine must have, with commas: ``java,kernels``. A test that
would be skipped because that is missing fails.

With ``REPUT_SOAK``, ``REPUT_INTEROP`` and their like other tests are skipped than by default. Then
numbers are not compared, but no test may be skipped that the variable switches on.
"""

import json
import os
import re
import tomllib
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

FILE = Path(__file__).with_suffix(".toml")
NEEDS_VARIABLE = "REPUT_TEST_NEEDS"
WRITE_VARIABLE = "REPUT_SKIPS"
LONG_RUNS = ("REPUT_SOAK", "REPUT_HOSTILE_SECONDS", "REPUT_INTEROP", "REPUT_SPARK_VERSIONS")
"""Environment variables of the runs that skip other tests than the default one."""

_KEYS = ("reason", "why", "needs", "runs_with", "most")


class BadBudget(ValueError):
    """A row of the file or a variable is wrong; the text names the allowed words."""


@dataclass(frozen=True, slots=True, eq=False)
class Row:
    """A reason, and how many tests it may skip.

    Args:
        reason: Regular expression that matches the beginning of the reasons' texts.
        why: Sentence that says why these tests may be skipped.
        needs: Name of the missing tool in ``REPUT_TEST_NEEDS``; empty: none is missing.
        runs_with: Environment variable that lets the tests run; empty: there is none.
        most: Number of tests that may be skipped, for each folder such as ``tests/unit``.
    """

    reason: str
    why: str
    needs: str = ""
    runs_with: str = ""
    most: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Skip:
    """A skipped test, or a file whose tests are skipped together."""

    test: str
    reason: str

    @property
    def file(self) -> str:
        return self.test.partition("::")[0]

    @property
    def folder(self) -> str:
        return "/".join(self.file.split("/")[:2])


def parse(text: str) -> list[Row]:
    """Return the rows of a budget. Raises ``BadBudget``."""
    try:
        entries = tomllib.loads(text).get("skip", [])
    except tomllib.TOMLDecodeError as error:
        raise BadBudget(f"{FILE.name} is no TOML: {error}") from error
    rows = []
    for number, entry in enumerate(entries, start=1):
        name = f"row {number} ({entry.get('reason', 'without a reason')!r})"
        if unknown := sorted(entry.keys() - set(_KEYS)):
            raise BadBudget(f"{name} has {unknown}; allowed are {list(_KEYS)}")
        if not all(entry.get(key) for key in ("reason", "why", "most")):
            raise BadBudget(f"{name} must have a reason, a sentence why, and numbers in most")
        if any(type(count) is not int or count < 1 for count in entry["most"].values()):
            raise BadBudget(f"{name}: the numbers of most must be whole, and at least 1")
        rows.append(Row(**entry))
    return rows


def row_of(rows: Iterable[Row], reason: str) -> Row | None:
    """Return the first row whose expression matches a reason."""
    return next((row for row in rows if re.match(row.reason, reason)), None)


def needed(rows: Iterable[Row], text: str) -> frozenset[str]:
    """Return the names in ``REPUT_TEST_NEEDS``. Raises ``BadBudget`` for one without a row."""
    names = frozenset(filter(None, (name.strip() for name in text.split(","))))
    known = sorted({row.needs for row in rows} - {""})
    if unknown := sorted(names.difference(known)):
        raise BadBudget(f"{NEEDS_VARIABLE} has {unknown}; allowed are {known}")
    return names


def judge(
    rows: Sequence[Row],
    skips: Iterable[Skip],
    *,
    environment: Mapping[str, str],
    is_whole: bool = False,
) -> list[str]:
    """Return a paragraph for each disagreement of a run with its budget.

    Args:
        rows: The budget.
        skips: The skipped tests of the run.
        environment: Environment variables of the run.
        is_whole: Whether all tests ran, so that a row without skips is superfluous.
    """
    places: dict[tuple[Row, str], list[Skip]] = defaultdict(list)
    problems = []
    for skip in skips:
        row = row_of(rows, skip.reason)
        if row is None:
            problems.append(f"{skip.test} is skipped for a reason without a row: {skip.reason}")
        else:
            places[row, skip.folder].append(skip)
    is_long = any(name in environment for name in LONG_RUNS)
    for (row, folder), skipped in places.items():
        allowed = row.most.get(folder, 0)
        text = f"{folder}, {row.reason!r}: {len(skipped)} tests are skipped"
        if row.runs_with and row.runs_with in environment:
            problems.append(f"{text}, although {row.runs_with} is set\n{_files(skipped)}")
        elif len(skipped) > allowed and not is_long:
            problems.append(f"{text}, {allowed} are allowed\n{_files(skipped)}")
    if is_whole and not is_long and not any(row.needs for row, _ in places):
        problems += [
            f"{folder}, {row.reason!r}: no test is skipped, {count} are allowed: lower it"
            for row in rows
            for folder, count in row.most.items()
            if not row.needs and (row, folder) not in places
        ]
    return problems


def _files(skips: Iterable[Skip]) -> str:
    counts = Counter(skip.file for skip in skips)
    return "\n".join(f"    {count} in {file}" for file, count in counts.most_common())


def counted(
    rows: Iterable[Row], skips: Iterable[Skip], whole: Collection[str] = ()
) -> Iterator[Row]:
    """Yield the rows with the counts of a run.

    A count grows to that of the run. It falls only in a folder all of whose tests ran, and not for
    a missing tool, which another machine may lack.

    Args:
        rows: The budget.
        skips: The skipped tests of the run.
        whole: Folders all of whose tests ran.
    """
    rows = list(rows)
    counts = Counter((row_of(rows, skip.reason), skip.folder) for skip in skips)
    for row in rows:
        folders = {*row.most, *(folder for other, folder in counts if other is row)}
        most = {}
        for folder in sorted(folders):
            count = counts[row, folder]
            if folder not in whole or row.needs:
                count = max(count, row.most.get(folder, 0))
            if count:
                most[folder] = count
        if most:
            yield Row(row.reason, row.why, row.needs, row.runs_with, most)


def render(rows: Iterable[Row], heading: str = "") -> str:
    """Return the file of a budget: the heading, then the rows."""
    blocks = [heading.rstrip("\n")] if heading else []
    for row in rows:
        words = [("reason", row.reason), ("why", row.why)]
        words += [("needs", row.needs), ("runs_with", row.runs_with)]
        lines = [
            "[[skip]]",
            *(f"{key} = {json.dumps(value, ensure_ascii=False)}" for key, value in words if value),
        ]
        most = ", ".join(f'"{folder}" = {count}' for folder, count in sorted(row.most.items()))
        blocks.append("\n".join([*lines, f"most = {{ {most} }}"]))
    return "\n\n".join(blocks) + "\n"


class Budget:
    """Plugin of pytest that counts skipped tests, and fails the run if there are too many.

    Workers of pytest-xdist fail the tests that miss something needed; the process that started them
    counts.

    Args:
        config: Configuration of the run.
        file: The budget.
    """

    def __init__(self, config: pytest.Config, file: Path = FILE) -> None:
        self._config = config
        self._file = file
        self._text = file.read_text(encoding="utf-8")
        self._rows = parse(self._text)
        self._needed = needed(self._rows, os.environ.get(NEEDS_VARIABLE, ""))
        self._writes = os.environ.get(WRITE_VARIABLE) == "write"
        if os.environ.get(WRITE_VARIABLE) and not self._writes:
            raise BadBudget(f"{WRITE_VARIABLE} may be write, or not be set")
        self._skips: dict[str, Skip] = {}
        self._problems: list[str] = []
        self._note = ""

    # --- in each process that runs tests ---

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(self) -> Iterator[None]:
        report: pytest.TestReport = yield
        self._fail_if_needed(report)
        return report

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_make_collect_report(self) -> Iterator[None]:
        report: pytest.CollectReport = yield
        self._fail_if_needed(report)
        return report

    def _fail_if_needed(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        reason = _reason(report)
        row = None if reason is None else row_of(self._rows, reason)
        if row is not None and row.needs in self._needed:
            report.outcome = "failed"
            report.longrepr = f"{row.needs} is missing, and {NEEDS_VARIABLE} requires it: {reason}"

    # --- in the process that reports ---

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._count(report)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self._count(report)

    def _count(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        reason = _reason(report)
        if reason is not None:
            self._skips[report.nodeid] = Skip(report.nodeid, reason)

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if hasattr(self._config, "workerinput"):
            return
        has_ended = session.exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED)
        if self._writes:
            self._write(has_ended)
            return
        is_whole = has_ended and self._whole_folders() == {"tests"}
        self._problems = judge(
            self._rows, self._skips.values(), environment=os.environ, is_whole=is_whole
        )
        if self._problems and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def _whole_folders(self) -> set[str]:
        """Return ``tests`` or folders below it: the command line selects all of their tests."""
        option = self._config.option
        names = ("keyword", "markexpr", "deselect", "ignore", "ignore_glob", "maxfail", "lf")
        if option.collectonly or any(getattr(option, name, None) for name in names):
            return set()
        root, start = self._config.rootpath, self._config.invocation_params.dir
        paths = [Path(start, argument).resolve() for argument in self._config.args]
        names = {path.relative_to(root).as_posix() for path in paths if path.is_relative_to(root)}
        return {"tests"} if names & {"tests", "."} else names

    def _write(self, has_ended: bool) -> None:
        whole = self._whole_folders() if has_ended else set()
        if "tests" in whole:
            whole |= {folder for row in self._rows for folder in row.most}
        rows = list(counted(self._rows, self._skips.values(), whole))
        heading = self._text.partition("[[skip]]")[0]
        self._file.write_text(render(rows, heading), encoding="utf-8")
        self._note = f"{self._file.name} has the counts of this run"
        for reason in sorted({skip.reason for skip in self._skips.values()}):
            if row_of(rows, reason) is None:
                self._problems.append(f"no row, write one: {reason}")

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self._note:
            terminalreporter.write_line(self._note)
        if self._problems:
            terminalreporter.section(f"skips that {self._file.name} does not allow", red=True)
            for problem in self._problems:
                terminalreporter.write_line(problem)
            terminalreporter.write_line(
                f"Let these tests run. If they cannot, edit {self._file.name}, or write its "
                f"numbers with {WRITE_VARIABLE}=write."
            )


def _reason(report: pytest.TestReport | pytest.CollectReport) -> str | None:
    """Return why a test was skipped, or None: it was not, or it is expected to fail."""
    if not report.skipped or hasattr(report, "wasxfail"):
        return None
    text = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    return text.removeprefix("Skipped: ")
