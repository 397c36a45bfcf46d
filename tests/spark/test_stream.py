"""``spark.readStream.format("rocketmq")`` in real queries: what a sink gets, over any restarts.

What a micro-batch is made of is tested without a JVM, in tests/unit/spark/test_stream.py.
"""

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession, functions as F
from pyspark.sql.streaming import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

import golden
import reput.spark
import store_builder
import store_fixture
from reput.clock import ManualClock
from reput.store.incoming import IncomingMessage

pytestmark = pytest.mark.filterwarnings("ignore")

WAIT_S = 300
DRIVER = """
import sys
from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQueryListener

class Teller(StreamingQueryListener):
    def onQueryStarted(self, event): pass
    def onQueryIdle(self, event): pass
    def onQueryProgress(self, event): print("batch", event.progress.batchId, flush=True)
    def onQueryTerminated(self, event): print("end", event.exception, flush=True)

store, sink, checkpoint = sys.argv[1:]
spark = (
    SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    .config("spark.log.level", "ERROR").getOrCreate()
)
spark.streams.addListener(Teller())
frame = (
    spark.readStream.format("rocketmq").option("startingOffsets", "earliest")
    .option("maxOffsetsPerTrigger", 25).load(store)
)
query = (
    frame.writeStream.format("parquet").option("checkpointLocation", checkpoint)
    .trigger(availableNow=True).start(sink)
)
query.awaitTermination()
"""


