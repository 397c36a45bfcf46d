"""The commit log record: one stored message, the same bytes on disk, in a pull reply and in Spark.

    TOTALSIZE | MAGIC | BODYCRC | QUEUEID | FLAG | QUEUEOFFSET | PHYSICALOFFSET | SYSFLAG
    | BORNTIMESTAMP | BORNHOST | STORETIMESTAMP | STOREHOST | RECONSUMETIMES
    | PREPAREDTRANSACTIONOFFSET | BODYLEN body | TOPICLEN topic | PROPSLEN properties

A host is an address of 4 bytes, or 16 if the sysFlag has the bit, and a port of 4: fields after
BORNHOST have no fixed position (known-bugs.md#ipv6-positions). V1 has a TOPICLEN of one byte, V2
(5.x, topics over 127 bytes) one of two. A file of the log ends with a blank: the bytes left in the
file, and a magic.

``classify`` judges the bytes at a position: a message, a blank, zeros, or a kind of damage.
``reput.format.kernels`` gives the same verdicts for a whole buffer; this module is the reference.
Field table: docs/formats/commit-log.md.
"""

import enum
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field

from reput.errors import CorruptRecord
from reput.format import (
    body as bodies,
    index_entry,
    java,
    properties as props,
    sys_flag as flags,
)

MAGIC_V1 = -626843481  # 0xDAA320A7
MAGIC_V2 = -626843477  # 0xDAA320AB
MAGIC_BLANK = -875286124  # 0xCBD43194

HEAD = struct.Struct(
    ">"
    "i"  # TOTALSIZE, of the whole record
    "i"  # MAGIC
    "i"  # BODYCRC
    "i"  # QUEUEID
    "i"  # FLAG, the user's
    "q"  # QUEUEOFFSET, in messages
    "q"  # PHYSICALOFFSET, of this record's first byte
    "i"  # SYSFLAG
    "q"  # BORNTIMESTAMP, ms
)  # then BORNHOST
STORE_TIMESTAMP = struct.Struct(">q")  # then STOREHOST
TAIL = struct.Struct(
    ">"
    "i"  # RECONSUMETIMES
    "q"  # PREPAREDTRANSACTIONOFFSET
    "i"  # BODYLEN
)  # then body, TOPICLEN, topic, PROPSLEN, properties
BLANK = struct.Struct(
    ">"
    "i"  # bytes left in the file, these 8 included
    "i"  # MAGIC_BLANK
)
SIZE_AND_MAGIC = struct.Struct(">ii")
PHYSICAL_OFFSET = struct.Struct(">q")
SYS_FLAG = struct.Struct(">i")
PORT = struct.Struct(">i")
TOPIC_LENGTH_V1 = struct.Struct(">B")
TOPIC_LENGTH_V2 = struct.Struct(">H")
PROPERTIES_LENGTH = struct.Struct(">h")

# Fixed positions within a record.
POSITION_TOTAL_SIZE = 0
POSITION_MAGIC = 4
POSITION_BODY_CRC = 8
POSITION_QUEUE_ID = 12
POSITION_FLAG = 16
POSITION_QUEUE_OFFSET = 20
POSITION_PHYSICAL_OFFSET = 28
POSITION_SYS_FLAG = 36
POSITION_BORN_TIMESTAMP = 40
POSITION_BORN_HOST = HEAD.size

JUDGED_BYTES = POSITION_PHYSICAL_OFFSET + PHYSICAL_OFFSET.size
"""Bytes needed to judge a head: up to the physical offset, which must be the offset of the
record."""

SECTOR_BYTES = 512
"""Bytes of a file that a disk writes together: after a power failure, all or none."""

HOST_V4_BYTES = 4 + PORT.size
HOST_V6_BYTES = 16 + PORT.size
FIXED_BYTES_V1 = (
    HEAD.size
    + HOST_V4_BYTES
    + STORE_TIMESTAMP.size
    + HOST_V4_BYTES
    + TAIL.size
    + TOPIC_LENGTH_V1.size
    + PROPERTIES_LENGTH.size
)
"""Size of a V1 record with IPv4 hosts and empty body, topic and properties: 91."""

TOPIC_BYTES_MAX_V1 = 127

CRC_PROPERTY_BYTES = 20
"""Size of the ``__CRC32#`` property at the end: name (8), ``\\x01``, ten digits, ``\\x02``."""
CRC_PROPERTY_PREFIX = (props.CRC32 + props.NAME_VALUE_SEPARATOR).encode()


