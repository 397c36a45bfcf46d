"""Entry point of ``format("rocketmq")``: PySpark looks for ``DefaultSource`` in ``pyspark_*``."""

from reput.spark.source import RocketMQDataSource

__all__ = ["DefaultSource"]


class DefaultSource(RocketMQDataSource):
    """The data source, under the name that PySpark looks for."""
