"""Run the tasks of jobs on Spark, and report their progress from Spark's status.

A job consists of stages, a stage of tasks: picklable values that one function turns into results,
on any executor and any number of times. Results are small; they travel to the driver.
"""

import contextlib
import functools
import pickle
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from reput.errors import ReputError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_POLL_SECONDS = 0.2
_REQUEST_BYTES_MAX = 16 * 1024 * 1024
"""Approximate size of the tasks of a request of Spark Connect; it refuses 128 MB."""
_GROUP = "spark.jobGroup.id"
_DESCRIPTION = "spark.job.description"

Task = TypeVar("Task")
Done = TypeVar("Done")
Progress = Callable[[str, int, int], None]
"""Called with the stage, the number of completed tasks, and the number of all tasks."""


class TaskFailed(ReputError):
    """A task failed as often as Spark retries it; the text has the stage and the reason."""

    retriable = True


class Runner(Protocol):
    """Runs tasks, in any order and any number of times; returns their results in order."""

    def __call__(
        self, stage: str, function: Callable[[Task], Done], tasks: Sequence[Task]
    ) -> list[Done]:
        """Run a function on each task."""

    def report(self, stage: str, done: int, count: int) -> None:
        """Report progress of the driver's own work."""


@dataclass(frozen=True)
class SparkRunner:
    """Runs each stage as a Spark job with a partition per task."""

    spark: "SparkSession"
    job: str
    """Name of the job on Spark's pages, such as ``archive``."""
    progress: Progress | None = None
    _poll_seconds: float = field(default=_POLL_SECONDS, repr=False)

    def __call__(
        self, stage: str, function: Callable[[Task], Done], tasks: Sequence[Task]
    ) -> list[Done]:
        """Run a function on each task.

        Raises:
            TaskFailed: A task failed as often as Spark retries it.
        """
        if not tasks:
            return []
        context = self.spark.sparkContext
        with self._reporting(stage, len(tasks)):
            try:
                results: list[Done] = context.parallelize(tasks, len(tasks)).map(function).collect()
            except Exception as error:
                raise TaskFailed(f"{self.job}, {stage}: {reason(error)}") from error
        return results

    def report(self, stage: str, done: int, count: int) -> None:
        """Report progress of the driver's own work."""
        if self.progress is not None:
            self.progress(stage, done, count)

    @contextlib.contextmanager
    def _reporting(self, stage: str, count: int) -> Iterator[None]:
        """Report completed tasks while the job runs, from a thread that polls Spark."""
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
        reported = 0
        while not is_over.wait(self._poll_seconds):
            done = 0
            for job_id in tracker.getJobIdsForGroup(group):
                job = tracker.getJobInfo(job_id)
                for stage_id in job.stageIds if job is not None else ():
                    info = tracker.getStageInfo(stage_id)
                    done += info.numCompletedTasks if info is not None else 0
            if reported < done < count and self.progress is not None:
                reported = done
                self.progress(stage, done, count)


@dataclass(frozen=True)
class ConnectRunner:
    """Runs each stage over a frame with a row and a partition per task.

    A session of Spark Connect has frames only: neither ``parallelize`` nor the status of jobs.
    """

    spark: "SparkSession"
    job: str
    """Name of the job, for errors."""
    progress: Progress | None = None

    def __call__(
        self, stage: str, function: Callable[[Task], Done], tasks: Sequence[Task]
    ) -> list[Done]:
        """Run a function on each task.

        Raises:
            TaskFailed: A task failed as often as Spark retries it.
        """
        results: list[Done] = []
        for portion in _portions([pickle.dumps(task) for task in tasks]):
            with self._reporting(stage, len(results), len(tasks)):
                frame = frame_of(
                    self.spark, functools.partial(_row_of, function), portion, "result binary"
                )
                try:
                    rows = frame.collect()
                except Exception as error:
                    raise TaskFailed(f"{self.job}, {stage}: {reason(error)}") from error
            results += [pickle.loads(row[0]) for row in sorted(rows, key=lambda row: row[1])]
        if tasks:
            self.report(stage, len(tasks), len(tasks))
        return results

    def report(self, stage: str, done: int, count: int) -> None:
        """Report progress of the driver's own work."""
        if self.progress is not None:
            self.progress(stage, done, count)

    @contextlib.contextmanager
    def _reporting(self, stage: str, before: int, count: int) -> Iterator[None]:
        """Report completed tasks as the server does."""
        if self.progress is None:
            yield
            return
        reported = before

        def note(stages: Any, inflight_tasks: int, operation_id: str | None, done: bool) -> None:
            nonlocal reported
            finished = before + sum(each.num_completed_tasks for each in stages or ())
            if reported < finished < count:
                reported = finished
                self.report(stage, finished, count)

        self.report(stage, before, count)
        self.spark.registerProgressHandler(note)  # type: ignore[arg-type]
        try:
            yield
        finally:
            self.spark.removeProgressHandler(note)  # type: ignore[arg-type]


