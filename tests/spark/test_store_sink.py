"""``df.write`` and ``df.writeStream`` to a store folder in a real Spark session.

Writers and kills are tested without Spark, in tests/unit/spark/importing.
"""

from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession, functions as F

import golden
from reput.spark.importing.commit import DRAFTS_SUFFIX
from reput.store.reader import StoreReader
from reput.store.verify import verify
from spark import importing

pytestmark = pytest.mark.filterwarnings("ignore")


def numbered(spark: SparkSession, start: int, stop: int) -> DataFrame:
    """Return messages with their numbers in all columns, in three partitions."""
    n = F.col("id").cast("string")
    return spark.range(start, stop, 1, 3).select(
        F.lit("Numbers").alias("topic"),
        F.concat(n, F.lit(" " * 300)).alias("body"),
        F.array(n).alias("keys"),
        F.create_map(F.lit("n"), n).alias("properties"),
        (F.col("id") % 4).cast("int").alias("queue_id"),
    )


def bodies(store: Path) -> list[int]:
    """Verify a store, and return the numbers of its messages in log order."""
    reader = StoreReader.open(str(store))
    assert verify(reader).findings == ()
    return [int(message.body) for message in reader.messages()]


def save(frame: DataFrame, store: Path, mode: str = "append", **options: object) -> None:
    sizes = {**importing.SIZES, **options}
    frame.write.format("rocketmq").options(**sizes).mode(mode).save(str(store))


def test_a_batch_creates_extends_and_replaces_a_store(spark: SparkSession, tmp_path: Path) -> None:
    store = tmp_path / "store"
    save(numbered(spark, 0, 900), store)
    save(numbered(spark, 900, 1000), store)
    assert bodies(store) == list(range(1000))
    # The rows read go into another store: same queues, same order, same properties.
    read = spark.read.format("rocketmq").option("scan", "log").load(str(store))
    copy = tmp_path / "copy"
    save(read.where("queue_id < 2"), copy, ignoreReadColumns=True)
    assert bodies(copy) == [n for n in range(1000) if n % 4 < 2]
    (hit,) = StoreReader.open(str(copy)).messages_by_key("Numbers", "777").messages
    assert (int(hit.body), hit.queue_id, hit.properties["n"]) == (777, 1, "777")
    save(numbered(spark, 0, 7), store, "overwrite")
    assert bodies(store) == list(range(7))
    # A failed task leaves nothing.
    bad = spark.range(7, 20, 1, 3).selectExpr(
        "'Numbers' AS topic", "'' AS body", "IF(id = 15, -1, 0) AS queue_id"
    )
    with pytest.raises(PySparkException, match="column 'queue_id': is -1"):
        save(bad, store)
    assert bodies(store) == list(range(7))
    assert [path.name for path in tmp_path.iterdir() if path.name.endswith(DRAFTS_SUFFIX)] == []


def test_each_batch_of_a_stream_is_in_the_store_once(spark: SparkSession, tmp_path: Path) -> None:
    source, store, checkpoint = (tmp_path / name for name in ("source", "store", "checkpoint"))

    def arrive(start: int, stop: int) -> None:
        numbered(spark, start, stop).coalesce(1).write.mode("append").parquet(str(source))

    def run() -> str:
        frame = (
            spark.readStream.schema(numbered(spark, 0, 1).schema)
            .option("maxFilesPerTrigger", 1)
            .parquet(str(source))
        )
        query = (
            frame.writeStream.format("rocketmq")
            .options(**importing.SIZES)
            .option("checkpointLocation", str(checkpoint))
            .trigger(availableNow=True)
            .start(str(store))
        )
        query.awaitTermination()
        return str(query.id)

    arrive(0, 300)
    arrive(300, 400)
    first = run()
    assert sorted(bodies(store)) == list(range(400))
    # As if Spark had been killed before it recorded its last batch: it runs the batch again.
    (checkpoint / "commits" / "1").unlink()
    (checkpoint / "commits" / ".1.crc").unlink(missing_ok=True)
    arrive(400, 500)
    assert run() == first
    assert sorted(bodies(store)) == list(range(500))
    assert len(golden.log_files(store)) == 4
