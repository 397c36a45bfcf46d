"""``format("rocketmq")`` in a real Spark session: what a user types, and gets.

The exhaustive tests of options, plans and rows are in tests/unit/spark and need no JVM.
"""

import hashlib
import re
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, SparkSession, functions as F
from pyspark.sql.types import StructType

import golden
from spark import reading

pytestmark = pytest.mark.filterwarnings("ignore")

VERSION = pytest.mark.parametrize("version", golden.VERSIONS)
PUSHDOWN = "spark.sql.python.filterPushdown.enabled"
SCHEMA = """
    topic string, broker string, queue_id int, queue_offset long, physical_offset long,
    msg_id string, offset_msg_id string, tags string, keys array<string>, body binary,
    properties map<string,string>, flag int, sys_flag int, born_timestamp timestamp,
    born_host string, store_timestamp timestamp, store_host string, reconsume_times int,
    prepared_transaction_offset long, body_crc int, store_size int
"""


def load(spark: SparkSession, store: Path, **options: object) -> DataFrame:
    return spark.read.format("rocketmq").options(**options).load(str(store))


def everything(spark: SparkSession, store: Path, **options: object) -> DataFrame:
    return load(spark, store, readIsolation="all", **options)


def as_manifest(version: str, row: dict[str, Any]) -> dict[str, Any]:
    """A row as ``reading.expected`` has it; times as ms."""
    body = (len(row["body"]), hashlib.sha256(row["body"]).hexdigest())
    properties = golden.known_properties(version, row["properties"])
    return {**row, "body": body, "properties": properties}


def test_the_format_is_found_and_has_the_documented_columns(spark: SparkSession) -> None:
    frame = load(spark, golden.unpack("4.9.7", "clean"))
    assert frame.schema == StructType.fromDDL(SCHEMA)


@VERSION
def test_every_message_equals_its_manifest(spark: SparkSession, version: str) -> None:
    times = ("born_timestamp", "store_timestamp")
    frame = everything(spark, golden.unpack(version, "clean"), maxBytesPerPartition="100k")
    in_ms = frame.withColumns({name: F.unix_millis(name) for name in times})
    got = [as_manifest(version, row.asDict()) for row in in_ms.orderBy("physical_offset").collect()]
    want = [
        {
            **row,
            **{
                name: one[key]
                for name, key in zip(times, ("bornTimestamp", "storeTimestamp"), strict=True)
            },
        }
        for row, one in zip(
            reading.expected(version, "clean"), golden.messages(version, "clean"), strict=True
        )
    ]
    assert got == want


