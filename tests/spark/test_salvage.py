"""Salvage on a real session gives the store of tests/unit/spark/jobs/salvage/test_salvage.py."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import golden
from reput.spark.jobs.compare import compare
from reput.spark.jobs.salvage import salvage
from spark.in_process import InProcess
from spark.jobs_setting import settings

pytestmark = pytest.mark.filterwarnings("ignore")


def test_salvage_on_workers_writes_the_same_store(spark: SparkSession, tmp_path: Path) -> None:
    source = str(golden.unpack("4.9.7", "torn/log-missing"))
    steps: list[str] = []
    results = [
        salvage(
            session,
            source,
            str(tmp_path / name),
            config=settings("4.9.7"),
            partition_bytes=400_000,
            progress=lambda what, done, total: steps.append(what),
        )
        for session, name in ((spark, "spread"), (InProcess(), "here"))
    ]
    assert results[0].queues == results[1].queues
    assert results[0].holes == results[1].holes
    assert [*dict.fromkeys(steps)] == [
        *("scan", "copy", "tables", "survey", "write", "adopt", "publish")
    ]
    assert compare(spark, str(tmp_path / "spread"), str(tmp_path / "here")).is_equal
