"""``format("rocketmq")`` with each PySpark since 4.0, in environments of ``make spark-versions``.

The newest is that of all other tests. Without ``REPUT_SPARK_VERSIONS`` the oldest alone runs, in a
short form.
"""

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

import store_builder

ROOT = Path(__file__).parents[2]
VERSIONS = ("4.0", "4.1", "4.2")
CONNECT = "4.2"
"""Version whose environment has Spark Connect."""
COUNT = 120
IS_LONG = "REPUT_SPARK_VERSIONS" in os.environ


def run(version: str, script: str, *arguments: object) -> dict[str, Any]:
    """Run a script in the environment of a version; skip the test without one."""
    python = ROOT / f".venv-spark-{version}" / "bin" / "python"
    if not python.exists():
        pytest.skip(f"there is no {python.parent.parent.name}: make spark-versions creates it")
    ran = subprocess.run(
        [python, Path(__file__).with_name(script), *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        timeout=900,
        env=os.environ | {"PYTHONPATH": str(ROOT / "src"), "PYSPARK_PYTHON": str(python)},
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    printed: dict[str, Any] = json.loads(ran.stdout)
    return printed


@pytest.mark.parametrize("version", VERSIONS if IS_LONG else VERSIONS[:1])
def test_reads_sinks_jobs_and_streams(version: str, tmp_path: Path) -> None:
    built = store_builder.build(tmp_path / "store", store_builder.messages(COUNT))
    form = "long" if IS_LONG else "short"
    got = run(version, "version_session.py", tmp_path, built.root, form)
    assert got["version"].startswith(f"{version}.")
    assert [tuple(row) for row in got["batch"]] == sorted(
        (message.queue_id, message.queue_offset, len(message.body), len(message.properties))
        for message in built.messages
    )
    assert "option 'mode' is 'LOUD'" in got["errors"]["option"]
    assert "option 'sql92'" in got["errors"]["task"]
    for error in got["errors"].values():
        assert "Traceback" not in error
    assert got["streams"]["count"] == COUNT
    if not IS_LONG:
        assert got["streams"]["errors"] == [""]
        return
    assert got["sink"] == COUNT
    assert got["jobs"] == [COUNT, True, COUNT]
    refused, *others = got["streams"]["errors"]
    assert others == ["", "", "", ""]
    if got["has_read_limits"]:
        assert refused == ""
    else:
        assert "option 'maxOffsetsPerTrigger' is 10; allowed: left out with availableNow" in refused
    assert got["streams"]["limited_count"] == COUNT
    assert got["streams"]["batches"] == [0, 1, 2, 3]


@pytest.mark.skipif(not IS_LONG, reason="part of make spark-versions: it starts another JVM")
def test_everything_through_spark_connect(tmp_path: Path) -> None:
    built = store_builder.build(tmp_path / "store", store_builder.messages(COUNT))
    copy = tmp_path / "copy"
    shutil.copytree(built.root, copy)
    message = built.messages[5]
    (log_file,) = [
        path
        for path in (copy / "commitlog").iterdir()
        if 0 <= message.physical_offset - int(path.name) < path.stat().st_size
    ]
    data = bytearray(log_file.read_bytes())
    data[message.physical_offset - int(log_file.name) + 16] ^= 1  # its flag
    log_file.write_bytes(data)
    got = run(CONNECT, "connect_session.py", tmp_path, built.root, copy)
    assert got.pop("session").startswith("pyspark.sql.connect.")
    tasks = got.pop("steps")
    assert tasks[0][:2] == ["archive", 0]
    assert tasks[-1] == ["archive", tasks[0][2], tasks[0][2]]
    assert got == {
        "rows": COUNT,
        "archived": [COUNT, True],
        "counts": {"only_left": 0, "only_right": 0, "different": 1},
        "findings": 2,  # of the file, and of the message
        "failure": "test, stage: reput.errors.StoreUnavailable: task 7 has no store",
        "table function": 0,
        "stream": COUNT,
    }
