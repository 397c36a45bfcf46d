"""The summary of a clean stop, and the former one: which queues a start need not read."""

from pathlib import Path

import pytest

import store_fixture
from reput.clock import ManualClock
from reput.format import cq_unit
from reput.store.files import paths
from reput.store.message_store import MessageStore
from reput.store.opening import summary
from reput.store.writing.incoming import IncomingMessage
from store_fixture import START_MS, RoomyDisk

QUEUES = 5


class WatchedDisk(RoomyDisk):
    """A disk that records the queue files that are opened."""

    def __init__(self) -> None:
        super().__init__()
        self.opened: set[int] = set()

    def open(self, path: str) -> int:
        if f"/{paths.CONSUME_QUEUE}/" in path:
            self.opened.add(int(Path(path).parent.name))
        return super().open(path)


def open_store(root: Path, disk: RoomyDisk | None = None) -> MessageStore:
    return MessageStore.open(
        config=store_fixture.config(root), clock=ManualClock(START_MS), disk=disk or RoomyDisk()
    )


def put(store: MessageStore, *queue_ids: int) -> None:
    for queue_id in queue_ids:
        assert store.put(IncomingMessage("TopicA", b"body", queue_id)).queue_offset >= 0


def ends(store: MessageStore) -> list[tuple[int, int]]:
    return [
        (store.min_offset("TopicA", queue_id), store.max_offset("TopicA", queue_id))
        for queue_id in range(QUEUES)
    ]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Return the folder of a store that was stopped cleanly."""
    with open_store(tmp_path) as store:
        put(store, *range(QUEUES), *range(QUEUES))
    return tmp_path


def kill_after(root: Path, *queue_ids: int) -> list[tuple[int, int]]:
    """Open a store, put to some queues, and leave it as a kill would; return the queues' ends."""
    store = open_store(root)
    put(store, *queue_ids)
    store.flusher.flush_all()
    at_the_kill = ends(store)
    store.abandon()
    return at_the_kill


def test_after_a_kill_only_changed_queues_are_read(root: Path) -> None:
    at_the_kill = kill_after(root, 2)
    disk = WatchedDisk()
    store = open_store(root, disk)
    assert not store.recovery.was_clean
    assert ends(store) == at_the_kill == [(0, 3 if n == 2 else 2) for n in range(QUEUES)]
    # The record at the checkpoint's offset is dispatched again; it is in queue 2, too.
    assert disk.opened == {2}
    store.abandon()


@pytest.mark.parametrize("boot_id", ["another boot\n", None])
def test_after_another_crash_all_queues_are_read(
    root: Path, boot_id: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_the_kill = kill_after(root, 2)
    file = root / "boot_id"
    if boot_id is not None:
        file.write_text(boot_id)
    monkeypatch.setattr(summary, "_BOOT_ID", file)
    disk = WatchedDisk()
    store = open_store(root, disk)
    assert ends(store) == at_the_kill
    assert disk.opened == set(range(QUEUES))
    assert not list(root.glob(f"{paths.FORMER_SUMMARY_PREFIX}*"))
    store.abandon()


def test_a_queue_file_that_another_program_changed_is_read(root: Path) -> None:
    kill_after(root)
    path = root / paths.queue_folder("TopicA", 1) / paths.offset_name(0)
    with path.open("r+b") as file:
        file.seek(cq_unit.SIZE)
        file.write(bytes(cq_unit.SIZE))  # its second unit is lost
    disk = WatchedDisk()
    store = open_store(root, disk)
    assert 1 in disk.opened
    assert ends(store)[1] == (0, 2), "the log has it"
    store.abandon()


def test_a_clean_stop_reads_no_unchanged_queue_and_drops_the_former_summary(root: Path) -> None:
    for kills in (False, True):
        if kills:
            kill_after(root, 4)
        disk = WatchedDisk()
        store = open_store(root, disk)
        assert list(root.glob(f"{paths.FORMER_SUMMARY_PREFIX}*"))
        put(store, 0)
        disk.opened.clear()
        expected = ends(store)
        store.close()
        # Only files with new units: after the kill, the last one of queue 4 is dispatched again.
        assert disk.opened == ({0, 4} if kills else {0})
        assert not list(root.glob(f"{paths.FORMER_SUMMARY_PREFIX}*"))
        disk = WatchedDisk()
        store = open_store(root, disk)
        assert disk.opened == set()
        assert ends(store) == expected
        store.abandon()
        open_store(root).close()
