"""``spark.readStream.format("rocketmq")`` in real queries: rows in a sink, over restarts.

The content of micro-batches is tested without a JVM, in tests/unit/spark/streaming.
"""

import json
import re
import shutil
from collections.abc import Collection, Iterator
from functools import partial
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
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
from spark import reading, streams
from spark.live_traffic import queue
from waiting import wait_until

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

    def places(self) -> list[streams.Place]:
        rows = self._spark.read.parquet(str(self.rows)).toArrow().to_pylist()
        return streams.places(rows)


def end_of(writer: DataStreamWriter) -> StreamingQuery:
    """Run a query to its end.

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
    with pytest.raises(StreamingQueryException) as error:
        end_of(writer)
    return str(error.value)


@pytest.fixture
def sink(spark: SparkSession, tmp_path: Path) -> Iterator[Sink]:
    yield Sink(spark, tmp_path)
    for query in spark.streams.active:
        query.stop()


def wait_for(listener: StreamListener, metric: str, value: float) -> None:
    """Wait for an event: Spark delivers them in a separate thread."""

    def values() -> Collection[float]:
        return listener.measured()[metric].values.values()

    wait_until(lambda: sum(values()) >= value, values, WAIT_S)


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


def placed(**counts: int) -> list[streams.Place]:
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
    assert sink.places() == placed(TopicA=40, TopicB=20, TopicC=10)


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


def test_a_recorded_checkpoint_is_continued(spark: SparkSession, tmp_path: Path) -> None:
    """One of its positions has no version, as none had at first."""
    shutil.copytree(CHECKPOINTS / "v1", tmp_path / "checkpoint")
    logs = {log.name: log for log in (tmp_path / "checkpoint" / "offsets").iterdir()}
    for log in logs.values():
        text = log.read_text()
        assert text.count('{"$v": 1, ') == 1
        log.write_text(text.replace('"$v": 1, ', "") if log.name == "1" else text)
    done, planned = (decode(json.loads(logs[name].read_text().splitlines()[2]))[0] for name in "12")
    batches: list[list[streams.Place]] = []

    def write(frame: DataFrame, _: int) -> None:
        rows = frame.select("topic", "queue_id", "queue_offset").collect()
        batches.append([tuple(row) for row in rows])

    frame = follow(spark, golden.unpack("4.9.7", "clean"))
    writer = frame.writeStream.foreachBatch(write).trigger(availableNow=True)
    end_of(writer.option("checkpointLocation", str(tmp_path / "checkpoint")))
    assert len(batches[0]) == sum(planned.values()) - sum(done.values())
    first = {(key.topic, key.queue_id): queue_offset for key, queue_offset in done.items()}
    rows = reading.expected("4.9.7", "clean")
    assert sorted(place for batch in batches for place in batch) == [
        place
        for place in streams.places(row for row in rows if "TRANS_" not in row["topic"])
        if place[2] >= first.get(place[:2], 0)
    ]


@pytest.mark.rotating  # tests/unit/spark/streaming/test_brokers.py does it without Spark
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
    assert sorted(place for places in batches.values() for place in places) == placed(Orders=26)
