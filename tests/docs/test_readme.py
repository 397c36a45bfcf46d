"""The blocks of the README run as a new user runs them: in order, in one folder.

Left out are the installation, and Spark: its Python is run by tests/spark/test_guides.py.
"""

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
ADDRESS = "127.0.0.1:9876"
LIMIT_S = 60
SKIPPED = ("make run", "pip install", "import reput.spark", "reput pipeline")


class Folder:
    """The folder of a new user, with a shell in which ``reput`` is installed."""

    def __init__(self, root: Path) -> None:
        self.root = root
        binaries = root / "bin"
        binaries.mkdir()
        command = binaries / "reput"
        command.write_text(f'#!/bin/sh\nexec {sys.executable} -m reput "$@"\n')
        command.chmod(0o755)
        path = f"{binaries}:{Path(sys.executable).parent}:{os.environ['PATH']}"
        self.environment = {**os.environ, "PATH": path, "PYTHONUNBUFFERED": "1"}
        self.environment.pop("NAMESRV_ADDR", None)
        self.address = ADDRESS
        self.processes: list[subprocess.Popen[str]] = []

    def start(self, *command: str) -> "subprocess.Popen[str]":
        process = subprocess.Popen(
            command,
            cwd=self.root,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.processes.append(process)
        return process

    def close(self) -> None:
        """End everything that was started, whatever has happened."""
        for process in self.processes:
            process.kill()
            process.wait()
            assert process.stdout is not None
            process.stdout.close()

    def run(self, *command: str) -> str:
        done = subprocess.run(
            command,
            cwd=self.root,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
        return done.stdout

    def python(self, source: str) -> Path:
        """Save a program under the name in its first line."""
        name = re.match(r"# (\w+\.py)$", source, re.MULTILINE)
        file = self.root / (name[1] if name else "program.py")
        file.write_text(source.replace(ADDRESS, self.address))
        return file

    def shell(self, source: str) -> str:
        return self.run("sh", "-ec", source.replace(ADDRESS, self.address))


def lines_until(process: "subprocess.Popen[str]", end: str) -> str:
    """Read the output of a process until a text; the process ends if it takes too long."""
    assert process.stdout is not None
    timer = threading.Timer(LIMIT_S, process.kill)
    timer.start()
    text = ""
    for line in process.stdout:
        text += line
        if end in line:
            break
    timer.cancel()
    assert end in text, text
    return text


def stop(process: "subprocess.Popen[str]") -> str:
    """Press Ctrl-C."""
    process.send_signal(signal.SIGINT)
    rest, _ = process.communicate(timeout=LIMIT_S)
    return rest


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Folder]:
    folder = Folder(tmp_path)
    yield folder
    folder.close()


@pytest.fixture
def blocks() -> Iterator[str]:
    """Return an iterator of the blocks that run here; the test must use them all."""
    code = re.findall(r"^```(?:sh|python)\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
    left = iter([block for block in code if not block.startswith(SKIPPED)])
    yield left  # type: ignore[misc]
    assert list(left) == []


def test_the_readme_from_the_top(folder: Folder, blocks: Iterator[str]) -> None:
    assert next(blocks) == "reput up\n"
    # The same at free ports: other tests run beside this one.
    broker = folder.start("sh", "-c", "exec reput up --port 0 --broker-port 0")
    banner = lines_until(broker, "Ctrl-C stops it.")
    (folder.address,) = re.findall(r"name server  (\S+)", banner)

    sent = folder.run("python", str(folder.python(next(blocks))))
    assert re.fullmatch(r"SEND_OK [0-9A-F]{32}\n", sent)

    consumer = folder.start("python", str(folder.python(next(blocks))))
    assert lines_until(consumer, "two coffees") == "0 b'two coffees'\n"
    assert stop(consumer) == ""

    shown = folder.shell(next(blocks))
    assert "Invoices" in shown
    assert shown.count("two coffees") == 2
    assert re.search(r"^lag +0$", shown, re.MULTILINE), shown

    assert "[b'in two hours']" in folder.run("python", str(folder.python(next(blocks))))

    assert "Stopped cleanly" in stop(broker)
    assert broker.returncode == 0
    store = folder.shell(next(blocks))
    assert re.search(r"^condition +clean$", store, re.MULTILINE)
    assert "two coffees" in store
