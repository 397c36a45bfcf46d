"""The harness itself: official clients, and Go's, against the official broker.

What fails here is no fault of reput. It runs with ``REPUT_INTEROP=all`` alone.
"""

import pytest

from interop import java_oracle
from interop.go_client import GoClient
from interop.java_cluster import JavaClient, JavaCluster, JavaMessage

pytestmark = [
    pytest.mark.interop,
    pytest.mark.skipif(
        not java_oracle.wants_all_versions(), reason="REPUT_INTEROP is not all: Java against Java"
    ),
]

BODIES = [b"%d" % number for number in range(8)]


def test_java(official: JavaCluster, java_client: JavaClient) -> None:
    topic = f"harness-{java_client.version}".replace(".", "_")
    messages = [JavaMessage(topic, body, tags="a", keys="k") for body in BODIES]
    with java_client.producer(official.namesrv) as producer:
        for how, count in (("sync", 8), ("async", 8), ("batch", 1), ("oneway", 0)):
            assert len(producer.send(messages, how)) == count
        assert all(one.status == "SEND_OK" for one in producer.send_ordered(messages, "aabbccdd"))
    with java_client.push_consumer(official.namesrv, f"{topic}-push", topic, "a") as consumer:
        assert sorted(one.body for one in consumer.take(40)) == sorted(BODIES * 5)
    with java_client.pull_consumer(official.namesrv, f"{topic}-pull") as puller:
        found = [one.body for queue in puller.read_all(topic).values() for one in queue]
        assert sorted(found) == sorted(BODIES * 5)
    assert topic in java_client.mqadmin("topicList", namesrv=official.namesrv)


def test_go(official: JavaCluster, go_client: GoClient) -> None:
    for how, count in (("sync", 8), ("async", 8), ("batch", 1), ("oneway", 0)):
        assert (
            len(go_client.produce(official.namesrv, "harness-go", BODIES, how, tags="a")) == count
        )
    for orderly in (False, True):
        found = go_client.consume(
            official.namesrv, "harness-go", f"go-{orderly}", 32, "a", orderly=orderly
        )
        assert sorted(one["body"] for one in found) == sorted(BODIES * 4)
