"""JSON bodies: hostile bodies are refused early, numbers are Java's, real bodies pass."""

import json
from typing import Any

import pytest
from hypothesis import given, strategies as st

from cases import each
from reput.errors import InvalidBody, LimitExceeded
from reput.format import bodies, limits
from reput.format.bodies import (
    AclInfo,
    CheckClientBody,
    DataVersion,
    HeartbeatData,
    LiteSubscription,
    LiteSubscriptionsBody,
    LockBody,
    QueryAssignmentBody,
    RegisterBrokerBody,
    RequestBody,
    RequestModeBody,
    ResetOffsets,
    SubscriptionGroupConfig,
    SubscriptionGroupList,
    SyncStateSet,
    TopicConfigList,
    TopicConfigTable,
    TopicRouteData,
    UserInfo,
)
from reput.format.pop_codec import BatchAckBody, decode_batch_ack
from reput.limits import MIB

OF_REQUESTS: list[type[RequestBody]] = [
    AclInfo,
    CheckClientBody,
    HeartbeatData,
    LiteSubscription,
    LiteSubscriptionsBody,
    LockBody,
    QueryAssignmentBody,
    RequestModeBody,
    SubscriptionGroupConfig,
    SubscriptionGroupList,
    SyncStateSet,
    TopicConfigList,
    UserInfo,
]
OF_NAME_SERVERS = [DataVersion, RegisterBrokerBody, TopicConfigTable, TopicRouteData]
KINDS: list[type] = [*OF_REQUESTS, *OF_NAME_SERVERS, BatchAckBody]


def test_the_body_of_every_request_is_limited() -> None:
    assert set(RequestBody.__subclasses__()) == set(OF_REQUESTS)
    for kind in OF_REQUESTS:
        assert kind.lenient_limit.maximum <= MIB
        assert kind.lenient_limit.maximum < kind.size_limit.maximum <= 4 * MIB


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "data",
    [
        b'\\"' * 500_000,
        b"[" * 1_000_000,
        b"{1:" * 300_000,
        b'{"' * 100_000,
        b'{\\"' * 40_000,
        b'"\\ud800' * 30_000,
        b'{{"a":1}:' * 20_000,
        b"1" * 100_000,
        b"\xff" * 100_000,
        b"null",
        b"[]",
        b"",
    ],
    ids=["quotes", "lists", "maps", "opened", "escaped", "surrogates", "object keys", "digits",
         "bytes", "null", "list", "empty"],
)  # fmt: skip
@pytest.mark.sampled(5)
def test_invalid_bodies_are_refused(kind: type, data: bytes) -> None:
    with pytest.raises((InvalidBody, LimitExceeded)) as raised:
        bodies.decode(kind, data)
    assert len(str(raised.value)) < 500


HEARTBEAT: dict[str, Any] = {
    "clientID": "10.0.0.1@1",
    "consumerDataSet": [
        {
            "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
            "consumeType": "CONSUME_PASSIVELY",
            "groupName": "g",
            "messageModel": "CLUSTERING",
            "subscriptionDataSet": [
                {"subString": "*", "subVersion": 1, "topic": "T", "codeSet": [2598919]}
            ],
        }
    ],
    "producerDataSet": [{"groupName": "p"}],
}


def changed(path: list[Any], value: Any, *, ordinals: bool = False) -> bytes:
    """Return a heartbeat with a value replaced; ordinals make the decoder use the lenient mode."""
    data = json.loads(json.dumps(HEARTBEAT))
    if ordinals:
        data["consumerDataSet"][0]["consumeType"] = 1
    place = data
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    return json.dumps(data).encode()


SUBSCRIPTION = ["consumerDataSet", 0, "subscriptionDataSet", 0]


@each("ordinals", [False, True])
@each(
    "path",
    [
        ["clientID"],
        ["consumerDataSet", 0, "groupName"],
        [*SUBSCRIPTION, "topic"],
        [*SUBSCRIPTION, "subString"],
        ["producerDataSet", 0, "groupName"],
    ],
)
def test_half_a_surrogate_pair_is_refused(path: list[Any], ordinals: bool) -> None:
    """Such a string cannot be encoded: replies, tables and registrations with it would fail."""
    whole = bodies.decode(HeartbeatData, changed(path, "\U0001f600", ordinals=ordinals))
    assert "\U0001f600" in str(whole)
    with pytest.raises(InvalidBody, match="surrogate"):
        bodies.decode(HeartbeatData, changed(path, "g\ud800", ordinals=ordinals))


