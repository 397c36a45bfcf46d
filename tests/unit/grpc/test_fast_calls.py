"""The fast path of the front: the front without it is its reference, with the same requests."""

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, strategies as st

from raw_grpc import RawGrpc
from reput.grpc.kernels import native
from reput.grpc.wire import protobuf
from reput.grpc.wire.grpc_messages import METHODS
from reput.testing import LocalBroker

pytestmark = pytest.mark.skipif(not native.is_compiled(), reason="there are no compiled kernels")

OK = 20_000
TOPIC, FIFO = "Topic", "Fifo"
_ids = itertools.count()


class Pair:
    """Two brokers, with and without the fast path, and a connection to each."""

    def __init__(self, fast: LocalBroker, slow: LocalBroker) -> None:
        self.brokers = fast, slow
        self.connections = [RawGrpc(broker.grpc_endpoint) for broker in self.brokers]
        for connection in self.connections:
            warm_up(connection)

    def fast_count(self) -> int:
        """Return the number of sends that were stored by the broker's fast path."""
        return self.brokers[0]._brokers[0].parts.fast_counts.sends


@pytest.fixture(scope="module")
def pair() -> Iterator[Pair]:
    with LocalBroker() as fast, LocalBroker(settings={"reputFastPath": "false"}) as slow:
        for broker in (fast, slow):
            broker.create_topic(TOPIC)
            broker.create_topic(FIFO, message_type="FIFO")
        made = Pair(fast, slow)
        yield made
        for connection in made.connections:
            connection.close()


def message(topic: str = TOPIC, body: bytes = b"body", **more: Any) -> dict[str, Any]:
    """Return a Message; ``user_properties`` and system properties by name."""
    properties = more.pop("user_properties", {})
    system = {
        "message_id": f"id-{next(_ids)}",
        "message_type": 1,
        "body_encoding": 1,
        "born_timestamp": {"seconds": 1_790_000_000, "nanos": 5_000_000},
        **more,
    }
    return {
        "topic": {"name": topic},
        "user_properties": properties,
        "system_properties": {name: value for name, value in system.items() if value is not None},
        "body": body,
    }


def warm_up(connection: RawGrpc) -> None:
    """Make the connection a busy one, and the topic a known one."""
    request = {"messages": [message(message_id="warm-up")]}
    for _ in range(2):
        for (reply,) in connection.calls(*[("SendMessage", request)] * 20):
            assert reply["status"]["code"] == OK


def stored(broker: LocalBroker, topic: str) -> dict[str, Any]:
    """Return the stored fields of each message, by its id."""
    return {
        received.properties["UNIQ_KEY"]: (
            received.stored.body,
            {k: v for k, v in received.properties.items() if k != "__BORNHOST" or ":" not in v},
            received.stored.sys_flag,
            received.stored.born_timestamp,
            received.stored.flag,
            received.stored.reconsume_times,
        )
        for received in broker.messages(topic)
    }


def without_places(reply: dict[str, Any]) -> dict[str, Any]:
    """Return a reply without queue offsets: queues are in turn, and so differ."""
    entries = [
        {name: value for name, value in entry.items() if name not in ("offset", "transaction_id")}
        for entry in reply.get("entries", ())
    ]
    return {**reply, "entries": entries}


def check_stores(pair: Pair) -> None:
    """Check that both brokers have stored the same."""
    for topic in (TOPIC, FIFO):
        fast, slow = (stored(broker, topic) for broker in pair.brokers)
        assert fast == slow


def check_same(pair: Pair, requests: list[dict[str, Any] | bytes]) -> list[dict[str, Any]]:
    """Send the same requests to both, in one write; check that the replies are the same."""
    replies = [
        [
            without_places(reply)
            for (reply,) in connection.calls(*[("SendMessage", request) for request in requests])
        ]
        for connection in pair.connections
    ]
    assert replies[0] == replies[1]
    return replies[0]


def test_plain_sends_take_the_fast_path(pair: Pair) -> None:
    before = pair.fast_count()
    requests: list[dict[str, Any] | bytes] = [
        {"messages": [message(body=bytes([65 + i]) * (i + 1), tag=f"t{i}", keys=["a", f"k{i}"],
                              born_host="me", user_properties={"name": f"v{i}", "empty": ""})]}
        for i in range(50)
    ]  # fmt: skip
    replies = check_same(pair, requests)
    assert all(reply["status"]["code"] == OK for reply in replies)
    assert pair.fast_count() - before == 50
    check_stores(pair)


def test_offsets_are_those_of_the_queues(pair: Pair) -> None:
    requests = [("SendMessage", {"messages": [message(body=b"%d" % i)]}) for i in range(40)]
    for broker, connection in zip(pair.brokers, pair.connections, strict=True):
        offsets = {
            reply["entries"][0]["message_id"]: reply["entries"][0].get("offset", 0)
            for (reply,) in connection.calls(*requests)
        }
        received = {
            each.properties["UNIQ_KEY"]: each.queue_offset for each in broker.messages(TOPIC)
        }
        assert offsets == {key: received[key] for key in offsets}


