"""The process of this machine that has a port or a file, for the errors of server commands."""

import contextlib
import os
from collections.abc import Callable
from pathlib import Path


def owner_of_store(root: str) -> str:
    """Return the process that has a store open; empty if it cannot be determined."""
    pid = pid_of_store(root)
    return "" if pid is None else _described(pid)


def pid_of_store(root: str) -> int | None:
    """Return the id of the process that has a store open; None if it cannot be determined."""
    try:
        wanted = os.stat(f"{root}/lock")  # noqa: PTH116 - compared with os.stat of descriptors
    except OSError:
        return None
    return _process_with(lambda status: os.path.samestat(status, wanted))


def owner_of_port(port: int) -> str:
    """Return the process that listens on a port; empty if it cannot be determined."""
    pid = pid_of_port(port)
    return "" if pid is None else _described(pid)


def pid_of_port(port: int) -> int | None:
    """Return the id of the process that listens on a port; None if it cannot be determined."""
    inodes = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with contextlib.suppress(OSError):
            for line in Path(table).read_text().splitlines()[1:]:
                words = line.split()
                if words[3] == "0A" and int(words[1].rpartition(":")[2], 16) == port:
                    inodes.add(int(words[9]))
    return _process_with(lambda status: status.st_ino in inodes) if inodes else None


def _process_with(is_wanted: Callable[[os.stat_result], bool]) -> int | None:
    """Return the id of the process that has a file or socket open."""
    for process in Path("/proc").glob("[0-9]*"):
        if int(process.name) == os.getpid():
            continue
        with contextlib.suppress(OSError), os.scandir(process / "fd") as descriptors:
            for descriptor in descriptors:
                with contextlib.suppress(OSError):
                    if is_wanted(os.stat(descriptor.path)):  # noqa: PTH116 - called thousands of times
                        return int(process.name)
    return None


def _described(pid: int) -> str:
    """Return a process with its command line: ``pid 17 (python -m reput up)``."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return ""
    text = b" ".join(words).decode(errors="replace").strip()
    return f"pid {pid} ({text[:80]})"
