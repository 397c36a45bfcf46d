"""The kernel that republishes records gives the same results as the codec, on a real store."""

import numpy as np
import pytest

from reput.broker.republish import copied_message
from reput.format import (
    batch,
    message as record,
    names,
    properties as props,
    sys_flag as flags,
)
from reput.format.batch import InnerMessage
from reput.format.message import Host, StoredMessage
from reput.store.message_store import MessageStore
from reput.store.writing import copying
from reput.store.writing.copying import CopyRule, Places
from reput.store.writing.incoming import IncomingMessage, PutResult
from store_fixture import START_MS, Stores, needs_kernels

pytestmark = needs_kernels

V6 = Host(bytes(range(16)), 10911)
REAL = {"REAL_TOPIC": "T", "REAL_QID": "3"}
MESSAGES = [
    IncomingMessage("W", b"body", 2, props.encode({"TAGS": "a", "KEYS": "k", **REAL})),
    IncomingMessage("W", b"", 0, b"REAL_TOPIC\1T\2REAL_QID\0013"),
    IncomingMessage("W", b"x" * 5000, 1, props.encode(REAL), flag=-7, reconsume_times=3),
    IncomingMessage("客户", b"b", 1, props.encode(REAL | {"客": "户"}), sys_flag=flags.COMPRESSED),
    IncomingMessage("W", b"b", 1, props.encode(REAL), prepared_transaction_offset=77),
]


def places_of(results: list[PutResult], more_bytes: int = 0) -> Places:
    rows = [
        (result.queue_offset, result.physical_offset, result.size, 0, more_bytes)
        for result in results
    ]
    return np.array(rows, np.int64)


def messages(store: MessageStore, topic: str, queue_id: int) -> list[StoredMessage]:
    store.step()
    stored, queue_offset = [], 0
    while queue_offset < store.max_offset(topic, queue_id):
        result = store.get(topic, queue_id, queue_offset)
        stored += [record.decode(bytes(data)) for data in result.records]
        queue_offset = result.next_offset
    return stored


def meaning(sent: StoredMessage) -> tuple[object, ...]:
    """Return a message's content without the place and time of its storage."""
    return (
        sent.topic, sent.queue_id, sent.body, sent.body_crc, sent.property_bytes, sent.flag,
        sent.sys_flag, sent.born_timestamp, sent.born_host, sent.store_host, sent.reconsume_times,
        sent.prepared_transaction_offset, sent.store_size,
    )  # fmt: skip


@pytest.mark.parametrize("more", [b"", b"C\x01d\x02"])
def test_copies_are_equal_to_those_of_the_codec(stores: Stores, more: bytes) -> None:
    store = stores.open()
    results = [store.put(message) for message in MESSAGES]
    stored = [record.decode(store.record_at(result.physical_offset) or b"") for result in results]
    for message in stored:
        expected = copied_message(message, "T", 3)
        expected.property_bytes = props.append(expected.property_bytes, more)
        store.put(expected)
    count, end = store.copier.put(places_of(results, len(more)), CopyRule(), START_MS, more=more)
    assert (count, end) == (len(MESSAGES), store.log.written_offset)
    copies = messages(store, "T", 3)
    half = len(copies) // 2
    assert half == len(MESSAGES)
    assert [meaning(message) for message in copies[half:]] == [
        meaning(message) for message in copies[:half]
    ]


def test_the_final_message_of_a_transaction(stores: Stores) -> None:
    store = stores.open()
    results = [
        store.put(IncomingMessage(topic, b"b", 0, props.encode(REAL), sys_flag=flags.COMPRESSED))
        for topic in (names.HALF_TOPIC, names.HALF_TOPIC, "Other")
    ]
    rule = CopyRule(
        from_topic=names.HALF_TOPIC.encode(),
        sys_flags_off=flags.TRANSACTION_MASK,
        sys_flags_on=flags.TRANSACTION_COMMIT,
        has_prepared_offset=True,
    )
    places = np.array([(-1, message.physical_offset, 0, 0, 0) for message in results], np.int64)
    assert store.copier.put(places, rule)[0] == 2, "the third is no half message"
    for message, result in zip(messages(store, "T", 3), results, strict=False):
        assert message.prepared_transaction_offset == result.physical_offset
        assert message.sys_flag == flags.COMPRESSED | flags.TRANSACTION_COMMIT
        assert message.properties == REAL


