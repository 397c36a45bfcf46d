"""A Spark session without a JVM: tasks run here in turn, each pickled as for a worker.

Enough for jobs that use ``parallelize``; jobs that use Spark's tables need a real session.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from pyspark.serializers import CloudPickleSerializer

_PICKLE = CloudPickleSerializer()


def _sent(value: Any) -> Any:
    return _PICKLE.loads(_PICKLE.dumps(value))


class Rows:
    """The result of ``parallelize``."""

    def __init__(self, values: Iterable[Any]) -> None:
        self._values = list(values)

    def map(self, work: Callable[[Any], Any]) -> "Rows":
        return Rows(_sent(_sent(work)(_sent(value))) for value in self._values)

    def flatMap(self, work: Callable[[Any], Iterable[Any]]) -> "Rows":
        return Rows(_sent(row) for value in self._values for row in _sent(work)(_sent(value)))

    def collect(self) -> list[Any]:
        return self._values


class InProcess:
    """Replaces a ``SparkSession``."""

    @property
    def sparkContext(self) -> "InProcess":
        return self

    @property
    def defaultParallelism(self) -> int:
        return 2

    # Called by running.SparkRunner while it waits.

    def getLocalProperty(self, name: str) -> None:
        return None

    def setLocalProperty(self, name: str, value: str | None) -> None:
        pass

    def setJobGroup(self, group: str, description: str, interruptOnCancel: bool) -> None:
        pass

    def statusTracker(self) -> "InProcess":
        return self

    def getJobIdsForGroup(self, group: str) -> list[int]:
        return []

    def parallelize(self, values: Sequence[Any], parts: int) -> Rows:
        assert parts >= 1
        return Rows(values)
