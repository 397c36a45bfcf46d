"""Entry point of ``format("rocketmq")``: PySpark looks for ``DefaultSource`` in ``pyspark_*``.

PySpark imports all such modules to find any data source, so that this one must never fail: where
the source cannot be imported, its use is the error.
"""

__all__ = ["DefaultSource"]

try:
    from reput.spark.source import RocketMQDataSource as _Source
except Exception as error:  # noqa: BLE001 - see above
    from pyspark_rocketmq.unavailable import unavailable

    _Source = unavailable(error)  # type: ignore[misc, assignment]


class DefaultSource(_Source):
    """The data source, under the name that PySpark looks for."""
