"""The unmodified push consumer of 5.5.0 in pop mode, on our broker.

With ``REPUT_INTEROP=all`` the same tests run on the official broker too, because they expect its
behaviour. Groups pop after ``mqadmin setConsumeMode``, and query the assignment of queues.
"""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

import pop_client
from interop.clusters import KINDS, PAUSE, Cluster, start_cluster, until
from interop.java_cluster import JavaClient, JavaCluster, JavaMessage, JavaReceived, PushConsumer
from reput.format import headers
from reput.format.command import Command
from reput.format.headers import Header
from reput.remoting.client import RemotingClient
from reput_cluster import ReputCluster

pytestmark = pytest.mark.interop

VERSION = pytest.param("5.5.0", marks=pytest.mark.xdist_group("test_pop"))
SETTINGS = {"enablePropertyFilter": True, "autoCreateTopicEnable": True}
POPPED = {"clientRebalance": False, "heartbeatBrokerInterval": 1000}

on_5_5 = pytest.mark.parametrize("java_client", [VERSION], indirect=True)


@pytest.fixture(scope="module", params=KINDS)
def cluster(
    request: pytest.FixtureRequest,
    java_client: JavaClient,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Cluster]:
    """Start a shared broker; use unique topics."""
    folder = tmp_path_factory.mktemp("pop")
    with start_cluster(request.param, java_client.version, folder, SETTINGS) as running:
        yield running


@pytest.fixture(params=KINDS)
def own(
    request: pytest.FixtureRequest, java_client: JavaClient, tmp_path: Path
) -> Iterator[Cluster]:
    """Start a separate broker, which the test may stop and kill."""
    with start_cluster(request.param, java_client.version, tmp_path / "own", SETTINGS) as running:
        yield running


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """Provide a topic and group name that is unique to the test."""
    name = request.node.name.removeprefix("test_")
    return "".join(character if character.isalnum() else "-" for character in name)[:60]


def prepare(java: JavaClient, cluster: Cluster, topic: str, share: int = 0) -> None:
    """Create a topic of four queues and a group that pops it."""

    def mqadmin(*arguments: str) -> str:
        output = java.mqadmin(*arguments, namesrv=cluster.namesrv)
        assert "success" in output, output
        return output

    address = ("-b", cluster.address)
    mqadmin("updateTopic", *address, "-t", topic, "-r", "4", "-w", "4")
    mqadmin("updateSubGroup", *address, "-g", topic)
    mqadmin("setConsumeMode", *address, "-t", topic, "-g", topic, "-m", "POP", "-q", str(share))


def consumer(
    java: JavaClient, cluster: Cluster, topic: str, expression: str = "*", **settings: object
) -> PushConsumer:
    return java.push_consumer(
        cluster.namesrv,
        topic,
        topic,
        expression,
        **{**POPPED, **settings},  # type: ignore[arg-type]
    )


def send(java: JavaClient, cluster: Cluster, topic: str, bodies: list[bytes], **more: str) -> None:
    with java.producer(cluster.namesrv) as producer:
        for result in producer.send([JavaMessage(topic, body, **more) for body in bodies]):
            assert result.status == "SEND_OK"


def numbered(count: int, prefix: str = "m") -> list[bytes]:
    return [f"{prefix}{number}".encode() for number in range(count)]


def counted(*members: PushConsumer) -> Counter[bytes]:
    return Counter(message.body for member in members for message in member.received)


@pytest.mark.rotating
@on_5_5
def test_two_members_share_and_failures_are_redelivered(
    java_client: JavaClient, cluster: Cluster, topic: str
) -> None:
    prepare(java_client, cluster, topic)
    bodies = numbered(60)
    with contextlib.ExitStack() as stack:
        members = [
            stack.enter_context(
                consumer(java_client, cluster, topic, instanceName=f"{topic}-{number}", laters=1)
            )
            for number in range(2)
        ]
        send(java_client, cluster, topic, bodies)
        until(lambda: counted(*members) == Counter(bodies) + Counter(bodies))
        received = [message for member in members for message in member.received]
        first = [message for message in received if not message.reconsume_times]
        again = [message for message in received if message.reconsume_times]
        assert sorted(message.body for message in first) == sorted(
            message.body for message in again
        )
        assert {message.reconsume_times for message in again} == {1}
        assert {message.topic for message in received} == {topic}
        born = {message.body: message.born_timestamp for message in first}
        assert {message.body: message.born_timestamp for message in again} == born
        _not_before(first, again, 10_000)
        for message in again:
            assert message.properties["ORIGIN_GROUP"] == topic
            assert int(message.properties["1ST_POP_TIME"]) > 0
        # Both members got messages, because queues have no owner.
        assert all(member.received for member in members)


def _not_before(first: list[JavaReceived], again: list[JavaReceived], delay_ms: int) -> None:
    popped = {message.body: int(message.properties["POP_CK"].split(" ")[1]) for message in first}
    for message in again:
        assert message.store_timestamp - popped[message.body] >= delay_ms


@pytest.mark.rotating
@on_5_5
def test_a_broker_restarts_while_messages_are_invisible(
    java_client: JavaClient, own: Cluster, topic: str
) -> None:
    prepare(java_client, own, topic)
    bodies = numbered(20)
    with consumer(java_client, own, topic, laters=1) as member:
        send(java_client, own, topic, bodies)
        until(lambda: len(member.received) >= 20)
        PAUSE.wait(1)  # until it has changed the invisible time
        own.stop_broker()
        own.start()
        until(lambda: set(counted(member)) == set(bodies) and len(member.received) >= 40)
        attempts = Counter(
            message.body for message in member.received if message.reconsume_times == 1
        )
        assert set(attempts) == set(bodies)


