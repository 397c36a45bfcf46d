"""PySpark's interface of Python data sources since 4.0, with stand-ins for what a version lacks.

    4.0    no predicates, no Arrow writer of streams; and as 4.1
    4.1    streams: no limits, no trigger ``availableNow``, no report of the latest offset

``HAS_READ_LIMITS`` distinguishes the two kinds of streams, ``PREDICATES_END_WITH_QUERY`` the two
kinds of pushdown. The other stand-ins are never used: Spark asks only for what its version has.
"""

import contextlib
import functools
import inspect
import os
from collections.abc import Callable, Iterator
from types import FunctionType, GeneratorType
from typing import Any, TypeVar

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from reput.errors import ReputError

__all__ = [
    "HAS_READ_LIMITS",
    "PREDICATES_END_WITH_QUERY",
    "DataSource",
    "DataSourceArrowWriter",
    "DataSourceReader",
    "DataSourceStreamArrowWriter",
    "DataSourceStreamReader",
    "DataSourceWriter",
    "EqualNullSafe",
    "EqualTo",
    "Filter",
    "GreaterThan",
    "GreaterThanOrEqual",
    "In",
    "InputPartition",
    "IsNotNull",
    "LessThan",
    "LessThanOrEqual",
    "ReadAllAvailable",
    "ReadLimit",
    "ReadMaxBytes",
    "ReadMaxRows",
    "ReadMinRows",
    "SupportsTriggerAvailableNow",
    "WriterCommitMessage",
    "arrow_schema",
    "plain_errors",
]

try:
    from pyspark.sql.datasource import (
        DataSourceStreamArrowWriter,
        EqualNullSafe,
        EqualTo,
        Filter,
        GreaterThan,
        GreaterThanOrEqual,
        In,
        IsNotNull,
        LessThan,
        LessThanOrEqual,
    )
except ImportError:

    class Filter:  # type: ignore[no-redef]
        """Stand-in: PySpark 4.0 passes no predicates."""

    EqualNullSafe = EqualTo = GreaterThan = GreaterThanOrEqual = In = Filter  # type: ignore[misc, assignment]
    IsNotNull = LessThan = LessThanOrEqual = Filter  # type: ignore[misc, assignment]

    class DataSourceStreamArrowWriter(  # type: ignore[no-redef, misc]
        DataSourceStreamWriter, DataSourceArrowWriter
    ):
        """Stand-in: tasks of PySpark 4.0 pass Arrow batches to each writer of this base."""


PREDICATES_END_WITH_QUERY = hasattr(DataSourceReader, "pushLimit")
"""True if Spark keeps pushed predicates with a scan, as all versions do that push limits, too.

The others keep them with the frame: its next query without predicates gets the same rows.
"""

try:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxBytes,
        ReadMaxRows,
        ReadMinRows,
        SupportsTriggerAvailableNow,
    )

    HAS_READ_LIMITS = True
    """True if Spark passes the start and the limit of a micro-batch."""
except ImportError:

    class ReadLimit:  # type: ignore[no-redef]
        """Stand-in: PySpark 4.0 and 4.1 pass no limits."""

    ReadAllAvailable = ReadMaxBytes = ReadMaxRows = ReadMinRows = ReadLimit  # type: ignore[misc, assignment]

    class SupportsTriggerAvailableNow:  # type: ignore[no-redef]
        """Stand-in: PySpark 4.0 and 4.1 ask once for the end instead."""

    HAS_READ_LIMITS = False


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return the Arrow types of the batches that Spark passes to a writer."""
    if "timezone" in inspect.signature(to_arrow_schema).parameters:
        return to_arrow_schema(schema, timezone="UTC")
    return to_arrow_schema(schema)  # PySpark 4.0 and 4.1 know only UTC


# Errors ---------------------------------------------------------------------------------------

_HIDE_TRACEBACK = "SPARK_HIDE_TRACEBACK"
"""Variable by which PySpark's workers send errors without tracebacks."""
_OF_WORKERS = "PYTHON_WORKER_FACTORY_"
"""Start of the names of variables that only PySpark's workers have."""

Class = TypeVar("Class")


def plain_errors(kind: type[Class]) -> type[Class]:
    """Reduce the errors of a class that Spark calls to one sentence without a traceback.

    Errors that are not reput's are bugs, and keep theirs. A worker ends with its first error.
    """
    for name, member in list(vars(kind).items()):
        if isinstance(member, FunctionType) and (name == "__init__" or name[0] != "_"):
            setattr(kind, name, _plain(member))
    return kind


def _plain(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def call(*arguments: Any, **named: Any) -> Any:
        with _without_traceback():
            result = method(*arguments, **named)
        return _plain_rows(result) if isinstance(result, GeneratorType) else result

    return call


def _plain_rows(rows: Iterator[Any]) -> Iterator[Any]:
    with _without_traceback():
        yield from rows


@contextlib.contextmanager
def _without_traceback() -> Iterator[None]:
    try:
        yield
    except ReputError as error:
        if any(name.startswith(_OF_WORKERS) for name in os.environ):
            os.environ[_HIDE_TRACEBACK] = "1"
        raise error.with_traceback(None) from None