class Verdict(enum.IntEnum):
    """Judgement of the bytes at a position of a log file. ``BAD_SIZE`` and above are damage."""

    MESSAGE = 0
    BLANK = 1
    """The end-of-file blank; nothing follows in this file."""
    ZEROS = 2
    """Zeros up to the end of the buffer: not written yet."""
    TRUNCATED = 3
    """The record exceeds the buffer: read more, or it is torn."""
    BAD_SIZE = 4
    BAD_MAGIC = 5
    BAD_LENGTH = 6
    BAD_PHYSICAL_OFFSET = 7
    BAD_CRC = 8
    BAD_RECORD_CRC = 9
    BAD_ZEROS = 10
    MISSING = 11
    """The file of a range is missing."""


REASONS = {
    Verdict.TRUNCATED: "the record exceeds the data",
    Verdict.BAD_SIZE: "TOTALSIZE is impossible here",
    Verdict.BAD_MAGIC: "not a record: unknown magic",
    Verdict.BAD_LENGTH: "body, topic and property lengths do not add up to TOTALSIZE",
    Verdict.BAD_PHYSICAL_OFFSET: "PHYSICALOFFSET is not the offset of the record",
    Verdict.BAD_CRC: "body does not match BODYCRC",
    Verdict.BAD_RECORD_CRC: "record does not match its __CRC32# property",
    Verdict.BAD_ZEROS: "zeros where records should be",
    Verdict.MISSING: "the file is missing",
}


@dataclass(frozen=True, slots=True)
class Host:
    """Address and port of a host, as stored in a record."""

    address: bytes
    """IPv4 (4 bytes) or IPv6 address (16 bytes)."""
    port: int

    def __str__(self) -> str:
        """Return ``192.0.2.1:10911`` or, with all groups as in Java, ``[fd00:0:…:2]:10911``."""
        if len(self.address) == 4:
            return f"{'.'.join(map(str, self.address))}:{self.port}"
        groups = struct.unpack(">8H", self.address)
        return f"[{':'.join(f'{group:x}' for group in groups)}]:{self.port}"

    @property
    def is_v6(self) -> bool:
        """True for an IPv6 address."""
        return len(self.address) == 16


@dataclass(frozen=True, slots=True)
class StoredMessage:
    """A stored message. Times are ms since the epoch; ``body`` is as stored."""

    topic: str
    body: bytes
    queue_id: int
    queue_offset: int
    physical_offset: int
    born_timestamp: int
    born_host: Host
    store_timestamp: int
    store_host: Host
    flag: int = 0
    sys_flag: int = 0
    reconsume_times: int = 0
    prepared_transaction_offset: int = 0
    body_crc: int = 0
    store_size: int = 0
    version: int = 1
    """Version of the record layout, 1 or 2."""
    property_bytes: bytes = b""
    properties: Mapping[str, str] = field(default_factory=dict)
    """``property_bytes`` decoded."""
    batch_unique_key: str | None = None
    """Unique key of the batch record that has the message inside; producers get it as the id."""

    @property
    def tags(self) -> str | None:
        """The TAGS property."""
        return self.properties.get(props.TAGS)

    @property
    def keys(self) -> list[str]:
        """The words of the KEYS property."""
        return props.split_keys(self.properties.get(props.KEYS))

    @property
    def unique_key(self) -> str | None:
        """The id that the producer's client set, if any."""
        return self.properties.get(props.UNIQ_KEY)

    def has_unique_key(self, unique_key: str) -> bool:
        """Return whether the message, or the batch that has it inside, has a unique key."""
        return unique_key in (self.unique_key, self.batch_unique_key)

    def plain_body(self) -> bytes:
        """Return the decompressed body. Raises ``CorruptRecord`` if it cannot be decompressed."""
        return bodies.decompress(self.body, self.sys_flag)


def host_bytes(is_v6: int | bool) -> int:
    """Return the size of a host field in bytes."""
    return HOST_V6_BYTES if is_v6 else HOST_V4_BYTES


def prepared_transaction_position(sys_flag: int) -> int:
    """Return the position of PREPAREDTRANSACTIONOFFSET in a record, from its sysFlag."""
    born = host_bytes(sys_flag & flags.BORN_HOST_V6)
    stored = host_bytes(sys_flag & flags.STORE_HOST_V6)
    reconsume_times_bytes = 4
    return POSITION_BORN_HOST + born + STORE_TIMESTAMP.size + stored + reconsume_times_bytes


