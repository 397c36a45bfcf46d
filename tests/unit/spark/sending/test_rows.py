"""Rows as messages: columns, types, and refusals."""

import datetime
from typing import Any

import pyarrow as pa
import pytest

from reput.errors import InvalidOption
from reput.format import properties as props
from reput.spark import rows
from reput.spark.sending import rows as outgoing_rows
from reput.spark.sending.options import RowOptions
from reput.spark.sending.rows import BadRow, OutgoingMessage

TOPIC = RowOptions(topic="T")
TIMES = pa.timestamp("us", tz="UTC")
MAP = pa.map_(pa.string(), pa.string())


def convert(
    options: RowOptions = TOPIC, first_row: int = 0, **columns: list[Any] | pa.Array
) -> list[OutgoingMessage]:
    batch = pa.record_batch({name: pa.array(values) for name, values in columns.items()})
    outgoing_rows.check_columns(batch.schema, options)
    return list(outgoing_rows.messages(batch, options, first_row))


def converted(**columns: Any) -> OutgoingMessage:
    arrays = {
        name: value if isinstance(value, pa.Array) else [value] for name, value in columns.items()
    }
    (message,) = convert(**{"body": [b"x"], **arrays})
    return message


def bad(**columns: Any) -> str:
    with pytest.raises(BadRow) as error:
        converted(**columns)
    return str(error.value)


def test_only_a_body_is_required() -> None:
    assert converted() == OutgoingMessage(0, "T", b"x")
    assert converted(body="ü").body == "ü".encode()
    assert converted(body=pa.array([b"y"], pa.large_binary())).body == b"y"
    assert converted(body=pa.array(["y"], pa.large_string())).body == b"y"


def test_all_columns() -> None:
    message = converted(
        topic="Other",  # the option wins
        tags="TagA",
        keys=["a", "b"],
        properties=pa.array([[("n", "1"), ("city", "Köln")]], MAP),
        queue_id=pa.array([3], pa.int16()),
        delay_level=pa.array([2], pa.int32()),
        flag=-7,
        born_timestamp=1_700_000_000_123,
        uniq_key="AB",
    )
    assert message == OutgoingMessage(
        row=0,
        topic="T",
        body=b"x",
        tags="TagA",
        keys=("a", "b"),
        properties={"n": "1", "city": "Köln"},
        queue_id=3,
        delay_level=2,
        flag=-7,
        born_timestamp_ms=1_700_000_000_123,
        uniq_key="AB",
    )
    assert message.is_delayed
    assert props.decode(message.property_bytes()) == {
        "UNIQ_KEY": "AB",
        "TAGS": "TagA",
        "KEYS": "a b",
        "DELAY": "2",
        "n": "1",
        "city": "Köln",
    }
    assert props.decode(converted().property_bytes("CD")) == {"UNIQ_KEY": "CD"}


def test_nulls_are_defaults() -> None:
    kinds = {
        "tags": pa.string(),
        "keys": pa.list_(pa.string()),
        "properties": MAP,
        "queue_id": pa.int32(),
        "sharding_key": pa.string(),
        "delay_level": pa.int32(),
        "deliver_at": TIMES,
        "flag": pa.int32(),
        "born_timestamp": TIMES,
        "uniq_key": pa.string(),
    }
    assert (
        converted(**{name: pa.array([None], kind) for name, kind in kinds.items()}) == converted()
    )


def test_a_text_of_keys_is_split_at_spaces() -> None:
    assert converted(keys=" a  b ").keys == ("a", "b")


def test_times_are_rounded_to_milliseconds_but_delivery_is_never_early() -> None:
    time = datetime.datetime(2024, 1, 2, 3, 4, 5, 1001, tzinfo=datetime.UTC)
    milliseconds = 1_704_164_645_001
    moment = pa.array([time], TIMES)
    assert converted(born_timestamp=moment).born_timestamp_ms == milliseconds
    assert converted(deliver_at=moment).deliver_at_ms == milliseconds + 1
    assert converted(deliver_at=milliseconds).deliver_at_ms == milliseconds
    text = converted(deliver_at=milliseconds).property_bytes()
    assert props.decode(text) == {"TIMER_DELIVER_MS": str(milliseconds)}


def test_rows_are_numbered_over_batches() -> None:
    messages = convert(first_row=7, body=[b"x"] * 3000)
    assert [message.row for message in messages] == list(range(7, 3007))


def test_the_topic_may_be_a_column() -> None:
    options = RowOptions()
    messages = convert(options, body=[b"x", b"y"], topic=["A", "B"])
    assert [message.topic for message in messages] == ["A", "B"]
    for topic, text in ((None, "is null or empty"), ("a b", "allowed: 1 to 127 characters")):
        with pytest.raises(BadRow, match=f"row 1, column 'topic': .*{text}"):
            convert(options, body=[b"x", b"y"], topic=["A", topic])


