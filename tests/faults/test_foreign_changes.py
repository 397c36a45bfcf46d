"""Files of an open store that another program deletes, cuts or replaces.

Every further put is refused, with the name of the file; under SYNC_FLUSH no message is acknowledged
into a deleted log file, under ASYNC_FLUSH for at most a second. The contents of the remaining files
are kept; queues and the index are rebuilt from the log.
"""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import store_fixture
import world
from reput.clock import ManualClock
from reput.errors import StoreUnavailable, WriteFailed
from reput.format import message as record
from reput.format.codes import RequestCode, ResponseCode
from reput.store.files.folder_lock import FolderLock
from reput.store.message_store import MessageStore
from reput.store.opening.folder_watch import CHECK_INTERVAL_MS
from reput.store.writing.incoming import IncomingMessage, PutStatus
from store_fixture import START_MS, RoomyDisk

pytestmark = pytest.mark.crash

BODY_BYTES = 700
COUNT = 300


def open_store(root: Path, clock: ManualClock, **settings: object) -> MessageStore:
    return MessageStore.open(
        config=store_fixture.config(root, **settings), clock=clock, disk=RoomyDisk()
    )


def put(store: MessageStore, number: int) -> PutStatus:
    body = f"{number}".encode().ljust(BODY_BYTES, b".")
    return store.put(IncomingMessage("TopicA", body, number % 2)).status


def bodies(store: MessageStore) -> list[int]:
    numbers = []
    for queue_id in (0, 1):
        position, end = store.min_offset("TopicA", queue_id), store.max_offset("TopicA", queue_id)
        while position < end:
            result = store.get("TopicA", queue_id, position)
            numbers += [int(record.decode(data).body.rstrip(b".")) for data in result.records]
            position = result.next_offset
    return sorted(numbers)


def look(store: MessageStore, clock: ManualClock) -> None:
    clock.advance(CHECK_INTERVAL_MS)
    try:
        store.step()
    except WriteFailed:
        store.step_memory()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(START_MS)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "store"


def filled(root: Path, clock: ManualClock, **settings: object) -> MessageStore:
    store = open_store(root, clock, **settings)
    for number in range(COUNT):
        assert put(store, number) is PutStatus.PUT_OK
    while store.step():
        pass
    store.flusher.flush_all()
    return store


def newest(folder: Path) -> Path:
    return max(folder.iterdir())


def current_log_file(store: MessageStore) -> Path:
    last = store.log.files.last
    assert last is not None
    return Path(last.path)


def replace(path: Path) -> None:
    copy = path.with_name("copy")
    shutil.copyfile(path, copy)
    copy.replace(path)


def move_away(path: Path) -> None:
    path.rename(path.with_name(f"{path.name}.away"))


LOG_CHANGES: dict[str, tuple[Callable[[Path], None], str]] = {
    "deleted": (Path.unlink, "was deleted"),
    "replaced": (replace, "was deleted"),
    "moved away": (move_away, "was deleted"),
    "longer": (
        lambda path: os.truncate(path, path.stat().st_size + 1),
        "another program truncated it",
    ),
}


@pytest.mark.parametrize("how", LOG_CHANGES)
def test_a_changed_log_file_ends_puts(root: Path, clock: ManualClock, how: str) -> None:
    change, text = LOG_CHANGES[how]
    store = filled(root, clock)
    look(store, clock)
    assert store.refusal == ""
    path = current_log_file(store)
    change(path)
    look(store, clock)
    assert str(path) in store.refusal
    assert text in store.refusal or "was replaced" in store.refusal
    refused = store.put(IncomingMessage("TopicA", b"late"))
    assert refused.status is PutStatus.SERVICE_NOT_AVAILABLE
    assert refused.reason == store.refusal
    store.abandon()


@pytest.mark.parametrize("how", ["deleted", "replaced", "longer"])
def test_nothing_is_acknowledged_into_a_changed_log_file_under_sync_flush(
    root: Path, clock: ManualClock, how: str
) -> None:
    store = filled(root, clock, flush_disk_type="SYNC_FLUSH")
    path = current_log_file(store)
    LOG_CHANGES[how][0](path)
    assert put(store, COUNT) is PutStatus.FLUSH_DISK_TIMEOUT, "no second has passed"
    assert put(store, COUNT + 1) is PutStatus.SERVICE_NOT_AVAILABLE
    assert str(path) in store.refusal
    with pytest.raises(WriteFailed, match=path.name):
        store.close()


def test_messages_before_a_deleted_log_file_are_kept(root: Path, clock: ManualClock) -> None:
    store = filled(root, clock, flush_disk_type="SYNC_FLUSH")
    path = current_log_file(store)
    path.unlink()
    assert put(store, COUNT) is PutStatus.FLUSH_DISK_TIMEOUT
    with pytest.raises(WriteFailed):
        store.close()
    again = open_store(root, clock)
    kept = bodies(again)
    assert kept == list(range(len(kept)))
    last = again.last_record()
    assert last is not None
    assert int(path.name) - again.max_physical_offset < BODY_BYTES + 200
    again.close()


def test_the_folder_of_the_store_deleted(root: Path, clock: ManualClock) -> None:
    store = filled(root, clock)
    shutil.rmtree(root)
    look(store, clock)
    assert str(root) in store.refusal
    assert put(store, COUNT) is PutStatus.SERVICE_NOT_AVAILABLE
    store.abandon()


