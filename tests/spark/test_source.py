"""``format("rocketmq")`` in a real Spark session: options, rows, pushdown, and errors.

The exhaustive tests of options, plans and rows are in tests/unit/spark and need no JVM.
"""

import importlib.util
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

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
"""The rows of each version's stores are compared with manifests without a JVM; see above."""
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


@VERSION
def test_columns_and_rows_are_those_without_spark(
    spark: SparkSession, version: str, tmp_path: Path
) -> None:
    """Also after a round trip through Parquet."""
    frame = everything(spark, golden.unpack(version, "clean"), maxBytesPerPartition="400k")
    assert frame.schema == StructType.fromDDL(SCHEMA)
    frame.write.parquet(str(tmp_path / "copy"))
    want = reput.arrow.scan(golden.unpack(version, "clean"), readIsolation="all").read_all()
    for table in (frame.toArrow(), spark.read.parquet(str(tmp_path / "copy")).toArrow()):
        assert table.schema.names == want.schema.names
        rows = table.sort_by("physical_offset").to_pylist(maps_as_pydicts="strict")
        assert rows == want.sort_by("physical_offset").to_pylist(maps_as_pydicts="strict")


PREDICATES = {
    "topic = 'GoldenFour' and queue_offset > 2": True,
    "topic in ('GoldenFour', 'GoldenOne') and queue_id = 0": True,
    "queue_id = 1 and tags = 'TagA'": True,
    "physical_offset between 1000 and 90000": True,
    "store_timestamp < timestamp'2026-11-21 02:44:00Z' and msg_id = 'x'": True,
    "topic is not null": True,
    "tags is not null": False,
    "topic like 'Golden%' or queue_id = 1": False,
}
"""Predicates, and whether Spark's plan has no filter with a source that takes them."""


def check_predicates(
    spark: SparkSession, frame: DataFrame, predicates: Mapping[str, bool]
) -> dict[str, list[tuple[Any, ...]]]:
    """Check that each selects the same rows pushed or not; return these rows."""
    # Spark evaluates all of them in one query, in which they are no filters.
    table = frame.select("physical_offset", "msg_id", *map(F.expr, predicates)).collect()
    rows: dict[str, list[tuple[Any, ...]]] = {}
    with pushdown(spark, "true"):
        for number, (predicate, is_pushed) in enumerate(predicates.items()):
            rows[predicate] = sorted(tuple(row[:2]) for row in table if row[2 + number])
            chosen = frame.filter(predicate).select("physical_offset", "msg_id")
            plan = chosen._jdf.queryExecution().executedPlan().toString()
            has_filter = not (is_pushed and PREDICATES_END_WITH_QUERY)
            assert bool(re.search(r"\bFilter\b", plan)) == has_filter, plan
            if PUSHED_MAX is None or number < PUSHED_MAX:
                assert sorted(map(tuple, chosen.collect())) == rows[predicate], predicate
    return rows


def test_predicates_select_the_same_rows_pushed_or_not(spark: SparkSession) -> None:
    frame = everything(spark, golden.unpack("4.9.7", "clean"), pushdown=True)
    rows = check_predicates(spark, frame, PREDICATES)
    in_one = rows["topic in ('GoldenFour', 'GoldenOne') and queue_id = 0"]
    assert [place for place, _ in in_one] == [
        message["commitLogOffset"]
        for message in golden.messages("4.9.7", "clean")
        if message["topic"] in ("GoldenOne", "GoldenFour") and message["queueId"] == 0
    ]


def test_damage_and_predicates(spark: SparkSession) -> None:
    store = golden.unpack("4.9.7", "torn/size-late")
    (run,) = reading.damaged("4.9.7", "size-late").runs
    late = f"physical_offset >= {run[0] - 500}"
    predicates = {
        late: True,
        f"{late} and topic is not null": True,
        f"store_size = {run[1]}": False,
    }
    frame = everything(spark, store, mode="PERMISSIVE", pushdown=True)
    rows = check_predicates(spark, frame, predicates)
    assert [(run[0], None) in chosen for chosen in rows.values()] == [True, False, True]
    with pytest.raises(PySparkException) as failed:
        everything(spark, store).count()
    file = store / "commitlog" / f"{run[0] - run[0] % 65536:020d}"
    assert f"{file}, physical offset {run[0]}, {run[1]} bytes: {run[2]}" in str(failed.value)


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


def test_several_stores_views_and_no_rows(spark: SparkSession) -> None:
    stores = [str(golden.unpack(version, "ext")) for version in golden.VERSIONS]
    counts = [len(golden.messages(version, "ext")) for version in golden.VERSIONS]
    reader = spark.read.format("rocketmq")
    assert reader.load(stores).count() == sum(counts)
    nothing = reader.load(stores[0]).filter("topic = 'a' and topic = 'b'")
    assert nothing.collect() == []
    assert reader.option("startingPhysicalOffset", 1 << 50).load(stores[0]).collect() == []
    families = load(spark, golden.unpack("4.9.7", "clean"), view="files").groupBy("family").count()
    files = golden.manifest("4.9.7", "clean")["files"]
    listed = [file["path"].split("/")[0] for file in files]
    assert {row["family"]: row["count"] for row in families.collect()} == {
        name: listed.count(name) for name in ("commitlog", "consumequeue", "index")
    }


def test_an_invalid_option_is_named(spark: SparkSession) -> None:
    store = golden.unpack("4.9.7", "clean")
    with pytest.raises(AnalysisException, match=r"option .mode. is .LOUD.*PERMISSIVE") as error:
        load(spark, store, mode="LOUD")
    assert "Traceback" not in str(error.value)
    with pytest.raises(AnalysisException, match=r"NoSuchTopic.*is not in"):
        load(spark, store, topic="NoSuchTopic").count()
    with pytest.raises(AnalysisException, match=r"CREATE TEMPORARY VIEW .* does the same"):
        spark.sql(f"CREATE TABLE stored USING rocketmq OPTIONS (path '{store}')")


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
