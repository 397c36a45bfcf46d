"""``config/timercheck``: how far a broker's timer is, as RocketMQ 5.x keeps it.

    LASTREADTIME | TIMERLOGFLUSHED | QUEUEOFFSET | MASTERQUEUEOFFSET
    | STATEVERSION | TIMESTAMP | COUNTER | zeros up to 4096 bytes

Source: rocketmq 5.5.0 ``TimerCheckpoint``.
"""

import struct
from typing import NamedTuple

from reput.errors import CorruptRecord

SIZE = 4096
_FIELDS = struct.Struct(">7q")


class TimerCheck(NamedTuple):
    """How far a timer is. Times are ms since the epoch."""

    read_time_ms: int
    """All that was to leave before this has been delivered, if it was taken up."""
    log_flushed: int
    """Bytes of the timer log that are on disk."""
    queue_offset: int
    """Messages of the timer's queue before this were taken up."""
    master_queue_offset: int
    """The same of the master; a slave goes no further."""
    state_version: int = 0
    timestamp_ms: int = 0
    counter: int = 0


def encode(check: TimerCheck) -> bytes:
    """Return the fields, as they stand at the beginning of the file and travel in code 60."""
    return _FIELDS.pack(*check)


def encode_file(check: TimerCheck) -> bytes:
    """Return the file."""
    return encode(check).ljust(SIZE, b"\0")


def decode(data: bytes) -> TimerCheck:
    """Return what a file says.

    Raises:
        CorruptRecord: It is too short.
    """
    if len(data) < _FIELDS.size:
        raise CorruptRecord(f"timercheck has {len(data)} bytes; {_FIELDS.size} are needed")
    return TimerCheck._make(_FIELDS.unpack_from(data))
