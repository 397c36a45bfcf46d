"""The service of 5.x clients over a broker, and of a proxy before one: what a client sees, and what
the broker has.

Expected statuses, settings and handles are those of rocketmq-proxy 5.5.0.
"""

from collections.abc import Iterator
from typing import Any

import grpc
import pytest

from grpc_client import OK, GrpcClient, message, receive_request
from proxied_broker import ProxiedBroker
from reput.client.blocking import Admin, Producer
from reput.client.message import Message
from reput.format.bodies import SubscriptionGroupConfig
from reput.grpc.wire.grpc_messages import ClientType
from reput.testing import LocalBroker

TYPES = ("NORMAL", "FIFO", "DELAY", "TRANSACTION", "PRIORITY", "MIXED")


@pytest.fixture(scope="module", params=[LocalBroker, ProxiedBroker], ids=["broker", "proxy"])
def broker(request: pytest.FixtureRequest) -> Iterator[LocalBroker]:
    with request.param(settings={"recallMessageEnable": "true"}) as running:
        for kind in TYPES:
            running.create_topic(kind.title(), message_type=kind)
        yield running


@pytest.fixture
def client(broker: LocalBroker, request: pytest.FixtureRequest) -> Iterator[GrpcClient]:
    with GrpcClient(broker.grpc_endpoint, request.node.name) as opened:
        yield opened


def new_topic(broker: LocalBroker, request: pytest.FixtureRequest, kind: str = "NORMAL") -> str:
    name = request.node.name.replace("[", "-").replace("]", "")[:60]
    broker.create_topic(name, message_type=kind)
    return name


# --- routes -------------------------------------------------------------------------------------


def test_a_route_has_the_endpoint_that_the_client_uses(
    broker: LocalBroker, client: GrpcClient
) -> None:
    named = {"scheme": 3, "addresses": [{"host": "mq.example", "port": 443}]}
    reply = client.call("QueryRoute", topic={"name": "Normal"}, endpoints=named)
    assert reply["status"] == {"code": OK, "message": "OK"}
    queues = reply["message_queues"]
    assert [queue.get("id", 0) for queue in queues] == [0, 1, 2, 3]
    assert {queue["permission"] for queue in queues} == {4}
    assert {queue["broker"]["name"] for queue in queues} == {"broker-a"}
    assert all(queue["broker"]["endpoints"] == named for queue in queues)
    assert all(queue["accept_message_types"] == [1] for queue in queues)
    own = client.call("QueryRoute", topic={"name": "Normal"})["message_queues"][0]
    host, _, port = broker.grpc_endpoint.rpartition(":")
    assert own["broker"]["endpoints"] == {
        "scheme": 1,
        "addresses": [{"host": host, "port": int(port)}],
    }


@pytest.mark.parametrize(
    ("kind", "types"), [("Fifo", [2]), ("Mixed", [1, 2, 3, 4]), ("Priority", [6])]
)
def test_a_route_has_the_types_of_the_topic(
    client: GrpcClient, kind: str, types: list[int]
) -> None:
    queues = client.call("QueryRoute", topic={"name": kind})["message_queues"]
    assert {tuple(queue["accept_message_types"]) for queue in queues} == {tuple(types)}


@pytest.mark.parametrize(
    ("name", "code"),
    [("NoSuchTopic", 40_402), ("", 40_002), ("a b", 40_002), ("TBW102", 40_002)],
    ids=["unknown", "empty", "illegal", "system"],
)
def test_a_route_of_no_topic_is_refused(client: GrpcClient, name: str, code: int) -> None:
    assert client.call("QueryRoute", topic={"name": name})["status"]["code"] == code


def test_a_topic_can_be_created_after_it_was_asked_for(
    broker: LocalBroker, client: GrpcClient, request: pytest.FixtureRequest
) -> None:
    name = "created-later"
    assert client.call("QueryRoute", topic={"name": name})["status"]["code"] == 40_402
    broker.create_topic(name)
    assert client.call("QueryRoute", topic={"name": name})["status"]["code"] == OK


