"""Flushing: which puts wait, the results of producers, and each step called by hand."""

from pathlib import Path
from typing import Any

import pytest

from cases import each
from reput.clock import ManualClock
from reput.errors import DiskFull, WriteFailed
from reput.store.config import BrokerRole, FlushDiskType, StoreConfig
from reput.store.files.disk import Disk
from reput.store.log.replica_acks import Replica, ReplicaAcks
from reput.store.message_store import MessageStore
from reput.store.writing.flush import GroupCommit, PendingPut
from reput.store.writing.incoming import IncomingMessage, PutResult, PutStatus
from reput.store.writing.removal import Removal

SYNC = {"flush_disk_type": FlushDiskType.SYNC_FLUSH}
SMALL = {"mapped_file_size_commit_log": 1 << 20, "max_message_size": 1 << 16}
SMALL_INDEX = {"max_hash_slot_num": 100, "max_index_num": 400}


def stored(end: int) -> PutResult:
    return PutResult(PutStatus.PUT_OK, end - 100, 100)


def status(pending: PendingPut) -> PutStatus | None:
    return pending.result.status if pending.result else None


# --- waiting ----------------------------------------------------------------


def test_a_sync_completes_all_puts_that_it_covers() -> None:
    waiting = GroupCommit(StoreConfig(flush_disk_type=FlushDiskType.SYNC_FLUSH), ReplicaAcks())
    puts = [waiting.add(stored(end), 0) for end in (100, 200, 300)]
    assert waiting.settle(200, 0) == puts[:2]
    assert [status(put) for put in puts] == [PutStatus.PUT_OK, PutStatus.PUT_OK, None]
    assert len(waiting) == 1


def test_a_late_put_gets_a_timeout() -> None:
    waiting = GroupCommit(
        StoreConfig(flush_disk_type=FlushDiskType.SYNC_FLUSH, sync_flush_timeout=5000),
        ReplicaAcks(),
    )
    put = waiting.add(stored(100), 1000)
    assert waiting.settle(0, 5999) == []
    assert waiting.settle(0, 6000) == [put]
    assert status(put) is PutStatus.FLUSH_DISK_TIMEOUT


def sync_master(**settings: Any) -> tuple[GroupCommit, ReplicaAcks]:
    replicas = ReplicaAcks()
    settings = {"slave_timeout": 3000, "ha_slave_fallbehind_max": 50} | settings
    config = StoreConfig(broker_role=BrokerRole.SYNC_MASTER, **settings)
    return GroupCommit(config, replicas), replicas


def slave(acked_offset: int | None, reported_ms: int = 0) -> Replica:
    return Replica("10.0.0.2:40000", acked_offset=acked_offset, reported_ms=reported_ms)


@each(
    ("acked", "after_ms", "expected"),
    [
        ([], 0, PutStatus.SLAVE_NOT_AVAILABLE),
        ([None], 0, PutStatus.SLAVE_NOT_AVAILABLE),  # it has reported nothing valid so far
        ([99], 0, None),
        ([99], 2999, None),
        ([99], 3000, PutStatus.FLUSH_SLAVE_TIMEOUT),
        ([100], 0, PutStatus.PUT_OK),
        # Java: HAService.isSlaveOK requires a gap less than haSlaveFallbehindMax.
        ([100 - 50], 0, PutStatus.SLAVE_NOT_AVAILABLE),
        ([100 - 49], 0, None),
        ([100 - 50, 99], 0, None),
        ([100, None], 0, PutStatus.PUT_OK),
    ],
)
def test_a_sync_master_waits_for_a_slave(
    acked: list[int | None], after_ms: int, expected: PutStatus | None
) -> None:
    waiting, replicas = sync_master()
    put = waiting.add(stored(100), 0)
    for offset in acked:
        replicas.add(slave(offset))
    waiting.settle(0, after_ms)
    assert status(put) is expected


