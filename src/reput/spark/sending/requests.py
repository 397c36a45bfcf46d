"""Grouping of messages into requests: batches, order, unique keys.

Pure decisions: ``live_send`` sends. A lane holds the messages of one queue, in order. In mode
``batch`` its messages are combined into batch requests. Messages that brokers do not accept in a
batch are sent individually: delayed or compressed ones, and those with per-request fields.
"""

import hashlib
import struct
import zlib
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from reput.format import batch, java, names, properties as props, sharding
from reput.format.bodies import MessageQueue
from reput.spark.option_table import ASYNC, BATCH
from reput.spark.sending.options import SendOptions
from reput.spark.sending.rows import BadRow, OutgoingMessage

BATCH_COUNT_MAX: Final = 1024
"""Maximum number of messages per request: the reply has an id of 33 characters for each."""

_ROW = struct.Struct(">QI")
_DIGEST_BYTES = 12
_TIME_HEX = "00000000"
"""Time field of a generated id, in hex: the start of the month, where consoles begin to search."""
_TIME_AT = 20


@dataclass(frozen=True)
class TaskIdentity:
    """Identity of a task's output, equal for all of its attempts."""

    write_id: str
    """Id of the batch: query and number, the user's ``writeId``, or chosen once per job."""
    partition: int


class KeyMaker:
    """Derives unique keys from the written rows, so that a repeated row gets the same key.

    A key has 96 bits of a hash of the identity, the row's number in its task, and the message. If
    another attempt distributes rows differently, they get other keys: they are stored twice, but
    never mistaken for each other.

    Upper-case hexadecimal of 16 bytes, as ``MessageClientIDSetter`` makes, with a time of 0.
    """

    def __init__(self, identity: TaskIdentity) -> None:
        seed = f"{identity.write_id}\0{identity.partition}".encode()
        self._base = hashlib.blake2b(seed, digest_size=_DIGEST_BYTES)

    def key(self, message: OutgoingMessage, properties: bytes) -> str:
        """Return the keys of a row whose property string has no keys."""
        digest = self._base.copy()
        digest.update(_ROW.pack(message.row, zlib.crc32(message.body)))
        digest.update(b"%s\0%d\0" % (message.topic.encode(), len(message.body)))
        digest.update(properties)
        text = digest.hexdigest().upper()
        return f"{text[:_TIME_AT]}{_TIME_HEX}{text[_TIME_AT:]}"


@dataclass(slots=True)
class Parcel:
    """A message with its key, not yet assigned to a queue."""

    message: OutgoingMessage
    unique_key: str
    is_derived: bool
    """True if the key was derived here."""
    properties: bytes
    size_bytes: int = field(init=False)
    """Size in a request, in bytes."""

    def __post_init__(self) -> None:
        """Cache frequently used values."""
        body_bytes = len(self.message.body)
        self.size_bytes = batch.FIXED_BYTES + body_bytes + len(self.properties)

    @property
    def is_fixed(self) -> bool:
        """True if its row has a queue."""
        return self.message.queue_id is not None or self.message.sharding_key is not None


class Packer:
    """Makes parcels of messages.

    Args:
        options: Options of the write.
        keys: Derives the keys of messages without one.
    """

    def __init__(self, options: SendOptions, keys: KeyMaker) -> None:
        self._body_bytes_max = options.max_message_bytes
        self._keys = keys

    def parcel(self, message: OutgoingMessage) -> Parcel:
        """Return a message with its key.

        Raises:
            BadRow: Brokers would not accept it.
        """
        size = len(message.body)
        if not 0 < size <= self._body_bytes_max:
            reason = (
                f"has {size} bytes; allowed: 1 to {self._body_bytes_max} (option maxMessageBytes; "
                "brokers have their own maxMessageSize)"
            )
            raise BadRow(message.row, "body", reason)
        properties = message.property_bytes()
        if message.uniq_key:
            return Parcel(message, message.uniq_key, False, properties)
        key = self._keys.key(message, properties)
        properties = f"{props.UNIQ_KEY}\x01{key}\x02".encode() + properties
        if len(properties) > props.LENGTH_MAX:
            reason = f"take {len(properties)} bytes with the unique key; at most {props.LENGTH_MAX}"
            raise BadRow(message.row, "properties", reason)
        return Parcel(message, key, True, properties)