def test_assignments_are_any_queue_or_each_queue_in_order(
    broker: LocalBroker, client: GrpcClient
) -> None:
    with Admin(broker.namesrv_addr) as admin:
        admin.create_group(
            SubscriptionGroupConfig(group_name="ordered-assignments", consume_message_orderly=True)
        )
    wanted = {"topic": {"name": "Fifo"}}
    anyone = client.call("QueryAssignment", **wanted, group={"name": "any-assignments"})
    assert [entry["message_queue"]["id"] for entry in anyone["assignments"]] == [-1]
    ordered = client.call("QueryAssignment", **wanted, group={"name": "ordered-assignments"})
    ids = [entry["message_queue"].get("id", 0) for entry in ordered["assignments"]]
    assert ids == [0, 1, 2, 3]


# --- settings -----------------------------------------------------------------------------------


def test_a_producer_gets_its_settings(client: GrpcClient) -> None:
    answer = client.produce("Normal")
    assert answer["status"]["code"] == OK
    settings = answer["settings"]
    assert settings["publishing"]["max_body_size"] == 4 * 1024 * 1024
    assert settings["publishing"]["validate_message_type"] is True
    assert settings["backoff_policy"]["max_attempts"] == 3
    assert settings["backoff_policy"]["exponential_backoff"] == {
        "initial": {"nanos": 10_000_000},
        "max": {"seconds": 1},
        "multiplier": 2.0,
    }


def test_a_consumer_gets_its_settings_and_is_a_member_of_its_group(
    broker: LocalBroker, client: GrpcClient
) -> None:
    answer = client.consume("settings-group", "Normal")
    settings = answer["settings"]
    assert settings["subscription"]["receive_batch_size"] == 32
    assert settings["subscription"]["long_polling_timeout"] == {"seconds": 20}
    assert settings["backoff_policy"]["max_attempts"] == 17
    delays = settings["backoff_policy"]["customized_backoff"]["next"]
    assert [delay["seconds"] for delay in delays[:4]] == [1, 5, 10, 30]
    with Admin(broker.namesrv_addr) as admin:
        members = admin.consumer_connection("settings-group")
    assert members is not None
    assert [member.language for member in members.connection_set] == ["PYTHON"]


def test_a_stream_without_settings_of_either_kind_is_refused(client: GrpcClient) -> None:
    with pytest.raises(grpc.RpcError) as failure:
        client.telemetry(client_type=1)
    assert failure.value.code() == grpc.StatusCode.INVALID_ARGUMENT


def test_a_heartbeat_needs_settings(client: GrpcClient) -> None:
    assert client.call("Heartbeat", client_type=1)["status"]["code"] == 40_015
    client.produce("Normal")
    assert client.call("Heartbeat", client_type=1)["status"]["code"] == OK


def test_a_call_needs_a_client_id(broker: LocalBroker) -> None:
    with GrpcClient(broker.grpc_endpoint, "") as anonymous:
        status = anonymous.call("QueryRoute", topic={"name": "Normal"})["status"]
    assert (status["code"], status["message"]) == (40_017, "client id cannot be empty")


# --- sends and receives -------------------------------------------------------------------------


def test_messages_go_both_ways_between_the_protocols(
    broker: LocalBroker, client: GrpcClient, request: pytest.FixtureRequest
) -> None:
    topic = new_topic(broker, request)
    client.consume(f"{topic}-group", topic)
    sent = client.call(
        "SendMessage",
        messages=[
            message(topic, b"by gRPC", "0123", tag="a", keys=["k1", "k2"])
            | {"user_properties": {"colour": "red"}}
        ],
    )
    assert sent["status"]["code"] == OK
    (entry,) = sent["entries"]
    assert entry["message_id"] == "0123"
    with Producer("by-remoting", namesrv=broker.namesrv_addr) as producer:
        producer.send(Message(topic, b"by remoting", tags="b", keys=["k3"]))
    (stored, _) = broker.messages(topic, at_least=2)
    assert (stored.body, stored.tags, stored.keys) == (b"by gRPC", "a", ["k1", "k2"])
    assert stored.properties["colour"] == "red"
    received = []
    while len(received) < 2:
        received += client.messages(f"{topic}-group", topic)
    by_body = {item["body"]: item for item in received}
    assert set(by_body) == {b"by gRPC", b"by remoting"}
    first = by_body[b"by gRPC"]
    assert first["user_properties"] == {"colour": "red"}
    system = first["system_properties"]
    assert (system["tag"], system["keys"]) == ("a", ["k1", "k2"])
    assert (system["message_id"], system["delivery_attempt"]) == ("0123", 1)
    assert by_body[b"by remoting"]["system_properties"]["keys"] == ["k3"]
    for item in received:
        acked = client.call(
            "AckMessage",
            group={"name": f"{topic}-group"},
            topic={"name": topic},
            entries=[
                {
                    "message_id": item["system_properties"]["message_id"],
                    "receipt_handle": item["system_properties"]["receipt_handle"],
                }
            ],
        )
        assert acked["status"]["code"] == OK


