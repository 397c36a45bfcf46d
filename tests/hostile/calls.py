"""Costly gRPC conversations: the material of hostile 5.x clients.

    request        a method, fields or entries or random bytes, a count and size of them
      -> message   plain, gzip, or damaged
      -> calls     a number of the same or of different ones, or messages of Telemetry streams
      -> frames    whole or split, with floods of other frames in between
      -> writes    all at once, or cut at any byte

``script`` returns what the connections of a round write, as ``attack.script`` does for remoting;
``attack.play`` writes it. Everything follows from seed and number.
"""

import functools
import gzip
import random
import zlib
from collections.abc import Callable, Iterator
from typing import Any

from hostile import attack, requests
from http2_peer import PREFACE, data as data_frame, ping
from reput.grpc.http2 import frames, hpack
from reput.grpc.http2.frames import FrameType, Setting
from reput.grpc.wire import protobuf
from reput.grpc.wire.grpc_messages import METHODS, SERVICE, ClientType

PAYLOAD_BYTES = 16_384
BANDWIDTH_BYTES = 4 << 20
"""Size of the calls of one kind."""
BOMB_BYTES = 8 << 20
"""Inflated size of the largest message that is accepted."""
Fields = list[tuple[bytes, bytes]]
Labelled = tuple[str, bytes]

HANDLES = (requests.HANDLE, f"{requests.HANDLE} 0", "", "x", "0 " * 50, "\u20ac" * 100)


# --- requests -----------------------------------------------------------------------------------


def acks(entries: int, handle: str = "x") -> dict[str, Any]:
    """Return an AckMessage."""
    return {
        "group": {"name": requests.GROUP},
        "topic": {"name": requests.TOPIC},
        "entries": [{"message_id": "1", "receipt_handle": handle}] * entries,
    }


def message(properties: int = 0, body: bytes = b"hostile", **system: Any) -> dict[str, Any]:
    """Return a message of a send."""
    return {
        "topic": {"name": requests.TOPIC},
        "user_properties": {f"k{number}": "" for number in range(properties)},
        "system_properties": {"message_id": "1", "message_type": 1, "born_host": "h", **system},
        "body": body,
    }


def sends(messages: int = 1, properties: int = 0, body: bytes = b"hostile") -> dict[str, Any]:
    """Return a SendMessage."""
    return {"messages": [message(properties, body)] * messages}


def receive(expression: str = "*", kind: int = 1, attempt_id: str = "a") -> dict[str, Any]:
    """Return a ReceiveMessage."""
    return {
        "group": {"name": requests.GROUP},
        "message_queue": {
            "topic": {"name": requests.TOPIC},
            "id": 0,
            "broker": {"name": requests.BROKER_NAME},
        },
        "filter_expression": {"type": kind, "expression": expression},
        "batch_size": 32,
        "invisible_duration": {"seconds": 10},
        "long_polling_timeout": {"nanos": 100_000_000},
        "attempt_id": attempt_id,
    }


def settings(subscriptions: int, *, expression: str = "*", topics: int = 0) -> dict[str, Any]:
    """Return a TelemetryCommand with settings: of a producer if it has topics."""
    if topics:
        names = [{"name": f"{requests.TOPIC}{number}"} for number in range(topics)]
        settings = {"client_type": int(ClientType.PRODUCER), "publishing": {"topics": names}}
        return {"settings": settings}
    entries = [
        {
            "topic": {"name": f"{requests.TOPIC}{number}"},
            "expression": {"type": 1, "expression": expression},
        }
        for number in range(subscriptions)
    ]
    subscription = {"group": {"name": requests.GROUP}, "subscriptions": entries}
    return {
        "settings": {
            "client_type": int(ClientType.SIMPLE_CONSUMER),
            "subscription": subscription,
        }
    }


def trace(size: int) -> dict[str, Any]:
    """Return a TelemetryCommand with the stacks of a client's threads."""
    return {"thread_stack_trace": {"nonce": "1", "thread_stack_trace": "x" * size}}


def lite(topics: int) -> dict[str, Any]:
    """Return a SyncLiteSubscription."""
    return {
        "action": 0,
        "topic": {"name": requests.LITE_TOPIC},
        "group": {"name": requests.LITE_GROUP},
        "lite_topic_set": [f"l{number}" for number in range(topics)],
    }


def heartbeat(fields: int) -> bytes:
    """Return the bytes of a Heartbeat whose group is there ``fields`` times."""
    return protobuf.encode(METHODS["Heartbeat"].request, {"group": {"name": "g"}}) * fields


def unknown_fields(count: int) -> bytes:
    """Return fields that no message has."""
    return b"\xf8\x07\x01" * count


