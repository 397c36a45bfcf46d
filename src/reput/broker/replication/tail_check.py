"""Compares the end of a slave's log with its master's log, before the slave reports.

The protocol between master and slave has neither an identity nor a checksum: a slave whose log has
other bytes, or more, would follow without an error
(https://github.com/apache/rocketmq/issues/3349).
So the slave requests from its master the last record that it has itself. If the master has another
one, the slave goes back over its own records in growing strides, until both have the same record,
and then searches for the first that differs.
"""

import asyncio
from array import array
from collections.abc import Iterator
from typing import NamedTuple, Protocol

from reput.broker.replication.master_requests import MasterRange
from reput.broker.replication.state import SlaveState
from reput.format import message as record

STRIDE_MAX = 1 << 20
"""Maximum number of records between two compared ones: their offsets are kept in memory."""
_RECORDS_AT_ONCE = 256
"""Number of the slave's records read per turn of the event loop."""


class Master(Protocol):
    """The part of a master that the comparison uses."""

    async def record_at(self, physical_offset: int) -> bytes | None:
        """Return the record at a physical offset; None if there is none."""


class OwnLog(Protocol):
    """The part of the slave's log that the comparison uses."""

    @property
    def end(self) -> int:
        """Physical offset after the last byte."""

    def last_record(self) -> tuple[int, bytes] | None:
        """Return physical offset and bytes of the last whole record; None if there is none."""

    def records_before(self, physical_offset: int) -> Iterator[tuple[int, bytes]]:
        """Yield physical offset and bytes of the records before an offset, newest first."""

    def record_at(self, physical_offset: int) -> bytes | None:
        """Return the record at a physical offset; None if there is none."""

    def rest(self) -> tuple[int, bytes]:
        """Return physical offset and bytes of the incomplete last record, which may be empty."""


class Finding(NamedTuple):
    """The result of a comparison."""

    state: SlaveState
    """FOLLOWING if the slave may follow."""
    reason: str = ""
    """Reason why the slave may not follow; empty if it may."""
    diverged_offset: int | None = None
    """Physical offset at which the logs begin to differ, if known."""


async def check(log: OwnLog, master: Master, master_log: MasterRange) -> Finding:
    """Compare the end of a slave's log, which is not empty, with the master's log.

    Args:
        log: The slave's log.
        master: The master.
        master_log: Range of the master's log.

    Raises:
        Unanswered: The master does not answer.
    """
    end = log.end
    if end < master_log.min_offset:
        return Finding(
            SlaveState.TOO_OLD,
            f"this log ends at {end}, the master's begins at {master_log.min_offset}: rebuild this "
            "slave, starting with an empty store",
        )
    last = log.last_record()
    if end <= master_log.max_offset and (last is None or await _is_equal(master, *last)):
        return await _check_rest(log, master)
    diverged_offset = await find_difference(log, master, master_log.min_offset)
    if end > master_log.max_offset:
        state = SlaveState.AHEAD
        reason = f"this log ends at {end}, the master's ends at {master_log.max_offset}"
    else:
        state = SlaveState.DIVERGED
        reason = f"this log, which ends at {end}, differs from the master's"
    if diverged_offset is None:
        where = f"no record from {master_log.min_offset} on is the same: rebuild this slave"
    else:
        where = f"both are equal up to {diverged_offset}"
    return Finding(state, f"{reason}; {where}", diverged_offset)


async def _check_rest(log: OwnLog, master: Master) -> Finding:
    """Compare the incomplete last record, which may differ on a new master."""
    physical_offset, data = log.rest()
    if may_be_blank(data):
        return Finding(SlaveState.FOLLOWING)
    whole = await master.record_at(physical_offset)
    if whole is not None and whole.startswith(data):
        return Finding(SlaveState.FOLLOWING)
    return Finding(
        SlaveState.DIVERGED,
        f"the last {len(data)} bytes of this log, an incomplete record, differ from the master's; "
        f"both are equal up to {physical_offset}",
        physical_offset,
    )


def may_be_blank(data: bytes) -> bool:
    """Return True if bytes begin a blank, or are too few to judge; masters do not return blanks."""
    if len(data) < record.SIZE_AND_MAGIC.size:
        return True
    magic: int = record.SIZE_AND_MAGIC.unpack_from(data)[1]
    return magic == record.MAGIC_BLANK


async def find_difference(log: OwnLog, master: Master, min_offset: int) -> int | None:
    """Return the physical offset up to which the records of both logs are equal.

    Args:
        log: The slave's log.
        master: The master.
        min_offset: First physical offset of the master's log.

    Returns:
        None if no record is equal.

    Raises:
        Unanswered: The master does not answer.
    """
    stride = 1
    offsets = array("q")  # since the last record that was compared, newest first
    data = b""
    for count, (physical_offset, data) in enumerate(log.records_before(log.end), 1):
        if physical_offset < min_offset:
            break
        offsets.append(physical_offset)
        if len(offsets) == stride:
            if await _is_equal(master, physical_offset, data):
                return await _end_of_equal(log, master, offsets)
            del offsets[:]
            stride = min(stride * 2, STRIDE_MAX)
        if count % _RECORDS_AT_ONCE == 0:
            await asyncio.sleep(0)
    if offsets and await _is_equal(master, offsets[-1], log.record_at(offsets[-1])):
        return await _end_of_equal(log, master, offsets)
    return None


async def _end_of_equal(log: OwnLog, master: Master, offsets: "array[int]") -> int:
    """Return the end of the newest equal record; the last of these, newest first, is equal."""
    different, equal = -1, len(offsets) - 1
    while equal - different > 1:
        middle = (different + equal) // 2
        if await _is_equal(master, offsets[middle], log.record_at(offsets[middle])):
            equal = middle
        else:
            different = middle
    data = log.record_at(offsets[equal])
    assert data is not None
    return offsets[equal] + len(data)


async def _is_equal(master: Master, physical_offset: int, data: bytes | None) -> bool:
    return data is not None and await master.record_at(physical_offset) == data
