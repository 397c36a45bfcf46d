"""A program that was started without activating its environment reads stores all the same.

Which sessions get the Python of the program is tested without a JVM, in
tests/unit/spark/test_registration.py.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import reput.spark
import store_builder

PROGRAM = """
import sys
from pyspark.sql import SparkSession
import reput.spark

spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
print("rows", len(reput.spark.read(spark, sys.argv[1]).collect()))
print("rows", spark.read.format("rocketmq").load(sys.argv[1]).count())
"""


def other_python(folder: Path) -> Path:
    """Return a Python that fails, as one without reput does."""
    other = folder / "bin" / "python3"
    other.parent.mkdir()
    other.write_text("#!/bin/sh\necho 'this Python has no reput' >&2\nexit 1\n")
    other.chmod(0o755)
    return other


def test_a_read_chooses_the_python_of_workers(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built = store_builder.build(tmp_path / "store", store_builder.messages(3))
    monkeypatch.delenv("PYSPARK_PYTHON")
    # A separate session: the source is registered in it.
    session = spark.newSession()
    monkeypatch.setattr(session.sparkContext, "pythonExec", str(other_python(tmp_path)))
    assert len(reput.spark.read(session, str(built.root)).collect()) == 3


@pytest.mark.soak  # it starts a separate JVM, which has no Python chosen
def test_workers_run_the_python_of_the_program(tmp_path: Path) -> None:
    built = store_builder.build(tmp_path / "store", store_builder.messages(3))
    other = other_python(tmp_path)  # the first one of PATH
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
        [sys.executable, program, built.root],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        cwd=tmp_path,
        env=environment,
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    assert ran.stdout.count("rows 3") == 2
