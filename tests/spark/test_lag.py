"""The lag of a stream: 50,000 messages a second into a broker, and a Spark query that reads
them."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import pytest
from pyspark.sql import SparkSession, functions as F

from demo import traffic as demo_traffic
from reput.spark import lag_of
from reput.store.reader import StoreReader

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.soak]

SECONDS = int(os.environ.get("REPUT_LAG_SECONDS", "600"))
RATE = 50_000
LAG_MAX_S = 20
"""Largest lag at any time after the first minute, in seconds of messages."""


@pytest.mark.parametrize("source", ["folder", "brokers"])
def test_the_lag_of_a_stream_is_bounded(
    source: str, spark: SparkSession, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    lags: list[tuple[float, int]] = []
    with demo_traffic.broker(tmp_path) as namesrv:
        send = ["bench", "produce", "Lag", "--rate", str(RATE), "--duration", str(SECONDS)]
        producer = subprocess.Popen(
            [sys.executable, "-m", "reput", *send, "--window", "2000", "--json", "-n", namesrv],
            stdout=subprocess.PIPE,
            text=True,
        )
        where = (
            {"nameServer": namesrv}
            if source == "brokers"
            else {"path": str(tmp_path / "store"), "allowLive": "true"}
        )
        stream = (
            spark.readStream.format("rocketmq")
            .options(**where)
            .options(
                subscribePattern="Lag",
                startingOffsets="earliest",
                columns="queue_id",
            )
        )
        query = (
            stream.load()
            .groupBy("queue_id")
            .agg(F.count("*").alias("messages"))
            .writeStream.outputMode("complete")
            .format("memory")
            .queryName(f"lag_{source}")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .start()
        )
        begun = None
        reported = -1
        while producer.poll() is None:
            query.awaitTermination(1)
            progress = query.lastProgress
            if progress is None or progress["batchId"] == reported:
                continue
            reported = progress["batchId"]
            moment = datetime.fromisoformat(progress["timestamp"]).timestamp()
            begun = moment if begun is None else begun
            left = lag_of(progress["sources"][0]["latestOffset"]).messages
            lags.append((moment - begun, left + progress["numInputRows"]))
        assert producer.stdout is not None
        sent = json.loads(producer.stdout.read())
        query.processAllAvailable()
        query.stop()
    got = spark.table(f"lag_{source}").agg(F.sum("messages")).first()
    assert got is not None
    record_property("lag", lags)
    # Messages without an acknowledgement at the producer's end may be stored as well.
    reader = StoreReader.open(str(tmp_path / "store"))
    stored = sum(reader.queue("Lag", queue).max_offset for queue in reader.queue_ids["Lag"])
    assert got[0] == stored >= sent["message_count"] > 0
    late = [lag for second, lag in lags if second >= 60]
    assert late, "the run was shorter than a minute"
    assert max(late) < LAG_MAX_S * RATE
