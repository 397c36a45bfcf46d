"""CPU time and memory of processes, from ``/proc``."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Self

_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Usage:
    """CPU time of all threads so far, and present memory. Only RSS includes mapped files."""

    cpu_s: float
    rss_bytes: int
    anonymous_bytes: int

    @classmethod
    def of(cls, pid: int) -> Self:
        """Return the usage of a process; zeros for pid 0."""
        if not pid:
            return cls(0.0, 0, 0)
        status = {}
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            name, _, value = line.partition(":")
            status[name] = value
        kilobytes = {name: int(status[name].split()[0]) for name in ("VmRSS", "RssAnon")}
        return cls(cpu_seconds(pid), kilobytes["VmRSS"] << 10, kilobytes["RssAnon"] << 10)


def cpu_seconds(pid: int) -> float:
    """Return user and system time of all threads of a process; 0 for pid 0."""
    if not pid:
        return 0.0
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def bytes_read(pid: int) -> int:
    """Return the number of bytes that a process has read so far, from files and sockets."""
    return int(Path(f"/proc/{pid}/io").read_text().split()[1])  # rchar: 123


def busy_seconds() -> float:
    """Return the CPU time of the whole machine so far, without idle and waiting time."""
    fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
    # user nice system idle iowait irq softirq steal
    return sum(int(fields[i]) for i in (0, 1, 2, 5, 6, 7)) / _TICKS
