"""Deleted topics: they stay deleted (known-bugs.md#deleted-topics), and what is made anew is
whole."""

import itertools
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import store_fixture
from reput.clock import ManualClock
from reput.errors import WriteFailed
from reput.format import names
from reput.store import paths, tombstones
from reput.store.disk import Disk
from reput.store.files import open_folder
from reput.store.incoming import IncomingMessage, PutStatus
from reput.store.message_store import MessageStore
from store_fixture import Stores

NEW = [f"new-{number}".encode() for number in range(7)]


def put(store: MessageStore, topic: str, body: bytes, queue_id: int = 0, **properties: str) -> int:
    """Put a message; return its queue offset."""
    text = "".join(f"{name}\x01{value}\x02" for name, value in properties.items())
    result = store.put(IncomingMessage(topic, body, queue_id, text.encode()))
    assert result.status is PutStatus.PUT_OK, result.reason
    return result.queue_offset


def put_old(store: MessageStore) -> None:
    """Put messages of a topic that will be deleted, in two queues, and of one that will not."""
    for number in range(30):
        put(store, "Doomed", b"old", number % 2, KEYS=f"k{number}")
        put(store, "Kept", b"kept")


def bodies(store: MessageStore, topic: str, queue_id: int = 0) -> list[bytes]:
    """The bodies of a queue, as consumers get them."""
    found: list[bytes] = []
    queue_offset = store.min_offset(topic, queue_id)
    while queue_offset < store.max_offset(topic, queue_id):
        result = store.get(topic, queue_id, queue_offset)
        assert result.damaged_count == 0
        found += [bytes(one)[88 : 88 + int.from_bytes(one[84:88])] for one in result.records]
        queue_offset = result.next_offset
    return found


def crash(store: MessageStore) -> None:
    store.abandon()


def stop(store: MessageStore) -> None:
    store.close()


def lose_queues(store: MessageStore) -> None:
    store.close()
    shutil.rmtree(Path(store.root) / paths.CONSUME_QUEUE)


def lose_a_queue(store: MessageStore) -> None:
    """All is dispatched again, beside the queues that are left."""
    store.close()
    shutil.rmtree(Path(store.root) / paths.CONSUME_QUEUE / "Kept")


ENDS = pytest.mark.parametrize("end", [crash, stop, lose_queues, lose_a_queue])
End = Callable[[MessageStore], None]


# --- staying deleted -----------------------------------------------------------------------------


@ENDS
def test_a_deleted_topic_does_not_come_back(stores: Stores, end: End) -> None:
    store = stores.open()
    put_old(store)
    assert store.delete_topic("Doomed") == 2
    assert store.max_offset("Doomed", 0) == 0
    assert store.get("Doomed", 0, 0).status.name == "NO_MATCHED_LOGIC_QUEUE"
    end(store)
    store = stores.open()
    assert store.queues.topics() == ["Kept"]
    assert not (stores.root() / "consumequeue" / "Doomed").exists()
    assert bodies(store, "Kept") == [b"kept"] * 30


@ENDS
@pytest.mark.parametrize("settings", [{}, {"flush_disk_type": "SYNC_FLUSH"}, {"index_tags": True}])
def test_a_topic_made_anew_has_new_messages_only(
    stores: Stores, end: End, settings: dict[str, Any]
) -> None:
    store = stores.open(**settings)
    put_old(store)
    store.delete_topic("Doomed")
    assert [put(store, "Doomed", body) for body in NEW] == list(range(len(NEW)))
    end(store)
    store = stores.open(**settings)
    assert bodies(store, "Doomed") == NEW
    assert store.max_offset("Doomed", 1) == 0
    assert put(store, "Doomed", b"newer") == len(NEW)
    assert put(store, "Doomed", b"other", 1) == 0
    assert bodies(store, "Kept") == [b"kept"] * 30


@ENDS
def test_a_topic_may_be_deleted_again(stores: Stores, end: End) -> None:
    store = stores.open()
    for _ in range(3):
        put_old(store)
        assert store.delete_topic("Doomed") == 2
    put(store, "Doomed", b"new")
    end(store)
    store = stores.open()
    assert bodies(store, "Doomed") == [b"new"]
    assert bodies(store, "Doomed", 1) == []
    assert len(tombstones.read(open_folder(store.root))) == 1


def test_what_was_put_and_not_dispatched_is_deleted_too(stores: Stores) -> None:
    store = stores.open(flush_disk_type="SYNC_FLUSH")
    pending = [store.begin_put(IncomingMessage("Doomed", b"old")) for _ in range(5)]
    assert store.queues.find("Doomed", 0) is not None
    store.delete_topic("Doomed")
    assert all(one.result is not None for one in pending)
    assert [put(store, "Doomed", body) for body in NEW] == list(range(len(NEW)))
    assert bodies(store, "Doomed") == NEW


