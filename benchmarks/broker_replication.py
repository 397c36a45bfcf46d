"""Cost of replication: sends with a slave and without, lag, a delayed line, catching up.

Pairs of official brokers and of ours run with the same settings, one pair at a time: an idle pair
of Java's takes a fifth of a core. Rates are those of the producer's acknowledgements; the cost is
the CPU of the master, and of the slave.
"""

import contextlib
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import broker_pairs, broker_targets as targets
from benchmarks.broker_connection import BrokerConnection, Refused
from benchmarks.broker_pairs import KINDS, Kind, Pair, Slave
from benchmarks.broker_process import cpu_seconds
from benchmarks.broker_targets import OURS, BrokerMissing, Target
from reput.cli import load_frames
from reput.format.codes import RequestCode

NAME = "broker_replication"
QUESTION = "sends/s, latency and CPU with a slave and without; lag; +2 ms; catch-up; beside Java's"

LOADS: dict[str, dict[str, object]] = {
    "window_1": {"window": 1, "body_bytes": 1024},
    "window_64": {"window": 64, "body_bytes": 1024},
    "window_256_x4": {"window": 256, "connections": 4, "body_bytes": 1024},
}
PIPELINED: dict[str, object] = {"window": 1024, "connections": 4, "body_bytes": 1024}
LINE_DELAY_MS = 1
"""Delay of each direction of the delayed line: 2 ms for a frame and its acknowledgement."""
_TOPIC = "bench-lag"
_SAMPLE_S = 0.005


def run(folder: Path, quick: bool) -> dict[str, object]:
    """Measure all cases; quick: each once, about six minutes."""
    folder = folder / NAME
    plan = _Plan(1, 1.5, 3.0, 256 << 20) if quick else _Plan(3, 2.0, 7.0, 700 << 20)
    results: dict[str, Any] = {}
    for kind in KINDS:
        results[kind.name] = _measure(folder / kind.name, kind, plan)
        print(json.dumps({kind.name: results[kind.name]}), file=sys.stderr, flush=True)
    with _reporting("a stopped slave"):
        results["stopped_slave_of_two"] = _stopped_slave(folder / "stopped", plan)
    results["plain_sendfile_megabytes_per_s"] = _plain_sendfile(folder, plan.log_bytes)
    results["ours_to_java"] = {
        name: _ratio(results[OURS], figures)
        for name, figures in results.items()
        if name.startswith("java_")
    }
    return results


@contextlib.contextmanager
def _reporting(what: str) -> Iterator[None]:
    """Report a case that failed on stderr; the others are measured nevertheless."""
    try:
        yield
    except (RuntimeError, BrokerMissing, OSError) as error:
        print(f"{what}: {error}", file=sys.stderr, flush=True)


@dataclass(frozen=True, slots=True)
class _Plan:
    repeats: int
    seconds: float
    warm_up_s: float
    """Time for Java's compiler."""
    log_bytes: int
    """Size of the log that a slave catches up: one file, as Java's slaves get only the last."""


def _measure(folder: Path, kind: Kind, plan: _Plan) -> dict[str, Any]:
    """Measure all cases of a kind of brokers."""
    results: dict[str, Any] = {}
    with _reporting(f"{kind.name} alone"), kind.master(folder / "alone", "ASYNC_MASTER") as master:
        _warm_up(master, plan)
        results["async_alone"] = _loads(master, None, plan)
    for role in ("SYNC_MASTER", "ASYNC_MASTER"):
        with _reporting(f"{kind.name} {role}"), kind.pair(folder / role, role) as pair:
            _warm_up(pair.master, plan)
            name = f"{role.removesuffix('_MASTER').lower()}_with_slave"
            results[name] = _loads(pair.master, pair.slave, plan)
            if role == "ASYNC_MASTER":
                rate = results[name]["window_64"]["per_s"] // 2
                results["lag_at_half_load"] = _lag(pair, rate, plan.seconds * 3)
    if not kind.version.startswith("5."):  # haMasterAddress has no effect there
        with _reporting(f"{kind.name} with a delay"):
            results["sync_delayed_line"] = _delayed(folder / "delay", kind, plan)
    with _reporting(f"{kind.name} catching up"):
        results["catch_up"] = _catch_up(folder / "catch-up", kind, plan)
    results["derived"] = _derived(results)
    return results


