"""A process that loads a broker through raw sockets, and is cheap: about 1.5 us a message.

    python -m benchmarks.broker_generator '{"address": "127.0.0.1:10911", "mode": "closed"}'

Frames are made once. What differs from message to message (opaque, unique key) is patched in place
for hundreds of them at a time; of replies only length and code are read, and the opaque of one in
each read for its latency. The result is one JSON object on stdout. Modes and what they take, with
defaults, are the dataclasses below; ``pid`` is the broker's, for its CPU time. Works against any
broker that speaks the remoting protocol.
"""

import contextlib
import json
import select
import socket
import struct
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

import numpy as np

from benchmarks import broker_frames as frames
from benchmarks.broker_process import Usage, busy_seconds, cpu_seconds

_READ_BYTES = 1 << 18
_ROWS = 8192
_PATCH_ROWS = 1024
_DRAIN_S = 10.0


class LoadError(Exception):
    """A reply that is no success, or none at all."""


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
    warm_up_s: float = 0.5
    seconds: float = 2.5
    queues: int = 4


@dataclass(slots=True)
class Open:
    """``per_s`` messages a second, whether or not replies came; latency is from when it was due."""

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
    """``window`` pulls in flight on each connection, over what the queues have."""

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
    """A pull is held at the end of a queue; a message is sent; when does the pull return?"""

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
    """``messages`` are sent as fast as it goes."""

    address: str
    pid: int = 0
    topic: str = "bench"
    messages: int = 200_000
    body_bytes: int = 128
    queues: int = 4


# --- sends --------------------------------------------------------------------


class _Sender:
    """A connection with sends in flight."""

    __slots__ = (
        "_first",
        "_in",
        "_is_json",
        "_kept",
        "_opaque",
        "_out",
        "_patched",
        "_ring",
        "_sent_ns",
        "_socket",
        "busy",
        "in_flight",
        "number",
        "samples",
    )

    def __init__(self, spec: Closed | Open, number: int) -> None:
        self._is_json = spec.serialization == "JSON"
        self._socket = _connect(spec.address)
        self._socket.setblocking(False)
        ring = frames.ring(
            _ROWS, spec.topic, spec.body_bytes, spec.queues, is_json=self._is_json, salt=number
        )
        self._ring = ring
        self._in = bytearray(_READ_BYTES)
        self._kept = 0
        self._out: memoryview | None = None
        self._patched = 0
        self.number = 0
        self.in_flight = 0
        self.busy = 0
        self._sent_ns = np.zeros(_ROWS, np.int64)
        self.samples: list[int] = []

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(self, count: int, now_ns: int) -> None:
        """Send the next frames; those that do not fit wait for ``flush``."""
        ring, number = self._ring, self.number
        while self._patched < number + count:
            ring.patch(self._patched, _PATCH_ROWS)
            self._patched += _PATCH_ROWS
        row = number % _ROWS
        first = min(count, _ROWS - row)
        self._sent_ns[row : row + first] = now_ns
        self._write(ring.rows(row, first))
        if first < count:
            self._sent_ns[: count - first] = now_ns
            self._write(ring.rows(0, count - first))
        self.number = number + count
        self.in_flight += count

    def mark_due(self, number: int, due_ns: int) -> None:
        """Let the latency of a message count from when it was due."""
        self._sent_ns[number % _ROWS] = due_ns

    def _write(self, view: memoryview) -> None:
        if self._out is not None:
            self._out = memoryview(bytes(self._out) + bytes(view))
            return
        try:
            written = self._socket.send(view)
        except BlockingIOError:
            written = 0
        if written < len(view):
            self._out = memoryview(bytes(view[written:]))

    @property
    def is_blocked(self) -> bool:
        return self._out is not None

    def flush(self) -> None:
        """Write on."""
        if self._out is not None:
            view, self._out = self._out, None
            self._write(view)

    def receive(self, *, is_exact: bool = False) -> int:
        """Read replies; return how many are success. ``is_exact`` takes the latency of each."""
        data, kept = self._in, self._kept
        try:
            size = self._socket.recv_into(memoryview(data)[kept:])
        except BlockingIOError:
            return 0
        if size == 0:
            raise LoadError("the broker closed the connection")
        now_ns = time.perf_counter_ns()
        end = kept + size
        found = busy = position = 0
        is_json, unpack = self._is_json, _LENGTH.unpack_from
        while position + 4 <= end:
            after = position + 4 + unpack(data, position)[0]
            if after > end:
                break
            if is_json:
                # "code" is the first member in all known brokers.
                is_success = data[position + 8 : position + 18] == b'{"code":0,'
            else:
                is_success = not (data[position + 8] or data[position + 9])
            if not is_success:
                self._refused(bytes(data[position:after]))
                busy += 1
                position = after
                continue
            if is_exact or found == 0:
                self._sample(position, after, now_ns)
            found += 1
            position = after
        self._kept = kept = end - position
        data[:kept] = data[position:end]
        self.in_flight -= found + busy
        self.busy += busy
        return found

    def _refused(self, frame: bytes) -> None:
        """Let a busy broker refuse; anything else is no result at all."""
        is_busy = b'"code":2,' in frame[:20] if self._is_json else frame[8:10] == b"\x00\x02"
        if not is_busy:
            raise LoadError(frame.decode(errors="replace"))

    def _sample(self, position: int, after: int, now_ns: int) -> None:
        if self._is_json:
            at = self._in.index(b'"opaque":', position, after) + 9
            opaque = int(self._in[at : at + frames.OPAQUE_DIGITS])
        else:
            (opaque,) = _LENGTH.unpack_from(self._in, position + 13)
        row = (opaque - frames.OPAQUE_FIRST) % _ROWS
        self.samples.append(now_ns - int(self._sent_ns[row]))

    def close(self) -> None:
        self._socket.close()


