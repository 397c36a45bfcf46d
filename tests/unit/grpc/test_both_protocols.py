"""Messages of each type between clients of the remoting protocol and of gRPC, in both directions.

Properties and fields are those of rocketmq-proxy 5.5.0 ``GrpcConverter``, ``SendMessageActivity``.
"""

from collections.abc import Iterator
from typing import Any

import pytest

from grpc_client import OK, GrpcClient, message
from reput.client import TransactionState
from reput.client.blocking import PopConsumer, Producer, TransactionProducer
from reput.client.message import Message
from reput.grpc.wire.grpc_messages import ClientType, MessageType, TransactionResolution
from reput.testing import LocalBroker

DELAY_MS = 60_000
PATIENCE_MS = 60_000
"""Time that a pop waits for messages that are there, on a busy machine."""
SHARDING_KEY, PRIORITY = "__SHARDINGKEY", "_SYS_MSG_PRIORITY_"
TYPES = ("NORMAL", "FIFO", "DELAY", "TRANSACTION", "PRIORITY")


@pytest.fixture(scope="module")
def broker() -> Iterator[LocalBroker]:
    with LocalBroker() as running:
        yield running


@pytest.fixture
def client(broker: LocalBroker, request: pytest.FixtureRequest) -> Iterator[GrpcClient]:
    with GrpcClient(broker.grpc_endpoint, request.node.name) as opened:
        yield opened


def send_by_remoting(broker: LocalBroker, topic: str, kind: str) -> str:
    """Send a message of a type; return its id."""
    wanted = Message(topic, kind.encode(), tags="a", keys=["k1", "k2"], properties={"u": "1"})
    if kind == "TRANSACTION":
        with TransactionProducer(
            "by-remoting", namesrv=broker.namesrv_addr, check=lambda _: TransactionState.UNKNOWN
        ) as producer:
            sent = producer.send_in_transaction(wanted, lambda *_: TransactionState.COMMIT)
        return sent.half.message_id
    if kind == "DELAY":
        wanted.deliver_at_ms = broker.now_ms + DELAY_MS
    more = {"FIFO": {SHARDING_KEY: "group-1"}, "PRIORITY": {PRIORITY: "2"}}
    wanted.properties = {"u": "1", **more.get(kind, {})}
    with Producer("by-remoting", namesrv=broker.namesrv_addr) as plain:
        return plain.send(wanted).message_id


