"""A broker with many topics and queues: first messages, turns of its event loop, stop, restart.

Two brokers run the same steps: the usual process, whose processor time counts, and one on the event
loop of asyncio, which records how long each callback holds the loop, in processor time of its
thread: that depends less than the time on the clock on what else the machine does.
"""

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from asyncio.events import Handle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks import broker_targets as targets
from benchmarks.broker_connection import BrokerConnection, Refused
from benchmarks.broker_process import cpu_seconds
from reput.cli import load_frames as frames
from reput.format.codes import RequestCode

NAME = "broker_many_queues"
QUESTION = "CPU of first messages; stop, start, longest turn of the loop with many queues"
QUEUES = 8
_AT_ONCE = 512
"""Requests in one write; the next ones follow when all are answered."""
_NEW_TOPICS = 100
_WAIT_S = 300.0
_LONGEST = 8
"""Turns that are reported."""


def run(folder: Path, quick: bool) -> dict[str, object]:
    """Measure 2,000 topics with 8 queues each, and 10,000."""
    small, large = (250, 1_000) if quick else (2_000, 10_000)
    return {
        f"{small * QUEUES}_queues": measure(folder / "small", small),
        f"{large * QUEUES}_queues": measure(folder / "large", large),
        f"turns_with_{large}_topics": turns(folder / "turns", large),
    }


def measure(folder: Path, topics: int) -> dict[str, Any]:
    """Return CPU times per message, and the times of stop and start."""
    results: dict[str, Any] = {}
    with targets.ours(folder, targets.OFFICIAL) as broker:
        root, address, pid = folder / targets.OURS, broker.address, broker.pid
        count = topics * QUEUES
        with _timed(results, "create_topic", pid, topics):
            create_topics(address, topics)
        with _timed(results, "first_message", pid, count):
            send_all(address, topics)
        with _timed(results, "first_message_then_its_file", pid, count):
            _await_files(root, count)
        with _timed(results, "second_message", pid, count):
            send_all(address, topics)
        with _timed(results, "message_of_new_topic", pid, _NEW_TOPICS):
            send_to_new_topics(address, _NEW_TOPICS)
        cpu_s, begun = cpu_seconds(pid), time.perf_counter()
        os.kill(pid, signal.SIGTERM)
        while _is_running(pid):
            cpu_s_at_end = cpu_seconds(pid)
            targets.pause(0.01)
        results["stop"] = {
            "cpu_s": round(cpu_s_at_end - cpu_s, 2),
            "wall_s": round(time.perf_counter() - begun, 2),
        }
    results["start"] = _start(root, address)
    results["start_after_crash"] = _start(root, address)
    return results


def _start(root: Path, address: str) -> dict[str, float]:
    """Start a broker, kill it once it stores messages, and return the times."""
    begun = time.perf_counter()
    with targets.process(root, "broker", "-c", "broker.conf") as broker:
        while not _stores(address):
            targets.pause(0.02)
        wall_s = time.perf_counter() - begun
        return {"cpu_s": round(cpu_seconds(broker.pid), 2), "wall_s": round(wall_s, 2)}


def _stores(address: str) -> bool:
    try:
        with BrokerConnection(address) as connection:
            connection.ask([frames.send(_name(0), 0, b"x")])
    except (OSError, Refused):
        return False
    return True


@contextlib.contextmanager
def _timed(results: dict[str, Any], name: str, pid: int, count: int) -> Iterator[None]:
    cpu_s, begun = cpu_seconds(pid), time.perf_counter()
    yield
    results[name] = {
        "cpu_us": round((cpu_seconds(pid) - cpu_s) / count * 1e6, 1),
        "wall_s": round(time.perf_counter() - begun, 2),
    }


def _is_running(pid: int) -> bool:
    """Return True until a child process has ended; it is not waited for."""
    state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    return state != "Z"


# --- requests -------------------------------------------------------------------------------


def _name(number: int) -> str:
    return f"topic-{number:05d}"


def create_topics(address: str, topics: int) -> None:
    """Create topics, many in each request."""
    for first in range(0, topics, _AT_ONCE):
        configs = [
            {
                "topicName": _name(number),
                "readQueueNums": QUEUES,
                "writeQueueNums": QUEUES,
                "perm": 6,
                "topicFilterType": "SINGLE_TAG",
                "topicSysFlag": 0,
                "order": False,
            }
            for number in range(first, min(first + _AT_ONCE, topics))
        ]
        body = json.dumps({"topicConfigList": configs}).encode()
        with BrokerConnection(address, _WAIT_S) as connection:
            connection.ask([frames.request(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, {}, body)])


def send_all(address: str, topics: int) -> None:
    """Send a message to each queue."""
    requests = [frames.send(_name(n), q, b"x" * 100) for n in range(topics) for q in range(QUEUES)]
    with BrokerConnection(address, _WAIT_S) as connection:
        for first in range(0, len(requests), _AT_ONCE):
            connection.ask(requests[first : first + _AT_ONCE])


def send_to_new_topics(address: str, count: int) -> None:
    """Send a message to each of some topics that do not exist yet, each when the last is stored."""
    with BrokerConnection(address, _WAIT_S) as connection:
        for number in range(count):
            connection.ask([frames.send(f"new-{number:05d}", 0, b"x")])


def _await_files(root: Path, count: int) -> None:
    """Wait until all queues have files."""
    deadline = time.monotonic() + _WAIT_S
    while sum(1 for _ in (root / "store/consumequeue").glob("topic-*/*/0*")) < count:
        if time.monotonic() > deadline:
            raise TimeoutError(f"{count} queues have no files after {_WAIT_S} s")
        targets.pause(0.5)


