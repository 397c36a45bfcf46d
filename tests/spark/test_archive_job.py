"""``archive``, ``verify`` and ``restore`` as Spark jobs, and archives in ``format("rocketmq")``.

The content of archives is tested without a JVM, in tests/unit/spark/archive/test_archive.py.
"""

import re
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession, functions as F

import golden
from reput.spark.jobs.archive import archive, verify
from reput.spark.jobs.restore import restore
from reput.store.config import StoreConfig
from reput.store.message_store import MessageStore
from reput.store.writing.incoming import IncomingMessage

pytestmark = pytest.mark.filterwarnings("ignore")

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "archive-a-store.md"
PUSHDOWN = "spark.sql.python.filterPushdown.enabled"


def load(spark: SparkSession, path: Path, **options: object) -> DataFrame:
    options = {"readIsolation": "all", **options}
    return spark.read.format("rocketmq").options(**options).load(str(path))


def rows(frame: DataFrame) -> list[dict[str, object]]:
    return [row.asDict() for row in frame.orderBy("physical_offset").collect()]


@pytest.fixture(scope="module")
def archived(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return an archive of the whole of ``clean`` of 5.5.0, for reading only."""
    into = tmp_path_factory.mktemp("archived") / "archive"
    steps: list[tuple[str, int, int]] = []
    result = archive(
        spark,
        str(golden.unpack("5.5.0", "clean")),
        str(into),
        include_last=True,
        progress=lambda *step: steps.append(step),
    )
    assert result.messages == len(golden.messages("5.5.0", "clean"))
    count = result.log_files
    assert (steps[0], steps[-1]) == (("archive", 0, count), ("archive", count, count))
    return into


def test_an_archived_store_is_restored(spark: SparkSession, archived: Path, tmp_path: Path) -> None:
    store = golden.unpack("5.5.0", "clean")
    assert verify(spark, str(archived)).is_whole
    want = load(spark, store)
    got = load(spark, archived)
    assert got.schema == want.schema
    assert rows(got) == rows(want)
    back = restore(spark, str(archived), str(tmp_path / "back"))
    assert back.is_identical
    files = {path.name: path.read_bytes() for path in golden.log_files(tmp_path / "back")}
    for path in golden.log_files(store)[: len(files)]:
        assert path.read_bytes() == files[path.name]


@pytest.mark.soak
def test_predicates_and_keys_are_pushed_into_an_archive(
    spark: SparkSession, tmp_path: Path
) -> None:
    store = golden.unpack("4.9.7", "clean")
    archive(spark, str(store), str(tmp_path), include_last=True)
    keyed = next(message for message in golden.messages("4.9.7", "clean") if message["keys"])
    word = keyed["keys"].split(" ")[0]
    assert rows(load(spark, tmp_path, key=word)) == rows(load(spark, store, key=word)) != []
    spark.conf.set(PUSHDOWN, "true")
    try:
        for predicate in (
            F.col("topic") == "GoldenFour",
            F.col("msg_id") == keyed["uniqKey"],
            F.col("queue_offset") < 3,
        ):
            want = rows(load(spark, store).where(predicate))
            assert rows(load(spark, tmp_path, pushdown=True).where(predicate)) == want != []
    finally:
        spark.conf.unset(PUSHDOWN)


def test_spark_reads_the_parquet_files_directly(spark: SparkSession, archived: Path) -> None:
    messages = golden.messages("5.5.0", "clean")
    frame = spark.read.parquet(str(archived / "messages"))
    counts = {row["topic"]: row["count"] for row in frame.groupBy("topic").count().collect()}
    assert counts == {
        topic: sum(message["topic"] == topic for message in messages)
        for topic in {message["topic"] for message in messages}
    }
    some = messages[5]
    (row,) = frame.where(F.col("offset_msg_id") == some["offsetMsgId"]).collect()
    assert row["queue_offset"] == some["queueOffset"]
    assert "date" in frame.columns


def test_the_python_of_the_page_runs_unchanged(spark: SparkSession, tmp_path: Path) -> None:
    config = StoreConfig(mapped_file_size_commit_log=64 * 1024, max_message_size=8 * 1024)
    with MessageStore.open(str(tmp_path / "data" / "store"), config) as store:
        for i in range(200):
            keys = f"KEYS\x01order-{i}\x02".encode()
            store.put(IncomingMessage("orders", bytes(1000), property_bytes=keys))
    names: dict[str, object] = {}
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert len(blocks) == 8
    for block in blocks:
        code = re.sub(r'"/(data|backup)/', rf'"{tmp_path}/\1/', block)
        exec(compile(code, PAGE.name, "exec"), names)
    assert names["checked"].is_whole  # type: ignore[attr-defined]
    restored = load(spark, tmp_path / "data" / "restored")
    assert {row["topic"] for row in rows(restored)} == {"orders"}
