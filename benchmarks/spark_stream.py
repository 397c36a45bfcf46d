"""Streams over a folder into the noop sink, beside batch reads. Those of brokers: ``spark_live``.

Measurements that are compared alternate, in one session. The time of a micro-batch is that of its
trigger, from reading the ends of queues to the commit in the checkpoint; the start of a query is
excluded, and so is Spark's start.
"""

import statistics
import tempfile
import time
from pathlib import Path

from pyspark.sql import SparkSession

from benchmarks import stores
from reput.spark.session import local_session

NAME = "spark_stream"
QUESTION = "streams against batch reads; what a trigger costs"
_REPEATS = 3
_TRIGGERS = 12
"""Number of triggers of one message each."""


def run(folder: Path, quick: bool) -> dict[str, object]:
    """Measure a stream over a folder, and small triggers."""
    count = 160_000 if quick else 1_600_000
    with local_session("reput benchmark", folder / "spark.log", "local[2]") as spark:
        return _folder_streams(spark, folder, count)


def _folder_streams(spark: SparkSession, folder: Path, count: int) -> dict[str, object]:
    root = stores.make(folder / f"spark-{count}", count, 1024)
    batch_s, stream_s, cut_s = [], [], []
    for turn in range(_REPEATS + 1):
        before = time.perf_counter()
        frame = spark.read.format("rocketmq").load(str(root))
        frame.write.format("noop").mode("overwrite").save()
        batch = time.perf_counter() - before
        trigger_s = sum(trigger_seconds(spark, path=str(root)))
        cut = sum(trigger_seconds(spark, path=str(root), maxOffsetsPerTrigger=count // 4))
        if turn:  # the first warms up the JVM and the page cache
            batch_s.append(batch)
            stream_s.append(trigger_s)
            cut_s.append(cut)
    few = stores.make(folder / f"spark-{_TRIGGERS}", _TRIGGERS, 1024)
    small = trigger_seconds(spark, path=str(few), maxOffsetsPerTrigger=1)
    batch, stream, cut = map(statistics.median, (batch_s, stream_s, cut_s))
    return {
        "messages": count,
        "body_bytes": 1024,
        "batch_s": round(batch, 2),
        "stream_s": round(stream, 2),
        "stream_of_4_batches_s": round(cut, 2),
        "stream_rate_over_batch": round(batch / stream, 2),
        "stream_of_4_batches_rate_over_batch": round(batch / cut, 2),
        "trigger_of_one_message_s": round(statistics.median(small), 3),
    }


def trigger_seconds(spark: SparkSession, **options: object) -> list[float]:
    """Stream everything from the start; return the time of each micro-batch."""
    given = {"startingOffsets": "earliest", **options}
    frame = spark.readStream.format("rocketmq").options(**given).load()
    with tempfile.TemporaryDirectory(prefix="reput-bench-") as checkpoint:
        writer = frame.writeStream.format("noop").option("checkpointLocation", checkpoint)
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
        return [progress.durationMs["triggerExecution"] / 1000 for progress in query.recentProgress]
