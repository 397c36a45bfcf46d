"""The servers as an operator runs them, with processes and signals."""

import json
import logging
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self

import pytest

from ports import free_port
from reput.cli import exit_codes, main as cli
from reput.client import Message, blocking
from reput.format import command as commands
from reput.format.codes import RequestCode
from reput.format.command import Command
from reput.store.reader import StoreReader

WAIT_S = 60
READY = {
    "up": "Ctrl-C stops it.",
    "namesrv": "boot success",
    "broker": "boot success",
    "controller": "boot success",
}


class Server:
    """A server process; it is ready after its greeting, and killed at the end of the test."""

    def __init__(
        self,
        folder: Path,
        *arguments: str,
        environment: dict[str, str] | None = None,
        before: tuple[str, ...] = (),
    ):
        self.printed = ""
        self.rest = ""  # what it prints after its greeting; complete after the process has ended
        self._process = subprocess.Popen(
            [*before, sys.executable, "-m", "reput", *arguments],
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **(environment or {})},
        )
        self._logs: list[str] = []
        self._reader = threading.Thread(target=self._read_logs)
        self._reader.start()
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.printed += line
            if READY[arguments[0]] in line:
                return
        self.wait()
        raise AssertionError(f"it did not start: {self.logs}")

    def _read_logs(self) -> None:
        assert self._process.stderr is not None
        self._logs += self._process.stderr

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self.wait()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def logs(self) -> str:
        """Log so far; complete after the process has ended."""
        return "".join(self._logs)

    def address(self, name: str) -> str:
        """Address that ``reput up`` printed."""
        match = re.search(rf"^  {name} +(\S+)", self.printed, re.MULTILINE)
        assert match, self.printed
        return match[1]

    def send_signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def wait(self) -> int:
        assert self._process.stdout is not None
        code = self._process.wait(WAIT_S)
        self._reader.join()
        if not self._process.stdout.closed:
            self.rest += self._process.stdout.read()
        assert self._process.stderr is not None
        self._process.stdout.close()
        self._process.stderr.close()
        return code

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        self.send_signal(number)
        return self.wait()


Start = Callable[..., Server]
ANY_PORT = ("--port", "0", "--broker-port", "0")
SLOW_DISK = "reput.store.durations"
"""Logger of syncs and puts that took long, as on a busy machine."""


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    servers: list[Server] = []

    def begin(*arguments: str, **more: Any) -> Server:
        servers.append(Server(tmp_path, *arguments, **more))
        return servers[-1]

    yield begin
    for server in servers:
        if server._process.returncode is None:
            server.__exit__(None, None, None)


@pytest.fixture(autouse=True)
def logs_as_they_were() -> Iterator[None]:
    """Restore the logging configuration, which commands in this process change."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


def send(namesrv: str, *bodies: bytes) -> None:
    with blocking.Producer("P", namesrv=namesrv) as producer:
        for body in bodies:
            producer.send(Message("Orders", body))


def stored(folder: Path) -> list[bytes]:
    reader = StoreReader.open(str(folder))
    return [message.plain_body() for message in reader.messages() if message.topic == "Orders"]


Refused = Callable[..., str]


@pytest.fixture
def refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Refused:
    """Return ``refused(*arguments)``: the last line of stderr of a server that does not start."""

    def run(*arguments: str) -> str:
        monkeypatch.chdir(tmp_path)
        capsys.readouterr()
        assert cli.run(list(arguments)) == exit_codes.EXIT_ERROR
        printed = capsys.readouterr()
        assert printed.out == ""
        return printed.err.splitlines()[-1]

    return run


# --- up -----------------------------------------------------------------------------------------


@pytest.fixture
def ends_with_its_terminal() -> Iterator[None]:
    """Let processes of the test heed SIGHUP, even if the tests run under nohup."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.usefixtures("ends_with_its_terminal")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