def send_by_grpc(broker: LocalBroker, client: GrpcClient, topic: str, kind: str) -> str:
    """Send a message of a type; return its id."""
    client.produce(topic)
    more: dict[str, Any] = {
        "FIFO": {"message_group": "group-1"},
        "DELAY": {"delivery_timestamp": {"seconds": (broker.now_ms + DELAY_MS) // 1000}},
        "PRIORITY": {"priority": 2},
    }.get(kind, {})
    sent = message(
        topic, kind.encode(), f"id-{kind}", message_type=MessageType[kind].value, tag="a",
        keys=["k1", "k2"], **more,
    )  # fmt: skip
    reply = client.call("SendMessage", messages=[sent | {"user_properties": {"u": "1"}}])
    assert reply["status"]["code"] == OK
    (entry,) = reply["entries"]
    if kind == "TRANSACTION":
        ended = client.call(
            "EndTransaction",
            topic={"name": topic},
            message_id=entry["message_id"],
            transaction_id=entry["transaction_id"],
            resolution=TransactionResolution.COMMIT.value,
            source=1,
        )
        assert ended["status"]["code"] == OK
    return f"{entry['message_id']}"


@pytest.mark.parametrize("kind", TYPES)
def test_a_consumer_of_grpc_gets_what_a_remoting_producer_sent(
    broker: LocalBroker, client: GrpcClient, kind: str
) -> None:
    topic = f"In-{kind}"
    broker.create_topic(topic, message_type=kind)
    client.consume(topic, topic)
    message_id = send_by_remoting(broker, topic, kind)
    if kind == "DELAY":
        assert client.messages(topic, topic, long_polling_timeout={}) == []
        broker.advance(DELAY_MS + 2_000)
    (item,) = client.messages(topic, topic)
    system = item["system_properties"]
    assert item["body"] == kind.encode()
    assert item["user_properties"]["u"] == "1"
    assert (system["message_id"], system["tag"], system["keys"]) == (message_id, "a", ["k1", "k2"])
    assert system["message_type"] == MessageType[kind]
    assert system.get("message_group") == ("group-1" if kind == "FIFO" else None)
    assert system.get("priority") == (2 if kind == "PRIORITY" else None)
    assert ("delivery_timestamp" in system) == (kind == "DELAY")
    acked = client.call(
        "AckMessage",
        group={"name": topic},
        topic={"name": topic},
        entries=[{"message_id": message_id, "receipt_handle": system["receipt_handle"]}],
    )
    assert acked["status"]["code"] == OK


@pytest.mark.parametrize("kind", TYPES)
def test_a_remoting_consumer_gets_what_a_producer_of_grpc_sent(
    broker: LocalBroker, client: GrpcClient, kind: str
) -> None:
    topic = f"Out-{kind}"
    broker.create_topic(topic, message_type=kind)
    message_id = send_by_grpc(broker, client, topic, kind)
    if kind == "DELAY":
        assert broker.messages(topic) == []
        broker.advance(DELAY_MS + 2_000)
    with PopConsumer(topic, namesrv=broker.namesrv_addr) as consumer:
        consumer.subscribe(topic)
        (received,) = consumer.pop()
        consumer.ack(received)
    assert (received.body, received.tags, received.keys) == (kind.encode(), "a", ["k1", "k2"])
    assert received.message_id == message_id
    assert received.properties["u"] == "1"
    assert received.properties.get(SHARDING_KEY) == ("group-1" if kind == "FIFO" else None)
    assert received.properties.get(PRIORITY) == ("2" if kind == "PRIORITY" else None)


def test_members_of_both_protocols_share_a_group(broker: LocalBroker, client: GrpcClient) -> None:
    topic = group = "Shared"
    broker.create_topic(topic, message_type="NORMAL")
    client.consume(group, topic, kind=ClientType.PUSH_CONSUMER)
    with (
        Producer("by-remoting", namesrv=broker.namesrv_addr) as producer,
        PopConsumer(group, namesrv=broker.namesrv_addr) as consumer,
    ):
        consumer.subscribe(topic)
        for number in range(40):
            producer.send(Message(topic, b"%d" % number))
        by_grpc = client.messages(group, topic, batch_size=20)
        by_remoting = consumer.pop(timeout_ms=PATIENCE_MS)
        # What one of them does not acknowledge, the other one gets.
        (left, *_), (late, *_) = by_grpc, by_remoting
        for received in by_remoting[1:]:
            consumer.ack(received)
        ack(client, group, topic, by_grpc[1:])
        bodies = [item["body"] for item in by_grpc] + [item.body for item in by_remoting]
        assert sorted(bodies, key=int) == [b"%d" % number for number in range(40)]
        client.call(
            "ChangeInvisibleDuration",
            group={"name": group},
            topic={"name": topic},
            receipt_handle=left["system_properties"]["receipt_handle"],
            message_id=left["system_properties"]["message_id"],
            invisible_duration={"seconds": 1},
        )
        broker.advance(2_000)
        (again,) = consumer.pop(timeout_ms=PATIENCE_MS)
        assert (again.body, again.reconsume_times) == (left["body"], 1)
        consumer.ack(again)
        consumer.nack(late, 0)
    broker.advance(2_000)
    (other,) = client.messages(group, topic)
    assert other["body"] == late.body
    assert other["system_properties"]["delivery_attempt"] == 2
    ack(client, group, topic, [other])
    broker.advance(3_600_000)
    assert client.messages(group, topic, long_polling_timeout={}) == []


def ack(client: GrpcClient, group: str, topic: str, items: list[dict[str, Any]]) -> None:
    """Acknowledge messages."""
    entries = [
        {
            "message_id": item["system_properties"]["message_id"],
            "receipt_handle": item["system_properties"]["receipt_handle"],
        }
        for item in items
    ]
    reply = client.call("AckMessage", group={"name": group}, topic={"name": topic}, entries=entries)
    assert reply["status"]["code"] == OK
