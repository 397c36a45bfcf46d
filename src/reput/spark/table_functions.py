"""The jobs as table functions of SQL, registered by ``reput.spark.register(spark)``.

    SELECT * FROM rocketmq_dispatch_check('/data/store');
    SELECT * FROM rocketmq_archive(store => '/data/store', archive => '/data/archive');

A function runs its job inside one task, step by step: Spark's table functions cannot start jobs.
That suits stores of some GB; for larger ones use ``reput.spark.jobs`` and ``reput pipeline``. Jobs
are idempotent, so that Spark may repeat the task. Messages and the other views need no function,
and are read in parallel:

    CREATE TEMPORARY VIEW orders USING rocketmq OPTIONS (path '/data/store', topic 'orders')
"""

import enum
import types
import typing
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.functions import udtf
from pyspark.sql.types import (
    BooleanType,
    DataType,
    DoubleType,
    LongType,
    StringType,
    StructField,
    StructType,
)

from reput.spark.datasource_api import plain_errors

_TYPES: dict[Any, DataType] = {
    str: StringType(),
    int: LongType(),
    float: DoubleType(),
    bool: BooleanType(),
}


@dataclass(frozen=True)
class Difference:
    """A row of ``rocketmq_dispatch_check``: a queue, or an index file."""

    topic: str | None = None
    queue_id: int | None = None
    missing: int | None = None
    """Number of missing units."""
    different: int | None = None
    extra: int | None = None
    """Number of units without a record in the log."""
    index_file: str | None = None
    first_byte: int | None = None
    """Position of the first differing byte; NULL if the index file is missing."""


@dataclass(frozen=True)
class VerdictCount:
    """A row of ``rocketmq_audit``."""

    topic: str
    verdict: str
    messages: int


@dataclass(frozen=True)
class Problem:
    """A row of ``rocketmq_archive_verify``."""

    problem: str


def register(spark: SparkSession) -> None:
    """Register the table functions with a session."""
    for name, (call, row) in _functions().items():
        spark.udtf.register(name, _table_function(call, row))


def _functions() -> dict[str, tuple[Callable[..., Iterable[Any]], type]]:
    """Return name -> function, and the dataclass whose plain fields are the columns."""
    from reput.spark.jobs.archive import ArchiveResult
    from reput.spark.jobs.compact import CompactResult
    from reput.spark.jobs.compare.findings import Mismatch
    from reput.spark.jobs.dispatch import DispatchResult
    from reput.spark.jobs.restore import RestoreResult
    from reput.spark.jobs.salvage import Salvaged
    from reput.store.verify import Finding

    return {
        "rocketmq_verify": (_verify, Finding),
        "rocketmq_dispatch": (_dispatch, DispatchResult),
        "rocketmq_dispatch_check": (_dispatch_check, Difference),
        "rocketmq_audit": (_audit, VerdictCount),
        "rocketmq_salvage": (_salvage, Salvaged),
        "rocketmq_compare": (_compare, Mismatch),
        "rocketmq_archive": (_archive, ArchiveResult),
        "rocketmq_archive_verify": (_archive_verify, Problem),
        "rocketmq_restore": (_restore, RestoreResult),
        "rocketmq_compact": (_compact, CompactResult),
    }


# --- functions ----------------------------------------------------------------------------------


def _verify(store: str, allow_live: bool = False) -> Iterable[Any]:
    from reput.store.reader import StoreReader
    from reput.store.verify import verify

    return verify(StoreReader.open(store, allow_live=allow_live)).findings


def _dispatch(store: str, config: str | None = None, **options: Any) -> Iterable[Any]:
    from reput.spark.jobs.dispatch import dispatch

    return [dispatch(None, store, config=_settings(config), **options)]


def _dispatch_check(store: str, config: str | None = None, **options: Any) -> Iterable[Any]:
    from reput.spark.jobs.dispatch import dispatch

    difference = dispatch(None, store, config=_settings(config), dry_run=True, **options).difference
    assert difference is not None  # of a dry run
    for queue in difference.queues:
        yield Difference(
            topic=queue.topic,
            queue_id=queue.queue_id,
            missing=queue.missing,
            different=queue.different,
            extra=queue.extra,
        )
    for file in difference.index:
        yield Difference(
            index_file=file.name or f"number {file.number}", first_byte=file.first_byte
        )


def _audit(store: str, config: str | None = None, **options: Any) -> Iterable[Any]:
    from reput.spark.jobs.audit import audit

    for topic in audit(None, store, config=_settings(config), **options).topics:
        for verdict, count in topic.verdicts.items():
            yield VerdictCount(topic.topic, verdict, count)


def _salvage(store: str, target: str, config: str | None = None, **options: Any) -> Iterable[Any]:
    from reput.spark.jobs.salvage import salvage

    return [salvage(None, store, target, config=_settings(config), **options)]


def _compare(left: str, right: str, **options: Any) -> Iterable[Any]:
    from reput.spark.jobs.compare import compare

    return compare(None, left, right, **options).findings


def _archive(store: str, archive: str, **options: Any) -> Iterable[Any]:
    from reput.spark.jobs import archive as job

    return [job.archive(None, store, archive, **options)]


def _archive_verify(archive: str, **options: Any) -> Iterable[Any]:
    from reput.spark.jobs import archive as job

    return map(Problem, job.verify(None, archive, **options).problems)


def _restore(archive: str, target: str, **options: Any) -> Iterable[Any]:
    from reput.spark.jobs.restore import restore

    return [restore(None, archive, target, **options)]


def _compact(source: str, keep: str, target: str | None = None, **options: Any) -> Iterable[Any]:
    from reput.spark.jobs.compact import compact
    from reput.spark.jobs.compact.expired import retention_from

    retention = retention_from("keep", keep.split(","))
    return [compact(None, source, target, retention=retention, **options)]


def _settings(path: str | None) -> Any:
    """Return the store's settings in a broker.conf."""
    if path is None:
        return None
    from reput import config
    from reput.store.config import StoreConfig

    return config.load(StoreConfig, path).value


# --- tables -------------------------------------------------------------------------------------


def _table_function(call: Callable[..., Iterable[Any]], row: type) -> Any:
    schema = _schema(row)
    names = schema.names

    @plain_errors
    class TableFunction:
        def eval(self, *arguments: Any, **named: Any) -> Iterator[tuple[Any, ...]]:
            for result in call(*arguments, **named):
                yield tuple(_plain(getattr(result, name)) for name in names)

    return udtf(TableFunction, returnType=schema, useArrow=False)  # Arrow would need pandas


def _schema(row: type) -> StructType:
    """Return a column for each field of a dataclass with a plain value."""
    fields = []
    for name, hint in typing.get_type_hints(row).items():
        kinds = _kinds(hint)
        if len(kinds) == 1 and not name.startswith("_"):
            (kind,) = kinds
            fields.append(StructField(name, kind))
    return StructType(fields)


def _kinds(hint: Any) -> set[DataType]:
    """Return the column type of a field's hint, in a set; empty if it has none."""
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        parts = [_kinds(part) for part in typing.get_args(hint) if part is not type(None)]
        return set().union(*parts) if all(parts) else set()
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return {StringType()}
    return {_TYPES[hint]} if hint in _TYPES else set()


def _plain(value: Any) -> Any:
    if isinstance(value, enum.Enum):
        return value.name.lower()
    return value