_LENGTH = struct.Struct(">i")


def closed(spec: Closed) -> dict[str, object]:
    """Return rate, latency and the broker's cost of a closed loop."""
    senders = [_Sender(spec, number) for number in range(spec.connections)]
    poll = select.epoll()
    by_fd = {one.fileno(): one for one in senders}
    for fd in by_fd:
        poll.register(fd, select.EPOLLIN)
    answered = 0
    phase = _Phases(spec.warm_up_s, spec.seconds, spec.pid)
    blocked: set[int] = set()
    window = spec.window
    for one in senders:
        one.send(window, time.perf_counter_ns())
    clock = time.perf_counter_ns
    while not phase.is_over(clock(), answered, senders):
        for fd, event in poll.poll(1):
            one = by_fd[fd]
            if event & select.EPOLLIN:
                answered += one.receive()
                room = window - one.in_flight
                if room and not one.is_blocked:
                    one.send(room, clock())
            if event & select.EPOLLOUT:
                one.flush()
            if one.is_blocked != (fd in blocked):
                blocked ^= {fd}
                out = select.EPOLLOUT if one.is_blocked else 0
                poll.modify(fd, select.EPOLLIN | out)
    poll.close()
    _drain(senders)
    return phase.result(senders)


def open_loop(spec: Open) -> dict[str, object]:
    """Return latency and the broker's cost at a steady rate."""
    one = _Sender(spec, 0)
    phase = _Phases(spec.warm_up_s, spec.seconds, spec.pid)
    clock = time.perf_counter_ns
    step_ns = 1_000_000_000 / spec.per_s
    start = clock()
    answered = late = 0
    while True:
        now = clock()
        if phase.is_over(now, answered, [one]):
            break
        due = int((now - start) / step_ns) + 1 - one.number
        if due > 0:
            due = min(due, _ROWS // 2)
            if one.in_flight + due > _ROWS // 2:
                raise LoadError(f"{one.in_flight} messages without an answer")
            late += due > 50
            first = one.number
            one.send(due, now)
            for number in range(first, first + due):
                one.mark_due(number, int(start + number * step_ns))
        until = start + one.number * step_ns - clock()
        # Unlike epoll's, select's timeout is finer than a millisecond.
        select.select([one], [one] if one.is_blocked else [], [], max(until, 0) / 1e9)
        one.flush()
        answered += one.receive(is_exact=True)
    _drain([one])
    return {**phase.result([one]), "late_sends": late}


def fill(spec: Fill) -> dict[str, object]:
    """Send so many messages."""
    one = _Sender(Closed(**{f: getattr(spec, f) for f in _FILL_FIELDS}), 0)
    begin, cpu = time.perf_counter(), cpu_seconds(spec.pid)
    answered = 0
    while answered < spec.messages:
        room = min(1024 - one.in_flight, spec.messages - answered - one.in_flight)
        if room > 0 and not one.is_blocked:
            one.send(room, time.perf_counter_ns())
        select.select([one], [one] if one.is_blocked else [], [], 1)
        one.flush()
        answered += one.receive()
    one.close()
    wall, cpu = time.perf_counter() - begin, cpu_seconds(spec.pid) - cpu
    return {"per_s": round(answered / wall), "broker_cpu_us": round(cpu / answered * 1e6, 3)}


_FILL_FIELDS = ("address", "topic", "body_bytes", "queues")


def _drain(senders: list[_Sender]) -> None:
    """Wait for what is in flight: nothing that was sent may stay unanswered."""
    deadline = time.monotonic() + _DRAIN_S
    for one in senders:
        while one.in_flight:
            if time.monotonic() > deadline:
                raise LoadError(f"{one.in_flight} messages without an answer")
            select.select([one], [one] if one.is_blocked else [], [], 0.5)
            one.flush()
            one.receive()
        one.close()


class _Phases:
    """Warm-up, then what is measured."""

    def __init__(self, warm_up_s: float, seconds: float, pid: int) -> None:
        self._pid = pid
        now = time.perf_counter_ns()
        self._begin_ns = now + int(warm_up_s * 1e9)
        self._end_ns = self._begin_ns + int(seconds * 1e9)
        self._before: _Reading | None = None
        self._after: _Reading | None = None

    def is_over(self, now_ns: int, answered: int, senders: list[_Sender]) -> bool:
        """Take the readings when it is time; tell whether to end."""
        if now_ns < self._begin_ns:
            return False
        if self._before is None:
            self._before = _Reading.take(now_ns, answered, self._pid)
            for one in senders:
                one.samples.clear()
                one.busy = 0
        if now_ns < self._end_ns:
            return False
        self._after = _Reading.take(now_ns, answered, self._pid)
        return True

    def result(self, senders: list[_Sender]) -> dict[str, object]:
        """Return rates and latencies of what was measured."""
        assert self._before is not None
        assert self._after is not None
        return {
            "messages": self._after.answered - self._before.answered,
            **_rates(self._before, self._after),
            "busy": sum(one.busy for one in senders),
            **percentiles([value for one in senders for value in one.samples]),
        }


@dataclass(frozen=True, slots=True)
class _Reading:
    now_ns: int
    answered: int
    broker: Usage
    own_s: float
    machine_s: float

    @classmethod
    def take(cls, now_ns: int, answered: int, pid: int) -> Self:
        return cls(now_ns, answered, Usage.of(pid), time.process_time(), busy_seconds())


def _rates(before: _Reading, after: _Reading) -> dict[str, object]:
    """Return rates; ``foreign_cores``: what neither broker nor generator used, but took."""
    wall_s = (after.now_ns - before.now_ns) / 1e9
    messages = after.answered - before.answered
    broker_s, own_s = after.broker.cpu_s - before.broker.cpu_s, after.own_s - before.own_s
    foreign_s = after.machine_s - before.machine_s - broker_s - own_s
    return {
        "per_s": round(messages / wall_s),
        "broker_cpu_us": round(broker_s / max(messages, 1) * 1e6, 3),
        "broker_cores": round(broker_s / wall_s, 3),
        "generator_cpu_us": round(own_s / max(messages, 1) * 1e6, 3),
        "foreign_cores": round(max(foreign_s / wall_s, 0), 2),
        "rss_megabytes": round(after.broker.rss_bytes / 1e6, 1),
        "anonymous_megabytes": round(after.broker.anonymous_bytes / 1e6, 1),
    }


def percentiles(values_ns: list[int]) -> dict[str, float]:
    """Return a latency's percentiles in us."""
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
    """Return how many messages a second raw pulls bring, and what they cost the broker."""
    ends = [_max_offset(spec.address, spec.topic, queue) for queue in range(spec.queues)]
    if min(ends) < spec.batch:
        raise LoadError(f"queues of {spec.topic} end at {ends}: too few messages to pull")
    asks = [
        frames.pull(spec.topic, queue, at, spec.batch, opaque=queue << 20 | at // spec.batch)
        for queue, end in enumerate(ends)
        for at in range(0, min(end - spec.batch, 64_000), spec.batch)
    ]
    poll = select.epoll()
    pullers = [_Puller(spec.address, asks, spec.window, n) for n in range(spec.connections)]
    by_fd = {one.fileno(): one for one in pullers}
    for fd, one in by_fd.items():
        poll.register(fd, select.EPOLLIN)
        one.ask(spec.window)
    phase = _Phases(spec.warm_up_s, spec.seconds, spec.pid)
    while not phase.is_over(time.perf_counter_ns(), sum(one.replies for one in pullers), []):
        for fd, _ in poll.poll(1):
            one = by_fd[fd]
            one.ask(one.receive())
    poll.close()
    for one in pullers:
        one.close()
    found = phase.result([])
    each = sum(one.records for one in pullers) / sum(one.counted for one in pullers)
    pulls = found.pop("messages")
    del found["busy"]
    return {
        "pulls_per_s": found.pop("per_s"),
        "messages_per_pull": round(each, 2),
        "messages": round(pulls * each),  # type: ignore[operator]
        "per_s": round(pulls * each / spec.seconds),  # type: ignore[operator]
        "broker_cpu_us": round(found.pop("broker_cpu_us") / each, 3),  # type: ignore[operator]
        "generator_cpu_us": round(found.pop("generator_cpu_us") / each, 3),  # type: ignore[operator]
        **found,
    }


class _Puller:
    """A connection with pulls in flight."""

    def __init__(self, address: str, asks: list[bytes], window: int, number: int) -> None:
        self._socket = _connect(address)
        self._asks = asks
        self._at = number * len(asks) // 7
        self._in = memoryview(bytearray(max(_READ_BYTES, 4 << 20)))
        self._kept = 0
        self.replies = 0
        self.counted = self.records = 0

    def fileno(self) -> int:
        return self._socket.fileno()

    def ask(self, count: int) -> None:
        """Send the next pulls."""
        asks, at = self._asks, self._at
        if count:
            self._at = (at + count) % len(asks)
            self._socket.sendall(b"".join(asks[(at + i) % len(asks)] for i in range(count)))

    def receive(self) -> int:
        """Read replies; return how many."""
        data = self._in
        size = self._socket.recv_into(data[self._kept :])
        if size == 0:
            raise LoadError("the broker closed the connection")
        end = self._kept + size
        found = position = 0
        while position + 8 <= end:
            length, mark = _HEAD.unpack_from(data, position)
            after = position + 4 + length
            if after > end:
                break
            body = position + 8 + (mark & 0xFFFFFF)
            if data[position + 8 : position + 18] != b'{"code":0,':
                raise LoadError(bytes(data[position:body]).decode(errors="replace"))
            if found == 0:  # one reply of each read is looked into
                self.counted += 1
                while body < after:
                    body += _LENGTH.unpack_from(data, body)[0]
                    self.records += 1
            found += 1
            position = after
        self._kept = end - position
        data[: self._kept] = bytes(data[position:end])
        self.replies += found
        return found

    def close(self) -> None:
        self._socket.close()


_HEAD = struct.Struct(">ii")


def arrival(spec: Arrival) -> dict[str, object]:
    """Return how long after a send a held pull returns."""
    one = _Sender(Closed(spec.address, topic=spec.topic, body_bytes=spec.body_bytes, queues=1), 0)
    _finish(one, 1)  # the topic is there
    at = _max_offset(spec.address, spec.topic, 0)
    with _connect(spec.address) as connection:
        stream = connection.makefile("rb")
        took: list[int] = []
        cpu = 0.0
        for number in range(spec.rounds + 20):
            if number == 20:
                took.clear()
                cpu = cpu_seconds(spec.pid)
            connection.sendall(frames.pull(spec.topic, 0, at, 32, opaque=number, hold_ms=15_000))
            # Let it get there and be held; anything that comes now is an error.
            if select.select([connection], [], [], spec.pause_ms / 1e3)[0]:
                raise LoadError(str(_reply(stream)[0]))
            start = time.perf_counter_ns()
            one.send(1, start)
            header, body = _reply(stream)
            took.append(time.perf_counter_ns() - start)
            if header["code"] != 0 or not body:
                raise LoadError(str(header))
            at = int(header["extFields"]["nextBeginOffset"])
            _finish(one, 0)
    one.close()
    cost = (cpu_seconds(spec.pid) - cpu) / spec.rounds * 1e6
    return {"rounds": spec.rounds, "broker_cpu_us": round(cost, 1), **percentiles(took)}


def _finish(one: _Sender, count: int) -> None:
    if count:
        one.send(count, time.perf_counter_ns())
    while one.in_flight:
        select.select([one], [], [], 5)
        if one.receive() == 0:
            raise LoadError("no message was acknowledged in 5 s")


def hold(spec: Hold) -> dict[str, object]:
    """Return what idle clients, with or without a held pull, add to a broker."""
    one = _Sender(Closed(spec.address, topic=spec.topic, queues=1), 0)
    _finish(one, 1)
    end = _max_offset(spec.address, spec.topic, 0)
    before = Usage.of(spec.pid)
    time_before = time.perf_counter()
    with contextlib.ExitStack() as stack:
        connections = []
        for number in range(spec.clients):
            connection = stack.enter_context(_connect(spec.address))
            client_id = f"192.0.2.1@{number}"
            connection.sendall(frames.heartbeat(client_id, f"hold-{number % 20}", spec.topic))
            connections.append(connection)
        for number, connection in enumerate(connections):
            header, _ = _reply(connection.makefile("rb"))
            if header["code"] != 0:
                raise LoadError(str(header))
            if spec.pulls:
                group = f"hold-{number % 20}"
                connection.sendall(
                    frames.pull(spec.topic, 0, end, 32, opaque=number, hold_ms=60_000, group=group)
                )
        opening_s = time.perf_counter() - time_before
        readable = select.poll()
        for connection in connections:
            readable.register(connection, select.POLLIN)
        by_fd = {one.fileno(): one for one in connections}
        # The broker tells groups that they changed: until it is quiet, that is no idle time.
        while ready := readable.poll(1000):
            for fd, _ in ready:
                by_fd[fd].recv(_READ_BYTES)
        settled, start = Usage.of(spec.pid), time.perf_counter()
        answered = len(readable.poll(spec.seconds * 1000))
        wall, after = time.perf_counter() - start, Usage.of(spec.pid)
    one.close()
    return {
        "clients": spec.clients,
        "held_pulls": spec.clients if spec.pulls else 0,
        "answered_early": answered,
        "opening_s": round(opening_s, 2),
        "added_rss_megabytes": round((after.rss_bytes - before.rss_bytes) / 1e6, 1),
        "added_anonymous_megabytes": round(
            (after.anonymous_bytes - before.anonymous_bytes) / 1e6, 1
        ),
        "broker_cores": round((after.cpu_s - settled.cpu_s) / wall, 4),
    }


# --- the wire -------------------------------------------------------------------


def _connect(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    connection = socket.create_connection((host, int(port)), timeout=30)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def _reply(stream: object) -> tuple[dict, bytes]:
    """Return the next reply; what the broker asks in between is passed over."""
    read = stream.read  # type: ignore[attr-defined]
    while True:
        length, mark = _HEAD.unpack(read(8))
        header = json.loads(read(mark & 0xFFFFFF))
        body = read(length - 4 - (mark & 0xFFFFFF))
        if header["flag"] & 1:
            return header, body


def _max_offset(address: str, topic: str, queue_id: int) -> int:
    with _connect(address) as connection:
        fields = {"topic": topic, "queueId": str(queue_id)}
        connection.sendall(frames.request(30, fields))
        header, _ = _reply(connection.makefile("rb"))
    if header["code"] != 0:
        raise LoadError(str(header))
    return int(header["extFields"]["offset"])


MODES: dict[str, tuple[type, Callable]] = {
    "closed": (Closed, closed),
    "open": (Open, open_loop),
    "pull": (Pull, pull),
    "arrival": (Arrival, arrival),
    "hold": (Hold, hold),
    "fill": (Fill, fill),
}


def main() -> None:
    """Run the load that the argument describes."""
    spec = json.loads(sys.argv[1])
    kind, run = MODES[spec.pop("mode")]
    print(json.dumps(run(kind(**spec))))


if __name__ == "__main__":
    main()