def store_timestamp_of(data: bytes | memoryview) -> int:
    """Return STORETIMESTAMP of a whole record without decoding the rest, ms."""
    (sys_flag,) = SYS_FLAG.unpack_from(data, POSITION_SYS_FLAG)
    position = POSITION_BORN_HOST + host_bytes(sys_flag & flags.BORN_HOST_V6)
    timestamp: int = STORE_TIMESTAMP.unpack_from(data, position)[0]
    return timestamp


def queue_offsets_in(data: bytes) -> list[int]:
    """Return QUEUEOFFSET of concatenated records without decoding the rest."""
    return _longs_in(data, POSITION_QUEUE_OFFSET)


def physical_offsets_in(data: bytes) -> list[int]:
    """Return PHYSICALOFFSET of concatenated records without decoding the rest."""
    return _longs_in(data, POSITION_PHYSICAL_OFFSET)


def _longs_in(data: bytes, position: int) -> list[int]:
    values = []
    record_start = 0
    while record_start < len(data):
        start = record_start + position
        values.append(int.from_bytes(data[start : start + 8], "big"))
        record_start += SIZE_AND_MAGIC.unpack_from(data, record_start)[0]
    return values


def index_keys(message: StoredMessage, *, has_tags: bool) -> list[str]:
    """Return the index keys of a message, in the order of a broker.

    Unique key, keys, and from 5.4 on the tags (``has_tags``); see ``index_entry.key_of``.
    """
    keys = [message.unique_key] if message.unique_key else []
    texts = [index_entry.key_of(message.topic, key) for key in [*keys, *message.keys]]
    if has_tags and message.tags:
        texts.append(index_entry.tag_key_of(message.topic, message.tags))
    return texts


def pack_blank(bytes_left: int) -> bytes:
    """Return the blank that ends a log file ``bytes_left`` bytes before its end."""
    return BLANK.pack(bytes_left, MAGIC_BLANK)


def encode(message: StoredMessage) -> bytes:
    """Return the record of ``message``.

    ``property_bytes`` is written unchanged; ``properties`` and ``store_size`` are ignored, and a
    topic over 127 bytes makes the version 2. The host bits of ``sys_flag`` must agree with the
    hosts, ``body_crc`` is written as given (``reput.format.body.crc`` makes it).

    Raises:
        ValueError: A length does not fit its field, or the host bits are wrong.
    """
    topic = java.encode_utf8(message.topic)
    for name, bit, host in (
        ("born", flags.BORN_HOST_V6, message.born_host),
        ("store", flags.STORE_HOST_V6, message.store_host),
    ):
        if bool(message.sys_flag & bit) != host.is_v6 or len(host.address) not in (4, 16):
            raise ValueError(
                f"{name} host {host.address!r} and sysFlag {message.sys_flag:#x} differ"
            )
    if len(message.property_bytes) > props.LENGTH_MAX:
        raise ValueError(
            f"properties take {len(message.property_bytes)} bytes, over {props.LENGTH_MAX}"
        )
    is_v2 = message.version == 2 or len(topic) > TOPIC_BYTES_MAX_V1
    topic_length = TOPIC_LENGTH_V2 if is_v2 else TOPIC_LENGTH_V1
    if len(topic) > 32767:
        raise ValueError(f"topic takes {len(topic)} bytes, over 32767")
    rest = b"".join(
        (
            message.born_host.address,
            PORT.pack(message.born_host.port),
            STORE_TIMESTAMP.pack(message.store_timestamp),
            message.store_host.address,
            PORT.pack(message.store_host.port),
            TAIL.pack(
                message.reconsume_times, message.prepared_transaction_offset, len(message.body)
            ),
            message.body,
            topic_length.pack(len(topic)),
            topic,
            PROPERTIES_LENGTH.pack(len(message.property_bytes)),
            message.property_bytes,
        )
    )
    head = HEAD.pack(
        HEAD.size + len(rest),
        MAGIC_V2 if is_v2 else MAGIC_V1,
        message.body_crc,
        message.queue_id,
        message.flag,
        message.queue_offset,
        message.physical_offset,
        message.sys_flag,
        message.born_timestamp,
    )
    return head + rest