@pytest.mark.sampled(3)
def test_up_keeps_what_was_sent(start: Start, tmp_path: Path, number: signal.Signals) -> None:
    folder = tmp_path / "reput-data"
    for round_number in range(2):
        with start("up", *ANY_PORT, "--log-level", "info") as server:
            assert server.address("store") == str(folder)
            send(server.address("name server"), b"%d" % round_number)
            assert server.stop(number) == 0
            assert "recovered" not in server.logs
            warnings = [line for line in server.logs.splitlines() if "WARNING" in line]
            assert [line for line in warnings if SLOW_DISK not in line] == []
            assert f"{round_number + 1} messages are in {folder}" in server.rest
        assert not (folder / "abort").exists()
    assert stored(folder) == [b"0", b"1"]


def test_a_second_signal_ends_it_at_once(start: Start, tmp_path: Path) -> None:
    with start("up", *ANY_PORT, "--log-level", "info") as server:
        send(server.address("name server"), b"one")
        server.send_signal(signal.SIGSTOP)  # both signals are pending when it continues
        server.send_signal(signal.SIGTERM)
        server.send_signal(signal.SIGINT)
        server.send_signal(signal.SIGCONT)
        assert server.wait() in (0, exit_codes.EXIT_INTERRUPTED)
    # The next server starts after any of these ends.
    with start("up", *ANY_PORT) as server:
        assert server.stop() == 0
    assert stored(tmp_path / "reput-data") == [b"one"]


