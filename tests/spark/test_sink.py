"""``df.write`` and ``df.writeStream`` to a running broker, in a real Spark session.

Columns of rows and the sends are tested in tests/unit/spark, without a JVM.
"""

import datetime
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession, functions as F

from reput.client import ClientConfig, ConsumeFromWhere, ConsumerConfig, Message, blocking
from reput.testing import LocalBroker

pytestmark = pytest.mark.filterwarnings("ignore")

COUNT = 300
FROM_FIRST = ConsumerConfig(consume_from_where=ConsumeFromWhere.FIRST_OFFSET)
PUSHDOWN = "spark.sql.python.filterPushdown.enabled"
PAGE = Path(__file__).parents[2] / "docs/how-to/write-with-spark.md"
BORN = datetime.datetime(2024, 5, 6, 7, 8, 9, 123000, tzinfo=datetime.UTC)


@pytest.fixture(scope="module")
def mq() -> Iterator[LocalBroker]:
    made = ("orders", "orders-daily", "copied", "orders-copy")
    with LocalBroker(topics={"Orders": 4, "Streamed": 2, **dict.fromkeys(made, 4)}) as running:
        yield running


def read(spark: SparkSession, mq: LocalBroker, topic: str) -> DataFrame:
    return spark.read.format("rocketmq").load(nameServer=mq.namesrv_addr, topic=topic)


def refused(frame: DataFrame, mode: str = "append", **options: Any) -> str:
    with pytest.raises(PySparkException) as error:
        frame.write.format("rocketmq").mode(mode).options(**options).save()
    return str(error.value)


def test_rows_are_sent_and_read_back(spark: SparkSession, mq: LocalBroker) -> None:
    rows = [
        (
            f"body {i}",
            f"Tag{i % 3}",
            [f"k{i}", "all"],
            {"n": str(i), "city": "Köln"},
            i % 4,
            i,
            BORN,
            f"{i:032X}",
        )
        for i in range(COUNT)
    ]
    columns = "body string, tags string, keys array<string>, properties map<string,string>"
    columns += ", queue_id int, flag int, born_timestamp timestamp, uniq_key string"
    frame = spark.createDataFrame(rows, columns).repartition(3, "queue_id")
    address = {"nameServer": mq.namesrv_addr}
    frame.write.format("rocketmq").mode("append").options(**address, topic="Orders").save()
    mq.messages("Orders", at_least=COUNT)
    received = read(spark, mq, "Orders").orderBy("queue_id", "queue_offset").collect()
    given = sorted(rows, key=lambda row: (row[4], row[5]))  # rows of a queue keep their order
    assert [
        (bytes(row.body).decode(), row.tags, row["keys"], row.queue_id, row.flag, row.msg_id)
        for row in received
    ] == [(body, tag, keys, queue, flag, key) for body, tag, keys, _, queue, flag, _, key in given]
    assert {row.properties["n"] for row in received} == {str(i) for i in range(COUNT)}
    assert {row.properties["city"] for row in received} == {"Köln"}
    naive = {row.born_timestamp.replace(tzinfo=datetime.UTC) for row in received}
    assert naive == {BORN}


def test_the_code_of_the_how_to_runs_unchanged(
    spark: SparkSession, mq: LocalBroker, tmp_path: Path
) -> None:
    text = PAGE.read_text().replace("10.0.0.5:9876", mq.namesrv_addr)
    blocks = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    topics = ("orders", "orders-daily", "copied", "copied", "orders-copy")
    names: dict[str, object] = {}
    for block, topic in zip(blocks, topics, strict=True):
        exec(compile(block.replace("/data/", f"{tmp_path}/"), PAGE.name, "exec"), names)
        assert len(mq.messages(topic, at_least=3)) == 3
    sent, copies = mq.messages("orders"), mq.messages("orders-copy")
    assert {
        message.message_id: (message.body, message.keys, message.queue_id) for message in sent
    } == {message.message_id: (message.body, message.keys, message.queue_id) for message in copies}


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

    def run(**options: str) -> None:
        frame = spark.readStream.option("maxFilesPerTrigger", 1).text(str(inputs))
        writer = frame.selectExpr("value AS body").writeStream.format("rocketmq")
        writer = writer.option("checkpointLocation", str(checkpoint))
        writer = writer.options(nameServer=mq.namesrv_addr, topic="Streamed", **options)
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
    forget_commit(1)
    run(skipPresent="none")
    assert bodies(150) == sorted([*range(100), *range(50, 100)])
    assert len({message.message_id for message in mq.messages("Streamed")}) == 100


def test_a_namespace_is_that_of_clients(spark: SparkSession, mq: LocalBroker) -> None:
    client = ClientConfig(namesrv_addr=mq.namesrv_addr, namespace="tenant")
    with blocking.Producer("p", client=client) as producer:
        producer.send(Message("Orders", b"from a client", tags="TagA"))
    mq.messages("tenant%Orders", at_least=1)
    options = {"nameServer": mq.namesrv_addr, "namespace": "tenant"}
    spark.conf.set(PUSHDOWN, "true")
    try:
        rows = spark.read.format("rocketmq").load(**options, pushdown=True)
        chosen = rows.filter((F.col("topic") == "Orders") & (F.col("tags") == "TagA"))
        assert [(row.topic, bytes(row.body)) for row in chosen.collect()] == [
            ("Orders", b"from a client")
        ]
        assert rows.filter(F.col("topic") == "tenant%Orders").count() == 0
    finally:
        spark.conf.unset(PUSHDOWN)
    bodies = spark.createDataFrame([("from Spark",)], "body string")
    bodies.write.format("rocketmq").mode("append").options(**options, topic="Back").save()
    with blocking.PullConsumer("c", client=client, config=FROM_FIRST) as consumer:
        consumer.assign(consumer.queues("Back"))
        while not (received := consumer.poll()):
            pass
    assert [(message.topic, message.body) for message in received] == [("Back", b"from Spark")]
    assert received[0].properties["INSTANCE_ID"] == "tenant"
