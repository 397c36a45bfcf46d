"""Masters with a slave: the official ones and ours, with the same settings, alternating."""

import contextlib
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import broker_targets as targets, java
from benchmarks.broker_connection import BrokerConnection, Refused
from benchmarks.broker_targets import OFFICIAL, BrokerMissing, Settings, Target
from reput.cli import load_frames
from reput.format import bodies
from reput.format.bodies import KvTable
from reput.format.codes import RequestCode

FOLLOWS_S = 60.0


@dataclass(frozen=True, slots=True)
class Slave:
    """A running slave."""

    address: str
    pid: int


@dataclass(frozen=True, slots=True)
class Pair:
    """A running master and its slave."""

    master: Target
    slave: Slave


@contextlib.contextmanager
def official_master(folder: Path, role: str, version: str) -> Iterator[Target]:
    """Run the official broker with its name server."""
    start = _official(folder / "master", version, {"brokerRole": role})
    with start as master:
        yield Target(targets.JAVA, master.address, master.namesrv, master.broker_pid, 0.0)


@contextlib.contextmanager
def official_slave(
    folder: Path, master: Target, settings: Settings, version: str
) -> Iterator[Slave]:
    """Run an official slave."""
    known = {"brokerRole": "SLAVE", "brokerId": 1, **settings}
    with _official(folder / "slave", version, known, namesrv=master.namesrv) as slave:
        yield Slave(slave.address, slave.broker_pid)


def _official(folder: Path, version: str, settings: Settings, namesrv: str | None = None) -> Any:
    cluster = java.cluster()
    if cluster is None:
        raise BrokerMissing("the official broker")
    return cluster(
        version,
        folder,
        {**OFFICIAL, **settings},
        namesrv=namesrv,
        heap_megabytes=targets.HEAP_MEGABYTES // 2,  # there are two of them
        jvm=("-server", "-XX:+UseG1GC", "-Xlog:disable"),
    )


@contextlib.contextmanager
def our_master(folder: Path, role: str, version: str) -> Iterator[Target]:
    """Run our broker with its name server."""
    with targets.ours(folder / "master", {**OFFICIAL, "brokerRole": role}) as master:
        yield master


@contextlib.contextmanager
def our_slave(
    folder: Path, master: Target, settings: Settings, version: str = "", broker_id: int = 1
) -> Iterator[Slave]:
    """Run a slave of our kind."""
    folder = folder / f"slave-{broker_id}"
    folder.mkdir(parents=True)
    port = targets.free_port(4)
    conf = {
        "brokerClusterName": "DefaultCluster",
        "brokerName": "broker-a",
        "brokerRole": "SLAVE",
        "brokerId": broker_id,
        "brokerIP1": "127.0.0.1",
        "brokerIP2": "127.0.0.1",
        "listenPort": port,
        "storePathRootDir": folder / "store",
        **OFFICIAL,
        **settings,
    }
    targets.write_settings(folder / "broker.conf", conf)
    with targets.process(folder, "broker", "-c", "broker.conf", "-n", master.namesrv) as running:
        yield Slave(f"127.0.0.1:{port}", running.pid)


KINDS = ((official_master, official_slave), (our_master, our_slave))
"""The starts of a master and of its slave, of each kind."""


@contextlib.contextmanager
def pairs(folder: Path, role: str, version: str) -> Iterator[list[Pair]]:
    """Run a pair of each kind; report a missing one on stderr.

    Args:
        folder: Folder for their stores.
        role: ``brokerRole`` of the masters.
        version: Version of the official brokers.
    """
    with contextlib.ExitStack() as stack:
        running = []
        for start_master, start_slave in KINDS:
            root = folder / start_master.__name__
            try:
                master = stack.enter_context(start_master(root, role, version))
                slave = stack.enter_context(start_slave(root, master, {}, version))
                await_follower(master.address, slave.address)
                running.append(Pair(master, slave))
            except BrokerMissing as reason:
                print(f"without {reason}", file=sys.stderr, flush=True)
        yield running


def await_follower(master: str, slave: str) -> None:
    """Send messages to a master until its slave has one. Raises ``BrokerMissing``."""
    deadline = time.monotonic() + FOLLOWS_S
    while not _has(slave, "bench-follower"):
        with contextlib.suppress(OSError, Refused), BrokerConnection(master, 5) as connection:
            connection.ask([load_frames.send("bench-follower", 0, b"x")])
        if time.monotonic() > deadline:
            raise BrokerMissing(f"a slave at {slave} that follows {master}")
        targets.pause(0.2)


def _has(address: str, topic: str) -> bool:
    try:
        return targets.topic_end(address, topic, 1) > 0
    except (OSError, Refused):
        return False


def log_end(address: str) -> int:
    """Return the end of a broker's log; 0 if it does not answer."""
    try:
        with BrokerConnection(address, 5) as connection:
            return log_end_on(connection)
    except (OSError, Refused):
        return 0


def log_end_on(connection: BrokerConnection) -> int:
    """Return the end of a broker's log."""
    frame = load_frames.request(RequestCode.GET_BROKER_RUNTIME_INFO)
    (reply,) = connection.ask([frame])
    table: dict[str, Any] = bodies.decode(KvTable, reply.body).table
    return int(table["commitLogMaxOffset"])
