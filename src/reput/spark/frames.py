"""Frames of a session whose actions read only the columns and rows that their query needs.

``DataFrame`` and ``GroupedData`` get subclasses. A transformation returns a frame of the subclass;
an action runs over the reads that ``query_plan`` found to be enough. Such a read is planned by this
process, and its tasks run in ``mapInArrow``: one copy of each row less than with a data source.
"""

import functools
import inspect
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame, GroupedData, SparkSession, functions as F
from pyspark.sql.classic.dataframe import DataFrame as ClassicFrame
from pyspark.sql.types import BinaryType, LongType, StringType, StructField, StructType
from pyspark.sql.udf import UserDefinedFunction
from pyspark.util import PythonEvalType

from reput.errors import ReputError
from reput.spark import accelerator, options as option_texts, query_plan
from reput.spark.datasource_api import plain_errors
from reput.spark.option_table import FAILFAST
from reput.spark.options import ReadOptions
from reput.spark.query_plan import ROW_COUNT, Need, Read
from reput.spark.scan import MessageScan, scan_of

log = logging.getLogger("reput.spark")

_ACTIONS = frozenset(
    {
        *("collect", "toLocalIterator", "tail", "toPandas", "toArrow", "show", "explain"),
        *("checkpoint", "localCheckpoint", "approxQuantile", "corr", "cov", "writeTo", "mergeInto"),
        *("rdd", "write"),
    }
)
"""Methods and properties that read, or return objects that read; all others call these."""
_COLUMNS_OF_QUEUES = ("broker", "topic", "queue_id")

PULLED_SCHEMA = StructType(
    [StructField("records", BinaryType()), StructField("broker", StringType())]
)
"""Columns of what Python has pulled for the accelerator: ``reput.spark.live.scan.PULLED``."""


def read_only_needed(frame: DataFrame) -> DataFrame:
    """Return the same frame, not of Spark Connect, whose actions read only what they need."""
    adopted: DataFrame = _adopted(DataFrame(frame._jdf, frame.sparkSession))
    return adopted


@functools.cache
def _subclass(kind: type) -> type:
    """Return the subclass of a class of frames or of groups."""
    members: dict[str, Any] = {}
    for name in dir(kind):
        member = inspect.getattr_static(kind, name)
        if name in _ACTIONS:
            members[name] = _action(name, is_method=inspect.isfunction(member))
        elif inspect.isfunction(member) and (name[0] != "_" or name == "__getitem__"):
            members[name] = _transformation(member)
    if issubclass(kind, DataFrame):
        members |= {"count": _count, "isEmpty": _is_empty}
    return type(kind.__name__, (kind,), members)


def _adopted(value: Any) -> Any:
    """Return a result of a transformation as an object of the subclass."""
    kind: type = type(value)
    if kind in (ClassicFrame, GroupedData):
        value.__class__ = _subclass(kind)
    elif kind is list and value and type(value[0]) is ClassicFrame:
        return [_adopted(part) for part in value]
    return value


def _transformation(method: Any) -> Any:
    @functools.wraps(method)
    def call(*arguments: Any, **named: Any) -> Any:
        return _adopted(method(*arguments, **named))

    return call


def _action(name: str, *, is_method: bool) -> Any:
    def call(frame: Any, *arguments: Any, **named: Any) -> Any:
        return _adopted(getattr(_over_needed(frame), name)(*arguments, **named))

    call.__name__ = name
    return call if is_method else property(lambda frame: getattr(_over_needed(frame), name))


def _count(frame: DataFrame) -> int:
    """Return the number of rows."""
    return int(frame.groupBy().count().collect()[0][0])


def _is_empty(frame: DataFrame) -> bool:
    """Return whether there are no rows."""
    return not frame.select(F.lit(1)).take(1)


def _over_needed(frame: Any) -> DataFrame:
    """Return a plain frame that reads the columns and rows that a query needs, if known."""
    plain = DataFrame(frame._jdf, frame.sparkSession)
    if frame.isStreaming:
        return plain
    reader = functools.partial(_read, frame.sparkSession)
    try:
        return query_plan.over_needed(plain, reader) or plain
    except ReputError as error:
        raise error.with_traceback(None) from None
    except Exception as error:  # noqa: BLE001 - classes of Spark that another version lacks
        log.warning("the query reads all columns, as its plan is not understood: %s", error)
        return plain


# Reads --------------------------------------------------------------------------------------


