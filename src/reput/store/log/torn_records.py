"""Records that lost a part in a power failure, although the bytes after them exist.

A checksum covers only the body; lengths, magic and physical offset frame the rest. Topic and
properties, at the end of a record, are not covered: a sector of them that was never written is
zeros, and no property ends with zeros. ``enabledAppendPropCRC`` makes the check exact.
"""

import numpy as np
import numpy.typing as npt

from reput.format import message as record
from reput.format.message import Verdict
from reput.store.log.commit_log_view import CommitLogView, Damage, LogBatch

_BODY_LENGTH_V4 = 84
_NO_PROPERTIES_V4 = 91
"""Size of a record without properties, minus body and topic, with two IPv4 hosts."""


def without_torn(log: CommitLogView, batch: LogBatch) -> LogBatch:
    """Return a batch in which records without their end are damage, as with a wrong checksum.

    Args:
        log: The log of the batch.
        batch: Records of ``CommitLogView.walk``, which has compared their checksums.
    """
    torn = _cut_short(log, batch)
    if not torn:
        return batch
    starts = [damage.physical_offset - batch.physical_offset for damage in torn]
    is_whole = ~np.isin(batch.positions, np.array(starts, np.int64))
    damage = sorted([*batch.damage, *torn], key=lambda each: each.physical_offset)
    return LogBatch(
        batch.buffer,
        batch.physical_offset,
        batch.positions[is_whole],
        batch.sizes[is_whole],
        tuple(damage),
    )


def first_damage(log: CommitLogView, start: int, stop: int) -> int | None:
    """Return the physical offset of the first damage in ``[start, stop)``; None without any.

    Args:
        log: The log after a crash.
        start: Physical offset of a record; everything before it was synced.
        stop: Physical offset of the log's end.
    """
    for batch in log.walk(start, stop):
        damage = [*batch.damage, *_cut_short(log, batch)]
        if damage:
            return min(run.physical_offset for run in damage)
    return None


def _cut_short(log: CommitLogView, batch: LogBatch) -> list[Damage]:
    data = np.frombuffer(batch.buffer, np.uint8)
    ends = batch.positions + batch.sizes
    suspects = np.flatnonzero(data[ends - 1] == 0)
    suspects = suspects[~_has_no_properties(data, batch.positions[suspects], batch.sizes[suspects])]
    torn = []
    for i in suspects.tolist():
        position, size = int(batch.positions[i]), int(batch.sizes[i])
        physical_offset = batch.physical_offset + position
        file = log.file_at(physical_offset)
        message = record.decode(batch.buffer, position)
        if record.ends_in_zeros(message.property_bytes, physical_offset + size - file.start):
            torn.append(Damage(physical_offset, size, Verdict.TRUNCATED, file.name))
    return torn


def _has_no_properties(
    data: npt.NDArray[np.uint8], positions: npt.NDArray[np.int64], sizes: npt.NDArray[np.int32]
) -> npt.NDArray[np.bool_]:
    """Return which usual records (IPv4, V1) have no properties: these end in a length of zero."""
    body = np.zeros(len(positions), np.int64)
    for i in range(4):
        body = body << 8 | data[positions + _BODY_LENGTH_V4 + i]
    topic_start = positions + _BODY_LENGTH_V4 + 4 + body
    is_inside = (topic_start >= 0) & (topic_start < positions + sizes)
    topic = data[np.where(is_inside, topic_start, positions)]
    has_none: npt.NDArray[np.bool_] = is_inside & (sizes == _NO_PROPERTIES_V4 + body + topic)
    return has_none
