"""Batch queues of a 5.5.0 broker and of this store.

Each get of the broker's queues returns what that broker answered. Queues that are written here have
the units that Java would write, also after stops and crashes.
"""

import dataclasses
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import golden
import seeds
import store_fixture
from lossy_disk import Loss, LossyDisk
from reput import config as configuration
from reput.client.message import received
from reput.clock import ManualClock
from reput.format import (
    batch,
    message as record,
    properties as props,
    sys_flag as flags,
)
from reput.format.batch import InnerMessage
from reput.store.config import StoreConfig
from reput.store.files import paths
from reput.store.getting import GetStatus
from reput.store.message_store import MessageStore
from reput.store.reader import Boundary, StoreReader
from reput.store.writing.incoming import IncomingMessage, PutResult, PutStatus

TOPIC = "GoldenBatch-bcq"
MANIFEST = golden.manifest("5.5.0", "v5")
GETS = [query for query in MANIFEST["getMessage"] if query["topic"] == TOPIC]
(QUEUE,) = (queue for queue in MANIFEST["queues"] if queue["topic"] == TOPIC)


FILE = f"{paths.BATCH_CONSUME_QUEUE}/{TOPIC}/0/{0:020}"


def config_of(root: Path, **more: Any) -> StoreConfig:
    settings = dict(MANIFEST["config"])
    explicit = {"store_path_root_dir": str(root), **more}
    return configuration.load(StoreConfig, settings, environment={}, explicit=explicit).value


@pytest.fixture
def store(tmp_path: Path) -> Iterator[MessageStore]:
    root = golden.copy_store("5.5.0", "v5", tmp_path)
    with MessageStore.open(config=config_of(root)) as opened:
        yield opened


@pytest.mark.parametrize("java", GETS, ids=lambda row: f"{row['offset']}-{row['max']}")
def test_gets_are_javas(store: MessageStore, java: dict[str, Any]) -> None:
    result = store.get(TOPIC, java["queueId"], java["offset"], java["max"])
    assert result.status.name == java["status"]
    assert (result.next_offset, result.min_offset, result.max_offset) == (
        java["nextBeginOffset"],
        java["minOffset"],
        java["maxOffset"],
    )
    records = [received(bytes(data), "b") for data in result.records]
    assert [batch[0].physical_offset for batch in records] == java["commitLogOffsets"]
    assert result.message_count == 4 * len(records)


def test_clients_get_the_messages_inside(store: MessageStore) -> None:
    messages = received(store.get(TOPIC, 0, 0).data, "b")
    assert [message.queue_offset for message in messages] == list(range(12))
    assert all(message.body for message in messages)


