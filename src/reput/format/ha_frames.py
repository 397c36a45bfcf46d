"""Frames between a master and its slaves, in the classic mode of all versions.

    slave -> master:  MAX PHYSICAL OFFSET (8)          first the start, then acknowledgements
    master -> slave:  PHYSICAL OFFSET (8) | SIZE (4)   then SIZE bytes of the log; 0: a heartbeat

Big endian. The bytes of the log are not aligned to records, and never cross a file. Source:
``HAConnection`` and ``HAService`` of 4.x, ``DefaultHAConnection`` and ``DefaultHAClient`` of 5.x.
"""

import struct
from collections.abc import Sequence
from typing import NamedTuple

from reput.errors import NotAFrame

DATA_BYTES_MAX = 4 * 1024 * 1024 - 12
"""Maximum bytes of the log in a frame: with its header, it must fit into the buffer of Java's
slaves."""

_REPORT = struct.Struct(">q")
_HEADER = struct.Struct(">qi")
REPORT_BYTES = _REPORT.size
HEADER_BYTES = _HEADER.size


class FrameHeader(NamedTuple):
    """The header of a master's frame."""

    physical_offset: int
    """Physical offset of the first byte after the header."""
    size: int
    """Bytes of the log after the header; 0 in a heartbeat."""


def encode_report(physical_offset: int) -> bytes:
    """Return the report of a slave whose log ends at a physical offset."""
    return _REPORT.pack(physical_offset)


def encode_header(physical_offset: int, size: int) -> bytes:
    """Return the header of a frame."""
    return _HEADER.pack(physical_offset, size)


class ReportParser:
    """Splits bytes of a slave into reports, and keeps an incomplete report."""

    __slots__ = ("_rest",)

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> Sequence[int]:
        """Return the physical offsets of the reports that are complete now, oldest first."""
        if self._rest:
            data = self._rest + data
        elif len(data) == REPORT_BYTES:
            return _REPORT.unpack(data)
        count, rest = divmod(len(data), REPORT_BYTES)
        self._rest = data[len(data) - rest :] if rest else b""
        return struct.unpack_from(f">{count}q", data)


class HeaderParser:
    """Collects the header of the next frame from pieces; the caller reads the data after it.

    Args:
        size_max: Maximum bytes of the log in a frame.
    """

    __slots__ = ("_part", "_size_max")

    def __init__(self, size_max: int = DATA_BYTES_MAX) -> None:
        self._part = bytearray()
        self._size_max = size_max

    @property
    def missing(self) -> int:
        """Number of bytes that the header lacks."""
        return HEADER_BYTES - len(self._part)

    def feed(self, data: bytes | bytearray | memoryview) -> FrameHeader | None:
        """Add bytes; return the header once it is complete, and begin the next one.

        Args:
            data: At most ``missing`` bytes.

        Raises:
            NotAFrame: The offset or the size is impossible.
        """
        assert len(data) <= self.missing
        if self._part or len(data) < HEADER_BYTES:
            self._part += data
            if self.missing:
                return None
            data = bytes(self._part)
            self._part.clear()
        header = FrameHeader._make(_HEADER.unpack(data))
        if header.physical_offset < 0:
            raise NotAFrame(
                f"the frame begins at physical offset {header.physical_offset}; 0 is the minimum"
            )
        if not 0 <= header.size <= self._size_max:
            raise NotAFrame(
                f"the frame at physical offset {header.physical_offset} has {header.size} bytes; "
                f"0 to {self._size_max} are allowed"
            )
        return header
