"""``spark.readStream.format("rocketmq")`` in real queries: rows in a sink, over restarts.

The content of micro-batches is tested without a JVM, in tests/unit/spark/streaming.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any
from urllib.request import urlopen

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
from reput.spark import datasource_api
from reput.spark.stream_metrics import StreamListener
from reput.spark.streaming.positions import decode
from reput.store.writing.incoming import IncomingMessage
from reput.testing import LocalBroker
from spark.live_traffic import queue

pytestmark = pytest.mark.filterwarnings("ignore")

LIMITED = pytest.mark.skipif(
    not datasource_api.HAS_READ_LIMITS, reason="this PySpark passes no limits of micro-batches"
)
CHECKPOINTS = Path(__file__).parents[1] / "data" / "checkpoints"
BODY = 88
"""Position of the body in a record with IPv4 addresses."""
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
    """A Parquet folder for streams, and their checkpoint."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self._spark = spark
        self.rows = folder / "rows"
        self.checkpoint = folder / "checkpoint"

    def writer(self, frame: DataFrame) -> DataStreamWriter:
        writer = frame.writeStream.format("parquet").option("path", str(self.rows))
        return writer.option("checkpointLocation", str(self.checkpoint))

    def take(self, frame: DataFrame) -> StreamingQuery:
        """Write all available rows, and end."""
        return end_of(self.writer(frame).trigger(availableNow=True))

    def places(self) -> list[tuple[Any, ...]]:
        frame = self._spark.read.parquet(str(self.rows))
        rows = frame.select("topic", "queue_id", "queue_offset").collect()
        return sorted(tuple(row) for row in rows)


