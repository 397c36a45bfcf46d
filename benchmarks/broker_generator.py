"""A process that loads a broker with the generator of ``reput bench``, and measures both.

    python -m benchmarks.broker_generator '{"address": "127.0.0.1:10911", "mode": "closed"}'

The result is one JSON object on stdout. The dataclasses below are the modes with their settings and
defaults; ``pid`` is the broker's, for its CPU time. Works against any broker that speaks the
remoting protocol.
"""

import contextlib
import json
import random
import select
import struct
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from benchmarks.broker_connection import BrokerConnection, queue_end
from benchmarks.broker_process import Usage, busy_seconds, cpu_seconds
from reput.cli import load, load_frames as frames
from reput.errors import BrokerError, RemotingError
from reput.format import bodies
from reput.format.bodies import ConsumerData, HeartbeatData, SubscriptionData
from reput.format.codes import RequestCode, ResponseCode
from reput.format.command import Command
from reput.format.signing import Credentials, Signer
from reput.remoting import tls_settings
from reput.remoting.tls_settings import TlsSettings
from reput.secret import Secret

_ANYBODY = tls_settings.client_context(TlsSettings())
_DRAIN_S = 10.0
_READ_BYTES = 4 << 20
_GROUP_COUNT = 20
_CONSUMER_GROUP = "bench-consumer"


class LoadError(Exception):
    """A reply that is no success, or a missing reply."""


@dataclass(slots=True)
class Closed:
    """``window`` requests in flight on each of ``connections``; a reply lets the next one go."""

    address: str
    pid: int = 0
    topic: str = "bench"
    window: int = 64
    connections: int = 1
    body_bytes: int = 128
    serialization: str = "JSON"
    tls: bool = False
    warm_up_s: float = 0.5
    seconds: float = 2.5
    queues: int = 4


@dataclass(slots=True)
class Open:
    """``per_s`` messages a second, replies or not; latency is measured from when one is due."""

    address: str
    pid: int = 0
    topic: str = "bench"
    per_s: int = 10_000
    body_bytes: int = 128
    serialization: str = "JSON"
    warm_up_s: float = 1.0
    seconds: float = 5.0
    queues: int = 4


@dataclass(slots=True)
class Pull:
    """``window`` pulls in flight on each connection, over the messages of the queues."""

    address: str
    pid: int = 0
    topic: str = "bench"
    batch: int = 32
    window: int = 8
    connections: int = 1
    warm_up_s: float = 0.5
    seconds: float = 2.5
    queues: int = 4


@dataclass(slots=True)
class Arrival:
    """Time from sending a message until a pull that is held for it returns."""

    address: str
    pid: int = 0
    topic: str = "bench-arrival"
    rounds: int = 500
    pause_ms: float = 4.0
    body_bytes: int = 128


@dataclass(slots=True)
class Hold:
    """``clients`` connections with a heartbeat each; with ``pulls``, each with a held pull."""

    address: str
    pid: int = 0
    topic: str = "bench-hold"
    clients: int = 2000
    pulls: bool = True
    seconds: float = 8.0


@dataclass(slots=True)
class Fill:
    """``messages`` are sent as fast as possible."""

    address: str
    pid: int = 0
    topic: str = "bench"
    messages: int = 200_000
    body_bytes: int = 128
    queues: int = 4


@dataclass(slots=True)
class Repeated:
    """Sends or pulls that were encoded, and signed, before; they are repeated over and over.

    Signing costs a generator more than verifying costs a broker; only the opaque, which is not
    signed, differs from request to request of a real client.
    """

    address: str
    pid: int = 0
    topic: str = "bench-repeated"
    kind: str = "send"
    access_key: str = ""
    secret_key: str = ""
    window: int = 64
    body_bytes: int = 128
    batch: int = 32
    messages: int = 20_000
    warm_up_s: float = 0.5
    seconds: float = 2.5


# --- sends --------------------------------------------------------------------


class _Failures:
    """Counts requests that a busy broker refuses; any other failure ends the run."""

    def __init__(self) -> None:
        self.busy_count = 0

    def add(self, error: RemotingError, count: int) -> None:
        if not isinstance(error, BrokerError) or error.response_code != ResponseCode.SYSTEM_BUSY:
            raise LoadError(str(error)) from error
        self.busy_count += count


