"""A stored message, put again elsewhere: due, sent back, committed, or handed out anew.

One alone is decoded, and put as any message is (``again``). Many in a row go from record to record:
what is common is not decoded (``parcel``), and one pass appends them (``put_all``).
"""

import functools
import struct
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from reput.format import (
    java,
    message as record,
    names,
    properties as props,
    sys_flag as flags,
)
from reput.format.message import StoredMessage
from reput.store.incoming import IncomingMessage, PutStatus, with_properties
from reput.store.message_store import MessageStore

_SEPARATOR = props.PROPERTY_SEPARATOR.encode()
_CRC = props.CRC32.encode()
_LIGHT = props.INNER_MULTI_DISPATCH.encode()
_QUEUE_ID_MAX = (1 << 31) - 1
_V6 = flags.BORN_HOST_V6 | flags.STORE_HOST_V6
_BODY_AT = record.FIXED_BYTES_V1 - record.TOPIC_LENGTH_V1.size - record.PROPERTIES_LENGTH.size
"""Where the body of a V1 record with IPv4 hosts begins."""
_HEAD = struct.Struct(">4i")  # size, magic, body checksum, queue id
_PREPARED = struct.Struct(">q")
_PREPARED_AT = _BODY_AT - 12
_PLACE = struct.Struct(">i16xqq")  # size, queue offset, physical offset
_INT = struct.Struct(">i")


def again(
    stored: StoredMessage,
    topic: str,
    queue_id: int,
    *,
    properties: Mapping[str, str] | None = None,
    sys_flag: int | None = None,
    reconsume_times: int | None = None,
) -> IncomingMessage:
    """Return a message like a stored one, for another queue. Nobody's reply waits for it.

    Args:
        stored: The message.
        topic: Where it goes.
        queue_id: Which queue there.
        properties: Those it gets; its own.
        sys_flag: The flags it gets; its own.
        reconsume_times: How often it was consumed; as often as it was.

    Raises:
        Refused: Properties are too long, or cannot be written.
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
    if props.CRC32 in stored.properties:  # of the record that is there
        pairs = stored.property_bytes.split(_SEPARATOR)
        kept_pairs = [one for one in pairs if not one.startswith(record.CRC_PROPERTY_PREFIX)]
        message.property_bytes = _SEPARATOR.join(kept_pairs)
    return message


class Parcel(NamedTuple):
    """A message to be put again."""

    data: bytes
    """Its record, which lacks its place; empty if it is not common."""
    message: IncomingMessage | None = None
    """In that case the message."""


class Outcome(NamedTuple):
    """What became of parcels that were put."""

    stored_count: int
    """So many of them are stored: the first ones."""
    end_offset: int
    """Physical offset behind the last one; 0 if there is none."""
    status: PutStatus = PutStatus.PUT_OK
    """What stopped the next one."""
    reason: str = ""


def records_of(store: MessageStore, places: Sequence[tuple[int, int, int]]) -> list[bytes | None]:
    """Return the records that units of a queue lead to, each None if it is not there.

    Of a record only size and place are looked at.

    Args:
        store: Where they are.
        places: Queue offset, physical offset and size of each.
    """
    found = store.log.read_all([(at, size) for _, at, size in places])
    return [
        data
        if data is not None
        and size >= record.FIXED_BYTES_V1
        and _PLACE.unpack_from(data) == (size, queue_offset, physical_offset)
        else None
        for data, (queue_offset, physical_offset, size) in zip(found, places, strict=True)
    ]


def fitting(sizes: Sequence[int], bytes_max: int) -> int:
    """Return how many of the first sizes are at most so many bytes together; at least one."""
    left = bytes_max
    for count, size in enumerate(sizes):
        left -= size
        if left < 0 and count:
            return count
    return len(sizes)


def destination(properties: bytes) -> tuple[bytes, int] | None:
    """Return the topic, in UTF-8, and queue that a message waits for; None if it does not say."""
    topic = props.find(properties, props.REAL_TOPIC)
    queue_id = props.find(properties, props.REAL_QUEUE_ID)
    if topic is None or queue_id is None or not queue_id.isdigit():
        return None
    number = int(queue_id)
    return (topic, number) if number <= _QUEUE_ID_MAX else None


def property_bytes(data: bytes) -> bytes:
    """Return the property string of a record that a queue has led to.

    Raises:
        CorruptRecord: It is no whole record.
    """
    at = _topic_at(data)
    if at is None:
        return record.decode(data, check_crc=False).property_bytes
    return data[at + 1 + data[at] + record.PROPERTIES_LENGTH.size :]


def _topic_at(data: bytes) -> int | None:
    """Return where the topic's length stands; None if the record is not common, or not whole."""
    if len(data) < record.FIXED_BYTES_V1:
        return None
    size, magic, _, _ = _HEAD.unpack_from(data)
    (sys_flag,) = _INT.unpack_from(data, record.POSITION_SYS_FLAG)
    if size != len(data) or magic != record.MAGIC_V1 or sys_flag & _V6:
        return None
    (body_bytes,) = _INT.unpack_from(data, _BODY_AT - _INT.size)
    at = _BODY_AT + body_bytes
    if body_bytes < 0 or at + 3 > size:
        return None
    behind: int = at + 1 + data[at]
    if behind + 2 > size:
        return None
    (length,) = record.PROPERTIES_LENGTH.unpack_from(data, behind)
    return at if length >= 0 and behind + 2 + length == size else None