# --- turns of the event loop -----------------------------------------------------------------


def turns(folder: Path, topics: int, pause_s: float = 70) -> dict[str, Any]:
    """Return the longest turns of a broker's loop and its name server's, by step.

    Each is its processor time in ms, its time on the clock in ms, and its task or callback.

    Args:
        folder: Folder for the store.
        topics: Number of topics.
        pause_s: Time in which the broker only does its periodic work: of 10 and 60 s.
    """
    port, metrics_port, namesrv_port = (targets.free_port(n) for n in (4, 1, 1))
    conf = {
        **targets.OFFICIAL,
        "brokerIP1": "127.0.0.1",
        "brokerName": "broker-a",
        "listenPort": port,
        "metricsPort": metrics_port,
        "storePathRootDir": folder / "store",
    }
    folder.mkdir(parents=True)
    targets.write_settings(folder / "broker.conf", conf)
    targets.write_settings(folder / "namesrv.conf", {"listenPort": namesrv_port})
    address, namesrv_address = f"127.0.0.1:{port}", f"127.0.0.1:{namesrv_port}"
    broker_words = ["broker", "-c", "broker.conf", "-n", namesrv_address]
    results: dict[str, Any] = {}
    with _watched(folder, ["namesrv", "-c", "namesrv.conf"]) as namesrv:
        _await_port(namesrv_address, namesrv)
        with _watched(folder, broker_words) as broker:
            _await_port(address, broker)
            targets.await_send(address)

            def note(step: str) -> None:
                results[step] = _take(folder, broker.pid)

            note("start")
            create_topics(address, topics)
            note("create_topics")
            send_all(address, topics)
            note("first_messages")
            targets.pause(pause_s)
            note("pause")
            send_all(address, topics)
            note("second_messages")
            send_to_new_topics(address, _NEW_TOPICS)
            note("new_topics")
            _list_all(address)
            note("lists")
            _scrape(metrics_port)
            note("metrics")
        with _watched(folder, broker_words) as broker:
            _await_port(address, broker)
            _take(folder, broker.pid)  # the opening, before it listens
            targets.await_send(address)
            targets.pause(pause_s / 4)
            note("after_a_crash")
        results["namesrv"] = _take(folder, namesrv.pid)
    return results


@contextlib.contextmanager
def _watched(folder: Path, words: list[str]) -> Iterator[subprocess.Popen[bytes]]:
    code = f"from benchmarks import broker_many_queues as m; m.serve_watched({words!r})"
    path = f"{Path(__file__).parents[1]}:{os.environ.get('PYTHONPATH', '')}"
    with (folder / f"{words[0]}.out").open("ab") as out:
        running = subprocess.Popen(
            [sys.executable, "-c", code],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": path},
            stdout=out,
            stderr=out,
        )
    try:
        yield running
    finally:
        running.kill()
        running.wait()


def _await_port(address: str, process: subprocess.Popen[bytes]) -> None:
    host, _, port = address.rpartition(":")
    while process.poll() is None:
        try:
            socket.create_connection((host, int(port)), timeout=1).close()
        except OSError:
            targets.pause(0.05)
        else:
            return
    raise RuntimeError(f"{process.args} ended with {process.returncode}")


def _list_all(address: str) -> None:
    """Ask for the tables that grow with the topics."""
    for code in (
        RequestCode.GET_ALL_TOPIC_CONFIG,
        RequestCode.GET_BROKER_RUNTIME_INFO,
        RequestCode.GET_ALL_CONSUMER_OFFSET,
        RequestCode.VIEW_BROKER_STATS_DATA,
    ):
        fields = {"statsName": "TOPIC_PUT_NUMS", "statsKey": _name(0)}
        with contextlib.suppress(Refused), BrokerConnection(address, _WAIT_S) as connection:
            connection.ask([frames.request(code, fields)])


def _scrape(port: int) -> None:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=_WAIT_S) as reply:
        reply.read()


def _take(folder: Path, pid: int) -> Any:
    """Return the longest turns since the last call."""
    path = folder / f"turns-{pid}.json"
    path.unlink(missing_ok=True)
    os.kill(pid, signal.SIGUSR1)
    while not path.exists():
        targets.pause(0.02)
    return json.loads(path.read_text())


def serve_watched(words: list[str]) -> None:
    """Run a command on asyncio's own event loop; SIGUSR1 writes and forgets the longest turns."""
    from reput.cli.main import main

    sys.modules["uvloop"] = None  # type: ignore[assignment] # its callbacks cannot be watched
    asyncio.Task = asyncio.tasks.Task = asyncio.tasks._PyTask  # type: ignore[misc,attr-defined]
    longest: list[tuple[float, float, str]] = []
    run_handle = Handle._run

    def watched(handle: Handle) -> None:
        task = getattr(handle._callback, "__self__", None)
        is_task = isinstance(task, asyncio.Task)
        name = task.get_name() if is_task else repr(handle)
        cpu_s, begun = time.thread_time(), time.perf_counter()
        run_handle(handle)
        cpu_ms = (time.thread_time() - cpu_s) * 1e3
        if cpu_ms > 5:
            longest.append((round(cpu_ms, 1), round((time.perf_counter() - begun) * 1e3, 1), name))
            longest.sort(reverse=True)
            del longest[_LONGEST:]

    def write(*_: object) -> None:
        draft = Path(f"turns-{os.getpid()}.draft")
        draft.write_text(json.dumps(longest))
        longest.clear()
        draft.rename(draft.with_suffix(".json"))

    Handle._run = watched  # type: ignore[method-assign]
    signal.signal(signal.SIGUSR1, write)
    sys.argv[1:] = words
    sys.exit(main())
