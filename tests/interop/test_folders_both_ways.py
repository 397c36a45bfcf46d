"""A store folder moves between the official broker and ours; each continues the other's work.

A Java client sends and reads throughout, and does not notice the moves.
"""

import contextlib
from collections import Counter
from pathlib import Path

import pytest

from interop import java_cluster
from interop.clusters import Cluster, make_topic, until
from interop.conftest import _or_skip
from interop.java_cluster import JavaClient, JavaCluster, JavaMessage, JavaReceived, Queue
from reput.format import fastjson
from reput_cluster import ReputCluster

pytestmark = [pytest.mark.interop, pytest.mark.rotating]

TOPIC, GROUP, DELAYED = "Shared", "readers", "Delayed"
QUEUES = [Queue(TOPIC, "broker-a", queue_id) for queue_id in range(3)]
ROUND_COUNT = 60
SETTINGS: java_cluster.Settings = {
    "messageDelayLevel": "1s 1s 1s",
    "flushConsumerOffsetInterval": 200,
    "mappedFileSizeCommitLog": 64 << 10,  # several files
    "maxMessageSize": 60_000,
}


class Expected:
    """Expected contents of the folder, on either broker."""

    def __init__(self, java: JavaClient) -> None:
        self.java = java
        self.places: dict[Queue, list[tuple[bytes, str]]] = {queue: [] for queue in QUEUES}
        """Body and unique key of each message of a queue, by queue offset."""
        self.read_count = 0
        """Number of messages that the group has consumed."""
        self._round = 0

    def work(self, cluster: Cluster) -> None:
        """Compare all messages; then send more, and consume them in the group."""
        self.compare(cluster)
        self._round += 1
        with self.java.producer(cluster.namesrv) as producer:
            for queue in QUEUES:
                self._send(producer, queue)
            # Delivered by the broker that then has the folder.
            producer.send([JavaMessage(DELAYED, b"%d" % self._round, delay_level=2)])
        self._consume(cluster)
        self.compare(cluster)

    def _send(self, producer: java_cluster.Producer, queue: Queue) -> None:
        bodies = [
            f"round {self._round} {queue.queue_id} {number} ".encode() + b"." * (number * 37)
            for number in range(ROUND_COUNT // len(QUEUES))
        ]
        wanted = [
            JavaMessage(TOPIC, body, tags="even" if number % 2 == 0 else "odd", keys=f"k{number}")
            for number, body in enumerate(bodies)
        ]
        half = len(wanted) // 2
        for message, result in zip(
            wanted[:half], producer.send(wanted[:half], queue=queue), strict=True
        ):
            self._record(queue, message.body, result.msg_id, result.queue_offset)
        (result,) = producer.send(wanted[half:], "batch", queue=queue)
        ids = result.msg_id.split(",")
        for number, (message, msg_id) in enumerate(zip(wanted[half:], ids, strict=True)):
            self._record(queue, message.body, msg_id, result.queue_offset + number)

    def _record(self, queue: Queue, body: bytes, msg_id: str, queue_offset: int) -> None:
        assert queue_offset == len(self.places[queue]), "an offset is skipped or repeated"
        self.places[queue].append((body, msg_id))

    def _consume(self, cluster: Cluster) -> None:
        """Consume all new messages in the group; no old one may arrive."""
        new = Counter(
            body
            for queue in QUEUES
            for body, _ in self.places[queue][self.read_count // len(QUEUES) :]
        )
        with self.java.push_consumer(cluster.namesrv, GROUP, TOPIC) as consumer:
            consumer.take(new.total())
            assert Counter(message.body for message in consumer.received) == new
            self.read_count += new.total()
            until(lambda: self._committed(cluster, consumer) == self.read_count)

    def _committed(self, cluster: Cluster, consumer: java_cluster.PushConsumer | None) -> int:
        if consumer is not None:
            consumer.persist()
        with self.java.admin(cluster.namesrv) as admin:
            table = admin.call("examineConsumeStats", GROUP)["offsetTable"]
        return sum(
            entry["consumerOffset"]
            for queue, entry in table.items()
            if queue.startswith(f"{TOPIC}@")
        )

    def compare(self, cluster: Cluster) -> None:
        """Read every message, by queue, by key and by id."""
        with self.java.pull_consumer(cluster.namesrv, "others") as consumer:
            if not self._round:
                return
            assert consumer.queues(TOPIC) == QUEUES
            for queue, messages in consumer.read_all(TOPIC).items():
                stored = [(message.body, message.msg_id) for message in messages]
                assert stored == self.places[queue]
                assert [message.queue_offset for message in messages] == list(range(len(messages)))
            last = self.places[QUEUES[1]][-1]
            first = self.places[QUEUES[2]][0]
            for body, msg_id in (first, last):
                assert consumer.view(TOPIC, msg_id).body == body
            by_key = consumer.query(TOPIC, "k3", 1000)
            wanted = sorted(
                body for queue in QUEUES for body, _ in self.places[queue] if b" 3 " in body[8:]
            )
            assert sorted(message.body for message in by_key) == wanted
            for queue in QUEUES:
                assert tagged(consumer, queue, "even") == [
                    body for number, (body, _) in enumerate(self.places[queue]) if not number % 2
                ]

    def assert_continues(self, cluster: Cluster) -> None:
        """Assert that the group's offsets are kept, and that delayed messages arrive."""
        assert self._committed(cluster, None) == self.read_count
        wanted = {b"%d" % (number + 1) for number in range(self._round)}

        def has_arrived() -> bool:
            with contextlib.suppress(java_cluster.ClientError):
                queues = consumer.read_all(DELAYED).values()
                return {message.body for queue in queues for message in queue} == wanted
            return False  # the topic does not exist yet

        with self.java.pull_consumer(cluster.namesrv, "others") as consumer:
            until(has_arrived)


def tagged(consumer: java_cluster.PullConsumer, queue: Queue, tags: str) -> list[bytes]:
    """Return the bodies that a broker returns to a consumer of some tags."""
    received: list[JavaReceived] = []
    queue_offset, end = 0, consumer.max_offset(queue)
    while queue_offset < end:
        pulled = consumer.pull(queue, queue_offset, 32, tags)
        received += pulled.messages
        queue_offset = pulled.next_offset
    return [message.body for message in received]


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_a_folder_moves_from_one_broker_to_the_other_and_back(
    java_client: JavaClient, tmp_path: Path, end: str
) -> None:
    version = java_client.version
    if version not in java_cluster.broker_versions():
        pytest.skip(f"make interop-all: no broker {version}")
    folder = tmp_path / "cluster"
    expected = Expected(java_client)

    def leave(cluster: Cluster) -> None:
        if end == "kill":
            until(lambda: saved_offsets(cluster) == expected.read_count)
            cluster.kill()
        else:
            cluster.stop()

    def official() -> JavaCluster:
        return _or_skip(lambda: JavaCluster(version, folder, SETTINGS))

    with official() as cluster:
        make_topic(java_client, cluster, TOPIC, 3)
        expected.work(cluster)
        leave(cluster)
    for start in (lambda: ReputCluster(folder, SETTINGS), official):
        with start() as cluster:
            expected.assert_continues(cluster)
            expected.work(cluster)
            leave(cluster)
    with ReputCluster(folder, SETTINGS) as cluster:
        expected.assert_continues(cluster)
        expected.compare(cluster)
        cluster.stop()
    assert len(list((folder / "store/commitlog").iterdir())) > 1


def saved_offsets(cluster: Cluster) -> int:
    """Return the sum of the group's saved offsets; the broker saves them periodically."""
    with contextlib.suppress(FileNotFoundError, ValueError):
        text = (cluster.store / "config/consumerOffset.json").read_text()
        table = fastjson.parse(text)["offsetTable"].get(f"{TOPIC}@{GROUP}", {})
        return sum(table.values())
    return 0