@pytest.mark.rotating
@on_5_5
def test_a_broker_is_killed_while_messages_are_invisible(
    java_client: JavaClient, own: Cluster, topic: str
) -> None:
    prepare(java_client, own, topic)
    bodies = numbered(20)
    with consumer(java_client, own, topic, laters=1) as member:
        send(java_client, own, topic, bodies)
        until(lambda: len(member.received) >= 20)
        PAUSE.wait(1)
        own.kill_broker()
        own.start()
        until(
            lambda: (
                {message.body for message in member.received if message.reconsume_times}
                == set(bodies)
            )
        )


@pytest.mark.rotating
@on_5_5
@pytest.mark.parametrize(("expression", "is_sql"), [("a || c", False), ("number < 3", True)])
def test_members_get_matching_messages(
    java_client: JavaClient, cluster: Cluster, topic: str, expression: str, is_sql: bool
) -> None:
    prepare(java_client, cluster, topic)
    with (
        java_client.push_consumer(
            cluster.namesrv,
            topic,
            topic,
            expression,
            sql=is_sql,
            **POPPED,  # type: ignore[arg-type]
        ) as member,
        java_client.producer(cluster.namesrv) as producer,
    ):
        producer.send(
            [
                JavaMessage(
                    topic,
                    b"%d" % number,
                    tags="abc"[number % 3],
                    properties={"number": f"{number}"},
                )
                for number in range(12)
            ]
        )
        wanted = {0, 1, 2} if is_sql else {number for number in range(12) if number % 3 != 1}
        bodies = {b"%d" % number for number in wanted}
        until(lambda: set(counted(member)) >= bodies)
        assert counted(member) == Counter(bodies)


@pytest.mark.rotating
@on_5_5
def test_members_share_queues_with_the_next_ones(
    java_client: JavaClient, cluster: Cluster, topic: str
) -> None:
    """With share N, a member pops its own queues and those of the next N members."""
    prepare(java_client, cluster, topic, share=1)
    bodies = numbered(40)
    with contextlib.ExitStack() as stack:
        members = [
            stack.enter_context(
                consumer(java_client, cluster, topic, instanceName=f"{topic}-{number}")
            )
            for number in range(4)
        ]
        send(java_client, cluster, topic, bodies)
        until(lambda: set(counted(*members)) == set(bodies))
        assert counted(*members) == Counter(bodies)


@pytest.mark.rotating
@on_5_5
def test_java_revives_messages_popped_from_ours(
    java_client: JavaClient, topic: str, tmp_path: Path
) -> None:
    """The revive service of the official broker finds our checkpoints and acks."""
    bodies = numbered(12)
    with ReputCluster(tmp_path, SETTINGS) as ours:
        prepare(java_client, ours, topic)
        send(java_client, ours, topic, bodies)
        asyncio.run(_pop_and_acknowledge_some(ours.address, topic, set(bodies[:5])))
        ours.stop()
    with JavaCluster(java_client.version, tmp_path, SETTINGS) as official:
        prepare(java_client, official, topic)
        with consumer(java_client, official, topic) as member:
            until(lambda: set(counted(member)) >= set(bodies[5:]))
            assert counted(member) == Counter(bodies[5:])
            assert {message.reconsume_times for message in member.received} == {1}


@pytest.mark.rotating
@on_5_5
def test_ours_revives_messages_popped_from_java(
    java_client: JavaClient, topic: str, tmp_path: Path
) -> None:
    """Checkpoints and acks of the official broker that are still in its timer are found by ours."""
    bodies = numbered(12)
    with JavaCluster(java_client.version, tmp_path, SETTINGS) as official:
        prepare(java_client, official, topic)
        send(java_client, official, topic, bodies)
        acked = set(bodies[:5])
        asyncio.run(_pop_and_acknowledge_some(official.address, topic, acked, 15_000))
        official.stop()
    with ReputCluster(tmp_path, SETTINGS) as ours:
        prepare(java_client, ours, topic)
        with consumer(java_client, ours, topic) as member:
            until(lambda: set(counted(member)) >= set(bodies[5:]))
            assert counted(member) == Counter(bodies[5:])
            assert {message.reconsume_times for message in member.received} == {1}


async def _pop_and_acknowledge_some(
    address: str, topic: str, acked: set[bytes], invisible_ms: int = 5_000
) -> None:
    async with RemotingClient() as client:
        wire = _Wire(address, client)
        taken = []
        while len(taken) < 12:
            taken += await pop_client.pop(
                wire, topic, topic, invisible_time=invisible_ms, poll_time=2_000
            )
        for message in taken:
            if message.body in acked:
                await pop_client.ack(wire, message)


class _Wire:
    """Connection to a broker."""

    def __init__(self, address: str, client: RemotingClient) -> None:
        self._address = address
        self._client = client

    async def ask(self, code: int, header: Header | None = None, body: bytes = b"") -> Command:
        fields = headers.encode(header) if header is not None else None
        return await self._client.invoke(
            self._address, Command(code, ext_fields=fields, body=body), 20_000
        )
