"""Masters with a slave: the official ones and ours, with the same settings."""

import contextlib
import time
from collections.abc import Callable, Iterator
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
    settings: dict[str, str | int | bool] = {"brokerRole": role}
    if role == "SYNC_MASTER" and version.startswith("5."):
        settings["inSyncReplicas"] = 2  # by default it waits for no slave
    with _official(folder / "master", version, settings) as master:
        name = f"java_{version.replace('.', '_')}"
        yield Target(name, master.address, master.namesrv, master.broker_pid, 0.0)


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


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of brokers: of a version of Java, or ours."""

    version: str
    """Version of the official brokers; empty for ours."""

    @property
    def name(self) -> str:
        """The name of the kind, that of its folder."""
        return f"java_{self.version.replace('.', '_')}" if self.version else targets.OURS

    def master(self, folder: Path, role: str) -> contextlib.AbstractContextManager[Target]:
        """Run a master with its name server."""
        start = official_master if self.version else our_master
        return start(folder / self.name, role, self.version)

    def slave(
        self, folder: Path, master: Target, settings: Settings
    ) -> contextlib.AbstractContextManager[Slave]:
        """Run a slave of a master."""
        start: Callable[..., Any] = official_slave if self.version else our_slave
        slave: contextlib.AbstractContextManager[Slave] = start(
            folder / self.name, master, settings, self.version
        )
        return slave

    @contextlib.contextmanager
    def pair(self, folder: Path, role: str, settings: Settings | None = None) -> Iterator[Pair]:
        """Run a master and its slave, which follows it."""
        with (
            self.master(folder, role) as master,
            self.slave(folder, master, settings or {}) as slave,
        ):
            await_follower(master.address, slave.address)
            yield Pair(master, slave)


KINDS = (Kind("4.9.7"), Kind("5.5.0"), Kind(""))


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
