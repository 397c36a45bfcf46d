"""One Spark session for all tests of this folder; they share a worker (xdist group ``spark``)."""

import os
import sys
import warnings
from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

import golden
from reput.spark import accelerator
from spark import object_store

# A short start matters more than fast queries: most of a test's time is compilation.
JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
SETTINGS = {
    "spark.driver.extraJavaOptions": JAVA_OPTIONS,
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.session.timeZone": "UTC",
}
QUICK_SETTINGS = {
    # The start loads thousands of Spark's classes, whose bytecode is that of its release.
    "spark.driver.extraJavaOptions": JAVA_OPTIONS
    + " -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote",
    # Each query would compile separate classes. Plans are the same; the results of compiled
    # queries are tested by make soak and make spark-versions.
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}
"""Settings of sessions that run few rows through many queries, unless with ``make soak``."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "/tests/spark/" in str(item.path):
            item.add_marker(pytest.mark.spark)
            item.add_marker(pytest.mark.xdist_group("spark"))


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ |= object_store.ENVIRONMENT
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        builder = SparkSession.builder.master("local[2]")
        for name, value in (SETTINGS | ({} if golden.IS_SOAK else QUICK_SETTINGS)).items():
            builder = builder.config(name, value)
        session = builder.getOrCreate()
    yield session
    session.stop()


@pytest.fixture(scope="session")
def spark_with_jar(spark: SparkSession) -> SparkSession:
    spark.sql(f"ADD JAR '{accelerator.jar()}'")
    assert accelerator.is_available(spark)
    return spark
