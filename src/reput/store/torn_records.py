"""Records of which power loss took a part, though what follows them is there.

A checksum covers the body alone; lengths, magic and physical offset frame the rest. What is left
are topic and properties at the end of a record: a sector of them that never got to the disk is
zeros, and no property ends in zeros. ``enabledAppendPropCRC`` makes this exact.
"""

import numpy as np
import numpy.typing as npt

from reput.format import message as record
from reput.format.message import Verdict
from reput.store.commit_log_view import CommitLogView, Damage, LogBatch

_SECTOR_BYTES = 512
_CHECKSUMS = (Verdict.BAD_CRC, Verdict.BAD_RECORD_CRC)
_BODY_LENGTH_V4 = 84
_NO_PROPERTIES_V4 = 91
"""What a record without properties has beside body and topic, with two IPv4 hosts."""


def find_torn_records(log: CommitLogView, start: int, stop: int) -> list[Damage]:
    """Return records in ``[start, stop)`` that are framed right and of which a part is missing.

    Args:
        log: The log after a crash.
        start: Physical offset of a record; what is before was synced.
        stop: Physical offset where the log ends.
    """
    torn = []
    for batch in log.walk(start, stop):
        torn += [one for one in batch.damage if one.verdict in _CHECKSUMS]
        torn += _cut_short(log, batch)
    return sorted(torn, key=lambda one: one.physical_offset)


def _cut_short(log: CommitLogView, batch: LogBatch) -> list[Damage]:
    data = np.frombuffer(batch.buffer, np.uint8)
    ends = batch.positions + batch.sizes
    suspects = np.flatnonzero(data[ends - 1] == 0)
    suspects = suspects[~_has_no_properties(data, batch.positions[suspects], batch.sizes[suspects])]
    torn = []
    for i in suspects.tolist():
        position, size = int(batch.positions[i]), int(batch.sizes[i])
        at = batch.physical_offset + position
        file = log.file_at(at)
        one = record.decode(batch.buffer, position)
        in_last_sector = (at + size - file.start - 1) % _SECTOR_BYTES + 1
        rest = one.property_bytes[-in_last_sector:]
        if one.property_bytes and not any(rest):
            torn.append(Damage(at, size, Verdict.TRUNCATED, file.name))
    return torn


def _has_no_properties(
    data: npt.NDArray[np.uint8], positions: npt.NDArray[np.int64], sizes: npt.NDArray[np.int32]
) -> npt.NDArray[np.bool_]:
    """Tell which of the usual records (IPv4, V1) have none: they end in a length of zero."""
    body = np.zeros(len(positions), np.int64)
    for i in range(4):
        body = body << 8 | data[positions + _BODY_LENGTH_V4 + i]
    topic_at = positions + _BODY_LENGTH_V4 + 4 + body
    is_inside = (topic_at >= 0) & (topic_at < positions + sizes)
    topic = data[np.where(is_inside, topic_at, positions)]
    found: npt.NDArray[np.bool_] = is_inside & (sizes == _NO_PROPERTIES_V4 + body + topic)
    return found
