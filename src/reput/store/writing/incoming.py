"""Messages to be stored: what a broker passes to the store, their records, and results.

A record made here has no queue offset, physical offset, store time and checksum; the kernel sets
them while it copies the record into the log.
"""

import dataclasses
import enum
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from reput.format import (
    java,
    message as record,
    message_id,
    names,
    properties as props,
    sys_flag as flags,
)
from reput.format.message import Host
from reput.store.config import StoreConfig

BACKWARD_MS_MAX = 10_000
"""Largest step back of a clock, in ms, during which store times stay constant instead."""
LOCAL_HOST = Host(b"\x7f\0\0\1", 0)

_HEAD_V4 = struct.Struct(">iiiiiqqiq4siq4siiqi")
"""All fields up to the body, with two IPv4 hosts."""


class PutStatus(enum.Enum):
    """The status of a put; names are those of Java's ``PutMessageStatus``."""

    PUT_OK = enum.auto()
    FLUSH_DISK_TIMEOUT = enum.auto()
    """Stored, but not known to be on disk."""
    FLUSH_SLAVE_TIMEOUT = enum.auto()
    """Stored, but not known to be on a slave."""
    SLAVE_NOT_AVAILABLE = enum.auto()
    """Stored, but no slave is available."""
    SERVICE_NOT_AVAILABLE = enum.auto()
    """The store is closed, is a slave's, or cannot write."""
    IN_SYNC_REPLICAS_NOT_ENOUGH = enum.auto()
    """Not stored: fewer brokers are available than minInSyncReplicas."""
    CREATE_MAPPED_FILE_FAILED = enum.auto()
    MESSAGE_ILLEGAL = enum.auto()
    PROPERTIES_SIZE_EXCEEDED = enum.auto()
    OS_PAGE_CACHE_BUSY = enum.auto()
    LMQ_CONSUME_QUEUE_NUM_EXCEEDED = enum.auto()
    UNKNOWN_ERROR = enum.auto()

    @property
    def is_stored(self) -> bool:
        """True if the message is in the log."""
        return self in _STORED

    @property
    def is_final(self) -> bool:
        """True if the message is refused, and always would be."""
        return self in _FINAL


_STORED = frozenset(
    {
        PutStatus.PUT_OK,
        PutStatus.FLUSH_DISK_TIMEOUT,
        PutStatus.FLUSH_SLAVE_TIMEOUT,
        PutStatus.SLAVE_NOT_AVAILABLE,
    }
)
_FINAL = frozenset(
    {
        PutStatus.MESSAGE_ILLEGAL,
        PutStatus.PROPERTIES_SIZE_EXCEEDED,
        PutStatus.LMQ_CONSUME_QUEUE_NUM_EXCEEDED,
    }
)


class PutResult(NamedTuple):
    """The result of a put, with the position of the message (of a batch: the first one)."""

    status: PutStatus
    physical_offset: int = 0
    size: int = 0
    """Size of the record in bytes; of a batch, of all its records."""
    queue_offset: int = 0
    store_timestamp: int = 0
    message_count: int = 1
    store_host: Host = LOCAL_HOST
    physical_offsets: tuple[int, ...] = ()
    """Physical offset of each message of a batch."""
    reason: str = ""
    """Reason of a refusal."""

    @property
    def offset_id(self) -> str:
        """Message id made of host and physical offset; of a batch, all ids, separated by commas."""
        return message_id.encode_offset_ids(
            self.store_host, self.physical_offsets or (self.physical_offset,)
        )

    @property
    def end_offset(self) -> int:
        """Physical offset after the record."""
        return self.physical_offset + self.size


@dataclass(slots=True)
class IncomingMessage:
    """A message to be put. Times are ms since the epoch."""

    topic: str
    body: bytes
    queue_id: int = 0
    property_bytes: bytes = b""
    """Properties as encoded by ``properties.encode``, or as received."""
    born_timestamp: int = 0
    born_host: Host = LOCAL_HOST
    store_host: Host = LOCAL_HOST
    flag: int = 0
    sys_flag: int = 0
    reconsume_times: int = 0
    prepared_transaction_offset: int = 0
    waits: bool = True
    """True if the put waits for the disk, where the store is configured to."""
    is_due: bool = False
    """True for a delivered message: a delay level in its properties delays it no more."""

    @property
    def properties(self) -> dict[str, str]:
        """Copy of the properties."""
        return props.decode(self.property_bytes)