@pytest.mark.parametrize("how", ["deleted", "cut", "folder deleted"])
def test_queue_files_are_rebuilt_by_the_next_start(
    root: Path, clock: ManualClock, how: str
) -> None:
    store = filled(root, clock)
    folder = root / "consumequeue/TopicA/0"
    if how == "deleted":
        newest(folder).unlink()
    elif how == "cut":
        os.truncate(newest(folder), 40)
    else:
        shutil.rmtree(folder)
    look(store, clock)
    assert str(folder) in store.refusal
    assert "the next start rebuilds its queue" in store.refusal
    assert store.watch.problems[str(newest(folder) if how == "cut" else store.refusal.split()[0])]
    assert put(store, COUNT) is PutStatus.SERVICE_NOT_AVAILABLE
    clock.advance(70_000)
    look(store, clock)  # Writes the checkpoint again, which must not claim more about queues.
    store.close()
    again = open_store(root, clock)
    assert bodies(again) == list(range(COUNT))
    again.close()
    store_fixture.assert_sound(root)


def test_a_reader_does_not_skip_a_deleted_queue_file(root: Path, clock: ManualClock) -> None:
    store = filled(root, clock)
    files = sorted((root / "consumequeue/TopicA/0").iterdir())
    store.queues.close()  # All files of so small a store are open.
    files[2].unlink()
    queue_offset = int(files[2].name) // 20
    with pytest.raises(WriteFailed, match=files[2].name):
        store.get("TopicA", 0, queue_offset)
    look(store, clock)
    assert str(files[2]) in store.refusal
    store.close()
    again = open_store(root, clock)
    assert bodies(again) == list(range(COUNT))
    again.close()


def test_the_index_is_reported_and_rebuilt(root: Path, clock: ManualClock) -> None:
    store = open_store(root, clock)
    for number in range(20):
        keys = f"KEYS\x01k{number}\x02".encode()
        store.put(IncomingMessage("TopicA", b"x", 0, keys))
    while store.step():
        pass
    path = newest(root / "index")
    path.unlink()
    look(store, clock)
    assert store.refusal == ""
    assert "was deleted" in store.watch.problems[str(path)]
    store.close()
    with open_store(root, clock) as again:
        assert [len(again.query("TopicA", f"k{number}").records) for number in range(20)] == [
            1
        ] * 20


@pytest.mark.parametrize("name", ["checkpoint", "abort", "lock"])
def test_small_files_are_written_again(
    root: Path, clock: ManualClock, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    store = filled(root, clock)
    look(store, clock)
    (root / name).unlink()
    look(store, clock)
    look(store, clock)
    assert (root / name).exists()
    assert f"{root}/{name} was deleted" in caplog.text
    assert store.refusal == ""
    assert put(store, COUNT) is PutStatus.PUT_OK
    with pytest.raises(StoreUnavailable, match="in use"):
        open_store(root, clock)
    store.abandon()
    with open_store(root, clock) as again:
        assert not again.recovery.was_clean
        assert bodies(again) == list(range(COUNT + 1))


# --- two brokers ----------------------------------------------------------------------------------


def test_a_second_store_is_refused_even_without_the_lock_file(
    root: Path, clock: ManualClock
) -> None:
    store = filled(root, clock)
    (root / "lock").unlink()
    with pytest.raises(StoreUnavailable, match=f"{root} is in use"):
        open_store(root, clock)
    store.close()
    open_store(root, clock).close()


def test_a_replaced_lock_file_ends_puts(root: Path, clock: ManualClock) -> None:
    """The lock file was deleted, and a broker that only checks the file was started."""
    store = filled(root, clock)
    (root / "lock").unlink()
    (root / "lock").write_bytes(b"lock")
    look(store, clock)
    assert f"{root}/lock is not the file that was locked" in store.refusal
    assert put(store, COUNT) is PutStatus.SERVICE_NOT_AVAILABLE
    store.close()


def test_two_stores_do_not_share_the_folder_of_a_log(tmp_path: Path, clock: ManualClock) -> None:
    log = str(tmp_path / "log")
    store = open_store(tmp_path / "a", clock, store_path_commit_log=log)
    with pytest.raises(StoreUnavailable, match=f"{log} is in use"):
        open_store(tmp_path / "b", clock, store_path_commit_log=log)
    store.close()
    open_store(tmp_path / "b", clock, store_path_commit_log=log).close()


def test_a_file_system_without_locks_on_folders_uses_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(9, "Bad file descriptor")

    monkeypatch.setattr("fcntl.flock", refuse)
    lock = FolderLock(str(tmp_path))
    with pytest.raises(StoreUnavailable, match=r"lock; stop it first"):
        FolderLock(str(tmp_path))
    lock.release()


# --- a broker -------------------------------------------------------------------------------------


async def test_the_health_of_a_folder_that_lost_a_file(tmp_path: Path) -> None:
    """Health is red, with the name of the file; sends are answered 14 with the same text."""
    running = world.broker(tmp_path)
    subject = await running.__aenter__()
    try:
        await subject.send("Orders", b"x")
        broker = subject.broker
        last = broker.store.log.files.last
        assert last is not None
        os.unlink(last.path)  # noqa: PTH108 - short, and no task waits
        broker.store.watch.check()
        broker.store.step_memory()
        health = world.health_of(broker)
        assert [last.path in problem for problem in health.problems] == [True]
        reply = await subject.send("Orders", b"late")
        assert reply.code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert f"{last.path} was deleted while the store is open" in (reply.remark or "")
        assert await subject.ask(RequestCode.GET_BROKER_RUNTIME_INFO)
    finally:
        with pytest.raises(WriteFailed, match="was deleted"):
            await running.__aexit__(None, None, None)