def classify(
    buffer: bytes | memoryview,
    position: int,
    physical_offset: int,
    *,
    file_end: int | None = None,
    check_crc: bool = True,
) -> tuple[Verdict, int]:
    """Judge the bytes at ``position`` of a log file.

    Args:
        buffer: A log file, or its first part.
        position: Position to judge; less than ``len(buffer)``.
        physical_offset: Physical offset of ``position``, which the record must contain.
        file_end: Position of the file's end; None: the end of the buffer.
        check_crc: Compare the body with BODYCRC, and the record with ``__CRC32#`` if it has one.

    Returns:
        The verdict and its number of bytes: the size of the record or blank, for ``ZEROS`` the rest
        of the buffer, for ``TRUNCATED`` the size in the record (0 if that is missing too), for a
        failed checksum the size of the record, for other damage 0.
    """
    view = memoryview(buffer)
    left = len(view) - position
    file_left = left if file_end is None else file_end - position
    if left < file_left and left < JUDGED_BYTES:
        return Verdict.TRUNCATED, 0
    if left < SIZE_AND_MAGIC.size:
        return (Verdict.BAD_SIZE, 0) if any(view[position:]) else (Verdict.ZEROS, left)
    size, magic = SIZE_AND_MAGIC.unpack_from(view, position)
    if size == 0 and magic == 0:
        zeros = not any(view[position:])
        return (Verdict.ZEROS, left) if zeros else (Verdict.BAD_ZEROS, 0)
    if magic == MAGIC_BLANK:
        return (Verdict.BLANK, size) if size == file_left else (Verdict.BAD_SIZE, 0)
    if magic not in (MAGIC_V1, MAGIC_V2):
        return Verdict.BAD_MAGIC, 0
    topic_length = TOPIC_LENGTH_V2 if magic == MAGIC_V2 else TOPIC_LENGTH_V1
    fixed_bytes = FIXED_BYTES_V1 - TOPIC_LENGTH_V1.size + topic_length.size
    if size < fixed_bytes or size > file_left:
        return Verdict.BAD_SIZE, 0
    (own_offset,) = PHYSICAL_OFFSET.unpack_from(view, position + POSITION_PHYSICAL_OFFSET)
    if size > left:
        # Only a record at its own offset is worth reading further.
        is_here = own_offset == physical_offset
        return (Verdict.TRUNCATED, size) if is_here else (Verdict.BAD_PHYSICAL_OFFSET, 0)
    end = position + size
    (sys_flag,) = struct.unpack_from(">i", view, position + POSITION_SYS_FLAG)
    cursor = position + POSITION_BORN_HOST + host_bytes(sys_flag & flags.BORN_HOST_V6)
    cursor += STORE_TIMESTAMP.size + host_bytes(sys_flag & flags.STORE_HOST_V6)
    if cursor + TAIL.size > end:
        return Verdict.BAD_LENGTH, 0
    body_length = TAIL.unpack_from(view, cursor)[2]
    body_at = cursor + TAIL.size
    topic_at = body_at + body_length
    if body_length < 0 or topic_at + topic_length.size > end:
        return Verdict.BAD_LENGTH, 0
    (topic_bytes,) = topic_length.unpack_from(view, topic_at)
    properties_at = topic_at + topic_length.size + topic_bytes
    # Java reads the length of V1 as a signed byte: such a topic cannot have been written.
    if properties_at + PROPERTIES_LENGTH.size > end or (
        magic == MAGIC_V1 and topic_bytes > TOPIC_BYTES_MAX_V1
    ):
        return Verdict.BAD_LENGTH, 0
    (property_bytes,) = PROPERTIES_LENGTH.unpack_from(view, properties_at)
    if property_bytes < 0 or properties_at + PROPERTIES_LENGTH.size + property_bytes != end:
        return Verdict.BAD_LENGTH, 0
    if own_offset != physical_offset:
        return Verdict.BAD_PHYSICAL_OFFSET, 0
    if check_crc:
        (body_crc,) = struct.unpack_from(">i", view, position + POSITION_BODY_CRC)
        if body_length and bodies.crc(view[body_at:topic_at]) != body_crc:
            return Verdict.BAD_CRC, size
        if property_bytes >= CRC_PROPERTY_BYTES and not _record_crc_matches(view, position, end):
            return Verdict.BAD_RECORD_CRC, size
    return Verdict.MESSAGE, size


