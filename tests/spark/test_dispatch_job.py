"""The dispatch job as Spark runs it; what it makes of all kinds of logs is in tests/unit."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import golden
from reput import config
from reput.spark.jobs.dispatch import dispatch, run_dispatch
from reput.spark.jobs.running import Done, SparkRunner, Task, TaskFailed
from reput.store import paths
from reput.store.config import StoreConfig


def settings(version: str, name: str) -> StoreConfig:
    """The configuration of the broker that wrote a store."""
    found = dict(golden.manifest(version, name)["config"])
    for key in ("storePathRootDir", "storePathCommitLog"):
        found.pop(key, None)
    explicit = {"index_tags": version >= "5.4"}
    return config.load(StoreConfig, found, environment={}, explicit=explicit).value


def files_of(root: Path, family: str) -> dict[str, bytes]:
    return {
        str(path.relative_to(root / family)): path.read_bytes()
        for path in sorted((root / family).rglob("*"))
        if path.is_file()
    }


def assert_as_java(target: Path, store: Path) -> None:
    queues = paths.CONSUME_QUEUE
    assert files_of(target, queues) == files_of(store, queues)
    found, expected = (list(files_of(one, paths.INDEX).values()) for one in (target, store))
    assert found == expected


@pytest.mark.parametrize("version", ["4.9.7", "5.5.0"])
def test_spark_makes_the_bytes_that_java_wrote(
    version: str, spark: SparkSession, tmp_path: Path
) -> None:
    store, target = golden.unpack(version, "clean"), tmp_path / "target"
    options = settings(version, "clean")
    told: list[tuple[str, int, int]] = []
    result = dispatch(
        spark, str(store), config=options, target=str(target), range_bytes=100_000,
        progress=lambda *one: told.append(one),
    )  # fmt: skip
    assert_as_java(target, store)
    assert result.records == golden.manifest(version, "clean")["log"]["records"]
    surveyed = [(done, count) for stage, done, count in told if stage == "survey"]
    assert (surveyed[0], surveyed[-1]) == ((0, result.ranges), (result.ranges, result.ranges))
    assert {stage for stage, _, _ in told} == {"survey", "write"}
    difference = dispatch(spark, str(store), config=options, dry_run=True).difference
    assert difference is not None
    assert difference.is_same


def dying_once(
    function: Callable[[Any], Any], folder: str, is_after: bool
) -> Callable[[tuple[int, Any]], Any]:
    """A task that kills its Python worker, before or after its work, unless it has done so."""

    def run(numbered: tuple[int, Any]) -> Any:  # within: workers cannot import this module
        number, task = numbered
        mark = Path(folder, str(number))
        if number not in (0, 3) or mark.exists():
            return function(task)
        if is_after:
            function(task)
        mark.touch()
        os._exit(9)

    return run


@dataclass(frozen=True)
class _DyingRunner:
    """Runs tasks on Spark; in one stage two of them kill their workers, the first time."""

    spark: SparkSession
    folder: Path
    dying: str
    is_after: bool

    def __call__(
        self, stage: str, function: Callable[[Task], Done], tasks: Sequence[Task]
    ) -> list[Done]:
        runner = SparkRunner(self.spark, "dispatch")
        if stage != self.dying:
            return runner(stage, function, tasks)
        dying = dying_once(function, str(self.folder), self.is_after)
        found: list[Done] = runner(stage, dying, list(enumerate(tasks)))
        return found


@pytest.mark.parametrize(("dying", "is_after"), [("survey", False), ("write", True)])
def test_workers_that_die_leave_what_the_next_run_finishes(
    dying: str, is_after: bool, spark: SparkSession, tmp_path: Path
) -> None:
    store, target = golden.unpack("4.9.7", "clean"), tmp_path / "target"
    options = settings("4.9.7", "clean")
    marks = tmp_path / "marks"
    marks.mkdir()
    runner = _DyingRunner(spark, marks, dying, is_after)
    failures = 0
    for _ in range(5):
        try:
            run_dispatch(
                runner, str(store), config=options, target=str(target), range_bytes=150_000
            )
            break
        except TaskFailed:
            failures += 1
            assert any(marks.iterdir())
            assert not (target / paths.CONSUME_QUEUE).exists()
            assert not (target / paths.INDEX).exists()
    assert 0 < failures <= 2
    assert_as_java(target, store)
