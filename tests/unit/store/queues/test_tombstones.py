"""Deleted topics after a crash at any moment; scripts: ``tests/scripts/store/tombstones``."""

import itertools
import os
from pathlib import Path

import pytest

import store_fixture
from reput.clock import ManualClock
from reput.errors import WriteFailed
from reput.store.files import paths
from reput.store.files.disk import Disk
from reput.store.files.files import open_folder
from reput.store.message_store import MessageStore
from reput.store.queues import tombstones
from reput.store.writing.incoming import IncomingMessage, PutStatus

NEW = [f"new-{number}".encode() for number in range(7)]


def put(store: MessageStore, topic: str, body: bytes, queue_id: int = 0, **properties: str) -> int:
    """Put a message; return its queue offset."""
    text = "".join(f"{name}\x01{value}\x02" for name, value in properties.items())
    result = store.put(IncomingMessage(topic, body, queue_id, text.encode()))
    assert result.status is PutStatus.PUT_OK, result.reason
    return result.queue_offset


def put_old(store: MessageStore) -> None:
    """Put messages of a topic that will be deleted, in two queues, and of one that stays."""
    for number in range(30):
        put(store, "Doomed", b"old", number % 2, KEYS=f"k{number}")
        put(store, "Kept", b"kept")


def bodies(store: MessageStore, topic: str, queue_id: int = 0) -> list[bytes]:
    """Return the bodies of a queue, as consumers get them."""
    result_bodies: list[bytes] = []
    queue_offset = store.min_offset(topic, queue_id)
    while queue_offset < store.max_offset(topic, queue_id):
        result = store.get(topic, queue_id, queue_offset)
        assert result.damaged_count == 0
        result_bodies += [
            bytes(data)[88 : 88 + int.from_bytes(data[84:88])] for data in result.records
        ]
        queue_offset = result.next_offset
    return result_bodies


# --- crashes -------------------------------------------------------------------------------------


class MachineStopped(BaseException):
    """The machine has stopped."""


class StoppingDisk(Disk):
    """A disk on which a stop restores names that were deleted or replaced without a sync.

    Args:
        keep: Folder for the files that may be restored.
    """

    def __init__(self, keep: Path) -> None:
        super().__init__()
        self.left: int | None = None
        """Changes of names until the machine stops; None for never."""
        self._keep = keep
        self._count = itertools.count()
        self._unsynced: list[tuple[str, Path | None]] = []

    def _tick(self) -> None:
        if self.left is not None:
            if self.left == 0:
                raise MachineStopped
            self.left -= 1

    def _put_aside(self, path: str) -> None:
        kept: Path | None = None
        if Path(path).exists():
            kept = self._keep / str(next(self._count))
            os.link(path, kept)
        self._unsynced.append((path, kept))

    def unlink(self, path: str) -> None:
        if Path(path).exists():
            self._tick()
            self._put_aside(path)
        super().unlink(path)

    def rename(self, source: str, target: str) -> None:
        self._tick()
        if Path(source).is_dir():
            self._unsynced.append((source, Path(target)))
        else:
            self._put_aside(target)
        super().rename(source, target)

    def sync_folder(self, path: str) -> None:
        self._tick()
        super().sync_folder(path)
        self._unsynced = [
            change for change in self._unsynced if str(Path(change[0]).parent) != path
        ]

    def sync_filesystem(self, path: str) -> None:
        self._tick()
        super().sync_filesystem(path)
        self._unsynced.clear()

    def stop_machine(self) -> None:
        """Undo the changes of names that were not synced."""
        for path, kept in reversed(self._unsynced):
            if kept is not None and kept.is_dir():
                kept.rename(path)
                continue
            Path(path).unlink(missing_ok=True)
            if kept is not None:
                Path(path).parent.mkdir(parents=True, exist_ok=True)
                os.link(kept, path)


def script_delete(store: MessageStore) -> None:
    store.delete_topic("Doomed")
    for body in NEW:
        put(store, "Doomed", body)
    store.flusher.flush_all()