def ends_in_zeros(property_bytes: bytes, end: int) -> bool:
    """Return whether the properties in a record's last sector are zeros: it was never written.

    Args:
        property_bytes: The properties, with which the record ends. None ends with a zero.
        end: End of the record: a position in its file.
    """
    return bool(property_bytes) and not any(property_bytes[-((end - 1) % SECTOR_BYTES + 1) :])


def _record_crc_matches(view: memoryview, position: int, end: int) -> bool:
    """Check the ``__CRC32#`` property a record may end with (digits least significant first)."""
    start = end - CRC_PROPERTY_BYTES
    trailer = bytes(view[start:end])
    digits = trailer[len(CRC_PROPERTY_PREFIX) : -1]
    if not (
        trailer.startswith(CRC_PROPERTY_PREFIX)
        and trailer.endswith(props.PROPERTY_SEPARATOR.encode())
        and digits.isdigit()
    ):
        return True
    return int(digits[::-1]) == bodies.crc(view[position:start])


def decode(
    buffer: bytes | memoryview, position: int = 0, *, check_crc: bool = True
) -> StoredMessage:
    """Return the message whose record starts at ``position``.

    The physical offset is taken from the record: in a pull reply nothing says where it stood.

    Raises:
        CorruptRecord: There is no whole, undamaged record at ``position``.
    """
    view = memoryview(buffer)
    if len(view) - position < HEAD.size:
        raise CorruptRecord(f"{len(view) - position} bytes are too few for a record")
    head = HEAD.unpack_from(view, position)
    size, magic, body_crc, queue_id, flag, queue_offset, physical_offset, sys_flag, born_at = head
    verdict, _ = classify(view, position, physical_offset, check_crc=check_crc)
    if verdict is not Verdict.MESSAGE:
        reason = REASONS.get(verdict, f"no record here, but {verdict.name.lower()}")
        raise CorruptRecord(reason, physical_offset=physical_offset)
    born_host, cursor = _host(view, position + HEAD.size, sys_flag & flags.BORN_HOST_V6)
    (store_timestamp,) = STORE_TIMESTAMP.unpack_from(view, cursor)
    store_host, cursor = _host(view, cursor + STORE_TIMESTAMP.size, sys_flag & flags.STORE_HOST_V6)
    reconsume_times, prepared_offset, body_length = TAIL.unpack_from(view, cursor)
    cursor += TAIL.size
    body = bytes(view[cursor : cursor + body_length])
    cursor += body_length
    topic_length = TOPIC_LENGTH_V2 if magic == MAGIC_V2 else TOPIC_LENGTH_V1
    (topic_bytes,) = topic_length.unpack_from(view, cursor)
    cursor += topic_length.size
    topic = java.decode_utf8(bytes(view[cursor : cursor + topic_bytes]))
    property_bytes = bytes(view[cursor + topic_bytes + PROPERTIES_LENGTH.size : position + size])
    return StoredMessage(
        topic=topic,
        body=body,
        queue_id=queue_id,
        queue_offset=queue_offset,
        physical_offset=physical_offset,
        born_timestamp=born_at,
        born_host=born_host,
        store_timestamp=store_timestamp,
        store_host=store_host,
        flag=flag,
        sys_flag=sys_flag,
        reconsume_times=reconsume_times,
        prepared_transaction_offset=prepared_offset,
        body_crc=body_crc,
        store_size=size,
        version=2 if magic == MAGIC_V2 else 1,
        property_bytes=property_bytes,
        properties=props.decode(property_bytes),
    )


def topic_and_queue(data: bytes) -> tuple[str, int, int]:
    """Return topic, queue id and system flag of a record, which is all of ``data``.

    Raises:
        CorruptRecord: Its lengths contradict each other. Its head is taken for granted.
    """
    magic, queue_id, sys_flag = _QUEUE_AND_FLAG.unpack_from(data)
    cursor = _BODY_V4
    if sys_flag & _ANY_HOST_V6:
        cursor += host_bytes(sys_flag & flags.BORN_HOST_V6)
        cursor += host_bytes(sys_flag & flags.STORE_HOST_V6)
        cursor -= _HOSTS_V4_BYTES
    body_length = int.from_bytes(data[cursor - 4 : cursor], "big", signed=True)
    length_bytes = TOPIC_LENGTH_V2.size if magic == MAGIC_V2 else TOPIC_LENGTH_V1.size
    start = cursor + body_length + length_bytes
    end = start + int.from_bytes(data[start - length_bytes : start], "big")
    properties_at = end + PROPERTIES_LENGTH.size
    property_bytes = int.from_bytes(data[end:properties_at], "big")
    if body_length < 0 or properties_at + property_bytes != len(data):
        raise CorruptRecord(REASONS[Verdict.BAD_LENGTH])
    return java.decode_utf8(data[start:end]), queue_id, sys_flag


