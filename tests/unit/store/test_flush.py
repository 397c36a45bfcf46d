"""Who waits for what, and what producers are told (facts 3.1, 3.6); pace by pace, by hand."""

from pathlib import Path

import pytest

from reput.clock import ManualClock
from reput.errors import WriteFailed
from reput.store.config import BrokerRole, FlushDiskType, StoreConfig
from reput.store.disk import Disk
from reput.store.flush import GroupCommit, PendingPut
from reput.store.incoming import IncomingMessage, PutResult, PutStatus
from reput.store.message_store import MessageStore

SYNC = {"flush_disk_type": FlushDiskType.SYNC_FLUSH}
SMALL = {"mapped_file_size_commit_log": 1 << 20, "max_message_size": 1 << 16}
SMALL_INDEX = {"max_hash_slot_num": 100, "max_index_num": 400}


def stored(end: int) -> PutResult:
    return PutResult(PutStatus.PUT_OK, end - 100, 100)


def status(pending: PendingPut) -> PutStatus | None:
    return pending.result.status if pending.result else None


# --- waiting ----------------------------------------------------------------


def test_all_that_a_sync_covers_are_settled_by_it() -> None:
    waiting = GroupCommit(StoreConfig(flush_disk_type=FlushDiskType.SYNC_FLUSH))
    puts = [waiting.add(stored(end), 0) for end in (100, 200, 300)]
    assert waiting.settle(200, 0) == puts[:2]
    assert [status(one) for one in puts] == [PutStatus.PUT_OK, PutStatus.PUT_OK, None]
    assert len(waiting) == 1


def test_a_late_put_is_told_so() -> None:
    waiting = GroupCommit(
        StoreConfig(flush_disk_type=FlushDiskType.SYNC_FLUSH, sync_flush_timeout=5000)
    )
    put = waiting.add(stored(100), 1000)
    assert waiting.settle(0, 5999) == []
    assert waiting.settle(0, 6000) == [put]
    assert status(put) is PutStatus.FLUSH_DISK_TIMEOUT


@pytest.mark.parametrize(
    ("slave_offset", "after_ms", "expected"),
    [
        (None, 0, PutStatus.SLAVE_NOT_AVAILABLE),
        (99, 0, None),
        (99, 2999, None),
        (99, 3000, PutStatus.FLUSH_SLAVE_TIMEOUT),
        (100, 0, PutStatus.PUT_OK),
        (100 - 50 - 1, 0, PutStatus.SLAVE_NOT_AVAILABLE),  # too far behind to count
        (100 - 50, 0, None),
    ],
)
def test_a_sync_master_waits_for_a_slave(
    slave_offset: int | None, after_ms: int, expected: PutStatus | None
) -> None:
    waiting = GroupCommit(
        StoreConfig(
            broker_role=BrokerRole.SYNC_MASTER, slave_timeout=3000, ha_slave_fallbehind_max=50
        )
    )
    put = waiting.add(stored(100), 0)
    waiting.slave_offset = slave_offset
    waiting.settle(0, after_ms)
    assert status(put) is expected


# --- paces of a store ---------------------------------------------------------


class CountingDisk(Disk):
    """Counts the syncs of each kind of file."""

    def __init__(self) -> None:
        self.synced: list[str] = []
        self.fails = False

    def sync_file(self, descriptor: int, path: str) -> None:
        if self.fails:
            raise WriteFailed(path, "the disk is gone")
        self.synced.append(path)
        super().sync_file(descriptor, path)

    def of(self, family: str) -> int:
        return sum(f"/{family}" in path for path in self.synced)


def make(
    root: Path, disk: Disk | None = None, **options: object
) -> tuple[MessageStore, ManualClock]:
    clock = ManualClock(1_700_000_000_000)
    config = StoreConfig(**{**SMALL, **SMALL_INDEX, **options})  # type: ignore[arg-type]
    return MessageStore.open(str(root), config, clock=clock, disk=disk), clock


def message(body: bytes = b"x" * 100) -> IncomingMessage:
    return IncomingMessage("T", body)


def test_the_log_is_flushed_by_pages_or_by_age(tmp_path: Path) -> None:
    disk = CountingDisk()
    store, clock = make(
        tmp_path,
        disk,
        flush_interval_commit_log=500,
        flush_commit_log_least_pages=4,
        flush_commit_log_thorough_interval=10_000,
    )
    with store:
        store.put(message())  # makes the files, and the next one ahead
        store.step()
        disk.synced.clear()
        for _ in range(19):  # 9.5 s: less than four pages, not old
            clock.advance(500)
            store.step()
        assert disk.of("commitlog") == 0
        clock.advance(500)  # 10 s: old
        store.step()
        assert disk.of("commitlog") == 1
        for _ in range(100):  # over four pages
            store.put(message(b"x" * 200))
        store.step()
        assert disk.of("commitlog") == 1, "not before the interval"
        clock.advance(500)
        store.step()
        assert disk.of("commitlog") == 2


