"""State of a slave's replication, for operators: its master, its progress, its last problem."""

import enum
from dataclasses import dataclass


class SlaveState(enum.StrEnum):
    """State of a slave."""

    SEARCHING = "searching"
    """No address of a master is known, or the master does not answer."""
    CHECKING = "checking"
    """The slave compares the end of its log with the master's."""
    FOLLOWING = "following"
    """The slave receives the log."""
    DIVERGED = "diverged"
    """The logs differ; the slave refuses to follow."""
    AHEAD = "ahead"
    """The slave's log is longer than the master's; it refuses to follow."""
    TOO_OLD = "too old"
    """The master's log begins after the end of the slave's: the slave must be rebuilt."""
    REFUSED = "refused"
    """The other side is no master of this broker: other cluster, name or file size."""
    FAILED = "failed"
    """The slave's disk is full or failed."""


@dataclass(slots=True)
class SlaveStatus:
    """Current state of a slave."""

    state: SlaveState = SlaveState.SEARCHING
    reason: str = ""
    """Reason why the slave does not follow; empty if it does."""
    master_address: str = ""
    """Address of the master for requests, ``ip:port``."""
    master_ha_address: str = ""
    """Address of the master's port for slaves, ``ip:port``."""
    diverged_offset: int | None = None
    """Physical offset at which the two logs begin to differ, if known."""
    master_max_offset: int = 0
    """Last known end of the master's log, a physical offset."""
    master_flushed_offset: int = 0
    """Physical offset up to which the master's log is on its disk."""
    received_bytes: int = 0
    """Number of bytes of the log received since the start."""
    bytes_per_second: int = 0
    """Bytes of the log received per second, over the last second."""
    read_ms: int = 0
    """Time of the last byte from the master, ms since 1970."""
    written_ms: int = 0
    """Time of the last report to the master, ms since 1970."""
