"""Unmodified clients in other languages, on our broker: Go's, the C++ one, Node's, Rust's.

With ``REPUT_INTEROP=all`` the same tests run on the official broker too, because they expect its
behaviour.
"""

from collections.abc import Iterator

import pytest

from interop import java_oracle
from interop.clusters import KINDS, Cluster, start_cluster
from interop.java_cluster import JavaClient, JavaCluster, JavaMessage
from interop.other_clients import (
    ClientUnavailable,
    CppClient,
    GoClient,
    NodeClient,
    OtherClient,
    RustClient,
)
from reput.client import blocking
from reput_cluster import ReputCluster

pytestmark = pytest.mark.interop

BODIES = [b"%d" % number for number in range(8)]
SETTINGS = {
    "messageDelayLevel": "1s 1s 1s 1s 1s",
    "transactionTimeOut": 1_000,
    "transactionCheckInterval": 1_000,
}
ONLY_ALL = (GoClient, NodeClient, RustClient)
"""Clients with many modules to install."""


@pytest.fixture(scope="module", params=[CppClient, GoClient, NodeClient, RustClient])
def client(request: pytest.FixtureRequest) -> OtherClient:
    if request.param in ONLY_ALL and not java_oracle.wants_all_versions():
        pytest.skip(f"make interop-all: no {request.param.name} client")
    try:
        made: OtherClient = request.param()
    except ClientUnavailable as reason:
        if request.param in ONLY_ALL:
            raise
        pytest.skip(f"missing client: {reason}")
    return made


@pytest.fixture(scope="module", params=KINDS)
def cluster(
    request: pytest.FixtureRequest, client: OtherClient, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster]:
    """Start a broker for a client; use unique topics."""
    folder = tmp_path_factory.mktemp("cluster")
    with start_cluster(request.param, client.official, folder, SETTINGS) as running:
        yield running


def new_topic(cluster: Cluster, name: str) -> str:
    """Create a topic: Node's client does not send to a missing one."""
    with blocking.Admin(cluster.namesrv) as admin:
        admin.create_topic(name, queue_count=4)
    return name


@pytest.mark.sampled(14)
@pytest.mark.parametrize("orderly", [False, True], ids=["concurrently", "in-order"])
def test_sent_messages_are_consumed(client: OtherClient, cluster: Cluster, orderly: bool) -> None:
    if orderly and not client.can_order:
        pytest.skip(f"no such case: the {client.name} client has no orderly consumer")
    topic = new_topic(cluster, f"{client.name}-{orderly}")
    for how, count in client.ways.items():
        results = client.produce(
            cluster.namesrv, topic, BODIES, how, tags="a", keys=["k"], properties={"p": "v"}
        )
        assert len(results) == count
    client.produce(cluster.namesrv, topic, [b"other"], tags="b")
    count = len(BODIES) * len(client.ways)
    group = f"{topic}-group"
    received = client.consume(
        cluster.namesrv, topic, group, count, "a", orderly=orderly, properties=["p"]
    )
    assert sorted(message["body"] for message in received) == sorted(BODIES * len(client.ways))
    assert {(message["tags"], message["keys"]) for message in received} == {("a", "k")}
    assert {message["properties"]["p"] for message in received} == {"v"}
    assert client.consume(cluster.namesrv, topic, f"{group}-all", count + 1)


@pytest.mark.rotating
def test_messages_are_redelivered_or_delayed(client: OtherClient, cluster: Cluster) -> None:
    if not client.can_try_again:
        pytest.skip(f"no such case: the {client.name} client cannot request redelivery")
    topic = new_topic(cluster, f"{client.name}-again")
    client.produce(cluster.namesrv, topic, [b"again"])
    client.produce(cluster.namesrv, topic, [b"later"], delay_level=1)
    received = client.consume(cluster.namesrv, topic, f"{topic}-group", 2, again=[b"again"])
    assert {message["body"]: message["reconsume_times"] for message in received} == {
        b"again": 1,
        b"later": 0,
    }


def test_each_kind_of_consumer_gets_each_message(client: OtherClient, cluster: Cluster) -> None:
    if len(client.consumers) == 1:
        pytest.skip(f"no such case: the {client.name} client has one kind of consumer")
    topic = new_topic(cluster, f"{client.name}-kinds")
    client.produce(cluster.namesrv, topic, BODIES, tags="a")
    for how in client.consumers:
        received = client.consume(
            cluster.namesrv, topic, f"{topic}-{how}", len(BODIES), "a", how=how
        )
        assert sorted(message["body"] for message in received) == BODIES


def test_committed_messages_are_consumed(client: OtherClient, cluster: Cluster) -> None:
    """A message is committed at once, one is rolled back, and the broker asks about the third."""
    if not client.has_transactions:
        pytest.skip(f"no such case: the {client.name} client of these tests sends no transactions")
    topic = new_topic(cluster, f"{client.name}-half")
    results = client.produce(
        cluster.namesrv, topic, [b"now", b"rollback", b"later"], "transaction", group="half"
    )
    assert len(results) == 3
    received = client.consume(cluster.namesrv, topic, f"{topic}-group", 2)
    assert sorted(message["body"] for message in received) == [b"later", b"now"]


def test_java_stores_a_batch_of_the_cpp_client_as_one_message(
    client: OtherClient, cluster: Cluster
) -> None:
    """The C++ client sends ``batch=1``, which Java reads as false: Java stores one message.

    The client returns an empty body for it, because it ends a body at the first zero.
    """
    if not isinstance(client, CppClient):
        pytest.skip("no such case: batches of the other clients are tested as one of their ways")
    topic = new_topic(cluster, "cpp-batch")
    client.produce(cluster.namesrv, topic, BODIES, "batch")
    wanted = BODIES if isinstance(cluster, ReputCluster) else [b""]
    received = client.consume(cluster.namesrv, topic, f"{topic}-group", len(wanted))
    assert sorted(message["body"] for message in received) == wanted


@pytest.mark.rotating
def test_the_java_client_passes_the_same_checks(
    official: JavaCluster, java_client: JavaClient
) -> None:
    """Java's clients pass the same checks, so the harness works."""
    topic = f"harness-{java_client.version}".replace(".", "_")
    messages = [JavaMessage(topic, body, tags="a", keys="k") for body in BODIES]
    with java_client.producer(official.namesrv) as producer:
        for how, count in (("sync", 8), ("async", 8), ("batch", 1), ("oneway", 0)):
            assert len(producer.send(messages, how)) == count
        assert all(
            result.status == "SEND_OK" for result in producer.send_ordered(messages, "aabbccdd")
        )
    with java_client.push_consumer(official.namesrv, f"{topic}-push", topic, "a") as consumer:
        assert sorted(message.body for message in consumer.take(40)) == sorted(BODIES * 5)
    with java_client.pull_consumer(official.namesrv, f"{topic}-pull") as puller:
        bodies = [message.body for queue in puller.read_all(topic).values() for message in queue]
        assert sorted(bodies) == sorted(BODIES * 5)
    assert topic in java_client.mqadmin("topicList", namesrv=official.namesrv)
