"""Messages of the client: to be sent, sent, received.

A producer takes a ``Message`` and returns a ``SendResult``. Consumers and queries return
``ReceivedMessage``: the bytes of the record, decoded on first access.
"""

import enum
import struct
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import InitVar, dataclass, field
from json import dumps as encode_json, loads as decode_json
from typing import Any, Self, TypeVar, overload

import msgspec

from reput.errors import CorruptRecord, InvalidBody, InvalidOption
from reput.format import (
    batch,
    java,
    message as records,
    message_id as ids,
    names,
    namespace,
    properties as props,
    sys_flag as flags,
)
from reput.format.bodies import MessageQueue
from reput.format.message import Host, StoredMessage

_UTF8_BYTES_MAX = 4
"""Maximum number of UTF-8 bytes per character."""


@dataclass(slots=True)
class Message:
    """A message to be sent. Sending does not change it, so that it can be sent again.

    Raises:
        InvalidOption: Tags or keys are no texts, there is a body and ``json`` as well, or the value
            is not one of JSON.
    """

    topic: str
    body: bytes = b""
    tags: str | None = None
    """Tag by which consumers select: one, without ``||``."""
    keys: str | Sequence[str] = ()
    """Keys for queries; without spaces."""
    properties: Mapping[str, str] = field(default_factory=dict)
    """Other properties. ``UNIQ_KEY`` here replaces the generated message id."""
    delay_level: int = 0
    """Delay level of the broker, from 1 (1 s by default) to 18 (2 h); 0: none."""
    flag: int = 0
    """32 bits for the application."""
    wait: bool = True
    """True if the broker replies only after the configured flush and replication."""
    delay_ms: int = 0
    """Delay until delivery, in ms; 0: none. Requires a 5.x broker, which delivers at the next
    second. Older brokers, and those without a timer, deliver at once.
    """
    deliver_at_ms: int = 0
    """Time of delivery, in ms since the epoch; 0 or a past time: at once. Otherwise as
    ``delay_ms``."""
    json: InitVar[object] = field(default=None, kw_only=True)
    """Value whose JSON, in UTF-8, is the body; instead of ``body``. None: not given."""

    def __post_init__(self, json: object) -> None:
        """Check the types of tags and keys, and make the body of a JSON value."""
        if self.tags is not None and not isinstance(self.tags, str):
            raise InvalidOption("tags", self.tags, "a text: a message has one tag")
        keys: object = self.keys
        if not isinstance(keys, (str, Iterable)) or (
            isinstance(keys, Sequence) and not all(isinstance(key, str) for key in keys)
        ):
            raise InvalidOption("keys", keys, "a text, or several")
        if json is None:
            return
        if self.body:
            raise InvalidOption("json", json, "nothing, where body= is given as well")
        try:
            text = encode_json(json, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
            self.body = text.encode()
        except (TypeError, ValueError, RecursionError) as error:
            raise InvalidOption("json", type(json).__name__, f"a value of JSON: {error}") from error


class SendStatus(enum.StrEnum):
    """Durability of a stored message, compared with the broker's configuration."""

    SEND_OK = "SEND_OK"
    FLUSH_DISK_TIMEOUT = "FLUSH_DISK_TIMEOUT"
    FLUSH_SLAVE_TIMEOUT = "FLUSH_SLAVE_TIMEOUT"
    SLAVE_NOT_AVAILABLE = "SLAVE_NOT_AVAILABLE"


class SendResult(msgspec.Struct, frozen=True):
    """Position and ids of a stored message."""

    status: SendStatus
    message_id: str
    """Unique key; those of a batch are separated by commas."""
    offset_message_id: str
    """Offset id; those of a batch are separated by commas."""
    queue: MessageQueue
    queue_offset: int
    """Queue offset; that of the first message of a batch, whose offsets are consecutive."""
    transaction_id: str | None = None
    recall_handle: str | None = None
    """Handle for ``Producer.recall`` while the message waits for its time."""

    @property
    def message_ids(self) -> list[str]:
        """Unique keys, in the order of the batch."""
        return self.message_id.split(",")

    @property
    def offset_message_ids(self) -> list[str]:
        """Offset ids, in the order of the batch."""
        return self.offset_message_id.split(",")


_AS_ARGUMENT = {
    props.TAGS: "tags",
    props.KEYS: "keys",
    props.DELAY: "delay_level",
    props.TIMER_DELAY_MS: "delay_ms",
    props.TIMER_DELIVER_MS: "deliver_at_ms",
    props.WAIT: "wait",
}


def property_text(message: Message, unique_key: str | None) -> str:
    """Return the property string of a message to be sent.

    Args:
        message: The message.
        unique_key: Its id; None if its properties have one.

    Raises:
        InvalidOption: A name or value is empty or contains a separator, a key contains a space, a
            property has its own argument, or the string is too long for a record.
    """
    parts = [] if unique_key is None else [f"{props.UNIQ_KEY}\x01{unique_key}\x02"]
    if message.tags:
        parts.append(f"{props.TAGS}\x01{message.tags}\x02")
    if message.keys:
        parts.append(f"{props.KEYS}\x01{_joined(message.keys)}\x02")
    if message.delay_level:
        if message.delay_level < 0:
            raise InvalidOption("delay_level", message.delay_level, "0 or a level from 1")
        parts.append(f"{props.DELAY}\x01{message.delay_level}\x02")
    if message.delay_ms or message.deliver_at_ms:
        parts.append(_timer_property(message))
    if not message.wait:
        parts.append(f"{props.WAIT}\x01false\x02")
    for name, value in message.properties.items():
        if name in _AS_ARGUMENT:
            raise InvalidOption(f"properties[{name!r}]", value, f"{_AS_ARGUMENT[name]}= instead")
        if not name or not value or not isinstance(value, str):
            raise InvalidOption(f"properties[{name!r}]", value, "names and text, none of it empty")
        parts.append(f"{name}\x01{value}\x02")
    text = "".join(parts)
    if text.count("\x01") != len(parts) or text.count("\x02") != len(parts):
        raise InvalidOption("properties", text, r"text without \x01 and \x02")
    if len(text) * _UTF8_BYTES_MAX > props.LENGTH_MAX:
        size = len(java.encode_utf8(text))
        if size > props.LENGTH_MAX:
            allowed = f"at most {props.LENGTH_MAX} bytes together with tags and keys"
            raise InvalidOption("properties", f"{size} bytes", allowed)
    return text


def _timer_property(message: Message) -> str:
    name, value = props.TIMER_DELAY_MS, message.delay_ms
    if not value:
        name, value = props.TIMER_DELIVER_MS, message.deliver_at_ms
    if value < 0:
        raise InvalidOption(_AS_ARGUMENT[name], value, "0, or a whole number of milliseconds")
    if sum(map(bool, (message.delay_level, message.delay_ms, message.deliver_at_ms))) > 1:
        allowed = "one of delay_level=, delay_ms= and deliver_at_ms="
        raise InvalidOption(_AS_ARGUMENT[name], value, allowed)
    return f"{name}\x01{value}\x02"


def _joined(keys: str | Sequence[str]) -> str:
    if isinstance(keys, str):
        return keys
    for key in keys:
        if not key or props.KEY_SEPARATOR in key:
            raise InvalidOption("keys", key, "keys that are not empty and have no spaces")
    return props.KEY_SEPARATOR.join(keys)


def check_topic(topic: str) -> None:
    """Check that a message may be sent to a topic.

    Raises:
        InvalidOption: The name is illegal, or the topic is reserved for brokers.
    """
    if not names.is_legal_topic(topic):
        allowed = f"1 to {names.TOPIC_LENGTH_MAX} characters of a-z A-Z 0-9 _ - % |"
        raise InvalidOption("topic", topic, allowed)
    if topic in _NOT_SENT_TO:
        raise InvalidOption("topic", topic, "a topic that brokers do not keep for themselves")


def check_topic_name(topic: str) -> None:
    """Check the name of a topic to read. Raises ``InvalidOption``."""
    if not names.is_legal_topic(topic, names.LONG_TOPIC_LENGTH_MAX):
        allowed = f"1 to {names.LONG_TOPIC_LENGTH_MAX} characters of a-z A-Z 0-9 _ - % |"
        raise InvalidOption("topic", topic, allowed)


_NOT_SENT_TO = frozenset(
    {
        names.SCHEDULE_TOPIC,
        names.HALF_TOPIC,
        names.OP_HALF_TOPIC,
        names.CHECK_MAX_TIME_TOPIC,
        names.SELF_TEST_TOPIC,
        names.OFFSET_MOVED_TOPIC,
    }
)
"""Source: ``TopicValidator.NOT_ALLOWED_SEND_TOPIC_SET``."""

GROUP_LENGTH_MAX = 255


def check_group(name: str, group: str) -> None:
    """Check the name of a producer or consumer group; ``name`` is its name in errors.

    Raises:
        InvalidOption: It is empty, too long, or has a character that brokers refuse.
    """
    if not names.is_legal_topic(group, GROUP_LENGTH_MAX):
        allowed = f"1 to {GROUP_LENGTH_MAX} characters of a-z A-Z 0-9 _ - % |"
        raise InvalidOption(name, group, allowed)


class ReceivedMessage:
    """A message from a broker: the fields of its record, decoded on first access.

    Args:
        record: Bytes of the whole record. Access to a field that cannot be decoded raises
            ``CorruptRecord``.
        broker_name: Broker of its queue.
    """

    __slots__ = ("_body", "_properties", "_record", "_stored", "broker_name", "namespace")

    def __init__(self, record: bytes | memoryview, broker_name: str) -> None:
        self._record: bytes | memoryview | None = record
        self._stored: StoredMessage | None = None
        self._body: bytes | None = None
        self._properties: Mapping[str, str] | None = None
        self.broker_name = broker_name
        self.namespace = ""
        """Namespace of the client, which ``topic`` leaves out."""

    @classmethod
    def of(cls, stored: StoredMessage, broker_name: str) -> Self:
        """Return a received message for an already decoded one."""
        message = cls(b"", broker_name)
        message._stored = stored
        return message

    @property
    def stored(self) -> StoredMessage:
        """All fields of the record."""
        stored = self._stored
        if stored is None:
            assert self._record is not None
            stored = self._stored = records.decode(self._record)
            self._record = None
        return stored

    @property
    def queue_offset(self) -> int:
        """Queue offset of the message."""
        if self._stored is None:
            assert self._record is not None
            return queue_offset_at(self._record, 0)
        return self._stored.queue_offset

    @property
    def size_bytes(self) -> int:
        """Size of the record, in bytes."""
        if self._stored is None:
            assert self._record is not None
            return len(self._record)
        return self._stored.store_size

    @property
    def body(self) -> bytes:
        """Decompressed body. Raises ``CorruptRecord`` if it cannot be decompressed."""
        if self._body is None:
            self._read_texts()
            if self._body is None:
                self._body = self.stored.plain_body()
        return self._body

    def json(self) -> Any:
        """Return the value of a JSON body.

        Raises:
            CorruptRecord: The body cannot be decompressed.
            InvalidBody: It is not JSON.
        """
        try:
            return decode_json(self.body)
        except (ValueError, RecursionError) as error:
            raise InvalidBody(f"body of message {self.message_id} is not JSON: {error}") from error

    def _read_texts(self) -> None:
        """Decode body and properties of an undamaged record with IPv4 hosts.

        Most consumers need no more, at a fourth of the cost of full decoding. Other records are
        left to ``stored``, which reports their damage.
        """
        record = self._record
        if record is None or len(record) < records.FIXED_BYTES_V1:
            return
        _, end, _, body, topic, properties = next(plain_records(record))
        if body:
            self._body = bytes(record[body:topic])
            self._properties = props.decode(bytes(record[properties:end]))

    @property
    def topic(self) -> str:
        """Topic that the message was sent to; for a retried one not that of its queue."""
        return namespace.unwrap(self.namespace, self.full_topic)

    @property
    def full_topic(self) -> str:
        """Topic with its namespace."""
        stored = self.stored
        if names.is_retry_topic(stored.topic):
            return stored.properties.get(props.RETRY_TOPIC, stored.topic)
        return stored.topic

    @property
    def queue(self) -> MessageQueue:
        """Queue that the message was read from."""
        stored = self.stored
        return MessageQueue(
            topic=stored.topic, broker_name=self.broker_name, queue_id=stored.queue_id
        )

    @property
    def properties(self) -> Mapping[str, str]:
        """Properties set by the producer and by brokers."""
        if self._properties is None:
            if self._stored is None:
                self._read_texts()
            if self._properties is None:
                self._properties = self.stored.properties
        return self._properties

    @property
    def tags(self) -> str | None:
        """Tag by which consumers select."""
        return self.properties.get(props.TAGS)

    @property
    def keys(self) -> list[str]:
        """Keys for queries."""
        return props.split_keys(self.properties.get(props.KEYS))

    @property
    def message_id(self) -> str:
        """Unique key, or the offset id if the producer set no key."""
        return self.properties.get(props.UNIQ_KEY) or self.offset_message_id

    @property
    def offset_message_id(self) -> str:
        """Offset id: store host and physical offset."""
        return ids.offset_id(self.stored)

    @property
    def queue_id(self) -> int:
        """Number of its queue."""
        if self._stored is None:
            assert self._record is not None
            queue_id: int = _QUEUE_ID.unpack_from(self._record, records.POSITION_QUEUE_ID)[0]
            return queue_id
        return self._stored.queue_id

    @property
    def physical_offset(self) -> int:
        """Physical offset in the broker's log."""
        return self.stored.physical_offset

    @property
    def reconsume_times(self) -> int:
        """Number of times that the message was sent back."""
        return self.stored.reconsume_times

    @property
    def delay_level(self) -> int:
        """Delay level that the message was sent with; 0: none."""
        level = self.stored.properties.get(props.DELAY, "0")
        return int(level) if level.isdecimal() else 0

    @property
    def flag(self) -> int:
        """Number of 32 bits, whose meaning the application defines."""
        return self.stored.flag

    @property
    def born_timestamp_ms(self) -> int:
        """Time at which the producer sent the message, in ms since the epoch."""
        return self.stored.born_timestamp

    @property
    def store_timestamp_ms(self) -> int:
        """Time at which the broker stored the message, in ms since the epoch."""
        return self.stored.store_timestamp

    @property
    def born_host(self) -> Host:
        """Address of the producer."""
        return self.stored.born_host

    @property
    def store_host(self) -> Host:
        """Address of the broker that stored the message."""
        return self.stored.store_host

    def __repr__(self) -> str:
        where = f"{self.queue.topic}@{self.broker_name}:{self.queue_id}:{self.queue_offset}"
        return f"<ReceivedMessage {self.message_id} {where}, {len(self.stored.body)} bytes>"


_POSITION_BODY = (
    records.POSITION_BORN_HOST
    + records.HOST_V4_BYTES
    + records.STORE_TIMESTAMP.size
    + records.HOST_V4_BYTES
    + records.TAIL.size
)
"""Layout of a record with IPv4 hosts."""
_PLAIN_HEAD = struct.Struct(
    ">iii"
    f"{records.POSITION_QUEUE_OFFSET - records.POSITION_BODY_CRC - 4}x q"
    f"{records.POSITION_SYS_FLAG - records.POSITION_QUEUE_OFFSET - 8}x i"
    f"{_POSITION_BODY - records.POSITION_SYS_FLAG - 8}x i"
)
"""Size, magic, checksum of the body, queue offset, system flag and size of the body of such a
record."""
_NOT_PLAIN = ~flags.MULTI_TAGS
_LENGTH_BYTES = records.PROPERTIES_LENGTH.size
_QUEUE_ID = struct.Struct(">i")
_QUEUE_OFFSET = struct.Struct(">q")
_SYS_FLAG = struct.Struct(">i")


R = TypeVar("R", bound=ReceivedMessage)


@overload
def received(data: bytes, broker_name: str) -> list[ReceivedMessage]: ...


@overload
def received(data: bytes, broker_name: str, kind: type[R]) -> list[R]: ...


def received(
    data: bytes, broker_name: str, kind: type[ReceivedMessage] = ReceivedMessage
) -> Sequence[ReceivedMessage]:
    """Return the messages in the body of a reply: concatenated records.

    A record of a 5.x batch queue is expanded into its messages.

    Args:
        data: The body.
        broker_name: Broker that sent it.
        kind: Class of the returned messages.

    Raises:
        CorruptRecord: A size is impossible, or a batch cannot be expanded.
    """
    view = memoryview(data)
    messages: list[ReceivedMessage] = []
    for position, end in record_spans(data):
        record = view[position:end]
        (sys_flag,) = _SYS_FLAG.unpack_from(record, records.POSITION_SYS_FLAG)
        if sys_flag & flags.INNER_BATCH:
            messages += (
                kind.of(inner, broker_name) for inner in batch.unwrap(records.decode(record))
            )
        else:
            messages.append(kind(record, broker_name))
    return messages


def record_spans(data: bytes) -> Iterator[tuple[int, int]]:
    """Yield begin and end of each record in the body of a reply.

    Raises:
        CorruptRecord: A size is impossible.
    """
    position, end = 0, len(data)
    while position < end:
        if end - position < records.FIXED_BYTES_V1:
            raise _too_few(position, end)
        size, _ = records.SIZE_AND_MAGIC.unpack_from(data, position)
        if not records.FIXED_BYTES_V1 <= size <= end - position:
            raise _impossible(size, position, end)
        yield position, position + size
        position += size


def _too_few(position: int, end: int) -> CorruptRecord:
    return CorruptRecord(
        f"{end - position} bytes at {position} of a reply are too few for a record"
    )


def _impossible(size: int, position: int, end: int) -> CorruptRecord:
    return CorruptRecord(
        f"record at {position} of a reply has size {size}, {end - position} are left"
    )


def queue_offset_at(data: bytes | memoryview, position: int) -> int:
    """Return the queue offset of the record at a position."""
    queue_offset: int = _QUEUE_OFFSET.unpack_from(data, position + records.POSITION_QUEUE_OFFSET)[0]
    return queue_offset


PlainRecord = tuple[int, int, int, int, int, int]
"""Begin and end of a record, its queue offset, begin and end of its body, begin of its properties.

All but the queue offset are positions in a buffer. The body begins at 0 in all records but those
that are undamaged and uncompressed and have IPv4 hosts: decoding the others reports their damage.
"""


def plain_records(data: bytes | memoryview) -> Iterator[PlainRecord]:
    """Yield what can be read of each record in the body of a reply without decoding it.

    Raises:
        CorruptRecord: A size is impossible.
    """
    unpack, crc32 = _PLAIN_HEAD.unpack_from, zlib.crc32
    unpack_length, length_bytes = records.PROPERTIES_LENGTH.unpack_from, _LENGTH_BYTES
    size_min, magic_v1, body_position = records.FIXED_BYTES_V1, records.MAGIC_V1, _POSITION_BODY
    position, end = 0, len(data)
    while position < end:
        if end - position < size_min:
            raise _too_few(position, end)
        size, magic, body_crc, queue_offset, sys_flag, body_size = unpack(data, position)
        if not size_min <= size <= end - position:
            raise _impossible(size, position, end)
        record_end = position + size
        body = position + body_position
        topic = body + body_size
        if (
            magic == magic_v1
            and not sys_flag & _NOT_PLAIN
            and body <= topic < record_end - length_bytes
            and (properties := topic + 1 + data[topic] + length_bytes) <= record_end
            and unpack_length(data, properties - length_bytes)[0] == record_end - properties
            and (not body_size or crc32(data[body:topic]) & 0x7FFFFFFF == body_crc)
        ):
            yield position, record_end, queue_offset, body, topic, properties
        else:
            yield position, record_end, queue_offset, 0, 0, 0
        position = record_end
