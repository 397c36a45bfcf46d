"""Stream the topics of the running broker into Parquet files, with Spark.

Messages are sent meanwhile, so that the stream has a lag.
"""

import asyncio
import datetime
import threading
import time
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession, functions as F
from pyspark.sql.streaming.query import StreamingQuery

from demo import traffic as demo_traffic
from demo.story import MicroBatch, Streamed, Traffic
from demo.traffic import TOPICS, DemoFailed, Progress
from reput.client import Producer
from reput.spark import lag_of

MORE_MESSAGES = 50_000
"""Number of messages that are sent while the stream runs."""
_MORE_SECONDS = 5
_MESSAGES_A_TRIGGER = 50_000
_CHUNK = 1_000
_POLL_S = 1
_STALLED_S = 120


def run(
    spark: SparkSession, namesrv: str, folder: Path, traffic: Traffic, progress: Progress
) -> Streamed:
    """Stream all messages of the demo's topics from the broker into Parquet files.

    Args:
        spark: The session.
        namesrv: Address of the name server.
        folder: Folder for the files and the checkpoint.
        traffic: Messages sent so far; samples of those sent meanwhile are added.
        progress: Called with the progress.

    Raises:
        DemoFailed: The stream did not deliver all messages.
    """
    rows, checkpoint = folder / "parquet", folder / "checkpoint"
    wanted = traffic.message_count + MORE_MESSAGES
    sender = _Sender(namesrv, traffic)
    query = (
        spark.readStream.format("rocketmq")
        .option("nameServer", namesrv)
        .option("topics", ",".join(TOPICS))
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", str(_MESSAGES_A_TRIGGER))
        .load()
        .writeStream.format("parquet")
        .option("checkpointLocation", str(checkpoint))
        .start(str(rows))
    )
    sender.start()
    try:
        batches = _await(query, wanted, sender, progress)
    finally:
        query.stop()
        sender.join()
    written = spark.read.parquet(str(rows)).agg(
        F.count("*").alias("rows"),
        F.count_distinct("topic", "queue_id", "queue_offset").alias("different"),
    )
    counts = written.first()
    assert counts is not None
    return Streamed(
        published=wanted,
        rows=counts["rows"],
        different=counts["different"],
        seconds=_span(batches),
        parquet_bytes=sum(file.stat().st_size for file in rows.rglob("*.parquet")),
        batches=batches,
    )


def _await(
    query: StreamingQuery, wanted: int, sender: "_Sender", progress: Progress
) -> list[MicroBatch]:
    """Wait until N rows are streamed; return the micro-batches."""
    batches: dict[int, MicroBatch] = {}
    latest, seen = time.monotonic(), 0
    while seen < wanted:
        if sender.error is not None:
            raise DemoFailed(f"messages could not be sent: {sender.error}")
        for reported in query.recentProgress:
            if reported["numInputRows"]:
                batches[reported["batchId"]] = _batch(reported)
        count = sum(batch.rows for batch in batches.values())
        if count > seen:
            latest, seen = time.monotonic(), count
        if time.monotonic() - latest > _STALLED_S:
            raise DemoFailed(f"{seen} of {wanted} messages were streamed, then none for long")
        progress("streaming into Parquet", seen, wanted)
        if query.awaitTermination(_POLL_S):
            raise DemoFailed(f"the stream ended after {seen} of {wanted} messages")
    return [batches[key] for key in sorted(batches)]


def _batch(reported: Any) -> MicroBatch:
    began = datetime.datetime.fromisoformat(reported["timestamp"])
    took_ms = reported["durationMs"]["triggerExecution"]
    return MicroBatch(
        end_ms=round(began.timestamp() * 1000) + took_ms,
        rows=reported["numInputRows"],
        seconds=took_ms / 1000,
        lag=lag_of(reported["sources"][0]["latestOffset"]).messages,
    )


def _span(batches: list[MicroBatch]) -> float:
    first, last = batches[0], batches[-1]
    return round((last.end_ms - first.end_ms) / 1000 + first.seconds, 2)


class _Sender(threading.Thread):
    """Sends more messages at a steady rate."""

    def __init__(self, namesrv: str, traffic: Traffic) -> None:
        super().__init__(name="demo-sender", daemon=True)
        self.error: Exception | None = None
        self._namesrv = namesrv
        self._traffic = traffic

    def run(self) -> None:
        try:
            asyncio.run(self._send())
        except Exception as error:  # noqa: BLE001 - raised by the waiting thread
            self.error = error

    async def _send(self) -> None:
        count, pause = MORE_MESSAGES, _MORE_SECONDS * _CHUNK / MORE_MESSAGES
        messages = demo_traffic.messages(count)
        sent = self._traffic.message_count
        async with Producer("demo-producers", namesrv=self._namesrv) as producer:
            for _ in range(0, count, _CHUNK):
                began = time.monotonic()
                await producer.send_many([next(messages) for _ in range(_CHUNK)])
                sent += _CHUNK
                demo_traffic.sample(self._traffic.published, sent)
                await asyncio.sleep(max(0.0, pause - (time.monotonic() - began)))
