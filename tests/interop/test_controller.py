"""Official brokers under our controller: mqadmin prints what it prints with Java's, recorded."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from interop import java_oracle
from interop.java_cluster import JavaClient
from interop.record_controller import DATA, mqadmin_texts
from interop.replica_group import VERSION, JavaController, group, until
from ports import free_port
from reput.controller.config import ControllerConfig
from wire_command import Command

RECORDED: dict[str, str] = json.loads((DATA / "mqadmin.json").read_text(encoding="utf-8"))

REPAIRED = {"elect the other"}
"""Where mqadmin fails with Java's controller: it cannot read ids of brokers without quotes."""
ELECTED = """
#ClusterName\tDefaultCluster
#BrokerName\tbroker-a
#BrokerMasterAddr\tBROKER-2
#MasterEpoch\t2
#SyncStateSetEpoch\t3
"""
SETTING = re.compile(r"^(\w+) +=  (.*)$", re.MULTILINE)

pytestmark = [pytest.mark.interop, pytest.mark.rotating]


@pytest.fixture
def namesrv(tmp_path: Path) -> Iterator[str]:
    """Run a name server of ours."""
    yield from _served(tmp_path / "namesrv", "namesrv", "boot success")


@pytest.fixture
def controller(tmp_path: Path) -> Iterator[str]:
    """Run a controller of ours, with the settings of the one that was recorded."""
    port = free_port()
    folder = tmp_path / "controller"
    folder.mkdir()
    (folder / "controller.conf").write_text(
        f"controllerDLegerGroup=group1\ncontrollerDLegerPeers=n0-127.0.0.1:{port}\n"
        f"controllerDLegerSelfId=n0\ncontrollerStorePath={folder / 'state'}\n"
        "mappedFileSize=1048576\n"
    )
    yield from _served(folder, "controller", "boot success", "-c", "controller.conf", port=port)


def _served(folder: Path, name: str, ready: str, *options: str, port: int = 0) -> Iterator[str]:
    folder.mkdir(exist_ok=True)
    port_options = [] if port else ["--port", str(port := free_port())]
    command = [sys.executable, "-m", "reput", name, *options, *port_options]
    out = folder / "out"
    with out.open("wb") as file:
        process = subprocess.Popen(command, cwd=folder, stdout=file, stderr=file)
    try:
        until(lambda: ready in out.read_text(), f"{name} is ready")
        yield f"127.0.0.1:{port}"
    finally:
        process.terminate()
        assert process.wait(60) == 0, out.read_text()


def test_mqadmin_prints_the_same(tmp_path: Path, namesrv: str, controller: str) -> None:
    with (
        group(tmp_path / "group", namesrv, controller) as made,
        JavaClient(VERSION, tmp_path / "client") as java,
    ):
        texts = mqadmin_texts(java, made, controller)
    settings = dict(SETTING.findall(texts.pop("config")))
    recorded = {key: text for key, text in RECORDED.items() if key != "config"}
    for name in REPAIRED:
        assert "not support unquoted name" in recorded.pop(name)
    assert texts.pop("elect the other") == ELECTED
    assert texts == recorded
    _check_settings(settings)


def _check_settings(ours: dict[str, str]) -> None:
    """Compare our settings with those of Java that have an effect here, or a reason why not."""
    official = dict(SETTING.findall(RECORDED["config"]))
    keys = ControllerConfig.keys
    # Paths, the port, and an object of Java's.
    varying = {"controllerStorePath", "configStorePath", "rocketmqHome", "listenPort"}
    known = {*keys.without_effect, *keys.only, *varying, "jraftConfig"}
    compared = {key: value for key, value in official.items() if key not in known}
    assert {key: ours.get(key) for key in compared} == compared
    assert len(compared) >= 6
    assert ours.keys() >= {"controllerStorePath", "configStorePath", "listenPort"}


@pytest.mark.skipif(not java_oracle.wants_all_versions(), reason="make interop-all: checks records")
def test_java_s_controller_still_prints_that(tmp_path: Path, namesrv: str) -> None:
    with (
        JavaController(tmp_path / "controller") as controller,
        group(tmp_path / "group", namesrv, controller.address) as made,
        JavaClient(VERSION, tmp_path / "client") as java,
    ):
        texts = mqadmin_texts(java, made, controller.address)
    del texts["config"]
    assert texts == {key: text for key, text in RECORDED.items() if key != "config"}


def test_our_commands_switch_java_s_group(
    tmp_path: Path, namesrv: str, capsys: pytest.CaptureFixture[str]
) -> None:
    command = Command(namesrv, capsys)
    with (
        JavaController(tmp_path / "controller") as controller,
        group(tmp_path / "group", namesrv, controller.address) as made,
    ):
        made.add()
        made.add()

        def is_in_sync(count: int) -> bool:
            groups = command.json("cluster", "replicas")["groups"]
            return bool(groups) and count == sum(row["is_in_sync"] for row in groups[0]["replicas"])

        until(lambda: is_in_sync(2), "two replicas in sync")
        done = command.json("cluster", "elect", "broker-a")
        assert (done["before"]["master_id"], done["after"]["master_id"]) == (1, 2)
        assert done["after"]["master_address"] == made.brokers[1].address
        assert done["problem"] is None
        assert done["switch_ms"] <= done["listed_ms"]
        until(lambda: is_in_sync(2), "two replicas in sync")
        (shown,) = command.json("cluster", "replicas")["groups"]
        assert [replica["lag_bytes"] for replica in shown["replicas"]] == [0, None]
        # mqadmin says the same of this group (tests/data/controller).
        assert [replica["epochs"][0]["start"] for replica in shown["replicas"]] == [0, 0]
        refusal = command.complaint("cluster", "elect", "broker-a", "--id", "2")
        assert "is the master already" in refusal
        assert "is still alive" in command.complaint(
            "cluster", "forget", "broker-a", "--id", "1", "--yes"
        )
        made.brokers[0].kill_broker()
        until(lambda: is_in_sync(1), "one replica in sync")
        assert command.json("cluster", "forget", "broker-a", "--id", "1", "--yes")["is_done"]
        (shown,) = command.json("cluster", "replicas")["groups"]
        assert [replica["broker_id"] for replica in shown["replicas"]] == [2]
