"""Messages as users of a client have them: to be sent, sent, received.

``Message`` is what a producer is given, ``SendResult`` what it returns, ``ReceivedMessage`` what a
consumer or a query hands out: the record's bytes, decoded when somebody looks.
"""

import enum
import struct
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Self, TypeVar, overload

import msgspec

from reput.errors import CorruptRecord, InvalidOption
from reput.format import (
    batch,
    java,
    message as records,
    message_id as ids,
    names,
    properties as props,
    sys_flag as flags,
)
from reput.format.bodies import MessageQueue
from reput.format.message import Host, StoredMessage

_UTF8_BYTES_MAX = 4
"""That a character takes."""


@dataclass(slots=True)
class Message:
    """A message to be sent. It is not changed by sending, and may be sent again."""

    topic: str
    body: bytes
    tags: str | None = None
    """What consumers choose by; one word, usually."""
    keys: str | Sequence[str] = ()
    """What the message can be found by; each without spaces."""
    properties: Mapping[str, str] = field(default_factory=dict)
    """Anything else. ``UNIQ_KEY`` in here is the message's id, instead of a new one."""
    delay_level: int = 0
    """Which of the broker's delays, from 1 (by default 1 s) to 18 (2 h); 0: none."""
    flag: int = 0
    """32 bits for the application."""
    wait: bool = True
    """Whether the broker answers only when it is flushed and replicated as configured."""
    delay_ms: int = 0
    """How long it waits until consumers get it, ms; 0: not at all. Brokers from 5.0 on know this,
    and deliver it at the next second. Older ones, and those without a timer, deliver at once."""
    deliver_at_ms: int = 0
    """Likewise: when they get it, ms since the epoch; 0, or a time that is past: now."""


class SendStatus(enum.StrEnum):
    """What became of a message: all are stored, but not all as safely as the broker should."""

    SEND_OK = "SEND_OK"
    FLUSH_DISK_TIMEOUT = "FLUSH_DISK_TIMEOUT"
    FLUSH_SLAVE_TIMEOUT = "FLUSH_SLAVE_TIMEOUT"
    SLAVE_NOT_AVAILABLE = "SLAVE_NOT_AVAILABLE"


