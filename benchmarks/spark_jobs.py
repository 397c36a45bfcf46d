"""The jobs on one store of 2 GB: total time, and the time of each task.

Times of tasks are their run times on an executor, from Spark's status store. They predict the cost
of a job on a larger log and more workers (docs/reference/pipeline-performance.md).
"""

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from benchmarks import store_open, timing
from reput.spark.jobs.archive import archive, verify
from reput.spark.jobs.audit import audit
from reput.spark.jobs.compare import compare
from reput.spark.jobs.dispatch import dispatch
from reput.spark.jobs.restore import restore
from reput.spark.jobs.salvage import salvage
from reput.spark.session import local_session
from reput.store.files import paths
from reput.store.reader import StoreReader

NAME = "spark_jobs"
QUESTION = "seconds and MB/s of the jobs on two cores, and seconds and memory of their tasks"
_MESSAGES = 1_700_000


def run(folder: Path, quick: bool) -> dict[str, object]:
    """Run each job twice, the first time to warm up, in a new session for the workers' memory."""
    count = _MESSAGES // 10 if quick else _MESSAGES
    store, kept = folder / f"dispatch-{count}", folder / "jobs"
    if not store.exists():
        store_open.make(store, count)
    log_bytes = StoreReader.open(str(store)).end_offset
    shutil.rmtree(kept, ignore_errors=True)
    kept.mkdir()
    copy = _linked(store, kept / "twin")
    new, archived = kept / "new", kept / "archive"
    jobs: dict[str, tuple[Callable[[SparkSession], object], Path | None]] = {
        "dispatch": (lambda spark: dispatch(spark, str(store), target=str(new)), new),
        "dispatch_dry": (lambda spark: dispatch(spark, str(store), dry_run=True), None),
        "audit": (lambda spark: audit(spark, str(store)), None),
        "audit_table": (lambda spark: audit(spark, str(store), table=str(new)), new),
        "compare": (lambda spark: compare(spark, str(store), str(copy)), None),
        "salvage": (lambda spark: salvage(spark, str(store), str(new)), new),
        "archive": (
            lambda spark: archive(spark, str(store), str(archived), include_last=True),
            archived,
        ),
        "verify": (lambda spark: verify(spark, str(archived)), None),
        "restore": (lambda spark: restore(spark, str(archived), str(new)), new),
    }
    results: dict[str, object] = {"messages": count, "log_mb": round(log_bytes / 1e6)}
    for name, (job, target) in jobs.items():
        with local_session("reput benchmark", folder / "spark.log", "local[2]") as spark:
            for _ in range(2):
                if target is not None:
                    shutil.rmtree(target, ignore_errors=True)
                count_before = len(_stages(spark))
                start = time.perf_counter()
                job(spark)
                wall = time.perf_counter() - start
            stages = _stages(spark)[: -count_before or None]
            results[name] = {
                "wall_s": round(wall, 2),
                "mb_per_s": round(log_bytes / 1e6 / wall),
                "worker_mb": round(timing.peak_mb_of("pyspark.daemon")),
                "stages": [_summary(stage) for stage in reversed(stages)],
            }
    shutil.rmtree(kept)
    return results


def _linked(store: Path, copy: Path) -> Path:
    """Return a linked copy of a store."""
    shutil.copytree(store, copy, copy_function=os.link, ignore=shutil.ignore_patterns(paths.LOCK))
    return copy


def _stages(spark: SparkSession) -> list[Any]:
    """Return all stages of Spark's status store, the newest first."""
    gateway, context = spark.sparkContext._gateway, spark.sparkContext._jsc.sc()
    assert gateway is not None
    quantiles = gateway.new_array(gateway.jvm.double, 1)
    quantiles[0] = 1.0
    empty = gateway.jvm.java.util.ArrayList()
    stages = context.statusStore().stageList(None, False, True, quantiles, empty)
    return [stages.apply(i) for i in range(stages.size())]


def _summary(stage: Any) -> dict[str, Any]:
    name = stage.description()
    tasks = stage.numCompleteTasks()
    longest = stage.taskMetricsDistributions()
    return {
        "stage": name.get().rpartition(": ")[2] if name.isDefined() else stage.name(),
        "tasks": tasks,
        "task_s_mean": round(stage.executorRunTime() / 1000 / max(tasks, 1), 3),
        "task_s_max": (
            round(longest.get().executorRunTime().apply(0) / 1000, 3)
            if longest.isDefined()
            else None
        ),
    }
