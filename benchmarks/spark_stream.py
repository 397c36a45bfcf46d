"""Streams into the noop sink: over a folder beside batch reads, over brokers beside raw pulls.

Raw pulls are those of one connection of the load generator, which discards the replies. They are
compared with our reader, which makes rows, without Spark in one thread, and with Spark. Broker and
reader share the machine's cores in all of them.

Measurements that are compared alternate, in one session. The time of a micro-batch is that of its
trigger, from reading the ends of queues to the commit in the checkpoint; the start of a query is
excluded, and so is Spark's start.
"""

import statistics
import tempfile
import time
from pathlib import Path

from pyspark.sql import SparkSession

from benchmarks import broker_targets as targets, stores
from reput.spark import options as option_texts, rows
from reput.spark.live import calls as live_calls
from reput.spark.live.scan import LiveScan
from reput.spark.session import local_session

NAME = "spark_stream"
QUESTION = "streams against batch reads and raw pulls; what a trigger costs"
_BODIES = (128, 1024)
_WINDOWS = (16, 128)
"""Raw pulls in flight: few, and about as many as our reader has."""
_REPEATS = 3
_TRIGGERS = 12
"""Number of triggers of one message each."""


def run(folder: Path, quick: bool) -> dict[str, object]:
    """Measure a stream over a folder, small triggers, and streams over the available brokers."""
    with local_session("reput benchmark", folder / "spark.log", "local[2]") as spark:
        return {
            "folder": _folder_streams(spark, folder, 160_000 if quick else 1_600_000),
            "live": _broker_streams(spark, folder / NAME, 100_000 if quick else 400_000),
        }


def _folder_streams(spark: SparkSession, folder: Path, count: int) -> dict[str, object]:
    root = stores.make(folder / f"spark-{count}", count, 1024)
    batch_s, stream_s, cut_s = [], [], []
    for turn in range(_REPEATS + 1):
        before = time.perf_counter()
        frame = spark.read.format("rocketmq").load(str(root))
        frame.write.format("noop").mode("overwrite").save()
        batch = time.perf_counter() - before
        trigger_s = sum(_trigger_seconds(spark, path=str(root)))
        cut = sum(_trigger_seconds(spark, path=str(root), maxOffsetsPerTrigger=count // 4))
        if turn:  # the first warms up the JVM and the page cache
            batch_s.append(batch)
            stream_s.append(trigger_s)
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


def _broker_streams(spark: SparkSession, folder: Path, count: int) -> dict[str, object]:
    results: dict[str, object] = {}
    with targets.brokers(folder) as running:
        for target in running:
            for body_bytes in _BODIES:
                topic = f"bench-stream-{body_bytes}"
                targets.load(target, "fill", topic=topic, messages=count, body_bytes=body_bytes)
                targets.load(target, "pull", topic=topic, warm_up_s=3.0, seconds=0.1)
                results[f"{target.name}_{body_bytes}"] = _topic_streams(spark, target, topic)
    live_calls.disconnect()
    return results


def _topic_streams(spark: SparkSession, target: targets.Target, topic: str) -> dict[str, object]:
    given = {"nameServer": target.namesrv, "topic": topic}
    count = targets.topic_end(target.address, topic)
    rates: dict[str, list[float]] = {}

    def note(name: str, per_s: float) -> None:
        rates.setdefault(name, []).append(per_s)

    for turn in range(_REPEATS + 1):
        if turn == 1:  # the first warms up
            rates.clear()
        for window in _WINDOWS:
            pulled = targets.load(target, "pull", topic=topic, seconds=1.5, window=window)
            note(f"raw_window_{window}", pulled["per_s"])
        note("reader", count / _read_seconds(**given))
        note("batch", count / _batch_seconds(spark, **given))
        note("stream", count / sum(_trigger_seconds(spark, **given)))
    medians = {name: statistics.median(values) for name, values in rates.items()}
    return {
        "messages": count,
        **{f"{name}_per_s": round(value) for name, value in medians.items()},
        **{
            f"{name}_over_raw_window_{window}": round(
                medians[name] / medians[f"raw_window_{window}"], 2
            )
            for name in ("reader", "batch", "stream")
            for window in _WINDOWS
        },
    }


def _read_seconds(**options: str) -> float:
    """Read everything in this thread, without Spark."""
    before = time.perf_counter()
    parsed = option_texts.parse(options)
    scan = LiveScan(parsed, list(rows.message_fields(parsed)))
    for task in scan.tasks():
        for _ in scan.read(task):
            pass
    return time.perf_counter() - before


def _batch_seconds(spark: SparkSession, **options: str) -> float:
    before = time.perf_counter()
    frame = spark.read.format("rocketmq").options(**options).load()
    frame.write.format("noop").mode("overwrite").save()
    return time.perf_counter() - before


def _trigger_seconds(spark: SparkSession, **options: object) -> list[float]:
    """Stream everything from the start; return the time of each micro-batch."""
    given = {"startingOffsets": "earliest", **options}
    frame = spark.readStream.format("rocketmq").options(**given).load()
    with tempfile.TemporaryDirectory(prefix="reput-bench-") as checkpoint:
        writer = frame.writeStream.format("noop").option("checkpointLocation", checkpoint)
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
        return [progress.durationMs["triggerExecution"] / 1000 for progress in query.recentProgress]
