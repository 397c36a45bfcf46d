"""``df.write.format("rocketmq")`` to brokers: Spark's writer interface.

Spark makes a writer on the driver, ships it to the tasks, and makes another one for the end. A
stream's batch is identified by the id of its query, which its checkpoint keeps, and its number;
tasks find both in the local properties of their job.
"""

import logging
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.types import StructType

from reput.errors import InvalidOption
from reput.spark.datasource_api import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
    arrow_schema,
    plain_errors,
)
from reput.spark.sending import rows as outgoing_rows
from reput.spark.sending.options import SendOptions
from reput.spark.sending.requests import TaskIdentity
from reput.spark.sending.send import SentCounts, send

log = logging.getLogger("reput.spark")

_QUERY_ID = "sql.streaming.queryId"
_BATCH_ID = "streaming.sql.batchId"
"""Local properties of Spark's ``StreamExecution`` and ``MicroBatchExecution``."""


@dataclass
class Sent(WriterCommitMessage):
    """Commit message of a task."""

    counts: SentCounts = field(default_factory=SentCounts)


@plain_errors
class BrokerWriter(DataSourceArrowWriter):
    """Writes a batch."""

    def __init__(self, options: SendOptions, schema: StructType, overwrite: bool) -> None:
        _check(options, schema, overwrite, "mode('append')")
        self._options = options
        # Chosen once on the driver, so that all attempts of a task agree.
        self._write_id = options.write_id or uuid.uuid4().hex

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Sent:
        """Send the rows of a task."""
        return _write(iterator, self._options, self._write_id)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Log the counters."""
        _report("write", messages)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Log the counters of the tasks that succeeded."""
        _report_failure("write", messages)


@plain_errors
class BrokerStreamWriter(DataSourceStreamArrowWriter):
    """Writes the batches of a stream."""

    def __init__(self, options: SendOptions, schema: StructType, overwrite: bool) -> None:
        if options.write_id is not None:
            raise InvalidOption(
                "writeId",
                options.write_id,
                "left out in a stream: its query and number of the batch are known by themselves",
            )
        _check(options, schema, overwrite, "outputMode('append') or outputMode('update')")
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Sent:
        """Send the rows of a task."""
        context = TaskContext.get()
        assert context is not None
        query, number = context.getLocalProperty(_QUERY_ID), context.getLocalProperty(_BATCH_ID)
        return _write(iterator, self._options, f"{query}/{number}")

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Log the counters."""
        _report(f"batch {batchId}", messages)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Log the counters of the tasks that succeeded."""
        _report_failure(f"batch {batchId}", messages)


def _check(options: SendOptions, schema: StructType, overwrite: bool, allowed: str) -> None:
    if overwrite:
        reason = f"{allowed}: what brokers have cannot be replaced"
        raise InvalidOption("mode", "overwrite", reason)
    outgoing_rows.check_columns(arrow_schema(schema), options.rows)


def _write(iterator: Iterator[pa.RecordBatch], options: SendOptions, write_id: str) -> Sent:
    context = TaskContext.get()
    assert context is not None
    if not options.idempotent:
        write_id = uuid.uuid4().hex
    return Sent(send(iterator, options, TaskIdentity(write_id, context.partitionId())))


def _total(messages: Sequence[WriterCommitMessage | None]) -> SentCounts:
    total = SentCounts()
    for message in messages:
        if isinstance(message, Sent):
            total.add(message.counts)
    return total


def _report(what: str, messages: Sequence[WriterCommitMessage | None]) -> None:
    total = _total(messages)
    text = ", ".join(f"{name} {value}" for name, value in asdict(total).items())
    level = logging.WARNING if total.unsafe_count or total.skipped_count else logging.INFO
    log.log(level, "%s to brokers: %s", what, text)


def _report_failure(what: str, messages: Sequence[WriterCommitMessage | None]) -> None:
    log.warning(
        "%s to brokers failed; of tasks that ended %d messages are there, of the others some may "
        "be: brokers take nothing back",
        what,
        _total(messages).message_count,
    )
