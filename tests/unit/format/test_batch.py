"""Batch bodies: client requests, and the inner batches of a 5.5.0 BatchCQ topic."""

import struct
import zlib
from contextlib import suppress
from dataclasses import replace

import pytest
from hypothesis import given, strategies as st

import golden
from cases import each
from reput.errors import CorruptRecord
from reput.format import batch, properties as props, sys_flag as flags
from reput.format.batch import InnerMessage
from reput.format.message import StoredMessage, decode as decode_record

# --- the three batches that Java stored -----------------------------------


def batch_records() -> list[StoredMessage]:
    return [
        decode_record(place.record)
        for expected, place in golden.records("5.5.0", "v5")
        if expected["topic"] == "GoldenBatch-bcq"
    ]


def test_inner_messages_of_java() -> None:
    """The inner messages are the producer's: bodies of 40 to 43 bytes, tag b, keys bk0 to bk3."""
    records = batch_records()
    assert len(records) == 3
    for record in records:
        inner = batch.decode(record.body)
        assert [len(message.body) for message in inner] == [40, 41, 42, 43]
        assert [message.flag for message in inner] == [0] * 4
        properties = [props.decode(message.property_bytes) for message in inner]
        assert [message["KEYS"] for message in properties] == ["bk0", "bk1", "bk2", "bk3"]
        assert {message["TAGS"] for message in properties} == {"b"}
        assert {message["WAIT"] for message in properties} == {"true"}
        # Each message has its own id, counted up; the batch has the next one.
        ids = [message["UNIQ_KEY"] for message in properties] + [record.properties["UNIQ_KEY"]]
        counters = [int(message[-4:], 16) for message in ids]
        assert {message[:-12] for message in ids} == {ids[0][:-12]}
        assert counters == list(range(counters[0], counters[0] + 5))
        assert batch.encode(inner) == record.body


def test_first_inner_message_byte_by_byte() -> None:
    first = batch.decode(batch_records()[0].body)[0]
    assert first.body == b"incididunt consectetur eiusmod tempor la"
    assert first.property_bytes == (
        b"KEYS\x01bk0\x02"
        b"UNIQ_KEY\x01FD00000000000000000000000000000218C05FFD2B2767AE9CF7002E\x02"
        b"WAIT\x01true\x02TAGS\x01b\x02"
    )


def test_unwrap_returns_the_messages_of_the_queue() -> None:
    (queue,) = (q for q in golden.manifest("5.5.0", "v5")["queues"] if "batchUnits" in q)
    units = queue["batchUnits"]
    for record, unit in zip(batch_records(), units, strict=True):
        assert record.physical_offset == unit["commitLogOffset"]
        messages = batch.unwrap(record)
        assert len(messages) == unit["batchNum"]
        for i, message in enumerate(messages):
            assert message.queue_offset == unit["queueOffset"] + i
            assert (message.topic, message.queue_id) == (queue["topic"], queue["queueId"])
            assert message.physical_offset == record.physical_offset
            assert message.born_timestamp == record.born_timestamp
            assert message.store_timestamp == record.store_timestamp
            assert (message.born_host, message.store_host) == (record.born_host, record.store_host)
            assert message.keys == [f"bk{i}"]
            assert message.tags == "b"
            assert message.plain_body() == message.body
            assert batch.unwrap(message) == [message], "unwrapped once, it is no batch"
    last = batch.unwrap(batch_records()[-1])[-1]
    assert last.queue_offset + 1 == queue["maxOffset"]


@each(("version", "name"), golden.STORES)
def test_a_record_that_is_no_batch_unwraps_to_itself(version: str, name: str) -> None:
    batches = 0
    for expected, place in golden.records(version, name):
        message = decode_record(place.record, check_crc=False)
        if expected["sysFlag"] & 0x80:
            batches += 1
            assert len(batch.unwrap(message)) == int(expected["properties"]["INNER_NUM"])
        else:
            assert batch.unwrap(message) == [message]
    assert batches == (3 if name == "v5" else 0)


