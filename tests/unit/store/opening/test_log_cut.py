"""Cuts of a closed store's log: the kept bytes, the rest of the store, a crash at every step."""

import itertools
import shutil
from pathlib import Path
from typing import Any

import pytest

import seeds
from log_copy import assert_same, copy_log, log_bytes
from lossy_disk import Loss, LossyDisk
from reput.clock import ManualClock
from reput.errors import DiskFull, StoreUnavailable
from reput.format import checkpoint_page
from reput.store.files.disk import Disk
from reput.store.files.files import open_folder
from reput.store.log import bulk_append
from reput.store.message_store import MessageStore
from reput.store.opening.log_cut import CutReport, cut_log
from store_fixture import START_MS, RoomyDisk, Stores, assert_sound, config
from store_subject import message

FILE = 64 * 1024
MESSAGES = 300
CUT_FILE = "cut/{:020d}-{}"


def put_some(store: MessageStore, first: int, count: int) -> list[int]:
    """Put messages; return the physical offsets of their ends."""
    ends = []
    for number in range(first, first + count):
        sent = message("TopicA", b"%d:" % number + b"x" * 690, number % 3, keys=f"key{number}")
        ends.append(store.put(sent).end_offset)
    return ends


def closed_store(stores: Stores, name: str = "store", **settings: Any) -> tuple[bytes, list[int]]:
    """Make a store and close it; return its log, and the ends of the records."""
    store = stores.open(name, **settings)
    ends = put_some(store, 0, MESSAGES)
    data = log_bytes(store)
    store.close()
    return data, ends


def cut(stores: Stores, physical_offset: int, disk: Disk | None = None) -> CutReport:
    return cut_log(config(stores.root()), physical_offset, START_MS, disk or RoomyDisk())


def assert_cut(store: MessageStore, data: bytes, ends: list[int], left: int) -> None:
    """Check that a store has only its first ``left`` messages, everywhere."""
    end = ends[left - 1] if left else 0
    assert store.log.written_offset == end
    assert store.dispatcher.dispatched_offset == end
    assert log_bytes(store) == data[:end]
    for queue_id in range(3):
        count = len(range(queue_id, left, 3))
        assert store.max_offset("TopicA", queue_id) == count
    for number in (0, left - 1):
        assert len(store.query("TopicA", f"key{number}").records) == 1
    for number in {left, MESSAGES - 1} - set(range(left)):
        assert len(store.query("TopicA", f"key{number}").records) == 0
    assert store.index.end_physical_offset < max(end, 1)
    checkpoint = store.checkpoint.fields
    assert checkpoint.queue_physical_offset <= end
    # The bytes after the end are zeros, in all files.
    for file in store.log.files.files:
        assert not any(Path(file.path).read_bytes()[max(end - file.start, 0) :])


@pytest.mark.parametrize("left", [1, 7, 80, 81, 82, 150, MESSAGES - 1])
def test_a_cut_store_has_the_messages_before_the_cut(stores: Stores, left: int) -> None:
    data, ends = closed_store(stores)
    report = cut(stores, ends[left - 1])
    path = stores.root() / CUT_FILE.format(ends[left - 1], START_MS)
    assert report == CutReport(ends[left - 1], len(data) - ends[left - 1], str(path))
    assert path.read_bytes() == data[ends[left - 1] :]
    store = stores.open()
    assert_cut(store, data, ends, left)
    # No queue offset of a message that is left is given twice, and the next ones continue.
    for queue_id in range(3):
        result = store.put(message("TopicA", b"new", queue_id))
        assert result.queue_offset == len(range(queue_id, left, 3))


@pytest.mark.parametrize("files", [0, 1, 2])
def test_a_log_may_be_cut_where_a_file_begins(stores: Stores, files: int) -> None:
    data, ends = closed_store(stores)
    cut(stores, files * FILE)
    store = stores.open(broker_role="SLAVE")
    left = sum(end <= files * FILE for end in ends)
    assert log_bytes(store) == data[: ends[left - 1] if left else 0]
    assert store.max_offset("TopicA", 0) == len(range(0, left, 3))


