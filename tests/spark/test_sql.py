"""Stores in SQL: the statements of docs/how-to/use-sql.md, and the results of table functions."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import golden
import reput.spark
from reput.format.names import is_system_topic
from spark.jobs_setting import flip, log_place

pytestmark = pytest.mark.filterwarnings("ignore")

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "use-sql.md"
VERSION = "4.9.7"


@pytest.fixture(autouse=True)
def functions(spark: SparkSession) -> Iterator[None]:
    reput.spark.register(spark)
    yield
    # Spark cannot decode its own list of tables without compiled classes.
    for view in spark.sql("SHOW VIEWS").collect():
        if view.isTemporary:
            spark.catalog.dropTempView(view.viewName)


@pytest.fixture
def conf(tmp_path: Path) -> Path:
    settings = golden.manifest(VERSION, "clean")["config"]
    path = tmp_path / "broker.conf"
    path.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
    return path


def rows(spark: SparkSession, query: str, **names: object) -> list[dict[str, Any]]:
    """Run a query; ``{name}`` in it is replaced by a text."""
    texts = {name: f"'{value}'" for name, value in names.items()}
    return [row.asDict() for row in spark.sql(query.format(**texts)).collect()]


def test_the_statements_of_the_page_run_unchanged(
    spark: SparkSession, conf: Path, tmp_path: Path
) -> None:
    store = golden.unpack(VERSION, "clean")
    blocks = re.findall(r"^```sql\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    statements = [text.strip() for block in blocks for text in block.split(";") if text.strip()]
    places = {
        "/data/rocketmq/store": str(store),
        "/etc/rocketmq/broker.conf": str(conf),
        "/data/archive": str(tmp_path / "archive"),
        "topic 'orders'": "topic 'GoldenOne'",
    }
    counts = {}
    for statement in statements:
        if "nameServer" in statement:
            continue  # needs a broker; test_live.py runs it
        for name, value in places.items():
            statement = statement.replace(name, value)
        counts[statement.split("\n")[0]] = spark.sql(statement).count()
    assert len(counts) == 8
    archived = rows(
        spark,
        "SELECT * FROM rocketmq_archive({store}, {archive})",
        store=store,
        archive=tmp_path / "archive",
    )
    manifest = golden.messages(VERSION, "clean")
    assert sum(row["topic"] == "GoldenOne" for row in manifest) == spark.table("orders").count()
    files = golden.log_files(store)
    assert archived[0]["already_archived"] == len(files) - 1  # the last file is still open
    gone = rows(
        spark,
        "SELECT * FROM rocketmq_compact({archive}, 'GoldenFour=forever, .*=0s', dry_run => true)",
        archive=tmp_path / "archive",
    )
    expired = {
        (row["topic"], row["commitLogOffset"])
        for row in manifest
        if row["commitLogOffset"] < int(files[-1].name)
        and row["topic"] != "GoldenFour"
        and not is_system_topic(row["topic"])
    }
    assert gone[0]["messages_dropped"] == len(expired) > 0
    with pytest.raises(PySparkException, match="TOPICS=TIME"):
        rows(spark, "SELECT * FROM rocketmq_compact({archive}, 'x')", archive=tmp_path / "archive")


def test_functions_return_the_results_of_jobs(
    spark: SparkSession, conf: Path, tmp_path: Path, golden_copy: Callable[[str, str], Path]
) -> None:
    clean, broken = golden.unpack(VERSION, "clean"), golden_copy(VERSION, "clean")
    lost = next(
        message for message in golden.messages(VERSION, "clean") if message["topic"] == "GoldenOne"
    )
    flip(*log_place(broken, lost["commitLogOffset"] + 4))
    stores = {"clean": clean, "broken": broken, "conf": conf, "target": tmp_path / "new"}
    counted = "SELECT coalesce(sum(messages), 0) AS n FROM rocketmq_audit({%s})"
    audit = counted + " WHERE verdict != 'dispatched'"
    check = "SELECT * FROM rocketmq_dispatch_check({%s}, config => {conf})"
    assert not rows(spark, check % "clean", **stores)
    differing = {row["topic"] for row in rows(spark, check % "broken", **stores)}
    assert differing == {"GoldenOne", None}  # the queue of the lost message, and index files
    unqueued = rows(spark, audit % "clean", **stores)[0]["n"]
    assert rows(spark, audit % "broken", **stores)[0]["n"] == unqueued + 1
    compared = rows(spark, "SELECT * FROM rocketmq_compare({clean}, {broken})", **stores)
    assert {row["section"] for row in compared} == {"files", "messages"}
    made = rows(spark, "SELECT * FROM rocketmq_salvage({broken}, {target}, {conf})", **stores)
    assert made[0]["record_count"] == len(golden.messages(VERSION, "clean")) - 1


def test_invalid_arguments_are_named(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(PySparkException, match="fast"):
        rows(spark, "SELECT * FROM rocketmq_verify({store}, fast => true)", store=tmp_path)
    with pytest.raises(PySparkException, match="is no store"):
        rows(spark, "SELECT * FROM rocketmq_verify({store})", store=tmp_path)
