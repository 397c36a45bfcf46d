"""The two ids of a message.

*Offset id*: upper-case hex of the store host's address and port and the physical offset; 32
characters for IPv4, 56 for IPv6. It locates the message.

*Unique key*: made by the producer's client, property UNIQ_KEY; 32 or 56 hex characters of address,
process, class loader, time and counter. It identifies the message;
users call it "the message id".
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass

from reput.format.message import PORT, Host, StoredMessage

_PORT_AND_OFFSET = struct.Struct(">iq")
_OFFSET_BYTES = 8
OFFSET_ID_LENGTHS = (32, 56)


@dataclass(frozen=True, slots=True)
class OffsetId:
    """The decoded form of an offset id."""

    store_host: Host
    physical_offset: int


def encode_offset_id(store_host: Host, physical_offset: int) -> str:
    """Return the offset id: ``7F000001000051AF0000000000000000`` for 127.0.0.1:20911, offset 0."""
    packed = _PORT_AND_OFFSET.pack(store_host.port, physical_offset)
    return (store_host.address + packed).hex().upper()


def encode_offset_ids(store_host: Host, physical_offsets: Sequence[int]) -> str:
    """Return the offset ids of messages, separated by commas. Batches can have thousands."""
    packed = struct.pack(f">{len(physical_offsets)}q", *physical_offsets)
    host = (store_host.address + PORT.pack(store_host.port)).hex().upper()
    return host + packed.hex(",", _OFFSET_BYTES).upper().replace(",", f",{host}")


def decode_offset_id(text: str) -> OffsetId:
    """Return host and physical offset of an offset id.

    Raises:
        ValueError: Not 32 or 56 hexadecimal digits.
    """
    if len(text) not in OFFSET_ID_LENGTHS:
        raise ValueError(
            f"message id {text!r} has {len(text)} characters; an offset id has 32 or 56"
        )
    try:
        data = bytes.fromhex(text)
    except ValueError:
        raise ValueError(f"message id {text!r} is not hexadecimal") from None
    if len(data) * 2 != len(text):  # fromhex skips spaces
        raise ValueError(f"message id {text!r} is not hexadecimal")
    split = len(data) - _PORT_AND_OFFSET.size
    port, physical_offset = _PORT_AND_OFFSET.unpack_from(data, split)
    return OffsetId(Host(data[:split], port), physical_offset)


def offset_id(message: StoredMessage) -> str:
    """Return the offset id of a stored message."""
    return encode_offset_id(message.store_host, message.physical_offset)


def message_id(message: StoredMessage) -> str:
    """Return the unique key, or the offset id if the client set no key."""
    return message.unique_key or offset_id(message)
