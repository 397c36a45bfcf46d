"""The frames between master and slaves under a controller: they carry epochs."""

from collections.abc import Callable

from reput.broker.replicas.epochs import Epochs
from reput.broker.replication.framing import AnyFrameHeader, SlaveInput
from reput.errors import NotAFrame
from reput.format import epoch_file, ha_epoch_frames as frames
from reput.format.epoch_file import Epoch
from reput.format.ha_epoch_frames import MasterHandshake, TransferHeader, TransferParser
from reput.store.message_store import MessageStore

_NO_EPOCH = Epoch(-1, 0)


class _EpochReports:
    """Splits the bytes of a slave."""

    def __init__(self) -> None:
        self._parser = frames.SlaveParser()

    def feed(self, data: bytes) -> SlaveInput:
        """Return the complete frames. Raises ``NotAFrame``."""
        return SlaveInput(*self._parser.feed(data))


class EpochMasterFraming:
    """The frames of a master.

    Args:
        epochs: The epochs of its log.
        store: The store.
    """

    has_handshake = True
    report_parser = _EpochReports

    def __init__(self, epochs: Epochs, store: MessageStore) -> None:
        self._epochs = epochs
        self._store = store

    def size_max(self, physical_offset: int, size: int) -> int:
        """Return how many of ``size`` bytes are of one epoch."""
        epochs = self._epochs.all
        index = epoch_file.index_at(epochs, physical_offset)
        end = epoch_file.end_at(epochs, index, physical_offset + size)
        return min(size, end - physical_offset)

    def header(self, physical_offset: int, size: int) -> bytes:
        """Return the header of a frame."""
        epochs = self._epochs.all
        index = epoch_file.index_at(epochs, physical_offset)
        epoch = epochs[index] if index >= 0 else _NO_EPOCH
        end, in_sync = self._store.max_physical_offset, self._store.in_sync
        confirmed = end if in_sync is None else in_sync.confirmed(end)
        return frames.encode_transfer(TransferHeader(physical_offset, size, epoch, confirmed))

    def handshake_reply(self) -> bytes:
        """Return the epochs and the end of the log."""
        end = self._store.max_physical_offset
        return frames.encode_master_handshake(MasterHandshake(end, self._epochs.all))


class EpochSlaveFraming:
    """The frames of a slave.

    Args:
        epochs: The epochs of its log.
        store: The store.
        obeys_confirmed: Whether messages are consumed only when the in-sync set has them.
        on_epoch: Called after a new epoch was added.
    """

    header_bytes = frames.TRANSFER_BYTES
    header_parser = TransferParser

    def __init__(
        self,
        epochs: Epochs,
        store: MessageStore,
        *,
        obeys_confirmed: bool,
        on_epoch: Callable[[], object] = lambda: None,
    ) -> None:
        self._epochs = epochs
        self._store = store
        self._obeys_confirmed = obeys_confirmed
        self._on_epoch = on_epoch

    def report(self, physical_offset: int) -> bytes:
        """Return the report of a log that ends at a physical offset."""
        return frames.encode_report(physical_offset)

    def take(self, header: AnyFrameHeader) -> None:
        """Add the epoch of a frame durably, before its bytes, and take the confirmed offset.

        Raises:
            NotAFrame: The epoch is older than the last one of this log.
            WriteFailed: The epoch cannot be written.
        """
        assert isinstance(header, TransferHeader)
        epoch, last = header.epoch, self._epochs.last
        if epoch.number < last and header.size:
            raise NotAFrame(
                f"it sends bytes of epoch {epoch.number}, but this log has bytes of epoch {last}"
            )
        if epoch.number > last:
            self._epochs.add(epoch)
            self._on_epoch()
        if self._obeys_confirmed:
            self._store.confirmed_offset = header.confirmed_offset
