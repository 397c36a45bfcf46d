"""Checks the reports of a slave, without I/O.

A report is 8 bytes that anybody can send (https://github.com/apache/rocketmq/issues/3015). So a
value counts only if a slave that copies this log could have sent it.
"""

import enum
from collections.abc import Sequence
from dataclasses import dataclass


class Reason(enum.StrEnum):
    """Reason why the master closed a connection; label of a metric."""

    BELOW_MIN = "below_min"
    """The slave's log ends before the master's begins: the bytes between are deleted."""
    ABOVE_MAX = "above_max"
    """The slave's log is longer than the master's."""
    IMPOSSIBLE = "impossible_report"
    """The slave acknowledges bytes that were not sent, or fewer than before."""
    UNREPORTED = "unreported"
    """No report arrived in time."""
    SILENT = "silent"
    """The slave has not reported for too long."""
    TOO_MANY = "too_many"
    """There are too many connections."""
    EXPIRED = "expired"
    """The bytes that the slave needs next were deleted meanwhile."""
    TLS = "tls"
    """One side uses TLS and the other does not, or its handshake failed."""
    NOT_A_PEER = "not_a_peer"
    """Its address is not in ``reputHaPeers``, or that is empty and access control is on."""
    FAILED = "failed"
    """The log could not be read."""


@dataclass(frozen=True, slots=True)
class OfferedRange:
    """Range of a master's log that slaves may report. All values are physical offsets."""

    minimum: int
    """Offset of the oldest byte, the start of a file."""
    maximum: int
    """Offset after the last readable byte."""
    last_file: int
    """Start of the last file."""


class ReportRefused(Exception):
    """A report that no slave of this log can send.

    Args:
        reason: Reason for the refusal.
        text: Message for the log, with the value and the allowed values.
    """

    def __init__(self, reason: Reason, text: str) -> None:
        super().__init__(text)
        self.reason = reason


@dataclass(slots=True)
class SlaveReports:
    """The reports of a connection."""

    start: int
    """Physical offset at which sending begins."""
    last: int
    """Value of the last report."""
    has_minimum: bool
    """False if an empty slave is served from a later offset than 0: its 0 is no acknowledgement."""

    @classmethod
    def begin(cls, value: int, log: OfferedRange, *, from_last_file: bool) -> "SlaveReports":
        """Check the first report of a connection, which also requests the start.

        Args:
            value: Reported physical offset; 0 from an empty slave, which gets the whole log.
            log: The master's log.
            from_last_file: True to start an empty slave at the last file.

        Raises:
            ReportRefused: The master has no bytes for this slave.
        """
        if value == 0:
            start = log.last_file if from_last_file else log.minimum
            return cls(start, 0, has_minimum=start == 0)
        if value > log.maximum or value < 0:
            raise ReportRefused(
                Reason.ABOVE_MAX,
                f"its log ends at physical offset {value}, after the end of this log, "
                f"{log.maximum}: it may have messages that this master lacks; rebuild it",
            )
        if value < log.minimum:
            raise ReportRefused(
                Reason.BELOW_MIN,
                f"its log ends at physical offset {value}, but this log begins at "
                f"{log.minimum}: the bytes between are deleted; rebuild it",
            )
        return cls(value, value, has_minimum=True)

    @property
    def acked_offset(self) -> int | None:
        """Physical offset up to which the slave has the log; None if it has confirmed nothing."""
        return self.last if self.has_minimum or self.last >= self.start > 0 else None

    def add(self, values: Sequence[int], sent_offset: int) -> None:
        """Check further reports, of which the last one is valid.

        Args:
            values: The values, oldest first.
            sent_offset: Physical offset after the last byte that was sent.

        Raises:
            ReportRefused: A value is impossible.
        """
        last = self.last
        for value in values:
            if value != last and not max(self.start, last) <= value <= sent_offset:
                raise ReportRefused(
                    Reason.IMPOSSIBLE,
                    f"it acknowledges physical offset {value}; possible are {last}, and "
                    f"{max(self.start, last)} to {sent_offset}",
                )
            last = value
        self.last = last