def test_properties_with_a_column_fill_the_column() -> None:
    pairs = [("TAGS", "t"), ("KEYS", "a b"), ("UNIQ_KEY", "U"), ("DELAY", "3"), ("n", "1")]
    message = converted(properties=pa.array([pairs], MAP))
    assert (message.tags, message.keys, message.uniq_key) == ("t", ("a", "b"), "U")
    assert (message.delay_level, message.properties) == (3, {"n": "1"})
    message = converted(
        properties=pa.array([pairs], MAP), tags="c", keys=["k"], uniq_key="V", deliver_at=5
    )
    assert (message.tags, message.keys, message.uniq_key) == ("c", ("k",), "V")
    assert (message.delay_level, message.deliver_at_ms) == (0, 5)


def test_properties_set_by_brokers_are_dropped_if_configured() -> None:
    pairs = pa.array([[("CLUSTER", "c"), ("REAL_TOPIC", "r"), ("n", "1")]], MAP)
    assert "'CLUSTER' is set by brokers; ignoreReadColumns=true" in bad(properties=pairs)
    (message,) = convert(RowOptions("T", ignore_read_columns=True), body=[b"x"], properties=pairs)
    assert message.properties == {"n": "1"}


@pytest.mark.parametrize(
    ("columns", "text"),
    [
        ({"body": pa.array([None], pa.binary())}, "'body': is null; every message has a body"),
        ({"queue_id": -1}, "'queue_id': is -1; allowed: 0 to"),
        ({"queue_id": 1, "sharding_key": "s"}, "queue_id 1 as well"),
        ({"delay_level": 1, "deliver_at": 5}, "delay 1 as well"),
        ({"delay_level": -1}, "'delay_level': is -1"),
        ({"flag": 1 << 31}, "'flag': is 2147483648"),
        ({"born_timestamp": -1}, "'born_timestamp': is -1"),
        ({"keys": ["a b"]}, "'keys': has 'a b'"),
        ({"keys": pa.array([[None]], pa.list_(pa.string()))}, "'keys': has None"),
        ({"properties": pa.array([[("n", "")]], MAP)}, "names and values must not be empty"),
        ({"properties": pa.array([[("n", None)]], MAP)}, "names and values must not be empty"),
        ({"properties": pa.array([[("DELAY", "x")]], MAP)}, "is no number"),
        ({"properties": pa.array([[("TRAN_MSG", "true")]], MAP)}, "part of a transaction"),
    ],
)
def test_invalid_values_are_refused(columns: dict[str, Any], text: str) -> None:
    assert text in bad(**columns)


@pytest.mark.parametrize("value", ["a\x01b", "a\x02b", "x" * 40_000])
def test_properties_that_do_not_fit_a_record_are_refused(value: str) -> None:
    message = converted(properties=pa.array([[("n", value)]], MAP))
    with pytest.raises(BadRow, match="row 0, column 'properties'"):
        message.property_bytes()


@pytest.mark.parametrize(
    ("columns", "text"),
    [
        ({"colour": pa.int32()}, "colour int32"),
        ({"body": pa.int32()}, "body int32"),
        ({"topic": pa.binary()}, "topic binary"),
        ({"keys": pa.list_(pa.int32())}, "keys list<item: int32>"),
        ({"properties": pa.map_(pa.string(), pa.int32())}, "properties map<string, int32>"),
        ({"queue_id": pa.float64()}, "queue_id double"),
        ({"deliver_at": pa.timestamp("us")}, "deliver_at timestamp[us]"),
        ({"deliver_at": pa.int32()}, "deliver_at int32"),
        ({"queue_offset": pa.int64(), "msg_id": pa.string()}, "queue_offset, msg_id"),
    ],
)
def test_invalid_columns_are_refused(columns: dict[str, pa.DataType], text: str) -> None:
    schema = pa.schema({"body": pa.binary(), **columns})
    with pytest.raises(InvalidOption) as error:
        outgoing_rows.check_columns(schema, TOPIC)
    assert f"is '{text}'" in str(error.value)
    assert "body binary or string" in str(error.value)


def test_missing_and_duplicate_columns_are_refused() -> None:
    with pytest.raises(InvalidOption, match="a column body"):
        outgoing_rows.check_columns(pa.schema({"tags": pa.string()}), TOPIC)
    with pytest.raises(InvalidOption, match="or a column topic"):
        outgoing_rows.check_columns(pa.schema({"body": pa.binary()}), RowOptions())
    twice = pa.schema([("body", pa.binary()), ("body", pa.binary())])
    with pytest.raises(InvalidOption, match="body twice"):
        outgoing_rows.check_columns(twice, TOPIC)


def test_rows_of_a_read_are_accepted() -> None:
    schema = pa.schema({**rows.FIELDS, rows.RAW_PROPERTIES: pa.binary()})
    outgoing_rows.check_columns(schema, RowOptions(ignore_read_columns=True))