def test_nothing_to_receive_is_a_status(
    broker: LocalBroker, client: GrpcClient, request: pytest.FixtureRequest
) -> None:
    topic = new_topic(broker, request)
    client.consume("idle-group", topic)
    replies = client.receive(
        group={"name": "idle-group"},
        message_queue={"topic": {"name": topic}, "id": -1, "broker": {"name": "broker-a"}},
        filter_expression={"type": 1, "expression": "*"},
        batch_size=1,
        invisible_duration={"seconds": 30},
        long_polling_timeout={"nanos": 50_000_000},
    )
    assert [set(reply) for reply in replies] == [{"status"}, {"delivery_timestamp"}]
    assert replies[0]["status"]["code"] == 40_401


@pytest.mark.parametrize(
    ("more", "limit"),
    [
        ({"attempt_id": "x" * 256}, "pop_attempt_letters"),
        ({"filter_expression": {"type": 1, "expression": "t" * 262_145}}, "header_bytes"),
    ],
)
def test_a_receive_with_long_texts_is_refused(
    broker: LocalBroker,
    client: GrpcClient,
    request: pytest.FixtureRequest,
    more: dict[str, Any],
    limit: str,
) -> None:
    """No broker accepts them, and each would be kept as long as the call."""
    topic = new_topic(broker, request)
    client.consume("long-group", topic)
    replies = client.receive(**receive_request("long-group", topic, **more))
    assert limit in replies[0]["status"]["message"]


def test_a_message_that_is_not_acknowledged_comes_again(
    broker: LocalBroker, client: GrpcClient, request: pytest.FixtureRequest
) -> None:
    topic = new_topic(broker, request)
    client.consume("again-group", topic)
    client.call("SendMessage", messages=[message(topic)])
    (first,) = client.messages("again-group", topic)
    broker.advance(31_000)
    (second,) = client.messages("again-group", topic)
    assert second["body"] == first["body"]
    assert second["system_properties"]["delivery_attempt"] == 2


def test_the_invisible_time_is_changed_and_the_old_handle_is_no_longer_valid(
    broker: LocalBroker, client: GrpcClient, request: pytest.FixtureRequest
) -> None:
    topic = new_topic(broker, request)
    group = {"name": "changing-group"}
    client.consume("changing-group", topic)
    client.call("SendMessage", messages=[message(topic)])
    (first,) = client.messages("changing-group", topic)
    handle = first["system_properties"]["receipt_handle"]
    changed = client.call(
        "ChangeInvisibleDuration",
        group=group,
        topic={"name": topic},
        receipt_handle=handle,
        invisible_duration={"seconds": 300},
        message_id="01",
    )
    assert changed["status"]["code"] == OK
    assert changed["receipt_handle"] != handle
    broker.advance(60_000)
    assert client.messages("changing-group", topic, long_polling_timeout={}) == []
    acked = client.call(
        "AckMessage",
        group=group,
        topic={"name": topic},
        entries=[{"message_id": "01", "receipt_handle": changed["receipt_handle"]}],
    )
    assert acked["status"]["code"] == OK
    broker.advance(600_000)
    assert client.messages("changing-group", topic, long_polling_timeout={}) == []


