"""Expiry: what goes, when, what follows it, and what is said about it."""

import contextlib
import logging
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import golden
import store_fixture
from reput.clock import ManualClock
from reput.errors import DiskFull, InvalidOption, OutOfResources, WriteFailed
from reput.spark.jobs.archive import archive
from reput.store import retention
from reput.store.config import StoreConfig
from reput.store.config_tables import ConsumerOffset
from reput.store.disk import Disk
from reput.store.files import open_folder
from reput.store.incoming import IncomingMessage, PutStatus
from reput.store.kernels import control_block as state
from reput.store.memory import FileMap
from reput.store.message_store import MessageStore
from reput.store.reader import StoreReader
from reput.store.verify import Severity, verify
from spark.in_process import InProcess
from store_fixture import Stores

HOUR_MS = 3_600_000
NOON_MS = 1_700_049_600_000  # 2023-11-15 12:00 UTC
LOG_FILE_BYTES = 64 * 1024
BODY = bytes(1000)
AT_NOON = {"delete_when": "12"}
AT_FOUR = {"delete_when": "04"}


class MeasuredDisk(Disk):
    """A disk that is as full as the test says, and notes and refuses what it deletes."""

    def __init__(self) -> None:
        super().__init__()
        self.percent = 50
        self.percent_of: dict[str, int] = {}
        self.freed_percent = 0
        """What each deletion of a log file gives back."""
        self.failing = ""
        """Deletions of paths with this in them fail."""
        self.done: list[str] = []
        self.looks = 0

    def usage(self, path: str) -> float:
        self.looks += 1
        return self.percent_of.get(Path(path).name, self.percent) / 100

    def unlink(self, path: str) -> None:
        if self.failing and self.failing in path:
            raise WriteFailed(path, "cannot delete: Operation not permitted")
        if Path(path).exists():
            self.done.append(f"unlink {_short(path)}")
            self.percent -= self.freed_percent if "commitlog" in path else 0
        super().unlink(path)

    def sync_folder(self, path: str) -> None:
        self.done.append(f"sync {_short(path)}")
        super().sync_folder(path)


def _short(path: str) -> str:
    """The end of a path, without the zeros that names begin with."""
    name = Path(path).name
    return f"{Path(path).parent.name}/{int(name)}" if name.isdigit() else name


@pytest.fixture(autouse=True)
def utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(NOON_MS)


@pytest.fixture
def disk() -> MeasuredDisk:
    return MeasuredDisk()


def open_store(stores: Stores, **settings: Any) -> MessageStore:
    """Open a store that expires at Java's pace."""
    pace = {
        "clean_resource_interval": 10_000,
        "delete_commit_log_files_interval": 100,
        "delete_consume_queue_files_interval": 100,
    }
    return stores.open(**(pace | settings))


def fill(store: MessageStore, log_files: int, *, topics: int = 1) -> None:
    """Put messages until the log has as many files."""
    number = 0
    while len(store.log.files.files) < log_files:
        topic = f"Topic{'ABCDEFGH'[number % topics]}"
        put(store, topic, key=f"k{number}")
        number += 1


def put(store: MessageStore, topic: str, *, key: str = "k", queue_id: int = 0) -> int:
    """Put a message; return its queue offset."""
    properties = f"KEYS\x01{key}\x02".encode()
    result = store.put(IncomingMessage(topic, BODY, queue_id, properties))
    assert result.status is PutStatus.PUT_OK, result.reason
    return result.queue_offset


def age(store: MessageStore, clock: ManualClock, *hours: float) -> None:
    """Make the first files of the log as old, and the others new."""
    files = store.log.files.files
    for file, old in zip(files, [*hours, *[0.0] * len(files)], strict=False):
        modified_ns = (clock.now_ms() - round(old * HOUR_MS)) * 1_000_000
        os.utime(file.path, ns=(modified_ns, modified_ns))


def step(store: MessageStore) -> None:
    """Do all that is due at the moment."""
    while store.step():
        pass


def run(store: MessageStore, clock: ManualClock, seconds: float) -> None:
    """Let time pass, and the store do what is due, ten times a second."""
    for _ in range(round(seconds * 10)):
        clock.advance(100)
        step(store)