class SendResult(msgspec.Struct, frozen=True):
    """Where a message is."""

    status: SendStatus
    message_id: str
    """The unique key; of a batch all of them, joined by commas."""
    offset_message_id: str
    """The offset id; of a batch all of them, joined by commas."""
    queue: MessageQueue
    queue_offset: int
    """Of a batch: the first; the others follow without a gap."""
    transaction_id: str | None = None
    recall_handle: str | None = None
    """By which ``Producer.recall`` takes the message back, while it waits for its time."""

    @property
    def message_ids(self) -> list[str]:
        """The unique keys, in the order of the batch."""
        return self.message_id.split(",")

    @property
    def offset_message_ids(self) -> list[str]:
        """The offset ids, in the order of the batch."""
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
        InvalidOption: A name or value is empty or holds a separator, a key holds a space, a
            property has an argument of its own, or the whole is too long for a record.
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
        InvalidOption: The name is illegal, or the topic is one that brokers keep for themselves.
    """
    if not names.is_legal_topic(topic):
        allowed = f"1 to {names.TOPIC_LENGTH_MAX} characters of a-z A-Z 0-9 _ - % |"
        raise InvalidOption("topic", topic, allowed)
    if topic in _NOT_SENT_TO:
        raise InvalidOption("topic", topic, "a topic that brokers do not keep for themselves")


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
    """Check the name of a producer or consumer group; ``name`` is what an error calls it.

    Raises:
        InvalidOption: It is empty, too long, or has a character that brokers refuse.
    """
    if not names.is_legal_topic(group, GROUP_LENGTH_MAX):
        allowed = f"1 to {GROUP_LENGTH_MAX} characters of a-z A-Z 0-9 _ - % |"
        raise InvalidOption(name, group, allowed)


class ReceivedMessage:
    """A message from a broker: the fields of its record, decoded when they are first asked for.

    Args:
        record: Its bytes, whole. What is wrong in them is raised by whatever needs them decoded,
            as ``CorruptRecord``.
        broker_name: Whose queue it is in.
    """

    __slots__ = ("_body", "_properties", "_record", "_stored", "broker_name")

    def __init__(self, record: bytes | memoryview, broker_name: str) -> None:
        self._record: bytes | memoryview | None = record
        self._stored: StoredMessage | None = None
        self._body: bytes | None = None
        self._properties: Mapping[str, str] | None = None
        self.broker_name = broker_name

    @classmethod
    def of(cls, stored: StoredMessage, broker_name: str) -> Self:
        """Make one of a message that is decoded already."""
        message = cls(b"", broker_name)
        message._stored = stored
        return message

    @property
    def stored(self) -> StoredMessage:
        """All fields, as the record has them."""
        stored = self._stored
        if stored is None:
            assert self._record is not None
            stored = self._stored = records.decode(self._record)
            self._record = None
        return stored

    @property
    def queue_offset(self) -> int:
        """Its number in its queue."""
        if self._stored is None:
            assert self._record is not None
            queue_offset: int = _QUEUE_OFFSET.unpack_from(self._record, _POSITION_QUEUE_OFFSET)[0]
            return queue_offset
        return self._stored.queue_offset

    @property
    def size_bytes(self) -> int:
        """Of the record."""
        if self._stored is None:
            assert self._record is not None
            return len(self._record)
        return self._stored.store_size

    @property
    def body(self) -> bytes:
        """As the producer gave it. Raises ``CorruptRecord`` when it cannot be unpacked."""
        if self._body is None:
            self._read_texts()
            if self._body is None:
                self._body = self.stored.plain_body()
        return self._body

    def _read_texts(self) -> None:
        """Take body and properties out of a common record: one that is what it says, with IPv4.

        That is what most consumers ask for, and costs a fourth of decoding everything. Whatever is
        not common is left to ``stored``, which says what is wrong with it.
        """
        record = self._record
        if record is None or len(record) < records.FIXED_BYTES_V1:
            return
        _, magic, body_crc, *_, sys_flag, _ = records.HEAD.unpack_from(record)
        if magic != records.MAGIC_V1 or sys_flag & ~flags.MULTI_TAGS:
            return
        *_, body_size = records.TAIL.unpack_from(record, _POSITION_BODY - records.TAIL.size)
        topic_at = _POSITION_BODY + body_size
        if not _POSITION_BODY <= topic_at < len(record) - records.PROPERTIES_LENGTH.size:
            return
        properties_at = topic_at + 1 + record[topic_at] + records.PROPERTIES_LENGTH.size
        body = bytes(record[_POSITION_BODY:topic_at])
        properties = bytes(record[properties_at:])
        (size,) = records.PROPERTIES_LENGTH.unpack_from(
            record, min(properties_at, len(record)) - records.PROPERTIES_LENGTH.size
        )
        if size != len(properties) or (body and zlib.crc32(body) & 0x7FFFFFFF != body_crc):
            return
        self._body = body
        self._properties = props.decode(properties)

    @property
    def topic(self) -> str:
        """The topic it was sent to; also of a retried one, whose queue is the group's own."""
        stored = self.stored
        if names.is_retry_topic(stored.topic):
            return stored.properties.get(props.RETRY_TOPIC, stored.topic)
        return stored.topic

    @property
    def queue(self) -> MessageQueue:
        """Where it was read."""
        stored = self.stored
        return MessageQueue(
            topic=stored.topic, broker_name=self.broker_name, queue_id=stored.queue_id
        )

    @property
    def properties(self) -> Mapping[str, str]:
        """Everything its producer and brokers have attached."""
        if self._properties is None:
            if self._stored is None:
                self._read_texts()
            if self._properties is None:
                self._properties = self.stored.properties
        return self._properties

    @property
    def tags(self) -> str | None:
        """What consumers choose by."""
        return self.properties.get(props.TAGS)

    @property
    def keys(self) -> list[str]:
        """What it can be found by."""
        return props.split_keys(self.properties.get(props.KEYS))

    @property
    def message_id(self) -> str:
        """The id that its producer gave it; the offset id if it gave none."""
        return self.properties.get(props.UNIQ_KEY) or self.offset_message_id

    @property
    def offset_message_id(self) -> str:
        """Where it is: store host and physical offset."""
        return ids.offset_id(self.stored)

    @property
    def queue_id(self) -> int:
        """The number of its queue."""
        if self._stored is None:
            assert self._record is not None
            queue_id: int = _QUEUE_ID.unpack_from(self._record, records.POSITION_QUEUE_ID)[0]
            return queue_id
        return self._stored.queue_id

    @property
    def physical_offset(self) -> int:
        """Its place in the broker's log."""
        return self.stored.physical_offset

    @property
    def reconsume_times(self) -> int:
        """How often it was sent back."""
        return self.stored.reconsume_times

    @property
    def delay_level(self) -> int:
        """The delay that it was sent with; 0: none."""
        level = self.stored.properties.get(props.DELAY, "0")
        return int(level) if level.isdecimal() else 0

    @property
    def flag(self) -> int:
        """32 bits of the application."""
        return self.stored.flag

    @property
    def born_timestamp_ms(self) -> int:
        """When the producer sent it."""
        return self.stored.born_timestamp

    @property
    def store_timestamp_ms(self) -> int:
        """When the broker stored it."""
        return self.stored.store_timestamp

    @property
    def born_host(self) -> Host:
        """Where the producer sent it from."""
        return self.stored.born_host

    @property
    def store_host(self) -> Host:
        """The broker that stored it."""
        return self.stored.store_host

    def __repr__(self) -> str:
        where = f"{self.queue.topic}@{self.broker_name}:{self.queue_id}:{self.queue_offset}"
        return f"<ReceivedMessage {self.message_id} {where}, {len(self.stored.body)} bytes>"


_POSITION_QUEUE_OFFSET = 20
_POSITION_BODY = (
    records.POSITION_BORN_HOST
    + records.HOST_V4_BYTES
    + records.STORE_TIMESTAMP.size
    + records.HOST_V4_BYTES
    + records.TAIL.size
)
"""Of a record with IPv4 hosts."""
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
    """Return the messages in the body of a reply: records, one behind the other.

    A record of a 5.x batch queue becomes the messages inside of it.

    Args:
        data: The body.
        broker_name: Who sent it.
        kind: What is made of each message.

    Raises:
        CorruptRecord: A size is impossible, or a batch cannot be taken apart.
    """
    view = memoryview(data)
    end = len(view)
    found: list[ReceivedMessage] = []
    at = 0
    while at < end:
        if end - at < records.FIXED_BYTES_V1:
            raise CorruptRecord(f"{end - at} bytes at {at} of a reply are too few for a record")
        size, _ = records.SIZE_AND_MAGIC.unpack_from(view, at)
        if not records.FIXED_BYTES_V1 <= size <= end - at:
            raise CorruptRecord(f"record at {at} of a reply has size {size}, {end - at} are left")
        record = view[at : at + size]
        (sys_flag,) = _SYS_FLAG.unpack_from(record, records.POSITION_SYS_FLAG)
        if sys_flag & flags.INNER_BATCH:
            found += (kind.of(inner, broker_name) for inner in batch.unwrap(records.decode(record)))
        else:
            found.append(kind(record, broker_name))
        at += size
    return found
