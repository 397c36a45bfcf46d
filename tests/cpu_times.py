"""CPU and wall time of each test, with the processes it started, in a file: ``REPUT_CPU=FILE``.

    REPUT_CPU=/tmp/times .venv/bin/python -m pytest tests/interop/test_pop.py
    .venv/bin/python tests/cpu_times.py /tmp/times      # sums by file, and by test

Linux only. A shared fixture belongs to the first test that needs it, as does the compilation of
Java's programs.
"""

import json
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

VARIABLE = "REPUT_CPU"
TICKS_S = os.sysconf("SC_CLK_TCK")


def tree_cpu_s() -> float:
    """Return the CPU time of this process and of all below it, also ended ones, in s."""
    parents, ticks = {}, {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            words = stat.read_bytes().rpartition(b")")[2].split()
        except OSError:
            continue  # it has ended
        process = int(stat.parent.name)
        parents[process] = int(words[1])
        ticks[process] = sum(map(int, words[11:15]))
    below = {os.getpid()}
    while more := {child for child, parent in parents.items() if parent in below} - below:
        below |= more
    return sum(ticks.get(process, 0) for process in below) / TICKS_S


class Plugin:
    """Plugin of pytest that writes a line for each test.

    Args:
        path: File that it appends to.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        cpu_s, wall_s = tree_cpu_s(), time.monotonic()
        yield
        row = [item.nodeid.partition("@")[0]]
        row += [round(tree_cpu_s() - cpu_s, 2), round(time.monotonic() - wall_s, 2)]
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")


def main(path: Path) -> None:
    """Print sums by file, then by test, in s."""
    cpu_s: Counter[str] = Counter()
    wall_s: Counter[str] = Counter()
    for line in path.read_text(encoding="utf-8").splitlines():
        test, cpu, wall = json.loads(line)
        for name in (test.partition("::")[0], test.partition("[")[0], "all"):
            cpu_s[name] += cpu
            wall_s[name] += wall
    for name, seconds in sorted(cpu_s.items(), key=lambda row: ("::" in row[0], -row[1])):
        sys.stdout.write(f"{seconds:8.1f} {wall_s[name]:8.1f}  {name}\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