def test_a_server_that_ignores_the_end_of_its_terminal_goes_on(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does; a process inherits it
    try:
        with start("namesrv", "--port", "0", environment={"ROCKETMQ_HOME": "."}) as server:
            server.send_signal(signal.SIGHUP)
            assert server.stop() == 0
            assert "SIGTERM" in server.logs
            assert "SIGHUP" not in server.logs
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_start_after_a_crash_reports_the_recovery(start: Start, tmp_path: Path) -> None:
    with start("up", *ANY_PORT) as server:
        send(server.address("name server"), b"one")
    with start("up", *ANY_PORT, "--log-level", "info") as server:
        assert server.stop() == 0
        (line,) = (line for line in server.logs.splitlines() if "not stopped cleanly" in line)
        assert " INFO " in line
        assert re.search(r"recovered in \d+ ms: \d+ bytes of the log dispatched again", line)


def test_up_continues_a_store_with_other_file_sizes(start: Start, tmp_path: Path) -> None:
    conf = tmp_path / "broker.conf"
    conf.write_text("mappedFileSizeCommitLog=8388608\nbrokerName=mine\n")
    with start("up", *ANY_PORT, "--store", "s", "-c", str(conf)) as server:
        assert "(mine of DefaultCluster)" in server.printed
        send(server.address("name server"), b"one")
        assert server.stop() == 0
    with start("up", *ANY_PORT, "--store", "s") as server:
        send(server.address("name server"), b"two")
        assert server.stop() == 0
    assert stored(tmp_path / "s") == [b"one", b"two"]


def test_up_serves_health_and_metrics(start: Start, refused: Refused, tmp_path: Path) -> None:
    port, exporter_port = free_port(), free_port()
    environment = {
        "REPUT_METRICS_EXPORTER_TYPE": "PROM",
        "REPUT_METRICS_PROM_EXPORTER_PORT": str(exporter_port),
        "REPUT_METRICS_PROM_EXPORTER_HOST": "127.0.0.1",
    }
    options = (*ANY_PORT, "--host", "0.0.0.0", "--metrics-port", str(port))
    with start("up", *options, environment=environment) as server:
        url, exporter = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{exporter_port}"
        assert f"  metrics      {url}/metrics and http://127." in server.printed
        # Clients can connect to all addresses of this machine, those who look at metrics to one.
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.2", port), WAIT_S)
        with urllib.request.urlopen(f"{url}/health", timeout=WAIT_S) as answer:
            assert json.load(answer)["status"] == "ok"
        with urllib.request.urlopen(f"{url}/metrics", timeout=WAIT_S) as answer:
            assert b"\nreput_healthy 1.0\n" in answer.read()
        with urllib.request.urlopen(f"{url}/metrics/queues?topic=TBW102", timeout=WAIT_S) as answer:
            assert b"\nreput_queue_max_offset{" in answer.read()
        with urllib.request.urlopen(f"{exporter}/metrics", timeout=WAIT_S) as answer:
            assert b"\nrocketmq_topic_number{" in answer.read()
        more = ("--store", "other", "--metrics-port", str(port))
        text = refused("up", *ANY_PORT, *more)
        assert text.startswith(f"reput: port {port} is in use by pid {server.pid} (")
        assert text.endswith("choose another: --metrics-port")
        assert server.stop() == 0
    assert not (tmp_path / "other" / "abort").exists()  # the listener was closed again


def test_metrics_are_served_at_the_configured_address(start: Start) -> None:
    port = str(free_port())
    opened = ("--metrics-port", port, "--metrics-address", "0.0.0.0")
    with start("up", *ANY_PORT, *opened) as server:
        assert f"  metrics      http://0.0.0.0:{port}/metrics and" in server.printed
        with urllib.request.urlopen(f"http://127.0.0.2:{port}/health", timeout=WAIT_S) as answer:
            assert answer.status == 200
        assert server.stop() == 0


def test_a_name_server_with_a_controller(start: Start, tmp_path: Path) -> None:
    port, metrics_port = free_port(), free_port()
    (tmp_path / "namesrv.conf").write_text(
        f"listenPort=0\nmetricsPort={metrics_port}\nenableControllerInNamesrv=true\n"
        f"controllerDLegerPeers=n0-127.0.0.1:{port}\ncontrollerStorePath={tmp_path}/state\n"
        "controllerDLegerSelfIds=n0\n"
    )
    environment = {"HOME": str(tmp_path)}
    with start("namesrv", "-c", "namesrv.conf", environment=environment) as server:
        url = f"http://127.0.0.1:{metrics_port}"
        with urllib.request.urlopen(f"{url}/health", timeout=WAIT_S) as answer:
            assert json.load(answer)["controller"]["leading"]
        with urllib.request.urlopen(f"{url}/metrics", timeout=WAIT_S) as answer:
            text = answer.read().decode()
        assert f'\nrole{{address="127.0.0.1:{port}",group="reput",peer_id="n0"}} 3.0\n' in text
        assert text.count("# TYPE reput_info ") == 1
        assert server.stop() == 0
        (line,) = (line for line in server.logs.splitlines() if "unknown key" in line)
        assert "controllerDLegerSelfIds" in line


def test_a_name_server_serves_health_and_metrics(
    start: Start, refused: Refused, tmp_path: Path
) -> None:
    port = str(free_port())
    environment = {"HOME": str(tmp_path)}
    options = ("--port", "0", "--metrics-port", port)
    with start("namesrv", *options, environment=environment) as server:
        url = f"http://127.0.0.1:{port}"
        with urllib.request.urlopen(f"{url}/health", timeout=WAIT_S) as answer:
            assert json.load(answer)["status"] == "ok"
        with urllib.request.urlopen(f"{url}/metrics", timeout=WAIT_S) as answer:
            assert b"\nreput_namesrv_brokers 0.0\n" in answer.read()
        text = refused("namesrv", *options)
        assert text.startswith(f"reput: port {port} is in use by pid {server.pid} (")
        assert text.endswith("choose another: --metrics-port, or metricsPort in namesrv.conf")
        assert server.stop() == 0


def test_a_controller_serves_health_and_keeps_its_state(
    start: Start, refused: Refused, tmp_path: Path
) -> None:
    port = str(free_port())
    environment = {"HOME": str(tmp_path)}
    options = ("--port", "0", "--store", "state", "--metrics-port", port)
    with start("controller", *options, environment=environment) as server:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=WAIT_S) as answer:
            assert json.load(answer)["leading"] is True
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=WAIT_S) as answer:
            assert b"\nreput_controller_groups 0.0\n" in answer.read()
        text = refused("controller", "--port", "0", "--store", "state")
        assert f"{tmp_path}/state is in use" in text
        assert server.stop() == 0
    assert (tmp_path / "state" / "groups.json").read_bytes().startswith(b"reput-controller 1 ")


