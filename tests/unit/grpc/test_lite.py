"""Lite topics of 5.x clients over a broker, and of a proxy before one.

Expected statuses and orders are those of rocketmq-proxy and rocketmq-broker 5.5.0.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

import grpc
import pytest

from grpc_client import OK, GrpcClient, message
from proxied_broker import ProxiedBroker
from reput.client.blocking import Admin
from reput.format.bodies import SubscriptionGroupConfig
from reput.grpc.wire.grpc_messages import ClientType, LiteSubscriptionAction
from reput.testing import LocalBroker

FIRST = {"policy": 1}


@pytest.fixture(scope="module", params=[LocalBroker, ProxiedBroker], ids=["broker", "proxy"])
def broker(request: pytest.FixtureRequest) -> Iterator[LocalBroker]:
    with request.param() as running:
        yield running


class Reader:
    """A client that reads lite topics of a topic.

    Args:
        client: Its connection.
        topic: The parent.
        group: Its group.
        kind: Its type; None: it sends no settings.
    """

    def __init__(
        self,
        client: GrpcClient,
        topic: str,
        group: str,
        kind: ClientType | None = ClientType.LITE_PUSH_CONSUMER,
    ) -> None:
        self.client = client
        self.topic = topic
        self.group = group
        if kind is not None:
            client.consume(group, topic, kind=kind)

    def sync(
        self, action: LiteSubscriptionAction, *lite_topics: str, **more: Any
    ) -> dict[str, Any]:
        """Change the subscriptions; return the status."""
        reply = self.client.call(
            "SyncLiteSubscription",
            action=int(action),
            topic={"name": self.topic},
            group={"name": self.group},
            lite_topic_set=list(lite_topics),
            **more,
        )
        status: dict[str, Any] = reply["status"]
        return status

    def add(self, *lite_topics: str, **more: Any) -> None:
        """Subscribe to lite topics."""
        status = self.sync(LiteSubscriptionAction.PARTIAL_ADD, *lite_topics, **more)
        assert status["code"] == OK, status

    def receive(self, wait_s: int = 1, **more: Any) -> list[dict[str, Any]]:
        """Receive messages."""
        wait = {"seconds": wait_s}
        more = {"auto_renew": True, "long_polling_timeout": wait, **more}
        return self.client.messages(self.group, self.topic, **more)

    def take(self, count: int, **more: Any) -> list[dict[str, Any]]:
        """Receive ``count`` messages; they become readable one after another."""
        received: list[dict[str, Any]] = []
        while len(received) < count:
            received += self.receive(wait_s=5, **more)
        assert len(received) == count
        return received

    def bodies(self, count: int = 0) -> list[bytes]:
        """Receive ``count`` messages, acknowledge them, return their bodies. 0: none come."""
        received: list[bytes] = []
        while True:
            items = self.receive(wait_s=5 if len(received) < count else 1)
            for item in items:
                self.ack(item)
            received += [item["body"] for item in items]
            if len(received) >= count:
                assert len(received) == count
                return received

    def ack(self, received: dict[str, Any]) -> None:
        """Acknowledge a message."""
        system = received["system_properties"]
        reply = self.client.call(
            "AckMessage",
            group={"name": self.group},
            topic={"name": self.topic},
            entries=[
                {
                    "message_id": system["message_id"],
                    "receipt_handle": system["receipt_handle"],
                    "lite_topic": system["lite_topic"],
                }
            ],
        )
        assert reply["status"]["code"] == OK, reply

    def change(self, received: dict[str, Any], seconds: int, **more: Any) -> None:
        """Change the invisible time of a message."""
        system = received["system_properties"]
        reply = self.client.call(
            "ChangeInvisibleDuration",
            group={"name": self.group},
            topic={"name": self.topic},
            receipt_handle=system["receipt_handle"],
            message_id=system["message_id"],
            lite_topic=system["lite_topic"],
            invisible_duration={"seconds": seconds},
            **more,
        )
        assert reply["status"]["code"] == OK, reply


@pytest.fixture
def topic(broker: LocalBroker, request: pytest.FixtureRequest) -> str:
    name = request.node.name.replace("[", "-").replace("]", "")[:60]
    broker.create_topic(name, message_type="LITE")
    return name


@pytest.fixture
def group(broker: LocalBroker, topic: str) -> str:
    make_group(broker, f"{topic}-readers", topic)
    return f"{topic}-readers"


def make_group(broker: LocalBroker, name: str, topic: str, **attributes: str) -> None:
    texts = {
        "lite.bind.topic": topic,
        **{key.replace("_", "."): v for key, v in attributes.items()},
    }
    with Admin(broker.namesrv_addr) as admin:
        admin.create_group(
            SubscriptionGroupConfig(
                group_name=name, attributes={f"+{key}": value for key, value in texts.items()}
            )
        )


@pytest.fixture
def clients(broker: LocalBroker) -> Iterator[Any]:
    with contextlib.ExitStack() as opened:
        yield lambda name: opened.enter_context(GrpcClient(broker.grpc_endpoint, name))


def send(client: GrpcClient, topic: str, lite_topic: str, *bodies: bytes) -> None:
    for body in bodies:
        lite = message(topic, body, key=body.decode(), lite_topic=lite_topic, message_type=5)
        reply = client.call("SendMessage", messages=[lite])
        assert reply["status"]["code"] == OK, reply


def test_a_client_receives_what_it_has_subscribed_to(topic: str, group: str, clients: Any) -> None:
    producer, reader = clients("producer"), Reader(clients("reader"), topic, group)
    reader.add("a", "b", offset_option=FIRST)
    send(producer, topic, "a", b"a1", b"a2")
    send(producer, topic, "b", b"b1")
    send(producer, topic, "c", b"c1")
    first = reader.take(3)
    assert sorted(item["body"] for item in first) == [b"a1", b"a2", b"b1"]
    assert {item["system_properties"]["lite_topic"] for item in first} == {"a", "b"}
    assert {item["system_properties"]["delivery_attempt"] for item in first} == {1}
    for item in first:
        reader.ack(item)
    send(producer, topic, "a", b"a3")
    assert reader.bodies(1) == [b"a3"]


def test_a_simple_consumer_of_lite_topics(topic: str, group: str, clients: Any) -> None:
    """Java's proxy 5.5.0 refuses it; the SDK for Python has it."""
    producer = clients("producer")
    reader = Reader(clients("reader"), topic, group, ClientType.LITE_SIMPLE_CONSUMER)
    reader.add("a", offset_option=FIRST)
    send(producer, topic, "a", b"a1", b"a2")
    send(producer, topic, "b", b"b1")
    reply = reader.client.call("Heartbeat", group={"name": group}, client_type=6)
    assert reply["status"]["code"] == OK
    assert reader.bodies(2) == [b"a1", b"a2"]


