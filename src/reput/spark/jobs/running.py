"""How jobs run on Spark: tasks in, results out, with progress told from Spark's status.

A job is stages, a stage is tasks: picklable values that one function turns into results, on
whatever executor and however often Spark likes. Results are small; they travel to the driver.
"""

import contextlib
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, TypeVar

from reput.errors import ReputError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_POLL_SECONDS = 0.2
_GROUP = "spark.jobGroup.id"
_DESCRIPTION = "spark.job.description"

Task = TypeVar("Task")
Done = TypeVar("Done")
Progress = Callable[[str, int, int], None]
"""Told which stage runs, how many of its tasks are done, and of how many."""


class TaskFailed(ReputError):
    """A task failed as often as Spark runs one; the text says which stage, where and why."""

    retriable = True


class Runner(Protocol):
    """What runs tasks, in any order and any number of times, and returns their results in order."""

    def __call__(
        self, stage: str, function: Callable[[Task], Done], tasks: Sequence[Task]
    ) -> list[Done]:
        """Run a function on each task."""

    def tell(self, stage: str, done: int, count: int) -> None:
        """Tell of work that the driver does itself."""


@dataclass(frozen=True)
class SparkRunner:
    """Runs each stage as one Spark job, a partition a task."""

    spark: "SparkSession"
    job: str
    """What is shown for it in Spark's pages: ``archive``."""
    progress: Progress | None = None
    _poll_seconds: float = field(default=_POLL_SECONDS, repr=False)

    def __call__(
        self, stage: str, function: Callable[[Task], Done], tasks: Sequence[Task]
    ) -> list[Done]:
        """Run a function on each task.

        Raises:
            TaskFailed: One failed as often as Spark runs it.
        """
        if not tasks:
            return []
        context = self.spark.sparkContext
        with self._told(stage, len(tasks)):
            try:
                found: list[Done] = context.parallelize(tasks, len(tasks)).map(function).collect()
            except Exception as error:
                raise TaskFailed(f"{self.job}, {stage}: {reason(error)}") from error
        return found

    def tell(self, stage: str, done: int, count: int) -> None:
        """Tell of work that the driver does itself."""
        if self.progress is not None:
            self.progress(stage, done, count)

    @contextlib.contextmanager
    def _told(self, stage: str, count: int) -> Iterator[None]:
        """Tell of tasks that are done while the job runs, from a thread that asks Spark."""
        if self.progress is None:
            yield
            return
        context = self.spark.sparkContext
        before = {name: context.getLocalProperty(name) for name in (_GROUP, _DESCRIPTION)}
        group = f"reput-{self.job}-{stage}-{uuid.uuid4().hex}"
        context.setJobGroup(group, f"reput {self.job}: {stage}", interruptOnCancel=True)
        is_over = threading.Event()
        watcher = threading.Thread(
            target=self._watch, args=(group, stage, count, is_over), daemon=True
        )
        self.progress(stage, 0, count)
        watcher.start()
        try:
            yield
        finally:
            is_over.set()
            watcher.join()
            for name, value in before.items():
                context.setLocalProperty(name, value)  # type: ignore[arg-type]
        self.progress(stage, count, count)

    def _watch(self, group: str, stage: str, count: int, is_over: threading.Event) -> None:
        tracker = self.spark.sparkContext.statusTracker()
        told = 0
        while not is_over.wait(self._poll_seconds):
            done = 0
            for job_id in tracker.getJobIdsForGroup(group):
                job = tracker.getJobInfo(job_id)
                for stage_id in job.stageIds if job is not None else ():
                    info = tracker.getStageInfo(stage_id)
                    done += info.numCompletedTasks if info is not None else 0
            if told < done < count and self.progress is not None:
                told = done
                self.progress(stage, done, count)


@dataclass(frozen=True)
class SequentialRunner:
    """Runs tasks here, one after the other, without Spark: for small stores, and inside of SQL."""

    progress: Progress | None = None

    def __call__(
        self, stage: str, function: Callable[[Task], Done], tasks: Sequence[Task]
    ) -> list[Done]:
        """Run a function on each task; what it raises goes through."""
        found = []
        for number, task in enumerate(tasks):
            self.tell(stage, number, len(tasks))
            found.append(function(task))
        self.tell(stage, len(tasks), len(tasks))
        return found

    def tell(self, stage: str, done: int, count: int) -> None:
        """Tell of work that the driver does itself."""
        if self.progress is not None:
            self.progress(stage, done, count)


def runner_on(spark: "SparkSession | None", job: str, progress: Progress | None) -> Runner:
    """Return what runs a job's tasks: Spark, or this process where there is no session."""
    if spark is None:
        return SequentialRunner(progress)
    return SparkRunner(spark, job, progress)


def reason(error: Exception) -> str:
    """Return the line of a Spark error that says what happened in the task."""
    lines = [line.strip() for line in str(error).splitlines()]
    ours = [line for line in lines if line.startswith("reput.")]
    return ours[-1] if ours else (lines[0] if lines else type(error).__name__)
