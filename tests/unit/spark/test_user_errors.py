"""Errors that name what was meant, and texts as users of Spark, Hadoop and Kafka write them."""

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.types import BinaryType, IntegerType, StringType, StructField, StructType

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
    for name, kind, text in (
        ("topik", StringType(), r"store_size int; did you mean 'topic'\?"),
        ("topic", IntegerType(), "store_size int$"),
        ("body", StringType(), "together with option charset, as utf-8$"),
    ):
        with pytest.raises(InvalidOption, match=text):
            source(store).reader(StructType([StructField(name, kind)]))
    for column, meant in (("value", "body"), ("key", "keys"), ("tag", "tags"), ("Body", "body")):
        writer = RocketMQDataSource({"nameServer": "a:1", "topic": "T"}).writer
        with pytest.raises(InvalidOption, match=rf"did you mean '{meant}'\?"):
            writer(StructType([StructField(column, BinaryType())]), overwrite=False)


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


def test_times_are_numbers_or_iso_8601(store: Path) -> None:
    def per_queue(time: object) -> dict[str, Any]:
        return {"broker": "b", "startingOffsetsByTimestamp": {"Orders": {"b": {"0": time}}}}

    for time in (MIDDLE_MS, "2023-11-14T22:13:20.014Z", "2023-11-15T06:13:20.014+08:00"):
        rows = reading.read(store, startingTimestamp=time).messages
        assert [row["topic"] for row in rows] == ["Orders", "Orders", "%RETRY%g"]
        rows = reading.read(store, topic="Orders", **per_queue(time)).messages
        assert [row["queue_offset"] for row in rows] == [1, 2]
    for text, refusal in (
        ("2023-11-14T22:13:20", "this time has no zone: append Z for UTC"),
        ("yesterday", "milliseconds since the epoch, or an ISO 8601 time as 2026-11-21T02:44:00Z"),
        ("1960-01-01T00:00:00Z", "milliseconds since the epoch"),
        ("-5", "milliseconds since the epoch"),
    ):
        with pytest.raises(InvalidOption, match=refusal):
            source(store, startingTimestamp=text).schema()
        with pytest.raises(InvalidOption, match="startingOffsetsByTimestamp"):
            source(store, **per_queue(text)).schema()


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
