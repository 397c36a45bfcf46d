"""Clusters of both kinds, for tests with the same expectations of our broker and Java's.

With ``REPUT_INTEROP=all`` such tests run on both kinds, because they expect Java's behaviour. By
default they run only on ours.
"""

import contextlib
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from interop import java_oracle
from interop.java_cluster import ClientError, JavaClient, JavaCluster, Settings
from reput_cluster import ReputCluster

Cluster = ReputCluster | JavaCluster

KINDS = ("reput", "official") if java_oracle.wants_all_versions() else ("reput",)
CLIENTS = ("4.9.7", "5.5.0") if java_oracle.wants_all_versions() else ("4.9.7",)
"""Versions of Java's clients; an official cluster has the version of its clients."""
PAUSE = threading.Event()  # never set
GUARD_S = 180
"""Time limit of a test that hangs, in seconds; no step is expected to take that long."""

Found = TypeVar("Found")


def start_cluster(
    kind: str,
    version: str,
    folder: Path,
    settings: Settings | None = None,
    *,
    namesrv: str | None = None,
) -> Cluster:
    """Start a cluster, to be used as a context manager.

    Args:
        kind: ``reput``; anything else is official.
        version: Version of an official cluster; ours ignores it.
        folder: Folder for the cluster's files; an existing store in it is continued.
        settings: Further settings of ``broker.conf``.
        namesrv: Address of an existing name server to use instead.
    """
    if kind == "reput":
        return ReputCluster(folder, settings, namesrv=namesrv)
    return JavaCluster(version, folder, settings, namesrv=namesrv)


def until(look: Callable[[], Found], guard_s: float = GUARD_S) -> Found:
    """Wait until a function returns a true value, and return the value.

    The processes under test act asynchronously.
    """
    deadline = time.monotonic() + guard_s
    while not (value := look()):
        assert time.monotonic() < deadline, f"not there in {guard_s} s"
        PAUSE.wait(0.05)
    return value


def make_topic(
    java: JavaClient, cluster: Cluster, topic: str, queue_count: int = 4, **more: Any
) -> None:
    """Create a topic on the broker; clients find it on return."""
    with java.admin(cluster.namesrv) as admin:
        counts = {"readQueueNums": queue_count, "writeQueueNums": queue_count}
        admin.call(
            "createAndUpdateTopicConfig", cluster.address, {"topicName": topic, **counts, **more}
        )

        def is_known() -> bool:
            with contextlib.suppress(ClientError):
                return bool(admin.call("examineTopicRouteInfo", topic)["queueDatas"])
            return False

        until(is_known)
