"""Batches before the append: their records are equal to those of single messages."""

import dataclasses
from typing import Any

import pytest

from reput.errors import LimitExceeded
from reput.format import batch, message as record
from reput.format.codes import ResponseCode
from reput.format.message import Host
from reput.store import limits
from reput.store.writing import incoming
from reput.store.writing.incoming import IncomingMessage, PutStatus
from store_fixture import Stores

V4, V6 = Host(bytes([192, 0, 2, 7]), 10911), Host(bytes(15) + b"\1", 65535)
PARTS = [
    batch.InnerMessage(7, b"hello", b"KEYS\1k1 k2\2"),
    batch.InnerMessage(-1, b"", b""),
    batch.InnerMessage(0, b"x" * 500, b"a\1b"),
    batch.InnerMessage(0, "größer".encode(), b"TAGS\1T\2own\1v\2"),
]
PLACED = {"queue_offset": 0, "physical_offset": 0, "store_timestamp": 0, "body_crc": 0}


def outer(parts: list[batch.InnerMessage], **fields: Any) -> IncomingMessage:
    return IncomingMessage("TopicA", batch.encode(parts), 1, **fields)


def without_places(data: bytes) -> record.StoredMessage:
    return dataclasses.replace(record.decode(data), **PLACED)


@pytest.mark.parametrize("has_crc", [False, True])
@pytest.mark.parametrize("born", [V4, V6])
@pytest.mark.parametrize("topic", ["t", "t" * 127, "t" * 128, "Крамниця"])
def test_records_of_a_batch_are_those_of_its_messages(
    stores: Stores, topic: str, born: Host, has_crc: bool
) -> None:
    store = stores.open(enabled_append_prop_crc=has_crc, max_topic_length=200)
    given = dataclasses.replace(
        outer(PARTS, born_host=born, store_host=V4, born_timestamp=5, reconsume_times=2),
        topic=topic,
    )
    result = store.put_batch(given)
    assert (result.status, result.message_count) == (PutStatus.PUT_OK, len(PARTS))
    for part, physical_offset in zip(PARTS, result.physical_offsets, strict=True):
        single = dataclasses.replace(
            given, body=part.body, property_bytes=part.property_bytes, flag=part.flag
        )
        alone = store.put(single)
        stored, expected = store.record_at(physical_offset), store.record_at(alone.physical_offset)
        assert stored is not None
        assert expected is not None
        actual, wanted = without_places(stored), without_places(expected)
        if has_crc:  # covers the whole record, its offsets included
            end = slice(-record.CRC_PROPERTY_BYTES)
            actual, wanted = (
                dataclasses.replace(each, property_bytes=each.property_bytes[end], properties=None)
                for each in (actual, wanted)
            )
        assert actual == wanted


def test_a_batch_runs_no_python_code_per_message(
    stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request may have thousands of messages: only the kernel works on each."""
    calls: list[IncomingMessage] = []
    encode = incoming.encode

    def counted(message: IncomingMessage, topic: bytes) -> bytes:
        calls.append(message)
        return encode(message, topic)

    monkeypatch.setattr(incoming, "encode", counted)
    store = stores.open(mapped_file_size_commit_log=1 << 20, max_message_size=1 << 19)
    parts = [batch.InnerMessage(0, b"x", b"")] * 1000
    assert store.put_batch(outer(parts)).message_count == 1000
    assert len(calls) < 5


def test_a_batch_of_too_many_messages_is_refused(
    stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "BATCH_MESSAGES", limits.BATCH_MESSAGES.at(10))
    store = stores.open()
    parts = [batch.InnerMessage(0, b"x", b"")] * 11
    with pytest.raises(LimitExceeded, match="messages of a batch: 11; allowed: at most 10") as why:
        store.put_batch(outer(parts))
    assert why.value.response_code == ResponseCode.MESSAGE_ILLEGAL
    assert store.max_physical_offset == 0
    assert store.put_batch(outer(parts[1:])).message_count == 10


def test_properties_of_a_batch_are_utf8(stores: Stores) -> None:
    """Python would dispatch others record by record, for a quarter of a minute."""
    store = stores.open()
    parts = [*PARTS, batch.InnerMessage(0, b"\xff", b"a\1\xff\2")]
    result = store.put_batch(outer(parts))
    assert result.status is PutStatus.MESSAGE_ILLEGAL
    position = len(batch.encode(PARTS))
    assert f"properties of the batch message at {position}: 'utf-8'" in result.reason
    assert store.max_physical_offset == 0


def test_a_batch_of_too_many_keys_is_refused(
    stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each key is an entry of the index, and one step puts all of them."""
    monkeypatch.setattr(limits, "BATCH_KEYS", limits.BATCH_KEYS.at(10))
    store = stores.open()
    parts = [batch.InnerMessage(0, b"a b c", b"KEYS\1a b c d e f\2")] * 3
    with pytest.raises(LimitExceeded, match="limit batch_keys"):
        store.put_batch(outer(parts))
    assert store.max_physical_offset == 0
    assert store.put_batch(outer(parts[1:])).message_count == 2


def test_ids_of_a_batch_are_those_of_its_messages(stores: Stores) -> None:
    store = stores.open()
    for host in (V4, V6):
        result = store.put_batch(outer(PARTS, store_host=host))
        ids = [
            result._replace(physical_offset=physical_offset, physical_offsets=()).offset_id
            for physical_offset in result.physical_offsets
        ]
        assert result.offset_id.split(",") == ids
        assert len(set(ids)) == len(PARTS)
