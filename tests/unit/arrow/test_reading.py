"""Reads without Spark: rows, options, errors, places, and what they need to be installed."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import golden
import reput.arrow
from reput.client import blocking
from reput.client.message import Message
from reput.errors import CorruptRecord, InvalidOption, StoreUnavailable
from reput.extras import ExtraMissing
from reput.spark.store_planner import DataLoss
from reput.testing import LocalBroker
from spark import reading

LIGHT = ("topic", "queue_id", "queue_offset", "physical_offset")


def clean() -> Path:
    return golden.unpack("4.9.7", "clean")


# --- rows -------------------------------------------------------------------


def test_columns_in_the_order_of_the_caller() -> None:
    reader = reput.arrow.scan(clean(), columns=["tags", "queue_id"], topic="GoldenOne")
    assert reader.schema == pa.schema([("tags", pa.string()), ("queue_id", pa.int32())])
    expected = [m["tags"] for m in golden.messages("4.9.7", "clean") if m["topic"] == "GoldenOne"]
    assert reader.read_all()["tags"].to_pylist() == expected


def test_options_have_the_values_of_python() -> None:
    """Lists, dicts, bools and None are what they would be as texts."""
    store = clean()
    by_texts = reput.arrow.scan(
        store,
        topic="GoldenOne,GoldenFour",
        columns=LIGHT,
        checkCrc="false",
        startingOffsets='{"GoldenOne": {"broker-a": {"0": 100}}}',
    ).read_all()
    by_values = reput.arrow.scan(
        store,
        topic=["GoldenOne", "GoldenFour"],
        columns=LIGHT,
        checkCrc=False,
        startingOffsets={"GoldenOne": {"broker-a": {0: 100}}},
        tags=None,
    ).read_all()
    assert by_values == by_texts
    equal = by_values.filter(pc.field("topic") == "GoldenOne")["queue_offset"].to_pylist()
    assert min(equal) == 100


def test_a_filter_on_columns_that_are_not_returned() -> None:
    read = reput.arrow.scan(
        clean(), columns=["queue_offset"], filter=[("topic", "=", "GoldenOne"), ("flag", "=", 0)]
    ).read_all()
    assert read.schema.names == ["queue_offset"]
    chosen = [
        message["queueOffset"]
        for message in golden.messages("4.9.7", "clean")
        if message["topic"] == "GoldenOne" and message["flag"] == 0
    ]
    assert read["queue_offset"].to_pylist() == chosen


def test_a_filter_sees_the_topics_that_resolve_topics_shows() -> None:
    settings: Any = {"resolveTopics": True, "columns": ["physical_offset", "topic"]}
    everything = reput.arrow.scan(clean(), **settings).read_all()
    stored = reput.arrow.scan(clean(), **{**settings, "resolveTopics": False}).read_all()
    moved = everything["topic"].to_pylist()
    topic = next(
        shown
        for shown, kept in zip(moved, stored["topic"].to_pylist(), strict=True)
        if shown != kept
    )
    condition = pc.field("topic") == topic
    chosen = reput.arrow.scan(clean(), filter=condition, **settings).read_all()
    assert chosen == everything.filter(condition)


def test_views_are_read_too() -> None:
    topics = reput.arrow.scan(clean(), view="topics", filter=[("topic", "=", "GoldenFour")])
    (row,) = topics.read_all().to_pylist()
    sent = [m for m in golden.messages("4.9.7", "clean") if m["topic"] == "GoldenFour"]
    assert row["message_count"] == len(sent)
    files = reput.arrow.scan(clean(), view="files").read_all()
    assert reput.arrow.dataset(clean(), view="files").count_rows() == files.num_rows > 0


# --- places -----------------------------------------------------------------


def test_several_stores_and_a_uri() -> None:
    store = clean()
    expected = reput.arrow.scan(store, columns=LIGHT).read_all()
    for place in (str(store), f"file://{store}", [store]):
        assert reput.arrow.scan(place, columns=LIGHT).read_all() == expected
    twice = reput.arrow.scan([store, str(store)], columns=LIGHT).read_all()
    assert twice == pa.concat_tables([expected, expected])


@pytest.mark.xdist_group("live")
def test_brokers_are_read_up_to_the_messages_of_the_start(tmp_path: Path) -> None:
    with LocalBroker(topics={"T": 2}, folder=tmp_path) as mq:
        with blocking.Producer("p", namesrv=mq.namesrv_addr) as producer:
            for number in range(6):
                producer.send(
                    Message("T", b"%d" % number, tags="even" if number % 2 == 0 else "odd")
                )
            mq.messages("T", at_least=6)
            reader = reput.arrow.scan(mq.namesrv_addr, topic="T", columns=["body", "broker"])
            producer.send(Message("T", b"late"))
            mq.messages("T", at_least=7)
            bodies = reader.read_all()["body"].to_pylist()
            assert sorted(bodies) == [b"%d" % number for number in range(6)]
        even = reput.arrow.scan(
            nameServer=mq.namesrv_addr, topic="T", filter=pc.field("tags") == "even"
        )
        assert {*even.read_all()["body"].to_pylist()} == {b"0", b"2", b"4"}
        with pytest.raises(DataLoss, match="topic 'U' is not known to name server"):
            reput.arrow.scan(mq.namesrv_addr, topic="U")


# --- errors -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"topc": "A"}, "option 'topc' is 'A'.* did you mean 'topic'"),
        ({"columns": ["topik"]}, "option 'columns' is 'topik'.* did you mean 'topic'"),
        ({"filter": pc.field("queu_id") == 1}, "'filter' is 'queu_id'.* did you mean 'queue_id'"),
        ({"threads": 0}, "option 'threads' is 0; allowed: a number from 1"),
        ({"maxOffsetsPerTrigger": 5}, "left out in a batch read"),
        ({"nameServer": "a:1"}, "'path' is"),
        ({"topic": "A", "assign": {"A": {"b": [0]}}}, "not two of them"),
    ],
    ids=str,
)
def test_wrong_options_are_refused(options: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidOption, match=text):
        reput.arrow.scan(clean(), **options)


def test_a_missing_store_is_reported_before_anything_is_read(tmp_path: Path) -> None:
    for door in (reput.arrow.scan, reput.arrow.dataset):
        with pytest.raises(StoreUnavailable, match="nothing does not exist"):
            door(tmp_path / "nothing")
    with pytest.raises(InvalidOption, match="option 'path' is None"):
        reput.arrow.scan()


def test_a_missing_topic_is_reported_by_the_scan() -> None:
    with pytest.raises(DataLoss, match="topic 'Nothing' is not in"):
        reput.arrow.scan(clean(), topic="Nothing")


def test_damage_is_an_error_with_its_place_unless_a_mode_shows_it() -> None:
    store = golden.unpack("4.9.7", "torn/crc-early")
    ((offset, length, reason),) = reading.damaged("4.9.7", "crc-early").runs
    reader = reput.arrow.scan(store, maxBytesPerPartition="8k")
    with pytest.raises(CorruptRecord, match=f"physical offset {offset}, {length} bytes: {reason}"):
        reader.read_all()
    shown = reput.arrow.scan(
        store, mode="PERMISSIVE", filter=pc.field("_corrupt_record").is_valid()
    )
    (row,) = shown.read_all().to_pylist()
    assert (row["physical_offset"], row["store_size"]) == (offset, length)


# --- packages ---------------------------------------------------------------


def test_it_needs_no_pyspark() -> None:
    code = (
        "import sys\n"
        "sys.modules['pyspark'] = None\n"
        "import reput.arrow\n"
        f"print(reput.arrow.scan({str(clean())!r}, topic='GoldenFour').read_all().num_rows)\n"
        "print(sorted({'polars', 'duckdb', 'numba'} & {*sys.modules}))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, env=os.environ
    )
    sent = [m for m in golden.messages("4.9.7", "clean") if m["topic"] == "GoldenFour"]
    assert (done.stdout, done.stderr) == (f"{len(sent)}\n[]\n", "")


@pytest.mark.parametrize(
    ("package", "use", "text"),
    [
        ("pandas", "to_pandas", "to_pandas needs pandas: pip install '.[pandas]'"),
        ("polars", "scan_polars", "scan_polars needs Polars: pip install '.[polars]'"),
        ("pyarrow", "scan", r"reput.arrow needs numpy and pyarrow: pip install '\.\[arrow\]'"),
    ],
)
def test_a_missing_package_names_the_extra(
    package: str, use: str, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)  # type: ignore[arg-type]
    for name in [name for name in sys.modules if name.startswith("reput.arrow.")]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(ExtraMissing, match=text.replace("[p", r"\[p").replace("s]", r"s\]")):
        getattr(reput.arrow, use)(clean())
