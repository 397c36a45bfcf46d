"""Cost of replication: sends with a slave and without, lag, a delayed line, catching up.

Pairs of official brokers and of ours run with the same settings, alternating. Rates are those of
the producer's acknowledgements; the cost is the CPU of the master, and of the slave.
"""

import contextlib
import os
import signal
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks import broker_pairs, broker_targets as targets
from benchmarks.broker_connection import BrokerConnection, Refused
from benchmarks.broker_pairs import Pair, Slave
from benchmarks.broker_process import cpu_seconds
from benchmarks.broker_targets import JAVA, OURS, Target
from reput.cli import load_frames
from reput.format.codes import RequestCode

NAME = "broker_replication"
QUESTION = "sends/s, latency and CPU with a slave and without; lag; +2 ms; catch-up; beside 4.9.7"
VERSION = "4.9.7"

LOADS: dict[str, dict[str, object]] = {
    "window_1_1_kib": {"window": 1, "body_bytes": 1024},
    "window_64_1_kib": {"window": 64, "body_bytes": 1024},
    "window_256_x4_1_kib": {"window": 256, "connections": 4, "body_bytes": 1024},
}
PIPELINED: dict[str, object] = {"window": 1024, "connections": 4, "body_bytes": 1024}
LINE_DELAY_MS = 1
"""Delay of each direction of the delayed line: 2 ms for a frame and its acknowledgement."""
_TOPIC = "bench-lag"
_SAMPLE_S = 0.005


def run(folder: Path, quick: bool) -> dict[str, object]:
    """Measure all cases; quick: each once, about four minutes."""
    repeats, seconds = (1, 1.5) if quick else (3, 3.0)
    folder = folder / NAME
    results: dict[str, Any] = {}
    with targets.brokers(folder / "alone", version=VERSION) as brokers:
        targets.warm_up(brokers, 3.0 if quick else 7.0)
        results["async_master_alone"] = {
            name: targets.compare(brokers, repeats, "closed", seconds=seconds, **spec)
            for name, spec in LOADS.items()
        }
    for role in ("SYNC_MASTER", "ASYNC_MASTER"):
        with broker_pairs.pairs(folder / role, role, VERSION) as running:
            targets.warm_up([pair.master for pair in running], 3.0 if quick else 7.0)
            results[f"{role.lower()}_with_slave"] = {
                name: _compare(running, repeats, {"seconds": seconds, **spec})
                for name, spec in LOADS.items()
            }
            if role == "ASYNC_MASTER":
                results["lag_at_half_load"] = _lags(running, results, seconds * 3)
    results["sync_with_delayed_line"] = _delayed(folder / "delay", repeats, seconds)
    results["catch_up"] = _catch_up(folder / "catch-up", quick)
    results["stopped_slave_of_two"] = _stopped_slave(folder / "stopped", seconds)
    results["sync_to_async_alone"] = _ratios(results)
    return results


def _ratios(results: dict[str, Any]) -> dict[str, Any]:
    """Return the rates and median latencies of SYNC_MASTER, relative to a master alone."""
    ratios: dict[str, Any] = {}
    for load in LOADS:
        for broker in (JAVA, OURS):
            alone = results["async_master_alone"][load].get(broker)
            synced = results["sync_master_with_slave"][load].get(broker)
            if alone and synced:
                ratios.setdefault(load, {})[broker] = {
                    name: round(synced[name] / alone[name], 3) for name in ("per_s", "p50_us")
                }
    return ratios


def _compare(running: list[Pair], repeats: int, spec: dict[str, Any]) -> dict[str, Any]:
    by_master = {pair.master: pair for pair in running}

    def load(master: Target) -> dict[str, Any]:
        pair = by_master[master]
        cpu_s = cpu_seconds(pair.slave.pid)
        result = targets.load(master, "closed", **spec)
        # The slave also works during the warm-up of the generator.
        measured = spec["seconds"] / (spec["seconds"] + 0.5)
        cpu_s = (cpu_seconds(pair.slave.pid) - cpu_s) * measured
        result["slave_cpu_us"] = round(1e6 * cpu_s / max(result["messages"], 1), 3)
        return result

    return targets.measure(list(by_master), repeats, load)


# --- lag ----------------------------------------------------------------------------