def _derived(results: dict[str, Any]) -> dict[str, Any]:
    """Return what a slave costs, from the runs with and without."""
    if not {"async_alone", "sync_with_slave", "async_with_slave"} <= results.keys():
        return {}
    alone, synced, followed = (
        results[name] for name in ("async_alone", "sync_with_slave", "async_with_slave")
    )
    return {
        load: {
            "sync_rate_to_alone": round(synced[load]["per_s"] / alone[load]["per_s"], 3),
            "sync_p50_to_alone_us": round(synced[load]["p50_us"] - alone[load]["p50_us"], 1),
            "master_cpu_for_slave_us": round(
                followed[load]["broker_cpu_us"] - alone[load]["broker_cpu_us"], 2
            ),
            "sync_master_cpu_for_slave_us": round(
                synced[load]["broker_cpu_us"] - alone[load]["broker_cpu_us"], 2
            ),
            "slave_to_master_cpu": round(
                followed[load]["slave_cpu_us"] / followed[load]["broker_cpu_us"], 3
            ),
        }
        for load in LOADS
    }


def _ratio(ours: dict[str, Any], java: dict[str, Any]) -> dict[str, Any]:
    """Return our rates, latencies and CPU times relative to Java's."""
    ratios: dict[str, Any] = {
        case: {
            load: {
                name: round(ours[case][load][name] / java[case][load][name], 3)
                for name in ("per_s", "p50_us", "broker_cpu_us", "slave_cpu_us")
                if java[case][load].get(name)
            }
            for load in LOADS
        }
        for case in ("async_alone", "sync_with_slave", "async_with_slave")
        if case in ours and case in java
    }
    if "catch_up" in ours and "catch_up" in java:
        rates = [figures["catch_up"]["megabytes_per_s"] for figures in (ours, java)]
        ratios["catch_up"] = round(rates[0] / rates[1], 2)
    return ratios


def _warm_up(master: Target, plan: _Plan) -> None:
    seconds = 1.0 if master.name == OURS else plan.warm_up_s
    targets.load(master, "closed", warm_up_s=seconds, seconds=0.5)


def _loads(master: Target, slave: Slave | None, plan: _Plan) -> dict[str, Any]:
    """Return the medians of each load."""
    return {
        name: targets.medians(
            [_load(master, slave, {"seconds": plan.seconds, **spec}) for _ in range(plan.repeats)]
        )
        for name, spec in LOADS.items()
    }


def _load(master: Target, slave: Slave | None, spec: dict[str, Any]) -> dict[str, Any]:
    cpu_s = 0.0 if slave is None else cpu_seconds(slave.pid)
    result = targets.load(master, "closed", **spec)
    if slave is not None:
        # The slave also works during the warm-up of the generator.
        measured = spec["seconds"] / (spec["seconds"] + 0.5)
        cpu_s = (cpu_seconds(slave.pid) - cpu_s) * measured
        result["slave_cpu_us"] = round(1e6 * cpu_s / max(result["messages"], 1), 3)
    return result


# --- lag ----------------------------------------------------------------------------


def _lag(pair: Pair, rate: int, seconds: float) -> dict[str, Any]:
    """Return the time from the master's reply with an end of a queue until the slave has it."""
    stop = threading.Event()
    lags_ms: list[float] = []
    watching = threading.Thread(target=_watch, args=(pair, stop, lags_ms))
    watching.start()
    try:
        load = targets.load(
            pair.master, "open", topic=_TOPIC, per_s=rate, body_bytes=1024, seconds=seconds
        )
    finally:
        stop.set()
        watching.join()
    ordered = sorted(lags_ms)
    return {
        "per_s": load["per_s"],
        "samples": len(ordered),
        "p50_ms": round(statistics.median(ordered), 2) if ordered else None,
        "p99_ms": round(ordered[int(len(ordered) * 0.99)], 2) if ordered else None,
    }


