"""Streams into the noop sink: over a folder beside batch reads, over brokers beside raw pulls.

Everything that is compared is measured in turns, in one session. A micro-batch counts with the time
of its trigger, from the look at the ends of queues to the commit in the checkpoint; what a query
takes to start is left out, as Spark's own start is.
"""

import statistics
import tempfile
import time
from pathlib import Path

from pyspark.sql import SparkSession

from benchmarks import broker_targets as targets, stores
from reput.spark.session import local_session

NAME = "spark_stream"
QUESTION = "streams against batch reads and raw pulls; what a trigger costs"
TOPIC = "bench-stream"
_REPEATS = 3
_TRIGGERS = 12
"""Of one message each."""


def run(folder: Path, quick: bool) -> dict[str, object]:
    """Measure a stream over a folder, small triggers, and streams over the brokers there are."""
    with local_session("reput benchmark", folder / "spark.log", "local[2]") as spark:
        return {
            "folder": _of_folder(spark, folder, 160_000 if quick else 1_600_000),
            "live": _of_brokers(spark, folder / NAME, 100_000 if quick else 400_000),
        }


def _of_folder(spark: SparkSession, folder: Path, count: int) -> dict[str, object]:
    root = stores.make(folder / f"spark-{count}", count, 1024)
    batch_s, stream_s, cut_s = [], [], []
    for turn in range(_REPEATS + 1):
        before = time.perf_counter()
        frame = spark.read.format("rocketmq").load(str(root))
        frame.write.format("noop").mode("overwrite").save()
        batch = time.perf_counter() - before
        whole = sum(_trigger_seconds(spark, path=str(root)))
        cut = sum(_trigger_seconds(spark, path=str(root), maxOffsetsPerTrigger=count // 4))
        if turn:  # the first warms up the JVM and the page cache
            batch_s.append(batch)
            stream_s.append(whole)
            cut_s.append(cut)
    few = stores.make(folder / f"spark-{_TRIGGERS}", _TRIGGERS, 1024)
    small = _trigger_seconds(spark, path=str(few), maxOffsetsPerTrigger=1)
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


def _of_brokers(spark: SparkSession, folder: Path, count: int) -> dict[str, object]:
    found: dict[str, object] = {}
    with targets.brokers(folder) as running:
        for target in running:
            targets.load(target, "fill", topic=TOPIC, messages=count)
            targets.load(target, "pull", topic=TOPIC, warm_up_s=3.0, seconds=0.1)
            given = {"nameServer": target.namesrv, "topic": TOPIC}
            raw, live = [], []
            for turn in range(_REPEATS + 1):
                pulled = targets.load(target, "pull", topic=TOPIC, seconds=1.5, window=16)
                seconds = sum(_trigger_seconds(spark, **given))
                if turn:
                    raw.append(pulled["per_s"])
                    live.append(targets.topic_end(target.address, TOPIC) / seconds)
            raw_per_s, live_per_s = statistics.median(raw), statistics.median(live)
            found[target.name] = {
                "raw_pulls_per_s": round(raw_per_s),
                "stream_per_s": round(live_per_s),
                "stream_rate_over_raw": round(live_per_s / raw_per_s, 2),
            }
    return found


def _trigger_seconds(spark: SparkSession, **options: object) -> list[float]:
    """Stream everything there is, from the start; return what each micro-batch took."""
    given = {"startingOffsets": "earliest", **options}
    frame = spark.readStream.format("rocketmq").options(**given).load()
    with tempfile.TemporaryDirectory(prefix="reput-bench-") as checkpoint:
        writer = frame.writeStream.format("noop").option("checkpointLocation", checkpoint)
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
        return [one.durationMs["triggerExecution"] / 1000 for one in query.recentProgress]
