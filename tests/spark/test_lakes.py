"""Streams into Parquet, Delta and Iceberg: each message once, over kills of the driver.

Delta and Iceberg have jars for each version of Spark, a while after it: they run with 4.0, in the
environment of ``make spark-versions``.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

import store_builder
from spark.maven_jars import spark_jars

pytestmark = [pytest.mark.soak, pytest.mark.crash]

ROOT = Path(__file__).parents[2]
OLDEST = ROOT / ".venv-spark-4.0" / "bin" / "python"
FIRST_COUNT = 20
COUNT = 400
JARS = {
    "parquet": (),
    "delta": ("io.delta:delta-spark_2.13:4.0.0", "io.delta:delta-storage:4.0.0"),
    "iceberg": ("org.apache.iceberg:iceberg-spark-runtime-4.0_2.13:1.10.0",),
}


@pytest.mark.parametrize("kind", JARS)
def test_each_message_is_in_the_table_once_over_kills(kind: str, tmp_path: Path) -> None:
    jars = spark_jars(JARS[kind])
    python = OLDEST if jars else Path(sys.executable)
    if not python.exists():
        pytest.skip(f"make spark-versions: it creates {OLDEST.parent.parent.name}")
    messages = store_builder.messages(COUNT)
    store = tmp_path / "store"

    def start(action: str) -> subprocess.Popen[str]:
        script = Path(__file__).with_name("lake_session.py")
        with (tmp_path / "errors.txt").open("a") as errors:
            return subprocess.Popen(
                [str(word) for word in (python, script, kind, store, tmp_path, jars, action)],
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                start_new_session=True,
                env=os.environ | {"PYTHONPATH": str(ROOT / "src")},
            )

    def lines_of(action: str) -> list[str]:
        with start(action) as driver:
            out, _ = driver.communicate(timeout=300)
        assert driver.returncode == 0, (tmp_path / "errors.txt").read_text()[-3000:]
        return out.splitlines()

    store_builder.build(store, messages[:FIRST_COUNT])
    lines_of("begin")  # PySpark 4.0 keeps limits from the second start on
    shutil.rmtree(store)
    built = store_builder.build(store, messages)
    for batch in (2, 5, 9):
        with start("follow") as driver:
            assert driver.stdout is not None
            seen = any(f"batch {batch}" in line for line in driver.stdout)
            os.killpg(driver.pid, signal.SIGKILL)
        assert seen, (tmp_path / "errors.txt").read_text()[-3000:]
    lines_of("end")  # PySpark 4.0 repeats the micro-batch that was interrupted, and ends
    places = json.loads(lines_of("end")[-1])
    assert Counter(map(tuple, places)) == Counter(
        (message.topic, message.queue_id, message.queue_offset) for message in built.messages
    )