def end_of(writer: DataStreamWriter) -> StreamingQuery:
    """Run a query to its end, and check that it has not failed.

    Spark gives the Python process of a query 10 s to start, even on a busy machine.
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


def wait_for(listener: StreamListener, metric: str, value: float) -> None:
    """Wait for an event: Spark delivers them in a separate thread."""
    deadline = time.monotonic() + WAIT_S
    while sum(listener.measured()[metric].values.values()) < value:
        assert time.monotonic() < deadline, listener.measured()[metric]


def follow(spark: SparkSession, store: Path | str, **options: object) -> DataFrame:
    options = {"startingOffsets": "earliest", **options}
    return spark.readStream.format("rocketmq").options(**options).load(str(store))


class Broker:
    """A store that grows while Spark reads it."""

    def __init__(self, stores: store_fixture.Stores) -> None:
        self._stores = stores
        self._clock = ManualClock(store_fixture.START_MS)
        self.root = stores.root()
        self.store = stores.open(clock=self._clock)

    def put(self, topic: str, count: int) -> None:
        """Store messages in two queues, and write out their units."""
        for i in range(count):
            self.store.put(IncomingMessage(topic, b"x" * (i % 50), queue_id=i % 2))
        for pause_ms in (0, 60_000):  # flushConsumeQueueThoroughInterval
            self._clock.advance(pause_ms)
            while self.store.step():
                pass

    def restart(self) -> None:
        """Close the store and open it again."""
        self.store.close()
        self.store = self._stores.open(clock=self._clock)


@pytest.fixture
def broker(stores: store_fixture.Stores) -> Broker:
    return Broker(stores)


def expected(**counts: int) -> list[tuple[str, int, int]]:
    """Return the places of ``count`` messages of each topic, spread over two queues."""
    return sorted((topic, i % 2, i // 2) for topic, count in counts.items() for i in range(count))


@LIMITED
def test_messages_are_read_once_over_restarts_of_query_and_broker(
    spark: SparkSession, sink: Sink, broker: Broker
) -> None:
    frame = follow(spark, broker.root, allowLive=True, maxOffsetsPerTrigger=25)
    broker.put("TopicA", 40)
    listener = reput.spark.stream_listener(port=0)
    spark.streams.addListener(listener)
    query = sink.take(frame)
    wait_for(listener, "reput_stream_rows_total", 40)
    reported = [progress for progress in query.recentProgress if progress.numInputRows]
    assert [progress.numInputRows for progress in reported] == [25, 15]
    lags = [reput.spark.lag_of(progress.sources[0].latestOffset) for progress in reported]
    assert [lag.messages for lag in lags] == [15, 0]
    assert lags[0].bytes > 15 * 91
    assert lags[0].oldest_store_timestamp == store_fixture.START_MS
    # Query and broker are restarted, and there is a new topic.
    broker.restart()
    broker.put("TopicB", 20)
    sink.take(frame)
    # A vanished topic ends the query, or is skipped.
    broker.store.delete_topic("TopicB")
    broker.put("TopicC", 10)
    failure = failure_of(sink.writer(frame))
    assert re.search(r"queue TopicB/0 is missing from .*, requested is 10 on", failure), failure
    wait_for(listener, "reput_stream_failures_total", 1)
    with urlopen(f"http://127.0.0.1:{listener.port}/metrics") as answer:
        page = answer.read().decode()
    where = f'query="{query.id}",source="all topics of {broker.root}"'
    assert f"reput_stream_data_losses_total{{{where}}} 1.0\n" in page
    assert f'reput_stream_failures_total{{query="{query.id}",reason="data_loss"}} 1.0\n' in page
    spark.streams.removeListener(listener)
    listener.close()
    sink.take(follow(spark, broker.root, allowLive=True, failOnDataLoss=False))
    assert sink.places() == expected(TopicA=40, TopicB=20, TopicC=10)


def test_damage_is_counted_by_a_listener(spark: SparkSession, sink: Sink, tmp_path: Path) -> None:
    built = store_builder.build(
        tmp_path / "store", store_builder.messages(30), log_file_bytes=1 << 20
    )
    with (built.root / "commitlog" / f"{0:020}").open("r+b") as log:
        for number, position in ((3, BODY), (7, 4), (20, BODY)):  # of two bodies, and of a magic
            log.seek(built.messages[number].physical_offset + position)
            log.write(b"?")
    listener = reput.spark.stream_listener()
    spark.streams.addListener(listener)
    permissive = reput.spark.observed(follow(spark, built.root, mode="PERMISSIVE"))
    sink.take(permissive.where("_corrupt_record IS NULL"))
    wait_for(listener, "reput_stream_damaged_rows_total", 3)
    assert sum(listener.measured()["reput_stream_checksum_failures_total"].values.values()) == 2
    assert len(sink.places()) == 27
    other = follow(spark, built.root).writeStream.format("noop")
    failure_of(other.option("checkpointLocation", str(tmp_path / "other")))
    wait_for(listener, "reput_stream_failures_total", 1)
    spark.streams.removeListener(listener)
    reasons = listener.measured()["reput_stream_failures_total"].values
    assert [reason for _, reason in reasons] == ["checksum"]


@pytest.mark.parametrize("version", ["1", "none"])
def test_a_recorded_checkpoint_is_continued(spark: SparkSession, sink: Sink, version: str) -> None:
    """As recorded, and without the version, which checkpoints did not have at first."""
    shutil.copytree(CHECKPOINTS / "v1", sink.checkpoint)
    for log in (sink.checkpoint / "offsets").iterdir():
        text = log.read_text()
        assert text.count('{"$v": 1, ') == 1
        log.write_text(text if version == "1" else text.replace('"$v": 1, ', ""))
    done, planned = (
        decode(json.loads((sink.checkpoint / "offsets" / name).read_text().splitlines()[2]))[0]
        for name in "12"
    )
    batches = []

    def write(frame: DataFrame, _: int) -> None:
        rows = frame.select("topic", "queue_id", "queue_offset").collect()
        batches.append([tuple(row) for row in rows])

    frame = follow(spark, golden.unpack("4.9.7", "clean"))
    writer = frame.writeStream.foreachBatch(write).trigger(availableNow=True)
    end_of(writer.option("checkpointLocation", str(sink.checkpoint)))
    assert len(batches[0]) == sum(planned.values()) - sum(done.values())
    first = {(key.topic, key.queue_id): queue_offset for key, queue_offset in done.items()}
    places = [
        (message["topic"], message["queueId"], message["queueOffset"])
        for message in golden.messages("4.9.7", "clean")
        if not message["topic"].startswith("RMQ_SYS_TRANS")
    ]
    assert sorted(place for batch in batches for place in batch) == sorted(
        place for place in places if place[2] >= first.get(place[:2], 0)
    )


@LIMITED
def test_a_failed_batch_of_a_live_broker_is_repeated_unchanged(
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
            assert [stat.broker_offset - stat.consumer_offset for stat in stats] == [0, 0]
        assert reput.spark.lag_of(query.lastProgress.sources[0].latestOffset).messages == 0
    batches = dict(seen)
    assert [batch_id for batch_id, _ in seen] == [0, 1, 1, 2]
    assert all(batches[batch_id] == places for batch_id, places in seen)
    assert sorted(place for places in batches.values() for place in places) == expected(Orders=26)


def test_invalid_options_of_a_stream_are_errors(spark: SparkSession, sink: Sink) -> None:
    frame = follow(spark, golden.unpack("4.9.7", "clean"), endingOffsets="latest")
    with pytest.raises(PySparkException, match="a stream has no end"):
        sink.writer(frame).start().awaitTermination(WAIT_S)


@LIMITED
@pytest.mark.soak
@pytest.mark.parametrize("version", golden.VERSIONS)
def test_a_stream_returns_the_rows_of_a_batch_read(
    spark: SparkSession, sink: Sink, version: str
) -> None:
    store = golden.unpack(version, "clean")
    options = {"readIsolation": "all", "maxOffsetsPerTrigger": 400}
    query = sink.take(follow(spark, store, **options))
    batch = spark.read.format("rocketmq").option("readIsolation", "all").load(str(store))
    copy = spark.read.parquet(str(sink.rows))
    plain = [column for column in batch.columns if column != "properties"]
    entries = F.array_sort(F.map_entries("properties")).alias("properties")
    left, right = (side.select(*plain, entries) for side in (batch, copy))
    assert left.exceptAll(right).count() == 0
    assert right.exceptAll(left).count() == 0
    counts = [progress.numInputRows for progress in query.recentProgress if progress.numInputRows]
    total = len(golden.messages(version, "clean"))
    assert sum(counts) == total
    assert len(counts) == -(-total // 400)
    assert max(counts) <= 400


@LIMITED
@pytest.mark.soak
def test_a_running_query_reads_new_messages(
    spark: SparkSession, sink: Sink, broker: Broker
) -> None:
    frame = follow(spark, broker.root, allowLive=True, maxOffsetsPerTrigger=20)
    broker.put("TopicA", 30)
    query = sink.writer(frame).trigger(processingTime="0 seconds").start()
    query.processAllAvailable()
    broker.put("TopicB", 10)
    query.processAllAvailable()
    # Stopped between two batches, and restarted with new messages.
    query.stop()
    broker.put("TopicD", 25)
    query = sink.writer(frame).trigger(processingTime="0 seconds").start()
    query.processAllAvailable()
    query.stop()
    assert sink.places() == expected(TopicA=30, TopicB=10, TopicD=25)


@LIMITED
@pytest.mark.soak
@pytest.mark.crash
def test_messages_are_read_once_over_kills_of_the_driver(
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
            reported = next((line for line in driver.stdout if f"batch {batch}" in line), "")
            os.killpg(driver.pid, signal.SIGKILL)
        assert reported, "the query ended before it was killed"
    sink.take(follow(spark, built.root, maxOffsetsPerTrigger=50))
    assert sink.places() == sorted(
        (message.topic, message.queue_id, message.queue_offset) for message in built.messages
    )