@pytest.mark.parametrize("auto_renew", [False, True])
def test_an_ack_by_an_old_handle_has_no_effect(
    broker: LocalBroker, client: GrpcClient, request: pytest.FixtureRequest, auto_renew: bool
) -> None:
    """It succeeds all the same, as with rocketmq-proxy 5.5.0.

    Seen there in local and cluster mode; with auto_renew in cluster mode only.
    """
    topic, group = new_topic(broker, request), request.node.name.replace("[", "-").strip("]")
    place = {"group": {"name": group}, "topic": {"name": topic}}
    client.consume(group, topic)
    client.call("SendMessage", messages=[message(topic)])
    (first,) = client.messages(group, topic, auto_renew=auto_renew)
    handle = first["system_properties"]["receipt_handle"]
    changed = client.call(
        "ChangeInvisibleDuration",
        **place,
        receipt_handle=handle,
        invisible_duration={"seconds": 20},
        message_id="01",
    )
    assert changed["status"]["code"] == OK
    entry = {"message_id": "01", "receipt_handle": handle}
    acked = client.call("AckMessage", **place, entries=[entry])
    assert acked["entries"][0]["status"]["code"] == OK
    broker.advance(30_000)
    (second,) = client.messages(group, topic)
    assert second["system_properties"]["delivery_attempt"] == 2


@pytest.mark.parametrize("handle", ["", "nonsense", "1 2 3 4 0 broker-a 0"])
def test_a_text_that_is_no_handle_is_refused(client: GrpcClient, handle: str) -> None:
    acked = client.call(
        "AckMessage",
        group={"name": "some-group"},
        topic={"name": "Normal"},
        entries=[{"message_id": "01", "receipt_handle": handle}],
    )
    assert acked["entries"][0]["status"]["code"] == 40_013


def test_a_message_group_stays_in_its_queue(
    broker: LocalBroker, client: GrpcClient, request: pytest.FixtureRequest
) -> None:
    topic = new_topic(broker, request, "FIFO")
    for number in range(20):
        client.call(
            "SendMessage",
            messages=[
                message(topic, b"%d" % number, f"{number}", message_type=2, message_group="group-1")
            ],
        )
    stored = broker.messages(topic, at_least=20)
    # Guava's consistent hash of "group-1" over 4 queues is 1.
    assert {item.queue_id for item in stored} == {1}
    assert [item.body for item in stored] == [b"%d" % number for number in range(20)]


@pytest.mark.parametrize("is_held", [False, True], ids=["sent before", "sent while it waits"])
def test_a_receive_in_order_takes_messages_of_any_queue(
    broker: LocalBroker, client: GrpcClient, request: pytest.FixtureRequest, is_held: bool
) -> None:
    """Simple consumers name one queue of the route after the other, as with Java's proxy."""
    topic = new_topic(broker, request, "FIFO")
    group = f"{topic}-group"
    with Admin(broker.namesrv_addr) as admin:
        admin.create_group(SubscriptionGroupConfig(group_name=group, consume_message_orderly=True))
    client.consume(group, topic)

    def send() -> None:
        sent = message(topic, b"ordered", message_type=2, message_group="group-1")
        assert client.call("SendMessage", messages=[sent])["status"]["code"] == OK

    for queue_id in range(4):
        if not is_held:
            send()
        queue = {"topic": {"name": topic}, "id": queue_id, "broker": {"name": "broker-a"}}
        wait = {"seconds": 15} if is_held else {}
        call = client.begin_receive(
            **receive_request(group, topic, message_queue=queue, long_polling_timeout=wait)
        )
        if is_held:
            send()
        (item,) = [reply["message"] for reply in call if "message" in reply]
        assert item["system_properties"].get("queue_id", 0) == 1  # of "group-1", see above
        handle = item["system_properties"]["receipt_handle"]
        acked = client.call(
            "AckMessage",
            group={"name": group},
            topic={"name": topic},
            entries=[{"message_id": "01", "receipt_handle": handle}],
        )
        assert acked["status"]["code"] == OK


