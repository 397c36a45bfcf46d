"""Queries of a store with Spark beside the same rows in uncompressed Parquet, in one session.

Each query is written as users write it, without options that name columns: over
``reput.spark.read`` with and without the accelerator, over ``format("rocketmq")``, which Spark
makes read everything, and over Parquet. Every message has another body: Parquet would keep equal
ones once, in a dictionary.
"""

import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar
from unittest import mock

from pyspark.sql import DataFrame

import reput.spark
from benchmarks import stores, timing
from reput.spark import accelerator
from reput.spark.session import local_session

NAME = "spark_scan"
QUESTION = "full scan, few columns, counts and one topic of 50, against uncompressed Parquet"
_REPEATS = 3
_FEW = ("topic", "queue_id", "queue_offset", "tags", "store_timestamp")
Query = Callable[[DataFrame], object]
Result = TypeVar("Result")


def without_jar(work: Callable[[], Result]) -> Result:
    """Call a function as in a session without the accelerator's jar."""
    with mock.patch.object(accelerator, "is_available", return_value=False):
        return work()


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


def run(folder: Path, quick: bool, count: int | None = None) -> dict[str, object]:
    """Measure wall and CPU time of queries, alternating.

    Spark's idle workers end and take their CPU time along, so that a single CPU time may be wrong.

    Args:
        folder: Folder for the store and for Parquet's files.
        quick: Whether to read a tenth of the messages.
        count: Number of messages; by default 1.6 million.
    """
    count = count or (160_000 if quick else 1_600_000)
    root = stores.make(folder / f"distinct-{count}", count, 1024, is_distinct=True)
    parquet = folder / f"distinct-{count}.spark.parquet"
    settings = {"spark.jars": accelerator.jar(folder)}
    with local_session("reput benchmark", folder / "spark.log", "local[2]", settings) as spark:
        spark.conf.set("spark.sql.parquet.compression.codec", "uncompressed")
        if not (parquet / "_SUCCESS").exists():
            messages = spark.read.format("rocketmq").load(str(root))
            messages.write.mode("overwrite").parquet(str(parquet))

        def read(**options: str) -> DataFrame:
            return reput.spark.read(spark, str(root), **options)

        def case(ask: Query, frame: Callable[[], DataFrame]) -> Callable[[], object]:
            return lambda: ask(frame())

        def plain(work: Callable[[], object]) -> Callable[[], object]:
            return lambda: without_jar(work)

        cases: dict[str, Callable[[], object]] = {}
        for query, ask in _QUERIES.items():
            cases[f"{query}/read"] = plain(case(ask, read))
            cases[f"{query}/accelerated"] = case(ask, read)
            loaded = spark.read.format("rocketmq").load(str(root))
            cases[f"{query}/format"] = case(ask, lambda loaded=loaded: loaded)  # type: ignore[misc]
            cases[f"{query}/parquet"] = case(ask, lambda: spark.read.parquet(str(parquet)))
        for query, options in _ONLY_READ.items():
            unlike = case(_drop, lambda options=options: read(**options))  # type: ignore[misc]
            cases[f"{query}/read"] = plain(unlike)
        wall: dict[str, list[float]] = {name: [] for name in cases}
        cpu: dict[str, list[float]] = {name: [] for name in cases}
        for turn in range(_REPEATS + 1):
            for name, work in cases.items():
                cpu_before, before = timing.cpu_of_tree(), time.perf_counter()
                work()
                if turn:  # the first warms up the JVM and the page cache
                    wall[name].append(time.perf_counter() - before)
                    cpu[name].append(timing.cpu_of_tree() - cpu_before)
        load_average = os.getloadavg()[0]
    return {
        "messages": count,
        "body_bytes": 1024,
        "load_average": round(load_average, 1),
        "wall_s": {name: round(statistics.median(times), 2) for name, times in wall.items()},
        "cpu_s": {name: round(statistics.median(times), 2) for name, times in cpu.items()},
        "parquet_over": {
            way: {
                query: {
                    "wall": _ratio(wall[f"{query}/parquet"], wall[f"{query}/{way}"]),
                    "cpu": round(
                        statistics.median(cpu[f"{query}/parquet"])
                        / statistics.median(cpu[f"{query}/{way}"]),
                        2,
                    ),
                }
                for query in _QUERIES
            }
            for way in ("read", "accelerated", "format")
        },
    }


def _ratio(times: list[float], others: list[float]) -> float:
    """Return the median of the ratios of paired times."""
    return round(statistics.median(a / b for a, b in zip(times, others, strict=True)), 2)
