"""A stored message, put again elsewhere: due, sent back, committed, or handed out anew.

Many in a row go from record to record, in a kernel (``put_places``). What is not common for that
goes through Python: as bytes, if it can (``parcel``), or decoded, and put as any message is
(``again``).
"""

import functools
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from reput.format import (
    java,
    message as record,
    names,
    properties as props,
    sys_flag as flags,
)
from reput.format.message import StoredMessage
from reput.store.config import StoreConfig
from reput.store.copying import CopyRule, Places
from reput.store.incoming import IncomingMessage, PutStatus, with_properties
from reput.store.message_store import MessageStore

_SEPARATOR = props.PROPERTY_SEPARATOR.encode()
_CRC = props.CRC32.encode()
_LIGHT = props.INNER_MULTI_DISPATCH.encode()
_INT_MAX = (1 << 31) - 1
_UNCOMMON_FLAGS = flags.BORN_HOST_V6 | flags.STORE_HOST_V6 | flags.INNER_BATCH
_BODY_AT = record.FIXED_BYTES_V1 - record.TOPIC_LENGTH_V1.size - record.PROPERTIES_LENGTH.size
"""Where the body of a V1 record with IPv4 hosts begins."""
_HEAD = struct.Struct(">4i")  # size, magic, body checksum, queue id
_COMMON = struct.Struct(">2i20xqi")  # size, magic, physical offset, sys flag
_PREPARED = struct.Struct(">iq")  # reconsume times, prepared transaction offset
_RECONSUME_AT = _BODY_AT - record.TAIL.size
_STORE_HOST_AT = _RECONSUME_AT - record.HOST_V4_BYTES
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
    number = props.number(queue_id, names.QUEUE_ID_MAX)
    return None if topic is None or number is None else (topic, number)


def property_bytes(data: bytes) -> bytes:
    """Return the property string of a record that a queue has led to.

    Raises:
        CorruptRecord: It is no whole record.
    """
    found = common_record(data)
    return found.properties if found else record.decode(data, check_crc=False).property_bytes


class CommonRecord(NamedTuple):
    """A stored V1 record with IPv4 hosts, in parts."""

    head: bytes
    """All fields before the body."""
    body: bytes
    topic: bytes
    properties: bytes

    @property
    def reconsume_times(self) -> int:
        """How often the message was consumed."""
        times: int = _INT.unpack_from(self.head, _RECONSUME_AT)[0]
        return times

    @property
    def offset_id(self) -> str:
        """The message id that is made of host and place."""
        place = self.head[record.POSITION_PHYSICAL_OFFSET : record.POSITION_SYS_FLAG]
        return (self.head[_STORE_HOST_AT:_RECONSUME_AT] + place).hex().upper()


def common_record(data: bytes, physical_offset: int | None = None) -> CommonRecord | None:
    """Return the parts of a record; None if it is not common, not whole, or says another place."""
    if len(data) < record.FIXED_BYTES_V1:
        return None
    size, magic, own_offset, sys_flag = _COMMON.unpack_from(data)
    if size != len(data) or magic != record.MAGIC_V1 or sys_flag & _UNCOMMON_FLAGS:
        return None
    if physical_offset is not None and own_offset != physical_offset:
        return None
    (body_bytes,) = _INT.unpack_from(data, _BODY_AT - _INT.size)
    at = _BODY_AT + body_bytes
    if body_bytes < 0 or at + 3 > size:
        return None
    behind: int = at + 1 + data[at]
    if data[at] > record.TOPIC_BYTES_MAX_V1 or behind + 2 > size:
        return None
    (length,) = record.PROPERTIES_LENGTH.unpack_from(data, behind)
    if length < 0 or behind + 2 + length != size:
        return None
    return CommonRecord(
        data[:_BODY_AT], data[_BODY_AT:at], data[at + 1 : behind], data[behind + 2 :]
    )


def made_anew(
    config: StoreConfig,
    stored: CommonRecord,
    topic: bytes,
    queue_id: int,
    properties: bytes,
    reconsume_more: int = 0,
) -> bytes | None:
    """Return the record, which lacks its place, that a stored one is when it is put again.

    Args:
        config: Of the store where it goes.
        stored: The stored one.
        topic: Where it goes, in UTF-8.
        queue_id: Which queue there.
        properties: All that it gets.
        reconsume_more: Is added to how often it was consumed.

    Returns:
        None: it is not common; it must be decoded.
    """
    size = record.FIXED_BYTES_V1 + len(stored.body) + len(topic) + len(properties)
    reconsume_times = stored.reconsume_times + reconsume_more
    if (
        config.enabled_append_prop_crc
        or len(topic) > record.TOPIC_BYTES_MAX_V1  # of others nothing is kept in a cache
        or not _is_common(topic, min(config.max_topic_length, record.TOPIC_BYTES_MAX_V1))
        or len(properties) > props.LENGTH_MAX
        or size > config.record_bytes_max
        or reconsume_times > _INT_MAX
        or _CRC in properties
        or (config.enable_multi_dispatch and _LIGHT in properties)
    ):
        return None
    head = bytearray(stored.head)
    _HEAD.pack_into(head, 0, size, record.MAGIC_V1, 0, queue_id)
    _PREPARED.pack_into(head, _RECONSUME_AT, reconsume_times, 0)
    topic_length = record.TOPIC_LENGTH_V1.pack(len(topic))
    length = record.PROPERTIES_LENGTH.pack(len(properties))
    return b"".join((head, stored.body, topic_length, topic, length, properties))


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
    found = common_record(data)
    if found is not None:
        properties = props.append(found.properties, more)
        if len(properties) > props.LENGTH_MAX:
            properties = found.properties
        made = made_anew(store.config, found, topic, queue_id, properties)
        if made is not None:
            return Parcel(made)
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


def put_places(
    store: MessageStore,
    places: Places,
    rule: CopyRule,
    parcel_of: Callable[[int], Parcel | None],
    now_ms: int,
    *,
    more: bytes = b"",
) -> Outcome:
    """Put stored messages again, in their order, up to the first that the store does not take.

    Does not wait for the disk.

    Args:
        store: Where they are, and go.
        places: Where they stand, and which bytes of ``more`` each gets.
        rule: What becomes of those that are common.
        parcel_of: Returns what is put in place of the others, by their number among the places;
            None: nothing is, and that is well.
        now_ms: Their store time.
        more: Properties.

    Returns:
        What became of them; those in whose place nothing was put count as stored.
    """
    count = end_offset = 0
    while count < len(places):
        done, end = store.copier.put(places[count:], rule, now_ms, more=more)
        count, end_offset = count + done, end or end_offset
        if count == len(places):
            break
        one = parcel_of(count)
        if one is not None:
            outcome = put_all(store, [one], now_ms)
            if not outcome.stored_count:
                return Outcome(count, end_offset, outcome.status, outcome.reason)
            end_offset = outcome.end_offset
        count += 1
    return Outcome(count, end_offset)


def _message(data: bytes) -> IncomingMessage:
    stored = record.decode(data, check_crc=False)
    message = again(stored, stored.topic, stored.queue_id)
    message.is_due = True
    return message
