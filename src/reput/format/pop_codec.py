"""What pop consumption writes down: handles, the infos of a reply, checkpoints and acks.

A pop takes messages of a queue for a while. What it took is a *checkpoint*: a start in the queue,
and the distance of each message from there. The client gets a *handle* per message, which names the
checkpoint; whoever has it may acknowledge the message, or change how long others do not see it.
Checkpoints and acks lie as JSON in the revive topic.
Source: rocketmq 5.5.0 ``ExtraInfoUtil``, ``PopCheckPoint``, ``AckMsg``, ``BatchAckMsg``.
"""

import base64
import functools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import msgspec

from reput import limits
from reput.errors import InvalidBody, InvalidHeader
from reput.format import bodies, java, names
from reput.format.bodies import Body

ORDERED_REVIVE_QUEUE = 999
"""Revive queue in handles of messages that were taken in order: they have no checkpoint."""
_LONG_LETTERS_MAX = 20
_LONG_END = 1 << 63
_TOLD_MAX = 200
"""Characters of what a client sent that an error repeats."""
MESSAGES_MAX = 32
"""Messages of a checkpoint at most: each is a bit of an int."""
RECORD_BYTES_MAX = 16 * 1024
"""Longest record of the revive topic that is read: names take some hundred bytes."""

CHECKPOINT_TAG = "ck"
ACK_TAG = "ack"
BATCH_ACK_TAG = "bAck"

NORMAL = "0"
RETRY = "1"
RETRY_V2 = "2"


def kind_of(topic: str) -> str:
    """Return the mark of a topic in handles and infos: 0 normal, 1 retry, 2 retry of 5.x."""
    if not names.is_retry_topic(topic):
        return NORMAL
    return RETRY_V2 if "+" in topic else RETRY


def topic_of(kind: str, topic: str, group: str) -> str:
    """Return the topic that a mark means of what a group consumes.

    Raises:
        InvalidBody: The mark is unknown.
    """
    if kind == NORMAL:
        return topic
    if kind == RETRY:
        return names.pop_retry_topic(topic, group)
    if kind == RETRY_V2:
        return names.pop_retry_topic_v2(topic, group)
    raise InvalidBody(f"r is {kind!r}; allowed: 0, 1, 2")


# --- handles ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Handle:
    """What names a message that a client holds. Times are ms since the epoch."""

    start_offset: int
    """Queue offset that the checkpoint starts at."""
    pop_ms: int
    invisible_ms: int
    revive_queue_id: int
    kind: str
    broker_name: str
    queue_id: int
    queue_offset: int
    """The message's."""

    def __str__(self) -> str:
        return (
            f"{self.start_offset} {self.pop_ms} {self.invisible_ms} {self.revive_queue_id} "
            f"{self.kind} {self.broker_name} {self.queue_id} {self.queue_offset}"
        )

    @property
    def is_ordered(self) -> bool:
        """Whether the message was taken in order."""
        return self.revive_queue_id == ORDERED_REVIVE_QUEUE


def parse_handle(text: str, queue_id: int, queue_offset: int) -> Handle:
    """Return a handle; what a short one lacks is taken from the request.

    Args:
        text: Words separated by spaces; Java asks for the first six.
        queue_id: Of the request.
        queue_offset: Of the request.

    Raises:
        InvalidHeader: Words are missing, or no numbers.
    """
    words = text.split(" ")
    if len(words) < 6:
        raise InvalidHeader(
            f"extraInfo {text[:_TOLD_MAX]!r} has {len(words)} words; they are: start offset, pop "
            "time, invisible time, revive queue, 0 or 1 for a retry topic, broker name"
        )
    try:
        start_offset, pop_ms, invisible_ms, revive_queue_id = map(_long, words[:4])
    except ValueError as error:
        raise InvalidHeader(f"extraInfo {text[:_TOLD_MAX]!r}: {error}") from error
    return Handle(
        start_offset, pop_ms, invisible_ms, revive_queue_id, words[4], words[5], queue_id,
        queue_offset,
    )  # fmt: skip