def test_a_client_whose_settings_come_late_reads_lite_topics(
    topic: str, group: str, clients: Any
) -> None:
    producer, reader = clients("producer"), Reader(clients("late"), topic, group, None)
    assert reader.receive() == []
    reader.add("a", offset_option=FIRST)
    send(producer, topic, "a", b"a1")
    assert reader.bodies(1) == [b"a1"]


def test_the_next_messages_of_a_lite_topic_follow_the_acknowledgement(
    topic: str, group: str, clients: Any
) -> None:
    producer, reader = clients("producer"), Reader(clients("reader"), topic, group)
    reader.add("a", offset_option=FIRST)
    send(producer, topic, "a", b"1")
    (first,) = reader.receive()
    send(producer, topic, "a", b"2")
    send(producer, topic, "b", b"other")
    assert reader.receive() == []
    reader.ack(first)
    (second,) = reader.receive()
    assert second["body"] == b"2"


def test_a_message_that_is_not_acknowledged_comes_again(
    broker: LocalBroker, topic: str, group: str, clients: Any
) -> None:
    producer, reader = clients("producer"), Reader(clients("reader"), topic, group)
    reader.add("a", offset_option=FIRST)
    send(producer, topic, "a", b"1", b"2")
    *others, last = reader.receive(5, auto_renew=False, invisible_duration={"seconds": 10})
    for item in others:
        reader.ack(item)
    assert reader.receive() == []
    broker.advance(11_000)
    again, *_ = reader.receive(5)
    assert again["body"] == last["body"]
    assert again["system_properties"]["delivery_attempt"] == 2


def test_a_changed_invisible_time_counts(topic: str, group: str, clients: Any) -> None:
    producer, reader = clients("producer"), Reader(clients("reader"), topic, group)
    reader.add("a", offset_option=FIRST)
    send(producer, topic, "a", b"1")
    (first,) = reader.receive(5)
    reader.change(first, 0)
    (again,) = reader.receive()
    assert (again["body"], again["system_properties"]["delivery_attempt"]) == (b"1", 2)
    reader.ack(again)
    assert reader.receive() == []


def test_each_message_of_a_block_can_be_suspended(topic: str, group: str, clients: Any) -> None:
    producer, reader = clients("producer"), Reader(clients("reader"), topic, group)
    send(producer, topic, "a", b"1", b"2", b"3")
    reader.add("a", offset_option=FIRST)
    attempts = []
    for suspend in (False, True, True, False):
        items = reader.receive(5)
        attempts.append([item["system_properties"]["delivery_attempt"] for item in items])
        for item in items:
            reader.change(item, 0, suspend=suspend)
    assert attempts == [[1] * 3, [2] * 3, [2] * 3, [2] * 3]


