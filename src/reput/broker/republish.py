"""Copies of stored messages for another queue: due, sent back, committed, or delivered again.

The fast path copies many records in a kernel (``put_places``). Other messages fall back to Python:
as bytes if possible (``parcel``), else decoded and put like any message (``copied_message``).
"""

import functools
import logging
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from reput.errors import WriteFailed
from reput.format import (
    java,
    message as record,
    names,
    properties as props,
    sys_flag as flags,
)
from reput.format.message import StoredMessage
from reput.store.config import StoreConfig
from reput.store.message_store import MessageStore
from reput.store.writing.copying import CopyRule, Places
from reput.store.writing.incoming import IncomingMessage, PutStatus, with_properties

RETRY_MS = 1_000
"""Pause after the store refused a copy, in ms."""

_SEPARATOR = props.PROPERTY_SEPARATOR.encode()
_CRC = props.CRC32.encode()
_LIGHT = props.INNER_MULTI_DISPATCH.encode()
_OTHER_FLAGS = flags.BORN_HOST_V6 | flags.STORE_HOST_V6 | flags.INNER_BATCH
_BODY_AT = record.FIXED_BYTES_V1 - record.TOPIC_LENGTH_V1.size - record.PROPERTIES_LENGTH.size
"""Position of the body in a V1 record with IPv4 hosts."""
_HEAD = struct.Struct(">4i")  # size, magic, body checksum, queue id
_FIXED = struct.Struct(">2i20xqi")  # size, magic, physical offset, sys flag
_PREPARED = struct.Struct(">iq")  # reconsume times, prepared transaction offset
_RECONSUME_AT = _BODY_AT - record.TAIL.size
_STORE_HOST_AT = _RECONSUME_AT - record.HOST_V4_BYTES
_PLACE = struct.Struct(">i16xqq")  # size, queue offset, physical offset
_INT = struct.Struct(">i")

_log = logging.getLogger(__name__)


def copied_message(
    stored: StoredMessage,
    topic: str,
    queue_id: int,
    *,
    properties: Mapping[str, str] | None = None,
    sys_flag: int | None = None,
    reconsume_times: int | None = None,
) -> IncomingMessage:
    """Return a copy of a stored message for another queue; no client waits for its reply.

    Args:
        stored: The message.
        topic: Destination topic.
        queue_id: Queue there.
        properties: New properties; by default the message's own.
        sys_flag: New flags; by default the message's own.
        reconsume_times: New number of attempts; by default the message's own.

    Raises:
        Refused: The properties are too long, or cannot be encoded.
    """
    message = IncomingMessage(
        topic=topic,
        body=stored.body,
        queue_id=queue_id,
        property_bytes=b"",
        born_timestamp=stored.born_timestamp,
        born_host=stored.born_host,
        store_host=stored.store_host,
        flag=stored.flag,
        sys_flag=stored.sys_flag if sys_flag is None else sys_flag,
        reconsume_times=stored.reconsume_times if reconsume_times is None else reconsume_times,
        waits=False,
    )
    if properties is not None:
        kept = {name: value for name, value in properties.items() if name != props.CRC32}
        return with_properties(message, kept)
    message.property_bytes = stored.property_bytes
    if props.CRC32 in stored.properties:  # the checksum of the stored record
        pairs = stored.property_bytes.split(_SEPARATOR)
        kept_pairs = [pair for pair in pairs if not pair.startswith(record.CRC_PROPERTY_PREFIX)]
        message.property_bytes = _SEPARATOR.join(kept_pairs)
    return message


class Parcel(NamedTuple):
    """A copy to be put."""

    data: bytes
    """Encoded record without offsets; empty if the message must be put decoded."""
    message: IncomingMessage | None = None
    """The decoded message if it must be put decoded."""


class Outcome(NamedTuple):
    """The result of putting parcels."""

    stored_count: int
    """Number of leading parcels that are stored."""
    end_offset: int
    """Physical offset after the last one; 0 if there is none."""
    status: PutStatus = PutStatus.PUT_OK
    """Status of the first parcel that was not stored."""
    reason: str = ""


class RetryPause:
    """Pause of a loop after the store refused one of its copies; each reason is logged once."""

    def __init__(self) -> None:
        self._begun_ms: int | None = None
        self._problem = ""

    @property
    def end_ms(self) -> int:
        """Time of the next attempt, in ms; 0 if there was no refusal."""
        return 0 if self._begun_ms is None else self._begun_ms + RETRY_MS

    def is_active(self, now_ms: int) -> bool:
        """Return True until the next attempt; False if the clock was set back before the pause."""
        return self._begun_ms is not None and 0 <= now_ms - self._begun_ms < RETRY_MS

    def begin(self, problem: str, now_ms: int) -> bool:
        """Begin a pause; return True if its reason has changed, so that it should be logged."""
        self._begun_ms = now_ms
        is_new = problem != self._problem
        self._problem = problem
        return is_new

    def clear(self) -> bool:
        """Record an accepted copy; return True if there was a refusal before."""
        had_problem = bool(self._problem)
        self._begun_ms, self._problem = None, ""
        return had_problem


