"""``df.write`` and ``df.writeStream`` to a running broker, in a real Spark session.

Columns of rows and the sends are tested in tests/unit/spark, without a JVM.
"""

import datetime
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession, functions as F

from reput.testing import LocalBroker

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module")
def mq() -> Iterator[LocalBroker]:
    with LocalBroker(topics={"Orders": 4, "Streamed": 2}) as running:
        yield running


def refused(frame: DataFrame, mode: str = "append", **options: Any) -> str:
    with pytest.raises(PySparkException) as error:
        frame.write.format("rocketmq").mode(mode).options(**options).save()
    return str(error.value)


def test_rows_are_sent_and_read_back(spark: SparkSession, mq: LocalBroker) -> None:
    born = datetime.datetime(2024, 5, 6, 7, 8, 9, 123000, tzinfo=datetime.UTC)
    rows = [
        {
            "body": b"body %d" % i,
            "tags": f"Tag{i % 3}",
            "keys": [f"k{i}", "all"],
            "properties": {"n": str(i), "city": "Köln"},
            "queue_id": i % 4,
            "flag": i,
            "born_timestamp": born,
            "uniq_key": f"{i:032X}",
        }
        for i in range(60)
    ]
    columns = "body binary, tags string, keys array<string>, properties map<string,string>"
    columns += ", queue_id int, flag int, born_timestamp timestamp, uniq_key string"
    values = [tuple(row.values()) for row in rows]
    frame = spark.createDataFrame(values, columns).repartition(2, "queue_id")
    where = {"nameServer": mq.namesrv_addr, "topic": "Orders"}
    frame.write.format("rocketmq").mode("append").options(**where).save()
    mq.messages("Orders", at_least=len(rows))
    table = spark.read.format("rocketmq").load(**where).toArrow()
    received = table.sort_by("flag").to_pylist(maps_as_pydicts="strict")
    for row, sent in zip(received, rows, strict=True):
        assert sent["properties"].items() <= row.pop("properties").items()
        assert row["msg_id"] == sent["uniq_key"]
        for name in ("body", "tags", "keys", "queue_id", "flag", "born_timestamp"):
            assert row[name] == sent[name], name
        assert row["queue_offset"] == sent["flag"] // 4  # rows of a queue keep their order


def test_invalid_rows_are_refused(spark: SparkSession, mq: LocalBroker) -> None:
    options = {"nameServer": mq.namesrv_addr, "topic": "Refused"}
    frame = spark.range(3).select(F.col("id").cast("string").alias("body"))
    assert "cannot be replaced" in refused(frame, "overwrite", **options)
    assert "Append" in refused(frame, "errorifexists", **options)
    nothing = frame.withColumn("body", F.when(F.col("body") != "1", F.col("body")))
    assert "is null; every message has a body" in refused(nothing, **options)


def test_a_replayed_batch_is_not_sent_again(
    spark: SparkSession, mq: LocalBroker, tmp_path: Path
) -> None:
    inputs, checkpoint = tmp_path / "in", tmp_path / "checkpoint"
    inputs.mkdir()

    def add(start: int) -> None:
        (inputs / f"{start}.txt").write_text("\n".join(map(str, range(start, start + 50))))

    def run() -> None:
        frame = spark.readStream.option("maxFilesPerTrigger", 1).text(str(inputs))
        writer = frame.selectExpr("value AS body").writeStream.format("rocketmq")
        writer = writer.option("checkpointLocation", str(checkpoint))
        writer = writer.options(nameServer=mq.namesrv_addr, topic="Streamed")
        writer.trigger(availableNow=True).start().awaitTermination()

    def forget_commit(batch: int) -> None:
        """Leave the checkpoint as if the driver had died just before this commit."""
        (checkpoint / "commits" / str(batch)).unlink()
        (checkpoint / "commits" / f".{batch}.crc").unlink()

    def bodies(count: int) -> list[int]:
        return sorted(int(message.body) for message in mq.messages("Streamed", at_least=count))

    add(0)
    run()
    assert bodies(50) == list(range(50))
    forget_commit(0)
    add(50)
    run()
    assert bodies(100) == list(range(100))
    assert len({message.message_id for message in mq.messages("Streamed")}) == 100