def _terms(rng: random.Random, count: int) -> str:
    """Return an SQL92 expression that was hardly compiled before."""
    return f"a{rng.randrange(10**6)}=1 OR " * count + "a=1"


def _request(rng: random.Random) -> tuple[str, str, bytes]:
    """Return a description, a method, and a request of it."""
    many = rng.choice((1, 10, 300, 3_000, 7_000))
    name = rng.choice(sorted(METHODS))
    choices: list[tuple[str, str, Callable[[], Any]]] = [
        (f"{many} entries", "AckMessage", lambda: acks(many, rng.choice(HANDLES))),
        (f"{many} messages", "SendMessage", lambda: sends(many)),
        ("25000 properties", "SendMessage", lambda: sends(1, 25_000)),
        (f"body of {many} kB", "SendMessage", lambda: sends(1, 3, bytes(min(many, 5_000) << 10))),
        (f"{2 * many} groups", "Heartbeat", lambda: heartbeat(2 * many)),
        (f"{many} tags", "ReceiveMessage", lambda: receive("a||" * many + "a")),
        (f"{many} terms", "ReceiveMessage", lambda: receive(_terms(rng, many), 2)),
        (f"attempt of {many} kB", "ReceiveMessage", lambda: receive(attempt_id="x" * (many << 9))),
        (f"{many} lite topics", "SyncLiteSubscription", lambda: lite(many)),
        (f"{many} subscriptions", "Telemetry", lambda: settings(many)),
        (f"{many} topics", "Telemetry", lambda: settings(0, topics=many)),
        (
            f"subscription of {many} kB",
            "Telemetry",
            lambda: settings(1, expression="x" * many * 999),
        ),
        (f"stacks of {many} kB", "Telemetry", lambda: trace(many << 10)),
        (f"{many} unknown fields", name, lambda: unknown_fields(many)),
        (f"{many} zeros", name, lambda: bytes(many)),
        ("random bytes", name, lambda: rng.randbytes(rng.choice((10, 1_000, 60_000)))),
        ("nothing", name, lambda: b""),
    ]
    label, method, make = rng.choice(choices)
    request = make()
    if not isinstance(request, bytes):
        request = protobuf.encode(METHODS[method].request, request)
    if rng.random() < 0.1 and request:
        request = bytearray(request)
        for _ in range(rng.randint(1, 8)):
            request[rng.randrange(len(request))] = rng.randrange(256)
        label = f"{label}, damaged"
    return label, method, bytes(request)


@functools.lru_cache(16)
def bomb(size: int) -> bytes:
    """Return gzip that inflates to zeros of a size."""
    return gzip.compress(bytes(size), 9)


def packed(content: bytes) -> bytes:
    """Return gzip of a content."""
    return zlib.compress(content, 1, 31)


def padding(size: int) -> bytes:
    """Return a field that no message has, of a size."""
    return b"\xfa\x07" + _varint(size) + bytes(size)


def prefixed(content: bytes, flag: int = 0) -> bytes:
    """Return a message of gRPC."""
    return bytes((flag,)) + len(content).to_bytes(4, "big") + content


