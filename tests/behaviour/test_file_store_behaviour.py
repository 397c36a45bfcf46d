"""What only a store in files does: statuses that a disk brings, files that are gone, reopening."""

from pathlib import Path

import pytest

from reput.clock import ManualClock
from reput.errors import DiskFull, WriteFailed
from reput.format import index_entry, java, names
from reput.store import paths
from reput.store.getting import GetStatus
from reput.store.incoming import PutResult, PutStatus
from reput.store.message_store import MessageStore
from reput.store.verify import FindingKind
from store_fixture import START_MS, RoomyDisk, Stores
from store_subject import decoded, message, step_to_the_end


class BrokenDisk(RoomyDisk):
    """A disk that fails where it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.fails_to_sync = False
        self.fails_to_create = False
        self.is_full = False

    def sync_file(self, descriptor: int, path: str) -> None:
        if self.fails_to_sync and paths.COMMIT_LOG in path:
            raise WriteFailed(path, "sync: no such luck")
        super().sync_file(descriptor, path)

    def create(self, path: str, size: int, *, is_durable: bool = True) -> int:
        if self.fails_to_create and paths.COMMIT_LOG in path:
            raise WriteFailed(path, "create: no such luck")
        return super().create(path, size, is_durable=is_durable)

    def reserve(self, descriptor: int, path: str, start: int, length: int) -> None:
        if self.is_full and paths.COMMIT_LOG in path:
            raise DiskFull(path, length, "no such luck")
        super().reserve(descriptor, path, start, length)


# --- statuses ---------------------------------------------------------------------------------


def test_a_put_that_waits_too_long_for_the_disk_is_told_so(stores: Stores) -> None:
    clock = ManualClock(START_MS)
    store = stores.open(clock=clock, flush_disk_type="SYNC_FLUSH", sync_flush_timeout=5000)
    pending = [store.begin_put(message()), store.begin_put(message(waits=False))]

    clock.advance(4999)
    store.step_memory()
    assert [one.result is None for one in pending] == [True, False]
    clock.advance(1)
    store.step_memory()

    first, second = pending
    assert first.result is not None
    assert first.result.status is PutStatus.FLUSH_DISK_TIMEOUT
    assert first.result.status.is_stored
    assert second.result is not None
    assert second.result.status is PutStatus.PUT_OK
    # Nobody reads what a crash could take back (known-bugs.md#dispatch-before-flush); it is there
    # once it is durable.
    assert store.max_offset("TopicA", 0) == 0
    store.sync()
    store.step()
    assert store.max_offset("TopicA", 0) == 2


def test_after_a_failed_sync_nothing_more_is_taken(stores: Stores) -> None:
    disk = BrokenDisk()
    store = stores.open(disk=disk, flush_disk_type="SYNC_FLUSH")
    assert store.put(message(body=b"durable")).status is PutStatus.PUT_OK

    disk.fails_to_sync = True
    assert store.put(message(body=b"doubtful")).status is PutStatus.FLUSH_DISK_TIMEOUT
    disk.fails_to_sync = False
    refused = store.put(message())

    assert refused.status is PutStatus.SERVICE_NOT_AVAILABLE
    assert "no such luck" in refused.reason
    assert [one.body for one in decoded(store.get("TopicA", 0, 0))] == [b"durable"]
    store.abandon()
    again = stores.open(flush_disk_type="SYNC_FLUSH")
    assert again.max_offset("TopicA", 0) == 2


def test_a_file_that_cannot_be_made(stores: Stores) -> None:
    disk = BrokenDisk()
    disk.fails_to_create = True
    store = stores.open(disk=disk)

    assert store.put(message()).status is PutStatus.CREATE_MAPPED_FILE_FAILED
    disk.fails_to_create = False
    assert store.put(message()).queue_offset == 0


def test_a_full_disk_refuses_and_loses_nothing(stores: Stores) -> None:
    disk = BrokenDisk()
    store = stores.open(disk=disk)
    body = b"x" * 16_000
    for _ in range(3):
        assert store.put(message(body=body)).status is PutStatus.PUT_OK

    disk.is_full = True
    results = [store.put(message(body=body)) for _ in range(2)]
    many = store.put_many([message(), message(body=body), message(body=body)])
    disk.is_full = False
    last = store.put(message())

    stored = [one for one in [*results, *many] if one.status.is_stored]
    refused = [one for one in [*results, *many] if not one.status.is_stored]
    assert refused
    assert {one.status for one in refused} == {PutStatus.SERVICE_NOT_AVAILABLE}
    assert last.queue_offset == 3 + len(stored)


def test_another_put_is_turned_away_while_one_hangs(stores: Stores) -> None:
    clock = ManualClock(START_MS)
    meanwhile: list[PutResult] = []

    class SlowDisk(BrokenDisk):
        """While it makes the log's first file, other puts arrive."""

        def create(self, path: str, size: int, *, is_durable: bool = True) -> int:
            if paths.COMMIT_LOG in path and len(meanwhile) < 1:
                assert not store.is_page_cache_busy(), "it has only begun"
                clock.advance(1001)
                assert store.is_page_cache_busy()
                meanwhile.append(store.put(message()))
                raise WriteFailed(path, "create: no such luck")
            return super().create(path, size, is_durable=is_durable)

    store = stores.open(clock=clock, disk=SlowDisk())

    assert store.put(message()).status is PutStatus.CREATE_MAPPED_FILE_FAILED
    assert [one.status for one in meanwhile] == [PutStatus.OS_PAGE_CACHE_BUSY]
    # The put that hung has ended, if badly: nothing is busy for ever.
    assert not store.is_page_cache_busy()
    assert store.put(message()).status is PutStatus.PUT_OK


