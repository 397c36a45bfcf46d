"""Reading a store with Spark beside the same rows in uncompressed Parquet, in one session."""

import statistics
import time
from pathlib import Path

from benchmarks import stores, timing
from reput.spark.session import local_session

NAME = "spark_scan"
QUESTION = "full scan against Parquet; without bodies, and one topic of 50, against the full scan"
_REPEATS = 3


def run(folder: Path, quick: bool) -> dict[str, object]:
    """Measure wall and CPU time of reads into the noop sink, alternating."""
    count = 160_000 if quick else 1_600_000
    root = stores.make(folder / f"spark-{count}", count, 1024)
    parquet = folder / f"spark-{count}.parquet"
    with local_session("reput benchmark", folder / "spark.log", "local[2]") as spark:
        spark.conf.set("spark.sql.parquet.compression.codec", "uncompressed")

        def store(**options: str):  # type: ignore[no-untyped-def]
            return spark.read.format("rocketmq").options(**options).load(str(root))

        if not parquet.exists():
            store().write.parquet(str(parquet))
        reads = {
            "store": store,
            "parquet": lambda: spark.read.parquet(str(parquet)),
            "store_without_body": lambda: store(includeBody="false"),
            "store_one_topic": lambda: store(topic=stores.topic_name(7)),
            "store_one_topic_by_filter": lambda: store().filter(
                f"topic = '{stores.topic_name(7)}'"
            ),
            "store_unchecked": lambda: store(checkCrc="false"),
        }
        wall: dict[str, list[float]] = {name: [] for name in reads}
        cpu: dict[str, list[float]] = {name: [] for name in reads}
        for turn in range(_REPEATS + 1):
            for name, read in reads.items():
                cpu_before, before = (
                    timing.cpu_of("pyspark", "org.apache.spark"),
                    time.perf_counter(),
                )
                read().write.format("noop").mode("overwrite").save()
                if turn:  # the first warms up the JVM and the page cache
                    wall[name].append(time.perf_counter() - before)
                    cpu[name].append(timing.cpu_of("pyspark", "org.apache.spark") - cpu_before)
    median = {name: statistics.median(times) for name, times in wall.items()}
    full = median["store"]
    return {
        "messages": count,
        "body_bytes": 1024,
        "wall_s": {name: round(value, 2) for name, value in median.items()},
        "cpu_s": {name: round(statistics.median(times), 2) for name, times in cpu.items()},
        "parquet_over_store": round(median["parquet"] / full, 2),
        "store_over_without_body": round(full / median["store_without_body"], 2),
        "store_over_one_topic": round(full / median["store_one_topic"], 2),
        "store_over_one_topic_by_filter": round(full / median["store_one_topic_by_filter"], 2),
    }