def _watch(pair: Pair, stop: threading.Event, lags_ms: list[float]) -> None:
    """Sample the ends of queue 0 of master and slave until ``stop`` is set."""
    fields = {"topic": _TOPIC, "queueId": "0"}
    frame = load_frames.request(RequestCode.GET_MAX_OFFSET, fields)
    pending: deque[tuple[float, int]] = deque()
    with (
        BrokerConnection(pair.master.address) as master,
        BrokerConnection(pair.slave.address) as slave,
    ):
        while not stop.is_set():
            with contextlib.suppress(Refused):
                pending.append((time.perf_counter(), _end(master, frame)))
                until_s = time.perf_counter() + _SAMPLE_S
                while pending and time.perf_counter() < until_s:
                    end = _end(slave, frame)
                    now_s = time.perf_counter()
                    while pending and pending[0][1] <= end:
                        lags_ms.append(1000 * (now_s - pending.popleft()[0]))
                if (left_s := until_s - time.perf_counter()) > 0:
                    targets.pause(left_s)


def _end(connection: BrokerConnection, frame: bytes) -> int:
    (reply,) = connection.ask([frame])
    return int((reply.ext_fields or {})["offset"])


# --- a delayed line -------------------------------------------------------------------


def _delayed(folder: Path, kind: Kind, plan: _Plan) -> dict[str, Any]:
    """Return the rates of a SYNC_MASTER through a proxy without a delay, and with one."""
    spec = {"seconds": plan.seconds, **PIPELINED}
    results: dict[str, Any] = {}
    for name, delay_ms in (("no_delay", 0), ("delay_2_ms", LINE_DELAY_MS)):
        with (
            kind.master(folder / name, "SYNC_MASTER") as master,
            _proxy(master.address, delay_ms) as address,
            kind.slave(folder / name, master, {"haMasterAddress": address}) as slave,
        ):
            broker_pairs.await_follower(master.address, slave.address)
            _warm_up(master, plan)
            runs = [_load(master, slave, spec) for _ in range(plan.repeats)]
            results[name] = targets.medians(runs)["per_s"]
    return {**results, "ratio": round(results["delay_2_ms"] / results["no_delay"], 3)}


@contextlib.contextmanager
def _proxy(master: str, delay_ms: float) -> Iterator[str]:
    """Run a proxy of a master's port for slaves; yield its address."""
    host, _, master_port = master.rpartition(":")
    port = targets.free_port(1)
    command = [sys.executable, "-m", "benchmarks.delay_proxy", str(port)]
    command += [f"{host}:{int(master_port) + 1}", str(delay_ms)]
    process = subprocess.Popen(command, cwd=Path(__file__).parents[1])
    try:
        yield f"127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


# --- catching up ------------------------------------------------------------------------