@pytest.mark.parametrize("pushdown", ["true", "false"])
def test_predicates_select_the_same_rows_whether_spark_pushes_them_or_not(
    spark: SparkSession, pushdown: str
) -> None:
    spark.conf.set(PUSHDOWN, pushdown)
    frame = everything(spark, golden.unpack("4.9.7", "clean"))
    messages = golden.messages("4.9.7", "clean")
    middle = messages[len(messages) // 2]
    when = reading.time_of(middle["storeTimestamp"])
    cases = [
        (F.col("topic") == "GoldenFour", lambda one: one["topic"] == "GoldenFour"),
        (
            F.col("topic").isin("GoldenOne", "GoldenFour") & (F.col("queue_id") == 0),
            lambda one: one["topic"] in ("GoldenOne", "GoldenFour") and one["queueId"] == 0,
        ),
        (F.col("tags") == "TagA", lambda one: one["tags"] == "TagA"),
        (F.col("queue_offset") < 3, lambda one: one["queueOffset"] < 3),
        (
            F.col("physical_offset") >= middle["commitLogOffset"],
            lambda one: one["commitLogOffset"] >= middle["commitLogOffset"],
        ),
        (
            F.col("store_timestamp") <= F.lit(when),
            lambda one: one["storeTimestamp"] <= middle["storeTimestamp"],
        ),
        (F.col("msg_id") == middle["uniqKey"], lambda one: one["uniqKey"] == middle["uniqKey"]),
    ]
    try:
        for predicate, wanted in cases:
            rows = frame.filter(predicate).select("physical_offset").collect()
            assert sorted(row[0] for row in rows) == [
                one["commitLogOffset"] for one in messages if wanted(one)
            ], str(predicate)
    finally:
        spark.conf.unset(PUSHDOWN)


def test_a_pushed_predicate_leaves_no_filter_in_the_plan(spark: SparkSession) -> None:
    spark.conf.set(PUSHDOWN, "true")
    try:
        frame = load(spark, golden.unpack("4.9.7", "clean"))
        plan = frame.filter("topic = 'GoldenFour' and queue_offset > 2")._jdf.queryExecution()
        assert not re.search(r"\bFilter\b", plan.executedPlan().toString())
    finally:
        spark.conf.unset(PUSHDOWN)


@VERSION
def test_views_count_what_the_manifest_counts(spark: SparkSession, version: str) -> None:
    store = golden.unpack(version, "clean")
    manifest = golden.manifest(version, "clean")
    counts = {
        view: load(spark, store, view=view).count()
        for view in ("consumequeue", "index", "gaps", "offsets", "topics", "checkpoint")
    }
    queues = [queue for queue in manifest["queues"] if "units" in queue]
    assert counts["consumequeue"] == sum(len(queue["units"]) for queue in queues)
    assert counts["index"] == sum(file["indexCount"] - 1 for file in manifest["index"])
    assert counts["gaps"] == 0
    assert counts["offsets"] == sum(len(one) for one in manifest["consumerOffsets"].values())
    assert counts["topics"] == len({*manifest["topics"], *(queue["topic"] for queue in queues)})
    assert counts["checkpoint"] == 6
    families = load(spark, store, view="files").groupBy("family").count().collect()
    found = {row["family"]: row["count"] for row in families}
    listed = [file["path"].split("/")[0] for file in manifest["files"]]
    assert found == {name: listed.count(name) for name in ("commitlog", "consumequeue", "index")}


def test_each_mode_does_what_it_says_to_a_damaged_store(spark: SparkSession) -> None:
    store = golden.unpack("4.9.7", "torn/crc-late")
    messages = golden.messages("4.9.7", "clean")
    [(offset, _, reason)] = reading.damaged("4.9.7", "crc-late").runs
    assert everything(spark, store, mode="DROPMALFORMED").count() == len(messages) - 1
    for mode in ("PERMISSIVE", "SALVAGE"):
        frame = everything(spark, store, mode=mode)
        assert frame.count() == len(messages)
        bad = frame.filter("_corrupt_record is not null").collect()
        assert [row["physical_offset"] for row in bad] == [offset]
        assert bad[0]["_corrupt_record"] == reason
        assert (bad[0]["topic"] is not None) == (mode == "SALVAGE")
    with pytest.raises(PySparkException) as failed:
        everything(spark, store).count()
    for part in (f"physical offset {offset}", reason):
        assert part in str(failed.value)


def test_a_wrong_option_is_named_to_the_user(spark: SparkSession) -> None:
    store = golden.unpack("4.9.7", "clean")
    with pytest.raises(AnalysisException, match=r"option .mode. is .LOUD.*PERMISSIVE"):
        load(spark, store, mode="LOUD").count()
    with pytest.raises(AnalysisException, match=r"NoSuchTopic.*is not in"):
        load(spark, store, topic="NoSuchTopic").count()
    with pytest.raises(AnalysisException, match="does not exist"):
        load(spark, store / "nowhere").count()


def test_a_schema_of_some_columns_reads_those_only(spark: SparkSession) -> None:
    store = golden.unpack("5.5.0", "clean")
    reader = spark.read.format("rocketmq").option("readIsolation", "all")
    frame = reader.schema("queue_offset long, topic string").load(str(store))
    assert frame.columns == ["queue_offset", "topic"]
    want = sorted((one["queueOffset"], one["topic"]) for one in golden.messages("5.5.0", "clean"))
    assert sorted((row[0], row[1]) for row in frame.collect()) == want
    with pytest.raises(AnalysisException, match="topic int"):
        reader.schema("topic int").load(str(store)).count()


def test_rows_survive_parquet_and_sql(spark: SparkSession, tmp_path: Path) -> None:
    frame = everything(spark, golden.unpack("4.5.2", "clean"))
    frame.write.parquet(str(tmp_path / "copy"))
    copy = spark.read.parquet(str(tmp_path / "copy"))
    # A map has no order, so it cannot be compared; its sorted entries can.
    plain = [column for column in frame.columns if column != "properties"]
    entries = F.array_sort(F.map_entries("properties")).alias("properties")
    left, right = (one.select(*plain, entries) for one in (frame, copy))
    assert left.exceptAll(right).count() == 0
    assert right.exceptAll(left).count() == 0
    frame.createOrReplaceTempView("messages")
    counted = spark.sql("select topic, count(*) from messages group by topic").collect()
    topics = [one["topic"] for one in golden.messages("4.5.2", "clean")]
    assert {row[0]: row[1] for row in counted} == {name: topics.count(name) for name in topics}
