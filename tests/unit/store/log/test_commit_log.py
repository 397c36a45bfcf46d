"""The log for writing: files, blanks, room, readable records and durability."""

import struct

import pytest

from reput.format import message as record
from reput.store.files import memory
from reput.store.kernels import hot
from reput.store.message_store import MessageStore
from reput.store.writing.incoming import IncomingMessage
from store_fixture import Stores

FILE_BYTES = 64 * 1024


@pytest.fixture
def store(stores: Stores) -> MessageStore:
    return stores.open()


def put(store: MessageStore, body_bytes: int) -> int:
    """Put a message of topic T without properties; return its physical offset."""
    result = store.put(IncomingMessage("T", b"x" * body_bytes))
    assert not result.reason
    assert result.size == 92 + body_bytes
    return result.physical_offset


def fill_up_to(store: MessageStore, left: int) -> None:
    """Fill the first file up to its last ``left`` bytes."""
    for _ in range(4):
        put(store, 15_000 - 92)
    put(store, FILE_BYTES - 60_000 - left - 92)
    assert store.log.written_offset == FILE_BYTES - left


@pytest.mark.parametrize("left", [8, 9, 91, 92 + 7])
def test_a_record_that_leaves_no_room_for_a_blank_goes_into_the_next_file(
    store: MessageStore, left: int
) -> None:
    fill_up_to(store, left)
    assert put(store, 0) == FILE_BYTES
    blank = store.log.files.files[0].read(FILE_BYTES - left, left)
    assert blank == struct.pack(">ii", left, -875286124) + bytes(left - 8)


def test_a_record_and_a_blank_fit_to_the_byte(store: MessageStore) -> None:
    fill_up_to(store, 92 + 8)
    assert put(store, 0) == FILE_BYTES - 100
    assert put(store, 0) == FILE_BYTES


def test_a_full_file_is_followed_by_an_empty_log_position(store: MessageStore) -> None:
    assert (store.log.min_offset, store.log.written_offset) == (0, 0)
    fill_up_to(store, 50)
    put(store, 0)
    assert store.log.written_offset == FILE_BYTES + 92
    assert [file.start for file in store.log.files.files] == [0, FILE_BYTES]


def test_records_are_read_only_at_their_offset(store: MessageStore) -> None:
    first, second = put(store, 10), put(store, 20)
    data = store.log.record(second)
    assert data is not None
    assert record.decode(data).body == b"x" * 20
    assert store.log.record(first + 1) is None
    assert store.log.record(store.log.written_offset) is None
    assert store.log.record(1 << 40) is None
    assert store.log.read(second, 1000) is None, "not written so far"


@pytest.mark.parametrize("magic", [record.MAGIC_V1, record.MAGIC_V2, 0, -875286124])
def test_a_forged_size_is_not_trusted(
    store: MessageStore, magic: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client may ask for a record at an offset that is inside a body that it sent itself."""
    copied: list[int] = []
    bytes_at = hot.bytes_at

    def counted(address: int, size: int) -> bytes:
        copied.append(size)
        return bytes_at(address, size)

    monkeypatch.setattr(hot, "bytes_at", counted)
    body = struct.pack(">ii", 40_000, magic) + bytes(200)
    forged = store.put(IncomingMessage("T", body))
    for _ in range(3):
        put(store, 15_000)
    copied.clear()
    physical_offset = forged.physical_offset + record.FIXED_BYTES_V1 - 3
    assert store.log.read(physical_offset, 8) == body[:8]
    copied.clear()
    assert store.log.record(physical_offset) is None
    assert store.log.store_timestamp_at(physical_offset) is None
    assert max(copied) <= record.SIZE_AND_MAGIC.size


def test_flushed_bytes_are_the_written_ones(store: MessageStore) -> None:
    put(store, 10)
    assert store.log.flushed_offset == 0
    assert store.log.flush() == 102
    put(store, 10)
    assert store.log.flushed_offset == 102


def test_the_next_file_is_preallocated(store: MessageStore) -> None:
    put(store, 10)
    assert store.log.step_ahead()
    assert store.log.files.has_prepared
    assert not store.log.step_ahead()


def test_a_warmed_log_is_warm_before_each_put(
    stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []
    monkeypatch.setattr(memory, "populate", lambda address, length: calls.append("touch") or True)
    monkeypatch.setattr(memory, "lock", lambda address, length: calls.append("lock"))
    store = stores.open(warm_maped_file_enable=True)
    for _ in range(20):  # five files
        while store.log.step_ahead():
            pass
        calls.clear()
        put(store, 15_000)
        assert calls == [], "neither for the first file nor for the next one"
    assert len(store.log.files.files) == 5


def test_a_log_that_is_not_warmed_begins_with_the_first_put(store: MessageStore) -> None:
    assert not store.log.step_ahead()
    assert not store.log.files.has_prepared


def test_no_file_is_preallocated_without_a_buffer_of_the_pool(stores: Stores) -> None:
    store = stores.open(transient_store_pool_enable=True, transient_store_pool_size=1)
    put(store, 10)
    store.log.step_ahead()
    assert not store.log.files.has_prepared, "its bytes would survive a crash that takes older ones"
    assert not store.log.step_ahead()


def test_readers_do_not_see_a_deleted_file(store: MessageStore) -> None:
    fill_up_to(store, 50)
    offset = put(store, 0)
    assert store.get("T", 0, 0).message_count > 0  # the kernels keep it mapped
    store.log.delete_first(0, 0)
    assert store.log.min_offset == FILE_BYTES
    assert store.log.record(0) is None
    assert store.log.record(offset) is not None
    for queue in store.queues:
        queue.delete_before(store.log.min_offset)
    assert store.get("T", 0, 0).next_offset == 5
