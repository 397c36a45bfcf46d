"""Clusters of both kinds, for tests that expect the same of ours and of the official one.

With ``REPUT_INTEROP=all`` such tests run on both: what they expect is what Java does. By default on
ours alone.
"""

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from interop import java_oracle
from interop.java_cluster import JavaCluster, Settings
from reput_cluster import ReputCluster

Cluster = ReputCluster | JavaCluster

KINDS = ("reput", "official") if java_oracle.wants_all_versions() else ("reput",)
CLIENTS = ("4.9.7", "5.5.0") if java_oracle.wants_all_versions() else ("4.9.7",)
"""Versions of Java's clients; an official cluster is of the same one."""
PAUSE = threading.Event()  # nobody sets it
GUARD_S = 60
"""Ends a test that hangs; nothing is expected to take so long."""

Found = TypeVar("Found")


def start_cluster(
    kind: str, version: str, folder: Path, settings: Settings | None = None
) -> Cluster:
    """Start a cluster, to be used as a context.

    Args:
        kind: One of ``KINDS``.
        version: Of an official one.
        folder: For its files; a store that is there is continued.
        settings: More for ``broker.conf``.
    """
    if kind == "reput":
        return ReputCluster(folder, settings)
    return JavaCluster(version, folder, settings)


def until(look: Callable[[], Found], guard_s: float = GUARD_S) -> Found:
    """Return what is there (what is true) once it has come: processes act in their own time."""
    deadline = time.monotonic() + guard_s
    while not (found := look()):
        assert time.monotonic() < deadline, f"not there in {guard_s} s"
        PAUSE.wait(0.1)
    return found
