"""The check of an open store's files: which problems are reported, and for how long."""

import errno
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from reput.clock import ManualClock
from reput.store.config import StoreConfig
from reput.store.files import folder_lock
from reput.store.message_store import MessageStore
from reput.store.writing.incoming import IncomingMessage, PutStatus

CONFIG = StoreConfig(
    mapped_file_size_commit_log=1 << 16,
    max_message_size=1 << 14,
    mapped_file_size_consume_queue=2_000,
    max_hash_slot_num=10,
    max_index_num=40,
)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def store(root: Path) -> Iterator[MessageStore]:
    opened = MessageStore.open(str(root), CONFIG, clock=ManualClock(1_700_000_000_000))
    put(opened, 10)
    yield opened
    opened.abandon()


def put(store: MessageStore, count: int, body: bytes = b"x") -> None:
    for number in range(count):
        keys = f"KEYS\x01k{number}\x02".encode()
        result = store.put(IncomingMessage("TopicA", body, 0, keys))
        assert result.status is PutStatus.PUT_OK
    while store.step():
        pass
    store.flusher.flush_all()


def intercept(
    monkeypatch: pytest.MonkeyPatch, path: str, meanwhile: Callable[[], None]
) -> list[str]:
    """Call ``meanwhile`` right after the first stat of a file; return the list of such calls."""
    stat = os.stat
    seen: list[str] = []

    def look(looked_at: Any, **options: Any) -> os.stat_result:
        if looked_at != path or seen:
            return stat(looked_at, **options)
        seen.append(path)
        try:
            return stat(looked_at, **options)
        finally:
            meanwhile()

    monkeypatch.setattr(os, "stat", look)
    return seen


def test_a_topic_recreated_during_a_check_is_not_reported(
    store: MessageStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    (path,) = store.queues.files_in_use()
    away = f"{path}.away"
    Path(path).rename(away)  # as a deletion does just before a check
    seen = intercept(monkeypatch, path, lambda: os.rename(away, path))  # noqa: PTH104
    store.watch.check()
    assert seen
    assert (store.watch.refusal, store.watch.problems) == ("", {})


def test_a_lost_queue_file_stays_reported(store: MessageStore) -> None:
    (path,) = store.queues.files_in_use()
    put(store, 200, b"x" * 1_000)  # several log files, so that each check covers them
    assert path in store.queues.files_in_use()
    Path(path).unlink()
    for _ in range(3):
        store.watch.check()
        assert path in store.watch.problems


def test_an_expired_index_file_is_no_longer_reported(store: MessageStore, root: Path) -> None:
    path = max((root / "index").iterdir())
    path.unlink()
    store.watch.check()
    assert "was deleted" in store.watch.problems[str(path)]
    put(store, 100)
    store.watch.check()
    assert str(path) in store.watch.problems, "it is lacking still"
    assert store.index.delete_before(store.max_physical_offset)
    store.watch.check()
    assert store.watch.problems == {}


def test_an_expired_log_file_is_no_longer_reported(store: MessageStore) -> None:
    put(store, 200, b"x" * 1_000)
    first = store.log.files.files[0]
    Path(first.path).unlink()
    store.watch.check()
    assert "was deleted" in store.watch.problems[first.path]
    assert store.log.delete_first(0, 0) is first
    store.watch.check()
    assert store.watch.problems == {}


@pytest.mark.parametrize("step", ["open_descriptor", "pwrite"])
def test_a_lock_file_that_cannot_be_created_now_is_created_later(
    store: MessageStore, root: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """A lack of descriptors or of room is not another broker."""
    (root / "lock").unlink()
    code = errno.EMFILE if step == "open_descriptor" else errno.ENOSPC

    def fail(*_: object) -> int:
        raise OSError(code, os.strerror(code))

    with monkeypatch.context() as patch:
        patch.setattr(folder_lock if step == "open_descriptor" else os, step, fail)
        for _ in range(2):
            store.watch.check()
            assert store.watch.refusal == ""
            assert os.strerror(code) in store.watch.problems[f"{root}/lock"]
    store.watch.check()
    assert (store.watch.refusal, store.watch.problems) == ("", {})
    assert (root / "lock").read_bytes() == b"lock"


def test_a_lock_file_of_another_broker_is_refused(store: MessageStore, root: Path) -> None:
    (root / "lock").unlink()
    shutil.copyfile(root / "checkpoint", root / "lock")
    store.watch.check()
    assert f"{root}/lock is not the file that was locked" in store.watch.refusal
