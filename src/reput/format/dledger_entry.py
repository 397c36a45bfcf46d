"""The entry of DLedger's log, the unit of its index, and its checkpoint.

    MAGIC | SIZE | INDEX | TERM | POS | CHANNEL | CHAINCRC | BODYCRC | BODYLEN body

The body is a record of the commit log, whose physical offset is POS + 48. Channel and checksums are
always 0: the body has the checksums of a record. The rest of a file begins with the magic -1 and
its size.
Source: dledger 0.3.2 ``DLedgerEntryCoder``, ``DLedgerMmapFileStore``, ``MmapFileList``.
Field table: docs/formats/dledger.md.
"""

import struct
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from reput.errors import CorruptRecord
from reput.format import message as record

MAGIC = 1
MAGIC_BLANK = -1

HEADER = struct.Struct(
    ">"
    "i"  # MAGIC
    "i"  # SIZE, of the whole entry
    "q"  # INDEX, consecutive
    "q"  # TERM, never less than that of the entry before
    "q"  # POS, physical offset of this header
    "i"  # CHANNEL
    "i"  # CHAINCRC
    "i"  # BODYCRC
    "i"  # BODYLEN
)  # then body
_CHECKED = struct.Struct(">iiqqq12xi")  # the same without the fields that are always 0
BLANK = struct.Struct(
    ">"
    "i"  # MAGIC_BLANK
    "i"  # bytes left in the file, these 8 included
)
INDEX_UNIT = struct.Struct(
    ">"
    "i"  # MAGIC
    "q"  # POS
    "i"  # SIZE
    "q"  # INDEX
    "q"  # TERM
)
INDEX_DTYPE = np.dtype(
    [("magic", ">i4"), ("pos", ">i8"), ("size", ">i4"), ("index", ">i8"), ("term", ">i8")]
)
_BODY_BYTES_MIN = record.FIXED_BYTES_V1


class Chain(NamedTuple):
    """Consecutive entries of a buffer, by the position of their headers."""

    positions: npt.NDArray[np.int64]
    sizes: npt.NDArray[np.int64]
    """Sizes of the entries in bytes, with their headers."""
    indexes: npt.NDArray[np.int64]
    terms: npt.NDArray[np.int64]
    next_position: int
    """Position after the last entry."""
    fault: str
    """Fault of the bytes there, as a sentence; empty without one."""
    is_blank: bool
    """Whether the rest of the file is a blank."""

    def until(self, count: int) -> "Chain":
        """Return the first entries."""
        columns = (self.positions, self.sizes, self.indexes, self.terms)
        positions, sizes, indexes, terms = (column[:count] for column in columns)
        end = int(positions[-1] + sizes[-1]) if count else 0
        return Chain(positions, sizes, indexes, terms, end, self.fault, self.is_blank)


def scan(
    data: bytes | memoryview, physical_offset: int, file_end: int, stop: int, room: int
) -> Chain:
    """Return the entries from the start of a buffer on; the bodies are not judged.

    Args:
        data: The buffer.
        physical_offset: Physical offset of its first byte.
        file_end: Physical offset of the end of the file.
        stop: Physical offset from which on records are left out.
        room: Maximum number of entries.
    """
    unpack, length = _CHECKED.unpack_from, len(data)
    positions: list[int] = []
    indexes: list[int] = []
    terms: list[int] = []
    position = 0
    last = min(length, stop - physical_offset - 1) - HEADER.size
    fault, is_blank = "", False
    while position <= last and len(positions) < room:
        magic, size, index, term, pos, body_bytes = unpack(data, position)
        if (
            magic != MAGIC
            or pos != physical_offset + position
            or size != body_bytes + HEADER.size
            or body_bytes < _BODY_BYTES_MIN
            or pos + size > file_end
        ):
            fault, is_blank = judge(data, position, physical_offset, file_end)
            break
        if position + size > length:
            break
        positions.append(position)
        indexes.append(index)
        terms.append(term)
        position += size
    starts = np.array([*positions, position], np.int64)
    return Chain(
        starts[:-1],
        np.diff(starts),
        np.array(indexes, np.int64),
        np.array(terms, np.int64),
        position,
        fault,
        is_blank,
    )


def judge(
    data: bytes | memoryview, position: int, physical_offset: int, file_end: int
) -> tuple[str, bool]:
    """Return the fault of a header, empty without one, and whether it begins a blank.

    Args:
        data: A buffer with at least the header.
        position: Position of the header.
        physical_offset: Physical offset of the buffer's first byte.
        file_end: Physical offset of the end of the file.
    """
    magic, size, _, _, pos, _, _, _, body_bytes = HEADER.unpack_from(data, position)
    start = physical_offset + position
    if magic == MAGIC_BLANK and size == file_end - start:
        return "", True
    if not any(data[position : position + HEADER.size]):
        return "zeros, where the header of a DLedger entry should be", False
    if magic != MAGIC:
        return f"a DLedger entry has magic {magic}; allowed is {MAGIC}", False
    if pos != start:
        return f"a DLedger entry has position {pos}; allowed is its own, {start}", False
    if size != body_bytes + HEADER.size or not _BODY_BYTES_MIN <= body_bytes <= file_end - start:
        return (
            f"a DLedger entry has {size} bytes with a body of {body_bytes}; allowed is a body of "
            f"{_BODY_BYTES_MIN} bytes or more, and {HEADER.size} bytes around it, in one file"
        ), False
    return "", False


class LedgerCheckpoint(NamedTuple):
    """The file ``checkpoint`` of a member, written every 3 s and at its stop."""

    end_index: int
    """Index of the last entry; -1 without entries."""
    committed_index: int
    """Index of the last entry that the member knows to be on most members; -1 without one."""


def parse_checkpoint(data: bytes, file: str) -> LedgerCheckpoint:
    """Return the contents of a member's checkpoint.

    Raises:
        CorruptRecord: A number is missing.
    """
    values = _properties(data)
    try:
        return LedgerCheckpoint(int(values["endIndex"]), int(values["committedIndex"]))
    except (KeyError, ValueError):
        reason = "it has no numbers endIndex and committedIndex, which a DLedger checkpoint has"
        raise CorruptRecord(reason, file=file) from None


def parse_term(data: bytes, file: str) -> int:
    """Return the term of a member's file ``currterm``.

    Raises:
        CorruptRecord: It has none.
    """
    try:
        return int(_properties(data)["currTerm"])
    except (KeyError, ValueError):
        raise CorruptRecord("it has no number currTerm", file=file) from None


def _properties(data: bytes) -> dict[str, str]:
    pairs = (line.partition("=") for line in data.decode("utf-8", "replace").splitlines())
    return {name.strip(): value.strip() for name, _, value in pairs}
