"""Messages inside a message: the body of a client batch (code 320) and of a BatchCQ record of 5.x.

    repeat of: int totalSize | int magic | int bodyCRC | int flag | int bodyLen, body
               | short propsLen, properties

Clients write magic and CRC as 0, and no reader checks them. An inner message inherits topic, queue,
times and hosts from the message around it.
Field table: docs/formats/commit-log.md.
"""

import struct
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import NamedTuple

from reput.errors import CorruptRecord
from reput.format import message as records, properties as props, sys_flag as flags

HEAD = struct.Struct(
    ">"
    "i"  # totalSize, of this inner message
    "i"  # magic, 0
    "i"  # bodyCRC, 0
    "i"  # flag
    "i"  # bodyLen
)
PROPERTIES_LENGTH = struct.Struct(">h")
COUNT_MAX = (1 << 15) - 1
"""Maximum number of messages in a batch of a batch queue: the count of a unit is a short."""
OUTER_FLAGS = flags.INNER_BATCH | flags.NEED_UNWRAP | flags.COMPRESSED | flags.COMPRESSION_TYPE_MASK
"""Flags of a BatchCQ record that do not apply to the messages inside."""
FLAG_POSITION = struct.calcsize(">iii")
FIXED_BYTES = HEAD.size + PROPERTIES_LENGTH.size


@dataclass(frozen=True, slots=True)
class InnerMessage:
    """One message of a batch, as the client wrote it."""

    flag: int
    body: bytes
    property_bytes: bytes


def encode(messages: Iterable[InnerMessage]) -> bytes:
    """Return a batch body. Raises ``ValueError`` if properties exceed their field."""
    parts: list[bytes] = []
    for message in messages:
        if len(message.property_bytes) > props.LENGTH_MAX:
            raise ValueError(
                f"properties take {len(message.property_bytes)} bytes, over {props.LENGTH_MAX}"
            )
        size = FIXED_BYTES + len(message.body) + len(message.property_bytes)
        parts += (
            HEAD.pack(size, 0, 0, message.flag, len(message.body)),
            message.body,
            PROPERTIES_LENGTH.pack(len(message.property_bytes)),
            message.property_bytes,
        )
    return b"".join(parts)


def decode(body: bytes) -> list[InnerMessage]:
    """Return the inner messages of a batch body.

    Raises:
        CorruptRecord: A size is impossible; names the position within the body.
    """
    messages = []
    position = 0
    while position < len(body):
        message, position = decode_one(body, position)
        messages.append(message)
    return messages


class Place(NamedTuple):
    """Positions of the parts of an inner message in a batch body."""

    flag: int
    body_position: int
    body_bytes: int
    properties_position: int
    end: int
    """Position after its last byte, which is one of its properties."""


def decode_one(body: bytes, position: int) -> tuple[InnerMessage, int]:
    """Return the inner message at a position of a batch body, and the position after it.

    Raises:
        CorruptRecord: A size is impossible; names the position within the body.
    """
    place = place_at(body, position)
    inner = body[place.body_position : place.body_position + place.body_bytes]
    return InnerMessage(place.flag, inner, body[place.properties_position : place.end]), place.end


def places(body: bytes | memoryview) -> list[Place]:
    """Return where the inner messages of a batch body are. Raises as ``decode``."""
    inner = []
    position = 0
    while position < len(body):
        inner.append(place_at(body, position))
        position = inner[-1].end
    return inner


def place_at(body: bytes | memoryview, position: int) -> Place:
    """Return the positions of the parts of an inner message. Raises as ``decode_one``."""
    left_bytes = len(body) - position
    if left_bytes < FIXED_BYTES:
        raise CorruptRecord(f"batch body has {left_bytes} bytes left at {position}, too few")
    size, _, _, flag, body_bytes = HEAD.unpack_from(body, position)
    properties_at = position + HEAD.size + body_bytes
    end = position + size
    if body_bytes < 0 or end > len(body) or properties_at + PROPERTIES_LENGTH.size > end:
        raise CorruptRecord(f"batch message at {position} has size {size}, body {body_bytes}")
    (property_bytes,) = PROPERTIES_LENGTH.unpack_from(body, properties_at)
    start = properties_at + PROPERTIES_LENGTH.size
    if property_bytes < 0 or start + property_bytes != end:
        raise CorruptRecord(
            f"batch message at {position} has size {size}, properties {property_bytes}"
        )
    return Place(flag, position + HEAD.size, body_bytes, start, end)


def unwrap(outer: records.StoredMessage) -> list[records.StoredMessage]:
    """Return the messages of a BatchCQ record in queue order; any other record unchanged.

    Each inherits topic, queue, times and hosts from the record and gets the next queue offset, as
    in Java's client. (INNER_BASE repeats the queue offset of the record.)

    Raises:
        CorruptRecord: The body is not a batch.
    """
    if not outer.sys_flag & flags.INNER_BATCH:
        return [outer]
    plain = outer.sys_flag & ~OUTER_FLAGS
    return [
        replace(
            outer,
            body=inner.body,
            flag=inner.flag,
            sys_flag=plain,
            queue_offset=outer.queue_offset + i,
            property_bytes=inner.property_bytes,
            properties=props.decode(inner.property_bytes),
            batch_unique_key=outer.unique_key,
        )
        for i, inner in enumerate(decode(outer.plain_body()))
    ]


def unwrap_if_valid(outer: records.StoredMessage) -> list[records.StoredMessage]:
    """Return the messages of a BatchCQ record as ``unwrap``, or a record that is no batch."""
    try:
        return unwrap(outer)
    except CorruptRecord:
        return [outer]