class Sink:
    """A Parquet folder that streams write to, and their checkpoint."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self._spark = spark
        self.rows = folder / "rows"
        self.checkpoint = folder / "checkpoint"

    def writer(self, frame: DataFrame) -> DataStreamWriter:
        writer = frame.writeStream.format("parquet").option("path", str(self.rows))
        return writer.option("checkpointLocation", str(self.checkpoint))

    def take(self, frame: DataFrame) -> StreamingQuery:
        """Write all there is, and end."""
        query = self.writer(frame).trigger(availableNow=True).start()
        assert query.awaitTermination(WAIT_S)
        return query

    def places(self) -> list[tuple[Any, ...]]:
        frame = self._spark.read.parquet(str(self.rows))
        found = frame.select("topic", "queue_id", "queue_offset").collect()
        return sorted(tuple(row) for row in found)


@pytest.fixture
def sink(spark: SparkSession, tmp_path: Path) -> Iterator[Sink]:
    yield Sink(spark, tmp_path)
    for query in spark.streams.active:
        query.stop()


def follow(spark: SparkSession, store: Path | str, **options: object) -> DataFrame:
    options = {"startingOffsets": "earliest", **options}
    return spark.readStream.format("rocketmq").options(**options).load(str(store))


class Broker:
    """A store that is written while Spark reads it."""

    def __init__(self, stores: store_fixture.Stores) -> None:
        self._stores = stores
        self._clock = ManualClock(store_fixture.START_MS)
        self.root = stores.root()
        self.store = stores.open(clock=self._clock)

    def put(self, topic: str, count: int) -> None:
        """Store messages, spread over two queues, and let their units be written."""
        for i in range(count):
            self.store.put(IncomingMessage(topic, b"x" * (i % 50), queue_id=i % 2))
        for pause_ms in (0, 60_000):  # flushConsumeQueueThoroughInterval
            self._clock.advance(pause_ms)
            while self.store.step():
                pass

    def restart(self) -> None:
        """Stop, and start again."""
        self.store.close()
        self.store = self._stores.open(clock=self._clock)


@pytest.fixture
def broker(stores: store_fixture.Stores) -> Broker:
    return Broker(stores)


def expected(**counts: int) -> list[tuple[str, int, int]]:
    """Places of so many messages of each topic, spread over two queues."""
    return sorted((topic, i % 2, i // 2) for topic, count in counts.items() for i in range(count))


@pytest.mark.parametrize("version", golden.VERSIONS)
def test_a_stream_brings_the_rows_of_a_batch_read(
    spark: SparkSession, sink: Sink, version: str
) -> None:
    store = golden.unpack(version, "clean")
    options = {"readIsolation": "all", "maxOffsetsPerTrigger": 400}
    query = sink.take(follow(spark, store, **options))
    batch = spark.read.format("rocketmq").option("readIsolation", "all").load(str(store))
    copy = spark.read.parquet(str(sink.rows))
    plain = [column for column in batch.columns if column != "properties"]
    entries = F.array_sort(F.map_entries("properties")).alias("properties")
    left, right = (one.select(*plain, entries) for one in (batch, copy))
    assert left.exceptAll(right).count() == 0
    assert right.exceptAll(left).count() == 0
    counts = [one.numInputRows for one in query.recentProgress if one.numInputRows]
    total = len(golden.messages(version, "clean"))
    assert sum(counts) == total
    assert len(counts) == -(-total // 400)
    assert max(counts) <= 400


def test_restarts_over_a_store_that_a_broker_writes_bring_each_message_once(
    spark: SparkSession, sink: Sink, broker: Broker
) -> None:
    frame = follow(spark, broker.root, allowLive=True, maxOffsetsPerTrigger=15)
    broker.put("TopicA", 40)
    sink.take(frame)
    assert sink.places() == expected(TopicA=40)
    broker.put("TopicB", 20)
    sink.take(frame)
    sink.take(frame)  # nothing new
    assert sink.places() == expected(TopicA=40, TopicB=20)
    # The broker restarts, too.
    broker.restart()
    broker.put("TopicC", 33)
    sink.take(frame)
    assert sink.places() == expected(TopicA=40, TopicB=20, TopicC=33)
    broker.store.close()
    sink.take(follow(spark, broker.root))
    assert sink.places() == expected(TopicA=40, TopicB=20, TopicC=33)


def test_a_running_query_follows_and_tells_its_lag(
    spark: SparkSession, sink: Sink, broker: Broker
) -> None:
    broker.put("TopicA", 30)
    frame = follow(spark, broker.root, allowLive=True, maxOffsetsPerTrigger=20)
    query = sink.writer(frame).trigger(processingTime="0 seconds").start()
    query.processAllAvailable()
    lags = [
        reput.spark.lag_of(one.sources[0].latestOffset)
        for one in query.recentProgress
        if one.numInputRows
    ]
    assert [lag.messages for lag in lags] == [10, 0]
    assert lags[0].bytes > 10 * 91
    assert lags[0].oldest_store_timestamp == store_fixture.START_MS
    broker.put("TopicB", 10)
    query.processAllAvailable()
    # Stopped between two batches, and started again on what came meanwhile.
    query.stop()
    broker.put("TopicD", 25)
    query = sink.writer(frame).trigger(processingTime="0 seconds").start()
    query.processAllAvailable()
    query.stop()
    assert sink.places() == expected(TopicA=30, TopicB=10, TopicD=25)


def test_a_batch_that_failed_is_read_again_the_same_though_more_came(
    spark: SparkSession, tmp_path: Path, broker: Broker
) -> None:
    broker.put("TopicA", 30)
    frame = follow(spark, broker.root, allowLive=True, maxOffsetsPerTrigger=12)
    seen: list[tuple[int, list[tuple[Any, ...]]]] = []
    fails = [1, 1, 2]

    def write(rows: DataFrame, batch_id: int) -> None:
        places = rows.select("topic", "queue_id", "queue_offset").collect()
        seen.append((batch_id, sorted(tuple(row) for row in places)))
        if fails and fails[0] == batch_id:
            fails.pop(0)
            raise ValueError("the sink is down")

    writer = frame.writeStream.foreachBatch(write).trigger(availableNow=True)
    writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
    for _ in range(3):
        with pytest.raises(StreamingQueryException, match="the sink is down"):
            writer.start().awaitTermination(WAIT_S)
        broker.put("TopicB", 6)
    assert writer.start().awaitTermination(WAIT_S)
    batches = dict(seen)
    assert all(batches[batch_id] == places for batch_id, places in seen)
    assert Counter(batch_id for batch_id, _ in seen)[1] == 3
    got = sorted(place for places in batches.values() for place in places)
    assert got == expected(TopicA=30, TopicB=18)


@pytest.mark.crash
def test_a_driver_that_is_killed_and_started_again_brings_each_message_once(
    spark: SparkSession, sink: Sink, tmp_path: Path
) -> None:
    built = store_builder.build(tmp_path / "store", store_builder.messages(240))
    command = [sys.executable, "-c", DRIVER, built.root, sink.rows, sink.checkpoint]
    for batch in (1, 4):
        with subprocess.Popen(
            [str(word) for word in command],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        ) as driver:
            assert driver.stdout is not None
            told = next((line for line in driver.stdout if f"batch {batch}" in line), "")
            os.killpg(driver.pid, signal.SIGKILL)
        assert told, "the query ended before it was killed"
    sink.take(follow(spark, built.root, maxOffsetsPerTrigger=50))
    assert sink.places() == sorted(
        (one.topic, one.queue_id, one.queue_offset) for one in built.messages
    )


def test_a_queue_that_vanishes_ends_the_query_or_is_passed_over(
    spark: SparkSession, sink: Sink, broker: Broker
) -> None:
    broker.put("TopicA", 10)
    broker.put("TopicB", 10)
    sink.take(follow(spark, broker.root, allowLive=True))
    broker.store.delete_topic("TopicB")
    broker.put("TopicC", 10)
    query = sink.writer(follow(spark, broker.root, allowLive=True)).start()
    with pytest.raises(StreamingQueryException, match=r"queue TopicB/0 is gone from .* 5 on"):
        query.awaitTermination(WAIT_S)
    sink.take(follow(spark, broker.root, allowLive=True, failOnDataLoss=False))
    assert sink.places() == expected(TopicA=10, TopicB=10, TopicC=10)


def test_what_a_stream_cannot_do_is_said(spark: SparkSession, sink: Sink, broker: Broker) -> None:
    broker.put("TopicA", 2)

    def refused(frame: DataFrame) -> str:
        with pytest.raises(PySparkException) as error:
            sink.writer(frame).start().awaitTermination(WAIT_S)
        return str(error.value)

    assert "allowLive=true" in refused(follow(spark, broker.root))
    root = golden.unpack("4.9.7", "clean")
    assert "a stream has no end" in refused(follow(spark, root, endingOffsets="latest"))
    assert "'view' is 'index'" in refused(follow(spark, root, view="index"))
    batch = spark.read.format("rocketmq").option("startingOffsets", "latest").load(str(root))
    with pytest.raises(PySparkException, match="a batch that starts at the latest reads nothing"):
        batch.count()