def test_nothing_is_cut_at_the_end(stores: Stores) -> None:
    data, ends = closed_store(stores)
    assert cut(stores, ends[-1]) == CutReport(ends[-1], 0, "")
    store = stores.open()
    assert store.recovery.was_clean
    assert_cut(store, data, ends, MESSAGES)


@pytest.mark.parametrize("physical_offset", [-1, 100 * FILE])
def test_an_offset_outside_of_the_log_is_refused(stores: Stores, physical_offset: int) -> None:
    _, ends = closed_store(stores)
    with pytest.raises(StoreUnavailable, match=f"{physical_offset}; it has 0 to {ends[-1]}"):
        cut(stores, physical_offset)


def test_an_open_store_is_not_cut(stores: Stores) -> None:
    store = stores.open()
    (end,) = put_some(store, 0, 1)
    with pytest.raises(StoreUnavailable, match="in use"):
        cut(stores, 0)
    assert store.log.written_offset == end


def test_a_second_cut_at_the_same_place_and_time_keeps_both_files(stores: Stores) -> None:
    data, ends = closed_store(stores)
    first = cut(stores, ends[10])
    store = stores.open()
    put_some(store, 500, 5)
    again = log_bytes(store)
    store.close()
    second = cut(stores, ends[10])
    assert first.path != second.path
    assert Path(first.path).read_bytes() == data[ends[10] :]
    assert Path(second.path).read_bytes() == again[ends[10] :]
    assert_cut(stores.open(), data, ends, 11)


def test_a_full_disk_changes_nothing(stores: Stores) -> None:
    class FullDisk(RoomyDisk):
        def write(
            self, descriptor: int, path: str, position: int, data: bytes | memoryview
        ) -> None:
            if "/cut/" in path:
                raise DiskFull(path, len(data), "no space")
            super().write(descriptor, path, position, data)

    data, ends = closed_store(stores)
    with pytest.raises(DiskFull):
        cut(stores, ends[10], FullDisk())
    assert list((stores.root() / "cut").iterdir()) == []
    store = stores.open()
    assert store.recovery.was_clean
    assert_cut(store, data, ends, MESSAGES)


def test_a_topic_that_was_cut_wholly_has_no_queue_offsets(stores: Stores) -> None:
    store = stores.open()
    ends = put_some(store, 0, 20)
    for _ in range(20):
        store.put(message("TopicB"))
    store.close()
    cut(stores, ends[-1])
    store = stores.open()
    assert store.max_offset("TopicB", 0) == 0
    assert store.put(message("TopicB")).queue_offset == 0


def test_an_import_that_is_cut_is_forgotten(stores: Stores) -> None:
    data, ends = closed_store(stores)
    begun = bulk_append.Begun(ends[50], ends[50], 0, "stream", 7)
    appends = bulk_append.Appends(begun, {"stream": 7, "other": 3})
    bulk_append.save(str(stores.root()), appends, Disk())
    cut(stores, ends[20])
    left = bulk_append.read(open_folder(str(stores.root())))
    assert left == bulk_append.Appends(None, {"other": 3})
    assert_cut(stores.open(), data, ends, 21)


def test_times_of_the_checkpoint_are_those_of_what_is_left(stores: Stores) -> None:
    """Another master's records may be older than the cut ones, and are not durable."""
    clock = ManualClock(START_MS)
    store = stores.open(clock=clock)
    ends = put_some(store, 0, 150)
    clock.advance(1_000_000)
    put_some(store, 150, 150)
    store.close()
    cut(stores, ends[120])
    page = checkpoint_page.unpack((stores.root() / "checkpoint").read_bytes())
    assert page.physical_timestamp == page.queue_timestamp == START_MS
    assert page.index_timestamp <= START_MS
    assert page.queue_physical_offset == ends[119]
    assert stores.open().log.written_offset == ends[120]


