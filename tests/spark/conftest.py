"""One Spark session for all tests of this folder; they share a worker (xdist group ``spark``)."""

import os
import sys
import warnings
from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from reput.spark import accelerator
from spark import object_store


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
        session = (
            SparkSession.builder.master("local[2]")
            # A short start matters more than fast queries: most of a test's time is compilation.
            .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
            .config("spark.ui.enabled", "false")
            .config("spark.ui.showConsoleProgress", "false")
            .config("spark.log.level", "ERROR")
            .config("spark.sql.shuffle.partitions", "2")
            .config("spark.sql.session.timeZone", "UTC")
            .getOrCreate()
        )
    yield session
    session.stop()


@pytest.fixture(scope="session")
def spark_with_jar(spark: SparkSession) -> SparkSession:
    spark.sql(f"ADD JAR '{accelerator.jar()}'")
    assert accelerator.is_available(spark)
    return spark
