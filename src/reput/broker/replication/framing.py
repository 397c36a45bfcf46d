"""The frames between master and slaves: the classic ones, or those under a controller.

The parts of replication send and receive a log; how its bytes are framed, and what a frame says
beside them, is known here. The frames under a controller are in ``broker/replicas``.
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from reput.format import ha_frames
from reput.format.ha_epoch_frames import SlaveHandshake


class AnyFrameHeader(Protocol):
    """The header of a master's frame."""

    @property
    def physical_offset(self) -> int:
        """Physical offset of the first byte after the header."""

    @property
    def size(self) -> int:
        """Bytes of the log after the header; 0 in a heartbeat."""


class HeaderParser(Protocol):
    """Collects the header of the next frame from pieces."""

    @property
    def missing(self) -> int:
        """Number of bytes that the header lacks."""

    def feed(self, data: bytes | bytearray | memoryview) -> AnyFrameHeader | None:
        """Add bytes; return the header once it is complete. Raises ``NotAFrame``."""


class SlaveInput(NamedTuple):
    """What a slave has sent."""

    handshake: SlaveHandshake | None
    """None in the classic mode."""
    reports: Sequence[int]
    """Physical offsets, oldest first."""


class ReportParser(Protocol):
    """Splits the bytes of a slave."""

    def feed(self, data: bytes) -> SlaveInput:
        """Return the complete frames. Raises ``NotAFrame``."""


class MasterFraming(Protocol):
    """A master's side."""

    has_handshake: bool
    """True if slaves send a handshake, which is answered, before their first report."""

    def report_parser(self) -> ReportParser:
        """Return a parser for a new connection."""

    def size_max(self, physical_offset: int, size: int) -> int:
        """Return how many of ``size`` bytes a frame from a physical offset on may have."""

    def header(self, physical_offset: int, size: int) -> bytes:
        """Return the header of a frame."""

    def handshake_reply(self) -> bytes:
        """Return the answer to a handshake."""


class SlaveFraming(Protocol):
    """A slave's side."""

    header_bytes: int
    """Size of a frame's header, in bytes."""

    def header_parser(self, size_max: int) -> HeaderParser:
        """Return a parser for a new connection, for frames with at most ``size_max`` bytes."""

    def report(self, physical_offset: int) -> bytes:
        """Return the report of a log that ends at a physical offset."""

    def take(self, header: AnyFrameHeader) -> None:
        """Take what a header says beside its bytes, which continue the log.

        Raises:
            ReputError: It contradicts what this broker has; the connection must end.
        """


class _ClassicReports:
    """Splits 8-byte reports."""

    def __init__(self) -> None:
        self._parser = ha_frames.ReportParser()

    def feed(self, data: bytes) -> SlaveInput:
        """Return the reports that are complete now."""
        return SlaveInput(None, self._parser.feed(data))


class ClassicMasterFraming:
    """The frames of a master in the classic mode."""

    has_handshake = False
    report_parser = _ClassicReports

    def size_max(self, physical_offset: int, size: int) -> int:
        """Return ``size``."""
        return size

    def header(self, physical_offset: int, size: int) -> bytes:
        """Return the header of a frame."""
        return ha_frames.encode_header(physical_offset, size)

    def handshake_reply(self) -> bytes:
        """Return nothing: there is no handshake."""
        return b""


class ClassicSlaveFraming:
    """The frames of a slave in the classic mode."""

    header_bytes = ha_frames.HEADER_BYTES
    header_parser = ha_frames.HeaderParser

    def report(self, physical_offset: int) -> bytes:
        """Return the report of a log that ends at a physical offset."""
        return ha_frames.encode_report(physical_offset)

    def take(self, header: AnyFrameHeader) -> None:
        """Do nothing: a header says nothing else."""
