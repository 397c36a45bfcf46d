"""Behaviour of stores in files that scripts cannot express: hanging puts, deleted files, costs."""

from pathlib import Path

import pytest

from descriptors import open_below
from reput.errors import WriteFailed
from reput.format import java
from reput.store.files import paths
from reput.store.getting import GetStatus
from reput.store.writing.incoming import PutResult, PutStatus
from store_fixture import RoomyDisk, Stores
from store_subject import decoded, message, step_to_the_end

# --- statuses ---------------------------------------------------------------------------------


def test_a_put_is_refused_while_another_one_hangs(stores: Stores) -> None:
    meanwhile: list[PutResult] = []

    class SlowDisk(RoomyDisk):
        """A disk that starts other puts while it creates the log's first file."""

        def create(self, path: str, size: int, *, is_durable: bool = True) -> int:
            if paths.COMMIT_LOG in path and len(meanwhile) < 1:
                meanwhile.append(store.put(message()))
                raise WriteFailed(path, "create: no such luck")
            return super().create(path, size, is_durable=is_durable)

    store = stores.open(disk=SlowDisk())

    assert store.put(message()).status is PutStatus.CREATE_MAPPED_FILE_FAILED
    assert [result.status for result in meanwhile] == [PutStatus.OS_PAGE_CACHE_BUSY]
    # The put that hung has failed: the store is no longer busy.
    assert store.put(message()).status is PutStatus.PUT_OK


# --- missing files ------------------------------------------------------------


class WantsBefore:
    """A filter that takes the first units of a queue."""

    uses_tags = True

    def __init__(self, count: int) -> None:
        self._left = count

    def takes_unit(self, tags_code: int, *_: object) -> bool:
        self._left -= 1
        return self._left >= 0

    def takes_record(self, data: memoryview) -> bool:
        return True


def test_a_missing_queue_file(stores: Stores) -> None:
    store = stores.open()
    for i in range(35):
        store.put(message(body=str(i).encode()))
    store.close()
    store = stores.open()
    folder = Path(store.root) / paths.queue_folder("TopicA", 0)
    gone = folder / paths.offset_name(20 * 10)
    kept = folder / "kept"

    store.queues.close()  # No file is open, as in a store with many files.
    gone.rename(kept)
    # Java answers OFFSET_FOUND_NULL and lets consumers skip the messages.
    with pytest.raises(WriteFailed, match=gone.name):
        store.get("TopicA", 0, 13)
    kept.rename(gone)

    assert decoded(store.get("TopicA", 0, 20))[0].body == b"20"
    assert decoded(store.get("TopicA", 0, 13))[0].body == b"13"


def test_messages_that_expire_while_they_are_read(stores: Stores) -> None:
    store = stores.open(mapped_file_size_commit_log=4096, max_message_size=2000)
    results = [store.put(message(body=b"x" * 500)) for _ in range(20)]
    step_to_the_end(store)
    count = sum(put.physical_offset < 4096 for put in results)

    store.log.delete_first(now_ms=0, forced_after_ms=0)  # The queue has not followed yet.

    result = store.get("TopicA", 0, 0)
    assert (result.status, result.next_offset) == (GetStatus.FOUND, 20)
    assert result.message_count == 20 - count
    while len(store.log.files.files) > 1:
        store.log.delete_first(now_ms=0, forced_after_ms=0)
    count = sum(put.physical_offset < store.min_physical_offset for put in results)
    result = store.get("TopicA", 0, 0, 32, tags_codes=[java.string_hash("TagB")])
    assert (result.status, result.next_offset) == (GetStatus.NO_MATCHED_MESSAGE, 20)
    result = store.get("TopicA", 0, 0, 32, message_filter=WantsBefore(count))
    assert (result.status, result.next_offset) == (GetStatus.MESSAGE_WAS_REMOVING, 20)
    step_to_the_end(store)
    assert store.min_offset("TopicA", 0) == count


# --- reopening --------------------------------------------------------------------------------


def test_idle_queues_take_no_mapping_and_no_descriptor(stores: Stores) -> None:
    def counts() -> tuple[int, int]:
        maps = Path("/proc/self/maps").read_text().count("consumequeue")
        return len(open_below(stores.root())), maps

    store = stores.open()
    store.put(message())
    before, _ = counts()
    for queue_id in range(500):
        for _ in range(12):  # More than a queue file holds.
            assert store.put(message(queue_id=queue_id)).status.is_stored
    store.flusher.write_out_queues()
    descriptors, maps = counts()
    assert maps == 0
    assert descriptors < before + 200, "a cache of limited size, however many queues there are"
    for queue_id in range(500):
        assert store.get("TopicA", queue_id, 0).message_count == 12 + (queue_id == 0)
