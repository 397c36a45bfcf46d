"""A server of Spark Connect in a process apart, as ``start-connect-server.sh`` starts it."""

import contextlib
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import ports

_START_SECONDS = 180
_NEVER = threading.Event()


@contextlib.contextmanager
def connect_server(home: Path, folder: Path, environment: Mapping[str, str]) -> Iterator[str]:
    """Run a server, and yield its address for ``SparkSession.builder.remote``.

    Args:
        home: Folder of Spark, as ``SPARK_HOME``.
        folder: Folder for the server's log.
        environment: Environment variables of the server and its Python workers.
    """
    port = ports.free_port()
    settings = {
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": str(port),
        "spark.ui.enabled": "false",
    }
    log = folder / "connect-server.log"
    with log.open("wb") as out:
        server = subprocess.Popen(
            [
                *(home / "bin" / "spark-submit", "--master", "local[2]"),
                *("--class", "org.apache.spark.sql.connect.service.SparkConnectServer"),
                *(part for each in settings.items() for part in ("--conf", "=".join(each))),
                "spark-internal",
            ],
            stdout=out,
            stderr=subprocess.STDOUT,
            cwd=folder,
            env={**environment, "SPARK_HOME": str(home), "SPARK_LOCAL_IP": "127.0.0.1"},
            start_new_session=True,  # its Python workers are in the same process group
        )
    try:
        _await_port(port, server, log)
        yield f"sc://127.0.0.1:{port}"
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(server.pid, signal.SIGKILL)
        server.wait()


def _await_port(port: int, server: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while server.poll() is None and time.monotonic() < deadline:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            _NEVER.wait(0.1)
        else:
            return
    raise TimeoutError(f"no server of Spark Connect:\n{log.read_text(errors='replace')[-3000:]}")