def test_a_crash_at_any_moment_of_a_deletion(tmp_path: Path) -> None:
    seen = set()
    for moment in itertools.count():
        folder = tmp_path / str(moment)
        (folder / "kept").mkdir(parents=True)
        disk = StoppingDisk(folder / "kept")
        config = store_fixture.config(folder / "store")
        store = MessageStore.open(config=config, disk=disk)
        put_old(store)
        store.flusher.flush_all()
        store.sync()
        disk.left = moment
        try:
            script_delete(store)
            has_died = False
        except MachineStopped:
            has_died = True
        store.abandon()
        disk.stop_machine()
        with MessageStore.open(config=config) as after:
            old = bodies(after, "Doomed"), bodies(after, "Doomed", 1)
            assert old[0] == [b"old"] * 15 or old[0] == NEW[: len(old[0])]
            assert old[1] == [b"old"] * 15 or not old[1]
            is_deleted = old[0] != [b"old"] * 15
            assert is_deleted == (old[1] == [])
            seen.add((is_deleted, old[0] == NEW))
            number = after.max_offset("Doomed", 0)
            assert put(after, "Doomed", b"next") == number
            assert bodies(after, "Kept") == [b"kept"] * 30
        store_fixture.assert_sound(folder / "store")
        if not has_died:
            break
    assert seen == {(False, False), (True, False), (True, True)}


def test_a_crash_at_any_moment_of_expiry_leaves_a_sound_store(tmp_path: Path) -> None:
    starts = set()
    for moment in itertools.count():
        folder = tmp_path / str(moment)
        (folder / "kept").mkdir(parents=True)
        disk = StoppingDisk(folder / "kept")
        clock = ManualClock(store_fixture.START_MS)
        config = store_fixture.config(folder / "store")
        store = MessageStore.open(config=config, disk=disk, clock=clock)
        while len(store.log.files.files) < 4:
            put(store, "TopicA", bytes(1500), KEYS="a")
            put(store, "TopicB", bytes(1500), 3, KEYS="b")
        store.step()
        store.flusher.flush_all()
        last = store.max_offset("TopicA", 0)
        for file in store.log.files.files:
            os.utime(file.path, (0, 0))
        store.retention.expire_now()
        disk.left = moment
        try:
            while store.step():
                pass
            has_died = False
        except MachineStopped:
            has_died = True
        store.abandon()
        disk.stop_machine()
        with MessageStore.open(config=config, clock=clock) as after:
            assert after.recovery.rebuilt_queues == []
            starts.add(after.min_physical_offset // config.mapped_file_size_commit_log)
            assert after.max_offset("TopicA", 0) == last
            assert len(bodies(after, "TopicA")) == last - after.min_offset("TopicA", 0)
        store_fixture.assert_sound(folder / "store")
        if not has_died:
            break
    assert starts == {0, 1, 2, 3}


class UnwritableDisk(Disk):
    """A disk that fails to replace files when configured so."""

    is_failing = False

    def replace(self, path: str, data: bytes) -> None:
        if self.is_failing:
            raise WriteFailed(path, "cannot write: Input/output error")
        super().replace(path, data)


def test_expired_tombstones_leave_the_file_without_the_writer_thread(tmp_path: Path) -> None:
    disk = UnwritableDisk()
    kept = tombstones.Tombstones(str(tmp_path), disk)
    kept.note(["Early"], 100)
    kept.note(["Late"], 200)
    kept.save()
    disk.is_failing = True
    kept.drop_before(100)  # only in memory: it waits for nothing
    assert kept.by_topic == {"Late": 200}
    with pytest.raises(WriteFailed):
        kept.save_expired()
    disk.is_failing = False
    assert kept.save_expired()
    assert tombstones.read(open_folder(str(tmp_path))) == {"Late": 200}
    assert not kept.save_expired()
    kept.drop_before(200)
    assert kept.save_expired()
    assert not (tmp_path / paths.TOMBSTONES).exists()
