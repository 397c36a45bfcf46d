"""A client of the 5.x service that speaks HTTP/2 with header blocks that were made before.

Requests are those of the SDK for Go: header blocks with another request id, date and deadline for
each call; a message has its own id. A connection carries the calls of one client.
"""

import itertools
import socket
import time
from collections import deque
from collections.abc import Sequence

from benchmarks.grpc_unary import CYCLE, HEAD, HELLO, blocks
from reput.grpc.wire import protobuf
from reput.grpc.wire.grpc_messages import METHODS, SERVICE, ClientType, DigestType, Encoding

Settings = dict[str, object]
BROKER = {"name": "broker-a"}
_GROUP_KEY = "bench-key"


def producer_settings(topic: str) -> Settings:
    """Return the Settings of a producer."""
    return {
        "client_type": int(ClientType.PRODUCER),
        "request_timeout": {"seconds": 3},
        "publishing": {"topics": [{"name": topic}], "validate_message_type": True},
    }


def consumer_settings(topic: str, group: str) -> Settings:
    """Return the Settings of a simple consumer."""
    every = {"topic": {"name": topic}, "expression": {"type": 1, "expression": "*"}}
    return {
        "client_type": int(ClientType.SIMPLE_CONSUMER),
        "request_timeout": {"seconds": 3},
        "subscription": {
            "group": {"name": group},
            "subscriptions": [every],
            "long_polling_timeout": {"seconds": 5},
        },
    }


class SendBodies:
    """The messages of SendMessage requests, each with its own message id.

    Args:
        topic: Name of the topic.
        body_bytes: Size of a body.
        client: Number of the client, which is part of the ids.
    """

    def __init__(self, topic: str, body_bytes: int, client: int) -> None:
        self._client = client
        self._numbers = itertools.count()
        mark = "0" * 34
        message = {
            "topic": {"name": topic},
            "user_properties": {"source": "bench"},
            "system_properties": {
                "tag": "bench",
                "keys": [_GROUP_KEY],
                "message_id": mark,
                "body_digest": {"type": int(DigestType.CRC32), "checksum": "89ABCDEF"},
                "body_encoding": int(Encoding.IDENTITY),
                "message_type": 1,
                "born_timestamp": {"seconds": 1_790_000_000, "nanos": 123_456_789},
                "born_host": "bench-host",
            },
            "body": bytes(range(128)) * (body_bytes // 128),
        }
        encoded = protobuf.encode(METHODS["SendMessage"].request, {"messages": [message]})
        self._before, _, self._after = encoded.partition(mark.encode())

    def next(self) -> bytes:
        """Return the next request."""
        number = f"01{self._client:012X}{next(self._numbers):020X}".encode()
        return b"%b%b%b" % (self._before, number, self._after)


class GrpcLoad:
    """A connection.

    Args:
        address: ``host:port`` of the server.
        methods: Names of the methods that it calls, besides Telemetry.
        sdk: ``go`` or ``python``: the form of the header blocks.
    """

    _clients = itertools.count()

    def __init__(self, address: str, *methods: str, sdk: str = "go") -> None:
        host, _, port = address.rpartition(":")
        self.socket = socket.create_connection((host, int(port)))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.sendall(HELLO)
        self.latencies_us: list[float] = []
        """Time of each unary call, in microseconds."""
        self.answered: deque[tuple[str, list[bytes]]] = deque()
        """Method and messages of the calls that have ended."""
        number = next(self._clients)
        self._blocks = {
            name: blocks(sdk, f"/{SERVICE}/{name}", number, count)
            for name, count in (("Telemetry", 1), *((name, CYCLE) for name in methods))
        }
        self._stream_id = 1
        self._number = 0
        self._method = ""
        self._open: dict[int, tuple[str, float, list[bytes]]] = {}
        self._kept = b""

    def call(self, method: str, messages: Sequence[bytes], *, is_end: bool = True) -> int:
        """Call a method, once for each message, in one write; return the last stream's number."""
        pieces = []
        now = time.perf_counter()
        made = self._blocks[method]
        if method != self._method:
            # Blocks are those of a cycle of one method, which begins with an empty table.
            self._method, self._number = method, 0
        for message in messages:
            block = made[self._number % len(made)]
            self._number += 1
            stream_id, self._stream_id = self._stream_id, self._stream_id + 2
            size = len(message)
            self._open[stream_id] = (method, now, [])
            pieces += (
                HEAD.pack(len(block) << 8 | 1, 4, stream_id),
                block,
                HEAD.pack((size + 5) << 8, is_end, stream_id),
                b"\0" + size.to_bytes(4),
                message,
            )
        self.socket.sendall(b"".join(pieces))
        return stream_id

    def receive(self) -> int:
        """Read once; return the number of calls that have ended."""
        data = self._kept + self.socket.recv(1 << 18)
        if not data:
            raise ConnectionError("the server has closed the connection")
        position, end, ended = 0, len(data), 0
        now = time.perf_counter()
        unpack = HEAD.unpack_from
        while end - position >= 9:
            size_and_kind, flags, stream_id = unpack(data, position)
            begin = position + 9
            stop = begin + (size_and_kind >> 8)
            if stop > end:
                break
            kind = size_and_kind & 0xFF
            if kind == 0:
                call = self._open.get(stream_id)
                if call is not None:
                    call[2].append(data[begin:stop])
            elif kind == 1 and flags & 1:
                method, sent_at, pieces = self._open.pop(stream_id)
                self.latencies_us.append((now - sent_at) * 1e6)
                self.answered.append((method, pieces))
                ended += 1
            elif kind in (3, 7):
                raise RuntimeError(f"the server refuses: {data[position:stop]!r}")
            elif kind == 4 and not flags:
                self.socket.sendall(HEAD.pack(4, 1, 0))
            elif kind == 6 and not flags:
                self.socket.sendall(HEAD.pack(8 << 8 | 6, 1, 0) + data[begin:stop])
            position = stop
        self._kept = data[position:]
        return ended

    def begin_telemetry(self, settings: Settings) -> None:
        """Open the Telemetry stream, and wait for the server's answer."""
        command = protobuf.encode(METHODS["Telemetry"].request, {"settings": settings})
        stream_id = self.call("Telemetry", [command], is_end=False)
        self.socket.settimeout(20)
        while not self._open[stream_id][2]:
            self.receive()
        self._open[stream_id] = ("Telemetry", 0.0, [])


def messages_of(pieces: Sequence[bytes]) -> list[bytes]:
    """Return the messages in the data of a reply."""
    data, position = b"".join(pieces), 0
    messages = []
    while position < len(data):
        stop = position + 5 + int.from_bytes(data[position + 1 : position + 5])
        messages.append(data[position + 5 : stop])
        position = stop
    return messages
