"""``format("rocketmq")`` in a real Spark session: options, rows, pushdown, and errors.

The exhaustive tests of options, plans and rows are in tests/unit/spark and need no JVM.
"""

import hashlib
import importlib.util
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyspark
import pytest
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, SparkSession, functions as F
from pyspark.sql.types import StructType

import golden
import reput.arrow
from reput.spark.datasource_api import PREDICATES_END_WITH_QUERY
from spark import reading

pytestmark = pytest.mark.filterwarnings("ignore")

VERSION = pytest.mark.parametrize(
    "version", golden.VERSIONS if golden.IS_SOAK else golden.VERSIONS[-1:]
)
"""The rows of each version's stores are tested without a JVM; see above."""
PUSHDOWN = "spark.sql.python.filterPushdown.enabled"
PUSHED_MAX = None if PREDICATES_END_WITH_QUERY or golden.IS_SOAK else 2
"""Number of predicates that are tried with the setting; the source of this PySpark takes none."""
REPOSITORY = Path(__file__).parents[2]
SCHEMA = """
    topic string, broker string, queue_id int, queue_offset long, physical_offset long,
    msg_id string, offset_msg_id string, tags string, keys array<string>, body binary,
    properties map<string,string>, flag int, sys_flag int, born_timestamp timestamp,
    born_host string, store_timestamp timestamp, store_host string, reconsume_times int,
    prepared_transaction_offset long, body_crc int, store_size int
"""


def load(spark: SparkSession, store: Path, **options: object) -> DataFrame:
    return spark.read.format("rocketmq").options(**options).load(str(store))


@contextmanager
def pushdown(spark: SparkSession, setting: str) -> Iterator[None]:
    spark.conf.set(PUSHDOWN, setting)
    try:
        yield
    finally:
        spark.conf.unset(PUSHDOWN)


def everything(spark: SparkSession, store: Path, **options: object) -> DataFrame:
    return load(spark, store, readIsolation="all", **options)


def as_manifest(version: str, row: dict[str, Any]) -> dict[str, Any]:
    """Return a row in the form of ``reading.expected``, with times in ms."""
    body = (len(row["body"]), hashlib.sha256(row["body"]).hexdigest())
    properties = golden.known_properties(version, row["properties"])
    return {**row, "body": body, "properties": properties}


def test_the_format_has_the_documented_columns(spark: SparkSession) -> None:
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
                name: message[key]
                for name, key in zip(times, ("bornTimestamp", "storeTimestamp"), strict=True)
            },
        }
        for row, message in zip(
            reading.expected(version, "clean"), golden.messages(version, "clean"), strict=True
        )
    ]
    assert got == want


def test_reads_without_spark_have_the_same_columns_and_rows(spark: SparkSession) -> None:
    store = golden.unpack("4.9.7", "clean")
    options: dict[str, Any] = {"topic": "GoldenOne,GoldenFour", "startingTimestamp": 1}
    of_spark = load(spark, store, **options).toArrow().sort_by("physical_offset")
    without = reput.arrow.scan(store, **options).read_all().sort_by("physical_offset")
    assert without.schema.names == of_spark.schema.names
    assert without.to_pylist() == of_spark.to_pylist()


