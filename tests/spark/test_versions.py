"""``format("rocketmq")`` with each PySpark since 4.0, in environments of ``make spark-versions``.

The newest is that of all other tests. Without ``REPUT_SPARK_VERSIONS`` the tests that need no JVM
run with the oldest, and nothing else.
"""

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

import store_builder
from spark.connect_server import connect_server

ROOT = Path(__file__).parents[2]
VERSIONS = ("4.0", "4.1", "4.2")
CONNECT = "4.2"
"""Version whose environment has Spark Connect."""
COUNT = 120
WITHOUT_SESSION = ("test_datasource_api.py", "sending/test_sink.py", "test_user_errors.py")
"""Unit tests of what differs between versions."""
SESSIONS = pytest.mark.skipif(
    "REPUT_SPARK_VERSIONS" not in os.environ,
    reason="make spark-versions: it needs their environments",
)


def python_of(version: str) -> Path:
    return ROOT / f".venv-spark-{version}" / "bin" / "python"


def environment_of(version: str) -> dict[str, str]:
    """Return the environment variables of programs and of Spark's workers."""
    own = {"PYTHONPATH": str(ROOT / "src"), "PYSPARK_PYTHON": str(python_of(version))}
    return {**os.environ, **own}


def run(version: str, *arguments: object) -> str:
    """Run Python in the environment of a version, and return its output; skip without one."""
    python = python_of(version)
    if not python.exists():
        pytest.skip(f"make spark-versions: it creates {python.parent.parent.name}")
    ran = subprocess.run(
        [python, *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        timeout=900,
        cwd=ROOT,
        env=environment_of(version),
    )
    assert ran.returncode == 0, f"{ran.stdout[-3000:]}{ran.stderr[-3000:]}"
    return ran.stdout


def session(version: str, script: str, *arguments: object) -> dict[str, Any]:
    """Run a script of this folder, which prints a JSON object."""
    got: dict[str, Any] = json.loads(run(version, Path(__file__).with_name(script), *arguments))
    return got


def test_the_oldest_without_a_session() -> None:
    tests = [f"tests/unit/spark/{path}" for path in WITHOUT_SESSION]
    printed = run(VERSIONS[0], "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests)
    assert re.search(r"^\d+ passed", printed, re.MULTILINE), printed


@SESSIONS
@pytest.mark.parametrize("version", VERSIONS)
def test_reads_sinks_jobs_and_streams(version: str, tmp_path: Path) -> None:
    built = store_builder.build(tmp_path / "store", store_builder.messages(COUNT))
    got = session(version, "version_session.py", tmp_path, built.root)
    assert got["version"].startswith(f"{version}.")
    assert [tuple(row) for row in got["batch"]] == sorted(
        (message.queue_id, message.queue_offset, len(message.body), len(message.properties))
        for message in built.messages
    )
    assert got["nothing"] == 0
    assert got["frames"] == {
        "rows": COUNT,
        "queue": sum(message.queue_id == 0 for message in built.messages),
        "tags": COUNT,
        "pairs": 3 * COUNT,
        "is_empty": False,
        "warnings": [],
    }
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


@SESSIONS
def test_everything_through_a_server_of_spark_connect(tmp_path: Path) -> None:
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
    home = Path(run(CONNECT, "-c", "import pyspark; print(*pyspark.__path__)").strip())
    with connect_server(home, tmp_path, environment_of(CONNECT)) as address:
        got = session(CONNECT, "connect_session.py", tmp_path, built.root, copy, address)
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
        "view": COUNT,
        "written": [["Orders", "o-1"], ["Orders", "ö-2"]],
        "stream": COUNT,
    }