def log_starts(store: MessageStore) -> list[int]:
    """The numbers of the log files there are."""
    names = [Path(file.path) for file in store.log.files.files]
    assert all(name.exists() for name in names)
    return [file.start // LOG_FILE_BYTES for file in store.log.files.files]


# --- by time -------------------------------------------------------------------------------------


def test_files_go_when_they_are_old_in_the_hours_of_delete_when(
    stores: Stores, clock: ManualClock
) -> None:
    store = open_store(stores, clock=clock, delete_when="14;15", file_reserved_time=48)
    fill(store, 4)
    age(store, clock, 100, 100)
    run(store, clock, 120)
    assert log_starts(store) == [0, 1, 2, 3]
    clock.advance(2 * HOUR_MS)
    run(store, clock, 11)
    assert log_starts(store) == [2, 3]


def test_a_file_goes_at_the_end_of_its_time_and_not_before(
    stores: Stores, clock: ManualClock
) -> None:
    store = open_store(stores, clock=clock, **AT_NOON)
    fill(store, 3)
    store.step()
    clock.advance(60_000)
    age(store, clock, 72 - 1 / HOUR_MS)
    step(store)
    assert log_starts(store) == [0, 1, 2]
    age(store, clock, 72)
    clock.advance(10_000)
    age(store, clock, 72)
    step(store)
    assert log_starts(store) == [1, 2]


def test_the_first_file_that_stays_keeps_those_behind_it(
    stores: Stores, clock: ManualClock
) -> None:
    store = open_store(stores, clock=clock, **AT_NOON)
    fill(store, 5)
    age(store, clock, 100, 1, 100, 100, 100)
    run(store, clock, 120)
    assert log_starts(store) == [1, 2, 3, 4]


def test_the_last_file_never_goes(stores: Stores, clock: ManualClock, disk: MeasuredDisk) -> None:
    store = open_store(stores, clock=clock, disk=disk, clean_file_forcibly_enable=True, **AT_NOON)
    fill(store, 3)
    disk.percent = 89
    age(store, clock, 100, 100, 100)
    run(store, clock, 120)
    assert log_starts(store) == [2]
    assert put(store, "TopicA") > 0


def test_java_looks_first_after_a_minute_and_then_every_interval(
    stores: Stores, clock: ManualClock
) -> None:
    store = open_store(stores, clock=clock, delete_file_batch_max=1, **AT_NOON)
    fill(store, 5)
    age(store, clock, 100, 100, 100, 100)
    step(store)
    run(store, clock, 59.9)
    assert log_starts(store) == [0, 1, 2, 3, 4]
    run(store, clock, 0.1)
    assert log_starts(store) == [1, 2, 3, 4]
    run(store, clock, 9.9)
    assert log_starts(store) == [1, 2, 3, 4]
    run(store, clock, 0.1)
    assert log_starts(store) == [2, 3, 4]


def test_one_deletion_a_step_with_an_interval_between_them(
    stores: Stores, clock: ManualClock
) -> None:
    store = open_store(stores, clock=clock, delete_commit_log_files_interval=300, **AT_NOON)
    fill(store, 5)
    age(store, clock, 100, 100, 100)
    step(store)
    run(store, clock, 60)
    assert log_starts(store) == [1, 2, 3, 4]
    run(store, clock, 0.2)
    assert log_starts(store) == [1, 2, 3, 4]
    run(store, clock, 0.1)
    assert log_starts(store) == [2, 3, 4]


def test_on_command_old_files_go_at_any_hour_for_twenty_rounds(
    stores: Stores, clock: ManualClock
) -> None:
    store = open_store(stores, clock=clock, delete_file_batch_max=1, **AT_FOUR)
    fill(store, 24)
    age(store, clock, *[100] * 23)
    store.retention.expire_now()
    run(store, clock, 600)
    assert log_starts(store) == [20, 21, 22, 23]


def test_a_clock_that_was_set_back_makes_nothing_old(stores: Stores, clock: ManualClock) -> None:
    store = open_store(stores, clock=clock, file_reserved_time=1, **AT_NOON)
    fill(store, 3)
    age(store, clock, 0.9, 0.9)
    clock.set(NOON_MS - 24 * HOUR_MS)
    run(store, clock, 120)
    assert log_starts(store) == [0, 1, 2]


def test_what_dispatch_has_not_read_stays(stores: Stores, clock: ManualClock) -> None:
    store = open_store(stores, clock=clock, flush_disk_type="SYNC_FLUSH", **AT_NOON)
    while len(store.log.files.files) < 3:
        store.begin_put(IncomingMessage("TopicA", BODY))
    age(store, clock, 100, 100)
    store.retention.expire_now()
    for _ in range(10):
        clock.advance(1000)
        store.retention.step(clock.now_ms(), clock.monotonic_ms())
    assert log_starts(store) == [0, 1, 2]
    run(store, clock, 20)  # dispatches
    assert log_starts(store) == [2]


# --- by room -------------------------------------------------------------------------------------


def test_above_75_percent_old_files_go_at_any_hour(
    stores: Stores, clock: ManualClock, disk: MeasuredDisk
) -> None:
    store = open_store(stores, clock=clock, disk=disk, disk_max_used_space_ratio=75, **AT_FOUR)
    fill(store, 4)
    age(store, clock, 100, 100, 1)
    disk.percent = 75
    run(store, clock, 120)
    assert log_starts(store) == [0, 1, 2, 3]
    disk.percent = 76
    run(store, clock, 20)
    assert log_starts(store) == [2, 3]


def test_above_85_percent_the_oldest_go_until_it_is_enough(
    stores: Stores, clock: ManualClock, disk: MeasuredDisk
) -> None:
    store = open_store(stores, clock=clock, disk=disk, clean_file_forcibly_enable=True, **AT_FOUR)
    fill(store, 6)
    disk.percent, disk.freed_percent = 87, 1
    run(store, clock, 120)  # Java deletes ten files once it has begun
    assert log_starts(store) == [2, 3, 4, 5]


def test_only_what_is_archived_goes_however_old_it_is_and_however_full_the_disk(
    stores: Stores,
    clock: ManualClock,
    disk: MeasuredDisk,
    caplog: pytest.LogCaptureFixture,
    tmp_path: Path,
) -> None:
    kept = tmp_path / "archive"
    store = open_store(
        stores, clock=clock, disk=disk, reput_expire_only_archived=str(kept), **AT_NOON
    )
    fill(store, 3)
    age(store, clock, 100, 100)
    run(store, clock, 70)
    assert log_starts(store) == [0, 1, 2]
    assert caplog.text.count(f"has expired but is kept: it is not in the archive {kept}") == 1

    archive(InProcess(), store.root, str(kept), allow_live=True)  # two closed files
    fill(store, 5)
    age(store, clock, 100, 100, 100, 100)
    (second,) = (one for one in (kept / "rest").iterdir() if int(one.name[:20]))
    whole = second.read_bytes()
    second.write_bytes(whole[:-1])  # the archive has lost a byte of the second file
    run(store, clock, 30)
    assert log_starts(store) == [1, 2, 3, 4]
    second.write_bytes(whole)
    run(store, clock, 30)
    assert log_starts(store) == [2, 3, 4]

    disk.percent = 95
    run(store, clock, 30)
    assert log_starts(store) == [2, 3, 4]
    assert caplog.text.count("puts stop soon, until the archive has the file: the disk of") == 1
    assert store.put(IncomingMessage("TopicA", BODY)).status is PutStatus.SERVICE_NOT_AVAILABLE
    archive(InProcess(), store.root, str(kept), allow_live=True)
    run(store, clock, 30)
    assert log_starts(store) == [4]


@pytest.mark.parametrize("location", ["s3://bucket/archive", ""])
def test_expiry_asks_a_folder_of_this_machine(location: str) -> None:
    with pytest.raises(InvalidOption, match="reputExpireOnlyArchived"):
        StoreConfig(reput_expire_only_archived=location)


def test_nothing_goes_by_force_if_that_is_not_allowed(
    stores: Stores, clock: ManualClock, disk: MeasuredDisk
) -> None:
    store = open_store(stores, clock=clock, disk=disk, clean_file_forcibly_enable=False, **AT_FOUR)
    fill(store, 3)
    disk.percent = 99
    run(store, clock, 120)
    assert log_starts(store) == [0, 1, 2]


def test_above_90_percent_puts_are_refused_and_below_taken_again(
    stores: Stores, clock: ManualClock, disk: MeasuredDisk
) -> None:
    store = open_store(stores, clock=clock, disk=disk)
    disk.percent = 91
    run(store, clock, 10)
    result = store.put(IncomingMessage("TopicA", BODY))
    assert result.status is PutStatus.SERVICE_NOT_AVAILABLE
    assert "91 %" in result.reason
    assert "diskSpaceWarningLevelRatio is 90" in result.reason
    disk.percent = 90
    run(store, clock, 10)
    assert put(store, "TopicA") == 0


def test_the_disk_is_looked_at_while_deletion_fails(
    stores: Stores, clock: ManualClock, disk: MeasuredDisk, caplog: pytest.LogCaptureFixture
) -> None:
    store = open_store(stores, clock=clock, disk=disk, clean_file_forcibly_enable=True, **AT_FOUR)
    fill(store, 3)
    disk.percent, disk.failing = 95, "commitlog"
    run(store, clock, 70)
    assert store.refusal
    assert store.retention.counts.failures > 0
    assert "cannot delete: Operation not permitted" in caplog.text
    assert log_starts(store) == [0, 1, 2]
    disk.percent = 80
    run(store, clock, 10)
    assert not store.refusal
    disk.percent, disk.failing = 95, ""
    run(store, clock, 20)
    assert log_starts(store) == [2]


def test_the_disk_is_looked_at_every_ten_seconds_whatever_the_pace_of_cleaning(
    stores: Stores, clock: ManualClock, disk: MeasuredDisk
) -> None:
    store = open_store(stores, clock=clock, disk=disk, clean_resource_interval=1_000_000)
    step(store)
    before = disk.looks
    run(store, clock, 100)
    assert disk.looks - before == 20 + 2  # the log's folder and the queues', and in one round
    disk.percent = 91
    run(store, clock, 10)
    assert store.refusal


def test_a_disk_that_does_not_answer_changes_nothing(
    stores: Stores, clock: ManualClock, disk: MeasuredDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(stores, clock=clock, disk=disk)
    disk.percent = 91
    run(store, clock, 10)
    monkeypatch.setattr(disk, "usage", lambda path: Disk.usage(disk, f"{path}/gone"))
    run(store, clock, 10)
    assert store.refusal


def test_several_folders_are_full_one_by_one(
    tmp_path: Path, clock: ManualClock, disk: MeasuredDisk
) -> None:
    folders = [str(tmp_path / name) for name in ("a", "b")]
    config = store_fixture.config(
        tmp_path / "store",
        store_path_commit_log=",".join(folders),
        clean_file_forcibly_enable=True,
        **AT_FOUR,
    )
    with MessageStore.open(config=config, clock=clock, disk=disk) as store:
        fill(store, 3)
        disk.percent_of = {"a": 92}
        run(store, clock, 120)
        assert store.log.files.full_folders == {folders[0]}
        assert not store.refusal, "the other folder has room"
        assert log_starts(store) == [0, 1, 2]
        fill(store, 5)
        assert [Path(file.path).parent.name for file in store.log.files.files[3:]] == ["b", "b"]
        disk.percent_of = {"a": 92, "b": 91}
        run(store, clock, 10)
        assert store.refusal
        assert log_starts(store) == [4]
    folder = open_folder(config.store_path_root_dir, commit_log_folders=folders)
    assert verify(StoreReader(folder)).severity < Severity.WARNING


# --- files that are read -------------------------------------------------------------------------


def test_a_file_that_hangs_stops_deletion_by_force_until_its_room_is_back(
    stores: Stores, clock: ManualClock, disk: MeasuredDisk
) -> None:
    store = open_store(
        stores,
        clock=clock,
        disk=disk,
        clean_file_forcibly_enable=True,
        destroy_maped_file_interval_forcibly=30_000,
        redelete_hanged_file_interval=40_000,
        **AT_FOUR,
    )
    fill(store, 5)
    step(store)
    first = store.log.files.files[0]
    assert first.hold()
    disk.percent = 88
    run(store, clock, 60)
    assert log_starts(store) == [1, 2, 3, 4]
    run(store, clock, 59)
    assert log_starts(store) == [1, 2, 3, 4]
    run(store, clock, 15)  # redelete at 120 s; by then it has been held for 60 s
    assert not first.release(), "what the reader has seen does not count"
    assert log_starts(store) == [4]


# --- what follows --------------------------------------------------------------------------------


def test_minimum_offsets_follow_at_once(stores: Stores, clock: ManualClock) -> None:
    store = open_store(stores, clock=clock, **AT_NOON)
    fill(store, 4, topics=2)
    put(store, "Late")
    gone = put(store, "Gone") + 1
    store.close()

    # "Gone" has messages in the first file only.
    store = open_store(stores, clock=clock, **AT_NOON)
    assert gone == 1
    fill(store, 8, topics=2)
    age(store, clock, 100, 100, 100, 100)
    step(store)
    clock.advance(60_000)
    for _ in range(20):
        store.step()
        clock.advance(100)
        assert_minimum_offsets(store)
    assert log_starts(store) == [4, 5, 6, 7]
    assert store.min_offset("Gone", 0) == store.max_offset("Gone", 0) == 1


def assert_minimum_offsets(store: MessageStore) -> None:
    """Each queue begins with its first message that is in the log, else at its end
    (known-bugs.md#minimum-offsets)."""
    for queue in store.queues:
        alive = [
            number
            for number in range(queue.first_offset, queue.max_offset)
            if (unit := queue.unit(number)) and unit.physical_offset >= store.min_physical_offset
        ]
        expected = alive[0] if alive else queue.max_offset
        assert store.min_offset(queue.topic, queue.queue_id) == expected


@pytest.mark.parametrize("version", golden.VERSIONS)
def test_what_is_left_is_what_java_leaves(
    version: str, tmp_path: Path, clock: ManualClock, disk: MeasuredDisk
) -> None:
    """``expired`` is ``clean`` after Java's own cleaning of the first two log files."""
    expected = golden.manifest(version, "expired")
    root = golden.copy_store(version, "clean", tmp_path)
    config = golden_config(root, expected["config"])
    with MessageStore.open(config=config, clock=clock, disk=disk) as store:
        age(store, clock, 100, 100)
        store.retention.expire_now()
        run(store, clock, 60)
        assert store.min_physical_offset == expected["minPhyOffset"]
        for queue in expected["queues"]:
            found = store.queues.find(queue["topic"], queue["queueId"])
            if found is None:
                assert queue["maxOffset"] == 0
                continue
            assert found.max_offset == queue["maxOffset"]
            if queue["maxPhysicOffset"] > expected["minPhyOffset"]:
                assert found.min_offset == queue["minOffset"]
            else:
                # Java leaves the minimum where it was if nothing of the queue is left.
                assert queue["minOffset"] <= found.min_offset == found.max_offset
    left = {one["path"] for one in expected["files"]}
    families = ("commitlog", "consumequeue", "index")
    assert files_of(root, families) == {one for one in left if one.startswith(families)}
    store_fixture.assert_sound(root, allowed=set(store_fixture.Kind))


def golden_config(root: Path, settings: dict[str, str]) -> Any:
    numbers = {
        "mapped_file_size_commit_log": "mappedFileSizeCommitLog",
        "mapped_file_size_consume_queue": "mappedFileSizeConsumeQueue",
        "max_hash_slot_num": "maxHashSlotNum",
        "max_index_num": "maxIndexNum",
        "max_message_size": "maxMessageSize",
    }
    return store_fixture.config(root, **{ours: int(settings[key]) for ours, key in numbers.items()})


def files_of(root: Path, families: tuple[str, ...]) -> set[str]:
    """The files below some folders of a store, relative to it."""
    return {
        str(path.relative_to(root))
        for family in families
        for path in (root / family).rglob("*")
        if path.is_file()
    }


def test_queue_files_and_index_files_follow_at_their_pace(
    stores: Stores, clock: ManualClock, disk: MeasuredDisk
) -> None:
    store = open_store(
        stores, clock=clock, disk=disk, delete_consume_queue_files_interval=500, **AT_NOON
    )
    fill(
        store, 4, topics=3
    )  # some 80 messages of a topic in 10 to a file; 39 keys to an index file
    step(store)
    age(store, clock, 100, 100)
    store.retention.expire_now(rounds=1)
    disk.done.clear()
    run(store, clock, 0.2)
    done = [one for one in disk.done if one.startswith("unlink")]
    assert [one for one in done if "commitlog" in one] == [
        "unlink commitlog/0",
        f"unlink commitlog/{LOG_FILE_BYTES}",
    ]
    low = store.min_physical_offset
    assert all(one.header.end_physical_offset >= low for one in store.index._files[:1])
    assert store.retention.counts.index_files > 0
    run(store, clock, 2)
    for queue in store.queues:
        last_of_first_file = queue.unit(queue.files[1] // 20 - 1)
        assert last_of_first_file is not None
        assert last_of_first_file.physical_offset >= low, "a file goes when all of it has gone"
    assert store.retention.counts.queue_files == sum(
        queue.files[0] // 200 for queue in store.queues
    )


def test_each_deletion_is_durable_before_what_follows_from_it(
    stores: Stores, clock: ManualClock, disk: MeasuredDisk
) -> None:
    store = open_store(stores, clock=clock, disk=disk, **AT_NOON)
    fill(store, 3)
    step(store)
    age(store, clock, 100, 100)
    store.retention.expire_now()
    disk.done.clear()
    run(store, clock, 5)
    names = [one for one in disk.done if "topics" not in one]
    for place, one in enumerate(names):
        if one.startswith("unlink commitlog"):
            assert names[place + 1] == "sync commitlog"
        elif one.startswith("unlink 0/"):  # a file of queue 0
            assert names[place + 1] == "sync 0/0" or names[place + 1].startswith("sync")
    assert names.index("sync commitlog") < min(
        place for place, one in enumerate(names) if one.startswith("unlink 0/")
    )


def test_the_writer_only_takes_the_name_of_a_file_away(
    stores: Stores, clock: ManualClock, disk: MeasuredDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To release the blocks and cached pages of 1 GiB takes 0.3 s."""
    store = open_store(stores, clock=clock, disk=disk, **AT_NOON)
    fill(store, 3)
    store.flusher.flush_all()
    first = store.log.files.files[0]
    assert first.hold()
    first.release()
    maps: list[int] = []
    close = FileMap.close

    def closing(self: FileMap) -> None:
        if self.address:
            maps.append(self.size)
        close(self)

    monkeypatch.setattr(FileMap, "close", closing)
    age(store, clock, 100)
    store.retention.expire_now()
    disk.done.clear()
    for _ in range(20):
        clock.advance(100)
        store.step_memory()
    assert log_starts(store) == [1, 2]
    assert disk.done == ["unlink commitlog/0"]
    assert maps == []
    assert store.log.files.has_hanging
    assert first.address == 0
    assert not first.hold()
    assert store.step_disk()
    assert maps == [LOG_FILE_BYTES]
    assert disk.done[:2] == ["unlink commitlog/0", "sync commitlog"]
    assert not store.log.files.has_hanging


def test_offsets_of_many_groups_are_read_some_at_a_time(
    stores: Stores, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "OFFSETS_PER_STEP", 10)
    store = open_store(stores, clock=clock, **AT_NOON)
    fill(store, 3)
    store.flusher.flush_all()
    age(store, clock, 100)
    read: list[int] = []

    def offsets() -> Iterator[ConsumerOffset]:
        for number in range(95):
            read.append(number)
            yield ConsumerOffset("TopicA", f"group-{number}", 0, 5)

    store.retention.consumer_offsets = offsets
    store.retention.expire_now()
    before = 0
    for _ in range(20):
        clock.advance(100)
        store.retention.step(clock.now_ms(), clock.monotonic_ms())
        assert len(read) - before <= 10
        before = len(read)
    lost = store.min_offset("TopicA", 0)
    assert store.retention.counts.unread == {
        ("TopicA", f"group-{number}"): lost - 5 for number in range(95)
    }


def test_the_largest_losses_are_logged_and_all_are_counted(
    stores: Stores, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    store = open_store(stores, clock=clock, **AT_NOON)
    fill(store, 3)
    step(store)
    age(store, clock, 100)
    store.retention.consumer_offsets = lambda: [
        ConsumerOffset("TopicA", f"group-{number}", 0, number) for number in range(30)
    ]
    store.retention.expire_now()
    run(store, clock, 2)
    lines = [one for one in caplog.messages if "had not read" in one]
    assert len(lines) == retention.REPORTED_MAX
    assert not any("group-29 " in one for one in lines)
    assert any("group-0 " in one for one in lines)
    assert any("30 topics and groups" in one for one in caplog.messages)
    assert len(store.retention.counts.unread) == 30


def test_a_sync_that_failed_keeps_what_follows(
    stores: Stores, clock: ManualClock, disk: MeasuredDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(stores, clock=clock, disk=disk, **AT_NOON)
    fill(store, 3, topics=2)
    step(store)
    store.flusher.flush_all()
    before = files_of(Path(store.root), ("consumequeue", "index"))
    age(store, clock, 100)

    def fail(path: str) -> None:
        raise WriteFailed(path, "cannot sync: Input/output error")

    with monkeypatch.context() as broken:
        broken.setattr(disk, "sync_folder", fail)
        store.retention.expire_now()
        run(store, clock, 30)
    assert log_starts(store) == [1, 2]
    assert store.min_offset("TopicA", 0) > 0
    assert files_of(Path(store.root), ("consumequeue", "index")) == before
    run(store, clock, 15)
    assert files_of(Path(store.root), ("consumequeue", "index")) < before


def test_many_queues_are_corrected_some_at_a_time(
    stores: Stores, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "QUEUES_PER_STEP", 3)
    store = open_store(stores, clock=clock, **AT_NOON)
    for number in range(10):
        put(store, f"Topic-{number}")
    fill(store, 3)
    step(store)
    age(store, clock, 100, 100)
    store.retention.expire_now(rounds=1)
    corrected = []
    while len(log_starts(store)) > 1 or store.min_offset("Topic-9", 0) == 0:
        store.step()
        clock.advance(100)
        corrected.append(sum(store.min_offset(f"Topic-{n}", 0) for n in range(10)))
    assert {b - a for a, b in zip([0, *corrected], corrected, strict=False)} <= {0, 1, 2, 3}
    run(store, clock, 1)
    assert_minimum_offsets(store)


def test_steps_are_cheap_when_the_log_has_lost_nothing(
    stores: Stores, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(stores, clock=clock, **AT_NOON)
    fill(store, 2)
    run(store, clock, 61)
    with monkeypatch.context() as unused:
        unused.setattr(store.queues, "find", None)
        unused.setattr(type(store.queues), "__iter__", None)
        for _ in range(100):
            clock.advance(1000)
            assert not store.retention.step(clock.now_ms(), clock.monotonic_ms())


# --- what is said about it -----------------------------------------------------------------------


def test_what_was_not_read_is_logged_and_counted(
    stores: Stores, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    store = open_store(stores, clock=clock, **AT_NOON)
    fill(store, 3, topics=3)
    in_first = {
        topic: sum(
            queue_unit.physical_offset < LOG_FILE_BYTES
            for number in range(store.max_offset(topic, 0))
            if (queue_unit := store.queues.of_topic(topic)[0].unit(number))
        )
        for topic in ("TopicA", "TopicB", "TopicC")
    }
    store.retention.consumer_offsets = lambda: [
        ConsumerOffset("TopicA", "quick", 0, 10_000),
        ConsumerOffset("TopicA", "slow", 0, 3),
        ConsumerOffset("TopicB", "slow", 0, 4),
        ConsumerOffset("Unknown", "slow", 0, 4),
    ]
    age(store, clock, 100)
    caplog.set_level(logging.INFO)
    store.retention.expire_now()
    run(store, clock, 1)
    counts = store.retention.counts
    assert counts.unread == {
        ("TopicA", "slow"): in_first["TopicA"] - 3,
        ("TopicB", "slow"): in_first["TopicB"] - 4,
    }
    assert counts.never_read == {
        "TopicB": in_first["TopicB"] - 4,
        "TopicC": in_first["TopicC"],
    }
    assert (counts.log_files, counts.log_bytes) == (1, LOG_FILE_BYTES)
    path = store.root + "/commitlog/00000000000000000000"
    assert (
        f"deleted {path}, physical offsets 0 to 65536: last written 100.0 hours ago, "
        "fileReservedTime is 72"
    ) in caplog.messages
    assert (
        f"{path} was deleted with {in_first['TopicA'] - 3} messages of topic TopicA that group "
        "slow had not read"
    ) in caplog.messages
    assert (
        f"{path} was deleted with {in_first['TopicC']} messages of topic TopicC that no group "
        "had read"
    ) in caplog.messages


def test_messages_are_counted_once_over_several_files(stores: Stores, clock: ManualClock) -> None:
    store = open_store(stores, clock=clock, **AT_NOON)
    fill(store, 5)
    age(store, clock, 100, 100, 100)
    store.retention.consumer_offsets = lambda: [ConsumerOffset("TopicA", "slow", 0, 5)]
    store.retention.expire_now()
    run(store, clock, 2)
    assert store.retention.counts.unread["TopicA", "slow"] == store.min_offset("TopicA", 0) - 5


def test_offsets_are_those_of_the_store_if_nobody_has_newer_ones(
    stores: Stores, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    store = open_store(stores, clock=clock, **AT_NOON)
    fill(store, 3)
    config = Path(store.root) / "config"
    config.mkdir()
    (config / "consumerOffset.json").write_text('{"offsetTable":{"TopicA@slow":{0:7}}}')
    age(store, clock, 100, 100)
    store.retention.expire_now()
    run(store, clock, 0.1)
    assert store.retention.counts.unread["TopicA", "slow"] == store.min_offset("TopicA", 0) - 7
    (config / "consumerOffset.json").write_text("no table")
    run(store, clock, 2)
    assert log_starts(store) == [2]
    assert "it is unknown which of the expiring messages were read" in caplog.text
    (config / "consumerOffset.json").unlink()


# --- crashes -------------------------------------------------------------------------------------


def test_what_a_crash_kept_from_following_follows_after_the_next_start(
    stores: Stores, clock: ManualClock
) -> None:
    store = open_store(stores, clock=clock, **AT_NOON)
    fill(store, 4, topics=2)
    step(store)
    store.flusher.flush_all()
    store.abandon()
    for number in range(2):
        (Path(store.root) / "commitlog" / f"{number * LOG_FILE_BYTES:020d}").unlink()
    store = open_store(stores, clock=clock, **AT_NOON)
    assert_minimum_offsets(store)
    run(store, clock, 2)
    assert all(not queue.has_expired_files for queue in store.queues)
    low = store.min_physical_offset
    assert low == 2 * LOG_FILE_BYTES
    assert store._block[state.INDEX_END_OFFSET] > low


@pytest.mark.parametrize("last", ["Gone", "TopicA"])
def test_queue_offsets_are_not_given_again_after_a_crash(
    last: str, stores: Stores, clock: ManualClock
) -> None:
    store = open_store(stores, clock=clock, **AT_NOON)
    for _ in range(5):
        put(store, "Gone")
    fill(store, 3)
    age(store, clock, 100, 100)
    store.retention.expire_now()
    run(store, clock, 0.5)
    assert log_starts(store) == [2]
    expected = store.max_offset(last, 0)
    store.abandon()
    store = open_store(stores, clock=clock, **AT_NOON)
    assert put(store, last) == expected


def test_room_for_the_log_comes_before_units(
    stores: Stores,
    clock: ManualClock,
    disk: MeasuredDisk,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    store = open_store(stores, clock=clock, disk=disk, clean_file_forcibly_enable=True, **AT_FOUR)
    fill(store, 3)
    disk.percent = 100

    def fail(path: str, *_: object) -> None:
        raise DiskFull(path, 20, "cannot write: No space left on device")

    with monkeypatch.context() as full:
        full.setattr(disk, "write", fail)
        store.retention.expire_now()
        for _ in range(20):
            store.retention.step(clock.now_ms(), clock.monotonic_ms())
            with contextlib.suppress(DiskFull):
                store.step_disk()
            clock.advance(100)
    assert log_starts(store) == [2]
    assert "the log needs space first" in caplog.text


@pytest.mark.parametrize("failure", [WriteFailed, OutOfResources])
def test_other_failures_than_no_room_keep_messages_without_durable_units(
    stores: Stores,
    clock: ManualClock,
    disk: MeasuredDisk,
    monkeypatch: pytest.MonkeyPatch,
    failure: type[WriteFailed],
) -> None:
    store = open_store(stores, clock=clock, disk=disk, clean_file_forcibly_enable=True, **AT_FOUR)
    # More queues than a step writes out: the failure comes while retention waits for a round.
    for queue_id in range(100):
        put(store, "TopicB", queue_id=queue_id)
    store.flusher.write_out_queues()
    for queue_id in range(100):
        put(store, "TopicB", queue_id=queue_id)
    files = log_starts(store)
    disk.percent = 100
    store.retention.expire_now()
    store.retention.step(clock.now_ms(), clock.monotonic_ms())
    assert store.flusher.is_writing_out

    def fail(_: int, path: str, *__: object) -> None:
        raise failure(path, "a test")

    with monkeypatch.context() as failing:
        failing.setattr(disk, "write", fail)
        for _ in range(20):
            with pytest.raises(failure):
                store.flusher.begin_writing_out()
            store.retention.step(clock.now_ms(), clock.monotonic_ms())
            clock.advance(100)
        assert log_starts(store) == files
    run(store, clock, 10)
    assert log_starts(store) == files[-1:]


def test_a_queue_whose_units_went_before_its_messages_goes_on_with_the_oldest(
    stores: Stores, clock: ManualClock
) -> None:
    """As a broker leaves it that loses power after it has deleted log files."""
    store = open_store(stores, clock=clock)
    fill(store, 1)
    store.flusher.flush_all()
    flushed = store.max_offset("TopicA", 0)
    fill(store, 4)
    expected = store.max_offset("TopicA", 0)
    store.abandon()
    for number in range(3):
        (Path(store.root) / "commitlog" / f"{number * LOG_FILE_BYTES:020d}").unlink()
    store = open_store(stores, clock=clock)
    assert store.min_offset("TopicA", 0) > flushed
    assert store.max_offset("TopicA", 0) == expected
    assert store.recovery.refilled_units == 0
    found = store.get("TopicA", 0, store.min_offset("TopicA", 0))
    assert found.message_count == expected - store.min_offset("TopicA", 0)


def test_reads_below_the_minimum_say_so(stores: Stores, clock: ManualClock) -> None:
    store = open_store(stores, clock=clock, **AT_NOON)
    fill(store, 3)
    age(store, clock, 100, 100)
    store.retention.expire_now()
    run(store, clock, 1)
    found = store.get("TopicA", 0, 0)
    assert (found.status.name, found.next_offset) == (
        "OFFSET_TOO_SMALL",
        store.min_offset("TopicA", 0),
    )
    assert store.get("TopicA", 0, found.next_offset).message_count > 0
    assert store.query("TopicA", "k1").records == []
