"""A member that consumes in order is killed: another gets its queues when its locks expire."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from interop.clusters import KINDS, PAUSE, Cluster
from interop.java_cluster import JVM, JavaClient, JavaCluster, JavaMessage, PushConsumer, Queue
from reput_cluster import ReputCluster

pytestmark = [pytest.mark.interop, pytest.mark.rotating]

LOCK_MS = 25_000
"""Duration of a lock, instead of a minute; clients renew their locks every 20 s."""
LOCKED_S = 4
"""Minimum duration of a lock after its owner was killed: 5 s, less the difference of the clocks."""
QUICK = {"pollNameServerInterval": 200, "heartbeatBrokerInterval": 1000}
TOPIC = "Ordered"
GUARD_S = 60


@pytest.fixture(params=KINDS)
def cluster(
    request: pytest.FixtureRequest, java_client: JavaClient, tmp_path: Path
) -> Iterator[Cluster]:
    """Start a broker with short locks."""
    key = "rocketmq.broker.rebalance.lockMaxLiveTime"
    if request.param == "reput":
        running: Cluster = ReputCluster(tmp_path / "own", {"rebalanceLockMaxLiveTime": LOCK_MS})
    else:
        jvm = (*JVM, f"-D{key}={LOCK_MS}")
        running = JavaCluster(java_client.version, tmp_path / "own", jvm=jvm)
    with running:
        yield running


def until_committed(java: JavaClient, cluster: Cluster, consumer: PushConsumer, count: int) -> None:
    """Wait until the broker's consumer offsets of a consumer reach a sum."""
    deadline = time.monotonic() + GUARD_S
    with java.admin(cluster.namesrv) as admin:
        while True:
            consumer.persist()
            table = admin.call("examineConsumeStats", "G", TOPIC)["offsetTable"]
            if sum(entry["consumerOffset"] for entry in table.values()) == count:
                return
            assert time.monotonic() < deadline, table
            PAUSE.wait(0.1)


def test_queues_of_a_killed_member_continue_in_order(
    cluster: Cluster, java_client: JavaClient, tmp_path: Path
) -> None:
    queue = Queue(TOPIC, "broker-a", 0)
    with java_client.producer(cluster.namesrv) as producer:
        producer.send([JavaMessage(TOPIC, b"%d" % number) for number in range(10)], queue=queue)
        victim = JavaClient(java_client.version, tmp_path / "victim")
        consumer = victim.push_consumer(cluster.namesrv, "G", TOPIC, orderly=True, **QUICK)
        assert [message.body for message in consumer.take(10)] == [
            b"%d" % number for number in range(10)
        ]
        until_committed(java_client, cluster, consumer, 10)
        victim.kill()
        killed_s = time.monotonic()
        producer.send([JavaMessage(TOPIC, b"%d" % number) for number in range(10, 20)], queue=queue)
        with java_client.push_consumer(cluster.namesrv, "G", TOPIC, orderly=True, **QUICK) as other:
            bodies = [message.body for message in other.take(10, timeout_s=90)]
            assert bodies == [b"%d" % number for number in range(10, 20)]
            assert time.monotonic() > killed_s + LOCKED_S
