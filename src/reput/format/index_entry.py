"""The index file: a hash table from keys to physical offsets of messages.

    header (40) | slots, 4 bytes each | entries, 20 bytes each

A slot holds the number of its newest entry, an entry the number of the previous one in the slot;
entry 0 is never used. Keys are ``topic#key``. Only their hash is stored, so each hit must be
checked against the message (known-bugs.md#hash-collisions). Times are whole seconds after the
header's begin, and the first entry of a rolled file has another base (known-bugs.md#index-seconds,
known-bugs.md#index-first-entry): times narrow a search, but never decide it. Field tables:
docs/formats/index-file.md.
"""

import struct
from dataclasses import dataclass

from reput.errors import CorruptRecord
from reput.format import java

HEADER = struct.Struct(
    ">"
    "q"  # store time of the first entry, ms
    "q"  # store time of the last entry, ms
    "q"  # physical offset of the first entry
    "q"  # physical offset of the last entry
    "i"  # slots in use (4.5: entries put)
    "i"  # number of the next entry; 0 on disk until the first put
)
SLOT = struct.Struct(">i")
ENTRY = struct.Struct(
    ">"
    "i"  # key hash, not negative
    "q"  # physical offset
    "i"  # store time, seconds after the header's begin
    "i"  # number of the previous entry in this slot, 0 for none
)
TAG_KEY_PREFIX = "T#"
"""5.4 and later index each tagged message under ``topic#T#tags`` too."""


@dataclass(frozen=True, slots=True)
class Header:
    """The first 40 bytes."""

    begin_timestamp: int
    end_timestamp: int
    begin_physical_offset: int
    end_physical_offset: int
    slots_used: int
    next_entry: int

    @property
    def entry_count(self) -> int:
        """Entries in the file."""
        return max(self.next_entry - 1, 0)


@dataclass(frozen=True, slots=True)
class Entry:
    """An index entry: key hash, physical offset and time of a message."""

    key_hash: int
    physical_offset: int
    seconds: int
    previous: int


SLACK_MS = 1000
"""Entry times are in whole seconds: a search begins this many ms earlier."""


def key_of(topic: str, key: str) -> str:
    """Return the hashed text of a key or unique key."""
    return f"{topic}#{key}"


def tag_key_of(topic: str, tags: str) -> str:
    """Return the hashed text of a message's tags (5.4 and later)."""
    return f"{topic}#{TAG_KEY_PREFIX}{tags}"


def key_hash(index_key: str) -> int:
    """Return the stored hash of ``topic#key``: the absolute Java hash."""
    return java.absolute_hash(java.string_hash(index_key))


def slot_position(slot: int) -> int:
    """Return the position of a slot in the file."""
    return HEADER.size + SLOT.size * slot


def entry_position(number: int, slot_count: int) -> int:
    """Return the position of an entry in the file."""
    return HEADER.size + SLOT.size * slot_count + ENTRY.size * number


def pack_header(header: Header) -> bytes:
    """Return the 40 bytes of a header."""
    return HEADER.pack(
        header.begin_timestamp,
        header.end_timestamp,
        header.begin_physical_offset,
        header.end_physical_offset,
        header.slots_used,
        header.next_entry,
    )


def unpack_header(buffer: bytes | memoryview) -> Header:
    """Return the header. Raises ``CorruptRecord`` if the file is shorter than one."""
    if len(buffer) < HEADER.size:
        raise CorruptRecord(f"index header is cut: {len(buffer)} of {HEADER.size} bytes")
    return Header(*HEADER.unpack_from(buffer))


def pack_entry(entry: Entry) -> bytes:
    """Return the 20 bytes of an entry."""
    return ENTRY.pack(entry.key_hash, entry.physical_offset, entry.seconds, entry.previous)


def unpack_entry(buffer: bytes | memoryview, position: int) -> Entry:
    """Return the entry at ``position``. Raises ``CorruptRecord`` if it is cut."""
    if position < 0 or len(buffer) - position < ENTRY.size:
        raise CorruptRecord(f"index entry at {position} is cut: {len(buffer)} bytes in all")
    return Entry(*ENTRY.unpack_from(buffer, position))
