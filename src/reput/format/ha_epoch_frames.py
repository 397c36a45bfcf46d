"""Frames between a master and its slaves under a controller (5.x).

    slave, handshake    1 (4) | FROM LAST FILE (2) | LEARNER (2) | BROKER ID (8)
    master, handshake   1 (4) | SIZE (4) | END (8) | LAST EPOCH (4) | n * (EPOCH (4) | START (8))
    slave, report       2 (4) | MAX PHYSICAL OFFSET (8)
    master, transfer    2 (4) | SIZE (4) | PHYSICAL OFFSET (8) | EPOCH (4) | START OF THE EPOCH (8)
                        | CONFIRMED OFFSET (8), then SIZE bytes of the log

Big endian. The SIZE of a handshake is 12 n. A frame never crosses a file or an epoch. A slave may
repeat its handshake until it is answered.
Source: rocketmq 5.5.0 ``AutoSwitchHAClient``, ``AutoSwitchHAConnection``.
"""

import struct
from collections.abc import Sequence
from typing import NamedTuple

from reput.errors import CorruptRecord, NotAFrame
from reput.format.epoch_file import EPOCHS_MAX, Epoch, check_order
from reput.format.ha_frames import DATA_BYTES_MAX

HANDSHAKE, TRANSFER = 1, 2
"""States of a connection."""

_STATE = struct.Struct(">i")
_SLAVE_HANDSHAKE = struct.Struct(">ihhq")
_MASTER_HANDSHAKE = struct.Struct(">iiqi")
_EPOCH = struct.Struct(">iq")
_REPORT = struct.Struct(">iq")
_TRANSFER = struct.Struct(">iiqiqq")
MASTER_HANDSHAKE_BYTES = _MASTER_HANDSHAKE.size
TRANSFER_BYTES = _TRANSFER.size


class SlaveHandshake(NamedTuple):
    """The handshake of a slave."""

    broker_id: int
    is_from_last_file: bool
    """True if an empty slave wants the last file only."""
    is_learner: bool
    """True if the slave never becomes in sync."""


class MasterHandshake(NamedTuple):
    """The answer of a master to a handshake."""

    log_end: int
    """Physical offset of the end of its log."""
    epochs: Sequence[Epoch]


class TransferHeader(NamedTuple):
    """The header of a master's frame."""

    physical_offset: int
    """Physical offset of the first byte after the header."""
    size: int
    """Bytes of the log after the header; 0 in a heartbeat."""
    epoch: Epoch
    """The epoch of the bytes."""
    confirmed_offset: int
    """Physical offset up to which the in-sync set has the log."""


class SlaveFrames(NamedTuple):
    """What a slave has sent."""

    handshake: SlaveHandshake | None
    reports: Sequence[int]
    """Physical offsets, oldest first."""


def encode_slave_handshake(handshake: SlaveHandshake) -> bytes:
    """Return the handshake of a slave."""
    return _SLAVE_HANDSHAKE.pack(
        HANDSHAKE, handshake.is_from_last_file, handshake.is_learner, handshake.broker_id
    )


def encode_master_handshake(handshake: MasterHandshake) -> bytes:
    """Return the answer of a master, with its newest epochs."""
    epochs = handshake.epochs[-EPOCHS_MAX:]
    last = epochs[-1].number if epochs else -1
    size = len(epochs) * _EPOCH.size
    head = _MASTER_HANDSHAKE.pack(HANDSHAKE, size, handshake.log_end, last)
    return head + b"".join(_EPOCH.pack(*epoch) for epoch in epochs)


def master_handshake_rest(head: bytes) -> int:
    """Return the number of bytes that follow the first ones of a master's handshake.

    Args:
        head: ``MASTER_HANDSHAKE_BYTES`` bytes.

    Raises:
        NotAFrame: This is no handshake.
    """
    state: int
    size: int
    state, size, _, _ = _MASTER_HANDSHAKE.unpack(head)
    if state != HANDSHAKE or size < 0 or size % _EPOCH.size or size > EPOCHS_MAX * _EPOCH.size:
        raise NotAFrame(
            f"the answer to the handshake has state {state} and {size} bytes of epochs; state "
            f"{HANDSHAKE} is needed, and a multiple of {_EPOCH.size} up to "
            f"{EPOCHS_MAX * _EPOCH.size}. Is it a master under a controller?"
        )
    return size


