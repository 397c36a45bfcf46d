"""``reput up`` for tests of other languages: JSON, a file when it is ready, a command."""

import json
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from reput.cli import main as cli
from reput.client import Message, blocking

WAIT_S = 60
UP = [sys.executable, "-m", "reput", "up", "--port", "0", "--broker-port", "0"]
SEND = """
import os, sys
from reput.client import Message, blocking
with blocking.Producer("P") as producer:
    producer.send(Message("T", b"from the command"))
print(open("ready.json").read(), os.environ["REPUT_TEST_CONTROLS"])
sys.exit(7)
"""
WAIT = """
import signal, sys
signal.signal(signal.SIGTERM, lambda *_: sys.exit(3))
print("ready", flush=True)
signal.pause()
"""


def test_one_line_of_json_has_all_addresses(tmp_path: Path) -> None:
    with subprocess.Popen([*UP, "--json"], cwd=tmp_path, stdout=subprocess.PIPE) as server:
        try:
            assert server.stdout is not None
            document = json.loads(server.stdout.readline())
            with blocking.Producer("P", namesrv=document["nameServer"]) as producer:
                sent = producer.send(Message("T", b"x"))
            assert sent.queue.broker_name == document["brokerName"] == "broker-a"
            assert document["pid"] == server.pid
            assert document["store"] == str(tmp_path / "reput-data")
            assert (document["metrics"], document["testControls"]) == (None, None)
        finally:
            server.terminate()
        assert server.wait(WAIT_S) == 0
        assert server.stdout.read() == b""


def test_a_command_finds_the_broker_and_ends_it(tmp_path: Path) -> None:
    up = [*UP, "--ready-file", "ready.json", "--test-controls", "0"]
    done = subprocess.run(
        [*up, "--", sys.executable, "-c", SEND],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )
    assert done.returncode == 7, done.stderr
    line, rest = done.stdout.split("\n", 1)
    document = json.loads(line)
    assert rest.strip() == document["testControls"]
    assert not (tmp_path / "ready.json").exists(), "it is ready no more"
    assert not (tmp_path / "reput-data" / "abort").exists(), "the broker was stopped cleanly"
    with pytest.raises(urllib.error.URLError, match="refused"):
        urllib.request.urlopen(document["testControls"], timeout=5)


def test_a_signal_ends_the_command_first(tmp_path: Path) -> None:
    command = [*UP, "--", sys.executable, "-c", WAIT]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE) as server:
        assert server.stdout is not None
        assert server.stdout.readline() == b"ready\n"
        server.send_signal(signal.SIGTERM)
        assert server.wait(WAIT_S) == 3
    assert not (tmp_path / "reput-data" / "abort").exists()


def test_a_command_that_a_signal_ended(tmp_path: Path) -> None:
    killing = [sys.executable, "-c", "import os; os.kill(os.getpid(), 9)"]
    done = subprocess.run([*UP, "--", *killing], cwd=tmp_path, timeout=WAIT_S, check=False)
    assert done.returncode == 128 + signal.SIGKILL


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--"], "-- is followed by a command"),
        (["--json", "--", "true"], "--ready-file"),
        (["--replicas", "1", "--", "true"], "-- COMMAND is not allowed with --replicas"),
        (["--replicas", "1", "--json"], "--json is not allowed with --replicas"),
        (["--test-controls", "x"], "'x' is no port"),
        (["--ready-file", "no/such/folder/file"], "--ready-file no/such/folder/file: No such file"),
        (["--", "no-such-program"], "cannot run no-such-program: No such file"),
    ],
)
def test_what_cannot_be_is_one_line(
    arguments: list[str],
    text: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.run(["up", "--port", "0", "--broker-port", "0", *arguments]) == 2
    assert text in capsys.readouterr().err.splitlines()[-1]
    assert not [path for path in tmp_path.iterdir() if path.name != "reput-data"]
