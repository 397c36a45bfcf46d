"""The gRPC front of 5.x clients beside the official proxy 5.5.0 in local mode.

Both run in this run, with one load generator, on the same cores. CPU times are those of the
server's process, which has the broker too: user and system time, from ``/proc``.
"""

import contextlib
import select
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks import grpc_targets
from benchmarks.broker_process import Usage, cpu_seconds
from benchmarks.broker_targets import Target, medians, pause
from benchmarks.grpc_load import (
    BROKER,
    GrpcLoad,
    SendBodies,
    consumer_settings,
    messages_of,
    producer_settings,
)
from reput.grpc.wire import protobuf
from reput.grpc.wire.grpc_messages import METHODS, Code

NAME = "grpc_proxy"
QUESTION = "SendMessage, ReceiveMessage with acks, idle streams: the official proxy 5.5.0 and ours"
TOPIC = "bench-grpc"
BACKLOG = "bench-grpc-backlog"
BATCH = 32
STREAMS = 5_000
_RATIOS = ("per_s", "cpu_us", "p50_us", "p99_us")


def run(folder: Path, quick: bool, *, is_ours_alone: bool = False) -> dict[str, object]:
    """Measure both; quick: about 90 s."""
    seconds, repeats, streams = (2.0, 1, 500) if quick else (5.0, 3, STREAMS)
    results: dict[str, object] = {}
    with grpc_targets.servers(folder / NAME, is_ours_alone=is_ours_alone) as targets:
        for target in targets:
            grpc_targets.create_topic(target, TOPIC)
            grpc_targets.create_topic(target, BACKLOG)
            warm_s = (20.0 if quick else 60.0) if target.name == grpc_targets.JAVA else 2.0
            sends(target, warm_s, window=64)
        for name, connections, window, size in (
            ("send, 1 in flight", 1, 1, 128),
            ("send, 64 in flight", 1, 64, 128),
            ("send, 64 in flight, 1 KiB", 1, 64, 1024),
            ("send, 64 in flight, 4 connections", 4, 16, 128),
            ("send, 64 in flight, SDK for Python", 1, 64, 128),
        ):
            sdk = "python" if name.endswith("Python") else "go"

            def measure(target: Target) -> dict[str, float]:
                return sends(
                    target,
                    seconds,
                    connections=connections,  # noqa: B023 - called in this turn
                    window=window,  # noqa: B023
                    body_bytes=size,  # noqa: B023
                    sdk=sdk,  # noqa: B023
                )

            results[name] = compare(targets, repeats, measure)
        results["receive 32, acks"] = compare(
            targets, repeats, lambda target: receives(target, seconds)
        )
        results[f"{streams} idle telemetry streams"] = compare(
            targets, 1, lambda target: idle_streams(target, streams, seconds)
        )
    return results


def compare(
    targets: list[Target], repeats: int, measure: Callable[[Target], dict[str, float]]
) -> dict[str, Any]:
    """Return the medians of alternating runs, and the ratios of ours to Java's."""
    runs: dict[str, list[dict[str, float]]] = {target.name: [] for target in targets}
    for _ in range(repeats):
        for target in targets:
            try:
                runs[target.name].append(measure(target))
            except (RuntimeError, OSError) as error:  # measure the other one nevertheless
                print(f"{target.name}: {error}", file=sys.stderr, flush=True)
    results: dict[str, Any] = {name: medians(rounds) for name, rounds in runs.items()}
    ours, java = results.get(grpc_targets.OURS), results.get(grpc_targets.JAVA)
    if ours and java:
        results["ours_to_java"] = {
            name: round(ours[name] / java[name], 3) for name in _RATIOS if java.get(name)
        }
    return results


# --- sends ------------------------------------------------------------------------------------


def sends(
    target: Target,
    seconds: float,
    *,
    connections: int = 1,
    window: int = 64,
    body_bytes: int = 128,
    sdk: str = "go",
) -> dict[str, float]:
    """Send with a number of calls in flight on each connection."""
    with contextlib.ExitStack() as stack:
        clients = {}
        for number in range(connections):
            client = GrpcLoad(target.address, "SendMessage", sdk=sdk)
            stack.callback(client.socket.close)
            client.begin_telemetry(producer_settings(TOPIC))
            clients[client.socket] = client, SendBodies(TOPIC, body_bytes, number)

        def send(client: GrpcLoad, bodies: SendBodies, count: int) -> None:
            client.call("SendMessage", [bodies.next() for _ in range(count)])

        for client, bodies in clients.values():
            send(client, bodies, window)

        def work(duration_s: float) -> tuple[int, float]:
            count, begin = 0, time.perf_counter()
            while (now := time.perf_counter()) - begin < duration_s:
                for ready in select.select(list(clients), [], [], 1)[0]:
                    client, bodies = clients[ready]
                    ended = client.receive()
                    if ended:
                        count += ended
                        send(client, bodies, ended)
            return count, now - begin

        work(seconds / 4)
        for client, _ in clients.values():
            check_sends(client)
            client.latencies_us.clear()
        cpu = cpu_seconds(target.pid)
        count, wall = work(seconds)
        cpu = cpu_seconds(target.pid) - cpu
        latencies = [us for client, _ in clients.values() for us in client.latencies_us]
        for client, _ in clients.values():
            check_sends(client)
    return _figures(count, wall, cpu, latencies)


def check_sends(client: GrpcLoad) -> None:
    """Check that all answers are successes; forget them. Raises RuntimeError."""
    for _, pieces in client.answered:
        (message,) = messages_of(pieces)
        reply = protobuf.decode(METHODS["SendMessage"].reply, message)
        if reply["status"]["code"] != Code.OK or len(reply["entries"]) != 1:
            raise RuntimeError(f"a send failed: {reply}")
    client.answered.clear()


