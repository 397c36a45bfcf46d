"""Encodings of pop consumption: handles, the infos of a reply, checkpoints and acks.

A pop hides messages of a queue for a while. Its *checkpoint* holds a start offset in the queue and
the distance of each message from it. The client gets a *handle* per message, which names the
checkpoint; with it the client acknowledges the message or changes its invisible time. Checkpoints
and acks are stored as JSON in the revive topic.
Source: rocketmq 5.5.0 ``ExtraInfoUtil``, ``PopCheckPoint``, ``AckMsg``, ``BatchAckMsg``.
"""

import base64
import functools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import msgspec

from reput.errors import InvalidBody, InvalidHeader
from reput.format import bodies, java, limits, names
from reput.format.bodies import Body

ORDERED_REVIVE_QUEUE = 999
"""Revive queue id in handles of ordered pops, which have no checkpoint."""
_LONG_LETTERS_MAX = 20
_LONG_END = 1 << 63
_EXCERPT_MAX = 200
"""Maximum number of characters of client input in an error."""
MESSAGES_MAX = 32
"""Maximum number of messages of a checkpoint: each is a bit of an int."""
RECORD_BYTES_MAX = 16 * 1024
"""Maximum size of a record of the revive topic, in bytes; names take some hundred."""

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
    """Return the topic that a mark denotes for a topic and group.

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
    """Handle of a popped message. Times are ms since the epoch."""

    start_offset: int
    """Start offset of the checkpoint."""
    pop_ms: int
    invisible_ms: int
    revive_queue_id: int
    kind: str
    broker_name: str
    queue_id: int
    queue_offset: int
    """Queue offset of the message."""

    def __str__(self) -> str:
        return (
            f"{self.start_offset} {self.pop_ms} {self.invisible_ms} {self.revive_queue_id} "
            f"{self.kind} {self.broker_name} {self.queue_id} {self.queue_offset}"
        )

    @property
    def is_ordered(self) -> bool:
        """True for a message of an ordered pop."""
        return self.revive_queue_id == ORDERED_REVIVE_QUEUE


def parse_handle(text: str, queue_id: int, queue_offset: int) -> Handle:
    """Parse a handle; missing words are taken from the request.

    Args:
        text: Words separated by spaces; Java requires the first six.
        queue_id: Queue id of the request.
        queue_offset: Queue offset of the request.

    Raises:
        InvalidHeader: Words are missing or are not numbers.
    """
    words = text.split(" ")
    if len(words) < 6:
        raise InvalidHeader(
            f"extraInfo {text[:_EXCERPT_MAX]!r} has {len(words)} words; they are: start offset, "
            "pop time, invisible time, revive queue, 0 or 1 for a retry topic, broker name"
        )
    try:
        start_offset, pop_ms, invisible_ms, revive_queue_id = map(_long, words[:4])
    except ValueError as error:
        raise InvalidHeader(f"extraInfo {text[:_EXCERPT_MAX]!r}: {error}") from error
    return Handle(
        start_offset, pop_ms, invisible_ms, revive_queue_id, words[4], words[5], queue_id,
        queue_offset,
    )  # fmt: skip


def _long(word: str) -> int:
    """Parse a number as Java's ``Long.parseLong`` does. Raises ``ValueError``."""
    # Long words are refused unparsed: the time of ``int`` is quadratic.
    if len(word) <= _LONG_LETTERS_MAX and -_LONG_END <= (number := int(word)) < _LONG_END:
        return number
    raise ValueError(f"{word[:_LONG_LETTERS_MAX]!r} is no 64-bit number")


# --- infos of a reply -------------------------------------------------------------


def start_info(topic: str, queue_id: int, start_offset: int) -> str:
    """Return the start of a queue's checkpoint; a reply joins them by ``;``."""
    return f"{kind_of(topic)} {queue_id} {start_offset}"


def message_info(topic: str, queue_id: int, queue_offsets: Iterable[int]) -> str:
    """Return the queue offsets of a queue's messages; a reply joins these infos by ``;``."""
    offsets = ",".join([f"{queue_offset}" for queue_offset in queue_offsets])  # the fastest way
    return f"{kind_of(topic)} {queue_id} {offsets}"


def order_info(topic: str, queue_id: int, counts: Sequence[tuple[int, int]], least: int) -> str:
    """Return the delivery counts of an ordered pop; a reply joins these infos by ``;``.

    Args:
        topic: Topic of the messages.
        queue_id: Queue of the messages.
        counts: Queue offset and number of earlier deliveries, for messages that have any.
        least: Minimum of the numbers of all messages.
    """
    kind = kind_of(topic)
    infos = [f"{kind} qo{queue_id}%{offset} {count}" for offset, count in counts]
    return ";".join([*infos, f"{kind} {queue_id} {least}"])


# --- records of the revive topic --------------------------------------------------


