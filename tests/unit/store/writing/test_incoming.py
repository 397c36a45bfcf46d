"""Messages before the append: their records, their substitutes, and refusals."""

import dataclasses
from typing import Any

import pytest

from cases import each
from reput.format import message as record, names, properties as props, sys_flag as flags
from reput.format.message import Host
from reput.store.config import StoreConfig
from reput.store.writing import incoming
from reput.store.writing.incoming import IncomingMessage, PutResult, PutStatus, Refused

V4, V6 = Host(bytes([192, 0, 2, 7]), 10911), Host(bytes(15) + b"\1", 65535)
LEVELS = 18


def message(**fields: object) -> IncomingMessage:
    return dataclasses.replace(IncomingMessage("TopicA", b"hello"), **fields)  # type: ignore[arg-type]


def with_delay(level: str, **fields: object) -> IncomingMessage:
    return message(property_bytes=props.encode({"DELAY": level, "own": "x"}), **fields)


# --- records ----------------------------------------------------------------


@each("born", [V4, V6])
@each("store", [V4, V6])
@each("topic", ["TopicA", "t" * 127, "t" * 128, "Крамниця"])
def test_the_record_has_the_fields_of_the_message(born: Host, store: Host, topic: str) -> None:
    incoming_message = IncomingMessage(
        topic, b"hello", 3, b"a\1b\2", 5, born, store, -7, flags.TRANSACTION_COMMIT, 2, 1 << 40
    )
    decoded = record.decode(incoming.encode(incoming_message, topic.encode()), check_crc=False)
    bits = (flags.BORN_HOST_V6 if born is V6 else 0) | (flags.STORE_HOST_V6 if store is V6 else 0)
    assert decoded == record.StoredMessage(
        topic=topic,
        body=b"hello",
        queue_id=3,
        queue_offset=0,
        physical_offset=0,
        born_timestamp=5,
        born_host=born,
        store_timestamp=0,
        store_host=store,
        flag=-7,
        sys_flag=flags.TRANSACTION_COMMIT | bits,
        reconsume_times=2,
        prepared_transaction_offset=1 << 40,
        store_size=91 + 5 + len(topic.encode()) + 4 + 12 * bits.bit_count() + (len(topic) > 127),
        version=2 if len(topic.encode()) > 127 else 1,
        property_bytes=b"a\1b\2",
        properties={"a": "b"},
    )


def test_forged_host_bits_are_dropped() -> None:
    forged = message(sys_flag=flags.BORN_HOST_V6 | flags.STORE_HOST_V6)
    assert record.decode(incoming.encode(forged, b"TopicA"), check_crc=False).sys_flag == 0


def test_room_for_the_checksum_follows_the_separator_that_was_missing() -> None:
    result = incoming.with_crc_room(message(property_bytes=b"a\1b"))
    assert result.property_bytes == b"a\1b\2__CRC32#\0010000000000\2"
    with pytest.raises(Refused) as refused:
        incoming.with_crc_room(message(property_bytes=b"a\1" + b"b" * 32760))
    assert refused.value.status is PutStatus.PROPERTIES_SIZE_EXCEEDED


# --- delayed messages -------------------------------------------------------


@pytest.mark.parametrize(("level", "stored"), [("1", 1), ("18", 18), ("99", 18)])
def test_a_delayed_message_waits_in_the_queue_of_its_level(level: str, stored: int) -> None:
    delayed = incoming.delayed(with_delay(level, queue_id=2), LEVELS)
    assert (delayed.topic, delayed.queue_id) == (names.SCHEDULE_TOPIC, stored - 1)
    assert delayed.properties == {
        "DELAY": str(stored),
        "own": "x",
        "REAL_TOPIC": "TopicA",
        "REAL_QID": "2",
    }


@pytest.mark.parametrize("level", ["0", "-1", "soon"])
def test_other_messages_are_not_delayed(level: str) -> None:
    sent = with_delay(level)
    assert incoming.delayed(sent, LEVELS) is sent


@pytest.mark.parametrize(
    ("kind", "waits"),
    [
        (flags.TRANSACTION_PREPARED, False),
        (flags.TRANSACTION_COMMIT, True),
        (flags.TRANSACTION_ROLLBACK, False),
    ],
)
def test_uncommitted_messages_are_not_delayed(kind: int, waits: bool) -> None:
    result = incoming.delayed(with_delay("3", sys_flag=kind), LEVELS)
    assert (result.topic == names.SCHEDULE_TOPIC) == waits


# --- refusals and results ---------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"body": b"x" * 11}, "11 bytes; allowed: 10"),
        ({"sys_flag": flags.TRANSACTION_PREPARED}, "transaction"),
        ({"property_bytes": b"DELAY\0013"}, "DELAY 3"),
    ],
)
def test_batches_that_are_refused(fields: dict[str, object], reason: str) -> None:
    incoming.refuse_batch(message(body=b"x" * 10), 10)
    with pytest.raises(Refused, match=reason) as refused:
        incoming.refuse_batch(message(**fields), 10)
    assert refused.value.status is PutStatus.MESSAGE_ILLEGAL


@pytest.mark.parametrize(
    ("text", "status"),
    [
        ("x" * 32768, PutStatus.MESSAGE_ILLEGAL),
        # 4.9 counts characters first, and then bytes.
        ("é" * 20_000, PutStatus.PROPERTIES_SIZE_EXCEEDED),
    ],
)
def test_properties_that_are_too_long(text: str, status: PutStatus) -> None:
    with pytest.raises(Refused, match="allowed: 32767") as refused:
        incoming.refuse_lengths(message(property_bytes=text.encode()), b"TopicA", StoreConfig())
    assert refused.value.status is status


@pytest.mark.parametrize("topic", [b"", b"t" * 128])
def test_topics_that_are_too_long_or_empty(topic: bytes) -> None:
    with pytest.raises(Refused, match=f"topic has {len(topic)} bytes; allowed: 1 to 127"):
        incoming.refuse_lengths(message(), topic, StoreConfig())


@pytest.mark.parametrize(
    ("name", "settings", "longest"),
    [
        ("t", {"max_topic_length": 40}, 40),
        ("t", {"max_topic_length": 200}, 200),
        ("t", {"max_topic_length": 200, "auto_message_version_on_topic_len": False}, 127),
        ("%RETRY%g", {}, 255),
        ("%RETRY%g", {"auto_message_version_on_topic_len": False}, 127),
    ],
)
def test_how_long_a_topic_may_be(name: str, settings: dict[str, Any], longest: int) -> None:
    config = StoreConfig(**settings)
    sent = dataclasses.replace(message(), topic=name)
    incoming.refuse_lengths(sent, b"t" * longest, config)
    with pytest.raises(Refused, match=f"allowed: 1 to {longest}"):
        incoming.refuse_lengths(sent, b"t" * (longest + 1), config)


def test_offset_ids_are_javas() -> None:
    host = Host(bytes([127, 0, 0, 1]), 20911)
    result = PutResult(PutStatus.PUT_OK, store_host=host)
    assert result.offset_id == "7F000001000051AF0000000000000000"
    batch = result._replace(physical_offsets=(0, 16))
    assert batch.offset_id == f"{result.offset_id},7F000001000051AF0000000000000010"
