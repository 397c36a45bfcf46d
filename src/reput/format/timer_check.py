"""``config/timercheck``: progress of a broker's timer, as RocketMQ 5.x stores it.

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
    """Progress of a timer. Times are ms since the epoch."""

    read_time_ms: int
    """Time up to which all messages that the timer has read were delivered, in ms."""
    log_flushed: int
    """Durable bytes of the timer log."""
    queue_offset: int
    """Next queue offset of the timer's queue to read."""
    master_queue_offset: int
    """The master's ``queue_offset``; a slave reads no further."""
    state_version: int = 0
    timestamp_ms: int = 0
    counter: int = 0


def encode(check: TimerCheck) -> bytes:
    """Return the fields as at the start of the file and in the reply to code 60."""
    return _FIELDS.pack(*check)


def encode_file(check: TimerCheck) -> bytes:
    """Return the content of the file."""
    return encode(check).ljust(SIZE, b"\0")


def decode(data: bytes) -> TimerCheck:
    """Return the fields of a file.

    Raises:
        CorruptRecord: It is too short.
    """
    if len(data) < _FIELDS.size:
        raise CorruptRecord(f"timercheck has {len(data)} bytes; {_FIELDS.size} are needed")
    return TimerCheck._make(_FIELDS.unpack_from(data))
