"""Writing a store with Spark beside the same rows as uncompressed Parquet, in one session."""

import shutil
import statistics
import time
from pathlib import Path

from benchmarks import stores, timing
from reput.spark.session import local_session
from reput.store.reader import StoreReader

NAME = "spark_import"
QUESTION = "MB of log a second into a new store and appended to one, against Parquet"
_REPEATS = 3
_COLUMNS = ("topic", "queue_id", "body", "tags", "keys", "properties", "born_timestamp")


def run(folder: Path, quick: bool) -> dict[str, object]:
    """Measure wall and CPU time of the writes, alternating; all are synced."""
    count = 200_000 if quick else 2_000_000
    root = stores.make(folder / f"spark-{count}", count, 1024)
    log_bytes = StoreReader.open(str(root)).end_offset
    wall: dict[str, list[float]] = {"store": [], "append": [], "parquet": []}
    cpu: dict[str, list[float]] = {name: [] for name in wall}
    with local_session("reput benchmark", folder / "spark.log", "local[2]") as spark:
        spark.conf.set("spark.sql.parquet.compression.codec", "uncompressed")
        parquet, target = folder / "rows.parquet", folder / "imported"
        # Both write the same rows, which come from Parquet: reading stores is not measured.
        source = folder / f"spark-{count}.rows"
        if not source.exists():
            rows = spark.read.format("rocketmq").option("scan", "log").load(str(root))
            rows.select(*_COLUMNS).write.parquet(str(source))
        for turn in range(_REPEATS + 1):
            shutil.rmtree(target, ignore_errors=True)
            for name in wall:
                writer = spark.read.parquet(str(source)).write
                cpu_before = timing.cpu_of("pyspark", "org.apache.spark")
                before = time.perf_counter()
                if name == "parquet":
                    writer.mode("overwrite").parquet(str(parquet))
                else:
                    writer.format("rocketmq").mode("append").save(str(target))
                if turn:  # the first warms up the JVM and the page cache
                    wall[name].append(time.perf_counter() - before)
                    cpu[name].append(timing.cpu_of("pyspark", "org.apache.spark") - cpu_before)
        shutil.rmtree(target, ignore_errors=True)
        shutil.rmtree(parquet, ignore_errors=True)
    median = {name: statistics.median(times) for name, times in wall.items()}
    return {
        "messages": count,
        "log_mb": round(log_bytes / 1e6),
        "wall_s": {name: round(value, 2) for name, value in median.items()},
        "cpu_s": {name: round(statistics.median(times), 2) for name, times in cpu.items()},
        "log_mb_per_s": {
            name: round(log_bytes / 1e6 / median[name]) for name in ("store", "append")
        },
        "parquet_over_store": round(median["parquet"] / median["store"], 2),
    }