_QUEUE_AND_FLAG = struct.Struct(">4xi4xi20xi")
"""Magic number, queue id and system flag in the head of a record."""


def property_text(data: memoryview) -> str:
    """Return the property string of a record, which is all of ``data``; nothing else is decoded.

    Raises:
        CorruptRecord: Its lengths contradict each other. Its head is taken for granted.
    """
    # Magic, sys flag, and body length where both hosts are IPv4.
    magic, sys_flag, body_length = struct.unpack_from(">4xi28xi44xi", data)
    cursor = _BODY_V4
    if sys_flag & _ANY_HOST_V6:
        cursor += host_bytes(sys_flag & flags.BORN_HOST_V6)
        cursor += host_bytes(sys_flag & flags.STORE_HOST_V6)
        cursor -= _HOSTS_V4_BYTES
        if cursor > len(data):
            raise CorruptRecord(REASONS[Verdict.BAD_LENGTH])
        (body_length,) = struct.unpack_from(">i", data, cursor - 4)
    cursor += body_length
    length_bytes = TOPIC_LENGTH_V2.size if magic == MAGIC_V2 else TOPIC_LENGTH_V1.size
    if body_length >= 0 and cursor + length_bytes <= len(data):
        topic_bytes = data[cursor] if length_bytes == 1 else data[cursor] << 8 | data[cursor + 1]
        cursor += length_bytes + topic_bytes + PROPERTIES_LENGTH.size
        length = data[cursor - 2] << 8 | data[cursor - 1] if cursor <= len(data) else -1
        if length < 1 << 15 and cursor + length == len(data):
            try:
                return str(data[cursor:], "utf-8")
            except UnicodeDecodeError:
                return java.decode_utf8(bytes(data[cursor:]))
    raise CorruptRecord(REASONS[Verdict.BAD_LENGTH])


_HOSTS_V4_BYTES = 16
_BODY_V4 = POSITION_BORN_HOST + _HOSTS_V4_BYTES + STORE_TIMESTAMP.size + TAIL.size
_ANY_HOST_V6 = flags.BORN_HOST_V6 | flags.STORE_HOST_V6


def _host(view: memoryview, cursor: int, is_v6: int) -> tuple[Host, int]:
    end = cursor + host_bytes(is_v6)
    (port,) = PORT.unpack_from(view, end - PORT.size)
    return Host(bytes(view[cursor : end - PORT.size]), port), end


def append_crc_property(record: bytes) -> bytes:
    """Return the record with its ``__CRC32#`` property added (5.x ``enabledAppendPropCRC``).

    The property string must end with its last separator, as the broker sees to; queue offset,
    physical offset and store time must be final.

    Raises:
        ValueError: The properties would exceed their field, or lack the last separator.
    """
    size, magic = SIZE_AND_MAGIC.unpack_from(record)
    message = decode(record, check_crc=False)
    properties = message.property_bytes
    if properties and not properties.endswith(props.PROPERTY_SEPARATOR.encode()):
        raise ValueError("property string lacks its last separator")
    if len(properties) + CRC_PROPERTY_BYTES > props.LENGTH_MAX:
        raise ValueError(f"properties with __CRC32# take over {props.LENGTH_MAX} bytes")
    longer = bytearray(record)
    SIZE_AND_MAGIC.pack_into(longer, 0, size + CRC_PROPERTY_BYTES, magic)
    PROPERTIES_LENGTH.pack_into(
        longer,
        size - len(properties) - PROPERTIES_LENGTH.size,
        len(properties) + CRC_PROPERTY_BYTES,
    )
    digits = f"{bodies.crc(bytes(longer)):010d}"[::-1]
    return bytes(longer) + CRC_PROPERTY_PREFIX + digits.encode() + props.PROPERTY_SEPARATOR.encode()
