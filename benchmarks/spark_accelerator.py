"""Reading a store with the accelerator beside the same rows in uncompressed Parquet, in a session.

Each body is another one: Parquet keeps few different ones in a dictionary.
"""

import statistics
import time
from collections.abc import Callable
from pathlib import Path

from pyspark.sql import DataFrame

import reput.spark
from benchmarks import stores, timing
from reput.spark import accelerator
from reput.spark.session import local_session

NAME = "spark_accelerator"
QUESTION = "how many times as fast as Parquet the accelerator reads, by time and by CPU"
_REPEATS = 3
_FIVE = ("topic", "queue_id", "queue_offset", "tags", "store_timestamp")


def _into_noop(frame: DataFrame) -> None:
    frame.write.format("noop").mode("overwrite").save()


CASES: dict[str, Callable[[DataFrame], object]] = {
    "everything": _into_noop,
    "without_body": lambda frame: _into_noop(frame.drop("body")),
    "five_columns": lambda frame: _into_noop(frame.select(*_FIVE)),
    "count": lambda frame: frame.count(),
    "group_by_tags": lambda frame: frame.groupBy("tags").count().collect(),
    "one_topic": lambda frame: _into_noop(frame.where(f"topic = '{stores.topic_name(7)}'")),
}


def run(folder: Path, quick: bool) -> dict[str, object]:
    """Measure wall and CPU time of reads into the noop sink, alternating."""
    count = 160_000 if quick else 1_600_000
    root = stores.make(folder / f"spark-distinct-{count}", count, 1024, is_distinct=True)
    parquet = folder / f"spark-distinct-{count}.parquet"
    settings = {"spark.jars": accelerator.jar(folder)}
    with local_session("reput benchmark", folder / "spark.log", "local[2]", settings) as spark:
        assert accelerator.is_available(spark)
        spark.conf.set("spark.sql.parquet.compression.codec", "uncompressed")
        if not parquet.exists():
            reput.spark.read(spark, str(root)).write.parquet(str(parquet))
        reads = {
            "store": lambda: reput.spark.read(spark, str(root)),
            "unchecked": lambda: reput.spark.read(spark, str(root), checkCrc="false"),
            "parquet": lambda: spark.read.parquet(str(parquet)),
        }
        pid = spark._jvm.java.lang.ProcessHandle.current().pid()  # no Python worker takes part
        wall: dict[tuple[str, str], list[float]] = {}
        cpu: dict[tuple[str, str], list[float]] = {}
        for turn in range(_REPEATS + 1):
            for case, use in CASES.items():
                for name, read in reads.items():
                    cpu_before = timing.cpu_of_process(pid)
                    before = time.perf_counter()
                    use(read())
                    if turn:  # the first warms up the JVM and the page cache
                        wall.setdefault((case, name), []).append(time.perf_counter() - before)
                        used = timing.cpu_of_process(pid) - cpu_before
                        cpu.setdefault((case, name), []).append(used)
    results: dict[str, object] = {"messages": count, "body_bytes": 1024}
    for case in CASES:
        wall_s = {name: statistics.median(wall[case, name]) for name in reads}
        cpu_s = {name: statistics.median(cpu[case, name]) for name in reads}
        results[case] = {
            "wall_s": {name: round(value, 2) for name, value in wall_s.items()},
            "cpu_s": {name: round(value, 2) for name, value in cpu_s.items()},
            "parquet_over_store": {
                "wall": round(wall_s["parquet"] / wall_s["store"], 2),
                "cpu": round(cpu_s["parquet"] / max(cpu_s["store"], 0.01), 2),
            },
        }
    return results