def _lags(running: list[Pair], results: dict[str, Any], seconds: float) -> dict[str, Any]:
    """Return the time from an end of a queue at the master until the slave has it."""
    lags: dict[str, Any] = {}
    for pair in running:
        rate = results["async_master_with_slave"]["window_64_1_kib"][pair.master.name]["per_s"] // 2
        stop = threading.Event()
        lags_ms: list[float] = []
        watching = threading.Thread(target=_watch, args=(pair, stop, lags_ms))
        watching.start()
        load = targets.load(
            pair.master, "open", topic=_TOPIC, per_s=rate, body_bytes=1024, seconds=seconds
        )
        stop.set()
        watching.join()
        ordered = sorted(lags_ms)
        lags[pair.master.name] = {
            "per_s": load["per_s"],
            "samples": len(ordered),
            "p50_ms": round(statistics.median(ordered), 2) if ordered else None,
            "p99_ms": round(ordered[int(len(ordered) * 0.99)], 2) if ordered else None,
        }
    return lags


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


def _delayed(folder: Path, repeats: int, seconds: float) -> dict[str, Any]:
    """Return the rates of a SYNC_MASTER through a proxy without a delay, and with one."""
    results: dict[str, Any] = {}
    for name, delay_ms in (("no_delay", 0), ("delay_2_ms", LINE_DELAY_MS)):
        results[name] = {}
        for start_master, start_slave in broker_pairs.KINDS:
            root = folder / name / start_master.__name__
            with (
                start_master(root, "SYNC_MASTER", VERSION) as master,
                _proxy(master.address, delay_ms) as address,
                start_slave(root, master, {"haMasterAddress": address}, VERSION) as slave,
            ):
                broker_pairs.await_follower(master.address, slave.address)
                targets.warm_up([master], seconds)
                spec = {"seconds": seconds, **PIPELINED}
                results[name].update(_compare([Pair(master, slave)], repeats, spec))
    results["rate_with_delay"] = {
        broker: round(results["delay_2_ms"][broker]["per_s"] / figures["per_s"], 3)
        for broker, figures in results["no_delay"].items()
        if broker in results["delay_2_ms"]
    }
    return results


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


def _catch_up(folder: Path, quick: bool) -> dict[str, Any]:
    """Return the rate at which an empty slave gets the log of a master that is idle."""
    size = (1 << 28) if quick else 900 << 20  # in one file: an empty slave of Java's gets only that
    results: dict[str, Any] = {}
    for start_master, start_slave in broker_pairs.KINDS:
        root = folder / start_master.__name__
        with start_master(root, "ASYNC_MASTER", VERSION) as master:
            targets.load(master, "fill", messages=size // 1200, body_bytes=1024)
            end = broker_pairs.log_end(master.address)
            with start_slave(root, master, {}, VERSION) as slave:
                results[master.name] = _rate_of_catch_up(slave, end)
    results["plain_sendfile_megabytes_per_s"] = _plain_sendfile(folder, size)
    if JAVA in results and OURS in results:
        ours, java = (results[name]["megabytes_per_s"] for name in (OURS, JAVA))
        results["ours_to_java"] = round(ours / java, 2)
    return results


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


def _stopped_slave(folder: Path, seconds: float) -> dict[str, Any]:
    """Return the latencies of our master with two slaves, before and while one is stopped."""
    spec = {"seconds": seconds, "window": 64, "body_bytes": 1024}
    with contextlib.ExitStack() as stack:
        master = stack.enter_context(broker_pairs.our_master(folder, "SYNC_MASTER", VERSION))
        slaves = [
            stack.enter_context(broker_pairs.our_slave(folder, master, {}, broker_id=broker_id))
            for broker_id in (1, 2)
        ]
        for slave in slaves:
            broker_pairs.await_follower(master.address, slave.address)
        targets.load(master, "closed", **spec)
        results = {"both": targets.load(master, "closed", **spec)}
        os.kill(slaves[1].pid, signal.SIGSTOP)
        results["one_stopped"] = targets.load(master, "closed", **spec)
        os.kill(slaves[1].pid, signal.SIGCONT)
    return {
        name: {key: result[key] for key in ("per_s", "p50_us", "p99_us")}
        for name, result in results.items()
    }
