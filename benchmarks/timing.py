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


def cpu_of_tree() -> float:
    """Return the CPU seconds of this process and of all processes that it started."""
    fields = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            name, _, rest = path.read_text().rpartition(")")
            fields[int(name.split()[0])] = rest.split()
    members, total = {os.getpid()}, 0
    for process, values in sorted(fields.items(), key=lambda item: int(item[1][19])):  # by start
        if process in members or int(values[1]) in members:
            members.add(process)
            total += sum(map(int, values[11:15]))  # user and system, own and of reaped children
    return total / _TICKS


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
