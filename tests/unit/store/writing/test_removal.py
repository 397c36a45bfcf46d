"""Deleted queues: they disappear at once, their files and memory in small steps."""

import dataclasses
import errno
import os
import shutil
import threading
from pathlib import Path

import pytest

import own_thread
from reput.errors import OutOfResources, WriteFailed
from reput.store.config import FlushDiskType, StoreConfig
from reput.store.files import paths
from reput.store.files.disk import Disk
from reput.store.message_store import MessageStore
from reput.store.writing.incoming import IncomingMessage
from reput.store.writing.removal import FILES_PER_STEP, RELEASED_AT_ONCE

QUEUE_COUNT = 500
CONFIG = StoreConfig(
    mapped_file_size_commit_log=1 << 20,
    max_message_size=1 << 16,
    mapped_file_size_consume_queue=2_000,
    max_hash_slot_num=100,
    max_index_num=4_000,
)


class CountingDisk(Disk):
    """A disk that counts renamed and deleted files."""

    def __init__(self) -> None:
        super().__init__()
        self.changes = 0

    def rename(self, source: str, target: str) -> None:
        self.changes += 1
        super().rename(source, target)

    def unlink(self, path: str) -> None:
        self.changes += 1
        super().unlink(path)

    def remove_folder(self, path: str) -> None:
        self.changes += 1
        super().remove_folder(path)


def put(store: MessageStore, topic: str, queue_id: int, body: bytes) -> int:
    return store.put(IncomingMessage(topic, body, queue_id=queue_id)).queue_offset


def filled(root: Path, disk: Disk | None = None) -> MessageStore:
    store = MessageStore.open(str(root), CONFIG, disk=disk)
    for queue_id in range(QUEUE_COUNT):
        put(store, "Doomed", queue_id, b"old")
    put(store, "Kept", 0, b"kept")
    store.flusher.flush_all()
    return store


def test_a_deletion_is_a_few_changes_and_many_small_steps(tmp_path: Path) -> None:
    disk = CountingDisk()
    with filled(tmp_path, disk) as store:
        removal = store.begin_deletion(["Doomed"])
        assert removal is not None
        assert removal.count == QUEUE_COUNT
        assert store.max_offset("Doomed", 7) == 0
        assert len(list(store.queues)) == 1
        before = disk.changes
        assert store.removals.finish() == [removal]
        assert disk.changes - before < 10
        assert not (tmp_path / paths.CONSUME_QUEUE / "Doomed").exists()
        steps = sum(1 for _ in store.removals.release(removal))
        assert steps == QUEUE_COUNT // RELEASED_AT_ONCE
        assert len(store.queues) == 1
        before = disk.changes
        while store.removals.clear():
            assert disk.changes - before <= FILES_PER_STEP + 1
            before = disk.changes
        assert not (tmp_path / paths.DELETED_QUEUES).exists()


def test_a_topic_recreated_at_once_has_only_new_messages(tmp_path: Path) -> None:
    with filled(tmp_path) as store:
        removal = store.begin_deletion(["Doomed"])
        assert removal is not None
        # The disk thread does not run yet: the first new message starts the move.
        assert [put(store, "Doomed", 3, b"new") for _ in range(3)] == [0, 1, 2]
        assert removal.is_finished
        for _ in store.removals.release(removal):
            assert put(store, "Doomed", 4, b"new") >= 0
        store.flusher.flush_all()
        count = store.max_offset("Doomed", 4)
        store.abandon()
    with MessageStore.open(str(tmp_path), CONFIG) as after:
        assert after.max_offset("Doomed", 3) == 3
        assert after.max_offset("Doomed", 4) == count
        assert after.max_offset("Doomed", 5) == 0
        assert after.max_offset("Kept", 0) == 1


@pytest.mark.parametrize("is_finished", [False, True])
def test_a_kill_leaves_all_or_nothing_and_the_next_start_cleans_up(
    tmp_path: Path, is_finished: bool
) -> None:
    store = filled(tmp_path)
    store.begin_deletion(["Doomed"])
    if is_finished:
        store.removals.finish()
        store.removals.clear(10)
    store.abandon()
    with MessageStore.open(str(tmp_path), CONFIG) as after:
        there = sum(after.max_offset("Doomed", queue_id) for queue_id in range(QUEUE_COUNT))
        assert there == (0 if is_finished else QUEUE_COUNT)
        while after.removals.clear():
            pass
        assert not (tmp_path / paths.DELETED_QUEUES).exists()
        assert after.max_offset("Kept", 0) == 1


def test_a_clean_stop_finishes_a_deletion(tmp_path: Path) -> None:
    store = filled(tmp_path)
    store.begin_deletion(["Doomed"])
    store.close()
    with MessageStore.open(str(tmp_path), CONFIG) as after:
        assert after.recovery.was_clean
        assert after.max_offset("Doomed", 0) == 0
        assert after.max_offset("Kept", 0) == 1


def test_links_in_the_folder_of_deleted_queues_are_not_followed(tmp_path: Path) -> None:
    store = filled(tmp_path / "store")
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "file").write_bytes(b"stays")
    (tmp_path / "store" / paths.CONSUME_QUEUE / "Doomed" / "link").symlink_to(outside)
    store.delete_topic("Doomed")
    store.close()
    assert (outside / "file").read_bytes() == b"stays"


