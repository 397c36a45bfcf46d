"""``reput broker --count`` and ``reput up --brokers`` with real processes."""

import json
import os
import signal
import socket
import struct
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from interop.clusters import until
from ports import free_port
from reput.cli import main as cli
from reput.client import Message, blocking
from reput.store.reader import StoreReader
from wire_command import Command

WAIT_S = 60.0
GUARD_S = 60.0
WATCHDOG_S = 4
"""Three times as long as a busy machine keeps a broker from a report."""


class Parent:
    """A running ``reput``, whose first line is the JSON of its addresses."""

    def __init__(self, folder: Path, *arguments: str, environment: dict[str, str] | None = None):
        self.log = folder / "log"
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "reput", *arguments, "--json"],
                cwd=folder,
                stdout=subprocess.PIPE,
                stderr=log,
                env={**os.environ, **(environment or {})},
            )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self.log.read_text()
        self.addresses: dict[str, Any] = json.loads(line)

    @property
    def namesrv(self) -> str:
        return str(self.addresses["nameServer"])

    def pids(self) -> list[int]:
        return [broker["pid"] for broker in self.addresses["brokers"]]

    def get(self, url: str) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(url, timeout=WAIT_S) as reply:
                return reply.status, reply.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def health(self) -> dict[str, Any]:
        url = str(self.addresses["metrics"]).replace("/metrics", "/health")
        return dict(json.loads(self.get(url)[1]))

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        if self.process.poll() is None:
            self.process.send_signal(number)
        code = self.process.wait(WAIT_S)
        assert self.process.stdout is not None
        self.process.stdout.close()
        return code