def parcel(
    store: MessageStore, data: bytes, topic: bytes, queue_id: int, more: bytes = b""
) -> Parcel:
    """Return a stored message as it is put again; it waits no more.

    Args:
        store: Where it goes.
        data: Its record.
        topic: Where it goes there, in UTF-8.
        queue_id: Which queue of it.
        more: Properties that it gets besides its own, as ``properties.encode`` makes them; left
            out where there is no room for them.

    Raises:
        CorruptRecord: It is no whole record.
    """
    config = store.config
    at = _topic_at(data)
    topic_max = min(config.max_topic_length, record.TOPIC_BYTES_MAX_V1)
    if at is not None and not config.enabled_append_prop_crc and _is_common(topic, topic_max):
        own = data[at + 1 + data[at] + record.PROPERTIES_LENGTH.size :]
        properties = props.append(own, more)
        if len(properties) > props.LENGTH_MAX:
            properties = own
        if _CRC not in own and not (config.enable_multi_dispatch and _LIGHT in own):
            size = at + 1 + len(topic) + 2 + len(properties)
            if size <= config.record_bytes_max:
                head = bytearray(data[:_BODY_AT])
                _HEAD.pack_into(head, 0, size, record.MAGIC_V1, 0, queue_id)
                _PREPARED.pack_into(head, _PREPARED_AT, 0)
                topic_length = record.TOPIC_LENGTH_V1.pack(len(topic))
                length = record.PROPERTIES_LENGTH.pack(len(properties))
                parts = (head, data[_BODY_AT:at], topic_length, topic, length, properties)
                return Parcel(b"".join(parts))
    stored = record.decode(data, check_crc=False)
    message = again(stored, java.decode_utf8(topic), queue_id)
    joined = props.append(message.property_bytes, more)
    if len(joined) <= props.LENGTH_MAX:
        message.property_bytes = joined
    message.is_due = True
    return Parcel(b"", message)


@functools.lru_cache(1024)
def _is_common(topic: bytes, topic_bytes_max: int) -> bool:
    return names.is_legal_topic(java.decode_utf8(topic), topic_bytes_max)


def put_all(store: MessageStore, parcels: Sequence[Parcel], now_ms: int) -> Outcome:
    """Put messages again, in their order, up to the first that the store does not take.

    Does not wait for the disk.
    """
    count = end_offset = 0
    while count < len(parcels):
        behind = count
        while behind < len(parcels) and parcels[behind].message is None:
            behind += 1
        if behind > count:
            data = b"".join([one.data for one in parcels[count:behind]])
            stored, places = store.put_encoded(data, behind - count, now_ms)
            if stored:
                count += stored
                end_offset = places[2 * stored - 2] + len(parcels[count - 1].data)
            if count == behind:
                continue
        # The next one is not common, or was not taken: alone it says why.
        message = parcels[count].message or _message(parcels[count].data)
        result = store.put(message, now_ms)
        if result.status is not PutStatus.PUT_OK:
            return Outcome(count, end_offset, result.status, result.reason)
        count, end_offset = count + 1, result.end_offset
    return Outcome(count, end_offset)


def _message(data: bytes) -> IncomingMessage:
    stored = record.decode(data, check_crc=False)
    message = again(stored, stored.topic, stored.queue_id)
    message.is_due = True
    return message
