"""RocketMQ stores as Spark DataFrames: ``spark.read.format("rocketmq")``.

Spark passes a Python source no needed columns. ``read``, ``sql``, ``table`` and ``pruned`` return
frames that find them, so that a query reads only those.
"""

import contextlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from reput.errors import ReputError
from reput.extras import extra_missing

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from reput.spark.stream_metrics import StreamListener
    from reput.spark.streaming.positions import Lag


def read(spark: "SparkSession", path: str | None = None, **options: object) -> "DataFrame":
    """Return messages as a frame whose queries read only the columns and rows that they need.

    The rows are those of ``spark.read.format("rocketmq")``, and each action plans the read again.
    A local session without ``PYSPARK_PYTHON`` gets the Python of this process for its workers, and
    the source is registered in it.
    With the jar of ``reput.spark.accelerator`` on the class path, the jar reads plain stores; then
    the read is planned now.

    Args:
        spark: The session.
        path: The store folder or archive, as for ``load``; omitted, with ``nameServer``, for
            brokers.
        **options: Options of the source: ``read(spark, path, topic="orders")``. Dicts become
            JSON, lists names separated by commas.

    Raises:
        AnalysisException: An option is not allowed, or there is no such store. Actions raise
            ``ReputError`` if the options do not fit the store.
    """
    from reput.spark import accelerator, options as option_texts, registration

    texts = option_texts.texts_of_values(options)
    # The Python source reports errors, in the same way with and without the jar.
    with contextlib.suppress(ReputError):
        parsed = option_texts.parse(texts if path is None else {**texts, "path": path})
        option_texts.check_batch(parsed)
        frame = accelerator.accelerated(spark, parsed)
        if frame is not None:
            return frame
    registration.let_workers_find_source(spark)
    return pruned(spark.read.format("rocketmq").options(**texts).load(path))


def sql(spark: "SparkSession", query: str, *arguments: Any, **named: Any) -> "DataFrame":
    """Return a query as ``spark.sql`` does; of views of messages, it reads only what it needs."""
    return pruned(spark.sql(query, *arguments, **named))


def table(spark: "SparkSession", name: str) -> "DataFrame":
    """Return a view as ``spark.table`` does; of messages, queries read only what they need."""
    return pruned(spark.table(name))


def pruned(frame: "DataFrame") -> "DataFrame":
    """Return the same frame, whose queries read only the columns and rows that they need.

    Predicates on ``topic``, ``queue_id``, ``queue_offset``, ``physical_offset``,
    ``store_timestamp``, ``tags`` and ``msg_id`` skip files, queues and rows. ``count`` and
    ``groupBy(...).count()`` are computed where messages are read, or from queues. A query that is
    not understood reads all columns. With Spark Connect the frame is returned as it is.
    """
    if type(frame).__module__.startswith("pyspark.sql.connect."):
        return frame  # its client has neither plans nor, perhaps, Py4J
    from reput.spark import frames

    return frames.read_only_needed(frame)


def explain(path: str | None = None, **options: object) -> str:
    """Return what a read with these options would read and skip, without Spark.

    Args:
        path: The store folder, as for ``load``; omitted, with ``nameServer``, for brokers.
        **options: Options of the source: ``explain(path, topic="orders", startingTimestamp=0)``.

    Raises:
        ReputError: As for the read itself.
    """
    from reput.spark import options as option_texts, rows
    from reput.spark.scan import MessageScan

    texts = option_texts.texts_of_values(options)
    parsed = option_texts.parse(texts if path is None else {**texts, "path": path})
    option_texts.check_batch(parsed)
    columns = list(rows.message_fields(parsed))
    if parsed.live is not None:
        from reput.spark.live.scan import LiveScan

        of_brokers = LiveScan(parsed, columns)
        of_brokers.tasks()
        return "\n".join(of_brokers.summary.lines)
    scan = MessageScan(parsed, columns)
    scan.tasks()
    return "\n".join(scan.summary.lines)


def lag_of(latest_offset: str | Mapping[str, Any]) -> "Lag":
    """Return the lag of a stream from one of Spark's progress reports, without Spark.

    Args:
        latest_offset: ``latestOffset`` of a source in a progress:
            ``query.lastProgress.sources[0].latestOffset``, or that of ``event.progress`` in a
            ``StreamingQueryListener``. PySpark 4.2 or later.
    """
    from reput.spark.streaming import positions

    return positions.lag_of(latest_offset)


def stream_listener(port: int | None = None, host: str = "127.0.0.1") -> "StreamListener":
    """Return a listener with metrics of all streams, for ``spark.streams.addListener``.

    See docs/how-to/stream-a-topic.md.

    Args:
        port: Port on which ``/metrics`` is served for Prometheus, 0 for any free one; None: none.
        host: Address to listen on; ``0.0.0.0`` for other machines.

    Raises:
        ExtraMissing: ``prometheus_client`` or Spark is not installed.
        OSError: The address is in use, or does not belong to this machine.
    """
    listener: StreamListener = _listeners().StreamListener()
    if port is not None:
        listener.serve(port, host)
    return listener


def observed(frame: "DataFrame", source: str = "", column: str = "_corrupt_record") -> "DataFrame":
    """Return a frame whose damaged rows are counted by the listener of ``stream_listener``.

    Args:
        frame: A stream with mode PERMISSIVE or SALVAGE, as loaded.
        source: Label ``source`` of the counts; empty: the query's only source.
        column: The column with the error of a row.
    """
    counted: DataFrame = _listeners().observed(frame, source, column)
    return counted


def _listeners() -> Any:
    try:
        from reput.spark import stream_metrics as module
    except ModuleNotFoundError as error:
        raise extra_missing("reput.spark.stream_listener", error) or error from error
    return module


def register(spark: "SparkSession") -> None:
    """Register the jobs as table functions of SQL, ``rocketmq_audit`` and others, with a session.

    See docs/how-to/use-sql.md. Topics need no function: ``CREATE TEMPORARY VIEW t USING rocketmq``.
    """
    from reput.spark import table_functions

    table_functions.register(spark)
