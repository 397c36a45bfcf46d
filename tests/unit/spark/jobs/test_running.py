"""Jobs on Spark Connect, without a server: frames whose tasks run here, pickled as for a server.

tests/spark/test_versions.py runs them on a real one.
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from pyspark.serializers import CloudPickleSerializer

from reput.spark.jobs import running
from reput.spark.jobs.running import ConnectRunner, TaskFailed

_PICKLE = CloudPickleSerializer()


class Stage(NamedTuple):
    """A stage in a report of progress."""

    num_completed_tasks: int


class Frame:
    """A frame with one row per partition."""

    def __init__(self, session: "Session", count: int, run: Callable[..., Any] | None) -> None:
        self._session = session
        self._count = count
        self._run = run

    def mapInArrow(self, run: Callable[..., Any], schema: str) -> "Frame":
        self._session.schemas.append(schema)
        return Frame(self._session, self._count, _PICKLE.loads(_PICKLE.dumps(run)))

    def collect(self) -> list[tuple[Any, ...]]:
        rows: list[tuple[Any, ...]] = []
        assert self._run is not None
        for number in reversed(range(self._count)):  # in any order
            batch = pa.RecordBatch.from_pydict({"id": [number]})
            for made in self._run(iter([batch])):
                rows += [tuple(row.values()) for row in made.to_pylist()]
            for note in self._session.notes:
                note([Stage(len(rows))], 0, "x", False)
        return rows


class Session:
    """The parts of a session that jobs use."""

    def __init__(self) -> None:
        self.notes: list[Any] = []
        self.schemas: list[str] = []

    def range(self, start: int, end: int, step: int, parts: int) -> Frame:
        assert (start, step, parts) == (0, 1, end)
        return Frame(self, end, None)

    def registerProgressHandler(self, note: Any) -> None:
        self.notes.append(note)

    def removeProgressHandler(self, note: Any) -> None:
        self.notes.remove(note)


@pytest.fixture
def steps() -> list[tuple[str, int, int]]:
    return []


@pytest.fixture
def runner(steps: list[tuple[str, int, int]]) -> Iterator[ConnectRunner]:
    session = Session()
    yield ConnectRunner(session, "archive", lambda *step: steps.append(step))  # type: ignore[arg-type]
    assert session.notes == []


def double(task: str) -> tuple[str, ...]:
    return (task, task)


def test_results_are_in_the_order_of_tasks(
    runner: ConnectRunner, steps: list[tuple[str, int, int]]
) -> None:
    assert runner("read", double, ["a", "b", "c"]) == [("a", "a"), ("b", "b"), ("c", "c")]
    assert steps == [("read", i, 3) for i in range(4)]
    assert runner("read", double, []) == []


def test_large_tasks_are_sent_in_several_requests(
    runner: ConnectRunner, steps: list[tuple[str, int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running, "_REQUEST_BYTES_MAX", 250)
    tasks = [letter * 100 for letter in "abcde"]
    assert runner("read", double, tasks) == [(task, task) for task in tasks]
    assert len(runner.spark.schemas) == 3  # type: ignore[attr-defined]
    assert [done for _, done, _ in steps] == sorted(done for _, done, _ in steps)
    assert steps[-1] == ("read", 5, 5)


def test_a_failed_task_is_an_error_of_the_job(runner: ConnectRunner) -> None:
    def fails(task: int) -> int:
        return 1 // task

    with pytest.raises(TaskFailed, match="archive, write: integer division"):
        runner("write", fails, [1, 0])
