"""What a store in memory has of its own; its verbs: ``tests/behaviour/test_store_behaviour.py``."""

from reput.clock import ManualClock
from reput.format import message as record
from reput.store.incoming import IncomingMessage, PutStatus
from reput.store.interface import Store
from reput.store.memory_store import MemoryStore
from reput.store.message_store import MessageStore


def test_it_needs_no_configuration() -> None:
    with MemoryStore() as store:
        assert store.put(IncomingMessage("TopicA", b"hello")).status is PutStatus.PUT_OK
        assert store.get("TopicA", 0, 0).message_count == 1
    assert store.refusal


def test_what_was_put_stays_readable_after_the_end() -> None:
    store = MemoryStore(clock=ManualClock(1_000))
    place = store.put(IncomingMessage("TopicA", b"hello")).physical_offset
    store.close()

    data = store.record_at(place)

    assert data is not None
    assert record.decode(data).store_timestamp == 1_000


def test_expire_forgets_whole_records() -> None:
    store = MemoryStore()
    first, second = (store.put(IncomingMessage("TopicA", body)) for body in (b"one", b"two"))

    store.expire(first.physical_offset + 1)

    assert store.record_at(first.physical_offset) is None
    assert store.min_physical_offset == second.physical_offset
    assert (store.min_offset("TopicA", 0), store.max_offset("TopicA", 0)) == (1, 2)


def test_both_stores_have_the_verbs_of_a_store() -> None:
    verbs = {name for name in vars(Store) if not name.startswith("_")}

    assert "put" in verbs
    for kind in (MemoryStore, MessageStore):
        assert verbs <= set(dir(kind))


def _is_a_store(memory: MemoryStore, files: MessageStore) -> tuple[Store, Store]:
    return memory, files  # mypy checks the signatures
