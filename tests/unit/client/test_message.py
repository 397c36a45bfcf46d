import dataclasses
import struct
import zlib
from typing import Any

import pytest
from hypothesis import given, strategies as st

from reput.client.message import (
    Message,
    ReceivedMessage,
    check_group,
    check_topic,
    property_text,
    received,
)
from reput.client.pop_consumer import PopConsumer
from reput.client.producer import Producer
from reput.client.pull_consumer import PullConsumer
from reput.client.push_consumer import PushConsumer
from reput.errors import CorruptRecord, InvalidBody, InvalidOption
from reput.format import batch, java, message as records, properties as props, sys_flag as flags
from reput.format.body import crc
from reput.format.message import Host, StoredMessage
from reput.testing import LocalBroker

WORDS = st.text(
    st.characters(exclude_characters="\x01\x02 ", exclude_categories=["Cs"]), min_size=1, max_size=9
)
HOST = Host(bytes((192, 0, 2, 1)), 10911)


def record(body: bytes = b"hello", **fields: object) -> bytes:
    properties = fields.pop("properties", {})
    assert isinstance(properties, dict)
    values = {
        "topic": "T",
        "body": body,
        "queue_id": 3,
        "queue_offset": 77,
        "physical_offset": 1234,
        "born_timestamp": 1_700_000_000_000,
        "born_host": HOST,
        "store_timestamp": 1_700_000_000_005,
        "store_host": HOST,
        "body_crc": crc(body),
        "property_bytes": props.encode(properties),
        **fields,
    }
    return records.encode(StoredMessage(**values))  # type: ignore[arg-type]


# --- messages to send ------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"delay_ms": 5}, {"TIMER_DELAY_MS": "5"}),
        ({"deliver_at_ms": 1_700_000_000_000}, {"TIMER_DELIVER_MS": "1700000000000"}),
        ({"properties": {"TIMER_DELAY_SEC": "7"}}, {"TIMER_DELAY_SEC": "7"}),
        ({"delay_ms": 0, "deliver_at_ms": 0}, {}),
    ],
)
def test_delivery_times_become_properties(
    fields: dict[str, object], expected: dict[str, str]
) -> None:
    message = Message("T", b"x", **fields)  # type: ignore[arg-type]
    assert props.decode(property_text(message, None).encode()) == expected


@given(
    st.none() | WORDS,
    st.lists(WORDS, max_size=4),
    st.dictionaries(WORDS.filter(lambda name: name.lower() == name), WORDS, max_size=4),
    st.integers(0, 18),
    st.booleans(),
)
def test_property_strings_can_be_decoded(
    tags: str | None, keys: list[str], more: dict[str, str], delay_level: int, wait: bool
) -> None:
    message = Message("T", b"x", tags, keys, more, delay_level, wait=wait)
    expected = {"UNIQ_KEY": "id", **more}
    if tags:
        expected["TAGS"] = tags
    if keys:
        expected["KEYS"] = " ".join(keys)
    if delay_level:
        expected["DELAY"] = str(delay_level)
    if not wait:
        expected["WAIT"] = "false"

    assert props.decode(java.encode_utf8(property_text(message, "id"))) == expected