NOT_ENOUGH_REPLICAS = PutResult(
    PutStatus.IN_SYNC_REPLICAS_NOT_ENOUGH, reason="in-sync replicas not enough"
)
"""Result of a put that ``minInSyncReplicas`` refuses, with the text of 5.x."""


class Refused(Exception):
    """A message that cannot be stored."""

    def __init__(self, status: PutStatus, reason: str) -> None:
        self.status = status
        self.reason = reason
        super().__init__(reason)


def encode(message: IncomingMessage, topic: bytes) -> bytes:
    """Return the record of a message with checked lengths, without its offsets.

    Args:
        message: The message.
        topic: Its topic in UTF-8.
    """
    body = message.body
    properties = message.property_bytes
    born, store = message.born_host, message.store_host
    is_v1 = len(topic) <= record.TOPIC_BYTES_MAX_V1
    sys_flag = message.sys_flag & ~(flags.BORN_HOST_V6 | flags.STORE_HOST_V6)
    if is_v1 and len(born.address) == 4 and len(store.address) == 4:
        return b"".join(
            (
                _HEAD_V4.pack(
                    record.FIXED_BYTES_V1 + len(body) + len(topic) + len(properties),
                    record.MAGIC_V1,
                    0,
                    message.queue_id,
                    message.flag,
                    0,
                    0,
                    sys_flag,
                    message.born_timestamp,
                    born.address,
                    born.port,
                    0,
                    store.address,
                    store.port,
                    message.reconsume_times,
                    message.prepared_transaction_offset,
                    len(body),
                ),
                body,
                record.TOPIC_LENGTH_V1.pack(len(topic)),
                topic,
                record.PROPERTIES_LENGTH.pack(len(properties)),
                properties,
            )
        )
    sys_flag |= flags.BORN_HOST_V6 if born.is_v6 else 0
    sys_flag |= flags.STORE_HOST_V6 if store.is_v6 else 0
    return record.encode(
        record.StoredMessage(
            topic=message.topic,
            body=body,
            queue_id=message.queue_id,
            queue_offset=0,
            physical_offset=0,
            born_timestamp=message.born_timestamp,
            born_host=born,
            store_timestamp=0,
            store_host=store,
            flag=message.flag,
            sys_flag=sys_flag,
            reconsume_times=message.reconsume_times,
            prepared_transaction_offset=message.prepared_transaction_offset,
            property_bytes=properties,
        )
    )


def delayed(message: IncomingMessage, level_count: int) -> IncomingMessage:
    """Return the message to store: the message itself, or its copy in the schedule topic.

    A delayed message waits in the schedule topic, in the queue of its level; its own topic and
    queue become properties. A level above the last one is treated as the last one.
    """
    if message.is_due:
        return message
    properties = message.properties
    kind = flags.transaction_type(message.sys_flag)
    level = delay_level(message)
    if level <= 0 or kind not in (flags.TRANSACTION_NONE, flags.TRANSACTION_COMMIT):
        return message
    level = min(level, level_count)
    properties[props.DELAY] = str(level)
    properties[props.REAL_TOPIC] = message.topic
    properties[props.REAL_QUEUE_ID] = str(message.queue_id)
    waiting = with_properties(message, properties)
    waiting.topic = names.SCHEDULE_TOPIC
    waiting.queue_id = level - 1
    return waiting


def with_properties(message: IncomingMessage, properties: dict[str, str]) -> IncomingMessage:
    """Return a message with other properties.

    Raises:
        Refused: They are too long for a record, or contain a separator.
    """
    try:
        return dataclasses.replace(message, property_bytes=props.encode(properties))
    except ValueError as error:
        size = sum(len(java.encode_utf8(name + value)) + 2 for name, value in properties.items())
        is_long = size > props.LENGTH_MAX
        status = PutStatus.PROPERTIES_SIZE_EXCEEDED if is_long else PutStatus.MESSAGE_ILLEGAL
        raise Refused(status, str(error)) from error


def with_crc_room(message: IncomingMessage) -> IncomingMessage:
    """Return a message whose properties end with a ``__CRC32#`` without its digits.

    Raises:
        Refused: There is no space for it (known-bugs.md#record-checksum).
    """
    room = record.CRC_PROPERTY_PREFIX + b"0" * 10 + props.PROPERTY_SEPARATOR.encode()
    property_bytes = props.append(message.property_bytes, room)
    if len(property_bytes) > props.LENGTH_MAX:
        raise Refused(
            PutStatus.PROPERTIES_SIZE_EXCEEDED,
            f"properties take {len(property_bytes)} bytes with {props.CRC32}; "
            f"allowed: {props.LENGTH_MAX}",
        )
    return dataclasses.replace(message, property_bytes=property_bytes)


