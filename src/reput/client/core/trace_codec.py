r"""Traces: what clients write down of each message that they send or consume.

A trace message holds any number of lines; fields are separated by ``\x01`` and each line ends with
``\x02``. It can be found by the ids and keys of the messages that it tells of. A line::

    Pub            time | region | group | topic | id | tags | keys | broker | body bytes | ms
                   | type | offset id | success
    SubBefore      time | region | group | call | id | retries | keys
    SubAfter       call | id | ms | success | keys | outcome | time | group
    EndTransaction time | region | group | topic | id | tags | keys | broker | type | transaction
                   | state | asked by the broker
    Recall         time | region | group | topic | id | success

What is not there reads ``null``. Times are ms since the epoch. Source: rocketmq 4.9.7 and 5.5.0
``TraceDataEncoder``; lines of before 4.6, which lack their last fields, are read as well.
"""

import enum
from collections.abc import Callable, Iterable
from dataclasses import dataclass

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
    """``ConsumeReturnType`` of Java: how a listener ended."""

    SUCCESS = 0
    TIME_OUT = 1
    EXCEPTION = 2
    RETURNED_NULL = 3
    FAILED = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """A message was sent (Pub)."""

    time_ms: int
    region: str | None
    group: str
    topic: str
    message_id: str
    tags: str | None
    keys: str | None
    broker_address: str
    body_bytes: int
    """As sent: compressed, if it is."""
    cost_ms: int
    kind: MessageKind
    offset_message_id: str | None
    is_success: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Begun:
    """A listener was called with a message (SubBefore)."""

    time_ms: int
    region: str | None
    group: str
    call_id: str
    message_id: str
    retry_count: int
    keys: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Consumed:
    """A listener has returned (SubAfter)."""

    call_id: str
    """That of ``Begun``."""
    message_id: str
    cost_ms: int
    """Of the call, divided by its messages."""
    is_success: bool
    keys: str | None
    outcome: Outcome = Outcome.SUCCESS
    time_ms: int = 0
    """0: not told."""
    group: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionEnded:
    """A producer has told what became of a transaction (EndTransaction)."""

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
    """The broker had asked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recalled:
    """A producer has taken back a delayed message (Recall, 5.x)."""

    time_ms: int
    region: str | None
    group: str
    topic: str
    message_id: str
    is_success: bool


Trace = Sent | Begun | Consumed | TransactionEnded | Recalled


def encode(trace: Trace) -> str:
    """Return the line of a trace."""
    fields: tuple[object, ...]
    match trace:
        case Sent():
            fields = (
                "Pub", trace.time_ms, trace.region, trace.group, trace.topic, trace.message_id,
                trace.tags, trace.keys, trace.broker_address, trace.body_bytes, trace.cost_ms,
                int(trace.kind), trace.offset_message_id, trace.is_success,
            )  # fmt: skip
        case Begun():
            fields = (
                "SubBefore", trace.time_ms, trace.region, trace.group, trace.call_id,
                trace.message_id, trace.retry_count, trace.keys,
            )  # fmt: skip
        case Consumed():
            fields = (
                "SubAfter", trace.call_id, trace.message_id, trace.cost_ms, trace.is_success,
                trace.keys, int(trace.outcome), trace.time_ms, trace.group,
            )  # fmt: skip
        case TransactionEnded():
            fields = (
                "EndTransaction", trace.time_ms, trace.region, trace.group, trace.topic,
                trace.message_id, trace.tags, trace.keys, trace.broker_address, int(trace.kind),
                trace.transaction_id, trace.state, trace.is_check,
            )  # fmt: skip
        case Recalled():
            fields = (
                "Recall", trace.time_ms, trace.region, trace.group, trace.topic,
                trace.message_id, trace.is_success,
            )  # fmt: skip
    return FIELD_END.join(map(_text, fields)) + LINE_END


def _text(value: object) -> str:
    if value is None:
        return _NOTHING
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def keys_of(trace: Trace) -> list[str]:
    """Return what a trace is to be found by: the id of its message, and that message's keys."""
    keys = None if isinstance(trace, Recalled) else trace.keys
    return [trace.message_id, *props.split_keys(keys)]