def _send_load(
    spec: Closed | Open | Fill | Arrival | Hold, failures: _Failures, **plan: Any
) -> load.SendLoad:
    body_bytes = getattr(spec, "body_bytes", 128)
    return load.SendLoad(
        load.SendPlan(
            topic=spec.topic,
            body=bytes(random.Random(7).choices(range(32, 127), k=body_bytes)),
            is_json=getattr(spec, "serialization", "JSON") == "JSON",
            tls=_ANYBODY if getattr(spec, "tls", False) else None,
            **plan,
        ),
        {spec.address: range(getattr(spec, "queues", 1))},
        failures.add,
    )


def closed(spec: Closed) -> dict[str, object]:
    """Return rate, latency and the broker's cost of a closed loop."""
    return _measure_sends(spec, window_count=spec.window, connection_count=spec.connections)


def open_loop(spec: Open) -> dict[str, object]:
    """Return latency and the broker's cost at a steady rate."""
    return _measure_sends(spec, rate=spec.per_s, is_exact=True)


def _measure_sends(spec: Closed | Open, **plan: Any) -> dict[str, object]:
    failures = _Failures()
    sends = _send_load(spec, failures, **plan)
    start_ns = time.perf_counter_ns()
    begin_ns = start_ns + int(spec.warm_up_s * 1e9)
    sends.run(begin_ns)
    before = _Reading.take(sends.message_count, spec.pid)
    sends.take_latencies()
    sends.late_count = failures.busy_count = 0
    sends.run(begin_ns + int(spec.seconds * 1e9))
    after = _Reading.take(sends.message_count, spec.pid)
    latencies_ns = sends.take_latencies()
    sends.finish(_DRAIN_S)
    late = {"late_sends": sends.late_count} if isinstance(spec, Open) else {}
    return {
        "messages": after.message_count - before.message_count,
        **_rates(before, after),
        "busy": failures.busy_count,
        **percentiles(latencies_ns),
        **late,
    }


def fill(spec: Fill) -> dict[str, object]:
    """Send N messages."""
    stored_count = 0
    start_s, cpu_s = time.perf_counter(), cpu_seconds(spec.pid)
    while stored_count < spec.messages:  # again where a busy broker has refused messages
        count = spec.messages - stored_count
        sends = _send_load(spec, _Failures(), count=count, window_count=1024)
        while not sends.is_finished:
            sends.run(time.perf_counter_ns() + 1_000_000_000)
        sends.finish(_DRAIN_S)
        stored_count += sends.message_count
    seconds, cpu_s = time.perf_counter() - start_s, cpu_seconds(spec.pid) - cpu_s
    return {
        "per_s": round(stored_count / seconds),
        "broker_cpu_us": round(cpu_s / stored_count * 1e6, 3),
    }


@dataclass(frozen=True, slots=True)
class _Reading:
    """CPU times and counts at one moment."""

    now_ns: int
    message_count: int
    broker: Usage
    own_s: float
    machine_s: float

    @classmethod
    def take(cls, message_count: int, pid: int) -> Self:
        now_ns = time.perf_counter_ns()
        return cls(now_ns, message_count, Usage.of(pid), time.process_time(), busy_seconds())


def _rates(before: _Reading, after: _Reading) -> dict[str, float]:
    """Return rates and costs; ``foreign_cores`` is the CPU of all other processes."""
    seconds = (after.now_ns - before.now_ns) / 1e9
    message_count = after.message_count - before.message_count
    broker_s, own_s = after.broker.cpu_s - before.broker.cpu_s, after.own_s - before.own_s
    foreign_s = after.machine_s - before.machine_s - broker_s - own_s
    return {
        "per_s": round(message_count / seconds),
        "broker_cpu_us": round(broker_s / max(message_count, 1) * 1e6, 3),
        "broker_cores": round(broker_s / seconds, 3),
        "generator_cpu_us": round(own_s / max(message_count, 1) * 1e6, 3),
        "foreign_cores": round(max(foreign_s / seconds, 0), 2),
        "rss_megabytes": round(after.broker.rss_bytes / 1e6, 1),
        "anonymous_megabytes": round(after.broker.anonymous_bytes / 1e6, 1),
    }