def _long(word: str) -> int:
    """Return the number that a word says, as Java's ``Long.parseLong``. Raises ``ValueError``."""
    # Long words are refused unread: what ``int`` takes for them grows with their square.
    if len(word) <= _LONG_LETTERS_MAX and -_LONG_END <= (number := int(word)) < _LONG_END:
        return number
    raise ValueError(f"{word[:_LONG_LETTERS_MAX]!r} is no 64-bit number")


# --- infos of a reply -------------------------------------------------------------


def start_info(topic: str, queue_id: int, start_offset: int) -> str:
    """Return where the checkpoint of a queue starts; those of a reply are joined by ``;``."""
    return f"{kind_of(topic)} {queue_id} {start_offset}"


def message_info(topic: str, queue_id: int, queue_offsets: Iterable[int]) -> str:
    """Return which messages of a queue a reply has; those of a reply are joined by ``;``."""
    offsets = ",".join([f"{one}" for one in queue_offsets])  # of all ways the quickest
    return f"{kind_of(topic)} {queue_id} {offsets}"


def order_info(topic: str, queue_id: int, counts: Sequence[tuple[int, int]], least: int) -> str:
    """Return how often messages were taken in order before; those of a reply are joined by ``;``.

    Args:
        topic: Of the messages.
        queue_id: Of the messages.
        counts: Queue offset and how often, of those that were.
        least: How often each of them was at least.
    """
    kind = kind_of(topic)
    infos = [f"{kind} qo{queue_id}%{offset} {count}" for offset, count in counts]
    return ";".join([*infos, f"{kind} {queue_id} {least}"])


# --- records of the revive topic --------------------------------------------------


class CheckpointRecord(msgspec.Struct, kw_only=True):
    """A checkpoint, as ``ck`` records of the revive topic hold it."""

    bit_map: int = msgspec.field(name="bm", default=0)
    """Bit i: message i was acknowledged; 0 on disk."""
    broker_name: str | None = msgspec.field(name="bn", default=None)
    group: str = msgspec.field(name="c")
    diffs: list[int] | None = msgspec.field(name="d", default=None)
    """Of each message, its distance from the start; None: they follow each other."""
    invisible_ms: int = msgspec.field(name="it")
    message_count: int = msgspec.field(name="n")
    pop_ms: int = msgspec.field(name="pt")
    queue_id: int = msgspec.field(name="q")
    revive_offset: int = msgspec.field(name="ro", default=0)
    start_offset: int = msgspec.field(name="so")
    is_suspended: bool = msgspec.field(name="sp", default=False)
    """The next delivery does not count as an attempt (5.5)."""
    topic: str = msgspec.field(name="t")

    @property
    def queue_offsets(self) -> list[int]:
        """The messages' queue offsets; bit i is the i-th."""
        distances = self.diffs or range(self.message_count)
        return [self.start_offset + one for one in distances]

    @property
    def is_possible(self) -> bool:
        """Whether a broker may have written it."""
        diffs = self.diffs or []
        times = (self.pop_ms, self.invisible_ms)
        return (
            0 <= self.message_count <= MESSAGES_MAX
            and len(diffs) <= MESSAGES_MAX
            and all(0 <= one <= _OFFSET_MAX for one in diffs)
            and all(0 <= one <= _TIME_MS_MAX for one in times)
            and _is_place(self.topic, self.group, self.queue_id, self.start_offset)
        )


