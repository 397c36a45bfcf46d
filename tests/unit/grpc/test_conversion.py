"""Messages between 5.x clients and brokers, handles and transaction ids."""

from typing import Any

import pytest

from reput.format import properties as props
from reput.format.message import Host, StoredMessage
from reput.grpc import conversion
from reput.grpc.conversion import Receipt
from reput.grpc.statuses import StatusError
from reput.grpc.wire import grpc_messages, protobuf
from reput.grpc.wire.grpc_messages import Encoding, MessageType

NOW_MS = 1_700_000_000_000
ADDRESS = ("192.0.2.7", 4711)
ID = "01" + "A" * 32


def _sent(**system: Any) -> dict[str, Any]:
    return {
        "topic": {"name": "Orders", "resource_namespace": "ignored"},
        "user_properties": {"color": "red"},
        "system_properties": {
            "message_id": ID,
            "born_timestamp": {"seconds": 1_699_999_999, "nanos": 5_000_000},
            "born_host": "laptop",
            **system,
        },
        "body": b"hello",
    }


# --- sends ------------------------------------------------------------------------


def test_plain_message() -> None:
    message = _sent(
        tag="TagA",
        keys=["k1", "k2"],
        message_type=MessageType.NORMAL,
        body_digest={"type": 1, "checksum": "wrong"},
        queue_id=9,
    )
    outgoing = conversion.outgoing(message, ADDRESS, NOW_MS)
    assert list(outgoing.properties.items()) == [
        ("color", "red"),
        ("TAGS", "TagA"),
        ("KEYS", "k1 k2"),
        ("UNIQ_KEY", ID),
        ("RECONSUME_TIME", "0"),
        ("PGROUP", "Orders"),
        ("__BORNHOST", "laptop"),
        ("BORN_TIMESTAMP", "1699999999005"),
    ]
    assert (outgoing.topic, outgoing.body, outgoing.message_id) == ("Orders", b"hello", ID)
    assert (outgoing.sys_flag, outgoing.born_ms) == (0, 1_699_999_999_005)
    assert (outgoing.message_type, outgoing.sharding_key) == ("NORMAL", None)


def test_texts_that_a_property_string_cannot_hold_are_left_out() -> None:
    message = _sent(tag="", keys=[], message_group="", trace_context="")
    message["user_properties"] = {"": "x", "empty": ""}
    outgoing = conversion.outgoing(message, ADDRESS, NOW_MS)
    assert list(outgoing.properties) == [
        "UNIQ_KEY", "RECONSUME_TIME", "PGROUP", "__BORNHOST", "BORN_TIMESTAMP",
    ]  # fmt: skip
    assert props.decode(props.encode(outgoing.properties)) == outgoing.properties


def test_peer_and_clock_stand_for_born_host_and_time() -> None:
    message = {"topic": {"name": "T"}, "system_properties": {"message_id": ID}, "body": b"b"}
    outgoing = conversion.outgoing(message, ADDRESS, NOW_MS)
    assert outgoing.properties["__BORNHOST"] == "192.0.2.7:4711"
    assert outgoing.born_ms == NOW_MS
    outgoing = conversion.outgoing(message, ("fd00::1", 4711), NOW_MS)
    assert outgoing.properties["__BORNHOST"] == "[fd00::1]:4711"


@pytest.mark.parametrize(
    ("system", "properties", "sys_flag", "message_type"),
    [
        (
            {
                "message_type": MessageType.TRANSACTION,
                "orphaned_transaction_recovery_duration": {"seconds": 30, "nanos": 999},
            },
            {"TRAN_MSG": "true", "CHECK_IMMUNITY_TIME_IN_SECONDS": "30"},
            4,
            "TRANSACTION",
        ),
        (
            {"delivery_timestamp": {"seconds": 1_700_000_009, "nanos": 1_000_000}},
            {"TIMER_DELIVER_MS": "1700000009001"},
            0,
            "DELAY",
        ),
        ({"message_group": "g"}, {"__SHARDINGKEY": "g"}, 0, "FIFO"),
        ({"priority": 0}, {"_SYS_MSG_PRIORITY_": "0"}, 0, "PRIORITY"),
        ({"lite_topic": "l"}, {"__LITE_TOPIC": "l"}, 0, "LITE"),
        ({"body_encoding": Encoding.GZIP}, {}, 1, "NORMAL"),
        ({"trace_context": "t"}, {"TRACE_CONTEXT": "t"}, 0, "NORMAL"),
        # The properties decide, not the type that the client names.
        ({"message_type": MessageType.FIFO}, {}, 0, "NORMAL"),
    ],
)
def test_types_of_messages(
    system: dict[str, Any], properties: dict[str, str], sys_flag: int, message_type: str
) -> None:
    outgoing = conversion.outgoing(_sent(**system), ADDRESS, NOW_MS)
    plain = conversion.outgoing(_sent(), ADDRESS, NOW_MS).properties
    assert outgoing.properties == {**plain, **properties}
    assert (outgoing.sys_flag, outgoing.message_type) == (sys_flag, message_type)


