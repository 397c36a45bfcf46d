"""An etcd as a process with a folder; needs ``scripts/ensure-etcd``."""

import contextlib
import functools
import signal
import subprocess
import time
import urllib.request
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest

from ports import free_ports

_SCRIPT = Path(__file__).parents[1] / "scripts" / "ensure-etcd"
_START_S = 30


@functools.cache
def binary() -> str:
    """Return the path of an etcd; skip the test if there is none."""
    script = subprocess.run([_SCRIPT], capture_output=True, text=True, check=False)
    if script.returncode:
        pytest.skip(f"missing etcd: {script.stderr.strip()[-300:]}")
    return script.stdout.strip()


class EtcdProcess:
    """An etcd of one member. Use it as a context.

    Args:
        folder: Folder of its data, which lasts.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._port = free_ports(2)
        self.url = f"http://127.0.0.1:{self._port}"
        self._process: subprocess.Popen[bytes]

    def start(self) -> None:
        """Start it, and wait until it answers."""
        peer = f"http://127.0.0.1:{self._port + 1}"
        self._folder.mkdir(parents=True, exist_ok=True)
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [
                    binary(),
                    *("--name", "a", "--data-dir", str(self._folder / "data")),
                    *("--listen-client-urls", self.url, "--advertise-client-urls", self.url),
                    *("--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer),
                    *("--initial-cluster", f"a={peer}"),
                ],
                stdout=log,
                stderr=log,
            )
        end_s = time.monotonic() + _START_S
        while True:
            with contextlib.suppress(OSError):
                if b"true" in urllib.request.urlopen(f"{self.url}/health", timeout=5).read():
                    return
            text = (self._folder / "log").read_text()[-2_000:]
            assert self._process.poll() is None, text
            assert time.monotonic() < end_s, text
            time.sleep(0.05)  # noqa: TID251 - another process starts

    def kill(self) -> None:
        """End it by SIGKILL."""
        self._process.kill()
        self._process.wait()

    def pause(self) -> None:
        """Let it run no more, for some time."""
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let it run again."""
        self._process.send_signal(signal.SIGCONT)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.kill()