def _catch_up(folder: Path, kind: Kind, plan: _Plan) -> dict[str, Any]:
    """Return the rate at which an empty slave gets the log of an idle master, and of a busy one."""
    with kind.master(folder, "ASYNC_MASTER") as master:
        targets.load(master, "fill", messages=plan.log_bytes // 1200, body_bytes=1024, topic=_TOPIC)
        end = broker_pairs.log_end(master.address)
        with kind.slave(folder / "idle", master, {}) as slave:
            results: dict[str, Any] = _rate_of_catch_up(slave, end)
        with _sending(master, plan):
            before = _growth(master, lambda: False)
            with kind.slave(folder / "busy", master, {}) as slave:
                end = broker_pairs.log_end(master.address)
                while not broker_pairs.log_end(slave.address):
                    targets.pause(0.005)
                meanwhile = _growth(master, lambda: broker_pairs.log_end(slave.address) >= end)
        return {**results, "sends_meanwhile_to_before": round(meanwhile / before, 3)}


@contextlib.contextmanager
def _sending(master: Target, plan: _Plan) -> Iterator[None]:
    """Send small messages meanwhile, for some seconds at least."""
    spec = {"window": 64, "body_bytes": 128, "seconds": 8 * plan.seconds}
    sending = threading.Thread(target=targets.load, args=(master, "closed"), kwargs=spec)
    sending.start()
    targets.pause(2)  # until the generator has started
    try:
        yield
    finally:
        sending.join()


def _growth(master: Target, is_over: Callable[[], bool]) -> float:
    """Return the bytes per second by which a log grows, for two seconds or until ``is_over``."""
    start_s, start = time.perf_counter(), broker_pairs.log_end(master.address)
    while time.perf_counter() < start_s + 2 and not is_over():
        targets.pause(0.01)
    seconds = time.perf_counter() - start_s
    return (broker_pairs.log_end(master.address) - start) / seconds


def _rate_of_catch_up(slave: Slave, end: int) -> dict[str, float]:
    first: tuple[float, int] | None = None
    deadline = time.perf_counter() + 120
    while (now_s := time.perf_counter()) < deadline:
        position = broker_pairs.log_end(slave.address)
        if position and first is None:
            first = (now_s, position)
        if position >= end and first is not None:
            seconds = max(time.perf_counter() - first[0], 0.001)
            return {
                "megabytes": round((end - first[1]) / 1e6),
                "megabytes_per_s": round((end - first[1]) / seconds / 1e6),
                "slave_cpu_s": round(cpu_seconds(slave.pid), 2),
            }
        targets.pause(0.005)
    raise RuntimeError(f"the slave at {slave.address} did not catch up: {position} of {end}")


def _plain_sendfile(folder: Path, size: int) -> int:
    path = folder / "plain"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as out:
        for _ in range(size >> 20):
            out.write(b"x" * (1 << 20))
    with socket.create_server(("127.0.0.1", 0)) as server:
        sender = socket.create_connection(server.getsockname())
        receiver, _ = server.accept()
    room = bytearray(1 << 20)

    def receive() -> None:
        while receiver.recv_into(room):
            pass

    reading = threading.Thread(target=receive)
    reading.start()
    start_s = time.perf_counter()
    with path.open("rb") as data:
        position = 0
        while position < size:
            position += os.sendfile(sender.fileno(), data.fileno(), position, size - position)
    sender.close()
    reading.join()
    receiver.close()
    return round(size / (time.perf_counter() - start_s) / 1e6)


# --- a stopped slave -----------------------------------------------------------------


def _stopped_slave(folder: Path, plan: _Plan) -> dict[str, Any]:
    """Return the latencies of our master with two slaves, before and while one is stopped."""
    spec = {"seconds": plan.seconds, "window": 64, "body_bytes": 1024}
    with contextlib.ExitStack() as stack:
        master = stack.enter_context(broker_pairs.our_master(folder, "SYNC_MASTER", ""))
        slaves = [
            stack.enter_context(broker_pairs.our_slave(folder, master, {}, broker_id=broker_id))
            for broker_id in (1, 2)
        ]
        for slave in slaves:
            broker_pairs.await_follower(master.address, slave.address)
        targets.load(master, "closed", **spec)
        results = {"both": [_load(master, None, spec) for _ in range(plan.repeats)]}
        os.kill(slaves[1].pid, signal.SIGSTOP)
        results["one_stopped"] = [_load(master, None, spec) for _ in range(plan.repeats)]
        os.kill(slaves[1].pid, signal.SIGCONT)
    medians = {name: targets.medians(runs) for name, runs in results.items()}
    return {
        name: {key: result[key] for key in ("per_s", "p50_us", "p99_us")}
        for name, result in medians.items()
    }