def test_group_selects_the_queue_before_the_lite_topic() -> None:
    keys = [
        conversion.outgoing(_sent(**system), ADDRESS, NOW_MS).sharding_key
        for system in ({"message_group": "g", "lite_topic": "l"}, {"lite_topic": "l"}, {})
    ]
    assert keys == ["g", "l", None]


@pytest.mark.parametrize(
    ("properties", "expected"),
    [
        ({"TRAN_MSG": "TRUE", "DELAY": "1", "__SHARDINGKEY": "g"}, MessageType.TRANSACTION),
        ({"TRAN_MSG": "false", "DELAY": "1", "__SHARDINGKEY": "g"}, MessageType.DELAY),
        ({"TIMER_DELAY_SEC": "1"}, MessageType.DELAY),
        ({"TIMER_DELAY_MS": "1"}, MessageType.DELAY),
        ({"__SHARDINGKEY": "g", "_SYS_MSG_PRIORITY_": "1"}, MessageType.FIFO),
        ({"_SYS_MSG_PRIORITY_": "1", "__LITE_TOPIC": "l"}, MessageType.PRIORITY),
        ({"__LITE_TOPIC": "l"}, MessageType.LITE),
        ({}, MessageType.NORMAL),
    ],
)
def test_first_type_that_fits_is_that_of_a_message(
    properties: dict[str, str], expected: MessageType
) -> None:
    assert conversion.type_of(properties) is expected


# --- deliveries -------------------------------------------------------------------


def _stored(**changes: Any) -> StoredMessage:
    fields: dict[str, Any] = {
        "topic": "Orders",
        "body": b"hello",
        "queue_id": 3,
        "queue_offset": 12,
        "physical_offset": 4096,
        "born_timestamp": 1_699_999_999_005,
        "born_host": Host(bytes([192, 0, 2, 7]), 4711),
        "store_timestamp": NOW_MS,
        "store_host": Host(bytes([192, 0, 2, 1]), 10911),
    }
    return StoredMessage(**{**fields, **changes})


def test_delivered_message() -> None:
    properties = {
        "color": "red", "TAGS": "TagA", "KEYS": "k1 k2", "UNIQ_KEY": ID, "RECONSUME_TIME": "0",
        "PGROUP": "Orders", "__BORNHOST": "laptop", "BORN_TIMESTAMP": "1", "__SHARDINGKEY": "g",
        "TRACE_CONTEXT": "t", "INNER_MULTI_DISPATCH": "q", "WAIT": "true", "CLUSTER": "c",
    }  # fmt: skip
    message = conversion.incoming(
        _stored(properties=properties, reconsume_times=2),
        receipt_handle="1 2 3",
        invisible_ms=60_500,
    )
    assert message == {
        "topic": {"name": "Orders"},
        "user_properties": {
            "color": "red",
            "__SHARDINGKEY": "g",
            "TRACE_CONTEXT": "t",
            "INNER_MULTI_DISPATCH": "q",
        },
        "system_properties": {
            "tag": "TagA",
            "keys": ["k1", "k2"],
            "message_id": ID,
            # echo -n hello | md5sum
            "body_digest": {"type": 2, "checksum": "5D41402ABC4B2A76B9719D911017C592"},
            "body_encoding": 1,
            "message_type": 2,
            "born_timestamp": {"seconds": 1_699_999_999, "nanos": 5_000_000},
            "born_host": "laptop",
            "store_timestamp": {"seconds": 1_700_000_000, "nanos": 0},
            "store_host": "192.0.2.1:10911",
            "queue_id": 3,
            "queue_offset": 12,
            "delivery_attempt": 3,
            "message_group": "g",
            "trace_context": "t",
            "receipt_handle": "1 2 3",
            "invisible_duration": {"seconds": 60, "nanos": 500_000_000},
        },
        "body": b"hello",
    }
    encoded = protobuf.encode(grpc_messages.MESSAGE, message)
    del message["system_properties"]["store_timestamp"]["nanos"]  # a zero
    assert protobuf.decode(grpc_messages.MESSAGE, encoded) == message


def test_message_of_an_old_client() -> None:
    system = conversion.incoming(_stored(sys_flag=0x1 | 0x200), delivery_attempt=7)[
        "system_properties"
    ]
    assert system["message_id"] == "C000020100002A9F0000000000001000"
    assert system["born_host"] == "192.0.2.7"
    assert system["body_encoding"] == Encoding.GZIP
    assert system["delivery_attempt"] == 7
    assert not {"tag", "keys", "receipt_handle", "priority", "invisible_duration"} & set(system)


