"""Rows: the schema, the values of each column, and the selection of rows."""

import datetime
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import store_builder
from reput.errors import InvalidOption
from reput.format import kernels, message as record, message_id, sys_flag as flags
from reput.format.message import StoredMessage
from reput.spark import rows
from reput.spark.filters import Constraint, Span, from_span, from_values
from reput.spark.rows import DamagedRow, RowFilter, RowMaker
from spark import reading

ISSUE = """
topic string, broker string, queue_id int32, queue_offset int64, physical_offset int64,
msg_id string, offset_msg_id string, tags string, keys list<string>, body binary,
properties map<string, string>, flag int32, sys_flag int32, born_timestamp timestamp,
born_host string, store_timestamp timestamp, store_host string, reconsume_times int32,
prepared_transaction_offset int64, body_crc int32, store_size int32
"""


def columns_of(messages: list[StoredMessage]) -> kernels.Columns:
    placed = store_builder.place(messages, 1 << 20)
    data = [record.encode(message) for message in placed]
    positions = np.cumsum([0, *map(len, data)], dtype=np.int64)[:-1]
    return kernels.Columns(b"".join(data), positions)


def rows_of(messages: list[StoredMessage], **options: Any) -> list[dict[str, Any]]:
    parsed = reading.parse("/store", **options)
    maker = RowMaker(list(rows.message_fields(parsed)), parsed, "broker-a")
    batch = maker.batch(columns_of(messages))
    batch.validate(full=True)
    assert batch.schema == maker.schema
    return [dict(row) for row in batch.to_pylist()]


def test_the_columns_and_their_order() -> None:
    def name(kind: pa.DataType) -> str:
        if pa.types.is_list(kind):
            return f"list<{kind.value_type}>"
        return "timestamp" if kind == pa.timestamp("us", tz="UTC") else str(kind)

    text = ", ".join(f"{field} {name(kind)}" for field, kind in rows.FIELDS.items())
    assert text == " ".join(ISSUE.split())
    assert len(rows.FIELDS) == 21


@pytest.mark.parametrize(
    ("options", "gone", "added"),
    [
        ({}, [], []),
        ({"includeBody": False}, ["body"], []),
        ({"includeHeaders": False}, ["properties"], []),
        ({"rawProperties": True}, [], ["raw_properties"]),
        ({"mode": "PERMISSIVE"}, [], ["_corrupt_record"]),
        ({"mode": "SALVAGE", "columnNameOfCorruptRecord": "why"}, [], ["why"]),
        ({"includeBody": False, "charset": "utf-8"}, ["body"], []),
    ],
)
def test_options_add_and_remove_columns(
    options: dict[str, Any], gone: list[str], added: list[str]
) -> None:
    fields = rows.message_fields(reading.parse("/store", **options))
    assert list(fields) == [name for name in rows.FIELDS if name not in gone] + added
    assert fields.get("raw_properties", pa.binary()) == pa.binary()


def test_a_charset_makes_the_body_text() -> None:
    assert rows.message_fields(reading.parse("/store", charset="utf-8"))["body"] == pa.string()


@pytest.mark.parametrize("name", ["topic", "store_size"])
def test_the_corrupt_column_needs_an_unused_name(name: str) -> None:
    with pytest.raises(InvalidOption, match="columnNameOfCorruptRecord"):
        rows.message_fields(
            reading.parse("/store", mode="PERMISSIVE", columnNameOfCorruptRecord=name)
        )


