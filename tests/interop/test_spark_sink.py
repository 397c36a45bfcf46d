"""The official consumer reads rows that Spark's sink sent to the official broker."""

from random import Random
from typing import Any

import pyarrow as pa
import pytest

from interop.java_cluster import JavaClient, JavaCluster, JavaReceived, PullConsumer
from reput.client import blocking
from reput.clock import SystemClock
from reput.format.bodies import MessageQueue
from reput.spark.live.calls import disconnect
from reput.spark.sending import options as write_options
from reput.spark.sending.requests import TaskIdentity
from reput.spark.sending.rows import BadRow
from reput.spark.sending.send import SentCounts, send
from waiting import wait_until

pytestmark = pytest.mark.interop

COUNT = 300
QUEUES = 4
BORN_MS = 1_700_000_000_123


def rows() -> list[dict[str, Any]]:
    """Return small and large messages; some have a queue, some a sharding key."""
    noise = Random(1).randbytes
    return [
        {
            "body": {7: noise(20_000), 9: b"z" * 9_000}.get(i % 50, f"{i} ü".encode()),
            "tags": f"Tag{i % 3}" if i % 4 else None,
            "keys": [f"k{i}", "all"],
            "properties": [("n", str(i)), ("city", "Köln")],
            "queue_id": i % QUEUES if i % 3 == 0 else None,
            "sharding_key": f"s{i % 5}" if i % 3 == 1 else None,
            "flag": i,
            "born_timestamp": BORN_MS + i if i % 10 == 0 else None,
        }
        for i in range(COUNT)
    ]


SCHEMA = pa.schema(
    {
        "body": pa.binary(),
        "tags": pa.string(),
        "keys": pa.list_(pa.string()),
        "properties": pa.map_(pa.string(), pa.string()),
        "queue_id": pa.int32(),
        "sharding_key": pa.string(),
        "flag": pa.int32(),
        "born_timestamp": pa.int64(),
    }
)


def write(address: str, topic: str, given: list[dict[str, Any]], **options: str) -> SentCounts:
    parsed = write_options.parse({"nameServer": address, "topic": topic, **options})
    batch = pa.RecordBatch.from_pylist(given, SCHEMA)
    return send([batch], parsed, TaskIdentity(topic, 0))


def read_back(java: JavaClient, address: str, topic: str) -> list[JavaReceived]:
    with java.pull_consumer(address, "reader") as consumer:
        assert isinstance(consumer, PullConsumer)
        return [message for part in consumer.read_all(topic).values() for message in part]


def await_end(address: str, topic: str, count: int) -> None:
    """Wait until the broker has dispatched all acknowledged messages."""
    queues = [MessageQueue(topic=topic, broker_name="broker-a", queue_id=i) for i in range(QUEUES)]
    with blocking.Admin(address) as admin:
        wait_until(lambda: sum(map(admin.max_offset, queues)) >= count)


@pytest.mark.sampled(14)
@pytest.mark.parametrize("mode", ["batch", "async"])
def test_java_reads_the_rows_of_the_sink(
    official: JavaCluster, java_client: JavaClient, mode: str
) -> None:
    address, given = official.namesrv, rows()
    topic = f"sink-{mode}-{Random().randrange(1 << 32):08x}"
    with blocking.Admin(address) as admin:
        admin.create_topic(topic, queue_count=QUEUES)
    counts = write(address, topic, given, sendMode=mode)
    assert (counts.message_count, counts.skipped_count) == (COUNT, 0)
    await_end(address, topic, COUNT)
    again = write(address, topic, given, sendMode=mode)
    assert (again.message_count, again.skipped_count) == (0, COUNT)
    disconnect()

    received = {message.flag: message for message in read_back(java_client, address, topic)}
    assert len(received) == COUNT
    shards: dict[str, set[int]] = {}
    for i, row in enumerate(given):
        message = received[i]
        assert (message.body, message.tags) == (row["body"], row["tags"])
        assert (message.keys or "").split() == row["keys"]
        assert dict(row["properties"]).items() <= message.properties.items()
        if row["queue_id"] is not None:
            assert message.queue_id == row["queue_id"]
        if row["sharding_key"] is not None:
            shards.setdefault(row["sharding_key"], set()).add(message.queue_id)
        if row["born_timestamp"] is not None:
            assert message.born_timestamp == row["born_timestamp"]
    assert all(len(queues) == 1 for queues in shards.values())
    assert len({message.msg_id for message in received.values()}) == COUNT
    if mode == "batch":
        for queue_id in range(QUEUES):
            queue = [message for message in received.values() if message.queue_id == queue_id]
            in_order = sorted(queue, key=lambda message: message.queue_offset)
            assert [message.flag for message in in_order] == sorted(
                message.flag for message in queue
            )


def test_a_delivery_time_for_an_old_broker_is_refused(official: JavaCluster) -> None:
    options = write_options.parse({"nameServer": official.namesrv, "topic": "sink-timer"})
    in_an_hour_ms = SystemClock().now_ms() + 3_600_000
    batch = pa.record_batch({"body": [b"x"], "deliver_at": [in_an_hour_ms]})
    with blocking.Admin(official.namesrv) as admin:
        admin.create_topic("sink-timer", queue_count=QUEUES)
    try:
        if official.version.startswith("4"):
            with pytest.raises(BadRow, match="waits for delay levels only"):
                send([batch], options, TaskIdentity("t", 0))
        else:
            assert send([batch], options, TaskIdentity("t", 0)).message_count == 1
    finally:
        disconnect()