def decode_master_handshake(data: bytes) -> MasterHandshake:
    """Return the answer of a master. Raises ``NotAFrame``."""
    _, _, log_end, _ = _MASTER_HANDSHAKE.unpack_from(data)
    epochs = [Epoch(*entry) for entry in _EPOCH.iter_unpack(data[_MASTER_HANDSHAKE.size :])]
    try:
        return MasterHandshake(log_end, check_order(epochs))
    except CorruptRecord as error:
        raise NotAFrame(f"the epochs of the handshake are wrong: {error}") from error


def encode_report(physical_offset: int) -> bytes:
    """Return the report of a slave whose log ends at a physical offset."""
    return _REPORT.pack(TRANSFER, physical_offset)


def encode_transfer(header: TransferHeader) -> bytes:
    """Return the header of a frame."""
    return _TRANSFER.pack(
        TRANSFER, header.size, header.physical_offset, *header.epoch, header.confirmed_offset
    )


class SlaveParser:
    """Splits bytes of a slave into handshakes and reports, and keeps an incomplete one."""

    __slots__ = ("_has_reported", "_rest")

    def __init__(self) -> None:
        self._rest = b""
        self._has_reported = False

    def feed(self, data: bytes) -> SlaveFrames:
        """Return the last handshake and the reports that are complete now.

        Raises:
            NotAFrame: A frame is neither; or a handshake follows a report.
        """
        data = self._rest + data
        position, handshake, reports = 0, None, []
        while len(data) - position >= _STATE.size:
            (state,) = _STATE.unpack_from(data, position)
            if state == TRANSFER:
                if len(data) - position < _REPORT.size:
                    break
                reports.append(_REPORT.unpack_from(data, position)[1])
                position += _REPORT.size
                self._has_reported = True
            elif state == HANDSHAKE and not self._has_reported:
                if len(data) - position < _SLAVE_HANDSHAKE.size:
                    break
                _, is_last, is_learner, broker_id = _SLAVE_HANDSHAKE.unpack_from(data, position)
                handshake = SlaveHandshake(broker_id, bool(is_last), bool(is_learner))
                position += _SLAVE_HANDSHAKE.size
            else:
                raise NotAFrame(
                    f"a frame of a slave has state {state}; {HANDSHAKE}, a handshake, and then "
                    f"{TRANSFER}, reports, are possible. Is it a slave under a controller?"
                )
        self._rest = data[position:]
        return SlaveFrames(handshake, reports)


class TransferParser:
    """Collects the header of the next frame from pieces; the caller reads the data after it.

    Args:
        size_max: Maximum bytes of the log in a frame.
    """

    __slots__ = ("_part", "_size_max")

    def __init__(self, size_max: int = DATA_BYTES_MAX) -> None:
        self._part = bytearray()
        self._size_max = size_max

    @property
    def missing(self) -> int:
        """Number of bytes that the header lacks."""
        return TRANSFER_BYTES - len(self._part)

    def feed(self, data: bytes | bytearray | memoryview) -> TransferHeader | None:
        """Add bytes; return the header once it is complete, and begin the next one.

        Args:
            data: At most ``missing`` bytes.

        Raises:
            NotAFrame: A field is impossible.
        """
        assert len(data) <= self.missing
        self._part += data
        if self.missing:
            return None
        state, size, physical_offset, number, start, confirmed = _TRANSFER.unpack(self._part)
        self._part.clear()
        if state != TRANSFER:
            raise NotAFrame(f"a frame of the master has state {state}; {TRANSFER} is needed")
        if physical_offset < 0 or not 0 <= size <= self._size_max:
            raise NotAFrame(
                f"the frame has {size} bytes from physical offset {physical_offset} on; 0 to "
                f"{self._size_max} from 0 on are allowed"
            )
        return TransferHeader(physical_offset, size, Epoch(number, start), confirmed)
