"""A program that was started without activating its environment reads stores all the same."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from reput.client import Message, blocking
from reput.testing import LocalBroker

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark")]

PROGRAM = """
import sys
from pyspark.sql import SparkSession
import reput.spark

spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
print("rows", reput.spark.read(spark, sys.argv[1], topic="T").count())
print("rows", spark.read.format("rocketmq").option("topic", "T").load(sys.argv[1]).count())
"""


def test_workers_run_the_python_of_the_program(tmp_path: Path) -> None:
    with (
        LocalBroker(topics={"T": 1}, folder=tmp_path / "store") as mq,
        blocking.Producer("P", namesrv=mq.namesrv_addr) as producer,
    ):
        producer.send(Message("T", b"x"))
    other = tmp_path / "bin" / "python3"  # the first one of PATH, without reput
    other.parent.mkdir()
    other.write_text("#!/bin/sh\necho 'this Python has no reput' >&2\nexit 1\n")
    other.chmod(0o755)
    program = tmp_path / "job.py"
    program.write_text(PROGRAM)
    environment = {
        name: value
        for name, value in os.environ.items()
        if name not in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON")
    }
    environment["PATH"] = f"{other.parent}{os.pathsep}{environment['PATH']}"
    environment["PYTHONPATH"] = os.pathsep.join(sys.path)
    ran = subprocess.run(
        [sys.executable, program, tmp_path / "store"],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        cwd=tmp_path,
        env=environment,
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    assert ran.stdout.count("rows 1") == 2