@pytest.mark.parametrize(
    "odd",
    [
        IncomingMessage("W", b"six", 0, props.encode(REAL), born_host=V6),
        IncomingMessage("W", b"crc", 0, props.encode({"__CRC32#": "0", **REAL})),
        IncomingMessage("W", b"nowhere", 0, b""),
        IncomingMessage("W", b"half", 0, props.encode({**REAL, "REAL_TOPIC": names.HALF_TOPIC})),
        IncomingMessage("W", b"odd", 0, props.encode({**REAL, "REAL_TOPIC": "a.b"})),
        IncomingMessage(
            "W", b"long", 0, props.encode({**REAL, "x": "x" * (props.LENGTH_MAX - 30)})
        ),
    ],
)
def test_it_stops_before_a_record_that_falls_back(stores: Stores, odd: IncomingMessage) -> None:
    store = stores.open(mapped_file_size_commit_log=1 << 18)
    results = [store.put(message) for message in (MESSAGES[0], odd, MESSAGES[0])]
    more = b"C\x01d\x02"
    assert store.copier.put(places_of(results, len(more)), CopyRule(), more=more)[0] == 1
    assert len(messages(store, "T", 3)) == 1


def test_a_batch_falls_back(stores: Stores) -> None:
    store = stores.open()
    body = batch.encode([InnerMessage(0, b"a", b"")])
    flag = flags.INNER_BATCH | flags.NEED_UNWRAP
    result = store.put_batch(IncomingMessage("B", body, 0, props.encode(REAL), sys_flag=flag))
    assert result.status.is_stored, result.reason
    assert store.copier.put(places_of([result]), CopyRule()) == (0, 0)


def test_places_without_a_record(stores: Stores) -> None:
    store = stores.open()
    result = store.put(MESSAGES[0])
    wrong = [
        (result.queue_offset + 1, result.physical_offset, result.size),
        (result.queue_offset, result.physical_offset + 4, result.size),
        (result.queue_offset, result.physical_offset, result.size - 1),
        (0, 1 << 40, 100),
        (0, -5, 100),
        (0, 0, -1),
    ]
    for place in wrong:
        assert store.copier.put(np.array([(*place, 0, 0)], np.int64), CopyRule()) == (0, 0)
    assert store.copier.put(places_of([]).reshape(0, 5), CopyRule()) == (0, 0)


def test_more_records_than_the_scratch_holds_over_many_files(
    stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copying, "SCRATCH_BYTES", 10_000)
    store = stores.open()
    results = []
    for number in range(30):
        message = IncomingMessage("W", b"%d" % number + b"x" * 4000, 0, props.encode(REAL))
        results.append(store.put(message))
    assert store.copier.put(places_of(results), CopyRule())[0] == 30
    copies = messages(store, "T", 3)
    assert [copied.body.rstrip(b"x") for copied in copies] == [
        b"%d" % number for number in range(30)
    ]


def test_records_with_checksums_fall_back(stores: Stores) -> None:
    store = stores.open(enabled_append_prop_crc=True)
    assert store.copier.put(places_of([store.put(MESSAGES[0])]), CopyRule()) == (0, 0)


def test_a_closed_store_refuses_copies(stores: Stores) -> None:
    store = stores.open()
    places = places_of([store.put(MESSAGES[0])])
    store.close()
    assert store.copier.put(places, CopyRule()) == (0, 0)
