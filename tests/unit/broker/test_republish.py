"""Republished messages: a copied record is equal to one that the codec encodes."""

import pytest

from reput.broker.republish import (
    RETRY_MS,
    Parcel,
    RetryPause,
    copied_message,
    fitting,
    parcel,
    put_all,
    records_of,
)
from reput.errors import CorruptRecord
from reput.format import message as record, properties as props, sys_flag as flags
from reput.format.message import Host
from reput.store.message_store import MessageStore
from reput.store.writing import incoming
from reput.store.writing.incoming import IncomingMessage, PutStatus
from store_fixture import Stores

V6 = Host(bytes(range(16)), 10911)
PLACES = ((8, 12), (20, 36), (56, 64))
"""The fields of a record that the log sets: checksum, offsets, store time."""

MESSAGES = [
    IncomingMessage("T", b"body", 2, props.encode({"TAGS": "a", "KEYS": "k"})),
    IncomingMessage("T", b"", 0, b""),
    IncomingMessage("T", b"x" * 5000, 1, b"a\x01b", flag=-7, born_timestamp=5, reconsume_times=3),
    IncomingMessage("客户", b"b", 1, props.encode({"客": "户"}), sys_flag=flags.COMPRESSED),
    IncomingMessage("T", b"b", 1, b"", prepared_transaction_offset=77),
]


def stored(store: MessageStore, message: IncomingMessage) -> bytes:
    result = store.put(message)
    assert result.status is PutStatus.PUT_OK, result.reason
    place = result.queue_offset, result.physical_offset, result.size
    (data,) = records_of(store, [place])
    assert data is not None
    return data


def without_place(data: bytes) -> bytes:
    changed = bytearray(data)
    for begin, end in PLACES:
        changed[begin:end] = bytes(end - begin)
    return bytes(changed)


@pytest.mark.parametrize("message", MESSAGES)
@pytest.mark.parametrize("more", [b"", b"C\x01d\x02"])
def test_a_copied_record_is_equal_to_that_of_the_codec(
    stores: Stores, message: IncomingMessage, more: bytes
) -> None:
    store = stores.open()
    data = stored(store, message)
    copied = parcel(store, data, b"Other", 3, more)
    expected = copied_message(record.decode(data), "Other", 3)
    expected.property_bytes = props.append(expected.property_bytes, more)
    assert copied.message is None
    assert without_place(copied.data) == without_place(incoming.encode(expected, b"Other"))


@pytest.mark.parametrize(
    ("message", "topic"),
    [
        (IncomingMessage("T", b"six", 0, b"", born_host=V6), b"Other"),
        (IncomingMessage("T", b"long", 0, b""), b"%RETRY%" + b"g" * 200),
        (IncomingMessage("T", b"crc", 0, props.encode({"__CRC32#": "0"})), b"Other"),
        (IncomingMessage("T", b"odd", 0, b""), "客户".encode()),
    ],
)
def test_other_records_go_through_the_codec(
    stores: Stores, message: IncomingMessage, topic: bytes
) -> None:
    store = stores.open()
    copied = parcel(store, stored(store, message), topic, 1)
    assert copied.message is not None
    assert (copied.message.body, copied.message.topic.encode()) == (message.body, topic)
    assert put_all(store, [copied], store.log.written_offset).stored_count == 1


def test_marks_without_room_are_left_out(stores: Stores) -> None:
    store = stores.open()
    own = b"a\x01" + b"x" * (props.LENGTH_MAX - 10)
    store_message = IncomingMessage("T", b"full", 0, own)
    copied = parcel(store, stored(store, store_message), b"Other", 0, b"mark\x01" + b"y" * 50)
    assert record.decode(copied.data, check_crc=False).property_bytes == own


def test_records_are_put_in_order_up_to_the_first_refused_one(stores: Stores) -> None:
    store = stores.open()
    data = stored(store, IncomingMessage("T", b"b", 0, b""))
    common = parcel(store, data, b"Other", 0)
    other = Parcel(b"", IncomingMessage("Other", b"odd", 0, b""))
    refused = Parcel(b"", IncomingMessage("a/b", b"never", 0, b""))
    outcome = put_all(store, [common, common, other, common, refused, common], 5)
    assert (outcome.stored_count, outcome.status) == (4, PutStatus.MESSAGE_ILLEGAL)
    assert outcome.end_offset == store.log.written_offset
    bodies = [record.decode(stored_data).body for stored_data in store.get("Other", 0, 0).records]
    assert bodies == [b"b", b"b", b"odd", b"b"]
    assert put_all(store, [], 5) == (0, 0, PutStatus.PUT_OK, "")


def test_places_without_a_record(stores: Stores) -> None:
    store = stores.open()
    results = [store.put(message) for message in MESSAGES]
    places = [(result.queue_offset, result.physical_offset, result.size) for result in results]
    wrong = [
        (places[0][0] + 1, *places[0][1:]),
        (places[1][0], places[1][1] + 4, places[1][2]),
        (*places[2][:2], places[2][2] - 1),
        (0, 1 << 40, 100),
        (0, 0, 10),
    ]
    records = records_of(store, [*places, *wrong, *places])
    assert [message is None for message in records] == [False] * 5 + [True] * 5 + [False] * 5


def test_a_truncated_record_is_damaged(stores: Stores) -> None:
    store = stores.open()
    data = stored(store, MESSAGES[0])
    with pytest.raises(CorruptRecord):
        parcel(store, data[:-1], b"Other", 0)


@pytest.mark.parametrize(
    ("sizes", "count"), [([], 0), ([9], 1), ([5, 5], 2), ([5, 6], 1), ([1] * 20, 10), ([99, 1], 1)]
)
def test_the_number_of_records_that_fit(sizes: list[int], count: int) -> None:
    assert fitting(sizes, 10) == count


def test_a_pause_lasts_until_the_next_attempt() -> None:
    pause = RetryPause()
    assert not pause.is_active(0)
    assert pause.begin("disk full", 5_000)
    assert pause.is_active(5_000)
    assert pause.is_active(5_000 + RETRY_MS - 1)
    assert not pause.is_active(5_000 + RETRY_MS)
    assert pause.end_ms == 5_000 + RETRY_MS


def test_a_clock_set_back_ends_a_pause() -> None:
    pause = RetryPause()
    pause.begin("disk full", 5_000)
    assert not pause.is_active(4_999)


def test_each_reason_for_a_pause_is_reported_once() -> None:
    pause = RetryPause()
    assert [pause.begin(problem, 0) for problem in ("full", "full", "failed")] == [
        True,
        False,
        True,
    ]
    assert pause.clear()
    assert not pause.clear()
    assert pause.begin("failed", 0)