@pytest.mark.parametrize(
    ("acked", "expected"),
    [
        ([100, 99, 98], None),
        ([100, 100, 0], PutStatus.PUT_OK),
        ([0, 100, 100], PutStatus.PUT_OK),
        ([100], PutStatus.SLAVE_NOT_AVAILABLE),
        ([100, None], PutStatus.SLAVE_NOT_AVAILABLE),
        ([100, 99], None),
        ([100, 50], PutStatus.SLAVE_NOT_AVAILABLE),
    ],
)
def test_three_replicas_are_the_master_and_two_slaves(
    acked: list[int | None], expected: PutStatus | None
) -> None:
    waiting, replicas = sync_master(in_sync_replicas=3)
    put = waiting.add(stored(100), 0)
    for offset in acked:
        replicas.add(slave(offset))
    waiting.settle(0, 0)
    assert status(put) is expected


def test_one_replica_is_the_master_alone() -> None:
    waiting, _ = sync_master(in_sync_replicas=1)
    assert not waiting.is_needed


def test_an_async_master_waits_for_no_slave() -> None:
    config = StoreConfig(broker_role=BrokerRole.ASYNC_MASTER, in_sync_replicas=3)
    assert not GroupCommit(config, ReplicaAcks()).is_needed


def test_an_acknowledgement_settles_the_puts_before_it_and_no_later_ones() -> None:
    waiting, replicas = sync_master()
    replica = slave(0)
    replicas.add(replica)
    puts = [waiting.add(stored(end), 0) for end in (10, 20, 30)]
    replica.acked_offset = 29
    assert waiting.settle(0, 0) == puts[:2]
    assert [status(put) for put in puts] == [PutStatus.PUT_OK, PutStatus.PUT_OK, None]


def test_acknowledgements_end_with_their_connection() -> None:
    waiting, replicas = sync_master()
    replica = slave(100)
    replicas.add(replica)
    replicas.remove(replica)
    put = waiting.add(stored(100), 0)
    waiting.settle(0, 0)
    assert status(put) is PutStatus.SLAVE_NOT_AVAILABLE


def test_a_slave_that_missed_two_heartbeats_is_not_available() -> None:
    waiting, replicas = sync_master(ha_send_heartbeat_interval=5000)
    replicas.add(slave(0, reported_ms=1000))
    early, late = waiting.add(stored(10), 11_000), waiting.add(stored(20), 11_001)
    waiting.settle(0, 11_000)
    assert [status(early), status(late)] == [None, None]
    waiting.settle(0, 11_001)
    assert status(early) is status(late) is PutStatus.SLAVE_NOT_AVAILABLE


@pytest.mark.parametrize(
    ("is_durable", "acked", "expected"),
    [
        (False, 100, None),
        (True, 99, None),
        (True, 100, PutStatus.PUT_OK),
        (True, None, PutStatus.SLAVE_NOT_AVAILABLE),
    ],
)
def test_disk_and_slave_are_both_waited_for(
    is_durable: bool, acked: int | None, expected: PutStatus | None
) -> None:
    waiting, replicas = sync_master(flush_disk_type=FlushDiskType.SYNC_FLUSH)
    replicas.add(slave(acked))
    put = waiting.add(stored(100), 0)
    waiting.settle(100 if is_durable else 0, 0)
    assert status(put) is expected


def test_the_slaves_status_has_precedence_over_the_disks() -> None:
    """As in Java, ``CommitLog.submitFlushRequest`` before ``submitReplicaRequest``."""
    waiting, replicas = sync_master(
        flush_disk_type=FlushDiskType.SYNC_FLUSH, sync_flush_timeout=3000
    )
    replicas.add(slave(0))
    late, lonely = waiting.add(stored(49), 0), waiting.add(stored(50), 0)
    waiting.settle(0, 3000)
    assert status(late) is PutStatus.FLUSH_SLAVE_TIMEOUT
    assert status(lonely) is PutStatus.SLAVE_NOT_AVAILABLE