def test_every_field_of_a_message() -> None:
    message = store_builder.message(
        "Tópico",
        b"body",
        queue_id=3,
        tags="TagA",
        keys=" k1  k2 k1 ",
        unique_key="U1",
        properties={"a": "1", "ключ": "\U0001f600"},
        flag=-5,
        born_timestamp=1,
        store_timestamp=2,
        store_host=store_builder.HOST_V6,
        reconsume_times=4,
        prepared_transaction_offset=99,
    )
    (placed,) = store_builder.place([message], 1 << 20)
    (row,) = rows_of([message])
    row["properties"] = dict(row["properties"])
    assert row == {
        "topic": "Tópico",
        "broker": "broker-a",
        "queue_id": 3,
        "queue_offset": 0,
        "physical_offset": 0,
        "msg_id": "U1",
        "offset_msg_id": message_id.offset_id(placed),
        "tags": "TagA",
        "keys": ["k1", "k2", "k1"],
        "body": b"body",
        "properties": placed.properties,
        "flag": -5,
        "sys_flag": flags.STORE_HOST_V6,
        "born_timestamp": reading.time_of(1),
        "born_host": "192.0.2.1:10911",
        "store_timestamp": reading.time_of(2),
        "store_host": str(store_builder.HOST_V6),
        "reconsume_times": 4,
        "prepared_transaction_offset": 99,
        "body_crc": placed.body_crc,
        "store_size": placed.store_size,
    }


def test_missing_fields_of_a_message_are_null_or_empty() -> None:
    (row,) = rows_of([store_builder.message("T", b"")])
    assert row["tags"] is None
    assert row["keys"] == []
    assert row["properties"] == []
    assert row["body"] == b""
    assert row["msg_id"] == row["offset_msg_id"]


def test_the_last_of_equal_property_names_is_used() -> None:
    data = b"a\x011\x02b\x012\x02a\x013\x02"
    (row,) = rows_of([store_builder.message("T", property_bytes=data)], rawProperties=True)
    assert dict(row["properties"]) == {"b": "2", "a": "3"}
    assert len(row["properties"]) == 2
    assert row["raw_properties"] == data


YEAR_1_MS = -62_135_596_800_000
YEAR_10000_MS = 253_402_300_800_000


@pytest.mark.parametrize(
    ("time_ms", "is_shown"),
    [
        (-1, True),
        (YEAR_1_MS, True),
        (YEAR_1_MS - 1, False),
        (YEAR_10000_MS - 1, True),
        (YEAR_10000_MS, False),
        ((1 << 63) - 1, False),
        (-(1 << 63), False),
    ],
)
def test_times_that_spark_cannot_hold_are_null(time_ms: int, is_shown: bool) -> None:
    messages = [
        store_builder.message("T", born_timestamp=time_ms, store_timestamp=time_ms),
        store_builder.message("T", born_timestamp=5, store_timestamp=5),
    ]
    out, fine = rows_of(messages)
    expected = None
    if is_shown:
        expected = reading.EPOCH + datetime.timedelta(milliseconds=time_ms)
    assert (out["born_timestamp"], out["store_timestamp"]) == (expected, expected)
    assert fine["store_timestamp"] == reading.time_of(5)
    # A predicate on a null is not true.
    for constraint in (
        from_span("store_timestamp", -(1 << 70), None),
        from_span("store_timestamp", None, 1 << 70),
    ):
        assert constraint is not None
        parsed = reading.parse("/store")
        shown = RowFilter(parsed, constraint).rows(columns_of(messages))
        assert shown.tolist() == ([0, 1] if is_shown else [1])


def test_no_rows() -> None:
    assert rows_of([]) == []
    for options in ({"resolveTopics": True}, {"charset": "utf-8"}, {"mode": "PERMISSIVE"}):
        assert rows_of([], **options) == []


def test_notes_are_in_their_rows() -> None:
    parsed = reading.parse("/store", mode="PERMISSIVE")
    maker = RowMaker(["physical_offset", "_corrupt_record"], parsed, "b")
    batch = maker.batch(columns_of(store_builder.messages(4)), {2: "why"})
    assert batch.column(1).to_pylist() == [None, None, "why", None]
    assert maker.batch(columns_of(store_builder.messages(4))).column(1).null_count == 4