def test_a_block_is_free_when_its_other_messages_are_acknowledged(
    broker: LocalBroker, topic: str, group: str, clients: Any
) -> None:
    producer, reader = clients("producer"), Reader(clients("reader"), topic, group)
    send(producer, topic, "a", b"1", b"2", b"3")
    reader.add("a", offset_option=FIRST)
    first, *others = reader.receive(5)
    reader.change(first, 1)
    assert reader.receive() == []  # the others are invisible for longer
    for item in others:
        reader.ack(item)
    again, *_ = reader.receive(5)
    assert again["body"] == b"1"


def test_clients_of_a_group_share_a_lite_topic(topic: str, group: str, clients: Any) -> None:
    producer = clients("producer")
    readers = [Reader(clients(f"reader-{number}"), topic, group) for number in (1, 2)]
    for reader in readers:
        reader.add("a", offset_option=FIRST)
    send(producer, topic, "a", b"1")
    received = [reader.receive() for reader in readers]
    assert sorted(len(items) for items in received) == [0, 1]


def test_another_client_receives_what_a_client_that_is_gone_has_left(
    topic: str, group: str, clients: Any
) -> None:
    producer = clients("producer")
    first, second = (Reader(clients(f"reader-{number}"), topic, group) for number in (1, 2))
    first.add("a", offset_option=FIRST)
    send(producer, topic, "a", b"1")
    assert first.sync(LiteSubscriptionAction.COMPLETE_REMOVE)["code"] == OK
    assert first.receive() == []
    second.add("a")
    assert second.bodies(1) == [b"1"]


def test_a_lite_topic_of_an_exclusive_group_has_its_latest_client(
    broker: LocalBroker, topic: str, clients: Any
) -> None:
    group = f"{topic}-alone"
    make_group(broker, group, topic, lite_sub_model="Exclusive")
    producer = clients("producer")
    first, second = (Reader(clients(f"reader-{number}"), topic, group) for number in (1, 2))
    first.add("a", offset_option=FIRST)
    second.add("a")
    assert first.client.next_command()["notify_unsubscribe_lite_command"] == {"lite_topic": "a"}
    send(producer, topic, "a", b"1")
    assert first.receive() == []
    assert second.bodies(1) == [b"1"]


def test_a_wildcard_group_reads_all_lite_topics(
    broker: LocalBroker, topic: str, clients: Any
) -> None:
    group = f"{topic}-all"
    make_group(broker, group, topic, lite_sub_wildcard="*")
    producer = clients("producer")
    reader = Reader(clients("reader"), topic, group)
    status = reader.sync(LiteSubscriptionAction.PARTIAL_ADD, "a")
    assert "not supported for this group" in status["message"]
    assert reader.sync(LiteSubscriptionAction.COMPLETE_ADD)["code"] == OK
    send(producer, topic, "x", b"x1")
    send(producer, topic, "y", b"y1")
    assert sorted(reader.bodies(2)) == [b"x1", b"y1"]


@pytest.mark.parametrize(
    ("option", "bodies"),
    [
        ({"policy": 1}, [b"1", b"2", b"3"]),
        ({"policy": 2}, []),
        ({"offset": 1}, [b"2", b"3"]),
        ({"tail_n": 1}, [b"1", b"2", b"3"]),  # the group has read nothing: it is ignored
    ],
)
def test_a_subscription_says_where_it_begins(
    topic: str, group: str, clients: Any, option: dict[str, int], bodies: list[bytes]
) -> None:
    producer, reader = clients("producer"), Reader(clients("reader"), topic, group)
    send(producer, topic, "a", b"1", b"2", b"3")
    reader.add("a", offset_option=option)
    assert reader.bodies(len(bodies)) == bodies
    send(producer, topic, "a", b"4")
    assert reader.bodies(1) == [b"4"]


def test_a_complete_set_replaces_the_subscriptions(topic: str, group: str, clients: Any) -> None:
    producer, reader = clients("producer"), Reader(clients("reader"), topic, group)
    reader.add("a", "b", offset_option=FIRST)
    assert reader.sync(LiteSubscriptionAction.COMPLETE_ADD, "b", "c")["code"] == OK
    for lite_topic in ("a", "b", "c"):
        send(producer, topic, lite_topic, lite_topic.encode())
    assert sorted(reader.bodies(2)) == [b"b", b"c"]
    assert reader.sync(LiteSubscriptionAction.PARTIAL_REMOVE, "b")["code"] == OK
    send(producer, topic, "b", b"b2")
    assert reader.bodies() == []


