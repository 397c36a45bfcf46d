r"""Traces: records that clients write of each message they send or consume.

A trace message holds any number of lines; fields are separated by ``\x01`` and each line ends with
``\x02``. Its keys are the ids and keys of the traced messages. Lines::

    Pub            time | region | group | topic | id | tags | keys | broker | body bytes | ms
                   | type | offset id | success
    SubBefore      time | region | group | call | id | retries | keys
    SubAfter       call | id | ms | success | keys | outcome | time | group
    EndTransaction time | region | group | topic | id | tags | keys | broker | type | transaction
                   | state | asked by the broker
    Recall         time | region | group | topic | id | success

Missing fields are ``null``. Times are ms since the epoch. Source: rocketmq 4.9.7 and 5.5.0
``TraceDataEncoder``; lines of versions before 4.6, which lack the last fields, are read too.
"""

import enum
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, get_type_hints

from reput.format import properties as props

FIELD_END = "\x01"
LINE_END = "\x02"
_NOTHING = "null"


class MessageKind(enum.IntEnum):
    """``MessageType`` of Java."""

    NORMAL = 0
    HALF = 1
    COMMIT = 2
    DELAY = 3
    ORDER = 4


class Outcome(enum.IntEnum):
    """``ConsumeReturnType`` of Java: outcome of a listener's call."""

    SUCCESS = 0
    TIME_OUT = 1
    EXCEPTION = 2
    RETURNED_NULL = 3
    FAILED = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """Trace of a send (Pub)."""

    time_ms: int
    region: str | None
    group: str
    topic: str
    message_id: str
    tags: str | None
    keys: str | None
    broker_address: str
    body_bytes: int
    """Size of the body as sent, compressed or not."""
    cost_ms: int
    kind: MessageKind
    offset_message_id: str | None = None
    is_success: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Begun:
    """Trace of the start of a listener's call (SubBefore)."""

    time_ms: int
    region: str | None
    group: str
    call_id: str
    message_id: str
    retry_count: int
    keys: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Consumed:
    """Trace of the end of a listener's call (SubAfter)."""

    call_id: str
    """``call_id`` of ``Begun``."""
    message_id: str
    cost_ms: int
    """Duration of the call divided by its messages, in ms."""
    is_success: bool
    keys: str | None
    outcome: Outcome = Outcome.SUCCESS
    time_ms: int = 0
    """Time in ms since the epoch; 0: not recorded."""
    group: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionEnded:
    """Trace of the end of a transaction (EndTransaction)."""

    time_ms: int
    region: str | None
    group: str
    topic: str
    message_id: str
    tags: str | None
    keys: str | None
    broker_address: str
    kind: MessageKind
    transaction_id: str | None
    state: str
    """``COMMIT_MESSAGE``, ``ROLLBACK_MESSAGE``, ``UNKNOW``."""
    is_check: bool
    """True if the broker had checked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recalled:
    """Trace of the recall of a delayed message (Recall, 5.x)."""

    time_ms: int
    region: str | None
    group: str
    topic: str
    message_id: str
    is_success: bool


Trace = Sent | Begun | Consumed | TransactionEnded | Recalled


_TYPES: dict[str, type[Trace]] = {
    "Pub": Sent,
    "SubBefore": Begun,
    "SubAfter": Consumed,
    "EndTransaction": TransactionEnded,
    "Recall": Recalled,
}
"""First field of a line to its type, whose fields follow in order."""

_NAMES = {kind: name for name, kind in _TYPES.items()}

_ABSENT: dict[type[Trace], tuple[frozenset[str], ...]] = {
    Sent: (frozenset({"offset_message_id"}),),
    Consumed: (frozenset({"time_ms", "group"}), frozenset({"outcome", "time_ms", "group"})),
}
"""Field counts of lines of older clients, longest first: before 4.4.1 there was no offset id.
Additional fields are ignored; some versions wrote the client's address there.
"""


def encode(trace: Trace) -> str:
    """Return the line of a trace."""
    values = (_text(getattr(trace, name)) for name in _READERS[type(trace)])
    return FIELD_END.join((_NAMES[type(trace)], *values)) + LINE_END


def _text(value: object) -> str:
    if value is None:
        return _NOTHING
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def keys_of(trace: Trace) -> list[str]:
    """Return the keys of a trace's message: the id and the keys of the traced message."""
    keys = None if isinstance(trace, Recalled) else trace.keys
    return [trace.message_id, *props.split_keys(keys)]


def decode(text: str) -> list[Trace]:
    """Return the traces in a trace message's body.

    Unknown kinds of lines are ignored, as in Java.

    Raises:
        ValueError: A line has too few fields or an invalid number.
    """
    traces: list[Trace] = []
    for line in text.split(LINE_END):
        name, *texts = line.split(FIELD_END)
        kind = _TYPES.get(name)
        if kind is None:
            continue
        try:
            traces.append(_trace(kind, texts))
        except ValueError as error:
            raise ValueError(f"trace line {line!r}: {error}") from error
    return traces


def _trace(kind: type[Trace], texts: list[str]) -> Trace:
    for absent in (frozenset[str](), *_ABSENT.get(kind, ())):
        readers = {name: read for name, read in _READERS[kind].items() if name not in absent}
        if len(texts) >= len(readers):
            pairs = zip(readers.items(), texts, strict=False)
            return kind(**{name: read(text) for (name, read), text in pairs})
    raise ValueError(f"{len(texts)} fields are too few")


def _optional(text: str) -> str | None:
    return None if text in ("", _NOTHING) else text


_READ: dict[object, Callable[[str], Any]] = {
    int: int,
    str: str,
    bool: "true".__eq__,
    str | None: _optional,
    MessageKind: lambda text: MessageKind(int(text)),
    Outcome: lambda text: Outcome(int(text)),
}
"""Type of a field to its parser."""
_READERS = {kind: {name: _READ[of] for name, of in get_type_hints(kind).items()} for kind in _NAMES}


@dataclass(frozen=True, slots=True)
class TraceMessage:
    """Traces packed into one message."""

    body: bytes
    keys: tuple[str, ...]


BODY_BYTES_MAX = 118_000
"""Maximum size of a message's body in bytes: Java's limit, 10,000 below that of its trace
producer."""
KEYS_BYTES_MAX = 16_000
"""Maximum size of a message's keys in bytes: half of the maximum of properties."""


def pack(traces: Iterable[Trace]) -> list[TraceMessage]:
    """Pack traces into messages within the limits; a single larger trace gets its own message."""
    messages: list[TraceMessage] = []
    lines: list[bytes] = []
    keys: dict[str, None] = {}
    body_bytes = keys_bytes = 0
    for trace in traces:
        line = encode(trace).encode()
        fresh = [key for key in keys_of(trace) if key not in keys]
        added = sum(len(key.encode()) + 1 for key in fresh)
        if lines and (
            body_bytes + len(line) > BODY_BYTES_MAX or keys_bytes + added > KEYS_BYTES_MAX
        ):
            messages.append(TraceMessage(b"".join(lines), tuple(keys)))
            lines, keys, body_bytes, keys_bytes = [], {}, 0, 0
            fresh = keys_of(trace)
            added = sum(len(key.encode()) + 1 for key in fresh)
        lines.append(line)
        body_bytes += len(line)
        keys_bytes += added
        keys.update(dict.fromkeys(fresh))
    if lines:
        messages.append(TraceMessage(b"".join(lines), tuple(keys)))
    return messages