@pytest.mark.parametrize(
    ("acked", "minimum", "expected"),
    [
        ([], 1, PutStatus.PUT_OK),
        ([99], 1, None),
        ([99, 98], 1, None),
        ([100, 98], 1, None),
        ([100, 100], 1, PutStatus.PUT_OK),
        ([], 2, PutStatus.SLAVE_NOT_AVAILABLE),
    ],
)
def test_automatic_replicas_are_those_that_are_available(
    acked: list[int], minimum: int, expected: PutStatus | None
) -> None:
    waiting, replicas = sync_master(
        in_sync_replicas=3, enable_auto_in_sync_replicas=True, min_in_sync_replicas=minimum
    )
    for offset in acked:
        replicas.add(slave(offset))
    put = waiting.add(stored(100), 0)
    waiting.settle(0, 0)
    assert status(put) is expected


@pytest.mark.parametrize(
    ("minimum", "acked", "lacks"),
    [
        (1, [], False),
        (2, [], True),
        (2, [None], True),
        (2, [50], True),  # as far from the end as haSlaveFallbehindMax
        (2, [51], False),
        (3, [100], True),
        (3, [100, 51], False),
    ],
)
def test_puts_are_refused_while_too_few_brokers_are_available(
    minimum: int, acked: list[int | None], lacks: bool
) -> None:
    waiting, replicas = sync_master(min_in_sync_replicas=minimum)
    for offset in acked:
        replicas.add(slave(offset))
    assert waiting.lacks_replicas(100, 0) is lacks


# --- paces of a store ---------------------------------------------------------


class CountingDisk(Disk):
    """A disk that counts the syncs of each kind of file."""

    def __init__(self) -> None:
        super().__init__()
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
        store.put(message())  # creates the files, and the next one early
        store.step()
        disk.synced.clear()
        for _ in range(19):  # 9.5 s: less than four pages, not old
            clock.advance(500)
            store.step()
        assert disk.of("commitlog") == 0
        clock.advance(500)  # 10 s: old
        store.step()
        assert disk.of("commitlog") == 1
        for _ in range(100):  # more than four pages
            store.put(message(b"x" * 200))
        store.step()
        assert disk.of("commitlog") == 1, "not before the interval"
        clock.advance(500)
        store.step()
        assert disk.of("commitlog") == 2


