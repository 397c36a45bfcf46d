"""The epochs of a log: which master has written which bytes, and the file that keeps them.

A controller gives each master a new epoch. An epoch has the bytes of the log from its start up to
the start of the next one; the last one ends at the log's end. Two replicas are equal up to the
smaller end of the newest epoch that both have.

    number of entries
    CRC-32 of the following lines, without its highest bit; 0: not checked
    epoch-start             a line for each epoch

Source: rocketmq 5.5.0 ``EpochFileCache``, ``CheckpointFile``.
"""

import zlib
from collections.abc import Sequence
from typing import NamedTuple

from reput.errors import CorruptRecord

_CRC_MASK = 0x7FFFFFFF
_NUMBER_MAX, _START_MAX = (1 << 31) - 1, (1 << 63) - 1
EPOCHS_MAX = 1000
"""Maximum number of epochs of a log, as in the handshake of Java's masters."""


class Epoch(NamedTuple):
    """The bytes of a log that one master has written."""

    number: int
    start: int
    """Physical offset of the first byte."""


def encode(epochs: Sequence[Epoch]) -> bytes:
    """Return the text of the file."""
    lines = "".join(f"{epoch.number}-{epoch.start}\n" for epoch in epochs).encode()
    return b"%d\n%d\n%b" % (len(epochs), zlib.crc32(lines) & _CRC_MASK, lines)


def decode(data: bytes) -> list[Epoch]:
    """Return the epochs of a file.

    Raises:
        CorruptRecord: The text, its checksum or the order of the epochs is wrong.
    """
    lines = data.split(b"\n")
    try:
        count, expected = int(lines[0]), int(lines[1])
        entries = lines[2 : 2 + count]
        checksum = zlib.crc32(b"".join(line + b"\n" for line in entries)) & _CRC_MASK
        epochs = [Epoch(*map(int, line.split(b"-", 1))) for line in entries]
    except (IndexError, ValueError, TypeError) as error:
        raise CorruptRecord(f"it is no list of epochs: {error}") from error
    if len(epochs) != count:
        raise CorruptRecord(f"it has {len(epochs)} epochs, and its first line says {count}")
    if expected not in (0, checksum):
        raise CorruptRecord(f"the checksum of its lines is {checksum}, and it says {expected}")
    return check_order(epochs)


def check_order(epochs: Sequence[Epoch]) -> list[Epoch]:
    """Return epochs whose numbers and starts grow, and fit a frame. Raises ``CorruptRecord``."""
    before = Epoch(0, -1)
    for epoch in epochs:
        if epoch.number <= before.number or epoch.start < max(before.start, 0):
            raise CorruptRecord(
                f"epoch {epoch.number} from physical offset {epoch.start} on follows epoch "
                f"{before.number} from {before.start} on; both must grow"
            )
        before = epoch
    if before.number > _NUMBER_MAX or before.start > _START_MAX:
        raise CorruptRecord(
            f"epoch {before.number} from physical offset {before.start} on is impossible; at most "
            f"{_NUMBER_MAX} from {_START_MAX} on is allowed"
        )
    return list(epochs)


def added(epochs: Sequence[Epoch], new: Epoch) -> list[Epoch]:
    """Return epochs with a new one at their end; unchanged if the last one has no bytes.

    As in Java, an epoch without bytes has no entry, or keeps the one of the epoch before it.
    """
    if epochs and (new.number <= epochs[-1].number or new.start <= epochs[-1].start):
        return list(epochs)
    return [*epochs, new]


def cut(epochs: Sequence[Epoch], log_end: int) -> list[Epoch]:
    """Return the epochs of a log that is cut at a physical offset."""
    return [epoch for epoch in epochs if epoch.start < log_end]


def expired(epochs: Sequence[Epoch], log_start: int) -> list[Epoch]:
    """Return the epochs of a log whose bytes before a physical offset were deleted."""
    ends = [epoch.start for epoch in epochs[1:]]
    first = sum(end <= log_start for end in ends)
    return list(epochs[first:])


def index_at(epochs: Sequence[Epoch], physical_offset: int) -> int:
    """Return the index of the epoch of a byte; -1 if it is older than all epochs."""
    for index in range(len(epochs) - 1, -1, -1):
        if epochs[index].start <= physical_offset:
            return index
    return -1


def end_at(epochs: Sequence[Epoch], index: int, log_end: int) -> int:
    """Return the physical offset after the last byte of an epoch."""
    return epochs[index + 1].start if index + 1 < len(epochs) else log_end


def common_end(
    own: Sequence[Epoch], own_end: int, other: Sequence[Epoch], other_end: int
) -> int | None:
    """Return the physical offset up to which two logs are equal by their epochs.

    Args:
        own: The epochs of a log.
        own_end: Its end, a physical offset.
        other: The epochs of another log.
        other_end: Its end.

    Returns:
        None if they have no epoch in common.
    """
    places = {epoch: index for index, epoch in enumerate(other)}
    for index in range(len(own) - 1, -1, -1):
        place = places.get(own[index])
        if place is not None:
            return min(end_at(own, index, own_end), end_at(other, place, other_end))
    return None
