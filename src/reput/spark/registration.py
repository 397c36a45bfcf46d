"""The Python of a session's workers: they must find the source, which needs reput."""

import os
import sys

from pyspark.sql import SparkSession

PYTHON_VARIABLE = "PYSPARK_PYTHON"
"""Environment variable of the Python that Spark starts for workers; by default ``python3``."""


def let_workers_find_source(spark: SparkSession) -> None:
    """Let a local session run its workers with the Python of this process, and register the source.

    Otherwise a program that was started as ``venv/bin/python job.py``, without activating the
    environment, has workers of another Python. Sessions with a chosen Python are left alone, and
    those of clusters: this machine's path may not exist there.

    Args:
        spark: The session; one of Spark Connect is left alone.
    """
    if type(spark).__module__.startswith("pyspark.sql.connect."):
        return
    context = spark.sparkContext
    is_chosen = PYTHON_VARIABLE in os.environ or context.getConf().contains("spark.pyspark.python")
    is_local = (context.master or "").startswith("local")
    if is_chosen or not is_local or context.pythonExec == sys.executable:
        return
    from pyspark_rocketmq import DefaultSource

    context.pythonExec = sys.executable
    spark.dataSource.register(DefaultSource)
