"""The official load programs of rocketmq-example 5.5.0, unmodified, against both brokers."""

import contextlib
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks import broker_targets as targets, java
from benchmarks.broker_connection import Refused, ask
from benchmarks.broker_process import bytes_read, cpu_seconds
from reput.format.codes import RequestCode

NAME = "broker_official"
QUESTION = "official Producer (64 threads) and Consumer 5.5.0 against the 4.9.7 broker and ours"
PACKAGE = "org.apache.rocketmq.example.benchmark"
TOPIC = "bench-official"
BACKLOG = "bench-backlog"
GROUP = "bench-official-consumer"
CONSUME_S = 120.0


def run(folder: Path, quick: bool) -> dict[str, object]:
    """Measure both programs; quick: about 60 s."""
    programs = java.load_programs()
    if programs is None:
        return {}
    warm_up_s, seconds, backlog = (5.0, 3.0, 200_000) if quick else (10.0, 10.0, 3_000_000)
    with targets.brokers(folder / NAME) as brokers:
        targets.warm_up(brokers, 3.0 if quick else 7.0)
        for broker in brokers:
            targets.load(broker, "fill", topic=TOPIC, messages=4)  # creates the topic
            targets.load(broker, "fill", topic=BACKLOG, messages=backlog)
        return {
            "producer_64_threads": targets.measure(
                brokers, 1, lambda broker: _produce(programs, broker, warm_up_s, seconds)
            ),
            "consumer": targets.measure(brokers, 1, lambda broker: _consume(programs, broker)),
        }


@contextlib.contextmanager
def _program(programs: Path, name: str, *words: str) -> Iterator[subprocess.Popen[bytes]]:
    with tempfile.TemporaryDirectory(prefix="official-") as home:
        command = ["java", "-Xms512m", "-Xmx512m", f"-Duser.home={home}", "-Xlog:disable"]
        command += ["-cp", str(programs / "*"), f"{PACKAGE}.{name}", *words]
        process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=home
        )
        try:
            yield process
        finally:
            process.kill()
            process.wait()


def _produce(
    programs: Path, target: targets.Target, warm_up_s: float, seconds: float
) -> dict[str, Any]:
    """Return rate and cost while the producer runs, after a warm-up."""
    words = ("-n", target.namesrv, "-t", TOPIC, "-w", "64", "-s", "128")
    pause = threading.Event().wait
    with _program(programs, "Producer", *words):
        first = targets.topic_end(target.address, TOPIC)
        deadline = time.monotonic() + 30
        while targets.topic_end(target.address, TOPIC) == first:
            if time.monotonic() > deadline:
                raise targets.BrokerMissing("the official producer sends nothing")
            pause(0.1)
        pause(warm_up_s)
        start, cpu = time.perf_counter(), cpu_seconds(target.pid)
        before = targets.topic_end(target.address, TOPIC)
        pause(seconds)
        messages = targets.topic_end(target.address, TOPIC) - before
        wall, cpu = time.perf_counter() - start, cpu_seconds(target.pid) - cpu
    return {
        "messages": messages,
        "per_s": round(messages / wall),
        "broker_cpu_us": round(cpu / max(messages, 1) * 1e6, 3),
    }


def _consume(programs: Path, target: targets.Target) -> dict[str, Any]:
    """Return the cost, and the rate of the middle half of the messages.

    The broker gets consumer offsets only every five seconds, so the progress is that of the bytes
    that the consumer's process has read.
    """
    messages = targets.topic_end(target.address, BACKLOG)
    group = f"{GROUP}-{time.monotonic_ns()}"  # a new group starts at 0
    words = ("-n", target.namesrv, "-t", BACKLOG, "-g", group, "-p", "false")
    cpu = cpu_seconds(target.pid)
    start = time.perf_counter()
    samples: list[tuple[float, int]] = []
    with _program(programs, "Consumer", *words) as process:
        while _consumed(target.address, group) < messages:
            for _ in range(20):
                samples.append((time.perf_counter(), bytes_read(process.pid)))
                threading.Event().wait(0.05)
            if time.perf_counter() - start > CONSUME_S:
                done = _consumed(target.address, group)
                raise targets.BrokerMissing(f"consumed {done} of {messages} in {CONSUME_S} s")
        cpu = cpu_seconds(target.pid) - cpu
    end = samples[-1][1]
    first = next(now for now, size in samples if size >= end * 0.25)
    last = next(now for now, size in samples if size >= end * 0.75)
    return {
        "messages": messages,
        "per_s": round(messages * 0.5 / max(last - first, 0.05)),
        "broker_cpu_us": round(cpu / messages * 1e6, 3),
    }


def _consumed(address: str, group: str, queues: int = 4) -> int:
    total = 0
    for queue_id in range(queues):
        fields = {"consumerGroup": group, "topic": BACKLOG, "queueId": str(queue_id)}
        with contextlib.suppress(OSError, Refused):  # no offset yet
            reply = ask(address, RequestCode.QUERY_CONSUMER_OFFSET, fields)
            total += int((reply.ext_fields or {})["offset"])
    return total
