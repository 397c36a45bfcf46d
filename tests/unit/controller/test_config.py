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


def test_three_controllers_on_an_etcd() -> None:
    value = ControllerConfig(
        controller_d_leger_peers="n0-a:1;n1-b:2;n2-[::1]:3;",
        controller_d_leger_self_id="n1",
        reput_quorum="etcd:https://10.0.0.1,https://[fd00::2]:1234/of/shop/",
    )
    assert (value.peer, value.port) == (Peer("n1", "b:2"), 2)
    assert [peer.name for peer in value.peers] == ["n0", "n1", "n2"]
    assert value.etcd is not None
    assert [*map(str, value.etcd.endpoints)] == ["https://10.0.0.1:2379", "https://[fd00::2]:1234"]
    assert value.etcd.prefix == "/of/shop"
    assert value.etcd.is_tls


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
        (
            "controller_d_leger_peers",
            "n1-a:1",
            "n0-host:port, once, as controllerDLegerSelfId is n0",
        ),
        ("controller_d_leger_peers", "n0-a", "NAME-host:port, for example n0-127.0.0.1:9878"),
        ("reput_quorum", "file:/x", r"empty for the file in controllerStorePath, or etcd:http://"),
        ("reput_quorum", "etcd:h:2379", "etcd:http://HOST:2379"),
        ("reput_quorum", "etcd:http://h:99999", "etcd:http://HOST:2379"),
        ("reput_quorum", "etcd:http://u:p@h:2379", "etcd:http://HOST:2379"),
        ("reput_quorum", "etcd:http://a/x,http://b", "the prefix is after the last member"),
        ("reput_quorum", "etcd:http://a,https://b", "the same scheme for all"),
        (
            "reput_quorum",
            "etcd:http://a:2379",
            "n0-host:port: the other controllers pass this address",
        ),
        ("reput_quorum_lease_seconds", 1, "a whole number from 2 to 60"),
        ("reput_quorum_key_file", "/x", "if, and only if, reputQuorumCertFile is"),
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
