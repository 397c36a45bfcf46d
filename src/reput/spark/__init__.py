"""RocketMQ stores as Spark DataFrames: ``spark.read.format("rocketmq")``."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from reput.spark.streaming.positions import Lag


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

    texts = {name: str(value) for name, value in options.items()}
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


def register(spark: "SparkSession") -> None:
    """Register the jobs as table functions of SQL, ``rocketmq_audit`` and others, with a session.

    See docs/how-to/use-sql.md. Topics need no function: ``CREATE TEMPORARY VIEW t USING rocketmq``.
    """
    from reput.spark import sql

    sql.register(spark)