def test_ends_and_times(store: MessageStore) -> None:
    assert (store.min_offset(TOPIC, 0), store.max_offset(TOPIC, 0)) == (
        QUEUE["minOffset"],
        QUEUE["maxOffset"],
    )
    starts = [
        (message["storeTimestamp"], message["queueOffset"])
        for message in golden.messages("5.5.0", "v5")
        if message["topic"] == TOPIC
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
        uses_tags = False

        def takes_unit(self, tags_code: int, bit_map: bytes, store_timestamp: int) -> bool:
            return False

        def takes_record(self, data: memoryview) -> bool:
            return False

    result = store.get(TOPIC, 0, 0, message_filter=Nothing())
    assert (result.status, result.next_offset) == (GetStatus.NO_MATCHED_MESSAGE, 12)


def test_other_queues_of_the_topic_do_not_exist(store: MessageStore) -> None:
    assert store.get(TOPIC, 1, 0).status is GetStatus.NO_MATCHED_LOGIC_QUEUE
    assert (store.min_offset(TOPIC, 1), store.max_offset(TOPIC, 1)) == (0, 0)


# --- written here -----------------------------------------------------------------------------


def test_rebuilt_batch_queues_have_the_bytes_of_java(tmp_path: Path) -> None:
    root = golden.copy_store("5.5.0", "v5", tmp_path)
    wanted = (root / FILE).read_bytes()
    for family in (paths.BATCH_CONSUME_QUEUE, paths.CONSUME_QUEUE):
        shutil.rmtree(root / family)
    MessageStore.open(config=config_of(root)).close()
    assert (root / FILE).read_bytes() == wanted


def test_the_same_batches_get_javas_records_and_units(tmp_path: Path) -> None:
    java = StoreReader.open(str(golden.unpack("5.5.0", "v5"))).batch_queue(TOPIC, 0).units
    clock = ManualClock(0)
    with MessageStore.open(config=config_of(tmp_path / "ours"), clock=clock) as ours:
        for unit in java:
            place = golden.find_record("5.5.0", "v5", int(unit["physical_offset"]))
            stored = record.decode(place.record)
            named = {
                name: value
                for name, value in stored.properties.items()
                if name not in (props.INNER_BASE, props.INNER_NUM)
            }
            message = IncomingMessage(
                TOPIC, stored.body, 0, props.encode(named), stored.born_timestamp, stored.born_host,
                stored.store_host, stored.flag, stored.sys_flag,
            )  # fmt: skip
            result = ours.put_batch(message, stored.store_timestamp)
            assert (result.queue_offset, result.message_count) == (stored.queue_offset, 4)
            data = ours.record_at(result.physical_offset)
            assert data is not None
            mine = record.decode(data)
            assert mine.properties == stored.properties
            assert dataclasses.replace(mine, physical_offset=0, property_bytes=b"") == (
                dataclasses.replace(stored, physical_offset=0, property_bytes=b"")
            )
    mine = StoreReader.open(str(tmp_path / "ours")).batch_queue(TOPIC, 0).units
    for name in set(java.dtype.names or ()) - {"physical_offset"}:
        assert mine[name].tolist() == java[name].tolist(), name


class Batches:
    """A topic of batch queues over several starts of a store, with its expected units."""

    def __init__(self, root: Path, **settings: Any) -> None:
        self.root = root
        self.settings = {"mapper_file_size_batch_consume_queue": 46 * 4, **settings}
        self.clock = ManualClock(store_fixture.START_MS)
        self.disk = LossyDisk(root)
        self.sent: list[list[tuple[int, bytes]]] = [[], []]
        self.open()

    def open(self) -> None:
        config = store_fixture.config(self.root, **self.settings)
        self.store = MessageStore.open(config=config, clock=self.clock, disk=self.disk)

    def put(self, *bodies: bytes, queue_id: int = 0, topic: str = "B", **more: Any) -> PutResult:
        inner = [InnerMessage(0, body, props.encode({"TAGS": "t"})) for body in bodies]
        outer = {props.UNIQ_KEY: f"U{len(self.sent[queue_id])}", **more}
        self.clock.advance(1)
        return self.store.put_batch(
            IncomingMessage(
                topic, batch.encode(inner), queue_id, props.encode(outer),
                sys_flag=flags.INNER_BATCH | flags.NEED_UNWRAP,
            )
        )  # fmt: skip

    def fill(self, count: int, *, size: int = 8) -> None:
        """Put batches of one to four messages into two queues in turn."""
        for number in range(count):
            sent = self.sent[number % 2]
            start = sent[-1][0] + 1 if sent else 0
            bodies = [b"%d" % (start + i) + bytes(size) for i in range(1 + number % 4)]
            result = self.put(*bodies, queue_id=number % 2)
            assert (result.status, result.queue_offset) == (PutStatus.PUT_OK, start)
            sent += enumerate(bodies, start)

    def read(self, queue_id: int) -> list[tuple[int, bytes]]:
        messages: list[tuple[int, bytes]] = []
        queue_offset = self.store.min_offset("B", queue_id)
        while queue_offset < self.store.max_offset("B", queue_id):
            result = self.store.get("B", queue_id, queue_offset)
            assert result.status is GetStatus.FOUND
            assert result.next_offset > queue_offset
            queue_offset = result.next_offset
            messages += [
                (message.queue_offset, message.body) for message in received(result.data, "b")
            ]
        return messages

    def check(self) -> None:
        for queue_id, sent in enumerate(self.sent):
            low = self.store.min_offset("B", queue_id)
            assert self.read(queue_id) == [message for message in sent if message[0] >= low]

    def end(self) -> None:
        self.store.close()
        store_fixture.assert_sound(self.root)


@pytest.mark.parametrize("loss", store_fixture.some(list(Loss)))
@pytest.mark.parametrize("flush", ["SYNC_FLUSH", "ASYNC_FLUSH"])
@pytest.mark.sampled(3)
def test_a_power_loss_takes_no_more_than_the_log_loses(
    tmp_path: Path, flush: str, loss: Loss
) -> None:
    batches = Batches(tmp_path, flush_disk_type=flush)
    chance = seeds.random("batch power loss")
    for _ in range(4):
        batches.fill(14)
        batches.store.step()
        if flush == "ASYNC_FLUSH":
            batches.clock.advance(61_000)
            while batches.store.step():
                pass
        batches.check()
        batches.disk.lose_power(chance, loss, before=batches.store.abandon)
        batches.open()
        batches.check()
    batches.end()
