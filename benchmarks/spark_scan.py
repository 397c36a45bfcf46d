"""Queries of a store with Spark beside the same rows in uncompressed Parquet, in one session.

Each query is written as users write it, without options that name columns: over
``reput.spark.read``, over ``format("rocketmq")``, which Spark makes read everything, and over
Parquet. Every message has another body: Parquet would keep equal ones once, in a dictionary.
"""

import statistics
import time
from collections.abc import Callable
from pathlib import Path

from pyspark.sql import DataFrame

import reput.spark
from benchmarks import stores, timing
from reput.spark.session import local_session

NAME = "spark_scan"
QUESTION = "full scan, few columns, counts and one topic of 50, against uncompressed Parquet"
_REPEATS = 3
_FEW = ("topic", "queue_id", "queue_offset", "tags", "store_timestamp")
Query = Callable[[DataFrame], object]


def _drop(frame: DataFrame) -> None:
    frame.write.format("noop").mode("overwrite").save()


def _sql(frame: DataFrame) -> object:
    frame.createOrReplaceTempView("messages")
    query = "SELECT tags, count(*) AS n FROM messages GROUP BY tags ORDER BY n DESC"
    return reput.spark.sql(frame.sparkSession, query).collect()


_QUERIES: dict[str, Query] = {
    "all": _drop,
    "five_columns": lambda frame: _drop(frame.select(*_FEW)),
    "count": lambda frame: frame.count(),
    "group_by_tags": lambda frame: frame.groupBy("tags").count().collect(),
    "group_by_tags_in_sql": _sql,
    "last_time": lambda frame: frame.groupBy("topic").agg({"store_timestamp": "max"}).collect(),
    "one_topic": lambda frame: _drop(frame.where(f"topic = '{stores.topic_name(7)}'")),
}
_ONLY_READ = {"all_unchecked": {"checkCrc": "false"}, "one_topic_by_option": {"topic": "bench-07"}}


def run(folder: Path, quick: bool) -> dict[str, object]:
    """Measure wall and CPU time of queries, alternating."""
    count = 160_000 if quick else 1_600_000
    root = stores.make(folder / f"distinct-{count}", count, 1024, is_distinct=True)
    parquet = folder / f"distinct-{count}.spark.parquet"
    with local_session("reput benchmark", folder / "spark.log", "local[2]") as spark:
        spark.conf.set("spark.sql.parquet.compression.codec", "uncompressed")
        if not (parquet / "_SUCCESS").exists():
            messages = spark.read.format("rocketmq").load(str(root))
            messages.write.mode("overwrite").parquet(str(parquet))
        frames: dict[str, Callable[[], DataFrame]] = {
            "read": lambda: reput.spark.read(spark, str(root)),
            "format": lambda: spark.read.format("rocketmq").load(str(root)),
            "parquet": lambda: spark.read.parquet(str(parquet)),
        }
        cases: dict[str, Callable[[], object]] = {
            f"{query}/{name}": lambda ask=ask, frame=frame: ask(frame())  # type: ignore[misc]
            for query, ask in _QUERIES.items()
            for name, frame in frames.items()
        }
        cases |= {
            f"{name}/read": lambda options=options: _drop(  # type: ignore[misc]
                reput.spark.read(spark, str(root), **options)
            )
            for name, options in _ONLY_READ.items()
        }
        wall: dict[str, list[float]] = {name: [] for name in cases}
        cpu: dict[str, list[float]] = {name: [] for name in cases}
        for turn in range(_REPEATS + 1):
            for name, ask in cases.items():
                cpu_before, before = timing.cpu_of_tree(), time.perf_counter()
                ask()
                if turn:  # the first warms up the JVM and the page cache
                    wall[name].append(time.perf_counter() - before)
                    cpu[name].append(timing.cpu_of_tree() - cpu_before)
    median = {name: statistics.median(times) for name, times in wall.items()}
    cpu_median = {name: statistics.median(times) for name, times in cpu.items()}
    return {
        "messages": count,
        "body_bytes": 1024,
        "wall_s": {name: round(value, 2) for name, value in median.items()},
        "cpu_s": {name: round(value, 2) for name, value in cpu_median.items()},
        "parquet_over_read": {
            query: {
                "wall": round(median[f"{query}/parquet"] / median[f"{query}/read"], 2),
                "cpu": round(cpu_median[f"{query}/parquet"] / cpu_median[f"{query}/read"], 2),
            }
            for query in _QUERIES
        },
    }