def test_a_row_of_damage_has_place_and_reason() -> None:
    parsed = reading.parse("/store", mode="PERMISSIVE")
    maker = RowMaker(list(rows.message_fields(parsed)), parsed, "b")
    first = DamagedRow(10, 20, "why", "file")
    second = DamagedRow(30, 1 << 40, "too", "file", "T", 1, 7)
    batch = maker.damage([first, second])
    batch.validate(full=True)
    known = [{k: v for k, v in row.items() if v is not None} for row in batch.to_pylist()]
    assert known == [
        {"broker": "b", "physical_offset": 10, "store_size": 20, "_corrupt_record": "why"},
        {
            **{"broker": "b", "topic": "T", "queue_id": 1, "queue_offset": 7},
            **{"physical_offset": 30, "_corrupt_record": "too"},
        },
    ]
    assert str(first.error()) == "file, physical offset 10, 20 bytes: why"
    assert second.error().reason == "too (queue T/1, queue offset 7)"


def test_original_topics_are_resolved() -> None:
    real = {"REAL_TOPIC": "Real", "REAL_QID": "7"}
    messages = [
        store_builder.message("SCHEDULE", properties=real),
        store_builder.message("T", queue_id=2),
        store_builder.message("T", queue_id=3, properties={"REAL_QID": "x"}),
    ]
    queues = [(row["topic"], row["queue_id"]) for row in rows_of(messages, resolveTopics=True)]
    assert queues == [("Real", 7), ("T", 2), ("T", 3)]
    assert [row["topic"] for row in rows_of(messages)] == ["SCHEDULE", "T", "T"]


# --- selection --------------------------------------------------------------


MESSAGES = [
    store_builder.message(
        "T",
        queue_id=i % 4,
        tags=[None, "A", "B", "AB"][i % 4],
        keys=[None, "a", "a b", "ab  c"][i % 4],
        unique_key=f"U{i}" if i % 3 else None,
        properties={"n": str(i)},
    )
    for i in range(24)
]


def test_rows_are_selected() -> None:
    """Edges of conditions; test_readers.py plays all of them on stores of Java."""
    placed = store_builder.place(MESSAGES, 1 << 20)
    ids = [message_id.offset_id(placed[i]) for i in (0, 1, 3)]
    cases: list[tuple[dict[str, Any], Constraint | None, Callable[[StoredMessage], bool]]] = [
        ({"tags": "A || AB"}, Constraint(tags=frozenset({"AB"})), lambda m: m.tags == "AB"),
        ({"keyIn": "b,c"}, None, lambda m: {"b", "c"} & {*m.keys}),
        ({"key": "a b"}, None, lambda m: False),
        (
            {"key": "a", "sql92": "n > 10 AND TAGS IN ('A', 'B')"},
            None,
            lambda m: "a" in m.keys and int(m.properties["n"]) > 10 and m.tags in ("A", "B"),
        ),
        ({}, from_values("queue_id", [1, 2, 77]), lambda m: m.queue_id in (1, 2)),
        ({}, Constraint(queue_offsets=Span(-(1 << 70), 1 << 70)), lambda m: True),
        ({}, from_span("queue_offset", 1 << 64, None), lambda m: False),
        ({}, from_values("msg_id", ids), lambda m: m in (placed[0], placed[3])),
        ({}, Constraint(tags=frozenset()), lambda m: False),
    ]
    for options, constraint, wants in cases:
        chosen = RowFilter(reading.parse("/store", **options), constraint or Constraint())
        expected = [i for i, message in enumerate(placed) if wants(message)]
        assert chosen.rows(columns_of(MESSAGES)).tolist() == expected, (options, constraint)
    # Topics named by options are wanted whatever their kind.
    named = from_values("topic", ["T", "%DLQ%g"])
    chosen = RowFilter(reading.parse("/store", topic="x", includeDlq=False), named or Constraint())
    topics = ("T", "%DLQ%g", *reading.HIDDEN_TOPICS)
    assert [chosen.wants_topic(topic) for topic in topics] == [True, True, False, False]