def test_nothing_is_flushed_twice(tmp_path: Path) -> None:
    disk = CountingDisk()
    store, clock = make(tmp_path, disk)
    with store:
        store.put(message())
        store.step()
        clock.advance(20_000)
        store.step()
        disk.synced.clear()
        clock.advance(20_000)
        store.step()
        assert disk.of("commitlog") == 0


def test_d29_what_is_committed_late_is_flushed_at_its_age(tmp_path: Path) -> None:
    """A single small record, below every page threshold, through pool and disk."""
    disk = CountingDisk()
    store, clock = make(tmp_path, disk, transient_store_pool_enable=True)
    with store:
        store.put(message())
        assert store.max_physical_offset == 0, "what only the pool has cannot be read"
        assert store.max_offset("T", 0) == 0
        for _ in range(4):
            clock.advance(100)
            store.step()
        assert store.max_physical_offset > 0
        assert store.max_offset("T", 0) == 1
        for _ in range(110):
            clock.advance(100)
            store.step()
        assert store.log.flushed_offset == store.max_physical_offset


def test_d2_the_checkpoint_says_what_was_synced_and_nothing_else(tmp_path: Path) -> None:
    store, clock = make(tmp_path)
    with store:
        store.step()
        store.put(message(), now_ms=1_700_000_000_000)
        store.put(message(), now_ms=1_700_000_000_111)
        fields = store.checkpoint.fields
        assert (fields.physical_timestamp, fields.queue_timestamp) == (0, 0)
        clock.advance(11_000)
        store.step()
        fields = store.checkpoint.fields
        assert fields.physical_timestamp == 1_700_000_000_111, "the log was flushed"
        assert fields.queue_timestamp == 0, "the queues were not"
        for _ in range(61):
            clock.advance(1000)
            store.step()
        fields = store.checkpoint.fields
        assert fields.queue_timestamp == 1_700_000_000_111
        assert fields.queue_physical_offset == store.get("T", 0, 0).data.__len__() // 2


def test_a_sync_that_failed_is_final(tmp_path: Path) -> None:
    disk = CountingDisk()
    store, _ = make(tmp_path, disk, **SYNC)
    assert store.put(message()).status is PutStatus.PUT_OK
    disk.fails = True
    assert store.put(message()).status is PutStatus.FLUSH_DISK_TIMEOUT
    disk.fails = False
    refused = store.put(message())
    assert refused.status is PutStatus.SERVICE_NOT_AVAILABLE
    assert "the disk is gone" in refused.reason
    assert store.max_offset("T", 0) == 1, "nobody reads what may not be on disk"
    store.abandon()
    again, _ = make(tmp_path, **SYNC)
    with again:
        assert again.put(message()).status is PutStatus.PUT_OK


def test_a_pool_without_a_free_buffer_commits_first(tmp_path: Path) -> None:
    """Else the next file would survive a crash that takes what is before it."""
    store, _ = make(
        tmp_path,
        transient_store_pool_enable=True,
        transient_store_pool_size=1,
        mapped_file_size_commit_log=10_000,
        max_message_size=4000,
    )
    results = [store.put(message(b"x" * 3000)) for _ in range(20)]
    assert all(one.status is PutStatus.PUT_OK for one in results)
    store.abandon()  # what only a buffer held is gone
    again, _ = make(tmp_path, mapped_file_size_commit_log=10_000, max_message_size=4000)
    with again:
        assert again.recovery.holes == []
        assert again.max_offset("T", 0) >= 17, "but for the last file's, all were committed"


def test_puts_fail_fast_without_a_buffer_if_so_configured(tmp_path: Path) -> None:
    store, _ = make(
        tmp_path,
        transient_store_pool_enable=True,
        transient_store_pool_size=1,
        fast_fail_if_no_buffer_in_store_pool=True,
        mapped_file_size_commit_log=10_000,
        max_message_size=4000,
    )
    with store:
        results = [store.put(message(b"x" * 3000)) for _ in range(4)]
        assert [one.status for one in results[:3]] == [PutStatus.PUT_OK] * 3
        assert results[3].status is PutStatus.CREATE_MAPPED_FILE_FAILED
        assert "no buffer" in results[3].reason
        store.flusher.commit()
