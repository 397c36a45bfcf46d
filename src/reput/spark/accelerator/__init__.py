"""Reads of stores by a jar inside of Spark's JVM, without Python workers. Optional.

The jar walks ranges of whole records in mapped log files, into Spark's columnar batches. It decides
nothing: what to read is planned here, by the planner of ``format("rocketmq")``, and handed over as
the source's one option. Reads that are not plain (``planning``) stay with the Python source, so
that both return the same rows in the same partitions.

    spark = SparkSession.builder.config("spark.jars", accelerator.jar()).getOrCreate()
    frame = reput.spark.read(spark, "/data/store")

The jar is compiled once by the JDK of this machine (``building``). Its source is found by the name
of its class: with the short name ``rocketmq`` it would silently take the place of the Python source
(docs/decisions/0017-an-optional-jar-reads-whole-records.md).
"""

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from reput.spark.accelerator.building import jar
from reput.spark.accelerator.planning import can_make, plan_of, plan_of_pulled
from reput.spark.options import ReadOptions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["accelerated", "can_make", "is_available", "jar", "plan_of_pulled", "rows_of_pulled"]

log = logging.getLogger("reput.spark")

_SOURCE = "reput.accelerator.CommitLogSource"
_BROKERS = "reput.accelerator.BrokerSource"
_PLAN_VERSION = 3
"""Version of the plan, as in CommitLogSource.java."""


def is_available(spark: "SparkSession") -> bool:
    """Return whether the jar is on the session's class path; never with Spark Connect."""
    jvm: Any = getattr(spark, "_jvm", None)
    if jvm is None:
        return False
    from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]

    try:
        source = _class(jvm, _SOURCE)
    except Py4JJavaError:
        return False
    version = source.getField("PLAN_VERSION").getInt(None)
    if version != _PLAN_VERSION:
        log.warning(
            "the jar of reput.spark.accelerator on the class path is of another version (plan %d, "
            "not %d) and is not used: compile it again, with python -m reput.spark.accelerator",
            version,
            _PLAN_VERSION,
        )
    return bool(version == _PLAN_VERSION)


def _class(jvm: Any, name: str) -> Any:
    loader = jvm.org.apache.spark.util.Utils.getContextOrSparkClassLoader()
    return jvm.java.lang.Class.forName(name, True, loader)


def accelerated(spark: "SparkSession", options: ReadOptions) -> "DataFrame | None":
    """Return a read by the jar; None if it is not on the class path, or the read is not plain.

    The read is planned now, not by each action: later messages are not part of the frame.

    Raises:
        ReputError: As ``MessageScan.tasks``.
    """
    if not is_available(spark):
        return None
    plan = plan_of(options)
    return None if plan is None else spark.read.format(_SOURCE).option("plan", plan).load()


def rows_of_pulled(
    spark: "SparkSession",
    plan: str,
    task_count: int,
    pulled: "Callable[[DataFrame], DataFrame]",
) -> "DataFrame":
    """Return the rows of running brokers.

    Args:
        spark: The session, which has the jar.
        plan: What ``plan_of_pulled`` returned.
        task_count: Number of tasks.
        pulled: Makes a frame with the columns of ``reput.spark.live.scan.PULLED`` from a frame with
            the number of a task, and the number of its messages that are read already.
    """
    from pyspark.sql import DataFrame

    source, session = _class(spark._jvm, _BROKERS).newInstance(), spark._jsparkSession
    records = pulled(DataFrame(source.numbers(session, task_count), spark))
    return DataFrame(source.messages(session, plan, records._jdf), spark)