def make_durable(store: MessageStore) -> bool:
    """Flush and sync all copies at shutdown; return False, and log it, if that fails."""
    try:
        store.flusher.commit()
        store.sync()
    except WriteFailed as error:
        _log.error("the latest messages may be delivered again: %s", error)
        return False
    return True


def records_of(store: MessageStore, places: Sequence[tuple[int, int, int]]) -> list[bytes | None]:
    """Return the records of units of a queue; None for a missing one.

    Only size and offsets of a record are checked.

    Args:
        store: The store.
        places: Queue offset, physical offset and size of each.
    """
    records = store.log.read_all([(physical_offset, size) for _, physical_offset, size in places])
    return [
        data
        if data is not None
        and size >= record.FIXED_BYTES_V1
        and _PLACE.unpack_from(data) == (size, queue_offset, physical_offset)
        else None
        for data, (queue_offset, physical_offset, size) in zip(records, places, strict=True)
    ]


def fitting(sizes: Sequence[int], bytes_max: int) -> int:
    """Return how many leading sizes sum up to at most ``bytes_max``; at least one."""
    left = bytes_max
    for count, size in enumerate(sizes):
        left -= size
        if left < 0 and count:
            return count
    return len(sizes)


def destination(properties: bytes) -> tuple[bytes, int] | None:
    """Return topic (UTF-8) and queue that a message waits for; None if it has no destination."""
    topic = props.find(properties, props.REAL_TOPIC)
    queue_id = props.find(properties, props.REAL_QUEUE_ID)
    number = props.number(queue_id, names.QUEUE_ID_MAX)
    return None if topic is None or number is None else (topic, number)


def property_bytes(data: bytes) -> bytes:
    """Return the property string of a record that was found through a queue.

    Raises:
        CorruptRecord: It is not a complete record.
    """
    plain = plain_record(data)
    return plain.properties if plain else record.decode(data, check_crc=False).property_bytes


class PlainRecord(NamedTuple):
    """A stored V1 record with IPv4 hosts, split into fields."""

    head: bytes
    """All fields before the body."""
    body: bytes
    topic: bytes
    properties: bytes

    @property
    def reconsume_times(self) -> int:
        """Number of times that the message was consumed."""
        times: int = _INT.unpack_from(self.head, _RECONSUME_AT)[0]
        return times

    @property
    def offset_id(self) -> str:
        """The message id made of store host and physical offset."""
        place = self.head[record.POSITION_PHYSICAL_OFFSET : record.POSITION_SYS_FLAG]
        return (self.head[_STORE_HOST_AT:_RECONSUME_AT] + place).hex().upper()


def plain_record(data: bytes, physical_offset: int | None = None) -> PlainRecord | None:
    """Split a record; return None if its format or offset differs, or if it is incomplete."""
    if len(data) < record.FIXED_BYTES_V1:
        return None
    size, magic, own_offset, sys_flag = _FIXED.unpack_from(data)
    if size != len(data) or magic != record.MAGIC_V1 or sys_flag & _OTHER_FLAGS:
        return None
    if physical_offset is not None and own_offset != physical_offset:
        return None
    (body_bytes,) = _INT.unpack_from(data, _BODY_AT - _INT.size)
    topic_position = _BODY_AT + body_bytes
    if body_bytes < 0 or topic_position + 3 > size:
        return None
    properties_position: int = topic_position + 1 + data[topic_position]
    if data[topic_position] > record.TOPIC_BYTES_MAX_V1 or properties_position + 2 > size:
        return None
    (length,) = record.PROPERTIES_LENGTH.unpack_from(data, properties_position)
    if length < 0 or properties_position + 2 + length != size:
        return None
    return PlainRecord(
        data[:_BODY_AT],
        data[_BODY_AT:topic_position],
        data[topic_position + 1 : properties_position],
        data[properties_position + 2 :],
    )


