"""``format("rocketmq")`` over a running broker, in a real Spark session.

The exhaustive tests of options, plans and rows are in tests/unit/spark and need no JVM.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession, functions as F

from interop.clusters import until
from reput.client import blocking
from reput.client.message import Message
from reput.store.reader import StoreReader
from reput.testing import LocalBroker
from spark.live_traffic import BROKER, queue

pytestmark = pytest.mark.filterwarnings("ignore")

PUSHDOWN = "spark.sql.python.filterPushdown.enabled"
COUNT = 400


def load(spark: SparkSession, address: str, **options: object) -> DataFrame:
    frame = spark.read.format("rocketmq").option("nameServer", address)
    return frame.options(**options).load()


def rows_of(frame: DataFrame) -> list[dict[str, Any]]:
    return [row.asDict() for row in frame.orderBy("physical_offset").collect()]


def count_of(folder: Path) -> int:
    return sum(1 for _ in StoreReader.open(str(folder), allow_live=True).messages())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("live")


@pytest.fixture(scope="module")
def mq(folder: Path) -> Iterator[LocalBroker]:
    with LocalBroker(topics={"Orders": 4, "Other": 1}, folder=folder) as running:
        with blocking.Producer("p", namesrv=running.namesrv_addr) as producer:
            messages = [
                Message(
                    "Orders", b"%d" % i, tags=f"Tag{i % 3}", keys=f"k{i}", properties={"a": "b"}
                )
                for i in range(COUNT)
            ]
            producer.send_many(messages)
            producer.send(Message("Other", b"x"), queue=queue(0, "Other"))
        # Readers of a running broker's folder skip the last record until a queue file points at it,
        # which may take a second.
        until(lambda: count_of(folder) == COUNT + 1)
        yield running


def test_rows_and_columns_equal_those_of_the_store(
    spark: SparkSession, mq: LocalBroker, folder: Path
) -> None:
    running = load(spark, mq.namesrv_addr, maxRecordsPerPartition=60, pushdown=True)
    of_store = spark.read.format("rocketmq").load(str(folder), allowLive=True, broker=BROKER)
    assert running.schema == of_store.schema
    assert running.rdd.getNumPartitions() >= COUNT // 60
    everything = rows_of(running)
    assert len(everything) == COUNT + 1
    assert everything == rows_of(of_store)
    predicate = (
        (F.col("topic") == "Orders")
        & (F.col("tags") == "Tag1")
        & F.col("queue_offset").between(10, 20)
        & (F.col("store_timestamp") >= F.lit(everything[0]["store_timestamp"]))
    )
    for setting in ("true", "false"):
        spark.conf.set(PUSHDOWN, setting)
        try:
            chosen = rows_of(running.filter(predicate))
        finally:
            spark.conf.unset(PUSHDOWN)
        assert chosen == [
            row for row in everything if row["tags"] == "Tag1" and 10 <= row["queue_offset"] <= 20
        ]


def test_later_messages_are_in_the_next_frame(spark: SparkSession, mq: LocalBroker) -> None:
    """Spark plans a frame once; a temporary view is a frame."""
    before = load(spark, mq.namesrv_addr, topic="Other").count()
    with blocking.Producer("p", namesrv=mq.namesrv_addr) as producer:
        producer.send(Message("Other", b"y"), queue=queue(0, "Other"))
    mq.messages("Other", at_least=2)
    load(spark, mq.namesrv_addr, topic="Other").createOrReplaceTempView("other")
    after = spark.sql("SELECT count(*) FROM other").first()
    assert after is not None
    assert (before, after[0]) == (1, 2)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"topic": "Nope"}, "topic 'Nope' is not known to name server"),
        ({"secretKey": "pass-1"}, "unless accessKey is given as well"),
        ({"commitOffsets": "onCommit"}, "Spark does not notify the source"),
        ({"path": "/x"}, "where nameServer is set"),
    ],
)
def test_errors_name_the_cause(
    spark: SparkSession, mq: LocalBroker, given: dict[str, str], text: str
) -> None:
    with pytest.raises(PySparkException) as error:
        load(spark, mq.namesrv_addr, **given).count()
    assert text in str(error.value)
    assert "pass-1" not in str(error.value)
