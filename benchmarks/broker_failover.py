"""Failover: how long a group of three brokers under a controller accepts no message.

A client sends one message after another to the master. When that fails, it asks the name server for
the master every 5 ms, and sends to it until a message is accepted. In turn the master is killed
(and started again, until all are in sync), stopped by a signal and continued, and replaced by an
operator. Groups of official brokers under the official controller run with the same settings. At
the end all acknowledged messages must be in the log of the master.
"""

import contextlib
import json
import os
import signal
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks import broker_pairs, broker_targets as targets, java
from benchmarks.broker_connection import BrokerConnection, Refused
from benchmarks.broker_targets import OURS, BrokerMissing, Settings, Target
from reput.cli import load_frames
from reput.format import bodies
from reput.format.bodies import ClusterInfo
from reput.format.codes import MASTER_ID, RequestCode

NAME = "broker_failover"
QUESTION = "time without accepted sends: kill -9, SIGSTOP, a planned switch; the cost of a group"

VERSION = "5.5.0"
BROKERS = 3
WHOLE_S = 120.0
"""Time in which all brokers are in sync again."""
LOST_S = 40.0
"""Time in which another broker accepts a message."""
_LOOK_S = 0.005
_BEFORE = 200
"""Messages that are sent before each fault."""
_TOPIC = "bench-failover"