def test_message_of_a_retry_topic_has_the_topic_that_is_read() -> None:
    message = conversion.incoming(_stored(topic="%RETRY%group_Orders"), topic="Orders")
    assert message["topic"] == {"name": "Orders"}


@pytest.mark.parametrize(
    ("properties", "name", "value"),
    [
        (
            {"TIMER_DELIVER_MS": "1700000009001"},
            "delivery_timestamp",
            {"seconds": 1_700_000_009, "nanos": 1_000_000},
        ),
        ({"TIMER_DELIVER_MS": "soon"}, "delivery_timestamp", None),
        ({"_SYS_MSG_PRIORITY_": "5"}, "priority", 5),
        ({"_SYS_MSG_PRIORITY_": "-1"}, "priority", None),
        ({"_SYS_MSG_PRIORITY_": "9999999999"}, "priority", None),
        ({"__LITE_TOPIC": "l"}, "lite_topic", "l"),
        ({"DLQ_ORIGIN_TOPIC": "T"}, "dead_letter_queue", None),
        (
            {"DLQ_ORIGIN_TOPIC": "T", "DLQ_ORIGIN_MESSAGE_ID": "I"},
            "dead_letter_queue",
            {"topic": "T", "message_id": "I"},
        ),
    ],
)
def test_properties_of_a_delivered_message(
    properties: dict[str, str], name: str, value: Any
) -> None:
    system = conversion.incoming(_stored(properties=properties))["system_properties"]
    assert system.get(name) == value


def test_born_host_of_ipv6_has_no_brackets() -> None:
    born = Host(bytes.fromhex("fd000000000000000000000000000002"), 1)
    system = conversion.incoming(_stored(born_host=born))["system_properties"]
    assert system["born_host"] == "fd00:0:0:0:0:0:0:2"


# --- handles and ids --------------------------------------------------------------

HANDLE = "100 1700000000000 60000 0 0 broker-a 3 105 8192"


def test_receipt() -> None:
    receipt = Receipt.parse(HANDLE)
    handle = receipt.handle
    assert (handle.start_offset, handle.pop_ms, handle.invisible_ms) == (100, NOW_MS, 60_000)
    assert (handle.revive_queue_id, handle.kind, handle.broker_name) == (0, "0", "broker-a")
    assert (handle.queue_id, handle.queue_offset, receipt.physical_offset) == (3, 105, 8192)
    assert str(receipt) == HANDLE
    assert str(handle) == HANDLE.rpartition(" ")[0]


def test_receipt_without_a_physical_offset() -> None:
    receipt = Receipt.parse(HANDLE.rpartition(" ")[0])
    assert receipt.physical_offset == -1
    assert Receipt.parse(str(receipt)) == receipt


def test_changed_receipt_of_javas_local_proxy_is_of_the_messages_checkpoint() -> None:
    changed = Receipt.parse("100 1700000000500 10000 1 0 broker-a 3 105 0 8192")
    assert (changed.handle.start_offset, changed.physical_offset) == (105, 8192)


def test_receipt_expires_when_its_invisible_time_ends() -> None:
    receipt = Receipt.parse(HANDLE)
    receipt.check(NOW_MS + 59_999)
    with pytest.raises(StatusError) as caught:
        receipt.check(NOW_MS + 60_000)
    assert (caught.value.code, caught.value.message) == (40013, "receipt handle is expired")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "nonsense",
        "1 2 3 0 0 broker-a 3",
        "1 2 3 0 5 broker-a 3 4 5",
        "x 2 3 0 0 broker-a 3 4 5",
        "-1 2 3 0 0 broker-a 3 4 5",
        "1 2 3 0 0  3 4 5",
        "1 2 3 0 0 broker-a 3 4 5\n",
        "1 2 3 0 0 broker-a 3 4 5 6 7",
        "1" * 5000 + " 2 3 0 0 broker-a 3 4 5",
        "1 2 3 0 0 broker-a 3 ٤ 5",
    ],
)
def test_texts_that_are_no_handles_are_refused(text: str) -> None:
    with pytest.raises(StatusError, match="receipt handle") as caught:
        Receipt.parse(text)
    assert caught.value.code == 40013
    assert len(caught.value.message) < 500


def test_broker_of_a_recall_handle() -> None:
    # base64url of "v1 Orders broker-a 1700000009001 KEY"
    handle = "djEgT3JkZXJzIGJyb2tlci1hIDE3MDAwMDAwMDkwMDEgS0VZ"
    assert conversion.broker_of_recall_handle(handle) == "broker-a"
    with pytest.raises(StatusError) as caught:
        conversion.broker_of_recall_handle("!")
    assert (caught.value.code, caught.value.message) == (50001, "recall handle is invalid")
