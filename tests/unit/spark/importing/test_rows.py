"""Rows as records: the encoders of columns and of rows give the same bytes and errors."""

import dataclasses
import datetime
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings, strategies as st

from reput.format import message as record
from reput.format.message import StoredMessage
from reput.spark.importing import options as import_options
from reput.spark.importing.rows import RowEncoder, _Common
from reput.spark.sending.rows import BadRow
from spark import importing

NOW_MS = 1_700_000_000_123


def encoder(**options: object) -> RowEncoder:
    parsed = import_options.parse(importing.texts(Path("/store"), **options))
    return RowEncoder(parsed, {"Known": 3}, NOW_MS, first_queue=1)


def messages(made: RowEncoder, batch: pa.RecordBatch) -> list[StoredMessage]:
    """Return the messages of records, without the checksum of the body."""
    decoded = []
    for data, table in made.encode(batch):
        view, position = bytes(data), 0
        for size, queue in zip(table.sizes.tolist(), table.queues.tolist(), strict=True):
            message = record.decode(view[position : position + size], check_crc=False)
            assert (message.topic, message.queue_id) == made.queues[queue]
            decoded.append(message)
            position += size
        assert position == len(view)
    return decoded


def is_encoded_by_columns(made: RowEncoder, batch: pa.RecordBatch) -> bool:
    return _Common(batch, made).encode() is not None


TEXT = st.text(st.characters(exclude_characters="\x01\x02", exclude_categories=["Cs"]), max_size=6)
NAME = TEXT.filter(bool) | st.sampled_from(["TAGS", "KEYS", "UNIQ_KEY", "CLUSTER", "DELAY"])
ROW = st.fixed_dictionaries(
    {"body": st.binary(max_size=20), "topic": st.sampled_from(["Known", "New", "%RETRY%g"])},
    optional={
        "tags": st.none() | TEXT,
        "keys": st.none() | st.lists(TEXT, max_size=3),
        "uniq_key": st.none() | TEXT,
        "properties": st.none()
        | st.dictionaries(NAME, TEXT, max_size=4).map(lambda d: [*d.items()]),
        "queue_id": st.none() | st.integers(0, 5),
        "flag": st.none() | st.integers(-(1 << 31), (1 << 31) - 1),
        "delay_level": st.none() | st.integers(0, 20),
        "sharding_key": st.none() | TEXT,
        "born_timestamp": st.none()
        | st.integers(0, 1 << 44).map(
            lambda us: (
                datetime.datetime.fromtimestamp(0, datetime.UTC)
                + datetime.timedelta(microseconds=us)
            )
        ),
    },
)


@settings(deadline=None, max_examples=60)
@given(st.lists(ROW, min_size=1, max_size=6), st.booleans())
def test_columns_and_rows_give_the_same_bytes(rows: list[dict[str, Any]], has_crc: bool) -> None:
    batch = importing.batch(rows)

    def made() -> RowEncoder:
        options = encoder(ignoreReadColumns=True)
        store = dataclasses.replace(options.options.store, enabled_append_prop_crc=has_crc)
        return dataclasses.replace(
            options, options=dataclasses.replace(options.options, store=store)
        )

    by_columns, by_rows = made(), made()
    common = _Common(batch, by_columns).encode()
    if common is None:
        return  # encoded row by row in any case
    expected, sizes, queues = by_rows._encode_rows(batch)
    assert bytes(common[0]) == expected
    assert common[1].tolist() == sizes.tolist()
    numbered = [by_columns.queues[number] for number in common[2]]
    assert numbered == [by_rows.queues[number] for number in queues]


FULL: Mapping[str, Any] = {
    "topic": "New",
    "body": b"abc",
    "tags": "TagA",
    "keys": ["k1", "k2"],
    "uniq_key": "U1",
    "properties": [("a", "1"), ("TAGS", "other")],
    "queue_id": 4,
    "flag": -3,
    "born_timestamp": datetime.datetime.fromtimestamp(1.5, datetime.UTC),
}


def test_a_record_has_the_values_of_its_row() -> None:
    made = encoder(storeHost="192.0.2.7:4711")
    batch = importing.batch([FULL])
    assert is_encoded_by_columns(encoder(), batch)
    (message,) = messages(made, batch)
    assert (message.topic, message.queue_id, message.body, message.flag) == ("New", 4, b"abc", -3)
    assert message.properties == {"UNIQ_KEY": "U1", "TAGS": "TagA", "KEYS": "k1 k2", "a": "1"}
    assert message.born_timestamp == 1500
    assert (str(message.born_host), str(message.store_host)) == ("192.0.2.7:4711",) * 2