@pytest.mark.parametrize(
    ("address", "reason"),
    [("nowhere.invalid", "the address to listen on is unknown"), ("", "reputMetricsAddress")],
)
def test_an_unknown_address_for_metrics_is_refused(
    refused: Refused, address: str, reason: str
) -> None:
    options = ("--port", "0", "--metrics-port", str(free_port()), "--metrics-address", address)
    assert reason in refused("namesrv", *options)


# --- namesrv and broker -------------------------------------------------------------------------


def test_name_server_and_broker_as_two_processes(start: Start, tmp_path: Path) -> None:
    environment = {"HOME": str(tmp_path)}
    with start("namesrv", "--port", "0", environment=environment) as names:
        match = re.search(r"address 0\.0\.0\.0:(\d+)$", names.printed, re.MULTILINE)
        assert match, names.printed
        address = f"127.0.0.1:{match[1]}"
        conf = tmp_path / "broker.conf"
        conf.write_text(
            "brokerName = broker-x\nbrokerIP1 = 127.0.0.1\nlistenPort = 0\n"
            "sendMessageThreadPoolNums = 4\nautoCreateTopicEnabel = true\n"
            f"storePathRootDir = {tmp_path}/s\nmappedFileSizeCommitLog = 8388608\n"
        )
        # The environment of a shell in which other commands sign their requests.
        environment |= {"REPUT_ACCESS_KEY": "me", "REPUT_SECRET_KEY_FILE": "/my/key"}
        with start("broker", "-c", str(conf), "-n", address, environment=environment) as server:
            assert re.match(
                r"The broker\[broker-x, 127\.0\.0\.1:\d+\] boot success\. "
                rf"serializeType=JSON and name server is {address}$",
                server.printed.strip(),
            )
            send(address, b"one")
            assert server.stop() == 0
            assert "unknown key 'autoCreateTopicEnabel'; did you mean 'autoCreateTopicEnable'?" in (
                server.logs
            )
            assert "sendMessageThreadPoolNums has no effect: one thread" in server.logs
            assert "REPUT_" not in server.logs
        assert names.stop() == 0
    assert stored(tmp_path / "s") == [b"one"]