def test_half_a_surrogate_pair_in_the_key_of_a_map_is_refused() -> None:
    queue = '{"brokerName":"b","queueId":0,"topic":"\\ud800"}'
    for text in (f'{{"offsetTable":{{{queue}:1}}}}', json.dumps({"offsetTable": {queue: 1}})):
        with pytest.raises(InvalidBody, match="surrogate"):
            bodies.decode(ResetOffsets, text.encode())


@pytest.mark.parametrize("ordinals", [False, True])
@pytest.mark.parametrize(
    ("path", "least", "most"),
    [
        ([*SUBSCRIPTION, "subVersion"], -(1 << 63), (1 << 63) - 1),
        ([*SUBSCRIPTION, "codeSet", 0], -(1 << 31), (1 << 31) - 1),
    ],
)
@given(
    value=st.integers() | st.sampled_from([sign * 10**n for n in (40, 4299) for sign in (1, -1)])
)
def test_numbers_have_the_ranges_of_java(
    path: list[Any],
    least: int,
    most: int,
    ordinals: bool,
    value: int,
) -> None:
    data = changed(path, value, ordinals=ordinals)
    if least <= value <= most:
        assert bodies.decode(HeartbeatData, data).consumer_data_set
        return
    with pytest.raises(InvalidBody, match=path[-2 if path[-1] == 0 else -1] + "|out of range"):
        bodies.decode(HeartbeatData, data)


@pytest.mark.parametrize("value", [10**30, -(10**30), [{"x": 1 << 63}]])
def test_raw_json_has_only_numbers_that_java_reads(value: Any) -> None:
    """Java could not read the table."""
    for fields in ({"groupRetryPolicy": {"a": value}}, {"subscriptionDataSet": [{"a": value}]}):
        data = json.dumps({"groupName": "g", **fields}).encode()
        with pytest.raises(InvalidBody, match=f"outside of {-(1 << 63)} to {(1 << 63) - 1}"):
            bodies.decode(SubscriptionGroupConfig, data)
    data = b'{"groupName":"g","groupRetryPolicy":{"a":NaN}}'
    with pytest.raises(InvalidBody, match="nan"):
        bodies.decode(SubscriptionGroupConfig, data)


def test_long_bodies_are_read_as_json_and_refused_in_the_dialect() -> None:
    topics = [{"subString": "*", "subVersion": 1, "topic": f"T{i}"} for i in range(10_000)]
    long = changed(["consumerDataSet", 0, "subscriptionDataSet"], topics)
    assert len(long) > limits.LENIENT_JSON_BYTES.maximum
    assert (
        len(bodies.decode(HeartbeatData, long).consumer_data_set[0].subscription_data_set) == 10_000
    )
    dialect = changed(["consumerDataSet", 0, "subscriptionDataSet"], topics, ordinals=True)
    with pytest.raises(LimitExceeded, match="lenient_json_bytes") as raised:
        bodies.decode(HeartbeatData, dialect)
    assert raised.value.limit == limits.LENIENT_JSON_BYTES.name
    with pytest.raises(LimitExceeded, match="body_bytes"):
        bodies.decode(HeartbeatData, long + b" " * (4 << 20))


def test_a_long_reply_in_the_dialect_is_read() -> None:
    """Java's brokers write long tables in the dialect for topics with many queues: {{...}:5}."""
    entries = (f'{{"brokerName":"b","queueId":{i},"topic":"T"}}:{i}' for i in range(10_000))
    data = f'{{"offsetTable":{{{",".join(entries)}}}}}'.encode()
    assert len(data) > limits.LENIENT_JSON_BYTES.maximum
    assert len(bodies.decode(ResetOffsets, data).offset_table) == 10_000


@pytest.mark.parametrize(
    "data", [b'{"x":' + b"[" * 100_000, b'{"x":' + b'{"a":' * 25_000], ids=["lists", "maps"]
)
def test_deep_nesting_in_an_ignored_member_is_refused(data: bytes) -> None:
    """A deeply nested member that is ignored is refused; the decoder raised RecursionError."""
    for kind in KINDS:
        with pytest.raises((InvalidBody, LimitExceeded)):
            bodies.decode(kind, data)
    with pytest.raises((InvalidBody, LimitExceeded)):
        decode_batch_ack(data)