class AckRecord(msgspec.Struct, kw_only=True):
    """An acknowledgement of one message (``ack``) or several (``bAck``)."""

    ack_offset: int = msgspec.field(name="ao", default=-1)
    ack_offsets: list[int] = msgspec.field(name="aol", default_factory=list)
    broker_name: str | None = msgspec.field(name="bn", default=None)
    group: str = msgspec.field(name="c")
    pop_ms: int = msgspec.field(name="pt")
    queue_id: int = msgspec.field(name="q")
    start_offset: int = msgspec.field(name="so")
    topic: str = msgspec.field(name="t")

    @property
    def queue_offsets(self) -> list[int]:
        """The queue offsets of the messages that are acknowledged."""
        return self.ack_offsets or ([self.ack_offset] if self.ack_offset >= 0 else [])

    @property
    def is_possible(self) -> bool:
        """Whether a broker may have written it."""
        return (
            len(self.ack_offsets) <= MESSAGES_MAX
            and self.ack_offset <= _OFFSET_MAX
            and all(0 <= one <= _OFFSET_MAX for one in self.ack_offsets)
            and 0 <= self.pop_ms <= _TIME_MS_MAX
            and _is_place(self.topic, self.group, self.queue_id, self.start_offset)
        )


_OFFSET_MAX = 1 << 62
_TIME_MS_MAX = 1 << 60
"""Of a time, and of how long it is; their sums fit a long."""


def _is_place(topic: str, group: str, queue_id: int, start_offset: int) -> bool:
    """Whether there may be such a queue, a group that reads it, and a place in it."""
    return (
        0 < len(group) <= names.FOLDER_BYTES_MAX
        and names.is_folder_name(topic)
        and 0 <= queue_id <= names.QUEUE_ID_MAX
        and 0 <= start_offset <= _OFFSET_MAX
    )


_ENCODER = msgspec.json.Encoder()
_R = TypeVar("_R", CheckpointRecord, AckRecord)
_CHECKPOINTS = msgspec.json.Decoder(CheckpointRecord, strict=False)
_ACKS = msgspec.json.Decoder(AckRecord, strict=False)


def encode(value: CheckpointRecord | AckRecord) -> bytes:
    """Return the body of a record of the revive topic."""
    return _ENCODER.encode(value)


@functools.lru_cache(maxsize=4096)
def _checkpoint_template(broker_name: str, group: str, topic: str) -> bytes:
    """Return the JSON of checkpoints but for their numbers, to be filled in."""
    texts = [_ENCODER.encode(one).replace(b"%", b"%%") for one in (broker_name, group, topic)]
    return (
        b'{"bm":0,"bn":%b,"c":%b,"d":[%%b],"it":%%d,"n":%%d,"pt":%%d,"q":%%d,"ro":0,"so":%%d,'
        b'"sp":%%b,"t":%b}' % tuple(texts)
    )


@functools.lru_cache(maxsize=4096)
def checkpoint_ends(broker_name: str, group: str, topic: str) -> tuple[bytes, bytes]:
    """Return the JSON of checkpoints up to the distances, and what stands behind the start.

    The kernel ``take`` writes what is between them.
    """
    texts = [_ENCODER.encode(one) for one in (broker_name, group, topic)]
    return b'{"bm":0,"bn":%b,"c":%b,"d":[' % (texts[0], texts[1]), b',"sp":false,"t":%b}' % texts[2]


_FOLLOWING = [b",".join(b"%d" % one for one in range(count)) for count in range(MESSAGES_MAX + 1)]
"""Distances of messages from the start, where they follow it and each other; by their number."""


def encode_checkpoint(
    broker_name: str,
    group: str,
    topic: str,
    queue_id: int,
    start_offset: int,
    queue_offsets: Sequence[int],
    pop_ms: int,
    invisible_ms: int,
    *,
    is_suspended: bool = False,
) -> bytes:
    """Return what ``encode`` does of a ``CheckpointRecord``, for the many that pops make."""
    count = len(queue_offsets)
    if isinstance(queue_offsets, range) and queue_offsets.start == start_offset:
        distances = _FOLLOWING[count]
    else:
        distances = b",".join(b"%d" % (one - start_offset) for one in queue_offsets)
    return _checkpoint_template(broker_name, group, topic) % (
        distances,
        invisible_ms,
        count,
        pop_ms,
        queue_id,
        start_offset,
        b"true" if is_suspended else b"false",
    )


