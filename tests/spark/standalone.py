"""A Spark standalone cluster on this machine: a master and workers, started like in production.

with StandaloneCluster(tmp_path, workers=2) as cluster:
    done = cluster.submit(script, "argument", options=["--py-files", wheel])
"""

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

import pyspark

_SPARK_HOME = Path(pyspark.__file__).parent
_CLASS = _SPARK_HOME / "bin" / "spark-class"
_START_SECONDS = 120
_DEADLINE_SECONDS = 900
_NEVER = threading.Event()


class StandaloneCluster:
    """A master and workers with a core each, in a folder.

    Args:
        folder: Folder for logs and scratch files.
        workers: Number of workers.
    """

    def __init__(self, folder: Path, workers: int = 2) -> None:
        self._folder = folder
        self._count = workers
        self._processes: list[subprocess.Popen[bytes]] = []
        self.url = ""

    def __enter__(self) -> "StandaloneCluster":
        try:
            master = self._start(
                "master.Master", "--host", "127.0.0.1", "--port", "0", "--webui-port", "0"
            )
            self.url = self._reported(master, r"Starting Spark master at (spark://\S+)")
            logs = [
                self._start(
                    *("worker.Worker", "--host", "127.0.0.1", "--webui-port", "0"),
                    *("--cores", "1", "--memory", "1g", self.url),
                )
                for _ in range(self._count)
            ]
            for log in logs:
                self._reported(log, r"Successfully registered with master (\S+)")
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop()

    def _start(self, name: str, *arguments: str) -> Path:
        """Start a daemon and return its log."""
        number = len(self._processes)
        log = self._folder / f"{name}-{number}.log"
        scratch = self._folder / f"scratch-{number}"
        with log.open("wb") as out:
            started = subprocess.Popen(
                [_CLASS, f"org.apache.spark.deploy.{name}", *arguments],
                stdout=out,
                stderr=subprocess.STDOUT,
                env=self._environment(SPARK_WORKER_DIR=str(scratch)),
                start_new_session=True,  # executors are in the same process group
            )
        self._processes.append(started)
        return log

    def _reported(self, log: Path, pattern: str) -> str:
        """Wait until a daemon's log matches a pattern, and return the group of the pattern."""
        deadline = time.monotonic() + _START_SECONDS
        while time.monotonic() < deadline:
            match = re.search(pattern, log.read_text(errors="replace"))
            if match:
                return match[1]
            _NEVER.wait(0.05)
        raise TimeoutError(f"{pattern} is not in:\n{log.read_text(errors='replace')}")

    def _environment(self, **more: str) -> dict[str, str]:
        # Without the variables of the tests: workers get only what the cluster is given.
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("PYTHON", "PYSPARK", "SPARK"))
        }
        return {
            **kept,
            "SPARK_HOME": str(_SPARK_HOME),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_LOCAL_DIRS": str(self._folder / "local"),
            "SPARK_DAEMON_MEMORY": "256m",
            **more,
        }

    def submit(
        self,
        script: Path,
        *arguments: str,
        options: Sequence[str] = (),
        conf: Mapping[str, str] | None = None,
        python: str = sys.executable,
    ) -> str:
        """Run a script with ``spark-submit`` and return its output.

        The driver runs with the Python of the tests, workers with ``python``.
        """
        settings = {
            "spark.ui.enabled": "false",
            "spark.executor.memory": "512m",
            "spark.driver.memory": "512m",
            "spark.log.level": "WARN",
            **(conf or {}),
        }
        command = [
            *(_SPARK_HOME / "bin" / "spark-submit", "--master", self.url, *options),
            *(text for name, value in settings.items() for text in ("--conf", f"{name}={value}")),
            *(script, *arguments),
        ]
        ended = subprocess.run(
            command,
            env=self._environment(PYSPARK_DRIVER_PYTHON=sys.executable, PYSPARK_PYTHON=python),
            cwd=self._folder,
            capture_output=True,
            text=True,
            timeout=_DEADLINE_SECONDS,
            check=False,
        )
        assert ended.returncode == 0, ended.stdout + ended.stderr
        return ended.stdout

    def _stop(self) -> None:
        for process in reversed(self._processes):
            os.killpg(process.pid, signal.SIGKILL)
        for process in self._processes:
            process.wait()