def _message(rng: random.Random, request: bytes) -> tuple[str, bytes, bytes]:
    """Return a description, the encoding, and a request as a message of gRPC."""
    kind = rng.choice(("plain", "plain", "gzip", "bomb", "bomb", "small bomb", "padded", "broken"))
    if kind == "plain":
        return "", b"identity", prefixed(request)
    if kind == "bomb":
        size = rng.choice((1 << 20, BOMB_BYTES - 1, BOMB_BYTES, BOMB_BYTES + 1, 64 << 20))
        return f"bomb of {size >> 20} MiB", b"gzip", prefixed(bomb(size), 1)
    if kind == "small bomb":
        return "bomb of 100 kB", b"gzip", prefixed(bomb(100_000), 1)
    if kind == "padded":  # the request is complete, and an unknown field makes it large
        content = packed(request + padding(4 << 20))
        return "padded to 4 MiB, gzip", b"gzip", prefixed(content, 1)
    content = packed(request)
    if kind == "broken":
        return "damaged gzip", b"gzip", prefixed(content[: len(content) // 2] + b"\0", 1)
    return "gzip", b"gzip", prefixed(content, 1)


def _varint(number: int) -> bytes:
    encoded = bytearray()
    while number > 127:
        encoded.append(number & 127 | 128)
        number >>= 7
    return bytes((*encoded, number))


# --- calls --------------------------------------------------------------------------------------


class Conversation:
    """The frames that one connection writes.

    Args:
        headers: Fields of each call, in addition to those of gRPC.
        client_id: Id of the client.
    """

    def __init__(self, *headers: tuple[bytes, bytes], client_id: bytes = b"hostile@grpc") -> None:
        self._encoder = hpack.Encoder()
        self._headers = headers
        self._client_id = client_id
        self._stream_id = -1

    @staticmethod
    def hello(window: int = 1 << 30) -> bytes:
        """Return the first frames of a connection."""
        size = frames.settings(((Setting.INITIAL_WINDOW_SIZE, window),))
        return b"".join((PREFACE, size, frames.window_update(0, 1 << 30)))

    def fields(self, method: str, encoding: bytes = b"identity") -> Fields:
        """Return the header fields of a call."""
        return [
            (b":method", b"POST"),
            (b":scheme", b"http"),
            (b":path", f"/{SERVICE}/{method}".encode()),
            (b":authority", b"localhost"),
            (b"te", b"trailers"),
            (b"content-type", b"application/grpc"),
            (b"grpc-encoding", encoding),
            (b"x-mq-client-id", self._client_id),
            (b"x-mq-language", b"JAVA"),
            *self._headers,
        ]

    def begin(self, fields: Fields) -> bytes:
        """Return the HEADERS of a new call."""
        self._stream_id += 2
        block = self._encoder.encode(tuple(fields))
        return frames.headers(self._stream_id, block)

    def data(self, content: bytes, *, is_end: bool = True) -> bytes:
        """Return the DATA of the latest call."""
        pieces = [
            content[begin : begin + PAYLOAD_BYTES]
            for begin in range(0, len(content), PAYLOAD_BYTES)
        ] or [b""]
        return b"".join(
            data_frame(self._stream_id, piece, is_end=is_end and number == len(pieces))
            for number, piece in enumerate(pieces, 1)
        )

    def call(self, method: str, content: bytes, encoding: bytes = b"identity") -> bytes:
        """Return a call with a message that has its prefix."""
        return self.begin(self.fields(method, encoding)) + self.data(content)


def many_calls(
    count: int, method: str, content: bytes, *, encoding: bytes = b"identity"
) -> Labelled:
    """Return a connection's bytes: the same call many times."""
    conversation = Conversation()
    calls = [conversation.call(method, content, encoding) for _ in range(count)]
    return f"{method} x {count}", Conversation.hello() + b"".join(calls)


def stream_of(count: int, content: bytes, *, encoding: bytes = b"identity") -> Labelled:
    """Return a connection's bytes: the same message many times in a Telemetry stream."""
    conversation = Conversation()
    begin = conversation.begin(conversation.fields("Telemetry", encoding))
    data = conversation.data(content * count, is_end=False)
    return f"Telemetry stream x {count}", Conversation.hello() + begin + data


def _calls(rng: random.Random, conversation: Conversation) -> Iterator[Labelled]:
    """Yield calls of one kind."""
    label, method, request = _request(rng)
    form, encoding, content = _message(rng, request)
    label = f"{method}: {label}, {form}" if form else f"{method}: {label}"
    count = rng.choice((1, 1, 10, 30, 100, 300, 2_000))
    count = max(1, min(count, BANDWIDTH_BYTES // (len(content) + 1)))
    if method == "Telemetry" and rng.random() < 0.7:
        yield f"{label}, a stream", conversation.begin(conversation.fields(method, encoding))
        for _ in range(count):
            yield label, conversation.data(content, is_end=False)
        if rng.random() < 0.5:
            yield "its end", conversation.data(b"")
        return
    same = rng.random() < 0.8
    left_bytes = BANDWIDTH_BYTES
    for _ in range(count):
        left_bytes -= len(content)
        if left_bytes < 0:
            return
        if not same:
            label, method, request = _request(rng)
            form, encoding, content = _message(rng, request)
        yield f"{label}, {form}" if form else label, conversation.call(method, content, encoding)


# --- other frames -------------------------------------------------------------------------------


def _literal(name: bytes, value: bytes, first: int = 0x40) -> bytes:
    """Return a field that becomes an entry of the header table."""
    size = hpack.encode_integer
    return (
        size(0, first, 0x3F) + size(len(name), 0, 0x7F) + name + size(len(value), 0, 0x7F) + value
    )


def header_floods(conversation: Conversation) -> dict[str, bytes]:
    """Return header blocks that are small or legal, and costly to decode, by their kind."""
    fields = conversation.fields("Heartbeat")
    plain = hpack.Encoder().encode(tuple(fields))
    huffman = b"\x40\x01a" + hpack.encode_integer(14_000, 0x80, 0x7F) + b"\0" * 14_000
    large = _literal(b"b", b"x" * 4_000)
    return {
        "entries that replace others": plain
        + b"".join(_literal(b"%d" % number, b"") for number in range(100)),
        "one entry many times": plain + large + b"\xbe" * 12_000,
        "a long string in Huffman": plain + huffman,
        "sizes of the table": b"\x3f\xe1\x1f\x20" * 4_000 + plain,
        "empty entries": plain + b"\x40\x01a\x00" * 3_500,
        "indices": plain + b"\x82" * 15_000,
    }


def blocks(count: int, kind: str) -> bytes:
    """Return a connection's bytes: calls with costly header blocks of one kind."""
    block = header_floods(Conversation())[kind]
    return Conversation.hello() + b"".join(
        frames.headers(number, block) + data_frame(number, is_end=True)
        for number in range(1, 2 * count, 2)
    )


def _flood(rng: random.Random, conversation: Conversation) -> Iterator[Labelled]:
    """Yield many frames of one kind."""
    count = rng.choice((50, 500, 5_000))
    stream_id = max(conversation._stream_id, 1)
    kind = rng.choice(
        (
            *("SETTINGS", "PING", "WINDOW_UPDATE", "PRIORITY", "empty DATA", "RST_STREAM"),
            *("CONTINUATION", "blocks", "blocks", "begun calls", "unknown frames"),
        )
    )
    if kind == "SETTINGS":
        sizes = ((Setting.HEADER_TABLE_SIZE, 0), (Setting.INITIAL_WINDOW_SIZE, 1 << 20)) * 1_300
        yield kind, frames.settings(sizes) * min(count, 50)
    elif kind == "PING":
        yield kind, ping() * count
    elif kind == "WINDOW_UPDATE":
        yield kind, frames.window_update(rng.choice((0, stream_id)), 1) * count
    elif kind == "PRIORITY":
        yield kind, frames.frame(FrameType.PRIORITY, 0, stream_id, b"\0\0\0\0\1") * count
    elif kind == "empty DATA":
        begin = conversation.begin(conversation.fields("Heartbeat"))
        yield kind, begin + data_frame(conversation._stream_id) * count
    elif kind == "RST_STREAM":
        for _ in range(min(count, 600)):
            begin = conversation.begin(conversation.fields("Heartbeat"))
            yield kind, begin + frames.rst_stream(conversation._stream_id, 8)
    elif kind == "CONTINUATION":
        conversation._stream_id += 2
        yield kind, frames.frame(FrameType.HEADERS, 0, conversation._stream_id)
        yield kind, frames.frame(FrameType.CONTINUATION, 0, conversation._stream_id) * count
    elif kind == "begun calls":
        for _ in range(count):
            yield kind, conversation.begin(conversation.fields("Heartbeat"))
    elif kind == "blocks":
        name, block = rng.choice(sorted(header_floods(conversation).items()))
        for _ in range(min(count, 500)):
            conversation._stream_id += 2
            yield (
                f"blocks: {name}",
                frames.headers(conversation._stream_id, block)
                + data_frame(conversation._stream_id, is_end=True),
            )
    else:
        yield kind, frames.frame(77, 0xFF, stream_id, rng.randbytes(30)) * count


# --- rounds -------------------------------------------------------------------------------------


def _connection(rng: random.Random, headers: Fields) -> Iterator[Labelled]:
    conversation = Conversation(*headers)
    yield "hello", Conversation.hello(rng.choice((1 << 30, 1 << 30, 65_535, 1, 0)))
    for _ in range(rng.randint(1, 4)):
        if rng.random() < 0.25:
            yield from _flood(rng, conversation)
        else:
            yield from _calls(rng, conversation)


def _joined(rng: random.Random, pieces: list[Labelled]) -> list[Labelled]:
    """Return the writes of a connection: as they are, all together, or cut anywhere."""
    way = rng.choice(("whole", "together", "together", "cut"))
    if way == "whole":
        return pieces
    data = b"".join(content for _, content in pieces)
    label = f"{len(pieces)} frames together: " + "; ".join(
        dict.fromkeys(label for label, _ in pieces)
    )
    if way == "together":
        return [(label, data)]
    cuts = sorted(rng.randrange(1, len(data)) for _ in range(rng.randint(1, 20)))
    return [
        (f"{label}, cut", data[begin:end])
        for begin, end in zip([0, *cuts], [*cuts, len(data)], strict=True)
        if begin < end
    ]


def script(seed: int | str, number: int, headers: Fields | None = None) -> list[attack.Script]:
    """Return what the connections of a round write.

    Args:
        seed: Seed of the run.
        number: Number of the round.
        headers: Fields of each call that a part of the connections sends: a signature.
    """
    rng = random.Random(f"grpc/{seed}/{number}")
    scripts = []
    for _ in range(rng.choice((1, 1, 2, 5, 20))):
        manners = rng.choice(attack.MANNERS)
        is_signed = headers and rng.random() < 0.5
        pieces = list(_connection(rng, headers if headers and is_signed else []))
        scripts.append(attack.Script(manners, _joined(rng, pieces)))
    return scripts