class CheckpointRecord(msgspec.Struct, kw_only=True):
    """A checkpoint, as stored in ``ck`` records of the revive topic."""

    bit_map: int = msgspec.field(name="bm", default=0)
    """Bit i is set if message i was acknowledged; 0 on disk."""
    broker_name: str | None = msgspec.field(name="bn", default=None)
    group: str = msgspec.field(name="c")
    diffs: list[int] | None = msgspec.field(name="d", default=None)
    """Distance of each message from the start; None if they are consecutive."""
    invisible_ms: int = msgspec.field(name="it")
    message_count: int = msgspec.field(name="n")
    pop_ms: int = msgspec.field(name="pt")
    queue_id: int = msgspec.field(name="q")
    revive_offset: int = msgspec.field(name="ro", default=0)
    start_offset: int = msgspec.field(name="so")
    is_suspended: bool = msgspec.field(name="sp", default=False)
    """True if the next delivery is not counted as an attempt (5.5)."""
    topic: str = msgspec.field(name="t")

    @property
    def queue_offsets(self) -> list[int]:
        """Queue offsets of the messages, in the order of the bits."""
        distances = self.diffs or range(self.message_count)
        return [self.start_offset + distance for distance in distances]

    @property
    def is_possible(self) -> bool:
        """True if a broker can have written the record."""
        diffs = self.diffs or []
        times = (self.pop_ms, self.invisible_ms)
        return (
            0 <= self.message_count <= MESSAGES_MAX
            and len(diffs) <= MESSAGES_MAX
            and all(0 <= diff <= _OFFSET_MAX for diff in diffs)
            and all(0 <= time_ms <= _TIME_MS_MAX for time_ms in times)
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
        """Queue offsets of the acknowledged messages."""
        return self.ack_offsets or ([self.ack_offset] if self.ack_offset >= 0 else [])

    @property
    def is_possible(self) -> bool:
        """True if a broker can have written the record."""
        return (
            len(self.ack_offsets) <= MESSAGES_MAX
            and self.ack_offset <= _OFFSET_MAX
            and all(0 <= ack_offset <= _OFFSET_MAX for ack_offset in self.ack_offsets)
            and 0 <= self.pop_ms <= _TIME_MS_MAX
            and _is_place(self.topic, self.group, self.queue_id, self.start_offset)
        )


_OFFSET_MAX = 1 << 62
_TIME_MS_MAX = 1 << 60
"""Maximum of a time and of an interval, in ms; their sums fit a long."""


def _is_place(topic: str, group: str, queue_id: int, start_offset: int) -> bool:
    """Return whether topic, group, queue and offset are possible."""
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
    """Return a format string for the JSON of checkpoints, to be filled with numbers."""
    texts = [_ENCODER.encode(name).replace(b"%", b"%%") for name in (broker_name, group, topic)]
    return (
        b'{"bm":0,"bn":%b,"c":%b,"d":[%%b],"it":%%d,"n":%%d,"pt":%%d,"q":%%d,"ro":0,"so":%%d,'
        b'"sp":%%b,"t":%b}' % tuple(texts)
    )


@functools.lru_cache(maxsize=4096)
def checkpoint_ends(broker_name: str, group: str, topic: str) -> tuple[bytes, bytes]:
    """Return the JSON of checkpoints before the distances and after the start offset.

    The kernel ``pop`` writes the part in between.
    """
    texts = [_ENCODER.encode(name) for name in (broker_name, group, topic)]
    return b'{"bm":0,"bn":%b,"c":%b,"d":[' % (texts[0], texts[1]), b',"sp":false,"t":%b}' % texts[2]


_FOLLOWING = [b",".join(b"%d" % i for i in range(count)) for count in range(MESSAGES_MAX + 1)]
"""Distances of consecutive messages, by number of messages."""


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
    """Return the body of a ``ck`` record; faster than ``encode``."""
    count = len(queue_offsets)
    if isinstance(queue_offsets, range) and queue_offsets.start == start_offset:
        distances = _FOLLOWING[count]
    else:
        distances = b",".join(b"%d" % (each - start_offset) for each in queue_offsets)
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
    """Decode and validate a record of the revive topic: older brokers let clients send one."""
    if len(body) > RECORD_BYTES_MAX:
        raise InvalidBody(f"no {kind}: {len(body)} bytes; allowed: at most {RECORD_BYTES_MAX}")
    try:
        decoded = decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidBody(f"no {kind}: {error}") from error
    if not decoded.is_possible:
        raise InvalidBody(
            f"no {kind} of a broker: a count is over {MESSAGES_MAX}, an offset, time or queue "
            f"is impossible, or a name is too long: {body[:200]!r}"
        )
    return decoded


# --- acks of many messages --------------------------------------------------------


class BatchAck(Body, kw_only=True):
    """Messages of one checkpoint that 200151 acknowledges together."""

    group: str = msgspec.field(name="c")
    topic: str = msgspec.field(name="t")
    """Topic of the request; ``kind`` selects it or one of its retry topics."""
    kind: str = msgspec.field(name="r")
    start_offset: java.Long = msgspec.field(name="so")
    queue_id: java.Long = msgspec.field(name="q")
    revive_queue_id: java.Long = msgspec.field(name="rq")
    pop_ms: java.Long = msgspec.field(name="pt")
    invisible_ms: java.Long = msgspec.field(name="it")
    bits: str = msgspec.field(name="b")
    """Distances from the start: ``BitSet.toByteArray`` in Base64."""

    @property
    def distances(self) -> int:
        """Bit set of the messages' distances from the start.

        Raises:
            InvalidBody: ``bits`` is not Base64.
            LimitExceeded: More messages, or larger distances, than a checkpoint can have.
        """
        is_short = len(self.bits) <= _SHORT_BITS
        if not is_short:
            limits.ACK_SPAN.check(len(self.bits) // 4 * 3 * 8 - _PADDING_BITS, "b")
        try:
            bit_set = int.from_bytes(base64.b64decode(self.bits, validate=True), "little")
        except ValueError as error:
            raise InvalidBody(f"b is {self.bits[:_EXCERPT_MAX]!r}: {error}") from error
        if not is_short:
            limits.ACK_SPAN.check(bit_set.bit_length(), "b")
            limits.ACK_MESSAGES.check(bit_set.bit_count(), "b")
        return bit_set


_PADDING_BITS = 2 * 8
"""Number of bits that padding may take from the last four characters of Base64."""
_SHORT_BITS = min(limits.ACK_SPAN.maximum, limits.ACK_MESSAGES.maximum) // 8 // 3 * 4
"""Length of Base64 that cannot exceed a limit, characters."""


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