@pytest.mark.parametrize(
    ("system", "code"),
    [
        ({"message_type": 2, "message_group": "g"}, 40_014),
        ({"tag": " "}, 40_004),
        ({"tag": "a|b"}, 40_004),
        ({"keys": [" "]}, 40_005),
        ({"message_id": ""}, 40_009),
    ],
    ids=["type", "blank tag", "bar", "blank key", "no id"],
)
def test_a_message_with_a_mistake_is_refused(
    client: GrpcClient, system: dict[str, object], code: int
) -> None:
    reply = client.call("SendMessage", messages=[message("Normal", **system)])
    assert reply["status"]["code"] == code


def test_a_body_may_have_4_mib(client: GrpcClient) -> None:
    largest = bytes(4 * 1024 * 1024)
    assert client.call("SendMessage", messages=[message("Normal", largest)])["status"]["code"] == OK
    over = client.call("SendMessage", messages=[message("Normal", largest + b"1")])
    assert over["status"]["code"] == 41_301
    assert client.call("SendMessage", messages=[message("Normal", b"")])["status"]["code"] == 41_302


def test_a_delayed_message_is_delivered_later_or_recalled(
    broker: LocalBroker, client: GrpcClient, request: pytest.FixtureRequest
) -> None:
    topic = new_topic(broker, request, "DELAY")
    client.consume("delay-group", topic)
    due = {"seconds": broker.now_ms // 1000 + 60}
    kept, recalled = (
        client.call(
            "SendMessage",
            messages=[message(topic, key.encode(), key, message_type=3, delivery_timestamp=due)],
        )["entries"][0]
        for key in ("kept", "recalled")
    )
    assert kept["recall_handle"]
    reply = client.call(
        "RecallMessage", topic={"name": topic}, recall_handle=recalled["recall_handle"]
    )
    assert (reply["status"]["code"], reply["message_id"]) == (OK, "recalled")
    assert client.messages("delay-group", topic, long_polling_timeout={}) == []
    broker.advance(62_000)
    assert [item["body"] for item in client.messages("delay-group", topic)] == [b"kept"]
    late = {"seconds": broker.now_ms // 1000 + 4 * 86_400}
    refused = client.call(
        "SendMessage", messages=[message(topic, message_type=3, delivery_timestamp=late)]
    )
    assert refused["status"]["code"] == 40_012


@pytest.mark.parametrize("kind", [1, 2, 3, 6])
def test_a_message_without_a_transaction_has_an_id_of_one(client: GrpcClient, kind: int) -> None:
    """The first by the front, the others by its fast path."""
    more = {
        2: {"message_group": "g"},
        3: {"delivery_timestamp": {"seconds": 1}},
        6: {"priority": 1},
    }
    for key in ("0123", "4567", "89AB"):
        sent = message("Mixed", key=key, message_type=kind, **more.get(kind, {}))
        (entry,) = client.call("SendMessage", messages=[sent])["entries"]
        assert (entry["message_id"], entry["transaction_id"]) == (key, key)


@pytest.mark.parametrize("handle", ["junk", "0123"])
def test_a_transaction_that_does_not_exist_cannot_be_ended(client: GrpcClient, handle: str) -> None:
    ended = client.call(
        "EndTransaction",
        topic={"name": "Transaction"},
        message_id="01",
        transaction_id=handle,
        resolution=1,
    )
    assert ended["status"]["code"] == 50_001
    assert "cannot found transaction data" in ended["status"]["message"]


@pytest.mark.parametrize(("resolution", "count"), [(1, 1), (2, 0)], ids=["commit", "rollback"])
def test_a_transaction_is_ended(
    broker: LocalBroker,
    client: GrpcClient,
    request: pytest.FixtureRequest,
    resolution: int,
    count: int,
) -> None:
    topic = new_topic(broker, request, "TRANSACTION")
    client.produce(topic)
    half = message(topic, key="0123", message_type=4)
    entry = client.call("SendMessage", messages=[half])["entries"][0]
    assert entry["transaction_id"] == "0123"
    assert broker.messages(topic) == []
    ended = client.call(
        "EndTransaction",
        topic={"name": topic},
        message_id="0123",
        transaction_id=entry["transaction_id"],
        resolution=resolution,
        source=1,
    )
    assert ended["status"]["code"] == OK
    stored = broker.messages(topic, at_least=count)
    assert [item.properties["__transactionId__"] for item in stored] == ["0123"] * count


def test_a_producer_is_asked_for_its_decision(
    broker: LocalBroker, client: GrpcClient, request: pytest.FixtureRequest
) -> None:
    topic = new_topic(broker, request, "TRANSACTION")
    client.produce(topic)
    client.call("SendMessage", messages=[message(topic, b"half", "0123", message_type=4)])
    broker.advance(70_000)
    command = client.next_command()["recover_orphaned_transaction_command"]
    assert command["message"]["body"] == b"half"
    assert command["transaction_id"] == "0123"
    client.call(
        "EndTransaction",
        topic={"name": topic},
        message_id="01",
        transaction_id=command["transaction_id"],
        resolution=1,
        source=2,
    )
    assert [item.body for item in broker.messages(topic, at_least=1)] == [b"half"]


def test_a_failing_message_goes_to_the_dead_letters(
    broker: LocalBroker, client: GrpcClient, request: pytest.FixtureRequest
) -> None:
    topic = new_topic(broker, request)
    client.consume("dead-group", topic, kind=ClientType.PUSH_CONSUMER)
    client.call("SendMessage", messages=[message(topic, b"bad")])
    (item,) = client.messages("dead-group", topic, auto_renew=True)
    reply = client.call(
        "ForwardMessageToDeadLetterQueue",
        group={"name": "dead-group"},
        topic={"name": topic},
        receipt_handle=item["system_properties"]["receipt_handle"],
        message_id="01",
        delivery_attempt=1,
        max_delivery_attempts=1,
    )
    assert reply["status"]["code"] == OK
    assert [dead.body for dead in broker.messages("%DLQ%dead-group", at_least=1)] == [b"bad"]
    broker.advance(120_000)
    assert client.messages("dead-group", topic, long_polling_timeout={}) == []


def test_a_client_that_ends_gives_its_messages_back(
    broker: LocalBroker, client: GrpcClient, request: pytest.FixtureRequest
) -> None:
    topic = new_topic(broker, request)
    client.call("SendMessage", messages=[message(topic)])
    with GrpcClient(broker.grpc_endpoint, "leaving") as leaving:
        leaving.consume("leaving-group", topic, kind=ClientType.PUSH_CONSUMER)
        assert len(leaving.messages("leaving-group", topic, auto_renew=True)) == 1
        leaving.call("NotifyClientTermination", group={"name": "leaving-group"})
    client.consume("leaving-group", topic)
    broker.advance(2_000)
    assert len(client.messages("leaving-group", topic)) == 1


def test_a_handle_whose_time_is_over_is_refused(
    broker: LocalBroker, client: GrpcClient, request: pytest.FixtureRequest
) -> None:
    topic = new_topic(broker, request)
    group = {"name": "late-group"}
    client.consume("late-group", topic)
    client.call("SendMessage", messages=[message(topic)])
    (item,) = client.messages("late-group", topic)
    handle = item["system_properties"]["receipt_handle"]
    broker.advance(31_000)
    place = {"group": group, "topic": {"name": topic}}
    acked = client.call(
        "AckMessage", **place, entries=[{"message_id": "01", "receipt_handle": handle}]
    )
    assert acked["entries"][0]["status"]["code"] == 40_013
    changed = client.call(
        "ChangeInvisibleDuration",
        **place,
        receipt_handle=handle,
        invisible_duration={"seconds": 60},
        message_id="01",
    )
    assert changed["status"]["code"] == 40_013
    assert changed["receipt_handle"] == handle  # SDKs keep what the reply has


def test_a_consumer_receives_before_its_settings_have_come(
    broker: LocalBroker, client: GrpcClient, request: pytest.FixtureRequest
) -> None:
    topic = new_topic(broker, request)
    client.call("SendMessage", messages=[message(topic, b"early")])
    assert [item["body"] for item in client.messages("early-group", topic)] == [b"early"]
    with Admin(broker.namesrv_addr) as admin:
        members = admin.consumer_connection("early-group")
    assert members is not None
    assert list(members.subscription_table) == [topic]
