"""``spark.read.format("rocketmq")``: the PySpark data source. Thin: it only translates.

Found without registration through ``pyspark_rocketmq``. PySpark 4.0 or later: what a version lacks
is in ``datasource_api``.
"""

import datetime
import functools
import logging
import sys
from collections.abc import Iterable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyspark
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from reput.errors import InvalidOption, ReputError, one_of, similar_name
from reput.spark import filters, options as option_texts, views
from reput.spark.datasource_api import (
    HAS_READ_LIMITS,
    PREDICATES_END_WITH_QUERY,
    DataSource,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    DataSourceWriter,
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
    plain_errors,
)
from reput.spark.filters import Constraint
from reput.spark.importing import options as import_options
from reput.spark.options import TriggerLimits
from reput.spark.rows import message_fields
from reput.spark.scan import MessageScan
from reput.spark.sending import options as write_options
from reput.spark.store_opening import check_paths
from reput.spark.streaming.stream import QueueStream

log = logging.getLogger("reput.spark")

_PUSHDOWN_WORKER = "pyspark.sql.worker.data_source_pushdown_filters"
_SPARK_TYPES: dict[pa.DataType, DataType] = {
    pa.string(): StringType(),
    pa.binary(): BinaryType(),
    pa.int32(): IntegerType(),
    pa.int64(): LongType(),
    pa.bool_(): BooleanType(),
    pa.timestamp("us", tz="UTC"): TimestampType(),
    pa.list_(pa.string()): ArrayType(StringType()),
    pa.map_(pa.string(), pa.string()): MapType(StringType(), StringType()),
}
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_MICROSECOND = datetime.timedelta(microseconds=1)


class UnsupportedTable(ReputError):
    """The source cannot be a table of a catalog."""