def test_messages_are_kept_over_a_restart(topic: str, group: str, tmp_path: Any) -> None:
    with LocalBroker(folder=tmp_path) as broker:
        broker.create_topic(topic, message_type="LITE")
        make_group(broker, group, topic)
        with GrpcClient(broker.grpc_endpoint, "p") as p, GrpcClient(broker.grpc_endpoint, "r") as r:
            reader = Reader(r, topic, group)
            reader.add("a", offset_option=FIRST)
            send(p, topic, "a", b"1", b"2", b"3")
            first, *_ = reader.receive(5)
            reader.ack(first)
        broker.restart()
        with GrpcClient(broker.grpc_endpoint, "r") as r:
            reader = Reader(r, topic, group)
            assert reader.sync(LiteSubscriptionAction.COMPLETE_ADD, "a")["code"] == OK
            assert reader.bodies(2) == [b"2", b"3"]


# --- refusals -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    ["", " ", "a$b", "a/b", "x" * 65],
    ids=["empty", "blank", "separator", "slash", "long"],
)
def test_names_of_lite_topics_are_checked(topic: str, group: str, clients: Any, name: str) -> None:
    reader = Reader(clients("reader"), topic, group)
    assert reader.sync(LiteSubscriptionAction.PARTIAL_ADD, name)["code"] == 40_020


def test_a_group_that_is_not_bound_to_the_topic_is_refused(
    broker: LocalBroker, topic: str, clients: Any
) -> None:
    make_group(broker, f"{topic}-other", "AnotherTopic")
    reader = Reader(clients("reader"), topic, f"{topic}-other", kind=None)
    with pytest.raises(grpc.RpcError, match="is expected to bind topic AnotherTopic, but actual"):
        reader.client.consume(reader.group, topic, kind=ClientType.LITE_PUSH_CONSUMER)
    status = reader.sync(LiteSubscriptionAction.PARTIAL_ADD, "a")
    assert status["code"] == 40_002
    assert "lite.bind.topic" in status["message"]
    replies = reader.client.receive(
        group={"name": reader.group},
        message_queue={"topic": {"name": topic}, "id": -1, "broker": {"name": "broker-a"}},
        filter_expression={"type": 1, "expression": "*"},
        auto_renew=True,
    )
    assert replies[0]["status"]["code"] == 50_001
    assert "bind topic not match" in replies[0]["status"]["message"]


@pytest.mark.parametrize(
    "calls",
    [[("PARTIAL_ADD", 4)], [("COMPLETE_ADD", 4)], [("PARTIAL_ADD", 2), ("PARTIAL_ADD", 3)]],
    ids=str,
)
def test_a_client_has_as_many_lite_topics_as_its_group_allows(
    broker: LocalBroker, topic: str, clients: Any, calls: list[tuple[str, int]]
) -> None:
    """In the server: SDKs need not check."""
    group = f"{topic[-40:]}-few"
    make_group(broker, group, topic, lite_sub_client_quota="3")
    reader = Reader(clients("reader"), topic, group)
    *allowed, (action, count) = calls
    for number, (before, size) in enumerate(allowed):
        names = [f"{number}-{i}" for i in range(size)]
        assert reader.sync(LiteSubscriptionAction[before], *names)["code"] == OK
    too_many = [f"last-{i}" for i in range(count)]
    status = reader.sync(LiteSubscriptionAction[action], *too_many)
    assert status["code"] == 42_902
    assert "lite subscription quota exceeded: 3;" in status["message"]
    assert reader.sync(LiteSubscriptionAction.COMPLETE_ADD, *too_many[:3])["code"] == OK


@pytest.mark.parametrize("reads_lite", [False, True], ids=["regular group", "lite group"])
def test_only_consumers_of_lite_topics_are_in_their_groups(
    broker: LocalBroker, topic: str, clients: Any, reads_lite: bool
) -> None:
    group = f"{topic[-40:]}-{'lite' if reads_lite else 'regular'}"
    with Admin(broker.namesrv_addr) as admin:
        admin.create_group(SubscriptionGroupConfig(group_name=group))
    if reads_lite:
        make_group(broker, group, topic)
    kind = ClientType.PUSH_CONSUMER if reads_lite else ClientType.LITE_PUSH_CONSUMER
    text = "lite group must use LITE mode" if reads_lite else "regular group cannot use LITE mode"
    with pytest.raises(grpc.RpcError, match=text):
        clients("wrong").consume(group, topic, kind=kind)


def test_too_many_subscriptions_are_refused(topic: str, group: str) -> None:
    with LocalBroker(settings={"maxLiteSubscriptionCount": "3"}) as broker:
        broker.create_topic(topic, message_type="LITE")
        make_group(broker, group, topic)
        with GrpcClient(broker.grpc_endpoint, "r") as client:
            reader = Reader(client, topic, group)
            reader.add("a", "b", "c")
            status = reader.sync(LiteSubscriptionAction.PARTIAL_ADD, "d")
            assert status["code"] == 42_902
            assert "maxLiteSubscriptionCount" in status["message"]
            assert reader.sync(LiteSubscriptionAction.PARTIAL_REMOVE, "a")["code"] == OK
            reader.add("d")
