"""Jars for Spark sessions of tests, from Maven; cached with those of RocketMQ."""

import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pytest

from interop import java_oracle
from interop.java_oracle import JavaUnavailable


def spark_jars(artifacts: Sequence[str]) -> str:
    """Return the paths of jars as Spark's setting ``spark.jars``; skip the test without them.

    Args:
        artifacts: ``group:name:version``; several versions, separated by ``|``, are tried in turn.
    """
    try:
        return ",".join(str(_jar(artifact)) for artifact in artifacts)
    except JavaUnavailable as error:
        pytest.skip(f"missing java: {error}")


def _jar(artifact: str) -> Path:
    group, name, versions = artifact.split(":")
    folder = java_oracle.cache() / "spark"
    folder.mkdir(parents=True, exist_ok=True)
    for version in versions.split("|"):
        jar = folder / f"{name}-{version}.jar"
        if not jar.is_file():
            with tempfile.TemporaryDirectory(dir=folder) as new:
                goal = [f"-Dartifact={group}:{name}:{version}", f"-DoutputDirectory={new}"]
                command = [java_oracle.tool("mvn"), "-q", "-B", "dependency:copy", *goal]
                subprocess.run(command, capture_output=True, check=False)
                if not Path(new, jar.name).is_file():
                    continue
                Path(new, jar.name).rename(jar)
        return jar
    raise JavaUnavailable(f"mvn could not fetch {artifact}")