def copied_record(
    config: StoreConfig,
    stored: PlainRecord,
    topic: bytes,
    queue_id: int,
    properties: bytes,
) -> bytes | None:
    """Return a copy of a stored record for another queue, without offsets.

    Args:
        config: Settings of the destination store.
        stored: The stored record.
        topic: Destination topic, in UTF-8.
        queue_id: Queue there.
        properties: All properties of the copy.

    Returns:
        None if the message must be decoded instead.
    """
    size = record.FIXED_BYTES_V1 + len(stored.body) + len(topic) + len(properties)
    if (
        config.enabled_append_prop_crc
        or len(topic) > record.TOPIC_BYTES_MAX_V1  # keeps long topics out of the cache
        or not _is_legal(topic, min(config.max_topic_length, record.TOPIC_BYTES_MAX_V1))
        or len(properties) > props.LENGTH_MAX
        or size > config.record_bytes_max
        or _CRC in properties
        or (config.enable_multi_dispatch and _LIGHT in properties)
    ):
        return None
    head = bytearray(stored.head)
    _HEAD.pack_into(head, 0, size, record.MAGIC_V1, 0, queue_id)
    _PREPARED.pack_into(head, _RECONSUME_AT, stored.reconsume_times, 0)
    topic_length = record.TOPIC_LENGTH_V1.pack(len(topic))
    length = record.PROPERTIES_LENGTH.pack(len(properties))
    return b"".join((head, stored.body, topic_length, topic, length, properties))


def parcel(
    store: MessageStore, data: bytes, topic: bytes, queue_id: int, more: bytes = b""
) -> Parcel:
    """Return the copy of a stored message, which is delivered without further delay.

    Args:
        store: The destination store.
        data: The record.
        topic: Destination topic, in UTF-8.
        queue_id: Queue there.
        more: Additional properties in the form of ``properties.encode``; left out if there is no
            room for them.

    Raises:
        CorruptRecord: It is not a complete record.
    """
    plain = plain_record(data)
    if plain is not None:
        properties = props.append(plain.properties, more)
        if len(properties) > props.LENGTH_MAX:
            properties = plain.properties
        copied = copied_record(store.config, plain, topic, queue_id, properties)
        if copied is not None:
            return Parcel(copied)
    stored = record.decode(data, check_crc=False)
    message = copied_message(stored, java.decode_utf8(topic), queue_id)
    joined = props.append(message.property_bytes, more)
    if len(joined) <= props.LENGTH_MAX:
        message.property_bytes = joined
    message.is_due = True
    return Parcel(b"", message)


@functools.lru_cache(1024)
def _is_legal(topic: bytes, topic_bytes_max: int) -> bool:
    return names.is_legal_topic(java.decode_utf8(topic), topic_bytes_max)


def put_all(store: MessageStore, parcels: Sequence[Parcel], now_ms: int) -> Outcome:
    """Put messages in order, up to the first that the store refuses.

    Does not wait for the disk.
    """
    count = end_offset = 0
    while count < len(parcels):
        end = count
        while end < len(parcels) and parcels[end].message is None:
            end += 1
        if end > count:
            data = b"".join([parcel.data for parcel in parcels[count:end]])
            stored, places = store.put_encoded(data, end - count, now_ms)
            if stored:
                count += stored
                end_offset = places[2 * stored - 2] + len(parcels[count - 1].data)
            if count == end:
                continue
        # The next one must be put decoded, or was refused: put singly, it has its own result.
        message = parcels[count].message or _message(parcels[count].data)
        result = store.put(message, now_ms)
        if result.status is not PutStatus.PUT_OK:
            return Outcome(count, end_offset, result.status, result.reason)
        count, end_offset = count + 1, result.end_offset
    return Outcome(count, end_offset)


def put_places(
    store: MessageStore,
    places: Places,
    rule: CopyRule,
    parcel_of: Callable[[int], Parcel | None],
    now_ms: int,
    *,
    more: bytes = b"",
) -> Outcome:
    """Copy stored messages in order, up to the first that the store refuses.

    Does not wait for the disk.

    Args:
        store: The store.
        places: Positions of the messages, and the range of ``more`` that each gets.
        rule: How the fast path changes the copies.
        parcel_of: Returns the parcel of a message that the fast path cannot copy, by its index in
            ``places``; None to put nothing for it.
        now_ms: Store time of the copies.
        more: Additional properties.

    Returns:
        The result; messages for which nothing was put count as stored.
    """
    count = end_offset = 0
    while count < len(places):
        done, end = store.copier.put(places[count:], rule, now_ms, more=more)
        count, end_offset = count + done, end or end_offset
        if count == len(places):
            break
        next_parcel = parcel_of(count)
        if next_parcel is not None:
            outcome = put_all(store, [next_parcel], now_ms)
            if not outcome.stored_count:
                return Outcome(count, end_offset, outcome.status, outcome.reason)
            end_offset = outcome.end_offset
        count += 1
    return Outcome(count, end_offset)


def _message(data: bytes) -> IncomingMessage:
    stored = record.decode(data, check_crc=False)
    message = copied_message(stored, stored.topic, stored.queue_id)
    message.is_due = True
    return message