def test_predicates_select_the_same_rows_pushed_or_not(spark: SparkSession) -> None:
    frame = everything(spark, golden.unpack("4.9.7", "clean"), pushdown=True)
    messages = golden.messages("4.9.7", "clean")
    middle = messages[len(messages) // 2]
    when = reading.time_of(middle["storeTimestamp"])
    cases = [
        (F.col("topic") == "GoldenFour", lambda message: message["topic"] == "GoldenFour"),
        (
            F.col("topic").isin("GoldenOne", "GoldenFour") & (F.col("queue_id") == 0),
            lambda message: (
                message["topic"] in ("GoldenOne", "GoldenFour") and message["queueId"] == 0
            ),
        ),
        (F.col("tags") == "TagA", lambda message: message["tags"] == "TagA"),
        (F.col("queue_offset") < 3, lambda message: message["queueOffset"] < 3),
        (
            F.col("physical_offset") >= middle["commitLogOffset"],
            lambda message: message["commitLogOffset"] >= middle["commitLogOffset"],
        ),
        (
            F.col("store_timestamp") <= F.lit(when),
            lambda message: message["storeTimestamp"] <= middle["storeTimestamp"],
        ),
        (
            F.col("msg_id") == middle["uniqKey"],
            lambda message: message["uniqKey"] == middle["uniqKey"],
        ),
    ]
    expected = [
        [message["commitLogOffset"] for message in messages if wanted(message)]
        for _, wanted in cases
    ]
    # Spark evaluates all of them in one query, in which they are no filters.
    columns = [predicate.alias(str(number)) for number, (predicate, _) in enumerate(cases)]
    table = frame.select("physical_offset", *columns).toArrow().sort_by("physical_offset")
    offsets = table["physical_offset"]
    assert [offsets.filter(table[str(i)]).to_pylist() for i in range(len(cases))] == expected
    with pushdown(spark, "true"):
        for (predicate, _), places in [*zip(cases, expected, strict=True)][:PUSHED_MAX]:
            rows = frame.filter(predicate).select("physical_offset").collect()
            assert sorted(row[0] for row in rows) == places, str(predicate)


def test_predicates_on_damage_rows_are_the_same_pushed_or_not(
    spark: SparkSession,
) -> None:
    torn = golden.unpack("4.9.7", "torn/size-late")
    frame = everything(spark, torn, mode="PERMISSIVE", pushdown=True)
    (run,) = reading.damaged("4.9.7", "size-late").runs
    cases = {
        f"physical_offset >= {run[0] - 500}": True,
        f"physical_offset >= {run[0] - 500} and topic is not null": False,
        "queue_offset >= 0 and queue_id = 0": False,
        f"store_size = {run[1]}": True,
    }
    columns = ("physical_offset", "msg_id")
    whole = frame.selectExpr(*columns, *(f"{text} AS `{text}`" for text in cases)).collect()
    with pushdown(spark, "true"):
        for predicate, is_shown in [*cases.items()][:PUSHED_MAX]:
            rows = frame.filter(predicate).select(*columns).collect()
            selected = sorted(map(tuple, rows))
            assert selected == sorted(tuple(row[:2]) for row in whole if row[predicate]), predicate
            assert ((run[0], None) in selected) == is_shown, predicate


@pytest.mark.skipif(pyspark.__version__ < "4.1", reason="PySpark 4.0 passes no predicates")
@pytest.mark.parametrize(
    ("predicate", "is_pushed"),
    [
        ("topic = 'GoldenFour' and queue_offset > 2", True),
        ("topic in ('GoldenFour', 'GoldenOne')", True),
        ("queue_id = 1 and tags = 'TagA'", True),
        ("physical_offset between 1000 and 90000", True),
        ("store_timestamp >= timestamp'2026-11-21 02:44:00Z'", True),
        ("store_timestamp < timestamp'2026-11-21 02:44:00Z' and msg_id = 'x'", True),
        ("topic is not null", True),
        ("tags is not null", False),
        ("flag = 3", False),
        ("topic like 'Golden%'", False),
        ("topic = 'GoldenFour' or queue_id = 1", False),
    ],
)
def test_a_pushed_predicate_leaves_no_filter_in_the_plan(
    spark: SparkSession, predicate: str, is_pushed: bool
) -> None:
    with pushdown(spark, "true"):
        frame = load(spark, golden.unpack("4.9.7", "clean"), pushdown=True).filter(predicate)
        plan = frame._jdf.queryExecution().executedPlan().toString()
    is_pushed = is_pushed and PREDICATES_END_WITH_QUERY
    assert bool(re.search(r"\bFilter\b", plan)) != is_pushed, plan


def test_a_frame_is_complete_after_a_query_of_a_part(spark: SparkSession) -> None:
    """Spark 4.3 would read the part again if the source had accepted the predicate."""
    frame = everything(spark, golden.unpack("4.9.7", "clean"), pushdown=True)
    messages = golden.messages("4.9.7", "clean")
    with pushdown(spark, "true"):
        part = frame.filter("topic = 'GoldenFour'")
        count = sum(message["topic"] == "GoldenFour" for message in messages)
        assert part.count() == count
        assert frame.count() == len(messages)
        assert part.union(frame).count() == count + len(messages)


def test_several_stores_with_a_predicate_without_rows(spark: SparkSession) -> None:
    stores = [str(golden.unpack(version, "ext")) for version in golden.VERSIONS]
    counts = [len(golden.messages(version, "ext")) for version in golden.VERSIONS]
    reader = spark.read.format("rocketmq")
    assert reader.load(stores).count() == sum(counts)
    assert reader.load(",".join(stores)).count() == sum(counts)
    nothing = reader.load(stores[0]).filter("topic = 'a' and topic = 'b'")
    assert nothing.collect() == []
    with pushdown(spark, "true"):
        assert nothing.filter("queue_offset < -1").collect() == []
    assert reader.option("startingPhysicalOffset", 1 << 50).load(stores[0]).collect() == []


@VERSION
def test_counts_of_views_equal_the_manifest(spark: SparkSession, version: str) -> None:
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
    assert counts["offsets"] == sum(len(group) for group in manifest["consumerOffsets"].values())
    assert counts["topics"] == len({*manifest["topics"], *(queue["topic"] for queue in queues)})
    assert counts["checkpoint"] == 6
    families = load(spark, store, view="files").groupBy("family").count().collect()
    family_counts = {row["family"]: row["count"] for row in families}
    listed = [file["path"].split("/")[0] for file in manifest["files"]]
    assert family_counts == {
        name: listed.count(name) for name in ("commitlog", "consumequeue", "index")
    }


def test_modes_on_a_damaged_store(spark: SparkSession) -> None:
    store = golden.unpack("4.9.7", "torn/crc-late")
    messages = golden.messages("4.9.7", "clean")
    [(offset, length, reason)] = reading.damaged("4.9.7", "crc-late").runs
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
    file = store / "commitlog" / f"{offset - offset % 65536:020d}"
    assert f"{file}, physical offset {offset}, {length} bytes: {reason}" in str(failed.value)


def test_an_invalid_option_is_named(spark: SparkSession) -> None:
    store = golden.unpack("4.9.7", "clean")
    with pytest.raises(AnalysisException, match=r"option .mode. is .LOUD.*PERMISSIVE") as error:
        load(spark, store, mode="LOUD")
    assert "Traceback" not in str(error.value)
    with pytest.raises(AnalysisException, match=r"NoSuchTopic.*is not in"):
        load(spark, store, topic="NoSuchTopic").count()
    with pytest.raises(AnalysisException, match="does not exist"):
        load(spark, store / "nowhere")
    with pytest.raises(AnalysisException, match=r"CREATE TEMPORARY VIEW .* does the same"):
        spark.sql(f"CREATE TABLE stored USING rocketmq OPTIONS (path '{store}')")
    with pytest.raises(AnalysisException, match=r"option .topik. is .x.*allowed: one of allowLive"):
        load(spark, store, topik="x").count()
    with pytest.raises(AnalysisException, match=r"option .columns. is .bodie.*topic, broker"):
        load(spark, store, columns="topic,bodie").count()
    with pytest.raises(AnalysisException, match=r"option .sql92. is .a >."):
        load(spark, store, sql92="a >").count()


def test_a_schema_selects_columns(spark: SparkSession) -> None:
    store = golden.unpack("5.5.0", "clean")
    reader = spark.read.format("rocketmq").option("readIsolation", "all")
    frame = reader.schema("queue_offset long, topic string").load(str(store))
    assert frame.columns == ["queue_offset", "topic"]
    want = sorted(
        (message["queueOffset"], message["topic"]) for message in golden.messages("5.5.0", "clean")
    )
    assert sorted((row[0], row[1]) for row in frame.collect()) == want
    with pytest.raises(AnalysisException, match="topic int"):
        reader.schema("topic int").load(str(store)).count()


def test_rows_are_unchanged_by_parquet_and_sql(spark: SparkSession, tmp_path: Path) -> None:
    frame = everything(spark, golden.unpack("4.5.2", "clean"))
    frame.write.parquet(str(tmp_path / "copy"))
    copy = spark.read.parquet(str(tmp_path / "copy"))
    rows, copied = (side.toArrow().sort_by("physical_offset") for side in (frame, copy))
    assert copied.to_pylist() == rows.to_pylist() != []
    frame.createOrReplaceTempView("messages")
    counted = spark.sql("select topic, count(*) from messages group by topic").collect()
    topics = [message["topic"] for message in golden.messages("4.5.2", "clean")]
    assert {row[0]: row[1] for row in counted} == {name: topics.count(name) for name in topics}


@pytest.mark.soak
def test_the_memory_of_workers_does_not_grow_with_the_store(
    spark: SparkSession, tmp_path: Path
) -> None:
    spec = importlib.util.spec_from_file_location("stores", REPOSITORY / "benchmarks" / "stores.py")
    assert spec is not None
    assert spec.loader is not None
    stores = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(stores)

    def peak_mb(name: str, count: int) -> float:
        root = stores.make(tmp_path / name, count, 16 * 1024, log_file_bytes=64 << 20)
        load(spark, root).coalesce(1).write.format("noop").mode("overwrite").save()
        return max(_peaks_mb())

    small = peak_mb("small", 1000)
    large = peak_mb("large", 20_000)
    assert large < small + 100, f"{small} MB for 16 MB, {large} MB for 330 MB"


def _peaks_mb() -> Iterator[float]:
    """Return the peak resident sizes of the Python workers of this session, in MB."""
    parents: dict[int, int] = {}
    peaks: dict[int, float] = {}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            status = (process / "status").read_text()
            command = (process / "cmdline").read_bytes()
        except OSError:
            continue
        fields = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
        parents[int(process.name)] = int(fields["PPid"])
        if b"pyspark" in command and "VmHWM" in fields:
            peaks[int(process.name)] = int(fields["VmHWM"].split()[0]) / 1024
    for process_id, peak in peaks.items():
        ancestor = parents.get(process_id, 0)
        while ancestor not in (0, os.getpid()):
            ancestor = parents.get(ancestor, 0)
        if ancestor:
            yield peak