@dataclass(slots=True)
class OutgoingRequest:
    """A request for one queue."""

    queue: MessageQueue
    parcels: list[Parcel]
    is_batch: bool

    @property
    def is_fixed(self) -> bool:
        """True if its queue is fixed."""
        return any(parcel.is_fixed for parcel in self.parcels)

    @property
    def size_bytes(self) -> int:
        """Approximate size, in bytes."""
        return sum(parcel.size_bytes for parcel in self.parcels)

    @property
    def rows(self) -> str:
        """Rows of the messages in the request, for error messages."""
        first, last = self.parcels[0].message.row, self.parcels[-1].message.row
        return f"row {first}" if first == last else f"rows {first} to {last}"

    def body(self) -> bytes:
        """Return the uncompressed body."""
        if not self.is_batch:
            return self.parcels[0].message.body
        return batch.encode(
            batch.InnerMessage(parcel.message.flag, parcel.message.body, parcel.properties)
            for parcel in self.parcels
        )

    def properties(self) -> str:
        """Return the property string of the request; for a batch that of the whole."""
        return "" if self.is_batch else java.decode_utf8(self.parcels[0].properties)


@dataclass
class Lane:
    """Messages of one queue, in order."""

    queue: MessageQueue
    options: SendOptions
    ready: deque[OutgoingRequest] = field(default_factory=deque)
    """Complete requests."""
    is_busy: bool = False
    """True while a request is in flight, in modes that send one at a time."""
    _open: list[Parcel] = field(default_factory=list)
    _open_bytes: int = 0
    _bytes_max: int = field(init=False)

    def __post_init__(self) -> None:
        """Apply the limit of a message to a batch."""
        self._bytes_max = min(self.options.batch_bytes, self.options.max_message_bytes)

    @property
    def sends_one_at_a_time(self) -> bool:
        """True if order is kept."""
        return self.options.mode != ASYNC

    def add(self, parcel: Parcel) -> None:
        """Append a message."""
        if not self._fits_batch(parcel):
            self.close()
            self.ready.append(OutgoingRequest(self.queue, [parcel], is_batch=False))
            return
        if self._open and not self._fits_open(parcel):
            self.close()
        self._open.append(parcel)
        self._open_bytes += parcel.size_bytes
        if self._open_bytes >= self._bytes_max or len(self._open) >= BATCH_COUNT_MAX:
            self.close()

    @property
    def is_open(self) -> bool:
        """True if messages wait for others in their batch."""
        return bool(self._open)

    def close(self) -> None:
        """Complete the current batch."""
        if self._open:
            is_batch = len(self._open) > 1
            self.ready.append(OutgoingRequest(self.queue, self._open, is_batch=is_batch))
            self._open, self._open_bytes = [], 0

    def _fits_batch(self, parcel: Parcel) -> bool:
        message, options = parcel.message, self.options
        over = options.compress_over_bytes
        return (
            options.mode == BATCH
            and not message.is_delayed
            and not (over and len(message.body) >= over)
            and parcel.size_bytes <= self._bytes_max
            and props.WAIT not in message.properties
            and not names.is_retry_topic(message.topic)
        )

    def _fits_open(self, parcel: Parcel) -> bool:
        first = self._open[0].message  # applies to all of them
        return (
            first.born_timestamp_ms == parcel.message.born_timestamp_ms
            and self._open_bytes + parcel.size_bytes <= self._bytes_max
        )


class QueueDealer:
    """Assigns messages to queues of a topic.

    Args:
        queues: Writable queues, by broker name, then queue id.
        partition: Number of the task; tasks start with different queues.
    """

    def __init__(self, queues: Sequence[MessageQueue], partition: int) -> None:
        self.queues = tuple(queues)
        self._by_id: dict[int, list[MessageQueue]] = {}
        for queue in self.queues:
            self._by_id.setdefault(queue.queue_id, []).append(queue)
        self._at = partition % len(self.queues)

    def queue(self, message: OutgoingMessage) -> MessageQueue:
        """Return the queue of a message; messages without one share the current queue.

        Raises:
            BadRow: The queue does not exist, or is ambiguous.
        """
        if message.sharding_key is not None:
            return self.queues[sharding.queue_index(message.sharding_key, len(self.queues))]
        if message.queue_id is None:
            return self.queues[self._at]
        matches = self._by_id.get(message.queue_id, [])
        if len(matches) == 1:
            return matches[0]
        if matches:
            brokers = ", ".join(queue.broker_name for queue in matches)
            reason = f"is {message.queue_id}, of brokers {brokers}; name one by option broker"
        else:
            ids = ", ".join(map(str, sorted(self._by_id)))
            reason = f"is {message.queue_id}; topic {message.topic!r} has queues {ids}"
        raise BadRow(message.row, "queue_id", reason)

    def turn(self) -> None:
        """Advance the current queue for messages without one."""
        self._at = (self._at + 1) % len(self.queues)

    def others(self, queue: MessageQueue) -> Iterator[MessageQueue]:
        """Yield the queues of other brokers, starting after the current one."""
        for step in range(len(self.queues)):
            other = self.queues[(self._at + step) % len(self.queues)]
            if other.broker_name != queue.broker_name:
                yield other