def test_queues_are_flushed_by_pages_or_by_age(tmp_path: Path) -> None:
    disk = CountingDisk()
    store, clock = make(
        tmp_path,
        disk,
        mapped_file_size_consume_queue=20 * 2_000,
        flush_interval_consume_queue=1_000,
        flush_consume_queue_least_pages=2,
        flush_consume_queue_thorough_interval=60_000,
    )

    def after_a_second() -> tuple[int, int]:
        """Return how often queues were flushed, some of them and all."""
        clock.advance(1_000)
        store.step()
        store.step()  # the first may only write them out
        return disk.of("consumequeue"), disk.of("queues.known")

    with store:
        store.step()
        store.put(message())
        assert [after_a_second() for _ in range(59)] == [(0, 0)] * 59  # one unit, not old
        assert after_a_second() == (0, 1)  # 60 s: old
        for _ in range(2 * 4_096 // 20 + 1):
            store.put(message())
        store.step()
        assert disk.of("consumequeue") == 0, "not before the interval"
        assert after_a_second() == (1, 1)


def test_without_a_timer_a_full_batch_of_pages_is_flushed_at_once(tmp_path: Path) -> None:
    """flushCommitLogTimed=false: in Java a put wakes the flush of flushCommitLogLeastPages."""
    store, _ = make(tmp_path, flush_commit_log_timed=False, flush_commit_log_least_pages=4)
    with store:
        store.put(message())
        store.step()
        assert store.log.flushed_offset == 0
        while store.log.written_offset < 4 * 4096:
            assert not store.flusher.is_due
            store.put(message())
        assert store.flusher.is_due
        store.step()
        assert store.log.flushed_offset == store.log.written_offset
        assert not store.flusher.is_due


def test_with_a_timer_no_put_starts_a_flush(tmp_path: Path) -> None:
    store, _ = make(tmp_path)
    with store:
        for _ in range(200):
            store.put(message())
        assert not store.flusher.is_due


class SlowDisk(CountingDisk):
    """A disk whose syncs and writes of the log take a time."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__()
        self._clock = clock
        self.duration_ms = 0

    def sync_file(self, descriptor: int, path: str) -> None:
        self._wait(path)
        super().sync_file(descriptor, path)

    def write(self, descriptor: int, path: str, position: int, data: bytes | memoryview) -> None:
        self._wait(path)
        super().write(descriptor, path, position, data)

    def _wait(self, path: str) -> None:
        if "/commitlog/" in path:
            self._clock.advance(self.duration_ms)


def test_slow_syncs_and_commits_are_counted_and_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock = ManualClock()
    disk = SlowDisk(clock)
    config = StoreConfig(**SMALL, **SMALL_INDEX, transient_store_pool_enable=True)  # type: ignore[arg-type]
    with MessageStore.open(str(tmp_path), config, clock=clock, disk=disk) as store:
        for duration_ms in (499, 500, 600, 20_000):
            store.put(message())
            disk.duration_ms = duration_ms
            store.flusher.commit()
            store.flusher.flush_log()
            store.flusher.commit()  # there is nothing to do
            store.flusher.flush_log()
            disk.duration_ms = 0
        for durations in (store.flusher.sync_durations, store.flusher.commit_durations):
            assert durations.sum_ms == 499 + 500 + 600 + 20_000
            assert dict(durations.totals()) == {
                **dict.fromkeys((0.001, 0.01, 0.05, 0.1, 0.2), 0),
                **{0.5: 1, 1.0: 3, 2.0: 3, 5.0: 3, 10.0: 3, float("inf"): 4},
            }
    assert [line.getMessage() for line in caplog.records if "took" in line.getMessage()] == [
        f"{operation} took {duration_ms} ms; {count} took 500 ms or more since the start"
        for duration_ms, count in ((500, 1), (20_000, 3))
        for operation in ("a commit of pool buffers to the log", "a sync of the log")
    ]


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


def test_a_late_commit_is_flushed_by_its_age(tmp_path: Path) -> None:
    """A single small record, below every page threshold, goes through pool and disk."""
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


def test_the_checkpoint_covers_synced_data_only(tmp_path: Path) -> None:
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
    assert store.max_offset("T", 0) == 1, "readers do not see messages that may not be on disk"
    store.abandon()
    again, _ = make(tmp_path, **SYNC)
    with again:
        assert again.put(message()).status is PutStatus.PUT_OK


def test_a_pool_without_a_free_buffer_commits_first(tmp_path: Path) -> None:
    """Otherwise the next file could survive a crash that loses the bytes before it."""
    store, _ = make(
        tmp_path,
        transient_store_pool_enable=True,
        transient_store_pool_size=1,
        mapped_file_size_commit_log=10_000,
        max_message_size=4000,
    )
    results = [store.put(message(b"x" * 3000)) for _ in range(20)]
    assert all(result.status is PutStatus.PUT_OK for result in results)
    store.abandon()  # bytes that only the buffer had are lost
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
        assert [result.status for result in results[:3]] == [PutStatus.PUT_OK] * 3
        assert results[3].status is PutStatus.CREATE_MAPPED_FILE_FAILED
        assert "no buffer" in results[3].reason
        store.flusher.commit()


def test_the_checkpoint_waits_for_all_queues_of_a_round(tmp_path: Path) -> None:
    store, clock = make(tmp_path)
    with store:
        store.step()
        for queue_id in range(600):
            store.put(IncomingMessage("T", b"x", queue_id=queue_id))
        clock.advance(61_000)
        steps = 0
        while store.queues.dirty_count:
            assert store.checkpoint.fields.queue_physical_offset == 0
            store.step()
            steps += 1
            assert steps < 100
        store.step()
        assert steps > 3
        last = store.queues.find("T", 599)
        assert last is not None
        unit = last.unit(0)
        assert unit is not None
        assert store.checkpoint.fields.queue_physical_offset == unit.physical_offset


def test_only_a_full_disk_lacks_room_and_only_until_queues_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures = [WriteFailed("a file", "a test"), DiskFull("a file", 20, "a test")]

    def fail(*_: object) -> None:
        raise failures[0]

    disk = CountingDisk()
    store, _ = make(tmp_path, disk)
    with store:
        store.put(message())
        with monkeypatch.context() as failing:
            failing.setattr(disk, "write", fail)
            for lacks_room in (False, True):
                for write in (store.flusher.begin_writing_out, store.flusher.write_out_queues):
                    with pytest.raises(WriteFailed):
                        write()
                    assert store.flusher.lacks_room is lacks_room
                failures.reverse()
        store.flusher.write_out_queues()
        assert not store.flusher.lacks_room


class FailingDisk(CountingDisk):
    """A disk that fails to create queue files or to rename, as configured."""

    def __init__(self) -> None:
        super().__init__()
        self.is_full = False
        self.can_rename = True

    def create(self, path: str, size: int, *, is_durable: bool = True) -> int:
        if self.is_full and "/consumequeue/" in path:
            raise DiskFull(path, size, "a test")
        return super().create(path, size, is_durable=is_durable)

    def rename(self, source: str, target: str) -> None:
        if not self.can_rename and "/consumequeue/" in source:
            raise WriteFailed(source, "a test")
        super().rename(source, target)


def waiting_for_files(store: MessageStore, clock: ManualClock) -> Removal:
    """Let ten queues wait for their files, and another for its deletion."""
    store.step()
    store.put(IncomingMessage("Doomed", b"x"))
    store.flusher.flush_all()
    for queue_id in range(10):
        store.put(IncomingMessage("T", b"x", queue_id=queue_id))
    clock.advance(61_000)
    store.step_memory()
    assert store.queues.dirty_count == 6
    removal = store.begin_deletion(["Doomed"])
    assert removal is not None
    return removal


def test_a_disk_without_room_for_queue_files_does_all_other_work(tmp_path: Path) -> None:
    disk = FailingDisk()
    store, clock = make(tmp_path, disk)
    removal = waiting_for_files(store, clock)
    store.put(message())
    disk.is_full = True
    with pytest.raises(DiskFull):
        store.step_disk()
    assert removal.is_finished
    assert store.log.flushed_offset == store.max_physical_offset
    assert store.log.files.has_prepared
    with pytest.raises(DiskFull):
        store.step_memory()
    assert store.flusher.lacks_room
    disk.is_full = False
    store.close()


def test_queues_get_their_files_despite_other_disk_failures(tmp_path: Path) -> None:
    disk = FailingDisk()
    store, clock = make(tmp_path, disk)
    waiting_for_files(store, clock)
    disk.can_rename = False
    with pytest.raises(WriteFailed):
        store.step_disk()
    store.step_memory()
    assert store.queues.dirty_count == 0
    disk.can_rename = True
    store.close()


def test_a_stop_that_cannot_finish_a_deletion_keeps_acknowledged_messages(tmp_path: Path) -> None:
    """Messages that are only in buffers (``transientStorePoolEnable``) are committed."""
    disk = FailingDisk()
    store, _ = make(tmp_path, disk, transient_store_pool_enable=True)
    store.put(IncomingMessage("Doomed", b"x"))
    store.flusher.commit()
    store.step()
    store.flusher.flush_all()  # so that it has a folder
    assert store.begin_deletion(["Doomed"]) is not None
    assert store.put(message()).status is PutStatus.PUT_OK
    assert store.max_physical_offset < store.log.written_offset
    disk.can_rename = False
    with pytest.raises(WriteFailed, match="a test"):
        store.close()
    again, _ = make(tmp_path)
    with again:
        assert not again.recovery.was_clean
        assert again.max_offset("T", 0) == 1
        assert again.checkpoint.fields.queue_physical_offset > 0


def test_a_round_whose_queues_all_wait_for_their_files_pauses(tmp_path: Path) -> None:
    store, clock = make(tmp_path)
    with store:
        store.step()
        for queue_id in range(600):
            store.put(IncomingMessage("T", b"x", queue_id=queue_id))
        clock.advance(61_000)
        store.step_memory()
        for _ in range(3):
            assert store.step_memory()
            assert not store.has_more_to_do
        assert store.queues.dirty_count == 596
        store.step_disk()
        assert store.has_more_to_do
        store.step_memory()
        assert store.queues.dirty_count < 596
