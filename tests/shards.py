"""Test files dealt to the workers of pytest-xdist by measured time: ``pytest -n 4 --dist each``.

A worker collects its own files only: to collect all of them takes 25 s, in each worker. All tests
of a file run in one worker. Write the times of a run with ``REPUT_CPU=FILE`` to ``shards.toml``:

    .venv/bin/python tests/shards.py FILE
"""

import json
import sys
import tomllib
from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import EachScheduling  # type: ignore[import-untyped]

import seeds
import turns

FILE = Path(__file__).with_suffix(".toml")
KEY = "shard"
"""Name of what a worker gets: its number from 0, and the number of workers."""

DEFAULT_S = 0.5
"""Time of a file without a row, in s."""

TESTS = Path(__file__).parent


@dataclass(frozen=True)
class Shards:
    """Which worker runs which files.

    Args:
        seconds: Duration of a file's tests, in s; rotating tests are left out.
        together: Groups of files and folders, each for one worker.
    """

    seconds: Mapping[str, float]
    together: Sequence[Sequence[str]] = field(default=())

    def unit_of(self, file: str) -> str:
        """Return the first name of the file's group, or the file."""
        folders = [file, *(str(folder) for folder in Path(file).parents)]
        groups = (group for group in self.together if not set(group).isdisjoint(folders))
        return next((group[0] for group in groups), file)

    def deal(self, files: Mapping[str, float], count: int) -> dict[str, int]:
        """Return the worker of each unit: the longest first, each to the worker that has least.

        Args:
            files: Files of the run, with the duration of the day's rotating tests, in s.
            count: Number of workers.
        """
        units: dict[str, float] = defaultdict(float)
        for file, rotating_s in files.items():
            units[self.unit_of(file)] += self.seconds.get(file, DEFAULT_S) + rotating_s
        totals = [0.0] * count
        dealt = {}
        for unit in sorted(units, key=lambda name: (-units[name], name)):
            worker = totals.index(min(totals))
            totals[worker] += units[unit]
            dealt[unit] = worker
        return dealt


def load() -> Shards:
    """Return the shards of the project."""
    return Shards(**tomllib.loads(FILE.read_text(encoding="utf-8")))


def files_of_today() -> dict[str, float]:
    """Return all files of tests, with the CPU time of the day's rotating tests, in s."""
    root = TESTS.parent
    files = {path.relative_to(root).as_posix(): 0.0 for path in TESTS.rglob("test_*.py")}
    rotating, seed = turns.load(), seeds.today()
    for row, cpu_s in rotating.cpu_s.items():
        if rotating.runs(row, seed):
            name = row.partition("::")[0]
            matching = [file for file in files if file == name or file.startswith(f"{name}/")]
            for file in matching:
                files[file] += cpu_s / len(matching)
    return files


class _Scheduling(EachScheduling):  # type: ignore[misc]
    """Lets each worker run what it has collected; the progress is that of all together."""

    def __init__(self, config: pytest.Config, log: Any, session: pytest.Session) -> None:
        super().__init__(config, log)
        self._session = session

    def add_node_collection(self, node: Any, collection: Sequence[str]) -> None:
        super().add_node_collection(node, collection)
        self._session.testscollected = sum(map(len, self.node2collection.values()))


class Dealer:
    """Plugin of pytest that gives each worker its number, and a replacement that of a lost one."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._free = deque(range(count))
        self._numbers: dict[str, int] = {}

    def pytest_sessionstart(self, session: pytest.Session) -> None:
        self._session = session

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_make_scheduler(self, config: pytest.Config, log: Any) -> EachScheduling:
        return _Scheduling(config, log, self._session)

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        number = self._numbers[node.gateway.id] = self._free.popleft()
        node.workerinput[KEY] = (number, self._count)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        self._free.append(self._numbers[node.gateway.id])


class Shard:
    """Plugin of pytest that leaves out the files of other workers.

    Args:
        number: Number of this worker, from 0.
        count: Number of workers.
    """

    def __init__(self, number: int, count: int) -> None:
        self._number = number
        self._shards = load()
        self._dealt = self._shards.deal(files_of_today(), count)

    def pytest_ignore_collect(self, collection_path: Path) -> bool | None:
        if not collection_path.name.startswith("test_") or collection_path.suffix != ".py":
            return None
        file = collection_path.relative_to(TESTS.parent).as_posix()
        return self._dealt[self._shards.unit_of(file)] != self._number or None


def configure(config: pytest.Config) -> None:
    """Register the plugin of this process, if the workers shall have shards.

    Raises:
        pytest.UsageError: The command line names files, which pytest would give to each worker.
    """
    worker = getattr(config, "workerinput", None)
    if worker is None and config.getoption("dist", "no") == "each":
        if named := [name for name in config.args if ".py" in name]:
            raise pytest.UsageError(
                f"--dist each deals the files of folders, it cannot deal {named}"
            )
        config.pluginmanager.register(Dealer(config.option.numprocesses), "shards")
    elif worker is not None and KEY in worker:
        config.pluginmanager.register(Shard(*worker[KEY]), "shards")


def main(measured: Path) -> None:
    """Write the seconds of a run to the table; files below ``DEFAULT_S`` have no row."""
    table = load()
    wall_s: dict[str, float] = defaultdict(float)
    rotating = turns.load()
    for line in measured.read_text(encoding="utf-8").splitlines():
        test, _, wall = json.loads(line)
        if rotating.find_row(test) is None:
            wall_s[test.partition("::")[0]] += wall
    text = FILE.read_text(encoding="utf-8").partition("[seconds]")[0] + "[seconds]\n"
    for file in sorted(wall_s):
        if wall_s[file] >= 2 * DEFAULT_S:
            text += f'"{file}" = {wall_s[file]:.0f}\n'
    assert table.together == Shards(**tomllib.loads(text)).together
    FILE.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