def decode_checkpoint(body: bytes) -> CheckpointRecord:
    """Return the checkpoint of a ``ck`` record. Raises ``InvalidBody``."""
    return _possible(_CHECKPOINTS, body, "checkpoint")


def decode_ack(body: bytes) -> AckRecord:
    """Return the acknowledgement of an ``ack`` or ``bAck`` record. Raises ``InvalidBody``."""
    return _possible(_ACKS, body, "acknowledgement")


def _possible(decoder: "msgspec.json.Decoder[_R]", body: bytes, kind: str) -> _R:
    """Return a record of the revive topic: to older brokers clients could send one."""
    if len(body) > RECORD_BYTES_MAX:
        raise InvalidBody(f"no {kind}: {len(body)} bytes; allowed: at most {RECORD_BYTES_MAX}")
    try:
        found = decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidBody(f"no {kind}: {error}") from error
    if not found.is_possible:
        raise InvalidBody(
            f"no {kind} of a broker: a count is over {MESSAGES_MAX}, an offset, time or queue "
            f"cannot be, or a name is too long: {body[:200]!r}"
        )
    return found


# --- acks of many messages --------------------------------------------------------


class BatchAck(Body, kw_only=True):
    """Messages of one checkpoint that are acknowledged together, in 200151."""

    group: str = msgspec.field(name="c")
    topic: str = msgspec.field(name="t")
    """The one that was asked for; ``kind`` says which it is."""
    kind: str = msgspec.field(name="r")
    start_offset: java.Long = msgspec.field(name="so")
    queue_id: java.Long = msgspec.field(name="q")
    revive_queue_id: java.Long = msgspec.field(name="rq")
    pop_ms: java.Long = msgspec.field(name="pt")
    invisible_ms: java.Long = msgspec.field(name="it")
    bits: str = msgspec.field(name="b")
    """``BitSet.toByteArray`` in Base64: distances from the start."""

    @property
    def distances(self) -> int:
        """Bit i: the message ``i`` behind the start is one of them.

        Raises:
            InvalidBody: It is no Base64.
            LimitExceeded: They are more, or further away, than messages of a checkpoint can be.
        """
        span = len(self.bits) // 4 * 3 * 8 - _PADDING_BITS
        if span > limits.ACK_SPAN.maximum:
            limits.ACK_SPAN.check(span, "b")
        try:
            found = int.from_bytes(base64.b64decode(self.bits, validate=True), "little")
        except ValueError as error:
            raise InvalidBody(f"b is {self.bits[:_TOLD_MAX]!r}: {error}") from error
        if found.bit_length() > limits.ACK_SPAN.maximum:
            limits.ACK_SPAN.check(found.bit_length(), "b")
        if found.bit_count() > limits.ACK_MESSAGES.maximum:
            limits.ACK_MESSAGES.check(found.bit_count(), "b")
        return found


_PADDING_BITS = 2 * 8
"""Bits that the last four letters of Base64 may lack."""


def bit_numbers(bits: int) -> Iterator[int]:
    """Yield the numbers of the bits that are set, lowest first."""
    while bits:
        lowest = bits & -bits
        yield lowest.bit_length() - 1
        bits ^= lowest


class BatchAckBody(Body, kw_only=True):
    """Body of 200151."""

    broker_name: str | None = None
    acks: list[BatchAck] = []


_BATCH_ACKS = msgspec.json.Decoder(BatchAckBody, strict=False)


def decode_batch_ack(body: bytes) -> BatchAckBody:
    """Return the body of 200151, as ``bodies.decode`` does. Raises ``InvalidBody``."""
    try:
        return _BATCH_ACKS.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return bodies.decode(BatchAckBody, body, lenient_limit=limits.LENIENT_JSON_BYTES)
