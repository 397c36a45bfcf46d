"""Our name server and our broker, as processes that tests control.

    with ReputCluster(tmp_path, {"flushDiskType": "SYNC_FLUSH"}) as cluster:
        ...  # any client, at cluster.namesrv
        cluster.kill_broker()
        cluster.start()

It has the same folders and methods as ``interop.java_cluster.JavaCluster``, so that both can run on
the same store in turn.
"""

import os
import select
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from interop.java_cluster import SMALL_FILES
from ports import free_port, free_port_of_broker

START_S = 180.0
STOP_S = 60.0

Settings = Mapping[str, str | int | bool]
"""Settings under the names of ``broker.conf``."""


class DidNotStart(Exception):
    """A process ended while it started, or takes too long; the text has the end of its log."""


class ReputCluster:
    """A name server and a broker ``broker-a`` of cluster ``DefaultCluster``, both running.

    Args:
        folder: Folder of the store (``folder/store``), logs and files of settings; created if
            missing, and reused if it exists, so that a store can be continued.
        settings: Additional settings for ``broker.conf``.
        namesrv: Address of an existing name server to use instead.

    Raises:
        DidNotStart: A process ended while it started.
    """

    program: Sequence[str] = ("-m", "reput")
    """Arguments of Python that run the command ``reput``."""

    def __init__(
        self, folder: Path, settings: Settings | None = None, *, namesrv: str | None = None
    ) -> None:
        self.folder = folder
        self.store = folder / "store"
        self.store.mkdir(parents=True, exist_ok=True)
        more = dict(settings or {})
        # The ports stay the same over restarts, so they are none that the system gives to others.
        self.port = int(more.pop("listenPort", 0)) or free_port_of_broker()
        self.address = f"127.0.0.1:{self.port}"
        self._own_namesrv = namesrv is None
        port = free_port() if namesrv is None else 0
        self.namesrv = namesrv or f"127.0.0.1:{port}"
        self._settings: Settings = {
            "brokerClusterName": "DefaultCluster",
            "brokerName": "broker-a",
            "brokerId": 0,
            "brokerIP1": "127.0.0.1",
            "listenPort": self.port,
            "namesrvAddr": self.namesrv,
            "storePathRootDir": str(self.store),
            "storePathCommitLog": str(self.store / "commitlog"),
            "autoCreateTopicEnable": True,
            **SMALL_FILES,
            **more,
        }
        self._namesrv_process: subprocess.Popen[bytes] | None = None
        self._broker_process: subprocess.Popen[bytes] | None = None
        self.start()

    @property
    def broker_pid(self) -> int:
        assert self._broker_process is not None
        return self._broker_process.pid

    @property
    def is_broker_running(self) -> bool:
        return self._broker_process is not None and self._broker_process.poll() is None

    def start(self) -> None:
        """Start the stopped processes, on the same ports; the broker is registered on return."""
        if self._own_namesrv and self._namesrv_process is None:
            port = self.namesrv.rpartition(":")[2]
            files = {
                "kvConfigPath": self.folder / "namesrv/kvConfig.json",
                "configStorePath": self.folder / "namesrv/namesrv.properties",
            }
            settings = {"listenPort": port, "bindAddress": "127.0.0.1"}
            tls = {key: value for key, value in self._settings.items() if key.startswith("tls.")}
            settings |= texts(tls)
            self._namesrv_process = self._launch("namesrv", {**settings, **texts(files)})
        if self._broker_process is None:
            self._broker_process = self._launch("broker", texts(self._settings))

    def stop(self) -> None:
        """Stop both processes as an operator would."""
        self.stop_broker()
        self._namesrv_process = _ended(self._namesrv_process, is_kill=False)

    def kill(self) -> None:
        """Kill both processes."""
        self.kill_broker()
        self._namesrv_process = _ended(self._namesrv_process, is_kill=True)

    def stop_broker(self) -> None:
        """Stop only the broker; ``start`` starts it again."""
        self._broker_process = _ended(self._broker_process, is_kill=False)

    def kill_broker(self) -> None:
        """Kill only the broker; ``start`` starts it again."""
        self._broker_process = _ended(self._broker_process, is_kill=True)

    def wait(self) -> None:
        """Wait until the broker has ended on a signal."""
        process, self._broker_process = self._broker_process, None
        assert process is not None
        assert process.stdout is not None
        with process.stdout:
            process.wait(STOP_S)

    def log(self) -> str:
        """Return the end of the processes' logs."""
        return "\n".join(
            f"--- {log.name}\n{log.read_text(errors='replace')[-3000:]}"
            for log in (self.folder / "namesrv.log", self.folder / "broker.log")
            if log.exists()
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.kill()

    def _launch(self, name: str, settings: Mapping[str, str]) -> subprocess.Popen[bytes]:
        path = self.folder / f"{name}.conf"
        path.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        command = [sys.executable, *self.program, name, "-c", str(path)]
        with (self.folder / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                cwd=self.folder,
            )
        output = _first_words(process)
        if b"success" not in output:
            _ended(process, is_kill=True)
            self.kill()
            raise DidNotStart(f"{name} said {output!r}\n{self.log()}")
        return process


def texts(settings: Mapping[str, object]) -> dict[str, str]:
    """Return settings as they are in a file."""
    return {
        key: str(value).lower() if isinstance(value, bool) else str(value)
        for key, value in settings.items()
    }


def _first_words(process: subprocess.Popen[bytes]) -> bytes:
    """Return the line that a process prints when it serves; less if it ends before."""
    assert process.stdout is not None
    output = b""
    deadline = time.monotonic() + START_S
    while b"\n" not in output:
        left = deadline - time.monotonic()
        if left <= 0 or not select.select([process.stdout], [], [], left)[0]:
            break
        data = os.read(process.stdout.fileno(), 1 << 12)
        if not data:
            break
        output += data
    return output


def _ended(process: subprocess.Popen[bytes] | None, *, is_kill: bool) -> None:
    if process is None:
        return
    process.kill() if is_kill else process.terminate()
    try:
        process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        raise
    finally:
        assert process.stdout is not None
        process.stdout.close()
