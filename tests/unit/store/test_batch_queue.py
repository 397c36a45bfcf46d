"""Batch queues that a 5.5.0 broker has written: each get is what that broker answered."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import golden
from reput import config as configuration
from reput.client.message import received
from reput.store.config import StoreConfig
from reput.store.getting import GetStatus
from reput.store.message_store import MessageStore
from reput.store.reader import Boundary

TOPIC = "GoldenBatch-bcq"
MANIFEST = golden.manifest("5.5.0", "v5")
GETS = [one for one in MANIFEST["getMessage"] if one["topic"] == TOPIC]
(QUEUE,) = (one for one in MANIFEST["queues"] if one["topic"] == TOPIC)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[MessageStore]:
    root = golden.copy_store("5.5.0", "v5", tmp_path)
    settings = dict(MANIFEST["config"])
    explicit = {"store_path_root_dir": str(root)}
    config = configuration.load(StoreConfig, settings, environment={}, explicit=explicit).value
    with MessageStore.open(config=config) as opened:
        yield opened


@pytest.mark.parametrize("asked", GETS, ids=lambda one: f"{one['offset']}-{one['max']}")
def test_gets_are_javas(store: MessageStore, asked: dict[str, Any]) -> None:
    found = store.get(TOPIC, asked["queueId"], asked["offset"], asked["max"])
    assert found.status.name == asked["status"]
    assert (found.next_offset, found.min_offset, found.max_offset) == (
        asked["nextBeginOffset"],
        asked["minOffset"],
        asked["maxOffset"],
    )
    records = [received(bytes(one), "b") for one in found.records]
    assert [one[0].physical_offset for one in records] == asked["commitLogOffsets"]
    assert found.message_count == 4 * len(records)


def test_clients_get_the_messages_inside(store: MessageStore) -> None:
    messages = received(store.get(TOPIC, 0, 0).data, "b")
    assert [one.queue_offset for one in messages] == list(range(12))
    assert all(one.body for one in messages)


def test_ends_and_times(store: MessageStore) -> None:
    assert (store.min_offset(TOPIC, 0), store.max_offset(TOPIC, 0)) == (
        QUEUE["minOffset"],
        QUEUE["maxOffset"],
    )
    starts = [
        (one["storeTimestamp"], one["queueOffset"])
        for one in golden.messages("5.5.0", "v5")
        if one["topic"] == TOPIC
    ]
    assert store.earliest_message_time(TOPIC, 0) == starts[0][0]
    for time_ms, queue_offset in starts:
        assert store.store_time(TOPIC, 0, queue_offset + 3) == time_ms
        assert store.offset_by_time(TOPIC, 0, time_ms) == queue_offset
        assert store.offset_by_time(TOPIC, 0, time_ms, Boundary.UPPER) == queue_offset
    assert store.offset_by_time(TOPIC, 0, starts[-1][0] + 1) == 12
    assert store.offset_by_time(TOPIC, 0, 0, Boundary.UPPER) == 0
    assert store.store_time(TOPIC, 0, 12) is None
    assert store.store_time(TOPIC, 0, -1) is None
    assert store.lag_bytes(TOPIC, 0, 4) == store.max_physical_offset - 47432
    assert store.lag_bytes(TOPIC, 0, 12) == 0


def test_a_filter_sees_a_batch_as_one_message(store: MessageStore) -> None:
    class Nothing:
        looks_at_tags = False

        def takes_unit(self, tags_code: int, bit_map: bytes, store_timestamp: int) -> bool:
            return False

        def takes_record(self, data: memoryview) -> bool:
            return False

    found = store.get(TOPIC, 0, 0, message_filter=Nothing())
    assert (found.status, found.next_offset) == (GetStatus.NO_MATCHED_MESSAGE, 12)


def test_other_queues_of_the_topic_are_not_there(store: MessageStore) -> None:
    assert store.get(TOPIC, 1, 0).status is GetStatus.NO_MATCHED_LOGIC_QUEUE
    assert (store.min_offset(TOPIC, 1), store.max_offset(TOPIC, 1)) == (0, 0)