def is_alive(pid: int) -> bool:
    """Return True if there is a process that is not a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] != "Z"
    except FileNotFoundError:
        return False


def await_end(parent: Parent) -> None:
    until(lambda: not any(map(is_alive, parent.pids())), GUARD_S)


@pytest.fixture
def parents() -> Iterator[list[Parent]]:
    running: list[Parent] = []
    yield running
    for parent in running:
        parent.stop(signal.SIGKILL)
        await_end(parent)


def up(
    parents: list[Parent], folder: Path, *more: str, environment: dict[str, str] | None = None
) -> Parent:
    ports = ("--port", "0", "--broker-port", "0", "--metrics-port", str(free_port()))
    arguments = ("up", "--brokers", "2", *ports, "--store", "stores", *more)
    parents.append(Parent(folder, *arguments, environment=environment))
    return parents[-1]


def send(namesrv: str, count: int, topic: str = "Orders") -> list[str]:
    """Send to all brokers in turn; return the acknowledged bodies."""
    with blocking.Producer("senders", namesrv=namesrv) as producer:
        bodies = [f"{topic} {number}" for number in range(count)]
        for body in bodies:
            producer.send(Message(topic, body.encode()), timeout_ms=int(GUARD_S * 1000))
    return bodies


def stored(folder: Path, topic: str) -> list[str]:
    bodies: list[str] = []
    for store in sorted((folder / "stores").glob("[0-9]")):
        reader = StoreReader.open(str(store))
        bodies += [message.body.decode() for message in reader.messages() if message.topic == topic]
    return sorted(bodies)


def test_two_brokers_serve_as_one_cluster(
    parents: list[Parent], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ready = tmp_path / "ready.json"
    parent = up(parents, tmp_path, "--ready-file", str(ready))
    assert json.loads(ready.read_text()) == parent.addresses
    brokers = parent.addresses["brokers"]
    assert [broker["brokerName"] for broker in brokers] == ["broker-a-0", "broker-a-1"]
    for broker in brokers:
        if broker["core"] is not None:
            assert os.sched_getaffinity(broker["pid"]) == {broker["core"]}
    command = Command(parent.namesrv, capsys)
    command("topic", "create", "Orders", "--queues", "2")
    bodies = send(parent.namesrv, 8)
    status, text = parent.get(parent.addresses["metrics"])
    assert status == 200
    families = {family.name: family for family in text_string_to_metric_families(text)}
    assert len(families) == text.count("# TYPE "), "a block of a name was repeated"
    puts = {
        sample.labels["node_id"]: sample.value
        for sample in families["reput_topic_put_messages"].samples
        if sample.labels["topic"] == "Orders" and sample.name.endswith("_total")
    }
    assert puts == {"broker-a-0": 4, "broker-a-1": 4}
    up_values = families["reput_broker_up"].samples
    assert {sample.labels["node_id"]: sample.value for sample in up_values} == {
        "broker-a-0": 1,
        "broker-a-1": 1,
    }
    assert parent.get(parent.addresses["metrics"] + "/queues?topic=Orders")[0] == 200
    assert parent.get(parent.addresses["metrics"] + "/queues?topik=Orders")[0] == 400
    assert parent.health()["status"] == "ok"
    assert parent.stop() == 0
    assert not ready.exists()
    assert not any(map(is_alive, parent.pids()))
    assert stored(tmp_path, "Orders") == sorted(bodies)
    for store in ("0", "1"):
        assert StoreReader.open(str(tmp_path / "stores" / store)).state.condition.value == "clean"


def test_a_killed_broker_is_started_again_and_a_killed_parent_ends_all(
    parents: list[Parent], tmp_path: Path
) -> None:
    """No message is lost."""
    parent = up(parents, tmp_path, "--grpc-port", "0")
    before = parent.addresses["brokers"][0]
    # No connection of this machine can take a port below the ephemeral range meanwhile.
    ephemeral = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    for key in ("broker", "grpc"):
        assert int(before[key].rpartition(":")[2]) < ephemeral
    bodies = send(parent.namesrv, 20)
    first, second = parent.pids()
    os.kill(first, signal.SIGKILL)

    def is_back() -> bool:
        health = parent.health()
        killed = health["brokers"]["broker-a-0"]
        return killed["restarts"] == 1 and health["status"] == "ok"

    until(is_back, GUARD_S)
    document = parent.health()["brokers"]
    assert document["broker-a-0"]["pid"] not in (None, first)
    assert document["broker-a-0"]["address"] == parent.addresses["broker"]
    assert document["broker-a-1"]["pid"] == second
    log = parent.log.read_text()
    assert "broker-a-0 has ended (signal SIGKILL), and is started again in 1 s" in log
    assert "broker-a-0 serves again" in log
    parent.stop(signal.SIGKILL)
    until(lambda: not any(is_alive(broker["pid"]) for broker in document.values()), GUARD_S)
    assert stored(tmp_path, "Orders") == sorted(bodies)


@pytest.mark.soak
@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has the sender of a datagram")
def test_the_parent_alone_reports_to_systemd_and_watches_the_brokers(
    parents: list[Parent], tmp_path: Path
) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(tmp_path / "notify"))
        systemd.settimeout(GUARD_S)
        systemd.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        variables = {
            "NOTIFY_SOCKET": systemd.getsockname(),
            "WATCHDOG_USEC": str(WATCHDOG_S * 1_000_000),
        }
        parent = up(parents, tmp_path, environment=variables)

        def report() -> bytes:
            data, ancillary, _, _ = systemd.recvmsg(4096, 1024)
            ((_, _, credentials),) = ancillary
            process_id, _, _ = struct.unpack("3i", credentials)
            assert process_id == parent.process.pid
            return data

        assert report() == b"READY=1\nSTATUS=brokers serve: broker-a-0, broker-a-1"
        with blocking.Admin(namesrv=parent.namesrv) as admin:
            assert admin.clusters().broker_addr_table.keys() == {"broker-a-0", "broker-a-1"}
        assert [report() for _ in range(3)] == [b"WATCHDOG=1"] * 3
        first, second = parent.pids()
        os.kill(first, signal.SIGSTOP)
        # The stopped process answers no question about its health.
        until(lambda: "broker-a-0 serves again" in parent.log.read_text(), GUARD_S)
        log = parent.log.read_text()
        assert f"broker-a-0 has not reported for {WATCHDOG_S} s, and is killed" in log
        assert "broker-a-1 has not reported" not in log
        assert not is_alive(first)
        assert is_alive(second)
        assert parent.stop() == 0
        last = b"WATCHDOG=1"
        while last == b"WATCHDOG=1":
            last = report()
        assert last == b"STOPPING=1\nSTATUS=stopping"
        systemd.setblocking(False)
        with pytest.raises(BlockingIOError):
            systemd.recv(1)


@pytest.mark.soak
def test_a_stopped_broker_stays_stopped(parents: list[Parent], tmp_path: Path) -> None:
    """As after it was drained."""
    parent = up(parents, tmp_path)
    os.kill(parent.pids()[1], signal.SIGTERM)
    until(lambda: parent.health()["brokers"]["broker-a-1"]["state"] == "stopped", GUARD_S)
    health = parent.health()
    assert (health["status"], health["warnings"]) == ("ok", ["broker-a-1 was stopped"])
    assert parent.stop(signal.SIGINT) == 0


@pytest.mark.soak
def test_brokers_of_a_broker_conf(parents: list[Parent], tmp_path: Path) -> None:
    """Metrics under RocketMQ's names, and a setting that is changed in the file of its broker."""
    exporter = free_port()
    conf = tmp_path / "broker.conf"
    conf.write_text(
        "brokerName=broker-b\nlistenPort=0\nbindAddress=127.0.0.1\nbrokerIP1=127.0.0.1\n"
        f"storePathRootDir={tmp_path}/stores\nmappedFileSizeCommitLog=8388608\n"
        f"metricsExporterType=PROM\nmetricsPromExporterPort={exporter}\n"
    )
    ended = subprocess.run(
        [sys.executable, "-m", "reput", "broker", "-c", str(conf), "--count", "65"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ended.returncode == 2
    assert ended.stderr.endswith("reput: option '--count' is 65; allowed: 1 to 64\n")
    parents.append(
        Parent(
            tmp_path, "broker", "-c", str(conf), "--count", "2", "--no-pin",
            environment={"REPUT_METRICS_EXPORTER_TYPE": "PROM"},
        )
    )  # fmt: skip
    parent = parents[-1]
    assert [broker["core"] for broker in parent.addresses["brokers"]] == [None, None]
    status, text = parent.get(f"http://127.0.0.1:{exporter}/metrics")
    assert status == 200
    topics = {
        sample.labels["node_id"]
        for family in text_string_to_metric_families(text)
        if family.name == "rocketmq_topic_number"
        for sample in family.samples
    }
    assert topics == {"broker-b-0", "broker-b-1"}
    with blocking.Admin(namesrv="127.0.0.1:1") as admin:
        address = parent.addresses["brokers"][1]["broker"]
        admin.update_broker_config(address, {"fileReservedTime": "7"})
    assert "fileReservedTime=7" in (tmp_path / "stores/1/broker.conf").read_text()
    assert "fileReservedTime" not in (tmp_path / "stores/0/broker.conf").read_text()
    assert parent.stop() == 0


def test_folders_of_one_and_of_several_brokers_are_not_confused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "several/0/commitlog").mkdir(parents=True)
    (tmp_path / "one/commitlog").mkdir(parents=True)
    assert cli.run(["broker", "--store", str(tmp_path / "several"), "--port", "0"]) == 2
    assert "has the stores of several brokers" in capsys.readouterr().err
    assert cli.run(["broker", "--store", str(tmp_path / "one"), "--count", "2"]) == 2
    assert "is the store of one broker" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["broker", "--stores", "/a,/b"], "--stores is allowed with --count only"),
        (["broker", "--no-pin"], "--no-pin is allowed with --count only"),
        (["broker", "--ready-file", "x"], "--ready-file is allowed with --count only"),
        (["broker", "--count", "2", "--check"], "--check is not allowed with --count"),
        (["broker", "--count", "2", "--stores", "/a,"], "folders separated by commas"),
        (["broker", "--count", "2", "--stores", "/a"], "2 different folders"),
        (["broker", "--count", "x"], "invalid int value"),
        (["up", "--brokers", "2", "--replicas", "1"], "--brokers is not allowed with --replicas"),
        (["up", "--brokers", "2", "--test-controls", "0"], "--test-controls is not allowed"),
        (["up", "--brokers", "0", "--port", "0"], "1 to 64"),
    ],
)
def test_wrong_options_are_refused(
    tmp_path: Path,
    arguments: list[str],
    text: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.run(arguments) == 2
    assert text in capsys.readouterr().err