@ENDS
def test_light_queues_stay_deleted(stores: Stores, end: End) -> None:
    settings: dict[str, Any] = {"enable_multi_dispatch": True}
    store = stores.open(**settings)
    light = f"{names.LMQ_PREFIX}one"
    for _ in range(5):
        put(store, "Kept", b"kept", INNER_MULTI_DISPATCH=light)
    assert store.delete_topic(light) == 1
    end(store)
    store = stores.open(**settings)
    assert store.queues.topics() == ["Kept"]
    put(store, "Kept", b"later", INNER_MULTI_DISPATCH=light)
    assert store.max_offset(light, 0) == 1
    assert bodies(store, "Kept") == [b"kept"] * 5 + [b"later"]


def test_reading_makes_no_queue(stores: Stores) -> None:
    store = stores.open()
    put_old(store)
    store.delete_topic("Doomed")
    store.get("Doomed", 0, 0)
    store.min_offset("Doomed", 0)
    store.max_offset("Doomed", 0)
    store.offset_by_time("Doomed", 0, 0)
    store.store_time("Doomed", 0, 0)
    store.earliest_message_time("Doomed", 0)
    store.lag_bytes("Doomed", 0, 0)
    assert store.queues.topics() == ["Kept"]


@ENDS
def test_keys_of_a_deleted_topic_are_found_as_in_java(stores: Stores, end: End) -> None:
    store = stores.open()
    put_old(store)
    store.delete_topic("Doomed")
    end(store)
    store = stores.open()
    assert len(store.query("Doomed", "k3").records) == 1


def test_keys_are_indexed_again_where_the_index_is_lost(stores: Stores) -> None:
    store = stores.open()
    put_old(store)
    store.delete_topic("Doomed")
    store.abandon()
    shutil.rmtree(Path(store.root) / paths.INDEX)
    store = stores.open()
    assert [len(store.query("Doomed", f"k{number}").records) for number in range(30)] == [1] * 30
    assert store.queues.topics() == ["Kept"]


def test_a_topic_that_is_not_there_leaves_no_tombstone(stores: Stores) -> None:
    store = stores.open()
    assert store.delete_topic("Unknown") == 0
    assert not Path(store.root, paths.TOMBSTONES).exists()


