"""The agreement of a slave with its master on the epochs of their logs, before the first report."""

from collections.abc import Sequence

from reput.broker.replicas.epochs import Epochs
from reput.broker.replicas.framing import EpochSlaveFraming
from reput.broker.replicas.member import Member
from reput.broker.replication.byte_reader import read_exactly, write_all
from reput.broker.replication.log_receiver import ByteStream
from reput.errors import NotAFrame
from reput.format import epoch_file, ha_epoch_frames as frames
from reput.format.epoch_file import Epoch
from reput.format.ha_epoch_frames import SlaveHandshake
from reput.store.message_store import MessageStore


class Agreement:
    """Agrees with masters.

    Args:
        member: The membership.
        epochs: The epochs of the own log.
        store: The store.
        is_learner: Whether this slave never becomes in sync.
        is_from_last_file: Whether an empty slave wants the last file only.
        obeys_confirmed: Whether messages are consumed only when the in-sync set has them.
    """

    def __init__(
        self,
        member: Member,
        epochs: Epochs,
        store: MessageStore,
        *,
        is_learner: bool,
        is_from_last_file: bool,
        obeys_confirmed: bool,
    ) -> None:
        self._member = member
        self._epochs = epochs
        self._store = store
        self._is_learner = is_learner
        self._is_from_last_file = is_from_last_file
        self.framing = EpochSlaveFraming(epochs, store, obeys_confirmed=obeys_confirmed)
        """The frames of connections to masters."""

    async def find_cut(self, connection: ByteStream, *, is_compared: bool) -> int | None:
        """Shake hands with a master.

        Args:
            connection: A new connection.
            is_compared: Whether the records at the end of both logs are known to be equal.

        Returns:
            The physical offset at which the own log must be cut; None if the master continues it.

        Raises:
            NotAFrame: The peer is no master under a controller; or the logs have no epoch in
                common, and were not compared.
            WriteFailed: The epochs cannot be written.
        """
        handshake = SlaveHandshake(
            self._member.broker_id or 0, self._is_from_last_file, self._is_learner
        )
        await write_all(connection, frames.encode_slave_handshake(handshake))
        head = await read_exactly(connection, frames.MASTER_HANDSHAKE_BYTES)
        rest = await read_exactly(connection, frames.master_handshake_rest(head))
        master = frames.decode_master_handshake(head + rest)
        log = self._store.replica_log
        if is_compared:
            # The records are equal, so the epochs are: this file may lack some.
            self._epochs.replace(epoch_file.cut(master.epochs, log.end))
            return None
        if not self._epochs.all or not log.end:
            return None
        end = epoch_file.common_end(self._epochs.all, log.end, master.epochs, master.log_end)
        if end is None:
            raise NotAFrame(
                f"its log has the epochs {_text(master.epochs)}, and this log "
                f"{_text(self._epochs.all)}: none is the same, so that this slave must be rebuilt"
            )
        return end if end < log.end else None


def _text(epochs: Sequence[Epoch]) -> str:
    return ", ".join(f"{epoch.number} from {epoch.start}" for epoch in epochs) or "none"