def test_a_message_may_set_its_unique_key() -> None:
    message = Message("T", b"x", properties={"UNIQ_KEY": "mine"})

    assert property_text(message, None) == "UNIQ_KEY\x01mine\x02"


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"tags": "a\x01b"}, "x01"),
        ({"keys": "a\x02b"}, "x01"),
        ({"keys": ["a b"]}, "no spaces"),
        ({"keys": ["a", ""]}, "not empty"),
        ({"properties": {"": "a"}}, "not empty|none of it empty"),
        ({"properties": {"a": ""}}, "none of it empty"),
        ({"properties": {"a": 5}}, "text"),
        ({"properties": {"a\x02": "b"}}, "x01"),
        ({"properties": {"TAGS": "b"}}, "tags= instead"),
        ({"properties": {"DELAY": "1"}}, "delay_level= instead"),
        ({"delay_level": -1}, "from 1"),
        ({"properties": {"TIMER_DELAY_MS": "1"}}, "delay_ms= instead"),
        ({"properties": {"TIMER_DELIVER_MS": "1"}}, "deliver_at_ms= instead"),
        ({"delay_ms": -1}, "a whole number of milliseconds"),
        ({"delay_ms": 5, "deliver_at_ms": 5}, "one of delay_level=, delay_ms= and"),
        ({"delay_level": 1, "deliver_at_ms": 5}, "one of delay_level=, delay_ms= and"),
        ({"tags": "x" * 32_767}, "at most 32767 bytes"),
        ({"tags": "€" * 11_000}, "at most 32767 bytes"),
    ],
)
def test_properties_that_do_not_fit_a_record_are_refused(
    fields: dict[str, object], text: str
) -> None:
    with pytest.raises(InvalidOption, match=text):
        property_text(Message("T", b"x", **fields), "id")  # type: ignore[arg-type]


@pytest.mark.parametrize("topic", ["T", "a|b%c-d_9", "x" * 127, "%RETRY%group"])
def test_valid_topics_pass_and_a_blank_makes_them_invalid(topic: str) -> None:
    check_topic(topic)
    with pytest.raises(InvalidOption, match="topic"):
        check_topic(f"{topic} ")


@pytest.mark.parametrize(
    "topic", ["", "x" * 128, "a b", "ä", "a/b", "T\n", "SCHEDULE_TOPIC_XXXX", "OFFSET_MOVED_EVENT"]
)
def test_invalid_topics_are_refused(topic: str) -> None:
    with pytest.raises(InvalidOption, match="topic"):
        check_topic(topic)


@pytest.mark.parametrize("topic", ["", "x" * 256, "bad topic!", "a/b"])
async def test_a_subscription_to_an_invalid_topic_is_refused(topic: str) -> None:
    namesrv = "127.0.0.1:9"
    push = PushConsumer("C", namesrv=namesrv, listener=lambda *_: None)
    for consumer in (push, PullConsumer("C", namesrv=namesrv), PopConsumer("C", namesrv=namesrv)):
        for subscribe in (consumer.subscribe(topic), consumer.subscribe_sql(topic, "a > 5")):
            with pytest.raises(InvalidOption, match="topic"):
                await subscribe


def test_invalid_groups_are_refused() -> None:
    check_group("group", "x" * 255)
    for bad in ("", "x" * 256, "a b"):
        with pytest.raises(InvalidOption, match="group"):
            check_group("group", bad)


# --- received messages ------------------------------------------------------------


def test_a_received_message_has_the_fields_of_its_record() -> None:
    properties = {"TAGS": "new", "KEYS": "k1 k2", "UNIQ_KEY": "id", "DELAY": "3"}
    (message,) = received(record(properties=properties, reconsume_times=2, flag=9), "broker-a")

    assert message.queue_offset == 77
    assert message.size_bytes == len(record(properties=properties))
    assert (message.topic, message.queue_id, message.physical_offset) == ("T", 3, 1234)
    assert (message.tags, message.keys, message.message_id) == ("new", ["k1", "k2"], "id")
    assert (message.delay_level, message.reconsume_times, message.flag) == (3, 2, 9)
    assert message.born_timestamp_ms == message.store_timestamp_ms - 5
    assert str(message.store_host) == str(message.born_host) == "192.0.2.1:10911"
    assert message.offset_message_id == "C000020100002A9F00000000000004D2"
    assert message.queue.broker_name == "broker-a"
    assert message.body == b"hello"
    assert message.queue_offset == 77  # decoded by the loop above
    assert repr(message) == "<ReceivedMessage id T@broker-a:3:77, 5 bytes>"


def test_bodies_are_decompressed() -> None:
    packed = record(zlib.compress(b"x" * 5000), sys_flag=flags.COMPRESSED | flags.COMPRESSION_ZLIB)

    assert received(packed, "b")[0].body == b"x" * 5000