def _read(spark: SparkSession, read: Read, need: Need) -> DataFrame:
    """Return a frame with the needed columns, or with counted rows."""
    options = option_texts.parse(read.options)
    option_texts.check_batch(options)
    keys = need.counted_by
    schema = StructType([read.schema[name] for name in need.columns])
    if keys is not None:
        schema = schema.add(StructField(ROW_COUNT, LongType()))
        counts = _known_counts(options, need)
        if counts is not None:
            return spark.createDataFrame(counts, schema)
    columns = list(need.columns) or [read.cheapest]
    if options.mode != FAILFAST and "body" in read.attributes and "body" not in columns:
        columns.append("body")  # whether it can be decompressed decides about the row
    log.info("rocketmq reads the columns %s", ", ".join(columns))
    scan = scan_of(options, columns, need.constraint)
    tasks = list(scan.tasks())
    if keys is None and options.live is not None and options.view == "messages":
        frame = _accelerated(spark, scan, tasks, options, need.columns)
        if frame is not None:
            return frame
    return _frame(spark, _Tasks(scan.read, tasks, need.columns, keys), schema)


def _accelerated(
    spark: SparkSession,
    scan: Any,
    tasks: Sequence[Any],
    options: ReadOptions,
    columns: Sequence[str],
) -> DataFrame | None:
    """Return a read of brokers whose rows the jar creates; None if it cannot."""
    if not accelerator.can_make(options, columns) or not accelerator.is_available(spark):
        return None
    from reput.spark.live.scan import PULLED  # reads of stores need no network

    rest = _Tasks(scan.read_records, tasks, PULLED.names, None)
    pulls = scan.plain_pulls(tasks)
    if pulls is None:
        return None
    plan = accelerator.plan_of_pulled(options, columns, pulls)
    return accelerator.rows_of_pulled(
        spark,
        plan,
        len(tasks),
        lambda numbers: map_in_arrow(spark, numbers, rest.rocketmq, PULLED_SCHEMA),
    )


def _known_counts(options: ReadOptions, need: Need) -> pa.Table | None:
    """Return counted rows from units of queues; None if a read is necessary."""
    keys = need.counted_by or ()
    if options.view != "messages" or options.live or not {*keys} <= {*_COLUMNS_OF_QUEUES}:
        return None
    counts = MessageScan(options, keys, need.constraint).counts()
    if counts is None:
        return None
    rows = pa.Table.from_pylist(
        [dict(zip((*_COLUMNS_OF_QUEUES, ROW_COUNT), row, strict=True)) for row in counts if row[3]],
        pa.schema([(name, _ARROW_TYPES[name]) for name in (*_COLUMNS_OF_QUEUES, ROW_COUNT)]),
    )
    return rows.select([*keys, ROW_COUNT])


_ARROW_TYPES = {
    "broker": pa.string(),
    "topic": pa.string(),
    "queue_id": pa.int32(),
    ROW_COUNT: pa.int64(),
}


@plain_errors
@dataclass
class _Tasks:
    """The tasks of a read, which go to each executor."""

    read: Callable[[Any], Iterator[pa.RecordBatch]]
    """Reads a task."""
    tasks: Sequence[Any]
    columns: Sequence[str]
    counted_by: Sequence[str] | None

    def rocketmq(self, numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of some tasks, given by number; Spark shows this name in plans.

        A second column has the number of messages of a task that are read already.
        """
        for batch in numbers:
            for number, *read_count in zip(*batch.to_pydict().values(), strict=True):
                task = self.tasks[number]
                for rows in self.read(task.after(*read_count) if any(read_count) else task):
                    if self.counted_by is not None:
                        yield _counted(rows, self.counted_by)
                    else:
                        yield rows.select([*self.columns])


def _counted(rows: pa.RecordBatch, keys: Sequence[str]) -> pa.RecordBatch:
    """Return the number of rows for each combination of keys, as the last column."""
    if not keys:
        return pa.RecordBatch.from_pydict({ROW_COUNT: pa.array([rows.num_rows], pa.int64())})
    table = pa.table(rows.select([*keys]))
    counts = table.group_by([*keys], use_threads=False).aggregate([([], "count_all")])
    arrays = [counts.column(name).combine_chunks() for name in (*keys, "count_all")]
    return pa.RecordBatch.from_arrays(arrays, [*keys, ROW_COUNT])


def _frame(spark: SparkSession, tasks: _Tasks, schema: StructType) -> DataFrame:
    """Return the rows of tasks."""
    count = len(tasks.tasks)
    return map_in_arrow(spark, spark.range(0, count, 1, max(count, 1)), tasks.rocketmq, schema)


def map_in_arrow(
    spark: SparkSession,
    frame: DataFrame,
    work: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]],
    schema: StructType,
) -> DataFrame:
    """Return the rows that workers make of the batches of a frame.

    ``DataFrame.mapInArrow`` does the same, but needs pandas in PySpark 4.0.
    """
    function = UserDefinedFunction(work, schema, evalType=PythonEvalType.SQL_MAP_ARROW_ITER_UDF)
    call: Column = function(*frame.columns)
    return DataFrame(frame._jdf.mapInArrow(call._jc, False, None), spark)
