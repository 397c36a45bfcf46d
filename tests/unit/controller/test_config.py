"""controller.conf: Java's keys, the address, and refusals."""

from pathlib import Path

import pytest

from reput.controller import config
from reput.controller.config import DEFAULT_PORT, ControllerConfig, Peer
from reput.errors import InvalidOption

OF_JAVA = """
controllerDLegerGroup = group1
controllerDLegerPeers = n0-10.1.2.3:9877
controllerDLegerSelfId = n0
controllerStorePath = /data/controller
enableElectUncleanMaster = true
notifyBrokerRoleChanged = false
mappedFileSize = 1048576
jRaftElectionTimeoutMs = 1000
"""


def test_the_sample_of_java_with_one_controller(tmp_path: Path) -> None:
    path = tmp_path / "controller.conf"
    path.write_text(OF_JAVA)
    current, unknown = config.load(str(path))
    value = current.value
    assert unknown == ()
    assert (value.port, value.peer) == (9877, Peer("n0", "10.1.2.3:9877"))
    assert (value.enable_elect_unclean_master, value.notify_broker_role_changed) == (True, False)
    assert value.folder == "/data/controller"
    text = current.text()
    assert "listenPort=9877\n" in text
    assert "mappedFileSize=1048576\n" in text


def test_an_unknown_key_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "controller.conf"
    path.write_text("enableElectUncleanMasters=true\n")
    _, (unknown,) = config.load(str(path))
    assert unknown.suggestion == "enableElectUncleanMaster"


def test_the_port() -> None:
    assert ControllerConfig().port == DEFAULT_PORT
    settings = {"controller_d_leger_peers": "n0-h:7000", "listen_port": 7001}
    assert ControllerConfig(**settings).port == 7001  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("field", "value", "reason"),
    [
        ("controller_d_leger_peers", "n0-a:1;n1-b:1;n2-c:1", "one controller: several need"),
        ("controller_d_leger_peers", "n1-a:1", "n0-host:port, as in controllerDLegerSelfId"),
        ("controller_d_leger_peers", "n0-a", "n0-host:port, for example n0-127.0.0.1:9878"),
        ("listen_port", 70_000, "a whole number from 0 to 65535"),
        ("reput_metrics_address", "", "an address"),
        ("reput_replica_groups_max", 0, "a whole number from 1"),
    ],
)
def test_what_is_refused(field: str, value: object, reason: str) -> None:
    with pytest.raises(InvalidOption, match=reason):
        ControllerConfig(**{field: value})  # type: ignore[arg-type]


def test_its_state_cannot_be_moved_over_the_network() -> None:
    java = ControllerConfig(reput_remote_settings="java")  # type: ignore[arg-type]
    assert "controllerStorePath" in java.fixed_keys
