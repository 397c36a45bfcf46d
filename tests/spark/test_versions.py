"""``format("rocketmq")`` with each PySpark since 4.0, in environments of ``make spark-versions``.

The newest is that of all other tests. ``REPUT_SPARK_VERSIONS`` runs more than the oldest.
"""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

import store_builder

ROOT = Path(__file__).parents[2]
VERSIONS = ("4.0", "4.1", "4.2")
COUNT = 120


def environment_of(version: str) -> Path:
    """Return the Python of a version's environment; skip the test without one."""
    python = ROOT / f".venv-spark-{version}" / "bin" / "python"
    if not python.exists():
        pytest.skip(f"there is no {python.parent.parent.name}: make spark-versions creates it")
    return python


@pytest.mark.parametrize(
    "version", VERSIONS if "REPUT_SPARK_VERSIONS" in os.environ else VERSIONS[:1]
)
def test_reads_sinks_jobs_and_streams(version: str, tmp_path: Path) -> None:
    python = environment_of(version)
    built = store_builder.build(tmp_path / "store", store_builder.messages(COUNT))
    ran = subprocess.run(
        [python, Path(__file__).with_name("version_session.py"), tmp_path, built.root],
        capture_output=True,
        text=True,
        check=False,
        timeout=900,
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT / "src"), "PYSPARK_PYTHON": str(python)},
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    got: dict[str, Any] = json.loads(ran.stdout)
    assert got["version"].startswith(f"{version}.")
    assert [tuple(row) for row in got["batch"]] == sorted(
        (message.queue_id, message.queue_offset, len(message.body), len(message.properties))
        for message in built.messages
    )
    assert "option 'mode' is 'LOUD'" in got["errors"]["option"]
    assert "option 'sql92'" in got["errors"]["task"]
    for error in got["errors"].values():
        assert "Traceback" not in error
    assert got["sink"] == COUNT
    assert got["jobs"] == [COUNT, True, COUNT]
    refused, *others = got["streams"]["errors"]
    assert others == ["", "", "", ""]
    if got["has_read_limits"]:
        assert refused == ""
    else:
        assert "option 'maxOffsetsPerTrigger' is 10; allowed: left out with availableNow" in refused
    assert got["streams"]["count"] == got["streams"]["limited_count"] == COUNT
    assert got["streams"]["batches"] == [0, 1, 2, 3]