def test_unwrap_of_a_compressed_batch() -> None:
    """A compressed batch is unwrapped: no client sends one today, but the flags allow it."""
    record = batch_records()[0]
    packed = replace(
        record,
        body=zlib.compress(record.body),
        sys_flag=record.sys_flag | flags.COMPRESSED | flags.COMPRESSION_ZLIB,
    )
    assert [m.body for m in batch.unwrap(packed)] == [m.body for m in batch.unwrap(record)]
    assert {m.sys_flag for m in batch.unwrap(packed)} == {0}


@pytest.mark.parametrize("base", ["", "-1", "7", "²", "9" * 5000])
def test_the_queue_offset_overrides_inner_base(base: str) -> None:
    record = batch_records()[1]
    assert record.properties["INNER_BASE"] == "4"
    strange = replace(record, properties={**record.properties, "INNER_BASE": base})
    assert [m.queue_offset for m in batch.unwrap(strange)] == [4, 5, 6, 7]


def test_unwrap_of_a_body_that_is_no_batch() -> None:
    record = replace(batch_records()[0], body=b"not a batch, whatever the flag says")
    with pytest.raises(CorruptRecord, match="batch message at 0"):
        batch.unwrap(record)


# --- the layout -----------------------------------------------------------


def test_layout_by_hand() -> None:
    data = batch.encode([InnerMessage(7, b"hello", b"a\x01b\x02"), InnerMessage(-1, b"", b"")])
    assert (
        data
        == (struct.pack(">iiiii", 22 + 5 + 4, 0, 0, 7, 5) + b"hello" + b"\x00\x04a\x01b\x02")
        + struct.pack(">iiiii", 22, 0, 0, -1, 0)
        + b"\x00\x00"
    )
    assert batch.FIXED_BYTES == 22


def test_magic_and_crc_are_ignored() -> None:
    data = struct.pack(">iiiii", 27, 123, 456, 7, 5) + b"hello" + b"\x00\x00"
    assert batch.decode(data) == [InnerMessage(7, b"hello", b"")]


def test_no_messages() -> None:
    assert batch.decode(b"") == []
    assert batch.encode([]) == b""


def test_properties_too_long_for_their_field_are_refused() -> None:
    batch.encode([InnerMessage(0, b"", bytes(32767))])
    with pytest.raises(ValueError, match="32768 bytes, over 32767"):
        batch.encode([InnerMessage(0, b"", bytes(32768))])


def test_cut_at_every_byte() -> None:
    """A cut between two messages cannot be detected; any other cut is detected."""
    body = batch_records()[0].body
    ends = [154, 154 + 155, 154 + 155 + 156]
    for cut in range(1, len(body)):
        if cut in ends:
            assert len(batch.decode(body[:cut])) == ends.index(cut) + 1
        else:
            with pytest.raises(CorruptRecord):
                batch.decode(body[:cut])


def test_flip_every_byte() -> None:
    body = batch_records()[0].body
    for position in range(len(body)):
        for mask in (0x01, 0x80, 0xFF):
            flipped = body[:position] + bytes([body[position] ^ mask]) + body[position + 1 :]
            with suppress(CorruptRecord):
                assert len(batch.decode(flipped)) == 4


@given(
    st.lists(
        st.builds(
            InnerMessage,
            st.integers(-(1 << 31), (1 << 31) - 1),
            st.binary(max_size=40),
            st.binary(max_size=40),
        ),
        max_size=5,
    )
)
def test_encode_decode_round_trip(messages: list[InnerMessage]) -> None:
    assert batch.decode(batch.encode(messages)) == messages


@given(st.binary(max_size=200))
def test_any_bytes_are_a_batch_or_corrupt(data: bytes) -> None:
    try:
        messages = batch.decode(data)
    except CorruptRecord:
        return
    assert sum(22 + len(m.body) + len(m.property_bytes) for m in messages) == len(data)
