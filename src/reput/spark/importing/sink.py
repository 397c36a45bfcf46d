"""``df.write.format("rocketmq").save("/data/store")``: Spark's writer interface for stores.

Tasks leave fragments beside the store and report them; after all tasks the driver makes log files
of the successful ones (``import_commit``). Fragments of other attempts are deleted.
"""

import logging
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.types import StructType

from reput.clock import SystemClock
from reput.errors import InvalidOption
from reput.spark.datasource_api import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
    arrow_schema,
    plain_errors,
)
from reput.spark.importing import commit as import_commit
from reput.spark.importing.commit import Commit
from reput.spark.importing.files import FragmentWriter
from reput.spark.importing.options import ImportOptions
from reput.spark.importing.plan import Fragment
from reput.spark.importing.rows import STORE_TIME, RowEncoder
from reput.spark.sending import rows as outgoing_rows

log = logging.getLogger("reput.spark")

_QUERY_ID = "sql.streaming.queryId"
"""Local property of Spark's ``StreamExecution``, constant as long as the checkpoint exists."""


@dataclass
class Written(WriterCommitMessage):
    """Commit message of a task."""

    fragment: Fragment
    query: str | None = None
    """Id of the streaming query, if it is one."""


@plain_errors
class StoreWriter(DataSourceArrowWriter):
    """Writes a batch."""

    def __init__(self, options: ImportOptions, schema: StructType, overwrite: bool) -> None:
        _check(options, schema, overwrite=overwrite)
        self._options = options
        self._overwrite = overwrite
        # Chosen once on the driver, so that tasks and the commit agree.
        self._job = uuid.uuid4().hex

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Write the rows of a task as a fragment."""
        counts = {} if self._overwrite else import_commit.queue_counts(self._options.path)
        return Written(_write(iterator, self._options, self._job, counts))

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Create or extend the store."""
        try:
            done = Commit(self._options, self._job, _fragments(messages)).run(
                overwrite=self._overwrite
            )
            assert done is not None
            log.info("%d messages to %s", done.message_count, self._options.path)
        finally:
            _drop_drafts(self._options, self._job)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Leave the store unchanged."""
        _drop_drafts(self._options, self._job)


@plain_errors
class StoreStreamWriter(DataSourceStreamArrowWriter):
    """Writes the batches of a stream, each exactly once."""

    def __init__(self, options: ImportOptions, schema: StructType, overwrite: bool) -> None:
        if overwrite:
            allowed = "append or update: a store is a log, and keeps what it has"
            raise InvalidOption("outputMode", "complete", allowed)
        _check(options, schema, overwrite=False)
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Write the rows of a task as a fragment."""
        query = _query_id()
        counts = import_commit.queue_counts(self._options.path)
        return Written(_write(iterator, self._options, query, counts), query)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Append a batch unless the store already has it."""
        for query in _queries(messages):
            commit = Commit(self._options, query, _fragments(messages), (query, batchId))
            try:
                done = commit.run()
            finally:
                _drop_drafts(self._options, query)
            if done is not None:
                text = "batch %d: %d messages to %s"
                log.info(text, batchId, done.message_count, self._options.path)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Leave the store unchanged."""
        for query in _queries(messages):
            _drop_drafts(self._options, query)


def _check(options: ImportOptions, schema: StructType, *, overwrite: bool) -> None:
    """Check on the driver what would fail at the end.

    Raises:
        InvalidOption: A column cannot be written, or the path cannot be a store.
        StoreUnavailable: Another process has the store.
    """
    columns = arrow_schema(schema)
    if options.keeps_store_times and STORE_TIME not in columns.names:
        allowed = f"false, or a column {STORE_TIME}"
        raise InvalidOption("keepStoreTimestamps", "true", allowed)
    if options.keeps_store_times:
        columns = columns.remove(columns.get_field_index(STORE_TIME))
    outgoing_rows.check_columns(columns, options.rows)
    import_commit.check_target(options, overwrite=overwrite)


def _query_id() -> str:
    context = TaskContext.get()
    query = context.getLocalProperty(_QUERY_ID) if context is not None else None
    assert query is not None, "Spark sets the query id in tasks of a stream"
    return query


def _write(
    iterator: Iterator[pa.RecordBatch], options: ImportOptions, job: str, counts: dict[str, int]
) -> Fragment:
    context = TaskContext.get()
    task = context.partitionId() if context is not None else 0
    encoder = RowEncoder(options, counts, SystemClock().now_ms(), first_queue=task)
    folder = import_commit.drafts_folder(options.path, job)
    with FragmentWriter(folder) as writer:
        for batch in iterator:
            for encoded in encoder.encode(batch):
                writer.add(encoded.data, encoded.table)
        return writer.finish(encoder.queues)


def _drop_drafts(options: ImportOptions, job: str) -> None:
    import_commit.drop_drafts(options.path, job, SystemClock().now_ms())


def _fragments(messages: Sequence[WriterCommitMessage | None]) -> list[Fragment]:
    return [
        message.fragment
        for message in messages
        if isinstance(message, Written) and message.fragment.count
    ]


def _queries(messages: Sequence[WriterCommitMessage | None]) -> set[str]:
    return {
        message.query
        for message in messages
        if isinstance(message, Written) and message.query is not None
    }
