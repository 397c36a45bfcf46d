"""The list of a store's queues: when it is written, and when a start uses it."""

import json
from pathlib import Path

import pytest

import store_fixture
from reput.clock import ManualClock
from reput.store.files import paths
from reput.store.message_store import MessageStore
from reput.store.queues.known_queues import KnownQueues
from reput.store.writing.incoming import IncomingMessage
from store_fixture import START_MS, RoomyDisk


def open_store(root: Path) -> MessageStore:
    return MessageStore.open(
        config=store_fixture.config(root), clock=ManualClock(START_MS), disk=RoomyDisk()
    )


def make(root: Path) -> Path:
    """Create a store with a queue and stop it cleanly; return the path of its list."""
    with open_store(root) as store:
        store.put(IncomingMessage("TopicA", b"body"))
    path = root / paths.KNOWN_QUEUES
    assert json.loads(path.read_text()) == {"TopicA": [0]}
    return path


def test_after_a_clean_stop_the_list_is_neither_compared_nor_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = make(tmp_path)
    written = path.stat().st_mtime_ns
    with monkeypatch.context() as patch:
        patch.setattr(KnownQueues, "_names", lambda _: pytest.fail("all names are compared"))
        open_store(tmp_path).close()
    assert path.stat().st_mtime_ns == written


def test_a_queue_created_after_a_clean_stop_is_written_with_the_others(tmp_path: Path) -> None:
    path = make(tmp_path)
    with open_store(tmp_path) as store:
        store.put(IncomingMessage("TopicB", b"body", 3))
    assert json.loads(path.read_text()) == {"TopicA": [0], "TopicB": [3]}


@pytest.mark.parametrize("missing", [paths.QUEUE_SUMMARY, paths.KNOWN_QUEUES])
def test_without_summary_or_list_the_start_writes_the_existing_queues(
    tmp_path: Path, missing: str
) -> None:
    path = make(tmp_path)
    path.write_text('{"TopicA": [0], "Gone": [0]}')
    (tmp_path / missing).unlink()
    store = open_store(tmp_path)
    assert json.loads(path.read_text()) == {"TopicA": [0]}
    store.abandon()


def test_after_a_crash_the_start_compares_the_list(tmp_path: Path) -> None:
    path = make(tmp_path)
    open_store(tmp_path).abandon()
    path.write_text('{"TopicA": [0], "Gone": [0]}')
    store = open_store(tmp_path)
    assert json.loads(path.read_text()) == {"TopicA": [0]}
    store.abandon()