@pytest.mark.parametrize(
    ("changed", "code"),
    [
        ({"body": b""}, 41_302),
        ({"tag": "a|b"}, 40_004),
        ({"tag": " "}, 40_004),
        ({"keys": [" "]}, 40_005),
        ({"message_id": ""}, 40_009),
        ({"message_id": None}, 40_009),
        ({"user_properties": {"TAGS": "x"}}, 40_007),
        ({"user_properties": {"__BORNHOST": "x"}}, 40_007),
        ({"user_properties": {"a\x7f": "x"}}, 40_007),
        ({"user_properties": {"a": "x\x01"}}, 40_007),
        ({"user_properties": {"__SHARDINGKEY": "x"}}, 40_014),
        ({"message_group": "g"}, 40_014),
        ({"message_type": 4}, 40_014),
        ({"delivery_timestamp": {"seconds": 1}}, 40_014),
        ({"topic": FIFO}, 40_014),
        ({"topic": "NoSuchTopic"}, 40_402),
        ({"topic": "TBW102"}, 40_002),
        ({"topic": ""}, 40_002),
    ],
)
def test_refusals_are_those_of_the_front(pair: Pair, changed: dict[str, Any], code: int) -> None:
    odd = {"messages": [message(**changed)]}
    replies = check_same(pair, [{"messages": [message()]}, odd, {"messages": [message()]}])
    assert [reply["status"]["code"] for reply in replies] == [OK, code, OK]


texts = st.one_of(
    st.sampled_from(["", "a", "A_B", "x y", " ", "TAGS", "DELAY", "UNIQ_KEY", "TRACE_CONTEXT",
                     "名", "ORIGIN_X", "x" * 130, "a|b", "\x01", "CLUSTER", "WAIT", "_x"]),
    st.text(max_size=5),
)  # fmt: skip
optional_texts = st.one_of(st.none(), texts)
any_message = st.fixed_dictionaries(
    {
        "body": st.sampled_from([b"", b"x", b"y" * 300]),
        "user_properties": st.dictionaries(texts, texts, max_size=4),
        "tag": optional_texts,
        "keys": st.one_of(st.none(), st.lists(texts, min_size=1, max_size=3)),
        "born_host": optional_texts,
        "body_encoding": st.sampled_from([None, 0, 1, 2]),
        "message_type": st.sampled_from([None, 0, 1, 2, 3]),
        "born_timestamp": st.sampled_from(
            [{"seconds": 5}, {"seconds": 1_790_000_000, "nanos": 999_999_999}, {"nanos": 1}]
        ),
        "body_digest": st.sampled_from([None, {"type": 1, "checksum": "AB"}, {"type": 3}]),
        "queue_id": st.sampled_from([None, 0, 3]),
        "trace_context": st.sampled_from([None, None, "trace"]),
        "message_group": st.sampled_from([None, None, None, "group"]),
        "topic": st.sampled_from([TOPIC, TOPIC, TOPIC, FIFO]),
    }
)


def test_any_sends_have_the_results_of_the_front(pair: Pair) -> None:
    @given(
        st.lists(any_message, min_size=1, max_size=6),
        st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), max_size=3),
    )
    def send(some: list[dict[str, Any]], damages: list[tuple[int, int]]) -> None:
        table = METHODS["SendMessage"].request
        requests: list[dict[str, Any] | bytes] = [
            protobuf.encode(table, {"messages": [message(**values)]}) for values in some
        ]
        if damages:
            damaged = bytearray(requests[-1])
            for position, byte in damages:
                damaged[position % len(damaged)] = byte
            requests[-1] = bytes(damaged)
        check_same(pair, requests)

    send()
    check_stores(pair)


# --- receipts -----------------------------------------------------------------------------------


def receive(group: str, topic: str) -> tuple[str, dict[str, Any]]:
    request = {
        "group": {"name": group},
        "message_queue": {"topic": {"name": topic}, "id": -1, "broker": {"name": "broker-a"}},
        "filter_expression": {"type": 1, "expression": "*"},
        "batch_size": 32,
        "invisible_duration": {"seconds": 30},
        "long_polling_timeout": {"seconds": 1},
    }
    return "ReceiveMessage", request