# --- files that are gone ----------------------------------------------------------------------


class WantsBefore:
    """Wants the first units of a queue."""

    looks_at_tags = True

    def __init__(self, count: int) -> None:
        self._left = count

    def takes_unit(self, tags_code: int, *_: object) -> bool:
        self._left -= 1
        return self._left >= 0

    def takes_record(self, data: memoryview) -> bool:
        return True


def test_a_queue_file_that_is_missing(stores: Stores) -> None:
    store = stores.open()
    for i in range(35):
        store.put(message(body=str(i).encode()))
    store.close()
    store = stores.open()
    folder = Path(store.root) / paths.queue_folder("TopicA", 0)
    gone = folder / paths.offset_name(20 * 10)
    kept = folder / "kept"

    store.queues.close()  # no file is open, as where there are many
    gone.rename(kept)
    # Java answers OFFSET_FOUND_NULL and lets consumers pass over the messages.
    with pytest.raises(WriteFailed, match=gone.name):
        store.get("TopicA", 0, 13)
    kept.rename(gone)

    assert decoded(store.get("TopicA", 0, 20))[0].body == b"20"
    assert decoded(store.get("TopicA", 0, 13))[0].body == b"13"


def test_messages_that_leave_the_log_while_they_are_read(stores: Stores) -> None:
    store = stores.open(mapped_file_size_commit_log=4096, max_message_size=2000)
    results = [store.put(message(body=b"x" * 500)) for _ in range(20)]
    step_to_the_end(store)
    count = sum(one.physical_offset < 4096 for one in results)

    store.log.delete_first(now_ms=0, forced_after_ms=0)  # and the queue has not followed yet

    result = store.get("TopicA", 0, 0)
    assert (result.status, result.next_offset) == (GetStatus.FOUND, 20)
    assert result.message_count == 20 - count
    while len(store.log.files.files) > 1:
        store.log.delete_first(now_ms=0, forced_after_ms=0)
    count = sum(one.physical_offset < store.min_physical_offset for one in results)
    result = store.get("TopicA", 0, 0, 32, tags_codes=[java.string_hash("TagB")])
    assert (result.status, result.next_offset) == (GetStatus.NO_MATCHED_MESSAGE, 20)
    result = store.get("TopicA", 0, 0, 32, message_filter=WantsBefore(count))
    assert (result.status, result.next_offset) == (GetStatus.MESSAGE_WAS_REMOVING, 20)
    step_to_the_end(store)
    assert store.min_offset("TopicA", 0) == count