def test_waiting_units_need_no_room_to_be_deleted(
    stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = stores.open()
    put_old(store)
    with monkeypatch.context() as full:
        full.setattr(store.queues, "write", None)
        assert store.delete_topic("Doomed") == 2
    store.flusher.flush_all()
    assert bodies(store, "Kept") == [b"kept"] * 30


# --- the tombstones themselves -------------------------------------------------------------------


def test_a_tombstone_goes_when_the_log_begins_behind_it(stores: Stores) -> None:
    clock = ManualClock(store_fixture.START_MS)
    store = stores.open(clock=clock)
    put_old(store)
    store.delete_topic("Doomed")
    while len(store.log.files.files) < 3:
        put(store, "Kept", bytes(1000))
    assert tombstones.read(open_folder(store.root)).keys() == {"Doomed"}
    for file in store.log.files.files:
        os.utime(file.path, (0, 0))
    store.retention.expire_now()
    while store.step():
        clock.advance(100)
    assert store.min_physical_offset > 0
    assert not Path(store.root, paths.TOMBSTONES).exists()
    put(store, "Doomed", b"new")
    store.abandon()
    store = stores.open()
    assert bodies(store, "Doomed") == [b"new"]


def test_a_tombstone_behind_the_end_of_the_log_buries_nothing_new(stores: Stores) -> None:
    store = stores.open()
    put_old(store)
    store.delete_topic("Doomed")
    end = store.max_physical_offset
    store.close()
    path = Path(store.root, paths.TOMBSTONES)
    path.write_text(json.dumps({"Doomed": end + 10_000}))
    store = stores.open()
    assert json.loads(path.read_text()) == {"Doomed": end}
    put(store, "Doomed", b"new")
    store.abandon()
    store = stores.open()
    assert bodies(store, "Doomed") == [b"new"]


@pytest.mark.parametrize("text", ["", "[1]", '{"Doomed": "x"}', '{"Doomed": null}', "\xff"])
def test_a_broken_file_is_reported_and_stops_nothing(
    text: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / paths.TOMBSTONES).write_text(text, encoding="latin-1")
    assert tombstones.read(open_folder(str(tmp_path))) == {}
    assert "topics.deleted cannot be read" in caplog.text


# --- cleaning ------------------------------------------------------------------------------------


def test_clean_topics_deletes_what_the_table_does_not_know(stores: Stores) -> None:
    store = stores.open(enable_multi_dispatch=True)
    put(store, "Kept", b"1", INNER_MULTI_DISPATCH=f"{names.LMQ_PREFIX}one")
    put(store, "Unknown", b"2")
    put(store, "Unknown", b"3", 1)
    put(store, "%RETRY%gone", b"4")
    put(store, "Kept", b"5", DELAY="3")
    put(store, names.OP_HALF_TOPIC, b"6")
    assert store.clean_topics({"Kept"}) == 3
    left = {"Kept", names.SCHEDULE_TOPIC, names.OP_HALF_TOPIC, f"{names.LMQ_PREFIX}one"}
    assert set(store.queues.topics()) == left
    store.abandon()
    store = stores.open(enable_multi_dispatch=True)
    assert set(store.queues.topics()) == left


def test_clean_unused_queues_deletes_what_the_log_has_nothing_of(stores: Stores) -> None:
    store = stores.open()
    put(store, "Unused", b"1")
    put(store, "HalfUsed", b"2", 0)
    put(store, "HalfUsed", b"3", 1)
    put(store, "Delayed", b"4", DELAY="1")
    while len(store.log.files.files) < 3:
        put(store, "Kept", bytes(1000))
    put(store, "HalfUsed", b"5", 1)
    assert store.clean_unused_queues() == 0
    for file in store.log.files.files:
        os.utime(file.path, (0, 0))
    store.retention.expire_now()
    while store.step():
        pass
    assert store.clean_unused_queues() == 2
    assert set(store.queues.topics()) == {"HalfUsed", "Kept", names.SCHEDULE_TOPIC}
    assert list(store.queues.of_topic("HalfUsed")) == [1]
    assert put(store, "Unused", b"6") == 0
    store.abandon()
    store = stores.open()
    assert bodies(store, "Unused") == [b"6"]
    assert bodies(store, "HalfUsed", 1) == [b"5"]


# --- crashes -------------------------------------------------------------------------------------


class Died(BaseException):
    """The machine went down."""


class MortalDisk(Disk):
    """A disk on which names come back that were deleted or replaced and not synced.

    Args:
        keep: Where it puts files aside.
    """

    def __init__(self, keep: Path) -> None:
        super().__init__()
        self.left: int | None = None
        """Changes of names until the machine goes down."""
        self._keep = keep
        self._count = itertools.count()
        self._unsynced: list[tuple[str, Path | None]] = []

    def _tick(self) -> None:
        if self.left is not None:
            if self.left == 0:
                raise Died
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
        self._unsynced = [one for one in self._unsynced if str(Path(one[0]).parent) != path]

    def sync_filesystem(self, path: str) -> None:
        self._tick()
        super().sync_filesystem(path)
        self._unsynced.clear()

    def go_down(self) -> None:
        """Lose the names that were not synced."""
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
        disk = MortalDisk(folder / "kept")
        config = store_fixture.config(folder / "store")
        store = MessageStore.open(config=config, disk=disk)
        put_old(store)
        store.flusher.flush_all()
        store.sync()
        disk.left = moment
        try:
            script_delete(store)
            has_died = False
        except Died:
            has_died = True
        store.abandon()
        disk.go_down()
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
        disk = MortalDisk(folder / "kept")
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
        except Died:
            has_died = True
        store.abandon()
        disk.go_down()
        with MessageStore.open(config=config, clock=clock) as after:
            assert after.recovery.rebuilt_queues == []
            starts.add(after.min_physical_offset // config.mapped_file_size_commit_log)
            assert after.max_offset("TopicA", 0) == last
            assert len(bodies(after, "TopicA")) == last - after.min_offset("TopicA", 0)
        store_fixture.assert_sound(folder / "store")
        if not has_died:
            break
    assert starts == {0, 1, 2, 3}


@pytest.mark.parametrize("broken_verb", ["replace", "rename", "sync_folder", "unlink"])
def test_a_deletion_that_fails_can_be_done_again(
    broken_verb: str, stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk()
    store = stores.open(disk=disk)
    put_old(store)
    store.flusher.flush_all()

    def fail(path: str, *_: object) -> None:
        raise WriteFailed(path, "cannot delete: Input/output error")

    with monkeypatch.context() as broken:
        broken.setattr(disk, broken_verb, fail)
        with pytest.raises(WriteFailed):
            store.delete_topic("Doomed")
    assert store.delete_topic("Doomed") == 2
    assert [put(store, "Doomed", body) for body in NEW] == list(range(len(NEW)))
    assert bodies(store, "Doomed") == NEW


class UnwritableDisk(Disk):
    """Cannot replace files when it is told so."""

    is_failing = False

    def replace(self, path: str, data: bytes) -> None:
        if self.is_failing:
            raise WriteFailed(path, "cannot write: Input/output error")
        super().replace(path, data)


def test_tombstones_that_expire_leave_the_file_without_the_writers_thread(tmp_path: Path) -> None:
    disk = UnwritableDisk()
    kept = tombstones.Tombstones(str(tmp_path), disk)
    kept.note(["Early"], 100)
    kept.note(["Late"], 200)
    kept.save()
    disk.is_failing = True
    kept.drop_before(100)  # in memory alone: it waits for nothing
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
