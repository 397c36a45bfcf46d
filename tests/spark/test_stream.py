"""``spark.readStream.format("rocketmq")`` in real queries: what a sink gets, over any restarts.

What a micro-batch is made of is tested without a JVM, in tests/unit/spark/test_stream.py and
test_stream_live.py.
"""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
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
from reput.client import blocking
from reput.client.message import Message
from reput.clock import ManualClock
from reput.store.incoming import IncomingMessage
from reput.testing import LocalBroker
from spark.live_traffic import queue

pytestmark = pytest.mark.filterwarnings("ignore")

WAIT_S = 300
ATTEMPTS = 5
LATE = "Python worker failed to connect back"
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
        return end_of(self.writer(frame).trigger(availableNow=True))

    def places(self) -> list[tuple[Any, ...]]:
        frame = self._spark.read.parquet(str(self.rows))
        found = frame.select("topic", "queue_id", "queue_offset").collect()
        return sorted(tuple(row) for row in found)


def end_of(writer: DataStreamWriter) -> StreamingQuery:
    """Run a query to its end, which must not be a failure.

    Spark gives the Python process of a query 10 s to start, however much else is running.
    """
    for _ in range(ATTEMPTS):
        query = writer.start()
        try:
            assert query.awaitTermination(WAIT_S)
        except StreamingQueryException as error:
            if LATE not in str(error):
                raise
        else:
            return query
    raise AssertionError(LATE)


def failure_of(writer: DataStreamWriter) -> str:
    """Run a query until it fails, and return its error."""
    for _ in range(ATTEMPTS):
        with pytest.raises(StreamingQueryException) as error:
            writer.start().awaitTermination(WAIT_S)
        if LATE not in str(error.value):
            return str(error.value)
    raise AssertionError(LATE)


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


def test_each_message_comes_once_over_restarts_of_query_and_broker(
    spark: SparkSession, sink: Sink, broker: Broker
) -> None:
    frame = follow(spark, broker.root, allowLive=True, maxOffsetsPerTrigger=25)
    broker.put("TopicA", 40)
    query = sink.take(frame)
    told = [one for one in query.recentProgress if one.numInputRows]
    assert [one.numInputRows for one in told] == [25, 15]
    lags = [reput.spark.lag_of(one.sources[0].latestOffset) for one in told]
    assert [lag.messages for lag in lags] == [15, 0]
    assert lags[0].bytes > 15 * 91
    assert lags[0].oldest_store_timestamp == store_fixture.START_MS
    # Query and broker start again, and there is a new topic.
    broker.restart()
    broker.put("TopicB", 20)
    sink.take(frame)
    # What vanishes ends the query, or is passed over.
    broker.store.delete_topic("TopicB")
    broker.put("TopicC", 10)
    failure = failure_of(sink.writer(frame))
    assert re.search(r"queue TopicB/0 is missing from .*, requested is 10 on", failure), failure
    sink.take(follow(spark, broker.root, allowLive=True, failOnDataLoss=False))
    assert sink.places() == expected(TopicA=40, TopicB=20, TopicC=10)


def test_a_batch_of_a_live_broker_that_failed_is_read_again_the_same(
    spark: SparkSession, tmp_path: Path
) -> None:
    seen: list[tuple[int, list[tuple[Any, ...]]]] = []
    fails = [1]

    def write(frame: DataFrame, batch_id: int) -> None:
        places = frame.select("topic", "queue_id", "queue_offset").collect()
        seen.append((batch_id, sorted(tuple(row) for row in places)))
        if fails and fails[0] == batch_id:
            fails.pop()
            raise ValueError("the sink is down")

    with (
        LocalBroker(topics={"Orders": 2}) as mq,
        blocking.Producer("p", namesrv=mq.namesrv_addr) as producer,
    ):

        def send(count: int) -> None:
            for i in range(count):
                producer.send(Message("Orders", b"x" * (i + 1)), queue=queue(i % 2))

        options = {"startingOffsets": "earliest", "maxOffsetsPerTrigger": 12, "topic": "Orders"}
        groups = {"group": "Spark", "commitOffsets": "onCommit"}
        reader = spark.readStream.format("rocketmq").option("nameServer", mq.namesrv_addr)
        writer = reader.options(**options, **groups).load().writeStream.foreachBatch(write)
        writer = writer.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True)
        send(20)
        mq.messages("Orders", at_least=20)
        assert "the sink is down" in failure_of(writer)
        with blocking.Admin(mq.namesrv_addr) as admin:
            assert sum(map(partial(admin.consumer_offset, "Spark"), map(queue, (0, 1)))) == 12
            send(6)
            mq.messages("Orders", at_least=26)
            query = end_of(writer)
            stats = admin.consume_stats("Spark").queues
            assert [one.broker_offset - one.consumer_offset for one in stats] == [0, 0]
        assert reput.spark.lag_of(query.lastProgress.sources[0].latestOffset).messages == 0
    batches = dict(seen)
    assert [batch_id for batch_id, _ in seen] == [0, 1, 1, 2]
    assert all(batches[batch_id] == places for batch_id, places in seen)
    assert sorted(place for places in batches.values() for place in places) == expected(Orders=26)


def test_what_a_stream_cannot_do_is_said(spark: SparkSession, sink: Sink) -> None:
    frame = follow(spark, golden.unpack("4.9.7", "clean"), endingOffsets="latest")
    with pytest.raises(PySparkException, match="a stream has no end"):
        sink.writer(frame).start().awaitTermination(WAIT_S)


@pytest.mark.soak
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


@pytest.mark.soak
def test_a_running_query_follows(spark: SparkSession, sink: Sink, broker: Broker) -> None:
    frame = follow(spark, broker.root, allowLive=True, maxOffsetsPerTrigger=20)
    broker.put("TopicA", 30)
    query = sink.writer(frame).trigger(processingTime="0 seconds").start()
    query.processAllAvailable()
    broker.put("TopicB", 10)
    query.processAllAvailable()
    # Stopped between two batches, and started again on what came meanwhile.
    query.stop()
    broker.put("TopicD", 25)
    query = sink.writer(frame).trigger(processingTime="0 seconds").start()
    query.processAllAvailable()
    query.stop()
    assert sink.places() == expected(TopicA=30, TopicB=10, TopicD=25)


@pytest.mark.soak
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