def delay_level(message: IncomingMessage) -> int:
    """Return the level of the DELAY property; 0 without one, or if it is not a number."""
    try:
        return int(message.properties.get(props.DELAY, "0"))
    except ValueError:
        return 0


def refuse_batch(message: IncomingMessage, body_bytes_max: int) -> None:
    """Check the conditions that hold for batches only.

    Raises:
        Refused: The batch is too long, delayed, or part of a transaction.
    """
    size = len(message.body)
    if size > body_bytes_max:
        reason = f"batch has {size} bytes; allowed: {body_bytes_max} (maxMessageSize)"
    elif flags.transaction_type(message.sys_flag) != flags.TRANSACTION_NONE:
        reason = f"batch has sysFlag {message.sys_flag:#x}; it cannot be part of a transaction"
    elif delay_level(message) > 0:
        reason = f"batch has {props.DELAY} {delay_level(message)}; it cannot be delayed"
    else:
        return
    raise Refused(PutStatus.MESSAGE_ILLEGAL, reason)


OF_LIGHT_QUEUES = (props.INNER_MULTI_DISPATCH, props.LITE_TOPIC)
"""Properties that messages of a batch cannot have where there are light queues."""


def light_part(name: str) -> Refused:
    """Return the refusal of a batch with a message for light queues, in which it would be missing.

    Args:
        name: Its property, one of ``OF_LIGHT_QUEUES``.
    """
    return Refused(
        PutStatus.MESSAGE_ILLEGAL,
        f"a message of the batch has {name}; messages for light queues or lite topics are sent "
        "one by one",
    )


def refuse_names(topics: Iterable[str]) -> None:
    """Check the names of a message's queues.

    Raises:
        Refused: A name cannot be that of a folder, or would lead out of the store.
    """
    for topic in topics:
        if not names.is_folder_name(topic):
            raise Refused(
                PutStatus.MESSAGE_ILLEGAL,
                f"topic or light queue {topic[:300]!r}; allowed: names of folders, "
                f"at most {names.FOLDER_BYTES_MAX} bytes",
            )


def refuse_light_names(topics: Iterable[str]) -> None:
    """Check the names of a message's light queues.

    With the name of another topic, the message would take queue offsets of that topic.

    Raises:
        Refused: A name is not a light queue's, or cannot be that of a folder.
    """
    topics = list(topics)
    refuse_names(topics)
    for topic in topics:
        if not names.is_light(topic):
            raise Refused(
                PutStatus.MESSAGE_ILLEGAL,
                f"light queue {topic!r}; allowed: names that begin with {names.LMQ_PREFIX}",
            )


def refuse_queue(queue_id: int) -> None:
    """Check a queue id.

    Raises:
        Refused: There can be no such queue.
    """
    if not 0 <= queue_id <= names.QUEUE_ID_MAX:
        raise Refused(
            PutStatus.MESSAGE_ILLEGAL,
            f"queue id {queue_id}; allowed: 0 to {names.QUEUE_ID_MAX}",
        )


def refuse_lengths(message: IncomingMessage, topic: bytes, config: StoreConfig) -> None:
    """Check topic and properties, in the broker's order.

    Retry topics may be longer than others: they contain the name of a group.

    Raises:
        Refused: The topic is empty, or one of them is too long.
    """
    topic_bytes_max = config.max_topic_length
    if message.topic.startswith(names.RETRY_PREFIX):
        topic_bytes_max = max(topic_bytes_max, names.LONG_TOPIC_LENGTH_MAX)
    if not config.auto_message_version_on_topic_len:
        topic_bytes_max = min(topic_bytes_max, record.TOPIC_BYTES_MAX_V1)
    if not topic or len(topic) > topic_bytes_max:
        raise Refused(
            PutStatus.MESSAGE_ILLEGAL,
            f"topic has {len(topic)} bytes; allowed: 1 to {topic_bytes_max}",
        )
    size = len(message.property_bytes)
    if size > props.LENGTH_MAX:
        is_long_text = len(java.decode_utf8(message.property_bytes)) > props.LENGTH_MAX
        raise Refused(
            PutStatus.MESSAGE_ILLEGAL if is_long_text else PutStatus.PROPERTIES_SIZE_EXCEEDED,
            f"properties take {size} bytes; allowed: {props.LENGTH_MAX}",
        )
