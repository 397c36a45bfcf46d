"""The brokers under load: the official one and ours, with the same ``broker.conf``, alternating."""

import contextlib
import functools
import json
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import java
from benchmarks.broker_connection import BrokerConnection, Refused, queue_end
from benchmarks.broker_process import Usage
from reput.cli import load_frames
from reput.format.codes import ResponseCode

JAVA = "java_4_9_7"
OURS = "reput"
START_S = 60.0
HEAP_MEGABYTES = 2048
Settings = Mapping[str, str | int | bool]

# Defaults of a broker without a broker.conf; explicit because test clusters have smaller values.
OFFICIAL: Settings = {
    "mappedFileSizeCommitLog": 1 << 30,
    "mappedFileSizeConsumeQueue": 300_000 * 20,
    "maxHashSlotNum": 5_000_000,
    "maxIndexNum": 20_000_000,
}
_RATIOS = {"per_s", "broker_cpu_us", "p50_us", "p99_us", "p99_9_us", "anonymous_megabytes"}


class BrokerMissing(Exception):
    """A broker cannot be started here; the text gives the reason."""


@dataclass(frozen=True, slots=True)
class Target:
    """A running broker.

    Attributes:
        start_s: Time from the start of its process to the first acknowledged message.
    """

    name: str
    address: str
    namesrv: str
    pid: int
    start_s: float


@contextlib.contextmanager
def brokers(
    folder: Path,
    settings: Settings | None = None,
    *,
    is_ours_alone: bool = False,
    version: str = "4.9.7",
    of_java: Settings | None = None,
    of_reput: Settings | None = None,
    files_of_java: Mapping[str, str] | None = None,
    accepts_tls: bool = False,
) -> Iterator[list[Target]]:
    """Run the brokers that are available; report a missing one on stderr.

    Args:
        folder: Folder for their stores.
        settings: More settings for ``broker.conf``.
        is_ours_alone: Whether to omit the official broker.
        version: Version of the official broker.
        of_java: Settings of the official broker alone.
        of_reput: Settings of ours alone.
        files_of_java: Further files of the official broker, by path below its home.
        accepts_tls: Whether it accepts TLS, too, as ours does; its start then takes longer.
    """
    official = functools.partial(
        _official, version=version, files=files_of_java, accepts_tls=accepts_tls
    )
    starts = [(official, of_java), (ours, of_reput)]
    with contextlib.ExitStack() as stack:
        targets = []
        for start, more in starts[1:] if is_ours_alone else starts:
            conf = {**OFFICIAL, **(settings or {}), **(more or {})}
            try:
                targets.append(stack.enter_context(start(folder, conf)))
            except BrokerMissing as reason:
                print(f"without {reason}", file=sys.stderr, flush=True)
        yield targets


@contextlib.contextmanager
def _official(
    folder: Path,
    settings: Settings,
    version: str,
    *,
    files: Mapping[str, str] | None,
    accepts_tls: bool,
) -> Iterator[Target]:
    cluster = java.cluster()
    name = f"java_{version.replace('.', '_')}"
    if cluster is None:
        raise BrokerMissing("the official broker")
    start = time.perf_counter()
    options = ("-server", "-XX:+UseG1GC", "-Xlog:disable")
    running = cluster(
        version,
        folder / name,
        settings,
        heap_megabytes=HEAP_MEGABYTES,
        jvm=options,
        files=files,
        tls=accepts_tls,
    )
    with running:
        await_send(running.address)
        took = time.perf_counter() - start  # including the start of its name server
        yield Target(name, running.address, running.namesrv, running.broker_pid, took)


@contextlib.contextmanager
def ours(folder: Path, settings: Settings) -> Iterator[Target]:
    """Run reput's name server and broker."""
    root = folder / OURS
    root.mkdir(parents=True)
    port, namesrv_port = free_port(4), free_port(1)
    namesrv = f"127.0.0.1:{namesrv_port}"
    conf = {
        "brokerClusterName": "DefaultCluster",
        "brokerName": "broker-a",
        "brokerIP1": "127.0.0.1",
        "listenPort": port,
        "storePathRootDir": root / "store",
        **settings,
    }
    write_settings(root / "broker.conf", conf)
    write_settings(root / "namesrv.conf", {"listenPort": namesrv_port})
    with contextlib.ExitStack() as stack:
        stack.enter_context(process(root, "namesrv", "-c", "namesrv.conf"))
        _await(lambda: _connects(namesrv), "reput namesrv", root)
        start = time.perf_counter()
        broker = stack.enter_context(process(root, "broker", "-c", "broker.conf", "-n", namesrv))
        address = f"127.0.0.1:{port}"
        try:
            await_send(address, broker)
        except TimeoutError as error:
            tail = (root / "broker.out").read_text(errors="replace")[-500:]
            raise BrokerMissing(f"reput's broker: {error} {tail}") from error
        yield Target(OURS, address, namesrv, broker.pid, time.perf_counter() - start)


@contextlib.contextmanager
def process(root: Path, *words: str, is_killed: bool = True) -> Iterator[subprocess.Popen[bytes]]:
    """Run a command of reput, and end it. Its output is in ``<first word>.out``.

    Args:
        root: Its working directory.
        words: Its arguments.
        is_killed: Whether it is killed at the end, or stopped, together with its children.
    """
    with (root / f"{words[0]}.out").open("wb") as out:
        running = subprocess.Popen(
            [sys.executable, "-m", "reput", *words], cwd=root, stdout=out, stderr=out
        )
    try:
        yield running
    finally:
        running.kill() if is_killed else running.terminate()
        running.wait()