def _figures(count: int, wall: float, cpu: float, latencies: list[float]) -> dict[str, float]:
    cuts = statistics.quantiles(latencies, n=100)
    return {
        "messages": count,
        "per_s": round(count / wall),
        "cpu_us": round(cpu / max(count, 1) * 1e6, 2),
        "p50_us": round(cuts[49]),
        "p99_us": round(cuts[98]),
    }


# --- receives ---------------------------------------------------------------------------------


def receives(target: Target, seconds: float, receivers: int = 4) -> dict[str, float]:
    """Receive batches and acknowledge each message by a separate call, as SDKs do.

    The backlog is sent before, and is not measured. A group reads from the end of a topic at its
    first receive, so the group begins before.
    """
    group = f"bench-grpc-{time.monotonic_ns()}"
    grpc_targets.create_group(target, group)
    fill(target, group, 0)
    wanted = round(seconds * 12_000 * (1 if target.name == grpc_targets.JAVA else 3))
    fill(target, group, wanted)
    client = GrpcLoad(target.address, "ReceiveMessage", "AckMessage")
    try:
        client.begin_telemetry(consumer_settings(BACKLOG, group))
        latencies: list[float] = []
        begin, cpu = time.perf_counter(), cpu_seconds(target.pid)
        client.call("ReceiveMessage", [_receive(group)] * receivers)
        received = acknowledged = empty = 0
        unacknowledged = 0
        while time.perf_counter() - begin < seconds and empty < receivers:
            client.receive()
            latencies += client.latencies_us
            client.latencies_us.clear()
            acks: list[bytes] = []
            receives_due = 0
            while client.answered:
                method, pieces = client.answered.popleft()
                replies = messages_of(pieces)
                if method == "ReceiveMessage":
                    new_acks = [_ack(group, reply) for reply in replies if reply[:1] == b"\x12"]
                    acks += new_acks
                    received += len(new_acks)
                    empty += not new_acks
                    receives_due += bool(new_acks)
                else:
                    acknowledged += 1
                    ack = protobuf.decode(METHODS["AckMessage"].reply, replies[0])
                    if ack["status"]["code"] != Code.OK:
                        raise RuntimeError(f"an ack failed: {replies}")
            unacknowledged += len(acks)
            if acks:
                client.call("AckMessage", acks)
            if receives_due:
                client.call("ReceiveMessage", [_receive(group)] * receives_due)
        wall = time.perf_counter() - begin
        cpu = cpu_seconds(target.pid) - cpu
    finally:
        client.socket.close()
    if not received:
        raise RuntimeError("nothing was received")
    if received - acknowledged > 32 * 2 * receivers + received // 50:
        print(f"{target.name}: {received} received, {acknowledged} acknowledged", file=sys.stderr)
    return _figures(acknowledged, wall, cpu, latencies)


def fill(target: Target, group: str, count: int) -> None:
    """Send a backlog; with a count of 0, let the group begin at the end of the topic."""
    client = GrpcLoad(target.address, "SendMessage", "ReceiveMessage")
    try:
        if not count:
            client.begin_telemetry(consumer_settings(BACKLOG, group))
            client.call("ReceiveMessage", [_receive(group, wait_s=0)] * 8)
            ended = 0
            while ended < 8:
                ended += client.receive()
            return
        client.begin_telemetry(producer_settings(BACKLOG))
        bodies = SendBodies(BACKLOG, 128, 99)
        sent, done = 256, 0
        client.call("SendMessage", [bodies.next() for _ in range(sent)])
        while done < count:
            ended = client.receive()
            done += ended
            if ended and sent < count:
                client.call("SendMessage", [bodies.next() for _ in range(ended)])
                sent += ended
            elif sent - done <= 0:
                break
        check_sends(client)
    finally:
        client.socket.close()


def _receive(group: str, wait_s: int = 5) -> bytes:
    request = {
        "group": {"name": group},
        "message_queue": {"topic": {"name": BACKLOG}, "id": -1, "broker": BROKER},
        "filter_expression": {"type": 1, "expression": "*"},
        "batch_size": BATCH,
        "invisible_duration": {"seconds": 60},
        "long_polling_timeout": {"seconds": wait_s},
    }
    return protobuf.encode(METHODS["ReceiveMessage"].request, request)


def _ack(group: str, reply: bytes) -> bytes:
    """Return the request that acknowledges a received message."""
    message = protobuf.decode(METHODS["ReceiveMessage"].reply, reply)["message"]
    system = message["system_properties"]
    entry = {"message_id": system["message_id"], "receipt_handle": system["receipt_handle"]}
    request = {"group": {"name": group}, "topic": message["topic"], "entries": [entry]}
    return protobuf.encode(METHODS["AckMessage"].request, request)


# --- idle streams -----------------------------------------------------------------------------


def idle_streams(target: Target, count: int, seconds: float) -> dict[str, float]:
    """Open Telemetry streams of producers, each on a separate connection."""
    before = Usage.of(target.pid)
    clients = []
    try:
        for _ in range(count):
            client = GrpcLoad(target.address)
            clients.append(client)
            client.begin_telemetry(producer_settings(TOPIC))
        opened = Usage.of(target.pid)
        pause(seconds)
        after = Usage.of(target.pid)
    finally:
        for client in clients:
            client.socket.close()
    return {
        "streams": count,
        "megabytes_more": round((after.rss_bytes - before.rss_bytes) / 1e6, 1),
        "rss_megabytes": round(after.rss_bytes / 1e6, 1),
        "open_cpu_us": round((opened.cpu_s - before.cpu_s) / count * 1e6),
        "idle_cores": round((after.cpu_s - opened.cpu_s) / seconds, 4),
    }