def run(folder: Path, quick: bool) -> dict[str, object]:
    """Measure all cases; quick: five kills instead of fifty, about three minutes."""
    folder = folder / NAME
    kills, others = (5, 2) if quick else (50, 10)
    results: dict[str, Any] = {}
    for name in (OURS, f"java_{VERSION.replace('.', '_')}"):
        try:
            with _running(folder / name, name) as group:
                # A broker of Java's takes ten seconds to be in sync again.
                times = kills if name == OURS else max(kills // 5, 2)
                results[name] = _measure(group, times, others)
        except (BrokerMissing, TimeoutError, OSError) as error:
            print(f"{name}: {error}", file=sys.stderr, flush=True)
        print(json.dumps({name: results.get(name)}), file=sys.stderr, flush=True)
    results["cost"] = _cost(folder, 1 if quick else 3)
    return results


# Groups -----------------------------------------------------------------------------------------


class _Group:
    """A group of brokers.

    Args:
        made: The ``Group`` of the tests.
    """

    def __init__(self, made: Any) -> None:
        self.made = made
        self.acknowledged: list[bytes] = []

    def info(self) -> dict[str, Any]:
        """Return what the controller knows about the group."""
        body = json.dumps(["broker-a"]).encode()
        code = RequestCode.CONTROLLER_GET_SYNC_STATE_DATA
        with BrokerConnection(self.made.controller, 5) as connection:
            (reply,) = connection.ask([load_frames.request(code, body=body)])
        replicas: dict[str, Any] = json.loads(bytes(reply.body))["replicasInfoTable"]["broker-a"]
        return replicas

    def await_whole(self) -> None:
        """Wait until all brokers are in sync. Raises ``TimeoutError``."""
        count = len(self.made.brokers)
        _await(lambda: len(self.info()["inSyncReplicas"]) == count, WHOLE_S, "all in sync")

    def master(self) -> Any:
        """Return the broker that is master according to the controller."""
        address = self.info()["masterAddress"]
        return next(broker for broker in self.made.brokers if broker.address == address)

    def listed(self) -> str:
        """Return the address of the master according to the name server; empty without one."""
        with BrokerConnection(self.made.namesrv, 5) as connection:
            (reply,) = connection.ask([load_frames.request(RequestCode.GET_BROKER_CLUSTER_INFO)])
        table = bodies.decode(ClusterInfo, reply.body).broker_addr_table
        member = table.get("broker-a")
        return "" if member is None else dict(member.broker_addrs).get(MASTER_ID, "")

    def outage_ms(self, fault: Callable[[], object]) -> float:
        """Return how long no message was accepted, from a fault on."""
        address = self.master().address
        with contextlib.suppress(OSError, Refused), BrokerConnection(address, 1) as connection:
            for _ in range(_BEFORE):
                self._send(connection)
            begun = time.perf_counter()
            fault()
            while True:
                self._send(connection)
                sent = time.perf_counter()
                if sent - begun > 2:
                    raise TimeoutError("the fault has no effect")
        deadline = begun + LOST_S
        while time.perf_counter() < deadline:
            with contextlib.suppress(OSError, Refused):
                listed = self.listed()
                if listed and listed != address:
                    with BrokerConnection(listed, 1) as connection:
                        self._send(connection)
                        return (time.perf_counter() - begun) * 1000
            targets.pause(_LOOK_S)
        raise TimeoutError(f"no accepted message in {LOST_S} s")

    def switch_ms(self) -> float:
        """Return the longest time between two accepted messages around a planned switch."""
        replicas = self.info()
        other = next(
            replica["brokerId"]
            for replica in replicas["inSyncReplicas"]
            if replica["brokerId"] != replicas["masterBrokerId"]
        )
        fields = {
            "clusterName": "DefaultCluster",
            "brokerName": "broker-a",
            "brokerId": str(other),
            "designateElect": "true",
        }

        def elect() -> None:
            request = load_frames.request(RequestCode.CONTROLLER_ELECT_MASTER, fields)
            with BrokerConnection(self.made.controller, 5) as connection:
                connection.ask([request])

        return self.outage_ms(elect)

    def _send(self, connection: BrokerConnection) -> None:
        body = b"%08d failover" % len(self.acknowledged)
        connection.ask([load_frames.send(_TOPIC, 0, body)])
        self.acknowledged.append(body)

    def lost_count(self) -> int:
        """Return how many acknowledged messages are not in the master's log."""
        files = sorted((self.master().store / "commitlog").glob("[0-9]" * 20))
        log = b"".join(file.read_bytes().rstrip(b"\0") for file in files)
        return sum(body not in log for body in self.acknowledged)


@contextlib.contextmanager
def _running(
    folder: Path, name: str, count: int = BROKERS, settings: Settings | None = None
) -> Iterator[_Group]:
    """Run a name server of ours, a controller and some brokers, which are in sync.

    Args:
        folder: Folder for their stores.
        name: The kind of the brokers and of the controller.
        count: Number of brokers.
        settings: More settings of the brokers; by default two of them must be in sync.
    """
    groups = java.module_of_tests("interop.replica_group")
    if name != OURS and java.cluster() is None:
        raise BrokerMissing("the official broker")
    folder.mkdir(parents=True)
    namesrv, controller = targets.free_port(1), targets.free_port(1)
    targets.write_settings(folder / "namesrv.conf", {"listenPort": namesrv})
    state = {"listenPort": controller, "controllerStorePath": folder / "state"}
    targets.write_settings(folder / "controller.conf", state)
    with contextlib.ExitStack() as stack:
        stack.enter_context(targets.process(folder, "namesrv", "-c", "namesrv.conf"))
        if name == OURS:
            stack.enter_context(targets.process(folder, "controller", "-c", "controller.conf"))
            address = f"127.0.0.1:{controller}"
        else:
            address = stack.enter_context(groups.JavaController(folder / "controller")).address
        _await(lambda: _answers(address), WHOLE_S, "a controller")
        made = stack.enter_context(groups.group(folder / "group", f"127.0.0.1:{namesrv}", address))
        if name == OURS:
            made.kinds = dict.fromkeys(range(1, count + 1), "ours")
        for _ in range(count):
            made.add(**({"minInSyncReplicas": 2} if settings is None else settings))
        group = _Group(made)
        group.await_whole()
        yield group


def _answers(controller: str) -> bool:
    with BrokerConnection(controller, 5) as connection:
        (reply,) = connection.ask([load_frames.request(RequestCode.CONTROLLER_GET_METADATA_INFO)])
    return bool((reply.ext_fields or {}).get("controllerLeaderAddress"))


def _await(is_so: Callable[[], bool], within_s: float, what: str) -> None:
    deadline = time.monotonic() + within_s
    while True:
        with contextlib.suppress(OSError, Refused, KeyError):
            if is_so():
                return
        if time.monotonic() > deadline:
            raise TimeoutError(f"not in {within_s} s: {what}")
        targets.pause(0.05)


# Cases ------------------------------------------------------------------------------------------


def _measure(group: _Group, kills: int, others: int) -> dict[str, Any]:
    """Measure all cases of a group."""
    cases: dict[str, list[float]] = {"kill": [], "sigstop": [], "switch": []}
    for _ in range(kills):
        master = group.master()
        cases["kill"].append(group.outage_ms(master.kill_broker))
        master.start()
        group.await_whole()
    for _ in range(others):
        cases["switch"].append(group.switch_ms())
        group.await_whole()
    for _ in range(others):
        pid = group.master().broker_pid
        cases["sigstop"].append(
            group.outage_ms(lambda pid=pid: os.kill(pid, signal.SIGSTOP))  # type: ignore[misc]
        )
        os.kill(pid, signal.SIGCONT)
        group.await_whole()
    results: dict[str, Any] = {name: _times(times) for name, times in cases.items()}
    results["acknowledged"] = len(group.acknowledged)
    results["lost"] = group.lost_count()
    return results


def _times(times_ms: list[float]) -> dict[str, Any]:
    ordered = sorted(times_ms)
    return {
        "count": len(ordered),
        "p50_ms": round(statistics.median(ordered), 1),
        "p99_ms": round(ordered[min(int(len(ordered) * 0.99), len(ordered) - 1)], 1),
        "max_ms": round(ordered[-1], 1),
    }


def _cost(folder: Path, repeats: int) -> dict[str, Any]:
    """Return the rate of a master in a group of two, beside a SYNC_MASTER with one slave."""
    rates: dict[str, list[float]] = {"group": [], "sync_master": []}
    for number in range(repeats):
        with broker_pairs.Kind("").pair(folder / f"pair-{number}", "SYNC_MASTER") as pair:
            rates["sync_master"].append(_rate(pair.master))
        with _running(folder / f"group-{number}", OURS, 2, targets.OFFICIAL) as group:
            master = group.master()
            target = Target(OURS, master.address, group.made.namesrv, master.broker_pid, 0.0)
            rates["group"].append(_rate(target))
    medians = {name: statistics.median(measured) for name, measured in rates.items()}
    return {
        **{f"{name}_per_s": round(rate) for name, rate in medians.items()},
        "group_to_sync_master": round(medians["group"] / medians["sync_master"], 3),
    }


def _rate(master: Target) -> float:
    """Return the sends per second of a client with 64 requests under way."""
    spec = {"window": 64, "body_bytes": 1024}
    targets.load(master, "closed", warm_up_s=2.0, seconds=1.0, **spec)
    return float(targets.load(master, "closed", warm_up_s=0.5, seconds=3.0, **spec)["per_s"])
