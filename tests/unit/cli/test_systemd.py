"""Reports to systemd, by a socket of ours; and the units."""

import configparser
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ports import free_port, free_port_of_broker
from reput.cli.systemd import Systemd

ROOT = Path(__file__).parents[3]
UNITS = sorted((ROOT / "ops/systemd").glob("*.service"))
GUARD_S = 60


@pytest.fixture
def listener(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(str(tmp_path / "notify"))
        receiver.settimeout(GUARD_S)
        yield receiver


def report(listener: socket.socket) -> dict[str, str]:
    text = listener.recv(65536).decode()
    return dict(line.split("=", 1) for line in text.splitlines())


@pytest.mark.parametrize("command", ["namesrv", "broker", "proxy", "controller"])
def test_a_server_reports_its_start_its_life_and_its_end(
    command: str, listener: socket.socket, tmp_path: Path
) -> None:
    port = free_port_of_broker() if command == "broker" else free_port()
    arguments = [command, "--port", str(port)]
    if command == "broker":
        arguments += ["--store", str(tmp_path / "store")]
    if command == "proxy":
        arguments += ["--namesrv", f"127.0.0.1:{free_port()}"]
    environment = {
        **os.environ,
        "HOME": str(tmp_path),
        "NOTIFY_SOCKET": listener.getsockname(),
        "WATCHDOG_USEC": "150000",
    }
    process = subprocess.Popen(
        [sys.executable, "-m", "reput", *arguments],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        ready = report(listener)
        assert ready["READY"] == "1"
        assert "success" in ready["STATUS"]
        fed = [report(listener) for _ in range(4)]
        assert fed == [{"WATCHDOG": "1"}] * 4
        process.send_signal(signal.SIGTERM)
        last = {"WATCHDOG": "1"}
        while last == {"WATCHDOG": "1"}:
            last = report(listener)
        assert last == {"STOPPING": "1", "STATUS": "stopping"}
        assert process.wait(GUARD_S) == 0
    finally:
        process.kill()
        process.wait()


def test_children_do_not_inherit_the_variables(listener: socket.socket) -> None:
    environment = {
        "NOTIFY_SOCKET": listener.getsockname(),
        "WATCHDOG_USEC": "1000000",
        "WATCHDOG_PID": "7",
        "HOME": "/",
    }
    systemd = Systemd(environment, process_id=7)
    assert environment == {"HOME": "/"}
    assert systemd.watchdog_s == 1
    systemd.report(STATUS="one\nREADY=1")
    assert report(listener) == {"STATUS": "one READY=1"}


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"WATCHDOG_USEC": "1000000", "WATCHDOG_PID": "8"},
        {"WATCHDOG_USEC": "soon"},
        {"WATCHDOG_USEC": "0"},
    ],
)
async def test_without_a_watchdog_nothing_feeds_it(environment: dict[str, str]) -> None:
    systemd = Systemd(environment, process_id=7)
    assert systemd.watchdog_s is None
    async with systemd.running("ready"):
        pass


async def test_a_socket_that_is_gone_stops_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with Systemd({"NOTIFY_SOCKET": str(tmp_path / "gone")}).running("ready"):
        pass
    assert len(caplog.messages) == 2


@pytest.mark.skipif(sys.platform != "linux", reason="abstract sockets are Linux's")
def test_an_abstract_address() -> None:
    name = f"reput-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(f"\0{name}")
        receiver.settimeout(GUARD_S)
        Systemd({"NOTIFY_SOCKET": f"@{name}"}).report(READY=1)
        assert report(receiver) == {"READY": "1"}


# --- units --------------------------------------------------------------------------------------


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_a_unit_runs_an_existing_command_with_its_options(unit: Path) -> None:
    parser = configparser.RawConfigParser(strict=False)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read(unit)
    service = dict(parser["Service"])
    program, command, *options = service["ExecStart"].split()
    assert program == "/opt/reput/bin/reput"
    # The others run until they are stopped, and report nothing.
    assert service["Type"] == (
        "notify" if command in ("namesrv", "broker", "proxy", "controller") else "exec"
    )
    assert ("WatchdogSec" in service) == (service["Type"] == "notify")
    home = service["StateDirectory"]
    assert f"HOME=/var/lib/{home} " in service["Environment"]
    if options == ["$OPTIONS"]:
        assert service["EnvironmentFile"] == f"-/etc/reput/{command}.env"
        assert "NAMESRV_ADDR=" in service["Environment"]
        assert service["WorkingDirectory"] == f"/var/lib/{home}"
        options = []
    help_text = subprocess.run(
        [sys.executable, "-m", "reput", command, "--help"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    for option in options[::2]:
        assert option in help_text


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd-analyze")
def test_systemd_accepts_the_units(tmp_path: Path) -> None:
    files = []
    for unit in UNITS:
        file = tmp_path / unit.name.replace("@.", "@broker-a.")
        file.write_text(unit.read_text().replace("/opt/reput/bin/reput", "/bin/sh"))
        files.append(str(file))
    assert len(files) >= 6
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *files],
        capture_output=True,
        text=True,
        check=False,
    )
    own = [line for line in done.stderr.splitlines() if "reput" in line]
    assert (done.returncode, own) == (0, [])
