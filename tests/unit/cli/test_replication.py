"""``reput up --replicas``, and ``reput cluster`` with ``replicas``, ``promote`` and ``demote``."""

import json
import os
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from interop.clusters import until
from ports import free_port, free_ports
from reput.cli import main as cli
from reput.cli.replicated_up import _keep_one_master, _Member, _own_ports
from reput.client import Message, blocking
from reput.errors import ReputError
from reput.store.reader import StoreReader
from wire_command import Command

WAIT_S = 60.0


class Pair:
    """A running ``reput up --replicas 1``.

    Args:
        folder: Folder of the stores.
        options: Other options than that.
    """

    def __init__(self, folder: Path, *options: str) -> None:
        first = free_ports(24) + 2
        self.options = options or ("--replicas", "1")
        self.ports = [first, first + 10, first + 20]
        self.namesrv = f"127.0.0.1:{free_port()}"
        self.folder = folder
        self.output = ""
        self.start()

    def start(self) -> None:
        ports = ("--port", self.namesrv.rpartition(":")[2], "--broker-port", str(self.ports[0]))
        self.process = subprocess.Popen(
            [sys.executable, "-m", "reput", "up", *self.options, "--store", "d", *ports],
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        self.output = ""
        deadline = time.monotonic() + WAIT_S
        assert self.process.stdout is not None
        while "Ctrl-C" not in self.output:
            left = deadline - time.monotonic()
            ready = select.select([self.process.stdout], [], [], max(left, 0))[0]
            data = os.read(self.process.stdout.fileno(), 4096) if ready else b""
            assert data, f"it did not start: {self.output}"
            self.output += data.decode()

    def pid(self, number: int) -> int:
        match = re.search(rf"pid (\d+), \S+/broker-a-{number}$", self.output, re.MULTILINE)
        assert match, self.output
        return int(match[1])

    def address(self, number: int) -> str:
        return f"127.0.0.1:{self.ports[number - 1]}"

    def conf(self, number: int) -> Path:
        return self.folder / f"d/broker-a-{number}/broker.conf"

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            self.process.wait(WAIT_S)
        assert self.process.stdout is not None
        self.process.stdout.close()


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    started = Pair(tmp_path)
    yield started
    started.stop()


def replicas(command: Command) -> dict[str, Any]:
    """Return the replicas and connections, whether or not there are problems."""
    command._capture.readouterr()
    cli.run(["cluster", "replicas", "--json", "-n", command._namesrv])
    out, _ = command._capture.readouterr()
    document = json.loads(out)
    assert isinstance(document, dict)
    return document


def rows_of(command: Command) -> dict[str, dict[str, Any]]:
    """Return the replicas by address."""
    return {row["address"]: row for row in replicas(command)["replicas"]}


def stored(folder: Path) -> list[bytes]:
    reader = StoreReader.open(str(folder))
    return [message.plain_body() for message in reader.messages() if message.topic == "Orders"]


def test_a_failover_keeps_all_acknowledged_messages(
    pair: Pair, capsys: pytest.CaptureFixture[str]
) -> None:
    command = Command(pair.namesrv, capsys)
    until(lambda: rows_of(command).get(pair.address(2), {}).get("state") == "following")
    with blocking.Producer("P", namesrv=pair.namesrv) as producer:
        for number in range(20):
            assert producer.send(Message("Orders", b"%d" % number)).status.name == "SEND_OK"
    refusal = command.complaint("cluster", "promote", "broker-a")
    assert f"{pair.address(1)} is the master of broker-a, and answers" in refusal

    os.kill(pair.pid(1), signal.SIGKILL)
    done = command.json("cluster", "promote", "broker-a", "--timeout", "5")
    assert (done["address"], done["role"]) == (pair.address(2), "SYNC_MASTER")
    assert (done["role_before"], done["role_source"]) == ("SLAVE", "last master")
    assert (done["id_before"], done["id"]) == (1, 0)
    assert "brokerRole=SYNC_MASTER\n" in pair.conf(2).read_text()
    assert "brokerId=0\n" in pair.conf(2).read_text()
    assert "is a master already" in command.complaint("cluster", "promote", pair.address(2))
    with blocking.Producer("P", namesrv=pair.namesrv) as producer:
        producer.send(Message("Orders", b"after"))

    # The old master does not serve beside the new one.
    again = subprocess.run(
        [sys.executable, "-m", "reput", "broker", "-c", str(pair.conf(1))],
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )
    assert again.returncode == 2
    assert f"{pair.address(2)} is the master of broker 'broker-a'" in again.stderr

    # The next start continues with the last roles: the broker that was promoted is the master.
    pair.stop()
    pair.start()
    assert "broker-a-1 was master before broker-a-2: now a slave" in pair.output
    until(lambda: rows_of(command).get(pair.address(1), {}).get("state") == "following")
    rows = rows_of(command)
    until(lambda: rows_of(command)[pair.address(1)]["lag_bytes"] == 0)
    assert rows[pair.address(2)]["role"] == "SYNC_MASTER"

    # A planned change of roles, back to the first broker.
    demoted = command.json("cluster", "demote", "broker-a")
    assert (demoted["address"], demoted["role"]) == (pair.address(2), "SLAVE")
    promoted = command.json("cluster", "promote", pair.address(1), "--async")
    assert (promoted["role"], promoted["role_source"]) == ("ASYNC_MASTER", "option")
    until(lambda: rows_of(command).get(pair.address(2), {}).get("state") == "following")
    assert "no slave of" not in command("cluster", "replicas", "broker-a")
    pair.stop()
    bodies = [stored(pair.folder / f"d/broker-a-{number}/store") for number in (1, 2)]
    assert bodies[0] == bodies[1] == [*(b"%d" % number for number in range(20)), b"after"]


def test_another_broker_becomes_master_by_itself(tmp_path: Path) -> None:
    """Under a controller: nothing is promoted by hand, and nothing acknowledged is lost."""
    group = Pair(tmp_path, "--replicas", "2", "--controllers", "1")
    try:
        match = re.search(r"kill -9 (\d+)", group.output)
        assert match, group.output
        others = [number for number in (1, 2, 3) if group.pid(number) != int(match[1])]
        bodies = [b"%d" % number for number in range(40)]
        with blocking.Producer("P", namesrv=group.namesrv) as producer:
            for body in bodies[:20]:
                assert producer.send(Message("Orders", body)).status.name == "SEND_OK"
            os.kill(int(match[1]), signal.SIGKILL)
            for body in bodies[20:]:
                until(lambda body=body: _is_sent(producer, body))
    finally:
        group.stop()
    kept = [stored(group.folder / f"d/broker-a-{number}/store") for number in others]
    assert kept[0] == kept[1]
    assert set(kept[0]) == set(bodies)


def _is_sent(producer: blocking.Producer, body: bytes) -> bool:
    try:
        return producer.send(Message("Orders", body)).status.name == "SEND_OK"
    except ReputError:
        return False


def test_refusals_name_the_reason(pair: Pair, capsys: pytest.CaptureFixture[str]) -> None:
    command = Command(pair.namesrv, capsys)
    assert "allowed: broker-a" in command.complaint("cluster", "promote", "nonsense")
    assert "allowed: broker-a" in command.complaint("cluster", "replicas", "nonsense")
    os.kill(pair.pid(2), signal.SIGKILL)
    until(lambda: not replicas(command)["connections"])
    refusal = command.complaint("cluster", "demote", "broker-a")
    assert "no slave of" in refusal
    assert "--force" in refusal


@pytest.mark.soak
def test_a_forced_promotion_leaves_no_licence(
    pair: Pair, capsys: pytest.CaptureFixture[str]
) -> None:
    command = Command(pair.namesrv, capsys)
    until(lambda: rows_of(command).get(pair.address(2), {}).get("state") == "following")
    done = command.json("cluster", "promote", pair.address(2), "--force", "--timeout", "5")
    assert done["role"] == "SYNC_MASTER"
    assert "haForceMaster" not in pair.conf(2).read_text()


def test_brokers_end_with_the_process_that_has_started_them(
    pair: Pair, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with blocking.Producer("P", namesrv=pair.namesrv) as producer:
        producer.send(Message("Orders", b"before"))
    confs = [pair.conf(number).read_text() for number in (1, 2)]
    # The pipes of both brokers must end, although the second one was started after the first.
    os.kill(pair.pid(1), signal.SIGSTOP)
    pair.process.kill()
    pair.process.wait(WAIT_S)
    until(lambda: not is_running(pair.pid(2)))
    text = refusal_of_up(tmp_path, "--broker-port", "0")
    assert f"broker-a-1/store is in use by pid {pair.pid(1)} (" in text
    assert confs == [pair.conf(number).read_text() for number in (1, 2)]
    os.kill(pair.pid(1), signal.SIGCONT)
    until(lambda: not is_running(pair.pid(1)))
    # They have stopped as on a signal.
    assert not list(tmp_path.glob("d/*/store/abort"))


def is_running(pid: int) -> bool:
    """Return True if there is a process that is not a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def refusal_of_up(folder: Path, *more: str) -> str:
    """Return the text of ``reput up --replicas 1``, which must be refused."""
    done = subprocess.run(
        [
            *(sys.executable, "-m", "reput", "up", "--replicas", "1", "--store", "d"),
            *("--port", "0", *more),
        ],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )
    assert done.returncode == 2
    return done.stderr


def test_a_store_of_one_broker_is_refused(tmp_path: Path) -> None:
    (tmp_path / "d/commitlog").mkdir(parents=True)
    text = refusal_of_up(tmp_path)
    assert "is the store of one broker; choose another folder: --store" in text


def test_only_the_last_promoted_broker_stays_master(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    members = []
    for number, (role, broker_id) in enumerate(
        [("ASYNC_MASTER", 0), ("SYNC_MASTER", 0), ("SLAVE", 1)]
    ):
        member = _Member(tmp_path / f"broker-a-{number + 1}", 0)
        member.folder.mkdir()
        member.conf.write_text(f"brokerRole={role}\nbrokerId={broker_id}\nfileReservedTime=7\n")
        os.utime(member.conf, (1_000, 2_000 - number))
        members.append(member)
    _keep_one_master(members)
    assert [member.role() for member in members] == [
        ("ASYNC_MASTER", "0"),
        ("SLAVE", "2"),
        ("SLAVE", "1"),
    ]
    assert "fileReservedTime=7\n" in members[1].conf.read_text()
    assert "broker-a-2 was master before broker-a-1" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, {}),
        ({"metricsExporterType": "PROM"}, {"metricsPromExporterPort": "5559"}),
        (
            {"metricsExporterType": "PROM", "metricsPromExporterPort": "7000"},
            {"metricsPromExporterPort": "7002"},
        ),
        ({"grpcServerPort": "8081"}, {"grpcServerPort": "8083"}),
        ({"grpcServerPort": "0"}, {}),
        ({"grpcServerPort": "many"}, {}),
    ],
    ids=["none", "default", "exporter", "gRPC", "off", "wrong"],
)
def test_each_broker_of_a_group_has_its_own_ports(
    given: dict[str, str], expected: dict[str, str]
) -> None:
    assert _own_ports(given, 2) == expected