def test_two_threads_delete_the_same_moved_files(tmp_path: Path) -> None:
    """The second thread finds nothing, which is no failure."""
    with filled(tmp_path) as store:
        store.begin_deletion(["Doomed"])
        (removal,) = store.removals.finish()
        for _ in store.removals.release(removal):
            pass
        start = threading.Barrier(2)
        failures: list[BaseException] = []

        def clear() -> None:
            start.wait()
            try:
                while store.removals.clear():
                    pass
            except BaseException as error:  # noqa: BLE001 - the test reports it
                failures.append(error)

        threads = [threading.Thread(target=clear) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert failures == []
        assert not (tmp_path / "queues.deleted").exists()


class GatedDisk(Disk):
    """A disk that blocks at a rename, or fails to sync a folder, as configured."""

    def __init__(self) -> None:
        super().__init__()
        self.is_gated = False
        self.has_arrived = threading.Event()
        self.may_go = threading.Event()
        self.failing_syncs: list[str] = []
        self.synced: list[str] = []

    def rename(self, source: str, target: str) -> None:
        if self.is_gated:
            self.has_arrived.set()
            assert self.may_go.wait(60)
        super().rename(source, target)

    def sync_folder(self, path: str) -> None:
        if path in self.failing_syncs:
            self.failing_syncs.remove(path)
            raise WriteFailed(path, "Input/output error")
        super().sync_folder(path)
        self.synced.append(path)


def test_a_deletion_begins_while_another_is_running(tmp_path: Path) -> None:
    disk = GatedDisk()
    with filled(tmp_path, disk) as store:
        put(store, "Other", 0, b"old")
        store.begin_deletion(["Doomed"])
        disk.is_gated = True
        mover = threading.Thread(target=store.removals.finish)
        mover.start()
        assert disk.has_arrived.wait(60)
        # If it needed the disk, everything would wait forever.
        beginner = threading.Thread(
            target=lambda: (store.begin_deletion(["Other"]), put(store, "New", 0, b"new"))
        )
        beginner.start()
        beginner.join(10)
        has_waited = beginner.is_alive()
        disk.may_go.set()
        mover.join()
        beginner.join()
        assert not has_waited
        (other,) = store.removals.finish()
        assert other.topics == ["Other"]
        assert store.max_offset("New", 0) == 1


def test_a_new_queue_of_the_topic_waits_until_its_folder_is_moved(tmp_path: Path) -> None:
    disk = GatedDisk()
    with filled(tmp_path, disk) as store:
        removal = store.begin_deletion(["Doomed"])
        assert removal is not None
        disk.is_gated = True
        mover = threading.Thread(target=store.removals.finish)
        mover.start()
        assert disk.has_arrived.wait(60)
        finished: list[bool] = []

        def put_new() -> None:
            put(store, "Doomed", 0, b"new")
            finished.append(removal.is_finished)

        putter = threading.Thread(target=put_new)
        putter.start()
        disk.may_go.set()
        mover.join()
        putter.join()
        assert finished == [True]


def test_a_folder_whose_move_was_not_synced_is_synced_at_the_next_attempt(tmp_path: Path) -> None:
    disk = GatedDisk()
    with filled(tmp_path, disk) as store:
        parent = str(tmp_path / paths.CONSUME_QUEUE)
        removal = store.begin_deletion(["Doomed"])
        assert removal is not None
        disk.failing_syncs = [parent]
        with pytest.raises(WriteFailed):
            store.removals.finish()
        assert not removal.is_finished
        disk.synced.clear()
        assert store.removals.finish() == [removal]
        assert parent in disk.synced


def test_external_deletion_of_the_folder_of_deleted_queues_leaves_nothing(tmp_path: Path) -> None:
    with filled(tmp_path) as store:
        removal = store.begin_deletion(["Doomed"])
        assert removal is not None
        store.removals.finish()
        shutil.rmtree(tmp_path / paths.DELETED_QUEUES)
        while store.removals.clear():
            pass
        put(store, "Kept", 1, b"kept")
        store.delete_topic("Kept")
        assert not (tmp_path / paths.DELETED_QUEUES).exists()


def test_undeletable_files_do_not_block_preallocation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with filled(tmp_path) as store:
        store.begin_deletion(["Doomed"])
        store.removals.finish()

        def refuse(path: str) -> None:
            raise WriteFailed(path, "cannot delete: Permission denied")

        monkeypatch.setattr(store._disk, "unlink", refuse)
        for _ in range(18):  # 50,000 bytes at a time, of a file of 1 MiB that has 100,000 already
            put(store, "Kept", 0, bytes(50_000))
            with pytest.raises(WriteFailed, match="Permission denied"):
                store.step_disk()
        assert len(store.log.files.files) == 1
        assert store.log.files.has_prepared
        monkeypatch.undo()
        while store.step_disk():
            pass
        assert not (tmp_path / paths.DELETED_QUEUES).exists()


def test_a_deletion_waits_for_the_disk_only_where_every_put_does(tmp_path: Path) -> None:
    for kind in FlushDiskType:
        config = dataclasses.replace(CONFIG, flush_disk_type=kind)
        with MessageStore.open(str(tmp_path / kind.name), config) as store:
            store.begin_put(IncomingMessage("Doomed", b"old"))
            flushed = store.log.flushed_offset
            assert flushed < store.log.written_offset
            store.begin_deletion(["Doomed"])
            assert (store.log.flushed_offset == flushed) == (kind is FlushDiskType.ASYNC_FLUSH)
            assert store.max_offset("Doomed", 0) == 0
            put(store, "Doomed", 0, b"new")
            while store.step():
                pass
            assert store.max_offset("Doomed", 0) == 1


def test_a_lack_of_descriptors_is_retried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with filled(tmp_path) as store:
        store.begin_deletion(["Doomed"])
        store.removals.finish()

        def no_descriptors(path: str) -> object:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), path)

        with monkeypatch.context() as patch:
            own_thread.replace(patch, os, "scandir", no_descriptors)
            with pytest.raises(OutOfResources, match=r"queues\.deleted"):
                store.removals.clear()
        while store.removals.clear():
            pass
        assert not (tmp_path / paths.DELETED_QUEUES).exists()
