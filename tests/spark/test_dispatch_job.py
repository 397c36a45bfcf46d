"""A dispatch on Spark whose workers die; its results for all logs are tested in tests/unit."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

import golden
from reput.spark.jobs.dispatch import run_dispatch
from reput.spark.jobs.running import Done, SparkRunner, Task, TaskFailed
from reput.store.files import paths
from spark.dispatch_setting import assert_same
from spark.jobs_setting import settings


def dying_once(function: Callable[[Any], Any], folder: str) -> Callable[[tuple[int, Any]], Any]:
    """Return a task that kills its Python worker once, after its work."""

    def run(numbered: tuple[int, Any]) -> Any:  # nested: workers cannot import this module
        number, task = numbered
        mark = Path(folder, str(number))
        done = function(task)
        if number in (0, 3) and not mark.exists():
            mark.touch()
            os._exit(9)
        return done

    return run


@dataclass(frozen=True)
class _DyingRunner:
    """Runs tasks on Spark; two tasks that write kill their workers on the first attempt."""

    runner: SparkRunner
    folder: Path

    def __call__(
        self, stage: str, function: Callable[[Task], Done], tasks: Sequence[Task]
    ) -> list[Done]:
        if stage != "write":
            return self.runner(stage, function, tasks)
        dying = dying_once(function, str(self.folder))
        done: list[Done] = self.runner(stage, dying, list(enumerate(tasks)))
        return done

    def report(self, stage: str, done: int, count: int) -> None:
        pass


def test_a_run_whose_workers_died_is_finished_by_the_next(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Files are those of Java, and appear when all are complete."""
    store, target, marks = golden.unpack("4.9.7", "clean"), tmp_path / "target", tmp_path / "marks"
    marks.mkdir()
    steps: list[tuple[str, int, int]] = []
    runner = SparkRunner(spark, "dispatch", lambda *step: steps.append(step))
    options: dict[str, Any] = {"config": settings("4.9.7"), "target": str(target)}
    failures = 0
    for _ in range(5):
        try:
            result = run_dispatch(
                _DyingRunner(runner, marks), str(store), range_bytes=150_000, **options
            )
            break
        except TaskFailed:
            failures += 1
            assert any(marks.iterdir())
            assert not (target / paths.CONSUME_QUEUE).exists()
            assert not (target / paths.INDEX).exists()
    assert 0 < failures <= 2
    assert_same(target, store)
    assert result.records == golden.manifest("4.9.7", "clean")["log"]["records"]
    surveyed = [(done, count) for stage, done, count in steps if stage == "survey"]
    assert (surveyed[0], surveyed[-1]) == ((0, result.ranges), (result.ranges, result.ranges))