def test_a_broker_prints_its_settings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    conf = tmp_path / "broker.conf"
    conf.write_text("brokerName=b\nflushDiskType=SYNC_FLUSH\n")
    assert cli.run(["broker", "-c", str(conf), "-p"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert {"brokerName=b", "flushDiskType=SYNC_FLUSH", "autoCreateTopicEnable=true"} <= set(lines)
    assert cli.run(["broker", "-c", str(conf), "-m"]) == 0
    important = capsys.readouterr().out.splitlines()
    assert "brokerName=b" in important
    assert set(important) < set(lines)


# --- signals of the process that starts it -------------------------------------------------------

IN_BACKGROUND = ("sh", "-c", "trap '' INT; exec \"$@\"", "sh")
"""A shell that starts a job in the background: with SIGINT ignored."""


@pytest.mark.sampled(3)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize(
    "arguments",
    [("up", *ANY_PORT), ("namesrv", "--port", "0"), ("broker", "--port", "0", "--store", "s")],
    ids=["up", "namesrv", "broker"],
)
def test_a_server_in_the_background_stops_cleanly_by_either_signal(
    start: Start, tmp_path: Path, arguments: tuple[str, ...], number: signal.Signals
) -> None:
    with start(*arguments, before=IN_BACKGROUND, environment={"HOME": str(tmp_path)}) as server:
        assert server.stop(number) == 0


def test_a_command_of_up_in_the_background_has_the_default_signals(tmp_path: Path) -> None:
    code = "import signal, sys; sys.exit(signal.getsignal(signal.SIGINT) is signal.SIG_IGN)"
    up = [sys.executable, "-m", "reput", "up", *ANY_PORT, "--", sys.executable, "-c", code]
    done = subprocess.run([*IN_BACKGROUND, *up], cwd=tmp_path, timeout=WAIT_S, check=False)
    assert done.returncode == 0


# --- errors -------------------------------------------------------------------------------------


def test_a_port_or_store_in_use_names_the_process(
    start: Start, refused: Refused, tmp_path: Path
) -> None:
    with start("up", *ANY_PORT) as server:
        port = server.address("name server").partition(":")[2]
        text = refused("up", "--store", "other", "--port", port)
        assert text.startswith(f"reput: port {port} is in use by pid {server.pid} (")
        assert text.endswith("choose another: --port")
        port = server.address("broker").partition(":")[2]
        text = refused("up", "--store", "other", "--port", "0", "--broker-port", port)
        assert text.startswith(f"reput: port {port} is in use by pid {server.pid} (")
        text = refused("up", *ANY_PORT)
        assert text.startswith(f"reput: {tmp_path}/reput-data is in use by pid {server.pid} (")
        text = refused("broker", "--store", "other", "--port", port)
        assert text.startswith(f"reput: listenPort {port} is in use by pid {server.pid} (")
        assert server.stop() == 0
    assert not (tmp_path / "other").exists(), "a start that is refused leaves a store"


def test_a_store_that_is_no_folder_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    for command in ("up", "broker"):
        assert cli.run([command, "--store", str(tmp_path / "file" / "store")]) == 2
        text = f"reput: {tmp_path}/file is no folder; choose another for the store: --store"
        assert capsys.readouterr().err.splitlines()[-1] == text


def test_a_name_for_clients_that_does_not_resolve_is_refused(
    refused: Refused, tmp_path: Path
) -> None:
    text = refused("up", *ANY_PORT, "--advertise", "nowhere.invalid")
    assert text.startswith("reput: option 'brokerIP1' is 'nowhere.invalid'; allowed: an address")
    assert not (tmp_path / "reput-data" / "abort").exists(), "it is as if it was stopped cleanly"


def test_check_reports_everything_that_is_wrong(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    conf = tmp_path / "broker.conf"
    conf.write_bytes(
        # An editor's mark before the first key is no part of it.
        b"\xef\xbb\xbfbrokerName=b\nlistenPort=x\nflushDiskType=y\nautocreatetopicenable=false\n"
    )
    broker = ["broker", "-c", str(conf)]
    assert cli.run([*broker, "--check"]) == exit_codes.EXIT_ERROR
    assert capsys.readouterr().out.splitlines() == [
        "wrong    option 'listenPort' is 'x'; allowed: a whole number",
        "wrong    option 'flushDiskType' is 'y'; allowed: ASYNC_FLUSH, SYNC_FLUSH",
        "The broker would not start: 2 settings are wrong.",
    ]
    assert cli.run(broker) == exit_codes.EXIT_ERROR
    (line,) = capsys.readouterr().err.splitlines()
    assert "'listenPort' is 'x'" in line
    assert "'flushDiskType' is 'y'" in line
    conf.write_text("autocreatetopicenable=false\n")
    warning = f"{conf}: unknown key 'autocreatetopicenable'; did you mean 'autoCreateTopicEnable'?"
    assert cli.run([*broker, "--check"]) == 0
    assert capsys.readouterr().out.splitlines()[0] == f"warning  {warning}"
    assert cli.run([*broker, "--check", "--strict"]) == exit_codes.EXIT_ERROR
    assert cli.run([*broker, "--strict"]) == exit_codes.EXIT_ERROR
    assert capsys.readouterr().err == f"reput: {warning}\n"


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (
            ["up", "--port", "x"],
            "argument --port: 'x' is no port; allowed: 0 to 65535 (reput up --help shows",
        ),
        (["up", "--prot", "1"], "unrecognized arguments: --prot 1"),
        (
            ["broker", "-c", "missing.conf"],
            "'missing.conf'; allowed: a readable file: No such file",
        ),
        (["namesrv", "--port", "70000"], "argument --port: '70000' is no port"),
        (["up", "--log-level", "loud"], "debug, info, warning, error, critical"),
        (["broker", "-n", "here"], "host:port of each name server"),
    ],
)
def test_a_wrong_command_line_is_one_line(
    tmp_path: Path, arguments: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(arguments) == exit_codes.EXIT_ERROR
    (line,) = capsys.readouterr().err.splitlines()
    assert text in line


def test_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["--help"]) == 0
    text = capsys.readouterr().out
    assert "Start a name server and a broker in one process." in text
    with pytest.raises(SystemExit) as ended:
        cli.run(["up", "--help"])
    assert ended.value.code == 0
    assert "--broker-port" in capsys.readouterr().out


# --- the start ----------------------------------------------------------------------------------

NOT_BEFORE_SERVING = (
    *("numba", "llvmlite", "pyarrow", "pyspark", "pandas", "pydantic"),
    *("typer", "rich", "lark", "prometheus_client"),
)


def test_nothing_heavy_is_imported_before_it_serves(tmp_path: Path) -> None:
    code = f"""
import sys
from reput.cli import serving

def banner(server, front, address, console_url):
    print(*sorted(name for name in {NOT_BEFORE_SERVING!r} if name in sys.modules))
    return "ready"

serving._banner = banner
import os, signal
real = serving.print_now
def say(text):
    real(text)
    if text != "ready":
        return
    os.kill(os.getpid(), signal.SIGTERM)
serving.print_now = say
from reput.cli import main as cli
sys.exit(cli.run(["up", "--port", "0", "--broker-port", "0", "--store", "s"]))
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=WAIT_S,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("\nready\n")


@pytest.mark.parametrize(
    ("mode", "has_package", "kinds"),
    [
        ("permissive", True, "plain and TLS"),
        ("enforcing", True, "TLS"),
        ("disabled", False, "plain"),
        (
            "permissive",
            False,
            "plain and TLS; TLS needs a certificate, or pip install '.[tls]' in a clone of reput",
        ),
    ],
)
@pytest.mark.sampled(3)
def test_the_greeting_promises_tls_where_there_is_a_certificate(
    mode: str, has_package: bool, kinds: str, tmp_path: Path
) -> None:
    """An installation without ``cryptography`` cannot make one."""
    absent = "" if has_package else "import sys; sys.modules['cryptography'] = None\n"
    (tmp_path / "broker.conf").write_text(f"tls.server.mode={mode}\n")
    arguments = ["up", *ANY_PORT, "-c", "broker.conf", "--store", "s"]
    code = (
        f"{absent}from reput.cli import serving\n"
        "async def until_ended(server, stopped): pass\n"
        "serving._until_ended = until_ended\n"
        "from reput.cli import main\n"
        f"main.run({arguments!r})"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=WAIT_S
    )
    match = re.search(r"^  5.x clients +\S+ \(gRPC, (.*)\)$", done.stdout, re.MULTILINE)
    assert match, done.stdout + done.stderr
    assert match[1] == kinds


def test_the_first_send_after_the_greeting_is_acknowledged(start: Start) -> None:
    """One frame, one reply: the server does no warm-up after its greeting."""
    with start("up", *ANY_PORT) as server:
        host, _, port = server.address("broker").partition(":")
        fields = {
            "a": "P", "b": "T", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "0", "h": "0",
            "i": "", "j": "0", "k": "false",
        }  # fmt: skip
        request = Command(RequestCode.SEND_MESSAGE_V2, opaque=7, ext_fields=fields, body=b"x")
        with socket.create_connection((host, int(port)), WAIT_S) as connection:
            connection.sendall(commands.encode(request))
            with connection.makefile("rb") as stream:
                size = int.from_bytes(stream.read(4))
                reply = commands.decode(stream.read(size))
        assert (reply.opaque, reply.code) == (7, 0)
        assert server.stop() == 0


def test_a_broker_starts_and_stops_without_its_name_server(start: Start, tmp_path: Path) -> None:
    """The name server's port accepts connections, and never replies."""
    with socket.socket() as mute:
        mute.bind(("127.0.0.1", 0))
        mute.listen()
        address = f"127.0.0.1:{mute.getsockname()[1]}"
        conf = tmp_path / "broker.conf"
        conf.write_text(f"brokerIP1=127.0.0.1\nlistenPort=0\nstorePathRootDir={tmp_path}/s\n")
        with start("broker", "-c", str(conf), "-n", address) as server:
            assert server.stop() == 0
    assert not (tmp_path / "s" / "abort").exists()
