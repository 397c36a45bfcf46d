"""The dispatch job beside the store's own recovery and Java's, on logs without queues and index."""

import functools
import os
import resource
import shutil
import statistics
import time
from pathlib import Path
from typing import Any

from benchmarks import store_open
from reput.spark import session
from reput.spark.jobs.dispatch import RANGE_BYTES, run_dispatch
from reput.spark.jobs.running import SparkRunner
from reput.store.files import paths

NAME = "spark_dispatch"
QUESTION = "queues and index from a log on two cores; recovery in one process and Java's beside it"
_REPEATS = 3
_MESSAGES_A_GB = 850_000
_GB = (1, 2, 4)


def _log_alone(store: Path, folder: Path) -> Path:
    """Return a folder with the linked log of a store, and no queues or index."""
    shutil.rmtree(folder, ignore_errors=True)
    (folder / paths.COMMIT_LOG).mkdir(parents=True)
    for file in (store / paths.COMMIT_LOG).iterdir():
        os.link(file, folder / paths.COMMIT_LOG / file.name)
    shutil.copy(store / paths.CHECKPOINT, folder)
    return folder


class _Timed:
    """Runs stages, and records the time of each and of its slowest task."""

    def __init__(self, spark: Any) -> None:
        self._run = SparkRunner(spark, "benchmark")
        self.stages: dict[str, dict[str, float]] = {}

    def __call__(self, stage: str, function: Any, tasks: Any) -> list[Any]:
        start = time.perf_counter()
        done = self._run(stage, functools.partial(_measured, function), tasks)
        wall = time.perf_counter() - start
        cpu = [seconds for _, seconds, _ in done]
        self.stages[stage] = {
            "wall_s": round(wall, 3),
            "tasks": len(tasks),
            "task_cpu_s_median": round(statistics.median(cpu), 3),
            "task_cpu_s_max": round(max(cpu), 3),
            "worker_mb_max": max(memory for _, _, memory in done),
        }
        return [result for result, _, _ in done]

    def report(self, stage: str, done: int, count: int) -> None:
        """Ignore progress."""


def _measured(function: Any, task: Any) -> tuple[Any, float, int]:
    start = time.process_time()
    result = function(task)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    return result, time.process_time() - start, memory


def _job(spark: Any, store: Path, target: Path) -> dict[str, Any]:
    shutil.rmtree(target, ignore_errors=True)
    runner = _Timed(spark)
    start = time.perf_counter()
    result = run_dispatch(runner, str(store), target=str(target), range_bytes=RANGE_BYTES)
    wall = time.perf_counter() - start
    return {"wall_s": round(wall, 3), "messages": result.records, "stages": runner.stages}


def run(folder: Path, quick: bool) -> dict[str, object]:
    """Measure stores of 1, 2 and 4 GB, alternating with recovery; Java once, on 2 GB.

    Quick: one store of half a GB.
    """
    counts = [_MESSAGES_A_GB // 2] if quick else [gb * _MESSAGES_A_GB for gb in _GB]
    results: dict[str, object] = {}
    with session.local_session("reput benchmark", folder / "spark.log", "local[2]") as spark:
        for count in counts:
            store, copy = folder / f"dispatch-{count}", folder / "dispatch-copy"
            if not store.exists():
                store_open.make(store, count)
            jobs: list[dict[str, Any]] = []
            recoveries: list[float] = []
            for turn in range(_REPEATS + 1):
                job = _job(spark, store, folder / "dispatch-target")
                recovery = store_open.ours(_log_alone(store, copy), count)["open_s"]
                if turn:  # the first warms up workers and the page cache
                    jobs.append(job)
                    recoveries.append(recovery)
            jobs.sort(key=lambda measured: measured["wall_s"])
            job, recovery = jobs[_REPEATS // 2], statistics.median(recoveries)
            of_java = None
            if quick or count == counts[1]:
                of_java = store_open.of_java(_log_alone(store, copy))
            results[f"{count}_messages"] = {
                "job": job,
                "recovery_s": recovery,
                "java_4_9_7": of_java,
                "job_over_recovery": round(job["wall_s"] / recovery, 2),
                "job_over_java": of_java and round(job["wall_s"] / of_java["process_s"], 2),
                "job_us_a_message": round(job["wall_s"] / count * 1e6, 2),
            }
            shutil.rmtree(copy)
    return results