def decode(text: str) -> list[Trace]:
    """Return the traces in a trace message's body.

    Lines of a kind that is not known are left out, as Java does.

    Raises:
        ValueError: A line has too few fields, or one that is no number where one should be.
    """
    traces: list[Trace] = []
    for line in text.split(LINE_END):
        kind, *fields = line.split(FIELD_END)
        reader = _READERS.get(kind)
        if reader is None:
            continue
        try:
            traces.append(reader(fields))
        except (IndexError, ValueError) as error:
            raise ValueError(f"trace line {line!r}: {error}") from error
    return traces


def _optional(text: str) -> str | None:
    return None if text in ("", _NOTHING) else text


def _sent(fields: list[str]) -> Sent:
    # Before 4.4.1 there was no offset id; some had the client's address at the end.
    has_offset_id = len(fields) > 12
    return Sent(
        time_ms=int(fields[0]),
        region=_optional(fields[1]),
        group=fields[2],
        topic=fields[3],
        message_id=fields[4],
        tags=_optional(fields[5]),
        keys=_optional(fields[6]),
        broker_address=fields[7],
        body_bytes=int(fields[8]),
        cost_ms=int(fields[9]),
        kind=MessageKind(int(fields[10])),
        offset_message_id=_optional(fields[11]) if has_offset_id else None,
        is_success=fields[12 if has_offset_id else 11] == "true",
    )


def _begun(fields: list[str]) -> Begun:
    return Begun(
        time_ms=int(fields[0]),
        region=_optional(fields[1]),
        group=fields[2],
        call_id=fields[3],
        message_id=fields[4],
        retry_count=int(fields[5]),
        keys=_optional(fields[6]),
    )


def _consumed(fields: list[str]) -> Consumed:
    has_group = len(fields) > 7
    return Consumed(
        call_id=fields[0],
        message_id=fields[1],
        cost_ms=int(fields[2]),
        is_success=fields[3] == "true",
        keys=_optional(fields[4]),
        outcome=Outcome(int(fields[5])) if len(fields) > 5 else Outcome.SUCCESS,
        time_ms=int(fields[6]) if has_group else 0,
        group=fields[7] if has_group else None,
    )


def _transaction_ended(fields: list[str]) -> TransactionEnded:
    return TransactionEnded(
        time_ms=int(fields[0]),
        region=_optional(fields[1]),
        group=fields[2],
        topic=fields[3],
        message_id=fields[4],
        tags=_optional(fields[5]),
        keys=_optional(fields[6]),
        broker_address=fields[7],
        kind=MessageKind(int(fields[8])),
        transaction_id=_optional(fields[9]),
        state=fields[10],
        is_check=fields[11] == "true",
    )


def _recalled(fields: list[str]) -> Recalled:
    return Recalled(
        time_ms=int(fields[0]),
        region=_optional(fields[1]),
        group=fields[2],
        topic=fields[3],
        message_id=fields[4],
        is_success=fields[5] == "true",
    )


_READERS: dict[str, Callable[[list[str]], Trace]] = {
    "Pub": _sent,
    "SubBefore": _begun,
    "SubAfter": _consumed,
    "EndTransaction": _transaction_ended,
    "Recall": _recalled,
}


@dataclass(frozen=True, slots=True)
class TraceMessage:
    """Traces that go together, as one message."""

    body: bytes
    keys: tuple[str, ...]


BODY_BYTES_MAX = 118_000
"""Beyond it a new message begins: Java's limit, 10,000 below what its producer of traces sends."""
KEYS_BYTES_MAX = 16_000
"""Likewise: half of what properties may be long."""


def pack(traces: Iterable[Trace]) -> list[TraceMessage]:
    """Return traces as messages, each not longer than brokers take (but for a single one)."""
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
