"""Expiry: cases that the scripts in ``tests/scripts/store/retention`` cannot express."""

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import golden
import store_fixture
from reput.clock import ManualClock
from reput.errors import InvalidOption, OutOfResources, WriteFailed
from reput.spark.jobs.archive import archive
from reput.store.config import StoreConfig
from reput.store.files.disk import Disk
from reput.store.files.memory import FileMap
from reput.store.message_store import MessageStore
from reput.store.tables.config_tables import ConsumerOffset
from reput.store.writing import retention
from reput.store.writing.incoming import IncomingMessage, PutStatus
from spark.in_process import InProcess
from store_fixture import Stores

HOUR_MS = 3_600_000
NOON_MS = 1_700_049_600_000  # 2023-11-15 12:00 UTC
LOG_FILE_BYTES = 64 * 1024
BODY = bytes(1000)
AT_NOON = {"delete_when": "12"}
AT_FOUR = {"delete_when": "04"}


class MeasuredDisk(Disk):
    """A disk with a usage set by the test, which records deletions and syncs of folders."""

    def __init__(self) -> None:
        super().__init__()
        self.percent = 50
        self.done: list[str] = []

    def usage(self, path: str) -> float:
        return self.percent / 100

    def unlink(self, path: str) -> None:
        if Path(path).exists():
            self.done.append(f"unlink {_short(path)}")
        super().unlink(path)

    def sync_folder(self, path: str) -> None:
        self.done.append(f"sync {_short(path)}")
        super().sync_folder(path)


def _short(path: str) -> str:
    """Return the end of a path, without the zeros that names begin with."""
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
    """Put messages until the log has ``count`` files."""
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
    """Do all background work that is due."""
    while store.step():
        pass


def run(store: MessageStore, clock: ManualClock, seconds: float) -> None:
    """Advance the clock, and step the store ten times a second."""
    for _ in range(round(seconds * 10)):
        clock.advance(100)
        step(store)


def log_starts(store: MessageStore) -> list[int]:
    """Return the numbers of the existing log files."""
    names = [Path(file.path) for file in store.log.files.files]
    assert all(name.exists() for name in names)
    return [file.start // LOG_FILE_BYTES for file in store.log.files.files]


def test_the_usage_is_checked_while_a_deletion_hangs(
    stores: Stores, clock: ManualClock, disk: MeasuredDisk
) -> None:
    """known-bugs.md#disk-check: nothing more is deleted, but puts are refused in time."""
    store = open_store(stores, clock=clock, disk=disk, **AT_NOON)
    fill(store, 4)
    age(store, clock, 100, 100)
    run(store, clock, 59)
    while log_starts(store) == [0, 1, 2, 3]:
        store.step_disk()
        clock.advance(100)
        store.step_memory(clock.now_ms())
    # From here on ``step_disk``, which runs in its own thread, waits for the disk.
    assert log_starts(store) == [1, 2, 3]
    disk.percent = 99
    for _ in range(100):
        clock.advance(100)
        store.step_memory(clock.now_ms())
    result = store.put(IncomingMessage("TopicA", BODY))
    assert result.status is PutStatus.SERVICE_NOT_AVAILABLE
    assert "99" in result.reason
    assert log_starts(store) == [1, 2, 3]


# --- by room -------------------------------------------------------------------------------------


def test_only_archived_files_expire_at_any_age_and_disk_usage(
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
    (second,) = (path for path in (kept / "rest").iterdir() if int(path.name[:20]))
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
def test_the_archive_must_be_a_folder_on_this_machine(location: str) -> None:
    with pytest.raises(InvalidOption, match="reputExpireOnlyArchived"):
        StoreConfig(reput_expire_only_archived=location)


def test_a_failed_usage_query_changes_nothing(
    stores: Stores, clock: ManualClock, disk: MeasuredDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(stores, clock=clock, disk=disk)
    disk.percent = 91
    run(store, clock, 10)
    monkeypatch.setattr(disk, "usage", lambda path: Disk.usage(disk, f"{path}/gone"))
    run(store, clock, 10)
    assert store.refusal


# --- consequences --------------------------------------------------------------------------------


def assert_minimum_offsets(store: MessageStore) -> None:
    """Check that each queue begins with its first message that is in the log, else at its end.

    See known-bugs.md#minimum-offsets.
    """
    for queue in store.queues:
        alive = [
            number
            for number in range(queue.first_offset, queue.max_offset)
            if (unit := queue.unit(number)) and unit.physical_offset >= store.min_physical_offset
        ]
        expected = alive[0] if alive else queue.max_offset
        assert store.min_offset(queue.topic, queue.queue_id) == expected


@pytest.mark.parametrize("version", golden.VERSIONS)
def test_expiry_leaves_the_files_and_offsets_that_java_leaves(
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
            view = store.queues.find(queue["topic"], queue["queueId"])
            if view is None:
                assert queue["maxOffset"] == 0
                continue
            assert view.max_offset == queue["maxOffset"]
            if queue["maxPhysicOffset"] > expected["minPhyOffset"]:
                assert view.min_offset == queue["minOffset"]
            else:
                # Java keeps the minimum of a queue without messages.
                assert queue["minOffset"] <= view.min_offset == view.max_offset
    remaining = {file["path"] for file in expected["files"]}
    families = ("commitlog", "consumequeue", "index")
    assert files_of(root, families) == {path for path in remaining if path.startswith(families)}
    store_fixture.assert_sound(root, allowed=set(store_fixture.FindingKind))


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
    """Return the files below some folders of a store, relative to it."""
    return {
        str(path.relative_to(root))
        for family in families
        for path in (root / family).rglob("*")
        if path.is_file()
    }


def test_the_writer_thread_only_renames_an_expired_file(
    stores: Stores, clock: ManualClock, disk: MeasuredDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To free the blocks and cached pages of 1 GiB takes 0.3 s, so another thread does it."""
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


def test_offsets_of_many_groups_are_read_in_parts(
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
    lines = [message for message in caplog.messages if "had not read" in message]
    assert len(lines) == retention.REPORTED_MAX
    assert not any("group-29 " in line for line in lines)
    assert any("group-0 " in line for line in lines)
    assert any("30 topics and groups" in message for message in caplog.messages)
    assert len(store.retention.counts.unread) == 30


def test_many_queues_are_corrected_in_parts(
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


def test_steps_are_cheap_when_nothing_expired(
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


# --- crashes -------------------------------------------------------------------------------------


@pytest.mark.parametrize("failure", [WriteFailed, OutOfResources])
def test_failures_other_than_a_lack_of_room_keep_messages_without_durable_units(
    stores: Stores,
    clock: ManualClock,
    disk: MeasuredDisk,
    monkeypatch: pytest.MonkeyPatch,
    failure: type[WriteFailed],
) -> None:
    store = open_store(stores, clock=clock, disk=disk, clean_file_forcibly_enable=True, **AT_FOUR)
    # More queues than a step writes: the failure comes while retention waits for a round.
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
