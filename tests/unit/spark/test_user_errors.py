"""Errors that name what was meant, and texts as users of Spark, Hadoop and Kafka write them."""

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.types import BinaryType, DataType, IntegerType, StringType, StructField, StructType

import golden
import store_builder
from reput.errors import InvalidOption, ReputError, StoreUnavailable, one_of
from reput.spark import views
from reput.spark.source import RocketMQDataSource, UnsupportedTable
from reput.spark.store_planner import DataLoss
from reput.store.files import files
from spark import reading

MIDDLE_MS = store_builder.START_MS + 2 * store_builder.STEP_MS
"""Store time of the third message."""


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("errors") / "store"
    messages = [store_builder.message(topic) for topic in ("Orders", "Users", "Orders", "Orders")]
    return store_builder.build(folder, [*messages, store_builder.message("%RETRY%g")]).root


def source(store: Path | str, **options: object) -> RocketMQDataSource:
    return RocketMQDataSource({"path": str(store), **reading.texts(options)})


def test_one_of() -> None:
    assert one_of("x", ["Orders", "Users"]) == "Orders, Users"
    assert one_of("users", ["Orders", "Users"]) == "Orders, Users; did you mean 'Users'?"
    assert one_of("userz", ["Orders", "Users"], 1) == "Orders, ...; did you mean 'Users'?"


def test_a_topic_is_guessed_and_those_of_users_come_first(store: Path) -> None:
    text = r"it has Orders, Users, %RETRY%g; did you mean 'Orders'\?"
    with pytest.raises(DataLoss, match=text):
        reading.read(store, topic="orders")


def test_a_column_is_guessed(store: Path) -> None:
    with pytest.raises(InvalidOption, match=r"'queueId'.*; did you mean 'queue_id'\?"):
        source(store, columns="topic,queueId").schema()


@pytest.mark.parametrize(
    ("name", "kind", "text"),
    [
        ("topik", StringType(), r"store_size int; did you mean 'topic'\?"),
        ("topic", IntegerType(), "store_size int$"),
        ("body", StringType(), "together with option charset, as utf-8$"),
    ],
)
def test_a_column_of_a_schema_is_guessed(store: Path, name: str, kind: DataType, text: str) -> None:
    with pytest.raises(InvalidOption, match=text):
        source(store).reader(StructType([StructField(name, kind)]))


@pytest.mark.parametrize(
    ("column", "meant"), [("value", "body"), ("key", "keys"), ("tag", "tags"), ("Body", "body")]
)
def test_a_written_column_is_guessed(column: str, meant: str) -> None:
    columns = StructType([StructField(column, BinaryType())])
    writer = RocketMQDataSource({"nameServer": "a:1", "topic": "T"}).writer
    with pytest.raises(InvalidOption, match=rf"did you mean '{meant}'\?"):
        writer(columns, overwrite=False)


def test_a_wrong_path_is_an_error_of_load(tmp_path: Path, store: Path) -> None:
    for path, text in (
        (tmp_path / "nowhere", "does not exist"),
        (tmp_path, "has no folder commitlog"),
        (f"{store},{tmp_path}", "has no folder commitlog"),
        (f"{tmp_path}/*/store", "a pattern that matches folders"),
    ):
        with pytest.raises(ReputError, match=text):
            source(path).schema()
    for path in (store, golden.unpack("4.9.7", "clean")):
        assert "topic" in source(path).schema().names


def test_a_table_is_refused_in_a_sentence(store: Path) -> None:
    for name in ("location", "option.path"):
        with pytest.raises(UnsupportedTable, match=r"^CREATE TABLE .*: Spark reads tables"):
            source(store, **{name: "x"}).schema()
    with pytest.raises(InvalidOption, match="CREATE TABLE loses all options"):
        RocketMQDataSource({}).schema()


def test_options_of_kafka_are_explained() -> None:
    with pytest.raises(InvalidOption, match="servers are in nameServer, as host:port"):
        RocketMQDataSource({"kafka.bootstrap.servers": "a:1", "subscribe": "t"}).schema()


@pytest.mark.parametrize(
    "time", [MIDDLE_MS, "2023-11-14T22:13:20.014Z", "2023-11-15T06:13:20.014+08:00"]
)
def test_times_are_numbers_or_iso_8601(store: Path, time: object) -> None:
    options: dict[str, Any] = {"startingTimestamp": time}
    rows = reading.read(store, **options).messages
    assert min(row["store_timestamp"] for row in rows) == reading.time_of(MIDDLE_MS)
    assert len(rows) == 3
    by_queue = {"startingOffsetsByTimestamp": {"Orders": {"b": {"0": time}}}, "broker": "b"}
    rows = reading.read(store, topic="Orders", **by_queue).messages
    assert [row["queue_offset"] for row in rows] == [1, 2]


@pytest.mark.parametrize(
    ("time", "text"),
    [
        ("2023-11-14T22:13:20", "this time has no zone: append Z for UTC"),
        ("yesterday", r"milliseconds since the epoch, or an ISO 8601 time as 2026-11-21T02:44:00Z"),
        ("1960-01-01T00:00:00Z", "milliseconds since the epoch"),
        ("-5", "milliseconds since the epoch"),
    ],
)
def test_other_times_are_refused(store: Path, time: str, text: str) -> None:
    with pytest.raises(InvalidOption, match=text):
        source(store, startingTimestamp=time).schema()
    per_queue = {"Orders": {"b": {"0": time}}}
    with pytest.raises(InvalidOption, match="startingOffsetsByTimestamp"):
        source(store, broker="b", startingOffsetsByTimestamp=per_queue).schema()


def test_paths_of_hadoop_and_databricks() -> None:
    assert files.arrow_uri("s3a://bucket/store") == "s3://bucket/store"
    assert files.arrow_uri("s3n://bucket/store") == "s3://bucket/store"
    assert files.arrow_uri("gs://bucket/store") == "gs://bucket/store"
    assert files.local_path("dbfs:/data/store") == Path("/dbfs/data/store")
    assert files.local_path("dbfs:/Volumes/c/s/v") == Path("/Volumes/c/s/v")
    assert files.absolute("dbfs:/data") == "dbfs:/data"
    with pytest.raises(StoreUnavailable, match="dbfs:/no/store does not exist"):
        source("dbfs:/no/store").schema()


def test_a_store_without_consumer_offsets_says_so(
    store: Path, caplog: pytest.LogCaptureFixture
) -> None:
    options = source(store, view="offsets")._options
    (part,) = views.partitions(options)
    assert [*views.read(options, ["topic"], part)] == []
    assert caplog.messages == [f"{store}: no group has committed an offset of a selected topic"]