def test_a_slice_of_a_batch_keeps_its_properties() -> None:
    rows = [{"topic": "T", "body": b"%d" % n, "properties": [("n", str(n))]} for n in range(9)]
    batch = importing.batch(rows).slice(3, 4)
    assert is_encoded_by_columns(encoder(), batch)
    assert [(message.body, message.properties) for message in messages(encoder(), batch)] == [
        (b"%d" % n, {"n": str(n)}) for n in range(3, 7)
    ]


@pytest.mark.parametrize("delayed", [False, True], ids=["common", "row by row"])
def test_rows_without_a_queue_are_spread_round_robin(delayed: bool) -> None:
    rows = [{"topic": topic, "body": b""} for topic in ["Known"] * 5 + ["New"] * 3]
    # A row with a delay is encoded apart, and takes no turn: its queue is in the schedule topic.
    late = [{"topic": "Known", "body": b"", "queue_id": 0, "delay_level": 2}] if delayed else []
    made = encoder(queues=2)
    queues = [
        (message.topic, message.queue_id)
        for message in messages(made, importing.batch(rows + late))
    ]
    assert queues[:8] == [
        *(("Known", number % 3) for number in range(1, 6)),
        *(("New", number % 2) for number in range(6, 9)),
    ]
    assert queues[8:] == ([("SCHEDULE_TOPIC_XXXX", 1)] if delayed else [])


def test_a_sharding_key_selects_the_queue_of_java() -> None:
    # "polygenelubricants".hashCode() is -2^31, "k".hashCode() 107 (java.lang.String).
    rows = [{"topic": "Known", "body": b"", "sharding_key": key} for key in ("k", "k", "b")]
    assert [message.queue_id for message in messages(encoder(), importing.batch(rows))] == [
        2,
        2,
        98 % 3,
    ]


def test_a_delayed_message_goes_to_the_schedule_topic() -> None:
    rows = [{"topic": "Known", "body": b"x", "queue_id": 2, "delay_level": 3}]
    (message,) = messages(encoder(), importing.batch(rows))
    assert (message.topic, message.queue_id) == ("SCHEDULE_TOPIC_XXXX", 2)
    assert message.properties == {"DELAY": "3", "REAL_TOPIC": "Known", "REAL_QID": "2"}
    # A message read from the schedule topic goes back there, one read later is not delayed again.
    for topic in ("SCHEDULE_TOPIC_XXXX", "Known"):
        again = {
            "topic": topic,
            "body": b"x",
            "queue_id": 2,
            "properties": [*message.properties.items()],
        }
        (kept,) = messages(encoder(ignoreReadColumns=True), importing.batch([again]))
        assert (kept.topic, kept.queue_id, kept.properties) == (topic, 2, message.properties)


TIME = datetime.datetime.fromtimestamp(9, datetime.UTC)


@pytest.mark.parametrize(
    ("change", "options", "text"),
    [
        ({"body": None}, {}, "row 1, column 'body': is null"),
        ({"topic": None}, {}, "row 1, column 'topic': is null or empty"),
        ({"topic": "a b"}, {}, "'a b'; allowed: 1 to 127 characters"),
        ({"body": b"x" * 20_000}, {}, "has 20000 bytes; allowed: 16384 .maxMessageSize"),
        ({"queue_id": -1}, {}, "column 'queue_id': is -1"),
        ({"keys": ["a b"]}, {}, "keys are not empty and have no spaces"),
        ({"tags": "a\x01b"}, {}, "holds a separator"),
        ({"properties": [("a", "")]}, {}, "names and values must not be empty"),
        ({"properties": [("a", "x" * 32_760)]}, {}, "at most 32767 fit a record"),
        ({"deliver_at": TIME}, {}, "an import holds messages back by delay_level only"),
        ({"store_timestamp": None}, {"keepStoreTimestamps": True}, "is null; keepStoreTimestamps"),
        (
            {"store_timestamp": datetime.datetime(2099, 1, 1, tzinfo=datetime.UTC)},
            {"keepStoreTimestamps": True},
            "allowed: 0 up to now",
        ),
    ],
)
def test_an_invalid_row_is_refused_with_its_number(
    change: dict[str, Any], options: dict[str, object], text: str
) -> None:
    good = {**FULL, **({"store_timestamp": TIME} if options else {})}
    made = encoder(ignoreReadColumns=True, **options)
    with pytest.raises(BadRow, match=text):
        messages(made, importing.batch([good, {**good, **change}]))


def test_store_times_are_returned_with_the_records() -> None:
    rows = [{"topic": "T", "body": b"", "store_timestamp": TIME}] * 2
    (made,) = encoder(ignoreReadColumns=True, keepStoreTimestamps=True).encode(
        importing.batch(rows)
    )
    assert made.table.times_ms is not None
    assert made.table.times_ms.dtype == np.int64
    assert made.table.times_ms.tolist() == [9000, 9000]
