"""Counts of a master's port for slaves, for metrics."""

from collections import Counter
from dataclasses import dataclass, field

from reput.broker.counters.put_times import PutTimes
from reput.broker.replication.reports import Reason


@dataclass(slots=True)
class ReplicationCounts:
    """Counts since the start."""

    accepted: int = 0
    """Number of accepted connections."""
    sent_bytes: int = 0
    """Number of log bytes sent to all slaves."""
    sent_frames: int = 0
    """Number of frames with data."""
    heartbeats: int = 0
    """Number of frames without data."""
    reports: int = 0
    """Number of valid reports."""
    catch_ups: int = 0
    """Number of times that a worker thread has served a slave."""
    refused: Counter[Reason] = field(default_factory=Counter)
    """Number of connections that the master closed, by reason."""
    ack_times: PutTimes = field(default_factory=PutTimes)
    """Times from the last byte of a frame until its acknowledgement; a sample of all frames."""