def frame_of(
    spark: "SparkSession",
    rows: Callable[[Any], Iterable[tuple[Any, ...]]],
    tasks: Sequence[bytes],
    schema: str,
) -> "DataFrame":
    """Return the rows of tasks and, as the last column, the number of the task.

    Args:
        spark: A session, of Spark Connect or not; others than Connect's need pandas for this.
        rows: Makes the rows of a task, on an executor.
        tasks: The tasks, pickled. All go to each executor.
        schema: Columns of the rows: name and type, separated by commas.
    """
    names = [column.split()[0] for column in schema.split(",")]

    def run(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa

        for batch in batches:
            for number in batch.column(0).to_pylist():
                made = [(*row, number) for row in rows(pickle.loads(tasks[number]))]
                columns = [[row[i] for row in made] for i in range(len(names) + 1)]
                arrays = map(pa.array, columns, types)
                yield pa.RecordBatch.from_arrays([*arrays], [*names, "number"])

    types = [_arrow_type(column.split()[1]) for column in f"{schema}, number long".split(",")]
    count = len(tasks)
    return spark.range(0, count, 1, count).mapInArrow(run, f"{schema}, number long")


def _arrow_type(name: str) -> Any:
    import pyarrow as pa  # jobs that run without Connect may start without it

    kinds = {"string": pa.string(), "binary": pa.binary(), "long": pa.int64(), "int": pa.int32()}
    return kinds[name]


def _row_of(function: Callable[[Any], Any], task: Any) -> list[tuple[bytes]]:
    return [(pickle.dumps(function(task)),)]


def _portions(tasks: Sequence[bytes]) -> Iterator[list[bytes]]:
    """Divide pickled tasks into requests of a limited size."""
    portion: list[bytes] = []
    size_bytes = 0
    for task in tasks:
        size_bytes += len(task)
        if portion and size_bytes > _REQUEST_BYTES_MAX:
            yield portion
            portion, size_bytes = [], len(task)
        portion.append(task)
    if portion:
        yield portion


def is_connect(spark: "SparkSession | None") -> bool:
    """Return whether a session is of Spark Connect, whose package need not be installed."""
    return type(spark).__module__.startswith("pyspark.sql.connect.")


@dataclass(frozen=True)
class SequentialRunner:
    """Runs tasks in this process, without Spark: for small stores, and within SQL."""

    progress: Progress | None = None

    def __call__(
        self, stage: str, function: Callable[[Task], Done], tasks: Sequence[Task]
    ) -> list[Done]:
        """Run a function on each task. Raises the errors of the function."""
        results = []
        for number, task in enumerate(tasks):
            self.report(stage, number, len(tasks))
            results.append(function(task))
        self.report(stage, len(tasks), len(tasks))
        return results

    def report(self, stage: str, done: int, count: int) -> None:
        """Report progress of the driver's own work."""
        if self.progress is not None:
            self.progress(stage, done, count)


def runner_on(spark: "SparkSession | None", job: str, progress: Progress | None) -> Runner:
    """Return a runner of a job's tasks: on Spark, or in this process if there is no session."""
    if spark is None:
        return SequentialRunner(progress)
    if is_connect(spark):
        return ConnectRunner(spark, job, progress)
    return SparkRunner(spark, job, progress)


def reason(error: Exception) -> str:
    """Return the line of a Spark error with the error of the task."""
    lines = [line.strip() for line in str(error).splitlines()]
    ours = [line for line in lines if line.startswith("reput.")]
    return ours[-1] if ours else (lines[0] if lines else type(error).__name__)
