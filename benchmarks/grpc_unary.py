"""CPU time of a gRPC server per unary call: ours and grpcio's asyncio server, constant answers.

The client writes HTTP/2 frames with header blocks that were made before: as the SDK for Go sends
them (all fields in the table, Huffman), or the SDK for Python (names and values each time). Each
call has another request id. With ``pings``, it sends a PING for each reply, as those for Go and
Java do.
"""

import select
import socket
import struct
import subprocess
import sys
import time
import uuid
from pathlib import Path

from benchmarks.broker_process import Usage, cpu_seconds
from benchmarks.grpc_constant import PATH

NAME = "grpc_unary"
QUESTION = "what does a unary call cost the server, without a broker?"

HEAD = struct.Struct(">IBI")
CYCLE = 400
"""Calls after which the table is emptied, and the blocks are sent again."""
HELLO = (
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
    + HEAD.pack(6 << 8 | 4, 0, 0)
    + struct.pack(">HI", 4, 1 << 20)
    + HEAD.pack(4 << 8 | 8, 0, 0)
    + struct.pack(">I", (1 << 31) - 1 - 65_535)
)
_PING = HEAD.pack(8 << 8 | 6, 0, 0) + b"bandwdth"
_SECONDS = {False: 4.0, True: 1.0}


def _fields(number: int, path: str, client: int) -> list[tuple[str, str]]:
    # SDKs add the time that a receive may wait.
    deadline_us = 22_999_000 if path.endswith("ReceiveMessage") else 2_999_000
    fields = [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", path),
        (":authority", "127.0.0.1:8081"),
        ("content-type", "application/grpc"),
        ("user-agent", "grpc-go/1.60.1"),
        ("te", "trailers"),
        ("grpc-timeout", f"{deadline_us + 7 * number}u"),
        ("x-mq-language", "GO"),
        ("x-mq-client-version", "5.1.4"),
        ("x-mq-client-id", f"bench-host@1234@0@{client:08}"),
        ("x-mq-protocol", "v2"),
        ("x-mq-request-id", str(uuid.uuid5(uuid.NAMESPACE_DNS, str(number)))),
        ("x-mq-date-time", f"20261124T1622{number // 50:02}Z"),
    ]
    # A stream that stays open has no deadline.
    return fields if not path.endswith("Telemetry") else [*fields[:7], *fields[8:]]


def blocks(sdk: str, path: str = PATH, client: int = 0, count: int = CYCLE) -> list[bytes]:
    """Return the header blocks of a cycle of calls."""
    import hpack

    encoder = hpack.Encoder()
    made = []
    for number in range(count):
        headers: list[hpack.HeaderTuple] = []
        for name, value in _fields(number, path, client):
            is_kept = sdk == "go" or not name.startswith(("x-mq", "grpc-timeout"))
            kind = hpack.HeaderTuple if is_kept else hpack.NeverIndexedHeaderTuple
            headers.append(kind(name, value))
        made.append(encoder.encode(headers, huffman=sdk == "go"))
    made[0] = b"\x20\x3f\xe1\x1f" + made[0]  # begins with an empty table
    return made


class _Client:
    """A connection with a number of calls in flight."""

    def __init__(self, port: int, made: list[bytes], message: bytes, *, pings: bool) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.sendall(HELLO)
        self.replies = 0
        self._made = made
        self._body = b"\0" + len(message).to_bytes(4, "big") + message
        self._pings = pings
        self._number = 0
        self._kept = b""

    def send(self, count: int) -> None:
        """Send calls."""
        pieces = [_PING] * count if self._pings else []
        body = self._body
        for _ in range(count):
            block = self._made[self._number % CYCLE]
            stream_id = 2 * self._number + 1
            self._number += 1
            pieces += (
                HEAD.pack(len(block) << 8 | 1, 4, stream_id),
                block,
                HEAD.pack(len(body) << 8, 1, stream_id),
                body,
            )
        self.socket.sendall(b"".join(pieces))

    def receive(self) -> int:
        """Read; return the number of calls that have ended."""
        data = self._kept + self.socket.recv(1 << 18)
        position, end, ended = 0, len(data), 0
        while end - position >= 9:
            size_and_kind, flags, _ = HEAD.unpack_from(data, position)
            stop = position + 9 + (size_and_kind >> 8)
            if stop > end:
                break
            kind = size_and_kind & 0xFF
            if kind in (3, 7):
                raise RuntimeError(f"the server refuses: {data[position:stop]!r}")
            if kind == 4 and not flags:
                self.socket.sendall(HEAD.pack(4, 1, 0))
            elif kind == 6 and not flags:
                self.socket.sendall(HEAD.pack(8 << 8 | 6, 1, 0) + data[position + 9 : stop])
            elif kind == 1 and flags & 1:
                ended += 1
            position = stop
        self._kept = data[position:]
        self.replies += ended
        return ended


def _load(
    port: int, pid: int, sdk: str, window: int, connections: int, seconds: float, *, pings: bool
) -> dict[str, float]:
    """Return calls per second, and CPU time of the server per call, in microseconds."""
    made = blocks(sdk)
    clients = [_Client(port, made, bytes(218), pings=pings) for _ in range(connections)]
    by_socket = {client.socket: client for client in clients}
    for client in clients:
        client.send(window)

    def run(duration_s: float) -> float:
        begin = time.perf_counter()
        while (now := time.perf_counter()) - begin < duration_s:
            for ready in select.select(list(by_socket), [], [], 1)[0]:
                client = by_socket[ready]
                ended = client.receive()
                if ended:
                    client.send(ended)
        return now - begin

    run(seconds / 4)
    before, cpu = sum(client.replies for client in clients), cpu_seconds(pid)
    duration = run(seconds)
    calls = sum(client.replies for client in clients) - before
    cpu = cpu_seconds(pid) - cpu
    for client in clients:
        client.socket.close()
    return {"calls_per_s": round(calls / duration), "cpu_us": round(cpu / calls * 1e6, 1)}


def run(folder: Path, quick: bool) -> dict[str, object]:
    """Measure both servers."""
    results: dict[str, object] = {}
    for kind in ("own", "grpcio"):
        command = [sys.executable, "-m", "benchmarks.grpc_constant", kind]
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert process.stdin is not None
        assert process.stdout is not None
        port = int(process.stdout.readline())
        of_kind: dict[str, object] = {}
        for sdk, window, connections, pings in (
            ("go", 64, 1, False),
            ("go", 1, 1, False),
            ("go", 64, 4, False),
            ("python", 64, 1, False),
            ("go", 64, 1, True),
        ):
            name = f"{sdk}, {window} in flight, {connections} connections"
            name += ", pings" if pings else ""
            of_kind[name] = _load(
                port, process.pid, sdk, window, connections, _SECONDS[quick], pings=pings
            )
        of_kind["rss_mb"] = round(Usage.of(process.pid).rss_bytes / (1 << 20), 1)
        results[kind] = of_kind
        process.stdin.close()
        process.wait(10)
        process.stdout.close()
    return results