def percentiles(values_ns: list[int]) -> dict[str, float]:
    """Return mean and percentiles of latencies, in us."""
    if not values_ns:
        return {}
    values = np.asarray(values_ns) / 1e3
    return {
        "mean_us": round(float(values.mean()), 1),
        "p50_us": round(float(np.percentile(values, 50)), 1),
        "p99_us": round(float(np.percentile(values, 99)), 1),
        "p99_9_us": round(float(np.percentile(values, 99.9)), 1),
        "max_us": round(float(values.max()), 1),
    }


# --- pulls ----------------------------------------------------------------------


def pull(spec: Pull) -> dict[str, object]:
    """Return the rate of raw pulls in messages, and their cost for the broker."""
    ends = [queue_end(spec.address, spec.topic, queue) for queue in range(spec.queues)]
    if min(ends) < spec.batch:
        raise LoadError(f"queues of {spec.topic} end at {ends}: too few messages to pull")
    requests = [
        _pull_request(spec.topic, queue, offset, opaque=queue << 20 | offset, count=spec.batch)
        for queue, end in enumerate(ends)
        for offset in range(0, min(end - spec.batch, 64_000), spec.batch)
    ]
    pullers = [
        _Puller(spec.address, requests, number * len(requests) // 7)
        for number in range(spec.connections)
    ]
    for puller in pullers:
        puller.send(spec.window)
    begin_ns = time.perf_counter_ns() + int(spec.warm_up_s * 1e9)
    _pull_until(pullers, begin_ns)
    before = _Reading.take(sum(puller.reply_count for puller in pullers), spec.pid)
    _pull_until(pullers, begin_ns + int(spec.seconds * 1e9))
    after = _Reading.take(sum(puller.reply_count for puller in pullers), spec.pid)
    for puller in pullers:
        puller.close()
    record_count = sum(puller.record_count for puller in pullers)
    each = record_count / sum(puller.inspected_count for puller in pullers)
    pull_count, rates = after.message_count - before.message_count, _rates(before, after)
    return {
        "pulls_per_s": rates.pop("per_s"),
        "messages_per_pull": round(each, 2),
        "messages": round(pull_count * each),
        "per_s": round(pull_count * each / spec.seconds),
        "broker_cpu_us": round(rates.pop("broker_cpu_us") / each, 3),
        "generator_cpu_us": round(rates.pop("generator_cpu_us") / each, 3),
        **rates,
    }


def _pull_request(
    topic: str,
    queue_id: int,
    queue_offset: int,
    *,
    opaque: int,
    count: int = 32,
    hold_ms: int = 0,
    group: str = _CONSUMER_GROUP,
) -> bytes:
    fields = frames.pull_fields(topic, queue_id, queue_offset, count, group=group, hold_ms=hold_ms)
    return frames.request(RequestCode.PULL_MESSAGE, fields, opaque=opaque)


def _pull_until(pullers: list["_Puller"], until_ns: int) -> None:
    by_descriptor = {puller.fileno(): puller for puller in pullers}
    with select.epoll() as poll:
        for descriptor in by_descriptor:
            poll.register(descriptor, select.EPOLLIN)
        while time.perf_counter_ns() < until_ns:
            for descriptor, _ in poll.poll(1):
                puller = by_descriptor[descriptor]
                puller.send(puller.receive())


def repeated(spec: Repeated) -> dict[str, object]:
    """Return the rate of repeated requests, and their cost for the broker."""
    signer = None
    if spec.access_key:
        signer = Signer(Credentials(spec.access_key, Secret(spec.secret_key)))
    body = bytes(random.Random(7).choices(range(32, 127), k=spec.body_bytes))
    head = frames.key_head(0).decode()
    sends = [
        _signed(
            RequestCode.SEND_MESSAGE_V2,
            frames.send_fields(spec.topic, 0, frames.properties_of(f"{head}{number:016X}")),
            body,
            number,
            signer,
        )
        for number in range(4096)
    ]
    puller = _Puller(spec.address, sends, 0)
    each = 1.0
    if spec.kind == "pull":
        _answer_all(puller, spec.messages)
        puller.close()
        pulls = [
            _signed(
                RequestCode.PULL_MESSAGE,
                frames.pull_fields(spec.topic, 0, offset, spec.batch, group=_CONSUMER_GROUP),
                b"",
                offset,
                signer,
            )
            for offset in range(0, spec.messages - spec.batch, spec.batch)
        ]
        puller = _Puller(spec.address, pulls, 0)
    puller.send(spec.window)
    begin_ns = time.perf_counter_ns() + int(spec.warm_up_s * 1e9)
    _pull_until([puller], begin_ns)
    before = _Reading.take(puller.reply_count, spec.pid)
    _pull_until([puller], begin_ns + int(spec.seconds * 1e9))
    after = _Reading.take(puller.reply_count, spec.pid)
    if spec.kind == "pull":
        each = puller.record_count / puller.inspected_count
    puller.close()
    rates = _rates(before, after)
    return {
        "requests_per_s": rates["per_s"],
        **rates,
        "per_s": round(rates["per_s"] * each),
        "broker_cpu_us": round(rates["broker_cpu_us"] / each, 3),
        "request_cpu_us": rates["broker_cpu_us"],
    }


def _signed(
    code: int, fields: dict[str, str], body: bytes, opaque: int, signer: Signer | None
) -> bytes:
    if signer is not None:
        signed = signer.sign(Command(code, ext_fields=fields, body=body))
        fields = signed.ext_fields or {}
    return frames.request(code, fields, body, opaque=opaque)


def _answer_all(puller: "_Puller", count: int) -> None:
    """Send requests until ``count`` replies have come."""
    puller.send(min(count, 64))
    while puller.reply_count < count:
        select.select([puller], [], [], 5)
        puller.send(puller.receive())


class _Puller(load.Connection):
    """A connection with pulls in flight.

    Args:
        address: Address of the broker, ``host:port``.
        requests: The pulls, which are sent over and over.
        first: Index of the first one.
    """

    def __init__(self, address: str, requests: list[bytes], first: int) -> None:
        super().__init__(address, _READ_BYTES)
        self._requests = requests
        self._next = first
        self.reply_count = 0
        self.inspected_count = self.record_count = 0

    def send(self, count: int) -> None:
        """Send the next pulls."""
        requests, first = self._requests, self._next
        if count:
            self._next = (first + count) % len(requests)
            self.write(b"".join(requests[(first + i) % len(requests)] for i in range(count)))
        self.flush()

    def receive(self) -> int:
        """Read replies; return their number. The records of one reply a read are counted."""
        spans, data = self.read_frames(), self.buffer
        for start, end in spans:
            (mark,) = _INT.unpack_from(data, start)
            body = start + 4 + (mark & 0xFFFFFF)
            if data[start + 4 : start + 14] != b'{"code":0,':
                raise LoadError(bytes(data[start:body]).decode(errors="replace"))
            if start == spans[0][0]:
                self.inspected_count += 1
                while body < end:
                    body += _INT.unpack_from(data, body)[0]
                    self.record_count += 1
        self.reply_count += len(spans)
        return len(spans)


_INT = struct.Struct(">i")


def arrival(spec: Arrival) -> dict[str, object]:
    """Return the time from a send until a held pull returns."""
    sender = _send_load(spec, _Failures()).connections[0]
    _send_one(sender)  # creates the topic
    end = queue_end(spec.address, spec.topic, 0)
    times_ns: list[int] = []
    cpu_s = 0.0
    with BrokerConnection(spec.address) as connection:
        for number in range(-_WARM_UP_ROUNDS, spec.rounds):
            if number == 0:
                times_ns.clear()
                cpu_s = cpu_seconds(spec.pid)
            opaque = number + _WARM_UP_ROUNDS
            connection.send(_pull_request(spec.topic, 0, end, opaque=opaque, hold_ms=15_000))
            # Wait until the broker holds the pull; any reply now is an error.
            if select.select([connection.socket], [], [], spec.pause_ms / 1e3)[0]:
                raise LoadError(str(connection.reply()))
            start_ns = time.perf_counter_ns()
            sender.send(1, start_ns)
            reply = connection.reply()
            times_ns.append(time.perf_counter_ns() - start_ns)
            if not reply.body:
                raise LoadError(str(reply))
            end = int((reply.ext_fields or {})["nextBeginOffset"])
            _await_reply(sender)
    sender.close()
    cost_us = (cpu_seconds(spec.pid) - cpu_s) / spec.rounds * 1e6
    return {"rounds": spec.rounds, "broker_cpu_us": round(cost_us, 1), **percentiles(times_ns)}


_WARM_UP_ROUNDS = 20


def _send_one(sender: load.SendConnection) -> None:
    sender.send(1, time.perf_counter_ns())
    _await_reply(sender)


def _await_reply(sender: load.SendConnection) -> None:
    while sender.in_flight:
        select.select([sender], [], [], 5)
        if sender.receive() == 0:
            raise LoadError("no message was acknowledged in 5 s")


def hold(spec: Hold) -> dict[str, object]:
    """Return what idle clients, with or without a held pull, add to a broker."""
    sender = _send_load(spec, _Failures()).connections[0]
    _send_one(sender)  # creates the topic
    end = queue_end(spec.address, spec.topic, 0)
    before, start_s = Usage.of(spec.pid), time.perf_counter()
    with contextlib.ExitStack() as stack:
        connections = [
            stack.enter_context(BrokerConnection(spec.address)) for _ in range(spec.clients)
        ]
        for number, connection in enumerate(connections):
            connection.send(_heartbeat(number, spec.topic))
        for number, connection in enumerate(connections):
            connection.reply()
            if spec.pulls:
                group = _group(number)
                connection.send(
                    _pull_request(spec.topic, 0, end, opaque=number, hold_ms=60_000, group=group)
                )
        opening_s = time.perf_counter() - start_s
        readable = select.poll()
        for connection in connections:
            readable.register(connection.socket, select.POLLIN)
        by_descriptor = {connection.socket.fileno(): connection for connection in connections}
        # The broker notifies the members of changed groups: idle time starts when it is quiet.
        while ready := readable.poll(1000):
            for descriptor, _ in ready:
                by_descriptor[descriptor].socket.recv(load.READ_BYTES)
        settled, start_s = Usage.of(spec.pid), time.perf_counter()
        answered_count = len(readable.poll(spec.seconds * 1000))
        seconds, after = time.perf_counter() - start_s, Usage.of(spec.pid)
    sender.close()
    return {
        "clients": spec.clients,
        "held_pulls": spec.clients if spec.pulls else 0,
        "answered_early": answered_count,
        "opening_s": round(opening_s, 2),
        "added_rss_megabytes": round((after.rss_bytes - before.rss_bytes) / 1e6, 1),
        "added_anonymous_megabytes": round(
            (after.anonymous_bytes - before.anonymous_bytes) / 1e6, 1
        ),
        "broker_cores": round((after.cpu_s - settled.cpu_s) / seconds, 4),
    }


def _group(number: int) -> str:
    return f"hold-{number % _GROUP_COUNT}"


def _heartbeat(number: int, topic: str) -> bytes:
    """Return the heartbeat of a push consumer."""
    subscription = SubscriptionData(topic=topic, sub_string="*", sub_version=1)
    consumer = ConsumerData(
        group_name=_group(number),
        consume_type="CONSUME_PASSIVELY",
        message_model="CLUSTERING",
        consume_from_where="CONSUME_FROM_LAST_OFFSET",
        subscription_data_set=[subscription],
    )
    data = HeartbeatData(client_id=f"192.0.2.1@{number}", consumer_data_set=[consumer])
    return frames.request(RequestCode.HEART_BEAT, body=bodies.encode(data))


MODES: dict[str, tuple[type, Callable]] = {
    "closed": (Closed, closed),
    "open": (Open, open_loop),
    "pull": (Pull, pull),
    "arrival": (Arrival, arrival),
    "hold": (Hold, hold),
    "fill": (Fill, fill),
    "repeated": (Repeated, repeated),
}


def main() -> None:
    """Run the load that the argument describes."""
    spec = json.loads(sys.argv[1])
    kind, run = MODES[spec.pop("mode")]
    print(json.dumps(run(kind(**spec))))


if __name__ == "__main__":
    main()
