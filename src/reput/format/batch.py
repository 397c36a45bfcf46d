"""Messages inside a message: the body of a client batch (code 320) and of a BatchCQ record of 5.x.

    repeat of: int totalSize | int magic | int bodyCRC | int flag | int bodyLen, body
               | short propsLen, properties

Magic and CRC are written as 0 by clients and not looked at by anyone. Everything the inner part
does not say (topic, queue, times, hosts) it takes from the message around it.
Field table: docs/formats/commit-log.md.
"""

import struct
from collections.abc import Iterable
from dataclasses import dataclass, replace

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
"""Messages that a batch of a batch queue may hold: units count in a short."""
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
    at = 0
    while at < len(body):
        message, at = decode_one(body, at)
        messages.append(message)
    return messages


def decode_one(body: bytes, at: int) -> tuple[InnerMessage, int]:
    """Return the inner message at a position of a batch body, and where it ends.

    Raises:
        CorruptRecord: A size is impossible; names the position within the body.
    """
    if len(body) - at < FIXED_BYTES:
        raise CorruptRecord(f"batch body has {len(body) - at} bytes left at {at}, too few")
    size, _, _, flag, body_bytes = HEAD.unpack_from(body, at)
    properties_at = at + HEAD.size + body_bytes
    end = at + size
    if body_bytes < 0 or end > len(body) or properties_at + PROPERTIES_LENGTH.size > end:
        raise CorruptRecord(f"batch message at {at} has size {size}, body {body_bytes}")
    (property_bytes,) = PROPERTIES_LENGTH.unpack_from(body, properties_at)
    start = properties_at + PROPERTIES_LENGTH.size
    if property_bytes < 0 or start + property_bytes != end:
        raise CorruptRecord(f"batch message at {at} has size {size}, properties {property_bytes}")
    return InnerMessage(flag, body[at + HEAD.size : properties_at], body[start:end]), end


def unwrap(outer: records.StoredMessage) -> list[records.StoredMessage]:
    """Return the messages a BatchCQ record holds, in queue order; any other record as it is.

    Each takes topic, queue, times and hosts from the record around it and the next queue offset,
    as Java's client does. (INNER_BASE says the record's own queue offset once more.)

    Raises:
        CorruptRecord: The body is not a batch.
    """
    if not outer.sys_flag & flags.INNER_BATCH:
        return [outer]
    plain = outer.sys_flag & ~(
        flags.INNER_BATCH | flags.NEED_UNWRAP | flags.COMPRESSED | flags.COMPRESSION_TYPE_MASK
    )
    return [
        replace(
            outer,
            body=inner.body,
            flag=inner.flag,
            sys_flag=plain,
            queue_offset=outer.queue_offset + i,
            property_bytes=inner.property_bytes,
            properties=props.decode(inner.property_bytes),
        )
        for i, inner in enumerate(decode(outer.plain_body()))
    ]
