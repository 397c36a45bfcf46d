"""The checkpoint: times up to which log, queues and index are durable.

One page of 4096 bytes, of which the first 24 (4.x), 40 (5.x) or 48 (5.5) are used. Fields unknown
to a version are zero. Field table: docs/formats/checkpoint.md.
"""

import struct
from dataclasses import dataclass

from reput.errors import CorruptRecord

PAGE = struct.Struct(
    ">"
    "q"  # physicMsgTimestamp: store time of the last record flushed, ms
    "q"  # logicsMsgTimestamp: store time of the last record dispatched to a queue (5.5: flushed)
    "q"  # indexMsgTimestamp: end time of the last full index file
    "q"  # masterFlushedOffset, 5.x
    "q"  # confirmPhyOffset, 5.x
    "q"  # logicsPhysicalOffset, 5.5: log offset of the last record whose units are flushed
)
SIZE = 4096
SLACK_MS = 3000
"""Time by which 4.x recovery starts before the older of log and queues, in ms."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The fields of the page; 0 if never written."""

    physical_timestamp: int = 0
    queue_timestamp: int = 0
    index_timestamp: int = 0
    master_flushed_offset: int = 0
    confirmed_physical_offset: int = 0
    queue_physical_offset: int = 0

    @property
    def min_timestamp(self) -> int:
        """Time that 4.x recovery compares with the first store time of a log file, in ms."""
        return max(0, min(self.physical_timestamp, self.queue_timestamp) - SLACK_MS)


def pack(checkpoint: Checkpoint) -> bytes:
    """Return the whole page."""
    fields = PAGE.pack(
        checkpoint.physical_timestamp,
        checkpoint.queue_timestamp,
        checkpoint.index_timestamp,
        checkpoint.master_flushed_offset,
        checkpoint.confirmed_physical_offset,
        checkpoint.queue_physical_offset,
    )
    return fields.ljust(SIZE, b"\0")


def unpack(page: bytes) -> Checkpoint:
    """Return the fields. Raises ``CorruptRecord`` if the page is shorter than its fields."""
    if len(page) < PAGE.size:
        raise CorruptRecord(f"checkpoint is cut: {len(page)} of {PAGE.size} bytes")
    return Checkpoint(*PAGE.unpack_from(page))
