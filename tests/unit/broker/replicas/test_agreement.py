"""A slave and its master agree on epochs, before a byte, and with each new epoch."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from cases import case
from reput.broker.replicas.agreement import Agreement
from reput.broker.replicas.epochs import Epochs
from reput.broker.replicas.framing import EpochMasterFraming, EpochSlaveFraming
from reput.errors import NotAFrame, StoreUnavailable, WriteFailed
from reput.format import epoch_file, ha_epoch_frames as frames
from reput.format.epoch_file import Epoch
from reput.format.ha_epoch_frames import MasterHandshake, TransferHeader
from reput.store.files.disk import Disk


class Peer:
    """A connection to a master whose answer is given."""

    def __init__(self, answer: bytes) -> None:
        self.sent = b""
        self._answer = answer

    def send(self, data: bytes) -> int:
        self.sent += data[:5]
        return len(data[:5])

    def receive(self, buffers: list[memoryview]) -> int:
        (buffer,) = buffers
        size = min(len(buffer), 7, len(self._answer))
        assert size, "the master has said everything"
        buffer[:size] = self._answer[:size]
        self._answer = self._answer[size:]
        return size


class FullDisk(Disk):
    def replace(self, path: str, data: bytes) -> None:
        raise WriteFailed(path, "cannot write: No space left on device")


def store_of(end: int) -> Any:
    log = SimpleNamespace(end=end)
    return SimpleNamespace(replica_log=log, max_physical_offset=end, in_sync=None)


def epochs_at(path: Path, *epochs: tuple[int, int]) -> Epochs:
    path.write_bytes(epoch_file.encode([Epoch(*epoch) for epoch in epochs]))
    return Epochs(str(path), Disk())


async def find_cut(
    epochs: Epochs, end: int, master: MasterHandshake, *, is_compared: bool = False
) -> int | None:
    member = cast(Any, SimpleNamespace(broker_id=2))
    peer = Peer(frames.encode_master_handshake(master))
    agreement = Agreement(
        member,
        epochs,
        store_of(end),
        is_learner=True,
        is_from_last_file=False,
        obeys_confirmed=True,
    )
    cut = await agreement.find_cut(cast(Any, peer), is_compared=is_compared)
    assert peer.sent.hex(" ", 4) == "00000001 00000001 00000000 00000002"
    return cut


async def test_where_the_log_of_a_slave_must_be_cut(tmp_path: Path) -> None:
    first, second, third = (1, 0), (2, 468), (3, 900)
    rows = [
        # own epochs, own end, the master's epochs, its end -> the cut
        ((first,), 468, (first,), 468, None),
        ((first,), 300, (first, second), 936, None),
        ((first,), 468, (first, second), 936, None),
        ((first,), 600, (first, second), 936, 468),
        ((first,), 600, (first,), 500, 500),
        ((first, second), 936, (first, (3, 468)), 936, 468),
        ((first, second, third), 950, (first, second), 920, 900),
        ((first, second), 936, (first, second, third), 950, 900),
        ((), 0, (first, second), 936, None),
        ((), 400, (first, second), 936, None),  # a store without epochs: the records are compared
    ]
    for row in rows:
        own, own_end, others, other_end, cut = row
        with case(*row):
            epochs = epochs_at(tmp_path / "epochs", *own)
            master = MasterHandshake(other_end, [Epoch(*epoch) for epoch in others])
            assert await find_cut(epochs, own_end, master) == cut
            assert epochs.all == own  # the file is cut with the log


async def test_logs_without_a_common_epoch_are_compared(tmp_path: Path) -> None:
    epochs = epochs_at(tmp_path / "epochs", (4, 0))
    master = MasterHandshake(936, [Epoch(1, 0), Epoch(5, 400), Epoch(6, 936)])
    with pytest.raises(NotAFrame, match=r"1 from 0, 5 from 400, .*4 from 0.*must be rebuilt"):
        await find_cut(epochs, 500, master)
    assert await find_cut(epochs, 500, master, is_compared=True) is None
    assert Epochs(str(tmp_path / "epochs"), Disk()).all == ((1, 0), (5, 400))


def test_a_new_epoch_is_durable_before_its_bytes(tmp_path: Path) -> None:
    path = tmp_path / "epochs"
    epochs, store = epochs_at(path, (1, 0)), store_of(468)
    framing = EpochSlaveFraming(epochs, store, obeys_confirmed=True)
    framing.take(TransferHeader(468, 10, Epoch(2, 468), 400))
    assert path.read_bytes() == b"2\n1857947285\n1-0\n2-468\n"
    assert store.confirmed_offset == 400
    framing.take(TransferHeader(478, 0, Epoch(1, 0), 478))  # a heartbeat has no bytes
    with pytest.raises(NotAFrame, match="bytes of epoch 1, but this log has bytes of epoch 2"):
        framing.take(TransferHeader(478, 10, Epoch(1, 0), 478))
    full = Epochs(str(path), FullDisk())
    framing = EpochSlaveFraming(full, store_of(478), obeys_confirmed=False)
    with pytest.raises(WriteFailed):
        framing.take(TransferHeader(478, 10, Epoch(3, 478), 478))
    assert full.last == 2


def test_a_frame_of_a_master_has_bytes_of_one_epoch(tmp_path: Path) -> None:
    epochs = epochs_at(tmp_path / "epochs", (1, 100), (2, 468))
    framing = EpochMasterFraming(epochs, store_of(900))
    assert framing.size_max(100, 1_000) == 368
    assert framing.size_max(467, 1_000) == 1
    assert framing.size_max(468, 432) == 432
    header = frames.TransferParser().feed(framing.header(467, 1))
    assert header == (467, 1, (1, 100), 900)
    header = frames.TransferParser().feed(framing.header(468, 0))
    assert header == (468, 0, (2, 468), 900)
    assert frames.decode_master_handshake(framing.handshake_reply()) == (900, [(1, 100), (2, 468)])


def test_epochs_of_a_log_that_was_opened_or_cut(tmp_path: Path) -> None:
    path = tmp_path / "epochs"
    epochs = Epochs(str(path), Disk())
    assert (epochs.last, path.exists()) == (-1, False)
    epochs.begin(1, 0, 500)  # a store that had messages before it had a controller
    epochs.begin(2, 0, 500)
    epochs.begin(3, 0, 900)
    assert Epochs(str(path), Disk()).all == ((1, 0), (2, 500), (3, 900))
    epochs.check(500, 900)  # its first file was deleted, and nothing of epoch 3 is there
    assert Epochs(str(path), Disk()).all == ((2, 500),)
    epochs.cut(500)
    assert Epochs(str(path), Disk()).all == ()
    path.write_bytes(b"1\n7\n1-0\n")
    with pytest.raises(StoreUnavailable, match="is damaged: the checksum"):
        Epochs(str(path), Disk())