# --- reopening --------------------------------------------------------------------------------


@pytest.mark.parametrize("ending", ["close", "abandon"])
def test_after_reopening_everything_is_as_it_was(stores: Stores, ending: str) -> None:
    settings = {"enable_multi_dispatch": True}
    store = stores.open(**settings)
    light = {"INNER_MULTI_DISPATCH": "%LMQ%x"}
    for i in range(60):
        store.put(message(body=str(i).encode(), keys=f"k{i} all", properties=light))
    store.put(message(properties={"DELAY": "2"}, tags="TagA"))
    before = _seen(store)

    getattr(store, ending)()
    store = stores.open(**settings)

    assert _seen(store) == before
    assert store.put(message(properties=light)).queue_offset == 60
    assert store.max_offset("%LMQ%x", 0) == 61


def _seen(store: MessageStore) -> list[object]:
    return [
        [store.get("TopicA", 0, at, 1).data for at in range(60)],
        [store.get("%LMQ%x", 0, at, 1).data for at in range(60)],
        store.get(names.SCHEDULE_TOPIC, 1, 0, tags_codes=[START_MS + 5000]).data,
        [store.query("TopicA", f"k{i}").records for i in range(60)],
        store.query("TopicA", "all", 64),
    ]


def test_queue_offsets_come_from_the_log_where_queues_are_behind(stores: Stores) -> None:
    """As on who becomes the master with messages that it has not dispatched."""
    store = stores.open(flush_disk_type="SYNC_FLUSH")
    first = [store.begin_put(message()) for _ in range(3)]
    store.step_memory()
    assert store.max_offset("TopicA", 0) == 0  # nothing is dispatched before it is durable
    assert [one.result for one in first] == [None] * 3
    store.abandon()

    store = stores.open(flush_disk_type="SYNC_FLUSH")
    assert store.max_offset("TopicA", 0) == 3
    assert store.put(message()).queue_offset == 3


@pytest.mark.parametrize("ending", ["close", "abandon"])
def test_listeners_hear_nothing_of_what_was_there_before(stores: Stores, ending: str) -> None:
    store = stores.open()
    for _ in range(3):
        store.put(message())
    getattr(store, ending)()
    told: list[tuple[str, int, int, int]] = []

    store = stores.open()
    store.add_listener(lambda *args: told.append(args))
    step_to_the_end(store)
    assert told == []
    store.put(message())
    step_to_the_end(store)
    assert told == [("TopicA", 0, 3, 4)]


def test_a_store_without_messages_is_nothing_worse(stores: Stores) -> None:
    stores.allow(FindingKind.LOG_EMPTY)
    for _ in range(2):
        store = stores.open()
        assert store.recovery.end_offset == 0
        store.close()


def test_only_slots_that_were_free_count_as_used(stores: Stores) -> None:
    store = stores.open()
    for _ in range(5):
        assert store.put(message(keys="one")).status.is_stored
    assert store.put(message(keys="two")).status.is_stored  # falls on another of the 50 slots
    store.close()
    (path,) = (stores.root() / paths.INDEX).iterdir()
    header = index_entry.unpack_header(path.read_bytes())
    assert (header.slots_used, header.entry_count) == (2, 6)


def test_queues_cost_no_mapping_and_no_descriptor_each(stores: Stores) -> None:
    def counts() -> tuple[int, int]:
        maps = Path("/proc/self/maps").read_text().count("consumequeue")
        return len(list(Path("/proc/self/fd").iterdir())), maps

    store = stores.open()
    store.put(message())
    before, _ = counts()
    for queue_id in range(500):
        for _ in range(12):  # more than a queue file holds
            assert store.put(message(queue_id=queue_id)).status.is_stored
    store.flusher.write_out_queues()
    descriptors, maps = counts()
    assert maps == 0
    assert descriptors < before + 200, "a cache of limited size, however many queues there are"
    for queue_id in range(500):
        assert store.get("TopicA", queue_id, 0).message_count == 12 + (queue_id == 0)
