"""Lookups, one request at a time: messages by key and by id, offsets by time, ends of a queue."""

import contextlib
import random
import socket
import struct
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import broker_targets as targets
from benchmarks.broker_connection import BrokerConnection
from benchmarks.broker_generator import percentiles
from benchmarks.broker_process import Usage
from benchmarks.broker_targets import Target
from reput.cli import load_frames as frames
from reput.format import message as record
from reput.format.codes import RequestCode

NAME = "broker_lookup"
QUESTION = "latency and broker CPU of a lookup, of a commit and of a lone send; 4.9.7 beside ours"

TOPIC = "bench-lookup"
QUEUES = 4
INDEX_ENTRIES = 20_000
"""Entries of an index file: small, so that there are many files."""
_ENTRIES_OF_MESSAGE = 2  # its key and its unique key
_REQUESTS = 1000
_WINDOW = 256
_HEAD = struct.Struct(">i")


@dataclass(frozen=True, slots=True)
class Filled:
    """What was stored.

    Attributes:
        count: Number of messages.
        begin_ms: A time before the first was stored.
        end_ms: A time after the last was stored.
        physical_offsets: Some of their physical offsets.
    """

    count: int
    begin_ms: int
    end_ms: int
    physical_offsets: list[int]


def fill(target: Target, count: int) -> Filled:
    """Store messages ``k0`` to ``k<count - 1>``, and wait until they are in queues and index."""
    begin_ms = _now_ms()
    with BrokerConnection(target.address) as connection:
        connection.ask([frames.send(TOPIC, 0, b"first")])  # creates the topic
        for first in range(0, count, _WINDOW):
            connection.ask(
                [_send(number, number) for number in range(first, min(first + _WINDOW, count))]
            )
        end_ms = _now_ms()
        while targets.topic_end(target.address, TOPIC, QUEUES) < count + 1:
            targets.pause(0.05)
        last = _by_key(f"k{count - 1}", 0, end_ms + 1000)
        while not _is_answered(connection, last):
            targets.pause(0.05)
        request = frames.request(
            RequestCode.PULL_MESSAGE,
            frames.pull_fields(TOPIC, 1, count // 8, 32, group="bench-consumer"),
        )
        (reply,) = connection.ask([request])
    data, position, places = reply.body or b"", 0, []
    while position < len(data):
        message = record.decode(data, position)
        places.append(message.physical_offset)
        position += _HEAD.unpack_from(data, position)[0]
    return Filled(count, begin_ms, end_ms, places)


def _is_answered(connection: BrokerConnection, request: bytes) -> bool:
    with contextlib.suppress(RuntimeError):
        connection.ask([request])
        return True
    return False


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _send(number: int, opaque: int) -> bytes:
    unique_key = f"7F000001{number:024X}"
    properties = f"KEYS\x01k{number}\x02{frames.properties_of(unique_key)}"
    fields = frames.send_fields(TOPIC, number % QUEUES, properties)
    return frames.request(RequestCode.SEND_MESSAGE_V2, fields, bytes(128), opaque=opaque)


def _by_key(key: str, begin_ms: int, end_ms: int, *, is_unique: bool = False) -> bytes:
    fields = {
        "beginTimestamp": str(begin_ms),
        "endTimestamp": str(end_ms),
        "key": key,
        "maxNum": "32",
        "topic": TOPIC,
        **({"_UNIQUE_KEY_QUERY": "true"} if is_unique else {}),
    }
    return frames.request(RequestCode.QUERY_MESSAGE, fields)


def _by_time(queue_id: int, timestamp_ms: int) -> bytes:
    fields = {"queueId": str(queue_id), "timestamp": str(timestamp_ms), "topic": TOPIC}
    return frames.request(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, fields)


def _commit(queue_id: int, queue_offset: int) -> bytes:
    fields = {
        "commitOffset": str(queue_offset),
        "consumerGroup": "bench-consumer",
        "queueId": str(queue_id),
        "topic": TOPIC,
    }
    return frames.request(RequestCode.UPDATE_CONSUMER_OFFSET, fields)


def requests_of(case: str, filled: Filled) -> list[bytes]:
    """Return requests of a case, always the same ones."""
    rng = random.Random(21)
    span_ms = filled.end_ms - filled.begin_ms
    requests = []
    for number in range(_REQUESTS):
        some = rng.randrange(filled.count)
        queue = {"queueId": str(some % QUEUES), "topic": TOPIC}
        match case:
            case "key":
                request = _by_key(f"k{some}", 0, filled.end_ms + 1000)
            case "unique_key":
                request = _by_key(f"7F000001{some:024X}", 0, (1 << 63) - 1, is_unique=True)
            case "key_missing":
                begin_ms = filled.begin_ms + rng.randrange(max(span_ms - 2000, 1))
                request = _by_key(f"none{number}", begin_ms, begin_ms + 2000)
            case "time":
                begin_ms = filled.begin_ms + rng.randrange(span_ms)
                request = _by_time(some % QUEUES, begin_ms)
            case "id":
                place = filled.physical_offsets[some % len(filled.physical_offsets)]
                request = frames.request(
                    RequestCode.VIEW_MESSAGE_BY_ID, {"offset": str(place), "topic": TOPIC}
                )
            case "max_offset":
                request = frames.request(RequestCode.GET_MAX_OFFSET, queue)
            case "min_offset":
                request = frames.request(RequestCode.GET_MIN_OFFSET, queue)
            case "commit":
                request = _commit(some % QUEUES, some // QUEUES)
            case "send":
                request = frames.send("bench-lone", some % QUEUES, bytes(128))
        requests.append(request)
    return requests


CASES = {
    "key": 0,
    "unique_key": 0,
    "key_missing": 22,
    "time": 0,
    "id": 0,
    "max_offset": 0,
    "min_offset": 0,
    "commit": 0,
    "send": 0,
}
"""Cases and the codes of their replies."""


def _measure(
    target: Target, requests: list[bytes], reply_code: int, seconds: float
) -> dict[str, Any]:
    """Send requests one after another; return latency, and the broker's CPU time of each."""
    success = b'{"code":%d,' % reply_code
    with _socket(target.address) as connection:
        for request in requests[: len(requests) // 4]:
            _ask(connection, request)
        latencies_ns = []
        before, end_ns = Usage.of(target.pid), time.perf_counter_ns() + int(seconds * 1e9)
        start_ns = now_ns = time.perf_counter_ns()
        while now_ns < end_ns:
            reply = _ask(connection, requests[len(latencies_ns) % len(requests)])
            then_ns, now_ns = now_ns, time.perf_counter_ns()
            latencies_ns.append(now_ns - then_ns)
            assert reply.startswith(success, 8), reply[:200]
        cpu_s = Usage.of(target.pid).cpu_s - before.cpu_s
    return {
        "per_s": round(len(latencies_ns) / (now_ns - start_ns) * 1e9),
        "broker_cpu_us": round(cpu_s / len(latencies_ns) * 1e6, 1),
        **percentiles(latencies_ns),
    }


@contextlib.contextmanager
def _socket(address: str) -> Iterator[socket.socket]:
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        yield connection


def _ask(connection: socket.socket, request: bytes) -> bytes:
    connection.sendall(request)
    data = connection.recv(1 << 20)
    while len(data) < 4 or len(data) < 4 + _HEAD.unpack_from(data)[0]:
        data += connection.recv(1 << 20)
    return data


def run(folder: Path, quick: bool) -> dict[str, object]:
    """Measure each case; quick: 10 index files instead of 50, once, about 60 s."""
    repeats, seconds, files = (1, 1.5, 10) if quick else (3, 2.5, 50)
    count = files * INDEX_ENTRIES // _ENTRIES_OF_MESSAGE
    settings = {"maxIndexNum": INDEX_ENTRIES, "maxHashSlotNum": INDEX_ENTRIES}
    results: dict[str, object] = {"index_files": files, "messages": count}
    with targets.brokers(folder / NAME, settings) as brokers:
        targets.warm_up(brokers, 3.0 if quick else 7.0)
        filled = {broker.name: fill(broker, count) for broker in brokers}
        for case, reply_code in CASES.items():
            requests = {name: requests_of(case, stored) for name, stored in filled.items()}
            for broker in brokers:  # Java compiles the code of the case
                _measure(broker, requests[broker.name], reply_code, 2 * seconds)
            results[case] = targets.measure(
                brokers,
                repeats,
                lambda broker, code=reply_code, each=requests: _measure(  # type: ignore[misc]
                    broker, each[broker.name], code, seconds
                ),
            )
    return results