def ack(group: str, topic: str, received: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    system = received["system_properties"]
    entry = {"message_id": system["message_id"], "receipt_handle": system["receipt_handle"]}
    return "AckMessage", {
        "group": {"name": group}, "topic": {"name": topic}, "entries": [entry],
    }  # fmt: skip


def all_of(connection: RawGrpc, group: str, topic: str, count: int) -> list[dict[str, Any]]:
    """Receive a number of messages."""
    received: list[dict[str, Any]] = []
    while len(received) < count:
        (replies,) = connection.calls(receive(group, topic))
        assert replies[0]["status"]["code"] == OK
        assert "delivery_timestamp" in replies[-1]
        received += [reply["message"] for reply in replies if "message" in reply]
    return received


def shown(received: dict[str, Any]) -> dict[str, Any]:
    """Return a message without what differs between two brokers."""
    varying = ("store_timestamp", "store_host", "receipt_handle", "queue_id", "queue_offset")
    system = received["system_properties"]
    host = {"born_host": system["born_host"].rpartition(":")[0] or system["born_host"]}
    kept = {name: value for name, value in system.items() if name not in varying}
    return {**received, "system_properties": {**kept, **host}}


def test_messages_are_delivered_and_acknowledged_as_by_the_front(pair: Pair) -> None:
    group, topic = "receivers", "Delivered"
    sent = [
        message(topic, b"plain"),
        message(topic, b"tagged", tag="t", keys=["a", "b"], born_host="host"),
        message(topic, b"", user_properties={"a": "b"}) | {"body": b"x" * 3000},
        message(topic, b"\xff" * 200, user_properties={"name": "名"}),
        message(topic, b"packed", body_encoding=2),
    ]
    results = []
    for broker, connection in zip(pair.brokers, pair.connections, strict=True):
        broker.create_topic(topic)
        connection.calls(*[receive(group, topic)] * 4)  # the group begins at the end
        for (reply,) in connection.calls(
            *[("SendMessage", {"messages": [first]}) for first in sent]
        ):
            assert reply["status"]["code"] == OK
        received = all_of(connection, group, topic, len(sent))
        results.append({each["system_properties"]["message_id"]: shown(each) for each in received})
        acks = [ack(group, topic, each) for each in received]
        for _ in range(2):  # the second time by the fast path; an ack may be repeated
            for (_, request), (reply,) in zip(acks, connection.calls(*acks), strict=True):
                assert reply["status"] == {"code": OK, "message": "OK"}
                (entry,) = reply["entries"]
                assert entry == {**request["entries"][0], "status": reply["status"]}
        broker.advance(31_000)
        (replies,) = connection.calls(receive(group, topic))
        assert replies[0]["status"]["code"] == 40_401, "all are acknowledged"
        for (reply,) in connection.calls(*acks):
            assert reply["status"]["code"] == 40_013, "the handles have expired"
    assert results[0] == results[1]
    assert len(results[0]) == len(sent)


def test_odd_acks_have_the_answers_of_the_front(pair: Pair) -> None:
    group, topic = "odd-acks", "OddAcks"
    answers = []
    for broker, connection in zip(pair.brokers, pair.connections, strict=True):
        broker.create_topic(topic)
        connection.calls(*[receive(group, topic)] * 4)
        connection.call("SendMessage", messages=[message(topic)])
        (first,) = all_of(connection, group, topic, 1)
        name, request = ack(group, topic, first)
        handle = request["entries"][0]["receipt_handle"]
        connection.calls(*[(name, request)] * 4)
        odd = [
            *(handle.replace("broker-a", "broker-b"), "", "text", handle + " 1", "0" + handle),
            handle.rpartition(" ")[0],
        ]
        calls = [
            (name, {**request, "entries": [{"message_id": "m", "receipt_handle": text}]})
            for text in odd
        ]
        calls.append((name, {**request, "entries": []}))
        calls.append((name, {**request, "entries": request["entries"] * 2}))
        calls.append((name, {**request, "topic": {"name": "NoSuchTopic"}}))
        calls.append((name, {**request, "group": {"name": "no group"}}))
        answers.append([reply["status"]["code"] for (reply,) in connection.calls(*calls)])
    assert answers[0] == answers[1]


def test_other_calls_go_through_the_front_beside_fast_ones(pair: Pair) -> None:
    connection = pair.connections[0]
    replies = connection.calls(
        ("SendMessage", {"messages": [message()]}),
        ("QueryRoute", {"topic": {"name": TOPIC}}),
        ("SendMessage", {"messages": [message(), message()]}),
        ("RecallMessage", {}),
        ("SendMessage", {"messages": [message()]}),
    )
    assert [reply["status"]["code"] for (reply,) in replies] == [OK, OK, OK, 40_002, OK]
    assert len(replies[2][0]["entries"]) == 2


def test_a_changed_topic_is_noticed() -> None:
    with LocalBroker() as broker, RawGrpc(broker.grpc_endpoint) as connection:
        broker.create_topic(TOPIC)
        warm_up(connection)
        broker.create_topic(TOPIC, message_type="FIFO")
        request = ("SendMessage", {"messages": [message()]})
        assert [reply["status"]["code"] for (reply,) in connection.calls(*[request] * 3)] == [
            40_014
        ] * 3


def test_replies_that_the_broker_holds_back_come_later() -> None:
    """With SYNC_FLUSH the broker replies after the disk; a restart closes its connections."""
    with (
        LocalBroker(settings={"flushDiskType": "SYNC_FLUSH"}) as broker,
        RawGrpc(broker.grpc_endpoint) as connection,
    ):
        broker.create_topic(TOPIC)
        warm_up(connection)
        requests = [("SendMessage", {"messages": [message()]}) for _ in range(30)]
        replies = connection.calls(*requests)
        assert [reply["status"]["code"] for (reply,) in replies] == [OK] * 30
        assert broker._brokers[0].parts.fast_counts.sends >= 30
        assert len(broker.messages(TOPIC)) == 70
