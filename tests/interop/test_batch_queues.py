"""Batch queues of 5.x with Java's clients; the folder moves from one broker to the other and back.

A batch that a 5.5.0 producer sends is one record on both brokers, with the same properties and the
same unit; a consumer receives its messages.
"""

import shutil
from collections import Counter, defaultdict
from pathlib import Path

import pytest

from interop.clusters import Cluster, make_topic, until
from interop.java_cluster import JavaClient, JavaCluster, JavaMessage, Queue
from reput import config as configuration
from reput.store.config import StoreConfig
from reput.store.files import paths
from reput.store.message_store import MessageStore
from reput.store.reader import StoreReader
from reput_cluster import ReputCluster

pytestmark = [pytest.mark.interop, pytest.mark.rotating]

TOPIC = "Batches"
QUEUES = [Queue(TOPIC, "broker-a", number) for number in range(2)]
SETTINGS = {
    "mapperFileSizeBatchConsumeQueue": str(46 * 5),
    "mappedFileSizeCommitLog": "1048576",
    "maxMessageSize": "65536",
    "maxHashSlotNum": "10000",
    "maxIndexNum": "40000",
}


class Expected:
    """Expected contents of the folder, and the client that writes and reads them."""

    def __init__(self, java: JavaClient) -> None:
        self.java = java
        self.bodies: dict[Queue, dict[int, bytes]] = defaultdict(dict)
        self.ends: Counter[Queue] = Counter()
        self.read_count = 0

    def work(self, cluster: Cluster, name: str) -> None:
        """Send batches of one to five messages, and read them in a group that continues."""
        with self.java.producer(cluster.namesrv) as producer:
            for number in range(14):
                queue = QUEUES[number % 2]
                bodies = [f"{name} {number} {part}".encode() for part in range(1 + number % 5)]
                messages = [JavaMessage(TOPIC, body, keys=f"k{number}") for body in bodies]
                (sent,) = producer.send(messages, "batch", queue=queue)
                assert (sent.status, sent.queue) == ("SEND_OK", queue)
                assert sent.queue_offset == self.ends[queue]
                assert "," not in sent.msg_id, "the batch has one unique key"
                assert "," not in sent.offset_msg_id
                self.bodies[queue] |= dict(enumerate(bodies, sent.queue_offset))
                self.ends[queue] += len(bodies)
            # A single message has a separate unit.
            (sent,) = producer.send([JavaMessage(TOPIC, name.encode())], queue=QUEUES[0])
            assert sent.queue_offset == self.ends[QUEUES[0]]
            self.bodies[QUEUES[0]][sent.queue_offset] = name.encode()
            self.ends[QUEUES[0]] += 1
        self.compare(cluster)
        wanted = Counter(body for each in self.bodies.values() for body in each.values())
        with self.java.push_consumer(cluster.namesrv, "group", TOPIC) as consumer:
            consumer.take(wanted.total() - self.read_count)
            received = Counter(message.body for message in consumer.received)
            assert received.total() == wanted.total() - self.read_count
            assert received <= wanted
            consumer.persist()
        self.read_count = wanted.total()

    def compare(self, cluster: Cluster) -> None:
        with self.java.pull_consumer(cluster.namesrv, "others") as consumer:
            for queue in QUEUES:
                until(lambda queue=queue: consumer.max_offset(queue) == self.ends[queue])  # type: ignore[misc]
            for queue, messages in consumer.read_all(TOPIC).items():
                assert {message.queue_offset: message.body for message in messages} == self.bodies[
                    queue
                ]


def contents(store: Path, queue_id: int) -> list[tuple[object, ...]]:
    """Return the contents of records and units, except times, offsets and hosts of storing."""
    rows = []
    reader = StoreReader.open(str(store))
    for unit in reader.batch_queue(TOPIC, queue_id).units:
        message = reader.message_at(int(unit["physical_offset"]))
        assert (message.queue_id, message.queue_offset) == (queue_id, unit["queue_offset"])
        assert (message.store_timestamp, message.store_size) == (
            unit["store_timestamp"],
            unit["size"],
        )
        base = message.properties.pop("INNER_BASE")
        assert int(base) == message.queue_offset
        assert message.properties.pop("UNIQ_KEY")
        # 5.x stores these with every message; we and 4.9 do not.
        for name in ("MSG_REGION", "TRACE_ON"):
            message.properties.pop(name, None)
        units = [int(unit[name]) for name in ("tags_code", "message_count", "compacted_offset")]
        rows.append((len(message.body), message.sys_flag, message.properties, *units))
    return rows


def test_a_folder_with_batch_queues_moves_there_and_back(
    java_client: JavaClient, tmp_path: Path
) -> None:
    version = java_client.version
    if version != "5.5.0":
        pytest.skip("no such case: only in 5.x")
    folder = tmp_path / "cluster"
    expected = Expected(java_client)
    with JavaCluster(version, folder, SETTINGS) as cluster:
        attributes = {"+queue.type": "BatchCQ"}
        make_topic(java_client, cluster, TOPIC, 2, attributes=attributes)
        expected.work(cluster, "one")
        cluster.stop()
    with ReputCluster(folder, SETTINGS) as ours:
        expected.compare(ours)
        expected.work(ours, "two")
        ours.stop()
    with JavaCluster(version, folder, SETTINGS) as cluster:
        expected.compare(cluster)
        expected.work(cluster, "six")
        expected.work(cluster, "ten")
        cluster.stop()
    with ReputCluster(folder, SETTINGS) as ours:
        expected.compare(ours)
        expected.work(ours, "for")
        ours.stop()
    rows = contents(folder / "store", 1)  # this queue has no single messages
    assert len(rows) == 5 * 7
    for number in range(7):
        assert rows[number::7] == [rows[number]] * 5

    # Our store rebuilds them from the log with the same bytes.
    copied = shutil.copytree(folder / "store", tmp_path / "copy")
    shutil.rmtree(copied / paths.BATCH_CONSUME_QUEUE)
    explicit = {"store_path_root_dir": str(copied)}
    config = configuration.load(StoreConfig, SETTINGS, environment={}, explicit=explicit).value
    MessageStore.open(config=config).close()
    assert files(copied) == files(folder / "store")


def files(store: Path) -> dict[str, bytes]:
    root = store / paths.BATCH_CONSUME_QUEUE
    return {
        str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()
    }
