"""Rows of Spark into a running broker beside ``reput bench produce`` on the same broker."""

import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

from benchmarks import broker_targets as targets
from reput.spark.session import local_session

NAME = "spark_sink"
QUESTION = "messages/s of df.write to a broker, by mode, against reput bench produce"
_REPEATS = 3
_BODY_BYTES = 1024
_MODES = {
    "batch": {"sendMode": "batch"},
    "batch_1m": {"sendMode": "batch", "batchBytes": "1m"},
    "batch_first_try_unasked": {"sendMode": "batch", "skipPresent": "none"},
    "async": {"sendMode": "async"},
    "sync": {"sendMode": "sync"},
}
_SINGLE = ("--window", "256")
_BATCHED = ("--window", "4", "--batch", "200")


def run(folder: Path, quick: bool) -> dict[str, object]:
    """Measure, alternating; each write and each run of the bench sends as many messages."""
    count = 40_000 if quick else 400_000
    results: dict[str, object] = {"messages": count, "body_bytes": _BODY_BYTES}
    with (
        targets.brokers(folder / NAME) as brokers,
        local_session("reput benchmark", folder / "spark.log", "local[2]") as spark,
    ):
        rows = spark.range(0, count, numPartitions=2).selectExpr(
            f"rpad(string(id), {_BODY_BYTES}, 'x') AS body", "array(string(id)) AS keys"
        )
        parquet = str(folder / f"rows-{count}.parquet")
        rows.write.mode("overwrite").option("compression", "none").parquet(parquet)
        frame = spark.read.parquet(parquet)
        for broker in brokers:
            rates: dict[str, list[float]] = {}
            for turn in range(1 + (1 if quick else _REPEATS)):
                for name, options in _MODES.items():
                    writer = frame.write.format("rocketmq").mode("append")
                    writer = writer.options(nameServer=broker.namesrv, topic="Sink", **options)
                    begun = time.perf_counter()
                    writer.save()
                    if turn:  # the first warms up the JVM, the page cache and the broker
                        rates.setdefault(name, []).append(count / (time.perf_counter() - begun))
                for name, words in (("bench", _SINGLE), ("bench_batched", _BATCHED)):
                    rate = _bench(broker.namesrv, count, words)
                    if turn:
                        rates.setdefault(name, []).append(rate)
            medians = {name: round(statistics.median(values)) for name, values in rates.items()}
            best = max(medians["bench"], medians["bench_batched"])
            results[broker.name] = {
                "per_s": medians,
                "batch_over_bench": round(medians["batch"] / best, 3),
                "async_over_bench": round(medians["async"] / medians["bench"], 3),
            }
    return results


def _bench(namesrv: str, count: int, words: tuple[str, ...]) -> float:
    command = [sys.executable, "-m", "reput", "bench", "produce", "Bench", "--json"]
    command += ["--namesrv", namesrv, "--count", str(count), "--size", str(_BODY_BYTES), *words]
    done = subprocess.run(command, capture_output=True, check=True, text=True)
    return float(json.loads(done.stdout)["messages_per_second"])