@plain_errors
class RocketMQDataSource(DataSource):
    """RocketMQ stores and brokers as DataFrames. Options: docs/reference/spark-options.md."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._texts = dict(options)

    @classmethod
    def name(cls) -> str:
        """Return ``rocketmq``."""
        return "rocketmq"

    @functools.cached_property
    def _options(self) -> option_texts.ReadOptions:
        """The options, parsed as those of a read; a write has other ones."""
        return option_texts.parse(self._texts)

    def schema(self) -> StructType:
        """Return the columns of the view, without the columns that options exclude."""
        _refuse_table(self._texts)
        fields = _fields(self._options)
        columns = self._options.columns or tuple(fields)
        for name in columns:
            if name not in fields:
                raise InvalidOption("columns", name, one_of(name, fields))
        check_paths(self._options)  # Spark asks for tasks much later
        return StructType([StructField(name, _SPARK_TYPES[fields[name]]) for name in columns])

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader; with pushdown of predicates only if Spark supports it."""
        option_texts.check_batch(self._options)
        columns = _columns_of(self._options, schema)
        if self._options.view != "messages":
            return ViewReader(self._options, columns)
        # Spark rejects a reader with pushFilters while its pushdown is disabled, and does not
        # reveal whether it is; but only its pushdown worker calls this method.
        takes_filters = self._options.pushdown and _is_pushdown_worker()
        if takes_filters and not PREDICATES_END_WITH_QUERY:
            log.warning(
                "option 'pushdown' has no effect: PySpark %s would return the rows of this query "
                "to later queries of the frame; frames of reput.spark.read skip what predicates "
                "exclude",
                pyspark.__version__,
            )
            takes_filters = False
        reader = PushdownReader if takes_filters else MessageReader
        return reader(self._options, columns)

    def streamReader(self, schema: StructType) -> "MessageStreamReader":
        """Return the reader of a stream."""
        reader = MessageStreamReader if HAS_READ_LIMITS else UnlimitedStreamReader
        return reader(self._texts, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Return the writer of a batch: to brokers, or to a store folder."""
        if write_options.goes_to_brokers(self._texts):
            from reput.spark.sending.sink import BrokerWriter  # writers of stores need no network

            return BrokerWriter(write_options.parse(self._texts), schema, overwrite)
        from reput.spark.importing.sink import StoreWriter  # readers need no writer

        return StoreWriter(import_options.parse(self._texts), schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        """Return the writer of a stream's batches, to brokers or to a store folder."""
        if write_options.goes_to_brokers(self._texts):
            from reput.spark.sending.sink import BrokerStreamWriter

            return BrokerStreamWriter(write_options.parse(self._texts), schema, overwrite)
        from reput.spark.importing.sink import StoreStreamWriter

        return StoreStreamWriter(import_options.parse(self._texts), schema, overwrite)


def _fields(options: option_texts.ReadOptions) -> dict[str, pa.DataType]:
    """Return the columns of the view."""
    if options.view == "messages":
        return message_fields(options)
    return views.fields(options)


def _columns_of(options: option_texts.ReadOptions, schema: StructType) -> list[str]:
    """Return the columns of a schema that a user may have given."""
    fields = _fields(options)
    for field in schema.fields:
        known = fields.get(field.name)
        if known is None or _SPARK_TYPES[known] != field.dataType:
            allowed = ", ".join(
                f"{name} {_SPARK_TYPES[kind].simpleString()}" for name, kind in fields.items()
            )
            if field.name == "body" and field.dataType == StringType():
                allowed = "body binary, or body string together with option charset, as utf-8"
            elif (similar := similar_name(field.name, fields)) not in (None, field.name):
                allowed += f"; did you mean {similar!r}?"
            raise InvalidOption("schema", f"{field.name} {field.dataType.simpleString()}", allowed)
    return [field.name for field in schema.fields]


def _refuse_table(texts: Mapping[str, str]) -> None:
    """Raise an error for ``CREATE TABLE``, which is known by the options that only Spark adds."""
    if any(name.lower() == "location" or name.lower().startswith("option.") for name in texts):
        raise UnsupportedTable(
            "CREATE TABLE ... USING rocketmq is not possible: Spark reads tables of Python sources "
            "without their options. CREATE TEMPORARY VIEW ... USING rocketmq OPTIONS (...) does "
            "the same for a session"
        )


def _is_pushdown_worker() -> bool:
    main = getattr(sys.modules.get("__main__"), "__spec__", None)
    return _PUSHDOWN_WORKER in sys.modules or getattr(main, "name", "") == _PUSHDOWN_WORKER


def _is_nothing(partition: InputPartition | None) -> bool:
    """Return whether this is the task of a plan without partitions: None in PySpark 4.0."""
    return partition is None or partition.value is None


class StorePartition(InputPartition):
    """A part of one or more stores."""


@plain_errors
class MessageReader(DataSourceReader):
    """Reads view ``messages``."""

    def __init__(self, options: option_texts.ReadOptions, columns: Sequence[str]) -> None:
        self._options = options
        self._columns = columns
        self._constraint = Constraint()

    def _scan(self) -> Any:
        """Return the scan of stores or of brokers."""
        if self._options.live is None:
            return MessageScan(self._options, self._columns, self._constraint)
        from reput.spark.live.scan import LiveScan  # readers of stores need no network

        return LiveScan(self._options, self._columns, self._constraint)

    def partitions(self) -> Sequence[InputPartition]:
        """Plan the read."""
        return [StorePartition(task) for task in self._scan().tasks()]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a partition as Arrow batches."""
        # A plan without partitions still runs one task, with nothing to read. Spark pickles the
        # reader before it asks for partitions, so that results of planning travel in the tasks.
        if _is_nothing(partition):
            return iter(())
        rows: Iterator[pa.RecordBatch] = self._scan().read(partition.value)
        return rows


@plain_errors
class PushdownReader(MessageReader):
    """Reader with predicates that skip files, queues and rows."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Accept the predicates that ``reput.spark.filters`` supports; yield the others."""
        rest = []
        for predicate in filters:
            constraint = constraint_of(predicate)
            if constraint is None or constraint.not_null & self._options.replaced_columns:
                rest.append(predicate)
            else:
                self._constraint = self._constraint.meet(constraint)
        for predicate in rest:
            # Spark adds "not null" to each comparison, which implies it.
            is_implied = (
                isinstance(predicate, IsNotNull) and _column(predicate) in self._constraint.not_null
            )
            if not is_implied:
                yield predicate


@plain_errors
class MessageStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Follows queues. Two positions define a micro-batch: ``reput.spark.streaming.stream``.

    Everything is checked by the first call: Spark hides the errors of ``streamReader``.
    """

    def __init__(self, texts: Mapping[str, str], schema: StructType) -> None:
        self._texts = texts
        self._schema = schema

    @functools.cached_property
    def _options(self) -> option_texts.ReadOptions:
        return option_texts.parse_stream(self._texts)

    @functools.cached_property
    def _stream(self) -> QueueStream:
        return QueueStream(self._options, _columns_of(self._options, self._schema))

    def initialOffset(self) -> dict[str, Any]:
        """Return the start of a new query."""
        return self._stream.initial_offset()

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return a limit with which Spark reports progress, if none was set.

        Spark has limits of one kind at a time; ``latestOffset`` adds the others.
        """
        limits = self._options.trigger
        if limits.max_offsets is not None:
            return ReadMaxRows(limits.max_offsets)
        if limits.max_bytes is not None:
            return ReadMaxBytes(limits.max_bytes)
        if limits.min_offsets is not None:
            return ReadMinRows(limits.min_offsets)
        return ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Return the end of the next micro-batch."""
        limits = self._options.trigger
        match limit:
            case ReadAllAvailable():
                return self._stream.latest_offset(start, None)
            case ReadMaxRows():
                limits = replace(limits, max_offsets=limit.max_rows)
            case ReadMaxBytes():
                limits = replace(limits, max_bytes=limit.max_bytes)
            case ReadMinRows():
                limits = replace(limits, min_offsets=limit.min_rows)
            case _:
                raise InvalidOption("limit", limit, "rows or bytes: queues are no files")
        return self._stream.latest_offset(start, limits)

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Return the ends of the queues, and the lag, which ``reput.spark.lag_of`` reads."""
        return self._stream.report()

    def commit(self, end: dict[str, Any]) -> None:
        """Record that a micro-batch is complete; the next trigger implies it too."""
        self._stream.commit(end)

    def prepareForTriggerAvailableNow(self) -> None:
        """Freeze the ends of the queues."""
        self._stream.freeze()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Plan a micro-batch."""
        return [StorePartition(task) for task in self._stream.tasks(start, end)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a partition as Arrow batches."""
        return self._stream.read(partition.value)


@plain_errors
class UnlimitedStreamReader(MessageStreamReader):
    """Follows queues with PySpark 4.0 and 4.1, which pass neither start nor limits.

    A micro-batch starts where the last one ended, or at the position of a checkpoint, with which
    Spark calls ``partitions`` first of all. A new query asks for its first end before its start,
    and each query with ``availableNow`` asks for its end before anything else, and only once.
    """

    def __init__(self, texts: Mapping[str, str], schema: StructType) -> None:
        super().__init__(texts, schema)
        self._start: dict[str, Any] | None = None
        self._had_start = True

    def latestOffset(self) -> dict[str, Any]:  # type: ignore[override]
        """Return the end of the next micro-batch."""
        limits = self._options.trigger
        if self._start is not None:
            is_limited = limits != TriggerLimits()
            return self._stream.latest_offset(self._start, limits if is_limited else None)
        for name, value in (
            ("maxOffsetsPerTrigger", limits.max_offsets),
            ("maxBytesPerTrigger", limits.max_bytes),
        ):
            if value is not None:
                allowed = (
                    "left out with availableNow, and until the query has a checkpoint: PySpark "
                    f"{pyspark.__version__} passes no start then, as 4.2 does"
                )
                raise InvalidOption(name, value, allowed)
        self._had_start = False
        return self._stream.ends()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Plan a micro-batch."""
        planned = super().partitions(start, end)
        if not self._had_start:
            self._stream.check_dropped(start, end)
        self._start = end
        return planned


@plain_errors
class ViewReader(DataSourceReader):
    """Reads the views other than messages."""

    def __init__(self, options: option_texts.ReadOptions, columns: Sequence[str]) -> None:
        self._options = options
        self._columns = columns

    def partitions(self) -> Sequence[InputPartition]:
        """Plan the read: one partition per store and, for a large view, per file or queue."""
        return [StorePartition(part) for part in views.partitions(self._options)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a partition."""
        if _is_nothing(partition):
            return iter(())
        return views.read(self._options, self._columns, partition.value)


def constraint_of(predicate: Filter) -> Constraint | None:
    """Return a pushed-down predicate as a constraint; None if it cannot be one."""
    column = _column(predicate)
    if isinstance(predicate, IsNotNull):
        is_known = column in filters.ALWAYS_PRESENT
        return Constraint(not_null=frozenset({column})) if is_known else None
    value = _plain(getattr(predicate, "value", None))
    if value is None:
        return None
    match predicate:
        case EqualTo() | EqualNullSafe():
            return filters.from_values(column, [value])
        case In():
            return filters.from_values(column, value)
        case GreaterThanOrEqual():
            return filters.from_span(column, value, None) if type(value) is int else None
        case GreaterThan():
            return filters.from_span(column, value + 1, None) if type(value) is int else None
        case LessThanOrEqual():
            return filters.from_span(column, None, value) if type(value) is int else None
        case LessThan():
            return filters.from_span(column, None, value - 1) if type(value) is int else None
    return None


def _column(predicate: Filter) -> str:
    return ".".join(getattr(predicate, "attribute", ()))


def _plain(value: Any) -> Any:
    """Return a predicate's value with times as microseconds."""
    if isinstance(value, datetime.datetime):
        if value.tzinfo is None:
            return None  # a timestamp without time zone is another type
        return (value - _EPOCH) // _MICROSECOND
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value