def await_file(path: Path, process: subprocess.Popen[bytes]) -> None:
    """Wait until a process has written a file. Raises ``BrokerMissing``."""
    deadline = time.monotonic() + START_S
    while not path.exists():
        if process.poll() is not None or time.monotonic() > deadline:
            raise BrokerMissing(f"{path.name}: not written; exit code {process.returncode}")
        pause(0.02)


def await_send(address: str, process: subprocess.Popen[bytes] | None = None) -> None:
    """Wait until a broker stores a message. Raises ``TimeoutError``."""

    def is_sent() -> bool:
        if process is not None and process.poll() is not None:
            raise TimeoutError(f"ended with {process.returncode}.")
        try:
            with BrokerConnection(address, 5) as connection:
                connection.ask([load_frames.send("bench-first", 0, b"x")])
        except Refused as refusal:
            # A SYNC_MASTER has stored it; access control refuses it, as it is not signed.
            is_refused = refusal.code == ResponseCode.NO_PERMISSION or "AclExc" in str(refusal)
            return is_refused or refusal.code == ResponseCode.SLAVE_NOT_AVAILABLE
        except OSError:
            return False
        return True

    deadline = time.monotonic() + START_S
    while not is_sent():
        if time.monotonic() > deadline:
            raise TimeoutError(f"no acknowledged message in {START_S} s.")
        pause(0.002)


def topic_end(address: str, topic: str, queues: int = 4) -> int:
    """Return the number of messages that a topic ever got."""
    return sum(queue_end(address, topic, queue_id) for queue_id in range(queues))


# --- load -------------------------------------------------------------------------


def load(target: Target, mode: str, **spec: Any) -> dict[str, Any]:
    """Run the generator in a separate process against a broker; return its results."""
    request = {"mode": mode, "address": target.address, "pid": target.pid, **spec}
    run = subprocess.run(
        [sys.executable, "-m", "benchmarks.broker_generator", json.dumps(request)],
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).parents[1],
    )
    if run.returncode:
        raise RuntimeError(f"{target.name} {spec}: {run.stderr[-1500:]}")
    result: dict[str, Any] = json.loads(run.stdout)
    return result


def warm_up(targets: list[Target], seconds: float) -> None:
    """Warm up Java's compiler; warm up ours for a second."""
    for target in targets:
        load(target, "closed", warm_up_s=seconds if target.name == JAVA else 1.0, seconds=0.5)


def compare(targets: list[Target], repeats: int, mode: str, **spec: Any) -> dict[str, Any]:
    """Return the medians of each broker's alternating runs, and the ratios of ours to Java's."""
    return measure(targets, repeats, lambda target: load(target, mode, **spec))


def measure(
    targets: list[Target], repeats: int, run: Callable[[Target], dict[str, Any]]
) -> dict[str, Any]:
    """Return the same as ``compare`` for any function that returns numbers by name."""
    runs: dict[str, list[dict[str, Any]]] = {target.name: [] for target in targets}
    for _ in range(repeats):
        for target in targets:
            try:
                runs[target.name].append(run(target))
            except (RuntimeError, BrokerMissing) as error:
                # Measure the other broker even if this one fails.
                print(f"{target.name}: {error}", file=sys.stderr, flush=True)
    results: dict[str, Any] = {name: medians(rounds) for name, rounds in runs.items()}
    java_medians, our_medians = results.get(JAVA), results.get(OURS)
    if java_medians and our_medians:
        results["ours_to_java"] = {
            name: round(our_medians[name] / java_medians[name], 3)
            for name in java_medians
            if name in _RATIOS and java_medians[name] and name in our_medians
        }
    return results


def medians(rounds: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the median of each number."""
    if not rounds:
        return {}
    return {
        name: round(statistics.median(round_[name] for round_ in rounds), 3) for name in rounds[0]
    }


def idle(target: Target, seconds: float) -> dict[str, Any]:
    """Return the cost of a broker without requests."""
    before, start = Usage.of(target.pid), time.perf_counter()
    pause(seconds)
    after, wall = Usage.of(target.pid), time.perf_counter() - start
    return {
        "idle_cores": round((after.cpu_s - before.cpu_s) / wall, 4),
        "rss_megabytes": round(after.rss_bytes / 1e6, 1),
        "anonymous_megabytes": round(after.anonymous_bytes / 1e6, 1),
    }


# --- waiting and ports --------------------------------------------------------------


def pause(seconds: float) -> None:
    """Wait for some seconds."""
    threading.Event().wait(seconds)  # a pause without a condition


def _await(is_ready: Callable[[], bool], what: str, root: Path) -> None:
    deadline = time.monotonic() + 10
    while not is_ready():
        if time.monotonic() > deadline:
            tail = (root / "namesrv.out").read_text(errors="replace")[-500:]
            raise BrokerMissing(f"{what}: it does not listen. {tail}")
        pause(0.02)


def _connects(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=1).close()
    except OSError:
        return False
    return True


def free_port(count: int) -> int:
    """Return a free port; with 4, a port such that the two below and the one above are free."""
    ports = java.ports()
    port: int = ports.free_port_of_broker() if count == 4 else ports.free_port()
    return port


def write_settings(path: Path, conf: Mapping[str, object]) -> None:
    """Write a file of settings."""
    lines = [
        f"{key}={str(value).lower() if isinstance(value, bool) else value}\n"
        for key, value in conf.items()
    ]
    path.write_text("".join(lines), encoding="utf-8")
