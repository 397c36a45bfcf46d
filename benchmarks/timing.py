"""Clocks of the benchmarks."""

import contextlib
import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")


def seconds(work: Callable[[], object], repeats: int = 5) -> float:
    """Return the median wall time of a function."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def cpu_of(*names: str) -> float:
    """Return the CPU seconds of all processes whose command line contains one of these texts."""
    return sum(_cpu_in(state) for state, _ in _processes(names))


def cpu_of_process(pid: int) -> float:
    """Return the CPU seconds of a process, which others with its command line do not change."""
    return _cpu_in(Path(f"/proc/{pid}/stat").read_text())


def _cpu_in(state: str) -> float:
    fields = state.rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / _TICKS  # user and system, own and of reaped children


def cpu_of_tree(root: int | None = None) -> float:
    """Return the CPU seconds of a process, by default this one, and of all that it started."""
    states = _tree(root or os.getpid()).values()
    # User and system, own and of reaped children.
    return sum(int(value) for fields in states for value in fields[11:15]) / _TICKS


def descendants(root: int) -> list[int]:
    """Return the processes that a process started, and theirs."""
    return [process for process in _tree(root) if process != root]


def _tree(root: int) -> dict[int, list[str]]:
    """Return the fields of ``stat`` after the name, of a process and its descendants."""
    fields = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            name, _, rest = path.read_text().rpartition(")")
            fields[int(name.split()[0])] = rest.split()
    members: dict[int, list[str]] = {}
    for process, values in sorted(fields.items(), key=lambda item: int(item[1][19])):  # by start
        if process == root or int(values[1]) in members:
            members[process] = values
    return members


def peak_mb_of(name: str) -> float:
    """Return the largest peak memory of a process with this text in its command line, in MB."""
    peaks = [0]
    for _, status in _processes((name,)):
        lines = status.splitlines()
        peaks += [int(line.split()[1]) for line in lines if line.startswith("VmHWM")]
    return max(peaks) / 1024


def _processes(names: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield ``stat`` and ``status`` of processes whose command line contains one of these texts."""
    for process in Path("/proc").glob("[0-9]*"):
        try:
            command = (process / "cmdline").read_bytes().decode(errors="replace")
            texts = (process / "stat").read_text(), (process / "status").read_text()
        except OSError:
            continue
        if any(name in command for name in names):
            yield texts