def test_a_retried_message_has_its_original_topic() -> None:
    (message,) = received(record(topic="%RETRY%g", properties={"RETRY_TOPIC": "T"}), "b")

    assert message.topic == "T"
    assert message.queue.topic == "%RETRY%g"


def test_the_id_without_a_unique_key_is_the_offset_id() -> None:
    (message,) = received(record(), "b")

    assert message.message_id == message.offset_message_id


@given(st.lists(st.binary(max_size=50), max_size=8))
def test_a_reply_is_split_into_messages(reply_bodies: list[bytes]) -> None:
    data = b"".join(record(body, queue_offset=i) for i, body in enumerate(reply_bodies))
    messages = received(data, "b")

    assert [message.queue_offset for message in messages] == list(range(len(reply_bodies)))
    assert [message.body for message in messages] == reply_bodies


def test_a_batch_record_becomes_its_messages() -> None:
    inner = [batch.InnerMessage(i, b"%d" % i, props.encode({"TAGS": f"t{i}"})) for i in range(3)]
    data = record(batch.encode(inner), sys_flag=flags.INNER_BATCH | flags.NEED_UNWRAP)
    messages = received(data + record(b"after"), "b")

    assert [message.body for message in messages] == [b"0", b"1", b"2", b"after"]
    assert [message.queue_offset for message in messages] == [77, 78, 79, 77]
    assert [message.tags for message in messages] == ["t0", "t1", "t2", None]


def test_damage_is_reported_when_the_body_is_read() -> None:
    data = bytearray(record())
    data[88] ^= 1
    (message,) = received(bytes(data), "b")

    assert message.queue_offset == 77
    with pytest.raises(CorruptRecord, match="BODYCRC"):
        _ = message.body


@given(st.binary(max_size=300), st.integers(-10, 400))
def test_any_bytes_give_messages_or_an_error(data: bytes, size: int) -> None:
    for reply in (data, struct.pack(">i", size) + data, record() + data):
        try:
            messages = received(reply, "b")
        except CorruptRecord:
            continue
        assert sum(message.size_bytes for message in messages) == len(reply)
        assert all(isinstance(message, ReceivedMessage) for message in messages)


# --- JSON ---------------------------------------------------------------------------------


def test_a_json_body_is_that_of_the_value() -> None:
    value = {"name": "Käse", "count": 2, "tags": [None, True]}
    message = Message("T", json=value, tags="new")
    assert message.body.decode() == '{"name":"Käse","count":2,"tags":[null,true]}'
    assert dataclasses.replace(message, tags="old").body == message.body
    assert Message("T", json=0).body == b"0"


@pytest.mark.parametrize("value", [b"bytes", {1, 2}, float("nan"), "\ud800"])
def test_what_is_no_json_is_refused(value: object) -> None:
    with pytest.raises(InvalidOption, match="a value of JSON"):
        Message("T", json=value)


def test_json_and_body_exclude_each_other() -> None:
    with pytest.raises(InvalidOption, match="body= is given"):
        Message("T", b"x", json=5)


async def test_json_is_sent_and_received() -> None:
    with LocalBroker(topics=["T"]) as mq:
        async with Producer("P", namesrv=mq.namesrv_addr) as producer:
            await producer.send_many([Message("T", json={"id": 7}), Message("T", b"{")])
        by_body = {message.body: message for message in await mq.wait_for("T", 2)}
    assert by_body[b'{"id":7}'].json() == {"id": 7}
    with pytest.raises(InvalidBody, match=by_body[b"{"].message_id):
        by_body[b"{"].json()


@pytest.mark.parametrize("wrong", [["a"], b"a", 5])
def test_tags_of_another_type_are_refused(wrong: Any) -> None:
    with pytest.raises(InvalidOption, match="a message has one tag"):
        Message("T", b"x", tags=wrong)


@pytest.mark.parametrize("wrong", [[5], [b"k"], 5])
def test_keys_of_another_type_are_refused(wrong: Any) -> None:
    with pytest.raises(InvalidOption, match="keys"):
        Message("T", b"x", keys=wrong)