def test_a_cut_slave_follows_again(stores: Stores) -> None:
    """Two logs that differ from the 100th record on are equal again."""
    master = stores.open("master")
    ends = put_some(master, 0, 100)
    slave = stores.open("store", broker_role="SLAVE")
    copy_log(master, slave)
    slave.close()
    former = stores.open("store")
    put_some(former, 1000, 200)
    former.close()
    put_some(master, 2000, 150)
    cut(stores, ends[-1])
    slave = stores.open("store", broker_role="SLAVE")
    assert slave.replica_log.end == ends[-1]
    copy_log(master, slave)
    assert_same(master, slave)
    assert slave.query("TopicA", "key1100").records == []
    assert len(slave.query("TopicA", "key2100").records) == 1


# --- a crash at every step ------------------------------------------------------------------


class PowerCut(Exception):
    """The moment at which the power fails."""


class CountedDisk(LossyDisk):
    """A disk whose power fails before its n-th action."""

    left = -1

    def _act(self) -> None:
        if self.left == 0:
            raise PowerCut
        self.left -= 1

    def sync_file(self, descriptor: int, path: str) -> None:
        self._act()
        super().sync_file(descriptor, path)

    def sync_folder(self, path: str) -> None:
        self._act()
        super().sync_folder(path)

    def create(self, path: str, size: int, *, is_durable: bool = True) -> int:
        self._act()
        return super().create(path, size, is_durable=is_durable)

    def write(self, descriptor: int, path: str, position: int, data: bytes | memoryview) -> None:
        self._act()
        super().write(descriptor, path, position, data)

    def rename(self, source: str, target: str) -> None:
        self._act()
        super().rename(source, target)

    def unlink(self, path: str) -> None:
        self._act()
        super().unlink(path)


@pytest.mark.parametrize(
    ("role", "loss"),
    [
        ("SLAVE", Loss.ALL),
        ("ASYNC_MASTER", Loss.NOTHING),
        ("SLAVE", Loss.SECTORS),
        pytest.param("ASYNC_MASTER", Loss.ALL, marks=pytest.mark.soak),
        pytest.param("SLAVE", Loss.NOTHING, marks=pytest.mark.soak),
        pytest.param("ASYNC_MASTER", Loss.SECTORS, marks=pytest.mark.soak),
    ],
)
@pytest.mark.sampled(3)
def test_a_crash_leaves_the_whole_log_or_the_cut_one(tmp_path: Path, role: str, loss: Loss) -> None:
    stores = Stores(tmp_path)
    data, ends = closed_store(stores)
    left = 90
    end = ends[left - 1]
    original = tmp_path / "original"
    shutil.copytree(stores.root(), original)
    outcomes = set()
    for step in itertools.count():
        shutil.rmtree(stores.root())
        shutil.copytree(original, stores.root())
        disk = CountedDisk(stores.root())
        disk.left = step
        is_done = True
        try:
            cut(stores, end, disk)
        except PowerCut:
            is_done = False
        disk.left = -1
        disk.lose_power(seeds.random("log cut", step), loss)
        store = MessageStore.open(
            config=config(stores.root(), broker_role=role), clock=ManualClock(START_MS), disk=disk
        )
        is_cut = store.log.written_offset == end
        assert_cut(store, data, ends, left if is_cut else MESSAGES)
        kept = list((stores.root() / "cut").glob("*"))
        assert [path.read_bytes() for path in kept] == ([data[end:]] if is_cut else [])
        assert all(path.suffix == "" for path in kept)
        store.close()
        assert_sound(stores.root())
        outcomes.add(is_cut)
        if is_done:
            assert is_cut
            break
    assert outcomes == {True, False}
    assert step > 10
